"""Limits how many bytes of long requests a broker holds at once, over all its listeners together.

What always holds: a connection that needs more than is free waits in a queue, and is not read meanwhile. One connection
at a time may go beyond the limit, with its one request. So requests get finished even if many have come half way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Holder(Protocol):
    def go_on(self) -> None:
        """There may be room: ask again, a little later."""


class RequestBytes:
    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self.total = 0
        self.waiting: dict[Holder, None] = {}
        self._beyond: Holder | None = None  # the one that may exceed the limit

    def hold(self, holder: Holder, size: int) -> bool:
        """Whether `holder` may hold `size` bytes from now on. If not, it waits in the queue, and its `go_on` is called
        later.
        """
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
        """Let others have the room, because `holder` can't use it now. It must ask again when it can."""
        if holder in self.waiting:
            del self.waiting[holder]
            self._wake()

    def release(self, holder: Holder) -> None:
        """`holder` holds nothing any more, and does not wait."""
        self.waiting.pop(holder, None)
        self.total -= self._held.pop(holder, 0)
        if holder is self._beyond:
            self._beyond = None
        self._wake()

    def _wake(self) -> None:
        if self.waiting:
            next(iter(self.waiting)).go_on()
