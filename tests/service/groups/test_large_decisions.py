"""No decision writes more than a batch of the groups' topic may hold (`max.message.bytes`), however long the names are
that members choose. What need not be one batch is cut. What must be one is refused, and leaves the machine as it was.
"""

from typing import Any

import pytest

from service.groups.commands import LEAVE_EPOCH, STATIC_LEAVE_EPOCH, JoinReply, LeavingMember
from service.groups.consumer_group import ConsumerGroup
from service.groups.settings import GroupSettings
from service.groups.verdicts import BATCH_BYTES_MAX, Fault, MoreThanABatch
from tests.service.groups.driver import Driver, assigned_at_once, assignment, subscription

LONG = 32_000
MANY_NAMES = tuple(f"{number:06d}" + "x" * 243 for number in range(3_600))  # 900,000 bytes


@pytest.fixture
def driver() -> Driver:
    return Driver(GroupSettings(consumer_times=assigned_at_once))


def group_of(driver: Driver, group_id: str) -> ConsumerGroup:
    group = driver.machine.group(group_id)
    assert isinstance(group, ConsumerGroup)
    return group


def classic_members(driver: Driver, count: int, **changes: Any) -> list[JoinReply]:
    """A stable classic group of static members."""
    tokens = [driver.start_join(instance_id=f"i{number}", **changes) for number in range(count)]
    driver.wait(7_000)
    joined = [driver.answers[token] for token in tokens]
    assert {reply.generation for reply in joined} == {1}
    leader = next(reply for reply in joined if reply.leader == reply.member_id)
    place = joined.index(leader)
    given = {reply.member_id: assignment(orders=[number]) for number, reply in enumerate(joined)}
    assert driver.sync(leader, assignments=given, instance_id=f"i{place}").fault is None
    return joined


@pytest.mark.parametrize("stands", [False, True], ids=["no group", "a group"])
def test_a_member_all_of_whose_names_are_long_is_refused_and_nothing_changes(driver: Driver, stands: bool) -> None:
    group_id = "g" * LONG
    if stands:
        driver.beat("first", 0, group_id)
    before, batches = driver.machine.durable_facts(), len(driver.log)
    long = {"instance_id": "i" * LONG, "rack_id": "r" * LONG, "client_id": "c" * LONG}
    for _ in range(2):
        with pytest.raises(MoreThanABatch):
            driver.beat("m" * LONG, 0, group_id, subscribed_topics=MANY_NAMES, **long)
        assert (driver.machine.durable_facts(), len(driver.log)) == (before, batches)
    assert driver.beat("m" * LONG, 0, group_id).fault is None
    driver.wait(60_000)
    assert driver.most_bytes <= BATCH_BYTES_MAX


def test_an_empty_classic_group_keeps_its_pending_joins_if_who_would_replace_it_is_refused(driver: Driver) -> None:
    pending = driver.member_id()
    long = {"instance_id": "i" * LONG, "rack_id": "r" * LONG, "client_id": "c" * LONG, "client_host": "h" * LONG}
    with pytest.raises(MoreThanABatch):
        driver.beat("m" * LONG, 0, subscribed_topics=MANY_NAMES, server_assignor="uniform", **long)
    driver.wait(11_000)
    assert driver.join(member=pending).fault is Fault.UNKNOWN_MEMBER_ID, "its time was over"


def test_parked_members_wait_on_if_who_would_turn_their_group_is_refused(driver: Driver) -> None:
    token = driver.start_join(instance_id="i0", client_id="c" * 30_000)
    with pytest.raises(MoreThanABatch):
        driver.beat("m" * LONG, 0, subscribed_topics=MANY_NAMES, rack_id="r" * LONG, client_id="c" * LONG)
    assert token not in driver.answers
    driver.wait(7_000)
    assert driver.answers[token].generation == 1


def test_a_static_member_with_very_many_names_is_replaced_in_one_batch(driver: Driver) -> None:
    """Its names were written twice: 1.8 megabytes."""
    static = {"instance_id": "i"}
    driver.beat("old", 0, subscribed_topics=MANY_NAMES, **static)
    driver.wait(10)
    driver.beat("old", STATIC_LEAVE_EPOCH, **static)
    driver.wait(10)
    again = driver.beat("new", 0, subscribed_topics=(*MANY_NAMES[1:], "orders"), client_host="another", **static)
    assert again.fault is None
    driver.wait(10)
    driver.beat("new", again.member_epoch, client_host="another", **static)
    driver.check_replay()
    (member,) = driver.consumer().members
    assert (member.member_id, member.client_host, [part.topic for part in member.target]) == (
        "new",
        "another",
        ["orders"],
    )
    assert driver.most_bytes <= BATCH_BYTES_MAX


def test_a_step_to_very_many_partitions_waits_if_it_does_not_fit_beside_what_else_is_written(driver: Driver) -> None:
    for number in range(20):
        driver.topics.put(f"t{number}", 6_000)
    names = tuple(f"t{number}" for number in range(20))
    joined = driver.beat("m", 0, subscribed_topics=names)
    driver.wait(10)
    epoch = joined.member_epoch
    driver.topics.put("t0", 6_001)  # so that the heartbeat raises the epoch, too
    for _ in range(4):
        beat = driver.beat("m", epoch, owned={}, client_host=f"host{epoch}")
        assert beat.fault is None
        epoch = beat.member_epoch
        driver.wait(1_000)
    group = group_of(driver, "g")
    assert group.members["m"].is_reconciled_to(group.epoch)
    assert sum(map(len, group.members["m"].assigned.values())) == 120_001


def test_a_small_group_with_long_ids_has_its_target_written_in_batches_that_fit(driver: Driver) -> None:
    """A heartbeat of a small group writes the target itself. For 60 members with such ids that was four megabytes."""
    group_id = "g" * LONG
    driver.topics.remove("orders")
    epochs: dict[str, int] = {}
    for number in range(60):
        member_id = f"{number:02d}" + "m" * LONG
        epochs[member_id] = driver.beat(member_id, 0, group_id).member_epoch
    driver.topics.put("orders", 100)
    for _ in range(6):
        driver.wait(1_000)
        for member_id, epoch in epochs.items():
            beat = driver.beat(member_id, epoch, group_id, owned={})
            epochs[member_id] = beat.member_epoch or epoch
    group = group_of(driver, group_id)
    assert group.assignment_epoch == group.epoch
    assert all(member.assigned for member in group.members.values())
    assert driver.most_bytes <= BATCH_BYTES_MAX


def test_a_target_of_members_with_very_many_partitions_is_written_in_batches_that_fit(driver: Driver) -> None:
    for number in range(20):
        driver.topics.put(f"t{number}", 11_000)
    names = tuple(f"t{number}" for number in range(20))
    driver.beat("a", 0, subscribed_topics=names)
    driver.beat("b", 0, subscribed_topics=names)
    driver.wait(2_000)
    group = group_of(driver, "g")
    assert group.assignment_epoch == group.epoch
    assert sum(len(part) for target in group.target.values() for part in target.values()) == 220_000
    assert driver.most_bytes <= BATCH_BYTES_MAX


def test_what_many_expressions_match_is_written_in_batches_that_fit(driver: Driver) -> None:
    """Each record has the group's id: those of 60 expressions made a batch of two megabytes."""
    group_id = "g" * LONG
    for number in range(60):
        joined = driver.beat(f"m{number}", 0, group_id, subscribed_topics=None, subscribed_regex=f"{number}|orders")
        assert joined.fault is None
    driver.wait(10_000)
    driver.beat("m0", 1, group_id)
    driver.wait(5_000)
    group = group_of(driver, group_id)
    assert [resolved.topics for resolved in group.resolved.values()] == [{"orders"}] * 60
    assert driver.most_bytes <= BATCH_BYTES_MAX


def test_members_with_long_ids_that_leave_together_are_removed_in_batches_that_fit(driver: Driver) -> None:
    group_id = "g" * LONG
    for number in range(100):
        driver.beat(f"m{number}", 0, group_id)
        driver.wait(1)
    driver.beat("stays", 0, group_id)
    left = driver.leave(*(f"m{number}" for number in range(100)), group=group_id)
    assert [each.fault for each in left.members] == [None] * 100
    driver.wait(100)
    assert list(group_of(driver, group_id).members) == ["stays"]
    assert driver.most_bytes <= BATCH_BYTES_MAX


@pytest.mark.parametrize("by", ["consumer", "classic"])
def test_a_member_that_joins_again_before_it_is_removed_stays(driver: Driver, by: str) -> None:
    ids = [f"{number:02}" + "m" * LONG for number in range(12)]
    for member_id in (*ids, "stays"):
        driver.beat(member_id, 0)
    driver.leave(*ids)
    back, *_ = waiting = [each for each in ids if each in group_of(driver, "g").members]
    assert len(waiting) > 1
    if by == "consumer":
        driver.beat(back, 0)
    else:
        driver.join(member_id=back)
    driver.wait(100)
    assert set(group_of(driver, "g").members) == {"stays", back}


@pytest.mark.parametrize("by", ["leaving", "a classic process"])
def test_a_small_group_whose_classic_record_is_too_large_stays_a_consumer_group(driver: Driver, by: str) -> None:
    said = subscription(("orders",)) + b"u" * 60_000
    changes: dict[str, Any] = {"protocols": (("range", said),)}
    driver.topics.put("orders", 40)
    classic_members(driver, 8, **changes)
    driver.beat("c", 0, instance_id="c")
    driver.wait(0)
    assert driver.beat("c", 0, instance_id="c").fault is None
    for number in range(8, 30):
        driver.wait(0)
        joined = driver.join(instance_id=f"i{number}", **changes)
        assert joined.fault is None
    if by == "leaving":
        assert driver.beat("c", LEAVE_EPOCH, instance_id="c").fault is None
    else:
        assert driver.join(instance_id="c", **changes).fault is None
    assert driver.listed()["g"][0] == "consumer"
    assert len(group_of(driver, "g").members) == (30 if by == "leaving" else 31)
    assert "c" not in group_of(driver, "g").members
    driver.wait(5_000)
    assert driver.most_bytes <= BATCH_BYTES_MAX


def test_a_static_member_that_comes_back_with_more_than_its_group_can_record_makes_it_rebalance(driver: Driver) -> None:
    joined = classic_members(driver, 2)
    again = driver.start_join(instance_id="i0", protocols=(("range", subscription(("orders",)) + b"u" * 1_200_000),))
    assert again not in driver.answers
    assert driver.heartbeat(joined[1], instance_id="i1") is Fault.REBALANCE_IN_PROGRESS
    driver.wait(120_000)
    driver.leave(LeavingMember("", "i0"))
    driver.check_replay()
    assert driver.most_bytes <= BATCH_BYTES_MAX
