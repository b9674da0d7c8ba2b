"""Moves a log to another data folder: a copy is made there while the log is in use, and then the log uses the copy.

The steps: batches are copied as they are into a folder whose name ends in `.future`. When the copy holds all of them,
and everything that is durable in the log is durable in the copy, the log's folder is renamed to a name that ends in
`.former`. This rename is the decision: from then on the log uses the copy's files. When the decision is durable, the
copy's folder gets the partition's name, and then the former folder is removed.

What always holds:
* While there is no `.former` folder, the folder with the partition's name holds everything. Once there is one, the
  copy's folder holds everything: it is the one with the partition's name, and until a folder has that name it is the
  one that ends in `.future`. So after a kill or a power cut between any two steps it is known which folder counts
  (`service/broker/opening.py` decides it at the next start).
  Only if the disk fails that was to keep the decision, a power cut may undo it: both folders have the partition's name
  then, and it is found out from what is in them which of them counts. If the partition had been about to move on, a
  `.former` and a `.future` are beside the name that came back, and the same is found out.
* What was flushed stays flushed. Between the decision and the moment in which it is durable, nothing new counts as
  flushed.
* Meanwhile the log may be appended to, cut, compacted and restarted. If the copy is no longer a part of the log, it is
  begun anew. A log that moves had better not be compacted: each pass makes the copy begin anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from log.batch import CHECKED_FROM, HEADER_BYTES, BatchHeader, Buffer, CorruptBatch, crc32c, read_header
from log.checkpoints import CLEANED_OFFSET, read_offset, write_offset
from log.cutting import restart_at
from log.disk import Disk, DiskFault, FileSlice
from log.durability import SYNCED_AT_ONCE
from log.epochs import LeaderEpochs
from log.ids import TopicId, format_topic_id, parse_topic_id, partition_of
from log.laying import LaidBatch, is_large
from log.partition_log import PartitionLog
from log.removal import raise_start_offset
from log.snapshots import Snapshot
from log.steps import done_at_once, done_in_steps
from log.unbroken import unbroken

FUTURE: Final = ".future"
FORMER: Final = ".former"
PIECE_BYTES: Final = 1 << 20
"""How much is copied in one turn of the loop. A log that is written to must not grow by more in a turn, or the copy
never catches up.
"""
BATCHES_AT_ONCE: Final = 1000
"""How many batches are copied in one turn, which takes 5 ms."""
SEGMENTS_AT_ONCE: Final = 6
"""How many segments of the copy may begin in one turn, and of how many of the log is read, each of which takes half a
millisecond: a topic's settings may make each batch a segment of its own.
"""
CLOSED_AT_ONCE: Final = 200
UNSYNCED_BYTES: Final = 32 << 20
"""So much of the copy is durable only later. The last of it becomes so while nobody else may flush or cut the log."""
LAST_BYTES: Final = 32 << 20
"""How much may be copied while nobody else may flush or cut the log."""
AGAIN_S: Final = 0.2
"""The pause before a step is tried again that failed for now."""
STOPPING_S: Final = 5.0
"""How long a broker that stops waits for the steps after the decision. The next start does those that are left."""


def stem_of(topic_id: TopicId, index: int) -> str:
    """The beginning of the names of a partition's `.future` and `.former` folders. It is short enough for every file
    system, and it differs for a topic that was deleted and made again, because it contains the topic's id.
    """
    return f"{format_topic_id(topic_id)}-{index}"


def of_stem(stem: str) -> tuple[TopicId, int] | None:
    """The inverse of `stem_of`; None for any other text."""
    place = partition_of(stem)
    if place is None:
        return None
    try:
        topic_id = parse_topic_id(place.topic)
    except ValueError:
        return None
    return (topic_id, place.partition) if format_topic_id(topic_id) == place.topic else None


def _sound(batch: Buffer, header: BatchHeader) -> Buffer:
    if len(batch) < header.size_bytes or crc32c(memoryview(batch)[CHECKED_FROM:]) != header.crc:
        raise CorruptBatch(f"the batch at offset {header.base_offset} has rotted and can't be copied")
    return batch


def _read_sound(found: FileSlice, header: BatchHeader) -> Buffer:
    return _sound(found.file.pread(header.size_bytes, found.position), header)


class Relocation:
    def __init__(
        self,
        log: PartitionLog,
        disk: Disk,
        target: Disk,
        topic_id: TopicId,
        index: int,
        *,
        blocking: Callable[..., Coroutine[Any, Any, Any]],
    ) -> None:
        """Move the log from `disk` to `target`. An unfinished copy of an earlier attempt is removed. `blocking` runs a
        function in a thread.
        """
        self._log = log
        self._blocking = blocking
        self._disk = disk
        self._target = target
        self._stem = stem_of(topic_id, index)
        self._topic_id = topic_id
        self._piece_bytes = PIECE_BYTES
        self._unsynced_bytes = 0
        self.copy = self._without_folder()
        self._begin()

    def _without_folder(self) -> PartitionLog:
        """A copy that has no folder yet. What there was of an earlier one is gone, and that takes a moment only."""
        folder = self._stem + FUTURE
        self._target.discard(folder)
        return PartitionLog.open(
            self._target, folder, self._log.config, (), known=None, now_ms=0, topic_id=self._topic_id
        )

    @property
    def behind(self) -> int:
        """How many offsets are still to be copied."""
        return max(self._log.end_offset - max(self.copy.end_offset, self._log.start_offset), 0)

    async def step(self, limit_offset: int, *, now_ms: int) -> int:
        """Copy some more batches that end below the limit. Returns how many bytes were read; 0: there was nothing."""
        log = self._log
        if self._has_parted():
            await self._begin_anew()
        copy = self.copy
        if copy.config is not log.config:
            copy.set_config(log.config)
        copied_bytes, batches, segments, whole = 0, 0, len(copy.segments), True
        for _ in range(SEGMENTS_AT_ONCE):
            offset = max(copy.end_offset, log.start_offset)
            left_bytes = self._piece_bytes - copied_bytes
            found = log.read(offset, max_bytes=left_bytes, limit_offset=limit_offset, at_least_one=not copied_bytes)
            if found is None:
                break
            found = log.checked(offset, found)
            header = read_header(found.file.pread(HEADER_BYTES, found.position))
            if is_large(header.size_bytes):
                copied_bytes = copied_bytes or await self._copy_large(header, found, now_ms)
                break
            piece = memoryview(found.file.pread(found.size, found.position))
            at = 0
            while at < len(piece) and batches < BATCHES_AT_ONCE and len(copy.segments) - segments < SEGMENTS_AT_ONCE:
                header = read_header(piece, at)
                if is_large(header.size_bytes):
                    break
                end = at + header.size_bytes
                copy.append_after_gap(_sound(piece[at:end], header), header, now_ms=now_ms)
                at, batches = end, batches + 1
            copied_bytes += at
            whole = at == len(piece)
            if not whole or batches == BATCHES_AT_ONCE or len(copy.segments) - segments == SEGMENTS_AT_ONCE:
                break
        # What is not copied now is read again: no more of that than is copied in a step.
        self._piece_bytes = min(2 * self._piece_bytes, PIECE_BYTES) if whole else copied_bytes
        self._unsynced_bytes += copied_bytes
        return copied_bytes

    async def flush_some(self) -> None:
        """Make the copy durable, if there is enough to do: a slow disk takes as long for one segment as for many, and a
        log that is written to may begin segments faster than each of them is flushed alone.
        """
        if len(self.copy.durability.unsynced) >= SYNCED_AT_ONCE or self._unsynced_bytes >= UNSYNCED_BYTES:
            self._unsynced_bytes = 0
            await self.copy.flush()

    async def _copy_large(self, header: BatchHeader, found: FileSlice, now_ms: int) -> int:
        """Copy the batch at the beginning of the slice, in a thread: it is laid beside the copy. If the log may have
        lost it meanwhile, it does not enter the copy.
        """
        log, cuts = self._log, self._log.durability.cuts

        def has_it() -> bool:
            return not log.gone and log.durability.cuts == cuts and not self._is_outdated

        try:
            batch = await found.in_thread(self._blocking, _read_sound, header)
        except CorruptBatch:
            if has_it():
                raise
            return header.size_bytes
        laid = LaidBatch(self.copy)
        try:
            await unbroken(self._blocking(laid.fill, batch))
            if has_it():
                self.copy.append_after_gap(batch, header, now_ms=now_ms, laid=laid)
        finally:
            laid.discard()
        return header.size_bytes

    async def _begin_anew(self) -> None:
        """Begin again with another copy. The folder goes as a whole: to remove one segment after the other takes long.
        A copy that has one only is used again.
        """
        former = self.copy
        if len(former.segments) > 1:
            for count, segment in enumerate(former.segments, 1):
                segment.gone = True
                segment.close()
                if count % CLOSED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self.copy = self._without_folder()
        self._begin()

    def _begin(self) -> None:
        """Begin with the batch that holds the log's start offset."""
        log = self._log
        self._times_compacted = log.times_compacted
        first = log.read(log.start_offset, max_bytes=1, limit_offset=log.end_offset, at_least_one=True)
        base_offset = log.end_offset
        if first is not None:
            base_offset = read_header(first.file.pread(HEADER_BYTES, first.position)).base_offset
        restart_at(self.copy, min(base_offset, log.start_offset))
        done_at_once(self.copy.durability.clearing())  # it had one segment at most

    def _has_parted(self) -> bool:
        """Whether the copy has to begin anew. Two logs with the same epoch at an offset are the same below it, so the
        last offset of the copy decides.
        """
        log, copy = self._log, self.copy
        if copy.start_offset == copy.end_offset:  # nothing is copied yet
            return True
        if self._is_outdated:
            return True
        if not log.start_offset < copy.end_offset <= log.end_offset:
            return True
        return log.epochs.epoch_at(copy.end_offset - 1) != copy.epochs.epoch_at(copy.end_offset - 1)

    @property
    def _is_outdated(self) -> bool:
        """The copy may hold what compaction has removed from the log: aborted batches that the views may have forgotten
        to be aborted, or a value whose deletion was removed, too, before it was copied.
        """
        return self._times_compacted != self._log.times_compacted

    async def take_over(
        self,
        name: str,
        *,
        now_ms: int,
        breathe: Callable[[], Awaitable[None]],
        may: Callable[[], bool],
        decided: Callable[[], None],
        origin_failed: Callable[[DiskFault], None],
        target_failed: Callable[[DiskFault], None],
    ) -> bool:
        """Make the copy the log, in the folder `name` of the target. False: it is not possible now, and nothing has
        changed.

        `may` is asked right before the decision, and `decided` is called right after it, without an await in between.
        `origin_failed` and `target_failed` are told of faults after the decision: the log has moved all the same. What
        failed with an error that passes is tried again. `origin_failed` is also told if the decision finds no room.
        """
        log, copy = self._log, self.copy
        async with log.alone():
            cleaned_offset, from_offset = self._cleaned_offset(), copy.segments[0].base_offset
            oldest = await self._oldest_snapshot(max(from_offset, cleaned_offset), breathe)
            first = await log.snapshot_at(from_offset, breathe)
            left_bytes = LAST_BYTES
            while copied := await self.step(log.end_offset, now_ms=now_ms):
                left_bytes -= copied
                if left_bytes < 0 or not may():
                    return False
                if self.copy.end_offset == log.end_offset:
                    break  # in the next turn more may have come, and so in each
                await breathe()
            if self.copy is not copy or copy.segments[0].base_offset != from_offset:  # it was begun anew
                return False
            # The views are saved as they are at this moment. Batches that come meanwhile are copied after the snapshot.
            if first is not None:
                copy.snapshots.pending[from_offset] = first
            self._teach_copy(oldest, now_ms)
            await raise_start_offset(copy, log.start_offset)
            await copy.forget_below(log.forgotten_below)
            await copy.flush()
            if cleaned_offset:  # without it the next move would take along a snapshot from before it
                await write_offset(copy.disk, copy.folder, CLEANED_OFFSET, cleaned_offset)
            while copy.end_offset != log.end_offset:
                if self._has_parted() or left_bytes < 0 or not may():
                    return False
                left_bytes -= await self.step(log.end_offset, now_ms=now_ms)
                if copy.end_offset != log.end_offset:
                    await breathe()
            if log.gone or copy.start_offset != log.start_offset or self._is_outdated or not may():
                return False
            if not self._disk.exists(log.folder):  # nothing was ever written
                try:
                    self._disk.mkdir(log.folder)
                except DiskFault as fault:
                    origin_failed(fault)
                    return False
            self._disk.rename(log.folder, self._stem + FORMER)
            self._use_copy()
            decided()
            await unbroken(self._settle(name, origin_failed, target_failed), patience_s=STOPPING_S)
            return True

    def _cleaned_offset(self) -> int:
        """Where the last pass of compaction ended. Only its plan may say so yet."""
        log = self._log
        plan = log.durability.plan_left
        return plan.cleaned_offset if plan is not None else read_offset(log.disk, log.folder, CLEANED_OFFSET) or 0

    async def _oldest_snapshot(self, from_offset: int, breathe: Callable[[], Awaitable[None]]) -> Snapshot | None:
        """The oldest one of the log that the copy can have, and that a cut may begin with: none from before the end of
        the last pass of compaction. To read one of a million producers takes long.
        """
        log = self._log
        reading = log.snapshots.oldest(log.views, epochs=log.epochs, from_offset=from_offset)
        return await done_in_steps(reading, breathe)

    def _teach_copy(self, oldest: Snapshot | None, now_ms: int) -> None:
        """The copy holds all batches of the log. Give it the log's epochs, and a snapshot of the log's views, at the
        beginning of a new segment: a recovery of the copy goes on from there. A cut may go back behind that, so the
        copy gets the log's oldest snapshot, too: the batches that are left do not tell all that the views knew. All is
        durable with the next flush.
        """
        log, copy = self._log, self.copy
        if oldest is not None and oldest.offset < copy.end_offset:
            copy.snapshots.pending[oldest.offset] = oldest
        if copy.end_offset < log.end_offset:  # compaction has left a gap at the end
            copy.end_offset = log.end_offset
            copy.start_segment(now_ms)
        else:
            copy.roll(now_ms)
        copy.epochs = LeaderEpochs(log.epochs.entries())
        copy.epochs.changed = True
        epoch = copy.epochs.epoch_at(copy.end_offset - 1)
        copy.snapshots.take(log.views, offset=copy.end_offset, leader_epoch=epoch)
        copy.durability.gaps_left = copy.end_offset  # this note tells a start, too, that the copy was made whole

    def _use_copy(self) -> None:
        """From now on the log uses the copy's files, which hold the same batches. The old files stay as they are."""
        log, copy = self._log, self.copy
        assert (copy.start_offset, copy.end_offset) == (log.start_offset, log.end_offset), "the copy is whole"
        log.durability.stand_in(copy.durability)
        for segment in log.segments:
            segment.gone = True
            segment.close()
        log.segments.put(copy.segments[:])
        log.disk, log.folder, log.snapshots = copy.disk, copy.folder, copy.snapshots
        log.epochs.changed = True

    def _rename(self, folder: str) -> None:
        """Rename the log's folder. It is durable when the data folder is synced."""
        log = self._log
        log.disk.rename(log.folder, folder)
        log.folder = folder
        log.snapshots.folder_renamed(folder)
        for segment in log.segments:
            segment.folder_renamed(folder)

    async def _settle(
        self, name: str, origin_failed: Callable[[DiskFault], None], target_failed: Callable[[DiskFault], None]
    ) -> None:
        try:
            await _until_done(self._decision_durable, origin_failed)
        except DiskFault as fault:
            origin_failed(fault)
        # If the old disk failed, the decision may be lost, and the next start finds two folders with the partition's
        # name. It goes on with the one that holds all that is in the other one (`log/twins.py`).
        await _until_done(partial(self._named, name), target_failed)
        try:
            await _until_done(self._former_removed, origin_failed)
        except DiskFault as fault:
            origin_failed(fault)

    async def _decision_durable(self) -> None:
        await self._disk.sync_dir("")

    async def _named(self, name: str) -> None:
        if self._log.folder != name:
            self._rename(name)
        await self._target.sync_dir("")

    async def _former_removed(self) -> None:
        self._disk.discard(self._stem + FORMER)

    async def give_up(self) -> None:
        """The log stays where it is."""
        await self.copy.discard()


async def _until_done(step: Callable[[], Awaitable[None]], failed: Callable[[DiskFault], None]) -> None:
    """Take a step that follows from the decision. There is no way back from it, so the step is tried again after an
    error that passes, such as that no descriptor is left.
    """
    while True:
        try:
            return await step()
        except DiskFault as fault:
            if not fault.passing:
                raise
            failed(fault)
        await asyncio.sleep(AGAIN_S)
