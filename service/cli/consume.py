"""`oncelog consume`: print the records of topics, for ever or up to the end, alone or as a member of a group."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from log.ids import TopicPartition
from service.cli.connect import complete_group, complete_topic, with_cluster
from service.cli.failures import CliError, Exit
from service.cli.output import Output, Progress, remark
from service.cli.records import compile_format, to_json
from service.cli.timestamps import parse_moment
from service.cli.topic import choose_partitions
from service.client.cluster import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, Cluster
from service.client.groups import committed_offsets
from service.client.member import Member
from service.client.reader import Reader, ReadRecord, Selection

COMMIT_EVERY_S = 1.0
_TERMINATED = 128 + signal.SIGTERM

Printer = Callable[[ReadRecord], bytes]


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: at an offset, a number of records before the end, at a time, or at one of the ends."""

    word: str = "beginning"
    offset: int = 0
    moment: int = 0


def parse_start(text: str) -> Start:
    """kcat's words: beginning, end, N, -N, s@TIME (also @TIME). Raises ValueError."""
    if text in ("beginning", "earliest"):
        return Start("beginning")
    if text in ("end", "latest"):
        return Start("end")
    if text.startswith(("@", "s@")):
        return Start("moment", moment=parse_moment(text.partition("@")[2]))
    number = int(text)
    return Start("before-end", offset=-number) if text.startswith("-") else Start("offset", offset=number)


@click.command()
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topic)
@click.option(
    "-g", "--group", shell_complete=complete_group, help="As a member of this group, which remembers how far it read."
)
@click.option(
    "-o",
    "--offset",
    "words",
    multiple=True,
    metavar="OFF|json",
    help="Where to start: beginning (default), end, N, -N (so many before the end), @TIME. `-o json` is -J.",
)
@click.option("-p", "--partition", "numbers", type=int, multiple=True, help="Only this partition; can be given again.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="End at what was the end when reading began.")
@click.option(
    "-f",
    "--format",
    "layout",
    help=r"Print like this: '%t %p %o %k %s\n'. Also %T %D (time), %h (headers), %K %S (sizes), %x %y (producer), %e.",
)
@click.option("-J", "--json", "as_json", is_flag=True, help="Print a JSON object a line.")
@click.option("--raw-ts", is_flag=True, help="With -J: timestamps as milliseconds since 1970.")
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    show_default=True,
    help="Whether records of open and aborted transactions are read.",
)
@click.option("--show-control", is_flag=True, help="Print transaction markers too.")
@click.option("--show-aborted", is_flag=True, help="Print records of aborted transactions too.")
@with_cluster
async def command(
    cluster: Cluster,
    topics: Sequence[str],
    group: str | None,
    words: Sequence[str],
    numbers: Sequence[int],
    count: int | None,
    exit_at_end: bool,
    layout: str | None,
    as_json: bool,
    raw_ts: bool,
    isolation: str,
    show_control: bool,
    show_aborted: bool,
) -> None:
    """Print the records of topics.

    \b
    oncelog consume orders                        # everything, and then what comes
    oncelog consume orders -o -10 -e              # the last ten of each partition
    oncelog consume orders -g billing -J          # as a member of a group, as JSON
    oncelog consume orders -f '%p:%o %k %s\\n'     # in a format of one's own
    """
    printer_name, start = _split_words(words)
    if group == "":
        raise click.BadParameter("a group needs a name", param_hint="--group")
    if numbers and (group or len(topics) != 1):
        raise click.UsageError("--partition needs one topic, and no group.")
    wanted = Selection(
        isolation=READ_COMMITTED if isolation == "committed" else READ_UNCOMMITTED,
        control=show_control,
        aborted=show_aborted,
    )
    printer = _printer(layout, as_json=as_json or printer_name is not None, raw_timestamps=raw_ts)
    # If the records themselves are printed on a terminal, no other sign of progress is needed.
    progress = Progress("reading", count, records=True, wanted=not sys.stdout.isatty())
    sink = _Sink(printer, count, progress)
    task = asyncio.current_task()
    assert task is not None
    # `timeout 5 oncelog consume -g …` should leave its group as ctrl-C does.
    terminated: list[int] = []
    loop = asyncio.get_running_loop()

    def terminate() -> None:
        terminated.append(signal.SIGTERM)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        with progress:
            if group is None:
                partitions = await _partitions(cluster, topics, numbers)
                await _consume_alone(cluster, partitions, start, wanted, sink, exit_at_end=exit_at_end)
            else:
                await _consume_in_group(cluster, group, topics, start, wanted, sink, exit_at_end=exit_at_end)
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise click.exceptions.Exit(_TERMINATED) from None
    finally:
        remark(f"{sink.printed} record{'' if sink.printed == 1 else 's'}")


def _split_words(words: Sequence[str]) -> tuple[str | None, Start]:
    """Sort the values of `-o`, which means the offset in kcat and the format in all our other commands. No word is
    both.
    """
    printer_name, start = None, Start()
    for word in words:
        if word in (Output.JSON.value, Output.NDJSON.value):
            printer_name = word
            continue
        try:
            start = parse_start(word)
        except ValueError:
            raise click.BadParameter(
                f"{word!r} is none of beginning, end, N, -N, @TIME, json", param_hint="--offset"
            ) from None
    return printer_name, start


def _printer(layout: str | None, *, as_json: bool, raw_timestamps: bool) -> Printer:
    if layout is not None and as_json:
        raise click.UsageError("Either --format or --json.")
    if as_json:
        return lambda read: to_json(read, raw_timestamps=raw_timestamps).encode("utf-8", "surrogateescape") + b"\n"
    try:
        return compile_format(r"%s\n" if layout is None else layout)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from None


class _Sink:
    """Prints records up to a count."""

    def __init__(self, printer: Printer, count: int | None, progress: Progress) -> None:
        self._printer = printer
        self._count = count
        self.progress = progress
        self.printed = 0

    def full(self) -> bool:
        return self._count is not None and self.printed >= self._count

    def take(self, records: Sequence[ReadRecord]) -> int:
        """Print the records, or as many as are still wanted. Returns how many were printed."""
        if self._count is not None:
            records = records[: self._count - self.printed]
        sys.stdout.buffer.write(b"".join([self._printer(record) for record in records]))
        sys.stdout.buffer.flush()
        self.printed += len(records)
        self.progress.advance(len(records))
        return len(records)


async def _partitions(cluster: Cluster, topics: Sequence[str], numbers: Sequence[int]) -> list[TopicPartition]:
    found = []
    for name in dict.fromkeys(topics):
        partitions = await cluster.partitions_of(name)
        found += choose_partitions(name, partitions, numbers) if numbers else partitions
    return found


async def _consume_alone(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    start: Start,
    wanted: Selection,
    sink: _Sink,
    *,
    exit_at_end: bool,
) -> None:
    reader = Reader(cluster, await _start_positions(cluster, partitions, start, wanted.isolation), wanted)
    ends = await _ends(cluster, partitions, wanted.isolation) if exit_at_end else {}
    if sink.progress.total is None and exit_at_end:
        sink.progress.total = sum(ends[each] - reader.positions[each] for each in partitions)
    try:
        while not sink.full() and not _at_end(reader, ends):
            for partition, records in await reader.next():
                _print(sink, partition, records, ends)
    finally:
        await reader.close()


def _print(
    sink: _Sink, partition: TopicPartition, records: Sequence[ReadRecord], ends: dict[TopicPartition, int]
) -> int | None:
    """Print the records before the end. If the sink is full before all are printed, returns the offset of the first
    that is left.
    """
    if partition in ends:
        records = [read for read in records if read.record.offset < ends[partition]]
    printed = sink.take(records)
    return None if printed == len(records) else records[printed].record.offset


def _at_end(reader: Reader, ends: dict[TopicPartition, int]) -> bool:
    """Drop the partitions that have reached their end. Returns whether all have; without ends they never do."""
    for partition in [each for each in reader.positions if each in ends and reader.positions[each] >= ends[each]]:
        del reader.positions[partition]
    return not reader.positions and bool(ends)


async def _start_positions(
    cluster: Cluster, partitions: Sequence[TopicPartition], start: Start, isolation: int
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    starts = await cluster.list_offsets(dict.fromkeys(partitions, EARLIEST), isolation=isolation)
    if start.word == "beginning":
        return {partition: each.offset for partition, each in starts.items()}
    ends = await _ends(cluster, partitions, isolation)
    if start.word == "end":
        return ends
    if start.word == "offset":
        if all(start.offset > end for end in ends.values()):
            raise CliError(f"there is no offset {start.offset} yet: the end is {max(ends.values())}", Exit.NOT_FOUND)
        return {each: min(max(start.offset, starts[each].offset), ends[each]) for each in partitions}
    if start.word == "before-end":
        return {each: max(starts[each].offset, ends[each] - start.offset) for each in partitions}
    found = await cluster.list_offsets(dict.fromkeys(partitions, start.moment), isolation=isolation)
    return {each: found[each].offset if found[each].offset >= 0 else ends[each] for each in partitions}


async def _ends(cluster: Cluster, partitions: Sequence[TopicPartition], isolation: int) -> dict[TopicPartition, int]:
    found = await cluster.list_offsets(dict.fromkeys(partitions, LATEST), isolation=isolation)
    return {partition: each.offset for partition, each in found.items()}


async def _consume_in_group(
    cluster: Cluster,
    group: str,
    topics: Sequence[str],
    start: Start,
    wanted: Selection,
    sink: _Sink,
    *,
    exit_at_end: bool,
) -> None:
    for name in topics:
        await cluster.topic(name)  # a misspelt topic ends the command instead of joining a group for nothing
    member = Member(cluster, group, topics)
    try:
        while True:
            partitions = await member.join()
            remark(f"reading {', '.join(map(str, partitions)) or 'nothing: others of the group read it all'}")
            if not await _until_rebalance(cluster, member, group, partitions, start, wanted, sink, exit_at_end):
                return
    finally:
        await member.leave("oncelog consume ended")


async def _until_rebalance(
    cluster: Cluster,
    member: Member,
    group: str,
    partitions: Sequence[TopicPartition],
    start: Start,
    wanted: Selection,
    sink: _Sink,
    exit_at_end: bool,
) -> bool:
    """Read what this member was assigned. True: the group rebalances. False: the command has what it wanted."""
    committed = await committed_offsets(cluster, group)
    fresh = [partition for partition in partitions if partition not in committed]
    positions = await _start_positions(cluster, fresh, start, wanted.isolation)
    positions |= {partition: committed[partition] for partition in partitions if partition in committed}
    ends = await _ends(cluster, partitions, wanted.isolation) if exit_at_end else {}
    reader = Reader(cluster, positions, wanted)
    done: dict[TopicPartition, int] = {}
    commit_at = time.monotonic() + COMMIT_EVERY_S
    try:
        while not sink.full() and not (exit_at_end and _at_end(reader, ends)):
            if not await member.beat():
                return True
            if not reader.positions:
                await asyncio.sleep(COMMIT_EVERY_S)
                continue
            for partition, records in await reader.next():
                if sink.full():
                    break
                stopped_at = _print(sink, partition, records, ends)
                done[partition] = reader.positions[partition] if stopped_at is None else stopped_at
            if done and time.monotonic() >= commit_at:
                if await member.commit_if_reachable(done):
                    done = {}
                commit_at = time.monotonic() + COMMIT_EVERY_S
        return False
    finally:
        await reader.close()
        await member.commit(done)
