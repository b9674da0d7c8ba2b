"""The server: where it listens, what every answer has, how it ends."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from service.settings.broker import BrokerConfig, Endpoint
from service.settings.setting import ConfigError
from service.web.app import WebServer
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.cli.kit import process
from tests.service.web.kit import PATIENCE_S, Http


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
        f"oncelog: can't listen on 127.0.0.1:{port} for HTTP (http.listeners): the port is in use"
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
