"""One client process of the chaos: a Spark stream that copies a topic with our source and our sink.

`python -m tests.chaos.spark_copies BOOTSTRAP SOURCE TARGET GROUP CHECKPOINT`. It is killed at any moment, its Java
machine too, and started again with the same checkpoint; or its query fails (status 3), which is as good. How far it is,
as its checkpoint says, it tells by the offsets of a group, as others do.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_sink import register
from tests.peers.process import ROOT

ROWS_A_BATCH = 300
TELL_EVERY_S = 1
GAVE_UP = 3
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""It lives for seconds."""


def session(folder: Path) -> SparkSession:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    return SparkSession.builder.master("local[2]").appName("copies").config(map=settings).getOrCreate()


def read_offsets(checkpoint: Path, source: str) -> dict[int, int]:
    """Up to where the last batch read that is done; none before the first."""
    done = [int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdecimal()]
    if not done:
        return {}
    *_, offsets = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()
    return {int(partition): offset for partition, offset in json.loads(offsets)[source].items()}


def main() -> int:
    bootstrap, source, target, group, folder = sys.argv[1:]
    checkpoint, there = Path(folder), {"kafka.bootstrap.servers": bootstrap}
    spark = session(checkpoint.parent)
    register(spark)
    reading = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS_A_BATCH)}
    rows = spark.readStream.format("oncelog").options(**there, **reading).load().select("key", "value", "partition")
    writing = rows.writeStream.format("oncelog").options(**there, topic=target, checkpointLocation=folder)
    query = writing.start()
    teller = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0})
    told: dict[int, int] = {}
    found = read_offsets(checkpoint, source)
    try:
        while not query.awaitTermination(TELL_EVERY_S):
            offsets = read_offsets(checkpoint, source)
            if offsets != found:
                print("at work", flush=True)
            if offsets == told:
                continue
            places = [TopicPartition(source, partition, offset) for partition, offset in offsets.items()]
            with suppress(KafkaException):  # it is told the next time
                teller.commit(offsets=places, asynchronous=False)
                told = offsets
    except StreamingQueryException as failure:
        print(f"the query failed: {failure}", file=sys.stderr, flush=True)
    return GAVE_UP


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
