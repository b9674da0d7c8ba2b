"""Clients that know nothing but HTTP break no promise under faults, in runs that nobody has seen among others, and a
run replays. More: `make sim-web`.
"""

import os
from collections.abc import Callable

import pytest

from tests.sim.replays import fingerprints
from tests.sim.run import fresh_seed, processes
from tests.sim.web import run

KNOWN = 7202850000
FRESH = 2


def outcome(seed: int) -> tuple[list[str], int]:
    report = run(seed)
    return [f"make sim-web SEED={seed}: {each}" for each in report.violations], report.acknowledged


@pytest.mark.timeout(600)
def test_what_is_repeated_by_http_is_there_once_and_whole(drawn: Callable[[str], None]) -> None:
    first = fresh_seed()
    drawn(f"seeds by HTTP {first} to {first + FRESH - 1}; the same again: make sim-web N={FRESH} FROM={first}")
    with processes(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(outcome, (KNOWN, *range(first, first + FRESH))))
    assert [broken for broken, _ in outcomes if broken] == []
    assert sum(acknowledged for _, acknowledged in outcomes) > 30


@pytest.mark.timeout(600)
def test_a_run_by_http_replays_in_processes_with_other_hash_seeds() -> None:
    seed = fresh_seed()
    assert len(fingerprints("tests.sim.web", seed)) == 1, f"make sim-web SEED={seed}"
