"""Three broker processes and one metadata store: the leader of what a producer writes to is killed, again and again.
Everything acknowledged is there, once and in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.clients.kits import eventually
from tests.peers.ours import Oncelog
from tests.peers.postgres import PostgresServer, missing
from tests.peers.process import QUICK_SETTINGS

TOPIC = "ledger"
PARTITIONS = 3
KILLS = 3
BETWEEN_KILLS = 3_000
"""Records."""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[int, Oncelog]]:
    if reason := missing():
        pytest.skip(reason)
    postgres = PostgresServer(tmp_path / "postgres")
    postgres.start()
    settings = {
        **QUICK_SETTINGS,
        "store.url": postgres.url,
        "broker.session.timeout.ms": "3000",
        "http.listeners": "",
        "min.insync.replicas": "2",
    }
    started = {
        node_id: Oncelog(tmp_path / f"broker-{node_id}", settings={**settings, "node.id": str(node_id)})
        for node_id in (1, 2, 3)
    }
    for broker in started.values():
        broker.start()
    yield started
    for broker in started.values():
        if broker.running():
            broker.kill()
    postgres.stop()


def described(bootstrap: str) -> dict[int, Any]:
    """What the cluster says of the topic's partitions; nothing while nobody answers."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 2_000})
    topics = admin.list_topics(TOPIC, timeout=5).topics
    return dict(topics[TOPIC].partitions)


class Deliveries:
    """What the producer was told of each value."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: list[str] = []
        self._sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
                "topic.metadata.refresh.interval.ms": 1_000,
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            value = b"%d" % self._sent
            self._producer.produce(TOPIC, value, partition=self._sent % PARTITIONS, on_delivery=self._told)
            self._sent += 1
            self._producer.poll(0)

    def settle(self) -> None:
        left = self._producer.flush(90)
        assert left == 0, f"{left} values were never answered"

    @property
    def sent(self) -> int:
        return self._sent

    def _told(self, error: Any, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and value is not None
        self.acknowledged[partition, offset] = value


def read_all(bootstrap: str) -> dict[tuple[int, int], bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    found: dict[tuple[int, int], bytes] = {}
    try:
        everything = [TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
        ends = {each.partition: consumer.get_watermark_offsets(each, timeout=10)[1] for each in everything}
        consumer.assign(everything)
        deadline = time.monotonic() + 60
        while len(found) < sum(ends.values()) and time.monotonic() < deadline:
            for message in consumer.consume(1_000, timeout=1.0):
                assert message.error() is None, message.error()
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None and offset is not None and value is not None
                found[partition, offset] = value
    finally:
        consumer.close()
    return found


def test_leaders_are_killed_and_nothing_acknowledged_is_lost_or_doubled(brokers: dict[int, Oncelog]) -> None:
    bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    eventually(lambda: len(admin.list_topics(timeout=5).brokers), lambda known: known == len(brokers))
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
    deliveries = Deliveries(bootstrap)
    deliveries.send(BETWEEN_KILLS)
    for _ in range(KILLS):
        leader = described(bootstrap)[0].leader
        brokers[leader].kill()
        deliveries.send(BETWEEN_KILLS)
        deliveries.settle()
        brokers[leader].start()
        eventually(
            lambda: [sorted(each.isrs) for each in described(bootstrap).values()],
            lambda in_sync: in_sync == [[1, 2, 3]] * PARTITIONS,
        )
    assert not deliveries.failed
    found = read_all(bootstrap)
    assert len(deliveries.acknowledged) == deliveries.sent
    assert found == deliveries.acknowledged
    for number in range(PARTITIONS):
        values = [int(found[key]) for key in sorted(found) if key[0] == number]
        assert values == list(range(number, deliveries.sent, PARTITIONS))
    for broker in brokers.values():
        assert "Traceback" not in broker.log_path.read_text()
