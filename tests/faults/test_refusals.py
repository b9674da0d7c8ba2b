"""Every error code of the transactional APIs, caused on purpose, one rule after the other, by a client that sends what
real ones should not.
"""

from __future__ import annotations

import functools

import pytest

from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.conformance.say import produce
from tests.faults.scenario import in_loop, stage
from tests.faults.writer import COMING, NEWEST, OLD, Writer, group_offset, settled, until
from tests.peers.process import BrokerProcess
from tests.rules import rule

FENCED_BEFORE, FENCED = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED


@rule("B.3", "an empty id, half a pair: INVALID_REQUEST; a timeout of none or too much: INVALID_TRANSACTION_TIMEOUT")
@in_loop
async def test_inits_that_contradict_themselves(port: int, name: str) -> None:
    async with stage(port) as here:
        client = await here.connect()
        await Writer(client, name).begin()
        for timeout_ms in (0, -1, 900_001):
            error = await Writer(client, name).init(timeout_ms=timeout_ms)
            assert error is ErrorCode.INVALID_TRANSACTION_TIMEOUT, timeout_ms
        for transactional_id, producer_id, epoch in (("", -1, -1), (name, 5, -1), (name, -1, 5)):
            request = InitProducerIdRequest(transactional_id, 60_000, producer_id, epoch)
            assert (await client.request(request, 5)).error_code == ErrorCode.INVALID_REQUEST


@rule("B.3", "a pair that is neither the present one nor the one before: PRODUCER_FENCED, before version 4 its elder")
@in_loop
async def test_an_init_with_somebody_elses_pair(port: int, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect(), name)
        await writer.begin()
        for version, expected in ((3, FENCED_BEFORE), (4, FENCED), (5, FENCED)):
            for other_id, other_epoch in ((writer.id, writer.epoch + 5), (writer.id + 1_000_000, writer.epoch)):
                stranger = writer.twin()
                stranger.id, stranger.epoch = other_id, other_epoch
                assert await stranger.init(named=True, version=version) is expected


@rule(
    "B.4", "unknown id or other producer id: INVALID_PRODUCER_ID_MAPPING; other epoch: PRODUCER_FENCED (2: its elder)"
)
@in_loop
async def test_partitions_added_by_the_wrong_one(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect(), name, OLD)
        await writer.begin()
        nobody = Writer(writer.client, f"{name}-nobody")
        nobody.id, nobody.epoch = writer.id, writer.epoch
        other = writer.twin()
        other.id += 1_000_000
        stale = writer.twin()
        stale.epoch += 1
        for version, fenced in ((1, FENCED_BEFORE), (3, FENCED)):
            assert await nobody.add(topic, version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert await other.add(topic, version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert await stale.add(topic, version=version) is fenced
            assert await nobody.add_group(name, version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert await stale.add_group(name, version=version) is fenced
        assert await nobody.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await other.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@rule("B.4", "one unknown partition fails all: it is UNKNOWN_TOPIC_OR_PARTITION, the rest OPERATION_NOT_ATTEMPTED")
@in_loop
async def test_one_unknown_partition_fails_all(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect(), name, OLD)
        await writer.begin()
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=writer.id,
            v3_and_below_producer_epoch=writer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(topic, [0, 77])],
        )
        (row,) = (await writer.client.request(request, 3)).results_by_topic_v3_and_below
        codes = {each.partition_index: each.partition_error_code for each in row.results_by_partition}
        assert codes == {0: ErrorCode.OPERATION_NOT_ATTEMPTED, 77: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert (await writer.described()).transaction_state == "Empty", "nothing was added"


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@rule(
    "B.5", "versions 0 and 1: the other outcome after a decision, any after nothing: INVALID_TXN_STATE; stale: fenced"
)
@in_loop
async def test_ends_out_of_place_in_older_versions(port: int, topic: str, name: str, commit: bool) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect(), name, OLD)
        await writer.begin()
        assert await writer.end(commit=commit) is ErrorCode.INVALID_TXN_STATE
        await writer.sent(topic, "value")
        stale = writer.twin()
        stale.epoch += 1
        assert await stale.end(commit=commit, version=1) is FENCED_BEFORE
        assert await stale.end(commit=commit, version=4) is FENCED
        assert await writer.end(commit=commit) is ErrorCode.NONE
        await writer.settled()
        assert await writer.end(commit=commit) is ErrorCode.NONE
        assert await writer.end(commit=not commit) is ErrorCode.INVALID_TXN_STATE


@rule("B.5", "version 2: a commit of nothing is INVALID_TXN_STATE, an abort of nothing moves the epoch")
@in_loop
async def test_ends_of_nothing_in_version_2(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect(), name)
        await writer.begin()
        for _ in range(2):
            assert await writer.end(commit=True) is ErrorCode.INVALID_TXN_STATE
            epoch = writer.epoch
            await writer.abort()
            assert writer.epoch == epoch + 1
        await writer.sent(topic, "value")
        await writer.commit()
        assert await writer.end(commit=True) in (ErrorCode.INVALID_TXN_STATE, FENCED)
        await writer.settled()
        assert await writer.end(commit=True) is ErrorCode.INVALID_TXN_STATE


@rule("B.1", "stale epoch 47, gap 45, a new epoch not from 0 45, a plain write in a transaction 48")
@in_loop
async def test_writes_out_of_order(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect(), name)
        await writer.begin()
        before = writer.twin()
        await writer.sent(topic, "first")
        assert await writer.send(topic, "gap", sequence=5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await writer.send(topic, "plain", sequence=1, transactional=False) is ErrorCode.INVALID_TXN_STATE
        await writer.commit()
        assert await before.send(topic, "stale", sequence=1) is FENCED_BEFORE
        await writer.settled()
        assert await writer.send(topic, "not from 0", sequence=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await writer.sent(topic, "second")
        await writer.commit()
        found = await settled(writer.client, topic)
        assert found.uncommitted == found.committed == ["first", "second"]


@rule("B.2", "a write to a partition that is not in the transaction: 48, since version 11 TRANSACTION_ABORTABLE")
@in_loop
async def test_a_write_that_was_not_announced(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect(), name, OLD)
        await writer.begin()
        assert await writer.send(topic, "a", version=10) is ErrorCode.INVALID_TXN_STATE
        assert await writer.send(topic, "a", version=11) is ErrorCode.TRANSACTION_ABORTABLE
        assert await writer.commit_offset(name, topic, 1, version=4) in (*COMING, ErrorCode.TRANSACTION_ABORTABLE)
        nobody = Writer(writer.client, f"{name}-nobody")
        nobody.id, nobody.epoch = writer.id, writer.epoch
        assert await nobody.send(topic, "a") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert not (await settled(writer.client, topic)).uncommitted


@rule("B.1", "a transactional batch of a request that names no transactional id is refused")
@in_loop
async def test_a_transactional_write_without_an_id(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect(), name)
        await writer.begin()
        request = produce(topic, writer.data(("a",), sequence=0), transactional_id=None)
        answer = (await writer.client.request(request, 12)).responses[0].partition_responses[0]
        assert answer.error_code in (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE)
        assert not (await settled(writer.client, topic)).uncommitted


@rule(
    "B.10", "offsets by an unknown member: 25; of a generation that is not: 22; stale epoch: fenced; while pending: 88"
)
@in_loop
async def test_offsets_out_of_place(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        client = await here.connect()
        writer = Writer(client, name)
        await writer.begin()
        await writer.committed_offset(name, topic, 3)
        question = OffsetFetchRequestGroup(name, topics=[OffsetFetchRequestTopics(topic, partition_indexes=[0])])
        stable = await client.request(OffsetFetchRequest(groups=[question], require_stable=True), 9)
        assert stable.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await group_offset(client, name, topic, stable=False) == -1
        assert await writer.commit_offset(name, topic, 4, member="nobody", generation=3) in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
        )
        stale = writer.twin()
        await writer.commit()
        assert await stale.commit_offset(name, topic, 5) in (FENCED_BEFORE, FENCED)
        assert await group_offset(client, name, topic) == 3


@rule(
    "B.6",
    "a marker of a stale epoch, or of the stored epoch in version 2: INVALID_PRODUCER_EPOCH; older coordinator: 52",
)
@in_loop
async def test_markers_that_come_too_late(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        client = await here.connect()
        writer = Writer(client, name)
        await writer.begin()
        await writer.sent(topic, "first")
        first_epoch = writer.epoch
        await writer.commit()
        await writer.settled()
        await writer.sent(topic, "second")

        async def marker(epoch: int, coordinator_epoch: int, transaction_version: int = 2) -> int:
            topics = [WritableTxnMarkerTopic(topic, [0])]
            one = WritableTxnMarker(writer.id, epoch, False, topics, coordinator_epoch, transaction_version)
            answer = await client.request(WriteTxnMarkersRequest([one]), 2)
            code: int = answer.markers[0].topics[0].partitions[0].error_code
            return code

        assert await marker(first_epoch, 0) == FENCED_BEFORE
        assert await marker(writer.epoch, 0) == FENCED_BEFORE, "the marker that began this epoch, once more"
        assert await marker(writer.epoch + 1, 2**31 - 1) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await marker(writer.epoch + 1, -1) in (ErrorCode.TRANSACTION_COORDINATOR_FENCED, FENCED_BEFORE)
        await writer.commit()
        assert (await settled(client, topic)).committed == ["first", "second"]


@rule("B.3", "over an open transaction: it is aborted, and the instance that had it is fenced everywhere")
@in_loop
async def test_a_new_instance_fences_the_old_one(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        client = await here.connect()
        for number, versions in enumerate((NEWEST, OLD)):
            zombie = Writer(client, f"{name}-{number}", versions)
            await zombie.begin()
            await zombie.sent(topic, "half")
            heir = Writer(client, f"{name}-{number}", versions)
            await heir.begin()
            assert await zombie.send(topic, "zombie") in (FENCED_BEFORE, FENCED)
            assert await zombie.end(commit=True) is FENCED
            assert await zombie.commit_offset(name, topic, 9) in (FENCED_BEFORE, FENCED, *COMING)
            assert await until(functools.partial(zombie.init, named=True), lambda code: code not in COMING) is FENCED
            await heir.sent(topic, f"{number}")
            await heir.commit()
        assert (await settled(client, topic)).committed == ["0", "1"]


@rule("B.7", "DescribeTransactions of an id that nobody has: TRANSACTIONAL_ID_NOT_FOUND")
@in_loop
async def test_describing_nobody(port: int, name: str) -> None:
    async with stage(port) as here:
        client = await here.connect()
        await Writer(client, name).begin()
        answer = await client.request(DescribeTransactionsRequest([f"{name}-nobody"]))
        assert answer.transaction_states[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@rule("B.4", "AddOffsetsToTxn before anybody looked for a group's coordinator is accepted after a moment")
@in_loop
async def test_offsets_added_before_there_is_any_group(own_broker: BrokerProcess, name: str) -> None:
    async with stage(own_broker.port) as here:
        writer = Writer(await here.connect(), name, OLD)
        await writer.begin()
        assert await until(lambda: writer.add_group(name), lambda code: code not in COMING) is ErrorCode.NONE
