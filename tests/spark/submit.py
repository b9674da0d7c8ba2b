"""`make spark-cluster`: `spark-submit` to a standalone master with two worker processes, topic to topic, exactly once.

    python -m tests.spark.submit [--pyspark 4.3.0]

The data source is installed in the Python that the workers and the driver use, and nowhere else; docs/spark.md tells
what that means for a real cluster. The driver is killed once, submitted again, and must finish what it began.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from tests.chaos.run import PARTITIONS
from tests.clients.topics import Topics
from tests.peers.ours import Oncelog
from tests.spark.chaos.run import committed_values
from tests.spark.cluster import Cluster, family, kill_all
from tests.spark.environment import (
    NEWEST_PYSPARK,
    environment_of,
    installed,
    interpreter,
    spark_home,
    tidy_up_when_told_to_end,
)

JOB = Path(__file__).with_name("submit_job.py")
ROWS = 200_000
PATIENCE_SECONDS = 600.0


def submit(python: Path, master: str, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """As a user would: `spark-submit --master … job.py …`."""
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
    }
    given = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [str(spark_home(python) / "bin" / "spark-submit"), "--master", master, *given, str(JOB), *arguments]
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment_of(python), cwd=folder)


def wait_for(what: str, done: Callable[[], bool], driver: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if driver.poll() or time.monotonic() > until:
            log = (folder / "driver.log").read_text(errors="replace")
            raise AssertionError(f"waited in vain for {what}; the driver's last words:\n{log[-3000:]}")
        time.sleep(0.2)


def ended_well(driver: subprocess.Popen[bytes]) -> bool:
    return driver.poll() == 0


def run(python: Path, folder: Path) -> None:
    broker = Oncelog(folder / "broker")
    broker.start()
    driver: subprocess.Popen[bytes] | None = None
    try:
        topics = Topics(broker.bootstrap, "cluster")
        source, target = topics.create(PARTITIONS), topics.create(PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        for number in range(ROWS):
            producer.produce(source, str(number).encode(), str(number % 100).encode())
            producer.poll(0)
        assert not producer.flush(60), "the input could not be written"
        checkpoint = folder / "checkpoint"
        arguments = (broker.bootstrap, source, target, str(checkpoint))
        with Cluster(folder / "cluster", python).running() as cluster:
            driver = submit(python, cluster.master, folder, *arguments)
            wait_for("a batch", lambda: any(checkpoint.glob("offsets/[0-9]*")), driver, folder)
            wait_for("executors", lambda: len(cluster.hosts_with_executors()) > 1, driver, folder)
            print(f"executors on {sorted(cluster.hosts_with_executors())}; the driver is killed", flush=True)
            kill_all(family(driver.pid))
            driver.wait()
            driver = submit(python, cluster.master, folder, *arguments)
            wait_for("the end of the query", functools.partial(ended_well, driver), driver, folder)
        found = committed_values(broker.bootstrap, target)
        lost = ROWS - len(found)
        doubled = sum(count - 1 for count in found.values())
        print(f"{ROWS:,} rows, {len(list(checkpoint.glob('commits/[0-9]*')))} batches: {lost} lost, {doubled} doubled")
        assert (lost, doubled) == (0, 0)
    finally:
        if driver is not None:
            kill_all(family(driver.pid))
            driver.wait()
        broker.stop()


def main() -> int:
    tidy_up_when_told_to_end()
    parser = argparse.ArgumentParser(prog="python -m tests.spark.submit", description=__doc__.partition("\n")[0])
    parser.add_argument("--pyspark", default=NEWEST_PYSPARK)
    chosen = parser.parse_args()
    python = installed(lambda: interpreter(chosen.pyspark))
    with tempfile.TemporaryDirectory(prefix="oncelog-spark-cluster-") as folder:
        run(python, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
