"""DescribeUserScramCredentials, version 0: no user has credentials yet."""

from collections.abc import Awaitable

from service.broker.session import Session
from service.turns import Steps, Turn, counted, now_or_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

USERS_A_TURN = 100


def handle(
    session: Session, header: RequestHeader, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse | Awaitable[DescribeUserScramCredentialsResponse]:
    return now_or_in_turns(_described([user.name for user in request.users or ()]))


def _described(names: list[str]) -> Steps[DescribeUserScramCredentialsResponse]:
    results, turn = [], Turn(USERS_A_TURN)
    for name, times in (yield from counted(names)).items():
        error, why = ErrorCode.RESOURCE_NOT_FOUND, "a user credential that does not exist"
        if times > 1:
            error, why = ErrorCode.DUPLICATE_RESOURCE, "the same user twice in a single request"
        results.append(DescribeUserScramCredentialsResult(name, error, f"Attempt to describe {why}: {name}"))
        if turn.is_over():
            yield
    return DescribeUserScramCredentialsResponse(results=results)
