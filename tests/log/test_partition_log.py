"""The log of a partition, case by case. What must hold whatever happens is in tests/properties/test_log_machine.py."""

import asyncio
import random
import sys
from pathlib import Path

import pytest

from log.batch import Buffer, read_header, split
from log.config import LogConfig
from log.disk import DiskFault, RealDisk
from log.identity import read_topic_id
from log.ids import TopicId
from log.partition_log import PartitionLog
from log.segments import OffsetOutOfRange
from log.time_search import max_timestamp, offset_for_timestamp
from tests.log.building import FOLDER, append, base_offsets, contents, fill, open_log, stamped, unpack
from tests.log.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def test_a_new_log_has_no_folder_until_it_is_written_to() -> None:
    disk = MemoryDisk()
    log, view = open_log(disk)
    assert (log.start_offset, log.flushed_offset, log.end_offset, log.size_bytes) == (0, 0, 0, 0)
    assert log.read(0, max_bytes=100, limit_offset=0, at_least_one=True) is None
    assert list(log.scan(0)) == []
    assert asyncio.run(max_timestamp(log, 0, unpack)) is None
    assert asyncio.run(log.flush()) == 0
    assert disk.changes == 0
    fill(log, 1)
    assert disk.listdir("") == [FOLDER]
    assert view.seen == contents(log)


def test_segments_roll_by_size_and_reads_stay_in_one() -> None:
    log, _ = open_log(MemoryDisk(), config=SMALL)
    fill(log, 20)
    assert len(log.segments) > 2
    assert all(segment.size_bytes <= 1000 for segment in log.segments)
    found = log.read(0, max_bytes=10**9, limit_offset=log.end_offset, at_least_one=True)
    assert found is not None
    headers = [header for header, _ in split(found.read())]
    assert headers[-1].next_offset == log.segments[1].base_offset


@pytest.mark.parametrize(
    ("config", "times", "rolled"),
    [
        (LogConfig(segment_ms=100), (0, 100), False),
        (LogConfig(segment_ms=100), (0, 101), True),
        (LogConfig(segment_ms=100, segment_jitter_ms=10**9), (0, 1), True),  # this folder's jitter eats the hundred
        (LogConfig(max_compaction_lag_ms=50), (0, 60), False),
        (LogConfig(max_compaction_lag_ms=50, cleanup_policy=("compact",)), (0, 60), True),
    ],
)
def test_segments_roll_by_the_age_of_their_records(config: LogConfig, times: tuple[int, int], rolled: bool) -> None:
    log, _ = open_log(MemoryDisk(), config=config)
    for offset, timestamp in enumerate(times):
        append(log, stamped([b"x"], base_offset=offset, timestamp=timestamp))
    assert (len(log.segments) == 2) is rolled


def test_records_without_time_roll_by_ours() -> None:
    log, _ = open_log(MemoryDisk(), config=LogConfig(segment_ms=100))
    for offset, now_ms in enumerate((1000, 1100, 1301)):
        append(log, stamped([b"x"], base_offset=offset, timestamp=-1), now_ms=now_ms)
    assert base_offsets(log) == [0, 1, 2]
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_full_index_and_a_far_offset_roll_too() -> None:
    log, _ = open_log(MemoryDisk(), config=LogConfig(index_interval_bytes=0, segment_index_bytes=32))
    fill(log, 10)
    assert len(log.segments) > 1
    log.restart_at(5)
    append(log, stamped([b"x"], base_offset=5))
    wide = stamped([b"x"], base_offset=6)
    wide[23:27] = (2**31 - 1).to_bytes(4, "big")
    append(log, wide)
    assert [segment.base_offset for segment in log.segments] == [5, 6]


def test_a_batch_must_follow_the_last() -> None:
    log, _ = open_log(MemoryDisk())
    fill(log, 2)
    for base in (1, 3):
        with pytest.raises(AssertionError):
            append(log, stamped([b"x"], base_offset=base))


def test_reading_starts_with_the_batch_that_holds_the_offset_and_stops_at_the_limit() -> None:
    log, _ = open_log(MemoryDisk())
    fill(log, 4, records=3)

    def read(offset: int, limit: int, max_bytes: int = 10**6, at_least_one: bool = True) -> list[int] | None:
        found = log.read(offset, max_bytes=max_bytes, limit_offset=limit, at_least_one=at_least_one)
        return None if found is None else [header.base_offset for header, _ in split(found.read())]

    assert read(4, 12) == [3, 6, 9]
    assert read(4, 11) == [3, 6]
    assert read(3, 6) == [3]
    assert read(3, 5) is None
    assert read(12, 12) is None
    assert read(0, 12, max_bytes=1) == [0]
    assert read(0, 12, max_bytes=1, at_least_one=False) is None
    with pytest.raises(OffsetOutOfRange):
        read(-1, 12)


def test_reading_below_the_start_is_out_of_range() -> None:
    log, _ = open_log(MemoryDisk(), config=SMALL)
    fill(log, 10)
    asyncio.run(log.raise_start_offset(3))
    with pytest.raises(OffsetOutOfRange):
        log.read(2, max_bytes=100, limit_offset=10, at_least_one=True)


def test_a_slice_read_earlier_survives_the_removal_of_its_segment(tmp_path: Path) -> None:
    log, _ = open_log(RealDisk(str(tmp_path)), config=SMALL)
    fill(log, 30)
    found = log.read(0, max_bytes=500, limit_offset=30, at_least_one=True)
    assert found is not None
    found.pin()
    before = found.read()
    asyncio.run(log.remove_oldest(lambda: 2))
    assert found.read() == before
    found.unpin()
    with pytest.raises(DiskFault):
        found.read()


def test_a_flush_counts_only_what_was_there_before_it() -> None:
    async def run() -> None:
        log, _ = open_log(MemoryDisk())
        fill(log, 2)
        flushing = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        fill(log, 3)
        assert await flushing == log.flushed_offset == 2
        assert list(await asyncio.gather(log.flush(), log.flush())) == [5, 5]

    asyncio.run(run())


def test_flushes_that_wait_for_each_other_share_the_work() -> None:
    async def run() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk)
        fill(log, 1)
        await log.flush()
        fill(log, 1)
        before = len(disk.ops)
        await asyncio.gather(*(log.flush() for _ in range(10)))
        assert [op.split()[0] for op in disk.ops[before:]] == ["fsync"]

    asyncio.run(run())


def test_a_new_segments_name_is_durable_before_its_batches_count() -> None:
    """The order on which everything rests: folder, sealed segment with its indexes, active segment, then the offset."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, 8)
    assert log.flush_due
    first = len(disk.ops)
    asyncio.run(log.flush())
    synced = [op for op in disk.ops[first:] if op.startswith(("sync_dir", "fsync"))]
    zero, active = (f"{FOLDER}/{segment.base_offset:020}" for segment in (log.segments[0], log.segments[-1]))
    assert synced[:2] == [f"sync_dir {FOLDER}", "sync_dir "]
    assert synced[2:5] == [f"fsync {zero}.log", f"fsync {zero}.index", f"fsync {zero}.timeindex"]
    assert f"fsync {active}.log" in synced
    assert not log.flush_due


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
        log.truncate_to(4)
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


def test_reads_after_a_cut_see_what_was_written_since() -> None:
    """What was noted about the old bytes (the last limit, the end of the last read) is forgotten with them."""
    log, _ = open_log(MemoryDisk())
    fill(log, 10)
    for limit in (6, 8):
        assert log.read(2, max_bytes=10**6, limit_offset=limit, at_least_one=True) is not None
        log.truncate_to(4)
        fill(log, 6, size=333 * limit, leader_epoch=1)
        found = log.read(2, max_bytes=10**6, limit_offset=limit, at_least_one=True)
        assert found is not None
        assert [header.base_offset for header, _ in split(found.read())] == list(range(2, limit))


def test_a_fault_changes_nothing_and_is_final() -> None:
    disk = MemoryDisk()
    log, view = open_log(disk)
    fill(log, 3)
    before = contents(log)
    disk.fail_at = disk.changes + 1
    for _ in range(2):
        with pytest.raises(DiskFault):
            fill(log, 1)
        with pytest.raises(DiskFault):
            asyncio.run(log.flush())
    assert log.end_offset == 3
    assert contents(log) == view.seen == before


@pytest.mark.parametrize("offset", [0, 3, 9, 10, 19])
def test_truncating_takes_back_the_end_everywhere(offset: int) -> None:
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 10, leader_epoch=1)
    fill(log, 10, leader_epoch=2)
    log.truncate_to(offset)
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
    log.truncate_to(6)
    assert log.end_offset == 4
    assert asyncio.run(max_timestamp(log, 4, unpack)) == (3, 1003, 0)


def test_a_restarted_log_goes_on_elsewhere() -> None:
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 10)
    log.restart_at(500)
    assert (log.start_offset, log.end_offset, view.seen, log.size_bytes) == (500, 500, [], 0)
    fill(log, 2, leader_epoch=3)
    asyncio.run(log.flush())
    again, _ = open_log(disk, config=SMALL)
    assert (again.start_offset, again.end_offset) == (500, 502)
    assert base_offsets(again) == [500, 501]


def test_a_raised_start_survives_a_crash() -> None:
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 10, records=2)
    asyncio.run(log.raise_start_offset(5))
    asyncio.run(log.raise_start_offset(3))
    assert view.start_offset == log.start_offset == 5
    again, seen = open_log(disk, config=SMALL)
    assert again.start_offset == seen.start_offset == 5
    assert asyncio.run(offset_for_timestamp(again, 0, 20, unpack)) == (5, 1005, 0)


def test_a_start_that_is_not_durable_yet_promises_nothing_to_who_asks_for_a_lower_one() -> None:
    """A deletion up to 8 waits for the disk; one up to 5, asked meanwhile, was answered at once, and power failed."""

    may_write, asked = asyncio.Event(), asyncio.Event()
    may_write.set()

    class SlowDisk(MemoryDisk):
        async def write_atomic(self, path: str, data: Buffer) -> None:
            asked.set()
            await may_write.wait()
            await super().write_atomic(path, data)

    async def main() -> None:
        disk = SlowDisk()
        log, _ = open_log(disk, config=SMALL)
        fill(log, 10, records=2)
        await log.flush()
        may_write.clear()
        asked.clear()
        higher = asyncio.ensure_future(log.raise_start_offset(8))
        await asked.wait()
        assert log.start_offset == 8
        lower = asyncio.ensure_future(log.raise_start_offset(5))
        done, _ = await asyncio.wait([lower], timeout=0.05)
        assert not done
        may_write.set()
        await asyncio.gather(higher, lower)
        disk.cut_power(random.Random(1))
        again, _ = open_log(disk, config=SMALL)
        assert again.start_offset == 8

    asyncio.run(main())


def test_all_of_a_log_can_expire_and_its_offsets_are_not_given_again() -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=1000, retention_ms=1000)
    log, _ = open_log(disk, config=config)
    fill(log, 10)
    asyncio.run(log.flush())
    assert log.expired_segments(10_000_000, 10) == len(log.segments)
    assert asyncio.run(log.remove_oldest(lambda: log.expired_segments(10_000_000, 10))) > 1000
    assert (log.start_offset, log.end_offset, log.size_bytes) == (10, 10, 0)
    again, view = open_log(disk, config=config)
    assert (again.start_offset, again.end_offset) == (10, 10)
    assert len(view.seen) == 10, "the views know what the removed segments held"


@pytest.mark.parametrize("turns", range(12))
def test_what_is_appended_while_retention_waits_stays(turns: int) -> None:
    """Every segment has expired. The check waits for the work on the log that is under way, then for the disk;
    meanwhile a fresh record arrives.
    """

    async def main() -> None:
        log, _ = open_log(MemoryDisk(), config=LogConfig(segment_bytes=1000, retention_ms=1000))
        fill(log, 10)

        def expired() -> int:
            return log.expired_segments(10_000_000, log.end_offset)

        assert expired() == len(log.segments)
        async with log.alone():
            check = asyncio.ensure_future(log.remove_oldest(expired))
            await asyncio.sleep(0)
            if not turns:
                append(log, stamped([b"fresh"], base_offset=10, timestamp=10_000_000))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns:
            append(log, stamped([b"fresh"], base_offset=10, timestamp=10_000_000))
        await check
        assert base_offsets(log)[-1:] == [10]

    asyncio.run(main())


def test_a_log_that_is_cut_while_its_snapshots_are_renewed_has_a_new_one_and_none_older() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        log, view = open_log(disk, config=SMALL)
        fill(log, 20)
        await log.flush()
        renewing = asyncio.ensure_future(log.renew_snapshots(5))
        await asyncio.sleep(0)
        log.truncate_to(15)
        seen = list(view.seen)
        await renewing
        assert [name for name in disk.listdir(FOLDER) if name.endswith(".snapshot")] == [f"{15:020}.snapshot"]
        _, view = open_log(disk, config=SMALL)
        assert view.seen == seen

    asyncio.run(main())


def test_a_discarded_log_leaves_nothing_behind_whatever_was_under_way() -> None:
    """A topic is deleted while its batches are on their way to the platter, its records are being deleted, and so on.
    All that comes back finds neither a folder of its own nor that of a new log of the same name.
    """

    async def main() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk)
        fill(log, 3)

        async def work(offset: int) -> None:
            removal = log.remove_oldest(lambda: 1)
            await asyncio.gather(log.flush(), log.raise_start_offset(offset), log.renew_snapshots(5), removal)

        begun = asyncio.ensure_future(work(1))
        await asyncio.sleep(0)
        discarded = asyncio.ensure_future(log.discard())
        await asyncio.gather(begun, discarded, work(2))
        assert disk.listdir("") == []
        await work(3)
        assert disk.listdir("") == []
        fresh, _ = open_log(disk)
        assert (fresh.start_offset, fresh.end_offset) == (0, 0)

    asyncio.run(main())


@pytest.mark.parametrize("interval_bytes", [0, 300, 100_000])
def test_times_are_found_in_any_order_of_times(interval_bytes: int) -> None:
    log, _ = open_log(MemoryDisk(), config=LogConfig(segment_bytes=800, index_interval_bytes=interval_bytes))
    times = [10, 50, 30, 70, 20, 70, 60, 90, 15, 80] * 2
    for offset, timestamp in enumerate(times):
        append(log, stamped([b"x" * 50], base_offset=offset, timestamp=timestamp))
    for wanted in range(100):
        expected = next((offset for offset, timestamp in enumerate(times) if timestamp >= wanted), None)
        found = asyncio.run(offset_for_timestamp(log, wanted, 20, unpack))
        assert (found and found.offset) == expected
    assert asyncio.run(offset_for_timestamp(log, 90, 7, unpack)) is None
    assert asyncio.run(max_timestamp(log, 20, unpack)) == (7, 90, 0)
    assert asyncio.run(max_timestamp(log, 7, unpack)) == (3, 70, 0)
    assert asyncio.run(max_timestamp(log, 0, unpack)) is None


def test_an_idle_log_costs_little_memory() -> None:
    """What an open partition that nobody uses holds: a handful of small objects."""
    log, _ = open_log(MemoryDisk())
    fill(log, 1)
    state = asyncio.run(log.close())
    assert state is not None
    idle = PartitionLog.open(MemoryDisk(), FOLDER, LogConfig(), [], known=state, now_ms=0)
    row, snapshots = idle._segments, idle.snapshots
    parts = [idle, row, row.all, row._bases, idle.epochs, *row.all, snapshots, snapshots.stored, snapshots.pending]
    parts += [idle._durability, idle._durability.unsynced]
    assert sum(map(sys.getsizeof, parts)) < 2000


def test_a_stored_file_that_is_not_what_was_closed_is_a_fault() -> None:
    disk = MemoryDisk()
    log, _ = open_log(disk)
    fill(log, 3)
    state = asyncio.run(log.close())
    disk.open(log.segments[0].path()).append([b"intruder"])
    again, _ = open_log(disk, known=state)
    with pytest.raises(DiskFault):
        again.read(0, max_bytes=100, limit_offset=3, at_least_one=True)


def test_other_settings_take_effect_at_once() -> None:
    log, _ = open_log(MemoryDisk())
    fill(log, 5)
    log.set_config(SMALL)
    fill(log, 10)
    assert len(log.segments) > 1
    assert read_header(next(log.scan(14))[1]).base_offset == 14


def test_what_lies_below_a_raised_start_is_durable_before_it_is_raised() -> None:
    """A recovery takes everything below the start for durable: torn bytes there would pass for rot."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, 20)
    assert log.flushed_offset == 0
    asyncio.run(log.raise_start_offset(15))
    assert log.flushed_offset >= 15
    disk.cut_power(random.Random(1))
    again, _ = open_log(disk, config=SMALL, recovery_point=log.flushed_offset)
    assert again.start_offset == 15
    assert not again.damage


@pytest.mark.parametrize("seed", range(10))
def test_whose_a_folder_is_stands_in_it_as_soon_as_anything_durable_does(seed: int) -> None:
    disk = MemoryDisk()
    log = PartitionLog.open(disk, FOLDER, SMALL, (), known=None, now_ms=0, topic_id=TopicId(b"i" * 16))
    fill(log, 3)
    asyncio.run(log.flush())
    disk.cut_power(random.Random(seed))
    assert read_topic_id(disk, FOLDER) == b"i" * 16


@pytest.mark.parametrize("seed", range(10))
def test_a_discarded_folder_does_not_come_back_after_a_loss_of_power(seed: int) -> None:
    disk = MemoryDisk()
    log, _ = open_log(disk)
    fill(log, 3)
    asyncio.run(log.flush())
    asyncio.run(log.discard())
    disk.cut_power(random.Random(seed))
    assert not disk.exists(FOLDER)


def test_gaps_that_were_copied_outlive_a_power_cut_once_they_are_durable() -> None:
    """A follower's leader compacts: what it copies may begin anywhere above where it ended."""
    disk = MemoryDisk()

    async def write() -> None:
        log, _ = open_log(disk)
        fill(log, 2)
        for base_offset in (7, 20):
            batch = stamped([b"x"], base_offset=base_offset)
            log.append_after_gap(batch, read_header(batch), now_ms=0)
        await log.flush()
        assert log.flushed_offset == 21

    asyncio.run(write())
    disk.cut_power(random.Random(3))
    log, view = open_log(disk)
    assert base_offsets(log) == [0, 1, 7, 20]
    assert [base for base, _ in view.seen] == [0, 1, 7, 20]
    assert not log.damage


def test_a_log_that_begins_with_a_gap_is_read_from_its_start() -> None:
    log, _ = open_log(MemoryDisk())
    batch = stamped([b"x"], base_offset=5)
    log.append_after_gap(batch, read_header(batch), now_ms=0)
    found = log.read(0, max_bytes=1000, limit_offset=log.end_offset, at_least_one=True)
    assert found is not None
    assert found.read() == batch
    assert (log.start_offset, log.end_offset) == (0, 6)


def test_what_is_cut_though_it_was_durable_with_gaps_is_not_taken_for_damage() -> None:
    disk = MemoryDisk()

    async def write() -> None:
        log, _ = open_log(disk)
        fill(log, 2)
        batch = stamped([b"x"], base_offset=7)
        log.append_after_gap(batch, read_header(batch), now_ms=0)
        await log.flush()
        await log.distrust(2)
        log.truncate_to(2)
        fill(log, 1, leader_epoch=1)
        await log.flush()

    asyncio.run(write())
    disk.cut_power(random.Random(3))
    log, _ = open_log(disk)
    assert base_offsets(log) == [0, 1, 2]
    assert not log.damage
