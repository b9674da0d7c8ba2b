"""The internal topics, one row each: its name, its layout, the settings that always hold, and the rule by which a key
gets its partition. `InternalTopics` creates them when the first client looks for a coordinator, and knows which broker
leads a key.

What always holds: the partition of a key depends on the number of partitions, so an internal topic keeps the number it
was created with.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from log.config import LogConfig
from log.ids import TopicId
from service.cluster.election import MIN_IN_SYNC
from service.cluster.image import NO_LEADER, Topic
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.cluster.topic_commands import CreateTopics, NewTopic
from service.groups.partitioning import partition_for
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.settings.topic import SEGMENT_BYTES_MIN, log_config
from service.wire.error_codes import ErrorCode
from txn.branches import home_of

logger = logging.getLogger("oncelog.broker")

HTTP_KEY_PARTITIONS = 16
HTTP_KEY_BYTES_MAX = 64 << 20
"""The most bytes of a key's record, which has the places of all records of its request: more than the most records that
a request may have can need.
"""


class TopicLayout(NamedTuple):
    """How a topic is created. It gets fewer replicas if fewer brokers are alive."""

    partitions: int
    replicas: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """The topic in which one kind of coordinator keeps its records."""

    name: str
    kept: Callable[[BrokerConfig], Mapping[str, str]]
    """Settings that hold whatever is set for the topic or for all topics, and that no client may change. A topic that
    lost its oldest records would lose ids, groups, offsets and keys.
    """
    layout: Callable[[BrokerConfig], TopicLayout]
    home_of: Callable[[str], str] = str
    """The part of a key that decides which partition the key belongs to."""

    def partition_of(self, key: str, partitions: int) -> int:
        return partition_for(self.home_of(key), partitions)


def _segment_bytes(configured: int) -> str:
    """Kafka takes less for these topics than for any other topic; then they could not be made."""
    return str(max(configured, SEGMENT_BYTES_MIN))


def _group_layout(config: BrokerConfig) -> TopicLayout:
    settings = {"segment.bytes": _segment_bytes(config.offsets_topic_segment_bytes)}
    return TopicLayout(config.offsets_topic_num_partitions, config.offsets_topic_replication_factor, settings)


def _transaction_layout(config: BrokerConfig) -> TopicLayout:
    settings = {
        "segment.bytes": _segment_bytes(config.transaction_state_log_segment_bytes),
        MIN_IN_SYNC: str(config.transaction_state_log_min_isr),
        "unclean.leader.election.enable": "false",
    }
    return TopicLayout(
        config.transaction_state_log_num_partitions, config.transaction_state_log_replication_factor, settings
    )


def _http_key_layout(config: BrokerConfig) -> TopicLayout:
    return _transaction_layout(config)._replace(partitions=HTTP_KEY_PARTITIONS)


def _compacted(config: BrokerConfig) -> Mapping[str, str]:
    return {"cleanup.policy": "compact"}


def _kept_for_a_time(config: BrokerConfig) -> Mapping[str, str]:
    """No record goes before the time of its key is over, however large the topic is. The record of a key is never too
    large where its request is not.
    """
    return {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(config.http_idempotency_retention_ms),
        "retention.bytes": "-1",
        "max.message.bytes": str(HTTP_KEY_BYTES_MAX),
    }


GROUPS = InternalTopic("__consumer_offsets", _compacted, _group_layout)
TRANSACTIONS = InternalTopic("__transaction_state", _compacted, _transaction_layout, home_of)
HTTP_KEYS = InternalTopic("__http_idempotency", _kept_for_a_time, _http_key_layout)
INTERNAL_TOPICS = {topic.name: topic for topic in (GROUPS, TRANSACTIONS, HTTP_KEYS)}


def least_in_sync(config: BrokerConfig) -> dict[str, int]:
    """The lowest min.insync.replicas of each internal topic that has one of its own. A topic that was made when there
    were fewer brokers may have a lower one.
    """
    settings = {name: topic.layout(config).settings for name, topic in INTERNAL_TOPICS.items()}
    return {name: int(each[MIN_IN_SYNC]) for name, each in settings.items() if MIN_IN_SYNC in each}


def log_config_of(topic: Topic, config: BrokerConfig) -> LogConfig:
    """The settings for the logs of any topic, with what is kept of an internal one."""
    internal = INTERNAL_TOPICS.get(topic.name)
    return log_config(topic.config if internal is None else {**topic.config, **internal.kept(config)}, config)


class NodeAddress(NamedTuple):
    """The address of a broker, on the listener where the client asked."""

    node_id: int
    host: str
    port: int


class InternalTopics:
    def __init__(self, metadata: ClusterMetadata, config: BrokerConfig, env: Env) -> None:
        self._metadata = metadata
        self._config = config
        self._env = env
        self._being_made: set[str] = set()

    def coordinator_of(self, topic: InternalTopic, key: str, listener: str) -> NodeAddress | ErrorCode:
        """The broker that coordinates `key`; COORDINATOR_NOT_AVAILABLE while there is none, or the topic does not exist
        yet.
        """
        made = self._metadata.image.topics.get(topic.name)
        if made is None:
            self.bring_about(topic)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        state = made.partitions[topic.partition_of(key, len(made.partitions))]
        broker = self._metadata.image.brokers.get(state.leader) if state.leader != NO_LEADER else None
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is None or endpoint is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return NodeAddress(broker.id, endpoint.host, endpoint.port)

    @property
    def latest_coordinator_epoch(self) -> int:
        """The highest leader epoch of any transaction coordinator; 0 while there is none, as of a first leader."""
        topic = self._metadata.image.topics.get(TRANSACTIONS.name)
        return 0 if topic is None else max(state.leader_epoch for state in topic.partitions.values())

    def bring_about(self, topic: InternalTopic) -> None:
        if topic.name not in self._metadata.image.topics and topic.name not in self._being_made:
            self._being_made.add(topic.name)
            self._env.tasks.spawn(f"make {topic.name}", self._create(topic))

    async def _create(self, topic: InternalTopic) -> None:
        try:
            layout = topic.layout(self._config)
            replicas = min(layout.replicas, len(self._metadata.image.brokers))
            settings = {**layout.settings, **topic.kept(self._config), "compression.type": "producer"}
            new = NewTopic(
                topic.name, TopicId(self._env.unique()), layout.partitions, replicas, config=tuple(settings.items())
            )
            (result,) = await self._metadata.execute(CreateTopics((new,), new.partitions, new.replication_factor))
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                logger.error("%s can't be created: %s %s", topic.name, result.error.name, result.message)
        except MetadataLost as lost:
            logger.warning("%s can't be created now: %s", topic.name, lost)
        finally:
            self._being_made.discard(topic.name)


def kept_from_clients(topic: str) -> str:
    """The refusal when a client wants to create, widen or delete an internal topic. The partition of a key depends on
    the number of partitions. A coordinator that could not find its records would decide the same things again.
    """
    return f"'{topic}' is the memory of this cluster's coordinators: it is made when it is needed, and stays as it is."
