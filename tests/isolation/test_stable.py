import pytest

from isolation import aborted
from isolation.markers import KEPT
from isolation.stable import ROWS_TOGETHER, OpenTransaction, StableOffsets
from log.batch import build_batch, read_header
from log.steps import done_at_once
from log.views import whole
from tests import batches
from tests.rules import rule

ANY_END = 10**9


def fold(*log: batches.Batch) -> StableOffsets:
    stable = StableOffsets()
    for batch in log:
        stable.apply(*batch)
    return stable


def begun(producer_id: int, offset: int) -> batches.Batch:
    return batches.data(producer_id, offset=offset, transactional=True)


def aborted_of(stable: StableOffsets, from_offset: int, end_offset: int) -> list[tuple[int, int]]:
    return [(each.producer_id, each.first_offset) for each in stable.aborted_ranges(from_offset, end_offset)]


def test_without_transactions_everything_replicated_is_stable() -> None:
    stable = fold(batches.data(1, offset=0), batches.data(-1, epoch=-1, sequence=-1, offset=1))
    assert stable.last_stable_offset(2, 0) == 2
    assert stable.first_unstable_offset(2) is None


@rule("B.9", "an open transaction pins the last stable offset at its first offset, not one before or after it")
def test_an_open_transaction_pins_its_first_offset() -> None:
    stable = fold(batches.data(offset=0, count=5), begun(2, 5), begun(2, 6))
    assert stable.last_stable_offset(7, 0) == 5


@rule("B.9", "the oldest open transaction pins, also when a later one has ended")
def test_the_oldest_open_transaction_pins() -> None:
    stable = fold(begun(1, 0), begun(2, 1), batches.marker(2, commit=True, offset=2))
    assert stable.last_stable_offset(3, 0) == 0


@rule("B.9", "an ended transaction pins until its marker is below the high watermark")
def test_a_marker_counts_once_it_is_replicated() -> None:
    stable = fold(begun(1, 4), batches.marker(1, commit=True, offset=5))
    assert stable.last_stable_offset(5, 0) == 4
    assert stable.last_stable_offset(6, 0) == 6


def test_of_those_that_await_replication_the_one_that_began_first_pins() -> None:
    stable = fold(
        begun(1, 0), begun(2, 1), batches.marker(2, commit=True, offset=2), batches.marker(1, commit=True, offset=3)
    )
    assert stable.last_stable_offset(2, 0) == 0
    assert stable.last_stable_offset(3, 0) == 0
    assert stable.last_stable_offset(4, 0) == 4


@rule("B.9", "the last stable offset never passes the high watermark")
def test_an_open_transaction_above_the_high_watermark_does_not_matter_yet() -> None:
    stable = fold(batches.data(offset=0, count=3), begun(1, 3))
    assert stable.last_stable_offset(2, 0) == 2


@rule("B.9", "the log's start may pass an open transaction: the stable offset is clamped, the transaction stays listed")
def test_the_start_of_the_log_clamps_the_stable_offset() -> None:
    stable = fold(begun(1, 2))
    stable.set_start_offset(10)
    assert stable.last_stable_offset(12, 10) == 10
    assert list(stable.describe_open()) == [OpenTransaction(1, 2, 1_000)]


@rule("B.9", "the aborted index knows aborts only, in the order of markers")
def test_aborts_are_indexed_in_the_order_of_their_markers() -> None:
    stable = fold(
        begun(1, 0),
        begun(2, 1),
        begun(3, 2),
        batches.marker(2, commit=False, offset=3),
        batches.marker(3, commit=True, offset=4),
        batches.marker(1, commit=False, offset=5),
    )
    assert aborted_of(stable, 0, 6) == [(2, 1), (1, 0)]


@rule(
    "B.9", "aborted list of a fetch: marker not before the fetched offset, beginning before the end of what is returned"
)
def test_only_transactions_that_reach_into_the_answer_are_listed() -> None:
    stable = fold(begun(1, 3), batches.marker(1, commit=False, offset=7))
    assert aborted_of(stable, 7, 8) == [(1, 3)]
    assert aborted_of(stable, 8, 9) == []
    assert aborted_of(stable, 0, 3) == []
    assert aborted_of(stable, 0, 4) == [(1, 3)]


@rule("B.8", "a marker for a producer with nothing open adds no range")
def test_a_marker_that_ends_nothing_adds_no_range() -> None:
    stable = fold(batches.marker(1, commit=False, offset=0), batches.marker(1, commit=False, offset=1))
    assert aborted_of(stable, 0, ANY_END) == []
    assert stable.last_stable_offset(0, 0) == 0


@rule("B.8", "a control record of an unknown kind, or of a later key version, is tolerated")
def test_control_records_of_other_kinds_end_nothing() -> None:
    stable = fold(begun(1, 0))
    unknown = build_batch(
        [(b"\x00\x05\x00\x09", b"", (), 0)],
        base_offset=1,
        producer_id=1,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    stable.apply(read_header(unknown), unknown)
    assert stable.open_transactions == {1: 0}
    later = build_batch(
        [(b"\x00\x01\x00\x01", b"\x00\x01\x00\x00\x00\x00", (), 0)],
        base_offset=2,
        producer_id=1,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    stable.apply(read_header(later), later)
    assert stable.open_transactions == {}


def test_a_transactional_batch_of_no_producer_opens_nothing() -> None:
    """Nobody could end it. A log, or a snapshot, of an older version may have it."""
    orphan = batches.data(-1, epoch=-1, sequence=-1, offset=0, transactional=True)
    stable = fold(orphan, begun(7, 1))
    assert stable.open_transactions == {7: 1}
    saved = StableOffsets()
    saved._begin(-1, 0, 5)
    done_at_once(stable.restoring(whole(saved.snapshot())))
    assert stable.open_transactions == {}
    assert stable.last_stable_offset(2, 0) == 2
    assert fold(orphan, batches.marker(-1, commit=False, offset=1)).aborted_count == 0


def test_ranges_below_the_start_of_the_log_are_dropped() -> None:
    stable = fold(
        *(batch for at in range(0, 8, 2) for batch in (begun(1, at), batches.marker(1, commit=False, offset=at + 1)))
    )
    stable.set_start_offset(6)
    assert aborted_of(stable, 6, 8) == [(1, 6)]
    assert list(stable.aborted_ranges(0, ANY_END)) == [(1, 6, 7)]


def test_a_range_goes_before_its_marker_does() -> None:
    """Kept, it would make a client drop what the same producer committed after the marker that is no longer there."""
    stable = fold(
        begun(1, 0), batches.marker(1, commit=False, offset=1), begun(1, 2), batches.marker(1, commit=False, offset=3)
    )
    done_at_once(stable.forget_aborted([1]))
    assert aborted_of(stable, 0, ANY_END) == [(1, 2)]


def test_a_restore_while_ranges_are_forgotten_brings_none_of_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be cut between two steps, and the markers go all the same."""
    monkeypatch.setattr(aborted, "CHUNK", 1)
    stable = StableOffsets()
    for offset in range(0, 20, 2):
        stable.apply(*begun(1, offset))
        stable.apply(*batches.marker(1, commit=False, offset=offset + 1))
    saved = whole(stable.snapshot())
    steps = stable.forget_aborted(range(1, 19, 2))
    for _ in range(5):
        next(steps)
    done_at_once(stable.restoring(saved))
    done_at_once(steps)
    assert aborted_of(stable, 0, ANY_END) == [(1, 18)]


def test_the_mapping_that_others_look_at_stays_the_same_after_a_restore() -> None:
    stable = fold(begun(1, 0))
    looked_at = stable.open_transactions
    saved = whole(stable.snapshot())
    done_at_once(stable.restoring(None))
    assert looked_at == {}
    done_at_once(stable.restoring(saved))
    assert looked_at == {1: 0}


def test_many_transactions_ended_in_the_order_they_began_leave_nothing_behind() -> None:
    stable = StableOffsets()
    for offset in range(0, 2_000, 2):
        stable.apply(*begun(offset, offset))
        if offset >= 20:
            stable.apply(*batches.marker(offset - 20, commit=True, offset=offset + 1))
        assert stable.last_stable_offset(offset + 2, 0) == max(0, offset - 18)
    assert len(whole(stable.snapshot())) < 400 + len(stable.markers.to_bytes())


def test_very_many_transactions_are_packed_and_read_in_steps() -> None:
    """Their number is the clients' choice, and there is a snapshot whenever a segment begins: one of 100,000 open ones
    took 150 ms of one turn.
    """
    many = 5 * ROWS_TOGETHER
    stable = fold(
        *(batch for at in range(0, 2 * many, 2) for batch in (begun(at, at), begun(at + 1, at + 1))),
        *(batches.marker(at, commit=True, offset=2 * many + at) for at in range(0, 2 * many, 2)),
    )
    opened = list(stable.describe_open())
    taken = stable.snapshot()
    assert not any(type(part) is tuple and sum(map(len, part)) > 100 * KEPT for part in taken), "nothing is packed yet"
    assert len(taken) >= 2 * many / ROWS_TOGETHER
    assert max(map(len, taken)) <= ROWS_TOGETHER
    for at in range(1, 2 * many, 2):
        stable.apply(*batches.marker(at, commit=True, offset=4 * many + at))
    again = StableOffsets()
    assert sum(1 for _ in again.restoring(whole(taken))) >= 2 * many / ROWS_TOGETHER
    assert list(again.describe_open()) == opened
    assert again.snapshot()[0] == taken[0]
    assert whole(again.snapshot()) == whole(taken)
