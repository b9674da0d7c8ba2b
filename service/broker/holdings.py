"""The partitions that this broker holds, kept in line with the metadata. Partitions appear, change their settings, or
go. Each one is led, followed or left alone.

What always holds: a partition is served only while the metadata names this broker as its leader, in the epoch that the
metadata names, and this broker is in session with the metadata store. Partitions of a topic that is gone are not found
any more from the moment in which the image shows that.

A change of many partitions is carried out in turns. Each is given the role that the image names at its turn, so it does
not matter what has changed in between. Changes of few partitions do not wait for that.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from log.config import LogConfig
from log.ids import NO_EPOCH, TopicPartition
from log.steps import done_at_once
from service.broker.coordination import Coordination
from service.broker.internal_topics import log_config_of
from service.broker.log_folder import LogFolder
from service.broker.opening import PartitionMaker
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.replication import Replication
from service.cluster.controller import RemoveFromLeadership
from service.cluster.image import Delta, Image, PartitionState, Topic
from service.cluster.metadata import NOT_ANSWERED, ClusterMetadata, MetadataLost
from service.groups.commands import ForgetTopic
from service.ports import Tasks
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns, slices_in_turns

logger = logging.getLogger("oncelog.broker")

REMOVE_AGAIN_S = 0.2
"""The pause after a failed attempt to remove the folder of a deleted partition."""
FAIL_AGAIN_S = 5.0
"""The pause after partitions of a failed disk could not be let go. Each time the log says so of each."""
HAND_OVER_S = 5.0
"""The longest time for which a stop waits for the metadata store."""
FAREWELL_S = 0.2
"""How long a broker that stops goes on answering, so that clients learn from it who leads now."""
AT_ONCE, A_TURN = 500, 100
"""How much of a change is carried out at once, and how much in one turn if it is a larger one: a partition that has its
role counts 1, which is some ten microseconds.
"""
A_TOPIC, A_NEW_PARTITION, ONE_THAT_GOES = 2, 10, 5
TOLD_AT_ONCE = 20
"""The most settings without effect that are logged for one change."""


@dataclass(slots=True)
class Behind:
    """What a change of the metadata leaves to do about one topic."""

    gone: list[tuple[Topic, list[Partition]]] = field(default_factory=list)
    """Topics that had the name, and their partitions here."""
    changed: dict[int, None] = field(default_factory=dict)
    whole: bool = False
    """All partitions are to be looked at, not only those that changed."""
    config_changed: bool = False


class Holdings:
    def __init__(
        self,
        tasks: Tasks,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        partitions: PartitionTable,
        maker: PartitionMaker,
        coordination: Coordination,
        replication: Replication,
    ) -> None:
        self._tasks = tasks
        self._config = config
        self._metadata = metadata
        self._partitions = partitions
        self._maker = maker
        self._coordination = coordination
        self._replication = replication
        self._leaving: dict[TopicPartition, Partition] = {}
        self._in_session = self._is_over = False
        self._behind: dict[str, Behind] = {}
        self._in_work: str | None = None
        self._turn = Turn(A_TURN)
        self._is_even = asyncio.Event()
        self._is_even.set()

    # -- life

    def begin(self) -> None:
        """This broker is registered now: lead and follow the partitions that the metadata gives it."""
        self._in_session = True
        self._look_at_all(config_changed=False)

    async def even(self) -> None:
        """Wait until every partition has the role that the metadata names."""
        await self._is_even.wait()

    def stop(self) -> None:
        """Follow the metadata no more, and stop leading for good."""
        self._is_over = True
        self._behind.clear()
        self.step_down()

    def step_down(self) -> None:
        """Stop leading everything until the next session: the metadata may name other leaders by now."""
        self._in_session = False
        for partition in self._partitions:
            self._let_go(partition)

    def _let_go(self, partition: Partition) -> None:
        self._coordination.resign(partition)
        self._replication.stop(partition)

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
            why = str(lost) or NOT_ANSWERED
            logger.warning("the partitions that this broker leads could not be handed over: %s", why)
        except Exception:  # the logs must be closed all the same
            logger.exception("the partitions that this broker leads could not be handed over")

    async def _part(self) -> None:
        """Send clients to the other brokers for a while, then leave the cluster. Without leaving, clients would try
        this broker's closed port with longer and longer pauses, and would still be pausing when it is back. It also
        keeps this broker from coming in sync again before it stops.
        """
        self._in_session = False
        async for partition in in_turns(self._partitions, NAMED_A_TURN):  # clients are answered still
            self._let_go(partition)
        await asyncio.sleep(FAREWELL_S)
        await self._metadata.leave()

    def folder_failed(self, folder: LogFolder) -> None:
        """The partitions that this broker leads come first, for nobody can use them until another broker leads. One
        that waits for its turn is not written to: its disk refuses every change (`LogFolder.fail`).
        """
        held = [partition for partition in self._partitions if partition.folder is folder]
        held.sort(key=lambda partition: not partition.is_leading)
        if len(held) > AT_ONCE or (held := self._fail(held, folder)):
            self._tasks.spawn(f"partitions of {folder.name}, which failed", self._fail_in_turns(held, folder))

    async def _fail_in_turns(self, held: list[Partition], folder: LogFolder) -> None:
        while True:
            left: list[Partition] = []
            async for some in slices_in_turns(held, A_TURN):
                left += self._fail(some, folder)
            if not left:
                return
            held = left
            await asyncio.sleep(FAIL_AGAIN_S)

    def _fail(self, held: list[Partition], folder: LogFolder) -> list[Partition]:
        """Returns those in which this did not go well, and is to be done again."""
        left = []
        for partition in held:
            if partition.folder is folder and self._partitions.get(partition.topic_partition) is partition:
                try:
                    try:
                        self._coordination.lose(partition)
                    finally:
                        self._replication.fail(partition)
                except Exception:  # an error in one partition must not keep the others as they are
                    logger.exception("%s could not be let go; it is tried again", partition.topic_partition)
                    left.append(partition)
        return left

    async def end(self) -> None:
        """Wait until the folders of deleted partitions are removed."""
        for partition in list(self._leaving.values()):
            await self._maker.remove(partition)

    # -- following the metadata

    def follow(self, delta: Delta) -> None:
        """Hold and serve what the metadata says now. Changes must come in the order of commits."""
        if delta.broker_configs:
            self.learn_settings(delta.new)
            self._look_at_all(config_changed=True)
        names = dict.fromkeys(delta.topics)
        for name, index in delta.partitions:
            names[name] = None
            self._behind_in(name).changed[index] = None
        for name in names:
            self._note(name, delta.old.topics.get(name), delta.new.topics.get(name))
        self._catch_up(names)

    def _behind_in(self, name: str) -> Behind:
        behind = self._behind.get(name)
        if behind is None:
            behind = self._behind[name] = Behind()
        return behind

    def _note(self, name: str, old: Topic | None, new: Topic | None) -> None:
        behind = self._behind_in(name)
        if old is not None and (new is None or new.id != old.id):
            partitions = self._partitions.take_out(old.id)
            for partition in partitions:
                self._leaving[partition.topic_partition] = partition
            behind.gone.append((old, partitions))
        if old is None or new is None or new.id != old.id:
            behind.whole = True
        elif new.config != old.config:
            behind.whole = behind.config_changed = True

    def _look_at_all(self, *, config_changed: bool) -> None:
        names = self._metadata.image.topics
        for name in names:
            behind = self._behind_in(name)
            behind.whole = True
            behind.config_changed = behind.config_changed or config_changed
        self._catch_up(names)

    def _catch_up(self, names: Iterable[str]) -> None:
        """Carry out what is to be done about these topics: at once if that is little, otherwise later in turns. What
        changes in a topic that is in work comes after that.
        """
        left = AT_ONCE
        for name in names:
            if name == self._in_work or (left := left - self._work(name, self._behind[name])) < 0:
                break
        else:
            for name in names:
                done_at_once(self._try_topic(name))
            return
        if self._is_even.is_set():
            self._is_even.clear()
            self._tasks.spawn("follow the metadata", self._catch_up_in_turns())

    def _work(self, name: str, behind: Behind) -> int:
        topic, held = self._metadata.image.topics.get(name), len(self._partitions.topic(name) or ())
        work = A_TOPIC + sum(ONE_THAT_GOES * len(partitions) for _, partitions in behind.gone)
        if topic is not None:
            work += len(topic.partitions) if behind.whole else len(behind.changed)
            work += A_NEW_PARTITION * max(len(topic.partitions) - held, 0)
        return work

    async def _catch_up_in_turns(self) -> None:
        try:
            while self._behind:
                self._in_work = next(iter(self._behind))
                await done_in_turns(self._try_topic(self._in_work))
        finally:
            self._in_work = None
            self._is_even.set()

    def _try_topic(self, name: str) -> Steps[None]:
        try:
            yield from self._follow_topic(name, self._behind.pop(name))
        except Exception:  # an error in one topic: its partitions are not served, the other topics are
            logger.exception(
                "%s: a change of this topic could not be carried out; its partitions here are not served", name
            )
            for partition in (self._partitions.topic(name) or {}).values():
                self._leave(partition)

    def _follow_topic(self, name: str, behind: Behind) -> Steps[None]:
        """Carry out a change. After each turn the image is asked again. If the topic is another one then, the rest is
        done with the change that made it so.
        """
        turn = self._turn
        for old, partitions in behind.gone:
            for partition in partitions:
                if turn.is_over(ONE_THAT_GOES):
                    yield
                self._remove(partition)
            self._coordination.groups.tell_all(ForgetTopic(old.name, old.id))
        if turn.is_over(A_TOPIC):
            yield
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            return
        config = log_config_of(topic, self._config)
        for index in list(topic.partitions if behind.whole else behind.changed):
            if turn.is_over(self._work_of(name, index)):
                yield
                now = self._metadata.image.topics.get(name)
                if self._is_over or now is None or now.id != topic.id:
                    return
                if now is not topic:
                    config, topic = log_config_of(now, self._config), now
            if (state := topic.partitions.get(index)) is not None:
                self._follow_partition(topic, index, state, config, config_changed=behind.config_changed)

    def _work_of(self, name: str, index: int) -> int:
        return 1 if index in (self._partitions.topic(name) or ()) else A_NEW_PARTITION

    def _follow_partition(
        self, topic: Topic, index: int, state: PartitionState, config: LogConfig, *, config_changed: bool
    ) -> None:
        partition = (self._partitions.topic(topic.name) or {}).get(index)
        if self._metadata.broker_id not in state.replicas:
            if partition is not None:
                self._drop(partition)
            return
        if partition is None:
            if TopicPartition(topic.name, index) in self._leaving:
                return  # the old partition of this name is still being removed; the new one is added after that
            partition = self._maker.add_new(topic, index, config)
        elif config_changed:
            partition.set_config(config, fsync=self._must_fsync(config, state))
        assert partition.topic_id == topic.id, "a topic made again has partitions of its own"
        self._settle(partition)

    def _drop(self, partition: Partition) -> None:
        """Stop serving the partition. Its folder is removed when all work on it has finished. Until then no other
        partition may have the name.
        """
        assert partition.topic_partition not in self._leaving, "a name has one partition that is being removed"
        self._partitions.remove(partition)
        self._leaving[partition.topic_partition] = partition
        self._remove(partition)

    def _remove(self, partition: Partition) -> None:
        self._leave(partition)
        self._tasks.spawn(f"delete {partition.topic_partition}", self._make_room(partition))

    async def _make_room(self, partition: Partition) -> None:
        while True:
            if await self._maker.remove(partition):
                break
            await asyncio.sleep(REMOVE_AGAIN_S)
        name, index = partition.topic_partition
        del self._leaving[partition.topic_partition]
        if name in self._metadata.image.topics:  # a successor
            self._behind_in(name).changed[index] = None
            self._catch_up((name,))

    def _settle(self, partition: Partition) -> None:
        """Give the partition the role that the metadata says."""
        if not self._in_session:
            return
        state, former_epoch = self._metadata.image.partition(partition.topic_partition), partition.leader_epoch
        if partition.offline or partition.folder.failed is not None:
            self._replication.fail(partition)
        elif state is None:
            self._leave(partition)
        elif state.leader != self._metadata.broker_id or self._replication.must_raise(partition, state):
            self._coordination.followed(partition)
            self._replication.follow(partition, state, fsync=self._must_fsync(partition.log.config, state))
        elif self._replication.lead(partition, state, fsync=self._must_fsync(partition.log.config, state)):
            self._coordination.led(partition, is_first=self._is_new(state.leader_epoch, former_epoch))

    def _is_new(self, epoch: int, former_epoch: int) -> bool:
        """Whether nobody has led in this epoch before. This process knows it if the partition had an earlier epoch here
        (`former_epoch`), or if the process before it did not stop in order (R4).
        """
        return epoch > former_epoch and (former_epoch != NO_EPOCH or not self._maker.was_clean)

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

    def learn_settings(self, image: Image) -> None:
        """Take the settings that the metadata has for this broker. Its partitions are not told."""
        everywhere = image.broker_config("default").values
        own = image.broker_config(str(self._metadata.broker_id)).values
        problems = self._config.set_dynamic(everywhere, own)
        for problem in problems[:TOLD_AT_ONCE]:
            logger.warning("%s", problem)
        if len(problems) > TOLD_AT_ONCE:
            logger.warning("and %d more settings of brokers that do nothing", len(problems) - TOLD_AT_ONCE)
