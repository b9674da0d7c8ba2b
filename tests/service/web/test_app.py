"""The server: where it listens, what every answer has, how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from service.settings.broker import BrokerConfig, Endpoint
from service.settings.setting import ConfigError
from service.web import app, compatible
from service.web.app import WebServer, _answered
from service.web.problems import Problem
from service.web.routing import STREAMING
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.cli.kit import process
from tests.service.web.kit import PATIENCE_S, Http, Served, whole_of


def where(**given: str) -> list[tuple[str, int]]:
    config = BrokerConfig({name.replace("_", "."): value for name, value in given.items()})
    return [(endpoint.host, endpoint.port) for endpoint in config.web_endpoints]


def test_the_http_port_goes_with_the_port_of_the_broker() -> None:
    assert where() == [("", 8082)]
    assert where(listeners="PLAINTEXT://127.0.0.1:9093") == [("127.0.0.1", 8083)]
    assert where(listeners="PLAINTEXT://:0") == [("", 0)]
    assert where(listeners="PLAINTEXT://:80") == [("", 0)]
    assert where(http_listeners="http://localhost:1234,http://[::1]:1235") == [("localhost", 1234), ("::1", 1235)]
    assert where(http_listeners="") == []


@pytest.mark.parametrize("wrong", ["https://:8443", "ftp://:1", "8082", "http://:70000", "http://:9092"])
def test_a_listener_that_can_not_be_served_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig({"http.listeners": wrong})


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = "listeners=PLAINTEXT://127.0.0.1:0"
        ended = process(
            *("serve", "--data", str(tmp_path / "data"), "-o", listeners),
            *("-o", f"http.listeners=http://127.0.0.1:{port}"),
        )
    assert ended.status == 1
    assert ended.err.splitlines()[-1] == (
        f"oncelog: can't listen on 127.0.0.1:{port} for HTTP: the port is in use;"
        " -o http.listeners=http://HOST:N takes another"
    )


def test_a_broker_says_that_it_lives_and_that_it_is_ready(http: Http) -> None:
    assert http.get("/livez").json == {"alive": True}
    assert http.get("/readyz").json["ready"] is True
    names = [check["name"] for check in http.get("/readyz?verbose").json["checks"]]
    assert names == ["serving", "session", "controller", "folders"]


def test_what_is_not_there_is_a_problem(http: Http) -> None:
    answer = http.get("/nowhere", headers={"X-Request-Id": "mine"})
    assert answer.status == 404
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert answer.headers["X-Request-Id"] == "mine"
    assert answer.json["type"] == "/problems/not-found"
    assert answer.json["outcome"] == "none"
    assert http.post("/livez").status == 405


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_comes_while_the_server_stops_is_ended(tmp_path: Path, turns: int) -> None:
    """It stayed open for ever if the loop took it in just before the listeners were closed."""

    async def scene(stage: Stage) -> None:
        web = WebServer(stage.broker, connections_max=10)
        await web.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        with socket.create_connection(("127.0.0.1", web.endpoints[0].port)) as client:
            client.setblocking(False)
            for _turn in range(turns):
                await asyncio.sleep(0)
            await web.stop()
            with suppress(ConnectionError):  # it had not been taken in yet, or was refused
                assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), PATIENCE_S) == b""

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(
    "path",
    ["/livez", "/readyz", "/metrics", "/openapi.json", "/v1/topics", "/v1/brokers", "/docs", "/ui", "/v3/clusters"],
)
def test_head_is_answered_as_get_without_a_body(http: Http, path: str) -> None:
    got, head = http.get(path), http.ask("HEAD", path)
    assert (head.status, head.json) == (got.status, "")
    assert head.headers["Content-Type"] == got.headers["Content-Type"]


@pytest.mark.parametrize("path", ["/metrics", "/ui?live", "/v1/topics"])
def test_what_comes_after_head_on_its_connection_is_the_next_answer(http: Http, path: str) -> None:
    """What is written in pieces was sent all the same, and taken for the next answer."""
    client = HTTPConnection(http.url.removeprefix("http://"), timeout=PATIENCE_S)
    for method, asked in (("HEAD", path), ("GET", "/livez")):
        client.request(method, asked)
        answer = client.getresponse()
        assert answer.status == 200
        told = answer.read()
    assert told == b'{"alive":true}'
    client.close()


def test_head_moves_no_reader_on(http: Http, topic: str) -> None:
    http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]})
    assert http.ask("HEAD", f"/v1/topics/{topic}/stream").status == 405
    member = http.post(f"/v1/groups/{topic}/members", {"topics": [topic]}).headers["Location"]
    assert http.ask("HEAD", f"{member}/records?wait_ms=1000").status == 405
    assert http.ask("HEAD", member).status == 200
    assert http.ask("HEAD", f"/v1/topics/{topic}/partitions/0/records?offset=77").status == 416


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://[x"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_a_page_of_another_site_changes_nothing(http: Http, topic: str, headers: dict[str, str]) -> None:
    """A form or a script there may send such requests without asking first, and did not need the answer."""
    for body in (b'{"records": [{"value": 1}]}', b"bytes"):
        media = "application/json" if body[:1] == b"{" else "application/octet-stream"
        answer = http.post(f"/v1/topics/{topic}/records", body, headers={"Content-Type": media, **headers})
        assert (answer.status, answer.json["type"], answer.json["outcome"]) == (403, "/problems/denied", "none")
    assert http.post(f"/consumers/{topic}", b"", headers=headers).json["error_code"] == 40301
    assert http.get(f"/v1/topics/{topic}", headers=headers).status == 404, "nothing was made"
    assert http.get("/v1/topics", headers=headers).status == 200, "a link from there may be followed"


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_a_page_of_another_site_moves_no_reader_on(http: Http, topic: str, headers: dict[str, str]) -> None:
    """It needed no answer either: a picture with such an address was enough. Nobody was given what the group was."""
    http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]})
    member = http.post(f"/v1/groups/{topic}/members", {"topics": [topic]}).headers["Location"]
    wishes = {"name": "i", "format": "json", "auto.offset.reset": "earliest"}
    assert http.post(f"/consumers/{topic}-v2", wishes).status == 200
    instance = f"/consumers/{topic}-v2/instances/i"
    assert http.post(f"{instance}/subscription", {"topics": [topic]}).status == 204
    for path in (member, f"{member}/records"):
        assert http.get(path, headers=headers).json["type"] == "/problems/denied"
    for path in ("/records", "/subscription", "/assignments", "/offsets"):
        answer = http.get(instance + path, headers=headers)
        assert (answer.status, answer.json["error_code"]) == (403, 40301)
    of_form = {"Accept": "application/vnd.kafka.json.v2+json"}
    for path, more in ((f"{member}/records?wait_ms=500", {}), (f"{instance}/records", of_form)):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            told = http.get(path, headers=more).json
            if found := told["records"] if isinstance(told, dict) else told:
                break
            assert time.monotonic() < deadline
        assert [each["value"] for each in found] == [1]
    assert http.delete(member).status == http.delete(instance).status == 204


def test_programs_and_own_pages_say_nothing_foreign(http: Http, topic: str) -> None:
    forwarded = {"Origin": "http://another-broker:8082", "X-Oncelog-Forwarded": "2"}
    of_browsers = ({"Origin": http.url}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"})
    for headers in ({}, forwarded, *of_browsers):
        answer = http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}, headers=headers)
        assert answer.status == 200, answer


REBOUND = "evil.example:8082"
NAMED = "http.cors.origins=https://proxy.example,https://[x", "advertised.listeners=PLAINTEXT://Broker.example:9092"


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A broker that has names."""
    settings = dict(each.split("=") for each in NAMED)
    served = Served(tmp_path_factory.mktemp("named") / "data", **settings)
    yield Http(served.url)
    served.stop()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": f"http://{REBOUND}"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Origin": f"http://{REBOUND}", "X-Oncelog-Forwarded": "2"},
        {"Accept-Language": ""},
        {"Accept-Language": "en", "Host": "evil.example"},
        {"Accept-Language": "en", "Host": "127.0.0.1.evil.example:8082"},
    ],
)
def test_a_name_that_somebody_lets_resolve_to_a_broker_makes_no_page_the_brokers_own(
    named: Http, topic: str, headers: dict[str, str]
) -> None:
    """A page from there was taken for the broker's own, and wrote, and read all records. These are the headers that
    Chromium sends, also for a script that would rather have none.
    """
    headers = {"Host": REBOUND, **headers}
    body = {"records": [{"value": 1}]}
    for method, path in (("POST", f"/v1/topics/{topic}/records"), ("GET", "/v1/topics"), ("GET", "/ui")):
        answer = named.ask(method, path, body if method == "POST" else None, headers=headers)
        assert (answer.status, answer.json["type"], answer.json["outcome"]) == (403, "/problems/denied", "none")
        assert "evil.example" in answer.json["detail"]
    assert named.get(f"/v1/topics/{topic}").status == 404, "nothing was made"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:1",
        "[::1]:1",
        "192.0.2.7",
        "localhost:1",
        "broker",
        "BROKER.example:1",
        "broker.example.",
        "proxy.example",
    ],
)
def test_a_browser_is_served_under_names_that_are_the_brokers(named: Http, topic: str, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}", "Accept-Language": "en"}
    assert named.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}, headers=headers).status == 200
    assert named.get("/ui", headers={"Host": host, "Accept-Language": "en"}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Accept-Language": "*", "Sec-Fetch-Mode": "cors"},
        {"Origin": "https://proxy.example", "Accept-Language": "en"},
    ],
    ids=["any", "Node", "a page that the settings name"],
)
def test_programs_and_pages_that_are_named_are_served_under_every_name(
    named: Http, topic: str, headers: dict[str, str]
) -> None:
    headers = {"Host": REBOUND, **headers}
    assert named.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}, headers=headers).status == 200
    assert named.get("/v1/topics", headers=headers).status == 200


@pytest.mark.parametrize(
    "failure", [Problem("not-now"), web.HTTPNotFound(), web.RequestPayloadError("cut off"), ValueError("a defect")]
)
def test_a_failure_after_the_head_was_sent_ends_the_connection(failure: Exception) -> None:
    """Any but a defect sent another head, which the client took for what the first one had announced."""
    request = make_mocked_request("GET", "/v1/topics/t/stream", transport=MagicMock())

    async def handler(request: web.Request) -> web.StreamResponse:
        request[STREAMING] = True
        raise failure

    assert asyncio.run(_answered(request, handler)).status == 499
    transport: Any = request.transport
    transport.abort.assert_called_once_with()


def test_a_call_of_another_api_that_fails_after_its_head_is_cut_off_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refusals have a form of their own."""

    async def handle(_: object, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        request[STREAMING] = True
        raise Problem("not-now")

    (route, *_) = [each for each in compatible.ROUTES if each.refuse is not None and each.body_streams]
    monkeypatch.setattr(app, "TABLES", ((replace(route, path="/call", handle=handle, body_streams=False),),))

    async def scene(stage: Stage) -> None:
        server = WebServer(stage.broker, 3)
        await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        stage.broker.ready.set()
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.endpoints[0].port)
                writer.write(f"{route.method} /call HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n".encode())
                with suppress(ConnectionError):
                    assert (await reader.read()).count(b"HTTP/1.1") <= 1
                writer.close()
        finally:
            await server.stop()

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(
    ("head", "status", "slug"),
    [
        ("POST /v1/topics/expects/records HTTP/1.1\r\nContent-Length: 99999999", 413, "record-too-large"),
        ("POST /v1/transactions HTTP/1.1\r\nContent-Length: 300000", 413, "record-too-large"),
        ("POST /v1/topics/expects/records?x=1 HTTP/1.1\r\nContent-Length: 9", 400, "malformed"),
        ("POST /v1/records HTTP/1.1\r\nContent-Length: 9\r\nContent-Encoding: x", 415, "unsupported-media-type"),
        ("POST /v1/records HTTP/1.1\r\nContent-Length: 9\r\nExpect: 200-maybe", 417, "expectation-failed"),
        ("POST /v1/nowhere HTTP/1.1\r\nContent-Length: 9", 404, "not-found"),
        ("POST /v1/nowhere HTTP/1.1\r\nContent-Length: 9\r\nExpect: 200-maybe", 404, "not-found"),
        ("POST /v1/brokers HTTP/1.1\r\nContent-Length: 9\r\nExpect: 200-maybe", 405, "method-not-allowed"),
    ],
)
def test_a_client_that_waits_with_its_body_is_not_told_to_send_it_in_vain(
    served: Served, head: str, status: int, slug: str
) -> None:
    """It was told to send 16 MiB, and refused afterwards; and what else it may expect was refused in plain text. What
    comes behind the refusal may be the body or the next request, so there is none.
    """
    place = urlsplit(served.url)
    assert place.hostname is not None and place.port is not None
    expects = "" if "Expect" in head else "Expect: 100-continue\r\n"
    with socket.create_connection((place.hostname, place.port), PATIENCE_S) as connection:
        connection.sendall(f"{head}\r\nHost: a\r\n{expects}\r\n".encode())
        answer = HTTPResponse(connection)
        answer.begin()
        problem = json.loads(answer.read())
        assert (answer.status, answer.headers["Content-Type"]) == (status, "application/problem+json")
        assert (problem["type"], answer.headers["Connection"]) == (f"/problems/{slug}", "close")


def test_a_client_that_waits_with_its_body_is_told_to_send_it(served: Served, http: Http, topic: str) -> None:
    place, body = urlsplit(served.url), b'{"records": [{"value": 1}]}'
    assert place.hostname is not None and place.port is not None
    with socket.create_connection((place.hostname, place.port), PATIENCE_S) as connection:
        for _ in range(2):  # the connection is kept
            head = f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}"
            connection.sendall(f"{head}\r\nContent-Type: application/json\r\nExpect: 100-Continue\r\n\r\n".encode())
            assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            assert whole_of(connection)["outcome"] == "applied"
