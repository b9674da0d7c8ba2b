# Hot path: everything that Spark writes passes here. Measured by tests/spark_sink/measure_encode.py.
"""Arrow columns to Kafka record batches, a whole chunk of rows at a time: no Python per row.

A record is a few variable-length integers around its key, value and headers. The integers of all rows are computed as
columns and laid out as little strings; Arrow joins strings and bytes into one buffer that holds all records back to
back. A record batch is then a header and a slice of that buffer.

What always holds: the rows of a target keep their order; no batch is larger than its target allows; every batch takes
the next sequence numbers of its target.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from spark_sink.compress import Compressor
from spark_sink.errors import OncelogError

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_COUNTS_FROM, CHECKSUM_AT, CHECKSUM_COUNTS_FROM = 12, 17, 21
TRANSACTIONAL = 0x10
MAGIC = 2
NO_LEADER_EPOCH = -1
SEQUENCES = 1 << 31
# Data that can't be compressed may grow by a little; what is to be compressed is cut that much smaller.
COMPRESSION_SLACK = 0.99

BYTES_OF_A_WORD = 8
# For each count, a word whose first so many bytes are 1: a mask, once it is seen as booleans.
_COUNTING = (np.arange(BYTES_OF_A_WORD) < np.arange(BYTES_OF_A_WORD + 1)[:, np.newaxis]).view(np.uint64).reshape(-1)
_NO_HEADERS = pa.scalar(b"\0", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())


class RowTooLarge(OncelogError, ValueError):
    """A row that its topic doesn't take."""


@dataclass(frozen=True, slots=True)
class Target:
    """A partition that rows go to, and the largest batch it takes."""

    topic: str
    partition: int
    largest_bytes: int
    topic_id: UUID | None = None  # None: whatever has the name

    @property
    def topic_partition(self) -> tuple[str, int]:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Rows:
    """A chunk of rows as columns of equal length."""

    key: pa.BinaryArray | None
    value: pa.BinaryArray
    headers: pa.BinaryArray | None  # of each row as they stand in a record (`header_bytes`); None: no row has any
    timestamps: Longs | None  # ms since 1970; None: now
    targets: npt.NDArray[np.unsignedinteger[Any]]  # where in the list of targets each row's is

    def take(self, order: npt.NDArray[np.intp]) -> Rows:
        def picked(column: pa.BinaryArray | None) -> pa.BinaryArray | None:
            return None if column is None else column.take(pa.array(order))

        timestamps = None if self.timestamps is None else self.timestamps[order]
        return Rows(picked(self.key), picked(self.value), picked(self.headers), timestamps, self.targets[order])


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One encoded batch."""

    target: Target
    data: bytes
    count: int


class Encoder:
    """Encodes for one producer, whose sequences it counts."""

    def __init__(
        self, producer_id: int, producer_epoch: int, codec: int = 0, compress: Compressor | None = None
    ) -> None:
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._codec = codec
        self._compress = compress
        self._sequences: dict[tuple[str, int], int] = {}

    def encode(self, rows: Rows, targets: Sequence[Target], now_ms: int) -> list[RecordBatch]:
        if not len(rows.targets):
            return []
        if np.any(rows.targets[1:] < rows.targets[:-1]):
            rows = rows.take(np.argsort(rows.targets, kind="stable"))
        layout = _Layout.of(rows)
        starts = self._cut(rows, layout, targets)
        ends = np.append(starts[1:], len(rows.targets))
        records, edges = layout.records(rows, starts)
        batches = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            times = (now_ms, now_ms)
            if rows.timestamps is not None:
                times = (int(rows.timestamps[start]), int(rows.timestamps[start:end].max()))
            target = targets[rows.targets[start]]
            body, codec = self._compressed(records[edges[start] : edges[end]])
            if HEADER.size + len(body) > target.largest_bytes:
                raise layout.too_large(start, target)
            batches.append(self._batch(target, body, codec, end - start, times))
        return batches

    def _cut(self, rows: Rows, layout: _Layout, targets: Sequence[Target]) -> Longs:
        """The first row of each batch: that of a target, and wherever a batch would become too large."""
        ends_bytes = np.cumsum(layout.most_bytes())
        firsts = np.append(0, np.flatnonzero(np.diff(rows.targets)) + 1).tolist()
        starts: list[int] = []
        for first, end in zip(firsts, [*firsts[1:], len(rows.targets)], strict=True):
            target = targets[rows.targets[first]]
            room = target.largest_bytes - HEADER.size
            if self._compress is not None:
                room = int(room * COMPRESSION_SLACK)
            at = first
            while at < end:
                starts.append(at)
                before = int(ends_bytes[at - 1]) if at else 0
                fits_until = int(np.searchsorted(ends_bytes[:end], before + room, side="right"))
                if fits_until == at and self._compress is None:
                    raise layout.too_large(at, target)
                at = max(at + 1, fits_until)  # what is too large by itself may fit when it is compressed
        return np.array(starts)

    def _compressed(self, records: memoryview) -> tuple[bytes | memoryview, int]:
        if self._compress is not None:
            packed = self._compress(records)
            if len(packed) < len(records):
                return packed, self._codec
        return records, 0

    def _batch(
        self, target: Target, body: bytes | memoryview, codec: int, count: int, times: tuple[int, int]
    ) -> RecordBatch:
        sequence = self._sequences.get(target.topic_partition, 0)
        self._sequences[target.topic_partition] = (sequence + count) % SEQUENCES
        header = bytearray(HEADER.size)
        HEADER.pack_into(
            header, 0, 0, HEADER.size + len(body) - LENGTH_COUNTS_FROM, NO_LEADER_EPOCH, MAGIC, 0,
            TRANSACTIONAL | codec, count - 1, *times, self._producer_id, self._producer_epoch, sequence, count,
        )  # fmt: skip
        checksum = crc32c(body, crc32c(memoryview(header)[CHECKSUM_COUNTS_FROM:]))
        struct.pack_into(">I", header, CHECKSUM_AT, checksum)
        return RecordBatch(target, b"".join((header, body)), count)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How long the parts of each record are; -1: null."""

    key: Longs
    value: Longs
    headers: Longs
    fixed: Longs  # bytes of a record, without its length, its timestamp and its offset
    places: Longs  # where each row stands among those of its target
    times: Longs | None

    @classmethod
    def of(cls, rows: Rows) -> _Layout:
        count = len(rows.targets)
        key = np.full(count, -1) if rows.key is None else lengths(rows.key)
        value = lengths(rows.value)
        headers = np.ones(count, np.int64) if rows.headers is None else lengths(rows.headers)
        attributes = 1
        fixed = attributes + _width(_zigzag(key)) + np.maximum(key, 0) + _width(_zigzag(value)) + np.maximum(value, 0)
        firsts = np.append(0, np.flatnonzero(np.diff(rows.targets)) + 1)
        return cls(key, value, headers, fixed + headers, _since(firsts, count), rows.timestamps)

    def most_bytes(self) -> Longs:
        """What each record takes at most, wherever batches are cut."""
        offset = _width(_zigzag(self.places))
        time = 1
        if self.times is not None:
            time = int(_width(_zigzag(np.array([self.times.max() - self.times.min()])))[0])
        body = self.fixed + offset + time
        return body + _width(_zigzag(body))

    def records(self, rows: Rows, starts: Longs) -> tuple[memoryview, Longs]:
        """All records back to back, and where each begins and the last one ends."""
        count = len(self.fixed)
        since = _since(starts, count)
        offset = _varint(_zigzag(since))
        if rows.timestamps is None:
            time = (np.zeros(count, np.uint64), np.ones(count, np.int64))
        else:
            first = rows.timestamps[np.arange(count) - since]
            time = _varint(_zigzag(rows.timestamps - first))
        length = _varint(_zigzag(self.fixed + offset[1] + time[1]))
        attributes = (np.zeros(count, np.uint64), np.ones(count, np.int64))
        joined = pc.binary_join_element_wise(
            _strings(length, attributes, time, offset, _varint(_zigzag(self.key))),
            _NOTHING if rows.key is None else rows.key,
            _strings(_varint(_zigzag(self.value))),
            rows.value,
            _NO_HEADERS if rows.headers is None else rows.headers,
            _NOTHING,
            null_handling="replace",
            null_replacement="",
        )
        return memoryview(joined.buffers()[2]), offsets(joined)

    def too_large(self, row: int, target: Target) -> RowTooLarge:
        parts = {"key": self.key[row], "value": self.value[row], "headers": self.headers[row]}
        column = max(parts, key=lambda name: parts[name])
        size = int(self.most_bytes()[row]) + HEADER.size
        return RowTooLarge(
            f"a row for topic {target.topic!r} is too large: with {parts[column]} bytes in its column {column!r} it"
            f" needs a batch of {size}, and the limit is {target.largest_bytes} (the topic's max.message.bytes or the"
            " option 'kafka.max.request.size')"
        )


def header_bytes(keys: pa.BinaryArray, values: pa.BinaryArray, counts: Longs) -> pa.BinaryArray:
    """The headers of each row as they stand in a record: how many, and each one's key and value.

    `keys` and `values` are those of all rows, one after the other; `counts` tells how many each row has.
    """
    joined = pc.binary_join_element_wise(
        _strings(_varint(_zigzag(lengths(keys)))),
        keys,
        _strings(_varint(_zigzag(lengths(values)))),
        values,
        _NOTHING,
        null_handling="replace",
        null_replacement="",
    )
    edges = offsets(joined)[np.append(0, np.cumsum(counts))]
    of_rows = pa.BinaryArray.from_buffers(
        pa.binary(), len(counts), [None, pa.py_buffer(edges.astype(np.int32)), joined.buffers()[2]]
    )
    return pc.binary_join_element_wise(_strings(_varint(_zigzag(counts))), of_rows, _NOTHING)


def lengths(column: pa.BinaryArray) -> Longs:
    """The length of each element in bytes, -1 for null."""
    found = np.diff(offsets(column))
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return found


def offsets(column: pa.BinaryArray) -> Longs:
    """Where each element begins in the column's buffer, and where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    edges = np.frombuffer(column.buffers()[1], np.int32)
    return edges[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _since(starts: Longs, count: int) -> Longs:
    """How far each of `count` rows is from the last start."""
    return np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))


def _zigzag(numbers: Longs) -> Words:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _width(words: Words) -> Longs:
    """How many bytes the variable-length form of each word has."""
    widths = np.ones(len(words), np.int64)
    bound = 1 << 7
    most = int(words.max(initial=0))
    while most >= bound:
        widths += words >= np.uint64(bound)
        bound <<= 7
    return widths


def _varint(words: Words) -> tuple[Words, Longs]:
    """The variable-length form of each word, as the bytes of a little-endian word, and how many of them count.

    A word below 2^56 fits: lengths and counts do, and milliseconds of what Arrow can say in microseconds.
    """
    widths = _width(words)
    packed = words & np.uint64(0x7F)
    for number in range(1, int(widths.max(initial=1))):
        more = words >> np.uint64(7 * number)
        packed |= (more & np.uint64(0x7F)) << np.uint64(8 * number)
        packed |= (more != 0).astype(np.uint64) << np.uint64(8 * number - 1)
    return packed, widths


def _strings(*fields: tuple[Words, Longs]) -> pa.BinaryArray:
    """For each row, the counting bytes of its words, one after the other.

    Neighbours share a word as long as there is room: choosing bytes from few whole words is what makes this quick.
    """
    shared: list[tuple[Words, Longs]] = []
    room = 0
    for words, widths in fields:
        most = int(widths.max(initial=0))
        if most <= room:
            left, used = shared[-1]
            shared[-1] = (left | words << (used << 3).view(np.uint64), used + widths)
        else:
            shared.append((words, widths))
            room = BYTES_OF_A_WORD
        room -= most
    edges = np.zeros(len(words) + 1, np.int32)
    np.cumsum(sum(used for _, used in shared), out=edges[1:])
    content = np.stack([left for left, _ in shared], axis=1).astype("<u8", copy=False).view(np.uint8)
    counting = np.stack([_COUNTING[used] for _, used in shared], axis=1).view(np.bool_)
    chosen = content.reshape(-1)[counting.reshape(-1)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(words), [None, pa.py_buffer(edges), pa.py_buffer(chosen)])
