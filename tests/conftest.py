"""For all tests: the broker they may share, one of their own; what was drawn and what was skipped, told at the end.

`ONCELOG_TEST_BOOTSTRAP=host:port` points the tests that need no broker of their own at one that runs already; see
`tests/peers/chosen.py` for those that are started.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.peers.chosen import Address, new_broker
from tests.peers.process import BrokerProcess

if TYPE_CHECKING:
    from tests.clients.topics import Topics

DRAWN = "drawn"

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with tests that may take longest come first, then those with many tests. At the end of a run there is
    one worker for each file, and the others have nothing to do.
    """
    patience, tests = Counter[Path](), Counter(item.path for item in items)
    for item in items:
        if (timeout := item.get_closest_marker("timeout")) is not None:
            patience[item.path] = max(patience[item.path], timeout.args[0])
    items.sort(key=lambda item: (-patience[item.path], -tests[item.path]))


@pytest.fixture(scope="module", autouse=True)
def what_a_file_leaves_open_is_told_by_its_own_last_test() -> Iterator[None]:
    """A socket, for example: otherwise a test of another file was told of it, and failed. What stays is not looked
    through again and again: pytest keeps so much of eleven thousand tests that this took a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in (*terminalreporter.stats.get("passed", []), *terminalreporter.stats.get("failed", [])):
        for name, what in report.user_properties:
            if name == DRAWN:
                terminalreporter.write_line(what)
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        _, _, why = report.longrepr
        reasons[why.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped")
        for reason, times in reasons.most_common():
            terminalreporter.write_line(f"{times:5}  {reason}")


@pytest.fixture
def drawn(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes what chance has drawn for the test; the end of the run tells it, and how to run the same again."""
    return functools.partial(record_property, DRAWN)


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """One broker for all tests; each test makes topics and groups of its own."""
    running = os.environ.get("ONCELOG_TEST_BOOTSTRAP")
    if running:
        yield Address(running)
        return
    # Many tests write records with times of years ago. Retention would remove them while they are tested.
    broker = new_broker(tmp_path_factory.mktemp("broker"), log_retention_check_interval_ms="86400000")
    broker.start()
    yield Address(broker.bootstrap)
    broker.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may pause, stop, kill and start again."""
    if os.environ.get("ONCELOG_TEST_BOOTSTRAP"):
        pytest.skip("the broker at ONCELOG_TEST_BOOTSTRAP is not ours to restart")
    broker = new_broker(tmp_path / "own")
    broker.start()
    yield broker
    if broker.running():
        broker.kill()


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for groups, transactional ids and roots."""
    return f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topics(shared_broker: Address, name: str) -> Topics:
    from tests.clients.topics import Topics  # a client library that most tests need not wait for

    return Topics(shared_broker.bootstrap, name)


@pytest.fixture
def new_topic(topics: Topics) -> Callable[..., str]:
    return topics.create
