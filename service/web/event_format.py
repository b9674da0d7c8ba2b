"""Records as CloudEvents 1.0, and back: Kafka's binding, the JSON format, and the headers of HTTP's binary mode.

A record can be an event in binary mode (`ce_*` headers, `content-type`, the data as its value) or in structured mode
(`content-type` is `application/cloudevents+json`, the value is the event). Any other record is wrapped when it is read:
the event has the type `oncelog.record`, its source and id name the record, and its data is the record's value.

What always holds: an event keeps the attributes and the data with which it was written. If an event in binary mode has
no `partitionkey`, it gets the record's key as one, because the libraries of CloudEvents keep it there.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote_to_bytes

import msgspec
from msgspec import Meta, Raw

from log.batch import NewRecord, Record
from log.ids import TopicPartition
from service.turns import Steps
from service.web.answers import refuse_bytes
from service.web.long_json import is_json as is_json_in_steps
from service.web.long_values import as_base64, as_string, in_one_line, is_text
from service.web.problems import Problem
from service.web.records import JUDGED_BYTES_MAX, encoded, one_line

STRUCTURED, BATCHED = "application/cloudevents+json", "application/cloudevents-batch+json"
WRAPPED = "oncelog.record"
CURSOR = "oncelogcursor"
"""In a stream of lines, this attribute says where to go on after the event."""
CONTENT_TYPE = "content-type"
HEADERS_BYTES_MAX = 32 << 10
"""The most header bytes of an event in binary mode. Clients don't read more."""
REQUIRED = ("id", "source", "specversion", "type")
DATA_MEMBERS = frozenset({"data", "data_base64"})
NOT_ATTRIBUTES = DATA_MEMBERS | {"datacontenttype"}
"""In binary mode these are no headers of their own."""
IN_HEADERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
LAST_TIME_MS = 253_402_300_799_999
LEAP_YEAR = 400
_JSON, _PLAIN_TEXT, _BYTES = b"0", b"x", b"\xff"
"""A value of each kind."""
_HOUR, _MINUTE = "([01][0-9]|2[0-3])", "[0-5][0-9]"
_TIME = re.compile(
    rf"([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})[Tt]{_HOUR}:{_MINUTE}:({_MINUTE}|60)(\.[0-9]+)?"
    rf"([Zz]|[+-]{_HOUR}:{_MINUTE})"
)
URI = r"^[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*\Z"
"""RFC 3986, as far as a single look tells."""
_NUMBER = re.compile(rb"-?[0-9]")
_INTEGER = re.compile(rb"-?[0-9]{1,10}")
_NAME = re.compile(r"[a-z0-9]+")
_SPOKEN = re.compile(r"[\x20-\x7e]+")
_ESCAPED = re.compile(r"\\(.)")
# A record's header may be as long as the record: no part of these may match in as many ways as there are characters.
_JSON_MEDIA = re.compile(r"[^;/]+/([^;/]+\+)?json\s*(;|$)", re.IGNORECASE)
_TEXT_MEDIA = re.compile(
    r"(text/[^;\s]+|application/([^;/\s]+\+)?xml)\s*(;\s*charset=\"?(utf-?8|us-ascii)\"?)?$", re.IGNORECASE
)
_CHARSET = re.compile(r";\s*charset=\"?([^\s;\"]{1,40})\"?\s*(?:;|$)", re.IGNORECASE)
_TEXT_CHARSETS = re.compile(
    r"utf-?(8|16|32)(-?[bl]e)?|(us-)?ascii|(iso-?|l)8859-[0-9]{1,2}|latin-?[0-9]{1,2}|(windows-|cp)125[0-8]|koi8-[ru]"
    r"|shift[-_]jis|euc-(jp|kr)|iso-2022-(jp|kr)|gb2312|gbk|gb18030|big5",
    re.IGNORECASE,
)
"""Python has codecs that are none of text, or take long."""


class CloudEvent(msgspec.Struct):
    """The attributes that every event must have, and the members of a certain form."""

    id: Annotated[str, Meta(min_length=1)]
    source: Annotated[str, Meta(min_length=1)]
    specversion: Literal["1.0"]
    type: Annotated[str, Meta(min_length=1)]
    partitionkey: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    data_base64: str | None = None


class Optional(msgspec.Struct):
    """Attributes that an event need not have, and that are something if it has them. A reader is not as strict: a
    record that a Kafka client wrote is still shown as the event that it is.
    """

    subject: Annotated[str, Meta(min_length=1)] | None = None
    dataschema: Annotated[str, Meta(pattern=URI)] | None = None
    datacontenttype: Annotated[str, Meta(min_length=1)] | None = None
    partitionkey: Annotated[str, Meta(min_length=1)] | None = None


class EventOut(msgspec.Struct, gc=False):
    """An event as it is read: the members that it has in JSON."""

    offset: int
    content: dict[str, Any]
    body: bytes | None = None
    """The data as they are stored, for binary mode. None: the event itself is stored, or has no data."""


_event = msgspec.json.Decoder(CloudEvent)
_optional = msgspec.json.Decoder(Optional)
_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, Raw])
_any_json = msgspec.json.Decoder(Raw)
_simples: msgspec.json.Decoder[str | int] = msgspec.json.Decoder(str | int | bool)


# -- in


def from_structured(body: bytes, now_ms: int) -> NewRecord:
    """A record whose value is the event as it came. The caller has seen that it names no member twice."""
    try:
        refuse_bytes(body)
        members = _members.decode(body)  # what may be long is looked at once
        attributes = _encode({name: each for name, each in members.items() if name != "data"})
        event = _event.decode(attributes)
        _optional.decode(attributes)
    except msgspec.ValidationError as error:
        raise Problem("invalid-record", f"no CloudEvent of version 1.0: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem("malformed", f"the event is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise Problem("malformed", "the event is not UTF-8") from None
    for name, content in members.items():
        if name in DATA_MEMBERS:
            continue
        given = bytes(content)
        if not _NAME.fullmatch(name) or given[:1] in (b"{", b"["):
            raise Problem("invalid-record", f"{name[:40]!r} is no attribute of a CloudEvent")
        if _NUMBER.match(given) and not (_INTEGER.fullmatch(given) and -(2**31) <= int(given) < 2**31):
            raise Problem("invalid-record", f"{name[:40]!r} is a number, but not a whole one of 32 bits")
    _check_time(event.time)
    if event.data_base64 is not None:
        if members.keys() >= DATA_MEMBERS:
            raise Problem("invalid-record", "a CloudEvent has data or data_base64, not both")
        try:
            binascii.a2b_base64(event.data_base64, strict_mode=True)
        except (binascii.Error, ValueError):
            raise Problem("invalid-record", "data_base64 is no base64") from None
    key = None if event.partitionkey is None else encoded(event.partitionkey)
    return key, body, ((CONTENT_TYPE, STRUCTURED.encode() + b"; charset=UTF-8"),), now_ms


def _check_time(time: str | None) -> None:
    if time is None:
        return
    found = _TIME.fullmatch(time)
    try:
        if found is None:
            raise ValueError(time)
        year, month, day = map(int, found.group(1, 2, 3))
        date(year or LEAP_YEAR, month, day)  # that class has no year 0, which is one as well
    except ValueError:
        raise Problem("invalid-record", "time is no time as in RFC 3339") from None


def from_binary(given: Mapping[str, str], body: bytes, now_ms: int) -> NewRecord:
    """A record from an event in binary mode: `ce-*` headers become `ce_*` headers, the body becomes the value."""
    attributes: dict[str, str] = {}
    for header, content in given.items():
        if (name := header.lower()).startswith("ce-"):
            name = name.removeprefix("ce-")
            if name in attributes or name in NOT_ATTRIBUTES or not _NAME.fullmatch(name):
                raise Problem("invalid-record", f"{header[:40]!r} is no attribute of a CloudEvent, or there twice")
            attributes[name] = _out_of_header(content)
    if missing := [name for name in REQUIRED if not attributes.get(name)]:
        raise Problem("invalid-record", f"a CloudEvent has a {missing[0]}")
    if attributes["specversion"] != "1.0":
        raise Problem("invalid-record", "CloudEvents of version 1.0 are known here")
    _check_time(attributes.get("time"))
    media = given.get("Content-Type")
    optional = attributes if media is None else {**attributes, "datacontenttype": media}
    try:
        msgspec.convert(optional, Optional)
    except msgspec.ValidationError as error:
        raise Problem("invalid-record", f"no CloudEvent of version 1.0: {error}") from None
    headers = [(f"ce_{name}", content.encode()) for name, content in attributes.items()]
    if media is not None:
        if _is_of_events(media):  # whose attributes are in its body, and not where these are
            detail = "an event has ce-* headers, or is application/cloudevents+json: not both"
            raise Problem("unsupported-media-type", detail)
        headers.append((CONTENT_TYPE, media.encode("utf-8", "surrogateescape")))
    key = attributes.get("partitionkey")
    return None if key is None else key.encode(), body, tuple(headers), now_ms


def _out_of_header(content: str) -> str:
    """Decode a header's content as HTTP's binding says: first remove the quotes, then the percent encoding."""
    if len(content) > 1 and content[0] == content[-1] == '"':
        content = _ESCAPED.sub(r"\1", content[1:-1])
    try:
        return unquote_to_bytes(content.encode("utf-8", "surrogateescape")).decode()
    except UnicodeDecodeError:
        raise Problem("invalid-record", "an attribute of the CloudEvent is not UTF-8") from None


# -- out


def shown_event(partition: TopicPartition, record: Record, *, in_lines: bool = True) -> EventOut:
    """`in_lines`: without the line breaks of its JSON."""
    headers = {name.lower(): content or b"" for name, content in record.headers}
    media = _text(headers.get(CONTENT_TYPE))
    content: dict[str, Any] | None = None
    if media is not None and _is_of_events(media):
        if media.partition(";")[0].strip().lower() == STRUCTURED:
            content = _structured(record.value, in_lines)
        if content is not None:
            return EventOut(record.offset, content)
        media = None
    elif "ce_specversion" in headers:
        content = _binary(headers, record, media, in_lines)
    content = content or _wrapped(partition, record, media, in_lines)
    has_body = not in_lines and not DATA_MEMBERS.isdisjoint(content)
    return EventOut(record.offset, content, record.value if has_body else None)


def long_event(partition: TopicPartition, record: Record, *, in_lines: bool) -> Steps[EventOut]:
    """The same for a record with a long value: the event is made with a short one of its kind, whose place it takes."""
    value = record.value
    assert value is not None
    is_event = any(name.lower() == CONTENT_TYPE and _is_of_events(_text(of) or "") for name, of in record.headers)
    if is_event and len(value) <= JUDGED_BYTES_MAX:
        return shown_event(partition, record, in_lines=in_lines)
    kind = _BYTES
    if (yield from is_text(value)):
        judges = len(value) <= JUDGED_BYTES_MAX
        kind = _JSON if judges and (yield from is_json_in_steps(value)) else _PLAIN_TEXT
    event = shown_event(partition, record._replace(value=kind), in_lines=in_lines)
    content = event.content
    if "data_base64" in content:
        content["data_base64"] = yield from as_base64(value)
    elif isinstance(content["data"], Raw):
        content["data"] = Raw((yield from in_one_line(value)) if in_lines else value)
    else:
        content["data"] = yield from as_string(value)
    event.body = None if in_lines else value
    return event


def _is_of_events(media: str) -> bool:
    """Whether readers take it for structured mode, or a batch: Kafka's binding goes by how it begins."""
    return media.lower().startswith("application/cloudevents")


def _structured(value: bytes | None, in_lines: bool) -> dict[str, Any] | None:
    if value is None or len(value) > JUDGED_BYTES_MAX:
        return None
    try:
        refuse_bytes(value)
        _event.decode(value)
        return {**_members.decode(one_line(value) if in_lines else value)}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _binary(headers: Mapping[str, bytes], record: Record, media: str | None, in_lines: bool) -> dict[str, Any] | None:
    content: dict[str, Any] = {}
    for header, given in headers.items():
        name = header.removeprefix("ce_")
        if name != header and name not in NOT_ATTRIBUTES and _NAME.fullmatch(name):
            content[name] = _text(given)
            if content[name] is None:
                return None
    if not all(content.get(name) for name in REQUIRED) or content["specversion"] != "1.0":
        return None
    _add_key(content, record)
    if media is not None:
        content["datacontenttype"] = media
    if record.value or (record.value is not None and media is not None):
        _add_data(content, record.value, media, in_lines)
    return content


def _wrapped(partition: TopicPartition, record: Record, media: str | None, in_lines: bool) -> dict[str, Any]:
    source = f"/v1/topics/{quote(partition.topic, safe='')}/partitions/{partition.partition}"
    content: dict[str, Any] = {"specversion": "1.0", "type": WRAPPED, "source": source, "id": str(record.offset)}
    if 0 <= record.timestamp <= LAST_TIME_MS:
        moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        content["time"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    _add_key(content, record)
    if record.value is not None:
        media = media or _kind(record.value)
        content["datacontenttype"] = media
        _add_data(content, record.value, media, in_lines)
    return content


def _kind(value: bytes) -> str:
    if _is_json(value):
        return "application/json"
    return "application/octet-stream" if _text(value) is None else "text/plain"


def _add_key(content: dict[str, Any], record: Record) -> None:
    key = _text(record.key)
    if key:
        content.setdefault("partitionkey", key)


def _add_data(content: dict[str, Any], value: bytes, media: str | None, in_lines: bool) -> None:
    """Add the data as the JSON format wants it for this media type: as JSON, as text, otherwise as base64."""
    if media is None or _JSON_MEDIA.match(media):
        if _is_json(value):
            content["data"] = Raw(one_line(value) if in_lines else value)
            return
    elif _TEXT_MEDIA.match(media) and (text := _text(value)) is not None:
        content["data"] = text
        return
    content["data_base64"] = base64.b64encode(value).decode()


def _is_json(value: bytes) -> bool:
    if len(value) > JUDGED_BYTES_MAX:
        return False
    try:
        value.decode()
        _any_json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def to_binary(event: EventOut) -> tuple[dict[str, str], bytes | None]:
    """Headers and body of HTTP's binary mode. The body is None if the event has no data. Data that are stored as they
    are leave so, whatever their media type says. Raises a problem only if nothing true could be said: if headers don't
    hold the attributes, or if what is to be base64 is none.
    """
    content = {name: _simple(each) for name, each in event.content.items() if name not in DATA_MEMBERS}
    headers = {
        f"ce-{name}": quote(_canonical(each), safe=IN_HEADERS)
        for name, each in content.items()
        if name not in NOT_ATTRIBUTES and _NAME.fullmatch(name) and each is not None
    }
    if sum(len(name) + len(each) for name, each in headers.items()) > HEADERS_BYTES_MAX:
        raise Problem("not-acceptable", f"the event's attributes are too long for headers: ask for {STRUCTURED}")
    media = content.get("datacontenttype")
    data, packed = event.content.get("data"), None
    if event.body is None:
        packed = _simple(event.content.get("data_base64"))
    if event.body is not None:
        body, media = event.body, media or ("application/octet-stream" if data is None else "application/json")
    elif isinstance(packed, str):
        try:
            body = base64.b64decode(packed, validate=True)
        except (binascii.Error, ValueError):
            raise Problem("not-acceptable", f"data_base64 is no base64: ask for {STRUCTURED}") from None
    elif data is None:
        return headers, None
    elif isinstance(media, str) and not _JSON_MEDIA.match(media):
        text = _simple(data)
        body = _in_charset(text, media) if isinstance(text, str) else bytes(data)
    else:
        body, media = bytes(data), media or "application/json"
    if not isinstance(media, str) or not _SPOKEN.fullmatch(media):
        media = "application/octet-stream"
    return {**headers, "Content-Type": media}, body


def _in_charset(text: str, media: str) -> bytes:
    """The text as its media type says that it is written. If that says nothing, or nonsense, or a charset that
    doesn't have the text, it is UTF-8.
    """
    found = _CHARSET.search(media) if _SPOKEN.fullmatch(media) else None
    if found is not None and _TEXT_CHARSETS.fullmatch(found[1]):
        with suppress(LookupError, UnicodeEncodeError):
            return text.encode(found[1])
    return text.encode()


def _simple(given: object) -> str | int | None:
    """A string, a whole number or a truth value; None for all else. No objects are made of that: it may be long, or a
    number that is none here.
    """
    if isinstance(given, Raw):
        try:
            return _simples.decode(given)
        except msgspec.MsgspecError:
            return None
    return given if isinstance(given, str | int) else None


def _canonical(attribute: str | int) -> str:
    return str(attribute).lower() if isinstance(attribute, bool) else str(attribute)
