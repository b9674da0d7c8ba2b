"""The coordinators of one kind on this broker: one shard for each partition of their internal topic that this
broker leads.

What always holds: a key belongs to one partition of the internal topic, and only that partition's leader answers
for it, after it has replayed the
partition. The topic is created when the first client looks for a coordinator.

`__consumer_offsets` holds group coordinators, `__transaction_state` transaction coordinators; the two differ by
their machine alone.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic

from log.control import ControlType
from log.ids import TopicPartition
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.ports import Env
from service.broker.shard import CoordinatorLoading, MachineT, NotCoordinator, Shard


class Coordinators(Generic[MachineT]):
    def __init__(
        self,
        topic: str,
        partition_of: Callable[[str, int], int],
        new_machine: Callable[[Partition], MachineT],
        post: Callable[[Partition, Any], None],
        partitions: PartitionTable,
        env: Env,
        on_loaded: Callable[[Shard[MachineT]], None] = lambda shard: None,
    ) -> None:
        self.topic = topic
        self._partition_of = partition_of
        self._new_machine = new_machine
        self._post = post
        self._partitions = partitions
        self._env = env
        self._on_loaded = on_loaded
        self._shards: dict[int, Shard[MachineT]] = {}

    def shards(self) -> Iterable[Shard[MachineT]]:
        """Those that answer for this broker now, by partition."""
        return [self._shards[index] for index in sorted(self._shards)]

    def led(self, partition: Partition) -> None:
        """This broker leads a partition of the internal topic from now on: replay it, then answer."""
        index = partition.topic_partition.partition
        self.lost(index)
        shard: Shard[MachineT] = Shard(
            partition, self._new_machine(partition), self._env, lambda effect: self._post(partition, effect)
        )
        self._shards[index] = shard
        self._env.tasks.spawn(f"load {partition.topic_partition}", self._load(shard))

    async def _load(self, shard: Shard[MachineT]) -> None:
        await shard.load()
        if shard.loaded and not shard.dropped:
            self._on_loaded(shard)

    def lost(self, index: int) -> None:
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.drop()

    def partition_index(self, key: str) -> int:
        """The partition of the internal topic that `key` belongs to."""
        topic = self._partitions.topic(self.topic)
        if topic is None:
            raise NotCoordinator
        return self._partition_of(key, len(topic))

    def shard(self, key: str) -> Shard[MachineT]:
        shard = self._shards.get(self.partition_index(key))
        if shard is None or shard.dropped:
            raise NotCoordinator
        if not shard.loaded:
            raise CoordinatorLoading
        return shard

    def marked(self, index: int, producer_id: int, producer_epoch: int, kind: ControlType) -> None:
        """A transaction's marker was written to one of the topic's partitions."""
        shard = self._shards.get(index)
        if shard is not None and shard.loaded:
            shard.marked(producer_id, producer_epoch, kind)

    def handle(self, key: str, command: Any) -> asyncio.Future[Any]:
        """Decide on a command about `key`. Raises `NotCoordinator` or `CoordinatorLoading`, here or when awaited."""
        return self.shard(key).handle(command)

    def tell_all(self, command: Any) -> None:
        """Let every shard decide on something whose answer nobody waits for."""
        for shard in self.shards():
            if shard.loaded and not shard.dropped:
                shard.tell(command)

    def partition(self, index: int) -> Partition | None:
        return self._partitions.get(TopicPartition(self.topic, index))
