"""The image: the same from a load and from the changes, never changed in place, small with many partitions."""

import random
import tracemalloc
from dataclasses import replace

import pytest

from log.ids import TopicPartition
from service.cluster.controller import AllocateProducerIds, FoundCluster
from service.cluster.image import (
    ALL_BROKERS,
    Image,
    PartitionState,
    Topic,
    broker_config_key,
    difference,
    differing,
    encode_config,
    encode_partition,
    encode_topic,
    load,
    partition_key,
    topic_key,
)
from service.cluster.topic_commands import CreatePartitions, DeleteTopics, MorePartitions
from service.stores.port import Change, Delete, Entry, Put, StoreSnapshot
from tests.service.cluster.worlds import World, topic_id


def test_following_every_change_ends_at_the_image_of_a_load() -> None:
    """A random walk of decisions; after each, the image that followed equals the one read from the store."""
    chance = random.Random(7)
    world = World()
    for broker in (1, 2, 3):
        world.add_broker(broker, directories=(f"of {broker}",))
    world.run(FoundCluster("cluster"))
    for step in range(120):
        names = list(world.image.topics)
        match chance.randrange(6):
            case 0 | 1:
                world.add_topic(f"t{step}", step + 1, chance.randint(1, 4), chance.randint(1, 3))
            case 2 if names:
                world.run(DeleteTopics((world.image.topics[chance.choice(names)].id,)))
            case 3 if names:
                topic = world.image.topics[chance.choice(names)]
                world.run(CreatePartitions((MorePartitions(topic.name, len(topic.partitions) + 2),)))
            case 4 if names:
                topic = world.image.topics[chance.choice(names)]
                state = topic.partitions[0]
                moved = state._replace(leader_epoch=state.leader_epoch + 1)
                world.commit([Put(partition_key(topic.id, 0), encode_partition(moved), state.partition_epoch)])
            case _:
                world.run(AllocateProducerIds())
        read = load(world.server.snapshot())
        assert read == world.image
        for topic in read.topics.values():
            assert list(topic.partitions) == list(range(len(topic.partitions)))
            assert list(world.image.topics[topic.name].partitions) == list(topic.partitions)


def test_an_image_never_changes() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1)
    before = world.image
    held = before.topics["orders"]
    world.run(CreatePartitions((MorePartitions("orders", 3),)))
    world.add_topic("other", 2)
    assert list(before.topics) == ["orders"]
    assert before.topics["orders"] is held
    assert len(held.partitions) == 1
    assert len(world.image.topics["orders"].partitions) == 3


def test_what_was_not_touched_is_shared() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1)
    untouched = world.image.topics["orders"]
    world.add_topic("other", 2)
    assert world.image.topics["orders"] is untouched


def test_a_delta_names_what_was_touched() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1, partitions=2)
    old = world.image
    made = old.after(
        Change(
            old.number + 1,
            (
                (topic_key("new"), Entry(encode_topic(topic_id(9), 1, {}), 0)),
                (partition_key(topic_id(9), 0), Entry(encode_partition(PartitionState((1,), (1,), 1, 0)), 0)),
                (broker_config_key(ALL_BROKERS), Entry(encode_config({"message.max.bytes": "5"}), 0)),
            ),
        )
    )
    assert made.topics == ("new",)
    assert made.partitions == (TopicPartition("new", 0),)
    assert made.broker_configs == (ALL_BROKERS,)
    assert made.brokers == ()
    assert made.new.broker_config(ALL_BROKERS).values == {"message.max.bytes": "5"}
    gone = made.new.after(Change(old.number + 2, ((topic_key("orders"), None),)))
    assert gone.topics == ("orders",)
    assert gone.partitions == (TopicPartition("orders", 0), TopicPartition("orders", 1))
    assert gone.new.topic_by_id(topic_id(1)) is None


def test_a_difference_names_what_a_followed_change_names() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1, partitions=2)
    world.add_topic("same", 2)
    old = world.image
    topic = old.topics["orders"]
    moved = topic.partitions[1]._replace(leader_epoch=5)
    world.commit([Put(partition_key(topic.id, 1), encode_partition(moved), 0)])
    world.add_topic("new", 3)
    delta = difference(old, world.image)
    assert sorted(delta.topics) == ["new", "orders"]
    assert sorted(delta.partitions) == [TopicPartition("new", 0), TopicPartition("orders", 1)]


@pytest.mark.parametrize(("topics", "partitions"), [(1, 2_000), (2_000, 1)])
def test_others_have_their_turns_while_very_many_partitions_are_compared(topics: int, partitions: int) -> None:
    old = Image(topics={f"t{at}": Topic(f"t{at}", topic_id(at), 0, {}) for at in range(topics)})
    held = dict.fromkeys(range(partitions), PartitionState((1,), (1,), 1, 0))
    new = replace(old, topics={name: replace(topic, partitions=held) for name, topic in old.topics.items()})
    assert sum(1 for _ in differing(old, new)) >= 3
    assert len(difference(old, new).partitions) == topics * partitions


def test_a_topic_made_again_under_its_name_is_another_topic() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1, partitions=2)
    old = world.image
    world.run(DeleteTopics((topic_id(1),)))
    world.add_topic("orders", 2, partitions=1)
    assert world.image.topic_by_id(topic_id(1)) is None
    assert world.image.topics["orders"].id == topic_id(2)
    assert len(world.image.topics["orders"].partitions) == 1
    assert difference(old, world.image).partitions == (TopicPartition("orders", 0), TopicPartition("orders", 1))


def test_a_topic_replaced_in_one_step_takes_nothing_from_the_old_one() -> None:
    """A store that merges changes may show the new topic without having shown that the old one went."""
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1, partitions=2)
    replaced = ((topic_key("orders"), Entry(encode_topic(topic_id(2), 0, {}), 0)),)
    image = world.image.after(Change(world.image.number + 1, replaced)).new
    assert image.topics["orders"].partitions == {}
    assert list(image.topic_names) == [topic_id(2)]


def test_partitions_are_in_the_order_of_their_numbers_however_the_store_sorts_them() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1, partitions=12)
    assert list(load(world.server.snapshot()).topics["orders"].partitions) == list(range(12))


def test_a_partition_keeps_what_moves_and_who_is_eligible() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1)
    state = PartitionState((1, 2), (1,), 1, 3, 1, adding=(2,), removing=(1,))
    world.commit([Put(partition_key(topic_id(1), 0), encode_partition(state), 0)])
    assert world.image.partition(TopicPartition("orders", 0)) == state
    state = PartitionState((1, 2, 3), (1,), 1, 3, 2, eligible=(2,), last_known=(3,))
    world.commit([Put(partition_key(topic_id(1), 0), encode_partition(state), 1)])
    assert world.image.partition(TopicPartition("orders", 0)) == state
    assert world.image.partition(TopicPartition("orders", 1)) is None
    assert world.image.partition(TopicPartition("none", 0)) is None


def test_a_deleted_partition_key_is_gone() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1, partitions=2)
    world.commit([Delete(partition_key(topic_id(1), 1), 0)])
    assert list(world.image.topics["orders"].partitions) == [0]


def test_a_real_companys_partitions_fit_in_memory() -> None:
    """15,398 partitions of 1,026 topics: the figure to hold is 60 MB; an image in which equal states are one object
    takes a tenth.
    """
    entries: dict[str, Entry] = {}
    for number in range(1026):
        entries[topic_key(f"topic-{number}")] = Entry(encode_topic(topic_id(number + 1), 15, {}), 0)
        for index in range(15):
            state = PartitionState((1,), (1,), 1, 0)
            entries[partition_key(topic_id(number + 1), index)] = Entry(encode_partition(state), 0)
    tracemalloc.start()
    try:
        image = load(StoreSnapshot(1, entries))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(topic.partitions) for topic in image.topics.values()) == 15_390
    assert held_bytes < 10_000_000
