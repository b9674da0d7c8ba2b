"""A copy of a compacted log has gaps. What was flushed of it survives: each flush notes below which offset there are
gaps, also after a cut and while more is copied.
"""

import asyncio
import random
from typing import Any

import pytest

from log import durability
from log.batch import build_batch, read_header, restamp
from log.config import LogConfig
from log.cutting import distrust, durable_after_cut, truncate_to
from log.partition_log import PartitionLog
from tests.log.memory_disk import MemoryDisk


def opened(disk: MemoryDisk, recovery_point: int = 0) -> PartitionLog:
    return PartitionLog.open(disk, "t-0", LogConfig(), (), known=None, now_ms=0, recovery_point=recovery_point)


def put(log: PartitionLog, *offsets: int, epoch: int = 0) -> None:
    for offset in offsets:
        batch = memoryview(bytearray(build_batch([(b"k", b"v", (), 1)])))
        restamp(batch, base_offset=offset, leader_epoch=epoch)
        log.append_after_gap(batch, read_header(batch), now_ms=1)


def test_what_is_flushed_after_a_cut_survives() -> None:
    disk = MemoryDisk()
    log = opened(disk)

    async def scene() -> int:
        put(log, 0, 5, 6, 7)
        await log.flush()
        trusted = durable_after_cut(log, 7)
        await distrust(log, trusted)
        truncate_to(log, 7)
        put(log, 7, 8, epoch=1)
        await log.flush()
        return trusted

    trusted = asyncio.run(scene())
    assert log.flushed_offset == 9
    disk.cut_power(random.Random(1))
    assert opened(disk, trusted).end_offset == 9


def test_a_gap_that_comes_during_a_flush_is_noted_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    copy = opened(disk)
    put(copy, 0, 5)
    write_offset = durability.write_offset  # type: ignore[attr-defined]
    more = [6, 20]

    async def slow(*where: Any) -> None:
        put(copy, *more)
        more.clear()
        await write_offset(*where)

    monkeypatch.setattr(durability, "write_offset", slow)
    asyncio.run(copy.flush())
    asyncio.run(copy.flush())
    assert copy.flushed_offset == copy.end_offset == 21
    disk.cut_power(random.Random(1))
    assert opened(disk).end_offset == 21
