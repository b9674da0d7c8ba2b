"""What `oncelog demo` needs is looked for before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.cli.companions import _findable
from tests.service.cli.kit import oncelog


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
