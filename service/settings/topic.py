"""The table of a topic's keys, and the values that hold for one topic.

Names, types, defaults and checks are Apache Kafka's (4.3), and so is the order of layers: a topic's own value, else the
value of the broker's key that is its synonym (dynamic before static), else the default.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from enum import IntEnum
from itertools import dropwhile
from typing import Any, NamedTuple

from log.config import LogConfig
from service.settings.broker import KNOWN_SETTINGS, BrokerConfig
from service.settings.broker_table import BROKER_SETTINGS, COMPRESSION_TYPES, check_gzip_level
from service.settings.setting import (
    MAX_LONG,
    ConfigError,
    ConfigType,
    Setting,
    Status,
    Synonym,
    boolean,
    check_room,
    double,
    integer,
    invalid,
    listing,
    long,
    text,
)
from service.settings.unhonoured import NO_EFFECT_SETTINGS

_HOUR_MS = 3_600_000
SEGMENT_BYTES_MIN = 1 << 20
INDEX_INTERVAL_BYTES_MOST = 1 << 16
"""A read walks over the headers of the batches between two entries: a thousand small ones take 0.3 ms, and those of a
megabyte 4 ms, for each partition of a Fetch. Kafka sets no bound, so a larger value is taken and shown, but not used.
"""
INDEX_ENTRIES_MOST = 1 << 18
"""So many entries a whole segment has with Kafka's defaults. They are written at once when it is sealed: five times as
many took 75 ms.
"""
_THROTTLED = re.compile(r"[0-9]+:[0-9]+(?:,[0-9]+:[0-9]+)*", re.ASCII)
LONGEST_CHOICE = 1_000
"""The longest value of a list of which each item is one of a few. It is read again for each partition of the topic."""


def _broker(*names: str) -> tuple[Synonym, ...]:
    factors = {"hours": _HOUR_MS, "minutes": 60_000}
    return tuple(Synonym(name, factors.get(name.rpartition(".")[2], 1)) for name in names)


def _check_throttled(name: str, value: tuple[str, ...]) -> None:
    if value not in ((), ("*",)) and not _THROTTLED.fullmatch(",".join(value)):
        raise invalid(
            name,
            f"[{', '.join(value)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


_NO_TIERS = "Accepted without effect: there is no tiered storage."
_THROTTLED_REPLICAS = (
    "Replicas (partition:broker,…, or * for all) that are copied no faster than their broker's "
    "{}.replication.throttled.rate as long as they are not in sync."
)

TOPIC_SETTINGS: dict[str, Setting[Any]] = {
    setting.name: setting
    for setting in (
        listing(
            "cleanup.policy",
            ("delete",),
            "delete: old segments go by time and size; compact: the newest record of every key stays; both may "
            "be named.",
            one_of=("compact", "delete"),
            synonyms=_broker("log.cleanup.policy"),
        ),
        integer(
            "compression.gzip.level",
            -1,
            "gzip's level where compression.type is gzip; -1 is the codec's own default.",
            also=check_gzip_level,
            synonyms=_broker("compression.gzip.level"),
        ),
        integer(
            "compression.lz4.level",
            9,
            "lz4's level where compression.type is lz4.",
            at_least=1,
            at_most=17,
            synonyms=_broker("compression.lz4.level"),
        ),
        text(
            "compression.type",
            "producer",
            "How batches are stored: as the producer compressed them (producer), or recompressed with the codec named.",
            one_of=COMPRESSION_TYPES,
            synonyms=_broker("compression.type"),
        ),
        integer(
            "compression.zstd.level",
            3,
            "zstd's level where compression.type is zstd.",
            at_least=-131072,
            at_most=22,
            synonyms=_broker("compression.zstd.level"),
        ),
        long(
            "delete.retention.ms",
            86400000,
            "How long a compacted topic keeps tombstones, so that readers see the deletion.",
            at_least=0,
            synonyms=_broker("log.cleaner.delete.retention.ms"),
        ),
        long(
            "file.delete.delay.ms",
            60000,
            f"Accepted without effect: {NO_EFFECT_SETTINGS['log.segment.delete.delay.ms'].doc}",
            at_least=0,
            synonyms=_broker("log.segment.delete.delay.ms"),
            status=Status.NO_EFFECT,
        ),
        long(
            "flush.messages",
            MAX_LONG,
            "A partition is fsynced after so many records, whatever log.durability says.",
            at_least=1,
            synonyms=_broker("log.flush.interval.messages"),
        ),
        long(
            "flush.ms",
            MAX_LONG,
            "The longest a record stays without fsync, whatever log.durability says.",
            at_least=0,
            synonyms=_broker("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        ),
        listing(
            "follower.replication.throttled.replicas",
            (),
            _THROTTLED_REPLICAS.format("follower"),
            also=_check_throttled,
        ),
        integer(
            "index.interval.bytes",
            4096,
            "One index entry for so many bytes: smaller finds faster and indexes grow. At most it is 65536, and at"
            " least a 262144th of the segment.",
            at_least=0,
            synonyms=_broker("log.index.interval.bytes"),
        ),
        listing(
            "leader.replication.throttled.replicas",
            (),
            _THROTTLED_REPLICAS.format("leader"),
            also=_check_throttled,
        ),
        long("local.retention.bytes", -2, _NO_TIERS, at_least=-2, status=Status.NO_EFFECT),
        long("local.retention.ms", -2, _NO_TIERS, at_least=-2, status=Status.NO_EFFECT),
        long(
            "max.compaction.lag.ms",
            MAX_LONG,
            "A record older than this makes its log due for compaction, however little there is to gain.",
            at_least=1,
            synonyms=_broker("log.cleaner.max.compaction.lag.ms"),
        ),
        integer(
            "max.message.bytes",
            1048588,
            "The largest record batch the topic takes, as it is stored. A batch of up to 4 MiB is written in one turn "
            "of the loop, in which nobody else is served: up to 15 ms. A larger one is written in a thread, to a file "
            "of its own, which begins a segment of the log.",
            at_least=0,
            synonyms=_broker("message.max.bytes"),
        ),
        long(
            "message.timestamp.after.max.ms",
            _HOUR_MS,
            "A producer's timestamp may lie this far ahead of the broker's clock; later records are refused.",
            at_least=0,
            synonyms=_broker("log.message.timestamp.after.max.ms"),
        ),
        long(
            "message.timestamp.before.max.ms",
            MAX_LONG,
            "A producer's timestamp may lie this far behind the broker's clock; older records are refused.",
            at_least=0,
            synonyms=_broker("log.message.timestamp.before.max.ms"),
        ),
        text(
            "message.timestamp.type",
            "CreateTime",
            "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
            one_of=("CreateTime", "LogAppendTime"),
            synonyms=_broker("log.message.timestamp.type"),
        ),
        double(
            "min.cleanable.dirty.ratio",
            0.5,
            "A log is compacted once this share of it has not been compacted yet.",
            at_least=0,
            at_most=1,
            synonyms=_broker("log.cleaner.min.cleanable.ratio"),
        ),
        long(
            "min.compaction.lag.ms",
            0,
            "A record younger than this is not compacted.",
            at_least=0,
            synonyms=_broker("log.cleaner.min.compaction.lag.ms"),
        ),
        integer(
            "min.insync.replicas",
            1,
            "In-sync replicas, the leader included, without which a write with acks=all is refused.",
            at_least=1,
            synonyms=_broker("min.insync.replicas"),
        ),
        boolean(
            "preallocate",
            False,
            f"Accepted without effect: {NO_EFFECT_SETTINGS['log.preallocate'].doc}",
            synonyms=_broker("log.preallocate"),
            status=Status.NO_EFFECT,
        ),
        boolean("remote.log.copy.disable", False, _NO_TIERS, status=Status.NO_EFFECT),
        boolean("remote.log.delete.on.disable", False, _NO_TIERS, status=Status.NO_EFFECT),
        boolean(
            "remote.storage.enable", False, "Refused when true: there is no tiered storage.", status=Status.NO_EFFECT
        ),
        long(
            "retention.bytes",
            -1,
            "The oldest segments of a partition are deleted while the rest is larger than this; -1: no limit.",
            synonyms=_broker("log.retention.bytes"),
        ),
        long(
            "retention.ms",
            604800000,
            "Segments whose newest record is older are deleted; -1 keeps them for ever.",
            at_least=-1,
            synonyms=_broker("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ),
        integer(
            "segment.bytes",
            1073741824,
            "A segment is closed and a new one begun before it would grow beyond this.",
            at_least=SEGMENT_BYTES_MIN,
            synonyms=_broker("log.segment.bytes"),
        ),
        integer(
            "segment.index.bytes",
            10485760,
            "A segment is closed when an index of it would grow beyond this.",
            at_least=4,
            synonyms=_broker("log.index.size.max.bytes"),
        ),
        long(
            "segment.jitter.ms",
            0,
            "Up to this much is taken off segment.ms by chance, so that segments do not all roll at once.",
            at_least=0,
            synonyms=_broker("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ),
        long(
            "segment.ms",
            604800000,
            "A segment is closed this long after its first record, full or not.",
            at_least=1,
            synonyms=_broker("log.roll.ms", "log.roll.hours"),
        ),
        boolean(
            "unclean.leader.election.enable",
            False,
            "Whether a replica that is not in sync may lead when all that are in sync are gone. What it lacks is lost.",
            synonyms=_broker("unclean.leader.election.enable"),
        ),
    )
}


_STAND_INS: dict[str, tuple[str, ...]] = {
    synonym.name: tuple(other.name for other in setting.synonyms)
    for setting in TOPIC_SETTINGS.values()
    for synonym in setting.synonyms
}
"""Broker keys with the same meaning in different units, the finest unit first."""


class Source(IntEnum):
    """Where a value of a topic, broker or group comes from, by the numbers of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Layer(NamedTuple):
    """One of the values that a key could have. The first one in a list of layers holds."""

    name: str
    value: str | None
    source: Source


def check_topic_config(own: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the first thing wrong with a topic's own values, in Kafka's words."""
    for name in own:
        if name not in TOPIC_SETTINGS:
            raise ConfigError(f"Unknown topic config name: {name}")
    check_room(own)
    for name, value in own.items():
        setting = TOPIC_SETTINGS[name]
        if setting.kind is ConfigType.LIST and setting.choices and len(value) > LONGEST_CHOICE:
            raise ConfigError(f"The value of {name} is longer than {LONGEST_CHOICE} characters.")
    values = {name: TOPIC_SETTINGS[name].parse(value) for name, value in own.items()}
    least = values.get("min.compaction.lag.ms", TOPIC_SETTINGS["min.compaction.lag.ms"].default)
    most = values.get("max.compaction.lag.ms", TOPIC_SETTINGS["max.compaction.lag.ms"].default)
    if least > most:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if values.get("remote.storage.enable"):
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
            "storage."
        )


def broker_layers(
    config: BrokerConfig, name: str, cluster_wide: Mapping[str, str], own: Mapping[str, str]
) -> list[Layer]:
    """The values of one broker key and of the keys that stand in for it; the value that holds comes first.

    The list is as in Kafka: values of coarser keys that come before the key's own first value are left out.
    """
    names = _STAND_INS.get(name, (name,))
    tables: tuple[tuple[Mapping[str, str | None], Source], ...] = (
        (own, Source.DYNAMIC_BROKER),
        (cluster_wide, Source.DYNAMIC_DEFAULT_BROKER),
        ({key: config.given[key].value for key in names if key in config.given}, Source.STATIC_BROKER),
        ({key: KNOWN_SETTINGS[key].default_text for key in names if key in KNOWN_SETTINGS}, Source.DEFAULT),
    )
    layers = [Layer(key, table[key], source) for table, source in tables for key in names if table.get(key) is not None]
    return list(dropwhile(lambda layer: layer.name != name, layers))


def topic_layers(
    setting: Setting[Any],
    topic: Mapping[str, str],
    config: BrokerConfig,
    cluster_wide: Mapping[str, str],
    own: Mapping[str, str],
) -> list[Layer]:
    """The values of one topic key; the value that holds comes first. Empty if a coarser key or the default holds."""
    layers = broker_layers(config, setting.synonyms[0].name, cluster_wide, own) if setting.synonyms else []
    if setting.name in topic:
        layers.insert(0, Layer(setting.name, topic[setting.name], Source.TOPIC))
    return layers


def log_config(topic: Mapping[str, str], config: BrokerConfig) -> LogConfig:
    """The settings of a topic that the log needs: the topic's own values over the broker's present ones."""
    values: dict[str, Any] = {}
    for field in fields(LogConfig):
        setting = TOPIC_SETTINGS.get(field.name.replace("_", "."))
        if setting is not None:
            values[field.name] = topic_value(setting, topic, config)
    least = values["segment_bytes"] // INDEX_ENTRIES_MOST
    values["index_interval_bytes"] = min(max(values["index_interval_bytes"], least), INDEX_INTERVAL_BYTES_MOST)
    return LogConfig(**values)


def topic_value(setting: Setting[Any], topic: Mapping[str, str], config: BrokerConfig) -> Any:
    """The value that holds for a topic. A broker key in hours is converted to the topic's milliseconds."""
    if setting.name in topic:
        return setting.parse(topic[setting.name])
    for synonym in setting.synonyms:
        value = getattr(config, BROKER_SETTINGS[synonym.name].attribute)
        if value is not None:
            return value * synonym.factor if synonym.factor != 1 and value >= 0 else value
    return setting.default
