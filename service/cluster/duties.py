"""Work that brokers do for the cluster without a request. One of them controls the cluster: it gives partitions of dead
brokers to other replicas that are in sync, returns leadership to the preferred replicas, and lets internal topics
require the configured number of replicas in sync.

Nothing is decided here. `election` and `controller` decide on the image, and the store checks that the image still
holds. So a broker does no harm if it goes on for a while after another has become the controller. One task does
everything, one step after the other (R11).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from log.ids import TopicPartition
from service.cluster.config_commands import RequireInSync
from service.cluster.controller import Command, EndReassignments, FenceBroker, PreferLeaders, RemoveDead, Successors
from service.cluster.election import candidates
from service.cluster.image import Delta, Image, RegisteredBroker, Topic
from service.cluster.lookout import Lookout
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import Steps, Turn, done_in_turns, in_turns

logger = logging.getLogger("oncelog.controller")

Reply = TypeVar("Reply")
AskReplicas = Callable[[Mapping[TopicPartition, Sequence[int]]], Awaitable[Mapping[TopicPartition, Sequence[int]]]]
"""Asks the replicas of partitions what they have (`service/broker/copies.py`)."""

AGAIN_S = 0.2
"""The pause before a change that failed is tried again."""
LOOKED_AT_MOST = 1_000
"""The most partitions of one change that are looked at at once."""


class Duties:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        address_of: Callable[[RegisteredBroker], tuple[str, int]],
        least_in_sync: Mapping[str, int],
        best_first: AskReplicas,
        without_any: AskReplicas,
    ) -> None:
        self._env = env
        self._config = config
        self._metadata = metadata
        self._least_in_sync = least_in_sync
        self._best_first = best_first
        self._without_any = without_any
        self._lookout = Lookout(env, metadata, address_of, self._replace_dead)
        self._stirred = asyncio.Event()
        self._rebalance_at_s = 0.0
        self.elected = 0
        """How many partitions were changed because their leader or an in-sync replica had died."""

    def heard(self, delta: Delta) -> None:
        """Take note of a change of the image; it must see every change."""
        controller_changed = delta.old.controller_session != delta.new.controller_session
        if delta.brokers or controller_changed or self._gives_to_dead(delta) or self._now_may_lose(delta):
            self._stirred.set()
        self._lookout.heard(delta)

    def _gives_to_dead(self, delta: Delta) -> bool:
        """Whether this broker is the controller, and a partition has a leader that is gone: a command was decided
        before the controller had replaced that broker, and committed afterwards. The controller may not act while the
        store is silent, and nobody tells it of this again.
        """
        if not self._metadata.is_controller:
            return False
        if len(delta.partitions) > LOOKED_AT_MOST:
            return True  # perhaps; the controller looks itself
        states = map(delta.new.partition, delta.partitions)
        return any(state is not None and state.leader not in delta.new.brokers for state in states)

    def _now_may_lose(self, delta: Delta) -> bool:
        """Whether unclean elections may have been allowed, perhaps for partitions that wait for one."""
        topics = (delta.new.topics.get(name) for name in delta.topics)
        return bool(delta.broker_configs) or any(topic is not None and self._may_lose(topic) for topic in topics)

    def stir(self) -> None:
        """This broker is in session, for the first time or again, so there may be work."""
        self._stirred.set()
        self._lookout.look()

    async def begin(self) -> None:
        """Control the cluster if nobody does, before this broker counts as ready."""
        try:
            await self._metadata.claim()
        except MetadataLost as lost:
            logger.info("the cluster can't be controlled now: %s", lost)

    async def run(self) -> None:
        self._plan_rebalance()
        while True:
            await self._stirred_or_due()
            try:
                await self._do()
            except MetadataLost as lost:
                logger.info("the cluster can't be controlled now: %s", lost)
                await self._again()
            except Exception:  # this task must not end: without it nobody would replace dead brokers
                logger.exception("the controller's work failed; it is tried again")
                await self._again()

    async def _again(self) -> None:
        await asyncio.sleep(AGAIN_S)
        self._stirred.set()

    async def _replace_dead(self, broker: RegisteredBroker) -> None:
        """The process of `broker` has died, although its session has not ended yet. Do not wait for the end of the
        session.
        """
        metadata = self._metadata
        logger.warning("broker %d refuses connections: it is taken for dead", broker.id)
        try:
            if metadata.controlling:
                await metadata.execute(FenceBroker(broker.id, broker.epoch), as_controller=True)
            else:
                await metadata.take_over(broker)
        except MetadataLost as lost:
            logger.info("the cluster can't be controlled now: %s", lost)

    async def _stirred_or_due(self) -> None:
        due_s = self._rebalance_at_s - self._env.clock.monotonic()
        try:
            async with asyncio.timeout(max(due_s, 0.0)):
                await self._stirred.wait()
        except TimeoutError:
            return
        self._stirred.clear()

    async def _do(self) -> None:
        metadata = self._metadata
        rebalances = self._env.clock.monotonic() >= self._rebalance_at_s
        if rebalances:
            self._plan_rebalance()
        if not metadata.in_session:
            if metadata.has_session:  # the store may answer again before anybody has noticed that it was silent
                await self._again()
            return  # otherwise the registration will wake this task
        self._lookout.look()  # the image may have changed during such a silence
        await metadata.claim()
        if not metadata.controlling:
            return
        given = await self._all(RemoveDead(min_in_sync=metadata.min_in_sync()))
        image = metadata.image
        if lost := await done_in_turns(self._without_holders(image)):
            best = await _in(image, await self._best_first(lost))
            given += await self._all(RemoveDead(best, metadata.min_in_sync(), self._may_lose))
        image = metadata.image
        lost = await done_in_turns(self._without_members(image))
        if lost and (empty := await _in(image, await self._without_any(lost))):
            logger.critical(
                "%d partitions begin again, such as %s-%d: all their replicas are here, and none has anything",
                *(len(empty), *next(iter(empty))),
            )
            given += await self._all(RemoveDead(empty, metadata.min_in_sync()))
        if given:
            self.elected += given
            logger.warning("%d partitions were changed because brokers are gone", given)
        if ended := await self._all(EndReassignments(metadata.min_in_sync())):
            logger.info("%d reassignments are over, as the replicas that they waited for are back", ended)
        if raised := await self._all(RequireInSync(self._least_in_sync)):
            logger.warning("%d internal topics require more replicas in sync from now on", raised)
        if rebalances and self._config.auto_leader_rebalance_enable and (moved := await self._all(PreferLeaders())):
            logger.info("%d partitions are led by their preferred replicas again", moved)

    async def _all(self, command: Command[int]) -> int:
        """Repeat a command until nothing is left to do. If very many partitions must change, one commit changes only
        some of them.
        """
        total = 0
        while changed := await self._metadata.execute(command, as_controller=True):
            total += changed
        return total

    def _plan_rebalance(self) -> None:
        self._rebalance_at_s = self._env.clock.monotonic() + self._config.leader_imbalance_check_interval_seconds

    def _without_holders(self, image: Image) -> Steps[dict[TopicPartition, tuple[int, ...]]]:
        """The partitions that can be led only uncleanly, and may: by these replicas."""
        found, turn = {}, Turn(LOOKED_AT_MOST)
        for topic in filter(self._may_lose, image.topics.values()):
            for index, state in topic.partitions.items():
                if turn.is_over():
                    yield
                if state.leader not in image.brokers and (replicas := candidates(state, image.brokers)):
                    found[TopicPartition(topic.name, index)] = replicas
        return found

    @staticmethod
    def _without_members(image: Image) -> Steps[dict[TopicPartition, tuple[int, ...]]]:
        """The partitions whose last member has lost its copy (R17), and of which all replicas are alive."""
        found, turn = {}, Turn(LOOKED_AT_MOST)
        for topic in image.topics.values():
            for index, state in topic.partitions.items():
                if turn.is_over():
                    yield
                if not state.isr and len(candidates(state, image.brokers)) == len(state.replicas):
                    found[TopicPartition(topic.name, index)] = state.replicas
        return found

    def _may_lose(self, topic: Topic) -> bool:
        own = topic.config.get("unclean.leader.election.enable")
        return self._config.unclean_leader_election_enable if own is None else own.strip().lower() == "true"


async def _in(image: Image, replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, Successors]:
    """The same for the state in which these partitions are in `image`."""
    named = in_turns(replicas.items(), LOOKED_AT_MOST)
    return {partition: Successors.asked(image, partition, each) async for partition, each in named}
