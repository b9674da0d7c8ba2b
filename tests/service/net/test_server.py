"""Connections over real sockets, on every kind of loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from log.disk import FileSlice, RealDisk
from service.net import connection as connection_module
from service.net import room as room_module
from service.net import server as server_module
from service.net.connection import FRAMES_A_TURN, LARGE_BYTES, MAX_PRODUCES, READ_AHEAD_BYTES, READ_BYTES
from service.net.outbox import plain_descriptor
from service.net.server import CLOSE, NO_REPLY, Limits, Reply, Room, Server
from service.turns import MadeLater
from service.wire.codec import MalformedRequest
from tests.outside import missing
from tests.service.net.kit import (
    HEARTBEAT,
    JOIN_GROUP,
    LOOPS,
    METADATA,
    PRODUCE,
    SYNC_GROUP,
    EchoDoor,
    Later,
    TwoSteps,
    connect,
    frame,
    run,
    serving,
    until,
)

every_loop = pytest.mark.parametrize("loop", LOOPS)

pytestmark = pytest.mark.filterwarnings("error")


# ---------------------------------------------------------------- frames


@every_loop
def test_frames_are_answered_however_the_stream_is_cut(loop: str) -> None:
    """Byte by byte, many in one piece, and everything between."""
    stream = b"".join(frame(at, bytes([at]) * at * 50) for at in range(40))

    async def main() -> None:
        for step in (1, 7, 1000, 5000, len(stream)):
            async with serving(EchoDoor()) as server:
                peer = await connect(server)
                for start in range(0, len(stream), step):
                    await peer.send(stream[start : start + step])
                    if step > 1:
                        await asyncio.sleep(0)
                for at in range(40):
                    assert await peer.answer() == (at, bytes([at]) * at * 50)
                peer.close()

    run(loop, main)


@every_loop
def test_a_server_with_tls_answers_through_it_and_nobody_who_speaks_plainly(loop: str, tmp_path: Path) -> None:
    """Answers of many kilobytes too, which elsewhere go to the socket past the transport."""
    if (why := missing("openssl")) is not None:
        pytest.skip(why)
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=certificate)

    async def main() -> None:
        async with serving(EchoDoor(), tls=tls) as server:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=trusting, server_hostname="localhost"
            )
            body = os.urandom(3_000_000)
            writer.write(frame(1, b"small") + frame(2, body))
            for correlation_id, expected in ((1, b"small"), (2, body)):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answer = await reader.readexactly(size)
                assert answer[:4] == struct.pack(">i", correlation_id)
                assert answer[4:] == expected
            writer.close()
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                await writer.wait_closed()
            plain = await connect(server)
            await plain.send(frame(1, b"small"))
            assert await plain.closed()
            plain.close()

    run(loop, main)


@every_loop
def test_a_peer_is_known_by_its_address_and_how_far_away_it_is(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            await connect(server)
            await until(lambda: door.sessions != [])
            (peer,) = door.sessions
            assert (peer.host, peer.port > 0) == ("127.0.0.1", True)
            assert peer.round_trip_us is not None
            assert 0 < peer.round_trip_us < 1_000_000

    run(loop, main)


@every_loop
@pytest.mark.parametrize("size", [READ_BYTES - 30, READ_BYTES, LARGE_BYTES, 1024 * 1024, 3 * 1024 * 1024])
def test_long_frames_come_whole_and_leave_no_buffer_behind(loop: str, size: int) -> None:
    async def main() -> None:
        async with serving(EchoDoor()) as server:
            peer = await connect(server)
            for at in range(3):
                body = os.urandom(64) * (size // 64)
                sending = asyncio.ensure_future(
                    peer.send(frame(at, body, api_key=PRODUCE) + frame(100 + at, b"short", api_key=PRODUCE))
                )
                assert await peer.answer() == (at, body)
                assert await peer.answer() == (100 + at, b"short")
                await sending
            assert server._lent == 0
            (connection,) = server._connections
            assert connection._large is None
            assert not connection._kept
            peer.close()

    run(loop, main)


@every_loop
@pytest.mark.parametrize(
    "start",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 7),
        struct.pack(">ih", 100 * 1024 * 1024 + 1, PRODUCE),
        struct.pack(">ih", 8 * 1024 * 1024 + 1, METADATA),
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_length_that_is_not_granted_ends_the_connection(loop: str, start: bytes) -> None:
    async def main() -> None:
        async with serving(EchoDoor()) as server:
            peer = await connect(server)
            await peer.send(start)
            assert await peer.closed()

    run(loop, main)


@pytest.mark.parametrize(
    ("start", "what"),
    [(b"GET / HTTP/1.1\r\n", "as an HTTP client does"), (b"\x16\x03\x01\x02\x00\x01", "as a TLS client")],
)
def test_who_speaks_another_language_is_recognized(start: bytes, what: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(EchoDoor()) as server:
            peer = await connect(server)
            await peer.send(start)
            assert await peer.closed()

    run("uvloop", main)
    assert what in caplog.text


def test_who_comes_when_descriptors_are_short_is_refused_waiting_ones_counted() -> None:
    async def main() -> None:
        room = Room(lambda: 1, at_all=2)
        async with serving(EchoDoor(), room=room) as server:
            first = await connect(server)
            await until(lambda: server.connections == 1)
            waiting = await connect(server)
            await until(lambda: len(room.waiting) == 1)
            refused = await connect(server)
            assert await refused.closed()
            first.close()
            await until(lambda: not room.waiting)
            waiting.close()

    run("uvloop", main)


def test_a_long_frame_holds_memory_for_what_came_not_for_what_it_says() -> None:
    async def main() -> None:
        async with serving(EchoDoor()) as server:
            peer = await connect(server)
            whole = frame(1, bytes(50_000_000), api_key=PRODUCE)
            await peer.send(whole[:20])
            await until(lambda: bool(server._connections) and len(next(iter(server._connections))._kept) == 20)
            (connection,) = server._connections
            await peer.send(whole[20:400_000])
            await until(lambda: connection._large_end == 400_000)
            assert connection._large is not None
            assert len(connection._large) <= 800_000
            peer.close()

    run("uvloop", main)


@every_loop
def test_a_malformed_header_ends_its_connection_and_no_other(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            honest, hostile = await connect(server), await connect(server)
            await hostile.send(frame(1) + struct.pack(">ihhih", 12, METADATA, 12, 1, 30_000) + b"ab")
            assert (await hostile.answer())[0] == 1
            assert await hostile.closed()
            await honest.send(frame(2, b"fine"))
            assert await honest.answer() == (2, b"fine")
            await until(lambda: len(door.gone) == 1)
            assert server.connections == 1

    run(loop, main)


# ---------------------------------------------------------------- order


@every_loop
def test_a_request_starts_when_all_before_it_are_answered(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            door.answers[1] = first = Later()
            peer = await connect(server)
            await peer.send(frame(1) + frame(2, b"x") + frame(3, b"y", api_key=PRODUCE))
            await until(lambda: door.started == [1])
            await asyncio.sleep(0.02)
            assert door.started == [1]
            first.comes([b"late"])
            assert [await peer.answer() for _ in range(3)] == [(1, b"late"), (2, b"x"), (3, b"y")]

    run(loop, main)


@every_loop
def test_produces_overtake_nothing_but_wait_for_nothing(loop: str) -> None:
    """A Produce starts behind unanswered Produces; the answers leave in the order of the requests."""

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            waits = {at: Later() for at in (1, 2, 3)}
            door.answers.update(waits)
            peer = await connect(server)
            await peer.send(b"".join(frame(at, api_key=PRODUCE) for at in (1, 2, 3, 4)) + frame(5, b"last"))
            await until(lambda: door.started == [1, 2, 3, 4])
            waits[3].comes([b"c"])
            waits[2].comes([b"b"])
            await asyncio.sleep(0.02)
            assert door.started == [1, 2, 3, 4]
            waits[1].comes([b"a"])
            answers = [await peer.answer() for _ in range(5)]
            assert answers == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b""), (5, b"last")]

    run(loop, main)


@every_loop
def test_so_many_produces_are_unanswered_and_no_more(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            waits = [Later() for _ in range(MAX_PRODUCES + 4)]
            door.answers.update(enumerate(waits))
            peer = await connect(server)
            await peer.send(b"".join(frame(at, api_key=PRODUCE) for at in range(len(waits))))
            await until(lambda: len(door.requests) == MAX_PRODUCES)
            await asyncio.sleep(0.02)
            assert len(door.requests) == MAX_PRODUCES
            for at, wait in enumerate(waits):
                await until(lambda at=at: len(door.requests) > at)  # type: ignore[misc]
                wait.comes([b"%d" % at])
            for at in range(len(waits)):
                assert await peer.answer() == (at, b"%d" % at)

    run(loop, main)


@every_loop
def test_nothing_starts_behind_a_request_that_needs_its_bytes(loop: str) -> None:
    """Behind it Produces wait as well, unread; from then on they start, though it is not answered."""

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            door.answers[1] = first = TwoSteps()
            peer, body = await connect(server), bytes(20_000_000)
            await peer.send(frame(1, body[:1_000_000], api_key=PRODUCE))
            await until(lambda: door.started == [1])
            (connection,) = server._connections
            held = server.room.request_bytes.total
            assert held >= 1_000_000
            sending = asyncio.create_task(peer.send(frame(2, body, api_key=PRODUCE)))
            await until(lambda: connection._reading_paused)
            assert connection._large_end <= READ_AHEAD_BYTES + READ_BYTES
            assert (door.started, server.room.request_bytes.total) == ([1], held)
            first.release()
            await sending
            await until(lambda: door.started == [1, 2])
            assert server.room.request_bytes.total == 0
            first.comes([b"first"])
            assert await peer.answer() == (1, b"first")
            assert await peer.answer() == (2, body)

    run(loop, main)


# ---------------------------------------------------------------- what long requests hold


@every_loop
def test_long_requests_hold_no_more_than_granted_and_yet_all_get_on(loop: str) -> None:
    """However many have come half way: one after another is read to its end. Short requests are read all the while."""
    granted, size, many = 3_000_000, 2_500_000, 6
    room = Room(most_request_bytes=lambda: granted)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door, room=room) as server:
            peers = [await connect(server) for _ in range(many)]
            whole = [frame(at, bytes([at]) * size, api_key=PRODUCE) for at in range(many)]
            sending = [asyncio.create_task(peer.send(data[:-1])) for peer, data in zip(peers, whole, strict=True)]
            await until(lambda: bool(room.request_bytes.waiting))
            short = await connect(server)
            await short.send(frame(99, b"short"))
            assert await short.answer() == (99, b"short")

            async def finish(at: int) -> None:
                await sending[at]
                await peers[at].send(whole[at][-1:])
                assert await peers[at].answer() == (at, bytes([at]) * size)
                assert room.request_bytes.total <= granted + size

            await asyncio.gather(*map(finish, range(many)))
            assert (room.request_bytes.total, room.request_bytes.waiting) == (0, {})

    run(loop, main)


@every_loop
def test_what_is_held_for_a_request_counts_until_it_is_done_though_its_client_is_gone(loop: str) -> None:
    """Else those who go at once and come again hold without bounds."""

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            door.answers[1] = first = TwoSteps()
            peer = await connect(server)
            await peer.send(frame(1, bytes(1_000_000), api_key=PRODUCE))
            await until(lambda: door.started == [1])
            peer.close()
            await until(lambda: server.connections == 0)
            assert server.room.request_bytes.total >= 1_000_000
            first.release()
            await until(lambda: server.room.request_bytes.total == 0)

    run(loop, main)


@every_loop
def test_who_goes_while_it_waits_for_room_or_has_it_leaves_it_to_others(loop: str) -> None:
    room = Room(most_request_bytes=lambda: 1_000_000)

    async def main() -> None:
        async with serving(EchoDoor(), room=room) as server:
            data = frame(1, bytes(3_000_000), api_key=PRODUCE)
            peers = [await connect(server) for _ in range(4)]
            for peer in peers:
                await peer.send(data[:200_000])
            await until(lambda: bool(room.request_bytes.waiting) or room.request_bytes.total >= 1_000_000)
            for peer in peers[:3]:
                peer.close()
            await peers[3].send(data[200_000:])
            assert await peers[3].answer() == (1, bytes(3_000_000))
            await until(lambda: server.connections == 1)
            assert (room.request_bytes.total, room.request_bytes.waiting) == (0, {})

    run(loop, main)


@every_loop
def test_who_waits_for_room_and_does_not_read_its_answers_holds_up_nobody_behind_it(loop: str) -> None:
    room = Room(most_request_bytes=lambda: 1_000_000)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door, room=room) as server:
            door.answers[1] = answer = Later()
            first, second, deaf, behind = [await connect(server) for _ in range(4)]
            data = frame(2, bytes(900_000), api_key=PRODUCE)
            for peer in (first, second):  # one within what is granted, one beyond it
                await peer.send(data[:200_000])
            await until(lambda: room.request_bytes.total > 1_000_000)
            await deaf.send(frame(1, api_key=PRODUCE) + data[:100_000])
            await until(lambda: len(room.request_bytes.waiting) == 1)
            await behind.send(data[:100_000])
            await until(lambda: len(room.request_bytes.waiting) == 2)
            answer.comes([bytes(30_000_000)])
            for peer in (first, second):
                await peer.send(data[200_000:])
                assert await peer.answer() == (2, bytes(900_000))
            await behind.send(data[100_000:])
            assert await behind.answer() == (2, bytes(900_000))
            assert (await deaf.answer())[0] == 1
            await deaf.send(data[100_000:])
            assert await deaf.answer() == (2, bytes(900_000))
            assert (room.request_bytes.total, room.request_bytes.waiting) == (0, {})

    run(loop, main)


@every_loop
def test_no_reply_leaves_no_gap_and_close_comes_after_what_was_answered(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            door.answers[1] = lambda body: NO_REPLY
            door.answers[3] = slow = Later()
            door.answers[4] = lambda body: CLOSE
            peer = await connect(server)
            await peer.send(
                frame(1, api_key=PRODUCE)
                + frame(2, b"two", api_key=PRODUCE)
                + frame(3, api_key=PRODUCE)
                + frame(4, api_key=PRODUCE)
                + frame(5, api_key=PRODUCE)
            )
            assert await peer.answer() == (2, b"two")
            slow.comes([b"three"])
            assert await peer.answer() == (3, b"three")
            assert await peer.closed()
            assert door.started == [1, 2, 3, 4]
            await until(lambda: len(door.gone) == 1)

    run(loop, main)


@every_loop
def test_a_door_that_fails_costs_one_connection(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> Reply:
        raise RuntimeError("planted")

    def fail_now(body: memoryview) -> Reply:
        raise RuntimeError("planted")

    def malformed(body: memoryview) -> Reply:
        raise MalformedRequest("planted")

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            door.answers = {1: fail_now, 2: lambda body: fail(), 3: malformed}
            honest = await connect(server)
            for number in (1, 2, 3):
                peer = await connect(server)
                await peer.send(frame(0, b"before") + frame(number))
                assert await peer.answer() == (0, b"before")
                assert await peer.closed()
            await honest.send(frame(9, b"fine"))
            assert await honest.answer() == (9, b"fine")

    run(loop, main)
    assert len([record for record in caplog.records if record.exc_info]) == 2


# ---------------------------------------------------------------- files


def stored(folder: Path, size: int) -> tuple[bytes, RealDisk]:
    data = os.urandom(1 << 16) * (size >> 16)
    (folder / "segment").write_bytes(data)
    return data, RealDisk(str(folder))


@every_loop
def test_stored_bytes_leave_whole_and_in_order_at_whatever_pace_they_are_read(loop: str, tmp_path: Path) -> None:
    data, disk = stored(tmp_path, 12 << 20)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            file = disk.open("segment")
            parts: list[tuple[int, int]] = [(0, 100), (5, 3 << 20), (1 << 20, 8 << 20), (7, 1)]
            expected = b"".join(data[position : position + size] + b"-" for position, size in parts)
            for at in range(1, 4):
                reply: list[bytes | FileSlice] = []
                for position, size in parts:
                    reply += [FileSlice(file, position, size), b"-"]
                door.answers[at] = lambda body, reply=reply: reply  # type: ignore[misc]
            peer = await connect(server)
            await peer.send(frame(1) + frame(2) + frame(3) + frame(4, b"end"))
            for at in range(1, 4):
                assert await peer.answer() == (at, expected)
                await asyncio.sleep(0.01)
            assert await peer.answer() == (4, b"end")
            assert file._pins == 0
            file.close()

    run(loop, main)


@every_loop
def test_a_slice_is_pinned_until_it_left_or_its_reader_is_gone(loop: str, tmp_path: Path) -> None:
    _, disk = stored(tmp_path, 32 << 20)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            file = disk.open("segment")
            door.answers[1] = lambda body: [b"head", FileSlice(file, 0, 32 << 20), FileSlice(file, 0, 1)]
            peer = await connect(server, receive_bytes=65536)
            await peer.send(frame(1))
            await until(lambda: file._pins == 2)
            disk.unlink("segment")
            file.close()  # what is promised stays readable
            await peer.exactly(20 << 20)
            assert file._pins == 2
            peer.reset()
            await until(lambda: server.connections == 0)
            assert file._pins == 0

    run(loop, main)


def test_nothing_is_written_past_a_transport_that_encrypts() -> None:
    """The socket under TLS must carry only what TLS made of the bytes."""

    class Transport(asyncio.Transport):
        def __init__(self, **extra: object) -> None:
            super().__init__(extra)

    with socket.socket() as connection:
        assert plain_descriptor(Transport(socket=connection)) == connection.fileno()
        assert plain_descriptor(Transport(socket=connection, sslcontext=object())) == -1
        assert plain_descriptor(Transport()) == -1
        assert plain_descriptor(Transport(socket=object())) == -1


@every_loop
@pytest.mark.parametrize("size", [1 << 10, 1 << 20])
def test_a_file_that_lost_its_bytes_ends_the_connection_that_waits_for_them(
    loop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    _, disk = stored(tmp_path, size)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            file = disk.open("segment")
            door.answers[1] = lambda body: [FileSlice(file, 0, 2 * size)]
            peer = await connect(server)
            await peer.send(frame(1))
            with pytest.raises(AssertionError, match="closed the connection"):
                await peer.exactly(2 * size + 8)
            assert file._pins == 0
            file.close()

    run(loop, main)
    assert "could not be read" in caplog.text


@every_loop
def test_who_does_not_read_holds_the_answer_it_asked_for_and_no_more(loop: str, tmp_path: Path) -> None:
    """It pipelines thousands of requests: each is started when the answer before it has left."""
    _, disk = stored(tmp_path, 4 << 20)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            file = disk.open("segment")
            for at in range(4000):
                door.answers[at] = lambda body: [FileSlice(file, 0, 4 << 20)]
            peer = await connect(server, receive_bytes=65536)
            sending = asyncio.ensure_future(peer.send(b"".join(frame(at, bytes(10_000)) for at in range(4000))))
            await until(lambda: len(door.requests) >= 1)
            await asyncio.sleep(0.1)
            started = len(door.requests)
            assert started <= 4  # what fits into the two kernels' buffers
            assert not sending.done()  # the socket is no longer read, and 40 MB is more than kernels hold
            (connection,) = server._connections
            assert len(connection._kept) + connection._large_end <= LARGE_BYTES + READ_BYTES
            assert connection._outbox._transport.get_write_buffer_size() <= 64 * 1024
            honest = await connect(server)
            await honest.send(frame(9999, b"fine"))
            assert await honest.answer() == (9999, b"fine")
            assert len(door.requests) == started + 1
            sending.cancel()
            peer.reset()
            await until(lambda: server.connections == 1)
            file.close()

    run(loop, main)


# ---------------------------------------------------------------- limits


@pytest.fixture
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LOOK_S", 0.02)
    monkeypatch.setattr(connection_module, "LEAST_BYTES_A_SECOND", 1 << 40)


@every_loop
@pytest.mark.usefixtures("_quick_looks")
def test_a_request_that_does_not_come_whole_in_time_ends_its_connection(loop: str) -> None:
    async def main() -> None:
        async with serving(EchoDoor(), Limits(receive_timeout_s=0.15)) as server:
            slow, honest = await connect(server), await connect(server)
            request = frame(1, b"body")

            async def trickle() -> None:
                for at in range(len(request) - 1):
                    await slow.send(request[at : at + 1])
                    await asyncio.sleep(0.02)

            trickling = asyncio.ensure_future(trickle())
            assert await slow.closed()
            trickling.cancel()
            await asyncio.gather(trickling, return_exceptions=True)
            await honest.send(frame(2, b"fine"))
            assert await honest.answer() == (2, b"fine")

    run(loop, main)


@every_loop
@pytest.mark.usefixtures("_quick_looks")
def test_an_idle_connection_ends_and_one_that_waits_for_an_answer_does_not(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door, Limits(idle_timeout_s=0.15)) as server:
            door.answers[1] = answer = Later()
            idle, waiting = await connect(server), await connect(server)
            await waiting.send(frame(1))
            assert await idle.closed()
            await asyncio.sleep(0.2)
            answer.comes([b"at last"])
            assert await waiting.answer() == (1, b"at last")
            assert await waiting.closed()

    run(loop, main)


@every_loop
@pytest.mark.usefixtures("_quick_looks")
def test_who_reads_nothing_of_its_answer_for_too_long_is_dropped(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door, Limits(send_timeout_s=0.15)) as server:
            door.answers[1] = lambda body: [bytes(32 << 20)]
            peer = await connect(server, receive_bytes=65536)
            await peer.send(frame(1))
            await until(lambda: server.connections == 1)
            await until(lambda: server.connections == 0)
            assert len(door.gone) == 1

    run(loop, main)


@every_loop
def test_an_address_gets_no_more_connections_than_granted_over_all_listeners(loop: str) -> None:
    async def main() -> None:
        door, room = EchoDoor(), Room(most_per_ip=lambda: 2)
        async with serving(door, room=room) as one, serving(door, room=room) as other:
            first, second = await connect(one), await connect(other)
            await until(lambda: one.connections == other.connections == 1)
            for server in (one, other):
                third = await connect(server)
                assert await third.closed()
            first.close()
            await until(lambda: one.connections == 0)
            fourth = await connect(other)
            await fourth.send(frame(4, b"room"))
            assert await fourth.answer() == (4, b"room")
            assert len(door.sessions) == 3
            second.close()

    run(loop, main)


@every_loop
def test_who_finds_the_broker_full_is_heard_when_another_leaves(loop: str) -> None:
    """As in Kafka: `max.connections` is over all listeners, and who comes late waits instead of being sent away."""

    async def main() -> None:
        door, limit = EchoDoor(), [2]
        room = Room(lambda: limit[0])
        async with serving(door, room=room) as one, serving(door, room=room) as other:
            first, second = await connect(one), await connect(other)
            await until(lambda: one.connections == other.connections == 1)
            third = await connect(one)
            await third.send(frame(3, b"third"))
            gone = await connect(other)
            fourth = await connect(other)
            await fourth.send(frame(4, b"fourth"))
            await until(lambda: len(room.waiting) == 3)
            await first.send(frame(1, b"served as ever"))
            assert await first.answer() == (1, b"served as ever")
            assert len(door.sessions) == 2
            first.close()
            assert await third.answer() == (3, b"third")
            assert len(door.sessions) == 3
            gone.close()
            await until(lambda: len(room.waiting) == 1)  # nobody waits for who has left the queue
            second.close()
            assert await fourth.answer() == (4, b"fourth")
            fifth = await connect(one)
            await fifth.send(frame(5, b"fifth"))
            await until(lambda: len(room.waiting) == 1)
            limit[0] = 3
            assert await fifth.answer() == (5, b"fifth")
            sixth = await connect(one)
            await until(lambda: len(room.waiting) == 1)
        assert await sixth.closed()  # the servers have closed

    run(loop, main)


@every_loop
def test_the_queue_before_a_full_broker_has_an_end(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "WAITING_MAX", 1)

    async def main() -> None:
        room = Room(lambda: 0)
        async with serving(EchoDoor(), room=room) as server:
            waiting = await connect(server)
            await until(lambda: len(room.waiting) == 1)
            refused = await connect(server)
            assert await refused.closed()
            assert len(room.waiting) == 1
            waiting.close()

    run(loop, main)


@every_loop
def test_a_peer_that_vanishes_in_the_middle_of_a_frame_is_forgotten(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            request = frame(1, bytes(100_000), api_key=PRODUCE)
            for cut in (1, 5, 50, 60_000):
                for vanish in ("reset", "close"):
                    peer = await connect(server)
                    await peer.send(request[:cut])
                    await until(lambda: server.connections == 1)
                    peer.reset() if vanish == "reset" else peer.close()
                    await until(lambda: server.connections == 0)
            assert len(door.gone) == len(door.sessions) == 8
            assert door.requests == []
            assert server._lent == 0

    run(loop, main)


@every_loop
def test_produces_that_want_no_answer_all_start_though_their_client_has_gone(loop: str) -> None:
    """More than start in one turn. Their client takes them as done when they have left it, and ends the connection."""
    count = 10 * FRAMES_A_TURN

    async def main() -> None:
        door = EchoDoor()
        door.answers = dict.fromkeys(range(count), lambda body: NO_REPLY)
        async with serving(door) as server:
            peer = await connect(server)
            await peer.send(b"".join(frame(at, api_key=PRODUCE) for at in range(count)))
            peer.close()
            await until(lambda: bool(door.gone))
            assert door.started == list(range(count))

    run(loop, main)


@every_loop
def test_an_answer_to_a_peer_that_is_gone_goes_nowhere(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            door.answers[1] = late = Later()
            peer = await connect(server)
            await peer.send(frame(1))
            await until(lambda: door.started == [1])
            peer.reset()
            await until(lambda: server.connections == 0)
            other = await connect(server)  # may well get the same descriptor
            late.comes([b"for somebody else"])
            await asyncio.sleep(0.02)
            await other.send(frame(2, b"mine"))
            assert await other.answer() == (2, b"mine")

    run(loop, main)


# ---------------------------------------------------------------- the end


@every_loop
def test_closing_answers_what_was_begun(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            door.answers[1] = late = Later()
            peer, idle = await connect(server), await connect(server)
            await peer.send(frame(1) + frame(2))
            await until(lambda: door.started == [1])
            closing = asyncio.ensure_future(server.close(grace_s=5.0))
            await asyncio.sleep(0.02)
            assert not closing.done()
            late.comes([b"done"])
            await closing
            assert await peer.answer() == (1, b"done")
            assert await peer.closed()
            assert await idle.closed()
            assert door.started == [1]
            assert server.connections == 0

    run(loop, main)


@every_loop
def test_closing_does_not_wait_for_ever(loop: str) -> None:
    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            door.answers[1] = never = Later()
            door.answers[2] = lambda body: [bytes(32 << 20)]
            waiting, deaf = await connect(server), await connect(server, receive_bytes=65536)
            await waiting.send(frame(1))
            await deaf.send(frame(2))
            await until(lambda: len(door.requests) == 2)
            await server.close(grace_s=0.1)
            assert await waiting.closed()
            assert server.connections == 0
            never.comes([b""])

    run(loop, main)


def test_a_port_in_use_is_an_error_of_the_system() -> None:
    async def main() -> None:
        async with serving(EchoDoor()) as server:
            other: Server[object] = Server(asyncio.get_running_loop(), EchoDoor(), Limits(), Room())  # type: ignore[arg-type]
            with pytest.raises(OSError):
                await other.start("127.0.0.1", server.port)

    run("uvloop", main)


@every_loop
def test_one_connection_that_has_much_to_ask_does_not_keep_others_waiting(loop: str) -> None:
    """Its requests are taken a few at a time: an honest request is started among them, not behind them."""

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            greedy, honest = await connect(server), await connect(server)
            await until(lambda: server.connections == 2)
            await greedy.send(b"".join(frame(at) for at in range(2000)))
            await honest.send(frame(77_777, b"fine"))
            assert await honest.answer() == (77_777, b"fine")
            for at in range(2000):
                assert (await greedy.answer())[0] == at
            assert door.started.index(77_777) < 1999

    run(loop, main)


@every_loop
def test_many_connections_that_ask_at_the_same_moment_leave_other_tasks_their_turns(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No turn of the loop starts more than so many requests, and each connection gets its answer."""
    monkeypatch.setattr(server_module, "FRAMES_A_TURN", 8)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            peers = [await connect(server) for _ in range(50)]
            await until(lambda: server.connections == len(peers))
            started = [0]
            for number, peer in enumerate(peers):
                peer.socket.send(frame(2 * number) + frame(2 * number + 1))
            while started[-1] < 2 * len(peers):
                await asyncio.sleep(0)
                started.append(len(door.requests))
            assert max(after - before for before, after in pairwise(started)) <= 8
            for number, peer in enumerate(peers):
                assert [(await peer.answer())[0] for _ in range(2)] == [2 * number, 2 * number + 1]

    run(loop, main)


@every_loop
@pytest.mark.parametrize("key", [HEARTBEAT, JOIN_GROUP, SYNC_GROUP])
def test_a_client_does_not_wait_behind_thousands_of_members(
    loop: str, key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else has half of every turn, and is served in the order in which it came."""
    monkeypatch.setattr(server_module, "FRAMES_A_TURN", 8)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            members = [await connect(server) for _ in range(100)]
            others = [await connect(server) for _ in range(6)]
            await until(lambda: server.connections == len(members) + len(others))
            for number, member in enumerate(members):
                member.socket.send(frame(number, api_key=key))
            for number, other in enumerate(others):
                other.socket.send(frame(1000 + number, api_key=METADATA))
            await until(lambda: len(door.started) == len(members) + len(others))
            theirs = [number for number in door.started if number >= 1000]
            assert door.started.index(theirs[-1]) < 3 * 8
            for peer in (*members, *others):
                assert (await peer.answer())[1] == b""

    run(loop, main)


@every_loop
def test_an_answer_does_not_wait_for_members_whose_requests_start_in_the_same_turn(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_turns = Server._take_turns
    monkeypatch.setattr(Server, "_take_turns", lambda server: None)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            member, other = await connect(server), await connect(server)
            await until(lambda: server.connections == 2)
            had: list[bytes] = []

            def look(body: memoryview) -> Reply:
                had.append(other.socket.recv(100))  # raises if nothing has come
                return [b""]

            door.answers[1] = look
            server.frames_left = 0
            member.socket.send(frame(1, api_key=HEARTBEAT))
            other.socket.send(frame(2, b"fine"))
            await until(lambda: all(map(server.waits_for_turn, server._connections)))
            take_turns(server)
            assert door.started == [2, 1]
            assert [answer[8:] for answer in had] == [b"fine"]
            assert await member.answer() == (1, b"")

    run(loop, main)


@every_loop
@pytest.mark.parametrize("keys", [range(15, 17), range(15, 32)], ids=["few", "more than there is room for in one turn"])
def test_what_is_not_needed_of_a_turn_heartbeats_have(loop: str, keys: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn starts as many requests as it may while any wait."""
    monkeypatch.setattr(server_module, "FRAMES_A_TURN", 8)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            peers = {key: await connect(server) for key in keys}
            greedy = await connect(server)
            await until(lambda: server.connections == len(peers) + 1)
            greedy.socket.send(b"".join(frame(at, api_key=HEARTBEAT) for at in range(800 - len(keys))))
            for key, peer in peers.items():
                peer.socket.send(frame(1000 + key, api_key=key))
            started = [0]
            while started[-1] < 800:
                await asyncio.sleep(0)
                started.append(len(door.requests))
            assert door.started.index(1000 + keys[-1]) < 6 * 8
            assert {after - before for before, after in pairwise(started)} <= {0, 8}

    run(loop, main)


@every_loop
def test_who_waits_for_a_turn_is_not_late_with_its_request(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has come whole: a broker that has more to do than it can must not drop its clients for that."""
    monkeypatch.setattr(Server, "_take_turns", lambda server: None)

    async def main() -> None:
        async with serving(EchoDoor()) as server:
            peer = await connect(server)
            await until(lambda: server.connections == 1)
            (connection,) = server._connections
            server.frames_left = 0
            peer.socket.send(frame(1))
            await until(lambda: server.waits_for_turn(connection))
            now = server.loop.time()
            assert [connection.overdue(now + later_s) for later_s in (0.0, 1_000.0, 2_000.0)] == [None] * 3

    run(loop, main)


@every_loop
def test_many_clients_that_go_at_the_same_moment_leave_other_tasks_their_turns(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "ENDED_A_TURN", 8)

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            peers = [await connect(server) for _ in range(50)]
            await until(lambda: server.connections == len(peers))
            for peer in peers:
                peer.close()
            gone = [0]
            while gone[-1] < len(peers):
                await asyncio.sleep(0)
                gone.append(len(door.gone))
            assert max(after - before for before, after in pairwise(gone)) <= 8

    run(loop, main)


@every_loop
def test_what_is_made_later_is_an_answer_too_which_is_waited_for(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def slowly(found: asyncio.Future[Any]) -> Any:
        await asyncio.sleep(0.02)
        return found.result()

    async def main() -> None:
        door = EchoDoor()
        async with serving(door) as server:
            running = asyncio.get_running_loop()
            coming, failing, cancelled, in_a_task = [running.create_future() for _ in range(4)]
            door.answers = {
                1: lambda body: MadeLater(coming, lambda found: found.result()),
                2: lambda body: MadeLater(failing, lambda found: found.result()),
                4: lambda body: MadeLater(cancelled, lambda found: found.result()),
                5: lambda body: MadeLater(in_a_task, slowly),
            }
            gone = await connect(server)
            await gone.send(frame(4))
            await until(lambda: len(door.started) == 1)
            cancelled.cancel()  # as of a client that has gone: nothing is to be told of it
            assert await gone.closed()
            peer, other, last = await connect(server), await connect(server), await connect(server)
            await peer.send(frame(1))
            await other.send(frame(2) + frame(3))
            await last.send(frame(5))
            await until(lambda: len(door.started) == 4)
            closing = asyncio.ensure_future(server.close(grace_s=5.0))
            failing.set_exception(RuntimeError("planted"))
            assert await other.closed()
            assert not closing.done()
            coming.set_result([b"a future"])
            in_a_task.set_result([b"in a task"])
            await closing
            assert await peer.answer() == (1, b"a future")
            assert await last.answer() == (5, b"in a task")

    run(loop, main)
    assert len([record for record in caplog.records if record.exc_info]) == 1
