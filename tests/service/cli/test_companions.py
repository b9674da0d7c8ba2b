"""What `oncelog demo` needs is looked for before anything is started."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.cli.companions import PIPELINES, _findable
from service.cli.demo_load import RESTS_S, SESSION_S, USERS, clicks
from tests.service.cli.kit import ROOT, oncelog


def test_what_a_pipeline_lacks_is_said_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    ended = oncelog("demo", "--spark", bootstrap="localhost:9092")
    assert ended.status == 2
    assert "--spark needs java" in ended.err


@pytest.mark.skipif(find_spec("pyspark_oncelog") is None, reason="no oncelog-spark in this environment")
def test_spark_finds_our_data_source_however_it_is_installed(tmp_path: Path) -> None:
    """By what it looks for: packages of that name in the folders that Python searches."""
    look = "import pkgutil; print([each.name for each in pkgutil.iter_modules() if each.name.startswith('pyspark_')])"
    environment = {"PYTHONPATH": str(_findable(tmp_path / "python")), "PATH": os.environ["PATH"]}
    said = subprocess.run(
        [sys.executable, "-P", "-c", look], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "pyspark_oncelog" in said


def test_all_of_sparks_demo_runs() -> None:
    scripts = {script.stem: script.read_text() for script in (ROOT / "spark_sink" / "demo").glob("*.py")}
    assert {each.name for each in PIPELINES} == scripts.keys()
    for name, reads, writes in PIPELINES:
        assert f'.option("subscribe", "{reads}")' in scripts[name]
        assert f'.option("topic", "{writes}")' in scripts[name]


def test_users_click_and_rest_so_that_their_sessions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session ends after half a minute without a click."""
    clicked: dict[bytes, list[float]] = {}
    chance = random.Random(7)
    for tick in range(2_000):
        monkeypatch.setattr(time, "time", lambda now_s=1_000 + tick / 10: now_s)
        for record in clicks(chance):
            key, _, _, at_ms = record.record
            clicked.setdefault(key or b"", []).append(at_ms / 1000)
    assert len(clicked) == USERS
    for times in clicked.values():
        pauses = [later - before for before, later in itertools.pairwise(times)]
        assert any(RESTS_S <= pause <= RESTS_S + SESSION_S for pause in pauses)
