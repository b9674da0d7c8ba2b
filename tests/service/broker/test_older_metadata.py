"""Metadata that was brought back from a backup, beside logs that went on after it was made."""

import copy
from pathlib import Path
from typing import Any

import pytest

from log.batch import build_batch
from log.ids import TopicPartition
from service.broker import replication
from service.broker.partition import Appended
from service.cluster.controller import Command, RaiseLeaderEpoch
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.error_codes import ErrorCode
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import until

PLACE = TopicPartition("orders", 0)


def batch() -> memoryview:
    return memoryview(bytearray(build_batch([(b"k", b"v", (), 1)])))


def test_a_log_that_goes_on_beyond_the_metadata_is_led_in_a_later_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was led in the older epoch. Followers refused what was written in that, so no write was ever acknowledged."""
    server = MemoryServer(RealClock())
    backup: dict[str, Any] = {}

    async def before(stage: Stage) -> None:
        await stage.create("orders")
        backup.update({key: copy.copy(each) for key, each in server._entries.items() if each.session is None})
        assert await stage.broker.metadata.execute(RaiseLeaderEpoch(PLACE, 1, 5)) == 5
        partition = stage.broker.partitions.get(PLACE)
        assert partition is not None
        await until(lambda: partition.leader_epoch == 5)
        assert isinstance(partition.append_from_client(batch(), acks=-1, now_ms=1), Appended)

    execute, fails = ClusterMetadata.execute, [RuntimeError("a mistake"), MetadataLost(ErrorCode.NOT_CONTROLLER, "")]

    async def at_last(metadata: ClusterMetadata, command: Command[Any], **how: Any) -> Any:
        if isinstance(command, RaiseLeaderEpoch) and fails:
            raise fails.pop()
        return await execute(metadata, command, **how)

    async def after(stage: Stage) -> None:
        partition = stage.broker.partitions.get(PLACE)
        assert partition is not None
        await until(lambda: partition.is_leading)
        assert partition.leader_epoch == 6
        appended = partition.append_from_client(batch(), acks=-1, now_ms=1)
        assert isinstance(appended, Appended)
        assert partition.log.epochs.entries() == [(5, 0), (6, 1)]
        assert not fails

    on_stage(tmp_path, before, metadata=server)
    server._entries = backup
    monkeypatch.setattr(replication, "RAISED_AGAIN_S", 0.01)
    monkeypatch.setattr(ClusterMetadata, "execute", at_last)
    on_stage(tmp_path, after, metadata=server)
