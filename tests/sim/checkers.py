"""The promises of the broker, one class each, each judging a whole history.

What always holds: a checker reads the history only, says nothing of what is unknown, and reports in a fixed order.
`tests/sim/test_checkers.py` damages a valid history once for each promise and sees it caught.

What makes a promise void is written in one place, `History.excused`: a power cut, for what was only promised to survive
a kill.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from log.ids import TopicPartition
from tests.sim.history import NEVER, Commit, CommitSeen, FinalLog, Held, History, Listed, Outcome, Read, Record, Write

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
MAX_PER_PROMISE = 5  # more violations of one promise say nothing new


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


class Checker(Protocol):
    def check(self, history: History) -> Iterator[str]:
        """Say what contradicts the promise."""
        ...


def at(log: FinalLog, offset: int) -> int | None:
    """The index in `log.records` of the record with this offset; None if it is not there."""
    place = bisect_left(log.records, offset, key=lambda record: record.offset)
    return place if place < len(log.records) and log.records[place].offset == offset else None


def intact(history: History, partition: TopicPartition) -> FinalLog | None:
    """The final log of a partition that may be judged by its contents: no bit of it was flipped, and it
    could be read.
    """
    return None if partition in history.rotten else history.final.get(partition)


Newest = dict[tuple[TopicPartition, bytes | None], float]


def newest_places(history: History) -> Newest:
    """The newest place of each key. If a tombstone was removed like the records that it deleted: the place where it
    was.
    """
    newest: Newest = {}
    for partition, log in history.final.items():
        newest.update(((partition, record.key), record.offset) for record in log.records)
    for write in history.writes:
        for index, (key, value) in enumerate(write.records):
            if value is None and write.outcome is not Outcome.FAILED:
                place = write.base_offset + index if write.outcome is Outcome.OK else NEVER
                newest[write.partition, key] = max(newest.get((write.partition, key), -1), place)
    return newest


def may_be_compacted(history: History, partition: TopicPartition, record: Record, newest: Newest) -> bool:
    """Whether one replica may lack what another holds still: each compacts in its own time."""
    topic = history.topics[partition.topic]
    if not (history.replicas_compact and topic.compacted):
        return False
    # Aborted records go, too; the transaction knows whether a record was aborted.
    superseded = newest.get((partition, record.key), -1) > record.offset
    return topic.transactional or record.value is None or superseded


class NothingAcknowledgedIsLost:
    """Every acknowledged record stands at its offset in the end, unless it was deleted or
    superseded as the topic asks.
    """

    def check(self, history: History) -> Iterator[str]:
        newest = newest_places(history)
        for write in history.writes:
            log = intact(history, write.partition)
            if write.outcome is not Outcome.OK or log is None or history.excused(write.held, write.invoked):
                continue
            topic = history.topics[write.partition.topic]
            compacted = topic.compacted
            if compacted and topic.transactional:
                continue  # aborted records go: TheNewestOfEachKeyStays judges that
            for index, (key, value) in enumerate(write.records):
                offset = write.base_offset + index
                place = at(log, offset)
                if place is not None and (log.records[place].key, log.records[place].value) == (key, value):
                    continue
                if offset < log.start_offset:
                    continue  # LogStartIsJustified judges that
                if compacted and place is None and (value is None or newest.get((write.partition, key), -1) > offset):
                    continue
                found = "nothing" if place is None else f"{log.records[place].value!r:.60}"
                yield (
                    f"{write.partition} offset {offset}: {value!r:.60} of {write.writer} was acknowledged at"
                    f" {write.completed:.6f}, found {found}"
                )


class NothingIsInvented:
    """What is stored or read was sent to that partition, stands there once, and was not refused."""

    def check(self, history: History) -> Iterator[str]:
        sent: dict[tuple[TopicPartition, bytes | None, bytes | None], Write] = {}
        for write in history.writes:
            for key, value in write.records:
                sent[write.partition, key, value] = write
        for read in history.reads:
            for record in read.records:
                if (read.partition, record.key, record.value) not in sent:
                    yield (
                        f"{read.partition} offset {record.offset}: {read.reader} read {record.value!r:.60},"
                        " which nobody sent there"
                    )
        for partition, log in history.final.items():
            seen: dict[tuple[bytes | None, bytes | None], int] = {}
            for record in log.records:
                where = f"{partition} offset {record.offset}"
                origin = sent.get((partition, record.key, record.value))
                if origin is None:
                    yield f"{where}: {record.value!r:.60} was sent by nobody"
                elif origin.outcome is Outcome.FAILED and record.value is not None:
                    yield f"{where}: {record.value!r:.60} was refused ({origin.error}) and is stored"
                if record.value is not None and (record.key, record.value) in seen:
                    yield f"{where}: {record.value!r:.60} stands at {seen[record.key, record.value]} too"
                seen[record.key, record.value] = record.offset


@dataclass(slots=True)
class Seen:
    """A client was told that a value is at an offset."""

    since: float
    told: float
    held: Held
    content: tuple[bytes | None, bytes | None]
    by: str


class OffsetsNeverReused:
    """One offset of one partition never holds two values, whichever clients were told of them."""

    def check(self, history: History) -> Iterator[str]:
        told: dict[tuple[TopicPartition, int], list[Seen]] = {}
        for write in history.writes:
            if write.outcome is Outcome.OK and write.base_offset >= 0:
                for index, content in enumerate(write.records):
                    entry = Seen(write.invoked, write.completed, write.held, content, f"acknowledged to {write.writer}")
                    told.setdefault((write.partition, write.base_offset + index), []).append(entry)
        for read in history.reads:
            for record in read.records:
                entry = Seen(
                    read.invoked, read.completed, read.held, (record.key, record.value), f"read by {read.reader}"
                )
                told.setdefault((read.partition, record.offset), []).append(entry)
        for (partition, offset), entries in told.items():
            if partition not in history.rotten and any(entry.content != entries[0].content for entry in entries):
                yield from self._conflicts(
                    history, f"{partition} offset {offset}", sorted(entries, key=lambda entry: entry.told)
                )

    @staticmethod
    def _conflicts(history: History, where: str, entries: list[Seen]) -> Iterator[str]:
        for place, second in enumerate(entries):
            for first in entries[:place]:
                # an answer may travel for a while, so either of the two may be the one that a power cut took
                lost = history.excused(first.held, first.since, second.told) or history.excused(
                    second.held, second.since, first.told
                )
                if first.content != second.content and not lost:
                    yield (
                        f"{where}: {first.content[1]!r:.60} {first.by} at {first.told:.6f},"
                        f" then {second.content[1]!r:.60} {second.by} at {second.told:.6f}"
                    )
                    return


class DeletedKeysStayDeleted:
    """In a compacted topic, if the tombstone of a key is gone, everything that it deleted is gone. A reader that the
    cleaner overtakes may still have seen it, and then a newer value of the key; in the end it knows the same.
    """

    def check(self, history: History) -> Iterator[str]:
        for write in history.writes:
            log = intact(history, write.partition)
            if write.outcome is not Outcome.OK or log is None or history.excused(write.held, write.invoked):
                continue
            # Read again: the first reader may have met a replica whose cleaner had come further than the first one's.
            again = history.after_restart.get(write.partition, log).records
            for index, (key, value) in enumerate(write.records):
                offset = write.base_offset + index
                if value is not None or at(log, offset) is not None:
                    continue
                newest = next((record for record in reversed(log.records) if record.key == key), None)
                if newest is not None and newest.offset < offset and newest in again:
                    yield f"{write.partition}: {key!r} was deleted at {offset}, {newest.offset} is back"


class ReadersAgree:
    """A read is the slice of the final log that it claims to be: no skip, no repeat, nothing else, nothing above the
    high watermark.
    """

    def check(self, history: History) -> Iterator[str]:
        newest = newest_places(history)
        for read in history.reads:
            topic = history.topics[read.partition.topic]
            yield from self._shape(read, dense=not (topic.compacted or topic.transactional))
            log = intact(history, read.partition)
            if log is not None and not history.excused(read.held, read.invoked):
                yield from self._contents(read, log, history, newest)

    @staticmethod
    def _shape(read: Read, *, dense: bool) -> Iterator[str]:
        where = f"{read.partition} [{read.from_offset}, {read.to_offset}) read by {read.reader} at {read.completed:.6f}"
        offsets = [record.offset for record in read.records]
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            yield f"{where}: offsets out of order: {offsets}"
        elif dense and offsets != list(range(read.from_offset, read.to_offset)):
            yield f"{where}: got {offsets}"
        elif offsets and not read.from_offset <= offsets[0] <= offsets[-1] < read.to_offset:
            yield f"{where}: got offsets {offsets[0]} to {offsets[-1]}"
        if offsets and offsets[-1] >= read.high_watermark:
            yield f"{where}: offset {offsets[-1]} at or above the high watermark {read.high_watermark}"

    @staticmethod
    def _contents(read: Read, log: FinalLog, history: History, newest: Newest) -> Iterator[str]:
        compacted = history.topics[read.partition.topic].compacted
        given = {record.offset: record for record in read.records}
        where = f"{read.partition} read by {read.reader} at {read.completed:.6f}"
        for record in read.records:
            place = at(log, record.offset)
            if place is None:
                if record.offset >= log.start_offset and not compacted:
                    yield f"{where}: offset {record.offset} held {record.value!r:.60}, in the end nothing"
            elif log.records[place] != record:
                stored = log.records[place].value
                yield f"{where}: offset {record.offset} held {record.value!r:.60}, in the end {stored!r:.60}"
        first = bisect_left(log.records, read.from_offset, key=lambda record: record.offset)
        for record in log.records[first:]:
            if record.offset >= read.to_offset:
                break
            if (
                record.offset not in given
                and read.completed <= log.read_at
                and not may_be_compacted(history, read.partition, record, newest)
            ):
                yield f"{where}: offset {record.offset} is stored and was not given"


class OrderIsKept:
    """Per partition: what was acknowledged before another write began stands below it, and one connection's writes
    stand in the order they were sent.
    """

    def check(self, history: History) -> Iterator[str]:
        by_partition: dict[TopicPartition, list[Write]] = {}
        for write in history.writes:
            by_partition.setdefault(write.partition, []).append(write)
        for partition, writes in by_partition.items():
            if partition in history.rotten:
                continue
            placed = self._placed(history, partition, writes)
            yield from self._acknowledged_before(history, partition, placed)
            last: dict[int, tuple[int, Write]] = {}
            for write, offset in placed:
                before = last.get(write.connection)
                if before is not None and before[0] > offset:
                    yield (
                        f"{partition}: {write.writer} sent {before[1].records[0][1]!r:.40} first, it stands at"
                        f" {before[0]}, the next at {offset}"
                    )
                last[write.connection] = (offset, write)

    @staticmethod
    def _placed(history: History, partition: TopicPartition, writes: list[Write]) -> list[tuple[Write, int]]:
        """Each write that has a place, with its first offset, in the order of sending."""
        log = history.final.get(partition)
        found = {} if log is None else {(record.key, record.value): record.offset for record in log.records}
        placed = []
        for write in writes:
            if write.outcome is Outcome.OK and write.base_offset >= 0:
                placed.append((write, write.base_offset))
            elif (offset := found.get(write.records[0])) is not None and write.records[0][1] is not None:
                placed.append((write, offset))
        return placed

    @staticmethod
    def _acknowledged_before(
        history: History, partition: TopicPartition, placed: list[tuple[Write, int]]
    ) -> Iterator[str]:
        moments = [(write.invoked, 1, place) for place, (write, _) in enumerate(placed)]
        moments += [
            (write.completed, 0, place) for place, (write, _) in enumerate(placed) if write.outcome is Outcome.OK
        ]
        floor: tuple[int, Write] | None = None
        for _, begins, place in sorted(moments):
            write, offset = placed[place]
            if not begins:
                last_offset = offset + len(write.records) - 1
                if write.held is not Held.NOTHING and (floor is None or last_offset > floor[0]):
                    floor = (last_offset, write)
            elif floor is not None and offset <= floor[0]:
                if history.excused(floor[1].held, floor[1].invoked, write.completed):
                    floor = None
                else:
                    yield (
                        f"{partition}: {write.writer} began at {write.invoked:.6f} and got offset {offset},"
                        f" although {floor[0]} had been acknowledged"
                    )


class HighWatermarkKeepsItsWord:
    """While the broker lives, the high watermark never falls, and it lies above everything
    acknowledged with acks=all.
    """

    def check(self, history: History) -> Iterator[str]:
        told: dict[
            TopicPartition, list[tuple[float, float, int, str]]
        ] = {}  # began, ended, at least so far, how it is known
        asked: dict[TopicPartition, list[tuple[float, float, int]]] = {}
        for read in history.reads:
            told.setdefault(read.partition, []).append(
                (read.invoked, read.completed, read.high_watermark, f"{read.reader} was told")
            )
            asked.setdefault(read.partition, []).append((read.invoked, read.completed, read.high_watermark))
        for listed in history.listed:
            if listed.asked == LATEST:
                asked.setdefault(listed.partition, []).append((listed.invoked, listed.completed, listed.offset))
        for write in history.writes:
            if write.outcome is Outcome.OK and write.acks == -1:
                entry = (
                    write.invoked,
                    write.completed,
                    write.base_offset + len(write.records),
                    f"acknowledged to {write.writer}",
                )
                told.setdefault(write.partition, []).append(entry)
        for partition, answers in asked.items():
            if partition in history.rotten:
                continue
            known = sorted(told.get(partition, ()), key=lambda entry: entry[1])
            position = 0
            best: dict[int, tuple[float, float, int, str]] = {}  # by the broker's life
            for invoked, completed, high_watermark in sorted(answers):
                while position < len(known) and known[position][1] < invoked:
                    life = history.life(known[position][0], known[position][1])
                    if life is not None and (life not in best or known[position][2] > best[life][2]):
                        best[life] = known[position]
                    position += 1
                at_least = best.get(history.life(invoked, completed) or -1)
                if at_least is not None and high_watermark < at_least[2]:
                    _, ended, offset, source = at_least
                    yield (
                        f"{partition}: high watermark {high_watermark} at {completed:.6f},"
                        f" but {source} {offset} at {ended:.6f}"
                    )


class LogStartIsJustified:
    """A log begins where a client has asked it to begin, and deleted records stay deleted.

    A marker bears the broker's time. Where that clock was set, a marker may seem older than any retention, and goes.
    What a client wrote bears the client's time, and stays.
    """

    def check(self, history: History) -> Iterator[str]:
        asked: dict[TopicPartition, int] = {}
        for deletion in history.deletions:
            if deletion.outcome is not Outcome.FAILED:
                asked[deletion.partition] = max(asked.get(deletion.partition, 0), deletion.before_offset)
        for partition, log in history.final.items():
            if history.topics[partition.topic].retained or partition in history.rotten:
                continue
            least = asked.get(partition, 0)
            removed = range(least, log.start_offset)
            if removed and not (history.clock_jumped and self._held_only_markers(history, partition, removed)):
                yield f"{partition} begins at {log.start_offset}, asked for at most {least}"
        reads: dict[TopicPartition, list[Read]] = {}
        for read in history.reads:
            reads.setdefault(read.partition, []).append(read)
        for deletion in history.deletions:
            if deletion.outcome is not Outcome.OK:
                continue
            for read in reads.get(deletion.partition, ()):
                again = read.invoked > deletion.completed and read.from_offset < deletion.before_offset
                if not again or not read.records or history.may_be_outdated(read.invoked, read.completed):
                    continue
                if not history.excused(deletion.held, deletion.invoked, read.completed):
                    yield (
                        f"{read.partition}: {read.reader} read offset {read.records[0].offset}"
                        f" after everything below {deletion.before_offset} was deleted"
                    )

    @staticmethod
    def _held_only_markers(history: History, partition: TopicPartition, offsets: range) -> bool:
        """Whether no acknowledged record of a client was at these offsets."""
        return not any(
            write.partition == partition
            and write.outcome is Outcome.OK
            and write.base_offset < offsets.stop
            and write.base_offset + len(write.records) > offsets.start
            for write in history.writes
        )


class CommittedOffsetsNeverGoBack:
    """A group is told an offset that was committed, and none older than the newest acknowledged one."""

    def check(self, history: History) -> Iterator[str]:
        all_commits: dict[tuple[str, TopicPartition], list[Commit]] = {}
        for commit in history.commits:
            if commit.outcome is not Outcome.FAILED:
                all_commits.setdefault((commit.group, commit.partition), []).append(commit)
        for seen in history.commits_seen:
            commits = [
                commit
                for commit in all_commits.get((seen.group, seen.partition), ())
                if commit.invoked < seen.completed
            ]
            if seen.offset != -1 and seen.offset not in [commit.offset for commit in commits]:
                yield f"{self._name(seen)} was told {seen.offset} at {seen.completed:.6f}, which nobody had committed"
                continue
            sure = [commit for commit in commits if commit.outcome is Outcome.OK and commit.completed < seen.invoked]
            sure = [commit for commit in sure if not history.excused(commit.held, commit.invoked, seen.completed)]
            newest = max((commit.offset for commit in sure), default=-1)
            late = [
                commit.offset for commit in commits if commit.outcome is Outcome.UNKNOWN
            ]  # may take effect at any time
            if seen.offset < newest and seen.offset not in late:
                yield (
                    f"{self._name(seen)} was told {seen.offset} at {seen.completed:.6f},"
                    f" although {newest} had been acknowledged"
                )

    @staticmethod
    def _name(seen: CommitSeen) -> str:
        return f"group {seen.group} of {seen.partition}"


class ListedOffsetsAreTrue:
    """A lookup by timestamp gives the first record that is not older, and its timestamp."""

    def check(self, history: History) -> Iterator[str]:
        newest = newest_places(history)
        for listed in history.listed:
            log = intact(history, listed.partition)
            if log is None or listed.asked < 0 or history.excused(listed.held, listed.invoked):
                continue
            asked = f"{listed.partition}: timestamp {listed.asked} asked at {listed.invoked:.6f}"
            where = f"{asked}, offset {listed.offset} answered"
            place = at(log, listed.offset)
            if place is not None and not listed.asked <= listed.timestamp == log.records[place].timestamp:
                yield f"{where} with timestamp {listed.timestamp}, stored is {log.records[place].timestamp}"
            end = (
                listed.offset
                if listed.offset >= 0
                else self._acknowledged_by(history, listed.partition, listed.invoked)
            )
            hidden = self._deleted_by(history, listed)
            for record in log.records:
                if record.offset >= end:
                    break
                if (
                    record.offset >= hidden
                    and record.timestamp >= listed.asked
                    and not may_be_compacted(history, listed.partition, record, newest)
                ):
                    yield f"{where}, but offset {record.offset} has timestamp {record.timestamp}"
                    break

    @staticmethod
    def _deleted_by(history: History, listed: Listed) -> int:
        """Below this offset records may have been hidden at that time, even if a crash brought them back: nobody was
        told yet.
        """
        asked = [
            deletion.before_offset
            for deletion in history.deletions
            if deletion.partition == listed.partition and deletion.invoked < listed.completed
        ]
        if history.topics[listed.partition.topic].retained:
            asked.append(listed.offset)
        return max(asked, default=0)

    @staticmethod
    def _acknowledged_by(history: History, partition: TopicPartition, moment: float) -> int:
        ends = [
            write.base_offset + len(write.records)
            for write in history.writes
            if write.partition == partition and write.outcome is Outcome.OK and write.acks == -1
            if write.completed < moment and not history.excused(write.held, write.invoked, moment)
        ]
        return max(ends, default=0)


class ACleanRestartChangesNothing:
    """What was readable before a clean stop is readable after it."""

    def check(self, history: History) -> Iterator[str]:
        for partition, before in history.final.items():
            after = history.after_restart.get(partition)
            if after is None or partition in history.rotten:
                continue
            topic = history.topics[partition.topic]
            # a transaction that came to nothing here, and that time has ended meanwhile, leaves a marker
            more = [record.offset for record in after.records if record.offset >= before.end_offset]
            if (
                after.end_offset < before.end_offset
                or more
                or (after.end_offset > before.end_offset and not topic.transactional)
            ):
                yield f"{partition} ended at {before.end_offset} before, at {after.end_offset} after"
            if topic.compacted:
                continue
            # a deletion that was not answered may have taken effect only now
            low, high = before.start_offset, max(before.start_offset, self._asked(history, partition))
            if after.start_offset < low or (after.start_offset > high and not topic.retained):
                yield f"{partition} began at {before.start_offset} before, at {after.start_offset} after"
            elif _from(after.start_offset, before.records) != _from(after.start_offset, after.records):
                yield f"{partition} holds other records after"
            elif _from(after.start_offset, before.committed) != after.committed:
                yield f"{partition} shows other committed records after"

    @staticmethod
    def _asked(history: History, partition: TopicPartition) -> int:
        unknown = [
            each for each in history.deletions if each.outcome is Outcome.UNKNOWN and each.partition == partition
        ]
        return max((each.before_offset for each in unknown), default=0)


def _from(offset: int, records: tuple[Record, ...]) -> tuple[Record, ...]:
    return tuple(record for record in records if record.offset >= offset)


class AnswersMakeSense:
    """No answer is wrong in itself: damaged bytes, an error that says the broker failed, a damaged batch accepted."""

    def check(self, history: History) -> Iterator[str]:
        yield from history.wrong


class EverybodyGetsThrough:
    """After everything healed, every writer is acknowledged, every reader reaches the end, every group can commit."""

    def check(self, history: History) -> Iterator[str]:
        yield from history.stuck


CHECKERS: tuple[Checker, ...] = (
    NothingAcknowledgedIsLost(),
    NothingIsInvented(),
    OffsetsNeverReused(),
    DeletedKeysStayDeleted(),
    ReadersAgree(),
    OrderIsKept(),
    HighWatermarkKeepsItsWord(),
    LogStartIsJustified(),
    CommittedOffsetsNeverGoBack(),
    ListedOffsetsAreTrue(),
    ACleanRestartChangesNothing(),
    AnswersMakeSense(),
    EverybodyGetsThrough(),
)


def judge(history: History, checkers: tuple[Checker, ...] = CHECKERS) -> list[Violation]:
    """Everything that contradicts a promise, at most a few for each."""
    violations = []
    for checker in checkers:
        for count, what in enumerate(checker.check(history)):
            if count == MAX_PER_PROMISE:
                break
            violations.append(Violation(type(checker).__name__, what))
    return violations
