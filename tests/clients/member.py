"""One member of a consumer group in a process of its own, so that a test can kill it.

    python -m tests.clients.member CLIENT BOOTSTRAP TOPIC GROUP PROTOCOL [INSTANCE]

PROTOCOL is a classic assignor (`range`, `roundrobin`, `sticky`, `cooperative-sticky`) or `consumer:uniform`,
`consumer:range` for KIP-848. Prints one JSON line whenever its assignment changes, one for all messages it got at a
time, and one for every message after its offset was committed. Ends when its client fails or hangs. Begins when a line
comes on its standard input, and leaves the group when that ends: a test that must not be slow between the end of one
member and the begin of the next starts the next one before.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import json
import sys
import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SESSION_TIMEOUT_MS = 2000
HEARTBEAT_INTERVAL_MS = 300
POLL_SECONDS = 0.1
HUNG_SECONDS = 25.0
LIBRARIES = {
    "confluent-kafka": "confluent_kafka",
    "aiokafka": "aiokafka",
    "kafka-python": "tests.clients.libraries",
}


@dataclass(frozen=True)
class Membership:
    bootstrap: str
    topic: str
    group: str
    protocol: str
    instance: str | None


class Reporter:
    """Tells the test what happened."""

    def __init__(self) -> None:
        self._assigned: list[int] | None = None

    def assigned(self, partitions: list[int]) -> None:
        faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)  # unless it comes here again
        if partitions != self._assigned:
            self._assigned = partitions
            self._say(assigned=partitions)

    def got(self, places: Iterable[tuple[int, int]]) -> None:
        self._say(got=list(places))

    def read(self, partition: int, offset: int, value: bytes) -> None:
        self._say(read=[partition, offset, value.decode()])

    def _say(self, **fact: object) -> None:
        print(json.dumps(fact), flush=True)


def _leave_when_input_ends() -> threading.Event:
    leaving = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        leaving.set()

    threading.Thread(target=wait, daemon=True).start()
    return leaving


def run_confluent(membership: Membership, reporter: Reporter, leaving: threading.Event) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException

    settings: dict[str, Any] = {
        "bootstrap.servers": membership.bootstrap,
        "group.id": membership.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if membership.protocol.startswith("consumer:"):
        settings |= {"group.protocol": "consumer", "group.remote.assignor": membership.protocol.partition(":")[2]}
    else:
        settings |= {
            "partition.assignment.strategy": membership.protocol,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        }
    if membership.instance:
        settings["group.instance.id"] = membership.instance
    consumer = Consumer(settings)
    consumer.subscribe([membership.topic])
    while not leaving.is_set():
        polled: list[Any] = consumer.consume(100, POLL_SECONDS)
        for error in (message.error() for message in polled):
            # A fatal error that is told again (UNRELEASED_INSTANCE_ID) has this code, and is not marked as fatal.
            if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
                raise KafkaException(error)
        messages = [message for message in polled if message.error() is None]
        reporter.assigned(sorted(place.partition for place in consumer.assignment()))
        if messages:
            reporter.got((message.partition(), message.offset()) for message in messages)
            consumer.commit(asynchronous=False)
        for message in messages:
            reporter.read(message.partition(), message.offset(), message.value())
    consumer.close()


def run_kafka_python(membership: Membership, reporter: Reporter, leaving: threading.Event) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        membership.topic,
        bootstrap_servers=membership.bootstrap,
        group_id=membership.group,
        group_instance_id=membership.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[assignors[membership.protocol]],
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
    )
    while not leaving.is_set():
        # A poll of kafka-python 3.0.12 that ends while the answer to SyncGroup comes in loses the assignment for good.
        wait_seconds = POLL_SECONDS if consumer.assignment() else 10 * POLL_SECONDS
        polled = consumer.poll(timeout_ms=int(wait_seconds * 1000))
        reporter.assigned(sorted(place.partition for place in consumer.assignment()))
        if polled:
            reporter.got((each.partition, each.offset) for messages in polled.values() for each in messages)
            consumer.commit()
        for messages in polled.values():
            for message in messages:
                reporter.read(message.partition, message.offset, message.value)
    consumer.close()


async def run_aiokafka(membership: Membership, reporter: Reporter, leaving: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    consumer = AIOKafkaConsumer(
        membership.topic,
        bootstrap_servers=membership.bootstrap,
        group_id=membership.group,
        group_instance_id=membership.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[assignors[membership.protocol]],
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
    )
    await consumer.start()
    while not leaving.is_set():
        polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
        reporter.assigned(sorted(place.partition for place in consumer.assignment()))
        if polled:
            reporter.got((each.partition, each.offset) for messages in polled.values() for each in messages)
            await consumer.commit()
        for messages in polled.values():
            for message in messages:
                reporter.read(message.partition, message.offset, message.value)
    await consumer.stop()


def main(client: str, *where: str) -> None:
    bootstrap, topic, group, protocol, *instance = where
    membership = Membership(bootstrap, topic, group, protocol, instance[0] if instance else None)
    importlib.import_module(LIBRARIES[client])  # which takes its time
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    leaving = _leave_when_input_ends()
    match client:
        case "confluent-kafka":
            run_confluent(membership, Reporter(), leaving)
        case "kafka-python":
            run_kafka_python(membership, Reporter(), leaving)
        case "aiokafka":
            asyncio.run(run_aiokafka(membership, Reporter(), leaving))
        case _:
            raise SystemExit(f"unknown client {client}")


if __name__ == "__main__":
    main(*sys.argv[1:])
