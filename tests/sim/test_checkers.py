"""Each checker says nothing of a valid history, and notices when its promise is broken in one place."""

import copy
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from log.ids import TopicPartition
from tests.sim.checkers import CHECKERS, LATEST, DeletedKeysStayDeleted, LogStartIsJustified, judge
from tests.sim.history import (
    Commit,
    CommitSeen,
    Crash,
    Deletion,
    FinalLog,
    Held,
    History,
    Listed,
    Outcome,
    Read,
    Record,
    Topic,
    Write,
)

PLAIN, TRIMMED, COMPACTED = "plain", "trimmed", "compacted"


def valid_history(seed: int = 1) -> History:
    """Three topics of two partitions, and power cuts in the middle that take what was held lightly."""
    chance = random.Random(seed)
    history = History(
        topics={
            name: Topic(name, 2, compacted=name == COMPACTED, trimmed=name == TRIMMED)
            for name in (PLAIN, TRIMMED, COMPACTED)
        }
    )
    for partition in history.partitions():
        _live(history, partition, chance)
    history.after_restart = copy.deepcopy(history.final)
    return history


def _live(history: History, partition: TopicPartition, chance: random.Random) -> None:
    now, number = 0.0, 0
    stored: list[Record] = []
    committed = 0
    while now < 300:
        passed, now = now, now + 1 + chance.random()
        if passed < 150 <= now and partition.partition == 0:
            _lose_a_tail(history, partition, len(stored), passed + 0.9)
        count = chance.randrange(1, 4)
        records = []
        for _ in range(count):
            number += 1
            records.append((b"k%d" % chance.randrange(5), b"%s-%d" % (str(partition).encode(), number)))
        outcome = chance.choices((Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN), (8, 1, 1))[0]
        applied = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and chance.random() < 0.5)
        base = len(stored)
        write = Write("w1", 1, partition, tuple(records), -1, Held.POWER_CUT, now, now + 0.5, outcome)
        if applied:
            stored.extend(
                Record(base + index, int(now * 1000), key, value) for index, (key, value) in enumerate(records)
            )
        if outcome is Outcome.OK:
            write.base_offset = base
        history.writes.append(write)
        _look(history, partition, stored, now + 0.6, chance)
        if partition.topic == PLAIN and stored:
            committed = chance.randrange(committed, len(stored) + 1)
            history.commits.append(Commit("g", partition, committed, Held.POWER_CUT, now + 0.7, now + 0.75, Outcome.OK))
            history.commits_seen.append(CommitSeen("g", partition, committed, now + 0.8, now + 0.85))
    _finish(history, partition, stored)


def _lose_a_tail(history: History, partition: TopicPartition, end_offset: int, now: float) -> None:
    """A write acknowledged with acks=1, read by nobody, and taken by a power cut."""
    lost = ((b"k0", b"lost-%s" % str(partition).encode()),)
    history.writes.append(Write("w2", 2, partition, lost, 1, Held.KILL, now, now + 0.01, Outcome.OK, end_offset))
    history.crashes.append(Crash(now + 0.02, power=True))


def _look(history: History, partition: TopicPartition, stored: list[Record], now: float, chance: random.Random) -> None:
    end = len(stored)
    start = chance.randrange(end + 1)
    stop = min(end, start + chance.randrange(8))
    records = tuple(stored[start:stop])
    history.reads.append(Read("r", partition, start, stop, records, end, 0, Held.POWER_CUT, now, now + 0.05))
    history.listed.append(Listed(partition, LATEST, end, -1, Held.POWER_CUT, now, now + 0.05))
    if stored:
        wanted = chance.choice(stored)
        first = next(record for record in stored if record.timestamp >= wanted.timestamp)
        history.listed.append(
            Listed(partition, wanted.timestamp, first.offset, first.timestamp, Held.POWER_CUT, now, now + 0.05)
        )


def _finish(history: History, partition: TopicPartition, stored: list[Record]) -> None:
    start, kept = 0, list(stored)
    if partition.topic == TRIMMED:
        start = len(stored) // 2
        history.deletions.append(Deletion(partition, start, Held.POWER_CUT, 400.0, 401.0, Outcome.OK))
        kept = stored[start:]
    if partition.topic == COMPACTED:
        newest = {record.key: record.offset for record in stored}
        kept = [record for record in stored if record.offset > len(stored) * 0.7 or newest[record.key] == record.offset]
    history.final[partition] = FinalLog(start, len(stored), tuple(kept))


def acknowledged(history: History, topic: str = PLAIN) -> Write:
    return next(write for write in history.writes if write.outcome is Outcome.OK and write.partition == (topic, 1))


def reshape(history: History, partition: TopicPartition, change: Callable[[list[Record]], list[Record]]) -> None:
    log = history.final[partition]
    log.records = tuple(change(list(log.records)))


def lose_an_acknowledged_record(history: History) -> None:
    write = acknowledged(history)
    reshape(history, write.partition, lambda records: [each for each in records if each.offset != write.base_offset])


def lose_the_newest_record_of_a_key(history: History) -> None:
    write = [write for write in history.writes if write.outcome is Outcome.OK and write.partition == (COMPACTED, 1)][-1]
    reshape(history, write.partition, lambda records: records[: -len(write.records)])


def bring_back_a_deleted_key(history: History) -> None:
    log = history.final[TopicPartition(COMPACTED, 1)]
    old = log.records[0]
    tombstone = Write(
        "w3", 3, TopicPartition(COMPACTED, 1), ((old.key, None),), -1, Held.POWER_CUT, 1.0, 1.1, Outcome.OK
    )
    tombstone.base_offset = log.end_offset
    history.writes.append(tombstone)


def give_a_wrong_answer(history: History) -> None:
    history.wrong.append("a batch to plain-0 was answered with UNKNOWN_SERVER_ERROR")


def invent_a_record(history: History) -> None:
    reshape(history, TopicPartition(PLAIN, 1), lambda records: [*records, Record(10**6, 10**9, b"k", b"from nowhere")])


def store_what_was_refused(history: History) -> None:
    write = next(write for write in history.writes if write.outcome is Outcome.FAILED and write.partition == (PLAIN, 1))
    key, value = write.records[0]
    reshape(history, write.partition, lambda records: [*records, Record(10**6, 10**9, key, value)])


def store_twice(history: History) -> None:
    def again(records: list[Record]) -> list[Record]:
        return [*records, replace(records[3], offset=10**6)]

    reshape(history, TopicPartition(PLAIN, 1), again)


def read_what_nobody_sent(history: History) -> None:
    read = next(read for read in history.reads if read.records)
    read.records = (replace(read.records[0], value=b"from nowhere"), *read.records[1:])


def acknowledge_one_offset_twice(history: History) -> None:
    first, second = [
        write for write in history.writes if write.outcome is Outcome.OK and write.partition == (PLAIN, 1)
    ][:2]
    second.base_offset = first.base_offset


def reuse_an_offset_that_a_power_cut_took_from_what_survives_it(history: History) -> None:
    write = next(write for write in history.writes if write.held is Held.KILL)
    write.held = Held.POWER_CUT


def some_read(history: History) -> Read:
    return next(read for read in history.reads if len(read.records) > 3 and read.partition == (PLAIN, 1))


def skip_in_a_read(history: History) -> None:
    read = some_read(history)
    read.records = read.records[:1] + read.records[2:]


def skip_in_a_read_of_a_compacted_topic(history: History) -> None:
    log = history.final[TopicPartition(COMPACTED, 1)]
    last = log.records[-1]
    read = Read(
        "r", TopicPartition(COMPACTED, 1), 0, last.offset + 1, log.records[:-2], 10**6, 0, Held.POWER_CUT, 500.0, 501.0
    )
    read.records = (*log.records[:-2], last)
    history.reads.append(read)


def repeat_in_a_read(history: History) -> None:
    read = some_read(history)
    read.records = (*read.records, read.records[-1])


def swap_in_a_read(history: History) -> None:
    read = some_read(history)
    first, second, *rest = read.records
    read.records = (replace(first, value=second.value), replace(second, value=first.value), *rest)


def read_above_the_high_watermark(history: History) -> None:
    read = some_read(history)
    read.high_watermark = read.records[-1].offset


def swap_the_order_of_two_writes(history: History) -> None:
    first, second = [
        write for write in history.writes if write.outcome is Outcome.OK and write.partition == (PLAIN, 1)
    ][3:5]
    first.invoked, first.completed, second.invoked, second.completed = (
        second.invoked,
        second.completed,
        first.invoked,
        first.completed,
    )


def swap_two_writes_of_one_connection(history: History) -> None:
    first, second = [
        write for write in history.writes if write.outcome is Outcome.OK and write.partition == (PLAIN, 1)
    ][3:5]
    second.invoked = first.invoked  # both were under way at once
    here, there = history.writes.index(first), history.writes.index(second)
    history.writes[here], history.writes[there] = second, first


def lower_a_high_watermark(history: History) -> None:
    write = [write for write in history.writes if write.outcome is Outcome.OK and write.partition == (PLAIN, 1)][-1]
    for listed in history.listed:
        if listed.asked == LATEST and listed.partition == write.partition and listed.invoked > write.completed:
            listed.offset -= 1
            return


def begin_a_log_late(history: History) -> None:
    log = history.final[TopicPartition(PLAIN, 1)]
    log.start_offset = 5
    log.records = log.records[5:]


def read_what_was_deleted(history: History) -> None:
    deletion = next(deletion for deletion in history.deletions if deletion.partition == (TRIMMED, 1))
    read = next(read for read in history.reads if read.partition == deletion.partition and read.records)
    history.reads.append(replace(read, from_offset=read.records[0].offset, invoked=500.0, completed=501.0))


def forget_a_commit(history: History) -> None:
    seen = [seen for seen in history.commits_seen if seen.offset > 3][-1]
    seen.offset = -1


def bring_back_an_older_commit(history: History) -> None:
    seen = history.commits_seen[-1]
    seen.offset = next(commit.offset for commit in history.commits if commit.partition == seen.partition)


def invent_a_commit(history: History) -> None:
    history.commits_seen[-1].offset = 10**6


def list_an_offset_too_late(history: History) -> None:
    listed = next(listed for listed in history.listed if listed.asked > 0 and listed.partition == (PLAIN, 1))
    log = history.final[listed.partition]
    later = log.records[listed.offset + 4]
    listed.offset, listed.timestamp = later.offset, later.timestamp


def list_a_wrong_timestamp(history: History) -> None:
    next(listed for listed in history.listed if listed.asked > 0 and listed.partition == (PLAIN, 1)).timestamp += 1


def list_nothing_although_there_is_something(history: History) -> None:
    listed = [listed for listed in history.listed if listed.asked > 0 and listed.partition == (PLAIN, 1)][-1]
    listed.offset = listed.timestamp = -1


def lose_a_record_in_a_restart(history: History) -> None:
    log = history.after_restart[TopicPartition(PLAIN, 1)]
    log.records, log.end_offset = log.records[:-1], log.end_offset - 1


def find_a_record_after_a_restart(history: History) -> None:
    partition = TopicPartition(PLAIN, 1)
    history.topics[PLAIN] = replace(history.topics[PLAIN], transactional=True)
    log = history.after_restart[partition]
    log.records, log.end_offset = (*log.records, Record(log.end_offset, 0, None, b"new")), log.end_offset + 1


def find_an_offset_after_a_restart(history: History) -> None:
    history.after_restart[TopicPartition(PLAIN, 1)].end_offset += 1


def show_what_was_aborted_after_a_restart(history: History) -> None:
    log = history.after_restart[TopicPartition(PLAIN, 1)]
    log.committed = log.records[:1]


def lose_a_retained_record_in_a_restart(history: History) -> None:
    history.topics[PLAIN] = replace(history.topics[PLAIN], retained=True)
    log = history.after_restart[TopicPartition(PLAIN, 1)]
    log.records, log.start_offset = (log.records[9], *log.records[11:]), 9


def get_stuck(history: History) -> None:
    history.stuck.append("reader r never reached the end of plain-1")


DAMAGES: dict[Callable[[History], None], str] = {
    lose_an_acknowledged_record: "NothingAcknowledgedIsLost",
    lose_the_newest_record_of_a_key: "NothingAcknowledgedIsLost",
    bring_back_a_deleted_key: "DeletedKeysStayDeleted",
    give_a_wrong_answer: "AnswersMakeSense",
    invent_a_record: "NothingIsInvented",
    store_what_was_refused: "NothingIsInvented",
    store_twice: "NothingIsInvented",
    read_what_nobody_sent: "NothingIsInvented",
    acknowledge_one_offset_twice: "OffsetsNeverReused",
    reuse_an_offset_that_a_power_cut_took_from_what_survives_it: "OffsetsNeverReused",
    skip_in_a_read: "ReadersAgree",
    skip_in_a_read_of_a_compacted_topic: "ReadersAgree",
    repeat_in_a_read: "ReadersAgree",
    swap_in_a_read: "ReadersAgree",
    read_above_the_high_watermark: "ReadersAgree",
    swap_the_order_of_two_writes: "OrderIsKept",
    swap_two_writes_of_one_connection: "OrderIsKept",
    lower_a_high_watermark: "HighWatermarkKeepsItsWord",
    begin_a_log_late: "LogStartIsJustified",
    read_what_was_deleted: "LogStartIsJustified",
    forget_a_commit: "CommittedOffsetsNeverGoBack",
    bring_back_an_older_commit: "CommittedOffsetsNeverGoBack",
    invent_a_commit: "CommittedOffsetsNeverGoBack",
    list_an_offset_too_late: "ListedOffsetsAreTrue",
    list_a_wrong_timestamp: "ListedOffsetsAreTrue",
    list_nothing_although_there_is_something: "ListedOffsetsAreTrue",
    lose_a_record_in_a_restart: "ACleanRestartChangesNothing",
    find_a_record_after_a_restart: "ACleanRestartChangesNothing",
    find_an_offset_after_a_restart: "ACleanRestartChangesNothing",
    show_what_was_aborted_after_a_restart: "ACleanRestartChangesNothing",
    lose_a_retained_record_in_a_restart: "ACleanRestartChangesNothing",
    get_stuck: "EverybodyGetsThrough",
}


@pytest.mark.parametrize("seed", range(5))
def test_a_valid_history_breaks_no_promise(seed: int) -> None:
    assert judge(valid_history(seed)) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_caught_by_the_promise_it_breaks(damage: Callable[[History], None]) -> None:
    history = valid_history()
    damage(history)
    assert DAMAGES[damage] in {violation.promise for violation in judge(history)}


def test_every_checker_is_shown_to_catch_something() -> None:
    assert set(DAMAGES.values()) == {type(checker).__name__ for checker in CHECKERS}


def test_what_was_only_promised_to_survive_a_kill_may_be_lost_to_a_power_cut() -> None:
    history = valid_history()
    assert any(write.held is Held.KILL and write.outcome is Outcome.OK for write in history.writes)
    assert judge(history) == []
    history.crashes.clear()
    assert "NothingAcknowledgedIsLost" in {violation.promise for violation in judge(history)}


def test_an_unknown_commit_may_take_effect_late() -> None:
    history = valid_history()
    seen = history.commits_seen[-1]
    early = next(
        commit for commit in history.commits if commit.partition == seen.partition and commit.offset < seen.offset
    )
    early.outcome, seen.offset = Outcome.UNKNOWN, early.offset
    assert judge(history) == []


def test_after_a_jump_of_the_clock_a_log_may_begin_behind_markers_but_not_behind_records() -> None:
    partition = TopicPartition(PLAIN, 0)
    history = History(topics={PLAIN: Topic(PLAIN, 1)})
    history.final[partition] = FinalLog(1, 5, ())
    checker = LogStartIsJustified()
    assert len(list(checker.check(history))) == 1
    history.clock_jumped = True
    assert list(checker.check(history)) == []
    write = Write("w", 1, partition, ((None, b"v"),), 1, Held.KILL, 1.0, 1.1, Outcome.OK, base_offset=0)
    history.writes.append(write)
    assert len(list(checker.check(history))) == 1
    write.base_offset = 1
    assert list(checker.check(history)) == []


def test_a_reader_may_be_overtaken_by_the_cleaner_as_long_as_it_ends_up_with_what_is_true() -> None:
    """It read the old value before a pass took it and its tombstone away, and what superseded both after it."""
    partition = TopicPartition(COMPACTED, 0)
    history = History(topics={COMPACTED: Topic(COMPACTED, 1, compacted=True)})
    tombstone = Write("w", 1, partition, ((b"k", None),), -1, Held.POWER_CUT, 1.0, 1.1, Outcome.OK)
    tombstone.base_offset = 5
    history.writes.append(tombstone)
    old, new = (Record(offset, 0, b"k", b"value %d" % offset) for offset in (0, 9))
    history.final[partition] = FinalLog(0, 10, (old, new))
    assert list(DeletedKeysStayDeleted().check(history)) == []
    history.final[partition] = FinalLog(0, 10, (old,))
    assert len(list(DeletedKeysStayDeleted().check(history))) == 1
