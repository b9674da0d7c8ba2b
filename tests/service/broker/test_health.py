"""What is wrong between brokers is found, named with its reason, and told no more when it is over."""

import socket
from pathlib import Path

import pytest

from service.broker import health
from service.broker.health import Trouble
from service.ports import RealClock
from service.wire.messages import DescribeHealthRequest
from tests.service.broker.cluster_stage import ALL, BROKERS, TOPIC, TOPICS, ClusterStage, on_cluster_stage, until


class Shifted(RealClock):
    """A clock that is ahead."""

    @staticmethod
    def wall_ms() -> int:
        return RealClock.wall_ms() + 7_000


async def troubles(stage: ClusterStage, node_id: int) -> dict[tuple[str, str], Trouble]:
    """As two looks in a row find them."""
    broker = stage.broker(node_id)
    for _ in range(2):
        await broker.health.look()
    return {(each.kind, each.about): each for each in broker.health.troubles}


async def none_left(stage: ClusterStage, node_id: int) -> None:
    broker = stage.broker(node_id)
    while broker.health.troubles:
        await broker.health.look()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_brokers_that_are_well_find_nothing(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        assert not await troubles(stage, 1)
        assert abs(stage.broker(1).health.clocks_apart_s[2]) < 1
        told = await stage.wire(2).ask(DescribeHealthRequest())
        assert (told.broker_id, told.cluster_id) == (2, stage.broker(1).metadata.image.cluster_id)
        assert not told.troubles

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_an_address_that_nobody_reaches_or_another_has_is_named(tmp_path: Path) -> None:
    port, own = closed_port(), closed_port()
    given = {
        1: {"listeners": f"PLAINTEXT://127.0.0.1:{own}"},
        2: {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"},
        3: {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{own}"},
    }

    async def scene(stage: ClusterStage) -> None:
        await stage.broker(1).health.look()
        assert not stage.broker(1).health.troubles, "once may be a restart"
        found = await troubles(stage, 1)
        assert found.keys() == {("unreachable", "broker 2"), ("stranger", "broker 3")}
        says = found["unreachable", "broker 2"].says
        assert f"broker 2 can't be reached at 127.0.0.1:{port}" in says
        assert "advertised.listeners" in says
        assert (
            f"127.0.0.1:{own}, where broker 3 says that it is, leads to broker 1" in found["stranger", "broker 3"].says
        )
        told = await stage.wire(1).ask(DescribeHealthRequest())
        assert [each.says for each in told.troubles] == [each.says for each in found.values()]

    on_cluster_stage(tmp_path, scene, each=lambda node_id: given[node_id])


def test_a_clock_that_is_apart_is_named_by_both(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        env = stage.broker(2).env
        right, env.clock = env.clock, Shifted()
        says = (await troubles(stage, 1))["clock", "broker 2"].says
        assert "the clock of broker 2 is 7.0 s ahead of this broker's" in says or "6.9 s" in says
        assert 6 < stage.broker(1).health.clocks_apart_s[2] <= 7
        assert " behind this broker's" in (await troubles(stage, 2))["clock", "broker 1"].says
        env.clock = right
        await none_left(stage, 1)

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_what_is_not_in_sync_is_told_on_both_sides_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LASTS_S", 0.0)
    port = closed_port()

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3)
        await stage.in_sync(1)
        leader = await troubles(stage, 1)
        says = leader["out-of-sync", "broker 2"].says
        assert says.startswith("broker 2 has no copy in sync of orders-0: it does not ask")
        follower = await troubles(stage, 2)
        assert "orders-0 can't be copied from broker 1: " in follower["stuck", "broker 1"].says
        await stage.kill(3)
        await until(lambda: 3 not in stage.broker(1).metadata.image.brokers)
        gone = (await troubles(stage, 1))["out-of-sync", "broker 3"]
        assert gone.says == "broker 3 has no copy in sync of orders-0: it is not in the cluster"

    given = {1: {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}}
    on_cluster_stage(tmp_path, scene, each=lambda node_id: given.get(node_id, {}))


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttle_that_was_forgotten_is_the_reason_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """The leader told that the replica had not caught up, and the follower told nothing."""
    monkeypatch.setattr(health, "LASTS_S", 0.0)

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.stop(2)
        await stage.in_sync(1)
        for _ in range(10):
            await stage.write("x" * 1_000)
        await stage.configure(TOPICS, TOPIC, f"{side}.replication.throttled.replicas", "*")
        await stage.configure(BROKERS, ALL, f"{side}.replication.throttled.rate", "1")
        await stage.start(2)
        await until(lambda: stage.partition(2).log.end_offset > 0)
        leads, follows = "this broker's leader", "its follower"
        why = f"{leads if side == 'leader' else follows}.replication.throttled.rate holds it back"
        assert (await troubles(stage, 1))["out-of-sync", "broker 2"].says == (
            f"broker 2 has no copy in sync of orders-0: {why}"
        )
        if side == "follower":
            await until(lambda: bool(list(stage.broker(2).replication.stuck(float("inf")))))
            assert (await troubles(stage, 2))["stuck", "broker 1"].says == (
                "orders-0 can't be copied from broker 1: this broker's follower.replication.throttled.rate holds it"
                " back"
            )
        await stage.configure(BROKERS, ALL, f"{side}.replication.throttled.rate", "")
        await stage.in_sync(1, 2)
        for node_id in (1, 2):
            await none_left(stage, node_id)

    given = {"replica.fetch.max.bytes": "2000", "replica.lag.time.max.ms": "60000"}
    on_cluster_stage(tmp_path, scene, 1, 2, given=given)


def test_a_broker_without_a_session_says_why(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        broker = stage.broker(1)
        broker.metadata._lost("The cluster has taken this broker for dead.")
        await broker.health.look()
        [trouble] = broker.health.troubles
        assert (trouble.kind, trouble.about) == ("session", "metadata store")
        assert "taken this broker for dead" in trouble.says
        await until(lambda: broker.metadata.in_session)
        await none_left(stage, 1)

    on_cluster_stage(tmp_path, scene, 1)
