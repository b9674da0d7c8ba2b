"""Every API on one page: its versions, its handler, the parts of the broker that the handler takes, and the rule for
its callers.

What always holds: ApiVersions tells exactly this table, and the door accepts nothing else. A version that Kafka calls
unstable is not offered.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVarTuple

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
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_branches,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_ends,
    describe_groups,
    describe_health,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
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

Handler = Callable[..., Any]
Parts = TypeVarTuple("Parts")
Row = tuple[Handler, Callable[[Broker], tuple[Any, ...]], Rule, Callable[[Any], Any] | None]


def row(
    handle: Callable[[*Parts, Session, RequestHeader, Any], Any],
    parts: Callable[[Broker], tuple[*Parts]],
    authorize: Rule,
    refused: Callable[[Any], Any] | None = None,
) -> Row:
    """A row of the table. The type checker refuses a row that does not give its handler the parts that it takes."""
    return handle, parts, authorize, refused


HANDLED: dict[ApiKey, Row] = {
    ApiKey.PRODUCE: row(
        produce.handle, lambda b: (produce.ProduceParts(b.partitions, b.metadata, b.writing),), anybody
    ),
    ApiKey.FETCH: row(
        fetch.handle,
        lambda b: (fetch.FetchParts(b.env, b.config, b.metadata, b.partitions, b.fetch_sessions, b.replication),),
        readers_and_brokers,
        fetch.refused,
    ),
    ApiKey.LIST_OFFSETS: row(
        list_offsets.handle,
        lambda b: (list_offsets.ListOffsetsParts(b.partitions, b.env, b.replication.in_sync),),
        anybody,
    ),
    ApiKey.METADATA: row(
        metadata.handle,
        lambda b: (metadata.MetadataParts(b.metadata, b.config, b.env, b.coordination.internal_topics),),
        anybody,
    ),
    ApiKey.OFFSET_COMMIT: row(offset_commit.handle, lambda b: (b.coordination.groups, b.metadata), anybody),
    ApiKey.OFFSET_FETCH: row(
        offset_fetch.handle, lambda b: (b.coordination.groups, b.metadata, b.replication.in_sync), anybody
    ),
    ApiKey.FIND_COORDINATOR: row(find_coordinator.handle, lambda b: (b.coordination.internal_topics,), anybody),
    ApiKey.JOIN_GROUP: row(join_group.handle, lambda b: (b.coordination.groups, b.env), anybody),
    ApiKey.HEARTBEAT: row(heartbeat.handle, lambda b: (b.coordination.groups,), anybody),
    ApiKey.LEAVE_GROUP: row(leave_group.handle, lambda b: (b.coordination.groups,), anybody),
    ApiKey.SYNC_GROUP: row(sync_group.handle, lambda b: (b.coordination.groups,), anybody),
    ApiKey.DESCRIBE_GROUPS: row(describe_groups.handle, lambda b: (b.coordination.groups,), anybody),
    ApiKey.LIST_GROUPS: row(list_groups.handle, lambda b: (b.coordination.groups, b.metadata), anybody),
    ApiKey.API_VERSIONS: row(api_versions.handle, lambda b: (b.metadata, b.offered), anybody),
    ApiKey.CREATE_TOPICS: row(create_topics.handle, lambda b: (b.metadata, b.config, b.env), anybody),
    ApiKey.DELETE_TOPICS: row(delete_topics.handle, lambda b: (b.metadata, b.config), anybody),
    ApiKey.DELETE_RECORDS: row(delete_records.handle, lambda b: (b.env, b.partitions), anybody),
    ApiKey.INIT_PRODUCER_ID: row(
        init_producer_id.handle, lambda b: (b.coordination.transactions, b.coordination.producer_ids), anybody
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: row(offset_for_leader_epoch.handle, lambda b: (b.partitions,), anybody),
    ApiKey.ADD_PARTITIONS_TO_TXN: row(
        add_partitions_to_txn.handle,
        lambda b: (b.coordination.transactions, b.metadata),
        producers_and_brokers,
        add_partitions_to_txn.refused,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: row(
        add_offsets_to_txn.handle,
        lambda b: (b.coordination.transactions, b.coordination.groups, b.coordination.internal_topics),
        anybody,
    ),
    ApiKey.END_TXN: row(end_txn.handle, lambda b: (b.coordination.transactions,), anybody),
    ApiKey.WRITE_TXN_MARKERS: row(
        write_txn_markers.handle,
        lambda b: (
            write_txn_markers.WriteTxnMarkersParts(
                b.partitions, b.coordination.marker_writer, b.coordination.internal_topics
            ),
        ),
        brokers,
        write_txn_markers.refused,
    ),
    ApiKey.TXN_OFFSET_COMMIT: row(
        txn_offset_commit.handle,
        lambda b: (
            txn_offset_commit.TxnOffsetCommitParts(
                b.coordination.groups, b.metadata, b.coordination.transaction_gate, b.env.clock
            ),
        ),
        anybody,
    ),
    ApiKey.DESCRIBE_ACLS: row(describe_acls.handle, lambda b: (), anybody),
    ApiKey.CREATE_ACLS: row(create_acls.handle, lambda b: (), anybody),
    ApiKey.DELETE_ACLS: row(delete_acls.handle, lambda b: (), anybody),
    ApiKey.DESCRIBE_CONFIGS: row(describe_configs.handle, lambda b: (b.metadata, b.config), anybody),
    ApiKey.ALTER_CONFIGS: row(alter_configs.handle, lambda b: (b.metadata, b.config), anybody),
    ApiKey.ALTER_REPLICA_LOG_DIRS: row(alter_replica_log_dirs.handle, lambda b: (b.moves,), anybody),
    ApiKey.DESCRIBE_LOG_DIRS: row(describe_log_dirs.handle, lambda b: (b.folders, b.partitions, b.moves), anybody),
    ApiKey.CREATE_PARTITIONS: row(create_partitions.handle, lambda b: (b.metadata,), anybody),
    ApiKey.DELETE_GROUPS: row(delete_groups.handle, lambda b: (b.coordination.groups,), anybody),
    ApiKey.ELECT_LEADERS: row(elect_leaders.handle, lambda b: (b.metadata, b.copies), anybody),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: row(incremental_alter_configs.handle, lambda b: (b.metadata, b.config), anybody),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: row(alter_partition_reassignments.handle, lambda b: (b.metadata,), anybody),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: row(list_partition_reassignments.handle, lambda b: (b.metadata,), anybody),
    ApiKey.OFFSET_DELETE: row(offset_delete.handle, lambda b: (b.coordination.groups, b.metadata), anybody),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: row(describe_client_quotas.handle, lambda b: (), anybody),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: row(describe_user_scram_credentials.handle, lambda b: (), anybody),
    ApiKey.DESCRIBE_CLUSTER: row(describe_cluster.handle, lambda b: (b.metadata,), anybody),
    ApiKey.DESCRIBE_PRODUCERS: row(describe_producers.handle, lambda b: (b.partitions,), anybody),
    ApiKey.DESCRIBE_TRANSACTIONS: row(describe_transactions.handle, lambda b: (b.coordination.transactions,), anybody),
    ApiKey.LIST_TRANSACTIONS: row(
        list_transactions.handle, lambda b: (b.coordination.transactions, b.metadata, b.env), anybody
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: row(
        consumer_group_heartbeat.handle, lambda b: (b.coordination.groups, b.env), anybody
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: row(consumer_group_describe.handle, lambda b: (b.coordination.groups,), anybody),
    ApiKey.LIST_CONFIG_RESOURCES: row(list_config_resources.handle, lambda b: (b.metadata,), anybody),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: row(describe_topic_partitions.handle, lambda b: (b.metadata, b.config), anybody),
    ApiKey.END_BRANCHES: row(end_branches.handle, lambda b: (b.coordination.transactions,), anybody),
    ApiKey.DESCRIBE_BRANCHES: row(describe_branches.handle, lambda b: (b.coordination.transactions,), anybody),
    ApiKey.CONDITIONAL_PRODUCE: row(
        conditional_produce.handle, lambda b: (b.partitions, b.writing), brokers, conditional_produce.refused
    ),
    ApiKey.DESCRIBE_HEALTH: row(describe_health.handle, lambda b: (b.metadata, b.env, b.health, b.folders), anybody),
    ApiKey.DESCRIBE_ENDS: row(describe_ends.handle, lambda b: (b.partitions,), anybody),
}
"""For each API its handler, and the parts of the broker `b` that this takes. If not every client may use the API: also
the rule, and the answer to a refused client.
"""

STABLE_HERE = (ApiKey.INIT_PRODUCER_ID,)
"""Version 6, external two-phase commit (KIP-939): complete here, unfinished in Kafka."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    name: str
    lowest: int
    highest: int
    handle: Handler
    parts: Callable[[Broker], tuple[Any, ...]]
    authorize: Rule
    refused: Callable[[Any], Any] | None

    def refusal(self, session: Session, request: Any) -> Any:
        """Kafka's authorization error if the session may not use the API, else None."""
        if self.authorize(session, request):
            return None
        asked = session.host, session.port, ":".join(session.principal), self.name
        logger.warning("%s:%d is refused: %s may not ask %s", *asked)
        assert self.refused is not None, "a rule that refuses has something to say"
        return self.refused(request)

    def bound(self, broker: Broker) -> Handler:
        """The handler with the parts of that broker."""
        return partial(self.handle, *self.parts(broker))


def _route(key: ApiKey) -> ApiRoute:
    lowest, highest = VERSIONS[key]
    return ApiRoute(key.name, lowest, highest - (key in NEWEST_IS_UNSTABLE and key not in STABLE_HERE), *HANDLED[key])


ROUTES: dict[int, ApiRoute] = {key: _route(key) for key in sorted(HANDLED)}
OFFERED: dict[int, tuple[int, int]] = {key: (route.lowest, route.highest) for key, route in ROUTES.items()}
