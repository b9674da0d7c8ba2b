"""The broker that tests are run on: ours, or an Apache Kafka, which is how the tests themselves are tested.

`ONCELOG_TEST_BROKER=kafka` makes the tests start an Apache Kafka.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.peers import kafka
from tests.peers.kafka import ApacheKafka
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS, BrokerProcess

SETTINGS = {**QUICK_SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


class Address:
    """Where the broker of a test listens."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.port = int(bootstrap.rpartition(":")[2])


def new_broker(folder: Path, **more: str) -> BrokerProcess:
    """Not started yet. Settings with underscores for dots."""
    settings = {**SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    if os.environ.get("ONCELOG_TEST_BROKER") != "kafka":
        return Oncelog(folder, settings=settings)
    why = kafka.missing()
    if why:
        pytest.skip(why)
    return ApacheKafka(folder, settings=settings)
