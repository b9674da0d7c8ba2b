"""How a command ends: exit statuses, and the one line on stderr when it fails.

A command raises `CliError` for what a user can understand. A failure of the client becomes one in
`service.cli.connect`. Any other exception is a defect of ours. The statuses are a promise to scripts; `docs/cli.md`
lists them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import IO, Any

import click

from service.cli.output import visible
from service.client.failures import ClientFailure, FailureKind


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


_EXIT_OF = {
    FailureKind.REFUSED: Exit.FAILED,
    FailureKind.NOT_FOUND: Exit.NOT_FOUND,
    FailureKind.NOT_AUTHORIZED: Exit.AUTH,
    FailureKind.UNREACHABLE: Exit.UNREACHABLE,
    FailureKind.OUTCOME_UNKNOWN: Exit.OUTCOME_UNKNOWN,
}


class CliError(click.ClickException):
    """A failure in one line, or in one for each of several problems, and its exit status."""

    def __init__(self, message: str, status: Exit = Exit.FAILED, *, more: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.more = more

    @classmethod
    def of(cls, failure: ClientFailure) -> CliError:
        return cls(failure.message, _EXIT_OF[failure.kind])

    def show(self, file: IO[Any] | None = None) -> None:
        for line in (self.message, *self.more):
            click.echo(f"oncelog: {visible(line)}", err=True, file=file)
