"""The partitions that this broker holds, kept in line with the metadata. Partitions appear, change their settings, or
go. Each one is led, followed or left alone.

What always holds: a partition is served only while the metadata names this broker as its leader, in the epoch that the
metadata names, and this broker is in session with the metadata store.
"""

import asyncio
import logging

from log.config import LogConfig
from log.disk import DiskFault
from log.ids import TopicPartition
from service.broker.coordination import Coordination
from service.broker.housekeeper import Housekeeper
from service.broker.log_folder import LogFolder
from service.broker.opening import PartitionMaker
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.replication import Replication
from service.cluster.controller import RemoveFromLeadership
from service.cluster.image import Delta, Image, PartitionState, Topic
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.groups.commands import ForgetTopic
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.settings.topic import log_config

logger = logging.getLogger("oncelog.broker")

REMOVE_AGAIN_S = 0.2
"""The pause after a failed attempt to remove the folder of a deleted partition."""
HAND_OVER_S = 5.0
"""The longest time for which a stop waits for the metadata store."""
FAREWELL_S = 0.2
"""How long a broker that stops goes on answering, so that clients learn from it who leads now."""


class Holdings:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        partitions: PartitionTable,
        maker: PartitionMaker,
        housekeeper: Housekeeper,
        coordination: Coordination,
        replication: Replication,
    ) -> None:
        self._env = env
        self._config = config
        self._metadata = metadata
        self._partitions = partitions
        self._maker = maker
        self._housekeeper = housekeeper
        self._coordination = coordination
        self._replication = replication
        self._leaving: dict[TopicPartition, Partition] = {}
        self._in_session = False

    # -- life

    def begin(self) -> None:
        """This broker is registered now: lead and follow the partitions that the metadata gives it."""
        self._in_session = True
        for topic in self._metadata.image.topics.values():
            self._try_topic(topic.name, None, topic, config_changed=False)

    def step_down(self) -> None:
        """Stop leading everything until the next session: the metadata may name other leaders by now."""
        self._in_session = False
        for partition in self._partitions:
            self._leave(partition)

    async def hand_over(self) -> None:
        """Give leadership to other brokers while requests are still answered. Clients are then told who leads, and need
        not find out by trying.
        """
        metadata = self._metadata
        if not metadata.in_session:
            return
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await metadata.execute(RemoveFromLeadership(metadata.broker_id, metadata.min_in_sync()))
                if len(metadata.image.brokers) > 1:
                    await self._part()
        except (MetadataLost, TimeoutError) as lost:
            logger.warning("the partitions that this broker leads could not be handed over: %s", lost)

    async def _part(self) -> None:
        """Send clients to the other brokers for a while, then leave the cluster. Without leaving, clients would try
        this broker's closed port with longer and longer pauses, and would still be pausing when it is back. It also
        keeps this broker from coming in sync again before it stops.
        """
        self.step_down()
        await asyncio.sleep(FAREWELL_S)
        await self._metadata.leave()

    def folder_failed(self, folder: LogFolder) -> None:
        for partition in self._partitions:
            if partition.folder is folder:
                self._coordination.lose(partition)
                self._replication.fail(partition)

    async def end(self) -> None:
        """Wait until the folders of deleted partitions are removed."""
        for partition in list(self._leaving.values()):
            await self._remove(partition)

    # -- following the metadata

    def follow(self, delta: Delta) -> None:
        """Hold and serve what the metadata says now. Changes must come in the order of commits."""
        if delta.broker_configs:
            self._take_dynamic_config(delta.new)
        for name in delta.topics:
            self._try_topic(name, delta.old.topics.get(name), delta.new.topics.get(name), config_changed=True)
        changed = [key.topic for key in delta.partitions if key.topic not in delta.topics]
        for name in dict.fromkeys(changed):
            self._try_topic(name, delta.old.topics.get(name), delta.new.topics.get(name), config_changed=False)

    def _try_topic(self, name: str, old: Topic | None, new: Topic | None, *, config_changed: bool) -> None:
        try:
            self._follow_topic(old, new, config_changed=config_changed)
        except Exception:  # an error in one topic: its partitions are not served, the other topics are
            logger.exception(
                "%s: a change of this topic could not be carried out; its partitions here are not served", name
            )
            for partition in (self._partitions.topic(name) or {}).values():
                self._leave(partition)

    def _follow_topic(self, old: Topic | None, new: Topic | None, *, config_changed: bool) -> None:
        if old is not None and (new is None or new.id != old.id):
            for gone in list((self._partitions.topic(old.name) or {}).values()):
                if gone.topic_id == old.id:
                    self._drop(gone)
            self._coordination.groups.tell_all(ForgetTopic(old.name, old.id))
        if new is None:
            return
        config = log_config(new.config, self._config)
        held = self._partitions.topic(new.name) or {}
        for index, state in new.partitions.items():
            partition = held.get(index)
            if self._metadata.broker_id not in state.replicas:
                if partition is not None:
                    self._drop(partition)
                continue
            if partition is None:
                if TopicPartition(new.name, index) in self._leaving:
                    continue  # the old partition of this name is still being removed; the new one is added after that
                partition = self._maker.add_new(new, index, config)
            elif config_changed:
                partition.set_config(config, fsync=self._must_fsync(config, state))
            self._settle(partition)

    def _drop(self, partition: Partition) -> None:
        """Stop serving the partition. Its folder is removed when all work on it has finished. Until then no other
        partition may have the name.
        """
        self._partitions.remove(partition)
        self._leave(partition)
        self._leaving[partition.topic_partition] = partition
        self._env.tasks.spawn(f"delete {partition.topic_partition}", self._make_room(partition))

    async def _make_room(self, partition: Partition) -> None:
        while True:
            if await self._remove(partition):
                break
            await asyncio.sleep(REMOVE_AGAIN_S)
        del self._leaving[partition.topic_partition]
        successor = self._metadata.image.topics.get(partition.topic_partition.topic)
        if successor is not None:
            self._try_topic(successor.name, None, successor, config_changed=False)

    async def _remove(self, partition: Partition) -> bool:
        """Remove the partition's folder and recovery point. Returns whether the name is free: nothing is left that a
        new partition of the same name could be taken for. What is left on a failed disk does not count.
        """
        # The recovery point goes before the folder. If a crash comes between the two, the folder still says to which
        # topic the point belonged.
        await self._housekeeper.forget_points(partition.topic_partition)
        try:
            await partition.log.discard()
        except DiskFault as fault:
            partition.folder.fail(fault)
            return partition.folder.failed is not None
        # On a full disk the point could not be removed before. Now the folder has made room.
        return await self._housekeeper.forget_points(partition.topic_partition)

    def _settle(self, partition: Partition) -> None:
        """Give the partition the role that the metadata says."""
        if not self._in_session:
            return
        state = self._metadata.image.partition(partition.topic_partition)
        if partition.offline or partition.folder.failed is not None:
            self._replication.fail(partition)
        elif state is None:
            self._leave(partition)
        elif state.leader != self._metadata.broker_id:
            self._coordination.lose(partition)
            self._replication.follow(partition, state, fsync=self._must_fsync(partition.log.config, state))
        elif self._replication.lead(partition, state, fsync=self._must_fsync(partition.log.config, state)):
            self._coordination.led(partition)

    def _leave(self, partition: Partition) -> None:
        self._coordination.lose(partition)
        self._replication.stop(partition)

    def _must_fsync(self, config: LogConfig, state: PartitionState) -> bool:
        """Whether a write must be on disk before it counts. With durability `auto` that is so where fewer than two
        replicas must hold a write.
        """
        durability = self._config.log_durability
        if durability != "auto":
            return durability == "fsync"
        return min(config.min_insync_replicas, len(state.replicas)) < 2

    def _take_dynamic_config(self, image: Image) -> None:
        everywhere = image.broker_config("default").values
        own = image.broker_config(str(self._metadata.broker_id)).values
        for problem in self._config.set_dynamic(everywhere, own):
            logger.warning("%s", problem)
        for topic in image.topics.values():
            self._try_topic(topic.name, None, topic, config_changed=True)
