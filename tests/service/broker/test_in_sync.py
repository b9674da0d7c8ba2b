"""Who watches over in-sync sets goes on, whatever one partition does."""

from pathlib import Path

import pytest

from service.broker.in_sync import InSyncSets
from service.broker.partition import Partition
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until


def test_one_partition_that_can_not_be_looked_at_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.create(1, 2, name="later")
        looked_at: list[str] = []

        def consider(sets: InSyncSets, partition: Partition) -> None:
            looked_at.append(partition.topic_partition.topic)
            if looked_at[-1] != "later":
                raise AssertionError("this broker's own mistake")

        monkeypatch.setattr(InSyncSets, "consider", consider)
        await until(lambda: looked_at.count("later") >= 2)

    given = {"log.durability": "os", "replica.lag.time.max.ms": "100"}
    on_cluster_stage(tmp_path, scene, 1, 2, given=given)
