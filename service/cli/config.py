"""`oncelog config`: the settings of a topic, a broker or a group, where their values come from, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from service.cli.connect import complete_group, complete_topic, with_cluster
from service.cli.output import Output, output_option, remark, report_option, show, show_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.cli.config_client import Owner
    from service.client.cluster import Cluster


@click.group()
def command() -> None:
    """Read, set, compare and explain settings."""


def _owner_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--group", metavar="GROUP", shell_complete=complete_group, help="The settings of a group."),
        click.option("--broker", metavar="ID", help="The settings of one broker."),
        click.option("-t", "--topic", metavar="TOPIC", shell_complete=complete_topic, help="The settings of a topic."),
    ):
        function = option(function)
    return function


async def _owner(cluster: Cluster, topic: str | None, broker: str | None, group: str | None, *, reading: bool) -> Owner:
    """The owner that the options name. Without one: all brokers for a change, the first broker that answers for a
    question.
    """
    from service.cli import config_client

    if sum(each is not None for each in (topic, broker, group)) > 1:
        raise click.UsageError("Only one of --topic, --broker and --group.")
    if topic is not None:
        return config_client.Owner(config_client.TOPIC, topic)
    if group is not None:
        return config_client.Owner(config_client.GROUP, group)
    if reading:
        nodes = [str(node) for node in await cluster.nodes()]
        if broker and broker not in nodes:
            from service.cli.failures import CliError, Exit

            raise CliError(f"broker {broker} is not in the cluster", Exit.NOT_FOUND)
        broker = nodes[0] if broker is None else broker
    return config_client.Owner(config_client.BROKER, broker or "")


@command.command("get")
@click.argument("keys", nargs=-1)
@_owner_options
@output_option
@with_cluster
async def get(
    cluster: Cluster, keys: Sequence[str], topic: str | None, broker: str | None, group: str | None, output: Output
) -> None:
    """Show settings, all or the KEYS named, and where each value comes from."""
    from service.cli.config_client import SETTING_COLUMNS, SETTING_WIDE, describe_configs
    from service.cli.failures import CliError, Exit

    owner = await _owner(cluster, topic, broker, group, reading=True)
    rows = await describe_configs(cluster, owner, keys)
    missing = [key for key in keys if key not in {row.name for row in rows}]
    show(rows, output, columns=SETTING_COLUMNS, wide=SETTING_WIDE)
    if missing:
        raise CliError(f"{owner} has no setting {', '.join(missing)}", Exit.NOT_FOUND)


@command.command("diff")
@_owner_options
@output_option
@with_cluster
async def diff(cluster: Cluster, topic: str | None, broker: str | None, group: str | None, output: Output) -> None:
    """Show only the settings that differ from their defaults."""
    from service.cli.config_client import describe_configs

    owner = await _owner(cluster, topic, broker, group, reading=True)
    rows = [row for row in await describe_configs(cluster, owner) if row.origin != "default"]
    show(rows, output, columns=("name", "value", "default", "origin"))


@command.command("set")
@click.argument("settings", nargs=-1, metavar="KEY=VALUE...")
@click.option(
    "-d", "--delete", "removed", multiple=True, metavar="KEY", help="Take a setting back; can be given again."
)
@click.option("--dry-run", is_flag=True, help="Only ask the broker whether it would.")
@_owner_options
@report_option
@with_cluster
async def set_configs(
    cluster: Cluster,
    settings: Sequence[str],
    removed: Sequence[str],
    dry_run: bool,
    topic: str | None,
    broker: str | None,
    group: str | None,
    output: Output | None,
) -> None:
    """Change settings of a topic, a group, one broker or, if none is named, of all brokers."""
    from service.cli.config_client import (
        SETTING_COLUMNS,
        SETTING_WIDE,
        KeyValue,
        alter_configs,
        describe_configs,
        parse_settings,
        warn_of_unknown,
    )

    changes = [*parse_settings(settings), *(KeyValue(key, None) for key in removed)]
    if not changes:
        raise click.UsageError("Nothing to change: give KEY=VALUE or --delete KEY.")
    owner = await _owner(cluster, topic, broker, group, reading=False)
    await alter_configs(cluster, owner, changes, validate_only=dry_run)
    warn_of_unknown(owner, changes)
    if output:
        rows = await describe_configs(cluster, owner, [change.key for change in changes])
        show(rows, output, columns=SETTING_COLUMNS, wide=SETTING_WIDE)
    remark(f"{owner}: {'would change' if dry_run else 'changed'} {', '.join(change.key for change in changes)}")


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from service.cli.settings_docs import all_names

    return [name for name in all_names() if name.startswith(incomplete)]


@command.command("explain")
@click.argument("keys", nargs=-1, required=True, shell_complete=_complete_key)
@output_option
def explain_keys(keys: Sequence[str], output: Output) -> None:
    """Say what settings mean. No broker is asked."""
    from service.cli.failures import CliError, Exit
    from service.cli.settings_docs import explain, similar

    found = []
    for key in keys:
        explanations = explain(key)
        if not explanations:
            meant = similar(key)
            hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
            raise CliError(f"there is no setting {key}{hint}", Exit.NOT_FOUND)
        found += explanations
    if output in (Output.TABLE, Output.WIDE):
        for position, each in enumerate(found):
            if position:
                click.echo()
            show_one(each, output, name="name")
        return
    show(found, output, columns=("name", "belongs_to", "status", "type", "default", "valid", "meaning"))


@command.command("docs")
def docs() -> None:
    """Print the page of all settings, in Markdown."""
    from service.cli.settings_docs import document

    click.echo(document(), nl=False)
