"""DeleteRecords, versions 0 to 2: moves the log's start up to an offset (-1: to the high watermark).

The request is answered when every other replica that may lead next (in sync or eligible) has deleted the records, too:
the next leader must not bring anything back. If one of them is down, the request times out. The leader has deleted by
then, and the client may ask again.
"""

import asyncio

from log.disk import DiskFault
from log.ids import TopicPartition
from log.removal import raise_start_offset
from service.broker.internal_topics import INTERNAL_TOPICS
from service.broker.partition import PartitionLost
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.turns import NAMED_A_TURN, Turn
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


async def handle(
    partitions: PartitionTable, session: Session, header: RequestHeader, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    topics = []
    deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1000
    turn = Turn(NAMED_A_TURN)
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            results.append(await _delete(partitions, topic.name, wanted, deadline))
            if turn.is_over():
                await asyncio.sleep(0)
        if turn.is_over():
            await asyncio.sleep(0)
        topics.append(DeleteRecordsTopicResult(topic.name, results))
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    partitions: PartitionTable, topic: str, wanted: DeleteRecordsPartition, deadline: float
) -> DeleteRecordsPartitionResult:
    index = wanted.partition_index
    partition = partitions.get(TopicPartition(topic, index))
    if partition is None:
        return _error(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic in INTERNAL_TOPICS:
        return _error(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not partition.is_leading:
        return _error(index, partition.not_leading.error)
    if "delete" not in partition.log.config.cleanup_policy:
        return _error(index, ErrorCode.POLICY_VIOLATION)
    if partition.is_catching_up:
        return _error(
            index, ErrorCode.LEADER_NOT_AVAILABLE
        )  # an earlier leader may have known of a higher high watermark
    offset = partition.high_watermark if wanted.offset == HIGH_WATERMARK else wanted.offset
    if not 0 <= offset <= partition.high_watermark:
        return _error(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    try:
        await raise_start_offset(partition.log, offset)
    except DiskFault as fault:
        partition.folder.fail(fault)
        return _error(index, ErrorCode.KAFKA_STORAGE_ERROR)
    if partition.log.gone:  # the topic was deleted during the wait
        return _error(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        if (elsewhere := partition.deleted(offset)) is not None:
            async with asyncio.timeout_at(deadline):
                await elsewhere
    except PartitionLost as lost:
        return _error(index, lost.error)
    except TimeoutError:
        return _error(index, ErrorCode.REQUEST_TIMED_OUT)
    return DeleteRecordsPartitionResult(index, partition.log.start_offset)


def _error(index: int, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(index, NO_LOW_WATERMARK, error)
