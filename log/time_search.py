"""Looks for records of a log by their times: the first that is not older than a time, and the latest of all.

What always holds: a record that is found is below the limit and not below the start of the log. Indexes and headers say
which batches must be opened, so few are. But a header may lie, and a client may delete the record that the index names.
So a search gives other tasks turns in between, also while a batch is read. The log may be cut, compacted or moved then:
a search keeps offsets, not positions, and looks up again what it goes on with.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from log.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatch,
    newest_timestamp,
    plain_payload,
    read_header,
    times_of_records,
)
from log.disk import FileSlice
from log.ids import NO_OFFSET, NO_TIMESTAMP
from log.partition_log import PartitionLog
from log.segment import Segment

RECORDS_AT_ONCE: Final = 200
HEADERS_AT_ONCE: Final = 500
"""How many headers a search looks at in one turn of the loop: half a millisecond."""

Open = Callable[[FileSlice, BatchHeader], Awaitable[Buffer]]
"""Reads a stored batch and unpacks its payload. It may have a hundred megabytes, so it may be done in another thread;
then the slice is pinned.
"""


def stored_payload(stored: FileSlice, header: BatchHeader) -> Buffer:
    """Read a stored batch, and unpack its payload."""
    batch = memoryview(stored.file.pread(header.size_bytes, stored.position))
    return plain_payload(batch, header) if header.codec else batch[HEADER_BYTES:]


class _Changed(Exception):
    """The log was cut while a batch of it was read. What was read may be of another batch."""


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


async def offset_for_timestamp(
    log: PartitionLog, timestamp: int, limit_offset: int, open_batch: Open
) -> TimestampOffset | None:
    """The first record at or after the start of the log whose timestamp is not below `timestamp`."""
    from_offset = log.start_offset
    while from_offset < limit_offset and (segment := _segment_with(log, timestamp, from_offset)) is not None:
        looked_to = from_offset
        found, from_offset = segment.search_timestamp(timestamp, from_offset, HEADERS_AT_ONCE)
        if found is not None:
            position, header = found
            if header.base_offset >= limit_offset:
                return None
            stored = FileSlice(segment.file, position, header.size_bytes)
            try:
                async for offset, time in _times(log, header, stored, open_batch):
                    if time >= timestamp and offset >= log.start_offset:
                        return TimestampOffset(offset, time, header.leader_epoch) if offset < limit_offset else None
            except _Changed:
                from_offset = max(looked_to, log.start_offset)
        # Positions and segments may change meanwhile, so only the offset is kept.
        await asyncio.sleep(0)
    return None


def _segment_with(log: PartitionLog, timestamp: int, from_offset: int) -> Segment | None:
    """The first segment from `from_offset` on that may have such a record."""
    segments = log.segments
    for slot in range(segments.slot_from(from_offset), len(segments)):
        segment = segments[slot]
        if segment.largest_timestamp >= timestamp and segment.end_offset > from_offset:
            return segment
    return None


async def max_timestamp(log: PartitionLog, limit_offset: int, open_batch: Open) -> TimestampOffset | None:
    """The first record with the largest timestamp of all records below the limit. If no record has a timestamp: the
    first of all. None if the batch with the largest timestamp was emptied: compaction has kept only its header, for its
    producer. So Kafka answers, too.
    """
    while True:
        segments = [
            segment
            for segment in log.segments
            if segment.end_offset > log.start_offset and segment.base_offset < limit_offset
        ]
        # The newest one comes first. Then only a segment in which the log starts, or in which the limit lies, has to be
        # opened in vain. Of equal ones the oldest comes first.
        segments.sort(key=attrgetter("largest_timestamp"), reverse=True)
        latest: BatchHeader | None = None
        rank = (NO_TIMESTAMP, 0)
        for segment in segments:
            if segment.gone or (segment.largest_timestamp, -segment.base_offset) <= rank:
                continue
            found = await _largest(log, segment, limit_offset)
            if found is not None and (found[1].newest_timestamp, -found[1].base_offset) > rank:
                _, latest = found
                rank = (latest.newest_timestamp, -latest.base_offset)
        if any(segment.gone for segment in segments):
            continue  # the segment was compacted or expired during the search
        if latest is not None and latest.next_offset <= log.start_offset:
            continue  # it was deleted during the search
        try:
            cut = await _latest_of_cut_batch(log, limit_offset, open_batch)
            if latest is None:
                return cut or await _first_without_time(log, limit_offset, open_batch)
            again = _batch_at(log, max(latest.base_offset, log.start_offset), limit_offset)
            if again is None or again[0] != latest:
                continue  # it was replaced or deleted meanwhile
            best = await _latest_in(log, *again, open_batch)
        except _Changed:
            continue
        return cut if cut is not None and (best is None or cut.timestamp >= best.timestamp) else best


async def _largest(log: PartitionLog, segment: Segment, limit_offset: int) -> tuple[int, BatchHeader] | None:
    """The first batch that has the largest timestamp of those between the start of the log and the limit."""
    largest = segment.largest_before(limit_offset)
    if largest is None or largest[1].base_offset >= log.start_offset:
        return largest
    # The index names a batch that is below the start of the log now: look at all batches that are left.
    at, newest, newest_at = log.start_offset, NO_TIMESTAMP, NO_OFFSET
    while some := list(islice(segment.headers(segment.position_of(at)), HEADERS_AT_ONCE)):
        for _, header in some:
            is_wanted = header.last_offset < limit_offset and header.base_offset >= log.start_offset
            if is_wanted and newest_timestamp(header) > newest:
                newest, newest_at = newest_timestamp(header), header.base_offset
        at = header.next_offset
        if at >= limit_offset:
            break
        await asyncio.sleep(0)
        if segment.gone:
            return None
    # Positions may have changed during a turn of others, so the batch is looked up again.
    return None if newest == NO_TIMESTAMP else next(segment.headers(segment.position_of(newest_at)), None)


async def _latest_of_cut_batch(log: PartitionLog, limit_offset: int, open_batch: Open) -> TimestampOffset | None:
    """The latest record of the batch in which the log starts. Its header may describe records below the start."""
    first = _batch_at(log, log.start_offset, limit_offset)
    if first is None or first[0].base_offset >= log.start_offset:
        return None
    return await _latest_in(log, *first, open_batch)


async def _first_without_time(log: PartitionLog, limit_offset: int, open_batch: Open) -> TimestampOffset | None:
    first = _batch_at(log, log.start_offset, limit_offset)
    if first is not None:
        async for offset, time in _times(log, *first, open_batch):
            if time == NO_TIMESTAMP and offset >= log.start_offset:
                return TimestampOffset(offset, NO_TIMESTAMP, first[0].leader_epoch)
    return None


def _batch_at(log: PartitionLog, offset: int, limit_offset: int) -> tuple[BatchHeader, FileSlice] | None:
    """The batch that holds the offset, or the first one after that."""
    stored = log.read(offset, max_bytes=1, limit_offset=limit_offset, at_least_one=True)
    return None if stored is None else (read_header(stored.file.pread(HEADER_BYTES, stored.position)), stored)


async def _latest_in(
    log: PartitionLog, header: BatchHeader, stored: FileSlice, open_batch: Open
) -> TimestampOffset | None:
    latest: TimestampOffset | None = None
    async for offset, time in _times(log, header, stored, open_batch):
        known = NO_TIMESTAMP if latest is None else latest.timestamp
        if time > known and offset >= log.start_offset:
            latest = TimestampOffset(offset, time, header.leader_epoch)
    return latest


async def _times(
    log: PartitionLog, header: BatchHeader, stored: FileSlice, open_batch: Open
) -> AsyncIterator[tuple[int, int]]:
    """Offset and time of each record of a batch. If they are many, other tasks get turns in between. `_Changed`: the
    batch may be another one now.
    """
    if not header.record_count:
        return
    cuts = log.durability.cuts
    try:
        payload = await open_batch(stored, header)
    except CorruptBatch:
        if log.durability.cuts == cuts:
            raise
        raise _Changed from None
    if log.durability.cuts != cuts:
        raise _Changed
    for count, record in enumerate(times_of_records(payload, header), start=1):
        yield record
        if count % RECORDS_AT_ONCE == 0:
            await asyncio.sleep(0)
