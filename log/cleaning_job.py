"""The job and the result of a compaction, as plain values that travel between two processes.

Where there may be hundreds of thousands of numbers they are in arrays, which are packed and unpacked quickly enough not
to hold up the event loop.
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
    """Two numbers for each producer: its id, and the last offset of the batch that it is known by."""
    last_markers: "array[int]"
    """Three numbers for each producer that is known by a marker: its id, the marker's epoch, the marker's time."""
    memory_bytes: int
    scratch_folder: str | None
    """The folder for a file without a name, which takes what doesn't fit into memory."""
    leave_bytes: int
    """How much of the disk must stay free for others."""
    secret: bytes
    keeps_deletions: bool
    """No tombstone and no marker leaves the log in this pass, not even if its time is over."""

    def may_forget(self, header: BatchHeader) -> bool:
        """Whether the tombstones or the marker in this batch may leave the log."""
        horizon_ms = header.delete_horizon_ms
        return not self.keeps_deletions and horizon_ms is not None and horizon_ms <= self.now_ms


class TooLittleRoom(Exception):
    """There is not enough room on the disk for the new segments beside the old ones and what must stay free."""


@dataclass(slots=True)
class Cleaned:
    """The new segments, in files with `.cleaned` at the end of their names, and what was found."""

    segments: list[SegmentFacts] = field(default_factory=list)
    dropped_abort_markers: list[int] = field(default_factory=list)
    forgotten_below: int = 0
    """All tombstones and markers that left because their time was over stood below this offset."""
    keys: int = 0
    records_before: int = 0
    records_after: int = 0
    unreadable_batches: int = 0
    oversized_batches: int = 0


def groups_of(segments: Sequence[SegmentFacts], size_bytes_max: int) -> Iterator[list[SegmentFacts]]:
    """Groups of neighbouring segments that fit into one segment together."""
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


class AbortedTransactions:
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
        # The transactions of one producer never overlap. So only the first one that ends after the batch's base offset
        # can hold the batch.
        slot = bisect_left(ranges, (header.base_offset, -1))
        return slot < len(ranges) and ranges[slot][1] <= header.base_offset


class LastBatches:
    """Which batches and markers stay in the log, even without records: what producers are known by, and the last batch
    of what is cleaned, which ends at `end_offset`.
    """

    def __init__(self, batches: Sequence[int], markers: Sequence[int], end_offset: int) -> None:
        self._end_offset = end_offset
        self._offsets = dict(zip(batches[::2], batches[1::2], strict=True))
        self._markers = dict(zip(markers[::3], zip(markers[1::3], markers[2::3], strict=True), strict=True))

    def is_last(self, header: BatchHeader) -> bool:
        if header.next_offset == self._end_offset:
            return True
        if header.is_control:
            return self._markers.get(header.producer_id) == (header.producer_epoch, header.max_timestamp)
        return self._offsets.get(header.producer_id) == header.last_offset
