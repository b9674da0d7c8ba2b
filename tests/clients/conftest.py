"""What only the tests with real clients want; the broker is that of tests/conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.raw import offered_versions
from tests.peers.chosen import Address

END_TXN = 26
INIT_PRODUCER_ID = 22


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings inside the client libraries are not ours to mend; everywhere else they stay errors."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"))


@pytest.fixture
def broker(shared_broker: Address) -> Address:
    return shared_broker


@pytest.fixture
def group(name: str) -> str:
    return name


@pytest.fixture
def idempotence(broker: Address) -> None:
    _need(broker, INIT_PRODUCER_ID, "producer ids")


@pytest.fixture
def transactions(broker: Address) -> None:
    _need(broker, END_TXN, "transactions")


def _need(broker: Address, api_key: int, what: str) -> None:
    if api_key not in offered_versions(broker.port):
        pytest.skip(f"this broker offers no {what} yet")
