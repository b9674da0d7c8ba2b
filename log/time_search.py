"""Looks for records of a log by their times: the first that is not older than a time, and the latest of all.

What always holds: a record that is found is below the limit and not below the start of the log. Indexes and headers say
which batches must be opened, so few are. A long search gives other tasks turns in between.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from log.batch import BatchHeader, Buffer, StoredRecord, open_records
from log.ids import NO_TIMESTAMP
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
    while (candidate := _candidate(log, timestamp, from_offset)) is not None:
        header, batch = candidate
        if header.base_offset >= limit_offset:
            return None
        async for record in _records(header, batch, unpack):
            if record.timestamp >= timestamp and record.offset >= log.start_offset:
                found = TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
                return found if found.offset < limit_offset else None
        from_offset = header.next_offset
    return None


def _candidate(log: PartitionLog, timestamp: int, from_offset: int) -> tuple[BatchHeader, bytes] | None:
    """The first batch from `from_offset` on that has such a record, judged by its header."""
    for segment in log.segments:
        if segment.largest_timestamp >= timestamp and segment.end_offset > from_offset:
            for position, header in segment.search_timestamp(timestamp, from_offset):
                return header, segment.file.pread(header.size_bytes, position)
    return None


async def max_timestamp(log: PartitionLog, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
    """The first record with the largest timestamp of all records below the limit. If no record has a timestamp: the
    first of all.
    """
    while True:
        segments = [segment for segment in log.segments if segment.end_offset > log.start_offset]
        latest: tuple[BatchHeader, bytes] | None = None
        for segment in segments:
            known = NO_TIMESTAMP if latest is None else latest[0].newest_timestamp
            if segment.largest_timestamp > known and segment.base_offset < limit_offset and not segment.gone:
                found = await _largest(log, segment, limit_offset)
                if found is not None and found[1].newest_timestamp > known:
                    latest = found[1], segment.file.pread(found[1].size_bytes, found[0])
        if any(segment.gone for segment in segments):
            continue  # the segment was compacted or expired during the search
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
    file, start_offset, largest = segment.file, log.start_offset, None
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


async def _latest_of_cut_batch(log: PartitionLog, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
    """The latest record of the batch in which the log starts. Its header may describe records below the start."""
    for header, batch in log.scan(log.start_offset, limit_offset):
        return await _latest_in(log, header, batch, unpack) if header.base_offset < log.start_offset else None
    return None


async def _first_without_time(log: PartitionLog, limit_offset: int, unpack: Unpack) -> TimestampOffset | None:
    for header, batch in log.scan(log.start_offset, limit_offset):
        async for record in _records(header, batch, unpack):
            if record.timestamp == NO_TIMESTAMP and record.offset >= log.start_offset:
                return TimestampOffset(record.offset, NO_TIMESTAMP, header.leader_epoch)
        return None
    return None


async def _latest_in(log: PartitionLog, header: BatchHeader, batch: Buffer, unpack: Unpack) -> TimestampOffset | None:
    latest: TimestampOffset | None = None
    async for record in _records(header, batch, unpack):
        known = NO_TIMESTAMP if latest is None else latest.timestamp
        if record.timestamp > known and record.offset >= log.start_offset:
            latest = TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
    return latest


async def _records(header: BatchHeader, batch: Buffer, unpack: Unpack) -> AsyncIterator[StoredRecord]:
    """The records of a batch. If they are many, other tasks get turns in between."""
    if header.record_count:
        payload = await unpack(bytes(batch), header)
        for count, record in enumerate(open_records(payload, header), start=1):
            yield record
            if count % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)
