"""What requests hold of memory is bounded over all connections, and small ones are served all the while."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from sys import getrefcount
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest
from aiohttp import web
from yarl import URL

from isolation.read_view import Isolation
from log.batch import Record, build_batch, read_header
from log.compress import Codec
from log.disk import FileSlice
from log.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from service.client.failures import ClientFailure, FailureKind
from service.settings.broker import Endpoint
from service.turns import ALONE
from service.web import (
    app,
    consuming,
    event_format,
    fetching,
    following,
    forwarding,
    holding,
    instances,
    lane,
    members,
    transactions,
)
from service.web.answers import list_in_turns
from service.web.app import WebServer
from service.web.fetching import PORTION_BYTES, READ_BYTES_MAX, Held, Lens, Piece, fetch, opened
from service.web.gateway import Gateway
from service.web.holding import HOLDER, SMALL_BYTES, Holder, Holding
from service.web.pages import facts
from service.web.problems import Problem
from service.web.records import HEADERS_MAX, RecordOut, shown, with_text_numbers
from service.web.routing import ENDED
from service.web.taking import Given
from service.wire.error_codes import ErrorCode
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.web.kit import PATIENCE_S, TURN_S, Coming, longest_turn_s, turns_of

MOST_BYTES = 4_000_000
HEAD = b"POST /v1/topics/held/records HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nContent-Type: application/json\r\n"
PAGE = b"GET /v1/topics/held/partitions/0/records?max_bytes=16777216 HTTP/1.1\r\nHost: x\r\n\r\n"
PUT = b"PUT /v1/transactions/1-0-aGVsZA/batches/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
LONG = b'{"records":[{"value":"' + b"x" * 900_000


def posted(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


SMALL = posted(b'{"records":[{"value":"%b"}]}' % (b"y" * (SMALL_BYTES - 27)))
"""A request whose body is as long as a body may be that always finds room."""


class Place:
    """A server whose requests may hold little together."""

    def __init__(self, stage: Stage, server: app.WebServer) -> None:
        self.cluster = stage.broker.metadata.image.cluster_id.encode()
        self.where = "127.0.0.1", server.endpoints[0].port
        self._server = server
        self.gateway, self.holding, self.lanes = server.gateway, server.gateway.holding, server._lanes

    @property
    def connections(self) -> int:
        server = self._server._runner.server
        assert server is not None
        return len(server.connections)

    async def told(self, request: bytes) -> bytes:
        """The first line of the answer, once it has come as a whole."""
        from_server, to_server = await asyncio.open_connection(*self.where)
        to_server.write(request)
        head = await from_server.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        await from_server.readexactly(length)
        to_server.close()
        return head.partition(b"\r\n")[0]

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def unread(self, stack: AsyncExitStack, request: bytes) -> socket.socket:
        """A client that asks and takes nothing but the first bytes of the answer."""
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, self.where)
        await loop.sock_sendall(client, request)
        assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
        return client


def held(folder: Path, scene: Callable[[Place], Awaitable[None]], most_bytes: int = MOST_BYTES) -> None:
    async def play(stage: Stage) -> None:
        await stage.create("held")
        stage.broker.config.queued_max_request_bytes = most_bytes
        server = app.WebServer(stage.broker, connections_max=50)
        await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        try:
            async with asyncio.timeout(PATIENCE_S):
                place = Place(stage, server)
                await scene(place)
                await place.until(lambda: not place.holding.bytes and not place.holding.holders)
        finally:
            await server.stop()

    on_stage(folder, play)


@asynccontextmanager
async def bodies(place: Place, count: int, request: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Bodies that do not come on."""
    pairs = []
    for _ in range(count):
        pairs.append(await asyncio.open_connection(*place.where))
        pairs[-1][1].write(request)
    try:
        yield [reader for reader, _ in pairs]
    finally:
        for _, writer in pairs:
            writer.close()


async def told_by_now(reader: asyncio.StreamReader) -> bytes:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            return await reader.read(1 << 16)
    return b""


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (HEAD + b"Content-Length: 9000000\r\n\r\n", LONG),
        (HEAD.replace(b"application/json", b"application/x-ndjson") + b"Content-Length: 9000000\r\n\r\n", LONG),
        (
            HEAD.replace(b"/v1/topics/held/records", b"/ui/topics/held/produce") + b"Content-Length: 9000000\r\n\r\n",
            b"value=" + b"x" * 900_000,
        ),
        (
            HEAD.replace(b"/v1/topics/held", b"/v3/clusters/CLUSTER/topics/held") + b"Content-Length: 9000000\r\n\r\n",
            b'{"value":{"type":"STRING","data":"' + b"x" * 900_000,
        ),
    ],
    ids=["as a whole", "lines", "a page's form", "version 3"],
)
def test_bodies_that_do_not_come_on_are_ended_for_others(tmp_path: Path, head: bytes, body: bytes) -> None:
    """Those that hold most for longest. Small requests are answered all the while, and long ones after a moment."""

    async def scene(place: Place) -> None:
        async with bodies(place, 8, head.replace(b"CLUSTER", place.cluster) + body) as slow:
            await place.until(lambda: place.holding.bytes > 2 << 20)
            for _ in range(20):
                assert await place.told(SMALL) == b"HTTP/1.1 200 OK"
                assert place.holding.bytes <= MOST_BYTES
                await asyncio.sleep(0.1)
            assert await place.told(posted(LONG + b'"}]}')) == b"HTTP/1.1 200 OK"
            ended = [await told_by_now(each) for each in slow]
            assert 4 <= sum(b"all the memory" in each for each in ended) < 8

    held(tmp_path, scene)


async def filled(place: Place) -> None:
    """14 MB are there to read."""
    for _ in range(20):
        body = json.dumps({"records": [{"value": "x" * 100_000}] * 7}).encode()
        assert await place.told(posted(body)) == b"HTTP/1.1 200 OK"


def test_a_page_that_nobody_reads_holds_one_piece(tmp_path: Path) -> None:
    """60 of them held 1.8 GB, each its whole answer."""

    async def scene(place: Place) -> None:
        await filled(place)
        async with AsyncExitStack() as stack:
            for _ in range(10):
                await place.unread(stack, PAGE)
            await place.until(lambda: len(place.holding.holders) == 10)
            await asyncio.sleep(0.3)
            assert place.holding.bytes < 10 * 1_500_000
            assert place.connections == 10, "there was room for all"

    held(tmp_path, scene, most_bytes=16_000_000)


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.GZIP, Codec.LZ4])
def test_what_is_read_of_well_packed_records_is_bounded(codec: Codec) -> None:
    """A page of 16 MiB held 7 GB in one piece: only what was stored was counted. It stops, and is gone on with."""
    batch = build_batch([(None, bytes(100_000), (), 1000)] * 1000, codec=codec)
    piece, lens = Piece(TopicPartition("held", 0), 0, data=batch), Lens()

    async def scene() -> None:
        holding_all, env = Holding(1 << 30), SimpleNamespace(blocking=asyncio.to_thread)
        gateway, most_bytes, offset, turns = cast(Gateway, SimpleNamespace(env=env)), 0, 0, 0
        while offset < 1000:
            held, before, turns = Held(Holder(holding_all)), offset, turns + 1
            await held.take(stored=len(batch))
            async for records, next_offset in opened(gateway, piece, before, lens, 10_000, held):
                offset = next_offset
                assert len(records) * 100_000 < 2 * PORTION_BYTES
                most_bytes = max(most_bytes, holding_all.bytes)
                assert holding_all.bytes > 100_000_000, "the batch is there, unpacked"
            assert (offset - before) * 100_000 < READ_BYTES_MAX + PORTION_BYTES
            assert held.unpacked_bytes == 0
            held.holder.hold(0)
        assert turns == 6
        assert most_bytes < 100_000_000 + 3 * READ_BYTES_MAX
        full = Holding(1 << 20)
        await Holder(full).take(900_000)

        async def within(unpack: partial[bytes]) -> bytes:
            assert unpack.keywords["limit_bytes"] < 1 << 20, "there is no room for it"
            return unpack()

        env.blocking = within
        with pytest.raises(Problem, match="all the memory"):
            [each async for each in opened(gateway, piece, 0, lens, 10_000, Held(Holder(full)))]

    asyncio.run(scene())


def read(batch: bytes, lens: Lens, most_bytes: int = 1 << 30) -> tuple[list[RecordOut], float]:
    """What is shown of a batch, and how long the longest turn took."""
    piece, found = Piece(TopicPartition("held", 0), 0, data=batch), list[Any]()

    async def work() -> None:
        gateway = cast(Gateway, SimpleNamespace(env=SimpleNamespace(blocking=asyncio.to_thread)))
        async for records, _ in opened(gateway, piece, 0, lens, 10_000, Held(Holder(Holding(most_bytes)))):
            found.extend(records)

    longest_s = longest_turn_s(work())
    return found, longest_s


def test_records_of_very_many_headers_are_shown_in_turns() -> None:
    """Ten million headers are packed in 2 KB. They were opened in one turn of 10 s, and counted after that."""
    very_many = tuple(("", None) for _ in range(1_000_000))
    batch = build_batch([(None, b"v", very_many, 1000), (None, b"w", (("a", b"b"),), 1000)], codec=Codec.ZSTD)
    (first, second), longest_s = read(batch, Lens())
    assert longest_s < TURN_S
    assert first.headers == [{"name": "", "value": None}] * HEADERS_MAX
    assert first.headers_cut
    assert second.headers == [{"name": "a", "value": "b"}]
    assert not second.headers_cut
    assert b"headers_cut" not in msgspec.json.encode(second)
    batch = build_batch([(None, b"v", very_many[:HEADERS_MAX], 1000)] * 100, codec=Codec.ZSTD)
    found, longest_s = read(batch, Lens(key=b"none"))
    assert not found
    assert longest_s < TURN_S
    found, longest_s = read(batch, Lens())
    assert 5 < len(found) < 20, "a header counts as what is made of it"
    assert not any(each.headers_cut for each in found)
    assert longest_s < TURN_S


def test_messages_on_pages_are_opened_as_they_are_looked_at() -> None:
    """All records of a batch were a list before the first was looked at, with all their headers, and not counted."""
    many = tuple(("", None) for _ in range(1_000_000))
    batch = build_batch([(None, b"v", many, 1000)] + [(None, b"w", (), 1000)] * 100_000, codec=Codec.ZSTD)
    found: list[Record] = []

    async def work() -> None:
        gateway = cast(Gateway, SimpleNamespace(env=SimpleNamespace(blocking=asyncio.to_thread)))
        held = Held(Holder(Holding(1 << 30)))
        async for record in facts._opened(gateway, memoryview(batch), read_header(batch), held):
            assert held.unpacked_bytes > 2_000_000
            found.append(record)

    assert longest_turn_s(work()) < TURN_S
    assert len(found) == 100_001
    assert len(found[0].headers) == facts.HEADERS_SHOWN + 1


@pytest.mark.parametrize("as_events", [False, True])
def test_long_numbers_become_text_in_turns(as_events: bool) -> None:
    """Those of a whole piece were found in one turn of 3 s."""
    value = b'[{"\\"1":"%d", "n": %d},%b -%d]' % (2**60, 2**60, b"1234567890123456," * 150_000, 2**53)
    batch = build_batch([(None, value, (), 1000)] * 2 + [(None, b"[%d]" % 2**53, (), 1000)] * 9_000)
    found, longest_s = read(batch, Lens(text_numbers=True, as_events=as_events))
    assert longest_s < TURN_S
    first, *_, last = (each.content["data"] if as_events else each.value for each in cast(list[Any], found))
    assert bytes(first) == value.replace(b" %d}" % 2**60, b' "%d"}' % 2**60).replace(b"-%d" % 2**53, b'"-%d"' % 2**53)
    assert bytes(last) == b'["%d"]' % 2**53


@pytest.mark.parametrize(("text_numbers", "least_turns"), [(False, 10), (True, 100)])
def test_what_is_little_of_each_of_many_partitions_is_opened_in_turns_and_counted(
    text_numbers: bool, least_turns: int
) -> None:
    """An answer of 14 MB was made in one turn of 1.3 s, and nothing of it was counted."""
    value, lens = b"[" + b"1234567890123456789," * 1400 + b"1]", Lens(text_numbers=text_numbers)
    batch = build_batch([(None, value, (), 1000)])
    holder, found = Holder(Holding(1 << 30)), list[Any]()

    async def work() -> None:
        held = Held(holder)
        for index in range(500):
            piece = Piece(TopicPartition("held", index), 0, data=batch)
            async for records, _ in opened(cast(Gateway, None), piece, 0, lens, 10_000, held):
                found.extend(records)

    assert turns_of(work()) > least_turns
    assert len(found) == 500
    assert holder.bytes > 2 * 500 * len(value) - SMALL_BYTES


def test_a_batch_of_events_is_read_as_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB of it were read before it was asked for room."""
    read_bytes = []

    async def reading(*arguments: Any, **more: Any) -> list[Piece]:
        found = await fetch(*arguments, **more)
        read_bytes.append(sum(len(piece.data) for piece in found))
        return found

    monkeypatch.setattr(consuming, "fetch", reading)

    async def scene(place: Place) -> None:
        await filled(place)
        others = Holder(place.holding)
        await others.take(3_900_000)
        asked = PAGE.replace(b"\r\n\r\n", b"\r\nAccept: application/cloudevents-batch+json\r\n\r\n")
        from_server, to_server = await asyncio.open_connection(*place.where)
        to_server.write(asked)
        assert (await from_server.readline()).startswith(b"HTTP/1.1 503")
        assert not read_bytes
        to_server.close()
        others.hold(0)
        from_server, to_server = await asyncio.open_connection(*place.where)
        to_server.write(asked)
        assert b"Next-Offset: 140\r" in await from_server.readuntil(b"\r\n\r\n")
        assert max(read_bytes) < 2 << 20
        to_server.close()

    held(tmp_path, scene)


def test_a_stream_that_nobody_reads_holds_what_was_sent_last_and_goes_on_behind_it(tmp_path: Path) -> None:
    """What was read behind it stayed, 1.4 MB for each of them."""
    follow = b"GET /v1/topics/held/stream?from=earliest HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n\r\n"

    async def scene(place: Place) -> None:
        await filled(place)
        async with AsyncExitStack() as stack:
            clients = [await place.unread(stack, follow) for _ in range(10)]
            await place.until(lambda: len(place.holding.holders) == 10)
            await asyncio.sleep(3 * following.STALLED_S)
            assert place.holding.bytes < 10 * 3 * following.TOLD_BYTES
            assert place.connections == 10
            clients[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            told = bytearray()
            while b'"offset":139,' not in told[-200_000:]:
                told += await asyncio.get_running_loop().sock_recv(clients[0], 1 << 20)
            assert [int(each) for each in re.findall(rb'"offset":(\d+),', told)] == list(range(140))

    held(tmp_path, scene, most_bytes=16_000_000)


def test_a_stream_whose_reports_are_not_taken_is_cut_off_for_others(tmp_path: Path) -> None:
    """Nobody could end it, and its lines did not count: 40 of them held 200 MB."""
    lines = b"aa\n" * 80_000
    request = HEAD.replace(b"application/json", b"application/x-ndjson")
    request += b"Content-Length: %d\r\n\r\n" % len(lines) + lines

    async def scene(place: Place) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await place.unread(stack, request)
            await place.until(lambda: place.holding.bytes > 3 << 20)
            while await place.told(posted(LONG + b'"}]}')) != b"HTTP/1.1 200 OK":  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # the systems of both ends still take reports
            assert place.connections < 4

    held(tmp_path, scene)


def test_an_answer_that_is_not_taken_is_cut_off_for_others(tmp_path: Path) -> None:
    async def scene(place: Place) -> None:
        await filled(place)
        async with AsyncExitStack() as stack:
            for _ in range(10):
                await place.unread(stack, PAGE)
            await place.until(lambda: place.connections < 8)
            assert place.holding.bytes <= MOST_BYTES
            assert await place.told(SMALL) == b"HTTP/1.1 200 OK"
            assert await place.told(posted(LONG + b'"}]}')) == b"HTTP/1.1 200 OK"

    held(tmp_path, scene)


def test_a_long_body_on_the_short_way_comes_by_the_general_way_when_many_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand connections held a gigabyte there."""
    monkeypatch.setattr(lane, "COMING_BYTES", 2 << 20)
    short = HEAD.replace(b"X-A: 1\r\n", b"")
    body = b'{"records":[{"value":"' + b"x" * 900_000 + b'"}]}'
    first = short + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-100]

    async def scene(place: Place) -> None:
        async with bodies(place, 8, first) as slow:
            await place.until(lambda: place.lanes.coming_bytes > 1 << 20 and place.holding.bytes > 2 << 20)
            await asyncio.sleep(2 * holding.PATIENCE_S)
            assert place.lanes.coming_bytes <= 2 << 20
            assert place.holding.bytes <= MOST_BYTES
            ended = [await told_by_now(each) for each in slow]
            assert [each[:12] for each in ended if each] == [b"HTTP/1.1 503"] * 2, (
                "those on the short way are left alone"
            )
            assert await place.told(SMALL.replace(b"X-A: 1\r\n", b"")) == b"HTTP/1.1 200 OK"
        await place.until(lambda: place.lanes.coming_bytes == 0)
        assert await place.told(first + body[-100:]) == b"HTTP/1.1 200 OK"
        assert place.lanes.coming_bytes == 0

    held(tmp_path, scene)


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_another_broker_tells_comes_through_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_cut: bool
) -> None:
    """What it tells of has been done: the outcome `none` would be untrue, and the client would ask again."""
    content = b'{"outcome":"applied","results":"%b"}' % (b"x" * 900_000)

    async def elsewhere(*_: object) -> int:
        return 2

    async def scene(place: Place) -> None:
        async def other(_: object, to_broker: asyncio.StreamWriter) -> None:
            to_broker.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content))
            to_broker.write(content[: 800_000 if is_cut else None])
            to_broker.close()

        server = await asyncio.start_server(other, "127.0.0.1", 0)
        url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        monkeypatch.setattr(forwarding, "url_of", lambda *_: url)
        monkeypatch.setattr(transactions, "_elsewhere", elsewhere)
        others = Holder(place.holding)
        await others.take(MOST_BYTES)
        from_server, to_server = await asyncio.open_connection(*place.where)
        to_server.write(PUT)
        head = await from_server.readuntil(b"\r\n\r\n")
        length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
        told = await from_server.readexactly(length)
        if is_cut:
            assert json.loads(told)["outcome"] == "unknown"
        else:
            assert (head[:12], told) == (b"HTTP/1.1 200", content)
        to_server.close()
        server.close()
        others.hold(0)

    held(tmp_path, scene)


def test_a_request_alone_holds_what_it_needs_and_a_small_one_finds_room_always() -> None:
    async def scene() -> None:
        holding_all = Holding(100_000)
        large, small, other = (Holder(holding_all) for _ in range(3))
        await large.take(1_000_000)
        await small.take(SMALL_BYTES)
        assert holding_all.bytes == 1_000_000
        with pytest.raises(Problem) as refused:
            await other.take(SMALL_BYTES + 1)  # what is being served is not ended
        assert (refused.value.slug, refused.value.outcome) == ("not-now", "none")
        large.hold(0)
        await other.take(SMALL_BYTES + 1)
        assert holding_all.bytes == SMALL_BYTES + 1

    asyncio.run(scene())


def test_a_body_waits_for_room_and_goes_on_when_there_is_some() -> None:
    async def scene() -> None:
        holding_all = Holding(100_000)
        served, coming = Holder(holding_all), Holder(holding_all)
        await served.take(90_000)
        waiting = asyncio.ensure_future(coming.take(60_000))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        served.hold(40_000)
        await waiting
        assert (holding_all.bytes, list(holding_all.holders)) == (100_000, [served, coming])

    asyncio.run(scene())


def test_the_one_whose_client_has_not_moved_for_longest_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "PATIENCE_S", 0.1)

    async def scene() -> None:
        holding_all = Holding(300_000)
        slow, fresh, large, served = (Holder(holding_all) for _ in range(4))
        never = asyncio.Event()
        await served.take(100_000)
        await slow.take(50_000)
        slow_comes = asyncio.ensure_future(slow.come(never.wait()))
        await asyncio.sleep(0.5)
        await fresh.take(60_000)  # more, and not for long
        fresh_comes = asyncio.ensure_future(fresh.come(never.wait()))
        await large.take(90_000)
        await large.take(130_000)
        assert (slow_comes.done(), fresh_comes.done()) == (False, False), "it takes effect in the next turn"
        with pytest.raises(Problem, match="all the memory"):
            await slow_comes
        assert (fresh_comes.done(), holding_all.bytes) == (False, 290_000)
        fresh_comes.cancel()

    asyncio.run(scene())


def test_a_consumer_that_finds_no_room_holds_nothing_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had fetched was counted for ever, more with each try, and it tried 50 times a second. It waits for room
    each time as if it were the first.
    """
    monkeypatch.setattr(holding, "PATIENCE_S", 0.1)
    partition = TopicPartition("held", 0)
    data = build_batch([(None, bytes(1_000_000), (), 1000)] * 20, codec=Codec.ZSTD)
    data += build_batch([(None, random.Random(1).randbytes(900_000), (), 1000)])

    async def fetched(*asked: Any) -> list[Piece] | None:
        return [Piece(partition, 0, data=data)] if asked[4].takes(len(data)) else None

    monkeypatch.setattr(fetching, "_fetch_there", fetched)
    wishes = SimpleNamespace(form=instances.Form.BINARY, min_bytes=1)
    instance = SimpleNamespace(positions={partition: 0}, ids={"held": ZERO_TOPIC_ID}, wishes=wishes)
    image = SimpleNamespace(partition=lambda _: SimpleNamespace(leader=1))
    gateway = SimpleNamespace(image=image, env=SimpleNamespace(blocking=asyncio.to_thread), node_id=0)

    async def scene() -> None:
        holding_all = Holding(20 << 20)
        others, holder = Holder(holding_all), Holder(holding_all)
        await others.take(10 << 20)
        answer = instances.RecordsAnswer(cast(Gateway, gateway), holder, cast(Any, instance), 1 << 20)
        loop = asyncio.get_running_loop()
        for _ in range(3):
            began_s = loop.time()
            with pytest.raises(Problem, match="all the memory"):
                await answer.take(0, loop.time() + 60.0)
            assert holder.bytes == 0
            assert loop.time() - began_s > 0.09
        others.hold(0)
        await answer.take(0, loop.time() + 60.0)
        assert [each.offset for each in answer.records] == [0]
        assert holder.bytes < 5 << 20

    asyncio.run(scene())


def test_an_answer_is_dropped_before_it_is_told_that_it_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was held for as long as the other broker could not be told, and counted nowhere."""
    monkeypatch.setattr(web.StreamResponse, "prepare", AsyncMock(side_effect=ConnectionResetError))
    gateway = SimpleNamespace(holding=Holding(1 << 30))
    answers, told = list[bytes](), list[Given | None]()

    def lost(given: Given | None) -> None:
        (body,) = answers
        assert getrefcount(body) == ALONE + 1, "the list has it, and nobody else"
        told.append(given)

    async def answered(request: web.Request) -> web.StreamResponse:
        request[ENDED] = lost
        answers.append(bytes(1_000_000))
        return web.Response(body=answers[0])

    async def scene() -> None:
        request: Any = Coming(b"")
        request.method = "GET"
        await WebServer._held(cast(Any, SimpleNamespace(gateway=gateway)), request, answered)

    asyncio.run(scene())
    assert told == [None]


class Transport:
    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def given(holder: Holder, size_bytes: int, stack: ExitStack) -> Transport:
    """Its client does not take the answer."""
    transport = Transport()
    stack.enter_context(holder.given(size_bytes, cast(asyncio.Transport, transport)))
    return transport


def test_nobody_is_ended_where_that_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that waited for their clients were ended, and there was no room even so: each second again, for a stream."""
    monkeypatch.setattr(holding, "PATIENCE_S", 0.05)

    async def scene() -> None:
        holding_all = Holding(300_000)
        served, first, second, coming = (Holder(holding_all) for _ in range(4))
        await served.take(200_000)
        with ExitStack() as stack:
            waiting = [given(first, 40_000, stack), given(second, 40_000, stack)]
            with pytest.raises(Problem, match="all the memory"):
                await coming.take(100_001)
            given(coming, 100_001, stack)
            assert [each.is_aborted for each in waiting] == [False, False]
            assert holding_all.bytes == 380_001
            coming.hold(0)
            await coming.take(60_000)  # one of them is enough
            assert [each.is_aborted for each in waiting] == [True, False]
            await coming.take(100_000)  # as much as all of them give
            assert [each.is_aborted for each in waiting] == [True, True]

    asyncio.run(scene())


def test_who_needs_more_room_is_not_ended_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that was writing what one leader had was cut off when there was no room for what came of another."""
    monkeypatch.setattr(holding, "PATIENCE_S", 0.05)

    async def scene() -> None:
        holding_all = Holding(300_000)
        served, stream = Holder(holding_all), Holder(holding_all)
        await served.take(200_000)
        with ExitStack() as stack:
            transport = given(stream, 60_000, stack)
            with pytest.raises(Problem, match="all the memory"):
                await stream.take(120_000)
            assert not transport.is_aborted

    asyncio.run(scene())


class Request(dict[object, Holder]):
    transport: object = "its client is there"


class Packed:
    """A partition of well packed records, and who reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, counts: Sequence[int], size_bytes: int, at_once: int) -> None:
        self.partition = TopicPartition("held", 0)
        self.unpacked_bytes, self.request = list[int](), Request({HOLDER: Holder(Holding(1 << 30))})
        self._at_once, self._batches, end = at_once, list[tuple[int, bytes]](), 0
        for count in counts:
            records = [(b"k", bytes(size_bytes), (), 1000)] * count
            batch = build_batch(records, base_offset=end, codec=Codec.ZSTD)
            end += count
            self._batches.append((end, batch))
        self.end = end
        monkeypatch.setattr(consuming, "fetch", self._fetch)
        unpacked = fetching.unpacked

        async def counted(*arguments: Any) -> bytes:
            payload = await unpacked(*arguments)
            self.unpacked_bytes.append(len(payload))
            return payload

        monkeypatch.setattr(fetching, "unpacked", counted)

    async def _fetch(self, _: object, __: int, positions: dict[TopicPartition, int], *more: Any, **_____: Any) -> Any:
        await asyncio.sleep(0)
        behind = [batch for end, batch in self._batches if end > positions[self.partition]]
        data = b"".join(behind[: self._at_once])
        assert more[-1].takes(stored=len(data))
        return [Piece(self.partition, 0, 0, self.end, self.end, None, data)]

    def reading(self, lens: Lens, offset: int) -> consuming.PageReading:
        gateway = SimpleNamespace(leader=lambda _: 1, env=SimpleNamespace(blocking=asyncio.to_thread))
        gateway.same_topic = lambda name, topic_id: None
        most = 10_000, consuming.PAGE_BYTES_MAX
        return consuming.PageReading(
            cast(Gateway, gateway), cast(Any, self.request), self.partition, ZERO_TOPIC_ID, lens, offset, *most
        )


@pytest.mark.parametrize("at_once", [1, 100])
def test_a_page_with_a_filter_looks_through_so_much_as_unpacked(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """16 MiB as stored were looked through, for a minute: gigabytes, of which nothing was shown."""
    packed = Packed(monkeypatch, [20] * 30, 1_000_000, at_once)

    async def scene() -> None:
        offset = pages = 0
        while offset < packed.end:
            before = len(packed.unpacked_bytes)
            reading = packed.reading(Lens(key=b"none"), offset)
            assert await reading.next_piece(0) == ([], True)
            assert reading.offset > offset
            offset, pages = reading.offset, pages + 1
            assert sum(packed.unpacked_bytes[before:]) < fetching.LOOKED_AT_BYTES_MAX + 21_000_000
        assert (pages, len(packed.unpacked_bytes)) == (5, 30)

    asyncio.run(scene())


def test_a_page_is_given_up_when_its_client_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked for to the end, and its room was missing for others."""
    packed = Packed(monkeypatch, [20] * 30, 1_000, 1)

    async def scene() -> None:
        reading = packed.reading(Lens(key=b"none"), 0)
        piece = asyncio.ensure_future(reading.next_piece(0))
        while len(packed.unpacked_bytes) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        packed.request.transport = None
        with pytest.raises(Problem, match="the client is gone"):
            await piece
        assert len(packed.unpacked_bytes) < 6

    asyncio.run(scene())


def test_a_page_in_pieces_ends_when_it_has_read_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 16 MiB as stored told gigabytes of records, piece by piece. None is left out, and none comes twice."""
    packed = Packed(monkeypatch, [7] * 100, 100_000, 3)

    async def scene() -> None:
        offsets = list[int]()
        while len(offsets) < packed.end:
            reading, is_over, before = packed.reading(Lens(), len(offsets)), False, len(offsets)
            while not is_over:
                records, is_over = await reading.next_piece(0)
                offsets += [record.offset for record in records]
                reading.held.records_bytes = 0  # the piece is told
            assert reading.offset == len(offsets)
            assert (len(offsets) - before) * 100_000 < READ_BYTES_MAX + 3 * PORTION_BYTES
        assert offsets == list(range(packed.end))

    asyncio.run(scene())


def test_a_poll_gives_what_there_was_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had read of one partition was thrown away, each time, when a batch of another found no room."""
    monkeypatch.setattr(holding, "PATIENCE_S", 0.05)
    first, second = (TopicPartition("held", index) for index in range(2))
    small = build_batch([(None, b"%d" % each, (), 1000) for each in range(3)])
    large = build_batch([(None, bytes(1_000_000), (), 1000)] * 20, codec=Codec.ZSTD)

    async def fetched(*asked: Any) -> list[Piece]:
        pieces = [Piece(first, 0, data=small)] if first in asked[2] else []
        pieces.append(Piece(second, 0, data=large))
        assert asked[4].takes(sum(len(piece.data) for piece in pieces))
        return pieces

    monkeypatch.setattr(fetching, "_fetch_there", fetched)
    image = SimpleNamespace(partition=lambda _: SimpleNamespace(leader=1))
    env = SimpleNamespace(blocking=asyncio.to_thread)
    gateway = cast(Gateway, SimpleNamespace(image=image, env=env, node_id=0))
    member = SimpleNamespace(positions={first: 0, second: 0}, ids={})

    async def scene() -> None:
        holding_all = Holding(20 << 20)
        others, holder = Holder(holding_all), Holder(holding_all)
        await others.take(10 << 20)
        records, moved = await members._read(gateway, holder, cast(Any, member), Lens(), 100, 1 << 20, 0, 0.0)
        assert [each.offset for each in cast(list[Any], records)] == [0, 1, 2]
        assert moved == {first: 3}
        del member.positions[first]
        with pytest.raises(Problem, match="all the memory"):
            await members._read(gateway, holder, cast(Any, member), Lens(), 100, 1 << 20, 0, 0.0)

    asyncio.run(scene())


def test_what_is_fetched_is_read_as_there_is_room_and_readers_are_not_in_the_way_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them had up to 16 MiB before any asked for room, and most were refused: each held the first part of what
    it needed.
    """
    reads: list[int] = []
    read = FileSlice.read

    def reading(stored: FileSlice) -> bytes:
        reads.append(stored.size)
        return read(stored)

    monkeypatch.setattr(FileSlice, "read", reading)

    async def scene(place: Place) -> None:
        await filled(place)
        gateway, ids = place.gateway, {"held": place.gateway.topic("held").id}
        member = SimpleNamespace(positions={TopicPartition("held", 0): 0}, ids=ids)
        most_bytes = 0

        async def poll() -> int:
            nonlocal most_bytes
            with place.holding.of_request() as holder:
                records, _ = await members._read(gateway, holder, cast(Any, member), Lens(), 10_000, 16 << 20, 0, 0.0)
                most_bytes = max(most_bytes, place.holding.bytes)
                await asyncio.sleep(0.02)  # it is being given
                return len(records)

        reads.clear()
        polls = [asyncio.ensure_future(poll()) for _ in range(20)]
        await asyncio.sleep(0)
        while not reads:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert sum(reads) <= MOST_BYTES
        told = await asyncio.gather(*polls, return_exceptions=True)
        assert all(isinstance(each, int) and each > 0 for each in told), told
        assert most_bytes <= MOST_BYTES

    held(tmp_path, scene)


def test_a_record_for_which_there_is_no_room_is_dropped_before_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However little is asked for, a leader gives the first record as a whole. It is fetched again when there is room
    for it; a failure, or the end of a reader, leaves nothing that is counted.
    """
    monkeypatch.setattr(holding, "PATIENCE_S", 0.1)
    partition = TopicPartition("held", 0)
    data = build_batch([(None, bytes(3_000_000), (), 1000)])
    asked: list[int] = []

    async def fetched(*given: Any) -> list[Piece] | None:
        asked.append(given[5])
        return [Piece(partition, 0, data=data)] if given[4].takes(len(data)) else None

    monkeypatch.setattr(fetching, "_fetch_there", fetched)
    gateway = cast(Gateway, SimpleNamespace(node_id=0))

    async def scene() -> None:
        holding_all = Holding(20 << 20)
        others, holder = Holder(holding_all), Holder(holding_all)
        await others.take(15 << 20)
        mine = Held(holder)
        read = partial(
            fetch, gateway, 1, {partition: 0}, {}, Isolation.READ_COMMITTED, mine, max_bytes=16 << 20, wait_ms=0
        )
        with pytest.raises(Problem, match="all the memory"):
            await read()
        assert (mine.bytes, holder.bytes) == (0, 0)
        assert asked == [(5 << 20) // 3, 256 << 10]
        waits = asyncio.ensure_future(read())
        await asyncio.sleep(0.02)
        assert (len(asked), mine.bytes) == (4, 0)
        waits.cancel()
        await asyncio.wait([waits])
        assert (mine.bytes, holder.bytes) == (0, 0)
        waits = asyncio.ensure_future(read())
        await asyncio.sleep(0.02)
        others.hold(0)
        (piece,) = await waits
        assert (len(piece.data), mine.stored_bytes, holder.bytes) == (len(data), len(data), 3 * len(data))
        mine.drop([piece])
        assert (mine.bytes, holding_all.bytes) == (0, 0)

    asyncio.run(scene())


@pytest.mark.parametrize("first", [1, 2])
def test_nobody_waits_for_room_for_one_leaders_records_and_holds_those_of_another(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Readers of two leaders were in the way of each other for a second, and then some were refused."""
    monkeypatch.setattr(holding, "PATIENCE_S", 60.0)
    partitions = {node: TopicPartition("held", node) for node in (1, 2)}
    sizes = {1: 300_000, 2: 3_000_000}

    async def fetched(*given: Any) -> list[Piece] | None:
        node, room = given[1], given[4]
        if node != first:
            await asyncio.sleep(0.05)
        return [Piece(partitions[node], 0, data=bytes(sizes[node]))] if room.takes(sizes[node]) else None

    monkeypatch.setattr(fetching, "_fetch_there", fetched)

    async def scene() -> None:
        holding_all = Holding(4 << 20)
        others, holder = Holder(holding_all), Holder(holding_all)
        others.hold(1 << 20)
        mine = Held(holder)
        by_leader = {node: {partition: 0} for node, partition in partitions.items()}
        gateway = cast(Gateway, SimpleNamespace(node_id=0))
        async with asyncio.timeout(PATIENCE_S):
            asked_for = gateway, by_leader, dict[str, TopicId](), Isolation.READ_COMMITTED, mine
            pieces = await fetching.fetch_all(*asked_for, max_bytes=1 << 20, wait_ms=0, deadline=0.0)
        assert [(each.partition, len(each.data)) for each in pieces] == [(partitions[1], sizes[1])]
        assert mine.stored_bytes == sizes[1]
        mine.drop(pieces)
        assert holder.bytes == 0

    asyncio.run(scene())


def test_a_reader_that_has_waited_for_room_has_it_although_others_go_over_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asked the leader 800 times a second: it lacked nothing, and yet what came was dropped each time."""
    partition = TopicPartition("held", 0)
    asked = 0

    async def fetched(*given: Any) -> list[Piece] | None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.001)
        return [Piece(partition, 0, data=bytes(256 << 10))] if given[4].takes(256 << 10) else None

    monkeypatch.setattr(fetching, "_fetch_there", fetched)
    gateway = cast(Gateway, SimpleNamespace(node_id=0))

    async def scene() -> None:
        holding_all = Holding(4 << 20)
        others, holder = Holder(holding_all), Holder(holding_all)
        others.hold(4 << 20)
        mine = Held(holder)
        read = fetch(gateway, 1, {partition: 0}, {}, Isolation.READ_COMMITTED, mine, max_bytes=16 << 20, wait_ms=0)
        waits = asyncio.ensure_future(read)
        await asyncio.sleep(0.05)
        others.hold(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert holder.bytes and not waits.done()
        others.hold(4 << 20)  # an answer of another broker waits for no room
        before = asked
        async with asyncio.timeout(1):
            pieces = await waits
        assert asked - before <= 1
        mine.drop(pieces)
        assert holder.bytes == 0

    asyncio.run(scene())


@pytest.mark.parametrize(
    "failure", [Problem("not-now", "nobody is there"), ClientFailure("nobody is there", FailureKind.UNREACHABLE)]
)
def test_an_error_of_one_leader_is_told_where_the_others_have_nothing(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """While a broker was away, nothing was given of what the others have. Nothing is held once that was dropped."""
    first, second = (TopicPartition("held", index) for index in range(2))
    pieces: list[Piece] = []

    async def fetched(*given: Any) -> list[Piece] | None:
        if given[1] == 1:
            raise failure
        await asyncio.sleep(0.01)
        return pieces if given[4].takes(sum(len(each.data) for each in pieces)) else None

    monkeypatch.setattr(fetching, "_fetch_there", fetched)

    async def scene() -> None:
        holding_all = Holding(1 << 20)
        with holding_all.of_request() as holder:
            gateway = cast(Gateway, SimpleNamespace(node_id=0))
            held, by_leader = Held(holder), {1: {first: 0}, 2: {second: 0}}
            asked_for = gateway, by_leader, dict[str, TopicId](), Isolation.READ_COMMITTED, held
            for some in Piece(second, 0, data=bytes(100_000)), Piece(second, ErrorCode.OFFSET_OUT_OF_RANGE):
                pieces[:] = [some]
                assert await fetching.fetch_all(*asked_for, max_bytes=1 << 20, wait_ms=0, deadline=0.0) == [some]
                held.drop(pieces)
                assert holder.bytes == 0
            pieces[:] = [Piece(second, 0)]
            with pytest.raises(type(failure), match="nobody is there"):
                await fetching.fetch_all(*asked_for, max_bytes=1 << 20, wait_ms=0, deadline=0.0)
        assert holding_all.bytes == 0

    asyncio.run(scene())


def test_a_long_answer_is_encoded_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB of records with `int64=string` took one turn of 150 ms."""
    lengths: list[int] = []
    encode = consuming.records_inside

    def encoding(records: Sequence[Any], **how: Any) -> bytes:
        lengths.append(len(encode(records, **how)))
        return encode(records, **how)

    for module in consuming, members:
        monkeypatch.setattr(module, "records_inside", encoding)

    async def scene(place: Place) -> None:
        await filled(place)
        poll = PAGE.replace(b"partitions/0/records?", b"partitions/0/records?int64=string&max_records=10000&")
        from_server, to_server = await asyncio.open_connection(*place.where)
        to_server.write(poll.replace(b"HTTP/1.1", b"HTTP/1.0"))
        content = (await from_server.read()).partition(b"\r\n\r\n")[2]
        assert [each["offset"] for each in json.loads(content)["records"]] == [str(each) for each in range(140)]
        to_server.close()
        lengths.clear()
        records = [RecordOut("t", 0, each, 0, value=msgspec.Raw(b'"%b"' % (b"x" * 1000))) for each in range(10_000)]
        records += [RecordOut("t", 0, each, 0, value_string="x" * 500_000) for each in range(10_000, 10_020)]
        for show in consuming._encode, with_text_numbers:
            told = await list_in_turns(records, partial(encoding, show=show), b"", b"")
            assert told == encode(records, show=show)
        assert max(lengths) < 2 << 20

    held(tmp_path, scene, most_bytes=64_000_000)


def test_a_very_long_value_is_not_judged_to_be_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """99 MB that Kafka had taken were looked through each time that anybody read them, in one turn of the loop."""
    for module in "records", "event_format":
        monkeypatch.setattr(f"service.web.{module}.JUDGED_BYTES_MAX", 10)
    found = []
    for form in ("auto", "json"):
        out = RecordOut("t", 0, 0, 0)
        shown(b"[1,2,3,4,5,6]", form, out)
        found.append((out.value, out.value_string))
    assert found == [(msgspec.UNSET, "[1,2,3,4,5,6]"), (msgspec.Raw(b"[1,2,3,4,5,6]"), msgspec.UNSET)]
    event = event_format.shown_event(TopicPartition("t", 0), Record(0, 0, None, b"[1,2,3,4,5,6]", ()))
    assert (event.content["datacontenttype"], event.content["data"]) == ("text/plain", "[1,2,3,4,5,6]")
