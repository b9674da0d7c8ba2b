"""Settings on the wire: their owners, their values and sources, and how to change them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from service.cli.output import visible
from service.client.cluster import Cluster
from service.client.failures import refused
from service.settings.group import GROUP_SETTINGS
from service.settings.topic import TOPIC_SETTINGS
from service.settings.unhonoured import is_known
from service.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

TOPIC, BROKER, GROUP = 2, 4, 32
_SET, _DELETE = 0, 1
_DEFAULT = 5

_ORIGINS = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "file",
    5: "default",
    6: "broker-logger",
    7: "client-metrics",
    8: "group",
}
_TYPES = {1: "boolean", 2: "string", 3: "int", 4: "short", 5: "long", 6: "double", 7: "list", 8: "class", 9: "password"}


class Owner(NamedTuple):
    """The owner of settings, as the wire names it."""

    kind: int
    name: str

    def __str__(self) -> str:
        word = {TOPIC: "topic", BROKER: "broker", GROUP: "group"}[self.kind]
        return f"{word} {self.name}" if self.name else "the cluster"


class KeyValue(NamedTuple):
    """A setting and its new value; None removes the value."""

    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting of an owner: its value, and where that comes from."""

    name: str
    value: str | None
    origin: str
    default: str | None
    type: str
    read_only: bool
    sensitive: bool


SETTING_COLUMNS = ("name", "value", "origin")
SETTING_WIDE = ("default", "type", "read_only")


def settings_of_topic(topic: str) -> Owner:
    return Owner(TOPIC, topic)


def parse_settings(texts: Iterable[str]) -> list[KeyValue]:
    """`key=value` of the command line; the value may hold further equals signs."""
    found = []
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
        found.append(KeyValue(key.strip(), value.strip()))
    return found


async def describe_configs(cluster: Cluster, owner: Owner, keys: Sequence[str] = ()) -> list[SettingRow]:
    """The settings of `owner`, all or those named, in the order of their names."""
    resource = DescribeConfigsResource(
        resource_type=owner.kind, resource_name=owner.name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    response = await cluster.ask(request, node=await _who_knows(cluster, owner))
    (result,) = response.results
    if result.error_code:
        raise refused(str(owner), result.error_code, result.error_message)
    return sorted(map(_setting_row, result.configs), key=lambda row: row.name)


_MILLISECONDS = {".minutes": 60_000, ".hours": 3_600_000}


def _setting_row(config: DescribeConfigsResourceResult) -> SettingRow:
    return SettingRow(
        name=config.name,
        value=config.value,
        origin=_ORIGINS.get(config.config_source, str(config.config_source)),
        default=_default_of(config),
        type=_TYPES.get(config.config_type, "string"),
        read_only=config.read_only,
        sensitive=config.is_sensitive,
    )


def _default_of(config: DescribeConfigsResourceResult) -> str | None:
    """The default in the setting's own unit (retention.ms is told in hours). Brokers do not tell a default that another
    value hides; our table knows it.
    """
    for synonym in config.synonyms:
        if synonym.source == _DEFAULT and synonym.value is not None:
            unit = _MILLISECONDS.get(synonym.name[synonym.name.rfind(".") :], 1)
            return str(int(synonym.value) * unit) if unit != 1 and config.name.endswith(".ms") else synonym.value
    known = TOPIC_SETTINGS.get(config.name) or GROUP_SETTINGS.get(config.name)
    return known.default_text if known is not None else None


def warn_of_unknown(owner: Owner, changes: Iterable[KeyValue]) -> None:
    """Say which keys do nothing. Brokers take and keep any key, as Kafka does: a misspelt one too."""
    for change in changes:
        known = {TOPIC: TOPIC_SETTINGS, GROUP: GROUP_SETTINGS}.get(owner.kind)
        if not (is_known(change.key) if known is None else change.key in known):
            from service.cli.settings_docs import similar

            meant = similar(change.key)
            hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
            click.echo(f"oncelog: {visible(change.key)} is no setting of {owner}, and does nothing{hint}", err=True)


async def alter_configs(
    cluster: Cluster, owner: Owner, changes: Sequence[KeyValue], *, validate_only: bool = False
) -> None:
    """Make the changes, all or none."""
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=owner.kind,
        resource_name=owner.name,
        configs=[
            IncrementalAlterConfigsRequestAlterableConfig(
                name=each.key, config_operation=_DELETE if each.value is None else _SET, value=each.value
            )
            for each in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    response = await cluster.ask(request, node=await _who_knows(cluster, owner))
    for result in response.responses:
        if result.error_code:
            raise refused(str(owner), result.error_code, result.error_message)


async def _who_knows(cluster: Cluster, owner: Owner) -> int | None:
    """The broker that must be asked: a broker's own settings are known to that broker only."""
    if owner.kind == BROKER and owner.name.isdigit():
        nodes = await cluster.nodes()
        return int(owner.name) if int(owner.name) in nodes else None
    return None
