"""AlterConfigs, versions 0 to 2: replaces all dynamic values of a topic, group or broker. Keys that are not named go
back to their defaults. IncrementalAlterConfigs is the safer way.
"""

from service.api.admin_answers import altered
from service.broker.session import Session
from service.cluster.config_commands import ConfigChange, Operation, ResourceChange
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns
from service.wire.codec import RequestHeader
from service.wire.messages import (
    AlterConfigsRequest,
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
    resources = await done_in_turns(_resources(request))
    answers = await altered(metadata, config, resources, validate_only=request.validate_only)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponseAlterConfigsResourceResponse(*answer)
            async for answer in in_turns(answers, NAMED_A_TURN)
        ]
    )


def _resources(request: AlterConfigsRequest) -> Steps[tuple[ResourceChange, ...]]:
    turn = Turn(NAMED_A_TURN)
    resources = []
    for resource in request.resources:
        if turn.is_over():
            yield
        changes = []
        for config in resource.configs:
            if turn.is_over():
                yield
            changes.append(ConfigChange(config.name, Operation.SET, config.value))
        resources.append(
            ResourceChange(resource.resource_type, resource.resource_name, tuple(changes), replace_all=True)
        )
    return tuple(resources)
