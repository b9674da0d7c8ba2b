import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotence.producer_ids import (
    BLOCK_SIZE,
    LAST_PRODUCER_ID,
    ProducerIdBlock,
    ProducerIds,
    ProducerIdsExhausted,
    next_block,
)
from tests.rules import rule


@rule("B.3", "producer ids come in blocks; one is never handed out twice, gaps are fine")
@given(st.lists(st.integers(0, 400), max_size=12))
def test_no_id_is_handed_out_twice_however_often_the_broker_restarts(lives: list[int]) -> None:
    """Each life reserves a block before its first id leaves, takes some and dies with the rest."""
    store, handed_out = 0, []
    for taken in lives:
        supply = ProducerIds()
        for _ in range(taken):
            if supply.running_low:
                block = next_block(store)
                store = block.end
                supply.add(block)
            handed_out.append(supply.take())
    assert None not in handed_out
    assert len(set(handed_out)) == len(handed_out)


def test_an_empty_supply_says_so_and_goes_on_with_the_next_block() -> None:
    supply = ProducerIds()
    assert supply.take() is None
    supply.add(ProducerIdBlock(7, 2))
    supply.add(ProducerIdBlock(5_000, 1))
    assert [supply.take() for _ in range(4)] == [7, 8, 5_000, None]
    assert supply.remaining == 0


def test_a_block_is_asked_for_before_the_last_one_is_used_up() -> None:
    supply = ProducerIds()
    supply.add(next_block(0))
    taken = 0
    while not supply.running_low:
        supply.take()
        taken += 1
    assert taken == BLOCK_SIZE * 9 // 10


def test_the_last_block_is_not_followed_by_another() -> None:
    with pytest.raises(ProducerIdsExhausted):
        next_block(LAST_PRODUCER_ID - 10)


def test_a_block_that_was_given_before_is_not_taken_up_again() -> None:
    ids = ProducerIds()
    ids.add(ProducerIdBlock(1000))
    with pytest.raises(AssertionError, match="no id is given out twice"):
        ids.add(ProducerIdBlock(1000))
    ids.add(ProducerIdBlock(2000))
