"""kio, an independent codec, as the judge of ours: our messages as its entities and back.

kio has a class for every version and Python types of its own (timedelta, datetime, UUID). Its names of
fields are ours, without the `_ms` of durations and times.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
import uuid
from typing import Any

from kio.index import load_entity_schema, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from service.wire import messages
from service.wire.base import Struct
from service.wire.layout import Field, Layout, layout_of
from service.wire.messages.schemas import MESSAGES
from tests.service.wire.making import is_own

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)


def kio_class(name: str, version: int) -> Any:
    kind, key, *_ = MESSAGES[name]
    if kind == "request":
        assert key is not None
        return load_request_schema(key, version)
    if kind == "response":
        assert key is not None
        return load_response_schema(key, version)
    return load_entity_schema(snake_case(name), version, EntityType.data)


def snake_case(name: str) -> str:
    return "".join("_" + each.lower() if each.isupper() else each for each in name).lstrip("_")


def kio_bytes(message: Struct, version: int) -> bytes:
    """`message` as kio writes it."""
    name = type(message).__name__
    schema = kio_class(name, version)
    out = io.BytesIO()
    entity_writer(schema)(out, to_kio(message, schema, version))
    return out.getvalue()


def kio_message(name: str, version: int, data: bytes) -> Struct:
    """What kio reads from `data`; all of it must be read."""
    schema = kio_class(name, version)
    entity, size = entity_reader(schema)(data, 0)
    assert size == len(data), f"kio read {size} of {len(data)} bytes"
    return from_kio(entity, name, version)


def paired(schema: Any, layout: Layout) -> list[tuple[Field, Any]]:
    """Our fields and kio's, by name. Both must have the same, but for our own."""
    theirs = {each.name: each for each in dataclasses.fields(schema)}
    pairs = []
    for ours in (*layout.plain, *(each for each in layout.tagged if not is_own(each))):
        name = ours.name if ours.name in theirs else ours.name.removesuffix("_ms")
        pairs.append((ours, theirs.pop(name)))
    assert not theirs, f"fields of kio's that we don't have: {theirs}"
    return pairs


def nested_class(schema: Any, field_name: str) -> Any:
    """The entity class inside a field's type, through tuples and unions."""

    def find(hint: Any) -> Any:
        if dataclasses.is_dataclass(hint):
            return hint
        return next((found for each in typing.get_args(hint) if (found := find(each))), None)

    return find(typing.get_type_hints(schema)[field_name])


def to_kio(message: Struct, schema: Any, version: int) -> Any:
    layout = layout_of(type(message).__name__, version)
    values: dict[str, Any] = {}
    for ours, theirs in paired(schema, layout):
        value = getattr(message, ours.name)
        if ours.tag is not None and value is None and ours.is_struct and not ours.nullable:
            continue  # kio's default
        nested = nested_class(schema, theirs.name) if ours.is_struct else None
        values[theirs.name] = value_to_kio(value, ours, theirs.metadata.get("kafka_type"), nested, version)
    return schema(**values)


def value_to_kio(value: Any, field: Field, kafka_type: str | None, nested: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(value, list) and field.is_array:
        return tuple(
            value_to_kio(each, dataclasses.replace(field, is_array=False), kafka_type, nested, version)
            for each in value
        )
    if nested is not None:
        return to_kio(value, nested, version)
    match kafka_type:
        case "error_code":
            return KioErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return value * MILLISECOND
        case "datetime_i64":
            return None if value == -1 else EPOCH + value * MILLISECOND
        case "uuid":
            return None if value == bytes(16) else uuid.UUID(bytes=value)
        case "records" | "bytes":
            return bytes(value)
    return value


def from_kio(entity: Any, name: str, version: int) -> Struct:
    layout = layout_of(name, version)
    message: Struct = getattr(messages, name)()
    for ours, theirs in paired(type(entity), layout):
        value = value_from_kio(getattr(entity, theirs.name), ours, theirs.metadata.get("kafka_type"), version)
        if ours.tag is not None and ours.is_struct and not ours.is_array and value == getattr(messages, ours.type)():
            value = None  # ours says so when it was not sent
        setattr(message, ours.name, value)
    return message


def value_from_kio(value: Any, field: Field, kafka_type: str | None, version: int) -> Any:
    if isinstance(value, tuple):
        return [value_from_kio(each, field, kafka_type, version) for each in value]
    if dataclasses.is_dataclass(value):
        return from_kio(value, field.type, version)
    match kafka_type:
        case "error_code":
            return int(value)
        case "timedelta_i32" | "timedelta_i64":
            return value // MILLISECOND
        case "datetime_i64":
            return -1 if value is None else (value - EPOCH) // MILLISECOND
        case "uuid":
            return bytes(16) if value is None else value.bytes
    return value
