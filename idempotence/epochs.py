"""Producer epochs: which one comes next, and when there is no next one.

An epoch is a signed 16-bit number. A producer writes with 32766 at most. The last one, 32767, is reserved, so that a
producer that wrote with 32766 can still be fenced by a marker. After that the transactional id gets a new producer id,
which starts at epoch 0.

Partitions and the transaction coordinator must agree on these rules, so they are here.
"""

from typing import Final

FIRST_EPOCH: Final = 0
FENCE_EPOCH: Final = 2**15 - 1
"""Never handed to a producer; only a marker may carry it."""
LAST_EPOCH: Final = FENCE_EPOCH - 1
"""The last epoch a producer may write with."""


def is_exhausted(epoch: int) -> bool:
    """Whether no further epoch can be handed out under the same producer id."""
    return epoch >= LAST_EPOCH


def bumped(epoch: int) -> int:
    """The next epoch; from -1 (no epoch yet) the first."""
    assert epoch < FENCE_EPOCH, "there is nothing above the fence"
    return epoch + 1
