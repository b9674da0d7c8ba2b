"""Deciding about dynamic configuration: what each operation does, and what is refused in which words."""

from collections import Counter
from dataclasses import replace

import pytest

from service.cluster.config_commands import (
    AlterConfigs,
    ConfigChange,
    Operation,
    RequireInSync,
    ResourceChange,
    ResourceResult,
    ResourceType,
    version_of,
)
from service.cluster.image import ALL_BROKERS
from service.cluster.topic_commands import DeleteTopics
from service.settings.broker import BrokerConfig
from service.wire.error_codes import ErrorCode
from tests.service.cluster.worlds import World, decided, topic_id

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
SET, DELETE, APPEND, SUBTRACT = Operation
KEPT = {"kept": {"cleanup.policy": "compact"}}
LEAST = {"kept": 2}


def change(kind: int, name: str, *changes: tuple[str, int, str | None], replace_all: bool = False) -> ResourceChange:
    return ResourceChange(kind, name, tuple(ConfigChange(*one) for one in changes), replace_all)


def alter(world: World, *resources: ResourceChange, validate_only: bool = False) -> list[ResourceResult]:
    return world.run(command(*resources, validate_only=validate_only))


def command(*resources: ResourceChange, validate_only: bool = False) -> AlterConfigs:
    times_named = Counter((resource.kind, resource.name) for resource in resources)
    return AlterConfigs(resources, BrokerConfig(), 1, KEPT, LEAST, times_named, validate_only)


@pytest.fixture
def world() -> World:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1)
    return world


def config_of(world: World) -> dict[str, str]:
    return dict(world.image.topics["orders"].config)


def test_set_and_delete(world: World) -> None:
    alter(world, change(TOPIC, "orders", ("retention.ms", SET, "5"), ("segment.ms", SET, "6")))
    assert config_of(world) == {"retention.ms": "5", "segment.ms": "6"}
    alter(world, change(TOPIC, "orders", ("retention.ms", DELETE, None), ("never.set", DELETE, "x")))
    assert config_of(world) == {"segment.ms": "6"}


def test_lists_are_appended_to_what_holds_and_subtracted_from_it(world: World) -> None:
    alter(world, change(TOPIC, "orders", ("cleanup.policy", APPEND, "compact")))
    assert config_of(world) == {"cleanup.policy": "delete,compact"}
    alter(world, change(TOPIC, "orders", ("cleanup.policy", APPEND, "compact")))
    assert config_of(world) == {"cleanup.policy": "delete,compact"}
    alter(world, change(TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete,other")))
    assert config_of(world) == {"cleanup.policy": "compact"}
    alter(world, change(TOPIC, "orders", ("cleanup.policy", SUBTRACT, "compact")))
    assert config_of(world) == {"cleanup.policy": ""}


def test_altering_all_takes_back_what_is_not_named(world: World) -> None:
    alter(world, change(TOPIC, "orders", ("retention.ms", SET, "5"), ("segment.ms", SET, "6")))
    alter(world, change(TOPIC, "orders", ("segment.bytes", SET, "2000000"), replace_all=True))
    assert config_of(world) == {"segment.bytes": "2000000"}
    alter(world, change(TOPIC, "orders", replace_all=True))
    assert config_of(world) == {}


@pytest.mark.parametrize(("kind", "name"), [(BROKER, ""), (BROKER, "1"), (ResourceType.GROUP, "g")])
def test_settings_that_were_removed_and_made_again_are_not_overwritten_by_what_an_old_image_says(
    world: World, kind: int, name: str
) -> None:
    """They began at the same version again."""
    one, other = (
        ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
        if kind == ResourceType.GROUP
        else ("log.cleaner.backoff.ms", "message.max.bytes")
    )
    alter(world, change(kind, name, (one, SET, "50000")))
    old = world.image
    alter(world, change(kind, name, replace_all=True))
    alter(world, change(kind, name, (other, SET, "6000")))
    assert world.refuses(command(change(kind, name, (one, SET, "51000"))), old)
    assert world.refuses(command(change(kind, name, replace_all=True)), old)


def test_partitions_are_untouched_by_their_topics_configuration(world: World) -> None:
    before = world.image.topics["orders"].partitions
    alter(world, change(TOPIC, "orders", ("retention.ms", SET, "5")))
    assert world.image.topics["orders"].partitions == before


def test_a_validation_changes_nothing(world: World) -> None:
    (result,) = alter(world, change(TOPIC, "orders", ("retention.ms", SET, "5")), validate_only=True)
    assert result.error is ErrorCode.NONE
    assert config_of(world) == {}


def test_broker_configuration_is_kept_for_one_and_for_all(world: World) -> None:
    alter(
        world,
        change(BROKER, "1", ("message.max.bytes", SET, "7")),
        change(BROKER, "", ("message.max.bytes", SET, "8"), ("log.cleanup.policy", APPEND, "compact")),
    )
    assert world.image.broker_config("1").values == {"message.max.bytes": "7"}
    stored = world.image.broker_config(ALL_BROKERS).values
    assert stored == {"message.max.bytes": "8", "log.cleanup.policy": "delete,compact"}
    alter(world, change(BROKER, "", replace_all=True), change(BROKER, "1", ("message.max.bytes", SET, "9")))
    assert world.image.broker_config(ALL_BROKERS).values == {}
    assert world.image.broker_config("1").values == {"message.max.bytes": "9"}


REFUSALS: list[tuple[ResourceChange, ErrorCode, str]] = [
    (
        change(TOPIC, "orders", ("segment.ms", SET, "x")),
        ErrorCode.INVALID_CONFIG,
        "Invalid value x for configuration segment.ms: Not a number of type LONG",
    ),
    (
        change(TOPIC, "orders", ("segment.ms", SET, None)),
        ErrorCode.INVALID_REQUEST,
        "Null value not supported for : segment.ms",
    ),
    (
        change(TOPIC, "orders", ("cleanup.policy", APPEND, "zap")),
        ErrorCode.INVALID_CONFIG,
        "Invalid value zap for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    (
        change(TOPIC, "orders", ("segment.ms", APPEND, "1")),
        ErrorCode.INVALID_CONFIG,
        "Can't APPEND to key segment.ms because its type is not LIST.",
    ),
    (
        change(TOPIC, "orders", ("no.such", SUBTRACT, "1")),
        ErrorCode.INVALID_CONFIG,
        "Can't SUBTRACT to key no.such because its type is not LIST.",
    ),
    (
        change(TOPIC, "orders", ("segment.ms", SET, "7"), ("segment.ms", DELETE, None)),
        ErrorCode.INVALID_REQUEST,
        "Error due to duplicate config keys",
    ),
    (change(TOPIC, "orders", ("segment.ms", 9, "7")), ErrorCode.INVALID_REQUEST, "Unknown operation type 9"),
    (
        change(TOPIC, "none", ("segment.ms", SET, "7")),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "The topic 'none' does not exist.",
    ),
    (
        change(TOPIC, "", ("segment.ms", SET, "7")),
        ErrorCode.INVALID_REQUEST,
        "Default topic resources are not allowed.",
    ),
    (
        change(TOPIC, ".", ("segment.ms", SET, "7")),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic name is invalid: '.' is not allowed",
    ),
    (
        change(TOPIC, "orders", ("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")),
        ErrorCode.INVALID_CONFIG,
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    (change(99, "orders"), ErrorCode.INVALID_REQUEST, "Unknown resource type 99"),
    (
        change(BROKER, "1", ("num.partitions", SET, "3")),
        ErrorCode.INVALID_REQUEST,
        "Cannot update these configs dynamically: [num.partitions]",
    ),
    (
        change(BROKER, "1", ("process.roles", SET, "broker")),
        ErrorCode.INVALID_REQUEST,
        "Cannot update these configs dynamically: [process.roles]",
    ),
    (
        change(BROKER, "1", ("no.such", APPEND, "3")),
        ErrorCode.INVALID_CONFIG,
        "Unknown config name: no.such",
    ),
    (
        change(BROKER, "1", ("follower.replication.throttled.rate", SET, "abc")),
        ErrorCode.INVALID_REQUEST,
        "Invalid value abc for configuration follower.replication.throttled.rate: Not a number of type LONG",
    ),
    (
        change(BROKER, "", ("message.max.bytes", SET, "-5")),
        ErrorCode.INVALID_REQUEST,
        "Invalid value -5 for configuration message.max.bytes: Value must be at least 0",
    ),
    (
        change(BROKER, "abc", ("message.max.bytes", SET, "5")),
        ErrorCode.INVALID_REQUEST,
        "Node id must be an integer, but it is: abc",
    ),
    (
        change(BROKER, "77", ("message.max.bytes", SET, "5")),
        ErrorCode.INVALID_REQUEST,
        "Unexpected broker id, expected 1, but received 77",
    ),
]


@pytest.mark.parametrize(("resource", "error", "message"), REFUSALS, ids=[row[2][:50] for row in REFUSALS])
def test_what_is_wrong_is_said_in_kafkas_words(
    world: World, resource: ResourceChange, error: ErrorCode, message: str
) -> None:
    before = world.image
    assert alter(world, resource) == [ResourceResult(resource.kind, resource.name, error, message)]
    assert world.image is before


LONG = ",".join(f"{number}:1" for number in range(4_500))
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
TOO_MUCH: dict[str, tuple[ResourceChange, ...]] = {
    "a list that is appended to": (
        change(TOPIC, "orders", (THROTTLED[0], SET, LONG)),
        change(TOPIC, "orders", (THROTTLED[0], APPEND, LONG.replace(":1", ":2"))),
    ),
    "a long list of a few words": (change(TOPIC, "orders", ("cleanup.policy", SET, "compact," * 200 + "delete")),),
    "more settings of a broker each time": tuple(
        change(BROKER, "1", *((f"no.such.{of}.{number}", SET, "x") for number in range(300))) for of in range(2)
    ),
    "longer settings of a broker each time": tuple(
        change(BROKER, "1", *((f"no.such.{of}.{number}", SET, "x" * 4_000) for number in range(10))) for of in range(2)
    ),
    "more settings of a broker at once": (
        change(BROKER, "1", *((f"no.such.{number}", SET, "x") for number in range(501))),
    ),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_a_resource_keeps_is_bounded(world: World, what: str) -> None:
    """All of it is read again whenever something of it changes."""
    *before, last = TOO_MUCH[what]
    for each in before:
        assert alter(world, each)[0].error is ErrorCode.NONE
    kept = world.image
    assert alter(world, last)[0].error in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    assert world.image is kept


@pytest.mark.parametrize("present", [False, True])
def test_long_settings_take_turns_of_their_own(world: World, present: bool) -> None:
    names = [f"topic.{number}" for number in range(20)]
    for number, name in enumerate(names, start=2):
        world.add_topic(name, number)
    wide = tuple(change(TOPIC, name, *((key, SET, LONG) for key in THROTTLED)) for name in names)
    narrow = tuple(change(TOPIC, name, ("retention.ms", SET, "1")) for name in names)
    if present:
        alter(world, *wide)
    steps = command(*(narrow if present else wide)).decide(world.image, retried=False)
    assert len(list(steps)) >= len(names) / 2


def test_a_list_is_subtracted_from_without_comparing_each_with_each(world: World) -> None:
    """Of 4,500 items each that would be twenty million times, on the loop."""

    class Compared(str):
        times = 0

        def __eq__(self, other: object) -> bool:
            Compared.times += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

        def strip(self, *_: object) -> "Compared":
            return self

        def split(self, *_: object) -> list["Compared"]:  # type: ignore[override]
            return [Compared(item) for item in str.split(self, ",")]

    alter(world, change(TOPIC, "orders", (THROTTLED[0], SET, LONG)))
    alter(world, change(TOPIC, "orders", (THROTTLED[0], SUBTRACT, Compared(LONG.replace(":1", ":2")))))
    assert config_of(world) == {THROTTLED[0]: LONG}
    assert Compared.times < 10_000


def test_a_resource_named_twice_is_refused_in_both_places_and_others_are_done(world: World) -> None:
    twice = change(BROKER, "1", ("message.max.bytes", SET, "5"))
    results = alter(world, twice, change(TOPIC, "orders", ("segment.ms", SET, "7")), twice)
    assert [result.error for result in results] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert config_of(world) == {"segment.ms": "7"}


@pytest.mark.parametrize(
    "changes",
    [
        change(TOPIC, "kept", ("cleanup.policy", SET, "delete")),
        change(TOPIC, "kept", ("cleanup.policy", APPEND, "delete")),
        change(TOPIC, "kept", ("cleanup.policy", DELETE, None)),
        change(TOPIC, "kept", ("segment.bytes", SET, "1048576"), replace_all=True),
    ],
)
def test_a_setting_that_is_kept_has_its_value_whatever_is_asked(world: World, changes: ResourceChange) -> None:
    world.add_topic("kept", 2)
    alter(world, change(TOPIC, "kept", ("cleanup.policy", SET, "compact")))
    (refused,) = alter(world, changes)
    assert (refused.error, refused.message) == (
        ErrorCode.INVALID_CONFIG,
        "The cleanup.policy of topic 'kept' stays compact.",
    )
    (taken,) = alter(world, change(TOPIC, "kept", ("segment.bytes", SET, "1048576")))
    assert taken.error is ErrorCode.NONE
    assert world.image.topics["kept"].config == {"cleanup.policy": "compact", "segment.bytes": "1048576"}


def test_fewer_in_sync_than_the_brokers_require_are_refused_and_not_raised_unsaid(world: World) -> None:
    for broker in (2, 3):
        world.add_broker(broker)
    world.add_topic("kept", 2, replicas=3)
    for value, error in ("2", ErrorCode.NONE), ("1", ErrorCode.INVALID_CONFIG), ("3", ErrorCode.NONE):
        (result,) = alter(world, change(TOPIC, "kept", ("min.insync.replicas", SET, value)))
        assert result.error is error, value
    assert result.message is None
    (refused,) = alter(world, change(TOPIC, "kept", ("min.insync.replicas", SET, "1")))
    assert refused.message == "The min.insync.replicas of topic 'kept' is 2 or higher: the brokers are configured so."
    (taken,) = alter(world, change(TOPIC, "orders", ("min.insync.replicas", SET, "1")))
    assert taken.error is ErrorCode.NONE


def test_what_a_topic_with_too_few_replicas_requires_may_be_set(world: World) -> None:
    """It is what is shown."""
    world.add_topic("kept", 2)
    (taken,) = alter(world, change(TOPIC, "kept", ("min.insync.replicas", SET, "1")))
    assert taken.error is ErrorCode.NONE


def test_a_topic_that_was_made_before_a_setting_was_kept_may_be_changed(world: World) -> None:
    world.add_topic("kept", 2)
    (taken,) = alter(world, change(TOPIC, "kept", ("segment.bytes", SET, "1048576")))
    assert taken.error is ErrorCode.NONE
    (refused,) = alter(world, change(TOPIC, "kept", ("cleanup.policy", SET, "delete")))
    assert refused.error is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "orders"), (BROKER, "1"), (BROKER, ""), (ResourceType.GROUP, "g")])
def test_of_two_changes_of_one_version_one_is_refused(world: World, kind: ResourceType, name: str) -> None:
    """Also where the store has forgotten the settings in between, and counts their versions anew."""
    key = {TOPIC: "retention.ms", BROKER: "log.retention.ms"}.get(kind, "consumer.session.timeout.ms")
    alter(world, change(kind, name, (key, SET, "45000")))
    seen = version_of(world.image, kind, name)

    def again(value: str | None) -> ResourceResult:
        asked = command(change(kind, name, (key, DELETE if value is None else SET, value)))
        (result,) = world.run(replace(asked, expected={seen, "another"}))
        return result

    assert again("50000").error is ErrorCode.NONE
    assert again("55000").error is again(None).error is ErrorCode.INVALID_UPDATE_VERSION
    alter(world, change(kind, name, (key, DELETE, None)))
    alter(world, change(kind, name, (key, SET, "50000")))
    assert again("55000").error is ErrorCode.INVALID_UPDATE_VERSION
    alter(world, change(kind, name, (key, SET, "45000")))
    assert again("55000").error is ErrorCode.NONE, "it is as it was seen"


def test_a_change_of_a_version_recognises_its_own_work(world: World) -> None:
    """The answer of the store was lost."""
    seen = version_of(world.image, TOPIC, "orders")
    asked = replace(command(change(TOPIC, "orders", ("segment.bytes", SET, "5000000"))), expected={seen})
    assert world.run(asked)[0].error is ErrorCode.NONE
    assert decided(asked, world.image, retried=True).reply[0].error is ErrorCode.NONE
    alter(world, change(TOPIC, "orders", ("segment.bytes", SET, "6000000")))
    again = decided(asked, world.image, retried=True)
    assert (again.reply[0].error, again.ops) == (ErrorCode.REQUEST_TIMED_OUT, ()), "nobody knows"


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        (TOPIC, "orders", "retention.ms"),
        (BROKER, "1", "log.retention.ms"),
        (BROKER, "", "log.retention.ms"),
        (ResourceType.GROUP, "readers", "consumer.session.timeout.ms"),
    ],
)
def test_a_change_whose_answer_was_lost_is_not_repeated_over_what_was_set_since(
    world: World, kind: ResourceType, name: str, key: str
) -> None:
    asked = replace(command(change(kind, name, (key, SET, "45000"))), seen=world.image)

    def again() -> tuple[ErrorCode, int]:
        decision = decided(asked, world.image, retried=True)
        return decision.reply[0].error, len(decision.ops)

    failed = again()
    assert (failed[0], failed[1] > 0) == (ErrorCode.NONE, True), "the first commit has failed"
    world.run(asked)
    assert again() == (ErrorCode.NONE, 0)
    alter(world, change(kind, name, (key, SET, "50000")))
    assert again() == (ErrorCode.REQUEST_TIMED_OUT, 0)
    alter(world, change(kind, name, (key, DELETE, None)))
    assert again() == (ErrorCode.REQUEST_TIMED_OUT, 0), "also if that is what was set before"


def test_a_change_whose_answer_was_lost_is_not_made_to_a_topic_that_was_made_again(world: World) -> None:
    asked = replace(command(change(TOPIC, "orders", ("retention.ms", SET, "5"))), seen=world.image)
    world.run(DeleteTopics((topic_id(1),)))
    world.add_topic("orders", 2)
    decision = decided(asked, world.image, retried=True)
    assert (decision.reply[0].error, decision.ops) == (ErrorCode.REQUEST_TIMED_OUT, ())


def test_what_a_topic_requires_in_sync_is_raised_and_never_lowered(world: World) -> None:
    alter(world, change(TOPIC, "orders", ("min.insync.replicas", SET, "2"), ("retention.ms", SET, "5")))
    assert world.run(RequireInSync({"orders": 2, "not made yet": 2})) == 0
    assert world.run(RequireInSync({"orders": 1})) == 0
    assert world.run(RequireInSync({"orders": 3})) == 1
    assert config_of(world) == {"min.insync.replicas": "3", "retention.ms": "5"}
    assert world.run(RequireInSync({"orders": 3})) == 0
