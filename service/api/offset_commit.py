"""OffsetCommit, versions 2 to 10 (2-4: with a retention of its own, 6: leader epochs, 7: static members, 9: KIP-848,
10: topic ids).

Partitions that do not exist are refused one by one; the coordinator hears of the others only, and not at all if there
are none. Very many are committed OFFSETS_AT_ONCE at a time, and each time it is asked anew whether the member may.
"""

from collections.abc import Iterator

from log.ids import TopicId
from service.api.group_answers import OFFSETS_AT_ONCE, ask, error_code
from service.api.turns import slices_in_turns
from service.broker.node import Broker
from service.broker.session import Session
from service.cluster.image import Topic
from service.groups.commands import CommitOffsets, CommitReply, OffsetToCommit
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

CONSUMER_PROTOCOL_SINCE = 9
TOPIC_IDS_SINCE = 10

_Refused = tuple[str, bytes, int, ErrorCode]


async def handle(
    broker: Broker, session: Session, header: RequestHeader, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    by_id = header.api_version >= TOPIC_IDS_SINCE
    answers = _Answers()
    async for some in slices_in_turns(_wanted(broker, request, by_id=by_id), OFFSETS_AT_ONCE):
        offsets: list[OffsetToCommit] = []
        for each in some:
            if isinstance(each, OffsetToCommit):
                offsets.append(each)
            else:
                answers.add(*each)
        if offsets:
            errors = await _commit(broker, header, request, tuple(offsets))
            for offset, code in zip(offsets, errors, strict=True):
                answers.add(offset.topic, offset.topic_id, offset.partition, code)
    return OffsetCommitResponse(topics=answers.topics())


def _wanted(broker: Broker, request: OffsetCommitRequest, *, by_id: bool) -> Iterator[OffsetToCommit | _Refused]:
    missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for wanted in request.topics:
        topic = _find(broker, wanted, by_id=by_id)
        for partition in wanted.partitions:
            index = partition.partition_index
            if topic is None:
                yield wanted.name, wanted.topic_id, index, missing
            elif index in topic.partitions:
                yield OffsetToCommit(
                    topic.name,
                    topic.id,
                    index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                )
            else:
                yield topic.name, topic.id, index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _commit(
    broker: Broker, header: RequestHeader, request: OffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
) -> list[int]:
    """An error for each offset."""
    command = CommitOffsets(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        offsets,
        request.retention_time_ms,
        speaks_consumer_protocol=header.api_version >= CONSUMER_PROTOCOL_SINCE,
    )
    reply = await ask(broker.groups, request.group_id, command, CommitReply)
    if isinstance(reply, ErrorCode):
        return [reply] * len(offsets)
    if reply.fault is not None:
        return [error_code(reply.fault)] * len(offsets)
    return [error_code(fault) for fault in reply.faults]


def _find(broker: Broker, wanted: OffsetCommitRequestTopic, *, by_id: bool) -> Topic | None:
    if by_id:
        return broker.image.topic_by_id(TopicId(wanted.topic_id))
    return broker.image.topics.get(wanted.name)


class _Answers:
    """The answer's topics, each once, in the order they were first spoken of."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, bytes], list[OffsetCommitResponsePartition]] = {}

    def add(self, topic: str, topic_id: bytes, partition: int, error: int) -> None:
        self._topics.setdefault((topic, topic_id), []).append(OffsetCommitResponsePartition(partition, error))

    def topics(self) -> list[OffsetCommitResponseTopic]:
        return [OffsetCommitResponseTopic(*name, partitions) for name, partitions in self._topics.items()]
