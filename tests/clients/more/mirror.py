"""MirrorMaker 2 with exactly-once: it copies a topic while it is killed. Both of its clusters are the one broker."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.more.connect import PATIENCE_SECONDS, ConnectProcess
from tests.clients.programs import CheckFailed
from tests.clients.topics import Topics

PARTITIONS = 3
VALUES_AT_ONCE = 20
VALUES_BEFORE_A_KILL = 500
KILLS = 2

Found = list[list[int]]


class Mirror:
    """What goes into the topic, and what has come out of its copy."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.wanted: Found = [[] for _ in range(PARTITIONS)]
        self.found: Found = [[] for _ in range(PARTITIONS)]
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        settings = {"bootstrap.servers": bootstrap, "group.id": "mirror-unused", "enable.auto.commit": False}
        self._reader = Consumer({**settings, "isolation.level": "read_committed"})
        self._reader.assign([TopicPartition(f"near.{topic}", partition, 0) for partition in range(PARTITIONS)])

    def write(self) -> None:
        for _ in range(VALUES_AT_ONCE):
            number = sum(map(len, self.wanted))
            self._producer.produce(self._topic, str(number), partition=number % PARTITIONS)
            self.wanted[number % PARTITIONS].append(number)
        self._producer.flush(20)

    def read(self) -> int:
        """How many values have come."""
        for message in self._reader.consume(500, timeout=0.1):
            value, partition = message.value(), message.partition()
            if message.error() is None and value is not None and partition is not None:
                self.found[partition].append(int(value))
        return sum(map(len, self.found))


def mirrors(bootstrap: str) -> None:
    """Each value comes once and in its partition's order."""
    name = f"mirror-{time.time_ns()}"
    topic = Topics(bootstrap, name).create(partitions=PARTITIONS)
    mirror = Mirror(bootstrap, topic)
    with tempfile.TemporaryDirectory() as folder:
        maker = ConnectProcess("mirror.MirrorMaker", _settings(bootstrap, topic), Path(folder))
        try:
            for _ in range(KILLS):
                _until(mirror, mirror.read() + VALUES_BEFORE_A_KILL, maker, writes=True)
                maker.kill()
                maker.start()
            _until(mirror, sum(map(len, mirror.wanted)), maker, writes=False)
            mirror.read()  # what came once more would come now
        finally:
            maker.kill()
    for partition, values in enumerate(mirror.found):
        if values != mirror.wanted[partition]:
            raise CheckFailed(
                f"{len(values)} values of partition {partition}, {len(set(values))} different ones, instead of "
                f"{len(mirror.wanted[partition])}"
            )


def _until(mirror: Mirror, wanted: int, maker: ConnectProcess, *, writes: bool) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while mirror.read() < wanted:
        if time.monotonic() > until:
            raise CheckFailed(f"{mirror.read()} of {wanted} values have come: {maker.printed()}")
        if writes:
            mirror.write()


def _settings(bootstrap: str, topic: str) -> dict[str, str]:
    made = (
        "checkpoints.topic",
        "heartbeats.topic",
        "offset-syncs.topic",
        "offset.storage",
        "status.storage",
        "config.storage",
    )
    return {
        "clusters": "near,far",
        "near.bootstrap.servers": bootstrap,
        "far.bootstrap.servers": bootstrap,
        "near->far.enabled": "true",
        "far->near.enabled": "false",
        "near->far.topics": topic,
        "far.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "tasks.max": "2",
        "replication.factor": "1",
        **{f"{each}.replication.factor": "1" for each in made},
    }
