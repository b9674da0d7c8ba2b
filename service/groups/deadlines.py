"""What falls due when: named deadlines that can be moved and called off cheaply.

Heartbeats move a deadline far more often than one falls due, so moving one does not touch the heap: an entry that comes
up too early is put back where it belongs. At most one entry of a name is live.
"""

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

DeadlineName = tuple[str, str, str]  # what is due, of which group, of which member; the latter two may be empty


class Deadlines(Generic[Name]):
    def __init__(self) -> None:
        self._due: dict[Name, int] = {}
        self._heap: list[tuple[int, int, Name]] = []
        self._in_heap: dict[Name, int] = {}  # when the live entry of a name comes up: never after it is due
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
        """When the first deadline falls due; None without any."""
        while self._heap:
            listed_ms, _, name = self._heap[0]
            due_ms = self._due.get(name)
            if self._in_heap.get(name) != listed_ms or due_ms is None:
                heappop(self._heap)  # overtaken by an earlier entry, or called off
                if due_ms is None and self._in_heap.get(name) == listed_ms:
                    del self._in_heap[name]
            elif due_ms > listed_ms:
                heappop(self._heap)
                self._push(name, due_ms)
            else:
                return due_ms
        return None

    def pop_due(self, now_ms: int) -> Name | None:
        """The first name that is due, which is then forgotten; None when nothing is."""
        due_ms = self.next_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        _, _, name = heappop(self._heap)
        del self._in_heap[name]
        del self._due[name]
        return name

    def _push(self, name: Name, due_ms: int) -> None:
        self._added += 1  # equal times come up in the order they were set
        self._in_heap[name] = due_ms
        heappush(self._heap, (due_ms, self._added, name))
