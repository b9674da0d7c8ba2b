"""The short way: the same answers and the same records as the general one, and nothing that is not exactly its form."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import re
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock, patch
from urllib.parse import urlsplit

import pytest
from aiohttp.web import Server

import service.web.quick
from service.broker.partition import Appended
from service.broker.tally import HttpTally
from service.ports import RealClock
from service.web import lane as lane_module
from service.web import producing, quick, quick_once
from service.web.answers import CODECS, codec_of
from service.web.compatible import V2_FORM
from service.web.holding import SMALL_BYTES
from service.web.lane import BYTES_AT_ONCE, REQUESTS_AT_ONCE, General, Lane, Lanes, read_head
from service.web.problems import Problem
from service.web.quick import NOT_NOW
from tests.service.web.kit import PATIENCE_S, TURN_S, Http, Served, read_all

JSON_HEAD = (
    b"POST /v1/topics/%b/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d%b\r\n\r\n"
)
GENERAL = b"\r\nX-Request-Id: x"
"""A header that the short way does not know."""
KEY = b'\r\nIdempotency-Key: "%b"'


class Raw:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rest = b""

    def send(self, content: bytes) -> None:
        self.connection.sendall(content)

    def answer(self) -> tuple[int, bytes]:
        head, body = self.whole_answer()
        return int(head.split(b" ")[1]), body

    def whole_answer(self) -> tuple[bytes, bytes]:
        while b"\r\n\r\n" not in self.rest:
            self._more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        found = re.search(rb"Content-Length: (\d+)", head, re.IGNORECASE)
        assert found is not None, head
        while len(self.rest) < int(found[1]):
            self._more()
        body, self.rest = self.rest[: int(found[1])], self.rest[int(found[1]) :]
        return head, body

    def _more(self) -> None:
        some = self.connection.recv(65536)
        assert some, "the connection has ended"
        self.rest += some


@contextmanager
def raw(served: Served) -> Iterator[Raw]:
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port), PATIENCE_S) as connection:
        yield Raw(connection)


def request(topic: str, body: bytes, more: bytes = b"") -> bytes:
    return JSON_HEAD % (topic.encode(), len(body), more) + body


BODIES = [
    b'{"records":[{"key":"a","value":{"n":1.10}}]}',
    b'{"records":[{"key":"a:b","value":"x:y"},{"value":null},{"key":"\xc3\xa9"},{"value":[1,2]}]}',
    b'{ "records" : [ {"value": {"a": 1, "a": 2}} ,\n {"key":null,"value":1} ] }',
    b'{"records":[{"value":"\\u003a\\n"}]}',
    b'{"records":[' + b",".join(b'{"key":"k%d","value":%d}' % (each, each) for each in range(2000)) + b"]}",
    b'{"records":[{"value":1,"headers":{"a":"1"}}]}',
    b'{"records":[{"value":1,"value":2}]}',
    b'{"records":[]}',
    b'{"records":[{"value":NaN}]}',
    b'{"records":[{"key":"\xff"}]}',
    b'{"records":[{"key":"\\ud800","value":1}]}',
    b'{"records":[{"partition":0,"value":1}]}',
    b'{"records":[{"partition":9,"value":1}]}',
    b"",
]


@pytest.mark.parametrize("has_key", [False, True], ids=["", "key"])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_both_ways_answer_and_write_the_same(
    served: Served, http: Http, topic: str, body: bytes, partitions: int, has_key: bool
) -> None:
    ways: list[tuple[int, bytes, list[tuple[bytes, bytes, int]]]] = []
    for more in (b"", GENERAL):
        name = f"{topic}-{len(more)}"
        assert http.post("/v1/topics", {"name": name, "partitions": partitions}).status == 201
        with raw(served) as connection:
            connection.send(request(name, body, more + (KEY % name.encode() if has_key else b"")))
            status, answer = connection.answer()
        written = sorted((each.key or b"", each.value or b"", each.offset) for each in read_all(served.bootstrap, name))
        ways.append(
            (
                status,
                re.sub(rb'"(partition|timestamp|producer_id|epoch)":\d+', b"", answer.replace(name.encode(), b"")),
                written,
            )
        )
        if partitions > 1:
            # The partition of what has no key is anyone, and so is its offset.
            ways[-1] = status, b"", [(key, value, 0) for key, value, _ in written]
    assert ways[0] == ways[1]


@pytest.mark.parametrize(
    ("media", "body"),
    [
        (b"application/json", b'{"records":[{"key":"a","value":1},{"key":"a"}]}'),
        (b"application/octet-stream", b"\0\xff"),
    ],
    ids=["json", "bytes"],
)
def test_a_request_may_be_repeated_by_either_way(
    served: Served, http: Http, topic: str, media: bytes, body: bytes
) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 3}).status == 201
    other = body.replace(b"1", b"2") + b" "
    for number, ways in enumerate(((b"", b"", GENERAL), (GENERAL, GENERAL, b""))):
        key = KEY % f"{topic}-{number}".encode()
        answers = []
        for more, content in ((ways[0], body), (ways[1], body), (ways[2], body), (b"", other), (GENERAL, other)):
            with raw(served) as connection:
                connection.send(request(topic, content, key + more).replace(b"application/json", media))
                head, answer = connection.whole_answer()
            answers.append((int(head.split(b" ")[1]), b"\r\nIdempotency-Replayed: true\r\n" in head, answer))
        assert [each[:2] for each in answers] == [(200, False), (200, True), (200, True), (422, False), (422, False)]
        assert answers[0][2] == answers[1][2] == answers[2][2]
        assert answers[3][2] == answers[4][2]
    assert len(read_all(served.bootstrap, topic)) == 2 * (2 if b"records" in body else 1)


def test_keys_do_not_take_a_connection_off_the_short_way(http: Http, served: Served, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    simple = request(topic, b'{"records":[{"value":1}]}')
    lanes = Lanes(cast(Any, SimpleNamespace(routes=[])), HttpTally(), Mock())
    head = simple.partition(b"\r\n\r\n")[0]
    for place in (0, 1, 2):  # it may stand anywhere
        lines = head.split(b"\r\n")
        lines.insert(place + 1, b"idempotency-KEY:  a-b ")
        assert lanes.read(b"\r\n".join(lines)) is None, "white space behind it is left to aiohttp"
        lines[place + 1] = b"idempotency-KEY:  a-b"
        asked = lanes.read(b"\r\n".join(lines))
        assert asked is not None
        assert asked.once is not None
    assert lanes.read(head + KEY % b"a" + KEY % b"a") is None
    assert lanes.read(head + b"\r\nIdempotency-Key:") is None
    v2 = head.replace(b"/v1/topics/", b"/topics/").replace(b"/records", b"")
    v2 = v2.replace(b"application/json", b"application/vnd.kafka.json.v2+json")
    assert lanes.read(v2) is not None
    assert lanes.read(v2 + KEY % b"a") is None, "it is refused by the general way"
    with raw(served) as connection:
        for is_known in (False, True):
            for number in range(3):
                connection.send(request(topic, b'{"records":[{"value":1}]}', KEY % f"{topic}-{number}".encode()))
                head, _ = connection.whole_answer()
                # A key that came before the topic of the keys was there was answered by aiohttp.
                assert not is_known or b"\r\nServer:" not in head, "it is aiohttp's answer"


@pytest.mark.parametrize(("leads", "leader", "takes"), [(True, 1, True), (True, 2, False), (False, 1, False)])
def test_a_key_of_which_another_broker_is_said_to_know_is_left_to_the_general_way(
    leads: bool, leader: int, takes: bool
) -> None:
    """That forwards it. Here it was refused while the metadata named the next leader and this one had not heard it."""
    gateway = Mock(node_id=1)
    gateway.image.topics = {"t": SimpleNamespace(partitions=[None])}
    gateway.partitions.get.return_value = SimpleNamespace(is_leading=leads)
    gateway.image.partition.return_value = SimpleNamespace(leader=leader)
    gateway.env.clock.wall_ms.return_value = 1
    answer = quick_once.write("application/octet-stream", b"a", gateway, Mock(), "/", "t", b"x")
    assert (answer is not NOT_NOW) is takes
    if takes:
        cast(Coroutine[Any, Any, Any], answer).close()


V2_BODIES = [
    ("json", b'{"records":[{"key":"a","value":{"n":1.10, "m":[1e5]}},{"key":"a"}]}'),
    ("json", b'{"records":[{"value":"\xc3\xa9\\u003a"},{"value":null}]}'),
    ("json", b'{"records":[{"key":1,"value":1},{"key":2,"value":2}]}'),
    ("json", b'{"records":[{"value":{"records":1}}]}'),
    ("json", b'{"records":[{"value":NaN}]}'),
    ("json", b'{"records":[{"value":1,"partition":0}]}'),
    ("json", b'{"records":[{"value":1,"partition":7}]}'),
    ("json", b'{"records":[]}'),
    ("json", b'{"records":[1]}'),
    ("json", b'{"records":[{"value":1}],"records":[]}'),
    ("json", b'{"records":[{"value":1}],"\\u0072ecords":[{"value":2}]}'),
    ("json", b'{"value_schema_id":7,"records":[{"value":1}]}'),
    ("json", b"[]"),
    ("binary", b'{"records":[{"key":"YQ==","value":"AAEC"}]}'),
    ("binary", b'{"records":[{"value":"?"}]}'),
    ("text", b'{"records":[{"key":"k","value":"a:b"}]}'),
    ("text", b'{"records":[{"value":"\\ud800"}]}'),
    ("avro", b'{"records":[{"value":1}]}'),
]


@pytest.mark.parametrize(("form", "body"), V2_BODIES, ids=range(len(V2_BODIES)))
def test_both_ways_of_version_2_answer_and_write_the_same(
    served: Served, http: Http, topic: str, form: str, body: bytes
) -> None:
    ways: list[tuple[object, ...]] = []
    for more in (b"", GENERAL):
        name = f"{topic}-{len(more)}"
        assert http.post("/v1/topics", {"name": name, "partitions": 1}).status == 201
        head = f"POST /topics/{name} HTTP/1.1\r\nHost: x\r\nContent-Type: application/vnd.kafka.{form}.v2+json\r\n"
        with raw(served) as connection:
            connection.send(head.encode() + b"Content-Length: %d%b\r\n\r\n" % (len(body), more) + body)
            status, answer = connection.answer()
        written = [(each.key, each.value, each.offset) for each in read_all(served.bootstrap, name)]
        ways.append((status, answer.replace(name.encode(), b""), written))
    assert ways[0] == ways[1]


def test_the_simple_form_of_version_2_is_taken() -> None:
    with patch.object(service.web.quick, "write", wraps=service.web.quick.write) as short:
        media = b"Content-Type: application/vnd.kafka.json.v2+json"
        taken = read_head(b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n" + media)
        assert taken is not None
        gateway: Any = Mock()
        gateway.image.topics = {}
        assert taken.write(gateway, "t", b'{"records":[{"value":1}]}') is NOT_NOW  # there is no such topic
    assert short.call_args.args[2] == [(None, b"1")]


def test_requests_are_answered_in_their_order_however_they_are_cut(served: Served, http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    requests = b"".join(request(topic, b'{"records":[{"value":%d}]}' % each) for each in range(5))
    requests += b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + request(topic, b'{"records":[{"value":5}]}')
    for size in (1, 7, 100, len(requests)):
        with raw(served) as connection:
            for at in range(0, len(requests), size):
                connection.send(requests[at : at + size])
            answers = [connection.answer() for _ in range(7)]
        assert [status for status, _ in answers] == [200] * 7
        offsets = [json.loads(body)["results"][0]["offset"] for _, body in answers[:5]]
        assert offsets == list(range(offsets[0], offsets[0] + 5))
        assert json.loads(answers[5][1]) == {"alive": True}
    assert [each.value for each in read_all(served.bootstrap, topic)] == [b"0", b"1", b"2", b"3", b"4", b"5"] * 4


def test_bytes_are_written_as_they_are(served: Served, http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    body = bytes(range(256)) * 4
    for more in (b"", GENERAL):
        with raw(served) as connection:
            head = JSON_HEAD.replace(b"application/json", b"application/octet-stream")
            connection.send(head % (topic.encode(), len(body), more) + body)
            assert connection.answer()[0] == 200
    assert [(each.key, each.value) for each in read_all(served.bootstrap, topic)] == [(None, body)] * 2


@pytest.mark.parametrize("arrived", range(5))
def test_a_head_that_was_read_before_may_come_in_two_parts(
    served: Served, http: Http, topic: str, arrived: int
) -> None:
    """`arrived`: so much of the empty line after it comes with the first part."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    head = JSON_HEAD.replace(b"application/json", b"application/octet-stream") % (topic.encode(), 3, b"")
    first = len(head) - 4 + arrived
    with raw(served) as connection:
        connection.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.send(head + b"one")
        assert connection.answer()[0] == 200
        connection.send(head[:first])
        time.sleep(0.1)
        connection.send(head[first:] + b"two")
        assert connection.answer()[0] == 200
    assert [each.value for each in read_all(served.bootstrap, topic)] == [b"one", b"two"]


@contextmanager
def alone() -> Iterator[tuple[Lane, Mock, Mock]]:
    """A connection without a server: what it writes to, and what stands for aiohttp. It answers at once."""
    transport, slow, gateway = Mock(is_closing=lambda: False), Mock(), Mock()
    gateway.config.http_max_body_bytes = BYTES_AT_ONCE
    gateway.routes, gateway.env.clock = producing.ROUTES, RealClock()
    lane = Lane(Lanes(gateway, HttpTally(), Mock()), slow, 1.0)
    lane.connection_made(transport)
    with patch.dict(lane_module.OWN.write, {b"application/json": lambda *_: b"{}"}):
        yield lane, transport, slow
    lane.connection_lost(None)


def test_a_head_that_comes_in_pieces_stays_on_the_short_way() -> None:
    """The network may cut it anywhere. Its connection was aiohttp's for good then."""

    async def scene() -> None:
        simple = request("t", b"{}")
        with alone() as (lane, transport, slow):
            for cut in range(1, len(simple)):
                lane.data_received(simple[:cut])
                lane.data_received(simple[cut:])
                assert transport.write.call_count == cut
                slow.data_received.assert_not_called()
            for at in range(len(simple)):
                lane.data_received(simple[at : at + 1])
            assert transport.write.call_count == len(simple)
            slow.data_received.assert_not_called()
            lane.data_received(simple + simple[:40])
            assert not lane.eof_received(), "nobody waits for an answer"

    asyncio.run(scene())


def test_a_connection_whose_request_was_lent_for_lack_of_room_may_be_silent() -> None:
    """It kept the patience for bodies: it was ended as if one did not come, and a next body was refused early."""

    async def scene() -> None:
        long = request("t", b" " * (SMALL_BYTES + 1))
        with alone() as (lane, transport, slow):
            slow.answer = AsyncMock(return_value=True)
            lane._gateway.config.http_max_body_bytes = len(long)
            lane.data_received(long[:-1])
            lane._lanes.writing_bytes = lane_module.COMING_BYTES
            lane.data_received(long[-1:])
            for _ in range(10):
                await asyncio.sleep(0)
            slow.answer.assert_awaited_once()
            with patch.object(lane, "_loop", Mock(time=lambda: time.monotonic() + lane_module.BODY_S + 1)):
                lane._look()
            transport.abort.assert_not_called()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "pieces",
    [
        [b"G"],
        [b"POST /v1/tr"],
        [b"POST /v1/to", b"ll"],
        [b"POST /v1/topics/t/records HTTP/1.1\r\nX: " + b"x" * lane_module.HEAD_BYTES_MAX],
        [b"POST /v1/topics/t/records HTTP/1.1\r\n", b"X: " + b"x" * (lane_module.HEAD_BYTES_MAX - 100), b"x" * 100],
        [b"POST /v1/topics/t/records HTTP/1.1\nHost: x\n\n"],
        [b"POST /v1/topics/t/records HTTP/1.1\r\n", b"Host: x\r\n\n"],
        [b"POST /v1/topics/t/records HTTP/1.1\r", b"Host: x"],
        [b"POST /v1/topics/t/records HTTP/1.1\r\nHo", b"\x00"],
        [b"POST /v1/topics/t/records HTTP/1.1\r\nHo", b"\xff"],
    ],
)
def test_a_part_of_a_head_that_is_none_of_the_short_way_is_left_to_aiohttp_at_once(pieces: list[bytes]) -> None:
    async def scene() -> None:
        with alone() as (lane, transport, slow):
            for piece in pieces[:-1]:
                lane.data_received(piece)
                slow.data_received.assert_not_called()
            lane.data_received(pieces[-1])
            slow.data_received.assert_called_once_with(b"".join(pieces))
            transport.write.assert_not_called()

    asyncio.run(scene())


@pytest.mark.parametrize(("body_bytes", "at_once"), [(2, REQUESTS_AT_ONCE), (BYTES_AT_ONCE // 3, 4)])
def test_many_requests_that_come_at_once_are_served_in_turns(body_bytes: int, at_once: int) -> None:
    """Ten that had 2000 records each took 65 ms of one turn."""
    count = 20 * at_once
    steps: list[int] = []

    async def scene() -> None:
        transport = Mock(is_closing=lambda: False)
        gateway = Mock()
        gateway.config.http_max_body_bytes = BYTES_AT_ONCE
        gateway.routes = producing.ROUTES
        lane = Lane(Lanes(gateway, HttpTally(), Mock()), Mock(), 1.0)
        lane.connection_made(transport)
        lane.data_received(request("t", b"x" * body_bytes) * count)
        while len(steps) < count:
            answered = transport.write.call_count
            steps.append(answered - sum(steps))
            if answered == count:
                break
            await asyncio.sleep(0)
        lane.connection_lost(None)

    with patch.dict(lane_module.OWN.write, {b"application/json": lambda *_: b"{}"}):
        asyncio.run(scene())
    assert sum(steps) == count
    assert max(steps) == at_once


def test_a_connection_that_ends_as_a_request_comes_leaves_no_error() -> None:
    said: list[dict[str, Any]] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: said.append(what))
        transport = Mock(is_closing=lambda: False)
        gateway = Mock()
        gateway.routes, gateway.env.clock = producing.ROUTES, RealClock()
        lane = Lane(
            Lanes(gateway, HttpTally(), Mock()), General(Server(AsyncMock()), loop=asyncio.get_running_loop()), 1.0
        )
        lane.connection_made(transport)
        await asyncio.sleep(0)
        lane.data_received(b"GET /v1/brokers HTTP/1.1\r\nHost: x\r\n\r\n")
        lane.connection_lost(None)
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(scene())
    assert said == []


def test_an_answer_is_packed_for_who_likes_that(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    body = json.dumps({"records": [{"value": each} for each in range(200)]})
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip", "Connection": "keep-alive"}
    answer = http.post(f"/v1/topics/{topic}/records", body, headers=headers)
    assert (answer.status, answer.headers["Content-Encoding"]) == (200, "gzip")
    assert [each["offset"] for each in answer.json["results"]] == list(range(200))


@pytest.mark.parametrize(
    ("accepted", "codec"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("gzip, zstd", "zstd"),
        ("GZIP;q=0.5", "gzip"),
        ("zstd;q=0, gzip; q=0.0", None),
        ("x-gzip", None),
        ("gzip;q=0.5, zstd;q=0.4", "gzip"),
        ("gzip;q=0.5, zstd;q=0.50", "zstd"),
        ("zstd;q=0.9, gzip", "gzip"),
        ("gzip;q=x", None),
    ],
)
def test_what_a_client_does_not_want_is_not_packed(accepted: str, codec: str | None) -> None:
    assert codec_of(accepted) == codec


def test_a_body_longer_than_is_set_is_refused(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", **{"http.max.body.bytes": "2000"})
    http = Http(served.url)
    try:
        assert http.post("/v1/topics", {"name": "t", "partitions": 1}).status == 201
        with raw(served) as connection:
            for size, status in ((1000, 200), (3000, 413)):
                connection.send(request("t", b'{"records":[{"value":"%b"}]}' % (b"x" * size)))
                assert connection.answer()[0] == status
    finally:
        http.session.close()
        served.stop()


SIMPLE = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5"


def test_the_simple_form_is_taken() -> None:
    asked = read_head(SIMPLE + b"\r\nUser-Agent: curl/8\r\nAccept: */*\r\nConnection: Keep-Alive")
    assert asked is not None
    assert (asked.names, asked.body_bytes) == ({"topic": "t"}, 5)


@pytest.mark.parametrize(
    "head",
    [
        SIMPLE.replace(b"POST", b"PUT"),
        SIMPLE.replace(b"1.1", b"1.0"),
        SIMPLE.replace(b"/t/", b"/%74/"),
        SIMPLE.replace(b"records", b"records?key=x"),
        SIMPLE.replace(b"Host: x\r\n", b""),
        SIMPLE.replace(b"Length: 5", b"Length: +5"),
        SIMPLE.replace(b"Length: 5", b"Length: 5, 5"),
        SIMPLE.replace(b"Length: 5", b"Length: 99999999"),
        SIMPLE.replace(b"Host: x", b"Host : x"),
        SIMPLE.replace(b"Host: x", b"Host: x\ny: z"),
        SIMPLE.replace(b"Host: x", b"Host: x\x00"),
        SIMPLE.replace(b"application/json", b"application/x-ndjson"),
        SIMPLE + b"\r\nContent-Length: 5",
        SIMPLE + b"\r\nTransfer-Encoding: chunked",
        SIMPLE + b"\r\nContent-Encoding: gzip",
        SIMPLE + b"\r\nExpect: 100-continue",
        SIMPLE + b"\r\nIdempotency-Key: a",
        SIMPLE + b"\r\nOrigin: http://x",
        SIMPLE + b"\r\nConnection: close",
        SIMPLE + b"\r\nConnection: upgrade",
        SIMPLE + b"\r\n folded: x",
        SIMPLE + b"\r\nX-Oncelog-Forwarded: 1",
        b"",
    ],
)
def test_what_is_not_of_the_simple_form_is_left_to_aiohttp(head: bytes) -> None:
    assert read_head(head) is None


@pytest.mark.parametrize("form", [quick.OWN, V2_FORM])
def test_the_longest_answers_of_the_short_way_are_packed_at_once(form: quick.AnswerForm) -> None:
    """They are compressed in the turn of the loop in which they are made."""
    appended = Appended(2**63 - 1 - quick.RECORDS_MAX, 0)
    refused = Problem("not-now", f"{'t' * 249} partition 99999: {'why ' * 50}")
    answers = [form.written("t" * 249, 99999, appended, quick.RECORDS_MAX, 2**50)]
    if form is V2_FORM:
        answers.append(form.refused(refused, 99999, quick.RECORDS_MAX))
    for answer, pack in itertools.product(answers, CODECS.values()):
        began_s = time.perf_counter()
        pack(answer)
        assert time.perf_counter() - began_s < TURN_S
        assert len(answer) < 2 << 20
