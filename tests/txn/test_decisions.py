"""Every command against every state, by the tables of the protocol (KIP-98, 360, 890, 939)."""

from collections.abc import Callable

import pytest

from log.ids import TopicPartition
from tests.rules import rule
from txn.commands import AddPartitions, EndTransaction, InitProducer, VerifyPartitions
from txn.decisions import (
    Judgement,
    complete,
    decide_add_partitions,
    decide_end,
    decide_init,
    decide_verify,
    fence,
    resume,
)
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
    TwoPhaseCommitDisabled,
    Verdict,
    Verified,
    WrongProducer,
    WrongState,
)

NOW = 5_000
FRESH = 900
ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 3)
SETTINGS = TxnSettings(max_timeout_ms=900_000, two_phase_commit_enabled=True)
STATES = list(State)


def fresh_id() -> int | None:
    return FRESH


def no_id() -> int | None:
    return None


def txn_in(state: State, *, epoch: int = 5, producer_id: int = 1, version: int = 2) -> Txn:
    """Id `pay`, whose present epoch a client got by ending the transaction before (if it is at rest) or holds
    (ongoing).
    """
    at_rest = state in AT_REST
    return Txn(
        "pay",
        producer_id,
        epoch,
        state,
        60_000,
        NOW - 100,
        () if at_rest else (ORDERS,),
        -1 if state is State.EMPTY else NOW - 200,
        previous_producer_id=producer_id,
        last_producer_epoch=epoch - 1,
        client_version=version,
    )


def init(txn: Txn | None, ask: InitProducer, take_id: Callable[[], int | None] = fresh_id) -> Judgement:
    return decide_init(txn, ask, wall_ms=NOW, take_id=take_id, settings=SETTINGS)


def end(
    txn: Txn | None,
    epoch: int,
    *,
    commit: bool,
    producer_id: int = 1,
    version: int = 2,
    take_id: Callable[[], int | None] = fresh_id,
) -> Judgement:
    ask = EndTransaction("pay", producer_id, epoch, commit, version)
    return decide_end(txn, ask, wall_ms=NOW, take_id=take_id)


# ---------------------------------------------------------------- InitProducerId


@rule("B.3", "a transactional id that no record of the log could hold is an invalid request")
def test_an_id_fits_its_record() -> None:
    assert isinstance(init(None, InitProducer("x" * 32_767, 1_000)).verdict, Initialized)
    assert isinstance(init(None, InitProducer("x" * 32_768, 1_000)).verdict, InvalidRequest)
    assert isinstance(init(None, InitProducer("é" * 16_384, 1_000)).verdict, InvalidRequest)


@rule("B.3", "an empty transactional id is an invalid request")
def test_an_empty_id_is_refused() -> None:
    assert isinstance(init(None, InitProducer("", 1_000)).verdict, InvalidRequest)


@rule("B.3", "a timeout that is not positive, or above transaction.max.timeout.ms, is refused")
@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_nobody_grants_is_refused(timeout_ms: int) -> None:
    assert init(None, InitProducer("pay", timeout_ms)).verdict == InvalidTimeout(timeout_ms, 900_000)


@rule("B.3", "a producer id without an epoch, or the other way round, is an invalid request")
@pytest.mark.parametrize(("producer_id", "epoch"), [(1, -1), (-1, 0)])
def test_half_a_pair_is_refused(producer_id: int, epoch: int) -> None:
    assert isinstance(init(None, InitProducer("pay", 1_000, producer_id, epoch)).verdict, InvalidRequest)


@rule("B.3", "a new id gets a fresh producer id and epoch 0, whatever it expects")
@pytest.mark.parametrize("expected", [(-1, -1), (77, 4)])
def test_a_new_id_begins_with_epoch_zero(expected: tuple[int, int]) -> None:
    outcome = init(None, InitProducer("pay", 1_000, *expected))
    assert outcome.verdict == Initialized(FRESH, 0)
    assert outcome.moved == Txn("pay", FRESH, 0, State.EMPTY, 1_000, NOW, committed_id=FRESH)


@rule("B.3", "without a producer id to give, the client is asked to come back")
@pytest.mark.parametrize("txn", [None, txn_in(State.EMPTY, epoch=32766)])
def test_nothing_changes_while_there_are_no_producer_ids(txn: Txn | None) -> None:
    assert init(txn, InitProducer("pay", 1_000), no_id) == Judgement(NO_PRODUCER_IDS)


@rule("B.3", "PrepareCommit, PrepareAbort: the client is asked to come back")
@pytest.mark.parametrize("state", PREPARED)
def test_init_waits_for_markers(state: State) -> None:
    assert init(txn_in(state), InitProducer("pay", 1_000)) == Judgement(BUSY)


@rule("B.3", "(b) nothing expected: the next epoch, and no way back for the client before")
@pytest.mark.parametrize("state", AT_REST)
def test_a_new_client_gets_the_next_epoch(state: State) -> None:
    outcome = init(txn_in(state), InitProducer("pay", 1_000))
    assert outcome.verdict == Initialized(1, 6)
    assert outcome.moved is not None
    assert (outcome.moved.state, outcome.moved.timeout_ms) == (State.EMPTY, 1_000)
    assert init(outcome.moved, InitProducer("pay", 1_000, 1, 5)).verdict == Fenced(5, 6)


@rule("B.3", "(c) the present epoch expected: the next one, and the repeat of the request is answered alike")
@pytest.mark.parametrize("state", AT_REST)
def test_the_same_client_gets_the_next_epoch_once(state: State) -> None:
    outcome = init(txn_in(state), InitProducer("pay", 1_000, 1, 5))
    assert outcome.verdict == Initialized(1, 6)
    again = init(outcome.moved, InitProducer("pay", 1_000, 1, 5))
    assert again.verdict == Initialized(1, 6)


@rule("B.3", "(d) the epoch before the present one expected: the present pair again")
@pytest.mark.parametrize("state", AT_REST)
def test_a_client_whose_answer_was_lost_gets_the_present_pair(state: State) -> None:
    assert init(txn_in(state), InitProducer("pay", 1_000, 1, 4)).verdict == Initialized(1, 5)


@rule("B.3", "(e) any other epoch, or another producer id, expected: fenced")
@pytest.mark.parametrize("expected", [(1, 3), (1, 6), (2, 5), (2, 4)])
@pytest.mark.parametrize("state", STATES)
def test_a_client_that_expects_anything_else_is_fenced(state: State, expected: tuple[int, int]) -> None:
    assert init(txn_in(state), InitProducer("pay", 1_000, *expected)) == Judgement(Fenced(expected[1], 5))


@rule(
    "B.3", "(a) an exhausted epoch: a fresh producer id and epoch 0, and a repeat with the old pair is answered alike"
)
@pytest.mark.parametrize("state", AT_REST)
def test_an_exhausted_epoch_gets_a_fresh_producer_id(state: State) -> None:
    outcome = init(txn_in(state, epoch=32766), InitProducer("pay", 1_000, 1, 32766))
    assert outcome.verdict == Initialized(FRESH, 0)
    assert init(outcome.moved, InitProducer("pay", 1_000, 1, 32766)).verdict == Initialized(FRESH, 0)


@rule("B.3", "the last usable epoch, 32766, is handed out; its repeat is answered and needs no fresh producer id")
def test_the_last_epoch_is_handed_out_before_the_producer_id_is_given_up() -> None:
    outcome = init(txn_in(State.EMPTY, epoch=32765), InitProducer("pay", 1_000, 1, 32765))
    assert outcome.verdict == Initialized(1, 32766)
    assert init(outcome.moved, InitProducer("pay", 1_000, 1, 32765), no_id).verdict == Initialized(1, 32766)


@rule(
    "B.3",
    "Ongoing: the open transaction is fenced and aborted, the client asked to come back, and then gets a further epoch",
)
def test_init_over_an_open_transaction_aborts_it() -> None:
    outcome = init(txn_in(State.ONGOING), InitProducer("pay", 1_000))
    assert outcome.verdict is BUSY
    aborting = outcome.moved
    assert aborting is not None
    assert (aborting.state, aborting.producer_epoch, aborting.partitions) == (State.PREPARE_ABORT, 6, (ORDERS,))
    after = init(complete(aborting, wall_ms=NOW), InitProducer("pay", 1_000))
    assert after.verdict == Initialized(1, 7)


@pytest.mark.parametrize("state", STATES)
def test_who_spares_what_is_ongoing_gets_the_id_as_anybody_unless_something_is(state: State) -> None:
    spared, taken = (init(txn_in(state), InitProducer("pay", 1_000, spares_ongoing=each)) for each in (True, False))
    assert spared == (Judgement(WrongState(state)) if state is State.ONGOING else taken)


@rule("B.3", "the fence moves the epoch once, not twice (KAFKA-19367)")
def test_the_fence_moves_the_epoch_once() -> None:
    assert fence(txn_in(State.ONGOING), same_client=False, wall_ms=NOW, take_id=fresh_id).producer_epoch == 6


@rule("B.3", "an older client's delayed init does not abort the present one's transaction")
def test_a_delayed_init_of_the_epoch_before_aborts_nothing() -> None:
    assert init(txn_in(State.ONGOING), InitProducer("pay", 1_000, 1, 4)) == Judgement(Fenced(4, 5))


@rule("B.3", "a fence at the last epoch gives up the producer id (KAFKA-20090)")
def test_a_fence_at_the_last_epoch_gives_up_the_producer_id() -> None:
    aborting = fence(txn_in(State.ONGOING, epoch=32766), same_client=True, wall_ms=NOW, take_id=fresh_id)
    assert (aborting.producer_id, aborting.producer_epoch) == (1, 32767)
    aborted = complete(aborting, wall_ms=NOW)
    assert aborted.holder == (FRESH, 0)
    assert end(aborted, 32766, commit=False).verdict == Ended(FRESH, 0)


def test_a_fence_at_the_last_epoch_without_a_fresh_id_tells_nobody_of_it() -> None:
    aborted = complete(
        fence(txn_in(State.ONGOING, epoch=32766), same_client=True, wall_ms=NOW, take_id=no_id), wall_ms=NOW
    )
    assert aborted.producer_epoch == 32767
    assert end(aborted, 32766, commit=False).verdict == Fenced(32766, 32767)
    assert init(aborted, InitProducer("pay", 1_000)).verdict == Initialized(FRESH, 0)


# ---------------------------------------------------------------- two-phase commit


@rule("B.3", "two-phase commit must be enabled, else it is refused")
def test_two_phase_commit_has_to_be_allowed() -> None:
    ask = InitProducer("pay", 1_000, two_phase_commit=True)
    outcome = decide_init(None, ask, wall_ms=NOW, take_id=fresh_id, settings=TxnSettings())
    assert outcome == Judgement(TwoPhaseCommitDisabled())


@rule("B.3", "two-phase commit: the timeout asked for does not matter, none is kept")
def test_a_two_phase_transaction_has_no_timeout() -> None:
    outcome = init(None, InitProducer("pay", 0, two_phase_commit=True))
    assert outcome.moved is not None
    assert outcome.moved.timeout_ms == TWO_PHASE_TIMEOUT_MS


@rule("B.3", "keeping a prepared transaction without two-phase commit is an invalid request")
def test_nothing_is_kept_without_two_phase_commit() -> None:
    assert isinstance(init(None, InitProducer("pay", 1_000, keep_prepared=True)).verdict, InvalidRequest)


@rule("B.3", "keepPrepared over an open transaction: its pair is told, and a new epoch to end it with")
def test_a_prepared_transaction_is_kept_for_its_new_client() -> None:
    prepared = txn_in(State.ONGOING)._replace(timeout_ms=TWO_PHASE_TIMEOUT_MS)
    outcome = init(prepared, InitProducer("pay", 0, two_phase_commit=True, keep_prepared=True))
    assert outcome.verdict == Initialized(1, 6, 1, 5)
    assert outcome.moved is not None
    assert (outcome.moved.state, outcome.moved.holder) == (State.ONGOING, (1, 6))
    committed = end(outcome.moved, 6, commit=True)
    assert committed.verdict == Ended(1, 7)
    assert committed.moved is not None
    assert (committed.moved.producer_id, committed.moved.producer_epoch) == (1, 6)
    assert end(outcome.moved, 5, commit=True).verdict == Fenced(5, 6)


@rule("B.3", "keepPrepared with nothing open is an ordinary init")
@pytest.mark.parametrize("state", AT_REST)
def test_nothing_to_keep_is_an_ordinary_init(state: State) -> None:
    ask = InitProducer("pay", 0, two_phase_commit=True, keep_prepared=True)
    assert init(txn_in(state), ask).verdict == Initialized(1, 6)


@rule("B.3", "a resumed transaction's epochs run out: a fresh producer id controls it, and takes over afterwards")
def test_resuming_at_the_last_epoch_takes_a_fresh_producer_id() -> None:
    prepared = txn_in(State.ONGOING, epoch=32766)._replace(timeout_ms=TWO_PHASE_TIMEOUT_MS)
    outcome = resume(prepared, wall_ms=NOW, take_id=fresh_id)
    assert outcome.verdict == Initialized(FRESH, 0, 1, 32766)
    committed = end(outcome.moved, 0, producer_id=FRESH, commit=True)
    assert committed.verdict == Ended(FRESH, 1)
    assert committed.moved is not None
    assert (committed.moved.producer_id, committed.moved.producer_epoch) == (1, 32767)
    assert complete(committed.moved, wall_ms=NOW).holder == (FRESH, 1)
    assert resume(prepared, wall_ms=NOW, take_id=no_id) == Judgement(NO_PRODUCER_IDS)


# ---------------------------------------------------------------- AddPartitionsToTxn, verification


def add(txn: Txn | None, epoch: int = 5, producer_id: int = 1, *partitions: TopicPartition) -> Judgement:
    ask = AddPartitions("pay", producer_id, epoch, partitions or (ORDERS,))
    return decide_add_partitions(txn, ask, wall_ms=NOW)


def verify(txn: Txn | None, epoch: int = 5, producer_id: int = 1, *partitions: TopicPartition) -> Verdict:
    return decide_verify(txn, VerifyPartitions("pay", producer_id, epoch, partitions or (ORDERS,))).verdict


@rule("B.4", "unknown id, other producer id, other epoch: three different refusals, in this order")
@pytest.mark.parametrize("state", STATES)
def test_only_the_holder_adds_and_is_verified(state: State) -> None:
    assert add(None).verdict is verify(None) is UNKNOWN_ID
    txn = txn_in(state)
    assert add(txn, 3, 2).verdict == verify(txn, 3, 2) == WrongProducer(2, 1)
    assert add(txn, 4).verdict == verify(txn, 4) == Fenced(4, 5)
    assert add(txn, 6).verdict == verify(txn, 6) == Fenced(6, 5)


@rule("B.4", "PrepareCommit, PrepareAbort: come back")
@pytest.mark.parametrize("state", PREPARED)
def test_adding_waits_for_markers(state: State) -> None:
    assert add(txn_in(state)) == Judgement(BUSY)
    assert verify(txn_in(state)) is BUSY


@rule("B.4", "from a state at rest: a new transaction of just these partitions, its time beginning now")
@pytest.mark.parametrize("state", AT_REST)
def test_the_first_partitions_begin_a_transaction(state: State) -> None:
    outcome = add(txn_in(state), 5, 1, PAYMENTS, ORDERS, PAYMENTS)
    assert outcome.verdict is ADDED
    assert outcome.moved is not None
    assert (outcome.moved.state, outcome.moved.started_ms) == (State.ONGOING, NOW)
    assert outcome.moved.partitions == (PAYMENTS, ORDERS)


@rule("B.4", "Ongoing and all in: nothing is written; else the union, the time going on")
def test_further_partitions_join() -> None:
    ongoing = txn_in(State.ONGOING)
    assert add(ongoing) == Judgement(ADDED)
    outcome = add(ongoing, 5, 1, PAYMENTS, ORDERS)
    assert outcome.moved is not None
    assert (outcome.moved.partitions, outcome.moved.started_ms) == ((ORDERS, PAYMENTS), ongoing.started_ms)


@rule("B.2", "verification: which partitions are not in the open transaction")
def test_verification_names_what_is_missing() -> None:
    assert verify(txn_in(State.ONGOING), 5, 1, ORDERS, PAYMENTS) == Verified((PAYMENTS,))
    assert verify(txn_in(State.EMPTY)) == Verified((ORDERS,))
    assert verify(txn_in(State.COMPLETE_COMMIT)) == Verified((ORDERS,))


# ---------------------------------------------------------------- EndTxn


@rule("B.5", "unknown id; an empty id; another producer id")
def test_an_end_by_nobody_known() -> None:
    assert end(None, 0, commit=True).verdict is UNKNOWN_ID
    empty = decide_end(None, EndTransaction("", 1, 0, commit=True), wall_ms=NOW, take_id=fresh_id)
    assert isinstance(empty.verdict, InvalidRequest)
    for state in STATES:
        for version in (0, 1, 2):
            found = end(txn_in(state), 5, producer_id=2, commit=True, version=version)
            assert found == Judgement(WrongProducer(2, 1))


PREPARES, BUMPS = "prepares", "bumps"
FENCED, WRONG_STATE, ANSWERED, COME_BACK = "fenced", "wrong state", "answered", "come back"
# State: commit with the current epoch, commit repeated, abort current, abort repeated.
VERSION_2 = {
    State.ONGOING: (PREPARES, FENCED, PREPARES, FENCED),
    State.EMPTY: (WRONG_STATE, FENCED, BUMPS, FENCED),
    State.COMPLETE_COMMIT: (WRONG_STATE, ANSWERED, BUMPS, WRONG_STATE),
    State.COMPLETE_ABORT: (WRONG_STATE, FENCED, BUMPS, ANSWERED),
    State.PREPARE_COMMIT: (COME_BACK, COME_BACK, COME_BACK, WRONG_STATE),
    State.PREPARE_ABORT: (COME_BACK, WRONG_STATE, COME_BACK, COME_BACK),
}
TABLE_2 = [
    (state, bool(column < 2), bool(column % 2), expected)
    for state, row in VERSION_2.items()
    for column, expected in enumerate(row)
]


@rule("B.5", "version 2: the whole table of states, outcomes, current and repeated epochs")
@pytest.mark.parametrize(("state", "commit", "repeated", "expected"), TABLE_2)
def test_the_table_of_version_two(state: State, commit: bool, repeated: bool, expected: str) -> None:
    txn = txn_in(state)
    outcome = end(txn, 4 if repeated else 5, commit=commit)
    moved = outcome.moved
    if expected == PREPARES:
        assert outcome.verdict == Ended(1, 6)
        assert moved is not None
        assert (moved.state, moved.producer_epoch) == (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT, 6)
        assert (moved.partitions, moved.started_ms) == ((ORDERS,), txn.started_ms)
    elif expected == BUMPS:
        assert outcome.verdict == Ended(1, 6)
        assert moved is not None
        assert (moved.state, moved.holder) == (State.COMPLETE_ABORT, (1, 6))
    else:
        said: dict[str, Verdict] = {
            FENCED: Fenced(4 if repeated else 5, 5),
            WRONG_STATE: WrongState(state),
            ANSWERED: Ended(1, 5),
            COME_BACK: BUSY,
        }
        assert outcome == Judgement(said[expected])


# State: commit, abort, both with the present epoch.
VERSION_1 = {
    State.ONGOING: (PREPARES, PREPARES),
    State.EMPTY: (WRONG_STATE, WRONG_STATE),
    State.COMPLETE_COMMIT: (ANSWERED, WRONG_STATE),
    State.COMPLETE_ABORT: (WRONG_STATE, ANSWERED),
    State.PREPARE_COMMIT: (COME_BACK, WRONG_STATE),
    State.PREPARE_ABORT: (WRONG_STATE, COME_BACK),
}
TABLE_1 = [
    (state, version, bool(column == 0), expected)
    for state, row in VERSION_1.items()
    for version in (0, 1)
    for column, expected in enumerate(row)
]


@rule("B.5", "versions 0 and 1: the whole table; the epoch does not move")
@pytest.mark.parametrize(("state", "version", "commit", "expected"), TABLE_1)
def test_the_table_of_versions_zero_and_one(state: State, version: int, commit: bool, expected: str) -> None:
    outcome = end(txn_in(state, version=0), 5, commit=commit, version=version)
    if expected == PREPARES:
        assert outcome.moved is not None
        assert (outcome.moved.producer_epoch, outcome.moved.client_version) == (5, 0)
        assert outcome.moved.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
        assert complete(outcome.moved, wall_ms=NOW).holder == (1, 5)
    elif expected == ANSWERED:
        assert outcome == Judgement(Ended(1, 5), txn_in(state, version=0)._replace(updated_ms=NOW))
    else:
        said: dict[str, Verdict] = {WRONG_STATE: WrongState(state), COME_BACK: BUSY}
        assert outcome == Judgement(said[expected])


@rule("B.5", "versions 0 and 1: the epoch must be the present one")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("epoch", [4, 6])
def test_an_older_protocol_repeats_nothing_with_another_epoch(state: State, epoch: int) -> None:
    assert end(txn_in(state), epoch, commit=True, version=1) == Judgement(Fenced(epoch, 5))


@rule("B.5", "an epoch neither current nor the one before is fenced, whatever the state")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("epoch", [3, 6])
def test_any_other_epoch_is_fenced(state: State, epoch: int) -> None:
    assert end(txn_in(state), epoch, commit=True) == Judgement(Fenced(epoch, 5))
    assert end(txn_in(state), epoch, commit=False) == Judgement(Fenced(epoch, 5))


@rule(
    "B.5",
    "at 32766 the markers carry 32767, the client goes on with a fresh producer id, its repeat is answered alike",
)
@pytest.mark.parametrize("commit", [True, False])
def test_the_last_epoch_ends_with_a_fresh_producer_id(commit: bool) -> None:
    outcome = end(txn_in(State.ONGOING, epoch=32766), 32766, commit=commit)
    assert outcome.verdict == Ended(FRESH, 0)
    decided = outcome.moved
    assert decided is not None
    assert (decided.producer_id, decided.producer_epoch, decided.next_producer_id) == (1, 32767, FRESH)
    assert end(decided, 32766, commit=commit).verdict is BUSY
    done = complete(decided, wall_ms=NOW)
    assert done.holder == (FRESH, 0)
    assert end(done, 32766, commit=commit).verdict == Ended(FRESH, 0)
    assert end(txn_in(State.ONGOING, epoch=32766), 32766, commit=commit, take_id=no_id) == Judgement(NO_PRODUCER_IDS)


def _decided_at_the_last_epoch() -> Judgement:
    return end(txn_in(State.ONGOING, epoch=32766), 32766, commit=True)


def _decided_by_who_resumed() -> Judgement:
    prepared = txn_in(State.ONGOING)._replace(timeout_ms=TWO_PHASE_TIMEOUT_MS)
    resumed = init(prepared, InitProducer("pay", 0, two_phase_commit=True, keep_prepared=True)).moved
    assert resumed is not None
    return end(resumed, resumed.holder[1], commit=True)


@rule(
    "B.5", "a writer that goes on with the pair that an end told waits for the markers, also when the pair is another"
)
@pytest.mark.parametrize("decide", [_decided_at_the_last_epoch, _decided_by_who_resumed])
def test_the_pair_that_was_told_waits_for_the_markers(decide: Callable[[], Judgement]) -> None:
    outcome = decide()
    decided, told = outcome.moved, outcome.verdict
    assert decided is not None
    assert isinstance(told, Ended)
    producer_id, epoch = told.producer_id, told.producer_epoch
    assert (decided.producer_id, decided.producer_epoch) != (producer_id, epoch)
    assert add(decided, epoch, producer_id).verdict is BUSY
    assert verify(decided, epoch, producer_id) is BUSY
    assert init(decided, InitProducer("pay", 1_000, producer_id, epoch)).verdict is BUSY
    for commit in (True, False):
        assert end(decided, epoch, producer_id=producer_id, commit=commit).verdict is BUSY


@rule("B.5", "CompleteX: no partition is left, and the epoch stays that of the markers")
@pytest.mark.parametrize("commit", [True, False])
def test_a_completed_transaction_has_no_partitions(commit: bool) -> None:
    decided = end(txn_in(State.ONGOING), 5, commit=commit).moved
    assert decided is not None
    done = complete(decided, wall_ms=NOW + 1)
    assert done.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert (done.partitions, done.holder, done.updated_ms) == ((), (1, 6), NOW + 1)


@rule("B.7", "aborted by time: the epoch moves; its client can't commit, and goes on after it aborts too")
def test_an_abort_by_time_leaves_its_client_a_way_back() -> None:
    aborted = complete(fence(txn_in(State.ONGOING), same_client=True, wall_ms=NOW, take_id=fresh_id), wall_ms=NOW)
    assert add(aborted).verdict == Fenced(5, 6)
    assert end(aborted, 5, commit=True).verdict == Fenced(5, 6)
    assert end(aborted, 5, commit=False).verdict == Ended(1, 6)
    assert init(aborted, InitProducer("pay", 1_000, 1, 5)).verdict == Initialized(1, 6)
