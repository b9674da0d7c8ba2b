"""Reading pages and streams."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests
import zstandard

from log.batch import HEADER_BYTES
from service.web.following import PARTITIONS_MAX
from tests.service.web.kit import PATIENCE_S, Answer, Http, Served


def write(http: Http, topic: str, *records: Any, **more: Any) -> None:
    body = {"records": [each if isinstance(each, dict) else {"value": each} for each in records], **more}
    answer = http.post(f"/v1/topics/{topic}/records", body)
    assert answer.status == 200, answer


ENDS = ("next_offset", "log_start_offset", "last_stable_offset", "high_watermark")


def page(http: Http, topic: str, query: str = "", partition: int = 0) -> Any:
    answer = http.get(f"/v1/topics/{topic}/partitions/{partition}/records?{query}")
    assert answer.status == 200, answer
    return answer.json


def values(records: list[dict[str, Any]]) -> list[Any]:
    return [each.get("value") for each in records]


def test_a_page_shows_what_was_written_as_it_was_written(http: Http, topic: str) -> None:
    write(
        http,
        topic,
        {"key": "k", "value": {"n": 1}, "headers": [{"name": "h", "value": "x"}], "timestamp": 5},
        {"key_base64": "/w==", "value_string": "no json"},
        {"value_base64": "/wA="},
        {"key": "gone", "value": None},
    )
    found = page(http, topic)
    assert found["next_offset"] == found["high_watermark"] == found["last_stable_offset"] == 4
    first, second, third, fourth = found["records"]
    assert first == {
        "topic": topic, "partition": 0, "offset": 0, "timestamp": 5, "key": "k", "value": {"n": 1},
        "headers": [{"name": "h", "value": "x"}],
    }  # fmt: skip
    assert (second["key_base64"], second["value_string"]) == ("/w==", "no json")
    assert third["value_base64"] == "/wA="
    assert fourth["value"] is None
    assert [each["value_string"] for each in page(http, topic, "values=string&max_records=1")["records"]] == [
        '{"n": 1}'
    ]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"key": "order-1"}, [0]),
        ({"key": "order"}, []),
        ({"key_prefix": "order-"}, [0, 1, 5]),
        ({"key_prefix": "ö"}, [3]),
        ({"key_prefix": "order-2x"}, []),
        ({"header": "shop"}, [0, 2, 5]),
        ({"header": "shop:3"}, [0, 5]),
        ({"header": "shop:"}, [2]),
        ({"header": "zone:a:b"}, [5]),
        ({"header": "SHOP"}, []),
        ({"key_prefix": "order-", "header": "shop:3"}, [0, 5]),
        ({"key_prefix": "cust", "header": "shop:3"}, []),
    ],
    ids=str,
)
def test_filters_show_what_they_name_on_pages_and_streams(
    http: Http, topic: str, query: dict[str, str], found: list[int]
) -> None:
    write(
        http,
        topic,
        {"key": "order-1", "value": 0, "headers": {"shop": "3"}},
        {"key": "order-2", "value": 1},
        {"key": "customer-1", "value": 2, "headers": [{"name": "shop", "value": "4"}, {"name": "shop", "value": ""}]},
        {"key": "örtlich", "value": 3},
        {"value": 4},
        {"key": "order-", "value": 5, "headers": {"zone": "a:b", "shop": "3"}},
    )
    paged = http.get(f"/v1/topics/{topic}/partitions/0/records", params=query).json
    assert (values(paged["records"]), paged["next_offset"]) == (found, 6)
    lines = http.get(
        f"/v1/topics/{topic}/stream",
        params={"from": "earliest", "until": "end", **query},
        headers={"Accept": "application/x-ndjson"},
    ).json.splitlines()
    streamed = [json.loads(line) for line in lines if line]
    assert [each["value"] for each in streamed if "value" in each] == found


def test_pages_follow_each_other_and_filters_leave_out(http: Http, topic: str) -> None:
    write(http, topic, *({"key": f"k{number % 3}", "value": number} for number in range(30)))
    seen, offset = [], "earliest"
    while True:
        found = page(http, topic, f"offset={offset}&max_records=7")
        if not found["records"]:
            break
        seen += values(found["records"])
        offset = found["next_offset"]
    assert seen == list(range(30))
    assert values(page(http, topic, "key=k1&offset=10")["records"]) == list(range(10, 30, 3))
    assert page(http, topic, "offset=latest")["next_offset"] == 30
    answer = http.get(f"/v1/topics/{topic}/partitions/0/records?offset=99")
    assert (answer.status, answer.json["earliest"], answer.json["latest"]) == (416, 0, 30)


def test_numbers_are_digits_and_a_cursor_has_a_partition_once(http: Http, topic: str) -> None:
    write(http, topic, 1)
    path = f"/v1/topics/{topic}"
    for wrong in ("1_0", "%2B5", "%205", "5%20", "\u0665", "0x5", "5.0", "", "-", "1" * 25):
        answer = http.get(f"{path}/partitions/0/records?max_records={wrong}")
        assert (answer.status, answer.json["type"]) == (400, "/problems/malformed"), wrong
    assert http.get(f"{path}/partitions/0/records?max_records=05").status == 200
    assert http.get(f"{path}/stream?until=end&cursor=0:1,0:0").json["detail"] == "'0:1,0:0' has partition 0 twice"


def test_a_page_waits_for_what_is_not_there_yet(http: Http, served: Served, topic: str) -> None:
    write(http, topic, 0)
    found: list[Any] = []

    def wait() -> None:
        client = Http(served.url)
        found.append(page(client, topic, "offset=1&wait_ms=30000"))
        client.session.close()

    waiting = threading.Thread(target=wait)
    waiting.start()
    write(http, topic, 1)
    waiting.join(PATIENCE_S)
    assert values(found[0]["records"]) == [1]
    assert page(http, topic, "offset=2&wait_ms=1")["records"] == []


def test_committed_readers_see_no_aborted_or_open_records_and_others_may(http: Http, topic: str) -> None:
    def transaction(value: str, end: str | None) -> None:
        txn = http.post("/v1/transactions", {"transactional_id": f"{topic}-{value}"}).headers["Location"]
        records = {"records": [{"topic": topic, "value": value}]}
        assert http.put(f"{txn}/batches/0", records).status == 200
        if end is not None:
            assert http.post(f"{txn}:{end}").status == 200

    transaction("aborted", "abort")
    transaction("committed", "commit")
    transaction("open", None)
    assert values(page(http, topic)["records"]) == ["committed"]
    assert values(page(http, topic, "isolation=read_uncommitted")["records"]) == ["aborted", "committed", "open"]
    everything = page(http, topic, "include=control,aborted,producer")["records"]
    shown = [(each.get("value"), each.get("control"), each.get("aborted", False)) for each in everything]
    assert shown == [
        ("aborted", None, True),
        (None, "abort", False),
        ("committed", None, False),
        (None, "commit", False),
    ]
    assert all(each["producer_id"] >= 0 for each in everything)


def events(answer: requests.Response) -> Iterator[tuple[str, str, Any]]:
    """Server-sent events: id, event, data."""
    fields: dict[str, str] = {}
    for raw in answer.iter_lines(chunk_size=1):
        line = raw.decode()
        if line and not line.startswith(":"):
            name, _, content = line.partition(": ")
            fields[name] = content
        elif not line and "event" in fields:
            yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
            fields = {}


def follow(served: Served, topic: str, query: str = "", **headers: str) -> requests.Response:
    accept = {"Accept": "text/event-stream", **headers}
    answer = requests.get(
        f"{served.url}/v1/topics/{topic}/stream?{query}", headers=accept, stream=True, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("by", ["Last-Event-ID", "lastEventId", "cursor"])
def test_a_stream_follows_a_topic_and_goes_on_where_its_reader_was(
    http: Http, served: Served, topic: str, by: str
) -> None:
    """Event sources in JavaScript that are not the browser's own come back with `lastEventId` in the query."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 3}).status == 201
    for number in range(9):
        write(http, topic, {"partition": number % 3, "value": number})
    with follow(served, topic, "from=earliest") as answer:
        stream = events(answer)
        first = [next(stream) for _ in range(4)]
    assert {event for _, event, _ in first} == {"record"}
    cursor = first[-1][0]
    query, headers = ("", {by: cursor}) if by == "Last-Event-ID" else (f"from=earliest&{by}={cursor}", {})
    with follow(served, topic, query, **headers) as answer:
        stream = events(answer)
        second = [next(stream) for _ in range(5)]
        write(http, topic, {"partition": 1, "value": 9})
        second.append(next(stream))
    assert sorted(data["value"] for _, _, data in first + second) == list(range(10))


@pytest.mark.parametrize("media", ["text/event-stream", "application/x-ndjson"])
def test_a_stream_that_comes_back_before_it_has_seen_a_record_misses_none(
    http: Http, served: Served, topic: str, media: str
) -> None:
    """It had been told no cursor, and so began at the end of that moment."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 2}).status == 201
    with follow(served, topic, Accept=media) as answer:
        lines = answer.iter_lines()
        if media.endswith("ndjson"):
            told = json.loads(next(lines))
            assert told == {"progress": True, "cursor": told["cursor"]}
            cursor = told["cursor"]
        else:
            _, cursor = next(lines), next(lines).decode().removeprefix("id: ")
    write(http, topic, 1)
    with follow(served, topic, **{"Last-Event-ID": cursor}) as answer:
        _, event, data = next(events(answer))
        assert (event, data["value"]) == ("record", 1)


@pytest.mark.parametrize(("offset", "end"), [(1, "end"), (2, "error")])
def test_a_stream_whose_cursor_is_behind_the_end_of_its_log_does_not_say_that_all_was_read(
    http: Http, topic: str, offset: int, end: str
) -> None:
    """What was written up to the cursor later was left out without a word."""
    write(http, topic, 1)
    accept = {"Accept": "application/x-ndjson"}
    answer = http.get(f"/v1/topics/{topic}/stream?until=end&cursor=0:{offset}", headers=accept)
    (line,) = answer.json.splitlines()
    told = json.loads(line)
    assert told.keys() == {end}
    assert end == "end" or told["error"]["type"] == "/problems/offset-out-of-range"


def test_a_cursor_of_another_topic_is_refused(http: Http, served: Served, topic: str) -> None:
    """The other topic was read from its offsets on. One that is made anew with the same name is another, too."""
    path = "/v1/topics/{}/stream?from=earliest&until=end"
    write(http, topic, 0, 1)
    write(http, f"{topic}-other", 0, 1, 2)
    with follow(served, topic, "from=earliest") as answer:
        cursor, _, _ = next(events(answer))
    assert values_from(http, path.format(topic) + f"&cursor={cursor}") == [1]
    bare = cursor.partition("@")[2]
    assert values_from(http, path.format(f"{topic}-other") + f"&cursor={bare}") == [1, 2], (
        "who writes one need not know"
    )
    for way in (f"{topic}-other", topic):
        for more, headers in ((f"&cursor={cursor}", {}), ("", {"Last-Event-ID": cursor})):
            refused = http.get(path.format(way) + more, headers=headers)
            assert (refused.status, refused.json["type"]) == (400, "/problems/malformed")
            assert "another topic" in refused.json["detail"]
        assert http.delete(f"/v1/topics/{topic}").status == 204
        write(http, topic, 0, 1)


def made_again(http: Http, topic: str) -> None:
    """Another topic of the same name, with more records than the one before."""
    assert http.delete(f"/v1/topics/{topic}").status == 204
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    for _ in range(20):
        write(http, topic, *["new"] * 10)


@pytest.mark.parametrize("media", ["text/event-stream", "application/x-ndjson"])
def test_a_stream_whose_client_does_not_read_is_not_given_the_next_topic_of_its_name(
    http: Http, topic: str, media: str
) -> None:
    """It went on there at its old position, and nobody heard of the records before that."""
    host, _, port = http.url.removeprefix("http://").partition(":")
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    for _ in range(15):
        write(http, topic, *["x" * 100_000] * 9)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE_S)
        client.connect((host, int(port)))
        asked = f"GET /v1/topics/{topic}/stream?from=earliest HTTP/1.1\r\nHost: a\r\nAccept: {media}\r\n\r\n"
        client.sendall(asked.encode())
        time.sleep(1)
        made_again(http, topic)
        told = b""
        while not told.endswith(b"0\r\n\r\n"):
            some = client.recv(1 << 16)
            assert some, told[-300:]
            told += some
    assert b"event: error" in told or b'{"error":' in told
    assert b"was deleted, and made again" in told[-2000:]
    assert b'"new"' not in told


def test_who_waits_for_records_of_a_topic_is_not_given_those_of_the_next_one_of_its_name(
    http: Http, topic: str
) -> None:
    write(http, topic, *range(5))
    answers: list[Answer] = []

    def wait() -> None:
        path = f"/v1/topics/{topic}/partitions/0/records?offset=5&wait_ms=20000"
        answers.append(Http(http.url).get(path))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)
    made_again(http, topic)
    waiting.join(PATIENCE_S)
    (answer,) = answers
    assert (answer.status, answer.json["type"]) == (404, "/problems/unknown-topic"), answer


def values_from(http: Http, path: str) -> list[Any]:
    told = http.get(path, headers={"Accept": "application/x-ndjson"}).json
    return values([json.loads(line) for line in told.splitlines()][:-1])


def test_a_stream_that_comes_back_has_all_of_a_partition_that_was_added_meanwhile(
    http: Http, served: Served, topic: str
) -> None:
    """An event source comes back with the URL of its first request. `latest` was meant for the new partition, too, and
    what had been written there was left out.
    """
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    with follow(served, topic, "from=latest") as answer:
        write(http, topic, 0)
        cursor, _, _ = next(events(answer))
    assert http.post(f"/v1/topics/{topic}/partitions", {"count": 2}).status == 200
    write(http, topic, {"partition": 1, "value": 1})
    with follow(served, topic, "from=latest", **{"Last-Event-ID": cursor}) as answer:
        stream = events(answer)
        assert next(stream)[2]["value"] == 1
        write(http, topic, {"partition": 0, "value": 2})
        assert next(stream)[2]["value"] == 2


def test_a_stream_has_no_more_partitions_than_its_cursor_can_name(http: Http, served: Served, topic: str) -> None:
    """Its cursors were longer than a request may be, and every event had one: nobody could go on there."""
    most = PARTITIONS_MAX
    assert http.post("/v1/topics", {"name": topic, "partitions": most}).status == 201
    write(http, topic, *({"partition": index, "value": index} for index in range(most)))
    with follow(served, topic, "from=earliest") as answer:
        stream = events(answer)
        told = [next(stream) for _ in range(most)]
        cursor = told[-1][0]
        for more, headers in ((f"&cursor={quote(cursor, safe='')}", {}), ("", {"Last-Event-ID": cursor})):
            again = http.get(f"/v1/topics/{topic}/stream?until=end{more}", headers=headers)
            assert (again.status, again.json.count("event: record")) == (200, 0)
        far = quote(",".join(f"{index}:{10**11}" for index in range(most)), safe="")
        assert http.get(f"/v1/topics/{topic}/stream?until=end&cursor={far}&lastEventId={far}").status == 200
        assert http.get(f"/v1/topics/{topic}/stream?until=end&cursor={far}&lastEventId={far}{far}").status == 400
        assert http.post(f"/v1/topics/{topic}/partitions", {"count": most + 1}).status == 200
        assert next(stream)[1] == "error"
    refused = http.get(f"/v1/topics/{topic}/stream")
    assert (refused.status, refused.json["type"]) == (422, "/problems/invalid-request")
    assert "?partitions=" in refused.json["detail"]
    cursor = ",".join(f"{index}:0" for index in range(most + 1))
    assert http.get(f"/v1/topics/{topic}/stream", headers={"Last-Event-ID": cursor}).status == 422
    with follow(served, topic, f"from=earliest&partitions={most - 1},{most}") as answer:
        assert next(events(answer))[2]["value"] == most - 1


def test_quiet_streams_read_a_new_partition_at_once(http: Http, served: Served, topic: str) -> None:
    """They waited for the partitions that were there for up to 15 s before they looked for others."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    with contextlib.ExitStack() as stack:
        queries = ("", "", "", "max_records=9")
        streams = [events(stack.enter_context(follow(served, topic, query))) for query in queries]
        time.sleep(0.5)  # all wait
        for count in (2, 3):
            began = time.monotonic()
            assert http.post(f"/v1/topics/{topic}/partitions", {"count": count}).status == 200
            write(http, topic, {"partition": count - 1, "value": count})
            assert [next(stream)[2]["value"] for stream in streams] == [count] * 4
            assert time.monotonic() - began < 5


def test_a_cursor_keeps_a_partition_of_which_a_broker_has_not_heard_yet(http: Http, served: Served, topic: str) -> None:
    """It was read from its start then, and its records came twice."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    with follow(served, topic, **{"Last-Event-ID": "0:0,1:2"}) as answer:
        write(http, topic, 3)
        assert next(events(answer))[0].endswith("@0:1,1:2")


def test_followers_of_every_form_get_everything_in_order(http: Http, served: Served, topic: str) -> None:
    """Streams at the same place read together; those that show something else do not share with them."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 2}).status == 201
    forms = [("", "text/event-stream"), ("int64=string", "text/event-stream"), ("key=a", "text/event-stream")]
    forms += [("", "application/x-ndjson"), ("", "application/cloudevents+json, application/x-ndjson")]
    answers = [
        requests.get(
            f"{served.url}/v1/topics/{topic}/stream?{query}&from=latest",
            headers={"Accept": accept},
            stream=True,
            timeout=PATIENCE_S,
        )
        for query, accept in 3 * forms
    ]
    for number in range(60):
        write(http, topic, {"partition": number % 2, "key": "ab"[number // 2 % 2], "value": number})
    for (query, accept), answer in zip(3 * forms, answers, strict=True):
        wanted = 30 if "key" in query else 60
        if "ndjson" in accept:
            lines = (json.loads(line) for line in answer.iter_lines(chunk_size=1) if line and b'"progress"' not in line)
            found = [(line.get("cursor") or line["oncelogcursor"], line) for line in itertools.islice(lines, wanted)]
        else:
            found = [(cursor, data) for cursor, _, data in itertools.islice(events(answer), wanted)]
        answer.close()
        numbers = [record["value"] if "value" in record else record["data"] for _, record in found]
        for rest in (0, 1):
            here = [number for number in numbers if number % 2 == rest]
            assert here == [number for number in range(rest, 60, 2) if wanted == 60 or number // 2 % 2 == 0]
        seen = [0, 0]
        for number, (cursor, _) in zip(numbers, found, strict=True):
            seen[number % 2] = number // 2 + 1
            assert f"{number % 2}:{seen[number % 2]}" in cursor.partition("@")[2].split(",")


def test_a_stream_of_lines_ends_where_it_is_told_to(http: Http, served: Served, topic: str) -> None:
    write(http, topic, *range(1500))
    accept = {"Accept": "application/x-ndjson"}
    answer = http.get(f"/v1/topics/{topic}/stream?from=earliest&until=end", headers=accept)
    lines = [json.loads(line) for line in answer.json.splitlines()]
    assert values(lines[:-1]) == list(range(1500))
    assert lines[-1]["end"]["cursor"].endswith("@0:1500")
    cursor = lines[999]["cursor"]
    answer = http.get(f"/v1/topics/{topic}/stream?cursor={cursor}&max_records=3", headers=accept)
    assert values([json.loads(line) for line in answer.json.splitlines()][:-1]) == [1000, 1001, 1002]


def test_a_client_that_never_reads_holds_up_nobody(http: Http, served: Served, topic: str) -> None:
    filling = "x" * 100_000
    with follow(served, topic, "from=latest") if _made(http, topic) else follow(served, topic):
        for _ in range(20):
            write(http, topic, *([filling] * 7))
        began = time.monotonic()
        assert len(page(http, topic, "max_records=3")["records"]) == 3
        assert time.monotonic() - began < PATIENCE_S


def _made(http: Http, topic: str) -> bool:
    write(http, topic, 0)
    return True


def test_a_page_of_a_filter_that_nothing_passes_ends_and_says_where_to_go_on(http: Http, topic: str) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    for _ in range(40):
        assert http.post(f"/v1/topics/{topic}/records", b"x" * 900_000, headers=headers).status == 200
    path = f"/v1/topics/{topic}/partitions/0/records?key=nobody"
    page = http.get(path).json
    assert (page["records"], 0 < page["next_offset"] < 40) == ([], True)
    assert http.get(f"{path}&offset={page['next_offset']}").json["next_offset"] > page["next_offset"]


UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.decompress,
    "zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body),
}


def test_a_page_that_meets_damage_leaves_out_nothing_before_where_it_ends(
    http: Http, served: Served, topic: str
) -> None:
    """What was read before the damage in the same piece was left out, and the page said to go on behind it."""
    headers = {"Content-Type": "application/octet-stream"}
    for _ in range(4):
        assert http.post(f"/v1/topics/{topic}/records", b"x" * 400_000, headers=headers).status == 200
    log = served.folder / f"{topic}-0" / f"{0:020}.log"
    with log.open("r+b") as file:
        file.seek(3 * log.stat().st_size // 4 + HEADER_BYTES)  # the length of the last record
        file.write(b"\xff" * 5)
    path = f"/v1/topics/{topic}/partitions/0/records?max_bytes=16777216"
    page = http.get(path).json
    assert [each["offset"] for each in page["records"]] == [*range(page["next_offset"])] == [0, 1]
    damaged = http.get(f"{path}&offset=2")
    assert (damaged.status, damaged.json["kafka_error"]) == (500, "CORRUPT_MESSAGE")


def test_an_older_client_is_told_the_end_of_a_long_page(http: Http, topic: str) -> None:
    """There are no chunks in HTTP/1.0, so the end of the connection is that of the page."""
    headers = {"Content-Type": "application/octet-stream"}
    for _ in range(3):
        assert http.post(f"/v1/topics/{topic}/records", b"x" * 900_000, headers=headers).status == 200
    address = urlsplit(http.url)
    with socket.create_connection((address.hostname, address.port), PATIENCE_S) as client:
        client.sendall(
            f"GET /v1/topics/{topic}/partitions/0/records?max_bytes=16777216 HTTP/1.0\r\n"
            "Connection: keep-alive\r\n\r\n".encode()
        )
        with client.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
    assert b"keep-alive" not in head
    assert len(json.loads(body)["records"]) == 3


def test_a_long_page_is_the_same_in_pieces(http: Http, topic: str) -> None:
    """It is read while its client takes it, and each piece is as long as a usual page. Method: beside usual pages."""
    for number in range(24):
        records = [{"key": f"{number}", "value": {"n": 2**60 + number, "text": "x" * 50_000}}] * 7
        assert http.post(f"/v1/topics/{topic}/records", {"records": records}).status == 200
    path = f"/v1/topics/{topic}/partitions/0/records"
    for more in ("", "&int64=string", "&key=21", "&max_records=100", "&key=7&max_bytes=5000000"):
        expected: list[Any] = []
        offset: Any = "earliest"
        wanted = 100 if "max_records" in more else 7 if "key" in more else 24 * 7
        while len(expected) < wanted:
            usual = http.get(f"{path}?offset={offset}{more.replace('&max_bytes=5000000', '')}").json
            expected, offset = (expected + usual["records"])[:wanted], usual["next_offset"]
        for packed in ("identity", "gzip", "zstd"):
            query = f"{path}?{more}" if "max_bytes" in more else f"{path}?max_bytes=16777216{more}"
            headers = {"Accept-Encoding": packed}
            with http.session.get(http.url + query, headers=headers, stream=True, timeout=PATIENCE_S) as answer:
                assert answer.headers.get("Content-Encoding", "identity") == packed
                assert answer.headers["Transfer-Encoding"] == "chunked"
                found = json.loads(UNPACK[packed](answer.raw.read(decode_content=False)))
            assert found["records"] == expected, (more, packed)
            assert list(found) == ["records", *ENDS]
            if wanted != 7:
                assert found["next_offset"] == ("168" if "int64" in more else wanted)
    assert http.ask("HEAD", f"{path}?max_bytes=16777216").status == 200
    assert http.get("/livez").status == 200


def test_whole_numbers_are_strings_for_who_asks(http: Http, served: Served, topic: str) -> None:
    """Method: numbers around 2^53 in a value, its text and elsewhere; pages, streams, members and CloudEvents."""
    given = (
        b'{"n": [9007199254740991, 9007199254740992, -9007199254740993, 123456789012345678901234567890],'
        b' "d": [1.12345678901234567890, 12345678901234567e3, 0.5], "t": "9007199254740993 \\" 9007199254740993"}'
    )
    octets = {"Content-Type": "application/octet-stream"}
    assert http.post(f"/v1/topics/{topic}/records?timestamp=1000", given, headers=octets).status == 200
    exact = (
        b'"n": [9007199254740991, "9007199254740992", "-9007199254740993", "123456789012345678901234567890"],'
        b' "d": [1.12345678901234567890, 12345678901234567e3, 0.5], "t": "9007199254740993 \\" 9007199254740993"}'
    )
    path = f"/v1/topics/{topic}/partitions/0/records?include=producer&int64="
    assert given in http.session.get(f"{http.url}{path}number", timeout=PATIENCE_S).content
    raw = http.session.get(f"{http.url}{path}string", timeout=PATIENCE_S)
    assert exact in raw.content
    shown = raw.json()
    assert [shown[each] for each in ENDS] == ["1", "0", "1", "1"]
    (record,) = shown["records"]
    assert (record["partition"], record["offset"], record["timestamp"]) == (0, "0", "1000")
    accept = {"Accept": "application/x-ndjson"}
    query = f"/v1/topics/{topic}/stream?from=earliest&until=end&int64=string"
    lines = http.session.get(http.url + query, headers=accept, timeout=PATIENCE_S).content.splitlines()
    assert exact in lines[0]
    assert json.loads(lines[0])["offset"] == "0"
    member = http.post(f"/v1/groups/{topic}/members", {"topics": [topic]}).headers["Location"]
    polled = http.get(f"{member}/records?wait_ms=9000&int64=string").json
    assert [each["offset"] for each in polled["records"]] == ["0"]
    assert http.post(f"{member}/offsets", {"commit_token": polled["commit_token"]}).status == 204
    batch = {"Accept": "application/cloudevents-batch+json"}
    assert (
        exact
        in http.session.get(
            f"{http.url}{path.partition('?')[0]}?int64=string", headers=batch, timeout=PATIENCE_S
        ).content
    )
    assert http.get(f"{path}text").status == 400
