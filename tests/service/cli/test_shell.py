"""The command itself: help, statuses of wrong calls, completion, how fast it starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from service.cli.root import COMMANDS, cli
from service.settings.sources import load_config
from tests.service.cli.kit import ROOT, oncelog, process


def test_help_names_every_command() -> None:
    ended = oncelog("--help")
    assert ended.status == 0
    for name, (_, text) in COMMANDS.items():
        assert f"{name} " in ended.out
        assert text in ended.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_opens_its_help_with_the_text_of_the_list(name: str) -> None:
    ended = oncelog(name, "--help")
    assert ended.status == 0
    assert COMMANDS[name][1] in ended.out


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("topic", "nonsense"), ("topic", "describe"), ("topic", "ls", "-o", "xml")]
)
def test_a_wrong_call_ends_with_2(arguments: tuple[str, ...]) -> None:
    ended = oncelog(*arguments)
    assert ended.status == 2
    assert ended.out == ""


def test_no_broker_ends_with_5_in_one_line() -> None:
    ended = oncelog("topic", "ls", "-b", "127.0.0.1:1")
    assert ended.status == 5
    why = "Connection refused; oncelog serve starts a broker, -b HOST:PORT says where one is"
    assert ended.err == f"oncelog: no broker at 127.0.0.1:1: {why}\n"


@pytest.mark.parametrize("address", ["localhost:http", "localhost:99999", "localhost:0", "http://localhost:9092"])
def test_an_address_that_is_none_is_a_wrong_call(address: str) -> None:
    ended = oncelog("topic", "ls", "-b", address)
    assert ended.status == 2
    assert "is not HOST:PORT" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "x", "-p", str(2**31)),
        ("topic", "create", "x", "-r", "40000"),
        ("topic", "partitions", "x", str(2**31)),
        ("txn", "ls", "--producer-id", "9" * 26),
        ("txn", "ls", "--longer-than", "106751991168d"),
        ("txn", "watch", "--every", "nan"),
        ("top", "--every", "nan"),
        ("topic", "ls", "--timeout", "nan"),
        ("topic", "ls", "--timeout", "0"),
        ("topic", "ls", "--timeout", "-1"),
        ("topic", "ls", "--timeout", "inf"),
        ("group", "reset", "", "-t", "orders", "--to", "earliest", "--yes"),
        ("consume", "orders", "--group", ""),
    ],
)
def test_what_no_broker_could_be_asked_for_is_a_wrong_call(arguments: tuple[str, ...]) -> None:
    """And shows no traceback, nor waits for anything: there is no broker here."""
    ended = oncelog(*arguments, "-b", "127.0.0.1:1")
    assert ended.status == 2, ended
    assert ended.err.startswith("Usage: oncelog ")


def test_who_says_both_is_told_so() -> None:
    reassign = ("topic", "reassign", "orders", "-b", "127.0.0.1:1")
    assert "or --brokers, one of them." in oncelog(*reassign).err
    assert "or --brokers, not both" in oncelog(*reassign, "--brokers", "1", "--replication-factor", "1").err


def test_destroying_without_a_terminal_wants_yes() -> None:
    """And asks before it speaks to any broker: there is none here."""
    ended = oncelog("topic", "delete", "orders", "-b", "127.0.0.1:1")
    assert ended.status == 2
    assert "--yes" in ended.err


def test_the_list_of_commands_loads_no_more_than_click() -> None:
    """What a person feels at every press of the return key. Measured: 80 ms, of which click is 35."""
    code = "import sys, service.cli; print(*(n for n in sys.modules if n.split('.')[0] in sys.argv[1:]))"
    heavy = ["asyncio", "rich", "sqlalchemy", "uvloop", "zstandard", "log", "idempotence"]
    loaded = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, cwd=ROOT, check=True).stdout
    assert loaded.split() == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    ended = oncelog("completion", shell)
    assert ended.status == 0
    assert "_ONCELOG_COMPLETE" in ended.out


def _complete(words: str, **environment: str) -> list[str]:
    """What bash would be told for the last word."""
    ended = process(
        _ONCELOG_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1), **environment
    )
    assert ended.status == 0
    return [line.partition(",")[2] for line in ended.out.splitlines() if line]


def test_commands_are_completed() -> None:
    assert _complete("oncelog co") == ["consume", "config", "completion"]
    assert _complete("oncelog topic d") == ["delete", "describe"]


def test_settings_are_completed() -> None:
    assert _complete("oncelog config explain log.dur") == ["log.durability"]


def test_completion_without_a_broker_offers_nothing_and_fails_not() -> None:
    assert _complete("oncelog topic describe o", ONCELOG_BOOTSTRAP="127.0.0.1:1") == []


def test_every_setting_can_be_explained() -> None:
    names = [described.name for described in load_config(None, {}).describe()]
    ended = oncelog("config", "explain", *names, "-o", "json")
    assert ended.status == 0
    assert {row["name"] for row in ended.json()} == set(names)
    assert all(row["meaning"] for row in ended.json())


def test_a_misspelt_setting_is_not_found_and_a_better_one_offered() -> None:
    ended = oncelog("config", "explain", "retntion.ms")
    assert ended.status == 3
    assert "did you mean retention.ms" in ended.err


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def test_every_command_can_answer_in_json() -> None:
    """`-o` of `serve` and of `consume` is a setting, or an offset, too: `-o json` means the same there."""
    without = {("completion",), ("config", "docs"), ("demo",)}  # a script, a page, and what is tried by hand
    for path, command in leaves(cli):
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("-o" in options) != (path in without), path
