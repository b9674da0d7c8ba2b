"""Consumer groups (KIP-848) as a kind of group: their commands, their deadlines, and their records.

Each member moves by itself towards an assignment that the broker computes; `consumer_decisions.py` decides that. A
group is what its records say, in service as after a restart: except for a few notes, only `apply` writes it.
"""

from collections.abc import Callable, Generator
from typing import assert_never, cast

from service.groups.commands import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribeConsumerGroup,
)
from service.groups.consumer_decisions import ConsumerDecisions, answer_beat, no_consumer_group
from service.groups.consumer_group import ConsumerGroup, ConsumerMember, Raised, ResolvedRegex
from service.groups.describe import describe_consumer, not_a_consumer_group
from service.groups.kinds import Decide, FallDue, Group, PutOff
from service.groups.records import (
    CONSUMER_KEYS,
    ConsumerKey,
    ConsumerPartKey,
    consumer_group_tombstones,
    members_tombstones,
    read_current,
    read_key,
    read_said,
    read_target,
    read_value,
)
from service.groups.settings import GroupSettings
from service.groups.states import MemberState
from service.groups.topics import TopicView
from service.groups.verdicts import Answer, Draft, Fault, GroupRefusal, RecordPair, Token
from service.wire.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

# Removes members. If these are the last ones of this protocol, the group may be turned into one of another kind. If
# that is done in several turns, they are removed with the last one. Then the list is returned that keeps the answers.
Remove = Callable[[ConsumerGroup, list[ConsumerMember], Draft], list[Answer] | None]


class ConsumerKind:
    group_type = ConsumerGroup
    done_in_turns = frozenset({"regex", "look", "assign", "resume", "downgrade"})
    record_prefixes = frozenset(CONSUMER_KEYS)

    def __init__(
        self,
        settings: GroupSettings,
        topics: TopicView,
        decisions: ConsumerDecisions,
        *,
        remove: Remove,
        downgrade: FallDue,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._decisions = decisions
        self._remove = remove
        self.commands: dict[type, Decide] = {
            ConsumerHeartbeat: self._heartbeat,
            DescribeConsumerGroup: self._describe,
        }
        ask_again = ConsumerHeartbeatReply(Fault.COORDINATOR_LOAD_IN_PROGRESS, "the group is being deleted")
        self.joins: dict[type, PutOff] = {ConsumerHeartbeat: lambda ask: ask_again}
        self.deadlines: dict[str, FallDue] = {
            "regex": lambda group, _, draft: decisions.resolve_regexes(group, draft),
            "look": lambda group, _, draft: decisions.look_some(group, draft),
            "assign": lambda group, _, draft: decisions.assign_some(group, draft),
            "resume": lambda group, _, draft: decisions.resuming.go_on(group, draft),
            "downgrade": downgrade,
            "session": self._member_is_lost,
            "leave": self._member_is_lost,
            "rebalance": self._revocation_is_over,
            "rejoin": self._classic_time_is_over,
            "resync": self._classic_time_is_over,
        }

    # Commands ---------------------------------------------------------------------------------------------------------

    def _heartbeat(self, group: ConsumerGroup | None, ask: ConsumerHeartbeat, token: Token, draft: Draft) -> None:
        first = len(draft.records)
        answer_beat(self._decisions.refuse_malformed(ask) or self._beat(group, ask, draft), token, draft, first)

    def _beat(
        self, group: ConsumerGroup | None, ask: ConsumerHeartbeat, draft: Draft
    ) -> ConsumerHeartbeatReply | GroupRefusal:
        if group is None:
            if ask.member_epoch != JOIN_EPOCH:
                return no_consumer_group(ask.group_id)
            group = ConsumerGroup(ask.group_id)  # for this decision only: applying its records makes the group
        elif ask.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(group, ask, draft)
        return self._decisions.heartbeat(group, ask, draft)

    def _leave(
        self, group: ConsumerGroup, ask: ConsumerHeartbeat, draft: Draft
    ) -> ConsumerHeartbeatReply | GroupRefusal:
        member = self._decisions.find_leaving(group, ask)
        if isinstance(member, GroupRefusal):
            return member
        if ask.member_epoch == STATIC_LEAVE_EPOCH and ask.instance_id is not None:
            self._decisions.leave_for_a_while(group, member, draft)
        else:
            draft.kept = self._remove(group, [member], draft)
        return ConsumerHeartbeatReply(member_id=member.member_id, member_epoch=ask.member_epoch)

    def _member_is_lost(self, group: ConsumerGroup, member_id: str, draft: Draft) -> None:
        """Remove a member that sent no heartbeats, did not let go of partitions, or did not join or sync again in time.
        In each case other members may be waiting for it.
        """
        member = group.members.get(member_id)
        if member is not None:
            self._remove(group, [member], draft)

    # A member may go on by the other protocol under its id, and is not held to the times of the former one then.

    def _revocation_is_over(self, group: ConsumerGroup, member_id: str, draft: Draft) -> None:
        member = group.members.get(member_id)
        if member is not None and member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            self._member_is_lost(group, member_id, draft)

    def _classic_time_is_over(self, group: ConsumerGroup, member_id: str, draft: Draft) -> None:
        member = group.members.get(member_id)
        if member is not None and member.classic is not None:
            self._member_is_lost(group, member_id, draft)

    def _describe(self, group: ConsumerGroup | None, ask: DescribeConsumerGroup, token: Token, draft: Draft) -> None:
        if group is None:
            draft.answer(token, not_a_consumer_group(None, ask.group_id))
        else:
            default = self._settings.group_consumer_assignors[0]
            draft.answer(token, describe_consumer(group, self._topics, default))

    def refuse(self, group: Group, command: object, token: Token, draft: Draft) -> None:
        match command:
            case ConsumerHeartbeat():
                answer_beat(no_consumer_group(command.group_id), token, draft, len(draft.records))
            case DescribeConsumerGroup():
                draft.answer(token, not_a_consumer_group(group, command.group_id))
            case _:
                raise AssertionError(f"nobody asks consumer groups for {command}")

    # Groups -----------------------------------------------------------------------------------------------------------

    def apply(self, groups: dict[str, Group], key: bytes, value: bytes | None, *, is_replay: bool) -> None:
        read = cast(ConsumerKey, read_key(key))
        group = groups.get(read.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = ConsumerGroup(read.group_id)
        if value is not None:
            _apply_value(group, read, value)
            if is_replay:
                group.replayed_epoch = group.assignment_epoch
            elif type(read) is ConsumerGroupMetadataKey:
                group.raised = Raised(group.epoch, self._topics.version)
            groups[read.group_id] = group
        elif isinstance(read, ConsumerGroupMetadataKey):
            del groups[read.group_id]  # this tombstone is written last, after those of all other records of the group
        else:
            _apply_tombstone(group, read)

    def make_ready(self, group: ConsumerGroup) -> Generator[None, None, None]:
        yield from ()  # its records have made it

    def wake(self, group: ConsumerGroup, draft: Draft) -> ConsumerGroup:
        self._decisions.resume(group, draft)
        return group

    def heard_of(self, group: ConsumerGroup, member_id: str, draft: Draft) -> None:
        """Does nothing: only heartbeats keep the session of a member alive."""

    def bury(self, group: ConsumerGroup) -> list[RecordPair]:
        self._decisions.forget(group)
        of_members = members_tombstones(group.group_id, group.members)
        return consumer_group_tombstones(group.group_id, of_members, group.resolved)

    def facts(self, group: ConsumerGroup, *, is_awake: bool) -> object:
        return group


def _apply_value(group: ConsumerGroup, key: ConsumerKey, value: bytes) -> None:
    match key:
        case ConsumerGroupCurrentMemberAssignmentKey():  # first, because each step of each member writes one
            group.put(_member(group, key.member_id).holding(read_current(value)))
        case ConsumerGroupMetadataKey():
            epoch = read_value(ConsumerGroupMetadataValue, value)
            group.epoch, group.metadata_hash = epoch.epoch, epoch.metadata_hash
        case ConsumerGroupPartitionMetadataKey():
            group.has_partition_metadata = True
        case ConsumerGroupMemberMetadataKey():
            group.put(_member(group, key.member_id).saying(read_said(value)))
        case ConsumerGroupTargetAssignmentMetadataKey():
            target_epoch = read_value(ConsumerGroupTargetAssignmentMetadataValue, value)
            group.assignment_epoch = target_epoch.assignment_epoch
            group.assignment_timestamp_ms = target_epoch.assignment_timestamp
        case ConsumerGroupTargetAssignmentMemberKey():
            group.target[key.member_id] = read_target(value)
        case ConsumerGroupRegularExpressionKey():
            resolved = read_value(ConsumerGroupRegularExpressionValue, value)
            topics = frozenset(resolved.topics)
            group.resolve(key.regular_expression, ResolvedRegex(topics, resolved.version, resolved.timestamp))
        case _:
            assert_never(key)


def _apply_tombstone(group: ConsumerGroup, key: ConsumerPartKey) -> None:
    match key:
        case ConsumerGroupPartitionMetadataKey():
            group.has_partition_metadata = False
        case ConsumerGroupMemberMetadataKey():
            group.drop(key.member_id)
        case ConsumerGroupTargetAssignmentMetadataKey():
            group.assignment_epoch, group.assignment_timestamp_ms = -1, 0
        case ConsumerGroupTargetAssignmentMemberKey():
            group.target.pop(key.member_id, None)
        case ConsumerGroupCurrentMemberAssignmentKey():
            group.unassign(key.member_id)
        case ConsumerGroupRegularExpressionKey():
            group.resolve(key.regular_expression, None)
        case _:
            assert_never(key)


def _member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    return group.members.get(member_id) or ConsumerMember(member_id)
