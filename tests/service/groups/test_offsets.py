"""Committing, fetching, deleting and expiring offsets; who may, and what waits for a transaction."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import service.groups.classic_group
from service.groups import forgetting
from service.groups.commands import (
    LEAVE_EPOCH,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    FaultReply,
    FetchOffsets,
    ForgetTopic,
    OffsetToCommit,
    PartitionsAsked,
)
from service.groups.coordinator import FAILED_AGAIN_MS
from service.groups.offsets import CommittedOffset, Offsets
from service.groups.settings import GroupSettings
from service.groups.verdicts import Fault
from tests.service.groups.driver import Driver, Topics

DAY_MS = 24 * 60 * 60_000


@pytest.fixture
def driver() -> Driver:
    return Driver()


# Who may commit


def test_nobody_in_particular_may_commit_to_a_group_without_members(driver: Driver) -> None:
    assert driver.commit(11) is None
    assert driver.committed() == 11
    assert driver.listed() == {"g": ("classic", "Empty", "")}


def test_a_member_may_commit_in_its_generation(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    assert driver.commit(11, member=leader.member_id, generation=1) is None
    assert driver.committed() == 11


def test_commits_of_strangers_and_of_other_generations_are_refused(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    assert driver.commit(member="nobody", generation=1) is Fault.UNKNOWN_MEMBER_ID
    assert driver.commit(member=leader.member_id, generation=2) is Fault.ILLEGAL_GENERATION
    assert driver.commit(member=leader.member_id, generation=-1) is Fault.ILLEGAL_GENERATION
    assert driver.commit() is Fault.UNKNOWN_MEMBER_ID, "a group with members is theirs"
    assert driver.commit(instance_id="i") is Fault.UNKNOWN_MEMBER_ID
    assert driver.committed() == -1


def test_a_generation_of_a_group_that_does_not_exist_is_refused(driver: Driver) -> None:
    assert driver.commit(member="m", generation=3) is Fault.GROUP_ID_NOT_FOUND
    assert driver.commit(member="m", generation=3, speaks_consumer_protocol=False) is Fault.ILLEGAL_GENERATION
    assert driver.listed() == {}


def test_members_may_commit_while_a_rebalance_is_prepared_but_not_while_it_completes(driver: Driver) -> None:
    leader, follower = driver.stable_group(members=2)
    driver.start_join(member=leader.member_id)
    assert driver.commit(11, member=follower.member_id, generation=1) is None
    driver.start_join(member=follower.member_id)
    assert driver.commit(12, member=follower.member_id, generation=2) is Fault.REBALANCE_IN_PROGRESS
    assert driver.committed() == 11


def test_a_commit_keeps_a_session_alive(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    driver.wait(9_000)
    driver.commit(member=leader.member_id, generation=1)
    driver.wait(9_000)
    assert driver.heartbeat(leader) is None


def test_metadata_that_is_too_long_is_refused(driver: Driver) -> None:
    assert driver.commit(metadata="x" * 4_097) is Fault.OFFSET_METADATA_TOO_LARGE
    assert driver.commit(metadata="x" * 4_096) is None


def test_a_consumer_groups_member_commits_at_its_epoch(driver: Driver) -> None:
    driver.beat("a", 0)
    assert driver.commit(11, member="a", generation=2) is None
    assert driver.commit(member="a", generation=3) is Fault.STALE_MEMBER_EPOCH
    assert driver.commit(member="b", generation=2) is Fault.UNKNOWN_MEMBER_ID
    assert driver.commit() is Fault.UNKNOWN_MEMBER_ID
    old_client = driver.commit(member="a", generation=2, speaks_consumer_protocol=False)
    assert old_client is Fault.UNSUPPORTED_VERSION


def test_an_older_epoch_may_commit_what_it_has_held_since_then(driver: Driver) -> None:
    """The member's newest epoch is still on its way; what it reads it has been reading all along (KIP-1251)."""
    driver.beat("a", 0)
    driver.wait(1_000)
    driver.topics.put("orders", 5)
    driver.beat("a", 2)
    assert driver.commit(member="a", generation=2, partition=0) is None
    assert driver.commit(member="a", generation=2, partition=4) is Fault.STALE_MEMBER_EPOCH
    assert driver.commit(member="a", generation=1, partition=0) is Fault.STALE_MEMBER_EPOCH
    assert driver.commit(member="a", generation=2, topic="events") is Fault.STALE_MEMBER_EPOCH


def test_a_member_may_commit_anything_but_what_another_holds(driver: Driver) -> None:
    """It lets go within an epoch, so that the epoch alone doesn't tell a commit that was long on its way."""
    driver.beat("a", 0)
    assert driver.commit(member="a", generation=2, topic="events") is None
    driver.wait(1_000)
    driver.beat("b", 0)
    mine = driver.topics.id_of("orders")
    driver.beat("a", 2, owned={mine: (0, 1, 2, 3)})
    driver.beat("a", 2, owned={mine: (0, 1)})
    assert driver.named(driver.beat("b", 3)) == {"orders": [2, 3]}
    assert driver.commit(member="a", generation=3, partition=2) is Fault.STALE_MEMBER_EPOCH
    assert driver.commit(member="a", generation=3, partition=0) is None
    assert driver.commit(member="a", generation=3, topic="events") is None


def test_an_empty_consumer_group_takes_commits_of_anybody(driver: Driver) -> None:
    driver.beat("a", 0)
    driver.beat("a", LEAVE_EPOCH)
    assert driver.commit(11) is None


def test_a_transaction_commits_nothing_for_the_group_without_a_name() -> None:
    """As in Kafka: without a transaction that is a habit of old clients, and allowed."""
    driver = Driver()
    assert driver.commit(group="") is None
    assert driver.commit_in_transaction(9, group="") is Fault.INVALID_GROUP_ID


def test_what_no_record_can_hold_is_not_committed() -> None:
    driver = Driver(GroupSettings(offset_metadata_max_bytes=50_000))
    assert driver.commit(group="g" * 40_000) is Fault.INVALID_GROUP_ID
    assert driver.commit_in_transaction(9, group="g" * 40_000) is Fault.INVALID_GROUP_ID
    assert driver.commit(metadata="ä" * 20_000) is Fault.OFFSET_METADATA_TOO_LARGE
    assert driver.listed() == {}


def test_a_retention_without_end_is_kept(driver: Driver) -> None:
    assert driver.commit(11, retention_ms=(1 << 63) - 1) is None
    driver.wait(30 * DAY_MS)
    assert driver.committed() == 11


# Fetching


def test_what_was_not_committed_is_no_offset_and_no_fault(driver: Driver) -> None:
    assert driver.committed() == -1
    driver.commit(11)
    assert driver.committed(partition=3) == -1
    assert driver.committed(topic="unheard-of") == -1


def test_an_offset_comes_back_as_it_was_committed(driver: Driver) -> None:
    driver.commit(11, metadata="note")
    (topic,) = driver.fetch().topics
    (one,) = topic.offsets
    assert (topic.topic, one.partition, one.offset, one.leader_epoch, one.metadata) == ("orders", 0, 11, 5, "note")
    driver.restart()
    assert driver.fetch().topics == (topic,)


def test_members_of_a_consumer_group_are_checked_when_they_fetch(driver: Driver) -> None:
    driver.beat("a", 0)
    driver.commit(11, member="a", generation=2)
    assert driver.fetch(member_id="a", member_epoch=2).fault is None
    assert driver.fetch(member_id="a", member_epoch=1).fault is Fault.STALE_MEMBER_EPOCH
    assert driver.fetch(member_id="b", member_epoch=2).fault is Fault.UNKNOWN_MEMBER_ID
    assert driver.fetch().fault is None


def test_an_offset_of_a_topic_deleted_since_is_not_that_of_its_namesake(driver: Driver) -> None:
    driver.commit(11)
    driver.topics.remove("orders")
    topic = driver.topics.put("orders", 4)
    asked = (PartitionsAsked("orders", topic.topic_id, (0,)),)
    reply = driver.ask(FetchOffsets("g", None, -1, asked, False))
    assert reply.topics[0].offsets[0].offset == -1


def test_a_command_that_names_a_topic_with_two_ids_commits_each_with_its_own(driver: Driver) -> None:
    name = "orders"
    ids = bytes([1]) * 16, bytes([2]) * 16
    offsets = tuple(OffsetToCommit(name, topic_id, index, 11, 5, "") for index, topic_id in enumerate(ids))
    assert driver.ask(CommitOffsets("g", "", None, -1, offsets)).faults == (None, None)
    for index, topic_id in enumerate(ids):
        (topic,) = driver.fetch(topics=(PartitionsAsked(name, topic_id, (0, 1)),)).topics
        assert [one.partition for one in topic.offsets if one.offset == 11] == [index]


# Transactions


def test_a_transactions_offsets_count_when_it_commits(driver: Driver) -> None:
    driver.commit(1)
    driver.commit_in_transaction(7, 20)
    assert driver.committed() == 1
    assert driver.committed(stable=True) is Fault.UNSTABLE_OFFSET_COMMIT
    driver.restart()
    assert driver.committed(stable=True) is Fault.UNSTABLE_OFFSET_COMMIT
    driver.end_transaction(7, committed=True)
    assert driver.committed(stable=True) == 20


def test_a_transactions_offsets_never_count_when_it_aborts(driver: Driver) -> None:
    driver.commit(1)
    driver.commit_in_transaction(7, 20)
    driver.end_transaction(7, committed=False)
    assert driver.committed(stable=True) == 1


def test_a_commit_written_after_a_transactions_outlasts_it(driver: Driver) -> None:
    driver.commit_in_transaction(7, 20)
    driver.commit(30)
    driver.end_transaction(7, committed=True)
    assert driver.committed() == 30


def test_transactions_of_several_producers_are_kept_apart(driver: Driver) -> None:
    driver.commit_in_transaction(7, 20)
    driver.commit_in_transaction(8, 30)
    driver.end_transaction(8, committed=True)
    assert driver.committed() == 30
    assert driver.committed(stable=True) is Fault.UNSTABLE_OFFSET_COMMIT
    driver.end_transaction(7, committed=True)
    assert driver.committed(stable=True) == 30


def test_only_the_partitions_of_a_transaction_are_unstable(driver: Driver) -> None:
    driver.commit(1, partition=1)
    driver.commit_in_transaction(7, 20, partition=0)
    assert driver.committed(partition=1, stable=True) == 1


def test_fetching_everything_shows_what_is_unstable(driver: Driver) -> None:
    driver.commit(1)
    driver.commit_in_transaction(7, 20)
    (topic,) = driver.fetch(stable=True).topics
    assert topic.offsets[0].fault is Fault.UNSTABLE_OFFSET_COMMIT


def test_who_commits_in_a_transaction_is_checked_if_it_says_who_it_is(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    assert driver.commit_in_transaction(7) is None, "clients of old say nothing"
    assert driver.commit_in_transaction(7, member=leader.member_id, generation=1) is None
    assert driver.commit_in_transaction(7, member="nobody", generation=1) is Fault.UNKNOWN_MEMBER_ID
    assert driver.commit_in_transaction(7, member=leader.member_id, generation=2) is Fault.ILLEGAL_GENERATION
    assert driver.commit_in_transaction(7, instance="i") is Fault.UNKNOWN_MEMBER_ID
    assert driver.commit_in_transaction(7, group="nix", member="m", generation=1) is Fault.ILLEGAL_GENERATION


def test_a_static_member_that_was_replaced_may_not_commit_in_a_transaction(driver: Driver) -> None:
    token = driver.start_join(instance_id="i")
    driver.wait(3_000)
    old = driver.answers[token]
    driver.sync(old, instance_id="i")
    driver.join(instance_id="i")
    fault = driver.commit_in_transaction(7, member=old.member_id, generation=1, instance="i")
    assert fault is Fault.FENCED_INSTANCE_ID


def test_a_transaction_may_commit_while_its_group_rebalances(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    driver.start_join(member=leader.member_id)
    assert driver.classic().state == "CompletingRebalance"
    assert driver.commit_in_transaction(7, member=leader.member_id, generation=2) is None


def test_a_stale_epoch_in_a_transaction_is_an_illegal_generation(driver: Driver) -> None:
    driver.beat("a", 0)
    assert driver.commit_in_transaction(7, member="a", generation=2) is None
    assert driver.commit_in_transaction(7, member="a", generation=3) is Fault.ILLEGAL_GENERATION
    assert driver.commit_in_transaction(7, member="a", generation=1) is Fault.ILLEGAL_GENERATION
    assert driver.commit_in_transaction(7, member="b", generation=2) is Fault.UNKNOWN_MEMBER_ID
    assert driver.commit_in_transaction(7) is None


def test_metadata_of_a_transaction_may_be_too_long_too(driver: Driver) -> None:
    assert driver.commit_in_transaction(7, metadata="x" * 5_000) is Fault.OFFSET_METADATA_TOO_LARGE


def test_deleting_a_group_takes_the_offsets_of_open_transactions_with_it(driver: Driver) -> None:
    driver.commit_in_transaction(7, 20)
    assert driver.delete_group() is None
    driver.end_transaction(7, committed=True)
    assert driver.committed() == -1
    driver.restart()
    assert driver.listed() == {}


# Deleting


def delete(driver: Driver, group: str = "g", topic: str = "orders", partition: int = 0) -> Fault | None:
    reply = driver.ask(DeleteOffsets(group, ((topic, (partition,)),)))
    assert isinstance(reply, DeleteOffsetsReply)
    if reply.fault is not None:
        return reply.fault
    ((_, ((_, fault),)),) = reply.topics
    return fault


def test_offsets_of_a_group_without_members_can_be_deleted(driver: Driver) -> None:
    assert delete(driver) is Fault.GROUP_ID_NOT_FOUND
    driver.commit(11)
    driver.commit_in_transaction(7, 20)
    assert delete(driver) is None
    driver.end_transaction(7, committed=True)
    assert driver.committed() == -1


def test_offsets_of_topics_in_use_can_not_be_deleted(driver: Driver) -> None:
    (leader,) = driver.stable_group()
    driver.commit(11, member=leader.member_id, generation=1)
    driver.commit(12, member=leader.member_id, generation=1, topic="events")
    assert delete(driver) is Fault.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete(driver, topic="events") is None
    assert (driver.committed(), driver.committed(topic="events")) == (11, -1)


def test_a_consumer_group_protects_the_topics_it_subscribes_to(driver: Driver) -> None:
    driver.beat("a", 0)
    driver.commit(11, member="a", generation=2)
    assert delete(driver) is Fault.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete(driver, topic="events") is None


def test_a_group_whose_subscriptions_mean_nothing_to_us_protects_everything(driver: Driver) -> None:
    driver.stable_group(protocol_type="connect")
    assert delete(driver) is Fault.NON_EMPTY_GROUP


def test_subscriptions_that_can_not_be_read_protect_everything(driver: Driver) -> None:
    driver.stable_group(protocols=(("range", b"\x00"),))
    assert delete(driver) is Fault.GROUP_SUBSCRIBED_TO_TOPIC


@pytest.mark.parametrize(("read", "fault"), [(4, None), (3, Fault.GROUP_SUBSCRIBED_TO_TOPIC)])
def test_more_subscriptions_than_are_read_in_one_turn_protect_everything(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, read: int, fault: Fault | None
) -> None:
    monkeypatch.setattr(service.groups.classic_group, "NAMES_READ_MAX", read)
    (leader,) = driver.stable_group(topics=("a", "b", "c", "d"))
    driver.commit(12, member=leader.member_id, generation=1, topic="events")
    assert delete(driver, topic="events") is fault


def test_a_deleted_topics_offsets_go_from_every_group(driver: Driver) -> None:
    driver.commit(11)
    driver.commit(12, group="h")
    driver.commit_in_transaction(7, 20, group="h")
    driver.commit(13, topic="events")
    driver.ask(ForgetTopic("orders", driver.topics.id_of("orders")))
    driver.end_transaction(7, committed=True)
    assert (driver.committed(), driver.committed("h"), driver.committed(topic="events")) == (-1, -1, 13)


@pytest.mark.parametrize("retention_ms", [-1, DAY_MS])
def test_a_deleted_topics_namesake_keeps_its_offsets(driver: Driver, retention_ms: int) -> None:
    """Also that of an old client which says for how long: its record has no room for the topic's id."""
    gone = driver.topics.id_of("orders")
    driver.topics.remove("orders")
    driver.topics.put("orders", 4)
    driver.commit(11, retention_ms=retention_ms)
    driver.ask(ForgetTopic("orders", gone))
    assert driver.committed() == 11


def turns_of(driver: Driver) -> list[int]:
    """How many records each turn writes, until nothing is due at once."""
    written = []
    while driver.machine.next_deadline_ms() == driver.now_ms:
        decision = driver.machine.expire(driver.now_ms)
        driver.take(decision)
        written.append(len(decision.records))
    return written


def many_offsets(partitions: int = 2_500) -> Driver:
    driver = Driver(topics=Topics(orders=partitions, events=1))
    for partition in range(partitions):
        driver.commit(11, partition=partition)
    driver.wait(0)
    return driver


def test_a_deleted_topics_many_offsets_go_in_turns() -> None:
    driver = many_offsets()
    gone = driver.topics.id_of("orders")
    driver.topics.remove("orders")
    driver.topics.put("orders", 2_500)
    driver.commit(12, partition=2_499)
    driver.ask(ForgetTopic("orders", gone))
    assert turns_of(driver) == [300] * 7 + [99]
    assert (driver.committed(), driver.committed(partition=2_499)) == (-1, 12)


def test_a_deleted_topic_may_be_told_again_while_it_is_being_forgotten() -> None:
    driver = many_offsets()
    gone = driver.topics.id_of("orders")
    driver.topics.remove("orders")
    driver.ask(ForgetTopic("orders", gone))
    driver.ask(DeleteOffsets("g", (("orders", tuple(range(2_500))),)))
    driver.ask(ForgetTopic("orders", gone))
    assert sum(turns_of(driver)) == 0, "nothing is left to be done"
    driver.wait(600_000)
    assert driver.listed() == {}


def test_the_groups_that_have_offsets_of_a_deleted_topic_are_looked_for_in_turns(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.groups.forgetting.LOOKED_AT_ONCE", 10)
    for number in range(1_000):
        driver.commit(11, topic="events", group=f"g{number}")
    driver.commit(12, group="the last")
    driver.ask(ForgetTopic("orders", driver.topics.id_of("orders")))
    assert driver.committed("the last") == 12, "it was not its turn"
    written = turns_of(driver)
    assert len(written) > 5
    assert sum(written) == 1
    assert driver.committed("the last") == -1


def test_expired_offsets_of_a_group_with_a_long_id_leave_in_batches_that_fit() -> None:
    """Each tombstone names the group."""
    driver, group = Driver(topics=Topics(orders=100)), "g" * 30_000
    for partition in range(100):
        driver.commit(11, group=group, partition=partition)
    driver.wait(8 * DAY_MS)
    tombstones = [entry.records for entry in driver.log if entry.records and entry.records[0][1] is None]
    assert sum(map(len, tombstones)) >= 100
    assert max(sum(len(key) for key, _ in records) for records in tombstones) < 1_000_000


def test_a_group_with_many_offsets_is_deleted_in_turns_and_then_answered() -> None:
    driver = many_offsets()
    deleting = driver.start(DeleteGroup("g"))
    driver.commit(12, topic="events")
    assert deleting not in driver.answers
    assert sum(turns_of(driver)) == 2_500 - 300 + 1 + 1
    assert driver.answers[deleting] == FaultReply()
    assert driver.listed() == {}


def test_nobody_joins_a_group_that_is_being_deleted() -> None:
    """It would have a part of its offsets, and the answer would be that nothing was deleted."""
    driver = many_offsets()
    known = driver.member_id()
    driver.wait(10_000)  # the one that was to come with this id is no longer waited for
    named = driver.member_id()
    deleting = driver.start(DeleteGroup("g"))
    for member_id in ("", known, named):
        assert driver.join(member=member_id).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.beat("m", 0).fault is Fault.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.beat("m", 0, group="another").fault is None
    assert deleting not in driver.answers
    driver.wait(0)
    assert driver.answers[deleting] == FaultReply()
    assert "g" not in driver.listed()
    assert driver.beat("m", 0).fault is None


def test_offsets_that_do_not_expire_are_looked_at_in_turns() -> None:
    driver = many_offsets(5_000)
    driver.now_ms += 600_000
    assert turns_of(driver) == [0] * 6


def test_a_topic_that_was_deleted_while_nobody_looked_is_forgotten_by_the_next_coordinator(driver: Driver) -> None:
    driver.commit(11)
    driver.commit(12, topic="events")
    driver.commit_in_transaction(7, 20, group="h")
    driver.commit_in_transaction(7, 21, group="h", topic="events")
    driver.topics.remove("orders")
    driver.topics.put("orders", 4)
    driver.restart()
    driver.wait(0)
    driver.end_transaction(7, committed=True)
    assert (driver.committed(), driver.committed("h")) == (-1, -1)
    assert (driver.committed(topic="events"), driver.committed("h", topic="events")) == (12, 21)


def test_the_next_coordinator_looks_once_at_each_offset_and_not_at_every_group_for_each_topic() -> None:
    driver = Driver(topics=Topics(**{f"t{number}": 1 for number in range(100)}))
    for group in range(100):
        for topic in (group, (group + 1) % 100):
            driver.commit(11, topic=f"t{topic}", group=f"g{group}")
    driver.topics.remove("t7")
    driver.restart()
    assert driver.committed("g7", topic="t8") == 11
    written = turns_of(driver)
    assert sum(written) == 2
    assert len(written) == 2, "one to look, one to wake the groups"
    assert [driver.committed(f"g{group}", topic="t7") for group in (6, 7)] == [-1, -1]


def test_a_topic_made_again_does_not_inherit_what_a_transaction_committed(driver: Driver) -> None:
    driver.commit_in_transaction(7, 20)
    driver.topics.remove("orders")
    driver.topics.put("orders", 4)
    driver.end_transaction(7, committed=True)
    present = PartitionsAsked("orders", driver.topics.id_of("orders"), (0,))
    assert driver.fetch(topics=(present,)).topics[0].offsets[0].offset == -1


@pytest.mark.parametrize("committed", [False, True])
def test_an_offset_of_a_former_topic_is_not_told_though_a_transaction_has_kept_it(
    driver: Driver, committed: bool
) -> None:
    """A tombstone would remove what the transaction has committed to the topic of the same name."""
    driver.commit(50)
    former = driver.topics.id_of("orders")
    driver.topics.remove("orders")
    driver.topics.put("orders", 4)
    driver.commit_in_transaction(7, 3)
    driver.ask(ForgetTopic("orders", former))
    assert told(driver) == [-1]
    driver.end_transaction(7, committed=committed)
    assert told(driver) == ([3] if committed else [-1])


def told(driver: Driver) -> list[int]:
    """What is told of all topics."""
    return [each.offset for topic in driver.fetch().topics for each in topic.offsets]


# Expiring


def test_offsets_of_a_group_without_members_expire_after_their_retention(driver: Driver) -> None:
    driver.commit(11)
    driver.wait(6 * DAY_MS)
    driver.commit(12, partition=1)
    driver.wait(DAY_MS - 600_000)
    assert driver.committed() == 11
    driver.wait(1_200_000)
    assert (driver.committed(), driver.committed(partition=1)) == (-1, 12)
    driver.wait(7 * DAY_MS)
    assert driver.listed() == {}, "with its last offset the group goes"
    driver.restart()
    assert driver.listed() == {}


def test_offsets_of_a_group_that_is_used_do_not_expire(driver: Driver) -> None:
    driver = Driver(GroupSettings(group_max_session_timeout_ms=30 * DAY_MS))
    (leader,) = driver.stable_group(session_timeout_ms=20 * DAY_MS)
    driver.commit(11, member=leader.member_id, generation=1)
    driver.commit(12, member=leader.member_id, generation=1, topic="events")
    driver.wait(8 * DAY_MS)
    assert (driver.committed(), driver.committed(topic="events")) == (11, -1), "events it does not subscribe to"


def test_retention_counts_from_when_a_group_became_empty(driver: Driver) -> None:
    driver = Driver(GroupSettings(group_max_session_timeout_ms=30 * DAY_MS))
    (leader,) = driver.stable_group(session_timeout_ms=20 * DAY_MS)
    driver.commit(11, member=leader.member_id, generation=1)
    driver.wait(8 * DAY_MS)
    driver.leave(leader.member_id)
    driver.wait(6 * DAY_MS)
    assert driver.committed() == 11
    driver.restart()
    driver.wait(DAY_MS + 600_000)
    assert driver.committed() == -1


def test_a_group_of_another_protocol_keeps_its_offsets_while_it_has_members() -> None:
    driver = Driver(GroupSettings(group_max_session_timeout_ms=30 * DAY_MS))
    (leader,) = driver.stable_group(protocol_type="connect", session_timeout_ms=20 * DAY_MS)
    driver.commit(11, member=leader.member_id, generation=1)
    driver.wait(8 * DAY_MS)
    assert driver.committed() == 11


def test_what_is_committed_after_the_clock_was_set_is_kept_over_the_next_start(driver: Driver) -> None:
    driver.wait(60_000)
    driver.wall_ahead_ms = 50 * 365 * DAY_MS  # until now the machine believed it was 1970
    driver.wait(30 * DAY_MS)
    driver.commit(11)
    driver.stable_group("left")
    driver.commit(12, group="left", member=driver.classic("left").members[0].member_id, generation=1)
    driver.leave(driver.classic("left").members[0].member_id, group="left")
    driver.restart()
    driver.wait(DAY_MS)
    assert (driver.committed(), driver.committed("left")) == (11, 12)
    driver.wait(7 * DAY_MS)
    assert (driver.committed(), driver.committed("left")) == (-1, -1)


def test_what_is_committed_before_the_clock_was_set_is_kept_over_the_next_start(driver: Driver) -> None:
    driver.wall_ahead_ms = -driver.now_ms  # 1970
    driver.commit(11)
    driver.wait(60_000)
    driver.wall_ahead_ms = 0
    driver.restart()
    driver.wait(DAY_MS)
    assert driver.committed() == 11
    driver.wait(7 * DAY_MS)
    assert driver.committed() == -1


def test_what_is_committed_by_a_clock_that_is_never_set_is_kept_for_its_retention(driver: Driver) -> None:
    """Its age counted from when the coordinator came up: after the retention's time each commit was gone at once."""
    driver.wall_ahead_ms = -driver.now_ms  # 1970
    driver.commit(11)
    driver.wait(30 * DAY_MS)
    driver.commit(12)
    driver.wait(DAY_MS)
    assert driver.committed() == 12
    driver.wait(7 * DAY_MS)
    assert driver.committed() == -1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_retention_of_the_clients_own_is_kept_though_the_clock_is_set_meanwhile(
    restarted: bool, driver: Driver
) -> None:
    driver.wall_ahead_ms = -driver.now_ms  # 1970
    driver.commit(11, retention_ms=3 * DAY_MS)
    driver.wait(60_000)
    driver.wall_ahead_ms = 0
    if restarted:
        driver.restart()
    driver.wait(2 * DAY_MS)
    assert driver.committed() == 11
    driver.wait(2 * DAY_MS)
    assert driver.committed() == -1


def test_a_clock_that_is_set_ends_no_session(driver: Driver) -> None:
    (member,) = driver.stable_group()
    driver.wall_ahead_ms = DAY_MS
    driver.wait(9_999)
    assert driver.heartbeat(member) is None
    driver.wall_ahead_ms = -DAY_MS
    driver.wait(10_000)
    assert driver.heartbeat(member) is Fault.UNKNOWN_MEMBER_ID


def test_a_retention_of_the_clients_own_is_kept(driver: Driver) -> None:
    driver.commit(11, retention_ms=3_600_000)
    driver.restart()
    driver.wait(3_600_000 - 1)
    assert driver.committed() == 11
    driver.wait(600_000)
    assert driver.committed() == -1


def test_a_group_with_an_open_transaction_does_not_expire(driver: Driver) -> None:
    driver.commit(11)
    driver.commit_in_transaction(7, 20)
    driver.commit_in_transaction(7, 21, group="h")
    driver.wait(8 * DAY_MS)
    assert driver.committed() == 11
    assert set(driver.listed()) == {"g", "h"}
    driver.end_transaction(7, committed=False)
    driver.wait(600_000)
    assert driver.listed() == {}


def test_an_empty_consumer_group_expires_with_its_offsets(driver: Driver) -> None:
    driver.beat("a", 0)
    driver.commit(11, member="a", generation=2)
    driver.beat("a", LEAVE_EPOCH)
    driver.wait(8 * DAY_MS)
    assert driver.listed() == {}
    driver.restart()
    assert driver.listed() == {}


def test_a_group_that_somebody_is_about_to_join_is_not_removed() -> None:
    driver = Driver(GroupSettings(offsets_retention_check_interval_ms=1_000))
    member = driver.member_id()
    driver.wait(5_000)
    assert set(driver.listed()) == {"g"}
    driver.start_join(member=member)


def test_a_group_that_was_never_joined_is_removed(driver: Driver) -> None:
    driver.member_id()
    driver.wait(600_000)
    assert driver.listed() == {}


def test_many_offsets_expire_over_several_batches() -> None:
    driver = Driver(GroupSettings(offsets_retention_ms=1_000), Topics(orders=3_000))
    for partition in range(2_500):
        driver.commit(1, partition=partition)
    written = len(driver.log)
    driver.wait(600_000)
    assert driver.listed() == {}
    assert [len(entry.records) for entry in driver.log[written:]] == [300] * 8 + [100, 1]


# Transactions with very many offsets


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python `work` runs: what it costs, whatever else the machine does."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def pending_offsets(topics: int, partitions: int) -> Offsets:
    """Of one group, and of two transactions: each has so many partitions of so many topics."""
    offsets = Offsets()
    for producer_id in (1, 2):
        for topic in range(topics):
            own = range(producer_id * partitions, (producer_id + 1) * partitions)
            some = {partition: CommittedOffset(producer_id, -1, "", 0, None, bytes(16)) for partition in own}
            offsets.put_pending("g", {f"topic {topic}": some}, producer_id=producer_id)
    return offsets


@pytest.mark.parametrize("committed", [False, True])
def test_the_offsets_of_a_topic_are_taken_up_as_a_whole_when_their_transaction_ends(committed: bool) -> None:
    """There may be a hundred thousand, and a marker is taken up in one turn of the loop."""
    offsets = pending_offsets(1, 1_000)
    offsets.end_transaction(1, committed=committed)  # leaves those of the other one
    assert lines_run(lambda: offsets.end_transaction(2, committed=committed)) < 100
    assert len(offsets.of_group("g").get("topic 0", ())) == 2_000 * committed
    assert not offsets.has_pending("g")


def test_the_partitions_of_a_topic_are_found_without_a_look_at_those_of_others_that_wait() -> None:
    offsets = pending_offsets(100, 10)
    offsets.put("g", {"topic 3": {10: CommittedOffset(0, -1, "", 0, None, bytes(16))}})
    assert lines_run(lambda: offsets.partitions("g", "topic 3")) < 100
    assert sorted(offsets.partitions("g", "topic 3")) == list(range(10, 30))
    assert lines_run(lambda: offsets.with_topic("a topic that nobody has", ["g"])) < 100


@pytest.mark.parametrize("work", ["deleting", "forgetting", "what was missed"])
def test_work_on_very_many_offsets_that_raises_once_is_begun_anew(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """It counted as done: offsets of the deleted topic stayed, and who deletes a group was never answered."""
    driver.topics.put("orders", 1_200)
    for partition in range(1_200):
        driver.commit(partition=partition)
    driver.wait(0)
    gone = driver.topics.id_of("orders")
    if work != "deleting":
        driver.topics.remove("orders")
    if work == "what was missed":
        driver.restart()
        driver.take(driver.machine.expire(driver.now_ms))
    else:
        token = driver.start(DeleteGroup("g") if work == "deleting" else ForgetTopic("orders", gone))
    with monkeypatch.context() as patch:
        patch.setattr(forgetting, "offset_tombstone", lambda *name: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            driver.wait(0)
    driver.wait(FAILED_AGAIN_MS)
    assert not list(driver.machine.committed("g"))
    if work == "deleting":
        assert driver.answers[token].fault is None
