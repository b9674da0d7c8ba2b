"""Static members (KIP-345) keep their place over restarts, and only one process is the instance."""

import pytest

from service.groups.commands import DeleteOffsets, JoinReply, LeavingMember
from service.groups.verdicts import Fault
from tests.service.groups.driver import Driver, assignment


@pytest.fixture
def driver() -> Driver:
    return Driver()


def static_group(driver: Driver, *instances: str) -> list[JoinReply]:
    """A stable group of these instances, the leader first, each assigned its own name."""
    tokens = {instance: driver.start_join(instance_id=instance) for instance in instances}
    driver.wait(7_000)
    replies = {instance: driver.answers[token] for instance, token in tokens.items()}
    leader = next(instance for instance, reply in replies.items() if reply.leader == reply.member_id)
    for instance, reply in replies.items():
        if instance != leader:
            driver.sync(reply, instance_id=instance)
    names = {reply.member_id: instance.encode() for instance, reply in replies.items()}
    driver.sync(replies[leader], assignments=names, instance_id=leader)
    return [replies[leader], *(reply for instance, reply in replies.items() if instance != leader)]


def test_an_instance_joins_without_asking_for_an_id(driver: Driver) -> None:
    (leader,) = static_group(driver, "i1")
    assert leader.member_id.startswith("i1-")
    assert leader.members[0].instance_id == "i1"


def test_a_restarted_instance_takes_up_its_place_without_a_rebalance(driver: Driver) -> None:
    leader, _ = static_group(driver, "i1", "i2")
    back = driver.join(instance_id="i2")
    assert (back.fault, back.generation, back.leader, back.members) == (None, 1, leader.member_id, ())
    assert driver.sync(back, instance_id="i2").assignment == b"i2"
    assert driver.heartbeat(leader, instance_id="i1") is None


def test_a_restarted_leader_is_told_that_all_is_assigned(driver: Driver) -> None:
    static_group(driver, "i1", "i2")
    back = driver.join(instance_id="i1")
    assert back.skip_assignment
    assert back.leader == back.member_id
    assert {member.instance_id for member in back.members} == {"i1", "i2"}


def test_a_restarted_leader_that_could_not_be_told_so_is_left_to_follow(driver: Driver) -> None:
    leader, _ = static_group(driver, "i1", "i2")
    back = driver.join(instance_id="i1", can_skip_assignment=False)
    assert (back.leader, back.members, back.skip_assignment) == (leader.member_id, (), False)


def test_a_replacement_survives_a_restart_of_the_broker(driver: Driver) -> None:
    static_group(driver, "i1", "i2")
    back = driver.join(instance_id="i2")
    driver.restart()
    assert driver.heartbeat(back, instance_id="i2") is None
    assert driver.sync(back, instance_id="i2").assignment == b"i2"


def test_a_restarted_instance_that_subscribes_to_other_topics_is_protected_like_any_other(driver: Driver) -> None:
    static_group(driver, "i1", "i2")
    driver.join(instance_id="i2", topics=("events",))
    driver.commit(topic="events", member=driver.join(instance_id="i2", topics=("events",)).member_id, generation=1)
    deleted = driver.ask(DeleteOffsets("g", (("events", (0,)),)))
    assert deleted.topics == (("events", ((0, Fault.GROUP_SUBSCRIBED_TO_TOPIC),)),)
    driver.restart()


def test_the_older_process_of_an_instance_is_fenced_everywhere(driver: Driver) -> None:
    _, old = static_group(driver, "i1", "i2")
    driver.join(instance_id="i2")
    fenced = Fault.FENCED_INSTANCE_ID
    assert driver.heartbeat(old, instance_id="i2") is fenced
    assert driver.sync(old, instance_id="i2").fault is fenced
    assert driver.join(member=old.member_id, instance_id="i2").fault is fenced
    assert driver.commit(member=old.member_id, generation=1, instance_id="i2") is fenced
    assert driver.leave(LeavingMember(old.member_id, "i2")).members[0].fault is fenced
    assert driver.heartbeat(old) is Fault.UNKNOWN_MEMBER_ID


def test_requests_of_the_older_process_that_are_parked_are_answered_fenced(driver: Driver) -> None:
    leader, old = static_group(driver, "i1", "i2")
    parked = driver.start_join(member=leader.member_id, instance_id="i1")
    driver.start_join(instance_id="i1")
    assert driver.answers[parked].fault is Fault.FENCED_INSTANCE_ID
    joined = driver.start_join(member=old.member_id, instance_id="i2")
    waiting = driver.answers[joined]
    synced = driver.ask_sync_later(waiting) if waiting.leader != waiting.member_id else None
    assert synced is None or synced not in driver.answers
    driver.start_join(instance_id="i2")
    if synced is not None:
        assert driver.answers[synced].fault is Fault.FENCED_INSTANCE_ID


def test_a_replacement_that_changes_the_protocol_starts_a_rebalance(driver: Driver) -> None:
    tokens = [driver.start_join(instance_id=name, assignors=("range", "sticky")) for name in ("i1", "i2")]
    driver.wait(7_000)
    first, second = (driver.answers[token] for token in tokens)
    driver.sync(second, instance_id="i2")
    driver.sync(first, instance_id="i1")
    assert first.protocol_name == "range"
    driver.start_join(instance_id="i2", assignors=("sticky",))
    assert driver.classic().state == "PreparingRebalance"


def test_a_replacement_before_the_assignment_starts_a_rebalance(driver: Driver) -> None:
    """The leader may be assigning to the old id at this moment."""
    tokens = [driver.start_join(instance_id=name) for name in ("i1", "i2")]
    driver.wait(7_000)
    driver.start_join(instance_id="i2")
    assert driver.classic().state == "PreparingRebalance"
    assert driver.sync(driver.answers[tokens[0]], instance_id="i1").fault is Fault.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("moment", ["preparing", "completing", "removed"])
def test_a_replacement_during_a_rebalance_survives_a_restart_of_the_broker(driver: Driver, moment: str) -> None:
    """Else the instance is fenced in favour of its former process, for good."""
    leader, former = static_group(driver, "i1", "i2")
    driver.start_join(instance_id="i3")
    if moment == "completing":
        driver.start_join(member=leader.member_id, instance_id="i1")
        driver.start_join(member=former.member_id, instance_id="i2")
    elif moment == "removed":
        driver.leave(LeavingMember("", "i2"))
    driver.start_join(instance_id="i2")
    driver.restart()
    (present,) = [member.member_id for member in driver.classic().members if member.instance_id == "i2"]
    assert present != former.member_id


def test_a_static_member_that_misses_a_rebalance_stays_a_member_but_may_not_commit(driver: Driver) -> None:
    leader, late = static_group(driver, "i1", "i2")
    token = driver.start_join(member=leader.member_id, instance_id="i1", rebalance_timeout_ms=5_000)
    for _ in range(12):
        driver.wait(5_000)
        driver.heartbeat(late, instance_id="i2")
    assert driver.answers[token].generation == 2
    assert len(driver.answers[token].members) == 2
    stale = Fault.ILLEGAL_GENERATION
    assert driver.commit(member=late.member_id, generation=1, instance_id="i2") is stale
    assert driver.heartbeat(late, instance_id="i2") is stale


def test_a_group_of_static_members_of_whom_none_rejoins_waits_for_their_sessions(driver: Driver) -> None:
    leader, late = static_group(driver, "i1", "i2")
    driver.leave(LeavingMember(leader.member_id, "i1"))
    driver.wait(9_000)
    driver.heartbeat(late, instance_id="i2")
    driver.wait(9_999)
    assert len(driver.classic().members) == 1
    driver.wait(60_000)
    assert driver.classic().state == "Empty"


def test_an_operator_removes_an_instance_by_its_name(driver: Driver) -> None:
    leader, _ = static_group(driver, "i1", "i2")
    left = driver.leave(LeavingMember("", "i2"), LeavingMember("", "nix")).members
    assert [each.fault for each in left] == [None, Fault.UNKNOWN_MEMBER_ID]
    assert driver.heartbeat(leader, instance_id="i1") is Fault.REBALANCE_IN_PROGRESS


def test_an_unknown_instance_is_not_a_member(driver: Driver) -> None:
    (leader,) = static_group(driver, "i1")
    assert driver.heartbeat(leader, instance_id="other") is Fault.UNKNOWN_MEMBER_ID
    assert driver.join(member=leader.member_id, instance_id="other").fault is Fault.UNKNOWN_MEMBER_ID


def cooperative_group(driver: Driver) -> dict[str, JoinReply]:
    """A stable group of i1 and i2, of whom i1 joined with partitions 0 and 1 and has still to let go of 1."""
    tokens = {
        "i1": driver.start_join(instance_id="i1", owned=(("orders", [0, 1]),)),
        "i2": driver.start_join(instance_id="i2"),
    }
    driver.wait(7_000)
    replies = {instance: driver.answers[token] for instance, token in tokens.items()}
    given = {replies["i1"].member_id: assignment(orders=[0]), replies["i2"].member_id: assignment(orders=[])}
    leader, follower = sorted(replies, key=lambda instance: replies[instance].leader != replies[instance].member_id)
    driver.sync(replies[follower], instance_id=follower)
    driver.sync(replies[leader], assignments=given, instance_id=leader)
    return replies


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_restarted_instance_was_to_let_go_of_is_assigned_anew(driver: Driver, restarts: bool) -> None:
    """Its former process would have joined again to say so; the new one has nothing to let go of."""
    replies = cooperative_group(driver)
    if restarts:
        driver.restart()
    back = driver.start_join(instance_id="i1")
    assert back not in driver.answers
    driver.start_join(member=replies["i2"].member_id, instance_id="i2")
    assert driver.answers[back].generation == 2


def test_a_restarted_instance_that_was_to_let_go_of_nothing_takes_up_its_place(driver: Driver) -> None:
    replies = cooperative_group(driver)
    rejoined = driver.start_join(member=replies["i1"].member_id, instance_id="i1", owned=(("orders", [0]),))
    driver.start_join(member=replies["i2"].member_id, instance_id="i2")
    second = driver.answers[rejoined]
    given = {replies["i1"].member_id: assignment(orders=[0]), replies["i2"].member_id: assignment(orders=[1])}
    for instance in sorted(replies, key=lambda each: replies[each].member_id == second.leader):
        reply = second._replace(member_id=replies[instance].member_id)
        driver.sync(reply, assignments=given, instance_id=instance)
    assert driver.join(instance_id="i1").generation == 2
