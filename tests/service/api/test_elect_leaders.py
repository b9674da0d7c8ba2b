"""An operator's election of replicas that were asked what they have."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from log.ids import TopicPartition
from service.api.elect_leaders import handle
from service.cluster.image import Image
from service.cluster.reassign_commands import UNCLEAN, ElectLeaders, ReassignResult
from service.wire.error_codes import ErrorCode
from service.wire.messages import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from tests.service.cluster.test_controller import alone_in_sync


def test_nobody_leads_uncleanly_whose_partition_has_changed_while_the_replicas_were_asked() -> None:
    """Another election was first. Its leader acknowledged, and died before all had answered."""
    world = alone_in_sync(3)
    for broker in (2, 3):
        world.add_broker(broker, clean=False)

    class Metadata:
        @property
        def image(self) -> Image:
            return world.image

        def min_in_sync(self) -> int:
            return 1

        async def execute(self, command: ElectLeaders) -> list[ReassignResult]:
            return world.run(command)

    class Copies:
        def __init__(self, *meanwhile: int) -> None:
            self.meanwhile = meanwhile

        async def best_first(
            self, candidates: Mapping[TopicPartition, Sequence[int]]
        ) -> Mapping[TopicPartition, Sequence[int]]:
            for elected in self.meanwhile:
                await ask(Copies())
                world.lose_broker(elected)
            return candidates

    async def ask(copies: Any) -> list[int]:
        metadata: Any = Metadata()
        unused: Any = None
        answer = await handle(metadata, copies, unused, unused, ElectLeadersRequest(UNCLEAN, None))
        [topic] = answer.replica_election_results
        return [partition.error_code for partition in topic.partition_result]

    assert asyncio.run(ask(Copies(2))) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    state = world.image.partition(TopicPartition("orders", 0))
    assert state is not None
    assert state.isr == (2,), "what it acknowledged waits for it"


def test_an_unknown_type_is_refused_for_each_partition_that_is_named() -> None:
    """As Kafka does, for clients that look only there."""
    unused: Any = None
    request = ElectLeadersRequest(2, [ElectLeadersRequestTopicPartitions("orders", [0, 7])])
    answer = asyncio.run(handle(unused, unused, unused, unused, request))
    [topic] = answer.replica_election_results
    told = [(each.partition_id, each.error_code, each.error_message) for each in topic.partition_result]
    refused = ErrorCode.INVALID_REQUEST, "Unknown election type 2"
    assert (answer.error_code, topic.topic, told) == (refused[0], "orders", [(0, *refused), (7, *refused)])
