"""How fast HTTP is, by `wrk` from Debian: writing, alone and safely repeatable and over several topics."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from tests.bench import native
from tests.peers.process import BrokerProcess

CONNECTIONS: Final = 16
RECORD: Final = {"key": "user-7", "value": {"n": 7, "name": "someone", "amount": 12.5}}
LINES: Final = 100_000
FOLLOWERS: Final = 500
EVENTS_A_SECOND: Final = 100
IDLE_STREAMS: Final = 2_000
SETTLING_S: Final = 1.0
WIRE_RECORDS: Final = 5_000_000
WIRE_RUNS: Final = 11
VALUE: Final = re.compile(rb'"value":"(\d{8})"')
TIMES_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0}
KEYED: Final = """
local number = 0
request = function()
  number = number + 1
  wrk.headers["Idempotency-Key"] = '"' .. os.time() .. "-" .. tostring(wrk.thread):sub(11) .. "-" .. number .. '"'
  return wrk.format()
end
"""

Rows = dict[str, float]


def missing() -> str | None:
    return None if shutil.which("wrk") else "there is no wrk (apt install wrk)"


def load(url: str, path: str, body: bytes, seconds: float, *, media: str, connections: int, more: str = "") -> Rows:
    """Requests a second, and how long they took in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder) / "body"
        content.write_bytes(body)
        script = Path(folder) / "load.lua"
        script.write_text(
            f'local file = io.open("{content}", "rb")\nwrk.method = "POST"\nwrk.path = "{path}"\n'
            f'wrk.body = file:read("*a")\nwrk.headers["Content-Type"] = "{media}"\n{more}'
        )
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "--latency", "-s", str(script), url]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert "Non-2xx" not in said, said
    found = {"per_second": float(re.findall(r"Requests/sec:\s+([\d.]+)", said)[0])}
    for percent in ("50", "99"):
        number, unit = re.findall(rf"{percent}%\s+([\d.]+)(us|ms|s)", said)[0]
        found[f"p{percent}_ms"] = float(number) * TIMES_MS[unit]
    return found


def post(url: str, path: str, body: object, more: Mapping[str, str] = MappingProxyType({})) -> None:
    headers = {"Content-Type": "application/json", **more}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def measure(broker: BrokerProcess, url: str, seconds: float) -> Rows:
    for name in ("one", "keyed", "batch", "raw", "lines", "a", "b", "c"):
        post(url, "/v1/topics", {"name": name, "partitions": 1})
        post(url, f"/v1/topics/{name}/records", {"records": [RECORD]})
    # What comes before the topic of the keys is there goes the long way (`service/web/lane.py`).
    post(url, "/v1/topics/keyed/records", {"records": [RECORD]}, {"Idempotency-Key": '"the first of all"'})
    json_media = "application/json"
    one = json.dumps({"records": [RECORD]}).encode()
    batch = json.dumps({"records": [RECORD] * 500}).encode()
    three = json.dumps({"records": [{"topic": name, **RECORD} for name in "abc"]}).encode()
    rows: Rows = {}

    def measured(name: str, unit: str, path: str, body: bytes, records: int = 1, **more: Any) -> float:
        """Many connections; what a request or record costs the broker's processor says the most on a busy machine."""
        cpu_s = sum(broker.cpu_seconds())
        found = load(url, path, body, seconds, connections=CONNECTIONS, **more)
        rows[f"HTTP {name}, {unit}"] = each = found["per_second"] * records
        rows[f"HTTP {name}, CPU us"] = (sum(broker.cpu_seconds()) - cpu_s) / (each * seconds) * 1e6
        return each

    single = measured("one record", "requests/s", "/v1/topics/one/records", one, media=json_media)
    if bridge := os.environ.get("BRIDGE"):
        there = through(bridge, one, seconds)
        rows["HTTP one record through the bridge, requests/s"] = there
        rows["HTTP one record, times the bridge's"] = single / there
    measured("with an Idempotency-Key", "requests/s", "/v1/topics/keyed/records", one, media=json_media, more=KEYED)
    measured("batches of 500", "msg/s", "/v1/topics/batch/records", batch, 500, media=json_media)
    measured("raw 1 KB", "requests/s", "/v1/topics/raw/records", b"x" * 1024, media="application/octet-stream")
    together = load(url, "/v1/records", three, seconds, media=json_media, connections=1)
    rows["HTTP over three topics, p50 ms"] = together["p50_ms"]
    rows["HTTP over three topics, p99 ms"] = together["p99_ms"]
    rows["HTTP lines in, msg/s"] = lines_in(url)
    rows["HTTP events out, msg/s"] = events_out(url)
    rows |= followed(url, FOLLOWERS, seconds)
    rows |= beside_streams(broker, url)
    return rows


def through(bridge: str, body: bytes, seconds: float) -> float:
    """Requests a second that Strimzi's Kafka Bridge takes before whatever broker it was started with: a first load
    warms it up.
    """
    for each_s in (max(seconds, 20.0), seconds):
        found = load(
            bridge, "/topics/one", body, each_s, media="application/vnd.kafka.json.v2+json", connections=CONNECTIONS
        )
    if not found["per_second"]:
        raise RuntimeError(f"the bridge at {bridge} answered nothing within {seconds:.0f} s")
    return found["per_second"]


def lines_in(url: str) -> float:
    """Lines written while their reports come back."""
    body = (json.dumps(RECORD) + "\n").encode() * LINES
    place = urlsplit(url)
    head = (
        "POST /v1/topics/lines/records HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    began = time.monotonic()
    with socket.create_connection((place.hostname, place.port), 60) as connection:
        sender = threading.Thread(target=connection.sendall, args=(head.encode() + body,))
        sender.start()
        said = b""
        while some := connection.recv(1 << 20):
            said += some
        sender.join()
    took = time.monotonic() - began
    assert said.count(b'"line"') == LINES
    return LINES / took


def streams(url: str, topic: str, count: int) -> list[socket.socket]:
    """Connections that follow a topic as server-sent events."""
    place = urlsplit(url)
    head = f"GET /v1/topics/{topic}/stream HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode()
    found = []
    for _ in range(count):
        connection = socket.create_connection((place.hostname, place.port), 60)
        connection.sendall(head)
        found.append(connection)
    for connection in found:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    return found


def followed(url: str, clients: int, seconds: float) -> Rows:
    """How long after it was sent an event reaches each of very many clients, in milliseconds."""
    post(url, "/v1/topics", {"name": "followed", "partitions": 1})
    connections = streams(url, "followed", clients)
    sent_s: list[float] = []

    def send() -> None:
        place = urlsplit(url)
        poster = http.client.HTTPConnection(f"{place.hostname}:{place.port}", timeout=60)
        began_s = time.monotonic()
        for number in range(int(seconds * EVENTS_A_SECOND)):
            time.sleep(max(began_s + number / EVENTS_A_SECOND - time.monotonic(), 0))
            sent_s.append(time.monotonic())
            body = b'{"records":[{"value":"%08d"}]}' % number
            poster.request("POST", "/v1/topics/followed/records", body, {"Content-Type": "application/json"})
            poster.getresponse().read()

    sender = threading.Thread(target=send)
    waits_ms: list[float] = []
    rests = {connection.fileno(): b"" for connection in connections}
    of = {connection.fileno(): connection for connection in connections}
    ready = select.epoll()
    for number in of:
        ready.register(number, select.EPOLLIN)
    sender.start()
    wanted = clients * int(seconds * EVENTS_A_SECOND)
    deadline = time.monotonic() + seconds + 120
    while len(waits_ms) < wanted and time.monotonic() < deadline:
        for number, _ in ready.poll(1):
            said = rests[number] + of[number].recv(1 << 18)
            now_s = time.monotonic()
            end = said.rfind(b"\n\n") + 1
            waits_ms += [1000 * (now_s - sent_s[int(each)]) for each in VALUE.findall(said, 0, end)]
            rests[number] = said[end:]
    sender.join()
    for connection in connections:
        connection.close()
    assert len(waits_ms) == wanted, f"{wanted - len(waits_ms)} of {wanted} events did not come"
    waits_ms.sort()
    return {
        f"HTTP {clients} followers, p50 ms": waits_ms[wanted // 2],
        f"HTTP {clients} followers, p99 ms": waits_ms[wanted * 99 // 100],
    }


def beside_streams(broker: BrokerProcess, url: str) -> Rows:
    """What a record costs the broker that comes by the wire, without and with very many streams that follow another
    topic: the medians of runs that take turns. What a run has written is deleted: once the system has very many pages
    to write to the disk, a write costs several times as much of the processor.
    """
    clock = ~broker.pid << 3 | 2  # of the process's CPU time, as clock_getcpuclockid(3) names it

    def cost_ns() -> float:
        post(url, "/v1/topics", {"name": "wire", "partitions": 1})
        time.sleep(SETTLING_S)
        began_ns = time.clock_gettime_ns(clock)
        native.run("produce", broker.bootstrap, "wire", WIRE_RECORDS, 100, settings={"acks": "all", "linger.ms": "5"})
        spent_ns = time.clock_gettime_ns(clock) - began_ns
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/topics/wire", method="DELETE"), timeout=60).close()
        time.sleep(SETTLING_S)
        return spent_ns / WIRE_RECORDS

    post(url, "/v1/topics", {"name": "quiet", "partitions": 1})
    cost_ns()  # warms it up
    without, beside = [], []
    for _ in range(WIRE_RUNS):
        without.append(cost_ns())
        connections = streams(url, "quiet", IDLE_STREAMS)
        beside.append(cost_ns())
        for connection in connections:
            connection.close()
    more = statistics.median(beside) / statistics.median(without) - 1
    return {f"the wire beside {IDLE_STREAMS} idle streams, CPU more, %": 100 * more}


def events_out(url: str) -> float:
    """What the lines have become, as server-sent events to one client."""
    began = time.monotonic()
    with urllib.request.urlopen(f"{url}/v1/topics/lines/stream?from=earliest&until=end", timeout=60) as answer:
        said: bytes = answer.read()
        took = time.monotonic() - began
    return said.count(b"event: record") / took
