"""Takes back the end of a log, or all of it: what a leader's log, or a recovery, does not have.

A cut is one step, however long the log is. What was cut off is no part of the log then; its files leave afterwards,
step by step (`LogDurability.clearing`), and nothing is appended before they are gone.

What always holds: a crash before they are gone leaves the beginning of what the log was, because the newest segments
are removed first, and because nothing behind a cut counts as durable. Afterwards the views know exactly the batches
that are left: what they know then is made before anything is taken back (`views_below`). The caller keeps other
operations away by `PartitionLog.alone`, until the files are gone, and has told all checkpoints of what was durable
before (`distrust`).

A cut may leave the log with a gap at its end: compaction has removed what stood there. The log goes on behind the gap,
so that no offset is given twice. It does so in a new segment, whose name tells a recovery how far the log had come.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from log.batch import CorruptBatch
from log.checkpoints import CLEANED_OFFSET, GAPS_OFFSET, START_OFFSET, read_offset, write_offset
from log.disk import DiskFault
from log.partition_log import PartitionLog
from log.segment import Segment
from log.views import View


class _Cut(NamedTuple):
    """Where a log is cut: the last segment that stays, and the position in it; the end of the batch before that
    position (where the segment begins, if there is none); where the log ends then, perhaps behind a gap.
    """

    last: Segment
    position: int
    kept_end: int
    end_offset: int


def _cut_at(log: PartitionLog, offset: int) -> _Cut:
    """`CorruptBatch` if a base offset here has rotted: more would be taken back, and a gap left in its place."""
    last = next(segment for segment in reversed(log.segments) if segment.base_offset < offset)
    position = last.position_of(offset)
    behind = [header for _, header in islice(last.headers(position), 2)]  # these two must not overlap
    # The base offset is higher if compaction has left a gap here.
    end_offset = min(offset, behind[0].base_offset) if behind else offset
    kept_end = last.end_before(position)
    if kept_end > end_offset:
        raise CorruptBatch(f"{last.path()} has the offsets of another place at {position}")
    assert last.base_offset <= kept_end <= end_offset <= offset, "only whole batches below the cut stay"
    return _Cut(last, position, kept_end, end_offset)


def durable_after_cut(log: PartitionLog, offset: int) -> int:
    """What was durable below this offset is still durable after a cut at `offset`: it is the end of the last batch that
    stays. It is 0 if the cut restarts the log, because no batch above the start offset stays.
    """
    first = log.segments.first_base
    if first is None or offset <= max(first, log.start_offset):
        return 0
    kept_end = _cut_at(log, offset).kept_end
    return kept_end if kept_end > log.start_offset else 0


async def distrust(log: PartitionLog, durable: int, offset: int) -> None:
    """A caller that is going to cut the log at `offset`, or to restart it there, does this first. It lowers the
    checkpoints in the folder that say what was durable to `durable`: otherwise, after a crash in between, recovery
    would take the cut for damage. It lowers the start, too, if that is above the cut: the log would go on from the old
    start, with nothing below it. If the caller does not cut the log after all, the start must be kept again
    (`removal.keep_start`). The caller holds `alone`.
    """
    assert 0 <= durable <= offset, "what stays durable lies below the cut"
    await log.durability.clear()  # a cut before may have been given up
    if log.durability.plan_left is not None:  # the next flush would raise the cleaned offset again
        await log.durability.settle(0)
    for checkpoint in (GAPS_OFFSET, CLEANED_OFFSET):  # a gaps note that the other covers may lie in a gap
        if (read_offset(log.disk, log.folder, checkpoint) or 0) > durable:
            await write_offset(log.disk, log.folder, checkpoint, durable)
            log.durability.gaps_left = log.end_offset  # what is left may have gaps: the next flush notes them again
    if (read_offset(log.disk, log.folder, START_OFFSET) or 0) > offset:
        await write_offset(log.disk, log.folder, START_OFFSET, offset)
        log.durability.kept_start = offset


def views_below(log: PartitionLog, offset: int) -> Generator[None, None, list[View]]:
    """Views that know what those of the log will know when it is cut at `offset`: for `truncate_to`."""
    first = log.segments.first_base
    if log.views and first is not None and max(first, log.start_offset) < offset < log.end_offset:
        _, _, kept_end, end_offset = _cut_at(log, offset)
        if kept_end > log.start_offset:
            return (yield from log.views_at(end_offset, kept_end))
    return [view.anew() for view in log.views]


def truncate_to(log: PartitionLog, offset: int, views: list[View]) -> list[View]:
    """Take back everything from `offset` on, or from the start of the batch that holds it; the caller has the files
    removed (`LogDurability.clearing`), also if this raises `DiskFault`. `views` are those that `views_below` has made,
    since when nothing has changed the log below `offset`. Returns views that know what the log's own knew before: to
    free that takes long, too, so the caller may do it step by step.
    """
    if offset >= log.end_offset:
        return views
    first = log.segments.first_base
    if first is None or offset <= max(first, log.start_offset):
        return restart_at(log, offset)
    last, position, kept_end, end_offset = _cut_at(log, offset)
    if kept_end <= log.start_offset:  # the log starts inside the batch that is cut, or in the gap: nothing is left
        return restart_at(log, max(end_offset, log.start_offset))
    assert not log.durability.leaving, "what was cut off before is gone"
    log.durability.note_cut()
    kept = log.segments.slot_from(last.base_offset) + 1
    leaving = log.segments[kept:]
    last.cut(position, kept_end, log.config.index_interval_bytes)
    assert log.start_offset < kept_end == last.end_offset, "a part of the log is left"
    log.segments.put(log.segments[:kept])
    _take_out(log, leaving)
    snapshots = _end_at(log, end_offset)
    _swap(log.views, views)
    log.tell_start()
    try:
        if kept_end < end_offset:
            _go_on_behind_gap(log, kept_end, end_offset, leaving)
    except DiskFault:  # perhaps there is no room. The log then ends before the gap, as after a crash here
        snapshots += _end_at(log, kept_end)
        raise
    finally:
        log.durability.leave(_removals(log, leaving, snapshots))
    return views


def _go_on_behind_gap(log: PartitionLog, kept_end: int, end_offset: int, leaving: list[Segment]) -> None:
    if leaving and leaving[0].base_offset == end_offset:  # its name is that of the new segment
        leaving.pop(0).remove()
    log.start_segment(log.segments[-1].appended_ms)
    log.durability.note_end(kept_end)  # the name of the new segment is not durable yet
    log.durability.gaps_left = end_offset
    assert log.segments[-1].base_offset == end_offset, "the name of the last segment tells where the log goes on"


def restart_at(log: PartitionLog, offset: int) -> list[View]:
    """Forget everything; the log is empty and starts at `offset`. Nothing counts as flushed before the next flush. The
    caller has the files removed (`LogDurability.clearing`). Returns views that know what the log's own knew before.
    """
    assert not log.durability.leaving, "what was cut off before is gone"
    log.durability.note_cut()
    log.make_folder()
    kept = log.segments.at_base(offset)
    if kept is None:
        # The empty segment is made before anything is removed. Its name says where the log goes on, whenever a crash
        # comes.
        kept = Segment.create(log.disk, log.folder, offset, 0)
    kept.cut(0, offset, log.config.index_interval_bytes)
    leaving = [segment for segment in log.segments if segment is not kept]
    log.segments.put([kept])
    _take_out(log, leaving)
    log.times_compacted += 1  # a copy of what was there is no part of this log any more
    log.epochs.clear()
    snapshots = [*_end_at(log, offset), *log.snapshots.forget_above(-1)]
    # The checkpoints leave last: without them a crash could bring back what was deleted before.
    checkpoints = [f"{log.folder}/{name}" for name in (GAPS_OFFSET, CLEANED_OFFSET, START_OFFSET)]
    unlinks = [partial(log.disk.unlink, path) for path in checkpoints]
    log.durability.leave([*unlinks, *_removals(log, leaving, snapshots)])
    log.start_offset = offset
    log.durability.kept_start = 0
    log.durability.note_restart()
    views = [view.anew() for view in log.views]
    _swap(log.views, views)
    log.tell_start()
    assert log.start_offset == log.end_offset == offset, "the log is empty"
    assert log.segments[-1] is kept and not kept.size_bytes, "the next batch enters an empty segment"
    assert not log.flushed_offset, "until the next flush a power cut may bring back any part of the log"
    return views


def _swap(of_log: Iterable[View], others: list[View]) -> None:
    for view, other in zip(of_log, others, strict=True):
        view.swap(other)


def _take_out(log: PartitionLog, leaving: list[Segment]) -> None:
    for segment in leaving:
        segment.gone = True
    log.durability.unsynced = [segment for segment in log.durability.unsynced if not segment.gone]


def _removals(log: PartitionLog, leaving: list[Segment], snapshots: list[int]) -> Sequence[Callable[[], None]]:
    """What is to be done to these files, the last first."""
    return [
        *[partial(log.snapshots.remove, offset) for offset in snapshots],
        *[segment.remove for segment in leaving],
    ]


def _end_at(log: PartitionLog, end_offset: int) -> list[int]:
    """Returns the offsets of the snapshots whose files are to be removed."""
    log.end_offset = end_offset
    log.forgotten_below = min(log.forgotten_below, end_offset)
    log.durability.note_end(end_offset)
    log.epochs.truncate_from_end(end_offset)
    snapshots = log.snapshots.forget_above(end_offset)
    assert log.flushed_offset <= end_offset, "offsets that are given again are not durable yet"
    assert log.epochs.epoch_at(end_offset) == log.epochs.latest, "no epoch is left that began above the end"
    return snapshots
