"""What happens to a consumer group (KIP-848) when a member sends a heartbeat, leaves or falls silent, or its topics
change.

Decisions read the group and never change it: changes go into the draft as records, which `apply` writes into the group.
Only the deadlines, the notes about the metadata that was looked at, and the epochs of members that keep what they have
are soft: they are in no record.

A heartbeat takes three steps. First, the member is updated from what it says; a changed subscription raises the group's
epoch. Second, if the group's epoch is ahead of the target assignment, a new target is computed, in several turns if the
group is large (assignment_round.py). Third, the member takes its next step towards the target.

As long as a group's epoch is ahead of its target, a new target is under way, or the deadline `assign` is set. So no
target waits for a heartbeat.

The group's epoch is raised too when a subscribed topic has changed: then the fingerprint of the subscribed topics is
another than the one that is stored with the epoch. Of thousands of topics the fingerprint is not computed by the
heartbeat that finds newer metadata. It begins a look (deadline `look`), which does it in several turns and raises the
epoch by itself. If the epoch is raised for another reason meanwhile, it keeps the old fingerprint, and the look puts
the right one in its place.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import product
from typing import NamedTuple

from service.groups.assignment_round import (
    STEPS_AT_ONCE,
    TARGETS_AT_ONCE,
    AssignmentRound,
    NewTarget,
    TargetInSteps,
)
from service.groups.assignors import ASSIGNORS, MemberSpec
from service.groups.commands import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    PartitionsByTopic,
)
from service.groups.consumer_group import (
    NO_NAMES,
    ConsumerGroup,
    ConsumerMember,
    EpochsByTopic,
    MetadataLook,
    ResolvedRegex,
    SaidByMember,
    TargetByTopic,
)
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.reconciliation import Walk, reconcile
from service.groups.records import (
    consumer_epoch_record,
    consumer_member_record,
    current_record,
    fits,
    member_tombstones,
    partition_metadata_tombstone,
    regex_record,
    regex_tombstone,
    target_epoch_record,
    target_record,
)
from service.groups.regex import MATCHED_AT_ONCE, STEPS_OF_A_MATCH, BoundedRegex, InvalidRegex, RegexRound, TopicMatches
from service.groups.resuming import Resuming
from service.groups.settings import ConsumerTimes, GroupSettings
from service.groups.small_steps import SMALL_STEPS_A_TURN, SmallSteps, steps_for, take
from service.groups.states import MemberState
from service.groups.topics import TopicView, fingerprint, fingerprint_in_small_steps
from service.groups.verdicts import PART_BYTES, Draft, Fault, GroupRefusal, Token, batch_bytes

_new = tuple.__new__  # takes half the time of a class's own constructor

# A group resolves its regular expressions at most once in the first interval, except for the first expression of a
# group. While its members send heartbeats it resolves them at least once in the second interval. Both numbers are
# Kafka's.
REGEX_MIN_INTERVAL_MS = 10_000
REGEX_MAX_INTERVAL_MS = 600_000

MEMBER_DEADLINES = ("session", "rebalance", "rejoin", "resync", "leave")

# A member that has just joined, or is on the way to another epoch, is told to send heartbeats in this interval, if it
# is shorter than the set one. So a group of real clients is stable after two or three of these instead of two or three
# of five seconds. Members of a large group are told a longer one, so that they send at most this many in a millisecond.
# A target often follows another, because members are started over some seconds. So those that have got there are told
# the same as long as their target is this young.
UNSETTLED_INTERVAL_MS = 1_000
UNSETTLED_BEATS_A_MS = 5
YOUNG_MS = 2_000

# The first member of a group is given all there is, and is settled by that. The others usually come within moments, and
# all wait until it gives back their parts. So for the second of these times it is told to send heartbeats in the first.
ALONE_INTERVAL_MS = 200
ALONE_MS = 2_000

# A heartbeat that makes the target writes it only if there is room for the step, too, which has twice as many bytes.
TARGETS_BYTES = PART_BYTES // 2

# The target of a member that gets nothing. It has no record, unless its member had partitions before.
NO_PARTITIONS: TargetByTopic = {}

# The target of a single member need not stand for the whole interval, because the other members of a new group usually
# come within moments. It is replaced when none has come for this time. (So is a target by which a single member gets
# all there is.) The more members have come, the shorter is the pause that tells that there are no more. If there are
# many, and more are coming when the interval is over, they are waited for so many intervals: those that come last would
# have to wait for yet another target.
QUIET_MS = 200
QUIET_MS_MIN = 25
MANY_COME = 100
INTERVALS_FOR_MANY = 2


class Goal(NamedTuple):
    """The target assignment of one member, and its epoch."""

    epoch: int
    target: TargetByTopic


class ConsumerDecisions:
    """The decisions about consumer groups. It holds no group. `consumer_kind.py` says what is done when one of its
    deadlines is due.
    """

    def __init__(self, settings: GroupSettings, topics: TopicView, deadlines: Deadlines[DeadlineName]) -> None:
        self._settings = settings
        self._topics = topics
        self._deadlines = deadlines
        self.resuming = Resuming(deadlines, self._begin_session)

    # The request by itself --------------------------------------------------------------------------------------------

    def refuse_malformed(self, ask: ConsumerHeartbeat) -> GroupRefusal | None:
        """What is wrong with a heartbeat, whatever the state of the group is."""
        epoch = ask.member_epoch
        if not ask.member_id.strip() and (ask.member_names_itself or epoch > 0 or epoch == LEAVE_EPOCH):
            return _invalid("the member id may not be empty")
        if not ask.group_id.strip():
            return _invalid("the group id may not be empty")
        if ask.instance_id is not None and not ask.instance_id.strip():
            return _invalid("the instance id may not be empty")
        if ask.rack_id is not None and not ask.rack_id.strip():
            return _invalid("the rack id may not be empty")
        # Other heartbeats name a group and a member that there are, or are refused.
        says_new = epoch == JOIN_EPOCH or ask.subscribed_regex is not None
        if says_new and not fits(ask.group_id, ask.member_id, ask.subscribed_regex):
            return _invalid("the group id, the member id or the regular expression is too long")
        if epoch == JOIN_EPOCH:
            if ask.rebalance_timeout_ms == -1:
                return _invalid("a member that joins must say its rebalance timeout")
            if ask.owned is None or ask.owned:
                return _invalid("a member that joins may not own partitions")
            if ask.subscribed_topics is None and ask.subscribed_regex is None:
                return _invalid("a member that joins must subscribe to topic names or a regular expression")
        elif epoch == STATIC_LEAVE_EPOCH and ask.instance_id is None:
            return _invalid("only a member with an instance id may leave for a while")
        elif epoch < STATIC_LEAVE_EPOCH:
            return _invalid("no such member epoch")
        if ask.server_assignor is not None and ask.server_assignor not in self._settings.group_consumer_assignors:
            known = ", ".join(self._settings.group_consumer_assignors)
            return GroupRefusal(Fault.UNSUPPORTED_ASSIGNOR, f"no assignor {ask.server_assignor} here, only: {known}")
        return None

    # Heartbeats -------------------------------------------------------------------------------------------------------

    def heartbeat(
        self, group: ConsumerGroup, ask: ConsumerHeartbeat, draft: Draft
    ) -> ConsumerHeartbeatReply | GroupRefusal:
        if (full := self.refuse_when_full(group.members, ask.member_id)) is not None:
            return full
        member_id = ask.member_id or ask.fresh_id
        found = self._find_member(group, ask, member_id, draft)
        if isinstance(found, GroupRefusal):
            return found
        member = _as_it_says(found, ask)
        regex_change = self.change_regex(group, found, member, draft)
        if isinstance(regex_change, GroupRefusal):
            return regex_change
        names_changed = self.record_member(group, found, member, draft, names=ask.subscribed_topics)
        epoch = self.maybe_raise_epoch(group, member, names_changed or regex_change.is_resolved, draft)
        goal = self.maybe_assign(group, epoch, member, draft)
        newest = group.told_up_to(found)
        walked: ConsumerMember | None
        if found.member_epoch <= ask.member_epoch < newest:
            # The heartbeat may be older than what the member was told last, and what it says it owns, too. So nothing
            # is done with it. If it is not, the next one names the epoch that the member is told now.
            walked = member._replace(member_epoch=newest)
        else:
            walked = self.walk(group, member, goal, ask.owned, names_changed or regex_change.has_changed, draft)
        if walked is None:
            return GroupRefusal(Fault.FENCED_MEMBER_EPOCH, "the member's state is not understood; it must rejoin")
        draft.must_fit()
        times = self._settings.consumer_times(group.group_id)
        self._keep_session(group, walked, times, draft)
        if ask.member_epoch == JOIN_EPOCH:  # it may have left just now, and not be removed yet
            self._deadlines.cancel(("leave", group.group_id, walked.member_id))
        if found.classic is not None:  # what it was to let go of by the classic protocol it has still to let go of
            self._await_revocation(group, walked, draft)
        is_full_request = (
            ask.rebalance_timeout_ms != -1
            and (ask.subscribed_topics is not None or ask.subscribed_regex is not None)
            and ask.owned is not None
        )
        has_changed = walked.assigned is not found.assigned and walked.assigned != found.assigned
        tells = ask.member_epoch == JOIN_EPOCH or is_full_request or has_changed
        interval_ms = times.heartbeat_interval_ms
        if interval_ms > UNSETTLED_INTERVAL_MS:
            if _is_alone(group, member_id, goal, draft):
                interval_ms = ALONE_INTERVAL_MS
            elif (
                ask.member_epoch == JOIN_EPOCH
                or not walked.is_reconciled_to(epoch)
                or 0 <= draft.wall_ms - group.assignment_timestamp_ms < YOUNG_MS
            ):
                unsettled_ms = max(UNSETTLED_INTERVAL_MS, len(group.members) // UNSETTLED_BEATS_A_MS)
                interval_ms = min(interval_ms, unsettled_ms)
        assignment = walked.assigned if tells else None
        is_behind = goal.epoch < group.epoch
        comes_early = is_behind and not draft.records and not tells and self._is_assigning(group, draft)
        told = (None, None, member_id, walked.member_epoch, interval_ms, assignment, comes_early)
        return _new(ConsumerHeartbeatReply, told)

    def refuse_when_full(self, members: Collection[str], member_id: str) -> GroupRefusal | None:
        limit = self._settings.group_consumer_max_size
        if len(members) >= limit and member_id not in members:
            return GroupRefusal(Fault.GROUP_MAX_SIZE_REACHED, f"the group has {limit} members, which is the limit")
        return None

    def refuse_regex(self, regex: str | None) -> GroupRefusal | None:
        try:
            if regex:
                BoundedRegex(regex)
        except InvalidRegex as error:
            return GroupRefusal(Fault.INVALID_REGULAR_EXPRESSION, f"{regex}: {error}")
        return None

    def _find_member(
        self, group: ConsumerGroup, ask: ConsumerHeartbeat, member_id: str, draft: Draft
    ) -> ConsumerMember | GroupRefusal:
        joins = ask.member_epoch == JOIN_EPOCH
        if ask.instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                return ConsumerMember(member_id) if joins else _unknown(group, member_id)
            return _at_its_epoch(group, member, ask)
        owner = group.static_member(ask.instance_id)
        if joins:
            if owner is None:
                return group.members.get(member_id, ConsumerMember(member_id))
            is_away = owner.classic is not None or owner.member_epoch == STATIC_LEAVE_EPOCH
            # A member that has a place already can't take another one besides: its own would have no owner then.
            if not is_away or (owner.member_id != member_id and member_id in group.members):
                return GroupRefusal(
                    Fault.UNRELEASED_INSTANCE_ID, f"instance {ask.instance_id} is member {owner.member_id} at present"
                )
            return self.take_over(group, owner, member_id, draft)
        if owner is None:
            return GroupRefusal(Fault.UNKNOWN_MEMBER_ID, f"no instance {ask.instance_id} in group {group.group_id}")
        return _refuse_instance(owner, member_id) or _at_its_epoch(group, owner, ask)

    def take_over(self, group: ConsumerGroup, owner: ConsumerMember, member_id: str, draft: Draft) -> ConsumerMember:
        """Put a static member with a new id in the place of the old one, with its target and its partitions."""
        taken = owner._replace(member_id=member_id, member_epoch=0, previous_epoch=0)
        draft.records.extend(member_tombstones(group.group_id, owner.member_id))
        draft.records.append(consumer_member_record(group.group_id, taken))  # `record_member` may replace it
        draft.records.append(target_record(group.group_id, member_id, group.target.get(owner.member_id, {})))
        draft.records.append(current_record(group.group_id, taken))
        return taken

    # Step one: the member, its subscription, the group's epoch --------------------------------------------------------

    def record_member(
        self,
        group: ConsumerGroup,
        old: ConsumerMember,
        new: ConsumerMember,
        draft: Draft,
        *,
        names: tuple[str, ...] | None = None,
    ) -> bool:
        """Write the member if it has changed. Returns whether the topics that it names have changed. `names`: as the
        member named them just now.
        """
        if new is old:  # to compare a set of thousands of names with itself would take half a millisecond
            return False
        if new != old:
            record = consumer_member_record(group.group_id, new, names=names)
            # Of a member that takes a static member's place there is one already. Both may not fit into a batch. If the
            # id is the same as before, a tombstone stands before it.
            written = enumerate(draft.records)
            place = next((at for at, (key, value) in written if key == record[0] and value is not None), None)
            if place is None:
                draft.records.append(record)
            else:
                draft.records[place] = record
        return new.subscribed_topics != old.subscribed_topics

    def change_regex(
        self, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, draft: Draft
    ) -> "RegexChange | GroupRefusal":
        """Note a changed expression, and decide whether the group's expressions must be resolved again.

        Resolving reads the names of all topics, which takes long. So it is not done here: a deadline that is due at
        once starts it.
        """
        change, is_new = NO_CHANGE, False
        if new is not old and new.subscribed_regex != old.subscribed_regex:
            replaced = group.replaced_by(new)
            before, after = old.regex_or_none, new.regex_or_none
            if before is not None and before in group.resolved and not group.uses(before, without=replaced):
                draft.records.append(regex_tombstone(group.group_id, before))
            # The member gives up at once what only its former expression named. So the others get it at once, whatever
            # is found for the new one.
            has_left = before is not None and before in group.resolved
            if after is None:
                change = RegexChange(True, is_resolved=before is not None)
            elif group.uses(after, without=replaced):
                change = RegexChange(True, is_resolved=has_left or after in group.resolved)
            else:
                change = RegexChange(True, is_resolved=has_left)
                if (refusal := self.refuse_regex(after)) is not None:
                    return refusal
                is_new = True
        if group.tallies.using or is_new:
            self._maybe_resolve(group, is_new or bool(group.unresolved), draft)
        return change

    def _maybe_resolve(self, group: ConsumerGroup, is_unresolved: bool, draft: Draft) -> None:
        name: DeadlineName = ("regex", group.group_id, "")
        last_ms = group.regex_time_ms if group.resolved else None
        if name in self._deadlines or (last_ms is not None and draft.now_ms <= last_ms + REGEX_MIN_INTERVAL_MS):
            return
        is_stale = last_ms is None or draft.now_ms > last_ms + REGEX_MAX_INTERVAL_MS
        if is_unresolved or is_stale or group.regex_version != self._topics.version:
            self._deadlines.set(name, draft.now_ms)

    def resolve_regexes(self, group: ConsumerGroup, draft: Draft) -> None:
        """Find the topics of every expression in use. If they have changed, raise the group's epoch.

        This takes several turns of the loop, and the records of each turn are valid without those of the others. The
        deadline `regex` is due again until the round is over.
        """
        if group.regex_round is None:
            group.regex_round = RegexRound.over(self._topics.names(), group.tallies.using)
            group.regex_time_ms = draft.now_ms
            group.regex_version = self._topics.version
        news, is_over = self._match(group, group.regex_round)
        changed = False
        for regex, topics in news.items():
            changed = changed or bool(topics) or regex in group.resolved
            resolved = ResolvedRegex(topics, self._topics.version, draft.wall_ms)
            draft.records.append(regex_record(group.group_id, regex, resolved))
        if changed or is_over:
            metadata_hash = self._hash_of(group, draft, and_topics=news.values())
            if changed or metadata_hash not in (None, group.metadata_hash):
                epoch = self._raise_epoch(group, metadata_hash, draft)
                if metadata_hash is not None:
                    self._note_metadata(group, self._topics.version, epoch)
                self.assign_later(group, draft)
        if is_over:
            group.regex_round = None
            unused = [regex for regex in group.regex_matches if regex not in group.tallies.using]
            for regex in unused:
                del group.regex_matches[regex]
        else:
            self._deadlines.set(("regex", group.group_id, ""), draft.now_ms)

    def _match(self, group: ConsumerGroup, ahead: RegexRound) -> tuple[dict[str, frozenset[str]], bool]:
        """Go through as many expressions as fit into one turn and one batch. Returns the topics of those that match
        others than is recorded, and whether these were the last expressions.
        """
        news: dict[str, frozenset[str]] = {}
        steps, room = MATCHED_AT_ONCE, PART_BYTES
        while ahead.regexes and steps > 0 and room > 0:
            regex = ahead.regexes[-1]
            if regex in group.tallies.using:
                known = group.regex_matches.get(regex)
                if known is None:
                    known = group.regex_matches[regex] = TopicMatches(regex)
                left = known.look(ahead.names, steps)
                if left is None:
                    break
                steps = left
                before = group.resolved.get(regex)
                if before is None or before.topics != known.topics:
                    size = len(group.group_id.encode()) + sum(map(len, known.topics))
                    if news and size > room:
                        break
                    room -= size
                    news[regex] = known.topics
                    steps -= STEPS_OF_A_MATCH * len(known.topics)
            else:  # if it comes back, its names are not those that it was half-way through
                group.regex_matches.pop(regex, None)
            ahead.regexes.pop()
        return news, not ahead.regexes

    def maybe_raise_epoch(
        self, group: ConsumerGroup, member: ConsumerMember, subscription_changed: bool, draft: Draft
    ) -> int:
        """The group's epoch, which is raised if the member's subscription or the subscribed topics have changed."""
        if not subscription_changed and not group.must_look_at_metadata(self._topics.version):
            return group.epoch
        if subscription_changed:
            metadata_hash = self._hash_with(group, draft, without=group.replaced_by(member), and_by=member)
        else:
            metadata_hash = self._hash_of(group, draft)
        epoch = group.epoch
        if subscription_changed or metadata_hash not in (None, group.metadata_hash):
            epoch = self._raise_epoch(group, metadata_hash, draft)
            group.raised_ms = draft.now_ms
        if metadata_hash is not None:
            self._note_metadata(group, self._topics.version, epoch)
        if group.has_partition_metadata:
            draft.records.append(partition_metadata_tombstone(group.group_id))
        return epoch

    def _hash_with(
        self,
        group: ConsumerGroup,
        draft: Draft,
        *,
        without: Collection[ConsumerMember],
        and_by: ConsumerMember | None = None,
    ) -> int | None:
        """The group's metadata hash without these members and with that one. None: a look has to find it out."""
        if not group.must_look_at_metadata(self._topics.version) and group.keeps_its_topics(
            without=without, and_by=and_by
        ):
            return group.metadata_hash  # if a look has still to find it out, that look is under way
        return self._hash_of(group, draft, without=without, and_by=and_by)

    def _hash_of(
        self,
        group: ConsumerGroup,
        draft: Draft,
        *,
        without: Collection[ConsumerMember] = (),
        and_by: ConsumerMember | None = None,
        and_topics: Collection[frozenset[str]] = (),
    ) -> int | None:
        if group.topics_at_most(and_by=and_by) + sum(map(len, and_topics)) <= SMALL_STEPS_A_TURN:
            topics = group.topics_subscribed(without=without, and_by=and_by).union(*and_topics)
            return fingerprint(self._topics, topics)
        self._deadlines.set_if_absent(("look", group.group_id, ""), draft.now_ms)
        return None

    def _raise_epoch(self, group: ConsumerGroup, metadata_hash: int | None, draft: Draft) -> int:
        epoch = group.epoch + 1
        stored = group.metadata_hash if metadata_hash is None else metadata_hash
        draft.records.append(consumer_epoch_record(group.group_id, epoch, stored))
        return epoch

    def _note_metadata(self, group: ConsumerGroup, version: int, epoch: int) -> None:
        group.seen_version = version
        group.seen_at_epoch = epoch

    def look_some(self, group: ConsumerGroup, draft: Draft) -> None:
        """Do one turn of a look at the metadata of all subscribed topics. At its end raise the epoch if one of them
        has changed.
        """
        look, group.metadata_look = group.metadata_look, None  # what raises is begun anew
        if look is None:
            changed = group.tallies.changed = dict[str, None]()
            names, is_one = group.names_subscribed(), group.is_subscribed_to
            look = MetadataLook(self._topics.version, fingerprint_in_small_steps(self._topics, names, is_one, changed))
        metadata_hash = take(look.work, SMALL_STEPS_A_TURN)
        if metadata_hash is None:
            group.metadata_look = look
            self._deadlines.set(("look", group.group_id, ""), draft.now_ms)
            return
        group.tallies.changed = None
        epoch = group.epoch
        if metadata_hash == group.metadata_hash:
            pass
        elif group.raised == (epoch, look.version) and look.version == self._topics.version:
            # Its target is made of this metadata. Only the hash was still to be computed.
            draft.records.append(consumer_epoch_record(group.group_id, epoch, metadata_hash))
        else:
            epoch = self._raise_epoch(group, metadata_hash, draft)
            self.assign_later(group, draft)
        self._note_metadata(group, look.version, epoch)

    # Step two: the target assignment ----------------------------------------------------------------------------------

    def maybe_assign(self, group: ConsumerGroup, epoch: int, member: ConsumerMember, draft: Draft) -> Goal:
        """The member's target, of a new assignment if one is due and small. A larger one is left to `assign_some`."""
        if group.assignment_epoch < epoch:
            is_small = (
                len(group.members) < TARGETS_AT_ONCE
                and len(member.subscribed_topics) <= SMALL_STEPS_A_TURN
                and group.topics_at_most(and_by=member) <= SMALL_STEPS_A_TURN
            )
            if is_small and self._may_assign(group, draft):
                topics = group.topics_subscribed(without=group.replaced_by(member), and_by=member)
                ahead = AssignmentRound(epoch, self._assign(group, group.members_with(member), topics))
                if ahead.compute(SMALL_STEPS_A_TURN):
                    written = [target_record(group.group_id, name, part) for name, _, part in ahead.unwritten]
                    written.append(target_epoch_record(group.group_id, epoch, draft.wall_ms))
                    if draft.has_room(written, TARGETS_BYTES):
                        draft.records.extend(written)
                        return Goal(epoch, ahead.target[member.member_id])
            self.assign_later(group, draft)
        return _new(Goal, (group.assignment_epoch, group.target_of(member.member_id, member.instance_id)))

    def assign_later(self, group: ConsumerGroup, draft: Draft) -> None:
        """Begin an assignment as soon as one may begin. The group's epoch is ahead of its target, or about to be."""
        if group.assignment_round is None:
            wait_ms = self._wait_before_assigning_ms(group, draft)
            self._deadlines.set(("assign", group.group_id, ""), draft.now_ms + wait_ms)

    def _assign(self, group: ConsumerGroup, members: dict[str, ConsumerMember], topics: Iterable[str]) -> TargetInSteps:
        """Compute the target of the group for these members and topics, and the parts of it that differ from the old
        one.
        """
        counts: dict[bytes, int] = {}
        for topic in topics:
            if (facts := self._topics.by_name(topic)) is not None:
                counts[facts.topic_id] = facts.partitions
            yield
        name = group.preferred_assignor(members.values()) or self._settings.group_consumer_assignors[0]
        specs = yield from self._specs(group, members.values())
        target = yield from ASSIGNORS[name](specs, counts)
        news: list[NewTarget] = []
        for member_id, part in target.items():
            before = group.target.get(member_id)
            if before is None:  # one that takes a static member's place in this turn is given that one's target first
                before = specs[member_id].current or NO_PARTITIONS
            if before is not part and before != part:
                news.append((member_id, specs[member_id].instance_id, part))
            yield
        return target, news

    def assign_some(self, group: ConsumerGroup, draft: Draft) -> None:
        """Do one turn of a target assignment: compute some of it, write some of it. Begin one if one is due and none is
        under way.

        The group may change between the turns. A member that joins, leaves or changes its subscription raises the
        group's epoch above the one that is being assigned, so that another assignment follows. A member that has taken
        a static member's place gets its part.
        """
        ahead, group.assignment_round = group.assignment_round, None  # what raises is begun anew
        if ahead is None:
            if not group.members or group.epoch <= group.assignment_epoch:
                return
            if not self._may_assign(group, draft):
                self.assign_later(group, draft)  # the interval or the wall clock was set meanwhile
                return
            ahead = AssignmentRound(group.epoch, self._assign(group, group.members.copy(), group.names_subscribed()))
        if ahead.compute(STEPS_AT_ONCE):
            for name, instance_id, part in ahead.next_unwritten(group.group_id, TARGETS_AT_ONCE):
                member = group.members.get(name) or group.static_member(instance_id)
                if member is not None:
                    draft.records.append(target_record(group.group_id, member.member_id, part))
            last = target_epoch_record(group.group_id, ahead.epoch, draft.wall_ms)
            if not ahead.unwritten and draft.has_room((last,)):
                draft.records.append(last)
                if ahead.epoch < group.epoch:
                    self.assign_later(group, draft)
                return
        group.assignment_round = ahead
        self._deadlines.set(("assign", group.group_id, ""), draft.now_ms)

    def _may_assign(self, group: ConsumerGroup, draft: Draft) -> bool:
        """Whether a new target may be computed now. Only one is computed at a time, and a short interval lies between
        two, so that members that join shortly after each other share one.
        """
        return group.assignment_round is None and not self._wait_before_assigning_ms(group, draft)

    def _is_assigning(self, group: ConsumerGroup, draft: Draft) -> bool:
        """Whether a new target is being made, or, since the group's epoch is ahead of its target, is about to."""
        return group.assignment_round is not None or not self._wait_before_assigning_ms(group, draft)

    def _wait_before_assigning_ms(self, group: ConsumerGroup, draft: Draft) -> int:
        """How long the present target has still to stand. If it has a time in the future, it was stamped by a clock
        that was wrong. It is not waited for then.
        """
        interval_ms = self._settings.consumer_times(group.group_id).assignment_interval_ms
        is_of_one = len(group.target) <= 1
        if is_of_one and len(group.members) > MANY_COME:
            interval_ms *= INTERVALS_FOR_MANY
        last_ms = group.assignment_timestamp_ms
        if not 0 < last_ms <= draft.wall_ms < last_ms + interval_ms:
            return 0
        wait_ms = last_ms + interval_ms - draft.wall_ms
        if not is_of_one:
            return wait_ms
        quiet_ms = max(QUIET_MS // (1 + len(group.members) // 100), QUIET_MS_MIN)
        return min(wait_ms, max(group.raised_ms + quiet_ms - draft.now_ms, 0))

    def _specs(self, group: ConsumerGroup, members: Iterable[ConsumerMember]) -> SmallSteps[dict[str, MemberSpec]]:
        """The members as assignors need them. Members that subscribe to the same topics, by whatever names and
        expressions, share one set of topic ids; in most groups all do.
        """
        known: dict[tuple[frozenset[str], str | None], frozenset[bytes]] = {}
        by_names: dict[frozenset[str], frozenset[bytes]] = {}
        alike: dict[frozenset[bytes], frozenset[bytes]] = {}
        specs: dict[str, MemberSpec] = {}
        for member in members:
            subscription = (member.subscribed_topics, member.regex_or_none)
            topic_ids = known.get(subscription)
            if topic_ids is None:
                names = group.topics_of(member)
                topic_ids = by_names.get(names)
                if topic_ids is None:
                    topic_ids = yield from self._topic_ids(names)
                    topic_ids = by_names[names] = alike.setdefault(topic_ids, topic_ids)
                known[subscription] = topic_ids
                yield from steps_for(len(names))
            current = group.target_of(member.member_id, member.instance_id)
            specs[member.member_id] = _new(MemberSpec, (member.instance_id, topic_ids, current))
            yield
            yield from steps_for(len(member.subscribed_topics))  # two long lists of names were compared
        return specs

    def _topic_ids(self, names: Iterable[str]) -> SmallSteps[frozenset[bytes]]:
        topic_ids: list[bytes] = []
        for name in names:
            if (facts := self._topics.by_name(name)) is not None:
                topic_ids.append(facts.topic_id)
            yield
        return frozenset(topic_ids)

    # Step three: the member's way -------------------------------------------------------------------------------------

    def walk(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        goal: Goal,
        owned: PartitionsByTopic | None,
        subscription_changed: bool,
        draft: Draft,
    ) -> ConsumerMember | None:
        if not subscription_changed and member.is_reconciled_to(goal.epoch):
            return member
        is_subscribed = self._is_subscribed(group, member, goal, subscription_changed)
        if (
            is_subscribed is None
            and goal.epoch == group.assignment_epoch  # otherwise this decision makes the target, and may be dropped
            and member.has_soft_epoch
            and group.members.get(member.member_id) is member
            and member.has_just(goal.target)
        ):
            return group.note_epoch(member, goal.epoch, before=member.member_epoch)
        facts = *goal, owned, group.holders, is_subscribed, subscription_changed
        walked = reconcile(member, _new(Walk, facts))
        if walked is not None and walked != member:
            record = current_record(group.group_id, walked)
            is_known = member.member_epoch > 0 and member.member_id in group.members
            if is_known and not subscription_changed and not draft.has_room((record,)):
                return member  # the step of a member that has very many partitions waits for the next heartbeat
            draft.records.append(record)
            draft.must_fit()
            if walked.classic is None:
                self._await_revocation(group, walked, draft)
        return walked

    def _is_subscribed(
        self, group: ConsumerGroup, member: ConsumerMember, goal: Goal, subscription_changed: bool
    ) -> Callable[[bytes], bool] | None:
        """Whether the member subscribes to a topic. None: to all that it has or is to get. If nothing has changed since
        its target was made, that has no other topics, and thousands of them need not be looked up again.
        """
        is_new = goal.epoch == group.epoch and not group.must_look_at_metadata(self._topics.version)
        if is_new and not subscription_changed:
            return None
        resolved = group.resolved.get(member.regex_or_none or "")
        named, matched = member.subscribed_topics, NO_NAMES if resolved is None else resolved.topics
        name_of = self._topics.name_of

        def is_subscribed(topic_id: bytes) -> bool:
            name = name_of(topic_id)
            return name in named or name in matched

        return is_subscribed

    def _await_revocation(self, group: ConsumerGroup, member: ConsumerMember, draft: Draft) -> None:
        name: DeadlineName = ("rebalance", group.group_id, member.member_id)
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.member_epoch != STATIC_LEAVE_EPOCH:
            self._deadlines.set(name, draft.now_ms + member.rebalance_timeout_ms)
        else:
            self._deadlines.cancel(name)

    def _keep_session(self, group: ConsumerGroup, member: ConsumerMember, times: ConsumerTimes, draft: Draft) -> None:
        timeout_ms = times.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
        self._deadlines.set(("session", group.group_id, member.member_id), draft.now_ms + timeout_ms)

    # Leaving ----------------------------------------------------------------------------------------------------------

    def find_leaving(self, group: ConsumerGroup, ask: ConsumerHeartbeat) -> ConsumerMember | GroupRefusal:
        if ask.instance_id is None:
            return group.members.get(ask.member_id) or _unknown(group, ask.member_id)
        owner = group.static_member(ask.instance_id)
        if owner is None:
            return GroupRefusal(Fault.UNKNOWN_MEMBER_ID, f"no instance {ask.instance_id} in group {group.group_id}")
        return _refuse_instance(owner, ask.member_id) or owner

    def leave_for_a_while(self, group: ConsumerGroup, member: ConsumerMember, draft: Draft) -> None:
        """A static member leaves and will come back. It keeps its place until its session ends. Partitions that it had
        still to revoke are free at once.
        """
        alike = {id(partitions): dict.fromkeys(partitions, 0) for partitions in member.assigned.values()}
        reset = {topic_id: alike[id(partitions)] for topic_id, partitions in member.assigned.items()}
        away = member._replace(member_epoch=STATIC_LEAVE_EPOCH, assigned=reset, revoking={})
        draft.records.append(current_record(group.group_id, away))
        self._await_revocation(group, away, draft)

    def remove(self, group: ConsumerGroup, leaving: Iterable[ConsumerMember], draft: Draft) -> None:
        """Remove these members, and raise the group's epoch, so that the others get their partitions. Those whose
        tombstones do not fit into the batch are removed in the next turns.
        """
        gone: dict[str, ConsumerMember] = {}
        room = PART_BYTES
        for member in leaving:
            if gone and room < 0:
                self._deadlines.set(("leave", group.group_id, member.member_id), draft.now_ms)
                continue
            tombstones = member_tombstones(group.group_id, member.member_id)
            room -= batch_bytes(tombstones)
            draft.records.extend(tombstones)
            self.forget_member(group.group_id, member.member_id)
            gone[member.member_id] = member
        if not gone:
            return
        regexes = {member.regex_or_none: None for member in gone.values() if member.regex_or_none is not None}
        for regex in regexes:
            if not group.uses(regex, without=gone.values()):
                draft.records.append(regex_tombstone(group.group_id, regex))
        self._raise_epoch(group, self._hash_with(group, draft, without=gone.values()), draft)
        self.assign_later(group, draft)

    def forget_member(self, group_id: str, member_id: str) -> None:
        for what in MEMBER_DEADLINES:
            self._deadlines.cancel((what, group_id, member_id))

    def forget(self, group: ConsumerGroup) -> None:
        """Cancel all deadlines of a group that is removed."""
        self.resuming.forget(group.group_id)
        for what in ("regex", "look", "assign", "downgrade"):
            self._deadlines.cancel((what, group.group_id, ""))
        self._deadlines.cancel_each(product(MEMBER_DEADLINES, (group.group_id,), group.members))

    def resume(self, group: ConsumerGroup, draft: Draft) -> None:
        """Take the group up after the log was read."""
        self.resuming.begin(group, draft)
        if group.epoch > group.assignment_epoch:
            self.assign_later(group, draft)

    def _begin_session(self, group: ConsumerGroup, member: ConsumerMember, draft: Draft) -> None:
        self._keep_session(group, member, self._settings.consumer_times(group.group_id), draft)
        if member.classic is None:
            self._await_revocation(group, member, draft)


def answer_beat(answer: ConsumerHeartbeatReply | GroupRefusal, token: Token, draft: Draft, first: int) -> None:
    """Answer a heartbeat, whose records are those of the draft from `first` on. One that is refused changes nothing:
    its records are dropped.
    """
    if isinstance(answer, GroupRefusal):
        del draft.records[first:]
        draft.replacement = None
        answer = ConsumerHeartbeatReply(answer.fault, answer.message)
    draft.answer(token, answer)


def no_consumer_group(group_id: str) -> GroupRefusal:
    return GroupRefusal(Fault.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")


class RegexChange(NamedTuple):
    """Whether a member's expression has changed, and whether the topics of the former or the new one are known, so that
    others may be given partitions already.
    """

    has_changed: bool
    is_resolved: bool


NO_CHANGE = RegexChange(has_changed=False, is_resolved=False)


def _is_alone(group: ConsumerGroup, member_id: str, goal: Goal, draft: Draft) -> bool:
    """Whether the member was given everything a moment ago, because no other had come, and may have to share it yet."""
    if len(group.target) > 1:
        return False
    if goal.epoch > group.assignment_epoch:  # its target is made by this decision
        return group.members.keys() <= {member_id}
    is_shared_soon = len(group.members) == 1 or group.epoch > group.assignment_epoch
    since_ms = draft.wall_ms - group.assignment_timestamp_ms
    return is_shared_soon and bool(goal.target) and 0 <= since_ms < ALONE_MS


def _as_it_says(found: ConsumerMember, ask: ConsumerHeartbeat) -> ConsumerMember:
    """The member with the changes that the heartbeat tells. Most heartbeats tell none."""
    says_nothing = (
        ask.subscribed_topics is None
        and ask.subscribed_regex is None
        and ask.rebalance_timeout_ms == -1
        and ask.server_assignor is None
        and (ask.rack_id is None or ask.rack_id == found.rack_id)
        and (ask.instance_id is None or ask.instance_id == found.instance_id)
        and ask.client_id == found.client_id
        and ask.client_host == found.client_host
        and found.classic is None
    )
    if says_nothing:
        return found
    return found.saying(
        SaidByMember(
            found.instance_id if ask.instance_id is None else ask.instance_id,
            found.rack_id if ask.rack_id is None else ask.rack_id,
            found.rebalance_timeout_ms if ask.rebalance_timeout_ms == -1 else ask.rebalance_timeout_ms,
            ask.client_id,
            ask.client_host,
            found.subscribed_topics if ask.subscribed_topics is None else frozenset(ask.subscribed_topics),
            found.subscribed_regex if ask.subscribed_regex is None else ask.subscribed_regex,
            found.server_assignor if ask.server_assignor is None else ask.server_assignor,
            None,
        )
    )


def _invalid(message: str) -> GroupRefusal:
    return GroupRefusal(Fault.INVALID_REQUEST, message)


def _unknown(group: ConsumerGroup, member_id: str) -> GroupRefusal:
    return GroupRefusal(Fault.UNKNOWN_MEMBER_ID, f"{member_id or NO_MEMBER} is not a member of group {group.group_id}")


def _refuse_instance(owner: ConsumerMember, member_id: str) -> GroupRefusal | None:
    if owner.member_id == member_id:
        return None
    return GroupRefusal(Fault.FENCED_INSTANCE_ID, f"instance {owner.instance_id} is member {owner.member_id} now")


def _at_its_epoch(
    group: ConsumerGroup, member: ConsumerMember, ask: ConsumerHeartbeat
) -> ConsumerMember | GroupRefusal:
    """The member, at the epoch that it claims if that is the newest that it may have been told without a record. One
    that can't be the member's is refused. The one before is accepted if the member may have missed the answer that
    raised it.
    """
    claimed = ask.member_epoch
    if claimed in (JOIN_EPOCH, member.member_epoch):
        return member
    if group.may_be_at(member, claimed):
        # It has got that answer, so it does not come with the epoch before any more.
        return group.note_epoch(member, claimed, before=claimed) if claimed == group.told_up_to(member) else member
    missed_answer = ask.member_epoch == member.previous_epoch and _owns_only(ask.owned, member.assigned)
    if ask.member_epoch < member.member_epoch and missed_answer:
        return member
    return GroupRefusal(
        Fault.FENCED_MEMBER_EPOCH,
        f"the member's epoch is {member.member_epoch}, not {ask.member_epoch}; it must give up all and rejoin",
    )


def _owns_only(owned: PartitionsByTopic | None, assigned: EpochsByTopic) -> bool:
    if owned is None:
        return False
    return all(
        partition in assigned.get(topic_id, {}) for topic_id, partitions in owned.items() for partition in partitions
    )
