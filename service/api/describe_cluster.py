"""DescribeCluster, versions 0 to 2 (1: which kind of endpoint is meant, 2: fenced brokers).

There are no controller endpoints and no fenced brokers. Brokers that are not registered are not known.
"""

from service.api.admin_answers import CLUSTER_OPERATIONS, UNASKED
from service.broker.session import Session
from service.cluster.metadata import ClusterMetadata
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2


def handle(
    metadata: ClusterMetadata, session: Session, header: RequestHeader, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return DescribeClusterResponse(error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, error_message=message)
    if request.endpoint_type != BROKERS:
        message = f"Unsupported endpoint type {request.endpoint_type}"
        return DescribeClusterResponse(error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=message)
    image = metadata.image
    brokers = []
    for member in image.brokers.values():
        if (endpoint := member.endpoint(session.listener)) is not None:
            brokers.append(DescribeClusterBroker(member.id, endpoint.host, endpoint.port, member.rack))
    asked = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=brokers,
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else UNASKED,
    )
