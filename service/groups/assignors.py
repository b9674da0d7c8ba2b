"""The assignors that run in the broker: how the partitions of topics are divided among a group's members.

Pure and deterministic: equal input gives equal output, in whatever order the dictionaries are. If a topic has
subscribers, each of its partitions is given to exactly one of them. Racks are ignored, as by Kafka's assignors. An
assignment may take longer than one turn of the loop, so an assignor yields after each step of some microseconds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple

from service.groups.small_steps import SmallSteps, sorted_in_small_steps, steps_for

Target = dict[str, Mapping[bytes, frozenset[int]]]
TopicIdPartition = tuple[bytes, int]
HeldByMember = dict[str, dict[TopicIdPartition, None]]


class MemberSpec(NamedTuple):
    """What an assignor must know of a member. `topics`: the ids of the existing topics to which it subscribes.
    `current`: its part of the present target.
    """

    instance_id: str | None
    topics: frozenset[bytes]
    current: Mapping[bytes, frozenset[int]]


def assign_range(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> SmallSteps[Target]:
    """For each topic, every subscriber in order gets neighbouring partitions. The first ones get one more if the number
    of partitions is not a multiple.

    Members are ordered by instance id, then by member id. So partitions with the same number, of topics with the same
    subscribers, go to the same member, and static members keep their ranges over restarts.
    """
    ordered = sorted(members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name))
    target: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    by_topic = yield from _subscribers(members, ordered)
    for topic_id in (yield from sorted_in_small_steps(by_topic)):
        subscribers = by_topic[topic_id]
        count = partition_counts.get(topic_id, 0)
        quota, extra = divmod(count, len(subscribers))
        start = 0
        for place, member_id in enumerate(subscribers[:count]):
            end = start + quota + (1 if place < extra else 0)
            target[member_id][topic_id] = frozenset(range(start, end))
            start = end
            yield
    return dict(target)


def assign_uniform(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> SmallSteps[Target]:
    """Members get equal numbers of partitions, as far as subscriptions allow, and keep what they have if possible."""
    if not members:
        return {}
    subscriptions = {spec.topics for spec in members.values()}
    kept, free = yield from _kept(members, subscriptions, partition_counts)
    if len(subscriptions) == 1:
        return (yield from _level_equal(kept, free))
    return (yield from _level_unequal(kept, free, members))


def _kept(
    members: Mapping[str, MemberSpec], subscriptions: set[frozenset[bytes]], partition_counts: Mapping[bytes, int]
) -> SmallSteps[tuple[Target, list[TopicIdPartition]]]:
    """What each member may keep of its present part, and the partitions that are left over. A member keeps a partition
    that exists, to which it subscribes, and which no other member keeps.
    """
    wanted: set[bytes] = set()
    for topics in subscriptions:
        wanted |= topics
        yield from steps_for(len(topics))
    left: dict[bytes, set[int]] = {}
    for topic_id in (yield from sorted_in_small_steps(wanted)):
        left[topic_id] = set(range(partition_counts.get(topic_id, 0)))
        yield
    kept: Target = {}
    for member_id in sorted(members):
        spec = members[member_id]
        held = spec.current
        for topic_id, partitions in held.items():  # `all` would make a generator for each member
            if topic_id not in spec.topics or not partitions <= left[topic_id]:
                shared = ((each, held[each] & left[each]) for each in held if each in spec.topics)
                held = {each: partitions for each, partitions in shared if partitions}
                break
        for topic_id, partitions in held.items():
            left[topic_id] -= partitions
            yield
        kept[member_id] = held
        yield
    free: list[TopicIdPartition] = []
    for topic_id, partitions_left in left.items():
        free.extend((topic_id, partition) for partition in sorted(partitions_left))
        yield
    return kept, free


def _level_equal(kept: Target, free: list[TopicIdPartition]) -> SmallSteps[Target]:
    """All members subscribe to the same topics. Each gets the quotient; the fullest members get one of the rest
    each.
    """
    of_size: dict[int, list[str]] = {}  # each in the order of their ids, as `kept` is
    given = 0
    for member_id, held in kept.items():
        size = sum(map(len, held.values()))
        given += size
        of_size.setdefault(size, []).append(member_id)
        yield
    quota, extra = divmod(len(free) + given, len(kept))
    fullest_first = ((size, member_id) for size in sorted(of_size, reverse=True) for member_id in of_size[size])
    gaining: list[tuple[str, int]] = []
    target = kept.copy()
    for place, (size, member_id) in enumerate(fullest_first):
        gains = quota + (place < extra) - size
        if gains < 0:
            parts = list(_partitions_of(kept[member_id]))
            free.extend(parts[gains:])
            target[member_id] = yield from _by_topic(parts[:gains])
        elif gains > 0:
            gaining.append((member_id, gains))
        yield
    free.sort()
    start = 0
    for member_id, gains in sorted(gaining):
        target[member_id] = yield from _by_topic([*_partitions_of(kept[member_id]), *free[start : start + gains]])
        start += gains
        yield
    assert start == len(free)
    return target


def _level_unequal(kept: Target, free: list[TopicIdPartition], members: Mapping[str, MemberSpec]) -> SmallSteps[Target]:
    """Free partitions go to the subscriber with the fewest partitions; topics with the fewest subscribers come first.
    Then partitions move from fuller to emptier subscribers, as long as that makes the counts of two members more equal.

    This ends, because each move lowers the sum of the squares of the counts. At the end no single move helps. Moves
    that would help only together are not looked for.
    """
    holdings: HeldByMember = {}
    for member_id, held in kept.items():
        holdings[member_id] = dict.fromkeys(_partitions_of(held))
        yield
    emptiest = yield from Emptiest.among(holdings, members)
    changed: set[str] = set()
    for partition in (yield from emptiest.hardest_first(free)):
        while (receiver := emptiest.of(partition[0])) is None:
            yield
        holdings[receiver][partition] = None
        changed.add(receiver)
        yield
    moved = True
    while moved:
        moved = False
        for member_id in sorted(holdings, key=lambda member_id: (-len(holdings[member_id]), member_id)):
            if (yield from _give_away(member_id, holdings, emptiest, changed)):
                moved = True
                yield from emptiest.has_fewer(member_id, members[member_id].topics)
    target = kept.copy()
    for member_id, mine in holdings.items():
        if member_id in changed:
            target[member_id] = yield from _by_topic(mine)
        yield
    return target


def _give_away(member_id: str, holdings: HeldByMember, emptiest: "Emptiest", changed: set[str]) -> SmallSteps[bool]:
    """Move partitions of one member to subscribers that have at least two fewer. Returns whether any was moved.
    `changed`: who has given or got any.
    """
    mine = holdings[member_id]
    before = len(mine)
    for partition in reversed(list(mine)):
        while (receiver := emptiest.of(partition[0])) is None:
            yield
        if len(mine) - len(holdings[receiver]) > 1:
            del mine[partition]
            holdings[receiver][partition] = None
            changed.add(receiver)
        yield
    if len(mine) == before:
        return False
    changed.add(member_id)
    return True


Entry = tuple[int, str, int]


class Alike:
    """Members with the same subscription. `heap`: how many partitions each had, and its id. `entry`: the first of them,
    for the topics, with the number `told`: how often they had to be told that one has fewer.
    """

    __slots__ = ("entry", "heap", "told")

    def __init__(self, size: int, member_id: str) -> None:
        self.heap = [(size, member_id)]
        self.told = 0
        self.entry: Entry = size, member_id, 0

    def correct(self, size: int) -> None:
        """The first one has so many now."""
        heapreplace(self.heap, (size, self.entry[1]))
        self.entry = *self.heap[0], self.told

    def has_fewer(self, size: int, member_id: str) -> bool:
        """Returns whether the member has become the first one, and the topics must be told that."""
        heappush(self.heap, (size, member_id))
        if self.heap[0] < (size, member_id):
            return False
        self.told += 1
        self.entry = size, member_id, self.told
        return True


class Emptiest:
    """For each topic, the subscriber with the fewest partitions, the first by name among equals.

    Members with the same subscription, in most groups nearly all, stand in one heap. Each topic has a heap with the
    first one of each subscription that has the topic. A member that has got more partitions since may stand too far
    ahead, as may the first one of a subscription; that is corrected when it comes to the front. A member that has fewer
    since must be announced by `has_fewer`. If it becomes the first one of its subscription, the topics get new entries
    with another number `told`, and the old ones don't count any more.
    """

    def __init__(self, holdings: HeldByMember) -> None:
        self._holdings = holdings
        self._alike: dict[str, Alike] = {}  # by member
        self._first: dict[bytes, list[Entry]] = {}  # by topic
        self._subscribers: dict[bytes, int] = {}  # by topic: how many

    @classmethod
    def among(cls, holdings: HeldByMember, members: Mapping[str, MemberSpec]) -> SmallSteps["Emptiest"]:
        made = cls(holdings)
        by_subscription: dict[frozenset[bytes], Alike] = {}
        for size, member_id in sorted((len(held), member_id) for member_id, held in holdings.items()):
            alike = by_subscription.get(members[member_id].topics)
            if alike is None:
                alike = by_subscription[members[member_id].topics] = Alike(size, member_id)
            else:
                alike.heap.append((size, member_id))  # all heaps are sorted at first
            made._alike[member_id] = alike
            yield
        for topics, alike in by_subscription.items():
            for topic_id in topics:
                made._first.setdefault(topic_id, []).append(alike.entry)
                made._subscribers[topic_id] = made._subscribers.get(topic_id, 0) + len(alike.heap)
                yield
        return made

    def hardest_first(self, free: list[TopicIdPartition]) -> SmallSteps[Iterator[TopicIdPartition]]:
        """`free`, topics with the fewest subscribers first, and otherwise as it was."""
        by_subscribers: dict[int, list[TopicIdPartition]] = {}
        for partition in free:
            by_subscribers.setdefault(self._subscribers[partition[0]], []).append(partition)
            yield
        return chain.from_iterable(by_subscribers[count] for count in sorted(by_subscribers))

    def of(self, topic_id: bytes) -> str | None:
        """None: an entry had to be corrected, which is a step of its own. Then this must be called again."""
        queue = self._first[topic_id]
        _, member_id, told = queue[0]
        alike = self._alike[member_id]
        size, first_id, _ = alike.entry
        if told != alike.told:
            heappop(queue)
        elif size != (present := len(self._holdings[first_id])):
            alike.correct(present)
        elif queue[0] is not alike.entry:
            heapreplace(queue, alike.entry)
        else:
            return member_id
        return None

    def has_fewer(self, member_id: str, topics: frozenset[bytes]) -> SmallSteps[None]:
        alike = self._alike[member_id]
        if alike.has_fewer(len(self._holdings[member_id]), member_id):
            for topic_id in topics:
                heappush(self._first[topic_id], alike.entry)
                yield


def _subscribers(members: Mapping[str, MemberSpec], ordered: list[str]) -> SmallSteps[dict[bytes, list[str]]]:
    subscribers: dict[bytes, list[str]] = {}
    for member_id in ordered:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
            yield
    return subscribers


def _partitions_of(held: Mapping[bytes, frozenset[int]]) -> Iterator[TopicIdPartition]:
    return ((topic_id, partition) for topic_id in sorted(held) for partition in sorted(held[topic_id]))


def _by_topic(held: Iterable[TopicIdPartition]) -> SmallSteps[dict[bytes, frozenset[int]]]:
    topics: dict[bytes, set[int]] = {}
    for topic_id, partition in held:
        if topic_id not in topics:
            topics[topic_id] = set()
            yield
        topics[topic_id].add(partition)
    whole: dict[bytes, frozenset[int]] = {}
    for topic_id in sorted(topics):
        whole[topic_id] = frozenset(topics[topic_id])
        yield
    return whole


ASSIGNORS: dict[str, Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], SmallSteps[Target]]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}
