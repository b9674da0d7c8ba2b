"""DescribeUserScramCredentials, version 0: no user has credentials yet."""

from collections import Counter

from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    session: Session, header: RequestHeader, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    results = []
    for name, times in Counter(user.name for user in request.users or ()).items():
        error, why = ErrorCode.RESOURCE_NOT_FOUND, "a user credential that does not exist"
        if times > 1:
            error, why = ErrorCode.DUPLICATE_RESOURCE, "the same user twice in a single request"
        results.append(DescribeUserScramCredentialsResult(name, error, f"Attempt to describe {why}: {name}"))
    return DescribeUserScramCredentialsResponse(results=results)
