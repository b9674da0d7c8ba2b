# Generated from Kafka's message definitions by service/wire/generate.py; do not edit.

"""Every message as one class: the union of its versions.

The comment behind a field says in which versions it is on the wire, where it may be null, and its tag if it
has one. A field absent from the version that was read holds its default; one absent from the version that is
written is left out. A tagged struct is None unless it was sent. Whatever speaks the protocol calls this.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from service.wire.base import Request, Struct

if TYPE_CHECKING:
    from log.disk import FileSlice

    StoredRecords: TypeAlias = bytes | memoryview | list[bytes | FileSlice] | None

ZERO_UUID = bytes(16)


class PartitionProduceData(Struct):
    """Part of ProduceRequest."""

    index: int = 0  # 0+
    records: bytes | memoryview | None = None  # 0+, null 0+


class TopicProduceData(Struct):
    """Part of ProduceRequest."""

    name: str = ""  # 0-12
    topic_id: bytes = ZERO_UUID  # 13+
    partition_data: list[PartitionProduceData] = field(default_factory=list)  # 0+


class ProduceRequest(Request["ProduceResponse"]):
    """Key 0, versions 3-13, flexible: 9+."""

    transactional_id: str | None = None  # 3+, null 3+
    acks: int = 0  # 0+
    timeout_ms: int = 0  # 0+
    topic_data: list[TopicProduceData] = field(default_factory=list)  # 0+


class BatchIndexAndErrorMessage(Struct):
    """Part of ProduceResponse."""

    batch_index: int = 0  # 8+
    batch_index_error_message: str | None = None  # 8+, null 8+


class ProduceResponseLeaderIdAndEpoch(Struct):
    """Part of ProduceResponse."""

    leader_id: int = -1  # 10+
    leader_epoch: int = -1  # 10+


class PartitionProduceResponse(Struct):
    """Part of ProduceResponse."""

    index: int = 0  # 0+
    error_code: int = 0  # 0+
    base_offset: int = 0  # 0+
    log_append_time_ms: int = -1  # 2+
    log_start_offset: int = -1  # 5+
    record_errors: list[BatchIndexAndErrorMessage] = field(default_factory=list)  # 8+
    error_message: str | None = None  # 8+, null 8+
    current_leader: ProduceResponseLeaderIdAndEpoch | None = None  # 10+, tag 0


class TopicProduceResponse(Struct):
    """Part of ProduceResponse."""

    name: str = ""  # 0-12
    topic_id: bytes = ZERO_UUID  # 13+
    partition_responses: list[PartitionProduceResponse] = field(default_factory=list)  # 0+


class ProduceResponseNodeEndpoint(Struct):
    """Part of ProduceResponse."""

    node_id: int = 0  # 10+
    host: str = ""  # 10+
    port: int = 0  # 10+
    rack: str | None = None  # 10+, null 10+


class ProduceResponse(Struct):
    """Key 0, versions 3-13, flexible: 9+."""

    responses: list[TopicProduceResponse] = field(default_factory=list)  # 0+
    throttle_time_ms: int = 0  # 1+
    node_endpoints: list[ProduceResponseNodeEndpoint] = field(default_factory=list)  # 10+, tag 0


class FetchRequestReplicaState(Struct):
    """Part of FetchRequest."""

    replica_id: int = -1  # 15+
    replica_epoch: int = -1  # 15+


class FetchPartition(Struct):
    """Part of FetchRequest."""

    partition: int = 0  # 0+
    current_leader_epoch: int = -1  # 9+
    fetch_offset: int = 0  # 0+
    last_fetched_epoch: int = -1  # 12+
    log_start_offset: int = -1  # 5+
    partition_max_bytes: int = 0  # 0+
    replica_directory_id: bytes = ZERO_UUID  # 17+, tag 0
    high_watermark: int = 9223372036854775807  # 18+, tag 1


class FetchTopic(Struct):
    """Part of FetchRequest."""

    topic: str = ""  # 0-12
    topic_id: bytes = ZERO_UUID  # 13+
    partitions: list[FetchPartition] = field(default_factory=list)  # 0+


class ForgottenTopic(Struct):
    """Part of FetchRequest."""

    topic: str = ""  # 7-12
    topic_id: bytes = ZERO_UUID  # 13+
    partitions: list[int] = field(default_factory=list)  # 7+


class FetchRequest(Request["FetchResponse"]):
    """Key 1, versions 4-18, flexible: 12+."""

    cluster_id: str | None = None  # 12+, null 12+, tag 0
    replica_id: int = -1  # 0-14
    replica_state: FetchRequestReplicaState | None = None  # 15+, tag 1
    max_wait_ms: int = 0  # 0+
    min_bytes: int = 0  # 0+
    max_bytes: int = 2147483647  # 3+
    isolation_level: int = 0  # 4+
    session_id: int = 0  # 7+
    session_epoch: int = -1  # 7+
    topics: list[FetchTopic] = field(default_factory=list)  # 0+
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)  # 7+
    rack_id: str = ""  # 11+


class FetchResponseEpochEndOffset(Struct):
    """Part of FetchResponse."""

    epoch: int = -1  # 12+
    end_offset: int = -1  # 12+


class FetchResponseLeaderIdAndEpoch(Struct):
    """Part of FetchResponse."""

    leader_id: int = -1  # 12+
    leader_epoch: int = -1  # 12+


class SnapshotId(Struct):
    """Part of FetchResponse."""

    end_offset: int = -1  # 0+
    epoch: int = -1  # 0+


class AbortedTransaction(Struct):
    """Part of FetchResponse."""

    producer_id: int = 0  # 4+
    first_offset: int = 0  # 4+


class FetchResponsePartitionData(Struct):
    """Part of FetchResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+
    high_watermark: int = 0  # 0+
    last_stable_offset: int = -1  # 4+
    log_start_offset: int = -1  # 5+
    diverging_epoch: FetchResponseEpochEndOffset | None = None  # 12+, tag 0
    current_leader: FetchResponseLeaderIdAndEpoch | None = None  # 12+, tag 1
    snapshot_id: SnapshotId | None = None  # 12+, tag 2
    aborted_transactions: list[AbortedTransaction] | None = field(default_factory=list)  # 4+, null 4+
    preferred_read_replica: int = -1  # 11+
    records: StoredRecords = None  # 0+, null 0+


class FetchableTopicResponse(Struct):
    """Part of FetchResponse."""

    topic: str = ""  # 0-12
    topic_id: bytes = ZERO_UUID  # 13+
    partitions: list[FetchResponsePartitionData] = field(default_factory=list)  # 0+


class FetchResponseNodeEndpoint(Struct):
    """Part of FetchResponse."""

    node_id: int = 0  # 16+
    host: str = ""  # 16+
    port: int = 0  # 16+
    rack: str | None = None  # 16+, null 16+


class FetchResponse(Struct):
    """Key 1, versions 4-18, flexible: 12+."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0  # 7+
    session_id: int = 0  # 7+
    responses: list[FetchableTopicResponse] = field(default_factory=list)  # 0+
    node_endpoints: list[FetchResponseNodeEndpoint] = field(default_factory=list)  # 16+, tag 0


class ListOffsetsPartition(Struct):
    """Part of ListOffsetsRequest."""

    partition_index: int = 0  # 0+
    current_leader_epoch: int = -1  # 4+
    timestamp: int = 0  # 0+


class ListOffsetsTopic(Struct):
    """Part of ListOffsetsRequest."""

    name: str = ""  # 0+
    partitions: list[ListOffsetsPartition] = field(default_factory=list)  # 0+


class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """Key 2, versions 1-11, flexible: 6+."""

    replica_id: int = 0  # 0+
    isolation_level: int = 0  # 2+
    topics: list[ListOffsetsTopic] = field(default_factory=list)  # 0+
    timeout_ms: int = 0  # 10+


class ListOffsetsPartitionResponse(Struct):
    """Part of ListOffsetsResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+
    timestamp: int = -1  # 1+
    offset: int = -1  # 1+
    leader_epoch: int = -1  # 4+


class ListOffsetsTopicResponse(Struct):
    """Part of ListOffsetsResponse."""

    name: str = ""  # 0+
    partitions: list[ListOffsetsPartitionResponse] = field(default_factory=list)  # 0+


class ListOffsetsResponse(Struct):
    """Key 2, versions 1-11, flexible: 6+."""

    throttle_time_ms: int = 0  # 2+
    topics: list[ListOffsetsTopicResponse] = field(default_factory=list)  # 0+


class MetadataRequestTopic(Struct):
    """Part of MetadataRequest."""

    topic_id: bytes = ZERO_UUID  # 10+
    name: str | None = ""  # 0+, null 10+


class MetadataRequest(Request["MetadataResponse"]):
    """Key 3, versions 0-13, flexible: 9+."""

    topics: list[MetadataRequestTopic] | None = field(default_factory=list)  # 0+, null 1+
    allow_auto_topic_creation: bool = True  # 4+
    include_cluster_authorized_operations: bool = False  # 8-10
    include_topic_authorized_operations: bool = False  # 8+


class MetadataResponseBroker(Struct):
    """Part of MetadataResponse."""

    node_id: int = 0  # 0+
    host: str = ""  # 0+
    port: int = 0  # 0+
    rack: str | None = None  # 1+, null 1+


class MetadataResponsePartition(Struct):
    """Part of MetadataResponse."""

    error_code: int = 0  # 0+
    partition_index: int = 0  # 0+
    leader_id: int = 0  # 0+
    leader_epoch: int = -1  # 7+
    replica_nodes: list[int] = field(default_factory=list)  # 0+
    isr_nodes: list[int] = field(default_factory=list)  # 0+
    offline_replicas: list[int] = field(default_factory=list)  # 5+


class MetadataResponseTopic(Struct):
    """Part of MetadataResponse."""

    error_code: int = 0  # 0+
    name: str | None = ""  # 0+, null 12+
    topic_id: bytes = ZERO_UUID  # 10+
    is_internal: bool = False  # 1+
    partitions: list[MetadataResponsePartition] = field(default_factory=list)  # 0+
    topic_authorized_operations: int = -2147483648  # 8+


class MetadataResponse(Struct):
    """Key 3, versions 0-13, flexible: 9+."""

    throttle_time_ms: int = 0  # 3+
    brokers: list[MetadataResponseBroker] = field(default_factory=list)  # 0+
    cluster_id: str | None = None  # 2+, null 2+
    controller_id: int = -1  # 1+
    topics: list[MetadataResponseTopic] = field(default_factory=list)  # 0+
    cluster_authorized_operations: int = -2147483648  # 8-10
    error_code: int = 0  # 13+


class OffsetCommitRequestPartition(Struct):
    """Part of OffsetCommitRequest."""

    partition_index: int = 0  # 0+
    committed_offset: int = 0  # 0+
    committed_leader_epoch: int = -1  # 6+
    committed_metadata: str | None = ""  # 0+, null 0+


class OffsetCommitRequestTopic(Struct):
    """Part of OffsetCommitRequest."""

    name: str = ""  # 0-9
    topic_id: bytes = ZERO_UUID  # 10+
    partitions: list[OffsetCommitRequestPartition] = field(default_factory=list)  # 0+


class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Key 8, versions 2-10, flexible: 8+."""

    group_id: str = ""  # 0+
    generation_id_or_member_epoch: int = -1  # 1+
    member_id: str = ""  # 1+
    group_instance_id: str | None = None  # 7+, null 7+
    retention_time_ms: int = -1  # 2-4
    topics: list[OffsetCommitRequestTopic] = field(default_factory=list)  # 0+


class OffsetCommitResponsePartition(Struct):
    """Part of OffsetCommitResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+


class OffsetCommitResponseTopic(Struct):
    """Part of OffsetCommitResponse."""

    name: str = ""  # 0-9
    topic_id: bytes = ZERO_UUID  # 10+
    partitions: list[OffsetCommitResponsePartition] = field(default_factory=list)  # 0+


class OffsetCommitResponse(Struct):
    """Key 8, versions 2-10, flexible: 8+."""

    throttle_time_ms: int = 0  # 3+
    topics: list[OffsetCommitResponseTopic] = field(default_factory=list)  # 0+


class OffsetFetchRequestTopic(Struct):
    """Part of OffsetFetchRequest."""

    name: str = ""  # 0-7
    partition_indexes: list[int] = field(default_factory=list)  # 0-7


class OffsetFetchRequestTopics(Struct):
    """Part of OffsetFetchRequest."""

    name: str = ""  # 8-9
    topic_id: bytes = ZERO_UUID  # 10+
    partition_indexes: list[int] = field(default_factory=list)  # 8+


class OffsetFetchRequestGroup(Struct):
    """Part of OffsetFetchRequest."""

    group_id: str = ""  # 8+
    member_id: str | None = None  # 9+, null 9+
    member_epoch: int = -1  # 9+
    topics: list[OffsetFetchRequestTopics] | None = field(default_factory=list)  # 8+, null 8+


class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    """Key 9, versions 1-10, flexible: 6+."""

    group_id: str = ""  # 0-7
    topics: list[OffsetFetchRequestTopic] | None = field(default_factory=list)  # 0-7, null 2-7
    groups: list[OffsetFetchRequestGroup] = field(default_factory=list)  # 8+
    require_stable: bool = False  # 7+


class OffsetFetchResponsePartition(Struct):
    """Part of OffsetFetchResponse."""

    partition_index: int = 0  # 0-7
    committed_offset: int = 0  # 0-7
    committed_leader_epoch: int = -1  # 5-7
    metadata: str | None = ""  # 0-7, null 0-7
    error_code: int = 0  # 0-7


class OffsetFetchResponseTopic(Struct):
    """Part of OffsetFetchResponse."""

    name: str = ""  # 0-7
    partitions: list[OffsetFetchResponsePartition] = field(default_factory=list)  # 0-7


class OffsetFetchResponsePartitions(Struct):
    """Part of OffsetFetchResponse."""

    partition_index: int = 0  # 8+
    committed_offset: int = 0  # 8+
    committed_leader_epoch: int = -1  # 8+
    metadata: str | None = ""  # 8+, null 8+
    error_code: int = 0  # 8+


class OffsetFetchResponseTopics(Struct):
    """Part of OffsetFetchResponse."""

    name: str = ""  # 8-9
    topic_id: bytes = ZERO_UUID  # 10+
    partitions: list[OffsetFetchResponsePartitions] = field(default_factory=list)  # 8+


class OffsetFetchResponseGroup(Struct):
    """Part of OffsetFetchResponse."""

    group_id: str = ""  # 8+
    topics: list[OffsetFetchResponseTopics] = field(default_factory=list)  # 8+
    error_code: int = 0  # 8+


class OffsetFetchResponse(Struct):
    """Key 9, versions 1-10, flexible: 6+."""

    throttle_time_ms: int = 0  # 3+
    topics: list[OffsetFetchResponseTopic] = field(default_factory=list)  # 0-7
    error_code: int = 0  # 2-7
    groups: list[OffsetFetchResponseGroup] = field(default_factory=list)  # 8+


class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Key 10, versions 0-6, flexible: 3+."""

    key: str = ""  # 0-3
    key_type: int = 0  # 1+
    coordinator_keys: list[str] = field(default_factory=list)  # 4+


class Coordinator(Struct):
    """Part of FindCoordinatorResponse."""

    key: str = ""  # 4+
    node_id: int = 0  # 4+
    host: str = ""  # 4+
    port: int = 0  # 4+
    error_code: int = 0  # 4+
    error_message: str | None = ""  # 4+, null 4+


class FindCoordinatorResponse(Struct):
    """Key 10, versions 0-6, flexible: 3+."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0  # 0-3
    error_message: str | None = ""  # 1-3, null 1-3
    node_id: int = 0  # 0-3
    host: str = ""  # 0-3
    port: int = 0  # 0-3
    coordinators: list[Coordinator] = field(default_factory=list)  # 4+


class JoinGroupRequestProtocol(Struct):
    """Part of JoinGroupRequest."""

    name: str = ""  # 0+
    metadata: bytes = b""  # 0+


class JoinGroupRequest(Request["JoinGroupResponse"]):
    """Key 11, versions 0-9, flexible: 6+."""

    group_id: str = ""  # 0+
    session_timeout_ms: int = 0  # 0+
    rebalance_timeout_ms: int = -1  # 1+
    member_id: str = ""  # 0+
    group_instance_id: str | None = None  # 5+, null 5+
    protocol_type: str = ""  # 0+
    protocols: list[JoinGroupRequestProtocol] = field(default_factory=list)  # 0+
    reason: str | None = None  # 8+, null 8+


class JoinGroupResponseMember(Struct):
    """Part of JoinGroupResponse."""

    member_id: str = ""  # 0+
    group_instance_id: str | None = None  # 5+, null 5+
    metadata: bytes = b""  # 0+


class JoinGroupResponse(Struct):
    """Key 11, versions 0-9, flexible: 6+."""

    throttle_time_ms: int = 0  # 2+
    error_code: int = 0  # 0+
    generation_id: int = -1  # 0+
    protocol_type: str | None = None  # 7+, null 7+
    protocol_name: str | None = ""  # 0+, null 7+
    leader: str = ""  # 0+
    skip_assignment: bool = False  # 9+
    member_id: str = ""  # 0+
    members: list[JoinGroupResponseMember] = field(default_factory=list)  # 0+


class HeartbeatRequest(Request["HeartbeatResponse"]):
    """Key 12, versions 0-4, flexible: 4+."""

    group_id: str = ""  # 0+
    generation_id: int = 0  # 0+
    member_id: str = ""  # 0+
    group_instance_id: str | None = None  # 3+, null 3+


class HeartbeatResponse(Struct):
    """Key 12, versions 0-4, flexible: 4+."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0  # 0+


class MemberIdentity(Struct):
    """Part of LeaveGroupRequest."""

    member_id: str = ""  # 3+
    group_instance_id: str | None = None  # 3+, null 3+
    reason: str | None = None  # 5+, null 5+


class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    """Key 13, versions 0-5, flexible: 4+."""

    group_id: str = ""  # 0+
    member_id: str = ""  # 0-2
    members: list[MemberIdentity] = field(default_factory=list)  # 3+


class MemberResponse(Struct):
    """Part of LeaveGroupResponse."""

    member_id: str = ""  # 3+
    group_instance_id: str | None = ""  # 3+, null 3+
    error_code: int = 0  # 3+


class LeaveGroupResponse(Struct):
    """Key 13, versions 0-5, flexible: 4+."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0  # 0+
    members: list[MemberResponse] = field(default_factory=list)  # 3+


class SyncGroupRequestAssignment(Struct):
    """Part of SyncGroupRequest."""

    member_id: str = ""  # 0+
    assignment: bytes = b""  # 0+


class SyncGroupRequest(Request["SyncGroupResponse"]):
    """Key 14, versions 0-5, flexible: 4+."""

    group_id: str = ""  # 0+
    generation_id: int = 0  # 0+
    member_id: str = ""  # 0+
    group_instance_id: str | None = None  # 3+, null 3+
    protocol_type: str | None = None  # 5+, null 5+
    protocol_name: str | None = None  # 5+, null 5+
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)  # 0+


class SyncGroupResponse(Struct):
    """Key 14, versions 0-5, flexible: 4+."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0  # 0+
    protocol_type: str | None = None  # 5+, null 5+
    protocol_name: str | None = None  # 5+, null 5+
    assignment: bytes = b""  # 0+


class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    """Key 15, versions 0-6, flexible: 5+."""

    groups: list[str] = field(default_factory=list)  # 0+
    include_authorized_operations: bool = False  # 3+


class DescribedGroupMember(Struct):
    """Part of DescribeGroupsResponse."""

    member_id: str = ""  # 0+
    group_instance_id: str | None = None  # 4+, null 4+
    client_id: str = ""  # 0+
    client_host: str = ""  # 0+
    member_metadata: bytes = b""  # 0+
    member_assignment: bytes = b""  # 0+


class DescribeGroupsResponseDescribedGroup(Struct):
    """Part of DescribeGroupsResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = None  # 6+, null 6+
    group_id: str = ""  # 0+
    group_state: str = ""  # 0+
    protocol_type: str = ""  # 0+
    protocol_data: str = ""  # 0+
    members: list[DescribedGroupMember] = field(default_factory=list)  # 0+
    authorized_operations: int = -2147483648  # 3+


class DescribeGroupsResponse(Struct):
    """Key 15, versions 0-6, flexible: 5+."""

    throttle_time_ms: int = 0  # 1+
    groups: list[DescribeGroupsResponseDescribedGroup] = field(default_factory=list)  # 0+


class ListGroupsRequest(Request["ListGroupsResponse"]):
    """Key 16, versions 0-5, flexible: 3+."""

    states_filter: list[str] = field(default_factory=list)  # 4+
    types_filter: list[str] = field(default_factory=list)  # 5+


class ListedGroup(Struct):
    """Part of ListGroupsResponse."""

    group_id: str = ""  # 0+
    protocol_type: str = ""  # 0+
    group_state: str = ""  # 4+
    group_type: str = ""  # 5+


class ListGroupsResponse(Struct):
    """Key 16, versions 0-5, flexible: 3+."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0  # 0+
    groups: list[ListedGroup] = field(default_factory=list)  # 0+


class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    """Key 17, versions 0-1, flexible: none."""

    mechanism: str = ""  # 0+


class SaslHandshakeResponse(Struct):
    """Key 17, versions 0-1, flexible: none."""

    error_code: int = 0  # 0+
    mechanisms: list[str] = field(default_factory=list)  # 0+


class ApiVersionsRequest(Request["ApiVersionsResponse"]):
    """Key 18, versions 0-4, flexible: 3+."""

    client_software_name: str = ""  # 3+
    client_software_version: str = ""  # 3+


class ApiVersion(Struct):
    """Part of ApiVersionsResponse."""

    api_key: int = 0  # 0+
    min_version: int = 0  # 0+
    max_version: int = 0  # 0+


class SupportedFeatureKey(Struct):
    """Part of ApiVersionsResponse."""

    name: str = ""  # 3+
    min_version: int = 0  # 3+
    max_version: int = 0  # 3+


class FinalizedFeatureKey(Struct):
    """Part of ApiVersionsResponse."""

    name: str = ""  # 3+
    max_version_level: int = 0  # 3+
    min_version_level: int = 0  # 3+


class ApiVersionsResponse(Struct):
    """Key 18, versions 0-4, flexible: 3+."""

    error_code: int = 0  # 0+
    api_keys: list[ApiVersion] = field(default_factory=list)  # 0+
    throttle_time_ms: int = 0  # 1+
    supported_features: list[SupportedFeatureKey] = field(default_factory=list)  # 3+, tag 0
    finalized_features_epoch: int = -1  # 3+, tag 1
    finalized_features: list[FinalizedFeatureKey] = field(default_factory=list)  # 3+, tag 2
    zk_migration_ready: bool = False  # 3+, tag 3


class CreatableReplicaAssignment(Struct):
    """Part of CreateTopicsRequest."""

    partition_index: int = 0  # 0+
    broker_ids: list[int] = field(default_factory=list)  # 0+


class CreatableTopicConfig(Struct):
    """Part of CreateTopicsRequest."""

    name: str = ""  # 0+
    value: str | None = ""  # 0+, null 0+


class CreatableTopic(Struct):
    """Part of CreateTopicsRequest."""

    name: str = ""  # 0+
    num_partitions: int = 0  # 0+
    replication_factor: int = 0  # 0+
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)  # 0+
    configs: list[CreatableTopicConfig] = field(default_factory=list)  # 0+


class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    """Key 19, versions 2-7, flexible: 5+."""

    topics: list[CreatableTopic] = field(default_factory=list)  # 0+
    timeout_ms: int = 60000  # 0+
    validate_only: bool = False  # 1+


class CreatableTopicConfigs(Struct):
    """Part of CreateTopicsResponse."""

    name: str = ""  # 5+
    value: str | None = ""  # 5+, null 5+
    read_only: bool = False  # 5+
    config_source: int = -1  # 5+
    is_sensitive: bool = False  # 5+


class CreatableTopicResult(Struct):
    """Part of CreateTopicsResponse."""

    name: str = ""  # 0+
    topic_id: bytes = ZERO_UUID  # 7+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 1+, null 0+
    topic_config_error_code: int = 0  # 5+, tag 0
    num_partitions: int = -1  # 5+
    replication_factor: int = -1  # 5+
    configs: list[CreatableTopicConfigs] | None = field(default_factory=list)  # 5+, null 5+


class CreateTopicsResponse(Struct):
    """Key 19, versions 2-7, flexible: 5+."""

    throttle_time_ms: int = 0  # 2+
    topics: list[CreatableTopicResult] = field(default_factory=list)  # 0+


class DeleteTopicState(Struct):
    """Part of DeleteTopicsRequest."""

    name: str | None = None  # 6+, null 6+
    topic_id: bytes = ZERO_UUID  # 6+


class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """Key 20, versions 1-6, flexible: 4+."""

    topics: list[DeleteTopicState] = field(default_factory=list)  # 6+
    topic_names: list[str] = field(default_factory=list)  # 0-5
    timeout_ms: int = 0  # 0+


class DeletableTopicResult(Struct):
    """Part of DeleteTopicsResponse."""

    name: str | None = ""  # 0+, null 6+
    topic_id: bytes = ZERO_UUID  # 6+
    error_code: int = 0  # 0+
    error_message: str | None = None  # 5+, null 5+


class DeleteTopicsResponse(Struct):
    """Key 20, versions 1-6, flexible: 4+."""

    throttle_time_ms: int = 0  # 1+
    responses: list[DeletableTopicResult] = field(default_factory=list)  # 0+


class DeleteRecordsPartition(Struct):
    """Part of DeleteRecordsRequest."""

    partition_index: int = 0  # 0+
    offset: int = 0  # 0+


class DeleteRecordsTopic(Struct):
    """Part of DeleteRecordsRequest."""

    name: str = ""  # 0+
    partitions: list[DeleteRecordsPartition] = field(default_factory=list)  # 0+


class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """Key 21, versions 0-2, flexible: 2+."""

    topics: list[DeleteRecordsTopic] = field(default_factory=list)  # 0+
    timeout_ms: int = 0  # 0+


class DeleteRecordsPartitionResult(Struct):
    """Part of DeleteRecordsResponse."""

    partition_index: int = 0  # 0+
    low_watermark: int = 0  # 0+
    error_code: int = 0  # 0+


class DeleteRecordsTopicResult(Struct):
    """Part of DeleteRecordsResponse."""

    name: str = ""  # 0+
    partitions: list[DeleteRecordsPartitionResult] = field(default_factory=list)  # 0+


class DeleteRecordsResponse(Struct):
    """Key 21, versions 0-2, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    topics: list[DeleteRecordsTopicResult] = field(default_factory=list)  # 0+


class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """Key 22, versions 0-6, flexible: 2+."""

    transactional_id: str | None = ""  # 0+, null 0+
    transaction_timeout_ms: int = 0  # 0+
    producer_id: int = -1  # 3+
    producer_epoch: int = -1  # 3+
    enable2_pc: bool = False  # 6+
    keep_prepared_txn: bool = False  # 6+


class InitProducerIdResponse(Struct):
    """Key 22, versions 0-6, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    producer_id: int = -1  # 0+
    producer_epoch: int = 0  # 0+
    ongoing_txn_producer_id: int = -1  # 6+
    ongoing_txn_producer_epoch: int = -1  # 6+


class OffsetForLeaderPartition(Struct):
    """Part of OffsetForLeaderEpochRequest."""

    partition: int = 0  # 0+
    current_leader_epoch: int = -1  # 2+
    leader_epoch: int = 0  # 0+


class OffsetForLeaderTopic(Struct):
    """Part of OffsetForLeaderEpochRequest."""

    topic: str = ""  # 0+
    partitions: list[OffsetForLeaderPartition] = field(default_factory=list)  # 0+


class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    """Key 23, versions 2-4, flexible: 4+."""

    replica_id: int = -2  # 3+
    topics: list[OffsetForLeaderTopic] = field(default_factory=list)  # 0+


class OffsetForLeaderEpochResponseEpochEndOffset(Struct):
    """Part of OffsetForLeaderEpochResponse."""

    error_code: int = 0  # 0+
    partition: int = 0  # 0+
    leader_epoch: int = -1  # 1+
    end_offset: int = -1  # 0+


class OffsetForLeaderTopicResult(Struct):
    """Part of OffsetForLeaderEpochResponse."""

    topic: str = ""  # 0+
    partitions: list[OffsetForLeaderEpochResponseEpochEndOffset] = field(default_factory=list)  # 0+


class OffsetForLeaderEpochResponse(Struct):
    """Key 23, versions 2-4, flexible: 4+."""

    throttle_time_ms: int = 0  # 2+
    topics: list[OffsetForLeaderTopicResult] = field(default_factory=list)  # 0+


class AddPartitionsToTxnTopic(Struct):
    """Part of AddPartitionsToTxnRequest."""

    name: str = ""  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+
    topic_id: bytes = ZERO_UUID  # 4+, tag 10000


class AddPartitionsToTxnTransaction(Struct):
    """Part of AddPartitionsToTxnRequest."""

    transactional_id: str = ""  # 4+
    producer_id: int = 0  # 4+
    producer_epoch: int = 0  # 4+
    verify_only: bool = False  # 4+
    topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)  # 4+


class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    """Key 24, versions 0-5, flexible: 3+."""

    transactions: list[AddPartitionsToTxnTransaction] = field(default_factory=list)  # 4+
    v3_and_below_transactional_id: str = ""  # 0-3
    v3_and_below_producer_id: int = 0  # 0-3
    v3_and_below_producer_epoch: int = 0  # 0-3
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)  # 0-3


class AddPartitionsToTxnPartitionResult(Struct):
    """Part of AddPartitionsToTxnResponse."""

    partition_index: int = 0  # 0+
    partition_error_code: int = 0  # 0+


class AddPartitionsToTxnTopicResult(Struct):
    """Part of AddPartitionsToTxnResponse."""

    name: str = ""  # 0+
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(default_factory=list)  # 0+


class AddPartitionsToTxnResult(Struct):
    """Part of AddPartitionsToTxnResponse."""

    transactional_id: str = ""  # 4+
    topic_results: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)  # 4+


class AddPartitionsToTxnResponse(Struct):
    """Key 24, versions 0-5, flexible: 3+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 4+
    results_by_transaction: list[AddPartitionsToTxnResult] = field(default_factory=list)  # 4+
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)  # 0-3


class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    """Key 25, versions 0-4, flexible: 3+."""

    transactional_id: str = ""  # 0+
    producer_id: int = 0  # 0+
    producer_epoch: int = 0  # 0+
    group_id: str = ""  # 0+


class AddOffsetsToTxnResponse(Struct):
    """Key 25, versions 0-4, flexible: 3+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+


class EndTxnRequest(Request["EndTxnResponse"]):
    """Key 26, versions 0-5, flexible: 3+."""

    transactional_id: str = ""  # 0+
    producer_id: int = 0  # 0+
    producer_epoch: int = 0  # 0+
    committed: bool = False  # 0+


class EndTxnResponse(Struct):
    """Key 26, versions 0-5, flexible: 3+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    producer_id: int = -1  # 5+
    producer_epoch: int = -1  # 5+


class WritableTxnMarkerTopic(Struct):
    """Part of WriteTxnMarkersRequest."""

    name: str = ""  # 0+
    partition_indexes: list[int] = field(default_factory=list)  # 0+
    topic_id: bytes = ZERO_UUID  # 1+, tag 10000


class WritableTxnMarker(Struct):
    """Part of WriteTxnMarkersRequest."""

    producer_id: int = 0  # 0+
    producer_epoch: int = 0  # 0+
    transaction_result: bool = False  # 0+
    topics: list[WritableTxnMarkerTopic] = field(default_factory=list)  # 0+
    coordinator_epoch: int = 0  # 0+
    transaction_version: int = 0  # 2+


class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    """Key 27, versions 1-2, flexible: 1+."""

    markers: list[WritableTxnMarker] = field(default_factory=list)  # 0+


class WritableTxnMarkerPartitionResult(Struct):
    """Part of WriteTxnMarkersResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+


class WritableTxnMarkerTopicResult(Struct):
    """Part of WriteTxnMarkersResponse."""

    name: str = ""  # 0+
    partitions: list[WritableTxnMarkerPartitionResult] = field(default_factory=list)  # 0+


class WritableTxnMarkerResult(Struct):
    """Part of WriteTxnMarkersResponse."""

    producer_id: int = 0  # 0+
    topics: list[WritableTxnMarkerTopicResult] = field(default_factory=list)  # 0+


class WriteTxnMarkersResponse(Struct):
    """Key 27, versions 1-2, flexible: 1+."""

    markers: list[WritableTxnMarkerResult] = field(default_factory=list)  # 0+


class TxnOffsetCommitRequestPartition(Struct):
    """Part of TxnOffsetCommitRequest."""

    partition_index: int = 0  # 0+
    committed_offset: int = 0  # 0+
    committed_leader_epoch: int = -1  # 2+
    committed_metadata: str | None = ""  # 0+, null 0+


class TxnOffsetCommitRequestTopic(Struct):
    """Part of TxnOffsetCommitRequest."""

    name: str = ""  # 0+
    partitions: list[TxnOffsetCommitRequestPartition] = field(default_factory=list)  # 0+


class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    """Key 28, versions 0-5, flexible: 3+."""

    transactional_id: str = ""  # 0+
    group_id: str = ""  # 0+
    producer_id: int = 0  # 0+
    producer_epoch: int = 0  # 0+
    generation_id: int = -1  # 3+
    member_id: str = ""  # 3+
    group_instance_id: str | None = None  # 3+, null 3+
    topics: list[TxnOffsetCommitRequestTopic] = field(default_factory=list)  # 0+


class TxnOffsetCommitResponsePartition(Struct):
    """Part of TxnOffsetCommitResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+


class TxnOffsetCommitResponseTopic(Struct):
    """Part of TxnOffsetCommitResponse."""

    name: str = ""  # 0+
    partitions: list[TxnOffsetCommitResponsePartition] = field(default_factory=list)  # 0+


class TxnOffsetCommitResponse(Struct):
    """Key 28, versions 0-5, flexible: 3+."""

    throttle_time_ms: int = 0  # 0+
    topics: list[TxnOffsetCommitResponseTopic] = field(default_factory=list)  # 0+


class DescribeAclsRequest(Request["DescribeAclsResponse"]):
    """Key 29, versions 1-3, flexible: 2+."""

    resource_type_filter: int = 0  # 0+
    resource_name_filter: str | None = ""  # 0+, null 0+
    pattern_type_filter: int = 3  # 1+
    principal_filter: str | None = ""  # 0+, null 0+
    host_filter: str | None = ""  # 0+, null 0+
    operation: int = 0  # 0+
    permission_type: int = 0  # 0+


class AclDescription(Struct):
    """Part of DescribeAclsResponse."""

    principal: str = ""  # 0+
    host: str = ""  # 0+
    operation: int = 0  # 0+
    permission_type: int = 0  # 0+


class DescribeAclsResource(Struct):
    """Part of DescribeAclsResponse."""

    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+
    pattern_type: int = 3  # 1+
    acls: list[AclDescription] = field(default_factory=list)  # 0+


class DescribeAclsResponse(Struct):
    """Key 29, versions 1-3, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    resources: list[DescribeAclsResource] = field(default_factory=list)  # 0+


class AclCreation(Struct):
    """Part of CreateAclsRequest."""

    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+
    resource_pattern_type: int = 3  # 1+
    principal: str = ""  # 0+
    host: str = ""  # 0+
    operation: int = 0  # 0+
    permission_type: int = 0  # 0+


class CreateAclsRequest(Request["CreateAclsResponse"]):
    """Key 30, versions 1-3, flexible: 2+."""

    creations: list[AclCreation] = field(default_factory=list)  # 0+


class AclCreationResult(Struct):
    """Part of CreateAclsResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+


class CreateAclsResponse(Struct):
    """Key 30, versions 1-3, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    results: list[AclCreationResult] = field(default_factory=list)  # 0+


class DeleteAclsFilter(Struct):
    """Part of DeleteAclsRequest."""

    resource_type_filter: int = 0  # 0+
    resource_name_filter: str | None = ""  # 0+, null 0+
    pattern_type_filter: int = 3  # 1+
    principal_filter: str | None = ""  # 0+, null 0+
    host_filter: str | None = ""  # 0+, null 0+
    operation: int = 0  # 0+
    permission_type: int = 0  # 0+


class DeleteAclsRequest(Request["DeleteAclsResponse"]):
    """Key 31, versions 1-3, flexible: 2+."""

    filters: list[DeleteAclsFilter] = field(default_factory=list)  # 0+


class DeleteAclsMatchingAcl(Struct):
    """Part of DeleteAclsResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+
    pattern_type: int = 3  # 1+
    principal: str = ""  # 0+
    host: str = ""  # 0+
    operation: int = 0  # 0+
    permission_type: int = 0  # 0+


class DeleteAclsFilterResult(Struct):
    """Part of DeleteAclsResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    matching_acls: list[DeleteAclsMatchingAcl] = field(default_factory=list)  # 0+


class DeleteAclsResponse(Struct):
    """Key 31, versions 1-3, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    filter_results: list[DeleteAclsFilterResult] = field(default_factory=list)  # 0+


class DescribeConfigsResource(Struct):
    """Part of DescribeConfigsRequest."""

    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+
    configuration_keys: list[str] | None = field(default_factory=list)  # 0+, null 0+


class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """Key 32, versions 1-4, flexible: 4+."""

    resources: list[DescribeConfigsResource] = field(default_factory=list)  # 0+
    include_synonyms: bool = False  # 1+
    include_documentation: bool = False  # 3+


class DescribeConfigsSynonym(Struct):
    """Part of DescribeConfigsResponse."""

    name: str = ""  # 1+
    value: str | None = ""  # 1+, null 0+
    source: int = 0  # 1+


class DescribeConfigsResourceResult(Struct):
    """Part of DescribeConfigsResponse."""

    name: str = ""  # 0+
    value: str | None = ""  # 0+, null 0+
    read_only: bool = False  # 0+
    config_source: int = -1  # 1+
    is_sensitive: bool = False  # 0+
    synonyms: list[DescribeConfigsSynonym] = field(default_factory=list)  # 1+
    config_type: int = 0  # 3+
    documentation: str | None = ""  # 3+, null 0+


class DescribeConfigsResult(Struct):
    """Part of DescribeConfigsResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)  # 0+


class DescribeConfigsResponse(Struct):
    """Key 32, versions 1-4, flexible: 4+."""

    throttle_time_ms: int = 0  # 0+
    results: list[DescribeConfigsResult] = field(default_factory=list)  # 0+


class AlterConfigsRequestAlterableConfig(Struct):
    """Part of AlterConfigsRequest."""

    name: str = ""  # 0+
    value: str | None = ""  # 0+, null 0+


class AlterConfigsRequestAlterConfigsResource(Struct):
    """Part of AlterConfigsRequest."""

    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+
    configs: list[AlterConfigsRequestAlterableConfig] = field(default_factory=list)  # 0+


class AlterConfigsRequest(Request["AlterConfigsResponse"]):
    """Key 33, versions 0-2, flexible: 2+."""

    resources: list[AlterConfigsRequestAlterConfigsResource] = field(default_factory=list)  # 0+
    validate_only: bool = False  # 0+


class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    """Part of AlterConfigsResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+


class AlterConfigsResponse(Struct):
    """Key 33, versions 0-2, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    responses: list[AlterConfigsResponseAlterConfigsResourceResponse] = field(default_factory=list)  # 0+


class AlterReplicaLogDirTopic(Struct):
    """Part of AlterReplicaLogDirsRequest."""

    name: str = ""  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class AlterReplicaLogDir(Struct):
    """Part of AlterReplicaLogDirsRequest."""

    path: str = ""  # 0+
    topics: list[AlterReplicaLogDirTopic] = field(default_factory=list)  # 0+


class AlterReplicaLogDirsRequest(Request["AlterReplicaLogDirsResponse"]):
    """Key 34, versions 1-2, flexible: 2+."""

    dirs: list[AlterReplicaLogDir] = field(default_factory=list)  # 0+


class AlterReplicaLogDirPartitionResult(Struct):
    """Part of AlterReplicaLogDirsResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+


class AlterReplicaLogDirTopicResult(Struct):
    """Part of AlterReplicaLogDirsResponse."""

    topic_name: str = ""  # 0+
    partitions: list[AlterReplicaLogDirPartitionResult] = field(default_factory=list)  # 0+


class AlterReplicaLogDirsResponse(Struct):
    """Key 34, versions 1-2, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    results: list[AlterReplicaLogDirTopicResult] = field(default_factory=list)  # 0+


class DescribableLogDirTopic(Struct):
    """Part of DescribeLogDirsRequest."""

    topic: str = ""  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    """Key 35, versions 1-5, flexible: 2+."""

    topics: list[DescribableLogDirTopic] | None = field(default_factory=list)  # 0+, null 0+


class DescribeLogDirsPartition(Struct):
    """Part of DescribeLogDirsResponse."""

    partition_index: int = 0  # 0+
    partition_size: int = 0  # 0+
    offset_lag: int = 0  # 0+
    is_future_key: bool = False  # 0+


class DescribeLogDirsTopic(Struct):
    """Part of DescribeLogDirsResponse."""

    name: str = ""  # 0+
    partitions: list[DescribeLogDirsPartition] = field(default_factory=list)  # 0+


class DescribeLogDirsResult(Struct):
    """Part of DescribeLogDirsResponse."""

    error_code: int = 0  # 0+
    log_dir: str = ""  # 0+
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)  # 0+
    total_bytes: int = -1  # 4+
    usable_bytes: int = -1  # 4+
    is_cordoned: bool = False  # 5+


class DescribeLogDirsResponse(Struct):
    """Key 35, versions 1-5, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 3+
    results: list[DescribeLogDirsResult] = field(default_factory=list)  # 0+


class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    """Key 36, versions 0-2, flexible: 2+."""

    auth_bytes: bytes = b""  # 0+


class SaslAuthenticateResponse(Struct):
    """Key 36, versions 0-2, flexible: 2+."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    auth_bytes: bytes = b""  # 0+
    session_lifetime_ms: int = 0  # 1+


class CreatePartitionsAssignment(Struct):
    """Part of CreatePartitionsRequest."""

    broker_ids: list[int] = field(default_factory=list)  # 0+


class CreatePartitionsTopic(Struct):
    """Part of CreatePartitionsRequest."""

    name: str = ""  # 0+
    count: int = 0  # 0+
    assignments: list[CreatePartitionsAssignment] | None = field(default_factory=list)  # 0+, null 0+


class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    """Key 37, versions 0-3, flexible: 2+."""

    topics: list[CreatePartitionsTopic] = field(default_factory=list)  # 0+
    timeout_ms: int = 0  # 0+
    validate_only: bool = False  # 0+


class CreatePartitionsTopicResult(Struct):
    """Part of CreatePartitionsResponse."""

    name: str = ""  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = None  # 0+, null 0+


class CreatePartitionsResponse(Struct):
    """Key 37, versions 0-3, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    results: list[CreatePartitionsTopicResult] = field(default_factory=list)  # 0+


class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    """Key 42, versions 0-2, flexible: 2+."""

    groups_names: list[str] = field(default_factory=list)  # 0+


class DeletableGroupResult(Struct):
    """Part of DeleteGroupsResponse."""

    group_id: str = ""  # 0+
    error_code: int = 0  # 0+


class DeleteGroupsResponse(Struct):
    """Key 42, versions 0-2, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    results: list[DeletableGroupResult] = field(default_factory=list)  # 0+


class ElectLeadersRequestTopicPartitions(Struct):
    """Part of ElectLeadersRequest."""

    topic: str = ""  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    """Key 43, versions 0-2, flexible: 2+."""

    election_type: int = 0  # 1+
    topic_partitions: list[ElectLeadersRequestTopicPartitions] | None = field(default_factory=list)  # 0+, null 0+
    timeout_ms: int = 60000  # 0+


class PartitionResult(Struct):
    """Part of ElectLeadersResponse."""

    partition_id: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+


class ReplicaElectionResult(Struct):
    """Part of ElectLeadersResponse."""

    topic: str = ""  # 0+
    partition_result: list[PartitionResult] = field(default_factory=list)  # 0+


class ElectLeadersResponse(Struct):
    """Key 43, versions 0-2, flexible: 2+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 1+
    replica_election_results: list[ReplicaElectionResult] = field(default_factory=list)  # 0+


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    """Part of IncrementalAlterConfigsRequest."""

    name: str = ""  # 0+
    config_operation: int = 0  # 0+
    value: str | None = ""  # 0+, null 0+


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    """Part of IncrementalAlterConfigsRequest."""

    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = field(default_factory=list)  # 0+


class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    """Key 44, versions 0-1, flexible: 1+."""

    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = field(default_factory=list)  # 0+
    validate_only: bool = False  # 0+


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    """Part of IncrementalAlterConfigsResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    resource_type: int = 0  # 0+
    resource_name: str = ""  # 0+


class IncrementalAlterConfigsResponse(Struct):
    """Key 44, versions 0-1, flexible: 1+."""

    throttle_time_ms: int = 0  # 0+
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = field(default_factory=list)  # 0+


class ReassignablePartition(Struct):
    """Part of AlterPartitionReassignmentsRequest."""

    partition_index: int = 0  # 0+
    replicas: list[int] | None = None  # 0+, null 0+


class ReassignableTopic(Struct):
    """Part of AlterPartitionReassignmentsRequest."""

    name: str = ""  # 0+
    partitions: list[ReassignablePartition] = field(default_factory=list)  # 0+


class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    """Key 45, versions 0-1, flexible: 0+."""

    timeout_ms: int = 60000  # 0+
    allow_replication_factor_change: bool = True  # 1+
    topics: list[ReassignableTopic] = field(default_factory=list)  # 0+


class ReassignablePartitionResponse(Struct):
    """Part of AlterPartitionReassignmentsResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+


class ReassignableTopicResponse(Struct):
    """Part of AlterPartitionReassignmentsResponse."""

    name: str = ""  # 0+
    partitions: list[ReassignablePartitionResponse] = field(default_factory=list)  # 0+


class AlterPartitionReassignmentsResponse(Struct):
    """Key 45, versions 0-1, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    allow_replication_factor_change: bool = True  # 1+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    responses: list[ReassignableTopicResponse] = field(default_factory=list)  # 0+


class ListPartitionReassignmentsTopics(Struct):
    """Part of ListPartitionReassignmentsRequest."""

    name: str = ""  # 0+
    partition_indexes: list[int] = field(default_factory=list)  # 0+


class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """Key 46, versions 0, flexible: 0+."""

    timeout_ms: int = 60000  # 0+
    topics: list[ListPartitionReassignmentsTopics] | None = None  # 0+, null 0+


class OngoingPartitionReassignment(Struct):
    """Part of ListPartitionReassignmentsResponse."""

    partition_index: int = 0  # 0+
    replicas: list[int] = field(default_factory=list)  # 0+
    adding_replicas: list[int] = field(default_factory=list)  # 0+
    removing_replicas: list[int] = field(default_factory=list)  # 0+


class OngoingTopicReassignment(Struct):
    """Part of ListPartitionReassignmentsResponse."""

    name: str = ""  # 0+
    partitions: list[OngoingPartitionReassignment] = field(default_factory=list)  # 0+


class ListPartitionReassignmentsResponse(Struct):
    """Key 46, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    topics: list[OngoingTopicReassignment] = field(default_factory=list)  # 0+


class OffsetDeleteRequestPartition(Struct):
    """Part of OffsetDeleteRequest."""

    partition_index: int = 0  # 0+


class OffsetDeleteRequestTopic(Struct):
    """Part of OffsetDeleteRequest."""

    name: str = ""  # 0+
    partitions: list[OffsetDeleteRequestPartition] = field(default_factory=list)  # 0+


class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    """Key 47, versions 0, flexible: none."""

    group_id: str = ""  # 0+
    topics: list[OffsetDeleteRequestTopic] = field(default_factory=list)  # 0+


class OffsetDeleteResponsePartition(Struct):
    """Part of OffsetDeleteResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+


class OffsetDeleteResponseTopic(Struct):
    """Part of OffsetDeleteResponse."""

    name: str = ""  # 0+
    partitions: list[OffsetDeleteResponsePartition] = field(default_factory=list)  # 0+


class OffsetDeleteResponse(Struct):
    """Key 47, versions 0, flexible: none."""

    error_code: int = 0  # 0+
    throttle_time_ms: int = 0  # 0+
    topics: list[OffsetDeleteResponseTopic] = field(default_factory=list)  # 0+


class ComponentData(Struct):
    """Part of DescribeClientQuotasRequest."""

    entity_type: str = ""  # 0+
    match_type: int = 0  # 0+
    match: str | None = ""  # 0+, null 0+


class DescribeClientQuotasRequest(Request["DescribeClientQuotasResponse"]):
    """Key 48, versions 0-1, flexible: 1+."""

    components: list[ComponentData] = field(default_factory=list)  # 0+
    strict: bool = False  # 0+


class DescribeClientQuotasResponseEntityData(Struct):
    """Part of DescribeClientQuotasResponse."""

    entity_type: str = ""  # 0+
    entity_name: str | None = ""  # 0+, null 0+


class ValueData(Struct):
    """Part of DescribeClientQuotasResponse."""

    key: str = ""  # 0+
    value: float = 0.0  # 0+


class DescribeClientQuotasResponseEntryData(Struct):
    """Part of DescribeClientQuotasResponse."""

    entity: list[DescribeClientQuotasResponseEntityData] = field(default_factory=list)  # 0+
    values: list[ValueData] = field(default_factory=list)  # 0+


class DescribeClientQuotasResponse(Struct):
    """Key 48, versions 0-1, flexible: 1+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    entries: list[DescribeClientQuotasResponseEntryData] | None = field(default_factory=list)  # 0+, null 0+


class AlterClientQuotasRequestEntityData(Struct):
    """Part of AlterClientQuotasRequest."""

    entity_type: str = ""  # 0+
    entity_name: str | None = ""  # 0+, null 0+


class OpData(Struct):
    """Part of AlterClientQuotasRequest."""

    key: str = ""  # 0+
    value: float = 0.0  # 0+
    remove: bool = False  # 0+


class AlterClientQuotasRequestEntryData(Struct):
    """Part of AlterClientQuotasRequest."""

    entity: list[AlterClientQuotasRequestEntityData] = field(default_factory=list)  # 0+
    ops: list[OpData] = field(default_factory=list)  # 0+


class AlterClientQuotasRequest(Request["AlterClientQuotasResponse"]):
    """Key 49, versions 0-1, flexible: 1+."""

    entries: list[AlterClientQuotasRequestEntryData] = field(default_factory=list)  # 0+
    validate_only: bool = False  # 0+


class AlterClientQuotasResponseEntityData(Struct):
    """Part of AlterClientQuotasResponse."""

    entity_type: str = ""  # 0+
    entity_name: str | None = ""  # 0+, null 0+


class AlterClientQuotasResponseEntryData(Struct):
    """Part of AlterClientQuotasResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    entity: list[AlterClientQuotasResponseEntityData] = field(default_factory=list)  # 0+


class AlterClientQuotasResponse(Struct):
    """Key 49, versions 0-1, flexible: 1+."""

    throttle_time_ms: int = 0  # 0+
    entries: list[AlterClientQuotasResponseEntryData] = field(default_factory=list)  # 0+


class UserName(Struct):
    """Part of DescribeUserScramCredentialsRequest."""

    name: str = ""  # 0+


class DescribeUserScramCredentialsRequest(Request["DescribeUserScramCredentialsResponse"]):
    """Key 50, versions 0, flexible: 0+."""

    users: list[UserName] | None = field(default_factory=list)  # 0+, null 0+


class CredentialInfo(Struct):
    """Part of DescribeUserScramCredentialsResponse."""

    mechanism: int = 0  # 0+
    iterations: int = 0  # 0+


class DescribeUserScramCredentialsResult(Struct):
    """Part of DescribeUserScramCredentialsResponse."""

    user: str = ""  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    credential_infos: list[CredentialInfo] = field(default_factory=list)  # 0+


class DescribeUserScramCredentialsResponse(Struct):
    """Key 50, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    results: list[DescribeUserScramCredentialsResult] = field(default_factory=list)  # 0+


class ScramCredentialDeletion(Struct):
    """Part of AlterUserScramCredentialsRequest."""

    name: str = ""  # 0+
    mechanism: int = 0  # 0+


class ScramCredentialUpsertion(Struct):
    """Part of AlterUserScramCredentialsRequest."""

    name: str = ""  # 0+
    mechanism: int = 0  # 0+
    iterations: int = 0  # 0+
    salt: bytes = b""  # 0+
    salted_password: bytes = b""  # 0+


class AlterUserScramCredentialsRequest(Request["AlterUserScramCredentialsResponse"]):
    """Key 51, versions 0, flexible: 0+."""

    deletions: list[ScramCredentialDeletion] = field(default_factory=list)  # 0+
    upsertions: list[ScramCredentialUpsertion] = field(default_factory=list)  # 0+


class AlterUserScramCredentialsResult(Struct):
    """Part of AlterUserScramCredentialsResponse."""

    user: str = ""  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+


class AlterUserScramCredentialsResponse(Struct):
    """Key 51, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    results: list[AlterUserScramCredentialsResult] = field(default_factory=list)  # 0+


class DescribeQuorumRequestPartitionData(Struct):
    """Part of DescribeQuorumRequest."""

    partition_index: int = 0  # 0+


class DescribeQuorumRequestTopicData(Struct):
    """Part of DescribeQuorumRequest."""

    topic_name: str = ""  # 0+
    partitions: list[DescribeQuorumRequestPartitionData] = field(default_factory=list)  # 0+


class DescribeQuorumRequest(Request["DescribeQuorumResponse"]):
    """Key 55, versions 0-2, flexible: 0+."""

    topics: list[DescribeQuorumRequestTopicData] = field(default_factory=list)  # 0+


class DescribeQuorumResponseReplicaState(Struct):
    """Part of DescribeQuorumResponse."""

    replica_id: int = 0  # 0+
    replica_directory_id: bytes = ZERO_UUID  # 2+
    log_end_offset: int = 0  # 0+
    last_fetch_timestamp: int = -1  # 1+
    last_caught_up_timestamp: int = -1  # 1+


class DescribeQuorumResponsePartitionData(Struct):
    """Part of DescribeQuorumResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 2+, null 2+
    leader_id: int = 0  # 0+
    leader_epoch: int = 0  # 0+
    high_watermark: int = 0  # 0+
    current_voters: list[DescribeQuorumResponseReplicaState] = field(default_factory=list)  # 0+
    observers: list[DescribeQuorumResponseReplicaState] = field(default_factory=list)  # 0+


class DescribeQuorumResponseTopicData(Struct):
    """Part of DescribeQuorumResponse."""

    topic_name: str = ""  # 0+
    partitions: list[DescribeQuorumResponsePartitionData] = field(default_factory=list)  # 0+


class Listener(Struct):
    """Part of DescribeQuorumResponse."""

    name: str = ""  # 2+
    host: str = ""  # 2+
    port: int = 0  # 2+


class Node(Struct):
    """Part of DescribeQuorumResponse."""

    node_id: int = 0  # 2+
    listeners: list[Listener] = field(default_factory=list)  # 2+


class DescribeQuorumResponse(Struct):
    """Key 55, versions 0-2, flexible: 0+."""

    error_code: int = 0  # 0+
    error_message: str | None = ""  # 2+, null 2+
    topics: list[DescribeQuorumResponseTopicData] = field(default_factory=list)  # 0+
    nodes: list[Node] = field(default_factory=list)  # 2+


class BrokerState(Struct):
    """Part of AlterPartitionRequest."""

    broker_id: int = 0  # 3+
    broker_epoch: int = -1  # 3+


class AlterPartitionRequestPartitionData(Struct):
    """Part of AlterPartitionRequest."""

    partition_index: int = 0  # 0+
    leader_epoch: int = 0  # 0+
    new_isr: list[int] = field(default_factory=list)  # 0-2
    new_isr_with_epochs: list[BrokerState] = field(default_factory=list)  # 3+
    leader_recovery_state: int = 0  # 1+
    partition_epoch: int = 0  # 0+


class AlterPartitionRequestTopicData(Struct):
    """Part of AlterPartitionRequest."""

    topic_id: bytes = ZERO_UUID  # 2+
    partitions: list[AlterPartitionRequestPartitionData] = field(default_factory=list)  # 0+


class AlterPartitionRequest(Request["AlterPartitionResponse"]):
    """Key 56, versions 2-3, flexible: 0+."""

    broker_id: int = 0  # 0+
    broker_epoch: int = -1  # 0+
    topics: list[AlterPartitionRequestTopicData] = field(default_factory=list)  # 0+


class AlterPartitionResponsePartitionData(Struct):
    """Part of AlterPartitionResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+
    leader_id: int = 0  # 0+
    leader_epoch: int = 0  # 0+
    isr: list[int] = field(default_factory=list)  # 0+
    leader_recovery_state: int = 0  # 1+
    partition_epoch: int = 0  # 0+


class AlterPartitionResponseTopicData(Struct):
    """Part of AlterPartitionResponse."""

    topic_id: bytes = ZERO_UUID  # 2+
    partitions: list[AlterPartitionResponsePartitionData] = field(default_factory=list)  # 0+


class AlterPartitionResponse(Struct):
    """Key 56, versions 2-3, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    topics: list[AlterPartitionResponseTopicData] = field(default_factory=list)  # 0+


class FeatureUpdateKey(Struct):
    """Part of UpdateFeaturesRequest."""

    feature: str = ""  # 0+
    max_version_level: int = 0  # 0+
    allow_downgrade: bool = False  # 0
    upgrade_type: int = 1  # 1+


class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    """Key 57, versions 0-2, flexible: 0+."""

    timeout_ms: int = 60000  # 0+
    feature_updates: list[FeatureUpdateKey] = field(default_factory=list)  # 0+
    validate_only: bool = False  # 1+


class UpdatableFeatureResult(Struct):
    """Part of UpdateFeaturesResponse."""

    feature: str = ""  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+


class UpdateFeaturesResponse(Struct):
    """Key 57, versions 0-2, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = ""  # 0+, null 0+
    results: list[UpdatableFeatureResult] = field(default_factory=list)  # 0-1


class DescribeClusterRequest(Request["DescribeClusterResponse"]):
    """Key 60, versions 0-2, flexible: 0+."""

    include_cluster_authorized_operations: bool = False  # 0+
    endpoint_type: int = 1  # 1+
    include_fenced_brokers: bool = False  # 2+


class DescribeClusterBroker(Struct):
    """Part of DescribeClusterResponse."""

    broker_id: int = 0  # 0+
    host: str = ""  # 0+
    port: int = 0  # 0+
    rack: str | None = None  # 0+, null 0+
    is_fenced: bool = False  # 2+


class DescribeClusterResponse(Struct):
    """Key 60, versions 0-2, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = None  # 0+, null 0+
    endpoint_type: int = 1  # 1+
    cluster_id: str = ""  # 0+
    controller_id: int = -1  # 0+
    brokers: list[DescribeClusterBroker] = field(default_factory=list)  # 0+
    cluster_authorized_operations: int = -2147483648  # 0+


class DescribeProducersRequestTopicRequest(Struct):
    """Part of DescribeProducersRequest."""

    name: str = ""  # 0+
    partition_indexes: list[int] = field(default_factory=list)  # 0+


class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Key 61, versions 0, flexible: 0+."""

    topics: list[DescribeProducersRequestTopicRequest] = field(default_factory=list)  # 0+


class ProducerState(Struct):
    """Part of DescribeProducersResponse."""

    producer_id: int = 0  # 0+
    producer_epoch: int = 0  # 0+
    last_sequence: int = -1  # 0+
    last_timestamp: int = -1  # 0+
    coordinator_epoch: int = 0  # 0+
    current_txn_start_offset: int = -1  # 0+


class PartitionResponse(Struct):
    """Part of DescribeProducersResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = None  # 0+, null 0+
    active_producers: list[ProducerState] = field(default_factory=list)  # 0+


class TopicResponse(Struct):
    """Part of DescribeProducersResponse."""

    name: str = ""  # 0+
    partitions: list[PartitionResponse] = field(default_factory=list)  # 0+


class DescribeProducersResponse(Struct):
    """Key 61, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    topics: list[TopicResponse] = field(default_factory=list)  # 0+


class AllocateProducerIdsRequest(Request["AllocateProducerIdsResponse"]):
    """Key 67, versions 0, flexible: 0+."""

    broker_id: int = 0  # 0+
    broker_epoch: int = -1  # 0+


class AllocateProducerIdsResponse(Struct):
    """Key 67, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    producer_id_start: int = 0  # 0+
    producer_id_len: int = 0  # 0+


class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    """Key 65, versions 0, flexible: 0+."""

    transactional_ids: list[str] = field(default_factory=list)  # 0+


class DescribeTransactionsResponseTopicData(Struct):
    """Part of DescribeTransactionsResponse."""

    topic: str = ""  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class DescribeTransactionsResponseTransactionState(Struct):
    """Part of DescribeTransactionsResponse."""

    error_code: int = 0  # 0+
    transactional_id: str = ""  # 0+
    transaction_state: str = ""  # 0+
    transaction_timeout_ms: int = 0  # 0+
    transaction_start_time_ms: int = 0  # 0+
    producer_id: int = 0  # 0+
    producer_epoch: int = 0  # 0+
    topics: list[DescribeTransactionsResponseTopicData] = field(default_factory=list)  # 0+


class DescribeTransactionsResponse(Struct):
    """Key 65, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    transaction_states: list[DescribeTransactionsResponseTransactionState] = field(default_factory=list)  # 0+


class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """Key 66, versions 0-2, flexible: 0+."""

    state_filters: list[str] = field(default_factory=list)  # 0+
    producer_id_filters: list[int] = field(default_factory=list)  # 0+
    duration_filter: int = -1  # 1+
    transactional_id_pattern: str | None = None  # 2+, null 2+


class ListTransactionsResponseTransactionState(Struct):
    """Part of ListTransactionsResponse."""

    transactional_id: str = ""  # 0+
    producer_id: int = 0  # 0+
    transaction_state: str = ""  # 0+


class ListTransactionsResponse(Struct):
    """Key 66, versions 0-2, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    unknown_state_filters: list[str] = field(default_factory=list)  # 0+
    transaction_states: list[ListTransactionsResponseTransactionState] = field(default_factory=list)  # 0+


class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    """Part of ConsumerGroupHeartbeatRequest."""

    topic_id: bytes = ZERO_UUID  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class ConsumerGroupHeartbeatRequest(Request["ConsumerGroupHeartbeatResponse"]):
    """Key 68, versions 0-1, flexible: 0+."""

    group_id: str = ""  # 0+
    member_id: str = ""  # 0+
    member_epoch: int = 0  # 0+
    instance_id: str | None = None  # 0+, null 0+
    rack_id: str | None = None  # 0+, null 0+
    rebalance_timeout_ms: int = -1  # 0+
    subscribed_topic_names: list[str] | None = None  # 0+, null 0+
    subscribed_topic_regex: str | None = None  # 1+, null 1+
    server_assignor: str | None = None  # 0+, null 0+
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = None  # 0+, null 0+


class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    """Part of ConsumerGroupHeartbeatResponse."""

    topic_id: bytes = ZERO_UUID  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class ConsumerGroupHeartbeatResponseAssignment(Struct):
    """Part of ConsumerGroupHeartbeatResponse."""

    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = field(default_factory=list)  # 0+


class ConsumerGroupHeartbeatResponse(Struct):
    """Key 68, versions 0-1, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = None  # 0+, null 0+
    member_id: str | None = None  # 0+, null 0+
    member_epoch: int = 0  # 0+
    heartbeat_interval_ms: int = 0  # 0+
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = None  # 0+, null 0+


class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescribeResponse"]):
    """Key 69, versions 0-1, flexible: 0+."""

    group_ids: list[str] = field(default_factory=list)  # 0+
    include_authorized_operations: bool = False  # 0+


class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    """Part of ConsumerGroupDescribeResponse."""

    topic_id: bytes = ZERO_UUID  # 0+
    topic_name: str = ""  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class ConsumerGroupDescribeResponseAssignment(Struct):
    """Part of ConsumerGroupDescribeResponse."""

    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = field(default_factory=list)  # 0+


class Member(Struct):
    """Part of ConsumerGroupDescribeResponse."""

    member_id: str = ""  # 0+
    instance_id: str | None = None  # 0+, null 0+
    rack_id: str | None = None  # 0+, null 0+
    member_epoch: int = 0  # 0+
    client_id: str = ""  # 0+
    client_host: str = ""  # 0+
    subscribed_topic_names: list[str] = field(default_factory=list)  # 0+
    subscribed_topic_regex: str | None = None  # 0+, null 0+
    assignment: ConsumerGroupDescribeResponseAssignment = field(
        default_factory=ConsumerGroupDescribeResponseAssignment
    )  # 0+
    target_assignment: ConsumerGroupDescribeResponseAssignment = field(
        default_factory=ConsumerGroupDescribeResponseAssignment
    )  # 0+
    member_type: int = -1  # 1+


class ConsumerGroupDescribeResponseDescribedGroup(Struct):
    """Part of ConsumerGroupDescribeResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = None  # 0+, null 0+
    group_id: str = ""  # 0+
    group_state: str = ""  # 0+
    group_epoch: int = 0  # 0+
    assignment_epoch: int = 0  # 0+
    assignor_name: str = ""  # 0+
    members: list[Member] = field(default_factory=list)  # 0+
    authorized_operations: int = -2147483648  # 0+


class ConsumerGroupDescribeResponse(Struct):
    """Key 69, versions 0-1, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    groups: list[ConsumerGroupDescribeResponseDescribedGroup] = field(default_factory=list)  # 0+


class GetTelemetrySubscriptionsRequest(Request["GetTelemetrySubscriptionsResponse"]):
    """Key 71, versions 0, flexible: 0+."""

    client_instance_id: bytes = ZERO_UUID  # 0+


class GetTelemetrySubscriptionsResponse(Struct):
    """Key 71, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    client_instance_id: bytes = ZERO_UUID  # 0+
    subscription_id: int = 0  # 0+
    accepted_compression_types: list[int] = field(default_factory=list)  # 0+
    push_interval_ms: int = 0  # 0+
    telemetry_max_bytes: int = 0  # 0+
    delta_temporality: bool = False  # 0+
    requested_metrics: list[str] = field(default_factory=list)  # 0+


class PushTelemetryRequest(Request["PushTelemetryResponse"]):
    """Key 72, versions 0, flexible: 0+."""

    client_instance_id: bytes = ZERO_UUID  # 0+
    subscription_id: int = 0  # 0+
    terminating: bool = False  # 0+
    compression_type: int = 0  # 0+
    metrics: bytes = b""  # 0+


class PushTelemetryResponse(Struct):
    """Key 72, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+


class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    """Key 74, versions 0-1, flexible: 0+."""

    resource_types: list[int] = field(default_factory=list)  # 1+


class ConfigResource(Struct):
    """Part of ListConfigResourcesResponse."""

    resource_name: str = ""  # 0+
    resource_type: int = 16  # 1+


class ListConfigResourcesResponse(Struct):
    """Key 74, versions 0-1, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    config_resources: list[ConfigResource] = field(default_factory=list)  # 0+


class DescribeTopicPartitionsRequestTopicRequest(Struct):
    """Part of DescribeTopicPartitionsRequest."""

    name: str = ""  # 0+


class DescribeTopicPartitionsRequestCursor(Struct):
    """Part of DescribeTopicPartitionsRequest."""

    topic_name: str = ""  # 0+
    partition_index: int = 0  # 0+


class DescribeTopicPartitionsRequest(Request["DescribeTopicPartitionsResponse"]):
    """Key 75, versions 0, flexible: 0+."""

    topics: list[DescribeTopicPartitionsRequestTopicRequest] = field(default_factory=list)  # 0+
    response_partition_limit: int = 2000  # 0+
    cursor: DescribeTopicPartitionsRequestCursor | None = None  # 0+, null 0+


class DescribeTopicPartitionsResponsePartition(Struct):
    """Part of DescribeTopicPartitionsResponse."""

    error_code: int = 0  # 0+
    partition_index: int = 0  # 0+
    leader_id: int = 0  # 0+
    leader_epoch: int = -1  # 0+
    replica_nodes: list[int] = field(default_factory=list)  # 0+
    isr_nodes: list[int] = field(default_factory=list)  # 0+
    eligible_leader_replicas: list[int] | None = None  # 0+, null 0+
    last_known_elr: list[int] | None = None  # 0+, null 0+
    offline_replicas: list[int] = field(default_factory=list)  # 0+


class DescribeTopicPartitionsResponseTopic(Struct):
    """Part of DescribeTopicPartitionsResponse."""

    error_code: int = 0  # 0+
    name: str | None = ""  # 0+, null 0+
    topic_id: bytes = ZERO_UUID  # 0+
    is_internal: bool = False  # 0+
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)  # 0+
    topic_authorized_operations: int = -2147483648  # 0+


class DescribeTopicPartitionsResponseCursor(Struct):
    """Part of DescribeTopicPartitionsResponse."""

    topic_name: str = ""  # 0+
    partition_index: int = 0  # 0+


class DescribeTopicPartitionsResponse(Struct):
    """Key 75, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    topics: list[DescribeTopicPartitionsResponseTopic] = field(default_factory=list)  # 0+
    next_cursor: DescribeTopicPartitionsResponseCursor | None = None  # 0+, null 0+


class NamedBranch(Struct):
    """Part of EndBranchesRequest."""

    transactional_id: str = ""  # 0+
    producer_id: int = -1  # 0+
    producer_epoch: int = -1  # 0+


class EndBranchesRequest(Request["EndBranchesResponse"]):
    """Key 20000, versions 0, flexible: 0+."""

    root: str = ""  # 0+
    token: int = 0  # 0+
    committed: bool = False  # 0+
    branches: list[NamedBranch] = field(default_factory=list)  # 0+
    producer_id: int = -1  # 0+
    producer_epoch: int = -1  # 0+
    decided_by: str = ""  # 0+, tag 0


class EndBranchesResponse(Struct):
    """Key 20000, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    error_code: int = 0  # 0+
    error_message: str | None = None  # 0+, null 0+
    decided_now: bool = False  # 0+
    last_token: int = -1  # 0+
    decided_by: str = ""  # 0+, tag 0
    decided_before: str = ""  # 0+, tag 1


class DescribeBranchesRequest(Request["DescribeBranchesResponse"]):
    """Key 20001, versions 0, flexible: 0+."""

    roots: list[str] = field(default_factory=list)  # 0+


class DescribedRoot(Struct):
    """Part of DescribeBranchesResponse."""

    error_code: int = 0  # 0+
    root: str = ""  # 0+
    last_token: int = -1  # 0+
    producer_id: int = -1  # 0+
    producer_epoch: int = -1  # 0+
    open_branches: list[str] = field(default_factory=list)  # 0+
    decided_by: str = ""  # 0+, tag 0


class DescribeBranchesResponse(Struct):
    """Key 20001, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    roots: list[DescribedRoot] = field(default_factory=list)  # 0+


class ConditionalBatch(Struct):
    """Part of ConditionalProduceRequest."""

    topic: str = ""  # 0+
    partition_index: int = 0  # 0+
    expected_offset: int = -1  # 0+
    records: bytes | memoryview | None = None  # 0+, null 0+


class ConditionalProduceRequest(Request["ConditionalProduceResponse"]):
    """Key 20002, versions 0, flexible: 0+."""

    transactional_id: str | None = None  # 0+, null 0+
    timeout_ms: int = 0  # 0+
    batches: list[ConditionalBatch] = field(default_factory=list)  # 0+


class ConditionalResult(Struct):
    """Part of ConditionalProduceResponse."""

    error_code: int = 0  # 0+
    error_message: str | None = None  # 0+, null 0+
    culprits: list[int] = field(default_factory=list)  # 0+
    may_be_written: bool = False  # 0+
    base_offset: int = -1  # 0+
    log_append_time_ms: int = -1  # 0+
    end_offset: int = -1  # 0+, tag 0


class ConditionalProduceResponse(Struct):
    """Key 20002, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    results: list[ConditionalResult] = field(default_factory=list)  # 0+


class DescribeHealthRequest(Request["DescribeHealthResponse"]):
    """Key 20003, versions 0, flexible: 0+."""


class DescribedTrouble(Struct):
    """Part of DescribeHealthResponse."""

    kind: str = ""  # 0+
    about: str = ""  # 0+
    says: str = ""  # 0+


class DescribeHealthResponse(Struct):
    """Key 20003, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    cluster_id: str = ""  # 0+
    broker_id: int = 0  # 0+
    wall_ms: int = 0  # 0+
    http_url: str = ""  # 0+, tag 0
    troubles: list[DescribedTrouble] = field(default_factory=list)  # 0+


class EndsPartition(Struct):
    """Part of DescribeEndsRequest."""

    partition_index: int = 0  # 0+
    since_offset: int = 0  # 0+


class EndsTopic(Struct):
    """Part of DescribeEndsRequest."""

    name: str = ""  # 0+
    partitions: list[EndsPartition] = field(default_factory=list)  # 0+


class DescribeEndsRequest(Request["DescribeEndsResponse"]):
    """Key 20004, versions 0, flexible: 0+."""

    topics: list[EndsTopic] = field(default_factory=list)  # 0+


class DescribedEnds(Struct):
    """Part of DescribeEndsResponse."""

    partition_index: int = 0  # 0+
    error_code: int = 0  # 0+
    log_start_offset: int = -1  # 0+
    last_stable_offset: int = -1  # 0+
    high_watermark: int = -1  # 0+
    markers: bytes = b""  # 0+


class DescribedEndsTopic(Struct):
    """Part of DescribeEndsResponse."""

    name: str = ""  # 0+
    partitions: list[DescribedEnds] = field(default_factory=list)  # 0+


class DescribeEndsResponse(Struct):
    """Key 20004, versions 0, flexible: 0+."""

    throttle_time_ms: int = 0  # 0+
    topics: list[DescribedEndsTopic] = field(default_factory=list)  # 0+


class ConsumerProtocolSubscriptionTopicPartition(Struct):
    """Part of ConsumerProtocolSubscription."""

    topic: str = ""  # 1+
    partitions: list[int] = field(default_factory=list)  # 1+


class ConsumerProtocolSubscription(Struct):
    """Versions 0-3, flexible: none."""

    topics: list[str] = field(default_factory=list)  # 0+
    user_data: bytes | None = None  # 0+, null 0+
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = field(default_factory=list)  # 1+
    generation_id: int = -1  # 2+
    rack_id: str | None = None  # 3+, null 3+


class ConsumerProtocolAssignmentTopicPartition(Struct):
    """Part of ConsumerProtocolAssignment."""

    topic: str = ""  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class ConsumerProtocolAssignment(Struct):
    """Versions 0-3, flexible: none."""

    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = field(default_factory=list)  # 0+
    user_data: bytes | None = None  # 0+, null 0+


class LegacyOffsetCommitKey(Struct):
    """Key 0, versions 0, flexible: none."""

    group: str = ""  # 0
    topic: str = ""  # 0
    partition: int = 0  # 0


class LegacyOffsetCommitValue(Struct):
    """Key 0, versions 0, flexible: none."""

    offset: int = 0  # 0
    metadata: str = ""  # 0
    commit_timestamp: int = 0  # 0


class OffsetCommitKey(Struct):
    """Key 1, versions 0, flexible: none."""

    group: str = ""  # 0
    topic: str = ""  # 0
    partition: int = 0  # 0


class OffsetCommitValue(Struct):
    """Key 1, versions 0-4, flexible: 4+."""

    offset: int = 0  # 0+
    leader_epoch: int = -1  # 3+
    metadata: str = ""  # 0+
    commit_timestamp: int = 0  # 0+
    expire_timestamp: int = -1  # 1
    topic_id: bytes = ZERO_UUID  # 4+, tag 0


class GroupMetadataKey(Struct):
    """Key 2, versions 0, flexible: none."""

    group: str = ""  # 0


class MemberMetadata(Struct):
    """Part of GroupMetadataValue."""

    member_id: str = ""  # 0+
    group_instance_id: str | None = None  # 3+, null 3+
    client_id: str = ""  # 0+
    client_host: str = ""  # 0+
    rebalance_timeout: int = -1  # 1+
    session_timeout: int = 0  # 0+
    subscription: bytes = b""  # 0+
    assignment: bytes = b""  # 0+


class GroupMetadataValue(Struct):
    """Key 2, versions 0-4, flexible: 4+."""

    protocol_type: str = ""  # 0+
    generation: int = 0  # 0+
    protocol: str | None = ""  # 0+, null 0+
    leader: str | None = ""  # 0+, null 0+
    current_state_timestamp: int = -1  # 2+
    members: list[MemberMetadata] = field(default_factory=list)  # 0+


class ConsumerGroupMetadataKey(Struct):
    """Key 3, versions 0, flexible: none."""

    group_id: str = ""  # 0


class ConsumerGroupMetadataValue(Struct):
    """Key 3, versions 0, flexible: 0+."""

    epoch: int = 0  # 0+
    metadata_hash: int = 0  # 0+, tag 0


class ConsumerGroupPartitionMetadataKey(Struct):
    """Key 4, versions 0, flexible: none."""

    group_id: str = ""  # 0


class PartitionMetadata(Struct):
    """Part of ConsumerGroupPartitionMetadataValue."""

    partition: int = 0  # 0+
    racks: list[str] = field(default_factory=list)  # 0+


class TopicMetadata(Struct):
    """Part of ConsumerGroupPartitionMetadataValue."""

    topic_id: bytes = ZERO_UUID  # 0+
    topic_name: str = ""  # 0+
    num_partitions: int = 0  # 0+
    partition_metadata: list[PartitionMetadata] = field(default_factory=list)  # 0+


class ConsumerGroupPartitionMetadataValue(Struct):
    """Key 4, versions 0, flexible: 0+."""

    topics: list[TopicMetadata] = field(default_factory=list)  # 0+


class ConsumerGroupMemberMetadataKey(Struct):
    """Key 5, versions 0, flexible: none."""

    group_id: str = ""  # 0
    member_id: str = ""  # 0


class ClassicProtocol(Struct):
    """Part of ConsumerGroupMemberMetadataValue."""

    name: str = ""  # 0+
    metadata: bytes = b""  # 0+


class ClassicMemberMetadata(Struct):
    """Part of ConsumerGroupMemberMetadataValue."""

    session_timeout_ms: int = 0  # 0+
    supported_protocols: list[ClassicProtocol] = field(default_factory=list)  # 0+


class ConsumerGroupMemberMetadataValue(Struct):
    """Key 5, versions 0, flexible: 0+."""

    instance_id: str | None = ""  # 0+, null 0+
    rack_id: str | None = ""  # 0+, null 0+
    client_id: str = ""  # 0+
    client_host: str = ""  # 0+
    subscribed_topic_names: list[str] = field(default_factory=list)  # 0+
    subscribed_topic_regex: str | None = ""  # 0+, null 0+
    rebalance_timeout_ms: int = -1  # 0+
    server_assignor: str | None = ""  # 0+, null 0+
    classic_member_metadata: ClassicMemberMetadata | None = field(
        default_factory=ClassicMemberMetadata
    )  # 0+, null 0+, tag 0


class ConsumerGroupTargetAssignmentMetadataKey(Struct):
    """Key 6, versions 0, flexible: none."""

    group_id: str = ""  # 0


class ConsumerGroupTargetAssignmentMetadataValue(Struct):
    """Key 6, versions 0, flexible: 0+."""

    assignment_epoch: int = 0  # 0+
    assignment_timestamp: int = 0  # 0+, tag 0


class ConsumerGroupTargetAssignmentMemberKey(Struct):
    """Key 7, versions 0, flexible: none."""

    group_id: str = ""  # 0
    member_id: str = ""  # 0


class ConsumerGroupTargetAssignmentMemberValueTopicPartition(Struct):
    """Part of ConsumerGroupTargetAssignmentMemberValue."""

    topic_id: bytes = ZERO_UUID  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+


class ConsumerGroupTargetAssignmentMemberValue(Struct):
    """Key 7, versions 0, flexible: 0+."""

    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValueTopicPartition] = field(default_factory=list)  # 0+


class ConsumerGroupCurrentMemberAssignmentKey(Struct):
    """Key 8, versions 0, flexible: none."""

    group_id: str = ""  # 0
    member_id: str = ""  # 0


class ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(Struct):
    """Part of ConsumerGroupCurrentMemberAssignmentValue."""

    topic_id: bytes = ZERO_UUID  # 0+
    partitions: list[int] = field(default_factory=list)  # 0+
    assignment_epochs: list[int] | None = field(default_factory=list)  # 0+, null 0+, tag 0


class ConsumerGroupCurrentMemberAssignmentValue(Struct):
    """Key 8, versions 0, flexible: 0+."""

    member_epoch: int = 0  # 0+
    previous_member_epoch: int = 0  # 0+
    state: int = 0  # 0+
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions] = field(
        default_factory=list
    )  # 0+
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions] = field(
        default_factory=list
    )  # 0+


class ConsumerGroupRegularExpressionKey(Struct):
    """Key 16, versions 0, flexible: none."""

    group_id: str = ""  # 0
    regular_expression: str = ""  # 0


class ConsumerGroupRegularExpressionValue(Struct):
    """Key 16, versions 0, flexible: 0+."""

    topics: list[str] = field(default_factory=list)  # 0+
    version: int = 0  # 0+
    timestamp: int = 0  # 0+


class TransactionLogKey(Struct):
    """Key 0, versions 0, flexible: none."""

    transactional_id: str = ""  # 0


class PartitionsSchema(Struct):
    """Part of TransactionLogValue."""

    topic: str = ""  # 0+
    partition_ids: list[int] = field(default_factory=list)  # 0+


class TransactionLogValue(Struct):
    """Key 0, versions 0-1, flexible: 1+."""

    producer_id: int = 0  # 0+
    previous_producer_id: int = -1  # 1+, tag 0
    next_producer_id: int = -1  # 1+, tag 1
    producer_epoch: int = 0  # 0+
    next_producer_epoch: int = -1  # 1+, tag 3
    transaction_timeout_ms: int = 0  # 0+
    transaction_status: int = 0  # 0+
    transaction_partitions: list[PartitionsSchema] | None = field(default_factory=list)  # 0+, null 0+
    transaction_last_update_timestamp_ms: int = 0  # 0+
    transaction_start_timestamp_ms: int = 0  # 0+
    client_transaction_version: int = 0  # 1+, tag 2
