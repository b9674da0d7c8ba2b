"""Where the numbers end: epochs at 32766, sequences at 2^31. No client lives so long, so the broker's log is made to
say that one has.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping

import aiokafka
import pytest
from confluent_kafka import Producer

from log.batch import build_batch
from service.client.connection import Client
from service.wire.error_codes import ErrorCode
from service.wire.messages import InitProducerIdRequest
from tests.clients.libraries import kafka as kafka_python
from tests.clients.topics import Topics
from tests.conformance.say import produce
from tests.faults.scenario import in_loop, stage
from tests.faults.surgery import set_epoch
from tests.faults.writer import COMING, NEWEST, OLD, Writer, seen, settled, until
from tests.peers import kafka
from tests.peers.process import BrokerProcess
from tests.rules import rule

LAST_EPOCH = 32_766
LAST_SEQUENCE = 2**31 - 1
TRANSACTIONS = 9
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
"""By the partition, which knows a later epoch, or by the coordinator, which knows another id."""
KEPT = [f"{number}" for number in range(TRANSACTIONS) if number % 3 != 2]


async def aged(broker: BrokerProcess, transactional_id: str, epoch: int) -> None:
    """An id whose producer has come to `epoch`, and a broker that has just started."""
    async with Client("127.0.0.1", broker.port) as client:
        await Writer(client, transactional_id).begin()
    broker.kill()
    set_epoch(broker.data, transactional_id, epoch)
    broker.start()


# ---------------------------------------------------------------- epochs


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@rule("B.5", "at epoch 32766 an end hands out a fresh producer id, and so does its repeat; the old one is fenced")
@in_loop
async def test_an_end_at_the_last_epoch_goes_on_under_a_fresh_id(
    own_broker: BrokerProcess, name: str, commit: bool
) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    await aged(own_broker, name, LAST_EPOCH - 2)
    async with stage(own_broker.port) as here:
        writer = Writer(await here.connect(), name)
        await writer.begin()
        first_id = writer.id
        assert writer.epoch == LAST_EPOCH - 1
        await writer.sent(topic, "before")
        await writer.commit()
        assert (writer.id, writer.epoch) == (first_id, LAST_EPOCH)

        await writer.sent(topic, "at the edge")
        before = writer.twin()
        await (writer.commit() if commit else writer.abort())
        assert writer.id != first_id
        assert writer.epoch == 0
        await writer.settled()
        repeated = before.twin()
        assert await repeated.end(commit=commit) is ErrorCode.NONE
        assert (repeated.id, repeated.epoch) == (writer.id, writer.epoch)
        assert await before.send(topic, "zombie", sequence=1) in FENCED

        await writer.sent(topic, "afterwards")
        await writer.commit()
        expected = ["before", "at the edge", "afterwards"] if commit else ["before", "afterwards"]
        assert (await settled(writer.client, topic)).committed == expected


@pytest.mark.parametrize("versions", [NEWEST, OLD], ids=["newest", "older"])
@rule("B.3", "an init over an open transaction at epoch 32766 aborts it and gets a fresh producer id (KAFKA-20090)")
@in_loop
async def test_an_owner_that_takes_over_at_the_last_epoch_gets_a_fresh_id(
    own_broker: BrokerProcess, name: str, versions: Mapping[str, int]
) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    await aged(own_broker, name, LAST_EPOCH - 1)
    async with stage(own_broker.port) as here:
        zombie = Writer(await here.connect(), name, versions)
        await zombie.begin()
        assert zombie.epoch == LAST_EPOCH
        await zombie.sent(topic, "half")
        heir = Writer(zombie.client, name, versions)
        await heir.begin()
        assert heir.id != zombie.id
        assert heir.epoch <= 1  # the fence itself may have used the fresh id's first one
        assert await zombie.send(topic, "zombie") in FENCED
        await heir.sent(topic, "whole")
        await heir.commit()
        assert (await settled(heir.client, topic)).committed == ["whole"]


@rule("B.5", "a broker that dies between the decision at epoch 32766 and its end goes on under the fresh producer id")
@in_loop
async def test_a_death_right_after_the_last_epoch(own_broker: BrokerProcess, name: str) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    await aged(own_broker, name, LAST_EPOCH - 1)
    async with Client("127.0.0.1", own_broker.port) as client:
        writer = Writer(client, name)
        await writer.begin()
        await writer.sent(topic, "decided")
        before = writer.twin()
        await writer.commit()
        own_broker.kill()
    own_broker.start()
    async with Client("127.0.0.1", own_broker.port) as client:
        repeated = before.twin(client)
        assert await until(lambda: repeated.end(commit=True), lambda code: code not in COMING) is ErrorCode.NONE
        assert (repeated.id, repeated.epoch) == (writer.id, 0)
        await repeated.sent(topic, "next")
        await repeated.commit()
        assert (await settled(client, topic)).committed == ["decided", "next"]


def _with_librdkafka(bootstrap: str, transactional_id: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0})
    producer.init_transactions(20)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        producer.produce(topic, f"{number}".encode(), partition=0)
        assert producer.flush(20) == 0
        (producer.abort_transaction if number % 3 == 2 else producer.commit_transaction)(20)


def _with_kafka_python(bootstrap: str, transactional_id: str, topic: str) -> None:
    producer = kafka_python.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        producer.send(topic, f"{number}".encode(), partition=0).get(20)
        (producer.abort_transaction if number % 3 == 2 else producer.commit_transaction)()
    producer.close()


def _with_aiokafka(bootstrap: str, transactional_id: str, topic: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        await producer.start()
        for number in range(TRANSACTIONS):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, f"{number}".encode(), partition=0)
            await (producer.abort_transaction() if number % 3 == 2 else producer.commit_transaction())
        await producer.stop()

    asyncio.run(write())


@pytest.mark.parametrize("write", [_with_librdkafka, _with_kafka_python, _with_aiokafka], ids=lambda one: one.__name__)
@rule("C", "real clients run over the last epoch (32766) without noticing")
def test_real_clients_run_over_the_last_epoch(
    own_broker: BrokerProcess, name: str, write: Callable[[str, str, str], None]
) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    asyncio.run(aged(own_broker, name, LAST_EPOCH - 5))

    async def committed() -> list[str]:
        async with Client("127.0.0.1", own_broker.port) as client:
            return (await settled(client, topic)).committed

    write(own_broker.bootstrap, name, topic)
    assert asyncio.run(committed()) == KEPT
    for _ in range(6):  # each start of an older client moves the epoch by one as well
        write(own_broker.bootstrap, name, topic)
    assert asyncio.run(committed()) == 7 * KEPT


@pytest.mark.skipif(not kafka.JARS.is_dir(), reason="Kafka's jars are not in .cache/kafka/libs")
@rule("C", "the Java client runs over the last epoch (32766) without noticing")
@in_loop
async def test_the_java_client_runs_over_the_last_epoch(own_broker: BrokerProcess, name: str) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    await aged(own_broker, name, LAST_EPOCH - 3)
    arguments = {
        "topic": topic,
        "num-records": "2000",
        "record-size": "10",
        "throughput": "2000",
        "bootstrap-server": own_broker.bootstrap,
        "transactional-id": name,
        "transaction-duration-ms": "50",
    }
    words = [word for key, value in arguments.items() for word in (f"--{key}", value)]
    command = kafka.tool_command("org.apache.kafka.tools.ProducerPerformance", *words)
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=90)
    async with Client("127.0.0.1", own_broker.port) as client:
        assert len((await settled(client, topic)).committed) == 2_000
        assert (await Writer(client, name).described()).producer_epoch < LAST_EPOCH - 3


# ---------------------------------------------------------------- sequences


@rule("B.1", "over 2^31: a batch may span the wrap, its repeat is recognised, also after a death; a gap is 45")
@in_loop
async def test_a_producer_writes_over_the_last_sequence(own_broker: BrokerProcess, name: str) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    producer_id = -1

    async def send(client: Client, sequence: int, *values: str) -> tuple[ErrorCode, int]:
        batch = build_batch(
            [(None, value.encode(), (), 0) for value in values],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        row = (await client.request(produce(topic, batch), 12)).responses[0].partition_responses[0]
        return ErrorCode(row.error_code), row.base_offset

    async with Client("127.0.0.1", own_broker.port) as client:
        producer_id = (await client.request(InitProducerIdRequest(None, 60_000), 5)).producer_id
        assert await send(client, LAST_SEQUENCE - 3, "a", "b") == (ErrorCode.NONE, 0)
        assert await send(client, LAST_SEQUENCE - 1, "c", "d", "e", "f") == (ErrorCode.NONE, 2)
        assert await send(client, LAST_SEQUENCE - 1, "c", "d", "e", "f") == (ErrorCode.NONE, 2)
        assert await send(client, 3, "gap") == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert await send(client, 1, "back") == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    own_broker.kill()
    own_broker.start()
    async with Client("127.0.0.1", own_broker.port) as client:
        again = await until(
            lambda: send(client, LAST_SEQUENCE - 1, "c", "d", "e", "f"), lambda told: told[0] not in COMING
        )
        assert again == (ErrorCode.NONE, 2)
        assert await send(client, 2, "g") == (ErrorCode.NONE, 6)
        assert (await seen(client, topic)).committed == list("abcdefg")


@rule("B.1", "exactly at 2^31 - 1 the next batch begins with 0, in transactions of the older protocol too")
@in_loop
async def test_an_older_transaction_goes_on_with_zero(own_broker: BrokerProcess, name: str) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    async with stage(own_broker.port) as here:
        writer = Writer(await here.connect(), name, OLD)
        await writer.begin()
        writer.sequences[topic, 0] = LAST_SEQUENCE
        await writer.sent(topic, "the last")
        await writer.commit()
        assert await until(lambda: writer.add(topic), lambda code: code not in COMING) is ErrorCode.NONE
        for wrong in (1, LAST_SEQUENCE):
            refused = await writer.send(topic, "another", "one", sequence=wrong)
            assert refused is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        writer.sequences[topic, 0] = 0
        await writer.sent(topic, "the first")
        await writer.commit()
        assert (await settled(writer.client, topic)).committed == ["the last", "the first"]
