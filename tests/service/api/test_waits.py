"""What a connection waits for ends with it, over real sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from log.batch import build_batch
from service.api import list_offsets
from service.api.broker_door import BrokerDoor
from service.api.listener import Listener
from service.broker import reading
from service.broker.flusher import Flusher
from service.client.connection import Client
from service.net.server import Server, serve
from service.wire.base import Request
from service.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    SyncGroupRequest,
    TopicProduceData,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import TxnStage, find_coordinator
from tests.service.net.kit import until

FOR_EVER_MS = 2**31 - 1
GROUP = "readers"
JOIN, SYNC, FETCH, PRODUCE, LIST_OFFSETS = 3, 3, 11, 9, 7  # versions


async def a_fetch(port: int) -> Request[Any]:
    partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=FOR_EVER_MS, min_bytes=1, topics=[FetchTopic("orders", partitions=[partition])], session_epoch=-1
    )


async def a_produce(port: int) -> Request[Any]:
    """Its fsync never comes."""
    data = PartitionProduceData(0, build_batch([(None, b"x", (), 1)]))
    return ProduceRequest(None, -1, FOR_EVER_MS, [TopicProduceData("orders", partition_data=[data])])


async def a_join(port: int) -> Request[Any]:
    """The group waits for its first members for a while."""
    return JoinGroupRequest(GROUP, 60_000, 60_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")])


async def a_sync(port: int) -> Request[Any]:
    """A follower's, whose leader sends no assignment."""

    async def joined() -> JoinGroupResponse:
        async with Client("127.0.0.1", port) as client:
            answer: JoinGroupResponse = await client.request(await a_join(port), JOIN)
            return answer

    members = await asyncio.gather(joined(), joined())
    (follower,) = [member for member in members if member.member_id != member.leader]
    return SyncGroupRequest(GROUP, follower.generation_id, follower.member_id)


async def with_server(stage: Stage, scene: Callable[[Server[Any]], Awaitable[None]]) -> None:
    server = await serve(asyncio.get_running_loop(), "127.0.0.1", 0, BrokerDoor(stage.broker, Listener("PLAINTEXT")))
    try:
        await scene(server)
    finally:
        await server.close(grace_s=0.1)


@pytest.mark.parametrize(
    ("request_for", "version", "delay_ms"),
    [(a_fetch, FETCH, 0), (a_produce, PRODUCE, 0), (a_join, JOIN, 60_000), (a_sync, SYNC, 500)],
    ids=["Fetch", "Produce", "JoinGroup", "SyncGroup"],
)
def test_what_a_connection_waits_for_ends_with_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_for: Callable[[int], Awaitable[Request[Any]]],
    version: int,
    delay_ms: int,
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        await find_coordinator(TxnStage(stage.broker), GROUP, key_type=0)
        if request_for is a_produce:
            monkeypatch.setattr(Flusher, "request", lambda *_: None)

        async def play(server: Server[Any]) -> None:
            request = await request_for(server.port)
            client = Client("127.0.0.1", server.port)
            await client.connect()
            waiting = asyncio.create_task(client.request(request, version))
            await until(lambda: bool(server._answers))
            await asyncio.sleep(0.05)
            assert server._answers and not waiting.done()
            await client.close()
            await until(lambda: not server._answers)
            assert not partition._watchers
            await asyncio.wait([waiting])
            assert isinstance(waiting.exception(), OSError)

        async with asyncio.timeout(20):
            await with_server(stage, play)

    on_stage(tmp_path, scene, {"log.durability": "fsync", "group.initial.rebalance.delay.ms": str(delay_ms)})


@pytest.mark.parametrize(("request_for", "version"), [(a_join, JOIN), (a_sync, SYNC)], ids=["JoinGroup", "SyncGroup"])
def test_a_member_that_waits_for_its_group_takes_no_task(
    tmp_path: Path, request_for: Callable[[int], Awaitable[Request[Any]]], version: int
) -> None:
    """Thousands of members wait at the same moment."""

    async def scene(stage: Stage) -> None:
        await find_coordinator(TxnStage(stage.broker), GROUP, key_type=0)

        async def play(server: Server[Any]) -> None:
            request = await request_for(server.port)
            async with Client("127.0.0.1", server.port) as client:
                waiting = asyncio.create_task(client.request(request, version))
                await until(lambda: bool(server._answers))
                assert not [answer for answer in server._answers if isinstance(answer, asyncio.Task)]
            await asyncio.wait([waiting])

        async with asyncio.timeout(20):
            await with_server(stage, play)

    on_stage(tmp_path, scene, {"group.initial.rebalance.delay.ms": "500"})


def test_a_lookup_by_time_whose_client_is_gone_gives_its_turn_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have not begun: the one that was under way when the client went is finished, the next is not begun."""

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 2)
        await stage.served("orders", 1)
        begun = 0
        going, go_on = asyncio.Event(), asyncio.Event()

        async def look(*_: Any) -> None:
            nonlocal begun
            begun += 1
            going.set()
            await go_on.wait()

        monkeypatch.setattr(list_offsets, "offset_for_timestamp", look)
        wanted = [ListOffsetsPartition(index, timestamp=1) for index in range(2)]
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("orders", wanted)])

        async def play(server: Server[Any]) -> None:
            clients = [Client("127.0.0.1", server.port) for _ in range(2)]
            for client in clients:
                await client.connect()
            asked = [asyncio.create_task(client.request(request, LIST_OFFSETS)) for client in clients]
            await going.wait()
            await until(lambda: len(server._answers) == 2)
            for client in clients:
                await client.close()
            await until(lambda: not server.connections)
            go_on.set()
            await until(lambda: not server._answers)
            assert begun == 1
            await asyncio.wait(asked)
            assert all(isinstance(task.exception(), OSError) for task in asked)

        async with asyncio.timeout(20):
            await with_server(stage, play)

    on_stage(tmp_path, scene)


def test_who_wants_to_wait_for_ever_is_told_that_there_is_nothing_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end may have gone without a word."""
    monkeypatch.setattr(reading, "LONGEST_WAIT_MS", 50)

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await stage.served("orders")
        async with asyncio.timeout(20):
            answer = await stage.ask(await a_fetch(0), FETCH)
        assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)

    on_stage(tmp_path, scene)
