"""What became of the transactions of one id, from the end of its coordinator's log and from the logs that this names.

The coordinator's records tell when each transaction began, where it wrote, how and when it was decided, and which
producer fenced which. The place of its batches and markers in a partition is found by time, or by the first offset if
the transaction is open. No log is read from its start, and only a limited part of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from log.batch import BatchHeader, CorruptBatch, read_header, read_records
from log.control import read_marker
from log.ids import NO_PRODUCER_EPOCH, TopicPartition
from service.broker.internal_topics import GROUPS, TRANSACTIONS
from service.client.cluster import EARLIEST, LATEST, Cluster, by_topic
from service.client.failures import ClientFailure, error_name
from service.groups.records import read_key as read_group_key
from service.groups.records import read_offset
from service.turns import in_turns
from service.wire.messages import FetchPartition, FetchRequest, FetchTopic, OffsetCommitKey
from txn.records import BadRecord, read_state, read_value, write_key
from txn.states import PREPARED, State, Txn

PAST_RECORDS: Final = (2_000, 8_000, 24_000)
"""How many of the last records of the coordinator's log are read: more and more, until there is enough to tell."""
ENOUGH_RECORDS: Final = 60
READ_BYTES: Final = (64 << 10, 128 << 10, 512 << 10, 1 << 20)
"""How much of a partition is read at once: more and more. After that only the marker is looked for."""
BEFORE: Final = 500
"""How many offsets before the transaction's first time the search begins: clients' clocks may differ from ours."""
SLACK_MS: Final = 1_000
BATCHES_MAX: Final = 100
BATCHES_A_TURN: Final = 100
RECORDS_A_TURN: Final = 2
"""How many of a coordinator's records are decoded in one turn of the loop. Each may name thousands of partitions."""


# --- the coordinator's records -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Past:
    """One transaction, as its coordinator's records tell it."""

    began_ms: int
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    decided_ms: int | None = None
    completed_ms: int | None = None
    commits: bool = False
    marker_epoch: int = NO_PRODUCER_EPOCH
    why: str = ""

    @property
    def outcome(self) -> str:
        return "open" if self.decided_ms is None else "committed" if self.commits else "aborted"


class TraceEvent(NamedTuple):
    """One record of the coordinator, in words."""

    at_ms: int
    what: str
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class History:
    """Transactions and events, the newest first."""

    events: list[TraceEvent] = field(default_factory=list)
    transactions: list[Past] = field(default_factory=list)
    is_whole: bool = True


async def history(cluster: Cluster, transactional_id: str) -> History:
    """The latest records that the coordinator has written about the id."""
    described = await cluster.topic(TRANSACTIONS.name)
    index = TRANSACTIONS.partition_of(transactional_id, len(described.partitions))
    home = TopicPartition(TRANSACTIONS.name, index)
    first = (await cluster.list_offsets({home: EARLIEST}))[home].offset
    end = (await cluster.list_offsets({home: LATEST}))[home].offset
    wanted = write_key(transactional_id)
    found: list[tuple[int, bytes | None]] = []
    until = end
    for count in PAST_RECORDS:
        since = max(end - count, first)
        found = await _records_of(cluster, home, since, until, wanted) + found
        until = since
        if since == first or len(found) >= ENOUGH_RECORDS:
            break
    try:
        kept = _shortened(found)
        txns = [
            None if value is None else read_value(transactional_id, value)
            async for _, value in in_turns(kept, RECORDS_A_TURN)
        ]
    except BadRecord as error:
        raise ClientFailure(f"{home.topic}-{home.partition}: {error}") from None
    told = told_of(txns, [at_ms for at_ms, _ in kept])
    told.is_whole = until == first
    return told


async def _records_of(
    cluster: Cluster, home: TopicPartition, since: int, until: int, key: bytes
) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    position = since
    while position < until:
        before = position
        batches = (await fetched(cluster, {home: position}, READ_BYTES[-1]))[home]
        async for header, batch in in_turns(batches, BATCHES_A_TURN):
            position = header.next_offset
            if header.base_offset >= until or header.is_control or (not header.codec and key not in bytes(batch)):
                continue
            for record in read_records(batch, header):
                if record.key == key and since <= record.offset < until:
                    found.append((record.timestamp, record.value))
        if position == before:
            break
    return found


def _shortened(found: Sequence[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
    """The records without those in between. A transaction to which a thousand partitions are added one by one writes
    them all a thousand times; the first record and the last are enough.
    """
    ongoing = [value is not None and read_state(value) is State.ONGOING for _, value in found]
    return [
        each
        for at, each in enumerate(found)
        if not (ongoing[at] and 0 < at < len(found) - 1 and ongoing[at - 1] and ongoing[at + 1])
    ]


def told_of(records: Sequence[Txn | None], times_ms: Sequence[int]) -> History:
    """What the records tell, in their order, with the time at which each was written. A tombstone does not have its
    time itself.
    """
    told = History()
    before: Txn | None = None
    for txn, at_ms in zip(records, times_ms, strict=True):
        if txn is None:
            told.events.append(TraceEvent(at_ms, "forgotten: it was not used for long", -1, -1))
        else:
            told.events.append(
                TraceEvent(txn.updated_ms, _said(told, before, txn), txn.producer_id, txn.producer_epoch)
            )
        before = txn
    told.events.reverse()
    told.transactions.reverse()
    return told


def _said(told: History, before: Txn | None, txn: Txn) -> str:
    """The record in words. On the way the list of transactions is kept up to date."""
    now = told.transactions[-1] if told.transactions else None
    if txn.state is State.EMPTY:
        if before is None:
            return "a producer has this id from now on"
        was = f"producer {before.holder[0]}, epoch {before.holder[1]}"
        if txn.last_producer_epoch != NO_PRODUCER_EPOCH:
            return f"{was} begins anew, with the next epoch"
        return f"another producer takes the id over; {was}, is fenced: it can write and commit no more"
    if txn.state is State.ONGOING:
        if now is None or now.decided_ms is not None or now.began_ms != txn.started_ms:
            now = Past(txn.started_ms, txn.producer_id, txn.producer_epoch, txn.partitions)
            told.transactions.append(now)
            return f"a transaction begins, in {_partitions(len(txn.partitions))}"
        more = len(txn.partitions) - len(now.partitions)
        now.partitions = txn.partitions
        return f"it takes in {_partitions(more)} more" if more > 0 else "it goes on with another producer"
    if txn.state in PREPARED:
        if now is None or now.decided_ms is not None:
            now = Past(txn.started_ms, txn.producer_id, NO_PRODUCER_EPOCH, txn.partitions)
            told.transactions.append(now)
        now.partitions, now.decided_ms, now.marker_epoch = txn.partitions, txn.updated_ms, txn.producer_epoch
        now.commits = txn.state is State.PREPARE_COMMIT
        now.why = _why(before, txn)
        return f"decided: {now.why}; markers leave for {_partitions(len(txn.partitions))}"
    if now is not None and now.decided_ms is not None and now.completed_ms is None:
        now.completed_ms = txn.updated_ms
        return "every marker is written"
    return "ended, with nothing written"


def _why(before: Txn | None, txn: Txn) -> str:
    if txn.state is State.PREPARE_COMMIT:
        return "commit"
    if txn.updated_ms - txn.started_ms >= txn.timeout_ms:
        return "abort, by its coordinator: it was open for longer than its timeout"
    if txn.last_producer_epoch != NO_PRODUCER_EPOCH or (before and before.producer_epoch == txn.producer_epoch):
        return "abort, by its producer"
    return "abort: the id was taken over, or somebody ended it for its producer"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


# --- what stands in the logs -----------------------------------------------------------------------------------------


class Traced(NamedTuple):
    """One batch or marker of a transaction."""

    partition: TopicPartition
    header: BatchHeader
    what: str
    detail: str


@dataclass(slots=True)
class PartitionTrace:
    """What one partition has of a transaction, and what of it was not looked at."""

    batches: list[Traced] = field(default_factory=list)
    is_ended: bool = False
    skipped: tuple[int, int] | None = None


async def traced(
    cluster: Cluster, past: Past, partitions: Sequence[TopicPartition], first_offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, PartitionTrace]:
    """The batches and markers of a transaction. `first_offsets` says where it begins in partitions in which it is open,
    as leaders tell.
    """
    await cluster.metadata(by_topic(partitions))
    unknown = [each for each in partitions if each not in first_offsets]
    began = await _at(cluster, unknown, past.began_ms - SLACK_MS)
    positions = {each: first_offsets.get(each, began.get(each, -1)) for each in partitions}
    found = {each: PartitionTrace() for each in partitions}
    positions = {each: position for each, position in positions.items() if position >= 0}
    starts = dict(positions)
    for size_bytes in READ_BYTES:
        await _read_on(cluster, past, positions, found, size_bytes)
        if not positions:
            break
    if positions and past.decided_ms is not None:
        decided = await _at(cluster, list(positions), past.decided_ms)
        for each, at in decided.items():
            if at > positions[each]:
                found[each].skipped = positions[each], at
                positions[each] = at
        await _read_on(cluster, past, positions, found, READ_BYTES[-1])
    for each, at in positions.items():
        found[each].skipped = found[each].skipped or (at, -1)
    await _look_before(cluster, past, {each: starts[each] for each in unknown if each in starts}, found)
    return found


async def _at(cluster: Cluster, partitions: Sequence[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
    """For each partition the first offset that is not older; partitions that have none are left out."""
    if not partitions:
        return {}
    answers = await cluster.list_offsets(dict.fromkeys(partitions, max(at_ms, 0)), all_of_them=False)
    return {each: answer.offset for each, answer in answers.items() if answer.offset >= 0}


async def _read_on(
    cluster: Cluster,
    past: Past,
    positions: dict[TopicPartition, int],
    found: dict[TopicPartition, PartitionTrace],
    size_bytes: int,
) -> None:
    """Read a piece further in each partition. Partitions that are done are removed from `positions`."""
    if not positions:
        return
    for each, batches in (await fetched(cluster, positions, size_bytes)).items():
        before = positions[each]
        for header, batch in batches:
            positions[each] = header.next_offset
            _take(found[each], past, each, header, batch)
            if found[each].is_ended:
                break
        if found[each].is_ended or positions[each] == before or len(found[each].batches) >= BATCHES_MAX:
            del positions[each]


async def _look_before(
    cluster: Cluster, past: Past, starts: Mapping[TopicPartition, int], found: dict[TopicPartition, PartitionTrace]
) -> None:
    """Look for the batches where only the marker was found. Clients may have any clock, and the batches are before the
    marker.
    """
    earlier = {
        each: max(start - BEFORE, 0)
        for each, start in starts.items()
        if start > 0 and not any(not batch.header.is_control for batch in found[each].batches)
    }
    if not earlier:
        return
    firsts = await cluster.list_offsets(dict.fromkeys(earlier, EARLIEST), all_of_them=False)
    earlier = {each: max(at, firsts[each].offset) for each, at in earlier.items() if each in firsts}
    for each, batches in (await fetched(cluster, earlier, READ_BYTES[-1])).items():
        before = PartitionTrace()
        for header, batch in batches:
            if header.base_offset >= starts[each]:
                break
            _take(before, past, each, header, batch)
            if header.is_control and before.batches and before.batches[-1].header is header:
                before.batches.clear()  # an earlier transaction of the same producer
        found[each].batches[:0] = before.batches


def _take(found: PartitionTrace, past: Past, partition: TopicPartition, header: BatchHeader, batch: memoryview) -> None:
    if header.producer_id != past.producer_id or not header.is_transactional:
        return
    if not header.is_control:
        if past.producer_epoch in (header.producer_epoch, NO_PRODUCER_EPOCH):
            found.batches.append(Traced(partition, header, *_contents(partition, header, batch)))
        return
    if past.decided_ms is None or header.producer_epoch < past.marker_epoch:
        found.batches.clear()  # everything before belongs to an earlier transaction of the same producer
        return
    if header.producer_epoch == past.producer_epoch and header.max_timestamp < past.decided_ms:
        found.batches.clear()  # the same, for clients whose epochs don't rise
        return
    kind = read_marker(batch).type
    found.batches.append(Traced(partition, header, f"{kind.name.lower()} marker" if kind else "marker", ""))
    found.is_ended = True


def _contents(partition: TopicPartition, header: BatchHeader, batch: memoryview) -> tuple[str, str]:
    if partition.topic != GROUPS.name:
        return "records", ""
    offsets = []
    for record in read_records(batch, header):
        key = read_group_key(record.key or b"")
        if isinstance(key, OffsetCommitKey) and record.value is not None:
            offsets.append(f"{key.group}: {key.topic}-{key.partition} at {read_offset(record.value).offset}")
    return "committed offsets", "; ".join(offsets)


# --- reading ---------------------------------------------------------------------------------------------------------


async def fetched(
    cluster: Cluster, positions: Mapping[TopicPartition, int], size_bytes: int
) -> dict[TopicPartition, list[tuple[BatchHeader, memoryview]]]:
    """Whole batches from these offsets on, a limited size of each partition. Isolation does not matter."""
    found: dict[TopicPartition, list[tuple[BatchHeader, memoryview]]] = {each: [] for each in positions}
    await cluster.metadata(by_topic(positions))
    for node, partitions in (await cluster.by_leader(positions)).items():
        topics = [
            FetchTopic(name, cluster.topic_id(name), [_wanted(each, positions[each], size_bytes) for each in of_topic])
            for name, of_topic in by_topic(partitions).items()
        ]
        most = size_bytes * len(partitions)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=most, isolation_level=0, topics=topics)
        for topic in (await cluster.ask(request, node=node)).responses:
            name = topic.topic or cluster.topic_names[topic.topic_id]
            for data in topic.partitions:
                where = TopicPartition(name, data.partition_index)
                if data.error_code:
                    raise ClientFailure(f"{name}-{data.partition_index}: {error_name(data.error_code)}")
                assert not isinstance(data.records, list)
                batches = whole_batches(memoryview(data.records or b""))
                found[where] = [
                    (header, batch)
                    async for header, batch in in_turns(batches, BATCHES_A_TURN)
                    if header.next_offset > positions[where]
                ]
    return found


def _wanted(partition: TopicPartition, offset: int, size_bytes: int) -> FetchPartition:
    return FetchPartition(partition.partition, fetch_offset=offset, partition_max_bytes=size_bytes)


def whole_batches(data: memoryview) -> Iterable[tuple[BatchHeader, memoryview]]:
    at = 0
    while at < len(data):
        try:
            header = read_header(data, at)
        except CorruptBatch:
            return  # the last batch is incomplete
        if at + header.size_bytes > len(data):
            return
        yield header, data[at : at + header.size_bytes]
        at += header.size_bytes
