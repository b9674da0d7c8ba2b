"""Both assignors give each partition to one subscriber; range keeps neighbours together, uniform moves little."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis.strategies import DrawFn, booleans, composite, integers

from service.groups import assignors
from service.groups.assignors import ASSIGNORS, MemberSpec, Target
from service.groups.small_steps import SORTED_A_STEP, take

TOPICS = (b"a", b"b", b"c")


def member(*topics: bytes, instance: str | None = None, current: dict[bytes, set[int]] | None = None) -> MemberSpec:
    held = {topic: frozenset(partitions) for topic, partitions in (current or {}).items()}
    return MemberSpec(instance, frozenset(topics), held)


def assign(name: str, members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> Target:
    """In one go."""
    steps = ASSIGNORS[name](members, partition_counts)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            target: Target = end.value
            return target


def counts(target: Target) -> dict[str, int]:
    return {name: sum(map(len, topics.values())) for name, topics in target.items()}


def test_range_gives_neighbours_and_the_first_members_one_more() -> None:
    target = assign("range", {"m2": member(b"a", b"b"), "m1": member(b"a", b"b")}, {b"a": 3, b"b": 3})
    assert target == {
        "m1": {b"a": frozenset({0, 1}), b"b": frozenset({0, 1})},
        "m2": {b"a": frozenset({2}), b"b": frozenset({2})},
    }


def test_range_puts_static_members_first_by_their_instance() -> None:
    members = {"a": member(b"a"), "z": member(b"a", instance="1"), "b": member(b"a", instance="2")}
    target = assign("range", members, {b"a": 3})
    assert target == {"z": {b"a": frozenset({0})}, "b": {b"a": frozenset({1})}, "a": {b"a": frozenset({2})}}


def test_range_leaves_members_without_a_share_empty() -> None:
    target = assign("range", {"m1": member(b"a"), "m2": member(b"a")}, {b"a": 1})
    assert target == {"m1": {b"a": frozenset({0})}, "m2": {}}


def test_uniform_divides_evenly() -> None:
    target = assign("uniform", {"m1": member(b"a"), "m2": member(b"a")}, {b"a": 5})
    assert target == {"m1": {b"a": frozenset({0, 1, 2})}, "m2": {b"a": frozenset({3, 4})}}


def test_uniform_takes_only_what_a_newcomer_is_owed() -> None:
    members = {
        "m1": member(b"a", current={b"a": {0, 1, 2}}),
        "m2": member(b"a", current={b"a": {3, 4, 5}}),
        "m3": member(b"a"),
    }
    target = assign("uniform", members, {b"a": 6})
    assert counts(target) == {"m1": 2, "m2": 2, "m3": 2}
    assert target["m1"][b"a"] < {0, 1, 2}
    assert target["m2"][b"a"] < {3, 4, 5}


def test_uniform_serves_unequal_subscriptions_as_evenly_as_they_allow() -> None:
    members = {"m1": member(b"a"), "m2": member(b"a", b"b"), "m3": member(b"b")}
    assert counts(assign("uniform", members, {b"a": 4, b"b": 2})) == {"m1": 2, "m2": 2, "m3": 2}


def test_uniform_moves_partitions_to_a_new_member_with_an_unequal_subscription() -> None:
    members = {"m1": member(b"a", b"b", current={b"a": {0, 1}, b"b": {0, 1}}), "m2": member(b"b")}
    assert assign("uniform", members, {b"a": 2, b"b": 2}) == {
        "m1": {b"a": frozenset({0, 1})},
        "m2": {b"b": frozenset({0, 1})},
    }


SUBSETS = [frozenset(topic for place, topic in enumerate(TOPICS) if bits >> place & 1) for bits in range(8)]


@composite
def groups(draw: DrawFn) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    """Sets are drawn as the bits of one number, because drawing them one by one takes longer than the test."""
    partition_counts = {topic: draw(integers(0, 6)) for topic in TOPICS}
    taken: set[tuple[bytes, int]] = set()
    members = {}
    for number in range(draw(integers(1, 5))):
        subscribed, is_static, wanted = draw(integers(0, 7)), draw(booleans()), draw(integers(0, (1 << 24) - 1))
        current: dict[bytes, set[int]] = {}
        for place, topic in enumerate(TOPICS):
            held = {partition for partition in range(8) if wanted >> (8 * place + partition) & 1}
            current[topic] = {partition for partition in held if (topic, partition) not in taken}
            taken.update((topic, partition) for partition in current[topic])
        instance = f"i{number}" if is_static else None
        members[f"m{number}"] = member(*SUBSETS[subscribed], instance=instance, current=current)
    return members, partition_counts


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups())
def test_each_partition_goes_to_exactly_one_of_its_subscribers(
    name: str, group: tuple[dict[str, MemberSpec], dict[bytes, int]]
) -> None:
    members, partition_counts = group
    target = assign(name, members, partition_counts)
    assert set(target) == set(members)
    given_out: list[tuple[bytes, int]] = []
    for member_id, topics in target.items():
        for topic, partitions in topics.items():
            assert topic in members[member_id].topics
            given_out.extend((topic, partition) for partition in partitions)
    subscribed = set().union(*(spec.topics for spec in members.values()))
    wanted = [(topic, partition) for topic in subscribed for partition in range(partition_counts[topic])]
    assert sorted(given_out) == sorted(wanted)


@given(group=groups())
def test_uniform_leaves_no_move_that_would_level_two_members(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, partition_counts = group
    target = assign("uniform", members, partition_counts)
    total = counts(target)
    for giver, topics in target.items():
        for topic in topics:
            receivers = [total[other] for other in members if topic in members[other].topics]
            assert total[giver] - min(receivers) <= 1


@given(group=groups())
def test_a_group_that_is_level_already_keeps_everything(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, partition_counts = group
    target = assign("uniform", members, partition_counts)
    again = {name: MemberSpec(spec.instance_id, spec.topics, target[name]) for name, spec in members.items()}
    assert assign("uniform", again, partition_counts) == target


def test_uniform_hands_a_member_that_keeps_all_it_has_the_very_same_part() -> None:
    members = {f"m{number}": member(b"a", current={b"a": {number}}) for number in range(100)}
    target = assign("uniform", {**members, "new": member(b"a")}, {b"a": 101})
    assert target["new"] == {b"a": frozenset({100})}
    assert all(target[name] is spec.current for name, spec in members.items())


class Counted(str):
    """A name that tells how often names were compared or looked up."""

    looks: ClassVar[int] = 0

    def __lt__(self, other: str) -> bool:
        Counted.looks += 1
        return str.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Counted.looks += 1
        return str.__hash__(self)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_work_grows_with_the_group_and_not_with_its_square(name: str) -> None:
    """Half subscribe to one topic, half to another, one to both, and all partitions are the first members' so far."""

    def looks(size: int) -> int:
        names = [Counted(f"m{number:05}") for number in range(size)]
        members: dict[str, MemberSpec] = {each: member(TOPICS[place % 2]) for place, each in enumerate(names)}
        members[names[0]] = member(b"a", b"b", current={b"a": set(range(size)), b"b": set(range(size // 2))})
        Counted.looks = 0
        assign(name, members, {b"a": size, b"b": size})
        return Counted.looks

    assert looks(1_000) < 3 * looks(500)


def test_a_member_with_very_many_partitions_gives_them_away_in_many_small_steps() -> None:
    many = 2_000
    members = {
        "full": member(b"a", b"b", current={b"a": set(range(many)), b"b": set(range(many))}),
        "other": member(b"a"),
    }
    steps = ASSIGNORS["uniform"](members, {b"a": many, b"b": many})
    assert sum(1 for _ in steps) > 2 * many


@pytest.fixture
def moved_in_heaps(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[int]]:
    """What is done in the heaps of a group of so many members and topics, step by step. All subscribe to all topics,
    but one of them to one more; another one has half of all partitions so far.
    """
    done = [0]

    def count(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done[-1] += 1
            return operation(*arguments)

        return call

    for name in ("heappush", "heappop", "heapreplace"):
        monkeypatch.setattr(assignors, name, count(getattr(heapq, name)), raising=False)

    def measure(members: int, topics: int) -> list[int]:
        names = [number.to_bytes(2) for number in range(topics)]
        specs = {f"m{number:05}": member(*names) for number in range(members)}
        specs["more"] = member(*names, b"one more")
        specs["full"] = member(*names, current={name: {0} for name in names[: topics // 2]})
        done[:] = [0]
        for _ in assignors.assign_uniform(specs, dict.fromkeys([*names, b"one more"], 1)):
            done.append(0)
        return done.copy()

    return measure


def test_no_step_puts_more_than_one_entry_right_although_subscriptions_differ(
    moved_in_heaps: Callable[[int, int], list[int]],
) -> None:
    steps = moved_in_heaps(100, 300)
    assert max(steps) <= 2  # it is the first one of its subscription, and of a topic
    assert len(steps) > 300, "each free partition is a step"


def test_most_members_with_the_same_subscription_are_put_right_once_for_all_their_topics(
    moved_in_heaps: Callable[[int, int], list[int]],
) -> None:
    assert sum(moved_in_heaps(100, 300)) < 5 * (100 + 300)
    assert sum(moved_in_heaps(200, 600)) < 5 * (200 + 600)


def test_members_that_each_become_the_first_one_of_their_subscription_are_put_right_once_each() -> None:
    """Half of the members subscribe to a second topic, which one of them has whole. What it gives to these makes them
    give up partitions of the first topic, one after the other.
    """

    def steps(size: int) -> int:
        members = {f"m{number:05}": member(b"b", *(b"a" for _ in range(number % 2))) for number in range(size)}
        members["m00001"] = member(b"a", b"b", current={b"a": set(range(2 * size))})
        return sum(1 for _ in assignors.assign_uniform(members, {b"a": 2 * size, b"b": 2 * size}))

    assert steps(1_000) < 2.2 * steps(500)


class Compared(bytes):
    """The id of a topic. Counts how often one is compared with another."""

    times = 0

    def __lt__(self, other: bytes) -> bool:
        Compared.times += 1
        return bytes(self) < bytes(other)


@pytest.mark.parametrize("name", ["range", "uniform"])
def test_thousands_of_topics_are_sorted_in_many_steps(name: str) -> None:
    """To sort 15,000 at once took half of a turn's time."""
    topics = [Compared(number.to_bytes(16, "little")) for number in range(10 * SORTED_A_STEP)]
    work = ASSIGNORS[name]({"a": MemberSpec(None, frozenset(topics), {})}, dict.fromkeys(topics, 1))
    longest = 0
    target: Target | None = None
    while target is None:
        Compared.times = 0
        target = take(work, 1)
        longest = max(longest, Compared.times)
    assert list(target["a"]) == sorted(topics)
    assert 0 < longest < 10 * SORTED_A_STEP
