"""Apache Flink: its exactly-once KafkaSink in a cluster of one process with planted failures, and the producer with
which it resumes transactions after a restart.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.more.java import compiled, fetched, java
from tests.clients.programs import Check, CheckFailed, expect, run
from tests.clients.topics import Topics

FLINK = "2.0.0"
CONNECTOR = "4.0.1-2.0"
VALUES = [str(number) for number in range(2000)]
FAIL_AT = ("700", "1500")
LAST = "last"
PATIENCE_SECONDS = 60.0


def copies(naming: str) -> Check:
    """Each value comes once, though the job fails and starts again. `naming`: how the sink names its transactions."""

    def check(bootstrap: str) -> None:
        topics = Topics(bootstrap, f"flink-{time.time_ns()}")
        source, target = topics.create(partitions=2), topics.create(partitions=2)
        producer = Producer({"bootstrap.servers": bootstrap})
        for number, value in enumerate(VALUES):
            producer.produce(source, value, partition=number % 2)
        producer.flush(20)
        with tempfile.TemporaryDirectory() as folder:
            printed = run([*_program("FlinkCopies"), bootstrap, source, target, folder, naming, *FAIL_AT])
            expect(printed, "done")
            for value in FAIL_AT:
                if not Path(folder, f"failed-at-{value}").exists():
                    raise CheckFailed(f"the failure planted at {value} did not happen")
        for partition in range(2):
            producer.produce(target, LAST, partition=partition)
        producer.flush(20)
        committed = _values(bootstrap, target, "read_committed")
        if sorted(committed) != sorted(VALUES):
            raise CheckFailed(f"{len(committed)} values were committed, {len(set(committed))} different ones")
        if len(_values(bootstrap, target, "read_uncommitted")) == len(VALUES):
            raise CheckFailed("no transaction was aborted: the failures came to nothing")

    return check


def resumes(bootstrap: str) -> None:
    """Transactions that outlive the process which prepared them."""
    topic = Topics(bootstrap, f"flink-{time.time_ns()}").create(partitions=2)
    printed = run([*_program("FlinkResumes"), bootstrap, topic])
    expect(printed, "resumed", "pooled", "fenced", "aborted", "done")


def _program(name: str) -> list[str]:
    versions = (f"-Dflink.version={FLINK}", f"-Dconnector.version={CONNECTOR}")
    jars = fetched(f"flink-connector-kafka-{CONNECTOR}", "flink.xml", *versions)
    opened = "--add-opens=java.base/java.util=ALL-UNNAMED"  # Flink serializes its plan by reflection
    return [*java(compiled(f"{name}.java", jars), jars, heap="512m"), opened, name]


def _values(bootstrap: str, topic: str, isolation: str) -> list[str]:
    """What both partitions hold before their last value."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "flink-unused", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": isolation})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    found: list[str] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while found.count(LAST) < 2:
        if time.monotonic() > until:
            raise CheckFailed(f"{isolation}, the end did not come after {len(found)} values")
        for message in consumer.consume(500, timeout=0.5):
            value = message.value()
            if message.error() is None and value is not None:
                found.append(value.decode())
    consumer.close()
    return [value for value in found if value != LAST]
