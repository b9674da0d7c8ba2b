"""What becomes of a machine that nobody uses any more: its broker has stopped leading, or following, the partition."""

import gc
import weakref
from collections.abc import Iterator
from sys import getrefcount

import pytest

from service.turns import ALONE
from tests.service.groups.driver import Driver


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_machine_that_is_thrown_away_is_freed_at_once() -> None:
    """Not by the next pass of the collector over all objects, with all groups and offsets until then."""
    driver = Driver()
    driver.stable_group("classic")
    driver.beat("a", 0, "consumer")
    driver.commit(group="idle")
    driver.delete_group("another")
    driver.wait(1)
    machine, offsets = weakref.ref(driver.machine), weakref.ref(driver.machine._offsets)
    groups = list(driver.machine._groups.values())
    driver.restart()
    assert (machine(), offsets()) == (None, None)
    assert len(groups) == 3
    while groups:
        group = groups.pop()
        assert getrefcount(group) == ALONE
