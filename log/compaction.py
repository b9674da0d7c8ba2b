"""Keep the last record of every key, and of transactions what committed: Kafka's log cleaner.

What always holds:
* A record leaves only if a later record below the limit has its key, or if it is a tombstone whose horizon has passed,
  or if its transaction was aborted, or if it has no key. Offsets, order, timestamps and producers of the rest stay.
* The active segment is not touched, nor anything at or above the limit (the first undecided offset) or not yet durable.
* A tombstone stays for `delete.retention.ms` after a cleaner has first seen it. So does the marker of a transaction of
  which nothing else is left. The cleaner writes the end of this time (the delete horizon) into the batch, in place of
  the base timestamp (KIP-534).
* The last batch of every active producer stays, even without records, because it tells the producer's sequence and
  epoch. So does the last batch that a pass reads: what is copied ends where the last batch does, and no follower would
  come to the end of a log that ends in a gap.
* Whatever happens, the folder holds the old segments or the new ones (`log.swap`).
* A pass ends where there is a stored snapshot, and that one stays. A recovery begins with it or with a newer one, and
  so does a cut, which never goes below the limit: what the views know of removed batches is not lost. Once the swap is
  decided, nothing may begin with an older one, so these leave.

A pass reads all segments from the first up to the limit, and writes new ones in their place. `log.cleaning` does that
in a process of its own: on the event loop it would block everything for long, and a thread would compete with the loop
for the interpreter. Meanwhile the log is read and written as always. This module does what comes before (is a pass due,
and what must it know) and after: the swap.
"""

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from log.checkpoints import CLEANED_OFFSET, read_offset
from log.cleaning_job import Cleaned, CleaningJob, NumberArray, SealedSegments, groups_of
from log.disk import Disk, DiskFault
from log.ids import NO_OFFSET
from log.partition_log import PartitionLog
from log.segment import SUFFIXES, Segment, segment_name
from log.steps import done_in_steps
from log.swap import CLEANED, PLAN, SwapPlan, forget_plan, remove_old, take_name
from log.unbroken import unbroken
from log.views import View

MEMORY_BYTES: Final = 128 << 20
"""How much memory a pass may use. What it must remember beyond that is kept in a file."""
FACTS_A_TURN: Final = 1_000
"""How many segments, aborted transactions or producers are noted in one turn of the loop: half a millisecond."""
REMOVED_A_TURN: Final = 16
"""How many old segments are removed, or new ones get their names, in one turn of the loop: a few milliseconds."""
CLOSED_WORTH: Final = 50
"""To close so many old segments takes about as long as to name a new one."""

CLEAN: Final = "log.cleaning:clean"
"""The function that does the work, by name: only the process that runs it imports it, and numpy with it."""
Apart = Callable[[str, Disk, CleaningJob], Awaitable[Cleaned]]
"""Runs the function of that name in another process, and returns its result."""


class AbortedFacts(Protocol):
    """A transaction that was aborted: its batches from the first offset to its marker at the last."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...


class KnownProducer(Protocol):
    """By what a producer is known: the last offset of its last batch with a sequence; or no offset, and the epoch and
    time of a marker.
    """

    @property
    def producer_id(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...


class AbortedView(View, Protocol):
    """The view that knows which transactions were aborted."""

    def aborted_ranges(self, from_offset: int, end_offset: int) -> Iterator[AbortedFacts]:
        """The aborted transactions as they are at the time of this call, however long the iteration takes."""

    def forget_aborted(self, marker_offsets: Sequence[int]) -> Generator[None, None, None]:
        """These abort markers are about to leave the log. Nothing else of their transactions is left in it."""


class TransactionFacts(Protocol):
    """What the cleaner asks of the log's views."""

    @property
    def stable(self) -> AbortedView:
        """One of the log's own views."""

    def known_by(self, below: int) -> Iterator[KnownProducer]:
        """What each active producer is known by."""


class Work(NamedTuple):
    """The work of one pass: the segments to read, and the offset where the part begins that was never compacted."""

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
    oversized_batches: int = 0
    swapped: bool = False


# ---------------------------------------------------------------- is there work?


def find_work(log: PartitionLog, disk: Disk, *, now_ms: int, limit_offset: int) -> Work | None:
    """The work of a pass over this log, or None if no pass is due. That the topic is compacted at all is presumed."""
    if log.durability.plan_left is not None:
        return None  # the names of the last pass are not durable yet
    segments = _cleanable(log, now_ms, min(limit_offset, log.flushed_offset))
    if not segments:
        return None
    end_offset = log.segments[len(segments)].base_offset
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
    """Sealed segments from the first on, up to one that is too young or reaches above the limit. There is a snapshot
    where the next one begins.
    """
    found: list[Segment] = []
    lag_ms = log.config.min_compaction_lag_ms
    for segment, following in pairwise(log.segments):
        too_young = lag_ms > 0 and now_ms - max(segment.largest_timestamp, segment.appended_ms) < lag_ms
        if following.base_offset > limit_offset or too_young or not segment.sealed:
            break
        found.append(segment)
    while found and log.views and not log.snapshots.is_stored(log.segments[len(found)].base_offset):
        found.pop()
    return found


def _first_timestamp(segment: Segment) -> int:
    for _, header in segment.headers(0):
        if header.max_timestamp > 0:
            return header.max_timestamp
        break  # it has no time of its own
    return segment.appended_ms


# ---------------------------------------------------------------- one pass


async def compact(
    log: PartitionLog,
    disk: Disk,
    work: Work,
    facts: TransactionFacts,
    *,
    now_ms: int,
    secret: bytes,
    apart: Apart,
    breathe: Callable[[], Awaitable[None]],
    memory_bytes: int = MEMORY_BYTES,
    scratch_folder: str | None = None,
    leave_bytes: int = 0,
    keeps_deletions: bool = False,
) -> CompactionReport:
    """Clean the log once. If the log was cut, lost segments or changed its folder meanwhile, the pass changes nothing.

    `secret`: 16 bytes that nobody can guess. `scratch_folder`: where the system may put files that have no name.
    `keeps_deletions`: no tombstone and no marker leaves the log, not even if its time is over. `TooLittleRoom`: the
    disk can't hold the new segments beside the old ones and still have `leave_bytes` free.
    """
    cleaning = _Cleaning(log, disk, work, facts, now_ms)
    try:
        job = await cleaning.describe(
            secret, breathe, memory_bytes, scratch_folder, leave_bytes, keeps_deletions=keeps_deletions
        )
        await cleaning.rewrite(job, apart, breathe)
        await cleaning.swap(breathe)
    except _Overtaken:
        pass
    except BaseException:
        # Files that can't be thrown away now are thrown away at the next start. A fault of the disk must not hide a
        # cancellation: the task would go on, and code that waits for its end would wait for ever.
        with suppress(DiskFault):
            cleaning.throw_away()
        raise
    cleaning.throw_away()
    return cleaning.report


class _Overtaken(Exception):
    """The log was cut, lost segments, was discarded or changed its folder while the cleaner read it."""


class _Cleaning:
    """A pass from its beginning to the swap."""

    def __init__(self, log: PartitionLog, disk: Disk, work: Work, facts: TransactionFacts, now_ms: int) -> None:
        self.log = log
        self.disk = disk
        self.folder = log.folder
        self.segment_bytes = log.config.segment_bytes
        self.work = work
        self.facts = facts
        self.now_ms = now_ms
        self.report = CompactionReport(work.first_dirty_offset, work.end_offset)
        self.old = [segment.facts() for segment in work.segments]
        self.cuts = log.durability.cuts
        self.dropped_abort_markers: Sequence[int] = ()
        self.forgotten_below = 0
        self.new: list[Segment] = []

    async def describe(
        self,
        secret: bytes,
        breathe: Callable[[], Awaitable[None]],
        memory_bytes: int,
        scratch_folder: str | None,
        leave_bytes: int,
        *,
        keeps_deletions: bool,
    ) -> CleaningJob:
        """The job, with all that the cleaning process must know. Producers may write meanwhile, but what they are known
        by then lies above the segments of this pass.
        """
        aborted, last_batches, last_markers = NumberArray(), NumberArray(), NumberArray()
        segments = SealedSegments()
        for count, segment in enumerate(self.old, 1):
            segments.add(segment)
            if count % FACTS_A_TURN == 0:
                await breathe()
        ranges = self.facts.stable.aborted_ranges(self.old[0].base_offset, self.work.end_offset)
        for count, transaction in enumerate(ranges, 1):
            aborted.extend((transaction.producer_id, transaction.first_offset, transaction.last_offset))
            if count % FACTS_A_TURN == 0:
                await breathe()
        for count, known in enumerate(self.facts.known_by(self.work.end_offset), 1):
            if known.last_offset == NO_OFFSET:
                last_markers.extend((known.producer_id, known.producer_epoch, known.timestamp_ms))
            elif known.last_offset < self.work.end_offset:
                last_batches.extend((known.producer_id, known.last_offset))
            if count % FACTS_A_TURN == 0:
                await breathe()
        config = self.log.config
        return CleaningJob(
            self.folder,
            segments,
            self.now_ms,
            config.delete_retention_ms,
            self.segment_bytes,
            config.index_interval_bytes,
            aborted,
            last_batches,
            last_markers,
            memory_bytes,
            scratch_folder,
            leave_bytes,
            secret,
            keeps_deletions,
        )

    async def rewrite(self, job: CleaningJob, apart: Apart, breathe: Callable[[], Awaitable[None]]) -> None:
        try:
            cleaned = await apart(CLEAN, self.disk, job)
        except Exception:
            if self._still_there():
                raise
            raise _Overtaken from None  # the files were removed while the other process read them
        report = self.report
        for count, facts in enumerate(cleaned.segments, 1):
            self.new.append(Segment(self.disk, self.folder, facts, sealed=True, name_suffix=CLEANED))
            report.bytes_after += facts.size_bytes
            if count % FACTS_A_TURN == 0:
                await breathe()
        self.dropped_abort_markers = cleaned.dropped_abort_markers
        self.forgotten_below = cleaned.forgotten_below
        report.keys, report.unreadable_batches = cleaned.keys, cleaned.unreadable_batches
        report.oversized_batches = cleaned.oversized_batches
        report.records_before, report.records_after = cleaned.records_before, cleaned.records_after
        report.bytes_before = sum(facts.size_bytes for facts in self.old)

    # -- the swap

    async def swap(self, breathe: Callable[[], Awaitable[None]]) -> None:
        """Replace the old segments by the new ones durably, one after the other, the oldest first. In between the log
        is whole: what leaves with a segment is superseded by what stands there still, or nothing is left that it would
        delete.

        A cancellation does not cut a step in half, but it ends the wait for others that are at work on the log: with
        very many new segments a flush on a slow disk takes minutes.
        """
        if not self._still_there():
            return
        try:
            for segment in self.new:
                await unbroken(segment.fsync())  # afterwards its file may be thrown away
        except DiskFault:
            if self._still_there():
                raise
            raise _Overtaken from None  # the whole log was discarded, and its files are gone
        if not self._still_there():
            return
        if self.dropped_abort_markers:
            await self._forget_aborted(breathe)
        async with self.log.alone():
            await unbroken(self._put_in_place(breathe))
        if self.report.swapped:
            await self.log.flush()

    async def _forget_aborted(self, breathe: Callable[[], Awaitable[None]]) -> None:
        """A reader that is told of an aborted transaction skips the producer's batches until it meets the marker. So
        the view, and every snapshot that may restore it, must forget the transaction before its marker goes. Until then
        an older snapshot may bring it back, and so may a swap that is not decided after all: that does no harm.
        """
        log, stable = self.log, self.facts.stable
        log.times_compacted += 1  # a copy may have a snapshot of before

        def forget(view: AbortedView) -> Generator[None, None, None]:
            return view.forget_aborted(self.dropped_abort_markers)

        async with log.alone():
            if not self._still_there():
                return
            await done_in_steps(forget(stable), breathe)
            await log.durability.settle(log.end_offset)  # what was taken before is stored, so that it is written anew
            await log.snapshots.rewrite(self.work.end_offset, stable, forget, breathe)

    async def _put_in_place(self, breathe: Callable[[], Awaitable[None]]) -> None:
        """The swap itself. The caller holds the log's `alone`."""
        if not self._still_there():
            return
        await self.disk.sync_dir(self.log.folder)
        if not self._still_there() or not self._has_snapshot():
            return
        if self.forgotten_below:
            await self.log.forget_below(self.forgotten_below)
        plan = self._plan()
        if not self._still_there():
            return
        await self.disk.write_atomic(f"{self.log.folder}/{PLAN}", plan.encode())
        if self._still_there():
            try:
                await self._replace_segments(plan, breathe)
                await self.log.snapshots.forget_below(self.work.end_offset)
            except DiskFault as fault:
                self.log.durability.note_failure(fault)
                raise
            for count, _ in enumerate(remove_old(self.disk, self.folder, plan), 1):
                if count % REMOVED_A_TURN == 0:
                    await breathe()
        else:
            await forget_plan(self.disk, self.log.folder)

    async def _replace_segments(self, plan: SwapPlan, breathe: Callable[[], Awaitable[None]]) -> None:
        """Give the new segments their final names, and use them. The next flush makes this durable and removes the
        plan. If that flush finds no room or no descriptor, a later one does it.
        """
        log = self.log
        assert log.durability.plan_left is None, "the names of one pass are durable before the next begins"
        self.report.swapped = True
        log.durability.plan_left = plan
        log.times_forgotten += bool(self.forgotten_below)
        done = replaced = 0
        for new, next_base in zip(self.new, (*plan.add[1:], self.work.end_offset), strict=True):
            old = self._old_below(next_base, replaced)
            replaced += len(old)
            for segment in old:
                segment.gone = True
                segment.close()  # the room of a removed file is given back only after it is closed
            take_name(self.disk, self.folder, new.base_offset)
            new.take_its_name()
            log.segments.replace(old, new)
            log.times_compacted += 1
            log.durability.names_changed = True
            done += 1 + len(old) // CLOSED_WORTH
            if done >= REMOVED_A_TURN:
                done = 0
                await breathe()
        assert replaced == len(self.work.segments), "nothing of the old is left"
        assert log.segments[-1].end_offset <= log.end_offset, "the log ends where it did"

    def _old_below(self, offset: int, first: int) -> list[Segment]:
        """The old segments from the place `first` on that begin below `offset`."""
        segments = self.work.segments
        last = first
        while last < len(segments) and segments[last].base_offset < offset:
            last += 1
        return list(segments[first:last])

    def _plan(self) -> SwapPlan:
        add, remove = ([segment.base_offset for segment in segments] for segments in (self.new, self.old))
        assert set(add) <= set(remove), "the new segments have names of old ones"
        assert self.new, "a pass keeps the last batch that it reads"
        assert self.new[-1].end_offset <= self.work.end_offset, "the new segments end where the old ones did"
        assert self.work.end_offset <= self.log.flushed_offset, "nothing is compacted that is not durable"
        return SwapPlan(add, remove, self.work.end_offset)

    def _still_there(self) -> bool:
        """Whether the log still has the segments of this pass, in the folder where the pass found them, and was not
        cut: a segment that was cut is filled again, and sealed again; and a producer whose newest batch was taken back
        is known by an older one, which the pass has removed.
        """
        return (
            self.log.durability.cuts == self.cuts
            and self.log.folder == self.folder
            and not any(segment.gone for segment in self.work.segments)
        )

    def _has_snapshot(self) -> bool:
        """Whether there is a snapshot where the pass ends: one that could not be read was removed."""
        return not self.log.views or self.log.snapshots.is_stored(self.work.end_offset)

    def throw_away(self) -> None:
        """Remove the files of a pass that did not reach its swap. After a fault the disk refuses; then the next start
        removes them.
        """
        if self.report.swapped:
            return
        for segment in self.new:
            segment.close()
        for group in groups_of(self.old, self.segment_bytes):
            for suffix in SUFFIXES:
                path = f"{self.log.folder}/{segment_name(group[0].base_offset, suffix)}{CLEANED}"
                if self.disk.exists(path):
                    self.disk.discard(path)
