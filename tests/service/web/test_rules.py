"""Every operation of HTTP passes the rule of its row, the short way as well, and its client is judged by what is asked
for it. Here a listener is made by hand that knows who has connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientSession

from service.api.listener import Listener
from service.broker.session import Principal, Session
from service.settings.broker import Endpoint
from service.web import app, producing
from service.web.gateway import ASKING
from service.wire.error_codes import ErrorCode
from service.wire.messages import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.service.api.admin_stage import HERE, Stage, on_stage
from tests.service.web.kit import PATIENCE_S

ALICE = Principal("User", "alice")
PROVEN = Listener("HTTP", authenticate=lambda peer: ALICE)
RECORD = b'{"records":[{"value":1}]}'
SHORT = b"Content-Type: application/json\r\n"
GENERAL = SHORT + b"X-Request-Id: x\r\n"
"""A header that the short way does not know."""


def not_secret(session: Session, names: Mapping[str, str]) -> bool:
    return session.principal != ALICE or names["topic"] != "secret"


@pytest.mark.parametrize("headers", [SHORT, GENERAL])
def test_a_write_that_its_rule_refuses_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: bytes
) -> None:
    table = tuple(
        replace(route, authorize=not_secret) if "{topic}" in route.path else route for route in producing.ROUTES
    )
    monkeypatch.setattr(app, "TABLES", (table,))

    async def scene(stage: Stage) -> None:
        for listener, denied in ((app.LISTENER, False), (PROVEN, True)):  # the short way is for topics that are there
            server = app.WebServer(stage.broker, 3, listener)
            await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
            try:
                async with asyncio.timeout(PATIENCE_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", server.endpoints[0].port)
                    for topic, status in (("open", b"200"), ("secret", b"403" if denied else b"200")):
                        path = b"/v1/topics/%b/records" % topic.encode()
                        writer.write(
                            b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b"
                            % (path, headers, len(RECORD), RECORD)
                        )
                        head = await reader.readuntil(b"\r\n\r\n")
                        assert head.startswith(b"HTTP/1.1 " + status)
                        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                        body = await reader.readexactly(length)
                        assert (b"/problems/denied" in body) == (status == b"403")
                    writer.close()
            finally:
                await server.stop()

    on_stage(tmp_path, scene)


def test_what_is_asked_of_a_broker_is_judged_as_the_clients_question(tmp_path: Path) -> None:
    """Also where another broker would answer: it sees only this one."""
    markers = WriteTxnMarkersRequest([WritableTxnMarker(7, 0, True, [WritableTxnMarkerTopic("orders", [0])], 0)])

    async def scene(stage: Stage) -> None:
        gateway = app.WebServer(stage.broker, 3).gateway

        async def code(node: int) -> int:
            answer = await gateway.ask(node, markers)
            return int(answer.markers[0].topics[0].partitions[0].error_code)

        assert await code(stage.broker.metadata.broker_id) != ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ASKING.set(Session("10.0.0.9", 1234, principal=ALICE))
        for node in (stage.broker.metadata.broker_id, 77):
            assert await code(node) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    on_stage(tmp_path, scene)


def test_a_proven_client_writes_its_transactions(tmp_path: Path) -> None:
    """Whether a transaction takes more is a question of brokers, which no client may ask."""

    async def scene(stage: Stage) -> None:
        await stage.create("t")
        server = app.WebServer(stage.broker, 3, PROVEN._replace(name=HERE.listener))
        await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        stage.broker.ready.set()
        try:
            async with (
                ClientSession(f"http://127.0.0.1:{server.endpoints[0].port}/v1/") as client,
                asyncio.timeout(PATIENCE_S),
            ):
                begun = await (await client.post("transactions", json={"transactional_id": "x"})).json()
                written = await client.put(
                    f"transactions/{begun['txn']}/batches/0", json={"records": [{"topic": "t", "value": 1}]}
                )
                assert written.status == 200, await written.text()
        finally:
            await server.stop()

    on_stage(tmp_path, scene)
