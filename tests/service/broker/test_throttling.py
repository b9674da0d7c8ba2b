"""Moving replicas are held back as their throttles say, and no others."""

import asyncio
from pathlib import Path

import pytest

from tests.service.broker.cluster_stage import ALL, BROKERS, TOPIC, TOPICS, ClusterStage, on_cluster_stage, until

RATE = 200_000
WRITTEN = 20
VALUE_BYTES = 20_000


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
