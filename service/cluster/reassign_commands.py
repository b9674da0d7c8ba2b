"""Decides which brokers hold partitions: reassignments, and elections that an operator asks for.

The new replicas of a reassignment become followers at once, and copy the log. When all of them are in sync, the
leader's proposal that says so also ends the reassignment (`AlterPartition`). Until then the reassignment can be
cancelled. Checks and messages are Kafka's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from log.ids import TopicPartition
from service.cluster.controller import (
    DECIDED_A_TURN,
    MetadataDecision,
    Successors,
    alive_still,
    changed,
    successors,
)
from service.cluster.election import are_enough, elect, held_by, is_caught_up, least_in_sync, settled, target_of
from service.cluster.image import NO_LEADER, Image, PartitionState, Topic
from service.stores.port import Op
from service.turns import Steps, Turn
from service.wire.error_codes import ErrorCode

PREFERRED, UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class ReassignResult:
    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Reassign:
    """The wanted replicas of partitions, the preferred leader first. None cancels the reassignment in progress. If a
    partition is named several times, the last one that can be counts.

    If an answer was lost, what this command did may have been changed since, by somebody who was told so, or the topic
    been made again. So it is repeated only where the partition is as it was `seen` before. Otherwise the reply is the
    error that lets the operator look, and ask again.
    """

    wanted: tuple[tuple[TopicPartition, tuple[int, ...] | None], ...]
    may_change_factor: bool = True
    min_in_sync: int = 1
    seen: Image | None = None

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[list[ReassignResult]]]:
        turn = Turn(DECIDED_A_TURN)
        results: list[ReassignResult] = []
        ops: dict[TopicPartition, Op] = {}
        counted: dict[int, None] = {}
        for partition, replicas in self.wanted:
            if turn.is_over(1 + len(replicas or ())):
                yield
            topic = image.topics.get(partition.topic)
            state = topic.partitions.get(partition.partition) if topic is not None else None
            if topic is None or state is None:
                message = "The topic does not exist." if topic is None else "The partition does not exist."
                results.append(ReassignResult(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
                continue
            least = least_in_sync(topic, self.min_in_sync)
            new = (
                _taken_back(state, image, least) if replicas is None else self._assigned(state, replicas, image, least)
            )
            if isinstance(new, PartitionState):
                if new != state and retried and not self._is_as_seen(topic, partition.partition):
                    message = "The replicas may have been changed as asked, and the partition was changed again since."
                    results.append(ReassignResult(partition, ErrorCode.REQUEST_TIMED_OUT, message))
                    continue
                results.append(ReassignResult(partition))
                ops.pop(partition, None)
                if new != state:
                    ops[partition] = changed(topic.id, partition.partition, state, new)
                    if not new.adding and not new.removing:  # those that stay hold alone what was acknowledged
                        counted.update(dict.fromkeys(new.isr))
            elif (
                retried
                and new[0] is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                and self._is_back(topic, partition.partition)
            ):
                results.append(ReassignResult(partition))
            else:
                results.append(ReassignResult(partition, *new))
        return MetadataDecision(results, (*alive_still(image, counted), *ops.values()) if ops else ())

    def _is_as_seen(self, topic: Topic, index: int) -> bool:
        return self._seen(topic, index) == topic.partitions[index]

    def _is_back(self, topic: Topic, index: int) -> bool:
        """Whether the reassignment that was in progress is cancelled: it may also have ended."""
        seen = self._seen(topic, index)
        return seen is not None and _former(seen) == topic.partitions[index].replicas

    def _seen(self, topic: Topic, index: int) -> PartitionState | None:
        seen = None if self.seen is None else self.seen.topics.get(topic.name)
        return None if seen is None or seen.id != topic.id else seen.partitions.get(index)

    def _assigned(
        self, state: PartitionState, replicas: tuple[int, ...], image: Image, least: int
    ) -> PartitionState | tuple[ErrorCode, str]:
        if not replicas or len(set(replicas)) < len(replicas):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The replicas of a partition are several, each named once."
        for replica in replicas:
            if replica not in image.brokers and replica not in state.replicas:
                message = (
                    f"The manual partition assignment includes broker {replica}, but no such broker is registered."
                )
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT, message
        held = target_of(state)
        if not self.may_change_factor and len(replicas) != len(held):
            message = f"The replication factor is changed from {len(held)} to {len(replicas)}, which was not allowed."
            return ErrorCode.INVALID_REPLICATION_FACTOR, message
        return _reassigned(state, replicas, image, least)


def _reassigned(state: PartitionState, target: tuple[int, ...], image: Image, least: int) -> PartitionState:
    """The state with `target` as the goal of a reassignment; the state after it, if no replica has to catch up."""
    adding = tuple(replica for replica in target if replica not in state.replicas or replica in state.adding)
    removing = tuple(replica for replica in state.replicas if replica not in target)
    new = state._replace(replicas=(*target, *removing), adding=adding, removing=removing)
    return settled(new, image.brokers, least) if is_caught_up(new, image.brokers, least) else new


def _former(state: PartitionState) -> tuple[int, ...]:
    """The replicas that stay if the reassignment in progress is cancelled: all that it does not bring. What an earlier
    one has brought, which it replaced, is among them, as in Kafka: from 1 to 2, then to 3, and cancelled leaves 2, 1.
    """
    return tuple(replica for replica in state.replicas if replica not in state.adding)


def _taken_back(state: PartitionState, image: Image, least: int) -> PartitionState | tuple[ErrorCode, str]:
    if not state.adding and not state.removing:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
    former = _former(state)
    holds_more = any(member in state.isr for member in state.adding)
    # Where nobody else has everything, the former replicas hold it also while they are gone.
    alive = image.brokers if any(member in (*state.isr, *state.eligible) for member in state.adding) else former
    if not are_enough(former, state, alive, least if holds_more else 1):
        message = "Too few of the former replicas are in sync to hold alone what was acknowledged."
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, message
    return held_by(former, state, image.brokers, least)


def all_partitions(image: Image) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in image.topics.values() for index in topic.partitions)


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """Elections that an operator asks for: of the preferred leaders, or with UNCLEAN, for partitions without a leader,
    of the first replica that is alive of those that `unclean` names. With None for `only`, all partitions; those that
    need no election are left out of the reply.

    A partition without a leader that is in another state than was asked about gets none uncleanly. Perhaps this very
    command elected one, which acknowledged, and died. The reply is the error that lets the operator ask again.
    """

    kind: int
    only: tuple[TopicPartition, ...] | None
    min_in_sync: int = 1
    unclean: Mapping[TopicPartition, Successors] = field(default_factory=dict)

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[list[ReassignResult]]]:
        turn = Turn(DECIDED_A_TURN)
        results: list[ReassignResult] = []
        ops: list[Op] = []
        for partition in self._partitions(image):
            if turn.is_over():
                yield
            topic = image.topics.get(partition.topic)
            state = topic.partitions.get(partition.partition) if topic is not None else None
            if topic is None or state is None:
                message = f"No such partition as {partition.topic}-{partition.partition}"
                results.append(ReassignResult(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
                continue
            new = self._elected(topic, partition.partition, state, image)
            if isinstance(new, PartitionState):
                results.append(ReassignResult(partition))
                ops.append(changed(topic.id, partition.partition, state, new))
            elif new is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(ReassignResult(partition, new))
            elif self.only is not None:
                results.append(ReassignResult(partition, ErrorCode.NONE if retried else new))
        return MetadataDecision(results, tuple(ops))

    def _partitions(self, image: Image) -> Iterable[TopicPartition]:
        return all_partitions(image) if self.only is None else self.only

    def _elected(self, topic: Topic, index: int, state: PartitionState, image: Image) -> PartitionState | ErrorCode:
        if self.kind == UNCLEAN:
            if state.leader in image.brokers:
                return ErrorCode.ELECTION_NOT_NEEDED
            least = least_in_sync(topic, self.min_in_sync)
            new = elect(state, image.brokers, least, unclean=successors(self.unclean, topic, index, image.brokers))
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if new.leader == NO_LEADER else new
        first = state.replicas[0]
        if state.leader == first and first in image.brokers:
            return ErrorCode.ELECTION_NOT_NEEDED
        if first not in state.isr or first not in image.brokers:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return state._replace(leader=first, leader_epoch=state.leader_epoch + 1)
