"""What a start finds in the data folders: whose each folder is, and how far each log had come. `test_lost_files` has
the files that are missing, `test_folder_moves` the moves between folders.

Found by deleting topics under load: after a crash a new topic was measured by how far its predecessor had come, and was
not served.
"""

import errno
import json
from collections import Counter
from pathlib import Path

import pytest

from log.batch import build_batch, crc32c
from log.disk import PARTITION_METADATA, DiskFault, RealDisk
from log.ids import TopicPartition, format_topic_id
from log.manifest import MANIFEST, RECOVERY_POINTS
from service.broker.found_folders import STRAY
from service.broker.unremoved import UNREMOVED
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import SECOND, ClusterStage, on_cluster_stage, until
from tests.service.broker.topic_stage import FSYNC, delete, values, write

FIRST_LOG = f"{0:020}.log"


def test_what_a_deleted_topic_left_before_a_crash_is_not_taken_for_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker dies between the commit that deletes and the removal of the folder, or after the next creation; and
    it may die again at any moment of the start that finds this.
    """
    metadata = MemoryServer(RealClock())
    rename = RealDisk.rename

    def when_its_point_is_forgotten(disk: RealDisk, path: str, target: str) -> None:
        assert path == "orders-0"
        assert (tmp_path / RECOVERY_POINTS).read_text() == "0\n0\n"
        rename(disk, path, target)

    async def first(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"1", b"2")
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])

    async def second(stage: Stage) -> None:
        partition = await stage.served("orders")
        assert (partition.log.start_offset, partition.log.end_offset) == (0, 0)
        await write(partition, b"3")

    on_stage(tmp_path, first, FSYNC, metadata=metadata)
    assert "orders 0 2" in (tmp_path / RECOVERY_POINTS).read_text()
    (tmp_path / MANIFEST).unlink()
    monkeypatch.setattr(RealDisk, "rename", when_its_point_is_forgotten)
    identity = tmp_path / "orders-0" / PARTITION_METADATA
    assert identity.read_text().splitlines()[0] == "version: 0"
    identity.write_text(f"version: 0\ntopic_id: {format_topic_id(bytes(15) + b'1')}\n")
    on_stage(tmp_path, second, FSYNC, metadata=metadata)


@pytest.mark.parametrize("says_whose", [True, False], ids=["", "by an earlier release"])
def test_what_a_topic_left_that_was_deleted_while_its_broker_was_away_is_not_taken_for_the_new_ones(
    tmp_path: Path, says_whose: bool
) -> None:
    """The broker had stopped in order, and was not told: its manifest lists a log of that name. With several replicas
    the new topic's log on this broker began with the old topic's records, and counted as in sync.
    """
    metadata = MemoryServer(RealClock())
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()

    async def first(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"1", b"2")
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])

    async def meanwhile(stage: Stage) -> None:
        await delete(stage)
        await stage.create("orders")

    async def second(stage: Stage) -> None:
        partition = await stage.served("orders")
        assert (partition.log.start_offset, partition.log.end_offset) == (0, 0)
        assert (here / RECOVERY_POINTS).read_text() == "0\n0\n"
        await write(partition, b"new")
        # The metadata may be that of before, brought back: then the folder is that of the topic that was made later.
        (stray,) = here.glob(f"*-0.1{STRAY}")
        assert (stray / FIRST_LOG).read_bytes() == before

    on_stage(here, first, FSYNC, metadata=metadata)
    manifest, before = (here / MANIFEST).read_bytes(), (here / "orders-0" / FIRST_LOG).read_bytes()
    on_stage(elsewhere, meanwhile, FSYNC, metadata=metadata)
    if not says_whose:
        (here / MANIFEST).write_bytes(without_ids(manifest))
    on_stage(here, second, FSYNC, metadata=metadata)


def without_ids(manifest: bytes) -> bytes:
    """As an earlier release wrote it."""
    _, _, *lines = manifest.splitlines()
    fields = [json.loads(line) for line in lines]
    for each in fields:
        del each["topic"]
    body = b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in fields)
    return json.dumps({"version": 1, "crc32c": crc32c(body)}).encode() + b"\n" + body


def test_a_point_in_a_folder_that_the_predecessor_had_moved_out_of_does_not_judge_a_new_topic(tmp_path: Path) -> None:
    """The point is forgotten before the new topic's log begins in that very folder."""
    metadata = MemoryServer(RealClock())
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()

    async def first(stage: Stage) -> None:
        await stage.create("orders")

    async def second(stage: Stage) -> None:
        partition = await stage.served("orders")
        assert (partition.folder.name, partition.log.end_offset) == (str(one), 0)
        assert (one / RECOVERY_POINTS).read_text() == "0\n0\n"

    on_stage(one, first, FSYNC, metadata=metadata, more_folders=[two])
    (one / MANIFEST).unlink()
    (two / MANIFEST).unlink()
    predecessor = f"version: 0\ntopic_id: {format_topic_id(bytes(15) + b'1')}\n".encode()
    fill(two / "orders-0", {PARTITION_METADATA: predecessor})
    (one / RECOVERY_POINTS).write_text("0\n1\norders 0 9\n")
    on_stage(one, second, FSYNC, metadata=metadata, more_folders=[two])


NEVER_FLUSHED = {
    "nothing in it": {},
    "a file without its bytes": {PARTITION_METADATA: b"", FIRST_LOG: b"of another", f"{0:020}.index": b""},
    "a file of zeros": {PARTITION_METADATA: bytes(50), FIRST_LOG: b"of another", f"{9:020}.snapshot": b""},
}


FLUSHED = {
    "by somebody else": {FIRST_LOG: b""},
    "and rotten": {PARTITION_METADATA: b"versio", FIRST_LOG: b""},
    "with a checkpoint": {PARTITION_METADATA: b"", FIRST_LOG: b"", "leader-epoch-checkpoint": b"0\n0\n"},
    "with a recovery point": {PARTITION_METADATA: b"", FIRST_LOG: b""},
}


def fill(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("here", list(NEVER_FLUSHED))
@pytest.mark.parametrize("there", [None, *NEVER_FLUSHED])
def test_what_was_never_flushed_before_a_power_cut_is_nobodys(tmp_path: Path, here: str, there: str | None) -> None:
    """A topic was deleted while its disk failed, and made again on another; then the power went, and with it what both
    folders said of whose they were. Found by the simulation: the broker refused to start, for there were two.
    """
    metadata = MemoryServer(RealClock())
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()

    async def first(stage: Stage) -> None:
        await stage.create("orders")
        await stage.served("orders")

    async def second(stage: Stage) -> None:
        partition = await stage.served("orders")
        assert (partition.log.start_offset, partition.log.end_offset) == (0, 0)
        await write(partition, b"new")
        assert values(partition) == 1

    on_stage(one, first, FSYNC, metadata=metadata, more_folders=[two])
    (one / MANIFEST).unlink()
    (two / MANIFEST).unlink()
    fill(one / "orders-0", NEVER_FLUSHED[here])
    if there is not None:
        fill(two / "orders-0", NEVER_FLUSHED[there])
    on_stage(one, second, FSYNC, metadata=metadata, more_folders=[two])


@pytest.mark.parametrize("what", list(FLUSHED))
def test_a_folder_that_does_not_say_whose_it_is_but_may_hold_promises_is_what_its_name_says(
    tmp_path: Path, what: str
) -> None:
    metadata = MemoryServer(RealClock())

    async def first(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"1", b"2")
        if what == "with a recovery point":
            await stage.broker.housekeeper.write_points(stage.broker.folders[0])

    async def second(stage: Stage) -> None:
        assert values(await stage.served("orders")) == 2

    on_stage(tmp_path, first, FSYNC, metadata=metadata)
    (tmp_path / MANIFEST).unlink()
    log = (tmp_path / "orders-0" / FIRST_LOG).read_bytes()
    for path in (tmp_path / "orders-0").iterdir():
        path.unlink()
    (tmp_path / "orders-0").rmdir()
    fill(tmp_path / "orders-0", {name: log if name == FIRST_LOG else data for name, data in FLUSHED[what].items()})
    on_stage(tmp_path, second, FSYNC, metadata=metadata)


def test_a_folder_found_where_a_new_topic_wants_to_be_is_set_aside(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        (tmp_path / "orders-0").mkdir()
        (tmp_path / "orders-0" / f"{0:020}.log").write_bytes(build_batch([(None, b"of another", (), 1)]))
        await stage.create("orders")
        assert values(await stage.served("orders")) == 0

    on_stage(tmp_path, scene)
    (stray,) = tmp_path.glob(f"*-0.1{STRAY}")
    assert (stray / FIRST_LOG).read_bytes()


def test_a_new_topic_is_not_measured_by_how_far_its_predecessor_had_come(tmp_path: Path) -> None:
    metadata = MemoryServer(RealClock())

    async def first(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), *[b"old"] * 9)
        (folder,) = stage.broker.folders
        await stage.broker.housekeeper.write_points(folder)
        assert "orders 0 9" in (tmp_path / RECOVERY_POINTS).read_text()
        await delete(stage)
        await stage.create("orders")
        await write(await stage.served("orders"), b"new")
        assert "orders 0 9" not in (tmp_path / RECOVERY_POINTS).read_text()

    async def second(stage: Stage) -> None:
        partition = await stage.served("orders")
        assert (partition.offline, values(partition)) == (False, 1)

    on_stage(tmp_path, first, FSYNC, metadata=metadata)
    (tmp_path / MANIFEST).unlink()  # as if it had been killed
    on_stage(tmp_path, second, FSYNC, metadata=metadata)


def test_what_a_broker_held_that_was_away_is_moved_aside_if_others_hold_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata store may have been brought back from before the partition came here: then they have nothing."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        for times in (1, 2):
            await stage.write(f"v{times}")
            await stage.alike(1, 2)
            before = (tmp_path / "2" / "orders-0" / FIRST_LOG).read_bytes()
            await stage.stop(2)
            await stage.wire(1).ask(AlterPartitionReassignmentsRequest(topics=[to_brokers(1)]))
            await until(lambda: stage.state().replicas == (1,))
            await stage.start(2)
            assert not (tmp_path / "2" / "orders-0").exists()
            (stray,) = (tmp_path / "2").glob(f"*-0.{times}.stray")
            assert (stray / FIRST_LOG).read_bytes() == before
            assert f"has {times} folders of partitions that were moved aside" in caplog.text
            await move(stage, 1, 2)
        await stage.alike(1, 2)

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_what_a_broker_held_that_was_away_is_kept_if_its_topic_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("v")
        await stage.alike(1, 2)
        await stage.stop(2)
        deleting = DeleteTopicsRequest([DeleteTopicState("orders")])
        assert (await stage.wire(1).ask(deleting)).responses[0].error_code == 0
        await stage.start(2)

    on_cluster_stage(tmp_path, scene, 1, 2)
    assert (tmp_path / "2" / "orders-0").exists()
    assert not (tmp_path / "1" / "orders-0").exists()
    assert "topics that don't exist any more, such as orders-0" in caplog.text


def test_a_file_that_is_called_like_a_partition_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one with what was in the memory of a process that died. The start failed, and the next one was no clean
    one.
    """
    metadata = MemoryServer(RealClock())

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"x")
        (tmp_path / "core-1234").write_bytes(b"core")

    on_stage(tmp_path, scene, metadata=metadata)

    async def again(stage: Stage) -> None:
        assert values(await stage.served("orders")) == 1

    for _ in range(2):
        on_stage(tmp_path, again, metadata=metadata)
    assert "core-1234 is passed over: Not a directory" in caplog.text
    assert (tmp_path / "core-1234").read_bytes() == b"core"


def broken(stage: ClusterStage) -> tuple[str, str]:
    """The disk on which broker 2 has its replica fails; the partition goes away and comes back. The folder that failed,
    and the other one.
    """
    partition = stage.partition(2)
    life, folder = stage.lives[2], partition.folder
    (disk,) = (disk for disk in life.disks if disk is folder.disk)
    disk.fault = DiskFault(errno.EIO, "broken", "")
    folder.fail(disk.fault)
    (other,) = (each for each in life.broker.folders if each is not folder)
    return folder.name, other.name


def to_brokers(*replicas: int) -> ReassignableTopic:
    return ReassignableTopic("orders", [ReassignablePartition(0, list(replicas))])


async def move(stage: ClusterStage, *replicas: int) -> None:
    await stage.wire(1).ask(AlterPartitionReassignmentsRequest(topics=[to_brokers(*replicas)]))
    await until(lambda: stage.state().replicas == replicas and stage.holds(2) == (2 in replicas))


def second_folder(tmp_path: Path) -> Path:
    """Made before it starts, broker 2 uses it, too."""
    second = tmp_path / f"2{SECOND}"
    second.mkdir()
    return second


async def copied(stage: ClusterStage) -> None:
    """Two records are at both brokers."""
    await stage.create(1, 2)
    await stage.write("1", "2")
    await stage.alike(1, 2)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("back", [True, False], ids=["came back", "did not come back"])
def test_a_copy_on_a_disk_that_failed_is_removed_when_it_works_again(
    tmp_path: Path, end: str, back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its partition went away meanwhile, and came back into the other folder. Found by the simulation: the broker
    refused to start, for there were two.
    """
    second_folder(tmp_path)

    async def scene(stage: ClusterStage) -> None:
        await copied(stage)
        failed, other = broken(stage)
        await move(stage, 1)
        if back:
            await move(stage, 1, 2)
            await stage.write("3")
            await stage.alike(1, 2)
        assert (Path(failed) / "orders-0").exists()
        await until((Path(other) / UNREMOVED).exists)
        await (stage.stop(2) if end == "stop" else stage.kill(2))
        await stage.start(2)
        assert "orders-0 is removed: this broker gave orders-0 up while that disk had failed" in caplog.text
        assert not (Path(failed) / "orders-0").exists()
        assert not (Path(other) / UNREMOVED).exists()
        if back:
            assert (stage.partition(2).folder.name, stage.partition(2).offline) == (other, False)
            await stage.write("4")
            await stage.alike(1, 2)
            assert values(stage.partition(2)) == 4

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_a_copy_that_was_used_again_is_not_removed(tmp_path: Path) -> None:
    """The broker was started with the disk that had failed, but without the other one, which says that the copy is to
    be removed. When that one is back, the copy is served: it has all that is in the other folder, and more.
    """
    second = second_folder(tmp_path)

    async def scene(stage: ClusterStage) -> None:
        await copied(stage)
        failed, other = broken(stage)
        await move(stage, 1)
        await move(stage, 1, 2)
        await stage.alike(1, 2)
        await stage.stop(2)
        assert (failed, other) == (str(tmp_path / "2"), str(second))
        second.rename(tmp_path / "away")
        await stage.start(2)
        await stage.write("3")
        await stage.alike(1, 2)
        await stage.stop(2)
        (tmp_path / "away").rename(second)
        await stage.start(2)
        await stage.alike(1, 2)
        assert (stage.partition(2).folder.name, values(stage.partition(2))) == (failed, 3)
        await stage.write("4")
        await stage.alike(1, 2)
        assert not stage.broker(2).maker.was_clean

    on_cluster_stage(tmp_path, scene, 1, 2)
    assert not (second / "orders-0").exists()
    (stray,) = second.glob(f"*{STRAY}")
    assert (stray / FIRST_LOG).stat().st_size


def test_a_copy_that_began_anew_goes_aside_when_the_other_one_is_back(tmp_path: Path) -> None:
    """It had not come far: the leader was away. What the broker held before is served, and followed on."""
    second = second_folder(tmp_path)

    async def scene(stage: ClusterStage) -> None:
        await copied(stage)
        home = Path(stage.partition(2).folder.name)
        await stage.kill(2)
        home.joinpath("orders-0").rename(tmp_path / "away")
        await stage.write("3")
        await stage.stop(1)
        await stage.start(2)
        assert stage.partition(2).log.end_offset == 0
        began = Path(stage.partition(2).folder.name)
        await stage.kill(2)
        other = second if began == tmp_path / "2" else tmp_path / "2"
        (tmp_path / "away").rename(other / "orders-0")
        await stage.start(2)
        assert (Path(stage.partition(2).folder.name), values(stage.partition(2))) == (other, 2)
        await stage.start(1)
        await stage.alike(1, 2)
        assert values(stage.partition(2)) == 3

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_notes_that_cannot_be_read_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other folders have the same ones. The start was refused."""
    metadata = MemoryServer(RealClock())

    async def nothing(stage: Stage) -> None:
        pass

    on_stage(tmp_path, nothing, metadata=metadata)
    (tmp_path / UNREMOVED).mkdir()
    on_stage(tmp_path, nothing, metadata=metadata)
    assert f"{UNREMOVED} can't be read: Is a directory" in caplog.text


def test_points_of_topics_that_are_gone_do_not_outlive_a_start(tmp_path: Path) -> None:
    metadata = MemoryServer(RealClock())

    async def nothing(stage: Stage) -> None:
        pass

    async def look(stage: Stage) -> None:
        assert (tmp_path / RECOVERY_POINTS).read_text() == "0\n0\n"

    on_stage(tmp_path, nothing, metadata=metadata)
    (tmp_path / RECOVERY_POINTS).write_text("0\n1\norders 0 9\n")
    on_stage(tmp_path, look, metadata=metadata)


@pytest.mark.parametrize("count", [0, 1], ids=["nothing written", "a batch written"])
@pytest.mark.parametrize("end", ["a clean stop", "a crash"])
def test_a_start_knows_whether_the_last_stop_was_in_order(tmp_path: Path, end: str, count: int) -> None:
    """A broker that did not stop in order may lack what it had acknowledged (R4, R5). That its logs are whole or empty
    proves nothing: a power cut may have taken all of one.
    """
    metadata = MemoryServer(RealClock())

    async def first(stage: Stage) -> None:
        await stage.create("orders", 3)
        for _ in range(count):
            await write(await stage.served("orders"), b"1")

    async def second(stage: Stage) -> None:
        maker = stage.broker.maker
        assert maker.was_clean == (end == "a clean stop")
        assert (maker.progress.partitions, maker.progress.opened) == (3, 3)
        assert (maker.progress.read_bytes > 0) == (end == "a crash" and count > 0), (
            "only a recovery reads what is in the logs"
        )

    on_stage(tmp_path, first, FSYNC, metadata=metadata)
    if end == "a crash":
        (tmp_path / MANIFEST).unlink()
    on_stage(tmp_path, second, FSYNC, metadata=metadata)


def test_new_partitions_go_where_there_are_the_fewest_or_where_they_are_wanted(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()

    async def scene(stage: Stage) -> None:
        one, two = stage.broker.folders
        await stage.create("orders", 4)
        assert Counter(partition.folder for partition in stage.broker.partitions) == {one: 2, two: 2}
        stage.broker.maker.wanted = {TopicPartition("bills", number): two for number in range(3)}
        await stage.create("bills", 3)
        assert {(await stage.served("bills", number)).folder for number in range(3)} == {two}
        assert not stage.broker.maker.wanted
        two.fail(DiskFault(errno.EIO, "broken", ""))
        stage.broker.maker.wanted = {TopicPartition("late", 0): two}
        await stage.create("late")
        assert (await stage.served("late")).folder is one, "nothing is made on a disk that has failed"

    on_stage(folders[0], scene, more_folders=folders[1:])
