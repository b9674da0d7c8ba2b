"""A broker comes back with an empty disk, or without the folder of a partition, and it was the last one in sync.

It led at once, without a record, and the intact copies of the others were cut to that.
"""

import shutil
from pathlib import Path

import pytest

import tests.service.broker.cluster_stage
from log.disk import RealDisk
from log.identity import read_topic_id
from log.ids import format_topic_id
from log.manifest import HIGH_WATERMARKS, MANIFEST, RECOVERY_POINTS
from service.broker.data_folder import StartError
from service.broker.losses import LOST
from service.broker.node import Broker
from service.broker.opening import PartitionMaker
from service.cluster.image import NO_LEADER
from service.wire.messages import ElectLeadersRequest
from tests.service.broker.cluster_stage import SECOND, TOPIC, TOPICS, ClusterStage, on_cluster_stage, stored, until

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


@pytest.mark.parametrize("known_by", [MANIFEST, RECOVERY_POINTS, HIGH_WATERMARKS])
def test_a_partition_whose_folder_is_gone_is_lost(tmp_path: Path, known_by: str) -> None:
    """The rest of the disk is there, and one of its lists says that there was something."""

    async def scene(stage: ClusterStage) -> None:
        await last_in_sync(stage)
        await stage.start(1)
        await stage.in_sync(1)
        for folder in stage.broker(1).folders:
            await stage.broker(1).housekeeper.write_points(folder)
        await stage.stop(1)
        shutil.rmtree(tmp_path / "1" / f"{TOPIC}-0")
        for other in {MANIFEST, RECOVERY_POINTS, HIGH_WATERMARKS} - {known_by}:
            (tmp_path / "1" / other).unlink()
        await stage.start(2)
        await stage.start(3)
        await stage.start(1)
        await until(lambda: stage.holds(1))
        assert (stage.state().isr, stage.state().leader) == ((), NO_LEADER)
        assert is_there(stage, 2) and is_there(stage, 3) and not is_there(stage, 1)
        assert not (tmp_path / "1" / LOST).exists(), "the cluster knows"
        await stage.wire(1).ask(ElectLeadersRequest(UNCLEAN, None, 5000))
        await stage.in_sync(1, 2, 3)
        await until(lambda: is_there(stage, 1))
        await stage.alike(1, 2, 3)

    on_cluster_stage(tmp_path, scene)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "died"])
def test_an_empty_partition_has_no_folder_and_is_not_lost(tmp_path: Path, clean: bool) -> None:
    """As if the broker had died after the partition was made, and before anything came."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="1")
        await stage.in_sync(1, 2, 3)
        for node_id, left in (3, (1, 2)), (2, (1,)):
            await stage.stop(node_id)
            await stage.in_sync(*left)
        await (stage.stop(1) if clean else stage.kill(1))
        assert not (tmp_path / "1" / f"{TOPIC}-0").exists()
        for node_id in 1, 2, 3:
            await stage.start(node_id)
        await stage.in_sync(1, 2, 3)

    on_cluster_stage(tmp_path, scene)


def test_a_start_that_dies_before_the_cluster_was_told_leaves_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one finds a folder that the first one has made: it led with that, without a record."""

    async def dies(broker: Broker) -> None:
        await broker.env.tasks.cancel_all()
        await broker.metadata.close()
        for folder in broker.folders:
            assert isinstance(folder.disk, RealDisk)
            folder.disk.close()
        raise StartError("dead")

    async def scene(stage: ClusterStage) -> None:
        await last_in_sync(stage)
        shutil.rmtree(tmp_path / "1" / f"{TOPIC}-0")
        await stage.start(2)
        with monkeypatch.context() as patched:
            patched.setattr(tests.service.broker.cluster_stage, "listen", dies)
            with pytest.raises(StartError):
                await stage.start(1)
        await stage.start(1)
        await until(lambda: stage.holds(1))
        assert (stage.state().isr, stage.state().leader) == ((), NO_LEADER)
        assert is_there(stage, 2)

    on_cluster_stage(tmp_path, scene)


def test_a_note_means_nothing_where_the_partition_has_something(tmp_path: Path) -> None:
    """An older release has let the cluster count on it, and knew nothing of the note."""

    async def scene(stage: ClusterStage) -> None:
        await last_in_sync(stage)
        topic_id = read_topic_id(RealDisk(str(tmp_path / "1")), f"{TOPIC}-0")
        assert topic_id is not None
        (tmp_path / "1" / LOST).write_text(f"{format_topic_id(topic_id)} 0\n")
        await stage.start(1)
        await stage.in_sync(1)
        assert is_there(stage, 1)

    on_cluster_stage(tmp_path, scene)


def test_an_empty_partition_in_a_folder_that_is_there_keeps_its_leader_when_another_folder_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"1{SECOND}").mkdir()

    async def scene(stage: ClusterStage) -> None:
        monkeypatch.setattr(PartitionMaker, "emptiest_folder", lambda maker: maker._folders[0])
        await stage.create(1, 2, 3, min_insync_replicas="1")
        await stage.in_sync(1, 2, 3)
        for node_id, left in (3, (1, 2)), (2, (1,)):
            await stage.stop(node_id)
            await stage.in_sync(*left)
        await stage.stop(1)
        shutil.rmtree(tmp_path / f"1{SECOND}")
        for node_id in 1, 2, 3:
            await stage.start(node_id)
        await stage.in_sync(1, 2, 3)

    on_cluster_stage(tmp_path, scene)


async def all_but_the_best_are_back(stage: ClusterStage) -> None:
    """Broker 1 was in sync last, and is away. Of the others, 3 has more than 2."""
    await stage.create(1, 2, 3, min_insync_replicas="1")
    await stage.write("a")
    await stage.alike(1, 2, 3)
    await stage.stop(2)
    await stage.in_sync(1, 3)
    await stage.write("b")
    await stage.alike(1, 3)
    await stage.stop(3)
    await stage.in_sync(1)
    await stage.write("c")
    await stage.stop(1)
    for node_id in 2, 3:
        await stage.start(node_id)
    await until(lambda: stage.holds(2) and stage.holds(3))
    assert stage.leader() is None


@pytest.mark.parametrize("is_asked", [True, False], ids=["by an operator", "by itself"])
def test_an_unclean_election_takes_the_best_copy(tmp_path: Path, is_asked: bool) -> None:
    """It took the first replica, and 3 lost what only it had."""

    async def scene(stage: ClusterStage) -> None:
        await all_but_the_best_are_back(stage)
        if is_asked:
            await stage.wire(2).ask(ElectLeadersRequest(UNCLEAN, None, 5000))
        else:
            await stage.configure(TOPICS, TOPIC, "unclean.leader.election.enable", "true", asked=2)
        await stage.in_sync(2, 3)
        assert stage.state().leader == 3
        await stage.alike(2, 3)
        assert [offset for offset, _, _ in stored(stage.partition(2))] == [0, 1]

    on_cluster_stage(tmp_path, scene)


def test_an_empty_copy_does_not_lead_while_another_is_alive(tmp_path: Path) -> None:
    """Broker 2 was replaced, and is the first of the replicas that are alive."""

    async def scene(stage: ClusterStage) -> None:
        await all_but_the_best_are_back(stage)
        await stage.stop(2)
        shutil.rmtree(tmp_path / "2")
        await stage.start(2)
        await until(lambda: stage.holds(2))
        await stage.wire(2).ask(ElectLeadersRequest(UNCLEAN, None, 5000))
        await stage.in_sync(2, 3)
        assert stage.state().leader == 3

    on_cluster_stage(tmp_path, scene)
