"""The partitions that are being moved, told to who asks."""

from types import SimpleNamespace
from typing import Any

import pytest

from log.ids import TopicPartition
from service.api.list_partition_reassignments import handle
from service.broker.session import Session
from service.cluster.reassign_commands import Reassign
from service.wire.codec import RequestHeader
from service.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from tests.service.cluster.worlds import World


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ([[0], [5]], [0]),
        ([[0], [1]], [0, 1]),
        ([[1], [0, 1]], [0, 1]),
        ([[2], [5]], []),
    ],
)
def test_all_partitions_count_of_a_topic_that_is_named_twice(named: list[list[int]], told: list[int]) -> None:
    """The last ones replaced the first, and a move that was asked about seemed to have ended."""
    world = World()
    for broker in (1, 2, 3):
        world.add_broker(broker)
    world.add_topic("orders", 1, partitions=3)
    for index in 0, 1:
        others = tuple({1, 2, 3}.difference(world.image.topics["orders"].partitions[index].replicas))
        world.run(Reassign(((TopicPartition("orders", index), others),)))
    metadata: Any = SimpleNamespace(image=world.image)
    request = ListPartitionReassignmentsRequest(
        topics=[ListPartitionReassignmentsTopics("orders", indexes) for indexes in named]
    )
    answer = handle(metadata, Session("10.0.0.9", 1234), RequestHeader(46, 0, 1, "client"), request)
    assert isinstance(answer, ListPartitionReassignmentsResponse)
    assert [(topic.name, [each.partition_index for each in topic.partitions]) for topic in answer.topics] == (
        [("orders", told)] if told else []
    )
