"""AlterPartitionReassignments, versions 0 and 1 (1: whether the number of replicas may change). Every broker accepts
it.
"""

from log.ids import TopicPartition
from service.api.admin_answers import executed
from service.broker.session import Session
from service.cluster.controller import Refusal
from service.cluster.metadata import ClusterMetadata
from service.cluster.reassign_commands import PartitionResult, Reassign
from service.wire.codec import RequestHeader
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    metadata: ClusterMetadata, session: Session, header: RequestHeader, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    wanted = tuple(
        (TopicPartition(topic.name, one.partition_index), None if one.replicas is None else tuple(one.replicas))
        for topic in request.topics
        for one in topic.partitions
    )
    results = await executed(
        metadata, Reassign(wanted, request.allow_replication_factor_change, metadata.min_in_sync())
    )
    if isinstance(results, Refusal):
        return AlterPartitionReassignmentsResponse(error_code=results.error, error_message=results.message)
    topics: dict[str, list[PartitionResult]] = {}
    for result in results:
        topics.setdefault(result.partition.topic, []).append(result)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name,
                [ReassignablePartitionResponse(one.partition.partition, one.error, one.message) for one in each],
            )
            for name, each in topics.items()
        ],
    )
