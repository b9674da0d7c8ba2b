"""How far the wall clock can be trusted: a machine may start before its clock is set, and a clock may be set again.

Stored things are stamped by the wall clock, because the steady clock starts again with every boot. Some of them are
deleted at a certain age. Their age must not be judged by a stamp that was made before the clock was right.
"""

from typing import Final

CLOCK_SET_MS: Final = 978_307_200_000
"""The beginning of 2001. A wall clock that shows an earlier time was never set; an earlier stamp tells nothing."""
JUMP_MS: Final = 3_600_000
"""A smaller jump of the clock is ignored: what is watched here is kept for days."""


class ClockWatch:
    """When the wall clock last jumped ahead of the steady clock: it was set, or the machine slept. That is `set_ms`."""

    def __init__(self) -> None:
        self._first_ms = 0
        self._ahead_ms: int | None = None
        self.set_ms = 0

    def look(self, steady_ms: int, wall_ms: int) -> None:
        ahead_ms = wall_ms - steady_ms
        if self._ahead_ms is None:
            self._first_ms = wall_ms
        elif ahead_ms - self._ahead_ms > JUMP_MS:
            self.set_ms = wall_ms
        self._ahead_ms = ahead_ms

    def since_ms(self, stamped_ms: int) -> int:
        """The time from which the age of a stamped thing counts: its stamp. It is never a time before the clock was
        last set, nor, if the clock had not been set when it was stamped, before the first look.
        """
        return max(stamped_ms, self.set_ms, self._first_ms if stamped_ms < CLOCK_SET_MS else 0)
