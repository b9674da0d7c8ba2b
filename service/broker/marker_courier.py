"""Carries the markers of decided transactions to the partitions that the transactions wrote to, and tells the
coordinator which partitions have their marker.

What always holds:
 - A marker is sent only after its decision is committed. It is sent again until the partition has it, the partition is
   gone, or a newer coordinator has sent it.
 - The markers that are still to be sent follow from the coordinator's state. After a restart some markers are therefore
   written twice, which changes nothing.
 - Only the shard that asked for a marker is told that the marker is written. After a change of leaders, or a replay,
   the same producer id and epoch may already be in its next transaction.

A marker whose answer was lost may still arrive later. From transaction version 2 on its epoch names the transaction, so
a late marker ends no other transaction. With older clients the next transaction has the same epoch. So before such a
marker is sent again, the coordinator takes a new epoch, and the partition then refuses the earlier copy. What a shard
has sent is not known to the shard that is loaded after it. If both have the same epoch, the new one takes a new epoch
before it sends such markers. Only these wait for that.

A partition is known by topic name and index, as its transaction names it. If the topic was deleted and created again
meanwhile, the marker goes to the new topic. There it ends only what the same transaction wrote. If it wrote anything
there, this broker has heard of the new topic (`transaction_gate.py`). A broker that leads the deleted one, because it
has not heard of that, refuses the marker by the topic's id.

In most cases every partition is led by this broker and no write waits for a disk. Then all of this happens in one step
of the loop, and the producer's next transaction finds its predecessor complete. Markers for partitions that another
broker leads are sent to that broker together. A partition that can't take its marker delays no other partition: it is
tried again by itself. One that is slow to commit it delays the others for no longer than its broker waits for that
(`write_txn_markers.PATIENCE_S`). Then it is tried again by the slow lane.

The markers for very many partitions are written in turns. Before each turn the courier looks whether this shard still
decides.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from log.control import ControlType
from log.ids import NO_EPOCH, TopicPartition
from log.tally import Histogram
from service.broker.coordinators import Coordinators
from service.broker.internal_topics import GROUPS
from service.broker.partition import Appended, Partition, PartitionLost
from service.broker.partition_table import PartitionTable
from service.broker.peers import PeerAway, Peers
from service.broker.shard import Shard
from service.cluster.controller import RaiseLeaderEpoch, Refusal
from service.cluster.image import Topic
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.groups.coordinator import GroupCoordinator
from service.ports import Env
from service.turns import Turn, breathe, in_turns, slices_in_turns
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ZERO_UUID,
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from txn.commands import MarkersWritten
from txn.coordinator import TxnCoordinator
from txn.markers import SendMarkers
from txn.verdicts import MarkersNoted

logger = logging.getLogger("oncelog.transactions")

RETRY_S = 0.1
LONGEST_RETRY_S = 2.0
"""Each wait before another try is twice as long as the one before, up to this."""
SENT_TOGETHER = 1000
WRITTEN_AT_ONCE, WRITTEN_A_TURN = 16, 8
"""The most markers of a decision that are written in its own turn of the loop; if there are more, how many in a turn. A
marker that is a partition's first batch makes a folder and files, and takes half a millisecond or more.
"""
TOLD_A_TURN = 100
"""Each may be the end of a transaction, which takes some 40 microseconds."""
REFUSED_A_TURN = 100
EPOCH_NAMES_TRANSACTION = 2
"""From this transaction version on, the producer's epoch rises with every transaction."""
COMPLETE = MarkersNoted(complete=True)
QUICK, SLOW = 0, 1
LANES = 2


class MarkerWriter:
    """Writes markers to the partitions that this broker leads."""

    def __init__(self, partitions: PartitionTable, groups: Coordinators[GroupCoordinator], env: Env) -> None:
        self._partitions = partitions
        self._groups = groups
        self._env = env

    def partition(self, topic_partition: TopicPartition) -> Partition | None:
        return self._partitions.get(topic_partition)

    def write(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> tuple[Partition, Appended] | ErrorCode:
        """Append the marker to the log, and apply it to everything that is derived from the log. The marker is
        committed a little later.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        is_groups = topic_partition.topic == GROUPS.name
        if is_groups:
            self._groups.write_gathered(topic_partition.partition)
        outcome = partition.append_marker(
            kind,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            now_ms=self._env.clock.wall_ms(),
        )
        if not isinstance(outcome, Appended):
            return outcome.error
        if is_groups:
            self._groups.marked(topic_partition.partition, producer_id, producer_epoch, kind)
        return partition, outcome


@dataclass(slots=True, eq=False)
class Owed:
    """A marker that one partition has not got yet."""

    shard: Shard[TxnCoordinator] | None
    coordinator: Partition
    epoch: int
    markers: SendMarkers
    topic_partition: TopicPartition
    delay_s: float = 0.0
    may_come_late: bool = False
    """Whether an earlier copy of the marker may still arrive. Such a copy would end whatever transaction it finds."""

    @property
    def name(self) -> str:
        return f"marker of {self.markers.transactional_id} for {self.topic_partition}"

    @property
    def names_transaction(self) -> bool:
        """Whether the marker's epoch names its transaction, so that a late copy ends no other."""
        return self.markers.transaction_version >= EPOCH_NAMES_TRANSACTION


class TurnQueue:
    """Markers that wait for the same thing to be done with them. They are taken in turns, in the order they came."""

    def __init__(self, env: Env, name: str, a_turn: int, work: Callable[[list[Owed]], None]) -> None:
        self._env = env
        self._name = name
        self._a_turn = a_turn
        self._work = work
        self._waiting: deque[Owed] = deque()
        self._at_work = False

    def add(self, owed: Owed) -> None:
        self._waiting.append(owed)
        if not self._at_work:
            self._at_work = True
            self._env.tasks.spawn(self._name, self._work_off())

    async def _work_off(self) -> None:
        try:
            async for some in slices_in_turns(self._taken(), self._a_turn):
                self._work(some)
        finally:
            self._at_work = False

    def _taken(self) -> Iterator[Owed]:
        while self._waiting:
            yield self._waiting.popleft()


class MarkerCourier:
    def __init__(
        self,
        transactions: Coordinators[TxnCoordinator],
        writer: MarkerWriter,
        metadata: ClusterMetadata,
        peers: Peers,
        env: Env,
        completed: Histogram,
    ) -> None:
        self._transactions = transactions
        self._writer = writer
        self._metadata = metadata
        self._peers = peers
        self._env = env
        self._seconds = completed
        """From a transaction's last marker until its end is on record."""
        self._outboxes: dict[tuple[int, int], list[Owed]] = {}
        self._raising: dict[Shard[TxnCoordinator], int] = {}
        """The shards whose partition is to be led in a later epoch, and in which at least."""
        self._due = TurnQueue(env, "write markers again", WRITTEN_A_TURN, self._write_if_current)
        self._settled = TurnQueue(env, "tell of markers", TOLD_A_TURN, self._tell)

    def post(self, coordinator: Partition, every: Sequence[SendMarkers]) -> None:
        """Send the markers of a decision. `coordinator` is the partition of `__transaction_state` that decided."""
        owed = self._owed(self._transactions.at(coordinator.topic_partition.partition), coordinator, every)
        if sum([len(markers.partitions) for markers in every]) <= WRITTEN_AT_ONCE:
            self._write(list(owed))
        else:
            name = f"markers of {every[0].transactional_id}{' and others' if len(every) > 1 else ''}"
            self._env.tasks.spawn(name, self._write_in_turns(owed))

    def resume(self, shard: Shard[TxnCoordinator]) -> None:
        """Send all markers that a shard owes after it was loaded."""
        owed = self._owed(shard, shard.partition, shard.machine.owed_markers())
        self._env.tasks.spawn(f"markers of {shard.partition.topic_partition}", self._resume(shard, owed))

    async def _resume(self, shard: Shard[TxnCoordinator], owed: Iterator[Owed]) -> None:
        if shard.is_first or (doubtful := await self._sent_by_a_former_shard(shard)) is None:
            await self._write_in_turns(owed)
        else:
            self._outdate(doubtful)
            # While there is no later epoch, only markers of older clients wait for it.
            async for some in slices_in_turns(owed, WRITTEN_A_TURN):
                self._write_if_current([each for each in some if each.names_transaction])

    async def _sent_by_a_former_shard(self, shard: Shard[TxnCoordinator]) -> Owed | None:
        """A marker of an older client that a former shard may have sent in this epoch."""
        owed = self._owed(shard, shard.partition, shard.machine.owed_markers())
        async for each in in_turns(owed, REFUSED_A_TURN):
            if not each.names_transaction:
                each.may_come_late = True
                return each
        return None

    @staticmethod
    def _owed(
        shard: Shard[TxnCoordinator] | None, coordinator: Partition, every: Iterable[SendMarkers]
    ) -> Iterator[Owed]:
        epoch = coordinator.leader_epoch
        return (Owed(shard, coordinator, epoch, markers, each) for markers in every for each in markers.partitions)

    def _write(self, some: list[Owed]) -> None:
        if settled := [owed for owed in some if self._settled_now(owed)]:
            self._tell(settled)

    async def _write_in_turns(self, owed: Iterator[Owed]) -> None:
        async for some in slices_in_turns(owed, WRITTEN_A_TURN):
            self._write_if_current(some)

    def _write_if_current(self, some: list[Owed]) -> None:
        """Write those that this broker is still to send: since they were asked for, others had turns."""
        settled = []
        for owed in some:
            try:
                if self._is_current(owed) and self._settled_now(owed):
                    settled.append(owed)
            except Exception:
                logger.exception("%s could not be written; it is tried again", owed.name)
                self._later(owed)
        self._tell(settled)

    def _is_current(self, owed: Owed) -> bool:
        shard, coordinator = owed.shard, owed.coordinator
        return (
            shard is not None
            and not shard.dropped
            and self._transactions.at(coordinator.topic_partition.partition) is shard
            and coordinator.leader_epoch == owed.epoch
            and coordinator.is_leading
        )

    def _settled_now(self, owed: Owed) -> bool:
        """Whether nothing is left to do: the marker is committed, or nobody waits for it. If False is returned, the
        marker is on its way.
        """
        partition = self._writer.partition(owed.topic_partition)
        if partition is None or not partition.is_leading:
            state = self._metadata.image.partition(owed.topic_partition)
            if state is not None and state.leader != self._metadata.broker_id and self._peers.is_there(state.leader):
                self._send(state.leader, owed)
                return False
        markers = owed.markers
        written = self._writer.write(
            owed.topic_partition,
            producer_id=markers.producer_id,
            producer_epoch=markers.producer_epoch,
            commit=markers.commit,
            coordinator_epoch=owed.epoch,
            transaction_version=markers.transaction_version,
        )
        if isinstance(written, ErrorCode):
            return self._refused(owed, written)
        if written[0].high_watermark < written[1].end_offset:
            self._when_committed(owed, *written)
            return False
        return True

    def _refused(self, owed: Owed, error: int) -> bool:
        """Whether a marker that was refused, perhaps with an error code that only later releases know, need not be sent
        again. That is so if the topic was deleted, and if the producer is in a later epoch: then another marker has
        ended its transaction there.

        A partition that has heard of a later coordinator is asked again. Either there is such a coordinator, and this
        one is about to stop leading; or there is none, and this one goes on in that later epoch. Until that is clear,
        the marker must not be reported as written, because the transaction would be torn.
        """
        if error == ErrorCode.INVALID_PRODUCER_EPOCH:
            logger.warning("%s needs no marker any more: its producer is in a later epoch", owed.topic_partition)
            return True
        if self._metadata.image.partition(owed.topic_partition) is None:
            return True
        self._later(owed, fenced=error == ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        return False

    def _when_committed(self, owed: Owed, partition: Partition, appended: Appended) -> None:
        try:
            waiter = partition.committed(appended.end_offset)
        except PartitionLost:
            self._later(owed)
        else:
            assert waiter is not None, "the high watermark is below the marker"
            waiter.add_done_callback(partial(self._done, owed))

    def _done(self, owed: Owed, waiter: asyncio.Future[None]) -> None:
        """The marker is committed, or will never be. Many may be committed at once; they are told together."""
        if not self._is_current(owed):
            return
        if waiter.cancelled() or waiter.exception() is not None:
            self._later(owed)
            return
        self._settled.add(owed)

    # -- again

    def _later(self, owed: Owed, *, fenced: bool = False) -> None:
        self._env.tasks.spawn(owed.name, self._again(owed, fenced=fenced))

    async def _again(self, owed: Owed, *, fenced: bool) -> None:
        owed.delay_s = min(max(2 * owed.delay_s, RETRY_S), LONGEST_RETRY_S)
        if fenced and owed.shard not in self._raising and self._is_current(owed):
            await self._catch_up(owed)
        await asyncio.sleep(owed.delay_s)
        if owed.may_come_late:
            self._outdate(owed)
        else:
            self._due.add(owed)

    def _outdate(self, owed: Owed) -> None:
        """Lead in a later epoch, so that a copy of the marker that is under way is refused. The marker is left to the
        shard of that epoch.
        """
        self._raise_epoch(owed, owed.epoch + 1)

    async def _catch_up(self, owed: Owed) -> None:
        """If a partition has heard of a later coordinator epoch, lead in that epoch. A marker that an operator sent by
        hand may have named it. The shard is loaded again in the new epoch, and then sends all markers that are missing.
        """
        latest = await self._latest_epoch(owed)
        if latest > owed.epoch:
            self._raise_epoch(owed, latest)

    def _raise_epoch(self, owed: Owed, at_least: int) -> None:
        """Lead in epoch `at_least` or a later one. When that has succeeded, this shard is replaced, and `owed` is no
        longer its task. All who need it of a shard share one task. The lowest epoch that one of them needs is enough:
        the next shard hears from the others again, and there may be no way to a higher one.
        """
        if owed.shard is None or not self._is_current(owed):
            return
        if (asked := self._raising.get(owed.shard)) is not None:
            self._raising[owed.shard] = min(asked, at_least)
        else:
            self._raising[owed.shard] = at_least
            name = f"later epoch of {owed.coordinator.topic_partition}"
            self._env.tasks.spawn(name, self._keep_raising(owed, owed.shard))

    async def _keep_raising(self, owed: Owed, shard: Shard[TxnCoordinator]) -> None:
        """Until this shard is replaced. An outcome is logged once, however often it repeats."""
        delay_s, former = RETRY_S, None
        try:
            while self._is_current(owed):
                at_least = self._raising[shard]
                raised = await self._raised(owed.coordinator, at_least)
                if raised != former:
                    former = raised
                    self._log_raised(owed, at_least, raised)
                if self._is_current(owed):
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, LONGEST_RETRY_S)
        finally:
            del self._raising[shard]

    async def _raised(self, coordinator: Partition, at_least: int) -> int | Refusal:
        try:
            command = RaiseLeaderEpoch(coordinator.topic_partition, self._metadata.broker_id, at_least)
            return await self._metadata.execute(command)
        except MetadataLost as lost:
            return Refusal(lost.error, str(lost))
        except Exception as error:  # the markers are still owed
            logger.debug("the leader epoch of %s can't be raised", coordinator.topic_partition, exc_info=True)
            return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))

    @staticmethod
    def _log_raised(owed: Owed, at_least: int, raised: int | Refusal) -> None:
        if isinstance(raised, Refusal):
            logger.error(
                "%s leads in epoch %d, but the partitions of a transaction are to obey epoch %d; it tries again until"
                " it leads in that epoch: %s",
                *(owed.coordinator.topic_partition, owed.epoch, at_least, raised.message or raised.error.name),
            )
        else:
            logger.warning(
                "%s led in epoch %d, the partitions of a transaction are to obey epoch %d: it leads in epoch %d now",
                *(owed.coordinator.topic_partition, owed.epoch, at_least, raised),
            )

    async def _latest_epoch(self, owed: Owed) -> int:
        """The latest coordinator epoch that the partition has seen for this producer."""
        partition, producer_id = self._writer.partition(owed.topic_partition), owed.markers.producer_id
        if partition is not None and partition.is_leading:
            return partition.producers.coordinator_epoch(producer_id)
        state = self._metadata.image.partition(owed.topic_partition)
        name, index = owed.topic_partition
        request = DescribeProducersRequest([DescribeProducersRequestTopicRequest(name, [index])])
        try:
            answer = await self._peers.ask(state.leader if state is not None else -1, request, lane=SLOW)
        except PeerAway:
            return NO_EPOCH
        told = [producer for topic in answer.topics for one in topic.partitions for producer in one.active_producers]
        return max((each.coordinator_epoch for each in told if each.producer_id == producer_id), default=NO_EPOCH)

    # -- to other brokers

    def _send(self, broker_id: int, owed: Owed) -> None:
        """Send a marker to another broker. A marker that was refused or not answered before goes by the slow lane,
        because it may be slow again.
        """
        key = broker_id, SLOW if owed.delay_s else QUICK
        outbox = self._outboxes.get(key)
        if outbox is None:
            self._outboxes[key] = [owed]
            self._env.tasks.spawn(f"markers for broker {broker_id}", self._deliver(*key))
        else:
            outbox.append(owed)

    async def _deliver(self, broker_id: int, lane: int) -> None:
        """Send until nothing is left for that broker. Markers that are added meanwhile go with the next request."""
        outbox = self._outboxes[broker_id, lane]
        try:
            while outbox:
                batch = [owed for owed in outbox[:SENT_TOGETHER] if self._is_current(owed)]
                del outbox[:SENT_TOGETHER]
                if not batch:
                    continue
                unanswered = dict.fromkeys(batch)
                try:
                    await self._exchange(broker_id, lane, unanswered)
                except Exception:  # an unexpected answer: these markers still have to be sent
                    logger.exception("markers for broker %d: they are sent again", broker_id)
                    for owed in unanswered:
                        self._later(owed)
        finally:
            del self._outboxes[broker_id, lane]

    async def _exchange(self, broker_id: int, lane: int, unanswered: dict[Owed, None]) -> None:
        """Send these markers, and take out those that are answered, or are sent again: whatever comes next, a marker
        that was answered must not be sent again, for it may end the next transaction.
        """
        asked: dict[tuple[int, int], dict[TopicPartition, Owed]] = {}
        for owed in unanswered:
            asked.setdefault((owed.epoch, id(owed.markers)), {})[owed.topic_partition] = owed
        topics = self._metadata.image.topics
        request = WriteTxnMarkersRequest([_entry(named, topics) for named in asked.values()])
        try:
            answer = await self._peers.ask(broker_id, request, lane=lane)
        except PeerAway as away:
            logger.info("markers for broker %d: %s", broker_id, away)
            async for owed in in_turns(list(unanswered), REFUSED_A_TURN):
                if away.may_come_late and not owed.names_transaction:
                    owed.may_come_late = True
                self._later(owed)
                del unanswered[owed]
            return
        turn = Turn(REFUSED_A_TURN)
        for named, told in zip(asked.values(), answer.markers, strict=True):
            codes = {
                TopicPartition(topic.name, each.partition_index): each.error_code
                for topic in told.topics
                for each in topic.partitions
            }
            for topic_partition, owed in named.items():
                if turn.is_over():
                    await breathe()
                code = codes.get(topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)
                if not code or self._refused(owed, code):
                    self._settled.add(owed)
                del unanswered[owed]

    # -- done

    def _tell(self, settled: list[Owed]) -> None:
        """Tell the coordinator that these markers are written."""
        together: dict[int, list[Owed]] = {}  # by identity: to hash the markers is to hash every partition
        for owed in settled:
            together.setdefault(id(owed.markers), []).append(owed)
        for those in together.values():
            if not self._is_current(those[0]):
                continue  # no longer, or not since its coordinator gave up while it was told of others
            markers = those[0].markers
            done = tuple(owed.topic_partition for owed in those)
            shard = those[0].shard
            assert shard is not None
            told_s = self._env.clock.monotonic()
            shard.tell(
                MarkersWritten(markers.transactional_id, markers.producer_id, markers.producer_epoch, done),
                partial(self._noted, told_s),
            )

    def _noted(self, told_s: float, verdict: object) -> None:
        if verdict == COMPLETE:
            self._seconds.add(self._env.clock.monotonic() - told_s)


def _entry(named: dict[TopicPartition, Owed], known: Mapping[str, Topic]) -> WritableTxnMarker:
    first = next(iter(named.values()))
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for name, index in named:
        if name not in topics:
            topics[name] = WritableTxnMarkerTopic(name, [], known[name].id if name in known else ZERO_UUID)
        topics[name].partition_indexes.append(index)
    return WritableTxnMarker(
        first.markers.producer_id,
        first.markers.producer_epoch,
        first.markers.commit,
        list(topics.values()),
        first.epoch,
        first.markers.transaction_version,
    )
