"""Topics that go, and come again under the same name, while their logs are at work: nothing old is left in the new.

Found by deleting topics under load: a flush that came back after its folder was gone took the whole data folder out of
service; after a crash a new topic was measured by how far its predecessor had come, and was not served.
"""

import asyncio
import errno
from collections.abc import Awaitable
from pathlib import Path

import pytest

from log.batch import build_batch
from log.disk import DiskFault, RealDisk
from log.identity import PARTITION_METADATA
from log.ids import TopicPartition, format_topic_id
from log.manifest import MANIFEST, RECOVERY_POINTS
from service.broker.partition import Appended, Partition
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.service.api.admin_stage import Stage, on_stage

HERE = TopicPartition("orders", 0)
FSYNC = {"log.durability": "fsync"}


async def until_served(stage: Stage) -> Partition:
    async with asyncio.timeout(10):
        while True:
            partition = stage.broker.partitions.get(HERE)
            if partition is not None and partition.replicas is not None:
                return partition
            await asyncio.sleep(0.005)


async def write(partition: Partition, *values: bytes, timestamp_ms: int = 0) -> None:
    """With acks=all: returns when they are durable."""
    batch = bytearray(build_batch([(b"k", value, (), timestamp_ms) for value in values]))
    appended = partition.append_from_client(memoryview(batch), acks=-1, now_ms=RealClock.wall_ms())
    assert isinstance(appended, Appended)
    if (committed := partition.committed(appended.end_offset)) is not None:
        await committed


async def delete(stage: Stage) -> None:
    answer = await stage.ask(DeleteTopicsRequest([DeleteTopicState("orders")]))
    assert answer.responses[0].error_code == 0


def values(partition: Partition) -> int:
    return sum(header.record_count for header, _ in partition.log.scan(0))


@pytest.mark.parametrize("slow", ["sync_dir", "write_atomic"])
def test_a_flush_that_comes_back_after_its_topic_was_deleted_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    held = asyncio.Event()
    begun = asyncio.Event()
    original = getattr(RealDisk, slow)

    async def slowly(disk: RealDisk, path: str, *more: object) -> None:
        if path.startswith("orders"):
            begun.set()
            await held.wait()
        await original(disk, path, *more)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", segment_ms="1")
        old = await until_served(stage)
        monkeypatch.setattr(RealDisk, slow, slowly)
        # Each begins a segment, so that the one before leaves a snapshot to be written.
        writing = [asyncio.ensure_future(write(old, b"x", timestamp_ms=at)) for at in (0, 10, 20)]
        await begun.wait()
        await delete(stage)
        new_id = await stage.create("orders")
        assert stage.broker.partitions.get(HERE) is None, "the name is not free yet"
        held.set()
        new = await until_served(stage)
        assert new.topic_id == new_id
        await write(new, b"4")
        await asyncio.gather(*writing, return_exceptions=True)
        assert (new.log.start_offset, new.log.end_offset, values(new)) == (0, 1, 1)
        assert old.log.gone
        assert stage.broker.folders[0].failed is None

    on_stage(tmp_path, scene, FSYNC)


def test_whose_records_were_to_be_deleted_when_the_topic_went_is_told_so(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await until_served(stage)
        await write(partition, b"1", b"2")
        async with partition.log.alone():
            wanted = DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, 1)])
            asked = asyncio.ensure_future(stage.ask(DeleteRecordsRequest([wanted], 5000)))
            removing = asyncio.ensure_future(delete(stage))
            await asyncio.sleep(0.05)
            partition.log.gone = True  # as if the removal had come first
        answer = (await asked).topics[0].partitions[0]
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        await removing

    on_stage(tmp_path, scene, FSYNC)


def test_a_topic_may_be_deleted_and_made_again_many_times_under_load(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(30):
            await stage.create("orders")
            partition = await until_served(stage)
            assert values(partition) == 0
            writing = [asyncio.ensure_future(write(partition, b"x" * 100)) for _ in range(20)]
            await asyncio.sleep(0)
            await delete(stage)
            await asyncio.gather(*writing, return_exceptions=True)
        assert stage.broker.folders[0].failed is None

    on_stage(tmp_path, scene, FSYNC)
    assert not (tmp_path / "orders-0").exists()


def test_what_a_deleted_topic_left_before_a_crash_is_not_taken_for_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker dies between the commit that deletes and the removal of the folder, or after the next creation; and
    it may die again at any moment of the start that finds this.
    """
    metadata = MemoryServer(RealClock())
    discard = RealDisk.discard

    def when_its_point_is_forgotten(disk: RealDisk, path: str) -> None:
        assert (tmp_path / RECOVERY_POINTS).read_text() == "0\n0\n"
        discard(disk, path)

    async def first(stage: Stage) -> None:
        await stage.create("orders")
        await write(await until_served(stage), b"1", b"2")
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])

    async def second(stage: Stage) -> None:
        partition = await until_served(stage)
        assert (partition.log.start_offset, partition.log.end_offset) == (0, 0)
        await write(partition, b"3")

    on_stage(tmp_path, first, FSYNC, metadata=metadata)
    assert "orders 0 2" in (tmp_path / RECOVERY_POINTS).read_text()
    (tmp_path / MANIFEST).unlink()
    monkeypatch.setattr(RealDisk, "discard", when_its_point_is_forgotten)
    identity = tmp_path / "orders-0" / PARTITION_METADATA
    assert identity.read_text().splitlines()[0] == "version: 0"
    identity.write_text(f"version: 0\ntopic_id: {format_topic_id(bytes(15) + b'1')}\n")
    on_stage(tmp_path, second, FSYNC, metadata=metadata)


FIRST_LOG = f"{0:020}.log"
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
        await until_served(stage)

    async def second(stage: Stage) -> None:
        partition = await until_served(stage)
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
        await write(await until_served(stage), b"1", b"2")
        if what == "with a recovery point":
            await stage.broker.housekeeper.write_points(stage.broker.folders[0])

    async def second(stage: Stage) -> None:
        assert values(await until_served(stage)) == 2

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
        assert values(await until_served(stage)) == 0

    on_stage(tmp_path, scene)


def test_a_topic_made_again_while_its_disk_has_failed_holds_nothing_old_and_keeps_nobody_from_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predecessor's folder can't be set aside, and must not be read for it either."""

    def refuses(disk: RealDisk, path: str) -> None:
        disk.fault = DiskFault(errno.EIO, "broken", path)
        raise disk.fault

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await until_served(stage), b"old")
        monkeypatch.setattr(RealDisk, "discard", refuses)
        await delete(stage)
        new_id = await stage.create("orders")
        while True:
            partition = stage.broker.partitions.get(HERE)
            if partition is not None:
                break
            await asyncio.sleep(0.005)
        assert (partition.topic_id, partition.log.end_offset) == (new_id, 0)
        assert partition.offline
        assert stage.broker.folders[0].failed is not None
        await stage.create("another")
        assert stage.broker.metadata.image.topics.get("another") is not None, "it follows the metadata still"

    on_stage(tmp_path, scene, FSYNC)


def test_a_new_topic_is_not_measured_by_how_far_its_predecessor_had_come(tmp_path: Path) -> None:
    metadata = MemoryServer(RealClock())

    async def first(stage: Stage) -> None:
        await stage.create("orders")
        await write(await until_served(stage), *[b"old"] * 9)
        (folder,) = stage.broker.folders
        await stage.broker.housekeeper.write_points(folder)
        assert "orders 0 9" in (tmp_path / RECOVERY_POINTS).read_text()
        await delete(stage)
        await stage.create("orders")
        await write(await until_served(stage), b"new")
        assert "orders 0 9" not in (tmp_path / RECOVERY_POINTS).read_text()

    async def second(stage: Stage) -> None:
        partition = await until_served(stage)
        assert (partition.offline, values(partition)) == (False, 1)

    on_stage(tmp_path, first, FSYNC, metadata=metadata)
    (tmp_path / MANIFEST).unlink()  # as if it had been killed
    on_stage(tmp_path, second, FSYNC, metadata=metadata)


def test_a_point_that_a_full_disk_could_not_forget_goes_once_the_deletion_has_made_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: killed then, the broker began the next topic of the name where this one had ended."""
    write_atomic, points, folder = RealDisk.write_atomic, tmp_path / RECOVERY_POINTS, tmp_path / "orders-0"

    async def has_no_room(disk: RealDisk, path: str, data: bytes) -> None:
        if folder.exists():
            raise DiskFault(errno.ENOSPC, "no space left", path)
        await write_atomic(disk, path, data)

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await until_served(stage), b"1", b"2")
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])
        assert "orders 0 2" in points.read_text()
        monkeypatch.setattr(RealDisk, "write_atomic", has_no_room)
        await delete(stage)
        await stage.create("orders")
        await until_served(stage)  # the name is free
        assert "orders 0" not in points.read_text()

    on_stage(tmp_path, scene, FSYNC)


@pytest.mark.parametrize("refused", ["write_atomic", "discard"])
def test_a_name_is_free_only_when_nothing_of_its_former_owner_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Found by the simulation: without descriptors the point stayed, the next topic of the name was measured by it
    after a power cut, and was not served.
    """
    points, original, refusals = tmp_path / RECOVERY_POINTS, getattr(RealDisk, refused), iter(range(3))

    def has_no_descriptor(disk: RealDisk, path: str, *more: object) -> Awaitable[None] | None:
        if next(refusals, None) is not None:
            raise DiskFault(errno.EMFILE, "too many open files", path)
        result: Awaitable[None] | None = original(disk, path, *more)
        return result

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await until_served(stage), b"1", b"2")
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])
        monkeypatch.setattr(RealDisk, refused, has_no_descriptor)
        await delete(stage)
        new_id = await stage.create("orders")
        new = await until_served(stage)
        assert next(refusals, None) is None, "it was refused and tried again"
        assert "orders 0" not in points.read_text()
        assert (new.topic_id, values(new)) == (new_id, 0)

    on_stage(tmp_path, scene, FSYNC)


def test_points_of_topics_that_are_gone_do_not_outlive_a_start(tmp_path: Path) -> None:
    metadata = MemoryServer(RealClock())

    async def nothing(stage: Stage) -> None:
        pass

    async def look(stage: Stage) -> None:
        assert (tmp_path / RECOVERY_POINTS).read_text() == "0\n0\n"

    on_stage(tmp_path, nothing, metadata=metadata)
    (tmp_path / RECOVERY_POINTS).write_text("0\n1\norders 0 9\n")
    on_stage(tmp_path, look, metadata=metadata)
