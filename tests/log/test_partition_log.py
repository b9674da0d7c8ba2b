"""The log of a partition, case by case. What must hold whatever happens is in tests/properties/test_log_machine.py."""

import asyncio
import random
import sys
from pathlib import Path

import pytest

from log.batch import read_header, split
from log.config import LogConfig
from log.disk import DiskFault, RealDisk
from log.partition_log import OffsetOutOfRange, PartitionLog
from log.removal import raise_start_offset, remove_oldest
from log.time_search import max_timestamp
from tests.log.building import (
    FOLDER,
    append,
    base_offsets,
    contents,
    fill,
    open_batch,
    open_log,
    restart_log,
    stamped,
)
from tests.log.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def test_a_new_log_has_no_folder_until_it_is_written_to() -> None:
    disk = MemoryDisk()
    log, view = open_log(disk)
    assert (log.start_offset, log.flushed_offset, log.end_offset, log.size_bytes) == (0, 0, 0, 0)
    assert log.read(0, max_bytes=100, limit_offset=0, at_least_one=True) is None
    assert list(log.scan(0)) == []
    assert asyncio.run(max_timestamp(log, 0, open_batch)) is None
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
    restart_log(log, 5)
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
    asyncio.run(raise_start_offset(log, 3))
    with pytest.raises(OffsetOutOfRange):
        log.read(2, max_bytes=100, limit_offset=10, at_least_one=True)


def test_a_slice_read_earlier_survives_the_removal_of_its_segment(tmp_path: Path) -> None:
    log, _ = open_log(RealDisk(str(tmp_path)), config=SMALL)
    fill(log, 30)
    found = log.read(0, max_bytes=500, limit_offset=30, at_least_one=True)
    assert found is not None
    found.pin()
    before = found.read()
    asyncio.run(remove_oldest(log, lambda: 2))
    assert found.read() == before
    found.unpin()
    with pytest.raises(DiskFault):
        found.read()


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


def test_a_discarded_log_leaves_nothing_behind_whatever_was_under_way() -> None:
    """A topic is deleted while its batches are on their way to the platter, its records are being deleted, and so on.
    All that comes back finds neither a folder of its own nor that of a new log of the same name.
    """

    async def main() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk)
        fill(log, 3)

        async def work(offset: int) -> None:
            removal = remove_oldest(log, lambda: 1)
            await asyncio.gather(log.flush(), raise_start_offset(log, offset), removal)

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


def test_an_idle_log_costs_little_memory() -> None:
    """What an open partition that nobody uses holds: a handful of small objects."""
    log, _ = open_log(MemoryDisk())
    fill(log, 1)
    state = asyncio.run(log.close())
    assert state is not None
    idle = PartitionLog.open(MemoryDisk(), FOLDER, LogConfig(), [], known=state, now_ms=0)
    row, snapshots = idle.segments, idle.snapshots
    parts = [idle, row, row._all, row._bases, idle.epochs, *row, snapshots, snapshots.stored, snapshots.pending]
    parts += [idle.durability, idle.durability.unsynced]
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


@pytest.mark.parametrize("seed", range(10))
def test_a_discarded_folder_does_not_come_back_after_a_loss_of_power(seed: int) -> None:
    disk = MemoryDisk()
    log, _ = open_log(disk)
    fill(log, 3)
    asyncio.run(log.flush())
    asyncio.run(log.discard())
    disk.cut_power(random.Random(seed))
    assert not disk.exists(FOLDER)


def test_a_log_that_begins_with_a_gap_is_read_from_its_start() -> None:
    log, _ = open_log(MemoryDisk())
    batch = stamped([b"x"], base_offset=5)
    log.append_after_gap(batch, read_header(batch), now_ms=0)
    found = log.read(0, max_bytes=1000, limit_offset=log.end_offset, at_least_one=True)
    assert found is not None
    assert found.read() == batch
    assert (log.start_offset, log.end_offset) == (0, 6)
