import struct

import pytest

from log.batch import CorruptBatch, build_batch, build_from_stored, checksum_ok, read_header
from log.control import ControlType, Marker, build_marker, read_marker


@pytest.mark.parametrize("kind", ControlType)
def test_a_marker_says_whose_transaction_ended_how(kind: ControlType) -> None:
    batch = build_marker(
        kind, producer_id=9, producer_epoch=3, coordinator_epoch=12, timestamp_ms=77, base_offset=500, leader_epoch=4
    )
    header = read_header(batch)
    assert checksum_ok(batch, header)
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    assert (header.base_offset, header.leader_epoch, header.max_timestamp) == (500, 4, 77)
    assert read_marker(batch) == Marker(kind, 12)


def control(key: bytes, value: bytes) -> bytes:
    return build_batch([(key, value, (), 0)], control=True, transactional=True, producer_id=1, producer_epoch=0)


@pytest.mark.parametrize("kind", ControlType)
def test_a_marker_is_the_batch_of_one_control_record(kind: ControlType) -> None:
    key, value = struct.pack(">hh", 0, kind.value), struct.pack(">hi", 0, 7)
    marker = build_marker(kind, producer_id=2**40, producer_epoch=3, coordinator_epoch=7, timestamp_ms=9**12)
    records = [(key, value, (), 9**12)]
    assert marker == build_batch(records, producer_id=2**40, producer_epoch=3, transactional=True, control=True)


def test_control_records_of_other_kinds_mean_nothing() -> None:
    for kind in (2, 3, 6, -1):
        assert read_marker(control(struct.pack(">hh", 0, kind), b"")).type is None


def test_a_marker_of_a_version_to_come_is_read_as_far_as_we_know_it() -> None:
    batch = control(struct.pack(">hh", 1, 1) + b"more", struct.pack(">hi", 1, 5) + b"more")
    assert read_marker(batch) == Marker(ControlType.COMMIT, 5)
    assert read_marker(control(struct.pack(">hh", 1, 0), struct.pack(">hi", 1, 5))) == Marker(ControlType.ABORT, 5)


def test_what_is_as_long_as_a_marker_need_not_be_one() -> None:
    usual = build_marker(ControlType.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)
    longer_key = control(struct.pack(">hh", 0, 1) + b"\x00\x00", b"\x00" * 4)
    assert len(longer_key) == len(usual)
    with pytest.raises(CorruptBatch):
        read_marker(longer_key)
    other_kind = control(struct.pack(">hh", 0, 2), b"\x00" * 6)
    assert len(other_kind) == len(usual)
    assert read_marker(other_kind).type is None


def test_a_cleaned_out_control_batch_means_nothing() -> None:
    batch = build_marker(ControlType.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)
    assert read_marker(build_from_stored(read_header(batch), [])).type is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", b""), (b"\x00\x00\x00", b"\x00" * 6), (b"\x00\x00\x00\x01", b"\x00"), (b"\xff\xff\x00\x01", b"\x00" * 6)],
)
def test_broken_markers_are_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptBatch):
        read_marker(control(key, value))


def test_data_is_no_marker() -> None:
    with pytest.raises(CorruptBatch):
        read_marker(build_batch([(b"\x00\x00\x00\x01", b"\x00" * 6, (), 0)]))
