"""What a connection needs to know of the broker behind it: the door, and what an answer may be.

`service.api` implements `Door`; `connection.py` calls it. Nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from service.wire.codec import RequestHeader

if TYPE_CHECKING:
    from log.disk import FileSlice


OWN_BYTES = 2 << 20
"""The bytes of a request longer than this are nobody else's, also after the call."""


class Signal(Enum):
    """Answers that are no bytes."""

    NO_REPLY = "the client does not want an answer"
    CLOSE = "send what was answered before, then end the connection"


NO_REPLY = Signal.NO_REPLY
CLOSE = Signal.CLOSE


class PeerInfo:
    """The other end of a connection. `round_trip_us` is what its handshake took; None where there was none to time."""

    __slots__ = ("host", "port", "round_trip_us")

    def __init__(self, host: str, port: int, round_trip_us: int | None = None) -> None:
        self.host = host
        self.port = port
        self.round_trip_us = round_trip_us

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Reply: TypeAlias = "list[bytes | FileSlice] | Signal"  # the body; the connection adds length and header
AnswerT = TypeVar("AnswerT")
SessionT = TypeVar("SessionT")


class Held(Generic[AnswerT]):
    """An answer in two steps, of a request that keeps the bytes that came with it until the first is done. Nothing
    starts behind it before that; the second, if there is one, is a wait like any other.
    """

    __slots__ = ("first",)

    def __init__(self, first: Awaitable[AnswerT | Awaitable[AnswerT]]) -> None:
        self.first = first


class Door(Protocol[SessionT]):
    """Everything that a connection asks the broker."""

    def connected(self, peer: PeerInfo) -> SessionT:
        """A connection was made. What is returned goes with each of its requests."""

    def disconnected(self, session: SessionT) -> None:
        """It is gone. Requests that were begun go on, but those that only wait; nobody will see their answers."""

    def request(
        self, session: SessionT, header: RequestHeader, body: memoryview
    ) -> Reply | Awaitable[Reply] | Held[Reply]:
        """Answer a request. `body` is a view that can be written to and that holds these bytes only during this call,
        unless it is longer than OWN_BYTES: what an awaitable needs of it must be copied before it is returned. May
        raise MalformedRequest."""
