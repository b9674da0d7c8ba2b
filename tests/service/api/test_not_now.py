"""What clients are told when the answer is elsewhere or not known yet: every code that means "ask again", caused on
purpose, and the one that means "never".
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import service.api.add_offsets_to_txn
import service.api.add_partitions_to_txn
import service.api.end_txn
import service.api.init_producer_id
import service.broker.transaction_gate
from log.batch import CHECKED_FROM, CONTROL, CRC_AT, build_batch, crc32c, restamp
from log.ids import TopicPartition
from service.broker.partition import Partition
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddOffsetsToTxnRequest,
    DescribeTransactionsRequest,
    ListGroupsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ListTransactionsRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.rules import rule
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import FEW, UNCOMMITTED, TxnStage, Writer, find_coordinator, on_txn_stage, values

NONE = ErrorCode.NONE
LOADING, ELSEWHERE = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
Ask = Callable[[TxnStage, Writer], Awaitable[int]]


async def _init(stage: TxnStage, writer: Writer) -> int:
    return await writer.init()


async def _add(stage: TxnStage, writer: Writer) -> int:
    return (await writer.add("orders", 0))[0]


async def _add_offsets(stage: TxnStage, writer: Writer) -> int:
    request = AddOffsetsToTxnRequest("pay", writer.producer_id, writer.epoch, "group")
    return (await stage.ask(request, 3)).error_code


async def _end(stage: TxnStage, writer: Writer) -> int:
    return (await writer.end(commit=True)).error_code


async def _describe(stage: TxnStage, writer: Writer) -> int:
    return (await stage.ask(DescribeTransactionsRequest(["pay"]))).transaction_states[0].error_code


async def _commit_offsets(stage: TxnStage, writer: Writer) -> int:
    topic = TxnOffsetCommitRequestTopic("orders", [TxnOffsetCommitRequestPartition(0, 1)])
    request = TxnOffsetCommitRequest("pay", "group", writer.producer_id, writer.epoch, topics=[topic])
    return (await stage.ask(request, 5)).topics[0].partitions[0].error_code


async def _write(stage: TxnStage, writer: Writer) -> int:
    return await writer.write("orders", "second")


PATIENT = (
    service.api.add_offsets_to_txn,
    service.api.add_partitions_to_txn,
    service.api.end_txn,
    service.api.init_producer_id,
    service.broker.transaction_gate,
)
TRANSACTIONS: tuple[Ask, ...] = (_init, _add, _add_offsets, _end, _describe)


def _coordinator(stage: TxnStage, topic: str) -> list[Partition]:
    partitions = stage.broker.partitions.topic(topic)
    assert partitions is not None
    return list(partitions.values())


def _load_again(stage: TxnStage, topic: str) -> None:
    """As after a change of leaders: the log is replayed, which takes until the loop has turned at least once."""
    for partition in _coordinator(stage, topic):
        stage.broker.coordination.by_topic[topic].led(partition)


def _lose(stage: TxnStage, topic: str) -> None:
    for partition in _coordinator(stage, topic):
        stage.broker.coordination.by_topic[topic].lost(partition.topic_partition.partition)


@pytest.mark.parametrize("ask", TRANSACTIONS, ids=lambda ask: ask.__name__.strip("_"))
@rule("B.5", "14 while the transaction coordinator replays its log, 16 where it is not: in every transactional API")
def test_a_transaction_coordinator_that_loads_or_is_elsewhere(tmp_path: Path, ask: Ask) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        _load_again(stage, "__transaction_state")
        assert await ask(stage, writer) == LOADING
        _lose(stage, "__transaction_state")
        assert await ask(stage, writer) == ELSEWHERE

    on_txn_stage(tmp_path, scene)


@rule("B.2", "a verification that finds no coordinator: NOT_ENOUGH_REPLICAS for who writes, 14 for who commits offsets")
def test_a_write_whose_coordinator_is_elsewhere_may_be_sent_again(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        _load_again(stage, "__transaction_state")
        assert await _commit_offsets(stage, writer) == LOADING
        _lose(stage, "__transaction_state")
        assert await _commit_offsets(stage, writer) == LOADING  # 16 would send the client to look for the group's
        for version in (9, 12):
            assert await writer.write("orders", "value", version=version) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert await values(stage, "orders", UNCOMMITTED) == []

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize(
    "ask", [_init, _add, _add_offsets, _end, _write, _commit_offsets], ids=lambda ask: ask.__name__
)
@rule("B.4", "51 for who waits for the markers of the last transaction in vain, in every transactional API")
def test_markers_that_do_not_arrive(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody waits a while for them, here for a moment only."""
    for edge in PATIENT:
        monkeypatch.setattr(edge, "PATIENCE_MS", 20)

    async def scene(stage: TxnStage) -> None:
        stage.broker.coordination.marker_courier.post = lambda *owed: None  # type: ignore[method-assign]
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "first")
        await writer.end(commit=True)
        assert await ask(stage, writer) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await writer.write("orders", "older client's", version=11) == ErrorCode.NOT_ENOUGH_REPLICAS

    on_txn_stage(tmp_path, scene)


@rule("B.4", "AddOffsetsToTxn makes the topic of groups where there is none, and says 15 until it is there")
def test_offsets_before_there_is_a_group_coordinator(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        here = TxnStage(stage.broker)
        await find_coordinator(here, "pay")
        writer = Writer(here, "pay")
        await writer.init()
        assert await _add_offsets(here, writer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await find_coordinator(here, "group", key_type=0)
        assert await _add_offsets(here, writer) == NONE

    on_stage(tmp_path, scene, FEW)


@rule("B.1", "a partition that remembers as many producers as it may refuses the next one, and no other (44)")
def test_one_producer_too_many(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        first, second = Writer(stage, "pay"), Writer(stage, "ship")
        await first.init()
        await second.init()
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None
        partition.producers._limit = 1
        assert await first.write("orders", "a", plain=True) == NONE
        assert await second.write("orders", "b", plain=True) == ErrorCode.POLICY_VIOLATION
        data = TopicProduceData("orders", partition_data=[PartitionProduceData(0, second.batch("b", plain=True))])
        refused = await stage.ask(ProduceRequest(None, -1, 5_000, [data]), 12)
        message = refused.responses[0].partition_responses[0].error_message
        assert message == "1 producers are remembered, and none of them is idle."
        assert await first.write("orders", "c", sequence=1, plain=True) == NONE

    on_txn_stage(tmp_path, scene)


@rule("B.10", "14 while the group's coordinator replays its log, 16 where it is not")
def test_a_group_coordinator_that_loads_or_is_elsewhere(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        _load_again(stage, "__consumer_offsets")
        assert await _commit_offsets(stage, writer) == LOADING
        _lose(stage, "__consumer_offsets")
        assert await _commit_offsets(stage, writer) == ELSEWHERE

    on_txn_stage(tmp_path, scene)


@rule("B.7", "ListTransactions says 14 while any of the coordinators replays its log: the list would lack its ids")
def test_a_list_of_transactions_while_coordinators_load(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        _load_again(stage, "__transaction_state")
        assert (await stage.ask(ListTransactionsRequest([], []))).error_code == LOADING

    on_txn_stage(tmp_path, scene)


def test_nothing_is_listed_by_a_broker_that_has_no_session(tmp_path: Path) -> None:
    """An empty list would say that nobody has a transaction open, and what nobody has open may be ended by hand."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "a")
        stage.broker.metadata.broker_epoch = -1
        _lose(stage, "__transaction_state")
        _lose(stage, "__consumer_offsets")
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await stage.ask(ListTransactionsRequest([], []))).error_code == unavailable
        assert (await stage.ask(ListGroupsRequest([], []))).error_code == unavailable

    on_txn_stage(tmp_path, scene)


def test_nothing_is_listed_before_all_that_is_led_is_led_again(tmp_path: Path) -> None:
    """After a loss of the session a broker leads its partitions in turns."""

    async def scene(stage: TxnStage) -> None:
        await stage.create("aa", 600)
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "a")
        stage.broker.metadata.on_session_lost()
        stage.broker.metadata.on_session_regained()
        told: list[int] = []
        while (answer := await stage.ask(ListTransactionsRequest([], []))).error_code:
            told += [answer.error_code, (await stage.ask(ListGroupsRequest([], []))).error_code]
            await asyncio.sleep(0)
        assert [each.transactional_id for each in answer.transaction_states] == ["pay"]
        assert set(told) == {LOADING}

    on_txn_stage(tmp_path, scene)


def test_the_list_of_groups_lacks_only_those_whose_log_is_damaged(tmp_path: Path) -> None:
    """A list of transactions that lacks some is never given."""

    async def scene(stage: TxnStage) -> None:
        for topic in ("__consumer_offsets", "__transaction_state"):
            _coordinator(stage, topic)[0].fail()
            shard = stage.broker.coordination.by_topic[topic].at(0)
            assert shard is not None
            shard._give_up()
        assert (await stage.ask(ListGroupsRequest([], []))).error_code == NONE
        assert (await stage.ask(ListTransactionsRequest([], []))).error_code == LOADING

    on_txn_stage(tmp_path, scene)


@rule("B.9", "a leader that has just begun says 78 until its high watermark has passed what was there; before v5, 5")
def test_a_leader_that_has_just_begun_does_not_know_its_end(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None

        async def latest(version: int) -> tuple[int, int]:
            wanted = ListOffsetsTopic("orders", [ListOffsetsPartition(0, timestamp=-1)])
            (found,) = (await stage.ask(ListOffsetsRequest(topics=[wanted]), version)).topics[0].partitions
            return found.error_code, found.offset

        batch = bytearray(build_batch([(None, b"not on the platter yet", (), 0)]))
        partition.append_own(batch, now_ms=0)
        partition.lead(partition.leader_epoch + 1, 1, (1,), (1,), fsync=True)
        assert await latest(7) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await latest(4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        committed = partition.committed(1)
        assert committed is not None
        await committed
        assert await latest(7) == (NONE, 1)

    on_txn_stage(tmp_path, scene, log_durability="fsync")


def _control() -> bytes:
    batch = bytearray(build_batch([(None, b"v", (), 0)]))
    batch[CHECKED_FROM + 1] |= CONTROL
    batch[CRC_AT:CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4, "big")
    return bytes(batch)


def _later() -> bytes:
    batch = bytearray(build_batch([(None, b"v", (), 0)]))
    restamp(batch, base_offset=7, leader_epoch=-1)
    return bytes(batch)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(_control(), id="a control batch"),
        pytest.param(build_batch([(None, b"v", (), 0)], producer_id=1, producer_epoch=0), id="no sequence"),
        pytest.param(2 * build_batch([(None, b"v", (), 0)]), id="two batches"),
        pytest.param(build_batch([(None, b"v", (), 0)])[:40], id="half a batch"),
        pytest.param(_later(), id="offsets that do not begin at 0"),
    ],
)
@rule("B.1", "87: control batches, a producer id without a sequence, more or less than one batch, a lying count")
def test_a_batch_that_no_client_may_send(tmp_path: Path, batch: bytes) -> None:
    async def scene(stage: TxnStage) -> None:
        data = TopicProduceData("orders", partition_data=[PartitionProduceData(0, batch)])
        answer = await stage.ask(ProduceRequest(None, -1, 5_000, [data]), 12)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None
        assert partition.log.end_offset == 0

    on_txn_stage(tmp_path, scene)
