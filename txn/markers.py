"""The markers that are still owed: the partitions of prepared transactions that were not told how the transaction
ended.

What always holds: this is a fold over the prepared and completed transactions. So after a restart or a change of leader
the same markers are owed again; a partition that has its marker already takes a second one without harm. Which markers
have been written is remembered in memory only.

`SendMarkers` is the effect that the courier (`service/broker/marker_courier.py`) carries out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from log.ids import TopicPartition
from txn.states import PREPARED, State, Txn


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """The effect: tell these partitions how the transaction of this pair ended."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


_Entry = tuple[Txn, dict[TopicPartition, None]]


class OwedMarkers:
    """Partitions without a marker, by transactional id."""

    def __init__(self) -> None:
        self._owed: dict[str, _Entry] = {}
        self.count = 0
        """How many markers are owed."""
        self.settled: dict[str, Txn] = {}
        """Prepared transactions that owe no marker: no partition was ever added, or each has its own. They are to be
        completed.
        """

    def __len__(self) -> int:
        return len(self._owed)

    def follow(self, txn: Txn) -> None:
        """Take up a transaction as it is now."""
        self.forget(txn.transactional_id)
        if txn.state in PREPARED:
            partitions = dict.fromkeys(txn.partitions)
            self._owed[txn.transactional_id] = (txn, partitions)
            self.count += len(partitions)
            if not txn.partitions:
                self.settled[txn.transactional_id] = txn

    def forget(self, transactional_id: str) -> None:
        if (owed := self._owed.pop(transactional_id, None)) is not None:
            self.count -= len(owed[1])
        self.settled.pop(transactional_id, None)

    def settle(
        self, transactional_id: str, *, pair: tuple[int, int], partitions: Iterable[TopicPartition]
    ) -> Txn | None:
        """These partitions have their marker. Returns the transaction if it is this pair's and owes no more markers."""
        owed = self._owed.get(transactional_id)
        if owed is None or (owed[0].producer_id, owed[0].producer_epoch) != pair:
            return None
        before = len(owed[1])
        for partition in partitions:
            owed[1].pop(partition, None)
        self.count -= before - len(owed[1])
        if owed[1]:
            return None
        self.settled[transactional_id] = owed[0]  # until it is completed: what completes it may fail
        return owed[0]

    def partitions(self, transactional_id: str) -> tuple[TopicPartition, ...] | None:
        """The partitions of one id that still lack a marker; None if the id is not prepared."""
        owed = self._owed.get(transactional_id)
        return None if owed is None else tuple(owed[1])

    def all(self) -> Iterator[SendMarkers]:
        """All markers that are owed now, as long as they are. Others may have turns in between: what is decided then is
        not among them.
        """
        return self._left_of(list(self._owed.items()))

    def _left_of(self, entries: list[tuple[str, _Entry]]) -> Iterator[SendMarkers]:
        for transactional_id, entry in entries:
            if self._owed.get(transactional_id) is entry and (markers := self.of(transactional_id)) is not None:
                yield markers

    def of(self, transactional_id: str) -> SendMarkers | None:
        """The markers that one id owes."""
        owed = self._owed.get(transactional_id)
        if owed is None or not owed[1]:
            return None
        txn, partitions = owed
        return markers_of(txn, tuple(partitions))


def markers_of(txn: Txn, partitions: tuple[TopicPartition, ...]) -> SendMarkers:
    assert txn.state in PREPARED, "no marker before the decision"
    return SendMarkers(
        txn.transactional_id,
        txn.producer_id,
        txn.producer_epoch,
        txn.state is State.PREPARE_COMMIT,
        txn.client_version,
        partitions,
    )
