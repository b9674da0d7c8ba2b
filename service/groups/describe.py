"""The answers to the commands that describe groups. Nothing is changed here."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import overload

from service.groups.classic_group import ClassicGroup
from service.groups.commands import (
    ClassicGroupFacts,
    ClassicMemberFacts,
    ConsumerGroupFacts,
    ConsumerMemberFacts,
    NamedPartitions,
)
from service.groups.consumer_group import ConsumerGroup, ConsumerMember, TargetByTopic
from service.groups.kinds import Group
from service.groups.states import DEAD, ClassicState
from service.groups.topics import TopicView
from service.groups.verdicts import Fault


def not_a_classic_group(group: Group | None, group_id: str) -> ClassicGroupFacts:
    return ClassicGroupFacts(Fault.GROUP_ID_NOT_FOUND, _what_there_is(group, group_id), DEAD)


def not_a_consumer_group(group: Group | None, group_id: str) -> ConsumerGroupFacts:
    return ConsumerGroupFacts(Fault.GROUP_ID_NOT_FOUND, _what_there_is(group, group_id))


def _what_there_is(group: Group | None, group_id: str) -> str:
    return f"group {group_id} {'does not exist' if group is None else f'is a {group.kind} group'}"


def describe_classic(group: ClassicGroup) -> ClassicGroupFacts:
    # Only in a stable group the metadata of all members belong to the same protocol.
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


def describe_consumer(group: ConsumerGroup, topics: TopicView, default_assignor: str) -> ConsumerGroupFacts:
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
    """The members as they are now. Each is described when it is read, because describing ten thousand takes longer than
    one turn of the loop.
    """

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
        DescribedPartitions((member.assigned, member.revoking), topics),
        DescribedPartitions((target,), topics),
        member.classic is not None,
    )


class DescribedPartitions(Iterable[NamedPartitions]):
    """The partitions of all these parts, with the names of their topics, each of which is looked up when it is read.
    Topics that no longer exist are left out.
    """

    def __init__(self, parts: tuple[Mapping[bytes, Collection[int]], ...], topics: TopicView) -> None:
        self._parts = parts
        self._topics = topics

    def __iter__(self) -> Iterator[NamedPartitions]:
        for topic_id in dict.fromkeys(chain(*self._parts)):
            name = self._topics.name_of(topic_id)
            if name is not None:
                partitions = sorted({each for part in self._parts for each in part.get(topic_id, ())})
                yield NamedPartitions(topic_id, name, tuple(partitions))
