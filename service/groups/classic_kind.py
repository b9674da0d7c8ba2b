"""Classic groups as a kind of group: their commands, their deadlines, and their one type of record.

Members join together, one of them assigns, and every change makes a new generation; `classic_decisions.py` decides
that. The record of a group holds its last generation. Whatever else a live group knows is lost at a restart. So after
one a group is kept as the bytes of its record until it is first asked for.
"""

from collections.abc import Generator

from service.groups.classic_decisions import ClassicDecisions
from service.groups.classic_group import ClassicGroup
from service.groups.commands import (
    NO_MEMBER,
    DescribeClassicGroup,
    FaultReply,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeftMember,
    SyncGroup,
    SyncReply,
)
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.describe import describe_classic, not_a_classic_group
from service.groups.kinds import Decide, FallDue, Group, PutOff
from service.groups.records import (
    CLASSIC_KEYS,
    classic_group_tombstone,
    empty_classic_group_record,
    fits,
    read_key,
    read_value,
    read_value_in_turns,
)
from service.groups.settings import GroupSettings
from service.groups.states import ClassicState
from service.groups.verdicts import Draft, Fault, RecordPair, Token
from service.wire.messages import GroupMetadataKey, GroupMetadataValue

LARGE_BYTES = 64 << 10
"""A longer record, of some hundreds of members, is read in turns before its group wakes."""


class ClassicKind:
    group_type = ClassicGroup
    done_in_turns = frozenset({"initial", "join", "answers", "resume", "prepare"})
    record_prefixes = frozenset(CLASSIC_KEYS)

    def __init__(self, settings: GroupSettings, deadlines: Deadlines[DeadlineName]) -> None:
        self.decisions = decisions = ClassicDecisions(settings, deadlines)
        self._settings = settings
        # Groups made by a decision whose records are not applied yet. The group's next record puts them in their place.
        self._announced: dict[str, ClassicGroup] = {}
        self.commands: dict[type, Decide] = {
            JoinGroup: self.join,
            SyncGroup: self._sync,
            Heartbeat: self._heartbeat,
            LeaveGroup: self._leave,
            DescribeClassicGroup: self._describe,
        }
        self.joins: dict[type, PutOff] = {
            JoinGroup: lambda ask: JoinReply(ask.member_id, Fault.COORDINATOR_LOAD_IN_PROGRESS)
        }
        self.deadlines: dict[str, FallDue] = {
            "session": decisions.session_over,
            "initial": lambda group, _, draft: decisions.initial_delay_over(group, draft),
            "join": lambda group, _, draft: decisions.complete_join(group, draft),
            "sync": lambda group, _, draft: decisions.sync_deadline_over(group, draft),
            "answers": lambda group, _, draft: decisions.answer_some(group, draft),
            "resume": lambda group, _, draft: decisions.resuming.go_on(group, draft),
        }

    # Commands ---------------------------------------------------------------------------------------------------------

    def join(self, group: ClassicGroup | None, ask: JoinGroup, token: Token, draft: Draft) -> None:
        if (fault := self.join_fault(ask)) is not None:
            draft.answer(token, JoinReply(ask.member_id, fault))
        elif group is not None and draft.now_ms < group.held_until_ms:
            draft.answer(token, self.joins[JoinGroup](ask))
        elif group is not None:
            self.decisions.join(group, with_rebalance_timeout(ask), token, draft)
        elif ask.member_id != NO_MEMBER:
            draft.answer(token, JoinReply(ask.member_id, Fault.UNKNOWN_MEMBER_ID))
        else:
            made = ClassicGroup(ask.group_id, state_timestamp_ms=draft.wall_ms)
            draft.records.append(empty_classic_group_record(ask.group_id, draft.wall_ms))
            self.announce(made)
            self.decisions.join(made, with_rebalance_timeout(ask), token, draft)

    def join_fault(self, ask: JoinGroup) -> Fault | None:
        """What is wrong with the request, whatever the state of the group is."""
        if not fits(ask.group_id):
            return Fault.INVALID_GROUP_ID
        if not fits(ask.instance_id, ask.client_id, ask.protocol_type, *(name for name, _ in ask.protocols)):
            return Fault.INVALID_REQUEST
        limits = (self._settings.group_min_session_timeout_ms, self._settings.group_max_session_timeout_ms)
        return None if limits[0] <= ask.session_timeout_ms <= limits[1] else Fault.INVALID_SESSION_TIMEOUT

    def announce(self, made: ClassicGroup) -> None:
        """A decision has made this group. Its first records are in the draft."""
        self._announced[made.group_id] = made

    def _sync(self, group: ClassicGroup | None, ask: SyncGroup, token: Token, draft: Draft) -> None:
        if group is None:
            draft.answer(token, SyncReply(Fault.UNKNOWN_MEMBER_ID))
        else:
            self.decisions.sync(group, ask, token, draft)

    def _heartbeat(self, group: ClassicGroup | None, ask: Heartbeat, token: Token, draft: Draft) -> None:
        if group is None:
            draft.answer(token, FaultReply(Fault.UNKNOWN_MEMBER_ID))
        else:
            self.decisions.heartbeat(group, ask, token, draft)

    def _leave(self, group: ClassicGroup | None, ask: LeaveGroup, token: Token, draft: Draft) -> None:
        if group is None:
            unknown = Fault.UNKNOWN_MEMBER_ID
            members = tuple(LeftMember(each.member_id, each.instance_id, unknown) for each in ask.members)
            draft.answer(token, LeaveReply(None, members))
        else:
            self.decisions.leave(group, ask, token, draft)

    def _describe(self, group: ClassicGroup | None, ask: DescribeClassicGroup, token: Token, draft: Draft) -> None:
        draft.answer(token, not_a_classic_group(None, ask.group_id) if group is None else describe_classic(group))

    def refuse(self, group: Group, command: object, token: Token, draft: Draft) -> None:
        match command:
            case JoinGroup():
                draft.answer(token, JoinReply(command.member_id, Fault.INCONSISTENT_GROUP_PROTOCOL))
            case DescribeClassicGroup():
                draft.answer(token, not_a_classic_group(group, command.group_id))
            case _:  # a group of another kind has no members of this protocol
                self.commands[type(command)](None, command, token, draft)

    # Groups -----------------------------------------------------------------------------------------------------------

    def apply(self, groups: dict[str, Group], key: bytes, value: bytes | None, *, is_replay: bool) -> None:
        read = read_key(key)
        assert isinstance(read, GroupMetadataKey)
        known = groups.get(read.group)
        if value is None:
            if isinstance(known, ClassicGroup):
                del groups[read.group]
            return
        group = self._announced.pop(read.group, None) or known
        if not isinstance(group, ClassicGroup):
            group = ClassicGroup(read.group)
        if is_replay:
            read_value(GroupMetadataValue, value)  # a record that can't be read must fail now, not when the group wakes
        group.stored, group.ready = value, None
        groups[read.group] = group

    def make_ready(self, group: ClassicGroup) -> Generator[None, None, None]:
        if group.stored is not None and len(group.stored) > LARGE_BYTES and group.ready is None:
            value = yield from read_value_in_turns(GroupMetadataValue, group.stored)
            group.ready = yield from ClassicGroup.from_stored_in_turns(group.group_id, group.stored, value)

    def wake(self, group: ClassicGroup, draft: Draft) -> ClassicGroup:
        if group.stored is None:
            return group  # the group has no record: it holds offsets only
        awake = _from_stored(group) if group.ready is None else group.ready
        self.decisions.resume(awake, draft)
        return awake

    def heard_of(self, group: ClassicGroup, member_id: str, draft: Draft) -> None:
        self.decisions.keep_session(group, member_id, draft)

    def bury(self, group: ClassicGroup) -> list[RecordPair]:
        self.decisions.forget(group)
        return [classic_group_tombstone(group.group_id)]

    def facts(self, group: ClassicGroup, *, is_awake: bool) -> object:
        """The durable facts. A group that does not rebalance must be as its record says. A group that does would go
        back to the record after a restart, so the record is compared.
        """
        if group.stored is None:
            return None
        stands_still = is_awake and group.state in (ClassicState.STABLE, ClassicState.EMPTY)
        return group.stored, (group if stands_still else _from_stored(group)).facts()


def with_rebalance_timeout(ask: JoinGroup) -> JoinGroup:
    """The command as a group takes it: with -1 the rebalance timeout is the session's, as it is in a group's record."""
    if ask.rebalance_timeout_ms != -1:
        return ask
    return ask._replace(rebalance_timeout_ms=ask.session_timeout_ms)


def _from_stored(group: ClassicGroup) -> ClassicGroup:
    assert group.stored is not None
    return ClassicGroup.from_stored(group.group_id, group.stored, read_value(GroupMetadataValue, group.stored))
