"""`oncelog top`: which topics grow, how far groups are, and what holds up readers, again and again."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click

from log.ids import TopicPartition
from service.cli.connect import with_cluster
from service.cli.output import Output, output_option, show, show_one
from service.cli.txn import PinRow, find_pins
from service.client.cluster import LATEST, Cluster
from service.client.groups import committed_offsets, list_groups

ROWS: Final = 10
GROUPS_MAX: Final = 200


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
    ends: Mapping[str, int]
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
        top, before = await _look(cluster, before)
        if sys.stdout.isatty() and output is Output.TABLE:
            click.clear()
        _print(top, output)
        if look == looks:
            return
        await asyncio.sleep(every_s)


async def _look(cluster: Cluster, before: _Seen | None) -> tuple[Top, _Seen]:
    partitions = [
        TopicPartition(topic.name or "", part.partition_index)
        for topic in await cluster.metadata(None)
        if not topic.is_internal
        for part in topic.partitions
        if part.leader_id >= 0
    ]
    found = await cluster.list_offsets(dict.fromkeys(partitions, LATEST), all_of_them=False)
    ends: dict[str, int] = {}
    for partition, answer in found.items():
        ends[partition.topic] = ends.get(partition.topic, 0) + answer.offset
    committed: dict[str, int] = {}
    lags: dict[str, int] = {}
    for group in (await list_groups(cluster))[:GROUPS_MAX]:
        name = group.group_id
        offsets = await committed_offsets(cluster, name)
        committed[name] = sum(offsets.values())
        lags[name] = sum(max(found[each].offset - offset, 0) for each, offset in offsets.items() if each in found)
    seen = _Seen(asyncio.get_running_loop().time(), ends, committed)
    passed_s = None if before is None else max(seen.at_s - before.at_s, 0.001)
    was_ends, was_committed = (before.ends, before.committed) if before else (ends, committed)
    writes = [WritingRow(topic, _rate(was_ends, ends, topic, passed_s), end) for topic, end in ends.items()]
    reads = [ReadingRow(name, _rate(was_committed, committed, name, passed_s), lags[name]) for name in committed]
    return (
        Top(
            sorted(writes, key=lambda row: (-(row.records_per_s or 0), row.topic))[:ROWS],
            sorted(reads, key=lambda row: (-(row.records_per_s or 0), -row.lag, row.group))[:ROWS],
            (await find_pins(cluster))[:ROWS],
        ),
        seen,
    )


def _rate(before: Mapping[str, int], now: Mapping[str, int], name: str, passed_s: float | None) -> float | None:
    """The change per second since the last look; unknown at the first."""
    return None if passed_s is None else round(max(now[name] - before.get(name, 0), 0) / passed_s, 1)


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
