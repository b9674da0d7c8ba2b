"""Three to five brokers in one simulated world break no promise under faults, in runs that nobody has seen among
others, and a run replays. More: `make sim-cluster`.
"""

import os
from collections.abc import Callable

import pytest

from tests.sim.cluster import run
from tests.sim.replays import fingerprints
from tests.sim.run import fresh_seed, processes

KNOWN = range(3000, 3002)
FRESH = 2


def outcome(seed: int) -> tuple[list[str], int, int]:
    report = run(seed)
    return (
        [f"make sim-cluster SEED={seed}: {each}" for each in report.violations],
        report.acknowledged,
        report.elections,
    )


@pytest.mark.timeout(300)
def test_three_brokers_under_faults_break_no_promise(drawn: Callable[[str], None]) -> None:
    first = fresh_seed()
    drawn(f"seeds of clusters {first} to {first + FRESH - 1}; the same again: make sim-cluster N={FRESH} FROM={first}")
    with processes(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(outcome, (*KNOWN, *range(first, first + FRESH))))
    assert [broken for broken, _, _ in outcomes if broken] == []
    assert sum(acknowledged for _, acknowledged, _ in outcomes) > 100
    assert sum(elections for _, _, elections in outcomes) > 50


@pytest.mark.timeout(600)
def test_a_run_of_a_cluster_replays_in_processes_with_other_hash_seeds() -> None:
    seed = fresh_seed()
    assert len(fingerprints("tests.sim.cluster", seed)) == 1, f"make sim-cluster SEED={seed}"
