"""`oncelog broker`: the brokers one by one, what their disks hold, and what was set for each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import click

from service.cli.config_client import BROKER, Owner, describe_configs
from service.cli.connect import with_cluster
from service.cli.failures import CliError, Exit
from service.cli.output import Output, output_option, show, show_one
from service.client.cluster import Cluster
from service.client.failures import ClientFailure, error_name, refused
from service.wire.messages import DescribeClusterBroker, DescribeClusterRequest, DescribeLogDirsRequest


@dataclass(frozen=True, slots=True)
class FolderRow:
    """A data folder of a broker; -1 for a number that the broker can't tell."""

    broker: int
    folder: str
    partitions: int
    size_bytes: int
    usable_bytes: int
    total_bytes: int
    error: str | None


@dataclass(frozen=True, slots=True)
class BrokerShare:
    """A broker and its share of the cluster."""

    broker: int
    address: str | None
    rack: str | None
    controller: bool
    leads: int
    holds: int


@dataclass(frozen=True, slots=True)
class DescribedBroker(BrokerShare):
    """One broker, and the values that were set for it."""

    folders: list[FolderRow]
    settings: Mapping[str, str | None]


@click.group()
def command() -> None:
    """Look at single brokers: their disks, their settings."""


@command.command("list")
@output_option
@with_cluster
async def list_brokers(cluster: Cluster, output: Output) -> None:
    """Show what the data folders of each broker hold, and how much room they have."""
    brokers = await _brokers(cluster)
    found = await asyncio.gather(*(_folders(cluster, broker) for broker in brokers))
    rows = [row for folders in found for row in folders]
    show(
        rows,
        output,
        columns=("broker", "folder", "partitions", "size_bytes", "usable_bytes"),
        wide=("total_bytes", "error"),
    )


@command.command("describe")
@click.argument("broker", type=int)
@output_option
@with_cluster
async def describe(cluster: Cluster, broker: int, output: Output) -> None:
    """Show one broker, its data folders and every setting that is not the default."""
    brokers = await _brokers(cluster)
    if broker not in brokers:
        raise CliError(f"broker {broker} is not in the cluster", Exit.NOT_FOUND)
    partitions = [each for topic in await cluster.metadata(None) for each in topic.partitions]
    set_here = await describe_configs(cluster, Owner(BROKER, str(broker)))
    it = brokers[broker]
    told = await cluster.ask(DescribeClusterRequest())
    row = DescribedBroker(
        broker=broker,
        address=f"{it.host}:{it.port}",
        rack=it.rack,
        controller=broker == told.controller_id,
        leads=sum(each.leader_id == broker for each in partitions),
        holds=sum(broker in each.replica_nodes for each in partitions),
        folders=await _folders(cluster, broker),
        settings={each.name: each.value for each in set_here if each.origin != "default"},
    )
    show_one(row, output, name="broker", nested=("folders", "settings"))
    if output in (Output.TABLE, Output.WIDE):
        click.echo()
        show(row.folders, output, columns=("folder", "partitions", "size_bytes", "usable_bytes"), wide=("error",))
        click.echo()
        for name, value in row.settings.items():
            click.echo(f"{name}={'(hidden)' if value is None else value}")


async def _brokers(cluster: Cluster) -> dict[int, DescribeClusterBroker]:
    await cluster.nodes()  # where they are
    told = await cluster.ask(DescribeClusterRequest())
    return {broker.broker_id: broker for broker in told.brokers}


async def _folders(cluster: Cluster, broker: int) -> list[FolderRow]:
    """The data folders of a broker. A broker that can't be asked has none that we know."""
    try:
        answer = await cluster.ask(DescribeLogDirsRequest(topics=None), node=broker)
    except ClientFailure as failure:
        return [FolderRow(broker, "", -1, -1, -1, -1, failure.message)]
    if answer.error_code:
        raise refused(f"the folders of broker {broker}", answer.error_code)
    return [
        FolderRow(
            broker=broker,
            folder=each.log_dir,
            partitions=sum(len(topic.partitions) for topic in each.topics),
            size_bytes=sum(partition.partition_size for topic in each.topics for partition in topic.partitions),
            usable_bytes=each.usable_bytes,
            total_bytes=each.total_bytes,
            error=error_name(each.error_code) if each.error_code else None,
        )
        for each in answer.results
    ]
