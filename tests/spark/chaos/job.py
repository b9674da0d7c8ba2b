"""The pipeline that is put through the chaos: topic to topic, with tasks that stumble. Started by tests/spark/chaos.

`python job.py PLAN`, the plan as JSON. It goes on until it is killed, or until its query fails (exit status 1), or
until the file `plan["stop"]` appears.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession


def stumbling(seed: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Hands rows on; now and then a task fails half way, loses its Python process, or is slow enough to be copied.

    A further attempt of the same task in the same batch throws other dice, so that it gets through.
    """

    def hand_on(batches: Iterable[Any]) -> Iterator[Any]:
        task = TaskContext.get()
        assert task is not None
        batch = task.getLocalProperty("streaming.sql.batchId")
        chance = random.Random(f"{seed} {batch} {task.partitionId()} {task.taskAttemptId()}").random()
        first = True
        for rows in batches:
            yield rows.slice(0, len(rows) // 2)
            if first and chance < 0.02:
                raise RuntimeError("this task fails on purpose")
            if first and chance < 0.03:
                os._exit(7)
            if first and chance < 0.06:
                time.sleep(6)
            first = False
            yield rows.slice(len(rows) // 2)

    return hand_on


def main() -> int:
    plan = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(plan["master"]).appName("chaos")
    for name, value in plan["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    source = spark.readStream.format(plan["format"]).options(**plan["source"]).load().select("key", "value")
    steps = source.mapInArrow(stumbling(plan["seed"]), source.schema)
    sink = steps.writeStream.format(plan["format"]).options(**plan["sink"])
    query = sink.option("checkpointLocation", plan["checkpoint"]).trigger(processingTime="200 milliseconds").start()
    while not query.awaitTermination(1):
        if Path(plan["stop"]).exists():
            query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
