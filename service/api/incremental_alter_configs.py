"""IncrementalAlterConfigs, versions 0 and 1: set, delete, append to or subtract from single dynamic values of topics
and brokers.
"""

from service.api.admin_answers import executed
from service.broker.node import Broker
from service.broker.session import Session
from service.cluster.config_commands import AlterConfigs, ConfigChange, ResourceChange
from service.cluster.controller import Refusal
from service.wire.codec import RequestHeader
from service.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)


async def handle(
    broker: Broker, session: Session, header: RequestHeader, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    resources = tuple(_resource(resource) for resource in request.resources)
    command = AlterConfigs(resources, broker.config, broker.node_id, request.validate_only)
    results = await executed(broker, command)
    if isinstance(results, Refusal):
        error, message = results.error, results.message
        answers = [(error, message, one.resource_type, one.resource_name) for one in request.resources]
    else:
        answers = [(one.error, one.message, one.kind, one.name) for one in results]
    return IncrementalAlterConfigsResponse(
        responses=[IncrementalAlterConfigsResponseAlterConfigsResourceResponse(*answer) for answer in answers]
    )


def _resource(resource: IncrementalAlterConfigsRequestAlterConfigsResource) -> ResourceChange:
    changes = tuple(ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs)
    return ResourceChange(resource.resource_type, resource.resource_name, changes)
