"""DescribeConfigs, versions 1 to 4 (3: types and documentation): topics, groups, this broker, and values for all
brokers.

Keys come in the order of their names. Every group has settings, whether it exists or not. Loggers and client metrics
have none.
"""

from collections.abc import Iterable

from service.api.admin_answers import MALFORMED
from service.api.config_answers import (
    ConfigEntry,
    describe_all_brokers,
    describe_broker,
    describe_group,
    describe_topic,
)
from service.broker.internal_topics import INTERNAL_TOPICS
from service.broker.session import Session
from service.cluster.config_commands import ResourceType
from service.cluster.election import MIN_IN_SYNC, required
from service.cluster.metadata import ClusterMetadata
from service.cluster.topic_commands import check_topic_name
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, counted, done_in_turns, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

SHOWN_A_TURN = 100
"""How many settings are shown in one turn of the loop. Each takes ten to twenty microseconds."""


class _Refused(Exception):
    def __init__(self, error: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.error = error
        self.message = message


async def handle(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    session: Session,
    header: RequestHeader,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse:
    results = []
    # Each once: otherwise a short request could ask for an answer of any length.
    wanted = {
        (resource.resource_type, resource.resource_name): resource
        async for resource in in_turns(request.resources, NAMED_A_TURN)
    }
    async for resource in in_turns(wanted.values(), at_once=1):
        try:
            configs = await done_in_turns(_configs(metadata, config, resource, request))
            error, message = ErrorCode.NONE, ""
        except _Refused as refused:
            configs, error, message = [], refused.error, refused.message
        kind, name = resource.resource_type, resource.resource_name
        results.append(DescribeConfigsResult(error, message, kind, name, configs))
    return DescribeConfigsResponse(results=results)


def _configs(
    metadata: ClusterMetadata, config: BrokerConfig, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> Steps[list[DescribeConfigsResourceResult]]:
    turn = Turn(SHOWN_A_TURN)
    wanted = yield from counted(resource.configuration_keys or ())
    configs = []
    for entry in _entries(metadata, config, resource):
        if turn.is_over():
            yield
        if not wanted or entry.name in wanted:
            configs.append(_shown(entry, request))
    return configs


def _entries(
    metadata: ClusterMetadata, config: BrokerConfig, resource: DescribeConfigsResource
) -> Iterable[ConfigEntry]:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            return _of_topic(metadata, config, name)
        case ResourceType.BROKER:
            return _of_broker(metadata, config, name)
        case ResourceType.GROUP:
            return _of_group(metadata, config, name)
        case ResourceType.BROKER_LOGGER:
            return _of_loggers(metadata, name)
        case ResourceType.CLIENT_METRICS:
            return ()
        case _:
            raise _Refused(ErrorCode.INVALID_REQUEST, MALFORMED)


def _of_topic(metadata: ClusterMetadata, config: BrokerConfig, name: str) -> Iterable[ConfigEntry]:
    if (problem := check_topic_name(name)) is not None:
        raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    topic = metadata.image.topics.get(name)
    if topic is None:
        raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    own = topic.config
    if name in INTERNAL_TOPICS and MIN_IN_SYNC in own:
        # What counts, as long as the topic has fewer replicas than it is to have (`RequireInSync`). Otherwise tools
        # list it as one that refuses writes.
        own = {**own, MIN_IN_SYNC: str(required(topic, int(own[MIN_IN_SYNC])))}
    return describe_topic(metadata, config, own)


def _of_broker(metadata: ClusterMetadata, config: BrokerConfig, name: str) -> Iterable[ConfigEntry]:
    if not name:
        return describe_all_brokers(metadata)
    if (number := _broker_number(name)) != metadata.broker_id:
        message = f"Unexpected broker id, expected {metadata.broker_id} or empty string, but received {number}"
        raise _Refused(ErrorCode.INVALID_REQUEST, message)
    return describe_broker(metadata, config)


def _of_loggers(metadata: ClusterMetadata, name: str) -> Iterable[ConfigEntry]:
    if not name:
        raise _Refused(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if (number := _broker_number(name)) != metadata.broker_id:
        raise _Refused(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {metadata.broker_id} but received {number}"
        )
    return ()


def _broker_number(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        message = f"Broker id must be an integer, but it is: {name}"
        raise _Refused(ErrorCode.INVALID_REQUEST, message) from None


def _of_group(metadata: ClusterMetadata, config: BrokerConfig, name: str) -> Iterable[ConfigEntry]:
    if not name:
        raise _Refused(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    return describe_group(metadata, config, name)


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.layers if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        entry.name,
        entry.value,
        entry.read_only,
        entry.source,
        entry.sensitive,
        [
            DescribeConfigsSynonym(layer.name, None if entry.sensitive else layer.value, layer.source)
            for layer in synonyms
        ],
        entry.setting.kind,
        entry.setting.doc if request.include_documentation else None,
    )
