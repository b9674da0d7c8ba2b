"""`oncelog top`: which topics grow, how far groups are, and what holds up readers, again and again."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import click

from log.ids import TopicPartition
from service.cli.connect import listen, with_cluster
from service.cli.output import Output, output_option, show, show_one, visible
from service.cli.txn import PinRow, find_pins
from service.client.cluster import LATEST, Cluster
from service.client.failures import ClientFailure
from service.client.groups import committed_offsets, list_groups

K = TypeVar("K")

ROWS: Final = 10
GROUPS_MAX: Final = 200
ANSWER_S: Final = 1.0
"""How long each look waits for brokers to answer at all."""


@dataclass(frozen=True, slots=True)
class WritingRow:
    """A topic, and how fast it grows."""

    topic: str
    records_per_s: float | None
    end_offset: int


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """A group, how fast its commits move, and how far it has to go."""

    group: str
    records_per_s: float | None
    lag: int


@dataclass(frozen=True, slots=True)
class Top:
    """One look."""

    writes: list[WritingRow]
    reads: list[ReadingRow]
    waits: list[PinRow]


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    ends: Mapping[TopicPartition, int]
    committed: Mapping[str, int]


WRITING_COLUMNS = ("topic", "records_per_s", "end_offset")
READING_COLUMNS = ("group", "records_per_s", "lag")
WAITING_COLUMNS = ("topic", "partition", "transactional_id", "producer_id", "age_ms", "pinned_records", "reason")


@click.command()
@click.option("--every", "every_s", type=click.FloatRange(min=0.2), default=2.0, show_default=True, metavar="SECONDS")
@click.option("-n", "--looks", type=click.IntRange(min=1), metavar="N", help="Stop after so many; default: at ctrl-C.")
@output_option
@with_cluster
async def command(cluster: Cluster, every_s: float, looks: int | None, output: Output) -> None:
    """Show live which topics grow, how far groups are, and what waits."""
    before: _Seen | None = None
    for look in itertools.count(1):
        try:
            top, before, notes = await _look(cluster, before)
        except ClientFailure as failure:
            if before is None:
                raise
            notes = [failure.message]  # the next look may find it answering, or leaves it out
        else:
            if sys.stdout.isatty() and output is Output.TABLE:
                click.clear()
            _print(top, output)
        for note in notes:
            click.echo(f"oncelog: {visible(note)}", err=True)
        if look == looks:
            return
        await asyncio.sleep(every_s)


async def _look(cluster: Cluster, before: _Seen | None) -> tuple[Top, _Seen, list[str]]:
    """One look, and what it could not tell: what a broker has that does not answer is left out."""
    await listen(cluster, min(cluster.timeout_s, ANSWER_S))
    notes = [f"{each.message}; what it leads and coordinates is left out" for each in cluster.silent.values()]
    partitions = [
        TopicPartition(topic.name or "", part.partition_index)
        for topic in await cluster.metadata(None)
        if not topic.is_internal
        for part in topic.partitions
        if part.leader_id >= 0 and part.leader_id not in cluster.silent
    ]
    found = await cluster.list_offsets(dict.fromkeys(partitions, LATEST), all_of_them=False)
    ends = {partition: answer.offset for partition, answer in found.items()}
    committed: dict[str, int] = {}
    lags: dict[str, int] = {}
    answering = [node for node in await cluster.nodes() if node not in cluster.silent]
    for group in (await list_groups(cluster, answering))[:GROUPS_MAX]:
        name = group.group_id
        offsets = await committed_offsets(cluster, name)
        committed[name] = sum(offsets.values())
        lags[name] = sum(max(ends[each] - offset, 0) for each, offset in offsets.items() if each in ends)
    seen = _Seen(asyncio.get_running_loop().time(), ends, committed)
    was = before or _Seen(seen.at_s, {}, {})
    passed_s = max(seen.at_s - was.at_s, 0.001)
    writes = [
        WritingRow(topic, _rate(was.ends, ends, places, passed_s), sum(ends[each] for each in places))
        for topic, places in _of_topics(ends).items()
    ]
    reads = [ReadingRow(name, _rate(was.committed, committed, [name], passed_s), lags[name]) for name in committed]
    if cluster.silent:
        notes.append("what waits can't be told: all leaders and coordinators are needed for it")
    waits = [] if cluster.silent else await find_pins(cluster)
    return (
        Top(
            sorted(writes, key=lambda row: (-(row.records_per_s or 0), row.topic))[:ROWS],
            sorted(reads, key=lambda row: (-(row.records_per_s or 0), -row.lag, row.group))[:ROWS],
            waits[:ROWS],
        ),
        seen,
        notes,
    )


def _of_topics(places: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for each in places:
        found.setdefault(each.topic, []).append(each)
    return found


def _rate(before: Mapping[K, int], now: Mapping[K, int], places: Iterable[K], passed_s: float) -> float | None:
    """The change per second of what was there at the last look, too; unknown at the first."""
    there = [each for each in places if each in before]
    return round(max(sum(now[each] - before[each] for each in there), 0) / passed_s, 1) if there else None


def _print(top: Top, output: Output) -> None:
    if output not in (Output.TABLE, Output.WIDE, Output.TSV):
        show_one(top, output, name="writes")
        return
    parts: Sequence[tuple[str, Sequence[object], Sequence[str]]] = (
        ("writes", top.writes, WRITING_COLUMNS),
        ("reads", top.reads, READING_COLUMNS),
        ("waits", top.waits, WAITING_COLUMNS),
    )
    for title, rows, columns in parts:
        if output is not Output.TSV:
            click.secho(title, bold=True)
        show(rows, output, columns=columns)  # type: ignore[arg-type]
        if output is not Output.TSV:
            click.echo()
