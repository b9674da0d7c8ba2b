"""Packed producers by id, divided into several dicts (shelves), so that all of them can be handed out at once at no
cost.

What always holds: what `lend` gave out never changes. A shelf that was lent is copied before it is changed. A shelf has
the producers of one range of ids, and at most SHELF_MOST of them, however clients choose the ids: a shelf that gets
more is divided at its median. So whatever is done to one shelf takes two milliseconds at most. On a shelf the producers
stand in the order in which they were put there last.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Final

SHELF_MOST: Final = 1 << 12


class Shelves:
    __slots__ = ("_begins", "_count", "_lent", "_shelves")

    def __init__(self) -> None:
        self._shelves: list[dict[int, bytes]] = [{}]
        self._begins: list[int] = []
        """The lowest id that belongs to each shelf but the first, which has what is lower."""
        self._lent = bytearray(1)
        """For each shelf, whether it was lent."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def shelves(self) -> int:
        return len(self._shelves)

    def shelf_at(self, producer_id: int) -> tuple[Mapping[int, bytes], int | None]:
        """The shelf where this producer has its place, and the id with which the next shelf begins; None: it is the
        last one. Ids stay in order when shelves are divided or become empty between two calls.
        """
        index = bisect_right(self._begins, producer_id)
        return self._shelves[index], self._begins[index] if index < len(self._begins) else None

    def get(self, producer_id: int) -> bytes | None:
        return self._shelves[bisect_right(self._begins, producer_id)].get(producer_id)

    def put(self, producer_id: int, entry: bytes) -> None:
        index = bisect_right(self._begins, producer_id)
        shelf = self._own(index) if self._lent[index] else self._shelves[index]
        is_new = shelf.pop(producer_id, None) is None
        shelf[producer_id] = entry
        if is_new:
            self._count += 1
            if len(shelf) > SHELF_MOST:
                self._divide(index)

    def remove(self, producer_id: int) -> None:
        index = bisect_right(self._begins, producer_id)
        shelf = self._own(index) if self._lent[index] else self._shelves[index]
        del shelf[producer_id]
        self._count -= 1
        if not shelf and self._begins:
            # The shelf before it takes over its ids; of the first one, the next.
            del self._shelves[index], self._lent[index], self._begins[max(index - 1, 0)]

    def lend(self) -> list[Collection[bytes]]:
        """All entries as they are now. Later changes don't show in what is returned."""
        self._lent = bytearray(b"\1" * len(self._shelves))
        return [shelf.values() for shelf in self._shelves]

    def emptied(self) -> Iterator[None]:
        """Remove all producers, step by step. What they were is not asked any more."""
        while self._shelves:
            self._shelves.pop()
            yield

    def _own(self, index: int) -> dict[int, bytes]:
        self._shelves[index] = self._shelves[index].copy()
        self._lent[index] = False
        return self._shelves[index]

    def _divide(self, index: int) -> None:
        crowded = self._shelves[index]
        begin = sorted(crowded)[len(crowded) // 2]
        self._shelves[index : index + 1] = [
            {producer_id: entry for producer_id, entry in crowded.items() if producer_id < begin},
            {producer_id: entry for producer_id, entry in crowded.items() if producer_id >= begin},
        ]
        self._begins.insert(index, begin)
        self._lent.insert(index, False)
