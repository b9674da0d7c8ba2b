"""The broker as a whole: what it is made of, how it starts, follows the metadata, and stops.

Start: claim the data folders, bring up the metadata store, open every partition the metadata gives this broker
(from the manifest after a clean stop, else by
recovery), register, lead. From then on every change of the metadata image is followed in the order of commits:
partitions appear, change their settings, or go.
Stop: no more requests, everything durable, manifest written last.

What always holds: a partition is served only while the metadata names this broker as its leader, in the epoch the
metadata names.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from idempotence.producers import ProducerStates
from idempotence.room import ProducerRoom
from isolation.stable import StableOffsets
from log.config import LogConfig
from log.disk import Disk, DiskFault
from log.identity import read_topic_id
from log.ids import TopicPartition, folder_of, format_topic_id
from log.manifest import (
    Manifest,
    read_and_remove_manifest,
    read_recovery_points,
    write_manifest,
)
from log.partition_log import CleanState, PartitionLog
from service.broker.compactor import Compactor
from service.broker.coordinators import Coordinators
from service.broker.data_folder import StartError, claim, read_all
from service.broker.fetch_sessions import FetchSessions
from service.broker.flusher import WORKERS
from service.broker.housekeeper import Housekeeper
from service.broker.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC, InternalTopics
from service.broker.log_folder import LogFolder
from service.broker.loop_watch import LoopWatch
from service.broker.marker_courier import MarkerCourier, MarkerWriter
from service.broker.opener import Opener
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.producer_id_source import ProducerIdSource
from service.broker.shard import Shard
from service.broker.topic_view import ImageTopics
from service.broker.transaction_gate import TransactionGate
from service.cluster.controller import FINALIZED_FEATURES
from service.cluster.image import NO_CONFIG, Delta, Image, PartitionState, Topic
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.groups.commands import ForgetTopic
from service.groups.coordinator import GroupCoordinator
from service.groups.partitioning import partition_for
from service.groups.settings import ConsumerTimes, GroupSettings
from service.ports import Env
from service.settings.broker import BrokerConfig, Endpoint
from service.settings.group import group_values
from service.settings.topic import log_config
from service.stores.port import MetadataStore
from txn.branches import home_of
from txn.coordinator import TxnCoordinator
from txn.markers import SendMarkers
from txn.settings import TxnSettings

logger = logging.getLogger("oncelog.broker")

SUPPORTED_FEATURES = {"group.version": (0, 1), "transaction.version": (0, 2)}
SESSION_TIMEOUT_S = 18.0
SYNCED_TOGETHER = 64
"""From so many files on that are not durable, a stop syncs the whole disk instead of each of them."""
OPENED_AT_ONCE = 256
"""Partitions opened before others get a turn."""


class Opening:
    """How far a start has come. Read at any time, from the loop; added to by whoever opens logs."""

    def __init__(self) -> None:
        self.partitions = self.opened = self.read_bytes = 0

    def read(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes


class Broker:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        store: MetadataStore,
        disks: Mapping[str, Disk],
        offered: Mapping[int, tuple[int, int]],
    ) -> None:
        self.env = env
        self.config = config
        self.offered = offered
        self.metadata = ClusterMetadata(store, env, session_timeout_s=SESSION_TIMEOUT_S)
        self.metadata.on_session_lost = self._step_down
        self.partitions = PartitionTable()
        self.producer_room = ProducerRoom(
            config.producers_max, lambda: (partition.producers for partition in self.partitions)
        )
        self.folders = [
            LogFolder(name, disk, self._folder_failed, reserve_bytes=config.log_reserve_bytes)
            for name, disk in disks.items()
        ]
        self.fetch_sessions = FetchSessions(slots=config.max_incremental_fetch_session_cache_slots)
        self.producer_ids = ProducerIdSource(self.metadata, env)
        self.topics = ImageTopics(self.metadata)
        self.internal_topics = InternalTopics(self.metadata, config, env)
        self.groups = Coordinators(
            GROUP_TOPIC,
            partition_for,
            lambda partition: GroupCoordinator(self._group_settings(), self.topics, env.clock.wall_ms),
            self._no_effects,
            self.partitions,
            env,
        )
        self.housekeeper = Housekeeper(env, config, self.partitions, self.folders)
        self.compactor = Compactor(env, config, self.partitions)
        self.transactions = Coordinators(
            TRANSACTION_TOPIC,
            lambda transactional_id, count: partition_for(home_of(transactional_id), count),
            lambda partition: TxnCoordinator(self.producer_ids.take, self._txn_settings(), env.clock.wall_ms),
            self._post_markers,
            self.partitions,
            env,
            self._resume_markers,
        )
        self.coordinators: dict[str, Coordinators[Any]] = {
            GROUP_TOPIC: self.groups,
            TRANSACTION_TOPIC: self.transactions,
        }
        self.marker_writer = MarkerWriter(self.partitions, self.groups, env)
        self.marker_courier = MarkerCourier(self.transactions, self.marker_writer, self.metadata, env)
        self.opener = Opener(env)
        self.time_lookups = asyncio.Lock()  # one at a time: each may unpack a large batch
        self.loop_watch = LoopWatch()
        self.transaction_gate = TransactionGate(self.transactions, env)
        self._leaving: dict[TopicPartition, Partition] = {}
        self.node_id = -1
        self.cluster_id = ""
        self.bootstrap = ""
        self.ready = asyncio.Event()
        self.opening = Opening()
        self._was_clean = False

    # -- life

    async def open(self) -> None:
        """Everything that needs no listener: identity, logs."""
        disks = {folder.name: folder.disk for folder in self.folders}
        for facts in read_all(disks).values():
            if facts is not None:
                self.node_id, self.cluster_id = facts.node_id, facts.cluster_id
        await self._join()
        await claim(disks, cluster_id=self.cluster_id, node_id=self.node_id, fresh_id=self._fresh_id)
        for folder in self.folders:
            await folder.headroom.begin()
        await self._open_partitions()

    async def _join(self) -> None:
        configured = self.config.node_id
        if self.node_id >= 0 and configured not in (-1, self.node_id):
            raise StartError(f"node.id is {configured}, but the data folder belongs to broker {self.node_id}")
        known_cluster_id = self.cluster_id
        await self.metadata.start(
            broker_id=self.node_id if self.node_id >= 0 else configured,
            cluster_id=known_cluster_id or self._fresh_id(),
            founding=not known_cluster_id,
        )
        self.node_id, self.cluster_id = self.metadata.broker_id, self.metadata.image.cluster_id
        if known_cluster_id and not self.cluster_id:
            raise StartError(
                f"the data folder belongs to cluster {known_cluster_id}, but the metadata store is empty: bring back"
                " what was there (meta.db, unless store.url names another), or name another folder"
            )
        if known_cluster_id and self.cluster_id != known_cluster_id:
            raise StartError(
                f"the metadata store is of cluster {self.cluster_id}, the data folder of {known_cluster_id}"
            )

    def _fresh_id(self) -> str:
        return format_topic_id(self.env.unique())

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster and lead what the metadata gives us; afterwards requests are answered."""
        self.bootstrap = endpoints[0].address
        self.metadata.subscribe(self._follow)
        try:
            await self.metadata.register(tuple(endpoints), rack=self.config.broker_rack, clean=self._was_clean)
        except MetadataLost as lost:
            raise StartError(f"the cluster refused this broker: {lost}") from None
        for partition in self.partitions:
            self._lead_or_not(partition)
        for folder in self.folders:
            self.env.tasks.spawn(f"headroom of {folder.name}", folder.headroom.run())
            for worker in range(WORKERS):
                self.env.tasks.spawn(f"flusher {worker} of {folder.name}", folder.flusher.run())
        self.env.tasks.spawn("housekeeper", self.housekeeper.run())
        self.env.tasks.spawn("compactor", self.compactor.run())
        self.ready.set()

    async def stop(self) -> None:
        """Everything durable, then the manifest. No request is under way any more."""
        for coordinators in self.coordinators.values():
            for shard in coordinators.shards():
                shard.drop()
        await self.env.tasks.cancel_all()
        for partition in list(self._leaving.values()):
            await self._remove(partition)
        for partition in self.partitions:
            partition.resign()
        for folder in self.folders:
            await self._sync_together(folder)
        states: dict[LogFolder, list[CleanState]] = {folder: [] for folder in self.folders}
        for count, partition in enumerate(self.partitions):
            if partition.folder.failed is None:
                try:
                    state = await partition.log.close()
                except DiskFault as fault:
                    partition.folder.fail(fault)
                    continue
                if state is not None:
                    states[partition.folder].append(state)
            if count % OPENED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for folder, closed in states.items():
            if folder.failed is None:
                try:
                    await write_manifest(folder.disk, closed)
                except DiskFault as fault:
                    folder.fail(fault)  # and the next start reads the logs
        await self.metadata.close()

    async def _sync_together(self, folder: LogFolder) -> None:
        """Where many files are not durable yet, make them so by one call: a stop may not take longer the more segments
        there are.
        """
        logs = [partition.log for partition in self.partitions if partition.folder is folder]
        unflushed = [log for log in logs if log.unsynced_files]
        if folder.failed is not None or sum(log.unsynced_files for log in unflushed) < SYNCED_TOGETHER:
            return
        try:
            for log in unflushed:
                log.write_snapshots()
            await folder.disk.sync_all()
        except DiskFault as fault:
            folder.fail(fault)
            return
        for log in unflushed:
            log.note_disk_synced()

    # -- partitions

    async def _open_partitions(self) -> None:
        manifests: dict[str, Manifest] = {}
        points: dict[str, dict[TopicPartition, int]] = {}
        present: dict[str, set[str]] = {}
        self._was_clean = True
        for folder in self.folders:
            folder.disk.sweep()
            present[folder.name] = set(folder.disk.listdir(""))
            manifests[folder.name] = await read_and_remove_manifest(folder.disk)
            points[folder.name] = self.housekeeper.written_points[folder] = read_recovery_points(folder.disk)
        opening, topics = self.opening, list(self.metadata.image.topics.values())
        opening.partitions = sum(
            self.node_id in state.replicas for each in topics for state in each.partitions.values()
        )
        for topic in topics:
            config = self._log_config(topic)
            for index, state in topic.partitions.items():
                if self.node_id not in state.replicas:
                    continue
                await self._open_partition(topic, index, config, manifests, points, present)
                opening.opened += 1
                if opening.opened % OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        for folder in self.folders:
            # Those of topics that were deleted before a crash must not meet new topics of the same names.
            if any(self.partitions.get(topic_partition) is None for topic_partition in points[folder.name]):
                await self.housekeeper.write_points(folder)

    async def _open_partition(
        self,
        topic: Topic,
        index: int,
        config: LogConfig,
        manifests: Mapping[str, Manifest],
        points: Mapping[str, Mapping[TopicPartition, int]],
        present: Mapping[str, set[str]],
    ) -> None:
        topic_partition = TopicPartition(topic.name, index)
        name = folder_of(topic_partition)
        homes = found = [folder for folder in self.folders if name in present[folder.name]]
        if len(homes) > 1 or any(name not in manifests[folder.name] for folder in homes):
            homes = [folder for folder in homes if self._is_of(topic, folder, name)]
        if len(homes) > 1:
            raise StartError(
                f"{name} is in {homes[0].name} and in {homes[1].name}: move that one away which is not to be used"
            )
        for folder in homes:
            known = manifests[folder.name].get(name)
            if known is not None:
                self._add(topic, index, folder, config, known, 0)
                return
            point = points[folder.name].get(topic_partition, 0)
            await self.env.blocking(self._add, topic, index, folder, config, None, point)
            self._report_recovery(topic_partition)
            return
        for folder in () if found else self.folders:
            known = manifests[folder.name].get(name)
            ended = known.end_offset if known is not None else points[folder.name].get(topic_partition, 0)
            if ended:
                await self._start_over(topic, index, config, folder, ended)
                return
        self._add(topic, index, self._emptiest_folder(), config, None, 0)

    @staticmethod
    def _is_of(topic: Topic, folder: LogFolder, name: str) -> bool:
        """Whether the partition's folder of that name is this topic's; otherwise it is thrown away."""
        if read_topic_id(folder.disk, name) in (None, topic.id):
            return True
        folder.disk.discard(name)  # its topic was deleted, and a crash came first
        return False

    async def _start_over(
        self, topic: Topic, index: int, config: LogConfig, folder: LogFolder, end_offset: int
    ) -> None:
        """Its folder was removed. No offset is given twice: it goes on where it ended, as far as that is known."""
        partition = self._add(topic, index, folder, config, None, 0)
        name = folder_of(partition.topic_partition)
        logger.critical(
            "%s/%s is gone, and with it what was in it: %s is empty and goes on at offset %d",
            *(folder.name, name, partition.topic_partition, end_offset),
        )
        partition.log.restart_at(end_offset)
        await partition.log.flush()

    def _report_recovery(self, topic_partition: TopicPartition) -> None:
        partition = self.partitions.get(topic_partition)
        assert partition is not None
        report = partition.log.recovery
        if report is None:
            return
        if report.scanned_bytes or report.cut_bytes:
            self._was_clean = False
        if report.cut_bytes:
            logger.warning("%s: %s", topic_partition, report)
        if partition.log.damage:
            first, *more = partition.log.damage
            logger.critical(
                "%s is damaged and not served: offsets %d to %d, %s%s. `oncelog log verify` shows where. Stop the"
                " broker and bring back a copy of %s/%s, or remove it to go on without what was in it",
                *(topic_partition, first.first_offset, first.end_offset - 1, first.reason),
                f", and {len(more)} more places" if more else "",
                *(partition.folder.name, folder_of(topic_partition)),
            )
            partition.fail()

    def _add(
        self,
        topic: Topic,
        index: int,
        folder: LogFolder,
        config: LogConfig,
        known: CleanState | None,
        recovery_point: int,
    ) -> Partition:
        topic_partition = TopicPartition(topic.name, index)
        stable = StableOffsets()
        producers = ProducerStates(
            stable.open_transactions, limit=self.config.producers_per_partition_max, room=self.producer_room
        )
        log = PartitionLog.open(
            folder.disk,
            folder_of(topic_partition),
            config,
            (producers, stable),
            known=known,
            now_ms=self.env.clock.wall_ms(),
            recovery_point=recovery_point,
            topic_id=topic.id,
            on_read=self.opening.read,
        )
        partition = Partition(topic_partition, topic.id, log, folder, producers, stable)
        self.partitions.add(partition)
        return partition

    def _emptiest_folder(self) -> LogFolder:
        counts = {folder: 0 for folder in self.folders if folder.failed is None}
        if not counts:
            return self.folders[0]
        if len(counts) > 1:
            for partition in self.partitions:
                if partition.folder in counts:
                    counts[partition.folder] += 1
        return min(counts, key=lambda folder: counts[folder])

    def _log_config(self, topic: Topic) -> LogConfig:
        return log_config(topic.config, self.config)

    def _step_down(self) -> None:
        """The metadata may name others by now: lead nothing. The embedded store loses no session while it is open, so
        nothing joins again here.
        """
        logger.critical("this broker leads nothing any more, until it is started again")
        self.ready.clear()
        for partition in self.partitions:
            self._lose_shard(partition)
            partition.resign()

    # -- following the metadata

    def _follow(self, delta: Delta) -> None:
        """The metadata changed: hold and serve what it says now. Called in the order of commits."""
        if delta.broker_configs:
            self._take_dynamic_config(delta.new)
        for name in delta.topics:
            self._follow_topic(delta.old.topics.get(name), delta.new.topics.get(name), config_changed=True)
        changed = [key.topic for key in delta.partitions if key.topic not in delta.topics]
        for name in dict.fromkeys(changed):
            self._follow_topic(delta.old.topics.get(name), delta.new.topics.get(name), config_changed=False)

    def _follow_topic(self, old: Topic | None, new: Topic | None, *, config_changed: bool) -> None:
        if old is not None and (new is None or new.id != old.id):
            for gone in list((self.partitions.topic(old.name) or {}).values()):
                if gone.topic_id == old.id:
                    self._drop(gone)
            self.groups.tell_all(ForgetTopic(old.name, old.id))
        if new is None:
            return
        config = self._log_config(new)
        held = self.partitions.topic(new.name) or {}
        for index, state in new.partitions.items():
            partition = held.get(index)
            if partition is None and self.node_id not in state.replicas:
                continue
            if partition is None:
                if TopicPartition(new.name, index) in self._leaving:
                    continue  # it is added when its name is free
                partition = self._add_new(new, index, config)
            elif config_changed:
                partition.set_config(config, fsync=self._must_fsync(config, state))
            if self.ready.is_set():
                self._lead_or_not(partition)

    def _add_new(self, topic: Topic, index: int, config: LogConfig) -> Partition:
        """A partition that never was. What has its name on a disk was left by a deleted topic before a crash."""
        name = folder_of(TopicPartition(topic.name, index))
        for folder in self.folders:
            try:
                if folder.failed is None and folder.disk.exists(name):
                    folder.disk.discard(name)
            except DiskFault as fault:
                folder.fail(fault)
        home = self._emptiest_folder()
        # What is left on a disk that has failed is nobody's: it is set aside at the next start.
        known = None if home.failed is None else CleanState(name, 0, 0, (), (), (), {})
        return self._add(topic, index, home, config, known, 0)

    def _drop(self, partition: Partition) -> None:
        """Serve it no longer. Its folder goes when whoever is at work on it has finished; until then nobody else may
        have the name.
        """
        self.partitions.remove(partition)
        self._lose_shard(partition)
        partition.resign()
        self._leaving[partition.topic_partition] = partition
        self.env.tasks.spawn(f"delete {partition.topic_partition}", self._make_room(partition))

    async def _make_room(self, partition: Partition) -> None:
        await self._remove(partition)
        del self._leaving[partition.topic_partition]
        successor = self.metadata.image.topics.get(partition.topic_partition.topic)
        if successor is not None:
            self._follow_topic(None, successor, config_changed=False)

    async def _remove(self, partition: Partition) -> None:
        # In this order: should a crash come in between, the folder is there to say whose the point was.
        await self.housekeeper.forget_point(partition)
        try:
            await partition.log.discard()
        except DiskFault as fault:
            partition.folder.fail(fault)

    def _lead_or_not(self, partition: Partition) -> None:
        state = self.metadata.image.partition(partition.topic_partition)
        if partition.offline or partition.folder.failed is not None:
            partition.fail()
            return
        if state is None or state.leader != self.node_id:
            if partition.replicas is not None:
                self._lose_shard(partition)
                partition.resign()
            return
        starts = partition.replicas is None or partition.leader_epoch != state.leader_epoch
        if starts:
            fsync = self._must_fsync(partition.log.config, state)
            partition.lead(state.leader_epoch, self.node_id, state.replicas, state.isr, fsync=fsync)
            coordinators = self.coordinators.get(partition.topic_partition.topic)
            if coordinators is not None:
                coordinators.led(partition)
        elif partition.replicas is not None and partition.replicas.isr != state.isr:
            partition.replicas.decided(state.isr)

    def _lose_shard(self, partition: Partition) -> None:
        coordinators = self.coordinators.get(partition.topic_partition.topic)
        if coordinators is not None:
            coordinators.lost(partition.topic_partition.partition)

    def _must_fsync(self, config: LogConfig, state: PartitionState) -> bool:
        """Durability `auto`: where fewer than two replicas must hold a write, the platter must."""
        durability = self.config.log_durability
        if durability != "auto":
            return durability == "fsync"
        return min(config.min_insync_replicas, len(state.replicas)) < 2

    def _take_dynamic_config(self, image: Image) -> None:
        everywhere = image.broker_config("default").values
        own = image.broker_config(str(self.node_id)).values
        for problem in self.config.set_dynamic(everywhere, own):
            logger.warning("%s", problem)
        for topic in image.topics.values():
            self._follow_topic(None, topic, config_changed=True)

    # -- what others ask

    @property
    def image(self) -> Image:
        return self.metadata.image

    @property
    def features(self) -> dict[str, tuple[int, int, int]]:
        """Lowest, highest and finalized level of each feature."""
        levels = self.metadata.image.features.levels or FINALIZED_FEATURES
        return {name: (*bounds, levels.get(name, 0)) for name, bounds in SUPPORTED_FEATURES.items()}

    def _folder_failed(self, folder: LogFolder) -> None:
        for partition in self.partitions:
            if partition.folder is folder:
                self._lose_shard(partition)
                partition.fail()

    def _group_settings(self) -> GroupSettings:
        config = self.config
        return GroupSettings(
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_max_size=config.group_max_size,
            consumer_times=self._consumer_times,
            group_consumer_max_size=config.group_consumer_max_size,
            group_consumer_assignors=tuple(config.group_consumer_assignors),
            group_consumer_migration_policy=config.group_consumer_migration_policy.lower(),
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        )

    def _consumer_times(self, group_id: str) -> ConsumerTimes:
        values = group_values(self.metadata.image.group_configs.get(group_id, NO_CONFIG).values, self.config)
        return ConsumerTimes(
            values["consumer.session.timeout.ms"],
            values["consumer.heartbeat.interval.ms"],
            values["consumer.assignment.interval.ms"],
        )

    def _txn_settings(self) -> TxnSettings:
        config = self.config
        return TxnSettings(
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            forget_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
            two_phase_commit_enabled=config.transaction_two_phase_commit_enable,
        )

    def _post_markers(self, coordinator: Partition, markers: SendMarkers) -> None:
        self.marker_courier.post(coordinator, markers)

    def _resume_markers(self, shard: Shard[TxnCoordinator]) -> None:
        for markers in shard.machine.owed_markers():
            self.marker_courier.post(shard.partition, markers)

    @staticmethod
    def _no_effects(partition: Partition, effect: Any) -> None:
        raise AssertionError(f"group coordinators have no effects, but {partition.topic_partition} has {effect}")
