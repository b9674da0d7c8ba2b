"""Reading: a page of a partition, or a topic as it grows (`following.py`).

What always holds: a page or an event says where to go on. A reader that goes on there misses nothing and gets nothing
twice. A client that does not read holds up no other client, and no memory besides that of its own stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from aiohttp import web

from isolation.read_view import Isolation
from log.ids import TopicId, TopicPartition
from service.client.cluster import MOVED
from service.client.failures import ClientFailure
from service.turns import in_turns
from service.web.answers import PiecedAnswer, list_in_turns, path_int, query_bytes, query_choice, query_int
from service.web.event_format import BATCHED, STRUCTURED, EventOut
from service.web.fetching import EARLIEST, LATEST, READ_BYTES_MAX, Held, Lens, Shown, fetch, left_ms, opened, refused
from service.web.following import ALL_THE_TIME, PARTITIONS_MAX, Cursor, Stream, progress_line, read_cursor, refuse_wide
from service.web.forwarding import client_gone
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.holding import HOLDER
from service.web.problems import Problem
from service.web.records import Int64, RecordOut, asked_time, with_text_numbers
from service.web.routing import FOLLOWS, JSON, NDJSON, SSE, STREAMING, Parameter, Route, header, integer, text
from service.web.topics import at_time, partition_of
from service.wire.error_codes import ErrorCode

WAIT_MS_MAX = 30_000
RECORDS_MAX = 10_000
PAGE_BYTES, PAGE_BYTES_MAX = 1 << 20, 16 << 20
"""As stored. A longer page than usual leaves in pieces of the usual length."""
PAGE_HEAD = b'{"records":['
STARTS_A_TURN = 50
"""For so many partitions is found in one turn of the loop where a stream begins."""


class Page(msgspec.Struct):
    """Records of a partition; `next_offset` is where the next page begins. With a filter, one page looks through 16 MiB
    at most, or 128 MiB unpacked, so it may be empty although more records follow.
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
    lens.key, lens.key_prefix = query_bytes(request, "key"), query_bytes(request, "key_prefix")
    wanted = query_bytes(request, "header")
    if wanted is not None:
        name, colon, content = wanted.partition(b":")
        lens.header = name.decode(errors="replace"), content if colon else None
    return lens


async def start_of(gateway: Gateway, partition: TopicPartition, where: str, isolation: Isolation) -> int:
    """The offset that `where` means: `earliest`, `latest`, an offset, or `@` with a time."""
    if where == "earliest":
        return await at_time(gateway, partition, EARLIEST, isolation.value)
    if where == "latest":
        return await at_time(gateway, partition, LATEST, isolation.value)
    if where.startswith("@"):
        found = await at_time(gateway, partition, asked_time(where[1:]), isolation.value)
        return found if found >= 0 else await at_time(gateway, partition, LATEST, isolation.value)
    if where.isascii() and where.isdigit() and len(where) < 19:
        return int(where)
    raise Problem("malformed", f"{where[:40]!r} is no offset: earliest, latest, a number, or @ and a time are meant")


# -- a page


async def page(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """A page. A long one leaves in pieces: the next is read when the client has taken the one before."""
    partition = partition_of(gateway, request)
    topic_id = gateway.topic(partition.topic).id
    lens = lens_of(request)
    lens.as_events = asks_for_batch(request, lens)
    most = query_int(request, "max_records", 500, least=1, most=RECORDS_MAX)
    max_bytes = query_int(request, "max_bytes", PAGE_BYTES, least=1, most=PAGE_BYTES_MAX)
    wait_ms = query_int(request, "wait_ms", 0, most=WAIT_MS_MAX)
    offset = await start_of(gateway, partition, request.query.get("offset", "earliest"), lens.isolation)
    reading = PageReading(gateway, request, partition, topic_id, lens, offset, most, max_bytes)
    with gateway.waiting():
        records, is_over = await reading.next_piece(wait_ms)
    if lens.as_events:
        # The head of a batch of events says where the next page begins, so all pieces are there before it leaves.
        while not is_over:
            try:
                some, is_over = await reading.next_piece(0)
            except (Problem, ClientFailure):
                break
            records += some
        return await batch_of(records, {"Next-Offset": str(reading.offset)})
    show = with_text_numbers if lens.text_numbers else _encode
    inside = partial(records_inside, show=show)
    if is_over:
        content = await list_in_turns(records, inside, PAGE_HEAD, show(reading.end)[len(PAGE_HEAD) :])
        return web.Response(body=content, content_type=JSON)
    if request.method == "HEAD":
        return web.Response(content_type=JSON)
    answer = PiecedAnswer(gateway, request, JSON)
    await answer.begin()
    before = PAGE_HEAD
    while True:
        if records:
            content = await list_in_turns(records, inside, before, b"")
            records.clear()  # not held beside their text
            reading.held.hand_over()
            await answer.write(content)
            before = b","
        if is_over:
            break
        try:
            records, is_over = await reading.next_piece(0)
        except (Problem, ClientFailure):
            break  # the page ends here, and who goes on there is told
    await answer.end(show(reading.end)[len(PAGE_HEAD) :])
    return answer.response


def records_inside(records: Sequence[Shown], show: Callable[[Page], bytes]) -> bytes:
    """The records as they stand in a page, without what is around them."""
    tail_bytes = len(show(Page([], 0, 0, 0, 0))) - len(PAGE_HEAD)
    return show(Page(records, 0, 0, 0, 0))[len(PAGE_HEAD) : -tail_bytes]  # type: ignore[arg-type]


async def one_event(gateway: Gateway, request: web.Request) -> EventOut:
    """The record that the path names, as an event."""
    partition, offset = partition_of(gateway, request), path_int(request, "offset", most=2**63 - 1)
    topic_id, lens = gateway.topic(partition.topic).id, Lens(as_events=True, in_lines=False)
    with gateway.waiting():
        reading = PageReading(gateway, request, partition, topic_id, lens, offset, 1, PAGE_BYTES)
        records, _ = await reading.next_piece(0)
    if not records or records[0].offset != offset:
        raise Problem("not-found", f"there is no committed record at offset {offset}")
    (event,) = records
    assert isinstance(event, EventOut)
    return event


class PageReading:
    """What was read of a page, and what is left of it."""

    def __init__(
        self,
        gateway: Gateway,
        request: web.Request,
        partition: TopicPartition,
        topic_id: TopicId,
        lens: Lens,
        offset: int,
        most: int,
        max_bytes: int,
    ) -> None:
        self._gateway = gateway
        self._request = request
        self.held = Held(request[HOLDER])
        self._partition = partition
        self._topic_id = topic_id
        self._lens = lens
        self.offset = offset
        """Where to go on."""
        self._most = most
        self._max_bytes = max_bytes
        self._stored_bytes = self._records_bytes = 0
        """What was read so far."""
        self._has_found = False
        self.ends = -1, -1, -1
        """The start of the log, its last stable offset and its high watermark, when it was last read."""

    @property
    def end(self) -> Page:
        """The page without its records."""
        return Page([], self.offset, *self.ends)

    async def next_piece(self, wait_ms: int) -> tuple[list[Shown], bool]:
        """Records from there on, and whether the page is over. There are none only if it is."""
        gateway, partition, lens = self._gateway, self._partition, self._lens
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        patience = loop.time() + TIMEOUT_S
        while True:
            if self._request.transport is None:
                raise client_gone()
            gateway.same_topic(partition.topic, self._topic_id)
            left_bytes = self._max_bytes - self._stored_bytes
            (piece,) = await fetch(
                *(gateway, gateway.leader(partition), {partition: self.offset}, {partition.topic: self._topic_id}),
                *(lens.isolation, self.held),
                max_bytes=min(PAGE_BYTES, left_bytes if left_bytes > 0 else self._max_bytes),
                wait_ms=left_ms(deadline),
            )
            if piece.error in MOVED and loop.time() < patience:
                await asyncio.sleep(PAUSE_S)
                continue
            if piece.error:
                raise await refused(gateway, partition, piece, self.offset)
            records: list[Shown] = []
            offset, moved, before_bytes = self.offset, False, self.held.records_bytes
            try:
                async for some, next_offset in opened(gateway, piece, self.offset, lens, self._most, self.held):
                    records += some
                    offset, moved = next_offset, True
            finally:
                self.held.drop([piece])
            self.offset = offset  # not before: if the piece can't be read to its end, none of it is shown
            self.ends = piece.log_start_offset, piece.last_stable_offset, piece.high_watermark
            self._stored_bytes += len(piece.data)
            self._records_bytes += self.held.records_bytes - before_bytes
            self._most -= len(records)
            self._has_found = self._has_found or bool(records)
            is_over = self._is_over(moved=moved, may_wait=left_ms(deadline) > 0)
            if records or is_over:
                return records, is_over

    def _is_over(self, *, moved: bool, may_wait: bool) -> bool:
        if self.held.is_enough or self._records_bytes >= READ_BYTES_MAX:
            return True
        if not self._has_found:
            return self._stored_bytes >= PAGE_BYTES_MAX or (not moved and not may_wait)
        _, stable, high = self.ends
        is_at_end = self.offset >= (stable if self._lens.isolation is Isolation.READ_COMMITTED else high)
        is_full = self._most <= 0 or self._stored_bytes >= self._max_bytes or self._max_bytes <= PAGE_BYTES
        return is_full or is_at_end or not moved


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


async def batch_of(events: Sequence[Shown], headers: dict[str, str]) -> web.Response:
    """A batch of CloudEvents. A batch has no room for the next offset, so that is in a header."""
    contents = [event.content for event in events if isinstance(event, EventOut)]
    content = await list_in_turns(contents, lambda some: _encode(some)[1:-1])
    return web.Response(body=content, content_type=BATCHED, headers=headers)


# -- a stream


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
    asked = request.query
    given = request.headers.get("Last-Event-ID") or asked.get("lastEventId") or asked.get("cursor")
    known = read_cursor(given, topic.id) if given else {}
    offsets = {index: offset for index, offset in known.items() if chosen is None or index in chosen}
    # A partition that the cursor does not have was added since: with `latest` its first records would be left out.
    where = "earliest" if known else request.query.get("from", "latest")
    refuse_wide(name, len({*offsets, *indexes}))
    async for index in in_turns(indexes, STARTS_A_TURN):
        if index not in offsets:
            offsets[index] = await start_of(gateway, TopicPartition(name, index), where, lens.isolation)
    until = None
    if until_end:
        until = {
            each: await start_of(gateway, TopicPartition(name, each), "latest", lens.isolation)
            async for each in in_turns(indexes, STARTS_A_TURN)
        }
        gateway.same_topic(name, topic.id)  # or it might end at once, as if all were read
    with gateway.waiting(gateway.config.http_max_streams):
        media = SSE if is_sse else NDJSON
        response = web.StreamResponse(
            headers={"Content-Type": media, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        request[STREAMING] = True
        cursor = Cursor(topic.id, offsets)
        # One that comes back before it has seen a record goes on here. Without data this is no event.
        if is_sse:
            await response.write(b"retry: 1000\nid: %b\n\n" % cursor.text.encode())
        elif where == "latest" and until is None:
            await response.write(progress_line(cursor))
        following = Stream(
            *(gateway, request[HOLDER], response, request.transport, name, chosen, cursor, lens),
            is_sse=is_sse,
            most=most,
            until=until,
        )
        await _guarded(request, following.run, following.failed)
        await response.write_eof()
    return response


async def _guarded(
    request: web.Request, run: Callable[[], Awaitable[None]], failed: Callable[[Problem], Awaitable[None]]
) -> None:
    """Run a stream. The head of the answer is sent already, so an error is told as an event."""
    request[FOLLOWS] = True
    try:
        if request.transport is None:
            raise ConnectionResetError("the client is gone")
        await run()
    except Problem as problem:
        await failed(problem)
    except ClientFailure as failure:
        await failed(Problem("not-now", failure.message))
    except TimeoutError:
        raise ConnectionResetError("the client does not read") from None
    except asyncio.CancelledError:
        if request.transport is not None:
            raise
        raise ConnectionResetError("the client is gone") from None


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
    text(
        "isolation",
        "Only committed records, or all: none of these is said to be aborted.",
        "read_committed",
        "read_uncommitted",
    ),
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
        headers={"Next-Offset": "Of a batch of events: where the next page begins."},
        problems=(400, 404, 406, 416, 503),
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
        answers_head=False,
        line=RecordOut,
        problems=(400, 404, 416, 422, 429, 503),
        parameters=(
            text("from", "Where to begin without a cursor: as `offset` of a page; `latest` by default."),
            text("partitions", f"Only these, with commas between; {PARTITIONS_MAX} at most."),
            text("cursor", "Go on where another stream was: an event's id, or an NDJSON record's cursor."),
            text("until", "End once everything is read that was there at the beginning.", "forever", "end"),
            integer("max_records", "End after so many records.", least=1),
            header("Last-Event-ID", "As cursor: event sources send it when they come back."),
            text("lastEventId", "As that header: event sources that are not the browser's own send it so."),
            *LENS,
        ),
    ),
)
