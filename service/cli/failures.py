"""How a command ends: exit statuses, and the one line a failed command leaves on stderr.

Every command raises `CliError` for what a user can understand; nothing else may leave a command but our own mistakes.
The statuses are a promise to scripts and stand in `docs/cli.md`.
"""

from __future__ import annotations

import enum
from typing import IO, Any

import click

from service.wire.error_codes import ErrorCode


class Exit(enum.IntEnum):
    """The exit statuses of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    UNREACHABLE = 5
    CONDITION = 6
    OUTCOME_UNKNOWN = 7
    INTERRUPTED = 130


class CliError(click.ClickException):
    """A failure in one line, and the status to leave with."""

    def __init__(self, message: str, status: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.status = status

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"oncelog: {self.message}", err=True, file=file)


_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)
_AUTH = frozenset(
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
    """The name Kafka gives a code, or the bare number when it is newer than we are."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def exit_for(code: int) -> Exit:
    """The exit status a broker's error code stands for."""
    if code in _NOT_FOUND:
        return Exit.NOT_FOUND
    if code in _AUTH:
        return Exit.AUTH
    if code in _UNREACHABLE:
        return Exit.UNREACHABLE
    return Exit.FAILED


def refused(what: str, code: int, message: str | None = None) -> CliError:
    """The error for an answer that carried `code`; `what` names the thing asked for."""
    reason = f": {message}" if message else ""
    return CliError(f"{what}: {error_name(code)}{reason}", exit_for(code))
