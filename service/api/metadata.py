"""Metadata, versions 0 to 13 (topic ids: in answers from 10, in requests from 12).

The answer has the brokers, and topics by name or id, or all topics: version 0 asks for all by an empty list, later ones
by null. A topic that does not exist is created with the broker's defaults if both sides allow it. Kafka answers
UNKNOWN_TOPIC_OR_PARTITION then, and the client asks again; here the answer waits for the topic and describes it.
Nothing is authorized yet, so the answer says that every operation is allowed.
"""

import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from log.ids import ZERO_TOPIC_ID, TopicId
from log.steps import done_at_once
from service.api.admin_answers import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, UNASKED, executed, leader_of, offline
from service.broker.internal_topics import INTERNAL_TOPICS, InternalTopics
from service.broker.session import Session
from service.cluster.controller import Refusal
from service.cluster.image import Image, PartitionState, Topic
from service.cluster.metadata import ClusterMetadata
from service.cluster.topic_commands import CreateTopics, NewTopic, check_topic_name
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns, now_or_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

logger = logging.getLogger("oncelog.topics")

REQUEST_IDS_SINCE = 12


@dataclass(frozen=True, slots=True)
class MetadataParts:
    """The parts of the broker that an answer needs."""

    metadata: ClusterMetadata
    config: BrokerConfig
    env: Env
    internal_topics: InternalTopics


def handle(
    parts: MetadataParts, session: Session, header: RequestHeader, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    topics = request.topics
    if topics and len(topics) > NAMED_A_TURN:
        return _in_turns(parts, session, header, request, topics)
    if topics is None or (header.api_version == 0 and not topics):
        return now_or_in_turns(_all(parts.metadata, session, request))
    checked = done_at_once(_checked(parts, header.api_version, request, topics))
    if isinstance(checked, ErrorCode):
        return done_at_once(_refused(checked, topics))
    if checked:
        return _after_creation(parts, session, request, topics, checked)
    return now_or_in_turns(_named(parts.metadata, session, request, topics))


async def _in_turns(
    parts: MetadataParts,
    session: Session,
    header: RequestHeader,
    request: MetadataRequest,
    topics: list[MetadataRequestTopic],
) -> MetadataResponse:
    """The same for very many topics."""
    checked = await done_in_turns(_checked(parts, header.api_version, request, topics))
    if isinstance(checked, ErrorCode):
        return await done_in_turns(_refused(checked, topics))
    if checked:
        return await _after_creation(parts, session, request, topics, checked)
    return await done_in_turns(_named(parts.metadata, session, request, topics))


def _refused(error: ErrorCode, topics: Iterable[MetadataRequestTopic]) -> Steps[MetadataResponse]:
    turn = Turn(NAMED_A_TURN)
    refused = []
    for topic in topics:
        if turn.is_over():
            yield
        refused.append(MetadataResponseTopic(error, topic.name or "", topic.topic_id))
    return MetadataResponse(topics=refused)


def _checked(
    parts: MetadataParts, version: int, request: MetadataRequest, topics: Iterable[MetadataRequestTopic]
) -> Steps[ErrorCode | list[str]]:
    """Why the request is malformed, or else the topics that are to be created, each once."""
    missing: dict[str, None] = {}
    creates = request.allow_auto_topic_creation and parts.config.auto_create_topics_enable
    known = parts.metadata.image.topics
    turn = Turn(NAMED_A_TURN)
    for topic in topics:
        if turn.is_over():
            yield
        name = topic.name
        if topic.topic_id != ZERO_TOPIC_ID:
            if version < REQUEST_IDS_SINCE:
                return ErrorCode.INVALID_REQUEST
        elif name is None:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        elif creates and name and name not in known and check_topic_name(name) is None:
            missing[name] = None
    return list(missing)


async def _after_creation(
    parts: MetadataParts,
    session: Session,
    request: MetadataRequest,
    topics: list[MetadataRequestTopic],
    missing: list[str],
) -> MetadataResponse:
    ordinary: list[NewTopic] = []
    async for name in in_turns(missing, NAMED_A_TURN):
        if name in INTERNAL_TOPICS:
            parts.internal_topics.bring_about(INTERNAL_TOPICS[name])
        else:
            ordinary.append(NewTopic(name, TopicId(parts.env.unique())))
    if ordinary:
        # A topic that could not be created is answered like any other unknown topic. Only the log tells why.
        config = parts.config
        command = CreateTopics(tuple(ordinary), config.num_partitions, config.default_replication_factor)
        results = await executed(parts.metadata, command)
        async for result in in_turns(() if isinstance(results, Refusal) else results, NAMED_A_TURN):
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                logger.warning("%s asked for topic %s: %s", session.host, result.name, result.message)
    return await done_in_turns(_named(parts.metadata, session, request, topics))


def _all(metadata: ClusterMetadata, session: Session, request: MetadataRequest) -> Steps[MetadataResponse]:
    describer = _Describer(metadata.image, session.listener)
    topics = []
    for topic in metadata.image.topics.values():
        topics.append((yield from describer.topic(topic)))
    return _answer(metadata, session, request, topics)


def _named(
    metadata: ClusterMetadata, session: Session, request: MetadataRequest, topics: Iterable[MetadataRequestTopic]
) -> Steps[MetadataResponse]:
    """Each topic once: first those that exist, then the others."""
    image = metadata.image
    turn = Turn(NAMED_A_TURN)
    describer = _Describer(image, session.listener)
    found: dict[str, MetadataResponseTopic] = {}
    unknown: dict[tuple[str | None, bytes], MetadataResponseTopic] = {}
    for asked in topics:
        if turn.is_over():
            yield
        if asked.topic_id != ZERO_TOPIC_ID:
            topic = image.topic_by_id(TopicId(asked.topic_id))
            name, error = None, ErrorCode.UNKNOWN_TOPIC_ID
        else:
            name = asked.name or ""
            topic = image.topics.get(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None:
            if name is not None and check_topic_name(name) is not None:
                error = ErrorCode.INVALID_TOPIC_EXCEPTION
            internal = name is not None and name in INTERNAL_TOPICS
            unknown[name, asked.topic_id] = MetadataResponseTopic(error, name, asked.topic_id, internal)
        elif topic.name not in found:
            found[topic.name] = yield from describer.topic(topic)
    return _answer(metadata, session, request, [*found.values(), *unknown.values()])


class _Describer:
    """Describes topics of one image to one caller. Many partitions have the same state, so what follows from a state is
    computed once.
    """

    def __init__(self, image: Image, listener: str) -> None:
        self._image = image
        self._listener = listener
        self._turn = Turn(NAMED_A_TURN)
        self._known: dict[PartitionState, tuple[int, int, int, list[int], list[int], list[int]]] = {}

    def topic(self, topic: Topic) -> Steps[MetadataResponseTopic]:
        partitions = []
        for index, state in topic.partitions.items():
            if self._turn.is_over():
                yield
            error, leader, epoch, replicas, isr, missing = self._known.get(state) or self._follows(state)
            partitions.append(MetadataResponsePartition(error, index, leader, epoch, replicas, isr, missing))
        return MetadataResponseTopic(0, topic.name, topic.id, topic.name in INTERNAL_TOPICS, partitions)

    def _follows(self, state: PartitionState) -> tuple[int, int, int, list[int], list[int], list[int]]:
        leader, error = leader_of(self._image, state, self._listener)
        missing = offline(self._image, state)
        follows = int(error), leader, state.leader_epoch, list(state.replicas), list(state.isr), missing
        self._known[state] = follows
        return follows


def _answer(
    metadata: ClusterMetadata, session: Session, request: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    image = metadata.image
    brokers = []
    for member in image.brokers.values():
        if (endpoint := member.endpoint(session.listener)) is not None:
            brokers.append(MetadataResponseBroker(member.id, endpoint.host, endpoint.port, member.rack))
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    return MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=_whom_to_ask(image, metadata.broker_id),
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else UNASKED
        ),
    )


def _whom_to_ask(image: Image, own: int) -> int:
    """The broker that clients ask for changes: the controller. While there is none, this one, because every broker can
    carry them out. Clients with librdkafka that are told of no controller ask again after minutes only.
    """
    return own if image.controller_id not in image.brokers and own in image.brokers else image.controller_id
