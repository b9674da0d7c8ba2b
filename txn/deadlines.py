"""What ends by itself, and when: open transactions by their timeout, idle ids by their age.

`abort_at_ms` and `forget_at_ms` are the rules; `Deadlines` finds the next one without looking at every id.
"""

import heapq
from typing import Final

from log.ids import NO_TIMESTAMP
from txn.branches import branch_of
from txn.settings import TxnSettings
from txn.states import AT_REST, NO_TOKEN, State, Txn

DECISION_RETENTION_MS: Final = 90 * 86_400_000
"""How long a root's last decision is remembered after it was taken. A Spark query that stood still for longer than
the seven days of an ordinary id must not write its last batch again."""
SPARE_ENTRIES: Final = 64


def abort_at_ms(txn: Txn) -> int | None:
    """When an open transaction is aborted for its client; None: never.

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


def forget_at_ms(txn: Txn, settings: TxnSettings) -> int | None:
    """When an id nobody used is forgotten; None while something of it is open."""
    if txn.state not in AT_REST:
        return None
    age_ms = settings.id_expiration_ms
    if txn.decided_token != NO_TOKEN:
        age_ms = max(age_ms, DECISION_RETENTION_MS)
    return txn.updated_ms + age_ms


class Deadlines:
    """The next abort first. Entries of transactions that ended meanwhile stay until they come up, or until they
    outnumber the others.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._at: dict[str, int] = {}

    def follow(self, txn: Txn) -> None:
        """Take up a transaction as it is now."""
        at_ms = abort_at_ms(txn)
        if at_ms is None:
            self.forget(txn.transactional_id)
        elif self._at.get(txn.transactional_id) != at_ms:
            self._at[txn.transactional_id] = at_ms
            heapq.heappush(self._heap, (at_ms, txn.transactional_id))
            self._trim()

    def forget(self, transactional_id: str) -> None:
        self._at.pop(transactional_id, None)

    def next_ms(self) -> int | None:
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
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
            self._heap = [(at_ms, transactional_id) for transactional_id, at_ms in self._at.items()]
            heapq.heapify(self._heap)
