"""Named deadlines that can be moved and cancelled cheaply.

Heartbeats move a deadline far more often than one becomes due. So moving a deadline to a later time does not touch the
heap, nor does a look at the next time: an entry that comes up too early is put back at its new time when it comes up.
At most one entry of a name is valid. The others are swept out when they are more than the valid ones: clients choose
some of the times, and may choose one weeks ahead.
"""

from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

DeadlineName = tuple[str, str, str]  # what is due, of which group, of which member; the latter two may be empty

# So many entries more than twice the valid ones are kept. Sweeping takes a third of a microsecond an entry.
SPARED = 1_000
# So many entries at most are put right before one deadline is taken. Each takes less than a microsecond.
PUT_RIGHT_AT_ONCE = 100


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

    def cancel_each(self, names: Iterable[Name]) -> None:
        due = self._due
        for name in names:
            due.pop(name, None)

    def __contains__(self, name: Name) -> bool:
        return name in self._due

    def next_ms(self) -> int | None:
        """No deadline comes before this time; None if there is none. The first one may come later, and is looked for
        when this time has come.
        """
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Name | None:
        """Take the first deadline that is due. Returns its name; None if none is due, or if one may be due once more
        entries are put right: then the next time has come already.
        """
        heap, in_heap = self._heap, self._in_heap
        for _ in range(PUT_RIGHT_AT_ONCE):
            if not heap:
                break
            listed_ms, _, name = heap[0]
            due_ms = self._due.get(name)
            is_valid = in_heap.get(name) == listed_ms
            if is_valid and due_ms is not None and due_ms > listed_ms:
                self._added += 1
                in_heap[name] = due_ms
                heapreplace(heap, (due_ms, self._added, name))
                continue
            if is_valid and due_ms is not None and due_ms > now_ms:
                break
            heappop(heap)
            if is_valid:  # otherwise the name has an earlier entry, or had one
                del in_heap[name]
                if due_ms is not None:
                    del self._due[name]
                    return name
        return None

    def _push(self, name: Name, due_ms: int) -> None:
        self._added += 1  # deadlines with equal times come up in the order in which they were set
        self._in_heap[name] = due_ms
        heappush(self._heap, (due_ms, self._added, name))
        if len(self._heap) > 2 * len(self._due) + SPARED:
            self._heap = [(due_ms, order, name) for order, (name, due_ms) in enumerate(self._due.items())]
            heapify(self._heap)
            self._in_heap = dict(self._due)
            self._added = len(self._heap)
