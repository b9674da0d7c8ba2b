"""Who asks for stable offsets is answered by who coordinates the group for certain."""

import asyncio
from pathlib import Path

import pytest

from log.ids import TopicPartition
from service.cluster.controller import RemoveFromLeadership
from service.cluster.image import Image
from service.cluster.metadata import MetadataLost
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.service.api.txn_stage import TxnStage, find_coordinator
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage, told_late, until

COORDINATED = TopicPartition("__consumer_offsets", 0)
GIVEN = {"log.durability": "os", "offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "2"}


async def commit(wire: TxnStage, offset: int) -> int:
    topic = OffsetCommitRequestTopic(TOPIC, partitions=[OffsetCommitRequestPartition(0, offset)])
    answer = await wire.ask(OffsetCommitRequest("readers", topics=[topic]), 9)
    return answer.topics[0].partitions[0].error_code


async def committed(wire: TxnStage, version: int) -> tuple[int, int]:
    """The error of the group, or of its partition, and the offset."""
    if version < 8:
        old = OffsetFetchRequest("readers", [OffsetFetchRequestTopic(TOPIC, [0])], require_stable=True)
        found = await wire.ask(old, version)
        return found.error_code, found.topics[0].partitions[0].committed_offset
    group = OffsetFetchRequestGroup("readers", topics=[OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])])
    [told] = (await wire.ask(OffsetFetchRequest(groups=[group], require_stable=True), version)).groups
    return told.error_code, told.topics[0].partitions[0].committed_offset if told.topics else -1


async def coordinates(stage: ClusterStage, node_id: int) -> None:
    groups = stage.broker(node_id).coordination.groups
    await until(lambda: any(shard.loaded for shard in groups.shards()))


async def coordinated(stage: ClusterStage) -> list[int]:
    """Two brokers, of which the first coordinates the group."""
    await stage.create(1, 2)
    await find_coordinator(stage.wire(1), "readers", key_type=0)
    state = stage.broker(1).metadata.image.partition(COORDINATED)
    assert state is not None
    await coordinates(stage, state.replicas[0])
    return list(state.replicas)


@pytest.mark.parametrize("version", [7, 9])
def test_a_coordinator_that_was_replaced_does_not_tell_older_offsets(tmp_path: Path, version: int) -> None:
    """It told 5 though its successor had acknowledged 8. What was processed, and committed in a transaction, would
    have been processed again.
    """

    async def scene(stage: ClusterStage) -> None:
        former, other = await coordinated(stage)
        assert await commit(stage.wire(former), 5) == ErrorCode.NONE
        assert await committed(stage.wire(former), version) == (ErrorCode.NONE, 5)
        with told_late(stage.broker(former)) as heard:
            await stage.broker(other).metadata.execute(RemoveFromLeadership(former, 1))
            await coordinates(stage, other)
            assert await commit(stage.wire(other), 8) == ErrorCode.NONE
            asking = asyncio.ensure_future(committed(stage.wire(former), version))
            await asyncio.wait([asking], timeout=0.2)
            heard.set()
            assert (await asking)[0] == ErrorCode.NOT_COORDINATOR
        assert await committed(stage.wire(other), version) == (ErrorCode.NONE, 8)

    on_cluster_stage(tmp_path, scene, 1, 2, given=GIVEN)


@pytest.mark.parametrize("version", [7, 9])
def test_who_asks_when_there_are_no_coordinators_at_all_is_told_so(tmp_path: Path, version: int) -> None:
    """The image lost their topic between the request and its look: the connection was closed."""

    async def scene(stage: ClusterStage) -> None:
        coordinator, _ = await coordinated(stage)
        groups = stage.broker(coordinator).coordination.groups
        groups._image = Image
        assert (await committed(stage.wire(coordinator), version)) == (ErrorCode.NOT_COORDINATOR, -1)

    on_cluster_stage(tmp_path, scene, 1, 2, given=GIVEN)


@pytest.mark.parametrize("version", [7, 9])
def test_a_coordinator_that_may_not_answer_for_now_sends_nobody_away(tmp_path: Path, version: int) -> None:
    """Nobody else was known to coordinate the group. A member of librdkafka that is told NOT_COORDINATOR never asks
    again: it held its partitions, sent heartbeats, and read nothing for ever.
    """

    async def scene(stage: ClusterStage) -> None:
        coordinator, _ = await coordinated(stage)
        assert await commit(stage.wire(coordinator), 5) == ErrorCode.NONE

        async def lost() -> None:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The metadata store does not answer.")

        metadata = stage.broker(coordinator).metadata
        metadata.catch_up = lost  # type: ignore[method-assign]
        assert await committed(stage.wire(coordinator), version) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        stage.broker(coordinator).holdings.step_down()
        assert await commit(stage.wire(coordinator), 8) == ErrorCode.NOT_COORDINATOR
        assert await committed(stage.wire(coordinator), version) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)

    on_cluster_stage(tmp_path, scene, 1, 2, given=GIVEN)


@pytest.mark.parametrize("version", [7, 9])
def test_a_broker_that_knows_another_coordinator_says_so(tmp_path: Path, version: int) -> None:
    async def scene(stage: ClusterStage) -> None:
        _, another = await coordinated(stage)
        other = stage.broker(another)
        await until(lambda: other.metadata.image.partition(COORDINATED) is not None)
        assert await committed(stage.wire(another), version) == (ErrorCode.NOT_COORDINATOR, -1)

    on_cluster_stage(tmp_path, scene, 1, 2, given=GIVEN)
