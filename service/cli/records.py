"""Records as `oncelog consume` prints them and `oncelog produce` reads them: JSON objects, or a format of one's own.

What `consume -J` prints, `produce --input ndjson` takes back, byte for byte: what is no text travels as base64 under
another name.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Any

from service.cli.timestamps import parse_moment, rfc3339
from service.client.reader import ReadRecord
from service.client.writer import OutgoingRecord


class BadInput(ValueError):
    """Input that is not a record; the message says why."""


# Printing


def to_json(read: ReadRecord, *, raw_timestamps: bool = False) -> str:
    """One record as one line of JSON; the fields stand in `docs/cli.md`."""
    record, batch = read.record, read.batch
    fields: dict[str, Any] = {
        "topic": read.partition.topic,
        "partition": read.partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp if raw_timestamps else rfc3339(record.timestamp),
        "timestamp_type": "LogAppendTime" if batch.log_append_time else "CreateTime",
        **_as_text("key", record.key),
        **_as_text("value", record.value),
        "headers": [{"key": name, **_as_text("value", value)} for name, value in record.headers],
    }
    if batch.has_producer:
        fields["producer_id"] = batch.producer_id
        fields["producer_epoch"] = batch.producer_epoch
        fields["transactional"] = batch.is_transactional
    if read.control is not None:
        fields["control"] = read.control
    if read.aborted:
        fields["aborted"] = True
    return json.dumps(fields, ensure_ascii=False)


def _as_text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)

_FIELDS: dict[str, Callable[[ReadRecord], bytes]] = {
    "t": lambda read: read.partition.topic.encode(),
    "p": lambda read: b"%d" % read.partition.partition,
    "o": lambda read: b"%d" % read.record.offset,
    "k": lambda read: read.record.key or b"",
    "K": lambda read: b"%d" % (-1 if read.record.key is None else len(read.record.key)),
    "s": lambda read: read.record.value or b"",
    "v": lambda read: read.record.value or b"",
    "S": lambda read: b"%d" % (-1 if read.record.value is None else len(read.record.value)),
    "T": lambda read: b"%d" % read.record.timestamp,
    "D": lambda read: (rfc3339(read.record.timestamp) or "").encode(),
    "h": lambda read: b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (value or b"") for name, value in read.record.headers
    ),
    "x": lambda read: b"%d" % read.batch.producer_id,
    "y": lambda read: b"%d" % read.batch.producer_epoch,
    "e": lambda read: b"%d" % read.batch.leader_epoch,
    "%": lambda _: b"%",
}


def compile_format(text: str) -> Callable[[ReadRecord], bytes]:
    r"""A function that prints a record as `text` says: `%t %p %o %k %s\n`, as kcat. Raises ValueError."""
    parts: list[Callable[[ReadRecord], bytes]] = []
    for match in _TOKEN.finditer(text):
        field, code, escape, plain, stray = match.groups()
        if field is not None:
            if field not in _FIELDS:
                raise ValueError(f"%{field} is not known; there are {' '.join('%' + name for name in _FIELDS)}")
            parts.append(_FIELDS[field])
            continue
        if code is not None:
            constant = bytes([int(code, 16)])
        elif escape is not None:
            if escape not in _ESCAPES:
                raise ValueError(f"\\{escape} is not known; there are \\n \\t \\r \\0 \\\\ \\xNN")
            constant = _ESCAPES[escape]
        else:
            constant = (plain or stray).encode()
        parts.append(lambda _, constant=constant: constant)  # type: ignore[misc]
    return lambda read: b"".join([part(read) for part in parts])


# Reading


_COPIED = {
    *("topic", "partition", "offset", "timestamp", "timestamp_type", "headers"),
    *("key", "key_base64", "value", "value_base64"),
    *("producer_id", "producer_epoch", "transactional", "control", "aborted"),
}
"""What `to_json` prints. Anything else is a document that was not meant to be a record, or a slip of the pen: to pass
over it would be to write null.
"""


def parse_json(text: bytes) -> object:
    """What the text says. Raises BadInput."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"not JSON: {error}") from None
    except ValueError:  # Python's limit
        raise BadInput("a number has more digits than can be read") from None
    except RecursionError:
        raise BadInput("the JSON is nested too deeply") from None


def from_json(document: object, *, now_ms: int) -> OutgoingRecord:
    """A record from an object like those `to_json` prints; of these, what writing does not need is ignored. Raises
    BadInput.
    """
    if not isinstance(document, dict):
        raise BadInput("a record is a JSON object")
    for name in document:
        if name not in _COPIED:
            raise BadInput(
                f'a record has no field {name!r}, but "key", "value", "headers", "timestamp"; to write a JSON'
                " document as it is: --input lines (one a line) or --input raw"
            )
    headers = document.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(header, dict) for header in headers):
        raise BadInput('headers are a list of {"key": …, "value": …}')
    partition = document.get("partition")
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise BadInput("partition is a number")
    named = tuple((_header_name(header), _bytes_of(header, "value")) for header in headers)
    timestamp = _timestamp(document.get("timestamp"), now_ms)
    return OutgoingRecord((_bytes_of(document, "key"), _bytes_of(document, "value"), named, timestamp), partition)


def _header_name(header: dict[str, Any]) -> str:
    name = header.get("key")
    if not isinstance(name, str):
        raise BadInput("a header's key is text")
    _utf8(name, "a header's key")
    return name


def _bytes_of(document: dict[str, Any], name: str) -> bytes | None:
    encoded = document.get(f"{name}_base64")
    value = document.get(name)
    if encoded is not None and value is not None:
        raise BadInput(f"a record has {name} or {name}_base64, not both")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadInput(f"{name}_base64 is not base64") from None
    if value is None:
        return None
    # Anything but text is taken as the JSON it is: {"value": {"a": 1}} writes {"a":1}.
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _utf8(text, name)


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{name} has half of a surrogate pair, which is no text") from None


def _timestamp(value: object, now_ms: int) -> int:
    if value is None:
        return now_ms
    try:
        return parse_moment(str(value))
    except ValueError:
        raise BadInput(f"{value!r} is not a time") from None
