"""For all tests: what was skipped is told at the end, a line for each reason."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        _, _, why = report.longrepr
        reasons[why.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped")
        for reason, times in reasons.most_common():
            terminalreporter.write_line(f"{times:5}  {reason}")
