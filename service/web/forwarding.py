"""Forwards requests to the broker that must serve them, because it holds what they are about.

What always holds: a request is forwarded once, also if the connection breaks: a client that polls has moved on by an
answer that was lost. A broker that no longer holds it says so instead of forwarding it again. A read ends soon after
its client is gone, here and at the other broker: that one would take a member of a group to have read what nobody got.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from aiohttp import ClientConnectorError, ClientError, web
from aiohttp.helpers import parse_content_type
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from service.settings.broker import WEB
from service.web.answers import as_one
from service.web.gateway import Gateway
from service.web.holding import HOLDER
from service.web.problems import Problem
from service.web.taking import CAME_S

T = TypeVar("T")

FORWARDED = "X-Oncelog-Forwarded"
WAITED = "X-Oncelog-Waited"
"""A request header: for how many milliseconds the client's request has waited before it was forwarded, rounded up. What
seems to have come too early may be given twice; what seems to have come too late may be lost. The way to the other
broker is not counted. Any bound for it is at least as long as a message takes, as is a quick client's pause before its
next request: with such a bound that request would not count as a next one.
"""
WAITED_LESS = "X-Oncelog-Waited-Less"
"""A request header: by how many microseconds that is too much. Former versions do not know it."""
SENT_AT_ONCE = 256 << 10
"""How much of a body is forwarded in one turn of the loop."""
LOOKED_S = 0.5
"""How often it is looked whether the client of a read is still there."""
RECORD_HEADER = "record-header-"
"""A request header with this prefix becomes a header of the record, byte by byte."""
OF_EVENTS = "ce-"
"""Request headers with this prefix become attributes of a CloudEvent."""
OF_RECORDS = (RECORD_HEADER, OF_EVENTS, "content-type")
"""How the request headers begin that become part of a record."""
_NUMBER = re.compile("[0-9]{1,18}")
_PLAIN = "".join(chr(each) for each in range(0x20, 0x7F) if chr(each) != "%")
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length",
     "content-encoding", "accept-encoding", "proxy-authorization"}
)  # fmt: skip


def url_of(gateway: Gateway, node: int, path: str) -> URL:
    """Where another broker serves this path."""
    broker = gateway.image.brokers.get(node)
    endpoint = None if broker is None else broker.endpoint(WEB)
    if endpoint is None:
        raise Problem("not-now", f"broker {node} shall answer, which has no HTTP or is away")
    return URL(endpoint.url + path, encoded=True)


def waited(gateway: Gateway, came_s: float) -> dict[str, str]:
    """The headers of a request that came then."""
    waited_us = max(math.ceil((gateway.env.clock.monotonic() - came_s) * 1e6), 0)
    waited_ms = math.ceil(waited_us / 1000)
    return {WAITED: str(waited_ms), WAITED_LESS: str(1000 * waited_ms - waited_us)}


def waited_s(headers: Mapping[str, str]) -> float:
    """How long the request has waited of which these are the headers."""
    told, less = headers.get(WAITED, ""), headers.get(WAITED_LESS, "0")
    if not (_NUMBER.fullmatch(told) and _NUMBER.fullmatch(less)):
        return 0.0
    return int(told) / 1000 - int(less) / 1e6


async def forward(
    gateway: Gateway, node: int, request: web.Request, body: bytes, more: Mapping[str, str] = MappingProxyType({})
) -> web.StreamResponse:
    """The other broker's answer. The body is forwarded unpacked, as it was read here. `more` are further headers."""
    if request.headers.get(FORWARDED) is not None:
        raise Problem("not-now", f"broker {node} shall answer, and passed it on")
    # The path must stay the same to the letter: idempotency keys are known by it.
    url = url_of(gateway, node, request.path_qs)
    # What becomes part of a record must stay the same byte by byte. Idempotency keys know a request by it, too.
    headers = CIMultiDict(
        (name, quote(value, _PLAIN, errors="surrogateescape") if name.lower().startswith(OF_RECORDS) else value)
        for name, value in _for_the_next(request.headers)
    )
    headers[FORWARDED] = str(gateway.node_id)
    headers.update({**waited(gateway, request[CAME_S]), **more})
    method = "GET" if request.method == "HEAD" else request.method  # the answer says how long it would be
    data: bytes | AsyncIterator[bytes] = body
    if len(body) > SENT_AT_ONCE:
        headers["Content-Length"] = str(len(body))
        data = _slices(body)

    async def ask() -> web.Response:
        with gateway.outgoing.to(node):
            async with gateway.http().request(method, url, data=data, headers=headers) as answer:
                head = CIMultiDict(_for_the_next(answer.headers))
                pieces: list[bytes] = []
                size_bytes = 0
                async for some in answer.content.iter_any():
                    pieces.append(some)
                    size_bytes += len(some)
                    # It waits for no room, and is not ended: what it tells of has been done.
                    request[HOLDER].hold(len(body) + size_bytes)
                return web.Response(body=await as_one(pieces), status=answer.status, headers=head)

    try:
        return await (while_there(request, ask()) if method == "GET" else ask())
    except ClientConnectorError as error:
        raise Problem("not-now", f"broker {node} shall answer, and can't be reached: {error.strerror}") from None
    except (ClientError, TimeoutError, OSError) as error:
        if method == "GET":
            raise Problem("not-now", f"broker {node}: {error}", outcome="unknown") from None
        raise Problem("outcome-unknown", f"broker {node}: {error}", outcome="unknown") from None


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    """A long body, of which the transport copies what the other broker has not taken yet."""
    for at in range(0, len(body), SENT_AT_ONCE):
        yield body[at : at + SENT_AT_ONCE]


async def while_there(request: web.Request, answer: Coroutine[Any, Any, T]) -> T:
    """What is answered. It is given up when the client is gone."""
    task = asyncio.get_running_loop().create_task(answer)
    try:
        while not (await asyncio.wait([task], timeout=LOOKED_S))[0]:
            if request.transport is None:
                raise client_gone()
        return task.result()
    finally:
        task.cancel()


def client_gone() -> Problem:
    """The end of a read whose client is gone. Nobody gets this answer."""
    return Problem("not-now", "the client is gone")


def _for_the_next(headers: CIMultiDictProxy[str]) -> list[tuple[str, str]]:
    """All headers that do not belong to one connection, repeated ones too, in their order."""
    return [(name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP]


def headers_of_records(request: web.Request) -> CIMultiDict[str]:
    """The request headers that become part of a record, as the client sent them."""
    found = [(name, value) for name, value in request.headers.items() if name.lower().startswith(OF_RECORDS)]
    if FORWARDED in request.headers:
        found = [(name, unquote(value, errors="surrogateescape")) for name, value in found]
    return CIMultiDict(found)


def media_of(request: web.Request) -> str:
    """The media type of the body, as the client says it."""
    given = request.headers.get("Content-Type")
    if given is None or FORWARDED not in request.headers:
        return request.content_type
    return parse_content_type(unquote(given, errors="surrogateescape"))[0]
