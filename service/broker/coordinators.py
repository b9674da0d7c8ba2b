"""The coordinators of one kind on this broker: one shard for each partition of their internal topic that this broker
leads.

What always holds: a key belongs to one partition of the internal topic. Only the leader of that partition answers for
the key, and only after it has replayed the partition. The topic is created when the first client looks for a
coordinator. A shard may give itself up while this broker still leads its partition. The partition is then replayed
again after a pause, which grows with each further failure.

`__consumer_offsets` holds group coordinators, `__transaction_state` transaction coordinators; the two differ by their
machine alone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic

from log.control import ControlType
from log.ids import NO_EPOCH, TopicPartition
from service.broker.internal_topics import InternalTopic
from service.broker.machine import MachineT, Mishaps
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.replay import LeaveToOthers, Replay
from service.broker.shard import CoordinatorLoading, FewAnswersATurn, NotCoordinator, OneATurn, Shard
from service.broker.standby import Standby
from service.cluster.image import NO_LEADER, Image
from service.ports import Env

logger = logging.getLogger("oncelog.coordinator")

REBUILD_S_MIN, REBUILD_S_MAX = 0.1, 10.0
"""The shortest and the longest pause before a shard is replayed again."""
SERVED_S = 1.0
"""After a shard has served this long, the next pause is the shortest again. An in-sync set that is too small now and
then ends a shard each time, and clients should not wait longer than it stays too small.
"""


class Coordinators(Generic[MachineT]):
    def __init__(
        self,
        topic: InternalTopic,
        new_machine: Callable[[Partition], MachineT],
        post: Callable[[Partition, Sequence[Any]], None],
        partitions: PartitionTable,
        image: Callable[[], Image],
        env: Env,
        leave_to_others: LeaveToOthers,
        on_loaded: Callable[[Shard[MachineT]], None] = lambda shard: None,
    ) -> None:
        self.topic = topic
        self._new_machine = new_machine
        self._post = post
        self._partitions = partitions
        self._image = image
        self._env = env
        self._leave_to_others = leave_to_others
        self._on_loaded = on_loaded
        self._shards: dict[int, Shard[MachineT]] = {}
        self.standby = Standby(topic.name, self._new_replay, env, leave_to_others)
        self._pauses_s: dict[int, float] = {}
        self.mishaps = Mishaps()
        self._due = OneATurn()
        self.answers = FewAnswersATurn()

    def shards(self) -> Iterable[Shard[MachineT]]:
        """The shards on this broker, in the order of their partitions; some may still be loading."""
        return [self._shards[index] for index in sorted(self._shards)]

    @property
    def is_replicated(self) -> bool:
        """Whether others could lead what is coordinated here."""
        return any(shard.partition.is_replicated for shard in self._shards.values())

    def not_ready(self, broker_id: int) -> list[int]:
        """The partitions that this broker leads, as the image says, and whose shard can't answer now. It may not have
        begun to lead them yet, or their logs are being read, or are damaged.
        """
        topic = self._image().topics.get(self.topic.name)
        led = [] if topic is None else [index for index, it in topic.partitions.items() if it.leader == broker_id]
        shards = self._shards
        return [at for at in led if at not in shards or shards[at].dropped or not shards[at].loaded]

    def led(self, partition: Partition, *, is_first: bool = False) -> None:
        """This broker leads a partition of the internal topic from now on: replay it, then answer. `is_first`: nobody
        has led it in this leader epoch before.
        """
        index = partition.topic_partition.partition
        replay = self.standby.take(partition) or self._new_replay(partition)
        self.lost(index)
        shard: Shard[MachineT] = Shard(
            replay,
            self._env,
            lambda effects: self._post(partition, effects),
            self.mishaps,
            self._given_up,
            self._leave_to_others,
            self._due,
            self.answers,
            is_first=is_first,
        )
        self._shards[index] = shard
        self._env.tasks.spawn(f"load {partition.topic_partition}", self._load(shard))

    def _new_replay(self, partition: Partition) -> Replay[MachineT]:
        return Replay(partition, self._new_machine(partition), self.mishaps)

    def followed(self, partition: Partition) -> None:
        """Another broker leads the partition: get ready to lead it."""
        self.end_shard(partition.topic_partition.partition)
        self.standby.keep(partition)

    async def _load(self, shard: Shard[MachineT]) -> None:
        await shard.load()
        if shard.loaded and not shard.dropped:
            self._on_loaded(shard)

    def _given_up(self, shard: Shard[MachineT]) -> None:
        index = shard.partition.topic_partition.partition
        before_s = 0.0 if self._has_served(shard) else self._pauses_s.get(index, 0.0)
        self._pauses_s[index] = min(max(2 * before_s, REBUILD_S_MIN), REBUILD_S_MAX)
        self._env.tasks.spawn(f"rebuild {shard.partition.topic_partition}", self._rebuild(shard, index))

    def _has_served(self, shard: Shard[MachineT]) -> bool:
        return self._env.clock.monotonic() - shard.loaded_s >= SERVED_S

    async def _rebuild(self, shard: Shard[MachineT], index: int) -> None:
        await asyncio.sleep(self._pauses_s[index])
        if self._shards.get(index) is shard and shard.partition.is_leading:
            self.mishaps.rebuilt += 1
            logger.warning("%s is replayed again", shard.partition.topic_partition)
            self.led(shard.partition, is_first=shard.is_first and not shard.loaded)

    def lost(self, index: int) -> None:
        """This broker neither leads nor follows the partition, as far as it knows."""
        self.end_shard(index)
        self.standby.drop(index)

    def end_shard(self, index: int) -> None:
        """This broker leads the partition no more, or not for now."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            if not shard.dropped and self._has_served(shard):
                self._pauses_s.pop(index, None)
            shard.drop()

    def at(self, index: int) -> Shard[MachineT] | None:
        """The shard of that partition of the internal topic; None if this broker does not lead the partition."""
        return self._shards.get(index)

    def partition_index(self, key: str) -> int:
        """The partition of the internal topic that `key` belongs to, wherever it is led."""
        topic = self._image().topics.get(self.topic.name)
        if topic is None:
            raise NotCoordinator
        return self.topic.partition_of(key, len(topic.partitions))

    def leader(self, key: str) -> int:
        """The broker that coordinates `key`; NO_LEADER if there is none now."""
        topic = self._image().topics.get(self.topic.name)
        return NO_LEADER if topic is None else topic.partitions[self.partition_index(key)].leader

    def may_be_at(self, broker_id: int, key: str) -> bool:
        """Whether that broker coordinates `key`, or nobody does for now, as the image says. It may not lead yet."""
        made = self.topic.name in self._image().topics
        return made and self.leader(key) in (NO_LEADER, broker_id)

    def epoch(self, key: str) -> int:
        """The leader epoch of the coordinator that is asked about `key`: of the one here, else of the one in the
        image.
        """
        topic = self._image().topics.get(self.topic.name)
        if topic is None:
            return NO_EPOCH
        index = self.partition_index(key)
        shard = self._shards.get(index)
        return topic.partitions[index].leader_epoch if shard is None else shard.partition.leader_epoch

    def shard(self, key: str) -> Shard[MachineT]:
        shard = self._shards.get(self.partition_index(key))
        if shard is None or shard.dropped:
            raise NotCoordinator
        if not shard.loaded:
            raise CoordinatorLoading
        return shard

    def write_gathered(self, index: int) -> None:
        """Before anything else is written to that partition of the topic: what was decided before comes before it."""
        shard = self._shards.get(index)
        if shard is not None:
            shard.write_gathered()

    def marked(self, index: int, producer_id: int, producer_epoch: int, kind: ControlType) -> None:
        """A transaction's marker was written to one of the topic's partitions."""
        shard = self._shards.get(index)
        if shard is not None and shard.loaded:
            shard.marked(producer_id, producer_epoch, kind)

    def handle(self, key: str, command: Any) -> asyncio.Future[Any]:
        """Decide on a command about `key`. Raises `NotCoordinator` or `CoordinatorLoading`, here or when awaited."""
        return self.shard(key).handle(command)

    def tell_all(self, command: Any) -> None:
        """Give `command` to every shard that is loaded now. Nobody waits for an answer."""

        def tell(shard: Shard[MachineT]) -> None:
            if not shard.dropped:
                shard.tell(command)

        for shard in self.shards():
            if shard.loaded:
                self._due.do(partial(tell, shard))

    def partition(self, index: int) -> Partition | None:
        return self._partitions.get(TopicPartition(self.topic.name, index))
