"""One broker with HTTP for all tests of a module; what they write goes to topics of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.service.web.kit import Http, Served


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    broker = Served(tmp_path_factory.mktemp("web") / "data")
    yield broker
    assert broker.stop() == 0
    assert "Traceback" not in broker.log, broker.log


@pytest.fixture
def http(served: Served) -> Iterator[Http]:
    client = Http(served.url)
    yield client
    client.session.close()


_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_names)}"
