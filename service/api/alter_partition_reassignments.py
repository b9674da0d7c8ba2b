"""AlterPartitionReassignments, versions 0 and 1 (1: whether the number of replicas may change). Every broker accepts
it.
"""

from log.ids import TopicPartition
from service.api.admin_answers import executed
from service.broker.session import Session
from service.cluster.controller import Refusal
from service.cluster.metadata import ClusterMetadata
from service.cluster.reassign_commands import Reassign
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns
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
    seen = metadata.image
    wanted = await done_in_turns(_wanted(request))
    command = Reassign(wanted, request.allow_replication_factor_change, metadata.min_in_sync(), seen)
    results = await executed(metadata, command)
    if isinstance(results, Refusal):
        return AlterPartitionReassignmentsResponse(error_code=results.error, error_message=results.message)
    topics: dict[str, list[ReassignablePartitionResponse]] = {}
    async for result in in_turns(results, NAMED_A_TURN):
        told = ReassignablePartitionResponse(result.partition.partition, result.error, result.message)
        topics.setdefault(result.partition.topic, []).append(told)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(name, each) async for name, each in in_turns(topics.items(), NAMED_A_TURN)
        ],
    )


def _wanted(
    request: AlterPartitionReassignmentsRequest,
) -> Steps[tuple[tuple[TopicPartition, tuple[int, ...] | None], ...]]:
    turn = Turn(NAMED_A_TURN)
    wanted = []
    for topic in request.topics:
        if turn.is_over():
            yield
        for one in topic.partitions:
            if turn.is_over():
                yield
            replicas = None if one.replicas is None else tuple(one.replicas)
            wanted.append((TopicPartition(topic.name, one.partition_index), replicas))
    return tuple(wanted)
