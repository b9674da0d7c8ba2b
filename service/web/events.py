"""CloudEvents over HTTP: a webhook can write to a topic, and records can be read as events.

An event in binary mode (`ce-*` headers) stays binary in the log, an event in structured mode
(`application/cloudevents+json`) stays structured. The events of a batch (`application/cloudevents-batch+json`) are
written together. `event_format.py` says how records and events correspond. Pages, streams and members show events to
clients that ask for that media type; here a single event is shown.
"""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from log.batch import NewRecord
from service.turns import Turn
from service.web.answers import read_json
from service.web.consuming import one_event
from service.web.event_format import BATCHED, STRUCTURED, from_binary, from_structured, to_binary
from service.web.forwarding import headers_of_records, media_of
from service.web.gateway import Gateway
from service.web.looking import RECORD_BYTES_MAX, TOP, BodyScan
from service.web.problems import Problem
from service.web.producing import (
    KEY_HEADER,
    RECORDS_AT_ONCE,
    SCANNED_AT_ONCE,
    BatchOut,
    PlacedRecords,
    Seal,
    about_its_record,
    once,
    topic_to_write,
    write_together,
)
from service.web.records import Partitioner
from service.web.routing import JSON, Route, header
from service.web.unpacking import body_of

ASKING, ALLOWED = "WebHook-Request-Origin", "WebHook-Allowed-Origin"
ASKING_RATE, ALLOWED_RATE = "WebHook-Request-Rate", "WebHook-Allowed-Rate"
DATA = b'"data"'
ATTRIBUTES_MAX = 1_000
"""An event is decoded in one turn of the loop."""
INERT = {"Content-Security-Policy": "sandbox; default-src 'none'", "X-Content-Type-Options": "nosniff"}
"""An event may claim that its data is a page with a script. A browser must not run it as if it were one of our pages.
"""

_encode = msgspec.json.Encoder().encode
_any_json = msgspec.json.Decoder(msgspec.Raw)
_LIST = b'{"records":%b}'
_events = msgspec.json.Decoder(list[msgspec.Raw])


async def receive(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    name = request.match_info["topic"]
    body = await body_of(request)
    now_ms = gateway.env.clock.wall_ms()
    media = media_of(request)
    if media == BATCHED:
        records, turn = [], Turn(SCANNED_AT_ONCE)
        for each in await _events_of(body):
            try:
                records.append(await _structured(bytes(each), now_ms))
            except Problem as problem:
                raise problem.about_record(len(records)) from None
            if turn.is_over(SCANNED_AT_ONCE // RECORDS_AT_ONCE + len(each)):
                await asyncio.sleep(0)
    elif media == STRUCTURED:
        records = [await _structured(body, now_ms)]
    elif "ce-id" in request.headers:
        records = [from_binary(headers_of_records(request), body, now_ms)]
    else:
        raise Problem("unsupported-media-type", "a CloudEvent has ce-* headers, or is application/cloudevents+json")
    if not records:  # the format has empty batches
        return web.Response(body=_encode(BatchOut("none", [], name)), content_type=JSON)

    async def write(seal: Seal | None) -> BatchOut:
        topic = await topic_to_write(gateway, name)
        placed, partitioner = PlacedRecords({}, [], name), Partitioner(gateway.next_turn())
        for number, record in enumerate(records):
            placed.add(partitioner.place(topic, None, record[0]), record)
            if number % RECORDS_AT_ONCE == RECORDS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return await write_together(gateway, placed, seal=seal)

    return await once(gateway, request, body, write)


async def _events_of(body: bytes) -> list[msgspec.Raw]:
    """The events of a batch. They are scanned before the list is made, and that in several turns of the loop."""
    scan = BodyScan(_LIST % body, value=DATA)
    await scan.look()
    if scan.records_end < 0:
        raise Problem("malformed", "the body is not JSON, or no list")
    read_json(scan.rest[len(_LIST % b"") - 1 : -1], _events)  # a list, and nothing behind it
    events: list[msgspec.Raw] = []
    for piece in scan.pieces:
        try:
            some: list[msgspec.Raw] = read_json(piece, _events)
        except Problem as problem:
            alone = BodyScan(_LIST % piece, cut_bytes=0, value=DATA)
            raise await about_its_record(problem, alone, len(events), _any_json) from None
        events += some
        await asyncio.sleep(0)
    return events


async def _structured(body: bytes, now_ms: int) -> NewRecord:
    if len(body) > RECORD_BYTES_MAX:
        detail = f"an event is longer than {RECORD_BYTES_MAX} bytes: send it in binary mode"
        raise Problem("record-too-large", detail)
    scan = BodyScan(body, TOP, value=DATA)
    await scan.look()
    if scan.members > ATTRIBUTES_MAX:
        raise Problem("invalid-record", f"a CloudEvent has at most {ATTRIBUTES_MAX} attributes here")
    return from_structured(body, now_ms)


async def handshake(gateway: Gateway, request: web.Request) -> web.Response:
    """The consent that the sender of a webhook asks for before it sends. Any rate is granted: a sender that is too fast
    is told so by 429. The consent is given in this answer; if the sender names a callback, that is not called.
    """
    headers = {"Allow": "OPTIONS, POST"}
    if origin := request.headers.get(ASKING):
        headers[ALLOWED] = origin
        if ASKING_RATE in request.headers:
            headers[ALLOWED_RATE] = "*"
    return web.Response(headers=headers)


async def show(gateway: Gateway, request: web.Request) -> web.Response:
    """One event: in binary mode, or in structured mode if the client asks for that."""
    event = await one_event(gateway, request)
    if STRUCTURED in request.headers.get("Accept", "").lower():
        return web.Response(body=_encode(event.content), content_type=STRUCTURED, headers=INERT)
    headers, body = to_binary(event)
    return web.Response(body=body, status=204 if body is None else 200, headers={**headers, **INERT})


ROUTES = (
    Route("POST", "/v1/topics/{topic}/events", receive, "Write CloudEvents: binary, structured or a batch of them.",
          "records", body_media=(STRUCTURED, BATCHED), body_bytes_max=None, answer=BatchOut,
          problems=(400, 404, 409, 413, 415, 422, 503, 504), parameters=(KEY_HEADER,), any_query=True),
    Route("OPTIONS", "/v1/topics/{topic}/events", handshake, "Consent to a webhook, as its sender asks for it.",
          "records", only_asks=True, any_query=True,
          parameters=(header(ASKING, "The sender; repeated in `WebHook-Allowed-Origin`."),
                      header(ASKING_RATE, "How many a minute it would like to send; any number is fine.")),
          headers={ALLOWED: "The sender, if it has told who it is.", ALLOWED_RATE: "`*`, if it has asked."}),
    Route("GET", "/v1/topics/{topic}/partitions/{partition}/events/{offset}", show,
          "A committed record as a CloudEvent: in binary mode, or structured if `Accept` says so.", "records",
          answer_media=STRUCTURED, more_media=("*/*",), also=(204,), problems=(400, 404, 406, 416, 503)),
)  # fmt: skip
