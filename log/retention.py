"""Which of a log's oldest segments may be removed. Pure decisions: nothing is removed here.

What always holds: segments are removed from the oldest on, without a gap. No segment is removed that holds an offset at
or above the high watermark. The segment that is being written is removed like any other when all of it is old enough,
so that a topic to which nobody writes any more ends up empty.
"""

from collections.abc import Sequence
from typing import NamedTuple

from log.config import LogConfig


class SegmentAge(NamedTuple):
    """The facts that the decision needs. `timestamp` is that of the newest record, or of the last append if the records
    have no timestamps.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    timestamp: int


def expired(
    segments: Sequence[SegmentAge],
    config: LogConfig,
    *,
    now_ms: int,
    size_bytes: int,
    start_offset: int,
    high_watermark: int,
) -> int:
    """How many of these segments, the oldest of a log of `size_bytes`, may be removed."""
    count = below_start(segments, start_offset)
    if config.deletes:
        count = max(count, too_old(segments, config, now_ms), too_large(segments, config, size_bytes))
    while count and not _may_go(segments, count - 1, high_watermark):
        count -= 1
    return count


def below_start(segments: Sequence[SegmentAge], start_offset: int) -> int:
    """How many segments end below the start of the log, which DeleteRecords may have raised."""
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= start_offset:
        count += 1
    if segments and count == len(segments) - 1 and segments[-1].end_offset <= start_offset:
        count += 1
    return count


def too_old(segments: Sequence[SegmentAge], config: LogConfig, now_ms: int) -> int:
    """How many of the oldest segments have only records older than `retention.ms`."""
    if config.retention_ms < 0:
        return 0
    count = 0
    while count < len(segments) and now_ms - segments[count].timestamp > config.retention_ms:
        count += 1
    return count


def too_large(segments: Sequence[SegmentAge], config: LogConfig, size_bytes: int) -> int:
    """How many of the oldest segments can go so that the rest still has at least `retention.bytes`."""
    if config.retention_bytes < 0:
        return 0
    excess = size_bytes - config.retention_bytes
    count = 0
    while count < len(segments) and excess >= segments[count].size_bytes:
        excess -= segments[count].size_bytes
        count += 1
    return count


def _may_go(segments: Sequence[SegmentAge], slot: int, high_watermark: int) -> bool:
    if slot + 1 < len(segments):
        return segments[slot + 1].base_offset <= high_watermark
    return segments[slot].end_offset <= high_watermark and segments[slot].size_bytes > 0
