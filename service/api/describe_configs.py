"""DescribeConfigs, versions 1 to 4 (3: types and documentation): topics, this broker, and what is set for all
brokers.

Keys come in the order of their names. Groups show the two settings that they have here, as the broker sets them for
all; loggers and client metrics have none.
"""

from collections.abc import Iterable, Iterator

from service.api.admin_answers import MALFORMED
from service.api.config_answers import ConfigEntry, describe_all_brokers, describe_broker, describe_topic
from service.broker.node import Broker
from service.broker.session import Session
from service.cluster.config_commands import ResourceType
from service.cluster.topic_commands import check_topic_name
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

GROUP_KEYS = {
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
}


class _Refused(Exception):
    def __init__(self, error: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def handle(
    broker: Broker, session: Session, header: RequestHeader, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        try:
            entries = _selected(_entries(broker, resource), resource.configuration_keys)
            configs = [_shown(entry, request) for entry in entries]
            error, message = ErrorCode.NONE, ""
        except _Refused as refused:
            configs, error, message = [], refused.error, refused.message
        kind, name = resource.resource_type, resource.resource_name
        results.append(DescribeConfigsResult(error, message, kind, name, configs))
    return DescribeConfigsResponse(results=results)


def _entries(broker: Broker, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            return _of_topic(broker, name)
        case ResourceType.BROKER:
            return _of_broker(broker, name)
        case ResourceType.GROUP:
            return _of_group(broker)
        case ResourceType.BROKER_LOGGER | ResourceType.CLIENT_METRICS:
            return ()
        case _:
            raise _Refused(ErrorCode.INVALID_REQUEST, MALFORMED)


def _of_topic(broker: Broker, name: str) -> Iterable[ConfigEntry]:
    if (problem := check_topic_name(name)) is not None:
        raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    topic = broker.metadata.image.topics.get(name)
    if topic is None:
        raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return describe_topic(broker, topic.config)


def _of_broker(broker: Broker, name: str) -> Iterable[ConfigEntry]:
    if not name:
        return describe_all_brokers(broker)
    try:
        number = int(name)
    except ValueError:
        message = f"Broker id must be an integer, but it is: {name}"
        raise _Refused(ErrorCode.INVALID_REQUEST, message) from None
    if number != broker.node_id:
        message = f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}"
        raise _Refused(ErrorCode.INVALID_REQUEST, message)
    return describe_broker(broker)


def _of_group(broker: Broker) -> Iterator[ConfigEntry]:
    of_broker = {entry.name: entry for entry in describe_broker(broker)}
    for name, key in GROUP_KEYS.items():
        entry = of_broker[key]
        yield ConfigEntry(name, entry.value, entry.source, False, entry.setting, entry.layers)


def _selected(entries: Iterable[ConfigEntry], keys: list[str] | None) -> Iterable[ConfigEntry]:
    return (entry for entry in entries if entry.name in keys) if keys else entries


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.layers if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        entry.name,
        entry.value,
        entry.read_only,
        entry.source,
        entry.sensitive,
        [DescribeConfigsSynonym(layer.name, layer.value, layer.source) for layer in synonyms],
        entry.setting.kind,
        entry.setting.doc if request.include_documentation else None,
    )
