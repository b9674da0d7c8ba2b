"""The segments of a log in a row: which of them holds an offset, and what may be done to the row."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from log.batch import BatchHeader, CorruptBatch, read_header, split
from log.config import LogConfig
from log.partition_log import PartitionLog
from log.segment import Segment
from log.segments import Segments
from tests.log.building import fill, open_log, stamped
from tests.log.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=500, index_interval_bytes=200)


def several() -> PartitionLog:
    log, _ = open_log(MemoryDisk(), config=SMALL)
    fill(log, 10)
    assert len(log.segments) > 3
    return log


def test_only_the_newest_segment_is_written_to() -> None:
    log = several()
    assert [segment.sealed for segment in log.segments] == [True] * (len(log.segments) - 1) + [False]
    assert log.segments.active is log.segments[-1]
    log.segments.put(log.segments[:-1])
    assert log.segments.active is None


def test_a_segment_is_found_by_its_base_offset_alone() -> None:
    log = several()
    for segment in log.segments:
        assert log.segments.at_base(segment.base_offset) is segment
    assert log.segments.at_base(log.segments[1].base_offset + 1) is None
    assert log.segments.first_base == 0
    assert Segments().first_base is None


def test_a_log_whose_first_batch_lies_far_above_its_start_is_read_from_its_start() -> None:
    """Its compaction has left nothing below, and a copy of it has no segment there: one can't reach so far."""
    log, _ = open_log(MemoryDisk())
    batch = stamped([b"v"], base_offset=2**31)
    log.append_after_gap(batch, read_header(batch), now_ms=0)
    assert (log.start_offset, log.segments.first_base) == (0, 2**31)
    stored = log.read(0, max_bytes=1, limit_offset=log.end_offset, at_least_one=True)
    assert stored is not None
    assert stored.read() == batch
    assert log.checked(0, stored).size == len(batch)
    assert log.behind_gap(0) == 2**31
    assert log.read(log.end_offset, max_bytes=1, limit_offset=2**40, at_least_one=True) is None


def test_a_reader_that_goes_on_with_small_limits_has_no_header_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk that ends a read knows which offset is next, and where it stands."""
    log, _ = open_log(MemoryDisk())
    fill(log, 10)
    segment = log.segments[0]
    walks = list[int]()
    walk = Segment._extents

    def counted(segment: Segment, position: int) -> Iterator[tuple[int, int, int]]:
        walks.append(position)
        return walk(segment, position)

    monkeypatch.setattr(Segment, "_extents", counted)
    monkeypatch.setattr("log.segment.read_header", None)
    at = 0
    for offset in range(10):
        stored = segment.read(offset, max_bytes=1, limit_offset=10, at_least_one=True)
        assert stored is not None
        assert stored.position == at
        at += stored.size
    assert at == segment.size_bytes
    assert len(walks) == 10 + 1, "one for the end of each batch, one for the first batch"


def test_followers_that_read_the_end_of_a_log_in_turn_have_no_header_read_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, _ = open_log(MemoryDisk())
    fill(log, 10)
    segment = log.segments[0]
    read_by = {"one follower": 10, "another follower": 10}
    sizes = []
    segment.read(0, max_bytes=10**6, limit_offset=log.end_offset, at_least_one=True)
    monkeypatch.setattr(Segment, "_extents", None)
    for _ in range(5):
        fill(log, 2)
        for follower, offset in read_by.items():
            stored = segment.read(offset, max_bytes=10**6, limit_offset=log.end_offset, at_least_one=True)
            assert stored is not None
            sizes.append(stored.size)
            read_by[follower] = log.end_offset
    assert len(set(sizes)) == 1, "each read the same two batches each time"


def copied(log: PartitionLog, offset: int, max_bytes: int) -> Iterator[BatchHeader]:
    """What a follower takes that asks for `offset`, and goes on where each answer ends."""
    while offset < log.end_offset:
        stored = log.read(offset, max_bytes=max_bytes, limit_offset=log.end_offset, at_least_one=True)
        assert stored is not None
        for header, _ in split(log.checked(offset, stored).read()):
            assert header.last_offset >= offset
            yield header
            offset = header.next_offset


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("max_bytes", [1, 400, 10**6])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_copier_is_not_led_over_batches_by_a_base_offset_that_has_rotted(
    flushed: bool, max_bytes: int, records: int
) -> None:
    """It took what was left out for a gap of compaction, and the offsets were lost once it led."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=LogConfig(segment_bytes=1_000, index_interval_bytes=200))
    fill(log, 24, records=records, size=60)
    assert len(log.segments) > 2
    if flushed:
        asyncio.run(log.flush())  # the indexes of sealed segments are in files
    right = [header for header, _ in log.scan(0)]
    places = [(segment, position) for segment in log.segments for position, _ in segment.headers(0)]
    for rotten, (segment, position) in enumerate(places):
        for byte, bit in ((7, 1), (7, 2), (7, 4), (7, 16), (7, 64), (6, 1), (3, 1), (0, 0x80)):
            data = disk.files[segment.path()].data
            data[position + byte] ^= bit
            for first in {0, rotten, max(rotten - 2, 0), min(rotten + 1, len(right) - 1)}:
                taken = list[BatchHeader]()
                with suppress(CorruptBatch):
                    for header in copied(log, right[first].base_offset, max_bytes):
                        taken.append(header)
                        assert header == right[first + len(taken) - 1]
                assert first > rotten or first + len(taken) <= rotten
            data[position + byte] ^= bit


def test_what_a_copier_is_given_at_once_is_checked_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("log.segment.CHECKED_BATCHES", 4)
    log, _ = open_log(MemoryDisk())
    fill(log, 11)
    stored = log.read(0, max_bytes=10**6, limit_offset=11, at_least_one=True)
    assert stored is not None
    assert [header.base_offset for header, _ in split(log.checked(0, stored).read())] == [0, 1, 2, 3]
    assert [header.base_offset for header in copied(log, 0, 10**6)] == list(range(11))


def test_segments_out_of_order_are_refused() -> None:
    log = several()
    first, second = log.segments[0], log.segments[1]
    with pytest.raises(AssertionError, match="ascend"):
        log.segments.put([second, first])
    with pytest.raises(AssertionError, match="ascend"):
        Segments().put([first, first])


def test_only_neighbours_are_replaced_and_by_segments_with_their_names() -> None:
    log = several()
    disk, third = MemoryDisk(), log.segments[2]
    disk.mkdir("new")
    with pytest.raises(AssertionError, match="neighbours"):
        log.segments.replace([log.segments[0], third], log.segments[0])
    with pytest.raises(AssertionError, match="the name"):
        log.segments.replace(log.segments[:2], Segment.create(disk, "new", log.segments[1].base_offset + 1, 0))
    merged = Segment.create(disk, "new", 0, 0)
    log.segments.replace(log.segments[:2], merged)
    assert log.segments[:2] == [merged, third]
