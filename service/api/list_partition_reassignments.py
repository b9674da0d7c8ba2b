"""ListPartitionReassignments, version 0: the partitions that are being moved."""

from collections.abc import Awaitable

from service.broker.session import Session
from service.cluster.election import target_of
from service.cluster.image import Image
from service.cluster.metadata import ClusterMetadata
from service.turns import NAMED_A_TURN, Steps, Turn, now_or_in_turns
from service.wire.codec import RequestHeader
from service.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    metadata: ClusterMetadata, session: Session, header: RequestHeader, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse | Awaitable[ListPartitionReassignmentsResponse]:
    return now_or_in_turns(_ongoing(metadata.image, request))


def _ongoing(image: Image, request: ListPartitionReassignmentsRequest) -> Steps[ListPartitionReassignmentsResponse]:
    turn = Turn(NAMED_A_TURN)
    asked: dict[str, set[int]] | None = None
    if request.topics is not None:
        asked = {}
        for named in request.topics:
            if turn.is_over():
                yield
            asked.setdefault(named.name, set()).update(named.partition_indexes)
    topics = []
    for topic in image.topics.values():
        if turn.is_over():
            yield
        if asked is not None and topic.name not in asked:
            continue
        moving = []
        for index, state in topic.partitions.items():
            if turn.is_over():
                yield
            if (state.adding or state.removing) and (asked is None or index in asked[topic.name]):
                replicas = [*target_of(state), *state.removing]
                moving.append(OngoingPartitionReassignment(index, replicas, list(state.adding), list(state.removing)))
        if moving:
            topics.append(OngoingTopicReassignment(topic.name, moving))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)
