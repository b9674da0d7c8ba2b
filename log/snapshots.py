"""Snapshots: files with what the views knew at one offset, so that a restart need not read the whole log. Here are
their bytes, and the snapshots of one log (`Snapshots`).

What always holds: a snapshot is a hint. It is used only if its checksum fits, and if the log has the snapshot's leader
epoch at that offset. Two different histories of the same length never have the same epoch in their last batch. So an
old snapshot that a crash brings back after a truncation is recognised and not used. A recovery, which does not know all
epochs yet, uses what is not above the trusted offset: a truncation is durable before that rises again.

    0   "OLSN"                       |  8   CRC-32C of [12:]         u32
    4   version, 1           u16     |  12  offset                   i64
    6   number of views      u16     |  20  epoch of offset - 1      i32
    then for each view: name size u16, name, data size u32, data
"""

import asyncio
import struct
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from log.batch import Buffer, crc32c
from log.disk import Disk, DiskFault, File
from log.epochs import LeaderEpochs
from log.ids import NO_EPOCH
from log.steps import done_at_once, done_in_steps
from log.unbroken import unbroken
from log.views import Content, View, joining

ViewT = TypeVar("ViewT", bound=View)

REWRITTEN: Final = 8
"""So many of the newest snapshots are written anew."""
SUFFIX: Final = ".snapshot"
MAGIC: Final = b"OLSN"
VERSION: Final = 1
NEWEST_KEPT: Final = 2
WORTH_A_STEP: Final = 1_000
"""After so many parts, or KB, other work may be done."""
READ_AT_ONCE: Final = 1 << 20
REMOVED_A_TURN: Final = 50
STORED_AT_ONCE: Final = 16
SMALL_BYTES: Final = 16 << 10
"""A snapshot that is no larger is written in a few microseconds, so no thread is needed for that."""
_HEADER: Final = struct.Struct(">4sHHIqi")
_CHECKED_FROM: Final = 12


class Snapshot(NamedTuple):
    """What each view knew when the log ended at `offset`."""

    offset: int
    leader_epoch: int
    views: Mapping[str, Content]


class BadSnapshot(ValueError):
    """The bytes are not a whole snapshot."""


def snapshot_name(offset: int) -> str:
    return f"{offset:020}{SUFFIX}"


def take_snapshot(views: Sequence[View], *, offset: int, leader_epoch: int) -> Snapshot:
    return Snapshot(offset, leader_epoch, {view.name: view.snapshot() for view in views})


def encode_snapshot(snapshot: Snapshot) -> bytearray:
    data = bytearray()
    for _ in encoding(snapshot, data):
        pass
    return data


def encoding(snapshot: Snapshot, data: bytearray) -> Iterator[None]:
    """Fill `data` step by step. Other work may be done between two steps."""
    data += _HEADER.pack(MAGIC, VERSION, len(snapshot.views), 0, snapshot.offset, snapshot.leader_epoch)
    checksum = crc32c(data[_CHECKED_FROM:])
    done = 0
    for name, content in snapshot.views.items():
        size_bytes = 0
        collections: Sequence[Collection[Buffer]] = [(content,)] if isinstance(content, Buffer) else content
        for parts in collections:
            size_bytes += sum(map(len, parts))
            done += len(parts)
            if done > WORTH_A_STEP:
                done = 0
                yield
        encoded = name.encode("utf-8")
        prefix = struct.pack(">H", len(encoded)) + encoded + struct.pack(">I", size_bytes)
        data += prefix
        checksum = crc32c(prefix, checksum)
        for parts in collections:
            joined = b"".join(parts)
            data += joined
            checksum = crc32c(joined, checksum)
            done += len(parts) + (len(joined) >> 10)
            if done > WORTH_A_STEP:
                done = 0
                yield
    struct.pack_into(">I", data, 8, checksum)


def decode_snapshot(data: Buffer) -> Snapshot:
    """The inverse of `encode_snapshot`; `BadSnapshot` for anything else."""
    return _decode(memoryview(data), crc32c(memoryview(data)[_CHECKED_FROM:]))


def _decode(data: memoryview, true_checksum: int) -> Snapshot:
    if len(data) < _HEADER.size:
        raise BadSnapshot(f"only {len(data)} bytes")
    magic, version, count, checksum, offset, leader_epoch = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or checksum != true_checksum:
        raise BadSnapshot("wrong magic, version or checksum")
    views: dict[str, Content] = {}
    at = _HEADER.size
    for _ in range(count):
        name, at = _take(data, at, ">H")
        content, at = _take(data, at, ">I")
        views[str(name, "utf-8")] = content
    return Snapshot(offset, leader_epoch, views)


def restoring_newest(
    disk: Disk, folder: str, views: Sequence[View], offsets: Sequence[int], *, epochs: LeaderEpochs, end_offset: int
) -> Generator[None, None, int]:
    """Restore the views, step by step, from the newest snapshot that fits a log ending at `end_offset`.

    Returns the offset from which batches must be applied; 0, and views that know nothing, when no snapshot fits.
    """
    for offset in sorted(offsets, reverse=True):
        if offset > end_offset or not views:
            continue
        snapshot = yield from _reading_if_right(disk, f"{folder}/{snapshot_name(offset)}")
        if snapshot is not None and _fits(snapshot, views, epochs):
            yield from restoring(views, snapshot.views)
            return offset
    yield from restoring(views, {})
    return 0


def restore(views: Sequence[View], contents: Mapping[str, Content]) -> None:
    done_at_once(restoring(views, contents))


def restoring(views: Sequence[View], contents: Mapping[str, Content]) -> Generator[None, None, None]:
    """`restore`, step by step. Other work may be done between two steps, but not with these views."""
    for view in views:
        content = contents.get(view.name)
        yield from view.restoring(None if content is None else (yield from joining(content)))


def _reading_if_right(disk: Disk, path: str) -> Generator[None, None, Snapshot | None]:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    data, checksum = bytearray(), 0
    try:
        while piece := file.pread(READ_AT_ONCE, len(data)):
            checksum = crc32c(memoryview(piece)[0 if data else _CHECKED_FROM :], checksum)
            data += piece
            yield
    finally:
        file.close()
    try:
        return _decode(memoryview(data), checksum)
    except BadSnapshot:
        return None


def _fits(snapshot: Snapshot, views: Sequence[View], epochs: LeaderEpochs) -> bool:
    """Whether the snapshot belongs to this log's history and has a part for every view."""
    known = epochs.epoch_at(snapshot.offset - 1)
    same_history = NO_EPOCH in (known, snapshot.leader_epoch) or known == snapshot.leader_epoch
    return same_history and all(view.name in snapshot.views for view in views)


def superfluous(offsets: Sequence[int], first_segment_offset: int) -> list[int]:
    """Which snapshots may be removed: those older than the oldest segment, except the newest two."""
    return [offset for offset in sorted(offsets)[:-NEWEST_KEPT] if offset < first_segment_offset]


def _take(data: memoryview, at: int, size_format: str) -> tuple[memoryview, int]:
    (size,) = struct.unpack_from(size_format, data, at)
    at += struct.calcsize(size_format)
    return data[at : at + size], at + size


class Snapshots:
    """The snapshots of one log: the offsets of the `stored` ones, and those that are `pending` until the next flush."""

    __slots__ = ("_disk", "_folder", "pending", "stored")

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self.stored: list[int] = []
        self.pending: dict[int, Snapshot] = {}

    def take(self, views: Sequence[View], *, offset: int, leader_epoch: int) -> None:
        """Take a snapshot of the views, to be stored by the next flush.

        Every segment needs a snapshot at its beginning: after the segments before it are removed, nothing else says
        what the views knew from them.
        """
        assert offset >= max(self.pending, default=0), "the newest snapshot is the one of the highest offset"
        if views:
            self.pending[offset] = take_snapshot(views, offset=offset, leader_epoch=leader_epoch)

    def restoring(self, views: Sequence[View], *, epochs: LeaderEpochs, end_offset: int) -> Generator[None, None, int]:
        """Restore the views, step by step, from the newest snapshot that fits a log ending at `end_offset`. Returns
        the offset from which batches must be applied.
        """
        pending = max((offset for offset in self.pending if offset <= end_offset), default=-1)
        stored = [offset for offset in self.stored if offset <= end_offset]
        if pending > max(stored, default=-1):
            yield from restoring(views, self.pending[pending].views)
            return pending
        return (
            yield from restoring_newest(self._disk, self._folder, views, stored, epochs=epochs, end_offset=end_offset)
        )

    def oldest(
        self, views: Sequence[View], *, epochs: LeaderEpochs, from_offset: int
    ) -> Generator[None, None, Snapshot | None]:
        """The oldest stored snapshot from that offset on that fits the log. It is read step by step; meanwhile the
        caller keeps away what changes the snapshots.
        """
        for offset in self.stored:
            if views and offset >= from_offset:
                snapshot = yield from _reading_if_right(self._disk, self._path(offset))
                if snapshot is not None and _fits(snapshot, views, epochs):
                    return snapshot
        return None

    def is_stored(self, offset: int) -> bool:
        slot = bisect_left(self.stored, offset)
        return self.stored[slot : slot + 1] == [offset] and offset not in self.pending

    async def rewrite(
        self,
        from_offset: int,
        view: ViewT,
        change: Callable[[ViewT], Generator[None, None, None]],
        breathe: Callable[[], Awaitable[None]],
    ) -> None:
        """Write the first stored snapshot from that offset on anew, and the newest ones, with what `change` makes of
        what `view` knew then. Those between are removed, because each takes an fsync: what begins with one of them
        begins with an older one then. One that can't be read is removed: nobody can begin with it. The caller holds the
        log's `alone`.
        """
        stored = [each for each in self.stored if each >= from_offset]
        await self._unlink_in_turns(stored[1:-REWRITTEN])
        for offset in [*stored[:1], *stored[1:][-REWRITTEN:]]:
            data = await done_in_steps(self._changed(offset, view, change), breathe)
            if data is None:
                self._unlink(offset)
            else:  # without its end, a cut could remove the file before it comes
                await unbroken(self._disk.write_atomic(self._path(offset), data))

    def _changed(
        self, offset: int, view: ViewT, change: Callable[[ViewT], Generator[None, None, None]]
    ) -> Generator[None, None, bytearray | None]:
        snapshot = yield from _reading_if_right(self._disk, self._path(offset))
        if snapshot is None or view.name not in snapshot.views:
            return None
        other = view.anew()
        yield from other.restoring((yield from joining(snapshot.views[view.name])))
        yield from change(other)
        data = bytearray()
        yield from encoding(snapshot._replace(views={**snapshot.views, view.name: other.snapshot()}), data)
        return data

    async def store(self, end_offset: int) -> None:
        """Store those that are pending now, up to that offset."""
        due = [snapshot for offset, snapshot in sorted(self.pending.items()) if offset <= end_offset]
        for first in range(0, len(due), STORED_AT_ONCE):
            await self._store(due[first : first + STORED_AT_ONCE])

    async def _store(self, some: Sequence[Snapshot]) -> None:
        """Several small ones are made durable together: each alone takes two waits for the disk. If a crash tears them,
        they are passed over, as if they had never been stored.
        """
        written: dict[str, File] = {}
        try:
            for snapshot in some:
                data, path = bytearray(), self._path(snapshot.offset)
                for _ in encoding(snapshot, data):
                    await asyncio.sleep(0)
                if len(some) == 1 or len(data) > SMALL_BYTES or snapshot.offset in self.stored:
                    await self._disk.write_atomic(path, data)
                else:
                    written[path] = file = self._disk.open(path, create=True)
                    file.truncate(0)
                    file.append((data,))
            if written:
                await self._disk.sync_files(list(written.values()))
                await self._disk.sync_dir(self._folder)
        except BaseException:
            with suppress(DiskFault):  # they are not stored
                for path in written:
                    self._disk.unlink(path)
            raise
        finally:
            for file in written.values():
                file.close()
        for snapshot in some:
            if self.pending.get(snapshot.offset) is snapshot:
                del self.pending[snapshot.offset]
                self.stored = sorted({*self.stored, snapshot.offset})
            else:  # the log was cut below this offset meanwhile
                self._disk.unlink(self._path(snapshot.offset))

    def write(self) -> None:
        """Write all pending snapshots without syncing each; a sync of the whole disk follows. If a crash tears one, its
        checksum shows it.
        """
        for offset, snapshot in sorted(self.pending.items()):
            file = self._disk.open(self._path(offset), create=True)
            file.truncate(0)
            file.append((encode_snapshot(snapshot),))
            file.close()

    def note_written(self) -> None:
        """The snapshots that `write` has written are durable now."""
        self.stored = sorted({*self.stored, *self.pending})
        self.pending = {}

    def forget_above(self, offset: int) -> list[int]:
        """Forget what is above. Returns the offsets of those whose files are still to be removed."""
        for each in [each for each in self.pending if each > offset]:
            del self.pending[each]
        leaving = [each for each in self.stored if each > offset]
        self.stored = [each for each in self.stored if each <= offset]
        return leaving

    def remove(self, offset: int) -> None:
        """Remove the file of one that is forgotten."""
        self._disk.unlink(self._path(offset))

    async def forget_below(self, offset: int) -> None:
        await self._unlink_in_turns([each for each in self.stored if each < offset])

    async def _unlink_in_turns(self, offsets: Sequence[int]) -> None:
        for count, each in enumerate(offsets, 1):
            self._unlink(each)
            if count % REMOVED_A_TURN == 0:
                await asyncio.sleep(0)

    def forget_superfluous(self, first_segment_offset: int) -> None:
        for each in superfluous(self.stored, first_segment_offset):
            self._unlink(each)

    def folder_renamed(self, folder: str) -> None:
        self._folder = folder

    def _unlink(self, offset: int) -> None:
        self.remove(offset)
        self.stored.remove(offset)

    def _path(self, offset: int) -> str:
        return f"{self._folder}/{snapshot_name(offset)}"
