"""Groups of the classic protocol: joining, syncing, beating, leaving, in every version and against every rule."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from service.wire.codec import encode_data
from service.wire.messages import (
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.connection import Connection
from tests.conformance.plain import Plain, sorted_by
from tests.conformance.say import commit
from tests.conformance.talk import Talk, stable_versions

SESSION_MS = 10_000
REBALANCE_MS = 5_000
MEMBER_ID_REQUIRED = 79


def wish(note: bytes = b"") -> bytes:
    """What a consumer says of itself: it wants one topic that is not there."""
    return b"\0\1" + encode_data(ConsumerProtocolSubscription(topics=["wanted"], user_data=note), 1)


def joining(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    protocol_type: str = "consumer",
    protocols: Mapping[str, bytes] | None = None,
) -> JoinGroupRequest:
    offered = {"range": wish()} if protocols is None else protocols
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in offered.items()],
        reason="conformance",
    )


def syncing(
    group: str,
    member: str,
    generation: int,
    assignments: Mapping[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> SyncGroupRequest:
    rows = [SyncGroupRequestAssignment(member_id=who, assignment=what) for who, what in (assignments or {}).items()]
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=rows,
    )


def beating(group: str, member: str, generation: int, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance)


def leaving(group: str, *members: str, instances: Sequence[str | None] = ()) -> LeaveGroupRequest:
    instance_of = dict(zip(members, instances, strict=False))
    rows = [MemberIdentity(member_id=who, group_instance_id=instance_of.get(who), reason="done") for who in members]
    return LeaveGroupRequest(group_id=group, member_id=members[0] if members else "", members=rows)


def members_in_order(answer: dict[str, Plain]) -> Plain:
    return {**answer, "members": sorted_by(answer.get("members", []), "metadata", "member_id")}


def new_member_id(talk: Talk, group: str, on: Connection | None = None) -> str:
    """An id from the broker, as version 4 and later hand it out; nothing is written down."""
    connection = on or talk.connection
    answer = talk.ask(joining(group), 9, why="for an id", on=connection)
    return answer.member_id if answer is not None else ""


def alone(talk: Talk, group: str, *, version: int = 9, why: str = "alone") -> tuple[str, int]:
    """One member that joined and has its assignment: its id and generation."""
    member = new_member_id(talk, group)
    joined = talk.ask(joining(group, member), version, why=why)
    generation = joined.generation_id if joined is not None else -1
    talk.ask(syncing(group, member, generation, {member: b"everything"}), why=why)
    return member, generation


def state_of(talk: Talk, group: str) -> str:
    return talk.quietly(DescribeGroupsRequest(groups=[group])).groups[0].group_state


def waiting_for_state(talk: Talk, group: str, state: str) -> None:
    talk.wait_for(lambda: state_of(talk, group) == state)
    talk.note("the group becomes", state)


def describe(talk: Talk, group: str, why: str) -> None:
    def in_order(answer: dict[str, Plain]) -> Plain:
        groups = answer["groups"]
        assert isinstance(groups, list) and isinstance(groups[0], dict)
        return [{**groups[0], "members": sorted_by(groups[0].get("members", []), "member_metadata", "member_id")}]

    talk.ask(DescribeGroupsRequest(groups=[group]), why=why, keep=in_order)


def every_version(talk: Talk) -> None:
    for version in stable_versions(ApiKey.JOIN_GROUP):
        group = talk.group()
        joined = talk.ask(joining(group), version)
        member = joined.member_id if joined is not None else ""
        if joined is not None and joined.error_code == MEMBER_ID_REQUIRED:
            joined = talk.ask(joining(group, member), version, why="with the id it was given")
        generation = joined.generation_id if joined is not None else -1
        sync_version = min(version, stable_versions(ApiKey.SYNC_GROUP)[-1])
        talk.ask(syncing(group, member, generation, {member: b"all"}), sync_version)
        talk.ask(beating(group, member, generation), min(version, stable_versions(ApiKey.HEARTBEAT)[-1]))
        talk.ask(leaving(group, member), min(version, stable_versions(ApiKey.LEAVE_GROUP)[-1]))
        talk.ask(beating(group, member, generation), 4, why="after leaving")


def two_members(talk: Talk) -> None:
    group = talk.group()
    first, second = talk.connect(), talk.connect()
    one, generation = alone(talk, group, why="the first")
    other = new_member_id(talk, group, second)
    waiting = talk.send(
        joining(group, other, protocols={"range": wish(b"wishes of the second")}), why="the second", on=second
    )
    waiting_for_state(talk, group, "PreparingRebalance")
    talk.ask(beating(group, one, generation), why="the first learns of it")
    talk.ask(syncing(group, one, generation), why="the first may not sync now")
    joined = talk.ask(joining(group, one), why="the first again", on=first, keep=members_in_order)
    talk.hear(waiting)
    generation = joined.generation_id if joined is not None else -1
    describe(talk, group, "while completing")
    talk.ask(beating(group, one, generation), why="before the assignment")
    waiting_for_assignment = talk.send(syncing(group, other, generation), why="the second waits", on=second)
    time.sleep(0.1)
    talk.ask(syncing(group, one, generation, {one: b"left", other: b"right"}), why="the first assigns", on=first)
    talk.hear(waiting_for_assignment)
    talk.ask(syncing(group, other, generation), why="the second once more")
    talk.ask(beating(group, other, generation), why="the second")
    talk.ask(
        joining(group, other, protocols={"range": wish(b"wishes of the second")}), why="a follower that says the same"
    )
    talk.ask(leaving(group, one), why="the first")
    talk.ask(beating(group, other, generation), why="the second learns of it")
    talk.ask(joining(group, other, protocols={"range": wish(b"wishes of the second")}), why="the second leads now")


def a_leader_that_joins_again_starts_a_rebalance(talk: Talk) -> None:
    group = talk.group()
    member, _ = alone(talk, group)
    talk.ask(joining(group, member), why="the same wishes")
    talk.ask(beating(group, member, 2), why="while completing")
    talk.ask(joining(group, member, protocols={"range": wish(b"other wishes")}), why="other wishes")


def an_assignment_without_a_member(talk: Talk) -> None:
    group = talk.group()
    member = new_member_id(talk, group)
    talk.ask(joining(group, member))
    talk.ask(syncing(group, member, 1, {"somebody else": b"all"}), why="assigned to somebody else")


def joins_that_are_refused(talk: Talk) -> None:
    group = talk.group()
    for version in (0, 5, 9):
        talk.ask(joining(""), version, why="a group without a name")
        for session_ms in (-1, 0, 499, 1_800_001, 2**31 - 1):
            talk.ask(joining(group, session_ms=session_ms), version, why=f"session of {session_ms} ms")
        talk.ask(joining(group, "nobody"), version, why="an id nobody has")
        talk.ask(joining(group, protocols={}), version, why="no protocols")
        talk.ask(joining(group, protocol_type=""), version, why="no type")
        talk.ask(joining(group, "nobody", instance="place"), max(version, 5), why="an id nobody has, a static place")
    member, _ = alone(talk, group)
    id_of_other = new_member_id(talk, group)
    talk.ask(joining(group, id_of_other, protocols={"roundrobin": wish()}), why="a protocol that nobody else has")
    talk.ask(joining(group, id_of_other, protocol_type="connect"), why="another type")
    talk.ask(joining(group, member, protocols={"roundrobin": wish()}), why="alone, with another protocol")
    talk.ask(joining(group, member, protocol_type="connect"), why="alone, of another type")


def a_rebalance_of_no_time(talk: Talk) -> None:
    group = talk.group()
    member = new_member_id(talk, group)
    talk.ask(joining(group, member, rebalance_ms=0), why="alone")


def calls_of_strangers(talk: Talk) -> None:
    nowhere = talk.group()
    for version in stable_versions(ApiKey.HEARTBEAT):
        talk.ask(beating(nowhere, "nobody", 1), version, why="in no group")
        talk.ask(beating("", "nobody", 1), version, why="in a group without a name")
    for version in stable_versions(ApiKey.SYNC_GROUP):
        talk.ask(syncing(nowhere, "nobody", 1), version, why="in no group")
        talk.ask(syncing("", "nobody", 1), version, why="in a group without a name")
    for version in stable_versions(ApiKey.LEAVE_GROUP):
        talk.ask(leaving(nowhere, "nobody"), version, why="no group")
        talk.ask(leaving("", "nobody"), version, why="a group without a name")
    talk.ask(leaving(nowhere), why="nobody")
    group = talk.group()
    member, generation = alone(talk, group)
    for why, wrong in {"the generation before": generation - 1, "one to come": generation + 1, "none": -1}.items():
        talk.ask(beating(group, member, wrong), why=f"in {why}")
        talk.ask(syncing(group, member, wrong), why=f"in {why}")
    talk.ask(beating(group, "nobody", generation), why="an id nobody has")
    talk.ask(beating(group, "", generation), why="no id")
    talk.ask(syncing(group, "nobody", generation), why="an id nobody has")
    talk.ask(syncing(group, member, generation, protocol_type="connect"), why="another type")
    talk.ask(syncing(group, member, generation, protocol_name="roundrobin"), why="another protocol")
    talk.ask(syncing(group, member, generation, protocol_type=None, protocol_name=None), why="neither")
    talk.ask(leaving(group, "nobody", member, member), why="a stranger, and one twice")


def static_members(talk: Talk) -> None:
    group = talk.group()
    joined = talk.ask(joining(group, instance="place"), why="the first")
    member = joined.member_id if joined is not None else ""
    talk.ask(syncing(group, member, 1, {member: b"all"}, instance="place"), why="the first")
    talk.ask(beating(group, member, 1, "place"), why="the first")
    talk.ask(beating(group, member, 1, "other place"), why="of a place nobody has")
    talk.ask(beating(group, "nobody", 1, "place"), why="another id in its place")
    again = talk.ask(joining(group, instance="place"), why="comes back without its id", keep=members_in_order)
    newer = again.member_id if again is not None else ""
    talk.ask(beating(group, member, 1, "place"), why="the id from before")
    talk.ask(syncing(group, member, 1, instance="place"), why="the id from before")
    talk.ask(joining(group, member, instance="place"), why="the id from before")
    talk.ask(
        syncing(group, newer, again.generation_id if again is not None else -1, instance="place"), why="the new id"
    )
    talk.ask(beating(group, newer, again.generation_id if again is not None else -1, "place"), why="the new id")
    describe(talk, group, "with one static member")
    talk.ask(leaving(group, member, instances=["place"]), why="the id from before")
    talk.ask(leaving(group, "", instances=["no such place"]), why="from a place nobody has")
    talk.ask(leaving(group, "", instances=["place"]), why="by its place alone")
    describe(talk, group, "without members")


def static_members_in_older_versions(talk: Talk) -> None:
    for version in (5, 6, 7, 8):
        group = talk.group()
        joined = talk.ask(joining(group, instance="place"), version)
        member = joined.member_id if joined is not None else ""
        talk.ask(syncing(group, member, 1, {member: b"all"}, instance="place"), 3)
        talk.ask(joining(group, instance="place"), version, why="comes back")
        talk.ask(
            joining(group, instance="place", protocols={"range": wish(b"changed")}), version, why="with other wishes"
        )


def a_member_that_falls_silent(talk: Talk) -> None:
    group = talk.group()
    member = new_member_id(talk, group)
    talk.ask(joining(group, member, session_ms=600))
    talk.ask(syncing(group, member, 1, {member: b"all"}))
    waiting_for_state(talk, group, "Empty")
    talk.ask(beating(group, member, 1), why="too late")
    describe(talk, group, "without members")


def a_member_that_does_not_come_to_the_rebalance(talk: Talk) -> None:
    group = talk.group()
    second = talk.connect()
    one = new_member_id(talk, group)
    talk.ask(joining(group, one, rebalance_ms=700))
    talk.ask(syncing(group, one, 1, {one: b"all"}))
    other = new_member_id(talk, group, second)
    talk.ask(joining(group, other, rebalance_ms=700), why="the second", on=second, keep=members_in_order)
    talk.ask(beating(group, one, 1), why="the first, too late")


def a_leader_that_never_assigns(talk: Talk) -> None:
    group = talk.group()
    second = talk.connect()
    one = new_member_id(talk, group)
    other = new_member_id(talk, group)
    first_joins = talk.send(joining(group, one, rebalance_ms=900, session_ms=20_000), why="the first")
    talk.hear(first_joins)
    waiting = talk.send(joining(group, other, rebalance_ms=900, session_ms=20_000), why="the second", on=second)
    waiting_for_state(talk, group, "PreparingRebalance")
    talk.ask(joining(group, one, rebalance_ms=900, session_ms=20_000), why="the first again", keep=members_in_order)
    talk.hear(waiting)
    talk.ask(
        syncing(group, other, 2), why="the second waits for an assignment that never comes", on=second, keep=error_alone
    )


def error_alone(answer: dict[str, Plain]) -> Plain:
    return answer.get("error_code", 0)


def an_id_that_is_never_used(talk: Talk) -> None:
    group = talk.group()
    joined = talk.ask(joining(group, session_ms=600), 9, why="for an id")
    member = joined.member_id if joined is not None else ""
    describe(talk, group, "with an id handed out")
    talk.ask(beating(group, member, 0), why="with that id")
    time.sleep(1.0)
    talk.ask(joining(group, member, session_ms=600), 9, why="with the id, long after")


def protocols_are_voted_on(talk: Talk) -> None:
    group = talk.group()
    second = talk.connect()
    one, other = new_member_id(talk, group), new_member_id(talk, group)
    talk.ask(joining(group, one, protocols={"sticky": wish(b"s1"), "range": wish(b"r1")}), why="prefers sticky")
    both = {"range": wish(b"r2"), "sticky": wish(b"s2")}
    waiting = talk.send(joining(group, other, protocols=both), why="prefers range", on=second)
    waiting_for_state(talk, group, "PreparingRebalance")
    votes = joining(group, one, protocols={"roundrobin": wish(b"x"), "range": wish(b"r1")})
    talk.ask(votes, why="prefers what the other lacks", keep=members_in_order)
    talk.hear(waiting)


def states_described_and_listed(talk: Talk) -> None:
    nowhere = talk.group()
    for version in stable_versions(ApiKey.DESCRIBE_GROUPS):
        talk.ask(DescribeGroupsRequest(groups=[nowhere]), version, why="no such group")
    talk.ask(DescribeGroupsRequest(groups=[]), why="none")
    talk.ask(DescribeGroupsRequest(groups=[""]), why="no name")
    group = talk.group()
    member, _ = alone(talk, group)
    for version in stable_versions(ApiKey.DESCRIBE_GROUPS):
        talk.ask(DescribeGroupsRequest(groups=[group]), version, why="stable")
        if version >= 3:
            asked = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
            talk.ask(asked, version, why="with what one may do")
    asked = DescribeGroupsRequest(groups=[group, nowhere, group])
    talk.ask(asked, why="three", keep=lambda answer: sorted_by(answer["groups"], "group_id"))

    def mine(answer: dict[str, Plain]) -> Plain:
        rows = sorted_by(answer.get("groups", []), "group_id")
        assert isinstance(rows, list)
        return {**answer, "groups": [row for row in rows if isinstance(row, dict) and row.get("group_id") == group]}

    for version in stable_versions(ApiKey.LIST_GROUPS):
        talk.ask(ListGroupsRequest(), version, why="stable", keep=mine)
    filters: dict[str, ListGroupsRequest] = {
        "in state Stable": ListGroupsRequest(states_filter=["Stable"]),
        "in state stable": ListGroupsRequest(states_filter=["stable"]),
        "in state Empty": ListGroupsRequest(states_filter=["Empty"]),
        "in state Nonsense": ListGroupsRequest(states_filter=["Nonsense"]),
        "of type classic": ListGroupsRequest(types_filter=["classic"]),
        "of type Classic": ListGroupsRequest(types_filter=["Classic"]),
        "of type consumer": ListGroupsRequest(types_filter=["consumer"]),
        "of type nonsense": ListGroupsRequest(types_filter=["nonsense"]),
        "stable and classic": ListGroupsRequest(states_filter=["Stable", "Empty"], types_filter=["classic"]),
    }
    for why, listing in filters.items():
        talk.ask(listing, why=why, keep=mine)
    talk.ask(leaving(group, member))
    describe(talk, group, "empty")
    talk.ask(ListGroupsRequest(), why="empty", keep=mine)


def deleting(talk: Talk) -> None:
    nowhere = talk.group()
    group = talk.group()
    member, _ = alone(talk, group)
    for version in stable_versions(ApiKey.DELETE_GROUPS):
        talk.ask(DeleteGroupsRequest(groups_names=[nowhere]), version, why="no such group")
        talk.ask(DeleteGroupsRequest(groups_names=[group]), version, why="one with a member")
    talk.ask(DeleteGroupsRequest(groups_names=[""]), why="no name")
    talk.ask(DeleteGroupsRequest(groups_names=[]), why="none")
    talk.ask(leaving(group, member))
    talk.ask(DeleteGroupsRequest(groups_names=[group]), why="one without members")
    describe(talk, group, "deleted")
    topic = talk.topic()
    offsets_only = talk.group()
    talk.ask(commit(offsets_only, topic, [3]), 8, why="from outside")
    describe(talk, offsets_only, "offsets alone")
    talk.ask(
        DeleteGroupsRequest(groups_names=[offsets_only, nowhere]),
        why="one of two is there",
        keep=lambda answer: sorted_by(answer["results"], "group_id"),
    )


def another_type_of_group(talk: Talk) -> None:
    group = talk.group()
    member = new_member_id(talk, group)
    talk.ask(joining(group, member, protocol_type="connect", protocols={"sessioned": b"\0\1"}))
    talk.ask(syncing(group, member, 1, {member: b"work"}, protocol_type="connect", protocol_name="sessioned"))
    describe(talk, group, "of another type")


def wishes_that_cannot_be_read(talk: Talk) -> None:
    group = talk.group()
    member = new_member_id(talk, group)
    talk.ask(joining(group, member, protocols={"range": b"rubbish"}), why="rubbish", patience_seconds=2)


CONVERSATIONS = (
    every_version,
    two_members,
    a_leader_that_joins_again_starts_a_rebalance,
    an_assignment_without_a_member,
    joins_that_are_refused,
    a_rebalance_of_no_time,
    calls_of_strangers,
    static_members,
    static_members_in_older_versions,
    a_member_that_falls_silent,
    a_member_that_does_not_come_to_the_rebalance,
    a_leader_that_never_assigns,
    an_id_that_is_never_used,
    protocols_are_voted_on,
    states_described_and_listed,
    deleting,
    another_type_of_group,
    wishes_that_cannot_be_read,
)
