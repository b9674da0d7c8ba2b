"""Searches for records by their times."""

import asyncio

import pytest

from log.batch import build_batch
from log.config import LogConfig
from log.retention import SegmentAge
from log.time_search import RECORDS_AT_ONCE, max_timestamp, offset_for_timestamp
from tests.log.building import append, open_log, stamped, unpack
from tests.log.memory_disk import MemoryDisk

DAY = 86_400_000
SEGMENTS = [SegmentAge(0, 100, 1000, 1 * DAY), SegmentAge(100, 200, 1000, 3 * DAY), SegmentAge(200, 250, 500, 5 * DAY)]


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


@pytest.mark.parametrize("lookup", ["latest", "by time"])
def test_a_search_by_time_in_a_batch_of_very_many_records_lets_others_have_their_turns(lookup: str) -> None:
    count = 20_000

    async def main() -> None:
        log, _ = open_log(MemoryDisk())
        append(log, build_batch([(None, b"", (), index) for index in range(count)], leader_epoch=0))
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            for turns in range(1, count):  # noqa: B007
                await asyncio.sleep(0)

        others = asyncio.ensure_future(count_turns())
        if lookup == "latest":
            found = await max_timestamp(log, count, unpack)
        else:
            found = await offset_for_timestamp(log, count - 1, count, unpack)
        others.cancel()
        assert (found and found.offset) == count - 1
        assert turns >= count // RECORDS_AT_ONCE - 1

    asyncio.run(main())
