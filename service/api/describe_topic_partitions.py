"""DescribeTopicPartitions, version 0: partitions of many topics, page by page.

Topics come in the order of their names. A page has at least one partition, and at most as many as the caller's limit
and max.request.partition.size.limit allow. If more follow, it ends with a cursor.
"""

from collections.abc import Awaitable

from service.api.admin_answers import TOPIC_OPERATIONS, leader_of, offline
from service.broker.internal_topics import INTERNAL_TOPICS
from service.broker.session import Session
from service.cluster.image import Image, Topic
from service.cluster.metadata import ClusterMetadata
from service.cluster.topic_commands import check_topic_name
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, now_or_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def handle(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    session: Session,
    header: RequestHeader,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse | Awaitable[DescribeTopicPartitionsResponse]:
    return now_or_in_turns(_described(metadata.image, config, session, request))


def _described(
    image: Image, config: BrokerConfig, session: Session, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    turn = Turn(NAMED_A_TURN)
    asked = [topic.name for topic in request.topics]
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        refused = []
        for name in asked:
            if turn.is_over():
                yield
            refused.append(DescribeTopicPartitionsResponseTopic(ErrorCode.INVALID_REQUEST, name))
        return DescribeTopicPartitionsResponse(topics=refused)
    room = max(1, min(request.response_partition_limit, config.max_request_partition_size_limit))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in sorted(dict.fromkeys(asked or image.topics)):
        if turn.is_over():
            yield
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if room == 0:
            return _page(topics, name, first)
        topic = image.topics.get(name)
        if topic is None:
            topics.append(_unknown(name))
            continue
        indexes = [index for index in topic.partitions if index >= first]
        topics.append((yield from _topic(image, topic, indexes[:room], session, turn)))
        if len(indexes) > room:
            return _page(topics, name, indexes[room])
        room -= len(indexes)
    return DescribeTopicPartitionsResponse(topics=topics)


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic], next_topic: str, next_index: int
) -> DescribeTopicPartitionsResponse:
    cursor = DescribeTopicPartitionsResponseCursor(next_topic, next_index)
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    invalid = check_topic_name(name) is not None
    error = ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeTopicPartitionsResponseTopic(
        error, name, is_internal=name in INTERNAL_TOPICS, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _topic(
    image: Image, topic: Topic, indexes: list[int], session: Session, turn: Turn
) -> Steps[DescribeTopicPartitionsResponseTopic]:
    partitions = []
    for index in indexes:
        if turn.is_over():
            yield
        state = topic.partitions[index]
        leader, error = leader_of(image, state, session.listener)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error,
                index,
                leader,
                state.leader_epoch,
                list(state.replicas),
                list(state.isr),
                eligible_leader_replicas=list(state.eligible),
                last_known_elr=list(state.last_known),
                offline_replicas=offline(image, state),
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        0, topic.name, topic.id, topic.name in INTERNAL_TOPICS, partitions, TOPIC_OPERATIONS
    )
