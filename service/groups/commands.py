"""The commands of a group coordinator and its replies, independent of any protocol version.

A reply has the token of its command. With `fault` None it is a success. `fresh_id` is an id that was never used: it
comes in with the command, because a machine draws no random numbers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from service.groups.verdicts import Fault

# The values that mean "no member" and "no generation" in the protocol.
NO_MEMBER = ""
NO_GENERATION = -1
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


# Classic protocol -----------------------------------------------------------------------------------------------------


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
    requires_member_id: bool = True  # the client can join again with the id that it is given (version 4 and later)
    can_skip_assignment: bool = True  # the client knows skip_assignment (version 9 and later)


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


# Consumer protocol (KIP-848) ------------------------------------------------------------------------------------------

PartitionsByTopic = Mapping[bytes, Collection[int]]


class ConsumerHeartbeat(NamedTuple):
    """A field is None if the client did not send it: its earlier value holds."""

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
    assignment: PartitionsByTopic | None = None  # the group's own, not to be changed
    comes_early: bool = False  # nothing is new but the target, which is being made in these turns of the loop


# Offsets --------------------------------------------------------------------------------------------------------------


class OffsetToCommit(NamedTuple):
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitOffsets(NamedTuple):
    """Commit offsets. `speaks_consumer_protocol`: the client knows the errors of KIP-848 (version 9 and later)."""

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
    """With `fault` the whole command is refused. Otherwise `faults` has one entry for each offset, in the command's
    order.
    """

    fault: Fault | None = None
    faults: tuple[Fault | None, ...] = ()


class PartitionsAsked(NamedTuple):
    topic: str
    topic_id: bytes
    partitions: tuple[int, ...]


class NameOffsets(NamedTuple):
    """Ask for the names of all partitions of which the group has offsets. The offsets can then be fetched in parts."""

    group_id: str


class OffsetNamesReply(NamedTuple):
    topics: tuple[PartitionsAsked, ...] = ()


class FetchOffsets(NamedTuple):
    """Fetch offsets. `member_id` None: it is not a member that asks."""

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
    """`topics`: the topics of the command, with the result for each partition."""

    fault: Fault | None = None
    topics: tuple[tuple[str, tuple[tuple[int, Fault | None], ...]], ...] = ()


class ForgetTopic(NamedTuple):
    """This topic was deleted: remove its offsets from every group. Every coordinator must get this command."""

    topic: str
    topic_id: bytes


# Looking on, and deleting ---------------------------------------------------------------------------------------------


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
    """With the `fault` GROUP_ID_NOT_FOUND the state is Dead. Older clients are told the state only."""

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
    assigned: Iterable[NamedPartitions]  # of a member of thousands of topics: to be read in several turns
    target: Iterable[NamedPartitions]
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
    """Ask for the names of all groups. The groups can then be listed in parts."""


class NamesReply(NamedTuple):
    group_ids: tuple[str, ...]


class ListGroups(NamedTuple):
    """List those of these groups that still exist. An empty filter lets everything pass. Filters are in lower case."""

    group_ids: Sequence[str] = ()
    states: Collection[str] = ()
    types: Collection[str] = ()


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
