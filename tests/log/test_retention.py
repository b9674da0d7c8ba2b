from log.config import LogConfig
from log.retention import SegmentAge, expired

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
    return expired(segments, config, now_ms=now_ms, start_offset=start_offset, high_watermark=high_watermark)


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
