# Hot path: `append` and `read` (log/README.md has the numbers). Plain twin: tests/properties/test_log_machine.py.
"""The log of one partition: segments in a row (`segments.py`), written at the end, read anywhere, fed to its views.

Here it is opened, written, read and closed. What takes something away from it has a module of its own: `cutting.py` at
its end, `removal.py` at its start, `compaction.py` in between. `relocation.py` moves it to another disk.

What always holds:
* `start_offset <= flushed_offset <= end_offset`. A start offset that is raised above the flushed offset raises that,
  too. There is one exception: of a log that was restarted (`cutting.restart_at`) nothing counts as flushed before the
  next flush.
* An offset that was given to bytes is never given to other bytes, unless `cutting` took it back.
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
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from log.batch import HEADER_BYTES, BatchHeader, Buffer, CorruptBatch, crc32c, read_header
from log.checkpoints import DAMAGED_OFFSET, FORGOTTEN_OFFSET, read_offset, write_offset
from log.config import LogConfig
from log.disk import Disk, DiskFault, FileSlice
from log.durability import CutUnfinished, LogDurability
from log.epochs import LeaderEpochs
from log.identity import sync_topic_id, write_topic_id
from log.ids import TopicId
from log.laying import LaidBatch
from log.recovery import Damage, Recovered, RecoveryReport, recover
from log.segment import SEGMENT_BYTES_MAX, Segment, SegmentFacts
from log.segments import Segments
from log.snapshots import Snapshot, Snapshots, restore, take_snapshot
from log.steps import done_in_steps
from log.views import View, whole

SNAPSHOT_WORTH_BYTES: Final = 1 << 20
"""A recovery that read fewer bytes takes no snapshot: reading them again costs less than a file for each partition."""
BATCHES_A_STEP: Final = 500
"""How many batches are applied to views in one step."""
BATCH_WORTH_BYTES: Final = 16 << 10
"""So many bytes take about as long to read as a batch takes to apply."""


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
    forgotten_below: int = 0
    topic_id: TopicId | None = None


class OffsetOutOfRange(LookupError):
    """The offset is below the start of the log."""


class PartitionLog:
    """See the module."""

    __slots__ = (
        "_has_found_damage",
        "_roll_ms",
        "_topic_id",
        "batches_laid",
        "config",
        "disk",
        "durability",
        "end_offset",
        "epochs",
        "folder",
        "forgotten_below",
        "gone",
        "recovery",
        "segments",
        "snapshots",
        "start_offset",
        "times_compacted",
        "times_forgotten",
        "views",
    )

    def __init__(self, disk: Disk, folder: str, config: LogConfig, views: Sequence[View]) -> None:
        """An empty log without a folder. A log that may exist on disk is opened by `open`."""
        self.disk = disk
        self.folder = folder
        self.views = tuple(views)
        self.segments = Segments()
        self.durability = LogDurability(self)
        self.snapshots = Snapshots(disk, folder)
        self.epochs = LeaderEpochs()
        self.start_offset = self.end_offset = 0
        self.recovery: RecoveryReport | None = None
        self.gone = False  # discarded
        self.times_compacted = 0
        """How often compaction removed something, a view forgot something for it, or the log was restarted."""
        self.forgotten_below = 0
        """Tombstones and markers below this offset may have left the log, here or where it was copied from. So a
        follower that ends below it can't copy the rest from here: it may hold what one of them has deleted. While this
        log is filled from another, it may end below that offset.
        """
        self.times_forgotten = 0
        """How often some have left the log in this process."""
        self.batches_laid = 0
        """How many batches were written to files beside the log in this process (`log.laying`)."""
        self._has_found_damage = False
        self._topic_id: TopicId | None = None
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
            damaged_below = read_offset(disk, folder, DAMAGED_OFFSET) or 0
            found = recover(
                disk,
                folder,
                views,
                recovery_point=max(recovery_point, damaged_below),
                interval_bytes=config.index_interval_bytes,
                now_ms=now_ms,
                on_read=on_read,
            )
            if damaged_below and not found.report.damage:
                start_offset, reason = found.start_offset, "damage was found before"
                found.report.damage.append(Damage(start_offset, 0, 0, start_offset, damaged_below, reason))
            log._take_over(found)
        else:
            restore(views, {})
        return log

    def _adopt(self, known: CleanState) -> None:
        last = len(known.segments) - 1
        segments = [
            Segment(self.disk, self.folder, facts, sealed=index != last) for index, facts in enumerate(known.segments)
        ]
        self.segments.put(segments)
        self.snapshots.stored = list(known.snapshots)
        self.durability.folder_is_new = False
        self.epochs = LeaderEpochs(known.epochs)
        self.epochs.changed = True  # the manifest knew them; their own file may be older
        self.start_offset = known.start_offset
        self.end_offset = self.durability.flushed_offset = known.end_offset
        self.forgotten_below = min(known.forgotten_below, self.end_offset)
        restore(self.views, known.views)

    def _take_over(self, found: Recovered) -> None:
        self.segments.put(found.segments)
        durability = self.durability
        durability.unsynced = [segment for segment in found.segments[found.first_unsynced :] if segment.sealed]
        self.snapshots.stored = found.snapshots
        self.snapshots.pending = found.new_snapshots
        durability.folder_is_new = True  # the folder may be new: made right before a crash, its name never synced
        durability.names_changed = durability.truncated = True
        durability.plan_left = found.plan_left
        self.epochs = found.epochs
        self.start_offset, self.end_offset = found.start_offset, found.end_offset
        self.forgotten_below = min(read_offset(self.disk, self.folder, FORGOTTEN_OFFSET) or 0, self.end_offset)
        self.durability.flushed_offset = max(min(found.report.trusted_offset, found.end_offset), found.start_offset)
        self.recovery = found.report
        if found.report.scanned_bytes >= SNAPSHOT_WORTH_BYTES:
            self.take_snapshot()

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
        return self.durability.flushed_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def ends_in_gap(self) -> bool:
        """Whether compaction has removed what stood at the end. This reads only if the active segment is empty."""
        active = self.segments.active
        if self.start_offset == self.end_offset or (active is not None and active.size_bytes):
            return False
        last = next((segment for segment in reversed(self.segments) if segment.size_bytes), None)
        return last is None or last.end_before(last.size_bytes) < self.end_offset

    @property
    def damage(self) -> Sequence[Damage]:
        """Durable bytes that recovery found damaged, or a read before. A log with any damage must not lead."""
        return self.recovery.damage if self.recovery is not None else ()

    def opens_files_for(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether to append this batch, which is not stamped yet, begins a segment, or opens one. That takes about ten
        times as long as to write behind other batches. It is told quickly: no file is touched, and what is hardly ever
        so, as that the offsets are too many for one segment, is not looked at.
        """
        active, config = self.segments.active, self.config
        if active is None or not active.size_bytes or not active.is_open:
            return True
        if config.message_timestamp_type == "LogAppendTime":
            header = header._replace(base_timestamp=now_ms, max_timestamp=now_ms)
        elif config.may_hide_newest(header.base_timestamp, header.max_timestamp, now_ms):
            return True  # its records tell the time
        return not active.has_room_for(header, config, now_ms, self._roll_ms)

    # -- writing

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int, laid: LaidBatch | None = None) -> None:
        """Append one stamped batch at exactly `end_offset`, in a new segment if one is due. After a `DiskFault` no
        batch was added. `laid`: all of the batch but its header is in this file beside the log.
        """
        assert header.base_offset == self.end_offset, "batches follow each other without a gap"
        active = self.segments.active
        config = self.config
        if laid is not None:
            active = self._append_laid(laid, batch, header, now_ms)
        else:
            if active is None or not active.has_room_for(header, config, now_ms, self._roll_ms):
                active = self.start_segment(now_ms)
            active.append(batch, header, now_ms, config.index_interval_bytes)
        self.end_offset = active.end_offset
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        for view in self.views:
            view.apply(header, batch)

    def _append_laid(self, laid: LaidBatch, batch: Buffer, header: BatchHeader, now_ms: int) -> Segment:
        """The file with the batch becomes that of an empty segment, so nothing is written again. After a crash the log
        has the empty segment, or the one with the batch; and the file under its own name is no part of a log.
        """
        assert laid.fits(self), "the file is beside this log"
        laid.complete(batch)
        active = self.segments.active
        if active is None or active.size_bytes:
            active = self.start_segment(now_ms)
        active.take_file(laid.path, header, now_ms, self.config.index_interval_bytes)
        laid.was_taken()
        self.durability.names_changed = True
        return active

    def append_after_gap(
        self, batch: Buffer, header: BatchHeader, *, now_ms: int, laid: LaidBatch | None = None
    ) -> None:
        """`append` for a batch that was copied from a compacted log: there may be a gap before its offset. If it is the
        first batch of its leader epoch, that may have begun anywhere in the gap (`log.epochs`).
        """
        ended, latest = self.end_offset, self.epochs.latest
        assert header.base_offset >= ended, "no offset is given twice"
        if header.base_offset == ended:
            self.append(batch, header, now_ms=now_ms, laid=laid)
            return
        active = self.segments.active
        is_out_of_reach = active is not None and header.last_offset >= active.reach  # of an empty segment, too
        is_full = active is not None and (
            bool(active.size_bytes)
            if laid is not None
            else not active.has_room_for(header, self.config, now_ms, self._roll_ms)
        )
        if active is None or is_out_of_reach or is_full:
            if header.last_offset - ended <= SEGMENT_BYTES_MAX:
                self.start_segment(now_ms)  # the new segment begins where the last one ends, which is before the gap
            else:
                self._go_on_at(header.base_offset, now_ms)
        self.end_offset = header.base_offset
        try:
            self.append(batch, header, now_ms=now_ms, laid=laid)
        except DiskFault:
            self.end_offset = max(ended, self.segments[-1].base_offset)
            raise
        if header.leader_epoch > latest:
            self.epochs.assign(header.leader_epoch, ended)
        self.durability.gaps_left = self.end_offset

    def _go_on_at(self, offset: int, now_ms: int) -> None:
        """Begin a segment behind a gap that is too wide for one: positions in it are relative to its base offset."""
        ended, self.end_offset = self.end_offset, offset
        try:
            self.start_segment(now_ms)
        except DiskFault:
            self.end_offset = ended
            raise
        self.durability.gaps_left = offset

    def start_segment(self, now_ms: int) -> Segment:
        """Seal the active segment and start the next one, whose name the next flush makes durable."""
        if self.durability.leaving:
            raise CutUnfinished(self.folder)
        last = self.segments[-1] if self.segments else None
        if last is None:
            self.make_folder()
        if last is not None and last.base_offset == self.end_offset:
            return self._reopen(last)
        if last is not None and not last.sealed:
            last.seal()
            self.durability.unsynced.append(last)
            self.segments.active = None  # the sealed segment is not active, even if the next one can't be made now
        segment = Segment.create(self.disk, self.folder, self.end_offset, now_ms)
        self.durability.names_changed = True
        self.segments.add(segment)
        if last is not None:
            self.take_snapshot()
        return segment

    def roll(self, now_ms: int) -> None:
        """Seal the active segment, so that retention may remove it and compaction may read it. An empty one stays."""
        if self.segments.active is not None and self.segments.active.size_bytes:
            self.start_segment(now_ms)

    def _reopen(self, empty: Segment) -> Segment:
        """Write again to an empty sealed segment, which a recovery can leave at the end of the log. The new segment
        would have the same name.
        """
        if empty in self.durability.unsynced:
            self.durability.unsynced.remove(empty)
        empty.cut(0, self.end_offset, self.config.index_interval_bytes)
        self.durability.truncated = True
        self.segments.active = empty
        return empty

    async def forget_below(self, offset: int) -> None:
        """Tombstones or markers below this offset are about to leave the log, or the log is about to be continued from
        one that they may have left. The caller sees to it that the log keeps its folder meanwhile.
        """
        if offset > self.forgotten_below and not self.gone:
            self.make_folder()
            if self.durability.folder_is_new:
                await sync_topic_id(self.disk, self.folder)  # before any checkpoint: `was_never_flushed`
            await write_offset(self.disk, self.folder, FORGOTTEN_OFFSET, offset)
            self.forgotten_below = max(self.forgotten_below, offset)

    async def note_damage(self) -> None:
        """A read or a start has found damage. The next start tells it, and does not take it for bytes that a crash has
        torn.
        """
        self._has_found_damage = True
        flushed_offset = await self.flush()
        async with self.alone():
            if not self.gone:
                await write_offset(self.disk, self.folder, DAMAGED_OFFSET, flushed_offset)

    def make_folder(self) -> None:
        """Make the log's folder, if there is none. The next flush makes its name durable."""
        if not self.disk.exists(self.folder):
            self.disk.mkdir(self.folder)
            self.durability.folder_is_new = self.durability.names_changed = True
            if self._topic_id is not None:
                try:
                    write_topic_id(self.disk, self.folder, self._topic_id)
                except DiskFault:  # perhaps there was no room: a folder must not stay without its topic's id
                    self.disk.discard(self.folder)
                    raise

    def take_snapshot(self) -> None:
        """Take a snapshot of the views as they are. The next flush stores it."""
        epoch = self.epochs.epoch_at(self.end_offset - 1)
        self.snapshots.take(self.views, offset=self.end_offset, leader_epoch=epoch)

    # -- durability

    async def flush(self) -> int:
        """Make durable what was appended before the call; returns the flushed offset.

        A caller that comes while another flush runs waits for that one, and for a second one only if it has to.
        """
        await self.durability.flush()
        return self.flushed_offset

    def alone(self) -> asyncio.Lock:
        """The lock for operations that change files and wait for the disk: they exclude each other."""
        return self.durability.alone()

    def tell_start(self) -> None:
        """Tell the views where the log starts."""
        for view in self.views:
            view.set_start_offset(self.start_offset)

    def views_at(self, offset: int, replayed_to: int) -> Generator[None, None, list[View]]:
        """Views that know what those of the log knew at that offset. The batches before it end at `replayed_to`: a gap
        may follow. To read a snapshot of a million producers takes a second, so this is done step by step; the log and
        its own views don't change.
        """
        views = [view.anew() for view in self.views]
        replay_from = yield from self.snapshots.restoring(views, epochs=self.epochs, end_offset=offset)
        done = 0
        for header, batch in self.scan(replay_from, replayed_to):
            if header.base_offset >= replay_from:
                for view in views:
                    view.apply(header, batch)
            done += 1 + header.size_bytes // BATCH_WORTH_BYTES
            if done >= BATCHES_A_STEP:
                done = 0
                yield
        return views

    async def snapshot_at(self, offset: int, breathe: Callable[[], Awaitable[None]]) -> Snapshot | None:
        """What the views knew at that offset, for a log that is to begin there. None if there is nothing to know, or if
        what is there can't be read. The caller holds `alone`.
        """
        if not self.views or not self.segments or offset <= 0:
            return None
        try:
            views = await done_in_steps(self.views_at(offset, offset), breathe)
        except CorruptBatch:
            return None
        except DiskFault as fault:
            if fault.passing or self.disk.fault is not None:
                raise
            return None
        return take_snapshot(views, offset=offset, leader_epoch=self.epochs.epoch_at(offset - 1))

    def drop_superfluous_snapshots(self) -> None:
        first = self.segments.first_base
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
        return self.segments.read(offset, max_bytes=max_bytes, limit_offset=limit_offset, at_least_one=at_least_one)

    def checked(self, offset: int, stored: FileSlice) -> FileSlice:
        """For a copier: what `read` has returned just now for `offset`, or the first part of it. `CorruptBatch` if a
        base offset in it has rotted, or one between `offset` and it. No checksum covers these, and all that a copier
        would see is a gap, as compaction leaves them: it would go on without the batches that stand there.
        """
        return self.segments.checked(offset, stored)

    def behind_gap(self, offset: int) -> int:
        """Where the first batch behind `offset` begins if compaction has left a gap there; otherwise `offset`."""
        if not self.start_offset <= offset < self.end_offset:
            return offset
        found = self.segments.read(offset, max_bytes=1, limit_offset=self.end_offset, at_least_one=True)
        if found is None:  # the log ends with the gap
            return self.end_offset
        return max(offset, read_header(found.file.pread(HEADER_BYTES, found.position)).base_offset)

    def reach_of(self, stored: FileSlice) -> int:
        """An offset at or not far above the end of this slice, which `read` has returned just now."""
        for segment in reversed(self.segments):
            if segment.is_read_through(stored.file):
                return segment.offset_after(stored.position + stored.size)
        return self.end_offset

    def headers(self, from_offset: int, limit_offset: int) -> Iterator[BatchHeader]:
        """What `scan` finds, without the bytes of the batches."""
        return self.segments.headers(from_offset, limit_offset)

    def scan(self, from_offset: int, limit_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch below the limit, from the one that holds `from_offset` on. The bytes of a batch are valid until
        the next one.

        `CorruptBatch` if stored bytes are no batch. During the scan the log may be appended to, but not cut.
        """
        return self.segments.scan(from_offset, self.end_offset if limit_offset is None else limit_offset)

    # -- its end

    async def close(self) -> CleanState | None:
        """Make everything durable and return the log's state for the manifest. The log is not used again.

        None if the log is damaged: the next start must read the files, so that it finds the damage again.
        """
        await self.flush()
        assert self.flushed_offset == self.end_offset, "the next start takes everything below the end for durable"
        state = CleanState(
            self.folder,
            self.start_offset,
            self.end_offset,
            tuple(segment.facts() for segment in self.segments),
            tuple(self.epochs.entries()),
            tuple(self.snapshots.stored),
            {view.name: whole(view.snapshot()) for view in self.views},
            self.forgotten_below,
            self._topic_id,
        )
        for segment in self.segments:
            segment.close()
        return None if self.damage or self._has_found_damage else state

    async def discard(self) -> None:
        """Remove the folder and all in it. The log is empty then. Operations that were begun before are finished first;
        later ones find nothing to do.
        """
        async with self.alone():
            for segment in self.segments:
                segment.gone = True
                segment.close()
            self.segments.put([])
            self.snapshots.pending = {}
            self.durability.note_discarded()
            self.start_offset = self.end_offset
            self.gone = True
            self.disk.discard(self.folder)
            await self.disk.sync_dir("")  # a power cut must not bring the folder back when a new topic has the name
