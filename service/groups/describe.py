"""What the describing and listing commands are told about groups. Reads only; called by GroupCoordinator."""

from collections.abc import Iterable, Mapping, Sequence
from typing import overload

from service.groups.classic_group import ClassicGroup
from service.groups.commands import (
    ClassicGroupFacts,
    ClassicMemberFacts,
    ConsumerGroupFacts,
    ConsumerMemberFacts,
    ListedGroupFacts,
    ListGroups,
    ListReply,
    NamedPartitions,
)
from service.groups.consumer_group import ConsumerGroup, ConsumerMember, TargetByTopic
from service.groups.consumer_protocol import PROTOCOL_TYPE
from service.groups.states import DEAD, ClassicState
from service.groups.topics import TopicView
from service.groups.verdicts import Fault

Group = ClassicGroup | ConsumerGroup


def describe_classic(group: Group | None, group_id: str) -> ClassicGroupFacts:
    if not isinstance(group, ClassicGroup):
        what = "is a consumer group" if group is not None else "does not exist"
        return ClassicGroupFacts(Fault.GROUP_ID_NOT_FOUND, f"group {group_id} {what}", DEAD)
    # Only a stable group has one protocol that all its members' metadata belong to.
    name = group.protocol_name if group.state is ClassicState.STABLE else None
    members = tuple(
        ClassicMemberFacts(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(name) if name is not None else b"",
            member.assignment,
        )
        for member in group.members.values()
    )
    return ClassicGroupFacts(
        state=group.state.value, protocol_type=group.protocol_type or "", protocol_name=name or "", members=members
    )


def describe_consumer(
    group: Group | None, group_id: str, topics: TopicView, default_assignor: str
) -> ConsumerGroupFacts:
    if not isinstance(group, ConsumerGroup):
        what = "is a classic group" if group is not None else "does not exist"
        return ConsumerGroupFacts(Fault.GROUP_ID_NOT_FOUND, f"group {group_id} {what}")
    return ConsumerGroupFacts(
        state=group.state.value,
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor=group.preferred_assignor(group.members.values()) or default_assignor,
        members=DescribedMembers(
            [(member, group.target.get(member.member_id, {})) for member in group.members.values()], topics
        ),
    )


class DescribedMembers(Sequence[ConsumerMemberFacts]):
    """Members as they are now, each described when it is looked at: ten thousand are not described in one turn."""

    def __init__(self, members: list[tuple[ConsumerMember, TargetByTopic]], topics: TopicView) -> None:
        self._members = members
        self._topics = topics

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, place: int) -> ConsumerMemberFacts: ...
    @overload
    def __getitem__(self, place: slice) -> "DescribedMembers": ...
    def __getitem__(self, place: int | slice) -> "ConsumerMemberFacts | DescribedMembers":
        if isinstance(place, slice):
            return DescribedMembers(self._members[place], self._topics)
        return _describe_member(*self._members[place], self._topics)


def _describe_member(member: ConsumerMember, target: TargetByTopic, topics: TopicView) -> ConsumerMemberFacts:
    return ConsumerMemberFacts(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        member.client_id,
        member.client_host,
        tuple(sorted(member.subscribed_topics)),
        member.subscribed_regex,
        _named(member.held(), topics),
        _named(target, topics),
        member.classic is not None,
    )


def _named(held: Mapping[bytes, frozenset[int]], topics: TopicView) -> tuple[NamedPartitions, ...]:
    """Topics that are gone are left out."""
    return tuple(
        NamedPartitions(topic_id, facts.name, tuple(sorted(partitions)))
        for topic_id, partitions in held.items()
        if (facts := topics.by_id(topic_id)) is not None
    )


def list_groups(groups: Iterable[Group], ask: ListGroups) -> ListReply:
    listed = (_listed(group) for group in groups)
    return ListReply(
        tuple(
            facts
            for facts in listed
            if (not ask.states or facts.state.lower() in ask.states) and (not ask.types or facts.type in ask.types)
        )
    )


def _listed(group: Group) -> ListedGroupFacts:
    if isinstance(group, ClassicGroup):
        return ListedGroupFacts(group.group_id, group.protocol_type or "", group.state.value, "classic")
    return ListedGroupFacts(group.group_id, PROTOCOL_TYPE, group.state.value, "consumer")
