"""The offsets of transaction markers, which no reader is given, and how many records are left for a reader.

What always holds: of a partition the newest markers are known, KEPT of them if it has so many, and all markers from
`known_from` on. So what is left to read near the end is told exactly, and far back it is told as "at most".
"""

import struct
from array import array
from bisect import bisect_left
from typing import Final, NamedTuple

from isolation.aborted import little_endian
from log.batch import Buffer

KEPT: Final = 500
"""How many markers are known. Each takes 8 bytes, in memory and in snapshots."""
_ROOM: Final = KEPT // 4
"""So many more are kept before the oldest are dropped at once."""
NEVER: Final = 2**63 - 1
_HEAD: Final = struct.Struct(">qI")


class Left(NamedTuple):
    """What is left to read from an offset on: offsets of the log that are no markers. Records of aborted transactions
    count, as those do that compaction has removed: a reader must get past them.
    """

    decided: int
    """Up to the last stable offset."""
    undecided: int
    """From there to the high watermark: of open transactions, or written after one."""
    is_exact: bool
    """False: markers too far back to be known are counted, too, so there are at most so many."""

    @property
    def total(self) -> int:
        return self.decided + self.undecided


class Markers:
    """The newest markers of one partition, as a fold over its log."""

    __slots__ = ("_offsets", "_since")

    def __init__(self, known_from: int = 0) -> None:
        self._offsets = array("q")
        self._since = known_from

    @property
    def known_from(self) -> int:
        """All markers at or above this offset are known. NEVER: none is."""
        return self._offsets[-KEPT] if len(self._offsets) > KEPT else self._since

    def add(self, offset: int) -> None:
        self._since = min(self._since, offset)
        self._offsets.append(offset)
        if len(self._offsets) > KEPT + _ROOM:
            del self._offsets[:-KEPT]
            self._since = self._offsets[0]

    def count(self, from_offset: int, end_offset: int) -> int:
        """How many are known in this range."""
        first = max(bisect_left(self._offsets, from_offset), len(self._offsets) - KEPT)
        return max(bisect_left(self._offsets, end_offset) - first, 0)

    def left(self, offset: int, *, start: int, stable: int, high: int) -> Left:
        """What is left from `offset` on of a log that begins at `start`, if readers of committed data get what is below
        `stable`, and others what is below `high`. This is the one count of lag: of metrics, pages, HTTP and the command
        line.
        """
        offset = max(offset, start)
        decided = max(stable - offset, 0)
        undecided = max(high - max(stable, offset), 0)
        return Left(
            decided and decided - self.count(offset, stable),
            undecided and undecided - self.count(max(stable, offset), high),
            offset >= min(self.known_from, high),
        )

    def since(self, offset: int) -> "Markers":
        """Those at or above this offset."""
        found = Markers(max(self.known_from, offset))
        first = max(bisect_left(self._offsets, offset), len(self._offsets) - KEPT)
        found._offsets = self._offsets[first:]
        return found

    # -- snapshots, and answers to other brokers

    def to_bytes(self) -> bytes:
        """`known_from` and the number of offsets, big-endian; the offsets, little-endian."""
        known = little_endian(self._offsets[-KEPT:])
        return _HEAD.pack(self.known_from, len(known)) + known.tobytes()

    @classmethod
    def from_bytes(cls, data: Buffer, at: int = 0) -> "tuple[Markers, int]":
        """The inverse of `to_bytes`, and where it ends. ValueError if the bytes are cut short."""
        if len(data) < at + _HEAD.size:
            raise ValueError("the markers are cut short")
        known_from, count = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        end = at + count * 8
        if end > len(data):
            raise ValueError("the markers are cut short")
        markers = cls(known_from)
        markers._offsets.frombytes(data[at:end])
        markers._offsets = little_endian(markers._offsets)
        return markers, end
