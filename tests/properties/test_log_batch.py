"""Batches against three independent writers and readers, and the fast header against a slow one.

Method: Hypothesis draws records; kafka-python and aiokafka build batches that ours must read, kio and aiokafka read
batches that ours has built. `slow_header` and `slow_records` are the plain twins of the hot path in `log.batch`.
"""

import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from log.batch import (
    HEADER,
    BatchHeader,
    CorruptBatch,
    NewRecord,
    Record,
    _read_value_and_headers,
    build_batch,
    checksum_ok,
    crc32c,
    pack_header,
    read_header,
    read_records,
    read_stored_records,
    restamp,
    split,
    with_checksum,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own imports
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

NAMES = st.text(max_size=8)
SMALL_BYTES = st.none() | st.binary(max_size=40)
TIMES = st.integers(0, 2**41)
RECORDS = st.lists(
    st.tuples(SMALL_BYTES, SMALL_BYTES, st.lists(st.tuples(NAMES, SMALL_BYTES), max_size=3).map(tuple), TIMES),
    min_size=1,
    max_size=8,
)
PRODUCER = st.tuples(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))


def plain(batch: bytes) -> list[NewRecord]:
    return [(r.key, r.value, r.headers, r.timestamp) for r in read_records(batch)]


@given(RECORDS, st.sampled_from(range(5)))
@pytest.mark.parametrize("builder", [KafkaPythonBuilder, DefaultRecordBatchBuilder])
def test_what_other_clients_build_is_read(builder: Any, records: list[NewRecord], codec: int) -> None:
    other = builder(
        magic=2,
        compression_type=codec,
        is_transactional=1,
        producer_id=77,
        producer_epoch=3,
        base_sequence=5,
        batch_size=1 << 20,
    )
    for offset, (key, value, headers, timestamp) in enumerate(records):
        assert other.append(offset, timestamp, key, value, list(headers))
    batch = bytes(other.build())
    header = read_header(batch)
    assert checksum_ok(batch, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 5)
    assert header.is_transactional
    assert header.max_timestamp == max(record[3] for record in records)
    assert plain(batch) == records


@given(RECORDS, st.sampled_from(range(5)), st.integers(0, 2**60), PRODUCER)
def test_what_we_build_is_read_by_aiokafka(
    records: list[NewRecord], codec: int, base_offset: int, producer: tuple[int, int, int]
) -> None:
    ours = build_batch(
        records,
        base_offset=base_offset,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=True,
    )
    theirs = DefaultRecordBatch(bytearray(ours))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.base_offset, theirs.is_transactional) == (producer[0], base_offset, True)
    read = [(r.offset, r.key, r.value, tuple(r.headers), r.timestamp) for r in theirs]
    assert read == [(base_offset + index, *record) for index, record in enumerate(records)]


@given(RECORDS.map(lambda records: [(*record[:3], record[3] // 1000 * 1000) for record in records]))
def test_what_we_build_is_read_by_kio(records: list[NewRecord]) -> None:
    """kio knows no codec, and no time finer than a second."""
    ours = build_batch(records, base_offset=9, leader_epoch=4)
    theirs, size = read_batch(ours, 0)
    assert size == len(ours)
    assert (theirs.base_offset, theirs.partition_leader_epoch, theirs.last_offset_delta) == (9, 4, len(records) - 1)
    for record, (key, value, headers, timestamp) in zip(theirs.records, records, strict=True):
        assert (record.key, record.value) == (key, value)
        assert round(record.timestamp.timestamp() * 1000) == timestamp
        expected = [(name.encode(), content) for name, content in headers]
        assert [(header.key, header.value) for header in record.headers] == expected


def slow_header(data: bytes) -> BatchHeader:
    """Field by field, as the format's description reads."""
    if len(data) < 61:
        raise CorruptBatch("too short")

    def number(start: int, end: int, *, signed: bool = True) -> int:
        return int.from_bytes(data[start:end], "big", signed=signed)

    header = BatchHeader(
        base_offset=number(0, 8),
        size_bytes=number(8, 12) + 12,
        leader_epoch=number(12, 16),
        magic=number(16, 17),
        crc=number(17, 21, signed=False),
        attributes=number(21, 23),
        last_offset_delta=number(23, 27),
        base_timestamp=number(27, 35),
        max_timestamp=number(35, 43),
        producer_id=number(43, 51),
        producer_epoch=number(51, 53),
        base_sequence=number(53, 57),
        record_count=number(57, 61),
    )
    if header.magic != 2 or header.size_bytes < 61:
        raise CorruptBatch("no batch of ours")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptBatch("absurd")
    return header


FIELDS = st.tuples(
    *(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.sampled_from([-1, 0, 49, 48]) for bits in (64, 32, 32)),
    st.sampled_from([2, 2, 2, 2, 0, 1, 3]),
    st.integers(0, 2**32 - 1),
    *(
        st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.sampled_from([-1, 0, 1])
        for bits in (16, 32, 64, 64, 64, 16, 32, 32)
    ),
)


@given(FIELDS, st.binary(max_size=20), st.integers(-1, 3))
def test_the_fast_header_is_the_slow_header(fields: tuple[int, ...], before: bytes, cut: int) -> None:
    data = HEADER.pack(*fields)
    data = data[: len(data) - max(cut, 0)]
    try:
        expected: BatchHeader | None = slow_header(data)
    except CorruptBatch:
        expected = None
    try:
        found: BatchHeader | None = read_header(before + data, len(before))
    except CorruptBatch:
        found = None
    assert found == expected


@given(RECORDS, st.integers(0, 2**60), st.integers(-1, 2**31 - 1), st.integers(20, 200))
def test_restamping_is_building_anew(records: list[NewRecord], offset: int, epoch: int, at: int) -> None:
    batch = bytearray(build_batch(records))
    restamp(batch, base_offset=offset, leader_epoch=epoch)
    assert bytes(batch) == build_batch(records, base_offset=offset, leader_epoch=epoch)


@given(st.binary(max_size=300))
def test_noise_is_never_anything_but_a_corrupt_batch(noise: bytes) -> None:
    for data in (noise, build_batch([(b"k", b"v", (), 0)])[:61] + noise):
        try:
            for header, batch in split(data):
                list(read_records(batch, header))
        except CorruptBatch:
            continue


@given(st.data(), RECORDS, st.sampled_from(range(5)))
def test_damaged_batches_are_read_or_refused(data: st.DataObject, records: list[NewRecord], codec: int) -> None:
    batch = bytearray(build_batch(records, codec=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(8, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        for header, view in split(batch):
            list(read_records(view, header, limit_bytes=1 << 16))
    except CorruptBatch:
        return


def as_told(records: Iterator[Record]) -> tuple[list[Record], str]:
    """What is read, and why no more is."""
    found: list[Record] = []
    try:
        found.extend(records)
    except CorruptBatch as error:
        return found, str(error)
    return found, ""


def slow_records(batch: bytes, header: BatchHeader) -> Iterator[Record]:
    for stored in read_stored_records(batch, header):
        yield Record(stored.offset, stored.timestamp, stored.key, *_read_value_and_headers(stored.tail))


@given(st.data(), RECORDS, st.booleans())
def test_records_are_read_as_the_slow_reader_reads_them(
    data: st.DataObject, records: list[NewRecord], stamped: bool
) -> None:
    """Also where bytes are damaged: the same records, the same complaint."""
    bare = [(key, value, (), timestamp) for key, value, _, timestamp in records]
    batch = bytearray(build_batch(data.draw(st.sampled_from([records, bare])), base_offset=7, log_append_time=stamped))
    for _ in range(data.draw(st.integers(0, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.sampled_from([0, 1, 2, 3, 127, 128, 129, 255]))
    header = read_header(batch)
    assert as_told(read_records(batch, header)) == as_told(slow_records(bytes(batch), header))


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, with Castagnoli's polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.binary(max_size=100))
def test_the_checksum_is_castagnolis(data: bytes) -> None:
    assert crc32c(data) == crc32c(memoryview(bytearray(data))) == slow_crc32c(data)
    assert crc32c(b"123456789") == 0xE3069283 != zlib.crc32(b"123456789")
    assert struct.calcsize(">qiibIhiqqqhii") == 61


@given(st.binary(max_size=5_000), st.integers(-(2**63), 2**63 - 1), st.integers(0, 255), PRODUCER)
def test_another_header_gets_the_checksum_that_the_batch_has_with_it(
    value: bytes, newest_ms: int, attributes: int, producer: tuple[int, int, int]
) -> None:
    batch = bytearray(build_batch([(None, value, (), 1)]))
    header = read_header(batch)
    assert with_checksum(header, header) == header
    producer_id, producer_epoch, base_sequence = producer
    other = header._replace(
        attributes=attributes,
        max_timestamp=newest_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    other = with_checksum(other, header)
    pack_header(batch, other)
    assert read_header(batch) == other
    assert checksum_ok(batch, other)
