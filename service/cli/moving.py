"""Moving partitions between brokers: what would move where, shown before it is done; doing it, and waiting for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from log.ids import TopicPartition
from service.cli.failures import CliError
from service.cli.output import Output, confirm, remark, show
from service.client.cluster import RETRY_PAUSE_S, Cluster
from service.client.failures import refused
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    MetadataResponseTopic,
    ReassignablePartition,
    ReassignableTopic,
)

MOVES_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A partition, who holds it, and who shall."""

    topic: str
    partition: int
    from_brokers: list[int]
    to_brokers: list[int]


@dataclass(frozen=True, slots=True)
class Elected:
    topic: str
    partition: int
    outcome: str


def without(brokers: Sequence[int], topics: Iterable[MetadataResponseTopic], alive: Sequence[int]) -> list[ReplicaMove]:
    """What moves so that `brokers` hold nothing: to those who hold least, and the others stay where they are."""
    topics = list(topics)
    load = _load(topics)
    moves = []
    for topic in topics:
        for each in topic.partitions:
            held = list(each.replica_nodes)
            if not any(broker in brokers for broker in held):
                continue
            target = list(held)
            for place, broker in enumerate(held):
                if broker in brokers:
                    _replace(target, place, [one for one in alive if one not in brokers], load)
            moves.append(ReplicaMove(topic.name or "", each.partition_index, held, [one for one in target if one >= 0]))
    return moves


def _replace(target: list[int], place: int, free: Sequence[int], load: Counter[int]) -> None:
    candidates = sorted((broker for broker in free if broker not in target), key=lambda broker: (load[broker], broker))
    if not candidates:
        if len([broker for broker in target if broker >= 0]) > 1:
            target[place] = -1  # a copy less
            return
        raise CliError("there is no other broker to move partitions to")
    target[place] = candidates[0]
    load[candidates[0]] += 1


def with_factor(
    topic: MetadataResponseTopic, factor: int, everybody: Iterable[MetadataResponseTopic], alive: Sequence[int]
) -> list[ReplicaMove]:
    """As many replicas of each partition: more on those who hold least, or the last ones less."""
    load = _load(everybody)
    moves = []
    for each in topic.partitions:
        held = list(each.replica_nodes)
        target = held[:factor]
        while len(target) < factor:
            target.append(-1)
            free = [broker for broker in alive if broker not in target]
            if not free:
                raise CliError(f"{factor} replicas need {factor} brokers, and there are {len(alive)}")
            _replace(target, len(target) - 1, free, load)
        if target != held:
            moves.append(ReplicaMove(topic.name or "", each.partition_index, held, target))
    return moves


def _load(topics: Iterable[MetadataResponseTopic]) -> Counter[int]:
    return Counter(broker for topic in topics for each in topic.partitions for broker in each.replica_nodes)


async def carry_out(cluster: Cluster, moves: list[ReplicaMove], output: Output, *, yes: bool) -> None:
    """Show the plan, do it when the user agrees, and return when it is done."""
    if not moves:
        remark("nothing has to move")
        return
    show(moves, output, columns=("topic", "partition", "from_brokers", "to_brokers"))
    confirm(f"Move {len(moves)} partition(s)?", yes=yes)
    for first in range(0, len(moves), MOVES_AT_ONCE):
        await _ask(cluster, moves[first : first + MOVES_AT_ONCE])
    waiting = {TopicPartition(move.topic, move.partition) for move in moves}
    while left := await under_way(cluster) & waiting:
        remark(f"{len(waiting) - len(left)} of {len(waiting)} partitions have moved")
        await asyncio.sleep(RETRY_PAUSE_S)
    remark(f"{len(moves)} partition(s) have moved")


async def _ask(cluster: Cluster, moves: Sequence[ReplicaMove]) -> None:
    topics: dict[str, ReassignableTopic] = {}
    for move in moves:
        topic = topics.setdefault(move.topic, ReassignableTopic(move.topic))
        topic.partitions.append(ReassignablePartition(move.partition, move.to_brokers))
    answer = await cluster.ask(AlterPartitionReassignmentsRequest(topics=list(topics.values())))
    if answer.error_code:
        raise refused("the move", answer.error_code, answer.error_message)
    for told in answer.responses:
        for each in told.partitions:
            if each.error_code:
                raise refused(f"{told.name} partition {each.partition_index}", each.error_code, each.error_message)


async def under_way(cluster: Cluster) -> set[TopicPartition]:
    answer = await cluster.ask(ListPartitionReassignmentsRequest())
    if answer.error_code:
        raise refused("the moves under way", answer.error_code, answer.error_message)
    return {TopicPartition(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions}


async def elect(
    cluster: Cluster, partitions: Sequence[TopicPartition] | None, *, unclean: bool, output: Output
) -> None:
    """Elections of preferred leaders, or of any replica that lives; None: wherever one is needed."""
    asked = None
    if partitions is not None:
        topics: dict[str, ElectLeadersRequestTopicPartitions] = {}
        for name, index in partitions:
            topics.setdefault(name, ElectLeadersRequestTopicPartitions(name)).partitions.append(index)
        asked = list(topics.values())
    answer = await cluster.ask(ElectLeadersRequest(int(unclean), asked))
    if answer.error_code:
        raise refused("the election", answer.error_code)
    rows = [
        Elected(topic.topic, each.partition_id, _outcome(each.error_code))
        for topic in answer.replica_election_results
        for each in topic.partition_result
    ]
    if rows:
        show(rows, output, columns=("topic", "partition", "outcome"))
    else:
        remark("every partition is led by its first replica")


def _outcome(code: int) -> str:
    match code:
        case ErrorCode.NONE:
            return "elected"
        case ErrorCode.ELECTION_NOT_NEEDED:
            return "not needed"
        case _:
            return ErrorCode(code).name
