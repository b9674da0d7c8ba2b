"""Boards, alerts and their pages ask for what a broker shows, and what a broker shows is looked at."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import click
import pytest

from monitoring.boards import BOARDS, FOLDER, Board, as_json
from monitoring.families import REGISTRY
from monitoring.reference import page
from service.cli.root import cli
from tests.outside import needs

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "monitoring" / "alerts"
RUNBOOKS = ROOT / "docs" / "runbooks"
RULES = (ALERTS / "oncelog.rules.yml").read_text()
NAME = re.compile(r"\b(?:oncelog|kafka|process)_[a-z_]+")


def asked_in(text: str) -> set[str]:
    """The families that an expression asks for."""
    found = set()
    for name in NAME.findall(text):
        base = re.sub("_(bucket|count|sum)$", "", name)
        found.add(base if base in REGISTRY and REGISTRY[base].kind == "histogram" else name)
    return found


def expressions(board: Board) -> list[str]:
    return [expression for row in board.rows for panel in row.panels for expression, _ in panel.queries]


def alerts() -> dict[str, str]:
    """Expressions by the alert's name."""
    found = re.findall(r"- alert: (\w+)\n +expr: >-\n +(.+)\n", RULES)
    assert len(found) == RULES.count("- alert:")
    return dict(found)


CHARTED = {name for board in BOARDS for expression in expressions(board) for name in asked_in(expression)}
WATCHED = {name for expression in alerts().values() for name in asked_in(expression)}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_board_is_as_it_is_written_here(board: Board) -> None:
    assert board.path.read_text() == as_json(board), "make boards"


def test_there_is_no_board_but_these() -> None:
    assert set(FOLDER.iterdir()) == {board.path for board in BOARDS}


def test_what_boards_and_alerts_ask_for_is_in_the_registry() -> None:
    assert (CHARTED | WATCHED) - REGISTRY.keys() == set()


@pytest.mark.parametrize("name", REGISTRY)
def test_a_metric_is_on_a_board_or_in_an_alert_or_says_why_not(name: str) -> None:
    assert (name in CHARTED | WATCHED) != bool(REGISTRY[name].uncharted)


def test_panels_of_a_board_lie_beside_each_other_and_have_words_for_their_figures() -> None:
    for board in BOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(as_json(board))["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, (board.uid, panel["title"])
            assert max(x for x, _ in cells) < 24
            taken |= cells
            assert panel["type"] == "row" or panel["description"] or panel["title"] in ("Groups, by state", "Memory")


@needs("promtool")
def test_prometheus_understands_every_expression_of_a_board(tmp_path: Path) -> None:
    """As rules, which are checked as a whole; what Grafana fills in is filled in."""
    rules = []
    for board in BOARDS:
        for number, expression in enumerate(expressions(board)):
            filled = expression.replace("$__rate_interval", "1m").replace("$job", "oncelog").replace("$topic", ".*")
            rules.append({"record": f"panel:{board.uid.replace('-', '_')}:{number}", "expr": filled})
    path = tmp_path / "panels.json"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs("promtool")
def test_every_alert_fires_when_it_should_and_not_otherwise() -> None:
    ran = subprocess.run(
        ["promtool", "test", "rules", "oncelog.test.yml"], cwd=ALERTS, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    tests = (ALERTS / "oncelog.test.yml").read_text()
    for name in alerts():
        assert f"name: {name} fires" in tests
        assert f"name: {name} does not fire" in tests


@needs("promtool")
def test_an_alert_that_fires_too_soon_is_noticed(tmp_path: Path) -> None:
    """Without its `for`, each would fire for what is over in a moment."""
    rules = (ALERTS / "oncelog.rules.yml").read_text()
    (tmp_path / "oncelog.rules.yml").write_text(re.sub(r"^ +for: .*\n", "", rules, flags=re.M))
    (tmp_path / "oncelog.test.yml").write_bytes((ALERTS / "oncelog.test.yml").read_bytes())
    ran = subprocess.run(
        ["promtool", "test", "rules", "oncelog.test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    hasty = set(re.findall(r"alertname: (\w+), time", ran.stdout + ran.stderr))
    patient = re.findall(r"- alert: (\w+)\n(?: {8}.*\n)*? {8}for:", rules)
    assert len(patient) == rules.count(" for: ") > 20
    assert set(patient) - hasty == set()


@pytest.mark.parametrize("name", alerts())
def test_an_alert_has_a_page_that_says_what_it_means_and_what_to_do(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    for title in ("## What it means", "## What to look at", "## What to do"):
        assert text.count(title) == 1
    assert f"/{{{{ end }}}}docs/runbooks/{name}.md'" in RULES


def test_there_is_no_page_without_its_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"index"} == alerts().keys()


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_names_commands_and_metrics_that_there_are(path: Path) -> None:
    text = path.read_text()
    assert asked_in(text) - REGISTRY.keys() == set()
    for words in re.findall(r"`oncelog ([^`]+)`", text):
        found: click.Command | None = cli
        for word in words.split():
            if not isinstance(found, click.Group):
                break
            found = found.get_command(click.Context(found), word)
            assert found is not None, f"oncelog {words}"


def test_the_reference_of_metrics_is_the_registry() -> None:
    assert (ROOT / "docs" / "monitoring.md").read_text() == page(), "make docs"
