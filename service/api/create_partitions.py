"""CreatePartitions, versions 0 to 3: adds partitions to topics. The caller says where they go, or else the broker
decides. A topic never loses partitions.
"""

from collections import Counter

from service.api.admin_answers import executed
from service.broker.internal_topics import INTERNAL_TOPICS, kept_from_clients
from service.broker.session import Session
from service.cluster.controller import Refusal
from service.cluster.metadata import ClusterMetadata
from service.cluster.topic_commands import CreatePartitions, MorePartitions
from service.turns import NAMED_A_TURN, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(
    metadata: ClusterMetadata, session: Session, header: RequestHeader, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    answers = []
    async for name, times in in_turns(times_named.items(), NAMED_A_TURN):
        if times > 1:
            answers.append(_result(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        elif name in INTERNAL_TOPICS:
            answers.append(_result(name, ErrorCode.INVALID_TOPIC_EXCEPTION, kept_from_clients(name)))
    wanted = [
        _wanted(topic)
        async for topic in in_turns(request.topics, NAMED_A_TURN)
        if times_named[topic.name] == 1 and topic.name not in INTERNAL_TOPICS
    ]
    results = await executed(metadata, CreatePartitions(tuple(wanted), request.validate_only))
    if isinstance(results, Refusal):
        error, message = results.error, results.message
        answers += [_result(topic.name, error, message) async for topic in in_turns(wanted, NAMED_A_TURN)]
    else:
        named = in_turns(results, NAMED_A_TURN)
        answers += [_result(result.name, result.error, result.message) async for result in named]
    return CreatePartitionsResponse(results=answers)


def _wanted(topic: CreatePartitionsTopic) -> MorePartitions:
    assignment = None if topic.assignments is None else tuple(tuple(one.broker_ids) for one in topic.assignments)
    return MorePartitions(topic.name, topic.count, assignment)


def _result(name: str, error: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name, error, message)
