"""The whole broker in the simulation: a few seeds run clean, one replays in other processes, and planted bugs are
caught.

More of both: `make sim` and `make mutants`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.mutants import MUTANTS, Mutant, hunt
from tests.sim.run import run

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(1, 25)
QUICKLY_CAUGHT = (
    "ack before fsync",
    "high watermark ahead of the disk",
    "recovery cuts too much",
    "index off by one",
    "damaged batches accepted",
)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_under_faults_breaks_no_promise(seed: int) -> None:
    """`python -m tests.sim --seed N` replays what fails here."""
    report = run(seed)
    assert [str(violation) for violation in report.violations] == []
    assert report.acknowledged and report.read


def test_a_run_replays_in_processes_with_other_hash_seeds() -> None:
    script = "import sys; from tests.sim.run import run; print(run(int(sys.argv[1])).fingerprint)"
    fingerprints = []
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        process = [sys.executable, "-c", script, str(SEEDS[0])]
        result = subprocess.run(process, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        fingerprints.append(int(result.stdout))
    assert fingerprints == [run(SEEDS[0]).fingerprint] * 2


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.name in QUICKLY_CAUGHT], ids=lambda mutant: mutant.name
)
def test_a_planted_bug_is_caught_within_a_few_seeds(mutant: Mutant) -> None:
    assert hunt(mutant, max_seeds=20).broken
