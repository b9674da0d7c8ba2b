"""The coordinator as a whole: waiting, time, markers, what is derived from state."""

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txn.coordinator
import txn.deadlines
from log.ids import TopicPartition
from tests.rules import rule
from tests.txn.shard import START_MS, PlainShard
from txn.commands import AddPartitions, EndBranches, EndTransaction, InitProducer, MarkersWritten, VerifyPartitions
from txn.coordinator import END_AT_ONCE, END_AT_ONCE_BYTES, LOOKED_AT_ONCE, MAX_WAITING, TxnCoordinator
from txn.deadlines import DECISION_RETENTION_MS, STALE_AT_ONCE, TxnDeadlines
from txn.markers import SendMarkers
from txn.records import write_key, write_value
from txn.settings import TxnSettings
from txn.states import State, Txn
from txn.verdicts import ADDED, BUSY, UNKNOWN_ID, Ended, Initialized, MarkersNoted, Verified

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 1)
WEEK_MS, HOUR_MS = 604_800_000, 3_600_000


def committing() -> tuple[PlainShard, tuple[int, int]]:
    """Id `pay`, decided, one marker of two missing still."""
    shard = PlainShard()
    pair = shard.init()
    shard.ask(AddPartitions("pay", *pair, (ORDERS, PAYMENTS)))
    ended = shard.ask(EndTransaction("pay", *pair, commit=True))
    assert isinstance(ended, Ended)
    return shard, (ended.producer_id, ended.producer_epoch)


# ---------------------------------------------------------------- waiting


def test_who_is_patient_is_answered_as_soon_as_the_markers_are_written() -> None:
    shard, pair = committing()
    assert shard.ask(AddPartitions("pay", *pair, (ORDERS,), patience_ms=500)) is None
    shard.write_all_markers()
    assert shard.take_late_answers() == [ADDED]
    assert shard.txn("pay").state is State.ONGOING


def test_patience_ends() -> None:
    shard, pair = committing()
    shard.ask(AddPartitions("pay", *pair, (ORDERS,), patience_ms=500))
    shard.ask(AddPartitions("pay", *pair, (ORDERS,), patience_ms=900))
    shard.tick(499)
    assert shard.take_late_answers() == []
    shard.tick(1)
    assert shard.take_late_answers() == [BUSY]
    shard.write_all_markers()
    assert shard.take_late_answers() == [ADDED]
    shard.tick(HOUR_MS)
    assert shard.take_late_answers() == []
    assert shard.machine._waiting == {}
    assert shard.machine._waiting_until == []


def test_who_waits_is_answered_in_order_and_by_what_the_one_before_left() -> None:
    shard, pair = committing()
    shard.ask(InitProducer("pay", 60_000, patience_ms=500))
    shard.ask(EndTransaction("pay", pair[0], pair[1] - 1, commit=True, patience_ms=500))
    shard.write_all_markers()
    first, second = shard.take_late_answers()
    assert first == Initialized(pair[0], pair[1] + 1)
    assert type(second).__name__ == "Fenced"


@rule("B.3", "an init over an open transaction is answered when the abort is complete, if its client waits")
def test_a_patient_init_waits_through_the_abort_of_what_is_open() -> None:
    shard = PlainShard()
    pair = shard.init()
    shard.ask(AddPartitions("pay", *pair, (ORDERS,)))
    assert shard.ask(InitProducer("pay", 60_000, patience_ms=500)) is None
    shard.write_all_markers()
    assert shard.take_late_answers() == [Initialized(pair[0], pair[1] + 2)]


def test_the_number_of_those_who_wait_is_limited() -> None:
    shard, pair = committing()
    for _ in range(MAX_WAITING):
        assert shard.ask(AddPartitions("pay", *pair, (ORDERS,), patience_ms=10**6)) is None
    assert shard.ask(AddPartitions("pay", *pair, (ORDERS,), patience_ms=10**6)) is BUSY


def test_who_waits_for_markers_is_answered_also_if_the_turn_fails_that_would_do_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those were answered by nobody: who was carried out before, who failed, and who came behind. And the transaction
    whose last marker was told in that turn was never completed.
    """
    shard, pair = committing()
    for command in (
        AddPartitions("pay", *pair, (ORDERS,), patience_ms=500),
        InitProducer("pay", 60_000, patience_ms=500),  # it waits again, until what the one before has begun is aborted
        EndTransaction("pay", *pair, commit=False, patience_ms=500),
        EndTransaction("pay", *pair, commit=False, patience_ms=500),
    ):
        assert shard.ask(command) is None
    monkeypatch.setattr(txn.coordinator, "decide_end", Mock(side_effect=RuntimeError("a defect")))
    with pytest.raises(RuntimeError):
        shard.write_all_markers()
    monkeypatch.undo()
    shard.tick(0)
    next_pair = pair[0], pair[1] + 1
    assert shard.take_late_answers() == [Initialized(*next_pair), *[BUSY] * 3]
    assert shard.ask(AddPartitions("pay", *next_pair, (ORDERS,))) is ADDED


# ---------------------------------------------------------------- markers


@rule("B.6", "all markers written or their topics gone: CompleteX, once")
def test_the_last_marker_completes_the_transaction() -> None:
    shard, pair = committing()
    assert shard.ask(MarkersWritten("pay", *pair, (ORDERS,))) == MarkersNoted(complete=False)
    described = shard.machine.describe("pay")
    assert described is not None
    assert described.partitions == (PAYMENTS,)
    assert shard.ask(MarkersWritten("pay", *pair, (PAYMENTS,))) == MarkersNoted(complete=True)
    assert shard.txn("pay").state is State.COMPLETE_COMMIT
    assert shard.ask(MarkersWritten("pay", *pair, (PAYMENTS,))) == MarkersNoted(complete=False)


def test_an_answer_about_an_older_transactions_markers_completes_nothing() -> None:
    shard, pair = committing()
    shard.write_all_markers()
    shard.ask(AddPartitions("pay", *pair, (ORDERS,)))
    shard.ask(EndTransaction("pay", *pair, commit=False))
    assert shard.ask(MarkersWritten("pay", *pair, (ORDERS,))) == MarkersNoted(complete=False)
    assert shard.txn("pay").state is State.PREPARE_ABORT


def test_owed_markers_are_counted() -> None:
    shard, pair = committing()
    assert shard.machine.owed_count == 2
    shard.restart()
    assert shard.machine.owed_count == 2
    for _ in range(2):
        shard.ask(MarkersWritten("pay", *pair, (ORDERS,)))
        assert shard.machine.owed_count == 1
    shard.write_all_markers()
    assert shard.machine.owed_count == 0


def test_what_is_decided_while_owed_markers_are_sent_is_not_among_them() -> None:
    """Its markers are sent by the decision. With an older client a second copy could end the next transaction."""
    shard, pair = committing()
    shard.restart(compacted=True)
    owed = shard.machine.owed_markers()
    shard.write_all_markers()
    shard.ask(AddPartitions("pay", *pair, (ORDERS,)))
    shard.ask(EndTransaction("pay", *pair, commit=True))
    assert shard.machine.owed_by("pay") is not None
    assert list(owed) == []


@rule("B.6", "on election every prepared transaction owes its markers again")
def test_a_successor_owes_every_marker_again() -> None:
    shard, pair = committing()
    shard.ask(MarkersWritten("pay", *pair, (ORDERS,)))
    shard.restart(compacted=True)
    assert list(shard.machine.owed_markers()) == [SendMarkers("pay", *pair, True, 2, (ORDERS, PAYMENTS))]
    assert shard.machine.owed_by("pay") == SendMarkers("pay", *pair, True, 2, (ORDERS, PAYMENTS))
    assert shard.machine.owed_by("other") is None
    assert shard.ask(AddPartitions("pay", *pair, (ORDERS,))) is BUSY


@rule("B.6", "markers of transaction versions 0 and 1 carry the transaction's own epoch, and say so")
def test_markers_say_which_protocol_they_belong_to() -> None:
    shard = PlainShard()
    pair = shard.init()
    shard.ask(AddPartitions("pay", *pair, (ORDERS,), 0))
    shard.ask(EndTransaction("pay", *pair, commit=True, transaction_version=0))
    assert shard.take_effects() == [SendMarkers("pay", *pair, True, 0, (ORDERS,))]


def test_a_prepared_transaction_without_partitions_completes_by_itself() -> None:
    """Kafka writes such records for an abort of nothing."""
    shard = PlainShard()
    txn = Txn("pay", 7, 3, State.PREPARE_ABORT, 60_000, 1, (), 1, 7, 2, client_version=2)
    shard.log.append((write_key("pay"), write_value(txn)))
    shard.restart()
    shard.tick(0)
    assert shard.txn("pay").state is State.COMPLETE_ABORT
    assert shard.txn("pay").holder == (7, 3)


# ---------------------------------------------------------------- time


@rule("B.7", "an open transaction is aborted once start plus timeout has passed, and not before")
def test_a_transaction_is_aborted_after_its_timeout() -> None:
    shard = PlainShard()
    pair = shard.init(timeout_ms=10_000)
    shard.ask(AddPartitions("pay", *pair, (ORDERS,)))
    shard.tick(5_000)
    shard.ask(AddPartitions("pay", *pair, (PAYMENTS,)))
    shard.tick(5_000)
    assert shard.txn("pay").state is State.ONGOING
    shard.tick(1)
    assert (shard.txn("pay").state, shard.txn("pay").producer_epoch) == (State.PREPARE_ABORT, pair[1] + 1)


@rule("B.7", "the timeout runs on under the next coordinator")
def test_time_runs_on_under_the_next_coordinator() -> None:
    shard = PlainShard()
    pair = shard.init(timeout_ms=10_000)
    shard.ask(AddPartitions("pay", *pair, (ORDERS,)))
    shard.tick(9_000)
    shard.restart(compacted=True)
    shard.tick(1_001)
    assert shard.txn("pay").state is State.PREPARE_ABORT


@rule("B.7", "a two-phase transaction is not ended by time")
def test_a_two_phase_transaction_is_not_ended_by_time() -> None:
    shard = PlainShard(TxnSettings(two_phase_commit_enabled=True))
    shard.ask(InitProducer("pay", 1, two_phase_commit=True))
    shard.ask(AddPartitions("pay", *shard.txn("pay").holder, (ORDERS,)))
    shard.tick(10 * WEEK_MS)
    assert shard.txn("pay").state is State.ONGOING


@rule(
    "B.7",
    "an id at rest is forgotten after transactional.id.expiration.ms, no other; later use is unknown",
)
def test_idle_ids_are_forgotten() -> None:
    shard, _ = committing()
    idle = shard.init("idle")
    shard.tick(WEEK_MS + HOUR_MS)
    assert shard.machine.describe("idle") is None
    assert shard.txn("pay").state is State.PREPARE_COMMIT
    assert shard.log[-1] == (write_key("idle"), None)
    assert shard.ask(AddPartitions("idle", *idle, (ORDERS,))) is UNKNOWN_ID
    shard.restart()
    assert shard.machine.describe("idle") is None


@rule("B.7", "time ends so many transactions in one decision, and the others right after it")
def test_many_transactions_that_end_at_once_end_in_decisions_of_bounded_size() -> None:
    shard = PlainShard()
    for index in range(250):
        pair = shard.init(f"a{index}", timeout_ms=10_000)
        shard.ask(AddPartitions(f"a{index}", *pair, (ORDERS,)))
    began = len(shard.batches)
    shard.tick(10_001)
    assert [len(batch) for batch in shard.batches[began:]] == [END_AT_ONCE, END_AT_ONCE, 50]
    assert {txn.state for txn in shard.machine.all()} == {State.PREPARE_ABORT}


def batch_bytes(shard: PlainShard, began: int) -> list[int]:
    return [sum(len(key) + len(value or b"") for key, value in batch) for batch in shard.batches[began:]]


def test_large_transactions_that_end_at_once_end_in_decisions_of_bounded_bytes() -> None:
    shard = PlainShard()
    for index in range(20):
        pair = shard.init(f"a{index}", timeout_ms=10_000)
        shard.ask(AddPartitions(f"a{index}", *pair, tuple(TopicPartition("orders", each) for each in range(5_000))))
    began = len(shard.batches)
    shard.tick(10_001)
    assert max(batch_bytes(shard, began)) < 2 * END_AT_ONCE_BYTES
    assert {txn.state for txn in shard.machine.all()} == {State.PREPARE_ABORT}


def test_long_ids_are_forgotten_in_decisions_of_bounded_bytes() -> None:
    shard = PlainShard()
    for index in range(20):
        shard.init(f"{index}-" + "x" * 32_000)
    began = len(shard.batches)
    shard.tick(WEEK_MS + HOUR_MS)
    assert max(batch_bytes(shard, began)) < 2 * END_AT_ONCE_BYTES
    assert list(shard.machine.all()) == []


# ---------------------------------------------------------------- clocks that are set


def test_what_is_used_after_the_clock_was_set_is_kept_over_the_next_start() -> None:
    shard = PlainShard()
    shard.wall_ahead_ms = -START_MS  # the machine believes that it is 1970
    shard.init("early")
    shard.wall_ahead_ms = 0
    shard.init()
    shard.restart()
    shard.tick(WEEK_MS - HOUR_MS)
    assert shard.machine.describe("pay") is not None
    shard.tick(2 * HOUR_MS)
    assert shard.machine.describe("pay") is None


def test_what_was_stamped_before_the_clock_was_set_counts_as_stamped_at_the_start() -> None:
    shard = PlainShard()
    shard.wall_ahead_ms = -START_MS
    shard.init()
    shard.ask(EndBranches("clicks", 7, commit=True, branches=()))
    shard.wall_ahead_ms = 0
    shard.restart()
    shard.tick(WEEK_MS - HOUR_MS)
    assert shard.machine.describe("pay") is not None
    shard.tick(2 * HOUR_MS)
    assert shard.machine.describe("pay") is None
    shard.tick(DECISION_RETENTION_MS - WEEK_MS - 2 * HOUR_MS)
    assert shard.machine.last_decision("clicks").token == 7
    shard.tick(3 * HOUR_MS)
    assert shard.machine.describe("clicks") is None


@pytest.mark.parametrize("ahead_ms", [-START_MS, -50 * WEEK_MS])
def test_a_clock_that_is_set_ahead_forgets_no_id_of_a_running_machine(ahead_ms: int) -> None:
    shard = PlainShard()
    shard.wall_ahead_ms = ahead_ms
    shard.init()
    shard.tick(HOUR_MS)
    shard.wall_ahead_ms = 0
    shard.tick(WEEK_MS - HOUR_MS)
    assert shard.machine.describe("pay") is not None
    shard.tick(2 * HOUR_MS)
    assert shard.machine.describe("pay") is None


@pytest.mark.parametrize("ahead_ms", [-START_MS, -WEEK_MS, WEEK_MS])
def test_a_clock_that_is_set_ends_no_transaction_early_and_none_late(ahead_ms: int) -> None:
    shard = PlainShard()
    pair = shard.init(timeout_ms=10_000)
    shard.ask(AddPartitions("pay", *pair, (ORDERS,)))
    shard.wall_ahead_ms = ahead_ms
    shard.tick(5_000)
    shard.ask(AddPartitions("pay", *pair, (PAYMENTS,)))
    shard.tick(5_000)
    assert shard.txn("pay").state is State.ONGOING
    shard.tick(1)
    assert shard.txn("pay").state is State.PREPARE_ABORT


@pytest.mark.parametrize("ahead_ms", [-START_MS, WEEK_MS])
def test_a_transaction_whose_start_cannot_be_waits_once_more_after_a_replay(ahead_ms: int) -> None:
    """Begun in 1970, or next week."""
    shard = PlainShard()
    shard.wall_ahead_ms = ahead_ms
    pair = shard.init(timeout_ms=10_000)
    shard.ask(AddPartitions("pay", *pair, (ORDERS,)))
    shard.wall_ahead_ms = 0
    shard.tick(9_000)
    shard.restart()
    shard.tick(10_000)
    assert shard.txn("pay").state is State.ONGOING
    shard.tick(1)
    assert shard.txn("pay").state is State.PREPARE_ABORT


class Counting(dict[str, Txn]):
    """Counts how often anybody looks at an id."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        self.looks += 1
        return super().get(key, default)


def test_no_turn_looks_at_all_of_a_hundred_thousand_ids() -> None:
    """Nine in ten are at rest, the others open and out of time at once."""
    machine = TxnCoordinator(lambda: 0, TxnSettings(), lambda: START_MS + 2_000)
    machine._txns = counting = Counting()
    for index in range(100_000):
        name, is_open = f"t{index}", index % 10 == 0
        state, partitions = (State.ONGOING, (ORDERS,)) if is_open else (State.EMPTY, ())
        txn = Txn(name, index, 0, state, 1_000, START_MS, partitions, START_MS if is_open else -1)
        machine.apply(write_key(name), write_value(txn))
    now_ms, turns, most_looks, most_records = START_MS + 2_000, 0, 0, 0
    while (at_ms := machine.next_deadline_ms()) is not None and at_ms <= now_ms:
        counting.looks = 0
        decision = machine.expire(now_ms)
        most_looks, most_records = max(most_looks, counting.looks), max(most_records, len(decision.records))
        for key, value in decision.records:
            machine.apply(key, value)
        turns += 1
    assert most_records == END_AT_ONCE
    assert most_looks <= LOOKED_AT_ONCE + 5 * END_AT_ONCE
    assert turns == 101
    assert sum(txn.state is State.PREPARE_ABORT for txn in machine.all()) == 10_000


def test_many_ids_are_forgotten_in_batches() -> None:
    shard = PlainShard(first_producer_id=0)
    for index in range(900):
        shard.init(f"a{index}")
    shard.ids.add(type(shard.ids._blocks[0])(10_000))
    for index in range(900):
        shard.init(f"b{index}")
    shard.tick(WEEK_MS + HOUR_MS)
    assert [len(batch) for batch in shard.batches[1_800:]] == [1_000, 800]
    assert list(shard.machine.all()) == []


def test_a_coordinator_without_ids_has_nothing_to_do() -> None:
    assert TxnCoordinator(lambda: None, TxnSettings(), lambda: START_MS).next_deadline_ms() is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50), st.booleans()), max_size=60))
def test_the_next_deadline_is_the_least(steps: list[tuple[int, int, bool]]) -> None:
    deadlines = TxnDeadlines()
    deadlines.note_time(0, 0)
    expected: dict[str, int] = {}
    for index, timeout_ms, is_open in steps:
        name = f"t{index}"
        txn = Txn(name, 1, 0, State.ONGOING if is_open else State.EMPTY, timeout_ms, 0, started_ms=0)
        deadlines.follow(txn)
        expected.pop(name, None)
        if is_open:
            expected[name] = timeout_ms + 1
        assert deadlines.next_ms() == min(expected.values(), default=None)
        due = sorted((name for name, at_ms in expected.items() if at_ms <= 30), key=lambda name: (expected[name], name))
        assert deadlines.due(30, at_most=10) == due
        assert deadlines.due(30, at_most=2) == due[:2]


def test_replayed_transactions_are_taken_up_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that takes over 100,000 open ones would hold the loop for 200 ms with its first decision."""
    monkeypatch.setattr(txn.deadlines, "TAKEN_UP_AT_ONCE", 2)
    shard = PlainShard()
    names = list("abcdefghi")
    pairs = {name: shard.init(name) for name in names}
    for name in names:
        shard.ask(AddPartitions(name, *pairs[name], (ORDERS,)))
    shard.restart()
    shard.ask(AddPartitions("a", *pairs["a"], (PAYMENTS,)))
    turns = 0
    while shard.machine.next_deadline_ms() == 0:
        assert not shard.machine.expire(shard.now_ms).records
        turns += 1
    assert turns >= 3
    shard.tick(60_000)
    assert [shard.txn(name).state for name in names] == [State.ONGOING] * 9
    shard.tick(1)
    assert [shard.txn(name).state for name in names] == [State.PREPARE_ABORT] * 9


def test_deadlines_of_ended_transactions_do_not_pile_up() -> None:
    deadlines = TxnDeadlines()
    deadlines.note_time(0, 0)
    for started_ms in range(10_000):
        deadlines.follow(Txn("t", 1, 0, State.ONGOING, 60_000, 0, started_ms=started_ms))
    assert len(deadlines._heap) < 100


def test_deadlines_of_very_many_ended_transactions_are_removed_some_at_a_time() -> None:
    deadlines = TxnDeadlines()
    deadlines.note_time(0, 0)
    for index in range(10_000):
        deadlines.follow(Txn(f"t{index}", 1, 0, State.ONGOING, 60_000 + index, 0, started_ms=0))
    for index in range(9_999):
        deadlines.forget(f"t{index}")
    for ask in (deadlines.next_ms, lambda: deadlines.due(10_000_000, at_most=10)):
        before = len(deadlines._heap)
        ask()
        assert 0 < before - len(deadlines._heap) <= 10 + STALE_AT_ONCE
    while not (due := deadlines.due(10_000_000, at_most=10)):
        assert deadlines.next_ms() is not None
    assert due == ["t9999"]
    assert deadlines.next_ms() == 60_000 + 9_999 + 1


# ---------------------------------------------------------------- looking in


def test_describe_shows_the_partitions_of_the_open_transaction() -> None:
    shard = PlainShard()
    pair = shard.init()
    shard.ask(AddPartitions("pay", *pair, (ORDERS, PAYMENTS)))
    described = shard.machine.describe("pay")
    assert described is not None
    assert (described.partitions, described.root) == ((ORDERS, PAYMENTS), None)
    assert shard.machine.describe("other") is None
    assert [txn.transactional_id for txn in shard.machine.all()] == ["pay"]


def test_verification_changes_nothing() -> None:
    shard = PlainShard()
    pair = shard.init()
    log = len(shard.log)
    assert shard.ask(VerifyPartitions("pay", *pair, (ORDERS,))) == Verified((ORDERS,))
    assert len(shard.log) == log
