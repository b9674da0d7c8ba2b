"""What requests and long answers hold of the broker's memory, over all connections: it is bounded.

What always holds: bytes are counted as they come, and until their request is answered and its client has taken the
answer. One request alone may hold as much as it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from service.web.problems import Problem


class Holding:
    """What all requests hold."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0

    @contextmanager
    def of_request(self) -> Iterator[Held]:
        held = Held(self)
        try:
            yield held
        finally:
            self.bytes -= held.bytes


class Held:
    """What one request holds."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self.bytes = 0

    def take(self, size_bytes: int) -> None:
        """Raises a problem if others hold too much already."""
        others_bytes = self._holding.bytes - self.bytes
        if others_bytes and self._holding.bytes + size_bytes > self._holding.most_bytes:
            raise Problem("not-now", "requests hold all the memory that they may have (queued.max.request.bytes)")
        self.count(size_bytes)

    def count(self, size_bytes: int) -> None:
        """For what can't be refused any more."""
        self._holding.bytes += size_bytes
        self.bytes += size_bytes


HELD = web.RequestKey("held", Held)
