"""`oncelog log stats`: what the segments of a broker hold, counted by the headers of their batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from log.batch import DELETE_HORIZON, HEADER_BYTES, BatchHeader
from log.compress import Codec, told_plain_bytes
from log.ids import NO_TIMESTAMP, partition_of
from log.segment import OFFSET_SUFFIX, TIME_SUFFIX
from service.cli.output import Output, Progress, output_option, show
from service.cli.segment_files import (
    FileDamage,
    codec_name,
    folders_to_read,
    paths_argument,
    segments_in,
    walk,
    warn_of,
)
from service.cli.timestamps import rfc3339


@dataclass(frozen=True, slots=True)
class StatsRow:
    """What a partition holds, or a topic's partitions together, or all."""

    kind: str
    name: str
    segments: int
    batches: int
    records: int
    size_bytes: int
    index_bytes: int
    records_per_batch: float | None
    largest_batch_bytes: int
    codecs: dict[str, int]
    compression_ratio: float | None
    first_timestamp: str | None
    last_timestamp: str | None
    transactional_batches: int
    control_batches: int
    producers: int
    damaged_bytes: int


STATS_COLUMNS = ("kind", "name", "batches", "records", "size_bytes", "codecs", "first_timestamp", "last_timestamp")
STATS_WIDE = (
    "segments",
    "index_bytes",
    "records_per_batch",
    "largest_batch_bytes",
    "compression_ratio",
    "transactional_batches",
    "control_batches",
    "producers",
    "damaged_bytes",
)
SORTS = (
    "name",
    "size_bytes",
    "index_bytes",
    "segments",
    "batches",
    "records",
    "largest_batch_bytes",
    "transactional_batches",
    "control_batches",
    "producers",
    "damaged_bytes",
)


@dataclass(slots=True)
class _Tally:
    """Sums over batches."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    index_bytes: int = 0
    largest_batch_bytes: int = 0
    packed_bytes: int = 0
    """Of the compressed batches that tell how long they were before, which are `plain_bytes`."""
    plain_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    transactional_batches: int = 0
    control_batches: int = 0
    damaged_bytes: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    producers: set[int] = field(default_factory=set)

    def count(self, header: BatchHeader, payload: memoryview) -> None:
        self.batches += 1
        self.records += header.record_count
        self.largest_batch_bytes = max(self.largest_batch_bytes, header.size_bytes)
        self.codecs[codec_name(header.codec)] += 1
        if header.codec != Codec.NONE and (plain_bytes := told_plain_bytes(header.codec, payload)) is not None:
            self.packed_bytes += len(payload)
            self.plain_bytes += plain_bytes
        self.transactional_batches += header.is_transactional
        self.control_batches += header.is_control
        if header.has_producer:
            self.producers.add(header.producer_id)
        last_ms = header.newest_timestamp
        if last_ms != NO_TIMESTAMP:
            # Where the first record's time gave way to something else, the newest is all that the header has.
            is_known = not (header.log_append_time or header.attributes & DELETE_HORIZON) and header.base_timestamp >= 0
            self._widen(header.base_timestamp if is_known else last_ms, last_ms)

    def add(self, other: _Tally) -> None:
        self.segments += other.segments
        self.batches += other.batches
        self.records += other.records
        self.size_bytes += other.size_bytes
        self.index_bytes += other.index_bytes
        self.largest_batch_bytes = max(self.largest_batch_bytes, other.largest_batch_bytes)
        self.packed_bytes += other.packed_bytes
        self.plain_bytes += other.plain_bytes
        self.transactional_batches += other.transactional_batches
        self.control_batches += other.control_batches
        self.damaged_bytes += other.damaged_bytes
        self.codecs += other.codecs
        self.producers |= other.producers
        if other.first_ms is not None and other.last_ms is not None:
            self._widen(other.first_ms, other.last_ms)

    def _widen(self, first_ms: int, last_ms: int) -> None:
        self.first_ms = first_ms if self.first_ms is None else min(self.first_ms, first_ms)
        self.last_ms = last_ms if self.last_ms is None else max(self.last_ms, last_ms)

    def row(self, kind: str, name: str) -> StatsRow:
        of_data = self.batches - self.control_batches
        return StatsRow(
            kind=kind,
            name=name,
            segments=self.segments,
            batches=self.batches,
            records=self.records,
            size_bytes=self.size_bytes,
            index_bytes=self.index_bytes,
            # A control batch is one record.
            records_per_batch=round((self.records - self.control_batches) / of_data, 1) if of_data else None,
            largest_batch_bytes=self.largest_batch_bytes,
            codecs=dict(sorted(self.codecs.items())),
            compression_ratio=round(self.plain_bytes / self.packed_bytes, 2) if self.packed_bytes else None,
            first_timestamp=None if self.first_ms is None else rfc3339(self.first_ms),
            last_timestamp=None if self.last_ms is None else rfc3339(self.last_ms),
            transactional_batches=self.transactional_batches,
            control_batches=self.control_batches,
            producers=len(self.producers),
            damaged_bytes=self.damaged_bytes,
        )


@click.command()
@paths_argument
@click.option("--sort", "sort", type=click.Choice(SORTS), default="name", show_default=True, help="The most first.")
@click.option("-n", "--top", type=click.IntRange(min=1), metavar="N", help="Only the first N partitions and N topics.")
@output_option
def stats(paths: Sequence[Path], sort: str, top: int | None, output: Output) -> None:
    """Count what is in partitions' folders or a whole data folder: each partition, each topic, all.

    Goes by the headers of batches, which it believes: no record is opened, no checksum looked at (`oncelog log verify`
    does). Bytes that are no batch are counted as damaged. A running broker's folder can be read as well.
    """
    folders = list(dict.fromkeys(folder.absolute() for path in paths for folder in folders_to_read(path)))
    partitions: list[tuple[str, _Tally]] = []
    topics: defaultdict[str, _Tally] = defaultdict(_Tally)
    everything = _Tally()
    with Progress(
        "counting", sum(_size_bytes(segment) for folder in folders for segment in segments_in(folder))
    ) as bar:
        for folder in folders:
            tally = _of_partition(folder, bar)
            partition = partition_of(folder.name)
            partitions.append((str(partition) if partition else str(folder), tally))
            topics[partition.topic if partition else str(folder)].add(tally)
            everything.add(tally)
    rows = _sorted([tally.row("partition", name) for name, tally in partitions], sort)[:top]
    rows += _sorted([tally.row("topic", name) for name, tally in topics.items()], sort)[:top]
    show([*rows, everything.row("all", "all")], output, columns=STATS_COLUMNS, wide=STATS_WIDE)


def _sorted(rows: list[StatsRow], sort: str) -> list[StatsRow]:
    return rows if sort == "name" else sorted(rows, key=lambda row: -getattr(row, sort))


def _of_partition(folder: Path, bar: Progress) -> _Tally:
    tally = _Tally()
    for segment in segments_in(folder):
        size_bytes = _size_bytes(segment)
        try:
            for found in walk(segment):
                if isinstance(found, FileDamage):
                    warn_of(found)
                    tally.damaged_bytes += found.size_bytes
                else:
                    tally.count(found.header, found.data[HEADER_BYTES:])
        except OSError as error:
            click.echo(f"{segment} can't be read: {error.strerror}", err=True)
            continue
        tally.segments += 1
        tally.size_bytes += size_bytes
        tally.index_bytes += sum(_size_bytes(segment.with_suffix(suffix)) for suffix in (OFFSET_SUFFIX, TIME_SUFFIX))
        bar.advance(size_bytes)
    return tally


def _size_bytes(file: Path) -> int:
    """0 where there is none: indexes may lack, and a running broker removes files."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
