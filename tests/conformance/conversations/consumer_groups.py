"""Groups of the KIP-848 protocol: heartbeats that carry everything, and the broker that assigns."""

from __future__ import annotations

import time
from collections.abc import Sequence

from service.wire.codec import encode_data
from service.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupResponse,
    ListGroupsRequest,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.conversations.classic_groups import (
    alone,
    beating,
    joining,
    leaving,
    new_member_id,
    syncing,
)
from tests.conformance.plain import Plain, sorted_by
from tests.conformance.say import STRANGE_ID
from tests.conformance.talk import Talk, stable_versions

REBALANCE_MS = 5_000


def beat(
    group: str,
    member: str,
    epoch: int,
    *,
    topics: Sequence[str] | None = None,
    owned: Sequence[tuple[bytes, Sequence[int]]] | None = None,
    instance: str | None = None,
    assignor: str | None = None,
    regex: str | None = None,
    rebalance_ms: int = -1,
    rack: str | None = None,
) -> ConsumerGroupHeartbeatRequest:
    rows = None
    if owned is not None:
        rows = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic, partitions=list(numbers))
            for topic, numbers in owned
        ]
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        instance_id=instance,
        rack_id=rack,
        rebalance_timeout_ms=rebalance_ms,
        subscribed_topic_names=None if topics is None else list(topics),
        subscribed_topic_regex=regex,
        server_assignor=assignor,
        topic_partitions=rows,
    )


def join(
    group: str,
    member: str,
    *topics: str,
    instance: str | None = None,
    assignor: str | None = None,
    regex: str | None = None,
) -> ConsumerGroupHeartbeatRequest:
    return beat(
        group,
        member,
        0,
        topics=topics,
        owned=[],
        instance=instance,
        assignor=assignor,
        regex=regex,
        rebalance_ms=REBALANCE_MS,
    )


def held_by(answer: ConsumerGroupHeartbeatResponse | None) -> list[tuple[bytes, list[int]]]:
    """What an answer assigns, to be said back as owned."""
    if answer is None or answer.assignment is None:
        return []
    return [(row.topic_id, list(row.partitions)) for row in answer.assignment.topic_partitions]


def partitions_in_order(answer: dict[str, Plain]) -> Plain:
    """Within a topic the partitions of an assignment come in any order."""
    assignment = answer.get("assignment")
    if isinstance(assignment, dict) and isinstance(rows := assignment.get("topic_partitions"), list):
        for row in rows:
            assert isinstance(row, dict) and isinstance(row["partitions"], list)
            row["partitions"] = sorted(row["partitions"], key=str)
        assignment["topic_partitions"] = sorted_by(rows, "topic_id")
    return answer


def how_many(answer: dict[str, Plain]) -> Plain:
    """How many partitions, where which of them is the assignor's business."""
    assignment = answer.get("assignment")
    if isinstance(assignment, dict) and isinstance(rows := assignment.get("topic_partitions"), list):
        counts = [
            len(row["partitions"]) for row in rows if isinstance(row, dict) and isinstance(row["partitions"], list)
        ]
        assignment["topic_partitions"] = sum(counts)
    return answer


def members_in_order(answer: dict[str, Plain]) -> Plain:
    groups = answer.get("groups", [])
    assert isinstance(groups, list)
    for group in groups:
        assert isinstance(group, dict)
        if "members" in group:
            group["members"] = sorted_by(group["members"], "instance_id", "member_id")
    return answer


def wanted_topic(talk: Talk, partitions: int = 1) -> str:
    """A topic that the coordinators of groups have heard of; nothing but time shows that they have."""
    topic = talk.topic(partitions)
    time.sleep(0.2)
    return topic


def every_version(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=3)
    group = talk.group()
    answer = talk.ask(join(group, "", topic), 0, why="without an id", keep=partitions_in_order)
    member = (answer.member_id if answer is not None else None) or ""
    talk.ask(beat(group, member, 1), 0, why="nothing new")
    talk.ask(beat(group, member, 1, owned=held_by(answer)), 0, why="what it owns")
    talk.ask(beat(group, member, -1), 0, why="leaves")
    group = talk.group()
    answer = talk.ask(join(group, "one", topic), 1, why="with an id of its own", keep=partitions_in_order)
    talk.ask(beat(group, "one", 1), 1, why="nothing new")
    talk.ask(beat(group, "one", 1, owned=held_by(answer)), 1, why="what it owns")
    talk.ask(
        beat(group, "one", 1, topics=[topic], rebalance_ms=REBALANCE_MS, owned=held_by(answer)), 1, why="everything"
    )
    talk.ask(beat(group, "one", -1), 1, why="leaves")
    talk.ask(beat(group, "one", 1), 1, why="after leaving")


def two_members(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=4)
    group = talk.group()
    first = talk.ask(join(group, "one", topic), why="the first", keep=partitions_in_order)
    talk.ask(beat(group, "one", 1, owned=held_by(first)), why="the first has them")
    talk.ask(join(group, "two", topic), why="the second waits", keep=how_many)
    less = talk.ask(beat(group, "one", 1), why="the first must give some up", keep=how_many)
    talk.ask(beat(group, "two", 2), why="the second still waits", keep=how_many)
    talk.ask(beat(group, "one", 1, owned=held_by(less)), why="the first gave them up", keep=how_many)
    more = talk.ask(beat(group, "two", 2), why="the second gets them", keep=how_many)
    talk.ask(beat(group, "two", 2, owned=held_by(more)), why="the second has them", keep=how_many)
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="both", keep=sizes_of_assignments)
    talk.ask(beat(group, "two", -1), why="the second leaves")
    talk.ask(beat(group, "one", 2), why="the first gets all", keep=partitions_in_order)


def sizes_of_assignments(answer: dict[str, Plain]) -> Plain:
    members_in_order(answer)
    groups = answer["groups"]
    assert isinstance(groups, list) and isinstance(groups[0], dict) and isinstance(groups[0]["members"], list)
    for member in groups[0]["members"]:
        assert isinstance(member, dict)
        for kind in ("assignment", "target_assignment"):
            found = member.get(kind)
            if isinstance(found, dict) and isinstance(rows := found.get("topic_partitions"), list):
                found["topic_partitions"] = sum(
                    len(row["partitions"])
                    for row in rows
                    if isinstance(row, dict) and isinstance(row["partitions"], list)
                )
    return answer


def joins_that_are_refused(talk: Talk) -> None:
    topic = wanted_topic(talk)
    group = talk.group()
    for version in (0, 1):
        talk.ask(join("", "one", topic), version, why="a group without a name")
        talk.ask(beat(group, "", 1), version, why="no id, but an epoch")
        talk.ask(beat(group, "one", 0, topics=[topic], owned=[]), version, why="no rebalance timeout")
        talk.ask(beat(group, "one", 0, owned=[], rebalance_ms=100), version, why="no topics")
        talk.ask(beat(group, "one", 0, topics=[topic], rebalance_ms=100), version, why="nothing said of what it owns")
        owned = [(STRANGE_ID, [0])]
        talk.ask(
            beat(group, "one", 0, topics=[topic], owned=owned, rebalance_ms=100), version, why="owning before joining"
        )
        talk.ask(beat(group, "one", -3), version, why="epoch -3")
        talk.ask(beat(group, "one", -2), version, why="epoch -2 without an instance")
        talk.ask(beat(group, "one", -2, instance="place"), version, why="epoch -2 of a stranger")
        talk.ask(beat(group, "one", -1), version, why="a stranger leaves")
        talk.ask(beat(group, "one", 5), version, why="a stranger beats")
        talk.ask(join(group, "one", topic, instance=""), version, why="an empty instance")
        talk.ask(join(group, "one", topic, assignor="no-such"), version, why="an assignor nobody has")
        talk.ask(join(group, "one", topic, assignor=""), version, why="an empty assignor")
        rack = beat(group, "one", 0, topics=[topic], owned=[], rebalance_ms=100, rack="")
        talk.ask(rack, version, why="an empty rack")
    talk.ask(join(group, "", topic), 1, why="no id in version 1")
    talk.ask(beat(group, "one", 0, topics=[topic], owned=[], rebalance_ms=0), 1, why="a rebalance of no time")
    talk.ask(join(group, "two", regex="("), 1, why="a pattern that is none")


def epochs(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=2)
    group = talk.group()
    answer = talk.ask(join(group, "one", topic), keep=partitions_in_order)
    for epoch in (2, 7):
        talk.ask(beat(group, "one", epoch), why=f"epoch {epoch}, not reached yet")
    talk.ask(join(group, "one", topic), why="joins again", keep=partitions_in_order)
    talk.ask(beat(group, "one", 1, topics=[topic, "another"], owned=held_by(answer)), why="other topics")
    talk.ask(beat(group, "one", 1), why="the epoch before, without what it owns")
    talk.ask(
        beat(group, "one", 1, owned=held_by(answer)),
        why="the epoch before, with what it owns",
        keep=partitions_in_order,
    )
    talk.ask(beat(group, "one", 2), why="the epoch now")
    talk.ask(beat(group, "nobody", 2), why="an id nobody has")
    talk.ask(
        beat(group, "one", 2, owned=[(STRANGE_ID, [0])]), why="owning what it was not given", keep=partitions_in_order
    )


def subscriptions(talk: Talk) -> None:
    first, second = wanted_topic(talk, partitions=2), wanted_topic(talk, partitions=1)
    group = talk.group()
    talk.ask(join(group, "one", "no-such-topic"), why="a topic that is not there")
    talk.ask(beat(group, "one", 1, topics=[first]), why="one that is", keep=partitions_in_order)
    talk.ask(
        beat(group, "one", 2, topics=[first, second, first]), why="two, one of them twice", keep=partitions_in_order
    )
    talk.ask(beat(group, "one", 3, topics=[]), why="none", keep=partitions_in_order)


def assignors(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=4)
    for name in ("uniform", "range"):
        group = talk.group()
        talk.ask(join(group, "a", topic, assignor=name), why=f"{name}: the first", keep=partitions_in_order)
        talk.ask(join(group, "b", topic, assignor=name), why=f"{name}: the second", keep=how_many)
        talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why=name, keep=sizes_of_assignments)
    group = talk.group()
    talk.ask(join(group, "a", topic, assignor="range"), why="wants range", keep=partitions_in_order)
    talk.ask(join(group, "b", topic, assignor="uniform"), why="wants uniform", keep=how_many)
    talk.ask(join(group, "c", topic, assignor="uniform"), why="wants uniform", keep=how_many)
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="the majority wins", keep=sizes_of_assignments)


def patterns(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=2)
    group = talk.group()
    joined = beat(group, "one", 0, topics=[], owned=[], regex=f"{topic}.*", rebalance_ms=REBALANCE_MS)
    talk.ask(joined, why="a pattern", keep=lambda answer: answer.get("error_code", 0))

    def assigned() -> bool:
        answer = talk.quietly(ConsumerGroupDescribeRequest(group_ids=[group]))
        members = answer.groups[0].members
        return bool(members) and bool(members[0].target_assignment.topic_partitions)

    def assigned_while_beating() -> bool:
        found = talk.quietly(ConsumerGroupDescribeRequest(group_ids=[group])).groups[0].members
        if found:
            talk.quietly(beat(group, "one", found[0].member_epoch))
        return assigned()

    talk.wait_for(assigned_while_beating)
    talk.ask(
        ConsumerGroupDescribeRequest(group_ids=[group]),
        why="found topics",
        keep=lambda answer: first_member(answer)["target_assignment"],
    )
    talk.ask(beat(group, "one", 99, regex="["), why="a bad pattern in a wrong epoch")


def first_member(answer: dict[str, Plain]) -> dict[str, Plain]:
    groups = answer["groups"]
    assert isinstance(groups, list) and isinstance(groups[0], dict) and isinstance(groups[0]["members"], list)
    member = groups[0]["members"][0]
    assert isinstance(member, dict)
    return member


def static_members(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=2)
    group = talk.group()
    answer = talk.ask(join(group, "one", topic, instance="place"), why="the first", keep=partitions_in_order)
    talk.ask(beat(group, "one", 1, owned=held_by(answer), instance="place"), why="has them")
    talk.ask(join(group, "two", topic, instance="place"), why="another while the place is taken")
    talk.ask(beat(group, "one", 1, instance="other place"), why="another place")
    talk.ask(beat(group, "one", -2, instance="place"), why="leaves for a while")
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="while it is away", keep=members_in_order)
    talk.ask(join(group, "two", topic, instance="place"), why="comes back", keep=partitions_in_order)
    talk.ask(beat(group, "one", 1, instance="place"), why="the one before")
    talk.ask(beat(group, "two", 1, instance="place"), why="the one now")
    talk.ask(beat(group, "two", -1, instance="place"), why="leaves for good")


def instances_at_the_edges(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=2)
    group = talk.group()
    answer = talk.ask(join(group, "one", topic, instance="place"), why="the first", keep=partitions_in_order)
    talk.ask(beat(group, "one", 2, owned=held_by(answer), instance="place"), why="has them")
    talk.ask(join(group, "one", topic, instance="place"), why="joins again with its own id, without having left")
    talk.ask(join(group, "one", topic), why="joins again and names no place", keep=partitions_in_order)
    talk.ask(beat(group, "one", 2), why="names no place")
    talk.ask(join(group, "two", topic), why="without a place", keep=how_many)
    talk.ask(beat(group, "two", 2, instance="place"), why="names a place that another has")
    talk.ask(beat(group, "two", 2, instance="new place"), why="names a place that nobody has")
    talk.ask(beat(group, "two", -2, instance="place"), why="leaves a place for a while that another has")
    talk.ask(beat(group, "two", -1, instance="place"), why="leaves a place for good that another has")
    talk.ask(beat(group, "two", -1, instance="new place"), why="leaves a place for good that nobody has")
    talk.ask(join(group, "two", topic, instance="second"), why="takes a place", keep=how_many)
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="two places", keep=sizes_of_assignments)
    talk.ask(beat(group, "two", -2, instance="second"), why="leaves for a while")
    talk.ask(beat(group, "two", -2, instance="second"), why="leaves for a while once more")
    talk.ask(join(group, "two", topic, instance="second"), why="comes back as it was", keep=how_many)
    talk.ask(beat(group, "two", -2, instance="second"), why="leaves again")
    talk.ask(join(group, "two", topic), why="comes back without its place", keep=how_many)
    talk.ask(beat(group, "two", -1), why="leaves and names no place")
    talk.ask(beat(group, "one", -1), why="leaves and names no place")
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="at last", keep=members_in_order)


def both_protocols_in_one_group(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=2)
    group = talk.group()

    def wishes(*owned: int) -> dict[str, bytes]:
        held = [ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=list(owned))] if owned else []
        said = ConsumerProtocolSubscription(topics=[topic], owned_partitions=held)
        return {"range": b"\0\1" + encode_data(said, 1)}

    def generation_of(answer: JoinGroupResponse | None) -> int:
        return answer.generation_id if answer is not None else -1

    everything = ConsumerProtocolAssignment(
        assigned_partitions=[ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=[0, 1])]
    )
    old = new_member_id(talk, group)
    talk.ask(joining(group, old, protocols=wishes()), why="classic")
    talk.ask(syncing(group, old, 1, {old: b"\0\1" + encode_data(everything, 1)}), why="classic")
    talk.ask(beat(group, "new", 1), why="not joined")
    talk.ask(join(group, "new", topic), why="the first of the new protocol", keep=partitions_in_order)
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="of both", keep=members_in_order)
    talk.ask(DescribeGroupsRequest(groups=[group]), why="of both")
    talk.ask(beating(group, old, 2), why="in a generation to come")
    talk.ask(beating(group, old, 1), why="is told to join again")
    talk.ask(syncing(group, old, 1), why="syncs before it joins")
    answer = talk.ask(joining(group, old, protocols=wishes(0, 1)), why="owns all")
    talk.ask(syncing(group, old, generation_of(answer) - 1), why="in the generation before")
    talk.ask(syncing(group, old, generation_of(answer), protocol_name="other"), why="of another name")
    talk.ask(syncing(group, old, generation_of(answer), protocol_type="connect"), why="of another type")
    talk.ask(syncing(group, old, generation_of(answer)), why="learns what is left")
    talk.ask(beating(group, old, generation_of(answer)), why="has still to let go")
    answer = talk.ask(joining(group, old, protocols=wishes(0)), why="has let go")
    talk.ask(syncing(group, old, generation_of(answer)), why="once more")
    talk.ask(beating(group, old, generation_of(answer)), why="at rest")
    for epoch in (2, 3):
        talk.ask(beat(group, "new", epoch), why=f"epoch {epoch}", keep=how_many)
    talk.ask(joining(group, protocols=wishes(), instance="place"), 9, why="a place", keep=error_alone)
    talk.ask(joining(group, "nobody", protocols=wishes()), why="an id nobody has", keep=error_alone)
    talk.ask(joining(group, "new", protocols=wishes()), why="the id of the other protocol's member", keep=error_alone)
    talk.ask(leaving(group, "nobody"), why="a stranger leaves")
    talk.ask(beat(group, old, 1), why="a classic id in the new protocol")
    talk.ask(beat(group, "new", -1), why="leaves")
    talk.ask(ListGroupsRequest(types_filter=["CLASSIC", "nonsense"]), keep=lambda answer: answer.get("error_code", 0))


def error_alone(answer: dict[str, Plain]) -> Plain:
    return answer.get("error_code", 0)


def silence(talk: Talk) -> None:
    topic = wanted_topic(talk)
    group = talk.group()
    talk.ask(join(group, "one", topic), keep=partitions_in_order)

    def empty() -> bool:
        return talk.quietly(ConsumerGroupDescribeRequest(group_ids=[group])).groups[0].group_state == "Empty"

    talk.wait_for(empty)
    talk.ask(beat(group, "one", 1), why="too late")
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="without members")


def a_member_that_gives_nothing_up(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=2)
    group = talk.group()
    first = talk.ask(
        beat(group, "one", 0, topics=[topic], owned=[], rebalance_ms=800), why="the first", keep=partitions_in_order
    )
    talk.ask(beat(group, "one", 1, owned=held_by(first)), why="has them")
    talk.ask(join(group, "two", topic), why="the second", keep=how_many)
    talk.ask(beat(group, "one", 1), why="is told to give up", keep=how_many)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        talk.quietly(beat(group, "one", 1))
        talk.quietly(beat(group, "two", 2))
        time.sleep(0.2)
    talk.ask(beat(group, "one", 1), why="was put out")


def described_and_listed(talk: Talk) -> None:
    topic = wanted_topic(talk, partitions=2)
    group, nowhere = talk.group(), talk.group()
    answer = talk.ask(join(group, "one", topic), keep=partitions_in_order)
    talk.ask(beat(group, "one", 1, owned=held_by(answer)))
    for version in stable_versions(ApiKey.CONSUMER_GROUP_DESCRIBE):
        talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version, why="one member")
        asked = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=True)
        talk.ask(asked, version, why="with what one may do")
        talk.ask(ConsumerGroupDescribeRequest(group_ids=[nowhere]), version, why="no such group")
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[]), why="none")
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[""]), why="no name")
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group, group]), why="one twice")
    for version in (0, 5, 6):
        talk.ask(DescribeGroupsRequest(groups=[group]), version, why="as if it were classic")

    def mine(answer: dict[str, Plain]) -> Plain:
        rows = answer.get("groups", [])
        assert isinstance(rows, list)
        return [row for row in rows if isinstance(row, dict) and row.get("group_id") == group]

    for version in stable_versions(ApiKey.LIST_GROUPS):
        talk.ask(ListGroupsRequest(), version, keep=mine)
    talk.ask(ListGroupsRequest(types_filter=["consumer"]), why="of type consumer", keep=mine)
    talk.ask(ListGroupsRequest(types_filter=["classic"]), why="of type classic", keep=mine)
    talk.ask(ListGroupsRequest(states_filter=["stable"]), why="stable", keep=mine)
    talk.ask(DeleteGroupsRequest(groups_names=[group]), why="with a member")
    talk.ask(beat(group, "one", -1))
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="empty")
    talk.ask(DeleteGroupsRequest(groups_names=[group]), why="empty")
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[group]), why="deleted")


def classic_calls_in_a_consumer_group(talk: Talk) -> None:
    topic = wanted_topic(talk)
    group = talk.group()
    talk.ask(join(group, "one", topic), keep=partitions_in_order)
    talk.ask(joining(group, "one"), why="a member of the other protocol")
    talk.ask(joining(group), why="a stranger with wishes that are not a subscription")
    talk.ask(joining(group, protocol_type="connect"), why="of another type")
    talk.ask(HeartbeatRequest(group_id=group, generation_id=1, member_id="one"), why="of the classic protocol")
    classic = talk.group()
    alone(talk, classic)
    talk.ask(join(classic, "new", topic), why="into a classic group whose members are no consumers")
    talk.ask(beat(classic, "new", 1), why="in a classic group")
    talk.ask(ConsumerGroupDescribeRequest(group_ids=[classic]), why="a classic group")


CONVERSATIONS = (
    every_version,
    two_members,
    joins_that_are_refused,
    epochs,
    subscriptions,
    assignors,
    patterns,
    static_members,
    instances_at_the_edges,
    both_protocols_in_one_group,
    silence,
    a_member_that_gives_nothing_up,
    described_and_listed,
    classic_calls_in_a_consumer_group,
)
