"""`oncelog topic`: list, describe, create, alter and delete topics, add partitions, drop old records, move replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from log.ids import TopicPartition, format_topic_id
from service.cli.config_client import (
    SETTING_COLUMNS,
    SETTING_WIDE,
    KeyValue,
    alter_configs,
    describe_configs,
    parse_settings,
    settings_of_topic,
    warn_of_unknown,
)
from service.cli.connect import complete_topic, with_cluster
from service.cli.failures import CliError, Exit
from service.cli.moving import ReplicaMove, carry_out, elected, election_plan, racks, with_factor
from service.cli.output import Output, confirm, output_option, remark, report_option, show, show_one, yes_option
from service.cli.timestamps import parse_moment
from service.client.cluster import EARLIEST, LATEST, RETRY_PAUSE_S, Cluster, Deadline, by_topic
from service.client.failures import refused
from service.settings.setting import MAX_INT
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from service.wire.messages import MetadataResponsePartition


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic in a list."""

    name: str
    partitions: int
    replication_factor: int
    internal: bool
    id: str


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition of a described topic."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """One topic with its partitions and the settings that differ from the cluster's."""

    name: str
    id: str
    internal: bool
    replication_factor: int
    settings: dict[str, str | None]
    partitions: list[PartitionRow]


@dataclass(frozen=True, slots=True)
class TrimRow:
    """Where a partition begins after older records were dropped."""

    topic: str
    partition: int
    start_offset: int


LIST_COLUMNS = ("name", "partitions", "replication_factor")
PARTITION_COLUMNS = ("partition", "leader", "leader_epoch", "replicas", "isr", "start_offset", "end_offset")


@click.group()
def command() -> None:
    """List, create, change and delete topics."""


def _row(topic: MetadataResponseTopic) -> TopicRow:
    return TopicRow(
        name=topic.name or "",
        partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replica_nodes) if topic.partitions else 0,
        internal=topic.is_internal,
        id=format_topic_id(topic.topic_id),
    )


@command.command("ls")
@click.option("--internal", is_flag=True, help="The broker's own topics too.")
@output_option
@with_cluster
async def list_topics(cluster: Cluster, internal: bool, output: Output) -> None:
    """List topics."""
    rows = [_row(topic) for topic in await cluster.metadata(None) if internal or not topic.is_internal]
    rows.sort(key=lambda row: row.name)
    show(rows, output, columns=LIST_COLUMNS, wide=("internal", "id"))


@command.command("describe")
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topic)
@output_option
@with_cluster
async def describe_topics(cluster: Cluster, topics: Sequence[str], output: Output) -> None:
    """Show leaders, replicas, offsets and settings of topics."""
    details = [await _describe(cluster, name) for name in dict.fromkeys(topics)]
    if output is Output.TSV:
        rows = [row for detail in details for row in detail.partitions]
        show(rows, output, columns=("topic", *PARTITION_COLUMNS))
        return
    if output not in (Output.TABLE, Output.WIDE):
        show(details, output, columns=("name",))
        return
    for position, detail in enumerate(details):
        if position:
            click.echo()
        show_one(detail, output, name="name", nested=("partitions",))
        click.echo()
        show(detail.partitions, output, columns=PARTITION_COLUMNS, wide=("offline",))


async def _describe(cluster: Cluster, name: str) -> TopicDetail:
    (topic,) = await cluster.metadata([name])
    if topic.error_code:
        raise refused(f"topic {name}", topic.error_code)
    led = [TopicPartition(name, part.partition_index) for part in topic.partitions if not part.error_code]
    starts = await cluster.list_offsets(dict.fromkeys(led, EARLIEST), all_of_them=False)
    ends = await cluster.list_offsets(dict.fromkeys(led, LATEST), all_of_them=False)

    def row(part: MetadataResponsePartition) -> PartitionRow:
        partition = TopicPartition(name, part.partition_index)
        return PartitionRow(
            topic=name,
            partition=part.partition_index,
            leader=part.leader_id,
            leader_epoch=part.leader_epoch,
            replicas=list(part.replica_nodes),
            isr=list(part.isr_nodes),
            offline=list(part.offline_replicas),
            # No broker can tell this of a partition that has no leader or whose disk has failed.
            start_offset=starts[partition].offset if partition in starts else -1,
            end_offset=ends[partition].offset if partition in ends else -1,
        )

    settings = await describe_configs(cluster, settings_of_topic(name))
    about = _row(topic)
    return TopicDetail(
        name=name,
        id=about.id,
        internal=about.internal,
        replication_factor=about.replication_factor,
        settings={each.name: each.value for each in settings if each.origin == "topic"},
        partitions=sorted(map(row, topic.partitions), key=lambda each: each.partition),
    )


@command.command("create")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    *("-p", "--partitions"),
    type=click.IntRange(-1, MAX_INT),
    default=-1,
    help="How many partitions; the broker's num.partitions if not given.",
)
@click.option(
    *("-r", "--replicas", "--replication-factor", "replicas"),
    type=click.IntRange(-1, 2**15 - 1),
    default=-1,
    help="Copies of each; the broker's default.replication.factor if not given.",
)
@click.option("-c", "--config", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the topic.")
@click.option("--if-not-exists", is_flag=True, help="Say nothing of topics that exist already.")
@click.option("--dry-run", is_flag=True, help="Only ask the broker whether it would.")
@output_option
@with_cluster
async def create_topics(
    cluster: Cluster,
    names: Sequence[str],
    partitions: int,
    replicas: int,
    settings: Sequence[str],
    if_not_exists: bool,
    dry_run: bool,
    output: Output,
) -> None:
    """Create topics."""
    configs = [CreatableTopicConfig(name=each.key, value=each.value) for each in parse_settings(settings)]
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=list(configs))
            for name in dict.fromkeys(names)
        ],
        timeout_ms=int(cluster.timeout_s * 1000),
        validate_only=dry_run,
    )
    response = await cluster.ask(request, node=await cluster.controller())
    failure = None
    rows = []
    for topic in response.topics:
        if topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            continue
        if topic.error_code:
            failure = failure or refused(f"topic {topic.name}", topic.error_code, topic.error_message)
            continue
        identity = format_topic_id(topic.topic_id)
        rows.append(TopicRow(topic.name, topic.num_partitions, topic.replication_factor, internal=False, id=identity))
    if not dry_run:
        await _wait_until_known(cluster, [row.name for row in rows])
    show(rows, output, columns=LIST_COLUMNS, wide=("id",))
    if failure:
        raise failure


async def _wait_until_known(cluster: Cluster, names: Sequence[str]) -> None:
    """Creation is over when the leaders are known, because the next line of a script may produce."""
    deadline = Deadline(cluster.timeout_s)
    while names and not deadline.passed():
        topics = await cluster.metadata(names)
        if not any(topic.error_code or any(part.error_code for part in topic.partitions) for topic in topics):
            return
        await asyncio.sleep(RETRY_PAUSE_S)


@command.command("alter")
@click.argument("topic", shell_complete=complete_topic)
@click.option("-c", "--config", "settings", multiple=True, metavar="KEY=VALUE", help="Set this.")
@click.option("-d", "--delete-config", "removed", multiple=True, metavar="KEY", help="Back to the cluster's value.")
@report_option
@with_cluster
async def alter_topic(
    cluster: Cluster, topic: str, settings: Sequence[str], removed: Sequence[str], output: Output | None
) -> None:
    """Change a topic's settings."""
    changes = [*parse_settings(settings), *(KeyValue(key, None) for key in removed)]
    if not changes:
        raise click.UsageError("Nothing to change: give --config KEY=VALUE or --delete-config KEY.")
    await alter_configs(cluster, settings_of_topic(topic), changes)
    warn_of_unknown(settings_of_topic(topic), changes)
    if output:
        rows = await describe_configs(cluster, settings_of_topic(topic), [each.key for each in changes])
        show(rows, output, columns=SETTING_COLUMNS, wide=SETTING_WIDE)
    remark(f"{topic}: changed {len(changes)} setting{'s' if len(changes) > 1 else ''}")


@command.command("delete")
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topic)
@yes_option
@report_option
@with_cluster
async def delete_topics(cluster: Cluster, topics: Sequence[str], yes: bool, output: Output | None) -> None:
    """Delete topics and every record in them."""
    names = list(dict.fromkeys(topics))
    confirm(f"Delete {', '.join(names)} and every record in there?", yes=yes)
    rows = {topic.name: _row(topic) for topic in (await cluster.metadata(names) if output else [])}
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        topic_names=names,
        timeout_ms=int(cluster.timeout_s * 1000),
    )
    response = await cluster.ask(request, node=await cluster.controller())
    failures = [
        refused(f"topic {each.name}", each.error_code, each.error_message)
        for each in response.responses
        if each.error_code
    ]
    deleted = [each.name for each in response.responses if not each.error_code]
    for name in deleted:
        remark(f"deleted {name}")
    if output:
        show([rows[name] for name in deleted], output, columns=LIST_COLUMNS, wide=("id",))
    if failures:
        raise failures[0]


@command.command("partitions")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("count", type=click.IntRange(1, MAX_INT))
@click.option("--dry-run", is_flag=True, help="Only ask the broker whether it would.")
@report_option
@with_cluster
async def add_partitions(cluster: Cluster, topic: str, count: int, dry_run: bool, output: Output | None) -> None:
    """Raise the number of partitions of TOPIC to COUNT.

    Keys that were in one partition may continue in another, as in Kafka.
    """
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
        timeout_ms=int(cluster.timeout_s * 1000),
        validate_only=dry_run,
    )
    response = await cluster.ask(request, node=await cluster.controller())
    for each in response.results:
        if each.error_code:
            raise refused(f"topic {each.name}", each.error_code, each.error_message)
    if output and not dry_run:
        await _wait_until_known(cluster, [topic])
        show([_row(await cluster.topic(topic))], output, columns=LIST_COLUMNS, wide=("id",))
    remark(f"{topic}: {count} partitions" + (" would be fine" if dry_run else ""))


@command.command("trim")
@click.argument("topic", shell_complete=complete_topic)
@click.option("-p", "--partition", "chosen", type=int, multiple=True, help="Only this partition; can be given again.")
@click.option("--before", required=True, metavar="OFFSET|@TIME|end", help="Drop the records before this.")
@yes_option
@output_option
@with_cluster
async def trim_topic(
    cluster: Cluster, topic: str, chosen: Sequence[int], before: str, yes: bool, output: Output
) -> None:
    """Drop the oldest records of TOPIC.

    A time is RFC 3339 (@2026-11-21T13:46:00Z) or milliseconds since 1970 (@1763732760123).
    """
    partitions = await cluster.partitions_of(topic)
    if chosen:
        partitions = choose_partitions(topic, partitions, chosen)
    cuts = await _cuts(cluster, partitions, before)
    confirm(f"Drop every record before {before} in {len(cuts)} partition(s) of {topic}?", yes=yes)
    rows = []
    for node, led in (await cluster.by_leader(cuts)).items():
        topics = [
            DeleteRecordsTopic(
                name=name,
                partitions=[DeleteRecordsPartition(partition_index=each.partition, offset=cuts[each]) for each in of],
            )
            for name, of in by_topic(led).items()
        ]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=int(cluster.timeout_s * 1000))
        response = await cluster.ask(request, node=node)
        for answer in response.topics[0].partitions:
            if answer.error_code:
                raise refused(f"{topic} partition {answer.partition_index}", answer.error_code)
            rows.append(TrimRow(topic, answer.partition_index, answer.low_watermark))
    rows.sort(key=lambda row: row.partition)
    show(rows, output, columns=("topic", "partition", "start_offset"))


MADE_WHEN = {
    "__consumer_offsets": " yet: it is made with the first group",
    "__transaction_state": " yet: it is made with the first transaction",
    "__http_idempotency": " yet: it is made with the first Idempotency-Key",
}


@command.command("reassign")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic)
@click.option(
    "--replication-factor", "--replicas", type=click.IntRange(min=1), help="So many replicas of each partition."
)
@click.option("--brokers", metavar="ID,ID", help="These brokers hold every partition; they take turns in leading.")
@yes_option
@output_option
@with_cluster
async def reassign_topic(
    cluster: Cluster,
    topics: Sequence[str],
    replication_factor: int | None,
    brokers: str | None,
    yes: bool,
    output: Output,
) -> None:
    """Change which brokers hold these topics; the plan is shown first. Returns when all is moved.

    Internal topics that were made while there was one broker get their copies so: oncelog topic reassign
    __consumer_offsets __transaction_state __http_idempotency --replication-factor 3. One that was not made yet is left
    out.
    """
    if (replication_factor is None) == (brokers is None):
        told = "not both: each broker that is named holds a replica" if brokers is not None else "one of them"
        raise click.UsageError(f"Say --replication-factor or --brokers, {told}.")
    everybody = await cluster.metadata(None)
    names = list(dict.fromkeys(topics))
    there = {each.name for each in everybody}
    if missing := [name for name in names if name not in there]:
        told = "; ".join(f"topic {name} does not exist{MADE_WHEN.get(name, '')}" for name in missing)
        if len(missing) == len(names) or not MADE_WHEN.keys() >= set(missing):
            raise CliError(told, Exit.NOT_FOUND)
        click.echo(told, err=True)  # it will be made with as many copies as there can be then
    described = [await cluster.topic(name) for name in names if name in there]
    alive = await racks(cluster)
    if replication_factor is not None:
        moves = with_factor(described, replication_factor, everybody, alive)
    else:
        moves = [move for topic in described for move in _taking_turns(topic, brokers or "", alive)]
    await carry_out(cluster, moves, output, yes=yes)


def _taking_turns(topic: MetadataResponseTopic, brokers: str, alive: Container[int]) -> list[ReplicaMove]:
    try:
        ids = [int(broker) for broker in brokers.split(",")]
    except ValueError:
        raise click.BadParameter(f"{brokers!r} is no list of broker ids", param_hint="--brokers") from None
    if len(set(ids)) < len(ids):
        raise click.BadParameter(f"{brokers!r} names a broker twice", param_hint="--brokers")
    for broker in ids:
        if broker not in alive:
            raise CliError(f"broker {broker} is not in the cluster", Exit.NOT_FOUND)
    moves = []
    for each in topic.partitions:
        turn = each.partition_index % len(ids)
        target = ids[turn:] + ids[:turn]
        if target != list(each.replica_nodes):
            moves.append(ReplicaMove(topic.name or "", each.partition_index, list(each.replica_nodes), target))
    return moves


@command.command("elect")
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "--unclean", is_flag=True, help="Where no replica in sync can lead, let any live one. What it lacks is lost."
)
@click.option("-p", "--partition", "chosen", type=int, multiple=True, help="Only this partition; can be given again.")
@yes_option
@output_option
@with_cluster
async def elect_leaders(
    cluster: Cluster, topic: str, unclean: bool, chosen: tuple[int, ...], yes: bool, output: Output
) -> None:
    """Let the first replicas lead TOPIC again. With --unclean: let any live replica lead where none in sync can."""
    (described,) = await cluster.metadata([topic])
    if described.error_code:
        raise refused(f"topic {topic}", described.error_code)
    partitions = [TopicPartition(topic, each.partition_index) for each in described.partitions]
    if chosen:
        partitions = choose_partitions(topic, partitions, chosen)
    if not yes:
        plan = election_plan(described, partitions, await racks(cluster), unclean=unclean)
        for line in plan:
            click.echo(line, err=True)
        if unclean:
            confirm(f"Elect leaders of {topic} that may lack records, which are lost then?", yes=False)
        elif plan:
            confirm(f"Let {len(plan)} partition(s) of {topic} be led by their first replica?", yes=False)
    rows = await elected(cluster, partitions, unclean=unclean)
    show(rows, output, columns=("topic", "partition", "outcome"))


def choose_partitions(topic: str, partitions: Sequence[TopicPartition], chosen: Sequence[int]) -> list[TopicPartition]:
    """The chosen partitions of a topic. A number that the topic does not have ends the command."""
    wanted = [TopicPartition(topic, number) for number in dict.fromkeys(chosen)]
    for each in wanted:
        if each not in partitions:
            raise CliError(f"topic {topic} has no partition {each.partition}", Exit.NOT_FOUND)
    return wanted


async def _cuts(cluster: Cluster, partitions: Sequence[TopicPartition], before: str) -> dict[TopicPartition, int]:
    if before == "end":
        return dict.fromkeys(partitions, -1)  # the wire's word for "all that is readable"
    if before.startswith("@"):
        try:
            moment = parse_moment(before[1:])
        except ValueError:
            raise click.BadParameter(f"{before[1:]!r} is not a time", param_hint="--before") from None
        found = await cluster.list_offsets(dict.fromkeys(partitions, moment))
        # No record is at or after the time: all are before it.
        return {partition: answer.offset for partition, answer in found.items()}
    if not before.isdigit():
        raise click.BadParameter(f"{before!r} is neither an offset nor @TIME nor 'end'", param_hint="--before")
    for partition, end in (await cluster.list_offsets(dict.fromkeys(partitions, LATEST))).items():
        if int(before) > end.offset:  # checked before anything is removed from any partition
            raise CliError(f"{partition.topic} partition {partition.partition} ends at {end.offset}", Exit.NOT_FOUND)
    return dict.fromkeys(partitions, int(before))
