"""Consumer groups (KIP-848): joining, walking to the target, fencing, leaving, topics that change; every refusal."""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any

import pytest

from service.groups import consumer_decisions, resuming, topics
from service.groups.assignment_round import STEPS_AT_ONCE, TARGETS_AT_ONCE, TOPICS_AS_ONE
from service.groups.assignors import ASSIGNORS, Target
from service.groups.commands import LEAVE_EPOCH, STATIC_LEAVE_EPOCH, ConsumerHeartbeatReply, ForgetTopic
from service.groups.consumer_decisions import (
    ALONE_INTERVAL_MS,
    ALONE_MS,
    INTERVALS_FOR_MANY,
    MANY_COME,
    QUIET_MS,
    QUIET_MS_MIN,
    REGEX_MIN_INTERVAL_MS,
    UNSETTLED_INTERVAL_MS,
    YOUNG_MS,
    ConsumerDecisions,
)
from service.groups.consumer_group import ConsumerGroup
from service.groups.coordinator import FAILED_AGAIN_MS
from service.groups.records import current_record
from service.groups.regex import MATCHED_AT_ONCE, STEPS_OF_A_MATCH, STEPS_OF_A_NAME
from service.groups.settings import ConsumerTimes, GroupSettings
from service.groups.small_steps import SMALL_STEPS_A_TURN, SmallSteps
from service.groups.states import MemberState
from service.groups.topics import TopicFacts
from service.groups.verdicts import Fault, GroupDecision
from tests.service.groups.driver import Driver, Topics, Unwalked, assigned_at_once

ALL = [0, 1, 2, 3]


@pytest.fixture
def driver() -> Driver:
    """Targets are computed whenever they are due, without the pause between them."""
    return Driver(GroupSettings(consumer_times=assigned_at_once))


def owned(driver: Driver, **topics: list[int]) -> dict[bytes, tuple[int, ...]]:
    return {driver.topics.id_of(topic): tuple(partitions) for topic, partitions in topics.items()}


def pair(driver: Driver) -> None:
    """Members `a` and `b`, reconciled, with two of the four partitions each, at epoch 3."""
    assert driver.named(driver.beat("a", 0)) == {"orders": ALL}
    assert driver.named(driver.beat("b", 0)) == {}
    driver.beat("a", 2, owned=owned(driver, orders=ALL))
    driver.beat("a", 2, owned=owned(driver, orders=[0, 1]))
    assert driver.named(driver.beat("b", 3)) == {"orders": [2, 3]}
    assert driver.consumer().state == "Stable"


def group_of(driver: Driver) -> ConsumerGroup:
    group = driver.machine._groups["g"]
    assert isinstance(group, ConsumerGroup)
    return group


def settle(driver: Driver, *members: str) -> None:
    """Beat until each has let go of what it must and got what it may."""
    for _ in range(6):
        for member_id in members:
            member = group_of(driver).members[member_id]
            held = {topic_id: tuple(partitions) for topic_id, partitions in member.assigned.items()}
            driver.beat(member_id, member.member_epoch, owned=held)
            driver.wait(0)
    assert driver.consumer().state == "Stable"


# The request by itself


@pytest.mark.parametrize(
    ("member", "epoch", "changes"),
    [
        ("", 0, {}),
        ("", 3, {"member_names_itself": False}),
        ("", LEAVE_EPOCH, {"member_names_itself": False}),
        ("m", 0, {"group_id": " "}),
        ("m", 0, {"instance_id": ""}),
        ("m", 0, {"rack_id": ""}),
        ("m", 0, {"rebalance_timeout_ms": -1}),
        ("m", 0, {"owned": None}),
        ("m", 0, {"owned": {b"x" * 16: (0,)}}),
        ("m", 0, {"subscribed_topics": None}),
        ("m", STATIC_LEAVE_EPOCH, {}),
        ("m", -3, {}),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(
    driver: Driver, member: str, epoch: int, changes: dict[str, Any]
) -> None:
    reply = driver.beat(member, epoch, **changes)
    assert reply.fault is Fault.INVALID_REQUEST
    assert reply.message
    assert driver.listed() == {}


@pytest.mark.parametrize("name", ["group_id", "member_id", "subscribed_regex"])
def test_a_heartbeat_with_a_name_that_no_record_can_hold_is_refused(driver: Driver, name: str) -> None:
    changes: dict[str, Any] = {name: "ä" * 20_000}
    reply = driver.beat("m", 0, **changes)
    assert reply.fault is Fault.INVALID_REQUEST
    assert driver.listed() == {}


def test_an_assignor_that_is_not_here_is_refused(driver: Driver) -> None:
    reply = driver.beat("m", 0, server_assignor="sticky")
    assert reply.fault is Fault.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in (reply.message or "")


def test_a_group_that_does_not_exist_can_only_be_joined(driver: Driver) -> None:
    assert driver.beat("m", 4).fault is Fault.GROUP_ID_NOT_FOUND
    assert driver.beat("m", LEAVE_EPOCH).fault is Fault.GROUP_ID_NOT_FOUND


# Joining and staying


def test_the_first_member_gets_everything(driver: Driver) -> None:
    reply = driver.beat("m", 0)
    assert (reply.member_id, reply.member_epoch) == ("m", 2)
    assert driver.named(reply) == {"orders": ALL}
    assert driver.consumer().state == "Stable"


def test_a_client_of_version_0_is_given_an_id(driver: Driver) -> None:
    reply = driver.beat("", 0, member_names_itself=False)
    assert (reply.member_id or "").startswith("fresh")


def test_an_assignment_is_told_when_it_changes_or_when_all_is_asked(driver: Driver) -> None:
    driver.beat("m", 0)
    assert driver.beat("m", 2).assignment is None
    full = driver.beat(
        "m", 2, subscribed_topics=("orders",), rebalance_timeout_ms=60_000, owned=owned(driver, orders=ALL)
    )
    assert driver.named(full) == {"orders": ALL}


def test_partitions_are_given_only_after_they_were_let_go(driver: Driver) -> None:
    driver.beat("a", 0)
    assert driver.named(driver.beat("b", 0)) == {}
    told = driver.beat("a", 2, owned=owned(driver, orders=ALL))
    assert driver.named(told) == {"orders": [0, 1]}
    assert told.member_epoch == 2, "it keeps its epoch until it has let go"
    assert driver.beat("b", 3).assignment is None
    assert driver.beat("a", 2, owned=owned(driver, orders=[0, 1])).member_epoch == 3
    assert driver.named(driver.beat("b", 3)) == {"orders": [2, 3]}


def test_a_member_that_says_nothing_of_what_it_owns_may_own_everything(driver: Driver) -> None:
    driver.beat("a", 0)
    driver.beat("b", 0)
    driver.beat("a", 2)
    driver.beat("a", 2)
    assert driver.beat("b", 3).assignment is None


def test_a_wrong_epoch_is_fenced_and_the_one_before_is_forgiven(driver: Driver) -> None:
    pair(driver)
    assert driver.beat("a", 9).fault is Fault.FENCED_MEMBER_EPOCH
    assert driver.beat("a", 1, owned={}).fault is Fault.FENCED_MEMBER_EPOCH
    assert driver.beat("a", 2).fault is Fault.FENCED_MEMBER_EPOCH, "it must say what it owns"
    assert driver.beat("a", 2, owned=owned(driver, orders=ALL)).fault is Fault.FENCED_MEMBER_EPOCH
    assert driver.beat("a", 2, owned=owned(driver, orders=[0])).member_epoch == 3, "the answer may have got lost"


def test_a_fenced_member_rejoins_under_its_id(driver: Driver) -> None:
    pair(driver)
    again = driver.beat("a", 0)
    assert (again.fault, driver.named(again)) == (None, {"orders": [0, 1]})
    assert len(driver.consumer().members) == 2


def test_a_stranger_is_unknown(driver: Driver) -> None:
    driver.beat("a", 0)
    assert driver.beat("b", 2).fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.beat("b", LEAVE_EPOCH).fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.beat("a", 2, instance_id="i").fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.beat("a", LEAVE_EPOCH, instance_id="i").fault is Fault.UNKNOWN_MEMBER_ID


def test_a_full_group_refuses_newcomers() -> None:
    driver = Driver(GroupSettings(group_consumer_max_size=1))
    driver.beat("a", 0)
    assert driver.beat("b", 0).fault is Fault.GROUP_MAX_SIZE_REACHED
    assert driver.beat("a", 0).fault is None


def test_targets_are_not_computed_more_often_than_the_interval_allows() -> None:
    driver = Driver()
    driver.beat("a", 0)
    driver.wait(1_000)
    driver.beat("b", 0)
    driver.wait(999)
    assert driver.beat("c", 0).member_epoch == 3
    assert driver.consumer().state == "Assigning"
    driver.wait(1)
    assert driver.consumer().assignment_epoch == driver.consumer().epoch == 4


def test_a_target_is_computed_when_the_interval_is_over_and_waits_for_no_heartbeat() -> None:
    driver = Driver()
    driver.beat("a", 0)
    driver.wait(1_000)
    driver.beat("b", 0)
    driver.beat("c", 0)
    driver.wait(999)
    assert driver.consumer().state == "Assigning"
    driver.wait(1)
    assert driver.consumer().state == "Reconciling"
    driver.beat("a", LEAVE_EPOCH)
    driver.wait(999)
    assert driver.consumer().state == "Assigning"
    driver.wait(1)
    assert driver.consumer().state == "Reconciling"


def test_the_members_of_a_new_group_share_a_target_as_soon_as_no_more_of_them_come() -> None:
    driver = Driver()
    driver.beat("a", 0)
    for member in "bcd":
        driver.wait(QUIET_MS - 1)
        assert driver.beat(member, 0).member_epoch == 2
    driver.wait(QUIET_MS - 1)
    assert driver.consumer().state == "Assigning"
    driver.wait(1)
    assert driver.consumer().assignment_epoch == driver.consumer().epoch == 5


def test_the_more_members_a_new_group_has_the_shorter_is_the_pause_after_which_they_share_a_target() -> None:
    driver = Driver()
    for number in range(1_000):
        driver.beat(f"m{number:04}", 0)
    driver.wait(QUIET_MS_MIN - 1)
    assert driver.consumer().state == "Assigning"
    driver.wait(1)
    assert driver.consumer().assignment_epoch == driver.consumer().epoch


def test_the_members_of_a_new_group_share_a_target_after_the_interval_if_others_go_on_coming() -> None:
    driver = Driver()
    driver.beat("a", 0)
    for number in range(19):
        driver.wait(50)
        assert driver.beat(f"b{number}", 0).member_epoch == 2
    driver.wait(50)
    assert driver.consumer().assignment_epoch == 21


def test_many_members_that_go_on_coming_are_waited_for_longer_but_not_without_end() -> None:
    driver = Driver()
    began_ms = driver.now_ms
    driver.beat("a", 0)
    while driver.consumer().assignment_epoch == 2:
        assert driver.beat(f"b{driver.now_ms}", 0).member_epoch == 2
        driver.wait(8)
    assert len(driver.consumer().members) > MANY_COME
    assert driver.now_ms - began_ms == 1_000 * INTERVALS_FOR_MANY


def test_a_member_is_told_a_short_heartbeat_interval_until_it_has_its_part() -> None:
    driver = Driver()
    driver.beat("a", 0)
    driver.wait(ALONE_MS)
    assert driver.beat("a", 2).heartbeat_interval_ms == 5_000
    assert driver.beat("b", 0).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS
    driver.wait(QUIET_MS)
    assert driver.beat("a", 2, owned=owned(driver, orders=ALL)).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS
    assert driver.beat("b", 3).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS
    driver.beat("a", 2, owned=owned(driver, orders=[0, 1]))
    driver.beat("b", 3)
    driver.wait(YOUNG_MS)
    assert driver.beat("a", 3).heartbeat_interval_ms == 5_000
    assert driver.beat("b", 3).heartbeat_interval_ms == 5_000


def test_members_that_have_their_parts_hear_soon_of_the_next_target_while_theirs_is_young() -> None:
    """The members of a group are started over some seconds, and each target follows the one before after a second.
    Those that were told five seconds kept the group from being stable for so long.
    """
    driver = Driver()
    for member in "ab":
        driver.beat(member, 0)
    driver.wait(QUIET_MS)
    driver.beat("a", 2)
    driver.beat("b", 2)
    driver.beat("a", 2, owned=owned(driver, orders=[0, 1]))
    assert driver.beat("b", 3).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS
    driver.beat("c", 0)
    driver.wait(1_000)
    assert driver.consumer().assignment_epoch == 4
    driver.beat("b", 3)
    driver.beat("b", 3, owned=owned(driver, orders=[2]))
    driver.wait(YOUNG_MS - 1)
    assert driver.beat("b", 4).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS
    driver.wait(1)
    assert driver.beat("b", 4).heartbeat_interval_ms == 5_000


def test_a_member_that_was_given_everything_hears_soon_that_others_have_come() -> None:
    driver = Driver()
    assert driver.beat("a", 0).heartbeat_interval_ms == ALONE_INTERVAL_MS
    assert driver.beat("a", 2, owned=owned(driver, orders=ALL)).heartbeat_interval_ms == ALONE_INTERVAL_MS
    driver.wait(ALONE_INTERVAL_MS)
    assert driver.beat("b", 0).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS
    assert driver.beat("a", 2).heartbeat_interval_ms == ALONE_INTERVAL_MS
    driver.wait(ALONE_INTERVAL_MS)
    assert driver.beat("a", 2).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS
    assert driver.beat("a", 2, owned=owned(driver, orders=[0, 1])).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS
    assert driver.named(driver.beat("b", 2)) == {"orders": [2, 3]}


def test_a_member_that_stays_alone_is_told_the_usual_heartbeat_interval_after_a_while() -> None:
    driver = Driver()
    epoch = driver.beat("a", 0).member_epoch
    for _ in range(2):  # the second time it comes back to a group that all have left
        for _ in range(ALONE_MS // ALONE_INTERVAL_MS):
            assert driver.beat("a", epoch).heartbeat_interval_ms == ALONE_INTERVAL_MS
            driver.wait(ALONE_INTERVAL_MS)
        assert driver.beat("a", epoch).heartbeat_interval_ms == 5_000
        driver.beat("a", LEAVE_EPOCH)
        epoch = driver.beat("a", 0).member_epoch


def test_a_member_that_need_not_share_what_it_has_is_told_the_usual_heartbeat_interval() -> None:
    driver = Driver(topics=Topics(orders=1))
    driver.beat("a", 0)
    driver.beat("b", 0)
    driver.wait(QUIET_MS + YOUNG_MS)
    assert driver.beat("a", 2).heartbeat_interval_ms == 5_000
    assert driver.beat("b", 2).heartbeat_interval_ms == 5_000
    assert driver.beat("c", 0, subscribed_topics=("nowhere",)).heartbeat_interval_ms == UNSETTLED_INTERVAL_MS


@pytest.mark.parametrize("interval_ms", [50, UNSETTLED_INTERVAL_MS])
def test_a_heartbeat_interval_that_is_set_to_a_second_or_less_is_told_to_all(interval_ms: int) -> None:
    driver = Driver(GroupSettings(consumer_times=lambda group_id: ConsumerTimes(heartbeat_interval_ms=interval_ms)))
    assert driver.beat("a", 0).heartbeat_interval_ms == interval_ms
    assert driver.beat("b", 0).heartbeat_interval_ms == interval_ms
    assert driver.beat("a", 2).heartbeat_interval_ms == interval_ms


def test_a_short_heartbeat_interval_is_longer_in_a_large_group_and_never_longer_than_the_set_one() -> None:
    driver = Driver(topics=Topics(orders=1))
    told = [driver.beat(f"m{number}", 0).heartbeat_interval_ms for number in range(10_000)]
    assert (told[1], told[-1]) == (UNSETTLED_INTERVAL_MS, 1_999)
    driver.set(GroupSettings(consumer_times=lambda group_id: ConsumerTimes(heartbeat_interval_ms=1_500)))
    assert driver.beat("late", 0).heartbeat_interval_ms == 1_500


def test_members_choose_the_assignor_by_vote(driver: Driver) -> None:
    driver.beat("a", 0, server_assignor="range")
    assert driver.consumer().assignor == "range"
    driver.beat("b", 0, server_assignor="uniform")
    driver.beat("c", 0, server_assignor="uniform")
    assert driver.consumer().assignor == "uniform"


# Subscriptions and topics


def test_a_changed_subscription_moves_partitions(driver: Driver) -> None:
    driver.beat("a", 0)
    reply = driver.beat("a", 2, subscribed_topics=("events",), owned=owned(driver, orders=ALL))
    assert driver.named(reply) == {}, "first it lets go of what it no longer wants"
    reply = driver.beat("a", 2, owned={})
    assert driver.named(reply) == {"events": [0, 1, 2]}


def test_new_partitions_are_given_out_at_the_next_heartbeat(driver: Driver) -> None:
    driver.beat("a", 0)
    driver.topics.put("orders", 6)
    assert driver.named(driver.beat("a", 2)) == {"orders": [0, 1, 2, 3, 4, 5]}


def test_a_topic_that_comes_later_is_given_out_when_it_comes(driver: Driver) -> None:
    assert driver.named(driver.beat("a", 0, subscribed_topics=("late",))) == {}
    driver.topics.put("late", 1)
    assert driver.named(driver.beat("a", 2)) == {"late": [0]}


def test_a_deleted_topic_is_taken_away(driver: Driver) -> None:
    driver.beat("a", 0, subscribed_topics=("orders", "events"))
    gone = driver.topics.id_of("events")
    held = owned(driver, orders=ALL, events=[0, 1, 2])
    driver.topics.remove("events")
    driver.ask(ForgetTopic("events", gone))
    assert driver.named(driver.beat("a", 2, owned=held)) == {"orders": ALL}
    assert driver.beat("a", 2, owned=owned(driver, orders=ALL)).member_epoch == 3


def test_a_topic_made_anew_under_the_same_name_is_another_one(driver: Driver) -> None:
    driver.beat("a", 0)
    old = owned(driver, orders=ALL)
    driver.topics.remove("orders")
    driver.topics.put("orders", 4)
    assert driver.named(driver.beat("a", 2, owned=old)) == {}
    assert driver.named(driver.beat("a", 2, owned={})) == {"orders": ALL}


def test_changes_that_do_not_concern_a_group_leave_it_alone(driver: Driver) -> None:
    driver.beat("a", 0)
    driver.topics.put("unrelated", 8)
    written = len(driver.log)
    assert driver.beat("a", 2).member_epoch == 2
    assert len(driver.log) == written


# Regular expressions


def test_an_expression_that_is_none_is_refused(driver: Driver) -> None:
    reply = driver.beat("a", 0, subscribed_topics=None, subscribed_regex="(")
    assert reply.fault is Fault.INVALID_REGULAR_EXPRESSION
    assert driver.listed() == {}


def test_an_expression_is_resolved_behind_the_first_heartbeat(driver: Driver) -> None:
    first = driver.beat("a", 0, subscribed_topics=None, subscribed_regex="o.*|e.*")
    assert (first.member_epoch, driver.named(first)) == (1, {})
    driver.wait(0)
    assert driver.named(driver.beat("a", 1)) == {"orders": ALL, "events": [0, 1, 2]}


def test_topics_that_come_to_match_are_found_in_some_seconds(driver: Driver) -> None:
    driver.beat("a", 0, subscribed_topics=None, subscribed_regex="o.*")
    driver.wait(5_000)
    driver.beat("a", 1)
    driver.topics.put("others", 1)
    driver.wait(5_001)
    driver.beat("a", 2)
    driver.wait(0)
    assert driver.named(driver.beat("a", 2)) == {"orders": ALL, "others": [0]}


def test_an_expression_that_others_use_already_is_known_at_once(driver: Driver) -> None:
    driver.beat("a", 0, subscribed_topics=None, subscribed_regex="o.*")
    driver.wait(0)
    driver.beat("a", 1)
    assert driver.beat("b", 0, subscribed_topics=None, subscribed_regex="o.*").member_epoch == 3


def test_an_expression_that_nobody_uses_any_more_is_forgotten(driver: Driver) -> None:
    driver.beat("a", 0, subscribed_topics=None, subscribed_regex="o.*")
    driver.wait(0)
    driver.beat("a", 1)
    driver.beat("a", 2, subscribed_topics=(), subscribed_regex="", owned=owned(driver, orders=ALL))
    assert driver.named(driver.beat("a", 2, owned={})) is None
    driver.restart()
    assert tuple(driver.consumer().members[0].target) == ()


def test_what_a_changed_expression_gives_up_goes_to_others(driver: Driver) -> None:
    """The new one finds nothing, so nothing else would have begun another assignment: it was read by nobody."""
    driver.beat("a", 0, subscribed_topics=("orders",))
    driver.beat("b", 0, subscribed_topics=None, subscribed_regex="o.*")
    held: dict[str, dict[str, list[int]]] = {"a": {}, "b": {}}
    epochs = {"a": 1, "b": 2}

    def beats(times: int) -> None:
        for _ in range(times):
            for name, mine in held.items():
                reply = driver.beat(name, epochs[name], owned=owned(driver, **mine))
                epochs[name], held[name] = reply.member_epoch, driver.named(reply) or mine if reply.assignment else mine
            driver.wait(3_000)

    beats(8)
    assert held["a"] and held["b"]
    driver.beat("b", epochs["b"], subscribed_topics=None, subscribed_regex="x.*", owned=owned(driver, **held["b"]))
    held["b"] = {}
    beats(8)
    assert held == {"a": {"orders": ALL}, "b": {}}


def test_names_and_an_expression_add_up(driver: Driver) -> None:
    driver.beat("a", 0, subscribed_topics=("events",), subscribed_regex="o.*")
    driver.wait(0)
    assert driver.named(driver.beat("a", 2)) == {"orders": ALL, "events": [0, 1, 2]}


def test_expressions_that_take_long_are_resolved_in_turns(driver: Driver) -> None:
    for number in range(300):
        driver.topics.put(f"orders.eu-west-1.customer-events.v{number:05d}.aggregated", 1)
    driver.beat("a", 0, subscribed_topics=None, subscribed_regex="(.?.?){120}z")
    driver.beat("b", 0, subscribed_topics=None, subscribed_regex="orders.*v.*")
    turns = 0
    while driver.machine.next_deadline_ms() == driver.now_ms:
        driver.take(driver.machine.expire(driver.now_ms))
        turns += 1
    assert turns > 50
    settle(driver, "a", "b")
    facts = {member.member_id: member for member in driver.consumer().members}
    assert [len(tuple(facts[member].assigned)) for member in "ab"] == [0, 300]


def test_an_expression_that_is_dropped_in_a_round_and_comes_back_sees_later_topics(driver: Driver) -> None:
    for number in range(300):
        driver.topics.put(f"orders.eu-west-1.customer-events.v{number:05d}.aggregated", 1)
    long, other = "(.?.?){120}[zd]", "(.?.?){110}[zd]"
    driver.beat("a", 0, subscribed_topics=None, subscribed_regex=long)
    driver.beat("b", 0, subscribed_topics=None, subscribed_regex=other)
    due = turns(driver)
    while not group_of(driver).regex_matches:
        next(due)
    assert list(group_of(driver).regex_matches) == [long], "it is half-way"
    driver.beat("a", -1)
    while (ahead := group_of(driver).regex_round) is not None and long in ahead.regexes:
        next(due)
    assert ahead is not None, "the round is not over"
    driver.beat("a", 0, subscribed_topics=None, subscribed_regex=long)
    for _ in turns(driver):
        pass
    driver.topics.put("made-since-d", 1)
    driver.now_ms += REGEX_MIN_INTERVAL_MS + 1
    for name in "ab":
        driver.beat(name, group_of(driver).members[name].member_epoch)
    for _ in turns(driver):
        pass
    for regex in (long, other):
        assert "made-since-d" in group_of(driver).resolved[regex].topics, regex


def subscribed_by_expressions(driver: Driver, topics: int, expressions: Iterable[str]) -> None:
    """A member for each expression, all resolved."""
    for number in range(topics):
        driver.topics.put(f"orders-{number}", 1)
    for number, expression in enumerate(expressions):
        driver.beat(f"m{number}", 0, subscribed_topics=None, subscribed_regex=expression)
    for _ in turns(driver):
        pass


def test_many_expressions_are_looked_at_in_turns_although_no_topic_is_new(driver: Driver) -> None:
    subscribed_by_expressions(driver, 500, [f"orders-1{number}|other.*" for number in range(200)])
    driver.topics.remove("orders-7")
    driver.now_ms += REGEX_MIN_INTERVAL_MS + 1
    driver.beat("m0", group_of(driver).members["m0"].member_epoch)
    unfinished = sum(1 for _ in turns(driver) if group_of(driver).regex_round is not None)
    assert unfinished >= 200 * 500 * STEPS_OF_A_NAME // MATCHED_AT_ONCE


def test_what_many_expressions_come_to_match_is_recorded_in_turns(driver: Driver) -> None:
    subscribed_by_expressions(driver, 500, [f"orders.*|{number}" for number in range(100)])
    driver.topics.put("orders-new", 1)
    driver.now_ms += REGEX_MIN_INTERVAL_MS + 1
    driver.beat("m0", group_of(driver).members["m0"].member_epoch)
    recorded = [
        sum(len(resolved.topics) for resolved in group_of(driver).resolved.values() if "orders-new" in resolved.topics)
        for _ in turns(driver)
    ]
    assert recorded[-1] == 100 * 502
    most = max(after - before for before, after in pairwise(recorded))
    assert most <= MATCHED_AT_ONCE // STEPS_OF_A_MATCH + 502


# A large group's target


LARGE = 1_000


def turns(driver: Driver) -> Iterator[GroupDecision]:
    """What is due, one turn after the other."""
    while (due_ms := driver.machine.next_deadline_ms()) is not None and due_ms <= driver.now_ms:
        yield (decision := driver.machine.expire(driver.now_ms))
        driver.take(decision)


def large_group() -> Driver:
    """Its members have all just joined: the target of each is to be changed, and computing that has begun."""
    times = ConsumerTimes(2 * FAILED_AGAIN_MS, 5_000, 1_000)
    driver = Driver(GroupSettings(consumer_times=lambda group_id: times), Topics(orders=LARGE))
    for number in range(LARGE):
        driver.beat(f"m{number:04}", 0, instance_id=f"i{number:04}")
    driver.now_ms += QUIET_MS
    driver.take(driver.machine.expire(driver.now_ms))
    assert driver.consumer().state == "Assigning"
    return driver


def members_given(driver: Driver) -> dict[str, int]:
    """How many partitions the target gives to each member that there is."""
    assert group_of(driver).target.keys() <= group_of(driver).members.keys()
    return {name: sum(map(len, group_of(driver).target.get(name, {}).values())) for name in group_of(driver).members}


def test_of_targets_with_thousands_of_topics_few_are_written_in_one_turn(driver: Driver) -> None:
    per_member = 10 * TOPICS_AS_ONE
    names = [f"t{number}" for number in range(per_member * 20)]
    for name in names:
        driver.topics.put(name, 1)
    for number in range(20):
        driver.beat(f"m{number:02}", 0, subscribed_topics=None, subscribed_regex="t.*")
    driver.now_ms += QUIET_MS
    written = [sum(key[:2] == b"\0\7" for key, _ in turn.records) for turn in turns(driver)]
    assert sum(written) == 20
    assert max(written) == -(-TARGETS_AT_ONCE // 11)
    assert set(members_given(driver).values()) == {per_member}
    driver.check_replay()


def test_a_large_groups_target_is_computed_and_written_in_turns() -> None:
    driver = large_group()
    records = [len(turn.records) for turn in turns(driver)]
    least = 3 * LARGE / STEPS_AT_ONCE + LARGE / TARGETS_AT_ONCE
    assert least < len(records) < 1.2 * least + 2  # a heartbeat that comes before the target is there costs twice
    assert max(records) <= TARGETS_AT_ONCE + 1
    assert set(members_given(driver).values()) == {1}
    facts = driver.consumer()
    assert facts.assignment_epoch == facts.epoch
    driver.check_replay()


@pytest.mark.parametrize("turn", range(6))
def test_who_comes_and_goes_while_a_target_is_in_the_making_is_not_forgotten(turn: int) -> None:
    driver = large_group()
    for _ in zip(range(turn), turns(driver), strict=False):
        pass
    driver.beat("m0500", LEAVE_EPOCH, instance_id="i0500")
    driver.beat("m0600", STATIC_LEAVE_EPOCH, instance_id="i0600")
    driver.beat("taker", 0, instance_id="i0600")
    driver.beat("late", 0)
    for _ in turns(driver):
        pass
    assert driver.consumer().state == "Assigning"
    driver.wait(1_000)
    driver.beat("late", 0)
    for _ in turns(driver):
        pass
    given = members_given(driver)
    assert given["taker"] == given["late"] == 1
    assert sum(given.values()) == LARGE
    driver.check_replay()


def test_a_target_that_a_refused_heartbeat_began_is_given_up() -> None:
    driver = large_group()
    for _ in turns(driver):
        pass
    driver.wait(1_000)
    unknown = group_of(driver).members["m0500"]._replace(state=MemberState.UNKNOWN)
    driver.take(GroupDecision((current_record("g", unknown),)))
    refused = driver.beat("m0500", 2, instance_id="i0500", subscribed_topics=("x",), owned=owned(driver, orders=[500]))
    assert refused.fault is Fault.FENCED_MEMBER_EPOCH
    for _ in turns(driver):
        pass
    assert group_of(driver).assignment_epoch == group_of(driver).epoch
    driver.beat("late", 0)
    for _ in turns(driver):
        pass
    assert members_given(driver)["late"] == 0
    assert sum(members_given(driver).values()) == LARGE
    assert group_of(driver).target_of("late", None) == {}
    assert "late" not in group_of(driver).target, "a member that gets nothing has no record of that"


def test_what_a_refused_heartbeat_wanted_is_not_in_the_target_of_the_next_one() -> None:
    """Both raise the group to the same epoch."""
    driver = large_group()
    for _ in turns(driver):
        pass
    driver.wait(1_000)
    unknown = group_of(driver).members["m0500"]._replace(state=MemberState.UNKNOWN)
    driver.take(GroupDecision((current_record("g", unknown),)))
    for name, (number,) in (("m0500", (500,)), ("m0400", (400,))):
        owns = owned(driver, orders=[number])
        answer = driver.beat(name, 2, instance_id=f"i{name[1:]}", subscribed_topics=("x",), owned=owns)
        assert answer.fault is (Fault.FENCED_MEMBER_EPOCH if name == "m0500" else None)
    for _ in turns(driver):
        pass
    given = members_given(driver)
    assert (given["m0500"], given["m0400"], sum(given.values())) == (1, 0, LARGE)


def test_a_heartbeat_that_raises_leaves_nothing_to_the_target_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = large_group()
    for _ in turns(driver):
        pass
    driver.wait(1_000)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(consumer_decisions, "reconcile", lambda member, walk: 1 // 0)
        driver.beat("late", 0)
    for _ in turns(driver):
        pass
    driver.beat("later", 0)
    for _ in turns(driver):
        pass
    assert group_of(driver).assignment_epoch == group_of(driver).epoch
    given = members_given(driver)
    assert ("late" in given, given["later"], sum(given.values())) == (False, 0, LARGE)


def test_an_assignment_that_raises_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(members: object, partition_counts: object) -> SmallSteps[Target]:
        for _ in range(STEPS_AT_ONCE):
            yield
        raise ZeroDivisionError

    driver = large_group()
    for _ in turns(driver):
        pass
    driver.wait(1_000)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setitem(ASSIGNORS, "uniform", raises)
        driver.beat("late", 0)
        for _ in turns(driver):
            pass
    driver.now_ms += FAILED_AGAIN_MS
    assert len(list(islice(turns(driver), LARGE))) < LARGE
    assert group_of(driver).assignment_epoch == group_of(driver).epoch == 1_002


def test_a_look_at_the_metadata_that_raises_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(SMALL_STEPS_A_TURN + 1)]
    times = ConsumerTimes(2 * FAILED_AGAIN_MS, 5_000, 0)
    driver = Driver(GroupSettings(consumer_times=lambda group_id: times), Topics(**dict.fromkeys(names, 1)))
    driver.beat("a", 0, subscribed_topics=tuple(names))
    for _ in turns(driver):
        pass
    epoch = group_of(driver).epoch
    driver.topics.put("t0", 2)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(topics, "_mark", lambda topics, name: 1 // 0)
        driver.beat("a", group_of(driver).members["a"].member_epoch)
        for _ in turns(driver):
            pass
    driver.now_ms += FAILED_AGAIN_MS
    assert len(list(islice(turns(driver), LARGE))) < LARGE
    assert group_of(driver).assignment_epoch == group_of(driver).epoch == epoch + 1


def test_a_refused_heartbeat_does_not_put_off_the_target_that_others_wait_for() -> None:
    driver = Driver()
    driver.beat("a", 0)
    unknown = group_of(driver).members["a"]._replace(state=MemberState.UNKNOWN)
    driver.take(GroupDecision((current_record("g", unknown),)))
    driver.beat("b", 0)
    driver.now_ms += QUIET_MS  # the target is due now, and the heartbeat comes first
    assert driver.beat("a", 2, owned=owned(driver, orders=ALL)).fault is Fault.FENCED_MEMBER_EPOCH
    driver.wait(0)
    assert driver.consumer().assignment_epoch == driver.consumer().epoch


def test_the_first_member_of_a_group_may_name_thousands_of_topics_without_a_second_epoch(driver: Driver) -> None:
    names = [f"t{number}" for number in range(SMALL_STEPS_A_TURN + 1)]
    for name in names:
        driver.topics.put(name, 1)
    driver.beat("a", 0, subscribed_topics=tuple(names))
    for _ in turns(driver):
        pass
    group = group_of(driver)
    assert (group.epoch, group.assignment_epoch) == (2, 2)
    assert group.metadata_hash == topics.fingerprint(driver.topics, names)


def test_no_set_is_made_of_all_topics_of_members_that_name_very_many_together(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    topics_subscribed = ConsumerGroup.topics_subscribed

    def count(group: ConsumerGroup, **named: Any) -> set[str]:
        found = topics_subscribed(group, **named)
        made.append(len(found))
        return found

    monkeypatch.setattr(ConsumerGroup, "topics_subscribed", count)
    for member in "abc":
        driver.beat(member, 0, subscribed_topics=tuple(f"{member}{number}" for number in range(SMALL_STEPS_A_TURN - 1)))
        for _ in turns(driver):
            pass
    driver.topics.put("a0", 1)
    driver.beat("b", group_of(driver).epoch)
    for _ in turns(driver):
        pass
    driver.beat("c", LEAVE_EPOCH)
    driver.beat("d", 0, subscribed_topics=None, subscribed_regex="o.*")
    for _ in turns(driver):
        pass
    group = group_of(driver)
    assert max(made) < SMALL_STEPS_A_TURN
    assert group.assignment_epoch == group.epoch
    assert group.metadata_hash == topics.fingerprint(driver.topics, ["a0", "orders"])
    assert group.tallies.changed is None


def test_a_look_at_very_many_topics_counts_what_members_have_named_and_left_meanwhile(driver: Driver) -> None:
    names = [f"t{number}" for number in range(3 * SMALL_STEPS_A_TURN)]
    for name in names:
        driver.topics.put(name, 1)
    driver.beat("a", 0, subscribed_topics=tuple(names))
    driver.beat("b", 0, subscribed_topics=("orders",))
    meanwhile = turns(driver)
    next(meanwhile)
    driver.beat("a", group_of(driver).members["a"].member_epoch, subscribed_topics=tuple(names[100:]))
    next(meanwhile)
    driver.beat("b", LEAVE_EPOCH)
    driver.beat("c", 0, subscribed_topics=("events", names[3]))
    for _ in meanwhile:
        pass
    assert group_of(driver).metadata_hash == topics.fingerprint(driver.topics, ["events", names[3], *names[100:]])


def test_a_group_that_waits_for_a_target_gets_it_after_a_restart_without_a_heartbeat() -> None:
    driver = Driver()
    driver.beat("a", 0)
    driver.wait(1_000)
    driver.beat("b", 0)
    driver.beat("c", 0)
    assert driver.consumer().state == "Assigning"
    driver.restart()
    driver.wait(1_000)
    assert driver.consumer().assignment_epoch == driver.consumer().epoch == 4


def test_a_restart_while_a_target_is_being_written_begins_it_anew() -> None:
    driver = large_group()
    for turn in turns(driver):
        if turn.records:
            break
    driver.restart()
    driver.wait(0)
    driver.beat("m0001", 2, instance_id="i0001")
    for _ in turns(driver):
        pass
    assert set(members_given(driver).values()) == {1}


def test_a_heartbeat_that_changes_nothing_looks_at_no_other_member(driver: Driver) -> None:
    pair(driver)
    driver.beat("c", 0, subscribed_topics=None, subscribed_regex="or.*")
    driver.wait(0)
    settle(driver, "a", "b", "c")
    group = group_of(driver)
    epoch = group.epoch
    group.members = Unwalked(group.members)
    driver.wait(11_000)  # expressions are looked at again
    for member in "abc":
        assert driver.beat(member, epoch).fault is None


# Silence and leaving


def test_a_member_fallen_silent_loses_its_partitions(driver: Driver) -> None:
    pair(driver)
    driver.wait(44_000)
    driver.beat("a", 3)
    driver.wait(1_000)
    assert [member.member_id for member in driver.consumer().members] == ["a"]
    assert driver.named(driver.beat("a", 3)) == {"orders": ALL}
    assert driver.beat("b", 3).fault is Fault.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_let_go_in_time_is_removed(driver: Driver) -> None:
    driver.beat("a", 0, rebalance_timeout_ms=20_000)
    driver.beat("b", 0)
    driver.beat("a", 2, owned=owned(driver, orders=ALL))
    driver.wait(19_999)
    driver.beat("a", 2, owned=owned(driver, orders=ALL))
    assert len(driver.consumer().members) == 2
    driver.wait(1)
    assert driver.beat("a", 2, owned=owned(driver, orders=ALL)).fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.named(driver.beat("b", 3)) == {"orders": ALL}


def test_a_member_that_leaves_hands_over_at_once(driver: Driver) -> None:
    pair(driver)
    assert driver.beat("b", LEAVE_EPOCH) == ConsumerHeartbeatReply(member_id="b", member_epoch=LEAVE_EPOCH)
    assert driver.named(driver.beat("a", 3)) == {"orders": ALL}


def test_a_group_whose_last_member_leaves_is_empty_and_can_be_deleted(driver: Driver) -> None:
    driver.beat("a", 0)
    assert driver.delete_group() is Fault.NON_EMPTY_GROUP
    driver.beat("a", LEAVE_EPOCH)
    assert driver.consumer().state == "Empty"
    assert driver.delete_group() is None
    driver.restart()
    assert driver.listed() == {}


# Static members


def test_an_instance_belongs_to_one_member_at_a_time(driver: Driver) -> None:
    driver.beat("a", 0, instance_id="i")
    assert driver.beat("b", 0, instance_id="i").fault is Fault.UNRELEASED_INSTANCE_ID
    assert driver.beat("b", 2, instance_id="i").fault is Fault.FENCED_INSTANCE_ID
    assert driver.beat("b", STATIC_LEAVE_EPOCH, instance_id="i").fault is Fault.FENCED_INSTANCE_ID


def test_an_instance_that_leaves_for_a_while_finds_its_partitions_again(driver: Driver) -> None:
    pair(driver)
    driver.beat("s", 0, instance_id="i")
    driver.beat("a", 3, owned=owned(driver, orders=[0, 1]))
    driver.beat("b", 3, owned=owned(driver, orders=[2, 3]))
    driver.beat("a", 3, owned=owned(driver, orders=[0, 1]))
    driver.beat("b", 3, owned=owned(driver, orders=[2]))
    held = driver.named(driver.beat("s", 4, instance_id="i"))
    assert held is not None
    left = driver.beat("s", STATIC_LEAVE_EPOCH, instance_id="i")
    assert (left.member_id, left.member_epoch) == ("s", STATIC_LEAVE_EPOCH)
    assert driver.beat("s", 4, instance_id="i").fault is Fault.FENCED_MEMBER_EPOCH
    back = driver.beat("t", 0, instance_id="i")
    assert (back.member_id, back.member_epoch, driver.named(back)) == ("t", 4, held)
    assert driver.beat("s", 4, instance_id="i").fault is Fault.FENCED_INSTANCE_ID


def test_an_instance_that_comes_back_without_need_of_its_partitions_does_not_keep_them(driver: Driver) -> None:
    """Another member has them in its target then, and no two may."""
    driver.beat("a", 0, instance_id="i")
    driver.beat("b", 0)
    driver.beat("a", STATIC_LEAVE_EPOCH, instance_id="i")
    driver.beat("a2", 0, instance_id="i", subscribed_topics=())
    assert tuple({member.member_id: member.target for member in driver.consumer().members}["a2"]) == ()


def test_an_instance_that_comes_back_under_its_own_id_is_known_by_what_it_says_now(driver: Driver) -> None:
    driver.beat("a", 0, instance_id="i", rack_id="r1")
    driver.beat("a", STATIC_LEAVE_EPOCH, instance_id="i")
    driver.beat("a", 0, instance_id="i", rack_id="r2", subscribed_topics=("events",))
    for _ in range(2):
        (member,) = driver.consumer().members
        assert (member.subscribed_topics, member.rack_id) == (("events",), "r2")
        driver.restart()


def test_an_instance_that_stays_away_too_long_is_removed(driver: Driver) -> None:
    driver.beat("a", 0, instance_id="i")
    driver.beat("a", STATIC_LEAVE_EPOCH, instance_id="i")
    driver.wait(45_000)
    assert not driver.consumer().members


@pytest.mark.parametrize("restarts", [False, True])
def test_an_instance_that_is_away_has_nothing_left_to_let_go_of(driver: Driver, restarts: bool) -> None:
    """It left before it let go, which it has time for while it is there. Now only its session counts."""
    driver.beat("a", 0, instance_id="i", rebalance_timeout_ms=20_000)
    driver.beat("b", 0)
    driver.beat("a", 2, instance_id="i", owned=owned(driver, orders=ALL))
    driver.beat("a", STATIC_LEAVE_EPOCH, instance_id="i")
    if restarts:
        driver.restart()
    driver.wait(30_000)
    assert [member.member_id for member in driver.consumer().members] == ["a", "b"]
    assert driver.beat("c", 0, instance_id="i").fault is None
    driver.wait(30_000)
    assert "c" in [member.member_id for member in driver.consumer().members]


@pytest.mark.parametrize("former", [None, "x"])
def test_a_member_that_joins_again_as_an_instance_that_is_new_keeps_its_part(
    driver: Driver, former: str | None
) -> None:
    """It is the same member under another name, so it has its own target and not none."""
    driver.beat("a", 0, instance_id=former)
    driver.beat("b", 0)
    settle(driver, "a", "b")
    driver.beat("b", LEAVE_EPOCH)
    driver.wait(0)
    back = driver.beat("a", 0, instance_id="y")
    assert (back.fault, driver.named(back)) == (None, {"orders": ALL})


def test_an_instance_whose_member_has_taken_another_name_is_free(driver: Driver) -> None:
    driver.beat("a", 0, instance_id="x")
    driver.beat("a", 0, instance_id="y")
    assert group_of(driver).static_members == {"y": "a"}, "as in the log when it has been compacted"
    assert driver.beat("b", 0, instance_id="x").fault is None
    driver.beat("b", LEAVE_EPOCH, instance_id="x")
    assert group_of(driver).static_members == {"y": "a"}


@pytest.mark.parametrize("former", [None, "x"])
def test_a_member_that_has_a_place_takes_no_other_one_before_its_own_is_free(
    driver: Driver, former: str | None
) -> None:
    """Two members would become one, and nobody would be given what was the part of one of them."""
    driver.beat("a", 0, instance_id=former)
    driver.beat("b", 0, instance_id="y")
    settle(driver, "a", "b")
    driver.beat("b", STATIC_LEAVE_EPOCH, instance_id="y")
    driver.wait(20_000)
    driver.beat("c", 0, subscribed_topics=("events",))
    assert driver.beat("a", 0, instance_id="y").fault is Fault.UNRELEASED_INSTANCE_ID
    driver.wait(24_999)
    driver.beat("c", group_of(driver).members["c"].member_epoch)
    driver.wait(1)
    assert list(group_of(driver).members) == ["c"]
    assert driver.named(driver.beat("a", 0, instance_id="y")) == {"orders": ALL}


def test_an_instance_can_leave_for_good(driver: Driver) -> None:
    driver.beat("a", 0, instance_id="i")
    driver.beat("a", LEAVE_EPOCH, instance_id="i")
    assert not driver.consumer().members
    assert driver.beat("b", 0, instance_id="i").fault is None


# Restarts


def test_a_group_goes_on_after_a_restart(driver: Driver) -> None:
    pair(driver)
    driver.restart(down_ms=100_000)
    assert driver.beat("a", 3).fault is None
    driver.wait(44_999)
    assert len(driver.consumer().members) == 2, "sessions begin anew"
    driver.wait(1)
    assert driver.consumer().state == "Assigning" or len(driver.consumer().members) < 2


# Epochs that are in no record


def moved_without_a_record(driver: Driver) -> None:
    """Members `a` and `b` keep what they have when `c` comes for another topic. Both are told epoch 4."""
    pair(driver)
    driver.beat("c", 0, subscribed_topics=("events",))
    written = len(driver.log)
    for member_id in "ab":
        moved = driver.beat(member_id, 3)
        assert (moved.fault, moved.member_epoch, moved.assignment, moved.comes_early) == (None, 4, None, False)
    assert len(driver.log) == written
    assert driver.consumer().state == "Stable"


def test_a_member_that_keeps_what_it_has_is_moved_without_a_record_and_believed_after_a_restart(driver: Driver) -> None:
    moved_without_a_record(driver)
    driver.restart()
    assert {member.member_id: member.member_epoch for member in driver.consumer().members} == {"a": 3, "b": 3, "c": 4}
    assert driver.consumer().state == "Reconciling"
    for member_id in "ab":
        again = driver.beat(member_id, 4)
        assert (again.fault, again.member_epoch, again.assignment) == (None, 4, None)
    assert driver.consumer().state == "Stable"
    for says in (None, owned(driver, orders=[0, 1])):
        assert driver.beat("a", 3, owned=says).fault is Fault.FENCED_MEMBER_EPOCH, "it was told 4"


def test_a_member_whose_answer_got_lost_is_moved_again_after_a_restart(driver: Driver) -> None:
    moved_without_a_record(driver)
    driver.restart()
    moved = driver.beat("a", 3)
    assert (moved.fault, moved.member_epoch) == (None, 4)


def test_offsets_are_committed_and_fetched_at_an_epoch_that_is_in_no_record(driver: Driver) -> None:
    moved_without_a_record(driver)
    driver.restart()
    assert driver.commit(5, member="a", generation=4) is None
    driver.topics.put("free", 1)
    assert driver.commit(5, member="a", generation=4, topic="free") is None, "nobody holds it"
    assert driver.commit(5, member="a", generation=4, partition=2) is Fault.STALE_MEMBER_EPOCH, "`b` holds it"
    assert driver.commit_in_transaction(7, member="a", generation=4) is None
    assert driver.fetch(member_id="a", member_epoch=4).fault is None
    assert driver.commit(6, member="a", generation=5) is Fault.STALE_MEMBER_EPOCH
    assert driver.commit_in_transaction(7, member="a", generation=5) is Fault.ILLEGAL_GENERATION
    assert driver.fetch(member_id="a", member_epoch=5).fault is Fault.STALE_MEMBER_EPOCH


@pytest.mark.parametrize("dies", [False, True])
def test_with_an_epoch_before_the_last_told_nothing_is_committed_where_nobody_reads(driver: Driver, dies: bool) -> None:
    moved_without_a_record(driver)
    assert driver.commit(100, member="b", generation=4, partition=2) is None
    driver.beat("b", LEAVE_EPOCH)
    if dies:
        driver.restart()
    assert driver.commit(50, member="a", generation=3, partition=2) is Fault.STALE_MEMBER_EPOCH
    assert driver.commit_in_transaction(7, 50, member="a", generation=3, partition=2) is Fault.ILLEGAL_GENERATION
    assert driver.committed(partition=2) == 100
    assert driver.commit(5, member="a", generation=3) is None, "it has held that since 2"
    told = driver.beat("a", 4)
    assert driver.commit(101, member="a", generation=told.member_epoch, partition=2) is None


def several_times_moved_without_a_record(driver: Driver) -> int:
    """`b` said at 3 that it has nothing, was given [2, 3] at 3, and keeps them up to this epoch. `e` is to get one."""
    pair(driver)
    for _ in range(2):
        driver.beat("d", 0, subscribed_topics=("events",))
        driver.beat("d", LEAVE_EPOCH)
        driver.wait(0)
        for member_id in "ab":
            told = driver.beat(member_id, group_of(driver).members[member_id].member_epoch)
    driver.beat("e", 0)
    return told.member_epoch


@pytest.mark.parametrize("late_epoch", [3, 4])
def test_a_late_heartbeat_frees_nothing_after_a_restart(driver: Driver, late_epoch: int) -> None:
    told_epoch = several_times_moved_without_a_record(driver)
    driver.restart()
    for _ in range(2):
        late = driver.beat("b", late_epoch, owned={}, rebalance_timeout_ms=60_000, subscribed_topics=("orders",))
        assert (late.fault, driver.named(late)) == (None, {"orders": [2, 3]})
        assert not driver.named(driver.beat("e", told_epoch + 1))
    went_on = driver.beat("b", told_epoch)
    assert (went_on.fault, went_on.member_epoch, driver.named(went_on)) == (None, told_epoch, {"orders": [2]})
    assert driver.beat("b", late_epoch, owned={}).fault is Fault.FENCED_MEMBER_EPOCH
    assert driver.beat("b", told_epoch, owned=owned(driver, orders=[2])).member_epoch == told_epoch + 1
    assert driver.named(driver.beat("e", told_epoch + 1)) == {"orders": [3]}


def test_a_member_that_was_told_nothing_newer_is_told_the_newest_after_a_restart(driver: Driver) -> None:
    told_epoch = several_times_moved_without_a_record(driver)
    driver.restart()
    for _ in range(2):
        again = driver.beat("b", 3)
        assert (again.fault, again.member_epoch) == (None, told_epoch), "the answer may get lost"
    assert driver.named(driver.beat("b", told_epoch)) == {"orders": [2]}


def test_an_epoch_that_was_never_told_is_not_believed(driver: Driver) -> None:
    moved_without_a_record(driver)
    driver.restart()
    assert driver.beat("a", 5).fault is Fault.FENCED_MEMBER_EPOCH, "there is no such target"
    driver.beat("d", 0)
    assert driver.consumer().assignment_epoch == 5
    assert driver.beat("a", 5).fault is Fault.FENCED_MEMBER_EPOCH, "the target takes something away"
    assert driver.beat("a", 4).fault is None


def test_a_member_that_is_believed_goes_on_from_the_epoch_that_it_was_told(driver: Driver) -> None:
    moved_without_a_record(driver)
    driver.beat("d", 0)
    driver.restart()
    told = driver.beat("a", 4, owned=owned(driver, orders=[0, 1]))
    (kept,) = (driver.named(told) or {})["orders"]
    assert (told.fault, told.member_epoch) == (None, 4), "it has to let go of something first"
    driver.restart()
    done = driver.beat("a", 4, owned=owned(driver, orders=[kept]))
    assert (done.fault, done.member_epoch) == (None, 5)
    assert driver.beat("a", 4, owned=owned(driver, orders=[kept])).member_epoch == 5, "the answer may have got lost"


def test_a_heartbeat_that_makes_the_target_and_raises_moves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    driver.beat("a", 0)
    driver.beat("c", 0, subscribed_topics=("events",))
    assert driver.consumer().state == "Assigning"
    driver.now_ms += 2_000

    def keep_session(*everything: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(ConsumerDecisions, "_keep_session", keep_session)
        driver.beat("a", 2)
    assert group_of(driver).members["a"].member_epoch == 2
    assert driver.beat("a", 2).member_epoch == 3


def test_a_target_that_is_half_written_takes_no_told_epoch_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(GroupSettings(consumer_times=assigned_at_once))
    moved_without_a_record(driver)
    monkeypatch.setattr(consumer_decisions, "TARGETS_AT_ONCE", 1)
    driver.beat("d", 0)
    while group_of(driver).members["a"].has_just(group_of(driver).target["a"]):
        driver.take(driver.machine.expire(driver.now_ms))
    assert driver.consumer().assignment_epoch == 4
    driver.restart()
    assert driver.beat("a", 4, owned=owned(driver, orders=[0, 1])).fault is None


def test_a_member_that_has_to_let_go_in_time_has_no_more_of_it_if_it_is_heard_of_while_sessions_begin_anew(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "RESUMED_AT_ONCE", 1)
    driver.beat("first", 0, subscribed_topics=("events",))
    driver.beat("a", 0, rebalance_timeout_ms=20_000)
    driver.beat("b", 0)
    driver.beat("a", 3, owned=owned(driver, orders=ALL))
    assert group_of(driver).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    driver.restart()
    driver.take(driver.machine.expire(driver.now_ms))
    driver.beat("a", 3)
    for _ in range(4):
        driver.wait(5_000)
        driver.beat("a", 3)
    assert "a" not in group_of(driver).members


def test_a_member_that_has_to_let_go_is_still_waited_for_after_a_restart(driver: Driver) -> None:
    driver.beat("a", 0, rebalance_timeout_ms=20_000)
    driver.beat("b", 0)
    driver.beat("a", 2, owned=owned(driver, orders=ALL))
    driver.restart()
    assert driver.named(driver.beat("b", 3)) is None
    driver.wait(20_000)
    assert [member.member_id for member in driver.consumer().members] == ["b"]


def test_a_member_in_a_state_of_a_later_version_must_start_anew(driver: Driver) -> None:
    driver.beat("a", 0)
    group = driver.machine._groups["g"]
    assert isinstance(group, ConsumerGroup)
    group.put(group.members["a"]._replace(state=MemberState.UNKNOWN, member_epoch=1))
    assert driver.beat("a", 1, owned=owned(driver, orders=ALL)).fault is Fault.FENCED_MEMBER_EPOCH
    assert driver.beat("a", 0).fault is None


# Describing


def test_a_group_is_described_with_what_members_hold_and_what_they_shall(driver: Driver) -> None:
    assert driver.consumer().fault is Fault.GROUP_ID_NOT_FOUND
    driver.beat("a", 0, rack_id="r")
    driver.beat("b", 0)
    driver.beat("a", 2, owned=owned(driver, orders=ALL))
    facts = driver.consumer()
    assert (facts.state, facts.epoch, facts.assignment_epoch, facts.assignor) == ("Reconciling", 3, 3, "uniform")
    first = facts.members[0]
    assert (first.member_id, first.rack_id, first.member_epoch, first.client_id) == ("a", "r", 2, "c")
    assert first.subscribed_topics == ("orders",)
    assert [(held.topic, held.partitions) for held in first.assigned] == [("orders", (0, 1, 2, 3))]
    assert [(held.topic, held.partitions) for held in first.target] == [("orders", (0, 1))]
    assert not first.uses_classic_protocol
    assert driver.classic().fault is Fault.GROUP_ID_NOT_FOUND


def test_partitions_of_topics_that_are_gone_are_not_shown() -> None:
    driver = Driver(topics=Topics(orders=1))
    driver.beat("a", 0)
    driver.topics.remove("orders")
    assert tuple(driver.consumer().members[0].assigned) == ()


def test_a_groups_own_times_hold_for_it_from_its_next_heartbeat_on() -> None:
    times = {"g": ConsumerTimes(10_000, 1_000, 0), "other": ConsumerTimes(heartbeat_interval_ms=900)}
    driver = Driver(GroupSettings(consumer_times=lambda group_id: times.get(group_id, ConsumerTimes())))
    assert driver.beat("a", 0).heartbeat_interval_ms == 1_000
    assert driver.beat("b", 0, group="other").heartbeat_interval_ms == 900
    driver.wait(10_001)
    assert driver.consumer().state == "Empty"
    assert driver.consumer("other").state == "Stable"
    assert driver.beat("a", 0).heartbeat_interval_ms == 1_000
    driver.wait(ALONE_MS)
    times["g"] = ConsumerTimes(20_000, 2_000, 0)
    assert driver.beat("a", driver.consumer().epoch).heartbeat_interval_ms == 2_000
    driver.wait(10_001)
    assert driver.consumer().state == "Stable"


def test_a_target_looks_at_a_topic_once_for_each_subscription_and_not_for_each_member(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks_of_a_join_after(members: int, group: str) -> int:
        for number in range(members):
            driver.beat(f"m{number}", 0, group)
        asked: list[str] = []
        by_name = driver.topics.by_name

        def ask(name: str) -> TopicFacts | None:
            asked.append(name)
            return by_name(name)

        with monkeypatch.context() as patched:
            patched.setattr(driver.topics, "by_name", ask)
            driver.beat("late", 0, group)
        return len(asked)

    assert looks_of_a_join_after(40, "large") == looks_of_a_join_after(2, "small")


def test_a_member_of_thousands_of_topics_looks_up_none_of_them_if_nothing_has_changed_since_its_target_was_made(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(3_000)]
    for name in names:
        driver.topics.put(name, 2)
    driver.beat("a", 0, subscribed_topics=None, subscribed_regex="t.*")
    for _ in turns(driver):
        pass
    looked_up: list[bytes] = []
    name_of = driver.topics.name_of

    def look_up(topic_id: bytes) -> str | None:
        looked_up.append(topic_id)
        return name_of(topic_id)

    with monkeypatch.context() as patched:
        patched.setattr(driver.topics, "name_of", look_up)
        answer = driver.beat("a", 1)
    assert not looked_up
    assert driver.named(answer) == {name: [0, 1] for name in names}
    given = group_of(driver).members["a"].assigned.values()
    assert len({id(each) for each in given}) == 1, "topics with the same partitions share what says since when"


def test_topics_of_an_instance_that_leaves_for_a_while_share_what_says_since_when(driver: Driver) -> None:
    names = tuple(f"t{number}" for number in range(100))
    for name in names:
        driver.topics.put(name, 2)
    driver.beat("a", 0, instance_id="i", subscribed_topics=names)
    driver.beat("a", STATIC_LEAVE_EPOCH, instance_id="i")
    given = group_of(driver).members["a"].assigned.values()
    assert [dict(each) for each in given] == [{0: 0, 1: 0}] * len(names)
    assert len({id(each) for each in given}) == 1
