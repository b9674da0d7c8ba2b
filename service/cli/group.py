"""`oncelog group`: list and describe consumer groups, their members and their lag; move or delete their offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import click

from log.ids import TopicPartition
from service.cli.connect import complete_group, complete_topic, with_cluster
from service.cli.failures import CliError, Exit
from service.cli.output import Output, confirm, output_option, remark, report_option, show, show_one, yes_option
from service.cli.timestamps import parse_moment
from service.cli.topic import choose_partitions
from service.cli.watching import answering, clear, look_again
from service.client.cluster import EARLIEST, LATEST, Cluster, by_topic
from service.client.ends import NO_MARKERS, ends_of
from service.client.failures import ClientFailure, FailureKind, refused
from service.client.groups import GroupWithMembers, commit_offsets, committed_offsets, describe_group, list_groups
from service.wire.messages import DeleteGroupsRequest


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group in a list."""

    group: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class LagRow:
    """How many records a group is behind in one partition: markers of transactions don't count. The lag is unknown
    without a committed offset, and also if the partition's end is unknown because its disk has failed.
    """

    group: str
    topic: str
    partition: int
    committed_offset: int | None
    end_offset: int | None
    lag: int | None
    lag_is: Literal["exact", "at most"] | None
    """At most so many, because markers that the broker does not tell from records are counted, too."""
    member_id: str | None
    client_id: str | None
    host: str | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of a group."""

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[str]


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """One group with its members and its lag."""

    group: str
    state: str
    type: str
    assignor: str
    coordinator: int
    total_lag: int
    members: list[MemberRow]
    partitions: list[LagRow]


@dataclass(frozen=True, slots=True)
class ResetRow:
    """Where a group was and where it is now."""

    group: str
    topic: str
    partition: int
    old_offset: int | None
    new_offset: int


LIST_COLUMNS = ("group", "state", "type")
LAG_COLUMNS = ("group", "topic", "partition", "committed_offset", "end_offset", "lag", "member_id")
LAG_WIDE = ("lag_is", "client_id", "host")
MEMBER_COLUMNS = ("member_id", "instance_id", "client_id", "host", "partitions")
RESET_COLUMNS = ("group", "topic", "partition", "old_offset", "new_offset")


@click.group()
def command() -> None:
    """Look at consumer groups, their lag, and move their offsets."""


@command.command("ls")
@click.option("--state", "states", multiple=True, help="Only groups in this state; can be given again.")
@output_option
@with_cluster
async def list_all(cluster: Cluster, states: Sequence[str], output: Output) -> None:
    """List groups."""
    wanted = {state.lower() for state in states}
    rows = [row for row in await _groups(cluster) if not wanted or row.state.lower() in wanted]
    show(rows, output, columns=LIST_COLUMNS, wide=("protocol_type",))


async def _groups(cluster: Cluster) -> list[GroupLine]:
    return [
        GroupLine(each.group_id, each.group_state, each.group_type, each.protocol_type)
        for each in await list_groups(cluster)
    ]


@command.command("describe")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@output_option
@with_cluster
async def describe(cluster: Cluster, name: str, output: Output) -> None:
    """Show the state, the members and the lag of a group."""
    group = await describe_group(cluster, name)
    lags = await lags_of(cluster, group)
    detail = GroupDetail(
        group=name,
        state=group.state,
        type=group.type,
        assignor=group.assignor,
        coordinator=group.coordinator,
        total_lag=sum(row.lag or 0 for row in lags),
        members=_member_rows(group),
        partitions=lags,
    )
    if output is Output.TSV:
        show(lags, output, columns=LAG_COLUMNS)
        return
    show_one(detail, output, name="group", nested=("members", "partitions"))
    if output in (Output.TABLE, Output.WIDE):
        click.echo()
        show(detail.members, output, columns=MEMBER_COLUMNS)
        click.echo()
        show(lags, output, columns=LAG_COLUMNS[1:], wide=LAG_WIDE)


def _member_rows(group: GroupWithMembers) -> list[MemberRow]:
    return [
        MemberRow(
            group=group.name,
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.host,
            partitions=[str(partition) for partition in sorted(member.partitions)],
        )
        for member in sorted(group.members, key=lambda each: each.member_id)
    ]


async def lags_of(cluster: Cluster, group: GroupWithMembers) -> list[LagRow]:
    """The lag in every partition that the group has committed or reads now."""
    committed = await committed_offsets(cluster, group.name)
    readers = {partition: member for member in group.members for partition in member.partitions}
    existing = []
    for topic in await cluster.metadata(sorted(by_topic([*committed, *readers]))):
        existing += [TopicPartition(topic.name or "", part.partition_index) for part in topic.partitions]
    wanted = sorted(partition for partition in existing if partition in committed or partition in readers)
    ends = await ends_of(cluster, {each: committed.get(each, NO_MARKERS) for each in wanted})
    rows = []
    for partition in wanted:
        offset, reader, end = committed.get(partition), readers.get(partition), ends.get(partition)
        left = None if offset is None or end is None else end.left_from(offset)
        rows.append(
            LagRow(
                group=group.name,
                topic=partition.topic,
                partition=partition.partition,
                committed_offset=offset,
                end_offset=None if end is None else end.high_watermark,
                lag=None if left is None else left.total,
                lag_is=None if left is None else "exact" if left.is_exact else "at most",
                member_id=reader.member_id if reader else None,
                client_id=reader.client_id if reader else None,
                host=reader.host if reader else None,
            )
        )
    return rows


@command.command("members")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@output_option
@with_cluster
async def members(cluster: Cluster, name: str, output: Output) -> None:
    """List the members of a group and what each reads."""
    show(_member_rows(await describe_group(cluster, name)), output, columns=MEMBER_COLUMNS)


@command.command("lag")
@click.argument("names", metavar="[GROUP]...", nargs=-1, shell_complete=complete_group)
@click.option("--fail-above", type=click.IntRange(min=0), metavar="N", help="Exit with 6 when any lag is above N.")
@click.option("--watch", is_flag=True, help="Look again every two seconds until interrupted.")
@output_option
@with_cluster
async def lag(cluster: Cluster, names: Sequence[str], fail_above: int | None, watch: bool, output: Output) -> None:
    """Show how far groups are behind; all groups if none is named."""

    async def look() -> list[str]:
        nodes, notes = await answering(cluster) if watch else (None, [])
        chosen = list(dict.fromkeys(names)) or [each.group_id for each in await list_groups(cluster, nodes)]
        rows = []
        for name in chosen:
            try:
                rows += await lags_of(cluster, await describe_group(cluster, name))
            except ClientFailure as failure:
                if not watch or failure.kind is not FailureKind.UNREACHABLE:
                    raise
                notes.append(f"group {name}: {failure.message}")
        if watch:
            clear(output)
        show(rows, output, columns=LAG_COLUMNS, wide=LAG_WIDE)
        late = [row for row in rows if fail_above is not None and row.lag is not None and row.lag > fail_above]
        if late:
            worst = max(late, key=lambda row: row.lag or 0)
            raise CliError(
                f"{len(late)} partition(s) more than {fail_above} behind, "
                f"the worst {worst.topic} partition {worst.partition} of group {worst.group}: "
                f"{'at most ' if worst.lag_is == 'at most' else ''}{worst.lag}",
                Exit.CONDITION,
            )
        unknown = [row for row in rows if fail_above is not None and row.end_offset is None]
        if unknown:
            where = f"{unknown[0].topic} partition {unknown[0].partition}"
            raise CliError(f"how far {len(unknown)} partition(s) are behind is unknown: the disk of {where} has failed")
        if any(row.lag_is == "at most" for row in rows):
            notes.append("some lags are at most so large (-o wide says which): markers count that can't be told apart")
        return notes

    await look_again(look, every_s=2.0, looks=None if watch else 1)


@command.command("reset")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.option("--to", metavar="earliest|latest|OFFSET|@TIME", help="Where the group shall go on.")
@click.option("--shift", type=int, metavar="N", help="Move by N records from where it stands: -100 reads 100 again.")
@click.option(
    "-t", "--topic", "topics", multiple=True, shell_complete=complete_topic, help="Only this topic; can be given again."
)
@click.option("-p", "--partition", "numbers", type=int, multiple=True, help="Only this partition of the one topic.")
@click.option("--dry-run", is_flag=True, help="Show what would be, change nothing.")
@yes_option
@output_option
@with_cluster
async def reset(
    cluster: Cluster,
    name: str,
    to: str | None,
    shift: int | None,
    topics: Sequence[str],
    numbers: Sequence[int],
    dry_run: bool,
    yes: bool,
    output: Output,
) -> None:
    """Move the committed offsets of a group. Its members must have left.

    Without --topic, the topics are those it has committed. The new offset is kept within what the log holds.
    """
    if not name:
        raise click.BadParameter("a group needs a name", param_hint="GROUP")
    if (to is None) == (shift is None):
        raise click.UsageError("Say where to: --to or --shift, one of them.")
    if numbers and len(topics) != 1:
        raise click.UsageError("--partition needs exactly one --topic.")
    committed = await committed_offsets(cluster, name, settled=shift is not None)
    partitions = await _partitions_to_reset(cluster, name, committed, topics, numbers)
    rows = await _plan(cluster, name, committed, partitions, to=to, shift=shift)
    if not dry_run:
        confirm(f"Move {len(rows)} offset(s) of group {name}?", yes=yes)
        moved = {TopicPartition(row.topic, row.partition): row.new_offset for row in rows}
        code = await commit_offsets(cluster, name, moved)
        if code:
            group = await describe_group(cluster, name)
            if group.members:
                raise CliError(f"group {name} has {len(group.members)} member(s): stop them first")
            raise refused(f"group {name}", code)
    show(rows, output, columns=RESET_COLUMNS)


async def _partitions_to_reset(
    cluster: Cluster,
    group: str,
    committed: Mapping[TopicPartition, int],
    topics: Sequence[str],
    numbers: Sequence[int],
) -> list[TopicPartition]:
    names = list(dict.fromkeys(topics)) or sorted(by_topic(committed))
    if not names:
        raise CliError(f"group {group} has committed nothing: say which --topic", Exit.NOT_FOUND)
    found = []
    for name in names:
        partitions = await cluster.partitions_of(name)
        found += choose_partitions(name, partitions, numbers) if numbers else partitions
    return found


async def _plan(
    cluster: Cluster,
    group: str,
    committed: Mapping[TopicPartition, int],
    partitions: Sequence[TopicPartition],
    *,
    to: str | None,
    shift: int | None,
) -> list[ResetRow]:
    starts = await cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await cluster.list_offsets(dict.fromkeys(partitions, LATEST))
    if shift is not None:
        partitions = [partition for partition in partitions if partition in committed]
        wanted = {partition: committed[partition] + shift for partition in partitions}
    elif to == "earliest":
        wanted = {partition: starts[partition].offset for partition in partitions}
    elif to == "latest":
        wanted = {partition: ends[partition].offset for partition in partitions}
    else:
        assert to is not None
        wanted = await _at(cluster, partitions, to, {partition: each.offset for partition, each in ends.items()})
    return [
        ResetRow(
            group=group,
            topic=partition.topic,
            partition=partition.partition,
            old_offset=committed.get(partition),
            new_offset=min(max(wanted[partition], starts[partition].offset), ends[partition].offset),
        )
        for partition in partitions
    ]


async def _at(
    cluster: Cluster, partitions: Sequence[TopicPartition], to: str, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    if to.isdigit():
        return dict.fromkeys(partitions, int(to))
    if not to.startswith("@"):
        raise click.BadParameter(f"{to!r} is none of earliest, latest, an offset, @TIME", param_hint="--to")
    try:
        moment = parse_moment(to[1:])
    except ValueError:
        raise click.BadParameter(f"{to[1:]!r} is not a time", param_hint="--to") from None
    found = await cluster.list_offsets(dict.fromkeys(partitions, moment))
    # Nothing as late as that: the group waits for what comes next.
    return {partition: each.offset if each.offset >= 0 else ends[partition] for partition, each in found.items()}


@command.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_group)
@yes_option
@report_option
@with_cluster
async def delete(cluster: Cluster, names: Sequence[str], yes: bool, output: Output | None) -> None:
    """Delete groups and their offsets. Their members must have left."""
    chosen = list(dict.fromkeys(names))
    confirm(f"Delete {', '.join(chosen)} and the offsets committed there?", yes=yes)
    known = {row.group: row for row in (await _groups(cluster) if output else [])}
    rows = []
    failure = None
    for name in chosen:
        node = await cluster.coordinator(name)
        response = await cluster.ask(DeleteGroupsRequest(groups_names=[name]), node=node)
        (result,) = response.results
        if result.error_code:
            failure = failure or refused(f"group {name}", result.error_code)
        else:
            remark(f"deleted {name}")
            rows += [known[name]] if name in known else []
    if output:
        show(rows, output, columns=LIST_COLUMNS, wide=("protocol_type",))
    if failure:
        raise failure
