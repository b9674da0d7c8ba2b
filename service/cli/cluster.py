"""`oncelog cluster`: the brokers, what is wrong, moving what brokers hold, and leadership back to where it belongs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import click

from service.cli.broker import BrokerShare
from service.cli.connect import with_cluster
from service.cli.failures import CliError, Exit
from service.cli.moving import carry_out, lead_by_first, racks, spread, under_way, without
from service.cli.output import Output, output_option, remark, show, yes_option
from service.client.cluster import Cluster
from service.wire.messages import DescribeClusterRequest


@dataclass(frozen=True, slots=True)
class BrokerRow(BrokerShare):
    """A broker, its share of the cluster, and what of it is not as it should be."""

    out_of_sync: int
    eligible: int
    prefers: int


COLUMNS = ("broker", "address", "controller", "leads", "holds", "out_of_sync", "eligible", "prefers")


class StatusByDefault(click.Group):
    """`oncelog cluster -b …` is `oncelog cluster status -b …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["status", *args]
        return super().parse_args(ctx, args)


@click.group(cls=StatusByDefault)
def command() -> None:
    """Look at the brokers of a cluster, and move what they hold."""


@command.command("status")
@output_option
@with_cluster
async def status(cluster: Cluster, output: Output) -> None:
    """Show the brokers, the controller, and what is not in sync, not led or not where it belongs."""
    told = await cluster.ask(DescribeClusterRequest())
    topics = await cluster.metadata(None)
    partitions = [each for topic in topics for each in topic.partitions]
    eligible = await cluster.eligible(
        topic.name
        for topic in topics
        if topic.name and any(len(each.isr_nodes) < len(each.replica_nodes) for each in topic.partitions)
    )
    gone = await away(cluster)
    there = {broker.broker_id: broker for broker in told.brokers}
    rows = [
        BrokerRow(
            broker=node,
            address=f"{there[node].host}:{there[node].port}" if node in there else None,
            rack=there[node].rack if node in there else None,
            controller=node == told.controller_id,
            leads=sum(each.leader_id == node for each in partitions),
            holds=sum(node in each.replica_nodes for each in partitions),
            out_of_sync=sum(node in each.replica_nodes and node not in each.isr_nodes for each in partitions),
            eligible=sum(node in each for each in eligible),
            prefers=sum(bool(each.replica_nodes) and each.replica_nodes[0] == node for each in partitions),
        )
        for node in (*there, *sorted(gone))
    ]
    show(rows, output, columns=COLUMNS, wide=("rack",))
    lacking = sum(len(each.isr_nodes) < len(each.replica_nodes) for each in partitions)
    offline = sum(each.leader_id < 0 for each in partitions)
    elsewhere = sum(each.leader_id >= 0 and each.leader_id != each.replica_nodes[0] for each in partitions)
    moving = len(await under_way(cluster))
    remark(
        f"{len(partitions)} partitions: {lacking} under-replicated, {offline} offline, {elsewhere} led elsewhere than"
        f" preferred, {moving} being moved"
    )
    for node in sorted(gone):
        remark(f"broker {node} is away")


async def away(cluster: Cluster) -> dict[int, int]:
    """The brokers that are not there, and how many replicas each of them holds."""
    told = await cluster.ask(DescribeClusterRequest())
    there = {broker.broker_id for broker in told.brokers}
    partitions = [each for topic in await cluster.metadata(None) for each in topic.partitions]
    return Counter(node for each in partitions for node in each.replica_nodes if node not in there)


@command.command("drain")
@click.argument("brokers", type=int, nargs=-1, required=True)
@yes_option
@output_option
@with_cluster
async def drain(cluster: Cluster, brokers: Sequence[int], yes: bool, output: Output) -> None:
    """Move everything that BROKERS hold to the others, the plan first. They can be stopped for good then.

    Partitions without a leader stay, because nobody can copy them, and the command fails.
    """
    topics = await cluster.metadata(None)
    alive = await racks(cluster)
    if not [broker for broker in alive if broker not in brokers]:
        raise CliError("there is no other broker to move partitions to", Exit.USAGE)
    # A broker that is down may be drained, too, if others in sync hold what it held.
    known = {*alive, *(broker for topic in topics for each in topic.partitions for broker in each.replica_nodes)}
    for broker in brokers:
        if broker not in known:
            raise CliError(f"broker {broker} is not in the cluster, and holds nothing", Exit.NOT_FOUND)
    await carry_out(cluster, without(brokers, topics, alive), output, yes=yes)


@command.command("spread")
@yes_option
@output_option
@with_cluster
async def spread_out(cluster: Cluster, yes: bool, output: Output) -> None:
    """Move partitions to brokers that hold fewer, the plan first: a new broker gets its share so.

    It levels how many partitions of each topic a broker holds, and how many it is the first replica of.
    """
    topics, alive = await cluster.metadata(None), await racks(cluster)
    await carry_out(cluster, spread(topics, alive, moving=await under_way(cluster)), output, yes=yes)


@command.command("rebalance")
@yes_option
@output_option
@with_cluster
async def rebalance(cluster: Cluster, yes: bool, output: Output) -> None:
    """Let every partition be led by its first replica again, where that is in sync, the plan first.

    Only leaders change. `oncelog cluster spread` moves copies, to a new broker, too.
    """
    await lead_by_first(cluster, output, yes=yes)
