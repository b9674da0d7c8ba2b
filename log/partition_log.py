# Hot path: `append` and `read` (log/README.md has the numbers). Plain twin: tests/properties/test_log_machine.py.
"""The log of one partition: segments in a row, written at the end, read anywhere, fed to its views.

What always holds:
* `start_offset <= flushed_offset <= end_offset`; a start that is raised beyond what is flushed lifts it. An offset that
  was handed out is never handed out again to other bytes, unless `truncate_to` or `restart_at` took it back. Gaps
  between offsets are left by compaction, and by copying what it left (`append_after_gap`).
* A batch is in the log and in every view, or (after a `DiskFault`) in neither.
* `flushed_offset` moves only after every byte below it, the names of its files and of its folder are durable.

How the last comes about: `append` is synchronous and rolls by itself, so a new segment's name is not yet durable when
the first batch enters it. That is allowed because nothing in it counts: `flush` first syncs the folder, then the sealed
segments with their indexes, then the active one, and only then moves `flushed_offset`. A power cut before that takes
away a name and with it only bytes that nobody was promised; the recovery cuts what follows the hole.

A log that was closed cleanly is opened from the facts in the manifest without touching a file. All calls come from the
loop's thread, except `open`, which may run in another.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from log.batch import BatchHeader, Buffer, StoredRecord, crc32c, open_records
from log.checkpoints import CLEANED_OFFSET, GAPS_OFFSET, START_OFFSET, read_offset, write_offset
from log.clock import CLOCK_SET_MS
from log.config import LogConfig
from log.disk import Disk, DiskFault, FileSlice
from log.epochs import CHECKPOINT, LeaderEpochs
from log.identity import sync_topic_id, write_topic_id
from log.ids import NO_TIMESTAMP, TopicId
from log.recovery import Damage, Recovered, RecoveryReport, recover
from log.retention import SegmentAge, expired
from log.segment import SUFFIXES, Segment, SegmentFacts
from log.snapshots import (
    Snapshot,
    encode_snapshot,
    encoding,
    restore,
    restore_newest,
    snapshot_name,
    superfluous,
    take_snapshot,
)
from log.swap import SwapPlan, forget_plan
from log.unbroken import unbroken
from log.views import View, whole

SNAPSHOT_WORTH_BYTES: Final = 1 << 20
"""A recovery that read less leaves no snapshot: reading it again costs less than a file for each of many partitions."""
RECORDS_AT_ONCE: Final = 200
HEADERS_AT_ONCE: Final = 500
"""A search by time looks at so many and then lets others have their turn: half a millisecond."""

Unpack = Callable[[bytes, BatchHeader], Awaitable[bytes]]
"""The payload of a batch, plain. It may be a hundred megabytes, so who calls may want it done beside the loop."""


class OffsetOutOfRange(LookupError):
    """The offset is below the start of the log or above its end."""


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class CleanState:
    """Everything about a log that was closed: what `open` needs so that it need not look."""

    folder: str
    start_offset: int
    end_offset: int
    segments: tuple[SegmentFacts, ...]
    epochs: tuple[tuple[int, int], ...]
    snapshots: tuple[int, ...]
    views: dict[str, bytes]


class PartitionLog:
    """See the module."""

    __slots__ = (
        "_active",
        "_bases",
        "_cuts",
        "_disk",
        "_folder_is_new",
        "_gaps_left",
        "_kept_start",
        "_lock",
        "_names_changed",
        "_pending_snapshots",
        "_plan_left",
        "_roll_ms",
        "_segments",
        "_snapshots",
        "_topic_id",
        "_truncated",
        "_unsynced",
        "_views",
        "config",
        "end_offset",
        "epochs",
        "flushed_offset",
        "folder",
        "gone",
        "recovery",
        "start_offset",
    )

    def __init__(self, disk: Disk, folder: str, config: LogConfig, views: Sequence[View]) -> None:
        """An empty log without a folder. Others open one with `open`."""
        self._disk = disk
        self._views = tuple(views)
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._active: Segment | None = None
        self._snapshots: list[int] = []
        self._pending_snapshots: dict[int, Snapshot] = {}
        self._unsynced: list[Segment] = []
        self._folder_is_new = True
        self._names_changed = False
        self._truncated = False
        self._plan_left: SwapPlan | None = None
        self._cuts = 0
        self._gaps_left = 0  # where the latest gap ends that no checkpoint tells of
        self._kept_start = 0  # what the checkpoint is known to say, durably
        self._lock: asyncio.Lock | None = None
        self._topic_id: TopicId | None = None
        self.folder = folder
        self.gone = False  # discarded
        self.epochs = LeaderEpochs()
        self.start_offset = self.end_offset = self.flushed_offset = 0
        self.recovery: RecoveryReport | None = None
        self.set_config(config)

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        config: LogConfig,
        views: Sequence[View],
        *,
        known: CleanState | None,
        now_ms: int,
        recovery_point: int = 0,
        topic_id: TopicId | None = None,
        on_read: Callable[[int], None] = lambda size_bytes: None,
    ) -> "PartitionLog":
        """The log in `folder`, new when there is none. `known`: what a clean stop said. Otherwise the folder is read.
        `topic_id` is written into a folder that is made; `on_read` hears how many bytes a recovery has read.

        Everything below `recovery_point` was durable at some time before. After a recovery, `recovery` says what was
        found, and nothing above the trusted offset counts as flushed before the first `flush`.
        """
        log = cls(disk, folder, config, views)
        log._topic_id = topic_id
        if known is not None:
            log._adopt(known)
        elif disk.exists(folder):
            log._take_over(
                recover(
                    disk,
                    folder,
                    views,
                    recovery_point=recovery_point,
                    interval_bytes=config.index_interval_bytes,
                    now_ms=now_ms,
                    on_read=on_read,
                )
            )
        else:
            restore(views, {})
        return log

    def _adopt(self, known: CleanState) -> None:
        last = len(known.segments) - 1
        segments = [
            Segment(self._disk, self.folder, facts, sealed=index != last) for index, facts in enumerate(known.segments)
        ]
        self._set_segments(segments)
        self._snapshots = list(known.snapshots)
        self._folder_is_new = False
        self.epochs = LeaderEpochs(known.epochs)
        self.epochs.changed = True  # the manifest knew them; their own file may be older
        self.start_offset = known.start_offset
        self.end_offset = self.flushed_offset = known.end_offset
        restore(self._views, known.views)

    def _take_over(self, found: Recovered) -> None:
        self._set_segments(found.segments)
        self._unsynced = [segment for segment in found.segments[found.first_unsynced :] if segment.sealed]
        self._snapshots = found.snapshots
        self._pending_snapshots = found.new_snapshots
        self._folder_is_new = True  # it may have been made right before a kill, and its own name never have been synced
        self._names_changed = self._truncated = True
        self._plan_left = found.plan_left
        self.epochs = found.epochs
        self.start_offset, self.end_offset = found.start_offset, found.end_offset
        self.flushed_offset = max(min(found.report.trusted_offset, found.end_offset), found.start_offset)
        self.recovery = found.report
        if found.report.scanned_bytes >= SNAPSHOT_WORTH_BYTES:
            self._take_snapshot()

    def _set_segments(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1] if segments and not segments[-1].sealed else None

    def set_config(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self.config = config
        # Segments of many partitions must not all roll at once; the same log rolls at the same age after a restart.
        jitter_ms = crc32c(self.folder.encode()) % config.segment_jitter_ms if config.segment_jitter_ms > 0 else 0
        self._roll_ms = config.segment_ms - min(jitter_ms, config.segment_ms)
        if config.compacts:
            self._roll_ms = min(self._roll_ms, config.max_compaction_lag_ms)

    # -- facts

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first. To look at; changed by this log alone."""
        return self._segments

    @property
    def damage(self) -> Sequence[Damage]:
        """Durable bytes that the recovery found changed. With any, this log must not lead."""
        return self.recovery.damage if self.recovery is not None else ()

    @property
    def flush_due(self) -> bool:
        """A roll has left a sealed segment behind that is not durable, or a swap its plan: flush soon, in every mode of
        durability.
        """
        return bool(self._unsynced or self._plan_left)

    @property
    def swap_unfinished(self) -> bool:
        """The cleaner, or a recovery, went through with a swap, and its plan is still there: no other may begin."""
        return self._plan_left is not None

    # -- writing

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> None:
        """One stamped batch, at exactly `end_offset`. Rolls first when due. `DiskFault`: nothing has changed."""
        assert header.base_offset == self.end_offset, "batches follow each other without a gap"
        active = self._active
        config = self.config
        if active is None or not active.has_room_for(header, config, now_ms, self._roll_ms):
            active = self._roll(now_ms)
        active.append(batch, header, now_ms, config.index_interval_bytes)
        self.end_offset = active.end_offset
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        for view in self._views:
            view.apply(header, batch)

    def append_after_gap(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> None:
        """`append`, of a batch that was copied from a log in which compaction may have left nothing before it."""
        ended = self.end_offset
        assert header.base_offset >= ended, "no offset is given twice"
        if header.base_offset == ended:
            self.append(batch, header, now_ms=now_ms)
            return
        active = self._active
        if active is None or not active.has_room_for(header, self.config, now_ms, self._roll_ms):
            self._roll(now_ms)  # before the gap: a segment begins where the last one ends
        self.end_offset = header.base_offset
        try:
            self.append(batch, header, now_ms=now_ms)
        except DiskFault:
            self.end_offset = ended
            raise
        self._gaps_left = self.end_offset

    def roll(self, now_ms: int) -> None:
        """End the active segment, so that retention and compaction may have it. Nothing when it is empty."""
        if self._active is not None and self._active.size_bytes:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and start the next one, whose name the next flush makes durable."""
        last = self._segments[-1] if self._segments else None
        if last is None:
            self._make_folder()
        if last is not None and last.base_offset == self.end_offset:
            return self._reopen(last)
        if last is not None and not last.sealed:
            last.seal()
            self._unsynced.append(last)
            self._active = None  # also if the next one can't be made now
        segment = self._start_segment(now_ms)
        if last is not None:
            self._take_snapshot()
        return segment

    def _reopen(self, empty: Segment) -> Segment:
        """A sealed segment without batches, as a recovery can leave one at the end. Its name is the one we need."""
        if empty in self._unsynced:
            self._unsynced.remove(empty)
        empty.cut(0, self.end_offset, self.config.index_interval_bytes)
        self._truncated = True
        self._active = empty
        return empty

    def _start_segment(self, now_ms: int) -> Segment:
        segment = Segment.create(self._disk, self.folder, self.end_offset, now_ms)
        self._names_changed = True
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._active = segment
        return segment

    def _make_folder(self) -> None:
        if not self._disk.exists(self.folder):
            self._disk.mkdir(self.folder)
            self._folder_is_new = self._names_changed = True
            if self._topic_id is not None:
                try:
                    write_topic_id(self._disk, self.folder, self._topic_id)
                except DiskFault:  # no room for it, maybe: a folder that says nothing of its topic must not stay
                    self._disk.discard(self.folder)
                    raise

    def _take_snapshot(self) -> None:
        """What the views know now, to be stored by the next flush.

        Every segment needs the one at its beginning: when the segments before it go, nothing else tells what they held.
        """
        if not self._views:
            return
        offset = self.end_offset
        epoch = self.epochs.epoch_at(offset - 1)
        self._pending_snapshots[offset] = take_snapshot(self._views, offset=offset, leader_epoch=epoch)

    # -- durability

    async def flush(self) -> int:
        """Make durable what was appended before the call; returns the flushed offset.

        Calls gather: whoever comes while another flush runs waits for it, and for one more only if it must.
        """
        wanted = self.end_offset
        if self.flushed_offset < wanted or self._is_unsettled():
            async with self.alone():
                await self._settle(wanted)
        return self.flushed_offset

    async def _settle(self, wanted: int) -> None:
        while self.flushed_offset < min(wanted, self.end_offset) or self._is_unsettled():
            await self._flush_once()

    def alone(self) -> asyncio.Lock:
        """What changes files and waits for the disk is done one by one. Most logs of a large broker never need it."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    def _is_unsettled(self) -> bool:
        """Whether files say less, or other things, than they should, besides the newest batches."""
        return bool(
            self._names_changed
            or self._truncated
            or self._unsynced
            or self._pending_snapshots
            or self._plan_left
            or self._gaps_left
        )

    async def _flush_once(self) -> None:
        cuts, end_offset, active = self._cuts, self.end_offset, self._active
        sealed, self._unsynced = self._unsynced, []
        names_changed, self._names_changed = self._names_changed, False
        truncated, self._truncated = self._truncated, False
        try:
            if names_changed:
                await self._sync_names()
            for segment in sealed:
                await segment.fsync()
            if active is not None:
                await active.fsync()
            if sealed or self._pending_snapshots or self._plan_left:
                await self._store_hints()
            if 0 < self._gaps_left <= end_offset:
                await write_offset(self._disk, self.folder, GAPS_OFFSET, self._gaps_left)
                self._gaps_left = 0
        except BaseException:
            # Cancelled, for the broker stops: its last flush must not take for done what was only begun.
            self._unsynced = [*sealed, *self._unsynced]
            self._names_changed |= names_changed
            self._truncated |= truncated
            raise
        if cuts == self._cuts:  # otherwise what was synced may be cut, and its offsets written anew
            self.flushed_offset = max(self.flushed_offset, end_offset)

    async def _sync_names(self) -> None:
        if not self._disk.exists(self.folder):
            return
        if self._folder_is_new:
            await sync_topic_id(self._disk, self.folder)
        await self._disk.sync_dir(self.folder)
        if self._folder_is_new:
            await self._disk.sync_dir("")
            self._folder_is_new = False

    async def _store_hints(self) -> None:
        """Epochs and snapshots, so that the next recovery need not read the segments that are durable now."""
        if self.epochs.changed:
            self.epochs.changed = False
            try:
                await self._disk.write_atomic(f"{self.folder}/{CHECKPOINT}", self.epochs.to_text())
            except BaseException:
                self.epochs.changed = True  # cancelled, maybe before it began
                raise
        for offset, snapshot in sorted(self._pending_snapshots.items()):
            data = bytearray()
            for _ in encoding(snapshot, data):
                await asyncio.sleep(0)
            await self._disk.write_atomic(f"{self.folder}/{snapshot_name(offset)}", data)
            if self._pending_snapshots.get(offset) is snapshot:
                del self._pending_snapshots[offset]
                self._snapshots = sorted({*self._snapshots, offset})
            else:  # cut off meanwhile
                self._disk.unlink(f"{self.folder}/{snapshot_name(offset)}")
        if self._plan_left is not None:
            await write_offset(self._disk, self.folder, CLEANED_OFFSET, self._plan_left.cleaned_offset)
            await forget_plan(self._disk, self.folder)
            self._plan_left = None
        self._drop_old_snapshots()

    def _drop_old_snapshots(self) -> None:
        first = self._bases[0] if self._bases else self.end_offset
        for offset in superfluous(self._snapshots, first):
            self._disk.unlink(f"{self.folder}/{snapshot_name(offset)}")
            self._snapshots.remove(offset)

    # -- reading

    def read(self, offset: int, *, max_bytes: int, limit_offset: int, at_least_one: bool) -> FileSlice | None:
        """Stored whole batches of one segment, from the batch that holds `offset`, only such as end below the limit.

        None when there is nothing: at or above the limit, or when the first batch is larger than `max_bytes` and
        `at_least_one` does not ask for it. The slice is valid until the next await unless it is pinned.
        """
        if offset >= limit_offset or offset >= self.end_offset:
            return None
        slot = self._slot_of(offset)
        while slot < len(self._segments) and self._bases[slot] < limit_offset:
            segment = self._segments[slot]
            found = segment.read(offset, max_bytes=max_bytes, limit_offset=limit_offset, at_least_one=at_least_one)
            if found is not None or segment.end_offset > limit_offset:
                return found
            if segment.position_of(offset) < segment.size_bytes:
                return None  # there is a batch, but it is too large
            slot += 1  # compaction has taken the end of this segment
        return None

    def reach_of(self, stored: FileSlice) -> int:
        """An offset not below the end of what `read` gave out just now, and not far above it."""
        for segment in reversed(self._segments):
            if segment.is_read_through(stored.file):
                return segment.offset_after(stored.position + stored.size)
        return self.end_offset

    def _slot_of(self, offset: int) -> int:
        """The segment that holds `offset` if any does."""
        if offset < self.start_offset or not self._bases or offset < self._bases[0]:
            raise OffsetOutOfRange(f"offset {offset} is not between {self.start_offset} and {self.end_offset}")
        return bisect_right(self._bases, offset) - 1

    def scan(self, from_offset: int, limit_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch from the one that holds `from_offset`, below the limit. A batch's bytes are valid until the next.

        `CorruptBatch` where the stored bytes are none. The log may be appended to between two batches, not cut.
        """
        limit = self.end_offset if limit_offset is None else limit_offset
        if from_offset >= limit or not self._segments:
            return
        first = max(bisect_right(self._bases, from_offset) - 1, 0)
        for segment in self._segments[first:]:
            for _, header, batch in segment.batches(segment.position_of(from_offset)):
                if header.last_offset >= limit:
                    return
                yield header, batch

    # -- times

    async def offset_for_timestamp(self, timestamp: int, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
        """The first record at or after the start of the log whose timestamp is not below `timestamp`."""
        from_offset = self.start_offset
        while (candidate := self._candidate(timestamp, from_offset)) is not None:
            header, batch = candidate
            if header.base_offset >= limit_offset:
                return None
            async for record in self._records(header, batch, unpack):
                if record.timestamp >= timestamp and record.offset >= self.start_offset:
                    found = TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
                    return found if found.offset < limit_offset else None
            from_offset = header.next_offset
        return None

    def _candidate(self, timestamp: int, from_offset: int) -> tuple[BatchHeader, bytes] | None:
        """The first batch from there on that has such a record, by its header."""
        for segment in self._segments:
            if segment.largest_timestamp >= timestamp and segment.end_offset > from_offset:
                for position, header in segment.search_timestamp(timestamp, from_offset):
                    return header, segment.file.pread(header.size_bytes, position)
        return None

    async def max_timestamp(self, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all below the limit; if none has a time, the first of all
        that says so.
        """
        while True:
            segments = [segment for segment in self._segments if segment.end_offset > self.start_offset]
            latest: tuple[BatchHeader, bytes] | None = None
            for segment in segments:
                known = NO_TIMESTAMP if latest is None else latest[0].newest_timestamp
                if segment.largest_timestamp > known and segment.base_offset < limit_offset and not segment.gone:
                    found = await self._largest(segment, limit_offset)
                    if found is not None and found[1].newest_timestamp > known:
                        latest = found[1], segment.file.pread(found[1].size_bytes, found[0])
            if any(segment.gone for segment in segments):
                continue  # compacted, or expired, while this looked
            cut = await self._latest_of_cut_batch(limit_offset, unpack)
            if latest is None:
                return cut or await self._first_without_time(limit_offset, unpack)
            best = await self._latest_in(*latest, unpack)
            return cut if cut is not None and (best is None or cut.timestamp >= best.timestamp) else best

    async def _largest(self, segment: Segment, limit_offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch that has the largest timestamp of those between the start of the log and the limit."""
        largest = segment.largest_before(limit_offset)
        if largest is None or largest[1].base_offset >= self.start_offset:
            return largest
        # The index knows of the latest so far, and that one has left the log: look at all that are left.
        file, start_offset, largest = segment.file, self.start_offset, None
        file.pin()
        try:
            for count, (position, header) in enumerate(segment.headers(segment.position_of(start_offset)), start=1):
                if header.last_offset >= limit_offset:
                    break
                known = NO_TIMESTAMP if largest is None else largest[1].newest_timestamp
                if header.base_offset >= start_offset and header.newest_timestamp > known:
                    largest = (position, header)
                if count % HEADERS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            file.unpin()
        return None if segment.gone else largest

    async def _latest_of_cut_batch(self, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
        """In the batch that the start of the log goes through: its header speaks of records that are gone."""
        for header, batch in self.scan(self.start_offset, limit_offset):
            return await self._latest_in(header, batch, unpack) if header.base_offset < self.start_offset else None
        return None

    async def _first_without_time(self, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
        for header, batch in self.scan(self.start_offset, limit_offset):
            async for record in self._records(header, batch, unpack):
                if record.timestamp == NO_TIMESTAMP and record.offset >= self.start_offset:
                    return TimestampOffset(record.offset, NO_TIMESTAMP, header.leader_epoch)
            return None
        return None

    async def _latest_in(self, header: BatchHeader, batch: Buffer, unpack: Unpack) -> TimestampOffset | None:
        latest: TimestampOffset | None = None
        async for record in self._records(header, batch, unpack):
            known = NO_TIMESTAMP if latest is None else latest.timestamp
            if record.timestamp > known and record.offset >= self.start_offset:
                latest = TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
        return latest

    async def _records(self, header: BatchHeader, batch: Buffer, unpack: Unpack) -> AsyncIterator[StoredRecord]:
        """The records of a batch, however many, with everybody else's turns between them."""
        if header.record_count:
            payload = await unpack(bytes(batch), header)
            for count, record in enumerate(open_records(payload, header), start=1):
                yield record
                if count % RECORDS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    # -- cutting

    async def distrust(self, offset: int) -> None:
        """Nothing in the folder says any more that what stands from `offset` on was durable once: whoever means to cut
        there does this first, or a crash in between would look like damage.
        """
        for checkpoint in (CLEANED_OFFSET, GAPS_OFFSET):
            if (read_offset(self._disk, self.folder, checkpoint) or 0) > offset:
                await write_offset(self._disk, self.folder, checkpoint, offset)

    def truncate_to(self, offset: int) -> None:
        """Take back everything from `offset` on, or from the start of the batch that holds it."""
        if offset >= self.end_offset:
            return
        if not self._bases or offset <= self._bases[0] or offset <= self.start_offset:
            self.restart_at(offset)
            return
        self._cuts += 1
        self._names_changed = self._truncated = True
        while self._bases[-1] >= offset:  # newest first, so that a crash leaves no hole
            self._forget_segment(self._segments[-1])
        last = self._segments[-1]
        position = last.position_of(offset)
        end_offset = offset
        for _, header in last.headers(position, min(position + 1, last.size_bytes)):
            end_offset = min(offset, header.base_offset)  # above it where compaction has left nothing
        if end_offset <= self.start_offset:  # the start goes through that batch: nothing that can be read is left
            self.restart_at(self.start_offset)
            return
        last.cut(position, end_offset, self.config.index_interval_bytes)
        self._active = last
        self._end_at(end_offset)
        replay_from = self._restore_views()
        for header, batch in self.scan(replay_from):
            if header.base_offset >= replay_from:
                for view in self._views:
                    view.apply(header, batch)
        self._tell_start()

    def restart_at(self, offset: int) -> None:
        """Forget everything; the log is empty and starts at `offset`."""
        self._cuts += 1
        self._names_changed = self._truncated = True
        self._make_folder()
        if offset not in self._bases:
            # First of all, and it stays: an empty segment says where the log goes on, whatever a crash undoes.
            self._segments.insert(0, Segment.create(self._disk, self.folder, offset, 0))
            self._bases.insert(0, offset)
        kept = self._segments[self._bases.index(offset)]
        for segment in [segment for segment in reversed(self._segments) if segment is not kept]:
            self._forget_segment(segment)
        kept.cut(0, offset, self.config.index_interval_bytes)
        self._active = kept
        self.epochs.clear()
        self._end_at(offset)
        self._forget_snapshots(above=-1)
        for checkpoint in (START_OFFSET, CLEANED_OFFSET, GAPS_OFFSET):
            self._disk.unlink(f"{self.folder}/{checkpoint}")
        self.start_offset = offset
        self._kept_start = 0
        restore(self._views, {})
        self._tell_start()

    def _forget_segment(self, segment: Segment) -> None:
        slot = self._segments.index(segment)
        del self._segments[slot], self._bases[slot]
        self._active = None
        if segment in self._unsynced:
            self._unsynced.remove(segment)
        segment.remove()

    def _end_at(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._gaps_left = min(self._gaps_left, end_offset)
        self.epochs.truncate_from_end(end_offset)
        self._forget_snapshots(above=end_offset)

    def _forget_snapshots(self, *, above: int) -> None:
        for offset in [offset for offset in self._pending_snapshots if offset > above]:
            del self._pending_snapshots[offset]
        for offset in [offset for offset in self._snapshots if offset > above]:
            self._disk.unlink(f"{self.folder}/{snapshot_name(offset)}")
            self._snapshots.remove(offset)

    def _restore_views(self) -> int:
        """The views as of some offset not above the end; returns from where the batches must be applied."""
        pending = max(self._pending_snapshots, default=-1)
        if pending > max(self._snapshots, default=-1):
            restore(self._views, self._pending_snapshots[pending].views)
            return pending
        return restore_newest(
            self._disk, self.folder, self._views, self._snapshots, epochs=self.epochs, end_offset=self.end_offset
        )

    def _tell_start(self) -> None:
        for view in self._views:
            view.set_start_offset(self.start_offset)

    # -- the other end

    async def raise_start_offset(self, offset: int) -> None:
        """Nothing below `offset` is read again, not even after a crash. Whole segments below it may go by retention."""
        assert offset <= self.end_offset, "a log can't start above its end"
        if offset > self._kept_start:  # it may be raised and not yet be durable
            await unbroken(self._raise_start_offset(offset))

    async def _raise_start_offset(self, offset: int) -> None:
        async with self.alone():
            if self.gone:
                return
            if self.flushed_offset < offset:  # a recovery takes everything below the start for durable
                await self._settle(offset)
            offset = min(offset, self.end_offset)  # the log may have been cut meanwhile
            if offset > self.start_offset:
                self._start_at(offset)
            self._make_folder()
            while self._kept_start != self.start_offset:  # the log may be restarted meanwhile
                written = self.start_offset
                await write_offset(self._disk, self.folder, START_OFFSET, written)
                self._kept_start = written

    def _start_at(self, offset: int) -> None:
        self.start_offset = offset
        self.flushed_offset = max(self.flushed_offset, offset)
        self.epochs.truncate_from_start(offset)
        self._tell_start()

    def expired_segments(self, now_ms: int, high_watermark: int) -> int:
        """How many of the oldest segments may go by age, size or start offset (`log.retention`)."""
        ages: list[SegmentAge] = []
        by_client = self.config.message_timestamp_type == "CreateTime"
        appended_ms = now_ms
        for segment in reversed(self._segments):
            # What was appended before our clock was set counts as appended with what came next.
            if segment.appended_ms >= CLOCK_SET_MS:
                appended_ms = segment.appended_ms
            newest_ms = segment.largest_timestamp
            if newest_ms < (0 if by_client else CLOCK_SET_MS):
                newest_ms = appended_ms
            ages.append(SegmentAge(segment.base_offset, segment.end_offset, segment.size_bytes, newest_ms))
        ages.reverse()
        return expired(ages, self.config, now_ms=now_ms, start_offset=self.start_offset, high_watermark=high_watermark)

    async def remove_oldest(self, how_many: Callable[[], int]) -> int:
        """Let the oldest segments go, as many as `how_many` says; the log starts after them. Returns the freed bytes.

        It is asked when nobody else is at work here, and what it says is done before anything else can happen: appends,
        the cleaner and deletions have changed the segments since it was thought that some may go.
        """
        async with self.alone():
            wanted = min(how_many(), len(self._segments))
            if not wanted:
                return 0
            if wanted == len(self._segments) and not self._active_is_empty():
                self._roll(self._segments[-1].appended_ms)  # an empty segment says where the log goes on
            # What the leaving segments told the views must be stored first.
            await self._settle(self.end_offset)
            # The last segment stays: it may have been empty when the wait began, and hold a fresh record now.
            leaving = self._segments[: min(how_many(), len(self._segments) - 1)]
            return await self._remove_leaving(leaving) if leaving else 0

    def _active_is_empty(self) -> bool:
        return self._active is not None and not self._active.size_bytes

    async def _remove_leaving(self, leaving: list[Segment]) -> int:
        self._set_segments(self._segments[len(leaving) :])
        if self._bases[0] > self.start_offset:
            self._start_at(self._bases[0])
        for segment in leaving:  # oldest first, so that a crash leaves no hole
            segment.remove()
        self._drop_old_snapshots()
        self._names_changed = True  # should the wait be cut short
        await self._disk.sync_dir(self.folder)
        return sum(segment.size_bytes for segment in leaving)

    # -- compaction

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment], plan: SwapPlan) -> None:
        """The new segments stand on disk under the names of the old ones already (`log.compaction`). That this is
        durable, and the plan gone, is left to the next flush: to another, if that one finds no room or no descriptor.
        """
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old), "only neighbours are replaced"
        self._set_segments([*self._segments[:first], *new, *self._segments[first + len(old) :]])
        for segment in old:
            segment.gone = True
            segment.close()
        self._plan_left = plan
        self._names_changed = True

    async def renew_snapshots(self, now_ms: int) -> None:
        """A view has forgotten something that its older snapshots, and the batches before now, still say.

        Afterwards there is a durable snapshot of the views as they are, at the beginning of a segment, and none older.
        """
        async with self.alone():
            if self.gone:
                return
            renewed = -1
            while self._views and renewed not in self._snapshots:  # the log may be cut meanwhile
                self.roll(now_ms)
                self._take_snapshot()
                renewed = self.end_offset
                await self._settle(renewed)
            for offset in [offset for offset in self._snapshots if offset < renewed]:
                self._disk.unlink(f"{self.folder}/{snapshot_name(offset)}")
                self._snapshots.remove(offset)
            await self._disk.sync_dir(self.folder)

    # -- ends

    @property
    def unsynced_files(self) -> int:
        """How many files, about, `close` would have to wait for one by one."""
        if self.flushed_offset == self.end_offset and not self._is_unsettled():
            return 0
        return 1 + len(self._unsynced) * len(SUFFIXES) + len(self._pending_snapshots)

    def write_snapshots(self) -> None:
        """What `close` would write, for somebody who is about to sync the whole disk. One that a crash tears is known
        by its checksum.
        """
        for offset, snapshot in sorted(self._pending_snapshots.items()):
            file = self._disk.open(f"{self.folder}/{snapshot_name(offset)}", create=True)
            file.truncate(0)
            file.append((encode_snapshot(snapshot),))
            file.close()

    def note_disk_synced(self) -> None:
        """The whole disk was synced since the last change here, and since `write_snapshots`. Only what is left of a
        swap still wants a flush.
        """
        for segment in self._unsynced:
            segment.note_synced()
        self._snapshots = sorted({*self._snapshots, *self._pending_snapshots})
        self._unsynced, self._pending_snapshots = [], {}
        self._folder_is_new = self._names_changed = self._truncated = False
        self.flushed_offset = self.end_offset

    async def close(self) -> CleanState | None:
        """Make everything durable and say what there is; the log is not used again.

        None when the log is damaged: the next start must not take anybody's word for what is there.
        """
        await self.flush()
        state = CleanState(
            self.folder,
            self.start_offset,
            self.end_offset,
            tuple(segment.facts() for segment in self._segments),
            tuple(self.epochs.entries()),
            tuple(self._snapshots),
            {view.name: whole(view.snapshot()) for view in self._views},
        )
        for segment in self._segments:
            segment.close()
        return None if self.damage else state

    async def discard(self) -> None:
        """Remove the folder and all in it, and be empty. What was begun before is finished first; what comes later
        finds nothing to do.
        """
        async with self.alone():
            for segment in self._segments:
                segment.gone = True
                segment.close()
            self._set_segments([])
            self._unsynced, self._pending_snapshots, self._plan_left = [], {}, None
            self._names_changed = self._truncated = False
            self.start_offset = self.flushed_offset = self.end_offset
            self.gone = True
            self._disk.discard(self.folder)
            await self._disk.sync_dir("")  # a power cut must not bring it back when another topic has the name
