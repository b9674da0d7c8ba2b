"""OffsetCommit, versions 2 to 10 (2-4: with a retention of its own, 6: leader epochs, 7: static members, 9: KIP-848,
10: topic ids).

Partitions that do not exist are refused one by one; the coordinator hears of the others only, and not at all if there
are none. Very many are committed OFFSETS_AT_ONCE at a time, fewer with long notes, and each time it is asked anew
whether the member may.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from functools import lru_cache

from log.ids import TopicId
from service.api.group_answers import (
    OFFSETS_AT_ONCE,
    OFFSETS_AT_ONCE_BYTES,
    Groups,
    answer_with,
    ask,
    error_code,
    offsets_in_turns,
)
from service.broker.session import Session
from service.cluster.image import Image, Topic
from service.cluster.metadata import ClusterMetadata
from service.groups.commands import CommitOffsets, CommitReply, OffsetToCommit
from service.turns import NAMED_A_TURN, in_turns
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

_new = tuple.__new__  # takes half the time of the class's own constructor

NO_ERROR = ErrorCode.NONE.value

_Refused = tuple[str, bytes, int, ErrorCode]


def handle(
    groups: Groups, metadata: ClusterMetadata, session: Session, header: RequestHeader, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    by_id = header.api_version >= TOPIC_IDS_SINCE
    offsets = _all_there(metadata.image, request, by_id=by_id)
    if offsets is None:
        return _commit_in_turns(groups, metadata, header, request, _wanted(metadata, request, by_id=by_id))

    def answer(reply: CommitReply | ErrorCode) -> OffsetCommitResponse:
        answers = _Answers()
        answers.note(offsets, reply)
        return OffsetCommitResponse(topics=list(answers.topics()))

    return answer_with(answer, groups, request.group_id, _command(header, request, offsets), CommitReply)


def _all_there(image: Image, request: OffsetCommitRequest, *, by_id: bool) -> tuple[OffsetToCommit, ...] | None:
    """The offsets of a request like most: so few that one turn is enough, and all of partitions that exist. None if it
    is another.
    """
    if len(request.topics) > OFFSETS_AT_ONCE:
        return None
    offsets: list[OffsetToCommit] = []
    room, of_group = OFFSETS_AT_ONCE_BYTES, len(request.group_id.encode())
    for wanted in request.topics:
        topic = _find(image, wanted, by_id=by_id)
        if topic is None or len(offsets) + len(wanted.partitions) > OFFSETS_AT_ONCE:
            return None
        name, topic_id, there = topic.name, topic.id, topic.partitions
        for each in wanted.partitions:
            index = each.partition_index
            if index not in there:
                return None
            note = each.committed_metadata
            room -= of_group + len(note.encode()) if note else of_group
            facts = each.committed_offset, each.committed_leader_epoch, note or ""
            offsets.append(_new(OffsetToCommit, (name, topic_id, index, *facts)))
    return tuple(offsets) or None if room >= 0 else None


async def _commit_in_turns(
    groups: Groups,
    metadata: ClusterMetadata,
    header: RequestHeader,
    request: OffsetCommitRequest,
    wanted: Iterator[OffsetToCommit | _Refused | None],
) -> OffsetCommitResponse:
    answers = _Answers()
    async for some in offsets_in_turns(wanted, request.group_id):
        # Others have had turns since these were looked up. A topic may have been deleted, or made again.
        image = metadata.image
        if offsets := answers.without_refused(_still_there(image, each) for each in some):
            command = _command(header, request, offsets)
            answers.note(offsets, await ask(groups, request.group_id, command, CommitReply))
    return OffsetCommitResponse(topics=[topic async for topic in in_turns(answers.topics(), NAMED_A_TURN)])


def _wanted(
    metadata: ClusterMetadata, request: OffsetCommitRequest, *, by_id: bool
) -> Iterator[OffsetToCommit | _Refused | None]:
    """The partitions, and None for each topic, so that very many topics without any take turns, too."""
    missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for wanted in request.topics:
        yield None
        topic = _find(metadata.image, wanted, by_id=by_id)
        for partition in wanted.partitions:
            index = partition.partition_index
            if topic is None:
                yield wanted.name, wanted.topic_id, index, missing
            elif index in topic.partitions:
                facts = partition.committed_offset, partition.committed_leader_epoch, partition.committed_metadata or ""
                yield _new(OffsetToCommit, (topic.name, topic.id, index, *facts))
            else:
                yield topic.name, topic.id, index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _still_there(image: Image, each: OffsetToCommit | _Refused | None) -> OffsetToCommit | _Refused | None:
    if type(each) is not OffsetToCommit or image.topic_by_id(TopicId(each.topic_id)) is not None:
        return each
    return each.topic, each.topic_id, each.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _command(header: RequestHeader, request: OffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]) -> CommitOffsets:
    return CommitOffsets(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        offsets,
        request.retention_time_ms,
        speaks_consumer_protocol=header.api_version >= CONSUMER_PROTOCOL_SINCE,
    )


def _find(image: Image, wanted: OffsetCommitRequestTopic, *, by_id: bool) -> Topic | None:
    if by_id:
        return image.topic_by_id(TopicId(wanted.topic_id))
    return image.topics.get(wanted.name)


@lru_cache(maxsize=10_000)
def _answer_of(partition: int, error: int) -> OffsetCommitResponsePartition:
    """Made once, because nearly all answers are alike. Nobody changes it."""
    return OffsetCommitResponsePartition(partition, error)


class _Answers:
    """The answer's topics, each once, in the order they were first spoken of."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, bytes], list[OffsetCommitResponsePartition]] = {}

    def without_refused(self, wanted: Iterable[OffsetToCommit | _Refused | None]) -> tuple[OffsetToCommit, ...]:
        """What the coordinator is to hear of; the rest is answered."""
        offsets: list[OffsetToCommit] = []
        for each in wanted:
            if type(each) is OffsetToCommit:
                offsets.append(each)
            elif each is not None:
                self._add(*each)
        return tuple(offsets)

    def note(self, offsets: tuple[OffsetToCommit, ...], reply: CommitReply | ErrorCode) -> None:
        if isinstance(reply, ErrorCode):
            errors: Iterable[int] = [reply] * len(offsets)
        elif reply.fault is not None:
            errors = [error_code(reply.fault)] * len(offsets)
        elif any(reply.faults):
            errors = map(error_code, reply.faults)
        else:
            errors = [NO_ERROR] * len(offsets)
        present_id, partitions = None, list[OffsetCommitResponsePartition]()
        for (topic, topic_id, partition, _, _, _), error in zip(offsets, errors, strict=True):
            if topic_id is not present_id:  # the next topic: finding the list of each takes longer than the rest
                present_id = topic_id
                partitions = self._topics.setdefault((topic, topic_id), [])
            partitions.append(_answer_of(partition, error))

    def _add(self, topic: str, topic_id: bytes, partition: int, error: int) -> None:
        self._topics.setdefault((topic, topic_id), []).append(OffsetCommitResponsePartition(partition, error))

    def topics(self) -> Iterator[OffsetCommitResponseTopic]:
        return (OffsetCommitResponseTopic(*name, partitions) for name, partitions in self._topics.items())
