"""Sparse indexes: from an offset to a position in the segment, and from a timestamp to an offset.

What always holds: keys rise, values rise (or stay); an index is a hint that can be rebuilt from the batches, and a
search that starts at an entry finds what a full scan would find. Both files have Kafka's format:

    .index      last offset of a batch minus the segment's base offset  u32 | where that batch starts   u32
    .timeindex  largest timestamp so far  i64 | last offset of the batch that brought it, minus the base offset  u32

A sealed segment's `.timeindex` has its last entry twice, so that one that has lost its end is noticed.

The active segment's indexes grow in memory; those of sealed segments stay on disk and are searched there, so that old
segments cost no memory.
"""

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import Final, Protocol

from log.disk import DiskFault, File
from log.ids import NO_TIMESTAMP

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")
_NO_TIMES: Final = TIME_ENTRY.pack(NO_TIMESTAMP, 0)
WORD: Final = 4
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

    __slots__ = ("_keys", "_values")

    def __init__(self, layout: struct.Struct) -> None:
        self._keys = array(_key_type(layout))
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

    def drop(self, first: int, end: int) -> None:
        """Take out the entries from slot `first` on, below `end`."""
        del self._keys[first:end]
        del self._values[first:end]

    @property
    def rises(self) -> bool:
        """Whether each entry is above the one before, as all do that were added."""
        return all(all(map(lt, column, islice(column, 1, None))) for column in (self._keys, self._values))

    def to_bytes(self) -> bytes:
        return _interleaved(self._keys, self._values)

    @classmethod
    def from_bytes(cls, layout: struct.Struct, data: bytes) -> "GrowingIndex":
        index = cls(layout)
        index._keys, index._values = _columns(layout, data)
        return index


def with_end(times: bytes) -> bytes:
    """The time index of a sealed segment as its file has it: with an entry more, the last one again. So an index that
    has lost its end is noticed; the largest timestamp that it still has would be believed.
    """
    return times + (times[-TIME_ENTRY.size :] or _NO_TIMES)


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
        entry = self._pread(size, slot * size)
        if len(entry) < size:  # the file has become shorter since it was opened
            return 0, 0
        key, value = self._layout.unpack(entry)
        return key, value

    def take_end(self) -> bool:
        """Whether the file ends as `with_end` has made it. What that has added is no entry from now on."""
        size = self._layout.size
        last = self._pread(2 * size, max(self._file.size - 2 * size, 0))
        if self._file.size % size or last != with_end(last[:-size]):
            return False
        self._count -= 1
        return True

    def floor(self, key: int) -> int:
        return self._search(key, 0)

    def floor_value(self, value: int) -> int:
        return self._search(value, 1)

    def read_all(self) -> GrowingIndex:
        """All entries, in memory. Those that the file has lost since it was opened are 0: the index does not rise."""
        size_bytes = self._count * self._layout.size
        return GrowingIndex.from_bytes(self._layout, self._pread(size_bytes, 0).ljust(size_bytes, b"\0"))

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
        data = self._pread(min(LEAF_ENTRIES, self._count - slot) * size, slot * size)
        self._leaf = _columns(self._layout, data[: len(data) - len(data) % size])
        self._leaf_slot = slot

    def _pread(self, size: int, position: int) -> bytes:
        """Nothing if somebody has removed the file, and its descriptor was closed to make room for others."""
        try:
            return self._file.pread(size, position)
        except DiskFault as fault:
            if fault.is_missing:
                return b""
            raise


# A sealed segment may have a million entries, and the loop waits while they are written or read. So entries are not
# packed one by one: columns are copied, word by word. A word has four bytes. A key is one word or two, a value is one.


def _interleaved(keys: "array[int]", values: "array[int]") -> bytes:
    """The entries of a file, from these columns."""
    key_words = keys.itemsize // WORD
    of_keys = array("I", _swapped(keys).tobytes())
    words = array("I", bytes(WORD * (len(of_keys) + len(values))))
    for at in range(key_words):
        words[at :: key_words + 1] = of_keys[at::key_words]
    words[key_words :: key_words + 1] = _swapped(values)
    return words.tobytes()


def _columns(layout: struct.Struct, data: bytes) -> tuple["array[int]", "array[int]"]:
    """The inverse of `_interleaved`."""
    words = array("I", data)
    keys = array(_key_type(layout))
    key_words = keys.itemsize // WORD
    values = words[key_words :: key_words + 1]
    of_keys = array("I", bytes(WORD * (len(words) - len(values))))
    for at in range(key_words):
        of_keys[at::key_words] = words[at :: key_words + 1]
    keys.frombytes(of_keys.tobytes())
    return _swapped(keys), _swapped(values)


def _key_type(layout: struct.Struct) -> str:
    return "q" if layout is TIME_ENTRY else "I"


def _swapped(column: "array[int]") -> "array[int]":
    """The column from the byte order of this machine to the one of files, or back."""
    column = column[:]
    if sys.byteorder == "little":
        column.byteswap()
    return column
