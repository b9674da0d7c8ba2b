"""Every API on one page: its versions, what answers it, of which part of the broker, and who may ask.

What always holds: ApiVersions tells exactly this table, and the door lets nothing else in. A version that Kafka
calls unstable is not offered.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from service.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    conditional_produce,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_branches,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_branches,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from service.api.rules import Rule, anybody, brokers, producers_and_brokers, readers_and_brokers
from service.broker.node import Broker
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.messages.versions import NEWEST_IS_UNSTABLE, VERSIONS, ApiKey

logger = logging.getLogger("oncelog.door")

Part = Callable[[Broker], Any]


def the_broker(broker: Broker) -> Broker:
    return broker


GROUPS: Part = attrgetter("groups")
INTERNAL_TOPICS: Part = attrgetter("internal_topics")
METADATA: Part = attrgetter("metadata")
MOVES: Part = attrgetter("moves")
PARTITIONS: Part = attrgetter("partitions")
TRANSACTIONS: Part = attrgetter("transactions")

Handler = Callable[..., Any]
Row = tuple[Handler, Part, Rule] | tuple[Handler, Part, Rule, Callable[[Any], Any]]
HANDLED: dict[ApiKey, Row] = {
    ApiKey.PRODUCE: (produce.handle, the_broker, anybody),
    ApiKey.FETCH: (fetch.handle, the_broker, readers_and_brokers, fetch.refused),
    ApiKey.LIST_OFFSETS: (list_offsets.handle, the_broker, anybody),
    ApiKey.METADATA: (metadata.handle, the_broker, anybody),
    ApiKey.OFFSET_COMMIT: (offset_commit.handle, the_broker, anybody),
    ApiKey.OFFSET_FETCH: (offset_fetch.handle, the_broker, anybody),
    ApiKey.FIND_COORDINATOR: (find_coordinator.handle, INTERNAL_TOPICS, anybody),
    ApiKey.JOIN_GROUP: (join_group.handle, the_broker, anybody),
    ApiKey.HEARTBEAT: (heartbeat.handle, GROUPS, anybody),
    ApiKey.LEAVE_GROUP: (leave_group.handle, GROUPS, anybody),
    ApiKey.SYNC_GROUP: (sync_group.handle, GROUPS, anybody),
    ApiKey.DESCRIBE_GROUPS: (describe_groups.handle, GROUPS, anybody),
    ApiKey.LIST_GROUPS: (list_groups.handle, GROUPS, anybody),
    ApiKey.API_VERSIONS: (api_versions.handle, the_broker, anybody),
    ApiKey.CREATE_TOPICS: (create_topics.handle, the_broker, anybody),
    ApiKey.DELETE_TOPICS: (delete_topics.handle, the_broker, anybody),
    ApiKey.DELETE_RECORDS: (delete_records.handle, PARTITIONS, anybody),
    ApiKey.INIT_PRODUCER_ID: (init_producer_id.handle, the_broker, anybody),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (offset_for_leader_epoch.handle, PARTITIONS, anybody),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        add_partitions_to_txn.handle,
        the_broker,
        producers_and_brokers,
        add_partitions_to_txn.refused,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (add_offsets_to_txn.handle, the_broker, anybody),
    ApiKey.END_TXN: (end_txn.handle, TRANSACTIONS, anybody),
    ApiKey.WRITE_TXN_MARKERS: (write_txn_markers.handle, the_broker, brokers, write_txn_markers.refused),
    ApiKey.TXN_OFFSET_COMMIT: (txn_offset_commit.handle, the_broker, anybody),
    ApiKey.DESCRIBE_CONFIGS: (describe_configs.handle, the_broker, anybody),
    ApiKey.ALTER_CONFIGS: (alter_configs.handle, the_broker, anybody),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (alter_replica_log_dirs.handle, MOVES, anybody),
    ApiKey.DESCRIBE_LOG_DIRS: (describe_log_dirs.handle, the_broker, anybody),
    ApiKey.CREATE_PARTITIONS: (create_partitions.handle, METADATA, anybody),
    ApiKey.DELETE_GROUPS: (delete_groups.handle, GROUPS, anybody),
    ApiKey.ELECT_LEADERS: (elect_leaders.handle, METADATA, anybody),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (incremental_alter_configs.handle, the_broker, anybody),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (alter_partition_reassignments.handle, METADATA, anybody),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (list_partition_reassignments.handle, METADATA, anybody),
    ApiKey.OFFSET_DELETE: (offset_delete.handle, the_broker, anybody),
    ApiKey.DESCRIBE_CLUSTER: (describe_cluster.handle, METADATA, anybody),
    ApiKey.DESCRIBE_PRODUCERS: (describe_producers.handle, PARTITIONS, anybody),
    ApiKey.DESCRIBE_TRANSACTIONS: (describe_transactions.handle, TRANSACTIONS, anybody),
    ApiKey.LIST_TRANSACTIONS: (list_transactions.handle, the_broker, anybody),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (consumer_group_heartbeat.handle, the_broker, anybody),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (consumer_group_describe.handle, GROUPS, anybody),
    ApiKey.LIST_CONFIG_RESOURCES: (list_config_resources.handle, METADATA, anybody),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (describe_topic_partitions.handle, the_broker, anybody),
    ApiKey.END_BRANCHES: (end_branches.handle, TRANSACTIONS, anybody),
    ApiKey.DESCRIBE_BRANCHES: (describe_branches.handle, TRANSACTIONS, anybody),
    ApiKey.CONDITIONAL_PRODUCE: (conditional_produce.handle, the_broker, brokers, conditional_produce.refused),
}
"""What answers, which part of the broker it takes, and who may ask; where not anybody may, what the others are told."""

STABLE_HERE = (ApiKey.INIT_PRODUCER_ID,)
"""Version 6, external two-phase commit (KIP-939): whole here, a stub in Kafka."""


@dataclass(frozen=True, slots=True)
class Route:
    name: str
    lowest: int
    highest: int
    handle: Handler
    part: Part
    authorize: Rule
    refused: Callable[[Any], Any] | None = None

    def refusal(self, session: Session, request: Any) -> Any:
        """Kafka's authorization error if the session may not ask, else None."""
        if self.authorize(session, request):
            return None
        asked = session.host, session.port, ":".join(session.principal), self.name
        logger.warning("%s:%d is refused: %s may not ask %s", *asked)
        assert self.refused is not None, "a rule that refuses has something to say"
        return self.refused(request)

    def ask(self, broker: Broker, session: Session, header: RequestHeader, request: Any) -> Any:
        """The handler's answer, what it awaits, or a refusal."""
        refusal = self.refusal(session, request)
        return self.handle(self.part(broker), session, header, request) if refusal is None else refusal


def _route(key: ApiKey) -> Route:
    lowest, highest = VERSIONS[key]
    return Route(key.name, lowest, highest - (key in NEWEST_IS_UNSTABLE and key not in STABLE_HERE), *HANDLED[key])


ROUTES: dict[int, Route] = {key: _route(key) for key in sorted(HANDLED)}
OFFERED: dict[int, tuple[int, int]] = {key: (route.lowest, route.highest) for key, route in ROUTES.items()}
