"""Keep the last record of every key, and of transactions what committed: Kafka's log cleaner, in steps on the loop.

What always holds:
* A record leaves only if a later record below the limit has its key, or if it is a tombstone whose horizon has passed,
  or if its transaction was aborted, or if it has no key. Offsets, order, timestamps and producers of the rest stay.
* The active segment is not touched, nor anything at or above the limit (the first undecided offset) or not yet durable.
* A tombstone, and the marker of a transaction of which nothing is left, stays for `delete.retention.ms` after a cleaner
  has first seen it so: the time is written into its batch (KIP-534: the base timestamp gives way to the horizon).
* The last batch of every active producer stays, empty if need be, and with it what it says of sequence and epoch.
* Whatever happens, the folder holds the old segments or the new ones (`log.swap`).

A pass reads the dirty part and notes the last offset of every key, as many as fit; then it rewrites all segments from
the first up to there. The work is cut into steps of about a millisecond, with `breathe` between them: a thread would
take the interpreter from the loop for five milliseconds at a time. Between steps the log is read and written as always.
Called by the broker's housekeeping.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from log.batch import (
    BatchHeader,
    CorruptBatch,
    StoredRecord,
    build_from_stored,
    checksum_ok,
    read_header,
    read_stored_records,
)
from log.checkpoints import CLEANED_OFFSET, read_offset, write_offset
from log.control import ControlType, read_marker
from log.disk import Disk, DiskFault
from log.partition_log import PartitionLog
from log.segment import SEGMENT_BYTES_MAX, SUFFIXES, Segment
from log.swap import CLEANED, PLAN, SwapPlan, change_names, forget_plan
from log.unbroken import unbroken

KEYS_MAX: Final = 500_000
"""Keys that one pass remembers, about 160 bytes each. A log with more is cleaned in several passes."""
KEY_AS_IT_IS_BYTES: Final = 24
"""Longer keys are remembered by a digest that is one byte longer than this, so that the two never meet."""
STEP_RECORDS: Final = 200
STEP_BYTES: Final = 256 << 10
"""A step ends after so many records or bytes, whichever comes first: about a millisecond."""


class AbortedRange(Protocol):
    """A transaction that was aborted: its batches from the first offset to its marker at the last."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...


class TransactionFacts(Protocol):
    """What the cleaner asks, and tells, the views of the log."""

    def aborted_ranges(self, from_offset: int, end_offset: int) -> Sequence[AbortedRange]: ...
    def forget_aborted(self, marker_offsets: Sequence[int]) -> None:
        """These abort markers leave the log, nothing of their transactions being left in it."""

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether an active producer has written nothing after this batch."""


class Work(NamedTuple):
    """A log that is worth cleaning: the segments to read, and where its dirty part begins."""

    segments: tuple[Segment, ...]
    first_dirty_offset: int
    end_offset: int


@dataclass(slots=True)
class CompactionReport:
    """What a pass did."""

    first_dirty_offset: int
    end_offset: int
    keys: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    unreadable_batches: int = 0
    swapped: bool = False


# ---------------------------------------------------------------- is there work?


def find_work(log: PartitionLog, disk: Disk, *, now_ms: int, limit_offset: int) -> Work | None:
    """What a pass over this log would do now, None when it isn't due. The topic's policy is the caller's question."""
    if log.swap_unfinished:
        return None
    segments = _cleanable(log, now_ms, min(limit_offset, log.flushed_offset))
    if not segments:
        return None
    end_offset = segments[-1].end_offset
    first_dirty = read_offset(disk, log.folder, CLEANED_OFFSET) or 0
    first_dirty = max(min(first_dirty, end_offset), segments[0].base_offset)
    dirty = [segment for segment in segments if segment.end_offset > first_dirty]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / sum(segment.size_bytes for segment in segments)
    config = log.config
    overdue = now_ms - _first_timestamp(dirty[0]) > config.max_compaction_lag_ms
    if ratio <= config.min_cleanable_dirty_ratio and not overdue:
        return None
    return Work(tuple(segments), first_dirty, end_offset)


def _cleanable(log: PartitionLog, now_ms: int, limit_offset: int) -> list[Segment]:
    """Sealed segments from the first on, up to one that is too young or reaches above the limit."""
    found: list[Segment] = []
    lag_ms = log.config.min_compaction_lag_ms
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        too_young = lag_ms > 0 and now_ms - max(segment.largest_timestamp, segment.appended_ms) < lag_ms
        if following.base_offset > limit_offset or too_young or not segment.sealed:
            break
        found.append(segment)
    return found


def _first_timestamp(segment: Segment) -> int:
    for _, header in segment.headers(0):
        return header.max_timestamp
    return segment.appended_ms


# ---------------------------------------------------------------- one pass


async def compact(
    log: PartitionLog,
    disk: Disk,
    work: Work,
    facts: TransactionFacts,
    *,
    now_ms: int,
    breathe: Callable[[], Awaitable[None]],
    keys_max: int = KEYS_MAX,
) -> CompactionReport:
    """Clean once. Nothing has changed when the log was cut, or lost segments, while this read it."""
    cleaning = _Cleaning(log, disk, work, facts, now_ms, breathe)
    try:
        await cleaning.note_keys(keys_max)
        await cleaning.rewrite()
        await unbroken(cleaning.swap())
    except _Overtaken:
        pass
    except BaseException:
        # What cannot be thrown away now, the next start throws away. The disk's refusal must not take the place of a
        # cancellation: the task would go on, and whoever waits for its end would wait for ever.
        with suppress(DiskFault):
            cleaning.throw_away()
        raise
    cleaning.throw_away()
    return cleaning.report


class _Overtaken(Exception):
    """The log was cut, lost segments or was discarded while the cleaner read it."""


class _Cleaning:
    """A pass from its beginning to the swap."""

    def __init__(
        self,
        log: PartitionLog,
        disk: Disk,
        work: Work,
        facts: TransactionFacts,
        now_ms: int,
        breathe: Callable[[], Awaitable[None]],
    ) -> None:
        self.log = log
        self.disk = disk
        self.work = work
        self.facts = facts
        self.now_ms = now_ms
        self.pace = _Pace(breathe)
        self.keys: dict[bytes, int] = {}
        self.end_offset = work.end_offset
        self.report = CompactionReport(work.first_dirty_offset, work.end_offset)
        self.transactions = _Transactions(facts.aborted_ranges(work.segments[0].base_offset, work.end_offset))
        self.keeper = _Keeper(self)
        self.old: list[Segment] = []
        self.new: list[Segment] = []

    # -- first reading: where does every key stand last?

    async def note_keys(self, keys_max: int) -> None:
        """Fill the map from the dirty part; `end_offset` comes down to where it is full."""
        for segment in self.work.segments:
            if segment.end_offset <= self.work.first_dirty_offset:
                continue
            for _, header, batch in segment.batches(segment.position_of(self.work.first_dirty_offset)):
                if len(self.keys) >= keys_max:
                    self.end_offset = header.base_offset
                    break
                if not header.is_control and not self.transactions.is_aborted(header):
                    self._note(header, batch)
                await self._step(header)
            if self.end_offset < self.work.end_offset:
                break
        self.report.end_offset = self.end_offset
        self.report.keys = len(self.keys)

    def _note(self, header: BatchHeader, batch: memoryview) -> None:
        keys = self.keys
        try:
            _check(header, batch)
            for record in read_stored_records(batch, header):
                if record.key is not None:
                    keys[_name_of(record.key)] = record.offset
        except CorruptBatch:
            return  # it is counted when it is kept

    # -- second reading: what stays?

    async def rewrite(self) -> None:
        """Write the successors of all segments below the end, in groups that each make one segment."""
        segments = [segment for segment in self.work.segments if segment.base_offset < self.end_offset]
        for group in _groups(segments, self.log.config.segment_bytes):
            target = Segment.create(self.disk, self.log.folder, group[0].base_offset, 0, name_suffix=CLEANED)
            self.new.append(target)
            for segment in group:
                self.old.append(segment)
                target.appended_ms = max(target.appended_ms, segment.appended_ms)
                await self._copy(segment, target)
            target.end_offset = group[-1].end_offset
            target.seal()
        self.report.bytes_before = sum(segment.size_bytes for segment in self.old)
        self.report.bytes_after = sum(segment.size_bytes for segment in self.new)

    async def _copy(self, segment: Segment, target: Segment) -> None:
        interval_bytes = self.log.config.index_interval_bytes
        for _, header, batch in segment.batches(0):
            kept = self.keeper.keep(header, batch) if header.base_offset < self.end_offset else batch
            if kept is not None:
                target.append(kept, read_header(kept), target.appended_ms, interval_bytes)
            await self._step(header)

    async def _step(self, header: BatchHeader) -> None:
        """After a breath the world may be another: `_Overtaken` when the segments are no longer the log's."""
        if await self.pace.did(header) and not self._still_there():
            raise _Overtaken

    # -- the swap

    async def swap(self) -> None:
        """Let the new segments stand for the old ones, durably and at once."""
        if not self._still_there():
            return
        try:
            for segment in self.new:
                await segment.fsync()
        except DiskFault:
            if self._still_there():
                raise
            raise _Overtaken from None  # the whole log was discarded, and its files are gone
        if self.keeper.dropped_abort_markers:
            # Whoever is told of an aborted transaction waits for its marker; so the telling ends before the marker
            # goes, in the view and in every snapshot that could bring it back.
            self.facts.forget_aborted(self.keeper.dropped_abort_markers)
            await self.log.renew_snapshots(self.now_ms)
        async with self.log.alone():
            if not self._still_there():
                return
            await self.disk.sync_dir(self.log.folder)
            plan = self._plan()
            if not self._still_there():
                return
            await self.disk.write_atomic(f"{self.log.folder}/{PLAN}", plan.encode())
            if self._still_there():
                self.report.swapped = True
                for segment in self.old:
                    segment.close_file()  # while it is open, removing it waits for whoever closes it
                change_names(self.disk, self.log.folder, plan)
                for segment in self.new:
                    segment.take_its_name()
                self.log.replace_segments(self.old, self.new)
                await self.disk.sync_dir(self.log.folder)
                await write_offset(self.disk, self.log.folder, CLEANED_OFFSET, plan.cleaned_offset)
            await forget_plan(self.disk, self.log.folder)

    def _plan(self) -> SwapPlan:
        add, remove = ([segment.base_offset for segment in segments] for segments in (self.new, self.old))
        return SwapPlan(add, remove, max(self.end_offset, self.work.first_dirty_offset))

    def _still_there(self) -> bool:
        return not any(segment.gone or not segment.sealed for segment in self.work.segments)

    def throw_away(self) -> None:
        """If the pass came to nothing, its files go. After a fault the disk refuses, and the next start does it."""
        for segment in () if self.report.swapped else self.new:
            segment.close()
            for suffix in SUFFIXES:
                path = segment.path(suffix)
                if self.disk.exists(path):
                    self.disk.discard(path)


# ---------------------------------------------------------------- what stays


class _Transactions:
    """Which batches belong to transactions that were aborted."""

    def __init__(self, ranges: Sequence[AbortedRange]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for aborted in sorted(ranges, key=lambda aborted: aborted.last_offset):
            self._ranges.setdefault(aborted.producer_id, []).append((aborted.last_offset, aborted.first_offset))

    def is_aborted(self, header: BatchHeader) -> bool:
        ranges = self._ranges.get(header.producer_id)
        if ranges is None or not header.is_transactional:
            return False
        # The transactions of one producer follow each other: the first that ends behind the batch is the one.
        slot = bisect_left(ranges, (header.base_offset, -1))
        return slot < len(ranges) and ranges[slot][1] <= header.base_offset


class _Keeper:
    """Decides, batch by batch in the order of the log, what is written to the new segments."""

    def __init__(self, cleaning: _Cleaning) -> None:
        self.keys = cleaning.keys
        self.report = cleaning.report
        self.facts = cleaning.facts
        self.transactions = cleaning.transactions
        self.now_ms = cleaning.now_ms
        self.horizon_ms = cleaning.now_ms + cleaning.log.config.delete_retention_ms
        self.with_data: set[int] = set()  # producers that have written since their last marker; only ever looked up
        self.met_unreadable = False
        self.dropped_abort_markers: list[int] = []

    def keep(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        """The batch as it is, or with less in it, or None."""
        try:
            _check(header, batch)
            if header.is_control:
                return self._keep_marker(header, batch)
            return self._keep_data(header, batch)
        except CorruptBatch:
            self.report.unreadable_batches += 1  # what can't be opened can't be judged
            self.met_unreadable = True
            return batch

    def _keep_data(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        if header.is_transactional:
            self.with_data.add(header.producer_id)
        records = list(read_stored_records(batch, header))
        kept = [] if self.transactions.is_aborted(header) else [r for r in records if self._stays(r, header)]
        self.report.records_before += len(records)
        self.report.records_after += len(kept)
        if not kept and not self.facts.is_last_of_producer(header):
            return None
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is None and not all(record.has_value for record in kept):
            horizon_ms = self.horizon_ms
        if len(kept) == len(records) and horizon_ms == header.delete_horizon_ms:
            return batch
        return build_from_stored(header, kept, delete_horizon_ms=horizon_ms)

    def _stays(self, record: StoredRecord, header: BatchHeader) -> bool:
        if record.key is None or self.keys.get(_name_of(record.key), -1) > record.offset:
            return False
        return record.has_value or not self._is_past(header.delete_horizon_ms)

    def _is_past(self, horizon_ms: int | None) -> bool:
        return horizon_ms is not None and horizon_ms <= self.now_ms

    def _keep_marker(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        kind = read_marker(batch).type
        if kind is None or self.met_unreadable:
            return (
                batch  # what can't be read may be of the transaction that this ends; not even its producer is certain
            )
        if header.producer_id in self.with_data:
            self.with_data.remove(header.producer_id)
            return batch  # a batch of the transaction is there: even an empty one begins what this ends
        if header.delete_horizon_ms is None:
            records = list(read_stored_records(batch, header))
            return build_from_stored(header, records, delete_horizon_ms=self.horizon_ms)
        if not self._is_past(header.delete_horizon_ms) or self.facts.is_last_of_producer(header):
            return batch
        if kind is ControlType.ABORT:
            self.dropped_abort_markers.append(header.base_offset)
        return None


def _check(header: BatchHeader, batch: memoryview) -> None:
    """Nothing is taken out of a batch that rotted: written anew it would have a checksum that fits."""
    if not checksum_ok(batch, header):
        raise CorruptBatch("wrong checksum")


class _Pace:
    """Takes a breath after every step."""

    def __init__(self, breathe: Callable[[], Awaitable[None]]) -> None:
        self._breathe = breathe
        self._records = 0
        self._bytes = 0

    async def did(self, header: BatchHeader) -> bool:
        """True when it was time for a breath."""
        self._records += header.record_count
        self._bytes += header.size_bytes
        if self._records >= STEP_RECORDS or self._bytes >= STEP_BYTES:
            self._records = self._bytes = 0
            await self._breathe()
            return True
        return False


def _groups(segments: Sequence[Segment], size_bytes_max: int) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment together."""
    group: list[Segment] = []
    for segment in segments:
        size_bytes = sum(member.size_bytes for member in group) + segment.size_bytes
        too_long = bool(group) and segment.end_offset - group[0].base_offset > SEGMENT_BYTES_MAX
        if group and (size_bytes > size_bytes_max or too_long):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def _name_of(key: bytes) -> bytes:
    return key if len(key) <= KEY_AS_IT_IS_BYTES else blake2b(key, digest_size=KEY_AS_IT_IS_BYTES + 1).digest()
