"""`make chaos`: kill clients and broker while three client libraries, and two clients that have nothing but HTTP,
copy a topic in transactions.

`python -m tests.chaos --seconds 120 --seed 7`; the seed chooses who is killed when, the machine does the rest.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.over_http import OVER_HTTP
from tests.chaos.run import run
from tests.chaos.worker import CLIENTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long there is killing, for each durability")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--durability", choices=("auto", "fsync", "os"), action="append", help="default: auto and os")
    parser.add_argument("--client", choices=(*CLIENTS, *OVER_HTTP), action="append", help="default: all")
    parser.add_argument("--keep", type=Path, default=None, help="keep data and logs in this folder, though all is well")
    chosen = parser.parse_args()
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    faults = 0
    kept = chosen.keep or Path(tempfile.mkdtemp(prefix="oncelog-chaos-"))
    for durability in chosen.durability or ("auto", "os"):
        print(f"seed {seed}, durability {durability}, {chosen.seconds:g} s", flush=True)
        folder = kept / durability
        folder.mkdir(parents=True, exist_ok=True)
        report = run(
            folder,
            seconds=chosen.seconds,
            seed=seed,
            durability=durability,
            clients=chosen.client or (*CLIENTS, *OVER_HTTP),
        )
        print(report, flush=True)
        faults += len(report.faults)
    if faults:
        print(f"data and logs are in {kept}", flush=True)
    elif chosen.keep is None:
        shutil.rmtree(kept)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
