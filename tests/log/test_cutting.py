"""Taking back the end of a log."""

import asyncio
import contextlib
import copy
import random
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from log.batch import CorruptBatch, build_batch, read_header, split
from log.checkpoints import START_OFFSET
from log.compaction import find_work
from log.config import LogConfig
from log.cutting import _cut_at, distrust, durable_after_cut, truncate_to, views_below
from log.disk import DiskFault
from log.durability import CutUnfinished
from log.partition_log import PartitionLog
from log.removal import keep_start, raise_start_offset
from log.segment import TIME_SUFFIX
from log.steps import done_at_once
from log.time_search import max_timestamp
from tests.log.building import append, base_offsets, contents, cut_log, fill, open_batch, open_log, restart_log, stamped
from tests.log.compacting import NOW_MS, Bench
from tests.log.memory_disk import MemoryDisk
from tests.log.plain_cleaning import once

DAY_MS = 86_400_000
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


@pytest.mark.parametrize("offset", [0, 3, 9, 10, 19])
def test_truncating_takes_back_the_end_everywhere(offset: int) -> None:
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 10, leader_epoch=1)
    fill(log, 10, leader_epoch=2)
    cut_log(log, offset)
    assert log.end_offset == offset
    assert base_offsets(log) == list(range(offset))
    assert view.seen == contents(log)
    assert log.epochs.entries() == [(1, 0), (2, 10)][: 2 if offset > 10 else 1 if offset else 0]
    fill(log, 3, leader_epoch=5)
    asyncio.run(log.flush())
    again, seen = open_log(disk, config=SMALL)
    assert contents(again) == contents(log) == seen.seen
    assert again.epochs.entries() == log.epochs.entries()


def test_truncating_into_a_batch_takes_all_of_it() -> None:
    log, _ = open_log(MemoryDisk())
    fill(log, 3, records=4)
    cut_log(log, 6)
    assert log.end_offset == 4
    assert asyncio.run(max_timestamp(log, 4, open_batch)) == (3, 1003, 0)


@pytest.mark.parametrize("records", [1, 3])
def test_nothing_is_taken_back_where_a_base_offset_has_rotted(records: int) -> None:
    """More was taken back than wanted, with a gap in its place, or an assertion failed."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=LogConfig(index_interval_bytes=200))
    fill(log, 12, records=records)
    segment, offsets = log.segments[0], range(1, log.end_offset)
    right = {offset: _cut_at(log, offset) for offset in offsets}
    for position in [position for position, _ in segment.headers(0)]:
        for bit in (1, 2, 4, 8, 16):
            data, seen = disk.files[segment.path()].data, 0
            data[position + 7] ^= bit
            for offset in offsets:
                try:
                    assert _cut_at(log, offset) == right[offset]
                except CorruptBatch:
                    seen += 1
            assert seen
            data[position + 7] ^= bit


def test_a_restarted_log_goes_on_elsewhere() -> None:
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 10)
    restart_log(log, 500)
    assert (log.start_offset, log.end_offset, view.seen, log.size_bytes) == (500, 500, [], 0)
    fill(log, 2, leader_epoch=3)
    asyncio.run(log.flush())
    again, _ = open_log(disk, config=SMALL)
    assert (again.start_offset, again.end_offset) == (500, 502)
    assert base_offsets(again) == [500, 501]


@pytest.mark.parametrize("seed", range(10))
def test_nothing_of_a_restarted_log_counts_as_durable_before_a_flush(seed: int) -> None:
    """Until then a power cut may leave any part of the old log. What is gone of it is no damage."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, 10)
    asyncio.run(log.flush())
    restart_log(log, 500)
    point, unflushed = log.flushed_offset, copy.deepcopy(disk)
    unflushed.cut_power(random.Random(seed))
    assert not open_log(unflushed, config=SMALL, recovery_point=point)[0].damage
    assert asyncio.run(log.flush()) == 500
    disk.cut_power(random.Random(seed))
    again, _ = open_log(disk, config=SMALL)
    assert (again.start_offset, again.end_offset) == (500, 500)


@pytest.mark.parametrize("offset", [4, 7, 8, 12, 16])
@pytest.mark.parametrize("seed", range(10))
def test_what_a_cut_leaves_durable_is_no_damage_after_a_power_cut(offset: int, seed: int) -> None:
    """The log starts in the middle of its second segment, or where a batch begins."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, 5, records=4)
    asyncio.run(raise_start_offset(log, 7))
    asyncio.run(log.flush())
    point = min(log.flushed_offset, durable_after_cut(log, offset))
    cut_log(log, offset)
    disk.cut_power(random.Random(seed))
    assert not open_log(disk, config=SMALL, recovery_point=point)[0].damage


@pytest.mark.parametrize("offset", [3, 10])
@pytest.mark.parametrize("restarts", [False, True])
def test_power_may_go_at_each_step_of_a_cut(offset: int, restarts: bool) -> None:
    """What is left is the beginning of what was there. No batch that was cut off stands behind one that came after."""
    epochs, epoch = [1] * 8 + [3] * 8, 2 if offset < 8 else 4
    for change in count(1):
        disk = MemoryDisk()

        async def life(disk: MemoryDisk = disk, change: int = change) -> None:
            log, _ = open_log(disk, config=SMALL)
            for each in epochs:
                fill(log, 1, leader_epoch=each)
            await log.flush()
            async with log.alone():
                await distrust(log, 0 if restarts else durable_after_cut(log, offset), offset)
                disk.fail_at = disk.changes + change
                if restarts:
                    restart_log(log, offset)
                else:
                    cut_log(log, offset)
            fill(log, 9, leader_epoch=epoch)
            await log.flush()

        with contextlib.suppress(DiskFault):
            asyncio.run(life())
        is_over, before = disk.fault is None, len(disk.pending_names)
        for left in {0, before // 2, before}:
            after = copy.deepcopy(disk)
            after.fault = after.fail_at = None
            del after.pending_names[left:]
            after.cut_power(AllOf())
            again, _ = open_log(after, config=SMALL, recovery_point=0 if restarts else offset)
            assert not again.damage
            found = [header.leader_epoch for header, _ in again.scan(again.start_offset)]
            new = found.count(epoch)
            kept = len(found) - new
            assert found == epochs[:kept] + [epoch] * new
            assert not new or kept == offset or (restarts and not kept)
        if is_over:
            break
    assert change > 20


class AllOf(random.Random):
    """All of what was changed survives."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start - 1

    def random(self) -> float:
        return 0.0

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def test_nothing_is_appended_while_files_of_what_was_cut_off_are_there() -> None:
    """A crash would bring back the rest of them behind it."""
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 20)
    asyncio.run(log.flush())
    truncate_to(log, 5, done_at_once(views_below(log, 5)))
    assert (log.end_offset, base_offsets(log), view.seen) == (5, list(range(5)), contents(log))
    before = disk.changes
    with pytest.raises(CutUnfinished) as refused:
        fill(log, 1)
    assert refused.value.passing
    assert disk.changes == before
    asyncio.run(log.flush())  # who was to remove them has given up
    fill(log, 2, leader_epoch=1)
    asyncio.run(log.flush())
    again, _ = open_log(disk, config=SMALL)
    assert contents(again) == contents(log)
    assert base_offsets(log) == list(range(7))


def test_reads_after_a_cut_see_what_was_written_since() -> None:
    """What was noted about the old bytes (the last limit, the end of the last read) is forgotten with them."""
    log, _ = open_log(MemoryDisk())
    fill(log, 10)
    for limit in (6, 8):
        assert log.read(2, max_bytes=10**6, limit_offset=limit, at_least_one=True) is not None
        cut_log(log, 4)
        fill(log, 6, size=333 * limit, leader_epoch=1)
        found = log.read(2, max_bytes=10**6, limit_offset=limit, at_least_one=True)
        assert found is not None
        assert [header.base_offset for header, _ in split(found.read())] == list(range(2, limit))


@pytest.mark.parametrize("seed", range(10))
def test_what_is_cut_during_a_flush_is_not_counted(seed: int) -> None:
    """The fsync under way covers the old bytes; the new ones at the same offsets need one of their own."""

    async def run() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk)
        fill(log, 1)
        await log.flush()
        fill(log, 9)
        flushing = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        cut_log(log, 4)
        fill(log, 6, leader_epoch=1)
        for _ in range(20):  # look at it at every chance
            await asyncio.sleep(0)
            if log.flushed_offset == 10:
                break
        before = contents(log)
        disk.cut_power(random.Random(seed))
        assert contents(open_log(disk)[0]) == before
        flushing.cancel()

    asyncio.run(run())


def test_what_is_cut_though_it_was_durable_with_gaps_is_not_taken_for_damage() -> None:
    disk = MemoryDisk()

    async def write() -> None:
        log, _ = open_log(disk)
        fill(log, 2)
        batch = stamped([b"x"], base_offset=7)
        log.append_after_gap(batch, read_header(batch), now_ms=0)
        await log.flush()
        await distrust(log, 2, 2)
        cut_log(log, 2)
        fill(log, 1, leader_epoch=1)
        await log.flush()

    asyncio.run(write())
    disk.cut_power(random.Random(3))
    log, _ = open_log(disk)
    assert base_offsets(log) == [0, 1, 2]
    assert not log.damage


async def restarted_below_its_start(disk: MemoryDisk) -> None:
    log, _ = open_log(disk)
    fill(log, 15)
    await raise_start_offset(log, 10)
    await log.flush()
    await distrust(log, 0, 4)
    restart_log(log, 4)


class Killed(Exception):
    """The process dies here."""


def test_a_log_that_dies_as_it_is_restarted_below_its_start_has_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was empty at its old start then, and went on from there without what its leader has below."""
    disk = MemoryDisk()
    unlink = disk.unlink

    def dies(path: str) -> None:
        if path.endswith(START_OFFSET):
            raise Killed
        unlink(path)

    with monkeypatch.context() as planted:
        planted.setattr(disk, "unlink", dies)
        with pytest.raises(Killed):
            asyncio.run(restarted_below_its_start(disk))
    again, _ = open_log(disk)
    assert (again.start_offset, again.end_offset) == (4, 4)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_does_not_bring_back_the_start_above_a_restart(seed: int) -> None:
    disk = MemoryDisk()
    asyncio.run(restarted_below_its_start(disk))
    disk.cut_power(random.Random(seed))
    again, _ = open_log(disk)
    assert again.start_offset == 4


def test_a_log_that_is_not_cut_after_all_keeps_its_start() -> None:
    disk = MemoryDisk()

    async def scene() -> None:
        log, _ = open_log(disk)
        fill(log, 15)
        await raise_start_offset(log, 10)
        await log.flush()
        await distrust(log, 0, 4)
        async with log.alone():
            await keep_start(log)

    asyncio.run(scene())
    disk.cut_power(random.Random(1))
    again, _ = open_log(disk)
    assert again.start_offset == 10


@pytest.mark.parametrize("starts_over", [False, True])
def test_a_cut_before_the_plan_of_a_swap_is_gone_is_not_taken_for_damage(
    starts_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush that removed the plan noted up to where the log had been compacted, which was cut by then."""
    disk = MemoryDisk()
    bench = Bench(disk)
    for number in range(40):
        bench.put((b"k%d" % number, bytes(60)))

    async def not_yet(log: PartitionLog) -> None:
        return

    async def cut() -> None:
        bench.log.roll(NOW_MS)
        await bench.log.flush()
        work = find_work(bench.log, disk, now_ms=NOW_MS, limit_offset=bench.log.end_offset)
        assert work is not None
        bench.log.set_config(replace(bench.log.config, segment_bytes=1500))
        with monkeypatch.context() as until_then:
            until_then.setattr(PartitionLog, "flush", not_yet)
            await bench.compact(work, apart=once)
        assert bench.log.durability.plan_left is not None
        async with bench.log.alone():
            await distrust(bench.log, durable_after_cut(bench.log, 22), 22)
            if starts_over:
                restart_log(bench.log, 22)
            else:
                cut_log(bench.log, 22)
        for number in range(5):
            bench.put((b"n%d" % number, b"new"))
        await bench.log.flush()

    asyncio.run(cut())
    again = Bench(disk, recovery_point=22).log
    assert (again.end_offset, len(again.damage)) == (27, 0)


@pytest.mark.parametrize(("rolled_at", "offset"), [((), 35), ((33,), 35), ((33,), 33), ((36,), 35)])
def test_a_crash_after_a_cut_takes_nothing_from_a_compacted_log(rolled_at: tuple[int, ...], offset: int) -> None:
    """The copy of a compacted log may be one segment: what was durable below the cut is so still, gaps and all."""

    async def life() -> int:
        log, _ = open_log(disk)
        for base in (0, 5, 9, 20, 30, 31, 32, 33, 34, 35):
            if base in rolled_at:
                log.roll(0)
            batch = stamped([b"v"], base_offset=base)
            log.append_after_gap(batch, read_header(batch), now_ms=0)
        if 36 in rolled_at:
            log.roll(0)
        await log.flush()
        durable = durable_after_cut(log, offset)
        async with log.alone():
            await distrust(log, durable, offset)
            cut_log(log, offset)
        return min(durable, log.flushed_offset)

    disk = MemoryDisk()
    again, _ = open_log(disk, recovery_point=asyncio.run(life()))
    assert again.end_offset == offset
    assert not again.damage


TIMES = [NOW_MS + 30 * DAY_MS + at if at < 10 else NOW_MS for at in range(60)]
"""Some records are of today, and later ones are older: an import."""


@pytest.mark.parametrize("harm", ["zeros", "short", "a part of an entry", "rotten end"])
@pytest.mark.parametrize("left", [12, 27])
def test_a_cut_does_not_believe_a_time_index_that_has_rotted_while_it_was_open(harm: str, left: int) -> None:
    """The largest time of the segment would be too low, and retention would remove what is new."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=LogConfig(segment_bytes=4_500, index_interval_bytes=100))
    for offset, timestamp in enumerate(TIMES):
        append(log, stamped([b"v" * 80], base_offset=offset, timestamp=timestamp))
    asyncio.run(log.flush())
    first = log.segments[0]
    assert first.end_offset > left
    log.read(3, max_bytes=150, limit_offset=log.end_offset, at_least_one=True)  # opens the indexes
    data = disk.files[first.path(TIME_SUFFIX)].data
    data[:] = {
        "zeros": bytes(len(data)),
        "short": data[:12],
        "a part of an entry": data[: len(data) - 5],
        "rotten end": data[:-24] + bytes(each ^ 0x10 for each in data[-24:]),
    }[harm]
    cut_log(log, left)
    assert (first.largest_timestamp, first.largest_timestamp_offset) == (TIMES[9], 9)
    fill(log, 1)
    assert log.read(left - 1, max_bytes=150, limit_offset=left + 1, at_least_one=True) is not None


@pytest.mark.parametrize("is_trusted", [False, True])
def test_after_a_start_over_and_a_crash_no_epochs_of_the_former_log_are_believed(is_trusted: bool) -> None:
    """Its checkpoint stays until the first segment is sealed. What was durable was cut off, or counted as damage."""

    async def run() -> None:
        log, _ = open_log(disk := MemoryDisk())

        def put(epoch: int, count: int) -> None:
            for _ in range(count):
                batch = build_batch([(None, b"v", (), NOW_MS)], base_offset=log.end_offset, leader_epoch=epoch)
                append(log, batch, NOW_MS)

        put(3, 5)
        put(4, 3)  # led here, and copied by nobody
        log.roll(NOW_MS)
        await log.flush()
        async with log.alone():
            await distrust(log, 0, 10)
            restart_log(log, 10)
        put(3, 4)
        put(5, 4)
        flushed = await log.flush()
        again, _ = open_log(disk, recovery_point=flushed if is_trusted else 0)
        assert (again.start_offset, again.end_offset, list(again.damage)) == (10, 18, [])
        assert again.epochs.entries() == [(3, 10), (5, 14)]

    asyncio.run(run())
