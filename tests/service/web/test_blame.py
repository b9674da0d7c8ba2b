"""An error says which record of the request it is about, and a line that is refused takes no other line with it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from msgspec import Raw

from log.batch import HEADER_BYTES
from log.ids import TopicPartition
from service.web import producing
from service.web.gateway import Gateway
from service.web.producing import Report, ToldRecords, _write_told
from service.web.sending import OutgoingBatch
from service.wire.error_codes import ErrorCode
from tests.service.web.kit import Answer, Http, Served, read_all

LINES = {"Content-Type": "application/x-ndjson"}
GOOD = {"key": "k", "value": 1}


def written(http: Http, topic: str, records: list[Any]) -> Answer:
    return http.post(f"/v1/topics/{topic}/records", {"records": records})


@pytest.mark.parametrize("padding", [0, 2000])
@pytest.mark.parametrize(
    "bad",
    [
        {"key": 5, "value": 1},
        {"value": 1, "unheard_of": 1},
        {"value_base64": "?"},
        {"key": "k", "key_base64": "aw==", "value": 1},
        {"value": 1, "timestamp": -1},
        {"value": 1, "partition": 77},
        {"topic": "another", "value": 1},
    ],
)
def test_a_record_that_is_wrong_is_named(http: Http, topic: str, bad: dict[str, Any], padding: int) -> None:
    """Also in a long body, which is decoded in pieces."""
    padded = [{"key": "k", "value": "x" * 100}] * padding
    answer = written(http, topic, [*padded, GOOD, bad, GOOD])
    assert answer.status in (400, 404, 422), answer
    assert answer.json["records"] == [padding + 1], answer
    assert str(padding + 1) in answer.json["detail"]


def test_a_member_that_is_there_twice_is_named_with_its_record(http: Http, topic: str) -> None:
    body = b'{"records": [{"value": 1}, {"value": 1}, {"value": 1, "value": 2}]}'
    answer = http.post(f"/v1/topics/{topic}/records", body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.json["records"]) == (400, [2])


@pytest.mark.parametrize("padding", [0, 20_000])
@pytest.mark.parametrize(
    "bad",
    [
        b'{"value": tru}',
        b'{"value": 1 "key": "k"}',
        b'{"value": "\xff"}',
        b'{"key": "\\ud800", "value": 1}',
        b'{"value": [1,}',
        b'{"value": %b}' % (b"[" * 3000 + b"]" * 3000),
        b"",
    ],
)
def test_a_record_that_is_no_json_is_named(http: Http, topic: str, bad: bytes, padding: int) -> None:
    """Only the byte was told, and in a long body it was that of the piece in which it was decoded."""
    body = b'{"records": [%b]}' % b",".join([*[b'{"value": 1}'] * (padding + 1), bad, b'{"value": 1}'])
    answer = http.post(f"/v1/topics/{topic}/records", body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.json["records"]) == (400, [padding + 1]), answer


@pytest.mark.parametrize("body", ['{"records": [{"value": 1}', '{"records": [{"value": 1}], x}', "x"])
def test_no_record_is_blamed_for_what_is_wrong_around_them(http: Http, topic: str, body: str) -> None:
    answer = http.post(f"/v1/topics/{topic}/records", body, headers={"Content-Type": "application/json"})
    assert (answer.status, "records" in answer.json) == (400, False), answer


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": '"blame"'}])
def test_records_that_the_log_refuses_are_named_by_their_place_in_the_request(
    http: Http, topic: str, key: dict[str, str]
) -> None:
    other = f"{topic}-compacted"
    http.post("/v1/topics", {"name": topic, "partitions": 2})
    http.post("/v1/topics", {"name": other, "partitions": 2, "configs": {"cleanup.policy": "compact"}})
    records = [
        {"topic": topic, "value": 0, "partition": 1},
        {"topic": other, "key": "a", "value": 1, "partition": 1},
        {"topic": other, "value": 2, "partition": 1},
        {"topic": topic, "value": 3, "partition": 0},
        {"topic": other, "value": 4, "partition": 1},
    ]
    answer = http.post("/v1/records", {"records": records}, headers=key)
    assert (answer.status, answer.json["outcome"]) == (422, "none"), answer
    assert answer.json["records"] == [2, 4]
    assert (answer.json["topic"], answer.json["partition"]) == (other, 1)


def test_a_record_that_is_too_large_for_its_topic_is_named(http: Http, topic: str) -> None:
    http.post("/v1/topics", {"name": topic, "partitions": 1, "configs": {"max.message.bytes": "5000"}})
    answer = written(http, topic, [GOOD, {"value": "x" * 6000}, GOOD])
    assert (answer.status, answer.json["records"]) == (413, [1]), answer


def test_records_that_fit_are_written_though_they_are_too_much_for_one_batch(
    served: Served, http: Http, topic: str
) -> None:
    """A topic that takes small batches only was given one batch for all, which it refused."""
    http.post("/v1/topics", {"name": topic, "partitions": 1, "configs": {"max.message.bytes": "5000"}})
    answer = written(http, topic, [{"value": f"{number:02}" + "x" * 2000} for number in range(10)])
    assert answer.status == 200, answer
    lines = b"".join(json.dumps({"value": f"{number:02}" + "x" * 2000}).encode() + b"\n" for number in range(10, 20))
    reports = told(http, topic, lines)
    assert [each.get("problem") for each in reports] == [None] * 10
    seen = read_all(served.bootstrap, topic)
    assert [(each.value or b"")[1:3] for each in seen] == [b"%02d" % number for number in range(20)]


def test_long_lines_that_fit_are_written_though_their_records_are_longer(http: Http, topic: str) -> None:
    """They went into one batch because their text had room in it; but a record has more around a long value than its
    line has, and the batch was refused.
    """
    line = json.dumps({"value": "x" * 9000}, separators=(",", ":")).encode()
    most = str(2 * len(line) + HEADER_BYTES)
    http.post("/v1/topics", {"name": topic, "partitions": 1, "configs": {"max.message.bytes": most}})
    assert [each.get("offset") for each in told(http, topic, 2 * (line + b"\n"))] == [0, 1]


def told(http: Http, topic: str, lines: bytes) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/topics/{topic}/records", lines, headers=LINES)
    assert answer.status == 200, answer
    return [json.loads(each) for each in answer.json.splitlines()]


@pytest.mark.parametrize("more", [{}, {"headers": {"h": "1"}}])
def test_a_line_that_the_log_refuses_takes_no_other_with_it(
    served: Served, http: Http, topic: str, more: dict[str, Any]
) -> None:
    """A record without a key in a compacted topic refused its neighbours too, since they were sent in one batch."""
    http.post("/v1/topics", {"name": topic, "partitions": 1, "configs": {"cleanup.policy": "compact"}})
    keyless = {2, 5}
    records = [({} if number in keyless else {"key": f"k{number}"}) | {"value": number} | more for number in range(8)]
    reports = told(http, topic, b"".join(json.dumps(each).encode() + b"\n" for each in records))
    assert [each["line"] for each in reports] == list(range(8))
    assert {each["line"] for each in reports if "problem" in each} == keyless
    assert all("records" not in each.get("problem", {}) for each in reports)
    assert [each["offset"] for each in reports if "problem" not in each] == list(range(6))
    assert [each.value for each in read_all(served.bootstrap, topic)] == [b"0", b"1", b"3", b"4", b"6", b"7"]


def test_lines_that_may_be_written_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader fell silent, and the next one blamed a line: the others were sent again with numbers of their own."""
    sent = []

    async def send(_: object, batches: list[OutgoingBatch]) -> None:
        sent.append(batches)
        for each in batches:
            each.refused(ErrorCode.INVALID_TIMESTAMP, "too old", (1,))
            each.in_doubt = True

    monkeypatch.setattr(producing, "send", send)
    reports = [Report(number) for number in range(3)]
    run: ToldRecords = [(report, (None, b"x", (), 1000)) for report in reports]
    asyncio.run(_write_told(cast(Gateway, None), {TopicPartition("t", 0): [run]}, is_named=True))
    assert len(sent) == 1
    assert [json.loads(bytes(cast(Raw, each.problem)))["outcome"] for each in reports] == ["unknown"] * 3


def test_an_event_that_is_none_is_named_in_its_batch(http: Http, topic: str) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
    events = json.dumps([event, event, {**event, "id": ""}]).encode()
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    answer = http.post(f"/v1/topics/{topic}/events", events, headers=headers)
    assert (answer.status, answer.json["records"]) == (422, [2]), answer


@pytest.mark.parametrize("padding", [0, 3000])
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b'{"specversion": "1.0", "id": }', "it is not JSON: JSON is malformed: invalid character (byte 29)"),
        (b'{"data": NaN}', "it is not JSON: JSON is malformed: invalid character (byte 9)"),
        (b'{"id": "\xff"}', "it is not UTF-8"),
    ],
)
def test_an_event_that_is_no_json_is_named_in_its_batch(
    http: Http, topic: str, bad: bytes, why: str, padding: int
) -> None:
    """With the place in the event: a sender whose library joined its events knows no places in the body."""
    good = json.dumps({"specversion": "1.0", "id": "1", "source": "s", "type": "t"}).encode()[:-1]
    good += b', "data": {"a": 1, "a": 2}}'  # what is in an event is its sender's
    body = b"[%b]" % b",".join([*[good] * padding, good, bad, good])
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    answer = http.post(f"/v1/topics/{topic}/events", body, headers=headers)
    assert (answer.status, answer.json.get("records")) == (400, [padding + 1]), answer
    assert answer.json["detail"] == f"record {padding + 1}: {why}"


@pytest.mark.parametrize("body", [b'[{"id": "1"', b'{"a": 1}', b"[{}]x", b""])
def test_no_event_is_blamed_for_what_is_wrong_around_them(http: Http, topic: str, body: bytes) -> None:
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    answer = http.post(f"/v1/topics/{topic}/events", body, headers=headers)
    assert (answer.status, answer.json["type"], "records" in answer.json) == (400, "/problems/malformed", False), answer
