"""The controller sees to it that partitions have living leaders, whatever was decided while a broker died."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from log.ids import TopicPartition
from service.cluster import metadata as cluster_metadata
from service.cluster.controller import Command, MetadataDecision, RemoveDead
from service.cluster.duties import Duties
from service.cluster.image import Image
from service.cluster.topic_commands import CreateTopics, NewTopic, TopicResult
from service.settings.broker import BrokerConfig
from service.turns import Steps
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until
from tests.service.cluster.test_controller import alone_in_sync
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


def test_a_leader_that_was_chosen_among_empty_ones_is_not_replaced_by_another_of_them() -> None:
    """All were empty, and one led. It acknowledged, and died before the command was repeated, which takes as long as
    the store needs: then another led, without what the first had alone.
    """
    world = alone_in_sync(3, "first")
    world.add_broker(1, clean=False, directories=("new",))  # the last member's disk is gone
    for other in (2, 3):
        world.add_broker(other, clean=False)
    orders, elections = TopicPartition("orders", 0), 0

    class Metadata:
        in_session = controlling = is_controller = True

        @property
        def image(self) -> Image:
            return world.image

        async def claim(self) -> None:
            return

        def min_in_sync(self) -> int:
            return 1

        async def execute(self, command: Command[int], *, as_controller: bool) -> int:
            nonlocal elections
            if not isinstance(command, RemoveDead) or not command.unclean:
                return 0
            elections += 1
            if elections == 2:
                world.lose_broker(1)
            return world.run(command)

    async def nobody(lost: Mapping[TopicPartition, Sequence[int]]) -> Mapping[TopicPartition, Sequence[int]]:
        return {}

    async def all_are_empty(lost: Mapping[TopicPartition, Sequence[int]]) -> Mapping[TopicPartition, Sequence[int]]:
        return lost

    env: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 0.0))
    metadata: Any = Metadata()
    duties = Duties(env, BrokerConfig(), metadata, lambda broker: ("", 0), {}, nobody, all_are_empty)
    duties._plan_rebalance()
    asyncio.run(duties._do())
    assert elections == 2
    state = world.image.partition(orders)
    assert state is not None
    assert state.isr == (1,), "what it acknowledged waits for it"


def _leader(image: Image) -> int:
    state = image.partition(TopicPartition("late", 0))
    assert state is not None
    return state.leader
