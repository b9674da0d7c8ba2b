"""Forwards requests to the broker that must serve them, because it holds what they are about.

What always holds: a request is forwarded once. A broker that no longer holds it says so instead of forwarding it again.
"""

from __future__ import annotations

from aiohttp import ClientConnectorError, ClientError, web
from yarl import URL

from service.settings.broker import WEB
from service.web.gateway import Gateway
from service.web.problems import Problem

FORWARDED = "X-Oncelog-Forwarded"
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length",
     "content-encoding", "accept-encoding", "proxy-authorization"}
)  # fmt: skip


async def forward(gateway: Gateway, node: int, request: web.Request, body: bytes) -> web.StreamResponse:
    """The other broker's answer. The body is forwarded unpacked, as it was read here."""
    broker = gateway.image.brokers.get(node)
    endpoint = None if broker is None else broker.endpoint(WEB)
    if request.headers.get(FORWARDED) is not None:
        raise Problem("not-now", f"broker {node} shall answer, and passed it on")
    if endpoint is None:
        raise Problem("not-now", f"broker {node} shall answer, which has no HTTP or is away")
    headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
    headers[FORWARDED] = str(gateway.node_id)
    url = URL(
        f"http://{endpoint.address}{request.raw_path}", encoded=True
    )  # the path must stay the same to the letter: idempotency keys are known by it
    try:
        async with gateway.http().request(request.method, url, data=body, headers=headers) as answer:
            content = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            return web.Response(body=content, status=answer.status, headers=kept)
    except ClientConnectorError as error:
        raise Problem("not-now", f"broker {node} shall answer, and can't be reached: {error.strerror}") from None
    except (ClientError, TimeoutError, OSError) as error:
        raise Problem("outcome-unknown", f"broker {node}: {error}", outcome="unknown") from None
