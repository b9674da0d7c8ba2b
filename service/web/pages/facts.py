"""The facts that pages show, gathered from the cluster by the same questions that clients ask, and in a limited time.

Each part of a page is asked for separately (`Told.ask`). If a part can't be told now, the page says so and shows the
rest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final, Literal, NamedTuple, TypeVar

from isolation.markers import Left, Markers
from isolation.read_filter import AbortedBatches
from isolation.stable import StableOffsets
from log.batch import BatchHeader, CorruptBatch, Record, checksum_ok, read_records
from log.control import read_marker
from log.ids import TopicPartition
from service.broker.coordination import Coordination
from service.broker.internal_topics import TRANSACTIONS
from service.broker.partition import Partition
from service.client.cluster import READ_COMMITTED, READ_UNCOMMITTED, by_topic
from service.client.ends import NO_MARKERS, Ends, ends_at
from service.client.failures import ClientFailure, error_name
from service.client.groups import committed_offsets
from service.client.transactions import (
    OPEN_STATES,
    TransactionState,
    described_by,
    list_transactions,
    producers_of,
    standing,
    transactions_of,
)
from service.cluster.image import NO_LEADER, Image, PartitionState
from service.settings.broker import WEB
from service.turns import in_turns, slices_in_turns
from service.web.fetching import Held, unpacked
from service.web.gateway import Gateway
from service.web.groups import BurrowStatus, LateGroups, late_at, late_here, standing_first
from service.web.pages.near import TIMEOUT_S, NearCluster
from service.web.pages.tracing import whole_batches
from service.web.problems import Problem
from service.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribedTrouble,
    DescribeHealthRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListedGroup,
    ProducerState,
)
from txn.states import State

T = TypeVar("T")

NO_OFFSETS: Final[Mapping[TopicPartition, int]] = {}
LEAST_S: Final = 0.2
"""When a page's time is over, its last parts may still take this long: this broker knows much without asking others."""
PAGE: Final = 50
"""How many rows of a table are shown at once."""
GROUPS_PAGE: Final = 25
"""How many groups are shown at once. The lag of each is asked for."""
GROUPS_A_TURN: Final = 5
NAMED: Final = 3
"""How many are named of those with which something is wrong."""
BLOCKERS_MAX: Final = 200
ASKED_ELSEWHERE_MAX: Final = 2_000
"""For how many partitions of other leaders one page asks."""
ABORTED_WIDTH: Final = 4
"""The width of the pieces in which a bar shows what was aborted."""
PARTITIONS_A_TURN: Final = 1_000
"""A page takes fifteen to twenty turns for 15,000 partitions; each of them lets other work of the broker go first."""
MESSAGES: Final = 100
READ_BYTES: Final = 256 << 10
"""How many bytes of a log are read at once."""
HEADERS_SHOWN: Final = 20
BATCHES_A_TURN: Final = 20
RECORDS_A_TURN: Final = 200
SEARCHED_S: Final = 1.5
BROKER, TOPIC = 4, 2
DEFAULT_SOURCE: Final = 5


class Told:
    """Gathers the parts of a page in a limited time, and notes which could not be told."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._parts_by_reason: dict[str, list[str]] = {}
        self._timeout_s = timeout_s
        self._until_s = asyncio.get_running_loop().time() + timeout_s

    async def ask(self, what: str, work: Awaitable[T], otherwise: T) -> T:
        try:
            async with asyncio.timeout_at(max(self._until_s, asyncio.get_running_loop().time() + LEAST_S)):
                return await work
        except TimeoutError:
            self.lacks(what, f"no answer within {self._timeout_s:.1f} seconds")
        except (ClientFailure, Problem) as failure:
            self.lacks(what, str(failure))
        return otherwise

    def lacks(self, what: str, why: str) -> None:
        self._parts_by_reason.setdefault(why, []).append(what)

    @property
    def missing(self) -> list[str]:
        """What could not be told, and why: a broker that is away is named once."""
        return [f"{_named(parts)}: {why}" for why, parts in self._parts_by_reason.items()]

    async def ask_each(self, what: str, asks: Mapping[int, Awaitable[T]]) -> dict[int, T]:
        """The answers of these brokers, asked at the same time. A broker that does not answer in time is named on the
        page.
        """
        answers: dict[int, T] = {}

        async def take(node: int, work: Awaitable[T]) -> None:
            answers[node] = await work

        await asyncio.gather(
            *(self.ask(f"{what} of broker {node}", take(node, work), None) for node, work in asks.items())
        )
        return answers


def _named(parts: Sequence[str]) -> str:
    different = list(dict.fromkeys(parts))
    more = len(different) - NAMED
    return ", ".join(different[:NAMED]) + (f" and {more} more" if more > 0 else "")


class Cut(NamedTuple):
    """A page of a long list."""

    rows: Sequence[Any]
    number: int
    of: int
    total: int


def cut(rows: Sequence[T], number: int, size: int = PAGE) -> Cut:
    pages = max((len(rows) + size - 1) // size, 1)
    number = min(max(number, 1), pages)
    return Cut(rows[(number - 1) * size : number * size], number, pages, len(rows))


# --- partitions ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartitionOffsets:
    start: int
    stable: int
    high: int
    end: int
    markers: Markers

    def left_from(self, offset: int) -> Left:
        return self.markers.left(offset, start=self.start, stable=self.stable, high=self.high)

    @property
    def held_up(self) -> int:
        return self.high - self.stable

    def bar(self, width: int = 600) -> list[tuple[str, int, int]]:
        """The stretches of the log as (kind, x, width): to scale, but none too small to be seen."""
        stretches = [
            ("stable", self.stable - self.start),
            ("open", self.high - self.stable),
            ("unreplicated", self.end - self.high),
        ]
        there = [(kind, count) for kind, count in stretches if count > 0]
        whole = sum(count for _, count in there)
        least = width // 40
        spare = width - least * len(there)
        drawn, x = [], 0
        for kind, count in there:
            wide = least + round(spare * count / whole)
            drawn.append((kind, x, min(wide, width - x)))
            x += wide
        return drawn

    def aborted(self, stable: StableOffsets, width: int = 600) -> list[tuple[int, int]]:
        """Where the bar crosses aborted transactions, as (x, width). There may be a million of them, so the bar is
        asked for piece by piece.
        """
        whole, found = self.end - self.start, list[tuple[int, int]]()
        if whole <= 0 or not stable.aborted_from(self.start):
            return found
        pieces = min(whole, width // ABORTED_WIDTH)
        edges = [self.start + whole * piece // pieces for piece in range(pieces + 1)]
        for piece, (begin, end) in enumerate(pairwise(edges)):
            if stable.reaches_aborted(begin, end):
                x, until = width * piece // pieces, width * (piece + 1) // pieces
                if found and sum(found[-1]) == x:
                    x = found.pop()[0]
                found.append((x, until - x))
        return found


def leader_of(image: Image, state: PartitionState) -> int:
    """The leader, if it is alive; otherwise -1. The metadata keep naming a dead leader that no replica can succeed."""
    return state.leader if state.leader in image.brokers else NO_LEADER


def all_coordinate(image: Image) -> bool:
    """Whether somebody can tell of every transaction: each partition of the coordinators has a leader."""
    topic = image.topics.get(TRANSACTIONS.name)
    return topic is None or all(leader_of(image, each) != NO_LEADER for each in topic.partitions.values())


def placed(image: Image, topic: str | None = None) -> Iterator[tuple[str, int, PartitionState]]:
    """Every partition, or those of one topic, and where it is placed."""
    names = image.topics if topic is None else [topic] if topic in image.topics else []
    for name in names:
        for index, state in image.topics[name].partitions.items():
            yield name, index, state


@dataclass(slots=True)
class Placement:
    """What is wrong with where partitions are placed."""

    partitions: int = 0
    under: int = 0
    """How many lack a replica."""
    leaderless: Counter[str] = field(default_factory=Counter)
    """By topic, the partitions without a leader."""
    refusing: Counter[str] = field(default_factory=Counter)
    """By topic, the partitions led with fewer in sync than writers with acks=all want, of those held here."""
    away: Counter[int] = field(default_factory=Counter)
    """By broker that is not there, the replicas that it holds."""
    elsewhere: list[TopicPartition] = field(default_factory=list)
    """What other brokers lead, as far as one page asks for it."""


async def placement(gateway: Gateway, topic: str | None = None) -> Placement:
    """Of every partition, or of those of one topic."""
    image, here, found = gateway.image, gateway.node_id, Placement()
    brokers = image.brokers
    async for some in slices_in_turns(placed(image, topic), PARTITIONS_A_TURN):
        found.partitions += len(some)
        for name, index, state in some:
            leads = state.leader in brokers
            if leads and state.leader != here and len(found.elsewhere) < ASKED_ELSEWHERE_MAX:
                found.elsewhere.append(TopicPartition(name, index))
            if leads and len(state.isr) == len(state.replicas):
                continue
            found.under += len(state.isr) < len(state.replicas)
            found.away.update(node for node in state.replicas if node not in brokers)
            if not leads:
                found.leaderless[name] += 1
                continue
            held = gateway.partitions.get(TopicPartition(name, index))
            if held is not None and len(state.isr) < min(held.log.config.min_insync_replicas, len(state.replicas)):
                found.refusing[name] += 1
    return found


async def offsets_of(
    told: Told,
    gateway: Gateway,
    cluster: NearCluster,
    partitions: Iterable[TopicPartition],
    since: Mapping[TopicPartition, int] = NO_OFFSETS,
) -> dict[TopicPartition, PartitionOffsets]:
    """The offsets of partitions. Other leaders are asked; a partition without a leader has none. `since`: from where on
    the markers of a partition matter.
    """
    found: dict[TopicPartition, PartitionOffsets] = {}
    elsewhere: list[TopicPartition] = []
    async for each in in_turns(partitions, PARTITIONS_A_TURN):
        state, held = gateway.image.partition(each), gateway.partitions.get(each)
        if state is None or (leader := leader_of(gateway.image, state)) == NO_LEADER:
            continue
        if held is not None and leader == gateway.node_id and not held.offline:
            log, high, markers = held.log, held.high_watermark, held.stable.markers
            stable, end = held.last_stable_offset, max(log.end_offset, high)
            found[each] = PartitionOffsets(log.start_offset, stable, high, end, markers)
        elif leader != gateway.node_id:
            elsewhere.append(each)
    by_leader = led_by(gateway, elsewhere[:ASKED_ELSEWHERE_MAX])
    asks = {node: ends_there(cluster, node, led, since) for node, led in by_leader.items()}
    for there in (await told.ask_each("offsets", asks)).values():
        for each, ends in there.items():
            found[each] = PartitionOffsets(*ends[:3], ends.high_watermark, ends.markers)
    return found


def led_by(gateway: Gateway, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Partitions by the broker that leads them. Those without a leader are left out."""
    found: dict[int, list[TopicPartition]] = {}
    for each in partitions:
        state = gateway.image.partition(each)
        if state is not None and (leader := leader_of(gateway.image, state)) != NO_LEADER:
            found.setdefault(leader, []).append(each)
    return found


async def ends_there(
    cluster: NearCluster, node: int, partitions: Sequence[TopicPartition], since: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Ends]:
    """The ends of partitions that one other broker leads. Those that it leads no more, or not yet, are left out."""
    await cluster.metadata(by_topic(partitions))
    found, _ = await ends_at(cluster, node, {each: since.get(each, NO_MARKERS) for each in partitions})
    return found


@dataclass(slots=True)
class BlockingTransaction:
    """An open transaction that holds up the readers of a partition."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    began_ms: int
    held_up: int
    transactional_id: str | None = None
    known: TransactionState | None = None
    hangs: bool = False
    reason: str = ""


async def blockers(
    told: Told, gateway: Gateway, cluster: NearCluster, topic: str | None = None
) -> list[BlockingTransaction]:
    """The open transactions that hold up readers, as far as brokers tell: first those that hang, and the oldest first.
    `topic`: only of this topic.
    """
    where = await placement(gateway, topic)
    return await blockers_of(told, gateway, cluster, (await held_here(gateway, topic)).opened, where.elsewhere)


async def blockers_of(
    told: Told,
    gateway: Gateway,
    cluster: NearCluster,
    opened: Sequence[Partition],
    elsewhere: Sequence[TopicPartition],
) -> list[BlockingTransaction]:
    """The open transactions of the partitions `opened`, which are led here, and of those led `elsewhere`."""
    found = _opened_here(opened)
    if elsewhere:
        offsets = await offsets_of(told, gateway, cluster, elsewhere)
        pinned = [each for each in elsewhere if each in offsets and offsets[each].held_up]
        asks = {node: producers_of(cluster, led) for node, led in led_by(gateway, pinned).items()}
        for there in (await told.ask_each("producers", asks)).values():
            for partition, producers in there.items():
                found += [_blocker(partition, each, offsets[partition]) for each in producers if _is_open(each)]
    found = sorted(found, key=lambda each: each.began_ms)[:BLOCKERS_MAX]
    known: dict[int, list[TransactionState]] = {}
    all_asked = True
    if found:
        ids = {each.producer_id for each in found}
        nodes = list(gateway.image.brokers)
        answers = await told.ask_each("transactions", {each: transactions_of(cluster, ids, [each]) for each in nodes})
        for answer in answers.values():
            for producer_id, transactions in answer.items():
                known.setdefault(producer_id, []).extend(transactions)
        all_asked = len(answers) == len(nodes) and all_coordinate(gateway.image)
    now_ms = gateway.env.clock.wall_ms()
    still = []
    for each in found:
        held = gateway.partitions.get(each.partition)
        led_here = held is not None and held.is_leading
        if led_here and held is not None and held.stable.open_transactions.get(each.producer_id) != each.first_offset:
            continue  # it ended while we asked
        judged = standing(each.partition, known.get(each.producer_id, []), now_ms)
        each.known, each.hangs, each.reason = judged.holder, judged.hangs, judged.reason
        if not led_here and judged.holder is not None and judged.holder.started_ms >= 0:
            each.began_ms = judged.holder.started_ms  # other leaders tell when it last wrote, not when it began
        if judged.holder is None and not all_asked:
            each.hangs, each.reason = False, "open; not every coordinator answers"
        each.transactional_id = None if judged.named is None else judged.named.transactional_id
        still.append(each)
    return sorted(still, key=lambda each: (not each.hangs, each.began_ms))


def _opened_here(opened: Sequence[Partition]) -> list[BlockingTransaction]:
    found: list[BlockingTransaction] = []
    for partition in opened:
        high = partition.high_watermark
        found += [
            BlockingTransaction(
                partition.topic_partition,
                each.producer_id,
                -1,
                each.first_offset,
                each.first_timestamp_ms,
                max(high - each.first_offset, 0),
            )
            for each in islice(partition.stable.describe_open(), BLOCKERS_MAX)
        ]
    return found


def _is_open(producer: ProducerState) -> bool:
    return producer.current_txn_start_offset >= 0


def _blocker(partition: TopicPartition, producer: ProducerState, offsets: PartitionOffsets) -> BlockingTransaction:
    first = producer.current_txn_start_offset
    return BlockingTransaction(
        partition,
        producer.producer_id,
        producer.producer_epoch,
        first,
        producer.last_timestamp,
        max(offsets.high - first, 0),
    )


@dataclass(slots=True)
class HeldHere:
    """What this broker's partitions have counted, and in which of them a transaction is open."""

    records_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    opened: list[Partition] = field(default_factory=list)
    """Only those that are led here."""


async def held_here(gateway: Gateway, topic: str | None = None) -> HeldHere:
    """Of every partition that this broker holds, or of those of one topic."""
    table, found = gateway.partitions, HeldHere()
    held = table if topic is None else (table.topic(topic) or {}).values()
    async for some in slices_in_turns(list(held), PARTITIONS_A_TURN):
        for partition in some:
            tally = partition.tally
            found.records_in += tally.records_in
            found.bytes_in += tally.bytes_in
            found.bytes_out += tally.bytes_out
            if partition.stable.open_transactions and partition.is_leading:
                found.opened.append(partition)
    return found


@dataclass(slots=True)
class Totals:
    """The sum of what this broker coordinates."""

    open: int = 0
    oldest_ms: int | None = None
    groups: int = 0
    ended: int = 0
    committed: int = 0


async def totals(coordination: Coordination) -> Totals:
    found = Totals()
    for shard in coordination.transactions.shards():
        if not shard.loaded:
            continue
        async for txn in in_turns(list(shard.machine.all()), PARTITIONS_A_TURN):
            if txn.state is State.ONGOING:
                found.open += 1
                if txn.started_ms >= 0 and (found.oldest_ms is None or txn.started_ms < found.oldest_ms):
                    found.oldest_ms = txn.started_ms
    loaded = [shard for shard in coordination.groups.shards() if shard.loaded]
    found.groups = sum(sum(1 for _ in shard.machine.groups()) for shard in loaded)
    ended = coordination.txn_tally.ended
    found.ended, found.committed = sum(ended.values()), ended["commit"]
    return found


async def troubles(told: Told, gateway: Gateway, cluster: NearCluster) -> list[tuple[int, DescribedTrouble]]:
    """What each broker finds wrong with its data folders, and between itself and the others."""
    nodes = sorted({*gateway.image.brokers, gateway.node_id})
    asks = {node: cluster.ask(DescribeHealthRequest(), node=node) for node in nodes}
    answers = await told.ask_each("health", asks)
    return [(node, each) for node in nodes if node in answers for each in answers[node].troubles]


# --- transactions ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TxnRow:
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int
    detail: TransactionState | None = None
    age_s: float | None = None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


async def transactions(
    told: Told, gateway: Gateway, cluster: NearCluster, *, which: str, search: str, number: int
) -> tuple[Cut, dict[str, int]]:
    """A page of transactional ids, those longest open first, and the number of ids in each state."""
    asks = {node: list_transactions(cluster, nodes=[node]) for node in gateway.image.brokers}
    answers = await told.ask_each("transactional ids", asks)
    listed = [each for answer in answers.values() for each in answer]
    counts: dict[str, int] = {}
    rows = []
    for each, node in listed:
        state = each.transaction_state
        counts[state] = counts.get(state, 0) + 1
        if search and search not in each.transactional_id:
            continue
        if which == "open" and state not in OPEN_STATES:
            continue
        rows.append(TxnRow(each.transactional_id, state, each.producer_id, node))
    rows.sort(key=lambda row: (not row.is_open, row.transactional_id))
    shown = cut(rows, number)
    now_ms = gateway.env.clock.wall_ms()
    by_coordinator: dict[int, list[str]] = {}
    for row in shown.rows:
        by_coordinator.setdefault(row.coordinator, []).append(row.transactional_id)
    described = {node: described_by(cluster, node, ids) for node, ids in by_coordinator.items()}
    told_of = (await told.ask_each("transactions", described)).values()
    details = {each.transactional_id: each for there in told_of for each in there}
    for row in shown.rows:
        row.detail = details.get(row.transactional_id)
        if row.detail is not None and row.detail.is_open and row.detail.started_ms >= 0:
            row.age_s = max(now_ms - row.detail.started_ms, 0) / 1000
    ordered = sorted(shown.rows, key=lambda row: -(row.age_s or -1))
    return shown._replace(rows=ordered), counts


# --- groups ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartitionLag:
    partition: TopicPartition
    committed: int
    left: Left | None


@dataclass(slots=True)
class GroupRow:
    name: str
    state: str
    kind: str
    left: Left | None = None
    partitions: list[PartitionLag] = field(default_factory=list)


async def groups(
    told: Told, gateway: Gateway, cluster: NearCluster, listed: Sequence[ListedGroup], *, search: str, number: int
) -> Cut:
    shown = cut([each for each in listed if search in each.group_id], number, GROUPS_PAGE)
    rows = [GroupRow(each.group_id, each.group_state, each.group_type) for each in shown.rows]
    async for row in in_turns(rows, GROUPS_A_TURN):
        row.partitions = await lags(told, gateway, cluster, row.name)
        row.left = left_of(row.partitions)
    return shown._replace(rows=rows)


@dataclass(slots=True)
class AllLateGroups:
    """Which groups don't keep up, and how."""

    status: dict[str, BurrowStatus]
    """Those that stand still come first."""
    total: int
    is_known: bool
    """Whether all brokers have looked at theirs."""
    is_whole: bool
    """Whether all brokers told all of theirs."""

    def of(self, group: str) -> BurrowStatus | Literal["OK"] | None:
        """None if it is not known."""
        return self.status.get(group) or ("OK" if self.is_whole else None)


async def late_groups(told: Told, gateway: Gateway, cluster: NearCluster) -> AllLateGroups:
    brokers = gateway.image.brokers
    asks: dict[int, Awaitable[LateGroups]] = {gateway.node_id: late_here(gateway)}
    for node, broker in brokers.items():
        if node not in asks and broker.endpoint(WEB) is not None:
            asks[node] = cluster.hearing.hear(f"broker {node}", partial(late_at, gateway, node))
    answers = await told.ask_each("which groups keep up", asks)
    late = sorted((each for answer in answers.values() for each in answer.groups), key=standing_first)
    total = sum(answer.total for answer in answers.values())
    is_known = len(answers) >= len(brokers) and all(each.known for each in answers.values())
    return AllLateGroups({each.name: each.status for each in late}, total, is_known, is_known and total == len(late))


async def lags(told: Told, gateway: Gateway, cluster: NearCluster, group: str) -> list[PartitionLag]:
    committed = await told.ask(f"offsets that {group} committed", committed_offsets(cluster, group), {})
    offsets = await offsets_of(told, gateway, cluster, committed, committed)
    return [
        PartitionLag(each, offset, offsets[each].left_from(offset) if each in offsets else None)
        for each, offset in sorted(committed.items())
    ]


def left_of(lags: Iterable[PartitionLag]) -> Left | None:
    """What is left in all partitions in which that is known; None: in none."""
    known = [each.left for each in lags if each.left is not None]
    if not known:
        return None
    return Left(
        sum(each.decided for each in known),
        sum(each.undecided for each in known),
        all(each.is_exact for each in known),
    )


# --- messages --------------------------------------------------------------------------------------------------------


class ShownRecord(NamedTuple):
    """A record, and whether readers see it."""

    record: Record
    batch: BatchHeader
    control: str | None
    state: str


async def messages(
    gateway: Gateway,
    cluster: NearCluster,
    partition: TopicPartition,
    offsets: PartitionOffsets,
    offset: int,
    isolation: str,
    search: bytes,
    held: Held,
) -> tuple[list[ShownRecord], int]:
    """Up to a hundred records from `offset`, and the offset to go on at. They are what readers of committed records
    see, or what all readers see, or everything, with markers and aborted records. `search`: only records with this in
    their key or value, as far as they are found in the time that a page may take.
    """
    found: list[ShownRecord] = []
    loop = asyncio.get_running_loop()
    until_s = loop.time() + SEARCHED_S
    position, end = offset, offsets.stable if isolation == "committed" else offsets.high
    while position < end and loop.time() < until_s:
        before, decided = position, position < offsets.stable
        data, aborted = await _fetched(cluster, partition, position, decided=decided)
        async for header, batch in in_turns(whole_batches(data), BATCHES_A_TURN):
            if header.base_offset >= end:
                return found, position
            if not checksum_ok(batch, header):
                raise ClientFailure(f"the batch at offset {header.base_offset} is damaged")
            is_aborted = aborted.covers(header, batch)
            if header.is_control:
                is_shown, state = isolation == "everything" and not search, "marker"
            elif is_aborted:
                is_shown, state = isolation != "committed", "aborted"
            else:
                is_shown, state = True, "committed" if decided or not header.is_transactional else "open"
            if not is_shown:
                position = max(position, header.next_offset)
                continue
            async for record in _opened(gateway, batch, header, held):
                if record.offset < offset or not (search in (record.key or b"") or search in (record.value or b"")):
                    continue
                kind = read_marker(batch).type if header.is_control else None
                found.append(ShownRecord(record, header, kind.name.lower() if kind else None, state))
                if len(found) == MESSAGES:
                    return found, record.offset + 1
            position = max(position, header.next_offset)
        if position == before:
            break
    return found, position


async def _fetched(
    cluster: NearCluster, partition: TopicPartition, offset: int, *, decided: bool
) -> tuple[memoryview, AbortedBatches]:
    """The stored batches, and which of them were aborted, as far as all is decided."""
    await cluster.metadata([partition.topic])
    wanted = FetchPartition(partition.partition, fetch_offset=offset, partition_max_bytes=READ_BYTES)
    topic = FetchTopic(partition.topic, cluster.topic_id(partition.topic), [wanted])
    isolation = READ_COMMITTED if decided else READ_UNCOMMITTED
    request = FetchRequest(max_wait_ms=0, max_bytes=READ_BYTES, isolation_level=isolation, topics=[topic])
    (answer,) = (await cluster.ask(request, node=await cluster.leader(partition))).responses
    (data,) = answer.partitions
    if data.error_code:
        raise ClientFailure(error_name(data.error_code))
    assert not isinstance(data.records, list)
    aborted = AbortedBatches((each.producer_id, each.first_offset) for each in data.aborted_transactions or ())
    return memoryview(data.records or b""), aborted


async def _opened(gateway: Gateway, batch: memoryview, header: BatchHeader, held: Held) -> AsyncIterator[Record]:
    """The records of a batch, opened as they are looked at."""
    try:
        payload = None
        if header.codec:
            held.unpacked_bytes = 0  # of the batch before
            payload = await unpacked(gateway, batch, header, held)
        records = read_records(batch, header, payload=payload, most_headers=HEADERS_SHOWN + 1)
        async for record in in_turns(records, RECORDS_A_TURN):
            yield record
    except CorruptBatch as failure:
        raise ClientFailure(f"the batch at offset {header.base_offset} is damaged: {failure}") from None


# --- brokers and settings --------------------------------------------------------------------------------------------


async def folders_of(cluster: NearCluster, node: int) -> list[DescribeLogDirsResult]:
    return list((await cluster.ask(DescribeLogDirsRequest(topics=[]), node=node)).results)


async def settings_of(cluster: NearCluster, node: int, kind: int, name: str) -> list[DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(kind, name, None)
    request = DescribeConfigsRequest([resource], include_synonyms=True, include_documentation=True)
    (result,) = (await cluster.ask(request, node=node)).results
    if result.error_code:
        raise ClientFailure(result.error_message or error_name(result.error_code))
    return sorted(result.configs, key=lambda each: each.name)


def is_default(config: DescribeConfigsResourceResult) -> bool:
    return config.config_source == DEFAULT_SOURCE
