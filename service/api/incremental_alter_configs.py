"""IncrementalAlterConfigs, versions 0 and 1: sets or deletes single dynamic values of topics, groups and brokers, or
appends to them, or subtracts from them.
"""

from service.api.admin_answers import altered
from service.broker.session import Session
from service.cluster.config_commands import ConfigChange
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import BrokerConfig
from service.wire.codec import RequestHeader
from service.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from service.wire.messages import (
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse as IncrementalAlterConfigsRow,
)


async def handle(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    session: Session,
    header: RequestHeader,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse:
    rows = await altered(
        metadata,
        config,
        request.resources,
        lambda setting: ConfigChange(setting.name, setting.config_operation, setting.value),
        IncrementalAlterConfigsRow,
        validate_only=request.validate_only,
    )
    return IncrementalAlterConfigsResponse(responses=rows)
