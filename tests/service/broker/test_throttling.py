"""Moving replicas are held back as their throttles say, and no others."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from log.batch import build_batch
from log.ids import TopicPartition
from service.broker.throttling import Throttle
from tests.service.broker.cluster_stage import ALL, BROKERS, TOPIC, TOPICS, ClusterStage, on_cluster_stage, until

RATE = 200_000
WRITTEN = 20
VALUE_BYTES = 20_000
LONG_MS = 60_000
"""A wait that is longer than a test."""
SIDES = [("leader",), ("follower",), ("leader", "follower")]


@pytest.mark.parametrize(("direction", "whose"), [("leader", 1), ("follower", 2)])
@pytest.mark.parametrize("named", ["*", "0:{}"])
def test_who_catches_up_is_held_back_until_the_throttle_goes(
    tmp_path: Path, direction: str, whose: int, named: str
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.stop(2)
        await stage.in_sync(1)
        for _ in range(WRITTEN):
            await stage.write("x" * VALUE_BYTES)
        await stage.configure(TOPICS, TOPIC, f"{direction}.replication.throttled.replicas", named.format(whose))
        await stage.configure(BROKERS, ALL, f"{direction}.replication.throttled.rate", str(RATE))
        await stage.start(2)
        began_s = asyncio.get_running_loop().time()
        await until(lambda: stage.partition(2).log.end_offset > 0)
        await asyncio.sleep(0.6)
        assert stage.partition(2).log.end_offset < WRITTEN
        await stage.in_sync(1, 2)
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s > 0.7 * WRITTEN * VALUE_BYTES / RATE - 0.5
        for _ in range(2 * WRITTEN):  # who is in sync is not held back
            await stage.write("x" * VALUE_BYTES)
        await stage.in_sync(1, 2)
        await stage.configure(BROKERS, ALL, f"{direction}.replication.throttled.rate", "1")
        await stage.stop(2)
        await stage.in_sync(1)
        for _ in range(WRITTEN):
            await stage.write("x" * VALUE_BYTES)
        await stage.start(2)
        before = 3 * WRITTEN
        await until(lambda: stage.partition(2).log.end_offset > before)
        await asyncio.sleep(0.6)
        assert stage.partition(2).log.end_offset < before + WRITTEN
        await stage.configure(BROKERS, ALL, f"{direction}.replication.throttled.rate", "")
        await stage.in_sync(1, 2)

    on_cluster_stage(
        tmp_path, scene, 1, 2, given={"log.durability": "os", "replica.fetch.max.bytes": str(2 * VALUE_BYTES)}
    )


async def set_rates(stage: ClusterStage, sides: tuple[str, ...], rate: str) -> None:
    for side in sides:
        await stage.configure(TOPICS, TOPIC, f"{side}.replication.throttled.replicas", "*")
        await stage.configure(BROKERS, ALL, f"{side}.replication.throttled.rate", rate)


async def move(stage: ClusterStage, sides: tuple[str, ...], rate: str, *, batches: int, value_bytes: int) -> None:
    """Have broker 2 copy so many batches anew under throttles with this rate."""
    await stage.create(1, 2, min_insync_replicas="1")
    await stage.stop(2)
    await stage.in_sync(1)
    for _ in range(batches):
        await stage.write("x" * value_bytes)
    await set_rates(stage, sides, rate)
    await stage.start(2)


@pytest.mark.parametrize("sides", SIDES)
def test_who_moves_in_small_answers_is_given_the_rate(tmp_path: Path, sides: tuple[str, ...]) -> None:
    """What moved rested 100 ms after each answer at the follower, and as long as a fetch waits at the leader: four
    partitions under 100 MB/s were copied with 2 to 17 MB/s, and one that was written to with 12 MB/s never was in sync.
    """
    rate, batches, value_bytes = 400_000, 400, 2_000

    async def scene(stage: ClusterStage) -> None:
        await move(stage, sides, str(rate), batches=batches, value_bytes=value_bytes)
        began_s = asyncio.get_running_loop().time()
        await stage.in_sync(1, 2)
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s > (0.8 * batches * value_bytes - rate) / rate, "the debt of a second is left"

    given = {"log.durability": "os", "replica.fetch.max.bytes": str(2 * value_bytes)}
    on_cluster_stage(tmp_path, scene, 1, 2, given={**given, "replica.fetch.wait.max.ms": str(LONG_MS)})


@pytest.mark.parametrize("sides", SIDES[:2])
@pytest.mark.parametrize("after", ["2", "", str(2**63 - 1)])
def test_another_rate_holds_at_once(tmp_path: Path, sides: tuple[str, ...], after: str) -> None:
    async def scene(stage: ClusterStage) -> None:
        await move(stage, sides, "1", batches=WRITTEN, value_bytes=VALUE_BYTES)
        await until(lambda: stage.partition(2).log.end_offset > 0)
        held_at = stage.partition(2).log.end_offset
        await asyncio.sleep(0.6)
        assert stage.partition(2).log.end_offset == held_at < WRITTEN
        await set_rates(stage, sides, after)
        if after == "2":
            await until(lambda: stage.partition(2).log.end_offset > held_at)
            assert stage.partition(2).log.end_offset < WRITTEN
        else:
            await stage.in_sync(1, 2)

    given = {"log.durability": "os", "replica.fetch.max.bytes": str(2 * VALUE_BYTES)}
    on_cluster_stage(tmp_path, scene, 1, 2, given={**given, "replica.fetch.wait.max.ms": str(LONG_MS)})


def test_what_the_leader_has_in_an_open_session_rests_with_what_was_moved(tmp_path: Path) -> None:
    """An answer had room for few partitions, and the leader went on to send the others while those rested: 57 MB came
    in the first second of 10 MB/s.
    """
    topics, value_bytes = [f"{TOPIC}-{index}" for index in range(12)], 2_000
    rate = 10 * value_bytes

    async def scene(stage: ClusterStage) -> None:
        for topic in topics:
            await stage.create(1, 2, name=topic, min_insync_replicas="1")
        followed = [TopicPartition(topic, 0) for topic in topics]
        await stage.stop(2)
        for each in followed:
            await until(lambda each=each: stage.broker(1).metadata.image.partition(each).isr == (1,))  # type: ignore
            partition = stage.broker(1).partitions.get(each)
            assert partition is not None
            for _ in range(10):
                batch = memoryview(bytearray(build_batch([(None, bytes(value_bytes), (), 1)])))
                partition.append_from_client(batch, acks=1, now_ms=1, needs_guard=False)
            await stage.configure(TOPICS, each.topic, "follower.replication.throttled.replicas", "*")
        await stage.configure(BROKERS, ALL, "follower.replication.throttled.rate", str(rate))
        began_s = asyncio.get_running_loop().time()
        await stage.start(2)

        def copied() -> int:
            held = [stage.broker(2).partitions.get(each) for each in followed]
            return sum(partition.log.end_offset for partition in held if partition is not None)

        await until(lambda: copied() > 0)
        await asyncio.sleep(0.6)
        moved_bytes, took_s = copied() * value_bytes, asyncio.get_running_loop().time() - began_s
        assert moved_bytes <= rate * (took_s + 1) + 3 * value_bytes
        await stage.configure(BROKERS, ALL, "follower.replication.throttled.rate", "")
        await until(lambda: copied() == 10 * len(topics))

    given = {"replica.fetch.max.bytes": str(value_bytes), "replica.fetch.response.max.bytes": str(2 * value_bytes)}
    on_cluster_stage(tmp_path, scene, 1, 2, given={"log.durability": "os", **given})


class World:
    """A clock, and metadata by which broker 2 copies everything from broker 1 under this rate."""

    def __init__(self, rate: str) -> None:
        self.now_s = 1_000_000.0
        self.rate = rate
        topic = SimpleNamespace(
            name=TOPIC,
            config={"replicas": "*"},
            partitions={0: SimpleNamespace(isr=(1,)), 1: SimpleNamespace(isr=(1,))},
        )
        self.image: Any = SimpleNamespace(topics={TOPIC: topic}, broker_config=self.broker_config)
        self.env: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: self.now_s))

    def broker_config(self, whose: str) -> Any:
        return SimpleNamespace(values={"rate": self.rate} if whose == "default" else {})

    def throttle(self, broker_id: int) -> Throttle:
        metadata: Any = SimpleNamespace(broker_id=broker_id, image=self.image)
        throttle = Throttle(self.env, metadata, rate="rate", replicas="replicas")
        throttle.take_rate(self.image)
        return throttle


@pytest.mark.parametrize("answer_bytes", [50_000, 1_000_000, 10_000_000])
@pytest.mark.parametrize("late_s", [0.0, 0.3])
@pytest.mark.parametrize("rate", [10_000, 1_000_000, 12_345_678, 100_000_000])
def test_in_the_long_run_as_much_is_moved_as_the_rate_says(rate: int, late_s: float, answer_bytes: int) -> None:
    """With a throttle on either side. An answer takes as long as at ten times the rate, and a rest a little longer."""
    world, partition = World(str(rate)), TopicPartition(TOPIC, 0)
    throttles = world.throttle(1), world.throttle(2)
    began_s, lasts_s, moved = world.now_s, max(60.0, 20 * answer_bytes / rate), 0
    while world.now_s < began_s + lasts_s:
        held_back = [each for each in throttles if each.holds_back(partition, 2)]
        if held_back:
            world.now_s += max(each.rest_s for each in held_back) + late_s
            continue
        world.now_s += answer_bytes / (10 * rate)
        moved += answer_bytes
        for each in throttles:
            each.moved(partition, 2, answer_bytes)
    took_s = world.now_s - began_s
    assert 0.85 * rate * took_s < moved <= rate * (took_s + 1) + answer_bytes


def test_a_rate_that_stays_when_other_settings_change_forgives_nothing() -> None:
    world, partition = World("1000"), TopicPartition(TOPIC, 0)
    throttle = world.throttle(2)
    throttle.moved(partition, 2, 1_000_000)
    throttle.take_rate(world.image)
    assert throttle.holds_back(partition, 2)
    world.rate = "1001"
    throttle.take_rate(world.image)
    assert not throttle.holds_back(partition, 2)
