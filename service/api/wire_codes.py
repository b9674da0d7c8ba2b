"""Turns verdicts of a transaction coordinator into Kafka's error codes. This is the only table of them.

Fencing is one verdict with two codes: clients of an API's first versions know only INVALID_PRODUCER_EPOCH, later ones
know PRODUCER_FENCED, and the two react differently. `fenced` gives the code for this API and version.
"""

from collections.abc import Awaitable
from typing import Any, TypeAlias, assert_never

from service.broker.coordinators import Coordinators
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator
from service.wire.error_codes import ErrorCode
from txn.commands import Command
from txn.coordinator import TxnCoordinator
from txn.verdicts import (
    Added,
    BranchNotReady,
    Busy,
    Decided,
    Discarded,
    Ended,
    Fenced,
    Initialized,
    InvalidRequest,
    InvalidTimeout,
    MarkersNoted,
    NoProducerIds,
    Sealed,
    TokenDecided,
    TwoPhaseCommitDisabled,
    UnknownId,
    Verdict,
    Verified,
    WrongProducer,
    WrongState,
)

Transactions: TypeAlias = Coordinators[TxnCoordinator]

PATIENCE_MS = 1_000
"""How long a request waits for the markers of the id's last transaction before it is answered
CONCURRENT_TRANSACTIONS.
"""


def error_of(verdict: Verdict, *, fenced: ErrorCode = ErrorCode.PRODUCER_FENCED) -> ErrorCode:
    match verdict:
        case Initialized() | Added() | Verified() | Ended() | Sealed() | Decided() | Discarded() | MarkersNoted():
            return ErrorCode.NONE
        case Busy():
            return ErrorCode.CONCURRENT_TRANSACTIONS
        case Fenced() | TokenDecided():
            return fenced
        case UnknownId() | WrongProducer():
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        case WrongState() | BranchNotReady():
            return ErrorCode.INVALID_TXN_STATE
        case InvalidRequest():
            return ErrorCode.INVALID_REQUEST
        case InvalidTimeout():
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        case TwoPhaseCommitDisabled():
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        case NoProducerIds():
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert_never(verdict)


def fencing_code(*, knows_fenced: bool) -> ErrorCode:
    return ErrorCode.PRODUCER_FENCED if knows_fenced else ErrorCode.INVALID_PRODUCER_EPOCH


async def ask_coordinator(transactions: Transactions, transactional_id: str, command: Command) -> Verdict | ErrorCode:
    """The coordinator's verdict, or why this broker can't give one."""
    try:
        answer: Awaitable[Any] = transactions.handle(transactional_id, command)
        verdict: Verdict = await answer
    except NotCoordinator:
        return ErrorCode.NOT_COORDINATOR
    except CoordinatorLoading:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    except DecisionFailed:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return verdict
