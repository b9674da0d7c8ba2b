"""Tells at the end of a run of the tests which seeds and which mutants chance has drawn for it."""

from __future__ import annotations

import pytest

drawn: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in drawn:
        terminalreporter.write_line(line)
