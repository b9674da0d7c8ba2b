"""CloudEvents over HTTP, into a topic as Kafka's binding of CloudEvents has them: any webhook can be pointed here.

Binary mode (`ce-*` headers) stays binary: attributes become `ce_*` headers, the data is the value. Structured mode
(`application/cloudevents+json`) stays structured, a batch (`application/cloudevents-batch+json`) is written together.
The extension `partitionkey` is the record's key.
"""

from __future__ import annotations

from urllib.parse import unquote

import msgspec
from aiohttp import web

from log.batch import NewRecord
from service.web.answers import read_json
from service.web.gateway import Gateway
from service.web.problems import Problem
from service.web.producing import (
    KEY_HEADER,
    BatchOut,
    Placed,
    Seal,
    of_topic,
    once,
    topic_to_write,
    write_together,
)
from service.web.records import Partitioner, encoded
from service.web.routing import Route

STRUCTURED, BATCHED = "application/cloudevents+json", "application/cloudevents-batch+json"
REQUIRED = ("id", "source", "specversion", "type")


class Event(msgspec.Struct):
    """What every event has; the rest of it is not looked at."""

    id: str
    source: str
    specversion: str
    type: str
    partitionkey: str | None = None


_event = msgspec.json.Decoder(Event)
_events = msgspec.json.Decoder(list[msgspec.Raw])


async def receive(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    name = request.match_info["topic"]
    body = await request.read()
    now_ms = gateway.broker.env.clock.wall_ms()
    media = request.content_type
    if media == BATCHED:
        records = [_structured(bytes(each), now_ms) for each in read_json(body, _events)]
    elif media == STRUCTURED:
        records = [_structured(body, now_ms)]
    elif "ce-id" in request.headers:
        records = [_binary(request, body, now_ms)]
    else:
        raise Problem("unsupported-media-type", "a CloudEvent has ce-* headers, or is application/cloudevents+json")
    if not records:
        raise Problem("invalid-request", "there are no events")
    topic = await topic_to_write(gateway, name)
    placed, partitioner = Placed({}, []), Partitioner(gateway.next_turn())
    for record in records:
        placed.add(partitioner.place(topic, None, record[0]), record)

    async def write(seal: Seal | None) -> BatchOut:
        return of_topic(await write_together(gateway, placed, seal=seal), name)

    return await once(gateway, request, body, write)


def _structured(body: bytes, now_ms: int) -> NewRecord:
    event = read_json(body, _event)
    key = None if event.partitionkey is None else encoded(event.partitionkey)
    return key, body, (("content-type", STRUCTURED.encode() + b"; charset=UTF-8"),), now_ms


def _binary(request: web.Request, body: bytes, now_ms: int) -> NewRecord:
    attributes = {
        name.lower().removeprefix("ce-"): unquote(content)
        for name, content in request.headers.items()
        if name.lower().startswith("ce-")
    }
    missing = [name for name in REQUIRED if name not in attributes]
    if missing:
        raise Problem("invalid-record", f"a CloudEvent has a {missing[0]}")
    headers = [(f"ce_{name}", content.encode("utf-8", "surrogateescape")) for name, content in attributes.items()]
    if "Content-Type" in request.headers:
        headers.append(("content-type", request.headers["Content-Type"].encode("utf-8", "surrogateescape")))
    key = attributes.get("partitionkey")
    return None if key is None else key.encode("utf-8", "surrogateescape"), body, tuple(headers), now_ms


ROUTES = (
    Route("POST", "/v1/topics/{topic}/events", receive, "Write CloudEvents: binary, structured or a batch of them.",
          "records", answer=BatchOut, problems=(400, 404, 409, 413, 415, 422, 503, 504),
          parameters=(KEY_HEADER,)),
)  # fmt: skip
