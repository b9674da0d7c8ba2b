"""The aborted index against a list that is searched from one end to the other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolation.aborted import BLOCK, AbortedRange, AbortedRanges
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


SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=300)


@rule("B.9", "the aborted list is what a search of every aborted transaction would find")
@settings(deadline=None)
@given(SPANS, st.integers(0, 400), st.integers(0, 200), st.integers(0, 400))
def test_a_query_finds_what_a_full_search_finds(spans: list[tuple[int, int]], at: int, size: int, start: int) -> None:
    ranges = ranges_of(spans)
    built = build(ranges)
    assert built.overlapping(at, at + size) == searched(ranges, at, at + size)
    again = AbortedRanges.from_bytes(built.to_bytes())
    assert again.overlapping(at, at + size) == searched(ranges, at, at + size)
    assert built.reach_into(at, at + size) == bool(searched(ranges, at, at + size))
    built.drop_before(start)
    begin = max(at, start)
    assert built.overlapping(begin, begin + size) == searched(ranges, begin, begin + size)
    assert built.reach_into(begin, begin + size) == bool(searched(ranges, begin, begin + size))
    assert built.count_from(begin) == sum(each.last_offset >= begin for each in ranges)


@settings(deadline=None)
@given(SPANS, SPANS, st.integers(0, 800))
def test_ranges_can_be_added_after_a_restore_and_after_dropping(
    before: list[tuple[int, int]], after: list[tuple[int, int]], at: int
) -> None:
    ranges = ranges_of(before + after)
    built = AbortedRanges.from_bytes(build(ranges[: len(before)]).to_bytes())
    built.drop_before(at // 2)
    for aborted in ranges[len(before) :]:
        built.add(aborted)
    assert built.overlapping(at, at + 50) == searched(ranges, at, at + 50)


@settings(deadline=None)
@given(SPANS, st.sets(st.integers(0, 900)), st.integers(0, 900))
def test_removed_ranges_are_not_found(spans: list[tuple[int, int]], gone: set[int], at: int) -> None:
    ranges = ranges_of(spans)
    built = build(ranges)
    built.remove(sorted(gone))
    kept = [aborted for aborted in ranges if aborted.last_offset not in gone]
    assert built.overlapping(at, at + 50) == searched(kept, at, at + 50)


def test_a_long_transaction_over_many_short_ones_costs_no_walk_over_them() -> None:
    """A hundred thousand aborted inside one that aborts last: a reader at the beginning meets two, and looks at few."""
    ranges = [AbortedRange(1, 10 * index, 10 * index + 9) for index in range(100_000)]
    ranges.append(AbortedRange(2, 5, 1_000_001))
    built = build(ranges)
    looked_at = 0
    step_over = built._step_over

    class Counting(AbortedRanges):
        def _step_over(self, index: int, end_offset: int) -> int:
            nonlocal looked_at
            looked_at += 1
            return step_over(index, end_offset)

    counting = Counting.from_bytes(built.to_bytes())
    assert counting.overlapping(0, 10) == [ranges[0], ranges[-1]]
    assert looked_at < 4 * BLOCK
    assert built.overlapping(999_990, 1_000_000) == [ranges[-2], ranges[-1]]


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0", b"\0\0\0\1" + bytes(23), b"\0\0\0\1" + bytes(25)])
def test_damaged_bytes_are_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="cut short"):
        AbortedRanges.from_bytes(damaged)


def test_a_cleaner_is_told_one_by_one_how_it_was_when_it_asked() -> None:
    """Between any two others have their turn: transactions are aborted, and the log loses its beginning."""
    ranges = ranges_of([(1, 3)] * 1_000)
    built = build(ranges)
    asked = built.each_overlapping(ranges[10].last_offset, ranges[900].last_offset + 1)
    expected = searched(ranges, ranges[10].last_offset, ranges[900].last_offset + 1)
    told = [next(asked) for _ in range(100)]
    built.drop_before(ranges[800].last_offset)
    built.add(AbortedRange(1, ranges[-1].last_offset + 1, ranges[-1].last_offset + 2))
    built.remove([ranges[850].last_offset])
    assert [*told, *asked] == expected
