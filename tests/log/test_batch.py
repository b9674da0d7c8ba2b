import re
import struct

import pytest

from log.batch import (
    HEADER_BYTES,
    CorruptBatch,
    Record,
    UnsupportedMagic,
    build_batch,
    build_from_stored,
    build_plain_batch,
    checksum_ok,
    read_extent,
    read_header,
    read_records,
    read_stored_records,
    restamp,
    restamped,
    set_log_append_time,
    split,
)

RECORDS = [
    Record(100, 5000, b"key", b"value", (("name", b"content"), ("name", None))),
    Record(101, 4990, None, b""),
    Record(104, 7000, b"", None),
]


def built(**fields: int | bool) -> bytes:
    return build_batch(RECORDS, base_offset=100, leader_epoch=3, **fields)  # type: ignore[arg-type]


def test_a_header_says_what_was_built() -> None:
    batch = built(codec=4, producer_id=7, producer_epoch=2, base_sequence=40, transactional=True)
    header = read_header(batch)
    assert header.base_offset == 100
    assert header.size_bytes == len(batch)
    assert (header.last_offset, header.next_offset, header.record_count) == (104, 105, 3)
    assert (header.base_timestamp, header.max_timestamp) == (5000, 7000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    assert (header.codec, header.is_transactional, header.is_control, header.log_append_time) == (4, True, False, False)
    assert header.has_producer
    assert header.delete_horizon_ms is None
    assert checksum_ok(batch, header)


@pytest.mark.parametrize("codec", range(5))
def test_records_survive_with_offsets_and_times(codec: int) -> None:
    assert list(read_records(built(codec=codec))) == RECORDS


@pytest.mark.parametrize("count", [1, 2, 700])
def test_plain_records_make_the_batch_that_any_would(count: int) -> None:
    records = [(b"k" * (number % 300), None if number % 3 else bytes(7 * number)) for number in range(count)]
    records_anyhow = [(key, value, (), 77) for key, value in records]
    assert build_plain_batch(records, 77) == build_batch(records_anyhow)
    of_producer = build_batch(records_anyhow, producer_id=5, producer_epoch=2, transactional=True)
    assert build_plain_batch(records, 77, producer_id=5, producer_epoch=2) == of_producer
    numbered = build_batch(records_anyhow, producer_id=5, producer_epoch=2, base_sequence=9, transactional=True)
    assert build_plain_batch(records, 77, producer_id=5, producer_epoch=2, base_sequence=9) == numbered


def test_restamping_leaves_the_checksum_right() -> None:
    batch = bytearray(built())
    stamped = restamped(read_header(batch), base_offset=2**40, leader_epoch=9)
    restamp(memoryview(batch), base_offset=2**40, leader_epoch=9)
    header = read_header(batch)
    assert stamped == header
    assert (header.base_offset, header.leader_epoch) == (2**40, 9)
    assert checksum_ok(batch, header)
    assert [record.offset - 2**40 for record in read_records(batch)] == [0, 1, 4]


def test_an_extent_is_what_the_header_says_and_refused_as_the_header_is() -> None:
    batch = built()
    header = read_header(batch)
    assert read_extent(b"_" + batch, 1) == (header.last_offset, header.size_bytes)
    for at, bad in ((0, b"\xff"), (8, b"\x00\x00\x00\x30"), (16, b"\x01"), (23, b"\x80")):
        damaged = bytearray(batch)
        damaged[at : at + len(bad)] = bad
        with pytest.raises(CorruptBatch) as told:
            read_header(damaged)
        with pytest.raises(type(told.value), match=re.escape(str(told.value))):
            read_extent(damaged)
    with pytest.raises(CorruptBatch, match="too few"):
        read_extent(batch[:20])


def test_log_append_time_stands_for_every_record() -> None:
    batch = bytearray(built())
    set_log_append_time(batch, 123_456)
    header = read_header(batch)
    assert header.log_append_time
    assert checksum_ok(batch, header)
    assert {record.timestamp for record in read_records(batch)} == {123_456}


def test_a_flipped_bit_anywhere_is_noticed() -> None:
    """The first 21 bytes are outside the checksum: there, only what can't be is noticed."""
    batch = built()
    for at in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        try:
            assert not checksum_ok(damaged, read_header(damaged))
        except CorruptBatch:
            continue


@pytest.mark.parametrize(
    ("layout", "at", "value"),
    [(">i", 8, 48), (">i", 8, -1), (">q", 0, -1), (">i", 23, -1), (">i", 57, -1)],
    ids=["length", "negative length", "offset", "last delta", "count"],
)
def test_absurd_headers_are_refused(layout: str, at: int, value: int) -> None:
    batch = bytearray(built())
    struct.pack_into(layout, batch, at, value)
    with pytest.raises(CorruptBatch):
        read_header(batch)


@pytest.mark.parametrize("magic", [-1, 0, 1, 3])
def test_other_formats_are_told_apart(magic: int) -> None:
    batch = bytearray(built())
    struct.pack_into(">b", batch, 16, magic)
    with pytest.raises(UnsupportedMagic):
        read_header(batch)


def test_batches_back_to_back_are_split() -> None:
    batches = [built(), built(codec=1), built(codec=3)]
    found = list(split(b"".join(batches)))
    assert [bytes(view) for _, view in found] == batches
    with pytest.raises(CorruptBatch):
        list(split(b"".join(batches)[:-1]))
    with pytest.raises(CorruptBatch):
        list(split(batches[0] + bytes(HEADER_BYTES - 1)))


def test_a_cleaner_can_write_back_some_of_the_records() -> None:
    batch = built(codec=1, producer_id=7, producer_epoch=0, base_sequence=5)
    header = read_header(batch)
    stored = list(read_stored_records(batch, header))
    assert [record.has_value for record in stored] == [True, True, False]
    smaller = build_from_stored(header, stored[::2])
    kept = read_header(smaller)
    assert checksum_ok(smaller, kept)
    assert (kept.base_offset, kept.last_offset, kept.record_count) == (100, 104, 2)
    assert (kept.producer_id, kept.base_sequence, kept.codec) == (7, 5, 1)
    assert list(read_records(smaller)) == RECORDS[::2]


def test_a_horizon_takes_the_place_of_the_base_timestamp_and_changes_no_time() -> None:
    batch = built()
    header = read_header(batch)
    stored = list(read_stored_records(batch, header))
    marked = build_from_stored(header, stored, delete_horizon_ms=9_000_000)
    assert read_header(marked).delete_horizon_ms == 9_000_000
    assert list(read_records(marked)) == RECORDS
    again = build_from_stored(read_header(marked), list(read_stored_records(marked, read_header(marked))))
    assert read_header(again).delete_horizon_ms is None


def test_a_batch_without_records_still_speaks_for_its_producer() -> None:
    batch = built(codec=2, producer_id=7, producer_epoch=1, base_sequence=5)
    empty = build_from_stored(read_header(batch), [])
    header = read_header(empty)
    assert len(empty) == HEADER_BYTES
    assert checksum_ok(empty, header)
    assert (header.last_offset, header.record_count, header.base_sequence) == (104, 0, 5)
    assert list(read_records(empty)) == []


def with_payload(payload: bytes, count: int = 1) -> bytes:
    header = read_header(built())._replace(record_count=count, size_bytes=HEADER_BYTES + len(payload))
    batch = bytearray(built()[:HEADER_BYTES] + payload)
    struct.pack_into(">i", batch, 8, header.size_bytes - 12)
    struct.pack_into(">i", batch, 57, count)
    return bytes(batch)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0e\x00\x00\x00\x01\x01\x00",  # longer than what is there
        b"\x01\x00",  # of negative length
        b"\x0c\x00\x00\x0c\x01\x01\x00",  # an offset behind the last
        b"\x0c\x00\x00\x00\x7e\x01\x00",  # a key longer than the record
        b"\x0c\x00\x00\x00\x01\x01\x7e",  # headers that are not there
        b"\x0c\x00\x00\x00\x01\x01\x00\x00",  # a byte too many at the end
        b"\xff" * 12,  # a varint that never ends
        b"\x0e\x00\x00\x00\x01\x01\x02\x01",  # a header without a name
    ],
)
def test_records_that_lie_are_refused(payload: bytes) -> None:
    with pytest.raises(CorruptBatch):
        list(read_records(with_payload(payload)))


def test_a_wrong_count_is_noticed() -> None:
    batch = bytearray(built())
    for count in (2, 4):
        struct.pack_into(">i", batch, 57, count)
        with pytest.raises(CorruptBatch):
            list(read_records(batch))


def test_packed_records_are_bounded() -> None:
    batch = build_batch([(None, bytes(1_000_000), (), 0)], codec=4)
    with pytest.raises(CorruptBatch):
        list(read_records(batch, limit_bytes=100_000))
