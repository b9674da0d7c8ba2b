"""What the wall clock's word is worth: a machine may start before its clock is set, and a clock may be set anew.

What is stored is stamped by the wall clock, because the steady clock begins anew with every boot. What counts by age,
and is lost when it is taken for old, must not be judged by a stamp that was made before the clock was right.
"""

from typing import Final

CLOCK_SET_MS: Final = 978_307_200_000
"""The beginning of 2001. A wall clock that says less has not been set; a stamp from before tells nothing."""
JUMP_MS: Final = 3_600_000
"""What is kept for days is not made old by less."""


class ClockWatch:
    """When the wall clock was last set ahead, or the machine slept: the steady clock has not come along."""

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
        """When, at the earliest, that was stamped: not before the first look if the stamp tells nothing, and not
        before the clock was last set.
        """
        return max(stamped_ms if stamped_ms >= CLOCK_SET_MS else self._first_ms, self.set_ms)
