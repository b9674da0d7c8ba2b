"""What is set aside from the looks for dead cycles, and that cycles which die there go all the same."""

import asyncio
import contextlib
import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from service import garbage
from service.garbage import HELD_FOR, SPARED_KIB, Garbage


class Knot:
    """An object in a cycle, which only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def the_collector_is_left_as_it_was() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.collect()


@contextlib.contextmanager
def while_running(looking: Garbage) -> Iterator[None]:
    async def begin() -> asyncio.Task[None]:
        running = asyncio.create_task(looking.run())
        await asyncio.sleep(0)
        return running

    with asyncio.Runner() as runner:
        running = runner.run(begin())
        yield
        running.cancel()


def test_what_survived_a_full_look_is_not_looked_at_again() -> None:
    with while_running(Garbage()):
        knot = Knot()
        gc.collect()
        gone = weakref.ref(knot)
        del knot
        gc.collect()
        assert gone() is not None


def test_what_died_before_its_first_full_look_is_found() -> None:
    with while_running(Garbage()):
        knot = Knot()
        gone = weakref.ref(knot)
        del knot
        gc.collect()
        assert gone() is None


def test_dead_cycles_among_what_was_set_aside_are_found_when_there_is_twice_as_much_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To count what is set aside would take as long as to look at it."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("what is set aside was counted"))
    blocks = sys.getallocatedblocks()
    running = Garbage(spared=-blocks // 2)
    with while_running(running):
        knots = [Knot()]
        gone = weakref.ref(knots[0])
        gc.collect()
        running.count()
        knots += [Knot() for _ in range(blocks)]
        gc.collect()
        del knots[0]
        running.count()
        assert gone() is None
        knots[:] = [Knot()]
        gone = weakref.ref(knots[0])
        gc.collect()
        knots.clear()
        running.count()
        assert gone() is not None, "there is not that much"


def test_dead_cycles_that_hold_much_for_long_are_found_however_few_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one batch takes to be packed (zstd 22: 270 MB) is given back soon: a look for it held the loop for 0.1 s."""
    kib = garbage.resident_kib()
    monkeypatch.setattr(garbage, "resident_kib", lambda: kib)
    running = Garbage()
    with while_running(running):
        knot = Knot()
        gc.collect()
        gone = weakref.ref(knot)
        del knot
        kib += SPARED_KIB
        for _ in range(2 * HELD_FOR):
            running.count()
        for _ in range(3):
            kib += 1
            for _ in range(HELD_FOR - 1):
                running.count()
            kib -= 1
            running.count()
        assert gone() is not None
        kib += 1
        for _ in range(HELD_FOR):
            running.count()
        assert gone() is None


def test_the_collector_is_as_before_when_the_broker_has_ended() -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    with while_running(Garbage()):
        assert gc.get_threshold() != before[0]
        assert gc.isenabled()
    assert (gc.get_threshold(), list(gc.callbacks)) == before
