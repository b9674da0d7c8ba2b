"""The same run in several processes: each has strings hashed differently, so sets and what depends on them differ."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HASH_SEEDS = ("0", "4711")


def fingerprints(module: str, seed: int) -> set[int]:
    """What `run` of that module comes to. If the run replays, this is one number."""
    script = f"import sys; from {module} import run; print(run(int(sys.argv[1])).fingerprint)"
    found = set[int]()
    for hash_seed in HASH_SEEDS:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        process = [sys.executable, "-c", script, str(seed)]
        result = subprocess.run(process, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        found.add(int(result.stdout))
    return found
