"""The watch over the event loop."""

import asyncio
import logging
import time

import pytest

from service.broker.loop_watch import HELD_MS, LoopWatch


def held(watch: LoopWatch) -> int:
    """How many turns the metrics say held the loop."""
    return sum(watch.lag.counts[watch.lag.bounds.index(HELD_MS / 1000) + 1 :])


def test_a_turn_that_holds_the_loop_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> LoopWatch:
        watch = LoopWatch()
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.02)
        time.sleep(4 * HELD_MS / 1000)  # noqa: ASYNC251 - this is what must be seen
        await asyncio.sleep(0.02)
        task.cancel()
        return watch

    with caplog.at_level(logging.WARNING, "oncelog.loop"):
        watch = asyncio.run(main())
    assert held(watch) >= 1
    assert "nobody was served for" in caplog.text


def test_short_turns_are_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()
    for late_ms in (0, 1, HELD_MS - 1):
        watch.note(late_ms, late_ms, 0.0)
    assert held(watch) == 0
    assert not caplog.text


def test_a_machine_that_is_busy_with_others_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()
    for second in range(150):
        watch.note(2 * HELD_MS, 1, float(second))
    watch.note(2 * HELD_MS, 2 * HELD_MS, 150.0)
    assert held(watch) == 151
    assert ["60 times" in line for line in caplog.messages] == [False, True, True, False], "our own are always told"


def test_a_turn_of_our_own_is_told_however_late_a_busy_machine_makes_it(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()
    for second in range(3):
        watch.note(5 * HELD_MS, HELD_MS, float(second))
    assert len(caplog.messages) == 3


def test_a_turn_that_is_much_longer_than_the_last_told_is_told_at_once_however_little_was_computed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = LoopWatch()
    late = (57, 109, 114, 14_000, 5_100, 900, 3_100, 57)
    for second, late_ms in enumerate(late):
        watch.note(late_ms, 1, float(second))
    watch.note(57, 1, 70.0)
    watch.note(114, 1, 71.0)
    told = [57, 114, 14_000, 5_100, 3_100, 57, 114]
    assert [int(line.split("for ")[1].split()[0]) for line in caplog.messages] == told


def test_who_computes_is_not_idle() -> None:
    async def main() -> tuple[float, float]:
        watch = LoopWatch()
        watch.idle()
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        busy = watch.idle()
        await asyncio.sleep(0.05)
        return busy, watch.idle()

    busy, rested = asyncio.run(main())
    assert busy < rested
    assert rested > 0.5
