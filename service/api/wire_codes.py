"""Turns verdicts of a transaction coordinator into Kafka's error codes. This is the only table of them.

Fencing is one verdict with two codes: clients of an API's first versions know only INVALID_PRODUCER_EPOCH, later ones
know PRODUCER_FENCED, and the two react differently. `fenced` gives the code for this API and version.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, TypeVar, assert_never

from service.broker.coordinators import Coordinators
from service.broker.partition import PartitionLost
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator, Shard
from service.turns import in_turns
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
Row = TypeVar("Row")

PATIENCE_MS = 1_000
"""How long a request waits for the markers of the id's last transaction before it is answered
CONCURRENT_TRANSACTIONS, or for what it asks about to be committed.
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


async def looked_up(
    transactions: Transactions, transactional_ids: Iterable[str], look: Callable[[TxnCoordinator, str], Row]
) -> dict[str, Row | ErrorCode]:
    """What the coordinator of each id has, or why this broker can't tell. A client that is told of a decision acts on
    it, so all of it is committed when this returns.
    """
    found: dict[str, Row | ErrorCode] = {}
    asked: dict[Shard[TxnCoordinator], list[str]] = {}
    async for each in in_turns(dict.fromkeys(transactional_ids), at_once=10):
        try:
            shard = transactions.shard(each)
        except NotCoordinator:
            found[each] = ErrorCode.NOT_COORDINATOR
        except CoordinatorLoading:
            found[each] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        else:
            found[each] = look(shard.machine, each)
            asked.setdefault(shard, []).append(each)
    waits: dict[Shard[TxnCoordinator], asyncio.Future[None]] = {}
    for shard, ids in asked.items():
        try:
            if (uncommitted := shard.committed()) is not None:
                waits[shard] = uncommitted
        except PartitionLost:
            found.update(dict.fromkeys(ids, ErrorCode.NOT_COORDINATOR))
    try:
        if waits:
            await asyncio.wait(waits.values(), timeout=PATIENCE_MS / 1000)
    finally:
        for wait in waits.values():
            wait.cancel()
    for shard, wait in waits.items():
        if wait.cancelled():
            found.update(dict.fromkeys(asked[shard], ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif wait.exception() is not None:
            found.update(dict.fromkeys(asked[shard], ErrorCode.NOT_COORDINATOR))
    return found
