"""A program that copies one topic into another in transactions, killed half way: each value comes once."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.programs import CheckFailed
from tests.clients.topics import Topics

PARTITIONS = 3
VALUES = [str(number) for number in range(600)]
KILL_AFTER = 200
PATIENCE_SECONDS = 120.0


def copies_once(bootstrap: str, name: str, program: Sequence[str], *more: str) -> None:
    """Each value comes once and in its partition's order. The program is started with the bootstrap address, the topics
    it reads and writes, and what else is given."""
    topics = Topics(bootstrap, f"{name}-{time.time_ns()}")
    source, target = topics.create(partitions=PARTITIONS), topics.create(partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(VALUES):
        producer.produce(source, value, partition=number % PARTITIONS)
    producer.flush(20)
    with tempfile.TemporaryFile("w+") as log:
        for isolation, enough in (("read_uncommitted", KILL_AFTER), ("read_committed", len(VALUES))):
            copying = subprocess.Popen([*program, bootstrap, source, target, *more], stdout=log, stderr=log)
            try:
                found = _read(bootstrap, target, isolation, enough)
            except CheckFailed as late:
                log.seek(0)
                raise CheckFailed(f"{late}: {log.read()[-1500:]}") from None
            finally:
                copying.kill()
                copying.wait()
    _read(bootstrap, target, "read_uncommitted", len(VALUES) + 1)  # or else nothing was rolled back
    for partition, values in enumerate(found):
        if values != VALUES[partition::PARTITIONS]:
            raise CheckFailed(f"{len(values)} values of partition {partition}, {len(set(values))} different ones")


def _read(bootstrap: str, topic: str, isolation: str, enough: int) -> list[list[str]]:
    """Read from the start until so many values are there; by partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "copying-unused", "enable.auto.commit": False}
    reader = Consumer({**settings, "isolation.level": isolation})
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    until = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, found)) < enough:
        if time.monotonic() > until:
            raise CheckFailed(f"{isolation}, {sum(map(len, found))} of {enough} values were copied")
        for message in reader.consume(500, timeout=0.1):
            value, partition = message.value(), message.partition()
            if message.error() is None and value is not None and partition is not None:
                found[partition].append(value.decode())
    reader.close()
    return found
