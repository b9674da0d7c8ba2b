"""The programs in docs/http.md do what the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.web.kit import ROOT, Http, Served, read_all

HERE = "http://localhost:8082"
PROGRAMS = dict(re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "docs" / "http.md").read_text(), flags=re.M | re.S))
TOOLS = {"bash": ("bash", "curl", "jq"), "python": (), "javascript": ("node",), "go": ("go",)}
COMMANDS = {
    "bash": ("x.sh", "bash x.sh"),
    "python": ("x.py", f"{sys.executable} x.py"),
    "javascript": ("x.mjs", "node x.mjs"),
    "go": ("x.go", "go build -o x x.go", "./x"),
}


def run(language: str, program: str, folder: Path) -> None:
    missing = [tool for tool in TOOLS[language] if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]} here")
    if language == "go":
        stale = subprocess.run(
            ["go", "list", "-f", "{{.Stale}}", "net/http"], capture_output=True, text=True, check=True
        )
        if "true" in stale.stdout:
            pytest.skip("Go's own library is not compiled yet, which takes minutes: go build net/http")
    name, *command = COMMANDS[language]
    if not (folder / name).exists():
        (folder / name).write_text(program)
    for step in command:
        done = subprocess.run(step.split(), cwd=folder, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr


def test_there_is_a_program_in_each_language() -> None:
    assert set(PROGRAMS) == set(TOOLS)


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
