"""A broker whose process may have died is named to no client as a leader, for a moment: who asks again soon waits less.
And what a line that breaks does not say.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from service.broker.internal_topics import GROUPS
from service.broker.node import Broker
from service.cluster import lookout, metadata
from service.cluster.duties import Duties
from service.cluster.image import RegisteredBroker
from service.groups.partitioning import partition_for
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopicRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage, until

LED_BY_2 = (0, 2)
NOT_LED = (ErrorCode.LEADER_NOT_AVAILABLE, -1)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Who would have replaced whom. Nobody does, so that what is said until then can be seen."""
    tried: list[tuple[int, int]] = []

    async def replace(duties: Duties, broker: RegisteredBroker) -> None:
        tried.append((duties._metadata.broker_id, broker.id))

    monkeypatch.setattr(Duties, "_replace_dead", replace)
    monkeypatch.setattr(lookout, "AGAIN_S", 0.05)
    return tried


async def leader(stage: ClusterStage, asked: int) -> tuple[int, int]:
    answer = await stage.wire(asked).ask(MetadataRequest([MetadataRequestTopic(name=TOPIC)]))
    [partition] = answer.topics[0].partitions
    request = DescribeTopicPartitionsRequest([DescribeTopicPartitionsRequestTopicRequest(TOPIC)])
    [described] = (await stage.wire(asked).ask(request)).topics[0].partitions
    assert (described.error_code, described.leader_id) == (partition.error_code, partition.leader_id)
    return partition.error_code, partition.leader_id


async def coordinator(stage: ClusterStage, asked: int) -> tuple[int, int]:
    """Of a group whose partition of the internal topic is led by broker 2. There are as many partitions as brokers."""
    topic = stage.broker(asked).metadata.image.topics[GROUPS.name]
    group = next(each for each in map(str, range(100)) if topic.partitions[partition_for(each, 3)].leader == 2)
    answer = await stage.wire(asked).ask(FindCoordinatorRequest("", 0, [group]))
    return answer.coordinators[0].error_code, answer.coordinators[0].node_id


def lines(broker: Broker) -> dict[int, asyncio.Transport]:
    return broker.duties._lookout._lines


async def led_by_2(stage: ClusterStage) -> None:
    """A topic and a group, which broker 2 leads and coordinates; all lines have stood for long enough."""
    await stage.create(2, 3)
    stage.broker(2).coordination.internal_topics.bring_about(GROUPS)
    await until(lambda: all(GROUPS.name in life.broker.metadata.image.topics for life in stage.lives.values()))
    await until(lambda: all(len(lines(life.broker)) == len(stage.lives) - 1 for life in stage.lives.values()))
    await asyncio.sleep(2 * lookout.AGAIN_S)
    assert await leader(stage, 3) == await coordinator(stage, 3) == LED_BY_2


THREE_OF_GROUPS = {"offsets.topic.num.partitions": "3", "offsets.topic.replication.factor": "1"}


@pytest.mark.parametrize("asked", [1, 3], ids=["the controller", "another one"])
def test_a_leader_that_may_have_died_is_not_named_until_its_takeover_or_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: list[tuple[int, int]], asked: int
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await led_by_2(stage)
        suspecting = stage.broker(asked).metadata
        broker = suspecting.image.brokers[2]
        monkeypatch.setattr(metadata, "SUSPECTED_S", 60.0)
        await stage.lives[2].servers[0].close()  # its port refuses, though its session lives
        await until(lambda: suspecting.is_suspect(broker))
        assert await leader(stage, asked) == NOT_LED
        assert await coordinator(stage, asked) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        await until(lambda: (1, 2) in replaced)
        await asyncio.sleep(2 * lookout.AGAIN_S)  # it refuses again
        assert await leader(stage, asked) == NOT_LED
        assert set(replaced) == {(1, 2)}, "only the controller replaces a broker"
        suspecting._suspected[broker.epoch] = broker, suspecting._env.clock.monotonic()
        assert await leader(stage, asked) == LED_BY_2, "clients may reach it, so this must not last"
        assert await coordinator(stage, asked) == LED_BY_2

    on_cluster_stage(tmp_path, scene, given=THREE_OF_GROUPS)


@pytest.mark.usefixtures("replaced")
def test_a_leader_whose_line_stands_again_is_named_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "SUSPECTED_S", 60.0)

    async def scene(stage: ClusterStage) -> None:
        await led_by_2(stage)
        asked = stage.broker(3)
        broker = asked.metadata.image.brokers[2]
        first = lines(asked)[broker.epoch]
        connect = asyncio.Event()
        create = asyncio.get_running_loop().create_connection

        async def later(*how: object) -> object:
            await connect.wait()
            return await create(*how)  # type: ignore[call-overload]

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", later)
        first.abort()
        await until(lambda: asked.metadata.is_suspect(broker))
        assert await leader(stage, 3) == NOT_LED
        connect.set()
        await until(lambda: broker.epoch in lines(asked))
        assert await leader(stage, 3) == NOT_LED, "a process that is dying accepts connections, too"
        await until(lambda: not asked.metadata.is_suspect(broker))
        assert broker.epoch in lines(asked)
        assert await leader(stage, 3) == LED_BY_2

    on_cluster_stage(tmp_path, scene, given=THREE_OF_GROUPS)


def test_a_leader_that_was_replaced_stays_in_the_list_of_brokers_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka forgets the new leader if the old one leaves the list in the same answer, and asks a second later."""
    monkeypatch.setattr(lookout, "AGAIN_S", 0.05)
    monkeypatch.setattr(metadata, "SUSPECTED_S", 60.0)

    async def listed(stage: ClusterStage) -> list[int]:
        return sorted(each.node_id for each in (await stage.wire(3).ask(MetadataRequest([]))).brokers)

    async def scene(stage: ClusterStage) -> None:
        await led_by_2(stage)
        asked = stage.broker(3).metadata
        former = asked.image.brokers[2]
        await stage.kill(2)
        await until(lambda: stage.state().leader == 3)
        assert await leader(stage, 3) == (0, 3)
        assert await listed(stage) == [1, 2, 3]
        asked._suspected[former.epoch] = former, asked._env.clock.monotonic()
        assert await listed(stage) == [1, 3]
        asked.suspect(former)
        await stage.start(2)
        await until(lambda: 2 in asked.image.brokers)
        assert await listed(stage) == [1, 2, 3]

    on_cluster_stage(tmp_path, scene, given=THREE_OF_GROUPS)


@pytest.mark.usefixtures("replaced")
def test_of_a_former_life_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line to it stayed open until it was idle for ten minutes: one more with each session that was lost."""
    monkeypatch.setattr(metadata, "SUSPECTED_S", 60.0)

    async def scene(stage: ClusterStage) -> None:
        await led_by_2(stage)
        asked = stage.broker(3)
        former = asked.metadata.image.brokers[2]
        former_line = lines(asked)[former.epoch]
        asked.metadata.suspect(former)
        stage.broker(2).metadata._lost("a session is lost")

        def is_back() -> bool:
            present = asked.metadata.image.brokers.get(2)
            return present is not None and present.epoch != former.epoch and present.epoch in lines(asked)

        await until(is_back)
        assert not asked.metadata.is_suspect(asked.metadata.image.brokers[2])
        await until(lambda: former_line.is_closing() and len(lines(asked)) == 2)

    on_cluster_stage(tmp_path, scene, given=THREE_OF_GROUPS)


def test_a_broker_without_room_for_connections_is_not_suspected_nor_asked_on_and_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts a connection and ends it at once, and got thousands of them in a second."""

    async def scene(stage: ClusterStage) -> None:
        came = 0

        class Full(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal came
                came += 1
                transport.abort()  # type: ignore[attr-defined]

        server = await asyncio.get_running_loop().create_server(Full, "127.0.0.1", 0)
        broker = stage.broker(1)
        address: Callable[[RegisteredBroker], tuple[str, int]] = lambda _: server.sockets[0].getsockname()[:2]  # noqa: E731

        async def nobody(dead: RegisteredBroker) -> None:
            raise AssertionError(dead)

        lookout.Lookout(broker.env, broker.metadata, address, nobody).look()
        await until(lambda: came > 0)
        await asyncio.sleep(0.3)
        assert 2 <= came <= 6
        assert not broker.metadata.is_suspect(broker.metadata.image.brokers[2])
        server.close()

    on_cluster_stage(tmp_path, scene, 1, 2)
