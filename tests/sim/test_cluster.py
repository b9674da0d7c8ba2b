"""Three to five brokers in one simulated world break no promise under faults, in runs that nobody has seen among
others, and a run replays. More: `make sim-cluster`.
"""

from collections.abc import Callable

import pytest

from tests.sim.cluster import run
from tests.sim.replays import run_all
from tests.sim.run import fresh_seed

KNOWN = range(3000, 3002)
FRESH = 2


def outcome(seed: int) -> tuple[list[str], int, int]:
    report = run(seed)
    return (
        [f"make sim-cluster SEED={seed}: {each}" for each in report.violations],
        report.acknowledged,
        report.elections,
    )


@pytest.mark.timeout(600)
def test_three_brokers_under_faults_break_no_promise_and_a_run_replays(drawn: Callable[[str], None]) -> None:
    """It replays in processes that hash strings differently."""
    first = fresh_seed()
    drawn(f"seeds of clusters {first} to {first + FRESH - 1}; the same again: make sim-cluster N={FRESH} FROM={first}")
    outcomes, ways = run_all("tests.sim.cluster", "sim-cluster", outcome, (*range(first, first + FRESH), *KNOWN))
    broken, acknowledged, elections = zip(*outcomes, strict=True)
    assert [each for each in broken if each] == []
    assert sum(acknowledged) > 100
    assert sum(elections) > 50
    assert ways == ""
