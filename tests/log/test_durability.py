"""What a flush does, and what counts as durable after it."""

import asyncio
import random

import pytest

from log.batch import read_header
from log.config import LogConfig
from log.identity import read_topic_id
from log.ids import TopicId
from log.partition_log import PartitionLog
from tests.log.building import FOLDER, base_offsets, fill, open_log, stamped
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
