"""A log that moves to another folder while it is compacted; other moves are in tests/service/broker."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from log.batch import Buffer, CorruptBatch
from log.compaction import find_work
from log.config import LogConfig
from log.control import ControlType
from log.disk import DiskFault
from log.ids import TopicId
from log.partition_log import PartitionLog
from log.relocation import BATCHES_AT_ONCE, FORMER, SEGMENTS_AT_ONCE, Relocation, of_stem, stem_of
from log.removal import raise_start_offset, remove_oldest
from log.snapshots import snapshot_name
from tests.log.building import contents, cut_log, fill, open_log, restart_log
from tests.log.compacting import NOW_MS, RETENTION_MS, Bench, breathe, committed_records, table
from tests.log.memory_disk import MemoryDisk, MemoryFile
from tests.log.plain_cleaning import once

TOPIC_ID = TopicId(bytes(range(16)))


@pytest.mark.parametrize("topic_id", [TOPIC_ID, TopicId(bytes(16)), TopicId(b"\xff" * 16), TopicId(b"\xfb\xef" * 8)])
def test_what_a_copy_is_of_is_read_from_its_name(topic_id: TopicId) -> None:
    assert of_stem(stem_of(topic_id, 12)) == (topic_id, 12)


async def all_copied(relocation: Relocation, log: PartitionLog) -> None:
    while await relocation.step(log.end_offset, now_ms=NOW_MS):
        pass


@pytest.mark.parametrize("rotten", [2, 6, 7, 2**40])
def test_a_copy_does_not_go_on_behind_a_base_offset_that_has_rotted(rotten: int) -> None:
    """It took what is left out for a gap of compaction, and took the log's place without it."""
    disk = MemoryDisk()
    log, _ = open_log(disk)
    fill(log, 10)
    moving = Relocation(log, disk, MemoryDisk(), TOPIC_ID, 0, blocking=asyncio.to_thread)
    position = log.segments[0].position_of(5)
    disk.files[log.segments[0].path()].data[position : position + 8] = rotten.to_bytes(8, "big")
    with pytest.raises(CorruptBatch):
        asyncio.run(all_copied(moving, log))
    assert moving.copy.end_offset <= 5


def test_a_step_begins_a_few_segments_only() -> None:
    """A client may set `segment.index.bytes` so that each batch begins one: a step began more than a thousand."""
    disk, target = MemoryDisk(), MemoryDisk()
    log, _ = open_log(disk)
    fill(log, 10 * SEGMENTS_AT_ONCE)
    log.set_config(LogConfig(segment_index_bytes=4))
    moving = Relocation(log, disk, target, TOPIC_ID, 0, blocking=asyncio.to_thread)

    async def scene() -> None:
        before = len(moving.copy.segments)
        while await moving.step(log.end_offset, now_ms=NOW_MS):
            assert len(moving.copy.segments) - before <= SEGMENTS_AT_ONCE
            before = len(moving.copy.segments)

    asyncio.run(scene())
    assert contents(moving.copy) == contents(log)
    assert len(moving.copy.segments) == 10 * SEGMENTS_AT_ONCE


def test_a_step_goes_on_with_the_next_segment() -> None:
    """It ended with the first one: where a writer began several segments in a turn, the copy never caught up."""
    log, _ = open_log(MemoryDisk(), config=LogConfig(segment_index_bytes=4))
    count = 10 * SEGMENTS_AT_ONCE
    fill(log, count)
    moving = Relocation(log, MemoryDisk(), MemoryDisk(), TOPIC_ID, 0, blocking=asyncio.to_thread)

    async def scene() -> int:
        steps = 0
        while await moving.step(log.end_offset, now_ms=NOW_MS):
            steps += 1
        return steps

    assert asyncio.run(scene()) <= 11
    assert contents(moving.copy) == contents(log)


def test_a_step_copies_so_many_batches_and_no_more() -> None:
    log, _ = open_log(MemoryDisk())
    fill(log, BATCHES_AT_ONCE + 5)
    moving = Relocation(log, MemoryDisk(), MemoryDisk(), TOPIC_ID, 0, blocking=asyncio.to_thread)
    asyncio.run(moving.step(log.end_offset, now_ms=NOW_MS))
    assert len(contents(moving.copy)) == BATCHES_AT_ONCE
    asyncio.run(all_copied(moving, log))
    assert contents(moving.copy) == contents(log)


def test_a_copy_of_many_segments_that_begins_anew_is_thrown_away_as_a_whole() -> None:
    """One by one took a turn of 0.1 s for 400 segments. A client may delete records while the log moves."""
    disk, target = MemoryDisk(), MemoryDisk()
    log, _ = open_log(disk, config=LogConfig(segment_index_bytes=4))
    fill(log, 50)
    moving = Relocation(log, disk, target, TOPIC_ID, 0, blocking=asyncio.to_thread)

    async def scene() -> None:
        await all_copied(moving, log)
        assert len(moving.copy.segments) == 50
        await moving.copy.flush()
        await raise_start_offset(log, 50)
        fill(log, 2)
        changes = target.changes
        await moving.step(51, now_ms=NOW_MS)
        assert target.changes - changes < 20
        await all_copied(moving, log)
        await moving.copy.flush()

    asyncio.run(scene())
    assert contents(moving.copy) == contents(log)
    again, _ = open_log(target, folder=moving.copy.folder)
    assert contents(again) == contents(log)


ZEROS = "A" * 22


@pytest.mark.parametrize(
    "name", ["", "orders-0", ZEROS, f"{ZEROS}-x", f"{ZEROS}-01", f"{ZEROS[1:]}B-0", "AAAA-1", "€-1"]
)
def test_a_name_of_something_else_is_that_of_no_copy(name: str) -> None:
    assert of_stem(name) is None


class Moving(Bench):
    """A log that is about to move."""

    def __init__(self, origin: MemoryDisk | None = None, target: MemoryDisk | None = None) -> None:
        super().__init__(origin or MemoryDisk())
        self.target = target or MemoryDisk()
        self.passes: list[asyncio.Task[object]] = []
        self.faults: list[str] = []

    async def breathe(self) -> None:
        await breathe()

    async def begin(self) -> Relocation:
        relocation = Relocation(self.log, self.disk, self.target, TOPIC_ID, 0, blocking=self.blocking)
        await all_copied(relocation, self.log)
        return relocation

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def finish(self, relocation: Relocation) -> bool:
        return await relocation.take_over(
            "table-0",
            now_ms=NOW_MS,
            breathe=self.breathe,
            may=lambda: True,
            decided=self.decided,
            origin_failed=lambda fault: self.failed("origin", fault),
            target_failed=lambda fault: self.failed("target", fault),
        )

    def failed(self, where: str, fault: DiskFault) -> None:
        assert fault.passing
        self.faults.append(where)

    def decided(self) -> None:
        self.disk = self.target


class WrittenTo(Moving):
    """In each turn of the loop another batch comes, or several."""

    batches = 1

    async def breathe(self) -> None:
        for _ in range(self.batches):
            self.put((b"k", bytes(100_000)))


@pytest.mark.parametrize("batches", [1, 4])
def test_a_log_that_is_written_to_in_each_turn_moves(batches: int) -> None:
    """The copy was looked at for what had come in the turn before, and there was always something."""

    async def run() -> None:
        bench = WrittenTo()
        bench.batches = batches
        relocation = await bench.begin()
        await bench.breathe()
        assert await bench.finish(relocation)
        assert bench.log.disk is bench.target
        assert bench.log.end_offset < 10 * batches

    asyncio.run(run())


class CompactedWhenDecided(Moving):
    def decided(self) -> None:
        super().decided()
        work = find_work(self.log, self.disk, now_ms=NOW_MS, limit_offset=self.log.end_offset)
        assert work is not None
        self.passes.append(asyncio.ensure_future(self.compact(work, apart=once)))


def test_a_pass_that_begins_before_the_copy_has_its_name_does_not_lose_the_files() -> None:
    async def run() -> None:
        bench = CompactedWhenDecided()
        for count in range(100):
            bench.put((b"%d" % (count % 7), b"%d" % count))
        await bench.log.flush()
        before = table(committed_records(bench.log, bench.stable))
        assert await bench.finish(await bench.begin())
        await asyncio.gather(*bench.passes)
        assert table(committed_records(bench.log, bench.stable)) == before
        assert {segment.path().partition("/")[0] for segment in bench.log.segments} == {"table-0"}

    asyncio.run(run())


def test_the_oldest_snapshot_is_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose how many producers it tells of: one of 300,000 took 30 ms of one turn."""
    breaths = 0

    async def counted() -> None:
        nonlocal breaths
        breaths += 1

    async def run() -> None:
        bench = Moving()
        for count in range(2):
            bench.put((b"k", b"%d" % count))
            bench.log.roll(NOW_MS)
            await bench.log.flush()
        oldest = bench.log.snapshots.stored[0]
        size_bytes = len(bench.disk.read(f"{bench.log.folder}/{snapshot_name(oldest)}"))
        relocation = await bench.begin()
        monkeypatch.setattr("log.snapshots.READ_AT_ONCE", size_bytes // 4)
        monkeypatch.setattr("tests.log.test_relocation.breathe", counted)
        assert await bench.finish(relocation)
        assert breaths >= 4
        assert oldest in bench.log.snapshots.stored

    asyncio.run(run())


class OutOfDescriptors(MemoryDisk):
    """Can't open its folder for a while."""

    refusals = 0

    async def sync_dir(self, path: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise DiskFault(errno.EMFILE, "too many open files", path)
        await super().sync_dir(path)


def test_what_is_durable_only_in_the_copy_does_not_count_before_the_decision_is_durable() -> None:
    """A flush that began between the two returned at once, and was believed. A power cut that undid the decision gave
    the old folder its name back, which lacked what had been acknowledged. Found by reading.
    """
    origin = MemoryDisk()
    flushes: list[asyncio.Task[int]] = []

    class FlushedWhenDecided(Moving):
        def decided(self) -> None:
            super().decided()
            flushes.append(asyncio.ensure_future(self.log.flush()))

    async def run() -> None:
        bench = FlushedWhenDecided(origin)
        bench.put((b"k", b"v"))
        synced = origin.sync_dir

        async def sync_dir(path: str) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            assert not flushes[0].done(), "not yet"
            assert bench.log.flushed_offset == 0
            await synced(path)

        relocation = await bench.begin()
        origin.sync_dir = sync_dir  # type: ignore[method-assign]
        assert await bench.finish(relocation)
        assert await flushes[0] == bench.log.end_offset == 1

    asyncio.run(run())


def test_a_decided_move_is_finished_when_there_are_descriptors_again(monkeypatch: pytest.MonkeyPatch) -> None:
    origin, target = OutOfDescriptors(), OutOfDescriptors()

    class OutWhenDecided(Moving):
        def decided(self) -> None:
            super().decided()
            origin.refusals = target.refusals = 3

    async def run() -> None:
        bench = OutWhenDecided(origin, target)
        bench.put((b"k", b"v"))
        assert await bench.finish(await bench.begin())
        assert bench.log.folder == "table-0"
        assert table(committed_records(bench.log, bench.stable)) == {b"k": b"v"}
        assert bench.faults == ["origin"] * 3 + ["target"] * 3, "it is told what holds the move up"

    monkeypatch.setattr("log.relocation.AGAIN_S", 0.001)
    asyncio.run(run())


def test_the_former_folder_is_removed_when_there_are_descriptors_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move back would leave two former folders, and a start could take the wrong one for the decision."""

    class NothingRemoved(MemoryDisk):
        refusals = 3

        def discard(self, path: str) -> None:
            if path.endswith(FORMER) and self.refusals:
                self.refusals -= 1
                raise DiskFault(errno.EMFILE, "too many open files", path)
            super().discard(path)

    async def run() -> None:
        bench = Moving(origin := NothingRemoved())
        bench.put((b"k", b"v"))
        assert await bench.finish(await bench.begin())
        assert origin.listdir("") == []
        assert bench.faults == ["origin"] * 3

    monkeypatch.setattr("log.relocation.AGAIN_S", 0.001)
    asyncio.run(run())


def test_a_stop_does_not_wait_for_descriptors_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start finishes the move."""
    origin, target = OutOfDescriptors(), OutOfDescriptors()

    class OutWhenDecided(Moving):
        def decided(self) -> None:
            super().decided()
            target.refusals = 1_000_000_000

    async def run() -> None:
        bench = OutWhenDecided(origin, target)
        bench.put((b"k", b"v"))
        move = asyncio.ensure_future(bench.finish(await bench.begin()))
        await asyncio.sleep(0.05)
        assert bench.faults
        move.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(10):
                await move
        async with bench.log.alone():
            assert table(committed_records(bench.log, bench.stable)) == {b"k": b"v"}

    monkeypatch.setattr("log.relocation.AGAIN_S", 0.001)
    monkeypatch.setattr("log.relocation.STOPPING_S", 0.01)
    asyncio.run(run())


def test_what_was_aborted_stays_aborted_although_compaction_has_forgotten_it_meanwhile() -> None:
    async def run() -> None:
        bench = Moving()
        bench.put((b"a", b"aborted"), producer=7, transactional=True)
        bench.end(7, ControlType.ABORT)
        for count in range(30):
            bench.put((b"k%d" % count, bytes(50)))
        await bench.log.flush()
        relocation = await bench.begin()
        bench.put((b"b", b"committed"), producer=7, transactional=True)
        bench.end(7, ControlType.COMMIT)
        for now_ms in (NOW_MS, NOW_MS + 1, NOW_MS + RETENTION_MS + 2):
            bench.put((b"c", b"%d" % now_ms))
            await bench.clean(now_ms=now_ms)
        assert not bench.stable.has_aborted
        while not await bench.finish(relocation):
            pass
        known = table(committed_records(bench.log, bench.stable))
        assert b"a" not in known
        assert known[b"b"] == b"committed"

    asyncio.run(run())


def test_what_was_copied_before_the_log_started_over_is_not_kept() -> None:
    """A follower starts over because it lacks deletions, and fills its log from its leader beyond what was copied."""

    async def run() -> None:
        bench = Moving()
        bench.put((b"a", b"deleted while this follower was away"))
        await bench.log.flush()
        relocation = await bench.begin()
        restart_log(bench.log, 0)
        bench.put((b"b", b"1"))
        bench.put((b"c", b"1"))
        await bench.log.flush()
        assert await bench.finish(relocation)
        assert table(committed_records(bench.log, bench.stable)) == {b"b": b"1", b"c": b"1"}

    asyncio.run(run())


def test_what_was_deleted_stays_deleted_although_compaction_has_removed_the_deletion_meanwhile() -> None:
    async def run() -> None:
        bench = Moving()
        bench.put((b"a", b"deleted"))
        for count in range(30):
            bench.put((b"k%d" % count, bytes(50)))
        await bench.log.flush()
        relocation = await bench.begin()
        bench.put((b"a", None))
        for now_ms in (NOW_MS, NOW_MS + 1, NOW_MS + RETENTION_MS + 2):
            bench.put((b"c", b"%d" % now_ms))
            await bench.clean(now_ms=now_ms)
        assert b"a" not in {key for _, key, _ in committed_records(bench.log, bench.stable)}
        while not await bench.finish(relocation):
            pass
        assert b"a" not in table(committed_records(bench.log, bench.stable))

    asyncio.run(run())


async def known_by_views_alone() -> Moving:
    """A log without its first segments: only its views know the producer 7, whose batch stood there."""
    bench = Moving()
    bench.put((b"a", b"1"), producer=7)
    for count in range(30):
        bench.put((b"k%d" % count, bytes(50)))
    await bench.log.flush()
    await remove_oldest(bench.log, lambda: 2)
    return bench


@pytest.mark.parametrize("taken_back", [0, 1, 10])
def test_what_the_views_knew_of_removed_batches_is_known_after_a_cut_of_the_moved_log(taken_back: int) -> None:
    """Before the move there was a snapshot at the beginning of each segment, from which a cut could go on."""

    async def run() -> None:
        bench = await known_by_views_alone()
        await raise_start_offset(bench.log, bench.log.end_offset - 12)  # inside a segment, where the copy begins
        known, end_offset = dict(bench.producers.last), bench.log.end_offset - taken_back
        bench.put((b"b", b"2"), producer=8)
        assert await bench.finish(await bench.begin())
        cut_log(bench.log, end_offset)
        assert bench.log.end_offset == end_offset
        assert bench.producers.last == known
        assert set(known) == {7}

    asyncio.run(run())


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_what_the_views_knew_where_a_pass_ended_is_known_after_moves_and_a_cut(moves: int) -> None:
    """A moved log did not know where the pass had ended. The next move took along a snapshot from before that."""

    async def run() -> None:
        bench = await known_by_views_alone()
        await bench.clean()
        known, end_offset = dict(bench.producers.last), bench.log.end_offset
        bench.put((b"b", b"2"), producer=8)
        for _ in range(moves):
            assert await bench.finish(await bench.begin())
            bench.target = MemoryDisk()
        cut_log(bench.log, end_offset)
        assert bench.producers.last == known
        assert set(known) == {7}

    asyncio.run(run())


def test_what_the_views_knew_is_known_after_retention_in_the_moved_log_and_a_cut() -> None:
    """The moved log had no snapshot where it began then."""

    async def run() -> None:
        bench = await known_by_views_alone()
        assert await bench.finish(await bench.begin())
        for count in range(30):
            bench.put((b"m%d" % count, bytes(50)))
        bench.put((b"b", b"2"), producer=8)
        await remove_oldest(bench.log, lambda: 2)
        cut_log(bench.log, bench.log.start_offset + 2)
        assert set(bench.producers.last) == {7}

    asyncio.run(run())


@pytest.mark.parametrize("recovery_point", [0, 1 << 40])
def test_what_the_views_knew_of_removed_batches_is_known_after_a_crash_of_the_moved_log(recovery_point: int) -> None:
    async def run() -> None:
        bench = await known_by_views_alone()
        assert await bench.finish(await bench.begin())
        bench.put((b"b", b"2"), producer=8)
        end_offset = bench.log.end_offset
        await bench.log.flush()
        again = Bench(bench.target, recovery_point=min(recovery_point, end_offset))
        assert again.log.end_offset == end_offset
        assert again.producers.last == bench.producers.last
        assert set(again.producers.last) == {7, 8}

    asyncio.run(run())


LARGE = b"l" * 400


class MovesLarge(Moving):
    """What is copied in a thread is remembered, and what happens to the log meanwhile is done before it."""

    def __init__(self, *meanwhile: Callable[[], None] | None) -> None:
        super().__init__()
        self.meanwhile = list(meanwhile)
        self.in_thread = False
        self.longest_on_loop = 0
        self.put((b"a", b"1"))
        self.put((b"b", LARGE))
        self.put((b"c", b"2"))

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self.meanwhile and (happens := self.meanwhile.pop(0)) is not None:
            happens()
        self.in_thread = True
        try:
            return function(*arguments)
        finally:
            self.in_thread = False

    def append(self, file: MemoryFile, buffers: Sequence[Buffer]) -> int:
        if not self.in_thread:
            self.longest_on_loop = max(self.longest_on_loop, sum(map(len, buffers)))
        return appended(file, buffers)


appended = MemoryFile.append


def test_a_large_batch_is_copied_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held the loop: 90 MB for a quarter of a second."""

    async def run() -> None:
        monkeypatch.setattr("log.laying.LARGE_BYTES", 300)
        bench = MovesLarge()
        await bench.log.flush()
        before = table(committed_records(bench.log, bench.stable))
        monkeypatch.setattr(MemoryFile, "append", lambda file, buffers: bench.append(file, buffers))
        relocation = await bench.begin()
        assert 0 < bench.longest_on_loop < 300 < len(LARGE)
        assert await bench.finish(relocation)
        assert table(committed_records(bench.log, bench.stable)) == before

    asyncio.run(run())


@pytest.mark.parametrize("moment", [0, 1])
@pytest.mark.parametrize("what", ["cut", "cut and written again", "compacted", "raised"])
def test_a_large_batch_that_the_log_has_lost_meanwhile_is_not_copied(
    what: str, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("log.laying.LARGE_BYTES", 300)

        def happens() -> None:
            if what.startswith("cut"):
                cut_log(bench.log, 1)
            if what == "cut and written again":
                bench.put((b"x", b"y" * 500), (b"z", b"3"))
            elif what == "compacted":
                bench.log.times_compacted += 1
            elif what == "raised":
                bench.log.start_offset = 2

        bench = MovesLarge(*(None,) * moment, happens)
        await bench.log.flush()
        relocation = await bench.begin()
        assert not bench.meanwhile
        assert await bench.finish(relocation)
        held = list(bench.log.scan(bench.log.start_offset))
        assert {segment.path().partition("/")[0] for segment in bench.log.segments} == {"table-0"}
        assert [(header.base_offset, header.last_offset) for header, _ in held] == {
            "cut": [(0, 0)],
            "cut and written again": [(0, 0), (1, 2)],
            "compacted": [(0, 0), (1, 1), (2, 2)],
            "raised": [(2, 2)],
        }[what]
        assert not [name for name in bench.target.files if ".laid" in name]

    asyncio.run(run())


@pytest.mark.parametrize("moment", [0, 1])
def test_a_log_that_is_deleted_while_its_large_batch_is_copied_is_left_alone(
    moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("log.laying.LARGE_BYTES", 300)
        gone: list[asyncio.Task[None]] = []

        class Deleted(MovesLarge):
            async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
                gone.append(asyncio.ensure_future(self.log.discard()))
                await asyncio.sleep(0.01)
                return await super().blocking(function, *arguments)

        bench = Deleted()
        assert not await bench.finish(await bench.begin())
        await asyncio.gather(*gone)
        assert not [name for name in bench.target.files if ".laid" in name]

    asyncio.run(run())
