"""Groups move between the protocols while their members live, one by one."""

from typing import Any

import pytest

from service.groups.classic_group import ClassicGroup
from service.groups.commands import LEAVE_EPOCH, ConsumerHeartbeatReply, JoinReply, LeavingMember
from service.groups.consumer_protocol import read_assignment
from service.groups.settings import ConsumerTimes, GroupSettings
from service.groups.verdicts import Fault
from service.wire.codec import encode_data
from service.wire.messages import ConsumerProtocolAssignment
from tests.service.groups.driver import Driver, assigned_at_once, assignment

ALL = [0, 1, 2, 3]


@pytest.fixture
def driver() -> Driver:
    return Driver(GroupSettings(consumer_times=assigned_at_once))


def classic_group(driver: Driver, **changes: Any) -> JoinReply:
    """A stable group of one classic member that has all partitions of `orders`."""
    token = driver.start_join(member="" if changes.get("instance_id") else driver.member_id(), **changes)
    driver.wait(3_000)
    reply = driver.answers[token]
    assert isinstance(reply, JoinReply)
    driver.sync(reply, assignments={reply.member_id: assignment(orders=ALL)})
    return reply


def partitions(data: bytes) -> dict[str, list[int]]:
    read = read_assignment(data)
    assert read is not None
    return {topic: list(numbers) for topic, numbers in read.partitions}


def owned(driver: Driver, numbers: list[int]) -> dict[bytes, tuple[int, ...]]:
    return {driver.topics.id_of("orders"): tuple(numbers)}


def mixed_group(driver: Driver, **changes: Any) -> JoinReply:
    """A classic member with half of the partitions, at generation 2, and the member `c` with the other half."""
    classic = classic_group(driver, **changes)
    assert driver.beat("c", 0).fault is None
    driver.join(member=classic.member_id, owned=(("orders", ALL),), **changes)
    joined = driver.join(member=classic.member_id, owned=(("orders", [0, 1]),), **changes)
    assert isinstance(joined, JoinReply)
    assert partitions(driver.sync(joined).assignment) == {"orders": [0, 1]}
    assert driver.named(driver.beat("c", 2)) == {"orders": [2, 3]}
    return joined


def test_a_classic_members_generation_is_always_in_a_record(driver: Driver) -> None:
    joined = mixed_group(driver)
    driver.beat("d", 0, subscribed_topics=("events",))
    assert driver.commit(member=joined.member_id, generation=3) is Fault.ILLEGAL_GENERATION, "it was told of none"
    assert driver.heartbeat(joined) is Fault.REBALANCE_IN_PROGRESS
    again = driver.join(member=joined.member_id, owned=(("orders", [0, 1]),))
    assert again.generation == joined.generation + 1
    driver.restart()
    assert partitions(driver.sync(again).assignment) == {"orders": [0, 1]}
    assert driver.heartbeat(again) is None


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("instance_id", [None, "i"])
def test_a_member_that_goes_on_by_the_old_protocol_has_its_generation_in_a_record(
    driver: Driver, dies: bool, instance_id: str | None
) -> None:
    driver.beat("a", 0, instance_id=instance_id)
    driver.beat("c", 0, subscribed_topics=("events",))
    assert driver.beat("a", 2, instance_id=instance_id).member_epoch == 3
    if dies:
        driver.restart()
    joined = driver.join(member="a", instance_id=instance_id, owned=(("orders", ALL),))
    assert (joined.fault, joined.generation) == (None, 3)
    driver.restart()
    assert driver.heartbeat(joined, instance_id=instance_id) is None
    assert driver.commit(5, member="a", generation=3, instance_id=instance_id) is None
    assert partitions(driver.sync(joined, instance_id=instance_id).assignment) == {"orders": ALL}


def test_a_classic_member_that_goes_on_by_the_new_protocol_keeps_what_it_has(driver: Driver) -> None:
    joined = mixed_group(driver)
    driver.beat("d", 0, subscribed_topics=("events",))
    went_on = driver.beat(joined.member_id, joined.generation, owned=owned(driver, [0, 1]))
    assert (went_on.fault, went_on.member_epoch, went_on.assignment) == (None, joined.generation + 1, None)
    assert not any(member.uses_classic_protocol for member in driver.consumer().members)
    driver.restart()
    assert driver.beat(joined.member_id, went_on.member_epoch).fault is None


# Upgrading


def test_a_group_whose_members_fill_more_than_one_batch_stays_classic(driver: Driver) -> None:
    """Half of them written, and half lost in a crash, would be half a group."""
    tokens = [driver.start_join(instance_id=f"i{number}", client_id="c" * 30_000) for number in range(34)]
    driver.wait(7_000)
    refused = driver.beat("c", 0)
    assert refused.fault is Fault.GROUP_ID_NOT_FOUND
    assert "more than one batch" in (refused.message or "")
    assert {driver.answers[token].generation for token in tokens} == {1}
    driver.leave(LeavingMember("", "i0"))  # which makes it small enough
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    driver.wait(0)
    assert driver.beat("c", 0).fault is None


def test_an_empty_classic_group_turns_into_a_consumer_group_and_keeps_its_offsets(driver: Driver) -> None:
    driver.commit(11)
    driver.member_id()
    assert driver.named(driver.beat("c", 0)) == {"orders": ALL}
    assert driver.listed() == {"g": ("consumer", "Stable", "consumer")}
    assert driver.committed() == 11
    driver.restart()
    assert driver.listed() == {"g": ("consumer", "Stable", "consumer")}
    assert driver.committed() == 11
    driver.wait(10_000)


def test_a_classic_group_is_upgraded_by_the_first_member_of_the_new_protocol(driver: Driver) -> None:
    classic = classic_group(driver)
    joined = driver.beat("c", 0)
    assert (joined.fault, joined.member_epoch, driver.named(joined)) == (None, 2, {})
    shown = {member.member_id: member for member in driver.consumer().members}
    assert shown[classic.member_id].uses_classic_protocol
    assert [held.partitions for held in shown[classic.member_id].assigned] == [(0, 1, 2, 3)]
    assert driver.heartbeat(classic) is Fault.REBALANCE_IN_PROGRESS
    driver.restart()
    assert driver.heartbeat(classic) is Fault.REBALANCE_IN_PROGRESS


def test_a_classic_member_lets_go_by_rejoining_and_the_new_one_gets_it(driver: Driver) -> None:
    mixed_group(driver)
    assert driver.consumer().state == "Stable"


def test_members_waiting_in_the_classic_group_are_sent_to_join_again(driver: Driver) -> None:
    tokens = [driver.start_join(member=driver.member_id()) for _ in range(2)]
    driver.beat("c", 0)
    assert [driver.answers[token].fault for token in tokens] == [Fault.REBALANCE_IN_PROGRESS] * 2


def test_followers_waiting_for_their_assignment_are_sent_to_join_again(driver: Driver) -> None:
    tokens = [driver.start_join(member=driver.member_id()) for _ in range(2)]
    driver.wait(6_000)
    follower = driver.ask_sync_later(driver.answers[tokens[1]])
    driver.beat("c", 0)
    assert driver.answers[follower].fault is Fault.REBALANCE_IN_PROGRESS


def test_a_member_that_came_since_the_last_generation_is_upgraded_though_it_does_not_know_its_protocol(
    driver: Driver,
) -> None:
    classic_group(driver, assignors=("range", "sticky"))
    late = driver.start_join(member=driver.member_id(), assignors=("sticky",))
    assert driver.beat("c", 0).fault is None
    assert driver.answers[late].fault is Fault.REBALANCE_IN_PROGRESS
    assert len(driver.consumer().members) == 3


def test_a_member_that_upgrades_a_group_without_a_generation_is_not_told_the_epoch_to_join_by(driver: Driver) -> None:
    driver.start_join(member=driver.member_id())
    reply = driver.beat("c", 0, subscribed_topics=None, subscribed_regex="o.*")
    assert reply.fault is None
    assert reply.member_epoch > 0


def test_what_a_classic_member_may_not_have_let_go_of_yet_is_still_its_own_when_the_group_is_upgraded(
    driver: Driver,
) -> None:
    """A cooperative one says what it owns as it joins; the answer by which it loses some of it may not have come."""
    classic = classic_group(driver)
    joined = driver.join(member=classic.member_id, owned=(("orders", ALL),))
    driver.sync(joined, assignments={joined.member_id: assignment(orders=[0, 1])})
    assert driver.named(driver.beat("c", 0)) == {}
    driver.join(member=classic.member_id, owned=(("orders", [0, 1]),))
    given = driver.named(driver.beat("c", 3))
    assert given is not None
    assert set(given["orders"]) == {2, 3}


def test_an_instance_taken_to_the_new_protocol_in_the_middle_of_a_rebalance_gets_its_part(driver: Driver) -> None:
    """Its subscription is as before, and nobody has assigned anything yet. With Kafka nobody reads anything then."""
    driver.start_join(instance_id="i")
    driver.wait(3_000)
    assert driver.classic().state == "CompletingRebalance"
    assert driver.named(driver.beat("c", 0, instance_id="i")) == {"orders": ALL}


def test_an_instance_taken_to_the_new_protocol_gets_what_its_topic_has_got_since(driver: Driver) -> None:
    classic_group(driver, instance_id="i")
    driver.topics.put("orders", 6)
    assert driver.named(driver.beat("c", 0, instance_id="i")) == {"orders": [*ALL, 4, 5]}


def test_an_instance_taken_to_the_new_protocol_in_a_stable_group_takes_its_place_at_once(driver: Driver) -> None:
    classic = classic_group(driver, instance_id="i")
    taken = driver.beat("c", 0, instance_id="i")
    assert driver.named(taken) == {"orders": ALL}
    assert taken.member_epoch == classic.generation


def test_a_refused_member_upgrades_nothing(driver: Driver) -> None:
    classic = classic_group(driver)
    reply = driver.beat("c", 0, subscribed_topics=None, subscribed_regex="(")
    assert reply.fault is Fault.INVALID_REGULAR_EXPRESSION
    assert driver.heartbeat(classic) is None


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_the_policy_can_forbid_upgrades(policy: str) -> None:
    driver = Driver(GroupSettings(group_consumer_migration_policy=policy))
    classic_group(driver)
    assert driver.beat("c", 0).fault is Fault.GROUP_ID_NOT_FOUND


def test_groups_that_can_not_be_understood_are_not_upgraded(driver: Driver) -> None:
    driver.stable_group("connect", protocol_type="connect", session_timeout_ms=60_000)
    driver.stable_group("odd", protocols=(("range", b"\x00"),), session_timeout_ms=60_000)
    user_data = (1).to_bytes(2, "big") + encode_data(ConsumerProtocolAssignment([], b"mine"), 1)
    custom = driver.start_join("custom", driver.member_id("custom"))
    driver.wait(3_000)
    reply = driver.answers[custom]
    driver.sync(reply, "custom", {reply.member_id: user_data})
    for group in ("connect", "odd", "custom"):
        assert driver.beat("c", 0, group).fault is Fault.GROUP_ID_NOT_FOUND, group
        assert driver.listed()[group][0] == "classic"


def test_a_group_whose_assignor_gave_a_partition_to_two_members_is_not_upgraded(driver: Driver) -> None:
    tokens = [driver.start_join(member=driver.member_id()) for _ in range(2)]
    driver.wait(6_000)
    replies = [driver.answers[token] for token in tokens]
    leader = next(reply for reply in replies if reply.member_id == reply.leader)
    driver.sync(leader, assignments={reply.member_id: assignment(orders=ALL) for reply in replies})
    assert driver.beat("c", 0).fault is Fault.GROUP_ID_NOT_FOUND
    assert driver.listed()["g"][0] == "classic"


def test_a_group_too_large_for_the_new_protocol_is_not_upgraded() -> None:
    driver = Driver(GroupSettings(group_consumer_max_size=1))
    driver.stable_group(members=2)
    assert driver.beat("c", 0).fault is Fault.GROUP_ID_NOT_FOUND


# Classic members of a consumer group


def test_a_classic_member_joins_a_consumer_group(driver: Driver) -> None:
    driver.beat("c", 0)
    asked = driver.join()
    assert asked.fault is Fault.MEMBER_ID_REQUIRED
    joined = driver.join(member=asked.member_id)
    assert (joined.fault, joined.generation, joined.leader, joined.members) == (None, 3, "", ())
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert partitions(driver.sync(joined).assignment) == {}
    assert driver.heartbeat(joined) is None
    driver.beat("c", 2, owned=owned(driver, ALL))
    driver.beat("c", 2, owned=owned(driver, [0, 1]))
    assert driver.heartbeat(joined) is Fault.REBALANCE_IN_PROGRESS, "its partitions are free now"


def test_a_client_of_old_joins_a_consumer_group_at_once(driver: Driver) -> None:
    driver.beat("c", 0)
    assert driver.join(requires_member_id=False).fault is None


def test_classic_members_of_a_consumer_group_are_checked(driver: Driver) -> None:
    joined = mixed_group(driver)
    assert driver.heartbeat(joined, generation=1) is Fault.ILLEGAL_GENERATION
    assert driver.heartbeat(joined, member_id="nobody") is Fault.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(joined, member_id="c") is Fault.UNKNOWN_MEMBER_ID, "it does not speak classic"
    assert driver.sync(joined, generation=1).fault is Fault.ILLEGAL_GENERATION
    assert driver.sync(joined, member_id="c").fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.sync(joined, protocol_name="sticky").fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.sync(joined, protocol_type="connect").fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(assignors=("sticky",)).fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(protocol_type="connect").fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.commit(11, member=joined.member_id, generation=2, speaks_consumer_protocol=False) is None
    assert driver.commit(member=joined.member_id, generation=3) is Fault.ILLEGAL_GENERATION
    assert driver.fetch(member_id=joined.member_id, member_epoch=1).fault is Fault.ILLEGAL_GENERATION


def test_a_subscription_that_can_not_be_read_is_no_subscription(driver: Driver) -> None:
    driver.beat("c", 0)
    unreadable = (("range", b"\x00"),)
    assert driver.join(requires_member_id=False, protocols=unreadable).fault is Fault.UNKNOWN_SERVER_ERROR
    assert len(driver.consumer().members) == 1


def test_a_full_consumer_group_refuses_classic_newcomers() -> None:
    driver = Driver(GroupSettings(group_consumer_max_size=1))
    driver.beat("c", 0)
    assert driver.join().fault is Fault.GROUP_MAX_SIZE_REACHED


def test_a_sync_is_refused_while_there_is_something_to_catch_up_with(driver: Driver) -> None:
    joined = mixed_group(driver)
    driver.beat("d", 0)
    assert driver.sync(joined).fault is Fault.REBALANCE_IN_PROGRESS


def test_a_classic_member_that_does_not_rejoin_in_time_is_removed(driver: Driver) -> None:
    joined = mixed_group(driver, rebalance_timeout_ms=20_000)
    driver.beat("d", 0)
    for _ in range(2):
        assert driver.heartbeat(joined) is Fault.REBALANCE_IN_PROGRESS
        driver.wait(9_999)
    assert driver.heartbeat(joined) is Fault.REBALANCE_IN_PROGRESS
    driver.wait(2)
    assert joined.member_id not in [member.member_id for member in driver.consumer().members]


def test_a_classic_member_that_never_syncs_is_removed(driver: Driver) -> None:
    driver.beat("c", 0)
    joined = driver.join(member=driver.join().member_id)
    for _ in range(6):
        driver.wait(9_999)
        driver.heartbeat(joined)
        driver.beat("c", 2, owned=owned(driver, ALL))
    driver.wait(10)
    assert driver.heartbeat(joined) is Fault.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("by_epoch", [False, True])
@pytest.mark.parametrize("awaited", ["sync", "join"])
def test_a_member_that_goes_on_by_the_new_protocol_is_not_expected_to_go_on_by_the_old_one(
    driver: Driver, awaited: str, by_epoch: bool
) -> None:
    if awaited == "sync":
        driver.beat("c", 0)
        joined = driver.join(member=driver.join().member_id, rebalance_timeout_ms=20_000)
    else:
        joined = mixed_group(driver, rebalance_timeout_ms=20_000)
        driver.beat("d", 0, subscribed_topics=("events",))
        assert driver.heartbeat(joined) is Fault.REBALANCE_IN_PROGRESS
    held = driver.beat(joined.member_id, joined.generation if by_epoch else 0)
    epoch = held.member_epoch
    for _ in range(10):
        driver.wait(4_000)
        for each in [member for member in driver.consumer().members if member.member_id != joined.member_id]:
            numbers = {facts.topic_id: facts.partitions for facts in each.assigned}
            driver.beat(each.member_id, each.member_epoch, owned=numbers)
        went_on = driver.beat(joined.member_id, epoch)
        assert went_on.fault is None
        epoch = went_on.member_epoch


def test_a_member_that_goes_on_by_the_new_protocol_must_let_go_in_the_time_that_it_has_said(driver: Driver) -> None:
    """It was to let go by joining again, and is not waited for because it does not join any more."""
    joined = mixed_group(driver, rebalance_timeout_ms=20_000)
    driver.beat("d", 0)
    driver.join(member=joined.member_id, owned=(("orders", [0, 1]),), rebalance_timeout_ms=20_000)
    for _ in range(3):
        assert driver.beat(joined.member_id, joined.generation, owned=owned(driver, [0, 1])).fault is None
        driver.wait(6_666)
    driver.wait(3)
    assert driver.beat(joined.member_id, joined.generation).fault is Fault.UNKNOWN_MEMBER_ID


def test_a_member_that_goes_on_by_the_old_protocol_is_not_held_to_the_times_of_the_new_one(driver: Driver) -> None:
    driver.beat("a", 0, rebalance_timeout_ms=20_000)
    driver.beat("b", 0)
    driver.beat("a", 2, owned=owned(driver, ALL))  # has to let go of half of them
    joined = driver.join(member="a", owned=(("orders", [0, 1]),), rebalance_timeout_ms=60_000)
    assert partitions(driver.sync(joined).assignment) == {"orders": [0, 1]}
    for _ in range(10):
        driver.wait(4_000)
        driver.beat("b", 3)
        assert driver.heartbeat(joined) is None


def test_a_classic_member_has_the_session_it_asked_for(driver: Driver) -> None:
    joined = mixed_group(driver)
    driver.wait(9_999)
    assert driver.heartbeat(joined) is None
    driver.wait(10_000)
    assert driver.heartbeat(joined) is Fault.UNKNOWN_MEMBER_ID


def test_static_members_join_consumer_groups_too(driver: Driver) -> None:
    driver.beat("c", 0)
    joined = driver.join(instance_id="i")
    assert joined.fault is None
    assert driver.join(member="other", instance_id="i").fault is Fault.FENCED_INSTANCE_ID
    assert driver.join(member=joined.member_id, instance_id="j").fault is Fault.UNKNOWN_MEMBER_ID
    again = driver.join(instance_id="i")
    assert again.member_id != joined.member_id
    assert driver.heartbeat(joined, instance_id="i") is Fault.FENCED_INSTANCE_ID
    assert len(driver.consumer().members) == 2


def test_of_an_instance_s_processes_of_two_protocols_the_last_one_to_join_is_the_member(driver: Driver) -> None:
    """Whichever of them lives: a join may come after that of its successor. It is so in Kafka, which refuses a process
    with UNRELEASED_INSTANCE_ID only if both speak the new protocol.
    """
    driver.beat("c", 0)
    classic = driver.join(instance_id="i")
    assert driver.beat("late", 0, instance_id="i").fault is None
    assert driver.heartbeat(classic, instance_id="i") is Fault.FENCED_INSTANCE_ID
    assert driver.join(member=classic.member_id, instance_id="i").fault is Fault.FENCED_INSTANCE_ID
    again = driver.join(instance_id="i")
    assert driver.heartbeat(again, instance_id="i") is None
    assert driver.beat("late", again.generation, instance_id="i").fault is Fault.FENCED_INSTANCE_ID
    driver.restart()
    assert driver.heartbeat(again, instance_id="i") is None


# Downgrading


def test_the_group_is_classic_again_when_the_last_new_member_leaves(driver: Driver) -> None:
    joined = mixed_group(driver)
    assert driver.beat("c", LEAVE_EPOCH) == ConsumerHeartbeatReply(member_id="c", member_epoch=LEAVE_EPOCH)
    assert driver.listed() == {"g": ("classic", "PreparingRebalance", "consumer")}
    assert driver.heartbeat(joined) is Fault.REBALANCE_IN_PROGRESS
    token = driver.start_join(member=joined.member_id)
    assert driver.answers[token].leader == joined.member_id


@pytest.mark.parametrize("restarts", [False, True])
def test_what_the_last_new_member_had_is_read_though_the_coordinator_dies_before_the_next_generation(
    driver: Driver, restarts: bool
) -> None:
    """Once nothing but the record told of the rebalance, and the record did not."""
    joined = mixed_group(driver)
    driver.beat("c", LEAVE_EPOCH)
    if restarts:
        driver.restart()
    assert driver.heartbeat(joined) is Fault.REBALANCE_IN_PROGRESS
    leader = driver.join(member=joined.member_id)
    assert leader.leader == joined.member_id
    driver.sync(leader, assignments={leader.member_id: assignment(orders=ALL)})
    driver.restart()
    assert driver.heartbeat(leader) is None


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_classic_member_was_about_to_let_go_is_still_its_own_when_the_group_turns_classic_and_back(
    driver: Driver, restarts: bool
) -> None:
    classic = classic_group(driver)
    driver.beat("c", 0)
    driver.join(member=classic.member_id, owned=(("orders", ALL),))  # is told to let go of half, and has not yet
    driver.beat("c", LEAVE_EPOCH)
    if restarts:
        driver.restart()
    assert driver.named(driver.beat("d", 0)) == {}


def test_a_downgraded_group_knows_its_assignment_after_a_restart(driver: Driver) -> None:
    mixed_group(driver)
    driver.beat("c", LEAVE_EPOCH)
    driver.restart()
    (member,) = driver.classic().members
    assert partitions(member.assignment) == {"orders": [0, 1]}


def test_the_group_is_classic_again_when_the_last_new_members_session_ends(driver: Driver) -> None:
    joined = mixed_group(driver)
    for _ in range(5):
        driver.wait(9_999)
        driver.heartbeat(joined)
    assert driver.listed()["g"][0] == "classic"


def test_the_group_is_classic_again_when_a_classic_member_takes_the_last_new_ones_place(driver: Driver) -> None:
    epoch = driver.beat("c", 0, instance_id="i").member_epoch
    other = driver.join(instance_id="j")
    for numbers in (ALL, [0, 1]):
        assert driver.beat("c", epoch, instance_id="i", owned=owned(driver, numbers)).fault is None
    other = driver.join(member=other.member_id, instance_id="j")
    assert partitions(driver.sync(other, instance_id="j").assignment) == {"orders": [2, 3]}
    taken = driver.join(instance_id="i")
    assert taken.fault is None
    assert driver.listed() == {"g": ("classic", "Stable", "consumer")}
    assert partitions(driver.sync(taken, instance_id="i").assignment) == {"orders": [0, 1]}
    assert driver.heartbeat(other, instance_id="j") is None
    driver.restart()
    assert driver.listed() == {"g": ("classic", "Stable", "consumer")}
    # Nobody has led the group so far. It is told that it does, so that somebody sees when topics grow.
    assert (taken.leader, taken.skip_assignment) == (taken.member_id, True)
    assert {member.member_id for member in taken.members} == {taken.member_id, other.member_id}
    driver.start_join(member=taken.member_id, instance_id="i")
    assert driver.listed() == {"g": ("classic", "PreparingRebalance", "consumer")}


def test_an_old_client_that_takes_the_last_new_members_place_begins_a_rebalance_that_tells_who_leads(
    driver: Driver,
) -> None:
    assert driver.named(driver.beat("c", 0, instance_id="i")) == {"orders": ALL}
    taken = driver.join(instance_id="i", can_skip_assignment=False)
    assert driver.heartbeat(taken, instance_id="i") is Fault.REBALANCE_IN_PROGRESS
    again = driver.join(member=taken.member_id, instance_id="i", can_skip_assignment=False)
    assert again.leader == taken.member_id


@pytest.mark.parametrize("restarts", [False, True])
def test_taking_the_last_new_members_place_tells_another_of_the_partitions_that_it_waited_for(
    driver: Driver, restarts: bool
) -> None:
    """Otherwise nobody reads them: the group is stable, the other is said to have them, and was never told."""
    driver.beat("c", 0, instance_id="i")
    other = driver.join(instance_id="j")
    assert partitions(driver.sync(other, instance_id="j").assignment) == {}
    driver.join(instance_id="i")
    if restarts:
        driver.restart()
    assert driver.heartbeat(other, instance_id="j") is Fault.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("restarts", [False, True])
def test_taking_the_last_new_members_place_takes_nothing_from_a_member_that_still_reads_it(
    driver: Driver, restarts: bool
) -> None:
    classic_group(driver, instance_id="j")
    driver.beat("c", 0, instance_id="i")  # is to get half of the partitions, once the other has let go of them
    taken = driver.join(instance_id="i")
    assert driver.sync(taken, instance_id="i").fault is not None
    if restarts:
        driver.restart()
    assert driver.named(driver.beat("d", 0)) == {}


def test_taking_the_last_new_members_place_with_other_topics_starts_a_rebalance(driver: Driver) -> None:
    driver.beat("c", 0, instance_id="i")
    driver.join(instance_id="j")
    driver.join(instance_id="i", topics=("events",))
    assert driver.listed() == {"g": ("classic", "PreparingRebalance", "consumer")}
    driver.restart()


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_the_policy_can_forbid_downgrades(policy: str) -> None:
    driver = Driver(GroupSettings(group_consumer_migration_policy=policy, consumer_times=assigned_at_once))
    driver.beat("c", 0)
    driver.join(member=driver.join().member_id)
    driver.beat("c", LEAVE_EPOCH)
    assert driver.listed()["g"][0] == "consumer"


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
@pytest.mark.parametrize("interval_ms", [0, 1_000])
def test_what_the_last_new_member_had_goes_to_the_classic_ones_where_the_group_may_not_turn_back(
    policy: str, interval_ms: int
) -> None:
    times = ConsumerTimes(assignment_interval_ms=interval_ms)
    driver = Driver(GroupSettings(consumer_times=lambda group_id: times))
    joined = mixed_group(driver)
    driver.set(GroupSettings(group_consumer_migration_policy=policy, consumer_times=lambda group_id: times))
    driver.wait(interval_ms)
    driver.beat("c", LEAVE_EPOCH)
    assert owned_in_the_end(driver, joined) == ALL


def test_a_topic_that_grows_is_read_whole_by_classic_members_alone_in_a_consumer_group(driver: Driver) -> None:
    joined = mixed_group(driver)
    driver.set(GroupSettings(group_consumer_migration_policy="upgrade", consumer_times=assigned_at_once))
    driver.beat("c", LEAVE_EPOCH)
    assert owned_in_the_end(driver, joined) == ALL
    driver.topics.put("orders", 6)
    assert owned_in_the_end(driver, joined._replace(generation=3)) == [*ALL, 4, 5]


def owned_in_the_end(driver: Driver, member: JoinReply) -> list[int]:
    """What a classic member owns after a minute of heartbeats, joining again whenever it is told to."""
    numbers = [0, 1]
    for _ in range(20):
        driver.wait(3_000)
        if driver.heartbeat(member) is Fault.REBALANCE_IN_PROGRESS:
            member = driver.join(member=member.member_id, owned=(("orders", numbers),))
            numbers = partitions(driver.sync(member).assignment).get("orders", [])
    return numbers


def test_members_of_both_protocols_leave_by_the_classic_api(driver: Driver) -> None:
    joined = mixed_group(driver)
    left = driver.leave(joined.member_id, LeavingMember("", "nix"), "nobody", "c").members
    assert [each.fault for each in left] == [None, Fault.UNKNOWN_MEMBER_ID, Fault.UNKNOWN_MEMBER_ID, None]
    assert driver.consumer().state == "Empty"


def test_a_leaving_member_must_be_the_instance_it_names(driver: Driver) -> None:
    driver.beat("c", 0, instance_id="i")
    assert driver.leave(LeavingMember("x", "i")).members[0].fault is Fault.FENCED_INSTANCE_ID
    assert driver.leave(LeavingMember("", "i")).members[0].fault is None


def test_an_empty_consumer_group_turns_into_a_classic_group_and_keeps_its_offsets(driver: Driver) -> None:
    driver.beat("c", 0)
    driver.commit(11, member="c", generation=2)
    driver.beat("c", LEAVE_EPOCH)
    member = driver.member_id()
    token = driver.start_join(member=member)
    driver.wait(3_000)
    assert driver.answers[token].generation == 1
    assert driver.committed() == 11
    driver.restart()
    assert driver.listed() == {"g": ("classic", "Empty", "")}
    assert driver.committed() == 11


def test_an_id_of_the_consumer_group_is_unknown_once_it_is_empty(driver: Driver) -> None:
    driver.beat("c", 0)
    driver.beat("c", LEAVE_EPOCH)
    assert driver.join(member="c").fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.listed()["g"][0] == "consumer"


def test_a_classic_member_that_says_no_rebalance_timeout_has_that_of_its_session(driver: Driver) -> None:
    driver.beat("a", 0)
    driver.join(member=driver.member_id(), rebalance_timeout_ms=-1)
    driver.beat("a", LEAVE_EPOCH)  # the group turns into a classic one
    group = driver.machine.group("g")
    assert isinstance(group, ClassicGroup)
    assert [member.rebalance_timeout_ms for member in group.members.values()] == [10_000]


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_member_that_goes_on_by_the_new_protocol_with_the_id_it_was_given_is_missed_when_it_falls_silent(
    driver: Driver, is_empty: bool
) -> None:
    """With the id of MEMBER_ID_REQUIRED, before it has joined with it."""
    if not is_empty:
        token = driver.start_join(member=driver.member_id(), session_timeout_ms=1_800_000)
        driver.wait(7_000)
        joined = driver.answers[token]
        driver.sync(joined, assignments={joined.member_id: assignment(orders=[0, 1, 2, 3])})
    given = driver.member_id()
    assert driver.beat(given, 0).fault is None
    assert given in {member.member_id for member in driver.consumer().members}
    driver.wait(60_000)
    assert given not in driver.machine._groups["g"].members
