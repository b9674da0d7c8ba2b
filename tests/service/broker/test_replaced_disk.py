"""A broker comes back with an empty disk, and it was the last one in sync.

It led at once, without a record, and the intact copies of the others were cut to that.
"""

import shutil
from pathlib import Path

import pytest

from service.broker.opening import PartitionMaker
from service.cluster.image import NO_LEADER
from service.wire.messages import ElectLeadersRequest
from tests.service.broker.cluster_stage import SECOND, TOPIC, ClusterStage, on_cluster_stage, stored, until

UNCLEAN = 1
RECORDS = tuple("abc")


async def last_in_sync(stage: ClusterStage) -> None:
    """Broker 1 stops last, in order. All three have the records."""
    await stage.create(1, 2, 3, min_insync_replicas="1")
    await stage.write(*RECORDS)
    await stage.in_sync(1, 2, 3)
    await stage.alike(1, 2, 3)
    for node_id, left in (3, (1, 2)), (2, (1,)):
        await stage.stop(node_id)
        await stage.in_sync(*left)
    await stage.stop(1)


def is_there(stage: ClusterStage, node_id: int) -> bool:
    return len(stored(stage.partition(node_id))) == 1


def test_the_copies_of_others_stay_and_one_of_them_leads_when_asked_to(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await last_in_sync(stage)
        shutil.rmtree(tmp_path / "1")
        await stage.start(2)
        await stage.start(3)
        await stage.start(1)
        await until(lambda: stage.holds(1))
        assert (stage.state().isr, stage.state().leader) == ((), NO_LEADER)
        assert is_there(stage, 2) and is_there(stage, 3) and not is_there(stage, 1)
        await stage.wire(1).ask(ElectLeadersRequest(UNCLEAN, None, 5000))
        await stage.in_sync(1, 2, 3)
        assert stage.state().leader == 2
        await until(lambda: is_there(stage, 1))
        await stage.alike(1, 2, 3)

    on_cluster_stage(tmp_path, scene)


def test_who_lost_one_of_two_folders_leads_what_was_in_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"1{SECOND}").mkdir()
    kept, lost = tmp_path / "1", tmp_path / f"1{SECOND}"

    async def scene(stage: ClusterStage) -> None:
        broker = stage.broker(1)
        monkeypatch.setattr(PartitionMaker, "emptiest_folder", lambda maker: maker._folders[0])
        await last_in_sync(stage)
        assert (kept / f"{TOPIC}-0").exists()
        shutil.rmtree(lost)
        await stage.start(2)
        await stage.start(3)
        again = await stage.start(1)
        assert again.maker is not broker.maker
        await stage.in_sync(1, 2, 3)
        assert is_there(stage, 1) and is_there(stage, 2)

    on_cluster_stage(tmp_path, scene)
