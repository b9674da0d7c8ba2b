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
ended. Those that are idle are found with one look at each shelf and each partition, which all fit into this; so nobody
is refused while there are any. Others that may go are found as the looks come to them.
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
        self._for_oldest, self._for_idle = _Round(partitions), _Round(partitions)
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
        gone = _look(self._for_oldest, lambda states, at_most: states.evict_oldest(now_s, at_most))
        if not gone:
            gone = _look(self._for_idle, lambda states, at_most: states.evict_idle(now_s, at_most))
        self.evicted += gone
        return gone


class _Round:
    """The partitions from where the last look ended, and then all of them."""

    def __init__(self, partitions: Callable[[], Iterable[ProducerStates]]) -> None:
        self._partitions = partitions
        self._left: Iterator[ProducerStates] = iter(())

    def __iter__(self) -> Iterator[ProducerStates]:
        yield from self._left
        self._left = iter(list(self._partitions()))
        yield from self._left


def _look(partitions: _Round, evict: Callable[[ProducerStates, int], tuple[int, int]]) -> int:
    looks, evicted = LOOKS_AT_ONCE, 0
    for states in partitions:
        gone, looked = evict(states, looks)
        evicted += gone
        looks -= looked + 1
        if looks <= 0:
            break
    return evicted
