# Hot path: `append` and `position_of` (log/README.md has the numbers). Plain twin: tests/properties/test_log_index.py.
"""One segment: whole batches back to back in one file, and two sparse indexes over them.

What always holds:
* `size_bytes` is where the next batch goes and `end_offset` is above every offset inside; both move only after the
  bytes are in the file.
* The indexes are hints. While the segment is written they grow in memory. `seal` writes them to files, and from then on
  they are searched there. An index that is missing, or that does not point to a batch with what it names, is rebuilt
  from the headers. So is a time index without its end, and an offset index that leaves a long walk to a search. In a
  large segment that takes seconds, so the one who asked is told to come again (`IndexesLost`), and the indexes are
  rebuilt in steps (`rebuilding`).
* What a rebuild writes is not made durable. A power cut may leave any part of it, which is noticed like other harm.
* The file is opened when it is first needed, so a segment that nobody reads costs a few hundred bytes.
"""

import errno
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from log.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatch,
    crc32c,
    newest_timestamp,
    read_extent,
    read_header,
)
from log.config import LogConfig
from log.disk import Disk, DiskFault, File, FileSlice
from log.ids import NO_OFFSET, NO_TIMESTAMP
from log.index import OFFSET_ENTRY, TIME_ENTRY, GrowingIndex, Index, StoredIndex, with_end
from log.many import Stretch, index_entries, largest_so_far
from log.steps import done_at_once

LOG_SUFFIX: Final = ".log"
OFFSET_SUFFIX: Final = ".index"
TIME_SUFFIX: Final = ".timeindex"
SUFFIXES: Final = (LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX)

SEGMENT_BYTES_MAX: Final = 2**31 - 1
"""Positions and relative offsets are 31 bits in the index files, as in Kafka's."""
WALK_BYTES: Final = 8 << 10
"""How many bytes a walk over headers reads at once: a little more than lie between two index entries."""
SCAN_BYTES: Final = 4 << 20
"""How many bytes a scan over whole batches reads at once."""
CHECKED_BATCHES: Final = 5_000
"""How many batches a copier is given at most at once: to walk over their headers takes 5 ms."""

REBUILD_INTERVAL_BYTES: Final = 4096
"""The interval between the entries of a rebuilt index, whatever the topic's setting is."""
REBUILT_AT_ONCE_BYTES = 64 << 10
"""The indexes of a segment that is no larger are rebuilt where they are missed: it has a thousand batches at most."""
REBUILT_BATCHES: Final = 500
"""How many headers a step of a rebuild looks at, which takes a millisecond or two."""
WALKED_BATCHES: Final = 1_000
"""If a search in a stored index leaves more batches than this to walk over, the index is rebuilt: it has lost entries,
or the topic's interval between them is large.
"""


class IndexFacts(NamedTuple):
    """The index files of a cleanly closed active segment: entries and checksum of each."""

    offset_entries: int
    offset_crc: int
    time_entries: int
    time_crc: int


NO_INDEXES: Final = IndexFacts(0, 0, 0, 0)


class IndexesLost(DiskFault):
    """The indexes must be rebuilt before the segment can be searched or written to. Nothing was changed, and the same
    succeeds when that is done.
    """

    def __init__(self, segment: "Segment") -> None:
        super().__init__(errno.EAGAIN, "the indexes must be rebuilt first", segment.path(OFFSET_SUFFIX))
        self.segment = segment

    @property
    def passing(self) -> bool:
        return True


class SegmentFacts(NamedTuple):
    """All that is known of a segment without opening it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    largest_timestamp: int
    largest_timestamp_offset: int
    first_timestamp: int
    appended_ms: int
    indexes: IndexFacts | None = None
    begun_ms: int = 0
    """When the first batch came; 0: the segment is sealed, or an earlier release has told the rest."""


def segment_name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    return f"{base_offset:020}{suffix}"


class Segment:
    """One file of batches. Nothing is appended to a segment that is `sealed`."""

    __slots__ = (
        "_boundary",
        "_disk",
        "_file",
        "_folder",
        "_index_facts",
        "_likely",
        "_name_suffix",
        "_offsets",
        "_rebuild_fault",
        "_rebuilt",
        "_times",
        "_unindexed_bytes",
        "appended_ms",
        "base_offset",
        "begun_ms",
        "end_offset",
        "first_timestamp",
        "gone",
        "largest_timestamp",
        "largest_timestamp_offset",
        "sealed",
        "size_bytes",
    )

    def __init__(self, disk: Disk, folder: str, facts: SegmentFacts, *, sealed: bool, name_suffix: str = "") -> None:
        self._disk = disk
        self._folder = folder
        self._file: File | None = None
        self._offsets: Index | None = None
        self._times: Index | None = None
        self._index_facts = facts.indexes
        # What a rebuild of the indexes has made so far. While it is there, the index files are not believed.
        self._rebuilt: Segment | None = None
        self._rebuild_fault: DiskFault | None = None
        self._name_suffix = name_suffix
        self._unindexed_bytes = 0
        # The batch boundary that the last read found for its limit (offset, position): all batches before the position
        # end below the offset. A consumer at the tail of the log reads from exactly there next.
        self._boundary = (NO_OFFSET, 0)
        # Where else the next read is likely to begin (offset, position). If the last read was cut short, that is where
        # it ended; NO_OFFSET: at a boundary whose offset is not known. Otherwise it is where the last read began:
        # followers read the same, one after the other.
        self._likely = (NO_OFFSET, 0)
        self.sealed = sealed
        self.gone = False
        self.base_offset = facts.base_offset
        self.end_offset = facts.end_offset
        self.size_bytes = facts.size_bytes
        self.largest_timestamp = facts.largest_timestamp
        self.largest_timestamp_offset = facts.largest_timestamp_offset
        self.first_timestamp = facts.first_timestamp
        self.appended_ms = facts.appended_ms
        self.begun_ms = facts.begun_ms or facts.appended_ms

    @classmethod
    def create(cls, disk: Disk, folder: str, base_offset: int, now_ms: int, *, name_suffix: str = "") -> "Segment":
        """A new, empty segment and its file. A file that has that name already is emptied.

        With a `name_suffix` the segment is no part of the log until `take_its_name`.
        """
        facts = SegmentFacts(base_offset, base_offset, 0, NO_TIMESTAMP, NO_OFFSET, NO_TIMESTAMP, now_ms)
        segment = cls(disk, folder, facts, sealed=False, name_suffix=name_suffix)
        segment._file = file = disk.open(segment.path(), create=True)
        if file.size:
            file.truncate(0)
        segment.start_indexes()
        return segment

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        return f"{self._folder}/{segment_name(self.base_offset, suffix)}{self._name_suffix}"

    def take_its_name(self) -> None:
        """The files have been renamed to the names that segments of the log have."""
        self.close()
        self._name_suffix = ""

    def folder_renamed(self, folder: str) -> None:
        if type(self._offsets) is GrowingIndex:
            self.close_file()  # growing indexes have no files to close
        else:
            self.close()
        self._folder = folder

    @property
    def file(self) -> File:
        """The batches. Opened on first use, and checked to be what the facts say it is."""
        if self._file is None:
            try:
                file = self._disk.open(self.path())
            except FileNotFoundError as error:
                raise DiskFault(error.errno, "the file is gone", self.path()) from error
            if file.size != self.size_bytes:
                raise DiskFault(0, f"{file.size} bytes, {self.size_bytes} were written", self.path())
            self._file = file
        return self._file

    def is_read_through(self, file: File) -> bool:
        return self._file is file

    @property
    def is_open(self) -> bool:
        """Whether the file and the indexes are at hand."""
        return self._file is not None and self._offsets is not None

    @property
    def reach(self) -> int:
        """Every offset of this segment is below: an index has no room for a larger distance from the first one."""
        return self.base_offset + SEGMENT_BYTES_MAX + 1

    # -- writing

    def has_room_for(self, header: BatchHeader, config: LogConfig, now_ms: int, roll_ms: int) -> bool:
        """Whether the batch still goes into this segment. If not, the log must roll."""
        size_bytes = self.size_bytes
        if size_bytes == 0:
            return True
        if size_bytes + header.size_bytes > config.segment_bytes:
            return False
        if header.base_offset + header.last_offset_delta - self.base_offset > SEGMENT_BYTES_MAX:
            return False
        offsets = self._offsets
        if offsets is None:
            offsets = self.offsets
        if len(offsets) * OFFSET_ENTRY.size > config.segment_index_bytes - OFFSET_ENTRY.size:
            return False
        # Kafka's rule: age counts by the timestamps of the records, or by the broker's clock if they have none.
        if self.first_timestamp >= 0:
            waited_ms = newest_timestamp(header) - self.first_timestamp
        else:
            waited_ms = now_ms - self.begun_ms
        return waited_ms <= roll_ms

    def append(self, batch: Buffer, header: BatchHeader, now_ms: int, interval_bytes: int) -> None:
        """One whole batch at the end. `DiskFault`: nothing has changed."""
        file = self._file or self.file
        offsets = self._offsets
        if type(offsets) is not GrowingIndex:
            self.load_indexes()
        position = file.append((batch,))
        self.note(header, position, interval_bytes)
        self.appended_ms = now_ms
        if not position:
            self.begun_ms = now_ms

    def take_file(self, path: str, header: BatchHeader, now_ms: int, interval_bytes: int) -> None:
        """The file at `path`, which holds this one batch, takes the place of this segment's own, which is empty.
        `DiskFault`: nothing has changed.
        """
        assert not self.size_bytes, "nothing is written over"
        self.load_indexes()
        self._disk.rename(path, self.path())
        self.close_file()
        self.note(header, 0, interval_bytes)
        self.appended_ms = self.begun_ms = now_ms

    def append_all(self, batches: Sequence[tuple[Buffer, BatchHeader]], interval_bytes: int) -> None:
        """Whole batches at the end, in one write."""
        position = self.file.append([batch for batch, _ in batches])
        for _, header in batches:
            self.note(header, position, interval_bytes)
            position += header.size_bytes

    def note(self, header: BatchHeader, position: int, interval_bytes: int) -> None:
        """A batch is at `position`: update the end, the times and the indexes."""
        newest = newest_timestamp(header)
        if not position:
            self.first_timestamp = newest
        last_offset = header.base_offset + header.last_offset_delta
        if newest > self.largest_timestamp:
            self.largest_timestamp = newest
            self.largest_timestamp_offset = last_offset
        if self._unindexed_bytes > interval_bytes:
            self._add_entries(last_offset, position)
            self._unindexed_bytes = 0
        size_bytes = header.size_bytes
        self._unindexed_bytes += size_bytes
        self.size_bytes = position + size_bytes
        self.end_offset = last_offset + 1

    def note_many(self, stretch: Stretch, position: int, interval_bytes: int) -> None:
        """`note` for each batch of a stretch that begins at `position`."""
        if not position:
            self.first_timestamp = int(stretch.newest_timestamps[0])
        so_far, bringers = largest_so_far(stretch, self.largest_timestamp)
        entries = index_entries(stretch, unindexed_bytes=self._unindexed_bytes, interval_bytes=interval_bytes)
        last = len(stretch.starts) - 1
        for at in dict.fromkeys((*entries, last)):
            self.largest_timestamp = int(so_far[at])
            if bringers[at] >= 0:
                self.largest_timestamp_offset = int(stretch.last_offsets[bringers[at]])
            if at != last or at in entries[-1:]:
                self._add_entries(int(stretch.last_offsets[at]), position + int(stretch.starts[at]))
                self._unindexed_bytes = 0
        end = int(stretch.starts[last] + stretch.sizes[last])
        self._unindexed_bytes += end - (int(stretch.starts[entries[-1]]) if entries else 0)
        self.size_bytes = position + end
        self.end_offset = int(stretch.last_offsets[last]) + 1

    def _add_entries(self, last_offset: int, position: int) -> None:
        assert type(self._offsets) is GrowingIndex
        self._offsets.add(last_offset - self.base_offset, position)
        self._add_time_entry()

    def _add_time_entry(self) -> None:
        times = self._times
        assert type(times) is GrowingIndex
        if self.largest_timestamp > (times.entry(len(times) - 1)[0] if len(times) else NO_TIMESTAMP):
            times.add(self.largest_timestamp, self.largest_timestamp_offset - self.base_offset)

    def cut(self, position: int, end_offset: int, interval_bytes: int) -> None:
        """Drop everything from the batch boundary `position` on; the segment is written again from there."""
        if not position:
            self.close()  # no entry of theirs is needed, so they need not be there
            self.start_indexes()
        offsets, times = self._growing_indexes(end_offset)
        self.file.truncate(position)
        self.sealed = False
        self._boundary = (NO_OFFSET, 0)
        self._likely = (NO_OFFSET, 0)
        self._index_facts = None
        offsets.cut(offsets.floor_value(position - 1) + 1)
        times.cut(self._last_time(times, end_offset) + 1 if position else 0)
        self.largest_timestamp, self.largest_timestamp_offset = NO_TIMESTAMP, NO_OFFSET
        if len(times):
            self.largest_timestamp, relative = times.entry(len(times) - 1)
            self.largest_timestamp_offset = self.base_offset + relative
        # The last few batches may have no index entries. Their times and sizes are noted again.
        self._unindexed_bytes = 0
        for at, header in self.headers(offsets.entry(len(offsets) - 1)[1] if len(offsets) else 0, position):
            self.note(header, at, interval_bytes)
        self.size_bytes = position
        self.end_offset = end_offset

    def _growing_indexes(self, end_offset: int) -> tuple[GrowingIndex, GrowingIndex]:
        """Both indexes, in memory, for a cut at `end_offset`. Stored ones are read from their files. They are rebuilt
        if the times don't rise, or are wrong around the cut: the last one that stays is taken for the largest. An entry
        of the offset index is checked when it is used.
        """
        offsets, times = self.offsets, self.times
        if isinstance(offsets, StoredIndex) and isinstance(times, StoredIndex):
            in_memory = times.read_all()
            self._offsets, self._times = offsets.read_all(), in_memory
            offsets.close()
            times.close()
            if not in_memory.rises or not self._is_true_around(in_memory, end_offset):
                self._distrust_indexes()
        offsets, times = self.offsets, self.times
        assert type(offsets) is GrowingIndex
        assert type(times) is GrowingIndex
        return offsets, times

    def _is_true_around(self, times: GrowingIndex, end_offset: int) -> bool:
        """Whether the last time entry below a cut is true, and the next one."""
        last = self._last_time(times, end_offset)
        try:
            return all(self._is_true_time(times, slot) for slot in range(max(last, 0), min(last + 2, len(times))))
        except CorruptBatch:  # a batch can't be read, so its entry can't be checked: believe it
            return True

    def _last_time(self, times: GrowingIndex, end_offset: int) -> int:
        """The last time entry that names a batch below `end_offset`."""
        return times.floor_value(max(end_offset - 1 - self.base_offset, 0))

    # -- indexes

    @property
    def offsets(self) -> Index:
        if self._offsets is None:
            self.load_indexes()
        assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> Index:
        if self._times is None:
            self.load_indexes()
        assert self._times is not None
        return self._times

    def start_indexes(self) -> None:
        """Begin both indexes anew: empty, in memory."""
        self._offsets = GrowingIndex(OFFSET_ENTRY)
        self._times = GrowingIndex(TIME_ENTRY)
        self._unindexed_bytes = 0

    def load_indexes(self) -> None:
        """Open the stored indexes of a sealed segment, or read those of the active one into memory. They are rebuilt if
        the files don't fit the segment. `IndexesLost` if that takes longer than a moment. If it was tried and the disk
        has failed, that fault.
        """
        if self._rebuilt is not None:
            found = False
        elif self.sealed:
            found = self._offsets is not None or self._open_stored_indexes()
        else:
            found = type(self._offsets) is GrowingIndex or self._read_growing_indexes()
        if not found:
            if (fault := self._rebuild_fault) is not None:
                if self.sealed:  # a reader may try again; a writer must not miss the fault
                    self._rebuild_fault = None
                raise fault.with_traceback(None)  # or it would grow each time
            if self.size_bytes > REBUILT_AT_ONCE_BYTES:
                raise IndexesLost(self)
            self.rebuild_indexes()

    def _open_stored_indexes(self) -> bool:
        try:
            offsets = self._disk.open(self.path(OFFSET_SUFFIX))
            times = self._disk.open(self.path(TIME_SUFFIX))
        except FileNotFoundError:
            return False
        self._offsets = StoredIndex(OFFSET_ENTRY, offsets)
        self._times = stored = StoredIndex(TIME_ENTRY, times)
        if stored.take_end():
            return True
        self._close_indexes()
        return False

    def _read_growing_indexes(self) -> bool:
        """Read the files of a clean stop, if they hold exactly what was written then. Returns whether they do."""
        facts = self._index_facts
        if facts is None:
            return False
        offsets = self._read_if_there(OFFSET_SUFFIX)[: facts.offset_entries * OFFSET_ENTRY.size]
        times = self._read_if_there(TIME_SUFFIX)[: facts.time_entries * TIME_ENTRY.size]
        if crc32c(offsets) != facts.offset_crc or crc32c(times) != facts.time_crc:
            return False
        self._offsets = GrowingIndex.from_bytes(OFFSET_ENTRY, offsets)
        self._times = GrowingIndex.from_bytes(TIME_ENTRY, times)
        return True

    def _read_if_there(self, suffix: str) -> bytes:
        try:
            return self._disk.read(self.path(suffix))
        except FileNotFoundError:
            return b""

    def rebuild_indexes(self) -> None:
        """`rebuilding`, all at once."""
        done_at_once(self.rebuilding())

    def rebuilding(self) -> Generator[None, None, None]:
        """Build both indexes from the batch headers, in steps. In between, the segment may be closed, cut or removed:
        then this ends. It also ends, at once, if they are being rebuilt already.

        `CorruptBatch` if a header can't be read. The segment goes on with indexes of the batches before, and its own
        facts stay as they were. After a `DiskFault` the indexes are still lost. If it is not one that passes, the next
        one who needs them is told.
        """
        if self._rebuilt is not None and self._rebuilt.size_bytes:
            return
        self._rebuilt = rebuilt = self._without_batches()
        try:
            while rebuilt.size_bytes < self.size_bytes:
                for position, header in islice(self.headers(rebuilt.size_bytes), REBUILT_BATCHES):
                    if header.base_offset < rebuilt.end_offset:
                        raise self._misplaced(position, header.base_offset, header.last_offset)
                    rebuilt.note(header, position, REBUILD_INTERVAL_BYTES)
                if rebuilt.size_bytes < self.size_bytes:
                    yield
                    if self._rebuilt is not rebuilt:
                        return
            self.largest_timestamp = rebuilt.largest_timestamp
            self.largest_timestamp_offset = rebuilt.largest_timestamp_offset
            if self.sealed:
                rebuilt._add_time_entry()
            self._use_indexes(rebuilt)
        except CorruptBatch:
            self._use_indexes(rebuilt)
            raise
        except DiskFault as fault:
            self._rebuild_fault = None if fault.passing else fault
            raise
        finally:
            if self._rebuilt is rebuilt:  # nobody goes on with what has been made
                self._rebuilt = self._without_batches()
        if self.sealed:
            with suppress(DiskFault):  # no room, perhaps: the next start builds them again
                self._write_indexes(sealed=True)

    def _without_batches(self) -> "Segment":
        facts = SegmentFacts(self.base_offset, self.base_offset, 0, NO_TIMESTAMP, NO_OFFSET, NO_TIMESTAMP, 0)
        segment = Segment(self._disk, self._folder, facts, sealed=False)
        segment.start_indexes()
        return segment

    def _use_indexes(self, rebuilt: "Segment") -> None:
        self._offsets, self._times, self._unindexed_bytes = rebuilt._offsets, rebuilt._times, rebuilt._unindexed_bytes
        self._index_facts = self._rebuilt = None

    def _distrust_indexes(self) -> None:
        """The indexes of a sealed segment are wrong: rebuild them. `IndexesLost` if that takes longer than a moment."""
        self._close_indexes()
        self._rebuilt = self._without_batches()
        self.load_indexes()

    def seal(self) -> None:
        """End the appends: add the last time entry, and write both indexes to their files, which are not durable
        yet.
        """
        self.load_indexes()
        self._add_time_entry()
        self._write_indexes(sealed=True)
        self.sealed = True

    def _write_indexes(self, *, sealed: bool) -> tuple[bytes, bytes]:
        offsets, times = self._offsets, self._times
        assert type(offsets) is GrowingIndex
        assert type(times) is GrowingIndex
        written = (offsets.to_bytes(), with_end(times.to_bytes()) if sealed else times.to_bytes())
        for suffix, data in zip((OFFSET_SUFFIX, TIME_SUFFIX), written, strict=True):
            file = self._disk.open(self.path(suffix), create=True)
            file.truncate(0)
            file.append((data,))
            file.close()
        return written

    def learn_times(self) -> None:
        """Take the largest timestamp from the time index: the last entry of a sealed segment's index names it."""
        times = self.times
        if isinstance(times, StoredIndex) and len(times):  # rebuilding an index finds the timestamp anyway
            largest, relative = times.entry(len(times) - 1)
            try:
                told = self._true_time(len(times) - 1)
            except CorruptBatch:  # the batches can't be read, so the index can't be checked: believe it
                told = self.base_offset + relative
            if told is not None:
                self.largest_timestamp, self.largest_timestamp_offset = largest, told

    async def fsync(self) -> None:
        """Make the batches durable, and the indexes, too, if the segment is sealed. These leave memory then."""
        await sync_together(self._disk, [self])

    def note_synced(self) -> None:
        """All files of the segment are durable. From now on the indexes of a sealed one are read from their files."""
        if self.sealed and type(self._offsets) is GrowingIndex:
            self._offsets = self._times = None

    def stored_indexes(self) -> list[File]:
        """The index files that are there, opened. One that is missing is rebuilt when it is needed."""
        found = []
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
            with suppress(FileNotFoundError):
                found.append(self._disk.open(self.path(suffix)))
        return found

    def facts(self) -> SegmentFacts:
        """The facts for the manifest of a clean stop. The indexes of the active segment are written to files, and the
        facts have their checksums.
        """
        indexes = self._index_facts
        if not self.sealed and type(self._offsets) is GrowingIndex:
            indexes = self._store_growing_indexes(self._offsets)
        return SegmentFacts(
            self.base_offset,
            self.end_offset,
            self.size_bytes,
            self.largest_timestamp,
            self.largest_timestamp_offset,
            self.first_timestamp,
            self.appended_ms,
            indexes,
            0 if self.sealed else self.begun_ms,
        )

    def _store_growing_indexes(self, offsets: GrowingIndex) -> IndexFacts:
        """Write the growing indexes to files. Empty indexes get no files: on a broker with thousands of short segments
        these would be most of what a stop has to write.
        """
        known = self._index_facts
        if not len(offsets):
            return NO_INDEXES
        if known is not None and known.offset_entries == len(offsets):
            return known  # entries are only ever added: with the same number the files are still right
        offset_data, time_data = self._write_indexes(sealed=False)
        entries = len(offset_data) // OFFSET_ENTRY.size, len(time_data) // TIME_ENTRY.size
        return IndexFacts(entries[0], crc32c(offset_data), entries[1], crc32c(time_data))

    # -- reading

    def headers(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """The position and header of each batch, from the batch boundary `position` on. `CorruptBatch` if their offsets
        don't ascend, or don't lie inside the segment.
        """
        end = self.size_bytes if end is None else end
        pread = self.file.pread
        chunk, chunk_at = b"", position
        next_offset, end_offset = self.base_offset, self._end_of_offsets
        while position < end:
            at = position - chunk_at
            if at + HEADER_BYTES > len(chunk):
                chunk, chunk_at, at = pread(WALK_BYTES, position), position, 0
            header = read_header(chunk, at)
            if not next_offset <= header.base_offset < (following := header.next_offset) <= end_offset:
                raise self._misplaced(position, header.base_offset, header.last_offset)
            next_offset = following
            yield position, header
            position += header.size_bytes

    def _few_headers(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """`headers`, for a walk that an index keeps short."""
        for count, found in enumerate(self.headers(position, end)):
            if count == WALKED_BATCHES:
                self._walked_far()
            yield found

    def _walked_far(self) -> None:
        if type(self._offsets) is StoredIndex:
            self._distrust_indexes()

    def _extents(self, position: int) -> Iterator[tuple[int, int, int]]:
        """The position, last offset and end of each batch, from the batch boundary `position` on. `CorruptBatch` if the
        offsets don't ascend, or don't lie inside the segment.
        """
        pread, size_bytes = self.file.pread, self.size_bytes
        chunk, chunk_at = b"", position
        before, end_offset, left = self.base_offset - 1, self._end_of_offsets, WALKED_BATCHES
        while position < size_bytes:
            left -= 1
            if not left:
                self._walked_far()
            at = position - chunk_at
            if at + HEADER_BYTES > len(chunk):
                chunk, chunk_at, at = pread(WALK_BYTES, position), position, 0
            last_offset, batch_bytes = read_extent(chunk, at)
            if not before < last_offset < end_offset:
                raise self._misplaced(position, last_offset, last_offset)
            before = last_offset
            yield position, last_offset, position + batch_bytes
            position += batch_bytes

    def batches(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """The position, header and bytes of each batch, from a batch boundary on. The bytes are valid until the next
        batch. `CorruptBatch` as for `headers`.
        """
        end = self.size_bytes if end is None else end
        pread = self.file.pread
        chunk, chunk_at = memoryview(b""), position
        next_offset, end_offset = self.base_offset, self._end_of_offsets
        while position < end:
            at = position - chunk_at
            if at + HEADER_BYTES > len(chunk):
                chunk, chunk_at, at = memoryview(pread(SCAN_BYTES, position)), position, 0
            header = read_header(chunk, at)
            if not next_offset <= header.base_offset < (following := header.next_offset) <= end_offset:
                raise self._misplaced(position, header.base_offset, header.last_offset)
            next_offset = following
            if at + header.size_bytes > len(chunk):
                wanted = max(header.size_bytes, SCAN_BYTES)
                chunk, chunk_at, at = memoryview(pread(wanted, position)), position, 0
            if header.size_bytes > len(chunk):
                raise CorruptBatch(f"{self.path()} ends inside the batch at {position}")
            yield position, header, chunk[at : at + header.size_bytes]
            position += header.size_bytes

    @property
    def _end_of_offsets(self) -> int:
        """No batch of this segment ends above. No checksum covers the base offset of a batch: one that has rotted must
        not be believed.
        """
        return min(self.end_offset, self.reach)

    def _misplaced(self, position: int, first_offset: int, last_offset: int) -> CorruptBatch:
        told = f"offsets {first_offset} to {last_offset} stand in the segment {self.base_offset}"
        return CorruptBatch(f"{told} at {position}, which is not their place")

    def position_of(self, offset: int) -> int:
        """The position of the first batch whose last offset is at or above `offset`; `size_bytes` if there is none."""
        if offset >= self.end_offset:
            return self.size_bytes
        known, position = self._boundary
        if known == offset:
            return position
        known, position = self._likely
        if known == offset:
            return position
        if known == NO_OFFSET and 0 < position < self.size_bytes:
            header = read_header(self.file.pread(HEADER_BYTES, position))
            if header.base_offset <= offset <= header.last_offset:
                return position
        for position, last_offset, _ in self._extents(self._walk_start(offset)):
            if last_offset >= offset:
                return position
        return self.size_bytes

    def _walk_start(self, offset: int) -> int:
        """A batch boundary at or before the wanted batch: from the index, or the last one found if that is nearer."""
        position = self._indexed_position(offset)
        known, boundary = self._boundary
        return boundary if 0 <= known <= offset and boundary > position else position

    def _indexed_position(self, offset: int) -> int:
        offsets = self.offsets
        slot = offsets.floor(offset - self.base_offset)
        if slot < 0:
            return 0
        position = self._true_position(slot)
        return position if position is not None else self._indexed_position(offset)

    def last_known_position(self) -> int:
        """The last batch boundary that the offset index knows."""
        return self._indexed_position(self.end_offset)

    def end_before(self, position: int) -> int:
        """Where the last batch before the batch boundary `position` ends; the base offset if there is none."""
        slot = self.offsets.floor_value(position - 1)
        start = self._true_position(slot) if slot >= 0 else 0
        if start is None:
            return self.end_before(position)
        end_offset = self.base_offset
        for _, header in self._few_headers(start, position):
            end_offset = header.next_offset
        return end_offset

    def _true_position(self, slot: int) -> int | None:
        """The position of the batch that an index entry names; None if the entry was wrong, and is gone now."""
        offsets = self.offsets
        if self._is_true(offsets, slot):
            return offsets.entry(slot)[1]
        if self.sealed:
            self._distrust_indexes()
        else:  # one of a file, before a cut; or the batch has rotted, as a walk from the entry before finds
            assert type(offsets) is GrowingIndex
            wrong = slot
            while slot and not self._is_true(offsets, slot - 1):
                slot -= 1
            offsets.drop(slot, wrong + 1)
            self._index_facts = None  # the files still have them
        return None

    def _is_true(self, offsets: Index, slot: int) -> bool:
        key, position = offsets.entry(slot)
        return self._is_batch(position, self.base_offset + key)

    def offset_after(self, position: int) -> int:
        """An offset at or above that of the batch at `position`, taken from the index. It is too high by the batches of
        one index interval at most.
        """
        offsets = self.offsets
        slot = offsets.floor_value(max(position - 1, 0)) + 1
        if slot >= len(offsets):
            return self.end_offset
        true_position = self._true_position(slot)
        if true_position is not None and true_position < position:
            # The file has rotted, and the entry names another batch than it did when it was searched.
            if not self.sealed:
                return self.end_offset
            self._distrust_indexes()
            true_position = None
        if true_position is None:
            return self.offset_after(position)
        return self.base_offset + offsets.entry(slot)[0] + 1

    def _true_time(self, slot: int) -> int | None:
        """The last offset of the batch that a time entry names; None if the entry was wrong. The indexes are rebuilt
        then.
        """
        times = self.times
        _, relative = times.entry(slot)
        if self.sealed and not self._is_true_time(times, slot):
            self._distrust_indexes()
            return None
        return self.base_offset + relative

    def _is_true_time(self, times: Index, slot: int) -> bool:
        """Whether a time entry names a batch, and rises above the entry before."""
        timestamp, relative = times.entry(slot)
        if slot:
            earlier, before = times.entry(slot - 1)
            if earlier >= timestamp or before >= relative:
                return False
        offset = self.base_offset + relative
        _, header = next(self.headers(self.position_of(offset)), (0, None))
        return header is not None and (header.last_offset, header.newest_timestamp) == (offset, timestamp)

    def _is_batch(self, position: int, last_offset: int) -> bool:
        """Whether a batch with this last offset begins at `position`. A crash or bit rot may have changed a stored
        index, or the batch.
        """
        try:
            return read_header(self.file.pread(HEADER_BYTES, position)).last_offset == last_offset
        except CorruptBatch:
            return False

    def read(self, offset: int, *, max_bytes: int, limit_offset: int, at_least_one: bool) -> FileSlice | None:
        """Whole batches, from the one that holds `offset` or the next one after it. None if none ends below the
        limit.
        """
        start = self.position_of(offset)
        end = self.size_bytes if limit_offset >= self.end_offset else self.position_of(limit_offset)
        self._boundary, self._likely = (min(limit_offset, self.end_offset), end), (offset, start)
        if end > start + max_bytes:
            self._likely = self._whole_batches(start, start + max_bytes, at_least_one)
            end = self._likely[1]
        return FileSlice(self.file, start, end - start) if end > start else None

    def _whole_batches(self, start: int, end_max: int, at_least_one: bool) -> tuple[int, int]:
        """A batch boundary at or below `end_max`: the last one in the index, or, if the index has none there, one that
        is found by a walk over the headers. With the offset that is next there, if the walk has seen it.
        """
        slot = self.offsets.floor_value(end_max)
        if slot >= 0:
            position = self._true_position(slot)
            if position is None:
                return self._whole_batches(start, end_max, at_least_one)
            if position > start:
                return NO_OFFSET, position
        next_offset, end = NO_OFFSET, start
        for _, last_offset, batch_end in self._extents(start):
            if batch_end > end_max and (end > start or not at_least_one):
                break
            next_offset, end = last_offset + 1, batch_end
            if end > end_max:
                break
        return next_offset, end

    def checked(self, offset: int, start: int, end: int) -> int:
        """`CorruptBatch` if anything is left out between `offset` and the bytes from `start` to `end`, which `read` has
        found for it, or inside of these. Returns up to which position that was looked at: at most `CHECKED_BATCHES`.
        """
        headers = self.headers(start, min(end + 1, self.size_bytes))  # with the batch behind: it must not overlap
        _, first = next(headers, (start, None))
        if first is None:
            self.end_before(start)  # raises if what stands before is not in its place
        elif first.base_offset != offset and first.base_offset < self.end_before(start):
            raise self._misplaced(start, first.base_offset, first.last_offset)
        for count, (position, _) in enumerate(headers, 1):
            if count == CHECKED_BATCHES:
                return position
        return end

    # -- times

    def search_timestamp(
        self, timestamp: int, from_offset: int, at_once: int
    ) -> tuple[tuple[int, BatchHeader] | None, int]:
        """The first batch from `from_offset` on that may hold a record of `timestamp` or later, with its position, and
        the offset from which a search goes on. None if the batch is not among the first `at_once` that are looked at.
        """
        slot = self.times.floor(timestamp - 1)
        earlier = self._true_time(slot) if slot >= 0 else self.base_offset
        later = self._true_time(slot + 1) if slot + 1 < len(self.times) else self.end_offset
        if earlier is None or later is None:
            return self.search_timestamp(timestamp, from_offset, at_once)
        # `later` ends the first batch that the time index names as late enough. A batch before it may be late enough,
        # too, but not one before the last offset entry: with every offset entry the time index gets an entry if the
        # largest timestamp has grown. If the time index of a sealed segment names no such batch, its end may be lost.
        # Then the search begins at the last batch that the index names as too early.
        is_whole = later < self.end_offset or not self.sealed
        start = self._indexed_position(later - 1) if is_whole else self.position_of(earlier)
        for count, (position, header) in enumerate(self.headers(max(start, self.position_of(from_offset))), start=1):
            if newest_timestamp(header) >= timestamp:
                return (position, header), header.next_offset
            if count == at_once:
                return None, header.next_offset
        return None, self.end_offset

    def largest_before(self, limit_offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch with the largest timestamp of all batches that end below the limit; None: none has a time."""
        slot = self.offsets.floor(limit_offset - 1 - self.base_offset)
        start = self._true_position(slot) if slot >= 0 else 0
        if start is None:
            return self.largest_before(limit_offset)
        largest: tuple[int, BatchHeader] | None = None
        slot = self.times.floor_value(self.offsets.entry(slot)[0]) if slot >= 0 else -1
        if slot >= 0:  # this time entry covers all batches up to that offset entry
            known = self._true_time(slot)
            if known is None:
                return self.largest_before(limit_offset)
            largest = next(self.headers(self.position_of(known)))
        for position, header in self._few_headers(start):
            if header.last_offset >= limit_offset:
                break
            if header.newest_timestamp > (NO_TIMESTAMP if largest is None else largest[1].newest_timestamp):
                largest = (position, header)
        return largest

    # -- leaving

    def close_file(self) -> None:
        """Close the file; it is opened again when needed. Readers that pinned it can still finish."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Close the file and the indexes."""
        self.close_file()
        self._close_indexes()
        self._rebuilt = self._rebuild_fault = None

    def _close_indexes(self) -> None:
        for index in (self._offsets, self._times):
            if isinstance(index, StoredIndex):
                index.close()
        self._offsets = self._times = None

    def remove(self) -> None:
        """Close and discard all files, the batches first. If a crash comes in between, recovery removes an index
        without batches; batches without an index would be taken for a part of the log.
        """
        self.gone = True
        self.close()
        for suffix in SUFFIXES:
            self._disk.discard(self.path(suffix))


async def sync_together(disk: Disk, segments: Sequence[Segment]) -> None:
    """`Segment.fsync` of each, all at the same time. What is removed before is not synced."""
    there = [segment for segment in segments if not segment.gone]
    sealed = [segment for segment in there if segment.sealed]
    indexes: list[File] = []
    try:
        for segment in sealed:
            indexes += segment.stored_indexes()
        await disk.sync_files([*[segment.file for segment in there], *indexes])
    finally:
        for file in indexes:
            file.close()
    for segment in sealed:
        segment.note_synced()
