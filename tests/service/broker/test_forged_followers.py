"""Fetches by which a client says that it is a broker."""

from pathlib import Path

import pytest

from service.wire.error_codes import ErrorCode
from service.wire.messages import FetchPartition, FetchRequest, FetchRequestReplicaState, FetchTopic
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until


@pytest.mark.parametrize("replica_id", [2, 3], ids=["of a later life", "that is not there"])
def test_a_follower_with_an_epoch_that_nobody_registered_is_not_believed(tmp_path: Path, replica_id: int) -> None:
    """It was, so the true follower counted as a former life of it, and was refused until another broker led."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="2")
        await stage.write("before")
        await stage.in_sync(1, 2, 3)
        if replica_id == 3:
            await stage.stop(3)
            await until(lambda: 3 not in stage.broker(1).metadata.image.brokers)
        leader = stage.partition(1)
        assert leader.is_leading
        asked = FetchPartition(partition=0, fetch_offset=0, log_start_offset=0)
        forged = FetchRequest(
            replica_state=FetchRequestReplicaState(replica_id, 2**62),
            max_wait_ms=0,
            topics=[FetchTopic(topic_id=leader.topic_id, partitions=[asked])],
        )
        answer = await stage.wire(1).ask(forged)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        await stage.write("after")
        if replica_id == 3:
            await stage.start(3)
        await stage.in_sync(1, 2, 3)
        await stage.write("at last")

    on_cluster_stage(tmp_path, scene, given={"log.durability": "os"})
