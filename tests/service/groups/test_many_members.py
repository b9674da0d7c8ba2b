"""Groups of many members: what is done for each of them is done for some of them in one turn of the loop."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.groups import classic_decisions, coordinator, migration, records, resuming
from service.groups.assignment_round import STEPS_AT_ONCE
from service.groups.classic_group import ClassicGroup
from service.groups.commands import (
    LEAVE_EPOCH,
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteOffsets,
    JoinReply,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
)
from service.groups.consumer_group import ConsumerGroup, ResolvedRegex
from service.groups.deadlines import Deadlines
from service.groups.migration import Migration
from service.groups.settings import GroupSettings
from service.groups.topics import fingerprint
from service.groups.verdicts import Fault
from tests.service.groups import driver as driver_module
from tests.service.groups.driver import PENDING, Driver, Topics, assigned_at_once, assignment, subscription

MANY = 250


@pytest.fixture
def driver() -> Driver:
    return Driver(GroupSettings(consumer_times=assigned_at_once))


def classic_group(driver: Driver, group: str = "g", members: int = MANY, **changes: Any) -> list[JoinReply]:
    tokens = [driver.start_join(group, driver.member_id(group), **changes) for _ in range(members)]
    driver.wait(6_000)
    joined: list[JoinReply] = [driver.answers[token] for token in tokens]
    assignments = {reply.member_id: assignment(orders=[]) for reply in joined}
    for reply in joined:
        if reply.member_id != reply.leader:
            driver.ask_sync_later(reply, group)
    leader = next(reply for reply in joined if reply.member_id == reply.leader)
    driver.sync(leader, group, assignments | {leader.member_id: assignment(orders=[0, 1, 2, 3])})
    driver.wait(0)
    return joined


@pytest.fixture
def counted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[int]]:
    """Begins to count the calls of a function: how many there were in each turn since then."""

    def count(owner: Any, name: str) -> list[int]:
        calls, called, take = [0], getattr(owner, name), driver.take

        def call(*arguments: Any, **named: Any) -> Any:
            calls[-1] += 1
            return called(*arguments, **named)

        def end_turn(decision: Any) -> None:
            take(decision)
            calls.append(0)

        monkeypatch.setattr(driver_module, "REPLAYED_AT_EVERY_STEP", 0)  # or it would be counted, too
        monkeypatch.setattr(owner, name, call)
        monkeypatch.setattr(driver, "take", end_turn)
        return calls

    return count


Counted = Callable[[Any, str], list[int]]


def test_the_members_of_a_large_group_are_made_ready_in_turns_before_it_turns(driver: Driver, counted: Counted) -> None:
    classic_group(driver)
    read, put = counted(migration, "read_subscription"), counted(ConsumerGroup, "put")
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.beat("d", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.listed()["g"][0] == "classic"
    driver.wait(0)
    assert driver.beat("c", 0).fault is None
    assert sum(read) == MANY
    assert max(read) <= migration.PREPARED_AT_ONCE
    assert sum(put) <= MANY + 2  # the group is made once, and not a second time when its records are applied
    assert max(put) <= migration.PREPARED_AT_ONCE * migration.PUT_A_STEP
    assert len(driver.consumer().members) == MANY + 1
    driver.check_replay()


def test_members_of_many_topics_are_put_into_the_new_group_by_what_they_have(driver: Driver, counted: Counted) -> None:
    topics = [f"t{number}" for number in range(MANY)]
    for topic in topics:
        driver.topics.put(topic, FEW)
    tokens = [driver.start_join(member=driver.member_id(), topics=tuple(topics)) for _ in range(FEW)]
    driver.wait(6_000)
    joined = [driver.answers[token] for token in tokens]
    assignments = {reply.member_id: assignment(**{topic: [at] for topic in topics}) for at, reply in enumerate(joined)}
    driver.sync(next(reply for reply in joined if reply.member_id == reply.leader), assignments=assignments)
    held = counted(ConsumerGroup, "is_held")
    while driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS:
        driver.wait(0)
    assert driver.listed()["g"][0] == "consumer"
    assert sum(held) >= FEW * MANY
    assert max(held) <= migration.PREPARED_AT_ONCE * migration.PUT_A_STEP + MANY


def test_what_has_changed_since_a_group_was_made_ready_is_looked_at_again(driver: Driver, counted: Counted) -> None:
    joined = classic_group(driver)
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    driver.wait(0)
    changed = joined[7].member_id
    driver.start_join(member=changed, topics=("events",))
    driver.leave(joined[9].member_id)
    read = counted(migration, "read_subscription")
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    driver.wait(0)
    assert driver.beat("c", 0).fault is None
    assert sum(read) == 1
    members = {member.member_id: member for member in driver.consumer().members}
    assert members[changed].subscribed_topics == ("events",)
    assert len(members) == MANY
    driver.check_replay()


def test_a_topic_that_was_made_again_meanwhile_is_not_assigned_by_its_old_id(driver: Driver) -> None:
    classic_group(driver)
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    driver.wait(0)
    old = driver.topics.id_of("orders")
    driver.topics.remove("orders")
    driver.topics.put("orders", 4)
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    driver.wait(0)
    assert driver.beat("c", 0).fault is None
    group = driver.machine._groups["g"]
    assert isinstance(group, ConsumerGroup)
    assert not any(old in member.assigned for member in group.members.values())


def test_a_join_that_is_refused_anyway_makes_nothing_ready(driver: Driver, counted: Counted) -> None:
    classic_group(driver)
    put = counted(ConsumerGroup, "put")
    for _ in range(3):
        refused = driver.beat("c", 0, subscribed_topics=None, subscribed_regex="(")
        assert refused.fault is Fault.INVALID_REGULAR_EXPRESSION
    driver.wait(0)
    assert sum(put) == 0


def test_why_a_group_can_not_turn_is_found_out_once(driver: Driver, counted: Counted) -> None:
    """As often as a client asks, until something changes."""
    joined = classic_group(driver)
    leaders_first = sorted(joined, key=lambda reply: reply.member_id != reply.leader)
    tokens = [driver.start_join(member=each.member_id) for each in leaders_first]
    driver.wait(0)
    driver.sync(driver.answers[tokens[0]], assignments={each.member_id: assignment(orders=[0]) for each in joined})
    read, put = counted(migration, "read_subscription"), counted(ConsumerGroup, "put")
    for _ in range(5):
        refused = driver.beat("c", 0)
        driver.wait(0)
    assert refused.fault is Fault.GROUP_ID_NOT_FOUND
    assert "one partition to two members" in (refused.message or "")
    assert (sum(read), sum(put)) == (MANY, 1)
    driver.leave(joined[7].member_id)
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS


def test_a_group_that_changes_between_any_two_heartbeats_is_turned_in_turns_nevertheless(
    driver: Driver, counted: Counted
) -> None:
    """It is held still for that: who joins is told to ask again."""
    joined = classic_group(driver, session_timeout_ms=300_000, rebalance_timeout_ms=300_000)
    asked, read = 0, counted(Migration, "_upgraded_member")
    while driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS:
        driver.wait(500)
        again = driver.start_join(member=joined[7].member_id, topics=("events", f"t{asked}"))
        asked += 1
    assert driver.listed()["g"][0] == "consumer"
    assert asked == migration.RESTLESS_MS // 500 + 1  # once more, while it is held
    assert driver.answers[again].fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    assert max(read) <= migration.PREPARED_AT_ONCE
    driver.check_replay()


def test_a_group_that_changes_now_and_then_and_can_not_turn_is_read_in_turns_each_time(
    driver: Driver, counted: Counted
) -> None:
    """It is not restless: each time it was found out why."""
    joined = classic_group(driver, session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000)
    leaders_first = sorted(joined, key=lambda reply: reply.member_id != reply.leader)
    read = counted(migration, "read_assignment")
    for number in range(4):
        tokens = [
            driver.start_join(member=each.member_id, topics=("orders", f"t{number}"), session_timeout_ms=1_800_000)
            for each in leaders_first
        ]
        driver.wait(0)
        leader = driver.answers[tokens[0]]
        driver.sync(leader, assignments={each.member_id: assignment(orders=[0]) for each in joined})
        read.append(0)
        while driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS:
            driver.wait(0)
        assert driver.listed()["g"][0] == "classic"
        driver.wait(migration.RESTLESS_MS + 1_000)
    assert sum(read) >= 4 * MANY
    assert max(read) <= migration.PREPARED_AT_ONCE
    assert driver.join(member=joined[3].member_id, topics=("t",)) == PENDING  # nothing holds it


def test_an_upgrade_that_raises_is_begun_anew(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    classic_group(driver)
    with monkeypatch.context() as broken:
        broken.delattr(migration, "read_subscription")
        with pytest.raises(NameError):
            driver.beat("c", 0)
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    driver.wait(0)
    assert driver.beat("c", 0).fault is None


def test_what_was_made_ready_is_forgotten_if_nobody_asks_again(driver: Driver, counted: Counted) -> None:
    classic_group(driver, session_timeout_ms=300_000)
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    driver.wait(migration.PREPARED_KEPT_MS)
    group = driver.machine._groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.upgrade is None
    assert driver.beat("c", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS


def first_told(driver: Driver, tokens: list[int]) -> JoinReply:
    """The first answer to these joins, while the others wait for theirs."""
    while not any(token in driver.answers for token in tokens):
        driver.now_ms = max(driver.machine.next_deadline_ms() or 0, driver.now_ms)
        take_turn(driver)
    told: JoinReply = next(driver.answers[token] for token in tokens if token in driver.answers)
    assert not all(token in driver.answers for token in tokens)
    return told


def test_what_a_leader_assigns_is_taken_up_when_all_members_have_been_told_of_the_generation(
    driver: Driver, counted: Counted
) -> None:
    """It is told first. Most of the group's record is noted while the others are told, some of them in each turn."""
    tokens = [driver.start_join("g", driver.member_id("g")) for _ in range(MANY)]
    noted = counted(records, "note_member")
    told = first_told(driver, tokens)
    assert told.member_id == told.leader
    assert driver.sync(told, assignments={told.leader: assignment(orders=[0])}) == PENDING
    syncing = driver.tokens
    assert driver.listed()["g"][1] == "CompletingRebalance"
    driver.wait(0)
    assert all(token in driver.answers for token in tokens)
    assert driver.answers[syncing].assignment == assignment(orders=[0])
    assert driver.listed()["g"][1] == "Stable"
    assert sum(noted) == 0  # they were when their joins were answered
    driver.check_replay()


def test_who_joins_while_others_have_still_to_be_told_ends_what_the_leader_has_assigned(driver: Driver) -> None:
    tokens = [driver.start_join("g", driver.member_id("g")) for _ in range(MANY)]
    told = first_told(driver, tokens)
    driver.sync(told, assignments={told.leader: assignment(orders=[0])})
    syncing = driver.tokens
    new = driver.member_id("g")
    assert driver.join("g", new) == PENDING
    driver.wait(0)
    assert driver.answers[syncing].fault is Fault.REBALANCE_IN_PROGRESS
    assert driver.listed()["g"][1] == "PreparingRebalance"


def test_a_generation_of_many_is_begun_in_one_turn_and_told_in_others(driver: Driver, counted: Counted) -> None:
    begun, told = counted(ClassicGroup, "begin_generation"), counted(ClassicGroup, "joined_members")
    assigned, answered = counted(ClassicGroup, "assign"), counted(classic_decisions, "_assigned")
    classic_group(driver)
    assert sum(begun) == sum(told) == sum(assigned) == 1
    assert not any(map(min, zip(begun, told, strict=False)))
    assert sum(answered) == MANY
    assert not any(map(min, zip(assigned, answered, strict=False)))


def upgraded(driver: Driver, **changes: Any) -> list[JoinReply]:
    """A group of many classic members and one of the consumer protocol, who is `c`."""
    joined = classic_group(driver, session_timeout_ms=300_000, **changes)
    driver.beat("c", 0)
    driver.wait(0)
    assert driver.beat("c", 0).fault is None
    driver.wait(0)
    return joined


def start_leaving(driver: Driver, member_id: str = "c") -> int:
    return driver.start(heartbeat(member_id, LEAVE_EPOCH))


def heartbeat(member_id: str, epoch: int, **changes: Any) -> ConsumerHeartbeat:
    said = ConsumerHeartbeat("g", member_id, epoch, None, None, -1, None, None, None, None, "c", "/127.0.0.1", "")
    return said._replace(**changes)


def take_turn(driver: Driver) -> None:
    driver.take(driver.machine.expire(driver.now_ms))


def test_a_large_group_turns_back_whole_in_turns(driver: Driver, counted: Counted) -> None:
    upgraded(driver)
    held = {member.member_id: member.assigned for member in group_of(driver).members.values() if member.assigned}
    made, noted = counted(ClassicGroup, "add"), counted(migration, "note_member")
    unassigned = counted(ConsumerGroup, "unassign")
    leaving = start_leaving(driver)
    assert leaving not in driver.answers  # until it is written that it has left
    driver.wait(0)
    assert sum(made) == MANY
    assert max(made) <= migration.DOWNGRADED_AT_ONCE
    assert max(noted) <= MANY + migration.DOWNGRADED_AT_ONCE  # of each it is asked how long it is
    assert sum(unassigned) == 0  # its tombstones are for those who read the log
    assert driver.answers[leaving].fault is None
    assert driver.listed()["g"][0] == "classic"
    members = {member.member_id: member for member in driver.classic().members}
    assert len(members) == MANY
    assert all(members[member_id].assignment != assignment() for member_id in held if member_id != "c")
    driver.check_replay()
    driver.restart()
    assert len(driver.classic().members) == MANY


def test_who_changes_or_goes_while_a_group_turns_back_is_as_it_says_last(driver: Driver) -> None:
    joined = upgraded(driver)
    leaving = start_leaving(driver)
    take_turn(driver)
    driver.join(member=joined[0].member_id, topics=("events",))
    gone = driver.start(LeaveGroup("g", (LeavingMember(joined[1].member_id, None),)))
    assert not {leaving, gone} & driver.answers.keys()
    new = driver.join(member=driver.member_id(), topics=("orders",)).member_id
    driver.wait(0)
    assert driver.answers[leaving].fault is driver.answers[gone].fault is None
    group = driver.machine._groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.members.keys() == {each.member_id for each in joined if each is not joined[1]} | {new}
    assert group.members[joined[0].member_id].metadata("range") == subscription(("events",))
    driver.check_replay()


def test_a_topic_that_goes_while_a_group_turns_back_is_in_no_assignment(driver: Driver) -> None:
    upgraded(driver)
    start_leaving(driver)
    while not any(member.noted for member in group_made_of(driver).members.values()):
        take_turn(driver)
    driver.topics.remove("orders")
    driver.topics.put("orders", 4)
    driver.wait(0)
    assert {member.assignment for member in driver.classic().members} == {assignment()}


def group_made_of(driver: Driver) -> ClassicGroup:
    begun = group_of(driver).downgrade
    assert isinstance(begun, migration.Downgrade)
    return begun.made


def test_a_member_that_joins_by_the_new_protocol_meanwhile_keeps_a_group_as_it_is(driver: Driver) -> None:
    upgraded(driver)
    leaving = start_leaving(driver)
    take_turn(driver)
    assert driver.beat("d", 0).fault is None
    driver.wait(0)
    assert driver.answers[leaving].fault is None
    assert driver.listed()["g"][0] == "consumer"
    assert "c" not in group_of(driver).members
    assert len(group_of(driver).members) == MANY + 1
    start_leaving(driver, "d")
    driver.wait(0)
    assert driver.listed()["g"][0] == "classic"
    driver.check_replay()


def test_a_group_whose_topics_change_all_the_time_does_not_turn_back_and_nobody_waits(driver: Driver) -> None:
    upgraded(driver)
    leaving = start_leaving(driver)
    begun_ms = driver.now_ms
    while leaving not in driver.answers:
        driver.topics.put(f"t{driver.now_ms}", 1)
        driver.now_ms += 100
        take_turn(driver)
    assert driver.now_ms < begun_ms + migration.DOWNGRADED_WITHIN_MS + 1_000
    assert driver.listed()["g"][0] == "consumer"
    assert "c" not in group_of(driver).members
    driver.wait(2_000)
    assert group_of(driver).assignment_epoch == group_of(driver).epoch


@pytest.mark.parametrize("bytes_max", [10_000, 40_000])
def test_a_group_that_is_too_large_for_one_batch_stays_a_consumer_group(
    driver: Driver, counted: Counted, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    upgraded(driver)
    monkeypatch.setattr(migration, "DOWNGRADE_BYTES_MAX", bytes_max)
    made = counted(ClassicGroup, "add")
    leaving = start_leaving(driver)
    driver.wait(0)
    assert driver.answers[leaving].fault is None
    assert (sum(made) == 0) is (bytes_max == 10_000)  # the tombstones alone are too many
    assert driver.listed()["g"][0] == "consumer"
    assert len(group_of(driver).members) == MANY
    driver.check_replay()


def test_a_coordinator_that_dies_while_a_group_turns_back_leaves_it_as_it_was(driver: Driver) -> None:
    upgraded(driver)
    leaving = start_leaving(driver)
    take_turn(driver)
    driver.restart()
    driver.wait(30_000)
    assert leaving not in driver.answers  # its client has lost the connection
    assert "c" in group_of(driver).members
    driver.wait(30_000)  # its session is over
    assert driver.listed()["g"][0] == "classic"
    assert len(driver.classic().members) == MANY


def test_a_classic_process_in_the_place_of_the_last_of_the_new_ones_turns_a_large_group_back(driver: Driver) -> None:
    classic_group(driver, session_timeout_ms=300_000)
    static: dict[str, Any] = {"instance_id": "i"}
    driver.beat("c", 0, **static)
    driver.wait(0)
    assert driver.beat("c", 0, **static).fault is None
    driver.wait(0)
    joined = driver.join(**static)
    assert joined.fault is None
    assert driver.listed()["g"][0] == "consumer"
    driver.wait(0)
    assert driver.listed()["g"][:2] == ("classic", "PreparingRebalance")
    members = driver.classic().members
    assert len(members) == MANY + 1
    assert joined.member_id in {member.member_id for member in members}
    driver.check_replay()


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_the_sessions_of_many_members_begin_anew_in_turns(
    driver: Driver, counted: Counted, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "classic":
        classic_group(driver)
    else:
        for number in range(MANY):
            driver.beat(f"m{number}", 0)
        driver.wait(0)
    monkeypatch.setattr(resuming, "RESUMED_AT_ONCE", 100)
    driver.restart()
    begun = counted(Deadlines, "set")
    driver.wait(0)
    assert sum(begun) >= MANY
    assert max(begun) <= 100 + 3  # and the deadlines of the group, and of the next turn
    driver.wait(60_000)
    assert driver.listed()["g"][1] == "Empty"


def test_groups_wake_in_turns_by_their_members(
    driver: Driver, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcde":
        classic_group(driver, name, 60, session_timeout_ms=300_000)
    monkeypatch.setattr(coordinator, "WOKEN_AT_ONCE", 100)
    driver.restart()
    begun = counted(Deadlines, "set")
    driver.wait(0)
    assert [turn // 60 for turn in begun if turn >= 60] == [2, 2, 1]


# Groups of many topics


TOPICS = 2 * STEPS_AT_ONCE
FEW = 20  # members: each has a part of the topics that is looked up in one turn


def many_topics() -> Driver:
    return Driver(GroupSettings(consumer_times=assigned_at_once), Topics(**{f"t{at}": 1 for at in range(TOPICS)}))


def join_all(driver: Driver, said: dict[str, Any]) -> None:
    for number in range(FEW):
        driver.beat(f"m{number:02}", 0, **said)
    driver.wait(0)


def go_on(driver: Driver) -> dict[str, int]:
    """Each member sends heartbeats until it has its part: how many partitions."""
    group = group_of(driver)
    for _ in range(3):
        for member_id, member in list(group.members.items()):
            answer = driver.beat(member_id, member.member_epoch)
            if answer.assignment is not None:
                driver.beat(member_id, answer.member_epoch, owned=answer.assignment)
        driver.wait(0)
    return {member_id: sum(map(len, member.assigned.values())) for member_id, member in group.members.items()}


BY_NAME: dict[str, Any] = {"subscribed_topics": tuple(f"t{at}" for at in range(TOPICS))}
BY_EXPRESSION: dict[str, Any] = {"subscribed_topics": (), "subscribed_regex": "t.*"}
by_either = pytest.mark.parametrize("said", [BY_NAME, BY_EXPRESSION], ids=["names", "expression"])


@by_either
def test_thousands_of_topics_are_looked_at_in_turns(driver: Driver, counted: Counted, said: dict[str, Any]) -> None:
    """When members join, when a topic is made, when a member goes, and after a restart."""
    for number in range(TOPICS):
        driver.topics.put(f"t{number}", 1)
    by_name, names = counted(Topics, "by_name"), counted(Topics, "name_of")
    join_all(driver, said)
    assert sum(go_on(driver).values()) == TOPICS
    driver.topics.put("t7", 2)
    driver.topics.put(f"t{TOPICS}", 1)
    driver.wait(11_000)
    go_on(driver)
    driver.beat("m00", LEAVE_EPOCH)
    driver.wait(0)
    given = go_on(driver)
    assert sum(given.values()) == TOPICS + (2 if said is BY_EXPRESSION else 1)
    assert max(given.values()) - min(given.values()) <= 1
    driver.restart()
    go_on(driver)
    assert sum(by_name) > 5 * TOPICS
    assert max(by_name) <= STEPS_AT_ONCE
    assert max(names) <= 2 * TOPICS / FEW + FEW
    driver.check_replay()


def test_a_look_raises_the_epoch_if_a_topic_has_changed_and_only_then() -> None:
    driver = many_topics()
    join_all(driver, BY_NAME)
    go_on(driver)
    before = driver.consumer()
    driver.topics.put("none of theirs", 1)
    driver.beat("m00", before.epoch)
    driver.wait(0)
    assert driver.consumer().epoch == before.epoch
    driver.topics.put("t7", 2)
    driver.beat("m00", before.epoch)
    assert driver.consumer().epoch == before.epoch  # it is being looked at
    driver.wait(0)
    facts = driver.consumer()
    assert facts.epoch == facts.assignment_epoch == before.epoch + 1


def test_an_epoch_that_was_raised_before_its_hash_was_known_is_not_raised_again() -> None:
    driver = many_topics()
    driver.beat("first", 0, subscribed_topics=("t1",))
    before = group_of(driver).metadata_hash
    driver.beat("m", 0, **BY_NAME)
    assert driver.consumer().epoch == 3
    assert group_of(driver).metadata_hash == before
    driver.wait(0)
    assert driver.consumer().epoch == driver.consumer().assignment_epoch == 3
    assert group_of(driver).metadata_hash == fingerprint(driver.topics, BY_NAME["subscribed_topics"])
    driver.check_replay()


def test_a_topic_that_grows_while_a_look_is_under_way_is_assigned() -> None:
    for turns in range(5):
        driver = many_topics()
        driver.beat("m", 0, **BY_NAME)
        for _ in range(turns):
            driver.take(driver.machine.expire(driver.now_ms))
        driver.topics.put("t7", 2)
        driver.topics.put("t2999", 2)
        driver.wait(0)
        go_on(driver)
        assert go_on(driver) == {"m": TOPICS + 2}, f"after {turns} turns"


def test_a_coordinator_that_dies_before_a_look_is_over_leaves_it_to_the_next() -> None:
    driver = many_topics()
    join_all(driver, BY_NAME)
    go_on(driver)
    driver.topics.put("t7", 2)
    driver.beat("m00", driver.consumer().epoch)
    driver.take(driver.machine.expire(driver.now_ms))
    driver.restart()
    go_on(driver)
    assert sum(go_on(driver).values()) == TOPICS + 1


def test_the_last_member_that_names_a_topic_takes_it_out_of_the_fingerprint() -> None:
    driver = many_topics()
    driver.beat("m", 0, **BY_NAME)
    driver.beat("n", 0, subscribed_topics=("t1", "t2"))
    driver.wait(0)
    driver.beat("m", LEAVE_EPOCH)
    driver.wait(0)
    assert group_of(driver).metadata_hash == fingerprint(driver.topics, ("t1", "t2"))
    driver.check_replay()


# Groups of many expressions


class LookedUp(dict[str, ResolvedRegex]):
    """Counts how often it is asked what an expression matches."""

    def count(self) -> None:
        """Does nothing: it is counted how often this is called."""

    def __getitem__(self, regex: str) -> ResolvedRegex:
        self.count()
        return super().__getitem__(regex)

    def get(self, regex: str, default: Any = None) -> Any:
        self.count()
        return super().get(regex, default)


def test_what_many_expressions_match_is_counted_and_not_looked_up_for_each_topic(
    driver: Driver, counted: Counted
) -> None:
    driver.set(replace(driver.settings, offsets_retention_check_interval_ms=30_000))
    driver.topics.put("plain", MANY)
    for number in range(MANY):
        driver.beat(f"m{number}", 0, subscribed_topics=None, subscribed_regex=f"orders|m{number}")
    driver.wait(20_000)
    group = group_of(driver)
    assert len(group.resolved) == MANY
    group.resolved = LookedUp(group.resolved)
    looks = counted(LookedUp, "count")
    driver.beat("new", 0, subscribed_topics=("another",))
    driver.beat("new", group.epoch, subscribed_topics=("other",))
    driver.beat("new", LEAVE_EPOCH)
    driver.topics.put("one more", 1)
    epoch = driver.beat("m0", group.members["m0"].member_epoch).member_epoch
    plain = driver.topics.id_of("plain")
    offsets = tuple(OffsetToCommit("plain", plain, partition, 5, 0, "") for partition in range(MANY))
    driver.ask(CommitOffsets("g", "m0", None, epoch, offsets))
    driver.ask(DeleteOffsets("g", tuple((f"none{number}", (0,)) for number in range(MANY))))
    assert sum(looks) < 20
    driver.wait(10_000)  # the committed offsets are looked at, and the expressions once, because there is a new topic
    assert max(looks) <= MANY


def test_topics_that_many_expressions_match_are_looked_up_once_for_a_target(driver: Driver, counted: Counted) -> None:
    for number in range(FEW):
        driver.topics.put(f"t{number}", 1)
    for number in range(MANY):
        driver.beat(f"m{number}", 0, subscribed_topics=None, subscribed_regex=f"t.*|m{number}")
    by_name = counted(Topics, "by_name")
    driver.wait(20_000)
    assert sum(map(len, group_of(driver).target.values())) == FEW
    assert sum(by_name) < FEW * MANY / 2


def group_of(driver: Driver) -> ConsumerGroup:
    group = driver.machine._groups["g"]
    assert isinstance(group, ConsumerGroup)
    return group
