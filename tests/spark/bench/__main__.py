"""How fast Spark reads and writes: our data source beside Spark's own Kafka connector, on the same broker, in one run.

    python -m tests.spark.bench                   both on oncelog
    python -m tests.spark.bench --peer kafka      and Spark's own on Apache Kafka 4.3
    python -m tests.spark.bench --quick --only source

`local[2]`, rows of 100 bytes, medians. Spark's settings are a user's who made none; where the README recommends some, a
second row has them. A number of another machine or hour says little: compare within a run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import prepared
from tests.bench.contenders import Contender, Kafka, Ours
from tests.clients.topics import Topics
from tests.peers import kafka
from tests.peers.process import BrokerProcess
from tests.spark.environment import (
    CONNECTOR_PYSPARK,
    CannotInstall,
    connector_jars,
    environment_of,
    interpreter,
    missing,
    tidy_up_when_told_to_end,
)

JOB = Path(__file__).with_name("job.py")
FIGURES = ("batch source, rows/s", "stream source, rows/s", "batch sink, rows/s", "stream sink, rows/s",
           "micro-batch of 4,000 rows, ms", "of it for exactly-once, ms")  # fmt: skip
PARTITIONS = 4
ROW_BYTES = 100
RECOMMENDED = {"spark.sql.execution.arrow.maxBytesPerBatch": "2147483647"}
OURS, OURS_TUNED, OWN, OWN_ON_KAFKA = "oncelog", "oncelog, recommended settings", "Spark's own", "Spark's own on Kafka"


@contextlib.contextmanager
def filled(contender: Contender, rows: int) -> Iterator[tuple[BrokerProcess, str, int]]:
    """A running broker, its topic, and how many rows are in that."""
    broker = contender.broker()
    broker.start()
    try:
        topic = Topics(broker.bootstrap, "bench").create(PARTITIONS)
        count = prepared.messages_in_a_full_batch(ROW_BYTES)
        batch = prepared.a_batch(count, ROW_BYTES)
        batches = rows // (count * PARTITIONS)
        size = {"partitions": PARTITIONS, "batches": batches, "count": count, "size": ROW_BYTES}
        written = prepared.produce(broker.port, topic, batch=batch, **size)
        yield broker, topic, written.messages
    finally:
        contender.forget(broker)


def run_job(python: Path, plan: dict[str, Any], folder: Path) -> dict[str, dict[str, list[float]]]:
    """Figure to contender to numbers."""
    found: dict[str, dict[str, list[float]]] = {}
    # From an empty folder, with nothing of this clone but the data source in its path.
    command = [str(python), "-P", str(JOB), json.dumps(plan)]
    environment = environment_of(python)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if not line.startswith("measured "):
                print(line, end="", file=sys.stderr)
                continue
            told = json.loads(line.removeprefix("measured "))
            if "failure" in told:
                print(f"{told['figure']}: {told['contender']}: {told['failure'][:1500]}", file=sys.stderr, flush=True)
                continue
            print(f"{told['figure']}: {told['contender']}: {told['value']:,.0f}", file=sys.stderr, flush=True)
            found.setdefault(told["figure"], {}).setdefault(told["contender"], []).append(told["value"])
    return found


def print_table(found: dict[str, dict[str, list[float]]], *, peer: bool) -> None:
    """Ours first; the ratio says how many times better than Spark's own on the same broker that is."""
    lines = [["", OURS, OWN, "ratio", *([OWN_ON_KAFKA] if peer else [])]]
    for figure in FIGURES:
        medians = {name: statistics.median(values) for name, values in found.get(figure, {}).items()}
        for label, ours in ((figure, OURS), ("    with the recommended settings", OURS_TUNED)):
            if ours in medians or (ours == OURS and medians):
                lines.append(_line(label, medians, ours, peer=peer, better_is_more=figure.endswith("/s")))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        first, *others = line
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def _line(label: str, medians: dict[str, float], ours: str, *, peer: bool, better_is_more: bool) -> list[str]:
    def shown(name: str) -> str:
        return f"{medians[name]:,.0f}" if name in medians else "-"

    ratio = ""
    if ours in medians and OWN in medians:
        ratio = f"{medians[ours] / medians[OWN] if better_is_more else medians[OWN] / medians[ours]:.2f}"
    return [label, shown(ours), shown(OWN), ratio, *([shown(OWN_ON_KAFKA)] if peer else [])]


def main() -> int:
    tidy_up_when_told_to_end()
    parser = argparse.ArgumentParser(prog="python -m tests.spark.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", choices=["kafka"], help="measure Spark's own on Apache Kafka too")
    parser.add_argument("--quick", action="store_true", help="half the rows, one run")
    parser.add_argument("--only", action="append", metavar="NAME", help="figures whose name contains this")
    parser.add_argument("--without-ours", action="store_true", help="Spark's own alone")
    parser.add_argument("--runs", type=int, help="how many runs the medians are of")
    parser.add_argument("--scratch", type=Path, help="where data folders go; default: the folder for temporary files")
    chosen = parser.parse_args()
    why = missing(connector=True) or (kafka.missing() if chosen.peer else None)
    if why is None:
        try:
            python, jars = interpreter(CONNECTOR_PYSPARK), connector_jars()
        except CannotInstall as failure:
            why = str(failure)
    if why:
        print(f"cannot measure: {why}", file=sys.stderr)
        return 2
    rows = 4_000_000 if chosen.quick else 8_000_000
    with contextlib.ExitStack() as kept:
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory(dir=chosen.scratch, prefix="oncelog-bench-")))
        broker, topic, count = kept.enter_context(filled(Ours("oncelog", folder), rows))
        contenders: list[tuple[str, str, str, dict[str, str]]] = [(OWN, "kafka", broker.bootstrap, {})]
        if not chosen.without_ours:
            contenders += [
                (OURS, "oncelog", broker.bootstrap, {}),
                (OURS_TUNED, "oncelog", broker.bootstrap, RECOMMENDED),
            ]
        if chosen.peer:
            peer, topic, count = kept.enter_context(filled(Kafka("Apache Kafka", folder), rows))
            contenders.append((OWN_ON_KAFKA, "kafka", peer.bootstrap, {}))
        plan = {
            "contenders": contenders,
            "figures": [name for name in FIGURES if not chosen.only or any(part in name for part in chosen.only)],
            "jars": jars,
            "topic": topic,
            "rows": count,
            "sink_rows": rows // 4,
            "calls": str(folder / "calls"),
            "runs": chosen.runs or (1 if chosen.quick else 3),
        }
        print_table(run_job(python, plan, folder), peer=bool(chosen.peer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
