"""Answers as plain data that two brokers can be compared by: what is chance is replaced by a name, what is fixed stays.

Fields that hold their default are left out. Ids are numbered in the order in which a conversation meets them, so that
the same id stands for the same thing on both sides and a mix-up shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from log.batch import BatchHeader, CorruptBatch, checksum_ok, read_header
from service.wire.base import Struct, fresh_default

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

CLOCKS = frozenset(
    {"log_append_time_ms", "transaction_start_time_ms", "last_timestamp", "start_timestamp", "finalized_features_epoch"}
)
SIZES = frozenset({"total_bytes", "usable_bytes"})
TEXTS = frozenset({"error_message", "documentation", "batch_index_error_message"})
COUNTED = frozenset({"producer_id", "ongoing_txn_producer_id", "session_id"})
FOLDERS = frozenset({"log_dir"})
ASSIGNED_NAMES = frozenset({"member_id", "leader", "cluster_id", "consumer_id"})
GENERATED = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![\w-])[A-Za-z0-9_-]{22}(?![\w-])"
)


class Names:
    """Stand-ins for what a broker made up, numbered by first appearance within one conversation."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._known: dict[tuple[str, object], str] = {}
        self._counts: dict[str, int] = {}

    def know(self, kind: str, original: object, name: str) -> None:
        """Give an id the name of what it belongs to."""
        self._known[kind, original] = name

    def name(self, kind: str, original: object) -> str:
        found = self._known.get((kind, original))
        if found is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            found = self._known[kind, original] = f"<{kind} {self._counts[kind]}>"
        return found


def plain(message: Struct, names: Names) -> dict[str, Plain]:
    """A message without what is chance."""
    cls = type(message)
    found: dict[str, Plain] = {}
    for name in cls.field_names:
        value = getattr(message, name)
        if value != fresh_default(cls, name) and name != "throttle_time_ms":
            found[name] = _plain_value(name, value, names)
    return found


def _plain_value(name: str, value: Any, names: Names) -> Plain:
    match value:
        case Struct():
            return plain(value, names)
        case list():
            return [_plain_value(name, each, names) for each in value]
        case bytes() | memoryview():
            return _plain_bytes(name, bytes(value), names)
        case str():
            return _plain_text(name, value, names)
        case int() if name in CLOCKS:
            return "<clock>"
        case int() if name in SIZES:
            return "<size>"
        case int() if name in COUNTED:
            return names.name(name, value)
        case int() if name == "port" and value == names.port:
            return "<port>"
    assert value is None or isinstance(value, (bool, int, float))
    return value


def _plain_text(name: str, value: str, names: Names) -> str:
    if name in TEXTS:
        return "<text>"
    if name in FOLDERS:
        return "<folder>"
    if name in ASSIGNED_NAMES:
        kind = "cluster" if name == "cluster_id" else "member"
        return GENERATED.sub(lambda found: names.name(kind, found.group()), value)
    return value


def _plain_bytes(name: str, value: bytes, names: Names) -> Plain:
    if name == "records":
        return list(plain_batches(value))
    if len(value) == 16 and name.endswith(("_id", "_ids", "_topics")):
        return names.name("id", value)
    return value.hex()


def plain_batches(records: bytes) -> list[Plain]:
    """The whole batches in `records`; a last one that a broker cut short at a limit is left out."""
    found: list[Plain] = []
    at = 0
    while at + 12 <= len(records):
        size = 12 + int.from_bytes(records[at + 8 : at + 12], "big")
        if at + size > len(records):
            break
        found.append(_plain_batch(records[at : at + size]))
        at += size
    return found


def _plain_batch(batch: bytes) -> Plain:
    try:
        header = read_header(batch)
    except CorruptBatch:
        return f"corrupt: {batch.hex()}"
    facts: dict[str, Plain] = {
        "first_offset": header.base_offset,
        "last_offset": header.base_offset + header.last_offset_delta,
        "leader_epoch": header.leader_epoch,
        "attributes": header.attributes,
        "crc": "right" if checksum_ok(batch, header) else "wrong",
        "records": header.record_count,
        "max_timestamp": "<clock>" if _clock_is_the_brokers(header) else header.max_timestamp,
    }
    if header.producer_id >= 0:
        facts |= {"producer_epoch": header.producer_epoch, "base_sequence": header.base_sequence}
    return facts


def _clock_is_the_brokers(header: BatchHeader) -> bool:
    return bool(header.attributes & 0x28)  # LogAppendTime, or a control batch


def sorted_by(rows: Plain, *keys: str) -> Plain:
    """Rows whose order a broker leaves open, in one order."""
    assert isinstance(rows, list)

    def place(row: Plain) -> list[str]:
        assert isinstance(row, Mapping)
        return [str(row.get(key)) for key in keys]

    return sorted(rows, key=place)
