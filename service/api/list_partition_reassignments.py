"""ListPartitionReassignments, version 0: the partitions that are being moved."""

from service.broker.session import Session
from service.cluster.election import target_of
from service.cluster.metadata import ClusterMetadata
from service.wire.codec import RequestHeader
from service.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    metadata: ClusterMetadata, session: Session, header: RequestHeader, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    image = metadata.image
    asked = None if request.topics is None else {topic.name: topic.partition_indexes for topic in request.topics}
    topics = []
    for topic in image.topics.values():
        if asked is not None and topic.name not in asked:
            continue
        moving = [
            OngoingPartitionReassignment(
                index, [*target_of(state), *state.removing], list(state.adding), list(state.removing)
            )
            for index, state in topic.partitions.items()
            if (state.adding or state.removing) and (asked is None or index in asked[topic.name])
        ]
        if moving:
            topics.append(OngoingTopicReassignment(topic.name, moving))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)
