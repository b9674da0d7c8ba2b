"""Names come from anybody: nothing in one commands a terminal, or shifts the columns behind it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from service.cli.failures import CliError
from service.cli.output import Output, remark, show, show_one, show_stream

HOSTILE = "a\x1b[2J\x1b]0;taken\x07\x9b31m\u202e\u200b\tb\nc\rd\x7f<b>[red]\\"
SEEN = r"a\u001b[2J\u001b]0;taken\u0007\u009b31m\u202e\u200b\tb\nc\rd\u007f<b>[red]"


@dataclass(frozen=True, slots=True)
class Row:
    """Somebody's."""

    name: str
    names: list[str]


ROW = Row(HOSTILE, [HOSTILE])


@pytest.mark.parametrize("output", [each for each in Output if each is not Output.NAME])
def test_what_cannot_be_seen_is_written_out(output: Output, capsys: pytest.CaptureFixture[str]) -> None:
    show([ROW], output, columns=("name", "names"))
    show_stream([ROW], output, columns=("name", "names"))
    show_one(ROW, output, name="name")
    told = capsys.readouterr().out
    assert told.count(SEEN) == 6
    assert set(told) & {each for each in HOSTILE if not each.isprintable()} <= {"\t", "\n"}


def test_json_says_the_same_as_without() -> None:
    assert json.loads('"' + SEEN + '\\\\"') == HOSTILE


def test_a_program_gets_the_name_itself(capsys: pytest.CaptureFixture[str]) -> None:
    show([ROW], Output.NAME, columns=("name",))
    assert capsys.readouterr().out == HOSTILE + "\n"


def test_a_person_does_not(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    show([ROW], Output.NAME, columns=("name",))
    remark(HOSTILE)
    CliError(HOSTILE).show()
    told = capsys.readouterr()
    assert told.out.startswith(SEEN)
    assert told.err.count(SEEN) == 2
