"""A driver that dies at chosen points: a stream from a folder of text files to a topic, run by crashes_of_the_sink.py.

`python -m tests.spark_sink.dying_driver BOOTSTRAP TOPIC FOLDER` reads everything there is and ends. The first time that
a batch comes to its point in `DEATHS`, the whole driver is killed: Python and JVM, as by an operating system that is
short of memory. What happened is a file in FOLDER/happened, so that it happens once. A query that fails (the lost
answer; on a busy machine, Spark itself) is started again by the same driver: to the broker that is a new run as well.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_sink import OncelogDataSource, sink
from spark_sink.sink import BATCH_ID, StreamSink, Written
from spark_sink.sink_options import read_sink_options

WRITING, SEALED, ANSWER_LOST, DECIDED = "writing", "sealed", "answer lost", "decided"
DEATHS = {1: WRITING, 2: SEALED, 3: ANSWER_LOST, 4: DECIDED}
# In this batch nobody dies, but the first attempt of every task fails when it has sealed what it wrote.
FAILING_BATCH = 5
FILES = 6
ROWS_PER_FILE = 400
# One failure is planned. Spark gives a Python process of its own ten seconds to start, which may be too few.
MOST_FAILURES = 5


def happens(batch: int, point: str) -> bool:
    """True the first time that a batch is at its point."""
    if DEATHS.get(batch) != point:
        return False
    try:
        (Path(os.environ["ONCELOG_TEST_FOLDER"]) / "happened" / f"{batch} {point}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    """The driver, that is, the process group of its Python and its JVM; Spark's Python workers end by themselves."""
    os.killpg(int(os.environ["ONCELOG_TEST_DRIVER"]), signal.SIGKILL)
    signal.pause()


class DyingSink(StreamSink):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        assert task is not None
        batch = int(task.getLocalProperty(BATCH_ID) or "")

        def dying_after_the_first(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in iterator:
                yield rows  # when the next ones are asked for, these are on their way in an open branch
                if happens(batch, WRITING):
                    die()

        sink.CHUNK_BYTES = sink.CHUNK_BYTES_PER_PARTITION = 1  # type: ignore[misc]
        written = super().write(dying_after_the_first(iterator))
        if batch == FAILING_BATCH and task.attemptNumber() == 0:
            raise RuntimeError("this attempt fails, and Spark makes another")
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if happens(batchId, SEALED):
            die()
        super().commit(messages, batchId)
        if happens(batchId, ANSWER_LOST):
            raise ConnectionError("the answer is lost")
        if happens(batchId, DECIDED):
            die()


class DyingDataSource(OncelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        return DyingSink(read_sink_options(self.options, streaming=True), schema)


def main(bootstrap: str, topic: str, folder: str) -> None:
    os.environ["ONCELOG_TEST_FOLDER"] = folder
    os.environ["ONCELOG_TEST_DRIVER"] = str(os.getpgrp())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2, 4]")  # up to four attempts of each task
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")  # so that there is something between batches
        .getOrCreate()
    )
    spark.dataSource.register(DyingDataSource)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(f"{folder}/input").repartition(2)
    writer = lines.writeStream.format("dying").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    failures = 0
    while True:
        try:
            writer.start().awaitTermination()
            return
        except StreamingQueryException:
            failures += 1
            if failures > MOST_FAILURES:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
