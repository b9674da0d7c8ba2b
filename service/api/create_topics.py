"""CreateTopics, versions 2 to 7 (5: the configuration in the answer, 7: topic ids in the answer).

Topics are independent of each other: of very many, TOPICS_A_COMMIT are created at a time. A name that comes twice is
refused each time. `validate_only` checks everything and creates nothing. The request's timeout is not used: an answer
waits for the metadata store's commits.
"""

from collections import Counter
from collections.abc import Container

from log.ids import TopicId
from service.api.admin_answers import executed
from service.api.config_answers import describe_topic
from service.broker.internal_topics import INTERNAL_TOPICS, kept_from_clients
from service.broker.session import Session
from service.cluster.controller import Refusal
from service.cluster.metadata import ClusterMetadata
from service.cluster.topic_commands import MAX_NEW_PARTITIONS, CreateTopics, NewTopic, TopicResult
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, counted, done_in_turns, in_turns, slices_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

A_FRESH_ID, DESCRIBED_AT_ONCE = 3, 10
TOPICS_A_COMMIT = 500
"""The most topics of a request that are created in one commit: all brokers make a commit known in one turn."""


async def handle(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    env: Env,
    session: Session,
    header: RequestHeader,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse:
    times_named = await done_in_turns(counted(topic.name for topic in request.topics))
    internal = [name for name in INTERNAL_TOPICS if name in times_named and name not in metadata.image.topics]
    once = await done_in_turns(_once(request.topics, times_named, internal))
    answers: list[CreatableTopicResult] = []
    room = MAX_NEW_PARTITIONS
    async for some in slices_in_turns(once, TOPICS_A_COMMIT):
        command = CreateTopics(
            tuple(await done_in_turns(_new(some, env))),
            config.num_partitions,
            config.default_replication_factor,
            request.validate_only,
            room,
        )
        results = await executed(metadata, command)
        if isinstance(results, Refusal):
            answers += [_refused(topic.name, results.error, results.message) for topic in some]
            continue
        room -= sum(len(result.topic.partitions) for result in results if result.topic is not None)
        answers += [_result(metadata, config, result) async for result in in_turns(results, DESCRIBED_AT_ONCE)]
    async for name, times in in_turns(times_named.items(), NAMED_A_TURN):
        if times > 1:
            answers.append(_refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    for name in internal:
        if times_named[name] == 1:
            answers.append(_refused(name, ErrorCode.INVALID_TOPIC_EXCEPTION, kept_from_clients(name)))
    return CreateTopicsResponse(topics=answers)


def _once(
    topics: list[CreatableTopic], times_named: Counter[str], internal: Container[str]
) -> Steps[list[CreatableTopic]]:
    turn = Turn(NAMED_A_TURN)
    once = []
    for topic in topics:
        if turn.is_over():
            yield
        if times_named[topic.name] == 1 and topic.name not in internal:
            once.append(topic)
    return once


def _new(topics: list[CreatableTopic], env: Env) -> Steps[list[NewTopic]]:
    """The topics with fresh ids."""
    turn = Turn(NAMED_A_TURN)
    made = []
    for topic in topics:
        if turn.is_over(A_FRESH_ID):
            yield
        assignment = []
        for one in topic.assignments:
            if turn.is_over(1 + len(one.broker_ids)):
                yield
            assignment.append((one.partition_index, tuple(one.broker_ids)))
        configs = []
        for config in topic.configs:
            if turn.is_over():
                yield
            configs.append((config.name, config.value))
        wanted = topic.num_partitions, topic.replication_factor
        made.append(NewTopic(topic.name, TopicId(env.unique()), *wanted, tuple(assignment), tuple(configs)))
    return made


def _refused(name: str, error: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=error, error_message=message)


def _result(metadata: ClusterMetadata, config: BrokerConfig, result: TopicResult) -> CreatableTopicResult:
    topic = result.topic
    if topic is None:
        return _refused(result.name, result.error, result.message)
    configs = [
        CreatableTopicConfigs(entry.name, entry.value, False, entry.source, entry.sensitive)
        for entry in describe_topic(metadata, config, topic.config)
    ]
    replicas = len(topic.partitions[0].replicas)
    return CreatableTopicResult(
        topic.name,
        topic.id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=replicas,
        configs=configs,
    )
