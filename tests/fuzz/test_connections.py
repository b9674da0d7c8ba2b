"""Hostile peers against a server process, with an honest client beside them that must not notice.

What is looked at from outside: the process lives, its memory stays bounded, hostile connections end, the honest one
goes on being answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.client.connection import Client
from service.wire.codec import encode_request, write_request_header
from service.wire.messages import FetchRequest, MetadataRequest
from service.wire.messages.schemas import MESSAGES
from tests.fuzz.echo import FETCH_BYTES
from tests.fuzz.mutation import Target, mutants
from tests.service.wire.making import REQUESTS

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0


class EchoServer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self._memory = psutil.Process(process.pid)

    def resident_bytes(self) -> int:
        return int(self._memory.memory_info().rss)

    def alive(self) -> bool:
        return self.process.poll() is None

    def connections(self) -> int:
        return len([each for each in self._memory.net_connections("tcp") if each.status == "ESTABLISHED"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoServer]:
    stored = tmp_path_factory.mktemp("echo") / "stored"
    with open(stored, "wb") as file:
        file.truncate(FETCH_BYTES)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.echo", str(stored)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield EchoServer(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


class Honest:
    """A client that asks again and again."""

    def __init__(self) -> None:
        self.answers = 0

    async def ask(self, client: Client) -> None:
        while True:
            await client.request(MetadataRequest())
            self.answers += 1
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def undisturbed(server: EchoServer) -> AsyncIterator[Honest]:
    """An honest client is answered on one connection all the while, and afterwards."""
    async with Client("127.0.0.1", server.port) as client:
        honest = Honest()
        asking = asyncio.ensure_future(honest.ask(client))
        try:
            yield honest
            before = honest.answers
            while honest.answers < before + 3:
                assert not asking.done(), asking
                await asyncio.sleep(0.005)
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        assert server.alive()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main()

    asyncio.run(patiently())


async def hostile(server: EchoServer, *, receive_bytes: int | None = None) -> socket.socket:
    peer = socket.socket()
    if receive_bytes is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", server.port))
    return peer


async def give(peer: socket.socket, data: bytes) -> bool:
    """Sends; whether the other end was still there."""
    try:
        await asyncio.get_running_loop().sock_sendall(peer, data)
    except ConnectionError:
        return False
    return True


async def ended(peer: socket.socket) -> None:
    """Reads until the other end is gone."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.get_running_loop().sock_recv(peer, 1 << 16):
            pass


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


def hostile_stream(chance: random.Random) -> bytes:
    """A few damaged requests, now and then behind a length that lies."""
    name, version = chance.choice(REQUESTS)
    _, key, *_ = MESSAGES[name]
    assert key is not None
    stream = b""
    for damaged in mutants(chance, Target(name, version), 3):
        request = write_request_header(key, version, 1, "hostile") + damaged.data
        stream += chance.choice(
            (
                framed(request),
                framed(request),
                struct.pack(">i", chance.choice((-1, 0, 2**31 - 1, len(request) + 1))) + request,
                framed(chance.randbytes(60)),
            )
        )
    return stream


def test_hostile_streams_end_their_own_connections(server: EchoServer) -> None:
    async def main() -> None:
        chance = random.Random(11)
        before = server.resident_bytes()
        async with undisturbed(server):

            async def one() -> None:
                peer = await hostile(server)
                await give(peer, hostile_stream(chance))
                if chance.random() < 0.5:
                    reset(peer)
                else:
                    peer.close()

            for _ in range(40):
                await asyncio.gather(*(one() for _ in range(25)))
        assert server.resident_bytes() - before < 48 << 20

    run(main)


def test_slow_peers_are_dropped_and_cost_little(server: EchoServer) -> None:
    """Slowloris: a byte now and then, for ever, on many connections; and such that say nothing more at all."""

    async def main() -> None:
        before = server.resident_bytes()
        async with undisturbed(server):
            request = framed(write_request_header(3, 9, 1, "slow") + bytes(1000))
            peers = [await hostile(server) for _ in range(200)]

            async def drip(peer: socket.socket) -> None:
                for byte in request:
                    if not await give(peer, bytes([byte])):
                        return
                    await asyncio.sleep(0.1)

            async def silent(peer: socket.socket) -> None:
                await give(peer, request[:30])

            async def mute(peer: socket.socket) -> None:
                pass

            kinds = (drip, silent, mute)
            jobs = [asyncio.ensure_future(kinds[at % 3](peer)) for at, peer in enumerate(peers)]
            await asyncio.gather(*(ended(peer) for peer in peers))
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            for peer in peers:
                peer.close()
        assert server.resident_bytes() - before < 16 << 20

    run(main)


def test_peers_that_reset_in_mid_frame_leave_nothing_behind(server: EchoServer) -> None:
    async def main() -> None:
        before = server.resident_bytes()
        produce = framed(write_request_header(0, 9, 1, "gone") + bytes(900_000))
        chance = random.Random(5)
        async with undisturbed(server):
            for _ in range(150):
                peer = await hostile(server)
                sending = asyncio.ensure_future(give(peer, produce[: chance.randrange(1, len(produce))]))
                await asyncio.sleep(0)
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                reset(peer)
            while server.connections() > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert server.resident_bytes() - before < 48 << 20

    run(main)


def test_consumers_that_never_read_are_dropped_and_hold_no_memory(server: EchoServer) -> None:
    """Each asks for gigabytes. What waits for them stays in the file."""

    async def main() -> None:
        fetch = framed(write_request_header(1, 12, 1, "deaf") + encode_request(1, 12, FetchRequest()))
        async with undisturbed(server):
            peers = [await hostile(server, receive_bytes=1 << 16) for _ in range(50)]
            before = server.resident_bytes()
            most = 0
            for peer in peers:
                await give(peer, fetch * 20)
            start = time.monotonic()
            while time.monotonic() - start < 1.0:
                most = max(most, server.resident_bytes())
                await asyncio.sleep(0.02)
            assert most - before < 16 << 20, (most - before) >> 20
            while server.connections() > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            for peer in peers:
                peer.close()

    run(main)
