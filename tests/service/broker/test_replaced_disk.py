"""A broker comes back with an empty disk, or without the folder of a partition, and it was the last one in sync.

It led at once, without a record, and the intact copies of the others were cut to that.
"""

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import service.broker.losses
import tests.service.broker.cluster_stage
from log.disk import Disk, DiskFault, RealDisk
from log.identity import read_topic_id
from log.ids import format_topic_id
from log.manifest import HIGH_WATERMARKS, MANIFEST, RECOVERY_POINTS
from service.broker.data_folder import StartError
from service.broker.losses import LOST
from service.broker.node import Broker
from service.broker.opening import PartitionMaker
from service.cluster.image import NO_LEADER
from service.wire.messages import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ElectLeadersRequest,
)
from tests.service.broker.cluster_stage import SECOND, TOPIC, TOPICS, ClusterStage, on_cluster_stage, stored, until

UNCLEAN = 1
RECORDS = tuple("abc")


async def stop_all_but_the_first(stage: ClusterStage) -> None:
    for node_id, left in (3, (1, 2)), (2, (1,)):
        await stage.stop(node_id)
        await stage.in_sync(*left)


async def last_in_sync(stage: ClusterStage, records: tuple[str, ...] = RECORDS) -> None:
    """Broker 1 stops last, in order. All three have the records."""
    await stage.create(1, 2, 3, min_insync_replicas="1")
    if records:
        await stage.write(*records)
    await stage.in_sync(1, 2, 3)
    await stage.alike(1, 2, 3)
    await stop_all_but_the_first(stage)
    await stage.stop(1)


async def stopped_without_its_folder(stage: ClusterStage, folder: Path, known_by: str) -> None:
    """After `last_in_sync`, the folder of the partition is removed. Only this list tells that it was there."""
    await last_in_sync(stage)
    await stage.start(1)
    await stage.in_sync(1)
    for each in stage.broker(1).folders:
        await stage.broker(1).housekeeper.write_points(each)
    await stage.stop(1)
    shutil.rmtree(folder / "1" / f"{TOPIC}-0")
    for other in {MANIFEST, RECOVERY_POINTS, HIGH_WATERMARKS} - {known_by}:
        (folder / "1" / other).unlink()


async def start_that_dies(stage: ClusterStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 1 opens its partitions, and dies before it registers."""

    async def dies(broker: Broker) -> None:
        await broker.env.tasks.cancel_all()
        await broker.metadata.close()
        for folder in broker.folders:
            assert isinstance(folder.disk, RealDisk)
            folder.disk.close()
        raise StartError("dead")

    with monkeypatch.context() as patched:
        patched.setattr(tests.service.broker.cluster_stage, "listen", dies)
        with pytest.raises(StartError):
            await stage.start(1)


async def all_come_back(stage: ClusterStage) -> None:
    for node_id in 1, 2, 3:
        await stage.start(node_id)
    await stage.in_sync(1, 2, 3)


def new_ones_are_in(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Partitions that are made from now on are in that data folder of each broker."""
    monkeypatch.setattr(PartitionMaker, "emptiest_folder", lambda maker: maker._folders[place])


def is_there(stage: ClusterStage, node_id: int) -> bool:
    return len(stored(stage.partition(node_id))) == 1


async def nobody_leads(stage: ClusterStage) -> None:
    """Broker 1, the last one in sync, has lost what it had. Broker 2 has it."""
    await until(lambda: stage.holds(1))
    assert (stage.state().isr, stage.state().leader) == ((), NO_LEADER)
    assert is_there(stage, 2) and not is_there(stage, 1)


async def nobody_leads_without_the_second(
    stage: ClusterStage, tmp_path: Path, end: Callable[[int], Awaitable[None]]
) -> None:
    """Broker 1 ends as the last one in sync, and its second folder, which had the partition, is lost."""
    await stop_all_but_the_first(stage)
    await end(1)
    shutil.rmtree(tmp_path / f"1{SECOND}")
    await stage.start(2)
    await stage.start(1)
    await nobody_leads(stage)


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
        new_ones_are_in(monkeypatch, 0)
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
        await stopped_without_its_folder(stage, tmp_path, known_by)
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
        await stop_all_but_the_first(stage)
        await (stage.stop(1) if clean else stage.kill(1))
        assert not (tmp_path / "1" / f"{TOPIC}-0").exists()
        await all_come_back(stage)

    on_cluster_stage(tmp_path, scene)


@pytest.mark.parametrize("known_by", [MANIFEST, RECOVERY_POINTS, HIGH_WATERMARKS])
def test_a_start_that_dies_before_the_cluster_was_told_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    """It has removed the manifest and the recovery point. The next one led, without a record."""

    async def scene(stage: ClusterStage) -> None:
        await stopped_without_its_folder(stage, tmp_path, known_by)
        await stage.start(2)
        await start_that_dies(stage, monkeypatch)
        await stage.start(1)
        await nobody_leads(stage)

    on_cluster_stage(tmp_path, scene)


def test_a_loss_is_noted_before_what_tells_of_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the manifest told of it, and the disk was full at the note."""

    async def full(disk: Disk, file: str, notes: object) -> None:
        raise DiskFault(errno.ENOSPC, "no room", file)

    async def scene(stage: ClusterStage) -> None:
        await stopped_without_its_folder(stage, tmp_path, MANIFEST)
        await stage.start(2)
        with monkeypatch.context() as patched, pytest.raises(DiskFault):
            patched.setattr(service.broker.losses, "write_notes", full)
            await stage.start(1)
        await stage.start(1)
        await nobody_leads(stage)

    on_cluster_stage(tmp_path, scene)


def test_who_leads_without_a_record_by_an_operators_will_goes_on_after_a_crash(tmp_path: Path) -> None:
    """The list of high watermarks still said for seconds that there was something."""

    async def scene(stage: ClusterStage) -> None:
        await last_in_sync(stage)
        shutil.rmtree(tmp_path / "1" / f"{TOPIC}-0")
        await stage.start(1)
        await until(lambda: stage.state().leader == NO_LEADER)
        await stage.wire(1).ask(ElectLeadersRequest(UNCLEAN, None, 5000))
        await stage.in_sync(1)
        await stage.kill(1)
        await stage.start(1)
        await stage.in_sync(1)

    on_cluster_stage(tmp_path, scene)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "died"])
def test_a_partition_whose_log_is_gone_from_its_folder_is_lost(tmp_path: Path, clean: bool) -> None:
    """After a stop in order the manifest says all about the log, and it led without a record."""

    async def scene(stage: ClusterStage) -> None:
        await last_in_sync(stage)
        await stage.start(1)
        await stage.in_sync(1)
        await (stage.stop(1) if clean else stage.kill(1))
        for log in (tmp_path / "1" / f"{TOPIC}-0").glob("*.log"):
            log.unlink()
        await stage.start(2)
        await stage.start(1)
        await nobody_leads(stage)

    on_cluster_stage(tmp_path, scene)


def test_committed_records_that_are_missing_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="1")
        for value in RECORDS:
            await stage.write(value)
        await stage.alike(1, 2, 3)
        for folder in stage.broker(3).folders:
            await until(lambda: stage.partition(3).high_watermark == len(RECORDS))
            await stage.broker(3).housekeeper.write_high_watermarks(folder)
        await stage.kill(3)
        log = tmp_path / "3" / f"{TOPIC}-0" / f"{0:020}.log"
        os.truncate(log, log.stat().st_size * 2 // 3)
        await stage.start(3)
        assert f"such as {TOPIC}-0 (from 2 to 3)" in caplog.text
        await stage.in_sync(1, 2, 3)
        await stage.alike(1, 2, 3)

    on_cluster_stage(tmp_path, scene)


def test_an_empty_partition_keeps_its_leader_when_its_folder_is_back_after_a_start_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"1{SECOND}").mkdir()

    async def scene(stage: ClusterStage) -> None:
        new_ones_are_in(monkeypatch, -1)
        await last_in_sync(stage, ())
        (tmp_path / f"1{SECOND}").rename(tmp_path / "away")
        await start_that_dies(stage, monkeypatch)
        (tmp_path / "away").rename(tmp_path / f"1{SECOND}")
        await all_come_back(stage)

    on_cluster_stage(tmp_path, scene)


def test_a_list_of_before_does_not_say_that_there_was_nothing_in_a_folder_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was empty, in the first folder, when the broker stopped. The next life has it in the second."""
    (tmp_path / f"1{SECOND}").mkdir()

    async def scene(stage: ClusterStage) -> None:
        new_ones_are_in(monkeypatch, 0)
        await stage.create(1, 2, 3, min_insync_replicas="1")
        await stage.in_sync(1, 2, 3)
        await stage.stop(1)
        new_ones_are_in(monkeypatch, -1)
        await stage.start(1)
        await stage.in_sync(1, 2, 3)
        await stage.write(*RECORDS)
        await stage.alike(1, 2, 3)
        await nobody_leads_without_the_second(stage, tmp_path, stage.stop)

    on_cluster_stage(tmp_path, scene)


def test_a_list_does_not_say_that_there_was_nothing_in_what_has_moved_to_a_folder_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was empty when it moved, and the broker died before it wrote its lists again."""
    (tmp_path / f"1{SECOND}").mkdir()

    async def scene(stage: ClusterStage) -> None:
        new_ones_are_in(monkeypatch, 0)
        await stage.create(1, 2, 3, min_insync_replicas="1")
        await stage.in_sync(1, 2, 3)
        first, second = stage.broker(1).folders
        await stage.broker(1).housekeeper.write_high_watermarks(first)
        move = AlterReplicaLogDirTopic(TOPIC, [0])
        await stage.wire(1).ask(AlterReplicaLogDirsRequest([AlterReplicaLogDir(second.name, [move])]))
        await until(lambda: stage.partition(1).folder is second)
        await stage.write(*RECORDS)
        await stage.alike(1, 2, 3)
        await nobody_leads_without_the_second(stage, tmp_path, stage.kill)

    on_cluster_stage(tmp_path, scene, given={"replica.high.watermark.checkpoint.interval.ms": "3600000"})


@pytest.mark.parametrize("text", ["x y\n", "AAAAAAAAAAAAAAAAAAAAAA one\n"])
def test_a_line_that_is_no_note_does_not_keep_a_broker_from_starting(tmp_path: Path, text: str) -> None:
    async def scene(stage: ClusterStage) -> None:
        await last_in_sync(stage)
        (tmp_path / "1" / LOST).write_text(text)
        await stage.start(1)
        await stage.in_sync(1)

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
        assert not (tmp_path / "1" / LOST).exists(), "it would be wrong once the partition is empty"

    on_cluster_stage(tmp_path, scene)


def test_an_empty_partition_in_a_folder_that_is_there_keeps_its_leader_when_another_folder_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"1{SECOND}").mkdir()

    async def scene(stage: ClusterStage) -> None:
        new_ones_are_in(monkeypatch, 0)
        await last_in_sync(stage, ())
        shutil.rmtree(tmp_path / f"1{SECOND}")
        await all_come_back(stage)

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


async def all_lost_power(stage: ClusterStage) -> None:
    """All three brokers were in sync, and die at once: the cluster counts on each of them."""
    for life in stage.lives.values():
        life.broker.duties.heard = lambda delta: None  # type: ignore[method-assign]
        for folder in life.broker.folders:
            await life.broker.housekeeper.write_high_watermarks(folder)
        await life.broker.env.tasks.cancel_all()
    for node_id in list(stage.lives):
        await stage.kill(node_id)


def test_a_partition_begins_again_when_all_copies_are_lost(tmp_path: Path) -> None:
    """The power failed before the first record was on a disk. Nobody led, for ever."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="2")
        await stage.write(*RECORDS)
        await stage.alike(1, 2, 3)
        for node_id in 1, 2, 3:
            await until(lambda node_id=node_id: stage.partition(node_id).high_watermark == len(RECORDS))  # type: ignore[misc]
        await stage.in_sync(1, 2, 3)
        await all_lost_power(stage)
        for node_id in 1, 2, 3:
            shutil.rmtree(tmp_path / str(node_id) / f"{TOPIC}-0")
        await all_come_back(stage)
        await stage.write("d")
        await stage.alike(1, 2, 3)
        assert is_there(stage, 1) and stage.partition(1).log.end_offset == 1

    on_cluster_stage(tmp_path, scene)


def test_no_partition_begins_again_while_a_replica_may_have_something(tmp_path: Path) -> None:
    """2 and 3 are replaced, too, but where 3 is, the old disk may still be found."""

    async def scene(stage: ClusterStage) -> None:
        await last_in_sync(stage)
        for node_id in 1, 2:
            shutil.rmtree(tmp_path / str(node_id))
            await stage.start(node_id)
        await until(lambda: stage.holds(1) and stage.holds(2))
        for node_id in 1, 2:
            stage.broker(node_id).duties.stir()
        await asyncio.sleep(0.5)
        assert stage.state().leader == NO_LEADER, "3 is away"
        await stage.start(3)
        await until(lambda: stage.holds(3))
        await asyncio.sleep(0.5)
        assert stage.state().leader == NO_LEADER and is_there(stage, 3)
        await stage.stop(3)
        shutil.rmtree(tmp_path / "3")
        await stage.start(3)
        await stage.in_sync(1, 2, 3)

    on_cluster_stage(tmp_path, scene)
