"""Keeps the in-sync sets. The leader of a partition watches its followers, and proposes a new in-sync set when a
follower has fallen behind or caught up.

What always holds: only the metadata store changes an in-sync set, by compare-and-set. This broker acts on a new set
when its image shows it. There is one proposal a partition at a time, except that a new one may be made when the image
shows that an earlier one can't be accepted any more. A proposal whose outcome is unknown counts as if it held, until
the image shows what holds.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, NamedTuple

from log.ids import TopicId
from log.replica import Proposal
from service.broker.partition import Leading, Partition
from service.broker.partition_table import PartitionTable
from service.cluster.controller import (
    AlterPartition,
    GiveUpReplica,
    MetadataDecision,
    OfOnePartition,
    Refusal,
    Reply_co,
    Together,
)
from service.cluster.image import Image, PartitionState
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import breathe, slices_in_turns
from service.wire.error_codes import ErrorCode

logger = logging.getLogger("oncelog.replication")

PARTITIONS_A_TURN = 256
PROPOSED_TOGETHER = 500
"""The most in-sync sets that are proposed in one commit. When a broker comes back there is one for each partition."""
ANSWERED_A_TURN = 100
TOLD_BY_NAME = 20
"""The most partitions that the log names one by one. When a broker of thousands comes back, the lines would hold the
loop for as long as all else.
"""


class Proposed(NamedTuple):
    """A proposal, and the role in which it was made."""

    partition: Partition
    role: Leading
    command: AlterPartition


@dataclass(frozen=True, slots=True)
class Alone(Generic[Reply_co]):
    """A proposal that goes wrong alone. Those of its lot would go wrong with it each time: each look gathers the same
    lot again.
    """

    proposal: OfOnePartition[Reply_co]

    @property
    def topic_id(self) -> TopicId:
        return self.proposal.topic_id

    @property
    def index(self) -> int:
        return self.proposal.index

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[Reply_co | Refusal]:
        try:
            return self.proposal.decide(image, retried=retried)
        except Exception as error:
            logger.exception("nothing can be decided on %s", self.proposal)
            return MetadataDecision(Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))


def together(proposals: Iterable[OfOnePartition[Reply_co]]) -> Together[Reply_co | Refusal]:
    return Together(tuple(Alone(each) for each in proposals))


class InSyncSets:
    def __init__(self, env: Env, config: BrokerConfig, metadata: ClusterMetadata, partitions: PartitionTable) -> None:
        self._env = env
        self._config = config
        self._metadata = metadata
        self._partitions = partitions
        self._confirmation: asyncio.Future[bool] | None = None
        self._confirming = asyncio.Lock()
        self._gathered: list[Proposed] = []
        """Proposals that wait while others are under way."""
        self._is_proposing = False
        self._given_up: tuple[dict[Partition, None], dict[Partition, None]] = {}, {}
        """Partitions that can't be served here and are to be left to others: those that this broker leads, which nobody
        can use until then, and the rest.
        """
        self._is_giving_up = False
        self._decided: list[tuple[Partition, tuple[int, ...]]] = []
        """The in-sync sets that were decided in this turn of the loop."""

    def now_ms(self) -> int:
        return int(self._env.clock.monotonic() * 1000)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._config.replica_lag_time_max_ms / 2000)
            for count, partition in enumerate(self._partitions):
                try:
                    if partition.is_replicated and (partition.offline or partition.folder.failed is not None):
                        self.give_up(partition)  # whatever its role: perhaps it could not be let go
                    elif partition.is_replicated:
                        self.consider(partition)
                        if partition.is_leading and partition.must_close_gap:
                            partition.close_gap(now_ms=self._env.clock.wall_ms())
                except Exception:  # an error in one partition must not stop the look at the others
                    logger.exception(
                        "%s: the check of the in-sync set failed; it is tried again", partition.topic_partition
                    )
                if count % PARTITIONS_A_TURN == 0:
                    await breathe()

    def fetched(self, partition: Partition, member: int, offset: int, *, start_offset: int, broker_epoch: int) -> None:
        """A follower has shown that it holds everything from `start_offset` up to `offset` (exclusive)."""
        partition.fetched(member, offset, start_offset=start_offset, broker_epoch=broker_epoch, now_ms=self.now_ms())
        if partition.replicas.is_worth_asking(member):
            self.consider(partition, joiner=member)

    def may_lead(self, partition: Partition, broker_id: int, broker_epoch: int) -> bool | None:
        """Whether this life of a broker may lead the partition next. None: the registered life, as far as this broker
        has heard, is another.
        """
        image = self._metadata.image
        broker, state = image.brokers.get(broker_id), image.partition(partition.topic_partition)
        if broker is None or broker.epoch != broker_epoch or state is None:
            return None
        return broker_id in state.isr or broker_id in state.eligible

    def consider(self, partition: Partition, *, joiner: int | None = None) -> None:
        """Propose the in-sync set that should hold, if another one holds. `joiner` has just fetched."""
        role = partition.role
        if not isinstance(role, Leading):
            return
        assert role.replicas.leader == self._metadata.broker_id, "only who leads proposes"
        lives = {broker.id: broker.epoch for broker in self._metadata.image.brokers.values()}
        proposal = role.replicas.proposal(
            lives,
            joiner=joiner,
            log_start_offset=partition.log.start_offset,
            log_end_offset=partition.log.end_offset,
            now_ms=self.now_ms(),
            lag_ms=self._config.replica_lag_time_max_ms,
        )
        if proposal is not None:
            role.replicas.proposed(proposal)
            self._gathered.append(self._proposed(partition, role, proposal))
            if not self._is_proposing:
                self._is_proposing = True
                self._env.tasks.spawn("propose in-sync sets", self._propose_gathered())

    def _proposed(self, partition: Partition, role: Leading, proposal: Proposal) -> Proposed:
        replicas = role.replicas
        command = AlterPartition(
            partition.topic_id,
            partition.topic_partition.partition,
            replicas.leader,
            self._metadata.broker_epoch,
            replicas.leader_epoch,
            replicas.partition_epoch,
            proposal,
            self._metadata.min_in_sync(),
        )
        return Proposed(partition, role, command)

    async def _propose_gathered(self) -> None:
        try:
            while some := self._gathered[:PROPOSED_TOGETHER]:
                del self._gathered[: len(some)]
                await self._propose(some)
        finally:
            self._is_proposing = False

    async def _propose(self, proposals: Sequence[Proposed]) -> None:
        replies: Sequence[PartitionState | Refusal]
        doubtful = False
        try:
            replies = await self._metadata.execute(together(each.command for each in proposals))
        except MetadataLost as lost:
            replies, doubtful = [Refusal(lost.error, str(lost))] * len(proposals), True
        except Exception as error:
            logger.exception("in-sync sets could not be proposed")
            replies, doubtful = [Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))] * len(proposals), True
        async for some in slices_in_turns(zip(proposals, replies, strict=True), ANSWERED_A_TURN):
            for proposed, reply in some:
                try:
                    self._answered(proposed, reply, doubtful=doubtful)
                except Exception:  # an error in one partition
                    logger.exception("%s: its in-sync set can't be changed", proposed.partition.topic_partition)

    def _answered(self, proposed: Proposed, reply: PartitionState | Refusal, *, doubtful: bool) -> None:
        """Other tasks have had their turns since the proposal, and since its answer."""
        partition, role, command = proposed
        replicas = role.replicas
        if partition.role is not role:
            return
        if isinstance(reply, Refusal) and replicas.partition_epoch != command.partition_epoch:
            # A later state is known, so this proposal can't be accepted any more. Another one may be under way since
            # then, and its members must go on to count (R7).
            return
        if isinstance(reply, Refusal):
            logger.info(
                "%s: the in-sync set %s was not accepted: %s",
                *(partition.topic_partition, [member for member, _ in command.isr], reply.message or reply.error.name),
            )
            # The image may be ahead of this leadership, which follows it at its turn. Then the set may have been
            # accepted, its answer lost, and another set or leader decided since.
            state = self._metadata.image.partition(partition.topic_partition)
            is_behind = state is None or state.partition_epoch != replicas.partition_epoch
            # A mistake may have come after a first commit whose answer was lost.
            is_mistake = reply.error is ErrorCode.UNKNOWN_SERVER_ERROR
            partition.not_accepted(doubtful=doubtful or is_behind or is_mistake)
        elif (reply.leader, reply.leader_epoch) == (replicas.leader, replicas.leader_epoch):
            # Otherwise the same commit has ended a reassignment: another leads, and this one learns it at its turn.
            if not self._decided:
                asyncio.get_running_loop().call_soon(self._tell)
            self._decided.append((partition, reply.isr))
            partition.decided(reply.isr, reply.partition_epoch, reply.eligible)

    def _tell(self) -> None:
        decided, self._decided = self._decided, []
        for partition, isr in decided[:TOLD_BY_NAME]:
            logger.info("%s: in sync are %s", partition.topic_partition, list(isr))
        if len(decided) > TOLD_BY_NAME:
            logger.info("and %d more in-sync sets were decided", len(decided) - TOLD_BY_NAME)

    # -- what can't be served

    def give_up(self, partition: Partition) -> None:
        """The partition's disk has failed. Let another in-sync replica lead, and take this one out of the in-sync set,
        so that nobody waits for it.
        """
        state = self._metadata.image.partition(partition.topic_partition)
        own = self._metadata.broker_id
        if state is not None and (
            own in state.eligible or (own in state.isr and (*state.isr, *state.eligible) != (own,))
        ):
            led, others = self._given_up
            (led if state.leader == own else others)[partition] = None
            if not self._is_giving_up:
                self._is_giving_up = True
                self._env.tasks.spawn("give up replicas", self._give_up_gathered())

    async def _give_up_gathered(self) -> None:
        led, others = self._given_up
        try:
            while some := list(islice(chain(led, others), PROPOSED_TOGETHER)):
                for partition in some:
                    led.pop(partition, None)
                    others.pop(partition, None)
                # Others were committed meanwhile: one of these may have gone, and come back whole.
                if lost := [each for each in some if self._partitions.get(each.topic_partition) is each]:
                    await self._give_up(lost)
        finally:
            self._is_giving_up = False

    async def _give_up(self, partitions: Sequence[Partition]) -> None:
        """Those for which this fails are given up again at the next look."""
        own, least = self._metadata.broker_id, self._metadata.min_in_sync()
        commands = [GiveUpReplica(each.topic_id, each.topic_partition.partition, own, least) for each in partitions]
        try:
            replies = await self._metadata.execute(together(commands))
        except MetadataLost as lost:
            logger.error("%s can't be left to other replicas yet: %s", _named(partitions), lost)
        except Exception:
            logger.exception("%s can't be left to other replicas yet", _named(partitions))
        else:
            answered = list(zip(partitions, replies, strict=True))
            if left := [partition for partition, reply in answered if reply is True]:
                logger.warning("%s left to other replicas", _named(left))
            if refused := [partition for partition, reply in answered if isinstance(reply, Refusal)]:
                logger.error("%s can't be left to other replicas yet", _named(refused))

    # -- who is leading for certain

    async def led_until_now(self, judged: Sequence[tuple[Partition, int]]) -> list[bool]:
        """Whether this broker has led each of these partitions, from that leader epoch on, until after this call, as
        the metadata store says. A leader that was replaced and does not know it would judge by its own log, and its
        successor's log has more (R9).
        """
        if self._confirmation is None:
            self._confirmation = asyncio.get_running_loop().create_future()
            self._env.tasks.spawn("confirm who leads", self._confirm(self._confirmation))
        is_told = await asyncio.shield(self._confirmation)
        led: list[bool] = []
        async for some in slices_in_turns(judged, PARTITIONS_A_TURN):
            led += [is_told and self._leads_in(partition, epoch) for partition, epoch in some]
        return led

    async def _confirm(self, confirmation: asyncio.Future[bool]) -> None:
        """Wait for what the store knows, once for all partitions and for all who asked before. One question is asked at
        a time, so that faulty clients can't keep the store busy.
        """
        try:
            async with self._confirming:
                self._confirmation = None
                await self._metadata.catch_up()
                confirmation.set_result(True)
        except MetadataLost as lost:
            logger.info("who leads can't be learned now: %s", lost)
        finally:
            if not confirmation.done():
                confirmation.set_result(False)

    def _leads_in(self, partition: Partition, epoch: int) -> bool:
        topic = self._metadata.image.topic_by_id(partition.topic_id)
        state = None if topic is None else topic.partitions.get(partition.topic_partition.partition)
        return state is not None and (state.leader, state.leader_epoch) == (self._metadata.broker_id, epoch)


def _named(partitions: Sequence[Partition]) -> str:
    names = ", ".join([str(partition.topic_partition) for partition in partitions[:TOLD_BY_NAME]])
    return names if len(partitions) <= TOLD_BY_NAME else f"{names} and {len(partitions) - TOLD_BY_NAME} more"
