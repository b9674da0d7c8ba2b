# Hot path: one `data_received` a request; `python -m tests.bench --only web` answers for it.
"""A short way for requests that come again and again, on a connection that is kept: `POST /v1/topics/{topic}/records`
with JSON or bytes, also with an Idempotency-Key, and the REST Proxy's `POST /topics/{topic}`. Every other request goes
to aiohttp, and so does everything after it on that connection. Only a request that has the simple form, and can't be
served here as things are (there is no such topic yet, another broker leads), is lent to aiohttp: it gets this one, and
the next goes the short way again.

What always holds: a request that does not have exactly the simple form below is left to aiohttp, which reads or refuses
it. Requests are answered one after the other, in their order. While a client does not read its answers, nothing is read
from it.

Measured when it was made (16 connections, two cores, `wrk` beside it): a request of one record took 203 us of the
processor through aiohttp, and half of that was aiohttp's own.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from aiohttp import web

from log.tally import Histogram
from service.broker.session import Session
from service.broker.tally import HttpTally
from service.web import compatible, quick, quick_once
from service.web.answers import CODECS, PACKED_FROM_BYTES, codec_of
from service.web.gateway import Gateway
from service.web.holding import SMALL_BYTES
from service.web.problems import MEDIA_TYPE, PROBLEMS, Problem
from service.web.taking import RESET_S, UNREAD_S, Given, Taking

logger = logging.getLogger("oncelog.http")

HEAD_BYTES_MAX = 4096
BODY_BYTES_MAX = 1 << 20
REST_BYTES_MAX = 64 << 10
COMING_BYTES = 64 << 20
"""How much all long bodies hold that have not come as a whole, and as much again those that are being written; further
ones come by aiohttp, where others are ended for them if need be (`holding.py`).
"""
REQUESTS_AT_ONCE = 30
"""How many requests that came together are served in one turn of the loop."""
BYTES_AT_ONCE = 8 << 10
"""After so many bytes of bodies the next request has to wait for the next turn, too: 2000 short records of version 2
take 6 ms, in 24 kB.
"""
STAMP_S = 1e-6
"""How much later a stamp is than one of the same time."""
HEADS_MAX = 1000
"""How many heads are remembered, so that each is parsed once."""
BODY_S = 60.0
"""A body must have come within this time."""
IDLE_S = 3630.0
"""How long a silent connection is kept: as long as aiohttp keeps one, which is longer than any proxy does."""
STATUSES = {200, *(kind.status for kind in PROBLEMS.values())}
_HEADER = re.compile(rb"([A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_KEY = re.compile(rb"\r\nidempotency-key:[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)(?=\r\n|\Z)", re.IGNORECASE)
_SO_FAR = re.compile(rb"(?:[\t\x20-\x7e]|\r\n)*+\r?")
_HARMLESS = frozenset({b"host", b"user-agent", b"accept"})
_BEGINNINGS = (b"POST /v1/topics/", b"POST /topics/")
Writes = Callable[[Gateway, str, bytes], quick.Answer]
WritesOnce = Callable[[bytes, Gateway, Session, str, str, bytes], quick.Answer]


def _status_lines(media: str, of_problems: str) -> dict[int, bytes]:
    return {
        each: f"{each} {HTTPStatus(each).phrase}\r\nContent-Type: {media if each == 200 else of_problems}".encode()
        for each in sorted(STATUSES)
    }


class ShortWay(NamedTuple):
    """A route that has a short way."""

    route: str
    asked: re.Pattern[bytes]
    write: Mapping[bytes, Writes]
    """By the media type of the body."""
    status_lines: Mapping[int, bytes]
    refuse: Callable[[Problem], web.Response] | None = None
    """Makes the answer of a problem, if that is not as this API's own."""
    once: Mapping[bytes, WritesOnce] = MappingProxyType({})
    """By the media type of the body, for requests with an Idempotency-Key."""


OWN = ShortWay(
    "/v1/topics/{topic}/records",
    re.compile(rb"POST (/v1/topics/([A-Za-z0-9._-]{1,249})/records) HTTP/1\.1"),
    {b"application/json": quick.write_json, b"application/octet-stream": quick.write_bytes},
    _status_lines("application/json", MEDIA_TYPE),
    once={media.encode(): partial(quick_once.write, media) for media in quick_once.READ},
)
V2 = ShortWay(
    compatible.V2,
    re.compile(rb"POST (/topics/([A-Za-z0-9._-]{1,249})) HTTP/1\.1"),
    {f"application/vnd.kafka.{form}.v2+json".encode(): partial(compatible.write_v2, form)
     for form in compatible.V2_FORMS},
    _status_lines(compatible.V2_MEDIA, compatible.V2_MEDIA),
    compatible.refuse_v2,
)  # fmt: skip


class QuickRequest(NamedTuple):
    """The head of a request that may go the short way."""

    way: ShortWay
    path: str
    names: Mapping[str, str]
    """The variable parts of the path: the topic."""
    write: Writes
    body_bytes: int
    codec: str | None
    """The codec that the client prefers for its answer."""
    media: bytes
    once: Callable[[Gateway, Session, str, str, bytes], quick.Answer] | None = None
    """Writes it if it has an Idempotency-Key."""


def read_head(head: bytes) -> QuickRequest | None:
    """The parsed head, which has no Idempotency-Key; None if it does not have the simple form."""
    first, *lines = head.split(b"\r\n")
    way, asked = OWN, OWN.asked.fullmatch(first)
    if asked is None:
        way, asked = V2, V2.asked.fullmatch(first)
    if asked is None:
        return None
    found: dict[bytes, bytes] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None or (name := header[1].lower()) in found:
            return None
        found[name] = header[2] or b""
    media = found.pop(b"content-type", b"")
    write = way.write.get(media)
    length = found.pop(b"content-length", b"")
    codec = codec_of(found.pop(b"accept-encoding", b"").decode())
    if found.pop(b"connection", b"keep-alive").lower() != b"keep-alive" or b"host" not in found:
        return None
    if write is None or not length.isdigit() or len(length) > 9 or int(length) > BODY_BYTES_MAX:
        return None
    if not found.keys() <= _HARMLESS:
        return None
    return QuickRequest(way, asked[1].decode(), {"topic": asked[2].decode()}, write, int(length), codec, media)


def may_be_short(begun: bytes) -> bool:
    """Whether the head that begins so may be one of the short way. What can't be one is not waited for: aiohttp refuses
    most of it at once.
    """
    if len(begun) >= HEAD_BYTES_MAX or _SO_FAR.fullmatch(begun) is None:
        return False
    return any(begun.startswith(each) or each.startswith(begun) for each in _BEGINNINGS)


class Lanes:
    """What the connections of one server share."""

    def __init__(self, gateway: Gateway, tally: HttpTally, session: Callable[[asyncio.BaseTransport], Session]) -> None:
        self.gateway = gateway
        self.tally = tally
        self.session = session
        """Makes the session for a connection: the client at its other end."""
        self.authorize = {each.path: each.authorize for each in gateway.routes if each.method == "POST"}
        self.connected = 0
        """How many connections there are."""
        self._heads: dict[bytes, QuickRequest] = {}
        self.writing: dict[asyncio.Task[None], None] = {}
        """Requests whose answers are not ready yet."""
        self.coming_bytes = 0
        """What long bodies hold that have not come as a whole."""
        self.writing_bytes = 0
        """What long bodies hold, as batches, that wait for replicas or a disk."""
        self.are_closed = False
        """The server stops: aiohttp gets everything that comes from now on, and new connections are ended."""
        self._date = b""
        self._dated_s = -1
        self._stamp_s = 0.0

    def read(self, head: bytes) -> QuickRequest | None:
        """The parsed head; None if it does not have the simple form. Heads are remembered without their keys."""
        known = self._heads.get(head)
        if known is not None:
            return known
        key = _KEY.search(head)
        if key is not None:
            head = head[: key.start()] + head[key.end() :]
        asked = self._heads.get(head)
        if asked is None:
            asked = read_head(head)
            if asked is None:
                return None
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[head] = asked
        if key is None:
            return asked
        once = asked.way.once.get(asked.media)
        return None if once is None else asked._replace(once=partial(once, key[1]))

    def stamp_s(self) -> float:
        """The time now, but later than all before. The loop's own stands still for a millisecond."""
        self._stamp_s = max(self.gateway.env.clock.monotonic(), self._stamp_s + STAMP_S)
        return self._stamp_s

    def date(self, now_s: float) -> bytes:
        """The `Date` header, made once a second."""
        if int(now_s) != self._dated_s:
            self._dated_s = int(now_s)
            self._date = f"Date: {formatdate(usegmt=True)}\r\n".encode()
        return self._date


class General(web.RequestHandler):
    """aiohttp's connection, which is its own for good, or for one request."""

    __slots__ = ("_answered",)

    _answered: asyncio.Future[None] | None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._answered = None

    async def answer(self, request: bytes) -> bool:
        """Answer this request, which is whole. Whether this may be done again; else the connection is aiohttp's."""
        self._answered = self._loop.create_future()
        self.data_received(request)
        await self._answered
        await asyncio.sleep(0)  # aiohttp goes on: it ends the connection, or waits for the next head
        if not self.awaits_head:
            return False
        await self._drain_helper()
        self.keep_alive(True)  # aiohttp would end the connection as idle although a request may be under way
        return True

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        told = await super().finish_response(request, resp, start_time)
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
        return told

    @property
    def awaits_head(self) -> bool:
        return self._waiter is not None and not self._waiter.done()


class Lane(asyncio.Protocol):
    """One connection."""

    def __init__(self, lanes: Lanes, slow: General, head_s: float) -> None:
        self._lanes = lanes
        self._gateway = lanes.gateway
        self._slow = slow
        self._is_slow = False
        """The connection is aiohttp's for good."""
        self._is_lent = False
        """The request whose answer is not ready yet is with aiohttp."""
        self._transport: asyncio.Transport
        self._rest = bytearray()
        """The bytes that have come of requests that are not begun."""
        self._lacks_bytes = 0
        """How many bytes of the first request have not come, as far as that is known: of its body, or 1 of its head."""
        self._is_cut = False
        """Of the first request's head only a part has come."""
        self._coming_bytes = 0
        """How long that body is, if it counts."""
        self._task: asyncio.Task[None] | None = None
        """The request whose answer is not ready yet."""
        self._taking: Taking | None = None
        """Whether the client takes something of the answers that wait. None: none waits for it."""
        self._has_ended = False
        """The client sends no more, but may wait for an answer."""
        self.came_s = 0.0
        """When the last bytes came for aiohttp, as `Lanes.stamp_s` tells it."""
        self.given: dict[Given, None] = {}
        """Answers of which somebody must know whether the client has them."""
        self._loop = asyncio.get_running_loop()
        self._seen_s = self._loop.time()
        self._head_s = self._patience_s = head_s
        self._timer = self._loop.call_later(head_s, self._look)

    def stamp_s(self) -> float:
        return self._lanes.stamp_s()

    def give(self, came_s: float, written_s: float) -> Given:
        """An answer was written to a request that came then; its last bytes later than `written_s`."""
        for each in list(self.given):
            each.look(came_s)
        given = Given(self._transport, self.given, written_s)
        given.client_has_ended = self._has_ended
        return given

    # -- what the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass of it
        self._lanes.connected += 1
        self._session = self._lanes.session(transport)
        self._slow.connection_made(transport)
        self._slow.keep_alive(True)  # aiohttp would end the connection as idle although a request may be under way here
        if self._lanes.are_closed:
            transport.abort()

    def connection_lost(self, error: BaseException | None) -> None:
        self._lanes.connected -= 1
        self._timer.cancel()
        self._count_coming(0)
        if self._is_lent and self._task is not None:
            self._task.cancel()  # it only waits for aiohttp
        for each in list(self.given):
            each.ended(error)
        # aiohttp fails if a request and the end of its connection come in one turn
        self._loop.call_soon(self._slow.connection_lost, error)

    def eof_received(self) -> bool:
        """Whether the connection stays open for the answers that are not sent yet."""
        self._has_ended = True
        if self._is_slow:
            self._slow.eof_received()
            for each in self.given:
                each.client_has_ended = True
            may_be_reset = any(not each.has_ended for each in self.given)
            if may_be_reset:
                self._loop.call_later(RESET_S, self._transport.close)
            return may_be_reset
        return self._task is not None or (bool(self._rest) and self._lacks_bytes <= 0)

    def pause_writing(self) -> None:
        if self._is_slow or self._is_lent:
            self._slow.pause_writing()
        else:
            self._transport.pause_reading()
            self._taking = Taking(self._transport)
            self._wait(UNREAD_S)

    def resume_writing(self) -> None:
        if self._is_slow or self._is_lent:
            self._slow.resume_writing()
        else:
            self._taking = None
            self._wait(IDLE_S)
            self._resume()

    def data_received(self, data: bytes) -> None:
        if self._is_slow:
            self.came_s = self._lanes.stamp_s()
            self._slow.data_received(data)
            return
        if self._rest:
            self._rest += data
            self._lacks_bytes -= len(data)
            if self._lacks_bytes > 0:
                return
            data = self._take_rest()
        self._go_on(data)

    # -- requests

    def _take_rest(self) -> bytes:
        data = bytes(self._rest)
        self._rest.clear()
        self._count_coming(0)
        return data

    def _count_coming(self, size_bytes: int) -> None:
        self._lanes.coming_bytes += size_bytes - self._coming_bytes
        self._coming_bytes = size_bytes

    def _resume(self) -> None:
        if self._is_slow:
            return  # aiohttp says itself when it wants to read
        if self._task is None and self._taking is None and not self._transport.is_closing():
            if not self._has_ended:
                self._transport.resume_reading()
            self._go_on(self._take_rest())

    def _go_on(self, data: bytes) -> None:
        """Serve the requests that are there, one after the other, up to a limit in each turn of the loop."""
        at = self._serve_some(data)
        self._rest += data[at:]
        if self._has_ended and self._task is None and (at == len(data) or self._lacks_bytes > 0):
            self._transport.close()

    def _serve_some(self, data: bytes) -> int:
        """How many bytes are done with. The rest waits for more bytes, or for its turn."""
        lanes = self._lanes
        at, left, left_bytes = 0, REQUESTS_AT_ONCE, BYTES_AT_ONCE
        self._lacks_bytes = 0
        while at < len(data):
            if self._task is not None or self._taking is not None:
                if len(data) - at > REST_BYTES_MAX:
                    self._transport.pause_reading()
                return at
            if data[at] in b"\r\n":  # a server passes over empty lines before a request
                at = len(data) - len(data[at:].lstrip(b"\r\n"))
                continue
            end = data.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX)
            if end < 0:
                if not may_be_short(data[at : at + HEAD_BYTES_MAX]):
                    break
                if not self._is_cut:
                    self._is_cut = True
                    self._wait(self._head_s)
                self._lacks_bytes = 1
                return at
            self._is_cut = False
            if not left or left_bytes <= 0:
                self._transport.pause_reading()
                self._loop.call_soon(self._resume)
                return at
            left -= 1
            head = data[at:end]
            asked = lanes.read(head)
            if asked is None:
                break
            whole = end + 4 + asked.body_bytes
            if len(data) < whole:
                if asked.body_bytes > SMALL_BYTES:
                    if lanes.coming_bytes + asked.body_bytes > COMING_BYTES:
                        break
                    self._count_coming(asked.body_bytes)
                self._lacks_bytes = whole - len(data)
                if self._patience_s != BODY_S:
                    self._wait(BODY_S)
                return at
            if not self._serve(asked, head, data[end + 4 : whole]):
                break
            at = whole
            left_bytes -= asked.body_bytes
        else:
            return at
        self._leave(data[at:])
        return len(data)

    def _leave(self, data: bytes) -> None:
        """Hand the connection over to aiohttp, for good."""
        if self._has_ended:
            self._transport.close()  # aiohttp does the same then
            return
        self._is_slow = True
        self._timer.cancel()
        self.came_s = self._lanes.stamp_s()
        self._slow.data_received(data)

    def _lend(self, request: bytes) -> None:
        """Have aiohttp answer this request. Those behind it wait."""
        self.came_s = self._lanes.stamp_s()
        self._is_lent = True
        self._task = self._loop.create_task(self._wait_lent(request))

    async def _wait_lent(self, request: bytes) -> None:
        try:
            comes_back = await self._slow.answer(request)
        finally:
            self._is_lent, self._task = False, None
        self._seen_s = self._loop.time()
        if comes_back:
            self._resume()
        elif not self._transport.is_closing():
            self._transport.resume_reading()
            self._leave(self._take_rest())

    def _serve(self, asked: QuickRequest, head: bytes, body: bytes) -> bool:
        """Serve a request the short way, or lend it. False: nothing was done, and the request must go the general way,
        with the connection.
        """
        gateway = self._gateway
        if not gateway.ready.is_set() or self._lanes.are_closed or len(body) > gateway.config.http_max_body_bytes:
            return False
        if not self._lanes.authorize[asked.way.route](self._session, asked.names):
            return False  # the general way tells what is wrong
        self._seen_s = began_s = self._loop.time()
        self._patience_s = IDLE_S
        held_bytes = len(body) if len(body) > SMALL_BYTES else 0
        if held_bytes and self._lanes.writing_bytes + held_bytes > COMING_BYTES:
            self._lend(head + b"\r\n\r\n" + body)
            return True
        topic = asked.names["topic"]
        try:
            if asked.once is None:
                answer = asked.write(gateway, topic, body)
            else:
                answer = asked.once(gateway, self._session, asked.path, topic, body)
        except Exception:  # logged with its trace; this request ends, others go on
            logger.exception("POST %s failed", asked.path)
            self._answer_problem(asked, Problem("server-error", outcome="unknown"), began_s)
            return True
        if answer is None:
            return False
        if isinstance(answer, quick.NotNow):
            self._lend(head + b"\r\n\r\n" + body)
            return True
        if isinstance(answer, bytes):
            self._answer(asked, 200, answer, began_s)
        else:
            self._lanes.tally.under_way += 1
            self._lanes.writing_bytes += held_bytes  # now: others of this turn are served before the task begins
            self._task = self._loop.create_task(self._later(asked, answer, began_s, held_bytes))
            self._lanes.writing[self._task] = None
        return True

    async def _later(self, asked: QuickRequest, answer: Awaitable[quick.Told], began_s: float, held_bytes: int) -> None:
        try:
            body, more = await answer
            self._answer(asked, 200, body, began_s, more)
        except Problem as problem:
            self._answer_problem(asked, problem, began_s)
        except Exception:  # logged with its trace; this request ends, others go on
            logger.exception("POST %s failed", asked.path)
            self._answer_problem(asked, Problem("server-error", outcome="unknown"), began_s)
        finally:
            self._lanes.tally.under_way -= 1
            self._lanes.writing_bytes -= held_bytes
            assert self._task is not None
            self._lanes.writing.pop(self._task)
            self._task = None
        self._resume()

    def _answer_problem(self, asked: QuickRequest, problem: Problem, began_s: float) -> None:
        self._lanes.tally.problems[problem.slug] += 1
        if asked.way.refuse is not None:
            refused = asked.way.refuse(problem)
            assert isinstance(refused.body, bytes)
            self._answer(asked, refused.status, refused.body, began_s)
            return
        more = "".join(f"{name}: {value}\r\n" for name, value in problem.all_headers.items())
        self._answer(asked, problem.kind.status, problem.body(asked.path), began_s, more.encode())

    def _answer(self, asked: QuickRequest, status: int, body: bytes, began_s: float, more: bytes = b"") -> None:
        now_s = self._loop.time()
        tally = self._lanes.tally
        tally.answered[asked.way.route, "POST", status] += 1
        if (seconds := tally.seconds.get(asked.way.route)) is None:
            seconds = tally.seconds[asked.way.route] = Histogram()
        seconds.add(now_s - began_s)
        if asked.codec is not None and len(body) >= PACKED_FROM_BYTES:
            # at once: reports on `quick.RECORDS_MAX` records take 0.3 ms
            body = CODECS[asked.codec](body)
            more += b"Content-Encoding: %b\r\nVary: Accept-Encoding\r\n" % asked.codec.encode()
        if not self._transport.is_closing():
            self._transport.write(
                b"HTTP/1.1 %b\r\n%b%bContent-Length: %d\r\n\r\n%b"
                % (asked.way.status_lines[status], more, self._lanes.date(now_s), len(body), body)
            )

    # -- time

    def _wait(self, patience_s: float) -> None:
        self._patience_s, self._seen_s = patience_s, self._loop.time()
        self._timer.cancel()
        self._timer = self._loop.call_later(patience_s, self._look)

    def _look(self) -> None:
        """End a connection that is silent, takes no answer, or does not end a body, which is told to the client."""
        left_s = self._seen_s + self._patience_s - self._loop.time()
        if left_s > 0 or self._task is not None:
            self._timer = self._loop.call_later(max(left_s, 1.0), self._look)
        elif self._taking is not None and self._taking.goes_on():
            self._wait(UNREAD_S)
        elif self._lacks_bytes > 0 and self._taking is None and not self._is_cut:
            self._refuse_slow()
        else:
            self._transport.abort()

    def _refuse_slow(self) -> None:
        asked = self._lanes.read(self._take_rest().partition(b"\r\n\r\n")[0])
        assert asked is not None
        problem = Problem("too-slow", f"the body did not come within {BODY_S:g} s", headers={"Connection": "close"})
        self._answer_problem(asked, problem, self._seen_s)
        self._transport.close()
