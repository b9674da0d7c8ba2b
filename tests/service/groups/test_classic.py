"""Classic groups: joining, syncing, beating, leaving, falling silent; every refusal, caused on purpose."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import service.groups.classic_group
from service.groups.classic_decisions import ANSWERED_AT_ONCE, ClassicDecisions
from service.groups.classic_group import ClassicGroup, ClassicMember
from service.groups.commands import JoinReply, LeavingMember
from service.groups.consumer_protocol import subscribed_topics
from service.groups.records import GROUP_BYTES_MAX
from service.groups.settings import GroupSettings
from service.groups.states import ClassicState
from service.groups.verdicts import Draft, Fault
from tests.service.groups.driver import PENDING, Driver, Unwalked, assignment, subscription


@pytest.fixture
def driver() -> Driver:
    return Driver()


# Joining


def test_a_member_without_an_id_is_given_one_and_joins_with_it(driver: Driver) -> None:
    asked = driver.join()
    assert asked.fault is Fault.MEMBER_ID_REQUIRED
    assert asked.member_id.startswith("c-")
    token = driver.start_join(member=asked.member_id)
    driver.wait(3_000)
    reply = driver.answers[token]
    assert (reply.fault, reply.member_id, reply.leader, reply.generation) == (None, asked.member_id, asked.member_id, 1)
    assert [member.member_id for member in reply.members] == [asked.member_id]
    assert reply.members[0].metadata == subscription(("orders",))


def test_a_client_of_old_joins_without_asking_for_an_id(driver: Driver) -> None:
    token = driver.start_join(requires_member_id=False)
    driver.wait(3_000)
    assert driver.answers[token].generation == 1


def test_the_first_generation_waits_a_little_for_more_members(driver: Driver) -> None:
    first = driver.start_join(member=driver.member_id())
    driver.wait(2_000)
    second = driver.start_join(member=driver.member_id())
    driver.wait(2_000)
    assert first not in driver.answers, "a newcomer prolongs the delay"
    driver.wait(2_000)
    assert driver.answers[first].generation == driver.answers[second].generation == 1


def test_the_first_delay_is_not_prolonged_past_the_rebalance_timeout(driver: Driver) -> None:
    """Members that trickle in can't keep the first ones waiting for ever."""
    begun_ms = driver.now_ms
    first = driver.start_join(member=driver.member_id(rebalance_timeout_ms=7_000), rebalance_timeout_ms=7_000)
    for _ in range(10):
        driver.wait(1_000)
        driver.start_join(member=driver.member_id(rebalance_timeout_ms=7_000), rebalance_timeout_ms=7_000)
        if first in driver.answers:
            break
    assert driver.now_ms - begun_ms <= 7_000


def test_without_a_delay_a_group_begins_at_once() -> None:
    driver = Driver(GroupSettings(group_initial_rebalance_delay_ms=0))
    token = driver.start_join(member=driver.member_id())
    driver.wait(0)
    assert driver.answers[token].generation == 1


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001, 0, -1])
def test_a_session_timeout_out_of_bounds_is_refused(driver: Driver, session_timeout_ms: int) -> None:
    assert driver.join(session_timeout_ms=session_timeout_ms).fault is Fault.INVALID_SESSION_TIMEOUT
    assert driver.listed() == {}


def test_an_id_that_nobody_gave_out_is_unknown(driver: Driver) -> None:
    assert driver.join(member="nobody").fault is Fault.UNKNOWN_MEMBER_ID
    driver.stable_group()
    assert driver.join(member="nobody").fault is Fault.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("changes", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_member_without_protocols_is_refused(driver: Driver, changes: dict[str, Any]) -> None:
    assert driver.join(**changes).fault is Fault.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_shares_no_protocol_with_all_others_is_refused(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    assert driver.join(assignors=("sticky",)).fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(protocol_type="connect").fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    changed = driver.join(member=leader.member_id, assignors=("sticky",))
    assert changed.fault is Fault.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_with_most_votes_among_the_common_ones_is_chosen(driver: Driver) -> None:
    tokens = []
    for assignors in (("a", "b", "c"), ("b", "c"), ("c", "b")):
        tokens.append(driver.start_join(member=driver.member_id(assignors=assignors), assignors=assignors))
    driver.wait(7_000)
    assert driver.answers[tokens[0]].protocol_name == "b"


def test_a_group_that_is_full_refuses_newcomers_and_keeps_its_members() -> None:
    driver = Driver(GroupSettings(group_max_size=2))
    leader, _ = driver.stable_group(members=2)
    assert driver.join().fault is Fault.GROUP_MAX_SIZE_REACHED
    rejoined = driver.start_join(member=leader.member_id)
    assert rejoined not in driver.answers


def test_while_rebalancing_only_as_many_may_rejoin_as_fit() -> None:
    """The limit was lowered while the broker was down: the last to rejoin are left out."""
    driver = Driver()
    joined = driver.stable_group(members=3)
    driver.settings = GroupSettings(group_max_size=2)
    driver.restart()
    driver.wait(0)
    assert driver.classic().state == "PreparingRebalance"
    tokens = [driver.start_join(member=reply.member_id) for reply in joined[:2]]
    assert driver.join(member=joined[2].member_id).fault is Fault.GROUP_MAX_SIZE_REACHED
    driver.wait(60_000)
    assert [driver.answers[token].fault for token in tokens] == [None, None]


def test_a_member_that_missed_its_answer_gets_it_again(driver: Driver) -> None:
    first = driver.start_join(member=driver.member_id())
    driver.wait(3_000)
    reply = driver.answers[first]
    assert driver.join(member=reply.member_id) == reply


def test_a_follower_that_rejoins_unchanged_is_told_the_present_generation(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    again = driver.join(member=follower.member_id)
    assert (again.generation, again.leader, again.members) == (1, leader.member_id, ())
    assert driver.classic().state == "Stable"


def test_a_leader_that_rejoins_starts_a_rebalance(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    token = driver.start_join(member=leader.member_id)
    assert driver.heartbeat(follower) is Fault.REBALANCE_IN_PROGRESS
    driver.start_join(member=follower.member_id)
    assert driver.answers[token].generation == 2


def test_a_follower_with_another_subscription_starts_a_rebalance(driver: Driver) -> None:
    _, follower = driver.stable_group(members=2)
    driver.start_join(member=follower.member_id, topics=("events",))
    assert driver.classic().state == "PreparingRebalance"


def test_a_join_sent_twice_answers_the_first_one_too(driver: Driver) -> None:
    """The connection of the first one broke, and its request is still parked."""
    leader, _ = driver.stable_group(members=2)
    first = driver.start_join(member=leader.member_id)
    driver.start_join(member=leader.member_id)
    assert driver.answers[first].fault is Fault.REBALANCE_IN_PROGRESS


def test_a_given_out_id_may_not_be_used_by_an_instance(driver: Driver) -> None:
    assert driver.join(member=driver.member_id(), instance_id="i").fault is Fault.UNKNOWN_SERVER_ERROR


def test_a_rebalance_waits_for_members_that_were_given_an_id(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    newcomer = driver.member_id()
    token = driver.start_join(member=leader.member_id)
    driver.wait(1_000)
    assert token not in driver.answers
    driver.start_join(member=newcomer)
    assert len(driver.answers[token].members) == 2


def test_a_given_out_id_that_is_never_used_is_forgotten(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    newcomer = driver.member_id()
    token = driver.start_join(member=leader.member_id)
    driver.wait(10_000)
    assert len(driver.answers[token].members) == 1
    assert driver.join(member=newcomer).fault is Fault.UNKNOWN_MEMBER_ID


def test_a_rebalance_goes_on_without_those_who_do_not_rejoin_in_time(driver: Driver) -> None:
    leader, lost = driver.stable_group(members=2)
    token = driver.start_join(member=leader.member_id)
    for _ in range(59):
        driver.wait(1_000)
        assert driver.heartbeat(lost) is Fault.REBALANCE_IN_PROGRESS
        assert token not in driver.answers
    driver.wait(1_000)
    assert [member.member_id for member in driver.answers[token].members] == [leader.member_id]
    assert driver.heartbeat(lost) is Fault.UNKNOWN_MEMBER_ID


def test_a_new_member_that_waits_too_long_for_its_first_generation_is_dropped() -> None:
    """It can't send heartbeats yet: a client that went away in the middle must not hold up the group for ever."""
    driver = Driver(GroupSettings(new_member_join_timeout_ms=5_000, group_initial_rebalance_delay_ms=20_000))
    token = driver.start_join(member=driver.member_id())
    driver.wait(5_000)
    assert driver.answers[token].fault is Fault.UNKNOWN_MEMBER_ID


def test_a_join_costs_the_same_however_many_have_come_before(driver: Driver) -> None:
    driver.stable_group(members=3)
    driver.join(member=driver.member_id())
    group = driver.machine._groups["g"]
    assert isinstance(group, ClassicGroup)
    group.members = Unwalked(group.members)
    assert driver.join(member=driver.member_id()) == PENDING
    assert driver.join(instance_id="i") == PENDING
    assert driver.join(instance_id="i") == PENDING


class Counted(str):
    """A name that counts how often it is looked at."""

    looked = 0

    def __eq__(self, other: object) -> bool:
        Counted.looked += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Counted.looked += 1
        return str.__hash__(self)


def voter(number: int, *names: str) -> ClassicMember:
    protocols = tuple((Counted(name), b"") for name in names)
    return ClassicMember(f"member-{number}", None, "c", "/h", 1, 1, protocols)


def test_a_protocol_is_found_among_thousands_that_only_one_member_names() -> None:
    group = ClassicGroup("g", state=ClassicState.PREPARING, protocol_type="consumer")
    for number in range(1_000):
        group.add(voter(number, f"of its own {number}", "range"))
    Counted.looked = 0
    assert group.select_protocol() == "range"
    assert group.supports("consumer", ((Counted("other"), b""), (Counted("range"), b"")))
    assert not group.supports("consumer", ((Counted("other"), b""),))
    assert Counted.looked < 50


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 4), st.one_of(st.none(), st.lists(st.sampled_from("abcd"), min_size=1, max_size=4))),
        max_size=20,
    )
)
def test_votes_are_those_that_counting_all_members_gives(
    changes: list[tuple[int, list[str] | None]],
) -> None:
    """Members come, go, and name other protocols, also one twice. They come only if a protocol remains for all."""
    group = ClassicGroup("g", state=ClassicState.PREPARING, protocol_type="consumer")
    members: dict[str, ClassicMember] = {}
    for number, names in changes:
        group.remove(f"member-{number}")
        members.pop(f"member-{number}", None)
        if names is None:
            continue
        member = voter(number, *names)
        shared = [name for name in names if all(name in each.preference for each in members.values())]
        if members:
            assert group.supports("consumer", member.protocols) is bool(shared)
        if shared:
            group.add(member)
            members[member.member_id] = member
    if members:
        sets = [set(member.preference) for member in members.values()]
        supported = set.intersection(*sets)
        votes = [next(name for name in member.preference if name in supported) for member in members.values()]
        assert votes.count(group.select_protocol()) == max(map(votes.count, votes))


def test_a_large_group_is_answered_in_turns(driver: Driver) -> None:
    tokens = [driver.start_join(member=driver.member_id()) for _ in range(250)]
    driver.wait(6_000)
    replies = [driver.answers[token] for token in tokens]
    leader = next(reply for reply in replies if reply.member_id == reply.leader)
    followers = [driver.ask_sync_later(reply) for reply in replies if reply is not leader]
    driver.sync(leader, assignments={reply.member_id: b"mine" for reply in replies})
    driver.wait(0)
    assert [driver.answers[token].assignment for token in followers] == [b"mine"] * 249
    assert driver.most_answers == ANSWERED_AT_ONCE


def test_those_who_have_not_heard_of_a_generation_when_it_ends_join_the_next(driver: Driver) -> None:
    tokens = [driver.start_join(member=driver.member_id()) for _ in range(250)]
    driver.wait(5_999)
    driver.now_ms += 1
    driver.take(driver.machine.expire(driver.now_ms))  # begins the generation
    driver.take(driver.machine.expire(driver.now_ms))
    first = [token for token in tokens if token in driver.answers]
    assert len(first) == ANSWERED_AT_ONCE
    driver.leave(driver.answers[first[0]].member_id)
    for token in first[1:]:
        tokens.append(driver.start_join(member=driver.answers[token].member_id))
    driver.wait(0)
    assert {driver.answers[token].generation for token in tokens if token not in first} == {2}


@pytest.mark.parametrize("stands_still", ["while joins are answered", "while syncs are"])
def test_all_are_answered_though_the_broker_stands_still_for_longer_than_a_rebalance_may_take(
    driver: Driver, stands_still: str
) -> None:
    """Those that were not told of the generation yet were removed, and heard nothing for ever."""
    tokens = [driver.start_join(member=driver.member_id(), session_timeout_ms=1_700_000) for _ in range(200)]
    driver.wait(5_999)
    driver.now_ms += 1
    driver.take(driver.machine.expire(driver.now_ms))  # begins the generation
    if stands_still == "while syncs are":
        driver.wait(0)
        leader, *followers = [driver.answers[token] for token in tokens]
        tokens = [driver.ask_sync_later(reply) for reply in followers]
        driver.leave(leader.member_id)
    assert not any(token in driver.answers for token in tokens[:-ANSWERED_AT_ONCE])
    driver.now_ms += 10 * 60_000
    driver.wait(0)
    driver.wait(10 * 60_000)
    assert [token for token in tokens if token not in driver.answers] == []


def test_many_that_join_before_anybody_has_heard_of_a_generation_begin_only_one_more(driver: Driver) -> None:
    """Each began another one of all members, which held the loop for three milliseconds each."""
    for _ in range(100):
        driver.start_join(member=driver.member_id())
    driver.wait(5_999)
    driver.now_ms += 1
    driver.take(driver.machine.expire(driver.now_ms))
    tokens = [driver.start_join(member="", requires_member_id=False) for _ in range(20)]
    driver.wait(0)
    assert {driver.answers[token].generation for token in tokens} == {2}


# Syncing


def test_everyone_gets_its_assignment_when_the_leader_has_sent_them(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    assert driver.sync(leader).assignment == b"0"
    again = driver.sync(follower)
    assert (again.assignment, again.protocol_type, again.protocol_name) == (b"1", "consumer", "range")


def test_members_that_the_leader_forgot_get_nothing(driver: Driver) -> None:
    token = driver.start_join(member=driver.member_id())
    driver.wait(3_000)
    assert driver.sync(driver.answers[token]).assignment == b""


def test_a_sync_of_a_stranger_or_another_generation_or_protocol_is_refused(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    assert driver.sync(leader, "nix").fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.sync(leader, member_id="nobody").fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.sync(leader, generation=2).fault is Fault.ILLEGAL_GENERATION
    assert driver.sync(leader, protocol_name="sticky").fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.sync(leader, protocol_type="connect").fault is Fault.INCONSISTENT_GROUP_PROTOCOL


def test_a_sync_is_sent_back_when_another_rebalance_begins(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    tokens = [driver.start_join(member=each.member_id) for each in (leader, follower)]
    replies = [driver.answers[token] for token in tokens]
    waiting = driver.ask_sync_later(replies[1])
    driver.start_join(member=driver.member_id())
    assert driver.answers[waiting].fault is Fault.REBALANCE_IN_PROGRESS
    assert driver.sync(replies[0]).fault is Fault.REBALANCE_IN_PROGRESS


def test_a_sync_sent_twice_answers_the_first_one_too(driver: Driver) -> None:
    tokens = [driver.start_join(member=driver.member_id()) for _ in range(2)]
    driver.wait(6_000)
    follower = driver.answers[tokens[1]]
    first = driver.ask_sync_later(follower)
    driver.ask_sync_later(follower)
    assert driver.answers[first].fault is Fault.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout(driver: Driver) -> None:
    tokens = [driver.start_join(member=driver.member_id()) for _ in range(2)]
    driver.wait(6_000)
    leader, lazy = (driver.answers[token] for token in tokens)
    assert driver.sync(leader).fault is None
    for _ in range(59):
        driver.wait(1_000)
        assert driver.heartbeat(leader) is None
        assert driver.heartbeat(lazy) is None, "it beats, and yet holds partitions that it does not read"
    driver.wait(1_000)
    assert driver.heartbeat(lazy) is Fault.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader) is Fault.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"group": "g" * 40_000}, Fault.INVALID_GROUP_ID),
        ({"instance_id": "i" * 40_000}, Fault.INVALID_REQUEST),
        ({"client_id": "c" * 32_767}, Fault.INVALID_REQUEST),
        ({"protocol_type": "p" * 40_000}, Fault.INVALID_REQUEST),
        ({"assignors": ("ä" * 20_000,)}, Fault.INVALID_REQUEST),
    ],
)
def test_a_join_with_a_name_that_no_record_can_hold_is_refused(
    driver: Driver, changes: dict[str, Any], fault: Fault
) -> None:
    assert driver.join(**changes).fault is fault
    assert driver.listed() == {}


def test_a_sync_is_a_sign_of_life(driver: Driver) -> None:
    (member,) = driver.stable_group()
    driver.wait(9_999)
    driver.sync(member)
    driver.wait(9_999)
    assert driver.heartbeat(member) is None


# Heartbeats and sessions


@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance"])
def test_a_join_that_is_answered_at_once_is_a_sign_of_life(driver: Driver, state: str) -> None:
    """The client counts it as one. Its partitions went to another member while it still read them."""
    if state == "Stable":
        leader, member = driver.stable_group(members=2, session_timeout_ms=10_000)
    else:
        tokens = [driver.start_join(member=driver.member_id(), session_timeout_ms=10_000) for _ in range(2)]
        driver.wait(6_000)
        leader, member = (driver.answers[token] for token in tokens)
    for _ in range(2):
        assert driver.heartbeat(leader) is None
        assert driver.heartbeat(member) is None
        driver.wait(9_000)
        assert driver.heartbeat(leader) is None
        assert driver.join(member=member.member_id, session_timeout_ms=10_000).generation == leader.generation
        driver.wait(9_000)
        assert driver.classic().state == state
        assert len(driver.classic().members) == 2


def test_heartbeats_keep_a_session_alive(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    for _ in range(5):
        driver.wait(9_999)
        assert driver.heartbeat(leader) is None
    driver.wait(10_000)
    assert driver.heartbeat(leader) is Fault.UNKNOWN_MEMBER_ID
    assert driver.classic().state == "Empty"


def test_a_member_fallen_silent_costs_the_others_one_rebalance(driver: Driver) -> None:
    leader, silent = driver.stable_group(members=2)
    driver.wait(9_000)
    assert driver.heartbeat(leader) is None
    driver.wait(1_000)
    assert driver.heartbeat(leader) is Fault.REBALANCE_IN_PROGRESS
    token = driver.start_join(member=leader.member_id)
    assert driver.answers[token].generation == 2
    assert silent.member_id not in [member.member_id for member in driver.answers[token].members]


def test_members_parked_in_a_join_or_sync_need_no_heartbeats(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    token = driver.start_join(member=leader.member_id)
    for _ in range(5):
        driver.wait(9_000)
        driver.heartbeat(follower)
    assert token not in driver.answers
    rejoined = driver.start_join(member=follower.member_id)
    waiting = driver.ask_sync_later(driver.answers[rejoined])
    for _ in range(5):
        driver.wait(9_000)
        assert driver.heartbeat(driver.answers[token]) is None
    assert waiting not in driver.answers


def test_heartbeats_of_strangers_and_of_other_generations_are_refused(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    assert driver.heartbeat(leader, "nix") is Fault.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader, member_id="nobody") is Fault.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader, generation=0) is Fault.ILLEGAL_GENERATION
    assert driver.heartbeat(leader, instance_id="i") is Fault.UNKNOWN_MEMBER_ID


# Leaving


def test_a_member_that_leaves_starts_a_rebalance(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    (left,) = driver.leave(leader.member_id).members
    assert (left.member_id, left.fault) == (leader.member_id, None)
    assert driver.heartbeat(follower) is Fault.REBALANCE_IN_PROGRESS
    token = driver.start_join(member=follower.member_id)
    assert driver.answers[token].leader == follower.member_id


def test_members_leave_together_and_each_is_answered_for_itself(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    left = driver.leave(leader.member_id, "nobody", LeavingMember("", None), follower.member_id).members
    assert [each.fault for each in left] == [None, Fault.UNKNOWN_MEMBER_ID, Fault.UNKNOWN_MEMBER_ID, None]
    assert driver.classic().state == "Empty"


def test_leaving_an_unknown_group_is_refused_member_by_member(driver: Driver) -> None:
    assert [each.fault for each in driver.leave("m", group="nix").members] == [Fault.UNKNOWN_MEMBER_ID]


def test_a_member_that_leaves_while_it_waits_is_answered(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    token = driver.start_join(member=leader.member_id)
    driver.leave(leader.member_id)
    assert driver.answers[token].fault is Fault.UNKNOWN_MEMBER_ID
    rejoined = driver.start_join(member=follower.member_id)
    parked = driver.start(driver.join_command(member=driver.member_id()))
    assert parked and rejoined


def test_a_given_out_id_can_be_given_back(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    newcomer = driver.member_id()
    token = driver.start_join(member=leader.member_id)
    assert driver.leave(newcomer).members[0].fault is None
    assert driver.answers[token].generation == 2


def test_an_empty_group_goes_on_with_the_next_generation(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    driver.leave(leader.member_id)
    token = driver.start_join(member=driver.member_id())
    driver.wait(3_000)
    assert driver.answers[token].generation == 3, "the empty group had a generation of its own"


@pytest.mark.parametrize("who", ["members", "assignments"])
def test_a_group_that_does_not_fit_into_one_record_gets_no_assignment(driver: Driver, who: str) -> None:
    """One of seven megabytes held all others up for a tenth of a second. Kafka refuses such a record, too."""
    large = b"x" * (GROUP_BYTES_MAX // 2 + 1)
    said: dict[str, Any] = {"protocols": (("range", large),)} if who == "members" else {}
    tokens = [driver.start_join(member=driver.member_id(), **said) for _ in range(2)]
    driver.wait(6_000)
    leads, follows = (driver.answers[token] for token in tokens)
    waits, written = driver.ask_sync_later(follows), len(driver.log)
    given = {} if who == "members" else dict.fromkeys((leads.member_id, follows.member_id), large)
    assert driver.sync(leads, assignments=given).fault is Fault.UNKNOWN_SERVER_ERROR
    driver.wait(0)
    assert driver.answers[waits].fault is Fault.REBALANCE_IN_PROGRESS
    assert driver.classic().state == "PreparingRebalance"
    assert len(driver.log) == written
    again = driver.start_join(member=follows.member_id)
    driver.leave(leads.member_id)
    driver.sync(driver.answers[again], assignments={follows.member_id: assignment(orders=[0])})
    assert driver.classic().state == "Stable"


# Cooperative rebalancing


def test_partitions_move_cooperatively_over_two_generations(driver: Driver) -> None:
    """The leader takes partitions away first, and gives them to the newcomer in the next generation."""
    one = driver.start_join(member=driver.member_id(), owned=())
    driver.wait(3_000)
    first = driver.answers[one]
    driver.sync(first, assignments={first.member_id: assignment(orders=[0, 1, 2, 3])})
    newcomer = driver.member_id()
    second = driver.start_join(member=newcomer)
    owned = (("orders", [0, 1, 2, 3]),)
    leads = driver.answers[driver.start_join(member=first.member_id, owned=owned)]
    assert {member.member_id: member.metadata for member in leads.members}[first.member_id] == subscription(
        ("orders",), owned
    )
    follower = driver.ask_sync_later(driver.answers[second])
    driver.sync(leads, assignments={first.member_id: assignment(orders=[0, 1])})
    assert driver.answers[follower].assignment == b""
    # Having let go, the first member rejoins, and the second generation gives the rest away.
    again = driver.start_join(member=first.member_id, owned=(("orders", [0, 1]),))
    joined = driver.start_join(member=newcomer)
    assert driver.answers[again].generation == 3
    waits = driver.ask_sync_later(driver.answers[joined])
    everything = {first.member_id: assignment(orders=[0, 1]), newcomer: assignment(orders=[2, 3])}
    driver.sync(driver.answers[again], assignments=everything)
    assert driver.answers[waits].assignment == assignment(orders=[2, 3])


# Describing, listing, deleting


def test_a_group_shows_what_it_is_doing(driver: Driver) -> None:
    assert driver.classic().fault is Fault.GROUP_ID_NOT_FOUND
    assert driver.classic().state == "Dead"
    member = driver.member_id()
    assert driver.classic().state == "Empty"
    token = driver.start_join(member=member)
    assert driver.classic().state == "PreparingRebalance"
    driver.wait(3_000)
    assert driver.classic().state == "CompletingRebalance"
    assert driver.classic().members[0].metadata == b""
    driver.sync(driver.answers[token], assignments={member: b"all"})
    facts = driver.classic()
    assert (facts.state, facts.protocol_type, facts.protocol_name) == ("Stable", "consumer", "range")
    (shown,) = facts.members
    assert (shown.member_id, shown.client_id, shown.client_host) == (member, "c", "/127.0.0.1")
    assert (shown.metadata, shown.assignment) == (subscription(("orders",)), b"all")


def test_groups_are_listed_by_state_and_type(driver: Driver) -> None:
    driver.stable_group("s")
    driver.commit(group="e")
    driver.beat("m", 0, "k")
    everything = {
        "s": ("classic", "Stable", "consumer"),
        "e": ("classic", "Empty", ""),
        "k": ("consumer", "Stable", "consumer"),
    }
    assert driver.listed() == everything
    assert set(driver.listed(states=("stable",))) == {"s", "k"}
    assert set(driver.listed(states=("empty",), types=("classic",))) == {"e"}
    assert set(driver.listed(types=("consumer",))) == {"k"}
    assert driver.listed(types=("share",)) == {}
    assert driver.listed(states=("nonsense",)) == {}


def test_only_empty_groups_can_be_deleted(driver: Driver) -> None:
    assert driver.delete_group() is Fault.GROUP_ID_NOT_FOUND
    (leader,) = driver.stable_group()
    driver.commit(member=leader.member_id, generation=1)
    assert driver.delete_group() is Fault.NON_EMPTY_GROUP
    driver.leave(leader.member_id)
    assert driver.delete_group() is None
    assert driver.listed() == {}
    assert driver.committed() == -1
    driver.restart()
    assert driver.listed() == {}


# Restarts


def test_a_stable_group_goes_on_after_a_restart(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    driver.restart(down_ms=60_000)
    assert driver.heartbeat(leader) is None
    assert driver.sync(follower).assignment == b"1"
    assert driver.classic().state == "Stable"


def test_after_a_restart_silent_members_are_missed_again(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    driver.restart(down_ms=60_000)
    driver.wait(9_999)
    assert driver.heartbeat(leader) is None
    driver.wait(1)
    assert driver.heartbeat(follower) is Fault.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader) is Fault.REBALANCE_IN_PROGRESS


def test_a_generation_that_was_not_assigned_is_forgotten_by_a_restart(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    token = driver.start_join(member=leader.member_id)
    second = driver.answers[token]
    driver.restart()
    assert driver.sync(second).fault is Fault.ILLEGAL_GENERATION
    assert driver.heartbeat(leader) is None


def test_a_group_being_joined_for_the_first_time_is_empty_after_a_restart(driver: Driver) -> None:
    driver.start_join(member=driver.member_id())
    driver.restart()
    assert driver.listed() == {"g": ("classic", "Empty", "")}


def test_an_error_answer_names_no_generation(driver: Driver) -> None:
    reply = driver.join(member="nobody")
    assert reply == JoinReply("nobody", Fault.UNKNOWN_MEMBER_ID, -1, None, None, "", False, ())


def test_a_parked_request_is_pending(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    assert driver.ask(driver.join_command(member=driver.member_id())) == PENDING
    assert driver.heartbeat(leader) is Fault.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("timeout_ms", [0, -(2**31), 1])
def test_static_members_that_do_not_rejoin_are_waited_for_without_looking_all_the_time(
    timeout_ms: int, driver: Driver
) -> None:
    """Whatever they say: with a timeout of nothing, the same was found out again in each turn of the loop."""
    static = driver.start_join(instance_id="i", requires_member_id=False)
    driver.wait(7_000)
    assert driver.sync(driver.answers[static], instance_id="i").fault is None
    driver.join(instance_id="i", requires_member_id=False, rebalance_timeout_ms=timeout_ms)  # it was restarted
    other = driver.member_id(rebalance_timeout_ms=timeout_ms)
    driver.start_join(member=other, rebalance_timeout_ms=timeout_ms)
    driver.leave(other)
    looks, end_ms = 0, driver.now_ms + 10_000
    while (due_ms := driver.machine.next_deadline_ms()) is not None and due_ms <= end_ms and looks < 100:
        driver.now_ms = max(due_ms, driver.now_ms)
        driver.take(driver.machine.expire(driver.now_ms))
        looks += 1
    assert looks < 20


def test_a_rebalance_timeout_that_is_not_said_is_the_same_before_and_after_a_restart(driver: Driver) -> None:
    """It is the session's: so the group's record is understood."""
    token = driver.start_join(requires_member_id=False, rebalance_timeout_ms=-1)
    driver.wait(7_000)
    joined = driver.answers[token]
    driver.sync(joined, assignments={joined.member_id: b"all"})
    driver.restart()
    assert driver.heartbeat(joined) is None


def test_topics_that_all_subscribe_to_are_read_once_whatever_each_of_them_owns(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five thousand members that took 30 ms of the turn in which a generation begins."""
    subscriptions = [
        subscription(("orders", "events"), (("orders", [0]),)),
        subscription(("orders", "events"), (("orders", [1]), ("events", [0]))),
        subscription(("orders",), (("orders", [2]),)),
        subscription(("orders", "other"), ()),
    ]
    read: list[bytes] = []

    def reading(data: bytes) -> tuple[str, ...] | None:
        read.append(data)
        return subscribed_topics(data)

    monkeypatch.setattr(service.groups.classic_group, "subscribed_topics", reading)
    members = [driver.member_id() for _ in subscriptions]
    tokens = [
        driver.start_join(member=member, protocols=(("range", said),))
        for member, said in zip(members, subscriptions, strict=True)
    ]
    driver.wait(6_000)
    assert {driver.answers[token].generation for token in tokens} == {1}
    assert read == [subscriptions[0], *subscriptions[2:]]
    group = driver.machine.group("g")
    assert isinstance(group, ClassicGroup)
    assert group.subscribed_topics == frozenset({"orders", "events", "other"})


def test_who_waits_is_answered_even_if_another_deadline_of_the_same_moment_raises(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, _ = driver.stable_group("first", members=2)
    driver.stable_group("second")
    driver.wait(1_000)
    driver.heartbeat(waits, "first")
    rejoined = driver.start_join("first", waits.member_id, topics=("events",))
    original = ClassicDecisions._remove

    def remove(decisions: ClassicDecisions, group: ClassicGroup, *rest: Any) -> None:
        if group.group_id == "second":
            raise ZeroDivisionError
        original(decisions, group, *rest)

    monkeypatch.setattr(ClassicDecisions, "_remove", remove)
    driver.now_ms += 12_000  # the sessions of the other member and of the second group are over
    with pytest.raises(ZeroDivisionError):
        driver.wait(0)
    assert driver.answers[rejoined].generation == 2


def test_who_waits_for_a_command_that_fails_is_told_to_look_for_the_coordinator(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [driver.start_join(member=driver.member_id()) for _ in range(2)]
    driver.wait(7_000)
    leader, follower = sorted((driver.answers[token] for token in tokens), key=lambda it: it.member_id != it.leader)
    waits = driver.ask_sync_later(follower)
    with monkeypatch.context() as failing, pytest.raises(ZeroDivisionError):
        failing.setattr(Draft, "must_fit", lambda draft: 1 // 0)
        driver.sync(leader, assignments={each.member_id: b"part" for each in (leader, follower)})
    driver.wait(0)
    assert driver.answers[waits].fault is Fault.NOT_COORDINATOR
    assert driver.join(member=follower.member_id) is not None
