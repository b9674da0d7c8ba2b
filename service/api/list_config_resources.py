"""ListConfigResources, versions 0 and 1 (0: client metrics, of which there are none): every resource that has settings,
by kind.
"""

from service.broker.session import Session
from service.cluster.config_commands import ResourceType
from service.cluster.metadata import ClusterMetadata
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse


def handle(
    metadata: ClusterMetadata, session: Session, header: RequestHeader, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    known = [int(kind) for kind in ResourceType]
    wanted = [ResourceType.CLIENT_METRICS] if header.api_version == 0 else request.resource_types or known
    if any(kind not in known for kind in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = metadata.image
    brokers = [str(broker_id) for broker_id in image.brokers]
    names = {
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.BROKER: brokers,
        ResourceType.TOPIC: list(image.topics),
        ResourceType.GROUP: [name for name, config in image.group_configs.items() if config.values],
    }
    resources = [ConfigResource(name, kind) for kind, of_kind in names.items() if kind in wanted for name in of_kind]
    return ListConfigResourcesResponse(config_resources=resources)
