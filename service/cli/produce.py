"""`oncelog produce`: write records to a topic, from the keyboard, a pipe or a file.

What always holds: a record is reported only when the broker acknowledged it with `acks=all`; records with one key
keep their order; where the broker hands out producer ids, a batch that had to be sent again is not written twice;
where it does not, a batch whose answer was lost ends the command with status 7; with a transactional id nothing of a
transaction is visible that was not committed to the last record.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import click

from service.cli.connect import complete_topic, with_cluster
from service.cli.output import Output, Progress, remark, report_option, show
from service.cli.records import BadInput, from_json, parse_json
from service.client.failures import ClientFailure
from service.client.writer import OutgoingRecord
from service.settings.setting import MAX_INT

if TYPE_CHECKING:
    from service.client.cluster import Cluster
    from service.client.transaction import Transaction
    from service.client.writer import Writer

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
READ_BYTES = 1 << 18

OnWritten = Callable[[int, int, Sequence[int]], None]
"""Called with a partition, the offset of the first record there, and the records' timestamps."""


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
@click.option("--txn-id", metavar="ID", help="Write in a transaction of this transactional id: all or nothing.")
@click.option(
    "--txn-size",
    type=click.IntRange(1, MAX_INT),
    metavar="N",
    help="Commit after every N records; else once, at the end.",
)
@report_option
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
    txn_id: str | None,
    txn_size: int | None,
    output: Output | None,
) -> None:
    """Write records to a topic, a line each.

    \b
    echo hello | oncelog produce greetings
    oncelog produce orders --key-sep : --file orders.txt
    oncelog produce orders --txn-id import --file orders.txt
    oncelog consume old -J -e | oncelog produce new --input ndjson

    Records of a transaction are reported when it is committed. What fails, and ctrl-C, abort it.
    """
    from service.client.transaction import Transaction
    from service.client.writer import Writer

    if txn_size is not None and txn_id is None:
        raise click.UsageError("--txn-size goes with --txn-id.")

    parser = _parser(kind, key=key, headers=_headers(headers), partition=partition, key_sep=key_sep)
    transaction = Transaction(cluster, txn_id) if txn_id is not None else None
    writer = Writer(cluster, topic, codec=CODECS[codec], transaction=transaction)
    await writer.open()
    sent = _Sent(writer, transaction, txn_size, _report(topic, output) if output else None)
    keyboard = path is None and sys.stdin.isatty()
    try:
        with (
            _source(path) as source,
            Progress("writing", _size_bytes(path), wanted=not keyboard) as progress,
        ):
            async for chunk in _chunks(source, whole=kind in ("raw", "json")):
                await sent.write(parser(chunk))
                progress.advance(len(chunk) + 1)
        await sent.commit()
    except BaseException as error:
        if transaction is not None:
            with suppress(ClientFailure):  # else its timeout ends it; what failed first is what matters
                await transaction.abort()
        if isinstance(error, BadInput):
            raise _bad_input(error, sent.count, transactional=transaction is not None) from None
        raise
    remark(f"{sent.count} record{'' if sent.count == 1 else 's'} written to {topic}")


class _Sent:
    """What was written, reported as soon as it is certain: at once, or when its transaction is committed."""

    def __init__(
        self, writer: Writer, transaction: Transaction | None, size: int | None, report: OnWritten | None
    ) -> None:
        self._writer = writer
        self._transaction = transaction
        self._size = self._room = size
        self._report = report
        self._uncommitted: list[tuple[int, int, list[int]]] = []
        self._written = 0
        self.count = 0
        """Records of which it is certain that they stay."""

    async def write(self, records: Iterator[OutgoingRecord]) -> None:
        """Write the records. Where one is none, those before it are written, and BadInput is raised."""
        bad: BadInput | None = None
        while bad is None:
            piece: list[OutgoingRecord] = []
            try:
                for record in islice(records, self._room):
                    piece.append(record)
            except BadInput as error:
                bad = error
            if not piece or (bad is not None and self._transaction is not None):
                break
            for number, base_offset, batch in await self._writer.write(piece):
                self._written += len(batch)
                if self._report is not None:
                    self._uncommitted.append((number, base_offset, [timestamp for _, _, _, timestamp in batch]))
            if self._room is not None:
                self._room -= len(piece)
            if self._transaction is None or self._room == 0:
                await self.commit()
        if bad is not None:
            raise bad

    async def commit(self) -> None:
        if self._transaction is not None:
            await self._transaction.commit()
        self.count = self._written
        if self._report is not None:
            for number, base_offset, timestamps in self._uncommitted:
                self._report(number, base_offset, timestamps)
        self._uncommitted, self._room = [], self._size


def _size_bytes(path: Path | None) -> int | None:
    """How much there is to come; of a pipe nobody knows."""
    return path.stat().st_size if path else None


def _headers(texts: Sequence[str]) -> tuple[tuple[str, bytes | None], ...]:
    found = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
        found.append((name, value.encode("utf-8", "surrogateescape") if separator else None))
    return tuple(found)


def _report(topic: str, output: Output) -> OnWritten:
    from service.cli.timestamps import rfc3339

    # Reports come batch by batch, so a list would never be closed: JSON is an object a line here.
    shape = Output.NDJSON if output is Output.JSON else output

    def report(partition: int, base_offset: int, timestamps: Sequence[int]) -> None:
        rows = [
            Delivery(topic, partition, base_offset + position, rfc3339(timestamp))
            for position, timestamp in enumerate(timestamps)
        ]
        show(rows, shape, columns=("topic", "partition", "offset", "timestamp"))

    return report


@contextmanager
def _source(path: Path | None) -> Iterator[Callable[[], bytes]]:
    """What reads the next bytes of the file or of standard input, nothing at the end."""
    if path is not None:
        with path.open("rb", buffering=0) as file:
            yield partial(file.read, READ_BYTES)
        return
    try:
        # Not through `sys.stdin`: closing that waits for the read under way, and at a keyboard that is for ever.
        descriptor = sys.stdin.fileno()
    except OSError:  # none behind it: a test
        yield partial(sys.stdin.buffer.read, READ_BYTES)
    else:
        yield partial(os.read, descriptor, READ_BYTES)


async def _chunks(source: Callable[[], bytes], *, whole: bool) -> AsyncIterator[bytes]:
    """The input as it comes, cut at line ends, or all of it."""
    rest = b""
    while data := await _beside(source):
        if whole:
            rest += data
            continue
        lines, newline, rest = (rest + data).rpartition(b"\n")
        if newline:
            yield lines
    if rest or whole:
        yield rest


async def _beside(read: Callable[[], bytes]) -> bytes:
    """Wait for input beside the loop: a keyboard has time. Unlike with `asyncio.to_thread`, nobody waits for it when
    ctrl-C has ended the command.
    """
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

    def work() -> None:
        try:
            data = read()
        except OSError as error:
            tell = partial(came.set_exception, error)
        else:
            tell = partial(came.set_result, data)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: came.done() or tell())

    Thread(target=work, daemon=True).start()
    return await came


def _parser(
    kind: str,
    *,
    key: str | None,
    headers: tuple[tuple[str, bytes | None], ...],
    partition: int | None,
    key_sep: str | None,
) -> Callable[[bytes], Iterator[OutgoingRecord]]:
    """What makes records of a chunk of input."""
    if key_sep == "":
        raise click.BadParameter("there is nothing to split at", param_hint="--key-sep")
    if key_sep is not None and (key is not None or kind != "lines"):
        raise click.UsageError("--key-sep goes with --input lines, and without --key.")
    if kind in ("json", "ndjson") and (key is not None or headers):
        raise click.UsageError("With JSON input, keys and headers come from the objects.")
    fixed_key = None if key is None else key.encode("utf-8", "surrogateescape")
    separator = None if key_sep is None else key_sep.encode("utf-8", "surrogateescape")

    def plain(value: bytes) -> OutgoingRecord:
        record_key = fixed_key
        if separator is not None:
            before, found, after = value.partition(separator)
            record_key, value = (before, after) if found else (None, value)
        return OutgoingRecord((record_key, value, headers, _now_ms()), partition)

    def record_of(place: str, document: object) -> OutgoingRecord:
        try:
            outgoing = from_json(document, now_ms=_now_ms())
        except BadInput as error:
            raise BadInput(f"{place}: {error}") from None
        # A copied record names the partition it came from; only --partition says where to write.
        return OutgoingRecord(outgoing.record, partition)

    def json_document(chunk: bytes) -> Iterator[OutgoingRecord]:
        if chunk.strip():
            document = parse_json(chunk)
            for number, each in enumerate(document if isinstance(document, list) else [document], 1):
                yield record_of(f"record {number}", each)

    line = 0

    def json_lines(chunk: bytes) -> Iterator[OutgoingRecord]:
        nonlocal line
        for text in chunk.split(b"\n"):
            line += 1
            if not text.strip():
                continue
            try:
                document = parse_json(text)
            except BadInput as error:
                raise BadInput(f"line {line}: {error}") from None
            yield record_of(f"line {line}", document)

    def lines(chunk: bytes) -> Iterator[OutgoingRecord]:
        return (plain(line) for line in chunk.split(b"\n"))

    parsers = {"lines": lines, "raw": lambda chunk: iter([plain(chunk)]), "json": json_document, "ndjson": json_lines}
    return parsers[kind]


def _bad_input(error: BadInput, count: int, *, transactional: bool) -> Exception:
    from service.cli.failures import CliError, Exit

    before = f"{count} record{' was' if count == 1 else 's were'}"
    what = f"{before} committed before, its transaction is aborted" if transactional else f"{before} written before it"
    return CliError(f"{error}; {what}", Exit.USAGE)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
