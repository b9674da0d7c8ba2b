# ruff: noqa: E501 - pages of Markdown
"""The references of commands and of HTTP operations, as pages of the documentation:

    python -m service.cli.reference commands > docs/commands.md
    python -m service.cli.reference http > docs/http-reference.md

`make docs` does both; tests hold the pages to the code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

import click

from service.cli.root import cli

COMMANDS_HEAD = """\
# Commands

Written by `make docs` from the commands themselves. What a script may rely on, fields and exit statuses, is in [the command line](cli.md).
"""
HTTP_HEAD = """\
# HTTP operations

Written by `make docs` from the table of routes. [The HTTP API](http.md) tells how to use them; every broker serves the same as `/docs`, and for programs as `/openapi.json`.
"""
CONNECTION = ("bootstrap", "timeout")
"""Options of every command that asks a broker."""


def commands() -> str:
    parts = [COMMANDS_HEAD]
    for path, command in _commands(cli, ("oncelog",), click.Context(cli)):
        context = click.Context(command, info_name=" ".join(path))
        parts.append(f"\n## {' '.join(path)}\n\n{_paragraphs(command.help or '')}\n\n")
        parts.append(f"```text\n{' '.join([*path, *command.collect_usage_pieces(context)])}\n```\n")
        rows = [row for option in command.params if (row := _row(option, context)) is not None]
        if rows:
            parts.append("\n| option | |\n|---|---|\n" + "".join(rows))
    return "".join(parts)


def _commands(
    group: click.Group, path: tuple[str, ...], context: click.Context
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name), context)
        else:
            yield (*path, name), command


def _row(option: click.Parameter, context: click.Context) -> str | None:
    if not isinstance(option, click.Option) or option.hidden or option.name in CONNECTION:
        return None
    record = option.get_help_record(context)
    return None if record is None else f"| `{_cell(record[0])}` | {_cell(record[1])} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> str:
    """The paragraphs of a help text. Where click keeps lines as they are stand commands to type."""
    parts = re.split(r"\n\n+", inspect.cleandoc(text))
    return "\n\n".join(f"```sh\n{part[2:]}\n```" if part.startswith("\b\n") else part for part in parts)


def http() -> str:
    from service.web.app import TABLES
    from service.web.openapi import path_of
    from service.web.problems import PROBLEMS

    parts = [HTTP_HEAD]
    by_tag: dict[str, list[str]] = {}
    for route in (route for table in TABLES for route in table if route.documented):
        asked = ", ".join(
            f"`{each.name}`" + (" (header)" if each.place == "header" else "") for each in route.parameters
        )
        row = f"| `{route.method} {path_of(route)}` | {_cell(route.summary)} | {asked} |\n"
        by_tag.setdefault(route.tag, []).append(row)
    for tag, rows in by_tag.items():
        parts.append(f"\n## {tag}\n\n| operation | does | parameters |\n|---|---|---|\n{''.join(rows)}")
    problems = "".join(f"| `{slug}` | {kind.status} | {_cell(kind.title)} |\n" for slug, kind in PROBLEMS.items())
    parts.append(f"\n## Problems\n\n| problem | status | |\n|---|--:|---|\n{problems}")
    return "".join(parts)


if __name__ == "__main__":
    print({"commands": commands, "http": http}[sys.argv[1]](), end="")
