"""A stop in order while a request with an Idempotency-Key waits for something that does not come."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import service.broker.writing
from service.broker.internal_topics import HTTP_KEYS
from service.broker.partition import Partition
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.web import app
from service.web.app import WebServer
from service.web.gateway import ENDED_WITHIN_S, Gateway
from service.wire.base import Request
from service.wire.error_codes import ErrorCode
from service.wire.messages import EndTxnRequest
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import until
from tests.service.web.pipes import PATIENCE_S, Pipe

STOP_S = 0.1
SMALL = b'{"records":[{"value":1}]}'
LARGE = b'{"records":[%b]}' % b",".join([b'{"value":1}'] * 30)
committed = service.broker.writing.committed_or_error
ask = Gateway.ask


def asked(body: bytes) -> bytes:
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + b'Idempotency-Key: "k"\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body)


def connect(web: WebServer, *, lane: bool) -> Pipe:
    manager = web._runner.server
    assert manager is not None
    manager._kwargs["auto_decompress"] = False
    return Pipe(web._connected() if lane else manager())


def others(stage: Stage) -> set[asyncio.Task[Any]]:
    """The tasks that are not the broker's own."""
    tasks: Any = stage.broker.env.tasks
    return asyncio.all_tasks() - {asyncio.current_task(), *tasks._running.values()}


@pytest.mark.parametrize("lane", [True, False], ids=["short way", "general way"])
@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["shares", "alone"])
@pytest.mark.parametrize(
    "hangs",
    [{"t"}, {HTTP_KEYS.name}, {"commit"}, {"committed"}, {"t", "abort"}],
    ids=lambda each: " ".join(sorted(each)),
)
def test_a_keyed_request_does_not_outlive_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: set[str], body: bytes, *, lane: bool
) -> None:
    """It held up the broker's stop for 30 s: its transaction was to be aborted, and nobody coordinated it any more."""
    metadata, hung = MemoryServer(RealClock()), asyncio.Event()

    async def hang() -> None:
        hung.set()
        await asyncio.Event().wait()

    async def wait(partition: Partition, *more: Any) -> ErrorCode:
        if partition.topic_partition.topic in hangs:
            await hang()
        return await committed(partition, *more)

    async def answer(gateway: Gateway, node: int, request: Request[Any], **more: Any) -> Any:
        end = {True: "commit", False: "abort"}[request.committed] if isinstance(request, EndTxnRequest) else ""
        if end in hangs:
            await hang()
        answered = await ask(gateway, node, request, **more)
        if end and f"{end}ted" in hangs:
            await hang()
        return answered

    async def stopped(stage: Stage) -> None:
        await stage.create("t")
        await stage.served("t")
        web = WebServer(stage.broker, connections_max=10)
        await web.start([])
        stage.broker.ready.set()
        pipe = connect(web, lane=lane)
        tasks: Any = stage.broker.env.tasks
        before = set(tasks._running.values())
        await pipe.send([asked(body)])
        async with asyncio.timeout(PATIENCE_S):
            await hung.wait()
        async with asyncio.timeout(3 * STOP_S + ENDED_WITHIN_S + 1.0):
            await web.stop()
        assert pipe.is_closing()
        assert b"200 OK" not in pipe.told
        left = {each.get_name() for each in tasks._running.values() if each not in before}
        assert not {each for each in left if "transaction" in each or "alone" in each}
        assert not others(stage)
        await stage.broker.stop()  # no longer than its own work takes
        assert not asyncio.all_tasks() - {asyncio.current_task()}

    async def repeated(stage: Stage) -> None:
        partition = await stage.served("t")
        web = WebServer(stage.broker, connections_max=10)
        await web.start([])
        web.begin()
        stage.broker.ready.set()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                pipe = connect(web, lane=True)
                await pipe.send([asked(body)])
                await until(partial(bool, pipe.told))
                if b" 200 OK" in pipe.told:
                    break
                pipe.close()
                await asyncio.sleep(0.05)
            assert (b"Idempotency-Replayed: true" in pipe.told) == (hangs == {"committed"})
            await until(lambda: partition.last_stable_offset == partition.log.end_offset)
        own = json.loads(pipe.told.partition(b"\r\n\r\n")[2])["results"]
        pipe.told.clear()
        await pipe.send([b"GET /v1/topics/t/partitions/0/records?offset=0 HTTP/1.1\r\nHost: x\r\n\r\n"])
        await until(lambda: pipe.told.endswith(b"}"))
        found = json.loads(pipe.told.partition(b"\r\n\r\n")[2])["records"]
        assert [each["offset"] for each in found] == [each["offset"] for each in own]
        pipe.close()
        await web.stop()

    with monkeypatch.context() as patch:
        patch.setattr(app, "STOP_S", STOP_S)
        patch.setattr(service.broker.writing, "committed_or_error", wait)
        patch.setattr(Gateway, "ask", answer)
        on_stage(tmp_path, stopped, metadata=metadata)
    on_stage(tmp_path, repeated, metadata=metadata)
