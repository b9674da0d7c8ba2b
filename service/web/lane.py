# Hot path: one `data_received` a request; `python -m tests.bench --only web` answers for it.
"""The short way of requests that come over and over: `POST /v1/topics/{topic}/records` with JSON or bytes, on a
connection that is kept. Everything else goes to aiohttp, and so does what follows it on that connection.

What always holds: what is not exactly of the simple form below, to the letter, is aiohttp's to read and to refuse;
requests are answered one after the other, in their order; who does not read is not read from.

Measured when it was made (16 connections, two cores, `wrk` beside it): a request of one record took the processor
203 us in aiohttp's way, of which a half was aiohttp's.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, cast

from aiohttp import web

from log.tally import Histogram
from service.broker.session import Session
from service.web import quick
from service.web.answers import CODECS, PACKED_FROM_BYTES, codec_of
from service.web.gateway import Gateway
from service.web.problems import MEDIA_TYPE, PROBLEMS, Problem

logger = logging.getLogger("oncelog.http")

HEAD_BYTES_MAX = 4096
BODY_BYTES_MAX = 1 << 20
REST_BYTES_MAX = 64 << 10
REQUESTS_AT_ONCE = 30
"""Served in one turn of the loop, of those that came together."""
HEADS_MAX = 1000
"""Remembered, so that each is read once."""
BODY_S, IDLE_S = 60.0, 75.0
"""Within which a body must have come, and how long a connection is kept that says nothing."""
PATH = "/v1/topics/{topic}/records"
STATUS_LINES = {200: b"200 OK\r\nContent-Type: application/json"} | {
    kind.status: f"{kind.status} {HTTPStatus(kind.status).phrase}\r\nContent-Type: {MEDIA_TYPE}".encode()
    for kind in PROBLEMS.values()
}
_ASKED = re.compile(rb"POST (/v1/topics/([A-Za-z0-9._-]{1,249})/records) HTTP/1\.1")
_HEADER = re.compile(rb"([A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_HARMLESS = frozenset({b"host", b"user-agent", b"accept", b"accept-language"})
Writes = Callable[[Gateway, str, bytes], quick.Answer]
_WRITE: dict[bytes, Writes] = {b"application/json": quick.write_json, b"application/octet-stream": quick.write_bytes}


class Asked(NamedTuple):
    """The head of a request that may go the short way."""

    path: str
    names: Mapping[str, str]
    """What the path names: the topic."""
    write: Writes
    body_bytes: int
    codec: str | None
    """What the client likes its answer packed with."""


def read_head(head: bytes) -> Asked | None:
    """None for whatever is not of the simple form."""
    first, *lines = head.split(b"\r\n")
    asked = _ASKED.fullmatch(first)
    if asked is None:
        return None
    found: dict[bytes, bytes] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None or (name := header[1].lower()) in found:
            return None
        found[name] = header[2] or b""
    write = _WRITE.get(found.pop(b"content-type", b""))
    length = found.pop(b"content-length", b"")
    codec = codec_of(found.pop(b"accept-encoding", b"").decode())
    if found.pop(b"connection", b"keep-alive").lower() != b"keep-alive" or b"host" not in found:
        return None
    if write is None or not length.isdigit() or len(length) > 9 or int(length) > BODY_BYTES_MAX:
        return None
    if not found.keys() <= _HARMLESS:
        return None
    return Asked(asked[1].decode(), {"topic": asked[2].decode()}, write, int(length), codec)


class Lanes:
    """What the connections of one server share."""

    def __init__(self, gateway: Gateway, session: Callable[[asyncio.BaseTransport], Session]) -> None:
        self.gateway = gateway
        self.session = session
        """Who is at the other end of a connection."""
        self.authorize = next(each.authorize for each in gateway.routes if (each.method, each.path) == ("POST", PATH))
        self.heads: dict[bytes, Asked] = {}
        self.writing: set[asyncio.Task[None]] = set()
        """Requests whose answers are waited for."""
        self._date = b""
        self._dated_s = -1

    def date(self, now_s: float) -> bytes:
        """The header, made once a second."""
        if int(now_s) != self._dated_s:
            self._dated_s = int(now_s)
            self._date = f"Date: {formatdate(usegmt=True)}\r\n".encode()
        return self._date


class Lane(asyncio.Protocol):
    """One connection. `leave` hears of it when aiohttp takes it over."""

    def __init__(
        self, lanes: Lanes, slow: web.RequestHandler, leave: Callable[[web.RequestHandler], None], head_s: float
    ) -> None:
        self._lanes = lanes
        self._gateway = lanes.gateway
        self._slow = slow
        self._on_leave = leave
        self._is_slow = False
        self._transport: asyncio.Transport
        self._rest = b""
        """What has come of requests that are not begun."""
        self._task: asyncio.Task[None] | None = None
        """Of a request whose answer is waited for."""
        self._is_paused = False
        self._loop = asyncio.get_running_loop()
        self._seen_s = self._loop.time()
        self._patience_s = head_s
        self._timer = self._loop.call_later(head_s, self._look)

    # -- what the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._session = self._lanes.session(transport)
        self._slow.connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self._timer.cancel()
        self._slow.connection_lost(error)

    def eof_received(self) -> None:
        self._slow.eof_received()

    def pause_writing(self) -> None:
        if self._is_slow:
            self._slow.pause_writing()
        else:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._is_slow:
            self._slow.resume_writing()
        else:
            self._is_paused = False
            self._resume()

    def data_received(self, data: bytes) -> None:
        if self._is_slow:
            self._slow.data_received(data)
        else:
            self._go_on(self._rest + data if self._rest else data)

    # -- requests

    def _resume(self) -> None:
        if self._is_slow:
            return  # it says itself when it is read from
        if self._task is None and not self._is_paused and not self._transport.is_closing():
            self._transport.resume_reading()
            self._go_on(self._rest)

    def _go_on(self, data: bytes) -> None:
        """Serve what is there, one request after the other: so many in this turn of the loop."""
        lanes = self._lanes
        left = REQUESTS_AT_ONCE
        while data:
            self._rest = data
            if self._task is not None or self._is_paused:
                if len(data) > REST_BYTES_MAX:
                    self._transport.pause_reading()
                return
            end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
            if end < 0:
                self._leave()
                return
            if not left:
                self._transport.pause_reading()
                self._loop.call_soon(self._resume)
                return
            left -= 1
            head = data[:end]
            asked = lanes.heads.get(head)
            if asked is None:
                asked = read_head(head)
                if asked is None:
                    self._leave()
                    return
                if len(lanes.heads) >= HEADS_MAX:
                    lanes.heads.clear()
                lanes.heads[head] = asked
            whole = end + 4 + asked.body_bytes
            if len(data) < whole:
                if self._patience_s != BODY_S:
                    self._wait(BODY_S)
                return
            self._rest = b""
            if not self._serve(asked, data[end + 4 : whole]):
                self._rest = data
                self._leave()
                return
            data = data[whole:]

    def _leave(self) -> None:
        """To aiohttp, for good."""
        self._is_slow = True
        self._timer.cancel()
        self._on_leave(self._slow)
        data, self._rest = self._rest, b""
        self._slow.data_received(data)

    def _serve(self, asked: Asked, body: bytes) -> bool:
        """False, and nothing done, if it must go the general way."""
        broker = self._gateway.broker
        if not broker.ready.is_set() or len(body) > broker.config.http_max_body_bytes:
            return False
        if not self._lanes.authorize(self._session, asked.names):
            return False  # the general way says so
        self._seen_s = began_s = self._loop.time()
        self._patience_s = IDLE_S
        answer = asked.write(self._gateway, asked.names["topic"], body)
        if answer is None:
            return False
        if isinstance(answer, bytes):
            self._answer(asked, 200, answer, began_s)
        else:
            self._task = self._loop.create_task(self._later(asked, answer, began_s))
            self._lanes.writing.add(self._task)
        return True

    async def _later(self, asked: Asked, answer: Awaitable[bytes], began_s: float) -> None:
        tally = self._gateway.broker.requests.http
        tally.under_way += 1
        try:
            self._answer(asked, 200, await answer, began_s)
        except Problem as problem:
            tally.problems[problem.slug] += 1
            self._answer(asked, problem.kind.status, problem.body(asked.path), began_s)
        except Exception:  # logged with its trace; whatever it is, only this connection ends
            logger.exception("POST %s failed", asked.path)
            self._transport.abort()
        finally:
            tally.under_way -= 1
            assert self._task is not None
            self._lanes.writing.discard(self._task)
            self._task = None
        self._resume()

    def _answer(self, asked: Asked, status: int, body: bytes, began_s: float) -> None:
        now_s = self._loop.time()
        tally = self._gateway.broker.requests.http
        tally.answered[PATH, "POST", status] += 1
        tally.seconds.setdefault(PATH, Histogram()).add(now_s - began_s)
        packed = b""
        if asked.codec is not None and len(body) >= PACKED_FROM_BYTES:
            body = CODECS[asked.codec](body)
            packed = b"Content-Encoding: %b\r\nVary: Accept-Encoding\r\n" % asked.codec.encode()
        if not self._transport.is_closing():
            self._transport.write(
                b"HTTP/1.1 %b\r\n%b%bContent-Length: %d\r\n\r\n%b"
                % (STATUS_LINES[status], packed, self._lanes.date(now_s), len(body), body)
            )

    # -- time

    def _wait(self, patience_s: float) -> None:
        self._patience_s, self._seen_s = patience_s, self._loop.time()
        self._timer.cancel()
        self._timer = self._loop.call_later(patience_s, self._look)

    def _look(self) -> None:
        """Who says nothing is ended; a body that does not end is left to aiohttp, which says so."""
        left_s = self._seen_s + self._patience_s - self._loop.time()
        if left_s > 0 or self._task is not None or self._is_paused:
            self._timer = self._loop.call_later(max(left_s, 1.0), self._look)
        elif self._rest:
            self._leave()
        else:
            self._transport.abort()
