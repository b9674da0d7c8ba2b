"""Changes by an operator whose first commit has failed, and nobody knows: its answer was lost."""

import asyncio
from typing import Any

from service.api import alter_partition_reassignments, create_partitions, incremental_alter_configs
from service.cluster.config_commands import Operation, ResourceType
from service.cluster.controller import Command
from service.cluster.image import Image
from service.settings.broker import BrokerConfig
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.service.cluster.worlds import World, decided


class Metadata:
    broker_id = 1

    def __init__(self) -> None:
        self.world = World()
        for broker in (1, 2):
            self.world.add_broker(broker)
        self.world.add_topic("orders", 1)

    @property
    def image(self) -> Image:
        return self.world.image

    def min_in_sync(self) -> int:
        return 1

    async def execute(self, command: Command[Any]) -> Any:
        decision = decided(command, self.world.image, retried=True)
        self.world.commit(decision.ops)
        return decision.reply


unused: Any = None


def test_a_reassignment_is_carried_out_by_the_second_commit() -> None:
    metadata: Any = Metadata()
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic("orders", [ReassignablePartition(0, [1, 2])])]
    )
    answer = asyncio.run(alter_partition_reassignments.handle(metadata, unused, unused, request))
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
    assert metadata.image.topics["orders"].partitions[0].adding == (2,)


def test_partitions_are_made_by_the_second_commit() -> None:
    metadata: Any = Metadata()
    request = CreatePartitionsRequest([CreatePartitionsTopic("orders", 3, None)])
    answer = asyncio.run(create_partitions.handle(metadata, unused, unused, request))
    assert answer.results[0].error_code == ErrorCode.NONE
    assert len(metadata.image.topics["orders"].partitions) == 3


def test_a_setting_is_changed_by_the_second_commit() -> None:
    metadata: Any = Metadata()
    config = IncrementalAlterConfigsRequestAlterableConfig("retention.ms", Operation.SET, "5")
    request = IncrementalAlterConfigsRequest(
        [IncrementalAlterConfigsRequestAlterConfigsResource(ResourceType.TOPIC, "orders", [config])]
    )
    answer = asyncio.run(incremental_alter_configs.handle(metadata, BrokerConfig(), unused, unused, request))
    assert answer.responses[0].error_code == ErrorCode.NONE
    assert metadata.image.topics["orders"].config == {"retention.ms": "5"}
