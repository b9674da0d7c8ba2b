"""AlterConfigs, versions 0 to 2: all dynamic values of a topic or broker anew; what is not named goes back to its
default. IncrementalAlterConfigs is the safer way.
"""

from service.api.admin_answers import executed
from service.broker.node import Broker
from service.broker.session import Session
from service.cluster.config_commands import AlterConfigs, ConfigChange, Operation, ResourceChange
from service.cluster.controller import Refusal
from service.wire.codec import RequestHeader
from service.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
)


async def handle(
    broker: Broker, session: Session, header: RequestHeader, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    resources = tuple(_resource(resource) for resource in request.resources)
    command = AlterConfigs(resources, broker.config, broker.node_id, request.validate_only)
    results = await executed(broker, command)
    if isinstance(results, Refusal):
        error, message = results.error, results.message
        answers = [(error, message, one.resource_type, one.resource_name) for one in request.resources]
    else:
        answers = [(one.error, one.message, one.kind, one.name) for one in results]
    return AlterConfigsResponse(
        responses=[AlterConfigsResponseAlterConfigsResourceResponse(*answer) for answer in answers]
    )


def _resource(resource: AlterConfigsRequestAlterConfigsResource) -> ResourceChange:
    changes = tuple(ConfigChange(config.name, Operation.SET, config.value) for config in resource.configs)
    return ResourceChange(resource.resource_type, resource.resource_name, changes, replace_all=True)
