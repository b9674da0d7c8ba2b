"""IncrementalAlterConfigs, versions 0 and 1: sets or deletes single dynamic values of topics, groups and brokers, or
appends to them, or subtracts from them.
"""

from service.api.admin_answers import altered
from service.broker.session import Session
from service.cluster.config_commands import ConfigChange, ResourceChange
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import BrokerConfig
from service.wire.codec import RequestHeader
from service.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)


async def handle(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    session: Session,
    header: RequestHeader,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse:
    resources = tuple(_resource(resource) for resource in request.resources)
    answers = await altered(metadata, config, resources, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[IncrementalAlterConfigsResponseAlterConfigsResourceResponse(*answer) for answer in answers]
    )


def _resource(resource: IncrementalAlterConfigsRequestAlterConfigsResource) -> ResourceChange:
    changes = tuple(ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs)
    return ResourceChange(resource.resource_type, resource.resource_name, changes)
