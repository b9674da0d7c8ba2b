"""How long HTTP holds the event loop: each way to write with the largest body that it takes, and streams to which
nothing comes. `tests.bench.turns` shows each as it does for the wire.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from service.settings.broker import BrokerConfig
from service.web import following
from service.web.looking import RECORD_BYTES_MAX, RECORDS_MAX

PATIENCE_S: Final = 120.0
LARGE, WIDE, SMALL = "http.large", "http.wide", "http.small"
"""Two take any batch, of which one has many partitions; the last takes what topics take by default."""
PARTITIONS: Final = 40
ROOM_BYTES: Final = BrokerConfig({}).http_max_body_bytes - (64 << 10)
"""The most bytes that a body has here: the limit itself, but for what is around."""
LONG_BYTES: Final = RECORD_BYTES_MAX - 1_000
JSON, LINES, OCTETS = "application/json", "application/x-ndjson", "application/octet-stream"
EVENT, EVENTS = "application/cloudevents+json", "application/cloudevents-batch+json"
REPORTED: Final = 100_000
"""So many lines are sent before any report on them is read."""
IDLE_STREAMS: Final = 3
QUIET_S: Final = 0.5
"""After so long, and not 15 s, a stream says that it is still there."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request with a long body."""

    what: str
    path: str
    media: str
    make: Callable[[], bytes]
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, port: int, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request(self.method, self.path, body, {"Content-Type": self.media, **self.headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def ask(port: int, method: str, path: str, content: object = None) -> Any:
    body = None if content is None else json.dumps(content).encode()
    status, said = Sent("", path, JSON, bytes, method).send(port, body or b"")
    assert status < 300, (status, said[:300])
    return json.loads(said) if said else None


def prepare(port: int) -> None:
    for name, partitions, configs in (
        (LARGE, 1, {"max.message.bytes": str(100 << 20)}),
        (WIDE, PARTITIONS, {"max.message.bytes": str(100 << 20)}),
        (SMALL, 1, {}),
    ):
        ask(port, "POST", "/v1/topics", {"name": name, "partitions": partitions, "configs": configs})


def _filled(before: bytes, one: bytes, between: bytes, after: bytes, size_bytes: int = ROOM_BYTES) -> bytes:
    """As many of `one` as there is room for."""
    count = (size_bytes - len(before) - len(after)) // (len(one) + len(between))
    return before + between.join([one] * count) + after


def _records(record: bytes, size_bytes: int = ROOM_BYTES) -> bytes:
    return _filled(b'{"records":[', record, b",", b"]}", size_bytes)


def _spread(value_bytes: int) -> bytes:
    """Records of this length for one partition after the other."""
    count = ROOM_BYTES // (value_bytes + 60)
    some = (b'{"partition":%d,"value_string":"%b"}' % (n % PARTITIONS, b"x" * value_bytes) for n in range(count))
    return b'{"records":[%b]}' % b",".join(some)


LONG: Final = {
    "a string": b'"%b"' % (b"x" * LONG_BYTES),
    "a string beyond ASCII": b'"%b"' % ("\u20ac".encode() * (LONG_BYTES // 3)),
    "escapes": b'"%b"' % (b"\\n" * (LONG_BYTES // 2)),
    "lists": _filled(b"[", b"[]", b",", b"]", LONG_BYTES),
    "numbers": _filled(b"[", b"1", b",", b"]", LONG_BYTES),
    "objects": _filled(b"[", b'{"a":1}', b",", b"]", LONG_BYTES),
}
"""Values as long as a record may be."""
PACKED: Final = base64.b64encode(bytes(LONG_BYTES * 3 // 4))


def ways(port: int) -> Iterator[Sent]:
    """Every way in, with a body as long as it may be."""
    own, events, v2 = f"/v1/topics/{LARGE}/records", f"/v1/topics/{LARGE}/events", f"/topics/{LARGE}"
    cluster = ask(port, "GET", "/v3/clusters")["data"][0]["cluster_id"]
    v3 = f"/v3/clusters/{cluster}/topics/{LARGE}/records"
    key = {"Idempotency-Key": f'"{time.time_ns()}"'}
    yield Sent("bytes", own, OCTETS, lambda: bytes(ROOM_BYTES))
    yield Sent("bytes with a key", own, OCTETS, lambda: bytes(ROOM_BYTES), headers=key)
    yield Sent("a file", own, OCTETS, lambda: bytes(ROOM_BYTES), "PUT", {"Idempotency-Key": f'"f{time.time_ns()}"'})
    yield Sent("bytes that are too many", f"/v1/topics/{SMALL}/records", OCTETS, lambda: bytes(ROOM_BYTES))
    packed = {"Content-Encoding": "gzip"}
    yield Sent("packed bytes", own, OCTETS, lambda: gzip.compress(bytes(ROOM_BYTES)), headers=packed)
    yield Sent("bytes on the short way", own, OCTETS, lambda: bytes(1 << 20))
    for what, value in LONG.items():
        yield Sent(f"JSON, each {what}", own, JSON, lambda value=value: _records(b'{"value":%b}' % value))  # type: ignore[misc]
    for what in ("a string", "a string beyond ASCII", "escapes"):
        text = b'{"value_string":%b}' % LONG[what]
        yield Sent(f"JSON, each value_string {what}", own, JSON, lambda text=text: _records(text))  # type: ignore[misc]
    yield Sent("JSON, each base64", own, JSON, lambda: _records(b'{"value_base64":"%b"}' % PACKED))
    yield Sent("JSON, each with a long key", own, JSON, lambda: _records(b'{"key":%b}' % LONG["a string"]))
    shortest = b'{"value":1}' + b" " * (ROOM_BYTES // (RECORDS_MAX - 1) - 11)
    yield Sent("JSON, the most records", own, JSON, lambda: _records(shortest))
    keyed = {"Idempotency-Key": f'"k{time.time_ns()}"'}
    yield Sent("JSON, the most records, with a key", own, JSON, lambda: _records(shortest), headers=keyed)
    wide = f"/v1/topics/{WIDE}/records"
    for size_bytes in (1_000, 100_000, 700_000):
        yield Sent(f"JSON, {size_bytes} bytes each, spread", wide, JSON, lambda size=size_bytes: _spread(size))  # type: ignore[misc]
    beside = lambda: b'{"offsets":"%b","records":[{}]}' % (b"x" * (ROOM_BYTES - 100))  # noqa: E731
    yield Sent("JSON, much beside the records", own, JSON, beside)
    yield Sent("no JSON", own, JSON, lambda: b"[" * ROOM_BYTES)
    for what, value in LONG.items():
        line = b'{"value":%b}' % value
        yield Sent(f"lines, each {what}", own, LINES, lambda line=line: _filled(b"", line, b"\n", b"\n"))  # type: ignore[misc]
    yield Sent("lines, each base64", own, LINES, lambda: _filled(b"", b'{"value_base64":"%b"}' % PACKED, b"\n", b"\n"))
    yield Sent("lines, short", own, LINES, lambda: b'{"value":1}\n' * REPORTED)
    yield Sent("lines of nothing", own, LINES, lambda: b"{}\n" * REPORTED)
    yield Sent("lines, blank", own, LINES, lambda: b"\n" * ROOM_BYTES)
    about = b'{"id":"1","source":"a","specversion":"1.0","type":"b",'
    for size_bytes, many in (ROOM_BYTES, "one"), (LONG_BYTES, "many"):
        for what, data in _data(size_bytes):
            event = about + data + b"}"
            if many == "one":
                yield Sent(f"an event, {what}", events, EVENT, lambda event=event: event)  # type: ignore[misc]
            else:
                yield Sent(f"events, each {what}", events, EVENTS, lambda event=event: _filled(b"[", event, b",", b"]"))  # type: ignore[misc]
    binary = {"ce-id": "1", "ce-source": "a", "ce-specversion": "1.0", "ce-type": "b"}
    yield Sent("an event in binary mode", events, OCTETS, lambda: bytes(ROOM_BYTES), headers=binary)
    short = about + b'"data":1}'
    yield Sent("events, short", events, EVENTS, lambda: _filled(b"[", short, b",", b"]"))
    for what, value in LONG.items():
        body = lambda value=value: _records(b'{"value":%b}' % value)  # noqa: E731
        yield Sent(f"version 2, each {what}", v2, "application/vnd.kafka.json.v2+json", body)
    in_base64 = b'{"value":"%b"}' % PACKED
    yield Sent("version 2, base64", v2, "application/vnd.kafka.binary.v2+json", lambda: _records(in_base64))
    yield Sent("version 2, short", v2, "application/vnd.kafka.json.v2+json", lambda: _records(shortest))
    for what, value in LONG.items():
        one = b'{"value":{"type":"JSON","data":%b}}' % value
        yield Sent(f"version 3, each {what}", v3, JSON, lambda one=one: _filled(b"", one, b"\n", b""))  # type: ignore[misc]
        entry = b'{"id":"1",%b' % one[1:]
        batch = lambda entry=entry: _filled(b'{"entries":[', entry, b",", b"]}")  # noqa: E731
        yield Sent(f"version 3, a batch, each {what}", v3 + ":batch", JSON, batch)
    begun = ask(port, "POST", "/v1/transactions", {"transactional_id": "turns"})["txn"]
    of_topic = b'{"topic":"%b",' % LARGE.encode()
    for number, (what, make) in enumerate(_batches(of_topic)):
        yield Sent(f"a transaction, {what}", f"/v1/transactions/{begun}/batches/{number}", JSON, make, "PUT")


def _data(size_bytes: int) -> Iterable[tuple[str, bytes]]:
    room = size_bytes - 200
    yield "text", b'"data":"%b"' % (b"x" * room)
    yield "text beyond ASCII", b'"data":"%b"' % ("\u20ac".encode() * (room // 3))
    yield "lists", b'"data":' + _filled(b"[", b"[]", b",", b"]", room)
    yield "base64", b'"data_base64":"%b"' % base64.b64encode(bytes(room * 3 // 4 - 3))
    yield "an attribute", b'"more":"%b"' % (b"x" * room)


def _batches(of_topic: bytes) -> Iterable[tuple[str, Callable[[], bytes]]]:
    yield "long records", lambda: _records(of_topic + b'"value":%b}' % LONG["a string"])
    small = of_topic + b'"value":1}'
    yield "many", lambda: _records(small + b" " * (ROOM_BYTES // (RECORDS_MAX - 1) - len(small)))


def idle_streams(port: int, connections: ExitStack) -> None:
    """Streams that read together, to which nothing comes, until each has said that it is still there."""
    following.QUIET_S = QUIET_S
    path = f"/v1/topics/{WIDE}/stream?from=latest"
    for _ in range(IDLE_STREAMS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connections.callback(connection.close)
        connection.request("GET", path, headers={"Accept": "text/event-stream"})
        answer = connection.getresponse()
        assert answer.status == 200
        while b"still here" not in answer.readline():
            pass
