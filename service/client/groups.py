"""What brokers answer about groups, in one form for classic and consumer groups (KIP-848)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from log.ids import TopicPartition
from service.client.cluster import MOVED, RETRY_PAUSE_S, Cluster, Deadline, by_topic
from service.client.failures import ClientFailure, FailureKind, refused
from service.wire.codec import MalformedRequest, decode_data
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerProtocolAssignment,
    DescribeGroupsRequest,
    DescribeGroupsResponseDescribedGroup,
    ListedGroup,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a group, and the partitions it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TopicPartition] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupWithMembers:
    """A group with its members."""

    name: str
    state: str
    type: str
    assignor: str
    coordinator: int
    members: list[GroupMember]


async def list_groups(cluster: Cluster, nodes: Sequence[int] | None = None) -> list[ListedGroup]:
    """Every group on these nodes (None: on all), sorted by name."""
    found: dict[str, ListedGroup] = {}
    for node in await cluster.nodes() if nodes is None else nodes:
        response = await cluster.ask(ListGroupsRequest(), node=node)
        if response.error_code:
            raise refused(f"groups of broker {node}", response.error_code)
        found.update((group.group_id, group) for group in response.groups)
    return [found[name] for name in sorted(found)]


async def describe_group(cluster: Cluster, name: str) -> GroupWithMembers:
    """One group. A group that does not exist is a `ClientFailure` of the kind NOT_FOUND."""
    deadline = Deadline(cluster.timeout_s)
    while True:
        node = await cluster.coordinator(name)
        # The kind of the group is unknown. A classic group is "not found" for the request about consumer groups.
        newer = (await cluster.ask(ConsumerGroupDescribeRequest(group_ids=[name]), node=node)).groups[0]
        if newer.error_code == ErrorCode.NONE:
            return _newer_group(newer, node)
        older = (await cluster.ask(DescribeGroupsRequest(groups=[name]), node=node)).groups[0]
        if older.error_code == ErrorCode.NONE:
            if older.group_state == "Dead" and not older.members:
                raise ClientFailure(f"group {name} does not exist", FailureKind.NOT_FOUND)
            return _older_group(older, node)
        if older.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise ClientFailure(f"group {name} does not exist", FailureKind.NOT_FOUND)
        if older.error_code not in MOVED or deadline.passed():
            raise refused(f"group {name}", older.error_code, older.error_message)
        await asyncio.sleep(RETRY_PAUSE_S)


def _newer_group(group: ConsumerGroupDescribeResponseDescribedGroup, node: int) -> GroupWithMembers:
    members = [
        GroupMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host,
            partitions=[
                TopicPartition(topic.topic_name, number)
                for topic in member.assignment.topic_partitions
                for number in topic.partitions
            ],
        )
        for member in group.members
    ]
    return GroupWithMembers(group.group_id, group.group_state, "consumer", group.assignor_name, node, members)


def _older_group(group: DescribeGroupsResponseDescribedGroup, node: int) -> GroupWithMembers:
    members = [
        GroupMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host,
            partitions=_assigned(group.protocol_type, bytes(member.member_assignment)),
        )
        for member in group.members
    ]
    return GroupWithMembers(group.group_id, group.group_state, "classic", group.protocol_data, node, members)


def _assigned(protocol_type: str, data: bytes) -> list[TopicPartition]:
    """The partitions assigned to a member of a classic group, as far as they can be read: brokers take any bytes, and
    other programs (Connect) put other data into them.
    """
    if protocol_type != "consumer" or not data:
        return []
    try:
        assignment = read_assignment(data)
    except ClientFailure:
        return []
    return [
        TopicPartition(topic.topic, number) for topic in assignment.assigned_partitions for number in topic.partitions
    ]


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Read an assignment: two bytes of version, then a struct. Newer versions only append fields to the known ones."""
    version = min(int.from_bytes(data[:2], "big"), 3)
    try:
        return decode_data(ConsumerProtocolAssignment, version, memoryview(data)[2:])
    except MalformedRequest as error:
        raise ClientFailure(f"the group's leader has given out something that is no assignment: {error}") from None


async def committed_offsets(cluster: Cluster, group: str, *, settled: bool = False) -> dict[TopicPartition, int]:
    """The committed offsets of the group, for every partition that has one. With `settled`, it is a failure if an open
    transaction is about to commit others.
    """
    request = OffsetFetchRequest(
        group_id=group,
        topics=None,
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None)],
        require_stable=settled,
    )
    deadline = Deadline(cluster.timeout_s)
    while True:
        response = await cluster.ask(request, node=await cluster.coordinator(group))
        code = response.groups[0].error_code if response.groups else response.error_code
        if not code:
            break
        if code not in MOVED or deadline.passed():
            raise refused(f"offsets of group {group}", code)
        await asyncio.sleep(RETRY_PAUSE_S)
    listed = [topic.partitions for group_told in response.groups for topic in group_told.topics]
    told = (part.error_code for partitions in listed for part in partitions)
    if settled and ErrorCode.UNSTABLE_OFFSET_COMMIT in told:
        raise refused(f"offsets of group {group}", ErrorCode.UNSTABLE_OFFSET_COMMIT, "a transaction is open with some")
    if not response.groups:  # an old version of the request, which is about a single group
        return _fetched((topic.name, topic.partitions) for topic in response.topics)
    topics = response.groups[0].topics
    names = await _names_of_ids(cluster, [topic.topic_id for topic in topics if not topic.name])
    named = ((topic.name or names.get(topic.topic_id), topic.partitions) for topic in topics)
    return _fetched((name, partitions) for name, partitions in named if name is not None)  # else it is deleted


def _fetched(
    topics: Iterable[tuple[str, Sequence[OffsetFetchResponsePartition | OffsetFetchResponsePartitions]]],
) -> dict[TopicPartition, int]:
    return {
        TopicPartition(name, part.partition_index): part.committed_offset
        for name, partitions in topics
        for part in partitions
        if part.committed_offset >= 0 and not part.error_code
    }


async def _names_of_ids(cluster: Cluster, ids: Iterable[bytes]) -> Mapping[bytes, str]:
    """The names of topics by id, because the newest versions name topics by id. If an id is unknown, the names of all
    topics are fetched once.
    """
    if any(each not in cluster.topic_names for each in ids):
        await cluster.metadata(None)
    return cluster.topic_names


async def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    generation: int = -1,
    member_id: str = "",
) -> int:
    """Commit offsets. Returns the first error code of the answer, or 0. Without a member id the group must be empty."""
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            topic_id=cluster.topic_id(name),
            partitions=[
                OffsetCommitRequestPartition(partition_index=each.partition, committed_offset=offsets[each])
                for each in partitions
            ],
        )
        for name, partitions in by_topic(offsets).items()
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member_id, topics=topics
    )
    response = await cluster.ask(request, node=await cluster.coordinator(group))
    codes = [part.error_code for topic in response.topics for part in topic.partitions if part.error_code]
    return codes[0] if codes else 0
