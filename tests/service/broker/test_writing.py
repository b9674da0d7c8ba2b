"""What becomes of the batches that one client writes together: which are appended, in which order, what it is told."""

import asyncio
import gc
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from log.batch import CHECKED_FROM, CRC_AT, MAX_TIMESTAMP_AT, build_batch, crc32c, read_records
from log.config import DAY_MS, HOUR_MS
from log.control import ControlType
from log.disk import RealFile
from log.partition_log import PartitionLog
from log.segment import Segment
from log.steps import done_at_once
from service.api.routes import ROUTES
from service.broker.acceptance import RefusedBatch
from service.broker.internal_topics import GROUPS
from service.broker.partition import Appended, Partition
from service.broker.session import Session
from service.broker.writing import (
    MARKERS_LOOKED_AT,
    MAY_BE_WRITTEN,
    WITH_FILES,
    WRITES_AT_ONCE,
    Write,
    WriteTerms,
    Writing,
)
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage
from tests.service.broker.topic_stage import LIFE, OS, led, told
from tests.turns import with_turns

PRODUCE = 0
ZSTD = 4


def batch(value: bytes = b"x", **given: Any) -> memoryview:
    return memoryview(bytearray(build_batch([(None, value, (), 1)], **given)))


def of_producer(producer_id: int, sequence: int = 0, *, transactional: bool = False) -> memoryview:
    return batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=transactional)


def terms(*, acks: int = -1, timeout_ms: int = 5_000, transactional_id: str | None = None, **can: bool) -> WriteTerms:
    able = {"adds_partitions": False, "knows_abortable": False, "knows_zstd": True, "may_write_internal": False}
    return WriteTerms(acks, timeout_ms, transactional_id, **{**able, **can})


def written(stage: Stage, *writes: Write, **wanted: Any) -> Writing:
    writing = Writing(stage.broker.writing, terms(**wanted), writes)
    assert writing.begin()
    writing.append()
    return writing


def stored(partition: Partition) -> list[bytes | None]:
    return [record.value for header, data in partition.log.scan(0) for record in read_records(data, header)]


def told_of(write: Write) -> int | ErrorCode:
    """The offset or the error."""
    return write.outcome.base_offset if isinstance(write.outcome, Appended) else write.outcome.error


def append_markers(partition: Partition, count: int) -> None:
    marker: dict[str, int] = {"producer_id": 9, "producer_epoch": 0, "coordinator_epoch": 0}
    for _ in range(count):
        partition.append_marker(ControlType.COMMIT, **marker, transaction_version=1, now_ms=1)


async def orders(stage: Stage) -> Partition:
    await stage.create("orders")
    return await stage.served("orders")


def test_batches_are_appended_in_the_order_in_which_they_are_named_and_a_refused_one_stops_none(
    tmp_path: Path,
) -> None:
    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        corrupt = batch(b"rotten")
        corrupt[-1] ^= 1
        there, nowhere = {0: partition}, RefusedBatch(ErrorCode.UNKNOWN_TOPIC_ID)
        writes = [
            Write(there, 0, batch(b"a")),
            Write(there, 0, corrupt),
            Write(there, 1, batch()),
            Write(nowhere, 0, batch()),
        ]
        writes.append(Write(there, 0, batch(b"b")))
        writing = written(stage, *writes)
        assert writing.is_settled
        errors = [ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
        assert list(map(told_of, writes)) == [0, *errors, 1]
        assert stored(partition) == [b"a", b"b"]
        assert [write.was_appended for write in writes] == [True, False, False, False, True]
        assert partition.tally.refused == 1

    on_stage(tmp_path, scene, OS)


def test_a_client_that_does_not_know_a_thing_is_not_given_it_and_no_client_writes_the_coordinators_topics(
    tmp_path: Path,
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        packed = Write({0: partition}, 0, batch(codec=ZSTD))
        written(stage, packed, knows_zstd=False)
        assert packed.outcome == RefusedBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        stage.broker.coordination.internal_topics.bring_about(GROUPS)
        memory = await stage.served(GROUPS.name)
        for may, error in ((False, ErrorCode.INVALID_TOPIC_EXCEPTION), (True, None)):
            there = Write({0: memory}, 0, memoryview(bytearray(build_batch([(b"key", b"", (), 1)]))))
            written(stage, there, may_write_internal=may)
            assert (there.outcome.error if isinstance(there.outcome, RefusedBatch) else None) is error

    on_stage(tmp_path, scene, {**OS, "offsets.topic.num.partitions": "1"})


def test_transactional_batches_need_an_id_and_are_of_one_producer(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        there = {0: await orders(stage)}
        first, second = of_producer(5, transactional=True), of_producer(6, transactional=True)
        for batches, transactional_id, wrong in (
            ([first], None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            ([first, second], "pay", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            ([first, of_producer(5, 1, transactional=True)], "pay", None),
            ([first, of_producer(6)], "pay", None),
        ):
            writes = [Write(there, 0, each) for each in batches]
            wanted = terms(transactional_id=transactional_id)
            assert Writing(stage.broker.writing, wanted, writes).wrong() is wrong

    on_stage(tmp_path, scene, OS)


def test_a_transactional_batch_waits_for_its_coordinators_word(tmp_path: Path) -> None:
    """Nobody has begun that transaction, so the coordinator does not confirm it."""

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        write = Write({0: partition}, 0, of_producer(5, transactional=True))
        writing = Writing(stage.broker.writing, terms(transactional_id="pay", adds_partitions=True), [write])
        assert not writing.begin()
        writing.keep()
        await writing.append_when_ready(is_ready=False)
        assert isinstance(write.outcome, RefusedBatch)
        assert partition.log.end_offset == 0

    on_stage(tmp_path, scene, OS)


def test_what_is_kept_is_not_changed_by_what_the_connection_reads_next(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        buffer = batch(b"first")
        write = Write({0: partition}, 0, buffer)
        writing = Writing(stage.broker.writing, terms(), [write])
        writing.keep()
        buffer[:] = batch(b"other")
        await writing.append_when_ready(is_ready=True)
        assert stored(partition) == [b"first"]

    on_stage(tmp_path, scene, OS)


def test_with_an_expected_offset_nobody_has_written_in_between(tmp_path: Path) -> None:
    """Markers are nobody's records, and the batch may be sent again."""

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)

        def tried(offset: int, data: memoryview) -> int | ErrorCode:
            write = Write({0: partition}, 0, data)
            write.expected_offset = offset
            written(stage, write)
            return told_of(write)

        assert tried(0, of_producer(5)) == 0
        assert tried(0, batch()) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert tried(0, of_producer(5)) == 0, "this very batch is there"
        assert tried(0, of_producer(6)) is ErrorCode.OFFSET_OUT_OF_RANGE
        append_markers(partition, 3)
        assert tried(1, batch()) == 4
        assert tried(7, batch()) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert partition.log.end_offset == 5

    on_stage(tmp_path, scene, OS)


def test_of_what_stands_at_an_expected_offset_only_the_header_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 80 MB was read whole, in one turn of the loop."""
    read_bytes: list[int] = []

    def pread(file: RealFile, size: int, position: int) -> bytes:
        found = as_it_is(file, size, position)
        read_bytes.append(len(found))
        return found

    as_it_is = RealFile.pread

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        written(stage, Write({0: partition}, 0, batch(bytes(50_000))))
        write = Write({0: partition}, 0, batch())
        write.expected_offset = 0
        monkeypatch.setattr(RealFile, "pread", pread)
        written(stage, write)
        assert told_of(write) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert 0 < max(read_bytes) < 10_000

    on_stage(tmp_path, scene, OS)


def test_markers_that_were_looked_past_in_an_earlier_leadership_say_nothing_of_what_is_there_now(
    tmp_path: Path,
) -> None:
    """They were cut, and as many records of somebody else were written in their place: the write passed."""
    looked_past = MARKERS_LOOKED_AT + 1  # the rest is looked at with the append

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        append_markers(partition, 2 * MARKERS_LOOKED_AT)
        write = Write({0: partition}, 0, batch(b"mine"))
        write.expected_offset = 0
        writing = Writing(stage.broker.writing, terms(acks=1), [write])
        await writing._prepare()
        epoch = partition.leader_epoch
        partition.follow(2, epoch + 1, fsync=False)
        done_at_once(partition.cut(0))
        partition.lead(epoch + 2, 1, (1,), (1,), fsync=False)
        for _ in range(looked_past):
            partition.append_from_client(batch(b"another's"), acks=1, now_ms=1)
        writing.append()
        assert told_of(write) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert stored(partition) == [b"another's"] * looked_past

    on_stage(tmp_path, scene, OS)


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_batches_that_all_begin_segments_leave_others_their_turns(
    tmp_path: Path, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may set `segment.index.bytes` so that each batch does. That takes ten times as long as an append."""
    many = WRITES_AT_ONCE
    begun: list[int] = [0]
    start = PartitionLog.start_segment

    def counted(log: PartitionLog, now_ms: int) -> Segment:
        begun[-1] += 1
        return start(log, now_ms)

    async def turns() -> None:
        while True:
            begun.append(0)
            await asyncio.sleep(0)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", partitions=many, segment_index_bytes="4")
        partitions = {index: await stage.served("orders", index) for index in range(many)}
        if again:
            for partition in partitions.values():
                partition.append_from_client(batch(), acks=1, now_ms=1)
        writes = [Write(partitions, index, batch()) for index in partitions]
        monkeypatch.setattr(PartitionLog, "start_segment", counted)
        writing = Writing(stage.broker.writing, terms(acks=1), writes)
        assert writing.begin()
        assert writing.takes_turns
        other = asyncio.ensure_future(turns())
        await writing.append_when_ready(is_ready=True)
        other.cancel()
        assert set(map(told_of, writes)) == {int(again)}
        assert sum(begun) == many
        assert max(begun) <= WRITES_AT_ONCE / WITH_FILES + 1

    on_stage(tmp_path, scene, OS)


@pytest.mark.parametrize("index_bytes", ["8", "16"])
def test_batches_of_one_partition_that_begin_segments_leave_others_their_turns(
    tmp_path: Path, index_bytes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first of them is in the log, it does not show which of the others begin segments."""
    many = WRITES_AT_ONCE
    begun: list[int] = [0]
    start = PartitionLog.start_segment

    def counted(log: PartitionLog, now_ms: int) -> Segment:
        begun[-1] += 1
        return start(log, now_ms)

    async def turns() -> None:
        while True:
            begun.append(0)
            await asyncio.sleep(0)

    async def scene(stage: Stage) -> None:
        small = {"segment_index_bytes": index_bytes, "index_interval_bytes": "0", "segment_bytes": "1048576"}
        await stage.create("orders", partitions=1, **small)
        partition = await stage.served("orders", 0)
        partition.append_from_client(batch(), acks=1, now_ms=1)
        writes = [Write({0: partition}, 0, batch()) for _ in range(many)]
        monkeypatch.setattr(PartitionLog, "start_segment", counted)
        writing = Writing(stage.broker.writing, terms(acks=1), writes)
        other = asyncio.ensure_future(turns())
        if writing.begin() and not writing.takes_turns:
            writing.append()
        else:
            await writing.append_when_ready(is_ready=True)
        other.cancel()
        assert list(map(told_of, writes)) == list(range(1, many + 1)), "in their order"
        assert sum(begun) > many / 4
        assert max(begun) <= WRITES_AT_ONCE / WITH_FILES + 1

    on_stage(tmp_path, scene, OS)


def test_of_very_many_expected_offsets_far_back_none_keeps_others_waiting(tmp_path: Path) -> None:
    """One look at the log takes less than a turn may, and ten thousand of them took half a second."""
    many = 2_000

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        partition.append_from_client(
            memoryview(bytearray(build_batch([(None, b"x", (), 1)] * 300))), acks=1, now_ms=1, needs_guard=False
        )
        writes = [Write({0: partition}, 0, batch()) for _ in range(many)]
        for write in writes:
            write.expected_offset = 1
        writing = Writing(stage.broker.writing, terms(), writes)
        _, turns = await with_turns(writing._prepare())
        assert turns >= many / WRITES_AT_ONCE - 1
        await writing.append_when_ready(is_ready=True)
        assert {told_of(write) for write in writes} == {ErrorCode.OFFSET_OUT_OF_RANGE}

    on_stage(tmp_path, scene, OS)


def test_a_batch_that_is_not_committed_in_time_is_answered_as_one_that_may_be_later(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        write, of_one = Write({0: partition}, 0, batch(b"a")), Write({0: partition}, 0, batch(b"b"))
        assert written(stage, of_one, acks=1).is_settled, "with acks=1 nobody waits"
        writing = written(stage, write, timeout_ms=10)
        assert not writing.is_settled
        async with asyncio.timeout(2):
            await writing.settle(Session("here", 1))
        assert (write.outcome, write.was_appended) == (RefusedBatch(ErrorCode.REQUEST_TIMED_OUT), True)
        assert ErrorCode.REQUEST_TIMED_OUT in MAY_BE_WRITTEN
        assert stored(partition) == [b"b", b"a"]

    on_stage(tmp_path, scene, OS)


def test_a_batch_is_answered_when_every_replica_in_sync_holds_it(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        write = Write({0: partition}, 0, batch())
        writing = written(stage, write)
        settling = asyncio.ensure_future(writing.settle(Session("here", 1)))
        await asyncio.sleep(0)
        assert not settling.done()
        partition.fetched(2, 1, start_offset=0, broker_epoch=LIFE, now_ms=1)
        assert await settling == 0
        assert isinstance(write.outcome, Appended)

    on_stage(tmp_path, scene, OS)


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_what_waits_for_replicas_does_not_keep_its_bytes(tmp_path: Path, cleanup: str) -> None:
    """They count no more once they are in the log: 60 batches of 20 MB made 1.2 GB while a follower hung."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        partition.set_config(replace(partition.log.config, cleanup_policy=(cleanup,)), fsync=False)
        buffer = bytearray(build_batch([(b"k", b"x", (), 1)]))
        data = [PartitionProduceData(0, memoryview(buffer))]
        request = ProduceRequest(None, -1, 5_000, [TopicProduceData("orders", partition_data=data)])
        data = []
        answer = ROUTES[PRODUCE].bound(stage.broker)(Session("here", 1), RequestHeader(PRODUCE, 11, 1, "test"), request)
        assert isinstance(answer, Awaitable)
        answering = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        gc.collect()
        buffer.append(0)  # BufferError if a view of it is left
        assert not answering.done()
        partition.fetched(2, 1, start_offset=0, broker_epoch=LIFE, now_ms=1)
        told = await answering
        assert isinstance(told, ProduceResponse)
        assert told.responses[0].partition_responses[0].error_code == 0

    on_stage(tmp_path, scene, OS)


def test_others_have_turns_while_what_is_committed_already_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may name very many partitions, and nothing is waited for at those that are committed."""
    monkeypatch.setattr("service.broker.writing.SETTLED_AT_ONCE", 10)

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        writing = written(stage, *(Write({0: partition}, 0, batch()) for _ in range(40)))
        partition.fetched(2, 40, start_offset=0, broker_epoch=LIFE, now_ms=1)
        assert partition.high_watermark == 40
        settling = asyncio.ensure_future(writing.settle(Session("here", 1)))
        turns = 0
        while not settling.done():
            await asyncio.sleep(0)
            turns += 1
        assert 4 <= turns < 10
        assert writing.all_appended()

    on_stage(tmp_path, scene, OS)


def test_a_batch_is_not_confirmed_by_what_a_later_leadership_has_at_its_offset(tmp_path: Path) -> None:
    """Between the append and the wait for it there may be the waits for other partitions."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        write = Write({0: partition}, 0, batch())
        writing = Writing(stage.broker.writing, terms(), [write])
        writing.append()
        epoch = partition.leader_epoch
        partition.follow(2, epoch + 1, fsync=False)
        done_at_once(partition.cut(0))
        partition.lead(epoch + 2, 1, (1, 2, 3), (1, 2), fsync=False)
        another = Write({0: partition}, 0, batch())
        Writing(stage.broker.writing, terms(), [another]).append()
        assert isinstance(another.outcome, Appended)
        write_of_another = partition.committed(another.outcome.end_offset)
        partition.fetched(2, 1, start_offset=0, broker_epoch=LIFE, now_ms=1)
        assert await told(write_of_another) is ErrorCode.NONE
        await writing.settle(Session("here", 1))
        assert write.outcome == RefusedBatch(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    on_stage(tmp_path, scene, OS)


@pytest.mark.parametrize("replaced", [False, True])
def test_only_who_leads_for_certain_says_what_a_producer_gives_up_after(tmp_path: Path, *, replaced: bool) -> None:
    """A leader that was replaced and has not heard of it lacks what its successor has."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        leader = stage.partition(1)
        if replaced:  # by the store's word nobody leads in such an epoch
            leader.lead(leader.leader_epoch + 1, 1, (1, 2), (1,), fsync=False)
        answers = []
        for sequence in (0, 7):
            batch = build_batch([(b"k", b"v", (), 1)], producer_id=5, producer_epoch=0, base_sequence=sequence)
            data = TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])
            answer = await stage.wire(1).ask(ProduceRequest(None, 1, 5_000, [data]), 12)
            answers.append(answer.responses[0].partition_responses[0].error_code)
        final = ErrorCode.NOT_LEADER_OR_FOLLOWER if replaced else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert answers == [ErrorCode.NONE, final]

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_conditional_write_that_needs_lost_indexes_is_refused_for_now(tmp_path: Path) -> None:
    """It was told that somebody else had written, which is final; only markers had come."""

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        for _ in range(300):
            partition.append_from_client(batch(bytes(300)), acks=1, now_ms=1)
        end = partition.log.end_offset
        append_markers(partition, 2)
        partition.log.segments[-1].close()  # an active segment has no index files before a stop
        outcomes: list[int | ErrorCode] = []
        while not outcomes or outcomes[-1] is ErrorCode.KAFKA_STORAGE_ERROR:
            write = Write({0: partition}, 0, batch())
            write.expected_offset = end
            await Writing(stage.broker.writing, terms(acks=1), [write]).append_when_ready(is_ready=False)
            outcomes.append(told_of(write))
            await asyncio.sleep(0)
        assert outcomes[0] is ErrorCode.KAFKA_STORAGE_ERROR
        assert outcomes[-1] == end + 2

    on_stage(tmp_path, scene, OS)


def test_batches_that_may_begin_a_segment_once_their_records_are_known_are_much(tmp_path: Path) -> None:
    """Sixty began one in a single turn: their headers hid the records that were too new for the segments there."""

    async def scene(stage: Stage) -> None:
        await stage.create("orders", partitions=20)
        partitions = {index: await stage.served("orders", index) for index in range(20)}
        now_ms = stage.broker.env.clock.wall_ms()
        old_ms = now_ms - 7 * DAY_MS - HOUR_MS

        def writing(times: list[int], told_ms: int) -> Writing:
            batch = bytearray(build_batch([(None, b"x", (), time) for time in times]))
            batch[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = told_ms.to_bytes(8, "big")
            batch[CRC_AT:CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4, "big")
            writes = [Write(partitions, index, memoryview(bytearray(batch))) for index in partitions]
            return Writing(stage.broker.writing, terms(acks=1), writes)

        first = writing([old_ms], old_ms)
        await first.append_when_ready(is_ready=first.begin())
        assert {type(write.outcome) for write in first.writes} == {Appended}
        assert writing([now_ms - 2 * HOUR_MS, now_ms], now_ms - 2 * HOUR_MS).takes_turns

    on_stage(tmp_path, scene, OS)
