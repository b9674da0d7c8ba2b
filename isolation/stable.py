"""Which transactions are open in one partition, and up to which offset everything is decided: the last stable offset.

This is a view of the partition's log. It alone owns the fact "producer P has a transaction open here since offset O";
`idempotence.producers` reads it through `open_transactions`.

What always holds:
 - The last stable offset is the least of: the high watermark; the first offset of any open transaction; the first
   offset of any ended transaction whose marker is not below the high watermark. It is never below the log's start.
 - It never falls between two restores, as long as the high watermark doesn't.
 - A range is in the aborted index if its transaction wrote here and ended with an abort marker. A marker without an
   open transaction adds nothing.
 - A transactional batch without a producer id opens nothing: nobody could end it. Such batches are refused, but older
   logs may hold some.

The caller passes the high watermark, which must never fall: what is below it is not looked at again.
"""

import struct
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from isolation.aborted import AbortedRange, AbortedRanges
from isolation.markers import NEVER, Markers
from log.batch import CONTROL, TRANSACTIONAL, BatchHeader, Buffer, CorruptBatch
from log.control import ControlType, read_marker

_HEAD: Final = struct.Struct(">BII")
_OPEN: Final = struct.Struct(">qqq")
_ENDED: Final = struct.Struct(">qq")
_SNAPSHOT_VERSION: Final = 2
"""Version 1 had no markers. Then those from the next one on are known."""
ROWS_TOGETHER: Final = 1_000
"""How many transactions are packed, or read from a snapshot, in one step: half a millisecond."""


class OpenTransaction(NamedTuple):
    """An open transaction: its producer, its first offset, and its begin (a timestamp of the producer)."""

    producer_id: int
    first_offset: int
    first_timestamp_ms: int


class _Rows(Collection[bytes]):
    """Some of these rows, each packed when it is asked for: to pack very many at once takes long."""

    __slots__ = ("_layout", "_rows", "_slots")

    def __init__(self, layout: struct.Struct, rows: Sequence[tuple[int, ...]], slots: range) -> None:
        self._layout = layout
        self._rows = rows
        self._slots = slots

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[bytes]:
        rows, pack = self._rows, self._layout.pack
        return (pack(*rows[slot]) for slot in self._slots)

    def __contains__(self, packed: object) -> bool:
        return any(each == packed for each in self)


def _in_parts(layout: struct.Struct, rows: Sequence[tuple[int, ...]]) -> Iterator[_Rows]:
    slots = range(len(rows))
    return (_Rows(layout, rows, slots[at : at + ROWS_TOGETHER]) for at in range(0, len(rows), ROWS_TOGETHER))


class StableOffsets:
    """The view `stable` of one partition."""

    name = "stable"
    must_see_all = False

    __slots__ = ("_aborted", "_began", "_ended", "_facts", "_open", "markers")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        # By first offset, in the order of these: all that is known of the open transactions, for `snapshot`.
        self._facts: dict[int, OpenTransaction] = {}
        # Every open transaction, in the order of first offsets. Some have ended since: these are removed when they come
        # to the front.
        self._began: deque[tuple[int, int]] = deque()
        # Ended transactions whose markers are not replicated yet: marker offset and first offset, markers ascending. If
        # a transaction began before another one that ended earlier, that earlier entry can't be the lowest any more and
        # is left out. So the first entry always has the lowest first offset.
        self._ended: deque[tuple[int, int]] = deque()
        self._aborted = AbortedRanges()
        self.markers = Markers()

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """Producer id to first offset. It is live: the same object for the whole life of the view. Not to be
        changed.
        """
        return self._open

    # -- the fold

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """Take up a batch that is in the log now."""
        attributes = header.attributes
        if not attributes & TRANSACTIONAL:
            return
        producer_id = header.producer_id
        if attributes & CONTROL:
            self.markers.add(header.base_offset)
            self._end(producer_id, header.base_offset, read_marker(batch, header).type)
        elif producer_id not in self._open and producer_id >= 0:
            self._begin(producer_id, header.base_offset, header.max_timestamp)

    def _begin(self, producer_id: int, first_offset: int, timestamp_ms: int) -> None:
        if self._began and self._began[-1][0] >= first_offset:
            raise CorruptBatch(f"a transaction begins at offset {first_offset}, after one at {self._began[-1][0]}")
        self._open[producer_id] = first_offset
        self._facts[first_offset] = OpenTransaction(producer_id, first_offset, timestamp_ms)
        self._began.append((first_offset, producer_id))

    def _end(self, producer_id: int, marker_offset: int, outcome: ControlType | None) -> None:
        if outcome is None:
            return  # a control record of another kind, or one whose transaction the cleaner has removed
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            return
        if first_offset >= marker_offset:
            raise CorruptBatch(f"a transaction ends at offset {marker_offset}, and began at {first_offset}")
        del self._facts[first_offset]
        began = self._began
        while began and self._open.get(began[0][1]) != began[0][0]:
            began.popleft()
        ended = self._ended
        while ended and ended[-1][1] >= first_offset:
            ended.pop()
        ended.append((marker_offset, first_offset))
        if outcome is ControlType.ABORT:
            self._aborted.add(AbortedRange(producer_id, first_offset, marker_offset))

    def set_start_offset(self, offset: int) -> None:
        """The log now starts at `offset`. A transaction that began below it stays open; aborted ranges that ended below
        it are forgotten.
        """
        self._aborted.drop_before(offset)
        self.forget_ended(offset)

    def forget_aborted(self, marker_offsets: Sequence[int]) -> Generator[None, None, None]:
        """The cleaner is about to remove these abort markers from the log, which are in the log's order. No batches of
        their transactions are left. The ranges are forgotten step by step; other work may be done between two steps.

        A client that is told of an aborted transaction drops the producer's batches until it meets the marker. Without
        the marker it would also drop what the producer committed later. So the range must be forgotten first, in this
        view and in all snapshots that are kept; then the marker may be removed.
        """
        aborted = None
        while aborted is not self._aborted:  # a restore has brought them back meanwhile
            aborted = self._aborted
            yield from aborted.remove(marker_offsets)

    # -- asked

    @property
    def has_aborted(self) -> bool:
        """Whether there are any aborted ranges. Most partitions have none and need no search."""
        return bool(self._aborted)

    @property
    def aborted_count(self) -> int:
        """How many aborted ranges there are."""
        return len(self._aborted)

    def forget_ended(self, high_watermark: int) -> None:
        """Forget ended transactions whose markers are below the high watermark, and so are replicated. On a follower,
        where the stable offset is never asked for, this keeps the list short.
        """
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset that is undecided, or whose decision is not replicated yet; None when there is none."""
        self.forget_ended(high_watermark)
        undecided = self._began[0][0] if self._began else None
        unreplicated = self._ended[0][1] if self._ended else None
        if undecided is None or unreplicated is None:
            return unreplicated if undecided is None else undecided
        return min(undecided, unreplicated)

    def last_stable_offset(self, high_watermark: int, log_start_offset: int) -> int:
        """A reader of committed data may read below this offset only."""
        if not self._began and not self._ended:
            return high_watermark
        unstable = self.first_unstable_offset(high_watermark)
        if unstable is None or unstable > high_watermark:
            return high_watermark
        return max(unstable, log_start_offset)

    def first_undecided_offset(self) -> int | None:
        """The first offset of the oldest open transaction. A cleaner must not pass it."""
        return self._began[0][0] if self._began else None

    def aborted_ranges(self, from_offset: int, end_offset: int) -> Iterator[AbortedRange]:
        """The aborted transactions that reach into [from_offset, end_offset), in marker order, one by one: a whole log
        may have a million of them.
        """
        return self._aborted.overlapping(from_offset, end_offset)

    def reaches_aborted(self, from_offset: int, end_offset: int) -> bool:
        """Whether there is any such transaction. With a million of them this takes some hundred looks, one for each
        chunk of ranges.
        """
        return self._aborted.reach_into(from_offset, end_offset)

    def aborted_from(self, offset: int) -> int:
        """How many aborted transactions have their marker at or above this offset."""
        return self._aborted.count_from(offset)

    def describe_open(self) -> Iterator[OpenTransaction]:
        """Every open transaction, the one that pins the last stable offset first."""
        yield from self._facts.values()

    # -- snapshots

    def snapshot(self) -> list[Collection[Buffer]]:
        """Everything that `apply` built. What is packed later are tuples that never change."""
        opened, ended = list(self._facts.values()), list(self._ended)
        return [
            (_HEAD.pack(_SNAPSHOT_VERSION, len(opened), len(ended)),),
            *_in_parts(_OPEN, opened),
            *_in_parts(_ENDED, ended),
            (self.markers.to_bytes(),),
            *self._aborted.lend(),
        ]

    def restoring(self, data: Buffer | None) -> Generator[None, None, None]:
        """Replace the state by that of a snapshot; None: by an empty one. ValueError if the bytes are no snapshot.
        Nothing changes before the last step.
        """
        anew = self.anew()
        if data is not None:
            try:
                version, open_count, ended_count = _HEAD.unpack_from(data)
                if version not in (1, _SNAPSHOT_VERSION):
                    raise ValueError(f"stable snapshot of version {version}")
                ended_at = _HEAD.size + open_count * _OPEN.size
                aborted_at = ended_at + ended_count * _ENDED.size
                for fields in _unpacked(_OPEN, memoryview(data)[_HEAD.size : ended_at]):
                    if fields is None:
                        yield
                    elif fields[0] >= 0:
                        anew._begin(*fields)
                for fields in _unpacked(_ENDED, memoryview(data)[ended_at:aborted_at]):
                    if fields is None:
                        yield
                    else:
                        anew._ended.append((fields[0], fields[1]))
                if version == 1:
                    anew.markers = Markers(NEVER)
                else:
                    anew.markers, aborted_at = Markers.from_bytes(data, aborted_at)
            except struct.error as error:
                raise ValueError("the stable snapshot is cut short") from error
            anew._aborted = yield from AbortedRanges.reading(memoryview(data)[aborted_at:])
        self.swap(anew)

    def anew(self) -> "StableOffsets":
        return StableOffsets()

    def swap(self, other: "StableOffsets") -> None:
        # The mapping is emptied and filled, not replaced: the producers' view reads this same object.
        opened = self._open.copy()
        self._open.clear()
        self._open.update(other._open)
        other._open = opened
        self._facts, other._facts = other._facts, self._facts
        self._began, other._began = other._began, self._began
        self._ended, other._ended = other._ended, self._ended
        self._aborted, other._aborted = other._aborted, self._aborted
        self.markers, other.markers = other.markers, self.markers


def _unpacked(layout: struct.Struct, data: memoryview) -> Iterator[tuple[int, ...] | None]:
    """The rows in these bytes; None wherever a step ends."""
    for count, row in enumerate(layout.iter_unpack(data), 1):
        yield row
        if count % ROWS_TOGETHER == 0:
            yield None
