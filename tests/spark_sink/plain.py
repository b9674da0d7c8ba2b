"""Record batches in plain Python, one record after the other: the slow twin of `spark_sink.decode`, and a writer.

Checked against real clients where both are; slow, and short enough to be believed.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import cramjam
import lz4.frame
import zstandard
from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
COMMIT, ABORT = 1, 0
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Record:
    """What a reader gets to see of a record."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True)
class StoredBatch:
    """A whole batch: how it is written and what it says."""

    first_offset: int
    records: tuple[Record, ...]
    last_offset: int
    codec: int = NONE
    xerial: bool = False
    append_time: bool = False
    transactional: bool = False
    producer_id: int = -1
    marker: int | None = None
    first_timestamp: int = 0
    max_timestamp: int = 0
    horizon: bool = False  # the first timestamp is none: a cleaner has written in its place how long to keep deletions


def varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def write_record(batch: StoredBatch, record: Record) -> bytes:
    body = b"\0" + varint(record.timestamp - batch.first_timestamp) + varint(record.offset - batch.first_offset)
    body += sized(record.key) + sized(record.value) + varint(len(record.headers))
    for name, value in record.headers:
        body += sized(name.encode()) + sized(value)
    return sized(body)


def write_batch(batch: StoredBatch) -> bytes:
    plain = b"".join(write_record(batch, record) for record in batch.records)
    return frame(batch, compress(plain, batch.codec, xerial=batch.xerial), count=len(batch.records))


def frame(batch: StoredBatch, stored: bytes, *, count: int) -> bytes:
    """The header around records as they are stored, with the right checksum."""
    control = batch.marker is not None
    attributes = batch.codec | batch.append_time << 3 | batch.transactional << 4 | control << 5 | batch.horizon << 6
    last_delta = batch.last_offset - batch.first_offset
    summed = struct.pack(
        ">hiqqqhii", attributes, last_delta, batch.first_timestamp, batch.max_timestamp, batch.producer_id, 0, 0, count
    )
    summed += stored
    return struct.pack(">qiibI", batch.first_offset, len(summed) + 9, 0, 2, crc32c(summed)) + summed


def marker(offset: int, producer_id: int, kind: int) -> StoredBatch:
    record = Record(offset, 0, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return StoredBatch(offset, (record,), offset, transactional=True, producer_id=producer_id, marker=kind)


def compress(plain: bytes, codec: int, *, xerial: bool = False) -> bytes:
    if codec == GZIP:
        return gzip.compress(plain)
    if codec == LZ4:
        return bytes(lz4.frame.compress(plain))
    if codec == ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    if codec == SNAPPY and xerial:
        blocks = [bytes(cramjam.snappy.compress_raw(plain[at : at + 1000])) for at in range(0, len(plain), 1000)]
        return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(plain))
    return plain


def decompress(stored: bytes, codec: int) -> bytes:
    if codec == GZIP:
        return gzip.decompress(stored)
    if codec == LZ4:
        return bytes(lz4.frame.decompress(stored))
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress(stored)
    if codec == SNAPPY and stored.startswith(b"\x82SNAPPY\x00"):
        out, at = b"", 16
        while at < len(stored):
            (size,) = struct.unpack_from(">i", stored, at)
            out += bytes(cramjam.snappy.decompress_raw(stored[at + 4 : at + 4 + size]))
            at += 4 + size
        return out
    if codec == SNAPPY:
        return bytes(cramjam.snappy.decompress_raw(stored))
    return stored


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        zigzag = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            zigzag |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (zigzag >> 1) ^ -(zigzag & 1)

    def sized(self) -> bytes | None:
        size = self.varint()
        if size == -1:
            return None
        if not 0 <= size <= len(self.data) - self.at:
            raise ValueError(f"a length of {size}")
        self.at += size
        return self.data[self.at - size : self.at]


def read_batches(chunk: bytes) -> list[StoredBatch]:
    """All whole batches of a chunk, markers included."""
    found = []
    at = 0
    while at + HEADER.size <= len(chunk):
        header = HEADER.unpack_from(chunk, at)
        first, size, _, magic, crc, attributes, last_delta, first_timestamp, max_timestamp, producer, _, _, count = (
            header
        )
        end = at + 12 + size
        if end > len(chunk):
            break
        if magic != 2 or crc32c(chunk[at + 21 : end]) != crc:
            raise ValueError("not a batch")
        codec = attributes & 7
        reader = _Reader(decompress(chunk[at + HEADER.size : end], codec))
        appended = bool(attributes & 8)
        records = []
        for _ in range(count):
            record_end = reader.varint()
            record_end += reader.at
            reader.at += 1
            timestamp = first_timestamp + reader.varint()
            offset = first + reader.varint()
            key, value = reader.sized(), reader.sized()
            headers = []
            for _ in range(reader.varint()):
                name = reader.sized()
                if name is None:
                    raise ValueError("a header without a name")
                headers.append((name.decode(errors="replace"), reader.sized()))
            if reader.at != record_end:
                raise ValueError("a record does not have the length it says")
            records.append(
                Record(offset, max_timestamp if appended else timestamp, int(appended), key, value, tuple(headers))
            )
        if reader.at != len(reader.data):
            raise ValueError("more bytes than records")
        control = bool(attributes & 32)
        kind = struct.unpack(">h", (records[0].key or b"")[2:4])[0] if control and records else None
        found.append(
            StoredBatch(
                first, tuple(records), first + last_delta, codec, False, appended, bool(attributes & 16), producer,
                kind, first_timestamp, max_timestamp, bool(attributes & 64),
            )
        )  # fmt: skip
        at = end
    return found


def read(chunk: bytes, *, start: int, end: int, aborted: Sequence[tuple[int, int]] = ()) -> list[Record]:
    """What a reader of committed records sees of a chunk.

    A transaction is an interval from its first offset to its producer's next marker, whatever kind; aborted are those
    intervals that begin where `aborted` says.
    """
    batches = read_batches(chunk)
    visible = []
    for batch in batches:
        if batch.marker is not None:
            continue
        hidden = False
        for producer_id, first in aborted:
            ends = [each.first_offset for each in batches if each.marker is not None
                    and each.producer_id == producer_id and each.first_offset > first]  # fmt: skip
            inside = first <= batch.last_offset and (not ends or batch.first_offset < min(ends))
            hidden |= batch.transactional and batch.producer_id == producer_id and inside
        if not hidden:
            visible += [record for record in batch.records if start <= record.offset < end]
    return visible
