"""Sparse indexes: from an offset to a position in the segment, and from a timestamp to an offset.

What always holds: keys rise, values rise (or stay); an index is a hint that can be rebuilt from the batches, and a
search that starts at an entry finds what a full scan would find. Both files have Kafka's format:

    .index      last offset of a batch minus the segment's base offset  u32 | where that batch starts   u32
    .timeindex  largest timestamp so far  i64 | last offset of the batch that brought it, minus the base offset  u32

The active segment's indexes grow in memory; those of sealed segments stay on disk and are searched there, so that old
segments cost no memory.
"""

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Protocol

from log.disk import File

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")
LEAF_ENTRIES: Final = 512
"""How many entries a search in a file reads at once: 4 or 6 KB, which stand for 2 MB of batches or more."""


class Index(Protocol):
    """What both kinds of index answer. A slot is the number of an entry; -1 means: before the first entry."""

    def __len__(self) -> int: ...
    def entry(self, slot: int) -> tuple[int, int]:
        """Key and value."""

    def floor(self, key: int) -> int:
        """The last slot whose key is not above `key`."""

    def floor_value(self, value: int) -> int:
        """The last slot whose value is not above `value`."""


class GrowingIndex:
    """An index in memory, for the segment that is written."""

    __slots__ = ("_keys", "_layout", "_values")

    def __init__(self, layout: struct.Struct) -> None:
        self._layout = layout
        self._keys = array("q" if layout is TIME_ENTRY else "I")
        self._values = array("I")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: int, value: int) -> None:
        self._keys.append(key)
        self._values.append(value)

    def entry(self, slot: int) -> tuple[int, int]:
        return self._keys[slot], self._values[slot]

    def floor(self, key: int) -> int:
        return bisect_right(self._keys, key) - 1

    def floor_value(self, value: int) -> int:
        return bisect_right(self._values, value) - 1

    def cut(self, count: int) -> None:
        """Keep the first `count` entries."""
        del self._keys[count:]
        del self._values[count:]

    def to_bytes(self) -> bytes:
        return b"".join(map(self._layout.pack, self._keys, self._values))

    @classmethod
    def from_bytes(cls, layout: struct.Struct, data: bytes) -> "GrowingIndex":
        index = cls(layout)
        for key, value in layout.iter_unpack(data):
            index.add(key, value)
        return index


class StoredIndex:
    """An index in a file, for a sealed segment. It is searched in the file; only the entries around the last search are
    kept in memory.
    """

    __slots__ = ("_count", "_file", "_layout", "_leaf", "_leaf_slot")

    def __init__(self, layout: struct.Struct, file: File) -> None:
        self._layout = layout
        self._file = file
        self._count = file.size // layout.size
        # Keys and values of neighbouring entries, and the slot of the first one. A consumer that reads a segment in
        # order asks for the same entries again and again.
        self._leaf: tuple[Sequence[int], Sequence[int]] = ((), ())
        self._leaf_slot = 0

    def __len__(self) -> int:
        return self._count

    def entry(self, slot: int) -> tuple[int, int]:
        size = self._layout.size
        key, value = self._layout.unpack(self._file.pread(size, slot * size))
        return key, value

    def floor(self, key: int) -> int:
        return self._search(key, 0)

    def floor_value(self, value: int) -> int:
        return self._search(value, 1)

    def to_bytes(self) -> bytes:
        return self._file.pread(self._count * self._layout.size, 0)

    def close(self) -> None:
        self._file.close()

    def _search(self, wanted: int, field: int) -> int:
        column = self._leaf[field]
        if not (column and column[0] <= wanted < column[-1]):
            self._read_leaf(self._leaf_start(wanted, field))
            column = self._leaf[field]
        return self._leaf_slot + bisect_right(column, wanted) - 1

    def _leaf_start(self, wanted: int, field: int) -> int:
        """The slot from which to read a leaf that holds the answer, found by bisection. The leaf goes on after the
        answer, because a consumer is likely to ask for these entries next.
        """
        low, high = 0, self._count  # entries before `low` are not above `wanted`, entries from `high` on are
        while high - low >= LEAF_ENTRIES:
            middle = (low + high) // 2
            if self.entry(middle)[field] <= wanted:
                low = middle + 1
            else:
                high = middle
        return max(low - 1, 0)

    def _read_leaf(self, slot: int) -> None:
        size = self._layout.size
        data = self._file.pread(LEAF_ENTRIES * size, slot * size)
        self._leaf = _columns(self._layout, data[: len(data) - len(data) % size])
        self._leaf_slot = slot


def _columns(layout: struct.Struct, data: bytes) -> tuple[Sequence[int], Sequence[int]]:
    if layout is OFFSET_ENTRY:  # every read searches the offset index, so it has a faster way
        numbers = array("I", data)
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers[0::2], numbers[1::2]
    pairs = list(layout.iter_unpack(data))
    return [key for key, _ in pairs], [value for _, value in pairs]
