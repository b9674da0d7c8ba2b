"""Failures of a client's requests: one line of text for a person, and a kind for a program."""

from __future__ import annotations

from enum import Enum

from service.wire.error_codes import ErrorCode


class FailureKind(Enum):
    """The kind of a failure says what a caller can do about it."""

    REFUSED = "refused"
    """The cluster said no. The same request will be refused again."""
    NOT_FOUND = "not found"
    NOT_AUTHORIZED = "not authorized"
    UNREACHABLE = "unreachable"
    """No broker answered, or none that could decide. The same request may work later."""
    OUTCOME_UNKNOWN = "outcome unknown"
    """The answer was lost: what was asked for may have been done or not."""


class ClientFailure(Exception):
    """What was asked for was not done, or it is unknown whether it was."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.REFUSED, *, may_come_late: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.may_come_late = may_come_late
        """The request was sent, and no answer came: it may be carried out at any time."""


_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)
_NOT_AUTHORIZED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ErrorCode.ILLEGAL_SASL_STATE,
    }
)
_UNREACHABLE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


def error_name(code: int) -> str:
    """Kafka's name of an error code, or the number if the code is unknown here."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def kind_of(code: int) -> FailureKind:
    """What kind of failure a broker's error code stands for."""
    if code in _NOT_FOUND:
        return FailureKind.NOT_FOUND
    if code in _NOT_AUTHORIZED:
        return FailureKind.NOT_AUTHORIZED
    if code in _UNREACHABLE:
        return FailureKind.UNREACHABLE
    return FailureKind.REFUSED


def refused(what: str, code: int, message: str | None = None) -> ClientFailure:
    """The failure for an answer that carried `code`; `what` names the thing asked for."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and what.startswith("topic "):
        return ClientFailure(f"{what} does not exist", kind_of(code))
    reason = f": {message}" if message else ""
    return ClientFailure(f"{what}: {error_name(code)}{reason}", kind_of(code))
