"""The group coordinator of one partition of `__consumer_offsets`, as a machine.

    decision = coordinator.decide(command, token, now_ms)
    for key, value in decision.records:          # at once, before anybody else asks anything
        coordinator.apply(key, value)            # with the producer's id, if the decision has one
    ... write them as one batch, wait until they are committed, send the answers ...

After a start, or taking over the partition, the same `apply` reads the log (`apply_marker` its transaction markers),
and the first call of anything else makes the groups live: members keep their places and their sessions begin anew.
What is durable is written by these two alone. Rebalances of classic groups, parked requests and deadlines are soft:
they die with the machine, and clients join again. No clock, no randomness, no I/O: time, fresh ids, and views of the
topics and of the wall clock come in. `now_ms` only ever runs on; what is stored is stamped by the wall clock.

`next_deadline_ms` says when `expire` wants to be called. One call does as much as fits into one batch and one turn of
the loop, so that it may be due again at once.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import assert_never

from service.groups.classic_decisions import ClassicDecisions, DeadlineKind, DeadlineName
from service.groups.classic_group import ClassicGroup
from service.groups.cleaning import CLEANING_KINDS, Cleaning
from service.groups.commands import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER,
    STATIC_LEAVE_EPOCH,
    Command,
    CommitOffsets,
    CommitTransactionalOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DeleteGroup,
    DeleteOffsets,
    DescribeClassicGroup,
    DescribeConsumerGroup,
    FaultReply,
    FetchOffsets,
    ForgetTopic,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeftMember,
    ListGroups,
    NameGroups,
    NameOffsets,
    NamesReply,
    SyncGroup,
    SyncReply,
)
from service.groups.consumer_decisions import ConsumerDecisions
from service.groups.consumer_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from service.groups.deadlines import Deadlines
from service.groups.describe import describe_classic, describe_consumer, list_groups
from service.groups.migration import Migration
from service.groups.offset_decisions import OffsetDecisions
from service.groups.offsets import CommittedOffset, Offsets
from service.groups.records import (
    ConsumerKey,
    classic_group_tombstone,
    consumer_group_tombstones,
    empty_classic_group_record,
    fits,
    read_classic_facts,
    read_held,
    read_key,
    read_member_state,
    read_offset,
    read_value,
)
from service.groups.settings import GroupSettings
from service.groups.states import ClassicState
from service.groups.topics import TopicView
from service.groups.verdicts import Decision, Draft, Fault, RecordPair, Refusal, Token
from service.wire.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
)

Group = ClassicGroup | ConsumerGroup
NO_PRODUCER_ID = -1

FAILED_AGAIN_MS = 60_000
WAKING: DeadlineName = ("wake", "", "")

# A turn of the loop is for everybody: one call of `expire` ends this many members' sessions, or does one piece of what
# is done in pieces, and is due again at once.
DUE_AT_ONCE = 100
WOKEN_AT_ONCE = 200
IN_TURNS: tuple[DeadlineKind, ...] = ("answers", "regex", "assign", "wake", *CLEANING_KINDS)


class GroupCoordinator:
    def __init__(self, settings: GroupSettings, topics: TopicView, wall_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._topics = topics
        self._wall_ms = wall_ms
        self._groups: dict[str, Group] = {}
        # Classic groups made by a decision whose records are not applied yet: the next record of that group brings
        # them in.
        self._announced: dict[str, ClassicGroup] = {}
        self._offsets = Offsets()
        self._deadlines: Deadlines[DeadlineName] = Deadlines()
        self._is_live = False
        self._asleep: dict[str, None] = {}  # groups that are as the log left them: a question about one wakes it
        self._classic = ClassicDecisions(settings, self._deadlines)
        self._consumer = ConsumerDecisions(settings, topics, self._deadlines)
        self._migration = Migration(settings, topics, self._deadlines, self._classic, self._consumer)
        self._offset_decisions = OffsetDecisions(settings, self._offsets)
        self._cleaning = Cleaning(
            settings,
            self._offsets,
            topics,
            self._deadlines,
            find=self._find,
            bury=self._buried,
            group_ids=lambda: list(self._groups),
        )

    # The machine's four sides
    # -------------------------------------------------------------------------------------------

    def decide(self, command: Command, token: Token, now_ms: int) -> Decision:
        draft = Draft(now_ms, self._wall_ms())
        self._become_live(draft)
        self._decide(command, token, draft)
        return draft.seal()

    def next_deadline_ms(self) -> int | None:
        """When `expire` is due; before the groups are live it is due at once."""
        return self._deadlines.next_ms() if self._is_live else 0

    def expire(self, now_ms: int) -> Decision:
        draft = Draft(now_ms, self._wall_ms())
        self._become_live(draft)
        for _ in range(DUE_AT_ONCE):
            name = self._deadlines.pop_due(now_ms)
            if name is None:
                break
            try:
                self._fall_due(name, draft)
            except Exception:
                self._deadlines.set(name, now_ms + FAILED_AGAIN_MS)  # a deadline that raises is not forgotten
                raise
            # What follows from records can be decided only once they are applied.
            if draft.records or len(draft.answers) >= DUE_AT_ONCE or name[0] in IN_TURNS:
                break
        return draft.seal()

    def apply(
        self,
        key: bytes,
        value: bytes | None,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
    ) -> None:
        """One record of the partition, in the order of the log; with a producer's id if its batch is transactional."""
        read = read_key(key)
        match read:
            case None:
                return  # of a kind of group that is not ours
            case OffsetCommitKey() | LegacyOffsetCommitKey():
                self._apply_offset(read.group, read.topic, read.partition, value, producer_id)
            case GroupMetadataKey():
                self._apply_classic(read.group, value)
            case _:
                self._apply_consumer(read, value)

    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """The producer's transaction has ended in this partition: its offsets count now, or never will."""
        self._offsets.end_transaction(producer_id, committed=committed)

    def groups(self) -> Iterator[Group]:
        """Every group, to look at only. One that nobody asked for since a replay may still be asleep."""
        return iter(self._groups.values())

    def committed(self, group_id: str) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """Its committed offsets by topic and partition. To look at only."""
        return self._offsets.of_group(group_id)

    def pending(self, group_id: str) -> int:
        """Partitions whose offsets wait for a transaction to end."""
        return self._offsets.pending_count(group_id)

    def durable_facts(self) -> object:
        """All that the log says, in a form that can be compared: two machines that applied the same log agree on it."""
        groups = {
            group_id: self._classic_facts(group) if isinstance(group, ClassicGroup) else group
            for group_id, group in self._groups.items()
        }
        return groups, self._offsets.facts()

    def _classic_facts(self, group: ClassicGroup) -> object:
        """A group that stands still must live as its record says; one that rebalances only goes back to it."""
        if group.stored is None:
            return None
        is_awake = self._is_live and group.group_id not in self._asleep
        stands_still = is_awake and group.state in (ClassicState.STABLE, ClassicState.EMPTY)
        return group.stored, (group if stands_still else _from_stored(group)).facts()

    # Deciding
    # -----------------------------------------------------------------------------------------------------------

    def _become_live(self, draft: Draft) -> None:
        if self._is_live:
            return
        self._is_live = True
        self._asleep = dict.fromkeys(self._groups)
        self._cleaning.begin(draft)
        self._deadlines.set(WAKING, draft.now_ms)

    def _wake_some(self, draft: Draft) -> None:
        for group_id in list(islice(self._asleep, WOKEN_AT_ONCE)):
            self._find(group_id, draft)
        if self._asleep:
            self._deadlines.set(WAKING, draft.now_ms)

    def _find(self, group_id: str, draft: Draft) -> Group | None:
        """The group as it lives."""
        group = self._groups.get(group_id)
        if group_id in self._asleep:
            del self._asleep[group_id]
            if isinstance(group, ConsumerGroup):
                self._consumer.resume(group, draft)
            elif group is not None and group.stored is not None:
                group = self._groups[group_id] = _from_stored(group)
                self._classic.resume(group, draft)
        return group

    def _decide(self, command: Command, token: Token, draft: Draft) -> None:
        match command:
            case JoinGroup():
                self._join(command, token, draft)
            case SyncGroup():
                self._sync(command, token, draft)
            case Heartbeat():
                self._heartbeat(command, token, draft)
            case LeaveGroup():
                self._leave(command, token, draft)
            case ConsumerHeartbeat():
                draft.answer(token, self._consumer_heartbeat(command, draft))
            case CommitOffsets():
                draft.answer(token, self._commit(command, draft))
            case CommitTransactionalOffsets():
                group = self._find(command.group_id, draft)
                draft.answer(token, self._offset_decisions.commit_in_transaction(group, command, draft))
            case NameOffsets():
                draft.answer(token, self._offset_decisions.name(command))
            case FetchOffsets():
                group = self._find(command.group_id, draft)
                draft.answer(token, self._offset_decisions.fetch(group, command))
            case DeleteOffsets():
                group = self._find(command.group_id, draft)
                draft.answer(token, self._offset_decisions.delete(group, command, draft))
            case ForgetTopic():
                self._cleaning.forget_topic(command.topic, command.topic_id, draft)
                draft.answer(token, FaultReply())
            case DescribeClassicGroup():
                draft.answer(token, describe_classic(self._find(command.group_id, draft), command.group_id))
            case DescribeConsumerGroup():
                draft.answer(token, self._describe_consumer(command, draft))
            case NameGroups():
                draft.answer(token, NamesReply(tuple(self._groups)))
            case ListGroups():
                found = (self._find(group_id, draft) for group_id in command.group_ids)
                draft.answer(token, list_groups((group for group in found if group is not None), command))
            case DeleteGroup():
                self._cleaning.delete_group(command.group_id, token, draft)
            case _:
                assert_never(command)

    def _join(self, ask: JoinGroup, token: Token, draft: Draft) -> None:
        if not fits(ask.group_id):
            draft.answer(token, JoinReply(ask.member_id, Fault.INVALID_GROUP_ID))
            return
        if not fits(ask.instance_id, ask.client_id, ask.protocol_type, *(name for name, _ in ask.protocols)):
            draft.answer(token, JoinReply(ask.member_id, Fault.INVALID_REQUEST))
            return
        limits = (self._settings.group_min_session_timeout_ms, self._settings.group_max_session_timeout_ms)
        if not limits[0] <= ask.session_timeout_ms <= limits[1]:
            draft.answer(token, JoinReply(ask.member_id, Fault.INVALID_SESSION_TIMEOUT))
            return
        group = self._find(ask.group_id, draft)
        if isinstance(group, ConsumerGroup) and group.members:
            self._announce(self._migration.join(group, ask, token, draft))
        elif isinstance(group, ClassicGroup):
            self._classic.join(group, ask, token, draft)
        elif ask.member_id != NO_MEMBER:
            draft.answer(token, JoinReply(ask.member_id, Fault.UNKNOWN_MEMBER_ID))
        else:
            self._join_new_group(group, ask, token, draft)

    def _join_new_group(self, emptied: ConsumerGroup | None, ask: JoinGroup, token: Token, draft: Draft) -> None:
        """A classic group comes to be, perhaps in the place of an empty consumer group, and is recorded as empty."""
        if emptied is not None:
            self._consumer.forget(emptied)
            draft.records.extend(consumer_group_tombstones(ask.group_id, (), emptied.resolved))
        made = ClassicGroup(ask.group_id, state_timestamp_ms=draft.wall_ms)
        draft.records.append(empty_classic_group_record(ask.group_id, draft.wall_ms))
        self._announce(made)
        self._classic.join(made, ask, token, draft)

    def _sync(self, ask: SyncGroup, token: Token, draft: Draft) -> None:
        match self._find(ask.group_id, draft):
            case None:
                draft.answer(token, SyncReply(Fault.UNKNOWN_MEMBER_ID))
            case ClassicGroup() as group:
                self._classic.sync(group, ask, token, draft)
            case ConsumerGroup() as group:
                self._migration.sync(group, ask, token, draft)

    def _heartbeat(self, ask: Heartbeat, token: Token, draft: Draft) -> None:
        match self._find(ask.group_id, draft):
            case None:
                draft.answer(token, FaultReply(Fault.UNKNOWN_MEMBER_ID))
            case ClassicGroup() as group:
                self._classic.heartbeat(group, ask, token, draft)
            case ConsumerGroup() as group:
                self._migration.heartbeat(group, ask, token, draft)

    def _leave(self, ask: LeaveGroup, token: Token, draft: Draft) -> None:
        match self._find(ask.group_id, draft):
            case None:
                unknown = Fault.UNKNOWN_MEMBER_ID
                members = tuple(LeftMember(each.member_id, each.instance_id, unknown) for each in ask.members)
                draft.answer(token, LeaveReply(None, members))
            case ClassicGroup() as group:
                self._classic.leave(group, ask, token, draft)
            case ConsumerGroup() as group:
                self._announce(self._migration.leave(group, ask, token, draft))

    def _consumer_heartbeat(self, ask: ConsumerHeartbeat, draft: Draft) -> ConsumerHeartbeatReply:
        answer = self._consumer.refuse_malformed(ask) or self._beat_or_leave(ask, draft)
        if isinstance(answer, ConsumerHeartbeatReply):
            return answer
        draft.records.clear()
        return ConsumerHeartbeatReply(answer.fault, answer.message)

    def _beat_or_leave(self, ask: ConsumerHeartbeat, draft: Draft) -> ConsumerHeartbeatReply | Refusal:
        group = self._find(ask.group_id, draft)
        if ask.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            if not isinstance(group, ConsumerGroup):
                return _no_consumer_group(ask.group_id)
            return self._consumer_leave(group, ask, draft)
        if isinstance(group, ConsumerGroup):
            return self._consumer.heartbeat(group, ask, draft)
        if ask.member_epoch != JOIN_EPOCH:
            return _no_consumer_group(ask.group_id)
        if isinstance(group, ClassicGroup) and group.state is not ClassicState.EMPTY:
            return self._upgrade_by(group, ask, draft)
        if group is not None:
            draft.records.append(classic_group_tombstone(ask.group_id))
        answer = self._consumer.heartbeat(ConsumerGroup(ask.group_id), ask, draft)
        if group is not None and isinstance(answer, ConsumerHeartbeatReply):
            self._classic.forget(group)
        return answer

    def _upgrade_by(
        self, group: ClassicGroup, ask: ConsumerHeartbeat, draft: Draft
    ) -> ConsumerHeartbeatReply | Refusal:
        made = self._migration.upgraded(group)
        if isinstance(made, Refusal):
            return made
        # First the heartbeat, which may be refused and then changes nothing; its records come after the group's.
        attempt = Draft(draft.now_ms, draft.wall_ms)
        answer = self._consumer.heartbeat(made, ask, attempt)
        if isinstance(answer, ConsumerHeartbeatReply):
            self._migration.record_upgrade(group, made, draft)
            draft.records.extend(attempt.records)
        return answer

    def _consumer_leave(
        self, group: ConsumerGroup, ask: ConsumerHeartbeat, draft: Draft
    ) -> ConsumerHeartbeatReply | Refusal:
        member = self._consumer.find_leaving(group, ask)
        if isinstance(member, Refusal):
            return member
        if ask.member_epoch == STATIC_LEAVE_EPOCH and ask.instance_id is not None:
            self._consumer.leave_for_a_while(group, member, draft)
        else:
            self._announce(self._migration.remove(group, [member], draft))
        return ConsumerHeartbeatReply(member_id=member.member_id, member_epoch=ask.member_epoch)

    def _commit(self, ask: CommitOffsets, draft: Draft) -> object:
        group = self._find(ask.group_id, draft)
        reply = self._offset_decisions.commit(group, ask, draft)
        if reply.fault is None and isinstance(group, ClassicGroup):
            self._classic.keep_session(group, ask.member_id, draft)
        return reply

    def _describe_consumer(self, ask: DescribeConsumerGroup, draft: Draft) -> object:
        group = self._find(ask.group_id, draft)
        default = self._settings.group_consumer_assignors[0]
        return describe_consumer(group, ask.group_id, self._topics, default)

    def _buried(self, group: Group) -> list[RecordPair]:
        if isinstance(group, ClassicGroup):
            self._classic.forget(group)
            return [classic_group_tombstone(group.group_id)]
        self._consumer.forget(group)
        return consumer_group_tombstones(group.group_id, group.members, group.resolved)

    def _announce(self, made: ClassicGroup | None) -> None:
        if made is not None:
            self._announced[made.group_id] = made

    # Time
    # ---------------------------------------------------------------------------------------------------------------

    def _fall_due(self, name: DeadlineName, draft: Draft) -> None:
        kind, group_id, member_id = name
        if kind in CLEANING_KINDS:
            self._cleaning.go_on(name, draft)
            return
        if name == WAKING:
            self._wake_some(draft)
            return
        match self._find(group_id, draft):
            case ClassicGroup() as group:
                self._classic_due(kind, group, member_id, draft)
            case ConsumerGroup() as group:
                self._consumer_due(kind, group, member_id, draft)

    def _classic_due(self, kind: str, group: ClassicGroup, member_id: str, draft: Draft) -> None:
        match kind:
            case "session":
                self._classic.session_over(group, member_id, draft)
            case "initial":
                self._classic.initial_delay_over(group, draft)
            case "join":
                self._classic.complete_join(group, draft)
            case "sync":
                self._classic.sync_deadline_over(group, draft)
            case "answers":
                self._classic.answer_some(group, draft)

    def _consumer_due(self, kind: str, group: ConsumerGroup, member_id: str, draft: Draft) -> None:
        if kind == "regex":
            self._consumer.resolve_regexes(group, draft)
            return
        if kind == "assign":
            self._consumer.assign_some(group, draft)
            return
        member = group.members.get(member_id)
        if member is not None:
            # Not heard of, did not let go of partitions, did not join again or sync: in each case others wait for it.
            self._announce(self._migration.remove(group, [member], draft))

    # Applying
    # -----------------------------------------------------------------------------------------------------------

    def _apply_offset(self, group_id: str, topic: str, partition: int, value: bytes | None, producer_id: int) -> None:
        if value is None:
            self._offsets.remove(group_id, topic, partition)
            return
        if group_id not in self._groups:
            self._groups[group_id] = ClassicGroup(group_id)  # a simple group: it holds offsets and nothing else
        if producer_id == NO_PRODUCER_ID:
            self._offsets.put(group_id, topic, partition, read_offset(value))
        else:
            self._offsets.put_pending(group_id, topic, partition, read_offset(value), producer_id=producer_id)

    def _apply_classic(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            if isinstance(self._groups.get(group_id), ClassicGroup):
                del self._groups[group_id]
            return
        group = self._announced.pop(group_id, None) or self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            group = ClassicGroup(group_id)
        if not self._is_live:
            read_value(GroupMetadataValue, value)  # who can't be read must be found out now, not in `_become_live`
        group.stored = value
        self._groups[group_id] = group

    def _apply_consumer(self, key: ConsumerKey, value: bytes | None) -> None:
        group = self._groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = ConsumerGroup(key.group_id)
        if value is None:
            self._apply_consumer_tombstone(group, key)
        else:
            _apply_consumer_value(group, key, value)
            self._groups[key.group_id] = group

    def _apply_consumer_tombstone(self, group: ConsumerGroup, key: ConsumerKey) -> None:
        match key:
            case ConsumerGroupMetadataKey():
                del self._groups[group.group_id]
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


def _apply_consumer_value(group: ConsumerGroup, key: ConsumerKey, value: bytes) -> None:
    match key:
        case ConsumerGroupMetadataKey():
            epoch = read_value(ConsumerGroupMetadataValue, value)
            group.epoch, group.metadata_hash = epoch.epoch, epoch.metadata_hash
        case ConsumerGroupPartitionMetadataKey():
            group.has_partition_metadata = True
        case ConsumerGroupMemberMetadataKey():
            group.put(
                _with_subscription(_member(group, key.member_id), read_value(ConsumerGroupMemberMetadataValue, value))
            )
        case ConsumerGroupTargetAssignmentMetadataKey():
            target_epoch = read_value(ConsumerGroupTargetAssignmentMetadataValue, value)
            group.assignment_epoch = target_epoch.assignment_epoch
            group.assignment_timestamp_ms = target_epoch.assignment_timestamp
        case ConsumerGroupTargetAssignmentMemberKey():
            target = read_value(ConsumerGroupTargetAssignmentMemberValue, value)
            group.target[key.member_id] = {
                topic.topic_id: frozenset(topic.partitions) for topic in target.topic_partitions
            }
        case ConsumerGroupCurrentMemberAssignmentKey():
            current = read_value(ConsumerGroupCurrentMemberAssignmentValue, value)
            group.put(_with_assignment(_member(group, key.member_id), current))
        case ConsumerGroupRegularExpressionKey():
            resolved = read_value(ConsumerGroupRegularExpressionValue, value)
            topics = frozenset(resolved.topics)
            group.resolve(key.regular_expression, ResolvedRegex(topics, resolved.version, resolved.timestamp))
        case _:
            assert_never(key)


def _member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    return group.members.get(member_id) or ConsumerMember(member_id)


def _with_subscription(member: ConsumerMember, said: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    return member._replace(
        instance_id=said.instance_id,
        rack_id=said.rack_id,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topics=frozenset(said.subscribed_topic_names),
        subscribed_regex=said.subscribed_topic_regex,
        rebalance_timeout_ms=said.rebalance_timeout_ms,
        server_assignor=said.server_assignor,
        classic=read_classic_facts(said),
    )


def _with_assignment(member: ConsumerMember, said: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
    return member._replace(
        member_epoch=said.member_epoch,
        previous_epoch=said.previous_member_epoch,
        state=read_member_state(said),
        assigned=read_held(said.assigned_partitions, said.member_epoch),
        revoking=read_held(said.partitions_pending_revocation, said.member_epoch),
    )


def _from_stored(group: ClassicGroup) -> ClassicGroup:
    assert group.stored is not None
    return ClassicGroup.from_stored(group.group_id, group.stored, read_value(GroupMetadataValue, group.stored))


def _no_consumer_group(group_id: str) -> Refusal:
    return Refusal(Fault.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")
