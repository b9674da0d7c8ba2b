"""A Python process of Spark's stays alive, and collects garbage after each of its calls."""

import os
import pickle
import socket
import subprocess
import sys
import threading
import time

import pytest

from spark_sink.sink import BatchSink, StreamSink
from spark_sink.source import OncelogReader, OncelogStreamReader
from spark_sink.worker import SentToWorkers, acknowledge_what_came

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


HELD_BACK_SECONDS = 0.035  # the kernel's 40 ms, less what its clock may be off
TASKS_OF_A_WORKER = 12
COMMAND_BYTES, INPUT_BYTES, RESULT_BYTES = 10_000, 300, 900


class Writer(SentToWorkers):
    def __init__(self) -> None:
        self.topic = "orders"  # pickle passes over what has no state


def fastest_task(sent: object | None) -> float:
    """How long the fastest of some tasks takes in a worker that unpickles `sent` with each command."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pickled = pickle.dumps(sent)

        def work() -> None:
            with socket.create_connection(server.getsockname()) as spark, spark.makefile("rb") as commands:
                for _ in range(TASKS_OF_A_WORKER):
                    commands.read(COMMAND_BYTES)
                    pickle.loads(pickled)
                    commands.read(INPUT_BYTES)
                    spark.sendall(bytes(RESULT_BYTES))

        worker = threading.Thread(target=work)
        worker.start()
        took = []
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as results:
            for _ in range(TASKS_OF_A_WORKER):
                began = time.monotonic()
                connection.sendall(bytes(COMMAND_BYTES))
                connection.sendall(bytes(INPUT_BYTES))
                results.read(RESULT_BYTES)
                took.append(time.monotonic() - began)
        worker.join()
    return min(took[2:])  # a connection that is new is acknowledged at once


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels can't be asked")
def test_spark_sends_the_input_of_a_task_without_a_pause_after_its_command() -> None:
    assert fastest_task(None) > HELD_BACK_SECONDS, "what is mended is not there"
    assert fastest_task(Writer()) < HELD_BACK_SECONDS


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels can't be asked")
def test_asking_for_it_opens_and_closes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, open(os.devnull) as no_socket:
        before = sorted(os.listdir("/proc/self/fd"))
        acknowledge_what_came()
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert server.getsockname() and no_socket.read() == "", "still open"


@pytest.mark.parametrize("sent", [BatchSink, StreamSink, OncelogReader, OncelogStreamReader])
def test_whatever_spark_pickles_into_a_command_is_sent_so(sent: type) -> None:
    assert issubclass(sent, SentToWorkers)
