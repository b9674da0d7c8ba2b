"""OffsetFetch, versions 1 to 10 (2: all topics, 7: stable offsets only, 8: several groups, 9: KIP-848, 10: topic ids).

A partition without a committed offset has offset -1 and no error. Asked for stable offsets, one that waits for a
transaction is UNSTABLE_OFFSET_COMMIT. Up to version 7 each partition carries an error of the whole group too: version
1 has no other place for it, and aiokafka (0.14), which looks nowhere else, takes the absence of partitions for the
absence of offsets and reads everything again from the start, while the coordinator is merely loading.

Who asks for stable offsets goes on where they say, and wants to process nothing twice. So they are confirmed by the
metadata store: a coordinator that was replaced, and does not know it, may have older ones (R9).

NOT_COORDINATOR is said only while another broker is known to coordinate the group. A member of librdkafka (2.15) asks
for no offsets again after it, and reads nothing for as long as its group lets it stay. So a broker that may not answer
for now (the metadata store is away) says COORDINATOR_LOAD_IN_PROGRESS, after which everybody asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress

from log.ids import TopicId
from log.steps import done_at_once
from service.api.group_answers import OFFSETS_AT_ONCE, Groups, answer_with, ask, error_code
from service.broker.in_sync import InSyncSets
from service.broker.partition import Partition
from service.broker.session import Session
from service.broker.shard import NotCoordinator
from service.cluster.image import Image
from service.cluster.metadata import ClusterMetadata
from service.groups.commands import (
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    NameOffsets,
    OffsetNamesReply,
    PartitionsAsked,
)
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns, slices_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

BATCHES_SINCE = 8
TOPIC_IDS_SINCE = 10
NO_TOPIC_ID = bytes(16)
NO_OFFSET = -1


def handle(
    groups: Groups,
    metadata: ClusterMetadata,
    in_sync: InSyncSets,
    session: Session,
    header: RequestHeader,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    if request.require_stable and groups.is_replicated:
        return _fetch_confirmed(groups, metadata, in_sync, session, header.api_version, request)
    return _fetch_all(groups, metadata, header.api_version, request)


async def _fetch_confirmed(
    groups: Groups,
    metadata: ClusterMetadata,
    in_sync: InSyncSets,
    session: Session,
    version: int,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse:
    names = [group.group_id for group in request.groups] if version >= BATCHES_SINCE else [request.group_id]
    led: dict[int, tuple[Partition, int]] = {}
    with suppress(NotCoordinator):  # the image has no topic of the coordinators
        async for name in in_turns(names, NAMED_A_TURN):
            index = groups.partition_index(name)
            if index not in led and (shard := groups.at(index)) is not None:
                led[index] = shard.partition, shard.partition.leader_epoch
        answer = _fetch_all(groups, metadata, version, request)
        if isinstance(answer, Awaitable):
            answer = await answer
        with session.waits():
            if not led or all(await in_sync.led_until_now(list(led.values()))):
                return answer
    if version >= BATCHES_SINCE:
        refused = [
            OffsetFetchResponseGroup(name, error_code=_refusal(groups, metadata, name, ErrorCode.NOT_COORDINATOR))
            async for name in in_turns(names, NAMED_A_TURN)
        ]
        return OffsetFetchResponse(groups=refused)
    error = _refusal(groups, metadata, request.group_id, ErrorCode.NOT_COORDINATOR)
    wanted = await done_in_turns(_as_group(request))
    told = await done_in_turns(_refused_topics(wanted.topics or [], error))
    return await done_in_turns(_of_one_group(OffsetFetchResponseGroup(request.group_id, told, error)))


def _refusal(groups: Groups, metadata: ClusterMetadata, group_id: str, error: ErrorCode) -> ErrorCode:
    """What is said of a group whose coordinator is not here, or refuses with `error`."""
    if error is ErrorCode.NOT_COORDINATOR and groups.may_be_at(metadata.broker_id, group_id):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error


def _fetch_all(
    groups: Groups, metadata: ClusterMetadata, version: int, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    topics: Sequence[OffsetFetchRequestTopics | OffsetFetchRequestTopic] | None = request.topics
    if version >= BATCHES_SINCE:
        topics = request.groups[0].topics if len(request.groups) == 1 else None
    if (
        topics is not None
        and len(topics) <= OFFSETS_AT_ONCE
        and sum([1 + len(topic.partition_indexes) for topic in topics]) <= OFFSETS_AT_ONCE
    ):
        group = request.groups[0] if version >= BATCHES_SINCE else done_at_once(_as_group(request))
        return _fetch_few(groups, metadata, version, group, request.require_stable)
    return _fetch_in_turns(groups, metadata, version, request)


def _as_group(request: OffsetFetchRequest) -> Steps[OffsetFetchRequestGroup]:
    """The request of a version with one group in the words of later ones."""
    if request.topics is None:
        return OffsetFetchRequestGroup(request.group_id, topics=None)
    turn = Turn(NAMED_A_TURN)
    topics: list[OffsetFetchRequestTopics] = []
    for topic in request.topics:
        topics.append(OffsetFetchRequestTopics(topic.name, NO_TOPIC_ID, topic.partition_indexes))
        if turn.is_over():
            yield
    return OffsetFetchRequestGroup(request.group_id, topics=topics)


def _of_one_group(found: OffsetFetchResponseGroup) -> Steps[OffsetFetchResponse]:
    """The answer in the words of the versions with one group."""
    turn = Turn(NAMED_A_TURN)
    topics: list[OffsetFetchResponseTopic] = []
    for topic in found.topics:
        if turn.is_over():
            yield
        partitions: list[OffsetFetchResponsePartition] = []
        for each in topic.partitions:
            if turn.is_over():
                yield
            partitions.append(
                OffsetFetchResponsePartition(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata,
                    each.error_code,
                )
            )
        topics.append(OffsetFetchResponseTopic(topic.name, partitions))
    return OffsetFetchResponse(topics=topics, error_code=found.error_code)


def _fetch_few(
    groups: Groups,
    metadata: ClusterMetadata,
    version: int,
    wanted: OffsetFetchRequestGroup,
    require_stable: bool,
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    topics = wanted.topics or []
    asked, refused = done_at_once(_asked(metadata.image, version, topics))

    def answer(reply: FetchReply | ErrorCode) -> OffsetFetchResponse:
        if isinstance(reply, ErrorCode) or reply.fault is not None:
            if isinstance(reply, ErrorCode):
                error: int = _refusal(groups, metadata, wanted.group_id, reply)
            else:
                error = error_code(reply.fault)
            if version < BATCHES_SINCE:
                told = done_at_once(_refused_topics(topics, error))
                return done_at_once(_of_one_group(OffsetFetchResponseGroup(wanted.group_id, told, error)))
            return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(wanted.group_id, error_code=error)])
        found = [
            OffsetFetchResponseTopics(topic.topic, topic.topic_id, _partitions(topic.offsets)) for topic in reply.topics
        ]
        if refused:
            found += done_at_once(_refused_topics(refused, ErrorCode.UNKNOWN_TOPIC_ID))
        group = OffsetFetchResponseGroup(wanted.group_id, found)
        return OffsetFetchResponse(groups=[group]) if version >= BATCHES_SINCE else done_at_once(_of_one_group(group))

    command = FetchOffsets(wanted.group_id, wanted.member_id, wanted.member_epoch, tuple(asked), require_stable)
    return answer_with(answer, groups, wanted.group_id, command, FetchReply)


async def _fetch_in_turns(
    groups: Groups, metadata: ClusterMetadata, version: int, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    if version >= BATCHES_SINCE:
        # Each once: a short request must not grow into an answer of any length.
        wanted_by_id = {group.group_id: group async for group in in_turns(request.groups, NAMED_A_TURN)}
        answers = [
            await _fetch(groups, metadata, version, group, request.require_stable)
            async for group in in_turns(wanted_by_id.values(), at_once=1)
        ]
        return OffsetFetchResponse(groups=answers)
    wanted = await done_in_turns(_as_group(request))
    group = await _fetch(groups, metadata, version, wanted, request.require_stable)
    if group.error_code:
        group.topics = await done_in_turns(_refused_topics(wanted.topics or [], group.error_code))
    return await done_in_turns(_of_one_group(group))


async def _fetch(
    groups: Groups, metadata: ClusterMetadata, version: int, wanted: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    by_id = version >= TOPIC_IDS_SINCE
    refused: list[OffsetFetchRequestTopics] = []
    if wanted.topics is None:
        named = await ask(groups, wanted.group_id, NameOffsets(wanted.group_id), OffsetNamesReply)
        if isinstance(named, ErrorCode):
            error = _refusal(groups, metadata, wanted.group_id, named)
            return OffsetFetchResponseGroup(wanted.group_id, error_code=error)
        asked = list(named.topics)
    else:
        asked, refused = await done_in_turns(_asked(metadata.image, version, wanted.topics))
    found: list[list[FetchedOffset]] = [[] for _ in asked]
    async for some in in_turns(_few_at_a_time(asked), at_once=1):
        pieces = tuple(piece for _, piece in some)
        command = FetchOffsets(wanted.group_id, wanted.member_id, wanted.member_epoch, pieces, require_stable)
        reply = await ask(groups, wanted.group_id, command, FetchReply)
        if isinstance(reply, ErrorCode):
            error = _refusal(groups, metadata, wanted.group_id, reply)
            return OffsetFetchResponseGroup(wanted.group_id, error_code=error)
        if reply.fault is not None:
            return OffsetFetchResponseGroup(wanted.group_id, error_code=error_code(reply.fault))
        for (place, _), fetched in zip(some, reply.topics, strict=True):
            found[place] += fetched.offsets
    topics = []
    async for topic, offsets in in_turns(zip(asked, found, strict=True), NAMED_A_TURN):
        partitions: list[OffsetFetchResponsePartitions] = []
        async for slice_of_it in slices_in_turns(offsets, NAMED_A_TURN):
            partitions += _partitions(slice_of_it)
        topics.append(OffsetFetchResponseTopics(topic.topic, topic.topic_id, partitions))
    if wanted.topics is None:
        topics = _still_those(metadata.image, topics, by_id=by_id)
    topics += await done_in_turns(_refused_topics(refused, ErrorCode.UNKNOWN_TOPIC_ID))
    return OffsetFetchResponseGroup(wanted.group_id, topics)


def _asked(
    image: Image, version: int, topics: list[OffsetFetchRequestTopics]
) -> Steps[tuple[list[PartitionsAsked], list[OffsetFetchRequestTopics]]]:
    """What the coordinator is asked, and the topics whose ids nobody has."""
    turn = Turn(NAMED_A_TURN)
    asked: list[PartitionsAsked] = []
    refused: list[OffsetFetchRequestTopics] = []
    for topic in topics:
        if turn.is_over():
            yield
        name = _name_of(image, topic) if version >= TOPIC_IDS_SINCE else topic.name
        if name is None:
            refused.append(topic)
        else:
            present = image.topics.get(name)
            topic_id = NO_TOPIC_ID if present is None else present.id
            asked.append(PartitionsAsked(name, topic_id, tuple(topic.partition_indexes)))
    return asked, refused


def _few_at_a_time(asked: list[PartitionsAsked]) -> Iterator[list[tuple[int, PartitionsAsked]]]:
    """As many as may be looked up in one turn, and at which place of `asked` they are; nothing, once, of nothing."""
    some: list[tuple[int, PartitionsAsked]] = []
    room = OFFSETS_AT_ONCE
    for place, topic in enumerate(asked):
        for at in range(0, max(len(topic.partitions), 1), OFFSETS_AT_ONCE):
            piece = topic.partitions[at : at + OFFSETS_AT_ONCE]
            if some and len(piece) > room:
                yield some
                some, room = [], OFFSETS_AT_ONCE
            some.append((place, topic._replace(partitions=piece)))
            room -= max(len(piece), 1)
    yield some


def _still_those(
    image: Image, topics: list[OffsetFetchResponseTopics], *, by_id: bool
) -> list[OffsetFetchResponseTopics]:
    """Without the topics that were made again since their names were asked for: what was found is of the former ones.
    One that is gone has no id to be named by.
    """
    known = ((topic, image.topics.get(topic.name)) for topic in topics)
    return [topic for topic, facts in known if (not by_id if facts is None else facts.id == topic.topic_id)]


def _name_of(image: Image, topic: OffsetFetchRequestTopics) -> str | None:
    found = image.topic_by_id(TopicId(topic.topic_id))
    return None if found is None else found.name


def _partitions(fetched: Iterable[FetchedOffset]) -> list[OffsetFetchResponsePartitions]:
    return [
        OffsetFetchResponsePartitions(
            partition, offset, leader_epoch, metadata, 0 if fault is None else error_code(fault)
        )
        for partition, offset, leader_epoch, metadata, fault in fetched
    ]


def _refused_topics(topics: list[OffsetFetchRequestTopics], error: int) -> Steps[list[OffsetFetchResponseTopics]]:
    turn = Turn(NAMED_A_TURN)
    refused = []
    for topic in topics:
        if turn.is_over():
            yield
        partitions = []
        for index in topic.partition_indexes:
            if turn.is_over():
                yield
            partitions.append(OffsetFetchResponsePartitions(index, NO_OFFSET, error_code=error))
        refused.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
    return refused
