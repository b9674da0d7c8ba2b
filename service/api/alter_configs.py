"""AlterConfigs, versions 0 to 2: replaces all dynamic values of a topic, group or broker. Keys that are not named go
back to their defaults. IncrementalAlterConfigs is the safer way.
"""

from service.api.admin_answers import altered
from service.broker.session import Session
from service.cluster.config_commands import ConfigChange, Operation
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import BrokerConfig
from service.wire.codec import RequestHeader
from service.wire.messages import AlterConfigsRequest, AlterConfigsResponse
from service.wire.messages import AlterConfigsResponseAlterConfigsResourceResponse as AlterConfigsRow


async def handle(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    session: Session,
    header: RequestHeader,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse:
    rows = await altered(
        metadata,
        config,
        request.resources,
        lambda setting: ConfigChange(setting.name, Operation.SET, setting.value),
        AlterConfigsRow,
        validate_only=request.validate_only,
        replace_all=True,
    )
    return AlterConfigsResponse(responses=rows)
