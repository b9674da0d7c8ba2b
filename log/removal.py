"""Removes what a log begins with: its start offset is raised, and its oldest segments are removed.

What always holds: nothing below the start offset can be read again, not even after a crash. Segments are removed from
the oldest on, and only after everything that the views know from them is stored. One segment always stays: its name
says where the log goes on.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from log.checkpoints import CLEANED_OFFSET, START_OFFSET, read_offset, write_offset
from log.clock import CLOCK_SET_MS
from log.partition_log import PartitionLog
from log.retention import SegmentAge, expired
from log.segment import Segment
from log.unbroken import unbroken

REMOVED_AT_ONCE: Final = 16
"""How many segments leave in one turn of the loop, which takes a few milliseconds."""
EXPIRED_AT_ONCE: Final = 1_000


async def raise_start_offset(log: PartitionLog, offset: int) -> None:
    """From now on nothing below `offset` can be read, not even after a crash. Retention may remove the whole segments
    below it.
    """
    assert offset <= log.end_offset, "a log can't start above its end"
    # Not `start_offset`: that may be raised already and not be durable yet.
    if offset > log.durability.kept_start:
        async with log.alone():
            if not log.gone:
                if log.flushed_offset < offset:  # recovery takes everything below the start offset for durable
                    await log.durability.settle(offset)  # which may be cut short: it may take long
                await unbroken(_raise_start_offset(log, offset))


async def _raise_start_offset(log: PartitionLog, offset: int) -> None:
    offset = min(offset, log.end_offset)  # the log may have been cut meanwhile
    assert offset <= log.flushed_offset, "what recovery takes for durable is durable"
    if offset > log.start_offset:
        _start_at(log, offset)
    await keep_start(log)


async def keep_start(log: PartitionLog) -> None:
    """Make the start offset durable. The caller holds `alone`."""
    if not log.gone:
        log.make_folder()
        await log.durability.clear()  # what restarts a log removes this checkpoint
        while log.durability.kept_start != log.start_offset:  # the log may be restarted meanwhile
            written = log.start_offset
            await write_offset(log.disk, log.folder, START_OFFSET, written)
            log.durability.kept_start = written


def _start_at(log: PartitionLog, offset: int) -> None:
    assert log.start_offset < offset <= log.end_offset, "the start rises, and not above the end"
    log.start_offset = offset
    log.durability.flushed_offset = max(log.flushed_offset, offset)
    log.epochs.truncate_from_start(offset)
    log.tell_start()


def expired_segments(log: PartitionLog, now_ms: int, high_watermark: int) -> int:
    """How many of the oldest segments may go by age, size or start offset (`log.retention`). No more than
    EXPIRED_AT_ONCE are looked at, so that this takes a millisecond of any log.
    """
    ages: list[SegmentAge] = []
    by_client = log.config.message_timestamp_type == "CreateTime"
    oldest, newer = log.segments[:EXPIRED_AT_ONCE], log.segments[EXPIRED_AT_ONCE:]
    appended_ms = next((each.appended_ms for each in newer if each.appended_ms >= CLOCK_SET_MS), now_ms)
    for segment in reversed(oldest):
        # A segment written before the clock was set counts as written at the same time as the next newer one.
        if segment.appended_ms >= CLOCK_SET_MS:
            appended_ms = segment.appended_ms
        newest_ms = segment.largest_timestamp
        if newest_ms < (0 if by_client else CLOCK_SET_MS):
            newest_ms = appended_ms
        elif by_client:
            newest_ms += log.config.newest_believed_ms  # no record is newer, whatever the headers say
        ages.append(SegmentAge(segment.base_offset, segment.end_offset, segment.size_bytes, newest_ms))
    ages.reverse()
    return expired(
        ages,
        log.config,
        now_ms=now_ms,
        size_bytes=log.size_bytes,
        start_offset=log.start_offset,
        high_watermark=high_watermark,
    )


async def remove_oldest(log: PartitionLog, how_many: Callable[[], int]) -> int:
    """Remove the oldest segments, as many as `how_many` says; the log starts after them. Returns the freed bytes.

    `how_many` is asked while this holds `alone`, and again right before the segments are removed: appends, the cleaner
    and deletions may have changed the segments in the meantime.
    """
    async with log.alone():
        wanted = min(how_many(), len(log.segments))
        if not wanted:
            return 0
        active = log.segments.active
        if wanted == len(log.segments) and (active is None or active.size_bytes):
            # The name of the new, empty segment says where the log goes on.
            log.start_segment(log.segments[-1].appended_ms)
        await log.durability.settle(log.end_offset)
        count = min(how_many(), _stored(log))
        while count:
            await _keep_what_is_known(log, count)
            still = min(how_many(), _stored(log))
            if still >= count:
                break  # what has expired during the wait leaves the next time: it could go on so without end
            count = still
        leaving = log.segments[:count]
        freed_bytes = 0
        for first in range(0, len(leaving), REMOVED_AT_ONCE):
            freed_bytes += await _remove(log, leaving[first : first + REMOVED_AT_ONCE])
        return freed_bytes


def _stored(log: PartitionLog) -> int:
    """How many of the oldest segments are durable, and with them what the views know from them: that must be stored
    before they are removed. Others may have been sealed during the wait for that. The last segment always stays: a
    record may have been appended to it meanwhile.
    """
    unstored = [*log.snapshots.pending, *[segment.end_offset for segment in log.durability.unsynced]]
    return log.segments.slot_from(min(unstored, default=log.end_offset + 1) - 1)


async def _keep_what_is_known(log: PartitionLog, leaving: int) -> None:
    """What the views know from the segments that leave is stored where the log begins then: a cut may go back to any
    place behind that. A log that came from another folder has no snapshot at the beginning of each segment. Below the
    end of the last pass of compaction none is needed: nothing begins there.
    """
    first = log.segments[leaving].base_offset
    if not leaving or log.snapshots.is_stored(first):
        return
    if first >= (read_offset(log.disk, log.folder, CLEANED_OFFSET) or 0):
        known = await log.snapshot_at(first, partial(asyncio.sleep, 0))
        if known is not None:
            log.snapshots.pending[first] = known
            await log.durability.settle(log.end_offset)


async def _remove(log: PartitionLog, leaving: list[Segment]) -> int:
    assert log.segments[: len(leaving)] == leaving, "nobody else removes what this log begins with"
    log.segments.put(log.segments[len(leaving) :])
    first = log.segments[0].base_offset
    assert first <= log.flushed_offset, "only what is durable leaves: recovery goes on where the first segment begins"
    if first > log.start_offset:
        _start_at(log, first)
    for segment in leaving:  # oldest first, so that a crash leaves no hole
        segment.remove()
    log.drop_superfluous_snapshots()
    log.durability.names_changed = True  # if the wait below is cancelled, the next flush syncs the folder
    await log.disk.sync_dir(log.folder)
    return sum(segment.size_bytes for segment in leaving)
