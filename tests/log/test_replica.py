"""The leader's view of its replica set: the high watermark is what everybody in sync holds, and never falls."""

from hypothesis import given
from hypothesis import strategies as st

from log.replica import ReplicaSet


def three(isr: tuple[int, ...] = (1, 2, 3)) -> ReplicaSet:
    return ReplicaSet(1, 0, (1, 2, 3), isr, high_watermark=0)


def test_a_set_of_one_commits_what_it_holds() -> None:
    alone = ReplicaSet(1, 0, (1,), (1,), high_watermark=0)
    assert alone.holds(5)
    assert alone.high_watermark == 5
    assert not alone.holds(5)


def test_nothing_is_committed_before_every_in_sync_replica_asked_beyond_it() -> None:
    replicas = three()
    assert not replicas.holds(5)
    assert not replicas.fetched(2, 5, broker_epoch=0, now_ms=0)
    assert replicas.fetched(3, 4, broker_epoch=0, now_ms=0)
    assert replicas.high_watermark == 4


def test_a_replica_out_of_sync_holds_nobody_up() -> None:
    replicas = three(isr=(1, 2))
    replicas.holds(5)
    assert replicas.fetched(2, 5, broker_epoch=0, now_ms=0)
    assert replicas.high_watermark == 5


def test_a_proposed_member_counts_before_the_proposal_is_answered() -> None:
    replicas = three(isr=(1,))
    replicas.pending_isr = (1, 2)
    assert not replicas.holds(5)
    assert replicas.fetched(2, 3, broker_epoch=0, now_ms=0)
    assert replicas.high_watermark == 3


def test_a_smaller_set_lets_the_high_watermark_move() -> None:
    replicas = three()
    replicas.holds(5)
    assert replicas.decided((1,))
    assert replicas.high_watermark == 5


@given(st.lists(st.tuples(st.sampled_from(["own", 2, 3]), st.integers(0, 20))))
def test_the_high_watermark_is_the_least_that_was_ever_held_by_all_and_never_falls(
    steps: list[tuple[object, int]],
) -> None:
    replicas, own, held = three(), 0, {2: -1, 3: -1}
    for who, offset in steps:
        before = replicas.high_watermark
        if who == "own":
            own = max(own, offset)
            replicas.holds(own)
        else:
            member = 2 if who == 2 else 3
            held[member] = min(offset, own)
            replicas.fetched(member, held[member], broker_epoch=0, now_ms=0)
        assert replicas.high_watermark == max(before, min(own, *held.values()))
