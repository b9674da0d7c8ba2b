"""Reads the segment and index files of a stopped broker, including damaged ones, and never writes.

What always holds: every byte of a segment belongs to a batch that was found, or to a `FileDamage`. Batches after
damaged bytes are searched for. The formats are those of `log/FORMAT.md`. Apache Kafka's files of magic 2 can be read,
too.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from log.batch import MAGIC, MAGIC_AT, BatchHeader, CorruptBatch, checksum_ok, read_header
from log.compress import Codec
from log.index import OFFSET_ENTRY, TIME_ENTRY
from log.segment import LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX
from log.snapshots import MAGIC as SNAPSHOT_MAGIC
from log.snapshots import SUFFIX as SNAPSHOT_SUFFIX
from log.snapshots import BadSnapshot, decode_snapshot
from service.cli.data_lock import is_locked
from service.cli.failures import CliError, Exit


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch and its place in the file."""

    position: int
    header: BatchHeader
    data: memoryview

    @property
    def checksum_ok(self) -> bool:
        """Whether the checksum is right. This reads the whole batch; everything else here reads only its header."""
        return checksum_ok(self.data, self.header)


@dataclass(frozen=True, slots=True)
class FileDamage:
    """Bytes that are not as they were written. `torn_tail`: the end of the last segment, as a crash may leave it."""

    file: str
    position: int
    size_bytes: int
    reason: str
    torn_tail: bool = False


def walk(path: Path) -> Iterator[FoundBatch | FileDamage]:
    """Every batch of a segment, and the damage between them. The views are valid until the next step."""
    if path.stat().st_size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        view = memoryview(content)
        try:
            yield from _walk(path, content, view)
        finally:
            view.release()


def _walk(path: Path, content: mmap.mmap, view: memoryview) -> Iterator[FoundBatch | FileDamage]:
    position, end = 0, len(view)
    while position < end:
        try:
            header = read_header(view, position)
            reason = "" if position + header.size_bytes <= end else "the file ends inside this batch"
        except CorruptBatch as error:
            reason = str(error)
        if reason:
            following = _next_batch(content, view, position + 1)
            yield FileDamage(str(path), position, following - position, reason, torn_tail=following == end)
            position = following
            continue
        with view[position : position + header.size_bytes] as data:
            yield FoundBatch(position, header, data)
        position += header.size_bytes


def _next_batch(content: mmap.mmap, view: memoryview, position: int) -> int:
    """Where the next whole batch with a correct checksum begins; the end of the file if there is none."""
    at = content.find(bytes([MAGIC]), position + MAGIC_AT)
    while at >= 0:
        start = at - MAGIC_AT
        try:
            header = read_header(view, start)
        except CorruptBatch:
            header = None
        if header is not None and start + header.size_bytes <= len(view):
            with view[start : start + header.size_bytes] as data:
                if checksum_ok(data, header):
                    return start
        at = content.find(bytes([MAGIC]), at + 1)
    return len(view)


def segments_in(folder: Path) -> list[Path]:
    """The segments of a partition's folder, oldest first."""
    return sorted(path for path in folder.glob(f"*{LOG_SUFFIX}") if path.stem.isdigit())


def partition_folders(path: Path) -> list[Path]:
    """`path` itself if it has segments, otherwise its sub-folders that have."""
    if segments_in(path):
        return [path]
    return sorted(each for each in path.iterdir() if each.is_dir() and segments_in(each))


paths_argument = click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True), metavar="PATH..."
)


def folders_to_read(path: Path) -> list[Path]:
    """The partitions' folders that the user has named. Warns if a broker writes there now."""
    folder = path if path.is_dir() else path.parent
    folders = partition_folders(folder)
    if not folders:
        raise CliError(f"{path} holds no segments", Exit.NOT_FOUND)
    for data_folder in dict.fromkeys([folder, *(each.parent for each in folders)]):
        if is_locked(data_folder):
            click.echo(f"a broker runs on {data_folder}: what it writes now may look torn", err=True)
    return folders


def warn_of(damage: FileDamage) -> None:
    where = f"{damage.file} at {damage.position}"
    click.echo(f"{where}: {damage.size_bytes} bytes are no batch: {damage.reason}", err=True)


def codec_name(number: int) -> str:
    try:
        return Codec(number).name.lower()
    except ValueError:
        return str(number)


def offset_entries(path: Path) -> Iterator[tuple[int, int]]:
    """(last offset of a batch, position of that batch) as an `.index` file has them."""
    for relative, position in _entries(path, OFFSET_ENTRY):
        yield int(path.stem) + relative, position


def time_entries(path: Path) -> Iterator[tuple[int, int]]:
    """(timestamp, offset) as a `.timeindex` file has them."""
    for timestamp, relative in _entries(path, TIME_ENTRY):
        yield timestamp, int(path.stem) + relative


def _entries(path: Path, layout: struct.Struct) -> Iterator[tuple[int, int]]:
    data = path.read_bytes()
    whole = len(data) - len(data) % layout.size
    for entry in layout.iter_unpack(data[:whole]):
        if any(entry) or whole == layout.size:  # Kafka's open indexes are filled up with zeros
            yield entry[0], entry[1]


class SegmentCheck:
    """Checks one segment, batch by batch."""

    def __init__(self, path: Path, next_offset: int) -> None:
        self.path = path
        self.base_offset = int(path.stem)
        self.next_offset = max(next_offset, self.base_offset)
        self.batches = 0
        self.records = 0
        self.epoch = -1
        self.positions: dict[int, int] = {}
        self.overlap = next_offset > self.base_offset

    def problems(self) -> Iterator[FileDamage]:
        """Everything that is wrong, in the order of the file. Counts and offsets are known at the end."""
        if self.overlap:
            yield FileDamage(str(self.path), 0, 0, f"begins at offset {self.base_offset}, inside the segment before")
        for found in walk(self.path):
            if isinstance(found, FileDamage):
                yield found
                continue
            reason = self._what_is_wrong(found)
            if reason:
                yield self._damage(found, reason)
            self._count(found)
        yield from self._index_problems()

    def _damage(self, found: FoundBatch, reason: str) -> FileDamage:
        size_bytes = found.header.size_bytes
        is_last = found.position + size_bytes == self.path.stat().st_size
        return FileDamage(
            str(self.path), found.position, size_bytes, reason, torn_tail=is_last and not found.checksum_ok
        )

    def _what_is_wrong(self, found: FoundBatch) -> str:
        header = found.header
        if not found.checksum_ok:
            return "wrong checksum"
        if header.base_offset < self.next_offset:
            return f"offset {header.base_offset} where {self.next_offset} or more was due"
        if header.leader_epoch < self.epoch:
            return f"leader epoch {header.leader_epoch} after {self.epoch}"
        if header.record_count > header.last_offset_delta + 1:
            return f"{header.record_count} records in {header.last_offset_delta + 1} offsets"
        return ""

    def _count(self, found: FoundBatch) -> None:
        self.batches += 1
        self.records += found.header.record_count
        self.next_offset = max(self.next_offset, found.header.next_offset)
        self.epoch = max(self.epoch, found.header.leader_epoch)
        self.positions[found.header.last_offset] = found.position

    def _index_problems(self) -> Iterator[FileDamage]:
        """Index entries that point to no batch. A missing index is no damage: it is rebuilt when needed."""
        offsets = self.path.with_suffix(OFFSET_SUFFIX)
        if offsets.exists():
            for number, (offset, position) in enumerate(offset_entries(offsets)):
                if self.positions.get(offset) != position:
                    reason = f"no batch that ends with offset {offset} at position {position}"
                    yield FileDamage(str(offsets), number * OFFSET_ENTRY.size, OFFSET_ENTRY.size, reason)
        times = self.path.with_suffix(TIME_SUFFIX)
        if times.exists():
            latest = -1
            for number, (timestamp, offset) in enumerate(time_entries(times)):
                if timestamp < latest or not self.base_offset <= offset < max(self.next_offset, self.base_offset + 1):
                    reason = f"offset {offset} for timestamp {timestamp} cannot be"
                    yield FileDamage(str(times), number * TIME_ENTRY.size, TIME_ENTRY.size, reason)
                latest = max(latest, timestamp)


def snapshot_problems(folder: Path) -> Iterator[FileDamage]:
    """Snapshots with a wrong checksum. Snapshots are hints: without one the log is replayed."""
    for path in sorted(folder.glob(f"*{SNAPSHOT_SUFFIX}")):
        data = path.read_bytes()
        try:
            decode_snapshot(data)
        except BadSnapshot as error:
            # Kafka's own files of that name hold something else.
            if data[:4] == SNAPSHOT_MAGIC or not data:
                yield FileDamage(str(path), 0, len(data), f"not a whole snapshot: {error}")
