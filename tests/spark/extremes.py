"""`make spark-extremes`: one transaction from 10,000 tasks, and from one Arrow batch of 1 GB; each row is there once.

    python -m tests.spark.extremes [--pyspark 4.3.0] [--tasks 10000] [--megabytes 1024]

Tells how long each took, and how much memory the largest Python worker had. Spark hands over an Arrow batch as a whole,
so a worker has at least that; what the sink adds to it is what is looked at.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.clients.topics import Topics
from tests.peers.ours import Oncelog
from tests.spark.cluster import family, kill_all
from tests.spark.environment import (
    NEWEST_PYSPARK,
    environment_of,
    installed,
    interpreter,
    spark_home,
    tidy_up_when_told_to_end,
)

JOB = Path(__file__).with_name("extremes_job.py")
PARTITIONS = 4
ROW_BYTES = 100_000
PATIENCE_SECONDS = 1800.0


def write(python: Path, bootstrap: str, topic: str, folder: Path, *, rows: int, tasks: int, row_bytes: int) -> None:
    given = (bootstrap, topic, str(rows), str(tasks), str(row_bytes), topic)
    conf = ("--conf", "spark.driver.memory=6g", "--conf", "spark.ui.showConsoleProgress=false")
    command = [str(spark_home(python) / "bin" / "spark-submit"), "--master", "local[2]", *conf, str(JOB), *given]
    began, largest = time.monotonic(), 0
    with (folder / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment_of(python), cwd=folder)
    try:
        while driver.poll() is None:
            largest = max((largest, *worker_bytes(driver.pid)))
            assert time.monotonic() < began + PATIENCE_SECONDS, "it takes too long"
            time.sleep(0.1)
    finally:
        kill_all(family(driver.pid))
        driver.wait()
    assert driver.returncode == 0, (folder / "driver.log").read_text(errors="replace")[-3000:]
    seen = numbers(bootstrap, topic)
    print(
        f"{rows:,} rows of {row_bytes:,} bytes from {tasks:,} tasks: {time.monotonic() - began:.0f} s,"
        f" {rows - len(set(seen))} lost, {len(seen) - len(set(seen))} doubled;"
        f" the largest Python worker had {largest >> 20} MB",
        flush=True,
    )
    assert sorted(seen) == list(range(rows))


def worker_bytes(driver: int) -> list[int]:
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        try:
            if "pyspark" in " ".join(process.cmdline()) and "java" not in process.name():
                found.append(process.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return found


def numbers(bootstrap: str, topic: str) -> list[int]:
    """What a reader of committed records finds, all of it."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "extremes",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    reader.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found, ended = [], set[int]()
    while len(ended) < PARTITIONS:
        message = reader.poll(60)
        assert message is not None, "nothing more comes, and the end has not been told"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition() or 0)
            continue
        found.append(int((message.value() or b"").split(b" ", 1)[0]))
    reader.close()
    return found


def run(python: Path, folder: Path, *, tasks: int, megabytes: int) -> None:
    broker = Oncelog(folder / "broker")
    broker.start()
    try:
        topics = Topics(broker.bootstrap, "extremes")
        topic = topics.create(PARTITIONS)
        write(python, broker.bootstrap, topic, folder, rows=2 * tasks, tasks=tasks, row_bytes=10)
        topic = topics.create(PARTITIONS)
        rows = megabytes * 2**20 // ROW_BYTES
        write(python, broker.bootstrap, topic, folder, rows=rows, tasks=1, row_bytes=ROW_BYTES)
    finally:
        broker.stop()


def main() -> int:
    tidy_up_when_told_to_end()
    parser = argparse.ArgumentParser(prog="python -m tests.spark.extremes", description=__doc__.partition("\n")[0])
    parser.add_argument("--pyspark", default=NEWEST_PYSPARK)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=1024)
    chosen = parser.parse_args()
    python = installed(lambda: interpreter(chosen.pyspark))
    with tempfile.TemporaryDirectory(prefix="oncelog-spark-extremes-") as folder:
        run(python, Path(folder), tasks=chosen.tasks, megabytes=chosen.megabytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
