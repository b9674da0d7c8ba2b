"""Packed producers by id, divided into several dicts (shelves), so that all of them can be handed out at once at no
cost.

What always holds: what `lend` gave out never changes. A shelf that was lent is copied before it is changed. A million
producers are on 64 shelves, and copying one shelf takes half a millisecond. Few producers are on a single shelf.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Final

SHELVES: Final = 64
SPREAD_ABOVE: Final = 1 << 14
"""With more producers than this the single shelf is divided into many."""


class Shelves:
    __slots__ = ("_lent", "_mask", "_shelves")

    def __init__(self, expected: int = 0) -> None:
        count = SHELVES if expected > SPREAD_ABOVE else 1
        self._mask = count - 1
        self._shelves: list[dict[int, bytes]] = [{} for _ in range(count)]
        self._lent: set[int] = set()

    def __len__(self) -> int:
        return sum(map(len, self._shelves))

    @property
    def shelves(self) -> int:
        return len(self._shelves)

    def shelf(self, number: int) -> Mapping[int, bytes]:
        """One part of the entries, small enough to be looked through in one turn of the loop."""
        return self._shelves[number % len(self._shelves)]

    def items(self) -> Iterator[tuple[int, bytes]]:
        return chain.from_iterable(shelf.items() for shelf in self._shelves)

    def get(self, producer_id: int) -> bytes | None:
        return self._shelves[producer_id & self._mask].get(producer_id)

    def put(self, producer_id: int, entry: bytes) -> None:
        shelf = self._own(producer_id) if self._lent else self._shelves[producer_id & self._mask]
        shelf[producer_id] = entry
        if not self._mask and len(shelf) > SPREAD_ABOVE:
            self._spread()

    def remove(self, producer_id: int) -> None:
        del self._own(producer_id)[producer_id]

    def lend(self) -> list[Collection[bytes]]:
        """All entries as they are now. Later changes don't show in what is returned."""
        self._lent = set(range(len(self._shelves)))
        return [shelf.values() for shelf in self._shelves]

    def _own(self, producer_id: int) -> dict[int, bytes]:
        index = producer_id & self._mask
        if index in self._lent:
            self._shelves[index] = self._shelves[index].copy()
            self._lent.discard(index)
        return self._shelves[index]

    def _spread(self) -> None:
        (crowded,) = self._shelves
        self._mask, self._shelves, self._lent = SHELVES - 1, [{} for _ in range(SHELVES)], set()
        for producer_id, entry in crowded.items():
            self._shelves[producer_id & self._mask][producer_id] = entry
