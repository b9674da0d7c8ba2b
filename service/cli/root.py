"""The command `oncelog`: a table of its commands, each in a module that is imported when it is called for.

`oncelog --help` and the start of `oncelog serve` are felt by people, so nothing is imported here that every command
does not need. What holds for all commands stands here: ctrl-C leaves with 130, a reader that went away ends quietly.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

INTERRUPTED = 130

# name: (module, what the list of commands says). The same text opens the command's own help.
COMMANDS = {
    "serve": ("serve", "Run a broker, with everything it needs in one folder."),
    "demo": ("demo", "Run a whole cluster to try things on, and clean up after it."),
    "cluster": ("cluster", "Look at the brokers of a cluster, and move what they hold."),
    "broker": ("broker", "Look at single brokers: their disks, their settings."),
    "topic": ("topic", "List, create, change and delete topics."),
    "produce": ("produce", "Write records to a topic, a line each."),
    "consume": ("consume", "Print the records of topics."),
    "doctor": ("doctor", "Check a cluster: what is wrong, and what to do about it."),
    "top": ("top", "Show live which topics grow, how far groups are, and what waits."),
    "group": ("group", "Look at consumer groups, their lag, and move their offsets."),
    "txn": ("txn", "Look into transactions, find and end what holds up readers."),
    "config": ("config", "Read, set, compare and explain settings."),
    "log": ("log_files", "Look into a stopped broker's log files."),
    "completion": ("completion", "Print what makes a shell complete oncelog's commands."),
}


class ReaderLeft(Exception):
    """The reader of our output has gone."""


class LazyGroup(click.Group):
    """A group whose commands are imported at the moment one is called."""

    def invoke(self, ctx: click.Context) -> Any:
        # Left to itself, click ends with 1 for both, as if something had failed.
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderLeft from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"service.cli.{COMMANDS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table instead of from the modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version  # 20 ms that no other command should pay

    click.echo(f"oncelog {version('oncelog')}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="oncelog COMMAND --help tells more of each.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """An exactly-once event store whose brokers speak the Kafka wire protocol."""


def say_and_leave(text: str, status: int) -> None:
    """At once, even from within a write to the same file."""
    os.write(2, f"oncelog: {text}\n".encode())
    os._exit(status)


def leave_start(*_: object) -> None:
    """A broker that starts has promised nobody anything yet, and its logs may take minutes to read."""
    say_and_leave("stopped while starting", 0)


def main(arguments: list[str] | None = None, **extra: Any) -> None:
    """Run one command and leave the process with its status."""
    if arguments is None and sys.argv[1:2] == ["serve"]:  # before all that takes long, first of all imports
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, leave_start)
    try:
        status = cli.main(arguments, prog_name="oncelog", standalone_mode=False, **extra)
        sys.stdout.flush()
    except click.Abort:
        status = INTERRUPTED
    except click.ClickException as error:
        error.show()
        status = getattr(error, "status", error.exit_code)
    except (ReaderLeft, BrokenPipeError):
        # `oncelog consume … | head` is satisfied, not broken. What is left in the buffer has nowhere to go, and the
        # interpreter would complain about it on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status if isinstance(status, int) else 0)
