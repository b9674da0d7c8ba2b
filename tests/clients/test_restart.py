"""The broker ends in the middle, politely or not, and everything goes on: messages, topics, settings, offsets,
groups."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

from tests.clients.kits import HERE, PATIENCE_SECONDS, Confluent, eventually
from tests.clients.members import GroupPlan, Member, wait_until_shared
from tests.clients.offsets import committed_offsets, produce_everywhere
from tests.peers.process import BrokerProcess

PARTITIONS = 3


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "7654321"})
    admin.create_topics([new])[topic].result(PATIENCE_SECONDS)


def again(broker: BrokerProcess, how: str) -> None:
    if how == "SIGTERM":
        broker.stop()
    else:
        broker.kill()
    broker.start()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize(
    ("client", "protocol"),
    [("confluent-kafka", "cooperative-sticky"), ("confluent-kafka", "consumer:uniform"), ("aiokafka", "range")],
)
def test_groups_and_data_go_on_over_a_restart(own_broker: BrokerProcess, client: str, protocol: str, how: str) -> None:
    create(own_broker.bootstrap, "events")
    members = [Member(GroupPlan(client, own_broker.bootstrap, "events", "readers", protocol)) for _ in range(2)]
    try:
        wait_until_shared(members, partitions=PARTITIONS)
        written = produce_everywhere(own_broker.bootstrap, "events", partitions=PARTITIONS, count=30)
        eventually(lambda: sum(len(member.reads) for member in members), lambda total: total == 30)

        again(own_broker, how)

        written += produce_everywhere(own_broker.bootstrap, "events", partitions=PARTITIONS, first=30, count=30)
        eventually(
            lambda: {value for member in members for _, _, value in member.reads}, lambda seen: seen == set(written)
        )
        wait_until_shared(members, partitions=PARTITIONS)
        eventually(
            lambda: committed_offsets(own_broker.bootstrap, "readers", "events", PARTITIONS),
            lambda offsets: offsets == [20] * PARTITIONS,
        )
    finally:
        for member in members:
            member.end()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_producer_that_is_writing_when_the_broker_ends_loses_nothing(own_broker: BrokerProcess, how: str) -> None:
    create(own_broker.bootstrap, "events")
    producer = Producer({"bootstrap.servers": own_broker.bootstrap, "linger.ms": 5, "acks": "all"})
    acknowledged: list[tuple[int, bytes]] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        acknowledged.append((message.offset(), message.value()))

    def write(first: int, count: int) -> None:
        for number in range(first, first + count):
            producer.produce("events", f"{number}".encode(), partition=0, on_delivery=delivered)
            producer.poll(0)

    write(0, 2_000)
    again(own_broker, how)
    write(2_000, 2_000)
    assert producer.flush(PATIENCE_SECONDS) == 0

    end = max(offset for offset, _ in acknowledged) + 1
    stored = {read.offset: read.message.value for read in Confluent().consume(own_broker.bootstrap, "events", end)}
    assert len(acknowledged) == 4_000
    assert [stored[offset] for offset, _ in acknowledged] == [value for _, value in acknowledged]


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_topics_settings_and_offsets_are_there_after_a_restart(own_broker: BrokerProcess, how: str) -> None:
    create(own_broker.bootstrap, "events")
    produce_everywhere(own_broker.bootstrap, "events", partitions=PARTITIONS, count=30)
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    before = admin.list_topics(timeout=PATIENCE_SECONDS).cluster_id

    again(own_broker, how)

    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    assert admin.list_topics(timeout=PATIENCE_SECONDS).cluster_id == before
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "events")]).values()
    assert future.result(PATIENCE_SECONDS)["retention.ms"].value == "7654321"
    for kit in HERE:
        got = kit.consume(own_broker.bootstrap, "events", 10)
        assert [read.offset for read in got] == list(range(10)), kit.name
