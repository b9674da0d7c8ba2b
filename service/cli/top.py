"""`oncelog top`: which topics grow, how far groups are, and what holds up readers, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import click

from log.ids import TopicPartition
from service.cli.connect import Seconds, with_cluster
from service.cli.output import Output, output_option, show, show_one
from service.cli.txn import PinRow, find_pins
from service.cli.watching import answering, clear, look_again
from service.client.cluster import Cluster, Deadline
from service.client.ends import NO_MARKERS, ends_of
from service.client.groups import committed_offsets, list_groups

K = TypeVar("K")

ROWS: Final = 10
GROUPS_S: Final = 5.0
"""So long groups are looked at in one look. Those that there is no time for are counted."""


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
    lag_is: Literal["exact", "at most"]


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
READING_COLUMNS = ("group", "records_per_s", "lag_is", "lag")
WAITING_COLUMNS = ("topic", "partition", "transactional_id", "producer_id", "age_ms", "pinned_records", "reason")


@click.command()
@click.option("--every", "every_s", type=Seconds(at_least=0.2), default=2.0, show_default=True, metavar="SECONDS")
@click.option("-n", "--looks", type=click.IntRange(min=1), metavar="N", help="Stop after so many; default: at ctrl-C.")
@output_option
@with_cluster
async def command(cluster: Cluster, every_s: float, looks: int | None, output: Output) -> None:
    """Show live which topics grow, how far groups are, and what waits."""
    before: _Seen | None = None

    async def look() -> list[str]:
        nonlocal before
        top, before, notes = await _look(cluster, before)
        clear(output)
        _print(top, output)
        return notes

    await look_again(look, every_s=every_s, looks=looks)


async def _look(cluster: Cluster, before: _Seen | None) -> tuple[Top, _Seen, list[str]]:
    """One look, and what it could not tell: what a broker has that does not answer is left out."""
    nodes, notes = await answering(cluster)
    partitions = [
        TopicPartition(topic.name or "", part.partition_index)
        for topic in await cluster.metadata(None)
        if not topic.is_internal
        for part in topic.partitions
        if part.leader_id >= 0 and part.leader_id not in cluster.silent
    ]
    groups = [each.group_id for each in await list_groups(cluster, nodes)]
    deadline = Deadline(GROUPS_S)
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for name in groups:
        if deadline.passed():
            notes.append(
                f"{len(groups) - len(offsets)} of {len(groups)} groups were not looked at: it would take too long"
            )
            break
        offsets[name] = await committed_offsets(cluster, name)
    since = dict.fromkeys(partitions, NO_MARKERS)
    for there in offsets.values():
        since |= {each: min(since[each], offset) for each, offset in there.items() if each in since}
    found = await ends_of(cluster, since)
    ends = {partition: answer.high_watermark for partition, answer in found.items()}
    committed = {name: sum(there.values()) for name, there in offsets.items()}
    left = {
        name: [found[each].left_from(offset) for each, offset in there.items() if each in found]
        for name, there in offsets.items()
    }
    seen = _Seen(asyncio.get_running_loop().time(), ends, committed)
    was = before or _Seen(seen.at_s, {}, {})
    passed_s = max(seen.at_s - was.at_s, 0.001)
    writes = [
        WritingRow(topic, _rate(was.ends, ends, places, passed_s), sum(ends[each] for each in places))
        for topic, places in _of_topics(ends).items()
    ]
    reads = [
        ReadingRow(
            group=name,
            records_per_s=_rate(was.committed, committed, [name], passed_s),
            lag=sum(each.total for each in there),
            lag_is="exact" if all(each.is_exact for each in there) else "at most",
        )
        for name, there in left.items()
    ]
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
