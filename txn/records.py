"""The records of `__transaction_state`, to and from bytes: Kafka's TransactionLogKey and TransactionLogValue.

What always holds: Kafka's tools read what is written here, and what Kafka wrote is read here. Keys are version 0.
Values are written in version 1 and read in both; tags that nobody knows are skipped. What Kafka has no field for
stands in tags of our own, far from Kafka's:

    tag 10000  i16  last producer epoch        (with Kafka's tag 0, the pair the holder had before; absent: none)
    tag 10001  i64  sealed at, ms              (a branch)
    tag 10002  i64  decided token              (a root)
    tag 10003  text who made that decision     (a root)
    tag 10004  text who made the one before    (a root)
    tag 10005  i64  producer id                (of the last committed transaction; absent: not known)
    tag 10006  i16  epoch                      (of the last committed transaction; absent: none was committed)

A key without a value: the id is forgotten.
"""

import struct
from functools import lru_cache
from typing import Any, Final

from log.batch import unsigned_varint
from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition
from txn.states import NO_TOKEN, State, Txn

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
FEW: Final = 16
LONGEST_ID_BYTES: Final = 2**15 - 1

PREVIOUS_PRODUCER_ID, NEXT_PRODUCER_ID, CLIENT_VERSION, NEXT_PRODUCER_EPOCH = range(4)
LAST_PRODUCER_EPOCH, SEALED_MS, DECIDED_TOKEN, DECIDED_BY, DECIDED_BEFORE = range(10_000, 10_005)
COMMITTED_ID, COMMITTED_EPOCH = range(10_005, 10_007)

_KEY: Final = struct.Struct(">hh")
_HEAD: Final = struct.Struct(">hqhib")
"""value version, producer id, epoch, timeout, state"""
_TIMES: Final = struct.Struct(">qq")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_TAG_FORMATS: Final = {
    PREVIOUS_PRODUCER_ID: _I64,
    NEXT_PRODUCER_ID: _I64,
    CLIENT_VERSION: _I16,
    NEXT_PRODUCER_EPOCH: _I16,
    LAST_PRODUCER_EPOCH: _I16,
    SEALED_MS: _I64,
    DECIDED_TOKEN: _I64,
    COMMITTED_ID: _I64,
    COMMITTED_EPOCH: _I16,
}
_SHORT: Final = [bytes([value]) for value in range(128)]
_TEXT_TAGS: Final = (DECIDED_BY, DECIDED_BEFORE)


class BadRecord(ValueError):
    """Bytes that are no record of a transaction coordinator."""


# ---------------------------------------------------------------- writing


def fits_key(transactional_id: str) -> bool:
    """Whether a record can be about this id."""
    return len(transactional_id.encode("utf-8", "surrogateescape")) <= LONGEST_ID_BYTES


def write_key(transactional_id: str) -> bytes:
    encoded = transactional_id.encode("utf-8", "surrogateescape")
    return _KEY.pack(KEY_VERSION, len(encoded)) + encoded


def write_value(txn: Txn) -> bytes:
    head = _HEAD.pack(VALUE_VERSION, txn.producer_id, txn.producer_epoch, txn.timeout_ms, txn.state.value)
    # In state Empty the list of partitions is null, not empty, as Kafka writes it.
    partitions = (
        b"\x00"
        if txn.state is State.EMPTY
        else (_write_few(txn.partitions) if len(txn.partitions) <= FEW else _write_partitions(txn.partitions))
    )
    return head + partitions + _TIMES.pack(txn.updated_ms, txn.started_ms) + _write_tags(txn)


def _write_partitions(partitions: tuple[TopicPartition, ...]) -> bytes:
    """The partitions, grouped by topic."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [unsigned_varint(len(by_topic) + 1)]
    for topic, indexes in by_topic.items():
        encoded = topic.encode()
        size, count = len(encoded) + 1, len(indexes) + 1
        parts.append(_SHORT[size] if size < 128 else unsigned_varint(size))
        parts.append(encoded)
        parts.append(_SHORT[count] if count < 128 else unsigned_varint(count))
        parts.append(_I32.pack(indexes[0]) if count == 2 else struct.pack(f">{count - 1}i", *indexes))
        parts.append(b"\x00")
    return b"".join(parts)


_write_few = lru_cache(maxsize=1_024)(_write_partitions)
"""A transaction writes the same list when it begins and when it is decided. Of long lists the cache would keep hundreds
of megabytes.
"""


def _write_tags(txn: Txn) -> bytes:
    """The tags in ascending order. A field with its default value has no tag."""
    tags = []
    if txn.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_PREFIXES[PREVIOUS_PRODUCER_ID] + _I64.pack(txn.previous_producer_id))
    if txn.next_producer_id != NO_PRODUCER_ID:
        tags.append(_PREFIXES[NEXT_PRODUCER_ID] + _I64.pack(txn.next_producer_id))
    if txn.client_version != 0:
        tags.append(_PREFIXES[CLIENT_VERSION] + _I16.pack(txn.client_version))
    if txn.next_producer_epoch != NO_PRODUCER_EPOCH:
        tags.append(_PREFIXES[NEXT_PRODUCER_EPOCH] + _I16.pack(txn.next_producer_epoch))
    if txn.last_producer_epoch != NO_PRODUCER_EPOCH:
        tags.append(_PREFIXES[LAST_PRODUCER_EPOCH] + _I16.pack(txn.last_producer_epoch))
    if txn.sealed_ms != NO_TIMESTAMP:
        tags.append(_PREFIXES[SEALED_MS] + _I64.pack(txn.sealed_ms))
    if txn.decided_token != NO_TOKEN:
        tags.append(_PREFIXES[DECIDED_TOKEN] + _I64.pack(txn.decided_token))
    for tag, text in zip(_TEXT_TAGS, (txn.decided_by, txn.decided_before), strict=True):
        if text:
            encoded = text.encode("utf-8", "surrogateescape")
            tags.append(unsigned_varint(tag) + unsigned_varint(len(encoded)) + encoded)
    if txn.committed_id != NO_PRODUCER_ID:
        tags.append(_PREFIXES[COMMITTED_ID] + _I64.pack(txn.committed_id))
    if txn.committed_epoch != NO_PRODUCER_EPOCH:
        tags.append(_PREFIXES[COMMITTED_EPOCH] + _I16.pack(txn.committed_epoch))
    return bytes((len(tags),)) + b"".join(tags)


_PREFIXES: Final = {tag: unsigned_varint(tag) + unsigned_varint(form.size) for tag, form in _TAG_FORMATS.items()}
"""For each tag the bytes before its value: tag number and size."""


# ---------------------------------------------------------------- reading


def read_key(key: bytes) -> str | None:
    """The transactional id; None for a key of an unknown version, which is to be skipped."""
    try:
        version, size = _KEY.unpack_from(key)
    except struct.error as error:
        raise BadRecord("a key that is too short") from error
    if version != KEY_VERSION:
        return None
    if size < 0 or len(key) != _KEY.size + size:
        raise BadRecord("a key of the wrong length")
    return _text(key[_KEY.size :])


def read_state(value: bytes) -> State:
    """The state in a value. The rest is not decoded: the value of a large transaction is long."""
    try:
        return State(_HEAD.unpack_from(value)[-1])
    except (struct.error, ValueError) as error:
        raise BadRecord(str(error)) from error


def read_value(transactional_id: str, value: bytes) -> Txn:
    try:
        version, producer_id, producer_epoch, timeout_ms, state = _HEAD.unpack_from(value)
        if version not in (0, 1):
            raise BadRecord(f"a transaction record of version {version}")
        flexible = version == 1
        partitions, at = _read_partitions(value, _HEAD.size, flexible=flexible)
        updated_ms, started_ms = _TIMES.unpack_from(value, at)
        tags = _read_tags(value, at + _TIMES.size) if flexible else {}
        return Txn(
            transactional_id,
            producer_id,
            producer_epoch,
            State(state),
            timeout_ms,
            updated_ms,
            partitions,
            started_ms,
            tags.get(PREVIOUS_PRODUCER_ID, NO_PRODUCER_ID),
            tags.get(LAST_PRODUCER_EPOCH, NO_PRODUCER_EPOCH),
            tags.get(NEXT_PRODUCER_ID, NO_PRODUCER_ID),
            tags.get(NEXT_PRODUCER_EPOCH, NO_PRODUCER_EPOCH),
            tags.get(CLIENT_VERSION, 0),
            tags.get(SEALED_MS, NO_TIMESTAMP),
            tags.get(DECIDED_TOKEN, NO_TOKEN),
            tags.get(DECIDED_BY, ""),
            tags.get(DECIDED_BEFORE, ""),
            tags.get(COMMITTED_ID, NO_PRODUCER_ID),
            tags.get(COMMITTED_EPOCH, NO_PRODUCER_EPOCH),
        )
    except (struct.error, IndexError) as error:
        raise BadRecord("a transaction record that is cut short") from error
    except ValueError as error:
        raise BadRecord(str(error)) from error


def _read_partitions(value: bytes, at: int, *, flexible: bool) -> tuple[tuple[TopicPartition, ...], int]:
    count, at = _read_count(value, at, flexible=flexible)
    partitions: list[TopicPartition] = []
    for _ in range(count):
        topic, at = _read_string(value, at, flexible=flexible)
        size, at = _read_count(value, at, flexible=flexible)
        if size * _I32.size > len(value) - at:
            raise BadRecord(f"{size} partitions in {len(value) - at} bytes")
        partitions += (TopicPartition(topic, index) for index in struct.unpack_from(f">{size}i", value, at))
        at += size * _I32.size
        if flexible:
            at = _skip_tags(value, at)
    return tuple(partitions), at


def _read_count(value: bytes, at: int, *, flexible: bool) -> tuple[int, int]:
    """The length of an array (0 for null), and where the next byte is."""
    if not flexible:
        return max(_I32.unpack_from(value, at)[0], 0), at + _I32.size
    count, at = _read_varint(value, at)
    return max(count - 1, 0), at


def _read_string(value: bytes, at: int, *, flexible: bool) -> tuple[str, int]:
    if flexible:
        size, at = _read_varint(value, at)
        size -= 1
    else:
        size, at = _I16.unpack_from(value, at)[0], at + _I16.size
    if not 0 <= size <= len(value) - at:
        raise BadRecord(f"a name of {size} bytes, of which {len(value) - at} are there")
    return _text(value[at : at + size]), at + size


def _read_tags(value: bytes, at: int) -> dict[int, Any]:
    count, at = _read_varint(value, at)
    tags: dict[int, Any] = {}
    for _ in range(count):
        tag, at = _read_varint(value, at)
        size, at = _read_varint(value, at)
        if size > len(value) - at:
            raise BadRecord(f"a tag of {size} bytes, of which {len(value) - at} are there")
        form = _TAG_FORMATS.get(tag)
        if form is not None:
            if size != form.size:
                raise BadRecord(f"tag {tag} of {size} bytes")
            (tags[tag],) = form.unpack_from(value, at)
        elif tag in _TEXT_TAGS:
            tags[tag] = _text(value[at : at + size])
        at += size
    return tags


def _skip_tags(value: bytes, at: int) -> int:
    count, at = _read_varint(value, at)
    for _ in range(count):
        _, at = _read_varint(value, at)
        size, at = _read_varint(value, at)
        at += size
    return at


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 28:
            raise BadRecord("a number of more than five bytes")


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogateescape")
