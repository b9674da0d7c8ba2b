"""Which of a log's oldest segments may go. Pure decisions: the caller removes.

What always holds: segments go from the oldest on, without a gap, and none goes that holds an offset at or above the
high watermark. The segment that is being written goes like any other when all of it is old enough, so that a topic that
is no longer written to ends up empty.
"""

from collections.abc import Sequence
from typing import NamedTuple

from log.config import LogConfig


class SegmentAge(NamedTuple):
    """What the decision rests on. `timestamp` is the newest record's, or the last append's where records have none."""

    base_offset: int
    end_offset: int
    size_bytes: int
    timestamp: int


def expired(
    segments: Sequence[SegmentAge], config: LogConfig, *, now_ms: int, start_offset: int, high_watermark: int
) -> int:
    """How many of the oldest segments may go."""
    count = below_start(segments, start_offset)
    if config.deletes:
        count = max(count, too_old(segments, config, now_ms), too_large(segments, config))
    while count and not _may_go(segments, count - 1, high_watermark):
        count -= 1
    return count


def below_start(segments: Sequence[SegmentAge], start_offset: int) -> int:
    """Segments that end below the start of the log, which somebody has raised."""
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= start_offset:
        count += 1
    if segments and count == len(segments) - 1 and segments[-1].end_offset <= start_offset:
        count += 1
    return count


def too_old(segments: Sequence[SegmentAge], config: LogConfig, now_ms: int) -> int:
    """Segments whose newest record is older than `retention.ms`."""
    if config.retention_ms < 0:
        return 0
    count = 0
    while count < len(segments) and now_ms - segments[count].timestamp > config.retention_ms:
        count += 1
    return count


def too_large(segments: Sequence[SegmentAge], config: LogConfig) -> int:
    """Segments without which the log still holds `retention.bytes`."""
    if config.retention_bytes < 0:
        return 0
    excess = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    while count < len(segments) and excess >= segments[count].size_bytes:
        excess -= segments[count].size_bytes
        count += 1
    return count


def _may_go(segments: Sequence[SegmentAge], slot: int, high_watermark: int) -> bool:
    if slot + 1 < len(segments):
        return segments[slot + 1].base_offset <= high_watermark
    return segments[slot].end_offset <= high_watermark and segments[slot].size_bytes > 0
