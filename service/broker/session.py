"""Who is at the other end of a connection. Every request passes the door together with its session, so that
whatever must know the caller can.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.broker.fetch_sessions import SessionKey


class Principal(NamedTuple):
    """Who somebody was proven to be, in Kafka's two words."""

    kind: str
    name: str


ANONYMOUS = Principal("User", "ANONYMOUS")
"""Anybody: the listener asked for no proof."""


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
    """Partitions that answers to Fetch gave something of before they ended early, the latest last."""
    is_gone: bool = False
    """The connection has ended."""
    _waiting: dict[asyncio.Task[Any], None] = field(default_factory=dict)

    def waits(self) -> "Wait":
        """`with session.waits():` around what does nothing but wait for what to answer: it ends with the connection."""
        return Wait(self, self._waiting)

    def gone(self) -> None:
        """Nobody wants to know any more."""
        self.is_gone = True
        for task in list(self._waiting):
            task.cancel()


class Wait:
    __slots__ = ("_session", "_task", "_waiting")

    def __init__(self, session: Session, waiting: dict[asyncio.Task[Any], None]) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can wait"
        self._session, self._task, self._waiting = session, task, waiting

    def __enter__(self) -> None:
        if self._session.is_gone:  # while this was busy with something that is not ended half way
            raise asyncio.CancelledError
        self._waiting[self._task] = None

    def __exit__(self, *failure: object) -> None:
        del self._waiting[self._task]
