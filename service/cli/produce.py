"""`oncelog produce`: write records to a topic, from the keyboard, a pipe or a file.

What always holds: a record is reported only when the broker acknowledged it with `acks=all`; records with one key
keep their order; where the broker hands out producer ids, a batch that had to be sent again is not written twice;
where it does not, a batch whose answer was lost ends the command with status 7.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from service.cli.connect import complete_topic, with_cluster
from service.cli.output import Output, Progress, remark, show
from service.cli.records import BadRecord, Outgoing, from_json

if TYPE_CHECKING:
    from service.cli.cluster_client import Cluster

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a record was written."""

    topic: str
    partition: int
    offset: int
    timestamp: str | None


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option("-k", "--key", help="The key of every record.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; can be given again.",
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Write to this partition; else the key decides.")
@click.option("-z", "--compression", "codec", type=click.Choice(list(CODECS)), default="none", show_default=True)
@click.option("--key-sep", metavar="TEXT", help="Split every line at the first TEXT into key and value.")
@click.option(
    "--input",
    "kind",
    type=click.Choice(["lines", "raw", "json", "ndjson"]),
    default="lines",
    show_default=True,
    help="lines: a record a line. raw: all of it is one record. json: an object, or a list of them. "
    "ndjson: an object a line, as consume -J prints them.",
)
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Read this instead of standard input.",
)
@click.option(
    "-o",
    "--output",
    "output",
    type=click.Choice([each.value for each in Output]),
    help="Print where every record was written.",
)
@with_cluster
async def command(
    cluster: Cluster,
    topic: str,
    key: str | None,
    headers: Sequence[str],
    partition: int | None,
    codec: str,
    key_sep: str | None,
    kind: str,
    path: Path | None,
    output: str | None,
) -> None:
    """Write records to a topic, a line each.

    \b
    echo hello | oncelog produce greetings
    oncelog produce orders --key-sep : --file orders.txt
    oncelog consume old -J -e | oncelog produce new --input ndjson
    """
    from service.cli.writer import Writer

    parser = _parser(kind, key=key, headers=_headers(headers), partition=partition, key_sep=key_sep)
    writer = Writer(cluster, topic, codec=CODECS[codec])
    await writer.open()
    written = 0
    report = _report(topic, Output(output) if output else None)
    with path.open("rb") if path else sys.stdin.buffer as source, Progress("writing", _size_bytes(path)) as progress:
        async for chunk in _chunks(source, whole=kind in ("raw", "json")):
            for number, base_offset, batch in await writer.write(parser(chunk)):
                written += len(batch)
                report(number, base_offset, [timestamp for _, _, _, timestamp in batch])
            progress.advance(len(chunk) + 1)
    remark(f"{written} record{'' if written == 1 else 's'} written to {topic}")


def _size_bytes(path: Path | None) -> int:
    """How much there is to come; of a pipe nobody knows."""
    return path.stat().st_size if path else 0


def _headers(texts: Sequence[str]) -> tuple[tuple[str, bytes | None], ...]:
    found = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
        found.append((name, value.encode("utf-8", "surrogateescape") if separator else None))
    return tuple(found)


def _report(topic: str, output: Output | None) -> Callable[[int, int, Sequence[int]], None]:
    from service.cli.timestamps import rfc3339

    def report(partition: int, base_offset: int, timestamps: Sequence[int]) -> None:
        if output is None:
            return
        rows = [
            Delivery(topic, partition, base_offset + position, rfc3339(timestamp))
            for position, timestamp in enumerate(timestamps)
        ]
        # Reports come batch by batch, so a list would never be closed: JSON is an object a line here.
        shape = Output.NDJSON if output is Output.JSON else output
        show(rows, shape, columns=("topic", "partition", "offset", "timestamp"))

    return report


async def _chunks(source: BinaryIO, *, whole: bool) -> AsyncIterator[bytes]:
    """The input as it comes, cut at line ends, or all of it. Reading waits beside the loop: a keyboard has time."""
    if whole:
        yield await asyncio.to_thread(source.read)
        return
    rest = b""
    while data := await asyncio.to_thread(source.read1, READ_BYTES):  # type: ignore[attr-defined]
        lines, newline, rest = (rest + data).rpartition(b"\n")
        if newline:
            yield lines
    if rest:
        yield rest


def _parser(
    kind: str,
    *,
    key: str | None,
    headers: tuple[tuple[str, bytes | None], ...],
    partition: int | None,
    key_sep: str | None,
) -> Callable[[bytes], Iterator[Outgoing]]:
    """What makes records of a chunk of input."""
    if key_sep is not None and (key is not None or kind != "lines"):
        raise click.UsageError("--key-sep goes with --input lines, and without --key.")
    if kind in ("json", "ndjson") and (key is not None or headers):
        raise click.UsageError("With JSON input, keys and headers come from the objects.")
    fixed_key = None if key is None else key.encode("utf-8", "surrogateescape")
    separator = None if key_sep is None else key_sep.encode("utf-8", "surrogateescape")

    def plain(value: bytes) -> Outgoing:
        record_key = fixed_key
        if separator is not None:
            before, found, after = value.partition(separator)
            record_key, value = (before, after) if found else (None, value)
        return Outgoing((record_key, value, headers, _now_ms()), partition)

    def documents(chunk: bytes) -> Iterator[object]:
        for text in [chunk] if kind == "json" else chunk.split(b"\n"):
            if not text.strip():
                continue
            try:
                document = json.loads(text)
            except ValueError as error:
                raise _bad_input(f"not JSON: {error}") from None
            yield from document if kind == "json" and isinstance(document, list) else [document]

    def objects(chunk: bytes) -> Iterator[Outgoing]:
        for document in documents(chunk):
            try:
                outgoing = from_json(document, now_ms=_now_ms())
            except BadRecord as error:
                raise _bad_input(str(error)) from None
            # A copied record names the partition it came from; only --partition says where to write.
            yield Outgoing(outgoing.record, partition)

    def lines(chunk: bytes) -> Iterator[Outgoing]:
        return (plain(line) for line in chunk.split(b"\n"))

    return {"lines": lines, "raw": lambda chunk: iter([plain(chunk)]), "json": objects, "ndjson": objects}[kind]


def _bad_input(message: str) -> Exception:
    from service.cli.failures import CliError, Exit

    return CliError(message, Exit.USAGE)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
