"""How fast HTTP is, by `wrk` from Debian: writing, alone and safely repeatable and over several topics."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.peers.process import BrokerProcess

CONNECTIONS: Final = 16
RECORD: Final = {"key": "user-7", "value": {"n": 7, "name": "someone", "amount": 12.5}}
LINES: Final = 100_000
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


def post(url: str, path: str, body: object) -> None:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def measure(broker: BrokerProcess, url: str, seconds: float) -> Rows:
    for name in ("one", "keyed", "batch", "raw", "lines", "a", "b", "c"):
        post(url, "/v1/topics", {"name": name, "partitions": 1})
        post(url, f"/v1/topics/{name}/records", {"records": [RECORD]})
    json_media = "application/json"
    one = json.dumps({"records": [RECORD]}).encode()
    batch = json.dumps({"records": [RECORD] * 500}).encode()
    three = json.dumps({"records": [{"topic": name, **RECORD} for name in "abc"]}).encode()
    rows: Rows = {}
    cpu_s = sum(broker.cpu_seconds())
    single = load(url, "/v1/topics/one/records", one, seconds, media=json_media, connections=CONNECTIONS)
    cpu_us = (sum(broker.cpu_seconds()) - cpu_s) / (single["per_second"] * seconds) * 1e6
    rows["HTTP one record, requests/s"], rows["HTTP one record, CPU us"] = single["per_second"], cpu_us
    if bridge := os.environ.get("BRIDGE"):
        there = through(bridge, one, seconds)
        rows["HTTP one record through the bridge, requests/s"] = there
        rows["HTTP one record, times the bridge's"] = single["per_second"] / there
    keyed = load(url, "/v1/topics/keyed/records", one, seconds, media=json_media, connections=CONNECTIONS, more=KEYED)
    rows["HTTP with an Idempotency-Key, requests/s"] = keyed["per_second"]
    batches = load(url, "/v1/topics/batch/records", batch, seconds, media=json_media, connections=CONNECTIONS)
    rows["HTTP batches of 500, msg/s"] = batches["per_second"] * 500
    raw = load(
        url, "/v1/topics/raw/records", b"x" * 1024, seconds, media="application/octet-stream", connections=CONNECTIONS
    )
    rows["HTTP raw 1 KB, requests/s"] = raw["per_second"]
    together = load(url, "/v1/records", three, seconds, media=json_media, connections=1)
    rows["HTTP over three topics, p50 ms"] = together["p50_ms"]
    rows["HTTP over three topics, p99 ms"] = together["p99_ms"]
    rows["HTTP lines in, msg/s"] = lines_in(url)
    rows["HTTP events out, msg/s"] = events_out(url)
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


def events_out(url: str) -> float:
    """What the lines have become, as server-sent events to one client."""
    began = time.monotonic()
    with urllib.request.urlopen(f"{url}/v1/topics/lines/stream?from=earliest&until=end", timeout=60) as answer:
        said: bytes = answer.read()
    return said.count(b"event: record") / (time.monotonic() - began)
