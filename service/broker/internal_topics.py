"""The internal topics: made when the first client looks for a coordinator, with the settings a coordinator's
memory needs; and which broker leads a key in
them.
"""

import logging
from typing import NamedTuple

from log.ids import TopicId
from service.cluster.image import NO_LEADER
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.cluster.topic_commands import CreateTopics, NewTopic
from service.groups.partitioning import partition_for
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.wire.error_codes import ErrorCode
from txn.branches import home_of

logger = logging.getLogger("oncelog.broker")

GROUP_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
IDEMPOTENCY_TOPIC = "__http_idempotency"
INTERNAL_TOPICS = (GROUP_TOPIC, TRANSACTION_TOPIC, IDEMPOTENCY_TOPIC)
KEPT_SETTINGS = {
    GROUP_TOPIC: {"cleanup.policy": "compact"},
    TRANSACTION_TOPIC: {"cleanup.policy": "compact"},
    IDEMPOTENCY_TOPIC: {"cleanup.policy": "compact,delete"},
}
"""What no client may change: a coordinator's memory that loses its oldest records loses ids, groups and offsets."""
IDEMPOTENCY = 100
"""A kind of key that no client may ask for."""
TOPIC_OF_KEY_TYPE = {0: GROUP_TOPIC, 1: TRANSACTION_TOPIC, IDEMPOTENCY: IDEMPOTENCY_TOPIC}
IDEMPOTENCY_PARTITIONS = 16


class Address(NamedTuple):
    """Where a broker is reached, on the listener that was asked."""

    node_id: int
    host: str
    port: int


class InternalTopics:
    def __init__(self, metadata: ClusterMetadata, config: BrokerConfig, env: Env) -> None:
        self._metadata = metadata
        self._config = config
        self._env = env
        self._being_made: set[str] = set()

    def coordinator_of(self, key_type: int, key: str, listener: str) -> Address | ErrorCode:
        """The broker that coordinates `key`. COORDINATOR_NOT_AVAILABLE while there is none, or no topic yet."""
        name = TOPIC_OF_KEY_TYPE[key_type]
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            self._make(name)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        home = home_of(key) if name == TRANSACTION_TOPIC else key
        state = topic.partitions[partition_for(home, len(topic.partitions))]
        broker = self._metadata.image.brokers.get(state.leader) if state.leader != NO_LEADER else None
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is None or endpoint is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Address(broker.id, endpoint.host, endpoint.port)

    @property
    def latest_coordinator_epoch(self) -> int:
        """The highest leader epoch of any transaction coordinator; while there is none, 0: the first one's."""
        topic = self._metadata.image.topics.get(TRANSACTION_TOPIC)
        return 0 if topic is None else max(state.leader_epoch for state in topic.partitions.values())

    def _make(self, name: str) -> None:
        if name not in self._being_made:
            self._being_made.add(name)
            self._env.tasks.spawn(f"make {name}", self._create(name))

    async def _create(self, name: str) -> None:
        try:
            new = self._new_topic(name)
            (result,) = await self._metadata.execute(CreateTopics((new,), new.partitions, new.replication_factor))
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                logger.error("%s can't be created: %s %s", name, result.error.name, result.message)
        except MetadataLost as lost:
            logger.warning("%s can't be created now: %s", name, lost)
        finally:
            self._being_made.discard(name)

    def _new_topic(self, name: str) -> NewTopic:
        config, alive = self._config, len(self._metadata.image.brokers)
        if name == GROUP_TOPIC:
            partitions, replicas = config.offsets_topic_num_partitions, config.offsets_topic_replication_factor
            settings = {"segment.bytes": str(config.offsets_topic_segment_bytes)}
        elif name == IDEMPOTENCY_TOPIC:
            partitions, replicas = IDEMPOTENCY_PARTITIONS, config.transaction_state_log_replication_factor
            settings = {
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "min.insync.replicas": str(min(config.transaction_state_log_min_isr, alive)),
                "retention.ms": str(config.http_idempotency_retention_ms),
                "unclean.leader.election.enable": "false",
            }
        else:
            partitions = config.transaction_state_log_num_partitions
            replicas = config.transaction_state_log_replication_factor
            settings = {
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "min.insync.replicas": str(min(config.transaction_state_log_min_isr, alive)),
                "unclean.leader.election.enable": "false",
            }
        settings |= {**KEPT_SETTINGS[name], "compression.type": "producer"}
        return NewTopic(
            name, TopicId(self._env.unique()), partitions, min(replicas, alive), config=tuple(settings.items())
        )


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


def kept_from_clients(topic: str) -> str:
    """Why no client makes, widens or deletes an internal topic. A key belongs to a partition by their number, and what
    a coordinator has forgotten it decides again.
    """
    return f"'{topic}' is the memory of this cluster's coordinators: it is made when it is needed, and stays as it is."
