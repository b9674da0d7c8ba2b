"""AlterConfigs, versions 0 to 2: replaces all dynamic values of a topic, group or broker. Keys that are not named go
back to their defaults. IncrementalAlterConfigs is the safer way.
"""

from service.api.admin_answers import altered
from service.broker.session import Session
from service.cluster.config_commands import ConfigChange, Operation, ResourceChange
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import BrokerConfig
from service.wire.codec import RequestHeader
from service.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
)


async def handle(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    session: Session,
    header: RequestHeader,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse:
    resources = tuple(_resource(resource) for resource in request.resources)
    answers = await altered(metadata, config, resources, validate_only=request.validate_only)
    return AlterConfigsResponse(
        responses=[AlterConfigsResponseAlterConfigsResourceResponse(*answer) for answer in answers]
    )


def _resource(resource: AlterConfigsRequestAlterConfigsResource) -> ResourceChange:
    changes = tuple(ConfigChange(config.name, Operation.SET, config.value) for config in resource.configs)
    return ResourceChange(resource.resource_type, resource.resource_name, changes, replace_all=True)
