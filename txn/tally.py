"""How transactions ended since the start of this process, and how long it took.

An end is counted once, when its decision is applied, and never in a replay. No decision depends on these numbers.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from log.ids import NO_TIMESTAMP, TopicPartition
from log.tally import HOW_MANY, LONG_SECONDS, Histogram
from txn.states import COMPLETED, PREPARED, State, Txn

TIMEOUT = "timeout"
FENCED = "fenced"
COMMIT = "commit"
ABORT = "abort"


class MoveWatcher(Protocol):
    """Is told of every move, if one is set (`monitoring/spans.py` has one)."""

    @property
    def lost(self) -> int: ...
    def moved(self, after: Txn, why: str) -> None: ...
    def marked(self, name: str, partitions: Sequence[TopicPartition], at_ms: int) -> None: ...


class TxnTally:
    def __init__(self) -> None:
        self.follower: MoveWatcher | None = None
        self.ended: Counter[str] = Counter({COMMIT: 0, ABORT: 0, TIMEOUT: 0, FENCED: 0})
        self.duration = Histogram(LONG_SECONDS)
        """From the first partition to the decision."""
        self.markers = Histogram()
        """From the decision until every partition has its marker."""
        self.completed = Histogram()
        """From the last marker until the end is on record, as the courier of the markers counts it."""
        self.partitions = Histogram(HOW_MANY)

    def count(self, before: Txn | None, after: Txn, why: str) -> None:
        """Count a move that was applied. `why` is empty if the transaction's own client ended it."""
        if self.follower is not None:
            self.follower.moved(after, why)
        if before is None:
            return
        if after.state in PREPARED and before.state is State.ONGOING:
            self.ended[why or (COMMIT if after.state is State.PREPARE_COMMIT else ABORT)] += 1
            self.partitions.add(len(after.partitions))
            if after.started_ms != NO_TIMESTAMP:
                self.duration.add_named(_seconds(after.started_ms, after.updated_ms), _names(after), after.updated_ms)
        elif after.state in COMPLETED and before.state in PREPARED:
            self.markers.add_named(_seconds(before.updated_ms, after.updated_ms), _names(after), after.updated_ms)

    def mark(self, transactional_id: str, partitions: Sequence[TopicPartition], at_ms: int) -> None:
        """These partitions have their marker."""
        if self.follower is not None:
            self.follower.marked(transactional_id, partitions, at_ms)


def _seconds(since_ms: int, until_ms: int) -> float:
    """The time between both, and never less than zero: the clock may have been set back in between."""
    return max(until_ms - since_ms, 0) / 1000


def _names(txn: Txn) -> tuple[tuple[str, str], ...]:
    return ("transactional_id", txn.transactional_id), ("producer_id", str(txn.producer_id))
