"""Record batches as they were fetched, to Arrow: column by column, never a Python object per record.

The way of a fetched chunk: `whole_batches` cuts it and verifies checksums; `visible` leaves out markers and what was
aborted; `Decoder.record_batches` takes batches together until they hold enough rows, decompresses them and finds each
field of all records at once. Where a record begins is told only by the length of the one before; where records are not
all of one size (`_starts_of_equals`), this chain is walked from many places at a time (`_starts_in_lanes`). Key and
value bytes are copied once, by Arrow's `take`.

What always holds: what is yielded is in order, within [start, end), and checked: a record that doesn't end where the
next begins is reported as corrupt, never guessed.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from spark_sink.errors import CorruptBatch

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HEADER = struct.Struct(">qiibIhiqqqhii")
BEFORE_LENGTH_ENDS = 12  # the base offset and the length itself are not counted in the length
BEFORE_CHECKSUMMED = 21  # what a broker stamps in place stands before the checksum, and is not part of it
CODEC, APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
MARKER_KEY = struct.Struct(">hh")
ABORT_MARKER = 0
XERIAL = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES = 16

HEADER_ITEM = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER_ITEM))
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)

# Rows of an Arrow batch: enough that what a batch costs vanishes, few enough that its columns stay in the CPU's cache.
ROWS = 32_768
# Decompressed bytes held at a time, unless a single record batch has more.
MOST_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """What the header of a stored batch says, and where its records are in the chunk it came in."""

    first_offset: int
    last_offset: int
    attributes: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    count: int
    begin: int
    end: int


def whole_batches(chunk: bytes) -> Iterator[Batch]:
    """The batches that are in the chunk entirely; the broker cuts the last one off where the answer is full."""
    view = memoryview(chunk)
    at = 0
    while at + HEADER.size <= len(view):
        header = HEADER.unpack_from(view, at)
        first, size, _, magic, crc, attributes, last_delta, first_timestamp, max_timestamp, producer, _, _, count = (
            header
        )
        if magic != 2:
            raise CorruptBatch(f"the batch at offset {first} has format {magic}; only 2 (Kafka 0.11 and later) is read")
        end = at + BEFORE_LENGTH_ENDS + size
        if end > len(view):
            return
        if end < at + HEADER.size or crc32c(view[at + BEFORE_CHECKSUMMED : end]) != crc:
            raise CorruptBatch(f"the batch at offset {first} does not have the checksum it says")
        begin = at + HEADER.size
        yield Batch(first, first + last_delta, attributes, first_timestamp, max_timestamp, producer, count, begin, end)
        at = end


def visible(batches: Iterable[Batch], chunk: bytes, aborted: Sequence[tuple[int, int]] = ()) -> Iterator[Batch]:
    """Leave out markers, and batches of transactions that were aborted.

    `aborted` is what the broker answered along with the chunk: producer id and first offset of each aborted transaction
    that reaches into it. A transaction ends at its producer's next abort marker.
    """
    coming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    for batch in batches:
        while coming and coming[-1][1] <= batch.last_offset:
            aborting.add(coming.pop()[0])
        if batch.attributes & CONTROL:
            if batch.producer_id in aborting and batch.count and _marker_type(chunk, batch) == ABORT_MARKER:
                aborting.discard(batch.producer_id)
        elif batch.count and not (batch.attributes & TRANSACTIONAL and batch.producer_id in aborting):
            yield batch


def _marker_type(chunk: bytes, batch: Batch) -> int:
    """A marker's key is a version and a type. What stands before it differs in size: a cleaner writes the time until
    which the marker is kept in place of its own, and then the record's time is far from it.
    """
    records = decompressed(batch, memoryview(chunk)[batch.begin : batch.end])
    try:
        _, at = _unsigned(records, 0)
        _, at = _unsigned(records, at + 1)  # the attributes
        _, at = _unsigned(records, at)
        key_length, at = _unsigned(records, at)
        (_, kind) = MARKER_KEY.unpack_from(records, at)
    except (IndexError, struct.error) as error:
        raise CorruptBatch(f"the marker at offset {batch.first_offset} is cut short") from error
    if key_length & 1 or key_length >> 1 < MARKER_KEY.size:
        raise CorruptBatch(f"the marker at offset {batch.first_offset} does not say what it is")
    return int(kind)


class Decoder:
    """Decodes what is fetched of one partition."""

    def __init__(self, topic: str, partition: int, *, headers: bool = False, rows: int = ROWS) -> None:
        self._with_headers = headers
        self._rows = rows
        self.schema = SCHEMA.append(pa.field("headers", HEADERS)) if headers else SCHEMA
        # What is the same in all rows is made once and handed out in slices.
        first_of_one = pa.array(np.zeros(rows, np.int32))
        self._topic = pa.DictionaryArray.from_arrays(first_of_one, pa.array([topic])).dictionary_decode()
        self._partition = pa.array(np.full(rows, partition, np.int32))
        self._created, self._appended = first_of_one, pa.array(np.ones(rows, np.int32))

    def record_batches(
        self, chunk: bytes, batches: Iterable[Batch], *, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """The records of `batches`, which lie in `chunk`, from offset `start` to before offset `end`."""
        group: list[Batch] = []
        records: list[memoryview] = []
        rows = size_bytes = 0
        view = memoryview(chunk)
        for batch in batches:
            if batch.last_offset < start or batch.first_offset >= end:
                continue
            plain = decompressed(batch, view[batch.begin : batch.end])
            full = rows + batch.count > self._rows or size_bytes + len(plain) > MOST_BYTES
            if group and (full or (group[0].attributes ^ batch.attributes) & APPEND_TIME):
                yield from self._decode(chunk, group, records, start, end)
                group, records, rows, size_bytes = [], [], 0, 0
            group.append(batch)
            records.append(plain)
            rows += batch.count
            size_bytes += len(plain)
        if group:
            yield from self._decode(chunk, group, records, start, end)

    def _decode(
        self, chunk: bytes, group: list[Batch], records: list[memoryview], start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        try:
            columns = self._columns(chunk, group, records, start, end)
        except (IndexError, CorruptBatch) as error:
            offsets = f"{group[0].first_offset} to {group[-1].last_offset}"
            raise CorruptBatch(f"the batches at offsets {offsets} hold malformed records: {error}") from error
        appended = group[0].attributes & APPEND_TIME
        for first in range(0, len(columns["offset"]), self._rows):
            part = {name: column.slice(first, self._rows) for name, column in columns.items()}
            rows = len(part["offset"])
            part["topic"] = self._topic.slice(0, rows)
            part["partition"] = self._partition.slice(0, rows)
            part["timestampType"] = (self._appended if appended else self._created).slice(0, rows)
            yield pa.RecordBatch.from_arrays([part[name] for name in self.schema.names], schema=self.schema)

    def _columns(
        self, chunk: bytes, group: list[Batch], records: list[memoryview], start: int, end: int
    ) -> dict[str, pa.Array]:
        """What differs from row to row."""
        if any(batch.attributes & CODEC for batch in group):
            data = b"".join(records)
            ends = np.cumsum([len(part) for part in records])
            begins = ends - [len(part) for part in records]
        else:
            data = chunk
            begins, ends = np.array([batch.begin for batch in group]), np.array([batch.end for batch in group])
        counts = np.array([batch.count for batch in group])
        buffer = np.frombuffer(data, np.uint8)

        starts = _starts(data, begins, ends, counts)
        length, at = _varints(buffer, starts)
        record_end = at + length
        timestamp_delta, at = _varints(buffer, at + 1)  # a byte of attributes that no version uses
        offset_delta, at = _varints(buffer, at)
        key_length, key_begin = _varints(buffer, at)
        value_length, value_begin = _varints(buffer, _end(key_begin, key_length, len(data)))
        header_count, headers_begin = _varints(buffer, _end(value_begin, value_length, len(data)))
        has_none = header_count == 0
        if not np.array_equal(headers_begin[has_none], record_end[has_none]) or (headers_begin > record_end).any():
            raise CorruptBatch("a record does not have the length it says")
        if header_count.min() < 0 or header_count.max() > len(data):
            raise CorruptBatch("a number of headers is impossible")

        offset = offset_delta + np.repeat([batch.first_offset for batch in group], counts)
        if (np.diff(offset) <= 0).any():
            raise CorruptBatch("the offsets do not ascend")
        if group[0].attributes & APPEND_TIME:
            timestamp = np.repeat([batch.max_timestamp for batch in group], counts)
        else:
            timestamp = timestamp_delta + np.repeat([batch.first_timestamp for batch in group], counts)
        wanted = slice(*np.searchsorted(offset, (start, end)))
        source = pa.py_buffer(data)
        columns = {
            "key": _slices(pa.binary(), source, key_begin[wanted], key_length[wanted]),
            "value": _slices(pa.binary(), source, value_begin[wanted], value_length[wanted]),
            "offset": _numbers(pa.int64(), offset[wanted]),
            "timestamp": _numbers(SCHEMA.field("timestamp").type, timestamp[wanted] * 1000),
        }
        if self._with_headers:
            columns["headers"] = _headers(
                buffer, source, headers_begin[wanted], header_count[wanted], record_end[wanted]
            )
        return columns


def decompressed(batch: Batch, records: memoryview) -> memoryview:
    """The records of a batch, one after the other."""
    try:
        return _decompress(batch.attributes & CODEC, records)
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise CorruptBatch(f"the batch at offset {batch.first_offset} can't be decompressed: {error}") from error


def _decompress(codec: int, records: memoryview) -> memoryview:
    match codec:
        case 0:
            return records
        case 1:
            return memoryview(gzip.decompress(records))
        case 2:
            return memoryview(_snappy(records))
        case 3:
            return memoryview(pa.CompressedInputStream(pa.BufferReader(records), "lz4").read())
        case 4:
            return memoryview(pa.CompressedInputStream(pa.BufferReader(records), "zstd").read())
    raise ValueError(f"there is no codec {codec}")


def _snappy(records: memoryview) -> bytes:
    """Java clients cut the data into blocks, each with its length, behind a header; others write one plain block."""
    if records[: len(XERIAL)] != XERIAL:
        return _snappy_block(records)
    blocks = []
    at = XERIAL_HEADER_BYTES
    while at < len(records):
        (size,) = struct.unpack_from(">i", records, at)
        blocks.append(_snappy_block(records[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(blocks)


def _snappy_block(block: memoryview) -> bytes:
    """A block begins with its decompressed size, as a varint."""
    size, _ = _unsigned(block, 0)
    plain: bytes = pa.decompress(block, size, codec="snappy", asbytes=True)
    return plain


def _unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The varint that stands there, without a sign, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


# By the two bytes where a varint begins (little-endian): its number, if it takes no more of them; and the size of a
# record whose length it is, with the varint. A length that no record here can have leads away, over any
# end: one that is negative, too small, or takes more than two bytes (8 KiB and more).
ASTRAY = 1 << 40
SMALLEST_RECORD_BYTES = 7


def _by_two_bytes() -> tuple[Ints, Ints]:
    high, low = np.divmod(np.arange(1 << 16), 256)
    zigzag = np.where(low < 0x80, low, low & 0x7F | high << 7)
    number = (zigzag >> 1) ^ -(zigzag & 1)
    size = np.where(low < 0x80, 1, 2) + number
    impossible = (size < SMALLEST_RECORD_BYTES) | (low >= 0x80) & (high >= 0x80)
    return number, np.where(impossible, ASTRAY, size)


NUMBERS, SIZES = _by_two_bytes()
LONGER_FROM = (1 << 6, 1 << 13, 1 << 20)  # numbers that take one byte more
LANE_RECORDS = 64
FEWEST_LANES = 32  # below, walking them one by one is as fast
MOST_STEPS = 8 * LANE_RECORDS
STEPS_BETWEEN_LOOKS = 8
HOPS = 3
TRIES = 3


def _starts(data: bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints:
    """Where each record begins, of batches whose records fill [begin, end) each."""
    if (counts < 1).any() or (counts * SMALLEST_RECORD_BYTES > ends - begins).any():
        raise CorruptBatch("a batch can't hold the number of records it says")
    starts = _starts_of_equals(data, begins, ends, counts)
    if starts is None:
        starts = _starts_in_lanes(data, begins, ends, counts)
    if starts is None:
        walks = [_walk(data, int(begin), int(end)) for begin, end in zip(begins, ends, strict=True)]
        starts = np.concatenate([np.array(walk, np.int64) for walk in walks])
    if not np.array_equal(np.diff(np.searchsorted(starts, begins), append=len(starts)), counts):
        raise CorruptBatch("a batch does not have the number of records it says")
    return starts


def _starts_of_equals(data: bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints | None:
    """Records of one size differ by the bytes of their number alone. If that fills each batch to its end, and every
    record has the length that brings it to the next one, the guess was right. None: they are not so.
    """
    pairs = _pairs(data)
    first = SIZES.take(pairs[begins])
    if not np.array_equal(begins + _size_of_equals(first, counts), ends):
        return None
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts: Ints = np.repeat(begins, counts) + _size_of_equals(np.repeat(first, counts), number)
    sizes = np.diff(starts, append=ends[-1:])
    last = np.cumsum(counts) - 1
    sizes[last] = ends - starts[last]
    return starts if np.array_equal(SIZES.take(pairs[starts]), sizes) else None


def _size_of_equals(size: Ints, count: Ints) -> Ints:
    """Of the first so many records of a batch, whose first one has this size."""
    found = size * count
    for number in LONGER_FROM:
        found += np.maximum(count - number, 0)
    return found


def _walk(data: bytes, begin: int, end: int) -> list[int]:
    """One record after the other."""
    starts: list[int] = []
    found = starts.append
    at = begin
    while at < end:
        found(at)
        low = data[at]
        if low < 0x80:
            at += 1 + (low >> 1)
        elif (high := data[at + 1]) < 0x80:
            at += 2 + ((low & 0x7F | high << 7) >> 1)
        else:
            length, at = _unsigned(data, at)
            at += length >> 1
    if at != end:
        raise CorruptBatch("the last record reaches over the end")
    return starts


def _starts_in_lanes(data: bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints | None:
    """Walk from many places at a time: the beginnings of the batches, and further places inside large ones that look
    like a record's beginning.

    If each walk arrives exactly where the next one set out, all the guesses were right, for the first place of each
    batch is no guess. Those that nobody arrived at are left out and it is tried again. None: not worth it.
    """
    total, size_bytes = int(counts.sum()), int((ends - begins).sum())
    if total < FEWEST_LANES * LANE_RECORDS:
        return None
    buffer = np.frombuffer(data, np.uint8)
    pairs = _pairs(data)
    lane_bytes = size_bytes * LANE_RECORDS // total
    guessed = [
        np.arange(begin + lane_bytes, end - lane_bytes, lane_bytes) for begin, end in zip(begins, ends, strict=True)
    ]
    lanes = np.union1d(begins, _look_like_starts(data, buffer, pairs, np.concatenate(guessed), 2 * size_bytes // total))
    for _ in range(TRIES):
        if len(lanes) < FEWEST_LANES:
            return None
        until = np.minimum(np.append(lanes[1:], len(data)), ends[np.searchsorted(begins, lanes, side="right") - 1])
        visited = _walk_together(pairs, lanes, until)
        arrived = (visited == until[:, None]).any(axis=1)
        if arrived.all():
            starts: Ints = visited[visited < until[:, None]]
            return starts
        lanes = np.union1d(begins, lanes[1:][arrived[:-1]])
    return None


def _pairs(data: bytes) -> npt.NDArray[np.uint16]:
    """Every two neighbouring bytes."""
    return np.ndarray(len(data) - 1, "<u2", data, strides=(1,))


def _walk_together(pairs: npt.NDArray[np.uint16], lanes: Ints, until: Ints) -> Ints:
    """A row of places for each lane. A lane goes on until the last one is through."""
    at, last = lanes, len(pairs) - 1
    steps = [at]
    while len(steps) < MOST_STEPS and (at < until).any():
        for _ in range(STEPS_BETWEEN_LOOKS):
            at = at + SIZES.take(pairs[np.minimum(at, last)])
            steps.append(at)
    return np.stack(steps, axis=1)


def _look_like_starts(data: bytes, buffer: Bytes, pairs: npt.NDArray[np.uint16], near: Ints, window: int) -> Ints:
    """For each of these places the first one from there on where a record seems to begin: it has a possible length and
    its attributes are 0, and so it is with the next records from there."""
    windows = np.ndarray((len(data) - window - 1, window + 2), np.uint8, data, strides=(1, 1))[near]
    low, high, third = windows[:, :-2], windows[:, 1:-1], windows[:, 2:]
    row, column = np.nonzero(np.where(low < 0x80, high, third) == 0)
    place = near[row] + column
    possible = np.ones(len(place), np.bool_)
    at = place
    for _ in range(HOPS):
        pair = pairs[at]
        attributes = buffer.take(at + 1 + (pair & 0x80 != 0), mode="clip")
        size = SIZES[pair]
        possible &= (size != ASTRAY) & (attributes == 0)
        at = np.minimum(at + size, len(pairs) - 1)
    _, first = np.unique(row[possible], return_index=True)
    found: Ints = place[possible][first]
    return found


def _varints(buffer: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The signed varints that stand at these places, and where each ends."""
    low = buffer.take(at)
    if low.max(initial=0) < 0x80:
        return NUMBERS.take(low), at + 1
    high = buffer.take(at + 1, mode="clip")  # there is none behind a number of one byte that is the last
    if (low & high).max() < 0x80:
        return NUMBERS.take(low | high.astype(np.uint16) << 8), at + 1 + (low >> 7)
    return _long_varints(buffer, at)


def _long_varints(buffer: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Whatever their lengths are."""
    byte = buffer.take(at)
    value = (byte & 0x7F).astype(np.int64)
    at = at + 1
    longer = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(longer):
        if shift > 63:
            raise CorruptBatch("a number takes more than ten bytes")
        # Mostly all numbers of a column are equally long, and need no picking.
        chosen = slice(None) if len(longer) == len(at) else longer
        byte = buffer.take(at[chosen])
        value[chosen] |= (byte & 0x7F).astype(np.int64) << shift
        at[chosen] += 1
        more = np.flatnonzero(byte & 0x80)
        longer = longer if len(more) == len(longer) else longer[more]
        shift += 7
    # The topmost bit is the 64th: shifting to the right must not spread it.
    return (value >> 1 & 0x7FFF_FFFF_FFFF_FFFF) ^ -(value & 1), at


def _end(begin: Ints, length: Ints, limit: int) -> Ints:
    """Where the bytes of this length end; -1 stands for null."""
    if length.min(initial=0) < -1 or length.max(initial=0) > limit:
        raise CorruptBatch("a length is impossible")
    return begin + np.maximum(length, 0)


def _numbers(type_: pa.DataType, values: Ints) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _slices(type_: pa.DataType, source: pa.Buffer, begin: Ints, length: Ints) -> pa.Array:
    """The bytes of `source` at these places; a negative length is a null.

    Seen as one array of alternately a wanted and an unwanted slice, `source` need not be copied to be an Arrow array;
    picking the wanted ones is the only copy.
    """
    null = length < 0
    if null.all():
        return pa.nulls(len(begin), type_)
    edges = np.empty(2 * len(begin) + 1, np.int32)
    edges[:-1:2] = begin
    edges[1::2] = begin + np.maximum(length, 0)
    edges[-1] = edges[-2]
    slices = pa.Array.from_buffers(type_, 2 * len(begin), [None, pa.py_buffer(edges), source])
    return slices.take(pa.array(np.arange(0, 2 * len(begin), 2), mask=null if null.any() else None))


def _headers(buffer: Bytes, source: pa.Buffer, at: Ints, counts: Ints, record_end: Ints) -> pa.Array:
    """The headers of each record; null where there are none, as Spark's own source has it."""
    first = np.cumsum(counts) - counts
    key_begin, key_length, value_begin, value_length = np.empty((4, int(counts.sum())), np.int64)
    at = at.copy()
    for number in range(counts.max(initial=0)):
        has = np.flatnonzero(counts > number)
        slot = first[has] + number
        key_length[slot], key_begin[slot] = _varints(buffer, at[has])
        key_end = _end(key_begin[slot], key_length[slot], len(buffer))
        value_length[slot], value_begin[slot] = _varints(buffer, key_end)
        at[has] = _end(value_begin[slot], value_length[slot], len(buffer))
    if not np.array_equal(at, record_end) or key_length.min(initial=0) < 0:
        raise CorruptBatch("a record's headers do not end where the record does")
    keys = _slices(pa.string(), source, key_begin, key_length)
    values = _slices(pa.binary(), source, value_begin, value_length)
    items = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_ITEM))
    offsets = np.append(first, len(keys)).astype(np.int32)
    present = np.packbits(counts > 0, bitorder="little")
    return pa.Array.from_buffers(HEADERS, len(counts), [pa.py_buffer(present), pa.py_buffer(offsets)], children=[items])
