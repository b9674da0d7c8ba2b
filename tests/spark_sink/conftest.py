"""One Spark for all tests of `spark_sink`; the broker is that of tests/conftest.py. On an Apache Kafka what needs
branches is skipped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_sink import client as wire
from spark_sink import register
from spark_sink.client import Client, ClientSettings
from tests.outside import missing_java
from tests.peers.chosen import Address


@pytest.fixture(scope="session", autouse=True)
def no_client_left_open() -> Iterator[None]:
    yield
    for client in wire._clients.values():
        client.close()


@pytest.fixture
def bootstrap(shared_broker: Address) -> str:
    return shared_broker.bootstrap


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
    if why := missing_java():
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
