"""The promises of exactly once, one class each, beside those of `tests.sim.checkers`.

What always holds: a transaction is judged by what its owner knows (committed, aborted, or unknown: all of it or
nothing) and by the final log as read_committed shows it. Cycles of writes over writes between transactions are legal,
for Kafka's transactions isolate no writers; cycles of information are not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from log.ids import TopicPartition
from tests.sim.checkers import Checker, intact
from tests.sim.history import NEVER, UNTOLD, CommittedRead, Held, History, Outcome, Record, Transaction

Origins = dict[bytes, tuple[Transaction, TopicPartition]]
Places = dict[tuple[TopicPartition, bytes | None], list[int]]


def origins(history: History) -> Origins:
    """For each value, the transaction that sent it and its partition."""
    return {value: (txn, partition) for txn in history.transactions for partition, value in txn.values}


def visible(history: History) -> dict[bytes, tuple[TopicPartition, int]]:
    """Where each value stands in the committed view."""
    return {
        record.value: (partition, record.offset)
        for partition, log in history.final.items()
        for record in log.committed
        if record.value is not None
    }


def took_effect(txn: Transaction, seen: dict[bytes, tuple[TopicPartition, int]]) -> bool:
    return txn.outcome is Outcome.OK or (
        txn.outcome is Outcome.UNKNOWN and any(value in seen for _, value in txn.values)
    )


def acknowledged(history: History) -> dict[bytes, int]:
    """The offset of each value that was acknowledged, where records go, the oldest first."""
    return {
        value: offset
        for write in history.writes
        if write.outcome is Outcome.OK and history.topics[write.partition.topic].passes
        for offset, (_, value) in enumerate(write.records, write.base_offset)
        if value is not None
    }


class AllOrNothing:
    """Of a committed transaction everything is visible that lies above the start of its log, of an aborted one nothing,
    of an unknown one all or nothing.
    """

    def check(self, history: History) -> Iterator[str]:
        seen, places = visible(history), acknowledged(history)
        for txn in history.transactions:
            judged = [each for each in txn.values if self._judged(history, txn, *each, places)]
            shown = [value for _, value in judged if value in seen]
            name = f"transaction {txn.number} of {txn.transactional_id} (epoch {txn.epoch})"
            if txn.outcome is Outcome.OK and len(shown) < len(judged):
                missing = next(value for _, value in judged if value not in seen)
                yield f"{name} was committed at {txn.completed:.6f}, {missing!r:.40} is not visible"
            elif txn.outcome is Outcome.FAILED and shown:
                yield f"{name} was not committed, {shown[0]!r:.40} is visible at {seen[shown[0]]}"
            elif txn.outcome is Outcome.UNKNOWN and 0 < len(shown) < len(judged):
                yield f"{name} is torn: {len(shown)} of {len(judged)} values are visible"

    @staticmethod
    def _judged(
        history: History, txn: Transaction, partition: TopicPartition, value: bytes, places: dict[bytes, int]
    ) -> bool:
        """Records that may be removed are judged only if none of them may be there, or if they are known to lie above
        the start of the log.
        """
        log, topic = intact(history, partition), history.topics[partition.topic]
        if log is None or txn.outcome is Outcome.FAILED:
            return log is not None
        return not topic.compacted and (not topic.passes or places.get(value, -1) >= log.start_offset)


class TheNewestOfEachKeyStays:
    """In a compacted topic the newest committed value of a key is there for readers of what is committed, unless the
    key was deleted after it.
    """

    def check(self, history: History) -> Iterator[str]:
        of_transactions = origins(history)
        newest: dict[tuple[TopicPartition, bytes | None], tuple[int, bytes]] = {}
        deleted: dict[tuple[TopicPartition, bytes | None], float] = {}
        for write in history.writes:
            topic = history.topics[write.partition.topic]
            if not (topic.compacted and topic.transactional) or write.outcome is Outcome.FAILED:
                continue
            sure = write.outcome is Outcome.OK and not history.excused(write.held, write.invoked)
            for index, (key, value) in enumerate(write.records):
                name, offset = (write.partition, key), write.base_offset + index
                if value is None:
                    deleted[name] = max(deleted.get(name, -1), offset if write.base_offset >= 0 else NEVER)
                    continue
                committed = value not in of_transactions or of_transactions[value][0].outcome is Outcome.OK
                if sure and committed and write.base_offset >= 0 and offset > newest.get(name, (-1, b""))[0]:
                    newest[name] = (offset, value)
        for (partition, key), (offset, value) in newest.items():
            log = intact(history, partition)
            if log is None or deleted.get((partition, key), -1) > offset:
                continue
            if not any(record.key == key and record.offset >= offset for record in log.committed):
                yield f"{partition}: {key!r} was {value!r:.40} at {offset}, committed, and is not visible"


class NothingTwiceNothingInvented:
    """A visible value was sent to that partition, by a transaction or by a plain write, and stands there once."""

    def check(self, history: History) -> Iterator[str]:
        sent = {(partition, value) for txn in history.transactions for partition, value in txn.values}
        sent |= {
            (write.partition, value) for write in history.writes for _, value in write.records if value is not None
        }
        for partition, log in history.final.items():
            seen: dict[bytes | None, int] = {}
            for record in log.committed:
                if record.value is not None and (partition, record.value) not in sent:
                    yield f"{partition} offset {record.offset}: {record.value!r:.40} was sent by nobody"
                if record.value is not None and record.value in seen:
                    yield f"{partition}: {record.value!r:.40} stands at {seen[record.value]} and at {record.offset}"
                seen[record.value] = record.offset


class AbortedStaysInvisible:
    """No reader under read_committed ever gets a value of a transaction that was not committed, nor of one whose commit
    nobody had asked for yet.
    """

    def check(self, history: History) -> Iterator[str]:
        known = origins(history)
        for read in history.committed_reads:
            for record in read.records:
                if record.value is None or record.value not in known:
                    continue
                txn, _ = known[record.value]
                if txn.outcome is Outcome.FAILED:
                    yield (
                        f"{read.partition} offset {record.offset}: {read.reader} was given {record.value!r:.40} at"
                        f" {read.completed:.6f}, of transaction {txn.number}, which was not committed"
                    )
                elif txn.end_invoked > read.completed:
                    yield (
                        f"{read.partition} offset {record.offset}: {read.reader} was given {record.value!r:.40} at"
                        f" {read.completed:.6f}, of transaction {txn.number}, which was to end at {txn.end_invoked:.6f}"
                    )


class CommittedReadsAreSlices:
    """A read_committed answer is the slice of the final committed view that it claims to be: no skip, no repeat.

    Of a compacted topic it may lack what a later value of the key replaced that was stable already: another replica may
    have served it, which compacts in its own time, or the cleaner has come by since.
    """

    def check(self, history: History) -> Iterator[str]:
        places = places_of_keys(history)
        for read in history.committed_reads:
            log = intact(history, read.partition)
            if log is None or history.excused(read.held, read.invoked):
                continue
            topic = history.topics[read.partition.topic]
            first = bisect_left(log.committed, max(read.from_offset, log.start_offset), key=_offset)
            last = bisect_left(log.committed, read.to_offset, key=_offset)
            stored = log.committed[first:last]
            given = tuple(record for record in read.records if record.offset >= log.start_offset)
            if topic.compacted:
                kept = {record.offset for record in stored}
                given = tuple(record for record in given if record.offset in kept)
            if topic.compacted and (history.replicas_compact or read.completed > log.read_at):
                still_there = {record.offset for record in given}
                stored = tuple(
                    record
                    for record in stored
                    if record.offset in still_there or not _may_be_cleaned(record, read, places)
                )
            if any(record.timestamp < 0 for record in given):  # the reader was not told
                given, stored = _without_times(given), _without_times(stored)
            if given != stored:
                yield f"{_where(read)}: {_difference(given, stored)}"


class CommittedReadsAreWhole:
    """A read_committed answer has everything acknowledged and committed that lies in the slice that it claims to be,
    also where that has left the log since.
    """

    def check(self, history: History) -> Iterator[str]:
        of_transactions = origins(history)
        by_partition: dict[TopicPartition, list[tuple[int, bytes, Held, float]]] = {}
        for write in history.writes:
            if write.outcome is not Outcome.OK or not history.topics[write.partition.topic].passes:
                continue
            for offset, (_, value) in enumerate(write.records, write.base_offset):
                txn, _ = of_transactions.get(value or b"", (None, None))
                if value is not None and (txn is None or txn.outcome is Outcome.OK):
                    entry = (offset, value, write.held, write.invoked)
                    by_partition.setdefault(write.partition, []).append(entry)
        for read in history.committed_reads:
            entries = by_partition.get(read.partition)
            if entries is None or read.partition in history.rotten or history.excused(read.held, read.invoked):
                continue
            given = {record.offset: record.value for record in read.records}
            for offset, value, held, since in entries:
                within = read.from_offset <= offset < read.to_offset
                if within and given.get(offset) != value and not history.excused(held, since):
                    yield f"{_where(read)}: {value!r:.40} at {offset} was committed and not given"


def places_of_keys(history: History) -> Places:
    """Where values of each key of compacted topics stand or stood that may be committed, in order."""
    of_transactions = origins(history)
    found: Places = {}
    for partition, log in history.final.items():
        for record in log.committed if history.topics[partition.topic].compacted else ():
            found.setdefault((partition, record.key), []).append(record.offset)
    for write in history.writes:
        if write.base_offset < 0 or not history.topics[write.partition.topic].compacted:
            continue
        for offset, (key, value) in enumerate(write.records, write.base_offset):
            if value not in of_transactions or of_transactions[value][0].outcome is not Outcome.FAILED:
                found.setdefault((write.partition, key), []).append(offset)
    for offsets in found.values():
        offsets.sort()
    return found


def _may_be_cleaned(record: Record, read: CommittedRead, places: Places) -> bool:
    offsets = places.get((read.partition, record.key), [])
    later = bisect_right(offsets, record.offset)
    return record.value is None or (later < len(offsets) and offsets[later] < read.last_stable_offset)


def _without_times(records: tuple[Record, ...]) -> tuple[Record, ...]:
    return tuple(replace(record, timestamp=-1) for record in records)


def _offset(record: Record) -> int:
    return record.offset


def _where(read: CommittedRead) -> str:
    claimed = f"[{read.from_offset}, {read.to_offset})"
    return f"{read.partition} {claimed} read by {read.reader} at {read.completed:.6f}"


def _difference(given: tuple[Record, ...], stored: tuple[Record, ...]) -> str:
    for mine, theirs in zip(given, stored, strict=False):
        if mine != theirs:
            return f"given {mine.value!r:.40} at {mine.offset}, stored {theirs.value!r:.40} at {theirs.offset}"
    return f"given {len(given)} records, stored {len(stored)}"


class StableOffsetStopsAtOpenTransactions:
    """Records lie below the stable offset, it lies at or below the high watermark, and while the broker lives neither
    falls.
    """

    def check(self, history: History) -> Iterator[str]:
        highest: dict[tuple[TopicPartition, int], list[tuple[float, int, int]]] = {}
        told = (read for read in history.committed_reads if read.last_stable_offset != UNTOLD)
        for read in sorted(told, key=lambda read: read.invoked):
            if read.records and read.records[-1].offset >= read.last_stable_offset:
                yield f"{_where(read)}: offset {read.records[-1].offset} is not below {read.last_stable_offset}"
            if read.last_stable_offset > read.high_watermark:
                yield f"{_where(read)}: stable offset {read.last_stable_offset} above {read.high_watermark}"
            life = history.life(read.invoked, read.completed)
            if life is None:
                continue
            earlier = highest.setdefault((read.partition, life), [])
            for completed, stable, high_watermark in earlier:
                if completed < read.invoked and (
                    read.last_stable_offset < stable or read.high_watermark < high_watermark
                ):
                    now = (read.last_stable_offset, read.high_watermark)
                    yield f"{_where(read)}: stable offset, high watermark fell: {stable, high_watermark}, {now}"
                    break
            earlier.append((read.completed, read.last_stable_offset, read.high_watermark))
            del earlier[:-50]  # older ones say nothing that these don't


class EveryDecisionGetsItsMarkers:
    """After everything healed, no transaction holds up readers: the stable offset has come to the end. It is past the
    end that was asked for before it if a slow disk had a last marker still to make durable.
    """

    def check(self, history: History) -> Iterator[str]:
        for partition, log in history.final.items():
            if -1 != log.last_stable_offset < log.end_offset:
                yield f"{partition}: stable offset {log.last_stable_offset}, high watermark {log.end_offset}"


class InputIsProcessedOnce:
    """The input ranges that committed transactions took tile the input: no gap, no overlap."""

    def check(self, history: History) -> Iterator[str]:
        seen = visible(history)
        taken: dict[tuple[str, TopicPartition], list[tuple[int, int, int]]] = {}
        for txn in history.transactions:
            if took_effect(txn, seen):
                for partition, (start, end) in txn.consumed.items():
                    taken.setdefault((txn.group, partition), []).append((start, end, txn.number))
        for (group, partition), ranges in taken.items():
            ranges.sort()
            for (_, end, earlier), (start, _, later) in pairwise(ranges):
                if start != end:
                    what = "twice" if start < end else "not at all"
                    between = f"transactions {earlier} and {later}"
                    yield f"{group} processed {partition} [{min(start, end)}, {max(start, end)}) {what}: {between}"


class OneOwnerPerTransactionalId:
    """Once a client was told that a transactional id is its own, no former owner commits."""

    def check(self, history: History) -> Iterator[str]:
        for owned in history.owned:
            for txn in history.transactions:
                mine = (txn.transactional_id, txn.producer_id) == (owned.transactional_id, owned.producer_id)
                older = txn.epoch < owned.epoch
                if mine and older and txn.outcome is Outcome.OK and txn.end_invoked > owned.told:
                    yield (
                        f"{owned.transactional_id}: epoch {owned.epoch} was handed out at {owned.told:.6f}, transaction"
                        f" {txn.number} of epoch {txn.epoch} committed at {txn.completed:.6f}"
                    )


class OrderOfTransactionsIsKept:
    """Per partition the values of one transaction, and of one id's transactions one after the other, stand as they were
    sent.
    """

    def check(self, history: History) -> Iterator[str]:
        seen = visible(history)
        last: dict[tuple[str, TopicPartition], tuple[int, bytes]] = {}
        for txn in sorted(history.transactions, key=lambda txn: txn.began):
            for partition, value in txn.values:
                place = seen.get(value)
                if place is None or txn.many_writers:
                    continue
                before = last.get((txn.transactional_id, partition))
                if before is not None and before[0] > place[1]:
                    yield f"{partition}: {value!r:.40} at {place[1]} was sent after {before[1]!r:.40} at {before[0]}"
                last[txn.transactional_id, partition] = (place[1], value)


class ATokenIsDecidedOnce:
    """Of all attempts at one token at most one takes effect. All clients are told the same about it, and the last
    decision never falls back.
    """

    def check(self, history: History) -> Iterator[str]:
        seen = visible(history)
        counted: dict[str, int] = {}
        for txn in history.transactions:
            if txn.many_writers and txn.values and took_effect(txn, seen):
                first = counted.setdefault(txn.transactional_id, txn.number)
                if first != txn.number:
                    yield f"{txn.transactional_id}: attempts {first} and {txn.number} both count"
        by: dict[tuple[str, int], str] = {}
        for told in history.tokens_told:
            before = by.setdefault((told.root, told.token), told.by)
            if told.by != before:
                yield f"{told.root}: {told.token} was decided by {before!r}, and by {told.by!r} at {told.completed:.6f}"
        newest = -1
        answered = sorted(history.tokens_told, key=lambda told: told.completed)
        position = 0
        for told in sorted(history.tokens_told, key=lambda told: told.invoked):
            while answered[position].completed < told.invoked:
                newest = max(newest, answered[position].token)
                position += 1
            if told.token < newest:
                yield f"{told.root}: {told.token} is the last at {told.completed:.6f}, {newest} had been before"


class InformationFlowsOneWay:
    """No transaction consumed what a transaction wrote that consumed what the first one wrote."""

    def check(self, history: History) -> Iterator[str]:
        known = origins(history)
        flows: dict[int, dict[int, None]] = {}
        for txn in history.transactions:
            for partition, (start, end) in txn.consumed.items():
                log = history.final.get(partition)
                for record in log.committed if log is not None else ():
                    if start <= record.offset < end and record.value in known:
                        flows.setdefault(known[record.value][0].number, {})[txn.number] = None
        for cycle in cycles(flows):
            yield f"transactions {cycle} consumed each other's writes"


def cycles(edges: dict[int, dict[int, None]]) -> list[list[int]]:
    """The groups of nodes that reach each other (Tarjan's algorithm, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, children = work[-1]
            child = next((child for child in children if child not in index or child in stack), None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    if len(group) > 1 or node in edges.get(node, ()):
                        found.append(sorted(group))
            elif child in index:
                low[node] = min(low[node], index[child])
            else:
                index[child] = low[child] = len(index)
                stack.append(child)
                work.append((child, iter(edges.get(child, {}))))
    return found


TXN_CHECKERS: tuple[Checker, ...] = (
    AllOrNothing(),
    TheNewestOfEachKeyStays(),
    NothingTwiceNothingInvented(),
    AbortedStaysInvisible(),
    CommittedReadsAreSlices(),
    CommittedReadsAreWhole(),
    StableOffsetStopsAtOpenTransactions(),
    EveryDecisionGetsItsMarkers(),
    InputIsProcessedOnce(),
    OneOwnerPerTransactionalId(),
    OrderOfTransactionsIsKept(),
    ATokenIsDecidedOnce(),
    InformationFlowsOneWay(),
)
