"""Committed offsets and messages spread over partitions: what several tests look at."""

from __future__ import annotations

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from service.groups.records import OFFSET_KEYS, PREFIX_BYTES, read_offset, read_offset_key
from tests.clients.kits import PATIENCE_SECONDS, eventually

COMING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
"""A broker that has just started reads its log first."""


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

    def ask() -> list[TopicPartition] | None:
        futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        try:
            found: list[TopicPartition] = futures[group].result(PATIENCE_SECONDS).topic_partitions
        except KafkaException as failure:
            if failure.args[0].code() not in COMING:
                raise
            return None  # librdkafka's administration leaves asking again to us
        return found

    found = eventually(ask, lambda told: told is not None)
    assert found is not None
    offsets = {place.partition: place.offset for place in found}
    return [offsets[partition] for partition in range(partitions)]


def commits_in_log(bootstrap: str, group: str, partition: int) -> list[tuple[int, int]]:
    """What the group has committed for a partition of its one topic, as the broker's log tells, oldest first: the time
    and the offset.
    """
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True})
    log = "__consumer_offsets"
    places = [TopicPartition(log, each, 0) for each in reader.list_topics(log).topics[log].partitions]
    reader.assign(places)
    found: list[tuple[int, int]] = []
    ends = 0
    while ends < len(places):
        message = reader.poll(PATIENCE_SECONDS)
        assert message is not None, "the log of committed offsets can't be read"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ends += 1
            continue
        key, value = message.key(), message.value()
        if key and value and key[:PREFIX_BYTES] in OFFSET_KEYS:
            of, _, at = read_offset_key(key)
            if (of, at) == (group, partition):
                found.append((message.timestamp()[1], read_offset(value).offset))
    reader.close()
    return found
