"""Tells at the end of a run of the tests which seeds and which mutants chance has drawn for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

drawn: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in drawn:
        terminalreporter.write_line(line)


@pytest.fixture(scope="package", autouse=True)
def what_other_tests_left_is_not_looked_at() -> Iterator[None]:
    """Every world that ends collects its garbage. Beside the objects of thousands of tests that takes half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
