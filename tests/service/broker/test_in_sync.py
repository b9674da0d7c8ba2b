"""Who watches over in-sync sets goes on, whatever one partition does."""

from pathlib import Path

import pytest

from service.broker.in_sync import InSyncSets
from service.broker.partition import Leading, Partition
from service.cluster.image import PartitionState
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until
from tests.service.broker.topic_stage import LIFE, OS, led


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


def test_a_proposal_that_ends_a_reassignment_away_from_here_changes_nothing_before_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer may come before this broker has followed the image, in which another leads."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        state = PartitionState((2, 3), (2, 3), 2, partition.leader_epoch + 1, partition_epoch=5)

        async def execute(*_: object) -> PartitionState:
            return state

        in_sync = stage.broker.replication.in_sync
        monkeypatch.setattr(stage.broker.metadata, "execute", execute)
        assert isinstance(partition.role, Leading)
        await in_sync._propose(partition, partition.role, ((1, 0), (2, LIFE)))
        assert partition.is_leading
        assert partition.replicas.isr == (1, 2)

    on_stage(tmp_path, scene, OS)
