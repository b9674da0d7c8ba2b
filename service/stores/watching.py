"""Watches, for a store that sees all its commits itself. Each watcher has a bounded queue. A watcher that falls behind
gets a `Gap` and a new `StoreSnapshot`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from service.stores.port import Change, Event, Gap, StoreSnapshot

MAX_WAITING_CHANGES = 1000
"""The most changes in a watcher's queue. Beyond that it is cheaper to read everything again."""


class ChangeWatcher:
    def __init__(self, read: Callable[[], Awaitable[StoreSnapshot]]) -> None:
        self._read = read
        self._waiting: deque[Change] = deque()
        self._missed = False
        self._ended = False
        self._wake = asyncio.Event()

    def publish(self, change: Change) -> None:
        if len(self._waiting) >= MAX_WAITING_CHANGES:
            self.miss()
        else:
            self._waiting.append(change)
            self._wake.set()

    def miss(self) -> None:
        """This watcher has missed changes, and reads everything again."""
        self._waiting.clear()
        self._missed = True
        self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def events(self) -> AsyncIterator[Event]:
        snapshot = await self._read()
        yield snapshot
        seen = snapshot.number
        while not self._ended:
            if self._missed:
                self._missed = False
                yield Gap()
                snapshot = await self._read()
                seen = max(seen, snapshot.number)
                yield snapshot
            elif self._waiting:
                change = self._waiting.popleft()
                if change.number > seen:
                    seen = change.number
                    yield change
            else:
                self._wake.clear()
                await self._wake.wait()
