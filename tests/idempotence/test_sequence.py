from hypothesis import given
from hypothesis import strategies as st

from idempotence.sequence import MAX_SEQUENCE, first_sequence, last_sequence, next_sequence
from tests.rules import rule

SEQUENCES = st.integers(0, MAX_SEQUENCE)


@rule("B.1", "the sequence after 2147483647 is 0")
def test_the_last_sequence_is_followed_by_zero() -> None:
    assert next_sequence(MAX_SEQUENCE) == 0
    assert next_sequence(MAX_SEQUENCE - 1) == MAX_SEQUENCE


@rule("B.1", "a batch's last sequence wraps modulo 2^31, not 2^31 - 1")
def test_a_batch_may_span_the_wrap() -> None:
    assert last_sequence(MAX_SEQUENCE - 1, 3) == 1
    assert first_sequence(1, 3) == MAX_SEQUENCE - 1


def test_nothing_written_is_followed_by_zero() -> None:
    assert next_sequence(-1) == 0


@given(SEQUENCES, st.integers(0, 100_000))
def test_first_and_last_of_a_batch_lead_to_each_other(sequence: int, delta: int) -> None:
    assert first_sequence(last_sequence(sequence, delta), delta) == sequence
