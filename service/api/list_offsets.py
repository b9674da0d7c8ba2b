"""ListOffsets, versions 1 to 11.

There are the latest offset (-1), the earliest (-2), the record with the largest timestamp (-3), and the first record at
or after a timestamp. The earliest local offset (-4) is the earliest, because there are no tiers. For the same reason
the latest tiered (-5) and the earliest pending upload (-6) have no answer. With read_committed, nothing above the last
stable offset is told.

With replica id -2 ("debugging") any replica tells the latest offset of its own log.

A leader that was replaced and does not know it may lack the record that is asked for. So a lookup by time that finds
nothing is only answered so after the metadata store has confirmed that this broker still leads (R9): once for all
partitions of the request. Kafka answers by the log that it has.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from log.batch import BatchHeader, Buffer, CorruptBatch
from log.disk import DiskFault, FileSlice
from log.laying import is_large
from log.time_search import max_timestamp, offset_for_timestamp, stored_payload
from service.broker.copies import DEBUGGING
from service.broker.in_sync import InSyncSets
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.reading import leader_epoch_error
from service.broker.session import Session
from service.ports import Env
from service.turns import COUNTED_A_TURN, breathe, counted, done_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
OFFSET_NOT_AVAILABLE_SINCE = 5
READ_COMMITTED = 1
CONSUMER = -1
LOOKED_UP_A_TURN = 50
"""How many partitions are answered in one turn of the loop. Each lookup by time has a turn of its own, because it may
look at so many headers and records that it takes a millisecond.
"""


Nothing = tuple[ListOffsetsPartitionResponse, Partition, int]
"""The answer that nothing was found, and the leader epoch in which it was looked for."""


@dataclass(frozen=True, slots=True)
class ListOffsetsParts:
    """The parts of the broker that an answer needs."""

    partitions: PartitionTable
    env: Env
    in_sync: InSyncSets
    time_lookups: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Each listener makes one lookup at a time: a lookup may unpack a large batch."""


async def handle(
    parts: ListOffsetsParts, session: Session, header: RequestHeader, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    topics, looked_up = [], 0
    nothing: list[Nothing] = []
    for topic in request.topics:
        looked_up += 1
        if looked_up % LOOKED_UP_A_TURN == 0:
            await breathe()
        twice = await _named_twice(topic)
        partitions = parts.partitions.topic(topic.name)
        answers = []
        for wanted in topic.partitions:
            looked_up += 1
            if looked_up % LOOKED_UP_A_TURN == 0:
                await breathe()
            partition = None if partitions is None else partitions.get(wanted.partition_index)
            if wanted.partition_index in twice:
                continue
            if partition is None:
                answers.append(_error(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            elif request.replica_id == DEBUGGING and wanted.timestamp == LATEST and not partition.offline:
                log = partition.log
                epoch = log.epochs.epoch_at(log.end_offset)
                answers.append(ListOffsetsPartitionResponse(wanted.partition_index, 0, -1, log.end_offset, epoch))
            elif error := leader_epoch_error(partition, wanted.current_leader_epoch):
                answers.append(_error(wanted, error))
            else:
                try:
                    answers.append(
                        await _answer(parts, session, partition, wanted, header.api_version, request, nothing)
                    )
                except (DiskFault, CorruptBatch) as failure:
                    answers.append(_error(wanted, partition.unreadable(failure)))
        answers.extend(ListOffsetsPartitionResponse(index, ErrorCode.INVALID_REQUEST) for index in twice)
        if answers:
            topics.append(ListOffsetsTopicResponse(topic.name, answers))
    if nothing:
        with session.waits():
            led = await parts.in_sync.led_until_now([(partition, epoch) for _, partition, epoch in nothing])
        for (answer, _, _), is_true in zip(nothing, led, strict=True):
            if not is_true:
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ListOffsetsResponse(topics=topics)


async def _named_twice(topic: ListOffsetsTopic) -> Collection[int]:
    """The partitions that the request names more than once."""
    named = topic.partitions
    if len(named) <= COUNTED_A_TURN and len({partition.partition_index for partition in named}) == len(named):
        return ()
    times_named = await done_in_turns(counted(partition.partition_index for partition in named))
    return {index: times for index, times in times_named.items() if times > 1}


def _error(wanted: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(wanted.partition_index, error)


def _not_yet(wanted: ListOffsetsPartition, version: int) -> ListOffsetsPartitionResponse:
    """The error while a new leader's high watermark is still below the offset that must be told."""
    known = version >= OFFSET_NOT_AVAILABLE_SINCE
    return _error(wanted, ErrorCode.OFFSET_NOT_AVAILABLE if known else ErrorCode.LEADER_NOT_AVAILABLE)


def _limit(partition: Partition, request: ListOffsetsRequest) -> int:
    """The offset below which the caller may see records."""
    if request.replica_id != CONSUMER:
        return partition.log.end_offset
    return partition.last_stable_offset if request.isolation_level == READ_COMMITTED else partition.high_watermark


async def _answer(
    parts: ListOffsetsParts,
    session: Session,
    partition: Partition,
    wanted: ListOffsetsPartition,
    version: int,
    request: ListOffsetsRequest,
    nothing: list[Nothing],
) -> ListOffsetsPartitionResponse:
    """The answer. If it says that nothing was found, which other brokers may know better, it is added to `nothing`."""
    index, timestamp, log = wanted.partition_index, wanted.timestamp, partition.log
    if version < SINCE_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        return _error(wanted, ErrorCode.UNSUPPORTED_VERSION)
    limit = _limit(partition, request)
    if timestamp == LATEST:
        if partition.is_catching_up:
            return _not_yet(wanted, version)
        return ListOffsetsPartitionResponse(index, 0, -1, limit, log.epochs.epoch_at(limit))
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return ListOffsetsPartitionResponse(index, 0, -1, log.start_offset, log.epochs.epoch_at(log.start_offset))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return ListOffsetsPartitionResponse(index, 0, -1, -1, -1)

    async def open_batch(stored: FileSlice, header: BatchHeader) -> Buffer:
        if header.codec == 0 and not is_large(header.size_bytes):
            return stored_payload(stored, header)
        return await stored.in_thread(parts.env.blocking, stored_payload, header)

    with (
        session.waits()
    ):  # Wait for its turn: thousands of lookups of a client that is gone must not come before another client's.
        await parts.time_lookups.acquire()
    try:
        await breathe()
        if error := leader_epoch_error(partition, wanted.current_leader_epoch):  # another broker may lead by now
            return _error(wanted, error)
        limit, leader_epoch = _limit(partition, request), partition.leader_epoch
        if timestamp == MAX_TIMESTAMP:
            found = await max_timestamp(log, limit, open_batch)
        else:
            found = await offset_for_timestamp(log, timestamp, limit, open_batch)
    finally:
        parts.time_lookups.release()
    if found is not None:
        return ListOffsetsPartitionResponse(index, 0, found.timestamp, found.offset, found.leader_epoch)
    if partition.is_catching_up:
        return _not_yet(wanted, version)
    answer = ListOffsetsPartitionResponse(index)
    if partition.is_replicated:
        nothing.append((answer, partition, leader_epoch))
    return answer
