"""What a group coordinator can be asked, and what it answers, independent of any protocol version.

Commands come from the API handlers (or the HTTP API), replies go back to them with the token of the command.
`fresh_id` is an id nobody else has: a machine draws no random numbers. A reply with `fault` None is a success.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.groups.verdicts import Fault

# What stands for "no member" and "no generation" in the protocol.
NO_MEMBER = ""
NO_GENERATION = -1
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


# Classic protocol
# ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinGroup:
    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    fresh_id: str
    requires_member_id: bool = True  # the client can come back with the id that it is given (version 4)
    can_skip_assignment: bool = True  # the client knows skip_assignment (version 9)


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    member_id: str
    fault: Fault | None = None
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroup:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SyncReply:
    fault: Fault | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class FaultReply:
    """The answer to a command that says only whether it worked."""

    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    instance_id: str | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    instance_id: str | None
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class LeaveReply:
    fault: Fault | None = None
    members: tuple[LeftMember, ...] = ()


# Consumer protocol (KIP-848)
# -------------------------------------------------------------------------------------------

PartitionsByTopic = Mapping[bytes, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """None means "as I said before", where the protocol has it so."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topics: tuple[str, ...] | None
    subscribed_regex: str | None
    server_assignor: str | None
    owned: PartitionsByTopic | None
    client_id: str
    client_host: str
    fresh_id: str
    member_names_itself: bool = True  # version 1 and later: the client brings its member id


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatReply:
    fault: Fault | None = None
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: PartitionsByTopic | None = None


# Offsets
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """`speaks_consumer_protocol`: the client knows KIP-848's errors (version 9 and later)."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1
    speaks_consumer_protocol: bool = True


@dataclass(frozen=True, slots=True)
class CommitTransactionalOffsets:
    """Offsets that count once the producer's transaction commits."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CommitReply:
    """`fault` refuses everything; else `faults` has one entry for each offset of the command, in its order."""

    fault: Fault | None = None
    faults: tuple[Fault | None, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionsAsked:
    topic: str
    topic_id: bytes
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NameOffsets:
    """Every partition that the group has an offset of, to be fetched some at a time."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetNamesReply:
    topics: tuple[PartitionsAsked, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """`member_id` None: not asked by a member."""

    group_id: str
    member_id: str | None
    member_epoch: int
    topics: tuple[PartitionsAsked, ...]
    require_stable: bool


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class FetchedTopic:
    topic: str
    topic_id: bytes
    offsets: tuple[FetchedOffset, ...]


@dataclass(frozen=True, slots=True)
class FetchReply:
    fault: Fault | None = None
    topics: tuple[FetchedTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsReply:
    """`topics` as asked, with what became of each partition."""

    fault: Fault | None = None
    topics: tuple[tuple[str, tuple[tuple[int, Fault | None], ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """This topic is deleted: its offsets go from every group. Sent by the broker, to every shard."""

    topic: str
    topic_id: bytes


# Looking on, and deleting
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribeClassicGroup:
    group_id: str


@dataclass(frozen=True, slots=True)
class ClassicMemberFacts:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class ClassicGroupFacts:
    """`fault` GROUP_ID_NOT_FOUND comes with state Dead, which is all that older clients are told."""

    fault: Fault | None = None
    message: str | None = None
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[ClassicMemberFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeConsumerGroup:
    group_id: str


@dataclass(frozen=True, slots=True)
class NamedPartitions:
    topic_id: bytes
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMemberFacts:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    assigned: tuple[NamedPartitions, ...]
    target: tuple[NamedPartitions, ...]
    uses_classic_protocol: bool


@dataclass(frozen=True, slots=True)
class ConsumerGroupFacts:
    fault: Fault | None = None
    message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: Sequence[ConsumerMemberFacts] = ()


@dataclass(frozen=True, slots=True)
class NameGroups:
    """Every group there is, to be listed some at a time."""


@dataclass(frozen=True, slots=True)
class NamesReply:
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListGroups:
    """Those of these groups that there still are. Empty filters let everything pass. They hold small letters."""

    group_ids: Sequence[str] = ()
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    @classmethod
    def filtered(cls, states: Iterable[str], types: Iterable[str]) -> "ListGroups":
        """Filters are compared without regard to case. Read once, for all coordinators that are asked."""
        return cls((), frozenset(state.strip().lower() for state in states), frozenset(kind.lower() for kind in types))


@dataclass(frozen=True, slots=True)
class ListedGroupFacts:
    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class ListReply:
    groups: tuple[ListedGroupFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    group_id: str


Command = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | ConsumerHeartbeat
    | CommitOffsets
    | CommitTransactionalOffsets
    | NameOffsets
    | FetchOffsets
    | DeleteOffsets
    | ForgetTopic
    | DescribeClassicGroup
    | DescribeConsumerGroup
    | NameGroups
    | ListGroups
    | DeleteGroup
)
