"""Idempotent and transactional clients: nothing twice, all or nothing, and readers that never see what was aborted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Producer as ConfluentProducer

from service.wire.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.clients.kits import PATIENCE_SECONDS, Confluent, run_within_patience
from tests.clients.libraries import kafka
from tests.clients.offsets import committed_offsets, produce_everywhere
from tests.clients.raw import stored_batches
from tests.conformance.conversations.transactions import Producer, begun, data, end, settled
from tests.conformance.talk import Talk
from tests.peers.chosen import Address


def transactional(broker: Address, transactional_id: str, **settings: Any) -> ConfluentProducer:
    plain = {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    producer = ConfluentProducer(plain | {name.replace("_", "."): value for name, value in settings.items()})
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def committed_values(broker: Address, topic: str, *, isolation: str = "read_committed") -> list[bytes]:
    """Everything a reader finds up to the end it is shown."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "unused",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while True:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, "no end of the partition"
        if message.error() is not None:
            consumer.close()
            return found
        found.append(message.value())  # type: ignore[arg-type]


@pytest.mark.usefixtures("idempotence")
def test_an_idempotent_producer_stores_its_producer_id(broker: Address, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    producer = ConfluentProducer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce(topic, f"{number}".encode())
    assert producer.flush(PATIENCE_SECONDS) == 0

    batches = stored_batches(broker.port, topic, 0)
    assert len({batch.producer_id for batch in batches}) == 1
    assert batches[0].producer_id >= 0
    assert not any(batch.transactional for batch in batches)


@pytest.mark.usefixtures("transactions")
def test_readers_see_what_was_committed_and_never_what_was_aborted(
    broker: Address, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic()
    producer = transactional(broker, group)
    for number, commit in enumerate([True, False, True, False, True]):
        producer.begin_transaction()
        producer.produce(topic, f"{number}".encode())
        producer.flush(PATIENCE_SECONDS)
        if commit:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)

    assert committed_values(broker, topic) == [b"0", b"2", b"4"]
    assert committed_values(broker, topic, isolation="read_uncommitted") == [b"0", b"1", b"2", b"3", b"4"]
    assert [batch.control for batch in stored_batches(broker.port, topic, 0)] == [False, True] * 5


@pytest.mark.usefixtures("transactions")
def test_an_open_transaction_holds_back_readers_and_a_new_instance_aborts_it(
    broker: Address, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic()
    zombie = transactional(broker, group)
    zombie.begin_transaction()
    zombie.produce(topic, b"half")
    zombie.flush(PATIENCE_SECONDS)
    Confluent().produce(broker.bootstrap, topic, [])
    assert committed_values(broker, topic) == []

    heir = transactional(broker, group)
    heir.begin_transaction()
    heir.produce(topic, b"whole")
    heir.commit_transaction(PATIENCE_SECONDS)
    with pytest.raises(KafkaException) as caught:
        zombie.produce(topic, b"too late")
        zombie.commit_transaction(PATIENCE_SECONDS)
    assert caught.value.args[0].fatal(), "the first instance is fenced for good"
    assert committed_values(broker, topic) == [b"whole"]


@pytest.mark.usefixtures("transactions")
def test_writes_that_are_under_way_at_once_keep_their_order(broker: Address, group: str) -> None:
    """As the Java client: five requests on one connection, some of which add a partition to the transaction."""
    talk = Talk(broker.port, f"in-a-row-{group}")
    try:
        topic = talk.topic(partitions=2)
        producer = begun(talk, talk.transactional_id())
        for number in range(40):
            sequences = [0, 0]
            sent = []
            for partitions in ORDERS[number % len(ORDERS)]:
                rows = [PartitionProduceData(index=at, records=data(producer, sequences[at])) for at in partitions]
                sent.append(talk.send(many_rows(producer, topic, rows), 12))
                for at in partitions:
                    sequences[at] += 1
            answers = [talk.hear(one) for one in sent]
            codes = [row.error_code for one in answers if one for row in one.responses[0].partition_responses]
            assert set(codes) == {0}, f"transaction {number}: {codes}"
            ended = talk.quietly(end(producer, commit=True), 5)
            settled(talk, producer)
            producer = Producer(producer.transactional_id, ended.producer_id, ended.producer_epoch)
    finally:
        talk.close()


ORDERS = (((0,), (0, 1), (0,), (0,), (0,)), ((0, 1), (1,), (0,), (1,), (0, 1)), ((0,), (0,), (0, 1), (0,), (0, 1)))


def many_rows(producer: Producer, topic: str, rows: list[PartitionProduceData]) -> ProduceRequest:
    named = [TopicProduceData(name=topic, partition_data=rows)]
    return ProduceRequest(transactional_id=producer.transactional_id, acks=-1, timeout_ms=10_000, topic_data=named)


@pytest.mark.usefixtures("transactions")
def test_offsets_are_committed_with_the_messages_or_not_at_all(
    broker: Address, new_topic: Callable[..., str], group: str
) -> None:
    """Consume, transform, produce."""
    source, target = new_topic(), new_topic()
    produce_everywhere(broker.bootstrap, source, partitions=1, count=10)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    producer = transactional(broker, group)

    def copy(count: int) -> None:
        producer.begin_transaction()
        for _ in range(count):
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None and message.error() is None
            producer.produce(target, message.value())
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_SECONDS)

    copy(4)
    producer.commit_transaction(PATIENCE_SECONDS)
    assert committed_offsets(broker.bootstrap, group, source, 1) == [4]
    copy(3)
    producer.abort_transaction(PATIENCE_SECONDS)
    assert committed_offsets(broker.bootstrap, group, source, 1) == [4]
    assert committed_values(broker, target) == [f"value-{number}".encode() for number in range(4)]
    consumer.close()


@pytest.mark.usefixtures("transactions")
def test_aiokafka_commits_and_aborts(broker: Address, new_topic: Callable[..., str], group: str) -> None:
    topic = new_topic()

    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=group)
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept")
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"dropped")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept too")
                await producer.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): 2}, group)
        finally:
            await producer.stop()

    run_within_patience(write())
    assert committed_values(broker, topic) == [b"kept", b"kept too"]
    assert committed_offsets(broker.bootstrap, group, topic, 1) == [2]


@pytest.mark.usefixtures("transactions")
def test_kafka_python_commits_and_aborts(broker: Address, new_topic: Callable[..., str], group: str) -> None:
    topic = new_topic()
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=group)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"kept").get(PATIENCE_SECONDS)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"dropped").get(PATIENCE_SECONDS)
        producer.abort_transaction()
    finally:
        producer.close()
    assert committed_values(broker, topic) == [b"kept"]
