"""Both protocols in one group: turning a group from one into the other, and classic members in a consumer group.

The only file that knows classic and consumer groups alike: the passages between these kinds (`kinds.py`).

A classic group that uses the consumer's embedded protocol turns into a consumer group when the first member joins by
KIP-848. It turns back when the last such member has left. In between, classic members go on with JoinGroup, SyncGroup
and Heartbeat, which are answered from the consumer group: the generation is the member's epoch, and "rebalance in
progress" tells a member that there are partitions for it to revoke or to get, so that it must join again.

Not supported, as in Kafka: turning a group whose assignor puts user data into assignments, or whose bytes can't be
read.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import NamedTuple

from service.groups.classic_decisions import resumed
from service.groups.classic_group import ClassicGroup, ClassicMember
from service.groups.classic_kind import ClassicKind, with_rebalance_timeout
from service.groups.commands import (
    JOIN_EPOCH,
    NO_MEMBER,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
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
from service.groups.consumer_decisions import ConsumerDecisions, answer_beat, no_consumer_group
from service.groups.consumer_group import (
    INITIAL_EPOCH,
    ClassicFacts,
    ConsumerGroup,
    ConsumerMember,
    EpochsByTopic,
    TargetByTopic,
)
from service.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    read_assignment,
    read_subscription,
    read_version,
    write_assignment,
)
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.kinds import Decide
from service.groups.records import (
    MembersTombstones,
    classic_group_record,
    classic_group_tombstone,
    consumer_epoch_record,
    consumer_group_tombstones,
    consumer_member_record,
    current_record,
    members_tombstones,
    note_member,
    target_epoch_record,
    target_record,
)
from service.groups.settings import GroupSettings
from service.groups.small_steps import SmallSteps, take
from service.groups.states import ClassicState, MemberState
from service.groups.topics import TopicView, fingerprint_in_small_steps
from service.groups.verdicts import (
    Answer,
    Draft,
    Fault,
    GroupRefusal,
    MoreThanABatch,
    RecordPair,
    Replacement,
    Token,
    batch_bytes,
)

# How much an upgrade may write. All members must be in one batch, so that no crash leaves half a group, and a topic
# takes batches of 1 MB. Kafka refuses a larger upgrade, too, with UNKNOWN_SERVER_ERROR.
UPGRADE_BYTES_MAX = 1_000_000
UPGRADE_FRAME_BYTES = 100  # the size of a member's three records without the names and the member's own data

# An upgrade is made ready in turns of so many steps. In one a member is read, or a few are put into the new group. What
# takes no longer than one turn is done in the turn of the heartbeat.
PREPARED_AT_ONCE = 100
BYTES_A_STEP = 400
PUT_A_STEP = 20  # members, and topics of them
SIZES_A_STEP = 100
PREPARED_KEPT_MS = 30_000
# If a group has changed whenever somebody asked again, for so long, nobody joins it for a while.
RESTLESS_MS = 10_000
HELD_MS = 2_000

# So much may a downgrade write, for the same reason. A group for which that is too little stays a consumer group.
DOWNGRADE_BYTES_MAX = UPGRADE_BYTES_MAX
DOWNGRADE_FRAME_BYTES = 70  # the size of three tombstones without the names
# A group of more members is made ready in turns in which so many are made, or get their assignment. If that is not over
# after so long, because its members or topics change again and again, it stays a consumer group.
DOWNGRADED_AT_ONCE = 200
DOWNGRADED_WITHIN_MS = 5_000
NO_TOMBSTONES = MembersTombstones([], [])


class Upgraded(NamedTuple):
    """A classic member as a member of the consumer group, by itself: before it is known what the others hold."""

    said: object
    topic_ids: dict[str, bytes | None]
    """What the member said, and what its topics were: all that the rest was made from."""
    member: ConsumerMember
    claimed: dict[bytes, tuple[int, ...]]
    """The partitions that it owned when it joined."""
    member_record: RecordPair
    target_record: RecordPair
    current_record: RecordPair


class Made(NamedTuple):
    """The consumer group that a classic group can be turned into, and the records that do it."""

    group: ConsumerGroup
    records: list[RecordPair]


@dataclass(slots=True)
class Upgrade:
    """What is made ready for an upgrade. It is kept from one heartbeat to the next."""

    asked_ms: int  # since when nobody who asked was told what came of it
    is_told: bool = False
    kept_until_ms: int = 0
    stamp: tuple[int, int] = (-1, -1)  # of the group and of the topics as they were when the work was begun
    work: SmallSteps[Made | GroupRefusal] | None = None
    made: Made | GroupRefusal | None = None
    members: dict[str, Upgraded] = field(default_factory=dict)  # serve again if the work has to be begun anew


@dataclass(slots=True)
class Downgrade:
    """What is made ready for a downgrade of a group, which goes on meanwhile. The members that leave with it are in the
    group until it is over, and are answered then.
    """

    made: ClassicGroup
    asked_ms: int
    topics_version: int
    sources: dict[str, ConsumerMember] = field(default_factory=dict)  # what the members of `made` were made of
    tombstones: MembersTombstones | None = None  # of these and of those that leave
    leaving: dict[str, None] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)


class Migration:
    def __init__(
        self,
        settings: GroupSettings,
        topics: TopicView,
        deadlines: Deadlines[DeadlineName],
        classic: ClassicKind,
        consumer: ConsumerDecisions,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._deadlines = deadlines
        self._classic_kind = classic
        self._classic = classic.decisions
        self._consumer = consumer
        classic.deadlines["prepare"] = lambda group, _, draft: self._go_on(group, draft)
        self.passages: dict[tuple[type, type], Decide] = {
            (ConsumerHeartbeat, ClassicGroup): self._beat,
            (JoinGroup, ConsumerGroup): self._join,
            (SyncGroup, ConsumerGroup): self._sync,
            (Heartbeat, ConsumerGroup): self._heartbeat,
            (LeaveGroup, ConsumerGroup): self._leave,
        }

    # From classic to consumer -----------------------------------------------------------------------------------------

    def _beat(self, group: ClassicGroup, ask: ConsumerHeartbeat, token: Token, draft: Draft) -> None:
        first = len(draft.records)
        answer_beat(self._consumer.refuse_malformed(ask) or self._beat_first(group, ask, draft), token, draft, first)

    def _beat_first(
        self, group: ClassicGroup, ask: ConsumerHeartbeat, draft: Draft
    ) -> ConsumerHeartbeatReply | GroupRefusal:
        """The first member of the new protocol. An empty classic group is replaced by a new consumer group; any other
        one is turned into a consumer group.
        """
        if ask.member_epoch != JOIN_EPOCH:
            return no_consumer_group(ask.group_id)
        if not group.is_empty:
            return self._upgrade_by(group, ask, draft)
        draft.records.append(classic_group_tombstone(ask.group_id))
        answer = self._consumer.heartbeat(ConsumerGroup(ask.group_id), ask, draft)
        if isinstance(answer, ConsumerHeartbeatReply):
            self._classic.forget(group, but=answer.member_id)
        return answer

    def _upgrade_by(
        self, group: ClassicGroup, ask: ConsumerHeartbeat, draft: Draft
    ) -> ConsumerHeartbeatReply | GroupRefusal:
        upgraded = self._refuse_upgrade(group, ask) or self._upgraded(group, draft)
        if isinstance(upgraded, GroupRefusal):
            return upgraded
        made, records = upgraded
        # The heartbeat is decided first, because it may be refused, and nothing must change then. Its records are
        # written after those of the group.
        attempt = Draft(draft.now_ms, draft.wall_ms)
        answer = self._consumer.heartbeat(made, ask, attempt)
        if isinstance(answer, ConsumerHeartbeatReply):
            if not attempt.has_room(records):
                raise MoreThanABatch(f"classic group {group.group_id} turns in one batch, or not at all")
            self._turn(group, made, answer.member_id, draft)
            draft.records.extend(records)
            draft.replacement = Replacement(made.group_id, made, 0, len(draft.records))
            draft.records.extend(attempt.records)
        return answer

    def _refuse_upgrade(self, group: ClassicGroup, ask: ConsumerHeartbeat) -> GroupRefusal | None:
        """What can be judged without looking at each member. A refused client may ask again at once."""
        if not self._settings.may_upgrade:
            return _not_upgradable(group, "the migration policy does not allow it")
        if not group.uses_consumer_protocol:
            return _not_upgradable(group, f"it uses the protocol {group.protocol_type}")
        if len(group.members) > self._settings.group_consumer_max_size:
            return _not_upgradable(group, "it has too many members")
        full = self._consumer.refuse_when_full(group.members, ask.member_id)
        return full or self._consumer.refuse_regex(ask.subscribed_regex)

    def _upgraded(self, group: ClassicGroup, draft: Draft) -> Made | GroupRefusal:
        """What this group can be turned into, or why it can't. If that takes more than one turn of the loop, it is
        begun, and the client asks again.
        """
        upgrade, group.upgrade = group.upgrade, None  # what raises is begun anew
        if not isinstance(upgrade, Upgrade):
            upgrade = Upgrade(draft.now_ms)
        if upgrade.is_told:
            upgrade.asked_ms, upgrade.is_told = draft.now_ms, False
        elif draft.now_ms >= upgrade.asked_ms + RESTLESS_MS and upgrade.stamp != self._stamp(group):
            upgrade.asked_ms = draft.now_ms
            group.held_until_ms = draft.now_ms + HELD_MS
        self._go_on_making(group, upgrade)
        upgrade.kept_until_ms = draft.now_ms + PREPARED_KEPT_MS
        group.upgrade = upgrade
        upgrade.is_told = upgrade.made is not None
        due_ms = draft.now_ms if upgrade.made is None else upgrade.kept_until_ms
        self._deadlines.set(("prepare", group.group_id, ""), due_ms)
        return upgrade.made or GroupRefusal(
            Fault.COORDINATOR_LOAD_IN_PROGRESS, "the group's members are being made ready; ask again"
        )

    def _go_on(self, group: ClassicGroup, draft: Draft) -> None:
        """Do one turn of what makes an upgrade ready. If the group has changed, that is begun anew when a client asks
        again, or at once if nobody may join meanwhile.
        """
        upgrade, group.upgrade = group.upgrade, None
        if not isinstance(upgrade, Upgrade) or draft.now_ms >= upgrade.kept_until_ms:
            return
        if upgrade.made is None and (upgrade.stamp == self._stamp(group) or draft.now_ms < group.held_until_ms):
            self._go_on_making(group, upgrade)
            due_ms = draft.now_ms if upgrade.made is None else upgrade.kept_until_ms
        else:
            due_ms = upgrade.kept_until_ms
        group.upgrade = upgrade
        self._deadlines.set(("prepare", group.group_id, ""), due_ms)

    def _go_on_making(self, group: ClassicGroup, upgrade: Upgrade) -> None:
        if upgrade.stamp != self._stamp(group):
            upgrade.stamp, upgrade.made = self._stamp(group), None
            upgrade.work = self._make(group, upgrade.members)
        if upgrade.made is None:
            assert upgrade.work is not None
            upgrade.made = take(upgrade.work, PREPARED_AT_ONCE)
            if isinstance(upgrade.made, GroupRefusal):
                group.held_until_ms = 0

    def _stamp(self, group: ClassicGroup) -> tuple[int, int]:
        return group.changes, self._topics.version

    def _make(self, group: ClassicGroup, known: dict[str, Upgraded]) -> SmallSteps[Made | GroupRefusal]:
        """`known`: what was made of members before. It is kept up to date."""
        size_bytes = 0
        for count, classic_member in enumerate(group.members.values(), 1):
            size_bytes += _upgrade_bytes(group, classic_member)
            if size_bytes > UPGRADE_BYTES_MAX:
                return _not_upgradable(group, "what is to be written of its members is more than one batch may hold")
            if not count % SIZES_A_STEP:
                yield
        for gone in [member_id for member_id in known if member_id not in group.members]:
            del known[gone]
        # The generation of a group that never had one is 0. It can't be a member epoch: 0 is the epoch of a join.
        epoch = max(group.generation, INITIAL_EPOCH)
        made = ConsumerGroup(group.group_id, epoch=epoch, assignment_epoch=epoch)
        parts: dict[str, Upgraded] = {}
        for classic_member in group.members.values():
            upgraded = self._upgraded_member(group, classic_member, known.get(classic_member.member_id))
            if isinstance(upgraded, GroupRefusal):
                return upgraded
            parts[classic_member.member_id] = known[classic_member.member_id] = upgraded
            for _ in range(1 + _upgrade_bytes(group, classic_member) // BYTES_A_STEP):
                yield
        given: Counter[bytes] = Counter()
        put = 0
        for member in (part.member for part in parts.values()):
            if any(made.is_held(topic_id, each) for topic_id, has in member.assigned.items() for each in has):
                return _not_upgradable(group, "its assignor gave one partition to two members")
            made.put(member)
            made.target[member.member_id] = _target(member)
            given.update({topic_id: len(partitions) for topic_id, partitions in member.assigned.items()})
            put += 1 + len(member.assigned)
            yield from repeat(None, put // PUT_A_STEP)
            put %= PUT_A_STEP
        for member_id, part in parts.items():
            revoking = {
                topic_id: dict.fromkeys(left, group.generation)
                for topic_id, partitions in part.claimed.items()
                if (left := [each for each in partitions if not made.is_held(topic_id, each)])
            }
            if revoking:
                # The member owned these partitions when it joined, and was assigned others. It may not know that yet.
                # So it counts as revoking them until it says that it has let them go.
                state = MemberState.UNREVOKED_PARTITIONS
                member = made.members[member_id]._replace(state=state, revoking=revoking)
                made.put(member)
                parts[member_id] = part._replace(current_record=current_record(group.group_id, member))
            put += 1 + len(part.claimed)
            yield from repeat(None, put // PUT_A_STEP)
            put %= PUT_A_STEP
        if not (
            yield from self._leaves_some_out(made, given)
        ):  # otherwise the heartbeat raises the epoch: the hash does not match
            made.metadata_hash = yield from fingerprint_in_small_steps(
                self._topics, made.names_subscribed(), made.is_subscribed_to, {}
            )
        yield
        return Made(made, _records_of_upgrade(made, parts.values()))

    def _leaves_some_out(self, made: ConsumerGroup, given: Mapping[bytes, int]) -> SmallSteps[bool]:
        """Whether a partition of a subscribed topic is in nobody's target: the group was turned in the middle of a
        rebalance, or a topic has got more partitions since the last one. A static member that comes back with the same
        subscription changes nothing, so nobody would get such a partition. `given`: how many partitions are in targets.
        """
        for topic in made.names_subscribed():
            facts = self._topics.by_name(topic)
            if facts is not None and given.get(facts.topic_id, 0) < facts.partitions:
                return True
            yield
        return False

    def _upgraded_member(
        self, group: ClassicGroup, member: ClassicMember, known: Upgraded | None
    ) -> Upgraded | GroupRefusal:
        # Before the first generation of a group no protocol is chosen, and a member that came after the last generation
        # may not support that one's protocol. Then the member's first protocol is read.
        _, metadata = next((each for each in member.protocols if each[0] == group.protocol_name), member.protocols[0])
        times_ms = member.rebalance_timeout_ms, member.session_timeout_ms
        said = member, member.protocols, metadata, member.assignment, times_ms, group.generation
        if known is not None and known.said == said and self._ids_of(known.topic_ids) == known.topic_ids:
            return known
        subscription = read_subscription(metadata)
        assignment = read_assignment(member.assignment)
        if subscription is None or assignment is None:
            return _not_upgradable(group, "a subscription or assignment can't be read")
        if assignment.user_data:
            return _not_upgradable(group, "its assignor keeps data of its own in assignments, which would get lost")
        assigned: dict[bytes, dict[int, int]] = {}
        for topic, partitions in assignment.partitions:
            if (facts := self._topics.by_name(topic)) is not None:
                assigned[facts.topic_id] = dict.fromkeys(partitions, group.generation)
        upgraded = ConsumerMember(
            member.member_id,
            member_epoch=group.generation,
            previous_epoch=group.generation,
            instance_id=member.instance_id,
            rack_id=subscription.rack_id or None,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topics=frozenset(subscription.topics),
            assigned=assigned,
            classic=ClassicFacts(member.session_timeout_ms, member.protocols),
        )
        group_id = group.group_id
        topics = (topic for topic, _ in (*assignment.partitions, *subscription.owned))
        return Upgraded(
            said,
            self._ids_of(topics),
            upgraded,
            self._owned(subscription),
            consumer_member_record(group_id, upgraded),
            target_record(group_id, upgraded.member_id, _target(upgraded)),
            current_record(group_id, upgraded),
        )

    def _turn(self, old: ClassicGroup, made: ConsumerGroup, joins: str | None, draft: Draft) -> None:
        """Tell waiting members of the old group to join again, and begin the sessions of the new group's members."""
        self._classic.dismiss(old, draft)
        self._classic.forget(old, but=joins)
        self._consumer.resuming.begin(made, draft)

    # From consumer to classic -----------------------------------------------------------------------------------------

    def _may_downgrade_without(self, group: ConsumerGroup, leaving: Collection[str]) -> bool:
        rest = len(group.members) - len(leaving)
        classic_leaving = sum(group.members[member_id].classic is not None for member_id in leaving)
        return (
            self._settings.may_downgrade
            and 0 < rest <= self._settings.group_max_size
            and group.tallies.classic - classic_leaving == rest
        )

    def _downgrade(
        self, group: ConsumerGroup, members: list[ConsumerMember], leader: str | None, draft: Draft
    ) -> ClassicGroup | None:
        """The classic group of these members, all of which use the classic protocol. The group is announced, and its
        records are in the draft. None: they are more than a batch may hold, and nothing has changed.

        Without a leader a rebalance follows. Its record says so by naming none, because a coordinator that dies before
        the next generation leaves nothing else behind. In the consumer group nobody led. A member that is named without
        being told would see no topic change, and nobody would read a new partition.

        Members are recorded with the partitions that they hold, not with their targets. If a rebalance follows, it
        decides what they get. If a member of the new protocol joins before that, it must be given only partitions that
        no member is still reading.
        """
        downgrade = self._begun(group, draft)
        is_made = self._make_classic(downgrade, {each.member_id: each for each in members}, sys.maxsize)
        assert is_made, "nothing bounds the work"
        if batch_bytes(draft.records) + _tombstone_bytes(group) + _noted_bytes(downgrade.made) > DOWNGRADE_BYTES_MAX:
            return None
        return self._turn_back(group, downgrade, leader, draft)

    def _begun(self, group: ConsumerGroup, draft: Draft) -> Downgrade:
        if isinstance(group.downgrade, Downgrade):
            return group.downgrade
        made = ClassicGroup(group.group_id, protocol_type=PROTOCOL_TYPE)
        return Downgrade(made, draft.now_ms, self._topics.version)

    def _make_classic(self, downgrade: Downgrade, members: Mapping[str, ConsumerMember], at_once: int) -> bool:
        """Make so many members. Returns whether the group has all these members then, and each its assignment."""
        made, sources = downgrade.made, downgrade.sources
        if downgrade.topics_version != self._topics.version:
            downgrade.topics_version = self._topics.version
            for classic_member in made.members.values():
                classic_member.noted = None  # its assignment has names of topics, which may be others now
        for changed in [member_id for member_id, member in sources.items() if members.get(member_id) is not member]:
            made.remove(changed)
            del sources[changed]
            downgrade.tombstones = None
        missing = [member for member_id, member in members.items() if member_id not in sources]
        for member in missing[:at_once]:
            made.add(_classic_member(member))
            sources[member.member_id] = member
            downgrade.tombstones = None
        if len(missing) >= at_once:
            return False
        made.protocol_name = protocol_name = made.select_protocol()
        unassigned = [each for each in made.members.values() if each.noted is None or each.noted[0] != protocol_name]
        for classic_member in unassigned:
            if at_once <= 0:
                return False
            version = read_version(classic_member.metadata(protocol_name)) or 0
            classic_member.assignment = self._written(sources[classic_member.member_id].held(), version)
            noted = note_member(classic_member, protocol_name)
            at_once -= 1 + (len(noted) + len(classic_member.assignment)) // BYTES_A_STEP
        return True

    def _turn_back(self, group: ConsumerGroup, downgrade: Downgrade, leader: str | None, draft: Draft) -> ClassicGroup:
        made = downgrade.made
        of_members = downgrade.tombstones or members_tombstones(group.group_id, group.members)
        made.state = made.previous_state = ClassicState.STABLE
        made.generation = group.epoch
        made.state_timestamp_ms = draft.wall_ms
        made.leader = leader
        made.subscribed_topics = made.topics_of_members()
        draft.answers.extend(downgrade.answers)
        self._consumer.forget(group)
        first = len(draft.records)
        draft.records.extend(consumer_group_tombstones(group.group_id, of_members, group.resolved))
        draft.replacement = Replacement(group.group_id, None, first, len(draft.records))
        assignments = {member.member_id: member.assignment for member in made.members.values()}
        draft.records.append(classic_group_record(made, assignments))
        self._classic_kind.announce(made)
        self._classic.resume(made, draft)
        return made

    def _written(self, held: TargetByTopic | EpochsByTopic, version: int) -> bytes:
        named = [
            (name, sorted(partitions))
            for topic_id, partitions in held.items()
            if (name := self._topics.name_of(topic_id)) is not None
        ]
        return write_assignment(named, version)

    def remove(self, group: ConsumerGroup, leaving: list[ConsumerMember], draft: Draft) -> list[Answer] | None:
        """Remove members. If only classic ones are left, turn the group into a classic one. If it has many members,
        that is begun. Then the members are removed when it is over, and the list is returned that keeps the answers
        until then: nobody is fenced, or gets other partitions, in a group that is about to be another one.
        """
        gone = {member.member_id for member in leaving}
        if not gone:
            return None
        begun = self._begun(group, draft)
        begun.leaving = {member_id: None for member_id in (*begun.leaving, *gone) if member_id in group.members}
        if not self._may_downgrade_without(group, begun.leaving):
            self._stay(group, begun, draft)
            return None
        if len(group.members) <= DOWNGRADED_AT_ONCE:
            rest = [member for member_id, member in group.members.items() if member_id not in begun.leaving]
            if self._downgrade(group, rest, None, draft) is None:
                self._stay(group, begun, draft)
            return None
        group.downgrade = begun
        self._deadlines.set(("downgrade", group.group_id, ""), draft.now_ms)
        return begun.answers

    def go_back(self, group: ConsumerGroup, _: str, draft: Draft) -> None:
        """Do one turn of what makes a downgrade ready. The last turn writes it."""
        begun = group.downgrade
        if not isinstance(begun, Downgrade):
            return
        begun.leaving = {member_id: None for member_id in begun.leaving if member_id in group.members}
        is_over = draft.now_ms >= begun.asked_ms + DOWNGRADED_WITHIN_MS
        is_too_large = _tombstone_bytes(group) > DOWNGRADE_BYTES_MAX  # first, because every member that leaves asks
        if is_over or is_too_large or not self._may_downgrade_without(group, begun.leaving):
            self._stay(group, begun, draft)
            return
        rest = {member_id: member for member_id, member in group.members.items() if member_id not in begun.leaving}
        if not self._make_classic(begun, rest, DOWNGRADED_AT_ONCE):
            self._deadlines.set(("downgrade", group.group_id, ""), draft.now_ms)
        elif _tombstone_bytes(group) + _noted_bytes(begun.made) > DOWNGRADE_BYTES_MAX:
            self._stay(group, begun, draft)
        elif begun.tombstones is None:
            begun.tombstones = members_tombstones(group.group_id, group.members)
            self._deadlines.set(("downgrade", group.group_id, ""), draft.now_ms)
        else:
            self._turn_back(group, begun, None, draft)

    def _stay(self, group: ConsumerGroup, begun: Downgrade, draft: Draft) -> None:
        """The group stays a consumer group, or turns into nothing: remove those that leave from it as it is."""
        group.downgrade = None
        self._consumer.remove(group, [group.members[member_id] for member_id in begun.leaving], draft)
        draft.answers.extend(begun.answers)

    # Classic members of a consumer group ------------------------------------------------------------------------------

    def _join(self, group: ConsumerGroup, ask: JoinGroup, token: Token, draft: Draft) -> None:
        if (fault := self._classic_kind.join_fault(ask)) is not None:
            draft.answer(token, JoinReply(ask.member_id, fault))
        elif group.members:
            self._join_members(group, with_rebalance_timeout(ask), token, draft)
        else:
            if ask.member_id == NO_MEMBER:  # a classic group takes the place of the empty one
                self._consumer.forget(group)
                draft.records.extend(consumer_group_tombstones(group.group_id, NO_TOMBSTONES, group.resolved))
            self._classic_kind.join(None, ask, token, draft)

    def _join_members(self, group: ConsumerGroup, ask: JoinGroup, token: Token, draft: Draft) -> None:
        refusal = self._refuse_join(group, ask)
        if refusal is not None:
            draft.answer(token, JoinReply(NO_MEMBER, refusal.fault))
            return
        member_id = ask.member_id or ask.fresh_id
        if ask.member_id == NO_MEMBER and ask.instance_id is None and ask.requires_member_id:
            draft.answer(token, JoinReply(member_id, Fault.MEMBER_ID_REQUIRED))
            return
        subscription = read_subscription(ask.protocols[0][1])
        if subscription is None:
            draft.answer(token, JoinReply(NO_MEMBER, Fault.UNKNOWN_SERVER_ERROR))
            return
        replaced = group.static_member(ask.instance_id)
        found = self._find_joining(group, ask, member_id, draft)
        if isinstance(found, Fault):
            draft.answer(token, JoinReply(NO_MEMBER, found))
            return
        had_soft_epoch = found.has_soft_epoch
        if had_soft_epoch:
            found = found._replace(member_epoch=group.told_up_to(found))
        member = _as_it_says(found, ask, subscription)
        regex_change = self._consumer.change_regex(group, found, member, draft)
        assert not isinstance(regex_change, GroupRefusal), "a classic member has no expression"
        changed = self._consumer.record_member(group, found, member, draft) or regex_change.has_changed
        epoch = self._consumer.maybe_raise_epoch(group, member, changed, draft)
        is_small = len(group.members) <= DOWNGRADED_AT_ONCE
        reply = None
        if replaced is not None and is_small and self._replacement_downgrades(group, replaced):
            reply = self._downgrade_by(group, replaced, member, epoch, ask, subscription, changed, draft)
        if reply is None:
            goal = self._consumer.maybe_assign(group, epoch, member, draft)
            owned = self._owned(subscription)
            walked = self._consumer.walk(group, member, goal, owned, changed, draft) or member
            if had_soft_epoch and walked == member:  # the walk recorded nothing, and a generation is always in a record
                draft.records.append(current_record(group.group_id, member))
            member = walked
            draft.must_fit()
            self._keep_session(group, member, draft)
            due_ms = draft.now_ms + ask.rebalance_timeout_ms
            self._deadlines.set(("resync", group.group_id, member.member_id), due_ms)
            if replaced is not None and self._replacement_downgrades(group, replaced):
                group.downgrade = self._begun(group, draft)
                self._deadlines.set(("downgrade", group.group_id, ""), draft.now_ms)
            reply = JoinReply(member.member_id, None, member.member_epoch, PROTOCOL_TYPE, ask.protocols[0][0])
        for what in ("rejoin", "leave"):
            self._deadlines.cancel((what, group.group_id, member.member_id))
        draft.answer(token, reply)

    def _refuse_join(self, group: ConsumerGroup, ask: JoinGroup) -> GroupRefusal | None:
        if (full := self._consumer.refuse_when_full(group.members, ask.member_id)) is not None:
            return full
        supported = ask.protocol_type == PROTOCOL_TYPE and any(
            group.tallies.supporting.get(name, 0) == group.tallies.classic for name, _ in ask.protocols
        )
        return None if supported else GroupRefusal(Fault.INCONSISTENT_GROUP_PROTOCOL)

    def _find_joining(
        self, group: ConsumerGroup, ask: JoinGroup, member_id: str, draft: Draft
    ) -> ConsumerMember | Fault:
        if ask.instance_id is None:
            return group.members.get(member_id) or ConsumerMember(member_id)
        owner = group.static_member(ask.instance_id)
        if ask.member_id == NO_MEMBER:
            return (
                ConsumerMember(member_id) if owner is None else self._consumer.take_over(group, owner, member_id, draft)
            )
        if owner is None:
            return Fault.UNKNOWN_MEMBER_ID
        return owner if owner.member_id == member_id else Fault.FENCED_INSTANCE_ID

    def _replacement_downgrades(self, group: ConsumerGroup, replaced: ConsumerMember) -> bool:
        """Whether the replaced member is the last one of the new protocol, so that the group must turn back."""
        return (
            self._settings.may_downgrade
            and replaced.classic is None
            and len(group.members) <= self._settings.group_max_size
            and group.tallies.classic == len(group.members) - 1
        )

    def _downgrade_by(
        self,
        group: ConsumerGroup,
        replaced: ConsumerMember,
        member: ConsumerMember,
        epoch: int,
        ask: JoinGroup,
        subscription: Subscription,
        changed: bool,
        draft: Draft,
    ) -> JoinReply | None:
        """Turn the group into a classic one, and return the answer to the joining member. None: the group is too large.

        No rebalance is needed if all have reached the target: then each holds its part, and the joining member is told
        that it leads. Otherwise one may still read what the target gives to another, or may not have been told of what
        it is given. An old client can't be told that it leads without assigning anew.
        """
        others = [each for each in group.members.values() if each.member_id != replaced.member_id]
        first = len(draft.records)
        is_settled = epoch == group.assignment_epoch and all(each.is_reconciled_to(epoch) for each in others)
        if is_settled:
            goal = self._consumer.maybe_assign(group, epoch, member, draft)
            walked = self._consumer.walk(group, member, goal, self._owned(subscription), changed, draft) or member
            is_settled = walked.is_reconciled_to(epoch)
        else:
            walked = member
        members = [*others, walked]
        # Records of this decision have already put the joining member into the consumer group. So its tombstones must
        # be written with those of the others.
        joined = member.member_id
        ids = [joined if member_id == replaced.member_id else member_id for member_id in group.members]
        leader = joined if is_settled and ask.can_skip_assignment else None
        made = self._downgrade(_replace_members(group, ids), members, leader, draft)
        if made is None:
            del draft.records[first:]
            return None
        return resumed(made, made.members[joined], ask, NO_MEMBER)

    def _sync(self, group: ConsumerGroup, ask: SyncGroup, token: Token, draft: Draft) -> None:
        member = _find_classic(group, ask.member_id, ask.instance_id)
        if isinstance(member, Fault):
            draft.answer(token, SyncReply(member))
            return
        assert member.classic is not None
        protocol_name, metadata = member.classic.protocols[0]
        if member.member_epoch != ask.generation:
            draft.answer(token, SyncReply(Fault.ILLEGAL_GENERATION))
        elif ask.protocol_type not in (None, PROTOCOL_TYPE) or ask.protocol_name not in (None, protocol_name):
            draft.answer(token, SyncReply(Fault.INCONSISTENT_GROUP_PROTOCOL))
        elif member.member_epoch < group.assignment_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_rejoin(group, member, draft)
            draft.answer(token, SyncReply(Fault.REBALANCE_IN_PROGRESS))
        else:
            self._deadlines.cancel(("resync", group.group_id, member.member_id))
            self._keep_session(group, member, draft)
            assignment = self._written(member.assigned, read_version(metadata) or 0)
            draft.answer(token, SyncReply(None, ask.protocol_type, ask.protocol_name, assignment))

    def _heartbeat(self, group: ConsumerGroup, ask: Heartbeat, token: Token, draft: Draft) -> None:
        member = _find_classic(group, ask.member_id, ask.instance_id)
        if isinstance(member, Fault):
            draft.answer(token, FaultReply(member))
            return
        if member.member_epoch != ask.generation:
            draft.answer(token, FaultReply(Fault.ILLEGAL_GENERATION))
            return
        self._keep_session(group, member, draft)
        if self._consumer.maybe_raise_epoch(group, member, False, draft) > group.assignment_epoch:
            self._consumer.assign_later(group, draft)
        has_news = (
            member.member_epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        )
        if has_news:
            self._expect_rejoin(group, member, draft)
        draft.answer(token, FaultReply(Fault.REBALANCE_IN_PROGRESS if has_news else None))

    def _leave(self, group: ConsumerGroup, ask: LeaveGroup, token: Token, draft: Draft) -> None:
        """Members of either protocol leave."""
        leaving: dict[str, ConsumerMember] = {}
        answered: list[LeftMember] = []
        for member in ask.members:
            found = _find_leaving(group, member)
            if isinstance(found, Fault):
                answered.append(LeftMember(member.member_id, member.instance_id, found))
            else:
                leaving[found.member_id] = found
                answered.append(LeftMember(member.member_id, member.instance_id, None))
        draft.kept = self.remove(group, list(leaving.values()), draft)
        draft.answer(token, LeaveReply(None, tuple(answered)))

    def _expect_rejoin(self, group: ConsumerGroup, member: ConsumerMember, draft: Draft) -> None:
        name: DeadlineName = ("rejoin", group.group_id, member.member_id)
        self._deadlines.set_if_absent(name, draft.now_ms + member.rebalance_timeout_ms)

    def _keep_session(self, group: ConsumerGroup, member: ConsumerMember, draft: Draft) -> None:
        assert member.classic is not None
        name: DeadlineName = ("session", group.group_id, member.member_id)
        self._deadlines.set(name, draft.now_ms + member.classic.session_timeout_ms)

    def _ids_of(self, topics: Iterable[str]) -> dict[str, bytes | None]:
        known = {topic: self._topics.by_name(topic) for topic in topics}
        return {topic: None if facts is None else facts.topic_id for topic, facts in known.items()}

    def _owned(self, subscription: Subscription) -> dict[bytes, tuple[int, ...]]:
        return {
            facts.topic_id: partitions
            for topic, partitions in subscription.owned
            if (facts := self._topics.by_name(topic)) is not None
        }


def _upgrade_bytes(group: ClassicGroup, member: ClassicMember) -> int:
    """About how many bytes an upgrade writes for this member."""
    return (
        3 * (len(group.group_id) + len(member.member_id))
        + len(member.client_id)
        + len(member.client_host)
        + 2 * len(member.assignment)
        + sum(len(name) + len(metadata) for name, metadata in member.protocols)
        + UPGRADE_FRAME_BYTES
    )


def _classic_member(member: ConsumerMember) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        member.classic.protocols,
    )


def _tombstone_bytes(group: ConsumerGroup) -> int:
    """About how many bytes the tombstones of a group take up."""
    of_members = sum([len(member_id.encode()) for member_id in group.members])
    of_regexes = sum([len(regex.encode()) for regex in group.resolved])
    count = len(group.members) + 2 + len(group.resolved)  # by three tombstones: the group itself has five
    return 3 * of_members + of_regexes + count * (3 * len(group.group_id.encode()) + DOWNGRADE_FRAME_BYTES)


def _noted_bytes(made: ClassicGroup) -> int:
    return sum(len(each.noted[1]) + len(each.assignment) for each in made.members.values() if each.noted is not None)


def _records_of_upgrade(made: ConsumerGroup, parts: Collection[Upgraded]) -> list[RecordPair]:
    """The tombstone of the classic group, and all records of the new group."""
    group_id = made.group_id
    return [
        classic_group_tombstone(group_id),
        *(part.member_record for part in parts),
        consumer_epoch_record(group_id, made.epoch, made.metadata_hash),
        *(part.target_record for part in parts),
        target_epoch_record(group_id, made.assignment_epoch, 0),
        *(part.current_record for part in parts),
    ]


def _target(member: ConsumerMember) -> TargetByTopic:
    return {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}


def _replace_members(group: ConsumerGroup, member_ids: list[str]) -> ConsumerGroup:
    """The group with members of these ids: all that is needed to write its tombstones."""
    return replace(group, members={member_id: ConsumerMember(member_id) for member_id in member_ids})


def _as_it_says(found: ConsumerMember, ask: JoinGroup, subscription: Subscription) -> ConsumerMember:
    return found._replace(
        instance_id=found.instance_id if ask.instance_id is None else ask.instance_id,
        rack_id=subscription.rack_id or found.rack_id,
        rebalance_timeout_ms=ask.rebalance_timeout_ms,
        subscribed_topics=frozenset(subscription.topics),
        subscribed_regex="",  # the classic protocol has no expressions
        client_id=ask.client_id,
        client_host=ask.client_host,
        classic=ClassicFacts(ask.session_timeout_ms, ask.protocols),
    )


def _find_classic(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember | Fault:
    member = group.members.get(member_id) if instance_id is None else group.static_member(instance_id)
    if member is None:
        return Fault.UNKNOWN_MEMBER_ID
    if member.member_id != member_id:
        return Fault.FENCED_INSTANCE_ID
    return member if member.classic is not None else Fault.UNKNOWN_MEMBER_ID


def _find_leaving(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerMember | Fault:
    """The member that is to leave. An operator may name a static member by its instance id, without the member id."""
    if leaving.instance_id is None:
        return group.members.get(leaving.member_id) or Fault.UNKNOWN_MEMBER_ID
    member = group.static_member(leaving.instance_id)
    if member is None:
        return Fault.UNKNOWN_MEMBER_ID
    return member if leaving.member_id in (NO_MEMBER, member.member_id) else Fault.FENCED_INSTANCE_ID


def _not_upgradable(group: ClassicGroup, reason: str) -> GroupRefusal:
    return GroupRefusal(
        Fault.GROUP_ID_NOT_FOUND, f"classic group {group.group_id} can't turn into a consumer group: {reason}"
    )
