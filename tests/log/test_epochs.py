import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.epochs import BadCheckpoint, LeaderEpochs

KNOWN = LeaderEpochs([(1, 0), (3, 50), (6, 80)])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),  # no epoch
        (0, (0, 0)),  # before everything known: it ended where the first one began
        (1, (1, 50)),
        (2, (1, 50)),  # unknown here: the largest below it
        (3, (3, 80)),
        (5, (3, 80)),
        (6, (6, 120)),  # the latest ends where the log ends
        (7, (-1, -1)),  # from the future
    ],
)
def test_epochs_end_where_the_next_one_began(asked: int, answer: tuple[int, int]) -> None:
    assert KNOWN.end_offset_for_epoch(asked, 120) == answer


def test_a_log_that_knows_no_epoch_says_nothing() -> None:
    empty = LeaderEpochs()
    assert empty.end_offset_for_epoch(0, 10) == (-1, -1)
    assert empty.latest == empty.epoch_at(5) == -1


def test_offsets_know_their_epoch() -> None:
    assert [KNOWN.epoch_at(offset) for offset in (0, 49, 50, 79, 80, 10**9)] == [1, 1, 3, 3, 6, 6]


def test_cutting_forgets_what_is_cut_and_keeps_who_wrote_the_rest() -> None:
    epochs = LeaderEpochs(KNOWN.entries())
    epochs.truncate_from_end(80)
    assert epochs.entries() == [(1, 0), (3, 50)]
    epochs.truncate_from_start(50)
    assert epochs.end_offset_for_epoch(0, 100) == (0, 0), "who wrote right before the start is known"
    assert epochs.end_offset_for_epoch(1, 100) == (1, 50)
    epochs.truncate_from_start(60)
    assert epochs.entries() == [(3, 50)], "who holds another history from 50 on must be told"
    assert epochs.end_offset_for_epoch(1, 100) == (1, 50)
    epochs.truncate_from_end(50)
    assert epochs.entries() == []


def test_an_epoch_without_batches_gives_way_to_the_next() -> None:
    epochs = LeaderEpochs([(1, 0)])
    epochs.assign(2, 10)
    epochs.assign(3, 10)
    assert epochs.entries() == [(1, 0), (3, 10)]
    assert epochs.changed


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100)), max_size=20))
def test_entries_rise_whatever_is_assigned_and_survive_their_text(assigned: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs()
    for epoch, start in assigned:
        epochs.assign(epoch, start)
    entries = epochs.entries()
    assert entries == sorted(set(entries))
    assert [start for _, start in entries] == sorted({start for _, start in entries})
    again = LeaderEpochs.from_text(epochs.to_text())
    assert again.entries() == entries
    assert not again.changed


def test_the_text_is_kafkas() -> None:
    assert KNOWN.to_text() == b"0\n3\n1 0\n3 50\n6 80\n"


@pytest.mark.parametrize(
    "text",
    [b"", b"0\n", b"1\n0\n", b"0\n2\n1 0\n", b"0\n1\nx y\n", b"0\n1\n1 0 0\n", b"0\n2\n3 0\n1 5\n", b"\xff\n0\n"],
)
def test_other_texts_are_refused(text: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        LeaderEpochs.from_text(text)
