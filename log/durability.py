"""How much of a log is durable, and what the next flush has to do about the rest.

What always holds: `flushed_offset` moves only after every byte below it, the names of its files and of its folder are
durable. A flush first syncs the folder, then the sealed segments with their indexes, then the active one. Then it
stores epochs and snapshots, so that the next recovery reads less. Only then it moves `flushed_offset`. Operations that
change files and wait for the disk exclude each other (`alone`).
"""

import asyncio
import errno
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Final

from log.checkpoints import CLEANED_OFFSET, GAPS_OFFSET, write_offset
from log.disk import DiskFault
from log.epochs import CHECKPOINT
from log.identity import sync_topic_id
from log.segment import SUFFIXES, Segment, sync_together
from log.swap import SwapPlan, forget_plan

if TYPE_CHECKING:
    from log.partition_log import PartitionLog

SYNCED_AT_ONCE: Final = 16
"""How many sealed segments are synced at the same time. Each has three files."""
REMOVED_A_STEP: Final = 16
"""How many segments of a log that was cut are removed in one turn of the loop, which takes a few milliseconds."""


class CutUnfinished(DiskFault):
    """Files of what was cut off are still in the folder, so nothing can be appended. Nothing was changed, and the same
    succeeds when they are gone.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(errno.EAGAIN, "what was cut off must be removed first", folder)

    @property
    def passing(self) -> bool:
        return True


class LogDurability:
    """The durability of one log: what is flushed, and what the log has changed since."""

    __slots__ = (
        "_lock",
        "_log",
        "cuts",
        "flushed_offset",
        "folder_is_new",
        "gaps_left",
        "kept_start",
        "leaving",
        "lost",
        "names_changed",
        "plan_left",
        "truncated",
        "unsynced",
    )

    def __init__(self, log: "PartitionLog") -> None:
        self._log = log
        self._lock: asyncio.Lock | None = None
        self.cuts = 0
        """How often something was taken back from the log, or other files took its place: offsets, segments and what
        the views know may stand for something else since.
        """
        self.flushed_offset = 0
        self.unsynced: list[Segment] = []
        self.folder_is_new = True
        self.names_changed = False
        self.truncated = False
        self.plan_left: SwapPlan | None = None
        self.leaving: list[Callable[[], None]] = []
        """What is still to be done to the files of a log that was cut, the last first. While there is some, nothing is
        appended: a crash brings back what is left of these files, and new batches could seem to go on in them.
        """
        self.gaps_left = 0
        """The end of the latest gap between offsets that is not in the gaps checkpoint yet; 0: there is none."""
        self.lost: DiskFault | None = None
        """Why nothing of the log becomes durable any more: a file was missing, or the disk failed. What was begun then
        is half done, so nothing is added to it.
        """
        self.kept_start = 0
        """The start offset that this process has made durable in its checkpoint; 0: none."""

    def alone(self) -> asyncio.Lock:
        """The lock that one operation holds while it changes files and waits for the disk. It is made when first
        needed: most logs of a large broker never need one.
        """
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    def note_cut(self) -> None:
        """Bytes and names are removed from the log. Offsets that a running flush has synced may be given to other
        bytes, so that flush must not move `flushed_offset`.
        """
        self.cuts += 1
        self.names_changed = self.truncated = True

    def leave(self, work: Sequence[Callable[[], None]]) -> None:
        """This is to be done to the files of what was cut off, the last first (`clearing`)."""
        self.leaving += work
        if self.leaving:
            self._log.segments.active = None

    def clearing(self) -> Generator[None, None, None]:
        """Do, step by step, what is still to be done after a cut. The caller holds `alone`. If it gives up, the next
        flush goes on.
        """
        if not self.leaving:
            return
        while self.leaving:
            for remove in reversed(self.leaving[-REMOVED_A_STEP:]):
                remove()
                self.leaving.pop()
            if self.leaving:
                yield
        self.names_changed = True
        self._log.segments.go_on()

    async def clear(self) -> None:
        for _ in self.clearing():
            await asyncio.sleep(0)

    def note_end(self, end_offset: int) -> None:
        """After a cut the log ends at `end_offset`."""
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.gaps_left = min(self.gaps_left, end_offset)

    def note_restart(self) -> None:
        """Everything was removed from the log. Until the next flush a power cut may bring back any part of it, or leave
        nothing at all.
        """
        self.flushed_offset = 0

    def write_hints(self) -> None:
        """Write epochs and snapshots without syncing them; a sync of the whole disk follows. If a crash tears them, the
        next recovery finds that out.
        """
        log = self._log
        if log.epochs.changed and log.disk.exists(log.folder):  # without a batch there may be no folder
            file = log.disk.open(f"{log.folder}/{CHECKPOINT}", create=True)
            file.truncate(0)
            file.append((log.epochs.to_text(),))
            file.close()
        log.snapshots.write()

    def note_disk_synced(self) -> None:
        """The whole disk was synced since the last change of the log, and since `write_hints`. Only the plan of a swap,
        if there is one, still needs a flush.
        """
        self._log.epochs.changed = False
        self._log.snapshots.note_written()
        for segment in self.unsynced:
            segment.note_synced()
        self.unsynced = []
        self.folder_is_new = self.names_changed = self.truncated = False
        self.flushed_offset = self._log.end_offset

    def stand_in(self, copy: "LogDurability") -> None:
        """The files of `copy`'s log are this log's now. What is durable in them alone counts with the next flush: until
        the caller lets go of `alone`, a power cut may bring the former files back.
        """
        assert copy.flushed_offset >= self.flushed_offset, "what was durable stays so"
        self.cuts += 1
        for name in ("unsynced", "folder_is_new", "names_changed", "truncated", "gaps_left"):
            setattr(self, name, getattr(copy, name))
        self.kept_start = copy.kept_start
        self.plan_left, self.leaving = None, []

    def note_discarded(self) -> None:
        """Nothing of the log is left that could be made durable."""
        self.unsynced, self.leaving, self.plan_left, self.gaps_left = [], [], None, 0
        self.names_changed = self.truncated = False
        self.flushed_offset = self._log.end_offset

    @property
    def flush_due(self) -> bool:
        """There is a sealed segment that is not durable yet, or the plan of a swap, or a file that was cut off. A flush
        should come soon, whatever the broker's durability setting is.
        """
        return bool(self.unsynced or self.plan_left or self.leaving)

    @property
    def is_unsettled(self) -> bool:
        """Whether a flush has something to do besides syncing the newest batches."""
        return bool(
            self.names_changed
            or self.truncated
            or self.unsynced
            or self._log.snapshots.pending
            or self.plan_left
            or self.gaps_left
            or self.leaving
        )

    @property
    def unsynced_files(self) -> int:
        """About how many files a flush would sync, one after the other."""
        if self.flushed_offset == self._log.end_offset and not self.is_unsettled:
            return 0
        return 1 + len(self.unsynced) * len(SUFFIXES) + len(self._log.snapshots.pending)

    async def flush(self) -> None:
        """See `PartitionLog.flush`."""
        wanted = self._log.end_offset
        if self.flushed_offset < wanted or self.is_unsettled:
            async with self.alone():
                await self.settle(wanted)

    async def settle(self, wanted: int) -> None:
        """Make durable everything below `wanted`, and whatever else is unsettled by now. The caller must hold `alone`.

        What comes meanwhile is for the next flush: where somebody writes without a pause, there is always some. Only
        what a cut takes back is done again.
        """
        if self.lost is not None:
            raise self.lost.with_traceback(None)
        cuts = -1
        while self.flushed_offset < min(wanted, self._log.end_offset) or (cuts != self.cuts and self.is_unsettled):
            cuts = self.cuts
            await self.clear()
            await self._flush_once()
        assert self.flushed_offset <= self._log.end_offset, "only bytes that are there are durable"

    async def _flush_once(self) -> None:
        log = self._log
        cuts, end_offset, active = self.cuts, log.end_offset, log.segments.active
        sealed, self.unsynced = self.unsynced, []
        names_changed, self.names_changed = self.names_changed, False
        truncated, self.truncated = self.truncated, False
        try:
            if names_changed:
                await self._sync_names()
            for first in range(0, len(sealed), SYNCED_AT_ONCE):
                await sync_together(log.disk, sealed[first : first + SYNCED_AT_ONCE])
            if active is not None:
                await active.fsync()
            if sealed or log.snapshots.pending or self.plan_left:
                await self._store_hints(end_offset)
            if 0 < (gaps_left := self.gaps_left) <= end_offset:
                await write_offset(log.disk, log.folder, GAPS_OFFSET, gaps_left)
                if self.gaps_left == gaps_left:  # no further gap has come meanwhile
                    self.gaps_left = 0
        except BaseException as error:
            # The flush failed, or was cancelled because the broker stops. What it had begun is noted as still to be
            # done, so that the last flush does it.
            self.note_failure(error)
            self.unsynced = [*sealed, *self.unsynced]
            self.names_changed |= names_changed
            self.truncated |= truncated
            raise
        if cuts == self.cuts:  # after a cut the synced offsets may have been given to other bytes
            self.flushed_offset = max(self.flushed_offset, end_offset)

    def note_failure(self, error: BaseException) -> None:
        if isinstance(error, DiskFault) and not error.passing:
            self.lost = self.lost or error

    async def _sync_names(self) -> None:
        disk, folder = self._log.disk, self._log.folder
        if not disk.exists(folder):
            return
        if self.folder_is_new:
            await sync_topic_id(disk, folder)
        await disk.sync_dir(folder)
        if self.folder_is_new:
            await disk.sync_dir("")
            self.folder_is_new = False

    async def _store_hints(self, end_offset: int) -> None:
        """Epochs, and the snapshots up to that offset, so that the next recovery need not read the segments that are
        durable now.
        """
        log = self._log
        if log.epochs.changed:
            log.epochs.changed = False
            try:
                await log.disk.write_atomic(f"{log.folder}/{CHECKPOINT}", log.epochs.to_text())
            except BaseException:
                log.epochs.changed = True  # the write may have been cancelled before it began
                raise
        await log.snapshots.store(end_offset)
        if self.plan_left is not None:
            await write_offset(log.disk, log.folder, CLEANED_OFFSET, self.plan_left.cleaned_offset)
            await forget_plan(log.disk, log.folder)
            self.plan_left = None
        log.drop_superfluous_snapshots()
