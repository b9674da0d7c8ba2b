"""Runs side by side, and one of them in two processes more, which hash strings differently: so sets and what depends on
them differ.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.sim.run import processes

ROOT = Path(__file__).resolve().parents[2]

Outcome = TypeVar("Outcome")


def run_all(
    module: str, target: str, outcome: Callable[[int], Outcome], seeds: Sequence[int]
) -> tuple[list[Outcome], str]:
    """The outcome of each seed. And whether the first one's run went one way under two hash seeds that are drawn anew:
    if not, the command that shows the two ways again. `target` is of make, and calls `run` of that module.
    """
    first, (one, other) = seeds[0], hash_seeds()
    with processes(os.cpu_count() or 1) as pool:
        ways = [pool.submit(fingerprint, module, first, each) for each in (one, other)]
        outcomes = list(pool.map(outcome, seeds))
        is_one_way = ways[0].result() == ways[1].result()
    return outcomes, "" if is_one_way else both_again(target, first, one, other)


def hash_seeds() -> tuple[int, int]:
    return secrets.randbelow(2**31), 2**31 + secrets.randbelow(2**31)


def fingerprint(module: str, seed: int, hash_seed: int) -> int:
    """Of that run in a process of its own."""
    script = f"import sys; from {module} import run; print(run(int(sys.argv[1])).fingerprint)"
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    process = [sys.executable, "-c", script, str(seed)]
    result = subprocess.run(process, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(result.stdout)


def both_again(target: str, seed: int, one: int, other: int) -> str:
    """Each of the two prints its fingerprint; with ARGS=--trace what happened, too."""
    return f"for hash in {one} {other}; do PYTHONHASHSEED=$hash make {target} SEED={seed}; done"
