"""The programs in docs/http.md do what the page says."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.web.problems import PROBLEMS
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


def test_there_is_a_program_in_each_language() -> None:
    assert set(PROGRAMS) == {"sh", *TOOLS}


def test_the_table_of_errors_has_all_problems() -> None:
    table = PAGE.partition("## Errors")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", table, flags=re.M)
    told = sorted((int(status), slug) for status, slugs in rows for slug in re.findall("`(.*?)`", slugs))
    assert told == sorted((kind.status, slug) for slug, kind in PROBLEMS.items())


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


@pytest.mark.skipif(not which("curl"), reason="no curl")
def test_each_command_in_a_sentence_does_what_the_sentence_says(http: Http, topic: str, tmp_path: Path) -> None:
    """Only the programs were run, and lines were sent by PUT, which is refused."""
    (tmp_path / "backup.tar").write_bytes(b"a file")
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    commands = re.findall(r"`(curl [^`]*)`", PAGE)
    assert len(commands) == 2
    for command in commands:
        own = re.sub("(?<=/topics/)[a-z]+", topic, command).replace(HERE, http.url)
        lines = '{"value":1}\n{"value":2}\n'
        told = subprocess.run(
            ["bash", "-c", f"{own} -sSf"], cwd=tmp_path, input=lines, capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, (command, told.stdout, told.stderr)
    records = http.get(f"/v1/topics/{topic}/partitions/0/records?values=base64").json["records"]
    assert sorted(base64.b64decode(each["value_base64"]) for each in records) == [b"1", b"2", b"a file"]


@dataclass
class Example:
    """The program of one language, with topics and a group of its own, which the page's commands have made."""

    bootstrap: str
    http: Http
    language: str
    topic: str
    folder: Path
    step: str = ""

    def __post_init__(self) -> None:
        if lacking := missing(*TOOLS["bash"], *TOOLS[self.language]):
            pytest.skip(lacking)
        setting_up = PROGRAMS["sh"].replace("curl ", "curl -sf ").replace(urlsplit(HERE).netloc, HERE)
        setting_up = self._own(setting_up, self.http.url)
        subprocess.run(["bash", "-ec", setting_up], timeout=STEP_S, check=True, stdout=subprocess.DEVNULL)

    def ask(self, url: str) -> None:
        """Have the program ask this broker from now on."""
        name, *builds, self.step = COMMANDS[self.language]
        (self.folder / name).write_text(self._own(PROGRAMS[self.language], url))
        for build in builds:
            assert subprocess.run(build.split(), cwd=self.folder, timeout=STEP_S, check=False).returncode == 0

    def _own(self, program: str, url: str) -> str:
        for name in ("sales", "sums", "summing"):
            program = re.sub(rf"""(?<=["/]){name}(?=["/])""", f"{self.topic}-{name}", program)
        return program.replace(HERE, url)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self.step.split(), cwd=self.folder, stderr=subprocess.PIPE, text=True)

    def run(self) -> tuple[int, str]:
        started = self.start()
        _, error = started.communicate(timeout=STEP_S)
        return started.returncode, error

    def sell(self, *values: Any) -> None:
        records = [{"key": "k", "value": value} for value in values]
        assert self.http.post(f"/v1/topics/{self.topic}-sales/records", {"records": records}).status == 200

    def sums(self) -> list[tuple[bytes | None, float]]:
        read = read_all(self.bootstrap, f"{self.topic}-sums")
        return [(each.key, json.loads(each.value or b"")["sum"]) for each in read]


@pytest.fixture(params=TOOLS)
def example(request: pytest.FixtureRequest, served: Served, http: Http, topic: str, tmp_path: Path) -> Example:
    made = Example(served.bootstrap, http, request.param, topic, tmp_path)
    made.ask(http.url)
    return made


@pytest.mark.timeout(2 * STEP_S)
def test_consume_transform_produce_as_the_page_has_it(example: Example) -> None:
    """Each record once, over several pages and runs, with as many programs at once as may get into each other's way;
    all again, and no more, when the group is set back; and a record that is none ends it with its offset.
    """
    of_page: list[tuple[bytes | None, float]] = [(b"anna", 3), (None, 12)]
    assert example.run() == (0, "")
    assert example.sums() == of_page
    example.sell(*({"price": number, "count": 0.5} for number in range(2200)))
    several = [example.start() for _ in range(4)]
    assert [(each.communicate(timeout=STEP_S)[1], each.returncode) for each in several] == [("", 0)] * 4
    once = [*of_page, *((b"k", number / 2) for number in range(2200))]
    assert example.sums() == once
    assert example.run() == (0, "")
    assert example.http.put(f"/v1/groups/{example.topic}-summing/offsets", {"to": "earliest"}).status == 200
    assert example.run() == (0, "")
    assert example.sums() == [*once, *once]
    (at,) = (each["offset"] for each in example.http.get(f"/v1/groups/{example.topic}-summing/offsets").json["offsets"])
    for bad in ("an order", {"price": "1", "count": 2}, {"price": 1}, None):
        example.sell({"price": 1, "count": 1}, bad)
        status, error = example.run()
        assert status != 0
        assert f"offset {at + 1}: no price and count" in error
        moved = {"offsets": [{"topic": f"{example.topic}-sales", "partition": 0, "offset": at + 2}]}
        assert example.http.put(f"/v1/groups/{example.topic}-summing/offsets", moved).status == 200
        at += 2
    assert len(example.sums()) == 2 * len(once)
