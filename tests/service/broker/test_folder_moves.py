"""Partitions move from one data folder of a broker to another: whole, with all that is known of them, while they are
written to, and through a crash at each step.
"""

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from log.batch import CorruptBatch, build_batch
from log.disk import DiskFault, RealDisk
from log.ids import TopicPartition
from log.manifest import MANIFEST, RECOVERY_POINTS, write_recovery_points
from log.relocation import FORMER, FUTURE, stem_of
from log.removal import raise_start_offset, remove_oldest
from log.segment import OFFSET_SUFFIX, TIME_SUFFIX, IndexesLost
from service.broker.data_folder import StartError
from service.broker.folder_moves import RATE, FolderMove, FolderMoves
from service.broker.found_folders import STRAY
from service.broker.log_folder import LogFolder
from service.broker.partition import Appended, Partition
from service.broker.unremoved import UNREMOVED
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import until

BROKER, SET = 4, 0
FIRST_LOG = f"{0:020}.log"
PRODUCER = 7
SETTINGS = {"log.durability": "fsync"}


class Folders:
    """Of one broker, through its lives."""

    def __init__(self, folder: Path) -> None:
        self.one, self.two, self.three = self.all = [folder / name for name in ("one", "two", "three")]
        for each in self.all:
            each.mkdir()
        self.metadata = MemoryServer(RealClock())

    def live(self, scene, **given: str) -> None:  # type: ignore[no-untyped-def]
        on_stage(self.one, scene, SETTINGS | given, metadata=self.metadata, more_folders=self.all[1:])

    def forget_how_it_stopped(self) -> None:
        """As after a crash."""
        for folder in self.all:
            (folder / MANIFEST).unlink(missing_ok=True)

    def die_with_partition(self) -> tuple[str, Path]:
        """A life that writes 20 batches to a new partition `moved-0`, and a crash. Returns what copies of the partition
        are called, and its folder, in `one`.
        """
        stem = ""

        async def scene(stage: Stage) -> None:
            nonlocal stem
            stem = stem_of(await stage.create("moved"), 0)  # type: ignore[arg-type]
            await write(await stage.served("moved"), 20)

        self.live(scene)
        self.forget_how_it_stopped()
        return stem, self.one / "moved-0"

    def kept(self, folder: Path) -> set[str]:
        return {name for name in os.listdir(folder) if name.endswith((FUTURE, FORMER, "-0"))}


async def write(partition: Partition, count: int, *, size: int = 100) -> None:
    """So many batches of one producer that goes on where it was, committed."""
    known = partition.log.end_offset
    for sequence in range(known, known + count):
        batch = bytearray(
            build_batch(
                [(None, b"%d" % sequence + bytes(size), (), 1)],
                producer_id=PRODUCER,
                producer_epoch=0,
                base_sequence=sequence,
            )
        )
        appended = partition.append_from_client(memoryview(batch), acks=-1, now_ms=RealClock.wall_ms())
        assert isinstance(appended, Appended)
        if sequence % 50 == 0:
            await asyncio.sleep(0)
    if (committed := partition.committed(partition.log.end_offset)) is not None:
        await committed


def again(partition: Partition, sequence: int) -> Appended:
    """The answer to a batch that was sent before."""
    batch = bytearray(
        build_batch([(None, b"%d" % sequence, (), 1)], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
    )
    appended = partition.append_from_client(memoryview(batch), acks=-1, now_ms=RealClock.wall_ms())
    assert isinstance(appended, Appended)
    return appended


def values(partition: Partition) -> list[int]:
    return [header.base_offset for header, _ in partition.log.scan(partition.log.start_offset)]


async def move(stage: Stage, folder: Path, topic: str = "moved", index: int = 0) -> ErrorCode:
    wanted = AlterReplicaLogDir(str(folder), [AlterReplicaLogDirTopic(topic, [index])])
    answer = await stage.ask(AlterReplicaLogDirsRequest([wanted]))
    return ErrorCode(answer.results[0].partitions[0].error_code)


async def shown(stage: Stage) -> list[tuple[str, int, bool]]:
    """Folder, how far behind, whether it is a copy."""
    answer = await stage.ask(DescribeLogDirsRequest(topics=None))
    return [
        (Path(folder.log_dir).name, partition.offset_lag, partition.is_future_key)
        for folder in answer.results
        for topic in folder.topics
        for partition in topic.partitions
    ]


async def moved(partition: Partition, folder: Path) -> None:
    await until(lambda: partition.folder.name == str(folder))
    async with partition.log.alone():
        return  # what follows the decision is done


def rot(path: Path) -> None:
    stored = bytearray(path.read_bytes())
    stored[100] ^= 1
    path.write_bytes(stored)


async def hold_back(stage: Stage, bytes_a_second: int) -> None:
    config = IncrementalAlterConfigsRequestAlterableConfig(RATE, SET, str(bytes_a_second))
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(BROKER, "1", [config])
    answer = await stage.ask(IncrementalAlterConfigsRequest([resource]))
    assert answer.responses[0].error_code == 0


def test_it_moves_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    folders = Folders(tmp_path)

    async def moves(stage: Stage) -> None:
        await stage.create("moved", segment_index_bytes="80", index_interval_bytes="500")
        partition = await stage.served("moved")
        await write(partition, 400)
        await stage.ask(DeleteRecordsRequest([DeleteRecordsTopic("moved", [DeleteRecordsPartition(0, 123)])], 5000))
        assert await move(stage, folders.two) == ErrorCode.NONE
        await write(partition, 100)
        await moved(partition, folders.two)
        await write(partition, 10)
        assert again(partition, 508).duplicate
        assert values(partition) == list(range(123, 510))
        assert await shown(stage) == [("two", 0, False)]
        assert folders.kept(folders.one) == set()
        assert folders.kept(folders.two) == {"moved-0"}

    async def is_there(stage: Stage) -> None:
        partition = await stage.served("moved")
        assert partition.folder.name == str(folders.two)
        assert values(partition) == list(range(123, 510))
        assert again(partition, 507).duplicate
        await write(partition, 5)

    folders.live(moves)
    folders.live(is_there)
    folders.forget_how_it_stopped()
    folders.live(lambda stage: came_back(stage, folders.two, 123, 515))


async def came_back(stage: Stage, folder: Path, first: int, end: int) -> None:
    partition = await stage.served("moved")
    await moved(partition, folder)
    assert values(partition) == list(range(first, end))
    assert again(partition, end - 1).duplicate
    assert {name for name in os.listdir(folder) if "moved-0" in name} == {"moved-0"}


def test_what_no_batch_tells_any_more_is_known_after_a_crash_that_follows_the_move(tmp_path: Path) -> None:
    """Its producer's batches are gone by retention: only the views know of it."""
    folders = Folders(tmp_path)

    async def moves(stage: Stage) -> None:
        await stage.create("moved")
        partition = await stage.served("moved")
        await write(partition, 30)
        partition.log.roll(RealClock.wall_ms())
        await raise_start_offset(partition.log, 30)
        await remove_oldest(partition.log, lambda: 1)
        assert await move(stage, folders.two) == ErrorCode.NONE
        await moved(partition, folders.two)

    async def still_knows(stage: Stage) -> None:
        assert again(await stage.served("moved"), 29).duplicate

    folders.live(moves)
    folders.forget_how_it_stopped()
    folders.live(still_knows)


def test_progress_is_shown_and_a_move_is_called_off(tmp_path: Path) -> None:
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition = await stage.served("moved")
        await write(partition, 300, size=5000)
        await hold_back(stage, 1000)
        assert await move(stage, folders.two) == ErrorCode.NONE
        assert await move(stage, folders.two) == ErrorCode.NONE, "it is under way"
        await asyncio.sleep(0.05)
        home, copy = await shown(stage)
        assert home == ("one", 0, False)
        assert copy[0] == "two"
        assert copy[2]
        assert 0 < copy[1] < 300
        assert await move(stage, folders.one) == ErrorCode.NONE
        assert await shown(stage) == [("one", 0, False)]
        assert await move(stage, folders.two) == ErrorCode.NONE
        assert await move(stage, folders.one) == ErrorCode.NONE
        await hold_back(stage, 1 << 30)
        await until(lambda: folders.kept(folders.two) == set())

    folders.live(scene)
    folders.live(lambda stage: came_back(stage, folders.one, 0, 300))


def test_a_log_that_is_written_to_moves_though_each_batch_begins_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy was flushed after each segment, and the writer waited for no disk: on a slow one the copy never caught
    up. Found by a seed of the simulation.
    """
    folders = Folders(tmp_path)
    waits = 0

    async def slow(sync: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        nonlocal waits
        waits += 1
        await asyncio.sleep(0.02)
        await sync(*arguments)

    for name in ("sync_files", "sync_dir", "write_atomic"):
        original = getattr(RealDisk, name)
        monkeypatch.setattr(RealDisk, name, lambda *arguments, original=original: slow(original, *arguments))

    async def scene(stage: Stage) -> None:
        nonlocal waits
        await stage.create("moved", segment_index_bytes="4")
        partition = await stage.served("moved")
        await write(partition, 200)
        waits = 0
        assert await move(stage, folders.two) == ErrorCode.NONE

        async def writes() -> None:
            while partition.folder.name != str(folders.two):
                await write(partition, 1)
                await asyncio.sleep(0.02)

        await asyncio.wait_for(writes(), 60)
        segments = len(partition.log.segments)
        assert waits < segments

    folders.live(scene, **{"log.durability": "os"})


def test_a_partition_is_not_compacted_while_it_moves(tmp_path: Path) -> None:
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition = await stage.served("moved")
        await write(partition, 300, size=5000)
        await hold_back(stage, 1000)
        partition.set_config(replace(partition.log.config, cleanup_policy=("compact",)), fsync=True)
        may_compact = stage.broker.compactor.may_compact
        assert may_compact(partition)
        await move(stage, folders.two)
        assert not may_compact(partition)
        await move(stage, folders.one)  # calls it off
        assert may_compact(partition)

    folders.live(scene)


def test_a_move_that_a_stop_interrupts_goes_on(tmp_path: Path) -> None:
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        await write(await stage.served("moved"), 300, size=5000)
        await hold_back(stage, 1000)
        await move(stage, folders.two)
        await asyncio.sleep(0.05)
        await hold_back(stage, 1 << 30)

    folders.live(scene)
    folders.live(lambda stage: came_back(stage, folders.two, 0, 300))


@pytest.mark.parametrize("died", ["copying", "decided", "named"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(tmp_path: Path, died: str) -> None:
    folders = Folders(tmp_path)
    stem, here = folders.die_with_partition()
    if died == "copying":
        (folders.two / (stem + FUTURE)).mkdir()
    else:
        shutil.copytree(here, folders.two / (stem + FUTURE if died == "decided" else "moved-0"))
        for log in here.glob("*.log"):  # what it once was may not be used
            log.write_bytes(b"")
        here.rename(folders.one / (stem + FORMER))
    folders.live(lambda stage: came_back(stage, folders.two, 0, 20))
    assert folders.kept(folders.one) == set()


def test_a_decision_is_durable_before_the_next_start_acts_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process died after it had renamed the former folder, and before that was durable."""
    folders = Folders(tmp_path)
    stem, done = "", list[tuple[str, str]]()
    rename, sync_dir = RealDisk.rename, RealDisk.sync_dir

    async def scene(stage: Stage) -> None:
        nonlocal stem
        stem = stem_of(await stage.create("moved"), 0)  # type: ignore[arg-type]
        await write(await stage.served("moved"), 20)

    def renamed(disk: RealDisk, source: str, target: str) -> None:
        done.append(("rename", source))
        rename(disk, source, target)

    async def synced(disk: RealDisk, path: str) -> None:
        await sync_dir(disk, path)
        done.append((Path(disk._root).name, path))

    folders.live(scene)
    folders.forget_how_it_stopped()
    shutil.copytree(folders.one / "moved-0", folders.two / (stem + FUTURE))
    (folders.one / "moved-0").rename(folders.one / (stem + FORMER))
    monkeypatch.setattr(RealDisk, "rename", renamed)
    monkeypatch.setattr(RealDisk, "sync_dir", synced)
    folders.live(lambda stage: came_back(stage, folders.two, 0, 20))
    assert done.index((folders.one.name, "")) < done.index(("rename", stem + FUTURE))


def test_a_move_back_leaves_no_empty_copy_while_the_move_before_becomes_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start after a crash at this moment would take the empty copy for the one that was decided on."""
    folders = Folders(tmp_path)
    sync_dir = RealDisk.sync_dir

    async def scene(stage: Stage) -> None:
        stem = stem_of(await stage.create("moved"), 0)  # type: ignore[arg-type]
        partition = await stage.served("moved")
        await write(partition, 20)
        goes_on = asyncio.Event()

        async def synced(disk: RealDisk, path: str) -> None:
            if (folders.one / (stem + FORMER)).exists():
                await goes_on.wait()
            await sync_dir(disk, path)

        monkeypatch.setattr(RealDisk, "sync_dir", synced)
        assert await move(stage, folders.two) == ErrorCode.NONE
        await until(lambda: (folders.one / (stem + FORMER)).exists())
        assert await move(stage, folders.one) == ErrorCode.NONE
        empty_copy = (folders.one / (stem + FUTURE)).exists()
        goes_on.set()
        assert not empty_copy
        await moved(partition, folders.one)
        await write(partition, 1)

    folders.live(scene)
    assert folders.kept(folders.two) == set()


def test_what_a_move_left_does_not_decide_the_next_one(tmp_path: Path) -> None:
    """The disk that the partition left failed before what it was there went; and the crash came in the next move."""
    folders = Folders(tmp_path)
    stem = ""

    async def scene(stage: Stage) -> None:
        nonlocal stem
        stem = stem_of(await stage.create("moved"), 0)  # type: ignore[arg-type]
        partition = await stage.served("moved")
        await write(partition, 20)
        await move(stage, folders.two)
        await moved(partition, folders.two)

    folders.live(scene)
    folders.forget_how_it_stopped()
    shutil.copytree(folders.two / "moved-0", folders.one / (stem + FORMER))
    begun = folders.three / (stem + FUTURE)
    shutil.copytree(folders.two / "moved-0", begun)
    for log in begun.glob("*.log"):  # it has not come far
        log.write_bytes(b"")
    folders.live(lambda stage: came_back(stage, folders.three, 0, 20))
    assert [folders.kept(each) for each in folders.all] == [set(), set(), {"moved-0"}]


def test_the_copy_that_was_decided_on_is_taken_among_several(tmp_path: Path) -> None:
    """The other one belongs to a move that was called off: the power cut brought its empty folder back."""
    folders = Folders(tmp_path)
    stem, here = folders.die_with_partition()
    shutil.copytree(here, folders.two / (stem + FUTURE))
    here.rename(folders.one / (stem + FORMER))
    (folders.three / (stem + FUTURE)).mkdir()

    async def settled(stage: Stage) -> None:
        await came_back(stage, folders.two, 0, 20)
        assert stage.broker.moves.under_way() == [], "nobody asked for another move"

    folders.live(settled)
    assert [folders.kept(each) for each in folders.all] == [set(), {"moved-0"}, set()]


def test_what_a_partition_was_before_it_moved_to_a_missing_disk_is_kept(tmp_path: Path) -> None:
    """The partition begins anew. The start after that took the former folder for what a finished move left, and the
    start with that disk took the copy on it, which alone had what was written after the move, for one not finished.
    """
    folders = Folders(tmp_path)
    stem, here = folders.die_with_partition()
    shutil.copytree(here, tmp_path / "missing")
    here.rename(folders.one / (stem + FORMER))
    away = folders.all.pop(1)
    away.rename(tmp_path / "away")
    folders.live(lambda stage: stage.served("moved"))
    folders.forget_how_it_stopped()
    (tmp_path / "away").rename(away)
    folders.all.insert(1, away)
    shutil.copytree(tmp_path / "missing", away / (stem + FUTURE))
    for _ in range(2):
        folders.live(lambda stage: stage.served("moved"))
        logs = [(folder / f"{stem}.1{STRAY}" / FIRST_LOG).read_bytes() for folder in (folders.one, away)]
        assert logs == [(tmp_path / "missing" / FIRST_LOG).read_bytes()] * 2
        assert logs[0] != b""


def test_of_two_copies_that_were_begun_none_is_guessed_to_be_the_one_that_was_decided_on(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    stem, here = folders.die_with_partition()
    for other in (folders.two, folders.three):
        shutil.copytree(here, other / (stem + FUTURE))
    here.rename(folders.one / (stem + FORMER))
    with pytest.raises(StartError, match=f"{stem}{FUTURE} is in {folders.two} and in {folders.three}"):
        folders.live(lambda stage: stage.served("moved"))
    shutil.rmtree(folders.three / (stem + FUTURE))
    folders.live(lambda stage: came_back(stage, folders.two, 0, 20))


def test_each_of_two_former_folders_is_gone_when_the_move_between_is_settled(tmp_path: Path) -> None:
    """What an earlier move left is back after the power cut, in the folder to which the partition moved again."""
    folders = Folders(tmp_path)
    stem, here = folders.die_with_partition()
    shutil.copytree(here, folders.two / (stem + FUTURE))
    shutil.copytree(here, folders.two / (stem + FORMER))
    here.rename(folders.one / (stem + FORMER))
    folders.live(lambda stage: came_back(stage, folders.two, 0, 20))
    assert [folders.kept(each) for each in folders.all] == [set(), {"moved-0"}, set()]


def test_two_moves_that_were_under_way_are_both_off(tmp_path: Path) -> None:
    """One of them was called off, and its folder was still there: the next start can't tell which."""
    folders = Folders(tmp_path)
    stem, _ = folders.die_with_partition()

    async def stays(stage: Stage) -> None:
        await came_back(stage, folders.one, 0, 20)
        assert stage.broker.moves.under_way() == []

    for other in (folders.two, folders.three):
        (other / (stem + FUTURE)).mkdir()
    folders.live(stays)
    folders.live(stays)
    assert [folders.kept(each) for each in folders.all] == [{"moved-0"}, set(), set()]


def test_what_a_move_that_never_began_made_is_gone_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut in the next move brings it back beside the copy that counts."""
    folders = Folders(tmp_path)
    sync_dir, synced = RealDisk.sync_dir, list[tuple[str, bool]]()

    async def sync(disk: RealDisk, path: str) -> None:
        await sync_dir(disk, path)
        synced.append((Path(disk._root).name + path, bool(folders.kept(Path(disk._root)))))

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        await write(await stage.served("moved"), 20)
        monkeypatch.setattr(RealDisk, "sync_dir", sync)
        assert await move(stage, folders.three) == ErrorCode.NONE
        assert await move(stage, folders.one) == ErrorCode.NONE
        await until(lambda: ("three", False) in synced)

    folders.live(scene)


@pytest.mark.parametrize(("ends_after", "ends_in"), [(0, 0), (1, 1), (3, 2)])
def test_what_is_sent_back_and_forth_is_thrown_away_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_after: int, ends_in: int
) -> None:
    """500 times in one request held up the moves of others for 4 s: each move that had never begun was thrown away
    durably, one after the other, and what had begun rested for a second before.
    """
    folders = Folders(tmp_path)
    sync_dir, synced = RealDisk.sync_dir, list[str]()

    async def sync(disk: RealDisk, path: str) -> None:
        await sync_dir(disk, path)
        synced.append(Path(disk._root).name + path)

    async def scene(stage: Stage) -> None:
        for topic in ("moved", "other"):
            await stage.create(topic)
        partition, other = await stage.served("moved"), await stage.served("other")
        await write(partition, 20)
        wanted = [
            AlterReplicaLogDir(str(folder), [AlterReplicaLogDirTopic("moved", [0])])
            for _ in range(50)
            for folder in (folders.two, folders.one, folders.three, folders.one)
        ]
        monkeypatch.setattr(RealDisk, "sync_dir", sync)
        answer = await stage.ask(AlterReplicaLogDirsRequest([*wanted, *wanted[:ends_after]]))
        assert {each.partitions[0].error_code for each in answer.results} == {ErrorCode.NONE}
        assert other.folder.name == str(folders.two)
        assert await move(stage, folders.three, "other") == ErrorCode.NONE
        await moved(other, folders.three)
        assert len(synced) < len(wanted) / 4
        await moved(partition, folders.all[ends_in])

    folders.live(scene)


def test_a_copy_on_a_disk_that_failed_is_removed_by_the_next_start(tmp_path: Path) -> None:
    """It would be beside the copy of a later move, and there may be nothing else that tells them apart."""
    folders = Folders(tmp_path)
    stem = ""

    async def scene(stage: Stage) -> None:
        nonlocal stem
        stem = stem_of(await stage.create("moved"), 0)  # type: ignore[arg-type]
        partition = await stage.served("moved")
        await write(partition, 300, size=5000)
        await hold_back(stage, 1000)
        assert await move(stage, folders.three) == ErrorCode.NONE
        await until(lambda: any(each.copied_bytes for each in stage.broker.moves.under_way()))
        three = stage.broker.folders[2]
        assert isinstance(three.disk, RealDisk)
        three.disk.fault = DiskFault("fsync", "three", errno.EIO)
        three.fail(three.disk.fault)
        await until(lambda: (folders.one / UNREMOVED).exists() and (folders.two / UNREMOVED).exists())
        assert not stage.broker.moves.under_way()

    async def stays(stage: Stage) -> None:
        await came_back(stage, folders.one, 0, 300)
        assert not stage.broker.moves.under_way()

    folders.live(scene)
    folders.forget_how_it_stopped()
    assert (folders.three / (stem + FUTURE)).exists()
    folders.live(stays)
    assert [folders.kept(each) for each in folders.all] == [{"moved-0"}, set(), set()]
    assert not (folders.one / UNREMOVED).exists()


def test_a_copy_that_took_over_on_a_disk_that_failed_then_is_removed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had not got the partition's name yet. That name was noted, and the next start found a move to go on with."""
    folders = Folders(tmp_path)
    stem, rename = "", RealDisk.rename

    def broken(disk: RealDisk, source: str, target: str) -> None:
        if source.endswith(FUTURE):
            disk.fault = DiskFault(errno.EIO, "broken", source)
            raise disk.fault
        rename(disk, source, target)

    async def scene(stage: Stage) -> None:
        nonlocal stem
        stem = stem_of(await stage.create("moved"), 0)  # type: ignore[arg-type]
        partition = await stage.served("moved")
        await write(partition, 20)
        monkeypatch.setattr(RealDisk, "rename", broken)
        assert await move(stage, folders.two) == ErrorCode.NONE
        await until(lambda: partition.folder.failed is not None)
        await stage.ask(DeleteTopicsRequest(topic_names=["moved"]), 5)
        await until((folders.one / UNREMOVED).exists)
        assert (folders.two / (stem + FUTURE)).exists()

    async def nothing(stage: Stage) -> None:
        assert not stage.broker.folders[1].unused

    folders.live(scene)
    monkeypatch.undo()
    folders.live(nothing)
    assert folders.kept(folders.two) == set()


@pytest.mark.parametrize("moves", [False, True], ids=["stays", "moves out"])
def test_a_point_on_a_disk_that_failed_says_nothing_of_the_next_topic_of_that_name(tmp_path: Path, moves: bool) -> None:
    """Found by the simulation: its folder was gone when the disk worked again, and so the next topic, which nobody had
    written to, was said to have lost its records, and began at their end.
    """
    folders = Folders(tmp_path)
    former = folders.one

    async def scene(stage: Stage) -> None:
        nonlocal former
        await stage.create("moved")
        partition = await stage.served("moved")
        await write(partition, 20)
        failed, housekeeper = partition.folder, stage.broker.housekeeper
        former = Path(failed.name)
        await housekeeper.write_points(failed)
        points = dict(housekeeper.written_points[failed])
        if moves:
            target = next(each for each in folders.all if each != former)
            await move(stage, target)
            await moved(partition, target)
            await write_recovery_points(failed.disk, points)  # as if it had failed before its list was written
            housekeeper.written_points[failed] = points
        assert isinstance(failed.disk, RealDisk)
        failed.disk.fault = DiskFault("fsync", "one", errno.EIO)
        failed.fail(failed.disk.fault)
        await stage.ask(DeleteTopicsRequest(topic_names=["moved"]), 5)
        others = [each for each in folders.all if each != former]
        await until(lambda: all((each / UNREMOVED).exists() for each in others))
        await stage.create("moved")
        await stage.served("moved")

    async def begins_anew(stage: Stage) -> None:
        log = (await stage.served("moved")).log
        assert (log.start_offset, log.end_offset) == (0, 0)

    folders.live(scene)
    folders.forget_how_it_stopped()
    shutil.rmtree(former / "moved-0", ignore_errors=True)
    assert "moved 0 20" in (former / RECOVERY_POINTS).read_text()
    folders.live(begins_anew)


def test_what_a_folder_lists_of_a_partition_that_moved_away_does_not_outlive_it(tmp_path: Path) -> None:
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition = await stage.served("moved")
        await write(partition, 20)
        housekeeper = stage.broker.housekeeper
        await housekeeper.write_points(partition.folder)
        assert partition.topic_partition in housekeeper.written_points[partition.folder]
        await move(stage, folders.two)
        await moved(partition, folders.two)
        await stage.ask(DeleteTopicsRequest(topic_names=["moved"], timeout_ms=5000), 5)
        await until(lambda: not any(housekeeper.written_points.values()))

    folders.live(scene)


def test_no_recovery_point_is_left_by_the_partition_when_it_is_decided_that_it_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former folder does not have the partition's name: a topic of that name would be judged by the point."""
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition, housekeeper = await stage.served("moved"), stage.broker.housekeeper
        await write(partition, 3)
        await housekeeper.write_points(partition.folder)
        points = housekeeper.written_points[partition.folder]
        assert points[partition.topic_partition] == 3
        origin, decided, seen = partition.folder, FolderMoves._decided, list[int]()

        def look(moves: FolderMoves, move: FolderMove) -> None:
            seen.append(housekeeper.written_points[origin][partition.topic_partition])
            decided(moves, move)

        monkeypatch.setattr(FolderMoves, "_decided", look)
        assert await move(stage, folders.two) is ErrorCode.NONE
        await moved(partition, folders.two)
        assert seen == [0]

    folders.live(scene)


@pytest.mark.parametrize("has_data", [True, False])
def test_what_is_on_a_full_disk_moves_away_and_producers_of_the_other_disk_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_data: bool
) -> None:
    """The list of recovery points had no room to be written anew. The other disk was taken for the full one, and the
    move never ended.
    """
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition, housekeeper = await stage.served("moved"), stage.broker.housekeeper
        origin = partition.folder
        target = next(folder for folder in stage.broker.folders if folder.name == str(folders.two))
        if has_data:
            await write(partition, 20)
            await partition.flush()
            await housekeeper.write_points(origin)
        write_atomic, mkdir = RealDisk.write_atomic, RealDisk.mkdir

        async def written(disk: RealDisk, path: str, data: bytes) -> None:
            if disk is origin.disk:
                raise DiskFault(errno.ENOSPC, "no room", path)
            await write_atomic(disk, path, data)

        def made(disk: RealDisk, path: str) -> None:
            if disk is origin.disk:
                raise DiskFault(errno.ENOSPC, "no room", path)
            mkdir(disk, path)

        with monkeypatch.context() as patch:
            patch.setattr(RealDisk, "write_atomic", written)
            patch.setattr(RealDisk, "mkdir", made)
            assert await move(stage, folders.two) is ErrorCode.NONE
            await until(lambda: origin.headroom.is_short)
            if has_data:
                await moved(partition, folders.two)
            assert not target.headroom.is_short
        await moved(partition, folders.two)
        await write(partition, 10)
        assert values(partition) == list(range(partition.log.end_offset))

    folders.live(scene)


@pytest.mark.parametrize("begun", [False, True])
def test_a_move_into_a_full_folder_lets_those_go_first_that_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """It waited for room at the head of the queue for ever, and the move out of that folder waited behind it."""
    monkeypatch.setattr("service.broker.folder_moves.REST_S", 0.02)
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        for topic in ("moved", "large"):
            await stage.create(topic)
            await write(await stage.served(topic), 20, size=400_000)
        partition, large = await stage.served("moved"), await stage.served("large")
        full = large.folder
        assert full.name == str(folders.two) != partition.folder.name

        async def no_look() -> None:
            pass

        monkeypatch.setattr(full.headroom, "look", no_look)
        full.headroom.is_short = not begun
        if begun:
            await hold_back(stage, 1)
        assert await move(stage, folders.two) is ErrorCode.NONE
        await until(lambda: stage.broker.moves._carried_out is not None)
        if begun:
            await until(lambda: bool(stage.broker.moves.under_way()[0].copied_bytes))
            full.headroom.is_short = True
            await hold_back(stage, 1 << 30)
        await asyncio.sleep(0.1)
        assert await move(stage, folders.one, "large") is ErrorCode.NONE
        await moved(large, folders.one)
        assert [each.partition for each in stage.broker.moves.under_way()] == [partition]
        await asyncio.sleep(0.1)
        full.headroom.is_short = False
        await moved(partition, folders.two)
        await write(partition, 10)
        assert values(partition) == list(range(30))

    folders.live(scene)


def test_what_rots_is_not_copied_and_stays_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition = await stage.served("moved")
        await write(partition, 20)
        rot(folders.one / "moved-0" / f"{0:020}.log")
        assert await move(stage, folders.two) == ErrorCode.NONE
        await until(lambda: "has rotted and can't be copied" in caplog.text)
        await until(lambda: folders.kept(folders.two) == set())
        await write(partition, 1)
        assert await shown(stage) == [("one", 0, False)]

    folders.live(scene)


def test_a_topic_that_is_deleted_on_its_way_leaves_nothing(tmp_path: Path) -> None:
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        await write(await stage.served("moved"), 300, size=5000)
        await hold_back(stage, 100_000)
        await move(stage, folders.two)
        await asyncio.sleep(0.05)
        await stage.ask(DeleteTopicsRequest(topic_names=["moved"]), 5)
        await until(lambda: folders.kept(folders.one) | folders.kept(folders.two) == set())

    folders.live(scene)


def test_who_asks_for_what_cannot_be_is_told_so(tmp_path: Path) -> None:
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        await stage.served("moved")
        assert await move(stage, tmp_path / "another") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await move(stage, folders.two, "unheard of") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await move(stage, folders.two, index=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    folders.live(scene)


def test_a_partition_that_nobody_wrote_to_moves_too(tmp_path: Path) -> None:
    folders = Folders(tmp_path)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition = await stage.served("moved")
        assert await move(stage, folders.two) == ErrorCode.NONE
        await moved(partition, folders.two)
        await write(partition, 3)
        assert TopicPartition("moved", 0) == partition.topic_partition
        assert await move(stage, folders.one) == ErrorCode.NONE
        await moved(partition, folders.one)
        assert values(partition) == [0, 1, 2]

    folders.live(scene)


def test_each_folder_knows_how_many_partitions_are_in_it(tmp_path: Path) -> None:
    """New ones go to the emptiest. To count all partitions for each of very many took minutes."""
    folders = Folders(tmp_path)

    def counts(stage: Stage) -> list[int]:
        return [folder.partitions for folder in stage.broker.folders]

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition = await stage.served("moved")
        assert counts(stage) == [1, 0, 0]
        assert await move(stage, folders.three) == ErrorCode.NONE
        await moved(partition, folders.three)
        assert counts(stage) == [0, 0, 1]
        await stage.create("other", 4)
        await stage.served("other", 3)
        assert counts(stage) == [2, 2, 1]
        await stage.ask(DeleteTopicsRequest(topic_names=["other"]), 5)
        assert counts(stage) == [0, 0, 1]
        assert len(stage.broker.partitions) == 1

    async def again(stage: Stage) -> None:
        assert counts(stage) == [0, 0, 1]

    folders.live(scene)
    folders.live(again)


def test_lost_indexes_of_what_moves_are_rebuilt_by_the_folder_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's folder was blamed. It and the readers' folder rebuilt the same indexes, and ended each other."""
    folders = Folders(tmp_path)
    blamed: list[str] = []
    blame = LogFolder.blame

    def watched(folder: LogFolder, error: DiskFault | CorruptBatch, topic_partition: TopicPartition) -> None:
        if isinstance(error, IndexesLost):
            blamed.append(folder.name)
        blame(folder, error, topic_partition)

    async def scene(stage: Stage) -> None:
        await stage.create("moved")
        partition = await stage.served("moved")
        await write(partition, 300, size=500)
        partition.log.roll(RealClock.wall_ms())
        await write(partition, 1)
        segment = partition.log.segments[0]
        segment.close()
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
            partition.log.disk.unlink(segment.path(suffix))
        monkeypatch.setattr(LogFolder, "blame", watched)
        assert await move(stage, folders.two) == ErrorCode.NONE
        await moved(partition, folders.two)
        assert set(blamed) == {str(folders.one)}

    folders.live(scene)
