"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: what is set takes effect, and is shown
with its origin.
"""

from pathlib import Path

import pytest

from service.api.describe_configs import SHOWN_A_TURN
from service.broker.holdings import TOLD_AT_ONCE
from service.cluster.config_commands import Operation, ResourceType
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ListConfigResourcesRequest,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage
from tests.turns import with_turns

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
SET = Operation.SET


async def describe(stage: Stage, kind: int, name: str, *keys: str) -> dict[str, DescribeConfigsResourceResult]:
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, list(keys) or None)], True, True)
    (result,) = (await stage.ask(request)).results
    assert (result.error_code, result.error_message) == (0, "")
    return {entry.name: entry for entry in result.configs}


async def alter(stage: Stage, kind: int, name: str, key: str, value: str | None, operation: int = SET) -> ErrorCode:
    change = IncrementalAlterConfigsRequestAlterableConfig(key, operation, value)
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, [change])
    (answer,) = (await stage.ask(IncrementalAlterConfigsRequest([resource]))).responses
    return ErrorCode(answer.error_code)


def layers(entry: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


def test_a_broker_shows_the_number_that_it_took(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        number = str(stage.broker.metadata.broker_id)
        assert int(number) >= 0
        assert (await describe(stage, BROKER, number, "node.id"))["node.id"].value == number

    on_stage(tmp_path, scene, {"node.id": "-1"})


def test_a_topics_value_is_shown_with_everything_it_hides(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", retention_ms=" 5 ")
        assert await alter(stage, BROKER, "1", "log.retention.ms", "6") is ErrorCode.NONE
        assert await alter(stage, BROKER, "", "log.retention.ms", "7") is ErrorCode.NONE
        entries = await describe(stage, TOPIC, "orders")
        retention = entries["retention.ms"]
        assert (retention.value, retention.config_source, retention.config_type) == ("5", 1, 5)
        assert (retention.read_only, retention.is_sensitive) == (False, False)
        assert layers(retention) == [
            ("retention.ms", " 5 ", 1),
            ("log.retention.ms", "6", 2),
            ("log.retention.ms", "7", 3),
            ("log.retention.hours", "9", 4),
            ("log.retention.hours", "168", 5),
        ]
        assert retention.documentation
        assert (entries["compression.type"].value, entries["compression.type"].config_source) == ("producer", 5)
        assert list(entries) == sorted(entries)

    on_stage(tmp_path, scene, {"log.retention.hours": "9"})


def test_a_coarser_key_holds_but_is_not_shown_as_kafka_does_not(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        retention = (await describe(stage, TOPIC, "orders", "retention.ms"))["retention.ms"]
        assert (retention.value, retention.config_source, layers(retention)) == (str(9 * 3_600_000), 5, [])
        partition = (stage.broker.partitions.topic("orders") or {})[0]
        assert partition.log.config.retention_ms == 9 * 3_600_000

    on_stage(tmp_path, scene, {"log.retention.hours": "9"})


def test_a_brokers_values_say_what_can_be_changed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        entries = await describe(stage, BROKER, "1")
        partitions = entries["num.partitions"]
        assert (partitions.value, partitions.read_only, partitions.config_source) == ("3", True, 4)
        assert layers(partitions) == [("num.partitions", "3", 4), ("num.partitions", "1", 5)]
        largest = entries["message.max.bytes"]
        assert (largest.value, largest.read_only, largest.config_source) == ("1048588", False, 5)
        assert (entries["num.io.threads"].value, entries["num.io.threads"].config_source) == ("8", 5)
        assert (entries["log.retention.ms"].value, layers(entries["log.retention.ms"])) == (None, [])
        only = await describe(stage, BROKER, "1", "num.partitions", "no.such")
        assert list(only) == ["num.partitions"]

    on_stage(tmp_path, scene, {"num.partitions": "3"})


@pytest.mark.parametrize(
    "key", ["follower.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second"]
)
def test_a_throttle_is_shown_while_it_is_set(tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str) -> None:
    async def scene(stage: Stage) -> None:
        assert key not in await describe(stage, BROKER, "1")
        for who in ("1", ""):
            assert await alter(stage, BROKER, who, key, "77") is ErrorCode.NONE
            assert (await describe(stage, BROKER, who))[key].value == "77"
        assert not caplog.records

    on_stage(tmp_path, scene)


def test_a_broker_keeps_and_shows_what_it_has_no_use_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tools set keys that they know of, and go on by what they are answered. What may be secret is not shown."""
    values = {
        "metric.reporters": "com.example.Reporter",
        "no.such.key": "hidden",
        "sasl.jaas.config": "hidden",
        "sasl.kerberos.min.time.before.relogin": "5",
    }

    async def scene(stage: Stage) -> None:
        for who, source in (("1", 2), ("", 3)):
            caplog.clear()
            for key, value in values.items():
                assert await alter(stage, BROKER, who, key, value) is ErrorCode.NONE
            assert sorted(record.getMessage().split()[0] for record in caplog.records) == list(values)
            assert all("has no effect: " in record.getMessage() for record in caplog.records)
            entries = await describe(stage, BROKER, who)
            for key, value in values.items():
                entry, shown = entries[key], None if value == "hidden" else value
                assert (entry.value, entry.is_sensitive, entry.config_source) == (shown, shown is None, source), key
                assert [synonym.value for synonym in entry.synonyms or []][:1] == [shown], key
            for key in values:
                assert await alter(stage, BROKER, who, key, None, Operation.DELETE) is ErrorCode.NONE
            assert not set(values) & set(await describe(stage, BROKER, who))

    on_stage(tmp_path, scene)


def test_a_broker_with_many_settings_shows_and_takes_them_without_holding_others_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: Stage) -> None:
        many = [IncrementalAlterConfigsRequestAlterableConfig(f"no.such.{n}", SET, "x") for n in range(400)]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(BROKER, "1", many)
        (answer,) = (await stage.ask(IncrementalAlterConfigsRequest([resource]))).responses
        assert answer.error_code == ErrorCode.NONE
        assert len(caplog.records) == TOLD_AT_ONCE + 1
        described = describe(stage, BROKER, "1")
        _, turns = await with_turns(described)
        assert turns >= 400 / SHOWN_A_TURN

    on_stage(tmp_path, scene)


def test_a_changed_value_takes_effect_and_a_deleted_one_goes_back(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = (stage.broker.partitions.topic("orders") or {})[0]
        assert await alter(stage, TOPIC, "orders", "max.message.bytes", "77") is ErrorCode.NONE
        assert partition.log.config.max_message_bytes == 77
        assert await alter(stage, TOPIC, "orders", "max.message.bytes", None, Operation.DELETE) is ErrorCode.NONE
        assert partition.log.config.max_message_bytes == 1_048_588
        assert await alter(stage, BROKER, "", "message.max.bytes", "88") is ErrorCode.NONE
        assert (stage.broker.config.message_max_bytes, partition.log.config.max_message_bytes) == (88, 88)
        everywhere = await describe(stage, BROKER, "")
        assert [(name, entry.value, entry.config_source) for name, entry in everywhere.items()] == [
            ("message.max.bytes", "88", 3)
        ]
        assert await alter(stage, BROKER, "", "message.max.bytes", None, Operation.DELETE) is ErrorCode.NONE
        assert partition.log.config.max_message_bytes == 1_048_588

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("version", range(3))
def test_altering_all_values_takes_back_what_is_not_named(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", retention_ms="5")
        new = AlterConfigsRequestAlterConfigsResource(
            TOPIC, "orders", [AlterConfigsRequestAlterableConfig("segment.ms", "6")]
        )
        unknown = AlterConfigsRequestAlterConfigsResource(TOPIC, "none", [])
        answer = await stage.ask(AlterConfigsRequest([new, unknown]), version)
        assert [(one.resource_name, ErrorCode(one.error_code)) for one in answer.responses] == [
            ("orders", ErrorCode.NONE),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert stage.broker.metadata.image.topics["orders"].config == {"segment.ms": "6"}

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("version", range(2))
def test_incremental_changes_in_every_version(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        changes = [
            IncrementalAlterConfigsRequestAlterableConfig("cleanup.policy", Operation.APPEND, "compact"),
            IncrementalAlterConfigsRequestAlterableConfig("segment.ms", Operation.SET, "6"),
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(TOPIC, "orders", changes)
        (answer,) = (await stage.ask(IncrementalAlterConfigsRequest([resource]), version)).responses
        assert (answer.error_code, answer.error_message) == (0, None)
        (answer,) = (await stage.ask(IncrementalAlterConfigsRequest([resource], True), version)).responses
        assert answer.error_code == 0
        stored = stage.broker.metadata.image.topics["orders"].config
        assert stored == {"cleanup.policy": "delete,compact", "segment.ms": "6"}

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(
    ("kind", "name", "error", "message"),
    [
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "x", ErrorCode.INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
        (
            BROKER,
            "7",
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 or empty string, but received 7",
        ),
        (99, "x", ErrorCode.INVALID_REQUEST, None),
    ],
)
def test_what_has_no_configuration_is_told(
    tmp_path: Path, kind: int, name: str, error: ErrorCode, message: str | None
) -> None:
    async def scene(stage: Stage) -> None:
        request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)])
        (result,) = (await stage.ask(request)).results
        assert (result.resource_type, result.resource_name, result.error_code) == (kind, name, error)
        assert result.configs == []
        if message is not None:
            assert result.error_message == message

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("version", range(1, 5))
def test_synonyms_and_documentation_come_only_where_asked_for(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        request = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "orders", ["retention.bytes"])])
        (entry,) = (await stage.ask(request, version)).results[0].configs
        assert (entry.value, entry.synonyms) == ("-1", [])
        assert not entry.documentation

    on_stage(tmp_path, scene)


def test_groups_show_the_settings_that_hold_for_them(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        entries = await describe(stage, ResourceType.GROUP, "any")
        assert {name: entry.value for name, entry in entries.items()} == {
            "consumer.assignment.interval.ms": "1000",
            "consumer.heartbeat.interval.ms": "5000",
            "consumer.session.timeout.ms": "45000",
        }

    on_stage(tmp_path, scene)


def test_a_groups_own_setting_holds_for_it_alone_until_it_is_taken_back(tmp_path: Path) -> None:
    group, session = ResourceType.GROUP, "consumer.session.timeout.ms"

    async def scene(stage: Stage) -> None:
        for name in ("team/a b", "ü"):
            assert await alter(stage, group, name, session, "50000") is ErrorCode.NONE
        entry = (await describe(stage, group, "team/a b"))[session]
        assert (entry.value, entry.config_source) == ("50000", 8)
        assert layers(entry) == [(session, "50000", 8), (f"group.{session}", "45000", 5)]
        assert stage.broker.coordination.consumer_times("team/a b").session_timeout_ms == 50_000
        assert stage.broker.coordination.consumer_times("another").session_timeout_ms == 45_000
        listed = await stage.ask(ListConfigResourcesRequest([group]))
        assert [one.resource_name for one in listed.config_resources] == ["team/a b", "ü"]
        for wrong in ("44999", "60001", "soon"):
            assert await alter(stage, group, "ü", session, wrong) is ErrorCode.INVALID_CONFIG
        assert await alter(stage, group, "ü", "no.such", "1") is ErrorCode.INVALID_CONFIG
        assert await alter(stage, group, "", session, "50000") is ErrorCode.INVALID_REQUEST
        assert await alter(stage, group, "ü", session, None, Operation.DELETE) is ErrorCode.NONE
        assert stage.broker.coordination.consumer_times("ü").session_timeout_ms == 45_000
        listed = await stage.ask(ListConfigResourcesRequest([group]))
        assert [one.resource_name for one in listed.config_resources] == ["team/a b"]

    on_stage(tmp_path, scene)


def test_resources_are_listed_by_kind(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")

        async def listed(*kinds: int, version: int = 1) -> list[tuple[str, int]]:
            answer = await stage.ask(ListConfigResourcesRequest(list(kinds)), version)
            assert answer.error_code == 0
            return [(one.resource_name, one.resource_type) for one in answer.config_resources]

        assert await listed() == [("1", 8), ("1", 4), ("orders", 2)]
        assert await listed(TOPIC) == [("orders", 2)]
        assert await listed(ResourceType.GROUP) == []
        assert await listed(version=0) == []
        refused = await stage.ask(ListConfigResourcesRequest([99]))
        assert (refused.error_code, refused.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])

    on_stage(tmp_path, scene)


def test_a_coordinators_topic_on_one_broker_shows_what_it_requires_there(tmp_path: Path) -> None:
    """kafka-topics --under-min-isr-partitions listed all of it. It requires more when it gets more replicas."""

    async def scene(stage: TxnStage) -> None:
        assert await Writer(stage, "pay").init() == ErrorCode.NONE
        name, key = "__transaction_state", "min.insync.replicas"
        assert stage.broker.metadata.image.topics[name].config[key] == "2"
        assert (await describe(stage, TOPIC, name, key))[key].value == "1"
        assert await alter(stage, TOPIC, "orders", key, "2") is ErrorCode.NONE
        assert (await describe(stage, TOPIC, "orders", key))[key].value == "2", "of other topics, what was asked for"

    on_txn_stage(tmp_path, scene)
