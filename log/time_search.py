"""Looks for records of a log by their times: the first that is not older than a time, and the latest of all.

What always holds: a record that is found is below the limit and not below the start of the log. Indexes and headers say
which batches must be opened, so few are. But a header may lie, and a client may delete the record that the index names.
So a search gives other tasks turns in between. The log may be cut, compacted or moved then: a search keeps offsets, not
positions, and looks up again what it goes on with.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from log.batch import HEADER_BYTES, BatchHeader, StoredRecord, newest_timestamp, open_records, read_header
from log.disk import FileSlice
from log.ids import NO_OFFSET, NO_TIMESTAMP
from log.partition_log import PartitionLog
from log.segment import Segment

RECORDS_AT_ONCE: Final = 200
HEADERS_AT_ONCE: Final = 500
"""How many headers a search looks at in one turn of the loop: half a millisecond."""

Unpack = Callable[[bytes, BatchHeader], Awaitable[bytes]]
"""Unpacks the payload of a batch. It may have a hundred megabytes, so it may be done in another thread."""


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


async def offset_for_timestamp(
    log: PartitionLog, timestamp: int, limit_offset: int, unpack: Unpack
) -> TimestampOffset | None:
    """The first record at or after the start of the log whose timestamp is not below `timestamp`."""
    from_offset = log.start_offset
    while from_offset < limit_offset and (segment := _segment_with(log, timestamp, from_offset)) is not None:
        found, from_offset = segment.search_timestamp(timestamp, from_offset, HEADERS_AT_ONCE)
        if found is not None:
            position, header = found
            if header.base_offset >= limit_offset:
                return None
            async for record in _records(header, segment.file.pread(header.size_bytes, position), unpack):
                if record.timestamp >= timestamp and record.offset >= log.start_offset:
                    result = TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
                    return result if result.offset < limit_offset else None
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


async def max_timestamp(log: PartitionLog, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
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
        latest: tuple[BatchHeader, bytes] | None = None
        rank = (NO_TIMESTAMP, 0)
        for segment in segments:
            if segment.gone or (segment.largest_timestamp, -segment.base_offset) <= rank:
                continue
            found = await _largest(log, segment, limit_offset)
            if found is not None and (found[1].newest_timestamp, -found[1].base_offset) > rank:
                position, header = found
                rank = (header.newest_timestamp, -header.base_offset)
                latest = header, segment.file.pread(header.size_bytes, position)
        if any(segment.gone for segment in segments):
            continue  # the segment was compacted or expired during the search
        if latest is not None and latest[0].next_offset <= log.start_offset:
            continue  # it was deleted during the search
        cut = await _latest_of_cut_batch(log, limit_offset, unpack)
        if latest is None:
            return cut or await _first_without_time(log, limit_offset, unpack)
        best = await _latest_in(log, *latest, unpack)
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


async def _latest_of_cut_batch(log: PartitionLog, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
    """The latest record of the batch in which the log starts. Its header may describe records below the start."""
    first = _first(log, limit_offset)
    if first is None or first[0].base_offset >= log.start_offset:
        return None
    header, stored = first
    return await _latest_in(log, header, stored.file.pread(stored.size, stored.position), unpack)


async def _first_without_time(log: PartitionLog, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
    first = _first(log, limit_offset)
    if first is not None:
        header, stored = first
        async for record in _records(header, stored.file.pread(stored.size, stored.position), unpack):
            if record.timestamp == NO_TIMESTAMP and record.offset >= log.start_offset:
                return TimestampOffset(record.offset, NO_TIMESTAMP, header.leader_epoch)
    return None


def _first(log: PartitionLog, limit_offset: int) -> tuple[BatchHeader, FileSlice] | None:
    """The batch in which the log starts, or the first one after that."""
    stored = log.read(log.start_offset, max_bytes=1, limit_offset=limit_offset, at_least_one=True)
    return None if stored is None else (read_header(stored.file.pread(HEADER_BYTES, stored.position)), stored)


async def _latest_in(log: PartitionLog, header: BatchHeader, batch: bytes, unpack: Unpack) -> TimestampOffset | None:
    latest: TimestampOffset | None = None
    async for record in _records(header, batch, unpack):
        known = NO_TIMESTAMP if latest is None else latest.timestamp
        if record.timestamp > known and record.offset >= log.start_offset:
            latest = TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
    return latest


async def _records(header: BatchHeader, batch: bytes, unpack: Unpack) -> AsyncIterator[StoredRecord]:
    """The records of a batch. If they are many, other tasks get turns in between."""
    if header.record_count:
        payload = await unpack(batch, header)
        for count, record in enumerate(open_records(payload, header), start=1):
            yield record
            if count % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)
