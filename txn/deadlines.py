"""What ends by itself, and when: open transactions by their timeout, idle ids by their age.

`abort_at_ms` and `forget_after_ms` are the rules; `TxnDeadlines` finds the next one without looking at every id.
"""

import heapq
from typing import Final

from log.clock import CLOCK_SET_MS
from log.ids import NO_TIMESTAMP
from txn.branches import branch_of
from txn.settings import TxnSettings
from txn.states import AT_REST, NO_TOKEN, State, Txn

DECISION_RETENTION_MS: Final = 90 * 86_400_000
"""How long a root's last decision is remembered. An ordinary id is remembered for seven days; a Spark query that was
stopped for longer must not write its last batch again.
"""
SPARE_ENTRIES: Final = 64
TAKEN_UP_AT_ONCE: Final = 1_000
"""How many replayed transactions one decision takes up. More follow in the next turn of the loop."""
STALE_AT_ONCE: Final = 100
"""How many entries of ended transactions are removed at once. More follow when the next deadline is asked for."""
_NEVER: Final = (-1, -1)


def abort_at_ms(txn: Txn) -> int | None:
    """When an open transaction is aborted because of its timeout, by the wall clock that stamped it; None: never.

    The timeout of a branch begins again when it is sealed: its writer has finished, and the other writers may take as
    long. A branch that has written nothing is aborted, too, because nothing else would end it.
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
    """How long an unused id is remembered; None while it has an open transaction."""
    if txn.state not in AT_REST:
        return None
    age_ms = settings.id_expiration_ms
    if txn.decided_token != NO_TOKEN:
        age_ms = max(age_ms, DECISION_RETENTION_MS)
    return age_ms


class TxnDeadlines:
    """The times at which open transactions are to be aborted, in a heap. Entries of transactions that ended meanwhile
    stay in the heap until they come up, or until there are more of them than of others.

    Deadlines are times of the steady clock. For a replayed transaction the wall clock tells how long it has been open.
    If its stamp can't be right (it lies in the future, or was made by a clock that was not set), its time begins anew.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        # By id: when the transaction is aborted, by the steady clock and by the wall clock. The latter tells whether
        # the deadline has changed.
        self._at: dict[str, tuple[int, int]] = {}
        self._now_ms = self._wall_ms = 0
        self._is_replaying = True
        self._replayed: dict[str, Txn] = {}

    def note_time(self, now_ms: int, wall_ms: int) -> None:
        """Take up the time of a decision, before it is made. The first decision ends the replay. What was replayed is
        taken up by this decision and those after it, some at a time.
        """
        self._now_ms, self._wall_ms, self._is_replaying = now_ms, wall_ms, False
        if self._replayed:
            for _ in range(min(len(self._replayed), TAKEN_UP_AT_ONCE)):
                self.follow(self._replayed.popitem()[1])

    def follow(self, txn: Txn) -> None:
        """Take up a transaction as it is now."""
        until_ms = abort_at_ms(txn)
        if until_ms is None:
            self.forget(txn.transactional_id)
        elif self._is_replaying:
            self._replayed[txn.transactional_id] = txn
        elif self._at.get(txn.transactional_id, _NEVER)[1] != until_ms:
            self._replayed.pop(txn.transactional_id, None)
            at_ms = self._now_ms + self._left_ms(until_ms, txn.timeout_ms + 1)
            self._at[txn.transactional_id] = (at_ms, until_ms)
            heapq.heappush(self._heap, (at_ms, txn.transactional_id))
            self._trim()

    def _left_ms(self, until_ms: int, whole_ms: int) -> int:
        """How long until the deadline, at most the whole timeout. Below zero: the deadline is over."""
        was_set = until_ms - whole_ms >= CLOCK_SET_MS
        return min(until_ms - self._wall_ms, whole_ms) if was_set else whole_ms

    def forget(self, transactional_id: str) -> None:
        self._at.pop(transactional_id, None)
        self._replayed.pop(transactional_id, None)

    def next_ms(self) -> int | None:
        """When there is something to do at the latest; at once while there are replayed transactions to take up. After
        very many transactions have ended there may be nothing to do yet at that time.
        """
        return 0 if self._replayed and not self._is_replaying else self._next_abort_ms()

    def _next_abort_ms(self) -> int | None:
        heap = self._heap
        for _ in range(STALE_AT_ONCE):
            if not heap or self._is_current(heap[0]):
                break
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _is_current(self, entry: tuple[int, str]) -> bool:
        return self._at.get(entry[1], _NEVER)[0] == entry[0]

    def due(self, now_ms: int, at_most: int) -> list[str]:
        """The ids whose deadline is over, the longest overdue first. An id stays due until `follow` or `forget`."""
        found: list[tuple[int, str]] = []
        for _ in range(at_most + STALE_AT_ONCE):
            if len(found) == at_most or not self._heap or self._heap[0][0] > now_ms:
                break
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return list(dict.fromkeys(transactional_id for _, transactional_id in found))

    def _trim(self) -> None:
        if len(self._heap) > 2 * len(self._at) + SPARE_ENTRIES:
            self._heap = [(at_ms, transactional_id) for transactional_id, (at_ms, _) in self._at.items()]
            heapq.heapify(self._heap)
