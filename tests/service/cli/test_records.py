"""Records to JSON and formats, and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.batch import NewRecord, build_batch, read_header, read_records
from log.ids import TopicPartition
from service.cli.records import BadInput, compile_format, from_json, parse_json, to_json
from service.cli.timestamps import parse_moment, rfc3339
from service.client.partitioner import murmur2, partition_for_key
from service.client.reader import ReadRecord

NOW_MS = 1_763_732_760_123


def _read(record: NewRecord, *, producer_id: int = -1) -> ReadRecord:
    batch = build_batch([record], base_offset=7, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1)
    header = read_header(batch)
    (opened,) = read_records(batch, header)
    return ReadRecord(TopicPartition("orders", 2), opened, header)


some_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
some_headers = st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3).map(tuple)


@given(key=some_bytes, value=some_bytes, headers=some_headers)
def test_what_consume_prints_produce_reads_back(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    """Bytes that are no text, null and empty, repeated headers, the time to the millisecond."""
    record = (key, value, headers, NOW_MS)
    line = to_json(_read(record))
    assert from_json(json.loads(line), now_ms=0).record == record


def test_a_printed_record_has_the_documented_fields() -> None:
    assert json.loads(to_json(_read((b"k", b"\xff", (("h", None),), NOW_MS), producer_id=9))) == {
        "topic": "orders",
        "partition": 2,
        "offset": 7,
        "timestamp": "2025-11-21T13:46:00.123Z",
        "timestamp_type": "CreateTime",
        "key": "k",
        "value_base64": "/w==",
        "headers": [{"key": "h", "value": None}],
        "producer_id": 9,
        "producer_epoch": 0,
        "transactional": False,
    }


def test_raw_timestamps_are_milliseconds() -> None:
    assert json.loads(to_json(_read((None, None, (), NOW_MS)), raw_timestamps=True))["timestamp"] == NOW_MS


def test_a_format_prints_what_kcat_would() -> None:
    read = _read((b"key", b"value", (("a", b"1"), ("b", None)), NOW_MS))
    printed = compile_format(r"%t/%p@%o %k=%s (%K,%S) %T %h %x\t%%\x41\n")(read)
    assert printed == b"orders/2@7 key=value (3,5) 1763732760123 a=1,b= -1\t%A\n"


def test_sizes_tell_null_from_empty() -> None:
    assert compile_format("%K %S")(_read((None, b"", (), NOW_MS))) == b"-1 0"


@pytest.mark.parametrize("text", ["%q", r"\q"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not known"):
        compile_format(text)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (["a list"], "JSON object"),
        ({"value_base64": "***"}, "not base64"),
        ({"headers": {"a": "b"}}, "headers are a list"),
        ({"headers": [{"value": "b"}]}, "header's key"),
        ({"partition": "two"}, "partition is a number"),
        ({"timestamp": "soon"}, "is not a time"),
        ({"timestamp": 2**63}, "is not a time"),
        ({"value": "a", "value_base64": "YQ=="}, "not both"),
        ({"value": "\ud800"}, "value has half of a surrogate pair"),
        ({"headers": [{"key": "\ud800"}]}, "key has half of a surrogate pair"),
        ({"valu": "x"}, "no field 'valu'"),
        ({"user": 7, "name": "a document of one's own"}, "--input lines"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(document: object, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        from_json(document, now_ms=NOW_MS)


def test_a_number_of_too_many_digits_is_refused_in_plain_words() -> None:
    with pytest.raises(BadInput, match="more digits than can be read"):
        parse_json(b"9" * 5000)


def test_a_value_that_is_no_text_is_written_as_the_json_it_is() -> None:
    assert from_json({"value": {"a": [1, None]}}, now_ms=0).record[1] == b'{"a":[1,null]}'


def test_the_hash_is_that_of_kafkas_java_client() -> None:
    """The vectors are those of Kafka's own tests."""
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in vectors} == {key: value % 2**32 for key, value in vectors.items()}


@given(st.binary(), st.integers(1, 100))
def test_every_key_has_a_partition(key: bytes, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count


@given(st.integers(0, 253402300799999))
def test_a_printed_time_is_read_back(timestamp_ms: int) -> None:
    printed = rfc3339(timestamp_ms)
    assert printed is not None
    assert parse_moment(printed) == timestamp_ms


def test_times_that_no_calendar_has_are_unknown() -> None:
    assert [rfc3339(-1), rfc3339(2**62)] == [None, None]


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_moment("2025-11-21T13:46:00.123") == parse_moment("2025-11-21T14:46:00.123+01:00") == NOW_MS
