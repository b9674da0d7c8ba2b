"""Searches for records by their times."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from log import time_search
from log.batch import build_batch, set_max_timestamp
from log.config import LogConfig
from log.partition_log import PartitionLog
from log.removal import raise_start_offset, remove_oldest
from log.segment import TIME_SUFFIX
from log.time_search import HEADERS_AT_ONCE, RECORDS_AT_ONCE, TimestampOffset, max_timestamp, offset_for_timestamp
from tests.log.building import append, cut_log, open_batch, open_log, restart_log, stamped
from tests.log.memory_disk import MemoryDisk, MemoryFile
from tests.turns import with_turns


@pytest.mark.parametrize("interval_bytes", [0, 300, 100_000])
def test_times_are_found_in_any_order_of_times(interval_bytes: int) -> None:
    log, _ = open_log(MemoryDisk(), config=LogConfig(segment_bytes=800, index_interval_bytes=interval_bytes))
    times = [10, 50, 30, 70, 20, 70, 60, 90, 15, 80] * 2
    for offset, timestamp in enumerate(times):
        append(log, stamped([b"x" * 50], base_offset=offset, timestamp=timestamp))
    for wanted in range(100):
        expected = next((offset for offset, timestamp in enumerate(times) if timestamp >= wanted), None)
        found = asyncio.run(offset_for_timestamp(log, wanted, 20, open_batch))
        assert (found and found.offset) == expected
    assert asyncio.run(offset_for_timestamp(log, 90, 7, open_batch)) is None
    assert asyncio.run(max_timestamp(log, 20, open_batch)) == (7, 90, 0)
    assert asyncio.run(max_timestamp(log, 7, open_batch)) == (3, 70, 0)
    assert asyncio.run(max_timestamp(log, 0, open_batch)) is None


async def offset_with_turns(search: Coroutine[Any, Any, TimestampOffset | None]) -> tuple[int | None, int]:
    """The offset that a search finds, and how many turns others had meanwhile."""
    found, turns = await with_turns(search)
    return found and found.offset, turns


@pytest.mark.parametrize("lookup", ["latest", "by time"])
def test_a_search_by_time_in_a_batch_of_very_many_records_lets_others_have_their_turns(lookup: str) -> None:
    count = 20_000

    async def main() -> None:
        log, _ = open_log(MemoryDisk())
        append(log, build_batch([(None, b"", (), index) for index in range(count)], leader_epoch=0))
        if lookup == "latest":
            found, turns = await offset_with_turns(max_timestamp(log, count, open_batch))
        else:
            found, turns = await offset_with_turns(offset_for_timestamp(log, count - 1, count, open_batch))
        assert found == count - 1
        assert turns >= count // RECORDS_AT_ONCE - 1

    asyncio.run(main())


def lying(base_offset: int) -> bytearray:
    """A batch whose header names a time that its record doesn't have."""
    batch = stamped([b"x"], base_offset=base_offset, timestamp=1000)
    set_max_timestamp(batch, 2000)
    return batch


@pytest.mark.parametrize("segment_bytes", [800, 1 << 30])
def test_a_search_for_a_time_that_only_headers_name_lets_others_have_their_turns(segment_bytes: int) -> None:
    count = 100

    async def main() -> None:
        log, _ = open_log(MemoryDisk(), config=LogConfig(segment_bytes=segment_bytes))
        for offset in range(count):
            append(log, lying(offset))
        assert await offset_with_turns(offset_for_timestamp(log, 1500, count, open_batch)) == (None, 2 * count)

    asyncio.run(main())


@pytest.mark.parametrize("lookup", ["latest", "by time"])
def test_a_search_among_very_many_batches_lets_others_have_their_turns(lookup: str) -> None:
    """The index names a batch that was deleted, so all headers must be looked at."""
    count = 10 * HEADERS_AT_ONCE

    async def main() -> None:
        log, _ = open_log(MemoryDisk())
        append(log, stamped([b"of a fast clock"], base_offset=0, timestamp=2000))
        for offset in range(1, count):
            append(log, stamped([b"x"], base_offset=offset, timestamp=1000))
        await raise_start_offset(log, 1)
        if lookup == "latest":
            found, turns = await offset_with_turns(max_timestamp(log, count, open_batch))
            assert found == 1
        else:
            found, turns = await offset_with_turns(offset_for_timestamp(log, 1500, count, open_batch))
            assert found is None
        assert turns >= 9

    asyncio.run(main())


def test_the_latest_time_is_found_without_opening_all_segments() -> None:
    disk = MemoryDisk()
    log, _ = open_log(disk, config=LogConfig(segment_bytes=70))
    for offset in range(200):
        append(log, stamped([b"x"], base_offset=offset, timestamp=1000 + offset // 2))
    assert len(log.segments) == 200
    for segment in log.segments:
        segment.close()
    opened = set()
    disk_open = disk.open

    def note(path: str, **how: bool) -> MemoryFile:
        opened.add(path.partition(".")[0])
        return disk_open(path, **how)

    disk.open = note  # type: ignore[method-assign]
    assert asyncio.run(max_timestamp(log, 200, open_batch)) == (198, 1099, 0), "the first of two"
    assert len(opened) == 2, "that one, and the one in which the log starts"


def cut_and_written_anew(log: PartitionLog) -> None:
    cut_log(log, 4)
    for offset in range(4, 20):
        append(log, stamped([b"another size"], base_offset=offset, timestamp=1500 if offset == 17 else 1000))


def restarted(log: PartitionLog) -> None:
    restart_log(log, 17)
    append(log, stamped([b"x"], base_offset=17, timestamp=1500))


async def removed(log: PartitionLog) -> None:
    await remove_oldest(log, lambda: len(log.segments) - 2)


@pytest.mark.parametrize("segment_bytes", [800, 1 << 30])
@pytest.mark.parametrize("lookup", ["latest", "by time"])
@pytest.mark.parametrize("after", range(1, 8))
@pytest.mark.parametrize("change", [cut_and_written_anew, restarted, removed, PartitionLog.discard])
def test_a_search_goes_on_in_the_log_as_it_is_after_each_turn_of_others(
    change: Callable[[PartitionLog], Awaitable[None] | None],
    after: int,
    lookup: str,
    segment_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time_search, "HEADERS_AT_ONCE", 3)

    async def main() -> None:
        log, _ = open_log(MemoryDisk(), config=LogConfig(segment_bytes=segment_bytes))
        append(log, stamped([b"of a fast clock"], base_offset=0, timestamp=2000))
        for offset in range(1, 17):
            lies = lookup == "by time" and offset % 2
            append(log, lying(offset) if lies else stamped([b"x"], base_offset=offset, timestamp=1000))
        append(log, stamped([b"x"], base_offset=17, timestamp=1500))
        await raise_start_offset(log, 1)
        if lookup == "latest":
            search = asyncio.ensure_future(max_timestamp(log, 18, open_batch))
        else:
            search = asyncio.ensure_future(offset_for_timestamp(log, 1200, 18, open_batch))
        for _ in range(after):
            await asyncio.sleep(0)
        was_over = search.done()
        if (done := change(log)) is not None:
            await done
        found = await search
        if not was_over and change is PartitionLog.discard:
            assert found is None
        else:
            assert found == (17, 1500, 0)

    asyncio.run(main())


@pytest.mark.parametrize("ask", ["latest", "by time"])
def test_zeros_in_a_time_index_are_no_time_though_the_first_record_is_of_time_zero(ask: str) -> None:
    disk = MemoryDisk()
    log, _ = open_log(disk, config=LogConfig(segment_bytes=2_000, index_interval_bytes=100))
    for offset in range(20):
        append(log, stamped([b"x" * 50], base_offset=offset, timestamp=1000 * offset if offset < 10 else 5))
    assert len(log.segments) == 2
    asyncio.run(log.flush())
    data = disk.files[log.segments[0].path(TIME_SUFFIX)].data
    data[:] = bytes(len(data))
    if ask == "latest":
        assert asyncio.run(max_timestamp(log, 12, open_batch)) == (9, 9_000, 0)
    else:
        assert asyncio.run(offset_for_timestamp(log, 3_500, log.end_offset, open_batch)) == (4, 4_000, 0)
