"""What requests hold of the broker's memory while bodies come and answers are taken: it is bounded.

What always holds: bodies wait until all requests together hold `queued.max.request.bytes` at most, but one alone holds
as much as it needs. What holds up to 32 KiB is not counted, so there is always room for it.

A body that finds no room is not read for a moment. If there is none then, requests are ended that wait for their
clients, first those whose clients have not moved for longest: a body that comes is answered with 503, and an answer
that is not taken is cut off. A request that waits for room, or for its own work, is not ended, and none is ended where
that makes no room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from aiohttp import web

from service.web.problems import Problem

SMALL_BYTES = 32 << 10
"""As of requests by the wire (`service/net/connection.py`)."""
PATIENCE_S = 1.0
"""How long a request waits for room before others are ended. It may wait as long for each portion of a body."""

T = TypeVar("T")


class Holding:
    """What all requests hold."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.bytes = 0
        self.holders: dict[Holder, None] = {}
        self.freed = asyncio.Event()

    @contextmanager
    def of_request(self) -> Iterator[Holder]:
        holder = Holder(self)
        try:
            yield holder
        finally:
            holder.hold(0)

    def room_bytes(self, holder: Holder) -> int:
        """How much `holder` may hold beside others."""
        return max(self._most_bytes - (self.bytes - holder.bytes), 0)

    def has_room(self, holder: Holder, size_bytes: int, *, freed_bytes: int = 0) -> bool:
        """Whether `holder` may hold so much, once others have freed this."""
        others_bytes = self.bytes - holder.bytes - freed_bytes
        return not others_bytes or others_bytes + size_bytes <= self._most_bytes

    def make_room(self, holder: Holder, size_bytes: int) -> None:
        """End other requests that wait for their clients, until `holder` may hold so much. If it may not even when all
        of them have ended, none is ended.
        """
        waiting = [each for each in self.holders if each.end is not None and each is not holder]
        if not self.has_room(holder, size_bytes, freed_bytes=sum(each.bytes for each in waiting)):
            return
        for each in sorted(waiting, key=lambda each: each.moved_s):
            if self.has_room(holder, size_bytes):
                return
            each.be_ended()


class NoRoom(Problem):
    """Requests hold all the memory that they may have."""

    def __init__(self) -> None:
        super().__init__("not-now", "requests hold all the memory that they may have (queued.max.request.bytes)")


class Holder:
    """What one request holds."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self.bytes = 0
        self.moved_s = 0.0
        """When what it holds last became more or less."""
        self.end: Callable[[], None] | None = None
        """Ends the request. None: it does not wait for its client."""
        self._is_ended = False

    def hold(self, size_bytes: int) -> None:
        """Count so much from now on."""
        holding = self._holding
        size_bytes = size_bytes if size_bytes > SMALL_BYTES else 0
        if size_bytes:
            self.moved_s = asyncio.get_running_loop().time()
        if size_bytes and not self.bytes:
            holding.holders[self] = None
        elif self.bytes and not size_bytes:
            del holding.holders[self]
        holding.bytes += size_bytes - self.bytes
        if size_bytes < self.bytes:
            holding.freed.set()
        self.bytes = size_bytes

    @property
    def room_bytes(self) -> int:
        return self._holding.room_bytes(self)

    def takes(self, size_bytes: int) -> bool:
        """Hold so much from now on, if there is room now. For what it holds already there is, although others may hold
        more than all may have.
        """
        if size_bytes > max(self.bytes, SMALL_BYTES) and not self._holding.has_room(self, size_bytes):
            return False
        self.hold(size_bytes)
        return True

    async def take(self, size_bytes: int) -> None:
        """Hold so much from now on, as soon as there is room. Raises a problem if there is none."""
        if size_bytes > SMALL_BYTES and not self._holding.has_room(self, size_bytes):
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await self._room(size_bytes)
            self._holding.make_room(self, size_bytes)
            if not self._holding.has_room(self, size_bytes):
                raise NoRoom
        self.hold(size_bytes)

    async def _room(self, size_bytes: int) -> None:
        while not self._holding.has_room(self, size_bytes):
            self._holding.freed.clear()
            await self._holding.freed.wait()

    async def come(self, coming: Awaitable[T]) -> T:
        """What comes. Raises a problem if the request is ended meanwhile."""
        try:
            async with asyncio.timeout(None) as patience:
                self.end = lambda: None if patience.expired() else patience.reschedule(0)
                try:
                    found = await coming
                finally:
                    self.end = None
        except TimeoutError:
            if not self._is_ended:
                raise
        if self._is_ended:
            raise NoRoom
        return found

    @contextmanager
    def given(self, size_bytes: int, transport: asyncio.Transport) -> Iterator[None]:
        """While an answer of this length is written."""
        self._holding.make_room(self, size_bytes)
        self.hold(0)
        self.hold(size_bytes)
        try:
            with self.told(transport):
                yield
        finally:
            self.hold(0)

    @contextmanager
    def told(self, transport: asyncio.Transport) -> Iterator[None]:
        """While something is written to the client, and what is held stays."""
        self.end = transport.abort
        try:
            yield
        finally:
            self.end = None

    def be_ended(self) -> None:
        assert self.end is not None
        self._is_ended = True
        self.hold(0)
        self.end()
        self.end = None


HOLDER = web.RequestKey("holder", Holder)
