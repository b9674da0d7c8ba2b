"""Clients that know nothing but HTTP break no promise under faults, and a run replays. More: `make sim-web`."""

import os

import pytest

from tests.sim.replays import fingerprints
from tests.sim.run import fresh_seed, processes
from tests.sim.web import run

SEEDS = range(7202850000, 7202850003)


def outcome(seed: int) -> tuple[list[str], int]:
    report = run(seed)
    return [f"make sim-web SEED={seed}: {each}" for each in report.violations], report.acknowledged


@pytest.mark.timeout(600)
def test_what_is_repeated_by_http_is_there_once_and_whole() -> None:
    with processes(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(outcome, SEEDS))
    assert [broken for broken, _ in outcomes if broken] == []
    assert sum(acknowledged for _, acknowledged in outcomes) > 30


@pytest.mark.timeout(600)
def test_a_run_by_http_replays_in_processes_with_other_hash_seeds() -> None:
    seed = fresh_seed()
    assert len(fingerprints("tests.sim.web", seed)) == 1, f"make sim-web SEED={seed}"
