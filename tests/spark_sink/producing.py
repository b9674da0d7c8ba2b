"""Records written by a client that nobody here wrote."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer


def producer(bootstrap: str, **settings: Any) -> Producer:
    config = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, **config})


def produce(bootstrap: str, topic: str, values: Iterable[bytes | None], *, partition: int = 0, **settings: Any) -> None:
    client = producer(bootstrap, **settings)
    for value in values:
        client.produce(topic, value, partition=partition)
    assert client.flush(20) == 0


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]
