"""The HTTP server of one broker: all tables of routes, the way of every request, start and stop.

What always holds: every error is a problem of `problems.py`. An unexpected failure of a handler is logged with its
trace and answered with 500, and no other request suffers from it. A stop ends streams, and waits for requests that
write. One that takes too long is cut off, and nothing of it is written after the stop: its client repeats it, and is
told what became of it.
"""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import cast

from aiohttp import EMPTY_PAYLOAD, ClientConnectionError, HttpVersion11, StreamReader, web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.typedefs import Middleware
from aiohttp.web_protocol import _ErrInfo
from aiohttp.web_urldispatcher import UrlMappingMatchInfo

from log.tally import Histogram
from service.api.listener import Listener
from service.broker.data_folder import StartError
from service.broker.node import Broker
from service.broker.session import Session
from service.broker.tally import HttpTally
from service.client.failures import ClientFailure
from service.net.door import PeerInfo
from service.settings.broker import Endpoint
from service.web import (
    branches,
    cluster,
    clusters_v3,
    compatible,
    consumers,
    consuming,
    documents,
    events,
    groups,
    health,
    logs,
    members,
    metrics,
    openapi,
    producing,
    settings,
    topics,
    transactions,
)
from service.web.answers import CODECS, PACKED_FROM_BYTES, codec_of, give, refuse_query
from service.web.following import SharedReading
from service.web.forwarding import FORWARDED, OF_EVENTS, media_of, waited_s
from service.web.gateway import ASKING, Gateway
from service.web.holding import HOLDER, SMALL_BYTES
from service.web.idempotency import IS_NEW, Keys
from service.web.instances import Instances
from service.web.lane import General, Lane, Lanes
from service.web.members import Members
from service.web.origins import Origins
from service.web.pages import routes as pages
from service.web.problems import MEDIA_TYPE, Problem, of_failure
from service.web.producers import ProducerPool
from service.web.routing import ENDED, FOLLOWS, IDEMPOTENCY_KEY, NDJSON, REPLAYED, STREAMING, Route
from service.web.sending import ProducerIds
from service.web.sharing import Sharing
from service.web.taking import CAME_S, UNREAD_S, Given, Taking, is_there
from service.web.transactions import OpenTransactions
from service.web.unpacking import BODY, PIECE_BYTES, body_of, encoding_of, has_come, refuse_long

logger = logging.getLogger("oncelog.http")

TABLES: tuple[Sequence[Route], ...] = (
    health.ROUTES,
    metrics.ROUTES,
    producing.ROUTES,
    topics.ROUTES,
    logs.ROUTES,
    consuming.ROUTES,
    groups.ROUTES,
    members.ROUTES,
    pages.ROUTES,
    transactions.ROUTES,
    branches.ROUTES,
    cluster.ROUTES,
    settings.ROUTES,
    clusters_v3.ROUTES,
    compatible.ROUTES,
    consumers.ROUTES,
    events.ROUTES,
    openapi.ROUTES,
    documents.ROUTES,
)
"""Every operation. A new resource adds its table of routes here."""
LISTENER = Listener("HTTP")
STOP_S = 3.0
HEAD_S, BODY_S = 30.0, 60.0
"""A new connection must begin its first request within the first time, and the head of each request must have come so
long after its first byte. A body that is read as a whole must come within the second; `unpacking.py` has the time for
those that are not.
"""
REQUEST_ID = "X-Request-Id"
PROBLEM = web.RequestKey("problem", str)
EXPECTS = web.RequestKey("expects", bool)
"""A request has this while its client waits for a word before it sends the body."""
NextHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST_ID_MAX = 200
ASKED_METHOD, ASKED_HEADERS = "Access-Control-Request-Method", "Access-Control-Request-Headers"
EXPOSED = ("Location", "ETag", "Retry-After", REPLAYED, "Batch-Replayed", "Next-Offset", "Commit-Token", REQUEST_ID)
_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4000}")
LINE_BYTES_MAX = 16 << 10
"""How long an address may be: an event source may add where it is to one that has a cursor already."""
FIELD_BYTES_MAX, FIELDS_MAX = 8190, 128
"""How long one header of a client may be, with its name, and how many it may send."""
QUOTED_BYTES_MAX, ADDED_MAX = 3 * FIELD_BYTES_MAX, 10
"""How long such a header may become when it is forwarded, and how many headers a broker adds then."""
HEAD_BYTES_MAX = 64 << 10
"""How long the head of a client may be as a whole."""
COMING_HEAD_BYTES_MAX = 4 * HEAD_BYTES_MAX
"""How much is read of a head that does not end: so long it may become when it is forwarded."""
PACKED_AT_ONCE_BYTES = 64 << 10
HEAD_TOO_LONG = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_NO_ROUTE = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
_MAY_PASS, _WITH_KEYS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.SERVICE_UNAVAILABLE), ("POST", "PUT")
_STATUS_SLUGS = {404: "not-found", 405: "method-not-allowed", 413: "record-too-large", 415: "unsupported-media-type"}


class Unwanted(asyncio.Protocol):
    """The protocol of a connection that is one too many, or comes too late: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Connection(General):
    """aiohttp's connection. Bytes that it can't read are refused with a problem, too. A head that does not end, and an
    answer that nobody takes, end it.
    """

    __slots__ = ("_body", "_head_bytes", "_late", "_unread")

    def __init__(self, server: web.Server, logger: logging.Logger) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            logger=logger,
            auto_decompress=False,
            read_bufsize=PIECE_BYTES,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=QUOTED_BYTES_MAX,
            max_headers=FIELDS_MAX + ADDED_MAX,
        )
        self._body: StreamReader = EMPTY_PAYLOAD
        """That of the last request whose head has ended."""
        self._head_bytes = 0
        """How many bytes have come of the next head."""
        self._late: asyncio.TimerHandle | None = None
        """Ends the connection unless the head that is coming has ended before."""
        self._unread: asyncio.TimerHandle | None = None
        """Looks whether the client takes something of an answer that waits for it."""

    def data_received(self, data: bytes) -> None:
        heads, is_head = self._request_count, self._body.is_eof()
        super().data_received(data)
        if self._request_count > heads:
            self._head_ended()
            self._body, self._head_bytes = self._messages[-1][1], 0
            # Nothing belongs to a request without a body, so more is the next head. Behind a body the next head is
            # noticed when more of it comes; until then the connection is idle.
            is_coming = self._body is EMPTY_PAYLOAD and data[-1:] not in (b"", b"\n")
        else:
            if is_head:
                self._head_bytes += len(data)
                if self._head_bytes > COMING_HEAD_BYTES_MAX:
                    self._refuse_endless()
            is_coming = is_head and data.strip(b"\r\n") != b""  # empty lines before a request are none of it
        if is_coming and self._late is None:
            self._late = self._loop.call_later(HEAD_S, self._end_late)

    def _refuse_endless(self) -> None:
        """End the connection: its head is too long. It is told that if nothing else is being answered."""
        if self._close:
            return
        why = f"a head has {HEAD_BYTES_MAX} bytes at most"
        self._messages.append((_ErrInfo(HEAD_TOO_LONG, BadHttpMessage(why), why), EMPTY_PAYLOAD))
        self._close = True  # nothing more is parsed
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.transport is not None:
            self._wait_unread(Taking(self.transport))

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_looking()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._head_ended()
        self._stop_looking()
        self._body = EMPTY_PAYLOAD  # the body would be kept for as long as the connection
        # An error would reach the answer that waits through a future which the answer's own frames hold: a cycle, with
        # all that the answer is made of. Without one it goes on, and is told at its next write.
        task, request = self._task_handler, self._current_request
        super().connection_lost(None)
        if task is not None and request is not None and FOLLOWS in request:
            task.cancel()  # it may have nothing to write for long

    def _wait_unread(self, taking: Taking) -> None:
        self._stop_looking()
        self._unread = self._loop.call_later(UNREAD_S, self._look_unread, taking)

    def _look_unread(self, taking: Taking) -> None:
        if taking.goes_on():
            self._wait_unread(taking)
        elif self.transport is not None:
            self.transport.abort()

    def _stop_looking(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _head_ended(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end_late(self) -> None:
        self._late = None
        if not self.awaits_head:  # what came before it is still being answered
            self._late = self._loop.call_later(HEAD_S, self._end_late)
        elif self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            problem = Problem("server-error", outcome="unknown")
        else:
            slug = "head-too-long" if status == HEAD_TOO_LONG else "malformed"
            problem = Problem(slug, " ".join((message or "this is no HTTP").split())[:200])
        response = web.Response(body=problem.body(), status=problem.kind.status, content_type=MEDIA_TYPE)
        response.force_close()
        return response


class Router(web.UrlDispatcher):
    """aiohttp's router. What the head of a request expects that has no route is not answered by aiohttp either."""

    async def resolve(self, request: web.Request) -> UrlMappingMatchInfo:
        found = await super().resolve(request)
        if found.http_exception is not None:
            found.route._expect_handler = _expecting
        return found


class WebServer:
    """The HTTP listeners of one broker."""

    def __init__(
        self, broker: Broker, connections_max: int, listener: Listener = LISTENER, *, outgoing_max: int = sys.maxsize
    ) -> None:
        self._connections_max = connections_max
        self._listener = listener
        self._servers: list[asyncio.Server] = []
        scraper = metrics.scraper_of(
            broker,
            lambda wanted: metrics.ends_elsewhere(self.gateway, wanted),
            lambda producer_ids: metrics.holders_elsewhere(self.gateway, producer_ids),
        )
        self.gateway = Gateway(broker, scraper, outgoing_max)
        self.gateway.routes = [route for table in TABLES for route in table]
        self.gateway.producer_ids = ProducerIds(self.gateway)
        self.gateway.producers = ProducerPool(self.gateway)
        self.gateway.keys = Keys(self.gateway)
        broker.requests.http.keys = self.gateway.keys.count
        self.gateway.sharing = Sharing(self.gateway)
        self.gateway.open_transactions = OpenTransactions()
        self.gateway.members = Members(self.gateway)
        self.gateway.instances = Instances(self.gateway)
        self.gateway.reading = SharedReading()
        broker.metadata.subscribe(self.gateway.reading.heard)
        self._lanes = Lanes(self.gateway, broker.requests.http, self._session)
        self._origins = Origins(broker.config)
        self.endpoints: list[Endpoint] = []
        """Where the server listens, with the port numbers that the system has chosen."""
        way = [self._held, _counted(broker.requests.http), self._around]
        app = web.Application(middlewares=way, client_max_size=broker.config.http_max_body_bytes)
        app._router = Router()
        for route in self.gateway.routes:
            answered = self._bound(route)
            methods = ("GET", "HEAD") if route.method == "GET" and route.answers_head else (route.method,)
            # The REST Proxy passes over a slash at the end, and its documentation has one in an example.
            for path in (route.path,) if route.refuse is None else (route.path, route.path + "/"):
                for method in methods:
                    app.router.add_route(method, path, answered, expect_handler=_expecting)
        app.on_response_prepare.append(self._head)
        self._logger = _one_line_each()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S, logger=self._logger)

    def _bound(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        gateway, handle, authorize, waits = self.gateway, route.handle, route.authorize, route.tag != "health"
        reads = route.body is not None or bool(route.body_media)
        waits_for_body = reads and not route.body_streams
        takes_lines = NDJSON in route.body_media
        ready, changes = gateway.ready, route.changes
        refuses_key, query = route.refuses_key, route.query
        # pages refuse their forms themselves
        refuses_foreign = (changes or route.tells_of_client) and not route.path.startswith("/ui")

        async def answered(request: web.Request) -> web.StreamResponse:
            if self._origins.are_borrowed(request):
                name = request.host[:200]
                raise Problem("denied", f"{name} is no name of this broker for browsers; http.cors.origins may name it")
            if "#" in request.raw_path:  # it would not be forwarded, and so be another request there
                raise Problem("malformed", "what is behind # is not sent: the path ends before it")
            if FORWARDED not in request.headers:
                _refuse_long_head(request)
            if refuses_foreign and self._origins.are_foreign(request):
                whence = f"the request comes from a page of {request.headers.get('Origin', 'another site')[:200]}"
                raise Problem("denied", f"{whence}, which http.cors.origins does not name")
            if waits and not ready.is_set():
                raise Problem("not-now", "the broker is not ready")
            session = self._session(request.transport)
            if not authorize(session, request.match_info):
                raise Problem("denied", f"{':'.join(session.principal)} may not do this")
            if refuses_key and IDEMPOTENCY_KEY in request.headers:
                raise Problem("bad-key", "this operation takes no Idempotency-Key: it would be applied each time")
            ASKING.set(session)
            if query is not None and request.rel_url.raw_query_string:
                refuse_query(request, query)
            if reads:
                encoding_of(request)  # a stream of lines has begun its answer when it finds that it can't be read
            is_read = waits_for_body and not (takes_lines and media_of(request) == NDJSON)
            if is_read:
                refuse_long(request, route.body_bytes_max)
            if EXPECTS in request:
                await _let_come(request)
            if is_read:
                await _read_body(request, route.body_bytes_max)
            try:
                return await handle(gateway, request)
            except ClientFailure as failure:
                raise of_failure(failure, changes=changes) from None

        if route.refuse is None:
            return answered
        refuse = route.refuse

        async def bound(request: web.Request) -> web.StreamResponse:
            try:
                return await answered(request)
            except Problem as problem:
                if STREAMING in request:
                    raise
                request[PROBLEM] = problem.slug
                return refuse(problem)

        return bound

    def _session(self, transport: asyncio.BaseTransport | None) -> Session:
        """The session for a connection: the client at its other end."""
        peer = transport.get_extra_info("peername") if transport is not None else None
        host, port = (peer[0], peer[1]) if peer else ("?", 0)
        principal = self._listener.authenticate(PeerInfo(host, port))
        return Session(host, port, listener=self._listener.name, principal=principal)

    async def start(self, endpoints: Sequence[Endpoint]) -> None:
        """Listen on these endpoints. Raises `StartError` with one line."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        for endpoint in endpoints:
            try:
                server = await loop.create_server(
                    self._connected, endpoint.host or None, endpoint.port, backlog=1024, ssl=self._listener.tls
                )
            except OSError as error:
                why = os.strerror(error.errno) if error.errno else str(error)
                raise StartError(f"can't listen on {endpoint.address} for HTTP: {why}") from None
            self._servers.append(server)
            self.endpoints.append(endpoint._replace(port=server.sockets[0].getsockname()[1]))

    def _connected(self) -> asyncio.Protocol:
        """The protocol for a new connection. Too many or silent connections must not use up the descriptors that logs
        need.
        """
        server = self._runner.server
        if server is None or self._lanes.connected >= self._connections_max:
            return Unwanted()
        return Lane(self._lanes, Connection(server, self._logger), HEAD_S)

    def begin(self) -> None:
        """The broker is registered: serve requests from now on."""
        self.gateway.env.tasks.spawn("transactions of HTTP", self.gateway.producers.recover())

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        self._lanes.are_closed = True
        self.gateway.end_waiting()
        if self._lanes.writing:
            await asyncio.wait(self._lanes.writing, timeout=STOP_S)
        connections = [] if self._runner.server is None else self._runner.server.connections
        handlers = [task for each in connections if (task := each._task_handler) is not None]
        await self._runner.cleanup()  # it cancels handlers in the end, and does not wait for them
        await self.gateway.close([task for task in (*self._lanes.writing, *handlers) if not task.done()])

    @web.middleware
    async def _held(self, request: web.Request, handler: NextHandler) -> web.StreamResponse:
        """Count what the request holds. A long answer is written here, in pieces."""
        with self.gateway.holding.of_request() as holder:
            request[HOLDER] = holder
            request[CAME_S] = _came_s(request)
            given: Given | None = None
            response: web.StreamResponse | None = None
            written_s = 0.0

            def before_last() -> None:
                """Afterwards it would be too late: a client's next request may come to another broker at once."""
                nonlocal written_s
                if is_there(request):
                    written_s = _lane(request).stamp_s()

            try:
                response = await handler(request)
                body = response.body if isinstance(response, web.Response) and not response.prepared else None
                if not isinstance(body, bytes) or request.method == "HEAD":
                    return response
                if len(body) <= SMALL_BYTES and ENDED not in request:
                    return response
                request.pop(BODY, None)
                pieced = web.StreamResponse(status=response.status, headers=response.headers)
                pieced.content_length = len(body)
                with suppress(ConnectionError):  # aiohttp notices it as well
                    await pieced.prepare(request)
                    await give(request, pieced, body, before_last)
                    await pieced.write_eof()
                    if ENDED in request and response.status == HTTPStatus.OK and is_there(request):
                        given = _lane(request).give(request[CAME_S], written_s)
            finally:
                response = body = None  # it is counted no longer, and to tell that it was lost may take long
                if ENDED in request:
                    request[ENDED](given)
        if given is not None and not pieced.keep_alive:
            await self._end(given)
        return pieced

    async def _end(self, given: Given) -> None:
        """End a connection as the client wishes, but wait for the end of its side: that tells whether it has all."""
        given.end()
        with self.gateway.waiting():
            await asyncio.wait([given.known], timeout=UNREAD_S)

    @web.middleware
    async def _around(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.method == "OPTIONS" and ASKED_METHOD in request.headers:
            return _preflight(request)
        response = await _answered(request, handler)
        if response.prepared:
            return response
        if isinstance(response, web.Response) and len(response.body or b"") >= PACKED_FROM_BYTES:  # type: ignore[arg-type]
            await self._pack(request, response)
        return response

    async def _head(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add to the head of an answer, also of a stream, what does not depend on its resource."""
        if EXPECTS in request:  # the body may come or not: what comes next could be either
            response.headers["Connection"] = "close"
            response.force_close()
        origin = request.headers.get("Origin")
        if origin is not None and self._origins.are_named(origin):
            of_event = [name for name in response.headers if name.startswith(OF_EVENTS)]
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = ", ".join([*EXPOSED, *of_event])
            response.headers.add("Vary", "Origin")
        request_id = request.headers.get(REQUEST_ID)
        if request_id is not None and len(request_id) <= REQUEST_ID_MAX:
            response.headers[REQUEST_ID] = request_id

    async def _pack(self, request: web.Request, response: web.Response) -> None:
        """Compress the answer in the way that the client prefers. A long answer is compressed beside the loop."""
        accepted = request.headers.get("Accept-Encoding", "")
        codec = codec_of(accepted)
        body = response.body
        if codec is None or "Content-Encoding" in response.headers or not isinstance(body, bytes):
            return
        pack = CODECS[codec]
        blocking = self.gateway.env.blocking
        response.body = pack(body) if len(body) < PACKED_AT_ONCE_BYTES else await blocking(pack, body)
        response.headers["Content-Encoding"] = codec
        response.headers.add("Vary", "Accept-Encoding")


def _refuse_long_head(request: web.Request) -> None:
    """Refuse a client's head that could not be forwarded: every broker takes the same requests."""
    if len(request.raw_headers) > FIELDS_MAX:
        raise Problem("malformed", f"a request has at most {FIELDS_MAX} headers")
    head_bytes = len(f"{request.method} {request.raw_path} HTTP/1.1\r\n\r\n")
    for name, content in request.raw_headers:
        if len(name) + len(content) > FIELD_BYTES_MAX:
            shown = name[:40].decode(errors="replace")
            raise Problem("malformed", f"the header {shown} is too long: {FIELD_BYTES_MAX} bytes with its name fit")
        head_bytes += len(name) + len(content) + len(": \r\n")
    if head_bytes > HEAD_BYTES_MAX:
        raise Problem("head-too-long", f"a head has {HEAD_BYTES_MAX} bytes at most, this one {head_bytes}")


def _lane(request: web.Request) -> Lane:
    return cast(Lane, cast(asyncio.Transport, request.transport).get_protocol())


def _came_s(request: web.Request) -> float:
    """When a request came, be it to the broker that has forwarded it, by this broker's clock. If its client has gone
    before it was begun, nobody asks, and it came long ago.
    """
    if not is_there(request):
        return 0.0
    return _lane(request).came_s - (waited_s(request.headers) if FORWARDED in request.headers else 0.0)


def _preflight(request: web.Request) -> web.Response:
    """What a page of another origin may send: any header. Those of records and events can't be listed, and an
    operator who allows an origin allows what its pages say.
    """
    headers = {"Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE", "Access-Control-Max-Age": "600"}
    asked = request.headers.get(ASKED_HEADERS, "")
    if _NAMES.fullmatch(asked):
        headers["Access-Control-Allow-Headers"] = asked
    return web.Response(status=204, headers=headers)


def _shorten(record: logging.LogRecord) -> bool:
    if record.exc_info is not None and record.exc_info[1] is not None:
        reason = str(record.exc_info[1]).split("\n")
        record.msg, record.args = f"{record.getMessage()}: {' '.join(reason)[:200]}", ()
        record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
    return True


def _one_line_each() -> logging.Logger:
    """A logger for what aiohttp says of requests that are no HTTP. Anybody can send such requests, so each gets only
    one line, without a trace.
    """
    quiet = logging.getLogger("oncelog.http.connection")
    quiet.addFilter(_shorten)  # behind one that counts lines by their texts, if there is one
    return quiet


async def _expecting(request: web.Request) -> None:
    """The client waits before it sends the body. It is told to when nothing is wrong with the head."""
    if request.version >= HttpVersion11:
        request[EXPECTS] = True


async def _let_come(request: web.Request) -> None:
    if (given := request.headers["Expect"]).lower() != "100-continue":
        raise Problem("expectation-failed", f"Expect: {given[:100]}: 100-continue is known")
    del request[EXPECTS]
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # it is no part of the answer


async def _read_body(request: web.Request, most_bytes: int | None) -> None:
    """Read the body, which must come in time."""
    if has_come(request):
        await body_of(request, most_bytes)
        return
    try:
        async with asyncio.timeout(BODY_S):
            await body_of(request, most_bytes)
    except TimeoutError:
        raise Problem("too-slow", f"the body did not come within {BODY_S:g} s") from None


def _counted(tally: HttpTally) -> Middleware:
    """Counts requests and answers."""

    @web.middleware
    async def count(request: web.Request, handler: NextHandler) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        began_s, status = loop.time(), 500
        tally.under_way += 1
        try:
            response = await handler(request)
            status = response.status
        except web.HTTPException as redirect:
            status = redirect.status
            raise
        finally:
            tally.under_way -= 1
            resource = request.match_info.route.resource
            path = "none" if resource is None else resource.canonical
            path = path.rstrip("/") or path
            tally.answered[path, request.method, status] += 1
            if STREAMING not in request:
                tally.seconds.setdefault(path, Histogram()).add(loop.time() - began_s)
            if PROBLEM in request:
                tally.problems[request[PROBLEM]] += 1
        return response

    return count


async def _answered(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as failure:  # noqa: BLE001 - it is told, and logged if it is a defect
        told = _told(request, failure)
        failure.__traceback__ = (
            None  # a body keeps its failure, whose frames keep the body: such a cycle stays for long
        )
    return _cut_off(request) if STREAMING in request else told


def _told(request: web.Request, failure: Exception) -> web.StreamResponse:
    """What the client is told of a failure; or the failure is raised, if it is an answer by itself."""
    if isinstance(failure, Problem):
        request[PROBLEM] = failure.slug
        if failure.kind.status in _MAY_PASS and request.method in _WITH_KEYS and IDEMPOTENCY_KEY in request.headers:
            # Whatever has held it up: it may be a repetition of a request that was applied.
            failure.outcome = failure.outcome if IS_NEW in request else "unknown"
        return failure.response(request)
    if isinstance(failure, web.HTTPException):
        slug = _STATUS_SLUGS.get(failure.status)
        if slug is None:
            raise failure
        response = Problem(slug, failure.text).response(request)
        if (
            failure.status in _NO_ROUTE
            and (theirs := compatible.no_route(request.path, HTTPStatus(failure.status))) is not None
        ):
            response = theirs
        if "Allow" in failure.headers:
            response.headers["Allow"] = failure.headers["Allow"]
        return response
    if isinstance(failure, ConnectionError | ClientConnectionError):
        return _cut_off(request)  # the client is gone
    if isinstance(failure, web.RequestPayloadError):
        return Problem("malformed", f"the body is not as its headers say: {failure}").response(request)
    # Logged with its trace; this request ends, others go on.
    logger.error("%s %s failed", request.method, request.path, exc_info=failure)
    return Problem("server-error", outcome="unknown").response(request)


def _cut_off(request: web.Request) -> web.StreamResponse:
    """End the connection: the head of the answer is sent already, so no problem can be told."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=499)
