"""The handlers of the group APIs:

versions, numbers, what is answered without asking a coordinator, and what they say of its troubles.
"""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from service.api import consumer_group_heartbeat
from service.api.consumer_group_heartbeat import NAMES_MAX, NAMES_MAX_BYTES, PARTITIONS_AS_ONE
from service.api.group_answers import OFFSETS_AT_ONCE
from service.broker.shard import ANSWERS_A_TURN, CoordinatorLoading, NotCoordinator
from service.groups.assignment_round import TARGETS_AT_ONCE
from service.groups.classic_group import ClassicGroup
from service.groups.commands import NameOffsets
from service.groups.consumer_decisions import ALONE_INTERVAL_MS
from service.groups.describe import DescribedMembers
from service.groups.verdicts import Fault
from service.turns import NAMED_A_TURN
from service.wire.base import Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.service.groups.driver import subscription
from tests.service.groups.stage import Stage
from tests.turns import with_turns

NOBODY = b"?" * 16


@pytest.fixture
def stage() -> Stage:
    return Stage()


def join(group: str = "g", member: str = "", **changes: Any) -> JoinGroupRequest:
    said: dict[str, Any] = {
        "group_id": group,
        "member_id": member,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol("range", subscription(("orders",)))],
    }
    return JoinGroupRequest(**{**said, **changes})


def commit(stage: Stage, group: str = "g", topic: str = "orders", partition: int = 0, **changes: Any) -> Struct:
    facts = stage.driver.topics.by_name(topic)
    topic_id = NOBODY if facts is None else facts.topic_id
    one = OffsetCommitRequestPartition(partition, 42, 3, "note")
    return OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(topic, topic_id, [one])], **changes)


def joined(stage: Stage, group: str = "g") -> str:
    """The only member of a stable group."""

    async def become_a_member() -> str:
        member = str((await stage.answer(join(group), 9)).member_id)
        waiting = asyncio.ensure_future(stage.answer(join(group, member), 9))
        await asyncio.sleep(0)
        stage.driver.wait(3_000)
        assert (await waiting).leader == member
        request = SyncGroupRequest(
            group, 1, member, None, "consumer", "range", [SyncGroupRequestAssignment(member, b"all")]
        )
        assert (await stage.answer(request, 5)).assignment == b"all"
        return member

    return asyncio.run(become_a_member())


def test_every_fault_has_the_protocols_number() -> None:
    assert [fault.name for fault in Fault if fault.name not in ErrorCode.__members__] == []


REQUESTS: list[tuple[Struct, int]] = [
    (join(), 9),
    (SyncGroupRequest("g", 1, "m", None, "consumer", "range"), 5),
    (LeaveGroupRequest("g", members=[MemberIdentity("m")]), 5),
    (ConsumerGroupHeartbeatRequest("g", "m", 3), 1),
    (OffsetDeleteRequest("g"), 0),
]


@pytest.mark.parametrize(("request_", "version"), REQUESTS)
@pytest.mark.parametrize(
    ("trouble", "code"),
    [(NotCoordinator(), ErrorCode.NOT_COORDINATOR), (CoordinatorLoading(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)],
)
def test_a_broker_that_can_not_answer_for_the_group_says_so(
    stage: Stage, request_: Struct, version: int, trouble: Any, code: ErrorCode
) -> None:
    with stage.trouble(trouble):
        assert stage.ask(request_, version).error_code == code


def test_troubles_are_told_group_by_group_where_several_are_asked(stage: Stage) -> None:
    with stage.trouble(NotCoordinator()):
        code = ErrorCode.NOT_COORDINATOR
        assert stage.ask(DescribeGroupsRequest(["g"]), 6).groups[0].error_code == code
        assert stage.ask(DeleteGroupsRequest(["g"]), 2).results[0].error_code == code
        assert stage.ask(ConsumerGroupDescribeRequest(["g"]), 1).groups[0].error_code == code
        assert stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g")]), 9).groups[0].error_code == code
        assert stage.ask(OffsetFetchRequest("g", topics=None), 7).error_code == code
        assert stage.ask(commit(stage), 9).topics[0].partitions[0].error_code == code


def test_heartbeats_are_welcome_while_the_coordinator_reads_its_log(stage: Stage) -> None:
    with stage.trouble(CoordinatorLoading()):
        assert stage.ask(HeartbeatRequest("g", 1, "m"), 4).error_code == ErrorCode.NONE
    with stage.trouble(NotCoordinator()):
        assert stage.ask(HeartbeatRequest("g", 1, "m"), 4).error_code == ErrorCode.NOT_COORDINATOR


def test_groups_are_listed_whole_or_not_at_all(stage: Stage) -> None:
    stage.ask(commit(stage), 9)
    for trouble in (CoordinatorLoading(), NotCoordinator()):
        with stage.trouble(trouble):
            refused = stage.ask(ListGroupsRequest(), 5)
        assert (refused.error_code, refused.groups) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
    stage.groups.is_damaged = True
    with stage.trouble(NotCoordinator()):
        left = stage.ask(ListGroupsRequest(), 5)
    assert (left.error_code, left.groups) == (ErrorCode.NONE, [])
    (group,) = stage.ask(ListGroupsRequest(), 5).groups
    assert (group.group_id, group.group_state, group.group_type) == ("g", "Empty", "classic")


@pytest.mark.parametrize("version", range(10))
def test_a_group_needs_a_name(stage: Stage, version: int) -> None:
    code = ErrorCode.INVALID_GROUP_ID
    refused = stage.ask(join("", "m"), version)
    assert (refused.error_code, refused.member_id, refused.generation_id) == (code, "m", -1)
    assert refused.protocol_name == ("" if version < 7 else None)
    if version <= 5:
        assert stage.ask(SyncGroupRequest("", 1, "m", None, "consumer", "range"), version).error_code == code
        assert stage.ask(LeaveGroupRequest(""), version).error_code == code
    if version <= 4:
        assert stage.ask(HeartbeatRequest(""), version).error_code == code
    assert stage.ask(OffsetDeleteRequest(""), 0).error_code == code
    (described,) = stage.ask(ConsumerGroupDescribeRequest([""]), 1).groups
    assert (described.group_id, described.error_code) == ("", code)


def test_offsets_of_the_group_without_a_name_are_kept(stage: Stage) -> None:
    assert stage.ask(commit(stage, ""), 9).topics[0].partitions[0].error_code == ErrorCode.NONE
    (group,) = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("", topics=None)]), 9).groups
    assert group.topics[0].partitions[0].committed_offset == 42


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.NONE), (4, ErrorCode.MEMBER_ID_REQUIRED)])
def test_ids_are_given_in_advance_from_version_4_on(stage: Stage, version: int, code: ErrorCode) -> None:
    async def first_answer() -> Any:
        waiting = asyncio.ensure_future(stage.answer(join(), version))
        await asyncio.sleep(0)
        stage.driver.wait(3_000)
        return await waiting

    reply = asyncio.run(first_answer())
    assert reply.error_code == code
    assert reply.member_id == "client-00000000-0000-0000-0000-000000000001"


def test_a_member_names_a_hundred_protocols_at_most(stage: Stage) -> None:
    """Their votes are counted in one turn."""
    for names, code in ((100, ErrorCode.MEMBER_ID_REQUIRED), (101, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)):
        protocols = [JoinGroupRequestProtocol(str(number), b"") for number in range(names)]
        assert stage.ask(join(protocols=protocols), 4).error_code == code


def test_before_version_1_the_session_timeout_is_the_rebalance_timeout_too(stage: Stage) -> None:
    async def start() -> None:
        waiting = asyncio.ensure_future(stage.answer(join(), 0))
        await asyncio.sleep(0)
        stage.driver.wait(3_000)
        await waiting

    asyncio.run(start())
    group = stage.driver.machine._groups["g"]
    assert isinstance(group, ClassicGroup)
    assert [member.rebalance_timeout_ms for member in group.members.values()] == [10_000]


@pytest.mark.parametrize(("version", "code"), [(4, ErrorCode.NONE), (5, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)])
def test_the_protocol_must_be_named_in_a_sync_from_version_5_on(stage: Stage, version: int, code: ErrorCode) -> None:
    member = joined(stage)
    assert stage.ask(SyncGroupRequest("g", 1, member), version).error_code == code


def test_before_version_3_a_member_leaves_alone_and_its_fault_is_the_answers(stage: Stage) -> None:
    member = joined(stage)
    assert stage.ask(LeaveGroupRequest("g", "nobody"), 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.ask(LeaveGroupRequest("g", member), 2).error_code == ErrorCode.NONE
    several = stage.ask(LeaveGroupRequest("g", members=[MemberIdentity("nobody")]), 3)
    assert (several.error_code, several.members[0].error_code) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_does_not_exist_is_dead_and_from_version_6_on_an_error(stage: Stage, version: int) -> None:
    (described,) = stage.ask(DescribeGroupsRequest(["nix"], True), version).groups
    assert (described.group_id, described.group_state) == ("nix", "Dead")
    assert described.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
    assert bool(described.error_message) == (version >= 6)


def test_a_group_is_described_with_its_members(stage: Stage) -> None:
    member = joined(stage)
    (described,) = stage.ask(DescribeGroupsRequest(["g"], True), 6).groups
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert described.authorized_operations == 3400
    (shown,) = described.members
    assert (shown.member_id, shown.client_id, shown.client_host) == (member, "client", "/127.0.0.1")
    assert (shown.member_metadata, shown.member_assignment) == (subscription(("orders",)), b"all")


def test_a_group_named_twice_is_deleted_once(stage: Stage) -> None:
    stage.ask(commit(stage), 9)
    results = stage.ask(DeleteGroupsRequest(["g", "g", "nix"]), 2).results
    assert [(each.group_id, each.error_code) for each in results] == [
        ("g", ErrorCode.NONE),
        ("nix", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


def test_groups_that_have_offsets_are_deleted_each_in_a_turn_of_its_own(stage: Stage) -> None:
    names = [f"g{number}" for number in range(30)]
    for name in names:
        stage.ask(commit(stage, name), 9)
    answer, turns = asyncio.run(with_turns(stage.answer(DeleteGroupsRequest(names), 2)))
    assert not any(each.error_code for each in answer.results)
    assert turns >= len(names)


# Offsets


@pytest.mark.parametrize("version", range(2, 11))
def test_offsets_are_committed_and_fetched_in_every_version(stage: Stage, version: int) -> None:
    (topic,) = stage.ask(commit(stage), version).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(0, ErrorCode.NONE)]
    if version < 8:
        (found,) = stage.ask(OffsetFetchRequest("g", [OffsetFetchRequestTopic("orders", [0, 1])]), version).topics
    else:
        wanted = OffsetFetchRequestTopics("orders", stage.driver.topics.id_of("orders"), [0, 1])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=[wanted])])
        (found,) = stage.ask(request, version).groups[0].topics
    assert [(each.partition_index, each.committed_offset, each.metadata) for each in found.partitions] == [
        (0, 42, "note"),
        (1, -1, ""),
    ]


@pytest.mark.parametrize("version", [1, 7, 9])
def test_a_topic_made_again_is_not_read_from_where_its_namesake_was(stage: Stage, version: int) -> None:
    stage.ask(commit(stage), 9)
    stage.driver.topics.remove("orders")
    stage.driver.topics.put("orders", 4)
    if version < 8:
        (found,) = stage.ask(OffsetFetchRequest("g", [OffsetFetchRequestTopic("orders", [0])]), version).topics
    else:
        wanted = OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("orders", partition_indexes=[0])])
        (found,) = stage.ask(OffsetFetchRequest(groups=[wanted]), version).groups[0].topics
    assert (found.name, found.partitions[0].committed_offset) == ("orders", -1)


@pytest.mark.parametrize("version", range(2, 11))
def test_what_does_not_exist_can_not_be_committed(stage: Stage, version: int) -> None:
    (topic,) = stage.ask(commit(stage, topic="nix"), version).topics
    missing = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.partitions[0].error_code == missing
    (topic,) = stage.ask(commit(stage, partition=9), version).topics
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert stage.driver.listed() == {}, "the coordinator never heard of it"


def test_each_partition_has_its_own_answer(stage: Stage) -> None:
    partitions = [OffsetCommitRequestPartition(number, 7, -1, "x" * (5_000 * (number == 1))) for number in (0, 1, 9)]
    request = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("orders", NOBODY, partitions)])
    (topic,) = stage.ask(request, 9).topics
    assert {each.partition_index: each.error_code for each in topic.partitions} == {
        0: ErrorCode.NONE,
        1: ErrorCode.OFFSET_METADATA_TOO_LARGE,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_generation_of_an_unknown_group_is_refused_in_the_clients_words(
    stage: Stage, version: int, code: ErrorCode
) -> None:
    request = commit(stage, generation_id_or_member_epoch=3, member_id="m")
    assert stage.ask(request, version).topics[0].partitions[0].error_code == code


def test_no_metadata_is_empty_metadata(stage: Stage) -> None:
    one = OffsetCommitRequestPartition(0, 42, -1, None)
    stage.ask(OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("orders", NOBODY, [one])]), 9)
    (topic,) = stage.ask(OffsetFetchRequest("g", topics=None), 7).topics
    assert topic.partitions[0].metadata == ""


@pytest.mark.parametrize("version", range(1, 8))
def test_a_group_that_can_not_be_fetched_from_is_refused_partition_by_partition_too(stage: Stage, version: int) -> None:
    """A client that sees no partitions may think that nothing was ever committed, and read everything again."""
    request = OffsetFetchRequest("g", [OffsetFetchRequestTopic("orders", [0, 1])])
    for trouble, code in (
        (NotCoordinator(), ErrorCode.NOT_COORDINATOR),
        (CoordinatorLoading(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ):
        with stage.trouble(trouble):
            reply = stage.ask(request, version)
        found = [(row.partition_index, row.committed_offset, row.error_code) for row in reply.topics[0].partitions]
        assert found == [(0, -1, code), (1, -1, code)]
        assert reply.error_code == (code if version >= 2 else ErrorCode.NONE)


def test_topics_are_fetched_by_id_from_version_10_on(stage: Stage) -> None:
    stage.ask(commit(stage), 10)
    unknown = OffsetFetchRequestTopics("", NOBODY, [0])
    known = OffsetFetchRequestTopics("", stage.driver.topics.id_of("orders"), [0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=[unknown, known])])
    found, missing = stage.ask(request, 10).groups[0].topics
    assert (found.topic_id, found.partitions[0].committed_offset) == (known.topic_id, 42)
    assert (missing.topic_id, missing.partitions[0].error_code) == (NOBODY, ErrorCode.UNKNOWN_TOPIC_ID)


def test_all_topics_are_fetched_with_their_ids_and_those_that_are_gone_left_out(stage: Stage) -> None:
    stage.ask(commit(stage), 10)
    stage.ask(commit(stage, topic="events"), 10)
    stage.driver.topics.remove("events")
    everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
    (topic,) = stage.ask(everything, 10).groups[0].topics
    assert topic.topic_id == stage.driver.topics.id_of("orders")
    assert [topic.name for topic in stage.ask(everything, 9).groups[0].topics] == ["orders", "events"]


@pytest.mark.parametrize("version", [7, 8, 10])
@pytest.mark.parametrize("was_gone", [False, True])
def test_a_topic_that_is_made_again_while_all_topics_are_fetched_inherits_no_offset(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, version: int, was_gone: bool
) -> None:
    stage.ask(commit(stage), 9)
    topics, handle = stage.driver.topics, stage.groups.handle
    if was_gone:
        topics.remove("orders")

    def make_again(group_id: str, command: Any) -> Any:
        answer = handle(group_id, command)
        if isinstance(command, NameOffsets):
            if not was_gone:
                topics.remove("orders")
            topics.put("orders", 4)
        return answer

    monkeypatch.setattr(stage.groups, "handle", make_again)
    request = OffsetFetchRequest("g", None, groups=[OffsetFetchRequestGroup("g", topics=None)])
    answer = stage.ask(request, version)
    assert (answer if version < 8 else answer.groups[0]).topics == []


def test_offsets_that_wait_for_a_transaction_are_refused_to_those_who_want_stable_ones(stage: Stage) -> None:
    stage.driver.commit_in_transaction(7, 20)
    wanted = [OffsetFetchRequestTopic("orders", [0])]
    (topic,) = stage.ask(OffsetFetchRequest("g", wanted, require_stable=True), 7).topics
    assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    (topic,) = stage.ask(OffsetFetchRequest("g", wanted), 7).topics
    assert topic.partitions[0].error_code == ErrorCode.NONE


def test_offsets_are_deleted_partition_by_partition(stage: Stage) -> None:
    stage.ask(commit(stage), 9)
    numbers = [OffsetDeleteRequestPartition(0), OffsetDeleteRequestPartition(9)]
    topics = [OffsetDeleteRequestTopic("orders", numbers), OffsetDeleteRequestTopic("nix", numbers[:1])]
    reply = stage.ask(OffsetDeleteRequest("g", topics), 0)
    found = {(topic.name, each.partition_index): each.error_code for topic in reply.topics for each in topic.partitions}
    assert found == {
        ("orders", 0): ErrorCode.NONE,
        ("orders", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nix", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert stage.driver.committed() == -1
    assert stage.ask(OffsetDeleteRequest("nix"), 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# The consumer protocol


def first_heartbeat(member: str = "m", **changes: Any) -> ConsumerGroupHeartbeatRequest:
    said: dict[str, Any] = {
        "group_id": "k",
        "member_id": member,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**{**said, **changes})


def test_a_member_joins_stays_and_leaves_by_heartbeats(stage: Stage) -> None:
    first = stage.ask(first_heartbeat(), 1)
    assert (first.error_code, first.member_id, first.member_epoch, first.heartbeat_interval_ms) == (
        0,
        "m",
        2,
        ALONE_INTERVAL_MS,
    )
    (given,) = first.assignment.topic_partitions
    assert (given.topic_id, given.partitions) == (stage.driver.topics.id_of("orders"), [0, 1, 2, 3])
    assert stage.ask(ConsumerGroupHeartbeatRequest("k", "m", 2), 1).assignment is None
    fenced = stage.ask(ConsumerGroupHeartbeatRequest("k", "m", 9), 1)
    assert (fenced.error_code, fenced.member_id) == (ErrorCode.FENCED_MEMBER_EPOCH, None)
    assert fenced.error_message
    assert stage.ask(ConsumerGroupHeartbeatRequest("k", "m", -1), 1).member_epoch == -1


def test_a_member_is_told_of_thousands_of_topics_in_turns(stage: Stage) -> None:
    names = [f"t{number}" for number in range(6 * NAMED_A_TURN)]
    for name in names:
        stage.driver.topics.put(name, 1)
    epoch = stage.ask(first_heartbeat(subscribed_topic_names=names), 1).member_epoch
    stage.driver.wait(0)

    async def told() -> tuple[Any, int]:
        answer, turns = asyncio.ensure_future(stage.answer(ConsumerGroupHeartbeatRequest("k", "m", epoch), 1)), 0
        while not answer.done():
            await asyncio.sleep(0)
            turns += 1
        return answer.result(), turns

    answer, turns = asyncio.run(told())
    assert {topic.topic_id for topic in answer.assignment.topic_partitions} == {
        stage.driver.topics.id_of(name) for name in names
    }
    assert turns > len(names) // NAMED_A_TURN


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["x" * 250], "249"),
        ([f"{number:06d}" + "x" * 240 for number in range(5_000)], "bytes"),
        ([f"{number:03d}" + "\u20ac" * 240 for number in range(NAMED_A_TURN)] * 4, "bytes"),
    ],
)
def test_names_that_no_topic_has_or_that_do_not_fit_into_a_batch_are_refused(
    stage: Stage, names: list[str], told: str
) -> None:
    refused = stage.ask(first_heartbeat(subscribed_topic_names=names), 1)
    assert (refused.error_code, refused.member_id) == (ErrorCode.INVALID_REQUEST, None)
    assert told in refused.error_message
    assert not stage.driver.log
    longest = [f"{number:06d}" + "x" * 243 for number in range(NAMES_MAX_BYTES // 249)]
    assert stage.ask(first_heartbeat(subscribed_topic_names=longest), 1).error_code == 0
    assert max(bytes_of_batches(stage)) < 1_000_000


def test_a_member_all_of_whose_names_are_long_is_told_so_by_every_protocol(stage: Stage) -> None:
    said: dict[str, Any] = dict.fromkeys(("group_id", "member_id", "instance_id", "rack_id"), "x" * 32_000)
    names = [f"{number:06d}" + "x" * 243 for number in range(NAMES_MAX_BYTES // 249)]
    refused = stage.ask(first_heartbeat(**said, subscribed_topic_names=names), 1)
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_SERVER_ERROR, None)
    stage.ask(first_heartbeat(), 1)
    protocols = [JoinGroupRequestProtocol("range", subscription(tuple(names)) + bytes(200_000))]
    refused = stage.ask(join("k", protocols=protocols, group_instance_id="i"), 9)
    assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert [member.member_id for member in stage.driver.consumer("k").members] == ["m"]


@pytest.mark.parametrize("names_epoch", [0, 2])
def test_more_topics_than_one_turn_can_take_are_refused_and_change_nothing(stage: Stage, names_epoch: int) -> None:
    names = ["orders", *(f"t{number}" for number in range(NAMES_MAX - 1))]
    stage.ask(first_heartbeat(subscribed_topic_names=names), 1)
    asked = first_heartbeat(member_epoch=names_epoch, subscribed_topic_names=[*names, "one more"])
    refused = stage.ask(asked, 1)
    assert (refused.error_code, refused.member_id, refused.assignment) == (ErrorCode.INVALID_REQUEST, None, None)
    assert "regular expression" in refused.error_message
    (member,) = stage.driver.consumer("k").members
    assert len(member.subscribed_topics) == NAMES_MAX


def test_a_member_is_told_of_very_many_partitions_of_a_few_topics_in_turns(stage: Stage) -> None:
    names = [f"t{number}" for number in range(60)]
    for name in names:
        stage.driver.topics.put(name, 50 * PARTITIONS_AS_ONE)

    async def turns() -> int:
        told = (await stage.answer(first_heartbeat(subscribed_topic_names=names), 1)).member_epoch
        stage.driver.wait(0)
        said: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": names, "topic_partitions": []}
        asked = asyncio.ensure_future(stage.answer(ConsumerGroupHeartbeatRequest("k", "m", told, **said), 1))
        turns = 0
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(asked.result().assignment.topic_partitions) == len(names)
        return turns

    assert asyncio.run(turns()) > 60 * 50 // NAMED_A_TURN


def test_very_many_offsets_are_told_in_turns_in_the_form_of_one_group_too(stage: Stage) -> None:
    many = list(range(6 * NAMED_A_TURN))

    async def turns_of(request: OffsetFetchRequest, version: int) -> int:
        asked, turns = asyncio.ensure_future(stage.answer(request, version)), 0
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        assert not asked.result().error_code
        return turns

    one = OffsetFetchRequest("k", [OffsetFetchRequestTopic("orders", many)])
    group = OffsetFetchRequestGroup("k", None, -1, [OffsetFetchRequestTopics("orders", partition_indexes=many)])
    several = OffsetFetchRequest(groups=[group])
    assert asyncio.run(turns_of(one, 7)) >= asyncio.run(turns_of(several, 8)) + len(many) // NAMED_A_TURN


@pytest.mark.parametrize("is_made", [True, False])
def test_a_heartbeat_waits_a_little_for_the_target_that_is_being_made(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    """Its member heard of it an interval later, and so did the last of thousands of members."""
    monkeypatch.setattr(consumer_group_heartbeat, "ASKED_AGAIN_S", (0.001, 0.001))
    driver = stage.driver
    for number in range(TARGETS_AT_ONCE + 1):
        driver.beat(f"m{number}", 0, "k")
    driver.wait(10_000)
    epoch = stage.ask(ConsumerGroupHeartbeatRequest("k", "m7", driver.consumer("k").members[7].member_epoch), 1)
    driver.beat("m0", -1, "k")

    async def told() -> int:
        asked = asyncio.ensure_future(stage.answer(ConsumerGroupHeartbeatRequest("k", "m7", epoch.member_epoch), 1))
        await asyncio.sleep(0)
        assert not asked.done()
        if is_made:
            driver.wait(0)
        answer = await asked
        assert not answer.error_code
        return int(answer.member_epoch)

    assert asyncio.run(told()) == epoch.member_epoch + is_made


def test_heartbeats_that_have_waited_for_the_same_target_are_answered_in_turns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them took up to 50 ms of one turn. One whose client has gone meanwhile takes nobody's turn."""
    monkeypatch.setattr(consumer_group_heartbeat, "ASKED_AGAIN_S", (0,))
    driver, names = stage.driver, [f"m{number:03}" for number in range(3 * ANSWERS_A_TURN)]
    for name in (*names, "leaver"):
        driver.beat(name, 0, "k", subscribed_topics=("none there is",))  # so none has partitions to let go of
    driver.wait(10_000)

    async def told() -> None:
        epochs = {member.member_id: member.member_epoch for member in driver.consumer("k").members}
        for name in names:
            answer = await stage.answer(ConsumerGroupHeartbeatRequest("k", name, epochs[name]), 1)
            epochs[name] = answer.member_epoch
        driver.beat("leaver", -1, "k")
        beats = [ConsumerGroupHeartbeatRequest("k", name, epochs[name]) for name in names]
        asked = [asyncio.ensure_future(stage.answer(beat, 1)) for beat in beats]
        await asyncio.sleep(0)
        assert not any(each.done() for each in asked)
        driver.wait(0)
        gone = asked.pop(0)
        gone.cancel()
        answered = [0]
        while answered[-1] < len(asked):
            await asyncio.sleep(0)
            answered.append(sum(each.done() for each in asked))
        assert max(after - before for before, after in pairwise(answered)) == ANSWERS_A_TURN // 2
        assert {each.result().member_epoch for each in asked} == {driver.consumer("k").epoch}

    asyncio.run(told())


def test_a_member_of_thousands_of_topics_is_described_in_turns(stage: Stage) -> None:
    names = [f"t{number}" for number in range(6 * NAMED_A_TURN)]
    for name in names:
        stage.driver.topics.put(name, 1)
    epoch = stage.ask(first_heartbeat(subscribed_topic_names=names), 1).member_epoch
    stage.driver.wait(0)
    stage.ask(ConsumerGroupHeartbeatRequest("k", "m", epoch), 1)

    async def told() -> tuple[Any, int]:
        asked = asyncio.ensure_future(stage.answer(ConsumerGroupDescribeRequest(["k"]), 1))
        turns = 0
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        return asked.result(), turns

    answer, turns = asyncio.run(told())
    [member] = answer.groups[0].members
    for described in (member.assignment, member.target_assignment):
        assert {topic.topic_name for topic in described.topic_partitions} == set(names)
    assert turns > 2 * len(names) // NAMED_A_TURN


@pytest.mark.parametrize(("version", "code"), [(0, ErrorCode.NONE), (1, ErrorCode.INVALID_REQUEST)])
def test_members_name_themselves_from_version_1_on(stage: Stage, version: int, code: ErrorCode) -> None:
    reply = stage.ask(first_heartbeat(""), version)
    assert reply.error_code == code
    assert (reply.member_id == "AAAAAAAAAAAAAAAAAAAAAQ") == (version == 0)


def test_consumer_groups_are_described_and_classic_ones_are_not(stage: Stage) -> None:
    stage.ask(first_heartbeat(rack_id="r"), 1)
    joined(stage)
    missing, known = stage.ask(ConsumerGroupDescribeRequest(["g", "k"], True), 1).groups
    assert (missing.group_id, missing.error_code) == ("g", ErrorCode.GROUP_ID_NOT_FOUND)
    assert (known.group_state, known.group_epoch, known.assignor_name) == ("Stable", 2, "uniform")
    assert known.authorized_operations == 3400
    (member,) = known.members
    assert (member.rack_id, member.member_epoch, member.member_type) == ("r", 2, 1)
    for side in (member.assignment, member.target_assignment):
        assert [(topic.topic_name, topic.partitions) for topic in side.topic_partitions] == [("orders", [0, 1, 2, 3])]


# Very many at a time

MANY = 1_200


def commands_of(stage: Stage) -> list[Any]:
    """What the coordinator is asked from now on."""
    asked: list[Any] = []
    handle = stage.groups.handle

    def noted(group_id: str, command: Any) -> asyncio.Future[Any]:
        asked.append(command)
        return handle(group_id, command)

    stage.groups.handle = noted  # type: ignore[method-assign]
    return asked


def commit_many(stage: Stage, count: int, extra: int = 0) -> Any:
    partitions = [OffsetCommitRequestPartition(index, 1_000 + index) for index in range(count + extra)]
    return stage.ask(OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("orders", NOBODY, partitions)]), 9)


def test_very_many_offsets_are_committed_fetched_and_deleted_some_at_a_time(stage: Stage) -> None:
    stage.driver.topics.put("orders", MANY)
    stage.driver.topics.put("events", 3)
    asked = commands_of(stage)
    (topic,) = commit_many(stage, MANY, extra=5).topics
    codes = {row.partition_index: row.error_code for row in topic.partitions}
    assert codes == {index: 0 if index < MANY else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for index in range(MANY + 5)}
    assert [len(command.offsets) for command in asked] == [249, 250, 250, 250, 201]  # the topic itself counts, too
    stage.ask(commit(stage, topic="events"), 9)

    asked.clear()
    everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
    orders, events = stage.ask(everything, 9).groups[0].topics
    assert [(row.partition_index, row.committed_offset) for row in orders.partitions] == [
        (index, 1_000 + index) for index in range(MANY)
    ]
    assert [row.committed_offset for row in events.partitions] == [42]
    fetched = [sum(len(topic.partitions) for topic in command.topics) for command in asked[1:]]
    assert fetched == [250, 250, 250, 250, 201]

    rows = [OffsetDeleteRequestPartition(index) for index in range(MANY)]
    asked.clear()
    stage.ask(OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("orders", rows)]), 0)
    assert [len(command.topics[0][1]) for command in asked] == [250, 250, 250, 250, 200]
    assert [topic.name for topic in stage.ask(everything, 9).groups[0].topics] == ["events"]


def bytes_of_batches(stage: Stage) -> list[int]:
    return [sum(len(key) + len(value or b"") for key, value in entry.records) for entry in stage.driver.log]


@pytest.mark.parametrize(("group", "note"), [("g", "\u20ac" * 4_096), ("g" * 30_000, None)])
def test_offsets_with_long_notes_or_of_a_group_with_a_long_id_are_committed_and_deleted_in_batches_that_fit(
    stage: Stage, group: str, note: str | None
) -> None:
    stage.driver.topics.put("orders", OFFSETS_AT_ONCE)
    rows = [OffsetCommitRequestPartition(index, 42, committed_metadata=note) for index in range(OFFSETS_AT_ONCE)]
    committed = stage.ask(OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic("orders", NOBODY, rows)]), 9)
    deleted_rows = [OffsetDeleteRequestPartition(index) for index in range(OFFSETS_AT_ONCE)]
    deleted = stage.ask(OffsetDeleteRequest(group, [OffsetDeleteRequestTopic("orders", deleted_rows)]), 0)
    for answer in (committed, deleted):
        assert [(row.partition_index, row.error_code) for row in answer.topics[0].partitions] == [
            (index, 0) for index in range(OFFSETS_AT_ONCE)
        ]
    assert sum(len(entry.records) for entry in stage.driver.log) == 2 * OFFSETS_AT_ONCE
    assert max(bytes_of_batches(stage)) < 1_000_000


def test_the_target_of_a_group_with_a_long_id_is_written_in_batches_that_fit(stage: Stage) -> None:
    """Each of its records has the id: those of 150 members made a batch of 4.8 megabytes."""
    stage.driver.topics.put("orders", 300)
    for number in range(300):
        joined = first_heartbeat(group_id="g" * 32_000, member_id=f"m{number}")
        assert stage.ask(joined, 1).error_code == 0
    for _ in range(400):
        stage.driver.wait(20)
    group = stage.driver.consumer("g" * 32_000)
    assert group.assignment_epoch == group.epoch
    assert all(list(member.target) for member in group.members)
    assert max(bytes_of_batches(stage)) < 1_000_000


def test_very_many_members_leave_some_at_a_time(stage: Stage) -> None:
    stage.driver.stable_group()
    asked = commands_of(stage)
    reply = stage.ask(LeaveGroupRequest("g", members=[MemberIdentity(f"m{index}") for index in range(450)]), 5)
    assert [len(command.members) for command in asked] == [200, 200, 50]
    assert [row.error_code for row in reply.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 450


def test_very_many_groups_are_listed_some_at_a_time(stage: Stage) -> None:
    for index in range(2_100):
        stage.driver.commit(group=f"g{index}")
    asked = commands_of(stage)
    assert len(stage.ask(ListGroupsRequest(), 5).groups) == 2_100
    assert [len(command.group_ids) for command in asked[1:]] == [1_000, 1_000, 100]


def test_members_are_described_only_as_they_are_looked_at(stage: Stage) -> None:
    """Ten thousand are not described in one turn."""
    for index in range(3):
        stage.driver.beat(f"m{index}", 0)
    members = stage.driver.consumer().members
    assert isinstance(members, DescribedMembers)
    stage.driver.beat("m2", -1)
    assert [member.member_id for member in members] == ["m0", "m1", "m2"], "as they were when it was decided"
