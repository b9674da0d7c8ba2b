"""Who asks the wrong broker is told in the answer who leads, and where that one is (KIP-951)."""

from pathlib import Path

import pytest

from log.batch import build_batch
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage, until


async def produce(stage: ClusterStage, node_id: int, version: int) -> ProduceResponse:
    topic_id = stage.broker(node_id).metadata.image.topics[TOPIC].id
    batch = build_batch([(b"k", b"v", (), 1)])
    data = TopicProduceData(TOPIC, topic_id, [PartitionProduceData(0, batch)])
    return await stage.wire(node_id).ask(ProduceRequest(None, -1, 3000, [data]), version)


async def fetch(stage: ClusterStage, node_id: int, version: int, *, leader_epoch: int = -1) -> FetchResponse:
    topic_id = stage.broker(node_id).metadata.image.topics[TOPIC].id
    wanted = FetchPartition(0, leader_epoch, 0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, session_epoch=-1, topics=[FetchTopic(TOPIC, topic_id, [wanted])])
    return await stage.wire(node_id).ask(request, version)


@pytest.mark.parametrize("node_id", [2, 3], ids=["a follower", "one that has no part in it"])
def test_a_client_at_the_wrong_broker_is_sent_to_the_leader(tmp_path: Path, node_id: int) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        leader, epoch = stage.broker(1), stage.state().leader_epoch
        endpoint = leader.metadata.image.brokers[1].endpoints[0]
        here = 1, endpoint.host, endpoint.port
        for version in (9, 10, 13):
            written = await produce(stage, node_id, version)
            [outcome] = written.responses[0].partition_responses
            assert outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            told = [(node.node_id, node.host, node.port) for node in written.node_endpoints]
            if version < 10:
                assert (outcome.current_leader, told) == (None, [])
                continue
            assert outcome.current_leader is not None
            assert (outcome.current_leader.leader_id, outcome.current_leader.leader_epoch) == (1, epoch)
            assert told == [here]
        for version in (12, 16, 18) if node_id == 3 else ():  # followers serve readers
            read = await fetch(stage, node_id, version)
            [found] = read.responses[0].partitions
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            told = [(node.node_id, node.host, node.port) for node in read.node_endpoints]
            if version < 16:
                assert (found.current_leader, told) == (None, [])
                continue
            assert found.current_leader is not None
            assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (1, epoch)
            assert told == [here]

    on_cluster_stage(tmp_path, scene)


def test_after_a_takeover_it_is_the_new_leader_that_is_named(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.in_sync(1, 2)
        await stage.kill(1)
        await until(lambda: stage.broker(3).metadata.image.topics[TOPIC].partitions[0].leader == 2)
        answer = await produce(stage, 3, 13)
        [outcome] = answer.responses[0].partition_responses
        assert outcome.current_leader is not None
        assert (outcome.current_leader.leader_id, [node.node_id for node in answer.node_endpoints]) == (2, [2])
        await stage.start(1)
        await stage.in_sync(1, 2)
        read = await fetch(stage, 1, 18, leader_epoch=0)
        [found] = read.responses[0].partitions
        assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert found.current_leader is not None
        assert found.current_leader.leader_id == 2

    on_cluster_stage(tmp_path, scene)


def test_a_topic_that_nobody_knows_is_unknown(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        data = TopicProduceData("unheard of", bytes(16), [PartitionProduceData(0, build_batch([(b"k", b"v", (), 1)]))])
        answer = await stage.wire(1).ask(ProduceRequest(None, -1, 3000, [data]), 12)
        [outcome] = answer.responses[0].partition_responses
        assert (outcome.error_code, outcome.current_leader) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)

    on_cluster_stage(tmp_path, scene, 1)
