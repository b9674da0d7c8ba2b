"""A consumer group (KIP-848) as its records describe it: members, epochs, target assignment, who holds which partition.

`apply` writes everything here from records, in service as in recovery. Some fields are soft (not in the records); they
are marked. Decisions read a group and never change it. Members are values: a changed member is a new object.

A new target changes nothing for most members but their epoch. That is not recorded: the epoch of a stable member of the
consumer protocol, and its epoch before, are soft too. A replay knows the recorded epoch only. But what a member has is
always recorded before it is told. So one that claims an epoch between the recorded one and the newest that it may have
been told (`told_up_to`) has what its record says, and is believed. (A version that does not know this fences it, and it
joins again.) But only the newest proves that the request is not older than what the member was told last. With any
other one it frees no partition and commits nothing for one that it does not hold, until it names the newest. Its next
heartbeat is told that.

Invariants: `holders` has an entry for exactly those partitions that are assigned to a member or still to be revoked by
one. `tallies` are always what counting all members and expressions would give. With both, a heartbeat costs no more in
a larger group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeVar

from service.groups.assignment_round import AssignmentRound
from service.groups.commands import (
    LEAVE_EPOCH,
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitTransactionalOffsets,
    FetchOffsets,
    ListedGroupFacts,
    OffsetToCommit,
)
from service.groups.consumer_protocol import PROTOCOL_TYPE
from service.groups.kinds import OffsetCheck, any_offset
from service.groups.offsets import CommittedOffset
from service.groups.regex import RegexRound, TopicMatches
from service.groups.small_steps import SmallSteps
from service.groups.states import ConsumerState, MemberState
from service.groups.verdicts import Fault

_new = tuple.__new__  # takes half the time of a class's own constructor

Key = TypeVar("Key")

# By topic id and partition: the member epoch at which the partition was given. Never changed in place.
EpochsByTopic = Mapping[bytes, Mapping[int, int]]
TargetByTopic = Mapping[bytes, frozenset[int]]
NOTHING: EpochsByTopic = MappingProxyType({})
NO_NAMES: frozenset[str] = frozenset()
NO_PARTITIONS: frozenset[int] = frozenset()

# The first epoch of a group and of its target, so that the first change leads to epoch 2. (After the tombstone of a
# target its epoch is -1.)
INITIAL_EPOCH = 1


class ClassicFacts(NamedTuple):
    """The facts about a member of a consumer group that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class SaidByMember(NamedTuple):
    """What a member has said of itself, in the order in which `ConsumerMember` has it."""

    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    subscribed_topics: frozenset[str]
    subscribed_regex: str | None
    server_assignor: str | None
    classic: ClassicFacts | None


class ConsumerMember(NamedTuple):
    member_id: str
    member_epoch: int = 0  # soft, as is the next: see `has_soft_epoch`
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topics: frozenset[str] = frozenset()
    subscribed_regex: str | None = ""
    server_assignor: str | None = None
    assigned: EpochsByTopic = NOTHING
    revoking: EpochsByTopic = NOTHING
    classic: ClassicFacts | None = None

    def at_epoch(
        self, epoch: int, state: MemberState, *, assigned: EpochsByTopic, revoking: EpochsByTopic
    ) -> ConsumerMember:
        """The member at `epoch`. Its epoch before is remembered, because the answer may get lost."""
        return self.holding((epoch, self.member_epoch, state, assigned, revoking))

    def holding(self, current: tuple[int, int, MemberState, EpochsByTopic, EpochsByTopic]) -> ConsumerMember:
        """The member with these epochs, in this state, with these partitions (a tuple of `records.CurrentAssignment`).
        Each step of each member makes one, and `_replace` takes three times as long.
        """
        return _new(ConsumerMember, (self[0], *current[:3], *self[4:12], *current[3:], self[14]))

    @property
    def has_soft_epoch(self) -> bool:
        """Whether the member may be moved to another epoch without a record, if it keeps what it has. One without an
        epoch of its own may not: it has left for a while, or is about to get its first.
        """
        return self.state is MemberState.STABLE and self.classic is None and self.member_epoch > 0

    def has_just(self, target: TargetByTopic) -> bool:
        """Whether the member holds its target and nothing else."""
        if self.revoking or len(self.assigned) != len(target):
            return False
        for topic_id, has in self.assigned.items():  # `all` would make a generator, at each step of each member
            if not has or has.keys() != target.get(topic_id, NO_PARTITIONS):
                return False
        return True

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def epoch_given(self, topic_id: bytes, partition: int) -> int | None:
        """The member epoch since which the member holds the partition; None: it does not hold it."""
        given = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if given is None else given

    def held(self) -> TargetByTopic:
        """The partitions that the member may be reading, including those that it has still to revoke."""
        held: dict[bytes, frozenset[int]] = {}
        for part in (self.assigned, self.revoking):
            for topic_id, partitions in part.items():
                held[topic_id] = held.get(topic_id, frozenset()).union(partitions)
        return held

    def holds_besides(self, other: ConsumerMember | None) -> Iterator[tuple[bytes, Mapping[int, int]]]:
        """What the member holds, topic by topic, without the topics of which `other` holds the same partitions. These
        are most of what it has, if `other` is the same member before or after a step.
        """
        parts = () if other is None else tuple(part for part in (other.assigned, other.revoking) if part)
        for held in (self.assigned, self.revoking):
            for topic_id, partitions in held.items():
                for part in parts:
                    also = part.get(topic_id)
                    if also is partitions or (also is not None and also.keys() == partitions.keys()):
                        break
                else:
                    yield topic_id, partitions

    def keeps_all_of(self, other: ConsumerMember) -> bool:
        """Whether it is plain that this member, after a step of `other`, holds the same. Of most it is."""
        return self.assigned is other.assigned and not self.revoking and not other.revoking

    @property
    def stale_fault(self) -> Fault:
        """The fault for an epoch that is not the member's, by the protocol that the member uses."""
        return Fault.ILLEGAL_GENERATION if self.classic is not None else Fault.STALE_MEMBER_EPOCH

    @property
    def said(self) -> SaidByMember:
        return SaidByMember(*self[4:12], self.classic)

    def saying(self, said: SaidByMember) -> ConsumerMember:
        facts = (*self[:4], *said[:8], self.assigned, self.revoking, said.classic)
        return _new(ConsumerMember, facts)

    def says_the_same_as(self, other: ConsumerMember) -> bool:
        return self[4:12] == other[4:12] and self.classic == other.classic

    @property
    def regex_or_none(self) -> str | None:
        return self.subscribed_regex or None


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    version: int
    timestamp_ms: int


class MetadataLook(NamedTuple):
    """A look at the metadata of all subscribed topics, in several turns. `version`: that of the metadata at its
    begin. `work` computes the fingerprint.
    """

    version: int
    work: SmallSteps[int]


class Raised(NamedTuple):
    """To which epoch a group was last raised, and at which version of the metadata."""

    epoch: int
    version: int


@dataclass(slots=True)
class Tallies:
    """Counts of members and expressions. An entry whose count falls to zero is removed."""

    naming: dict[str, int] = field(default_factory=dict)  # by topic: members that subscribe to it by name
    using: dict[str, int] = field(default_factory=dict)  # by regular expression: members that subscribe with it
    matching: dict[str, int] = field(default_factory=dict)  # by topic: expressions in use that are known to match it
    supporting: dict[str, int] = field(default_factory=dict)  # by protocol: classic members that support it
    stable_at: dict[int, int] = field(default_factory=dict)  # by member epoch: stable members with that epoch
    classic: int = 0
    # Soft: while a look at all topics is under way, those that members have named or left since its begin.
    changed: dict[str, None] | None = field(default=None, compare=False)

    def replace(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        """Count `new` instead of `old`. Topics that both name, which may be thousands, are left as they are."""
        before = NO_NAMES if old is None else old.subscribed_topics
        after = NO_NAMES if new is None else new.subscribed_topics
        self.replace_topics(self.naming, before, after)
        for member, by in ((old, -1), (new, 1)):
            if member is not None:
                self._count(member, by)

    def replace_topics(self, counts: dict[str, int], before: frozenset[str], after: frozenset[str]) -> None:
        _replace(counts, before, after)
        if self.changed is not None:
            self.changed.update(dict.fromkeys(before ^ after))

    def _count(self, member: ConsumerMember, by: int) -> None:
        if member.regex_or_none is not None:
            _add(self.using, member.regex_or_none, by)
        if member.classic is not None:
            self.classic += by
            for name in {name for name, _ in member.classic.protocols}:
                _add(self.supporting, name, by)
        self.count_state(member, by)

    def count_state(self, member: ConsumerMember, by: int) -> None:
        if member.state is MemberState.STABLE:
            _add(self.stable_at, member.member_epoch, by)


def _times(sets: Collection[frozenset[str]]) -> Mapping[str, int]:
    """In how many of these sets each topic is. Mostly it is one set."""
    if len(sets) == 1:
        [topics] = sets
        return dict.fromkeys(topics, 1)
    return Counter(chain.from_iterable(sets))


def _left(counts: Mapping[str, int], fewer: Mapping[str, int]) -> set[str]:
    """The topics whose count is not zero when it is so much lower."""
    topics = set(counts)
    topics.difference_update([topic for topic, count in fewer.items() if counts.get(topic, 0) <= count])
    return topics


def _replace(counts: dict[str, int], before: frozenset[str], after: frozenset[str]) -> None:
    """Count the topics of one set instead of those of the other. What is in both is left as it is."""
    more = after - before if before else after
    new = more.difference(counts) if counts else more
    if len(new) < len(more):
        for topic in more - new:
            counts[topic] += 1
    counts.update(dict.fromkeys(new, 1))
    for topic in before - after:
        if (count := counts[topic]) > 1:
            counts[topic] = count - 1
        else:
            del counts[topic]


def _add(counts: dict[Key, int], key: Key, by: int) -> None:
    count = counts.get(key, 0) + by
    if count:
        counts[key] = count
    else:
        del counts[key]


@dataclass(slots=True)
class ConsumerGroup:
    kind: ClassVar[str] = "consumer"

    group_id: str
    epoch: int = INITIAL_EPOCH
    metadata_hash: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    assignment_epoch: int = INITIAL_EPOCH
    assignment_timestamp_ms: int = 0
    target: dict[str, TargetByTopic] = field(default_factory=dict)
    resolved: dict[str, ResolvedRegex] = field(default_factory=dict)
    matched: dict[str, frozenset[str]] = field(default_factory=dict)  # what `tallies` count of each expression in use
    has_partition_metadata: bool = False  # there is a record of an old version, to be removed at the next change
    holders: dict[tuple[bytes, int], str] = field(default_factory=dict)  # partition -> id of the member holding it
    tallies: Tallies = field(default_factory=Tallies)
    unresolved: dict[str, None] = field(default_factory=dict)  # expressions in use that were never resolved

    # Soft: the version of the metadata with which this group was last compared; the look that compares it now; when its
    # regular expressions were last resolved; the round that resolves them now, and what the last round found for each.
    seen_version: int | None = field(default=None, compare=False)
    seen_at_epoch: int = field(default=-1, compare=False)
    metadata_look: MetadataLook | None = field(default=None, compare=False)
    regex_version: int | None = field(default=None, compare=False)
    regex_time_ms: int | None = field(default=None, compare=False)
    regex_round: RegexRound | None = field(default=None, compare=False)
    regex_matches: dict[str, TopicMatches] = field(default_factory=dict, compare=False)
    # Soft, too: the target's epoch when the log had been read, up to which former coordinators may have told members
    # epochs that are in no record.
    replayed_epoch: int = field(default=-1, compare=False)
    # Soft, too: when a member last raised the epoch; what it was last raised to, by whatever; a new target that is
    # being made in several turns.
    raised_ms: int = field(default=0, compare=False)
    raised: Raised | None = field(default=None, compare=False)
    assignment_round: AssignmentRound | None = field(default=None, compare=False)
    downgrade: object = field(default=None, compare=False)  # what `migration.py` has prepared, and who leaves with it

    # Reading ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        reconciled = self.tallies.stable_at.get(self.assignment_epoch, 0)
        return ConsumerState.STABLE if reconciled == len(self.members) else ConsumerState.RECONCILING

    @property
    def stamp(self) -> tuple[int, int, int]:
        """Another one says that some member may get other partitions than before."""
        return self.epoch, self.assignment_epoch, len(self.holders)

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_abandoned(self) -> bool:
        return self.is_empty

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str, instance_id: str | None) -> TargetByTopic:
        """The member's target. A static member has the target of the member whose place it takes, if there is one."""
        if instance_id is not None:
            member_id = self.static_members.get(instance_id, member_id)
        return self.target.get(member_id, {})

    def must_look_at_metadata(self, version: int) -> bool:
        return self.seen_version != version or self.epoch < self.seen_at_epoch

    def replaced_by(self, member: ConsumerMember) -> list[ConsumerMember]:
        """The members that `put(member)` replaces: its former self, and the member whose static place it takes."""
        old = (self.members.get(member.member_id), self.static_member(member.instance_id))
        return list({each.member_id: each for each in old if each is not None}.values())

    def members_with(self, member: ConsumerMember) -> dict[str, ConsumerMember]:
        """The members of the group as they will be after `put(member)`."""
        members = self.members.copy()
        for gone in self.replaced_by(member):
            del members[gone.member_id]
        members[member.member_id] = member
        return members

    def uses(self, regex: str, *, without: Collection[ConsumerMember]) -> bool:
        """Whether any member other than these uses this expression."""
        return self.tallies.using.get(regex, 0) > sum(member.subscribed_regex == regex for member in without)

    def topics_subscribed(
        self, *, without: Collection[ConsumerMember] = (), and_by: ConsumerMember | None = None
    ) -> set[str]:
        """Every topic to which members subscribe, by name or by a resolved expression. The members in `without` don't
        count; `and_by` does. Only for a few: see `topics_at_most`.
        """
        topics: set[str] = set()
        if len(without) < len(self.members):
            topics = _left(self.tallies.naming, _times([member.subscribed_topics for member in without]))
            given_up = {member.regex_or_none or "" for member in without} & self.matched.keys()
            unused = [self.matched[regex] for regex in given_up if not self.uses(regex, without=without)]
            topics |= _left(self.tallies.matching, _times(unused))
        return topics if and_by is None else topics | self.topics_of(and_by)

    def topics_at_most(self, *, and_by: ConsumerMember | None = None) -> int:
        """No fewer than the topics to which members subscribe, and `and_by`. To count them takes as long as to make a
        set of them: milliseconds, if a few members name thousands of different topics.
        """
        most = len(self.tallies.naming) + len(self.tallies.matching)
        if and_by is not None:
            most += len(and_by.subscribed_topics.difference(self.tallies.naming))
            resolved = self.resolved.get(and_by.regex_or_none or "")
            if resolved is not None and and_by.subscribed_regex not in self.matched:
                most += len(resolved.topics)
        return most

    def names_subscribed(self) -> Iterator[str]:
        """Every topic to which members subscribe now, to be looked at in turns. One may come twice."""
        return chain(list(self.tallies.naming), list(self.tallies.matching))

    def keeps_its_topics(self, *, without: Collection[ConsumerMember], and_by: ConsumerMember | None) -> bool:
        """Whether the members subscribe to the same topics without these and with that one. It is asked of what they
        say, so that it costs the same however many topics an expression matches.
        """
        comes = NO_NAMES if and_by is None else and_by.subscribed_topics
        expression = None if and_by is None else and_by.regex_or_none
        naming = self.tallies.naming
        if expression is None and not without:  # one more has come
            return comes <= naming.keys()
        fewer = _times([member.subscribed_topics for member in without])
        return (
            (expression is None or expression in self.tallies.using)
            and comes <= naming.keys()
            and all(naming[topic] > count for topic, count in fewer.items() if topic not in comes)
            and all(
                regex is None or regex == expression or self.uses(regex, without=without)
                for regex in {member.regex_or_none for member in without}
            )
        )

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        resolved = self.resolved.get(member.regex_or_none or "")
        if resolved is None:
            return member.subscribed_topics
        return member.subscribed_topics | resolved.topics if member.subscribed_topics else resolved.topics

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.tallies.naming or topic in self.tallies.matching

    def preferred_assignor(self, members: Iterable[ConsumerMember]) -> str | None:
        """The assignor that most members ask for, the first by name among equals; None if no member asks for one."""
        votes: dict[str, int] = {}
        for member in members:
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name), default=None)

    def is_held(self, topic_id: bytes, partition: int) -> bool:
        return (topic_id, partition) in self.holders

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether a partition that the target gives to `member` is still held by another one."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned.get(topic_id, {}) and self.is_held(topic_id, partition)
            for topic_id, partitions in self.target.get(member.member_id, {}).items()
            for partition in partitions
        )

    def told_up_to(self, member: ConsumerMember) -> int:
        """The newest epoch that the member may have been told. After a replay that may be any one up to the target's of
        then. It is told that one only if it has what the target gives it. (While a newer target is written, or when it
        has been, that is not known any more.)
        """
        known, newest = member.member_epoch, self.replayed_epoch
        if newest <= known or not member.has_soft_epoch:
            return known
        is_of_target = newest == self.assignment_epoch == self.epoch
        if is_of_target and not member.has_just(self.target.get(member.member_id, {})):
            newest -= 1
        return newest

    def may_be_at(self, member: ConsumerMember, epoch: int) -> bool:
        """Whether the member may have been told this epoch."""
        return member.member_epoch == epoch or member.member_epoch < epoch <= self.told_up_to(member)

    def listed(self) -> ListedGroupFacts:
        return ListedGroupFacts(self.group_id, PROTOCOL_TYPE, self.state.value, self.kind)

    # Its offsets ------------------------------------------------------------------------------------------------------

    def may_commit(self, ask: CommitOffsets) -> Fault | OffsetCheck:
        if ask.generation < 0 and not self.members:
            return any_offset
        member = self.members.get(ask.member_id)
        if member is None:
            return Fault.UNKNOWN_MEMBER_ID
        if member.classic is None and not ask.speaks_consumer_protocol:
            return Fault.UNSUPPORTED_VERSION
        return self._may_commit_at(member, ask.generation)

    def may_commit_in_transaction(self, ask: CommitTransactionalOffsets) -> Fault | OffsetCheck:
        says_nothing = ask.generation == NO_GENERATION and ask.member_id == NO_MEMBER and ask.instance_id is None
        if says_nothing or (ask.generation < 0 and not self.members):
            return any_offset
        member = self.members.get(ask.member_id)
        if member is None:
            return Fault.UNKNOWN_MEMBER_ID
        check = self._may_commit_at(member, ask.generation)
        if isinstance(check, Fault):
            return Fault.ILLEGAL_GENERATION  # transactional clients don't know the fault for a stale epoch
        return lambda offset: None if check(offset) is None else Fault.ILLEGAL_GENERATION

    def _may_commit_at(self, member: ConsumerMember, epoch: int) -> Fault | OffsetCheck:
        """A member that does not know its newest epoch yet may still commit for partitions that it has held since
        before that epoch (KIP-1251). With its newest epoch it may commit for any partition that no other member holds:
        it may have let go of a partition within this epoch, and a delayed commit may arrive after that.
        """
        stale, newest = member.stale_fault, self.told_up_to(member)
        if epoch > newest:
            return stale

        def held_since(offset: OffsetToCommit) -> Fault | None:
            given = member.epoch_given(offset.topic_id, offset.partition)
            if given is None:
                is_free = epoch == newest and not self.is_held(offset.topic_id, offset.partition)
                return None if is_free else stale
            return None if epoch >= given else stale

        return held_since

    def fetching_fault(self, ask: FetchOffsets) -> Fault | None:
        if ask.member_id is None and ask.member_epoch < 0:
            return None
        member = self.members.get(ask.member_id or NO_MEMBER)
        if member is None:
            return Fault.UNKNOWN_MEMBER_ID
        return None if self.may_be_at(member, ask.member_epoch) else member.stale_fault

    def deleting_fault(self) -> Fault | None:
        return None

    def idle_since_ms(self, committed: CommittedOffset) -> int | None:
        return committed.commit_timestamp_ms

    # Noting what is soft ----------------------------------------------------------------------------------------------

    def note_epoch(self, member: ConsumerMember, epoch: int, *, before: int) -> ConsumerMember:
        """The member, which keeps what it has and has a soft epoch, at another one. Each member takes this step after
        each new target.
        """
        moved = self.members[member.member_id] = _new(ConsumerMember, (member[0], epoch, before, *member[3:]))
        _add(self.tallies.stable_at, member.member_epoch, -1)
        _add(self.tallies.stable_at, epoch, 1)
        return moved

    # Writing: `apply` only --------------------------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        old = self.members.get(member.member_id)
        keeps_all = old is not None and member.keeps_all_of(old)
        if old is not None and not keeps_all:
            self._release(old, but=member)
        if old is not None and member.says_the_same_as(old):  # most steps of a member change only what it holds
            self.tallies.count_state(old, -1)
            self.tallies.count_state(member, 1)
        else:
            self.tallies.replace(old, member)
            for each in (old, member):
                if each is not None and each.regex_or_none is not None:
                    self._note_regex(each.regex_or_none)
        if not keeps_all:
            self._hold(member, but=old)
        if old is not None and old.instance_id != member.instance_id:
            self._release_instance(old)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def unassign(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self.put(member._replace(member_epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned={}, revoking={}))

    def drop(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._release(member)
        self.tallies.replace(member, None)
        if member.regex_or_none is not None:
            self._note_regex(member.regex_or_none)
        self._release_instance(member)

    def _release_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def resolve(self, regex: str, resolved: ResolvedRegex | None) -> None:
        if resolved is None:
            self.resolved.pop(regex, None)
        else:
            self.resolved[regex] = resolved
        self._note_regex(regex)

    def _note_regex(self, regex: str) -> None:
        """Note whether members use this expression, and what it matches."""
        resolved = self.resolved.get(regex)
        is_used = regex in self.tallies.using
        if is_used and resolved is None:
            self.unresolved[regex] = None
        else:
            self.unresolved.pop(regex, None)
        before = self.matched.pop(regex, NO_NAMES)
        after = resolved.topics if is_used and resolved is not None else NO_NAMES
        if after:
            self.matched[regex] = after
        if after is not before:
            self.tallies.replace_topics(self.tallies.matching, before, after)

    def _hold(self, member: ConsumerMember, *, but: ConsumerMember | None) -> None:
        """Put the member into `holders`, but not for what it has held as `but`."""
        holders, member_id = self.holders, member.member_id
        for topic_id, partitions in member.holds_besides(but):
            for partition in partitions:
                holders[topic_id, partition] = member_id

    def _release(self, member: ConsumerMember, *, but: ConsumerMember | None = None) -> None:
        """Take the member out of `holders`, but not for what it goes on to hold as `but`. Another member may hold a
        partition of it already: the records of one decision may move a partition in either order.
        """
        holders, member_id = self.holders, member.member_id
        for topic_id, partitions in member.holds_besides(but):
            for partition in partitions:
                name = (topic_id, partition)
                if holders.get(name) == member_id:
                    del holders[name]
