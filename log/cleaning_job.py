"""The job and the result of a compaction, as plain values that travel between two processes.

Where there may be a million numbers they are in arrays, which are sent as they are, piece by piece. Nothing is done to
all of them at once where they arrive.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from pickle import PickleBuffer
from typing import Final, Self

from log.batch import BatchHeader, Buffer
from log.config import UNLIMITED
from log.segment import SEGMENT_BYTES_MAX, SegmentFacts

FACTS: Final = SegmentFacts._fields.index("indexes")
"""How many numbers say all of a segment whose indexes are in files."""


class NumberArray(array):  # type: ignore[type-arg]  # at run time it takes none
    """Whole numbers of eight bytes. Where a pickle may have buffers beside it, they are one. They arrive as a view of
    that buffer: to copy a million of them takes the event loop long.
    """

    def __new__(cls) -> Self:
        return super().__new__(cls, "q")  # type: ignore[return-value]

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[[Buffer], Sequence[int]], tuple[PickleBuffer]]:
        return _numbers_in, (PickleBuffer(self),)


def _numbers_in(data: Buffer) -> Sequence[int]:
    return memoryview(data).cast("q")


@dataclass(slots=True)
class SealedSegments:
    """The facts of sealed segments: all numbers, as their indexes are in files."""

    numbers: NumberArray = field(default_factory=NumberArray)

    def add(self, facts: SegmentFacts) -> None:
        self.numbers.extend(facts[:FACTS])

    def __iter__(self) -> Iterator[SegmentFacts]:
        numbers = iter(self.numbers)
        return starmap(SegmentFacts, zip(*[numbers] * FACTS, strict=True))


@dataclass(frozen=True, slots=True)
class CleaningJob:
    folder: str
    segments: SealedSegments
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    aborted: Sequence[int]
    """Three numbers for each aborted transaction: its producer, its first offset, the offset of its marker."""
    last_batches: Sequence[int]
    """Two numbers for each producer: its id, and the last offset of the batch that it is known by."""
    last_markers: Sequence[int]
    """Three numbers for each producer that is known by a marker: its id, the marker's epoch, the marker's time."""
    memory_bytes: int
    scratch_folder: str | None
    """The folder for a file without a name, which takes what doesn't fit into memory."""
    leave_bytes: int
    """How much of the disk must stay free for others."""
    secret: bytes
    keeps_deletions: bool
    """No tombstone and no marker leaves the log in this pass, not even if its time is over."""

    @property
    def horizon_ms(self) -> int:
        """Until when tombstones and markers stay that this pass is the first to see; no later than a field can hold."""
        return min(self.now_ms + self.delete_retention_ms, UNLIMITED)

    def may_forget(self, header: BatchHeader) -> bool:
        """Whether the tombstones or the marker in this batch may leave the log."""
        horizon_ms = header.delete_horizon_ms
        return not self.keeps_deletions and horizon_ms is not None and horizon_ms <= self.now_ms


class TooLittleRoom(Exception):
    """There is not enough room on the disk for the new segments beside the old ones and what must stay free."""


@dataclass(slots=True)
class Cleaned:
    """The new segments, in files with `.cleaned` at the end of their names, and what was found."""

    segments: SealedSegments = field(default_factory=SealedSegments)
    dropped_abort_markers: NumberArray = field(default_factory=NumberArray)
    forgotten_below: int = 0
    """All tombstones and markers that left because their time was over stood below this offset."""
    keys: int = 0
    records_before: int = 0
    records_after: int = 0
    unreadable_batches: int = 0
    oversized_batches: int = 0


def groups_of(segments: Iterable[SegmentFacts], size_bytes_max: int) -> Iterator[list[SegmentFacts]]:
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
