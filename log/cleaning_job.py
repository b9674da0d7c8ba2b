"""What a compaction asks of the process that reads and writes for it, and what it hears back: plain values that travel.

Numbers that come by the hundred thousand travel in arrays: they are made and unpacked without holding anybody up.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from log.batch import BatchHeader
from log.segment import SEGMENT_BYTES_MAX, SegmentFacts


@dataclass(frozen=True, slots=True)
class CleaningJob:
    folder: str
    segments: tuple[SegmentFacts, ...]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    aborted: "array[int]"
    """Three numbers for each aborted transaction: its producer, its first offset, the offset of its marker."""
    last_batches: "array[int]"
    """Two numbers for each producer: itself, the last offset of the batch it is known by."""
    last_markers: "array[int]"
    """Three for each that is known by a marker: itself, the epoch, the time."""
    memory_bytes: int
    scratch_folder: str | None
    """Where a file may grow without a name, for what doesn't fit into the memory."""
    leave_bytes: int
    """So much of the disk stays free for others."""
    secret: bytes


class TooLittleRoom(Exception):
    """The new segments don't fit beside the old ones and what must stay free."""


@dataclass(slots=True)
class Cleaned:
    """The new segments, in files with `.cleaned` at the end of their names, and what was found."""

    segments: list[SegmentFacts] = field(default_factory=list)
    dropped_abort_markers: list[int] = field(default_factory=list)
    keys: int = 0
    records_before: int = 0
    records_after: int = 0
    unreadable_batches: int = 0
    oversized_batches: int = 0


def groups_of(segments: Sequence[SegmentFacts], size_bytes_max: int) -> Iterator[list[SegmentFacts]]:
    """Neighbours that fit into one segment together."""
    group: list[SegmentFacts] = []
    size_bytes = 0
    for segment in segments:
        too_long = bool(group) and segment.end_offset - group[0].base_offset > SEGMENT_BYTES_MAX
        if group and (size_bytes + segment.size_bytes > size_bytes_max or too_long):
            yield group
            group, size_bytes = [], 0
        group.append(segment)
        size_bytes += segment.size_bytes
    if group:
        yield group


class Transactions:
    """Which batches belong to transactions that were aborted."""

    def __init__(self, aborted: Sequence[int]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        triples = zip(aborted[::3], aborted[1::3], aborted[2::3], strict=True)
        for producer_id, first_offset, last_offset in sorted(triples, key=lambda triple: triple[2]):
            self._ranges.setdefault(producer_id, []).append((last_offset, first_offset))

    def is_aborted(self, header: BatchHeader) -> bool:
        ranges = self._ranges.get(header.producer_id)
        if ranges is None or not header.is_transactional:
            return False
        # The transactions of one producer follow each other: the first that ends behind the batch is the one.
        slot = bisect_left(ranges, (header.base_offset, -1))
        return slot < len(ranges) and ranges[slot][1] <= header.base_offset


class LastBatches:
    """Which batches producers are known by: they stay, be they empty."""

    def __init__(self, batches: Sequence[int], markers: Sequence[int]) -> None:
        self._offsets = dict(zip(batches[::2], batches[1::2], strict=True))
        self._markers = dict(zip(markers[::3], zip(markers[1::3], markers[2::3], strict=True), strict=True))

    def is_last(self, header: BatchHeader) -> bool:
        if header.is_control:
            return self._markers.get(header.producer_id) == (header.producer_epoch, header.max_timestamp)
        return self._offsets.get(header.producer_id) == header.last_offset
