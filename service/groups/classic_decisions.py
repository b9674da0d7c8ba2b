"""What happens to a classic group when its members join, sync, send heartbeats, leave or fall silent.

Each function takes the live group and a command. It changes the group's soft state (what is not in the log), and puts
records and answers into the draft. The token of a JoinGroup or SyncGroup that must wait is kept with the member, and a
later decision answers it. Such a request is called parked.
"""

from itertools import product

from service.groups.classic_group import ClassicGroup, ClassicMember, leader_or_nobody
from service.groups.commands import (
    NO_MEMBER,
    FaultReply,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    LeftMember,
    SyncGroup,
    SyncReply,
)
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.records import (
    classic_group_record,
    classic_group_record_that_fits,
    instance_renamed_record,
    note_member,
)
from service.groups.resuming import Resuming
from service.groups.settings import GroupSettings
from service.groups.states import ClassicState
from service.groups.verdicts import Draft, Fault, Token

EMPTY, PREPARING, COMPLETING, STABLE = (
    ClassicState.EMPTY,
    ClassicState.PREPARING,
    ClassicState.COMPLETING,
    ClassicState.STABLE,
)


# How many parked requests are answered in one turn of the loop: each answer wakes a task that sends it.
ANSWERED_AT_ONCE = 50
# For how long a group of static members alone waits at least until it looks again whether one of them has rejoined.
STATIC_REJOIN_MS = 1_000


class ClassicDecisions:
    """The decisions about classic groups. It holds no group. `classic_kind.py` says what is done when one of its
    deadlines is due.
    """

    def __init__(self, settings: GroupSettings, deadlines: Deadlines[DeadlineName]) -> None:
        self._settings = settings
        self._deadlines = deadlines
        # By group: the present delay of a new group, and how long it may go on waiting for members after that.
        self._initial_remaining_ms: dict[str, tuple[int, int]] = {}
        self.resuming = Resuming(deadlines, self._await_heartbeat)

    # Joining ----------------------------------------------------------------------------------------------------------

    def join(self, group: ClassicGroup, ask: JoinGroup, token: Token, draft: Draft) -> None:
        if not self._has_room(group, ask.member_id):
            group.remove(ask.member_id)
            draft.answer(token, JoinReply(NO_MEMBER, Fault.GROUP_MAX_SIZE_REACHED))
        elif not group.supports(ask.protocol_type, ask.protocols):
            draft.answer(token, JoinReply(ask.member_id, Fault.INCONSISTENT_GROUP_PROTOCOL))
        elif ask.member_id == NO_MEMBER:
            self._join_without_id(group, ask, token, draft)
        elif ask.member_id in group.pending_joins:
            # Only dynamic members are given an id before they join.
            if ask.instance_id is not None:
                draft.answer(token, JoinReply(NO_MEMBER, Fault.UNKNOWN_SERVER_ERROR))
            else:
                self._add(group, ask, ask.member_id, token, draft)
        elif (fault := group.member_fault(ask.member_id, ask.instance_id)) is not None:
            draft.answer(token, JoinReply(ask.member_id, fault))
        else:
            self._rejoin(group, group.members[ask.member_id], ask, token, draft)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        member = group.members.get(member_id)
        limit = self._settings.group_max_size
        match group.state:
            case ClassicState.EMPTY:
                return True
            case ClassicState.PREPARING:
                # Only members that have rejoined count. So if the limit was lowered, the last ones to rejoin are left
                # out.
                return (member is not None and member.awaiting_join is not None) or group.joined < limit
            case ClassicState.COMPLETING | ClassicState.STABLE:
                return member is not None or len(group.members) < limit

    def _join_without_id(self, group: ClassicGroup, ask: JoinGroup, token: Token, draft: Draft) -> None:
        member_id = f"{ask.client_id if ask.instance_id is None else ask.instance_id}-{ask.fresh_id}"
        if ask.instance_id is not None:
            existing = group.static_members.get(ask.instance_id)
            if existing is not None:
                self._replace_static(group, ask, ask.instance_id, existing, member_id, token, draft)
            else:
                self._record_instance(group, ask.instance_id, member_id, draft)
                self._add(group, ask, member_id, token, draft)
        elif ask.requires_member_id:
            # The client must join again with this id. Without an id, a client whose connection broke while it waited
            # would become one more member each time.
            group.pending_joins[member_id] = None
            self._deadlines.set(("session", group.group_id, member_id), draft.now_ms + ask.session_timeout_ms)
            draft.answer(token, JoinReply(member_id, Fault.MEMBER_ID_REQUIRED))
        else:
            self._add(group, ask, member_id, token, draft)

    def _add(self, group: ClassicGroup, ask: JoinGroup, member_id: str, token: Token, draft: Draft) -> None:
        member = ClassicMember(
            member_id,
            ask.instance_id,
            ask.client_id,
            ask.client_host,
            ask.rebalance_timeout_ms,
            ask.session_timeout_ms,
            ask.protocols,
            is_new=True,
            awaiting_join=token,
        )
        if group.state is PREPARING and group.previous_state is EMPTY:
            group.new_member_added = True
        group.add(member, protocol_type=ask.protocol_type)
        # A new member sends no heartbeats before its join is answered, so nothing shows whether it is still there. If
        # its client went away and joined again, the abandoned member would block every rebalance without this limit.
        timeout_ms = self._settings.new_member_join_timeout_ms
        self._deadlines.set(("session", group.group_id, member_id), draft.now_ms + timeout_ms)
        self._rebalance_or_complete(group, draft)

    def _rejoin(self, group: ClassicGroup, member: ClassicMember, ask: JoinGroup, token: Token, draft: Draft) -> None:
        unchanged = member.protocols == ask.protocols
        match group.state:
            # In the first two cases the client is answered at once, and counts that as a sign of life.
            case ClassicState.COMPLETING if unchanged:
                # The member probably missed the answer to its join: answer again.
                draft.answer(token, _present_generation(group, member))
                self._await_heartbeat(group, member, draft)
            case ClassicState.STABLE if unchanged and member.member_id != group.leader:
                draft.answer(token, _present_generation(group, member, as_follower=True))
                self._await_heartbeat(group, member, draft)
            case ClassicState.PREPARING | ClassicState.COMPLETING | ClassicState.STABLE:
                # A leader that rejoins unchanged causes a rebalance, too: it may have seen that its topics have
                # changed.
                if member.awaiting_join is not None:  # an earlier join, whose connection broke
                    draft.answer(member.awaiting_join, JoinReply(member.member_id, Fault.REBALANCE_IN_PROGRESS))
                group.update(member, ask, token)
                self._rebalance_or_complete(group, draft)
            case ClassicState.EMPTY:
                draft.answer(token, JoinReply(member.member_id, Fault.UNKNOWN_MEMBER_ID))

    def _replace_static(
        self,
        group: ClassicGroup,
        ask: JoinGroup,
        instance_id: str,
        old_id: str,
        new_id: str,
        token: Token,
        draft: Draft,
    ) -> None:
        """A static member has been restarted.

        In a stable group it takes its old place without a rebalance. There is one exception: the old process had still
        to let go of partitions and then to join again, which would have caused a rebalance. The new process has nothing
        to let go of and would not join again, so the rebalance begins now.
        """
        old_leader = leader_or_nobody(group)
        old = group.members[old_id]
        if old.awaiting_join is not None:
            draft.answer(old.awaiting_join, JoinReply(old_id, Fault.FENCED_INSTANCE_ID))
        if old.awaiting_sync is not None:
            draft.answer(old.awaiting_sync, SyncReply(Fault.FENCED_INSTANCE_ID))
        self._deadlines.cancel(("session", group.group_id, old_id))
        is_settled = group.state is STABLE and not group.must_let_go(old)
        member = group.replace_static(instance_id, old_id, new_id)
        self._await_heartbeat(group, member, draft)
        group.update(member, ask, token)
        record = None
        if is_settled and group.protocol_name == group.select_protocol():
            assignments = {each.member_id: each.assignment for each in group.members.values()}
            record = classic_group_record_that_fits(group, assignments)
        if record is not None:
            draft.records.append(record)
            group.subscribed_topics = group.topics_of_members()
            group.take_join(member)
            draft.answer(token, resumed(group, member, ask, old_leader))
        else:
            # A rebalance in COMPLETING, too: the leader may be assigning partitions to the old id at this moment.
            self._record_instance(group, instance_id, new_id, draft)
            self._rebalance_or_complete(group, draft)

    def _record_instance(self, group: ClassicGroup, instance_id: str, member_id: str, draft: Draft) -> None:
        """Write the new member id of a static member at once, into the group's last record. Otherwise, if the
        coordinator died before the next generation is recorded, the next coordinator would know the old id only, and
        would fence the running process.
        """
        if (renamed := instance_renamed_record(group, instance_id, member_id)) is not None:
            draft.records.append(renamed)

    # Rebalancing ------------------------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, group: ClassicGroup, draft: Draft) -> None:
        if group.state is PREPARING:
            self._maybe_complete_join(group, draft)
        else:
            self.prepare_rebalance(group, draft)

    def prepare_rebalance(self, group: ClassicGroup, draft: Draft) -> None:
        if group.state is COMPLETING:
            group.assign({})
        group.pending_syncs.clear()
        self._deadlines.cancel(("sync", group.group_id, ""))
        group.early_sync = None
        is_initial = group.state is EMPTY
        must_answer = group.state is COMPLETING or group.unanswered
        group.move_to(PREPARING, draft.wall_ms)
        if must_answer:
            self._answer_all(group, draft)
        if is_initial:
            # The first members of a group usually join within moments of each other: wait for them and rebalance once.
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._delay_first_generation(group, delay_ms, remaining_ms, draft)
        elif group.all_joined:
            self._complete_join_soon(group, draft)
        else:
            self._set_join_deadline(group, draft)

    def _delay_first_generation(self, group: ClassicGroup, delay_ms: int, remaining_ms: int, draft: Draft) -> None:
        self._initial_remaining_ms[group.group_id] = (delay_ms, remaining_ms)
        self._deadlines.set(("initial", group.group_id, ""), draft.now_ms + delay_ms)

    def initial_delay_over(self, group: ClassicGroup, draft: Draft) -> None:
        delay_ms, remaining_ms = self._initial_remaining_ms.pop(group.group_id)
        if group.state is not PREPARING:
            return
        if group.new_member_added and remaining_ms > 0:
            group.new_member_added = False
            next_ms = min(self._settings.group_initial_rebalance_delay_ms, remaining_ms)
            self._delay_first_generation(group, next_ms, max(remaining_ms - delay_ms, 0), draft)
        else:
            self.complete_join(group, draft)

    def _set_join_deadline(self, group: ClassicGroup, draft: Draft) -> None:
        self._deadlines.set(("join", group.group_id, ""), draft.now_ms + group.rebalance_timeout_ms)

    def _maybe_complete_join(self, group: ClassicGroup, draft: Draft) -> None:
        # The first generation of a group waits until its delay is over, however many members have joined.
        if group.state is PREPARING and group.previous_state is not EMPTY and group.all_joined:
            self._complete_join_soon(group, draft)

    def _complete_join_soon(self, group: ClassicGroup, draft: Draft) -> None:
        """Begin the next generation; one of very many members in a turn of its own. Until they are told of it all count
        as joined, and each further join that comes in this turn would begin another one.
        """
        if len(group.members) > ANSWERED_AT_ONCE:
            self._deadlines.set(("join", group.group_id, ""), draft.now_ms)
        else:
            self.complete_join(group, draft)

    def complete_join(self, group: ClassicGroup, draft: Draft) -> None:
        """All members have joined, or time is up: begin the next generation with those that have joined."""
        if group.state is not PREPARING:
            return
        self._deadlines.cancel(("join", group.group_id, ""))
        self._deadlines.cancel(("initial", group.group_id, ""))
        is_left_out = group.joined < len(group.members)
        members = group.members.values() if is_left_out else ()
        for member in [each for each in members if each.awaiting_join is None and each.instance_id is None]:
            self._remove(group, member.member_id, draft)
        if group.members and not group.elect_joined_leader():
            # Only static members are left, and none of them has rejoined: wait until their sessions end.
            wait_ms = max(group.rebalance_timeout_ms, STATIC_REJOIN_MS)
            self._deadlines.set(("join", group.group_id, ""), draft.now_ms + wait_ms)
            return
        group.begin_generation(draft.wall_ms)
        if group.state is EMPTY:
            draft.records.append(classic_group_record(group, {}))
            return
        group.pending_syncs = dict.fromkeys(group.members)
        self._set_sync_deadline(group, draft)
        self._answer_all(group, draft)

    def _set_sync_deadline(self, group: ClassicGroup, draft: Draft) -> None:
        self._deadlines.set(("sync", group.group_id, ""), draft.now_ms + group.rebalance_timeout_ms)

    # Answering what is parked -----------------------------------------------------------------------------------------

    def _answer_all(self, group: ClassicGroup, draft: Draft) -> None:
        """Answer the parked requests of all members. If they are many, this takes several turns of the loop, of which
        this is none: what is to be told was just made of thousands of members.
        """
        group.unanswered = list(group.members)
        if group.leader in group.members:
            group.unanswered.append(group.leader)  # the leader is answered first, because it has the most to do
        if len(group.members) > ANSWERED_AT_ONCE:
            self._deadlines.set(("answers", group.group_id, ""), draft.now_ms)
        else:
            self.answer_some(group, draft)

    def answer_some(self, group: ClassicGroup, draft: Draft) -> None:
        name: DeadlineName = ("answers", group.group_id, "")
        self._deadlines.cancel(name)
        for _ in range(min(ANSWERED_AT_ONCE, len(group.unanswered))):
            member = group.members.get(group.unanswered.pop())
            if member is not None:
                self._answer(group, member, draft)
        if group.unanswered:
            self._deadlines.set(name, draft.now_ms)
        elif (ask := group.early_sync) is not None:
            group.early_sync = None
            leader = group.members.get(ask.member_id)
            is_parked = leader is not None and leader.awaiting_sync is not None
            if leader is not None and is_parked and group.state is COMPLETING and self._sync_fault(group, ask) is None:
                self._take_assignments(group, leader, ask, draft)

    def _answer(self, group: ClassicGroup, member: ClassicMember, draft: Draft) -> None:
        """Answer the parked requests of one member. While the group prepares a rebalance, parked joins go on waiting: a
        member that was not told of the last generation joins the next one.
        """
        if group.state is not PREPARING:
            if (join := group.take_join(member)) is not None:
                draft.answer(join, _present_generation(group, member))
                note_member(member, group.protocol_name)
            member.is_new = False
            self._await_heartbeat(group, member, draft)
        if group.state is not COMPLETING and member.awaiting_sync is not None:
            draft.answer(member.awaiting_sync, _assigned(group, member))
            member.awaiting_sync = None
            # The member sent no heartbeats while its request was parked. Its session begins anew.
            self._await_heartbeat(group, member, draft)

    def sync_deadline_over(self, group: ClassicGroup, draft: Draft) -> None:
        """Remove the members that joined and never asked for their assignment: nobody reads their partitions."""
        if group.state not in (COMPLETING, STABLE) or not group.pending_syncs:
            return
        if group.state is COMPLETING and group.unanswered:  # some have not been told of the generation yet
            self._set_sync_deadline(group, draft)
            return
        for member_id in list(group.pending_syncs):
            self._remove(group, member_id, draft)
        self.prepare_rebalance(group, draft)

    # Syncing ----------------------------------------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, ask: SyncGroup, token: Token, draft: Draft) -> None:
        fault = self._sync_fault(group, ask)
        if fault is not None:
            draft.answer(token, SyncReply(fault))
            return
        member = group.members[ask.member_id]
        self._note_sync(group, member)
        if group.state is STABLE:
            draft.answer(token, _assigned(group, member))
            self._await_heartbeat(group, member, draft)  # the client counts a SyncGroup as a sign of life
            return
        if member.awaiting_sync is not None:  # an earlier request, whose connection broke
            draft.answer(member.awaiting_sync, SyncReply(Fault.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = token
        if member.member_id == group.leader:
            if group.unanswered:
                group.early_sync = ask
            else:
                self._take_assignments(group, member, ask, draft)

    def _take_assignments(self, group: ClassicGroup, leader: ClassicMember, ask: SyncGroup, draft: Draft) -> None:
        """Take up what the leader has assigned, now that all members have been told of the generation: what is noted of
        each then is most of the record, and would take long in one turn.
        """
        assignments = dict(ask.assignments)
        record = classic_group_record_that_fits(group, assignments)
        if record is None:
            token, leader.awaiting_sync = leader.awaiting_sync, None
            draft.answer(token, SyncReply(Fault.UNKNOWN_SERVER_ERROR))
            self.prepare_rebalance(group, draft)
            return
        group.assign(assignments)
        draft.records.append(record)
        group.move_to(STABLE, draft.wall_ms)
        self._answer_all(group, draft)

    def _sync_fault(self, group: ClassicGroup, ask: SyncGroup) -> Fault | None:
        fault = group.member_fault(ask.member_id, ask.instance_id)
        if fault is not None:
            return fault
        if ask.generation != group.generation:
            return Fault.ILLEGAL_GENERATION
        if _differs(ask.protocol_type, group.protocol_type) or _differs(ask.protocol_name, group.protocol_name):
            return Fault.INCONSISTENT_GROUP_PROTOCOL
        return Fault.REBALANCE_IN_PROGRESS if group.state is PREPARING else None

    def _note_sync(self, group: ClassicGroup, member: ClassicMember) -> None:
        group.pending_syncs.pop(member.member_id, None)
        if not group.pending_syncs:
            self._deadlines.cancel(("sync", group.group_id, ""))

    # Heartbeats, leaving, silence -------------------------------------------------------------------------------------

    def heartbeat(self, group: ClassicGroup, ask: Heartbeat, token: Token, draft: Draft) -> None:
        fault = group.member_fault(ask.member_id, ask.instance_id)
        if fault is None and ask.generation != group.generation:
            fault = Fault.ILLEGAL_GENERATION
        if fault is None:
            self._await_heartbeat(group, group.members[ask.member_id], draft)
            if group.state is PREPARING:
                fault = Fault.REBALANCE_IN_PROGRESS
        draft.answer(token, FaultReply(fault))

    def leave(self, group: ClassicGroup, ask: LeaveGroup, token: Token, draft: Draft) -> None:
        answered = tuple(self._leave_one(group, leaving, draft) for leaving in ask.members)
        draft.answer(token, LeaveReply(None, answered))
        if all(left.fault is not None for left in answered):
            return
        if group.state in (STABLE, COMPLETING):
            self.prepare_rebalance(group, draft)
        else:
            self._maybe_complete_join(group, draft)

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember, draft: Draft) -> LeftMember:
        member_id = leaving.member_id
        fault = None
        if member_id == NO_MEMBER:
            # An operator may remove a static member by its instance id, without the member id.
            member_id = group.static_members.get(leaving.instance_id or "", NO_MEMBER)
            fault = Fault.UNKNOWN_MEMBER_ID if member_id == NO_MEMBER else None
        elif member_id not in group.pending_joins:
            fault = group.member_fault(member_id, leaving.instance_id)
        if fault is None:
            self._remove(group, member_id, draft)
        return LeftMember(leaving.member_id, leaving.instance_id, fault)

    def _remove(self, group: ClassicGroup, member_id: str, draft: Draft) -> None:
        self._deadlines.cancel(("session", group.group_id, member_id))
        member = group.members.get(member_id)
        if member is not None and member.awaiting_join is not None:
            draft.answer(member.awaiting_join, JoinReply(NO_MEMBER, Fault.UNKNOWN_MEMBER_ID))
        if member is not None and member.awaiting_sync is not None:
            draft.answer(member.awaiting_sync, SyncReply(Fault.UNKNOWN_MEMBER_ID))
        group.remove(member_id)

    def session_over(self, group: ClassicGroup, member_id: str, draft: Draft) -> None:
        member = group.members.get(member_id)
        if member is None:
            if member_id in group.pending_joins:
                del group.pending_joins[member_id]
                self._maybe_complete_after_loss(group, draft)
            return
        if member.is_heard:
            return
        self._remove(group, member_id, draft)
        if group.state in (STABLE, COMPLETING):
            self.prepare_rebalance(group, draft)
        else:
            self._maybe_complete_after_loss(group, draft)

    def _maybe_complete_after_loss(self, group: ClassicGroup, draft: Draft) -> None:
        if group.state is PREPARING and group.all_joined:
            self.complete_join(group, draft)

    def _await_heartbeat(self, group: ClassicGroup, member: ClassicMember, draft: Draft) -> None:
        name: DeadlineName = ("session", group.group_id, member.member_id)
        self._deadlines.set(name, draft.now_ms + member.session_timeout_ms)

    def keep_session(self, group: ClassicGroup, member_id: str, draft: Draft) -> None:
        """Begin the member's session anew: a commit is a sign of life, too."""
        member = group.members.get(member_id)
        if member is not None and group.state in (STABLE, PREPARING):
            self._await_heartbeat(group, member, draft)

    # Beginning and end ------------------------------------------------------------------------------------------------

    def resume(self, group: ClassicGroup, draft: Draft) -> None:
        """Take the group up after the log was read, or when it has turned from a consumer group. If no member has been
        told that it leads, a rebalance begins: otherwise nobody would assign.
        """
        self.resuming.begin(group, draft)
        lacks_leader = bool(group.members) and group.leader is None
        if lacks_leader or len(group.members) > self._settings.group_max_size:
            self.prepare_rebalance(group, draft)

    def forget(self, group: ClassicGroup, *, but: str | None = None) -> None:
        """Cancel all deadlines of a group that is removed, but not the session of a member that goes on in the group
        that takes its place. It may have been given its id by this one.
        """
        self._initial_remaining_ms.pop(group.group_id, None)
        self.resuming.forget(group.group_id)
        for what in ("join", "initial", "sync", "answers", "prepare"):
            self._deadlines.cancel((what, group.group_id, ""))
        gone = (each for each in (*group.members, *group.pending_joins) if each != but)
        self._deadlines.cancel_each(product(("session",), (group.group_id,), gone))

    def dismiss(self, group: ClassicGroup, draft: Draft) -> None:
        """Tell all members with a parked request to join again, because the group changes its protocol."""
        for member in group.members.values():
            if (join := group.take_join(member)) is not None:
                draft.answer(join, JoinReply(member.member_id, Fault.REBALANCE_IN_PROGRESS))
            if member.awaiting_sync is not None:
                draft.answer(member.awaiting_sync, SyncReply(Fault.REBALANCE_IN_PROGRESS))
            member.awaiting_sync = None


def _assigned(group: ClassicGroup, member: ClassicMember) -> SyncReply:
    if group.state is not STABLE:
        return SyncReply(Fault.REBALANCE_IN_PROGRESS)
    return SyncReply(None, group.protocol_type, group.protocol_name, member.assignment)


def _present_generation(group: ClassicGroup, member: ClassicMember, *, as_follower: bool = False) -> JoinReply:
    """The answer to a join in the present generation. The leader is told of all members, because it assigns."""
    leads = member.member_id == group.leader and not as_follower
    return JoinReply(
        member.member_id,
        None,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        leader_or_nobody(group),
        members=group.joined_members() if leads else (),
    )


def resumed(group: ClassicGroup, member: ClassicMember, ask: JoinGroup, old_leader: str) -> JoinReply:
    """The answer to a static member that resumes its place.

    If it is the leader, it must be told who the members are, and that it must not assign. A client that does not know
    "must not assign" is told that the old member id is the leader. Otherwise it would make a new assignment, of which
    the other members would never be told.
    """
    if not ask.can_skip_assignment:
        return JoinReply(member.member_id, None, group.generation, group.protocol_type, group.protocol_name, old_leader)
    return _present_generation(group, member)._replace(skip_assignment=member.member_id == group.leader)


def _differs(said: str | None, known: str | None) -> bool:
    return said is not None and known is not None and said != known
