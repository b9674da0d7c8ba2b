"""A stop that syncs the whole disk once instead of every log: what it lets a log believe."""

import asyncio
from pathlib import Path

from log.batch import build_batch, read_header
from log.config import LogConfig
from log.disk import RealDisk
from log.partition_log import PartitionLog


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
        before = log.is_unflushed, log.flushed_offset
        await disk.sync_all()
        log.note_disk_synced()
        assert (before, log.is_unflushed, log.flushed_offset) == ((True, 0), False, 3)
        state = await log.close()
        disk.close()
        again = RealDisk(str(tmp_path))
        reopened = PartitionLog.open(again, "t-0", LogConfig(), (), known=state, now_ms=0)
        assert [header.base_offset for header, _ in reopened.scan(0)] == [0, 1, 2]
        again.close()

    asyncio.run(stop())


def test_a_log_with_a_rolled_segment_still_flushes_itself(tmp_path: Path) -> None:
    async def stop() -> None:
        disk = RealDisk(str(tmp_path))
        log = filled(disk, LogConfig(segment_bytes=200), 3)
        await disk.sync_all()
        log.note_disk_synced()
        before = log.is_unflushed  # its sealed segments' indexes are not stored yet
        await log.flush()
        assert (before, log.is_unflushed) == (True, False)
        disk.close()

    asyncio.run(stop())
