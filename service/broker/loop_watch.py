"""Watches for turns of the event loop that last too long. During such a turn no client is served.

It measures how late its own timer fires. A late timer may also be the machine's fault (a process that gets no
processor, a disk that makes a write wait), so the log line says how much of the delay was spent computing.

It runs beside the broker in a real process only. A simulated broker has none: simulated time passes between turns.
"""

import asyncio
import logging
import time
from typing import Final

from log.tally import Histogram

logger = logging.getLogger("oncelog.loop")

HELD_MS: Final = 50
"""A client would notice a delay longer than this."""
TOLD_EVERY_S: Final = 60.0
"""The shortest time between log lines about delays of much the same length: on a busy machine there would be one all
the time. A delay twice as long as the last told is told at once.
"""
ALWAYS_TOLD_MS: Final = 1000
"""A delay as long as this is always told."""
TICK_S: Final = 0.01
"""The period of the timer. A turn that is longer than HELD_MS by this much is always seen. A hundred ticks a second
cost 0.2 % of a core.
"""


class LoopWatch:
    def __init__(self) -> None:
        self.lag = Histogram()
        """How late the timer came each time, in seconds. It has a bound at HELD_MS, so it counts the turns that held
        the loop.
        """
        self._asked = 0.0, 0.0
        self._kept_waiting = 0
        self._told_s, self._told_ms = -TOLD_EVERY_S, 0

    def idle(self) -> float:
        """The fraction of the time since the last call in which this thread did not compute."""
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
        if computed_ms >= min(late_ms // 2, HELD_MS):
            logger.warning("nobody was served for %d ms, of which %d ms were spent computing", late_ms, computed_ms)
            return
        self._kept_waiting += 1
        if now_s - self._told_s >= TOLD_EVERY_S or late_ms >= min(2 * self._told_ms, ALWAYS_TOLD_MS):
            logger.warning(
                "nobody was served for %d ms, of which %d ms were spent computing: the machine gave this process no"
                " processor, or a disk made it wait (%d times since this was last said)",
                *(late_ms, computed_ms, self._kept_waiting),
            )
            self._told_s, self._told_ms, self._kept_waiting = now_s, late_ms, 0
