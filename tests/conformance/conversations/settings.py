"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources and DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from service.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    DescribableLogDirTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ListConfigResourcesRequest,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.plain import Plain, sorted_by
from tests.conformance.say import batch, produce
from tests.conformance.talk import Talk, stable_versions

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
BROKER_SETTINGS = (
    "num.partitions",
    "log.retention.ms",
    "log.segment.bytes",
    "message.max.bytes",
    "compression.type",
    "auto.create.topics.enable",
    "min.insync.replicas",
    "group.initial.rebalance.delay.ms",
    "offsets.retention.minutes",
    "advertised.listeners",
)


def describe(
    kind: int, name: str, keys: Sequence[str] | None = None, *, synonyms: bool = False, documentation: bool = False
) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
    )
    return DescribeConfigsRequest(resources=[resource], include_synonyms=synonyms, include_documentation=documentation)


def changing(
    *changes: tuple[str, int, str | None], kind: int, name: str, only_check: bool = False
) -> IncrementalAlterConfigsRequest:
    configs = [
        IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=only_check)


def in_order(answer: dict[str, Plain]) -> Plain:
    """Settings by their names: a table, so that one that is missing is one difference."""
    results = answer["results"]
    assert isinstance(results, list)
    for result in results:
        assert isinstance(result, dict)
        configs = result.pop("configs", [])
        assert isinstance(configs, list)
        result["settings"] = {
            str(one.get("name")): {key: value for key, value in one.items() if key != "name"}
            for one in configs
            if isinstance(one, dict)
        }
    return answer


def names_of_settings(answer: dict[str, Plain]) -> Plain:
    results = in_order(answer)
    assert isinstance(results, dict) and isinstance(results["results"], list)
    (result,) = results["results"]
    assert isinstance(result, dict) and isinstance(result["settings"], dict)
    return dict.fromkeys(sorted(result["settings"]), "there")


def a_topics_settings(talk: Talk) -> None:
    topic = talk.topic(settings={"retention.ms": "1234", "cleanup.policy": "compact"})
    for version in stable_versions(ApiKey.DESCRIBE_CONFIGS):
        talk.ask(describe(TOPIC, topic), version, why="all", keep=in_order)
    talk.ask(describe(TOPIC, topic, synonyms=True), why="with synonyms", keep=in_order)
    talk.ask(describe(TOPIC, topic, documentation=True), why="with documentation", keep=in_order)
    talk.ask(describe(TOPIC, topic, []), why="none by name", keep=in_order)
    talk.ask(describe(TOPIC, topic, ["retention.ms", "no.such", "segment.bytes"]), why="three by name", keep=in_order)
    talk.ask(describe(TOPIC, topic, ["retention.ms", "retention.ms"]), why="one twice", keep=in_order)


def a_brokers_settings(talk: Talk) -> None:
    for version in stable_versions(ApiKey.DESCRIBE_CONFIGS):
        talk.ask(describe(BROKER, "1", BROKER_SETTINGS), version, keep=in_order)
    talk.ask(describe(BROKER, "1", BROKER_SETTINGS, synonyms=True), why="with synonyms", keep=in_order)
    talk.ask(describe(BROKER, "1"), why="which there are", keep=names_of_settings)
    talk.ask(describe(BROKER, ""), why="the cluster's defaults", keep=in_order)


def resources_that_are_not_there(talk: Talk) -> None:
    cases = [
        (TOPIC, "no-such-topic"),
        (TOPIC, "bad name"),
        (TOPIC, ""),
        (BROKER, "99"),
        (BROKER, "one"),
        (BROKER, "-1"),
        (0, "x"),
        (1, "x"),
        (3, "x"),
        (64, "x"),
        (-1, "x"),
        (BROKER_LOGGER, "99"),
        (CLIENT_METRICS, "no-such-metrics"),
        (GROUP, "no-such-group"),
        (GROUP, ""),
    ]
    for kind, name in cases:
        for version in (1, 4):
            talk.ask(describe(kind, name, ["x"]), version, why=f"of kind {kind} named {name!r}", keep=in_order)
    talk.ask(DescribeConfigsRequest(resources=[]), why="of nothing")
    topic = talk.topic()
    rows = [DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=["retention.ms"])] * 2
    talk.ask(DescribeConfigsRequest(resources=rows), why="of one topic twice", keep=in_order)


def changing_one_by_one(talk: Talk) -> None:
    topic = talk.topic(settings={"cleanup.policy": "delete"})
    change = partial(changing, kind=TOPIC, name=topic)

    def now() -> None:
        talk.settled()
        keys = ["cleanup.policy", "retention.ms", "compression.type", "max.message.bytes"]
        talk.ask(describe(TOPIC, topic, keys), why="now", keep=in_order)

    for version in stable_versions(ApiKey.INCREMENTAL_ALTER_CONFIGS):
        talk.ask(change(("retention.ms", SET, str(version + 1))), version, why="set")
    now()
    talk.ask(change(("cleanup.policy", APPEND, "compact")), why="append")
    talk.ask(change(("cleanup.policy", APPEND, "compact")), why="append what is there")
    now()
    talk.ask(change(("cleanup.policy", SUBTRACT, "delete")), why="subtract")
    talk.ask(change(("cleanup.policy", SUBTRACT, "delete")), why="subtract what is not there")
    now()
    talk.ask(change(("retention.ms", DELETE, None)), why="delete")
    talk.ask(change(("retention.ms", DELETE, "7")), why="delete with a value")
    talk.ask(change(("retention.ms", SET, "77")), why="to a value")
    now()
    bad: dict[str, tuple[str, int, str | None]] = {
        "append to a number": ("retention.ms", APPEND, "1"),
        "subtract from a number": ("retention.ms", SUBTRACT, "1"),
        "set to null": ("retention.ms", SET, None),
        "append null": ("cleanup.policy", APPEND, None),
        "unknown": ("no.such.setting", SET, "1"),
        "delete unknown": ("no.such.setting", DELETE, None),
        "not a number": ("retention.ms", SET, "soon"),
        "an operation nobody knows": ("retention.ms", 9, "1"),
        "no such policy": ("cleanup.policy", APPEND, "shred"),
        "no name": ("", SET, "1"),
        "empty": ("retention.ms", SET, ""),
    }
    for why, one in bad.items():
        talk.ask(change(one), why=why)
    talk.ask(change(("retention.ms", SET, "1"), ("retention.ms", SET, "2")), why="one setting twice")
    talk.ask(change(("retention.ms", SET, "88"), ("no.such.setting", SET, "1")), why="one good, one bad: neither")
    talk.ask(change(("retention.ms", SET, "99"), only_check=True), why="only to check")
    talk.ask(change(), why="no change")
    now()
    talk.ask(change(("retention.ms", SET, "1"), name="no-such-topic"), why="no such topic")
    talk.ask(change(("retention.ms", SET, "1"), name=""), why="no name")
    talk.ask(change(("log.retention.ms", SET, "1"), kind=BROKER, name="99"), why="a broker nobody knows")
    talk.ask(change(("num.partitions", SET, "1"), kind=BROKER, name="1"), why="a broker's fixed setting")
    talk.ask(
        change(("log.retention.ms", SET, "123456789"), kind=BROKER, name="1", only_check=True), why="a broker's own"
    )
    for kind in (0, 1, 3, 64):
        talk.ask(change(("retention.ms", SET, "1"), kind=kind), why=f"of kind {kind}")


def the_brokers_moving_settings(talk: Talk) -> None:
    """A default for all brokers is seen by the broker and by topics without a setting of their own."""
    topic = talk.topic()

    def change(name: str, operation: int, value: str | None) -> IncrementalAlterConfigsRequest:
        return changing(("log.cleaner.delete.retention.ms", operation, value), kind=BROKER, name=name)

    def look(why: str) -> None:
        talk.ask(
            describe(BROKER, "1", ["log.cleaner.delete.retention.ms"], synonyms=True),
            why=f"broker, {why}",
            keep=in_order,
        )
        talk.ask(describe(TOPIC, topic, ["delete.retention.ms"], synonyms=True), why=f"topic, {why}", keep=in_order)

    def changed(value: str) -> Callable[[], bool]:
        def there() -> bool:
            found = talk.quietly(describe(BROKER, "1", ["log.cleaner.delete.retention.ms"]))
            return [config.value for config in found.results[0].configs] == [value]

        return there

    talk.ask(change("", SET, "1111"), why="for all brokers")
    talk.wait_for(changed("1111"))
    look("with a default for all")
    talk.ask(change("1", SET, "2222"), why="for this broker")
    talk.wait_for(changed("2222"))
    look("with its own")
    talk.ask(change("1", DELETE, None), why="for this broker no more")
    talk.ask(change("", DELETE, None), why="for all no more")
    talk.wait_for(changed("86400000"))
    look("as before")


def changing_all_at_once(talk: Talk) -> None:
    topic = talk.topic(settings={"cleanup.policy": "compact"})

    def replace(
        settings: dict[str, str | None], *, kind: int = TOPIC, name: str | None = None, only_check: bool = False
    ) -> AlterConfigsRequest:
        configs = [AlterConfigsRequestAlterableConfig(name=key, value=value) for key, value in settings.items()]
        resource = AlterConfigsRequestAlterConfigsResource(
            resource_type=kind, resource_name=topic if name is None else name, configs=configs
        )
        return AlterConfigsRequest(resources=[resource], validate_only=only_check)

    def now() -> None:
        talk.settled()
        talk.ask(describe(TOPIC, topic, ["cleanup.policy", "retention.ms"]), why="now", keep=in_order)

    for version in stable_versions(ApiKey.ALTER_CONFIGS):
        talk.ask(replace({"retention.ms": str(version + 5)}), version)
    now()
    talk.ask(replace({"retention.ms": "9"}, only_check=True), why="only to check")
    talk.ask(replace({"no.such.setting": "1"}), why="unknown")
    talk.ask(replace({"retention.ms": None}), why="null")
    talk.ask(replace({"retention.ms": "x"}), why="not a number")
    now()
    talk.ask(replace({}), why="none: all back to defaults")
    now()
    talk.ask(replace({"retention.ms": "1"}, name="no-such-topic"), why="no such topic")
    talk.ask(replace({"retention.ms": "1"}, kind=0), why="of kind 0")


GROUP_SETTINGS = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms")


def a_groups_settings(talk: Talk) -> None:
    group = talk.group()
    change = partial(changing, kind=GROUP, name=group)

    def now(why: str) -> None:
        talk.settled()
        talk.ask(describe(GROUP, group, GROUP_SETTINGS, synonyms=True), why=why, keep=in_order)

    now("before")
    talk.ask(describe(GROUP, group), why="which there are", keep=names_of_settings)
    for version in stable_versions(ApiKey.INCREMENTAL_ALTER_CONFIGS):
        talk.ask(change(("consumer.session.timeout.ms", SET, f"5000{version}")), version, why="set")
    now("set")
    talk.ask(
        change(
            ("consumer.session.timeout.ms", SET, "46000"),
            ("consumer.heartbeat.interval.ms", SET, "6000"),
            ("consumer.assignment.interval.ms", SET, "0"),
        ),
        why="all three",
    )
    now("all three")
    cases: dict[str, tuple[tuple[str, int, str | None], ...]] = {
        "a session too short": (("consumer.session.timeout.ms", SET, "44999"),),
        "a session too long": (("consumer.session.timeout.ms", SET, "60001"),),
        "a heartbeat too often": (("consumer.heartbeat.interval.ms", SET, "4999"),),
        "a heartbeat too seldom": (("consumer.heartbeat.interval.ms", SET, "15001"),),
        "assigned too seldom": (("consumer.assignment.interval.ms", SET, "15001"),),
        "assigned less than never": (("consumer.assignment.interval.ms", SET, "-1"),),
        "no number": (("consumer.session.timeout.ms", SET, "soon"),),
        "zero": (("consumer.session.timeout.ms", SET, "0"),),
        "nothing": (("consumer.session.timeout.ms", SET, ""),),
        "null": (("consumer.session.timeout.ms", SET, None),),
        "an unknown key": (("no.such.key", SET, "1"),),
        "an unknown key taken back": (("no.such.key", DELETE, None),),
        "append": (("consumer.session.timeout.ms", APPEND, "47000"),),
        "an unknown operation": (("consumer.session.timeout.ms", 9, "47000"),),
        "a key twice": (
            ("consumer.session.timeout.ms", SET, "47000"),
            ("consumer.session.timeout.ms", SET, "48000"),
        ),
        "one right, one wrong": (
            ("consumer.session.timeout.ms", SET, "47000"),
            ("consumer.heartbeat.interval.ms", SET, "1"),
        ),
        "no change": (),
    }
    for why, changes in cases.items():
        talk.ask(change(*changes), why=why)
    talk.ask(change(("consumer.session.timeout.ms", SET, "47000"), only_check=True), why="only to check")
    talk.ask(change(("consumer.session.timeout.ms", SET, "47000"), name=""), why="of a group without a name")
    now("after all that")
    talk.ask(change(("consumer.heartbeat.interval.ms", DELETE, None)), why="one taken back")
    now("one taken back")
    configs = [AlterConfigsRequestAlterableConfig(name="consumer.session.timeout.ms", value="48000")]
    row = AlterConfigsRequestAlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    talk.ask(AlterConfigsRequest(resources=[row]), why="all anew")
    now("all anew")

    def of_this_group(answer: dict[str, Plain]) -> Plain:
        rows = answer.get("config_resources", [])
        assert isinstance(rows, list)
        return {"there": [row for row in rows if isinstance(row, dict) and row.get("resource_name") == group]}

    talk.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1, why="which have settings", keep=of_this_group)
    row = AlterConfigsRequestAlterConfigsResource(resource_type=GROUP, resource_name=group, configs=[])
    talk.ask(AlterConfigsRequest(resources=[row]), why="nothing is left")
    now("nothing is left")
    talk.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1, why="which have settings then", keep=of_this_group)


def resources_with_settings(talk: Talk) -> None:
    def only_kinds(answer: dict[str, Plain]) -> Plain:
        rows = answer.get("config_resources", [])
        assert isinstance(rows, list)
        kinds: list[Plain] = [*sorted({str(row.get("resource_type", 0)) for row in rows if isinstance(row, dict)})]
        return {"error_code": answer.get("error_code", 0), "kinds": kinds}

    talk.topic(settings={"retention.ms": "5"})
    for version in stable_versions(ApiKey.LIST_CONFIG_RESOURCES):
        talk.ask(ListConfigResourcesRequest(resource_types=[]), version, why="all", keep=only_kinds)
    for kind in (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, 0, 99):
        talk.ask(ListConfigResourcesRequest(resource_types=[kind]), 1, why=f"of kind {kind}", keep=only_kinds)


def log_folders(talk: Talk) -> None:
    topic = talk.topic(partitions=2)
    for _ in range(3):
        talk.quietly(produce(topic, batch(2)), 11)

    def in_order_of_names(answer: dict[str, Plain]) -> Plain:
        folders = answer.get("results", [])
        assert isinstance(folders, list)
        for folder in folders:
            assert isinstance(folder, dict)
            topics = sorted_by(folder.get("topics", []), "name")
            assert isinstance(topics, list)
            for one in topics:
                assert isinstance(one, dict)
                one["partitions"] = sorted_by(one["partitions"], "partition_index")
            folder["topics"] = topics
        return answer

    for version in stable_versions(ApiKey.DESCRIBE_LOG_DIRS):
        asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic, partitions=[0, 1])])
        talk.ask(asked, version, keep=in_order_of_names)
    for why, row in {
        "partitions that are not there": DescribableLogDirTopic(topic=topic, partitions=[7]),
        "no partitions": DescribableLogDirTopic(topic=topic, partitions=[]),
        "no such topic": DescribableLogDirTopic(topic="no-such-topic", partitions=[0]),
    }.items():
        talk.ask(DescribeLogDirsRequest(topics=[row]), why=why, keep=in_order_of_names)
    talk.ask(DescribeLogDirsRequest(topics=[]), why="no topics", keep=in_order_of_names)


CONVERSATIONS = (
    a_topics_settings,
    a_brokers_settings,
    resources_that_are_not_there,
    changing_one_by_one,
    the_brokers_moving_settings,
    changing_all_at_once,
    a_groups_settings,
    resources_with_settings,
    log_folders,
)
