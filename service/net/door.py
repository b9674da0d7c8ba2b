"""The interface between a connection and the broker: the door, and the kinds of answers.

`service.api` implements `Door`; connections call it. This module does nothing itself.
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from service.wire.codec import RequestHeader

if TYPE_CHECKING:
    from log.disk import FileSlice


OWN_BYTES = 2 << 20
"""A request that is longer than this has a buffer of its own, which nobody else uses after the call."""


class Signal(Enum):
    """Answers that are not sent as bytes."""

    NO_REPLY = "the client does not want an answer"
    CLOSE = "send what was answered before, then end the connection"


NO_REPLY = Signal.NO_REPLY
CLOSE = Signal.CLOSE


class PeerInfo:
    """The other end of a connection. `round_trip_us` is the time of its handshake; None if it was not measured."""

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
    """An answer in two steps. Until the first step is done, the request keeps its bytes, and no later request starts.
    The second step, if there is one, is an ordinary wait.
    """

    __slots__ = ("first",)

    def __init__(self, first: Awaitable[AnswerT | Awaitable[AnswerT]]) -> None:
        self.first = first


class Door(Protocol[SessionT]):
    """Everything that a connection needs from the broker."""

    def connected(self, peer: PeerInfo) -> SessionT:
        """A connection was made. The session that is returned is passed along with each of its requests."""

    def disconnected(self, session: SessionT) -> None:
        """The connection has ended. Requests in work go on, but those that only wait are cancelled. Nobody will see
        their answers.
        """

    def hurry(self, session: SessionT) -> None:
        """A further request has come, which waits until the earlier ones are answered."""

    def request(
        self, session: SessionT, header: RequestHeader, body: memoryview
    ) -> Reply | Awaitable[Reply] | Held[Reply]:
        """Answer a request. `body` is a writable view. It holds these bytes only during this call, unless it is longer
        than OWN_BYTES: what an awaitable needs of the bytes must be copied before the awaitable is returned. May raise
        MalformedRequest.
        """
