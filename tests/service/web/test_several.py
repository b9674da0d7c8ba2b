"""Three brokers: each answers every request, also about what another leads or coordinates."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from service.settings.broker import BrokerConfig
from service.web.gateway import Gateway
from service.web.instances import READS_MAX
from service.web.metrics import scraper_of
from tests.monitoring.scraped import read
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.web.kit import PATIENCE_S, Http, Launched, ask_and_go, read_all, whole_of
from tests.service.web.test_docs import STEP_S, TOOLS, Example

COUNT = 3
EVENT = b'{"id": "1", "source": "s", "specversion": "1.0", "type": "t"}'
_numbers = itertools.count()


class Several(Launched):
    def __init__(self, folder: Path) -> None:
        settings = ("-o", "log.durability=os", "-o", "group.initial.rebalance.delay.ms=0")
        super().__init__(folder)
        self.launch("--port", "0", "--brokers", str(COUNT), *settings, patience_s=2 * PATIENCE_S)
        self.clients = [Http(each["http"][0]) for each in self.facts["brokers"]]

    def stop(self) -> int:
        for client in self.clients:
            client.session.close()
        return super().stop()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    folder = tmp_path_factory.mktemp("several") / "data"
    brokers = Several(folder)
    make(brokers, "spread", 6)
    yield brokers
    brokers.stop()
    assert "Traceback" not in brokers.log, brokers.log


def make(several: Several, topic: str, partitions: int) -> None:
    assert several.clients[0].post("/v1/topics", {"name": topic, "partitions": partitions}).status == 201
    known(several, topic)


def known(several: Several, topic: str) -> None:
    """Wait until all have heard of the topic."""
    deadline = time.monotonic() + PATIENCE_S
    for client in several.clients:
        while client.get(f"/v1/topics/{topic}").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def values(records: list[dict[str, Any]]) -> list[Any]:
    return sorted(each["value"] for each in records)


def test_the_partitions_are_led_by_all(several: Several) -> None:
    partitions = several.clients[1].get("/v1/topics/spread").json["partitions"]
    assert {each["leader"] for each in partitions} == {1, 2, 3}
    assert len(several.clients[2].get("/v1/brokers").json["brokers"]) == COUNT


def test_every_broker_writes_to_and_reads_every_partition(several: Several) -> None:
    make(several, "pages", 6)
    for number, client in enumerate(several.clients):
        records = [{"partition": each, "value": 10 * number + each} for each in range(6)]
        answer = client.post("/v1/topics/pages/records", {"records": records})
        assert answer.status == 200, answer
        single = client.post("/v1/topics/pages/records", {"records": [{"partition": number, "value": 99}]})
        assert single.status == 200, single
    for client in several.clients:
        found = [client.get(f"/v1/topics/pages/partitions/{each}/records").json["records"] for each in range(6)]
        assert [len(each) for each in found] == [4, 4, 4, 3, 3, 3]
        lines = client.get(
            "/v1/topics/pages/stream?from=earliest&until=end", headers={"Accept": "application/x-ndjson"}
        )
        assert len(lines.json.splitlines()) == 21 + 1


def test_a_file_as_long_as_a_body_may_be_is_written_whichever_broker_is_asked(several: Several) -> None:
    """A leader that is asked for it inside closed the connection: it took 8 MiB, as of requests without records."""
    configs = {"max.message.bytes": str(20 << 20)}
    assert several.clients[0].post("/v1/topics", {"name": "files", "partitions": 1, "configs": configs}).status == 201
    known(several, "files")
    file = bytes(BrokerConfig({}).http_max_body_bytes)
    octets = {"Content-Type": "application/octet-stream"}
    for number, client in enumerate(several.clients):
        path = "/v1/topics/files/records"
        assert client.ask("POST", path, file, headers=octets).status == 200
        key = {"Idempotency-Key": f'"file-{number}"'}
        for each in several.clients:
            assert each.ask("PUT", path, file, headers={**octets, **key}).status == 200
    answer = several.clients[0].get("/v1/topics/files/partitions/0/records?values=base64&max_bytes=1")
    assert base64.b64decode(answer.json["records"][0]["value_base64"]) == file


@pytest.mark.timeout(2 * STEP_S)
@pytest.mark.parametrize("language", TOOLS)
def test_the_programs_of_the_page_may_ask_a_broker_that_leads_nothing_of_theirs(
    several: Several, language: str, tmp_path: Path
) -> None:
    example = Example(several.bootstrap, several.clients[0], language, f"page-in-{language}", tmp_path)
    leaders = []
    for name in ("sales", "sums"):
        known(several, f"{example.topic}-{name}")
        leaders.append(example.http.get(f"/v1/topics/{example.topic}-{name}").json["partitions"][0]["leader"])
    urls = {facts["node_id"]: facts["http"][0] for facts in several.facts["brokers"]}
    example.ask(next(url for node_id, url in urls.items() if node_id not in leaders))
    assert example.run() == (0, "")
    example.sell(*({"price": number, "count": 2} for number in range(20)))
    two = [example.start() for _ in range(2)]
    assert [(each.communicate(timeout=STEP_S)[1], each.returncode) for each in two] == [("", 0)] * 2
    assert example.sums() == [(b"anna", 3), (None, 12), *((b"k", 2 * number) for number in range(20))]


def test_a_stream_is_not_held_up_by_leaders_that_have_nothing(several: Several) -> None:
    """What one broker leads came up to five seconds late while the others had nothing new."""
    make(several, "lively", COUNT)
    reader = several.clients[0]
    headers = {"Accept": "application/x-ndjson"}
    with requests.get(f"{reader.url}/v1/topics/lively/stream", headers=headers, stream=True, timeout=60) as answer:
        lines = (json.loads(line) for line in answer.iter_lines(chunk_size=1) if line)
        assert next(lines)["progress"]
        time.sleep(0.5)
        began = time.monotonic()
        for number in range(20):
            several.clients[1].post("/v1/topics/lively/records", {"records": [{"value": number, "partition": 1}]})
            assert next(lines)["value"] == number
        assert time.monotonic() - began < 20, "four seconds each, if every leader is waited for"


def test_a_stream_from_several_leaders_goes_on_at_the_pace_of_its_client(several: Several) -> None:
    """While a portion of one leader's records was on its way, what came of another leader ended the connection."""
    make(several, "slow-reader", 6)
    http = several.clients[0]
    for number in range(8):
        records = [{"partition": at, "value": f"{number}-{at}" + "x" * 50_000} for at in range(6) for _ in range(3)]
        assert http.post("/v1/topics/slow-reader/records", {"records": records}).status == 200
    address = urlsplit(http.url)
    taken = bytearray()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        client.settimeout(PATIENCE_S)
        client.connect((address.hostname, address.port))
        client.sendall(
            b"GET /v1/topics/slow-reader/stream?from=earliest HTTP/1.1\r\nHost: x\r\n"
            b"Accept: application/x-ndjson\r\n\r\n"
        )
        while taken.count(b'"offset":') < 8 * 18:
            some = client.recv(40_000)
            assert some, "the connection was ended"
            taken += some
            time.sleep(0.02)


def test_a_page_that_waits_holds_up_no_writer_of_the_same_leader(several: Several) -> None:
    """All that one broker asked of another went over one connection, where answers come in their order."""
    make(several, "waited-for", 6)
    described = several.clients[0].get("/v1/topics/waited-for").json["partitions"]
    partitions = {each["partition"]: each["leader"] for each in described}
    for leader in set(partitions.values()):
        first, second = [each for each in partitions if partitions[each] == leader][:2]
        for client in several.clients:
            path = f"/v1/topics/waited-for/partitions/{first}/records?offset=latest&wait_ms=20000"
            waiting = threading.Thread(target=Http(client.url).get, args=(path,))
            waiting.start()
            time.sleep(0.3)
            began_s = time.monotonic()
            assert client.post("/v1/topics/waited-for/records", {"records": [{"partition": second}]}).status == 200
            assert time.monotonic() - began_s < 10
            assert client.post("/v1/topics/waited-for/records", {"records": [{"partition": first}]}).status == 200
            waiting.join(10)
            assert not waiting.is_alive()


def test_a_slow_follower_holds_up_no_writer_that_does_not_need_it(several: Several) -> None:
    """All that one broker wrote at another went over one connection, where answers come in their order."""
    for name, replicas in ("followed", [2, 3]), ("unfollowed", [2]):
        made = several.clients[0].post("/v1/topics", {"name": name, "assignments": [replicas]})
        assert made.status == 201, made
    process_id = several.facts["brokers"][2]["process_id"]
    answers: list[int] = []

    def write() -> None:
        answers.append(Http(several.clients[0].url).post("/v1/topics/followed/records", {"records": [{}]}).status)

    os.kill(process_id, signal.SIGSTOP)
    try:
        held = threading.Thread(target=write)
        held.start()
        time.sleep(0.5)
        began_s = time.monotonic()
        assert several.clients[0].post("/v1/topics/unfollowed/records", {"records": [{}]}).status == 200
        assert time.monotonic() - began_s < 4
        assert held.is_alive(), "it was not held up"
    finally:
        os.kill(process_id, signal.SIGCONT)
    held.join(PATIENCE_S)
    assert answers == [200]


def test_a_key_is_known_at_every_broker(several: Several) -> None:
    make(several, "keyed", 3)
    for number in range(9):
        answers = [
            client.post(
                "/v1/topics/keyed/records",
                {"records": [{"partition": number % 3, "value": number}]},
                headers={"Idempotency-Key": f'"several-{number}"'},
            )
            for client in several.clients
        ]
        assert [each.status for each in answers] == [200] * COUNT, answers
        assert len({json.dumps(each.json) for each in answers}) == 1
    assert len(read_all(several.bootstrap, "keyed")) == 9


def test_an_answer_that_is_given_again_counts_once_wherever_it_is_asked_for(several: Several) -> None:
    make(several, "counted", 1)

    def replayed() -> float:
        time.sleep(1.1)  # a scrape is shared for a second
        seen = [read(client.get("/metrics").json) for client in several.clients]
        return sum(each.one("oncelog_idempotency_replayed_total") for each in seen)

    before = replayed()
    for number in range(4):
        for client in several.clients:
            headers = {"Idempotency-Key": f'"counted-{number}"'}
            answer = client.post("/v1/topics/counted/records", {"records": [{"value": number}]}, headers=headers)
            assert answer.status == 200, answer
    assert replayed() - before == 4 * (COUNT - 1)


def test_a_key_knows_its_request_to_the_letter_at_every_broker(several: Several) -> None:
    make(several, "letters", 1)
    headers = {"Content-Type": "application/octet-stream", "Idempotency-Key": '"letters"'}
    path = "/v1/topics/letters/records?key=a%3Ab"
    answers = [client.post(path, b"x", headers=headers) for client in several.clients]
    assert [each.status for each in answers] == [200] * COUNT, answers


@pytest.mark.parametrize(
    ("method", "path", "media", "body"),
    [
        ("PUT", "/v1/topics/spread/records", b"text/plain\t; charset=utf-8", b"x"),
        ("PUT", "/v1/topics/spread/records", b"text/\xc3\x89", b"x"),
        ("PUT", "/v1/topics/spread/records", b"text/\xe9", b"x"),
        ("PUT", "/v1/topics/spread/records", b"text/100%41", b"x"),
        ("POST", "/v1/topics/spread/records", b"application/json\t;charset=utf-8", b'{"records": [{"value": 1}]}'),
        ("POST", "/v1/topics/spread/records", b"application/octet-stream\t", b"{"),
        ("POST", "/v1/topics/spread/events", b"application/cloudevents+json\t;charset=utf-8", EVENT),
    ],
)
def test_a_media_type_is_the_same_at_every_broker(
    several: Several, method: str, path: str, media: bytes, body: bytes
) -> None:
    """A broker that was sent a request by another read a tab and other bytes as they are quoted in between."""
    headers = {"Content-Type": media, "Idempotency-Key": f"media-{next(_numbers)}"}
    answers = [client.ask(method, path, body, headers=headers) for client in several.clients]
    assert [each.status for each in answers] == [200] * COUNT, answers
    assert [each.headers.get("Idempotency-Replayed") for each in answers] == [None, "true", "true"]


def test_an_instance_knows_a_media_type_at_every_broker(several: Several) -> None:
    media = {"Content-Type": "application/vnd.kafka.v2+json\t;charset=utf-8"}
    assert several.clients[0].post("/consumers/media", b'{"name": "i"}', headers=media).status == 200
    for client in several.clients:
        answer = client.post("/consumers/media/instances/i/subscription", b'{"topics": ["spread"]}', headers=media)
        assert answer.status == 204, answer
    assert several.clients[0].delete("/consumers/media/instances/i").status == 204


@pytest.mark.parametrize(
    "headers",
    [
        ["Record-Header-a: 1", "Record-Header-b: 2", "Record-Header-a: 3"],
        ["Record-Header-a: 100%", "Record-Header-b: %41"],
        [b"Record-Header-a: \xff\xe4", "Record-Header-b: \xe4".encode()],
        [b"Record-Header-a: " + (8190 - len("Record-Header-a")) * b"\xe9"],
        [b"Record-Header-a: %d" % number for number in range(123)],
    ],
)
def test_headers_of_a_record_are_the_same_at_every_broker(several: Several, headers: list[str | bytes]) -> None:
    """A broker that forwarded a request sent the last of repeated headers only, and other bytes for some."""
    key = f"headers-{next(_numbers)}"
    head = b"\r\n".join(
        each if isinstance(each, bytes) else each.encode()
        for each in [
            "POST http://some.host/v1/topics/spread/records?partition=3 HTTP/1.1",
            *(
                "Host: some.host",
                "Connection: close",
                f"Content-Length: {len(key)}",
                "Content-Type: application/octet-stream",
            ),
            f"Idempotency-Key: {key}",
            *headers,
        ]
    )
    for client in several.clients:
        place = urlsplit(client.url)
        with socket.create_connection((place.hostname, place.port), PATIENCE_S) as connection:
            connection.sendall(head + b"\r\n\r\n" + key.encode())
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200 "), answer
    (record,) = [each for each in read_all(several.bootstrap, "spread") if each.value == key.encode()]
    stored = [b"Record-Header-%b: %b" % (name.encode(), content or b"") for name, content in record.headers]
    assert stored == [each if isinstance(each, bytes) else each.encode() for each in headers]


@pytest.mark.parametrize("media", [None, b"text/caf\xe9", b"text/plain; a=100%25", "text/caf\xe9; b=\xe4".encode()])
def test_an_event_is_the_same_at_every_broker(several: Several, media: bytes | None) -> None:
    """A broker that forwarded one gave it a media type that it had not, and dropped bytes of the one that it had."""
    key = f"event-{next(_numbers)}".encode()
    head = b"\r\n".join(
        [
            b"POST /v1/topics/spread/events HTTP/1.1",
            *(b"Host: some.host", b"Connection: close", b"Content-Length: %d" % len(key), b"Idempotency-Key: " + key),
            *(b"ce-id: 1", b"ce-source: s", b"ce-type: t", b"ce-specversion: 1.0", b"ce-subject: 50%25"),
            *([] if media is None else [b"Content-Type: " + media]),
        ]
    )
    for client in several.clients:
        place = urlsplit(client.url)
        with socket.create_connection((place.hostname, place.port), PATIENCE_S) as connection:
            connection.sendall(head + b"\r\n\r\n" + key)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200 "), answer
    (record,) = [each for each in read_all(several.bootstrap, "spread") if each.value == key]
    stored = dict(record.headers)
    assert (stored.get("content-type"), stored["ce_subject"]) == (media, b"50%")


def test_a_transaction_goes_on_at_whichever_broker(several: Several) -> None:
    make(several, "txn", 3)
    for number in range(4):
        first, second, third = several.clients
        begun = first.post("/v1/transactions", {"transactional_id": f"txn-{number}"})
        assert begun.status == 201, begun
        txn = begun.headers["Location"]
        records = [{"topic": "txn", "partition": each, "value": number} for each in range(3)]
        assert second.put(f"{txn}/batches/0", {"records": records}).status == 200
        again = third.put(f"{txn}/batches/0", {"records": records})
        assert (again.status, again.headers.get("Batch-Replayed")) == (200, "true")
        offsets = {"offsets": [{"topic": "txn", "partition": 0, "offset": number}]}
        assert first.put(f"{txn}/offsets/group-{number}", offsets).json == {"outcome": "none"}
        assert third.post(f"{txn}:commit").json["outcome"] == "applied"
        assert second.get(txn).json["outcome"] == "applied"
    assert len(read_all(several.bootstrap, "txn")) == 12


def test_a_member_is_served_by_whichever_broker(several: Several) -> None:
    make(several, "shared", 3)
    joined = several.clients[0].post("/v1/groups/several/members", {"topics": ["shared"]})
    assert joined.status == 201, joined
    member = joined.headers["Location"]
    records = [{"partition": each, "value": each} for each in range(3)]
    assert several.clients[1].post("/v1/topics/shared/records", {"records": records}).status == 200
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 3:
        assert time.monotonic() < deadline
        polled = several.clients[2].get(f"{member}/records?wait_ms=500")
        assert polled.status == 200, polled
        found += values(polled.json["records"])
    assert sorted(found) == [0, 1, 2]
    token = {"commit_token": polled.json["commit_token"]}
    assert several.clients[1].post(f"{member}/offsets", token).status == 204
    assert several.clients[0].get("/v1/groups/several/lag").json["total"] == 0
    assert several.clients[2].delete(member).status == 204


def test_long_headers_of_answers_come_through_whichever_broker(several: Several) -> None:
    """Each was answered by the coordinator only: another broker could not read its answer, and what had been done
    stayed done.
    """
    for client in several.clients:
        begun = client.post("/v1/transactions", {"transactional_id": 8000 * "L"})
        assert begun.status == 201 and len(begun.headers["Location"]) > 8190, begun.status
        joined = client.post(f"/v1/groups/{8150 * 'G'}/members", {"topics": ["spread"]})
        assert joined.status == 201 and len(joined.headers["Location"]) > 8190, joined.status
        assert client.delete(joined.headers["Location"]).status == 204


def test_a_client_that_is_gone_has_read_nothing_at_whichever_broker(several: Several) -> None:
    make(several, "left", 1)
    joined = several.clients[0].post("/v1/groups/left/members", {"topics": ["left"]})
    member = joined.headers["Location"]
    deadline = time.monotonic() + PATIENCE_S
    while not several.clients[0].get(f"{member}/records?wait_ms=50").json["assignment"]:
        assert time.monotonic() < deadline
    for client in several.clients:
        ask_and_go(client.url, f"{member}/records?wait_ms=10000")
    time.sleep(1.5)  # who passed the request on has seen that the client is gone
    assert several.clients[1].post("/v1/topics/left/records", {"records": [{"value": 1}]}).status == 200
    time.sleep(0.7)  # the broker would have answered those who are gone
    assert values(several.clients[2].get(f"{member}/records?wait_ms=10000").json["records"]) == [1]
    assert several.clients[2].delete(member).status == 204


def test_a_consumer_instance_is_served_by_whichever_broker(several: Several) -> None:
    make(several, "instances", 6)
    media = {"Accept": "application/vnd.kafka.json.v2+json", "Content-Type": "application/vnd.kafka.v2+json"}
    records = [{"partition": each, "value": each} for each in range(6)]
    assert several.clients[1].post("/v1/topics/instances/records", {"records": records}).status == 200
    for number, client in enumerate(several.clients):
        wishes = {"name": "any", "format": "json", "auto.offset.reset": "earliest"}
        made = client.post(f"/consumers/group-{number}", wishes, headers=media)
        path = f"/consumers/group-{number}/instances/any"
        assert made.json == {"instance_id": "any", "base_uri": client.url + path}, "where it was asked for"
        turns = itertools.cycle(several.clients)
        assert next(turns).post(f"{path}/subscription", {"topics": ["instances"]}, headers=media).status == 204
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < 6:
            assert time.monotonic() < deadline
            found += values(next(turns).get(f"{path}/records", headers=media).json)
        assert sorted(found) == list(range(6))
        assert next(turns).post(f"{path}/offsets", headers=media).status == 200
        asked = {"partitions": [{"topic": "instances", "partition": 5}]}
        told = next(turns).ask("GET", f"{path}/offsets", asked, headers=media).json
        assert told == {"offsets": [{**asked["partitions"][0], "offset": 2, "metadata": ""}]}, "behind the marker"
        assert next(turns).delete(path, headers=media).status == 204
        assert next(turns).delete(path, headers=media).json["error_code"] == 40403


@pytest.mark.parametrize("after_s", [0.001, 0.05, 1.0])
def test_an_answer_that_is_lost_in_front_is_given_again(several: Several, after_s: float) -> None:
    """The broker in front had all of it when its client was gone: the instance lives elsewhere, and had moved on."""
    topic = f"in-front-{next(_numbers)}"
    make(several, topic, 1)
    octets = {"Content-Type": "application/octet-stream"}
    for _ in range(20):
        assert several.clients[0].post(f"/v1/topics/{topic}/records", os.urandom(500_000), headers=octets).status == 200
    binary = "application/vnd.kafka.binary.v2+json"
    media = {"Accept": binary, "Content-Type": "application/vnd.kafka.v2+json"}
    wishes = {"name": "any", "auto.offset.reset": "earliest"}
    assigned = {"partitions": [{"topic": topic, "partition": 0}]}
    for number, client in enumerate(several.clients):
        path = f"/consumers/{topic}-{number}/instances/any"
        assert client.post(f"/consumers/{topic}-{number}", wishes, headers=media).status == 200
        assert client.post(f"{path}/assignments", assigned, headers=media).status == 204
    for client in several.clients:
        for number in range(COUNT):
            path = f"/consumers/{topic}-{number}/instances/any/records"
            ask_and_go(client.url, f"{path}?max_bytes=6000000", binary, after_s=after_s)
            told = client.get(f"{path}?max_bytes=1200000", headers=media).json
            assert [each["offset"] for each in told] == [0, 1], "what nobody has seen"
            back = {"partitions": [{"topic": topic, "partition": 0}]}
            assert client.post(f"{path[:-8]}/positions/beginning", back, headers=media).status == 204


def test_a_read_that_waited_behind_another_and_is_forwarded_late_tells_nothing_of_an_answer(several: Several) -> None:
    """Its client had gone, or was asking since before that answer was written: another client's was taken for taken."""
    binary = "application/vnd.kafka.binary.v2+json"
    media = {"Accept": binary, "Content-Type": "application/vnd.kafka.v2+json"}
    for number, (front, other) in enumerate(itertools.permutations(several.clients, 2)):
        topic = f"late-{next(_numbers)}"
        make(several, topic, 1)
        wishes = {"name": "any", "auto.offset.reset": "earliest", "consumer.request.timeout.ms": "20000"}
        path = f"/consumers/{topic}/instances/any"
        assert front.post(f"/consumers/{topic}", wishes, headers=media).status == 200
        assigned = {"partitions": [{"topic": topic, "partition": 0}]}
        assert front.post(f"{path}/assignments", assigned, headers=media).status == 204
        asked = [socket.create_connection((urlsplit(each.url).hostname, urlsplit(each.url).port))
                 for each in (front, front, other)]  # fmt: skip
        with ExitStack() as stack:
            for each in asked:
                stack.enter_context(each)
                query = "max_bytes=1&timeout=20000"
                each.sendall(f"GET {path}/records?{query} HTTP/1.1\r\nHost: x\r\nAccept: {binary}\r\n\r\n".encode())
                time.sleep(0.15)
            if number % 2:
                asked[1].close()
                time.sleep(0.15)
            values = {"records": [{"value": each} for each in range(9)]}
            assert front.post(f"/v1/topics/{topic}/records", values).status == 200
            seen = {each["offset"] for each in whole_of(asked[0])}
            asked[0].close()
            if not number % 2:
                seen |= {each["offset"] for each in whole_of(asked[1])}
                asked[1].close()
            assert select.select([asked[2]], [], [], PATIENCE_S)[0], "nobody waits for what will not be known"
            time.sleep(0.4)
        deadline_s = time.monotonic() + PATIENCE_S
        while seen != set(range(9)):
            assert time.monotonic() < deadline_s, seen
            seen |= {each["offset"] for each in other.get(f"{path}/records", headers=media).json}


def test_an_answer_that_fits_what_the_systems_hold_is_given_again_if_its_client_dies(several: Several) -> None:
    """The broker in front took it for taken before its client had read any of it."""
    topic = f"held-{next(_numbers)}"
    make(several, topic, 1)
    assert several.clients[0].post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}] * 9}).status == 200
    form = "application/vnd.kafka.json.v2+json"
    media = {"Accept": form, "Content-Type": "application/vnd.kafka.v2+json"}
    assigned = {"partitions": [{"topic": topic, "partition": 0}]}
    for number, client in itertools.product(range(COUNT), several.clients):
        group = f"{topic}-{number}-{urlsplit(client.url).port}"
        path = f"/consumers/{group}/instances/any"
        wishes = {
            "name": "any",
            "format": "json",
            "auto.offset.reset": "earliest",
            "consumer.request.timeout.ms": 20_000,
        }
        assert client.post(f"/consumers/{group}", wishes, headers=media).status == 200
        assert client.post(f"{path}/assignments", assigned, headers=media).status == 204
        for end in ("", "Connection: close\r\n"):
            asks = f"GET {path}/records?max_bytes=3&timeout=20000 HTTP/1.1"
            asked = f"{asks}\r\nHost: x\r\nAccept: {form}\r\n{end}\r\n".encode()
            place = urlsplit(client.url)
            for dies in (True, False):
                with socket.create_connection((str(place.hostname), int(str(place.port)))) as connection:
                    connection.sendall(asked)
                    if dies:
                        assert select.select([connection], [], [], PATIENCE_S)[0]
                        time.sleep(0.1)
                    else:
                        assert [each["offset"] for each in whole_of(connection)] == ([3, 4, 5] if end else [0, 1, 2])
        assert [each["offset"] for each in client.get(f"{path}/records", headers=media).json] == [6, 7, 8]
        assert client.delete(path, headers=media).status == 204
        offsets = client.get(f"/v1/groups/{group}/offsets").json["offsets"]
        assert [each["offset"] for each in offsets] == [9]


def test_a_broker_in_front_that_pauses_makes_no_reads_wait_and_nothing_come_twice(several: Several) -> None:
    """Once it was not known of sixteen answers who had them, each read asked the one that paused, for a second; then it
    was taken to have lost some.
    """
    topic = f"pauses-{next(_numbers)}"
    assert several.clients[0].post("/v1/topics", {"name": topic, "assignments": [[1]]}).status == 201
    records = {"records": [{"value": number} for number in range(60)]}
    assert several.clients[0].post(f"/v1/topics/{topic}/records", records).status == 200
    form = "application/vnd.kafka.json.v2+json"
    media = {"Accept": form, "Content-Type": "application/vnd.kafka.v2+json"}
    home, front, other = several.clients
    wishes = {"name": "any", "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": False}
    for number in itertools.count():
        path = f"/consumers/{topic}-{number}/instances/any"
        assert front.post(f"/consumers/{topic}-{number}", wishes, headers=media).status == 200
        if home.get(f"{path}/assignments", headers={**media, "X-Oncelog-Forwarded": "9"}).status == 200:
            break  # it lives there: others do not forward what was forwarded
        assert front.delete(path, headers=media).status == 204
    assigned = {"partitions": [{"topic": topic, "partition": 0}]}
    assert front.post(f"{path}/assignments", assigned, headers=media).status == 204

    def read(client: Http) -> list[int]:
        return [each["offset"] for each in client.get(f"{path}/records?max_bytes=1", headers=media).json]

    seen = [offset for _ in range(READS_MAX) for offset in read(front)]
    process_id = several.facts["brokers"][1]["process_id"]
    os.kill(process_id, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        for _ in range(4):
            seen += read(other)
        assert time.monotonic() - began_s < 3, "a second each"
    finally:
        os.kill(process_id, signal.SIGCONT)
    while len(seen) < 60:
        seen += read(front)
    assert seen == list(range(60))
    assert home.delete(path, headers=media).status == 204


def test_an_instance_that_is_made_again_waits_for_no_last_answer_at_any_broker(several: Several) -> None:
    """What a broker in front has not handed over belongs to the one before."""
    topic = f"again-{next(_numbers)}"
    make(several, topic, 1)
    octets = {"Content-Type": "application/octet-stream"}
    for _ in range(20):
        assert several.clients[0].post(f"/v1/topics/{topic}/records", os.urandom(500_000), headers=octets).status == 200
    binary = "application/vnd.kafka.binary.v2+json"
    media = {"Accept": binary, "Content-Type": "application/vnd.kafka.v2+json"}
    assigned = {"partitions": [{"topic": topic, "partition": 0}]}
    path = f"/consumers/{topic}/instances/any"

    def begin(client: Http) -> None:
        wishes = {"name": "any", "auto.offset.reset": "earliest", "auto.commit.enable": False}
        assert client.post(f"/consumers/{topic}", wishes, headers=media).status == 200
        assert client.post(f"{path}/assignments", assigned, headers=media).status == 204

    for client, other in itertools.product(several.clients, repeat=2):
        begin(client)
        place = urlsplit(client.url)
        with socket.create_connection((str(place.hostname), int(str(place.port)))) as slow:
            asked = f"GET {path}/records?max_bytes=6000000 HTTP/1.1\r\nHost: x\r\nAccept: {binary}\r\n\r\n"
            slow.sendall(asked.encode())
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
            assert other.delete(path, headers=media).status == 204
            begin(other)
            told = client.get(f"{path}/records?max_bytes=600000", headers=media).json
            assert [each["offset"] for each in told] == [0]
            assert client.delete(path, headers=media).status == 204


@pytest.mark.parametrize("way", ["is deleted", "is assigned anew"])
def test_what_its_client_may_not_have_is_not_committed_when_an_instance_goes_by_another_broker(
    several: Several, way: str
) -> None:
    """The answer is stalled at the broker in front, which alone knows that. Its records were never given again."""
    topic = f"stalled-{next(_numbers)}"
    make(several, topic, 1)
    octets = {"Content-Type": "application/octet-stream"}
    for _ in range(20):
        assert several.clients[0].post(f"/v1/topics/{topic}/records", os.urandom(500_000), headers=octets).status == 200
    binary = "application/vnd.kafka.binary.v2+json"
    media = {"Accept": binary, "Content-Type": "application/vnd.kafka.v2+json"}
    assigned = {"partitions": [{"topic": topic, "partition": 0}]}
    for number, (front, other) in enumerate(itertools.product(several.clients, repeat=2)):
        group = f"{topic}-{number}"
        path = f"/consumers/{group}/instances/any"
        wishes = {"name": "any", "auto.offset.reset": "earliest", "auto.commit.enable": True}
        assert front.post(f"/consumers/{group}", wishes, headers=media).status == 200
        assert front.post(f"{path}/assignments", assigned, headers=media).status == 204
        taken = front.get(f"{path}/records?max_bytes=600000", headers=media).json
        assert [each["offset"] for each in taken] == [0]
        place = urlsplit(front.url)
        with socket.create_connection((str(place.hostname), int(str(place.port)))) as slow:
            asked = f"GET {path}/records?max_bytes=6000000 HTTP/1.1\r\nHost: x\r\nAccept: {binary}\r\n\r\n"
            slow.sendall(asked.encode())
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
            if way == "is assigned anew":
                assert other.post(f"{path}/assignments", {"partitions": []}, headers=media).status == 204
            assert other.delete(path, headers=media).status == 204
        offsets = other.get(f"/v1/groups/{group}/offsets").json["offsets"]
        assert [each["offset"] for each in offsets] == [1], "what was taken, and nothing more"


def test_an_expected_offset_is_looked_at_by_the_leader_of_the_partition(several: Several) -> None:
    make(several, "expected", 3)
    for number, client in enumerate(several.clients):
        for partitions in ([0], [0, 1, 2]):
            records = [{"topic": "expected", "partition": each, "value": number} for each in partitions]
            page = client.get("/v1/topics/expected/partitions/0/records?max_records=10000").json
            expected = [{"topic": "expected", "partition": 0, "next_offset": page["next_offset"]}]
            answers = [each.post("/v1/records", {"records": records, "expected": expected}) for each in several.clients]
            assert [each.status for each in answers] == [200, 409, 409], answers
            assert {each.json["type"] for each in answers[1:]} == {"/problems/expected-offset-mismatch"}
            assert answers[1].json["outcome"] == "none"
            expected[0]["next_offset"] = answers[1].json["next_offset"]
            assert several.clients[0].post("/v1/records", {"records": records, "expected": expected}).status == 200


def test_who_asks_inside_knows_the_brokers_of_now(tmp_path: Path) -> None:
    """One that remembered those of its first question asked a dead leader for ever, and no broker that came later: what
    that one coordinated was told to be hanging.
    """

    async def scene(stage: Stage) -> None:
        gateway, metadata = Gateway(stage.broker, scraper_of(stage.broker)), stage.broker.metadata
        assert await gateway.cluster.nodes() == [1]
        one = metadata.image.brokers[1]
        metadata.image = replace(metadata.image, brokers={1: one, 2: replace(one, id=2)})
        assert await gateway.cluster.nodes() == [1, 2]

    on_stage(tmp_path, scene)


def test_a_broker_tells_and_changes_its_own_settings_whichever_is_asked(several: Several) -> None:
    for number, owner in enumerate(sorted(each["node_id"] for each in several.facts["brokers"])):
        place = f"/v1/brokers/{owner}/configs"
        for client in several.clients:
            assert client.get(place).json["configs"]["node.id"]["value"] == str(owner)
        version = several.clients[0].get(place).headers["ETag"]
        asked = {"configs": {"log.segment.bytes": str(50_000_000 + number)}}
        answers = [each.ask("PATCH", place, asked, headers={"If-Match": version}) for each in several.clients]
        assert [each.status for each in answers] == [204, 412, 412], answers


def test_what_a_leader_holds_is_told_by_whichever_broker(several: Several) -> None:
    make(several, "held", 3)
    for commits in (True, False):
        begun = several.clients[0].post("/v1/transactions", {"transactional_id": "held"})
        records = [{"topic": "held", "partition": each, "value": commits} for each in range(3)]
        assert several.clients[0].put(f"{begun.headers['Location']}/batches/0", {"records": records}).status == 200
        ended = several.clients[0].post(f"{begun.headers['Location']}:{'commit' if commits else 'abort'}")
        assert ended.status == 200, ended
    producer = begun.json["producer_id"]
    described = several.clients[0].get("/v1/topics/held").json["partitions"]
    for partition, state in enumerate(described):
        for client in several.clients:
            place = f"/v1/topics/held/partitions/{partition}"
            whose = {"leader": state["leader"]}
            (segment,) = client.get(f"{place}/segments").json.pop("segments")
            assert (segment["base_offset"], segment["end_offset"], segment["active"]) == (0, 4, True)
            assert segment["size_bytes"] > 200
            told = client.get(f"{place}/segments").json
            assert told | whose == told
            assert (told["log_start_offset"], told["log_end_offset"], told["next_offset"]) == (0, 4, None)
            told = client.get(f"{place}/epochs").json
            epoch = {"epoch": state["leader_epoch"], "start_offset": 0}
            assert told == whose | {"leader_epoch": state["leader_epoch"], "epochs": [epoch]}
            gone = {"producer_id": producer, "first_offset": 2, "last_offset": 3}
            for first, found in ((0, [gone]), (3, [gone]), (4, [])):
                told = client.get(f"{place}/aborted?offset={first}").json
                assert told == whose | {"aborted": found, "next_offset": None}
    for client in several.clients:
        told = client.get("/v1/producers?topic=held").json
        assert [(each["producer_id"], each["partition"]) for each in told["producers"]] == [
            (producer, each) for each in range(3)
        ]
        assert (told["more"], told["not_told"]) == (False, [])
        everywhere = client.get(f"/v1/producers?producer_id={producer}").json["producers"]
        assert [each for each in everywhere if each["topic"] == "held"] == told["producers"]
        assert client.get("/v1/producers?topic=nowhere").status == 404
        assert client.get("/v1/topics/held/partitions/3/segments").status == 404


class Follower:
    """Reads an event stream, and takes it up again at another broker from the id of the last event."""

    def __init__(self, several: Several, topic: str) -> None:
        self._several = several
        self._path = f"/v1/topics/{topic}/stream?from=latest"
        self.seen: dict[int, list[tuple[int, Any]]] = {}
        """By partition the offsets and values, as they came."""
        self._headers = {"Accept": "text/event-stream"}
        self.follow(several.clients[0])

    def follow(self, client: Http) -> None:
        self._answer = requests.get(client.url + self._path, headers=self._headers, stream=True, timeout=PATIENCE_S)
        assert self._answer.status_code == 200, self._answer.text
        self._lines = self._answer.iter_lines(chunk_size=1)

    def move(self, client: Http) -> None:
        self.close()
        self.follow(client)

    def close(self) -> None:
        self._answer.close()

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def until(self, condition: Callable[[], bool]) -> None:
        event, deadline = "", time.monotonic() + 2 * PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.seen
            name, _, content = next(self._lines).decode().partition(": ")
            if name == "id":
                self._headers["Last-Event-ID"] = content
            elif name == "event":
                event = content
                assert event in ("record", "progress")
            elif name == "data" and event == "record":
                record = json.loads(content)
                self.seen.setdefault(record["partition"], []).append((record["offset"], record["value"]))


def test_a_stream_goes_on_while_its_topic_is_widened_and_its_leaders_move(several: Several) -> None:
    """Every record comes once and in order, over new partitions, other leaders, and cuts."""
    made = several.clients[0].post("/v1/topics", {"name": "moved", "assignments": [[1, 2, 3], [2, 3, 1]]})
    assert made.status == 201, made
    follower = Follower(several, "moved")
    written, count, ended = [0], [2], threading.Event()

    def write() -> None:
        clients = itertools.cycle([Http(each.url) for each in several.clients])
        while not ended.is_set():
            number = written[0]
            body = {"records": [{"partition": number % count[0], "value": number}]}
            headers = {"Idempotency-Key": f'"moved-{number}"'}
            while (answer := next(clients).post("/v1/topics/moved/records", body, headers=headers)).status != 200:
                assert answer.json["retriable"] or answer.status == 504, answer
                time.sleep(0.05)
            written[0] += 1

    def widen(partitions: int) -> None:
        client = several.clients[partitions % COUNT]
        answer = client.post("/v1/topics/moved/partitions", {"count": partitions})
        assert (answer.status, len(answer.json["partitions"])) == (200, partitions), answer
        for each in several.clients:
            while len(each.get("/v1/topics/moved").json["partitions"]) < partitions:
                time.sleep(0.05)
        count[0] = partitions

    def leaders() -> list[int]:
        return [each["leader"] for each in several.clients[0].get("/v1/topics/moved").json["partitions"]]

    def lead(*brokers: int) -> None:
        command = [sys.executable, "-m", "service.cli", "topic"]
        to = ["moved", "-y", "-o", "json"]
        where = {**os.environ, "ONCELOG_BOOTSTRAP": several.bootstrap}
        listed = ",".join(map(str, brokers))
        for arguments in (["reassign", "--brokers", listed], ["elect"]):
            done = subprocess.run([*command, arguments[0], *to, *arguments[1:]], env=where, cwd=several.tree,
                                  capture_output=True, text=True, check=False)  # fmt: skip
            assert done.returncode == 0, done.stderr

    writer = threading.Thread(target=write)
    writer.start()
    try:
        follower.until(lambda: follower.count >= 20)
        widen(4)
        follower.until(lambda: len(follower.seen.get(2, ())) >= 3 <= len(follower.seen.get(3, ())))
        before = leaders()
        lead(3, 1, 2)
        assert (after := leaders()) != before
        more = follower.count + 20
        follower.until(lambda: follower.count >= more)
        follower.move(several.clients[1])
        follower.until(lambda: follower.count >= more + 20)
        follower.close()
        widen(5)
        lead(2, 3, 1)
        assert leaders() != [*after, leaders()[-1]]
        follower.follow(several.clients[2])
        follower.until(lambda: len(follower.seen.get(4, ())) >= 10)
    finally:
        ended.set()
        writer.join(PATIENCE_S)
    follower.until(lambda: follower.count >= written[0])
    follower.close()
    assert sorted(value for some in follower.seen.values() for _, value in some) == list(range(written[0]))
    for some in follower.seen.values():
        assert [offset for offset, _ in some] == sorted({offset for offset, _ in some})
        assert [value for _, value in some] == sorted(value for _, value in some)
