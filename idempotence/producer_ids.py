"""Producer ids: handed out one by one from blocks, each block reserved durably before its first id leaves.

What always holds: an id is handed out only once. The metadata store remembers only where the next block begins. If a
broker stops, the unused ids of its block are lost, which is fine: there are 2^63 of them.

`next_block` says what the store must write. `ProducerIds` is the supply of one broker. A new block should be reserved
while the old one still has ids (`running_low`), so that no producer waits for the store.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

BLOCK_SIZE: Final = 1000
"""The same as in Kafka: one durable write for a thousand producers."""
LOW_WATERMARK: Final = BLOCK_SIZE // 10
LAST_PRODUCER_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The ids from `first` on, `size` of them."""

    first: int
    size: int = BLOCK_SIZE

    @property
    def end(self) -> int:
        """The first id after the block."""
        return self.first + self.size


class ProducerIdsExhausted(Exception):
    """All 2^63 ids are reserved: no block is left."""


def next_block(next_producer_id: int) -> ProducerIdBlock:
    """The block that begins at `next_producer_id`. Its `end` is the `next_producer_id` that the store must write."""
    assert next_producer_id >= 0
    if next_producer_id > LAST_PRODUCER_ID - BLOCK_SIZE:
        raise ProducerIdsExhausted
    return ProducerIdBlock(next_producer_id)


class ProducerIds:
    """One broker's supply of fresh ids."""

    def __init__(self) -> None:
        self._blocks: deque[ProducerIdBlock] = deque()
        self._next = 0
        self._reserved_to = 0
        self.remaining = 0

    def add(self, block: ProducerIdBlock) -> None:
        """Take up a block that the store has durably reserved for this broker."""
        assert block.size > 0
        assert block.first >= self._reserved_to, "blocks rise, so no id is given out twice"
        self._reserved_to = block.end
        if not self._blocks:
            self._next = block.first
        self._blocks.append(block)
        self.remaining += block.size

    @property
    def running_low(self) -> bool:
        """Time to reserve a further block."""
        return self.remaining <= LOW_WATERMARK

    def take(self) -> int | None:
        """A fresh id, or None when the supply is used up: the caller asks again when a block has come."""
        if not self._blocks:
            return None
        taken = self._next
        self.remaining -= 1
        self._next += 1
        if self._next == self._blocks[0].end:
            self._blocks.popleft()
            if self._blocks:
                self._next = self._blocks[0].first
        return taken
