import asyncio

import pytest

from log.batch import MAX_TIMESTAMP_AT, build_batch
from log.config import DAY_MS, HOUR_MS, LogConfig
from log.partition_log import PartitionLog
from log.removal import expired_segments
from log.retention import SegmentAge, expired
from log.time_search import max_timestamp, offset_for_timestamp
from tests.log.building import append, open_batch, open_log, stamped
from tests.log.compacting import Bench
from tests.log.header_times import TimedBatch, timed_batches
from tests.log.memory_disk import MemoryDisk

DAY = 86_400_000
SEGMENTS = [SegmentAge(0, 100, 1000, 1 * DAY), SegmentAge(100, 200, 1000, 3 * DAY), SegmentAge(200, 250, 500, 5 * DAY)]


def count(
    now_ms: int = 0,
    start_offset: int = 0,
    high_watermark: int = 250,
    segments: list[SegmentAge] = SEGMENTS,
    policy: tuple[str, ...] = ("delete",),
    retention_ms: int = -1,
    retention_bytes: int = -1,
) -> int:
    config = LogConfig(cleanup_policy=policy, retention_ms=retention_ms, retention_bytes=retention_bytes)
    size_bytes = sum(segment.size_bytes for segment in segments)
    return expired(
        segments,
        config,
        now_ms=now_ms,
        size_bytes=size_bytes,
        start_offset=start_offset,
        high_watermark=high_watermark,
    )


def test_segments_go_when_their_newest_record_is_too_old() -> None:
    assert [count(day * DAY, retention_ms=2 * DAY) for day in (3, 4, 6, 8)] == [0, 1, 2, 3]


def test_a_young_segment_keeps_the_older_ones_behind_it() -> None:
    segments = [SEGMENTS[0]._replace(timestamp=9 * DAY), *SEGMENTS[1:]]
    assert count(8 * DAY, retention_ms=2 * DAY, segments=segments) == 0


def test_no_more_goes_by_size_than_is_too_much() -> None:
    """2500 bytes in all; a segment goes only if what is left is still as large as asked."""
    assert [count(retention_bytes=size) for size in (2500, 1501, 1500, 500, 0)] == [0, 0, 1, 2, 3]


def test_segments_below_the_start_go_whatever_the_policy() -> None:
    for policy in (("delete",), ("compact",)):
        counts = [count(start_offset=start, policy=policy) for start in (0, 99, 100, 200, 249, 250)]
        assert counts == [0, 0, 1, 2, 2, 3]


def test_compacted_topics_lose_nothing_by_age_or_size() -> None:
    assert count(99 * DAY, policy=("compact",), retention_ms=1, retention_bytes=0) == 0
    assert count(99 * DAY, policy=("compact", "delete"), retention_ms=1) == 3


def test_nothing_above_the_high_watermark_goes() -> None:
    assert [count(99 * DAY, retention_ms=1, high_watermark=mark) for mark in (0, 99, 100, 249, 250)] == [0, 0, 1, 2, 3]


def test_an_empty_active_segment_stays() -> None:
    segments = [*SEGMENTS, SegmentAge(250, 250, 0, 5 * DAY)]
    assert count(99 * DAY, retention_ms=1, segments=segments) == 3
    assert count(99 * DAY, retention_ms=1, segments=segments[3:]) == 0
    assert count(segments=[]) == 0


NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("batch", timed_batches(NOW_MS))
def test_how_long_a_batch_lives_by_the_times_in_its_header_is_what_apache_kafka_grants(
    codec: int, batch: TimedBatch
) -> None:
    """Where no record has a time, that of the append counts."""

    async def main() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk, config=LogConfig(retention_ms=DAY_MS))
        append(log, batch.built(codec), NOW_MS)
        found = await max_timestamp(log, 2, open_batch)
        assert (found and found[:2]) == batch.latest
        by_time = await offset_for_timestamp(log, 0, 2, open_batch)
        assert (by_time and by_time[:2]) == next(((at, time) for at, time in enumerate(batch.times) if time >= 0), None)
        again, _ = open_log(disk, config=log.config, known=await log.close())
        for opened in (log, again):
            assert expired_segments(opened, NOW_MS + 1000, 2) == (not batch.stays)

    asyncio.run(main())


def test_retention_waits_for_records_that_may_be_newer_than_their_headers_say() -> None:
    """A header that tells of a record of the last hour is believed, and may hide one that is newer."""
    log, _ = open_log(MemoryDisk(), config=LogConfig(retention_ms=DAY_MS))
    told_ms = NOW_MS - HOUR_MS
    append(log, TimedBatch((told_ms, NOW_MS), told_ms, True, (1, NOW_MS)).built(0), NOW_MS)
    assert not log.config.may_hide_newest(told_ms, told_ms, NOW_MS)
    assert [expired_segments(log, NOW_MS + age_ms, 2) for age_ms in (DAY_MS, DAY_MS + 1)] == [0, 1]


@pytest.mark.parametrize(("kind", "time"), [("CreateTime", -1), ("LogAppendTime", 60_000)])
def test_what_was_appended_before_the_clock_was_set_lives_as_long_as_what_came_next(kind: str, time: int) -> None:
    log, _ = open_log(MemoryDisk(), config=LogConfig(retention_ms=DAY_MS, message_timestamp_type=kind))
    for base_offset, now_ms in enumerate((60_000, 61_000, NOW_MS)):
        timestamp = time if now_ms < NOW_MS else NOW_MS
        append(log, build_batch([(b"k", b"v", (), timestamp)], base_offset=base_offset, leader_epoch=0), now_ms)
        if base_offset < 2:
            assert expired_segments(log, NOW_MS + 10 * DAY_MS, 3) == 0, "nobody knows since when it is there"
            log.roll(now_ms)
    gone = [min(2, expired_segments(log, NOW_MS + age_ms, 3)) for age_ms in (0, DAY_MS, DAY_MS + 1)]
    assert gone == [0, 0, 2]


def test_a_segment_whose_first_records_have_no_time_rolls_by_its_own_age() -> None:
    log, _ = open_log(MemoryDisk(), config=LogConfig(segment_ms=1000))
    timeless = bytearray(build_batch([(b"k", b"v", (), -1)], leader_epoch=0))
    timeless[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = bytes(8)
    append(log, timeless, NOW_MS)
    append(log, stamped([b"timed"], base_offset=1, timestamp=NOW_MS), NOW_MS + 1000)
    assert len(log.segments) == 1
    append(log, stamped([b"late"], base_offset=2, timestamp=NOW_MS), NOW_MS + 2001)
    assert len(log.segments) == 2


def untimed(base_offset: int) -> bytes:
    return build_batch([(b"k", b"v", (), -1)], base_offset=base_offset, leader_epoch=0)


@pytest.mark.parametrize("stops", [False, True])
def test_steady_records_without_a_time_end_a_segment_when_it_is_old_enough(stops: bool) -> None:
    """Each of them began the segment's age anew, so that no segment ended and nothing expired."""
    config = LogConfig(segment_ms=DAY_MS, retention_ms=DAY_MS)
    log, _ = open_log(disk := MemoryDisk(), config=config)
    for hour in range(24 * 3):
        append(log, untimed(hour), NOW_MS + hour * DAY_MS // 24)
        if stops:
            log, _ = open_log(disk, config=config, known=asyncio.run(log.close()))
    assert [segment.base_offset for segment in log.segments] == [0, 25, 50]
    assert expired_segments(log, NOW_MS + 3 * DAY_MS, 72) == 1


@pytest.mark.parametrize("compacts", [False, True])
def test_records_without_a_time_are_no_younger_after_a_crash(compacts: bool) -> None:
    """Where a broker was killed more often than every `retention.ms`, they stayed for ever."""
    config = LogConfig(
        cleanup_policy=("compact", "delete"), retention_ms=2 * DAY_MS, segment_bytes=150, min_cleanable_dirty_ratio=0.0
    )
    disk = MemoryDisk()
    bench = Bench(disk, config)
    disk.now_ms = NOW_MS
    for offset in range(5):
        append(bench.log, untimed(offset), NOW_MS)
    asyncio.run(bench.log.flush())
    disk.now_ms = NOW_MS + DAY_MS
    if compacts:
        assert asyncio.run(bench.clean(now_ms=disk.now_ms)) is not None
    for recovery_point in (0, 5):
        again = PartitionLog.open(
            disk, "table-0", config, [], known=None, now_ms=disk.now_ms, recovery_point=recovery_point
        )
        segments = len(again.segments)
        assert expired_segments(again, NOW_MS + 2 * DAY_MS, 5) == 0
        assert expired_segments(again, NOW_MS + 2 * DAY_MS + 1, 5) == segments - (not again.segments[-1].size_bytes)
        early = PartitionLog.open(disk, "table-0", config, [], known=None, now_ms=NOW_MS - DAY_MS)
        assert expired_segments(early, NOW_MS + DAY_MS + 1, 5) > 0, "the clock was set back: nothing is of the future"
