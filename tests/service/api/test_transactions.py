"""Transactions asked for over the protocol's own messages, in all versions that matter, and every error code of
theirs.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import service.api.add_partitions_to_txn
from log.control import ControlType
from log.ids import TopicPartition
from log.views import whole
from service.broker.partition import Partition
from service.broker.transaction_gate import TransactionGate
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.rules import rule
from tests.service.api.txn_stage import UNCOMMITTED, TxnStage, Writer, on_txn_stage, until, values
from txn.commands import AddPartitions
from txn.coordinator import TxnCoordinator
from txn.markers import SendMarkers
from txn.verdicts import TxnDecision

NONE = ErrorCode.NONE


def open_transactions(stage: TxnStage) -> dict[int, int]:
    """Of the first partition of `orders`: producer id to first offset."""
    partition = stage.broker.partitions.get(TopicPartition("orders", 0))
    assert partition is not None
    return dict(partition.stable.open_transactions)


# ---------------------------------------------------------------- all or nothing


def test_a_committed_transaction_is_seen_and_an_aborted_one_never(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        assert await writer.write("orders", "kept") == NONE
        assert await values(stage, "orders") == []
        assert (await writer.end(commit=True)).error_code == NONE
        assert await writer.write("orders", "dropped") == NONE
        assert (await writer.end(commit=False)).error_code == NONE
        assert await values(stage, "orders") == ["kept"]
        assert await values(stage, "orders", UNCOMMITTED) == ["kept", "dropped"]

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("version", [0, 4])
def test_an_older_client_adds_its_partitions_itself(tmp_path: Path, version: int) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        assert await writer.write("orders", "early", version=11) == ErrorCode.TRANSACTION_ABORTABLE
        assert await writer.write("orders", "early", version=10) == ErrorCode.INVALID_TXN_STATE
        assert await writer.add("orders", 0, 1) == [NONE, NONE]
        assert await writer.write("orders", "a", version=11) == NONE
        assert await writer.write("orders", "b", sequence=1, version=11) == NONE
        assert (await writer.end(commit=True, version=version)).error_code == NONE
        assert (await writer.end(commit=True, version=version)).error_code == NONE
        assert (await writer.end(commit=False, version=version)).error_code == ErrorCode.INVALID_TXN_STATE
        assert await writer.add("orders", 0) == [NONE]
        assert await writer.write("orders", "c", sequence=2, version=11) == NONE
        assert await values(stage, "orders") == ["a", "b"]

    on_txn_stage(tmp_path, scene)


@rule(
    "C", "KAFKA-17754: requests of transaction n, delivered again in transaction n + 1, change nothing (over the wire)"
)
def test_requests_of_the_last_transaction_do_nothing_in_the_next(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "first")
        late = writer.as_it_is_now()
        await writer.end(commit=True)
        assert await writer.write("orders", "second") == NONE
        assert (await late.as_it_is_now().end(commit=True)).error_code == ErrorCode.PRODUCER_FENCED
        assert (await late.as_it_is_now().end(commit=False)).error_code == ErrorCode.PRODUCER_FENCED
        assert await late.write("orders", "late", sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await late.add("orders", 1) == [ErrorCode.PRODUCER_FENCED]
        assert await values(stage, "orders") == ["first"]
        await writer.end(commit=False)
        assert await values(stage, "orders") == ["first"]

    on_txn_stage(tmp_path, scene)


def test_a_batch_sent_twice_stands_once_in_a_transaction_too(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        assert [await writer.write("orders", "x"), await writer.write("orders", "x")] == [NONE, NONE]
        assert await writer.write("orders", "y", sequence=5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await writer.end(commit=True)
        assert await values(stage, "orders") == ["x"]

    on_txn_stage(tmp_path, scene)


# ---------------------------------------------------------------- fencing, error codes


@rule(
    "B.3",
    "a fenced client is told INVALID_PRODUCER_EPOCH by the versions that know no better, PRODUCER_FENCED by later ones",
)
def test_a_zombie_is_told_in_the_words_it_knows(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        zombie, owner = Writer(stage, "pay"), Writer(stage, "pay")
        await zombie.init()
        await owner.init()
        old, new = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
        pair = (zombie.producer_id, zombie.epoch)
        assert [await zombie.init(expect=pair, version=version) for version in (3, 4, 5)] == [old, new, new]
        assert [await zombie.add("orders", 0, version=version) for version in (0, 1, 2, 3)] == [
            [old],
            [old],
            [new],
            [new],
        ]
        assert [(await zombie.end(commit=True, version=version)).error_code for version in range(6)] == [old] * 2 + [
            new
        ] * 4
        for version, code in ((0, old), (1, old), (2, new), (4, new)):
            asked = AddOffsetsToTxnRequest("pay", zombie.producer_id, zombie.epoch, "group")
            assert (await stage.ask(asked, version)).error_code == code
        assert await owner.write("orders", "mine") == NONE
        assert await zombie.write("orders", "zombie") == old

    on_txn_stage(tmp_path, scene)


@rule("B.3", "INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, a fresh producer id without a transactional id")
def test_what_init_refuses(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        plain = await stage.ask(InitProducerIdRequest(None, 0))
        assert (plain.error_code, plain.producer_epoch) == (NONE, 0)
        again = await stage.ask(InitProducerIdRequest(None, 0))
        assert again.producer_id > plain.producer_id
        for request, code in (
            (InitProducerIdRequest("", 1_000), ErrorCode.INVALID_REQUEST),
            (InitProducerIdRequest("pay", 0), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            (InitProducerIdRequest("pay", 900_001), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            (InitProducerIdRequest("pay", 1_000, 5, -1), ErrorCode.INVALID_REQUEST),
        ):
            answer = await stage.ask(request)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)

    on_txn_stage(tmp_path, scene)


@rule("B.4", "an unknown partition fails all: it is named, the others are OPERATION_NOT_ATTEMPTED")
def test_partitions_that_do_not_exist_join_no_transaction(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        expected = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await writer.add("orders", 0, 7) == expected
        described = await stage.ask(DescribeTransactionsRequest(["pay"]))
        assert described.transaction_states[0].transaction_state == "Empty"

    on_txn_stage(tmp_path, scene)


@rule(
    "B.5",
    "INVALID_PRODUCER_ID_MAPPING for unknown ids and other producers, INVALID_TXN_STATE where nothing can be ended",
)
def test_ends_that_end_nothing(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        unknown = await stage.ask(EndTxnRequest("nobody", 1, 0, True))
        assert unknown.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        await writer.init()
        stranger = Writer(stage, "pay", writer.producer_id + 1, writer.epoch)
        assert (await stranger.end(commit=True)).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await writer.end(commit=True)).error_code == ErrorCode.INVALID_TXN_STATE
        assert (await writer.end(commit=True, version=4)).error_code == ErrorCode.INVALID_TXN_STATE
        before = writer.epoch
        assert (await writer.end(commit=False)).error_code == NONE
        assert writer.epoch == before + 1
        assert (await stage.ask(EndTxnRequest("", 1, 0, True))).error_code == ErrorCode.INVALID_REQUEST

    on_txn_stage(tmp_path, scene)


def test_a_broker_is_told_at_once_that_markers_are_owed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its connection other transactions are asked about, too. A client of an older version may wait."""
    patience_ms = []
    decide = TxnCoordinator.decide

    def noted(machine: TxnCoordinator, command: Any, *when: Any) -> TxnDecision:
        if isinstance(command, AddPartitions):
            patience_ms.append(command.patience_ms)
        return decide(machine, command, *when)

    async def scene(stage: TxnStage) -> None:
        stage.broker.coordination.marker_courier.post = lambda *owed: None  # type: ignore[method-assign]
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "first")
        await writer.end(commit=True)
        monkeypatch.setattr(service.api.add_partitions_to_txn, "PATIENCE_MS", 20)
        monkeypatch.setattr(TxnCoordinator, "decide", noted)
        topics = [AddPartitionsToTxnTopic("orders", [0])]
        asked = AddPartitionsToTxnTransaction("pay", writer.producer_id, writer.epoch, False, topics)
        answer = await stage.ask(AddPartitionsToTxnRequest(transactions=[asked]), 5)
        [result] = answer.results_by_transaction[0].topic_results[0].results_by_partition
        assert result.partition_error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await writer.add("orders", 0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert patience_ms == [0, 20]

    on_txn_stage(tmp_path, scene)


@rule("B.2", "brokers ask for several transactions at once, and what is not in one is TRANSACTION_ABORTABLE")
def test_a_broker_asks_whether_partitions_are_in_their_transactions(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.add("orders", 0)
        both = [AddPartitionsToTxnTopic("orders", [0, 1])]
        pair = (writer.producer_id, writer.epoch)
        asked = [
            AddPartitionsToTxnTransaction("pay", *pair, True, both),
            AddPartitionsToTxnTransaction("other", *pair, True, both),
            AddPartitionsToTxnTransaction("pay", *pair, False, both),
        ]
        answer = await stage.ask(AddPartitionsToTxnRequest(transactions=asked), 5)
        found = [
            [result.partition_error_code for result in each.topic_results[0].results_by_partition]
            for each in answer.results_by_transaction
        ]
        unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert found == [[NONE, ErrorCode.TRANSACTION_ABORTABLE], [unknown, unknown], [NONE, NONE]]

    on_txn_stage(tmp_path, scene)


def test_a_plain_batch_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "in")
        assert await writer.write("orders", "out", sequence=1, plain=True) == ErrorCode.INVALID_TXN_STATE

    on_txn_stage(tmp_path, scene)


# ---------------------------------------------------------------- offsets


def commit_offset(writer: Writer, offset: int, *, generation: int = -1, member: str = "") -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(0, offset, -1, "")
    topics = [TxnOffsetCommitRequestTopic("orders", [partition])]
    pair = (writer.producer_id, writer.epoch)
    return TxnOffsetCommitRequest(writer.transactional_id, "group", *pair, generation, member, None, topics)


async def committed_offset(stage: TxnStage, *, stable: bool = False) -> tuple[int, int]:
    group = OffsetFetchRequestGroup("group", topics=[OffsetFetchRequestTopics("orders", partition_indexes=[0])])
    request = OffsetFetchRequest(groups=[group], require_stable=stable)
    answer = await stage.ask(request, 8)
    (partition,) = answer.groups[0].topics[0].partitions
    return partition.committed_offset, partition.error_code


@rule("B.10", "offsets in a transaction count when it commits, never when it aborts, and are unstable in between")
@pytest.mark.parametrize("version", [3, 5])
def test_offsets_are_pending_until_the_marker(tmp_path: Path, version: int) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()

        async def commit(offset: int) -> int:
            if version < 5:
                joins = AddOffsetsToTxnRequest("pay", writer.producer_id, writer.epoch, "group")
                assert (await stage.ask(joins)).error_code == NONE
            answer = await stage.ask(commit_offset(writer, offset), version)
            return answer.topics[0].partitions[0].error_code

        assert await commit(7) == NONE
        assert await committed_offset(stage) == (-1, NONE)
        assert await committed_offset(stage, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await writer.end(commit=True)
        assert await committed_offset(stage, stable=True) == (7, NONE)
        assert await commit(9) == NONE
        await writer.end(commit=False)
        assert await committed_offset(stage, stable=True) == (7, NONE)

    on_txn_stage(tmp_path, scene)


def test_offsets_of_a_topic_that_was_made_again_meanwhile_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction's coordinator is asked, which takes its time. The new topic must not lose an offset to these."""
    original = TransactionGate.admit

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()

        async def admit(*arguments: Any, **named: Any) -> Any:
            admitted = await original(*arguments, **named)
            deleted = await stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState("orders")], timeout_ms=5_000))
            assert not deleted.responses[0].error_code
            await stage.create("orders")
            return admitted

        monkeypatch.setattr(TransactionGate, "admit", admit)
        answer = await stage.ask(commit_offset(writer, 7), 5)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await committed_offset(stage, stable=True) == (-1, NONE)

    on_txn_stage(tmp_path, scene)


@rule("B.10", "offsets of a member or generation that the group does not know are refused (KIP-447)")
def test_a_member_the_group_does_not_know_commits_nothing(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        answer = await stage.ask(commit_offset(writer, 7, generation=3, member="gone"), 5)
        codes = [partition.error_code for partition in answer.topics[0].partitions]
        assert codes[0] in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)

    on_txn_stage(tmp_path, scene)


@rule("B.2", "offsets of a group that was not added to the transaction are refused, or fenced if the producer is")
def test_offsets_outside_of_the_transaction_are_refused(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        late = writer.as_it_is_now()
        for version, code in ((3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)):
            answer = await stage.ask(commit_offset(writer, 7), version)
            assert answer.topics[0].partitions[0].error_code == code
        await writer.end(commit=False)
        answer = await stage.ask(commit_offset(late, 7), 5)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    on_txn_stage(tmp_path, scene)


# ---------------------------------------------------------------- looking in, and breaking open


@rule(
    "B.7", "an abandoned transaction is aborted after its timeout; its client can't commit, and goes on after an abort"
)
def test_an_abandoned_transaction_is_aborted_by_time(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init(timeout_ms=50)
        await writer.write("orders", "abandoned")
        await until(lambda: not open_transactions(stage))
        assert await writer.write("orders", "more", sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await writer.as_it_is_now().end(commit=True)).error_code == ErrorCode.PRODUCER_FENCED
        assert (await writer.end(commit=False)).error_code == NONE
        assert await writer.write("orders", "again") == NONE
        await writer.end(commit=True)
        assert await values(stage, "orders") == ["again"]

    on_txn_stage(tmp_path, scene)


@rule(
    "B.6", "a hanging transaction is ended by markers that an operator sends; older epochs and coordinators are refused"
)
def test_a_hanging_transaction_can_be_broken_open(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "hanging")
        asked = DescribeProducersRequest([DescribeProducersRequestTopicRequest("orders", [0])])
        (described,) = (await stage.ask(asked)).topics[0].partitions
        (producer,) = described.active_producers
        assert (producer.producer_id, producer.current_txn_start_offset) == (writer.producer_id, 0)

        async def mark(
            epoch: int, *, coordinator_epoch: int = 0, version: int = 2, transaction_version: int = 0
        ) -> int:
            topics = [WritableTxnMarkerTopic("orders", [0])]
            marker = WritableTxnMarker(writer.producer_id, epoch, False, topics, coordinator_epoch, transaction_version)
            answer = await stage.ask(WriteTxnMarkersRequest([marker]), version)
            return answer.markers[0].topics[0].partitions[0].error_code

        assert await mark(writer.epoch - 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await mark(writer.epoch, transaction_version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await mark(writer.epoch, version=1) == NONE
        assert await values(stage, "orders") == []
        assert not open_transactions(stage)
        await writer.end(commit=False)
        assert await mark(writer.epoch, coordinator_epoch=-1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED

    on_txn_stage(tmp_path, scene)


@rule(
    "B.6", "a marker with an epoch that no coordinator has reached is refused: the partition would obey none any more"
)
def test_a_marker_of_a_coordinator_that_never_was_is_refused(tmp_path: Path) -> None:
    """Kafka takes it, and leaves every later transaction of the producer prepared for ever."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        where = [WritableTxnMarkerTopic("orders", [0])]
        for epoch in (1, 2**31 - 1):
            forged = WritableTxnMarker(writer.producer_id, writer.epoch, False, where, epoch, 0)
            answer = await stage.ask(WriteTxnMarkersRequest([forged]))
            assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        await writer.write("orders", "a")
        await writer.end(commit=True)
        await until(lambda: not open_transactions(stage))
        assert await values(stage, "orders") == ["a"]

    on_txn_stage(tmp_path, scene)


@rule(
    "B.6",
    "a partition that obeys a later coordinator epoch is owed its marker still, and its coordinator goes on there",
)
def test_a_coordinator_takes_up_a_later_epoch_that_it_meets(tmp_path: Path) -> None:
    """Kafka gives such a marker up, and leaves its transaction prepared until the coordinator moves."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None
        partition.append_marker(
            ControlType.ABORT,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            coordinator_epoch=7,
            transaction_version=0,
            now_ms=stage.broker.env.clock.wall_ms(),
        )
        await writer.write("orders", "a", partition=0)
        await writer.write("orders", "b", partition=1)
        coordinator = stage.broker.coordination.transactions.shard("pay").partition
        assert coordinator.leader_epoch == 0
        await writer.end(commit=True)
        await until(lambda: coordinator.leader_epoch == 7)
        await until(lambda: not open_transactions(stage))
        assert [await values(stage, "orders", partition=index) for index in (0, 1)] == [["a"], ["b"]]
        state = stage.broker.metadata.image.partition(coordinator.topic_partition)
        assert state is not None
        assert state.leader_epoch == 7

    on_txn_stage(tmp_path, scene)


def test_transactions_are_described_and_listed(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer, branch = Writer(stage, "pay"), Writer(stage, "clicks::1/part-0")
        await writer.init()
        await branch.init()
        await writer.write("orders", "x", partition=1)
        described = await stage.ask(DescribeTransactionsRequest(["pay", "nobody", ""]))
        pay, nobody, empty = described.transaction_states
        assert (pay.transaction_state, pay.producer_id, pay.producer_epoch) == ("Ongoing", writer.producer_id, 0)
        assert [(topic.topic, topic.partitions) for topic in pay.topics] == [("orders", [1])]
        assert nobody.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert empty.error_code == ErrorCode.INVALID_REQUEST

        async def listed(request: ListTransactionsRequest) -> list[str]:
            answer = await stage.ask(request)
            assert answer.error_code == NONE
            return sorted(state.transactional_id for state in answer.transaction_states)

        assert await listed(ListTransactionsRequest()) == ["clicks::1/part-0", "pay"]
        assert await listed(ListTransactionsRequest(state_filters=["Ongoing"])) == ["pay"]
        assert await listed(ListTransactionsRequest(producer_id_filters=[branch.producer_id])) == ["clicks::1/part-0"]
        assert await listed(ListTransactionsRequest(transactional_id_pattern="clicks::.*")) == ["clicks::1/part-0"]
        assert await listed(ListTransactionsRequest(duration_filter=60_000)) == ["clicks::1/part-0"], "it has no start"
        unknown = await stage.ask(ListTransactionsRequest(state_filters=["Asleep"]))
        assert (unknown.unknown_state_filters, unknown.transaction_states) == (["Asleep"], [])
        broken = await stage.ask(ListTransactionsRequest(transactional_id_pattern="("))
        assert broken.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("writes_on", [False, True], ids=["nothing more", "and writes on"])
@pytest.mark.parametrize("commit", [False, True], ids=["abort", "commit"])
def test_a_topic_made_again_within_a_transaction_takes_its_marker_and_no_harm(
    tmp_path: Path, commit: bool, writes_on: bool
) -> None:
    """The transaction knows it by its name. What it wrote to the new one must be ended, others' must not."""

    async def scene(stage: TxnStage) -> None:
        one, other = Writer(stage, "pay"), Writer(stage, "sell")
        await one.init()
        await other.init()
        assert await one.write("orders", "to the former topic") == 0
        await stage.ask(DeleteTopicsRequest([DeleteTopicState("orders")]))
        await stage.create("orders", 2)
        await stage.served("orders")
        assert await other.write("orders", "other's") == 0
        if writes_on:
            assert await one.write("orders", "mine") == 0
        assert (await one.end(commit=commit)).error_code == 0
        partition = await stage.served("orders")
        assert list(partition.stable.open_transactions) == [other.producer_id]
        assert (await other.end(commit=True)).error_code == 0
        await until(lambda: partition.last_stable_offset == partition.log.end_offset)
        shown = await values(stage, "orders")
        assert shown == (["other's", "mine"] if writes_on and commit else ["other's"])
        assert await one.write("orders", "in the next") == 0
        assert (await one.end(commit=True)).error_code == 0
        assert await values(stage, "orders") == [*shown, "in the next"]

    on_txn_stage(tmp_path, scene)


@rule("B.2", "a write of the next transaction waits for the last one's marker instead of being refused for good")
def test_the_next_transaction_waits_for_the_marker_of_the_last(tmp_path: Path) -> None:
    """After a commit is answered its markers may be late: a leader elsewhere, a restart. The client goes on at once."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "first")
        held: list[tuple[Partition, Sequence[SendMarkers]]] = []
        courier = stage.broker.coordination.marker_courier
        post = courier.post
        courier.post = lambda *owed: held.append(owed)  # type: ignore[method-assign]
        await writer.end(commit=True)
        assert len(held) == 1
        second = asyncio.ensure_future(writer.write("orders", "second"))
        await asyncio.sleep(0.05)
        assert not second.done()
        assert await values(stage, "orders") == []
        courier.post = post  # type: ignore[method-assign]
        courier.post(*held[0])
        assert await second == NONE
        assert await values(stage, "orders") == ["first"]
        await writer.end(commit=True)
        assert await values(stage, "orders") == ["first", "second"]

    on_txn_stage(tmp_path, scene)


@rule("B.1", "a transactional batch needs a transactional id; batches of two producers in one request are refused")
def test_a_transactional_batch_needs_a_transactional_id(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer, other = Writer(stage, "pay"), Writer(stage, "ship")
        await writer.init()
        await other.init()
        nobody = [(writer, 0)]
        assert await produce_together(stage, None, nobody) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await produce_together(stage, "pay", [(writer, 0), (other, 1)]) == [mapping, mapping]
        assert await produce_together(stage, "pay", [(writer, 0), (writer, 1)]) == [NONE, NONE]

    on_txn_stage(tmp_path, scene)


async def produce_together(
    stage: TxnStage, transactional_id: str | None, batches: list[tuple[Writer, int]]
) -> list[int]:
    """One request, a batch of each writer for its partition."""
    data = [PartitionProduceData(partition, writer.batch("x")) for writer, partition in batches]
    request = ProduceRequest(transactional_id, -1, 5_000, [TopicProduceData("orders", partition_data=data)])
    answer = await stage.ask(request, 12)
    return [partition.error_code for partition in answer.responses[0].partition_responses]


@pytest.mark.parametrize("version", [11, 12])
def test_a_write_that_waits_for_no_other_replica_is_in_the_transaction_as_well(tmp_path: Path, version: int) -> None:
    """Nobody's library asks for less than `acks=all` here, but Kafka takes it."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        if version == 11:
            await writer.add("orders", 0)
        data = [TopicProduceData("orders", partition_data=[PartitionProduceData(0, writer.batch("x"))])]
        answer = await stage.ask(ProduceRequest("pay", 1, 5_000, data), version)
        assert answer.responses[0].partition_responses[0].error_code == NONE
        await writer.end(commit=True)
        assert await values(stage, "orders") == ["x"]

    on_txn_stage(tmp_path, scene)


@rule("B.2", "what was not confirmed, because it was not led here when others were asked about, is sent again")
@pytest.mark.parametrize("what", ["led", "made"])
@pytest.mark.parametrize("version", [11, 12])
def test_a_partition_that_begins_to_be_led_while_the_coordinator_is_asked_about_another_costs_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, what: str
) -> None:
    """The client knows of a leadership earlier than its broker. It was told that its transaction is over."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        if version == 11:
            await writer.add("orders", 0, 1)
        for index in (0, 1):
            await stage.served("orders", index)
        table = stage.broker.partitions.topic("orders")
        assert table is not None
        second = table[1]
        epoch = second.leader_epoch + 1
        if what == "led":
            second.resign()
        else:
            del table[1]
        ask = TransactionGate._ask

        async def slow(*given: Any) -> Any:
            answer = await ask(*given)
            if what == "led":
                second.lead(epoch, 1, (1,), (1,), fsync=False)
            else:
                table[1] = second
            return answer

        async def produce() -> list[int]:
            data = [PartitionProduceData(index, writer.batch("x")) for index in (0, 1)]
            request = ProduceRequest("pay", -1, 5_000, [TopicProduceData("orders", partition_data=data)])
            answer = await stage.ask(request, version)
            return [each.error_code for each in answer.responses[0].partition_responses]

        with monkeypatch.context() as patch:
            patch.setattr(TransactionGate, "_ask", slow)
            assert await produce() == [NONE, ErrorCode.NOT_ENOUGH_REPLICAS]
        assert await produce() == [NONE, NONE]
        await writer.end(commit=True)
        assert [await values(stage, "orders", partition=index) for index in (0, 1)] == [["x"], ["x"]]

    on_txn_stage(tmp_path, scene)


def test_a_write_under_an_empty_transactional_id_is_an_invalid_request(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        for version in (11, 12):
            data = [TopicProduceData("orders", partition_data=[PartitionProduceData(0, writer.batch("x"))])]
            answer = await stage.ask(ProduceRequest("", -1, 5_000, data), version)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_REQUEST

    on_txn_stage(tmp_path, scene)


def test_ended_transactions_leave_nothing_behind_although_nobody_reads(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None
        sizes = []
        for _ in range(20):
            await writer.write("orders", "x")
            await writer.end(commit=True)
            stable = partition.stable
            sizes.append(len(whole(stable.snapshot())) - len(stable.markers.to_bytes()))  # which are a bounded number
        assert max(sizes) <= sizes[0] + 32

    on_txn_stage(tmp_path, scene)


def test_who_asks_for_one_thing_many_times_is_told_it_once(tmp_path: Path) -> None:
    """Of a hundred bytes for each, a request of two hundred thousand would become an answer of gigabytes."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "a")
        described = await stage.ask(DescribeTransactionsRequest(["pay", "other", "pay"]))
        assert [state.transactional_id for state in described.transaction_states] == ["pay", "other"]
        again = [DescribeProducersRequestTopicRequest("orders", [0, 1, 0]) for _ in range(2)]
        (topic,) = (await stage.ask(DescribeProducersRequest(again))).topics
        assert [partition.partition_index for partition in topic.partitions] == [0, 1]
        assert len(topic.partitions[0].active_producers) == 1

    on_txn_stage(tmp_path, scene)


def test_a_marker_of_a_producer_that_can_t_be_is_refused(tmp_path: Path) -> None:
    """It was written, for every follower and reader to take."""

    async def scene(stage: TxnStage) -> None:
        await Writer(stage, "pay").init()
        where = [WritableTxnMarkerTopic("orders", [0])]
        for producer_id, epoch, expected in (
            (-1, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (-(2**63), 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (7, -1, ErrorCode.INVALID_PRODUCER_EPOCH),
        ):
            forged = WritableTxnMarker(producer_id, epoch, True, where, 0, 0)
            answer = await stage.ask(WriteTxnMarkersRequest([forged]))
            assert answer.markers[0].topics[0].partitions[0].error_code == expected
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None and partition.log.end_offset == 0

    on_txn_stage(tmp_path, scene)
