import pytest

from idempotence.epochs import FENCE_EPOCH, bumped, is_exhausted
from tests.rules import rule


@rule("B.3", "an epoch of 32766 is exhausted: only the fence is above it")
def test_the_last_usable_epoch_is_exhausted_and_can_still_be_fenced() -> None:
    assert not is_exhausted(32765)
    assert is_exhausted(32766)
    assert bumped(32766) == FENCE_EPOCH == 32767


def test_the_first_epoch_is_zero() -> None:
    assert bumped(-1) == 0


def test_nothing_is_above_the_fence() -> None:
    with pytest.raises(AssertionError):
        bumped(FENCE_EPOCH)
