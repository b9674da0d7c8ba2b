# Hot path: `read` (log/README.md has the numbers).
"""The segments of one log in a row, oldest first: which of them holds an offset, and what can be read from there.

What always holds: base offsets ascend, and a segment's base offset never changes while it stands here. Only the last
segment is written to; it is `active` then.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import lt
from typing import overload

from log.batch import BatchHeader
from log.disk import FileSlice
from log.segment import Segment


class Segments(Sequence[Segment]):
    """See the module. Only the log changes it, and what changes a log (`cutting`, `removal`, `swap`, `relocation`)."""

    __slots__ = ("_all", "_bases", "active")

    def __init__(self) -> None:
        self._all: list[Segment] = []
        self._bases: list[int] = []
        self.active: Segment | None = None

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, slot: int) -> Segment: ...
    @overload
    def __getitem__(self, slot: slice) -> list[Segment]: ...
    def __getitem__(self, slot: int | slice) -> Segment | list[Segment]:
        return self._all[slot]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    @property
    def first_base(self) -> int | None:
        return self._bases[0] if self._bases else None

    def put(self, segments: list[Segment]) -> None:
        """Replace all segments by these."""
        self._all = segments
        self._bases = [segment.base_offset for segment in segments]
        assert all(map(lt, self._bases, self._bases[1:])), "base offsets ascend"
        self.go_on()

    def add(self, segment: Segment) -> None:
        """Add the newest segment, which becomes the active one."""
        assert not self._bases or segment.base_offset > self._bases[-1], "base offsets ascend"
        self._all.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def go_on(self) -> None:
        """The last segment is written to from now on, unless it is sealed."""
        self.active = self._all[-1] if self._all and not self._all[-1].sealed else None

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put a sealed segment in the place of these, which are sealed neighbours."""
        first = self.slot_from(old[0].base_offset)
        place = slice(first, first + len(old))
        assert self._all[place] == list(old), "only neighbours are replaced"
        assert new.base_offset in self._bases[place], "the new segment has the name of an old one"
        self._all[place], self._bases[place] = [new], [new.base_offset]

    def slot_from(self, offset: int) -> int:
        """The slot of the first segment that may hold `offset` or something above it."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def at_base(self, base_offset: int) -> Segment | None:
        """The segment with that base offset; None if there is none."""
        return self._all[self._bases.index(base_offset)] if base_offset in self._bases else None

    def read(self, offset: int, *, max_bytes: int, limit_offset: int, at_least_one: bool) -> FileSlice | None:
        """See `PartitionLog.read`."""
        segments, bases = self._all, self._bases
        slot = self.slot_from(offset)
        while slot < len(segments) and bases[slot] < limit_offset:
            segment = segments[slot]
            found = segment.read(offset, max_bytes=max_bytes, limit_offset=limit_offset, at_least_one=at_least_one)
            if found is not None or segment.end_offset > limit_offset:
                return found
            if segment.position_of(offset) < segment.size_bytes:
                return None  # there is a batch, but it is too large
            slot += 1  # compaction has removed the end of this segment
        return None

    def checked(self, offset: int, stored: FileSlice) -> FileSlice:
        """See `PartitionLog.checked`."""
        for slot in range(self.slot_from(offset), len(self._all)):
            segment = self._all[slot]
            if segment.is_read_through(stored.file):
                end = segment.checked(offset, stored.position, stored.position + stored.size)
                return FileSlice(stored.file, stored.position, end - stored.position)
            segment.checked(offset, segment.size_bytes, segment.size_bytes)
        raise AssertionError("what was read just now is in one of the segments")

    def headers(self, from_offset: int, limit_offset: int) -> Iterator[BatchHeader]:
        """See `PartitionLog.headers`."""
        if from_offset >= limit_offset or not self._all:
            return
        for segment in self._all[self.slot_from(from_offset) :]:
            for _, header in segment.headers(segment.position_of(from_offset)):
                if header.last_offset >= limit_offset:
                    return
                yield header

    def scan(self, from_offset: int, limit_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """See `PartitionLog.scan`."""
        if from_offset >= limit_offset or not self._all:
            return
        for segment in self._all[self.slot_from(from_offset) :]:
            for _, header, batch in segment.batches(segment.position_of(from_offset)):
                if header.last_offset >= limit_offset:
                    return
                yield header, batch
