"""Administration with each client's own admin calls: topics, partitions, settings, records, groups and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.clients.kits import PATIENCE_SECONDS, eventually, run_within_patience
from tests.clients.libraries import kafka
from tests.clients.members import GroupPlan, Member, wait_until_shared
from tests.clients.offsets import committed_offsets, produce_everywhere
from tests.clients.topics import Topics
from tests.peers.chosen import Address


def done(futures: dict[Any, Any]) -> Any:
    """The result of an admin call about one thing."""
    (future,) = futures.values()
    return future.result(PATIENCE_SECONDS)


def error_of(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as caught:
        done(futures)
    return int(caught.value.args[0].code())


@pytest.fixture
def admin(broker: Address) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def member(broker: Address) -> Iterator[Callable[[str, str, str], Member]]:
    """Starts a group member that has all partitions of a topic of one partition."""
    started: list[Member] = []

    def start(topic: str, group: str, protocol: str) -> Member:
        started.append(Member(GroupPlan("confluent-kafka", broker.bootstrap, topic, group, protocol)))
        wait_until_shared(started[-1:], partitions=1)
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_topics_are_made_listed_grown_and_deleted(admin: AdminClient, topics: Topics) -> None:
    name = topics.name()
    done(admin.create_topics([NewTopic(name, 3, 1)]))
    assert error_of(admin.create_topics([NewTopic(name, 3, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert sorted(admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions) == [0, 1, 2]

    done(admin.create_partitions([NewPartitions(name, 5)]))
    assert len(admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions) == 5
    assert error_of(admin.create_partitions([NewPartitions(name, 4)])) == KafkaError.INVALID_PARTITIONS

    described = done(admin.describe_topics(TopicCollection([name])))
    assert len(described.partitions) == 5
    assert all(len(partition.replicas) == 1 and len(partition.isr) == 1 for partition in described.partitions)

    done(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics
    assert error_of(admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_bad_topics_are_refused_with_kafkas_errors(admin: AdminClient, topics: Topics) -> None:
    assert error_of(admin.create_topics([NewTopic("spaces are bad", 1, 1)])) == KafkaError.TOPIC_EXCEPTION
    assert error_of(admin.create_topics([NewTopic(topics.name(), 1, 9)])) == KafkaError.INVALID_REPLICATION_FACTOR
    bad_setting = NewTopic(topics.name(), 1, 1, config={"retention.ms": "soon"})
    assert error_of(admin.create_topics([bad_setting])) == KafkaError.INVALID_CONFIG
    checked_only = topics.name()
    done(admin.create_topics([NewTopic(checked_only, 1, 1)], validate_only=True))
    assert checked_only not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_a_topic_that_was_deleted_and_made_again_is_empty(admin: AdminClient, broker: Address, topics: Topics) -> None:
    name = topics.create()
    produce_everywhere(broker.bootstrap, name, partitions=1, count=5)
    done(admin.delete_topics([name]))
    done(admin.create_topics([NewTopic(name, 1, 1)]))
    produce_everywhere(broker.bootstrap, name, partitions=1, count=1)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap)
    place = kafka.TopicPartition(name, 0)
    assert consumer.end_offsets([place]) == {place: 1}
    consumer.close()


def test_settings_are_described_altered_and_taken_back(admin: AdminClient, topics: Topics) -> None:
    name = topics.create(retention_ms="1234567")

    def setting(key: str) -> Any:
        return done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))[key]

    assert (setting("retention.ms").value, setting("retention.ms").is_default) == ("1234567", False)
    assert (setting("cleanup.policy").value, setting("cleanup.policy").is_default) == ("delete", True)

    changes = [
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET),
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
    done(admin.incremental_alter_configs([resource]))
    assert setting("cleanup.policy").value == "delete,compact"
    assert setting("retention.ms").value == "604800000"
    assert setting("max.message.bytes").value == "2000"

    unknown = ConfigEntry("no.such.setting", "1", incremental_operation=AlterConfigOpType.SET)
    bad = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[unknown])
    assert error_of(admin.incremental_alter_configs([bad])) == KafkaError.INVALID_CONFIG


def test_a_message_above_the_topics_limit_is_refused(admin: AdminClient, broker: Address, topics: Topics) -> None:
    name = topics.create(max_message_bytes="2000")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=False, retries=0)
    try:
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            producer.send(name, b"x" * 5_000).get(PATIENCE_SECONDS)
        assert producer.send(name, b"x" * 500).get(PATIENCE_SECONDS).offset == 0
    finally:
        producer.close()


def test_the_brokers_settings_and_the_cluster_are_described(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(PATIENCE_SECONDS)
    (node,) = cluster.nodes
    assert cluster.controller.id == node.id
    settings = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node.id))]))
    assert settings["num.partitions"].value == "4"
    assert settings["num.partitions"].is_read_only
    assert "log.retention.ms" in settings


def test_records_below_an_offset_are_deleted(admin: AdminClient, broker: Address, topics: Topics) -> None:
    name = topics.create()
    produce_everywhere(broker.bootstrap, name, partitions=1, count=20)
    place = TopicPartition(name, 0, 15)
    assert done(admin.delete_records([place])).low_watermark == 15
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    where = kafka.TopicPartition(name, 0)
    assert consumer.beginning_offsets([where]) == {where: 15}
    consumer.assign([where])
    consumer.seek(where, 3)
    assert next(consumer).offset == 15, "a reader below the start goes to the start"
    consumer.close()
    assert error_of(admin.delete_records([TopicPartition(name, 0, 21)])) == KafkaError.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("protocol", "kind", "assignor"),
    [("range", ConsumerGroupType.CLASSIC, "range"), ("consumer:uniform", ConsumerGroupType.CONSUMER, "uniform")],
)
def test_groups_are_listed_described_and_deleted(
    admin: AdminClient,
    topics: Topics,
    group: str,
    member: Callable[[str, str, str], Member],
    protocol: str,
    kind: ConsumerGroupType,
    assignor: str,
) -> None:
    topic = topics.create()
    running = member(topic, group, protocol)

    listed = admin.list_consumer_groups().result(PATIENCE_SECONDS).valid
    (row,) = [row for row in listed if row.group_id == group]
    assert (row.state, row.type, row.is_simple_consumer_group) == (ConsumerGroupState.STABLE, kind, False)
    described = done(admin.describe_consumer_groups([group]))
    assert (described.state, described.type, described.partition_assignor) == (
        ConsumerGroupState.STABLE,
        kind,
        assignor,
    )
    (one,) = described.members
    assert [(place.topic, place.partition) for place in one.assignment.topic_partitions] == [(topic, 0)]
    assert one.client_id == "rdkafka"
    assert error_of(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP

    running.leave()
    empty = eventually(lambda: done(admin.describe_consumer_groups([group])), lambda found: not found.members)
    assert empty.state == ConsumerGroupState.EMPTY
    done(admin.delete_consumer_groups([group]))
    assert group not in [row.group_id for row in admin.list_consumer_groups().result(PATIENCE_SECONDS).valid]
    assert error_of(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_of_an_empty_group_are_altered_listed_and_deleted(
    admin: AdminClient, broker: Address, topics: Topics, group: str
) -> None:
    topic = topics.create(partitions=2)
    wanted = [TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 9)]
    done(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]))
    assert committed_offsets(broker.bootstrap, group, topic, 2) == [5, 9]
    everything = done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    assert sorted((place.partition, place.offset) for place in everything.topic_partitions) == [(0, 5), (1, 9)]

    python_admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    python_admin.delete_group_offsets(group, [kafka.TopicPartition(topic, 1)])
    python_admin.close()
    assert committed_offsets(broker.bootstrap, group, topic, 2) == [5, -1001]


def test_kafka_pythons_admin_works(broker: Address, topics: Topics) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    name = topics.name()
    try:
        admin.create_topics([kafka.admin.NewTopic(name, num_partitions=2, replication_factor=1)])
        assert name in admin.list_topics()
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == 2
        admin.create_partitions({name: kafka.admin.NewPartitions(4)})
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == 4
        produce_everywhere(broker.bootstrap, name, partitions=4, count=8)
        admin.delete_records({kafka.TopicPartition(name, 0): 1})
        assert admin.describe_cluster()["brokers"]
        assert admin.describe_log_dirs()
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()


def test_aiokafkas_admin_works(broker: Address, topics: Topics) -> None:
    name = topics.name()

    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([AioNewTopic(name, 2, 1)])
            assert name in await admin.list_topics()
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 2
            await admin.create_partitions({name: AioNewPartitions(3)})
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 3
            assert await admin.list_consumer_groups() is not None
            await admin.delete_topics([name])
            assert name not in await admin.list_topics()
        finally:
            await admin.close()

    run_within_patience(administer())


def test_writing_to_a_topic_that_does_not_exist_makes_it(broker: Address, topics: Topics, admin: AdminClient) -> None:
    name = topics.name()
    produce_everywhere(broker.bootstrap, name, partitions=1, count=1)
    assert len(admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions) == 4, "num.partitions"
