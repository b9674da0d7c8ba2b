"""The assignors that run in the broker: how the partitions of topics are divided among a group's members.

Pure and deterministic: equal input in any order of dictionaries gives equal output. Both give every partition of a
topic that somebody subscribes to to exactly one of its subscribers. Racks are not looked at (as in Kafka's). Called
by consumer_decisions.py when a group's epoch is ahead of its target assignment.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Target = dict[str, dict[bytes, frozenset[int]]]
Partition = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """`topics` are the ids of existing topics it subscribes to; `current` is its part of the present target."""

    instance_id: str | None
    topics: frozenset[bytes]
    current: Mapping[bytes, frozenset[int]]


def assign_range(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> Target:
    """Topic by topic, neighbouring partitions to each subscriber in order; the first get one more if it doesn't come
    out even.

    Members are ordered by instance id, then by member id, so that equal partitions of topics with equal subscribers
    meet at one member, and static members keep their ranges over restarts.
    """
    ordered = sorted(members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name))
    target: Target = {member_id: {} for member_id in members}
    for topic_id in sorted(partition_counts):
        subscribers = [member_id for member_id in ordered if topic_id in members[member_id].topics]
        if not subscribers:
            continue
        quota, extra = divmod(partition_counts[topic_id], len(subscribers))
        start = 0
        for place, member_id in enumerate(subscribers):
            end = start + quota + (1 if place < extra else 0)
            if start < end:
                target[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return target


def assign_uniform(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> Target:
    """Counts of partitions differ as little as subscriptions allow, and what a member has it keeps if it may."""
    if not members:
        return {}
    holdings = _kept(members, partition_counts)
    if len({spec.topics for spec in members.values()}) == 1:
        _level_equal(holdings, members, partition_counts)
    else:
        _level_unequal(holdings, members, partition_counts)
    return {member_id: _by_topic(held) for member_id, held in holdings.items()}


def _kept(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, list[Partition]]:
    """What each member may keep of its present part: subscribed, existing, and nobody else's."""
    taken: set[Partition] = set()
    holdings: dict[str, list[Partition]] = {}
    for member_id in sorted(members):
        spec = members[member_id]
        held = [
            (topic_id, partition)
            for topic_id in sorted(spec.current)
            for partition in sorted(spec.current[topic_id])
            if topic_id in spec.topics
            and partition < partition_counts.get(topic_id, 0)
            and (topic_id, partition) not in taken
        ]
        taken.update(held)
        holdings[member_id] = held
    return holdings


def _unassigned(
    holdings: Mapping[str, list[Partition]], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> list[Partition]:
    held = {partition for partitions in holdings.values() for partition in partitions}
    wanted = set().union(*(spec.topics for spec in members.values()))
    return [
        (topic_id, partition)
        for topic_id in sorted(wanted)
        for partition in range(partition_counts.get(topic_id, 0))
        if (topic_id, partition) not in held
    ]


def _level_equal(
    holdings: dict[str, list[Partition]], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> None:
    """All subscribe to the same: everyone gets the quotient, the fullest get the remainder one by one."""
    free = _unassigned(holdings, members, partition_counts)
    quota, extra = divmod(len(free) + sum(map(len, holdings.values())), len(holdings))
    fullest_first = sorted(holdings, key=lambda member_id: (-len(holdings[member_id]), member_id))
    quotas = {member_id: quota + (1 if place < extra else 0) for place, member_id in enumerate(fullest_first)}
    for member_id in sorted(holdings):
        free.extend(holdings[member_id][quotas[member_id] :])
        del holdings[member_id][quotas[member_id] :]
    free.sort()
    start = 0
    for member_id in sorted(holdings):
        end = start + quotas[member_id] - len(holdings[member_id])
        holdings[member_id].extend(free[start:end])
        start = end
    assert start == len(free)


def _level_unequal(
    holdings: dict[str, list[Partition]], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> None:
    """Free partitions go to the emptiest subscriber, those with the fewest subscribers first; then partitions move from
    fuller to emptier subscribers while that brings two members closer together.

    Each move lowers the sum of squares of the counts, so that this ends. It reaches a state where no single move
    helps; chains of moves that only help together are not looked for.
    """
    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)

    def emptiest(topic_id: bytes) -> str:
        return min(subscribers[topic_id], key=lambda member_id: (len(holdings[member_id]), member_id))

    free = _unassigned(holdings, members, partition_counts)
    for partition in sorted(free, key=lambda partition: (len(subscribers[partition[0]]), partition)):
        holdings[emptiest(partition[0])].append(partition)
    moved = True
    while moved:
        moved = False
        for member_id in sorted(holdings, key=lambda member_id: (-len(holdings[member_id]), member_id)):
            moved = _give_away(member_id, holdings, emptiest) or moved


def _give_away(member_id: str, holdings: dict[str, list[Partition]], emptiest: Callable[[bytes], str]) -> bool:
    """Move partitions of one member to subscribers that have at least two fewer; whether any was moved."""
    moved = False
    for partition in reversed(holdings[member_id].copy()):
        receiver = emptiest(partition[0])
        if len(holdings[member_id]) - len(holdings[receiver]) > 1:
            holdings[member_id].remove(partition)
            holdings[receiver].append(partition)
            moved = True
    return moved


def _by_topic(held: list[Partition]) -> dict[bytes, frozenset[int]]:
    topics: dict[bytes, set[int]] = {}
    for topic_id, partition in held:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(topics[topic_id]) for topic_id in sorted(topics)}


ASSIGNORS: dict[str, Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], Target]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}
