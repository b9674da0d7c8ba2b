"""A Python process of Spark's stays alive, and collects garbage after each of its calls."""

import subprocess
import sys

import pytest

TASKS = """
import gc
from pyspark.sql.datasource import InputPartition
from spark_sink.options import source_options
from spark_sink.source import _read

options = source_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"}, streaming=False)
for task in range(3):
    assert list(_read(InputPartition(0), options)) == []
    print(gc.get_freeze_count(), len(gc.get_objects()))
"""

# Beside the driver: Spark makes a sink to plan each micro-batch, and another one to commit it.
SINKS = """
import gc
from pyspark.sql.types import StructType
from spark_sink.sink import StreamSink
from spark_sink.sink_options import read_sink_options

options = read_sink_options({"kafka.bootstrap.servers": "127.0.0.1:1"}, streaming=True)
for batch in range(3):
    StreamSink(options, StructType().add("value", "string").add("topic", "string"))
    print(gc.get_freeze_count(), len(gc.get_objects()))
"""

ROUNDS = 20
COLUMNS_BYTES = 15 << 20
COLUMNS = f"""
import resource
import numpy as np
from spark_sink.worker import keep_freed_memory

keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    columns = [np.ones({COLUMNS_BYTES // 5}, np.int8) for _ in range(5)]
    del columns
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, resource.getpagesize())
"""


def told_by(program: str) -> list[tuple[int, ...]]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("calls", [TASKS, SINKS], ids=["tasks", "sinks"])
def test_what_was_imported_is_looked_at_no_more_after_the_first_call(calls: str) -> None:
    (frozen, left), *later = told_by(calls)
    assert frozen > 10_000
    assert left < 1_000
    assert [count for count, _ in later] == [frozen, frozen]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_the_memory_of_columns_is_used_again_by_the_next_ones() -> None:
    ((faults, page_bytes),) = told_by(COLUMNS)
    assert faults < 2 * COLUMNS_BYTES / page_bytes, f"in {ROUNDS} rounds"
