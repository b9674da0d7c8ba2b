"""Watches for turns of the event loop that last too long: while one does, nobody else is served.

It looks at how late its own timer comes. What is counted may also be the machine's fault (a process that gets no
processor, a disk that makes a write wait), so the line tells how much of it was spent computing.

Started by `service.process`, beside the broker. A simulated broker has none: its time passes between turns.
"""

import asyncio
import logging
import time
from typing import Final

from log.tally import Histogram

logger = logging.getLogger("oncelog.loop")

HELD_MS: Final = 50
"""Held up longer than this, a client would notice."""
TOLD_EVERY_S: Final = 60.0
"""A busy machine keeps everybody waiting all the time: it is told at most so often."""
TICK_S: Final = 0.01
"""What a turn may escape by: one of HELD_MS and this is always seen. A hundred ticks a second are 0.2 % of a core."""


class LoopWatch:
    def __init__(self) -> None:
        self.turns_held = 0
        self.longest_ms = 0
        self.lag = Histogram()
        """How late the timer came each time, in seconds."""
        self._asked = 0.0, 0.0
        self._kept_waiting = 0
        self._told_s = -TOLD_EVERY_S

    def idle(self) -> float:
        """The part of the time since it was asked last in which this thread did not compute."""
        before_s, busy_before_s = self._asked
        now_s, busy_s = self._asked = asyncio.get_running_loop().time(), time.thread_time()
        return min(max(1 - (busy_s - busy_before_s) / max(now_s - before_s, 0.001), 0.0), 1.0)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, computed_s = loop.time() + TICK_S, time.thread_time()
            await asyncio.sleep(TICK_S)
            now_s = loop.time()
            self.note(int((now_s - due_s) * 1000), int((time.thread_time() - computed_s) * 1000), now_s)

    def note(self, late_ms: int, computed_ms: int, now_s: float) -> None:
        self.lag.add(late_ms / 1000)
        if late_ms < HELD_MS:
            return
        self.turns_held += 1
        self.longest_ms = max(self.longest_ms, late_ms)
        if computed_ms >= late_ms // 2:
            logger.warning("nobody was served for %d ms, of which %d ms were spent computing", late_ms, computed_ms)
            return
        self._kept_waiting += 1
        if now_s - self._told_s >= TOLD_EVERY_S:
            logger.warning(
                "nobody was served for %d ms, of which %d ms were spent computing: the machine gave this process no"
                " processor, or a disk made it wait (%d times since this was last said)",
                *(late_ms, computed_ms, self._kept_waiting),
            )
            self._told_s, self._kept_waiting = now_s, 0
