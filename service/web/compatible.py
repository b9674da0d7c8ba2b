"""Calls for producing that programs written for Confluent's REST Proxy make: version 3 (a record, a stream of records,
a batch) and version 2 (JSON, binary, text).

The answers and the errors are those of the REST Proxy. Writing works as everywhere else in HTTP.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from sys import getsizeof
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Raw, UnsetType

from log.batch import NewRecord
from log.ids import TopicPartition
from service.broker.partition import Appended
from service.turns import Steps, Turn, done_in_turns, slices_in_turns
from service.web import quick
from service.web.answers import refuse_bytes, tell
from service.web.consumers import ErrorV2
from service.web.forwarding import media_of
from service.web.gateway import Gateway
from service.web.holding import HOLDER
from service.web.instances import InstanceProblem
from service.web.long_json import compact
from service.web.looking import RECORD_BYTES_MAX, BodyScan
from service.web.problems import PROBLEMS, Problem
from service.web.producing import (
    DECODED_AT_ONCE,
    RECORDS_AT_ONCE,
    REST_BYTES_MAX,
    SCANNED_AT_ONCE,
    PlacedRecords,
    in_runs,
    let_go,
    topic_to_write,
)
from service.web.records import Partitioner, encoded, from_base64, milliseconds
from service.web.routing import JSON, STREAMING, Route
from service.web.sending import OutgoingBatch, batch_of, send
from service.web.unpacking import Pace, body_of, pieces_of

V2_FORMS = ("json", "binary", "text")
V2_MEDIA = "application/vnd.kafka.v2+json"
V2 = "/topics/{topic}"
WRITTEN_AT_ONCE = 50
"""How many records that are written one by one are written in one turn of the loop: 5 ms."""
BATCH_MAX = 10_000
MEDIA_V2 = (V2_MEDIA, *(f"application/vnd.kafka.{form}.v2+json" for form in V2_FORMS))
_MARK = re.compile(r'[\\"{}\[\]]')
DEEP_V3, DEEP_V2 = 2, 1
"""How many objects deep the members are that a version names: a record has a value, and with version 3 that has a type
and data.
"""


class _Members(msgspec.Struct, forbid_unknown_fields=True):
    """The members of those objects, as they came."""

    id: Raw | UnsetType = UNSET
    key: Raw | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    headers: Raw | UnsetType = UNSET
    partition: Raw | UnsetType = UNSET
    partition_id: Raw | UnsetType = UNSET
    timestamp: Raw | UnsetType = UNSET
    type: Raw | UnsetType = UNSET
    data: Raw | UnsetType = UNSET


class _Named(msgspec.Struct):
    """The id of an entry, as it came."""

    id: Raw | UnsetType = UNSET


_UNKNOWN = re.compile("Object contains unknown field `(.*)`", re.DOTALL)
"""What msgspec says of such a member."""
_ID_BYTES_MAX = 12 * 80 + 2
"""Of an id that is short enough, each half of a surrogate pair may be written as an escape."""
_members = msgspec.json.Decoder(_Members)
_named = msgspec.json.Decoder(_Named)
_any_json = msgspec.json.Decoder(Raw).decode
_raws = msgspec.json.Decoder(list[Raw])


# -- what the document says of requests and answers


class PartV3(msgspec.Struct):
    """The data is base64, text or any JSON."""

    type: str = "BINARY"
    data: Any = None


class HeaderV3(msgspec.Struct):
    name: str
    value: str | None = None


class RecordV3(msgspec.Struct):
    """A record. The body may be many, one after the other."""

    key: PartV3 | None = None
    value: PartV3 | None = None
    headers: list[HeaderV3] | None = None
    partition_id: int | None = None
    timestamp: str | int | None = None


class EntryV3(RecordV3, kw_only=True):
    id: str


class EntriesV3(msgspec.Struct):
    entries: list[EntryV3]


class SizeV3(msgspec.Struct):
    type: str
    size: int


class ReportV3(msgspec.Struct, omit_defaults=True):
    """A report for each record. An error has a code other than 200, and a message."""

    error_code: int
    message: str | UnsetType = UNSET
    cluster_id: str | UnsetType = UNSET
    topic_name: str | UnsetType = UNSET
    partition_id: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: str | UnsetType | None = UNSET
    key: SizeV3 | UnsetType = UNSET
    value: SizeV3 | UnsetType = UNSET


class EntryReportV3(ReportV3, kw_only=True):
    id: Any


class ReportsV3(msgspec.Struct):
    successes: list[EntryReportV3]
    failures: list[EntryReportV3]


class ErrorV3(msgspec.Struct):
    error_code: int
    message: str


class HeaderV2(msgspec.Struct):
    """The value is base64."""

    key: str
    value: str | None = None


class NewRecordV2(msgspec.Struct):
    """The key and the value are base64, text or any JSON, as the media type says. Headers and the timestamp, which is
    milliseconds since 1970, are as in Strimzi's Kafka Bridge.
    """

    key: Any = None
    value: Any = None
    partition: int | None = None
    headers: list[HeaderV2] | None = None
    timestamp: int | None = None


class NewRecordsV2(msgspec.Struct):
    records: list[NewRecordV2]


class WrittenV2(msgspec.Struct):
    partition: int
    offset: int | None
    error_code: int | None
    error: str | None


class AllWrittenV2(msgspec.Struct):
    offsets: list[WrittenV2]
    key_schema_id: int | None
    value_schema_id: int | None


# -- records, as version 3 writes them


def _bytes_of(form: str, data: Any) -> bytes | None:
    if data is None:
        return None
    if form in ("BINARY", "binary"):
        if not isinstance(data, str):
            raise Problem("invalid-record", "binary data is base64")
        return from_base64(data, "data")
    if form in ("STRING", "text"):
        if not isinstance(data, str):
            raise Problem("invalid-record", "text is a string")
        return encoded(data)
    if form in ("JSON", "json"):
        if isinstance(data, Raw):
            return bytes(data)
        try:
            return encoded(json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
        except (ValueError, RecursionError):
            raise _not_writable() from None
    raise Problem(
        "invalid-record", f"data of type {form[:40]!r} needs a schema registry: BINARY, JSON and STRING don't"
    )


def _only_v3(given: Any, known: frozenset[str]) -> None:
    """Raises a problem if this object has other members: what was meant by them would be lost."""
    for name in given.keys() - known if isinstance(given, dict) else ():
        raise InstanceProblem("malformed", HTTPStatus.BAD_REQUEST, _unrecognized(name))


def _only_v2(given: dict[str, Any], known: frozenset[str]) -> None:
    for name in given.keys() - known:
        raise InstanceProblem("invalid-request", HTTPStatus.UNPROCESSABLE_ENTITY, _unrecognized(name))


def _unrecognized(name: str) -> str:
    return f"Unrecognized field: {name[:100].encode(errors='replace').decode()}"


def _header(given: Any, name: str) -> tuple[str, bytes | None]:
    """A header, whose name is the member `name`."""
    if not isinstance(given, dict) or not isinstance(given.get(name), str):
        raise Problem("invalid-record", f"a header has a {name}, and a value in base64")
    encoded(given[name])  # a problem if it is no text
    content = given.get("value")
    return given[name], None if content is None else _bytes_of("BINARY", content)


def _headers(given: Any) -> list[Any]:
    if given is not None and not isinstance(given, list):
        raise Problem("invalid-record", f"headers are a list, of no more than {DECODED_AT_ONCE >> 10} KiB")
    return given or []


def _not_writable() -> Problem:
    return Problem("invalid-record", "a number is too large, or lists are too deep in one another")


def _v3_part(given: Any, what: str) -> tuple[bytes | None, str]:
    if given is None:
        return None, ""
    if not isinstance(given, dict) or not isinstance(given.get("type", "BINARY"), str):
        raise Problem("invalid-record", f"a {what} is an object with type and data")
    form = given.get("type", "BINARY")
    content = _bytes_of(form, given.get("data"))
    _only_v3(given, _PART_V3)
    return content, form


_PART_V3 = frozenset({"type", "data"})
_HEADER_V3, _HEADER_V2 = frozenset({"name", "value"}), frozenset({"key", "value"})
_RECORD_V3 = frozenset({"key", "value", "headers", "partition_id", "timestamp"})
_ENTRY_V3, _BODY_V3 = _RECORD_V3 | {"id"}, frozenset({"entries"})
_RECORD_V2 = frozenset({"key", "value", "partition", "headers", "timestamp"})
_BODY_V2 = frozenset({"records", "key_schema", "key_schema_id", "value_schema", "value_schema_id"})
"""Those of schemas mean nothing where there is none, as in the REST Proxy."""


def _v3_record(given: Any, now_ms: int) -> tuple[NewRecord, int | None, dict[str, Any]]:
    """The record, its partition, and what the answer says of its key and value."""
    if not isinstance(given, dict):
        raise Problem("malformed", "a record is an object")
    key, key_form = _v3_part(given.get("key"), "key")
    value, value_form = _v3_part(given.get("value"), "value")
    headers = []
    for header in _headers(given.get("headers")):
        headers.append(_header(header, "name"))
        _only_v3(header, _HEADER_V3)
    timestamp = given.get("timestamp")
    if timestamp is not None and (not isinstance(timestamp, str | int) or isinstance(timestamp, bool)):
        raise Problem("invalid-record", "a timestamp is a time as RFC 3339 writes it")
    moment = now_ms if timestamp is None else milliseconds(timestamp)
    partition = given.get("partition_id")
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise Problem("invalid-record", "partition_id is a number")
    told: dict[str, Any] = {}
    for name, content, form in (("key", key, key_form), ("value", value, value_form)):
        if form:
            told[name] = {"type": form, "size": len(content or b"")}
    return (key, value, tuple(headers), moment), partition, told


class _Objects:
    """JSON objects that come one after the other, with commas, blanks or nothing between them. They come in pieces, and
    each character is looked at once, until an object is there as a whole.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        """What has come of the next object."""
        self.waiting = self.waiting_bytes = 0
        """How long that is, and what it holds of memory."""
        self._depth = 0
        self._is_in_string = self._is_escaped = False

    def feed(self, text: str) -> Iterator[bytes]:
        """The texts of the objects that are complete now."""
        begins, escaped = 0, 0 if self._is_escaped else -1
        for found in _MARK.finditer(text):
            at, mark = found.start(), found[0]
            if at == escaped:
                continue
            if self._is_in_string:
                if mark == "\\":
                    escaped = at + 1
                elif mark == '"':
                    self._is_in_string = False
            elif mark == '"':
                self._is_in_string = True
            elif mark in "{[":
                if not self._depth:
                    self._keep(text[begins:at])
                    self._take_blanks()
                    begins = at
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self._keep(text[begins : at + 1])
                    begins, self._depth = at + 1, 0
                    yield self._joined().encode()
        self._is_escaped = escaped == len(text)
        self._keep(text[begins:])

    def end(self) -> None:
        """Nothing more comes. Raises a problem if an object is not complete."""
        self._take_blanks()

    def _keep(self, piece: str) -> None:
        self._pieces.append(piece)
        self.waiting += len(piece)
        self.waiting_bytes += getsizeof(piece)

    def _joined(self) -> str:
        text, self._pieces, self.waiting, self.waiting_bytes = "".join(self._pieces), [], 0, 0
        return text

    def _take_blanks(self) -> None:
        if text := self._joined().strip(" \t\r\n,"):
            _decoded(text)
            raise Problem("malformed", "a record is an object")


def _no_constant(name: str) -> Any:
    raise Problem("malformed", f"{name} is no JSON")


# -- version 3


def _v3_error(problem: Problem) -> dict[str, Any]:
    status = PROBLEMS[problem.slug].status
    if isinstance(problem, InstanceProblem):
        return {"error_code": problem.code, "message": problem.detail}
    code = {400: 40002, 404: 404 if problem.slug == "not-found" else 40403}.get(status, status)
    return {"error_code": code, "message": problem.detail or PROBLEMS[problem.slug].title}


def refuse_v3(problem: Problem) -> web.Response:
    return web.json_response(_v3_error(problem), status=PROBLEMS[problem.slug].status)


async def _write(
    gateway: Gateway, topic_name: str, record: NewRecord, partition: int | None, told: dict[str, Any]
) -> dict[str, Any]:
    topic = await topic_to_write(gateway, topic_name)
    place = Partitioner(gateway.next_turn()).place(topic, partition, record[0])
    batch = OutgoingBatch(place, await batch_of([record]), 1)
    await send(gateway, [batch])
    if batch.error:
        raise batch.problem()
    moment_ms = batch.append_time_ms if batch.append_time_ms >= 0 else record[3]
    return {
        "error_code": 200,
        "cluster_id": gateway.image.cluster_id,
        "topic_name": topic_name,
        "partition_id": place.partition,
        "offset": batch.base_offset,
        "timestamp": _time(moment_ms),
        **told,
    }


def _time(moment_ms: int) -> str | None:
    """The time as RFC 3339 writes it; None for times after the year 9999."""
    try:
        return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return None


async def _values(request: web.Request, most_bytes: int) -> AsyncIterator[Any]:
    objects, pace = _Objects(), Pace()
    utf8 = codecs.getincrementaldecoder("utf-8")()
    try:
        async for chunk in pieces_of(request, pace):
            for at in range(0, len(chunk), SCANNED_AT_ONCE):
                for text in objects.feed(utf8.decode(chunk[at : at + SCANNED_AT_ONCE])):
                    yield await done_in_turns(_decoded_briefly(text, DEEP_V3))
                    pace.moved()
                await asyncio.sleep(0)
            if objects.waiting > most_bytes:
                raise Problem("record-too-large", f"a record is longer than {most_bytes} bytes")
            await request[HOLDER].take(objects.waiting_bytes + pace.window_bytes)
        for text in objects.feed(utf8.decode(b"", final=True)):
            yield await done_in_turns(_decoded_briefly(text, DEEP_V3))
    except UnicodeDecodeError:
        raise Problem("malformed", "the body is not UTF-8") from None
    objects.end()


async def v3_records(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Write one record for each object in the body. Reports are sent back while the body is still coming."""
    this_cluster(gateway, request)
    topic_name = request.match_info["topic"]
    response: web.StreamResponse | None = None
    now_ms = gateway.env.clock.wall_ms
    count = 0
    try:
        async for value in _values(request, RECORD_BYTES_MAX):
            count += 1
            if count % WRITTEN_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                _only_v3(value, _RECORD_V3)
                told = await _write(gateway, topic_name, *_v3_record(value, now_ms()))
            except Problem as problem:
                told = _v3_error(problem)
            if response is None:
                response = web.StreamResponse(headers={"Content-Type": JSON})
                await response.prepare(request)
                request[STREAMING] = True
            await tell(request, response, msgspec.json.encode(told) + b"\r\n")
    except Problem as problem:
        if response is None:
            raise
        await response.write(msgspec.json.encode(_v3_error(problem)) + b"\r\n")
    if response is None:
        return web.json_response({"error_code": 400, "message": "the body is empty"}, status=400)
    await response.write_eof()
    return response


async def v3_batch(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    this_cluster(gateway, request)
    rest, entries = await _list_of(await body_of(request), "entries")
    _only_v3(rest, _BODY_V3)
    if not 0 < len(entries) <= BATCH_MAX:
        raise Problem("invalid-request", f"entries are 1 to {BATCH_MAX} records")
    await done_in_turns(_judge_ids(entries))
    successes, failures = [], []
    for number, given in enumerate(entries):
        if number % WRITTEN_AT_ONCE == WRITTEN_AT_ONCE - 1:
            await asyncio.sleep(0)
        name = None
        try:
            entry = await done_in_turns(_decoded_briefly(given, DEEP_V3))
            name = entry.get("id") if isinstance(entry, dict) else None
            _only_v3(entry, _ENTRY_V3)
            if not isinstance(name, str) or not 0 < len(name) <= 80:
                raise Problem("invalid-record", "an entry has an id of 1 to 80 characters")
            now_ms = gateway.env.clock.wall_ms()
            written = await _write(gateway, request.match_info["topic"], *_v3_record(entry, now_ms))
            successes.append({"id": name} | written)
        except Problem as problem:
            failures.append({"id": name} | _v3_error(problem))
    return web.json_response({"successes": successes, "failures": failures}, status=207)


def _judge_ids(entries: list[bytes]) -> Steps[None]:
    """Raises a problem if two entries have the same id: an answer could not be told from the other. What has no id that
    can be read is refused by itself.
    """
    found, turn = set[str](), Turn(DECODED_AT_ONCE)
    for entry in entries:
        try:
            given = _named.decode(entry).id
            name = json.loads(bytes(given)) if given is not UNSET and len(given) <= _ID_BYTES_MAX else None
        except (msgspec.DecodeError, ValueError, RecursionError):
            name = None
        if isinstance(name, str):
            if name in found:
                raise Problem("invalid-request", f"two entries have the id {name[:80]!r}")
            found.add(name)
        if turn.is_over(len(entry) + DECODED_AT_ONCE // RECORDS_AT_ONCE):
            yield


def this_cluster(gateway: Gateway, request: web.Request) -> None:
    """Raises a problem if the path names another cluster."""
    if request.match_info["cluster"] != gateway.image.cluster_id:
        raise Problem("not-found", f"this is cluster {gateway.image.cluster_id}")


async def _list_of(body: bytes, name: str) -> tuple[dict[str, Any], list[bytes]]:
    """The members of the body, and its list with this name, whose items are decoded one by one; an empty one if there
    is none. A long list is read in several turns of the loop, and left out of the members.
    """
    scan = BodyScan(body, name=f'"{name}"'.encode())
    await scan.look()
    if scan.records_end < 0:
        if len(body) > DECODED_AT_ONCE:
            raise Problem("malformed", f"the body is not JSON, or has no {name}")
        found = _decoded(body)
        if not isinstance(found, dict):
            raise Problem("malformed", "the body is an object")
        return found, []
    if scan.rest_bytes > REST_BYTES_MAX:
        raise Problem("record-too-large", f"there is more beside the {name} than a request may have")
    if not isinstance(rest := _decoded(scan.rest), dict):
        raise Problem("malformed", "the body is an object")
    some: list[bytes] = []
    for piece in scan.pieces:
        try:
            some += map(bytes, _raws.decode(piece))
        except (msgspec.DecodeError, RecursionError) as error:
            if len(piece) > 2 * DECODED_AT_ONCE:
                raise Problem("malformed", f"the body is not JSON: {error}") from None
            # Half a surrogate pair is JSON for others: its record alone is refused.
            some += [json.dumps(each).encode() for each in _decoded(piece)]
        await asyncio.sleep(0)
    return rest, some


def _decoded_briefly(text: bytes, deep: int, *, is_json: bool = False) -> Steps[Any]:
    """The JSON. Of a long one only the members that an API names are decoded, down to so many objects; what is long in
    them is written as a short one is, and stays JSON. Objects are made of each two bytes of it otherwise. If an object
    has a member that no API names, that is all that is told of it. `is_json`: that is known.
    """
    if len(text) <= DECODED_AT_ONCE or text[:1] == b'"':
        return _decoded(text)
    if is_json and not (deep and text[:1] == b"{"):
        try:
            return Raw(encoded((yield from compact(text))))
        except (ValueError, RecursionError):
            raise _not_writable() from None
    try:
        refuse_bytes(text)
        if not deep or text[:1] != b"{":
            return _any_json(text)
        found = _members.decode(text)
    except msgspec.ValidationError as error:
        if (unknown := _UNKNOWN.fullmatch(str(error))) is None:
            raise
        return {unknown[1]: None}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Problem("malformed", f"the body is not JSON: {error}") from None
    yield
    made: dict[str, Any] = {}
    for name in _Members.__struct_fields__:
        if (given := getattr(found, name)) is not UNSET:
            made[name] = yield from _decoded_briefly(bytes(given), deep - 1, is_json=True)
    return made


def _decoded(text: bytes | str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Problem("malformed", f"the body is not JSON: {error}") from None


# -- version 2

_PARTITION = re.compile("[0-9]{1,10}")


def refuse_v2(problem: Problem) -> web.Response:
    status = PROBLEMS[problem.slug].status
    if isinstance(problem, InstanceProblem):
        code = problem.code
    elif status >= 500:
        code = 50003 if problem.kind.retriable else 50002
    else:
        code = {404: 40401, 400: 400, 403: 403, 413: 413}.get(status, 422)
    message = problem.detail or PROBLEMS[problem.slug].title
    body = msgspec.json.encode({"error_code": code, "message": message})
    return web.Response(body=body, status=status, content_type=V2_MEDIA)


_PREFIXES = (("/v3", JSON), *((each, V2_MEDIA) for each in ("/topics", "/consumers", "/brokers", "/partitions")))


def no_route(path: str, status: HTTPStatus) -> web.Response | None:
    """What the REST Proxy answers where it has no resource, or not with this method; None: the path is none of its."""
    for prefix, media in _PREFIXES:
        if path == prefix or path.startswith(prefix + "/"):
            told = {"error_code": status.value, "message": f"HTTP {status.value} {status.phrase}"}
            return web.Response(body=msgspec.json.encode(told), status=status, content_type=media)
    return None


async def v2_records(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """`POST /topics/{topic}`, and the same for one partition of it."""
    kind, _, rest = media_of(request).removeprefix("application/vnd.kafka").removeprefix(".").partition(".")
    if media_of(request) in (JSON, V2_MEDIA):
        kind = "binary"
    elif kind not in V2_FORMS or rest != "v2+json":
        raise InstanceProblem("unsupported-media-type", 415, "HTTP 415 Unsupported Media Type")
    name = request.match_info["topic"]
    given_partition = request.match_info.get("partition")
    if given_partition is not None and not _PARTITION.fullmatch(given_partition):
        raise _no_partition()
    now_ms = gateway.env.clock.wall_ms()
    rest_of_body, records = await _list_of(await body_of(request), "records")
    _only_v2(rest_of_body, _BODY_V2)
    if not records:
        raise Problem("invalid-request", "records is missing")
    topic = await topic_to_write(gateway, name)
    placed = PlacedRecords({}, [])
    partitioner = Partitioner(gateway.next_turn())
    turn = Turn(DECODED_AT_ONCE)
    for count, text in enumerate(records, 1):
        each = await done_in_turns(_decoded_briefly(text, DEEP_V2))
        if not isinstance(each, dict):
            raise Problem("malformed", "a record is an object")
        _only_v2(each, _RECORD_V2)
        partition = int(given_partition) if given_partition is not None else each.get("partition")
        if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
            raise Problem("malformed", "partition is a number")
        if partition is not None and partition not in topic.partitions:
            raise _no_partition()
        try:
            record = _v2_record(each, kind, now_ms)
        except InstanceProblem:
            raise
        except Problem as problem:
            raise problem.about_record(count - 1) from None
        placed.add(partitioner.place(topic, partition, record[0]), record)
        if turn.is_over(DECODED_AT_ONCE // RECORDS_AT_ONCE + len(text)):
            await asyncio.sleep(0)
    batches = []
    for where, run in await in_runs(gateway, placed):
        batches.append(OutgoingBatch(where, await batch_of(run), len(run)))
        await asyncio.sleep(0)
    await send(gateway, batches)
    found: dict[TopicPartition, list[bytes]] = {}
    for batch in batches:
        await asyncio.sleep(0)
        index = batch.partition.partition
        if batch.error:
            reports = _v2_refused(batch.problem(), index, batch.records)
        else:
            reports = _v2_written(index, batch.base_offset, batch.records)
        found.setdefault(batch.partition, []).extend(reports)
    offsets: list[bytes] = []
    async for some in slices_in_turns(placed.order, RECORDS_AT_ONCE):
        offsets += [found[where][number] for where, number in some]
    content = _v2_answer(offsets)
    await let_go(records, offsets, *found.values(), *placed.lists)
    return web.Response(body=content, content_type=V2_MEDIA)


def _v2_record(given: dict[str, Any], form: str, now_ms: int) -> NewRecord:
    """The record. Headers and timestamps are as Strimzi's Kafka Bridge takes them."""
    key, value = _bytes_of(form, given.get("key")), _bytes_of(form, given.get("value"))
    headers = []
    for header in _headers(given.get("headers")):
        headers.append(_header(header, "key"))
        _only_v2(header, _HEADER_V2)
    timestamp = given.get("timestamp")
    if timestamp is not None and (not isinstance(timestamp, int) or isinstance(timestamp, bool)):
        raise Problem("invalid-record", "a timestamp is milliseconds since 1970")
    return key, value, tuple(headers), now_ms if timestamp is None else milliseconds(timestamp)


def _no_partition() -> Problem:
    return InstanceProblem("unknown-topic", 40402, "Partition not found.")


def _v2_written(index: int, first: int, count: int) -> list[bytes]:
    form = b'{"partition":%d,"offset":%d,"error_code":null,"error":null}'
    return [form % (index, offset) for offset in range(first, first + count)]


def _v2_refused(wrong: Problem, index: int, count: int) -> list[bytes]:
    code = 50003 if wrong.kind.retriable else 50002
    report = {"partition": index, "offset": None, "error_code": code, "error": wrong.detail}
    return [msgspec.json.encode(report)] * count


def _v2_answer(reports: Sequence[bytes]) -> bytes:
    return b'{"offsets":[%b],"key_schema_id":null,"value_schema_id":null}' % b",".join(reports)


class _V2Form:
    """The form of version 2's answers on the short way."""

    def written(self, topic_name: str, index: int, appended: Appended, records: int, now_ms: int) -> bytes:
        return _v2_answer(_v2_written(index, appended.base_offset, records))

    def refused(self, problem: Problem, index: int, records: int) -> bytes:
        return _v2_answer(_v2_refused(problem, index, records))


V2_FORM = _V2Form()


def write_v2(form: str, gateway: Gateway, topic_name: str, body: bytes) -> quick.Answer:
    """The short way of `POST /topics/{topic}`; None if the request must go the general way, as it must if `records` may
    be there twice.
    """
    if len(body) > quick.BODY_BYTES_MAX or body.count(b'"records"') != 1 or b"\\u00" in body:
        return None
    try:
        given = json.loads(body, parse_constant=_no_constant)
        if not isinstance(given, dict) or given.keys() != {"records"}:
            return None
        some = given["records"]
        if not isinstance(some, list) or not 0 < len(some) <= quick.RECORDS_MAX:
            return None
        if not all(isinstance(each, dict) and each.keys() <= {"key", "value"} for each in some):
            return None
        records = [(_bytes_of(form, each.get("key")), _bytes_of(form, each.get("value"))) for each in some]
    except (Problem, ValueError, RecursionError):
        return None
    return quick.write(gateway, topic_name, records, V2_FORM)


_V3 = "/v3/clusters/{cluster}/topics/{topic}/records"
_TAG = "as Confluent's REST Proxy"
_PROBLEMS = (400, 404, 408, 413, 415, 422, 429, 503, 504)
_v3 = partial(
    Route, "POST", tag=_TAG, body_bytes_max=None, problems=_PROBLEMS, refuse=refuse_v3, refusal=(JSON, ErrorV3)
)
_v2 = partial(
    Route, "POST", tag=_TAG, body=NewRecordsV2, body_media=MEDIA_V2, body_bytes_max=None, answer=AllWrittenV2,
    answer_media=V2_MEDIA, problems=_PROBLEMS, refuse=refuse_v2, refusal=(V2_MEDIA, ErrorV2),
)  # fmt: skip
ROUTES = (
    _v3(_V3, v3_records, "Write records, one or a stream of them; reports come back while the body is still coming.",
        body=RecordV3, body_streams=True, answer=ReportV3),
    _v3(_V3 + ":batch", v3_batch, "Write a batch of records, each by itself.", body=EntriesV3, answer=ReportsV3,
        status=207),
    _v2(V2, v2_records, "Write records, each by itself. The media type says what they are: JSON, binary, text."),
    _v2(V2 + "/partitions/{partition}", v2_records, "Write records to a partition, each by itself."),
)  # fmt: skip
