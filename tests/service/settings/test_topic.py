"""What holds for a topic: its own values, the broker's under them, Kafka's defaults under those."""

from dataclasses import fields
from operator import attrgetter

import pytest

from log.config import LogConfig
from service.settings.broker import BrokerConfig
from service.settings.setting import ConfigError
from service.settings.topic import TOPIC_SETTINGS, check_topic_config, log_config, topic_layers


def test_without_any_values_the_logs_own_defaults_hold() -> None:
    assert log_config({}, BrokerConfig()) == LogConfig()


def test_every_setting_of_the_log_is_a_topics_key_with_the_same_default() -> None:
    for field in filter(attrgetter("init"), fields(LogConfig)):
        setting = TOPIC_SETTINGS[field.name.replace("_", ".")]
        assert setting.default == field.default, field.name


def test_every_default_is_valid_and_every_key_has_its_words() -> None:
    assert list(TOPIC_SETTINGS) == sorted(TOPIC_SETTINGS)
    for setting in TOPIC_SETTINGS.values():
        assert setting.default_text is not None
        assert setting.parse(setting.default_text) == setting.default
        assert setting.doc.endswith(".")


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "2"}, 2 * 3_600_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 3 * 60_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_broker_key_holds(given: dict[str, str], expected_ms: int) -> None:
    assert log_config({}, BrokerConfig(given)).retention_ms == expected_ms


def test_a_topics_own_values_hold_over_the_brokers() -> None:
    config = BrokerConfig({"log.segment.bytes": "2000000", "log.roll.hours": "1", "log.flush.interval.ms": "9"})
    topic = {"segment.bytes": "3000000", "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.1"}
    log = log_config(topic, config)
    assert (log.segment_bytes, log.segment_ms, log.flush_ms) == (3_000_000, 3_600_000, 9)
    assert (log.cleanup_policy, log.min_cleanable_dirty_ratio) == (("compact", "delete"), 0.1)


@pytest.mark.parametrize("given", [{"index.interval.bytes": "2147483647"}, {}], ids=["the topic's", "the broker's"])
def test_an_index_has_an_entry_often_enough_whatever_is_set(given: dict[str, str]) -> None:
    """Kafka takes the value, so it is taken and shown."""
    config = BrokerConfig({"log.index.interval.bytes": "2147483646"})
    check_topic_config(given)
    assert log_config(given, config).index_interval_bytes == 65_536
    told = topic_layers(TOPIC_SETTINGS["index.interval.bytes"], given, config, {}, {})
    assert told[0].value == given.get("index.interval.bytes", "2147483646")


@pytest.mark.parametrize(("segment_bytes", "least"), [(1 << 30, 4_096), (1 << 20, 4)])
def test_an_index_has_no_more_entries_than_can_be_written_in_one_turn(segment_bytes: int, least: int) -> None:
    given = {"index.interval.bytes": "0", "segment.bytes": str(segment_bytes)}
    check_topic_config(given)
    assert log_config(given, BrokerConfig({})).index_interval_bytes == least


def test_a_brokers_dynamic_values_hold_over_its_static_ones() -> None:
    config = BrokerConfig({"message.max.bytes": "1"})
    config.set_dynamic({"message.max.bytes": "2", "log.retention.ms": "7"}, {"message.max.bytes": "3"})
    log = log_config({}, config)
    assert (log.max_message_bytes, log.retention_ms) == (3, 7)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"retention.ms": "-2"}, "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ({"retention.ms": ""}, "Invalid value  for configuration retention.ms: Not a number of type LONG"),
        (
            {"min.cleanable.dirty.ratio": "2"},
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            {"compression.gzip.level": "0"},
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            {"compression.type": "lzma"},
            "Invalid value lzma for configuration compression.type: String must be one of: uncompressed, zstd, lz4, "
            "snappy, gzip, producer",
        ),
        (
            {"leader.replication.throttled.replicas": "x"},
            "Invalid value [x] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
        ({"message.format.version": "3.0"}, "Unknown topic config name: message.format.version"),
    ],
)
def test_a_bad_value_is_refused_in_kafkas_words(own: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_topic_config(own)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "own",
    [
        {"retention.ms": " +5 "},
        {"cleanup.policy": ""},
        {"cleanup.policy": "compact,compact"},
        {"preallocate": "TRUE"},
        {"leader.replication.throttled.replicas": "0:1,1:2"},
        {"leader.replication.throttled.replicas": "*"},
        {"min.cleanable.dirty.ratio": "1e-1"},
    ],
)
def test_what_kafka_takes_is_taken(own: dict[str, str]) -> None:
    check_topic_config(own)
