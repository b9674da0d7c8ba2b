"""The controller sees to it that partitions have living leaders, whatever was decided while a broker died."""

import asyncio
from pathlib import Path

import pytest

from log.ids import TopicPartition
from service.cluster import metadata as cluster_metadata
from service.cluster.controller import MetadataDecision
from service.cluster.image import Image
from service.cluster.topic_commands import CreateTopics, NewTopic, TopicResult
from service.turns import Steps
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until
from tests.service.cluster.worlds import topic_id


@pytest.mark.parametrize("dips", [False, True], ids=["", "while the store is silent"])
def test_a_topic_that_was_decided_on_before_its_leader_died_gets_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dips: bool
) -> None:
    monkeypatch.setattr(cluster_metadata, "LOOKS_PER_LEASE", 0.001)  # nobody looks while the store is silent

    async def scene(stage: ClusterStage) -> None:
        died = asyncio.Event()

        class Slow:
            """As a request with very many topics: others have turns while it is decided on."""

            def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[list[TopicResult]]]:
                new = NewTopic("late", topic_id(9), assignment=((0, (2, 1, 3)),))
                decision = yield from CreateTopics((new,), 1, 1).decide(image, retried=retried)
                while not died.is_set():
                    yield
                return decision

        metadata, controller = stage.broker(3).metadata, stage.broker(1)
        assert controller.metadata.controlling
        creating = asyncio.ensure_future(metadata.execute(Slow()))
        await asyncio.sleep(0.1)
        await stage.kill(2)
        await until(lambda: 2 not in metadata.image.brokers and 2 not in controller.metadata.image.brokers)
        await asyncio.sleep(0.5)  # the controller has replaced it, and rests
        with monkeypatch.context() as patch:
            if dips:
                patch.setattr(controller.metadata._session, "lease_left", lambda: 0.0)
            died.set()
            await creating
            await until(lambda: controller.metadata.image.partition(TopicPartition("late", 0)) is not None)
            await asyncio.sleep(0.1)
        await until(lambda: _leader(metadata.image) in (1, 3), within_s=5)

    on_cluster_stage(tmp_path, scene)


def _leader(image: Image) -> int:
    state = image.partition(TopicPartition("late", 0))
    assert state is not None
    return state.leader
