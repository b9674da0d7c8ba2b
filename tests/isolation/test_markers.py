"""What is left for a reader, compared with a count over the whole log."""

import struct
from itertools import count, islice
from random import Random

import pytest

from isolation.aborted import AbortedRange, AbortedRanges
from isolation.markers import KEPT, NEVER, Left, Markers
from isolation.stable import StableOffsets
from log.steps import done_at_once
from log.views import whole
from tests import batches


def folded(offsets: list[int]) -> Markers:
    markers = Markers()
    for offset in offsets:
        markers.add(offset)
    return markers


@pytest.mark.parametrize("number", [0, 1, KEPT - 1, KEPT, KEPT + 1, 3 * KEPT])
def test_near_the_end_markers_are_told_exactly_and_far_back_there_are_at_most_so_many(number: int) -> None:
    chance = Random(number)
    offsets = [at + 1 for at in islice(count(0, 3), number)]
    markers, high = folded(offsets), 3 * number + 5
    for markers_now in markers, Markers.from_bytes(markers.to_bytes())[0]:
        for _ in range(300):
            offset = chance.randrange(high + 10)
            stable = chance.randint(offset, high) if offset <= high else high
            truly = high - offset - sum(offset <= each < high for each in offsets) if offset < high else 0
            left = markers_now.left(offset, start=0, stable=stable, high=high)
            assert left.is_exact == (offset >= high or number <= KEPT or offset >= offsets[-KEPT])
            assert left.total == truly if left.is_exact else truly < left.total < high - offset
            assert markers_now.since(offset).left(offset, start=0, stable=stable, high=high) == left


def test_what_is_undecided_is_told_apart() -> None:
    markers = folded([5, 7, 12])
    assert markers.left(4, start=0, stable=8, high=14) == Left(2, 5, True)
    assert markers.left(9, start=0, stable=8, high=14) == Left(0, 4, True)
    assert markers.left(20, start=0, stable=8, high=14) == Left(0, 0, True), "a group that was moved beyond the end"


def test_what_has_left_the_log_at_its_start_is_not_left_to_read() -> None:
    markers = folded([5, 7, 12])
    assert (
        markers.left(1, start=6, stable=8, high=14) == markers.left(6, start=6, stable=8, high=14) == Left(1, 5, True)
    )
    assert markers.left(1, start=14, stable=14, high=14) == Left(0, 0, True)


def test_of_markers_below_those_that_were_asked_for_nothing_is_told() -> None:
    assert folded([1, 3, 5, 7]).since(4).left(0, start=0, stable=8, high=8) == Left(6, 0, False)


def test_markers_are_known_after_a_restart() -> None:
    stable = StableOffsets()
    for offset in range(0, 6, 2):
        stable.apply(*batches.data(1, offset=offset, transactional=True))
        stable.apply(*batches.marker(1, commit=offset != 2, offset=offset + 1))
    again = StableOffsets()
    done_at_once(again.restoring(whole(stable.snapshot())))
    assert again.markers.left(0, start=0, stable=6, high=6) == Left(3, 0, True)
    assert again.markers.left(5, start=0, stable=6, high=6) == Left(0, 0, True)
    assert list(again.aborted_ranges(0, 6)) == [AbortedRange(1, 2, 3)]


def test_a_snapshot_of_an_older_version_knows_no_markers_and_the_next_ones_are_known() -> None:
    older = struct.pack(">BII", 1, 0, 0) + whole(AbortedRanges().lend())
    stable = StableOffsets()
    done_at_once(stable.restoring(older))
    assert stable.markers.known_from == NEVER
    assert stable.markers.left(5, start=0, stable=6, high=6) == Left(1, 0, False)
    stable.apply(*batches.data(1, offset=6, transactional=True))
    stable.apply(*batches.marker(1, commit=True, offset=7))
    assert stable.markers.left(5, start=0, stable=8, high=8) == Left(2, 0, False)
    assert stable.markers.left(7, start=0, stable=8, high=8) == Left(0, 0, True)


def test_bytes_that_are_cut_short_are_no_markers() -> None:
    whole = folded([1, 2, 3]).to_bytes()
    for end in range(len(whole)):
        with pytest.raises(ValueError, match="cut short"):
            Markers.from_bytes(whole[:end])
