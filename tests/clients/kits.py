"""Four Kafka clients behind one pair of verbs, so that one test can be run with each of them and with each pair of
them.

Only what is common goes through here: write messages, read messages from the start. What a client alone can do is
tested with that client's own API.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.clients.libraries import kafka
from tests.outside import missing

PATIENCE_SECONDS = 20.0

T = TypeVar("T")


@dataclass(frozen=True)
class Message:
    """What a user puts into a topic."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class Read(NamedTuple):
    """What a reader gets, wherever it was stored."""

    partition: int
    offset: int
    message: Message


@dataclass(frozen=True)
class Kit(Protocol):
    """A client library."""

    name: str

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], *, codec: str = "none") -> None:
        """Write to partition 0 with acks=all and return when everything is acknowledged."""

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Read]:
        """The first `count` messages of partition 0."""


@dataclass(frozen=True)
class Confluent:
    name: str = "confluent-kafka"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], *, codec: str = "none") -> None:
        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
        producer = Producer(settings)
        failures: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        for message in messages:
            stamp: dict[str, Any] = {} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=0,
                on_delivery=delivered,
                **stamp,
            )
        assert producer.flush(PATIENCE_SECONDS) == 0, "not everything was acknowledged"
        if failures:
            raise KafkaException(failures[0])

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Read]:
        settings = {"bootstrap.servers": bootstrap, "group.id": "kit-unused", "enable.auto.commit": False}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        got: list[Read] = []
        until = time.monotonic() + PATIENCE_SECONDS
        while len(got) < count and time.monotonic() < until:
            polled: list[Any] = consumer.consume(count - len(got), timeout=0.2)
            for message in polled:
                assert message.error() is None, message.error()
                headers: Any = tuple(message.headers() or [])
                body = Message(message.value(), message.key(), headers, message.timestamp()[1])
                got.append(Read(message.partition(), message.offset(), body))
        consumer.close()
        return got


@dataclass(frozen=True)
class Aiokafka:
    name: str = "aiokafka"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], *, codec: str = "none") -> None:
        run_within_patience(self._produce(bootstrap, topic, messages, None if codec == "none" else codec))

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Read]:
        return run_within_patience(self._consume(bootstrap, topic, count))

    async def _produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str | None) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=20, acks="all")
        await producer.start()
        try:
            waiting = [
                await producer.send(
                    topic,
                    message.value,
                    key=message.key,
                    partition=0,
                    timestamp_ms=message.timestamp_ms,
                    headers=list(message.headers),
                )
                for message in messages
            ]
            for answer in waiting:
                await answer
        finally:
            await producer.stop()

    async def _consume(self, bootstrap: str, topic: str, count: int) -> list[Read]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        got: list[Read] = []
        try:
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(got) < count:
                    message = await consumer.getone()
                    body = Message(message.value, message.key, tuple(message.headers), message.timestamp)
                    got.append(Read(message.partition, message.offset, body))
        finally:
            await consumer.stop()
        return got


@dataclass(frozen=True)
class KafkaPython:
    name: str = "kafka-python"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], *, codec: str = "none") -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            acks="all",
            enable_idempotence=False,
        )
        try:
            waiting = [
                producer.send(
                    topic,
                    message.value,
                    key=message.key,
                    partition=0,
                    timestamp_ms=message.timestamp_ms,
                    headers=list(message.headers),
                )
                for message in messages
            ]
            for answer in waiting:
                answer.get(timeout=PATIENCE_SECONDS)
        finally:
            producer.close()

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Read]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, consumer_timeout_ms=int(PATIENCE_SECONDS * 1000)
        )
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        got: list[Read] = []
        try:
            for message in consumer:
                body = Message(message.value, message.key, tuple(message.headers), message.timestamp)
                got.append(Read(message.partition, message.offset, body))
                if len(got) == count:
                    break
        finally:
            consumer.close()
        return got


@dataclass(frozen=True)
class Kcat:
    """The command line client. It reads one message a line, so values and keys here are one line of text."""

    name: str = "kcat"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], *, codec: str = "none") -> None:
        for group in _runs_of_equal_headers(messages):
            command = [
                "kcat",
                "-P",
                "-b",
                bootstrap,
                "-t",
                topic,
                "-p",
                "0",
                "-z",
                codec,
                "-X",
                "acks=-1",
                "-Z",
                "-K\t",
            ]
            for name, value in group[0].headers:
                command += ["-H", name if value is None else f"{name}={value.decode()}"]
            lines = b"".join((message.key or b"") + b"\t" + (message.value or b"") + b"\n" for message in group)
            _run(command, lines)

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Read]:
        command = [
            "kcat",
            "-C",
            "-b",
            bootstrap,
            "-t",
            topic,
            "-p",
            "0",
            "-o",
            "beginning",
            "-c",
            str(count),
            "-J",
            "-q",
        ]
        rows = [json.loads(line) for line in _run(command).splitlines()]
        return [self._read(row) for row in rows]

    def _read(self, row: dict[str, Any]) -> Read:
        flat = row.get("headers", [])
        values = [None if value is None else value.encode() for value in flat[1::2]]
        headers = tuple(zip(flat[::2], values, strict=True))
        key, value = (None if row[name] is None else row[name].encode() for name in ("key", "payload"))
        return Read(row["partition"], row["offset"], Message(value, key, headers, row["ts"]))


def _runs_of_equal_headers(messages: Sequence[Message]) -> list[list[Message]]:
    groups: list[list[Message]] = []
    for message in messages:
        if groups and groups[-1][0].headers == message.headers:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _run(command: list[str], given: bytes = b"") -> bytes:
    done = subprocess.run(command, input=given, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode(errors='replace')}"
    return done.stdout


LIBRARIES: tuple[Kit, ...] = (Confluent(), Aiokafka(), KafkaPython())
HERE: tuple[Kit, ...] = LIBRARIES if missing("kcat") else (*LIBRARIES, Kcat())


def run_within_patience(work: Coroutine[Any, Any, T], *, patience_seconds: float = 3 * PATIENCE_SECONDS) -> T:
    """Run aiokafka's coroutines; one that hangs is a failure and is left behind, because aiokafka may not let itself
    be cancelled and `asyncio.run` would wait for it forever."""

    async def bounded() -> T:
        task = asyncio.ensure_future(work)
        await asyncio.wait([task], timeout=patience_seconds)
        assert task.done(), f"not done within {patience_seconds} s: {task.get_stack(limit=3)}"
        return task.result()

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(bounded())
    finally:
        loop.close()


@dataclass
class Eventually:
    """Wait for something another process does; the only way a client test may wait."""

    patience_seconds: float = PATIENCE_SECONDS
    pause_seconds: float = 0.05
    last: object = field(default=None, init=False)

    def __call__(self, look: Callable[[], object], accept: Callable[[Any], bool] = bool) -> Any:
        until = time.monotonic() + self.patience_seconds
        while True:
            self.last = look()
            if accept(self.last):
                return self.last
            assert time.monotonic() < until, (
                f"waited {self.patience_seconds} s in vain; the last look showed {self.last!r}"
            )
            time.sleep(self.pause_seconds)


eventually = Eventually()
