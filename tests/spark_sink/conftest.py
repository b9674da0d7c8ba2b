"""One broker and one Spark for all tests of `spark_sink`.

`ONCELOG_TEST_BOOTSTRAP=host:port` points the tests at a broker that runs already, `ONCELOG_TEST_BROKER=kafka` makes
them start an Apache Kafka, on which what needs branches is skipped.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sink import client as wire
from spark_sink import register
from spark_sink.client import Client, ClientSettings
from tests.clients.topics import Topics
from tests.faults.conftest import new_broker
from tests.outside import missing
from tests.peers.process import BrokerProcess

_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def no_client_left_open() -> Iterator[None]:
    yield
    for client in wire._clients.values():
        client.close()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the broker listens that all tests share; each test makes topics and roots of its own."""
    running = os.environ.get("ONCELOG_TEST_BOOTSTRAP")
    if running:
        yield running
        return
    broker = new_broker(tmp_path_factory.mktemp("spark-broker"))
    broker.start()
    yield broker.bootstrap
    broker.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may stop, kill and start again."""
    if os.environ.get("ONCELOG_TEST_BOOTSTRAP"):
        pytest.skip("the broker at ONCELOG_TEST_BOOTSTRAP is not ours to restart")
    broker = new_broker(tmp_path / "own")
    broker.start()
    yield broker
    if broker.running():
        broker.kill()


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for roots, groups and transactional ids."""
    return f"spark-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topics(bootstrap: str, name: str) -> Topics:
    return Topics(bootstrap, name)


@pytest.fixture
def new_topic(topics: Topics) -> Callable[..., str]:
    return topics.create


def settings_for(bootstrap: str) -> ClientSettings:
    host, _, port = bootstrap.rpartition(":")
    return ClientSettings(((host, int(port)),), patience_seconds=20)


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(settings_for(bootstrap)) as client:
        yield client


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests: it takes five seconds to start. Two Python workers, no web page."""
    if not os.environ.get("JAVA_HOME") and (why := missing("java")):
        pytest.skip(why)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of the workers, which import what this process does
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()
