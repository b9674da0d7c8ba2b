"""`make spark-chaos`: everything that can die dies, while Spark copies a topic; then every row must be there once.

    python -m tests.spark.chaos --minutes 10 --seed 7 --tasks 200

The seed chooses what is struck in which order, and which tasks stumble; the machine does the rest. Afterwards the same
happens to Spark's own Kafka source and sink, at-least-once, and its duplicates are counted (not with `--only oncelog`).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.spark.chaos.run import Contender, Report, run
from tests.spark.environment import (
    CONNECTOR_PYSPARK,
    connector_jars,
    installed,
    interpreter,
    tidy_up_when_told_to_end,
)

OURS, OWN = "oncelog", "Spark's own"


def main() -> int:
    tidy_up_when_told_to_end()
    parser = argparse.ArgumentParser(prog="python -m tests.spark.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long there is striking, for each sink")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--tasks", type=int, help="so many tasks a batch, not one for each partition")
    parser.add_argument("--only", choices=["oncelog", "own"], help="one of the two sinks")
    parser.add_argument("--pyspark", default=CONNECTOR_PYSPARK, help="for ours; Spark's own is there for 4.2.0 alone")
    parser.add_argument("--keep", type=Path, help="keep data and logs in this folder, which must not exist")
    chosen = parser.parse_args()
    contenders: list[Contender] = []
    if chosen.only != "own":
        python = installed(lambda: interpreter(chosen.pyspark), connector=True)
        contenders.append(Contender(OURS, "oncelog", True, python))
    if chosen.only != "oncelog":
        jars = {"spark.jars": installed(connector_jars, connector=True)}
        contenders.append(Contender(OWN, "kafka", False, interpreter(CONNECTOR_PYSPARK), conf=jars))
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    reports: dict[str, Report] = {}
    with tempfile.TemporaryDirectory(prefix="oncelog-spark-chaos-") as temporary:
        for who in contenders:
            print(f"{who.name}: seed {seed}, {chosen.minutes:g} minutes", flush=True)
            began = time.monotonic()

            def say(told: str, began: float = began) -> None:
                print(f"{time.monotonic() - began:7.1f} s  {told}", flush=True)

            folder = (chosen.keep or Path(temporary)) / who.format
            reports[who.name] = run(folder, who, seconds=chosen.minutes * 60, seed=seed, tasks=chosen.tasks, say=say)
            print(reports[who.name], flush=True)
    for name, report in reports.items():
        outcome = "every row exactly once" if report.exact else "not exact"
        counts = f"rows {report.inputs:>8,}  missing {len(report.missing):>4}  doubled {report.doubled:>6}"
        counts += f"  misplaced {report.misplaced:>4}  largest worker {report.largest_worker_bytes >> 20:>4} MB"
        print(f"{name:12}  {counts}  {outcome}")
    # Spark's own promises no more than that nothing is missing.
    return int(OURS in reports and not reports[OURS].exact)


if __name__ == "__main__":
    sys.exit(main())
