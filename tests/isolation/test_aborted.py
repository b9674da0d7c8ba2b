"""The aborted index against a list that is searched from one end to the other."""

import struct
import tracemalloc
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isolation import aborted as room
from isolation.aborted import BLOCK, CHUNK, AbortedRange, AbortedRanges
from log.steps import done_at_once
from log.views import whole
from tests.rules import rule


def ranges_of(spans: list[tuple[int, int]]) -> list[AbortedRange]:
    """Markers one to three offsets apart, each transaction beginning `span` before its marker."""
    ranges, marker = [], 0
    for index, (gap, span) in enumerate(spans):
        marker += gap + 1
        ranges.append(AbortedRange(index % 7, max(0, marker - span), marker))
    return ranges


def build(ranges: list[AbortedRange]) -> AbortedRanges:
    built = AbortedRanges()
    for aborted in ranges:
        built.add(aborted)
    return built


def searched(ranges: list[AbortedRange], from_offset: int, end_offset: int) -> list[AbortedRange]:
    return [found for found in ranges if found.last_offset >= from_offset and found.first_offset < end_offset]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that few ranges fill several."""
    monkeypatch.setattr(room, "BLOCK", 4)
    monkeypatch.setattr(room, "CHUNK", 16)


drawn = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=300)


@rule("B.9", "the aborted list is what a search of every aborted transaction would find")
@pytest.mark.usefixtures("small_chunks")
@drawn
@given(SPANS, st.integers(0, 400), st.integers(0, 200), st.integers(0, 400))
def test_a_query_finds_what_a_full_search_finds(spans: list[tuple[int, int]], at: int, size: int, start: int) -> None:
    ranges = ranges_of(spans)
    built = build(ranges)
    assert list(built.overlapping(at, at + size)) == searched(ranges, at, at + size)
    again = done_at_once(AbortedRanges.reading(whole(built.lend())))
    assert list(again.overlapping(at, at + size)) == searched(ranges, at, at + size)
    assert built.reach_into(at, at + size) == bool(searched(ranges, at, at + size))
    built.drop_before(start)
    begin = max(at, start)
    assert list(built.overlapping(begin, begin + size)) == searched(ranges, begin, begin + size)
    assert built.reach_into(begin, begin + size) == bool(searched(ranges, begin, begin + size))
    assert built.count_from(begin) == sum(each.last_offset >= begin for each in ranges)


@pytest.mark.usefixtures("small_chunks")
@drawn
@given(SPANS, SPANS, st.integers(0, 800))
def test_ranges_can_be_added_after_a_restore_and_after_dropping(
    before: list[tuple[int, int]], after: list[tuple[int, int]], at: int
) -> None:
    ranges = ranges_of(before + after)
    built = done_at_once(AbortedRanges.reading(whole(build(ranges[: len(before)]).lend())))
    built.drop_before(at // 2)
    for aborted in ranges[len(before) :]:
        built.add(aborted)
    assert list(built.overlapping(at, at + 50)) == searched(ranges, at, at + 50)


@pytest.mark.usefixtures("small_chunks")
@drawn
@given(SPANS, st.sets(st.integers(0, 900)), st.integers(0, 900))
def test_removed_ranges_are_not_found(spans: list[tuple[int, int]], gone: set[int], at: int) -> None:
    ranges = ranges_of(spans)
    built = build(ranges)
    done_at_once(built.remove(sorted(gone)))
    kept = [aborted for aborted in ranges if aborted.last_offset not in gone]
    assert list(built.overlapping(at, at + 50)) == searched(kept, at, at + 50)
    assert (len(built), bool(built)) == (len(kept), bool(kept))


def as_stored(ranges: list[AbortedRange]) -> bytes:
    """The number of ranges, big-endian; the columns, little-endian."""
    columns = (
        (each.producer_id for each in ranges),
        (each.first_offset for each in ranges),
        (each[2] for each in ranges),
    )
    return struct.pack(">I", len(ranges)) + b"".join(struct.pack(f"<{len(ranges)}q", *column) for column in columns)


CHANGES = st.lists(st.tuples(st.sampled_from(["add", "add", "drop", "remove", "step", "lend"]), st.integers(0, 90)))


@pytest.mark.usefixtures("small_chunks")
@drawn
@given(SPANS, CHANGES)
def test_what_was_lent_stays_and_the_rest_goes_on(spans: list[tuple[int, int]], changes: list[tuple[str, int]]) -> None:
    """A removal goes on between other changes, a step at a time."""
    plain = ranges_of(spans[:80])
    built = build(plain)
    removal, gone = built.remove([]), set[int]()
    lent = []
    for what, number in changes:
        if what == "add":
            last_offset = plain[-1].last_offset + 1 if plain else 400
            plain.append(AbortedRange(number, last_offset - 1 - number, last_offset))
            built.add(plain[-1])
        elif what == "drop":
            built.drop_before(number)
        elif what == "remove":
            done_at_once(removal)
            gone |= (new := {each.last_offset for each in plain[number // 2 : number]})
            removal = built.remove(sorted(new))
        elif what == "step":
            next(removal, None)
        else:
            reader = built.overlapping(0, 10_000)
            lent.append((reader, built.lend(), list(built.overlapping(0, 10_000))))
    done_at_once(removal)
    floor = max((number for what, number in changes if what == "drop"), default=0)
    expected = [each for each in plain if each.last_offset not in gone and each.last_offset >= floor]
    assert list(built.overlapping(floor, 10_000)) == expected
    for each_one, stored, then in lent:
        assert list(each_one) == then
        assert whole(stored) == as_stored(then)


def test_of_many_ranges_no_step_changes_or_copies_more_than_one_chunk() -> None:
    count = 20 * CHUNK
    built = build([AbortedRange(1, 3 * number, 3 * number + 2) for number in range(count)])
    for gone in ([3 * CHUNK + 2], range(2, 3 * count, 6)):
        chunks, steps = list(built._chunks), 0
        for _ in built.remove(array("q", gone)):
            assert sum(chunk not in chunks for chunk in built._chunks) <= 1
            chunks, steps = list(built._chunks), steps + 1
        assert steps <= 20
    tracemalloc.start()
    try:
        lent = built.lend()
        reader = built.overlapping(0, 3 * count)
        next(reader)
        built.add(AbortedRange(1, 3 * count, 3 * count + 1))
        assert tracemalloc.get_traced_memory()[1] < 3 * 24 * CHUNK, "twenty chunks are lent, and one is copied"
    finally:
        tracemalloc.stop()
    assert len(whole(lent)) == 4 + 24 * (count // 2)


def test_markers_of_no_range_are_passed_over_in_steps() -> None:
    built = build([AbortedRange(1, 0, 1), AbortedRange(1, 9 * CHUNK, 9 * CHUNK + 1)])
    assert len(list(built.remove(range(2, 8 * CHUNK)))) >= 7
    assert len(built) == 2


def test_a_long_transaction_over_many_short_ones_costs_no_walk_over_them() -> None:
    """A hundred thousand aborted inside one that aborts last: a reader at the beginning meets two, and looks at few."""
    ranges = [AbortedRange(1, 10 * index, 10 * index + 9) for index in range(100_000)]
    ranges.append(AbortedRange(2, 5, 1_000_001))
    built = build(ranges)
    looked_at = 0

    class Counting(array):  # type: ignore[type-arg]
        def __getitem__(self, index: object) -> int:  # type: ignore[override]
            nonlocal looked_at
            looked_at += 1
            return int(super().__getitem__(index))  # type: ignore[call-overload]

    for chunk in built._chunks:
        chunk.first, chunk.minima = Counting("q", chunk.first), Counting("q", chunk.minima)
    assert list(built.overlapping(0, 10)) == [ranges[0], ranges[-1]]
    assert looked_at < 6 * BLOCK
    assert list(built.overlapping(999_990, 1_000_000)) == [ranges[-2], ranges[-1]]


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0", b"\0\0\0\1" + bytes(23), b"\0\0\0\1" + bytes(25)])
def test_damaged_bytes_are_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="cut short"):
        done_at_once(AbortedRanges.reading(damaged))


def test_a_cleaner_is_told_one_by_one_how_it_was_when_it_asked() -> None:
    """Between any two others have their turn: transactions are aborted, and the log loses its beginning."""
    ranges = ranges_of([(1, 3)] * 1_000)
    built = build(ranges)
    asked = built.overlapping(ranges[10].last_offset, ranges[900].last_offset + 1)
    expected = searched(ranges, ranges[10].last_offset, ranges[900].last_offset + 1)
    told = [next(asked) for _ in range(100)]
    built.drop_before(ranges[800].last_offset)
    built.add(AbortedRange(1, ranges[-1].last_offset + 1, ranges[-1].last_offset + 2))
    done_at_once(built.remove([ranges[850].last_offset]))
    assert [*told, *asked] == expected
