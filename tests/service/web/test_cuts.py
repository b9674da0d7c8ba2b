"""Requests that the network cuts, at every byte: what comes of them is what comes of the whole, and of a part nothing.
And requests that mean harm: the short way takes none that aiohttp would read otherwise.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from service.web import lane as lane_module
from service.web.app import WebServer
from service.web.lane import Lane
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.web.pipes import PATIENCE_S, Pipe, Server, Told

HEAD = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
OCTETS = HEAD.replace(b"json", b"octet-stream")
BODY = b'{"records":[{"key":"a","value":[1]}]}'
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
BYTES = OCTETS + b"Content-Length: 3\r\n\r\n\r\n\r"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
LENT = WHOLE.replace(b"/t/", b"/none/")
"""Of the form of the short way, but there is no such topic: aiohttp says so."""
KEYED = WHOLE.replace(b"Content-L", b"Idempotency-Key: a\r\nContent-L")
LINES = b'{"value":1}\n{"value":2}\n'
KINDS = {
    "json": WHOLE,
    "bytes": BYTES,
    "nothing": OCTETS + b"Content-Length: 0\r\n\r\n",
    "malformed": HEAD + b"Content-Length: 5\r\n\r\n{\r\n\r\n",
    "twice the same member": HEAD
    + b'Content-Length: 57\r\n\r\n{"records":[{"key":"a"},{"key":"b","value":1,"value":2}]}',
    "with a name of its own": HEAD + b"X-Request-Id: 7\r\nContent-Length: 37\r\n\r\n" + BODY,
    "lanes": WHOLE + BYTES + WHOLE,
    "both ways": WHOLE + GET + BYTES,
    "lent": LENT + WHOLE + LENT + LENT + BYTES,
    "lent, then left": WHOLE + LENT + GET + LENT + BYTES,
    "chunked": OCTETS + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\none\r\n3\r\ntwo\r\n0\r\n\r\n",
    "lines": OCTETS.replace(b"octet-stream", b"x-ndjson") + b"Content-Length: 24\r\n\r\n" + LINES,
    "expects": OCTETS + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\none",
    "other path": BYTES.replace(b"/t/", b"/%74/"),
    "HTTP/1.0": BYTES.replace(b"1.1", b"1.0"),
    "HEAD": GET.replace(b"GET", b"HEAD"),
    "OPTIONS": HEAD.replace(b"POST", b"OPTIONS") + b"Access-Control-Request-Method: POST\r\nOrigin: a\r\n\r\n",
    "last": OCTETS + b"Connection: close\r\nContent-Length: 3\r\n\r\none",
}
HOSTILE = [
    b"Content-Length: 3\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: 3, 3\r\n",
    b"Content-Length: +3\r\n",
    b"Content-Length:\r\n",
    b"content-length : 3\r\n",
    b" Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n",
    b"TE: trailers\r\n",
    b"Trailer: Content-Length\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Content-Type: application/json\r\n",
    b"Content-Type: application/x-ndjson\r\n",
    b"Expect: 100-continue\r\n",
    b"Expect: 200-ok\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive, content-length\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Upgrade: websocket\r\n",
    b"Host: y\r\n",
    b"X: \x00\r\n",
    b"X: a\rb\r\n",
    b"X: a\nContent-Length: 0\r\n",
    b"X\x0b: a\r\n",
    b"X\xff: a\r\n",
    b": a\r\n",
    b"X-\xc3\xa9: a\r\n",
    b"X: \xff\r\n",
    b"\r\n",
    b"\n",
    b"Idempotency-Key: a b\r\n",
    b"Accept-Encoding: gzip;q=0, zstd\r\n",
    b"User-Agent: " + b"x" * 5000 + b"\r\n",
]
TARGETS = [
    b"http://x/v1/topics/t/records",
    b"//x/v1/topics/t/records",
    b"/v1/topics/t/records?a",
    b"/v1/topics/t/records#a",
    b"/v1/./topics/t/records",
    b"/v1/topics/../records",
    b"*",
]
CHANGES = [
    (b"POST", b"post"),
    (b"POST", b"PUT"),
    (b"1.1", b"1.0"),
    (b"1.1", b"2.0"),
    (b"Host: x\r\n", b""),
    (b"Length: ", b"Length: 0"),
    (b"Length: 3", b"Length: 2"),
    (b"Length: 3", b"Length: 4"),
    (b"HTTP/1.1\r", b"HTTP/1.1 \r"),
    (b"/v1/topics/t/records", b"/v1/topics/%74/records"),
]
V2_JSON = b"vnd.kafka.json.v2+json"
ENDS_AFTER = 60
"""Turns of the loop, in which whatever was asked is answered."""


def at_server(folder: Path, scene: Callable[[Server], Awaitable[None]], durability: str = "os") -> None:
    """With a broker and its HTTP in this process, and a topic `t` of one partition."""

    async def on(stage: Stage) -> None:
        await stage.create("t")
        await stage.served("t")
        web = WebServer(stage.broker, connections_max=10)
        await web.start([])
        web.begin()
        stage.broker.ready.set()
        try:
            await scene(Server(web, stage.broker, "t"))
        finally:
            await web.stop()

    on_stage(folder, on, {"log.durability": durability})


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not what():  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_is_cut_anywhere_is_answered_and_written_as_the_whole_one(
    tmp_path: Path, kind: str, durability: str
) -> None:
    request = KINDS[kind]
    step = 1 if durability == "os" else 29

    async def scene(server: Server) -> None:
        whole = await server.ask([request])
        assert whole.answers
        for at in range(1, len(request), step):
            assert await server.ask([request[:at], request[at:]]) == whole, at
        assert await server.ask(request[at : at + 1] for at in range(len(request))) == whole

    at_server(tmp_path, scene, durability)


@pytest.mark.parametrize("kind", ["json", "bytes", "malformed", "chunked", "other path"])
def test_of_a_request_that_ends_early_nothing_is_written(tmp_path: Path, kind: str) -> None:
    request = KINDS[kind]

    async def scene(server: Server) -> None:
        for at in range(1, len(request)):
            told = await server.ask([request[:at]], ends_after=0)
            assert (told.is_closed, told.written) == (True, []), at

    at_server(tmp_path, scene)


@pytest.mark.parametrize("kind", ["json", "bytes", "lanes", "lent"])
def test_a_client_that_says_no_more_is_answered(tmp_path: Path, kind: str) -> None:
    async def scene(server: Server) -> None:
        whole = await server.ask([KINDS[kind]])
        assert await server.ask([KINDS[kind]], ends_after=0) == whole._replace(is_closed=True)
        assert await server.ask([KINDS[kind], WHOLE[:-1]], ends_after=0) == whole._replace(is_closed=True)

    at_server(tmp_path, scene, "fsync")


def test_who_is_answered_while_the_server_stops_is_told(tmp_path: Path) -> None:
    async def scene(server: Server) -> None:
        asking = asyncio.create_task(server.ask([WHOLE]))
        await until(lambda: bool(server.web._lanes.writing))
        stopping = asyncio.create_task(server.web.stop())
        late = await server.ask([WHOLE])
        assert (await asking).answers.startswith(b"HTTP/1.1 200")
        assert late.answers.startswith(b"HTTP/1.1 200") or (late.is_closed and not late.written)
        await stopping

    at_server(tmp_path, scene, "fsync")


def test_long_bodies_on_the_short_way_are_counted_while_they_wait(tmp_path: Path) -> None:
    """Beyond what they may hold together, others go the general way."""
    body = b"x" * 100_000
    long = OCTETS + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def scene(server: Server) -> None:
        lanes = server.web._lanes
        for may_hold, held_bytes in (150_000, len(body)), (90_000, 0):
            with patch.object(lane_module, "COMING_BYTES", may_hold):
                asking = asyncio.create_task(server.ask([long]))
                most_bytes = 0
                while not asking.done():
                    most_bytes = max(most_bytes, lanes.writing_bytes)
                    await asyncio.sleep(0)
                assert asking.result().answers.startswith(b"HTTP/1.1 200")
                assert (most_bytes, lanes.writing_bytes) == (held_bytes, 0)

    at_server(tmp_path, scene, "fsync")


def test_long_bodies_of_one_turn_are_counted_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that came in one turn passed together."""
    body = b"x" * 100_000
    serve, counted = lane_module.Lane._serve, []

    def spy(lane: lane_module.Lane, asked: lane_module.QuickRequest, head: bytes, body: bytes) -> bool:
        is_served = serve(lane, asked, head, body)
        counted.append((lane._lanes.writing_bytes, lane._lanes.tally.under_way))
        return is_served

    monkeypatch.setattr(lane_module.Lane, "_serve", spy)

    async def scene(server: Server) -> None:
        await server.ask([OCTETS + b"Content-Length: %d\r\n\r\n" % len(body) + body])

    at_server(tmp_path, scene, "fsync")
    assert counted == [(len(body), 1)]


def test_a_body_that_comes_in_pieces_is_looked_at_once(tmp_path: Path) -> None:
    """Each look copies what has come."""
    body = b"x" * 500_000
    request = OCTETS + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def scene(server: Server) -> None:
        with patch.object(Lane, "_serve_some", autospec=True, side_effect=Lane._serve_some) as looks:
            told = await server.ask(request[at : at + 1000] for at in range(0, len(request), 1000))
        assert told.written == [(None, body)]
        assert looks.call_count == 2

    at_server(tmp_path, scene)


def test_who_takes_no_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes them slowly is not: a client had to take all that waited in the time."""
    monkeypatch.setattr(lane_module, "UNREAD_S", 0.5)

    async def scene(server: Server) -> None:
        pipe = Pipe(server.web._connected())
        await pipe.send([WHOLE])
        pipe.waiting_bytes = 100_000
        pipe.protocol.pause_writing()
        for _ in range(30):
            pipe.waiting_bytes -= 100
            await asyncio.sleep(0.05)
        assert not pipe.is_closing()
        await until(pipe.is_closing)

    at_server(tmp_path, scene)


def test_empty_lines_before_a_request_are_passed_over(tmp_path: Path) -> None:
    """They took the connection off the short way."""

    async def scene(server: Server) -> None:
        with patch.object(Lane, "_leave", autospec=True, side_effect=Lane._leave) as leaves:
            told = await server.ask([b"\r\n" + WHOLE + b"\r", b"\n\r\n", WHOLE])
        assert told.answers.count(b"200 OK") == 2
        assert not leaves.called

    at_server(tmp_path, scene)


def test_a_connection_that_is_busy_here_is_not_idle_for_aiohttp(tmp_path: Path) -> None:
    async def scene(server: Server) -> None:
        manager = server.web._runner.server
        assert manager is not None
        manager._kwargs["keepalive_timeout"] = 0.05
        pipe = Pipe(server.web._connected())
        await pipe.send([WHOLE])
        await asyncio.sleep(0.15)
        await pipe.send([WHOLE])
        assert (pipe.told.count(b"200 OK"), pipe.is_closing()) == (2, False)
        pipe.close()
        await asyncio.sleep(0)

    at_server(tmp_path, scene)


@pytest.mark.parametrize(
    ("early", "then"),
    [
        (KEYED, KEYED),
        (LENT, WHOLE),
        (LENT.replace(b"/v1/topics/none/records", b"/topics/none").replace(b"json", V2_JSON), WHOLE),
    ],
    ids=["key", "own", "version 2"],
)
def test_a_connection_comes_back_to_the_short_way(tmp_path: Path, early: bytes, then: bytes) -> None:
    """It was aiohttp's for good when its first request came before the topic, or the one of the keys."""

    async def scene(server: Server) -> None:
        pipe = Pipe(server.web._connected())
        await pipe.send([early])
        await until(lambda: b"\r\nServer:" in pipe.told and not server.is_busy)
        pipe.told.clear()
        await pipe.send([then, then])
        await until(lambda: pipe.told.count(b"200 OK") == 2)
        assert b"\r\nServer:" not in pipe.told, "it is aiohttp's answer"
        pipe.close()
        await asyncio.sleep(0)

    at_server(tmp_path, scene)


async def _fails_later(*_: object) -> bytes:
    raise ZeroDivisionError


@pytest.mark.parametrize("write", [Mock(side_effect=ZeroDivisionError), _fails_later])
def test_what_nobody_foresaw_is_answered(tmp_path: Path, write: Callable[..., object]) -> None:
    async def scene(server: Server) -> None:
        told = await server.ask([WHOLE, BYTES])
        first, _, second = told.answers.partition(b"HTTP/1.1 200 OK")
        assert b"HTTP/1.1 500 Internal Server Error" in first
        assert b'"outcome":"unknown"' in first
        assert second

    with patch.dict(lane_module.OWN.write, {b"application/json": write}):
        at_server(tmp_path, scene)


def hostile(draw: random.Random) -> tuple[bytes, list[int]]:
    """Requests in a row, something about them wrong, and where they are cut."""
    requests = [draw.choice([WHOLE, BYTES, BYTES, LENT, KINDS["nothing"], KINDS["chunked"], GET]) for _ in range(2)]
    first = requests[0]
    for _ in range(draw.choice([1, 1, 2])):
        ends = [each.end() for each in re.finditer(rb"\n", first)]
        match draw.randrange(6):
            case 0 | 1:
                at = draw.choice(ends)
                first = first[:at] + draw.choice(HOSTILE) + first[at:]
            case 2:
                at = draw.randrange(len(first))
                first = (
                    first[:at] + draw.choice([b"", b"\x00", b"\n", b"\r", b" ", b"\t", b":", b"%"]) + first[at + 1 :]
                )
            case 3:
                first = first.replace(b"\r\n", b"\n", draw.choice([1, 2, 9]))
            case 4:
                first = first.replace(b"/v1/topics/t/records", draw.choice(TARGETS), 1)
            case 5:
                first = first.replace(*draw.choice(CHANGES), 1)
    both = first + requests[1]
    return both, sorted(draw.randrange(len(both)) for _ in range(draw.randrange(3)))


def statuses(told: Told) -> list[bytes]:
    """Of requests; what is none is refused as often as a piece of it comes."""
    found = re.findall(rb"HTTP/[12].[01] (\d+)", told.answers)
    return [status for status, group in itertools.groupby(found) for _ in (group if status != b"400" else (1,))]


def test_requests_that_mean_harm_are_read_as_aiohttp_reads_them(tmp_path: Path) -> None:
    seed, count = int(os.environ.get("SEED", random.randrange(1 << 32))), int(os.environ.get("COUNT", 150))

    async def scene(server: Server) -> None:
        draw = random.Random(seed)
        for number in range(count):
            request, cuts = hostile(draw)
            pieces = [request[at:end] for at, end in itertools.pairwise([0, *cuts, len(request)]) if end > at]
            short = await server.ask(pieces, ends_after=ENDS_AFTER)
            # What aiohttp can't read takes along what came before it in the same piece: so it reads byte by byte too.
            each_byte = [request[at : at + 1] for at in range(len(request))]
            general = [await server.ask(each, lane=False, ends_after=ENDS_AFTER) for each in (pieces, each_byte)]
            assert short.written in [each.written for each in general], (seed, number, pieces)
            told = statuses(short)
            agree = [all(a == b for a, b in zip(told, statuses(each), strict=False)) for each in general]
            assert any(agree), (seed, number, pieces, told)  # who is slower is told less before the end
            cut_off = await server.ask(pieces, ends_after=0)
            assert cut_off.written == short.written[: len(cut_off.written)], (seed, number, pieces)

    at_server(tmp_path, scene)
