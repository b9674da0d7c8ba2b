"""Decides about the dynamic configuration of topics, brokers and groups, in both forms: all of a resource's values at
once (AlterConfigs), or single changes (IncrementalAlterConfigs).

Each resource of a command succeeds or fails by itself. The checks, their order and their messages are Kafka's (4.3).
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from service.cluster.controller import DECIDED_A_TURN, ItemRefused, MetadataDecision
from service.cluster.election import MIN_IN_SYNC, least_in_sync, required
from service.cluster.image import (
    ALL_BROKERS,
    NO_CONFIG,
    Image,
    StoredConfig,
    broker_config_key,
    encode_config,
    encode_topic,
    group_config_key,
)
from service.cluster.topic_commands import changed_topic, check_topic_name
from service.settings.broker import BrokerConfig, broker_setting
from service.settings.group import check_group_config
from service.settings.setting import (
    BYTES_OF_ONE,
    MAX_BYTES,
    MAX_SETTINGS,
    ConfigError,
    ConfigType,
    Mode,
    Status,
    check_room,
    settings_bytes,
    split_list,
)
from service.settings.topic import TOPIC_SETTINGS, check_topic_config
from service.stores.port import Create, Op, Put
from service.turns import Steps, Turn
from service.wire.error_codes import ErrorCode

_ListOf = Callable[[str], tuple[str, ...] | None]
"""The value that a list key has if nothing is set; None if the key is no list."""


class ResourceType(IntEnum):
    """Kafka's kinds of things that have a configuration, by their numbers on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = tuple(int(operation) for operation in Operation)


@dataclass(frozen=True, slots=True)
class ConfigChange:
    key: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """Changes to one resource. With `replace_all` a key that is not named goes back to its default (AlterConfigs)."""

    kind: int
    name: str
    changes: tuple[ConfigChange, ...]
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class ResourceResult:
    kind: int
    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """`config` is the configuration of the broker that decides. A change that appends to a list appends to the value
    that holds, which may be a static value of that broker. `kept` has, by topic, the settings that may only be
    left alone or set to this value, and `least` the lowest min.insync.replicas; `times_named` how often the request
    names each resource. With `expected`, settings change only if their version is one of these.

    If an answer was lost, what this command set may have been changed since, by somebody who was told so, or the topic
    been made again. So it is repeated only where the settings are those that were `seen` before. Otherwise the reply is
    the error that lets the caller look, and ask again.
    """

    resources: tuple[ResourceChange, ...]
    config: BrokerConfig
    node_id: int
    kept: Mapping[str, Mapping[str, str]]
    least: Mapping[str, int]
    times_named: Mapping[tuple[int, str], int]
    validate_only: bool = False
    expected: Collection[str] | None = None
    seen: Image | None = None

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[list[ResourceResult]]]:
        turn = Turn(DECIDED_A_TURN)
        results: list[ResourceResult] = []
        ops: list[Op] = []
        for resource in self.resources:
            if turn.is_over(self._work(resource, image)):
                yield
            try:
                if self.times_named[resource.kind, resource.name] > 1:
                    raise ItemRefused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                _check_changes(resource)
                changes = self._alter(resource, image)
                if changes or not retried:
                    self._check_version(image, resource, retried=retried)
            except ItemRefused as refused:
                results.append(ResourceResult(resource.kind, resource.name, refused.error, refused.message))
                continue
            results.append(ResourceResult(resource.kind, resource.name))
            ops += changes
        return MetadataDecision(results, () if self.validate_only else tuple(ops))

    def _check_version(self, image: Image, resource: ResourceChange, *, retried: bool) -> None:
        version = "" if self.expected is None else version_of(image, resource.kind, resource.name)
        is_expected = self.expected is None or version in self.expected
        if retried and not (is_expected and self._is_as_seen(image, resource)):
            message = "The settings may have been changed as asked, and were changed again since."
            raise ItemRefused(ErrorCode.REQUEST_TIMED_OUT, message)
        if not is_expected:
            raise ItemRefused(ErrorCode.INVALID_UPDATE_VERSION, f"The settings are of version {version} now.")

    def _is_as_seen(self, image: Image, resource: ResourceChange) -> bool:
        if self.seen is None:
            return False
        match resource.kind:
            case ResourceType.TOPIC:
                before, now = self.seen.topics.get(resource.name), image.topics[resource.name]
                return before is not None and (before.id, before.version) == (now.id, now.version)
            case ResourceType.GROUP:
                return self.seen.group_configs.get(resource.name) == image.group_configs.get(resource.name)
            case _:
                whose = self._whose(resource.name)
                return self.seen.broker_config(whose) == image.broker_config(whose)

    @staticmethod
    def _work(resource: ResourceChange, image: Image) -> int:
        """How much there is to read, those settings included that don't change."""
        count = len(resource.changes)
        if count > MAX_SETTINGS:
            return 1
        size = sum(len(change.value or "") for change in resource.changes)
        if resource.kind == ResourceType.TOPIC and (topic := image.topics.get(resource.name)) is not None:
            size += settings_bytes(topic.config)
        return 1 + count + size // BYTES_OF_ONE

    def _alter(self, resource: ResourceChange, image: Image) -> tuple[Op, ...]:
        match resource.kind:
            case ResourceType.TOPIC:
                return self._alter_topic(resource, image)
            case ResourceType.BROKER:
                return self._alter_broker(resource, image)
            case ResourceType.GROUP:
                return self._alter_group(resource, image)
            case ResourceType.CLIENT_METRICS | ResourceType.BROKER_LOGGER:
                kind = ResourceType(resource.kind).name
                raise ItemRefused(ErrorCode.INVALID_REQUEST, f"Resources of type {kind} can't be configured here.")
            case _:
                raise ItemRefused(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.kind}")

    def _alter_topic(self, resource: ResourceChange, image: Image) -> tuple[Op, ...]:
        if not resource.name:
            raise ItemRefused(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if (problem := check_topic_name(resource.name)) is not None:
            raise ItemRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        topic = image.topics.get(resource.name)
        present = topic.config if topic is not None else {}
        values = _changed(resource, present, self._list_of_topic)
        try:
            check_topic_config(values)
        except ConfigError as error:
            raise ItemRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
        if topic is None:
            message = f"The topic '{resource.name}' does not exist."
            raise ItemRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        if values == topic.config:
            return ()
        for key, value in self.kept.get(topic.name, {}).items():
            if values.get(key) not in (value, topic.config.get(key)):
                raise ItemRefused(ErrorCode.INVALID_CONFIG, f"The {key} of topic '{topic.name}' stays {value}.")
        # Lower than this it would be raised again (`RequireInSync`). Without one it gets that one.
        least = required(topic, self.least.get(topic.name, 0))
        if (asked := values.get(MIN_IN_SYNC)) not in (None, topic.config.get(MIN_IN_SYNC)) and int(asked) < least:
            message = f"The {MIN_IN_SYNC} of topic '{topic.name}' is {least} or higher: the brokers are configured so."
            raise ItemRefused(ErrorCode.INVALID_CONFIG, message)
        return changed_topic(topic, encode_topic(topic.id, len(topic.partitions), values))

    def _alter_broker(self, resource: ResourceChange, image: Image) -> tuple[Op, ...]:
        whose = self._whose(resource.name)
        stored = image.broker_config(whose)
        _check_dynamic(resource, cluster_wide=whose == ALL_BROKERS)
        values = _changed(resource, stored.values, self._list_of_broker)
        try:
            check_room(values)
            for name, value in values.items():
                broker_setting(name).parse(value)
        except ConfigError as error:
            raise ItemRefused(ErrorCode.INVALID_REQUEST, str(error)) from error
        if values == stored.values:
            return ()
        return _store(broker_config_key(whose), values, stored)

    def _alter_group(self, resource: ResourceChange, image: Image) -> tuple[Op, ...]:
        if not resource.name:
            raise ItemRefused(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        stored = image.group_configs.get(resource.name, NO_CONFIG)
        values = _changed(resource, stored.values, lambda key: None)
        try:
            check_group_config(values, self.config)
        except ConfigError as error:
            raise ItemRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
        return () if values == stored.values else _store(group_config_key(resource.name), values, stored)

    def _whose(self, name: str) -> str:
        if not name:
            return ALL_BROKERS
        try:
            broker_id = int(name)
        except ValueError:
            raise ItemRefused(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
        if broker_id != self.node_id:
            message = f"Unexpected broker id, expected {self.node_id}, but received {name}"
            raise ItemRefused(ErrorCode.INVALID_REQUEST, message)
        return str(broker_id)

    def _list_of_topic(self, key: str) -> tuple[str, ...] | None:
        """The value that a list key has if nothing is set for the topic; None if the key is no list."""
        setting = TOPIC_SETTINGS.get(key)
        if setting is None or setting.kind is not ConfigType.LIST:
            return None
        for synonym in setting.synonyms:
            return self._list_of_broker(synonym.name)
        return tuple(setting.default)

    def _list_of_broker(self, key: str) -> tuple[str, ...] | None:
        setting = broker_setting(key)
        if setting.kind is ConfigType.UNKNOWN:
            raise ItemRefused(ErrorCode.INVALID_CONFIG, f"Unknown config name: {key}")
        if setting.kind is not ConfigType.LIST or setting.status is not Status.IMPLEMENTED:
            return None
        return tuple(getattr(self.config, setting.attribute) or ())


@dataclass(frozen=True, slots=True)
class RequireInSync:
    """Raise the min.insync.replicas of each topic that has a lower one. The reply is the number of topics that changed.

    A partition never requires more than it has replicas. So this can be set before the topic gets its replicas.
    """

    least: Mapping[str, int]

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[int]:
        ops: list[Op] = []
        low = [
            topic
            for name, least in self.least.items()
            if (topic := image.topics.get(name)) is not None and least_in_sync(topic, 0) < least
        ]
        for topic in low:
            settings = {**topic.config, MIN_IN_SYNC: str(self.least[topic.name])}
            ops += changed_topic(topic, encode_topic(topic.id, len(topic.partitions), settings))
        return MetadataDecision(len(low), tuple(ops))


def version_of(image: Image, kind: int, name: str) -> str:
    """The version of what is set for a topic, a group, a broker, or (without a name) for all brokers. It is made of the
    settings themselves: a topic that was deleted and made again has the versions of the former one.
    """
    values: Mapping[str, str]
    match kind:
        case ResourceType.TOPIC:
            values = image.topics[name].config
        case ResourceType.GROUP:
            values = image.group_configs.get(name, NO_CONFIG).values
        case _:
            values = image.broker_config(name or ALL_BROKERS).values
    return hashlib.sha256(encode_config(dict(sorted(values.items())))).hexdigest()[:16]


def _store(key: str, values: Mapping[str, str], stored: StoredConfig) -> tuple[Op, ...]:
    """Settings that are taken away leave their key: if it was made again it would count anew, and a broker with an old
    image would overwrite what was set since.
    """
    if stored == NO_CONFIG:
        return (Create(key, encode_config(values)),)
    return (Put(key, encode_config(values), stored.version),)


def _check_changes(resource: ResourceChange) -> None:
    if len(resource.changes) > MAX_SETTINGS:
        raise ItemRefused(ErrorCode.INVALID_REQUEST, f"More than {MAX_SETTINGS} settings of one resource.")
    if sum(len(change.key) + len(change.value or "") for change in resource.changes) > MAX_BYTES:
        raise ItemRefused(ErrorCode.INVALID_REQUEST, f"More than {MAX_BYTES} bytes of settings of one resource.")
    keys = [change.key for change in resource.changes]
    if len(set(keys)) < len(keys):
        raise ItemRefused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [change.key for change in resource.changes if change.value is None and change.operation != Operation.DELETE]
    if nulls:
        raise ItemRefused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    for change in resource.changes:
        if change.operation not in _OPERATIONS:
            raise ItemRefused(ErrorCode.INVALID_REQUEST, f"Unknown operation type {change.operation}")


def _check_dynamic(resource: ResourceChange, *, cluster_wide: bool) -> None:
    for change in resource.changes:
        setting = broker_setting(change.key)
        if setting.mode is Mode.READ_ONLY:
            raise ItemRefused(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{change.key}]")
        if cluster_wide and setting.mode is Mode.PER_BROKER:
            message = (
                f"Cannot update these configs at default cluster level, broker id must be specified: [{change.key}]"
            )
            raise ItemRefused(ErrorCode.INVALID_REQUEST, message)


def _changed(resource: ResourceChange, present: Mapping[str, str], list_of: _ListOf) -> dict[str, str]:
    values = {} if resource.replace_all else dict(present)
    for key, operation, value in ((change.key, change.operation, change.value or "") for change in resource.changes):
        match operation:
            case Operation.SET:
                values[key] = value
            case Operation.DELETE:
                values.pop(key, None)
            case _:
                default = list_of(key)
                if default is None:
                    name = Operation(operation).name
                    message = f"Can't {name} to key {key} because its type is not LIST."
                    raise ItemRefused(ErrorCode.INVALID_CONFIG, message)
                items = split_list(values[key]) if key in values else default
                named = dict.fromkeys(split_list(value))
                if operation == Operation.APPEND:
                    items = tuple(dict.fromkeys((*items, *named)))
                else:
                    items = tuple(item for item in items if item not in named)
                values[key] = ",".join(items)
    return values
