"""What only the tests that cause faults want; the broker is that of tests/conftest.py."""

from __future__ import annotations

import pytest

from tests.clients.topics import Topics
from tests.peers.chosen import Address


@pytest.fixture
def port(shared_broker: Address) -> int:
    return shared_broker.port


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create()
