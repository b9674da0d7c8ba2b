"""The last five batches of one producer in one partition, packed into bytes, newest first.

A producer may have five batches under way, so a repeated batch is one of the last five; anything older is out of order.
The packed form is the same in memory and in a snapshot. It is packed because a million producers must fit, and five
batches as Python objects would take kilobytes for each producer.

In every function `entry` is a packed producer, whose window begins at `WINDOW_AT`.
"""

import struct
from typing import Final, NamedTuple

from idempotence.sequence import first_sequence

WINDOW_BATCHES: Final = 5
"""How many unacknowledged batches an idempotent producer may have (max.in.flight.requests.per.connection)."""

HEAD: Final = struct.Struct(">qhBiqI")
"""producer id, epoch, batches in the window, coordinator epoch, timestamp of the last batch or marker, last seen
(seconds since 1970, 0 unknown)
"""
BATCH: Final = struct.Struct(">iqiq")
"""last sequence, last offset, last offset delta, timestamp"""
HEAD_AND_BATCH: Final = struct.Struct(">qhBiqIiqiq")
EPOCH: Final = struct.Struct(">8xh")
EPOCH_AND_SEQUENCE: Final = struct.Struct(">8xh17xi")
WINDOW_AT: Final = HEAD.size
KEPT_BEFORE_PUSH: Final = WINDOW_AT + (WINDOW_BATCHES - 1) * BATCH.size

assert HEAD.size + BATCH.size == HEAD_AND_BATCH.size
assert EPOCH_AND_SEQUENCE.size == WINDOW_AT + 4


class StoredBatch(NamedTuple):
    """A batch as the window remembers it."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return first_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


def batches(entry: bytes) -> list[StoredBatch]:
    """The window of an entry, newest first."""
    return [StoredBatch(*fields) for fields in BATCH.iter_unpack(memoryview(entry)[WINDOW_AT:])]


def find(entry: bytes, *, last_sequence: int, offset_delta: int) -> StoredBatch | None:
    """The remembered batch with exactly these sequences; None if there is none, also for a part of a batch."""
    for at in range(WINDOW_AT, len(entry), BATCH.size):
        stored = BATCH.unpack_from(entry, at)
        if stored[0] == last_sequence and stored[2] == offset_delta:
            return StoredBatch(*stored)
    return None
