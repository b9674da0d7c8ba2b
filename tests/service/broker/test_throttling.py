"""Moving replicas are held back as their throttles say, and no others."""

import asyncio
from pathlib import Path

import pytest

from service.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage, until

TOPICS, BROKERS = 2, 4
ALL = ""
RATE = 200_000
WRITTEN = 20
VALUE_BYTES = 20_000


async def configure(stage: ClusterStage, kind: int, name: str, key: str, value: str) -> None:
    operation = 0 if value else 1
    change = IncrementalAlterConfigsRequestAlterableConfig(key, operation, value or None)
    request = IncrementalAlterConfigsRequest([IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, [change])])
    answer = await stage.wire(1).ask(request)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


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
        await configure(stage, TOPICS, TOPIC, f"{direction}.replication.throttled.replicas", named.format(whose))
        await configure(stage, BROKERS, ALL, f"{direction}.replication.throttled.rate", str(RATE))
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
        await configure(stage, BROKERS, ALL, f"{direction}.replication.throttled.rate", "1")
        await stage.stop(2)
        await stage.in_sync(1)
        for _ in range(WRITTEN):
            await stage.write("x" * VALUE_BYTES)
        await stage.start(2)
        before = 3 * WRITTEN
        await until(lambda: stage.partition(2).log.end_offset > before)
        await asyncio.sleep(0.6)
        assert stage.partition(2).log.end_offset < before + WRITTEN
        await configure(stage, BROKERS, ALL, f"{direction}.replication.throttled.rate", "")
        await stage.in_sync(1, 2)

    on_cluster_stage(
        tmp_path, scene, 1, 2, given={"log.durability": "os", "replica.fetch.max.bytes": str(2 * VALUE_BYTES)}
    )
