"""What one reader is given: how much, by how far away it is, without another partition starving for it; what of a log
it may see, and what it is told instead; and when a reader that waits is woken.
"""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isolation.read_view import Isolation
from log.batch import build_batch, read_header, restamp, split
from log.removal import raise_start_offset
from service.api.broker_door import BrokerDoor
from service.api.listener import Listener
from service.api.routes import ROUTES
from service.broker.fetch_sessions import SessionKey, WantedPartition
from service.broker.partition import Appended, Partition
from service.broker.reading import (
    LISTED_AT_ONCE,
    NEAR_ANSWER_BYTES,
    Reading,
    ReadTerms,
    leader_epoch_error,
    reader_error,
)
from service.broker.session import Session
from service.net.door import PeerInfo
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import FetchPartition, FetchRequest, FetchResponsePartitionData, FetchTopic
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until
from tests.service.broker.topic_stage import LIFE, OS, abort, abort_together, led

FETCH = 1
PARTITIONS = 6
BATCH_BYTES = NEAR_ANSWER_BYTES // 3
NEAR_US, FAR_US = 20, 20_000
IN_EACH = 4  # batches
WAITED_S = 0.29  # by uvloop, which counts in whole milliseconds from when its turn began: a wait of 0.3 s


async def write(stage: Stage) -> None:
    await stage.create("orders", PARTITIONS)
    for number in range(PARTITIONS):
        partition = await stage.served("orders", number)
        for _ in range(IN_EACH):
            batch = build_batch([(None, bytes(BATCH_BYTES), (), 1)])
            partition.append_from_client(memoryview(bytearray(batch)), acks=1, now_ms=1)
        if (committed := partition.committed(partition.log.end_offset)) is not None:
            await committed


async def fetched(
    stage: Stage,
    caller: Session,
    offsets: dict[int, int],
    *,
    max_bytes: int = 50_000_000,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    isolation_level: int = 0,
) -> dict[int, int]:
    """One sessionless Fetch; the bytes each partition was given, in the order of the answer."""
    partitions = [
        FetchPartition(number, fetch_offset=offset, partition_max_bytes=5 * BATCH_BYTES // 2)
        for number, offset in offsets.items()
    ]
    request = FetchRequest(
        topics=[FetchTopic("orders", partitions=partitions)],
        max_bytes=max_bytes,
        min_bytes=min_bytes,
        max_wait_ms=max_wait_ms,
        isolation_level=isolation_level,
    )
    async with asyncio.timeout(5):
        answer: Any = ROUTES[FETCH].bound(stage.broker)(caller, RequestHeader(FETCH, 12, 1, "c"), request)
        if not hasattr(answer, "responses"):
            answer = await answer
    (topic,) = answer.responses
    return {each.partition_index: sum(map(len, each.records)) for each in topic.partitions}


@pytest.mark.parametrize(("round_trip_us", "served"), [(NEAR_US, 2), (FAR_US, PARTITIONS), (None, PARTITIONS)])
def test_a_client_nearby_gets_the_rest_in_its_next_answer(
    tmp_path: Path, round_trip_us: int | None, served: int
) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        caller = BrokerDoor(stage.broker, Listener("PLAINTEXT")).connected(PeerInfo("10.0.0.9", 1, round_trip_us))
        got = await fetched(stage, caller, dict.fromkeys(range(PARTITIONS), 0))
        assert list(got) == list(range(PARTITIONS))
        assert [number for number, size in got.items() if size] == list(range(served))

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("moved", [0, 1, 2, -1])
def test_no_partition_starves_behind_busy_ones(tmp_path: Path, moved: int) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        caller, numbers = Session("10.0.0.9", 1, NEAR_US), list(range(PARTITIONS))
        served = set()
        for _ in range(PARTITIONS):
            got = await fetched(stage, caller, dict.fromkeys(numbers, 0))
            assert list(got) == numbers  # as asked, whose turn it was before
            served |= {number for number, size in got.items() if size}
            numbers = numbers[moved:] + numbers[:moved]
        assert served == set(numbers)

    on_stage(tmp_path, scene)


def test_who_wants_more_at_least_is_given_it_without_waiting(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        least = 2 * NEAR_ANSWER_BYTES
        got = await fetched(stage, Session("10.0.0.9", 1, NEAR_US), offsets, min_bytes=least, max_wait_ms=60_000)
        assert sum(got.values()) >= least

    on_stage(tmp_path, scene)


def test_who_is_left_out_when_he_was_served_has_nobody_starve(tmp_path: Path) -> None:
    """A client that processes what it got before it asks for more of that."""

    async def scene(stage: Stage) -> None:
        await write(stage)
        caller, served = Session("10.0.0.9", 1, NEAR_US), dict.fromkeys(range(PARTITIONS), 0)
        last: set[int] = set()
        for _ in range(2 * PARTITIONS):
            got = await fetched(stage, caller, {number: 0 for number in served if number not in last})
            last = {number for number, size in got.items() if size}
            for number in last:
                served[number] += 1
        assert min(served.values()) >= 2

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("round_trip_us", [NEAR_US, None])
def test_what_a_limit_of_the_client_cut_off_is_its_own_to_ask_for(tmp_path: Path, round_trip_us: int | None) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        caller = Session("10.0.0.9", 1, round_trip_us)
        await fetched(stage, caller, dict.fromkeys(range(PARTITIONS), 0))
        orders: list[list[int]] = [[3, 1], [3, 1], [1, 3], [3, 1]]
        for position, order in enumerate(orders):
            got = await fetched(stage, caller, dict.fromkeys(order, 0), max_bytes=10)
            if position:  # the first may still have its turn after an answer that we ended
                assert [number for number, size in got.items() if size] == order[:1]

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(
    ("partitions", "min_bytes", "max_bytes"),
    [
        (1, 5 * BATCH_BYTES // 2, 50_000_000),  # the partition's own limit cuts its batches
        (1, 3 * BATCH_BYTES, BATCH_BYTES // 2),  # less may be given than is wanted
        (2, 7 * BATCH_BYTES // 2, 7 * BATCH_BYTES // 2),  # the second partition has no batch that still fits
    ],
)
def test_nobody_waits_for_bytes_that_a_limit_keeps_back(
    tmp_path: Path, partitions: int, min_bytes: int, max_bytes: int
) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        got = await fetched(
            stage,
            Session("10.0.0.9", 1, NEAR_US),
            dict.fromkeys(range(partitions), 0),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_wait_ms=60_000,
        )
        assert got[0] > BATCH_BYTES

    on_stage(tmp_path, scene)


def test_who_wants_more_than_there_is_waits(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        began = time.monotonic()
        got = await fetched(
            stage, Session("10.0.0.9", 1, NEAR_US), {0: IN_EACH - 1}, min_bytes=2 * BATCH_BYTES, max_wait_ms=300
        )
        assert (got[0] > BATCH_BYTES, time.monotonic() - began > WAITED_S) == (True, True)

    on_stage(tmp_path, scene)


def test_who_reads_where_compaction_left_nothing_below_an_open_transaction_waits(tmp_path: Path) -> None:
    """Asked again and again it would be the same, and a reader in this process would never let go of the loop."""

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 1)
        partition = await stage.served("orders", 0)
        batch = bytearray(build_batch([(b"k", b"v", (), 1)], producer_id=1, producer_epoch=0, transactional=True))
        restamp(batch, base_offset=3, leader_epoch=partition.leader_epoch)
        partition.log.append_after_gap(batch, read_header(batch), now_ms=1)
        partition.append_from_client(memoryview(bytearray(build_batch([(b"k", b"v", (), 1)]))), acks=1, now_ms=1)
        if (committed := partition.committed(partition.log.end_offset)) is not None:
            await committed
        assert (partition.last_stable_offset, partition.high_watermark) == (3, 5)
        began = time.monotonic()
        got = await fetched(stage, Session("10.0.0.9", 1, NEAR_US), {0: 0}, max_wait_ms=300, isolation_level=1)
        assert (got, time.monotonic() - began > WAITED_S) == ({0: 0}, True)

    on_stage(tmp_path, scene)


class NearReader:
    """A consumer that names its rack, at one broker; without a session."""

    def __init__(self, stage: ClusterStage, rack: str) -> None:
        self._stage = stage
        self._rack = rack

    async def fetch(self, node_id: int, offset: int, *, max_wait_ms: int = 0) -> FetchResponsePartitionData:
        topic_id = bytes(self._stage.partition(node_id).topic_id)
        partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            topics=[FetchTopic(topic_id=topic_id, partitions=[partition])],
            rack_id=self._rack,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            isolation_level=1,
        )
        answer = await self._stage.wire(node_id).ask(request)
        return answer.responses[0].partitions[0]


NEAR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


def racks(node_id: int) -> dict[str, str]:
    return {"broker.rack": f"rack-{node_id}"}


def test_a_consumer_is_sent_to_the_replica_in_its_rack_and_reads_there(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="2")
        await stage.write("one", "two")
        await stage.alike(1, 2, 3)
        reader = NearReader(stage, "rack-2")
        await until(lambda: stage.partition(2).high_watermark == 2)
        sent = await reader.fetch(1, 0, max_wait_ms=10_000)
        assert (sent.error_code, sent.preferred_read_replica, bool(sent.records)) == (0, 2, False)
        read = await reader.fetch(2, 0)
        assert (read.error_code, read.preferred_read_replica, read.high_watermark) == (0, -1, 2)
        assert len(bytes(read.records or b"")) > 0  # type: ignore[arg-type]
        beyond = await reader.fetch(1, 3)
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        for elsewhere in ("rack-1", "rack-9", ""):
            stays = await NearReader(stage, elsewhere).fetch(1, 0)
            assert (stays.preferred_read_replica, bool(stays.records)) == (-1, True)
        await stage.stop(2)
        await stage.in_sync(1, 3)
        assert (await reader.fetch(1, 0)).preferred_read_replica == -1

    on_cluster_stage(tmp_path, scene, given={**OS, **NEAR}, each=racks)


def test_who_waits_at_a_follower_gets_what_is_committed_at_once(tmp_path: Path) -> None:
    """Not when the follower's next fetch is answered for want of anything new."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3)
        await stage.write("one")
        await until(lambda: stage.partition(2).high_watermark == 1)
        loop = asyncio.get_running_loop()
        for number in range(1, 4):
            waiting = asyncio.ensure_future(NearReader(stage, "rack-2").fetch(2, number, max_wait_ms=8_000))
            await asyncio.sleep(0.2)
            began_s = loop.time()
            await stage.write("more")
            read = await waiting
            assert bool(read.records)
            assert loop.time() - began_s < 2

    on_cluster_stage(tmp_path, scene, given={**OS, **NEAR, "replica.fetch.wait.max.ms": "8000"}, each=racks)


def test_a_follower_out_of_sync_answers_no_reader(tmp_path: Path) -> None:
    """It may hold what the client that deleted it was told is gone."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("both")
        await stage.in_sync(1, 2)
        follower = stage.partition(2)
        await until(lambda: reader_error(follower, -1) is ErrorCode.NONE)
        stage.broker(2).replication.stop(follower)
        await stage.write("nobody waits for 2 for ever")
        await stage.in_sync(1)
        stage.broker(2).replication.follow(follower, stage.state(), fsync=False)
        assert reader_error(follower, -1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await stage.in_sync(1, 2)
        await until(lambda: reader_error(follower, -1) is ErrorCode.NONE)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


PRODUCER = 5


def append(partition: Partition, value: bytes = b"x", **producer: Any) -> int:
    batch = bytearray(build_batch([(None, value, (), 1)], **producer))
    outcome = partition.append_from_client(memoryview(batch), acks=1, now_ms=1, needs_guard=False)
    assert isinstance(outcome, Appended)
    return outcome.end_offset


def reading_of(
    stage: Stage,
    offset: int,
    *,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    epoch: int = -1,
    last_epoch: int = -1,
) -> Reading:
    wanted = WantedPartition(0, offset, 1 << 20, epoch, last_epoch, -1)
    terms = ReadTerms(isolation, min_bytes, 1 << 20, max_wait_ms)
    return Reading(stage.broker.partitions, Session("here", 1), terms, {("orders", 0): wanted})


def test_a_reader_is_told_why_it_gets_nothing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1,), min_in_sync=1)
        for _ in range(3):
            append(partition)
        await raise_start_offset(partition.log, 2)
        epoch = partition.leader_epoch
        questions: list[tuple[int, int, ErrorCode]] = [
            (1, epoch, ErrorCode.OFFSET_OUT_OF_RANGE),
            (2, epoch, ErrorCode.NONE),
            (3, epoch, ErrorCode.NONE),
            (4, epoch, ErrorCode.OFFSET_OUT_OF_RANGE),
            (2, epoch - 1, ErrorCode.FENCED_LEADER_EPOCH),
            (2, epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ]
        for offset, believed, error in questions:
            reading = reading_of(stage, offset, epoch=believed)
            assert await reading.read() == (error is not ErrorCode.NONE or offset < 3), "an error is told at once"
            (found,) = reading.found.values()
            assert found.error is error, (offset, believed)
            assert (found.records is not None) == (error is ErrorCode.NONE and offset < 3)
        assert partition.tally.failed_reads == 2
        partition.resign()
        reading = reading_of(stage, 2)
        assert await reading.read()
        assert reading.found["orders", 0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    on_stage(tmp_path, scene, OS)


def test_a_follower_that_lags_does_not_say_that_an_offset_is_out_of_range(tmp_path: Path) -> None:
    """The leader may have it. A client that is told otherwise begins anew, at the start or at the end."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        append(partition)
        partition.follow(2, partition.leader_epoch + 1, fsync=False).in_sync = True
        wanted: dict[SessionKey, WantedPartition] = {("orders", 0): WantedPartition(0, 2, 1 << 20, -1, -1, -1)}
        terms = ReadTerms(Isolation.READ_UNCOMMITTED, 1, 1 << 20, 0, knows_followers=True)
        reading = Reading(stage.broker.partitions, Session("here", 1), terms, wanted)
        assert await reading.read()
        assert reading.found["orders", 0].error is ErrorCode.OFFSET_NOT_AVAILABLE

    on_stage(tmp_path, scene, OS)


def test_a_reader_whose_history_parted_is_told_where(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1,), min_in_sync=1)
        before = partition.leader_epoch
        append(partition)
        partition.lead(before + 2, 1, (1, 2, 3), (1,), fsync=False)
        append(partition)
        for last_epoch, offset, diverging in (
            (before, 1, None),
            (before, 2, (before, 1)),
            (before + 1, 1, (before, 1)),
            (before + 2, 2, None),
        ):
            reading = reading_of(stage, offset, last_epoch=last_epoch)
            await reading.read()
            assert reading.found["orders", 0].diverging == diverging, (last_epoch, offset)
            assert diverging is None or reading.found["orders", 0].records is None

    on_stage(tmp_path, scene, OS)


def test_nothing_is_seen_above_the_high_watermark_nor_by_read_committed_above_an_open_transaction(
    tmp_path: Path,
) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        append(partition)
        append(partition, producer_id=PRODUCER, producer_epoch=0, base_sequence=0, transactional=True)
        append(partition)

        async def seen(isolation: Isolation) -> tuple[int, list[tuple[int, int]] | None]:
            """The end of what is read, and which transactions in it were aborted."""
            reading = reading_of(stage, 0, isolation=isolation)
            await reading.read()
            found, end_offset = reading.found["orders", 0], 0
            if found.records is not None:
                stored = memoryview(found.records.file.pread(found.records.size, found.records.position))
                end_offset = [header.next_offset for header, _ in split(stored)][-1]
            aborted = found.aborted
            told = None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]
            return end_offset, told

        assert await seen(Isolation.READ_UNCOMMITTED) == (0, None)
        partition.fetched(2, 3, start_offset=0, broker_epoch=LIFE, now_ms=1)
        assert await seen(Isolation.READ_UNCOMMITTED) == (3, None)
        assert await seen(Isolation.READ_COMMITTED) == (1, [])
        abort(partition, PRODUCER)
        assert await seen(Isolation.READ_COMMITTED) == (1, []), "the marker is not committed yet"
        partition.fetched(2, 4, start_offset=0, broker_epoch=LIFE, now_ms=1)
        assert await seen(Isolation.READ_COMMITTED) == (4, [(PRODUCER, 1)])
        assert await seen(Isolation.READ_UNCOMMITTED) == (4, None)

    on_stage(tmp_path, scene, OS)


def test_very_many_aborted_transactions_are_listed_in_turns(tmp_path: Path) -> None:
    """All of them were open together, so each batch among them comes with the whole list."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        told = abort_together(partition, 2 * LISTED_AT_ONCE + 1)
        partition.fetched(2, partition.log.end_offset, start_offset=0, broker_epoch=LIFE, now_ms=1)
        reading = reading_of(stage, 0, isolation=Isolation.READ_COMMITTED)
        assert len(list(reading.steps())) == 2
        assert reading.takes_turns
        aborted = reading.found["orders", 0].aborted
        assert aborted is not None
        assert [(each.producer_id, each.first_offset) for each in aborted] == told

    on_stage(tmp_path, scene, OS)


def test_who_waits_is_woken_by_what_is_committed_and_by_nothing_less(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        reading = reading_of(stage, 0, max_wait_ms=60_000)
        assert not await reading.read()
        waiting = asyncio.ensure_future(reading.wait())
        await asyncio.sleep(0)
        append(partition)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done(), "the other replica in sync does not hold it"
        partition.fetched(2, 1, start_offset=0, broker_epoch=LIFE, now_ms=1)
        async with asyncio.timeout(5):
            await waiting
        assert reading.found["orders", 0].records is not None
        assert not partition._watchers, "nobody waits any more"

    on_stage(tmp_path, scene, OS)


def test_what_comes_between_the_reading_and_the_wait_wakes_the_reader(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1,), min_in_sync=1)
        reading = reading_of(stage, 0, max_wait_ms=60_000)
        assert not await reading.read()
        append(partition)
        async with asyncio.timeout(5):
            await reading.wait()
        assert reading.found["orders", 0].records is not None

    on_stage(tmp_path, scene, OS)


@pytest.mark.parametrize("ends", ["its time is over", "the broker leads no more"])
def test_a_wait_ends(tmp_path: Path, ends: str) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        reading = reading_of(stage, 0, max_wait_ms=20 if ends == "its time is over" else 60_000)
        assert not await reading.read()
        waiting = asyncio.ensure_future(reading.wait())
        await asyncio.sleep(0)
        if ends != "its time is over":
            partition.resign()
        async with asyncio.timeout(5):
            await waiting
        error = ErrorCode.NONE if ends == "its time is over" else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (reading.found["orders", 0].error, reading.found["orders", 0].records) == (error, None)
        assert not partition._watchers

    on_stage(tmp_path, scene, OS)


def test_a_reader_is_told_to_come_again_while_lost_indexes_are_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does it in turns. Nobody takes the partition for damaged, and one who comes later is given all."""
    monkeypatch.setattr("log.segment.REBUILT_AT_ONCE_BYTES", 0)
    monkeypatch.setattr("log.segment.REBUILT_BATCHES", 3)

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        for number in range(30):
            batch = build_batch([(None, bytes(300), (), number)])
            partition.append_from_client(memoryview(bytearray(batch)), acks=1, now_ms=1)
        partition.log.roll(1)
        await partition.flush()
        segment = partition.log.segments[0]
        for suffix in (".index", ".timeindex"):
            partition.log.disk.unlink(segment.path(suffix))
        reading, turns = reading_of(stage, 20), 0
        while True:
            await reading.read()
            found = reading.found["orders", 0]
            if not found.error:
                break
            assert found.error is ErrorCode.KAFKA_STORAGE_ERROR
            assert not partition.offline
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 10, "three headers a turn"
        assert found.records is not None
        assert [header.base_offset for header, _ in split(found.records.read())] == list(range(20, 30))
        assert partition.folder.failed is None
        assert not partition.log.damage
        assert partition.log.disk.exists(segment.path(".index"))

    on_stage(tmp_path, scene, OS)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (3, ErrorCode.NONE),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (-2, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_only_minus_one_says_no_leader_epoch(epoch: int, error: ErrorCode) -> None:
    leading: Any = SimpleNamespace(is_leading=True, leader_epoch=3)
    assert leader_epoch_error(leading, epoch) is error
