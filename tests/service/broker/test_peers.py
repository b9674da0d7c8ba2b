"""A question to another broker ends in its answer, or in the news that none came."""

import asyncio
from pathlib import Path

import pytest

from service.broker.peers import PeerAway, Peers
from service.client.connection import Client
from service.wire.messages import DescribeClusterRequest
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until


def peers_of(stage: ClusterStage, node_id: int = 1, *, timeout_s: float = 5.0) -> Peers:
    broker = stage.broker(node_id)
    return Peers(broker.config, broker.metadata, lanes=2, timeout_s=timeout_s)


def test_a_broker_is_asked_where_it_is_registered(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        peers = peers_of(stage)
        answer = await peers.ask(2, DescribeClusterRequest())
        assert [broker.broker_id for broker in answer.brokers] == [1, 2]
        assert (peers.is_there(2), peers.is_there(3)) == (True, False)
        with pytest.raises(PeerAway) as away:
            await peers.ask(3, DescribeClusterRequest())
        assert not away.value.may_come_late
        await peers.close()

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_what_was_never_sent_can_not_come_late(tmp_path: Path) -> None:
    """Its port is closed, and the cluster has not noticed yet."""

    async def scene(stage: ClusterStage) -> None:
        peers = peers_of(stage)
        for server in stage.lives[2].servers:
            await server.close()
        with pytest.raises(PeerAway) as away:
            await peers.ask(2, DescribeClusterRequest())
        assert not away.value.may_come_late
        await peers.close()

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_what_was_sent_and_not_answered_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: ClusterStage) -> None:
        peers = peers_of(stage, timeout_s=0.1)
        await peers.ask(2, DescribeClusterRequest())
        with monkeypatch.context() as silent:
            silent.setattr(Client, "request", lambda *_: asyncio.sleep(60))
            with pytest.raises(PeerAway) as away:
                await peers.ask(2, DescribeClusterRequest())
        assert away.value.may_come_late
        assert (await peers.ask(2, DescribeClusterRequest())).brokers, "over a new connection"
        await peers.close()

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_a_question_that_takes_long_does_not_hold_up_another_lane(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        peers = peers_of(stage)
        for lane in (0, 1):
            await peers.ask(2, DescribeClusterRequest(), lane=lane)
        assert len({id(pool._clients) for pool in peers._pools}) == 2
        assert [len(pool.connected) for pool in peers._pools] == [1, 1], "a connection for each"
        await peers.close()
        await until(lambda: not any(pool.connected for pool in peers._pools))

    on_cluster_stage(tmp_path, scene, 1, 2)
