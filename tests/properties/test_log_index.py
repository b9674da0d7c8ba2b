"""An indexed search finds what a full scan finds.

Method: entries, batches and questions are drawn; the plain twin walks over everything. Held against it are the index in
memory, the index in a file, and a segment's search for offsets and times with indexes of any density, grown, stored,
reopened and rebuilt.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.batch import read_header
from log.index import LEAF_ENTRIES, OFFSET_ENTRY, TIME_ENTRY, GrowingIndex, Index, StoredIndex
from log.segment import Segment
from tests.log.building import stamped
from tests.log.memory_disk import MemoryDisk

STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), max_size=60)


def entries_of(steps: list[tuple[int, int]], times: int = 1) -> list[tuple[int, int]]:
    """Rising keys and values; repeated so that a file of them is larger than a leaf."""
    key = value = 0
    entries = []
    for _ in range(times):
        for key_step, value_step in steps:
            key, value = key + key_step, value + value_step
            entries.append((key, value))
    return entries


def both_kinds(layout: struct.Struct, entries: list[tuple[int, int]]) -> list[Index]:
    growing = GrowingIndex(layout)
    for key, value in entries:
        growing.add(key, value)
    file = MemoryDisk().open("index", create=True)
    file.append([growing.to_bytes()])
    return [growing, StoredIndex(layout, file), GrowingIndex.from_bytes(layout, growing.to_bytes())]


@pytest.mark.parametrize("layout", [OFFSET_ENTRY, TIME_ENTRY])
@given(STEPS, st.sampled_from([1, 30]), st.lists(st.integers(-1, 60_000), min_size=1, max_size=30))
def test_both_kinds_find_the_last_entry_that_is_not_above(
    layout: struct.Struct, steps: list[tuple[int, int]], times: int, questions: list[int]
) -> None:
    entries = entries_of(steps, times)
    for index in both_kinds(layout, entries):
        assert len(index) == len(entries)
        for wanted in questions:
            assert index.floor(wanted) == sum(key <= wanted for key, _ in entries) - 1
            assert index.floor_value(wanted) == sum(value <= wanted for _, value in entries) - 1
        for slot in range(0, len(entries), 7):
            assert index.entry(slot) == entries[slot]


class Counting(struct.Struct):
    packed = 0

    def pack(self, *fields: int) -> bytes:
        self.packed += 1
        return super().pack(*fields)


@pytest.mark.parametrize(("layout", "lowest", "highest"), [(OFFSET_ENTRY, 0, 2**32 - 1), (TIME_ENTRY, -1, 2**63 - 1)])
@given(st.data())
def test_a_file_has_the_entries_as_they_are_packed_one_by_one(
    layout: struct.Struct, lowest: int, highest: int, data: st.DataObject
) -> None:
    entry = st.tuples(st.integers(lowest, highest), st.integers(0, 2**32 - 1))
    entries = data.draw(st.lists(entry, max_size=20))
    growing = GrowingIndex(layout)
    for key, value in entries:
        growing.add(key, value)
    assert growing.to_bytes() == b"".join(layout.pack(*entry) for entry in entries)
    again = GrowingIndex.from_bytes(layout, growing.to_bytes())
    assert [again.entry(slot) for slot in range(len(again))] == entries


def test_the_loop_does_not_wait_until_a_million_entries_are_packed_one_by_one() -> None:
    layout = Counting(OFFSET_ENTRY.format)
    growing = GrowingIndex(layout)
    for number in range(1_000):
        growing.add(number, 7 * number)
    assert growing.to_bytes()[-8:] == OFFSET_ENTRY.pack(999, 6_993)
    assert not layout.packed


def test_a_file_of_many_leaves_is_searched_everywhere() -> None:
    entries = entries_of([(3, 2)], LEAF_ENTRIES * 5 + 1)
    _, stored, _ = both_kinds(OFFSET_ENTRY, entries)
    for wanted in [*range(0, len(entries) * 3 + 9, 5), *range(len(entries) * 3, 0, -97)]:
        assert stored.floor(wanted) == min(wanted // 3, len(entries)) - 1
        assert stored.floor_value(wanted) == min(wanted // 2, len(entries)) - 1


BATCHES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 300), st.integers(0, 100), st.sampled_from([0, 0, 0, 3])),
    min_size=1,
    max_size=25,
)


class Scanned:
    """The plain twin of a segment: every batch, walked over for every question."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, int]] = []  # position, base offset, last offset, max timestamp

    def position_of(self, offset: int, size_bytes: int) -> int:
        return next((position for position, _, last, _ in self.batches if last >= offset), size_bytes)

    def later(self, timestamp: int, from_offset: int) -> list[int]:
        return [position for position, _, last, time in self.batches if time >= timestamp and last >= from_offset]

    def read(self, offset: int, max_bytes: int, limit: int, size_bytes: int) -> tuple[int, int]:
        """Where the wanted batches start, and the furthest that a read may go."""
        start = self.position_of(offset, size_bytes)
        end = self.position_of(limit, size_bytes)
        ends = [position for position, *_ in self.batches] + [size_bytes]
        return start, max((at for at in ends if start < at <= min(end, start + max_bytes)), default=start)


@given(BATCHES, st.sampled_from([0, 100, 500, 10**6]), st.data())
def test_a_segment_finds_what_a_scan_finds(
    batches: list[tuple[int, int, int, int]], interval_bytes: int, data: st.DataObject
) -> None:
    disk = MemoryDisk()
    disk.mkdir("t-0")
    segment, scanned = Segment.create(disk, "t-0", 100, 0), Scanned()
    base = 100
    for count, size, timestamp, gap in batches:  # gaps as compaction leaves them
        batch = stamped([bytes(size)] * count, base_offset=base + gap, timestamp=timestamp)
        header = read_header(batch)
        scanned.batches.append((segment.size_bytes, base + gap, header.last_offset, header.max_timestamp))
        segment.append(batch, header, 0, interval_bytes)
        base = header.next_offset
    kinds = [segment]
    if data.draw(st.booleans()):
        segment.seal()
        kinds.append(Segment(disk, "t-0", segment.facts(), sealed=True))
    else:
        kinds.append(Segment(disk, "t-0", segment.facts(), sealed=False))
    kinds.append(Segment(disk, "t-0", segment.facts()._replace(indexes=None), sealed=False))
    compare(kinds, scanned, data, end=base)


def all_later(segment: Segment, timestamp: int, offset: int) -> list[int]:
    """The positions that a search finds, which looks at three headers at once."""
    later = []
    while offset < segment.end_offset:
        found, offset = segment.search_timestamp(timestamp, offset, 3)
        if found is not None:
            later.append(found[0])
    return later


def compare(kinds: list[Segment], scanned: Scanned, data: st.DataObject, end: int) -> None:
    size_bytes = kinds[0].size_bytes
    for _ in range(6):
        offset = data.draw(st.integers(100, end), label="offset")
        limit = data.draw(st.integers(offset, end), label="limit")
        timestamp = data.draw(st.integers(0, 105), label="timestamp")
        max_bytes = data.draw(st.integers(1, 3000), label="max bytes")
        start, furthest = scanned.read(offset, max_bytes, limit, size_bytes)
        for segment in kinds:
            assert segment.position_of(offset) == scanned.position_of(offset, size_bytes)
            assert all_later(segment, timestamp, offset) == scanned.later(timestamp, offset)
            found = segment.read(offset, max_bytes=max_bytes, limit_offset=limit, at_least_one=False)
            if found is None:
                assert furthest == start
            else:
                assert found.position == start
                assert start + found.size in [position for position, *_ in scanned.batches] + [size_bytes]
                assert start + found.size <= furthest
