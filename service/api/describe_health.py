"""DescribeHealth, version 0, an API of our own (key 20003): who answers here, what its clock says, and what it finds
wrong between itself and the rest of the cluster.
"""

from service.broker.health import Health
from service.broker.session import Session
from service.cluster.metadata import ClusterMetadata
from service.ports import Env
from service.wire.codec import RequestHeader
from service.wire.messages import DescribedTrouble, DescribeHealthRequest, DescribeHealthResponse


def handle(
    metadata: ClusterMetadata,
    env: Env,
    health: Health,
    session: Session,
    header: RequestHeader,
    request: DescribeHealthRequest,
) -> DescribeHealthResponse:
    return DescribeHealthResponse(
        cluster_id=metadata.image.cluster_id,
        broker_id=metadata.broker_id,
        wall_ms=env.clock.wall_ms(),
        troubles=[DescribedTrouble(each.kind, each.about, each.says) for each in health.troubles],
    )
