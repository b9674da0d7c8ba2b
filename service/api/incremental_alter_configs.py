"""IncrementalAlterConfigs, versions 0 and 1: sets or deletes single dynamic values of topics, groups and brokers, or
appends to them, or subtracts from them.
"""

from collections.abc import Collection

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
    return await alter(metadata, config, request)


async def alter(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    request: IncrementalAlterConfigsRequest,
    expected: Collection[str] | None = None,
) -> IncrementalAlterConfigsResponse:
    """`expected`, which the wire can't say: only if the settings are of one of these versions."""
    rows = await altered(
        metadata,
        config,
        request.resources,
        lambda setting: ConfigChange(setting.name, setting.config_operation, setting.value),
        IncrementalAlterConfigsRow,
        validate_only=request.validate_only,
        expected=expected,
    )
    return IncrementalAlterConfigsResponse(responses=rows)
