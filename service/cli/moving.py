"""Moving partitions between brokers: what would move where, shown before it is done; doing it, and waiting for it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from log.ids import TopicPartition
from service.cli.config_client import TOPIC
from service.cli.failures import CliError
from service.cli.output import Output, confirm, perhaps_unread, remark, show
from service.client.cluster import RETRY_PAUSE_S, Cluster
from service.client.failures import error_name, refused
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    MetadataResponseTopic,
    ReassignablePartition,
    ReassignableTopic,
)

MOVES_AT_ONCE = 1000
LOOKS = 10
"""How often the outcome is looked for: another broker than the one that was asked first may hear of it later."""
NAMED = 5
"""How many partitions a message names."""
ELECTED, NOT_NEEDED = "elected", "not needed"


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A partition, who holds it, and who shall."""

    topic: str
    partition: int
    from_brokers: list[int]
    to_brokers: list[int]


@dataclass(frozen=True, slots=True)
class LeaderMove:
    """A partition, who leads it, and its first replica, which shall."""

    topic: str
    partition: int
    from_broker: int
    to_broker: int


@dataclass(frozen=True, slots=True)
class Elected:
    topic: str
    partition: int
    outcome: str


Racks = Mapping[int, str | None]
"""The brokers that are alive, and the rack of each."""


def without(brokers: Sequence[int], topics: Iterable[MetadataResponseTopic], alive: Racks) -> list[ReplicaMove]:
    """What moves so that `brokers` hold nothing: to those who hold least, and the others stay where they are."""
    topics = list(topics)
    load = _load(topics)
    free = {broker: rack for broker, rack in alive.items() if broker not in brokers}
    moves = []
    for topic in topics:
        for each in topic.partitions:
            held = list(each.replica_nodes)
            if not any(broker in brokers for broker in held):
                continue
            target = list(held)
            for place, broker in enumerate(held):
                if broker in brokers:
                    _replace(target, place, free, load)
            moves.append(ReplicaMove(topic.name or "", each.partition_index, held, [one for one in target if one >= 0]))
    return moves


def _replace(target: list[int], place: int, free: Racks, load: Counter[int]) -> None:
    """Give the place to who holds least of those in a rack that has no copy, or of all."""
    used = {free.get(broker) for at, broker in enumerate(target) if at != place} - {None}
    candidates = sorted(
        (broker for broker in free if broker not in target),
        key=lambda broker: (free[broker] in used, load[broker], broker),
    )
    if not candidates:
        if len([broker for broker in target if broker >= 0]) > 1:
            target[place] = -1  # a copy less
            return
        raise CliError("there is no other broker to move partitions to")
    target[place] = candidates[0]
    load[candidates[0]] += 1


def with_factor(
    topics: Iterable[MetadataResponseTopic], factor: int, everybody: Iterable[MetadataResponseTopic], alive: Racks
) -> list[ReplicaMove]:
    """As many replicas of each partition: more on those who hold least, or the last ones less. Of those that go, dead
    ones are the first, and then those that are not in sync.
    """
    load = _load(everybody)
    moves = []
    for name, each in ((topic.name or "", each) for topic in topics for each in topic.partitions):
        held = list(each.replica_nodes)
        kept = sorted(held, key=lambda broker: (broker not in alive, broker not in each.isr_nodes))[:factor]
        target = [broker for broker in held if broker in kept]
        while len(target) < factor:
            if all(broker in target for broker in alive):
                raise CliError(f"{factor} replicas need {factor} brokers, and there are {len(alive)}")
            target.append(-1)
            _replace(target, len(target) - 1, alive, load)
        if target != held:
            moves.append(ReplicaMove(name, each.partition_index, held, target))
    return moves


def spread(
    topics: Iterable[MetadataResponseTopic], alive: Racks, *, moving: Container[TopicPartition] = ()
) -> list[ReplicaMove]:
    """What moves so that each broker holds about as many partitions of each topic, and of all, as any other, and is the
    first replica of as many. Partitions that are moved already stay as they are, and so do those without a leader,
    which nobody could copy. No partition is left in fewer racks than it is in.
    """
    before = {
        TopicPartition(topic.name or "", each.partition_index): list(each.replica_nodes)
        for topic in topics
        for each in topic.partitions
        if each.leader_id >= 0
    }
    plan: dict[str, dict[TopicPartition, list[int]]] = {}
    for partition, replicas in before.items():
        plan.setdefault(partition.topic, {})[partition] = replicas
    for change, counted in ((_given_to, slice(None)), (_led_by, slice(1))):
        topics_then = [_Spread(placed, alive, change, counted, moving) for placed in plan.values()]
        whole: Counter[int] = sum((topic.share for topic in topics_then), Counter())
        is_level = False
        while not is_level:  # what one topic has given may be another's to take
            is_level = True
            for topic in topics_then:
                while topic.shift(whole):
                    is_level = False
    return [
        ReplicaMove(*partition, replicas, to)
        for partition, replicas in before.items()
        if (to := plan[partition.topic][partition]) != replicas
    ]


Shift = Callable[[list[int], int, int, Racks], list[int] | None]
"""The new replicas, from the old ones, the broker that gives and the one that takes. None: it can't be."""


class _Spread:
    """The partitions of one topic, as they are spread further step by step.

    Each broker has a list of what it may be able to give, and each pair of brokers a place in the list of the giver. A
    partition before that place can't go from the one to the other: when its replicas change, it comes into the lists
    again. So a step need not look through all partitions.
    """

    def __init__(
        self,
        placed: dict[TopicPartition, list[int]],
        alive: Racks,
        change: Shift,
        counted: slice,
        moving: Container[TopicPartition],
    ) -> None:
        self._placed, self._alive, self._change, self._counted = placed, alive, change, counted
        self.share = Counter(broker for replicas in placed.values() for broker in replicas[counted])
        self._offers: dict[int, list[TopicPartition]] = {}
        self._looked: Counter[tuple[int, int]] = Counter()
        for partition in placed:
            if partition not in moving:
                self._offer(partition)

    def _offer(self, partition: TopicPartition) -> None:
        for broker in self._placed[partition][self._counted]:
            self._offers.setdefault(broker, []).append(partition)

    def shift(self, whole: Counter[int]) -> bool:
        """Take one partition from a broker that has more for one that has less; False if none can be taken. Each step
        makes the shares of the topic more alike, or leaves them so and makes those of all topics more alike. So steps
        come to an end.
        """
        share = self.share
        order = sorted(self._alive, key=lambda broker: (share[broker], whole[broker], broker))
        for giver in reversed(order):
            for taker in order:
                more = share[giver] - share[taker]
                if more < 1:
                    break  # the others have as much or more
                if more == 1 and whole[giver] - whole[taker] < 2:
                    continue
                if self._give(giver, taker):
                    for counted in (share, whole):
                        counted[giver] -= 1
                        counted[taker] += 1
                    return True
        return False

    def _give(self, giver: int, taker: int) -> bool:
        offers, pair = self._offers.get(giver, []), (giver, taker)
        for at in range(self._looked[pair], len(offers)):
            self._looked[pair] = at + 1
            partition = offers[at]
            if (target := self._change(self._placed[partition], giver, taker, self._alive)) is not None:
                self._placed[partition] = target
                self._offer(partition)
                return True
        return False


def _given_to(replicas: list[int], giver: int, taker: int, alive: Racks) -> list[int] | None:
    """The replicas with the taker in the place of the giver, if that is possible."""
    if giver not in replicas or taker in replicas:
        return None
    target = [taker if broker == giver else broker for broker in replicas]
    was, will = ({alive.get(broker) for broker in each} - {None} for each in (replicas, target))
    return target if len(will) >= len(was) else None


def _led_by(replicas: list[int], giver: int, taker: int, alive: Racks) -> list[int] | None:
    """The same replicas with the taker first, if the giver is."""
    if replicas[0] != giver or taker not in replicas:
        return None
    return [taker, *(broker for broker in replicas if broker != taker)]


def _load(topics: Iterable[MetadataResponseTopic]) -> Counter[int]:
    return Counter(broker for topic in topics for each in topic.partitions for broker in each.replica_nodes)


async def racks(cluster: Cluster) -> Racks:
    return {broker.broker_id: broker.rack for broker in (await cluster.ask(DescribeClusterRequest())).brokers}


async def carry_out(cluster: Cluster, moves: list[ReplicaMove], output: Output, *, yes: bool) -> None:
    """Show the plan, do it when the user agrees, and return when it is done. Partitions without a leader stay as they
    are, because nobody can copy them; that, and what has not come to where it should, is a failure.
    """
    held = await _held(cluster, moves)
    stay = [move for move in moves if (at := held.get(_place(move))) is not None and at.leader < 0]
    moves = [move for move in moves if move not in stay] if stay else moves
    if moves:
        await _move(cluster, moves, held, output, yes=yes, stay=stay)
    elif not stay:
        remark("nothing has to move")
    if stay:
        raise CliError(_without_a_leader(stay))


async def _move(
    cluster: Cluster,
    moves: list[ReplicaMove],
    held: Mapping[TopicPartition, Held],
    output: Output,
    *,
    yes: bool,
    stay: Sequence[ReplicaMove],
) -> None:
    with perhaps_unread():
        show(moves, output, columns=("topic", "partition", "from_brokers", "to_brokers"))
    warnings = [_without_a_leader(stay)] if stay and not yes else []
    for told in warnings + await _fewer_copies(cluster, moves):
        with perhaps_unread():
            click.echo(f"oncelog: {told}", err=True)
    confirm(f"Move {len(moves)} partition(s)?", yes=yes)
    for first in range(0, len(moves), MOVES_AT_ONCE):
        await _ask(cluster, moves[first : first + MOVES_AT_ONCE])
    try:
        failed, now = await _until_moved(cluster, moves, held)
    except asyncio.CancelledError:  # ctrl-C
        with perhaps_unread():
            click.echo("oncelog: the moves go on; `oncelog cluster` tells how many are left", err=True)
        raise
    if not failed:
        remark(f"{len(moves)} partition(s) have moved")
        return
    gone = sum(_place(move) not in now or now[_place(move)].topic_id != held[_place(move)].topic_id for move in failed)
    raise CliError(
        f"{len(failed)} of {len(moves)} partition(s) have not moved: {_names(failed)}. "
        + ("The topic is gone" if gone == len(failed) else "The move was cancelled or changed meanwhile")
    )


async def _until_moved(
    cluster: Cluster, moves: list[ReplicaMove], held: Mapping[TopicPartition, Held]
) -> tuple[list[ReplicaMove], Mapping[TopicPartition, Held]]:
    """Wait until nothing is under way any more. Returns what has not come to where it should, and where all is then. If
    everything that is left waits for brokers that have died since, a failure says so after `--timeout`.
    """
    failed, now, looks, told, stuck_s = moves, held, 0, "", None
    while failed and looks < LOOKS:
        going = await under_way(cluster)
        if left := [move for move in moves if _place(move) in going]:
            looks, alive = 0, await racks(cluster)
            missed = [dead for move in left if (dead := _lacking(move, alive))]
            waits = f"wait for broker {', '.join(map(str, sorted(set().union(*missed))))}, which is away"
            say = f"{len(left)} of {len(moves)} partitions are on their way"
            if missed:
                say += f"; {len(missed)} of them {waits}"
            if say != told:
                remark(say)
                told = say
            if len(missed) < len(left):
                stuck_s = None
            elif stuck_s is None:
                stuck_s = time.monotonic()
            elif time.monotonic() - stuck_s >= cluster.timeout_s:
                raise CliError(
                    f"{len(left)} of {len(moves)} partition(s) {waits}: {_names(left)}. They move when it is back;"
                    " `kafka-reassign-partitions --cancel` calls a move off"
                )
        else:
            now = await _held(cluster, moves)
            failed = [move for move in moves if not _is_done(move, held, now)]
            looks += 1
        if failed:
            await asyncio.sleep(RETRY_PAUSE_S)
    return failed, now


def _lacking(move: ReplicaMove, alive: Racks) -> set[int]:
    """The brokers without which the move can't go on: those that shall have a copy, and all that have one if they are
    away together.
    """
    takers = {broker for broker in move.to_brokers if broker not in move.from_brokers and broker not in alive}
    return takers if any(broker in alive for broker in move.from_brokers) else takers | set(move.from_brokers)


class Held(NamedTuple):
    """Where a partition is."""

    topic_id: bytes
    leader: int
    replicas: list[int]


async def _held(cluster: Cluster, moves: Iterable[ReplicaMove]) -> dict[TopicPartition, Held]:
    return {
        TopicPartition(topic.name or "", each.partition_index): Held(
            topic.topic_id, each.leader_id, list(each.replica_nodes)
        )
        for topic in await cluster.metadata(sorted({move.topic for move in moves}))
        for each in topic.partitions
    }


def _is_done(move: ReplicaMove, before: Mapping[TopicPartition, Held], now: Mapping[TopicPartition, Held]) -> bool:
    was, at = before.get(_place(move)), now.get(_place(move))
    return was is not None and at is not None and (at.topic_id, at.replicas) == (was.topic_id, move.to_brokers)


def _place(move: ReplicaMove | LeaderMove) -> TopicPartition:
    return TopicPartition(move.topic, move.partition)


def _names(moves: Sequence[ReplicaMove | Elected]) -> str:
    some = ", ".join(f"{move.topic} {move.partition}" for move in moves[:NAMED])
    return some if len(moves) <= NAMED else f"{some} and {len(moves) - NAMED} more"


def _without_a_leader(moves: Sequence[ReplicaMove]) -> str:
    return f"{len(moves)} partition(s) have no leader and stay, because nobody can copy them: {_names(moves)}"


async def _fewer_copies(cluster: Cluster, moves: Iterable[ReplicaMove]) -> list[str]:
    """What the plan costs in copies."""
    fewer = [move for move in moves if len(move.to_brokers) < len(move.from_brokers)]
    if not fewer:
        return []
    told = [f"{len(fewer)} partition(s) keep fewer copies: `oncelog topic reassign` gives them more again"]
    least = await least_in_sync(cluster, {move.topic for move in fewer})
    if scarce := sum(len(move.to_brokers) <= least[move.topic] for move in fewer):
        told.append(f"{scarce} of them only as many as min.insync.replicas: the loss of one stops acks=all")
    return told


async def least_in_sync(cluster: Cluster, topics: Collection[str]) -> dict[str, int]:
    """The min.insync.replicas of these topics."""
    if not topics:
        return {}
    resources = [DescribeConfigsResource(TOPIC, name, ["min.insync.replicas"]) for name in topics]
    answer = await cluster.ask(DescribeConfigsRequest(resources=resources))
    told = {each.resource_name: each.configs[0].value for each in answer.results if each.configs}
    return {name: int(told.get(name) or 1) for name in topics}


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


async def lead_by_first(cluster: Cluster, output: Output, *, yes: bool) -> None:
    """Show which partitions would get their first replica as their leader again, and how many each broker leads then.
    Do it when the user agrees. A first replica that is not in sync can't lead.
    """
    alive, topics = await racks(cluster), await cluster.metadata(None)
    moves, behind = led_elsewhere(topics, alive)
    if behind:
        remark(f"{behind} partition(s) stay as they are led: their first replica is not in sync")
    if not moves:
        remark("nothing has to change" if behind else "every partition is led by its first replica")
        return
    with perhaps_unread():
        show(moves, output, columns=("topic", "partition", "from_broker", "to_broker"))
        before = Counter(each.leader_id for topic in topics for each in topic.partitions)
        after = before + Counter(move.to_broker for move in moves) - Counter(move.from_broker for move in moves)
        for broker in sorted(alive):
            remark(f"broker {broker} leads {before[broker]} partition(s), and then {after[broker]}")
    confirm(f"Let {len(moves)} partition(s) be led by their first replica?", yes=yes)
    told = await elected(cluster, [_place(move) for move in moves], unclean=False)
    failed = [each for each in told if each.outcome not in (ELECTED, NOT_NEEDED)]
    if failed:
        raise CliError(
            f"{len(failed)} of {len(moves)} partition(s) have not got another leader: {_names(failed)}:"
            f" {', '.join(dict.fromkeys(each.outcome for each in failed))}"
        )
    remark(f"{len(moves)} partition(s) are led by their first replica again")


def led_elsewhere(topics: Iterable[MetadataResponseTopic], alive: Racks) -> tuple[list[LeaderMove], int]:
    """The partitions that their first replica could lead, but does not; and the number of those that it can't lead."""
    moves, behind = [], 0
    for topic in topics:
        for each in topic.partitions:
            leader, first = each.leader_id, each.replica_nodes[0]
            if leader in (-1, first):
                continue
            if first in each.isr_nodes and first in alive:
                moves.append(LeaderMove(topic.name or "", each.partition_index, leader, first))
            else:
                behind += 1
    return moves, behind


def election_plan(
    topic: MetadataResponseTopic, partitions: Container[TopicPartition], alive: Racks, *, unclean: bool
) -> list[str]:
    """What an election would change, a line for each partition. Who leads uncleanly is decided only then: the replica
    that has most of those that are alive.
    """
    if not unclean:
        moves, _ = led_elsewhere([topic], alive)
        return [
            f"partition {move.partition}: led by {move.from_broker}, then by {move.to_broker}"
            for move in moves
            if _place(move) in partitions
        ]
    plan = []
    for each in topic.partitions:
        if each.leader_id < 0 and TopicPartition(topic.name or "", each.partition_index) in partitions:
            living = [str(broker) for broker in each.replica_nodes if broker in alive]
            plan.append(f"partition {each.partition_index}: led by nobody, alive: {', '.join(living) or 'no replica'}")
    return plan


async def elected(cluster: Cluster, partitions: Sequence[TopicPartition], *, unclean: bool) -> list[Elected]:
    """Elections of preferred leaders, or of any replica that lives, and what came of each."""
    topics: dict[str, ElectLeadersRequestTopicPartitions] = {}
    for name, index in partitions:
        topics.setdefault(name, ElectLeadersRequestTopicPartitions(name)).partitions.append(index)
    answer = await cluster.ask(ElectLeadersRequest(int(unclean), list(topics.values())))
    if answer.error_code:
        raise refused("the election", answer.error_code)
    return [
        Elected(topic.topic, each.partition_id, _outcome(each.error_code))
        for topic in answer.replica_election_results
        for each in topic.partition_result
    ]


def _outcome(code: int) -> str:
    match code:
        case ErrorCode.NONE:
            return ELECTED
        case ErrorCode.ELECTION_NOT_NEEDED:
            return NOT_NEEDED
        case _:
            return error_name(code)
