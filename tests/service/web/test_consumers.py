"""Consumer instances as Confluent's REST Proxy has them in version 2."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import select
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock, patch
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer

from log.batch import build_plain_batch
from log.control import ControlType, build_marker
from log.ids import TopicId, TopicPartition
from service.web.fetching import Piece
from service.web.gateway import Gateway
from service.web.holding import Holder, Holding
from service.web.instances import (
    ALL_BEGINS_MAX,
    BEGINS_MAX,
    COMMIT_EVERY_S,
    NAMES_MAX,
    READS_MAX,
    Fates,
    Form,
    ForwardedRead,
    ForwardedReads,
    Front,
    Instance,
    Instances,
    RecordsAnswer,
    RecordV2,
    Wishes,
)
from service.web.members import EARLIEST, LATEST, SOMEWHERE, Join
from service.web.problems import Problem
from service.web.taking import RESET_S
from service.wire.error_codes import ErrorCode
from service.wire.messages import OffsetCommitRequest
from tests.service.web.kit import PATIENCE_S, Answer, Http, Served, ask_and_go, asking, whole_of

MEDIA = "application/vnd.kafka.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
JSON = "application/vnd.kafka.json.v2+json"
IN_FRONT = {"X-Oncelog-Forwarded": "9"}
"""A request that another broker has forwarded, which can't be asked whether its client took the answer."""


class Reader:
    """A program written for the REST Proxy: it knows what the proxy answers, and nothing of ours."""

    def __init__(self, http: Http, group: str, **wishes: Any) -> None:
        self.http, self.group = http, group
        self.form = wishes.get("format", "binary")
        answer = call(http, "POST", f"/consumers/{group}", {"auto.offset.reset": "earliest", **wishes})
        assert answer.status == 200, answer
        self.name: str = answer.json["instance_id"]
        assert answer.json["base_uri"] == f"{http.url}/consumers/{group}/instances/{self.name}"

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        return call(self.http, method, f"/consumers/{self.group}/instances/{self.name}{path}", body, **more)

    def do(self, method: str, path: str, body: Any = None) -> None:
        answer = self.call(method, path, body)
        assert answer.status == 204, answer

    def records(self, query: str = "") -> list[dict[str, Any]]:
        answer = self.call("GET", "/records" + query, accept=f"application/vnd.kafka.{self.form}.v2+json")
        assert answer.status == 200, answer
        assert answer.headers["Content-Type"] == f"application/vnd.kafka.{self.form}.v2+json"
        found: list[dict[str, Any]] = answer.json
        return found

    def read(self, count: int) -> list[dict[str, Any]]:
        """So many, and not one more."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            found += self.records()
        assert len(found) == count, found
        return found

    def committed(self, topic: str, partition: int = 0) -> int | None:
        answer = self.call("GET", "/offsets", {"partitions": [{"topic": topic, "partition": partition}]})
        assert answer.status == 200, answer
        offsets = answer.json["offsets"]
        assert all((each["topic"], each["partition"]) == (topic, partition) for each in offsets)
        return offsets[0]["offset"] if offsets else None


def call(
    http: Http, method: str, path: str, body: Any = None, *, accept: str = MEDIA, content_type: str = MEDIA
) -> Answer:
    headers = {"Accept": accept}
    if body is not None:
        headers["Content-Type"] = content_type
        body = body if isinstance(body, bytes) else json.dumps(body)
    return http.ask(method, path, body, headers=headers)


def write(http: Http, topic: str, *values: Any, partition: int = 0) -> None:
    records = [{"partition": partition, "key": json.dumps(f"k{value}"), "value": value} for value in values]
    assert http.post(f"/v1/topics/{topic}/records", {"records": records}).status == 200


def make(http: Http, topic: str, partitions: int = 1) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": partitions}).status == 201


def code(answer: Answer) -> tuple[int, int]:
    """Errors are told in the REST Proxy's form."""
    assert set(answer.json) == {"error_code", "message"}, answer
    assert answer.headers["Content-Type"] == MEDIA
    return answer.status, answer.json["error_code"]


def test_an_instance_subscribes_reads_commits_and_the_next_goes_on_behind_it(http: Http, topic: str) -> None:
    make(http, topic, 3)
    for number in range(30):
        write(http, topic, number, partition=number % 3)
    first = Reader(http, topic, name="mine", format="json", **{"auto.commit.enable": "false"})
    assert first.name == "mine"
    first.do("POST", "/subscription", {"topics": [topic]})
    assert first.call("GET", "/subscription").json == {"topics": [topic]}
    found = first.read(30)
    assert sorted(each["value"] for each in found) == list(range(30))
    assert {tuple(each) for each in found} == {("topic", "key", "value", "partition", "offset")}
    for partition in range(3):
        mine = [each for each in found if each["partition"] == partition]
        assert [(each["offset"], each["key"]) for each in mine] == [(n, f"k{3 * n + partition}") for n in range(10)]
    partitions = [{"topic": topic, "partition": each} for each in range(3)]
    assert first.call("GET", "/assignments").json == {"partitions": partitions}
    assert first.committed(topic) is None
    answer = first.call("POST", "/offsets")
    assert (answer.status, answer.json) == (200, [])
    assert [first.committed(topic, each) for each in range(3)] == [10, 10, 10]
    group = http.get(f"/v1/groups/{topic}").json
    assert [each["member_id"] for each in group["members"]] == ["mine"]
    first.do("DELETE", "")
    assert not http.get(f"/v1/groups/{topic}").json["members"]
    write(http, topic, 30)
    second = Reader(http, topic, name="mine", format="json")
    second.do("POST", "/subscription", {"topics": [topic]})
    assert [each["value"] for each in second.read(1)] == [30]
    second.do("DELETE", "")


def test_a_program_that_is_gone_has_read_nothing(http: Http, topic: str) -> None:
    make(http, topic)
    reader = Reader(http, topic, format="json", **{"consumer.request.timeout.ms": 10_000})
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    ask_and_go(http.url, f"/consumers/{topic}/instances/{reader.name}/records", JSON)
    write(http, topic, 1)
    time.sleep(0.7)  # the broker would have answered the one who is gone
    assert [each["value"] for each in reader.read(1)] == [1]
    reader.do("DELETE", "")


def test_what_is_committed_is_the_last_record_that_is_done_with(served: Served, http: Http, topic: str) -> None:
    make(http, topic)
    write(http, topic, *range(9))
    reader = Reader(http, topic)
    offset = {"topic": topic, "partition": 0, "offset": 4, "metadata": "half"}
    assert reader.call("POST", "/offsets", {"offsets": [offset]}).status == 200
    answer = reader.call("GET", "/offsets", {"partitions": [{"topic": topic, "partition": 0}]})
    assert answer.json == {"offsets": [{**offset, "offset": 5}]}
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(PATIENCE_S)
        assert message is not None and message.offset() == 5
    finally:
        consumer.close()
    reader.do("DELETE", "")


def test_bytes_come_as_base64_and_tombstones_as_null(http: Http, topic: str) -> None:
    make(http, topic)
    raw = [{"key_base64": "/w==", "value_base64": "AAEC"}, {"key": "k", "value": None}, {"value_string": "ü"}]
    assert http.post(f"/v1/topics/{topic}/records", {"records": raw}).status == 200
    reader = Reader(http, topic)
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    found = [(each["key"], each["value"]) for each in reader.read(3)]
    umlaut = base64.b64encode("ü".encode()).decode()
    assert found == [("/w==", "AAEC"), (base64.b64encode(b"k").decode(), None), (None, umlaut)]
    reader.do("DELETE", "")


def test_a_record_that_is_no_json_holds_its_reader_up_until_it_goes_past(http: Http, topic: str) -> None:
    make(http, topic)
    raw = [{"value": 1}, {"value": 2}, {"value_string": "plain"}, {"value": 3}, {"key": "plain", "value": 4}]
    assert http.post(f"/v1/topics/{topic}/records", {"records": raw}).status == 200
    reader = Reader(http, topic, format="json", **{"fetch.min.bytes": 1000})
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    assert [each["value"] for each in reader.records()] == [1, 2]
    for _ in range(2):
        assert code(reader.call("GET", "/records", accept=JSON)) == (406, 40601)
    reader.do("POST", "/positions", {"offsets": [{"topic": topic, "partition": 0, "offset": 3}]})
    assert [each["value"] for each in reader.records()] == [3]
    assert code(reader.call("GET", "/records", accept=JSON)) == (406, 40601)
    reader.do("DELETE", "")


def test_an_instance_reads_from_where_it_is_sent(http: Http, topic: str) -> None:
    make(http, topic, 2)
    write(http, topic, *range(5))
    reader = Reader(http, topic, format="json")
    where = [{"topic": topic, "partition": 0}]
    answer = reader.call("POST", "/positions/end", {"partitions": where})
    assert code(answer) == (409, 40903) and "No current assignment" in answer.json["message"]
    later = [{"topic": "not-there-yet", "partition": 7}, {"topic": topic, "partition": 2}]
    reader.do("POST", "/assignments", {"partitions": where + later})
    for each in later:  # a place there would be one in whatever has the name later
        assert code(reader.call("POST", "/positions", {"offsets": [{**each, "offset": 1}]})) == (404, 40401)
        assert code(reader.call("POST", "/positions/beginning", {"partitions": [each]})) == (404, 40401)
    assert len(reader.read(5)) == 5
    reader.do("POST", "/positions/beginning", {"partitions": where})
    assert len(reader.read(5)) == 5
    reader.do("POST", "/positions", {"offsets": [{**where[0], "offset": 3}]})
    assert [each["value"] for each in reader.read(2)] == [3, 4]
    reader.do("POST", "/positions/beginning", {"partitions": where})
    reader.do("POST", "/positions/end", {"partitions": where})
    write(http, topic, 5)
    assert [each["value"] for each in reader.read(1)] == [5]
    reader.do("POST", "/positions", {"offsets": [{**where[0], "offset": 1000}]})
    assert len(reader.read(6)) == 6, "beyond the end is reset as the instance wishes"
    reader.do("DELETE", "")


def test_subscriptions_assignments_and_patterns_exclude_each_other(http: Http, topic: str) -> None:
    make(http, topic)
    make(http, topic + "-also")
    reader = Reader(http, topic)
    topics, pattern = {"topics": [topic]}, {"topic_pattern": f"{topic}-a.*"}
    partitions = {"partitions": [{"topic": topic, "partition": 0}]}
    assert code(reader.call("GET", "/records", accept=BINARY)) == (409, 40903)
    assert code(reader.call("POST", "/subscription", {**topics, **pattern})) == (409, 40903)
    assert code(reader.call("POST", "/subscription", {})) == (422, 422)
    reader.do("POST", "/subscription", topics)
    assert code(reader.call("POST", "/subscription", pattern)) == (409, 40903)
    assert code(reader.call("POST", "/assignments", partitions)) == (409, 40903)
    reader.do("POST", "/subscription", {"topics": [topic, topic + "-also"]})
    assert reader.call("GET", "/subscription").json == {"topics": [topic, topic + "-also"]}
    reader.do("DELETE", "/subscription")
    assert reader.call("GET", "/subscription").json == {"topics": []}
    reader.do("POST", "/assignments", partitions)
    assert code(reader.call("POST", "/subscription", topics)) == (409, 40903)
    assert reader.call("GET", "/assignments").json == partitions
    reader.do("POST", "/assignments", {"partitions": []})
    assert code(reader.call("POST", "/subscription", {"topic_pattern": "("}))[0] == 422
    reader.do("POST", "/subscription", pattern)
    write(http, topic, 1)
    write(http, topic + "-also", 2)
    assert [each["topic"] for each in reader.read(1)] == [topic + "-also"]
    assert reader.call("GET", "/subscription").json == {"topics": [topic + "-also"]}
    reader.do("DELETE", "/subscription")
    reader.do("POST", "/subscription", topics)
    assert [each["topic"] for each in reader.read(1)] == [topic]
    reader.do("DELETE", "")


def test_two_instances_share_a_topic_and_one_takes_over_what_the_other_has_not_committed(
    http: Http, topic: str
) -> None:
    make(http, topic, 2)
    readers = [Reader(http, topic, format="json") for _ in range(2)]
    for reader in readers:
        assert reader.name.startswith("rest-consumer-")
        reader.do("POST", "/subscription", {"topics": [topic]})
    deadline = time.monotonic() + PATIENCE_S
    while any(len(reader.call("GET", "/assignments").json["partitions"]) != 1 for reader in readers):
        assert time.monotonic() < deadline
        for reader in readers:
            assert not reader.records("?timeout=50")
    for partition in range(2):
        write(http, topic, *range(10 * partition, 10 * partition + 5), partition=partition)
    first, second = ({each["value"] for each in reader.read(5)} for reader in readers)
    assert first | second == {0, 1, 2, 3, 4, 10, 11, 12, 13, 14} and not first & second
    readers[0].do("DELETE", "")  # with what it has been shown
    for partition in range(2):
        write(http, topic, 100 + partition, partition=partition)
    assert {each["value"] for each in readers[1].read(2)} == {100, 101}
    readers[1].do("DELETE", "")


def test_an_instance_commits_by_itself_what_its_client_has_been_shown(http: Http, topic: str) -> None:
    make(http, topic)
    write(http, topic, *range(3))
    reader = Reader(http, topic, format="json")
    reader.do("POST", "/subscription", {"topics": [topic]})
    reader.read(3)
    assert reader.committed(topic) is None
    deadline = time.monotonic() + PATIENCE_S
    while reader.committed(topic) != 3:
        assert time.monotonic() < deadline
        assert not reader.records("?timeout=200")
    write(http, topic, 3)
    reader.read(1)
    reader.do("DELETE", "/subscription")
    assert reader.committed(topic) == 4
    quiet = Reader(http, topic, format="json", **{"auto.commit.enable": False})
    write(http, topic, 4)
    quiet.do("POST", "/subscription", {"topics": [topic]})
    quiet.read(1)
    quiet.do("DELETE", "")
    assert reader.committed(topic) == 4
    reader.do("DELETE", "")


def test_an_instance_that_is_made_again_goes_on_where_latest_had_put_it(http: Http, topic: str) -> None:
    """It began at the end of that moment, although it had been there before a record was written."""
    make(http, topic)
    write(http, topic, 0)
    for shown in ([], [1]):
        reader = Reader(http, topic, format="json", **{"auto.offset.reset": "latest"})
        reader.do("POST", "/subscription", {"topics": [topic]})
        deadline, found = time.monotonic() + PATIENCE_S, list[Any]()
        while not reader.call("GET", "/assignments").json["partitions"] or len(found) < len(shown):
            assert time.monotonic() < deadline
            found += reader.records()
        found += reader.records()
        assert [each["value"] for each in found] == shown
        reader.do("DELETE", "")
        write(http, topic, 1)


def test_an_answer_that_was_lost_between_brokers_is_given_again_and_was_seen_by_nobody(http: Http, topic: str) -> None:
    """The broker that forwarded the read names it. The client does not know that the answer was lost."""
    make(http, topic)
    write(http, topic, 1, 2)
    reader = Reader(http, topic, format="json")
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    path = f"/consumers/{topic}/instances/{reader.name}/records"

    def forwarded(name: str) -> list[int]:
        answer = http.ask("GET", path, headers={**IN_FRONT, "Accept": JSON, "X-Oncelog-Read": name})
        return [each["value"] for each in answer.json]

    assert (forwarded("a"), forwarded("a")) == ([1, 2], [1, 2])
    write(http, topic, 3)
    assert (forwarded("a"), forwarded("b"), forwarded("c")) == ([1, 2, 3], [], [])
    assert reader.committed(topic) is None
    write(http, topic, 4)
    assert forwarded("d") == [4]
    reader.do("POST", "/positions/beginning", {"partitions": [{"topic": topic, "partition": 0}]})
    write(http, topic, 5)
    assert forwarded("d") == [1, 2, 3, 4, 5], "where its client has sent it"
    reader.do("DELETE", "")


@pytest.mark.parametrize("itself", [False, True])
def test_an_answer_that_is_known_to_be_lost_later_is_given_again_and_not_committed(
    http: Http, topic: str, itself: bool
) -> None:
    """Whatever came of its client by another broker meanwhile was taken to say that it had the answer."""
    make(http, topic)
    reader = Reader(http, topic, format="json", **{"auto.commit.enable": itself})
    where = {"topic": topic, "partition": 0}
    reader.do("POST", "/assignments", {"partitions": [where]})
    path = f"/consumers/{topic}/instances/{reader.name}/records?timeout=200"

    def forwarded(name: str) -> list[int]:
        answer = http.ask("GET", path, headers={**IN_FRONT, "Accept": JSON, "X-Oncelog-Read": name})
        return [each["value"] for each in answer.json]

    def tell_lost(name: str, status: int = 200, life: str = "") -> None:
        assert http.ask("GET", path, headers={"X-Oncelog-Lost": name, "X-Oncelog-Life": life}).status == status

    write(http, topic, 0)
    assert reader.records() == [{"topic": topic, "partition": 0, "offset": 0, "key": "k0", "value": 0}]
    write(http, topic, 1, 2)
    assert forwarded("a") == [1, 2]
    assert reader.call("GET", "/assignments").status == 200
    tell_lost("a")
    assert forwarded("b") == [1, 2]
    write(http, topic, 3)
    assert (forwarded("c"), reader.records("?timeout=200")) == ([3], [])
    assert code(reader.call("POST", "/offsets")) == (503, 50003), "it does not say who has them"
    assert reader.committed(topic) == 1
    tell_lost("c")
    tell_lost("b")
    tell_lost("c")
    assert forwarded("d") == [1, 2, 3]
    assert reader.records("?timeout=200") == []
    assert forwarded("d") == [1, 2, 3], "its broker asks for it once more"
    assert reader.call("GET", "/assignments").status == 200
    assert code(reader.call("POST", "/offsets")) == (503, 50003)
    assert reader.committed(topic) == 1
    assert reader.call("POST", "/offsets", {"offsets": [{**where, "offset": 1}]}).status == 200
    assert code(reader.call("POST", "/offsets")) == (503, 50003)
    assert reader.committed(topic) == 2, "its client says that it is done with these"
    reader.do("POST", "/positions", {"offsets": [{**where, "offset": 3}]})
    tell_lost("d")
    assert reader.read(1)[0]["offset"] == 3, "where its client has sent it"
    tell_lost("d", 404, life="that of another instance")
    reader.do("DELETE", "")
    tell_lost("d", 404)
    assert reader.http.get(f"/v1/groups/{topic}/offsets").json["offsets"][0]["offset"] == (4 if itself else 2)


def long_reader(http: Http, topic: str) -> Reader:
    """Forty records of half a megabyte are to be read."""
    make(http, topic)
    for _ in range(40):
        value = os.urandom(500_000)
        octets = {"Content-Type": "application/octet-stream"}
        assert http.post(f"/v1/topics/{topic}/records", value, headers=octets).status == 200
    reader = Reader(http, topic, name="slow")
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    return reader


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.2, 1.0])
def test_an_answer_that_its_client_did_not_take_is_given_again(http: Http, topic: str, after_s: float) -> None:
    """Its records were lost: the group went on behind them."""
    reader = long_reader(http, topic)
    for _ in range(3):
        ask_and_go(http.url, f"/consumers/{topic}/instances/slow/records?max_bytes=8000000", BINARY, after_s=after_s)
    assert [each["offset"] for each in reader.records("?max_bytes=1200000")] == [0, 1]
    assert [each["offset"] for each in reader.records("?max_bytes=1200000")] == [2, 3]
    reader.do("DELETE", "")
    assert http.get(f"/v1/groups/{topic}/offsets").json["offsets"][0]["offset"] == 4


GOES = ("kept", "closed", "half")
"""How a connection is meant to go on: kept, `Connection: close`, or ended by the client as soon as it has all."""


@pytest.mark.parametrize("way", GOES)
@pytest.mark.parametrize("max_bytes", [600_000, 2_000_000])
def test_an_answer_that_its_system_has_taken_counts_once_its_client_has_it(
    http: Http, topic: str, way: str, max_bytes: int
) -> None:
    """All that fitted the buffers of two systems was lost with a client that was killed before it had read it."""
    reader = long_reader(http, topic)
    place = urlsplit(http.url)
    end = "Connection: close\r\n" if way == "closed" else ""
    path = f"/consumers/{topic}/instances/slow/records?max_bytes={max_bytes}"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n{end}\r\n".encode()
    seen = 0
    for dies in (True, True, False, True, False, False):
        with socket.create_connection((str(place.hostname), int(str(place.port)))) as client:
            client.sendall(head)
            if dies:
                assert select.select([client], [], [], PATIENCE_S)[0]
                time.sleep(0.2)
                if way == "half":
                    client.recv(100)
                continue
            offsets = [each["offset"] for each in whole_of(client)]
            assert offsets == list(range(seen, seen + len(offsets)))
            seen += len(offsets)
            if way == "half":
                client.shutdown(socket.SHUT_WR)
    assert reader.records("?max_bytes=600000")[0]["offset"] == seen
    reader.do("DELETE", "")
    assert http.get(f"/v1/groups/{topic}/offsets").json["offsets"][0]["offset"] == seen + 1


@pytest.mark.parametrize("end", ["", "Connection: close\r\n"])
def test_who_reads_by_a_connection_for_each_answer_does_not_wait(http: Http, topic: str, end: str) -> None:
    """A connection that both sides had ended was taken for one that was reset, for half a second."""
    make(http, topic)
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": n} for n in range(10)]}).status == 200
    reader = Reader(http, topic, name="slow")
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    place = urlsplit(http.url)
    path = f"/consumers/{topic}/instances/slow/records?max_bytes=1"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n{end}\r\n"
    took_s = []
    for number in range(9):
        began_s = time.monotonic()
        with socket.create_connection((str(place.hostname), int(str(place.port)))) as client:
            client.sendall(head.encode())
            assert [each["offset"] for each in whole_of(client)] == [number]
        took_s.append(time.monotonic() - began_s)
    assert sorted(took_s)[4] < RESET_S, took_s
    reader.do("DELETE", "")
    assert http.get(f"/v1/groups/{topic}/offsets").json["offsets"][0]["offset"] == 9


def test_a_client_that_ends_its_connection_in_order_before_it_has_read_all_is_given_it_again(
    http: Http, topic: str
) -> None:
    """Its end came before its system's reset, and was taken for that of a client that has all."""
    make(http, topic)
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}, {"value": 2}]}).status == 200
    reader = Reader(http, topic, name="slow")
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    place = urlsplit(http.url)
    path = f"/consumers/{topic}/instances/slow/records"
    for _ in range(3):
        with socket.create_connection((str(place.hostname), int(str(place.port)))) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n".encode())
            assert select.select([client], [], [], PATIENCE_S)[0]
            client.shutdown(socket.SHUT_RDWR)
            time.sleep(0.01)  # the broker sees that before the connection is reset
    assert reader.records()[0]["offset"] == 0


def test_a_client_that_asks_by_another_connection_has_what_its_system_has(http: Http, topic: str) -> None:
    """Its system may be slow to acknowledge that. What a client leaves unread in a connection that it keeps counts."""
    reader = long_reader(http, topic)
    place = urlsplit(http.url)
    path = f"/consumers/{topic}/instances/slow/records?max_bytes=600000"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n".encode()
    clients = [socket.create_connection((str(place.hostname), int(str(place.port)))) for _ in range(3)]
    try:
        for number in range(6):
            client = clients[number % 3]
            client.sendall(head)
            assert [each["offset"] for each in whole_of(client)] == [number]
            if number % 2:
                assert reader.call("POST", "/offsets").status == 200
                assert reader.committed(topic) == number + 1
    finally:
        for client in clients:
            client.close()
    reader.do("DELETE", "")


def test_an_answer_to_a_client_that_has_ended_its_side_counts_beside_an_earlier_one(http: Http, topic: str) -> None:
    """The end had come before the answer was written, which so did not know of it. It was given twice."""
    make(http, topic)
    write(http, topic, 1)
    place = urlsplit(http.url)
    first, second = (Reader(http, topic, name=name) for name in ("first", "second"))
    for reader in (first, second):
        reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    head = "GET /consumers/{}/instances/{}/records?timeout=20000 HTTP/1.1\r\nHost: x\r\nAccept: {}\r\n{}\r\n"
    assert [each["offset"] for each in second.read(1)] == [0]
    with socket.create_connection((str(place.hostname), int(str(place.port)))) as client:
        client.sendall(head.format(topic, "first", BINARY, "").encode())
        assert [each["offset"] for each in whole_of(client)] == [0]
        client.sendall(head.format(topic, "second", BINARY, "Connection: close\r\n").encode())
        time.sleep(0.05)
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
        write(http, topic, 2)
        assert [each["offset"] for each in whole_of(client)] == [1]
    write(http, topic, 3)
    assert [each["offset"] for each in second.read(1)] == [2]
    for reader in (first, second):
        reader.do("DELETE", "")


@pytest.mark.parametrize("way", ["pipelined", "beside"])
def test_a_read_that_came_before_an_answer_tells_nothing_of_it(http: Http, topic: str, way: str) -> None:
    """The answer counted as taken by a client that read nothing. The read goes on nevertheless."""
    make(http, topic)
    reader = Reader(http, topic, name="any", **{"consumer.request.timeout.ms": 20_000})
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    place = urlsplit(http.url)
    path = f"/consumers/{topic}/instances/any/records?max_bytes=1&timeout=20000"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n".encode()
    first, second = (socket.create_connection((str(place.hostname), int(str(place.port)))) for _ in range(2))
    with first, second:
        first.sendall(head)
        time.sleep(0.2)
        (first if way == "pipelined" else second).sendall(head)
        time.sleep(0.2)
        asked_s = time.monotonic()
        write(http, topic, 1, 2, 3)
        if way == "beside":
            assert [each["offset"] for each in whole_of(second)] == [1]
            assert time.monotonic() - asked_s < 5.0, "nobody waits until it is known"
        else:
            found = b""
            while found.count(b"HTTP/1.1 200") < 2:
                assert select.select([first], [], [], PATIENCE_S)[0]
                found = first.recv(100_000, socket.MSG_PEEK)
    assert [each["offset"] for each in reader.read(3)] == [0, 1, 2]
    assert reader.call("POST", "/offsets").status == 200
    assert reader.committed(topic) == 3
    reader.do("DELETE", "")


def test_while_an_answer_is_on_its_way_nothing_tells_that_it_was_taken(http: Http, topic: str) -> None:
    """Other requests of the client may come meanwhile. What it seeks counts, and a read waits for its turn."""
    reader = long_reader(http, topic)
    place = urlsplit(http.url)
    with socket.create_connection((str(place.hostname), int(str(place.port)))) as slow:
        path = f"/consumers/{topic}/instances/slow/records?max_bytes=8000000"
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        assert reader.records("?timeout=200") == []
        assert reader.committed(topic) is None
    assert [each["offset"] for each in reader.records("?max_bytes=600000")] == [0]
    with socket.create_connection((str(place.hostname), int(str(place.port)))) as slow:
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        reader.do("POST", "/positions", {"offsets": [{"topic": topic, "partition": 0, "offset": 30}]})
    assert [each["offset"] for each in reader.records("?max_bytes=600000")] == [30]
    reader.do("DELETE", "")


def test_a_commit_of_all_leaves_out_an_answer_that_is_on_its_way(http: Http, topic: str) -> None:
    """The group went on behind an answer that was cut off afterwards."""
    reader = long_reader(http, topic)
    assert [each["offset"] for each in reader.records("?max_bytes=600000")] == [0]
    place = urlsplit(http.url)
    with socket.create_connection((str(place.hostname), int(str(place.port)))) as slow:
        path = f"/consumers/{topic}/instances/slow/records?max_bytes=8000000"
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        assert reader.call("POST", "/offsets").status == 200
        assert reader.committed(topic) == 1
    assert [each["offset"] for each in reader.records("?max_bytes=600000")] == [1]
    assert reader.call("POST", "/offsets").status == 200
    assert reader.committed(topic) == 2
    reader.do("DELETE", "")


def test_an_instance_that_is_made_again_does_not_wait_for_the_last_answer_of_the_one_before(
    http: Http, topic: str
) -> None:
    reader = long_reader(http, topic)
    place = urlsplit(http.url)
    with socket.create_connection((str(place.hostname), int(str(place.port)))) as slow:
        path = f"/consumers/{topic}/instances/slow/records?max_bytes=8000000"
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        reader.do("DELETE", "")
        reader = Reader(http, topic, name="slow")
        reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
        assert [each["offset"] for each in reader.records("?max_bytes=600000")] == [0]
    assert [each["offset"] for each in reader.records("?max_bytes=600000")] == [1]
    reader.do("DELETE", "")


def test_a_read_that_waited_for_an_instance_does_not_go_on_with_another_one_of_its_name(http: Http, topic: str) -> None:
    """It read beside a read of that one, and what the other read gave and lost was never given again."""
    reader = long_reader(http, topic)
    place = urlsplit(http.url)
    where = str(place.hostname), int(str(place.port))
    path = f"/consumers/{topic}/instances/slow/records?max_bytes=8000000&timeout=20000"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n".encode()
    with socket.create_connection(where) as waits:
        with socket.create_connection(where) as first:
            first.sendall(head)
            assert first.recv(100).startswith(b"HTTP/1.1 200")
            waits.sendall(head)
            assert reader.records("?timeout=200") == []
            reader.do("DELETE", "")
            reader = Reader(http, topic, name="slow")
            reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
            second = socket.create_connection(where)
            second.sendall(head)
            assert second.recv(100).startswith(b"HTTP/1.1 200")
        waits.settimeout(PATIENCE_S)
        assert waits.recv(100).startswith(b"HTTP/1.1 404")
    second.close()
    assert [each["offset"] for each in reader.records("?max_bytes=600000")] == [0]
    reader.do("DELETE", "")


@pytest.mark.parametrize("way", ["/subscription", "/assignments"])
def test_an_instance_begins_a_topic_anew_that_was_made_again(http: Http, topic: str, way: str) -> None:
    """It went on in the new one where it had been in the one before: nobody was given what was before that."""
    make(http, topic)
    write(http, topic, *range(10))
    instance = Reader(http, topic, **{"format": "json", "auto.commit.enable": "false"})
    what = {"topics": [topic]} if way == "/subscription" else {"partitions": [{"topic": topic, "partition": 0}]}
    instance.do("POST", way, what)
    instance.read(10)
    assert instance.call("POST", "/offsets").status == 200
    assert http.delete(f"/v1/topics/{topic}").status == 204
    make(http, topic)
    write(http, topic, *range(100, 130))
    assert [each["value"] for each in instance.read(30)] == list(range(100, 130))
    assert instance.call("POST", "/offsets").status == 200
    assert instance.committed(topic) == 30
    instance.do("DELETE", "")


@pytest.mark.parametrize(
    ("way", "where"),
    [("/subscription", ""), ("/subscription", "/beginning"), ("/subscription", "/end"), ("/assignments", "")],
)
def test_an_instance_that_is_sent_elsewhere_in_a_topic_that_was_made_again_stays_there(
    http: Http, topic: str, way: str, where: str
) -> None:
    """The position was one in the topic before until the next heartbeat, which dropped it: nothing was read."""
    make(http, topic)
    write(http, topic, *range(5))
    reset = {"/end": "earliest"}.get(where, "latest")
    instance = Reader(http, topic, **{"format": "json", "auto.commit.enable": "false", "auto.offset.reset": reset})
    place = {"topic": topic, "partition": 0}
    instance.do("POST", way, {"topics": [topic]} if way == "/subscription" else {"partitions": [place]})
    instance.read(5 if where == "/end" else 0)
    instance.records("?timeout=100")
    to = {"offsets": [{**place, "offset": 4}]} if not where else {"partitions": [place]}
    assert http.delete(f"/v1/topics/{topic}").status == 204
    refused = instance.call("POST", f"/positions{where}", to)
    assert code(refused) in ((404, 40401), (409, 40903)), "it is not there, and no place in it is kept"
    make(http, topic)
    write(http, topic, *range(100, 110))
    deadline = time.monotonic() + PATIENCE_S
    while (answer := instance.call("POST", f"/positions{where}", to)).status != 204:
        assert code(answer) in ((404, 40401), (409, 40903))
        assert time.monotonic() < deadline
    expected = list(range({"": 104, "/beginning": 100, "/end": 110}[where], 110))
    assert [each["value"] for each in instance.read(len(expected))] == expected
    time.sleep(0.3)
    assert instance.records("?timeout=1500") == []
    instance.do("DELETE", "")


def test_where_nothing_is_committed_an_instance_begins_as_it_wishes(http: Http, topic: str) -> None:
    make(http, topic)
    write(http, topic, 1)
    partitions = {"partitions": [{"topic": topic, "partition": 0}]}
    for reset, seen in (("earliest", [1, 2]), ("latest", [2])):
        reader = Reader(http, topic, format="json", **{"auto.offset.reset": reset, "auto.commit.enable": "false"})
        reader.do("POST", "/assignments", partitions)
        if reset == "latest":
            assert not reader.records("?timeout=1")
            write(http, topic, 2)
        elif reset == "earliest":
            assert [each["value"] for each in reader.read(1)] == seen[:1]
        if reset == "latest":
            assert [each["value"] for each in reader.read(1)] == seen
        reader.do("DELETE", "")
    reader = Reader(http, topic, **{"auto.offset.reset": "none"})
    reader.do("POST", "/assignments", partitions)
    assert code(reader.call("GET", "/records", accept=BINARY))[0] == 416
    reader.do("POST", "/positions/beginning", partitions)
    assert len(reader.read(2)) == 2
    reader.do("DELETE", "")


def test_an_answer_waits_for_enough_and_holds_no_more_than_wished(http: Http, topic: str) -> None:
    make(http, topic)
    wishes = {"fetch.min.bytes": "60", "consumer.request.timeout.ms": 1500}
    reader = Reader(http, topic, **wishes)
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    began = time.monotonic()
    assert not reader.records()
    assert 1.4 < time.monotonic() - began < PATIENCE_S
    raw = [{"value_string": "x" * 40}] * 5
    assert http.post(f"/v1/topics/{topic}/records", {"records": raw}).status == 200
    assert len(reader.records("?max_bytes=100")) == 2
    assert len(reader.records("?max_bytes=1")) == 1, "a record that is larger than wished comes alone"
    assert len(reader.records("?timeout=100")) == 2
    began = time.monotonic()
    assert http.post(f"/v1/topics/{topic}/records", {"records": raw[:1]}).status == 200
    assert len(reader.records("?timeout=700")) == 1
    assert time.monotonic() - began > 0.6, "40 bytes are less than it waits for"
    reader.do("DELETE", "")


def test_only_what_is_committed_is_read(http: Http, topic: str) -> None:
    make(http, topic)
    reader = Reader(http, topic, format="json")
    reader.do("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    for number, end in ((1, "abort"), (2, "commit")):
        txn = http.post("/v1/transactions", {"transactional_id": topic}).headers["Location"]
        records = {"records": [{"topic": topic, "value": number}]}
        assert http.put(f"{txn}/batches/0", records).status == 200
        assert not reader.records("?timeout=100")
        assert http.post(f"{txn}:{end}").status == 200
    assert [each["value"] for each in reader.read(1)] == [2]
    reader.do("DELETE", "")


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"format": "avro"}, (422, 42204)),
        ({"format": "xml"}, (422, 422)),
        ({"auto.offset.reset": "smallest"}, (422, 42204)),
        ({"auto.commit.enable": "perhaps"}, (422, 42204)),
        ({"fetch.min.bytes": -2}, (422, 42204)),
        ({"fetch.min.bytes": 10_000_001}, (422, 42204)),
        ({"consumer.request.timeout.ms": -1}, (422, 42204)),
        ({"consumer.request.timeout.ms": 2**80}, (422, 42204)),
        ({"isolation.level": "read_uncommitted"}, (422, 42204)),
        ({"name": "x" * 250}, (422, 42204)),
        ({"name": ""}, (422, 42204)),
        ({"name": "\ud800"}, (400, 400)),
        ([], (422, 42204)),
        (b"{", (400, 400)),
        (b"\xff", (400, 400)),
        (b"[" * 100_000, (422, 42204)),
        (b'"' + b"x" * 300_000 + b'"', (413, 413)),
    ],
)
def test_what_is_no_wish_is_refused(http: Http, topic: str, wishes: Any, expected: tuple[int, int]) -> None:
    assert code(call(http, "POST", f"/consumers/{topic}", wishes)) == expected


def test_names_are_taken_once_and_what_is_not_there_is_not_found(http: Http, topic: str) -> None:
    assert code(call(http, "GET", f"/consumers/{topic}/instances/nobody/assignments")) == (404, 40403)
    reader = Reader(http, topic, name="once")
    assert code(call(http, "POST", f"/consumers/{topic}", {"name": "once"})) == (409, 40902)
    other = Reader(http, topic + "-other", name="once")
    unknown = {"topic": "nothing-like-it", "partition": 0}
    assert code(reader.call("POST", "/offsets", {"offsets": [{**unknown, "offset": 1}]})) == (404, 40401)
    make(http, topic)
    beyond = {"topic": topic, "partition": 1}
    assert code(reader.call("POST", "/offsets", {"offsets": [{**beyond, "offset": 1}]})) == (404, 40402)
    assert code(reader.call("GET", "/offsets", {"partitions": [beyond]})) == (404, 40402)
    assert code(reader.call("GET", "/offsets")) == (404, 40402)
    assert code(reader.call("GET", "/records", accept=JSON)) == (406, 40601)
    assert code(reader.call("GET", "/records", accept="application/vnd.kafka.avro.v2+json")) == (406, 40601)
    assert code(reader.call("GET", "/records", accept="text/html")) == (406, 406)
    liked = f"text/html, {JSON};q=0.5, {BINARY};q=0.7"
    assert code(reader.call("GET", "/records", accept=liked)) == (409, 40903), "binary is liked better"
    assert code(reader.call("GET", "/records", accept=f"{BINARY};q=x")) == (400, 400)
    assert code(reader.call("GET", "/records?timeout=soon", accept=BINARY)) == (400, 400)
    assert code(reader.call("POST", "/subscription", {"topics": [topic]}, content_type="text/plain")) == (415, 415)
    for body in ({"topics": [""]}, {"topics": "x"}, {"topics": [topic], "more": 1}, None, {"topics": ["x" * 250]}):
        assert code(reader.call("POST", "/subscription", json.dumps(body).encode())) == (422, 422)
    for offset in (-1, 2**63, 1.5, "x"):
        assert code(reader.call("POST", "/offsets", {"offsets": [{**beyond, "offset": offset}]})) == (422, 422)
    for gone in (reader, other):
        gone.do("DELETE", "")
        assert code(gone.call("DELETE", "")) == (404, 40403)
        assert code(gone.call("GET", "/records", accept=BINARY)) == (404, 40403)


def test_an_instance_reads_beside_other_clients_of_its_group(served: Served, http: Http, topic: str) -> None:
    make(http, topic, 2)
    for kind in ("classic", "consumer"):
        group = f"{topic}-{kind}"
        consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": group, "group.protocol": kind})
        try:
            consumer.subscribe([topic])
            deadline = time.monotonic() + PATIENCE_S
            while len(consumer.assignment()) != 2:
                assert time.monotonic() < deadline
                consumer.poll(0.1)
            reader = Reader(http, group)
            reader.do("POST", "/subscription", {"topics": [topic]})
            while (len(consumer.assignment()), len(reader.call("GET", "/assignments").json["partitions"])) != (1, 1):
                assert time.monotonic() < deadline
                consumer.poll(0.1)
                reader.records("?timeout=50")
        finally:
            consumer.close()
        reader.do("DELETE", "")


def test_an_instance_whose_client_is_silent_goes_and_does_not_commit_what_it_may_not_have_seen(
    tmp_path: Path, topic: str
) -> None:
    served = Served(tmp_path / "data", **{"http.consumer.instance.timeout.ms": "1000"})
    http = Http(served.url)
    try:
        make(http, topic)
        write(http, topic, *range(5))
        reader = Reader(http, topic, name="silent", format="json")
        assigned = Reader(http, topic)
        reader.do("POST", "/subscription", {"topics": [topic]})
        reader.read(5)
        deadline = time.monotonic() + PATIENCE_S
        while http.get(f"/v1/groups/{topic}").json["members"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        for gone in (reader, assigned):
            while (answer := gone.call("GET", "/assignments")).status == 200:  # which was a sign of life
                assert time.monotonic() < deadline
                time.sleep(1.5)
            assert code(answer) == (404, 40403)
        again = Reader(http, topic, name="silent", format="json")
        again.do("POST", "/subscription", {"topics": [topic]})
        assert len(again.read(5)) == 5
    finally:
        http.session.close()
        served.stop()
    assert "Traceback" not in served.log, served.log


def test_instances_keep_a_bounded_number_of_bytes(http: Http, topic: str) -> None:
    many = {"partitions": [{"topic": topic, "partition": each} for each in range(5_000)]}
    names = [f"large-{number}" for number in range(90)]
    try:
        statuses = []
        for name in names:
            assert call(http, "POST", f"/consumers/{topic}", {"name": name}).status == 200
            statuses.append(call(http, "POST", f"/consumers/{topic}/instances/{name}/assignments", many))
        assert (statuses[0].status, code(statuses[-1])) == (204, (429, 429))
        assert http.delete(f"/consumers/{topic}/instances/large-0").status == 204
        assert call(http, "POST", f"/consumers/{topic}/instances/large-89/assignments", many).status == 204
    finally:
        for name in names[1:]:
            assert http.delete(f"/consumers/{topic}/instances/{name}").status == 204
    larger = {"partitions": many["partitions"] * 2}
    assert code(call(http, "POST", f"/consumers/{topic}/instances/nobody/assignments", larger)) == (413, 413)


def test_an_instance_can_be_called_anything(http: Http, topic: str) -> None:
    make(http, topic)
    write(http, topic, 1)
    for name, path in (("a/b ü", "a%2Fb%20%C3%BC"), ("x\r\ny", "x%0D%0Ay"), ("%", "%25")):
        answer = call(http, "POST", f"/consumers/{topic}%2F", {"name": name, "auto.offset.reset": "earliest"})
        place = answer.json["base_uri"].removeprefix(http.url)
        assert place == f"/consumers/{topic}%2F/instances/{path}"
        assert call(http, "POST", f"{place}/subscription", {"topics": [topic]}).status == 204
        deadline = time.monotonic() + PATIENCE_S
        while not call(http, "GET", f"{place}/records", accept=BINARY).json:
            assert time.monotonic() < deadline
        assert call(http, "DELETE", place).status == 204
        call(http, "POST", f"/v1/groups/{topic}%2F/offsets", {"to": "earliest"})
        write(http, topic, 1)


def test_bodies_may_be_left_out_and_fields_written_as_curl_does(http: Http, topic: str) -> None:
    answer = http.post(f"/consumers/{topic}")
    assert answer.status == 200 and answer.json["instance_id"].startswith("rest-consumer-")
    assert http.delete(answer.json["base_uri"].removeprefix(http.url)).status == 204
    answer = http.post(f"/consumers/{topic}", {"id": "plain", "format": "JSON"})
    assert answer.json["instance_id"] == "plain"
    assert http.delete(f"/consumers/{topic}/instances/plain").status == 204


def test_reads_of_clients_that_are_gone_do_not_wait_for_a_leader_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them asked, and was waited for in its turn, while its instance was read by nobody else."""
    asked, answers = 0, asyncio.Event()

    async def silent(*_: Any) -> dict[TopicPartition, int]:
        nonlocal asked
        asked += 1
        await answers.wait()
        return {}

    async def play() -> None:
        monkeypatch.setattr(RecordsAnswer, "take", silent)
        instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
        instance.positions[TopicPartition("t", 0)] = 0
        instances = Instances(MagicMock())
        requests = [asking(transport=object()) for _ in range(5)]
        reads = [asyncio.ensure_future(instances.read(instance, each, Front(), 1, 0)) for each in requests]
        await asyncio.sleep(0)
        requests[0].transport = requests[1].transport = requests[2].transport = None
        answers.set()
        told = await asyncio.gather(*reads, return_exceptions=True)
        assert [isinstance(each, Problem) for each in told] == [True, True, True, False, False], told

    asyncio.run(play())
    assert asked == 3


@pytest.mark.parametrize("error", [0, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_what_was_asked_for_before_its_client_sent_an_instance_elsewhere_is_not_given(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A read that waited at the end was taken to have read all before it: those records were never given."""
    place = TopicPartition("t", 0)
    instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
    instance.positions[place], instance.ids["t"] = 100, TopicId(bytes(range(16)))

    async def fetched(*_: Any, **__: Any) -> list[Piece]:
        instance.move({place: 0})
        return [Piece(place, error, data=(100).to_bytes(8, "big") + bytes(build_plain_batch([(None, b"v")], 0))[8:])]

    async def play() -> None:
        monkeypatch.setattr("service.web.instances.fetch_all", fetched)
        image = SimpleNamespace(partition=lambda _: SimpleNamespace(leader=1))
        answer = RecordsAnswer(cast(Gateway, SimpleNamespace(image=image)), Holder(Holding(1 << 20)), instance, 1000)
        assert await answer.take(0, 0.0) == {}
        assert answer.given() == []
        assert instance.positions == {place: 0}

    asyncio.run(play())


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_read_of_which_nothing_may_be_given_goes_on_within_its_time(
    monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    """Its instance was sent elsewhere meanwhile, or had lost an answer: it was answered with nothing, at once."""
    place = TopicPartition("t", 0)
    instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
    instance.positions[place], instance.ids["t"] = 100, TopicId(bytes(range(16)))

    async def fill(_: Instances, answer: RecordsAnswer, *__: Any) -> None:
        begin = instance.positions[place]
        answer.records.append(RecordV2("t", None, "v", 0, begin))
        answer._begins[place], answer._ends[place], answer._ids[place] = begin, begin + 1, instance.ids["t"]
        if begin == 100:
            instance.move({place: 7})

    async def play() -> None:
        monkeypatch.setattr(Instances, "_fill", fill)
        monkeypatch.setattr("service.web.instances.is_there", lambda _: True)
        instance.committed_s = asyncio.get_running_loop().time()
        records = await Instances(MagicMock()).read(instance, asking(), Front(), 1000, wait_ms)
        assert [each.offset for each in records] == ([7] if wait_ms else [])
        assert instance.positions == {place: 8 if wait_ms else 7}

    asyncio.run(play())


MARKER = build_marker(ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)


@pytest.mark.parametrize("first", [b"v", None], ids=["a record", "nothing that is shown"])
def test_a_read_that_waits_for_more_goes_on_where_its_client_sends_the_instance(
    monkeypatch: pytest.MonkeyPatch, first: bytes | None
) -> None:
    """It went on behind what it had read before, and gave nothing of that."""
    place, asked = TopicPartition("t", 0), list[int]()
    instance = Instance("g", "i", Join([]), 0.0, is_assigned=True, wishes=Wishes(min_bytes=20))
    instance.positions[place], instance.ids["t"] = 9, TopicId(bytes(range(16)))

    async def fetched(_: Gateway, by_leader: dict[int, dict[TopicPartition, int]], *__: Any, **___: Any) -> list[Piece]:
        asked.append(by_leader[1][place])
        if asked[-1] == 10:
            instance.move({place: 0})
            return []
        is_first = asked[-1] == 9
        values = [] if is_first and first is None else [b"v" * 10] * (1 if is_first else 2)
        batch = bytes(build_plain_batch([(None, each) for each in values], 0)) if values else MARKER
        return [Piece(place, 0, data=asked[-1].to_bytes(8, "big") + batch[8:])]

    async def play() -> None:
        monkeypatch.setattr("service.web.instances.fetch_all", fetched)
        monkeypatch.setattr("service.web.instances.is_there", lambda _: True)
        topics = {"t": SimpleNamespace(id=instance.ids["t"])}
        image = SimpleNamespace(partition=lambda _: SimpleNamespace(leader=1), topics=topics, brokers={})
        instance.committed_s = asyncio.get_running_loop().time()
        records = await Instances(MagicMock(image=image)).read(instance, asking(), Front(), 1000, 2000)
        assert [each.offset for each in records] == [0, 1]
        assert asked == [9, 10, 0]

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["damaged", "refused", "no JSON"])
def test_what_can_not_be_read_in_one_partition_keeps_no_client_from_the_others(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It came first each time, and may fill the answer of its leader: the others were never read. It is told when they
    have nothing, and between two answers with their records.
    """
    bad, good = (TopicPartition("t", index) for index in (0, 1))
    instance = Instance("g", "i", Join([]), 0.0, is_assigned=True, wishes=Wishes(Form.JSON))
    instance.positions, instance.ids["t"] = {bad: 0, good: 0}, TopicId(bytes(range(16)))
    end = 3

    async def fetched(_: Gateway, by_leader: dict[int, dict[TopicPartition, int]], *__: Any, **___: Any) -> list[Piece]:
        if bad in by_leader[1]:
            data = bytes(1000) if kind == "damaged" else bytes(build_plain_batch([(None, b"plain")], 0))
            return [Piece(bad, 0, data=data) if kind != "refused" else Piece(bad, ErrorCode.UNKNOWN_SERVER_ERROR)]
        offset = by_leader[1][good]
        record = offset.to_bytes(8, "big") + bytes(build_plain_batch([(None, b"1")], 0))[8:]
        return [Piece(good, 0, data=record if offset < end else b"")]

    async def play() -> None:
        monkeypatch.setattr("service.web.instances.fetch_all", fetched)
        monkeypatch.setattr("service.web.instances.is_there", lambda _: True)
        topics = {"t": SimpleNamespace(id=instance.ids["t"])}
        image = SimpleNamespace(partition=lambda _: SimpleNamespace(leader=1), topics=topics, brokers={})
        instances, told = Instances(MagicMock(image=image)), list[int | str]()
        instance.committed_s = asyncio.get_running_loop().time()
        for _ in range(7):
            try:
                told += [each.offset for each in await instances.read(instance, asking(), Front(), 1000, 0)]
            except Problem as problem:
                told.append("t-0" if "t-0" in str(problem.detail) else str(problem))
        assert told == [0, "t-0", 1, "t-0", 2, "t-0", "t-0"]
        assert instance.positions == {bad: 0, good: end}

    asyncio.run(play())


@pytest.mark.parametrize("sent", [1, 2], ids=["while its place is looked up", "while another's is"])
def test_a_position_that_is_in_no_log_any_more_does_not_undo_what_its_client_says_meanwhile(
    monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """What the client had asked for was answered with 204, and never given."""
    first, second = places = [TopicPartition("t", each) for each in (1, 2)]
    sought = places[sent - 1]
    instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
    instance.positions.update({first: 10**9, second: 10**9})

    async def taken(*_: Any) -> dict[TopicPartition, int]:
        return dict(instance.positions)

    async def reset(instance: Instance, partition: TopicPartition) -> int:
        if partition == first:
            instance.move({sought: 0})
        return 3

    async def play() -> None:
        monkeypatch.setattr(RecordsAnswer, "take", taken)
        instances = Instances(MagicMock())
        monkeypatch.setattr(instances, "_reset", reset)
        answer = RecordsAnswer(MagicMock(), Holder(Holding(1 << 20)), instance, 1000)
        await instances._fill_once(answer, asking(transport=object()), 0, 0)
        assert instance.positions == {each: 0 if each == sought else 3 for each in places}

    asyncio.run(play())


def made_again(name: str) -> tuple[Instances, Instance, Callable[[], Awaitable[None]]]:
    """An instance to which two topics are assigned; and what makes the one of this name again, and has its client send
    the instance elsewhere in the other.
    """
    topics = {each: SimpleNamespace(id=TopicId(each.encode() * 16)) for each in ("o", "t")}
    image = SimpleNamespace(topics=topics, brokers={}, partition=lambda _: SimpleNamespace(leader=1))
    instances, instance = Instances(MagicMock(image=image)), Instance("g", "i", Join([]), 0.0, is_assigned=True)
    instance.ids = {each: topic.id for each, topic in topics.items()}

    async def make_again() -> None:
        topics[name] = SimpleNamespace(id=TopicId(b"2" * 16))
        await instances.seek(instance, {TopicPartition("o", 0): 0})
        assert instance.ids[name] == b"2" * 16

    return instances, instance, make_again


@pytest.mark.parametrize("itself", [False, True])
def test_a_position_in_a_topic_before_is_not_committed_in_the_one_that_was_made_again(
    monkeypatch: pytest.MonkeyPatch, itself: bool
) -> None:
    """Others have a turn while a commit of many partitions is put together: what was in the next topic was skipped."""
    sent: list[tuple[str, object, int]] = []
    instances, instance, make_again = made_again("t")
    at = {TopicPartition("o", 0): 1, TopicPartition("t", 0): 10}
    instance.positions.update(at)
    instance.uncommitted.update(at)

    async def commit_offsets(_: Gateway, asked: OffsetCommitRequest) -> None:
        sent.extend((each.name, each.topic_id, each.partitions[0].committed_offset) for each in asked.topics)

    async def play() -> None:
        commits = instances._commit_known(instance) if itself else instances.commit_all(instance)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(commits)
            await asyncio.sleep(0)
            await make_again()

    monkeypatch.setattr("service.web.members.NAMED_A_TURN", 1)
    monkeypatch.setattr("service.web.members.commit_offsets", commit_offsets)
    asyncio.run(play())
    assert sent == [("o", b"o" * 16, 1), ("t", b"t" * 16, 10)], "the group refuses the second, or forgets it"


@pytest.mark.parametrize("subscribed", [[], ["o"]], ids=["assigned", "subscribed"])
def test_an_instance_commits_in_a_topic_that_was_made_again_since_it_has_read_it(
    monkeypatch: pytest.MonkeyPatch, subscribed: list[str]
) -> None:
    """It named the topic before: the group refused the commit, and all that came with it, for ever."""
    instances, instance, _ = made_again("t")
    cast(Any, instances._gateway).topic = instances._gateway.image.topics.get
    instance.join.topics = subscribed
    first, second = TopicPartition("o", 0), TopicPartition("t", 0)
    instance.positions = {first: 1, second: 10}
    sent: dict[str, object] = {}

    async def commit_offsets(_: Gateway, asked: OffsetCommitRequest) -> None:
        sent.update((each.name, each.topic_id) for each in asked.topics)

    async def play() -> None:
        instance.lose([second])
        cast(Any, instances._gateway.image.topics)["t"] = SimpleNamespace(id=TopicId(b"2" * 16))
        await instances.commit(instance, {first: (1, None), second: (0, None)})

    monkeypatch.setattr("service.web.members.commit_offsets", commit_offsets)
    asyncio.run(play())
    assert sent == {"o": b"o" * 16, "t": b"2" * 16}


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_commit_of_all_leaves_out_a_topic_that_is_gone(monkeypatch: pytest.MonkeyPatch, is_made_again: bool) -> None:
    """It was refused, although the others were committed. A group names a topic that was made again some time later."""
    instances, instance, _ = made_again("t")
    instance.join.topics = ["o", "t"]
    topics = cast(dict[str, object], instances._gateway.image.topics)
    if is_made_again:
        topics["t"] = SimpleNamespace(id=TopicId(b"2" * 16))
    else:
        del topics["t"]
    first = TopicPartition("o", 0)
    instance.positions = {first: 1, TopicPartition("t", 0): 10}
    committed = AsyncMock()
    monkeypatch.setattr("service.web.instances.commit_by", committed)
    asyncio.run(instances.commit_all(instance))
    assert committed.call_args.args[-1] == {first: (1, None)}


def test_a_commit_in_a_topic_before_says_nothing_of_what_was_given_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that was lost was given again from there only."""
    instances, instance, make_again = made_again("t")
    at = TopicPartition("t", 0)
    instance.positions.update({TopicPartition("o", 0): 1, at: 10})

    async def commit_by(*_: object) -> None:
        await make_again()
        instance.before, instance.positions[at], instance.uncommitted[at] = {at: 0}, 20, 10

    monkeypatch.setattr("service.web.instances.commit_by", commit_by)
    asyncio.run(instances.commit_all(instance))
    assert instance.uncommitted == {at: 10}
    instance.ended(is_taken=False)
    assert instance.positions[at] == 0


@pytest.mark.parametrize("while_", ["the group is asked", "another place is looked up", "its place is looked up"])
def test_a_place_in_a_topic_before_is_none_in_the_one_that_was_made_again(
    monkeypatch: pytest.MonkeyPatch, while_: str
) -> None:
    """The instance began there, and what was before that in the new topic was never read."""
    instances, instance, make_again = made_again("t")
    first, second, third = (TopicPartition(name, index) for name, index in (("o", 0), ("o", 1), ("t", 0)))
    instance.positions = {first: 1, second: SOMEWHERE, third: SOMEWHERE}

    async def offsets_by_now(*_: object) -> tuple[dict[TopicPartition, tuple[int, str]], set[TopicPartition]]:
        if while_ == "the group is asked":
            await make_again()
        return {} if while_ == "its place is looked up" else {third: (10, "")}, set()

    async def reset(_: Instance, partition: TopicPartition) -> int:
        if while_ != "the group is asked" and (partition == third) == (while_ == "its place is looked up"):
            await make_again()
        return 7

    monkeypatch.setattr("service.web.instances.offsets_by_now", offsets_by_now)
    monkeypatch.setattr(instances, "_reset", reset)
    asyncio.run(instances._begin(instance, 0.0))
    assert instance.positions == {first: 0, second: 7, third: SOMEWHERE}


@pytest.mark.parametrize("where", [EARLIEST, LATEST])
def test_a_place_that_was_looked_up_in_a_topic_before_is_refused(monkeypatch: pytest.MonkeyPatch, where: int) -> None:
    """Its client was told that it is there, in the topic that was made again meanwhile."""
    instances, instance, make_again = made_again("t")
    gateway: Any = instances._gateway
    gateway.topic, gateway.same_topic = gateway.image.topics.get, partial(Gateway.same_topic, gateway)
    first, second = TopicPartition("o", 0), TopicPartition("t", 0)
    instance.positions = {first: 1, second: 10}

    async def at_time(*_: object) -> int:
        await make_again()
        return 4

    monkeypatch.setattr("service.web.instances.at_time", at_time)
    with pytest.raises(Problem, match="made again"):
        asyncio.run(instances.seek(instance, {second: where}))
    assert instance.positions == {first: 0, second: SOMEWHERE}


def test_a_leader_that_is_silent_holds_up_no_read_for_longer_than_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read was answered half a minute later, and what the group tells of others was not used meanwhile."""
    instances, instance, _ = made_again("t")
    first, second = (TopicPartition("o", index) for index in (0, 1))
    instance.positions = {first: SOMEWHERE, second: SOMEWHERE}

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("service.web.instances.offsets_by_now", AsyncMock(return_value=({second: (10, "")}, set())))
    monkeypatch.setattr("service.web.instances.STEP_MS", 10)
    monkeypatch.setattr(instances, "_reset", silent)
    asyncio.run(asyncio.wait_for(instances._begin(instance, 0.0), PATIENCE_S))
    assert instance.positions == {first: SOMEWHERE, second: 10}


@pytest.mark.parametrize("how", ["silent", "refuses"])
def test_a_leader_that_tells_no_beginning_keeps_no_client_from_the_others_partitions(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """They were looked up one after the other, in the same order each time, so what came behind it was never read."""
    instances, instance, _ = made_again("t")
    first, second, third = (TopicPartition("o", index) for index in range(3))
    cast(Any, instances._gateway.image).partition = lambda place: SimpleNamespace(leader=min(place.partition, 1))
    instance.positions = {first: SOMEWHERE, second: SOMEWHERE, third: SOMEWHERE}
    records: list[RecordV2] = []

    async def reset(_: Instance, partition: TopicPartition) -> int:
        if partition == second and how == "refuses":
            raise Problem("server-error", "no beginning")
        if partition == first:
            await asyncio.sleep(0 if how == "refuses" else 60)
        return 7

    async def taken(answer: RecordsAnswer, *_: object) -> dict[TopicPartition, int]:
        answer.records += records
        return {}

    async def play() -> None:
        answer = RecordsAnswer(MagicMock(), Holder(Holding(1 << 20)), instance, 1000)
        with nullcontext() if records or how == "silent" else pytest.raises(Problem, match="no beginning"):
            await instances._fill_once(answer, asking(transport=object()), 0.0, 0)

    monkeypatch.setattr("service.web.instances.offsets_by_now", AsyncMock(return_value=({}, set())))
    monkeypatch.setattr("service.web.instances.STEP_MS", 10)
    monkeypatch.setattr(instances, "_reset", reset)
    monkeypatch.setattr(RecordsAnswer, "take", taken)
    asyncio.run(play())
    assert instance.positions == dict.fromkeys((first, second, third), 7) | {
        first if how == "silent" else second: SOMEWHERE
    }
    records.append(RecordV2("o", None, "v", 2, 7))
    asyncio.run(play())


@pytest.mark.parametrize("time_s", [0.0, 3600.0])
def test_a_read_waits_for_no_silent_leader_while_another_one_has_records(
    monkeypatch: pytest.MonkeyPatch, time_s: float
) -> None:
    """It was refused half a minute later, although another leader had records for it all the time; or it was answered
    only at the end of its time, if that was long.
    """
    instances, instance, _ = made_again("t")
    first, second = (TopicPartition("o", index) for index in range(2))
    cast(Any, instances._gateway.image).partition = lambda place: SimpleNamespace(leader=place.partition)
    instance.positions = {first: 0, second: 0}
    batch = [bytes(build_plain_batch([(None, b"v")], 0))]

    async def fetched(_: Gateway, node: int, *__: object, **___: object) -> list[Piece]:
        if not node:
            await asyncio.Event().wait()
        return [Piece(second, 0, data=each) for each in batch]

    async def play() -> list[int]:
        answer = RecordsAnswer(instances._gateway, Holder(Holding(1 << 20)), instance, 1000)
        async with asyncio.timeout(PATIENCE_S):
            deadline = asyncio.get_running_loop().time() + time_s
            await instances._fill_once(answer, asking(transport=object()), deadline, 0)
        return [each.partition for each in answer.given()]

    monkeypatch.setattr("service.web.fetching.fetch", fetched)
    monkeypatch.setattr("service.web.fetching.LEADER_S", 0.01)
    assert asyncio.run(play()) == [1]
    assert instance.positions == {first: 0, second: 1}
    batch.clear()
    time_s = 0.0
    with pytest.raises(Problem, match="does not answer in time"):
        asyncio.run(play())


@pytest.mark.parametrize("how", ["silent", "refuses"])
def test_a_leader_that_does_not_tell_where_its_log_is_keeps_no_client_from_the_others_partitions(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A read of an instance whose positions were in no log any more was refused half a minute later."""
    instances, instance, _ = made_again("t")
    first, second = (TopicPartition("o", index) for index in range(2))
    cast(Any, instances._gateway.image).partition = lambda place: SimpleNamespace(leader=place.partition)
    instance.positions = {first: 5, second: 5}

    async def reset(_: Instance, partition: TopicPartition) -> int:
        if partition == first and how == "silent":
            await asyncio.Event().wait()
        if partition == first:
            raise Problem("server-error", "no beginning")
        return 7

    async def play() -> None:
        answer = RecordsAnswer(MagicMock(), Holder(Holding(1 << 20)), instance, 1000)
        with nullcontext() if how == "silent" else pytest.raises(Problem, match="no beginning"):
            async with asyncio.timeout(PATIENCE_S):
                await instances._fill_once(answer, asking(transport=object()), 0.0, 0)

    monkeypatch.setattr("service.web.instances.STEP_MS", 10)
    monkeypatch.setattr(instances, "_reset", reset)
    monkeypatch.setattr(RecordsAnswer, "take", AsyncMock(return_value={first: 5, second: 5}))
    asyncio.run(play())
    assert instance.positions == {first: 5, second: 7}


def test_an_instance_knows_by_the_brokers_in_front_what_its_client_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is committed that one of them still writes, or does not tell of; what a dead one wrote is given again."""
    place = TopicPartition("t", 0)
    died, lives = ForwardedReads("a" * 16), ForwardedReads("b" * 16)
    names = [lives.begin(f"{number:016}") for number in range(3)]
    lives.ended(names[0])
    lives.ended(names[1])
    lives.is_lost(names[1])

    async def play() -> None:
        instances = Instances(MagicMock())

        async def asked(_: Instance, node: int, some: list[str]) -> Fates:
            if node == 2:
                raise Problem("not-now", "it can't be reached")
            return lives.fates(some)

        monkeypatch.setattr(instances, "_fates", asked)

        async def after(*reads: tuple[str, int]) -> tuple[dict[TopicPartition, int], int]:
            """What may be committed, and where the instance goes on, after reads of ten records each."""
            instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
            for number, (name, node) in enumerate(reads):
                instance.reads[name] = ForwardedRead(node, None, {place: 10 * number})
            instance.positions[place] = instance.uncommitted[place] = 10 * len(reads)
            await instances._ask_in_front(instance)
            may, goes_on = instance.taken(instance.uncommitted), instance.positions[place]
            instance.lose([place])
            instance.positions[place] = 90
            assert instance.taken({place: 95}) == {place: 95}, "it was another's meanwhile"
            return may, goes_on

        taken, lost, on_its_way = ((name, 1) for name in names)
        assert await after(taken) == ({place: 10}, 10)
        assert await after(taken, on_its_way) == ({place: 10}, 20)
        assert await after(on_its_way, taken) == ({place: 0}, 20)
        assert await after(taken, lost) == ({place: 10}, 10)
        assert await after(taken, (died.begin("x"), 1)) == ({place: 10}, 10)
        assert await after((names[0], 2)) == ({place: 0}, 10)

    asyncio.run(play())


@pytest.mark.parametrize("itself", [True, False])
def test_a_lost_answer_is_asked_for_every_few_seconds_although_nothing_is_committed(itself: bool) -> None:
    """Without auto commit it was asked for only after sixteen reads more."""
    place, reads = TopicPartition("t", 0), ForwardedReads("b" * 16)
    name = reads.begin("a")
    reads.is_lost(name)
    reads.ended(name)

    async def play() -> None:
        instances = Instances(MagicMock())
        instance = Instance("g", "i", Join([]), -COMMIT_EVERY_S, is_assigned=True)
        instance.wishes = Wishes(commits_itself=itself)
        instance.positions[place] = 20
        instance.reads[name] = ForwardedRead(2, None, {place: 10})
        with (
            patch.object(instances, "_fates", AsyncMock(side_effect=lambda _, node, names: reads.fates(names))),
            patch.object(instances, "_fill", AsyncMock()),
        ):
            there = SimpleNamespace(is_closing=lambda: False)
            await instances.read(instance, asking(transport=there), Front(), 1, 0)
        assert instance.positions == {place: 10}

    asyncio.run(play())


def test_what_a_broker_has_given_whose_life_is_over_is_given_again() -> None:
    """It could never be asked, so nothing was committed any more."""
    place = TopicPartition("t", 0)
    image = SimpleNamespace(brokers={2: SimpleNamespace(epoch=5)}, broker_epoch=SimpleNamespace(value=7))
    instances = Instances(MagicMock(image=image))
    for life in (None, SimpleNamespace(epoch=6)):
        instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
        instance.positions[place] = 20
        instance.reads = {"a": ForwardedRead(2, None, {place: 10}), "b": ForwardedRead(2, 5, {}),
                          "c": ForwardedRead(3, None, {place: 15})}  # fmt: skip
        instances._lose_with_brokers(instance)
        assert instance.positions == {place: 20}
        with patch.dict(image.brokers, {2: life} if life is not None else {}, clear=life is None):
            instances._lose_with_brokers(instance)
        assert (instance.positions, list(instance.reads)) == ({place: 10}, ["c"]), "3 was not heard of yet"


def test_what_the_next_life_of_a_broker_has_given_is_not_taken_for_its_former_ones() -> None:
    """Where it was not heard of yet that the broker had begun again, what it gave came twice."""
    place = TopicPartition("t", 0)
    image = SimpleNamespace(brokers={2: SimpleNamespace(epoch=5)}, broker_epoch=SimpleNamespace(value=5))
    instances = Instances(MagicMock(image=image))
    instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
    instance.positions[place] = 30

    def read_by(name: str, epoch: int, begin: int) -> None:
        instance.reads[name] = ForwardedRead(2, epoch, {place: begin})

    read_by("a", 5, 10)
    read_by("b", 6, 20)
    for known, brokers in (5, {2: 5}), (5, {}):
        image.broker_epoch.value, image.brokers = (
            known,
            {node: SimpleNamespace(epoch=each) for node, each in brokers.items()},
        )
        instance.reads.pop("a", None)
        instances._lose_with_brokers(instance)
        assert (instance.positions, list(instance.reads)) == ({place: 30}, ["b"])
    read_by("a", 5, 25)
    image.broker_epoch.value, image.brokers = 6, {2: SimpleNamespace(epoch=6)}
    instances._lose_with_brokers(instance)
    assert (instance.positions, list(instance.reads)) == ({place: 25}, ["b"])
    image.broker_epoch.value, image.brokers = 7, {}
    instances._lose_with_brokers(instance)
    assert (instance.positions, instance.reads) == ({place: 20}, {})


def test_no_answer_is_forgotten_of_which_it_is_not_known_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seventeenth made the first forgotten, and a commit passed it. Then all came again when a broker that had been
    silent for a while said that its clients had them.
    """
    place, others = TopicPartition("t", 0), ForwardedReads("b" * 16)
    names = [others.begin(f"{number:016}") for number in range(50)]

    async def play() -> None:
        instances, says, questions = Instances(MagicMock()), False, 0

        async def asked(_: Instance, node: int, some: list[str]) -> Fates:
            nonlocal questions
            if node == 2 and not says:
                questions += 1
                raise Problem("not-now", "it hangs")
            return others.fates(some)

        monkeypatch.setattr(instances, "_fates", asked)
        instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
        for number, name in enumerate(names):
            instance.remember(name, ForwardedRead(2 + number % 2, None, {place: 10 * number}))
            instance.positions[place] = 10 * number + 10
            others.ended(name)
        assert len(instance.reads) <= READS_MAX + 2
        assert instance.taken(instance.positions) == {place: 0}
        for _ in range(3):
            assert not await instances._ask_in_front(instance, commits=False)
        assert questions == 1, "each read waited for it"
        assert not await instances._ask_in_front(instance)
        assert questions == 2
        assert instance.taken(instance.positions) == {place: 0}
        says = True
        assert await instances._ask_in_front(instance)
        assert (instance.positions, instance.reads) == ({place: 500}, {})

    asyncio.run(play())


@pytest.mark.parametrize("is_known", [True, False])
def test_of_many_answers_that_are_remembered_as_one_all_come_again_if_one_is_lost(is_known: bool) -> None:
    """A name that was forgotten may be any."""
    place, others = TopicPartition("t", 0), ForwardedReads("b" * 16)
    instances = Instances(MagicMock())

    async def play() -> None:
        instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
        count = 100 if is_known else NAMES_MAX + READS_MAX + 1
        for number in range(count):
            name = others.begin(f"{number:016}")
            instance.remember(name, ForwardedRead(2, None, {place: 10 * number}))
            instance.positions[place] = 10 * number + 10
            if number == 3 and is_known:
                others.is_lost(name)
            others.ended(name)
        assert sum(len(each.names) or 1 for each in instance.reads.values()) <= NAMES_MAX + READS_MAX
        with patch.object(instances, "_fates", AsyncMock(side_effect=lambda _, node, names: others.fates(names))):
            assert await instances._ask_in_front(instance)
        assert instance.positions == {place: 0}
        for number in range(40):
            instance.remember(f"{number}", ForwardedRead(2, None, {place: number}))
            instance.positions[place] = number + 1
        instance.lost("another", 2)
        assert instance.positions == {place: 40}
        instance.lost("1", 2)
        assert instance.positions == {place: 0}

    asyncio.run(play())


def test_what_is_remembered_of_many_partitions_is_bounded() -> None:
    """Sixteen reads had sixteen positions of each partition."""
    instance = Instance("g", "i", Join([]), 0.0, is_assigned=True)
    for number in range(READS_MAX):
        begins = {TopicPartition("t", each): number for each in range(BEGINS_MAX)}
        instance.remember(f"{number}", ForwardedRead(2, None, begins))
    assert sum(map(len, instance.begins())) <= 2 * BEGINS_MAX
    assert set(instance.taken({TopicPartition("t", each): 90 for each in range(BEGINS_MAX)}).values()) == {0}


def test_what_many_instances_remember_of_reads_is_bounded() -> None:
    """Ten thousand that read sixty partitions by another broker held 1.3 GB."""
    instances, partitions = Instances(MagicMock()), [TopicPartition("t", each) for each in range(60)]
    for number in range(1000):
        instances._members["g", f"{number}"] = Instance("g", f"{number}", Join([]), 0.0, is_assigned=True)
    for number, instance in itertools.product(range(READS_MAX), instances._members.values()):
        read = ForwardedRead(2, None, dict.fromkeys(partitions, number))
        instance.remember(f"{number}", read, instances.begins_max)
    held = sum(len(begins) for each in instances._members.values() for begins in each.begins())
    as_one_and_the_last = 2 * len(partitions) * len(instances._members)
    assert held <= ALL_BEGINS_MAX + as_one_and_the_last
    assert all(each.remembered == READS_MAX for each in instances._members.values())


@pytest.mark.parametrize("way", ["assign", "subscribe"])
@pytest.mark.parametrize("meanwhile", ["gone", "other"])
def test_what_an_instance_is_to_read_is_looked_at_again_when_its_turn_has_come(way: str, meanwhile: str) -> None:
    """It was subscribed and assigned at once, or was given partitions, and counted for them, when it was gone."""

    async def play() -> None:
        instances = Instances(MagicMock(ask_coordinator=AsyncMock()))
        instance = Instance("g", "i", Join([]), 0.0)
        instances._members["g", "i"] = instance
        async with instance.turn:
            if way == "assign":
                late = asyncio.ensure_future(instances.assign(instance, [TopicPartition("t", 0)], 100))
            else:
                late = asyncio.ensure_future(instances.subscribe(instance, ["t"], "", 100))
            await asyncio.sleep(0.01)
            if meanwhile == "gone":
                instances.forget(instance)
            elif way == "assign":
                instance.join.topics.append("t")
            else:
                instance.is_assigned = True
        with pytest.raises(Problem, match="not found" if meanwhile == "gone" else "mutually exclusive"):
            await late
        assert (instance.positions, instances._kept_bytes) == ({}, 0)
        assert instance.is_assigned + instance.is_subscribed == (meanwhile == "other")

    asyncio.run(play())


def test_an_instance_that_is_deleted_twice_at_once_does_not_take_the_next_one_of_its_name_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one waited for a commit, and then left the group as the member that the next one was by then."""

    async def play() -> None:
        gateway, committed = MagicMock(ask_coordinator=AsyncMock()), asyncio.Event()
        instances = Instances(gateway)
        monkeypatch.setattr(instances, "_commit_itself", lambda _: committed.wait())
        for end in (instances.leave, instances.unsubscribe):
            instance = Instance("g", "i", Join([]), 0.0, epoch=3)
            instance.join.topics.append("t")
            instances._members["g", "i"] = instance
            ends = [asyncio.ensure_future(each(instance)) for each in (instances.leave, end)]
            await asyncio.sleep(0)
            committed.set()
            told = await asyncio.gather(*ends, return_exceptions=True)
            assert told[0] is None
            assert isinstance(told[1], Problem) and told[1].slug == "not-found"
            committed.clear()
        assert gateway.ask_coordinator.await_count == 2

    asyncio.run(play())
