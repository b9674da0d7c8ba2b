"""What a request is told when something fails beside it, decided with stand-ins for the rest of the broker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import pickle
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest
from aiohttp import ClientResponse, ClientSession, web

import service.client.transactions
import service.web.idempotency
import service.web.instances
import service.web.transactions
from isolation.read_view import Isolation
from log.batch import HEADER_BYTES, build_batch
from log.ids import ZERO_TOPIC_ID, TopicPartition
from service.api.listener import Listener
from service.broker.internal_topics import InternalTopic
from service.client.cluster import MOVED
from service.client.failures import ClientFailure, FailureKind
from service.ports import RealClock
from service.settings.broker import Endpoint
from service.turns import NAMED_A_TURN
from service.web import consumers, fetching, gateway, sending
from service.web.app import WebServer
from service.web.branches import decide
from service.web.fetching import EARLIEST, Held, Lens, Piece, fetch, opened
from service.web.following import passes
from service.web.forwarding import forward, waited, waited_s
from service.web.gateway import Gateway, Outgoing
from service.web.holding import HOLDER, Holder, Holding
from service.web.idempotency import KeyRecord, Keys, Memory
from service.web.instances import Fates, ForwardedReads, Instance, Instances, Turn
from service.web.members import HttpMember, Join
from service.web.problems import Problem, of_error
from service.web.producers import Producer, ProducerPool
from service.web.producing import RUN_RECORDS, BatchOut, Seal
from service.web.sending import OutgoingBatch
from service.web.taking import Given
from service.web.topics import at_time
from service.web.transactions import Name, Open, OpenTransactions, commit, name_of, put_batch
from service.web.unpacking import BODY
from service.wire.base import Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DeletableGroupResult,
    DeleteGroupsResponse,
    EndBranchesResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    TxnOffsetCommitRequest,
)
from tests.service.api.admin_stage import HERE, Stage, on_stage
from tests.service.web.kit import PATIENCE_S, Coming, asking, turns_of
from txn.branches import MAX_BRANCHES

GONE = ClientFailure("it is gone", FailureKind.UNREACHABLE)
NOBODY = Problem("not-now", "nobody coordinates it")
WHERE = TopicPartition("keys", 0)
LENS = Lens(key=b"other")


class Coordinated:
    """A gateway whose coordinator answers an EndTxn as it is told, and every other question not at all."""

    def __init__(self, *ends: EndTxnResponse | Exception) -> None:
        self.ends = list(ends)
        self.node_id, self.image = 1, SimpleNamespace(topics={})
        self.see_through = asyncio.shield

    async def coordinator(self, key_type: int, key: str) -> int:
        if self.ends and self.ends[0] is NOBODY:
            raise NOBODY
        return 1

    def home(self, key_type: int, key: str) -> None:
        """Nobody looks where it is."""

    def needed_by(self, partitions: object) -> frozenset[int]:
        return frozenset()

    async def ask(self, node: int, request: object, needs: object = None) -> object:
        if isinstance(request, InitProducerIdRequest):
            return InitProducerIdResponse(producer_id=1, producer_epoch=0)
        if not isinstance(request, EndTxnRequest):
            raise GONE
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    async def ask_coordinator(self, key_type: int, key: str, request: object) -> object:
        return await self.ask(1, request)


def test_what_is_committed_is_applied_though_its_coordinator_is_gone_afterwards() -> None:
    async def scenario() -> None:
        producers = ProducerPool(cast(Gateway, Coordinated(EndTxnResponse(producer_id=1, producer_epoch=1))))
        async with producers.transaction(frozenset()):
            pass

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "ends",
    [
        (EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR), EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)),
        (EndTxnResponse(error_code=ErrorCode.REQUEST_TIMED_OUT), EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)),
        (GONE, NOBODY),
    ],
)
def test_a_decision_that_may_have_been_written_is_not_denied(ends: Iterable[EndTxnResponse | Exception]) -> None:
    producer = Producer(cast(Gateway, Coordinated(*ends)), "one")
    with pytest.raises(Problem) as raised:
        asyncio.run(producer.end(commit=True))
    assert raised.value.outcome == "unknown"


def test_what_no_broker_took_was_not_done() -> None:
    """The port is one where nobody listens."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        endpoint = Endpoint("HTTP", "127.0.0.1", port, "HTTP")
        image = SimpleNamespace(brokers={2: SimpleNamespace(endpoint=lambda _: endpoint)})
        env = SimpleNamespace(clock=RealClock())
        async with ClientSession() as session:
            gateway = cast(
                Gateway,
                SimpleNamespace(node_id=1, epoch=1, image=image, env=env, http=lambda: session, outgoing=Outgoing()),
            )
            request = asking(headers={}, method="POST", path_qs="/v1/records")
            with pytest.raises(Problem) as raised:
                await forward(gateway, 2, request, b"")
        assert (raised.value.slug, raised.value.outcome) == ("not-now", "none")

    asyncio.run(scenario())


def test_a_request_is_forwarded_once_though_its_connection_breaks() -> None:
    """A poll that was sent again brought what follows the answer that was lost, and nobody knew."""
    asked = 0

    async def answer_and_break(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(answer_and_break, "127.0.0.1", 0)
        here = Endpoint("HTTP", "127.0.0.1", server.sockets[0].getsockname()[1], "HTTP")
        image = SimpleNamespace(brokers={2: SimpleNamespace(endpoint=lambda _: here)})
        env = SimpleNamespace(clock=RealClock())
        gateway: Any = SimpleNamespace(node_id=1, epoch=1, image=image, env=env, outgoing=Outgoing(), _http=None)
        gateway.http = lambda: Gateway.http(gateway)
        request = asking(headers={}, method="GET", path_qs="/v1/polled", transport=True)
        with pytest.raises(Problem) as raised:
            await forward(gateway, 2, request, b"")
        await gateway.http().close()
        server.close()
        assert (asked, raised.value.slug, raised.value.outcome) == (1, "not-now", "unknown")

    asyncio.run(scenario())


def test_records_for_an_instance_that_were_lost_on_their_way_are_asked_for_by_the_same_name() -> None:
    """Its client was told of an error, and went on behind them."""
    asked: list[bytes] = []

    async def break_and_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(next(line for line in head.split(b"\r\n") if line.startswith(b"X-Oncelog-Read: ")))
        if len(asked) == 2:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(break_and_answer, "127.0.0.1", 0)
        here = Endpoint("HTTP", "127.0.0.1", server.sockets[0].getsockname()[1], "HTTP")
        image = SimpleNamespace(brokers={2: SimpleNamespace(endpoint=lambda _: here)})
        env = SimpleNamespace(clock=RealClock(), unique=lambda: b"%016d" % len(asked))
        gateway: Any = SimpleNamespace(node_id=1, epoch=1, image=image, outgoing=Outgoing(), _http=None, env=env)
        gateway.http, gateway.coordinator = lambda: Gateway.http(gateway), AsyncMock(return_value=2)
        gateway.instances = Instances(gateway)
        path = "/consumers/g/instances/i/records"
        there = SimpleNamespace(is_closing=lambda: False)
        request = asking(headers={}, method="GET", path_qs=path, transport=there, query={})
        request.match_info = {"group": "g", "instance": "i"}
        answer = await consumers.records(gateway, request)
        await gateway.http().close()
        server.close()
        assert (answer.status, len(asked), len(set(asked))) == (200, 2, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
@pytest.mark.parametrize("is_given", [True, False])
def test_records_that_were_lost_on_their_way_are_lost_if_they_are_not_given_when_they_are_asked_for_again(
    is_given: bool, status: str
) -> None:
    """The other broker was busy giving others then. The client took its answer without records, and so the lost one was
    held to be taken.
    """
    asked: list[bytes] = []

    async def break_and_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if len(asked) > 1:
            life = "X-Oncelog-Life: 1\r\n" if is_given else ""
            answer = f"HTTP/1.1 {'200 OK' if len(asked) == 3 else status}\r\n{life}Content-Length: 2\r\n\r\n[]"
            writer.write(answer.encode())
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(break_and_answer, "127.0.0.1", 0)
        here = Endpoint("HTTP", "127.0.0.1", server.sockets[0].getsockname()[1], "HTTP")
        image = SimpleNamespace(brokers={2: SimpleNamespace(endpoint=lambda _: here)})
        env = SimpleNamespace(clock=RealClock(), unique=lambda: bytes(16), tasks=Tasks())
        gateway: Any = SimpleNamespace(node_id=1, epoch=1, image=image, outgoing=Outgoing(), _http=None, env=env)
        gateway.http, gateway.coordinator = lambda: Gateway.http(gateway), AsyncMock(return_value=2)
        gateway.instances = SimpleNamespace(forwarded=ForwardedReads(""))
        request = asking(headers={}, method="GET", path_qs="/", match_info={"group": "g", "instance": "i"})
        handing = consumers.Handing(gateway, request)
        found = await handing.elsewhere()
        assert found is not None
        handing._told(is_taken=found.status == 200)
        await env.tasks.end()
        await gateway.http().close()
        server.close()

    asyncio.run(scenario())
    assert len(asked) == (2 if is_given else 3)
    assert [b"X-Oncelog-Lost: " in each for each in asked][2:] == [True] * (not is_given)


class Tasks:
    """What is done beside a request."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, _: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def end(self) -> None:
        await asyncio.gather(*self._tasks)


@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_a_lost_answer_of_an_instance_that_is_not_found_is_told_to_the_instance_when_it_asks(where: str) -> None:
    """A group may be coordinated elsewhere for a while: its coordinator of that time was told, and nobody else."""
    here = Endpoint("HTTP", "127.0.0.1", 1, "HTTP")
    gateway: Any = SimpleNamespace(node_id=1, coordinator=AsyncMock(return_value=1 if where == "here" else 2))
    gateway.env = SimpleNamespace(clock=RealClock(), tasks=(tasks := Tasks()))
    gateway.image = SimpleNamespace(brokers={2: SimpleNamespace(endpoint=lambda _: here)})
    reads = ForwardedReads("")
    gateway.instances = SimpleNamespace(forwarded=reads)
    asked = []

    @asynccontextmanager
    async def ask(*_: Any, headers: dict[str, str]) -> AsyncIterator[Any]:
        asked.append((headers[consumers.LOST], headers[consumers.LIFE]))
        yield SimpleNamespace(status=404)

    gateway.http = lambda: SimpleNamespace(get=ask)

    async def scenario() -> None:
        request = asking(match_info={"group": "g", "instance": "i"}, path_qs="/consumers/g/instances/i/records")
        handing = consumers.Handing(gateway, request)
        handing._turn, handing._named, handing._life = Turn(), reads.begin("a"), "x"
        handing.ended(None)
        await tasks.end()
        assert reads.fates(["a"]) == Fates([], ["a"])

    asyncio.run(scenario())
    assert asked == ([("a", "x")] if where == "elsewhere" else [])


@pytest.mark.parametrize("end", ["told", "stop", "late"])
def test_that_an_answer_was_lost_is_told_until_the_other_broker_can_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """It was given up after 64 ms, while the line was broken that the answer was lost on."""
    if end == "late":
        monkeypatch.setattr(consumers, "TIMEOUT_S", 0.3)
    here = Endpoint("HTTP", "127.0.0.1", 1, "HTTP")
    gateway: Any = SimpleNamespace(node_id=1, coordinator=AsyncMock(return_value=2), closing=asyncio.Event())
    gateway.env = SimpleNamespace(clock=RealClock(), tasks=(tasks := Tasks()))
    gateway.image = SimpleNamespace(brokers={2: SimpleNamespace(endpoint=lambda _: here)})
    reads = ForwardedReads("")
    gateway.instances = SimpleNamespace(forwarded=reads)
    tries = 0

    @asynccontextmanager
    async def ask(*_: Any, **__: Any) -> AsyncIterator[Any]:
        nonlocal tries
        tries += 1
        assert reads.fates(["a"]) == Fates(["a"], []), "until it is told"
        if end == "stop" and tries == 2:
            gateway.closing.set()
        if end != "told" or tries < 6:
            raise OSError("nobody is there")
        yield SimpleNamespace(status=200)

    gateway.http = lambda: SimpleNamespace(get=ask)

    async def scenario() -> None:
        turn = Turn()
        request = asking(match_info={"group": "g", "instance": "i"}, path_qs="/consumers/g/instances/i/records")
        handing = consumers.Handing(gateway, request)
        await handing.wait(turn)
        handing._named = reads.begin("a")
        handing.ended(None)
        await tasks.end()
        assert not turn.locked()
        assert reads.fates(["a"]) == Fates([], [] if end == "told" else ["a"])

    asyncio.run(scenario())
    assert tries in {"told": [6], "stop": [2], "late": [2, 3, 4]}[end]
    assert ("nobody is there" in caplog.text) == (end != "told")


def test_a_broker_in_front_gives_one_answer_of_an_instance_at_a_time_whatever_its_name_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reads of an instance that another broker had made again were answered with nothing as long as an answer of the
    one before was stalled.
    """
    gateway: Any = SimpleNamespace(node_id=1, coordinator=AsyncMock(return_value=2))
    gateway.instances = SimpleNamespace(forwarded=ForwardedReads(""))
    there, status = "x", 200

    async def forwarded(*_: Any) -> web.Response:
        return web.Response(status=status, headers={consumers.LIFE: there})

    monkeypatch.setattr(consumers, "forward", forwarded)

    def read() -> consumers.Handing:
        return consumers.Handing(gateway, asking(match_info={"group": "g", "instance": "i"}))

    async def scenario() -> None:
        nonlocal there, status
        first, waits, second, third = read(), read(), read(), read()
        assert await first.wait_in_front() is None
        assert first._turn is not None
        first._turn.life = "x"  # as its answer says
        waiting = asyncio.ensure_future(waits.wait_in_front())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        there = "y"
        async with asyncio.timeout(PATIENCE_S):
            assert await second.wait_in_front() is None
            assert second._turn is not None
            second._turn.life = "y"
            first.ended(None)
            await asyncio.sleep(0.01)
            assert not waiting.done(), "it waits for the second one now"
            second.ended(None)
            assert await waiting is None
            assert waits._turn is not None
            waits._turn.life, status = "y", 404
            told = await third.wait_in_front()
            assert told is not None and told.status == 404

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["look", "end", "reset"])
@pytest.mark.parametrize("waits_since", ["before", "after"])
def test_a_read_that_waits_has_its_turn_as_soon_as_the_answer_before_may_be_taken(waits_since: str, end: str) -> None:
    """One that waited while that was written waited for ever, and later told that it was taken."""
    reads = ForwardedReads("")
    gateway: Any = SimpleNamespace(node_id=1, epoch=1, instances=SimpleNamespace(begins_max=1, forwarded=reads))
    gateway.env = SimpleNamespace(clock=RealClock(), unique=lambda: b"a" * 16)
    transport = MagicMock()
    transport.get_write_buffer_size.return_value = 0
    transport.get_extra_info.return_value = None

    async def scenario() -> None:
        turn, place = Turn(), TopicPartition("t", 0)
        handing = consumers.Handing(gateway, asking(match_info={"group": "g", "instance": "i"}, headers={}))
        handing.instance = instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
        instance.positions[place], instance.before, instance.is_being_given = 20, {place: 10}, True
        await handing.wait(turn)
        waiting = asyncio.ensure_future(turn.take(1.0 if waits_since == "before" else 3.0))
        if waits_since == "before":
            await asyncio.sleep(0)
        given = Given(transport, {}, 2.0)
        if end == "look":
            handing.ended(given)
        else:
            transport.get_write_buffer_size.return_value = 1
            handing.ended(given)
            await asyncio.sleep(0)
            assert not waiting.done()
            transport.get_write_buffer_size.return_value = 0
            given.ended(ConnectionResetError() if end == "reset" else None)
        async with asyncio.timeout(PATIENCE_S):
            await waiting
        knows_not = end == "look" and waits_since == "before"
        assert given.known.done() != knows_not
        assert instance.taken(instance.positions) == {place: 10 if knows_not or end == "reset" else 20}
        if knows_not:
            given.ended(ConnectionResetError())
        assert instance.positions == {place: 10 if knows_not or end == "reset" else 20}
        assert not instance.reads and not turn.given and reads.fates(["61" * 8]) == Fates([], [])

    asyncio.run(scenario())


def test_a_client_that_goes_on_to_something_else_is_waited_for_until_its_system_acknowledges_the_last_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was committed of an answer that it had read, and to which its system answered a moment later."""
    place, committed = TopicPartition("t", 0), list[object]()
    image = SimpleNamespace(topics={"t": SimpleNamespace(id=ZERO_TOPIC_ID)}, brokers={})
    transport = MagicMock()
    transport.get_write_buffer_size.return_value = 1
    transport.get_extra_info.return_value = None

    async def commit_by(*asked: object) -> None:
        committed.append(asked[-1])

    async def scenario() -> None:
        monkeypatch.setattr(service.web.instances, "commit_by", commit_by)
        instances = Instances(MagicMock(image=image))
        instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
        instance.positions[place] = instance.shown[place] = 20
        instance.ids["t"] = ZERO_TOPIC_ID
        instance.before, instance.is_being_given, instance.asked_s = {place: 10}, True, 3.0
        given = Given(transport, {}, 2.0)
        instance.reader.given[given] = None
        given.then(lambda is_taken: instance.ended(is_taken=is_taken), lambda: None)
        asyncio.get_running_loop().call_later(0.05, setattr, transport.get_write_buffer_size, "return_value", 0)
        await instances._commit_last(instance)
        assert committed == [{place: (20, None)}]

    asyncio.run(scenario())


@pytest.mark.parametrize(("took_us", "told"), [(0, ("0", "0")), (1, ("1", "999")), (5_000_123, ("5001", "877"))])
def test_how_long_a_request_has_waited_is_told_exactly_and_to_former_versions_never_too_short(
    took_us: int, told: tuple[str, str]
) -> None:
    """They read whole milliseconds, and took all else for none: what had come long ago seemed to have come just now,
    and to ask for more than an answer that its client never read.
    """
    gateway: Any = SimpleNamespace(env=SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: took_us / 1e6)))
    headers = waited(gateway, 0.0)
    assert tuple(headers.values()) == told
    assert waited_s(headers) == pytest.approx(took_us / 1e6, abs=1e-9)
    assert int(headers["X-Oncelog-Waited"]) * 1000 >= took_us
    assert waited_s({"X-Oncelog-Waited": "7"}) == pytest.approx(0.007), "by a former version"
    assert waited_s({"X-Oncelog-Waited": "x" * 9}) == waited_s({}) == 0.0


def test_requests_for_other_brokers_have_a_share_of_the_descriptors() -> None:
    outgoing = Outgoing(3)
    with outgoing.to(2), outgoing.to(2, 2):
        with pytest.raises(Problem) as refused, outgoing.to(2, 2):
            pass
        assert (refused.value.slug, refused.value.outcome) == ("not-now", "none")
        with outgoing.to(3), pytest.raises(Problem), outgoing.to(4):
            pass
        with outgoing.to(3):
            pass


def test_a_reader_for_whom_there_is_no_room_at_another_broker_asks_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, float]] = []

    async def ask(node: int, request: Any, *, wait_s: float) -> object:
        asked.append((request.max_wait_ms, wait_s))
        return SimpleNamespace(responses=[])

    async def scenario() -> None:
        image = SimpleNamespace(topics={"t": SimpleNamespace(id=bytes(16))})
        outgoing = Outgoing(1)
        gateway: Any = SimpleNamespace(node_id=1, epoch=1, image=image, ask=ask, may_wait_at=outgoing.has_room)
        loop, began_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        held = Held(Holder(Holding(1 << 30)))
        read = partial(
            fetch,
            gateway,
            2,
            {TopicPartition("t", 0): 0},
            {"t": ZERO_TOPIC_ID},
            Isolation.READ_COMMITTED,
            held,
            max_bytes=1,
        )
        await read(wait_ms=9000)
        with outgoing.to(2):
            await read(wait_ms=9000)
            await read(wait_ms=0)
        assert asked == [(9000, 9.0), (0, 0.0), (0, 0.0)]
        assert 0.04 < loop.time() - began_s < 5

    monkeypatch.setattr(fetching, "CROWDED_S", 0.05)
    asyncio.run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_leader_that_has_not_heard_of_its_partition_is_asked_again(code: ErrorCode) -> None:
    """A stream ended, and a page was answered, as if there were no such topic."""
    data = SimpleNamespace(partition_index=0, error_code=code, aborted_transactions=None, records=None)
    data.log_start_offset = data.last_stable_offset = data.high_watermark = -1
    fetched = SimpleNamespace(responses=[SimpleNamespace(topic="t", partitions=[data])])
    listed = SimpleNamespace(topics=[SimpleNamespace(partitions=[data])])

    async def scenario() -> None:
        image, where = SimpleNamespace(topics={"t": SimpleNamespace(id=bytes(16))}), TopicPartition("t", 0)
        gateway: Any = SimpleNamespace(node_id=1, epoch=1, image=image, ask=AsyncMock(side_effect=[fetched, listed]))
        gateway.leader = lambda partition: 2
        held = Held(Holder(Holding(1 << 30)))
        (piece,) = await fetch(
            gateway, 2, {where: 0}, {"t": ZERO_TOPIC_ID}, Isolation.READ_COMMITTED, held, max_bytes=1, wait_ms=0
        )
        assert piece.error in MOVED
        with pytest.raises(Problem) as told:
            await at_time(gateway, where, EARLIEST, 0)
        assert passes(told.value)

    asyncio.run(scenario())


@asynccontextmanager
async def serving(stage: Stage) -> AsyncIterator[tuple[WebServer, ClientSession]]:
    web = WebServer(stage.broker, 10, Listener(HERE.listener))
    await web.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
    stage.broker.ready.set()
    try:
        async with ClientSession(f"http://127.0.0.1:{web.endpoints[0].port}/v1/") as client:
            async with asyncio.timeout(PATIENCE_S):
                yield web, client
    finally:
        await web.stop()


def test_an_answer_counts_as_written_before_its_client_can_have_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request came to another broker, before this one had noted when it had written the answer. So it told
    nothing of it, and what it committed was without the answer.
    """
    written: list[Given] = []
    later: list[float] = []

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (server, client):
            write = web.StreamResponse.write

            async def write_and_look(response: web.StreamResponse, content: bytes) -> None:
                await write(response, content)
                later.append(server._lanes.stamp_s())

            made = Given.__init__

            def noted(given: Given, *asked: Any) -> None:
                made(given, *asked)
                written.append(given)

            assert (await client.post("topics/t/records", json={"records": [{"value": 1}]})).status == 200
            media = {"Content-Type": "application/vnd.kafka.v2+json", "Accept": "application/vnd.kafka.json.v2+json"}
            root = str(client._base_url).removesuffix("/v1/")
            wishes = {"name": "any", "format": "json", "auto.offset.reset": "earliest"}
            assert (await client.post(f"{root}/consumers/g", json=wishes, headers=media)).status == 200
            path = f"{root}/consumers/g/instances/any"
            assigned = {"partitions": [{"topic": "t", "partition": 0}]}
            assert (await client.post(f"{path}/assignments", json=assigned, headers=media)).status == 204
            monkeypatch.setattr(web.StreamResponse, "write", write_and_look)
            monkeypatch.setattr(Given, "__init__", noted)
            read = await client.get(f"{path}/records", headers=media)
            assert [each["value"] for each in await read.json(content_type=None)] == [1]
            assert written[0].written_s < later[0]

    on_stage(tmp_path, scene)


def batch_of(value: int) -> dict[str, object]:
    return {"records": [{"topic": "t", "partition": 0, "value": value}]}


def offsets_of(offset: int) -> dict[str, object]:
    return {"offsets": [{"topic": "t", "partition": 0, "offset": offset}]}


def test_a_decision_that_is_sent_again_while_it_is_carried_out_is_told_as_a_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told that nothing was written, though the root had decided."""
    monkeypatch.setattr("txn.coordinator.END_AT_ONCE", 1)

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (web, client):
            named = []
            for number in range(20):
                begun = await (await client.post("transactions", json={"transactional_id": f"r::1/{number}"})).json()
                path = f"transactions/{begun['txn']}"
                assert (await client.put(f"{path}/batches/0", json=batch_of(number))).status == 200
                named.append((await (await client.post(f"{path}:commit")).json())["branch"])
            decision = {"commit": True, "branches": named, "decided_by": "me"}
            first = asyncio.ensure_future(client.put("branches/r/decisions/1", json=decision))
            shards = list(web.gateway.here.coordination.transactions.shards())
            while not any(shard.machine.last_decision("r").token == 1 for shard in shards):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert any(shard.machine.next_deadline_ms() == 0 for shard in shards), "it is carried out"
            again = await client.put("branches/r/decisions/1", json=decision)
            assert (again.status, (await again.json())["decided_now"]) == (200, False)
            assert (await (await first).json())["decided_now"]

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_under_way", [True, False])
@pytest.mark.parametrize("what", ["batches/1", "offsets/g"])
def test_what_comes_after_a_branch_was_sealed_elsewhere_is_not_written(
    tmp_path: Path, what: str, is_under_way: bool, is_known: bool
) -> None:
    """It was, and stood after the decision: the partition is in the transaction, and its leader knows of no seal. The
    broker may have forgotten the transaction, or know it from before another one sealed it.
    """

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (web, client):
            begun = await (await client.post("transactions", json={"transactional_id": "r::1/a"})).json()
            path, pair = f"transactions/{begun['txn']}", (begun["producer_id"], begun["epoch"])
            for each, body in ("batches/0", batch_of(0)), ("offsets/g", offsets_of(20)):
                assert (await client.put(f"{path}/{each}", json=body)).status == 200
            known = web.gateway.open_transactions
            if not is_known:
                known._open.clear()
            late = batch_of(1) if what == "batches/1" else offsets_of(25)
            turn = known.turn(name_of(begun["txn"]))
            async with turn:
                writing = asyncio.ensure_future(client.put(f"{path}/{what}", json=late))
                while is_under_way and not turn._waiters:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                sealed = await stage.ask(EndTxnRequest("r::1/a", *pair, committed=True))
            assert sealed.error_code == 0
            refused = await writing
            problem = await refused.json()
            assert (refused.status, problem["type"], problem["outcome"]) == (409, "/problems/invalid-txn-state", "none")
            assert "is sealed" in problem["detail"]
            decided = await client.put("branches/r/decisions/1", json={"commit": True, "branches": [{"name": "a"}]})
            assert (await decided.json())["outcome"] == "applied"
            page = await (await client.get("topics/t/partitions/0/records?offset=0")).json()
            assert [each["value"] for each in page["records"]] == [0]
            read = await (await client.get("groups/g/offsets")).json()
            assert [each["offset"] for each in read["offsets"]] == [20]

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("transactional_id", ["x", "r::1/a"])
def test_a_broker_that_does_not_know_a_transaction_commits_nothing_while_its_batch_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactional_id: str
) -> None:
    """The coordinator has moved, and its former broker still waits for the leader. The new one counted what was there,
    and committed it; then the batch came in, too.
    """

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (_, client), serving(stage) as (_, elsewhere):
            begun = await (await client.post("transactions", json={"transactional_id": transactional_id})).json()
            path = f"transactions/{begun['txn']}"
            assert (await client.put(f"{path}/batches/0", json=batch_of(0))).status == 200
            send, reached, may_go_on = sending._send_here, asyncio.Event(), asyncio.Event()

            async def slowly(*given: Any) -> None:
                reached.set()
                await may_go_on.wait()
                await send(*given)

            monkeypatch.setattr(sending, "_send_here", slowly)
            writing = asyncio.ensure_future(client.put(f"{path}/batches/1", json=batch_of(1)))
            await reached.wait()
            refused = await elsewhere.post(f"{path}:commit")
            problem = await refused.json()
            assert refused.status == 409, f"one batch of two was committed: {problem}"
            assert (problem["type"], problem["outcome"]) == ("/problems/invalid-txn-state", "none")
            ending = asyncio.ensure_future(client.post(f"{path}:commit"))
            done, _ = await asyncio.wait([ending], timeout=0.3)
            may_go_on.set()
            assert (not done, (await writing).status, (await ending).status) == (True, 200, 200)

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_end_of_a_sealed_branch_may_be_repeated_and_is_not_changed(tmp_path: Path, is_known: bool) -> None:
    """A broker that had forgotten the branch since refused to. An abort was told of an id, and nothing of a seal."""

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (web, client):
            begun = await (await client.post("transactions", json={"transactional_id": "r::1/a"})).json()
            path = f"transactions/{begun['txn']}"
            assert (await client.put(f"{path}/batches/0", json=batch_of(0))).status == 200
            sealed = await client.post(f"{path}:commit")
            assert (sealed.status, (await sealed.json())["state"]) == (200, "Sealed")
            if not is_known:
                web.gateway.open_transactions._open.clear()
            told = await sealed.json()
            again = await (await client.post(f"{path}:commit")).json()
            assert told == again | {"next_batch": 1}
            assert ("next_batch" in again) == is_known
            refused = await client.post(f"{path}:abort")
            problem = await refused.json()
            assert (refused.status, problem["type"], problem["outcome"]) == (409, "/problems/invalid-txn-state", "none")
            assert "is sealed" in problem["detail"]

    on_stage(tmp_path, scene)


def test_a_commit_that_is_found_to_be_decided_says_how_many_batches_are_in_it(tmp_path: Path) -> None:
    """A client whose batch had not been answered could not tell whether it is there."""

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (_, client), serving(stage) as (_, elsewhere):
            begun = await (await client.post("transactions", json={"transactional_id": "x"})).json()
            path, pair = f"transactions/{begun['txn']}", (begun["producer_id"], begun["epoch"])
            assert (await client.put(f"{path}/batches/0", json=batch_of(0))).status == 200
            assert (await stage.ask(EndTxnRequest("x", *pair, committed=True))).error_code == 0
            assert (await elsewhere.post("transactions", json={"transactional_id": "x"})).status == 201
            told = await (await client.post(f"{path}:commit")).json()
            assert (told["outcome"], told["next_batch"]) == ("applied", 1)

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("what", ["batches/0", "offsets/g"])
def test_what_waited_behind_the_end_of_its_transaction_is_not_written(tmp_path: Path, what: str, end: str) -> None:
    """It could be written before the marker came: into a transaction whose end had been told already."""
    told = {"commit": (409, "invalid-txn-state", "applied"), "abort": (410, "transaction-expired", "none")}[end]

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (web, client):
            begun = await (await client.post("transactions", json={"transactional_id": "x"})).json()
            path, pair = f"transactions/{begun['txn']}", (begun["producer_id"], begun["epoch"])
            assert (await client.put(f"{path}/offsets/h", json=offsets_of(1))).status == 200
            turn = web.gateway.open_transactions.turn(name_of(begun["txn"]))
            async with turn:  # as the request that ends it
                late = batch_of(0) if what == "batches/0" else offsets_of(7)
                writing = asyncio.ensure_future(client.put(f"{path}/{what}", json=late))
                while not turn._waiters:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert (await stage.ask(EndTxnRequest("x", *pair, committed=end == "commit"))).error_code == 0
            refused = await writing
            problem = await refused.json()
            assert (refused.status, problem["type"], problem["outcome"]) == (told[0], f"/problems/{told[1]}", told[2])

    on_stage(tmp_path, scene)


def test_an_end_waits_for_offsets_that_are_being_written(tmp_path: Path) -> None:
    """They waited for the group's coordinator, and could be written after the end."""

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (web, client):
            begun = await (await client.post("transactions", json={"transactional_id": "x"})).json()
            path = f"transactions/{begun['txn']}"
            assert (await client.put(f"{path}/offsets/g", json=offsets_of(20))).status == 200
            ask, reached, may_go_on = web.gateway.ask_coordinator, asyncio.Event(), asyncio.Event()

            async def moving(topic: InternalTopic, key: str, request: Any) -> Any:
                if isinstance(request, TxnOffsetCommitRequest):
                    reached.set()
                    await may_go_on.wait()
                return await ask(topic, key, request)

            cast(Any, web.gateway).ask_coordinator = moving
            writing = asyncio.ensure_future(client.put(f"{path}/offsets/g", json=offsets_of(25)))
            await reached.wait()
            ending = asyncio.ensure_future(client.post(f"{path}:commit"))
            done, _ = await asyncio.wait([ending], timeout=0.3)
            may_go_on.set()
            assert (not done, (await writing).status, (await ending).status) == (True, 200, 200)

    on_stage(tmp_path, scene)


def test_offsets_that_may_be_on_their_way_are_put_again_before_the_end(tmp_path: Path) -> None:
    """They could come in after the end, or never."""

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (web, client):
            begun = await (await client.post("transactions", json={"transactional_id": "x"})).json()
            path = f"transactions/{begun['txn']}"
            assert (await client.put(f"{path}/offsets/g", json={"offsets": [], "generation": 2**40})).status == 422
            ask = web.gateway.ask_coordinator
            cast(Any, web.gateway).ask_coordinator = AsyncMock(side_effect=LOST)
            lost = await client.put(f"{path}/offsets/g", json=offsets_of(20))
            assert (lost.status, (await lost.json())["outcome"]) == (504, "unknown")
            cast(Any, web.gateway).ask_coordinator = ask
            refused = await client.post(f"{path}:commit")
            assert (refused.status, "put them again" in (await refused.json())["detail"]) == (409, True)
            assert (await client.put(f"{path}/offsets/g", json=offsets_of(20))).status == 200
            assert (await client.post(f"{path}:commit")).status == 200

    on_stage(tmp_path, scene)


LOST = ClientFailure("the connection broke", FailureKind.UNREACHABLE, may_come_late=True)
NEVER_SENT = ClientFailure("no broker there", FailureKind.UNREACHABLE)


@pytest.mark.parametrize(("failure", "told"), [(LOST, (504, "unknown")), (NEVER_SENT, (503, "none"))])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/topics", {"name": "t"}),
        ("DELETE", "/v1/groups/g", None),
        ("PUT", "/v1/branches/r/decisions/1", {"commit": True}),
    ],
)
def test_what_another_broker_may_have_done_is_not_said_to_be_undone(
    tmp_path: Path, failure: ClientFailure, told: tuple[int, str], method: str, path: str, body: object
) -> None:
    """All of these said `none` when the answer of the other broker was lost."""

    async def lost(*_: object, **__: object) -> None:
        raise failure

    async def scene(stage: Stage) -> None:
        web = WebServer(stage.broker, connections_max=10)
        await web.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        stage.broker.ready.set()
        cast(Any, web.gateway).ask_controller = cast(Any, web.gateway).ask_to_change = lost
        async with ClientSession() as client:
            url = f"http://127.0.0.1:{web.endpoints[0].port}"
            answer = await client.request(method, url + path, json=body)
            problem = await answer.json()
            assert (answer.status, problem["outcome"]) == told
            find = await client.post(f"{url}/v1/transactions:find-hanging", json={})
            assert find.status == 200
        await web.stop()

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("then", ["no broker there", "nobody coordinates", "it goes on moving"])
@pytest.mark.parametrize(
    ("first", "told"),
    [(ErrorCode.NOT_COORDINATOR, (504, "unknown")), (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, (503, "none"))],
)
def test_what_a_coordinator_may_have_done_before_it_moved_is_not_said_to_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: ErrorCode, told: tuple[int, str], then: str
) -> None:
    """It was, if no other one could be asked."""
    asked = 0

    async def ask(*_: object, **__: object) -> object:
        nonlocal asked
        asked += 1
        if asked > 1 and then == "no broker there":
            raise NEVER_SENT
        return DeleteGroupsResponse(results=[DeletableGroupResult("g", first)])

    async def coordinator(*_: object) -> int:
        if asked and then == "nobody coordinates":
            raise NOBODY
        return 2

    async def scene(stage: Stage) -> None:
        web = WebServer(stage.broker, connections_max=10)
        await web.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        stage.broker.ready.set()
        cast(Any, web.gateway).ask, cast(Any, web.gateway).coordinator = ask, coordinator
        async with ClientSession() as client:
            answer = await client.delete(f"http://127.0.0.1:{web.endpoints[0].port}/v1/groups/g")
            assert (answer.status, (await answer.json())["outcome"]) == told
        await web.stop()

    monkeypatch.setattr(gateway, "TIMEOUT_S", 0.1)
    on_stage(tmp_path, scene)


DELETED = DeleteGroupsResponse(results=[DeletableGroupResult("g", ErrorCode.GROUP_ID_NOT_FOUND)])


def committed(*codes: ErrorCode) -> OffsetCommitResponse:
    partitions = [OffsetCommitResponsePartition(index, code) for index, code in enumerate(codes)]
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic("t", partitions=partitions)])


@pytest.mark.parametrize(
    ("first", "outcome"), [(ErrorCode.NOT_COORDINATOR, "unknown"), (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "none")]
)
@pytest.mark.parametrize(
    ("method", "path", "body", "refusal", "status"),
    [
        ("DELETE", "/v1/groups/g", None, DELETED, 404),
        (
            *("PUT", "/v1/groups/g/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 3}]}),
            *(committed(ErrorCode.UNKNOWN_MEMBER_ID), 409),
        ),
        (
            *("POST", "/v1/groups/g/members/m/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 3}]}),
            *(committed(ErrorCode.STALE_MEMBER_EPOCH), 409),
        ),
        (
            *("PUT", "/v1/branches/r/decisions/1", {"commit": True}),
            *(EndBranchesResponse(error_code=ErrorCode.PRODUCER_FENCED), 409),
        ),
    ],
    ids=["delete", "reset", "commit", "decide"],
)
def test_a_refusal_does_not_hide_that_the_coordinator_before_may_have_done_it(
    tmp_path: Path, first: ErrorCode, outcome: str, method: str, path: str, body: object, refusal: Struct, status: int
) -> None:
    """The refusal may come of what that one did: a group that it deleted is not there."""

    async def scene(stage: Stage) -> None:
        async with asked_in_turn(stage, refused_by(refusal, first), refusal) as url, ClientSession() as client:
            answer = await client.request(method, url + path, json=body)
            assert (answer.status, (await answer.json())["outcome"]) == (status, outcome)

    on_stage(tmp_path, scene)


def test_offsets_that_were_committed_without_others_are_not_said_to_be_uncommitted(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        answered = committed(ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        async with asked_in_turn(stage, answered) as url, ClientSession() as client:
            offsets = [{"topic": "t", "partition": index, "offset": 3} for index in range(2)]
            answer = await client.post(f"{url}/v1/groups/g/members/m/offsets", json={"offsets": offsets})
            assert (answer.status, (await answer.json())["outcome"]) == (422, "unknown")

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("end", [ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING])
def test_an_id_of_the_brokers_own_that_its_coordinator_has_ended_is_no_other_producers(end: ErrorCode) -> None:
    """It was idle for too long, or its transaction open. The client was told that another producer has its id."""

    async def scenario() -> None:
        ended = EndTxnResponse(error_code=end, producer_id=1, producer_epoch=1)
        producers = ProducerPool(cast(Gateway, Coordinated(ended)))
        with pytest.raises(Problem) as told:
            async with producers.transaction(frozenset()):
                raise of_error(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "t partition 0")
        assert (told.value.slug, told.value.outcome) == ("not-now", "none")

    asyncio.run(scenario())


def refused_by(answer: Struct, code: ErrorCode) -> Struct:
    """The same answer with another error."""
    if isinstance(answer, DeleteGroupsResponse):
        return DeleteGroupsResponse(results=[DeletableGroupResult("g", code)])
    return committed(code) if isinstance(answer, OffsetCommitResponse) else EndBranchesResponse(error_code=code)


@asynccontextmanager
async def asked_in_turn(stage: Stage, *answers: Struct) -> AsyncIterator[str]:
    """The address of a web server for which coordinators answer like this. It has a member of a group, and a topic."""
    web = WebServer(stage.broker, connections_max=10)
    await web.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
    stage.broker.ready.set()
    await stage.create("t", 2)
    web.gateway.members._members["g", "m"] = HttpMember("g", "m", Join(["t"]), 0.0)
    left = list(answers)

    async def ask(*_: object, **__: object) -> Struct:
        return left.pop(0)

    async def coordinator(*_: object) -> int:
        return web.gateway.node_id

    cast(Any, web.gateway).ask, cast(Any, web.gateway).coordinator = ask, coordinator
    yield f"http://127.0.0.1:{web.endpoints[0].port}"
    await web.stop()


@pytest.mark.parametrize("owns", [True, False])
def test_a_transaction_that_lost_its_way_before_the_commit_wrote_nothing(
    monkeypatch: pytest.MonkeyPatch, owns: bool
) -> None:
    async def lost(producer: Producer) -> None:
        raise LOST

    async def scenario() -> None:
        producers = ProducerPool(cast(Gateway, Coordinated(EndTxnResponse(producer_id=1, producer_epoch=1))))
        with pytest.raises(Problem) as told:
            async with producers.transaction(frozenset()):
                raise LOST
        assert (told.value.slug, told.value.outcome) == ("not-now", "none")

    if not owns:
        monkeypatch.setattr(Producer, "own", lost)
    asyncio.run(scenario())


def test_a_request_under_way_at_a_stop_is_still_asked_of_another_broker(tmp_path: Path) -> None:
    """Nobody listens where the other one was; so the client may ask elsewhere, where its key may be known."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = Endpoint("HTTP", "127.0.0.1", taken.getsockname()[1], "HTTP")

    async def scene(stage: Stage) -> None:
        web = WebServer(stage.broker, connections_max=10)
        await web.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        stage.broker.ready.set()
        asked = asyncio.Event()

        async def coordinator(*_: object) -> int:
            asked.set()
            await web.gateway.closing.wait()
            for _turn in range(20):  # the rest of the stop, as far as it goes without us
                await asyncio.sleep(0)
            return 2

        cast(Any, web.gateway).coordinator = coordinator
        web.gateway.http()
        cast(Any, stage.broker.metadata.image.brokers)[2] = SimpleNamespace(endpoint=lambda _: nowhere)
        async with ClientSession() as client:
            url = f"http://127.0.0.1:{web.endpoints[0].port}/v1/records"
            answer = asyncio.ensure_future(client.post(url, json={"records": []}, headers={"Idempotency-Key": "k"}))
            await asked.wait()
            await web.stop()
            told = await (await answer).json()
        assert (told["status"], told["retriable"], told["outcome"]) == (503, True, "unknown")

    on_stage(tmp_path, scene)


def test_requests_that_wait_at_another_broker_hold_up_none_that_is_forwarded_after_them() -> None:
    async def play() -> None:
        waiting, go_on = 0, asyncio.Event()

        async def wait(_: web.BaseRequest) -> web.Response:
            nonlocal waiting
            waiting += 1
            if waiting == 150:
                go_on.set()
            await go_on.wait()
            return web.Response()

        server = await asyncio.get_running_loop().create_server(web.Server(wait), "127.0.0.1", 0)
        gateway: Any = SimpleNamespace(_http=None)
        http = Gateway.http(gateway)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*(http.get(url) for _ in range(150)))
        assert [each.status for each in answers] == [200] * 150
        await http.close()
        server.close()

    asyncio.run(play())


# -- keys


def memory() -> Memory:
    partition = SimpleNamespace(leader_epoch=5, log=SimpleNamespace(end_offset=0))
    return Memory(WHERE, cast(Any, partition))


def keys_of(known: Memory) -> Keys:
    clock = SimpleNamespace(wall_ms=lambda: 1000)
    config = SimpleNamespace(http_idempotency_retention_ms=500)
    keys = Keys(cast(Gateway, SimpleNamespace(env=SimpleNamespace(clock=clock), config=config)))
    keys._memories[0] = known
    return keys


def write_key(keys: Keys, known: Memory, after: Any = lambda: None, before: Any = lambda: None) -> KeyRecord:
    """The record of a key is written to offset 7, and something happens before that and after it."""
    record = KeyRecord(keys, known, "a", "print")

    async def write(seal: Seal) -> BatchOut:
        answer = BatchOut("applied", [])
        seal.record(msgspec.json.encode(answer))
        before()
        seal.written(7)
        after()
        return answer

    asyncio.run(keys._write(record, write))
    return record


def test_a_key_is_remembered_though_what_is_known_was_learnt_anew_while_it_was_written() -> None:
    before, after = memory(), memory()
    after.is_loaded = True
    keys = keys_of(before)
    record = write_key(keys, before, lambda: keys._memories.update({0: after}))
    assert after.offsets == {record.digest: (7, 1000)}


def test_a_key_is_claimed_at_once_only_if_it_is_known_that_nobody_has_used_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = memory()
    keys, partition = keys_of(known), cast(Any, known.partition)
    gateway = cast(Any, keys._gateway)
    gateway.partitions = {WHERE: partition}
    partition.is_leading = True
    assert keys.claim(0, "a", b"asked", b"") is None, "what was written before is not read"
    known.is_loaded = True
    assert keys.claim(1, "a", b"asked", b"") is None
    sealed = keys.claim(0, "a", b"asked", b"body")
    assert sealed is not None
    assert sealed.fingerprint == hashlib.sha256(b"askedbody").hexdigest()
    keys._under_way[sealed.digest] = sealed.fingerprint
    assert keys.claim(0, "a", b"asked", b"body") is None, "it is being written"
    del keys._under_way[sealed.digest]
    known.note(sealed.digest, 7, 600)
    assert keys.claim(0, "a", b"asked", b"body") is None, "it was written"
    known.note(sealed.digest, 7, 499)
    assert keys.claim(0, "a", b"asked", b"body") is not None, "its time is over"
    for number in range(2):
        known.note(b"%d" % number, number, 1000)
    monkeypatch.setattr(service.web.idempotency, "KEYS_MAX", 2)
    assert keys.claim(0, "a", b"asked", b"body") is None
    monkeypatch.setattr(service.web.idempotency, "KEYS_MAX", 3)
    assert keys.claim(0, "a", b"asked", b"body") is not None
    partition.is_leading = False
    assert keys.claim(0, "a", b"asked", b"body") is None
    partition.is_leading, partition.leader_epoch = True, 6
    assert keys.claim(0, "a", b"asked", b"body") is None, "another may have answered meanwhile"
    partition.leader_epoch = 5
    gateway.partitions[WHERE] = SimpleNamespace(is_leading=True, leader_epoch=5)
    assert keys.claim(0, "a", b"asked", b"body") is None, "the topic was made anew"


def test_a_request_is_not_committed_if_another_broker_answered_for_its_key_meanwhile() -> None:
    known = memory()
    with pytest.raises(Problem, match="another broker"):
        write_key(keys_of(known), known, before=lambda: setattr(known.partition, "leader_epoch", 7))


def test_a_key_whose_record_is_written_is_looked_up_whatever_became_of_the_request() -> None:
    known = memory()
    keys = keys_of(known)

    def fail() -> None:
        raise Problem("not-now")

    with pytest.raises(Problem):
        write_key(keys, known, fail)
    assert keys._memories == {}


def test_keys_are_forgotten_in_time_though_one_of_them_is_used_again_and_again() -> None:
    """A key that was used again kept its place as the oldest, and every key behind it was remembered too long."""
    known = memory()
    known.is_loaded = True
    for day, key in enumerate((b"nightly", b"once", b"nightly")):
        known.note(key, day, 1000 * day)
    clock = SimpleNamespace(wall_ms=lambda: 2500)
    config = SimpleNamespace(http_idempotency_retention_ms=1000)
    known.forget_old(cast(Gateway, SimpleNamespace(env=SimpleNamespace(clock=clock), config=config)))
    assert known.offsets == {b"nightly": (2, 2000)}


# -- batches of a transaction


class Partly:
    """A producer of which a batch's first part is written, and the next can't be now."""

    timeout_ms = 60_000

    def __init__(self) -> None:
        self.sequences: dict[TopicPartition, int] = {}
        self.fails = True
        self.times: list[int] = []

    async def refusal(self) -> int:
        return ErrorCode.NONE

    async def build_any(self, partition: TopicPartition, records: list[Any]) -> OutgoingBatch:
        self.times += [each[3] for each in records]
        return OutgoingBatch(partition, b"", len(records))

    async def write(self, batches: list[OutgoingBatch]) -> None:
        for each in batches[:1]:
            each.base_offset = 3
        if self.fails:
            raise Problem("not-now")


def test_a_batch_that_is_written_in_part_is_put_again_as_it_was_before_anything_else() -> None:
    async def scenario() -> None:
        name, producer = Name("one", 1, 0), Partly()
        topics = {"t": SimpleNamespace(name="t", id=7, partitions={0: None}, config={})}

        async def coordinator(key_type: int, key: str) -> int:
            return 1

        gateway: Any = SimpleNamespace(
            node_id=1,
            image=SimpleNamespace(topics=topics),
            topic=lambda name: topics[name],
            config=SimpleNamespace(message_max_bytes=1 << 20),
            env=SimpleNamespace(clock=SimpleNamespace(wall_ms=count(1000).__next__)),
            coordinator=coordinator,
            open_transactions=OpenTransactions(),
        )
        gateway.open_transactions.add(name, producer)
        open_one: Open = gateway.open_transactions.find(name)

        async def put(body: bytes) -> None:
            await put_batch(gateway, putting(name, body))

        with pytest.raises(Problem, match="not-now"):
            await put(b'{"records": [{"topic": "t", "value": 1}]}')
        with pytest.raises(Problem, match="with another body"):
            await put(b'{"records": [{"topic": "t", "value": 2}]}')
        with pytest.raises(Problem, match="written in part"):
            await commit(gateway, cast(Any, SimpleNamespace(match_info={"txn": str(name)}, query={})))
        producer.fails = False
        await put(b'{"records": [{"topic": "t", "value": 1}]}')
        assert len(open_one.batches) == 1
        assert open_one.in_part is None
        assert producer.times == [1000] * 2, "the time that is told is the one that is stored"

    asyncio.run(scenario())


def putting(name: Name, body: bytes, number: str = "0") -> Any:
    """The request that puts this as a batch."""
    facts = {BODY: body, HOLDER: Holder(Holding(1 << 30))}
    request = MagicMock(match_info={"txn": str(name), "number": number})
    request.__contains__.side_effect, request.__getitem__.side_effect = facts.__contains__, facts.get
    return request


def home_of(name: Name, producer: Any, topics: dict[str, Any]) -> Any:
    """The gateway of the broker where this transaction is open."""

    async def coordinator(key_type: int, key: str) -> int:
        return 1

    gateway = SimpleNamespace(
        node_id=1,
        image=SimpleNamespace(topics=topics),
        topic=lambda name: topics[name],
        config=SimpleNamespace(message_max_bytes=1 << 20),
        env=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 1000), blocking=asyncio.to_thread),
        coordinator=coordinator,
        open_transactions=OpenTransactions(),
    )
    gateway.open_transactions.add(name, producer)
    return gateway


class Forgetful(Partly):
    """A producer whose leader knows no runs but the last; the answer about the third run is lost at first."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[TopicPartition, int]] = []

    async def write(self, batches: list[OutgoingBatch]) -> None:
        for number, each in enumerate(batches):
            self.sent.append((each.partition, each.records))
            if self.fails and number == 2:
                each.refused(ErrorCode.REQUEST_TIMED_OUT)
                each.in_doubt = True
                raise each.problem()
            each.written(100 + number, 1000)


@pytest.mark.parametrize("now", ["widened", "made again", "taking smaller batches"])
def test_a_batch_in_part_goes_on_behind_what_is_written_and_to_the_same_partitions(now: str) -> None:
    """Its keys had other partitions once the topic was widened, and were committed twice. A long batch began anew, and
    the leader refused that for ever: it remembers five batches of a producer.
    """

    async def scenario() -> None:
        name, producer = Name("one", 1, 0), Forgetful()
        topics = {"t": SimpleNamespace(name="t", id=7, partitions={0: None}, config={})}

        gateway = home_of(name, producer, topics)
        open_one: Open = gateway.open_transactions.find(name)
        records = [{"topic": "t", "key": "c", "value": each} for each in range(4 * RUN_RECORDS)]
        request = putting(name, json.dumps({"records": records}).encode())
        with pytest.raises(Problem, match="t partition 0"):
            await put_batch(gateway, request)
        producer.fails = False
        if now == "made again":
            topics["t"] = SimpleNamespace(name="t", id=8, partitions={0: None}, config={})
            for why in ("was deleted", "abort the transaction"):
                with pytest.raises(Problem, match=why):
                    await put_batch(gateway, request)
            return
        count, config = (8, {}) if now == "widened" else (1, {"max.message.bytes": "2000"})
        topics["t"] = SimpleNamespace(name="t", id=7, partitions=dict.fromkeys(range(count)), config=config)
        await put_batch(gateway, request)
        assert producer.sent == [(TopicPartition("t", 0), RUN_RECORDS)] * 5, "the third twice"
        assert open_one.in_part is None
        answer: Any = await put_batch(gateway, request)
        assert answer.headers["Batch-Replayed"] == "true"
        told = [(each["partition"], each["offset"]) for each in json.loads(answer.body)["results"]]
        assert told == [(0, first + each) for first in (100, 101, 100, 101) for each in range(RUN_RECORDS)]

    asyncio.run(scenario())


def test_a_topic_that_is_made_again_as_a_batch_is_placed_has_lost_the_batches_before() -> None:
    """The batch went to another partition of the new one, and the commit told nothing of the first batch's loss."""

    async def scenario() -> None:
        name, producer = Name("one", 1, 0), Forgetful()
        producer.fails = False
        topics = {"t": SimpleNamespace(name="t", id=7, partitions={0: None}, config={})}

        gateway = home_of(name, producer, topics)
        body = json.dumps({"records": [{"topic": "t", "value": 1}]}).encode()
        await put_batch(gateway, putting(name, body, "0"))

        def time_in_which_it_is_made_again() -> int:
            topics["t"] = SimpleNamespace(name="t", id=8, partitions={0: None}, config={})
            return 1000

        gateway.env.clock.wall_ms = time_in_which_it_is_made_again
        with pytest.raises(Problem, match="was deleted"):
            await put_batch(gateway, putting(name, body, "1"))
        assert len(producer.sent) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_transaction_is_remembered_for_as_long_as_it_may_be_open(
    monkeypatch: pytest.MonkeyPatch, is_sealed: bool
) -> None:
    """Its time begins with its first batch, and that of a branch anew when it is sealed; it was counted from the
    beginning, and what came later was told that another broker has the transaction.
    """
    now_s = 1000.0

    async def scenario() -> None:
        nonlocal now_s
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
        known, (one, another) = OpenTransactions(), (Name("r::1/a", 1, 0), Name("b", 2, 0))
        known.add(one, cast(Any, Partly()))
        now_s += 50
        open_one = known.find(one)
        assert open_one is not None
        open_one.started()
        now_s += 50
        open_one.started()
        if is_sealed:
            open_one.extend()
            now_s += 50
        async with known.beginning(another.transactional_id):
            assert known.find(one) is open_one
        now_s += 60
        async with known.beginning(another.transactional_id):
            assert known.find(one) is None

    asyncio.run(scenario())


def test_of_each_transactional_id_the_last_transaction_is_remembered(tmp_path: Path) -> None:
    """Those that were shut out were remembered until their time was over. A client that began one id again and again
    shut everybody out.
    """

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (web, client):
            begun = [await (await client.post("transactions", json={"transactional_id": "x"})).json() for _ in range(3)]
            assert len(web.gateway.open_transactions._open) == 1
            for each, status in (begun[0], 409), (begun[1], 409), (begun[2], 200):
                path = f"transactions/{each['txn']}"
                put = await client.put(f"{path}/batches/0", json=batch_of(0))
                assert put.status == status
                if status == 200:
                    break
                for refused in put, await client.post(f"{path}:commit"):
                    problem = await refused.json()
                    assert (refused.status, problem["type"]) == (409, "/problems/producer-fenced")
                    assert problem["outcome"] == (await (await client.get(path)).json())["outcome"] == "none"
            web.gateway.open_transactions.close(name_of(begun[1]["txn"]))
            assert (await client.post(f"transactions/{begun[2]['txn']}:commit")).status == 200

    on_stage(tmp_path, scene)


def test_a_transaction_for_which_there_is_no_place_is_not_begun_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to have done nothing (429), and had taken the id over: what its owner had open was aborted."""
    monkeypatch.setattr(service.web.transactions, "SESSIONS_MAX", 1)

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (_, client), serving(stage) as (_, elsewhere):

            async def begin(transactional_id: str) -> ClientResponse:
                return await client.post("transactions", json={"transactional_id": transactional_id})

            owned = await (await elsewhere.post("transactions", json={"transactional_id": "y"})).json()
            path = f"transactions/{owned['txn']}"
            assert (await elsewhere.put(f"{path}/batches/0", json=batch_of(0))).status == 200
            owning, may_go_on = asyncio.Event(), asyncio.Event()
            own = Producer.own

            async def slowly(producer: Producer, **how: bool) -> None:
                owning.set()
                await may_go_on.wait()
                await own(producer, **how)

            with monkeypatch.context() as patched:
                patched.setattr(Producer, "own", slowly)
                first = asyncio.ensure_future(begin("x"))
                await owning.wait()
                patched.undo()
                for is_begun in (False, True):
                    refused = await begin("y")
                    problem = await refused.json()
                    assert (refused.status, problem["outcome"]) == (429, "none"), problem
                    may_go_on.set()
                    if not is_begun:
                        assert (await first).status == 201
            ended = await elsewhere.post(f"{path}:commit")
            assert (ended.status, (await ended.json())["outcome"]) == (200, "applied")

    on_stage(tmp_path, scene)


def test_a_transaction_that_can_not_be_begun_keeps_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.web.transactions, "SESSIONS_MAX", 1)

    async def scene(stage: Stage) -> None:
        async with serving(stage) as (_, client):
            with monkeypatch.context() as patched:
                patched.setattr(Producer, "own", AsyncMock(side_effect=Problem("not-now")))
                assert (await client.post("transactions", json={"transactional_id": "x"})).status == 503
            assert (await client.post("transactions", json={"transactional_id": "y"})).status == 201

    on_stage(tmp_path, scene)


def test_a_batch_that_is_put_again_is_answered_as_before_although_its_topics_have_grown(tmp_path: Path) -> None:
    """All of each answer was kept until the end of the transaction: 76 bytes of each record."""

    async def scene(stage: Stage) -> None:
        await stage.create("t", 2)
        await stage.create("u", 3)
        keyed = [{"topic": "tu"[each % 2], "key": f"k{each}", "timestamp": 9000 + each} for each in range(5000)]
        plain = [{"topic": "t", "partition": 1, "value": 1}, {"topic": "u", "value": 2}, {"topic": "t", "value": 3}]
        async with serving(stage) as (web, client):
            begun = await (await client.post("transactions", json={"transactional_id": "x"})).json()
            path, told = f"transactions/{begun['txn']}", list[bytes]()

            async def put(number: int) -> ClientResponse:
                body = {"records": [keyed, plain][number % 2]}
                answer = await client.put(f"{path}/batches/{number}", json=body)
                assert answer.status == 200, await answer.text()
                return answer

            for number in range(6):
                if number == 3:
                    assert (await client.post("topics/t/partitions", json={"count": 7})).status == 200
                    assert (await client.post("topics/u/partitions", json={"count": 8})).status == 200
                told.append(await (await put(number)).read())
            places = {(each["topic"], each["partition"]) for answer in told for each in json.loads(answer)["results"]}
            assert len(places) == 7 + 8
            for number in range(6):
                again = await put(number)
                assert again.headers["Batch-Replayed"] == "true"
                assert await again.read() == told[number]
            known = web.gateway.open_transactions.find(name_of(begun["txn"]))
            assert known is not None
            assert len(pickle.dumps(known.batches)) < 5000
            assert (await (await client.post(f"{path}:commit")).json())["next_batch"] == 6

    on_stage(tmp_path, scene)


def test_what_open_transactions_keep_has_a_limit_and_one_that_reaches_it_stays_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they kept had none."""
    monkeypatch.setattr(service.web.transactions, "KEPT_BYTES_MAX", 20_000, raising=False)

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (web, client):

            async def begin(transactional_id: str) -> str:
                begun = await client.post("transactions", json={"transactional_id": transactional_id})
                assert begun.status == 201
                return f"transactions/{(await begun.json())['txn']}"

            async def put(path: str, number: int) -> int:
                return (await client.put(f"{path}/batches/{number}", json=batch_of(number))).status

            long, number = await begin("long"), 0
            while (status := await put(long, number)) == 200:
                number += 1
                assert number < 1000
            refused = await client.put(f"{long}/batches/{number}", json=batch_of(number))
            problem = await refused.json()
            assert (status, problem["type"], problem["outcome"]) == (429, "/problems/throttled", "none")
            assert (await client.put(f"{long}/offsets/g", json=offsets_of(7))).status == 429
            assert (await client.post("transactions", json={"transactional_id": "x" * 8000})).status == 429
            assert await put(long, 0) == 200, "it is there"
            short = await begin("short")
            assert await put(short, 0) == 200, "others go on"
            ended = await (await client.post(f"{long}:commit")).json()
            assert (ended["outcome"], ended["next_batch"]) == ("applied", number)
            again = await begin("long")
            assert [await put(again, each) for each in range(number // 2)] == [200] * (number // 2)
            assert await begin("long") != again
            for each in (short, await begin("long")):
                await client.post(f"{each}:abort")
            assert web.gateway.open_transactions.kept_bytes == 0

    on_stage(tmp_path, scene)


def test_who_does_not_steal_is_refused_also_while_the_first_batch_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator knew of no batch yet, and the broker of one by then: it was aborted."""

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (_, client):
            begun = await (await client.post("transactions", json={"transactional_id": "x"})).json()
            path = f"transactions/{begun['txn']}"
            find = service.client.transactions.find_transaction

            async def find_before(*asked: Any) -> Any:
                found = await find(*asked)
                assert (await client.put(f"{path}/batches/0", json=batch_of(0))).status == 200
                return found

            with monkeypatch.context() as patched:
                patched.setattr("service.web.transactions.find_transaction", find_before)
                answer = await client.post("transactions", json={"transactional_id": "x", "steal": False})
            assert answer.status == 409
            assert (await (await client.post(f"{path}:commit")).json())["outcome"] == "applied"

    on_stage(tmp_path, scene)


def test_who_does_not_steal_aborts_nothing_that_its_owner_begins_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked whether a transaction is open, and then, later, the id was taken over."""

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (server, client):
            owner = Producer(server.gateway, "x")  # as a Kafka client: nobody has begun anything over HTTP
            await owner.own()
            find = service.client.transactions.find_transaction

            async def find_before(*asked: Any) -> Any:
                found = await find(*asked)
                await owner.write([owner.build(TopicPartition("t", 0), [(b"k", b"v", (), 1)])])
                return found

            with monkeypatch.context() as patched:
                patched.setattr("service.web.transactions.find_transaction", find_before)
                answer = await client.post("transactions", json={"transactional_id": "x", "steal": False})
            problem = await answer.json()
            assert answer.status == 409, problem
            assert (problem["type"], problem["outcome"]) == ("/problems/concurrent-transactions", "none")
            await owner.end(commit=True)  # it would be refused

    on_stage(tmp_path, scene)


def test_a_transaction_that_was_committed_with_nothing_in_it_is_over(tmp_path: Path) -> None:
    """What came afterwards was written, and held readers up until its time was over. Its id is free for others."""

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (_, client):
            body = {"transactional_id": "x", "steal": False}
            begun = await (await client.post("transactions", json=body)).json()
            path = f"transactions/{begun['txn']}"
            for _ in range(2):
                ended = await client.post(f"{path}:commit")
                assert (ended.status, (await ended.json())["outcome"]) == (200, "none")
            for late in (
                await client.put(f"{path}/batches/0", json=batch_of(0)),
                await client.put(f"{path}/offsets/g", json=offsets_of(7)),
            ):
                problem = await late.json()
                assert (late.status, problem["outcome"]) == (409, "none"), problem
                assert "begin another" in problem["detail"]
            assert (await client.post("transactions", json=body)).status == 201

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(
    "then",
    [
        *("batch", "commit", "commit again", "batch after the commit", "race"),
        *("a commit that was refused before", "a commit of which nothing is known before"),
    ],
)
def test_a_transaction_of_which_a_topic_was_deleted_can_only_be_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Its next batch began in the middle of another topic of that name, and was answered with 500; and its commit was
    told to have applied what nobody will ever read.
    """
    is_committed = then in ("commit again", "batch after the commit")

    async def scene(stage: Stage) -> None:
        await stage.create("t", 1)
        async with serving(stage) as (_, client):
            begun = await (await client.post("transactions", json={"transactional_id": "x"})).json()
            path = f"transactions/{begun['txn']}"
            assert (await client.put(f"{path}/batches/0", json=batch_of(0))).status == 200
            if then in ("a commit that was refused before", "a commit of which nothing is known before"):
                failure = Problem("not-now") if "refused" in then else Problem("outcome-unknown", outcome="unknown")
                with monkeypatch.context() as refusing:
                    refusing.setattr(Producer, "end", AsyncMock(side_effect=failure))
                    assert (await client.post(f"{path}:commit")).status in (503, 504)
            if is_committed:  # nobody was told of it
                pair = begun["producer_id"], begun["epoch"]
                with monkeypatch.context() as lost:
                    lost.setattr(Producer, "end", AsyncMock(side_effect=Problem("outcome-unknown", outcome="unknown")))
                    assert (await client.post(f"{path}:commit")).status == 504
                assert (await stage.ask(EndTxnRequest("x", *pair, committed=True))).error_code == 0
            assert (await client.delete("topics/t")).status == 204
            assert (await client.post("topics", json={"name": "t", "partitions": 1})).status == 201
            if then == "race":  # the broker had not heard of it
                monkeypatch.setattr(Open, "lost", lambda *_: None)
            if then == "commit again":
                answer = await client.post(f"{path}:commit")
                assert (answer.status, (await answer.json())["outcome"]) == (200, "applied")
                return
            if "batch" in then or then == "race":
                refused = await client.put(f"{path}/batches/1", json=batch_of(1))
                problem = await refused.json()
                assert (refused.status, problem["type"]) == (409, "/problems/invalid-txn-state")
                assert problem["outcome"] == ("applied" if is_committed else "none")
            if is_committed:
                return
            refused = await client.post(f"{path}:commit")
            problem = await refused.json()
            assert (refused.status, problem["type"]) == (409, "/problems/invalid-txn-state")
            assert problem["outcome"] == ("unknown" if "nothing is known" in then else "none")
            assert "abort the transaction" in problem["detail"]
            assert "put it again" not in problem["detail"]
            aborted = await client.post(f"{path}:abort")
            assert (aborted.status, (await aborted.json())["outcome"]) == (200, "none")

    on_stage(tmp_path, scene)


def deciding(count: int) -> Any:
    """A request that throws so many branches away."""
    body = {"commit": False, "branches": [{"name": f"p{each}", "producer_id": 1, "epoch": 1} for each in range(count)]}
    request: Any = Coming(json.dumps(body).encode())
    request.match_info = {"root": "r", "token": "5"}
    return request


def test_many_branches_are_named_in_turns_of_the_loop() -> None:
    """One turn took 25 ms."""
    gateway: Any = SimpleNamespace(ask_to_change=AsyncMock(return_value=(EndBranchesResponse(), False)))
    assert turns_of(decide(gateway, deciding(MAX_BRANCHES))) >= MAX_BRANCHES // NAMED_A_TURN
    ((_, _, asked), _) = gateway.ask_to_change.call_args
    assert [each.transactional_id for each in asked.branches] == [f"r::5/p{each}" for each in range(MAX_BRANCHES)]


def test_more_branches_than_a_decision_may_name_are_not_sent_to_its_coordinator() -> None:
    gateway: Any = SimpleNamespace(ask_to_change=AsyncMock(return_value=(EndBranchesResponse(), False)))
    with pytest.raises(Problem, match="more than") as raised:
        asyncio.run(decide(gateway, deciding(MAX_BRANCHES + 1)))
    assert (raised.value.slug, raised.value.outcome) == ("invalid-request", "none")
    gateway.ask_to_change.assert_not_called()


# -- reading


@pytest.mark.parametrize("at", [0, 4, 5, 9])
def test_damage_is_told_with_its_place(at: int) -> None:
    """It was told with where its reader had begun: that was read by others."""
    batches = [bytearray(build_batch([(b"k", b"v", (), 1000)] * 2, base_offset=2 * each)) for each in range(5)]
    record_bytes = (len(batches[0]) - HEADER_BYTES) // 2
    batches[at // 2][HEADER_BYTES + at % 2 * record_bytes] = 0x7E  # it is said to be longer than the batch

    async def scenario() -> None:
        held, piece = Held(Holder(Holding(1 << 30))), Piece(WHERE, 0, data=b"".join(batches))
        async for _ in opened(cast(Gateway, None), piece, 0, LENS, 100, held):
            pass

    with pytest.raises(Problem, match=f"is damaged at offset {at}:"):
        asyncio.run(scenario())


def test_many_small_batches_are_opened_in_turns_of_the_loop() -> None:
    data = b"".join(build_batch([(b"k", b"v", (), 1000)], base_offset=each) for each in range(5000))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def scenario() -> int:
        task = asyncio.create_task(others())
        held, piece = Held(Holder(Holding(1 << 30))), Piece(WHERE, 0, data=data)
        positions = [each async for _, each in opened(cast(Gateway, None), piece, 0, LENS, 10, held)]
        task.cancel()
        return positions[-1]

    assert asyncio.run(scenario()) == 5000
    assert turns >= 4
