"""Limits how many connections a broker has, over all its listeners together, and from one address.

As in Kafka, a connection from an address that has its share is refused. When the broker has as many as it may, a new
connection waits until another one ends; until then it is connected, but nothing is read from it. A connection is also
refused when the process has no file descriptors to spare. The servers of all listeners share one `Room`, and in it the
limit on the bytes of long requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from service.net.door import PeerInfo
from service.net.request_bytes import RequestBytes

WAITING_MAX: Final = 1024
"""The most connections that wait: as many as a kernel queues for a listener that does not accept (net.core.somaxconn).
Further ones are refused.
"""


class Newcomer(Protocol):
    @property
    def server(self) -> object: ...
    @property
    def peer(self) -> PeerInfo: ...
    def wait(self) -> None: ...
    def let_in(self) -> None: ...
    def abort(self) -> None: ...


def unlimited() -> int:
    return 2**31 - 1


class Room:
    """The limits are functions, because they can be changed while the broker runs. Only `at_all` is fixed: the number
    of file descriptors for connections, including those that wait.
    """

    def __init__(
        self,
        most: Callable[[], int] = unlimited,
        most_per_ip: Callable[[], int] = unlimited,
        *,
        at_all: int = unlimited(),
        most_request_bytes: Callable[[], int] = unlimited,
    ) -> None:
        self.request_bytes = RequestBytes(most_request_bytes)
        self._most = most
        self._most_per_ip = most_per_ip
        self._at_all = at_all
        self._inside = 0
        self._by_host: Counter[str] = Counter()
        self.waiting: dict[Newcomer, None] = {}
        self.refused = 0

    def receive(self, newcomer: Newcomer) -> None:
        """Admit a new connection, let it wait, or refuse it."""
        if self._inside + len(self.waiting) >= self._at_all:
            self._refuse(newcomer)
        elif self._inside < self._most():
            self._admit(newcomer)
        elif len(self.waiting) < WAITING_MAX:
            self.waiting[newcomer] = None
            newcomer.wait()
        else:
            self._refuse(newcomer)

    def leave(self, peer: PeerInfo) -> None:
        """A connection that was admitted has ended."""
        self._inside -= 1
        self._by_host[peer.host] -= 1
        if not self._by_host[peer.host]:
            del self._by_host[peer.host]
        self.fill()

    def fill(self) -> None:
        """Admit waiting connections as long as there is room."""
        while self.waiting and self._inside < self._most():
            newcomer = next(iter(self.waiting))
            del self.waiting[newcomer]
            self._admit(newcomer)

    def _admit(self, newcomer: Newcomer) -> None:
        host = newcomer.peer.host
        if self._by_host[host] >= self._most_per_ip():
            self._refuse(newcomer)
            return
        self._inside += 1
        self._by_host[host] += 1
        newcomer.let_in()

    def _refuse(self, newcomer: Newcomer) -> None:
        self.refused += 1
        newcomer.abort()
