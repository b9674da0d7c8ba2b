# Hot path: `append` and `read` (log/README.md has the numbers). Plain twin: tests/properties/test_log_machine.py.
"""The log of one partition: segments in a row (`segments.py`), written at the end, read anywhere, fed to its views.

What always holds:
* `start_offset <= flushed_offset <= end_offset`. A start offset that is raised above the flushed offset raises that,
  too.
* An offset that was given to bytes is never given to other bytes, unless `truncate_to` or `restart_at` took it back.
* Gaps between offsets come from compaction, and from copying a compacted log (`append_after_gap`).
* A batch is in the log and in every view, or (after a `DiskFault`) in neither.
* `flushed_offset` moves only after every byte below it, the names of its files and of its folder are durable
  (`durability.py`).

`append` is synchronous and starts a new segment when one is due. The name of that segment is not durable yet when the
first batch enters it. That is safe because nothing in the segment counts as durable before the next flush. If a power
cut takes the name away, the lost bytes were never acknowledged as durable, and recovery cuts whatever follows them.

A log that was closed cleanly is opened from the facts in the manifest without touching a file. All calls come from the
loop's thread, except `open`, which may run in another.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from log.batch import BatchHeader, Buffer, crc32c
from log.checkpoints import CLEANED_OFFSET, GAPS_OFFSET, START_OFFSET, read_offset, write_offset
from log.clock import CLOCK_SET_MS
from log.config import LogConfig
from log.disk import Disk, DiskFault, FileSlice
from log.durability import Durability
from log.epochs import LeaderEpochs
from log.identity import write_topic_id
from log.ids import TopicId
from log.recovery import Damage, Recovered, RecoveryReport, recover
from log.retention import SegmentAge, expired
from log.segment import Segment, SegmentFacts
from log.segments import OffsetOutOfRange, Segments
from log.snapshots import Snapshots, restore
from log.swap import SwapPlan
from log.unbroken import unbroken
from log.views import View, whole

SNAPSHOT_WORTH_BYTES: Final = 1 << 20
"""A recovery that read fewer bytes takes no snapshot: reading them again costs less than a file for each partition."""


@dataclass(frozen=True, slots=True)
class CleanState:
    """Everything about a log that was closed cleanly. With it `open` touches no file."""

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
        "_disk",
        "_durability",
        "_kept_start",
        "_roll_ms",
        "_segments",
        "_topic_id",
        "_views",
        "config",
        "end_offset",
        "epochs",
        "folder",
        "gone",
        "recovery",
        "snapshots",
        "start_offset",
        "times_forgotten",
    )

    def __init__(self, disk: Disk, folder: str, config: LogConfig, views: Sequence[View]) -> None:
        """An empty log without a folder. A log that may exist on disk is opened by `open`."""
        self._disk = disk
        self._views = tuple(views)
        self._segments = Segments()
        self._durability = Durability(self, disk, self._segments)
        self.snapshots = Snapshots(disk, folder)
        self._kept_start = 0  # the start offset that is durable in the checkpoint
        self._topic_id: TopicId | None = None
        self.folder = folder
        self.gone = False  # discarded
        self.times_forgotten = 0  # how often a view has forgotten something because compaction removed it
        self.epochs = LeaderEpochs()
        self.start_offset = self.end_offset = 0
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
        """The log in `folder`, or a new one if there is none. `known` is its state at a clean stop; without it the
        folder is read. `topic_id` is written into a new folder. `on_read` is told how many bytes a recovery has read.

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
        self._segments.put(segments)
        self.snapshots.stored = list(known.snapshots)
        self._durability.folder_is_new = False
        self.epochs = LeaderEpochs(known.epochs)
        self.epochs.changed = True  # the manifest knew them; their own file may be older
        self.start_offset = known.start_offset
        self.end_offset = self._durability.flushed_offset = known.end_offset
        restore(self._views, known.views)

    def _take_over(self, found: Recovered) -> None:
        self._segments.put(found.segments)
        durability = self._durability
        durability.unsynced = [segment for segment in found.segments[found.first_unsynced :] if segment.sealed]
        self.snapshots.stored = found.snapshots
        self.snapshots.pending = found.new_snapshots
        durability.folder_is_new = True  # the folder may be new: made right before a crash, its name never synced
        durability.names_changed = durability.truncated = True
        durability.plan_left = found.plan_left
        self.epochs = found.epochs
        self.start_offset, self.end_offset = found.start_offset, found.end_offset
        self._durability.flushed_offset = max(min(found.report.trusted_offset, found.end_offset), found.start_offset)
        self.recovery = found.report
        if found.report.scanned_bytes >= SNAPSHOT_WORTH_BYTES:
            self._take_snapshot()

    def set_config(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self.config = config
        # The jitter keeps many partitions from rolling at the same moment. It depends on the folder's name, so that a
        # log rolls at the same age after a restart.
        jitter_ms = crc32c(self.folder.encode()) % config.segment_jitter_ms if config.segment_jitter_ms > 0 else 0
        self._roll_ms = config.segment_ms - min(jitter_ms, config.segment_ms)
        if config.compacts:
            self._roll_ms = min(self._roll_ms, config.max_compaction_lag_ms)

    # -- facts

    @property
    def flushed_offset(self) -> int:
        return self._durability.flushed_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments.all)

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first. Only this log changes them."""
        return self._segments.all

    @property
    def damage(self) -> Sequence[Damage]:
        """Durable bytes that recovery found damaged. A log with any damage must not lead."""
        return self.recovery.damage if self.recovery is not None else ()

    @property
    def flush_due(self) -> bool:
        """There is a sealed segment that is not durable yet, or the plan of a swap. A flush should come soon, whatever
        the broker's durability setting is.
        """
        return bool(self._durability.unsynced or self._durability.plan_left)

    @property
    def swap_unfinished(self) -> bool:
        """The cleaner or a recovery has swapped segments, and the plan is still on disk. No other swap may begin."""
        return self._durability.plan_left is not None

    # -- writing

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> None:
        """Append one stamped batch at exactly `end_offset`, in a new segment if one is due. After a `DiskFault` no
        batch was added.
        """
        assert header.base_offset == self.end_offset, "batches follow each other without a gap"
        active = self._segments.active
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
        """`append` for a batch that was copied from a compacted log: there may be a gap before its offset."""
        ended = self.end_offset
        assert header.base_offset >= ended, "no offset is given twice"
        if header.base_offset == ended:
            self.append(batch, header, now_ms=now_ms)
            return
        active = self._segments.active
        if active is None or not active.has_room_for(header, self.config, now_ms, self._roll_ms):
            self._roll(now_ms)  # the new segment begins where the last one ends, which is before the gap
        self.end_offset = header.base_offset
        try:
            self.append(batch, header, now_ms=now_ms)
        except DiskFault:
            self.end_offset = ended
            raise
        self._durability.gaps_left = self.end_offset

    def roll(self, now_ms: int) -> None:
        """Seal the active segment, so that retention may remove it and compaction may read it. An empty one stays."""
        if self._segments.active is not None and self._segments.active.size_bytes:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and start the next one, whose name the next flush makes durable."""
        last = self._segments.all[-1] if self._segments.all else None
        if last is None:
            self._make_folder()
        if last is not None and last.base_offset == self.end_offset:
            return self._reopen(last)
        if last is not None and not last.sealed:
            last.seal()
            self._durability.unsynced.append(last)
            self._segments.active = None  # the sealed segment is not active, even if the next one can't be made now
        segment = self._start_segment(now_ms)
        if last is not None:
            self._take_snapshot()
        return segment

    def _reopen(self, empty: Segment) -> Segment:
        """Write again to an empty sealed segment, which a recovery can leave at the end of the log. The new segment
        would have the same name.
        """
        if empty in self._durability.unsynced:
            self._durability.unsynced.remove(empty)
        empty.cut(0, self.end_offset, self.config.index_interval_bytes)
        self._durability.truncated = True
        self._segments.active = empty
        return empty

    def _start_segment(self, now_ms: int) -> Segment:
        segment = Segment.create(self._disk, self.folder, self.end_offset, now_ms)
        self._durability.names_changed = True
        self._segments.add(segment)
        return segment

    def _make_folder(self) -> None:
        if not self._disk.exists(self.folder):
            self._disk.mkdir(self.folder)
            self._durability.folder_is_new = self._durability.names_changed = True
            if self._topic_id is not None:
                try:
                    write_topic_id(self._disk, self.folder, self._topic_id)
                except DiskFault:  # perhaps there was no room: a folder must not stay without its topic's id
                    self._disk.discard(self.folder)
                    raise

    def _take_snapshot(self) -> None:
        epoch = self.epochs.epoch_at(self.end_offset - 1)
        self.snapshots.take(self._views, offset=self.end_offset, leader_epoch=epoch)

    # -- durability

    async def flush(self) -> int:
        """Make durable what was appended before the call; returns the flushed offset.

        A caller that comes while another flush runs waits for that one, and for a second one only if it has to.
        """
        await self._durability.flush()
        return self.flushed_offset

    def alone(self) -> asyncio.Lock:
        """The lock for operations that change files and wait for the disk: they exclude each other."""
        return self._durability.alone()

    def drop_superfluous_snapshots(self) -> None:
        first = self._segments.first_base
        self.snapshots.forget_superfluous(self.end_offset if first is None else first)

    # -- reading

    def read(self, offset: int, *, max_bytes: int, limit_offset: int, at_least_one: bool) -> FileSlice | None:
        """Whole batches of one segment as they are stored, from the batch that holds `offset` on. All end below the
        limit.

        None if `offset` is at or above the limit, or if the first batch is larger than `max_bytes` and `at_least_one`
        does not ask for it. The slice is valid until the next await unless it is pinned.
        """
        if offset >= limit_offset or offset >= self.end_offset:
            return None
        if offset < self.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is not between {self.start_offset} and {self.end_offset}")
        return self._segments.read(offset, max_bytes=max_bytes, limit_offset=limit_offset, at_least_one=at_least_one)

    def reach_of(self, stored: FileSlice) -> int:
        """An offset at or not far above the end of this slice, which `read` has returned just now."""
        for segment in reversed(self._segments.all):
            if segment.is_read_through(stored.file):
                return segment.offset_after(stored.position + stored.size)
        return self.end_offset

    def scan(self, from_offset: int, limit_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch below the limit, from the one that holds `from_offset` on. The bytes of a batch are valid until
        the next one.

        `CorruptBatch` if stored bytes are no batch. During the scan the log may be appended to, but not cut.
        """
        return self._segments.scan(from_offset, self.end_offset if limit_offset is None else limit_offset)

    # -- cutting

    async def distrust(self, offset: int) -> None:
        """Lower the checkpoints in the folder that say what was durable to `offset`. A caller that is going to cut the
        log there does this first. Otherwise, after a crash in between, recovery would take the cut for damage.
        """
        for checkpoint in (CLEANED_OFFSET, GAPS_OFFSET):
            if (read_offset(self._disk, self.folder, checkpoint) or 0) > offset:
                await write_offset(self._disk, self.folder, checkpoint, offset)

    def truncate_to(self, offset: int) -> None:
        """Take back everything from `offset` on, or from the start of the batch that holds it."""
        if offset >= self.end_offset:
            return
        first = self._segments.first_base
        if first is None or offset <= max(first, self.start_offset):
            self.restart_at(offset)
            return
        self._durability.note_cut()
        while self.segments[-1].base_offset >= offset:  # newest first, so that a crash leaves no hole
            self._forget_segment(self.segments[-1])
        last = self.segments[-1]
        position = last.position_of(offset)
        end_offset = offset
        for _, header in last.headers(position, min(position + 1, last.size_bytes)):
            end_offset = min(offset, header.base_offset)  # the base offset is higher if compaction has left a gap here
        if end_offset <= self.start_offset:  # the log starts inside the batch that is cut: nothing readable is left
            self.restart_at(self.start_offset)
            return
        last.cut(position, end_offset, self.config.index_interval_bytes)
        self._segments.active = last
        self._end_at(end_offset)
        replay_from = self.snapshots.restore(self._views, epochs=self.epochs, end_offset=self.end_offset)
        for header, batch in self.scan(replay_from):
            if header.base_offset >= replay_from:
                for view in self._views:
                    view.apply(header, batch)
        self._tell_start()

    def restart_at(self, offset: int) -> None:
        """Forget everything; the log is empty and starts at `offset`."""
        self._durability.note_cut()
        self._make_folder()
        kept = self._segments.at_base(offset)
        if kept is None:
            # The empty segment is made before anything is removed. Its name says where the log goes on, whenever a
            # crash comes.
            kept = Segment.create(self._disk, self.folder, offset, 0)
            self._segments.add_first(kept)
        for segment in [segment for segment in reversed(self.segments) if segment is not kept]:
            self._forget_segment(segment)
        kept.cut(0, offset, self.config.index_interval_bytes)
        self._segments.active = kept
        self.epochs.clear()
        self._end_at(offset)
        self.snapshots.forget_above(-1)
        for checkpoint in (START_OFFSET, CLEANED_OFFSET, GAPS_OFFSET):
            self._disk.unlink(f"{self.folder}/{checkpoint}")
        self.start_offset = offset
        self._kept_start = 0
        restore(self._views, {})
        self._tell_start()

    def _forget_segment(self, segment: Segment) -> None:
        self._segments.drop(segment)
        if segment in self._durability.unsynced:
            self._durability.unsynced.remove(segment)
        segment.remove()

    def _end_at(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self._durability.note_end(end_offset)
        self.epochs.truncate_from_end(end_offset)
        self.snapshots.forget_above(end_offset)

    def _tell_start(self) -> None:
        for view in self._views:
            view.set_start_offset(self.start_offset)

    # -- raising the start, and removing old segments

    async def raise_start_offset(self, offset: int) -> None:
        """From now on nothing below `offset` can be read, not even after a crash. Retention may remove the whole
        segments below it.
        """
        assert offset <= self.end_offset, "a log can't start above its end"
        if offset > self._kept_start:  # not `start_offset`: that may be raised already and not be durable yet
            await unbroken(self._raise_start_offset(offset))

    async def _raise_start_offset(self, offset: int) -> None:
        async with self.alone():
            if self.gone:
                return
            if self.flushed_offset < offset:  # recovery takes everything below the start offset for durable
                await self._durability.settle(offset)
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
        self._durability.flushed_offset = max(self.flushed_offset, offset)
        self.epochs.truncate_from_start(offset)
        self._tell_start()

    def expired_segments(self, now_ms: int, high_watermark: int) -> int:
        """How many of the oldest segments may go by age, size or start offset (`log.retention`)."""
        ages: list[SegmentAge] = []
        by_client = self.config.message_timestamp_type == "CreateTime"
        appended_ms = now_ms
        for segment in reversed(self._segments.all):
            # A segment written before the clock was set counts as written at the same time as the next newer one.
            if segment.appended_ms >= CLOCK_SET_MS:
                appended_ms = segment.appended_ms
            newest_ms = segment.largest_timestamp
            if newest_ms < (0 if by_client else CLOCK_SET_MS):
                newest_ms = appended_ms
            ages.append(SegmentAge(segment.base_offset, segment.end_offset, segment.size_bytes, newest_ms))
        ages.reverse()
        return expired(ages, self.config, now_ms=now_ms, start_offset=self.start_offset, high_watermark=high_watermark)

    async def remove_oldest(self, how_many: Callable[[], int]) -> int:
        """Remove the oldest segments, as many as `how_many` says; the log starts after them. Returns the freed bytes.

        `how_many` is asked while this holds `alone`, and again right before the segments are removed: appends, the
        cleaner and deletions may have changed the segments in the meantime.
        """
        async with self.alone():
            wanted = min(how_many(), len(self._segments.all))
            if not wanted:
                return 0
            if wanted == len(self._segments.all) and not self._active_is_empty():
                # The name of the new, empty segment says where the log goes on.
                self._roll(self._segments.all[-1].appended_ms)
            # What the views know from these segments must be stored before the segments are removed.
            await self._durability.settle(self.end_offset)
            # The last segment always stays: a record may have been appended to it during the wait.
            leaving = self._segments.all[: min(how_many(), len(self._segments.all) - 1)]
            return await self._remove_leaving(leaving) if leaving else 0

    def _active_is_empty(self) -> bool:
        return self._segments.active is not None and not self._segments.active.size_bytes

    async def _remove_leaving(self, leaving: list[Segment]) -> int:
        self._segments.put(self._segments.all[len(leaving) :])
        if (first := self.segments[0].base_offset) > self.start_offset:
            self._start_at(first)
        for segment in leaving:  # oldest first, so that a crash leaves no hole
            segment.remove()
        self.drop_superfluous_snapshots()
        self._durability.names_changed = True  # if the wait below is cancelled, the next flush syncs the folder
        await self._disk.sync_dir(self.folder)
        return sum(segment.size_bytes for segment in leaving)

    # -- compaction

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment], plan: SwapPlan) -> None:
        """Use the new segments, which already have their final names on disk (`log.compaction`). The next flush makes
        this durable and removes the plan. If that flush finds no room or no descriptor, a later one does it.
        """
        self._segments.replace(old, new)
        for segment in old:
            segment.gone = True
            segment.close()
        self._durability.plan_left = plan
        self._durability.names_changed = True

    async def renew_snapshots(self, now_ms: int) -> None:
        """Take a new snapshot and remove all older ones, because a view has forgotten something. An older snapshot, or
        the batches after it, would bring it back.

        Afterwards there is a durable snapshot of the views as they are, at the beginning of a segment, and none older.
        """
        self.times_forgotten += 1
        async with self.alone():
            if self.gone:
                return
            renewed = -1
            while self._views and renewed not in self.snapshots.stored:  # the log may be cut meanwhile
                self.roll(now_ms)
                self._take_snapshot()
                renewed = self.end_offset
                await self._durability.settle(renewed)
            self.snapshots.forget_below(renewed)
            await self._disk.sync_dir(self.folder)

    # -- to another folder (`log.relocation`)

    def learn_from(self, log: "PartitionLog", *, now_ms: int) -> None:
        """This log is a whole copy of the batches of `log`. Take over its epochs, and a snapshot of its views, at the
        beginning of a new segment: a recovery of the copy goes on from there. All is durable with the next flush.
        """
        if self.end_offset < log.end_offset:  # compaction has left a gap at the end
            self.end_offset = log.end_offset
            self._roll(now_ms)
        else:
            self.roll(now_ms)
        self.epochs = LeaderEpochs(log.epochs.entries())
        self.epochs.changed = True
        epoch = self.epochs.epoch_at(self.end_offset - 1)
        self.snapshots.take(log._views, offset=self.end_offset, leader_epoch=epoch)
        self._durability.gaps_left = self.end_offset

    def stand_in(self, copy: "PartitionLog") -> None:
        """From now on this log uses the files of `copy`, which holds the same batches. The old files stay as they are.
        The caller must hold `alone`.
        """
        assert (copy.start_offset, copy.end_offset) == (self.start_offset, self.end_offset), "the copy is whole"
        self._durability.stand_in(copy._durability)
        for segment in self._segments.all:
            segment.gone = True
            segment.close()
        self._segments.put(copy._segments.all)
        self._disk, self.folder, self.snapshots = copy._disk, copy.folder, copy.snapshots
        self._kept_start = copy._kept_start
        self.epochs.changed = True

    def rename(self, folder: str) -> None:
        """Rename the log's folder. It is durable when the data folder is synced. The caller must hold `alone`."""
        self._disk.rename(self.folder, folder)
        self.folder = folder
        self.snapshots.folder_renamed(folder)
        for segment in self._segments.all:
            segment.folder_renamed(folder)

    # -- ends

    @property
    def unsynced_files(self) -> int:
        """About how many files `close` would sync, one after the other."""
        return self._durability.unsynced_files

    def write_snapshots(self) -> None:
        """Write the snapshots that are pending. A sync of the whole disk then makes them durable."""
        self.snapshots.write()

    def note_disk_synced(self) -> None:
        """The whole disk was synced since the last change here, and since `write_snapshots`. Only the plan of a swap,
        if there is one, still needs a flush.
        """
        self._durability.note_all_synced()
        self.snapshots.note_written()

    async def close(self) -> CleanState | None:
        """Make everything durable and return the log's state for the manifest. The log is not used again.

        None if the log is damaged: the next start must read the files, so that it finds the damage again.
        """
        await self.flush()
        state = CleanState(
            self.folder,
            self.start_offset,
            self.end_offset,
            tuple(segment.facts() for segment in self._segments.all),
            tuple(self.epochs.entries()),
            tuple(self.snapshots.stored),
            {view.name: whole(view.snapshot()) for view in self._views},
        )
        for segment in self._segments.all:
            segment.close()
        return None if self.damage else state

    async def discard(self) -> None:
        """Remove the folder and all in it. The log is empty then. Operations that were begun before are finished first;
        later ones find nothing to do.
        """
        async with self.alone():
            for segment in self._segments.all:
                segment.gone = True
                segment.close()
            self._segments.put([])
            self.snapshots.pending = {}
            self._durability.note_discarded()
            self.start_offset = self.end_offset
            self.gone = True
            self._disk.discard(self.folder)
            await self._disk.sync_dir("")  # a power cut must not bring the folder back when a new topic has the name
