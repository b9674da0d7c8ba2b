"""What ends by itself, and when: open transactions by their timeout, idle ids by their age.

`abort_at_ms` and `forget_after_ms` are the rules; `Deadlines` finds the next one without looking at every id.
"""

import heapq
from typing import Final

from log.clock import CLOCK_SET_MS
from log.ids import NO_TIMESTAMP
from txn.branches import branch_of
from txn.settings import TxnSettings
from txn.states import AT_REST, NO_TOKEN, State, Txn

DECISION_RETENTION_MS: Final = 90 * 86_400_000
"""How long a root's last decision is remembered after it was taken. A Spark query that stood still for longer than
the seven days of an ordinary id must not write its last batch again."""
SPARE_ENTRIES: Final = 64
_NEVER: Final = (-1, -1)


def abort_at_ms(txn: Txn) -> int | None:
    """When an open transaction is aborted for its client, by the clock that stamped it; None: never.

    A sealed branch waits for its root anew: its writer has done its part, and the others may take as long again. A
    branch that has written nothing is ended too: nobody else would.
    """
    if txn.is_two_phase:
        return None
    if txn.sealed_ms != NO_TIMESTAMP:
        began_ms = txn.sealed_ms
    elif txn.state is State.ONGOING:
        began_ms = txn.started_ms
    elif txn.state is State.EMPTY and branch_of(txn.transactional_id) is not None:
        began_ms = txn.updated_ms
    else:
        return None
    return began_ms + txn.timeout_ms + 1 if txn.state in (State.EMPTY, State.ONGOING) else None


def forget_after_ms(txn: Txn, settings: TxnSettings) -> int | None:
    """How long an id is remembered that nobody uses; None while something of it is open."""
    if txn.state not in AT_REST:
        return None
    age_ms = settings.id_expiration_ms
    if txn.decided_token != NO_TOKEN:
        age_ms = max(age_ms, DECISION_RETENTION_MS)
    return age_ms


class Deadlines:
    """The next abort first. Entries of transactions that ended meanwhile stay until they come up, or until they
    outnumber the others.

    Deadlines are by the steady clock. What was replayed has waited for as long as the wall clock says, but begins anew
    if its stamp can't be: it lies ahead, or was made by a clock that was not set.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._at: dict[str, tuple[int, int]] = {}  # and which wait of the id it is
        self._now_ms = self._wall_ms = 0
        self._replayed: dict[str, Txn] | None = {}

    def note_time(self, now_ms: int, wall_ms: int) -> None:
        """Before a decision. The first one ends the replay."""
        self._now_ms, self._wall_ms = now_ms, wall_ms
        if self._replayed is not None:
            replayed, self._replayed = self._replayed, None
            for txn in replayed.values():
                self.follow(txn)

    def follow(self, txn: Txn) -> None:
        """Take up a transaction as it is now."""
        until_ms = abort_at_ms(txn)
        if until_ms is None:
            self.forget(txn.transactional_id)
        elif self._replayed is not None:
            self._replayed[txn.transactional_id] = txn
        elif self._at.get(txn.transactional_id, _NEVER)[1] != until_ms:
            at_ms = self._now_ms + self._left_ms(until_ms, txn.timeout_ms + 1)
            self._at[txn.transactional_id] = (at_ms, until_ms)
            heapq.heappush(self._heap, (at_ms, txn.transactional_id))
            self._trim()

    def _left_ms(self, until_ms: int, whole_ms: int) -> int:
        """Below zero: overdue."""
        was_set = until_ms - whole_ms >= CLOCK_SET_MS
        return min(until_ms - self._wall_ms, whole_ms) if was_set else whole_ms

    def forget(self, transactional_id: str) -> None:
        self._at.pop(transactional_id, None)
        if self._replayed is not None:
            self._replayed.pop(transactional_id, None)

    def next_ms(self) -> int | None:
        heap = self._heap
        while heap and self._at.get(heap[0][1], _NEVER)[0] != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int, at_most: int) -> list[str]:
        """The ids whose time is up, the longest overdue first. They stay due until they are followed anew."""
        found: list[tuple[int, str]] = []
        while len(found) < at_most and (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            found.append(heapq.heappop(self._heap))
        for entry in found:
            heapq.heappush(self._heap, entry)
        return list(dict.fromkeys(transactional_id for _, transactional_id in found))

    def _trim(self) -> None:
        if len(self._heap) > 2 * len(self._at) + SPARE_ENTRIES:
            self._heap = [(at_ms, transactional_id) for transactional_id, (at_ms, _) in self._at.items()]
            heapq.heapify(self._heap)
