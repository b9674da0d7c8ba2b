"""The aborted transactions of one partition: which offsets a reader of committed data must skip.

What always holds: ranges are in the order of their markers, and the offset of a marker identifies its range. The cost
of a query grows with its answer, and by one look for each 4,096 ranges, even if one long transaction spans all others.

The numbers are in flat arrays, 24 bytes for each range, in chunks of at most 4,096 ranges. A chunk that was lent, to a
snapshot or to a reader who takes his time, is copied before it is changed. So nothing takes longer than one chunk does.
For each block of 64 ranges, and for each chunk, the lowest first offset is kept. With it
a query steps over blocks in which no range begins early enough.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from log.batch import Buffer

BLOCK: Final = 64
CHUNK: Final = BLOCK * BLOCK
_COUNT: Final = struct.Struct(">I")


class AbortedRange(NamedTuple):
    """A transaction of `producer_id` that began at `first_offset` and whose abort marker is at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int


class _Chunk:
    """Some ranges in a row: one at least, except before the first is added."""

    __slots__ = ("first", "last", "lent", "lowest", "minima", "producer")

    def __init__(self, producer: "array[int]", first: "array[int]", last: "array[int]") -> None:
        self.producer, self.first, self.last = producer, first, last
        self.minima = array("q", [min(first[at : at + BLOCK]) for at in range(0, len(first), BLOCK)])
        self.lowest = min(self.minima, default=sys.maxsize)
        self.lent = False

    def of(self, indexes: Iterable[int]) -> "_Chunk":
        """A chunk with these of the ranges."""
        kept = list(indexes)
        columns = (self.producer, self.first, self.last)
        return _Chunk(*(array("q", [column[index] for index in kept]) for column in columns))

    def add(self, aborted: AbortedRange) -> None:
        if len(self.first) % BLOCK == 0:
            self.minima.append(aborted.first_offset)
        elif aborted.first_offset < self.minima[-1]:
            self.minima[-1] = aborted.first_offset
        self.lowest = min(self.lowest, aborted.first_offset)
        self.producer.append(aborted.producer_id)
        self.first.append(aborted.first_offset)
        self.last.append(aborted.last_offset)

    def overlapping(self, from_offset: int, end_offset: int) -> Iterator[AbortedRange]:
        if self.lowest >= end_offset:
            return
        first, last, producer = self.first, self.last, self.producer
        index, count = bisect_left(last, from_offset), len(last)
        while index < count:
            if index % BLOCK == 0 and self.minima[index // BLOCK] >= end_offset:
                index += BLOCK
                continue
            if first[index] < end_offset:
                yield AbortedRange(producer[index], first[index], last[index])
            index += 1


class AbortedRanges:
    """The ranges of one partition. They are added in the order of their markers and dropped from the front."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        return sum(len(chunk.last) for chunk in self._chunks)

    def __bool__(self) -> bool:
        return bool(self._chunks)  # every read asks; there is no empty chunk

    def add(self, aborted: AbortedRange) -> None:
        chunks = self._chunks
        assert not chunks or chunks[-1].last[-1] < aborted.last_offset, "markers come in the order of the log"
        if not chunks or len(chunks[-1].last) >= CHUNK:
            chunks.append(_Chunk(array("q"), array("q"), array("q")))
        elif chunks[-1].lent:
            chunks[-1] = _Chunk(chunks[-1].producer[:], chunks[-1].first[:], chunks[-1].last[:])
        chunks[-1].add(aborted)

    def _chunk_of(self, last_offset: int) -> int:
        """The number of the first chunk with a marker at or above this offset."""
        return bisect_left(self._chunks, last_offset, key=lambda chunk: chunk.last[-1])

    def _lend(self, number: int = 0) -> list[_Chunk]:
        """The chunks from this one on, as they are now."""
        lent = self._chunks[number:]
        for chunk in lent:
            chunk.lent = True
        return lent

    def reach_into(self, from_offset: int, end_offset: int) -> bool:
        """Whether there is any such range."""
        chunks = self._chunks[self._chunk_of(from_offset) :]
        return next(_overlapping(chunks, from_offset, end_offset), None) is not None

    def count_from(self, offset: int) -> int:
        """How many ranges have their marker at or above this offset."""
        return sum(
            len(chunk.last) - bisect_left(chunk.last, offset) for chunk in self._chunks[self._chunk_of(offset) :]
        )

    def overlapping(self, from_offset: int, end_offset: int) -> Iterator[AbortedRange]:
        """The ranges that a reader of [from_offset, end_offset) must know: those with a marker at or above
        `from_offset` that begin below `end_offset`. They come one by one, as they are at this call: other work may be
        done, and change them, in between.
        """
        return _overlapping(self._lend(self._chunk_of(from_offset)), from_offset, end_offset)

    def drop_before(self, start_offset: int) -> None:
        """Forget ranges whose markers have left the log. Of a chunk they are forgotten only when they are at least half
        of it. Until then they do no harm: no reader asks for such low offsets.
        """
        del self._chunks[: self._chunk_of(start_offset)]
        if self._chunks:
            chunk = self._chunks[0]
            gone, count = bisect_left(chunk.last, start_offset), len(chunk.last)
            if gone * 2 >= count:
                self._chunks[0] = chunk.of(range(gone, count))

    def remove(self, last_offsets: Sequence[int]) -> Generator[None, None, None]:
        """Forget the ranges whose markers are at these offsets, which rise. It is done step by step: other work may be
        done, and change the ranges, in between.
        """
        at = 0
        while at < len(last_offsets) and (number := self._chunk_of(last_offsets[at])) < len(self._chunks):
            chunk = self._chunks[number]
            end = bisect_right(last_offsets, chunk.last[-1], at, min(at + CHUNK, len(last_offsets)))
            gone = frozenset(last_offsets[at:end])
            kept = [index for index, last_offset in enumerate(chunk.last) if last_offset not in gone]
            self._chunks[number : number + 1] = [chunk.of(kept)] if kept else []
            at = end
            yield

    # -- snapshots

    def lend(self) -> list[Collection[Buffer]]:
        """The bytes for `from_bytes`, in parts that stay as they are now."""
        chunks = self._lend()
        columns = chain(
            (chunk.producer for chunk in chunks), (chunk.first for chunk in chunks), (chunk.last for chunk in chunks)
        )
        return [(_COUNT.pack(len(self)),), *((memoryview(little_endian(column)).cast("B"),) for column in columns)]

    @classmethod
    def reading(cls, data: Buffer) -> Generator[None, None, "AbortedRanges"]:
        """The ranges of which `lend` gave out these bytes, read step by step. ValueError if it did not."""
        if len(data) < _COUNT.size or len(data) != _COUNT.size + _COUNT.unpack_from(data)[0] * 24:
            raise ValueError("the aborted ranges are cut short")
        size = (len(data) - _COUNT.size) // 3
        ranges = cls()
        for at in range(0, size, CHUNK * 8):
            columns = []
            for column_at in range(_COUNT.size, len(data), size):
                column = array("q")
                column.frombytes(data[column_at + at : column_at + min(at + CHUNK * 8, size)])
                columns.append(little_endian(column))
            ranges._chunks.append(_Chunk(*columns))
            yield
        return ranges


def _overlapping(chunks: Iterable[_Chunk], from_offset: int, end_offset: int) -> Iterator[AbortedRange]:
    return chain.from_iterable(chunk.overlapping(from_offset, end_offset) for chunk in chunks)


def little_endian(column: "array[int]") -> "array[int]":
    """The column in the byte order of files. On most machines that is the column itself."""
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped
