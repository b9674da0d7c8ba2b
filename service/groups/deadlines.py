"""Named deadlines that can be moved and cancelled cheaply.

Heartbeats move a deadline far more often than one becomes due. So moving a deadline to a later time does not touch the
heap: an entry that comes up too early is put back at its new time. At most one entry of a name is valid. The others are
swept out when they are more than the valid ones: clients choose some of the times, and may choose one weeks ahead.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

DeadlineName = tuple[str, str, str]  # what is due, of which group, of which member; the latter two may be empty

# So many entries more than twice the valid ones are kept. Sweeping takes a third of a microsecond an entry.
SPARED = 1_000


class Deadlines(Generic[Name]):
    def __init__(self) -> None:
        self._due: dict[Name, int] = {}
        self._heap: list[tuple[int, int, Name]] = []
        self._in_heap: dict[Name, int] = {}  # the time of a name's valid entry, which is never later than its deadline
        self._added = 0

    def set(self, name: Name, due_ms: int) -> None:
        self._due[name] = due_ms
        listed_ms = self._in_heap.get(name)
        if listed_ms is None or due_ms < listed_ms:
            self._push(name, due_ms)

    def set_if_absent(self, name: Name, due_ms: int) -> None:
        if name not in self._due:
            self.set(name, due_ms)

    def cancel(self, name: Name) -> None:
        self._due.pop(name, None)

    def __contains__(self, name: Name) -> bool:
        return name in self._due

    def next_ms(self) -> int | None:
        """The time of the first deadline; None if there is none."""
        while self._heap:
            listed_ms, _, name = self._heap[0]
            due_ms = self._due.get(name)
            if self._in_heap.get(name) != listed_ms or due_ms is None:
                heappop(self._heap)  # the name has an earlier entry, or its deadline was cancelled
                if due_ms is None and self._in_heap.get(name) == listed_ms:
                    del self._in_heap[name]
            elif due_ms > listed_ms:
                self._added += 1
                self._in_heap[name] = due_ms
                heapreplace(self._heap, (due_ms, self._added, name))
            else:
                return due_ms
        return None

    def pop_due(self, now_ms: int) -> Name | None:
        """Take the first deadline that is due. Returns its name; None if none is due."""
        due_ms = self.next_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        _, _, name = heappop(self._heap)
        del self._in_heap[name]
        del self._due[name]
        return name

    def _push(self, name: Name, due_ms: int) -> None:
        self._added += 1  # deadlines with equal times come up in the order in which they were set
        self._in_heap[name] = due_ms
        heappush(self._heap, (due_ms, self._added, name))
        if len(self._heap) > 2 * len(self._due) + SPARED:
            self._heap = [(due_ms, order, name) for order, (name, due_ms) in enumerate(self._due.items())]
            heapify(self._heap)
            self._in_heap = dict(self._due)
            self._added = len(self._heap)
