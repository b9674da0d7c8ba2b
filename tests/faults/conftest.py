"""The broker that faults are caused on.

`ONCELOG_TEST_BOOTSTRAP=host:port` points the tests that need no broker of their own at one that runs already,
`ONCELOG_TEST_BROKER=kafka` makes them start an Apache Kafka: that is how the tests are tested.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.topics import Topics
from tests.peers import kafka
from tests.peers.kafka import ApacheKafka
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS, BrokerProcess

SETTINGS = {**QUICK_SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


def new_broker(folder: Path, **more: str) -> BrokerProcess:
    settings = {**SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    if os.environ.get("ONCELOG_TEST_BROKER") != "kafka":
        return Oncelog(folder, settings=settings)
    why = kafka.missing()
    if why:
        pytest.skip(why)
    return ApacheKafka(folder, settings=settings)


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where the broker listens that all tests share."""
    running = os.environ.get("ONCELOG_TEST_BOOTSTRAP")
    if running:
        yield int(running.rpartition(":")[2])
        return
    broker = new_broker(tmp_path_factory.mktemp("faults"))
    broker.start()
    yield broker.port
    broker.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may pause, kill, and start again."""
    if os.environ.get("ONCELOG_TEST_BOOTSTRAP"):
        pytest.skip("the broker at ONCELOG_TEST_BOOTSTRAP is not ours to kill")
    broker = new_broker(tmp_path / "own")
    broker.start()
    yield broker
    if broker.running():
        broker.kill()


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for transactional ids and groups."""
    return f"fault-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topics(port: int, name: str) -> Topics:
    return Topics(f"127.0.0.1:{port}", name)


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create()
