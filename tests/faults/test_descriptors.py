"""More connections than the process may have: they cost connections, never the logs.

Found by opening them: the disk could not open a file, took itself for broken, and nothing was written any more until
the next start.
"""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.peers.ours import Oncelog

PARTITIONS = 40


class Confined(Oncelog):
    """It may open 100 files and connections together."""

    def command(self) -> list[str]:
        return ["sh", "-c", f"ulimit -n 100; exec {shlex.join(super().command())}"]


@pytest.fixture
def confined(tmp_path: Path) -> Iterator[Confined]:
    broker = Confined(tmp_path)
    broker.start()
    yield broker
    if broker.running():
        broker.kill()


def test_too_many_connections_leave_the_log_what_it_needs(confined: Confined) -> None:
    admin = AdminClient({"bootstrap.servers": confined.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result()
    producer = Producer({"bootstrap.servers": confined.bootstrap, "message.timeout.ms": 30_000})
    failed: list[str] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    def write(partitions: range) -> None:
        for partition in partitions:
            producer.produce("t", b"x", partition=partition, on_delivery=told)
        assert producer.flush(30) == 0
        assert failed == []

    write(range(1))  # its connection is there from now on
    with ExitStack() as connections:
        for _ in range(150):
            connections.enter_context(socket.create_connection(("127.0.0.1", confined.port)))
        write(range(PARTITIONS))  # the first record of each makes files
    write(range(PARTITIONS))
    deadline = time.monotonic() + 10
    while "connections were refused" not in confined.log_tail():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "out of service" not in confined.log_tail()
    assert confined.stop() == 0
