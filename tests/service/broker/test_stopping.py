"""What a stop waits for."""

from pathlib import Path
from typing import Any

import pytest

from log.disk import RealDisk
from service.broker.closing import SYNCED_TOGETHER
from service.ports import RealClock
from service.stores.memory import MemoryServer
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.topic_stage import values, write

SEGMENTS = 100


def test_a_stop_waits_no_longer_for_a_hundred_rolled_segments_than_for_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = MemoryServer(RealClock())
    waits = [0]

    def counted(original: Any) -> Any:
        def call(disk: RealDisk, *arguments: object, **more: object) -> Any:
            waits[0] += 1
            return original(disk, *arguments, **more)

        return call

    async def before(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        for _ in range(SEGMENTS):
            await write(partition, b"x")
            partition.log.roll(RealClock.wall_ms())
        assert partition.log.durability.unsynced_files > SEGMENTS
        for name in ("in_syncers", "in_writer"):
            monkeypatch.setattr(RealDisk, name, counted(getattr(RealDisk, name)))

    async def after(stage: Stage) -> None:
        partition = await stage.served("orders")
        assert partition.log.recovery is None, "it was a clean stop"
        assert values(partition) == SEGMENTS

    on_stage(tmp_path, before, {"log.durability": "os"}, metadata=metadata)
    assert waits[0] < SYNCED_TOGETHER
    on_stage(tmp_path, after, metadata=metadata)
