"""Carries the markers of decided transactions to the partitions they wrote to, and tells the coordinator when all
have theirs.

What always holds: a marker is sent only after its decision is committed; it is sent until the partition has it, is
gone,
or a newer coordinator has been there; what is owed follows from the coordinator's state, so that a restart in between
only means that some markers are written twice, which changes nothing.

Mostly every partition is led here and nothing waits for a disk: then all of it happens in one step of the loop, and the
next transaction of the producer finds its predecessor complete.
"""

import asyncio
import logging

from log.control import ControlType
from log.ids import NO_EPOCH, TopicPartition
from service.broker.coordinators import Coordinators
from service.broker.internal_topics import GROUP_TOPIC
from service.broker.partition import Appended, Partition, PartitionLost
from service.broker.partition_table import PartitionTable
from service.broker.shard import CoordinatorLoading, NotCoordinator
from service.cluster.controller import RaiseLeaderEpoch, Refusal
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.groups.coordinator import GroupCoordinator
from service.ports import Env
from service.wire.error_codes import ErrorCode
from txn.commands import MarkersWritten
from txn.coordinator import TxnCoordinator
from txn.markers import SendMarkers

logger = logging.getLogger("oncelog.transactions")

RETRY_S = 0.1
LONGEST_RETRY_S = 2.0
"""Each wait is twice as long as the one before, up to this."""


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
        """The marker stands in the log and in everything that follows from it; it is committed a little later."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        kind = ControlType.COMMIT if commit else ControlType.ABORT
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
        if topic_partition.topic == GROUP_TOPIC:
            self._groups.marked(topic_partition.partition, producer_id, producer_epoch, kind)
        return partition, outcome


class MarkerCourier:
    def __init__(
        self, transactions: Coordinators[TxnCoordinator], writer: MarkerWriter, metadata: ClusterMetadata, env: Env
    ) -> None:
        self._transactions = transactions
        self._writer = writer
        self._metadata = metadata
        self._env = env

    def post(self, coordinator: Partition, markers: SendMarkers) -> None:
        """Send what a decision owes. `coordinator` is the partition of `__transaction_state` that decided."""
        epoch = coordinator.leader_epoch
        left, uncommitted = self._write(markers, markers.partitions, epoch)
        if left or uncommitted:
            name = f"markers of {markers.transactional_id}"
            self._env.tasks.spawn(name, self._carry(coordinator, markers, epoch, left, uncommitted))
        else:
            self._tell(markers, markers.partitions)

    def _write(
        self, markers: SendMarkers, partitions: tuple[TopicPartition, ...], epoch: int
    ) -> tuple[tuple[TopicPartition, ...], list[tuple[Partition, Appended]]]:
        """Write where it can be written now: who must be tried again, and what is written but not committed."""
        again: list[TopicPartition] = []
        uncommitted: list[tuple[Partition, Appended]] = []
        for topic_partition in partitions:
            written = self._writer.write(
                topic_partition,
                producer_id=markers.producer_id,
                producer_epoch=markers.producer_epoch,
                commit=markers.commit,
                coordinator_epoch=epoch,
                transaction_version=markers.transaction_version,
            )
            if isinstance(written, ErrorCode):
                if self._is_owed_still(topic_partition, written):
                    again.append(topic_partition)
            elif written[0].high_watermark < written[1].end_offset:
                uncommitted.append(written)
        return tuple(again), uncommitted

    def _is_owed_still(self, topic_partition: TopicPartition, error: ErrorCode) -> bool:
        """Whether a marker that was refused must be sent again. Nobody waits for it in a topic that was deleted, nor
        where the producer has gone on: a marker of this epoch or a later one ended its transaction there.

        A partition that heard of a later coordinator is asked again. If there is one, this one stops leading, and stops
        then; if there is none, this one goes on in its epoch. Until then nobody may say that the marker is there: the
        transaction would be torn.
        """
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:
            logger.warning("%s needs no marker any more: its producer is in a later epoch", topic_partition)
            return False
        return self._metadata.image.partition(topic_partition) is not None

    async def _carry(
        self,
        coordinator: Partition,
        markers: SendMarkers,
        epoch: int,
        left: tuple[TopicPartition, ...],
        uncommitted: list[tuple[Partition, Appended]],
    ) -> None:
        """Until every partition has its marker, or somebody else coordinates."""
        delay_s = RETRY_S
        while True:
            lost = await self._lost(uncommitted)
            done = tuple(partition for partition in markers.partitions if partition not in (*left, *lost))
            if done and not self._tell(markers, done):
                return
            left = (*left, *lost)
            if not left:
                return
            await self._catch_up(coordinator, epoch, left, markers.producer_id)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_RETRY_S)
            if coordinator.leader_epoch != epoch or coordinator.replicas is None:
                return  # whoever coordinates now derives what is owed from the log
            left, uncommitted = self._write(markers, left, epoch)

    async def _catch_up(
        self, coordinator: Partition, epoch: int, left: tuple[TopicPartition, ...], producer_id: int
    ) -> None:
        """Lead in the latest coordinator epoch that a partition has heard of, should it be above this one's: a marker
        sent by hand may have named it. The shard is loaded again in the new epoch, and sends what is owed then.
        """
        partitions = (self._writer.partition(topic_partition) for topic_partition in left)
        heard_of = (one.producers.coordinator_epoch(producer_id) for one in partitions if one is not None)
        latest = max(heard_of, default=NO_EPOCH)
        if latest <= epoch or coordinator.leader_epoch != epoch or coordinator.replicas is None:
            return
        raised: int | Refusal
        try:
            command = RaiseLeaderEpoch(coordinator.topic_partition, self._metadata.broker_id, latest)
            raised = await self._metadata.execute(command)
        except MetadataLost as lost:
            raised = Refusal(lost.error, str(lost))
        if isinstance(raised, Refusal):
            logger.error(
                "%s leads in epoch %d, but the partitions of a transaction obey epoch %d: %s",
                *(coordinator.topic_partition, epoch, latest, raised.message or raised.error.name),
            )
        else:
            logger.warning(
                "%s led in epoch %d, but the partitions of a transaction obey epoch %d: it leads in epoch %d now",
                *(coordinator.topic_partition, epoch, latest, raised),
            )

    @staticmethod
    async def _lost(uncommitted: list[tuple[Partition, Appended]]) -> tuple[TopicPartition, ...]:
        """Those whose marker was written and then can't be promised."""
        lost = []
        for partition, appended in uncommitted:
            try:
                if (waiter := partition.committed(appended.end_offset)) is not None:
                    await waiter
            except PartitionLost:
                lost.append(partition.topic_partition)
        return tuple(lost)

    def _tell(self, markers: SendMarkers, done: tuple[TopicPartition, ...]) -> bool:
        """The coordinator notes it; False if it is not here any more."""
        command = MarkersWritten(markers.transactional_id, markers.producer_id, markers.producer_epoch, done)
        try:
            self._transactions.shard(markers.transactional_id).tell(command)
        except (NotCoordinator, CoordinatorLoading):
            return False  # whoever coordinates next sends the markers again
        return True
