"""A Python worker of Spark's stays alive, and collects garbage after each of its tasks."""

import subprocess
import sys

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


def test_what_was_imported_is_looked_at_no_more_after_the_first_task() -> None:
    done = subprocess.run([sys.executable, "-c", TASKS], capture_output=True, text=True, timeout=60, check=True)
    (frozen, left), *later = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert frozen > 10_000
    assert left < 1_000
    assert [count for count, _ in later] == [frozen, frozen]
