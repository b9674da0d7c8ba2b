"""DeleteRecords, versions 0 to 2: moves the log's start up to an offset (-1: to the high watermark).

The logs of all named partitions begin there first. Then the request waits until every other replica that may lead next
(in sync or eligible) has deleted the records, too: the next leader must not bring anything back. If one of them is
down, the answer about its partition is a timeout. The leader has deleted by then, and the client may ask again.

A log may be busy for long: it is flushed, or its cleaned files take their place. That holds up no other, and the answer
about it is a timeout, too. Unlike above, the leader may have deleted nothing then.
"""

import asyncio
from dataclasses import dataclass

from log.disk import DiskFault
from log.ids import TopicPartition
from log.removal import raise_start_offset
from service.broker.internal_topics import INTERNAL_TOPICS
from service.broker.partition import Partition, PartitionLost
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.ports import Env
from service.turns import NAMED_A_TURN, Steps, Turn, breathe, done_in_turns
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
SLOW_S = 0.05
"""The longest time for which one log delays the next."""
LEAST_S = 0.5
"""The logs of this broker have so long in any case. Without that, a client that does not want to wait for others could
delete nothing.
"""


@dataclass(slots=True)
class Deletion:
    """What a request asks of one partition, and what became of it."""

    place: TopicPartition
    wanted: DeleteRecordsPartition
    result: DeleteRecordsPartitionResult
    raising: asyncio.Task[None] | None = None
    partition: Partition | None = None
    """Set when its log begins there."""
    elsewhere: asyncio.Future[None] | None = None
    """The deletion on the other replicas, if that is not done yet."""

    def refused(self, error: ErrorCode) -> None:
        self.result.low_watermark, self.result.error_code = NO_LOW_WATERMARK, error


async def handle(
    env: Env, partitions: PartitionTable, session: Session, header: RequestHeader, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    deadline = began_s + request.timeout_ms / 1000
    deadline_here = max(deadline, began_s + LEAST_S)
    deletions: list[Deletion] = []
    topics = await done_in_turns(_named(request, deletions))
    turn = Turn(NAMED_A_TURN)
    try:
        for one in deletions:
            if turn.is_over():
                await breathe()
            left_s = deadline_here - loop.time()
            if _served(partitions, one) is None:
                continue
            if left_s <= 0:
                one.refused(ErrorCode.REQUEST_TIMED_OUT)
                continue
            one.raising = env.tasks.spawn(f"deletion in {one.place}", _raise_start(partitions, one))
            await asyncio.wait([one.raising], timeout=min(SLOW_S, left_s))
        slow = [one.raising for one in deletions if one.raising is not None and not one.raising.done()]
        if slow:
            await asyncio.wait(slow, timeout=max(deadline_here - loop.time(), 0))
        for one in deletions:
            if turn.is_over():
                await breathe()
            await _end(one, deadline)
    finally:  # also if the client is gone
        _forget(deletions)
    return DeleteRecordsResponse(topics=topics)


def _named(request: DeleteRecordsRequest, deletions: list[Deletion]) -> Steps[list[DeleteRecordsTopicResult]]:
    """The results, which are not filled in yet. What is to be done for each is added to `deletions`."""
    turn = Turn(NAMED_A_TURN)
    topics = []
    for topic in request.topics:
        if turn.is_over():
            yield
        results = []
        for wanted in topic.partitions:
            if turn.is_over():
                yield
            results.append(result := DeleteRecordsPartitionResult(wanted.partition_index, NO_LOW_WATERMARK))
            deletions.append(Deletion(TopicPartition(topic.name, wanted.partition_index), wanted, result))
        topics.append(DeleteRecordsTopicResult(topic.name, results))
    return topics


def _served(partitions: PartitionTable, one: Deletion) -> Partition | None:
    """The partition, if its log may begin where the client wants. Otherwise the deletion is refused."""
    partition = partitions.get(one.place)
    if partition is None:
        one.refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    elif one.place.topic in INTERNAL_TOPICS:
        one.refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
    elif not partition.is_leading:
        one.refused(partition.not_leading.error)
    elif "delete" not in partition.log.config.cleanup_policy:
        one.refused(ErrorCode.POLICY_VIOLATION)
    elif partition.is_catching_up:  # an earlier leader may have known of a higher high watermark
        one.refused(ErrorCode.LEADER_NOT_AVAILABLE)
    elif not HIGH_WATERMARK <= one.wanted.offset <= partition.high_watermark:
        one.refused(ErrorCode.OFFSET_OUT_OF_RANGE)
    else:
        return partition
    return None


async def _raise_start(partitions: PartitionTable, one: Deletion) -> None:
    if (partition := _served(partitions, one)) is None:  # something has changed before this began
        return None
    offset = partition.high_watermark if one.wanted.offset == HIGH_WATERMARK else one.wanted.offset
    try:
        await raise_start_offset(partition.log, offset)
    except DiskFault as fault:
        partition.harmed(fault)
        return one.refused(ErrorCode.KAFKA_STORAGE_ERROR)
    if partition.log.gone:  # the topic was deleted during the wait
        return one.refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        one.elsewhere = partition.deleted(offset)
    except PartitionLost as lost:
        return one.refused(lost.error)
    one.partition = partition
    return None


async def _end(one: Deletion, deadline: float) -> None:
    if one.raising is None:
        return None  # refused
    if not one.raising.done():
        return one.refused(ErrorCode.REQUEST_TIMED_OUT)
    one.raising.result()
    if one.partition is None:
        return None  # refused since
    try:
        if one.elsewhere is not None:
            async with asyncio.timeout_at(deadline):
                await one.elsewhere
    except PartitionLost as lost:
        one.refused(lost.error)
    except TimeoutError:
        one.refused(ErrorCode.REQUEST_TIMED_OUT)
    else:
        one.result.low_watermark = one.partition.log.start_offset
    return None


def _forget(deletions: list[Deletion]) -> None:
    """Nobody waits any more for what is not done."""
    for one in deletions:
        if one.raising is not None:
            one.raising.cancel()
        if one.elsewhere is not None and not one.elsewhere.cancel() and not one.elsewhere.cancelled():
            one.elsewhere.exception()
