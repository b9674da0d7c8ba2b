"""Where a reader stands: seeks, offsets for times, ends of a partition, commits in every manner, and lag."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from tests.clients.kits import PATIENCE_SECONDS, Confluent, Message, eventually, run_within_patience
from tests.clients.libraries import kafka
from tests.clients.offsets import committed_offsets, produce_everywhere
from tests.peers.chosen import Address

COUNT = 50
STEP_MS = 1_000


@pytest.fixture
def timed_topic(broker: Address, new_topic: Callable[..., str]) -> tuple[str, int]:
    """A topic of fifty messages, one a second, and the time of the first."""
    topic = new_topic()
    first = int(time.time() * 1000) - COUNT * STEP_MS
    messages = [Message(f"{number}".encode(), timestamp_ms=first + number * STEP_MS) for number in range(COUNT)]
    Confluent().produce(broker.bootstrap, topic, messages)
    return topic, first


def confluent_consumer(broker: Address, group: str, **settings: Any) -> Consumer:
    plain = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer(plain | {name.replace("_", "."): value for name, value in settings.items()})


def next_value(consumer: Consumer) -> bytes:
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None and message.error() is None
    value: bytes = message.value()  # type: ignore[assignment]
    return value


def test_confluent_seeks_and_finds_offsets_by_time(broker: Address, timed_topic: tuple[str, int], group: str) -> None:
    topic, first = timed_topic
    consumer = confluent_consumer(broker, group)
    consumer.assign([TopicPartition(topic, 0, 20)])
    assert next_value(consumer) == b"20"
    consumer.seek(TopicPartition(topic, 0, 3))
    assert next_value(consumer) == b"3"
    consumer.seek(TopicPartition(topic, 0, OFFSET_BEGINNING))
    assert next_value(consumer) == b"0"
    consumer.seek(TopicPartition(topic, 0, OFFSET_END))
    assert consumer.poll(0.3) is None

    asked = {first - 5: 0, first: 0, first + 1: 1, first + 30 * STEP_MS: 30, first + 49 * STEP_MS: 49}
    for timestamp, offset in asked.items():
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], timeout=PATIENCE_SECONDS)
        assert found.offset == offset
    (beyond,) = consumer.offsets_for_times(
        [TopicPartition(topic, 0, first + COUNT * STEP_MS)], timeout=PATIENCE_SECONDS
    )
    assert beyond.offset == OFFSET_END
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_SECONDS) == (0, COUNT)
    consumer.close()


def test_confluent_asks_for_the_latest_timestamp(broker: Address, timed_topic: tuple[str, int]) -> None:
    topic, first = timed_topic
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    place = TopicPartition(topic, 0)
    kinds: Any = OffsetSpec
    wanted = {"earliest": kinds.earliest(), "latest": kinds.latest(), "max": kinds.max_timestamp()}
    found = {name: admin.list_offsets({place: spec})[place].result(PATIENCE_SECONDS) for name, spec in wanted.items()}
    assert {name: result.offset for name, result in found.items()} == {"earliest": 0, "latest": COUNT, "max": COUNT - 1}
    assert found["max"].timestamp == first + (COUNT - 1) * STEP_MS


def test_kafka_python_seeks_and_finds_offsets_by_time(broker: Address, timed_topic: tuple[str, int]) -> None:
    topic, first = timed_topic
    place = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    try:
        consumer.assign([place])
        consumer.seek(place, 20)
        assert next(consumer).value == b"20"
        consumer.seek_to_beginning(place)
        assert next(consumer).value == b"0"
        consumer.seek_to_end(place)
        assert consumer.position(place) == COUNT
        assert consumer.beginning_offsets([place]) == {place: 0}
        assert consumer.end_offsets([place]) == {place: COUNT}
        found = consumer.offsets_for_times({place: first + 30 * STEP_MS - 1})[place]
        assert (found.offset, found.timestamp) == (30, first + 30 * STEP_MS)
        assert consumer.offsets_for_times({place: first + COUNT * STEP_MS})[place] is None
    finally:
        consumer.close()


def test_aiokafka_seeks_and_finds_offsets_by_time(broker: Address, timed_topic: tuple[str, int]) -> None:
    topic, first = timed_topic
    place = aiokafka.TopicPartition(topic, 0)

    async def look() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([place])
            consumer.seek(place, 20)
            assert (await consumer.getone()).value == b"20"
            await consumer.seek_to_beginning(place)
            assert (await consumer.getone()).value == b"0"
            await consumer.seek_to_end(place)
            assert await consumer.position(place) == COUNT
            assert await consumer.beginning_offsets([place]) == {place: 0}
            assert await consumer.end_offsets([place]) == {place: COUNT}
            found = (await consumer.offsets_for_times({place: first + 30 * STEP_MS - 1}))[place]
            assert (found.offset, found.timestamp) == (30, first + 30 * STEP_MS)
        finally:
            await consumer.stop()

    run_within_patience(look())


def test_confluent_commits_in_every_manner_and_its_lag_is_right(
    broker: Address, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(partitions=2)
    produce_everywhere(broker.bootstrap, topic, partitions=2, count=20)
    consumer = confluent_consumer(broker, group, enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])

    consumer.commit(offsets=[TopicPartition(topic, 0, 4, metadata="a note")], asynchronous=False)
    assert committed_offsets(broker.bootstrap, group, topic, 2) == [4, -1001]
    (with_note, _) = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=PATIENCE_SECONDS)
    assert with_note.metadata == "a note"

    consumer.commit(offsets=[TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 2)], asynchronous=True)
    eventually(lambda: committed_offsets(broker.bootstrap, group, topic, 2), lambda offsets: offsets == [7, 2])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 1), timeout=PATIENCE_SECONDS)
    assert end - 2 == 8, "the lag of partition 1"
    consumer.close()


def test_confluent_commits_by_itself_and_when_it_closes(
    broker: Address, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic()
    produce_everywhere(broker.bootstrap, topic, partitions=1, count=10)
    consumer = confluent_consumer(broker, group, enable_auto_commit=True, auto_commit_interval_ms=100)
    consumer.subscribe([topic])
    for _ in range(10):
        next_value(consumer)
    eventually(
        lambda: consumer.poll(0.05) or committed_offsets(broker.bootstrap, group, topic, 1), lambda found: found == [10]
    )

    produce_everywhere(broker.bootstrap, topic, partitions=1, count=5)
    next_value(consumer)
    consumer.close()
    assert committed_offsets(broker.bootstrap, group, topic, 1)[0] >= 11


def test_aiokafka_commits_in_every_manner(broker: Address, new_topic: Callable[..., str], group: str) -> None:
    topic = new_topic()
    produce_everywhere(broker.bootstrap, topic, partitions=1, count=10)
    place = aiokafka.TopicPartition(topic, 0)

    async def commit() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
        )
        await consumer.start()
        for _ in range(5):
            await asyncio.wait_for(consumer.getone(), PATIENCE_SECONDS)
        await consumer.commit({place: aiokafka.structs.OffsetAndMetadata(3, "note")})
        assert await consumer.committed(place) == 3
        await consumer.commit()
        assert await consumer.committed(place) == 5
        for _ in range(5):
            await consumer.getone()
        await consumer.stop()

    run_within_patience(commit())
    assert committed_offsets(broker.bootstrap, group, topic, 1) == [10], "what it had read when it stopped"


def test_kafka_python_commits_in_every_manner(broker: Address, new_topic: Callable[..., str], group: str) -> None:
    topic = new_topic()
    produce_everywhere(broker.bootstrap, topic, partitions=1, count=10)
    place = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    for _ in range(5):
        next(consumer)
    consumer.commit({place: kafka.OffsetAndMetadata(3, "note", -1)})
    assert consumer.committed(place) == 3
    consumer.commit_async().add_errback(pytest.fail)
    eventually(lambda: consumer.committed(place), lambda offset: offset == 5)
    consumer.close()
    assert committed_offsets(broker.bootstrap, group, topic, 1) == [5]
