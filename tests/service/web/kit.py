"""A real broker process with its HTTP API, and a plain client."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import requests
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition
from multidict import CIMultiDict

from service.garbage import Garbage
from service.web.holding import HOLDER, Holder, Holding
from service.web.taking import CAME_S

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 30.0
TURN_S = 0.1
"""Ten milliseconds are meant; others have this machine too."""


class Launched:
    """`oncelog serve` as a process, with HTTP on any free port and a log beside its data."""

    tree = ROOT
    """Where its code is."""
    program: tuple[str, ...] = (sys.executable, "-m", "service.cli")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def launch(self, *arguments: str, patience_s: float = PATIENCE_S) -> None:
        with open(f"{self.folder}.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(*self.program, "serve", "-o", "json", "--data", str(self.folder)),
                    *("--host", "127.0.0.1", "-o", "http.listeners=http://127.0.0.1:0", *arguments),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.tree,
            )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], patience_s)
        assert readable, "no broker came up"
        self.facts: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.bootstrap: str = self.facts["bootstrap"]

    def kill(self) -> None:
        self.process.kill()
        self._gone()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self._gone()

    def _gone(self) -> int:
        status = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    @property
    def log(self) -> str:
        return Path(f"{self.folder}.log").read_text() if os.path.exists(f"{self.folder}.log") else ""


class Served(Launched):
    """One broker; ended and started again at will."""

    def __init__(self, folder: Path, **settings: str) -> None:
        super().__init__(folder)
        self.settings = {"log.durability": "os", "group.initial.rebalance.delay.ms": "0", **settings}
        self.port = 0
        self.start()

    def start(self) -> None:
        overrides = [part for name, value in self.settings.items() for part in ("-o", f"{name}={value}")]
        self.launch("--port", str(self.port), *overrides)
        self.port = int(self.bootstrap.rpartition(":")[2])
        (self.url,) = self.facts["http"]


class Answer(NamedTuple):
    status: int
    json: Any
    headers: Any


class Http:
    """One connection that is kept."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        if body is not None and not isinstance(body, bytes | str):
            more["json"] = body
        elif body is not None:
            more["data"] = body
        answer = self.session.request(method, self.url + path, timeout=PATIENCE_S, **more)
        is_json = "json" in answer.headers.get("Content-Type", "") and "ndjson" not in answer.headers["Content-Type"]
        return Answer(answer.status_code, answer.json() if is_json and answer.content else answer.text, answer.headers)

    def get(self, path: str, **more: Any) -> Answer:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.ask("POST", path, body, **more)

    def put(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.ask("PUT", path, body, **more)

    def delete(self, path: str, **more: Any) -> Answer:
        return self.ask("DELETE", path, **more)


class Coming(dict[Any, Any]):
    """A request whose body has come as a whole."""

    body_exists, client_max_size = True, 1 << 30
    content_type = "application/json"
    transport: object = MagicMock()

    def __init__(self, body: bytes, encoding: str = "identity") -> None:
        super().__init__()
        self[HOLDER] = Holder(Holding(1 << 30))
        self.headers, self.content = CIMultiDict({"Content-Encoding": encoding}), self
        self.rest = body

    def is_eof(self) -> bool:
        return True

    def read_nowait(self) -> bytes:
        rest, self.rest = self.rest, b""
        return rest

    async def readany(self) -> bytes:
        return self.read_nowait()


def asking(**facts: Any) -> Any:
    """A request that a test hands to a handler's parts."""
    request = MagicMock(**facts)
    request.__getitem__.side_effect = {HOLDER: Holder(Holding(1 << 30)), CAME_S: 0.0}.__getitem__
    return request


def ask_and_go(url: str, path: str, accept: str = "application/json", *, after_s: float = 0.2) -> None:
    """Ask, wait for a moment, and break the connection."""
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    with socket.create_connection((place.hostname, place.port), PATIENCE_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nAccept: {accept}\r\n\r\n".encode())
        time.sleep(after_s)


def whole_of(connection: socket.socket) -> Any:
    """What the next answer says, once it has come as a whole."""
    connection.settimeout(PATIENCE_S)
    answer = HTTPResponse(connection)
    answer.begin()
    assert answer.status == 200, answer.status
    return json.loads(answer.read())


class Seen(NamedTuple):
    """A record as a Kafka client sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


def read_all(bootstrap: str, topic: str) -> list[Seen]:
    """Everything committed, read by confluent-kafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
        consumer.assign([KafkaPartition(topic, number, 0) for number in partitions])
        ended: set[int] = set()
        found: list[Seen] = []
        while len(ended) < len(partitions):
            message: Any = consumer.poll(PATIENCE_S)
            assert message is not None, "nothing more comes, and no end"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
                continue
            place = message.partition(), message.offset(), message.key(), message.value()
            found.append(Seen(*place, message.headers() or [], message.timestamp()[1]))
    finally:
        consumer.close()
    return found


def longest_turn_s(work: Coroutine[Any, Any, None]) -> float:
    """The processor's time that the longest turn of the loop took while this was done."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - before)

    async def scenario() -> None:
        collector = asyncio.create_task(Garbage().run())  # as in a broker: a full look of Python's own takes 0.1 s
        task = asyncio.create_task(watch())
        await asyncio.sleep(0)  # or work that never waits would be over before the first look
        try:
            await work
        finally:
            await asyncio.sleep(0)
            task.cancel()
            collector.cancel()

    try:
        asyncio.run(scenario())
    finally:
        gc.unfreeze()
    return longest_s


def turns_of(work: Coroutine[Any, Any, object]) -> int:
    """How many turns of the loop others had meanwhile."""

    async def count() -> int:
        task, turns = asyncio.ensure_future(work), 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        await task
        return turns

    return asyncio.run(count())
