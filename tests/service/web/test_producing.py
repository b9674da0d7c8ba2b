"""Writing by HTTP, read back by a Kafka client."""

from __future__ import annotations

import gzip
import http.client
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch
from urllib.parse import urlsplit

import pytest
import requests

from service.turns import NAMED_A_TURN
from service.web import groups
from service.web.producing import OffsetIn, OffsetsIn, commit_offsets
from service.web.records import milliseconds
from tests.service.web.kit import Http, Seen, Served, read_all, turns_of


def values(seen: list[Seen]) -> list[bytes | None]:
    return [each.value for each in seen]


def make(http: Http, topic: str, partitions: int) -> None:
    answer = http.post("/v1/topics", {"name": topic, "partitions": partitions})
    assert answer.status == 201, answer


def test_a_record_is_written_as_it_was_sent(served: Served, http: Http, topic: str) -> None:
    records: list[dict[str, Any]] = [
        {"key": "a", "value": {"x": 1}, "headers": {"h": "1", "n": None}, "timestamp": 1_700_000_000_123},
        {"key_base64": "/w==", "value_string": "text", "headers": [{"name": "h", "value_base64": "/w=="}] * 2},
        {"value_base64": "AAE=", "timestamp": "2026-01-01t00:00:00z"},
        {"key": "tombstone", "value": None},
    ]
    answer = http.post(f"/v1/topics/{topic}/records", {"records": records})
    assert answer.status == 200, answer
    assert answer.json["outcome"] == "applied"
    assert [each["offset"] for each in answer.json["results"]] == [0, 1, 2, 3]
    seen = read_all(served.bootstrap, topic)
    assert [(each.key, each.value) for each in seen] == [
        (b"a", b'{"x": 1}'), (b"\xff", b"text"), (None, b"\x00\x01"), (b"tombstone", None),
    ]  # fmt: skip
    assert seen[0].headers == [("h", b"1"), ("n", None)]
    assert seen[1].headers == [("h", b"\xff"), ("h", b"\xff")]
    assert [seen[0].timestamp, seen[2].timestamp] == [1_700_000_000_123, 1_767_225_600_000]


def test_numbers_and_duplicates_in_a_value_are_stored_digit_by_digit(served: Served, http: Http, topic: str) -> None:
    value = b'{"n":12345678901234567890123, "f":1.10, "n":2}'
    body = b'{"records":[{"value":' + value + b"}]}"
    answer = http.post(f"/v1/topics/{topic}/records", body, headers={"Content-Type": "application/json"})
    assert answer.status == 200, answer
    assert values(read_all(served.bootstrap, topic)) == [value]


def test_a_batch_over_several_topics_becomes_visible_together_with_the_offsets_of_its_group(
    served: Served, http: Http, topic: str
) -> None:
    other = f"{topic}-other"
    make(http, topic, 3)
    records = [{"topic": topic, "partition": number, "value": number} for number in range(3)]
    offsets = {"group": f"group-{topic}", "offsets": [{"topic": topic, "partition": 0, "offset": 1}]}
    answer = http.post("/v1/records", {"records": [*records, {"topic": other, "value": 3}], "offsets": offsets})
    assert answer.status == 200, answer
    assert answer.json["transaction"]["producer_id"] >= 0
    assert [(each["topic"], each["partition"]) for each in answer.json["results"]] == [
        (topic, 0), (topic, 1), (topic, 2), (other, 0),
    ]  # fmt: skip
    assert sorted(values(read_all(served.bootstrap, topic))) == [b"0", b"1", b"2"]  # type: ignore[type-var]
    assert values(read_all(served.bootstrap, other)) == [b"3"]
    committed = http.get(f"/v1/groups/group-{topic}/offsets").json["offsets"]
    assert [(each["topic"], each["partition"], each["offset"]) for each in committed] == [(topic, 0, 1)]


def test_a_batch_of_which_one_record_is_refused_leaves_nothing(served: Served, http: Http, topic: str) -> None:
    other = f"{topic}-compacted"
    answer = http.post("/v1/topics", {"name": other, "configs": {"cleanup.policy": "compact"}})
    assert answer.status == 201, answer
    records = [{"topic": topic, "value": 1}, {"topic": other, "value": "has no key"}]
    answer = http.post("/v1/records", {"records": records})
    assert (answer.status, answer.json["outcome"]) == (422, "none")
    assert answer.json["kafka_error"] == "INVALID_RECORD"
    assert read_all(served.bootstrap, topic) == []
    assert read_all(served.bootstrap, other) == []
    assert http.post("/v1/records", {"records": [{"topic": topic, "value": 2}]}).status == 200
    assert values(read_all(served.bootstrap, topic)) == [b"2"]


def test_an_expected_offset_lets_only_the_first_of_two_write(served: Served, http: Http, topic: str) -> None:
    make(http, topic, 2)

    def write(next_offset: int, partitions: int = 1) -> tuple[int, str, int]:
        records = [{"topic": topic, "partition": each, "value": next_offset} for each in range(partitions)]
        expected = [{"topic": topic, "partition": 0, "next_offset": next_offset}]
        answer = http.post("/v1/records", {"records": records, "expected": expected})
        return answer.status, answer.json.get("type", ""), answer.json.get("next_offset", -1)

    def mismatch(next_offset: int) -> tuple[int, str, int]:
        return 409, "/problems/expected-offset-mismatch", next_offset

    done = 200, "", -1
    assert write(0) == done
    assert write(0) == mismatch(1), "a client knows where to read on, and what to expect then"
    assert write(1, partitions=2) == done
    assert write(1, partitions=2) == mismatch(3)
    assert write(2) == done, "the marker of a transaction is nobody's record"
    assert write(99) == mismatch(5), "a marker of what was refused is before that record"


def test_one_thing_is_expected_of_a_partition(http: Http, topic: str) -> None:
    expected = [{"topic": topic, "partition": 0, "next_offset": each} for each in (7, 0)]
    answer = http.post("/v1/records", {"records": [{"topic": topic, "value": 1}], "expected": expected})
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request")


def test_however_many_markers_come_after_an_expected_offset_they_are_nobodys_records(http: Http, topic: str) -> None:
    begun = [http.post("/v1/transactions", {"transactional_id": f"{topic}-{each}"}) for each in range(250)]
    for each in begun:
        record = {"topic": topic, "partition": 0, "value": 1}
        assert http.put(f"{each.headers['Location']}/batches/0", {"records": [record]}).status == 200
    for each in begun:
        assert http.post(f"{each.headers['Location']}:commit").status == 200
    expected = [{"topic": topic, "partition": 0, "next_offset": 250}]
    for status in (200, 409):
        body = {"records": [{"topic": topic, "partition": 0, "value": 2}], "expected": expected}
        assert http.post("/v1/records", body).status == status


def test_what_says_nothing_is_refused_and_offsets_alone_are_committed(http: Http, topic: str) -> None:
    make(http, topic, 1)
    nothing: tuple[Any, ...] = (None, {"group": topic, "offsets": []})
    for offsets in nothing:
        answer = http.post("/v1/records", {"records": [], "offsets": offsets})
        assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request")
    offsets = {"group": topic, "offsets": [{"topic": topic, "partition": 0, "offset": 5}]}
    assert http.post("/v1/records", {"records": [], "offsets": offsets}).status == 200
    assert http.get(f"/v1/groups/{topic}/offsets").json["offsets"][0]["offset"] == 5


def test_a_body_of_bytes_is_one_record(served: Served, http: Http, topic: str) -> None:
    path = f"/v1/topics/{topic}/records?key=k&timestamp=1700000000000"
    headers = {"Content-Type": "application/octet-stream", "Record-Header-Color": "red"}
    answer = http.post(path, b"\x00\xff" * 100, headers=headers)
    assert answer.json["results"] == [{"partition": 0, "offset": 0, "timestamp": 1_700_000_000_000}]
    (seen,) = read_all(served.bootstrap, topic)
    assert (seen.key, seen.value, seen.headers) == (b"k", b"\x00\xff" * 100, [("Color", b"red")])


def test_lines_are_reported_in_order_and_the_bad_ones_by_themselves(served: Served, http: Http, topic: str) -> None:
    lines = b'{"value":1}\nno json\n\n{"value":2,"partition":9}\n{"value":3}'
    answer = http.post(f"/v1/topics/{topic}/records", lines, headers={"Content-Type": "application/x-ndjson"})
    reports = [json.loads(line) for line in answer.json.splitlines()]
    assert [(each["line"], each.get("offset")) for each in reports] == [(0, 0), (1, None), (3, None), (4, 1)]
    assert reports[1]["problem"]["status"] == 400
    assert reports[2]["problem"]["type"] == "/problems/unknown-topic"
    assert values(read_all(served.bootstrap, topic)) == [b"1", b"3"]


def test_reports_stream_back_while_the_body_is_still_coming(served: Served, topic: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=30)
    connection.putrequest("POST", f"/v1/topics/{topic}/records")
    connection.putheader("Content-Type", "application/x-ndjson")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()

    def chunk(content: bytes) -> None:
        connection.send(b"%x\r\n%s\r\n" % (len(content), content))

    chunk(b'{"value":1}\n')
    assert connection.sock is not None
    head = b""
    while b'"offset":0' not in head:
        head += connection.sock.recv(4096)
    chunk(b'{"value":2}\n')
    connection.send(b"0\r\n\r\n")
    rest = b""
    while b'"offset":1' not in rest:
        rest += connection.sock.recv(4096)
    connection.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"records":[]}', 422),
        (b'{"records":[{"value":NaN}]}', 400),
        (b'{"records":[{"value":1,"colour":2}]}', 400),
        (b'{"records":[{"value":1,"value_string":"1"}]}', 422),
        (b'{"records":[{"value_base64":"***"}]}', 422),
        (b'{"records":[{"timestamp":-5}]}', 422),
        (b'{"records":[{"timestamp":99999999999999999999}]}', 422),
        (b'{"records":[{"partition":7}]}', 404),
        (b'{"records":[{"key":"\xff"}]}', 400),
        (b'{"records":[{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", 400),
    ],
)
def test_a_body_that_makes_no_sense_is_a_problem_and_writes_nothing(
    served: Served, http: Http, topic: str, body: bytes, status: int
) -> None:
    http.post(f"/v1/topics/{topic}/records", {"records": [{"value": "first"}]})
    answer = http.post(f"/v1/topics/{topic}/records", body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.json["outcome"]) == (status, "none"), answer
    assert values(read_all(served.bootstrap, topic)) == [b'"first"']


def test_a_long_batch_is_written_whole_and_compressed_bodies_are_understood(
    served: Served, http: Http, topic: str
) -> None:
    records = [{"key": str(number), "value": {"n": number, "filling": "x" * 100}} for number in range(20_000)]
    body = gzip.compress(json.dumps({"records": records}).encode(), 1)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = http.post(f"/v1/topics/{topic}/records", body, headers=headers)
    assert answer.status == 200, answer
    assert [each["offset"] for each in answer.json["results"]] == list(range(20_000))
    seen = read_all(served.bootstrap, topic)
    assert [json.loads(each.value or b"")["n"] for each in seen] == list(range(20_000))


@pytest.mark.parametrize("packing", ["snappy", "gzip, zstd"])
def test_a_body_whose_packing_is_not_known_is_not_taken_for_the_record(
    served: Served, http: Http, topic: str, packing: str
) -> None:
    make(http, topic, 1)
    headers = {"Content-Type": "application/octet-stream", "Content-Encoding": packing}
    answer = http.post(f"/v1/topics/{topic}/records", b"hi", headers=headers)
    assert (answer.status, answer.json["type"]) == (415, "/problems/unsupported-media-type")
    assert read_all(served.bootstrap, topic) == []


def test_what_is_too_large_is_refused(http: Http, topic: str) -> None:
    answer = http.post(f"/v1/topics/{topic}/records", {"records": [{"value": "x" * 1_200_000}]})
    assert (answer.status, answer.json["kafka_error"]) == (413, "MESSAGE_TOO_LARGE")
    answer = requests.post(f"{http.url}/v1/topics/{topic}/records", json={"x": "y" * (17 << 20)}, timeout=30)  # type: ignore[assignment]
    assert answer.status_code == 413  # type: ignore[attr-defined]


def test_lines_of_the_short_way_are_written_as_on_the_long_one(http: Http, served: Served, topic: str) -> None:
    """Method: the same lines as they are, and with a header in the first, which only the long way knows."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 3}).status == 201
    media = {"Content-Type": "application/x-ndjson"}
    lines = [f'{{"key": "k{number % 7}", "value": {{"n": {number}, "a": ":"}}}}' for number in range(40)]
    lines += ['{"key": "gone", "value": null}', '{"value": "ü", "key": "a:b"}']
    reports = []
    for first in (lines[0], lines[0].replace("{", '{"headers": {},', 1)):
        answer = http.post(f"/v1/topics/{topic}/records", "\n".join([first, *lines[1:]]).encode(), headers=media)
        reports.append([json.loads(line) for line in answer.json.splitlines()])
    assert [(each["line"], each["partition"]) for each in reports[0]] == [
        (each["line"], each["partition"]) for each in reports[1]
    ]
    seen = {(each.partition, each.offset): (each.key, each.value) for each in read_all(served.bootstrap, topic)}
    assert len(seen) == 2 * len(lines)
    for short, long, line in zip(*reports, lines, strict=True):
        stored = seen[short["partition"], short["offset"]]
        assert stored == seen[long["partition"], long["offset"]]
        assert (stored[0] or b"").decode() == json.loads(line)["key"]
        assert json.loads(stored[1] or b"null") == json.loads(line)["value"]
    twice = '{"value": 1, "value": 2}\n{"value": 3}'
    told = http.post(f"/v1/topics/{topic}/records", twice, headers=media).json.splitlines()
    assert ["problem" in json.loads(line) for line in told] == [True, False]


def test_a_file_may_be_put_and_is_one_record_however_often_it_is_sent(
    served: Served, http: Http, topic: str, tmp_path: Path
) -> None:
    content = bytes(range(256))
    (tmp_path / "file").write_bytes(content)
    url = f"{served.url}/v1/topics/{topic}/records"
    put = ["curl", "-s", "-T", str(tmp_path / "file"), f"{url}?key=backup", "-H", 'Idempotency-Key: "backup-1"']
    answers = [json.loads(subprocess.run(put, capture_output=True, check=True).stdout) for _ in range(2)]
    assert answers[0] == answers[1]
    text = http.put(
        f"/v1/topics/{topic}/records", b"words", headers={"Content-Type": "text/plain", "Idempotency-Key": "backup-2"}
    )
    assert text.status == 200, text
    seen = read_all(served.bootstrap, topic)
    assert [(each.key, each.value) for each in seen] == [(b"backup", content), (None, b"words")]
    refused = http.put(f"/v1/topics/{topic}/records", b"words")
    assert (refused.status, refused.json["type"], refused.json["outcome"]) == (400, "/problems/bad-key", "none")


def test_a_raw_key_that_is_not_utf_8_is_kept_and_found(served: Served, http: Http, topic: str) -> None:
    """Different keys became one, of U+FFFD."""
    headers = {"Content-Type": "application/octet-stream"}
    for key in ("%ff", "%fe%00", "a%20b+c", "%C3%A9"):
        assert http.post(f"/v1/topics/{topic}/records?key={key}", b"x", headers=headers).status == 200
    assert [each.key for each in read_all(served.bootstrap, topic)] == [b"\xff", b"\xfe\0", b"a b c", b"\xc3\xa9"]
    for query, offsets in {"key=%ff": [0], "key_prefix=%fe": [1], "key=a+b%20c": [2], "key=%ef%bf%bd": []}.items():
        found = http.get(f"/v1/topics/{topic}/partitions/0/records?{query}").json["records"]
        assert [each["offset"] for each in found] == offsets, query


def test_many_offsets_are_gone_through_in_turns() -> None:
    """A body of 1 MiB may have 26,000 of them."""
    producer, gateway, committed = MagicMock(), MagicMock(), AsyncMock()
    producer.commit_offsets = committed
    offsets = OffsetsIn("g", [OffsetIn("t", each, each) for each in range(26_000)])
    assert turns_of(commit_offsets(producer, offsets)) >= 26_000 // NAMED_A_TURN
    (_, (topic,)), _ = committed.call_args
    assert [each.partition_index for each in topic.partitions] == list(range(26_000))
    wanted = {"to": "offsets", "offsets": [{"topic": "t", "partition": each, "offset": 1} for each in range(9_000)]}
    body = AsyncMock(return_value=json.dumps(wanted).encode())
    with patch.multiple(groups, body_of=body, commit_offsets=AsyncMock(), OffsetCommitRequestTopic=MagicMock()):
        assert turns_of(groups.reset(gateway, MagicMock())) >= 9_000 // NAMED_A_TURN


@pytest.mark.parametrize("zone", ["Z", "+00:00"])
@pytest.mark.parametrize("second", [0, 541_300_399, 1_073_700_000, 2_200_000_000, 4_000_000_000])
def test_a_time_with_its_zone_is_stored_to_the_millisecond(second: int, zone: str) -> None:
    """Some were stored a millisecond too early."""
    for ms in range(1000 * second, 1000 * second + 1000):
        text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms % 1000:03}{zone}"
        assert milliseconds(text) == ms
