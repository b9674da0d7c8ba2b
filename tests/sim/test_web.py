"""Clients that know nothing but HTTP break no promise under faults, in runs that nobody has seen among others, and a
run replays. More: `make sim-web`.
"""

from collections.abc import Callable

import pytest

from tests.sim.replays import run_all
from tests.sim.run import fresh_seed
from tests.sim.web import run

KNOWN = 7202850000
FRESH = 2


def outcome(seed: int) -> tuple[list[str], int]:
    report = run(seed)
    broken = [f"make sim-web SEED={seed}: {each}" for each in report.violations]
    return broken, report.acknowledged


@pytest.mark.timeout(600)
def test_what_is_repeated_by_http_is_there_once_and_whole_and_a_run_replays(drawn: Callable[[str], None]) -> None:
    """It replays in processes that hash strings differently."""
    first = fresh_seed()
    drawn(f"seeds by HTTP {first} to {first + FRESH - 1}; the same again: make sim-web N={FRESH} FROM={first}")
    outcomes, ways = run_all("tests.sim.web", "sim-web", outcome, (*range(first, first + FRESH), KNOWN))
    broken, acknowledged = zip(*outcomes, strict=True)
    assert [each for each in broken if each] == []
    assert sum(acknowledged) > 30
    assert ways == ""
