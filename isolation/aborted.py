"""The aborted transactions of one partition: which offsets a reader of committed data must skip.

What always holds: ranges are in the order of their markers, and the offset of a marker identifies its range. The cost
of a query grows with its answer, and with the logarithm of the number of ranges, even if one long transaction spans all
others.

The numbers are in flat arrays, 24 bytes for each range. For each block of 64 ranges the lowest first offset is kept,
and for each 64 blocks again, level by level. With these minima a query steps over blocks in which no range begins early
enough.
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

BLOCK_BITS: Final = 6
BLOCK: Final = 1 << BLOCK_BITS
_COUNT: Final = struct.Struct(">I")


class AbortedRange(NamedTuple):
    """A transaction of `producer_id` that began at `first_offset` and whose abort marker is at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int


class AbortedRanges:
    """The ranges of one partition. They are added in the order of their markers and dropped from the front."""

    __slots__ = ("_first", "_last", "_minima", "_producer")

    def __init__(self) -> None:
        self._first = array("q")
        self._last = array("q")
        self._producer = array("q")
        self._minima: list[array[int]] = []

    def __len__(self) -> int:
        return len(self._last)

    def add(self, aborted: AbortedRange) -> None:
        assert not self._last or self._last[-1] < aborted.last_offset, "markers come in the order of the log"
        self._first.append(aborted.first_offset)
        self._last.append(aborted.last_offset)
        self._producer.append(aborted.producer_id)
        self._raise_minima(len(self._first) - 1)

    def _raise_minima(self, index: int) -> None:
        """Take the first offset of the newest range, at `index`, into the minima."""
        first_offset = self._first[index]
        level = 0
        block = index >> BLOCK_BITS
        while level < len(self._minima) or block > 0 or index == BLOCK - 1:
            if level == len(self._minima):
                # A second block begins (or the first one is full): from now on a further level is needed.
                below = self._minima[level - 1] if level else self._first
                self._minima.append(array("q", [min(below[:BLOCK])]))
            minima = self._minima[level]
            if block == len(minima):
                minima.append(first_offset)
            elif first_offset < minima[block]:
                minima[block] = first_offset
            if block == 0:
                return
            level += 1
            block >>= BLOCK_BITS

    def overlapping(self, from_offset: int, end_offset: int) -> list[AbortedRange]:
        """The ranges that a reader of [from_offset, end_offset) must know: those with a marker at or above
        `from_offset` that begin below `end_offset`.
        """
        first, last, producer = self._first, self._last, self._producer
        found = []
        index, count = bisect_left(last, from_offset), len(last)
        while index < count:
            if index % BLOCK == 0 and (step := self._step_over(index, end_offset)):
                index += step
                continue
            if first[index] < end_offset:
                found.append(AbortedRange(producer[index], first[index], last[index]))
            index += 1
        return found

    def reach_into(self, from_offset: int, end_offset: int) -> bool:
        """Whether there is any such range."""
        first = self._first
        index, count = bisect_left(self._last, from_offset), len(first)
        while index < count and first[index] >= end_offset:
            index += (index % BLOCK == 0 and self._step_over(index, end_offset)) or 1
        return index < count

    def count_from(self, offset: int) -> int:
        """How many ranges have their marker at or above this offset."""
        return len(self._last) - bisect_left(self._last, offset)

    def each_overlapping(self, from_offset: int, end_offset: int) -> Iterator[AbortedRange]:
        """The same ranges one by one, as they are at this call: other work may be done, and change them, in between."""
        first, last, producer = self._first[:], self._last[:], self._producer[:]
        return (
            AbortedRange(producer[index], first[index], last[index])
            for index in range(bisect_left(last, from_offset), len(last))
            if first[index] < end_offset
        )

    def _step_over(self, index: int, end_offset: int) -> int:
        """How many ranges from `index` on can be skipped, because whole blocks of them begin too late."""
        for level in range(len(self._minima) - 1, -1, -1):
            bits = BLOCK_BITS * (level + 1)
            if index & ((1 << bits) - 1) == 0 and self._minima[level][index >> bits] >= end_offset:
                return 1 << bits
        return 0

    def drop_before(self, start_offset: int) -> None:
        """Forget ranges whose markers have left the log. It is done only when these are at least half of all ranges.
        Until then they do no harm: no reader asks for such low offsets.
        """
        gone = bisect_left(self._last, start_offset)
        if gone and gone * 2 >= len(self._last):
            del self._first[:gone], self._last[:gone], self._producer[:gone]
            self._build_minima()

    def remove(self, last_offsets: Iterable[int]) -> None:
        """Forget the ranges whose markers are at these offsets."""
        gone = frozenset(last_offsets)
        kept = [index for index, last_offset in enumerate(self._last) if last_offset not in gone]
        self._first = array("q", [self._first[index] for index in kept])
        self._producer = array("q", [self._producer[index] for index in kept])
        self._last = array("q", [self._last[index] for index in kept])
        self._build_minima()

    def _build_minima(self) -> None:
        self._minima = []
        below = self._first
        while len(below) >= BLOCK:
            below = array("q", [min(below[at : at + BLOCK]) for at in range(0, len(below), BLOCK)])
            self._minima.append(below)

    # -- snapshots

    def to_bytes(self) -> bytes:
        columns = [little_endian(column).tobytes() for column in (self._producer, self._first, self._last)]
        return _COUNT.pack(len(self._last)) + b"".join(columns)

    @classmethod
    def from_bytes(cls, data: bytes) -> "AbortedRanges":
        """ValueError when the bytes are not what `to_bytes` wrote."""
        if len(data) < _COUNT.size or len(data) != _COUNT.size + _COUNT.unpack_from(data)[0] * 24:
            raise ValueError("the aborted ranges are cut short")
        size = (len(data) - _COUNT.size) // 3
        columns = []
        for at in range(_COUNT.size, len(data), size or 1):
            column = array("q")
            column.frombytes(data[at : at + size])
            columns.append(little_endian(column))
        ranges = cls()
        if columns:
            ranges._producer, ranges._first, ranges._last = columns
            ranges._build_minima()
        return ranges


def little_endian(column: "array[int]") -> "array[int]":
    """The column in the byte order of files. On most machines that is the column itself."""
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped
