"""The coordinators on this broker and the parts that they share: groups, transactions, the markers that transactions
must send, the gate for transactional writes, and the source of producer ids.
"""

from collections.abc import Sequence
from typing import Any

from service.broker import marker_courier, transaction_gate
from service.broker.coordinators import Coordinators
from service.broker.internal_topics import GROUPS, TRANSACTIONS, InternalTopics
from service.broker.marker_courier import MarkerCourier, MarkerWriter
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.peers import Peers
from service.broker.producer_id_source import ProducerIdSource
from service.broker.replay import LeaveToOthers
from service.broker.topic_view import ImageTopics
from service.broker.transaction_gate import TransactionGate
from service.cluster.metadata import ClusterMetadata
from service.groups.coordinator import GroupCoordinator
from service.groups.settings import ConsumerTimes, GroupSettings
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.settings.group import group_values
from txn.coordinator import TxnCoordinator
from txn.markers import SendMarkers
from txn.settings import TxnSettings
from txn.tally import TxnTally

PEERS_TIMEOUT_S = 5.0
"""A question to another broker that has no answer after this time is asked again."""


class Coordination:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        partitions: PartitionTable,
        leave_to_others: LeaveToOthers,
    ) -> None:
        self._config = config
        self._consumer_times = ConsumerTimes(
            config.group_consumer_session_timeout_ms,
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_assignment_interval_ms,
        )
        self._metadata = metadata
        self.topics = ImageTopics(metadata)
        self.internal_topics = InternalTopics(metadata, config, env)
        self.producer_ids = ProducerIdSource(metadata, env)
        self.txn_tally = TxnTally()
        self.groups = Coordinators(
            GROUPS,
            lambda partition: GroupCoordinator(self._group_settings(), self.topics, env.clock.wall_ms),
            self._no_effects,
            partitions,
            lambda: metadata.image,
            env,
            leave_to_others,
        )
        self.transactions = Coordinators(
            TRANSACTIONS,
            lambda partition: TxnCoordinator(
                self.producer_ids.take, self._txn_settings(), env.clock.wall_ms, self.txn_tally
            ),
            self._post_markers,
            partitions,
            lambda: metadata.image,
            env,
            leave_to_others,
            lambda shard: self.marker_courier.resume(shard),
        )
        kinds: tuple[Coordinators[Any], ...] = self.groups, self.transactions
        self.by_topic = {coordinators.topic.name: coordinators for coordinators in kinds}
        self.marker_writer = MarkerWriter(partitions, self.groups, env)
        self._marker_peers = Peers(config, metadata, lanes=marker_courier.LANES, timeout_s=PEERS_TIMEOUT_S)
        self._gate_peers = Peers(config, metadata, lanes=transaction_gate.LANES, timeout_s=PEERS_TIMEOUT_S)
        self.marker_courier = MarkerCourier(
            *(self.transactions, self.marker_writer, metadata, self._marker_peers, env), self.txn_tally.completed
        )
        self.transaction_gate = TransactionGate(self.transactions, self._gate_peers, env)

    def led(self, partition: Partition, *, is_first: bool) -> None:
        """This broker leads `partition` from now on. `is_first`: nobody has led it in this leader epoch before."""
        coordinators = self.by_topic.get(partition.topic_partition.topic)
        if coordinators is not None:
            coordinators.led(partition, is_first=is_first)

    def followed(self, partition: Partition) -> None:
        """Another broker leads `partition`, or none, and this one copies it."""
        coordinators = self.by_topic.get(partition.topic_partition.topic)
        if coordinators is not None:
            coordinators.followed(partition)

    def resign(self, partition: Partition) -> None:
        """This broker does not lead `partition` for now. What it knows as a follower still holds."""
        coordinators = self.by_topic.get(partition.topic_partition.topic)
        if coordinators is not None:
            coordinators.end_shard(partition.topic_partition.partition)

    def lose(self, partition: Partition) -> None:
        coordinators = self.by_topic.get(partition.topic_partition.topic)
        if coordinators is not None:
            coordinators.lost(partition.topic_partition.partition)

    async def close(self) -> None:
        await self._marker_peers.close()
        await self._gate_peers.close()

    def end(self) -> None:
        for coordinators in self.by_topic.values():
            for shard in coordinators.shards():
                shard.drop()

    # -- groups

    def _group_settings(self) -> GroupSettings:
        config = self._config
        return GroupSettings(
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_max_size=config.group_max_size,
            consumer_times=self.consumer_times,
            group_consumer_max_size=config.group_consumer_max_size,
            group_consumer_assignors=tuple(config.group_consumer_assignors),
            group_consumer_migration_policy=config.group_consumer_migration_policy.lower(),
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        )

    def consumer_times(self, group_id: str) -> ConsumerTimes:
        own = self._metadata.image.group_configs.get(group_id)
        if own is None:  # most groups have no settings of their own, and each heartbeat asks
            return self._consumer_times
        values = group_values(own.values, self._config)
        return ConsumerTimes(
            values["consumer.session.timeout.ms"],
            values["consumer.heartbeat.interval.ms"],
            values["consumer.assignment.interval.ms"],
        )

    @staticmethod
    def _no_effects(partition: Partition, effects: Sequence[Any]) -> None:
        raise AssertionError(f"group coordinators have no effects, but {partition.topic_partition} has {effects}")

    # -- transactions

    def _txn_settings(self) -> TxnSettings:
        config = self._config
        return TxnSettings(
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            forget_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
            two_phase_commit_enabled=config.transaction_two_phase_commit_enable,
        )

    def _post_markers(self, coordinator: Partition, every: Sequence[SendMarkers]) -> None:
        self.marker_courier.post(coordinator, every)
