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
from service.turns import NAMED_A_TURN, Steps, Turn, counted, done_in_turns, in_turns
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
    seen = metadata.image
    times_named = await done_in_turns(counted(topic.name for topic in request.topics))
    answers = []
    async for name, times in in_turns(times_named.items(), NAMED_A_TURN):
        if times > 1:
            answers.append(_result(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        elif name in INTERNAL_TOPICS:
            answers.append(_result(name, ErrorCode.INVALID_TOPIC_EXCEPTION, kept_from_clients(name)))
    wanted = await done_in_turns(_wanted(request.topics, times_named))
    results = await executed(metadata, CreatePartitions(tuple(wanted), request.validate_only, seen))
    if isinstance(results, Refusal):
        error, message = results.error, results.message
        answers += [_result(topic.name, error, message) async for topic in in_turns(wanted, NAMED_A_TURN)]
    else:
        named = in_turns(results, NAMED_A_TURN)
        answers += [_result(result.name, result.error, result.message) async for result in named]
    return CreatePartitionsResponse(results=answers)


def _wanted(topics: list[CreatePartitionsTopic], times_named: Counter[str]) -> Steps[list[MorePartitions]]:
    """What is asked for topics that are named once."""
    turn = Turn(NAMED_A_TURN)
    wanted = []
    for topic in topics:
        if turn.is_over():
            yield
        if times_named[topic.name] > 1 or topic.name in INTERNAL_TOPICS:
            continue
        assignment: list[tuple[int, ...]] | None = None
        if topic.assignments is not None:
            assignment = []
            for one in topic.assignments:
                if turn.is_over(1 + len(one.broker_ids)):
                    yield
                assignment.append(tuple(one.broker_ids))
        wanted.append(MorePartitions(topic.name, topic.count, None if assignment is None else tuple(assignment)))
    return wanted


def _result(name: str, error: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name, error, message)
