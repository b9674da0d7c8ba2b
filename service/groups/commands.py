"""What a group coordinator can be asked, and what it answers, independent of any protocol version.

Commands come from the API handlers (or the HTTP API), replies go back to them with the token of the command.
`fresh_id` is an id nobody else has: a machine draws no random numbers. A reply with `fault` None is a success.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from service.groups.verdicts import Fault

# What stands for "no member" and "no generation" in the protocol.
NO_MEMBER = ""
NO_GENERATION = -1
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


# Classic protocol
# ------------------------------------------------------------------------------------------------------


class JoinGroup(NamedTuple):
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


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    member_id: str
    fault: Fault | None = None
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncGroup(NamedTuple):
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


class SyncReply(NamedTuple):
    fault: Fault | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Heartbeat(NamedTuple):
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


class FaultReply(NamedTuple):
    """The answer to a command that says only whether it worked."""

    fault: Fault | None = None


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None
    reason: str | None = None


class LeaveGroup(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    fault: Fault | None


class LeaveReply(NamedTuple):
    fault: Fault | None = None
    members: tuple[LeftMember, ...] = ()


# Consumer protocol (KIP-848)
# -------------------------------------------------------------------------------------------

PartitionsByTopic = Mapping[bytes, tuple[int, ...]]


class ConsumerHeartbeat(NamedTuple):
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


class ConsumerHeartbeatReply(NamedTuple):
    fault: Fault | None = None
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: PartitionsByTopic | None = None


# Offsets
# ---------------------------------------------------------------------------------------------------------------


class OffsetToCommit(NamedTuple):
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitOffsets(NamedTuple):
    """`speaks_consumer_protocol`: the client knows KIP-848's errors (version 9 and later)."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1
    speaks_consumer_protocol: bool = True


class CommitTransactionalOffsets(NamedTuple):
    """Offsets that count once the producer's transaction commits."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    producer_id: int
    producer_epoch: int


class CommitReply(NamedTuple):
    """`fault` refuses everything; else `faults` has one entry for each offset of the command, in its order."""

    fault: Fault | None = None
    faults: tuple[Fault | None, ...] = ()


class PartitionsAsked(NamedTuple):
    topic: str
    topic_id: bytes
    partitions: tuple[int, ...]


class NameOffsets(NamedTuple):
    """Every partition that the group has an offset of, to be fetched some at a time."""

    group_id: str


class OffsetNamesReply(NamedTuple):
    topics: tuple[PartitionsAsked, ...] = ()


class FetchOffsets(NamedTuple):
    """`member_id` None: not asked by a member."""

    group_id: str
    member_id: str | None
    member_epoch: int
    topics: tuple[PartitionsAsked, ...]
    require_stable: bool


class FetchedOffset(NamedTuple):
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    fault: Fault | None = None


class FetchedTopic(NamedTuple):
    topic: str
    topic_id: bytes
    offsets: tuple[FetchedOffset, ...]


class FetchReply(NamedTuple):
    fault: Fault | None = None
    topics: tuple[FetchedTopic, ...] = ()


class DeleteOffsets(NamedTuple):
    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...]


class DeleteOffsetsReply(NamedTuple):
    """`topics` as asked, with what became of each partition."""

    fault: Fault | None = None
    topics: tuple[tuple[str, tuple[tuple[int, Fault | None], ...]], ...] = ()


class ForgetTopic(NamedTuple):
    """This topic is deleted: its offsets go from every group. Sent by the broker, to every shard."""

    topic: str
    topic_id: bytes


# Looking on, and deleting
# ----------------------------------------------------------------------------------------------


class DescribeClassicGroup(NamedTuple):
    group_id: str


class ClassicMemberFacts(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class ClassicGroupFacts(NamedTuple):
    """`fault` GROUP_ID_NOT_FOUND comes with state Dead, which is all that older clients are told."""

    fault: Fault | None = None
    message: str | None = None
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[ClassicMemberFacts, ...] = ()


class DescribeConsumerGroup(NamedTuple):
    group_id: str


class NamedPartitions(NamedTuple):
    topic_id: bytes
    topic: str
    partitions: tuple[int, ...]


class ConsumerMemberFacts(NamedTuple):
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


class ConsumerGroupFacts(NamedTuple):
    fault: Fault | None = None
    message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: Sequence[ConsumerMemberFacts] = ()


class NameGroups(NamedTuple):
    """Every group there is, to be listed some at a time."""


class NamesReply(NamedTuple):
    group_ids: tuple[str, ...]


class ListGroups(NamedTuple):
    """Those of these groups that there still are. Empty filters let everything pass. They hold small letters."""

    group_ids: Sequence[str] = ()
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    @classmethod
    def filtered(cls, states: Iterable[str], types: Iterable[str]) -> "ListGroups":
        """Filters are compared without regard to case. Read once, for all coordinators that are asked."""
        return cls((), frozenset(state.strip().lower() for state in states), frozenset(kind.lower() for kind in types))


class ListedGroupFacts(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


class ListReply(NamedTuple):
    groups: tuple[ListedGroupFacts, ...] = ()


class DeleteGroup(NamedTuple):
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
