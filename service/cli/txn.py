"""`oncelog txn`: open transactions, those that hold up readers of committed records, and how to end hanging ones."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from log.ids import TopicPartition
from service.cli.connect import Seconds, complete_topic, with_cluster
from service.cli.failures import CliError, Exit
from service.cli.output import Output, confirm, output_option, remark, report_option, show, show_one, yes_option
from service.cli.timestamps import rfc3339
from service.cli.topic import choose_partitions
from service.cli.watching import answering, clear, look_again
from service.client.cluster import Cluster
from service.client.failures import refused
from service.client.transactions import (
    ONGOING,
    OPEN_STATES,
    ReadableEnds,
    TransactionState,
    abort_hanging,
    fence,
    find_root,
    find_transaction,
    list_transactions,
    producers_of,
    stable_offsets,
    standing,
    transactions_of,
)
from service.settings.setting import MAX_LONG
from service.wire.messages import DescribedRoot, ProducerState

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")


@dataclass(frozen=True, slots=True)
class TxnLine:
    """One transactional id in a list."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class TxnDetail:
    """What the coordinator of one transactional id knows of it."""

    transactional_id: str
    root: str | None
    token: int | None
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: int
    timeout_ms: int
    since: str | None
    age_ms: int | None
    until: str | None
    partitions: list[str]


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """One producer that a partition remembers."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_write: str | None
    coordinator_epoch: int
    first_open_offset: int | None


@dataclass(frozen=True, slots=True)
class PinRow:
    """One transaction that holds up the readers of committed records in one partition."""

    topic: str
    partition: int
    producer_id: int
    transactional_id: str | None
    state: str | None
    since: str | None
    age_ms: int | None
    until: str | None
    first_open_offset: int
    last_stable_offset: int
    high_watermark: int
    pinned_records: int
    hangs: bool
    reason: str


@dataclass(frozen=True, slots=True)
class TracedPartition:
    """One partition of a traced transaction, or of one of its branches."""

    transactional_id: str
    topic: str
    partition: int
    first_open_offset: int | None
    last_stable_offset: int | None
    high_watermark: int | None


@dataclass(frozen=True, slots=True)
class TxnTrace:
    """All that is known of one transactional id."""

    transactional_id: str
    transaction: TxnDetail | None
    last_token: int | None
    branches: list[TxnDetail]
    partitions: list[TracedPartition]


LIST_COLUMNS = ("transactional_id", "state", "producer_id", "coordinator")
DETAIL_COLUMNS = (
    "transactional_id",
    "state",
    "producer_id",
    "producer_epoch",
    "since",
    "age_ms",
    "until",
    "partitions",
)
DETAIL_WIDE = ("root", "token", "coordinator", "timeout_ms")
PRODUCER_COLUMNS = ("topic", "partition", "producer_id", "producer_epoch", "last_sequence", "last_write")
PRODUCER_COLUMNS_MORE = ("coordinator_epoch", "first_open_offset")
PIN_COLUMNS = ("topic", "partition", "producer_id", "transactional_id", "since", "until", "pinned_records", "hangs")
PIN_COLUMNS_MORE = ("state", "age_ms", "first_open_offset", "last_stable_offset", "high_watermark", "reason")
TRACE_COLUMNS = (
    "transactional_id",
    "topic",
    "partition",
    "first_open_offset",
    "last_stable_offset",
    "high_watermark",
)


DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Duration(click.ParamType[int]):
    """`500ms`, `90s`, `15m`, `2h`, `1d`, as milliseconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,12})(ms|s|m|h|d)", str(value))
        if match is None:
            self.fail(f"{value!r} is no duration: 500ms, 90s, 15m, 2h, 1d", param, ctx)
        duration_ms = int(match[1]) * DURATION_UNITS_MS[match[2]]
        if duration_ms > MAX_LONG:
            self.fail(f"{value!r} is too long", param, ctx)
        return duration_ms


DURATION = Duration()


@click.group()
def command() -> None:
    """Look into transactions, find and end what holds up readers."""


@command.command("ls")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only ids in this state; can be given again.",
)
@click.option(
    "--longer-than", "longer_than_ms", type=DURATION, default=None, help="Only transactions open for longer: 90s, 15m."
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(0, MAX_LONG),
    multiple=True,
    metavar="N",
    help="Only of this producer id; again too.",
)
@output_option
@with_cluster
async def list_all(
    cluster: Cluster, states: Sequence[str], longer_than_ms: int | None, producer_ids: Sequence[int], output: Output
) -> None:
    """List transactional ids."""
    found = await list_transactions(
        cluster,
        states=states,
        producer_ids=producer_ids,
        longer_than_ms=-1 if longer_than_ms is None else longer_than_ms,
    )
    rows = [
        TxnLine(each.transactional_id, each.transaction_state, each.producer_id, coordinator)
        for each, coordinator in found
    ]
    show(rows, output, columns=LIST_COLUMNS)


@command.command("describe")
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@output_option
@with_cluster
async def describe(cluster: Cluster, names: Sequence[str], output: Output) -> None:
    """Show what transactional ids are doing: since when, until when at most, and where."""
    rows = []
    for name in dict.fromkeys(names):
        transaction = await find_transaction(cluster, name)
        if transaction is None:
            raise _unknown(name)
        rows.append(_detail(transaction, _now_ms()))
    show(rows, output, columns=DETAIL_COLUMNS, wide=DETAIL_WIDE)


def _unknown(name: str) -> CliError:
    return CliError(f"transactional id {name} does not exist", Exit.NOT_FOUND)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _detail(transaction: TransactionState, now_ms: int) -> TxnDetail:
    branch = transaction.branch
    began_ms = transaction.started_ms if transaction.is_open else -1
    return TxnDetail(
        transactional_id=transaction.transactional_id,
        root=branch.root if branch else None,
        token=branch.token if branch else None,
        state=transaction.state,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        coordinator=transaction.coordinator,
        timeout_ms=transaction.timeout_ms,
        since=rfc3339(began_ms),
        age_ms=_age_ms(began_ms, now_ms),
        until=rfc3339(transaction.ends_ms),
        partitions=[f"{each.topic}-{each.partition}" for each in transaction.partitions],
    )


def _age_ms(began_ms: int, now_ms: int) -> int | None:
    # If the broker's clock is ahead of ours, a transaction may seem to begin in the future.
    return None if began_ms < 0 else max(0, now_ms - began_ms)


@command.command("producers")
@click.argument("topic", shell_complete=complete_topic)
@click.option("-p", "--partition", "numbers", type=int, multiple=True, help="Only this partition; can be given again.")
@output_option
@with_cluster
async def producers(cluster: Cluster, topic: str, numbers: Sequence[int], output: Output) -> None:
    """List the producers that a topic's partitions remember, and where their open transactions begin."""
    partitions = await cluster.partitions_of(topic)
    chosen = choose_partitions(topic, partitions, numbers) if numbers else partitions
    found = await producers_of(cluster, chosen)
    rows = [_producer_row(partition, each) for partition in chosen for each in found[partition]]
    show(rows, output, columns=(*PRODUCER_COLUMNS, *PRODUCER_COLUMNS_MORE))


def _producer_row(partition: TopicPartition, producer: ProducerState) -> ProducerRow:
    return ProducerRow(
        topic=partition.topic,
        partition=partition.partition,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_write=rfc3339(producer.last_timestamp),
        coordinator_epoch=producer.coordinator_epoch,
        first_open_offset=_first_open(producer),
    )


def _first_open(producer: ProducerState) -> int | None:
    return producer.current_txn_start_offset if producer.current_txn_start_offset >= 0 else None


@command.command("watch")
@click.option("--every", "every_s", type=Seconds(at_least=0.2), default=2.0, show_default=True, metavar="SECONDS")
@click.option("-n", "--looks", type=click.IntRange(min=1), metavar="N", help="Stop after so many; default: at ctrl-C.")
@output_option
@with_cluster
async def watch(cluster: Cluster, every_s: float, looks: int | None, output: Output) -> None:
    """Show the open transactions, the oldest first, again and again."""

    async def look() -> list[str]:
        nodes, notes = await answering(cluster)
        listed = await list_transactions(cluster, states=sorted(OPEN_STATES), nodes=nodes)
        found = [await find_transaction(cluster, each.transaction.transactional_id) for each in listed]
        now_ms = _now_ms()
        rows = [_detail(each, now_ms) for each in found if each is not None and each.is_open]
        rows.sort(key=lambda row: -(row.age_ms or 0))
        clear(output)
        show(rows, output, columns=DETAIL_COLUMNS, wide=DETAIL_WIDE)
        return notes

    await look_again(look, every_s=every_s, looks=looks)


@command.command("hanging")
@click.option(
    "--older-than",
    "older_than_ms",
    type=DURATION,
    default="15m",
    show_default=True,
    help="Beside those that hang, only transactions that are older: 90s, 15m.",
)
@output_option
@with_cluster
async def hanging(cluster: Cluster, older_than_ms: int, output: Output) -> None:
    """Show the transactions that hold up readers of committed records: since when, and until when at most.

    Ends with 6 when one hangs: no coordinator has it open any more, or it is open for longer than its timeout.
    """
    rows = await find_pins(cluster)
    rows = [row for row in rows if row.hangs or row.age_ms is None or row.age_ms >= older_than_ms]
    show(rows, output, columns=PIN_COLUMNS, wide=PIN_COLUMNS_MORE)
    hung = [row for row in rows if row.hangs]
    if hung:
        first = hung[0]
        raise CliError(
            f"{len(hung)} transaction(s) hang, the first in {first.topic} partition {first.partition} "
            f"at offset {first.first_open_offset}: {first.reason}",
            Exit.CONDITION,
        )


async def find_pins(cluster: Cluster) -> list[PinRow]:
    """Every transaction that holds up readers of committed records, by where it is."""
    partitions = await _led_partitions(cluster)
    stable = await stable_offsets(cluster, partitions)
    pinned = [each for each in partitions if stable[each].last_stable_offset < stable[each].high_watermark]
    opened = await _open_in(cluster, pinned)
    known = await transactions_of(cluster, (producer.producer_id for _, producer in opened))
    # A transaction that ended while we asked is open in the first answer and unknown in the second. A third answer no
    # longer shows it.
    still = {(partition, each.current_txn_start_offset) for partition, each in await _open_in(cluster, pinned)}
    now_ms = _now_ms()
    rows = [
        judge(partition, producer, known.get(producer.producer_id, []), stable[partition], now_ms)
        for partition, producer in opened
        if (partition, producer.current_txn_start_offset) in still
    ]
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.first_open_offset))


async def _led_partitions(cluster: Cluster) -> list[TopicPartition]:
    """Every partition that has a leader. Without one, no reader is served, whatever is open there."""
    found, leaderless = [], 0
    for topic in await cluster.metadata(None):
        for part in topic.partitions:
            if part.leader_id < 0:
                leaderless += 1
            elif topic.name:
                found.append(TopicPartition(topic.name, part.partition_index))
    if leaderless:
        click.echo(f"oncelog: {leaderless} partition(s) have no leader and could not be looked at", err=True)
    return sorted(found)


async def _open_in(
    cluster: Cluster, partitions: Sequence[TopicPartition]
) -> list[tuple[TopicPartition, ProducerState]]:
    """The producers that have a transaction open in these partitions."""
    found = await producers_of(cluster, partitions)
    return [(each, producer) for each in partitions for producer in found[each] if _first_open(producer) is not None]


def judge(
    partition: TopicPartition,
    producer: ProducerState,
    transactions: Sequence[TransactionState],
    stable: ReadableEnds,
    now_ms: int,
) -> PinRow:
    """How to judge a transaction that is open in a partition, given what coordinators know of its producer id."""
    holder, named, hangs, reason = standing(partition, transactions, now_ms)
    began_ms = holder.started_ms if holder else producer.last_timestamp
    first_offset = producer.current_txn_start_offset
    return PinRow(
        topic=partition.topic,
        partition=partition.partition,
        producer_id=producer.producer_id,
        transactional_id=named.transactional_id if named else None,
        state=named.state if named else None,
        since=rfc3339(began_ms),
        age_ms=_age_ms(began_ms, now_ms),
        until=rfc3339(holder.ends_ms) if holder else None,
        first_open_offset=first_offset,
        last_stable_offset=stable.last_stable_offset,
        high_watermark=stable.high_watermark,
        pinned_records=max(0, stable.high_watermark - first_offset),
        hangs=hangs,
        reason=reason,
    )


@command.command("abort")
@click.argument("target", metavar="ID | TOPIC PARTITION", nargs=-1, required=True)
@click.option("--start-offset", type=click.IntRange(min=0), metavar="N", help="Where it begins in the partition.")
@yes_option
@report_option
@with_cluster
async def abort(
    cluster: Cluster, target: Sequence[str], start_offset: int | None, yes: bool, output: Output | None
) -> None:
    """Abort the open transaction of a transactional id, or one that hangs in a partition.

    By its id it is aborted everywhere, and its producer is shut out. With TOPIC PARTITION --start-offset N (see `txn
    hanging`) an abort marker is written to that partition, and only if no coordinator has the transaction open.
    """
    if len(target) == 1 and start_offset is None:
        await _abort_id(cluster, target[0], yes=yes, output=output)
    elif len(target) == 2 and start_offset is not None and target[1].isdecimal():
        await _abort_in(cluster, TopicPartition(target[0], int(target[1])), start_offset, yes=yes, output=output)
    else:
        raise click.UsageError("Say either ID or TOPIC PARTITION --start-offset N.")


async def _abort_id(cluster: Cluster, name: str, *, yes: bool, output: Output | None) -> None:
    confirm(f"Abort what {name} has open, in all its partitions, and shut its producer out?", yes=yes)
    transaction = await find_transaction(cluster, name)
    if transaction is None:
        raise _unknown(name)
    if transaction.state != ONGOING:
        raise CliError(f"transactional id {name} has no transaction to abort: it is {transaction.state}")
    code = await fence(cluster, name)
    if code:
        raise refused(f"transactional id {name}", code)
    if output and (transaction := await find_transaction(cluster, name)) is not None:
        show([_detail(transaction, _now_ms())], output, columns=DETAIL_COLUMNS, wide=DETAIL_WIDE)
    remark(f"aborted {name}")


async def _abort_in(
    cluster: Cluster, partition: TopicPartition, start_offset: int, *, yes: bool, output: Output | None
) -> None:
    where = f"{partition.topic} partition {partition.partition}"
    confirm(f"Abort what is open at offset {start_offset} of {where}?", yes=yes)
    opened = await _open_in(cluster, [partition])
    chosen = [producer for _, producer in opened if producer.current_txn_start_offset == start_offset]
    if not chosen:
        raise CliError(f"no open transaction begins at offset {start_offset} of {where}", Exit.NOT_FOUND)
    (producer,) = chosen
    outcome = await abort_hanging(cluster, partition, producer)
    if isinstance(outcome, TransactionState):
        # A marker in a single partition would split the transaction: it would be aborted here, and perhaps be committed
        # everywhere else.
        raise CliError(
            f"the transaction at offset {start_offset} of {where} is {outcome.state}: "
            f"abort it everywhere, by its id {outcome.transactional_id}"
        )
    if outcome:
        raise refused(f"marker in {where}", outcome)
    if output:
        left = (await producers_of(cluster, [partition]))[partition]
        rows = [_producer_row(partition, each) for each in left if each.producer_id == producer.producer_id]
        show(rows, output, columns=(*PRODUCER_COLUMNS, *PRODUCER_COLUMNS_MORE))
    remark(f"aborted the transaction at offset {start_offset} of {where}")


@command.command("trace")
@click.argument("name", metavar="ID")
@output_option
@with_cluster
async def trace(cluster: Cluster, name: str, output: Output) -> None:
    """Show all that is known of a transactional id: its partitions, how far they can be read, its branches."""
    transaction = await find_transaction(cluster, name)
    root = await find_root(cluster, name)
    if transaction is None and not (root and _has_history(root)):
        raise _unknown(name)
    branches = [await find_transaction(cluster, each) for each in root.open_branches] if root else []
    known = [each for each in branches if each is not None]
    partitions = await _trace_partitions(cluster, [transaction, *known] if transaction else known)
    now_ms = _now_ms()
    detail = TxnTrace(
        transactional_id=name,
        transaction=_detail(transaction, now_ms) if transaction else None,
        last_token=root.last_token if root and root.last_token >= 0 else None,
        branches=[_detail(each, now_ms) for each in known],
        partitions=partitions,
    )
    if output is Output.TSV:
        show(partitions, output, columns=TRACE_COLUMNS)
        if not partitions:
            remark(f"{name} is in no partition now; the web page of a broker tells of its ended transactions")
        return
    if output not in (Output.TABLE, Output.WIDE):
        show_one(detail, output, name="transactional_id")
        return
    show_one(detail, output, name="transactional_id", nested=("transaction", "branches", "partitions"))
    described = [each for each in (detail.transaction, *detail.branches) if each is not None]
    click.echo()
    show(described, output, columns=DETAIL_COLUMNS[:-1], wide=("root", "token", "coordinator", "timeout_ms"))
    click.echo()
    show(partitions, output, columns=TRACE_COLUMNS)


def _has_history(root: DescribedRoot) -> bool:
    return root.last_token >= 0 or bool(root.open_branches)


async def _trace_partitions(cluster: Cluster, transactions: Sequence[TransactionState]) -> list[TracedPartition]:
    """How far each partition can be read. One that was deleted meanwhile has no offsets any more."""
    wanted = sorted({partition for each in transactions for partition in each.partitions})
    existing: set[TopicPartition] = set()
    for topic in await cluster.metadata(sorted({each.topic for each in wanted})):
        existing |= {TopicPartition(topic.name or "", part.partition_index) for part in topic.partitions}
    there = [each for each in wanted if each in existing]
    stable = await stable_offsets(cluster, there)
    first_offsets: Mapping[tuple[TopicPartition, int], int] = {
        (partition, producer.producer_id): producer.current_txn_start_offset
        for partition, producer in await _open_in(cluster, there)
    }
    return [
        TracedPartition(
            transactional_id=each.transactional_id,
            topic=partition.topic,
            partition=partition.partition,
            first_open_offset=first_offsets.get((partition, each.producer_id)),
            last_stable_offset=stable[partition].last_stable_offset if partition in stable else None,
            high_watermark=stable[partition].high_watermark if partition in stable else None,
        )
        for each in transactions
        for partition in each.partitions
    ]
