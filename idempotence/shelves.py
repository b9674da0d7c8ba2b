"""Packed producers by id, on shelves, so that all of them can be handed out at once and at no cost.

What always holds: what `lend` gave out stays as it was then. A shelf that was lent is changed only after a copy was put
in its place: a million producers stand on 64 shelves, and to copy one takes half a millisecond. A few stand on one.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Final

SHELVES: Final = 64
SPREAD_ABOVE: Final = 1 << 14
"""With more producers than this one shelf becomes many."""


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
        """A part of all entries, to look through in one go."""
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
        """All entries as they are now, and stay."""
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
