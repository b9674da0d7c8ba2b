"""The leader's view of its replica set: the high watermark is what everybody in sync holds, and never falls; and where
a follower's log parts from its leader's.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.epochs import LeaderEpochs
from log.replica import Proposal, ReplicaSet, cut_by_epoch

LIVES = {1: 11, 2: 12, 3: 13}
LAG_MS = 100


def three(isr: tuple[int, ...] = (1, 2, 3), *, min_in_sync: int = 1, epoch_start_offset: int = 0) -> ReplicaSet:
    return ReplicaSet(
        1, 0, (1, 2, 3), isr, high_watermark=0, min_in_sync=min_in_sync, epoch_start_offset=epoch_start_offset
    )


def fetch(
    replicas: ReplicaSet, member: int, offset: int, *, end: int = 5, life: int | None = None, at: int = 0
) -> bool:
    epoch = LIVES[member] if life is None else life
    return replicas.fetched(member, offset, start_offset=0, log_end_offset=end, broker_epoch=epoch, now_ms=at)


def proposal(
    replicas: ReplicaSet, *, joiner: int | None = None, end: int = 5, at: int = 0, lives: dict[int, int] = LIVES
) -> Proposal | None:
    return replicas.proposal(lives, joiner=joiner, log_start_offset=0, log_end_offset=end, now_ms=at, lag_ms=LAG_MS)


def test_a_set_of_one_commits_what_it_holds() -> None:
    alone = ReplicaSet(1, 0, (1,), (1,), high_watermark=0)
    assert alone.holds(5)
    assert alone.high_watermark == 5
    assert not alone.holds(5)


def test_nothing_is_committed_before_every_in_sync_replica_asked_beyond_it() -> None:
    replicas = three()
    assert not replicas.holds(5)
    assert not fetch(replicas, 2, 5)
    assert fetch(replicas, 3, 4)
    assert replicas.high_watermark == 4


def test_a_replica_out_of_sync_holds_nobody_up() -> None:
    replicas = three(isr=(1, 2))
    replicas.holds(5)
    assert fetch(replicas, 2, 5)
    assert replicas.high_watermark == 5


def test_a_proposed_member_counts_before_the_proposal_is_answered() -> None:
    replicas = three(isr=(1,))
    replicas.proposed(((1, 11), (2, 12)))
    assert not replicas.holds(5)
    assert fetch(replicas, 2, 3)
    assert replicas.high_watermark == 3


def test_nothing_is_committed_while_others_are_eligible_and_they_are_let_go_when_enough_are_in_sync() -> None:
    """R14: who is eligible may lead next, and lacks what is written now."""
    replicas = ReplicaSet(1, 0, (1, 2, 3), (1,), high_watermark=0, min_in_sync=2, eligible=(2,))
    assert not replicas.holds(5)
    assert not replicas.require(1)
    assert not replicas.start_at(1), "who may lead next would bring back what was deleted"
    same = proposal(replicas)
    assert same == ((1, 11),)
    replicas.proposed(same)
    assert replicas.decided((1,), 1, ())
    assert replicas.high_watermark == 5 and proposal(replicas) is None


def test_a_refused_proposal_counts_no_more_unless_nobody_knows() -> None:
    doubtful, refused = three(isr=(1,)), three(isr=(1,))
    for replicas in (doubtful, refused):
        replicas.proposed(((1, 11), (2, 12)))
        replicas.holds(5)
    assert refused.refused(doubtful=False)
    assert not doubtful.refused(doubtful=True)
    doubtful.proposed(((1, 11), (3, 13)))
    assert not doubtful.refused(doubtful=False)  # the first may have been accepted still
    assert doubtful.decided((1,), 1)
    assert (refused.high_watermark, doubtful.high_watermark) == (5, 5)


def test_a_doubt_is_settled_by_proposing_the_set_that_holds() -> None:
    replicas = three(isr=(1,))
    replicas.proposed(((1, 11), (2, 12)))
    replicas.refused(doubtful=True)
    assert proposal(replicas, lives={1: 11}) == ((1, 11),)  # 2 has died, and would be counted for ever
    replicas.decided((1,), 1)
    assert proposal(replicas, lives={1: 11}) is None


def test_a_smaller_set_lets_the_high_watermark_move() -> None:
    replicas = three()
    replicas.holds(5)
    assert replicas.decided((1,), 1)
    assert replicas.high_watermark == 5


def test_an_older_set_that_is_heard_of_late_changes_nothing() -> None:
    replicas = three(isr=(1,))
    replicas.decided((1, 2), 4)
    assert not replicas.decided((1,), 3)
    replicas.holds(5)
    assert (replicas.isr, replicas.high_watermark) == ((1, 2), 0)


def test_nothing_is_committed_while_too_few_are_in_sync() -> None:
    """A replica that left the set then lacks nothing that was committed."""
    replicas = three(min_in_sync=2)
    replicas.holds(5)
    assert not replicas.decided((1,), 1)
    assert replicas.is_short
    assert not replicas.holds(6)
    fetch(replicas, 2, 6, end=6)
    assert replicas.decided((1, 2), 2)
    assert replicas.high_watermark == 6


def test_a_set_is_not_asked_for_more_members_than_it_has() -> None:
    alone = ReplicaSet(1, 0, (1,), (1,), high_watermark=0, min_in_sync=2)
    assert alone.holds(5)


def test_what_a_former_life_held_is_not_counted() -> None:
    replicas = three(isr=(1, 2))
    fetch(replicas, 2, 9, end=9)
    replicas.began_another_life(2, 22, now_ms=0)
    assert not replicas.holds(9)
    assert replicas.is_former_life(2, LIVES[2])
    assert fetch(replicas, 2, 4, life=22)
    assert replicas.high_watermark == 4


def test_a_follower_that_caught_up_is_proposed_in_the_life_it_did_that_in() -> None:
    replicas = three(isr=(1,))
    replicas.holds(5)
    fetch(replicas, 2, 5)
    assert proposal(replicas, joiner=2) == ((1, 11), (2, 12))
    assert proposal(replicas, joiner=2, lives=LIVES | {2: 22}) is None
    assert proposal(replicas, joiner=2, lives={1: 11}) is None
    assert proposal(replicas) is None, "it may hang since, or its disk may have failed: its next fetch will show"


@pytest.mark.parametrize(("held", "joins"), [(4, False), (5, True)])
def test_a_follower_joins_at_the_high_watermark(held: int, *, joins: bool) -> None:
    replicas = three(isr=(1,))
    replicas.holds(5)
    fetch(replicas, 2, held, end=9)
    assert (proposal(replicas, joiner=2, end=9) is not None) is joins


def test_who_would_have_to_leave_at_once_does_not_join() -> None:
    """Too few are in sync, so the high watermark stands still while the log grows."""
    replicas = three(isr=(1,), min_in_sync=2)
    replicas.holds(9)
    fetch(replicas, 2, 4, end=9, at=2 * LAG_MS)
    assert proposal(replicas, joiner=2, end=9, at=2 * LAG_MS) is None, "it holds what is committed, and lags"
    fetch(replicas, 2, 9, end=9, at=3 * LAG_MS)
    assert proposal(replicas, joiner=2, end=9, at=3 * LAG_MS) == ((1, LIVES[1]), (2, LIVES[2]))


@pytest.mark.parametrize(("held", "joins"), [(6, False), (7, True)])
def test_a_follower_joins_no_earlier_than_where_the_epoch_began(held: int, *, joins: bool) -> None:
    """Below that an earlier leader may have committed more than this one knows."""
    replicas = three(isr=(1,), epoch_start_offset=7)
    fetch(replicas, 2, held, end=9)
    assert (proposal(replicas, joiner=2, end=9) is not None) is joins


def test_who_has_not_caught_up_for_too_long_falls_out() -> None:
    replicas = three()
    fetch(replicas, 2, 5, at=50)
    fetch(replicas, 3, 4, at=50)
    assert proposal(replicas, at=LAG_MS) is None
    assert proposal(replicas, at=LAG_MS + 1) == ((1, 11), (2, 12))


def test_who_keeps_pace_with_a_busy_leader_does_not_fall_out() -> None:
    """It never has all, but each time all that there was the time before."""
    replicas = three(isr=(1, 2))
    for step in range(50):
        fetch(replicas, 2, 10 * step, end=10 * step + 10, at=20 * step)
    assert proposal(replicas, end=500, at=1_000) is None


def test_with_other_replicas_under_the_same_leadership_what_followers_hold_is_known_still() -> None:
    replicas = three()
    for member in (2, 3):
        fetch(replicas, member, 5)
    more = ReplicaSet(1, 0, (1, 2, 3, 4), (1, 2, 3), high_watermark=0)
    more.goes_on(replicas)
    assert more.holds(5), "a follower that has nothing new to fetch need not show it again"
    assert more.is_former_life(2, LIVES[2] - 1)


def test_who_is_gone_is_not_proposed_and_one_proposal_is_made_at_a_time() -> None:
    replicas = three(isr=(1, 2))
    fetch(replicas, 3, 5)
    wanted = proposal(replicas, joiner=3, lives={1: 11, 3: 13})
    assert wanted == ((1, 11), (3, 13))
    replicas.proposed(wanted)
    assert proposal(replicas, lives={1: 11}) is None


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
            fetch(replicas, member, held[member], end=own)
        assert replicas.high_watermark == max(before, min(own, *held.values()))


History = list[tuple[int, int]]
"""(leader epoch, offset) of each batch of one record."""


def written(history: History) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, offset in history:
        epochs.assign(epoch, offset)
    return epochs


def follow(leader: History, follower: History) -> History:
    """Cut until the leader says nothing against it any more; what is left, and must be a part of the leader's."""
    for _ in range(20):
        if not follower:
            return follower
        epoch, end = written(leader).end_offset_for_epoch(follower[-1][0], len(leader))
        if epoch == follower[-1][0] and end >= len(follower):
            return follower
        if epoch < 0:
            return []
        cut = cut_by_epoch(written(follower), len(follower), leader_epoch=epoch, leader_end_offset=end)
        assert cut < len(follower), "it must come to an end"
        follower = follower[:cut]
    raise AssertionError("it goes round in circles")


@given(st.data())
def test_a_follower_is_cut_to_what_it_has_in_common_with_its_leader_and_no_further(data: st.DataObject) -> None:
    """Two replicas that led in turns, and lost what the other did not have: each epoch is written by one of them."""
    logs: list[History] = [[], []]
    for epoch in range(data.draw(st.integers(1, 8))):
        leader = data.draw(st.integers(0, 1))
        logs[leader] += [(epoch, len(logs[leader]) + at) for at in range(data.draw(st.integers(0, 3)))]
        if data.draw(st.booleans()):  # the other follows for a while
            other = follow(logs[leader] + [(epoch + 1, len(logs[leader]))], logs[1 - leader])
            assert other == logs[leader][: len(other)]
            logs[1 - leader] = logs[leader][: data.draw(st.integers(len(other), len(logs[leader])))]
    common = 0
    while common < min(map(len, logs)) and logs[0][common] == logs[1][common]:
        common += 1
    led = logs[0] + [(100, len(logs[0]))]
    assert follow(led, logs[1]) == logs[0][:common]


def test_a_follower_that_held_all_until_now_does_not_lag_at_the_first_append_after_a_pause() -> None:
    replicas = three()
    for member in (2, 3):
        fetch(replicas, member, 5, at=0)
    replicas.held_all(2, broker_epoch=LIVES[2], until_ms=10 * LAG_MS)
    replicas.held_all(3, broker_epoch=LIVES[3] - 1, until_ms=10 * LAG_MS)  # a former life held it
    assert proposal(replicas, end=6, at=10 * LAG_MS + 1) == ((1, LIVES[1]), (2, LIVES[2]))


def test_a_copy_from_an_empty_log_goes_on_while_no_deletion_leaves_and_its_broker_lives() -> None:
    replicas = three((1, 2), epoch_start_offset=4)
    fetch(replicas, 3, 0)
    assert not replicas.has_begun(3, LIVES[3], 1), "nobody knows what it lacks"
    replicas.begins(3, LIVES[3], 1)
    fetch(replicas, 3, 2)
    assert replicas.has_begun(3, LIVES[3], 1)
    assert not replicas.has_begun(3, LIVES[3], 2), "a deletion has left since"
    fetch(replicas, 3, 2, life=14)
    assert not replicas.has_begun(3, 14, 1), "in this life it did not begin with nothing"
    replicas.begins(3, 14, 1)
    fetch(replicas, 3, 4, life=14)
    assert not replicas.has_begun(3, 14, 1), "it held all that is committed: what it lacks came later"


def test_a_leader_keeps_deletions_for_a_copy_that_gets_on_and_for_no_other() -> None:
    replicas = three((1, 2), epoch_start_offset=4)
    fetch(replicas, 3, 0, at=0)
    assert not replicas.is_being_copied(1, 0, 10), "it only fetches"
    replicas.begins(3, LIVES[3], 1)
    fetch(replicas, 3, 1, at=20)
    fetch(replicas, 3, 1, at=29)
    assert replicas.is_being_copied(1, 30, 10)
    assert not replicas.is_being_copied(1, 31, 10), "it asks, and gets no further"
    assert not replicas.is_being_copied(2, 30, 10), "it must begin anew anyway"
    fetch(replicas, 3, 4, at=40, end=9)
    assert not replicas.is_being_copied(1, 40, 10), "it is as far as it must be, though a busy leader is ahead"


def test_a_follower_never_shows_more_than_its_leader_has() -> None:
    """It would be committed, and then another record would be given its offset."""
    with pytest.raises(AssertionError, match="no more than the leader"):
        fetch(three(), 2, 6)
