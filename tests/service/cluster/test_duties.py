"""The controller sees to it that partitions have living leaders, whatever was decided while a broker died."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from log.ids import TopicPartition
from log.steps import done_at_once
from service.broker.opening import PartitionMaker
from service.cluster import metadata as cluster_metadata
from service.cluster.config_commands import AlterConfigs, ConfigChange, Operation, ResourceChange, ResourceType
from service.cluster.controller import Command, MetadataDecision, RemoveDead
from service.cluster.duties import LOOKED_AT_MOST, Duties, _in
from service.cluster.election import claim
from service.cluster.image import ALL_BROKERS, Image, PartitionState, Topic
from service.cluster.metadata import ClusterMetadata
from service.cluster.reassign_commands import Reassign
from service.cluster.topic_commands import CreateTopics, NewTopic, TopicResult
from service.settings.broker import BrokerConfig
from service.stores.memory import MemorySession
from service.stores.port import Result
from service.turns import Steps
from service.wire.error_codes import ErrorCode
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until
from tests.service.cluster.test_controller import alone_in_sync
from tests.service.cluster.test_metadata import cluster
from tests.service.cluster.worlds import ENDPOINTS, World, decided, topic_id
from tests.service.web.kit import turns_of


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


def test_a_broker_that_only_reads_its_logs_does_not_control_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power of all failed, and the first to start read its logs for long. It controlled the cluster, and did
    nothing: no partition of a broker that died meanwhile got another leader.
    """
    open_all, go_on = PartitionMaker.open_all, asyncio.Event()

    async def slowly(maker: PartitionMaker, image: Image, node_id: int) -> None:
        if node_id == 1:
            await go_on.wait()
        await open_all(maker, image, node_id)

    async def scene(stage: ClusterStage) -> None:
        for each in (1, 2, 3):
            await stage.stop(each)
        monkeypatch.setattr(PartitionMaker, "open_all", slowly)
        first = asyncio.ensure_future(stage.start(1))
        try:
            await asyncio.sleep(0.1)
            other = await stage.start(2)
            await stage.start(3)
            await stage.create(3, 2)
            await stage.kill(3)
            await until(lambda: stage.state().leader == 2, within_s=5)
            controller = other.metadata.image.controller
            assert controller is not None and controller.id == 2
        finally:
            go_on.set()
            await first

    on_cluster_stage(tmp_path, scene)


def test_a_lease_that_is_back_before_anybody_has_noticed_keeps_no_broker_from_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was out as the controller went: nobody controlled the cluster until the leaders were looked at again, up to
    five minutes. And another broker did not look out for the next controller.
    """
    lease_left = MemorySession.lease_left

    async def main() -> None:
        async with cluster(tmp_path) as world:
            first, second, third = [await world.broker(each) for each in (1, 2, 3)]
            for each in (first, second, third):
                await each.register(ENDPOINTS, rack=None, closed_life=None)
            await first.claim()
            duties: dict[ClusterMetadata, Duties] = {}
            for each in (second, third):
                await each.catch_up()
                own = Duties(world.env, BrokerConfig(), each, lambda broker: ("127.0.0.1", 1), {}, nobody, nobody)
                each.subscribe(own.heard)
                world.env.tasks.spawn("duties", own.run())
                duties[each] = own
            out = [each._session for each in (second, third)]
            monkeypatch.setattr(
                MemorySession, "lease_left", lambda session: 0.0 if session in out else lease_left(session)
            )
            await first.close()
            await until(lambda: second.image.controller is None)
            await asyncio.sleep(0.05)
            out.remove(second._session)
            await until(lambda: second.controlling, within_s=5)
            await until(lambda: third.image.controller_id == 2)
            await asyncio.sleep(0.05)
            out.remove(third._session)
            await until(lambda: list(duties[third]._lookout._watched) == [2], within_s=5)

    asyncio.run(main())


class Metadata:
    """Of a broker that controls the cluster; its commands are carried out at once."""

    in_session = controlling = is_controller = True
    broker_id = 2

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def image(self) -> Image:
        return self.world.image

    async def claim(self) -> None:
        return

    def min_in_sync(self) -> int:
        return 1

    async def execute(self, command: Command[int], *, as_controller: bool) -> int:
        return self.world.run(command)


Asked = Mapping[TopicPartition, Sequence[int]]


async def nobody(lost: Asked) -> Asked:
    return {}


def control_once(
    metadata: Any,
    best_first: Callable[[Asked], Awaitable[Asked]],
    without_any: Callable[[Asked], Awaitable[Asked]] = nobody,
    config: BrokerConfig | None = None,
) -> None:
    tasks = SimpleNamespace(spawn=lambda name, work: work.close())
    env: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 0.0), tasks=tasks)
    duties = Duties(env, config or BrokerConfig(), metadata, lambda broker: ("", 0), {}, best_first, without_any)
    duties._plan_rebalance()
    asyncio.run(duties._do())


@pytest.mark.parametrize("is_first", [False, True], ids=["it was set before", "nothing was set before"])
@pytest.mark.parametrize("when", ["never", "while the replicas are asked", "after the decision"])
@pytest.mark.parametrize(
    ("kind", "whose"), [(ResourceType.TOPIC, "orders"), (ResourceType.BROKER, ""), (ResourceType.BROKER, "2")]
)
def test_no_replica_is_let_lead_uncleanly_once_that_has_been_turned_off(
    when: str, kind: ResourceType, whose: str, is_first: bool
) -> None:
    config = BrokerConfig({"unclean.leader.election.enable": str(is_first).lower()})
    world = alone_in_sync(3)
    for broker in (2, 3):
        world.add_broker(broker, clean=False)
    world.commit(claim(world.image, broker_id=2, session=world._sessions[2]))

    def switch(value: str) -> None:
        change = ConfigChange("unclean.leader.election.enable", Operation.SET, value)
        resource = ResourceChange(kind, whose, (change,))
        times_named = {(int(kind), whose): 1}
        [result] = world.run(AlterConfigs((resource,), BrokerConfig(), 2, {}, {}, times_named))
        assert result.error is ErrorCode.NONE, result
        config.set_dynamic(*(world.image.broker_config(each).values for each in (ALL_BROKERS, "2")))

    async def ask(lost: Asked) -> Asked:
        assert list(lost) == [TopicPartition("orders", 0)]
        if when == "while the replicas are asked":
            switch("false")
        return lost

    class HearsLate(Metadata):
        async def execute(self, command: Command[int], *, as_controller: bool) -> int:
            decision = decided(command, world.image)
            if when == "after the decision" and isinstance(command, RemoveDead) and command.unclean:
                switch("false")
                assert world.server.commit(world.server.open_session(1e9), decision.ops) is Result.CONFLICT
                return 0
            world.commit(decision.ops)
            return decision.reply

    if not is_first:
        switch("true")
    control_once(HearsLate(world), ask, config=config)
    state = world.image.partition(TopicPartition("orders", 0))
    assert state is not None
    assert state.isr == ((2,) if when == "never" else (1,))


def test_a_leader_that_was_chosen_among_empty_ones_is_not_replaced_by_another_of_them() -> None:
    """All were empty, and one led. It acknowledged, and died before the command was repeated, which takes as long as
    the store needs: then another led, without what the first had alone.
    """
    world = alone_in_sync(3, "first")
    world.add_broker(1, clean=False, directories=("new",))  # the last member's disk is gone
    for other in (2, 3):
        world.add_broker(other, clean=False)
    orders, elections = TopicPartition("orders", 0), 0

    class DiesAfterTheFirst(Metadata):
        async def execute(self, command: Command[int], *, as_controller: bool) -> int:
            nonlocal elections
            if not isinstance(command, RemoveDead) or not command.unclean:
                return 0
            elections += 1
            if elections == 2:
                world.lose_broker(1)
            return world.run(command)

    async def all_are_empty(lost: Asked) -> Asked:
        return lost

    control_once(DiesAfterTheFirst(world), nobody, all_are_empty)
    assert elections == 2
    state = world.image.partition(orders)
    assert state is not None
    assert state.isr == (1,), "what it acknowledged waits for it"


def test_a_reassignment_ends_when_the_replica_it_waited_for_is_back() -> None:
    """Its session had ended, and it joined again before anybody had replaced it."""
    world = World()
    for broker in (1, 2):
        world.add_broker(broker)
    world.add_topic("orders", 1, replicas=2)
    orders = TopicPartition("orders", 0)
    world.lose_broker(2)
    world.run(Reassign(((orders, (2,)),)))
    world.add_broker(2)
    control_once(Metadata(world), nobody)
    state = world.image.partition(orders)
    assert state is not None
    assert state[:3] == ((2,), (2,), 2)


@pytest.mark.parametrize("lost", ["what brokers that are gone held", "by all"])
def test_others_have_their_turns_while_very_many_partitions_are_looked_at(lost: str) -> None:
    """A controller that looked at 15,400 partitions of brokers that were gone held its loop for 21 ms."""
    world = World()
    world.add_broker(1)
    state = PartitionState((2, 1), (2,), -1, 0) if lost != "by all" else PartitionState((1,), (), -1, 0)
    topic = Topic("orders", topic_id(1), 0, {}, dict.fromkeys(range(4 * LOOKED_AT_MOST), state))
    image = replace(world.image, topics={"orders": topic})
    env: Any = SimpleNamespace()
    config = BrokerConfig({"unclean.leader.election.enable": "true"})
    duties = Duties(env, config, cast(Any, None), lambda broker: ("", 0), {}, nobody, nobody)
    look = duties._without_members if lost == "by all" else duties._without_holders
    assert sum(1 for _ in look(image)) >= 3
    found = done_at_once(look(image))
    assert len(found) == 4 * LOOKED_AT_MOST
    assert turns_of(_in(image, found)) >= 3


def _leader(image: Image) -> int:
    state = image.partition(TopicPartition("late", 0))
    assert state is not None
    return state.leader
