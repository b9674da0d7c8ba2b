"""The plans of `oncelog cluster spread`, `cluster drain` and `topic reassign`."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from log.ids import TopicPartition
from service.cli.moving import Racks, ReplicaMove, spread, with_factor, without
from service.wire.messages import MetadataResponsePartition, MetadataResponseTopic

FOUR: Racks = dict.fromkeys((1, 2, 3, 4))


def topic(name: str, *placed: list[int], leader: int | None = None) -> MetadataResponseTopic:
    """A topic whose partitions these brokers hold."""
    partitions = [
        MetadataResponsePartition(
            partition_index=index, leader_id=replicas[0] if leader is None else leader, replica_nodes=replicas
        )
        for index, replicas in enumerate(placed)
    ]
    return MetadataResponseTopic(name=name, partitions=partitions)


def after(topics: list[MetadataResponseTopic], moves: list[ReplicaMove]) -> list[MetadataResponseTopic]:
    """The topics when all moves are done."""
    plan = {(move.topic, move.partition): move.to_brokers for move in moves}
    return [
        topic(each.name or "", *(plan.get((each.name or "", it.partition_index), it.replica_nodes) for it in parts))
        for each in topics
        for parts in [each.partitions]
    ]


def shares(topics: list[MetadataResponseTopic], *, first_only: bool = False) -> Counter[int]:
    """How many partitions each of the four brokers holds."""
    held: Counter[int] = Counter(dict.fromkeys(FOUR, 0))
    for each in topics:
        for it in each.partitions:
            held.update(it.replica_nodes[: 1 if first_only else None])
    return held


def uneven(held: Counter[int]) -> int:
    return max(held.values()) - min(held.values())


def test_new_brokers_get_their_share_of_what_one_has() -> None:
    topics = [topic("orders", *[[1]] * 8), topic("single", [1]), topic("another", [1])]
    moves = spread(topics, FOUR)
    assert Counter(move.to_brokers[0] for move in moves if move.topic == "orders") == {2: 2, 3: 2, 4: 2}
    assert uneven(shares(after(topics, moves))) <= 1
    assert all(move.from_brokers == [1] for move in moves)
    assert spread(after(topics, moves), FOUR) == []


def test_leadership_is_levelled_where_the_copies_are_already() -> None:
    moves = spread([topic("orders", [1, 2], [1, 2], [1, 2], [1, 2])], {1: None, 2: None})
    assert sorted(move.to_brokers for move in moves) == [[2, 1], [2, 1]]


def test_what_moves_already_and_what_nobody_leads_stays() -> None:
    assert spread([topic("orders", [1], [1], leader=-1)], FOUR) == []
    [move] = spread([topic("orders", [1], [1])], FOUR, moving={TopicPartition("orders", 0)})
    assert move.partition == 1


def test_no_copy_joins_another_in_its_rack() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    topics = [topic("orders", [1, 3], [1, 3], [1, 3], [1, 3])]
    told = after(topics, spread(topics, racks))
    assert shares(told) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert all({racks[broker] for broker in it.replica_nodes} == {"a", "b"} for it in told[0].partitions)
    [drained] = without([3], [topic("orders", [1, 3])], racks)
    assert drained.to_brokers == [1, 4]
    everybody = [topic("orders", [1]), topic("more", [3], [4])]
    widened = with_factor(everybody[:1], 2, everybody, racks)
    assert widened[0].to_brokers in ([1, 3], [1, 4])
    assert len(with_factor(everybody, 2, everybody, racks)) == 3


PLACED = st.lists(st.permutations([1, 2, 3, 4]), min_size=1, max_size=12)


@given(st.lists(st.tuples(PLACED, st.integers(1, 3)), min_size=1, max_size=5))
def test_every_topic_and_the_whole_are_level_afterwards(drawn: list[tuple[list[list[int]], int]]) -> None:
    topics = [topic(str(at), *(each[:factor] for each in placed)) for at, (placed, factor) in enumerate(drawn)]
    moves = spread(topics, FOUR)
    told = after(topics, moves)
    for each in told:
        assert uneven(shares([each])) <= 1
        assert all(len(set(it.replica_nodes)) == len(it.replica_nodes) for it in each.partitions)
    assert sum(shares(told).values()) == sum(shares(topics).values())
    assert spread(told, FOUR) == [], "there is nothing left to do"
    assert uneven(shares(told, first_only=True)) <= max(uneven(shares(topics, first_only=True)), len(topics))
