"""How many bytes of long requests a broker holds at once, over all its listeners together.

What always holds: a connection that needs more than there is waits in a row, and is not read meanwhile. One at a time
may go beyond, by its one request: so somebody always gets on, however many have come half way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Holder(Protocol):
    def go_on(self) -> None:
        """Ask again, a little later: there may be room."""


class RequestBytes:
    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self.total = 0
        self.waiting: dict[Holder, None] = {}
        self._beyond: Holder | None = None  # the one that may go beyond

    def hold(self, holder: Holder, size: int) -> bool:
        """Whether `holder` may hold `size` bytes from now on. If not, it waits in the row and is told."""
        more = size - self._held.get(holder, 0)
        fits = self.total + more <= self._most()
        if holder is not self._beyond and holder is not next(iter(self.waiting), holder):
            fits = False
        elif not fits and self._beyond is None:
            self._beyond = holder
        if not fits and holder is not self._beyond:
            self.waiting[holder] = None
            return False
        self.waiting.pop(holder, None)
        self._held[holder] = size
        self.total += more
        self._wake()
        return True

    def step_back(self, holder: Holder) -> None:
        """It can't go on now even if there is room: others may. It asks again when it can."""
        if holder in self.waiting:
            del self.waiting[holder]
            self._wake()

    def release(self, holder: Holder) -> None:
        """It holds nothing any more, and wants nothing."""
        self.waiting.pop(holder, None)
        self.total -= self._held.pop(holder, 0)
        if holder is self._beyond:
            self._beyond = None
        self._wake()

    def _wake(self) -> None:
        if self.waiting:
            next(iter(self.waiting)).go_on()
