"""Runs side by side, and one of them again in another process, which has strings hashed differently: so sets and what
depends on them differ.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.sim.run import processes

ROOT = Path(__file__).resolve().parents[2]
HASH_SEEDS = ("0", "4711")

Outcome = TypeVar("Outcome")


def run_all(module: str, outcome: Callable[[int], Outcome], seeds: Sequence[int]) -> tuple[list[Outcome], int]:
    """The outcome of each seed, and the fingerprint to which `run` of that module comes elsewhere with the first."""
    with processes(os.cpu_count() or 1) as pool:
        elsewhere = pool.submit(fingerprint_elsewhere, module, seeds[0])
        return list(pool.map(outcome, seeds)), elsewhere.result()


def fingerprint_elsewhere(module: str, seed: int) -> int:
    script = f"import sys; from {module} import run; print(run(int(sys.argv[1])).fingerprint)"
    here = os.environ.get("PYTHONHASHSEED")  # if it is not set, strings are hashed by chance here
    environment = {**os.environ, "PYTHONHASHSEED": next(each for each in HASH_SEEDS if each != here)}
    process = [sys.executable, "-c", script, str(seed)]
    result = subprocess.run(process, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(result.stdout)
