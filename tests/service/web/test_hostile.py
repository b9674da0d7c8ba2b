"""Clients that mean harm, or are broken: each costs its own connection, and the broker goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import re
import resource
import socket
import struct
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from aiohttp import StreamReader, web

from service.settings.broker import Endpoint
from service.web import app, lane, openapi, unpacking
from service.web.event_format import BATCHED
from service.web.pages import routes
from service.web.routing import Route
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.web.kit import PATIENCE_S, Http, Served, read_all

HEAD = b"POST /v1/topics/hostile/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
RECORD = b'Content-Length: 25\r\n\r\n{"records":[{"value":2}]}'


@contextmanager
def connected(served: Served) -> Iterator[socket.socket]:
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port), PATIENCE_S) as connection:
        yield connection


def answer_to(served: Served, request: bytes) -> bytes:
    """Everything that comes until the server closes; the client has said all it will."""
    with connected(served) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while True:
            try:
                some = connection.recv(65536)
            except ConnectionResetError:
                return found
            if not some:
                return found
            found += some


@pytest.mark.parametrize(
    ("path", "instance"),
    [
        (b"/v1/groups/a%2Fb/nothing?x=1", "/v1/groups/a%2Fb/nothing"),
        (b"/v1/a%20b%25/c;d=@:e", "/v1/a%20b%25/c;d=@:e"),
        (b'/v1/<a>"^`{|}', "/v1/%3Ca%3E%22%5E%60%7B%7C%7D"),
        (b"http://some.host/v1/a%20b", "/v1/a%20b"),
    ],
)
def test_a_problem_names_what_was_asked_for_by_a_reference(served: Served, path: bytes, instance: str) -> None:
    with connected(served) as connection:
        connection.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 404 "), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["instance"] == instance


@pytest.mark.parametrize(
    "request_",
    [
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b'Transfer-Encoding: gzip, chunked\r\n\r\n19\r\n{"records":[{"value":1}]}\r\n0\r\n\r\n',
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        HEAD + b"X: " + b"y" * 8190 + b"\r\n" + RECORD,
        HEAD + b"X: y\r\n" * 126 + RECORD,
        HEAD.replace(b"/records", b"/records#part") + RECORD,
        HEAD.replace(b"/records", b"/records#") + RECORD,
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
        HEAD + b"Content-Encoding: br\r\nContent-Length: 4\r\n\r\nabcd",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10,
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 1000,
    ],
)
def test_what_is_no_http_is_refused_and_writes_nothing(served: Served, http: Http, request_: bytes) -> None:
    assert http.post("/v1/topics/hostile/records", {"records": [{"value": 1}]}).status == 200
    before = http.get("/v1/topics/hostile/offsets").json
    answer = answer_to(served, request_)
    assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:200]
    assert not answer or b"application/problem+json" in answer
    assert http.get("/v1/topics/hostile/offsets").json == before
    assert http.get("/livez").status == 200


@pytest.mark.parametrize(
    ("count", "end", "status"),
    [(8, RECORD, 200), (9, RECORD, 431), (40, RECORD, 431), (40, b"", 431)],
    ids=["as long as may be", "longer", "several times as long", "without an end"],
)
def test_a_head_that_is_too_long_as_a_whole_is_refused(
    served: Served, http: Http, topic: str, count: int, end: bytes, status: int
) -> None:
    """Each of its headers may be that long. Together they took 3.4 MB, for as long as the head might take to end."""
    long = b"".join(b"X-%d: %b\r\n" % (each, b"y" * 8000) for each in range(count))
    with connected(served) as connection:
        connection.sendall(HEAD.replace(b"hostile", topic.encode()) + long + end)
        answer = b""
        while b"/problems/head-too-long" not in answer and b"results" not in answer:
            some = connection.recv(65536)
            assert some, answer
            answer += some
    assert answer.split(b" ")[1] == b"%d" % status, answer
    assert http.get(f"/v1/topics/{topic}").status == (200 if status == 200 else 404)


@pytest.mark.parametrize(
    "record",
    [b'{"value":"\xff"}', b'{"value":{"a":["\xc3"]}}', b'{"key":"\xff"}', b'{"value":1,"headers":{"a":"\xe4"}}'],
)
def test_what_is_not_utf_8_is_no_json(http: Http, topic: str, record: bytes) -> None:
    """It was stored as a value, and shown as bytes."""
    path = f"/v1/topics/{topic}/records"
    answer = http.post(path, b'{"records":[%b]}' % record, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.json["type"]) == (400, "/problems/malformed")
    (line,) = http.post(path, record, headers={"Content-Type": "application/x-ndjson"}).json.splitlines()
    assert json.loads(line)["problem"]["type"] == "/problems/malformed"


def test_a_small_body_that_unpacks_to_a_large_one_is_refused(served: Served, http: Http) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packer.compress(b" " * (256 << 20)) + packer.flush()
    assert len(body) < 300_000
    memory = psutil.Process(served.process.pid).memory_info().rss
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert http.post("/v1/topics/hostile/records", body, headers=headers).status == 413
    assert psutil.Process(served.process.pid).memory_info().rss - memory < 128 << 20


def test_readers_that_never_read_cost_bounded_memory(served: Served, http: Http, topic: str) -> None:
    for _ in range(20):
        assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": "x" * 100_000}] * 7}).status == 200
    memory = psutil.Process(served.process.pid).memory_info().rss
    readers = []
    try:
        for _ in range(40):
            place = urlsplit(served.url)
            reader = socket.create_connection((place.hostname, place.port), PATIENCE_S)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(f"GET /v1/topics/{topic}/stream?from=earliest HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            readers.append(reader)
        for _ in range(20):
            assert http.get("/readyz").status == 200
            time.sleep(0.05)
        assert psutil.Process(served.process.pid).memory_info().rss - memory < 40 * (6 << 20)
    finally:
        for reader in readers:
            reader.close()


def test_a_client_that_vanishes_in_a_stream_leaves_what_it_was_told(served: Served, http: Http, topic: str) -> None:
    head = f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n".encode()
    with connected(served) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        line = b'{"value":1}\n'
        connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))
        told = b""
        while b'"offset":0' not in told:
            told += connection.recv(4096)
        connection.sendall(b"%x\r\n%s" % (len(line), line[:5]))
    assert http.get("/livez").status == 200
    assert [each["value"] for each in http.get(f"/v1/topics/{topic}/partitions/0/records").json["records"]] == [1]


LONG = [
    *("put_batch", "write_batch", "put_file", "receive", "v3_records", "v3_batch", "v2_records"),  # records
    *("put_offsets", "reset", "commit", "decide"),  # a list of what may be many
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("route", [each for table in app.TABLES for each in table if each.body is not None])
def test_a_body_is_no_longer_than_what_is_made_of_it_in_a_turn(http: Http, route: Route, packed: bool) -> None:
    """16 MiB of names, packed in 15 KB, were ten seconds of work, and 640 MB."""
    path, body = re.sub(r"{cluster}", http.get("/v1/cluster").json["cluster_id"], route.path), b" " * 300_000
    path = re.sub(r"{(\w+)(:[^{}]*({[^{}]*})?[^{}]*)?}", "0", path)
    headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if packed else {})
    answer = http.ask(route.method, path, gzip.compress(body) if packed else body, headers=headers)
    is_long = route.handle.__name__ in LONG and route.tag != "consumers of version 2"
    assert (answer.status != 413) == is_long, answer
    operations = http.get("/openapi.json").json["paths"][openapi.path_of(route)]
    assert "413" in operations[route.method.lower()]["responses"]


def test_names_and_numbers_beyond_their_types_are_problems(http: Http) -> None:
    for path in (
        "/v1/topics/hostile/partitions/99999999999999999999/records",
        "/v1/topics/hostile/partitions/0/records?offset=99999999999999999999999",
        "/v1/topics/hostile/partitions/0/records?max_records=1e9",
        "/v1/topics/hostile/partitions/0/records?offset=@x",
        "/v1/topics/hostile/stream?cursor=0:99999999999999999999999999999999",
        "/v1/topics/hostile/stream?cursor=0:9223372036854775808",
        "/v1/topics/hostile/stream?cursor=4294967296:0",
        "/v1/transactions?min_age_ms=9223372036854775808",
        "/v1/topics/..%2f..%2fetc/records",
        "/v1/topics/%00/offsets",
    ):
        answer = http.get(path)
        assert answer.status in (400, 404, 405, 416, 422), (path, answer)
        assert answer.json["outcome"] == "none"


RAW = {"Content-Type": "application/octet-stream"}


def test_a_time_that_is_none_is_a_query_that_cannot_be_read_and_no_bad_record(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic}).status == 201
    for answer in (
        http.get(f"/v1/topics/{topic}/partitions/0/records?offset=@2026-11-01"),
        http.get(f"/v1/topics/{topic}/stream?from=@2026-11-01&until=end"),
        http.post(f"/v1/topics/{topic}/records?timestamp=2026-11-01", b"x", headers=RAW),
    ):
        assert (answer.status, answer.json["type"]) == (400, "/problems/malformed")
        assert answer.json["detail"] == "'2026-11-01' is no time as RFC 3339 writes it, with its zone"


def test_two_thousand_idle_streams_leave_room_for_others(served: Served, http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic}).status == 201
    place = urlsplit(served.url)
    request = f"GET /v1/topics/{topic}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    broker = psutil.Process(served.process.pid)
    memory = broker.memory_info().rss
    with contextlib.ExitStack() as opened:
        streams = []
        for _ in range(IDLE_STREAMS):
            stream = opened.enter_context(socket.create_connection((place.hostname, place.port), PATIENCE_S))
            stream.sendall(request)
            streams.append(stream)
        for stream in streams:
            assert stream.recv(65536).startswith(b"HTTP/1.1 200")
        assert broker.memory_info().rss - memory < IDLE_STREAMS * STREAM_BYTES
        assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": "news"}]}).status == 200
        for stream in streams:
            found = b""
            while b'"value":"news"' not in found:
                found += stream.recv(65536)
        assert json.loads(found[found.index(b"data: ") + 6 :].split(b"\n")[0])["offset"] == 0


@pytest.mark.parametrize("path", ["/ui/http", "/ui/topics/forms/produce", "/ui/transactions/forms/abort"])
def test_a_form_that_no_person_has_filled_in_is_refused(http: Http, path: str) -> None:
    """It was taken apart on the loop, up to the length of a body: what is escaped takes twenty times its length."""
    http.post("/v1/topics", {"name": "forms"})
    for form, status in ("x=" + "%41" * (1 << 20), 413), ("&".join(f"f{number}=1" for number in range(21)), 400):
        answer = http.post(path, form.encode(), headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert (answer.status, answer.json["outcome"]) == (status, "none")


@pytest.mark.parametrize("path", [each.path for each in routes.ROUTES if each.method == "POST"])
def test_a_form_from_another_site_is_not_read(http: Http, path: str) -> None:
    http.post("/v1/topics", {"name": "forms"})
    path = re.sub(r"{\w+}", "forms", path.replace("{partition:[0-9]{1,9}}", "0"))
    answer = http.post(path, b"x" * (4 << 20), headers={"Origin": "https://evil.example"})
    assert answer.status == 409, "a form of ours would be too long"


@pytest.mark.parametrize("more", [b"", b"Idempotency-Key: a\r\n"])
def test_who_says_nothing_or_never_ends_a_body_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    """In this process, so that the time it takes can be cut."""
    monkeypatch.setattr(app, "HEAD_S", 0.2)
    monkeypatch.setattr(app, "BODY_S", 0.2)
    monkeypatch.setattr(lane, "BODY_S", 0.2)

    async def scene(stage: Stage) -> None:
        server = app.WebServer(stage.broker, connections_max=3)
        await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        port = server.endpoints[0].port
        try:
            async with asyncio.timeout(PATIENCE_S):
                silent, to_silent = await asyncio.open_connection("127.0.0.1", port)
                to_silent.write(b"\r\n")
                slow, to_slow = await asyncio.open_connection("127.0.0.1", port)
                to_slow.write(HEAD + b"Content-Length: 100\r\n" + more + b"\r\n{")
                good, to_good = await asyncio.open_connection("127.0.0.1", port)
                to_good.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await good.readline()).startswith(b"HTTP/1.1 200")
                fourth, to_fourth = await asyncio.open_connection("127.0.0.1", port)
                assert await fourth.read() == b"", "there is no room for it"
                with contextlib.suppress(ConnectionResetError):
                    assert await silent.read() == b""
                assert (await slow.readline()).startswith(b"HTTP/1.1 408")
                to_good.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                await good.readuntil(b'{"alive":true}')
                await good.readuntil(b'{"alive":true}')
                for writer in (to_silent, to_slow, to_good, to_fourth):
                    writer.close()
        finally:
            await server.stop()

    on_stage(tmp_path, scene)


IDLE_STREAMS, STREAM_BYTES = 2000, 50 << 10
"""A stream took 18 KB of the broker's memory when it was measured."""
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
LINES = HEAD.replace(b"application/json", b"application/x-ndjson") + b"Transfer-Encoding: chunked\r\n\r\n"
SLOW_S = 0.6
POST = HEAD.replace(b"hostile", b"slow")
ONE = b'Content-Length: 26\r\n\r\n{"records":[{"value": 1}]}'
SLOW_GET = b"GET /v1/topics/slow/partitions/0/records?offset=latest&wait_ms=%d HTTP/1.1\r\nHost: x\r\n\r\n" % (
    2000 * SLOW_S
)
DRIPPED = [b"x"] * 1000
V3 = LINES.replace(b"/v1/topics/hostile", b"/v3/clusters/CLUSTER/topics/slow").replace(b"x-ndjson", b"json")
PACKED_LINES = LINES.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
FORM = b"POST /ui/topics/slow/replicas/stop HTTP/1.1\r\nHost: x\r\n"
NO_LINES = LINES.replace(b"topics/hostile/records", b"transactions")


@contextlib.asynccontextmanager
async def impatient(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, int]]:
    """A server whose times are short, in this process."""
    for module, name in ((app, "UNREAD_S"), (app, "HEAD_S"), (app, "BODY_S"), (lane, "BODY_S"), (unpacking, "ITEM_S")):
        monkeypatch.setattr(module, name, SLOW_S)
    server = app.WebServer(stage.broker, connections_max=10)
    await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield "127.0.0.1", server.endpoints[0].port
    finally:
        await server.stop()


async def told_to(
    where: tuple[str, int], first: bytes, then: Iterable[bytes] = (), until: bytes | None = None
) -> tuple[bytes, float]:
    """What a client is told that sends this, then the rest in pieces: all of it, or until it is told that. And how long
    it takes.
    """
    loop = asyncio.get_running_loop()
    from_server, to_server = await asyncio.open_connection(*where)
    began_s = loop.time()

    async def drip() -> None:
        with contextlib.suppress(ConnectionError):
            for piece in then:
                await asyncio.sleep(SLOW_S / 10)
                to_server.write(piece)

    to_server.write(first)
    dripping, found = asyncio.ensure_future(drip()), b""
    with contextlib.suppress(ConnectionResetError):
        while until is None or until not in found:
            some = await from_server.read(65536)
            if not some:
                break
            found += some
    dripping.cancel()
    to_server.close()
    return found, loop.time() - began_s


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (GET, [b"GET /li"]),
        (GET, [b"GET /livez HTTP/1.1\r\nHost: x\r\n"]),
        (GET, [b"GET /livez HTTP/1.1\r\nX: ", *DRIPPED]),
        (GET + b"GET /li", ()),
        (GET + b"GET /livez HTTP/1.1\r\nX: ", DRIPPED),
        (GET, [b"\r", b"\nGET /li"]),
        (b"POST /v1/topics/slow/records HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nContent-Length: 2\r\n\r\n{}PO", [b"S"]),
        (POST + ONE, [b"PO"]),
        (POST + ONE + POST + b"X: ", DRIPPED),
    ],
    ids=[
        *("silent", "silent after a line", "dripping", "together", "dripping together", "empty lines", "after a body"),
        *("short way", "dripping on the short way"),
    ],
)
def test_a_later_head_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, then: Sequence[bytes]
) -> None:
    """Only the first head of a connection had to come in time."""

    async def scene(stage: Stage) -> None:
        async with impatient(stage, monkeypatch) as where:
            found, took_s = await told_to(where, first, then)
            assert found.count(b"HTTP/1.1 ") == max((first + b"".join(then)).count(b"\r\n\r\n"), 1)
            assert took_s < 10 * SLOW_S

    on_stage(tmp_path, scene)


def test_a_connection_that_waits_between_requests_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while an answer takes longer than a head may, after a request that came in pieces, and behind an empty line,
    which began the time of a head.
    """

    async def scene(stage: Stage) -> None:
        await stage.create("slow")
        async with impatient(stage, monkeypatch) as where:
            await asyncio.gather(
                *(several(where, each) for each in (GET, SLOW_GET, POST + b"X-A: 1\r\n" + ONE, POST + ONE))
            )

    async def several(where: tuple[str, int], request: bytes) -> None:
        from_server, to_server = await asyncio.open_connection(*where)
        for _ in range(2):
            for piece in (request[:20], request[20:-1], request[-1:]):
                to_server.write(piece)
                await asyncio.sleep(SLOW_S / 10)
            head = await from_server.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await from_server.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
            for piece in (b"\r\n", b"\r", b"\n"):
                to_server.write(piece)
                await asyncio.sleep(SLOW_S / 2)
        to_server.close()

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        (LINES + b'd\r\n{"value": 1}\n\r\n', (), b'"line":1,"problem"'),
        (LINES + b'c\r\n{"value": 1}\r\n', (), b'"line":0,"problem"'),
        (LINES, [b"1\r\nx\r\n"] * 1000, b'"line":0,"problem"'),
        (PACKED_LINES, [b"1\r\n\x1f\r\n"], b'"line":0,"problem"'),
        (V3, [b"1\r\n{\r\n", *[b"1\r\n \r\n"] * 1000], b"HTTP/1.1 408 "),
        (POST + b"X-A: 1\r\nContent-Length: 100\r\n\r\n{", [b" "] * 98, b"HTTP/1.1 408 "),
        (NO_LINES, (), b"HTTP/1.1 408 "),
        (FORM + b"Content-Length: 100\r\n\r\nconfirm=", [b"x"] * 90, b"HTTP/1.1 408 "),
    ],
    ids=[
        *("no more lines", "no end of a line", "dripping", "packed", "version 3", "as a whole", "no lines are taken"),
        "a page's form",
    ],
)
def test_a_body_that_does_not_come_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, then: Sequence[bytes], told: bytes
) -> None:
    """A body that is read as it comes could stay away for ever."""

    async def scene(stage: Stage) -> None:
        await stage.create("slow")
        async with impatient(stage, monkeypatch) as where:
            request = first.replace(b"CLUSTER", stage.broker.metadata.image.cluster_id.encode())
            found, took_s = await told_to(where, request, then, told)
            assert told in found
            assert took_s > SLOW_S / 2

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("then", [(), [b" "] * 98], ids=["silent", "dripping"])
def test_a_body_on_the_short_way_is_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: Sequence[bytes]
) -> None:
    """It had its time twice: once there, and once more on the general way."""

    async def scene(stage: Stage) -> None:
        await stage.create("slow")
        async with impatient(stage, monkeypatch) as where:
            monkeypatch.setattr(app, "BODY_S", 2 * PATIENCE_S)
            for before in (b"", POST + ONE):
                found, _ = await told_to(where, before + POST + b"Content-Length: 100\r\n\r\n{", then)
                assert found.startswith(b"HTTP/1.1 200" if before else b"HTTP/1.1 408")
                assert b"/problems/too-slow" in found

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("step_bytes", [0, 4 << 10, 1 << 20], ids=["nothing", "little", "much"])
def test_an_answer_that_nobody_takes_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    """It was kept, with what was left of the answer, for as long as the client was there. Who took less than the third
    of the kernel's buffer was taken for one who takes nothing.
    """

    async def scene(stage: Stage) -> None:
        await stage.create("slow")
        body = json.dumps({"records": [{"value": "x" * 100_000}] * 7}).encode()
        async with impatient(stage, monkeypatch) as where:
            written = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
            await told_to(where, written * 20, until=b'"offset":139,')
            loop = asyncio.get_running_loop()
            with socket.socket() as client:
                client.setblocking(False)
                if step_bytes < 1 << 20:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
                await loop.sock_connect(client, where)
                asked = b"GET /v1/topics/slow/partitions/0/records?max_bytes=16777216 HTTP/1.1\r\nHost: x\r\nAccept: %b"
                await loop.sock_sendall(client, asked % BATCHED.encode() + b"\r\n\r\n")
                head = await loop.sock_recv(client, 1000)
                missing_bytes = int(re.findall(rb"(?i)content-length: (\d+)", head)[0]) - len(
                    head.split(b"\r\n\r\n")[1]
                )
                for _ in range(12):
                    await asyncio.sleep(SLOW_S / 3)
                    missing_bytes -= await taken(client, step_bytes)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                missing_bytes -= await taken(client, missing_bytes)
            assert missing_bytes > 5_000_000 if not step_bytes else missing_bytes == 0

    async def taken(client: socket.socket, most_bytes: int) -> int:
        left_bytes = most_bytes
        with contextlib.suppress(ConnectionResetError):
            while left_bytes and (
                piece := await asyncio.get_running_loop().sock_recv(client, min(left_bytes, 1 << 20))
            ):
                left_bytes -= len(piece)
        return most_bytes - left_bytes

    on_stage(tmp_path, scene)


@contextlib.contextmanager
def without_a_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (
            b"GET /v1/topics/slow/partitions/0/records?max_bytes=16777216 HTTP/1.1\r\nHost: x\r\n\r\n",
            web.StreamResponse,
        ),
        (b"GET /v1/topics/slow/stream?from=earliest HTTP/1.1\r\nHost: x\r\n\r\n", web.StreamResponse),
        (POST + b"X-A: 1\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 3_000_000, StreamReader),
        (LINES.replace(b"hostile", b"slow") + b"3d0900\r\n" + b"x" * 1_500_000, StreamReader),
    ],
    ids=["page", "stream", "body", "lines"],
)
def test_what_a_client_leaves_that_vanishes_is_freed_at_once(tmp_path: Path, asked: bytes, kept: type[object]) -> None:
    """Its answer, or what had come of its body, was in a cycle with the error that its end had raised. A cycle that has
    survived one look is kept until there are a million objects more.
    """

    def left() -> list[object]:
        return [each for each in gc.get_objects() if type(each) is kept and not any(each is one for one in of_others)]

    of_others: list[object] = []

    async def scene(stage: Stage) -> None:
        await stage.create("slow")
        body = json.dumps({"records": [{"value": "x" * 100_000}] * 7}).encode()
        server = app.WebServer(stage.broker, connections_max=10)
        await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        where = "127.0.0.1", server.endpoints[0].port
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await told_to(
                    where, (POST + b"Content-Length: %d\r\n\r\n" % len(body) + body) * 20, until=b'"offset":139,'
                )
                with without_a_collector():
                    of_others.extend(left())  # of other tests in this process
                    for _ in range(3):
                        with socket.socket() as client:
                            client.setblocking(False)
                            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
                            await loop.sock_connect(client, where)
                            await loop.sock_sendall(client, asked)
                            await asyncio.sleep(0.4)
                            assert left()
                            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    await asyncio.sleep(0.5)
                    assert left() == []
        finally:
            await server.stop()

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("media", [b"text/event-stream", b"application/x-ndjson"])
def test_a_stream_that_has_nothing_to_tell_ends_with_its_client(tmp_path: Path, media: bytes) -> None:
    """Its place is free for the next client at once, not when it would have said that it is still there."""

    async def scene(stage: Stage) -> None:
        await stage.create("quiet")
        server = app.WebServer(stage.broker, connections_max=3)
        await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        tally = stage.broker.requests.http
        asked = b"GET /v1/topics/quiet/stream HTTP/1.1\r\nHost: x\r\nAccept: %b\r\n\r\n" % media
        try:
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(3):
                    streams = [await asyncio.open_connection("127.0.0.1", server.endpoints[0].port) for _ in range(3)]
                    for from_server, to_server in streams:
                        to_server.write(asked)
                        assert (await from_server.readline()).startswith(b"HTTP/1.1 200")
                    assert tally.streams == 3
                    for _, to_server in streams:
                        to_server.close()
                    async with asyncio.timeout(2):
                        while tally.streams:  # noqa: ASYNC110 (nothing tells when it has ended)
                            await asyncio.sleep(0.01)
                assert {status for _, _, status in tally.answered} == {499}
        finally:
            await server.stop()

    on_stage(tmp_path, scene)


def test_lines_that_come_now_and_then_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        async with impatient(stage, monkeypatch) as where:
            lines = [b'd\r\n{"value": 1}\n\r\n', b"1\r\n\n\r\n", b'6\r\n{"valu\r\n', b'7\r\ne": 1}\n\r\n'] * 8
            found, took_s = await told_to(where, LINES, [*lines, b"0\r\n\r\n"], b"0\r\n\r\n")
            assert (found.count(b'"offset"'), found.count(b"problem")) == (16, 0)
            assert took_s > 3 * SLOW_S

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("when", ["1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00+23:59"])
def test_a_time_before_1970_is_none(http: Http, topic: str, when: str) -> None:
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}).status == 200
    answer = http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1, "timestamp": when}]})
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-record")
    answer = http.get(f"/v1/topics/{topic}/partitions/0/records", params={"offset": f"@{when}"})
    assert answer.status == 400, "it would mean the latest, or the earliest"


def test_a_digit_that_is_no_number_is_no_time(http: Http, topic: str) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    answer = http.post(f"/v1/topics/{topic}/records", b"x", params={"timestamp": "²"}, headers=headers)
    assert (answer.status, answer.json["type"]) == (400, "/problems/malformed")


@pytest.mark.parametrize("wrong", [{"offset": 2**63}, {"offset": -1}, {"leader_epoch": 2**31}, {"partition": 2**31}])
def test_offsets_beyond_their_type_are_refused_and_nothing_is_written(
    served: Served, http: Http, topic: str, wrong: dict[str, int]
) -> None:
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}).status == 200
    offsets = {"group": topic, "offsets": [{"topic": topic, "partition": 0, "offset": 1, **wrong}]}
    answer = http.post("/v1/records", {"records": [{"topic": topic, "value": 2}], "offsets": offsets})
    assert (answer.status, answer.json["type"], answer.json["outcome"]) == (422, "/problems/invalid-request", "none")
    assert [each.value for each in read_all(served.bootstrap, topic)] == [b"1"]
