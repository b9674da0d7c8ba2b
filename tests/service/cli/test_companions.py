"""What `oncelog demo` needs is looked for before anything is started."""

from __future__ import annotations

import pytest

from tests.service.cli.kit import oncelog


def test_what_a_pipeline_lacks_is_said_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    ended = oncelog("demo", "--spark", bootstrap="localhost:9092")
    assert ended.status == 2
    assert "--spark needs java" in ended.err
