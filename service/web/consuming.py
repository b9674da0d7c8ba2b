"""Reading: a page of a partition, or a topic as it grows.

What always holds: a page or an event says where to go on. A reader that goes on there misses nothing and gets nothing
twice. A client that does not read holds up no other client, and no memory besides that of its own stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import web

from isolation.read_view import Isolation
from log.ids import TopicPartition
from service.client.cluster import MOVED
from service.client.failures import ClientFailure, FailureKind
from service.web.answers import as_json, path_int, query_choice, query_int
from service.web.event_format import BATCHED, CURSOR, STRUCTURED, EventOut
from service.web.fetching import Lens, Piece, Shown, fetch, left_ms, opened
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.problems import Problem, of_error
from service.web.records import Int64, RecordOut, long_numbers_as_text, milliseconds, with_text_numbers
from service.web.routing import JSON, NDJSON, STREAMING, Parameter, Route, header, integer, text
from service.web.topics import at_time, partition_of
from service.wire.error_codes import ErrorCode

EARLIEST, LATEST = -2, -1
SSE = "text/event-stream"
WAIT_MS_MAX = 30_000
RECORDS_MAX = 10_000
PAGE_BYTES, PAGE_BYTES_MAX = 1 << 20, 16 << 20
STREAM_BYTES = 512 << 10
STREAM_WAIT_MS = 5_000
QUIET_S = 15.0
"""A stream that has nothing to send says so this often, so that proxies keep it open."""
UNREAD_S = 120.0
"""A client that reads nothing for this long is cut off."""
ALL_THE_TIME = 1 << 62


class Page(msgspec.Struct):
    """Records of a partition; `next_offset` is where the next page begins. With a filter, one page looks through 16 MiB
    at most, so it may be empty although more records follow.
    """

    records: list[RecordOut]
    next_offset: Int64
    log_start_offset: Int64
    last_stable_offset: Int64
    high_watermark: Int64


_encode = msgspec.json.Encoder().encode


def lens_of(request: web.Request) -> Lens:
    query = request.query
    include = [each for each in query.get("include", "").split(",") if each]
    if unknown := [each for each in include if each not in ("control", "aborted", "producer")]:
        raise Problem("malformed", f"include knows control, aborted and producer, not {unknown[0][:40]!r}")
    committed = query_choice(request, "isolation", "read_committed", "read_uncommitted") == "read_committed"
    form = query_choice(request, "values", "auto", "string", "base64")
    lens = Lens(
        Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED,
        *("control" in include, "aborted" in include, form),
        with_producers="producer" in include,
        text_numbers=query_choice(request, "int64", "number", "string") == "string",
    )
    if "key" in query:
        lens.key = query["key"].encode("utf-8", "surrogateescape")
    if "key_prefix" in query:
        lens.key_prefix = query["key_prefix"].encode("utf-8", "surrogateescape")
    if "header" in query:
        name, colon, content = query["header"].partition(":")
        lens.header = name, content.encode("utf-8", "surrogateescape") if colon else None
    return lens


async def start_of(gateway: Gateway, partition: TopicPartition, where: str, isolation: Isolation) -> int:
    """The offset that `where` means: `earliest`, `latest`, an offset, or `@` with a time."""
    if where == "earliest":
        return await at_time(gateway, partition, EARLIEST, isolation.value)
    if where == "latest":
        return await at_time(gateway, partition, LATEST, isolation.value)
    if where.startswith("@"):
        given = where[1:]
        timestamp = milliseconds(int(given) if given.isascii() and given.isdigit() and len(given) < 19 else given)
        found = await at_time(gateway, partition, timestamp, isolation.value)
        return found if found >= 0 else await at_time(gateway, partition, LATEST, isolation.value)
    if where.isascii() and where.isdigit() and len(where) < 19:
        return int(where)
    raise Problem("malformed", f"{where[:40]!r} is no offset: earliest, latest, a number, or @ and a time are meant")


# -- a page


async def page(gateway: Gateway, request: web.Request) -> web.Response:
    partition = partition_of(gateway, request)
    lens = lens_of(request)
    lens.as_events = asks_for_batch(request, lens)
    most = query_int(request, "max_records", 500, least=1, most=RECORDS_MAX)
    max_bytes = query_int(request, "max_bytes", PAGE_BYTES, least=1, most=PAGE_BYTES_MAX)
    wait_ms = query_int(request, "wait_ms", 0, most=WAIT_MS_MAX)
    offset = await start_of(gateway, partition, request.query.get("offset", "earliest"), lens.isolation)
    records, offset, piece = await _read_page(gateway, partition, offset, lens, most, max_bytes, wait_ms)
    if lens.as_events:
        return batch_of(records, lens, {"Next-Offset": str(offset)})
    ends = piece.log_start_offset, piece.last_stable_offset, piece.high_watermark
    found = Page(records, offset, *ends)  # type: ignore[arg-type]
    if lens.text_numbers:
        return web.Response(body=with_text_numbers(found), content_type=JSON)
    return as_json(found)


async def one_event(gateway: Gateway, request: web.Request) -> EventOut:
    """The record that the path names, as an event."""
    partition, offset = partition_of(gateway, request), path_int(request, "offset", most=2**63 - 1)
    records, _, _ = await _read_page(gateway, partition, offset, Lens(as_events=True), 1, PAGE_BYTES, 0)
    if not records or records[0].offset != offset:
        raise Problem("not-found", f"there is no committed record at offset {offset}")
    (event,) = records
    assert isinstance(event, EventOut)
    return event


async def _read_page(
    gateway: Gateway, partition: TopicPartition, offset: int, lens: Lens, most: int, max_bytes: int, wait_ms: int
) -> tuple[list[Shown], int, Piece]:
    """Records from the offset on, the next offset, and the last piece that was fetched for them."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    patience = loop.time() + TIMEOUT_S
    records: list[Shown] = []
    looked_at_bytes = 0
    with gateway.waiting():
        while True:
            (piece,) = await fetch(
                *(gateway, gateway.leader(partition), {partition: offset}, lens.isolation),
                max_bytes=max_bytes,
                wait_ms=left_ms(deadline),
            )
            if piece.error in MOVED and loop.time() < patience:
                await asyncio.sleep(PAUSE_S)
                continue
            if piece.error:
                raise await _refused(gateway, partition, piece, offset)
            moved = False
            async for some, next_offset in opened(gateway, piece, offset, lens, most):
                records += some
                offset, moved = next_offset, True
            looked_at_bytes += len(piece.data)
            if records or looked_at_bytes >= PAGE_BYTES_MAX or (not moved and not left_ms(deadline)):
                return records, offset, piece


def asks_for_batch(request: web.Request, lens: Lens) -> bool:
    """Whether several records are to be shown as one batch of CloudEvents."""
    accepted = request.headers.get("Accept", "").lower()
    if BATCHED not in accepted:
        if accepted.partition(";")[0].strip() == STRUCTURED:
            raise Problem("not-acceptable", f"several events are {BATCHED}; one is at …/events/{{offset}}")
        return False
    _refuse_more(lens)
    return True


def _refuse_more(lens: Lens) -> None:
    if lens.control or lens.aborted or lens.with_producers:
        raise Problem("malformed", "include is not for CloudEvents: they are committed records, and nothing else")


def batch_of(events: Sequence[Shown], lens: Lens, headers: dict[str, str]) -> web.Response:
    """A batch of CloudEvents. A batch has no room for the next offset, so that is in a header."""
    body = _encode([event.content for event in events if isinstance(event, EventOut)])
    return web.Response(
        body=long_numbers_as_text(body) if lens.text_numbers else body, content_type=BATCHED, headers=headers
    )


async def _refused(gateway: Gateway, partition: TopicPartition, piece: Piece, offset: int) -> Problem:
    where = f"{partition.topic} partition {partition.partition}"
    if piece.error != ErrorCode.OFFSET_OUT_OF_RANGE:
        return of_error(piece.error, where)
    earliest = await at_time(gateway, partition, EARLIEST, 0)
    latest = await at_time(gateway, partition, LATEST, 0)
    detail = f"{where} holds {earliest} to {latest}, not {offset}"
    return of_error(piece.error, detail, earliest=earliest, latest=latest)


# -- a stream


class Cursor:
    """The position of a reader of several partitions, as text: `0:15,2:7`."""

    def __init__(self, offsets: dict[int, int]) -> None:
        self.offsets = offsets
        self._parts = {index: f"{index}:{offset}" for index, offset in sorted(offsets.items())}

    def moved(self, index: int, offset: int) -> None:
        self.offsets[index] = offset
        self._parts[index] = f"{index}:{offset}"

    def around(self, index: int) -> tuple[str, str]:
        """The text before and after the offset of one partition."""
        places = list(self._parts)
        at = places.index(index)
        parts = list(self._parts.values())
        before, after = ",".join(parts[:at]), ",".join(parts[at + 1 :])
        return f"{before}{before and ','}{index}:", f"{after and ','}{after}"

    @property
    def text(self) -> str:
        return ",".join(self._parts.values())


def read_cursor(given: str) -> dict[int, int]:
    found = {}
    for part in given.split(","):
        index, _, offset = part.partition(":")
        is_number = index.isascii() and offset.isascii() and index.isdigit() and offset.isdigit() and len(part) < 32
        if not (is_number and int(index) < 2**31 and int(offset) < 2**63):
            raise Problem("malformed", f"{given[:60]!r} is no cursor of this stream")
        found[int(index)] = int(offset)
    return found


class Stream:
    """A stream to one client: a topic as it grows."""

    def __init__(
        self,
        gateway: Gateway,
        response: web.StreamResponse,
        topic: str,
        chosen: set[int] | None,
        cursor: Cursor,
        lens: Lens,
        *,
        is_sse: bool,
        most: int,
        until: dict[int, int] | None,
    ) -> None:
        self._gateway = gateway
        self._response = response
        self._topic = topic
        self._chosen = chosen
        self._cursor = cursor
        self._lens = lens
        self._is_sse = is_sse
        self._left = most
        self._until = until
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._said_s = self._loop.time()
        self._told = cursor.text

    async def run(self) -> None:
        """Send records until the client is gone or has all that it has asked for."""
        patience = self._loop.time() + TIMEOUT_S
        while not self._is_over:
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            try:
                for index in self._partitions():
                    partition = TopicPartition(self._topic, index)
                    leader = self._gateway.leader(partition)
                    by_leader.setdefault(leader, {})[partition] = self._cursor.offsets[index]
                work = [self._read(node, positions) for node, positions in by_leader.items()]
                if len(work) == 1:
                    await work[0]
                elif work:
                    await asyncio.gather(*work)
                else:
                    await asyncio.sleep(PAUSE_S)
            except (Problem, ClientFailure) as failure:
                if not passes(failure) or self._loop.time() > patience:
                    raise
                await asyncio.sleep(PAUSE_S)
            else:
                patience = self._loop.time() + TIMEOUT_S
            await self._keep_alive()
        await self._end("end", {"cursor": self._cursor.text})

    @property
    def _is_over(self) -> bool:
        if self._left <= 0:
            return True
        until = self._until
        return until is not None and all(self._cursor.offsets.get(each, 0) >= end for each, end in until.items())

    def _partitions(self) -> list[int]:
        """The partitions to read. A partition that was added to the topic later is read from its start."""
        topic = self._gateway.topic(self._topic)
        wanted = [index for index in topic.partitions if self._chosen is None or index in self._chosen]
        for index in wanted:
            if index not in self._cursor.offsets:
                self._cursor.moved(index, 0)
        if self._until is not None:
            until = self._until
            return [index for index in wanted if self._cursor.offsets[index] < until.get(index, 0)]
        return wanted

    async def _read(self, node: int, positions: dict[TopicPartition, int]) -> None:
        wait_ms = STREAM_WAIT_MS if self._until is None else 100
        lens = self._lens
        pieces = await fetch(self._gateway, node, positions, lens.isolation, max_bytes=STREAM_BYTES, wait_ms=wait_ms)
        for piece in pieces:
            if piece.error in MOVED:
                await asyncio.sleep(PAUSE_S)
                continue
            if piece.error:
                raise await _refused(self._gateway, piece.partition, piece, positions[piece.partition])
            index = piece.partition.partition
            async for records, next_offset in opened(
                self._gateway, piece, positions[piece.partition], lens, self._left
            ):
                async with self._turn:
                    if records:
                        await self._send(index, records[: self._left])
                    if self._left > 0:
                        self._cursor.moved(index, next_offset)
                if self._left <= 0:
                    return

    async def _send(self, index: int, records: list[Shown]) -> None:
        lines: list[bytes] = []
        line = _encode if not (self._lens.as_events or self._lens.text_numbers) else self._line
        before, after = self._cursor.around(index)
        if self._is_sse:
            head, tail = f"id: {before}".encode(), f"{after}\nevent: record\ndata: ".encode()
            lines = [b"%b%d%b%b\n\n" % (head, record.offset + 1, tail, line(record)) for record in records]
        else:
            for record in records:
                cursor = f"{before}{record.offset + 1}{after}"
                if isinstance(record, RecordOut):
                    record.cursor = cursor
                else:
                    record.content[CURSOR] = cursor
                lines.append(line(record) + b"\n")
        self._cursor.moved(index, records[-1].offset + 1)
        self._left -= len(records)
        self._told = self._cursor.text
        await self._write(b"".join(lines))

    def _line(self, record: Shown) -> bytes:
        if isinstance(record, RecordOut):
            return with_text_numbers(record) if self._lens.text_numbers else _encode(record)
        line = _encode(record.content)
        return long_numbers_as_text(line) if self._lens.text_numbers else line

    async def _write(self, content: bytes) -> None:
        async with asyncio.timeout(UNREAD_S):
            await self._response.write(content)
        self._said_s = self._loop.time()

    async def _keep_alive(self) -> None:
        if self._loop.time() - self._said_s < QUIET_S:
            return
        cursor = self._cursor.text
        if cursor == self._told:
            await self._write(b": still here\n\n" if self._is_sse else b"\n")
            return
        self._told = cursor
        if self._is_sse:
            await self._write(b"id: %s\nevent: progress\ndata: {}\n\n" % cursor.encode())
        else:
            await self._write(_encode({"progress": True, "cursor": cursor}) + b"\n")

    async def _end(self, event: str, content: object) -> None:
        if self._is_sse:
            await self._write(b"event: %s\ndata: %s\n\n" % (event.encode(), _encode(content)))
        else:
            await self._write(_encode({event: content}) + b"\n")

    async def failed(self, problem: Problem) -> None:
        await self._end("error", msgspec.Raw(problem.body()))


async def stream(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    name = request.match_info["topic"]
    topic = gateway.topic(name)
    lens = lens_of(request)
    most = query_int(request, "max_records", ALL_THE_TIME, least=1)
    until_end = query_choice(request, "until", "forever", "end") == "end"
    accepted = request.headers.get("Accept", "").lower()
    is_sse = NDJSON not in accepted
    if STRUCTURED in accepted:
        lens.as_events = True
        _refuse_more(lens)
    chosen = _chosen(request)
    indexes = [index for index in topic.partitions if chosen is None or index in chosen]
    if chosen is not None and len(indexes) < len(chosen):
        raise Problem(
            "unknown-topic", f"topic {name!r} has no such partitions", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    given = request.headers.get("Last-Event-ID") or request.query.get("cursor")
    known = read_cursor(given) if given else {}
    offsets = {index: known[index] for index in indexes if index in known}
    where = request.query.get("from", "latest" if not known else "earliest")
    for index in indexes:
        if index not in offsets:
            offsets[index] = await start_of(gateway, TopicPartition(name, index), where, lens.isolation)
    until = None
    if until_end:
        until = {
            each: await start_of(gateway, TopicPartition(name, each), "latest", lens.isolation) for each in indexes
        }
    with gateway.waiting(gateway.config.http_max_streams):
        media = SSE if is_sse else NDJSON
        response = web.StreamResponse(
            headers={"Content-Type": media, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        request[STREAMING] = True
        if is_sse:
            await response.write(b"retry: 1000\n\n")
        following = Stream(
            *(gateway, response, name, chosen, Cursor(offsets), lens), is_sse=is_sse, most=most, until=until
        )
        await _guarded(following.run, following.failed)
        await response.write_eof()
    return response


def passes(failure: Problem | ClientFailure) -> bool:
    """Whether waiting may help."""
    if isinstance(failure, Problem):
        return failure.slug == "not-now"
    return failure.kind is FailureKind.UNREACHABLE


async def _guarded(run: Callable[[], Awaitable[None]], failed: Callable[[Problem], Awaitable[None]]) -> None:
    """Run a stream. The head of the answer is sent already, so an error is told as an event."""
    try:
        await run()
    except Problem as problem:
        await failed(problem)
    except ClientFailure as failure:
        await failed(Problem("not-now", failure.message))
    except TimeoutError:
        raise ConnectionResetError("the client does not read") from None


def _chosen(request: web.Request) -> set[int] | None:
    given = request.query.get("partitions")
    if not given:
        return None
    parts = given.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise Problem("malformed", f"partitions are numbers with commas between, not {given[:40]!r}")
    return {int(part) for part in parts}


PAGE_PATH = "/v1/topics/{topic}/partitions/{partition}/records"
LENS: tuple[Parameter, ...] = (
    text("isolation", "Undecided records too, or only committed ones.", "read_committed", "read_uncommitted"),
    text("include", "control (markers), aborted (records), producer (ids and epochs), with commas between."),
    text("values", "JSON where it is JSON, or always text, or always base64.", "auto", "string", "base64"),
    text("key", "Only records with this key."),
    text("key_prefix", "Only records whose key begins so."),
    text("header", "Only records with this header: `name` or `name:value`."),
    text("int64", "Offsets and times as strings, and in records whole numbers beyond 2^53.", "number", "string"),
)
ROUTES = (
    Route(
        *(
            "GET",
            "/v1/topics/{topic}/partitions/{partition}/records",
            page,
            "A page of a partition's records.",
            "records",
        ),
        answer=Page,
        more_media=(BATCHED,),
        problems=(400, 404, 406, 416, 422, 503),
        parameters=(
            text("offset", "`earliest`, `latest`, a number, or `@` and a time: @1700000000000, @2026-01-01T00:00:00Z."),
            integer("max_records", "At most so many records.", least=1, most=RECORDS_MAX),
            integer("max_bytes", "About so many stored bytes.", least=1, most=PAGE_BYTES_MAX),
            integer("wait_ms", "Wait for so long while there is nothing.", most=WAIT_MS_MAX),
            *LENS,
        ),
    ),
    Route(
        *("GET", "/v1/topics/{topic}/stream", stream, "A topic as it grows: server-sent events, or NDJSON.", "records"),
        answer_media=SSE,
        more_media=(NDJSON,),
        problems=(400, 404, 416, 422, 429, 503),
        parameters=(
            text("from", "Where to begin: as `offset` of a page; `latest` by default."),
            text("partitions", "Only these, with commas between."),
            text("cursor", "Go on where another stream was: an event's id, or an NDJSON record's cursor."),
            text("until", "End once everything is read that was there at the beginning.", "forever", "end"),
            integer("max_records", "End after so many records.", least=1),
            header("Last-Event-ID", "As cursor: event sources send it when they come back."),
            *LENS,
        ),
    ),
)
