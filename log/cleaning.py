"""Read sealed segments and write the records that stay: the work of a compaction, as one plain function.

It runs in a process of its own beside the broker, because a few gigabytes take up to a minute of computing. In the
simulation it is called like any other function. It changes nothing but the `.cleaned` files that it writes.
`log.compaction` describes the job, has the rules, and decides what becomes of these files.

The first reading turns every record into a row of 24 bytes: a hash of the key (128 bits) and the number of the record
in the order of reading. Rows are sorted by hash, many at a time; each such sorted run is put aside. Then the rows of
all runs are merged, one range of hashes after the other. Of the rows with the same hash all but the last are dead
records. The second reading leaves the dead records out. However many keys there are, one pass is enough: rows that
don't fit into memory are kept in a file meanwhile.

Two keys with the same hash would be taken for one key. So each pass draws its hash function anew, from a family
(multilinear, by words of 32 bits) in which two given keys collide with a probability of 2^-128, even if an attacker
chose the keys.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, shake_128
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from log.batch import (
    BatchHeader,
    Buffer,
    CorruptBatch,
    assemble,
    build_from_stored,
    checksum_ok,
    plain_payload,
    read_header,
    read_stored_records,
    read_varint,
)
from log.cleaning_job import Cleaned, CleaningJob, TooLittleRoom, groups_of
from log.cleaning_rules import AbortedTransactions, LastBatches
from log.compress import compress
from log.control import ControlType, read_marker
from log.disk import Disk
from log.ids import NO_OFFSET
from log.segment import Segment
from log.swap import CLEANED

CHUNK_BYTES: Final = 4 << 20
CHUNK_RECORDS: Final = 1 << 15
"""Batches are gathered until one of these two limits is reached. Then all their records are looked at at once."""
KEY_BYTES_HASHED: Final = 64
"""Longer keys are hashed one by one, by blake2b."""
RANGES: Final = 256
"""How many ranges the hashes are divided into. Rows are merged by whole ranges, at least one at a time."""
ROW_BYTES: Final = 24
RUN_ROWS: Final = 1 << 18
"""How many rows make a run (fewer if the memory is small). Each run needs two more kilobytes, which say where its
ranges begin.
"""
KEPT_PART: Final = 8
"""The rows may use one eighth of the memory before they go to a file, and the flags of the records another eighth."""
SETTLED_ROW_BYTES: Final = 80
"""The memory that a row takes while it is merged with others. Merging may use the other three quarters."""
PADDING: Final = bytes(32)
"""Zeros after the last record of a chunk, so that numbers and words can be read without checking for the end."""
RECORDS_OPENED: Final = 500_000
"""A batch with more records than this is not opened and stays as it is: an opened record takes some hundred bytes, and
no honest client sends so many.
"""
WRITE_BYTES: Final = 1 << 20
WRITE_BATCHES: Final = 500
DEAD, TOMBSTONE, EXPIRED = 1, 2, 4

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Masks = NDArray[np.bool_]


def clean(disk: Disk, job: CleaningJob) -> Cleaned:
    """Write the segments that replace the job's segments, and describe them."""
    room = _Room(disk, job.leave_bytes)
    census = _Census(job, room)
    segments = [Segment(disk, job.folder, facts, sealed=True) for facts in job.segments]
    try:
        for segment in segments:
            for _, header, batch in segment.batches(0):
                census.add(header, batch)
        census.finish()
        return _rewrite(disk, job, segments, census, room)
    finally:
        census.close()
        for segment in segments:
            segment.close()


class _Room:
    """Checks before each larger write that enough of the disk stays free: producers need it even during a pass."""

    def __init__(self, disk: Disk, leave_bytes: int) -> None:
        self._disk = disk
        self._leave_bytes = leave_bytes

    def take(self, size_bytes: int) -> None:
        free_bytes = self._disk.space().free_bytes
        if free_bytes - size_bytes < self._leave_bytes:
            raise TooLittleRoom(f"{free_bytes} bytes are free, of which {self._leave_bytes} are for others")


# ---------------------------------------------------------------- first reading


class _Scratch:
    """Bytes put aside: in memory while they are few, then in a file without a name."""

    def __init__(self, memory_bytes: int, folder: str | None, room: _Room) -> None:
        self._room = room
        self._file: IO[bytes] | None = None
        self._parts = bytearray()
        self._memory_bytes = memory_bytes
        self._folder = folder
        self.size = 0

    def write(self, data: Bytes) -> None:
        self.size += len(data)
        if self._file is None and self.size > self._memory_bytes:
            self._room.take(self.size)
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - it lives as long as this does
            self._file.write(self._parts)
            self._parts = bytearray()
        if self._file is None:
            self._parts += data.data
        else:
            self._room.take(len(data))
            self._file.write(data.data)

    def read(self, size: int, at: int) -> bytes | memoryview:
        if self._file is None:
            return memoryview(self._parts)[at : at + size]
        self._file.seek(at)
        return self._file.read(size)

    def as_array(self) -> Bytes:
        """All the bytes, as an array that may be changed in place."""
        if self._file is None:
            return np.frombuffer(self._parts, np.uint8)
        self._file.flush()
        return np.memmap(self._file, np.uint8, "r+")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass(slots=True)
class _Chunk:
    """Some batches whose payloads are looked at together."""

    payloads: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    begins: list[int] = field(default_factory=list)  # where each record begins
    indexes: list[int] = field(default_factory=list)  # the number of each batch, counted over all segments
    counts: list[int] = field(default_factory=list)
    last_deltas: list[int] = field(default_factory=list)
    drops_tombstones: list[bool] = field(default_factory=list)


class _Census:
    """The first reading: finds out which records are dead."""

    def __init__(self, job: CleaningJob, room: _Room) -> None:
        self._job = job
        self._memory_bytes = job.memory_bytes
        self.transactions = AbortedTransactions(job.aborted)
        self._hash = _KeyHash(job.secret)
        self._chunk = _Chunk()
        kept_bytes = job.memory_bytes // KEPT_PART
        self._gathered: list[Words] = []  # rows that are not sorted yet
        self._gathered_rows = 0
        self._run_rows = min(kept_bytes // ROW_BYTES, RUN_ROWS)
        self._rows = _Scratch(kept_bytes, job.scratch_folder, room)
        self._bounds: list[Numbers] = []  # for each run: where in the rows its ranges of keys begin
        self._flags = _Scratch(kept_bytes, job.scratch_folder, room)
        self._batches = 0
        self._records = 0
        self.end_offset = NO_OFFSET
        """Where the last batch ends. The segment may end behind it, if compaction has removed what stood there."""
        self.unreadable: dict[int, int] = {}
        """Batches that can't be opened, by their number (counted over all segments), with how many flags each has: none
        if that was found before its records were counted.
        """
        self._first_unopened = sys.maxsize
        """The number of the first batch whose records are not known. A value in it may be one that a later tombstone
        deletes.
        """
        self.keys = 0
        self.flags: Bytes = np.zeros(0, np.uint8)

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        index, self._batches = self._batches, self._batches + 1
        self.end_offset = header.next_offset
        try:
            check(header, batch)
            if header.is_control or self.transactions.is_aborted(header) or not header.record_count:
                return
            if header.record_count > RECORDS_OPENED:
                self._first_unopened = min(self._first_unopened, index)
                return
            payload = plain_payload(batch, header)
            begins = record_begins(payload, header.record_count, self._chunk.size_bytes)
        except CorruptBatch:
            self._note_unreadable(index, 0)
            return
        chunk = self._chunk
        chunk.payloads.append(payload)
        chunk.size_bytes += len(payload)
        chunk.begins += begins
        chunk.indexes.append(index)
        chunk.counts.append(header.record_count)
        chunk.last_deltas.append(header.last_offset_delta)
        chunk.drops_tombstones.append(self._job.may_forget(header))
        if chunk.size_bytes > CHUNK_BYTES or len(chunk.begins) > CHUNK_RECORDS:
            self._take()

    def _note_unreadable(self, index: int, flags: int) -> None:
        self.unreadable[index] = flags
        self._first_unopened = min(self._first_unopened, index)

    def _take(self) -> None:
        """Note the keys and flags of the chunk's records, and begin a new chunk."""
        chunk, self._chunk = self._chunk, _Chunk()
        if not chunk.begins:
            return
        data = np.frombuffer(b"".join((*chunk.payloads, PADDING)), np.uint8)
        counts = np.array(chunk.counts, np.int64)
        columns = _Columns(data, np.array(chunk.begins, np.int64), chunk.size_bytes)
        wrong = columns.wrong | (columns.offset_delta > np.repeat(np.array(chunk.last_deltas, np.int64), counts))
        flags = np.zeros(len(wrong), np.uint8)
        if wrong.any():
            firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)[:-1]))
            for place in np.flatnonzero(np.logical_or.reduceat(wrong, firsts)).tolist():
                self._note_unreadable(chunk.indexes[place], chunk.counts[place])
                wrong[firsts[place] : firsts[place] + counts[place]] = True
        all_known_below = np.array(chunk.indexes, np.int64) < self._first_unopened
        dropping = np.repeat(np.array(chunk.drops_tombstones, np.bool_) & all_known_below, counts)
        flags[columns.is_tombstone & ~wrong] |= TOMBSTONE
        flags[columns.is_tombstone & dropping & ~wrong] |= DEAD | EXPIRED
        flags[(columns.key_size < 0) & ~wrong] |= DEAD
        keyed = np.flatnonzero((columns.key_size >= 0) & ~wrong)
        self._gather(data, columns.key_at[keyed], columns.key_size[keyed], keyed + self._records)
        self._flags.write(flags)
        self._records += len(flags)

    def _gather(self, data: Bytes, at: Numbers, size: Numbers, numbers: Numbers) -> None:
        rows = np.empty((len(at), 3), np.uint64)
        rows[:, 0], rows[:, 1] = self._hash.of(data, at, size)
        rows[:, 2] = numbers
        if self._gathered_rows + len(rows) > self._run_rows:
            self._put_aside()
        self._gathered.append(rows)
        self._gathered_rows += len(rows)

    def _put_aside(self) -> None:
        """Sort the gathered rows by hash and write them as one run."""
        if not self._gathered:
            return
        rows = np.concatenate(self._gathered)
        self._gathered, self._gathered_rows = [], 0
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        begin = self._rows.size // ROW_BYTES
        firsts = np.arange(RANGES, dtype=np.uint64) << np.uint64(56)
        bounds = np.append(np.searchsorted(rows[:, 0], firsts), len(rows))
        self._bounds.append(bounds + begin)
        self._rows.write(rows.reshape(-1).view(np.uint8))

    def finish(self) -> None:
        """Merge the runs, as many ranges at a time as the memory allows."""
        self._take()
        self._put_aside()
        self.flags = self._flags.as_array()
        if not self._bounds:
            return
        bounds = np.array(self._bounds)
        sizes = (bounds[:, 1:] - bounds[:, :-1]).sum(axis=0)
        limit = self._memory_bytes * (KEPT_PART - 2) // KEPT_PART // SETTLED_ROW_BYTES
        first = 0
        while first < RANGES:
            last, total = first + 1, int(sizes[first])
            while last < RANGES and total + int(sizes[last]) <= limit:
                total += int(sizes[last])
                last += 1
            self._settle([(int(begin), int(end)) for begin, end in bounds[:, [first, last]]])
            first = last

    def _settle(self, places: Sequence[tuple[int, int]]) -> None:
        """Find the dead records among all rows of some ranges: of each hash only the last record stays alive."""
        parts = [
            np.frombuffer(self._rows.read((end - begin) * ROW_BYTES, begin * ROW_BYTES), np.uint64).reshape(-1, 3)
            for begin, end in places
            if end > begin
        ]
        if not parts:
            return
        rows = np.concatenate(parts)
        del parts
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        # Rows are sorted by the first 64 bits only. If two keys agree in these and differ in the others, their rows may
        # alternate, and a dead record may be missed. It stays in the log, which does no harm.
        again = (rows[1:, 0] == rows[:-1, 0]) & (rows[1:, 1] == rows[:-1, 1])
        self.flags[rows[:-1, 2][again]] |= DEAD
        self.keys += len(rows) - int(again.sum())

    def close(self) -> None:
        self._rows.close()
        self._flags.close()


def record_begins(payload: bytes, count: int, base: int) -> list[int]:
    """Where each record begins, plus `base`. `CorruptBatch` unless exactly `count` records fill the payload."""
    begins: list[int] = []
    append = begins.append
    at = 0
    try:
        for _ in range(count):
            append(base + at)
            byte = payload[at]
            if byte < 0x80:
                at += 1 + (byte >> 1)
                continue
            next_byte = payload[at + 1]
            if next_byte < 0x80:
                at += 2 + ((byte & 0x7F | next_byte << 7) >> 1)
                continue
            size, at = read_varint(payload, at)
            if size < 0:
                raise CorruptBatch(f"a record of {size} bytes")
            at += size
    except IndexError as error:
        raise CorruptBatch("the bytes end before the last record") from error
    if at != len(payload):
        raise CorruptBatch(f"{len(payload)} bytes, in which the records end at {at}")
    return begins


class _Columns:
    """The fields of many records that a cleaner needs. `wrong` marks the records with a field that does not fit."""

    def __init__(self, data: Bytes, begins: Numbers, end: int) -> None:
        ends = np.append(begins[1:], end)
        size, body = _numbers(data, begins)
        wrong = (size < 0) | (body + size != ends)
        limit = np.int64(end)
        _, at = _numbers(data, np.minimum(body + 1, limit))
        self.offset_delta, at = _numbers(data, np.minimum(at, limit))
        self.key_size, self.key_at = _numbers(data, np.minimum(at, limit))
        wrong |= (self.offset_delta < 0) | (self.key_at > ends) | (self.key_size > ends - self.key_at)
        value_at = np.where(wrong, ends, self.key_at + np.maximum(self.key_size, 0))
        value_size, at = _numbers(data, value_at)
        wrong |= at > ends
        self.is_tombstone: Masks = value_size < 0
        self.wrong: Masks = wrong


def _numbers(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag varints at these places, and where each of them ends. One that is too long ends at the end of the
    data, so that it is found to be wrong.
    """
    byte = data[at]
    raw = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(byte & 0x80)
    for shift in range(7, 70, 7):
        if not len(more):
            break
        byte = data[np.minimum(after[more], len(data) - 1)]
        raw[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[(byte & 0x80) != 0]
    after[more] = len(data)
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), after


class _KeyHash:
    """A hash of 128 bits for a key. It is made of the upper halves of four sums; each sum multiplies the key's 32-bit
    words by random factors of its own.
    """

    def __init__(self, secret: bytes) -> None:
        words = KEY_BYTES_HASHED // 4
        drawn = np.frombuffer(shake_128(secret).digest(8 * 4 * (words + 2)), np.uint64).reshape(4, words + 2)
        self._factors = drawn[:, 2:]
        self._by_size = drawn[:, :2]
        self._secret = secret

    def of(self, data: Bytes, at: Numbers, size: Numbers) -> tuple[Words, Words]:
        # Keys begin at any byte. This view has a word of eight bytes for every byte position.
        wide = np.ndarray((len(data) - 7,), "<u8", data.data, strides=(1,))
        lanes = [
            by_size[0] + by_size[1] * size.astype(np.uint64)  # a key and the same key with zeros appended must differ
            for by_size in self._by_size
        ]
        short = np.flatnonzero(size <= KEY_BYTES_HASHED)
        longest = int(size[short].max(initial=0))
        for word, begin in enumerate(range(0, longest, 8)):
            here = np.flatnonzero((size > begin) & (size <= KEY_BYTES_HASHED))
            left = size[here] - begin
            value = wide[at[here] + begin] & _TAILS[np.minimum(left, 8)]
            low, high = value & np.uint64(0xFFFFFFFF), value >> np.uint64(32)
            for lane, factors in zip(lanes, self._factors, strict=True):
                lane[here] += low * factors[2 * word] + high * factors[2 * word + 1]
        upper = np.uint64(0xFFFFFFFF00000000)
        first = (lanes[0] & upper) | (lanes[1] >> np.uint64(32))
        second = (lanes[2] & upper) | (lanes[3] >> np.uint64(32))
        for place in np.flatnonzero(size > KEY_BYTES_HASHED).tolist():
            key = data[at[place] : at[place] + size[place]]
            digest = blake2b(key.tobytes(), digest_size=16, key=self._secret).digest()
            first[place], second[place] = np.frombuffer(digest, np.uint64)
        return first, second


_TAILS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""By the number of bytes that are left of a key: a mask for the bytes of the next word that belong to the key."""


# ---------------------------------------------------------------- second reading


def _rewrite(disk: Disk, job: CleaningJob, segments: Sequence[Segment], census: _Census, room: _Room) -> Cleaned:
    """Write the new segments. Each group of old ones makes one new segment."""
    cleaned = Cleaned(keys=census.keys)
    keeper = _Keeper(job, census, cleaned)
    by_offset = {segment.base_offset: segment for segment in segments}
    for group in groups_of(job.segments, job.segment_bytes):
        target = Segment.create(disk, job.folder, group[0].base_offset, 0, name_suffix=CLEANED)
        try:
            writer = _Writer(target, job.index_interval_bytes, room)
            for facts in group:
                target.appended_ms = max(target.appended_ms, facts.appended_ms)
                for _, header, batch in by_offset[facts.base_offset].batches(0):
                    kept = keeper.keep(header, batch)
                    if kept is not None:
                        writer.write(kept, header)
            writer.flush()
            target.end_offset = group[-1].end_offset
            target.seal()
            target.file.set_modified(target.appended_ms)  # a recovery goes by it
            cleaned.segments.add(target.facts())
        finally:
            target.close()
    if not keeper.has_read_all:
        raise CorruptBatch("the segments were read differently the second time")
    return cleaned


class _Writer:
    """Gathers batches and writes many at once."""

    def __init__(self, target: Segment, interval_bytes: int, room: _Room) -> None:
        self._room = room
        self._target = target
        self._interval_bytes = interval_bytes
        self._waiting: list[tuple[Buffer, BatchHeader]] = []
        self._size_bytes = 0

    def write(self, batch: Buffer, header: BatchHeader) -> None:
        if len(batch) != header.size_bytes or type(batch) is not memoryview:
            header = read_header(batch)
        self._waiting.append((batch, header))
        self._size_bytes += len(batch)
        if self._size_bytes >= WRITE_BYTES or len(self._waiting) >= WRITE_BATCHES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._room.take(self._size_bytes)
            self._target.append_all(self._waiting, self._interval_bytes)
        self._waiting = []
        self._size_bytes = 0


class _Keeper:
    """Decides, batch by batch in the order of the log, what is written to the new segments."""

    def __init__(self, job: CleaningJob, census: _Census, cleaned: Cleaned) -> None:
        self._unreadable = census.unreadable
        self._transactions = census.transactions
        self._flags = memoryview(census.flags)  # type: ignore[arg-type] # numpy's stub does not say that arrays are buffers
        self._producers = LastBatches(job.last_batches, job.last_markers, census.end_offset)
        self._job = job
        self._horizon_ms = job.horizon_ms
        self._cleaned = cleaned
        # Producers that have written since their last marker. Never iterated.
        self._with_data: set[int] = set()
        self._batches = self._records = 0

    @property
    def has_read_all(self) -> bool:
        return self._records == len(self._flags)

    def keep(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """The batch as it is, the batch with fewer records, or None if nothing of it stays."""
        index, self._batches = self._batches, self._batches + 1
        if index in self._unreadable:
            self._records += self._unreadable[index]
            self._cleaned.unreadable_batches += 1  # what can't be opened can't be judged
            return batch
        check(header, batch)
        if header.is_control:
            return self._keep_marker(header, batch)
        if header.is_transactional:
            self._with_data.add(header.producer_id)
        if self._transactions.is_aborted(header):
            self._cleaned.records_before += header.record_count
            return self._keep_some(header, batch, b"\1" * header.record_count)
        if header.record_count > RECORDS_OPENED:
            self._cleaned.oversized_batches += 1
            self._cleaned.records_before += header.record_count
            self._cleaned.records_after += header.record_count
            return batch
        first, self._records = self._records, self._records + header.record_count
        if self._records > len(self._flags):
            raise CorruptBatch(f"the batch at {header.base_offset} was read differently the second time")
        self._cleaned.records_before += header.record_count
        return self._keep_some(header, batch, bytes(self._flags[first : self._records]))

    def _keep_some(self, header: BatchHeader, batch: memoryview, flags: bytes) -> Buffer | None:
        tombstones = flags.count(TOMBSTONE)
        kept = flags.count(0) + tombstones
        self._cleaned.records_after += kept
        if EXPIRED | TOMBSTONE | DEAD in flags:
            self._cleaned.forgotten_below = header.next_offset
        if not kept and not self._producers.is_last(header):
            return None
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is None and tombstones:
            horizon_ms = self._horizon_ms
        if kept == len(flags) and horizon_ms == header.delete_horizon_ms:
            return batch
        if kept and horizon_ms == header.delete_horizon_ms and (cut := _cut(header, batch, flags)) is not None:
            return cut
        records = read_stored_records(batch, header) if kept else ()
        left = [record for record, flag in zip(records, flags, strict=True) if not flag & DEAD] if kept else []
        return build_from_stored(header, left, delete_horizon_ms=horizon_ms)

    def _keep_marker(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        kind = read_marker(batch).type
        if kind is None or self._cleaned.unreadable_batches:
            # A batch that can't be read may belong to the transaction that this marker ends: its producer id can't be
            # trusted either.
            return batch
        if header.producer_id in self._with_data:
            self._with_data.remove(header.producer_id)
            return batch  # a batch of the transaction is still in the log, perhaps an empty one: it needs its end
        if header.delete_horizon_ms is None:
            records = list(read_stored_records(batch, header))
            return build_from_stored(header, records, delete_horizon_ms=self._horizon_ms)
        if not self._job.may_forget(header) or self._producers.is_last(header):
            return batch
        if kind is ControlType.ABORT:
            self._cleaned.dropped_abort_markers.append(header.base_offset)
        self._cleaned.forgotten_below = header.next_offset
        return None


def _cut(header: BatchHeader, batch: memoryview, flags: bytes) -> Buffer | None:
    """The batch with the bytes of its dead records cut out. None if a timestamp overflows 64 bits: then the batch must
    be built anew.
    """
    payload = plain_payload(batch, header)
    parts: list[bytes] = []
    at = kept_from = 0
    deltas: list[int] = []
    for flag in flags:
        begin = at
        byte, next_byte = payload[at], payload[at + 1]
        if byte < 0x80:
            size, at = byte >> 1, at + 1
        elif next_byte < 0x80:
            size, at = (byte & 0x7F | next_byte << 7) >> 1, at + 2
        else:
            size, at = read_varint(payload, at)
        if flag & DEAD:
            if kept_from < begin:
                parts.append(payload[kept_from:begin])
            kept_from = at + size
        else:
            byte = payload[at + 1]
            deltas.append(byte >> 1 if not byte & 0x81 else read_varint(payload, at + 1)[0])
        at += size
    parts.append(payload[kept_from:])
    latest_ms = header.max_timestamp if header.log_append_time else header.base_timestamp + max(deltas)
    if header.base_timestamp + min(deltas) < -(1 << 63) or latest_ms >= 1 << 63:
        return None
    kept = header._replace(max_timestamp=latest_ms, record_count=len(deltas))
    return assemble(kept, compress(header.codec, b"".join(parts)))


# ---------------------------------------------------------------- what both readings ask


def check(header: BatchHeader, batch: memoryview) -> None:
    """Refuse a batch that rotted. Written anew it would get a checksum that fits, and nobody could see the damage."""
    if not checksum_ok(batch, header):
        raise CorruptBatch(f"the batch at {header.base_offset} has a wrong checksum")
    if header.is_control:
        read_marker(batch)
