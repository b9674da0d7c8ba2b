"""Committed offsets and messages spread over partitions: what several tests look at."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients.kits import PATIENCE_SECONDS


def produce_everywhere(bootstrap: str, topic: str, *, partitions: int, first: int = 0, count: int) -> list[str]:
    """Write `count` values, the same number to each partition; the values."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    values = [f"value-{number}" for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions)
    assert producer.flush(PATIENCE_SECONDS) == 0, "not everything was acknowledged"
    return values


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """The committed offset of each partition, -1001 where there is none, as librdkafka puts it."""
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
    found = futures[group].result(PATIENCE_SECONDS).topic_partitions
    offsets = {place.partition: place.offset for place in found}
    return [offsets[partition] for partition in range(partitions)]
