"""Replica placement: even, and spread over racks, for any cluster."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from service.cluster.image import RegisteredBroker
from service.cluster.placement import place


def brokers(racks: list[str | None]) -> list[RegisteredBroker]:
    return [RegisteredBroker(number, 1, 1, (), rack) for number, rack in enumerate(racks)]


@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8),
    st.integers(1, 40),
    st.integers(0, 50),
    st.data(),
)
def test_replicas_are_distinct_leaders_even_and_racks_covered(
    racks: list[str | None], partitions: int, start: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(racks)))
    placed = place(brokers(racks), partitions=partitions, replicas=replicas, start=start)
    assert len(placed) == partitions
    leaders = Counter(ids[0] for ids in placed)
    assert max(leaders.values()) - min(leaders[number] for number in range(len(racks))) <= 1
    for ids in placed:
        assert len(set(ids)) == len(ids) == replicas
        assert len({racks[broker] for broker in ids}) == min(replicas, len(set(racks)))


def test_followers_of_one_leader_change_with_every_turn() -> None:
    placed = place(brokers([None] * 4), partitions=12, replicas=2, start=0)
    assert [ids for ids in placed if ids[0] == 0] == [(0, 1), (0, 2), (0, 3)]
