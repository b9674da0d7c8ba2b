"""What commands print: a table for people, tab-separated lines for pipes, JSON for programs.

A command hands over rows, frozen dataclasses whose fields are the JSON schema (`docs/cli.md` lists them). What is
printed to stdout is the answer and nothing else; progress and remarks go to stderr. Every command that answers with
rows calls `show` or `show_one`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

if TYPE_CHECKING:
    import rich.progress
    from _typeshed import DataclassInstance

# Rows of which a streamed table measures its columns anew.
PIECE_ROWS = 500
# Work that takes no longer gets no bar.
QUICK_S = 1.0

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}

F = TypeVar("F", bound=Callable[..., Any])


class Output(enum.Enum):
    """The formats of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    TSV = "tsv"
    JSON = "json"
    NDJSON = "ndjson"
    YAML = "yaml"
    NAME = "name"


def default_output() -> Output:
    return Output.TABLE if sys.stdout.isatty() else Output.TSV


def _chosen(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Output:
    return Output(value) if value else default_output()


output_option: Callable[[F], F] = click.option(
    "-o",
    "--output",
    type=click.Choice([each.value for each in Output]),
    callback=_chosen,
    help="How to print the answer. Default: a table on a terminal, tsv (no header) into a pipe.",
)


def _chosen_or_none(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Output | None:
    return Output(value) if value else None


report_option: Callable[[F], F] = click.option(
    "-o",
    "--output",
    type=click.Choice([each.value for each in Output]),
    callback=_chosen_or_none,
    help="Print what was done, like this. Default: nothing.",
)
"""For commands that change something and have nothing to say unless they are asked."""


def show(
    rows: Sequence[DataclassInstance], output: Output, *, columns: Sequence[str], wide: Sequence[str] = ()
) -> None:
    """Print rows. `columns` are what a table and tsv show, `wide` what `-o wide` adds; JSON has every field."""
    match output:
        case Output.JSON:
            click.echo(_json([dataclasses.asdict(row) for row in rows], indent=2))
        case Output.NDJSON:
            for row in rows:
                click.echo(_json(dataclasses.asdict(row)))
        case Output.YAML:
            click.echo(to_yaml([dataclasses.asdict(row) for row in rows]))
        case Output.NAME:
            for row in rows:
                _echo_name(getattr(row, columns[0]))
        case Output.TSV:
            for row in rows:
                click.echo("\t".join(_tsv_cell(getattr(row, column)) for column in columns))
        case Output.TABLE:
            _print_table(rows, columns)
        case Output.WIDE:
            _print_table(rows, [*columns, *wide])


def show_one(row: DataclassInstance, output: Output, *, name: str, nested: Sequence[str] = ()) -> None:
    """Print one thing, a field a line. `name` is the field that `-o name` prints, `nested` fields are for JSON only."""
    fields = [field.name for field in dataclasses.fields(row) if field.name not in nested]
    match output:
        case Output.JSON:
            click.echo(_json(dataclasses.asdict(row), indent=2))
        case Output.NDJSON:
            click.echo(_json(dataclasses.asdict(row)))
        case Output.YAML:
            click.echo(to_yaml(dataclasses.asdict(row)))
        case Output.NAME:
            _echo_name(getattr(row, name))
        case Output.TSV:
            for field in fields:
                click.echo(f"{field}\t{_tsv_cell(getattr(row, field))}")
        case Output.TABLE | Output.WIDE:
            width = max(map(len, fields)) + 1
            for field in fields:
                click.echo(f"{_title(field) + ':':<{width}} {_table_cell(getattr(row, field))}")


def to_yaml(document: object, indent: str = "") -> str:
    """A document in YAML's block style. Texts are quoted as in JSON, which YAML contains, so that none is taken for
    something else.
    """
    if isinstance(document, list) and document:
        inner = indent + "  "
        return "\n".join(f"{indent}- {to_yaml(item, inner).removeprefix(inner)}" for item in document)
    if isinstance(document, dict) and document:
        lines = []
        for key, value in document.items():
            nested = isinstance(value, dict | list) and bool(value)
            shown = "\n" + to_yaml(value, indent + "  ") if nested else " " + to_yaml(value)
            lines.append(f"{indent}{_yaml_key(key)}:{shown}")
        return "\n".join(lines)
    return _json(document)


def _yaml_key(key: str) -> str:
    return key if re.fullmatch(r"[a-z_]+", key) else _json(key)


def confirm(question: str, *, yes: bool) -> None:
    """Return when the user agrees. A script agrees beforehand, with --yes."""
    from service.cli.failures import CliError, Exit

    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{question} Add --yes to do it without being asked.", Exit.USAGE)
    if not click.confirm(question, err=True):
        raise CliError("nothing was changed")


@contextlib.contextmanager
def perhaps_unread() -> Iterator[None]:
    """What is printed before something is done that was agreed to: if its reader leaves, the work goes on."""
    try:
        yield
    except BrokenPipeError:
        for stream in sys.stdout, sys.stderr:
            try:
                stream.flush()
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


yes_option: Callable[[F], F] = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")


def remark(text: str) -> None:
    """Tell a person at a terminal what happened; a pipe or a log hears nothing."""
    if sys.stderr.isatty():
        click.echo(visible(text), err=True)


def visible(text: str) -> str:
    """The text with what can't be seen in it written as in JSON: names come from anybody, and may hold what commands a
    terminal or turns a line around.
    """
    return _UNSEEN.sub(lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}", text)


def _json(document: object, indent: int | None = None) -> str:
    lines = json.dumps(document, indent=indent, ensure_ascii=False).split("\n")
    return "\n".join(map(visible, lines))


def _echo_name(name: str) -> None:
    """A program gets the name itself, to the letter: click takes it for coloured otherwise, and takes parts away."""
    click.echo(visible(name) if sys.stdout.isatty() else name, color=True)


def _title(field: str) -> str:
    return field.replace("_", " ").upper()


def _table_cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return visible(_joined(value)) or "-"


def _tsv_cell(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A tab or a line break inside a value would shift every column behind it.
    return visible(_joined(value).replace("\\", "\\\\"))


def _joined(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def _print_table(rows: Sequence[DataclassInstance], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        numbers = bool(rows) and all(type(getattr(row, column)) in (int, NoneType) for row in rows)
        table.add_column(_title(column), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_table_cell(getattr(row, column))) for column in columns))
    width = None if sys.stdout.isatty() else 1000
    Console(file=sys.stdout, width=width, soft_wrap=width is not None, highlight=False).print(table)


def show_stream(
    rows: Iterable[DataclassInstance], output: Output, *, columns: Sequence[str], wide: Sequence[str] = ()
) -> None:
    """Like `show`, for more rows than one wants to hold. A table is printed in pieces."""
    if output is Output.JSON:
        separator = "["
        for row in rows:
            click.echo(separator + "\n" + _json(dataclasses.asdict(row)), nl=False)
            separator = ","
        click.echo("[]" if separator == "[" else "\n]")
        return
    iterator = iter(rows)
    while piece := list(itertools.islice(iterator, PIECE_ROWS)):
        show(piece, output, columns=columns, wide=wide)


class Progress:
    """How far a long piece of work has come, for a person at a terminal; nobody else sees it, and no quick work shows
    it. `total`: how much there is to do, None where nobody knows; in bytes, or in records.
    """

    def __init__(self, title: str, total: int | None, *, records: bool = False, wanted: bool = True) -> None:
        self._title = title
        self.total = total  # may be learned later
        self._records = records
        self._wanted = wanted and sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._done = 0
        self._bar: rich.progress.Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int) -> None:
        self._done += done
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done)
        elif self._wanted and time.monotonic() - self._began_s > QUICK_S:
            self._bar = self._start()

    def _start(self) -> rich.progress.Progress:
        import rich.progress
        from rich.console import Console

        columns: list[rich.progress.ProgressColumn] = [rich.progress.TextColumn("{task.description}")]
        if self.total is not None:
            columns.append(rich.progress.BarColumn())
        if self._records:
            columns.append(rich.progress.TextColumn("{task.completed:,} records"))
        else:
            columns += [rich.progress.FileSizeColumn(), rich.progress.TransferSpeedColumn()]
        columns.append(rich.progress.TimeElapsedColumn() if self.total is None else rich.progress.TimeRemainingColumn())
        bar = rich.progress.Progress(*columns, console=Console(stderr=True), transient=True)
        bar.start()
        bar.add_task(self._title, total=self.total, completed=self._done)
        return bar
