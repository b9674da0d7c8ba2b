"""Records as JSON, and back.

A value is any JSON and is stored as its text, exactly as it came (`value`), or it is text (`value_string`), or bytes
(`value_base64`). Null, or none of them, is no value: a tombstone. A key is text (`key`) or bytes (`key_base64`). When a
record is read, a value that is JSON is shown as `value`, other text as `value_string`, and everything else as
`value_base64`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from log.batch import NewRecord
from log.ids import TopicPartition
from service.client.partitioner import partition_for_key
from service.cluster.image import Topic
from service.turns import Steps, Turn
from service.web.problems import Problem
from service.wire.error_codes import ErrorCode

TIMESTAMP_MAX = 2**63 - 1
HEADERS_MAX = 10_000
"""The most headers of a record that are read or written by HTTP. To open and show so many takes 10 ms."""
JUDGED_BYTES_MAX = 16 << 20
"""A longer value is not looked at whether it is JSON: that would take one turn of the loop. None came by HTTP."""
TOO_MANY_HEADERS = f"a record has at most {HEADERS_MAX} headers"


Int64 = Annotated[int, msgspec.Meta(extra_json_schema={"format": "int64"})]
"""A whole number in an answer. Clients that ask for `int64=string` get it as a string."""


class HeaderIn(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    value: str | None = None
    value_base64: str | None = None


class RecordIn(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record to write."""

    topic: str | None = None
    partition: int | None = None
    key: str | None = None
    key_base64: str | None = None
    value: Raw | UnsetType = UNSET
    value_string: str | None = None
    value_base64: str | None = None
    headers: list[HeaderIn] | dict[str, str | None] = []
    timestamp: int | str | None = None


class RecordOut(msgspec.Struct, omit_defaults=True, gc=False):
    """A record that was read."""

    topic: str
    partition: int
    offset: Int64
    timestamp: Int64
    key: str | None = None
    key_base64: str | UnsetType = UNSET
    value: Raw | UnsetType | None = UNSET
    value_string: str | UnsetType = UNSET
    value_base64: str | UnsetType = UNSET
    headers: list[dict[str, str | None]] = []
    headers_cut: bool = False
    """There are more headers than are shown."""
    control: str | None = None
    aborted: bool = False
    producer_id: Int64 | UnsetType = UNSET
    producer_epoch: int | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    """In a stream: where to go on after this record."""


_is_json = msgspec.json.Decoder(Raw).decode
NULL = b"null"
LF, CR = 10, 13
"""As numbers they are looked for in a fifth of the time."""


def from_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem("invalid-record", f"{what} is not base64", error=ErrorCode.INVALID_RECORD) from None


def new_record(given: RecordIn, now_ms: int) -> NewRecord:
    """The record as the log takes it."""
    value = given.value
    content: bytes | None
    if value is not UNSET:
        if given.value_string is not None or given.value_base64 is not None:
            raise Problem("invalid-record", "a record has one value: value, value_string or value_base64")
        content = bytes(value)
        if content == NULL:
            content = None
    elif given.value_string is not None:
        if given.value_base64 is not None:
            raise Problem("invalid-record", "a record has one value: value, value_string or value_base64")
        content = encoded(given.value_string)
    else:
        content = None if given.value_base64 is None else from_base64(given.value_base64, "value_base64")
    key: bytes | None = None
    if given.key is not None:
        if given.key_base64 is not None:
            raise Problem("invalid-record", "a record has one key: key or key_base64")
        key = encoded(given.key)
    elif given.key_base64 is not None:
        key = from_base64(given.key_base64, "key_base64")
    if len(given.headers) > HEADERS_MAX:
        raise Problem("record-too-large", TOO_MANY_HEADERS)
    headers = tuple(_headers(given.headers)) if given.headers else ()
    timestamp = now_ms if given.timestamp is None else milliseconds(given.timestamp)
    return key, content, headers, timestamp


def encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Problem("invalid-record", "half a surrogate pair is no text") from None


def _headers(given: Sequence[HeaderIn] | dict[str, str | None]) -> Iterable[tuple[str, bytes | None]]:
    if isinstance(given, dict):
        for name, value in given.items():
            yield name, None if value is None else encoded(value)
        return
    for header in given:
        if header.value_base64 is not None:
            yield header.name, from_base64(header.value_base64, f"header {header.name}")
        else:
            yield header.name, None if header.value is None else encoded(header.value)


EPOCH = datetime.fromtimestamp(0, UTC)


def milliseconds(timestamp: int | str) -> int:
    """Milliseconds since 1970, from such a number or from a time as RFC 3339 writes it."""
    if isinstance(timestamp, str):
        try:
            moment = datetime.fromisoformat(timestamp.upper())  # a small t or z is one, too
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise Problem("invalid-record", f"{timestamp[:40]!r} is no time as RFC 3339 writes it, with its zone")
        timestamp = (moment - EPOCH) // timedelta(milliseconds=1)  # a float of seconds is too short
    if not 0 <= timestamp <= TIMESTAMP_MAX:
        raise Problem("invalid-record", f"{timestamp} is no timestamp: milliseconds since 1970 are meant")
    return timestamp


def asked_time(given: str) -> int:
    """A time in a query, as milliseconds since 1970: such a number, or a time as RFC 3339 writes it."""
    try:
        return milliseconds(int(given) if given.isascii() and given.isdigit() and len(given) < 19 else given)
    except Problem as problem:
        raise Problem("malformed", problem.detail) from None


class Partitioner:
    """Chooses the partitions for the records of one request. A record goes where it says, or else where its key
    belongs, as with Kafka's clients. The other records go to one partition together; the next request uses another one.
    """

    def __init__(self, turn: int) -> None:
        self._turn = turn

    def place(self, topic: Topic, partition: int | None, key: bytes | None) -> TopicPartition:
        count = len(topic.partitions)
        if partition is not None:
            if partition not in topic.partitions:
                where = f"topic {topic.name!r} has no partition {partition}"
                raise Problem("unknown-topic", where, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return TopicPartition(topic.name, partition)
        if key is None:
            return TopicPartition(topic.name, self._turn % count)
        return TopicPartition(topic.name, partition_for_key(key, count) if count > 1 else 0)


def shown(content: bytes | None, form: str, out: RecordOut) -> None:
    """Put a value into `out`, in the form that the client has asked for."""
    if content is None:
        out.value = None
        return
    if form == "base64":
        out.value_base64 = base64.b64encode(content).decode()
        return
    try:
        text = content.decode()
    except UnicodeDecodeError:
        out.value_base64 = base64.b64encode(content).decode()
        return
    if form == "string" or (form == "auto" and len(content) > JUDGED_BYTES_MAX):
        out.value_string = text
        return
    try:
        _is_json(content)
    except (msgspec.DecodeError, RecursionError):
        out.value_string = text
        return
    out.value = Raw(one_line(content))


def one_line(json: bytes) -> bytes:
    """The JSON without line breaks, which stand nowhere in it but between its tokens."""
    return json.translate(None, b"\r\n") if LF in json or CR in json else json


def plain_record(
    topic: str, partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None
) -> RecordOut:
    """A record without headers, in the form `auto`. Most have a key that is text, if any, and a value that is JSON in
    one line: those take a third of the time.
    """
    try:
        if value is not None and LF not in value and CR not in value and len(value) <= JUDGED_BYTES_MAX:
            if not value.isascii():
                value.decode()
            _is_json(value)
            text = None if key is None else key.decode()
            return RecordOut(topic, partition, offset, timestamp, text, UNSET, Raw(value))
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        pass
    out = RecordOut(topic, partition, offset, timestamp)
    if key is not None:
        shown_key(key, out)
    shown(value, "auto", out)
    return out


INT64_MEMBERS = (
    *("offset", "timestamp", "producer_id", "next_offset"),
    *("log_start_offset", "last_stable_offset", "high_watermark"),
)
EXACT_MAX = 2**53 - 1
"""Larger whole numbers lose digits in languages in which all numbers are doubles, such as JavaScript."""
_IN_STRING = rb'(?:[^"\\]++|\\.)*+("?)'
_REST_OF_STRING = re.compile(_IN_STRING, re.DOTALL)
"""Its group is the closing quote, if that is there."""
_NUMBER = re.compile(rb"[-\d][-+.eE\d]*+")
_TOKEN = re.compile(rb'"' + _IN_STRING + rb"|" + _NUMBER.pattern + rb'|[^"\d-]++', re.DOTALL)
LONG_DIGITS = 16
"""Whole numbers of fewer digits are exact."""
_has_long_number = re.compile(rb"\d{%d}" % LONG_DIGITS).search
NUMBERS_AT_ONCE = 4_000
"""How many strings and numbers are looked at in one turn of the loop."""
SCANNED_AT_ONCE = 8 << 10
"""How many bytes of a long string are looked at in one turn of the loop, among others."""
OF_TOKEN_BYTES, SEARCHED_BYTES = 32, 64
"""So many bytes of a string, or of text in which long numbers are searched for, take as long as a short token."""
_QUOTE, _MINUS, _NINE = b'"-9'
_encode = msgspec.json.Encoder().encode


def with_text_numbers(answer: msgspec.Struct) -> bytes:
    """The answer as JSON for a client whose numbers are doubles: larger whole numbers are strings. Those in the
    records' values are strings already.
    """
    members: dict[str, Any] = msgspec.to_builtins(answer, builtin_types=(Raw,))
    for each in (members, *members.get("records", ())):
        for name in INT64_MEMBERS:
            if name in each:
                each[name] = str(each[name])
    return _encode(members)


def long_numbers_as_text(content: bytes, turn: Turn) -> Steps[bytes]:
    """The JSON with all whole numbers beyond 2^53 as strings, digit by digit."""
    at_once = SEARCHED_BYTES * NUMBERS_AT_ONCE
    for at in range(0, len(content), at_once):
        if _has_long_number(content, at, at + at_once + LONG_DIGITS - 1) is not None:
            return (yield from _with_long_numbers_as_text(content, turn))
        if turn.is_over(min(len(content) - at, at_once) // SEARCHED_BYTES):
            yield
    return content


def _with_long_numbers_as_text(content: bytes, turn: Turn) -> Steps[bytes]:
    made, done, start, is_in_string = bytearray(), 0, 0, False
    while start < len(content):
        end = start + SCANNED_AT_ONCE
        if is_in_string:
            rest = _REST_OF_STRING.match(content, start, end)
            assert rest is not None  # it matches nothing, too
            start, is_in_string = rest.end(), not rest[1]
            if turn.is_over(SCANNED_AT_ONCE // OF_TOKEN_BYTES):
                yield
            continue
        for found in _TOKEN.finditer(content, start, end):
            token, start = found[0], found.end()
            if turn.is_over(1 + len(token) // OF_TOKEN_BYTES):
                yield
            if token[0] == _QUOTE:
                if is_in_string := not found[1]:
                    break
            elif _MINUS <= token[0] <= _NINE:
                if start == end and (whole := _NUMBER.match(content, found.start())) is not None:
                    token, start = whole[0], whole.end()
                if _is_long(token):
                    made += b'%b"%b"' % (content[done : found.start()], token)
                    done = start
    made += content[done:]
    return bytes(made)


def _is_long(number: bytes) -> bool:
    is_whole = len(number) >= LONG_DIGITS and number.lstrip(b"-").isdigit()
    return is_whole and (len(number) > 20 or abs(int(number)) > EXACT_MAX)


def shown_key(key: bytes, out: RecordOut) -> None:
    try:
        out.key = key.decode()
    except UnicodeDecodeError:
        out.key_base64 = base64.b64encode(key).decode()


def shown_headers(headers: Iterable[tuple[str, bytes | None]]) -> list[dict[str, str | None]]:
    found: list[dict[str, str | None]] = []
    for name, value in headers:
        if value is None:
            found.append({"name": name, "value": None})
            continue
        try:
            found.append({"name": name, "value": value.decode()})
        except UnicodeDecodeError:
            found.append({"name": name, "value_base64": base64.b64encode(value).decode()})
    return found
