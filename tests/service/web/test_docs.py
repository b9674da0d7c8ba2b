"""The programs in docs/http.md do what the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.outside import missing
from tests.service.web.kit import ROOT, Http, Served, read_all
from tests.service.web.test_transactions import begin, put

HERE = "http://localhost:8082"
PAGE = (ROOT / "docs" / "http.md").read_text()
PROGRAMS = dict(re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.M | re.S))
TOOLS = {"bash": ("bash", "curl", "jq"), "python": (), "javascript": ("node",), "go": ("go",)}
STEP_S = 500.0
"""Go compiles its own library the first time, which takes half a minute of the processor."""
COMMANDS = {
    "bash": ("x.sh", "bash x.sh"),
    "python": ("x.py", f"{sys.executable} x.py"),
    "javascript": ("x.mjs", "node x.mjs"),
    "go": ("x.go", "go build -o x x.go", "./x"),
}


def run(language: str, program: str, folder: Path) -> None:
    if lacking := missing(*TOOLS[language]):
        pytest.skip(lacking)
    name, *command = COMMANDS[language]
    if not (folder / name).exists():
        (folder / name).write_text(program)
    for step in command:
        done = subprocess.run(step.split(), cwd=folder, capture_output=True, text=True, timeout=STEP_S, check=False)
        assert done.returncode == 0, done.stderr


def test_there_is_a_program_in_each_language() -> None:
    assert set(PROGRAMS) == set(TOOLS)


def test_requests_are_answered_as_the_page_has_them(http: Http, topic: str) -> None:
    """The two blocks that are a request: records, and a decision on branches, which are begun before it here."""
    records, decision = (
        (block.split(maxsplit=2)[:2], json.loads(block.split("\n", 1)[1]))
        for block in re.findall(r"^```\n((?:GET|PUT|POST|DELETE) .*?)^```$", PAGE, flags=re.M | re.S)
    )
    (method, path), body = records
    answer = http.ask(method, path.replace("orders", topic), body)
    assert (answer.status, answer.json["outcome"]) == (200, "applied")
    (method, path), body = decision
    root, token = path.split("/")[3], path.split("/")[5]
    for number, branch in enumerate(body["branches"]):
        txn = begin(http, f"{root}::{token}/{branch['name']}")
        assert put(http, txn, 0, {"topic": topic, "value": number}).status == 200
        branch |= http.post(f"{txn}:commit").json["branch"]
    told = http.ask(method, path, body).json
    assert told == {
        "outcome": "applied",
        "decided_now": True,
        "last_token": int(token),
        "decided_by": body["decided_by"],
    }


@pytest.mark.timeout(2 * STEP_S)
@pytest.mark.parametrize("language", TOOLS)
def test_consume_transform_produce_as_the_page_has_it(
    served: Served, http: Http, topic: str, tmp_path: Path, language: str
) -> None:
    program = PROGRAMS[language].replace(HERE, served.url)
    for name in ("orders", "invoices", "invoicing"):
        program = program.replace(name, f"{topic}-{name}")
    orders = [{"key": f"k{number}", "value": {"price": number, "count": 2}} for number in range(700)]
    for some in (orders[:600], orders[600:]):
        assert http.post(f"/v1/topics/{topic}-orders/records", {"records": some}).status == 200
        run(language, program, tmp_path)
    sums = [each.value for each in read_all(served.bootstrap, f"{topic}-invoices")]
    assert [int(re.findall(rb"\d+", value or b"")[0]) for value in sums] == [2 * number for number in range(700)]
    run(language, program, tmp_path)
    assert len(read_all(served.bootstrap, f"{topic}-invoices")) == 700
