"""How many producers the partitions of one broker may remember together, and which are forgotten when there are too
many.

Each producer costs 200 to 400 bytes for as long as `producer.id.expiration.ms`, and a client can invent as many
producer ids as it likes (KIP-936). What always holds: a producer that is remembered can go on writing. Only new
producers of a partition are refused, and only after a search for idle ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from idempotence.producers import ProducerStates

LOOKS_AT_ONCE: Final = 5_000
"""How many producers are looked at before a new one is refused: some milliseconds. The next look begins where this one
ended.
"""
NO_LIMIT: Final = 2**63


class ProducerRoom:
    def __init__(self, limit: int = NO_LIMIT, partitions: Callable[[], Iterable[ProducerStates]] = lambda: ()) -> None:
        self.limit = limit
        self.refused = 0
        self.evicted = 0
        self.is_full = False
        """Whether there was no room when `take` was last called."""
        self._partitions = partitions
        self._not_looked_at: Iterator[ProducerStates] = iter(())
        self._left = 0
        self._full_at_s = -1

    def take(self, now_s: int) -> bool:
        """Take the room for one more producer, if there is any. The producers are counted again only when the room
        found by the last count is used up, and at most once a second while there is none.
        """
        if self._left <= 0 and now_s != self._full_at_s:  # not `>`: the clock may have been set back
            self._left = self.limit - sum(map(len, self._partitions()))
            if self._left <= 0:
                self._left += self._evict(now_s)
        self.is_full = self._left <= 0
        if self.is_full:
            self._full_at_s = now_s
            return False
        self._left -= 1
        return True

    def _evict(self, now_s: int) -> int:
        """Forget idle producers, in one partition after the other. Returns how many."""
        looks, evicted = LOOKS_AT_ONCE, 0
        for states in self._next_partitions():
            gone, looked = states.evict_idle(now_s, looks)
            evicted += gone
            looks -= looked + 1
            if looks <= 0:
                break
        self.evicted += evicted
        return evicted

    def _next_partitions(self) -> Iterator[ProducerStates]:
        """The partitions from where the last look ended, and then all of them."""
        yield from self._not_looked_at
        self._not_looked_at = iter(list(self._partitions()))
        yield from self._not_looked_at
