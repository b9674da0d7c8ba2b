"""Removing what a log begins with."""

import asyncio
import random
from itertools import pairwise

import pytest

from log.batch import Buffer
from log.config import LogConfig
from log.removal import REMOVED_AT_ONCE, expired_segments, raise_start_offset, remove_oldest
from log.retention import SegmentAge
from log.snapshots import Snapshots
from log.time_search import offset_for_timestamp
from tests.log.building import append, base_offsets, cut_log, fill, open_batch, open_log, stamped
from tests.log.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def test_a_raised_start_survives_a_crash() -> None:
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 10, records=2)
    asyncio.run(raise_start_offset(log, 5))
    asyncio.run(raise_start_offset(log, 3))
    assert view.start_offset == log.start_offset == 5
    again, seen = open_log(disk, config=SMALL)
    assert again.start_offset == seen.start_offset == 5
    assert asyncio.run(offset_for_timestamp(again, 0, 20, open_batch)) == (5, 1005, 0)


def test_a_caller_that_waits_to_raise_the_start_can_be_cancelled() -> None:
    """Behind a flush of very many segments on a slow disk it waited for minutes. So long a broker did not stop."""

    async def main() -> None:
        log, _ = open_log(MemoryDisk(), config=SMALL)
        fill(log, 10, records=2)
        async with log.alone():
            raising = asyncio.ensure_future(raise_start_offset(log, 5))
            for _ in range(20):  # it begins to wait
                await asyncio.sleep(0)
            raising.cancel()
            await asyncio.wait([raising], timeout=5)
            assert raising.cancelled()
        assert log.start_offset == 0

    asyncio.run(main())


def test_a_start_that_is_not_durable_yet_promises_nothing_to_a_caller_that_asks_for_a_lower_one() -> None:
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
        higher = asyncio.ensure_future(raise_start_offset(log, 8))
        await asked.wait()
        assert log.start_offset == 8
        lower = asyncio.ensure_future(raise_start_offset(log, 5))
        done, _ = await asyncio.wait([lower], timeout=0.05)
        assert not done
        may_write.set()
        await asyncio.gather(higher, lower)
        disk.cut_power(random.Random(1))
        again, _ = open_log(disk, config=SMALL)
        assert again.start_offset == 8

    asyncio.run(main())


def test_what_lies_below_a_raised_start_is_durable_before_it_is_raised() -> None:
    """A recovery takes everything below the start for durable: torn bytes there would pass for rot."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, 20)
    assert log.flushed_offset == 0
    asyncio.run(raise_start_offset(log, 15))
    assert log.flushed_offset >= 15
    disk.cut_power(random.Random(1))
    again, _ = open_log(disk, config=SMALL, recovery_point=log.flushed_offset)
    assert again.start_offset == 15
    assert not again.damage


def test_all_of_a_log_can_expire_and_its_offsets_are_not_given_again() -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=1000, retention_ms=1000)
    log, _ = open_log(disk, config=config)
    fill(log, 10)
    asyncio.run(log.flush())
    assert expired_segments(log, 10_000_000, 10) == len(log.segments)
    assert asyncio.run(remove_oldest(log, lambda: expired_segments(log, 10_000_000, 10))) > 1000
    assert (log.start_offset, log.end_offset, log.size_bytes) == (10, 10, 0)
    again, view = open_log(disk, config=config)
    assert (again.start_offset, again.end_offset) == (10, 10)
    assert len(view.seen) == 10, "the views know what the removed segments held"


def test_however_many_segments_expire_only_some_are_removed_in_one_turn() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk, config=LogConfig(segment_bytes=1000, retention_ms=1000))
        fill(log, 500)
        await log.flush()
        left = [len(log.segments)]
        assert left[0] > 5 * REMOVED_AT_ONCE
        removing = asyncio.ensure_future(remove_oldest(log, lambda: expired_segments(log, 10_000_000, 500)))
        while not removing.done():
            await asyncio.sleep(0)
            left.append(len(log.segments))
        assert left[-1] == 1
        assert max(before - after for before, after in pairwise(left)) == REMOVED_AT_ONCE

    asyncio.run(main())


def test_of_very_many_segments_only_some_are_looked_at_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("log.removal.EXPIRED_AT_ONCE", 10)
    looked: list[SegmentAge] = []

    def look(*facts: int) -> SegmentAge:
        looked.append(SegmentAge(*facts))
        return looked[-1]

    monkeypatch.setattr("log.removal.SegmentAge", look)
    by_age, _ = open_log(MemoryDisk(), config=LogConfig(segment_bytes=1000, retention_ms=1000))
    by_size, _ = open_log(MemoryDisk(), config=LogConfig(segment_bytes=1000, retention_ms=-1, retention_bytes=1))
    for each in (by_age, by_size):
        fill(each, 200)
        assert expired_segments(each, 10_000_000, 200) == 10
    assert len(looked) == 20


@pytest.mark.parametrize("turns", range(12))
def test_what_is_appended_while_retention_waits_stays(turns: int) -> None:
    """Every segment has expired. The check waits for the work on the log that is under way, then for the disk;
    meanwhile a fresh record arrives.
    """

    async def main() -> None:
        log, _ = open_log(MemoryDisk(), config=LogConfig(segment_bytes=1000, retention_ms=1000))
        fill(log, 10)

        def expired() -> int:
            return expired_segments(log, 10_000_000, log.end_offset)

        assert expired() == len(log.segments)
        async with log.alone():
            check = asyncio.ensure_future(remove_oldest(log, expired))
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


def test_what_expires_during_the_wait_for_what_is_known_leaves_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a segment filled in the time that one such wait took, they went on without end, and flushes waited."""
    log, _ = open_log(MemoryDisk(), config=SMALL)
    fill(log, 60)
    asyncio.run(log.flush())
    expired, kept = 2, log.snapshots.is_stored

    def another_expires(offset: int) -> bool:
        nonlocal expired
        expired += 1
        return kept(offset)

    monkeypatch.setattr(Snapshots, "is_stored", lambda self, offset: another_expires(offset))
    leaves = log.segments[2].base_offset
    asyncio.run(remove_oldest(log, lambda: expired))
    assert (log.start_offset, expired) == (leaves, 3)


@pytest.mark.parametrize("later", [1, 3, 5])
def test_what_is_known_is_stored_where_the_log_begins_although_more_or_less_expires_during_the_wait(later: int) -> None:
    """It was stored for those that were to go before the wait. A cut behind the others forgot what had left."""
    disk = MemoryDisk()
    log, view = open_log(disk, config=SMALL)
    fill(log, 60)
    asyncio.run(log.flush())
    del log.snapshots.stored[:-1]  # as in a log that came from another folder
    answers = iter([3, 3])
    asyncio.run(remove_oldest(log, lambda: next(answers, later)))
    before = view.seen
    cut_log(log, log.start_offset + 2)
    assert view.seen == before[: log.end_offset]
    assert 0 < log.start_offset < log.end_offset
