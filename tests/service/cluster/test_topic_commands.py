"""Deciding about topics: what is created, what is refused and in which words, and that a retried command knows its
own work.
"""

import pytest

from log.ids import ZERO_TOPIC_ID, TopicId
from service.cluster import topic_commands
from service.cluster.config_commands import AlterConfigs, ConfigChange, Operation, ResourceChange, ResourceType
from service.cluster.image import PartitionState
from service.cluster.topic_commands import (
    MAX_NEW_PARTITIONS,
    SETTINGS_MAX,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicResult,
    check_topic_name,
)
from service.settings.broker import BrokerConfig
from service.wire.error_codes import ErrorCode
from tests.service.cluster.worlds import World, decided, topic_id


def world_of(*brokers: int) -> World:
    world = World()
    for broker in brokers:
        world.add_broker(broker)
    return world


def create(world: World, *topics: NewTopic, validate_only: bool = False) -> list[TopicResult]:
    return world.run(CreateTopics(topics, 2, 1, validate_only))


def test_a_topic_is_created_with_all_replicas_in_sync_in_its_first_epoch() -> None:
    world = world_of(1, 2, 3)
    (result,) = create(world, NewTopic("orders", topic_id(1), 3, 2, config=(("retention.ms", "5"),)))
    topic = world.image.topics["orders"]
    assert (result.error, result.id, result.topic) == (ErrorCode.NONE, topic_id(1), topic)
    assert topic.config == {"retention.ms": "5"}
    for state in topic.partitions.values():
        assert state == PartitionState(state.replicas, state.replicas, state.replicas[0], 0, 0)
        assert len(state.replicas) == 2


def test_leaders_take_turns() -> None:
    world = world_of(1, 2, 3)
    create(world, NewTopic("orders", topic_id(1), 6, 1))
    assert [state.leader for state in world.image.topics["orders"].partitions.values()] == [1, 2, 3, 1, 2, 3]
    create(world, NewTopic("more", topic_id(2), 1, 1), NewTopic("most", topic_id(3), 1, 1))
    assert [world.image.topics[name].partitions[0].leader for name in ("more", "most")] == [1, 2]


def test_defaults_stand_in_for_what_was_not_said() -> None:
    world = world_of(1)
    create(world, NewTopic("orders", topic_id(1)))
    assert len(world.image.topics["orders"].partitions) == 2


def test_a_validation_creates_nothing() -> None:
    world = world_of(1)
    (result,) = create(world, NewTopic("orders", topic_id(1), 3, 1), validate_only=True)
    assert result.topic is not None and len(result.topic.partitions) == 3
    assert world.image.topics == {}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("ä", "'ä' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
    ],
)
def test_a_bad_name_is_refused(name: str, problem: str) -> None:
    assert check_topic_name(name) == f"Topic name is invalid: {problem}"
    (result,) = create(world_of(1), NewTopic(name, topic_id(1), 1, 1))
    assert (result.error, result.message) == (ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def test_a_good_name_is_not_refused() -> None:
    assert check_topic_name("Az09._-") is None
    assert check_topic_name("x" * 249) is None


REFUSALS: list[tuple[NewTopic, ErrorCode, str]] = [
    (NewTopic("taken", topic_id(2), 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'taken' already exists."),
    (
        NewTopic("a_b", topic_id(2), 1, 1),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'a_b' collides with existing topic: a.b",
    ),
    (
        NewTopic("new", topic_id(2), 0, 1),
        ErrorCode.INVALID_PARTITIONS,
        "Number of partitions was set to an invalid non-positive value.",
    ),
    (
        NewTopic("new", topic_id(2), 0, 0),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Replication factor must be larger than 0, or -1 to use the default value.",
    ),
    (
        NewTopic("new", topic_id(2), 1, 3),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached "
        "because only "
        "2 broker(s) are registered or some brokers have all their log directories cordoned.",
    ),
    (
        NewTopic("new", topic_id(2), MAX_NEW_PARTITIONS + 1, 1),
        ErrorCode.POLICY_VIOLATION,
        "Excessively large number of partitions per request.",
    ),
    (
        NewTopic("new", topic_id(2), 0, 1, config=(("retention.ms", "x"),)),
        ErrorCode.INVALID_CONFIG,
        "Invalid value x for configuration retention.ms: Not a number of type LONG",
    ),
    (
        NewTopic("new", topic_id(2), 1, 1, config=(("retention.ms", None),)),
        ErrorCode.INVALID_CONFIG,
        "Null value not supported for topic configs: retention.ms",
    ),
    (
        NewTopic("new", topic_id(2), 1, 1, config=(("no.such", "1"),)),
        ErrorCode.INVALID_CONFIG,
        "Unknown topic config name: no.such",
    ),
    (
        NewTopic("new", topic_id(2), 1, 1, config=(("retention.ms", "1"),) * (SETTINGS_MAX + 1)),
        ErrorCode.INVALID_CONFIG,
        "More than 1000 settings for one topic.",
    ),
    (
        NewTopic("new", topic_id(2), 1, 1, config=(("remote.storage.enable", "true"),)),
        ErrorCode.INVALID_CONFIG,
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
    (
        NewTopic("new", topic_id(2), 1, -1, assignment=((0, (1,)),)),
        ErrorCode.INVALID_REQUEST,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    ),
    (
        NewTopic("new", topic_id(2), -1, 1, assignment=((0, (1,)),)),
        ErrorCode.INVALID_REQUEST,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    ),
    (
        NewTopic("new", topic_id(2), assignment=((0, (1,)), (2, (1,)))),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "partitions should be a consecutive 0-based integer sequence",
    ),
    (
        NewTopic("new", topic_id(2), assignment=((0, (1,)), (0, (1,)))),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Found multiple manual partition assignments for partition 0",
    ),
    (
        NewTopic("new", topic_id(2), assignment=((0, ()),)),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes an empty replica list.",
    ),
    (
        NewTopic("new", topic_id(2), assignment=((0, (1, 1)),)),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes the broker 1 more than once.",
    ),
    (
        NewTopic("new", topic_id(2), assignment=((0, (7,)),)),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes broker 7, but no such broker is registered.",
    ),
    (
        NewTopic("new", topic_id(2), assignment=((0, (1,)), (1, (1, 2)))),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes a partition with 2 replica(s), but this is not consistent with "
        "previous partitions, which have 1 replica(s).",
    ),
]


@pytest.mark.parametrize(("topic", "error", "message"), REFUSALS, ids=[str(row[2])[:50] for row in REFUSALS])
def test_what_is_wrong_with_a_topic_is_said_in_kafkas_words(topic: NewTopic, error: ErrorCode, message: str) -> None:
    world = world_of(1, 2)
    world.add_topic("taken", 10)
    world.add_topic("a.b", 11)
    before = world.image
    (result,) = create(world, topic)
    assert (result.error, result.message, result.topic) == (error, message, None)
    assert world.image is before


def test_one_bad_topic_does_not_keep_the_others_from_being_created() -> None:
    world = world_of(1)
    results = create(
        world, NewTopic("a", topic_id(1), 1, 1), NewTopic("b b", topic_id(2), 1, 1), NewTopic("c", topic_id(3), 1, 1)
    )
    assert [result.error for result in results] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
    ]
    assert list(world.image.topics) == ["a", "c"]


def test_replicas_go_where_they_were_told_to_go() -> None:
    world = world_of(1, 2)
    create(world, NewTopic("orders", topic_id(1), assignment=((1, (2, 1)), (0, (1, 2)))))
    states = world.image.topics["orders"].partitions
    assert [(index, state.replicas) for index, state in states.items()] == [(0, (1, 2)), (1, (2, 1))]


def test_a_retried_creation_knows_its_own_topic() -> None:
    world = world_of(1)
    command = CreateTopics((NewTopic("orders", topic_id(1), 1, 1),), 1, 1)
    world.run(command)
    again = decided(command, world.image, retried=True)
    assert again.ops == ()
    assert again.reply == [TopicResult("orders", topic=world.image.topics["orders"], id=topic_id(1))]
    another = CreateTopics((NewTopic("orders", topic_id(2), 1, 1),), 1, 1)
    other = decided(another, world.image, retried=True)
    assert other.reply[0].error is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_creation_that_is_retried_after_a_deletion_makes_another_topic() -> None:
    """It had the same id. A replica that heard of all that at once kept the deleted records, and counted as in sync:
    the new ones were written in leader epoch 0, too.
    """
    world = world_of(1)
    command = CreateTopics((NewTopic("orders", topic_id(1), 1, 1),), 1, 1)
    used: list[TopicId] = []
    for _ in range(3):  # each answer is lost, and somebody deletes the topic
        made = decided(command, world.image, retried=bool(used))
        world.commit(made.ops)
        again = decided(command, world.image, retried=True)
        assert (again.reply, again.ops) == (made.reply, ()), "it knows what it has made"
        used.append(again.reply[0].id)
        world.run(DeleteTopics((used[-1],)))
    assert len(set(used)) == 3


def test_a_deleted_topic_leaves_nothing_in_the_store() -> None:
    world = world_of(1)
    before = world.server.snapshot().entries
    world.add_topic("orders", 1, partitions=3)
    (result,) = world.run(DeleteTopics((topic_id(1),)))
    assert (result.name, result.error) == ("orders", ErrorCode.NONE)
    assert world.server.snapshot().entries == before
    assert world.image.topics == {}
    assert world.image.topic_names == {}


def test_deleting_what_is_not_there_is_an_error_only_the_first_time() -> None:
    world = world_of(1)
    command = DeleteTopics((topic_id(1), ZERO_TOPIC_ID))
    assert [result.error for result in world.run(command)] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
    assert [result.error for result in decided(command, world.image, retried=True).reply] == [ErrorCode.NONE] * 2


def test_partitions_are_added_and_the_old_ones_stay() -> None:
    world = world_of(1, 2)
    world.add_topic("orders", 1, partitions=2)
    before = dict(world.image.topics["orders"].partitions)
    command = CreatePartitions((MorePartitions("orders", 5),))
    (result,) = world.run(command)
    states = world.image.topics["orders"].partitions
    assert result.error is ErrorCode.NONE
    assert list(states) == [0, 1, 2, 3, 4]
    assert {index: states[index] for index in before} == before
    retried = decided(command, world.image, retried=True)
    assert (retried.reply[0].error, retried.ops) == (ErrorCode.NONE, ())


def test_partitions_whose_answer_was_lost_are_not_added_to_a_topic_that_was_made_again() -> None:
    world = world_of(1)
    world.add_topic("orders", 1)
    command = CreatePartitions((MorePartitions("orders", 5),), seen=world.image)

    def again() -> tuple[ErrorCode, int]:
        decision = decided(command, world.image, retried=True)
        return decision.reply[0].error, len(decision.ops)

    made = 4
    assert again() == (ErrorCode.NONE, made + 2), "the first commit has failed"
    world.run(command)
    world.run(DeleteTopics((topic_id(1),)))
    world.add_topic("orders", 2)
    assert again() == (ErrorCode.REQUEST_TIMED_OUT, 0)


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (MorePartitions("none", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (MorePartitions("orders", 2), ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (
            MorePartitions("orders", 1),
            ErrorCode.INVALID_PARTITIONS,
            "The topic orders currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            MorePartitions("orders", 4, ((1,),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            MorePartitions("orders", 3, ((9,),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        (
            MorePartitions("orders", 3, ((1, 2),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes a partition with 2 replica(s), but this is not consistent with "
            "previous partitions, which have 1 replica(s).",
        ),
        (
            MorePartitions("orders", 100_000),
            ErrorCode.POLICY_VIOLATION,
            "Excessively large number of partitions per request.",
        ),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    wanted: MorePartitions, error: ErrorCode, message: str | None
) -> None:
    world = world_of(1, 2)
    world.add_topic("orders", 1, partitions=2)
    before = world.image
    (result,) = world.run(CreatePartitions((wanted,)))
    assert (result.error, result.message) == (error, message)
    assert world.image is before


def test_no_partition_is_added_whose_folder_would_have_too_long_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk would refuse to make it, when the first record comes."""
    monkeypatch.setattr(topic_commands, "MAX_FOLDER_NAME_LENGTH", len("orders-9"))
    world = world_of(1)
    world.add_topic("orders", 1)
    (refused,) = world.run(CreatePartitions((MorePartitions("orders", 11),)))
    assert (refused.error, refused.message) == (
        ErrorCode.INVALID_PARTITIONS,
        "With a name of 6 characters a topic can't have 11 partitions.",
    )
    (allowed,) = world.run(CreatePartitions((MorePartitions("orders", 10),)))
    assert allowed.error is ErrorCode.NONE


def test_validating_more_partitions_adds_none() -> None:
    world = world_of(1)
    world.add_topic("orders", 1)
    (result,) = world.run(CreatePartitions((MorePartitions("orders", 3),), validate_only=True))
    assert result.error is ErrorCode.NONE
    assert len(world.image.topics["orders"].partitions) == 1


def test_a_topic_that_was_made_again_is_not_changed_by_what_an_old_image_says_of_the_former_one() -> None:
    """It began at the same version, and got the id of the former one: its partitions were removed by all brokers."""
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1)
    old = world.image
    world.run(DeleteTopics((topic_id(1),)))
    world.add_topic("orders", 2)
    settings = ResourceChange(ResourceType.TOPIC, "orders", (ConfigChange("retention.ms", Operation.SET, "5"),))
    times_named: dict[tuple[int, str], int] = {(ResourceType.TOPIC, "orders"): 1}
    assert world.refuses(CreatePartitions((MorePartitions("orders", 3),)), old)
    assert world.refuses(AlterConfigs((settings,), BrokerConfig(), 1, {}, {}, times_named), old)
    assert world.refuses(DeleteTopics((topic_id(1),)), old)
    assert world.image.topics["orders"].id == topic_id(2)
