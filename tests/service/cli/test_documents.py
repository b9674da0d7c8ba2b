"""What docs/ says of the command line and of the settings is what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from service.cli import (
    broker,
    cluster,
    config,
    config_client,
    doctor,
    group,
    log_files,
    log_stats,
    moving,
    produce,
    settings_docs,
    top,
    topic,
    txn,
)
from service.cli.failures import Exit
from service.cli.settings_docs import document

ROOT = Path(__file__).resolve().parents[3]
ROWS = [
    each
    for module in (
        broker,
        cluster,
        config_client,
        doctor,
        group,
        log_files,
        log_stats,
        moving,
        produce,
        settings_docs,
        top,
        topic,
        txn,
    )
    for each in vars(module).values()
    if dataclasses.is_dataclass(each) and isinstance(each, type) and each.__module__ == module.__name__
    if not each.__name__.startswith("_") and not each.__subclasses__()  # what rows share is no row itself
]


def _documented_fields(row: type) -> list[str]:
    """The names in backticks of the sentence that carries the row's mark, or of the table behind it."""
    page = (ROOT / "docs" / "cli.md").read_text()
    before, mark, behind = page.partition(f"<!-- {row.__name__} -->")
    assert mark, f"docs/cli.md does not mention {row.__name__}"
    table = re.match(r"\s*\n\n\| field \|.*\n\|---.*\n((?:\|.*\n)+)", behind)
    if table:
        return [name for line in table[1].splitlines() for name in re.findall(r"`([a-z_]+)`", line.split("|")[1])]
    sentence = before.rpartition("\n\n")[2].partition(": ")[2]
    return re.findall(r"`([a-z_]+)`(?! or)", re.sub(r"\([^)]*\)", "", sentence))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_the_fields_of_json_output_are_the_documented_ones(row: type) -> None:
    """A field that is added, renamed or dropped must be told to those who wrote scripts."""
    assert dataclasses.is_dataclass(row)
    fields = sorted(field.name for field in dataclasses.fields(row))
    assert sorted(_documented_fields(row)) == fields


def test_the_commands_that_print_nothing_unless_asked_are_the_documented_ones() -> None:
    sentence = (ROOT / "docs" / "cli.md").read_text().partition("These print nothing")[2].partition(".\n")[0]
    quiet = {
        f"{module.__name__.rpartition('.')[2]} {name}"
        for module in (cluster, config, group, topic, txn)
        for name, command in module.command.commands.items()
        for option in command.params
        if (getattr(option, "help", None) or "").endswith("Default: nothing.")
    }
    assert set(re.findall(r"`(\w+ \w+)`", sentence)) == quiet


def test_the_exit_statuses_are_the_documented_ones() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    listed = [int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert listed == [int(each) for each in Exit]


def test_the_page_of_settings_is_the_one_that_the_tables_give() -> None:
    """`make docs` writes it, after a change of the settings."""
    assert (ROOT / "docs" / "configuration.md").read_text() == document(), "run: make docs"
