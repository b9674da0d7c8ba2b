"""The table of a group's keys, and the values that hold for one group of the consumer protocol.

Names, types, checks and their messages are Apache Kafka's (4.3). A group's own value wins over the value of the
broker's key that is its synonym. Both lie within the bounds of the broker's configuration.
"""

from collections.abc import Mapping
from typing import Any

from service.settings.broker import Bounded, BrokerConfig
from service.settings.setting import ConfigError, Setting, Synonym, check_room, integer

GROUP_SETTINGS: dict[str, Setting[Any]] = {
    setting.name: setting
    for setting in (
        integer(
            "consumer.session.timeout.ms",
            45000,
            "A member not heard of for so long is out.",
            at_least=1,
            synonyms=(Synonym("group.consumer.session.timeout.ms"),),
        ),
        integer(
            "consumer.heartbeat.interval.ms",
            5000,
            "How often members are told to report. Until they have their partitions: each second, or more often.",
            at_least=1,
            synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
        ),
        integer(
            "consumer.assignment.interval.ms",
            1000,
            "How long an assignment stands before members that come and go cause another. That of a single member "
            "stands until no more members come, at the longest for this time.",
            at_least=0,
            synonyms=(Synonym("group.consumer.assignment.interval.ms"),),
        ),
    )
}


def check_group_config(own: Mapping[str, str], config: BrokerConfig) -> None:
    """Raise `ConfigError` for the first thing wrong with a group's own values, in Kafka's words."""
    for name in own:
        if name not in GROUP_SETTINGS:
            raise ConfigError(f"Unknown group config name: {name}")
    check_room(own)
    parsed = {name: GROUP_SETTINGS[name].parse(value) for name, value in own.items()}
    bounded = _bounded(config)
    for name, value in parsed.items():
        kind = name.removeprefix("consumer.")
        if value < bounded[name].least:
            raise ConfigError(f"{name} must be greater than or equal to group.consumer.min.{kind}")
        if value > bounded[name].most:
            raise ConfigError(f"{name} must be less than or equal to group.consumer.max.{kind}")
    values = {name: default for name, (_, default, _) in bounded.items()} | parsed
    if values["consumer.session.timeout.ms"] <= values["consumer.heartbeat.interval.ms"]:
        raise ConfigError("consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms")


def group_values(own: Mapping[str, str], config: BrokerConfig) -> dict[str, int]:
    """The values that hold for a group. They are bounded again, because the broker's bounds may have changed since the
    group's own values were checked.
    """
    bounded = _bounded(config)
    defaults = {name: default for name, (_, default, _) in bounded.items()}
    values = defaults | {
        name: min(max(int(value), bounded[name].least), bounded[name].most)
        for name, value in own.items()
        if name in bounded  # other keys were stored by another version
    }
    sane = values["consumer.session.timeout.ms"] > values["consumer.heartbeat.interval.ms"]
    return values if sane else defaults


def _bounded(config: BrokerConfig) -> dict[str, Bounded]:
    return {f"consumer.{kind}": bounded for kind, bounded in config.consumer_group_times.items()}
