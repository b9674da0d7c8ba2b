"""OffsetDelete, version 0: deletes offsets of topics that the group does not subscribe to. If the group is empty,
offsets of all topics may be deleted.
"""

from collections.abc import Iterator

from service.api.group_answers import Groups, ask, error_code, offsets_in_turns
from service.broker.session import Session
from service.cluster.metadata import ClusterMetadata
from service.groups.commands import DeleteOffsets, DeleteOffsetsReply
from service.turns import NAMED_A_TURN, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(
    groups: Groups, metadata: ClusterMetadata, session: Session, header: RequestHeader, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    answers: dict[str, list[OffsetDeleteResponsePartition]] = {}
    async for some in offsets_in_turns(_named(request), request.group_id):
        existing: dict[str, list[int]] = {}
        for name, index in filter(None, some):
            topic = metadata.image.topics.get(name)
            if topic is not None and index in topic.partitions:
                existing.setdefault(name, []).append(index)
            else:
                error = OffsetDeleteResponsePartition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                answers.setdefault(name, []).append(error)
        command = DeleteOffsets(request.group_id, tuple((name, tuple(found)) for name, found in existing.items()))
        reply = await ask(groups, request.group_id, command, DeleteOffsetsReply)
        if isinstance(reply, ErrorCode):
            return OffsetDeleteResponse(error_code=reply)
        if reply.fault is not None:
            return OffsetDeleteResponse(error_code=error_code(reply.fault))
        for topic_name, partitions in reply.topics:
            deleted = [OffsetDeleteResponsePartition(index, error_code(fault)) for index, fault in partitions]
            answers.setdefault(topic_name, []).extend(deleted)
    topics = [OffsetDeleteResponseTopic(*answer) async for answer in in_turns(answers.items(), NAMED_A_TURN)]
    return OffsetDeleteResponse(topics=topics)


def _named(request: OffsetDeleteRequest) -> Iterator[tuple[str, int] | None]:
    """The partitions, and None for a topic without any, so that very many of those take turns, too."""
    for topic in request.topics:
        if not topic.partitions:
            yield None
        for partition in topic.partitions:
            yield topic.name, partition.partition_index
