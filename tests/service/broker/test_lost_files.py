"""Files that are missing or rotten when they are wanted. A partition's folder or a segment that was removed, or what a
bad disk made of one, harms that partition and nobody else, and no offset is given twice.

Found by removing them: a consumer's connection was closed at each of its fetches, all its other partitions included; a
producer's too; one rotten batch ended the compaction of every topic.
"""

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from log.batch import build_batch
from log.disk import DiskFault
from log.ids import TopicPartition
from log.manifest import MANIFEST
from log.segment import SUFFIXES
from service.api.routes import ROUTES
from service.broker.data_folder import StartError
from service.broker.housekeeper import FLUSH, RETENTION, Housekeeper
from service.broker.partition import Appended, Partition
from service.broker.session import Session
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.service.api.admin_stage import Stage, on_stage

FETCH = 1
SETTINGS = {"log.durability": "fsync"}


async def write(stage: Stage, topic: str, count: int) -> None:
    """So many batches of one record, durably."""
    partition = await stage.served(topic)
    for number in range(count):
        batch = bytearray(build_batch([(b"k", b"%d" % number, (), 1)]))
        appended = partition.append_from_client(memoryview(batch), acks=-1, now_ms=RealClock.wall_ms())
        assert isinstance(appended, Appended)
    if (committed := partition.committed(partition.log.end_offset)) is not None:
        await committed


async def error_of_write(stage: Stage, topic: str, *, timestamp_ms: int = 1) -> ErrorCode:
    partition = stage.broker.partitions.get(TopicPartition(topic, 0))
    assert partition is not None
    batch = bytearray(build_batch([(b"k", b"v", (), timestamp_ms)]))
    refused = partition.append_from_client(memoryview(batch), acks=1, now_ms=RealClock.wall_ms())
    return ErrorCode.NONE if isinstance(refused, Appended) else refused.error


async def errors_of_fetch(stage: Stage, **offsets: int) -> dict[str, int]:
    """One request for several topics; what each was answered."""
    request = FetchRequest(
        topics=[
            FetchTopic(topic, partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)])
            for topic, offset in offsets.items()
        ],
    )
    answer: Any = ROUTES[FETCH].bound(stage.broker)(Session("10.0.0.9", 1), RequestHeader(FETCH, 12, 1, "c"), request)
    if not isinstance(answer, FetchResponse):
        answer = await answer
    return {topic.topic: topic.partitions[0].error_code for topic in answer.responses}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def errors_of_search(stage: Stage, *topics: str) -> dict[str, int]:
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=1)]) for topic in topics]
    )
    answer = await stage.ask(request, 9)
    return {topic.name: topic.partitions[0].error_code for topic in answer.topics}


async def two_topics(stage: Stage) -> None:
    for topic in ("orders", "bills"):
        await stage.create(topic)
        await write(stage, topic, 3)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
def test_a_partition_whose_folder_was_removed_goes_on_where_it_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    metadata = MemoryServer(RealClock())

    async def before(stage: Stage) -> None:
        await two_topics(stage)
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])

    async def after(stage: Stage) -> None:
        log = (await stage.served("orders")).log
        assert (log.start_offset, log.end_offset) == (3, 3)
        assert "orders-0 is empty and goes on at offset 3" in caplog.text
        assert await errors_of_fetch(stage, orders=0, bills=0) == {"orders": ErrorCode.OFFSET_OUT_OF_RANGE, "bills": 0}
        await write(stage, "orders", 1)
        assert (log.start_offset, log.end_offset) == (3, 4)

    on_stage(tmp_path, before, SETTINGS, metadata=metadata)
    if not clean:
        (tmp_path / MANIFEST).unlink()
    shutil.rmtree(tmp_path / "orders-0")
    on_stage(tmp_path, after, SETTINGS, metadata=metadata)


def test_a_partition_that_was_moved_to_another_data_folder_is_found_there(tmp_path: Path) -> None:
    """As one may do with Kafka's, while the broker is stopped."""
    metadata = MemoryServer(RealClock())
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()

    async def after(stage: Stage) -> None:
        partition = await stage.served("orders")
        assert (partition.log.start_offset, partition.log.end_offset) == (0, 3)
        assert Path(partition.folder.name) == moved_to
        assert not stage.broker.maker.was_clean, "no manifest says how far it had come"

    on_stage(folders[0], two_topics, SETTINGS, metadata=metadata, more_folders=folders[1:])
    (here,) = [folder for folder in folders if (folder / "orders-0").exists()]
    (moved_to,) = [folder for folder in folders if folder != here]
    (here / "orders-0").rename(moved_to / "orders-0")
    on_stage(folders[0], after, SETTINGS, metadata=metadata, more_folders=folders[1:])


def test_a_partition_in_two_data_folders_keeps_the_broker_from_choosing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was written to while one folder was not mounted and not named; then both were."""
    metadata = MemoryServer(RealClock())
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()

    async def before(stage: Stage) -> None:
        await two_topics(stage)
        assert {path.name for folder in (one, two) for path in folder.glob("*-0")} == {"orders-0", "bills-0"}

    async def without_one(stage: Stage) -> None:
        assert "this broker had 1 more data folder(s) than it was started with" in caplog.text
        for topic in ("orders", "bills"):
            await write(stage, topic, 1)

    async def nothing(stage: Stage) -> None:
        pass

    on_stage(one, before, SETTINGS, metadata=metadata, more_folders=[two])
    on_stage(one, without_one, SETTINGS, metadata=metadata)
    holds = [r"-0 is in .*two \(offsets 0 to 2\) and in .*one \(offsets 0 to 0\), ", ".*: move that one away"]
    with pytest.raises(StartError, match="".join(holds)):
        on_stage(one, nothing, SETTINGS, metadata=metadata, more_folders=[two])


MISSING = "offsets 0 to 2, durable batches are missing at the end"


def lose_segment(folder: Path) -> None:
    (folder / f"{0:020}.log").unlink()


def spoil_second_batch(folder: Path) -> None:
    file = folder / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[2 * len(data) // 3 - 1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "segments", "told", "told_again"),
    [
        (lose_segment, 1, MISSING, MISSING),
        (spoil_second_batch, 2, "offsets 1 to 1, wrong checksum", "offsets 0 to 3, damage was found before"),
    ],
)
def test_a_log_in_which_a_start_has_found_damage_is_not_served_by_later_starts_either(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path], None],
    segments: int,
    told: str,
    told_again: str,
) -> None:
    """The second start took it for whole, and led it: what was damaged is durable, and so it is not read again."""
    metadata = MemoryServer(RealClock())

    async def before(stage: Stage) -> None:
        await two_topics(stage)
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])
        if segments > 1:
            (await stage.served("orders")).log.roll(1)
            await write(stage, "orders", 1)

    async def after(stage: Stage) -> None:
        assert f"orders-0 is damaged and not served: {told}" in caplog.text
        assert await error_of_write(stage, "orders") is ErrorCode.KAFKA_STORAGE_ERROR
        assert await errors_of_fetch(stage, orders=0, bills=0) == {"orders": ErrorCode.KAFKA_STORAGE_ERROR, "bills": 0}
        await write(stage, "bills", 1)
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])

    on_stage(tmp_path, before, SETTINGS, metadata=metadata)
    (tmp_path / MANIFEST).unlink()
    harm(tmp_path / "orders-0")
    on_stage(tmp_path, after, SETTINGS, metadata=metadata)
    caplog.clear()
    told = told_again
    on_stage(tmp_path, after, SETTINGS, metadata=metadata)


def rot(file: Path) -> None:
    """The length of the second batch becomes what no batch has."""
    data = bytearray(file.read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second + 8 : second + 12] = b"\x00\x00\x00\x01"
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "error"),
    [(Path.unlink, ErrorCode.KAFKA_STORAGE_ERROR), (rot, ErrorCode.CORRUPT_MESSAGE)],
    ids=["missing", "rotten"],
)
def test_a_file_that_cannot_be_read_is_the_misfortune_of_its_partition_alone(
    tmp_path: Path, harm: Callable[[Path], None], error: ErrorCode
) -> None:
    metadata = MemoryServer(RealClock())

    async def after(stage: Stage) -> None:
        await stage.served("orders")
        assert await errors_of_fetch(stage, orders=2, bills=2) == {"orders": error, "bills": 0}
        if harm is rot:
            await write(stage, "orders", 1)
        else:
            assert await errors_of_search(stage, "orders", "bills") == {"orders": error, "bills": 0}
            assert await error_of_write(stage, "orders") is error
        await write(stage, "bills", 1)
        assert stage.broker.folders[0].failed is None

    on_stage(tmp_path, two_topics, SETTINGS, metadata=metadata)
    harm(tmp_path / "orders-0" / f"{0:020}.log")
    on_stage(tmp_path, after, SETTINGS, metadata=metadata)


def test_compaction_tells_of_damaged_batches_and_leaves_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", cleanup_policy="compact")
        await write(stage, "orders", 3)
        file = tmp_path / "orders-0" / f"{0:020}.log"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        log = (await stage.served("orders")).log
        log.roll(RealClock.wall_ms())
        await write(stage, "orders", 1)
        await until(lambda: "orders-0: 1 damaged batch(es) stay" in caplog.text)
        await until(lambda: log.segments[0].size_bytes < len(data))
        # Nobody knows that the damaged batch was the key's last, so the one before stays too.
        assert [header.base_offset for header, _ in log.scan(0)] == [1, 2, 3]

    on_stage(tmp_path, scene, {**SETTINGS, "log.cleaner.backoff.ms": "1"})


def test_a_rotten_segment_does_not_stop_compaction_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata = MemoryServer(RealClock())
    caplog.set_level(logging.INFO)

    async def before(stage: Stage) -> None:
        for topic in ("orders", "bills"):
            await stage.create(topic, cleanup_policy="compact")
            await write(stage, topic, 3)
            (await stage.served(topic)).log.roll(RealClock.wall_ms())
            await write(stage, topic, 1)

    async def after(stage: Stage) -> None:
        await until(lambda: "bills-0: compacted" in caplog.text)
        await until(lambda: f"orders-0 in {tmp_path}" in caplog.text)

    on_stage(tmp_path, before, SETTINGS, metadata=metadata)
    rot(tmp_path / "orders-0" / f"{0:020}.log")
    on_stage(tmp_path, after, {**SETTINGS, "log.cleaner.backoff.ms": "1"}, metadata=metadata)


def test_housekeeping_that_meets_rot_goes_on_with_the_next_partition(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await two_topics(stage)
        visited = []

        def look(partition: Partition) -> bool:
            visited.append(partition.topic_partition.topic)
            rot(tmp_path / f"{partition.topic_partition}" / f"{0:020}.log")
            return bool(list(partition.log.scan(0)))

        housekeeper: Housekeeper = stage.broker.housekeeper
        await housekeeper._look(FLUSH, look)
        assert sorted(visited) == ["bills", "orders"]
        assert stage.broker.folders[0].failed is None

    on_stage(tmp_path, scene, SETTINGS)


def test_housekeeping_that_fails_unforeseen_goes_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: Stage) -> None:
        await two_topics(stage)
        visited = []

        def look(partition: Partition) -> bool:
            visited.append(partition.topic_partition.topic)
            raise ValueError("bytes that nobody foresaw")

        await stage.broker.housekeeper._look(RETENTION, look)
        assert sorted(visited) == ["bills", "orders"]
        assert stage.broker.folders[0].failed is None
        assert all(f"{topic}-0: retention failed" in caplog.text for topic in visited)
        assert "bytes that nobody foresaw" in caplog.text

    on_stage(tmp_path, scene, SETTINGS)


@pytest.mark.parametrize("what", ["sealed segment", "folder", "folder, and a new segment"])
def test_what_is_removed_of_a_partition_under_the_broker_takes_that_partition_alone_out_of_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """One partition's file took the whole data folder out of service."""
    metadata = MemoryServer(RealClock())

    async def scene(stage: Stage) -> None:
        await two_topics(stage)
        partition = await stage.served("orders")
        assert await error_of_write(stage, "orders") is ErrorCode.NONE
        partition.log.roll(1)
        if what == "sealed segment":
            sealed = partition.log.segments[0]
            sealed.close()
            os.unlink(tmp_path / sealed.path())
        else:
            shutil.rmtree(tmp_path / "orders-0")
            if "new" in what:
                with suppress(DiskFault):
                    partition.log.roll(1)
        await error_of_write(stage, "orders")
        await until(lambda: partition.offline)
        assert await error_of_write(stage, "orders") is ErrorCode.KAFKA_STORAGE_ERROR
        assert "orders-0 is damaged and no longer served" in caplog.text
        await write(stage, "bills", 1)
        assert (stage.broker.folders[0].failed, stage.broker.folders[0].disk.fault) == (None, None)

    async def after(stage: Stage) -> None:
        assert await errors_of_fetch(stage, bills=0) == {"bills": 0}
        bills = await stage.served("bills")
        assert (bills.log.recovery, bills.log.end_offset) == (None, 4), "it was closed as always"
        await write(stage, "bills", 1)

    on_stage(tmp_path, scene, SETTINGS, metadata=metadata)
    on_stage(tmp_path, after, SETTINGS, metadata=metadata)


def test_a_data_folder_that_is_emptied_under_the_broker_is_out_of_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is open can be written for ever, and all of it would be gone after the stop."""
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    other.mkdir()

    async def scene(stage: Stage) -> None:
        await two_topics(stage)
        hit, spared = sorted(("orders", "bills"), key=lambda topic: (other / f"{topic}-0").exists())
        for path in data.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        await until(lambda: stage.broker.folders[0].failed is not None)
        assert f"{data} is out of service: [Errno 2] the data folder was removed or emptied" in caplog.text
        assert await error_of_write(stage, hit) is ErrorCode.KAFKA_STORAGE_ERROR
        await write(stage, spared, 1)

    on_stage(data, scene, SETTINGS, more_folders=[other])
    assert not list(data.iterdir()), "nothing is written there at the stop"


def test_a_write_that_finds_no_descriptor_is_refused_and_the_next_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it is a roll that was begun: nothing may be added to the segment that has ended."""
    short = False
    really_open = os.open

    def open_if_there_is_one(path: str, flags: int, mode: int = 0o777) -> int:
        if short and str(path).endswith(".log"):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return really_open(path, flags, mode)

    async def scene(stage: Stage) -> None:
        nonlocal short
        monkeypatch.setattr("log.disk.os.open", open_if_there_is_one)
        await stage.create("orders", segment_ms="1")
        partition = await stage.served("orders")
        for segments in (1, 2):
            short = True
            assert await error_of_write(stage, "orders", timestamp_ms=segments * 1000) is ErrorCode.NOT_ENOUGH_REPLICAS
            assert await error_of_write(stage, "orders", timestamp_ms=segments) is ErrorCode.NOT_ENOUGH_REPLICAS
            short = False
            assert await error_of_write(stage, "orders", timestamp_ms=1) is ErrorCode.NONE
            assert [segment.sealed for segment in partition.log.segments] == [True] * (segments - 1) + [False]
        assert [header.base_offset for header, _ in partition.log.scan(0)] == [0, 1]
        assert (partition.offline, stage.broker.folders[0].failed) == (False, None)

    on_stage(tmp_path, scene, SETTINGS)


def test_a_segment_that_is_gone_with_its_indexes_takes_its_partition_out_of_service(tmp_path: Path) -> None:
    """Each write was told to come again, because the indexes were to be rebuilt first."""

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(stage, "orders", 1000)
        partition = await stage.served("orders")
        segment = partition.log.segments[-1]
        segment.close()
        for suffix in SUFFIXES:
            partition.log.disk.unlink(segment.path(suffix))
        assert await error_of_write(stage, "orders") is ErrorCode.NOT_ENOUGH_REPLICAS
        await until(lambda: segment._rebuild_fault is not None)
        assert await error_of_write(stage, "orders") is ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.offline

    on_stage(tmp_path, scene, SETTINGS)
