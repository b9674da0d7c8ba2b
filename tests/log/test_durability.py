"""What a flush does, and what counts as durable after it."""

import asyncio
import errno
import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from log.batch import Buffer, read_header
from log.config import LogConfig
from log.disk import DiskFault, File
from log.identity import read_topic_id
from log.ids import TopicId
from log.partition_log import PartitionLog
from log.removal import remove_oldest
from log.snapshots import snapshot_name
from tests.log.building import FOLDER, base_offsets, contents, fill, open_log, stamped
from tests.log.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


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


@pytest.mark.parametrize("what", ["flush", "remove"])
def test_what_waits_for_a_flush_goes_on_though_segments_are_sealed_without_a_pause(what: str) -> None:
    """One client wrote a segment with each batch, acknowledged by the leader alone: the flush that another client's
    batch waited for never ended, nor did retention or a swap.
    """
    may_end = asyncio.Event()

    class BusyDisk(MemoryDisk):
        """For each call that waits for the disk, a segment is written and sealed."""

        async def sync_dir(self, path: str) -> None:
            await asyncio.sleep(0)
            if not may_end.is_set():
                fill(log, 8)
            await super().sync_dir(path)

    async def run() -> None:
        fill(log, 20)
        wanted, first = log.end_offset, log.segments[0]
        async with asyncio.timeout(5):
            if what == "flush":
                assert await log.flush() >= wanted
                assert log.durability.flush_due
            else:
                assert await remove_oldest(log, lambda: len(log.segments)) >= first.size_bytes
                assert first.gone
                assert log.start_offset <= wanted
                assert min(log.snapshots.stored) <= log.start_offset < min(log.snapshots.pending)
        assert log.flushed_offset < log.end_offset
        may_end.set()
        there.extend(contents(log))
        await log.close()

    disk, there = BusyDisk(), list[tuple[int, int]]()
    log, view = open_log(disk, config=SMALL)
    asyncio.run(run())
    disk.cut_power(random.Random(1))
    again, seen = open_log(disk, config=SMALL, recovery_point=log.flushed_offset)
    assert contents(again) == there
    assert seen.seen == view.seen
    assert not again.damage


def test_of_many_sealed_segments_a_flush_waits_for_few_of_them_alone() -> None:
    """Each took about seven waits for the disk, one after the other: 10 ms. A client that sealed ninety a second made
    each flush longer than the one before.
    """

    class CountingDisk(MemoryDisk):
        waits = 0

        async def sync_files(self, files: Sequence[File]) -> None:
            self.waits += 1
            await super().sync_files(files)

        async def sync_dir(self, path: str) -> None:
            self.waits += 1
            await super().sync_dir(path)

        async def write_atomic(self, path: str, data: Buffer) -> None:
            self.waits += 1
            await super().write_atomic(path, data)

    disk = CountingDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, 600)
    sealed = len(log.durability.unsynced)
    asyncio.run(log.flush())
    assert len(log.snapshots.stored) == sealed > 60
    assert disk.waits < sealed // 3


@pytest.mark.parametrize("seed", range(40))
def test_of_several_snapshots_that_a_power_cut_tears_nothing_is_believed(seed: int) -> None:
    chance = random.Random(seed)
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 8)
    asyncio.run(log.flush())
    fill(log, 60)
    disk.fail_at = disk.changes + chance.randrange(90)
    with suppress(DiskFault):
        asyncio.run(log.flush())
        asyncio.run(remove_oldest(log, lambda: 9))
    disk.fail_at = disk.fault = None
    disk.cut_power(chance)
    again, seen = open_log(disk, config=SMALL, recovery_point=log.flushed_offset)
    assert not again.damage
    assert seen.seen == view.seen[: len(seen.seen)]
    assert len(seen.seen) == again.end_offset >= log.flushed_offset
    asyncio.run(remove_oldest(again, lambda: len(again.segments) - 1))
    kept, knows = open_log(disk, config=SMALL)
    assert kept.start_offset == again.start_offset
    assert knows.seen == seen.seen, "all that the views know from what was removed is stored"


def test_snapshots_that_found_no_room_are_stored_by_the_next_flush() -> None:
    class FullDisk(MemoryDisk):
        def change(self, kind: str, path: str) -> None:
            if kind == "append" and path == no_room_for:
                raise DiskFault(errno.ENOSPC, "full", path)
            super().change(kind, path)

    disk, no_room_for = FullDisk(), ""
    log, _ = open_log(disk, config=SMALL)
    fill(log, 60)
    no_room_for = f"{FOLDER}/{snapshot_name(log.segments[4].base_offset)}"
    with pytest.raises(DiskFault):
        asyncio.run(log.flush())
    assert not [path for path in disk.files if path.endswith(".snapshot")]
    assert not log.snapshots.stored
    no_room_for = ""
    asyncio.run(log.flush())
    assert [segment.base_offset for segment in log.segments[1:]] == log.snapshots.stored


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
    assert log.durability.flush_due
    first = len(disk.ops)
    asyncio.run(log.flush())
    synced = [op for op in disk.ops[first:] if op.startswith(("sync_dir", "fsync"))]
    zero, active = (f"{FOLDER}/{segment.base_offset:020}" for segment in (log.segments[0], log.segments[-1]))
    assert synced[:2] == [f"sync_dir {FOLDER}", "sync_dir "]
    assert synced[2:5] == [f"fsync {zero}.log", f"fsync {zero}.index", f"fsync {zero}.timeindex"]
    assert f"fsync {active}.log" in synced
    assert not log.durability.flush_due


@pytest.mark.parametrize("seed", range(10))
def test_whose_a_folder_is_stands_in_it_as_soon_as_anything_durable_does(seed: int) -> None:
    disk = MemoryDisk()
    log = PartitionLog.open(disk, FOLDER, SMALL, (), known=None, now_ms=0, topic_id=TopicId(b"i" * 16))
    fill(log, 3)
    asyncio.run(log.flush())
    disk.cut_power(random.Random(seed))
    assert read_topic_id(disk, FOLDER) == b"i" * 16


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
