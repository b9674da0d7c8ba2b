"""Each promise of exactly once: silent on a valid history, and heard when it is broken in one place."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from log.ids import TopicPartition
from tests.sim.checkers import judge
from tests.sim.history import (
    CommittedRead,
    FinalLog,
    Held,
    History,
    Outcome,
    Owned,
    Record,
    TokenTold,
    Topic,
    Transaction,
    Write,
)
from tests.sim.txn_checkers import TXN_CHECKERS, CommittedReadsAreSlices, cycles

INPUT, OUTPUT = "input", "output"
PARTITIONS = 4


def valid_history(seed: int = 1) -> History:
    """Three transactional ids, changing owners, take from `input` and write to both topics; one id at a time takes
    input.
    """
    chance = random.Random(seed)
    history = History(topics={name: Topic(name, PARTITIONS, transactional=True) for name in (INPUT, OUTPUT)})
    ends = dict.fromkeys(history.partitions(), 0)
    committed: dict[TopicPartition, list[Record]] = {partition: [] for partition in ends}
    positions = {partition: 0 for partition in ends if partition.topic == INPUT}
    epochs = [0, 0, 0]
    now = 0.0
    for number in range(400):
        now += 1
        owner = chance.randrange(3)
        if chance.random() < 0.05:
            epochs[owner] += 1
            history.owned.append(Owned(f"id{owner}", owner, epochs[owner], now - 0.5))
        txn = Transaction(number, f"id{owner}", owner, epochs[owner], now, group="g")
        txn.outcome = chance.choices((Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN), (8, 1, 1))[0]
        txn.end_invoked, txn.completed = now + 0.5, now + 0.6
        applied = txn.outcome is Outcome.OK or (txn.outcome is Outcome.UNKNOWN and chance.random() < 0.5)
        if owner == 0:
            _consume(txn, positions, ends, chance, applied=applied)
        _produce(txn, ends, committed, chance, applied=applied)
        history.transactions.append(txn)
        _look(history, ends, committed, now + 0.8, chance)
    for partition, end in ends.items():
        records = tuple(committed[partition])
        history.final[partition] = FinalLog(0, end, records, committed=records, last_stable_offset=end)
    return history


def _consume(
    txn: Transaction,
    positions: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    chance: random.Random,
    *,
    applied: bool,
) -> None:
    partition = chance.choice(list(positions))
    start, end = positions[partition], min(ends[partition], positions[partition] + chance.randrange(1, 6))
    if end > start:
        txn.consumed[partition] = (start, end)
        if applied:
            positions[partition] = end


def _produce(
    txn: Transaction,
    ends: dict[TopicPartition, int],
    committed: dict[TopicPartition, list[Record]],
    chance: random.Random,
    *,
    applied: bool,
) -> None:
    touched: dict[TopicPartition, None] = {}
    for count in range(chance.randrange(1, 5)):
        partition = chance.choice(list(ends))
        value = b"%d.%d" % (txn.number, count)
        txn.values.append((partition, value))
        if applied:
            committed[partition].append(Record(ends[partition], 0, None, value))
        ends[partition] += 1
        touched[partition] = None
    for partition in touched:
        ends[partition] += 1  # the marker


def _look(
    history: History,
    ends: dict[TopicPartition, int],
    committed: dict[TopicPartition, list[Record]],
    now: float,
    chance: random.Random,
) -> None:
    partition = chance.choice(list(ends))
    end = ends[partition]
    start = chance.randrange(end + 1)
    records = tuple(record for record in committed[partition] if record.offset >= start)
    history.committed_reads.append(
        CommittedRead("r", partition, start, end, records, end, end, Held.POWER_CUT, now, now + 0.05)
    )


def of(history: History, outcome: Outcome) -> Transaction:
    return next(
        txn for txn in history.transactions if txn.outcome is outcome and len({place for place, _ in txn.values}) > 2
    )


def remove(history: History, value: bytes) -> None:
    for log in history.final.values():
        log.committed = tuple(record for record in log.committed if record.value != value)


def show(history: History, partition: TopicPartition, offset: int, value: bytes) -> None:
    log = history.final[partition]
    log.committed = tuple(sorted((*log.committed, Record(offset, 0, None, value)), key=lambda record: record.offset))


def free_offset(history: History, partition: TopicPartition) -> int:
    return next(
        offset
        for offset in range(10**6)
        if offset not in {record.offset for record in history.final[partition].committed}
    )


def lose_a_value_of_a_committed_transaction(history: History) -> None:
    remove(history, of(history, Outcome.OK).values[0][1])


def show_a_value_of_an_aborted_transaction(history: History) -> None:
    partition, value = of(history, Outcome.FAILED).values[0]
    show(history, partition, free_offset(history, partition), value)


def tear_an_unknown_transaction(history: History) -> None:
    for txn in history.transactions:
        shown = [
            value
            for _, value in txn.values
            if any(r.value == value for log in history.final.values() for r in log.committed)
        ]
        if txn.outcome is Outcome.UNKNOWN and len(shown) > 1:
            remove(history, shown[0])
            return


def show_twice(history: History) -> None:
    partition, value = of(history, Outcome.OK).values[0]
    show(history, partition, 10**6, value)


def invent(history: History) -> None:
    show(history, TopicPartition(OUTPUT, 0), 10**6, b"from nowhere")


def read_an_aborted_value(history: History) -> None:
    partition, value = of(history, Outcome.FAILED).values[0]
    read = next(read for read in history.committed_reads if read.partition == partition)
    read.records = (*read.records, Record(read.to_offset - 1, 0, None, value))


def read_before_anybody_asked_for_the_commit(history: History) -> None:
    read = some_read(history)
    value = read.records[0].value
    txn = next(txn for txn in history.transactions if value in [each for _, each in txn.values])
    txn.end_invoked = read.completed + 0.1


def some_read(history: History) -> CommittedRead:
    return next(read for read in history.committed_reads if len(read.records) > 3)


def skip(history: History) -> None:
    read = some_read(history)
    read.records = read.records[:1] + read.records[2:]


def repeat(history: History) -> None:
    read = some_read(history)
    read.records = (*read.records, read.records[-1])


def swap(history: History) -> None:
    read = some_read(history)
    first, second, *rest = read.records
    read.records = (replace(first, value=second.value), replace(second, value=first.value), *rest)


def read_beyond_the_stable_offset(history: History) -> None:
    read = some_read(history)
    read.last_stable_offset = read.records[-1].offset


def lift_the_stable_offset_above_the_high_watermark(history: History) -> None:
    some_read(history).last_stable_offset += 1


def lower_the_stable_offset(history: History) -> None:
    read = history.committed_reads[-1]
    read.last_stable_offset, read.records, read.to_offset = 1, (), read.from_offset


def leave_a_transaction_hanging(history: History) -> None:
    log = history.final[TopicPartition(OUTPUT, 1)]
    log.last_stable_offset -= 3


def consuming(history: History) -> list[Transaction]:
    takes = [txn for txn in history.transactions if txn.consumed and txn.outcome is Outcome.OK]
    return [txn for txn in takes if next(iter(txn.consumed)) == next(iter(takes[0].consumed))]


def process_input_twice(history: History) -> None:
    txn = consuming(history)[2]
    [(partition, (start, end))] = txn.consumed.items()
    txn.consumed[partition] = (start - 1, end)


def skip_input(history: History) -> None:
    consuming(history)[2].consumed.clear()


def commit_after_being_fenced(history: History) -> None:
    txn = of(history, Outcome.OK)
    history.owned.append(Owned(txn.transactional_id, txn.producer_id, txn.epoch + 1, txn.end_invoked - 0.1))


def swap_two_transactions(history: History) -> None:
    partition = TopicPartition(OUTPUT, 2)
    mine = [txn for txn in history.transactions if txn.outcome is Outcome.OK and txn.transactional_id == "id1"]
    first, second = [txn for txn in mine if partition in [place for place, _ in txn.values]][4:6]
    first.began, second.began = second.began, first.began


def consume_in_a_circle(history: History) -> None:
    first, second = [txn for txn in history.transactions if txn.outcome is Outcome.OK][100:102]
    for taker, giver in ((first, second), (second, first)):
        partition, value = giver.values[0]
        offset = next(record.offset for record in history.final[partition].committed if record.value == value)
        taker.consumed = {partition: (offset, offset + 1)}


def clean_away_the_newest_of_a_key(history: History) -> None:
    """Of a topic that nobody else writes to."""
    ledger = TopicPartition("ledger", 0)
    history.topics["ledger"] = Topic("ledger", 1, compacted=True, transactional=True)
    txn = of(history, Outcome.OK)
    txn.values.append((ledger, b"newest"))
    write = Write("w", 1, ledger, ((b"k", b"newest"),), -1, Held.POWER_CUT, 1.0, 1.1, Outcome.OK, 5)
    history.writes.append(write)
    history.final[ledger] = FinalLog(0, 7, (), (), 7)


def passing(history: History, start_offset: int) -> TopicPartition:
    """One committed record, at offset 5, in a topic of which retention has left what is from `start_offset` on."""
    partition = TopicPartition("passing", 0)
    history.topics["passing"] = Topic("passing", 1, retained=True, transactional=True)
    of(history, Outcome.OK).values.append((partition, b"gone"))
    write = Write("w", 1, partition, ((None, b"gone"),), -1, Held.POWER_CUT, 1.0, 1.1, Outcome.OK, 5)
    history.writes.append(write)
    history.final[partition] = FinalLog(start_offset, 9, (), (), 9)
    return partition


def lose_a_committed_value_above_the_start(history: History) -> None:
    passing(history, 5)


def keep_from_a_reader_what_was_there_still(history: History) -> None:
    partition = passing(history, 8)
    history.committed_reads.append(CommittedRead("r", partition, 3, 7, (), 9, 9, Held.POWER_CUT, 2.0, 2.1))


def count_two_attempts_at_one_token(history: History) -> None:
    first, second = [txn for txn in history.transactions if txn.outcome is Outcome.OK][:2]
    for txn in (first, second):
        txn.transactional_id, txn.many_writers = "root::7", True


def tell_two_deciders(history: History) -> None:
    history.tokens_told += [TokenTold("root", 7, "a", 1.0, 2.0), TokenTold("root", 7, "b", 3.0, 4.0)]


def forget_a_decision(history: History) -> None:
    history.tokens_told += [TokenTold("root", 7, "a", 1.0, 2.0), TokenTold("root", 6, "b", 3.0, 4.0)]


DAMAGES: dict[Callable[[History], None], str] = {
    lose_a_value_of_a_committed_transaction: "AllOrNothing",
    show_a_value_of_an_aborted_transaction: "AllOrNothing",
    tear_an_unknown_transaction: "AllOrNothing",
    lose_a_committed_value_above_the_start: "AllOrNothing",
    keep_from_a_reader_what_was_there_still: "CommittedReadsAreWhole",
    clean_away_the_newest_of_a_key: "TheNewestOfEachKeyStays",
    show_twice: "NothingTwiceNothingInvented",
    invent: "NothingTwiceNothingInvented",
    read_an_aborted_value: "AbortedStaysInvisible",
    read_before_anybody_asked_for_the_commit: "AbortedStaysInvisible",
    skip: "CommittedReadsAreSlices",
    repeat: "CommittedReadsAreSlices",
    swap: "CommittedReadsAreSlices",
    read_beyond_the_stable_offset: "StableOffsetStopsAtOpenTransactions",
    lift_the_stable_offset_above_the_high_watermark: "StableOffsetStopsAtOpenTransactions",
    lower_the_stable_offset: "StableOffsetStopsAtOpenTransactions",
    leave_a_transaction_hanging: "EveryDecisionGetsItsMarkers",
    process_input_twice: "InputIsProcessedOnce",
    skip_input: "InputIsProcessedOnce",
    commit_after_being_fenced: "OneOwnerPerTransactionalId",
    swap_two_transactions: "OrderOfTransactionsIsKept",
    count_two_attempts_at_one_token: "ATokenIsDecidedOnce",
    tell_two_deciders: "ATokenIsDecidedOnce",
    forget_a_decision: "ATokenIsDecidedOnce",
    consume_in_a_circle: "InformationFlowsOneWay",
}


@pytest.mark.parametrize("seed", range(5))
def test_a_valid_history_breaks_no_promise(seed: int) -> None:
    assert judge(valid_history(seed), TXN_CHECKERS) == []


def test_what_has_left_a_log_is_missed_by_nobody() -> None:
    history = valid_history()
    partition = passing(history, 6)
    there = (Record(5, 0, None, b"gone"),)
    history.committed_reads += [
        CommittedRead("before", partition, 3, 7, there, 9, 9, Held.POWER_CUT, 500.0, 500.1),
        CommittedRead("after", partition, 6, 9, (), 9, 9, Held.POWER_CUT, 501.0, 501.1),
    ]
    assert judge(history, TXN_CHECKERS) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_caught_by_the_promise_it_breaks(damage: Callable[[History], None]) -> None:
    history = valid_history()
    damage(history)
    assert DAMAGES[damage] in {violation.promise for violation in judge(history, TXN_CHECKERS)}


def test_every_checker_is_shown_to_catch_something() -> None:
    assert set(DAMAGES.values()) == {type(checker).__name__ for checker in TXN_CHECKERS}


@pytest.mark.parametrize(("stable", "is_right"), [(6, True), (5, False)])
def test_a_replica_may_have_cleaned_what_was_replaced_and_stable_and_nothing_else(stable: int, is_right: bool) -> None:
    """The value at 1 is still there at the replica that was read last; the one at 5 replaced it."""
    ledger = TopicPartition("ledger", 0)
    history = History(topics={"ledger": Topic("ledger", 1, compacted=True, transactional=True)}, replicas_compact=True)
    older, newer = Record(1, 0, b"k", b"older"), Record(5, 0, b"k", b"newer")
    history.final[ledger] = FinalLog(0, 7, (older, newer), committed=(older, newer), last_stable_offset=7)
    read = CommittedRead("r", ledger, 0, 4, (), stable, 7, Held.POWER_CUT, 1.0, 1.1)
    history.committed_reads.append(read)
    assert (list(CommittedReadsAreSlices().check(history)) == []) is is_right


def reachable(edges: dict[int, dict[int, None]], start: int) -> set[int]:
    found: set[int] = set()
    waiting = list(edges.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(edges.get(node, ()))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_cycles_are_those_that_a_plain_search_finds(seed: int) -> None:
    chance = random.Random(seed)
    edges: dict[int, dict[int, None]] = {}
    for _ in range(chance.randrange(25)):
        edges.setdefault(chance.randrange(12), {})[chance.randrange(12)] = None
    expected = {node for node in range(12) if node in reachable(edges, node)}
    assert {node for cycle in cycles(edges) for node in cycle} == expected
