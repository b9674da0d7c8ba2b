"""Peers and doors for testing connections: real sockets, loops of every kind, a door whose answers the test decides."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from service.net import outbox
from service.net.server import Held, Limits, PeerInfo, Reply, Room, Server, serve
from service.wire.codec import RequestHeader, write_request_header
from tests.loops import Loop

T = TypeVar("T")

PRODUCE, METADATA, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 0, 3, 11, 12, 14
LOOPS = ["uvloop", "asyncio", "no descriptor"]
PEERS: list[Peer] = []  # of the running test, closed at its end
PATIENCE_S = 20.0  # a test waits no longer for anything; far more than what it waits for takes


def run(kind: str, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a test on one of LOOPS. Without a descriptor all bytes go through the transport, as under TLS."""

    async def patiently() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await main()

    with pytest.MonkeyPatch.context() as patch:
        if kind == "no descriptor":
            patch.setattr(outbox, "plain_descriptor", lambda transport: -1)
        factory = Loop if kind == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            try:
                return runner.run(patiently())
            finally:
                while PEERS:
                    PEERS.pop().close()


class EchoDoor:
    """Answers each request with its own body, unless the test gave another answer for the request's number."""

    def __init__(self) -> None:
        self.sessions: list[PeerInfo] = []
        self.gone: list[PeerInfo] = []
        self.requests: list[tuple[RequestHeader, bytes]] = []
        self.answers: dict[int, Callable[[memoryview], Reply | Awaitable[Reply] | Held[Reply]]] = {}

    def connected(self, peer: PeerInfo) -> PeerInfo:
        self.sessions.append(peer)
        return peer

    def disconnected(self, session: PeerInfo) -> None:
        self.gone.append(session)

    def hurry(self, session: PeerInfo) -> None:
        pass

    def request(
        self, session: PeerInfo, header: RequestHeader, body: memoryview
    ) -> Reply | Awaitable[Reply] | Held[Reply]:
        self.requests.append((header, bytes(body)))
        if header.correlation_id in self.answers:
            return self.answers[header.correlation_id](body)
        return [bytes(body)]

    @property
    def started(self) -> list[int]:
        return [header.correlation_id for header, _ in self.requests]


class Later:
    """An answer that comes when the test says so."""

    def __init__(self) -> None:
        self._reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def __call__(self, body: memoryview) -> Awaitable[Reply]:
        return self._wait()

    async def _wait(self) -> Reply:
        return await self._reply

    def comes(self, reply: Reply) -> None:
        self._reply.set_result(reply)


class TwoSteps:
    """An answer whose request keeps its bytes until the test says so, and which comes when the test says so."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._released: asyncio.Future[None] = loop.create_future()
        self._reply: asyncio.Future[Reply] = loop.create_future()

    def __call__(self, body: memoryview) -> Held[Reply]:
        return Held(self._first())

    async def _first(self) -> Reply | Awaitable[Reply]:
        await self._released
        return self._reply

    def release(self) -> None:
        self._released.set_result(None)

    def comes(self, reply: Reply) -> None:
        self._reply.set_result(reply)


class Peer:
    """The other end of a connection, byte by byte."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.loop = asyncio.get_running_loop()
        self._received = b""

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.socket, data)

    async def answer(self) -> tuple[int, bytes]:
        """The next frame: correlation id and body."""
        (size,) = struct.unpack(">i", await self.exactly(4))
        frame = await self.exactly(size)
        return int.from_bytes(frame[:4], "big"), frame[4:]

    async def exactly(self, size: int) -> bytes:
        pieces = [self._received]
        have = len(self._received)
        while have < size:
            piece = await self.loop.sock_recv(self.socket, 1 << 18)
            assert piece, "the server closed the connection"
            pieces.append(piece)
            have += len(piece)
        received = b"".join(pieces)
        self._received = received[size:]
        return received[:size]

    async def closed(self) -> bool:
        """Waits for the end of the connection; whether nothing came before it."""
        try:
            return not self._received and not await self.loop.sock_recv(self.socket, 1)
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Ends the connection without a farewell."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def frame(correlation_id: int, body: bytes = b"", *, api_key: int = METADATA) -> bytes:
    request = write_request_header(api_key, 0, correlation_id, "peer") + body
    return struct.pack(">i", len(request)) + request


async def connect(server: Server[Any], *, receive_bytes: int | None = None) -> Peer:
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    peer = Peer(connection)
    PEERS.append(peer)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
    return peer


@contextlib.asynccontextmanager
async def serving(
    door: Any, limits: Limits | None = None, room: Room | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server[Any]]:
    server = await serve(asyncio.get_running_loop(), "127.0.0.1", 0, door, limits, room, tls)
    try:
        yield server
    finally:
        await server.close(grace_s=0.2)


async def until(true: Callable[[], bool]) -> None:
    """Lets the loop turn until something is true."""
    while not true():  # noqa: ASYNC110  what is looked at does not know of this test
        await asyncio.sleep(0.002)
