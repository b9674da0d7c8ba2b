"""The decisions about one transaction, one function for each command. They are pure: they read a `Txn` and return what
should become durable and what to say afterwards.

Conditions are checked in Kafka's order where a client can see it. A fresh producer id is taken only when it is needed
(`take_id`; None: there is none just now). Decisions about several ids at once are in `branches.py`. `wall_ms` is the
time of the wall clock, with which records are stamped.
"""

from collections.abc import Callable
from typing import NamedTuple

from idempotence.epochs import FENCE_EPOCH, bumped, is_exhausted
from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from txn.branches import branch_of
from txn.commands import AddPartitions, EndTransaction, InitProducer, VerifyPartitions
from txn.records import fits_key
from txn.settings import TxnSettings
from txn.states import AT_REST, PREPARED, TWO_PHASE_TIMEOUT_MS, State, Txn
from txn.verdicts import (
    ADDED,
    BUSY,
    NO_PRODUCER_IDS,
    UNKNOWN_ID,
    Ended,
    Fenced,
    Initialized,
    InvalidRequest,
    InvalidTimeout,
    Sealed,
    TwoPhaseCommitDisabled,
    Verdict,
    Verified,
    WrongProducer,
    WrongState,
)

TakeId = Callable[[], int | None]


class Judgement(NamedTuple):
    """The verdict, and the transaction after the decision (None: it does not change)."""

    verdict: Verdict
    moved: Txn | None = None


# ---------------------------------------------------------------- InitProducerId


def decide_init(
    txn: Txn | None,
    ask: InitProducer,
    *,
    wall_ms: int,
    take_id: TakeId,
    settings: TxnSettings,
    finished: Txn | None = None,
) -> Judgement:
    """Make the caller the holder of the id. An open transaction is aborted first, unless it is prepared and to be kept.

    A new branch takes over the producer id of a `finished` one of its root, if there is one.
    """
    if refused := _check_init(ask, settings):
        return Judgement(refused)
    timeout_ms = TWO_PHASE_TIMEOUT_MS if ask.two_phase_commit else ask.timeout_ms
    if txn is None:
        if finished is not None:
            return _succeed(finished, ask.transactional_id, timeout_ms, wall_ms=wall_ms)
        return create(ask.transactional_id, timeout_ms, wall_ms=wall_ms, take_id=take_id)
    if not _may_init(txn, ask):
        return Judgement(Fenced(ask.producer_epoch, txn.holder[1]))
    if txn.state in PREPARED:
        return Judgement(BUSY)
    if txn.state is State.ONGOING:
        if ask.spares_ongoing:
            return Judgement(WrongState(txn.state))
        return _init_over_ongoing(txn, ask, wall_ms=wall_ms, take_id=take_id)
    return _init_at_rest(txn, ask, timeout_ms, wall_ms=wall_ms, take_id=take_id)


def _check_init(ask: InitProducer, settings: TxnSettings) -> Verdict | None:
    if not ask.transactional_id:
        return InvalidRequest("an empty transactional id")
    if not fits_key(ask.transactional_id):
        return InvalidRequest("a transactional id of more than 32767 bytes")
    if (ask.producer_id == NO_PRODUCER_ID) != (ask.producer_epoch == NO_PRODUCER_EPOCH):
        return InvalidRequest("a producer id without its epoch, or an epoch without its producer id")
    if ask.keep_prepared and not ask.two_phase_commit:
        return InvalidRequest("keeping a prepared transaction without two-phase commit")
    if ask.two_phase_commit:
        return None if settings.two_phase_commit_enabled else TwoPhaseCommitDisabled()
    if not 0 < ask.timeout_ms <= settings.max_timeout_ms:
        return InvalidTimeout(ask.timeout_ms, settings.max_timeout_ms)
    return None


def create(transactional_id: str, timeout_ms: int, *, wall_ms: int, take_id: TakeId) -> Judgement:
    """Begin an id that was never used, or was forgotten."""
    producer_id = take_id()
    if producer_id is None:
        return Judgement(NO_PRODUCER_IDS)
    txn = Txn(transactional_id, producer_id, 0, State.EMPTY, timeout_ms, wall_ms, committed_id=producer_id)
    return Judgement(Initialized(producer_id, 0), txn)


def _succeed(finished: Txn, transactional_id: str, timeout_ms: int, *, wall_ms: int) -> Judgement:
    """Begin a new id with the producer id of a finished one and the next epoch. A client that still writes with the old
    epoch is fenced.
    """
    producer_id, epoch = finished.producer_id, bumped(finished.producer_epoch)
    txn = Txn(transactional_id, producer_id, epoch, State.EMPTY, timeout_ms, wall_ms)
    # What is before was the finished one's, or this id's own of a life that was forgotten.
    txn = txn._replace(committed_id=producer_id, committed_epoch=finished.producer_epoch)
    return Judgement(Initialized(producer_id, epoch), txn)


def _expects(ask: InitProducer) -> bool:
    return ask.producer_id != NO_PRODUCER_ID


def _may_init(txn: Txn, ask: InitProducer) -> bool:
    """Whether a caller that names a pair may initialize: it must be the holder, or have been the holder just before, so
    that the answer to its first request was lost.
    """
    if not _expects(ask):
        return True
    expected = (ask.producer_id, ask.producer_epoch)
    if expected == txn.holder:
        return True
    # A client that has begun a transaction knows its present pair. So a request with an older pair was delayed on its
    # way, and must not end the transaction. (Kafka aborts it.)
    return txn.state is not State.ONGOING and _is_repeat(txn, expected)


def _is_repeat(txn: Txn, pair: tuple[int, int]) -> bool:
    return txn.last_producer_epoch != NO_PRODUCER_EPOCH and pair == (txn.previous_producer_id, txn.last_producer_epoch)


def _init_over_ongoing(txn: Txn, ask: InitProducer, *, wall_ms: int, take_id: TakeId) -> Judgement:
    if ask.keep_prepared and txn.is_two_phase:
        return resume(txn, wall_ms=wall_ms, take_id=take_id)
    # The caller waits or asks again. Another client gets the next epoch then, not the one that fences. The same client
    # gets that one: its former pair says that it asks again.
    return Judgement(BUSY, fence(txn, same_client=_expects(ask), wall_ms=wall_ms, take_id=take_id))


def resume(txn: Txn, *, wall_ms: int, take_id: TakeId) -> Judgement:
    """Keep the prepared transaction as it is and give the caller a pair with which it can only end it (KIP-939)."""
    moved = hand_on(txn, same_client=False, wall_ms=wall_ms, take_id=take_id)
    if moved is None:
        return Judgement(NO_PRODUCER_IDS)
    return Judgement(Initialized(*moved.holder, txn.producer_id, txn.producer_epoch), moved)


def hand_on(txn: Txn, *, same_client: bool, wall_ms: int, take_id: TakeId) -> Txn | None:
    """Make a fresh pair the holder, and leave the transaction as it is. None if that needs a producer id and there is
    none.

    The transaction keeps its own pair, because its markers must carry it. The former holder is fenced by the new epoch.
    """
    holder_id, holder_epoch = txn.holder
    next_id: int | None
    next_id, next_epoch = holder_id, bumped(holder_epoch)
    if is_exhausted(holder_epoch):
        next_id, next_epoch = take_id(), 0
    if next_id is None:
        return None
    return txn._replace(
        next_producer_id=next_id,
        next_producer_epoch=next_epoch,
        previous_producer_id=holder_id if same_client else NO_PRODUCER_ID,
        last_producer_epoch=holder_epoch if same_client else NO_PRODUCER_EPOCH,
        updated_ms=wall_ms,
    )


def _init_at_rest(txn: Txn, ask: InitProducer, timeout_ms: int, *, wall_ms: int, take_id: TakeId) -> Judgement:
    producer_id, producer_epoch = txn.holder
    moved = txn._replace(
        state=State.EMPTY,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        updated_ms=wall_ms,
        started_ms=NO_TIMESTAMP,
        sealed_ms=NO_TIMESTAMP,
    )
    same_client = _expects(ask)
    if not same_client or (ask.producer_id, ask.producer_epoch) == txn.holder:
        bumped_txn = bump(moved, same_client=same_client, take_id=take_id)
        if bumped_txn is None:
            return Judgement(NO_PRODUCER_IDS)
        moved = bumped_txn
    return Judgement(Initialized(*moved.holder), moved)


def bump(txn: Txn, *, same_client: bool, take_id: TakeId) -> Txn | None:
    """Move to the next epoch (R13), or to a fresh producer id if there is no next epoch. None if there is no fresh id
    now.
    """
    previous_id, last_epoch = txn.producer_id, txn.producer_epoch
    if is_exhausted(last_epoch):
        fresh_id = take_id()
        if fresh_id is None:
            return None
        txn = txn._replace(producer_id=fresh_id, producer_epoch=0)
    else:
        txn = txn._replace(producer_epoch=bumped(last_epoch))
    return txn._replace(
        previous_producer_id=previous_id if same_client else NO_PRODUCER_ID,
        last_producer_epoch=last_epoch if same_client else NO_PRODUCER_EPOCH,
    )


# ---------------------------------------------------------------- AddPartitionsToTxn, AddOffsetsToTxn, verification


def decide_add_partitions(txn: Txn | None, ask: AddPartitions, *, wall_ms: int) -> Judgement:
    """Add partitions to the transaction. The first ones begin it."""
    if refused := _check_member(txn, ask):
        return Judgement(refused)
    assert txn is not None
    if txn.state is State.ONGOING:
        known = dict.fromkeys(txn.partitions)
        partitions = txn.partitions + tuple(new for new in dict.fromkeys(ask.partitions) if new not in known)
        if len(partitions) == len(txn.partitions):
            return Judgement(ADDED)
        return Judgement(ADDED, txn._replace(partitions=partitions, updated_ms=wall_ms))
    moved = txn._replace(
        state=State.ONGOING,
        partitions=tuple(dict.fromkeys(ask.partitions)),
        started_ms=wall_ms,
        updated_ms=wall_ms,
        client_version=ask.transaction_version,
    )
    return Judgement(ADDED, moved)


def decide_verify(txn: Txn | None, ask: VerifyPartitions) -> Judgement:
    """Which of the partitions are not in the open transaction."""
    if refused := _check_member(txn, ask):
        return Judgement(refused)
    assert txn is not None
    known = dict.fromkeys(txn.partitions)
    return Judgement(Verified(tuple(partition for partition in ask.partitions if partition not in known)))


def _check_member(txn: Txn | None, ask: AddPartitions | VerifyPartitions) -> Verdict | None:
    if not ask.transactional_id:
        return InvalidRequest("an empty transactional id")
    if txn is None:
        return UNKNOWN_ID
    producer_id, producer_epoch = txn.holder
    if ask.producer_id != producer_id:
        return WrongProducer(ask.producer_id, producer_id)
    if ask.producer_epoch != producer_epoch or _is_nobodys(ask):
        return Fenced(ask.producer_epoch, producer_epoch)
    if txn.handed_on:
        return WrongState(txn.state)  # all is written: the holder can only end it, and no partition takes more batches
    return BUSY if txn.state in PREPARED else None


def _is_nobodys(ask: AddPartitions | VerifyPartitions | EndTransaction) -> bool:
    """Whether the command names the fencing epoch, which no client is ever given. It must be refused: there is no
    higher epoch with which its transaction could be ended.
    """
    return ask.producer_epoch == FENCE_EPOCH


# ---------------------------------------------------------------- EndTxn


def decide_end(txn: Txn | None, ask: EndTransaction, *, wall_ms: int, take_id: TakeId) -> Judgement:
    """Decide the open transaction, or say what was decided."""
    if not ask.transactional_id:
        return Judgement(InvalidRequest("an empty transactional id"))
    if txn is None:
        return Judgement(UNKNOWN_ID)
    if _is_nobodys(ask):
        return Judgement(Fenced(ask.producer_epoch, txn.holder[1]))
    if ask.commit and branch_of(ask.transactional_id) is not None:
        return _seal(txn, ask, wall_ms=wall_ms, take_id=take_id)
    if ask.transaction_version < 2 and not txn.handed_on:
        return _end_same_epoch(txn, ask, wall_ms=wall_ms)
    pair = (ask.producer_id, ask.producer_epoch)
    if pair == txn.holder:
        return _end_current(txn, ask, wall_ms=wall_ms, take_id=take_id)
    if txn.client_version >= 2 and _is_repeat(txn, pair):
        return _end_repeated(txn, ask)
    if ask.producer_id != txn.holder[0]:
        return Judgement(WrongProducer(ask.producer_id, txn.holder[0]))
    return Judgement(Fenced(ask.producer_epoch, txn.holder[1]))


def _end_current(txn: Txn, ask: EndTransaction, *, wall_ms: int, take_id: TakeId) -> Judgement:
    """Version 2, from the holder of the present epoch. So it is about the present transaction, not about the last
    one.
    """
    if txn.state in PREPARED:
        # The client has begun its next transaction before the markers of the last one are written: it must ask again.
        # Kafka's code has an error 90 for this case, which it never reaches: it looks for a pending move first
        # (KAFKA-18464).
        return Judgement(BUSY)
    if txn.state in AT_REST and ask.commit:
        return Judgement(WrongState(txn.state))
    decided = prepare(txn, commit=ask.commit, wall_ms=wall_ms, take_id=take_id)
    if decided is None:
        return Judgement(NO_PRODUCER_IDS)
    return Judgement(Ended(*decided.successor), decided)


def _end_repeated(txn: Txn, ask: EndTransaction) -> Judgement:
    """Version 2, with the pair of the transaction before: the answer was lost, or the request arrived twice."""
    match txn.state, ask.commit:
        case (State.COMPLETE_COMMIT, True) | (State.COMPLETE_ABORT, False):
            return Judgement(Ended(*txn.holder))
        case (State.PREPARE_COMMIT, True) | (State.PREPARE_ABORT, False):
            return Judgement(BUSY)
        case (State.COMPLETE_COMMIT | State.PREPARE_COMMIT, False) | (State.PREPARE_ABORT, True):
            return Judgement(WrongState(txn.state))
    return Judgement(Fenced(ask.producer_epoch, txn.holder[1]))


def _end_same_epoch(txn: Txn, ask: EndTransaction, *, wall_ms: int) -> Judgement:
    """Versions 0 and 1. Epochs don't change, so a late end of the last transaction looks like one of the next.

    And the end of the next looks like a repeat of the last, to a coordinator that was replaced in between and does not
    know it. So what was decided is written once more before it is said: only who still decides can do that.
    """
    producer_id, producer_epoch = txn.holder
    if ask.producer_id != producer_id:
        return Judgement(WrongProducer(ask.producer_id, producer_id))
    if ask.producer_epoch != producer_epoch:
        return Judgement(Fenced(ask.producer_epoch, producer_epoch))
    match txn.state, ask.commit:
        case State.ONGOING, commit:
            decided = _with_commit(txn, commit)._replace(state=_prepared(commit), updated_ms=wall_ms, client_version=0)
            return Judgement(Ended(*decided.holder), decided)
        case (State.COMPLETE_COMMIT, True) | (State.COMPLETE_ABORT, False):
            return Judgement(Ended(*txn.holder), txn._replace(updated_ms=wall_ms))
        case (State.PREPARE_COMMIT, True) | (State.PREPARE_ABORT, False):
            return Judgement(BUSY)
    return Judgement(WrongState(txn.state))


def _seal(branch: Txn, ask: EndTransaction, *, wall_ms: int, take_id: TakeId) -> Judgement:
    """The writer of a branch commits: it declares its part complete. The root decides later.

    The pair that the writer is given can only abort. What was written with the pair before stays open until the
    decision.
    """
    pair = (ask.producer_id, ask.producer_epoch)
    if branch.handed_on and _is_repeat(branch, pair):
        return Judgement(Sealed(*branch.holder))
    if pair != branch.holder:
        if ask.producer_id != branch.holder[0]:
            return Judgement(WrongProducer(ask.producer_id, branch.holder[0]))
        return Judgement(Fenced(ask.producer_epoch, branch.holder[1]))
    if branch.handed_on or branch.state not in (State.EMPTY, State.ONGOING):
        return Judgement(WrongState(branch.state))
    sealed = hand_on(branch, same_client=True, wall_ms=wall_ms, take_id=take_id)
    if sealed is None:
        return Judgement(NO_PRODUCER_IDS)
    sealed = sealed._replace(sealed_ms=wall_ms)
    return Judgement(Sealed(*sealed.holder), sealed)


def _with_commit(txn: Txn, commit: bool) -> Txn:
    """If it is committed, the transaction knows that as its last commit."""
    return txn._replace(committed_id=txn.producer_id, committed_epoch=txn.producer_epoch) if commit else txn


def _prepared(commit: bool) -> State:
    return State.PREPARE_COMMIT if commit else State.PREPARE_ABORT


def prepare(txn: Txn, *, commit: bool, wall_ms: int, take_id: TakeId, rotate: bool = True) -> Txn | None:
    """End the transaction as in version 2: the epoch rises, for the markers and for the next transaction.

    None if a fresh producer id is needed and there is none. `rotate=False`: nothing will be written under this
    transactional id again, so it needs no fresh producer id.
    """
    assert txn.state not in PREPARED, "what is decided is not decided again"
    holder_id, holder_epoch = txn.holder
    next_id: int | None = NO_PRODUCER_ID
    next_epoch = NO_PRODUCER_EPOCH
    if txn.handed_on:
        next_id, next_epoch = holder_id, holder_epoch + 1
    if rotate and is_exhausted(holder_epoch):
        next_id, next_epoch = take_id(), NO_PRODUCER_EPOCH
    if next_id is None:
        return None
    decided = _with_commit(txn, commit)._replace(
        state=_prepared(commit),
        producer_epoch=bumped(txn.producer_epoch),
        previous_producer_id=holder_id,
        last_producer_epoch=holder_epoch,
        next_producer_id=next_id,
        next_producer_epoch=next_epoch,
        started_ms=txn.started_ms if txn.state is State.ONGOING else wall_ms,
        updated_ms=wall_ms,
        client_version=2,
    )
    return decided if txn.state is State.ONGOING else complete(decided, wall_ms=wall_ms)


def fence(txn: Txn, *, same_client: bool, wall_ms: int, take_id: TakeId) -> Txn:
    """Abort an open transaction instead of its holder: after its timeout, or because another client takes over the id.
    The epoch rises, so that the holder can't write any more.

    `same_client`: the fenced client may go on, by repeating its abort or by initializing with the pair that it had.
    """
    aborted = prepare(txn, commit=False, wall_ms=wall_ms, take_id=take_id)
    if aborted is None:
        # There is no fresh producer id. The transaction is fenced with the last epoch, which no client may be given.
        # The next client gets a fresh id.
        aborted = prepare(txn, commit=False, wall_ms=wall_ms, take_id=take_id, rotate=False)
        same_client = False
    assert aborted is not None
    if same_client:
        return aborted
    return aborted._replace(previous_producer_id=NO_PRODUCER_ID, last_producer_epoch=NO_PRODUCER_EPOCH)


def discard(branch: Txn, *, wall_ms: int) -> Txn:
    """Abort an open branch. No client goes on with its id."""
    aborted = prepare(branch, commit=False, wall_ms=wall_ms, take_id=_no_id, rotate=False)
    assert aborted is not None
    return aborted._replace(previous_producer_id=NO_PRODUCER_ID, last_producer_epoch=NO_PRODUCER_EPOCH)


def commit_branch(branch: Txn, *, wall_ms: int) -> Txn:
    """Commit a sealed branch by its root's decision."""
    committed = prepare(branch, commit=True, wall_ms=wall_ms, take_id=_no_id, rotate=False)
    assert committed is not None
    return committed


def _no_id() -> None:
    """A `take_id` for transactional ids that are not written with again: these need no fresh producer id."""


def complete(txn: Txn, *, wall_ms: int) -> Txn:
    """Every marker is written."""
    assert txn.state in PREPARED
    producer_id, producer_epoch = txn.successor
    return txn._replace(
        state=State.COMPLETE_COMMIT if txn.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        partitions=(),
        sealed_ms=NO_TIMESTAMP,
        updated_ms=wall_ms,
    )
