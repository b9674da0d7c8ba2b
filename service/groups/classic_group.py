"""The state of a classic group: members, votes, who has joined and who has synced.

It has no clock and decides nothing about rebalances (classic_decisions.py does). The durable part is what its stored
record says. Everything else is lost with the coordinator; `from_stored` builds a group from the record.

Invariants: `static_members` has exactly the members with an instance id. The leader is a member, or None. A group
with members that has none was a consumer group and has had no generation since. A member that waits for a join has the
token of its last JoinGroup. `joined`, `preferences` and `listing` are always what counting all members would give, so
that the cost of a join does not grow with the group.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from log.steps import done_at_once
from service.groups.commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitTransactionalOffsets,
    FetchOffsets,
    JoinedMember,
    JoinGroup,
    ListedGroupFacts,
    SyncGroup,
)
from service.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    VERSION_BYTES,
    read_assignment,
    read_subscription,
    subscribed_topics,
    written_topics,
)
from service.groups.kinds import OffsetCheck, any_offset
from service.groups.offsets import CommittedOffset
from service.groups.states import CLASSIC_MOVES, ClassicState
from service.groups.verdicts import Fault, Token
from service.wire.messages import GroupMetadataValue

_new = tuple.__new__  # takes half the time of a class's own constructor

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False  # its first JoinGroup is not answered yet, so it can't send heartbeats
    awaiting_join: Token | None = None  # changed by the group only, which counts these
    awaiting_sync: Token | None = None
    noted: tuple[str | None, bytes] | None = None  # its bytes in the group's record, and for which protocol

    @property
    def preference(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.protocols)

    def metadata(self, protocol_name: str) -> bytes:
        """The member's metadata for this protocol. All members of a generation support the one that the group chose."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    @property
    def is_heard(self) -> bool:
        """Whether the member counts as alive without heartbeats: a request of it is parked, other than its first
        join.
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)


NAMES_READ_MAX: Final = 100_000
"""The most names of topics that are read in different subscriptions of one group. That takes 30 ms, in one turn. What
more is subscribed to counts as not known.
"""
MADE_A_TURN: Final = 1_000
"""How many members of a stored group are made in one turn, when turns are counted."""
NEGATIVE: Final = 0x80
"""The first byte of no version."""
KNOWN_AT_MOST: Final = 10
"""With the topics of so many others those of a member are compared before they are read."""


@dataclass(slots=True)
class ClassicGroup:
    kind: ClassVar[str] = "classic"

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    previous_state: ClassicState = ClassicState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = -1
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_joins: dict[str, None] = field(default_factory=dict)  # ids given out with MEMBER_ID_REQUIRED
    pending_syncs: dict[str, None] = field(default_factory=dict)
    # How many members list these protocols, in this order.
    preferences: dict[tuple[str, ...], int] = field(default_factory=dict)
    listing: dict[str, int] = field(default_factory=dict)  # by protocol: how many of these list it
    joined: int = 0  # how many members wait for the answer to a join
    # Members whose parked requests can be answered now; the next one is the last.
    unanswered: list[str] = field(default_factory=list)
    # What the leader has assigned, if it came while others had still to be told of the generation.
    early_sync: SyncGroup | None = field(default=None, compare=False)
    new_member_added: bool = False  # a member has joined since the initial delay was last prolonged
    subscribed_topics: frozenset[str] | None = None  # None: not known
    # How often something has changed that a consumer group made of this one has, and what `migration.py` has prepared.
    changes: int = 0
    upgrade: object = None
    held_until_ms: int = 0  # nobody joins before, so that the upgrade can be made ready

    # The value of this group's last record in the log; None before the first. Only `apply` changes it.
    stored: bytes | None = None

    # The group that `stored` describes, if it was made before the group wakes.
    ready: "ClassicGroup | None" = field(default=None, compare=False, repr=False)

    @classmethod
    def from_stored(cls, group_id: str, stored: bytes, value: GroupMetadataValue) -> "ClassicGroup":
        return done_at_once(cls.from_stored_in_turns(group_id, stored, value))

    @classmethod
    def from_stored_in_turns(
        cls, group_id: str, stored: bytes, value: GroupMetadataValue
    ) -> "Generator[None, None, ClassicGroup]":
        group = cls(
            group_id,
            state=ClassicState.STABLE if value.members else ClassicState.EMPTY,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol_name=value.protocol,
            state_timestamp_ms=value.current_state_timestamp,
            stored=stored,
        )
        group.previous_state = group.state
        protocol = value.protocol or ""
        for place, said in enumerate(value.members, 1):  # counted below, and not one by one as by `add`
            group.members[said.member_id] = ClassicMember(
                said.member_id,
                said.group_instance_id,
                said.client_id,
                said.client_host,
                said.session_timeout if said.rebalance_timeout == -1 else said.rebalance_timeout,
                said.session_timeout,
                ((protocol, said.subscription),),
                said.assignment,
            )
            if said.group_instance_id is not None:
                group.static_members[said.group_instance_id] = said.member_id
            if place % MADE_A_TURN == 0:
                yield
        if group.members:
            group.preferences[protocol,], group.listing[protocol] = len(group.members), 1
        group.leader = value.leader
        group.subscribed_topics = group.topics_of_members()
        return group

    # Reading ----------------------------------------------------------------------------------------------------------

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def is_empty(self) -> bool:
        return not self.members and self.state is ClassicState.EMPTY

    @property
    def is_abandoned(self) -> bool:
        return self.is_empty and not self.pending_joins

    @property
    def all_joined(self) -> bool:
        return not self.pending_joins and self.joined == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol  # the subscriptions can't be read: every topic may be among them
        return topic in self.subscribed_topics

    def member_fault(self, member_id: str, instance_id: str | None) -> Fault | None:
        """Why this member id and instance id are no member of the group; None: they are one."""
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                return Fault.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return Fault.FENCED_INSTANCE_ID
        return None if member_id in self.members else Fault.UNKNOWN_MEMBER_ID

    def must_let_go(self, member: ClassicMember) -> bool:
        """Whether the member of a stable group owned partitions when it joined that were not assigned to it again.

        In a cooperative rebalance such partitions move in two generations: nobody is assigned them until this member
        has let go of them and joined again.
        """
        if not self.uses_consumer_protocol or self.protocol_name is None:
            return False
        said, given = read_subscription(member.metadata(self.protocol_name)), read_assignment(member.assignment)
        if said is None or given is None:
            return False
        keeps = {(topic, partition) for topic, partitions in given.partitions for partition in partitions}
        return any((topic, partition) not in keeps for topic, partitions in said.owned for partition in partitions)

    # Its offsets

    def may_commit(self, ask: CommitOffsets) -> Fault | OffsetCheck:
        says_nothing = ask.generation < 0 and ask.member_id == NO_MEMBER and ask.instance_id is None
        if says_nothing and self.state is not ClassicState.EMPTY:
            return Fault.UNKNOWN_MEMBER_ID
        fault = self.committing_fault(ask.member_id, ask.instance_id, ask.generation)
        if fault is None and self.state is ClassicState.COMPLETING:
            return Fault.REBALANCE_IN_PROGRESS  # it is of this generation, but not assigned partitions yet
        return fault or any_offset

    def may_commit_in_transaction(self, ask: CommitTransactionalOffsets) -> Fault | OffsetCheck:
        if ask.generation == NO_GENERATION and ask.member_id == NO_MEMBER and ask.instance_id is None:
            return any_offset
        return self.committing_fault(ask.member_id, ask.instance_id, ask.generation) or any_offset

    def committing_fault(self, member_id: str, instance_id: str | None, generation: int) -> Fault | None:
        """Why this is no member of the present generation; None: it is. In an empty group no membership is needed."""
        if generation < 0 and self.state is ClassicState.EMPTY:
            return None
        fault = self.member_fault(member_id, instance_id)
        return Fault.ILLEGAL_GENERATION if fault is None and generation != self.generation else fault

    def fetching_fault(self, ask: FetchOffsets) -> Fault | None:
        return None

    def deleting_fault(self) -> Fault | None:
        """A group with members whose subscriptions can't be read may need any of its offsets."""
        may_need_any = self.state is not ClassicState.EMPTY and not self.uses_consumer_protocol
        return Fault.NON_EMPTY_GROUP if may_need_any else None

    def idle_since_ms(self, committed: CommittedOffset) -> int | None:
        if self.protocol_type is None:
            return committed.commit_timestamp_ms
        if self.state is ClassicState.EMPTY:
            return committed.commit_timestamp_ms if self.state_timestamp_ms == -1 else self.state_timestamp_ms
        if self.uses_consumer_protocol and self.subscribed_topics is not None and self.state is ClassicState.STABLE:
            return committed.commit_timestamp_ms  # only topics to which the group no longer subscribes can expire
        return None

    # Choosing a protocol

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can take part: some protocol must remain that all support."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(self._all_list(name) for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with the most votes; each member votes for the first of its own that all support."""
        supported = {name for name in next(iter(self.preferences)) if self._all_list(name)}
        if len(supported) == 1:
            return supported.pop()
        votes: dict[str, int] = {}
        for names, members in self.preferences.items():
            vote = next(name for name in names if name in supported)
            votes[vote] = votes.get(vote, 0) + members
        return max(votes, key=lambda name: votes[name])

    def joined_members(self) -> tuple[JoinedMember, ...]:
        name = self.protocol_name
        assert name is not None
        told: list[JoinedMember] = []
        for member in self.members.values():  # of thousands: most have the same protocols, of which one was chosen
            first, metadata = member.protocols[0]
            if first != name:
                metadata = member.metadata(name)
            told.append(_new(JoinedMember, (member.member_id, member.instance_id, metadata)))
        return tuple(told)

    def topics_of_members(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        read = 0
        # Most members subscribe to the same topics, and what each owns stands behind them. Topics are read only once,
        # because reading costs more than comparing.
        known: tuple[bytes, ...] = ()
        for member in self.members.values():  # of thousands: most have this protocol first
            name, metadata = member.protocols[0]
            if name != self.protocol_name:
                metadata = member.metadata(self.protocol_name)
            if metadata.startswith(known, VERSION_BYTES) and metadata[0] < NEGATIVE:
                continue
            names = subscribed_topics(metadata)
            if names is None:
                return None
            read += len(names)
            if read > NAMES_READ_MAX:
                return None
            topics.update(names)
            known = (written_topics(names), *known[: KNOWN_AT_MOST - 1])
        return frozenset(topics)

    def _all_list(self, protocol_name: str) -> bool:
        return self.listing.get(protocol_name, 0) == len(self.preferences)

    def listed(self) -> ListedGroupFacts:
        return ListedGroupFacts(self.group_id, self.protocol_type or "", self.state.value, self.kind)

    def facts(self) -> object:
        """What the group's record says while the group is Stable or Empty, and what follows from that."""
        members = {
            member.member_id: (
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol_name or ""),
                member.assignment,
            )
            for member in self.members.values()
        }
        return self.generation, self.protocol_type, self.protocol_name, self.leader, members, self.subscribed_topics

    # Changing ---------------------------------------------------------------------------------------------------------

    def move_to(self, state: ClassicState, wall_ms: int) -> None:
        assert state in CLASSIC_MOVES[self.state], f"{self.group_id}: {self.state} -> {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = wall_ms

    def add(self, member: ClassicMember, *, protocol_type: str | None = None) -> None:
        self.changes += 1
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if not self.members and protocol_type is not None:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        self.pending_joins.pop(member.member_id, None)

    def _count(self, member: ClassicMember, by: int) -> None:
        names = member.preference
        before = self.preferences.get(names, 0)
        if before + by:
            self.preferences[names] = before + by
        else:
            del self.preferences[names]
        if not before or not before + by:
            for name in set(names):
                self.listing[name] = self.listing.get(name, 0) + by
                if not self.listing[name]:
                    del self.listing[name]
        if member.awaiting_join is not None:
            self.joined += by

    def remove(self, member_id: str) -> None:
        self.changes += 1
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)

    def update(self, member: ClassicMember, ask: JoinGroup, token: Token | None) -> None:
        times_ms = ask.rebalance_timeout_ms, ask.session_timeout_ms
        if member.protocols != ask.protocols or times_ms != (member.rebalance_timeout_ms, member.session_timeout_ms):
            self.changes += 1
        self._count(member, -1)
        member.protocols = ask.protocols
        member.rebalance_timeout_ms = ask.rebalance_timeout_ms
        member.session_timeout_ms = ask.session_timeout_ms
        member.awaiting_join = token
        member.noted = None
        self._count(member, 1)

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> ClassicMember:
        """Give the member of this instance its new id. It becomes the last one in the order of members."""
        self.changes += 1
        old = self.members.pop(old_id)
        self._count(old, -1)
        new = ClassicMember(
            new_id,
            instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        self.members[new_id] = new
        self._count(new, 1)
        self.pending_syncs.pop(old_id, None)
        self.static_members[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return new

    def take_join(self, member: ClassicMember) -> Token | None:
        """Take the token of the member's parked JoinGroup, which is to be answered now."""
        token, member.awaiting_join = member.awaiting_join, None
        self.joined -= token is not None
        return token

    def elect_joined_leader(self) -> bool:
        """Make a member that has rejoined the leader, if the leader has not. False: no member has rejoined."""
        if self.leader is not None and self.members[self.leader].awaiting_join is not None:
            return True
        joined = next((member for member in self.members.values() if member.awaiting_join is not None), None)
        if joined is not None:
            self.leader = joined.member_id
        return joined is not None

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        self.changes += 1
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")

    def begin_generation(self, wall_ms: int) -> None:
        self.changes += 1
        self.generation += 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.move_to(ClassicState.COMPLETING, wall_ms)
        else:
            self.protocol_name = None
            self.move_to(ClassicState.EMPTY, wall_ms)
        self.subscribed_topics = self.topics_of_members()
        self.pending_syncs.clear()


def leader_or_nobody(group: ClassicGroup) -> str:
    return group.leader if group.leader is not None else NO_MEMBER
