"""`oncelog log`: look into the files of a stopped broker, and find out whether they are as they were written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from log.batch import CorruptBatch, read_records
from log.control import read_marker
from log.ids import partition_of
from log.manifest import MANIFEST
from log.segment import LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX
from service.cli.failures import CliError, Exit
from service.cli.log_stats import stats
from service.cli.output import Output, Progress, output_option, remark, show, show_stream
from service.cli.segment_files import (
    FileDamage,
    FoundBatch,
    SegmentCheck,
    codec_name,
    folders_to_read,
    offset_entries,
    partition_folders,
    paths_argument,
    segments_in,
    snapshot_problems,
    time_entries,
    walk,
    warn_of,
)
from service.cli.timestamps import rfc3339

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch of a segment. `control` is commit, abort or unknown in a control batch."""

    segment: str
    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    records: int
    codec: str
    timestamp: str | None
    timestamp_type: str
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: str | None
    checksum_ok: bool


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One record of a segment. Bytes that are no text are shown as hexadecimal digits after 0x."""

    segment: str
    offset: int
    timestamp: str | None
    key: str | None
    value: str | None
    headers: list[str]
    producer_id: int
    control: str | None


@dataclass(frozen=True, slots=True)
class OffsetEntryRow:
    """One entry of an offset index: the batch that ends with `offset` starts at `position`."""

    index: str
    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimeEntryRow:
    """One entry of a time index: up to `offset`, no record is later than `timestamp`."""

    index: str
    timestamp: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class DamageRow:
    """Bytes that are not as they were written."""

    file: str
    position: int
    size_bytes: int
    reason: str
    torn_tail: bool


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """One partition that was looked through."""

    partition: str
    segments: int
    batches: int
    records: int
    size_bytes: int
    end_offset: int
    damage: list[DamageRow]


BATCH_COLUMNS = ("segment", "position", "base_offset", "last_offset", "records", "size_bytes", "codec", "timestamp")
BATCH_WIDE = (
    "leader_epoch",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "transactional",
    "control",
    "checksum_ok",
)
RECORD_WIDE = ("headers", "producer_id")
DAMAGE_COLUMNS = ("file", "position", "size_bytes", "reason")


@click.group()
def command() -> None:
    """Look into a stopped broker's log files."""


command.add_command(stats)


@command.command("dump")
@paths_argument
@click.option("--records", is_flag=True, help="Open the batches and show every record.")
@output_option
def dump(paths: Sequence[Path], records: bool, output: Output) -> None:
    """Show what is in segments (.log), indexes (.index, .timeindex), or folders of them.

    -o wide also shows producers, epochs, control batches and checksums.
    """
    files = [file for path in paths for file in _files_to_dump(path)]
    kinds = {file.suffix for file in files}
    if len(kinds) > 1:
        raise click.UsageError("Segments and indexes have different columns: name files of one kind.")
    rows: Iterator[DataclassInstance]
    if kinds == {OFFSET_SUFFIX}:
        rows = (OffsetEntryRow(_label(file), *each) for file in files for each in offset_entries(file))
        show_stream(rows, output, columns=("index", "offset", "position"))
    elif kinds == {TIME_SUFFIX}:
        rows = (TimeEntryRow(_label(file), rfc3339(each[0]), each[1]) for file in files for each in time_entries(file))
        show_stream(rows, output, columns=("index", "timestamp", "offset"))
    elif records:
        columns = ("segment", "offset", "timestamp", "key", "value", "control")
        show_stream(chain.from_iterable(map(_record_rows, files)), output, columns=columns, wide=RECORD_WIDE)
    else:
        show_stream(chain.from_iterable(map(_batch_rows, files)), output, columns=BATCH_COLUMNS, wide=BATCH_WIDE)


def _files_to_dump(path: Path) -> Iterator[Path]:
    if path.is_dir():
        folders = partition_folders(path)
        if not folders:
            raise CliError(f"{path} holds no segments", Exit.NOT_FOUND)
        for folder in folders:
            yield from segments_in(folder)
    elif path.suffix in (LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX) and path.stem.isdigit():
        yield path
    else:
        raise CliError(f"{path} is neither a segment nor an index", Exit.USAGE)


def _batch_rows(path: Path) -> Iterator[BatchRow]:
    for found in walk(path):
        if isinstance(found, FileDamage):
            warn_of(found)
            continue
        header = found.header
        yield BatchRow(
            segment=_label(path),
            position=found.position,
            size_bytes=header.size_bytes,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            records=header.record_count,
            codec=codec_name(header.codec),
            timestamp=rfc3339(header.max_timestamp),
            timestamp_type="LogAppendTime" if header.log_append_time else "CreateTime",
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            control=_control(found),
            checksum_ok=found.checksum_ok,
        )


def _label(file: Path) -> str:
    """The partition's folder and the file: segments of two partitions have the same name."""
    return f"{file.absolute().parent.name}/{file.name}"


def _control(found: FoundBatch) -> str | None:
    if not found.header.is_control:
        return None
    try:
        kind = read_marker(found.data).type
    except CorruptBatch:
        return "unknown"
    return kind.name.lower() if kind is not None else "unknown"


def _record_rows(path: Path) -> Iterator[RecordRow]:
    for found in walk(path):
        if isinstance(found, FileDamage):
            warn_of(found)
            continue
        try:
            for record in read_records(found.data, found.header):
                yield RecordRow(
                    segment=_label(path),
                    offset=record.offset,
                    timestamp=rfc3339(record.timestamp),
                    key=_text(record.key),
                    value=_text(record.value),
                    headers=[f"{name}={_text(value)}" for name, value in record.headers],
                    producer_id=found.header.producer_id,
                    control=_control(found),
                )
        except CorruptBatch as error:
            click.echo(f"{path} at {found.position}: the batch can't be opened: {error}", err=True)


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"


@command.command("verify")
@paths_argument
@output_option
def verify(paths: Sequence[Path], output: Output) -> None:
    """Check every batch and index entry of partitions' folders or of a whole data folder.

    Ends with 6 when anything is damaged. A torn tail, which a crash may leave behind what was acknowledged, is told
    but is no damage: the next start cuts it off.
    """
    folders = [folder for path in paths for folder in folders_to_read(path)]
    total_bytes = sum(segment.stat().st_size for folder in folders for segment in segments_in(folder))
    rows = []
    with Progress("verifying", total_bytes) as progress:
        for folder in folders:
            rows.append(_verify_folder(folder, progress))
    found = [damage for row in rows for damage in row.damage]
    if output in (Output.JSON, Output.NDJSON, Output.YAML):
        show(rows, output, columns=("partition",))
    else:
        show(found, output, columns=DAMAGE_COLUMNS, wide=("torn_tail",)) if found else None
    damaged = [damage for damage in found if not damage.torn_tail]
    batches = sum(row.batches for row in rows)
    remark(f"{len(rows)} partitions, {batches} batches, {total_bytes} bytes; damaged places: {len(damaged)}")
    if damaged:
        raise CliError(f"{len(damaged)} damaged place(s), the first in {damaged[0].file}", Exit.CONDITION)


def _verify_folder(folder: Path, progress: Progress) -> VerifiedRow:
    segments = segments_in(folder)
    crashed = not (folder.absolute().parent / MANIFEST).exists()
    problems: list[FileDamage] = []
    batches = records = next_offset = 0
    for segment in segments:
        check = SegmentCheck(segment, next_offset)
        for problem in check.problems():
            # Only a crash leaves a tail, and only where the log ends.
            torn = problem.torn_tail and crashed and segment == segments[-1]
            problems.append(
                FileDamage(problem.file, problem.position, problem.size_bytes, problem.reason, torn_tail=torn)
            )
        batches, records, next_offset = batches + check.batches, records + check.records, check.next_offset
        progress.advance(segment.stat().st_size)
    problems += snapshot_problems(folder)
    partition = partition_of(folder.name)
    return VerifiedRow(
        partition=str(partition) if partition else os.fspath(folder),
        segments=len(segments),
        batches=batches,
        records=records,
        size_bytes=sum(segment.stat().st_size for segment in segments),
        end_offset=next_offset,
        damage=[DamageRow(each.file, each.position, each.size_bytes, each.reason, each.torn_tail) for each in problems],
    )
