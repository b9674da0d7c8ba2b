"""CloudEvents in and out, with the libraries of CloudEvents at the other end."""

from __future__ import annotations

import asyncio
import base64
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest
from aiohttp import web
from cloudevents.core.bindings import http as http_binding
from cloudevents.core.bindings import kafka as kafka_binding
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1 import kafka as older_kafka
from cloudevents.v1.http import CloudEvent as OlderEvent
from cloudevents.v1.http import from_http as older_from_http
from confluent_kafka import Producer

from log.batch import Record
from log.ids import TopicPartition
from service.web import events
from service.web.consuming import batch_of
from service.web.event_format import WRAPPED, EventOut, from_binary, shown_event, to_binary
from service.web.problems import Problem
from tests.service.web.kit import PATIENCE_S, TURN_S, Answer, Http, Served, longest_turn_s, read_all, turns_of

STRUCTURED, BATCHED = "application/cloudevents+json", "application/cloudevents-batch+json"
ATTRIBUTES = {"id": "1", "source": "/shop", "specversion": "1.0", "type": "sold"}
FORMAT = JSONFormat()
HERE = TopicPartition("t", 0)

EVENTS = (
    CloudEvent({**ATTRIBUTES, "partitionkey": "anna", "datacontenttype": "application/json"}, {"fruit": "fig", "n": 7}),
    CloudEvent({**ATTRIBUTES, "time": datetime(2026, 1, 1, 12, tzinfo=UTC), "subject": 'a "b" 100% ü 🍎'}, {"x": [1]}),
    CloudEvent({**ATTRIBUTES, "datacontenttype": "text/plain", "partitionkey": "carl"}, "an apple"),
    CloudEvent({**ATTRIBUTES, "datacontenttype": "image/png"}, b"\x89PNG\x00\xff"),
    CloudEvent({**ATTRIBUTES, "dataschema": "https://example.org/s"}, None),
)


def facts(event: Any) -> tuple[dict[str, Any], Any]:
    """Attributes and data. Data of which nobody says what it is are JSON."""
    attributes = {name: each for name, each in event.get_attributes().items() if each is not None}
    data = event.get_data()
    if data is not None:
        attributes.setdefault("datacontenttype", "application/json")
    return attributes, data


def stream(http: Http, topic: str, query: str, accept: str) -> list[str]:
    """Its lines; all streams are UTF-8."""
    path = f"{http.url}/v1/topics/{topic}/stream?{query}"
    return http.session.get(path, headers={"Accept": accept}, timeout=PATIENCE_S).content.decode().splitlines()


def produce(served: Served, topic: str, *messages: kafka_binding.KafkaMessage) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap})
    for each in messages:
        producer.produce(topic, value=each.value, key=each.key, headers=list(each.headers.items()))
    assert producer.flush(PATIENCE_S) == 0


def shown(http: Http, topic: str, offset: int, accept: str) -> http_binding.HTTPMessage:
    answer = http.session.get(
        f"{http.url}/v1/topics/{topic}/partitions/0/events/{offset}", headers={"Accept": accept}, timeout=PATIENCE_S
    )
    assert answer.status_code in (200, 204), answer.text
    return http_binding.HTTPMessage(dict(answer.headers), answer.content)


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_what_the_library_posts_is_read_by_it_from_kafka_and_from_here(
    served: Served, http: Http, topic: str, mode: str
) -> None:
    """Method: each event goes in by HTTP; a Kafka client reads it, and HTTP in both modes and in a batch."""
    for event in EVENTS:
        message = getattr(http_binding, f"to_{mode}")(event, FORMAT)
        answer = http.post(f"/v1/topics/{topic}/events", message.body, headers=message.headers)
        assert answer.status == 200, answer
    for event, seen in zip(EVENTS, read_all(served.bootstrap, topic), strict=True):
        stored = kafka_binding.KafkaMessage(
            {name: each or b"" for name, each in seen.headers}, seen.key, seen.value or b""
        )
        assert facts(kafka_binding.from_kafka(stored, FORMAT)) == facts(event)
    batch = http.get(f"/v1/topics/{topic}/partitions/0/records", headers={"Accept": BATCHED})
    assert batch.headers["Content-Type"] == BATCHED
    assert batch.headers["Next-Offset"] == str(len(EVENTS))
    for offset, event in enumerate(EVENTS):
        assert facts(FORMAT.read(None, json.dumps(batch.json[offset]))) == facts(event)
        for accept in ("*/*", STRUCTURED):
            message = shown(http, topic, offset, accept)
            assert facts(http_binding.from_http(message, FORMAT)) == facts(event), message


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_what_the_library_writes_to_kafka_is_an_event_here(served: Served, http: Http, topic: str, mode: str) -> None:
    produce(served, topic, *(getattr(kafka_binding, f"to_{mode}")(event, FORMAT) for event in EVENTS))
    lines = stream(http, topic, "from=earliest&until=end", f"{STRUCTURED}, application/x-ndjson")
    *found, end = [json.loads(line) for line in lines]
    assert end["end"]["cursor"].endswith(f"@0:{len(EVENTS)}")
    for offset, (line, event) in enumerate(zip(found, EVENTS, strict=True)):
        assert line.pop("oncelogcursor").endswith(f"@0:{offset + 1}")
        assert facts(FORMAT.read(None, json.dumps(line))) == facts(event)
        assert facts(http_binding.from_http(shown(http, topic, offset, "*/*"), FORMAT)) == facts(event)


def test_the_cursor_of_a_line_is_the_streams_own(served: Served, http: Http, topic: str) -> None:
    """An event that came out of another stream may bring one along."""
    event = {**ATTRIBUTES, "specversion": "1.0", "oncelogcursor": "9:9"}
    headers = {"Content-Type": STRUCTURED}
    assert http.post(f"/v1/topics/{topic}/events", json.dumps(event), headers=headers).status == 200
    line, _ = stream(http, topic, "from=earliest&until=end", f"{STRUCTURED}, application/x-ndjson")
    assert line.count("oncelogcursor") == 1
    assert json.loads(line)["oncelogcursor"].endswith("@0:1")


def test_the_older_library_reads_and_writes_them_too(served: Served, http: Http, topic: str) -> None:
    """Its key is the attribute `partitionkey` and nothing else; its structured mode has no event's media type."""
    event = OlderEvent({**ATTRIBUTES, "datacontenttype": "application/json", "partitionkey": "anna"}, {"fruit": "fig"})
    for each in (older_kafka.to_binary(event), older_kafka.to_structured(event)):
        assert isinstance(each.value, bytes)
        produce(served, topic, kafka_binding.KafkaMessage(each.headers, each.key, each.value))
    message = shown(http, topic, 0, "*/*")
    found = older_from_http({name.lower(): each for name, each in message.headers.items()}, message.body)
    assert found.get_data() == {"fruit": "fig"}
    assert {**found.get_attributes(), "time": ""} == {**event.get_attributes(), "time": ""}
    assert json.loads(shown(http, topic, 1, STRUCTURED).body)["type"] == WRAPPED
    produce(served, topic, kafka_binding.to_binary(EVENTS[0], FORMAT))
    seen = read_all(served.bootstrap, topic)[-1]
    stored = older_kafka.KafkaMessage({name: each or b"" for name, each in seen.headers}, seen.key, seen.value or b"")
    assert older_kafka.from_binary(stored).get_data() == {"fruit": "fig", "n": 7}


def test_members_and_event_sources_get_events_and_know_where_to_go_on(served: Served, http: Http, topic: str) -> None:
    produce(served, topic, *(kafka_binding.to_binary(event, FORMAT) for event in EVENTS))
    member = http.post(f"/v1/groups/{topic}/members", {"topics": [topic]}).headers["Location"]
    found: list[Any] = []
    while len(found) < len(EVENTS):
        answer = http.get(f"{member}/records?wait_ms=5000", headers={"Accept": BATCHED})
        assert (answer.status, answer.headers["Content-Type"]) == (200, BATCHED), answer
        found += answer.json
    assert [facts(FORMAT.read(None, json.dumps(each))) for each in found] == [facts(each) for each in EVENTS]
    token = answer.headers["Commit-Token"]
    assert http.post(f"{member}/offsets", {"commit_token": token}).status == 204
    committed = http.get(f"/v1/groups/{topic}/offsets").json["offsets"]
    assert [each["offset"] for each in committed] == [len(EVENTS)]
    http.delete(member)
    lines = stream(http, topic, "from=earliest&max_records=2", f"text/event-stream, {STRUCTURED}")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert facts(FORMAT.read(None, data[1])) == facts(EVENTS[1])
    assert any(line.startswith("id: ") and line.endswith("@0:2") for line in lines)


def test_what_is_no_event_is_wrapped_and_says_where_it_is(http: Http, topic: str) -> None:
    records = [
        {"key": "k", "value": {"x": 1}, "timestamp": 1_767_225_600_000},
        {"value_string": "plain", "headers": {"ce_id": "1"}},
        {"key_base64": "/w==", "value_base64": "/w==", "headers": {"content-type": STRUCTURED}},
        {"value": None},
    ]
    assert http.post(f"/v1/topics/{topic}/records", {"records": records}).status == 200
    found = http.get(f"/v1/topics/{topic}/partitions/0/records", headers={"Accept": BATCHED}).json
    source = f"/v1/topics/{topic}/partitions/0"
    assert {(each["type"], each["source"], each["specversion"]) for each in found} == {(WRAPPED, source, "1.0")}
    assert [each["id"] for each in found] == ["0", "1", "2", "3"]
    assert (found[0]["partitionkey"], found[0]["data"], found[0]["time"]) == ("k", {"x": 1}, "2026-01-01T00:00:00.000Z")
    assert (found[1]["datacontenttype"], found[1]["data"]) == ("text/plain", "plain")
    assert (found[2]["datacontenttype"], found[2]["data_base64"]) == ("application/octet-stream", "/w==")
    assert not {"data", "data_base64", "datacontenttype"} & found[3].keys()


@pytest.mark.parametrize("member", [b'"data":"\xff"', b'"data":[{"x":"\xc3("}]', b'"subject":"\xff"', b'"\xff":1'])
def test_what_is_not_utf_8_is_wrapped_however_it_is_called(member: bytes) -> None:
    """A Kafka client may write anything under the media type of events. One such record made the page of its partition
    bytes that are no JSON.
    """
    value = b'{"id":"1","source":"/shop","specversion":"1.0","type":"sold",%b}' % member
    event = shown_event(HERE, record(value, **{"content-type": STRUCTURED}))
    assert event.content["type"] == WRAPPED
    assert base64.b64decode(json.loads(msgspec.json.encode(event.content))["data_base64"]) == value


def test_what_posts_no_event_is_refused_and_writes_nothing(http: Http, topic: str) -> None:
    path = f"/v1/topics/{topic}/events"
    assert http.post("/v1/topics", {"name": topic}).status == 201
    good = {f"ce-{name}": each for name, each in ATTRIBUTES.items()}
    refused: list[tuple[int, Any, dict[str, Any]]] = [
        (415, b"{}", {"Content-Type": "application/json"}),
        (400, b"{", {"Content-Type": STRUCTURED}),
        (422, b"{}", {"Content-Type": STRUCTURED}),
        (422, json.dumps({**ATTRIBUTES, "specversion": "0.3"}), {"Content-Type": STRUCTURED}),
        (422, json.dumps({**ATTRIBUTES, "id": ""}), {"Content-Type": STRUCTURED}),
        (422, json.dumps([ATTRIBUTES, {**ATTRIBUTES, "type": 1}]), {"Content-Type": BATCHED}),
        (415, b"", {**good, "Content-Type": "application/cloudevents"}),
        (415, b"", {**good, "Content-Type": "application/cloudevents+xml; charset=utf-8"}),
        (415, b"", {**good, "Content-Type": b"Application/CloudEvents/\xff"}),
        (422, b"", {"ce-id": "1"}),
        (422, b"", {**good, "ce-specversion": "2.0"}),
        (422, b"", {**good, "ce-two-words": "x"}),
        (422, b"", {**good, "ce-subject": "%ff"}),
        (422, b"", {**good, "ce-subject": ""}),
        (422, b"", {**good, "ce-partitionkey": ""}),
        (422, b"", {**good, "ce-dataschema": ""}),
        (422, b"", {**good, "ce-dataschema": "a/b"}),
        (422, b"", {**good, "Content-Type": ""}),
        (422, b"", {**good, "ce-time": "zz"}),
        (422, b"", {**good, "ce-time": "2026-13-02T03:04:05Z"}),
        (422, b"", {**good, "ce-time": "2026-02-30T03:04:05Z"}),
    ]
    for status, body, headers in refused:
        answer = http.post(path, body, headers=headers)
        assert (answer.status, answer.json["outcome"]) == (status, "none"), (answer, headers)
    assert http.get(f"/v1/topics/{topic}/partitions/0/records").json["high_watermark"] == 0


def test_an_empty_batch_is_taken_and_writes_nothing(http: Http, topic: str) -> None:
    """The JSON batch format has it; it was refused."""
    assert http.post("/v1/topics", {"name": topic}).status == 201
    answer = http.post(f"/v1/topics/{topic}/events", b" [ ] ", headers={"Content-Type": BATCHED})
    assert (answer.status, answer.json) == (200, {"outcome": "none", "results": [], "topic": topic})
    assert http.get(f"/v1/topics/{topic}/partitions/0/records").json["high_watermark"] == 0


def test_a_sender_of_webhooks_is_given_consent(served: Served, http: Http, topic: str) -> None:
    """As the webhooks of CloudEvents ask for it, beside a browser's preflight, which is something else."""
    path = f"/v1/topics/{topic}/events"
    asking = {"WebHook-Request-Origin": "events.example.org", "WebHook-Request-Rate": "120"}
    answer = http.ask("OPTIONS", path, headers=asking)
    assert answer.status == 200, answer
    assert answer.headers["WebHook-Allowed-Origin"] == "events.example.org"
    assert answer.headers["WebHook-Allowed-Rate"] == "*"
    assert "POST" in answer.headers["Allow"]
    answer = http.ask("OPTIONS", path, headers={"WebHook-Request-Origin": "events.example.org"})
    assert "WebHook-Allowed-Rate" not in answer.headers
    assert "WebHook-Allowed-Origin" not in http.ask("OPTIONS", path).headers
    preflight = http.ask("OPTIONS", path, headers={"Origin": "http://x", "Access-Control-Request-Method": "POST"})
    assert preflight.status == 204


def test_where_there_is_no_event_and_what_events_do_not_show(http: Http, topic: str) -> None:
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}).status == 200
    one = f"/v1/topics/{topic}/partitions/0/events"
    assert [http.get(f"{one}/{each}").status for each in ("0", "1", "7", "x", str(2**63))] == [200, 404, 416, 400, 400]
    page = f"/v1/topics/{topic}/partitions/0/records"
    assert http.get(page, headers={"Accept": STRUCTURED}).status == 406
    assert http.get(f"{page}?include=control", headers={"Accept": BATCHED}).status == 400
    answer: Answer = http.get(f"/v1/topics/{topic}/stream?include=aborted", headers={"Accept": STRUCTURED})
    assert answer.status == 400


def record(value: bytes | None, **headers: str) -> Record:
    return Record(5, 0, None, value, tuple((name, each.encode()) for name, each in headers.items()))


@pytest.mark.parametrize(
    ("members", "status", "words"),
    [
        ('"id": "second"', 400, "twice"),
        ('"data_base64": "!!"', 422, "base64"),
        ('"data_base64": "QQ"', 422, "base64"),
        ('"data_base64": 5', 422, "data_base64"),
        ('"data": {}, "data_base64": "AA=="', 422, "not both"),
        ('"Bad-Name": 1', 422, "Bad-Name"),
        ('"extension": [1]', 422, "extension"),
        ('"datacontenttype": 5', 422, "datacontenttype"),
        ('"subject": ""', 422, "subject"),
        ('"partitionkey": ""', 422, "partitionkey"),
        ('"datacontenttype": ""', 422, "datacontenttype"),
        ('"dataschema": ""', 422, "dataschema"),
        ('"dataschema": "not a uri with spaces"', 422, "dataschema"),
        ('"dataschema": "/relative"', 422, "dataschema"),
        ('"dataschema": "urn:x:%4"', 422, "dataschema"),
        ('"dataschema": "https://e.example/s?v=1#a%20b", "subject": "s", "datacontenttype": null', 200, ""),
        ('"time": "yesterday"', 422, "time"),
        ('"time": "2026-01-02T24:04:05Z"', 422, "time"),
        ('"time": "2026-02-30T03:04:05Z"', 422, "time"),
        ('"time": "1900-02-29T03:04:05Z"', 422, "time"),
        ('"time": "2026-04-31t03:04:05.5+01:00"', 422, "time"),
        ('"time": "2024-02-29T03:04:05Z"', 200, ""),
        ('"time": "0000-02-29T03:04:05Z"', 200, ""),
        ('"time": "2026-01-02t03:04:05z", "a": 2147483647, "b": -2147483648', 200, ""),
        ('"extension": 2147483648', 422, "32 bits"),
        ('"extension": -2147483649', 422, "32 bits"),
        ('"extension": 1.5', 422, "whole"),
        (", ".join(f'"a{number}": 1' for number in range(1_001)), 422, "attributes"),
        ('"data": {"x": 1, "x": 2}', 200, ""),
        ('"data_base64": "AA==", "time": "2026-01-02T03:04:05.6+07:00", "extension": null', 200, ""),
    ],
)
def test_what_is_no_event_is_refused(http: Http, topic: str, members: str, status: int, words: str) -> None:
    event = f"{json.dumps(ATTRIBUTES)[:-1]}, {members}}}".encode()
    answer = http.post(f"/v1/topics/{topic}/events", event, headers={"Content-Type": STRUCTURED})
    assert answer.status == status, answer
    assert status == 200 or words in answer.json["detail"]
    batch = b"[%b, %b]" % (json.dumps(ATTRIBUTES).encode(), event)
    answer = http.post(f"/v1/topics/{topic}/events", batch, headers={"Content-Type": BATCHED})
    assert answer.status == status
    assert status == 200 or answer.json["records"] == [1]


def test_an_events_data_is_never_a_page_of_ours(http: Http, topic: str) -> None:
    headers = {f"ce-{name}": each for name, each in ATTRIBUTES.items()} | {"Content-Type": "text/html"}
    assert http.post(f"/v1/topics/{topic}/events", b"<script>1</script>", headers=headers).status == 200
    message = shown(http, topic, 0, "text/html")
    assert "sandbox" in message.headers["Content-Security-Policy"]
    assert message.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("data", [b'{"a":\n 1.0}', b" 5\r\n", b"\n[ ]", b"null", b"{"])
def test_json_comes_out_byte_by_byte_in_binary_mode_and_in_one_line_of_a_stream(
    http: Http, topic: str, data: bytes
) -> None:
    """The signature of a webhook is over the bytes of its body."""
    headers = {f"ce-{name}": each for name, each in ATTRIBUTES.items()} | {"Content-Type": "application/json"}
    assert http.post("/v1/topics", {"name": topic}).status == 201
    assert http.post(f"/v1/topics/{topic}/events", data, headers=headers).status == 200
    structured = json.dumps({**ATTRIBUTES, "data": [1, 2]}, indent=1)
    assert http.post(f"/v1/topics/{topic}/events", structured, headers={"Content-Type": STRUCTURED}).status == 200
    assert shown(http, topic, 0, "*/*").body == data
    lines = stream(http, topic, "from=earliest&until=end", f"{STRUCTURED}, application/x-ndjson")
    assert len([json.loads(line) for line in lines if ATTRIBUTES["source"] in line]) == 2, lines
    told = stream(http, topic, "from=earliest&until=end", f"{STRUCTURED}, text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in told if line.startswith('data: {"')]
    assert [each["id"] for each in events if "id" in each] == ["1", "1"], told


def test_attributes_that_headers_cannot_hold_are_told_or_left_out() -> None:
    """A structured event may hold anything: what goes into headers is no header of somebody's making."""
    strange = json.dumps({**ATTRIBUTES, "subject": "a\r\nSet-Cookie: x", "datacontenttype": "a\r\nb: c", "n": 7,
                          "b": True, "o": {"x": 1}, "Bad-Name": "x", "none": None, "data": "é"})  # fmt: skip
    stored = (("content-type", STRUCTURED.encode()),)
    headers, body = to_binary(shown_event(HERE, Record(0, 0, None, strange.encode(), stored)))
    assert headers == {
        **{f"ce-{name}": each for name, each in ATTRIBUTES.items()},
        "ce-subject": "a%0D%0ASet-Cookie:%20x",
        "ce-n": "7",
        "ce-b": "true",
        "Content-Type": "application/octet-stream",
    }
    assert body == "é".encode()
    long = EventOut(0, {**ATTRIBUTES, "subject": "x" * 40_000})
    with pytest.raises(Problem, match="too long"):
        to_binary(long)
    with pytest.raises(Problem, match="base64"):
        to_binary(EventOut(0, {**ATTRIBUTES, "data_base64": "?"}))


@pytest.mark.parametrize(
    ("member", "shown_as"),
    [
        ('"datacontenttype": "text/plain", "data": 1e999', b"1e999"),
        ('"datacontenttype": "text/plain", "data": [1e999]', b"[1e999]"),
        ('"datacontenttype": "text/plain", "data": "\\u00e9"', "é".encode()),
        ('"extension": 1e999', None),
        ('"extension": [1e999]', None),
    ],
)
def test_an_event_in_binary_mode_is_shown_whatever_numbers_it_has(member: str, shown_as: bytes | None) -> None:
    event = f"{json.dumps(ATTRIBUTES)[:-1]}, {member}}}".encode()
    headers, body = to_binary(shown_event(HERE, record(event, **{"content-type": STRUCTURED}), in_lines=False))
    assert body == shown_as
    assert {name for name in headers if name.startswith("ce-")} == {f"ce-{name}" for name in ATTRIBUTES}


@pytest.mark.parametrize(
    ("charset", "data", "body"),
    [
        ("utf-16", "é", "é".encode("utf-16")),
        ('\\"UTF-16BE\\"', "é", b"\x00\xe9"),
        ("ISO-8859-1; format=flowed", "é", b"\xe9"),
        ("utf-8", "é", "é".encode()),
        ("ascii", "e", b"e"),
    ],
)
def test_text_is_in_the_charset_that_its_media_type_tells(charset: str, data: str, body: bytes) -> None:
    """Text of a structured event left in binary mode as UTF-8, whatever its media type said."""
    event = f'{json.dumps(ATTRIBUTES)[:-1]}, "datacontenttype": "text/plain; charset={charset}", "data": "{data}"}}'
    headers, found = to_binary(shown_event(HERE, record(event.encode(), **{"content-type": STRUCTURED})))
    assert (found, headers["Content-Type"]) == (body, f"text/plain; charset={charset}".replace("\\", ""))


@pytest.mark.parametrize(
    "parameter",
    [*(f"charset={each}" for each in ("iso-8859-1", "ascii", "unknown", "idna", "base64", "x" * 10_000)), "xcharset=1"],
)
def test_text_that_its_charset_does_not_have_is_utf_8(parameter: str) -> None:
    """It was refused, and so was text whose media type tells no charset that is known here."""
    event = f'{json.dumps(ATTRIBUTES)[:-1]}, "datacontenttype": "text/plain; {parameter}", "data": "€"}}'
    _, body = to_binary(shown_event(HERE, record(event.encode(), **{"content-type": STRUCTURED})))
    assert body == "€".encode()


@pytest.mark.parametrize("is_event", [False, True])
@pytest.mark.parametrize(
    "media", ["text/plain; charset=us-ascii", "text/plain; charset=utf-16", "text/plain; charset=x", "application/json"]
)
def test_data_that_are_stored_as_they_are_leave_so(media: str, is_event: bool) -> None:
    """Text in UTF-8 that was said to be ASCII was taken, but never shown."""
    value, headers = "café".encode(), {f"ce_{name}": each for name, each in ATTRIBUTES.items()} if is_event else {}
    shown = shown_event(HERE, record(value, **headers, **{"content-type": media}), in_lines=False)
    told, body = to_binary(shown)
    assert (told["Content-Type"], body) == (media, value)


def test_no_objects_are_made_of_data_for_binary_mode() -> None:
    """Data may be megabytes: what is made of them in one turn would hold the loop for a second."""
    data = b"[%b]" % b",".join([b"[]"] * 100_000)
    event = f'{json.dumps(ATTRIBUTES)[:-1]}, "datacontenttype": "text/plain", "data": {data.decode()}}}'.encode()
    shown = shown_event(HERE, record(event, **{"content-type": STRUCTURED}), in_lines=False)
    tracemalloc.start()
    _, body = to_binary(shown)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert body == data
    assert most_bytes < 2 * len(data)


def test_data_is_shown_as_its_type_says() -> None:
    of_event = {f"ce_{name}": each for name, each in ATTRIBUTES.items()}

    def data(value: bytes | None, media: str | None) -> dict[str, Any]:
        headers = {**of_event, **({} if media is None else {"content-type": media})}
        event = json.loads(msgspec.json.encode(shown_event(HERE, record(value, **headers)).content))
        return {name: each for name, each in event.items() if name not in ATTRIBUTES and name != "datacontenttype"}

    packed = {"data_base64": base64.b64encode(b"[1").decode()}
    assert data(b"[1]", None) == data(b"[1]", "application/vnd.x+json; charset=utf-8") == {"data": [1]}
    assert data(b"[1", None) == data(b"[1", "application/json") == data(b"[1", "image/x") == packed
    assert data(b"[1", "text/csv") == data(b"[1", "application/xml;charset=UTF-8") == {"data": "[1"}
    assert data(b"[1", "text/plain; charset=latin-1") == packed
    assert data(b"\xff", "text/plain") == {"data_base64": "/w=="}
    assert data(None, "text/plain") == data(b"", None) == {}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "media", ["text/", "text/plain", "text/plain;", "application/xml", "application/json", "a/x+json", "a/+"]
)
def test_a_media_type_as_long_as_a_record_is_looked_at_once(media: str) -> None:
    """The broker stood still for 9 s at 16 KB of blanks, whenever somebody read them as events, and 16 times as long at
    four times as many.
    """
    for end in ("", ";", "x", "; charset=utf-8"):
        long = record(b"x", **{"content-type": media + " " * 1_000_000 + end})
        assert shown_event(HERE, long).content["type"] == WRAPPED


def test_a_quoted_header_is_unquoted_before_it_is_decoded() -> None:
    given = {f"ce-{name}": each for name, each in ATTRIBUTES.items()} | {"ce-subject": '"a \\"b\\" %41"'}
    _, _, stored, _ = from_binary(given, b"", 0)
    assert dict(stored)["ce_subject"] == b'a "b" A'


ONE = json.dumps(ATTRIBUTES).encode()


@pytest.mark.parametrize(
    "batch",
    [
        b"[%b%b]" % (ONE, b",0" * 1_000_000),
        b"[%b%b]" % (ONE, b",[]" * 500_000),
        b"[%b]" % b",".join([ONE] * 5_000),
        b"[%b]" % b",".join([ONE[:-1] + b',"data":[' + b"0," * 1500 + b"0]}"] * 120),
        b"[" * 4_000_000,
    ],
    ids=["numbers", "lists", "many", "long", "no end"],
)
def test_a_batch_is_read_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch, batch: bytes) -> None:
    """A batch of 16 MiB, packed in 15 KB, was decoded in one turn of 0.7 s, which took 600 MB."""
    gateway: Any = MagicMock()
    monkeypatch.setattr(events, "body_of", AsyncMock(return_value=batch))
    monkeypatch.setattr(events, "topic_to_write", AsyncMock(side_effect=LookupError))

    async def receive() -> None:
        with pytest.raises((Problem, LookupError)):
            await events.receive(gateway, MagicMock(content_type=BATCHED))

    tracemalloc.start()
    asyncio.run(receive())
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 10 * len(batch)
    assert longest_turn_s(receive()) < TURN_S / 3


@pytest.mark.parametrize(
    ("batch", "status", "blamed"),
    [
        (b"[%b" + b",0" * 100_000 + b"]", 413, None),
        (b"[%b,1]", 422, [1]),
        (b"[%b,tru]", 400, [1]),
        (b"[%b," + b" " * 70_000 + b"%b,tru]", 400, [2]),
        (b'[%b,{"id":1,"id":2}]', 400, [1]),
        (b'[%b],"x":[]', 400, None),
        (b"[%b]}", 400, None),
        (b"[%b", 400, None),
        (b'{"records":[%b]}', 400, None),
        (b"", 400, None),
    ],
)
def test_what_is_wrong_with_a_batch_is_told(
    http: Http, topic: str, batch: bytes, status: int, blamed: list[int] | None
) -> None:
    body = batch.replace(b"%b", ONE)
    answer = http.post(f"/v1/topics/{topic}/events", body, headers={"Content-Type": BATCHED})
    assert (answer.status, answer.json.get("records")) == (status, blamed), answer


def test_a_long_batch_is_made_in_turns_of_the_loop() -> None:
    """One of 17 MB was encoded in one turn of 25 ms."""
    events = [EventOut(each, {"id": str(each), "data": "x" * 1000}) for each in range(17_000)]
    made: list[web.Response] = []

    async def make() -> None:
        made.append(await batch_of(events, {"Next-Offset": "17000"}))

    assert turns_of(make()) > 10
    assert msgspec.json.decode(made[0].body) == [each.content for each in events]  # type: ignore[arg-type]
    assert asyncio.run(batch_of([], {})).body == b"[]"
