"""ApiVersions, versions 0 to 4: the APIs and versions that this broker offers.

Produce is advertised from version 0 on although 0 to 2 are refused: if 0 is missing, librdkafka takes the broker for
one without compression (KAFKA-18659). The door answers an unknown version of ApiVersions in version 0, with
UNSUPPORTED_VERSION and our own range, so that the client can ask again. Features whose lowest level is 0 are named only
since version 4: Java's clients from 3.0 to 3.8 end with an exception when they read one (KAFKA-17011).
"""

import re
from collections.abc import Mapping

from service.broker.session import Session
from service.cluster.controller import FINALIZED_FEATURES
from service.cluster.metadata import ClusterMetadata
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from service.wire.messages.versions import ApiKey

SUPPORTED_FEATURES = {"group.version": (0, 1), "transaction.version": (0, 2)}
"""Lowest and highest level of each feature."""
KIP_511_SINCE = 3
LEVEL_0_SINCE = 4
Offered = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each API."""
SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(
    metadata: ClusterMetadata, offered: Offered, session: Session, header: RequestHeader, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    if header.api_version >= KIP_511_SINCE:
        names = request.client_software_name, request.client_software_version
        if not all(SOFTWARE_NAME.fullmatch(name) for name in names):
            return ApiVersionsResponse(ErrorCode.INVALID_REQUEST)
        session.software_name, session.software_version = names
    levels = metadata.image.features.levels or FINALIZED_FEATURES
    features = {name: (*bounds, levels.get(name, 0)) for name, bounds in SUPPORTED_FEATURES.items()}
    return ApiVersionsResponse(
        api_keys=api_keys(offered),
        supported_features=[
            SupportedFeatureKey(name, low, high)
            for name, (low, high, _) in features.items()
            if low or header.api_version >= LEVEL_0_SINCE
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name, level, level) for name, (_, _, level) in features.items() if level
        ],
    )


def api_keys(offered: Offered) -> list[ApiVersion]:
    return [ApiVersion(key, 0 if key == ApiKey.PRODUCE else low, high) for key, (low, high) in sorted(offered.items())]


def unsupported(offered: Offered) -> ApiVersionsResponse:
    """The answer, in version 0, to an unknown version. The caller needs only the range of ApiVersions itself."""
    low, high = offered[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [ApiVersion(ApiKey.API_VERSIONS, low, high)])
