"""Lets a transactional write onto a partition only when the transaction coordinator says that it belongs to an open
transaction.

From transaction version 2 on (Produce 12, TxnOffsetCommit 5) the partition's leader adds the partition itself; for
older clients, who add it themselves, the leader asks whether they did (KIP-890). Either way a guard is taken before the
coordinator is asked and shown at the append: between the two nothing else may have been written for the producer, or
the answer would be about another transaction.

What always holds: a write that the coordinator did not confirm is refused, with an error that tells the client whether
to try again, to abort, or to give up.
"""

from dataclasses import dataclass

from idempotence.producers import Guard
from service.broker.acceptance import Refused
from service.broker.coordinators import Coordinators
from service.broker.partition import Partition
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator
from service.ports import Env
from service.wire.error_codes import ErrorCode
from txn.commands import AddPartitions, VerifyPartitions
from txn.coordinator import TxnCoordinator
from txn.verdicts import Added, Busy, Fenced, InvalidRequest, TokenDecided, UnknownId, Verdict, Verified, WrongProducer

TRY_AGAIN = Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "The transaction coordinator could not be asked; try again.")
ATTEMPTS = 3
PATIENCE_MS = 1_000
"""How long a write waits for the markers of its producer's last transaction before it is told to come back."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, in which transaction, and which protocol it speaks."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    sequence: int
    adds_itself: bool
    """The client relies on the leader to add the partition (transaction version 2)."""
    knows_abortable: bool
    """The client knows TRANSACTION_ABORTABLE."""


class TransactionGate:
    def __init__(self, coordinators: Coordinators[TxnCoordinator], env: Env) -> None:
        self._coordinators = coordinators
        self._env = env

    async def admit(self, partition: Partition, writer: Writer, *, timeout_ms: int) -> Guard | Refused | None:
        """The guard to show at the append; None where none is needed; or why the write is refused."""
        for _ in range(ATTEMPTS):
            guard = partition.producers.start_verification(
                writer.producer_id,
                epoch=writer.producer_epoch,
                sequence=writer.sequence,
                newest_protocol=writer.adds_itself,
                now_ms=self._env.clock.wall_ms(),
            )
            if guard is None:
                return None
            refused = await self._ask(partition, writer, timeout_ms)
            if refused is not None:
                return refused
            if partition.producers.is_current(guard):
                return guard
            # While the answer was waited for, the marker of the producer's last transaction was written: the answer is
            # good, but what was guarded is not what it was. Asked again, the coordinator answers at once.
        return TRY_AGAIN

    async def _ask(self, partition: Partition, writer: Writer, timeout_ms: int) -> Refused | None:
        partitions = (partition.topic_partition,)
        pair = writer.producer_id, writer.producer_epoch
        command: AddPartitions | VerifyPartitions
        if writer.adds_itself:
            patience_ms = min(PATIENCE_MS, timeout_ms)
            command = AddPartitions(writer.transactional_id, *pair, partitions, patience_ms=patience_ms)
        else:
            command = VerifyPartitions(writer.transactional_id, *pair, partitions)
        try:
            verdict = await self._coordinators.handle(writer.transactional_id, command)
        except (NotCoordinator, CoordinatorLoading):
            return TRY_AGAIN
        except DecisionFailed:
            return Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
        return _refusal(verdict, writer)


def _refusal(verdict: Verdict, writer: Writer) -> Refused | None:
    match verdict:
        case Added() | Verified(()):
            return None
        case Verified():
            error = ErrorCode.TRANSACTION_ABORTABLE if writer.knows_abortable else ErrorCode.INVALID_TXN_STATE
            return Refused(error, "The partition is not in the transaction.")
        case Busy():
            return Refused(ErrorCode.CONCURRENT_TRANSACTIONS) if writer.adds_itself else TRY_AGAIN
        case Fenced() | TokenDecided():
            return Refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        case UnknownId() | WrongProducer():
            return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        case InvalidRequest():
            return Refused(ErrorCode.INVALID_REQUEST)
        case _:
            return Refused(ErrorCode.INVALID_TXN_STATE)
