"""The end of a log: a stop that syncs the whole disk once instead of every log, and one that cuts a flush short."""

import asyncio
import random
from pathlib import Path

import pytest

from log.batch import build_batch, read_header
from log.config import LogConfig
from log.disk import RealDisk
from log.partition_log import CleanState, PartitionLog
from tests.log.building import FOLDER, append, contents, fill, open_log
from tests.log.memory_disk import MemoryDisk


def filled(disk: RealDisk, config: LogConfig, batches: int) -> PartitionLog:
    log = PartitionLog.open(disk, "t-0", config, (), known=None, now_ms=0)
    for offset in range(batches):
        batch = build_batch([(b"k", b"v" * 100, (), 0)], base_offset=offset, leader_epoch=0)
        log.append(batch, read_header(batch), now_ms=0)
    return log


def test_a_log_whose_disk_was_synced_needs_no_flush_of_its_own(tmp_path: Path) -> None:
    async def stop() -> None:
        disk = RealDisk(str(tmp_path))
        log = filled(disk, LogConfig(), 3)
        before = log.durability.unsynced_files, log.flushed_offset
        await disk.sync_all()
        log.durability.note_disk_synced()
        assert (before, log.durability.unsynced_files, log.flushed_offset) == ((1, 0), 0, 3)
        state = await log.close()
        disk.close()
        again = RealDisk(str(tmp_path))
        reopened = PartitionLog.open(again, "t-0", LogConfig(), (), known=state, now_ms=0)
        assert [header.base_offset for header, _ in reopened.scan(0)] == [0, 1, 2]
        again.close()

    asyncio.run(stop())


def test_what_a_log_waits_for_once_the_disk_was_synced_does_not_grow_with_its_segments() -> None:
    async def stop(batches: int) -> int:
        disk = MemoryDisk()
        log, view = open_log(disk, config=LogConfig(segment_bytes=300))
        fill(log, batches)
        seen = list(view.seen)
        assert log.durability.unsynced_files > batches
        log.durability.write_hints()
        await disk.sync_all()
        log.durability.note_disk_synced()
        before = disk.changes
        state = await log.close()
        assert state is not None
        waits = disk.changes - before
        for known in (state, None):
            disk.cut_power(random.Random(1))
            again, view = open_log(disk, config=LogConfig(segment_bytes=300), known=known, recovery_point=batches)
            assert not again.damage
            assert contents(again) == seen == view.seen
            replayed_from = None if again.recovery is None else again.recovery.replayed_from_offset
            assert replayed_from == (None if known is not None else again.segments[-1].base_offset)
        return waits

    assert asyncio.run(stop(100)) == asyncio.run(stop(10))


@pytest.mark.parametrize("is_checkpoint_lost", [False, True])
def test_a_kill_after_a_clean_stop_takes_no_epoch_away(is_checkpoint_lost: bool) -> None:
    """The recovery point is beyond all sealed segments, so nothing but the checkpoint, or the batches themselves, tells
    where the epochs in them began.
    """
    disk, config = MemoryDisk(), LogConfig(segment_bytes=300)

    async def stop() -> CleanState | None:
        log = PartitionLog.open(disk, FOLDER, config, (), known=None, now_ms=0)
        for offset in range(24):
            if offset == 4:
                await log.flush()  # the checkpoint knows the first epoch
            append(log, build_batch([(b"k", b"v" * 60, (), 0)], leader_epoch=offset // 8, base_offset=offset))
        if not is_checkpoint_lost:
            log.durability.write_hints()
        await disk.sync_all()
        log.durability.note_disk_synced()
        return await log.close()

    known = asyncio.run(stop())
    assert known is not None
    assert known.epochs == ((0, 0), (1, 8), (2, 16))
    PartitionLog.open(disk, FOLDER, config, (), known=known, now_ms=0)
    killed = PartitionLog.open(disk, FOLDER, config, (), known=None, recovery_point=known.end_offset, now_ms=0)
    assert killed.epochs.entries() == list(known.epochs)


def test_the_epochs_of_a_log_that_was_never_written_need_no_folder() -> None:
    disk = MemoryDisk()
    log = PartitionLog.open(disk, FOLDER, LogConfig(), (), known=None, now_ms=0)
    log.epochs.assign(3, 0)
    log.durability.write_hints()
    assert not disk.exists(FOLDER)


@pytest.mark.parametrize("steps", range(25))
def test_what_a_cancelled_flush_had_only_begun_is_made_durable_by_the_close(steps: int) -> None:
    """A broker that stops cancels its flusher. The next life trusts what the close said, after a power cut too."""
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=300)

    async def stop() -> int:
        log = PartitionLog.open(disk, FOLDER, config, (), known=None, now_ms=0)
        fill(log, 8)
        flush = asyncio.create_task(log.flush())
        for _ in range(steps):
            await asyncio.sleep(0)
        flush.cancel()
        await asyncio.wait([flush])
        await log.close()
        return log.end_offset

    end_offset = asyncio.run(stop())
    disk.cut_power(random.Random(steps))
    again = PartitionLog.open(disk, FOLDER, config, (), known=None, now_ms=0, recovery_point=end_offset)
    assert again.damage == []
    assert [header.base_offset for header, _ in again.scan(0)] == list(range(8))


def test_a_log_that_is_written_to_while_it_is_closed_is_not_said_to_be_durable() -> None:
    """The next start would take the record for durable, and a power cut could still take it."""

    async def stop() -> None:
        log, _ = open_log(MemoryDisk())
        fill(log, 3)
        closing = asyncio.ensure_future(log.close())
        while log.flushed_offset < 3 and not closing.done():
            fill(log, 1)
            await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="takes everything below the end for durable"):
            await closing

    asyncio.run(stop())


@pytest.mark.parametrize("ends", ["a stop", "a loss of power"])
def test_a_log_that_a_read_has_found_damaged_is_damaged_after_a_start(ends: str) -> None:
    """No manifest may name it, and a power cut takes nothing of that back. A recovery would take the damaged batch for
    one that a crash has torn, and cut it off.
    """

    async def run() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk)
        fill(log, 3)
        await log.flush()
        fill(log, 1)
        await log.note_damage()
        if ends == "a stop":
            assert await log.close() is None
        else:
            disk.cut_power(random.Random(1))
        path = f"{FOLDER}/{0:020}.log"
        disk.files[path].data[-1] ^= 1
        again, _ = open_log(disk, recovery_point=3)
        *_, first_offset, end_offset, reason = again.damage[-1]
        assert (first_offset, end_offset, again.end_offset) == (3, 4, 4)
        assert reason == "wrong checksum"
        assert await again.close() is None
        await again.note_damage()
        await again.discard()
        await again.note_damage()
        assert not disk.exists(FOLDER)

    asyncio.run(run())
