"""DescribeHealth, version 0, an API of our own (key 20003): who answers here, what its clock says, where its HTTP API
is, what it finds wrong between itself and the rest of the cluster, and which of its data folders can't be written to or
hold what nobody uses.
"""

from collections.abc import Sequence

from service.broker.health import FAILED, FULL, UNUSED, Health
from service.broker.log_folder import LogFolder
from service.broker.session import Session
from service.cluster.metadata import ClusterMetadata
from service.ports import Env
from service.settings.broker import WEB
from service.wire.codec import RequestHeader
from service.wire.messages import DescribedTrouble, DescribeHealthRequest, DescribeHealthResponse


def handle(
    metadata: ClusterMetadata,
    env: Env,
    health: Health,
    folders: Sequence[LogFolder],
    session: Session,
    header: RequestHeader,
    request: DescribeHealthRequest,
) -> DescribeHealthResponse:
    troubles = [DescribedTrouble(each.kind, each.about, each.says) for each in health.troubles]
    for folder in folders:
        if folder.failed is not None:
            says = f"{folder.name} is out of service: a write or an fsync failed"
            troubles.append(DescribedTrouble(FAILED, folder.name, says))
        elif folder.headroom.is_short:
            says = f"{folder.name} is full: producers are refused until there is room"
            troubles.append(DescribedTrouble(FULL, folder.name, says))
        if folder.unused:
            says = (
                f"{folder.name} has {len(folder.unused)} folders that no partition uses, such as"
                f" {next(iter(folder.unused))}, with {sum(folder.unused.values()) >> 20} MiB in all"
            )
            troubles.append(DescribedTrouble(UNUSED, folder.name, says))
    own = metadata.image.brokers.get(metadata.broker_id)
    endpoint = None if own is None else own.endpoint(WEB)
    return DescribeHealthResponse(
        cluster_id=metadata.image.cluster_id,
        broker_id=metadata.broker_id,
        wall_ms=env.clock.wall_ms(),
        http_url="" if endpoint is None else endpoint.url,
        troubles=troubles,
    )
