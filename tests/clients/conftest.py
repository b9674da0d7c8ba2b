"""The broker that the client tests talk to.

`ONCELOG_TEST_BOOTSTRAP=host:port` points the tests at a broker that runs already, `ONCELOG_TEST_BROKER=kafka` at an
Apache Kafka that they start themselves: that is how the tests are tested.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.raw import offered_versions
from tests.clients.topics import Topics
from tests.peers import kafka
from tests.peers.kafka import ApacheKafka
from tests.peers.ours import Oncelog
from tests.peers.process import BrokerProcess

END_TXN = 26
INIT_PRODUCER_ID = 22


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings inside the client libraries are not ours to mend; everywhere else they stay errors."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"))


class Address:
    """Where the broker of a test listens."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.port = int(bootstrap.rpartition(":")[2])


def _new_broker(folder: Path) -> BrokerProcess:
    if os.environ.get("ONCELOG_TEST_BROKER") != "kafka":
        return Oncelog(folder)
    why = kafka.missing()
    if why:
        pytest.skip(why)
    return ApacheKafka(folder)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """One broker for all tests; each test makes topics and groups of its own."""
    running = os.environ.get("ONCELOG_TEST_BOOTSTRAP")
    if running:
        yield Address(running)
        return
    process = _new_broker(tmp_path_factory.mktemp("broker"))
    process.start()
    yield Address(process.bootstrap)
    process.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may stop, kill and start again."""
    if os.environ.get("ONCELOG_TEST_BOOTSTRAP"):
        pytest.skip("the broker at ONCELOG_TEST_BOOTSTRAP is not ours to restart")
    process = _new_broker(tmp_path / "own")
    process.start()
    yield process
    if process.running():
        process.kill()


_numbers = itertools.count()


@pytest.fixture
def topics(broker: Address) -> Topics:
    return Topics(broker.bootstrap, f"{os.getpid()}-{next(_numbers)}")


@pytest.fixture
def group() -> str:
    return f"group-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def idempotence(broker: Address) -> None:
    _need(broker, INIT_PRODUCER_ID, "producer ids")


@pytest.fixture
def transactions(broker: Address) -> None:
    _need(broker, END_TXN, "transactions")


def _need(broker: Address, api_key: int, what: str) -> None:
    if api_key not in offered_versions(broker.port):
        pytest.skip(f"this broker offers no {what} yet")


@pytest.fixture
def new_topic(topics: Topics) -> Callable[..., str]:
    return topics.create
