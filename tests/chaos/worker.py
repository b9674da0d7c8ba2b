"""One client process: reads a topic in a group, writes what it reads to another, and commits both in transactions.

`python -m tests.chaos.worker CLIENT BOOTSTRAP URLS SOURCE TARGET GROUP SECONDS`. It is killed at any moment and
started again; or it gives up by itself on an error that its library calls fatal (exit status 3), which is as good. It
aborts every seventh transaction on purpose and ends by itself (status 0) when SECONDS have passed or it is told by
SIGTERM. Its transactional id is its group and the process' number in it: with one process a group, a new one
fences the old one.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import time
from collections.abc import Callable

import aiokafka
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.chaos.over_http import CARELESS, OVER_HTTP, Refused
from tests.clients.libraries import kafka

BATCH = 20
ABORT_EVERY = 7
WAIT_SECONDS = 10.0
GAVE_UP = 3
HUNG_SECONDS = 25.0


def run_confluent(bootstrap: str, source: str, target: str, group: str, until: float) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "debug": "cgrp,consumer,topic,metadata,fetch",
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 500,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": group,
            "transaction.timeout.ms": 5_000,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_SECONDS)
    consumer.subscribe([source])
    turn = 0
    while time.monotonic() < until:
        _alive()
        messages = []
        for message in consumer.consume(BATCH, 0.2):
            if (error := message.error()) is None:
                messages.append(message)
                continue
            print(f"the consumer was told: {error}", file=sys.stderr, flush=True)
            # When a group's coordinator moves before it has told the offsets, librdkafka (2.15; its issue 5586) never
            # asks the new one for them: the member holds its partitions, sends heartbeats, and reads nothing.
            if error.code() == KafkaError.NOT_COORDINATOR:
                raise KafkaException(error)
        if not messages:
            continue
        turn += 1
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value(), message.key(), partition=message.partition() or 0)
            producer.poll(0)
        positions = consumer.position(consumer.assignment())
        try:
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_SECONDS)
            if turn % ABORT_EVERY:
                _commit(producer)
                continue
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
        producer.abort_transaction(WAIT_SECONDS)
        break
    consumer.close()


def _commit(producer: Producer) -> None:
    while True:
        try:
            producer.commit_transaction(WAIT_SECONDS)
            return
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise


def _alive() -> None:
    """A library that hangs (they do, when brokers die at the wrong moment) is noticed: where it hung goes into the
    log, and the process ends.
    """
    faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)


def run_aiokafka(bootstrap: str, source: str, target: str, group: str, until: float) -> None:
    asyncio.run(_aiokafka(bootstrap, source, target, group, until))


async def _aiokafka(bootstrap: str, source: str, target: str, group: str, until: float) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=3_000,
        heartbeat_interval_ms=500,
    )
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=group, transaction_timeout_ms=5_000
    )
    async with asyncio.timeout(WAIT_SECONDS):
        await producer.start()
    await consumer.start()
    turn = 0
    while time.monotonic() < until:
        _alive()
        read = await consumer.getmany(timeout_ms=200, max_records=BATCH)
        if not read:
            continue
        turn += 1
        async with asyncio.timeout(2 * WAIT_SECONDS):
            await producer.begin_transaction()
            for place, messages in read.items():
                for message in messages:
                    await producer.send(target, message.value, message.key, partition=place.partition)
            positions = {place: messages[-1].offset + 1 for place, messages in read.items()}
            await producer.send_offsets_to_transaction(positions, group)
            if turn % ABORT_EVERY:
                await producer.commit_transaction()
                continue
            await producer.abort_transaction()
        break
    await consumer.stop()
    await producer.stop()


def run_kafka_python(bootstrap: str, source: str, target: str, group: str, until: float) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=group, transaction_timeout_ms=5_000, max_block_ms=10_000
    )
    producer.init_transactions()
    consumer = kafka.KafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=3_000,
        heartbeat_interval_ms=500,
    )
    turn = 0
    idle_since = time.monotonic()
    while time.monotonic() < until:
        _alive()
        # With a poll that ends between join and sync, kafka-python 3.0 never takes the partitions it was given (10 of
        # 25 times with poll(20) from Apache Kafka): a long one seldom does, and who has none begins anew.
        read = consumer.poll(timeout_ms=1_000, max_records=BATCH)
        if consumer.assignment():
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > WAIT_SECONDS:
            raise TimeoutError("no partitions")
        if not read:
            continue
        turn += 1
        producer.begin_transaction()
        sent = [
            producer.send(target, value=message.value, key=message.key, partition=place.partition)
            for place, messages in read.items()
            for message in messages
        ]
        positions = {
            place: kafka.structs.OffsetAndMetadata(messages[-1].offset + 1, "", -1) for place, messages in read.items()
        }
        producer.send_offsets_to_transaction(positions, consumer.group_metadata())
        for future in sent:
            future.get(WAIT_SECONDS)
        if turn % ABORT_EVERY:
            producer.commit_transaction()
            continue
        producer.abort_transaction()
        break
    consumer.close()
    producer.close()


CLIENTS: dict[str, Callable[[str, str, str, str, float], None]] = {
    "confluent-kafka": run_confluent,
    "aiokafka": run_aiokafka,
    "kafka-python": run_kafka_python,
}


def main() -> int:
    client, bootstrap, urls, source, target, group, seconds = sys.argv[1:]
    until = time.monotonic() + float(seconds)
    over_http = (OVER_HTTP | CARELESS).get(client)
    try:
        while time.monotonic() < until:
            if over_http is None:  # these have a timeout of their own for all they ask
                _alive()
            # An abort does not take the reader back (KAFKA-17582): then new clients begin where the group stands.
            if over_http is not None:
                over_http(urls, source, target, group, until)
            else:
                CLIENTS[client](bootstrap, source, target, group, until)
    except (KafkaException, AiokafkaError, kafka.errors.KafkaError, Refused, TimeoutError, OSError) as failure:
        print(f"{client}: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
        return GAVE_UP
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # As a crashed client leaves: without waiting for the threads of its library.
    os._exit(status)
