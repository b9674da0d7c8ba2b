"""OffsetDelete, version 0: offsets of topics that the group does not subscribe to (or of any, while it is empty) go."""

from service.api.group_answers import ask, error_code
from service.broker.node import Broker
from service.broker.session import Session
from service.groups.commands import DeleteOffsets, DeleteOffsetsReply
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(
    broker: Broker, session: Session, header: RequestHeader, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    answers: dict[str, list[OffsetDeleteResponsePartition]] = {}
    existing: list[tuple[str, tuple[int, ...]]] = []
    for wanted in request.topics:
        topic = broker.image.topics.get(wanted.name)
        known = {} if topic is None else topic.partitions
        indexes = [partition.partition_index for partition in wanted.partitions]
        found = tuple(index for index in indexes if index in known)
        if found:
            existing.append((wanted.name, found))
        for index in indexes:
            if index not in known:
                error = OffsetDeleteResponsePartition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                answers.setdefault(wanted.name, []).append(error)
    command = DeleteOffsets(request.group_id, tuple(existing))
    reply = await ask(broker, request.group_id, command, DeleteOffsetsReply)
    if isinstance(reply, ErrorCode):
        return OffsetDeleteResponse(error_code=reply)
    if reply.fault is not None:
        return OffsetDeleteResponse(error_code=error_code(reply.fault))
    for topic_name, partitions in reply.topics:
        deleted = [OffsetDeleteResponsePartition(index, error_code(fault)) for index, fault in partitions]
        answers.setdefault(topic_name, []).extend(deleted)
    return OffsetDeleteResponse(topics=[OffsetDeleteResponseTopic(*answer) for answer in answers.items()])
