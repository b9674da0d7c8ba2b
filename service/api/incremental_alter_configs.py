"""IncrementalAlterConfigs, versions 0 and 1: sets or deletes single dynamic values of topics, groups and brokers, or
appends to them, or subtracts from them.
"""

from service.api.admin_answers import altered
from service.broker.session import Session
from service.cluster.config_commands import ConfigChange, ResourceChange
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns
from service.wire.codec import RequestHeader
from service.wire.messages import (
    IncrementalAlterConfigsRequest,
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
    resources = await done_in_turns(_resources(request))
    answers = await altered(metadata, config, resources, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(*answer)
            async for answer in in_turns(answers, NAMED_A_TURN)
        ]
    )


def _resources(request: IncrementalAlterConfigsRequest) -> Steps[tuple[ResourceChange, ...]]:
    turn = Turn(NAMED_A_TURN)
    resources = []
    for resource in request.resources:
        if turn.is_over():
            yield
        changes = []
        for config in resource.configs:
            if turn.is_over():
                yield
            changes.append(ConfigChange(config.name, config.config_operation, config.value))
        resources.append(ResourceChange(resource.resource_type, resource.resource_name, tuple(changes)))
    return tuple(resources)
