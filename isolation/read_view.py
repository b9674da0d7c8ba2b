"""What one reader may see of a partition: how far, and which transactions to skip on the way.

What always holds: a reader of committed data gets only what is below the last stable offset, with a list of every
aborted transaction that has batches in it. A reader of uncommitted data gets what is below the high watermark, and no
list. (No list is not the same as an empty list: clients tell the two apart.)
"""

from collections.abc import Iterator
from enum import Enum

from isolation.aborted import AbortedRange
from isolation.stable import StableOffsets


class Isolation(Enum):
    """The values are those on the wire."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class FollowerIsolation(Enum):
    """A follower reads everything in the log, decided or not."""

    LOG_END = 2


AnyIsolation = Isolation | FollowerIsolation


def readable_end_offset(
    isolation: AnyIsolation, *, log_end_offset: int, high_watermark: int, last_stable_offset: int
) -> int:
    """The reader may read below this offset. It is also the answer of ListOffsets for the latest offset."""
    assert last_stable_offset <= high_watermark <= log_end_offset
    if isolation is Isolation.READ_COMMITTED:
        return last_stable_offset
    return high_watermark if isolation is Isolation.READ_UNCOMMITTED else log_end_offset


def aborted_transactions(
    isolation: AnyIsolation, stable: StableOffsets, *, fetch_offset: int, next_offset: int
) -> Iterator[AbortedRange] | None:
    """What goes with batches from `fetch_offset` up to but not including `next_offset`. A client may have made a
    million of them.
    """
    if isolation is not Isolation.READ_COMMITTED:
        return None
    return stable.aborted_ranges(fetch_offset, next_offset)
