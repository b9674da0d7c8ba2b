"""Calls of Confluent's REST Proxy."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any, cast

import pytest
from aiohttp import web

from log.steps import done_at_once
from service.turns import done_in_turns
from service.web.compatible import (
    DEEP_V2,
    DEEP_V3,
    V2_MEDIA,
    _bytes_of,
    _decoded_briefly,
    _list_of,
    _Objects,
    _v3_record,
    _values,
)
from service.web.problems import Problem
from service.web.routing import JSON
from tests.service.web.kit import PATIENCE_S, TURN_S, Coming, Http, Served, longest_turn_s, read_all


def cluster(http: Http) -> str:
    found: str = http.get("/v1/cluster").json["cluster_id"]
    return found


def test_records_of_version_3_come_as_a_stream_or_one_by_one(served: Served, http: Http, topic: str) -> None:
    path = f"/v3/clusters/{cluster(http)}/topics/{topic}/records"
    one = {
        "key": {"type": "STRING", "data": "k"},
        "value": {"type": "JSON", "data": {"x": 1}},
        "headers": [{"name": "h", "value": "eA=="}],
        "timestamp": "2026-01-01T00:00:00Z",
    }
    answer = http.post(path, one)
    assert (answer.status, answer.json["error_code"], answer.json["offset"]) == (200, 200, 0), answer
    assert (answer.json["topic_name"], answer.json["timestamp"]) == (topic, "2026-01-01T00:00:00.000Z")
    assert answer.json["key"] == {"type": "STRING", "size": 1}
    values = [{"type": "BINARY", "data": "AAE="}, {"type": "AVRO", "data": 1}, {"type": "STRING", "data": "z"}]
    stream = "".join(json.dumps({"value": value}) for value in values)
    raw = http.session.post(http.url + path, data=stream, headers={"Content-Type": "application/json"}, timeout=30)
    reports = [json.loads(line) for line in raw.text.split("\r\n") if line]
    assert [each["error_code"] for each in reports] == [200, 422, 200]
    seen = read_all(served.bootstrap, topic)
    assert [(each.key, each.value) for each in seen] == [(b"k", b'{"x":1}'), (None, b"\x00\x01"), (None, b"z")]
    assert seen[0].headers == [("h", b"x")]


def test_a_batch_of_version_3_says_which_entries_failed(http: Http, topic: str) -> None:
    entries = [{"id": "a", "value": {"type": "STRING", "data": "x"}}, {"id": "b", "partition_id": 9}]
    answer = http.post(f"/v3/clusters/{cluster(http)}/topics/{topic}/records:batch", {"entries": entries})
    assert answer.status == 207
    assert [each["id"] for each in answer.json["successes"]] == ["a"]
    assert [(each["id"], each["error_code"]) for each in answer.json["failures"]] == [("b", 40403)]


def test_records_of_version_2_are_json_binary_or_text(served: Served, http: Http, topic: str) -> None:
    for form, value in (("json", {"x": 1}), ("binary", "AAE="), ("text", "t")):
        headers = {"Content-Type": f"application/vnd.kafka.{form}.v2+json"}
        body = json.dumps({"records": [{"value": value}, {"key": value, "value": None, "partition": 0}]})
        answer = http.post(f"/topics/{topic}", body, headers=headers)
        assert answer.status == 200, answer
        assert [each["error_code"] for each in answer.json["offsets"]] == [None, None]
    assert [each.value for each in read_all(served.bootstrap, topic)][::2] == [b'{"x":1}', b"\x00\x01", b"t"]
    answer = http.post(f"/topics/{topic}", "{}", headers={"Content-Type": "application/vnd.kafka.avro.v2+json"})
    assert (answer.status, answer.json["error_code"]) == (415, 415)


def test_a_partition_that_is_not_there_is_told_in_version_2_as_theirs(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic}).status == 201
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    places: list[tuple[str, dict[str, int]]] = [
        (f"/topics/{topic}/partitions/{each}", {}) for each in ("9", "99999999999", "9" * 5000, "-1", "x")
    ]
    for path, more in (*places, (f"/topics/{topic}", {"partition": 9})):
        answer = http.post(path, json.dumps({"records": [{"value": {}, **more}]}), headers=headers)
        assert (answer.status, answer.json) == (404, {"error_code": 40402, "message": "Partition not found."})


def test_a_page_of_another_place_is_refused_in_version_2_with_the_code_of_its_status(http: Http, topic: str) -> None:
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json", "Origin": "https://evil.example"}
    answer = http.post(f"/topics/{topic}", b'{"records": [{"value": 1}]}', headers=headers)
    assert (answer.status, answer.json["error_code"]) == (403, 403)


@pytest.mark.parametrize("value", ["1e999", "-1e999", "[" * 2000 + "]" * 2000, "[" * 972 + "]" * 972, "NaN"])
def test_what_is_no_json_as_it_would_be_stored_is_refused(http: Http, topic: str, value: str) -> None:
    """1e999 was stored as `Infinity`; lists just deep enough to be read could not be written, and cost a 500."""
    version_2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    answer = http.post(f"/topics/{topic}", f'{{"records":[{{"value":{value}}}]}}', headers=version_2)
    assert answer.status in (400, 422), answer
    path = f"/v3/clusters/{cluster(http)}/topics/{topic}/records"
    record = f'"value":{{"type":"JSON","data":{value}}}'
    for body, where in ((f"{{{record}}}", path), (f'{{"entries":[{{"id":"1",{record}}}]}}', f"{path}:batch")):
        raw = http.session.post(http.url + where, data=body, headers={"Content-Type": "application/json"}, timeout=30)
        assert raw.status_code < 500
        (failed,) = raw.json().get("failures") or [raw.json()]
        assert failed["error_code"] in (40002, 422)


@pytest.mark.parametrize(
    "wrong", ['"headers":6e16', '"headers":true', '"headers":[{"name":"\\ud800"}]', '"timestamp":true']
)
def test_a_record_of_version_3_with_wrong_members_is_refused(http: Http, topic: str, wrong: str) -> None:
    """All but the last failed in the broker."""
    path = f"/v3/clusters/{cluster(http)}/topics/{topic}/records"
    for body, where in ((f"{{{wrong}}}", path), (f'{{"entries":[{{"id":"1",{wrong}}}]}}', f"{path}:batch")):
        raw = http.session.post(http.url + where, data=body, headers={"Content-Type": "application/json"}, timeout=30)
        (failed,) = raw.json().get("failures") or [raw.json()]
        assert (raw.status_code < 300, failed["error_code"]) == (True, 422)


def test_a_record_of_version_2_that_is_wrong_is_named(http: Http, topic: str) -> None:
    headers = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
    answer = http.post(f"/topics/{topic}", {"records": [{"value": "eA=="}, {"value": "?"}]}, headers=headers)
    assert (answer.status, "record 1" in answer.json["message"]) == (422, True)


def test_a_record_that_comes_in_many_pieces_is_looked_at_once() -> None:
    """Each byte of a long record cost as much as all before it: one client kept the broker from everybody."""
    record = '{"key":"' + r"\\\"}{" * 50_000 + '","value":[{},{}]}'
    objects = _Objects()
    found = list(objects.feed(" {},\n" + record[:300_000]))
    began_s = time.process_time()
    for each in record[300_000:]:
        found += objects.feed(each)
    assert time.process_time() - began_s < 5, "it is a tenth of a second"
    found += objects.feed('{"c":"\\')
    found += objects.feed('""}')
    assert [json.loads(each) for each in found] == [{}, json.loads(record), {"c": '"'}]
    objects.end()


@pytest.mark.parametrize("text", ["5", "{} x", "{", '{"a":"}', "}", "{]", '"{}"', "x{}"])
def test_what_is_no_object_ends_a_stream_of_records(text: str) -> None:
    objects = _Objects()
    with pytest.raises(Problem):
        for each in objects.feed(text):
            done_at_once(_decoded_briefly(each, DEEP_V3))
        objects.end()


def test_a_slash_at_the_end_is_passed_over_as_by_their_proxy(http: Http, topic: str) -> None:
    """Its documentation has `POST /consumers/testgroup/`."""
    v2, v3 = {"Content-Type": "application/vnd.kafka.v2+json"}, f"/v3/clusters/{cluster(http)}/topics/{topic}"
    made = http.post(f"/consumers/{topic}/", json.dumps({"name": "my_consumer", "format": "binary"}), headers=v2)
    one = f"/consumers/{topic}/instances/my_consumer"
    assert (made.status, made.json) == (200, {"instance_id": "my_consumer", "base_uri": http.url + one}), made
    assert http.delete(f"{one}/", headers=v2).status == 204
    binary = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
    assert http.post(f"/topics/{topic}/", '{"records":[{"value":"a2Fma2E="}]}', headers=binary).status == 200
    assert http.post(f"{v3}/records/", {"value": {"type": "JSON", "data": 1}}).json["offset"] == 1
    assert http.get(f"{v3}/").json["topic_name"] == topic
    assert '"/topics/{topic}"' in (told := http.get("/metrics").json) and '{topic}/"' not in told
    assert http.post(f"/v1/topics/{topic}/records/", {"records": [{"value": 1}]}).status == 404


def test_another_cluster_is_told_in_their_form(http: Http, topic: str) -> None:
    for path in ("records", "records:batch"):
        answer = http.post(f"/v3/clusters/another/topics/{topic}/{path}", {})
        assert (answer.status, answer.json["error_code"]) == (404, 404)
        assert answer.headers["Content-Type"].startswith("application/json")


def test_a_path_that_their_proxy_does_not_have_either_is_told_in_its_form(http: Http, topic: str) -> None:
    """Programs that read `error_code` of every refusal got our problems, which have none."""
    told = {"error_code": 404, "message": "HTTP 404 Not Found"}
    v3, v2 = JSON, V2_MEDIA
    for path, media in (
        ("/v3", v3), ("/v3/", v3), ("/v3/acls", v3), (f"/v3/clusters/{cluster(http)}/brokers", v3),
        ("/topics", v2), (f"/topics/{topic}/partitions/0/offsets", v2), (f"/consumers/{topic}/instances", v2),
    ):  # fmt: skip
        for answer in http.get(path), http.post(path, {}):
            assert (answer.status, answer.json) == (404, told), (path, answer)
            assert answer.headers["Content-Type"].partition(";")[0] == media
    for path in ("/v1/nowhere", "/v3x", "/topicsandmore"):
        assert http.get(path).json["type"] == "/problems/not-found"


@pytest.mark.parametrize("path", ["/v3/clusters", "/topics/t", "/consumers/g"])
def test_a_method_that_a_path_of_their_proxy_does_not_have_is_told_in_its_form(http: Http, path: str) -> None:
    answer = http.ask("DELETE", path)
    assert (answer.status, answer.json) == (405, {"error_code": 405, "message": "HTTP 405 Method Not Allowed"})
    assert answer.headers["Allow"]


def test_the_cluster_and_its_topics_are_shown_as_in_version_3(http: Http, topic: str) -> None:
    """The paths for writing need the cluster's id, and nothing told it."""
    listed = http.get("/v3/clusters").json
    base = f"{http.url}/v3/clusters"
    assert (listed["kind"], listed["metadata"]) == ("KafkaClusterList", {"self": base, "next": None})
    (shown,) = listed["data"]
    name = shown["cluster_id"]
    assert (shown["kind"], name) == ("KafkaCluster", cluster(http))
    assert shown["metadata"] == {"self": f"{base}/{name}", "resource_name": f"crn:///kafka={name}"}
    assert shown["topics"] == {"related": f"{base}/{name}/topics"}
    assert http.get(f"/v3/clusters/{name}").json == shown
    assert http.post("/v1/topics", {"name": topic, "partitions": 3}).status == 201
    topics = http.get(f"/v3/clusters/{name}/topics").json
    assert topics["kind"] == "KafkaTopicList"
    (found,) = [each for each in topics["data"] if each["topic_name"] == topic]
    assert (found["kind"], found["partitions_count"], found["replication_factor"]) == ("KafkaTopic", 3, 1)
    assert found["metadata"]["resource_name"] == f"crn:///kafka={name}/topic={topic}"
    assert http.get(f"/v3/clusters/{name}/topics/{topic}").json == found
    path = found["metadata"]["self"].removeprefix(http.url)
    assert http.post(f"{path}/records", {"value": {"type": "JSON", "data": 1}}).json["error_code"] == 200
    for path, code in (("another", 404), ("another/topics", 404), (f"{name}/topics/nowhere", 40403)):
        answer = http.get(f"/v3/clusters/{path}")
        assert (answer.status, answer.json["error_code"]) == (404, code)


def test_what_is_compatible_is_in_the_document(http: Http) -> None:
    paths = http.get("/openapi.json").json["paths"]
    batch = paths["/v3/clusters/{cluster}/topics/{topic}/records:batch"]["post"]
    assert {"207", "404"} <= batch["responses"].keys()
    asked = paths["/topics/{topic}/partitions/{partition}"]["post"]["requestBody"]["content"]
    forms = {f"application/vnd.kafka.{form}v2+json" for form in ("", "json.", "binary.", "text.")}
    assert asked.keys() == {"application/json", *forms}


LONG = f'"{"x" * 200_000}"'
PART = '{"type":"JSON","data":1}'


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    ("record", "name"),
    [
        (f'{{"valeu":{PART}}}', "valeu"),
        (f'{{"records":[{{"value":{PART}}}]}}', "records"),
        (f'{{"value":{PART},"partition":0}}', "partition"),
        ('{"value":{"type":"JSON","dta":1}}', "dta"),
        (f'{{"value":{PART},"headers":[{{"name":"h","value":"eA==","more":1}}]}}', "more"),
    ],
)
def test_what_version_3_does_not_name_is_refused(
    served: Served, http: Http, topic: str, record: str, name: str, *, long: bool
) -> None:
    """It was passed over: a misspelt value was written as a tombstone, and reported as written."""
    if long:
        record = record.replace(":1}", f":{LONG}}}", 1)
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    path = f"/v3/clusters/{cluster(http)}/topics/{topic}/records"
    good, headers = f'{{"value":{PART}}}', {"Content-Type": JSON}
    raw = http.session.post(http.url + path, good + record + good, headers=headers, timeout=PATIENCE_S)
    assert raw.status_code == 200
    reports = [json.loads(line) for line in raw.text.split("\r\n") if line]
    assert [(each["error_code"], each.get("message")) for each in reports] == [
        *((200, None), (400, f"Unrecognized field: {name}"), (200, None))
    ]
    batch = http.post(f"{path}:batch", f'{{"entries":[{{"id":"1",{record[1:]}]}}', headers=headers)
    (failed,) = batch.json["failures"]
    assert (batch.status, failed["error_code"], failed["message"]) == (207, 400, f"Unrecognized field: {name}")
    assert [each.value for each in read_all(served.bootstrap, topic)] == [b"1", b"1"]


def test_what_a_batch_of_version_3_does_not_name_is_refused(http: Http, topic: str) -> None:
    path = f"/v3/clusters/{cluster(http)}/topics/{topic}/records:batch"
    answer = http.post(path, {"entries": [{"id": "1", "value": json.loads(PART)}], "receiver": 1})
    assert (answer.status, answer.json) == (400, {"error_code": 400, "message": "Unrecognized field: receiver"})


def test_a_batch_of_version_3_whose_entries_have_one_id_is_refused_as_a_whole(
    served: Served, http: Http, topic: str
) -> None:
    """Both were written, and no answer could be told from the other."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    path = f"/v3/clusters/{cluster(http)}/topics/{topic}/records:batch"
    entries = ",".join(f'{{"value":{PART},"id":"{each}"}}' for each in ("1", "a", "\\u0061"))
    answer = http.post(path, f'{{"entries":[{entries}]}}', headers={"Content-Type": JSON})
    assert (answer.status, answer.json["error_code"]) == (422, 422)
    assert read_all(served.bootstrap, topic) == []


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"receiver":"x","records":[{"value":1}]}', "receiver"),
        ('{"records":[{"value":2},{"valeu":1}]}', "valeu"),
        ('{"records":[{"value":1,"headers":[{"name":"h","key":"h"}]}]}', "name"),
        ('{"valeu":1}', "valeu"),
    ],
)
def test_what_version_2_does_not_name_is_refused(
    served: Served, http: Http, topic: str, body: str, name: str, *, long: bool
) -> None:
    """It was passed over: a misspelt value was written as a tombstone, and reported as written."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    if long:
        body = body.replace(":1", f":{LONG}")
    answer = http.post(f"/topics/{topic}", body, headers={"Content-Type": "application/vnd.kafka.json.v2+json"})
    if "records" in body or not long:
        assert (answer.status, answer.json) == (422, {"error_code": 422, "message": f"Unrecognized field: {name}"})
    else:
        assert answer.status == 400
    assert read_all(served.bootstrap, topic) == []


def test_version_2_takes_headers_and_timestamps_as_strimzis_bridge_does(served: Served, http: Http, topic: str) -> None:
    """They were dropped without a word."""
    headers = {"Content-Type": "application/vnd.kafka.text.v2+json"}
    record = {
        "value": "v",
        "timestamp": 1_700_000_000_000,
        "headers": [{"key": "h", "value": "aGk="}, {"key": "h", "value": None}],
    }
    body = {"key_schema": None, "value_schema_id": None, "records": [record]}
    assert http.post(f"/topics/{topic}", body, headers=headers).status == 200
    (seen,) = read_all(served.bootstrap, topic)
    assert (seen.value, seen.timestamp, seen.headers) == (b"v", 1_700_000_000_000, [("h", b"hi"), ("h", None)])
    wrongs: list[dict[str, Any]] = [{"timestamp": "2026"}, {"timestamp": -1}, {"headers": {}}]
    for wrong in *wrongs, {"headers": [{"key": "h", "value": "?"}]}:
        answer = http.post(f"/topics/{topic}", {"records": [{"value": "v", **wrong}]}, headers=headers)
        assert (answer.status, answer.json["error_code"]) == (422, 422), wrong


@pytest.mark.parametrize("path", ["/brokers", "/partitions", "/topics"])
def test_calls_of_version_2_that_are_not_there_are_told_as_theirs(http: Http, path: str) -> None:
    answer = http.get(path)
    assert answer.json == {"error_code": 404, "message": "HTTP 404 Not Found"}


@pytest.mark.parametrize("count", [3, 50_000])
def test_a_long_list_is_read_in_turns_and_in_order(count: int) -> None:
    """A body of 14 MB held the loop for three seconds."""
    body = json.dumps({"more": [1], "entries": [{"id": str(number)} for number in range(count)], "records": 1}).encode()

    async def main() -> int:
        turns = 0
        reading = asyncio.ensure_future(_list_of(body, "entries"))
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        rest, entries = await reading
        assert list(map(json.loads, entries)) == [{"id": str(number)} for number in range(count)]
        assert rest.keys() == {"more", "entries", "records"}
        return turns

    assert asyncio.run(main()) > count / 5000


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"x", b'{"records":[1]', b'{"records":[1}', b'{"records":[1,,2]}', b'{"records":[1]} {}']
)
def test_a_body_that_is_no_object_of_json_is_malformed(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        asyncio.run(_list_of(body, "records"))
    assert refused.value.slug == "malformed"


@pytest.mark.parametrize("body", [b"{}", b'{"records":7}', b'{"records":{"records":[1]}}', b'{"a":{"records":[1]}}'])
def test_a_body_without_the_list_has_none(body: bytes) -> None:
    assert asyncio.run(_list_of(body, "records")) == (json.loads(body), [])


LISTS = b"[" + b"[], " * 380_000 + b"[]]"


@pytest.mark.parametrize("records", [1, 40])
def test_lists_in_a_value_are_not_made_for_nothing(records: int) -> None:
    """16 MB of empty lists took 370 MB, in turns of half a second."""
    value = LISTS if records == 1 else b"[" + b"[]," * 30_000 + b"[]]"
    body = b'{"records":[%b]}' % b",".join([b'{"key":{"a":1},"value":%b}' % value] * records)

    async def work() -> None:
        _, found = await _list_of(body, "records")
        assert len(found) == records
        for text in found:
            each = await done_in_turns(_decoded_briefly(text, DEEP_V2))
            assert _bytes_of("json", each["key"]) == b'{"a":1}'
            assert _bytes_of("json", each["value"]) == value.replace(b" ", b"")
            await asyncio.sleep(0)

    assert longest_turn_s(work()) < TURN_S


@pytest.mark.parametrize("call", ["v2", "v3", "batch"])
def test_long_json_is_written_in_the_form_of_short_json(served: Served, http: Http, topic: str, call: str) -> None:
    """Above 128 KiB it was written as it came."""
    value = '{"a": [1.0, "\\u00e9", 1E2, {"b" : null}], "c": 2}'
    values = [value, f"[{' , '.join([value] * 4_000)} ]"]
    wanted = '{"a":[1.0,"é",100.0,{"b":null}],"c":2}'
    if call == "v2":
        some = [f'{{"value":{each}}}' for each in values]
        body = f'{{"records":[{",".join(some)}]}}'
        path, media = f"/topics/{topic}", "application/vnd.kafka.json.v2+json"
    else:
        some = [f'"value":{{"type":"JSON","data":{each}}}}}' for each in values]
        if call == "v3":
            body = "".join(f"{{{each}" for each in some)
        else:
            entries = ",".join(f'{{"id":"{number}",{each}' for number, each in enumerate(some))
            body = f'{{"entries":[{entries}]}}'
        path, media = f"/v3/clusters/{cluster(http)}/topics/{topic}/records" + ":batch" * (call == "batch"), JSON
    http.session.post(http.url + path, body, headers={"Content-Type": media}, timeout=PATIENCE_S).raise_for_status()
    found = [each.value for each in read_all(served.bootstrap, topic)]
    assert found == [wanted.encode(), f"[{','.join([wanted] * 4_000)}]".encode()]


@pytest.mark.parametrize("number", [b"1e999", b"1" * 5000])
def test_a_number_that_can_not_be_written_is_refused_in_long_json_too(number: bytes) -> None:
    with pytest.raises(Problem, match="too large"):
        done_at_once(_decoded_briefly(b'{"value":[%b%b]}' % (b"1, " * 100_000, number), DEEP_V2))


def test_a_long_object_of_version_2_is_written_with_all_its_members(served: Served, http: Http, topic: str) -> None:
    """Its members were taken for those of a record of version 3, so nothing was left of it: `{}` was written."""
    records = [{"value": {"a": ["x"] * size, "type": "JSON", "data": 1}, "key": {"b": 1}} for size in (1, 100_000)]
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    assert http.post(f"/topics/{topic}", {"records": records}, headers=headers).status == 200
    found = [(json.loads(each.key or b""), json.loads(each.value or b"")) for each in read_all(served.bootstrap, topic)]
    assert found == [(each["key"], each["value"]) for each in records]


@pytest.mark.parametrize("text", [b"[[" + b"[]," * 80_000, b'{"a":"' + b'\\"' * 120_000])
def test_what_comes_of_a_stream_is_looked_through_in_turns(text: bytes) -> None:
    async def work() -> None:
        with suppress(Problem):
            async for _ in _values(cast(web.Request, Coming(text)), 1 << 20):
                pass

    assert longest_turn_s(work()) < TURN_S / 4


def test_a_long_record_of_version_3_is_read_as_a_short_one() -> None:
    rest = b'{"headers":[{"name":"h","value":"eA=="}],"partition_id":1,"timestamp":5,"value":{"type":"JSON","data":%b}}'
    long = _v3_record(done_at_once(_decoded_briefly(rest % LISTS, DEEP_V3)), 0)
    short = _v3_record(done_at_once(_decoded_briefly(rest % b"[[], []]", DEEP_V3)), 0)
    assert (long[0][1], short[0][1]) == (LISTS.replace(b" ", b""), b"[[],[]]")
    assert long[0][2:] == short[0][2:] == ((("h", b"x"),), 5)
    assert long[1] == short[1] == 1
    for wrong in b"[%b" % LISTS, b'{"value":{"type":"BINARY","data":%b}}' % LISTS, LISTS, b'{"headers":%b}' % LISTS:
        with pytest.raises(Problem):
            _v3_record(done_at_once(_decoded_briefly(wrong, DEEP_V3)), 0)
