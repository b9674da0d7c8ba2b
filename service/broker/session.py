"""The client at the other end of a connection. Every request is handed on together with its session, for the code that
must know the client.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from log.disk import FileSlice
from service.broker.fetch_sessions import SessionKey, WaitingReader


class Principal(NamedTuple):
    """The authenticated identity of a client, in Kafka's two words."""

    kind: str
    name: str


ANONYMOUS = Principal("User", "ANONYMOUS")
"""The identity of clients on a listener that does not authenticate."""


@dataclass(slots=True)
class Session:
    host: str
    port: int
    round_trip_us: int | None = None
    listener: str = "PLAINTEXT"
    principal: Principal = ANONYMOUS
    software_name: str = ""
    software_version: str = ""
    fetched: dict[SessionKey, None] = field(default_factory=dict)
    """Partitions that were served in answers to Fetch which ended early, in the order of service: the latest is the
    last.
    """
    pinned: list[FileSlice] = field(default_factory=list)
    """What the answer to a long Fetch keeps readable until the connection has taken it over."""
    is_gone: bool = False
    """The connection has ended."""
    parked: WaitingReader | None = None
    """Another broker's Fetch, while it waits for news."""
    is_hurried: bool = False
    """A further request has come since the last Fetch: if that is another broker's, it waits no longer."""
    _waiting: dict[asyncio.Future[Any], None] = field(default_factory=dict)

    def pin(self, stored: FileSlice) -> None:
        stored.pin()
        self.pinned.append(stored)

    def unpin(self) -> None:
        for stored in self.pinned:
            stored.unpin()
        self.pinned = []

    def waits(self) -> "Wait":
        """Use `with session.waits():` around code that only waits for the contents of an answer. The wait is cancelled
        when the connection ends.
        """
        return Wait(self, self._waiting)

    def waits_for(self, reply: asyncio.Future[Any]) -> None:
        """The same for a wait without a task: `reply` is cancelled, unless `waits_no_more` was called before."""
        if self.is_gone:
            reply.cancel()
        else:
            self._waiting[reply] = None

    def waits_no_more(self, reply: asyncio.Future[Any]) -> None:
        self._waiting.pop(reply, None)

    def hurry(self) -> None:
        """A further request has come, and waits for its turn."""
        self.is_hurried = True
        if self.parked is not None:
            self.parked.moved()

    def gone(self) -> None:
        """The connection has ended: cancel all waits for its answers."""
        self.is_gone = True
        for wait in list(self._waiting):
            wait.cancel()


class Wait:
    __slots__ = ("_session", "_task", "_waiting")

    def __init__(self, session: Session, waiting: dict[asyncio.Future[Any], None]) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can wait"
        self._session, self._task, self._waiting = session, task, waiting

    def __enter__(self) -> None:
        if self._session.is_gone:  # the connection ended during work that must not be cancelled half way
            raise asyncio.CancelledError
        self._waiting[self._task] = None

    def __exit__(self, *failure: object) -> None:
        del self._waiting[self._task]
