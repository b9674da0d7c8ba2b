"""Make a consistent log of any folder, whatever crash it went through.

What always holds:
* Nothing is cut below the trusted offset, up to which the log is known to have been durable before the crash. What is
  wrong there is bit rot, a missing file, or a segment that reaches into the next one. It stays as it is and is reported
  as `Damage`. A damaged log must not lead.
* From the trusted offset on, the log ends before the first batch that is incomplete, has a wrong checksum, does not
  follow the last offset, or has an older leader epoch than the batch before. Everything from that batch on was never
  acknowledged as durable: it is cut off and reported.
* Above the trusted offset there are no gaps between offsets. Compaction works below it only, and a follower that copies
  the gaps of its leader notes them when they are durable.
* Every view has been given every batch that was kept, once and in order.

Segments that end below the trusted offset are not read. Of the others every byte is read and checked. All calls are
synchronous, so that a large recovery can run in a thread beside the loop. For the same reason every file opened here is
closed here. Nothing that is found counts as durable until the log's next `flush`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeVar

from log.batch import (
    CHECKED_FROM,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    CorruptBatch,
    checksum_ok,
    crc32c,
    read_header,
)
from log.checkpoints import CLEANED_OFFSET, GAPS_OFFSET, START_OFFSET, read_offset
from log.disk import TEMPORARY, Disk, File
from log.epochs import CHECKPOINT, BadCheckpoint, LeaderEpochs
from log.ids import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP
from log.many import Stretch, epoch_changes, right_stretch, worth_folding
from log.segment import (
    LOG_SUFFIX,
    OFFSET_SUFFIX,
    SCAN_BYTES,
    SUFFIXES,
    TIME_SUFFIX,
    IndexesLost,
    Segment,
    SegmentFacts,
)
from log.snapshots import SUFFIX as SNAPSHOT_SUFFIX
from log.snapshots import Snapshot, restore, restoring_newest, take_snapshot
from log.steps import done_at_once
from log.swap import BadPlan, SwapPlan, finish_swap
from log.views import View

Answer = TypeVar("Answer")

MANY_BATCHES: Final = 5_000
"""With so many batches or more it is worth importing the module that checks many batches at once."""


class Damage(NamedTuple):
    """Bytes that were durable once and have changed. They held offsets from `first_offset` up to, but not including,
    `end_offset`.
    """

    segment: int
    position: int
    size_bytes: int
    first_offset: int
    end_offset: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did."""

    folder: str
    trusted_offset: int
    scanned_bytes: int = 0
    replayed_from_offset: int = 0
    cut_bytes: int = 0
    cut_offset: int = NO_OFFSET
    cut_reason: str = ""
    damage: list[Damage] = field(default_factory=list)


@dataclass(slots=True)
class Recovered:
    """A consistent log: everything that a `PartitionLog` needs to go on."""

    segments: list[Segment]
    first_unsynced: int
    start_offset: int
    end_offset: int
    epochs: LeaderEpochs
    snapshots: list[int]
    new_snapshots: dict[int, Snapshot]
    plan_left: SwapPlan | None
    report: RecoveryReport


def recover(
    disk: Disk,
    folder: str,
    views: Sequence[View],
    *,
    recovery_point: int,
    interval_bytes: int,
    now_ms: int,
    on_read: Callable[[int], None] = lambda size_bytes: None,
) -> Recovered:
    """Read what is in `folder`, make it consistent, and say what was wrong. `on_read` is called for every segment that
    was read, in the thread in which this function runs.
    """
    plan_left, bad_plan = None, ""
    try:
        plan_left = finish_swap(disk, folder)
    except BadPlan as error:  # without the plan it is unknown which files of that swap belong to the log
        bad_plan = str(error)
    bases, snapshots = _take_stock(disk, folder)
    cleaned_offset, gaps_offset = (read_offset(disk, folder, name) or 0 for name in (CLEANED_OFFSET, GAPS_OFFSET))
    if plan_left is not None:
        cleaned_offset = max(cleaned_offset, plan_left.cleaned_offset)
    trusted = max(recovery_point, cleaned_offset, gaps_offset)
    report = RecoveryReport(folder, trusted)
    recovery = _Recovery(disk, folder, report, interval_bytes, now_ms, on_read)
    first_scanned = _first_scanned(bases, trusted)
    start_offset = max(read_offset(disk, folder, START_OFFSET) or 0, bases[0] if bases else 0)
    scan_from = bases[first_scanned] if bases else start_offset
    recovery.adopt(bases, first_scanned)
    recovery.end_offset = scan_from
    recovery.epochs = recovery.read_epochs(start_offset, scan_from)
    snapshots = _of_this_log(disk, folder, snapshots, cleaned_offset, max(trusted, scan_from))
    recovery.restore_views(views, snapshots, scan_from)
    recovery.scan(bases[first_scanned:], views)
    end_offset = recovery.settle_end(start_offset, views)
    assert start_offset <= end_offset, "a log ends where it starts, or after it"
    assert trusted <= end_offset, "nothing is cut that was durable"
    if bad_plan:
        report.damage.append(Damage(start_offset, 0, 0, start_offset, end_offset, bad_plan))
    for view in views:
        view.set_start_offset(start_offset)
    recovery.epochs.truncate_from_start(start_offset)
    return Recovered(
        recovery.segments,
        min(first_scanned, len(recovery.segments)),
        start_offset,
        end_offset,
        recovery.epochs,
        snapshots,
        recovery.new_snapshots,
        plan_left,
        report,
    )


def _take_stock(disk: Disk, folder: str) -> tuple[list[int], list[int]]:
    """Base offsets of segments and offsets of snapshots; leftovers of interrupted writes are swept away."""
    names = sorted(disk.listdir(folder))
    bases = sorted(_numbers(names, LOG_SUFFIX))
    for name in names:
        stem, dot, suffix = name.partition(".")
        orphan = dot + suffix in (OFFSET_SUFFIX, TIME_SUFFIX) and stem.isdigit() and int(stem) not in bases
        if name.endswith(TEMPORARY) or orphan:
            disk.unlink(f"{folder}/{name}")
    return bases, sorted(_numbers(names, SNAPSHOT_SUFFIX))


def _numbers(names: list[str], suffix: str) -> list[int]:
    return [int(name[: -len(suffix)]) for name in names if name.endswith(suffix) and name[: -len(suffix)].isdigit()]


def _of_this_log(disk: Disk, folder: str, snapshots: list[int], cleaned_offset: int, limit_offset: int) -> list[int]:
    """Remove the snapshots that nothing may begin with, and return the others. What leads to one that is older than the
    end of what was compacted has left the log. One above the limit may be of batches that were cut off, which a power
    cut has brought back: where it is needed, the scan takes it anew.
    """
    first = cleaned_offset if cleaned_offset in snapshots else 0
    kept = [offset for offset in snapshots if first <= offset <= limit_offset]
    for offset in sorted(set(snapshots) - set(kept)):
        disk.unlink(f"{folder}/{offset:020}{SNAPSHOT_SUFFIX}")
    return kept


def _first_scanned(bases: list[int], trusted: int) -> int:
    """The index of the first segment that may not have been sealed, or lacked an index or snapshot, when the trusted
    offset was noted.
    """
    for index in range(len(bases) - 1):
        if bases[index + 1] >= trusted:
            return index
    return max(len(bases) - 1, 0)


class _Recovery:
    """The log as far as it has been made consistent."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        report: RecoveryReport,
        interval_bytes: int,
        now_ms: int,
        on_read: Callable[[int], None],
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.report = report
        self.interval_bytes = interval_bytes
        self.now_ms = now_ms
        self.on_read = on_read
        self.segments: list[Segment] = []
        self.new_snapshots: dict[int, Snapshot] = {}
        self.epochs = LeaderEpochs()
        self.end_offset = 0
        self.batches_end = 0
        """Where the last batch ends: before `end_offset`, if a segment begins with a gap."""
        self._last_epochs: dict[int, tuple[int, int]] = {}
        """By trusted segment: the last offset that its end tells of, and the leader epoch that wrote it."""

    # -- what is trusted

    def adopt(self, bases: list[int], count: int) -> None:
        """Take the first `count` segments as they are."""
        self.batches_end = bases[0] if bases else 0
        for index in range(count):
            segment = Segment(self.disk, self.folder, self._facts(bases[index], bases[index + 1]), sealed=True)
            try:
                _with_indexes(segment, segment.learn_times)
                _with_indexes(segment, partial(self._look_at_end, segment))
            except CorruptBatch as error:
                self._damaged_whole(segment, error)
            segment.close()
            self.segments.append(segment)

    def _look_at_end(self, segment: Segment) -> None:
        """Note the epoch of the last batch. Only the end of the segment is read: other damage is not looked for."""
        for _, header in segment.headers(segment.last_known_position()):
            self._last_epochs[segment.base_offset] = header.last_offset, header.leader_epoch
            self.batches_end = header.next_offset

    def _facts(self, base_offset: int, end_offset: int) -> SegmentFacts:
        file = self.disk.open(f"{self.folder}/{base_offset:020}{LOG_SUFFIX}")
        size_bytes, appended_ms = file.size, min(file.modified_ms(), self.now_ms)
        file.close()
        return SegmentFacts(base_offset, end_offset, size_bytes, NO_TIMESTAMP, NO_OFFSET, NO_TIMESTAMP, appended_ms)

    def read_epochs(self, start_offset: int, scan_from: int) -> LeaderEpochs:
        """The epochs of the trusted segments: from the checkpoint, or from the batch headers if there is none or if it
        does not tell of all of them. It may be older than the segments. Or it is of a log with a later start, when a
        crash kept that start from becoming durable.
        """
        epochs = LeaderEpochs()
        if self.segments:  # else nothing bears it out: it may be of a log that this one has taken the place of
            with suppress(FileNotFoundError, BadCheckpoint):
                epochs = LeaderEpochs.from_text(self.disk.read(f"{self.folder}/{CHECKPOINT}"))
        told = [*self._first_epoch(start_offset), *self._last_epochs.values()]
        if any(epochs.epoch_at(offset) != epoch for offset, epoch in told if offset >= start_offset):
            epochs = LeaderEpochs()
            ended = self.segments[0].base_offset if self.segments else 0
            for _, header, _ in self._trusted_batches(ended):
                epochs.assign(header.leader_epoch, min(ended, header.base_offset))  # not after a gap: `log.epochs`
                ended = header.next_offset
        epochs.truncate_from_end(scan_from)
        return epochs

    def _first_epoch(self, start_offset: int) -> list[tuple[int, int]]:
        """The first offset of the log, and the epoch that wrote it, if a trusted segment holds them."""
        for segment in self.segments:
            try:
                for _, header in segment.headers(_with_indexes(segment, partial(segment.position_of, start_offset))):
                    return [(max(header.base_offset, start_offset), header.leader_epoch)]
            except CorruptBatch:
                return []  # it is told where it is read
            finally:
                segment.close_file()
        return []

    def restore_views(self, views: Sequence[View], snapshots: list[int], scan_from: int) -> None:
        """Bring the views to the state that they had at the offset where the scan begins, or later: to that of the
        newest snapshot that is not above the trusted offset. The batches that are left before it do not tell all that
        the views knew: retention and compaction may have been there. For the same reason a snapshot from before the
        first segment is not used: the batches between the two are gone, and a marker may have been among them.

        Below the trusted offset each snapshot belongs to this history: names are synced before that is noted, and
        what a recovery finds above is removed.
        """
        first = self.segments[0].base_offset if self.segments else scan_from
        usable = [offset for offset in snapshots if offset >= first]
        trusted = self.report.trusted_offset
        epochs, end_offset = (LeaderEpochs(), trusted) if trusted >= scan_from else (self.epochs, scan_from)
        restoring = restoring_newest(self.disk, self.folder, views, usable, epochs=epochs, end_offset=end_offset)
        known = done_at_once(restoring)
        self.report.replayed_from_offset = replay_from = max(known, first)
        for segment, header, batch in self._trusted_batches(replay_from) if views else ():
            try:
                if not checksum_ok(batch, header):
                    raise CorruptBatch(f"wrong checksum at offset {header.base_offset}")
                for view in views:
                    view.apply(header, batch)
            except CorruptBatch as error:
                self._damaged_whole(segment, error)

    def _trusted_batches(self, from_offset: int) -> Iterator[tuple[Segment, BatchHeader, memoryview]]:
        """The batches from that offset on, in order."""
        for segment in self.segments:
            if segment.end_offset <= from_offset:
                continue
            try:
                for _, header, batch in segment.batches(0):
                    if header.base_offset >= from_offset:
                        yield segment, header, batch
            except CorruptBatch as error:
                self._damaged_whole(segment, error)
            finally:
                segment.close_file()

    # -- what is not

    def scan(self, bases: list[int], views: Sequence[View]) -> None:
        """Read every batch of the segments that may hold undurable bytes. The log ends before the first wrong batch."""
        for index, base_offset in enumerate(bases):
            expected = self.end_offset
            if base_offset != expected and not expected < base_offset <= self.report.trusted_offset:
                self._note_cut(expected, 0, f"the segment {base_offset} does not follow {expected}")
                self._remove_segments(bases[index:])
                return
            if views and self.report.replayed_from_offset < base_offset:
                # Each segment needs a snapshot at its beginning. The snapshot of this one may never have been stored.
                epoch = self.epochs.epoch_at(expected - 1)
                self.new_snapshots[base_offset] = take_snapshot(views, offset=base_offset, leader_epoch=epoch)
            if not self._scan_segment(base_offset, views, is_last=index == len(bases) - 1):
                self._remove_segments(bases[index + 1 :])
                return

    def _scan_segment(self, base_offset: int, views: Sequence[View], *, is_last: bool) -> bool:
        """False if the log ends inside this segment and more segments follow."""
        facts = self._facts(base_offset, base_offset)
        self.end_offset = max(self.end_offset, base_offset)
        segment = Segment(self.disk, self.folder, facts, sealed=False)
        segment.start_indexes()
        self.segments.append(segment)
        self.report.scanned_bytes += facts.size_bytes
        position = self._scan_batches(segment, segment.file, facts.size_bytes, views)
        if position < facts.size_bytes:
            segment.file.truncate(position)
        self.on_read(facts.size_bytes)
        segment.end_offset = max(segment.end_offset, self.end_offset)
        segment.size_bytes = position
        segment.close_file()
        if position == facts.size_bytes and not is_last:
            segment.seal()
        return position == facts.size_bytes

    def _scan_batches(self, segment: Segment, file: File, size_bytes: int, views: Sequence[View]) -> int:
        """The position up to which the segment is kept: its size, or where the first wrong batch begins."""
        position = 0
        while position < size_bytes:
            position, reason = self._scan_right_batches(segment, file, position, size_bytes, views)
            if not reason:
                break
            if self.end_offset >= self.report.trusted_offset:
                self._note_cut(self.end_offset, size_bytes - position, reason)
                break
            position = self._skip_damage(segment, file, position, size_bytes, reason)
        return position

    def _scan_right_batches(
        self, segment: Segment, file: File, position: int, size_bytes: int, views: Sequence[View]
    ) -> tuple[int, str]:
        """The position where the correct batches end, and the reason; an empty reason at the end of the file."""
        if _are_many(file, position, size_bytes):
            position = self._scan_many(segment, file, position, size_bytes, views)
        epochs, interval_bytes, gaps_below = self.epochs, self.interval_bytes, self._gaps_below(segment)
        latest, expected = epochs.latest, self.end_offset
        ended = position
        for start, header, chunk, at in whole_batches(file, position, size_bytes):
            end = at + header.size_bytes
            base_offset = header.base_offset
            reason = ""
            if crc32c(chunk[at + CHECKED_FROM : end]) != header.crc:
                reason = "wrong checksum"
            elif base_offset != expected and not expected < base_offset < gaps_below:
                reason = f"offset {base_offset} where {expected} was due"
            elif header.leader_epoch != latest:
                if header.leader_epoch < latest and header.leader_epoch != NO_EPOCH:
                    reason = f"leader epoch {header.leader_epoch} after {latest}"
                else:
                    epochs.assign(header.leader_epoch, min(self.batches_end, base_offset))
                    latest = epochs.latest
            if reason:
                return start, reason
            segment.note(header, start, interval_bytes)
            ended = start + header.size_bytes
            self.end_offset = self.batches_end = expected = segment.end_offset
            if views and base_offset >= self.report.replayed_from_offset:
                batch = memoryview(chunk)[at:end]
                for view in views:
                    view.apply(header, batch)
        return ended, "" if ended == size_bytes else "the file ends inside a batch, or with bytes that are none"

    def _gaps_below(self, segment: Segment) -> int:
        """Below this offset there may be gaps between batches, since compaction has been here. The checksum does not
        cover a batch's offset: one that this segment can't hold is damaged.
        """
        return min(self.report.trusted_offset, segment.reach)

    def _scan_many(self, segment: Segment, file: File, position: int, size_bytes: int, views: Sequence[View]) -> int:
        """Check many batches at a time, as far as they are correct and usual. Returns the position from which batches
        must be checked one by one.
        """
        while position < size_bytes:
            chunk = file.pread(min(SCAN_BYTES, size_bytes - position), position)
            stretch = right_stretch(chunk, expected=self.end_offset, gaps_below=self._gaps_below(segment))
            stretch = self._up_to_a_wrong_epoch(stretch)
            if not len(stretch.starts):
                return position
            segment.note_many(stretch, position, self.interval_bytes)
            self.end_offset = self.batches_end = segment.end_offset
            self._apply_many(chunk, stretch, views, self.report.replayed_from_offset)
            position = segment.size_bytes
        return position

    def _up_to_a_wrong_epoch(self, stretch: Stretch) -> Stretch:
        for at, epoch in epoch_changes(stretch, self.epochs.latest):
            if epoch < self.epochs.latest and epoch != NO_EPOCH:
                return Stretch(*(column[:at] for column in stretch))
            ended = int(stretch.last_offsets[at - 1]) + 1 if at else min(self.batches_end, int(stretch.base_offsets[0]))
            self.epochs.assign(epoch, ended)
        return stretch

    @staticmethod
    def _apply_many(chunk: bytes, stretch: Stretch, views: Sequence[View], from_offset: int) -> None:
        if not views:
            return
        every = any(view.must_see_all for view in views)
        for index in range(len(stretch.starts)) if every else worth_folding(stretch):
            at = int(stretch.starts[index])
            header = read_header(chunk, at)
            if header.base_offset < from_offset:
                continue
            batch = memoryview(chunk)[at : at + header.size_bytes]
            for view in views:
                view.apply(header, batch)

    def _skip_damage(self, segment: Segment, file: File, position: int, size_bytes: int, reason: str) -> int:
        """Report damaged bytes, and return the position of the next correct batch, or the end of the file if there is
        none.
        """
        for found, header in _search_batch(file, position + 1, size_bytes):
            if self.end_offset <= header.base_offset < segment.reach:
                self._damaged(segment.base_offset, position, found - position, header.base_offset, reason)
                return found
        self._damaged(segment.base_offset, position, size_bytes - position, self.report.trusted_offset, reason)
        return size_bytes

    def _damaged(self, segment: int, position: int, size_bytes: int, end_offset: int, reason: str) -> None:
        self.report.damage.append(Damage(segment, position, size_bytes, self.end_offset, end_offset, reason))
        self.end_offset = max(self.end_offset, end_offset)

    def _damaged_whole(self, segment: Segment, error: CorruptBatch) -> None:
        first_offset, end_offset = segment.base_offset, segment.end_offset
        if any(damage.segment == first_offset for damage in self.report.damage):
            return  # it is told already
        self.report.damage.append(Damage(first_offset, 0, segment.size_bytes, first_offset, end_offset, str(error)))

    # -- the end

    def _note_cut(self, offset: int, size_bytes: int, reason: str) -> None:
        self.report.cut_bytes += size_bytes
        if self.report.cut_offset == NO_OFFSET:
            self.report.cut_offset, self.report.cut_reason = offset, reason

    def _remove_segments(self, bases: list[int]) -> None:
        """Remove these segments, newest first. A power cut may undo the last of the removals; in this order that leaves
        no hole before a segment that stays.
        """
        for base_offset in reversed(bases):
            self.report.cut_bytes += self._facts(base_offset, base_offset).size_bytes
            for suffix in SUFFIXES:
                self.disk.unlink(f"{self.folder}/{base_offset:020}{suffix}")

    def settle_end(self, start_offset: int, views: Sequence[View]) -> int:
        """The offset at which the log ends. It is never below what was durable, nor below the log's start, so that no
        offset is given twice. If everything ends below the start, nothing of it is kept, and the views forget it.
        """
        trusted = self.report.trusted_offset
        if self.end_offset < trusted:
            base_offset, position = self.end_offset, 0
            if self.segments:
                last = self.segments[-1]
                base_offset, position, last.end_offset = last.base_offset, last.size_bytes, trusted
            self._damaged(base_offset, position, 0, trusted, "durable batches are missing at the end")
        if self.end_offset < start_offset:
            for segment in reversed(self.segments):
                segment.remove()
            self.segments.clear()
            self.epochs.clear()
            self.end_offset = start_offset
            restore(views, {})
        return max(self.end_offset, trusted)


def _with_indexes(segment: Segment, ask: Callable[[], Answer]) -> Answer:
    """What this asks of the segment. If its indexes are lost they are rebuilt: nobody waits for this thread."""
    try:
        return ask()
    except IndexesLost:
        segment.rebuild_indexes()
        return ask()


def _are_many(file: File, position: int, size_bytes: int) -> bool:
    """Whether the rest of the file holds many batches, judged by the size of the first one."""
    with suppress(CorruptBatch):
        return size_bytes - position >= MANY_BATCHES * read_header(file.pread(HEADER_BYTES, position)).size_bytes
    return False


def whole_batches(file: File, position: int, size_bytes: int) -> Iterator[tuple[int, BatchHeader, bytes, int]]:
    """Batches from a boundary on: the position of each, its header, a chunk of the file that holds all of it, and the
    index in the chunk where it begins. Ends silently where the bytes are no whole batch.
    """
    chunk, chunk_at = b"", position
    while position + HEADER_BYTES <= size_bytes:
        at = position - chunk_at
        if at + HEADER_BYTES > len(chunk):
            chunk, chunk_at, at = file.pread(SCAN_BYTES, position), position, 0
        try:
            header = read_header(chunk, at)
        except CorruptBatch:
            return
        size = header.size_bytes
        if position + size > size_bytes:
            return
        if at + size > len(chunk):
            chunk, chunk_at, at = file.pread(max(size, SCAN_BYTES), position), position, 0
        yield position, header, chunk, at
        position += size


_MAGIC: Final = bytes([MAGIC])


def _search_batch(file: File, position: int, size_bytes: int) -> Iterator[tuple[int, BatchHeader]]:
    """Every whole batch with a correct checksum that begins at `position` or at any byte after it."""
    while position + HEADER_BYTES <= size_bytes:
        chunk = file.pread(SCAN_BYTES, position)
        at = chunk.find(_MAGIC, MAGIC_AT)
        while at >= 0 and at - MAGIC_AT + HEADER_BYTES <= len(chunk):
            start = at - MAGIC_AT
            header = _header_if_right(file, chunk, start, position, size_bytes)
            if header is not None:
                yield position + start, header
            at = chunk.find(_MAGIC, at + 1)
        position += max(len(chunk) - HEADER_BYTES, 1)


def _header_if_right(file: File, chunk: bytes, at: int, chunk_at: int, size_bytes: int) -> BatchHeader | None:
    try:
        header = read_header(chunk, at)
    except CorruptBatch:
        return None
    if chunk_at + at + header.size_bytes > size_bytes:
        return None
    batch = file.pread(header.size_bytes, chunk_at + at)
    return header if crc32c(batch[CHECKED_FROM:]) == header.crc else None
