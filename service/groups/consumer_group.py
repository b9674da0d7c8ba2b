"""A consumer group (KIP-848) as its records describe it: members, epochs, target assignment, who holds which partition.

Everything here is written by `apply` from records, in live service as in recovery; the two notes about the metadata
that was last looked at are soft. Decisions read it and never change it. Members are values: a changed member is a new
one. Invariant: `holders` has an entry for exactly the partitions that some member has assigned or still to revoke.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from service.groups.commands import LEAVE_EPOCH
from service.groups.states import ConsumerState, MemberState

# Partition -> the member epoch at which it was given, by topic id. Treated as immutable.
EpochsByTopic = Mapping[bytes, Mapping[int, int]]
TargetByTopic = Mapping[bytes, frozenset[int]]

# A group and its target begin here, so that the first change leads to epoch 2; -1 after the target's tombstone.
INITIAL_EPOCH = 1


@dataclass(frozen=True, slots=True)
class ClassicFacts:
    """What a member that speaks the classic protocol brings into a consumer group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    member_epoch: int = 0
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
    assigned: EpochsByTopic = field(default_factory=dict)
    revoking: EpochsByTopic = field(default_factory=dict)
    classic: ClassicFacts | None = None

    def at_epoch(self, epoch: int, **changes: object) -> "ConsumerMember":
        """The member moved to `epoch`; the one it leaves is remembered, because the answer may get lost."""
        return replace(self, member_epoch=epoch, previous_epoch=self.member_epoch, **changes)  # type: ignore[arg-type]

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def epoch_given(self, topic_id: bytes, partition: int) -> int | None:
        """Since which member epoch it holds the partition; None if it does not."""
        given = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if given is None else given

    @property
    def regex_or_none(self) -> str | None:
        return self.subscribed_regex or None


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    epoch: int = INITIAL_EPOCH
    metadata_hash: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    assignment_epoch: int = INITIAL_EPOCH
    assignment_timestamp_ms: int = 0
    target: dict[str, TargetByTopic] = field(default_factory=dict)
    resolved: dict[str, ResolvedRegex] = field(default_factory=dict)
    has_partition_metadata: bool = False  # an old version's record, to be removed at the next change
    holders: dict[tuple[bytes, int], int] = field(default_factory=dict)  # partition -> epoch of the member holding it

    # Soft: the metadata this group was last compared with, and when its regular expressions were last resolved.
    seen_version: int | None = None
    seen_at_epoch: int = -1
    regex_version: int | None = None
    regex_time_ms: int | None = None

    # Reading ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str, instance_id: str | None) -> TargetByTopic:
        """A static member inherits the target of the one whose place it takes."""
        if instance_id is not None:
            member_id = self.static_members.get(instance_id, "")
        return self.target.get(member_id, {})

    def must_look_at_metadata(self, version: int) -> bool:
        return self.seen_version != version or self.epoch < self.seen_at_epoch

    def members_with(self, changed: ConsumerMember | None, without: Iterable[str] = ()) -> dict[str, ConsumerMember]:
        """The members as they will be. The one whose static place `changed` takes is gone."""
        gone = set(without)
        if changed is not None and changed.instance_id is not None:
            previous = self.static_members.get(changed.instance_id)
            if previous is not None and previous != changed.member_id:
                gone.add(previous)
        members = {member_id: member for member_id, member in self.members.items() if member_id not in gone}
        if changed is not None:
            members[changed.member_id] = changed
        return members

    def topics_subscribed(self, members: Iterable[ConsumerMember]) -> set[str]:
        """Every topic that one of `members` names or has matched by a resolved expression."""
        topics: set[str] = set()
        for member in members:
            topics |= self.topics_of(member)
        return topics

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        resolved = self.resolved.get(member.regex_or_none or "")
        return member.subscribed_topics if resolved is None else member.subscribed_topics | resolved.topics

    def regexes(self, members: Iterable[ConsumerMember]) -> dict[str, None]:
        return {member.regex_or_none: None for member in members if member.regex_or_none is not None}

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def preferred_assignor(self, members: Iterable[ConsumerMember]) -> str | None:
        """The one most members ask for, the first by name among equals; None if nobody asks."""
        votes: dict[str, int] = {}
        for member in members:
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name), default=None)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether a partition that the target gives to `member` is still held by another one."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned.get(topic_id, {}) and (topic_id, partition) in self.holders
            for topic_id, partitions in self.target.get(member.member_id, {}).items()
            for partition in partitions
        )

    # Writing: `apply` only
    # ---------------------------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        old = self.members.get(member.member_id)
        if old is not None:
            self._release(old)
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                for partition in partitions:
                    self.holders[topic_id, partition] = member.member_epoch
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def unassign(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self.put(
                replace(member, member_epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned={}, revoking={}),
            )

    def drop(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._release(member)
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]

    def _release(self, member: ConsumerMember) -> None:
        """A partition may meanwhile be another's, at a newer epoch: records of one decision move it in either order."""
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                for partition in partitions:
                    if self.holders.get((topic_id, partition)) == member.member_epoch:
                        del self.holders[topic_id, partition]
