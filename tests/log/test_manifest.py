import asyncio
from dataclasses import replace

import pytest

from log.config import LogConfig
from log.disk import Disk
from log.ids import TopicId, TopicPartition
from log.manifest import (
    MANIFEST,
    RECOVERY_POINTS,
    Manifest,
    read_manifest,
    read_recovery_points,
    remove_manifest,
    write_manifest,
    write_recovery_points,
)
from log.partition_log import CleanState
from tests.log.building import contents, fill, open_log
from tests.log.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


async def stopped(disk: Disk) -> list[CleanState]:
    """Three logs, one of them never written to, closed."""
    states = []
    for folder, count in (("a-0", 0), ("b-0", 1), ("c-0", 30)):
        log, _ = open_log(disk, config=SMALL, folder=folder, topic_id=TopicId(folder.encode().rjust(16)))
        fill(log, count, leader_epoch=2)
        state = await log.close()
        assert state is not None
        states.append(state)
    return states


def test_facts_survive_the_manifest_and_no_file_is_touched_to_open_them() -> None:
    async def run() -> None:
        disk = MemoryDisk()
        states = await stopped(disk)
        await write_manifest(disk, states, life=1)
        manifest = read_manifest(disk)
        assert [manifest[folder] for folder in manifest] == states
        known = disk.files
        disk.files = {}
        logs = [open_log(disk, config=SMALL, known=manifest[state.folder], folder=state.folder) for state in states]
        disk.files = known
        for (log, view), state in zip(logs, states, strict=True):
            assert (log.end_offset, log.flushed_offset) == (state.end_offset, state.end_offset)
            assert contents(log) == view.seen
            fill(log, 3, leader_epoch=3)
            assert contents(log) == view.seen
            assert log.epochs.entries()[-1] == (3, state.end_offset)

    asyncio.run(run())


def test_a_manifest_of_an_earlier_release_does_not_say_when_a_segment_was_begun() -> None:
    async def run() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk)
        fill(log, 1)
        state = await log.close()
        assert state is not None
        earlier = replace(state, segments=tuple(facts[:-1] for facts in state.segments))  # type: ignore[misc]
        await write_manifest(disk, [earlier], life=1)
        [again] = read_manifest(disk).values()
        assert [segment[:-1] for segment in again.segments] == [segment[:-1] for segment in state.segments]
        open_log(disk, known=again)

    asyncio.run(run())


def test_a_manifest_is_removed_durably() -> None:
    async def run() -> None:
        disk = MemoryDisk()
        await write_manifest(disk, await stopped(disk), life=1)
        assert len(read_manifest(disk)) == 3
        await remove_manifest(disk)
        assert not disk.exists(MANIFEST)
        assert disk.durable_files.keys() & {MANIFEST} == set()
        assert len(read_manifest(disk)) == 0

    asyncio.run(run())


@pytest.mark.parametrize("position", [0, 20, 60, 200, -2])
def test_a_damaged_manifest_says_nothing(position: int) -> None:
    async def run() -> Manifest:
        disk = MemoryDisk()
        await write_manifest(disk, await stopped(disk), life=1)
        disk.files[MANIFEST].data[position] ^= 0x04
        return read_manifest(disk)

    assert len(asyncio.run(run())) == 0


def test_the_indexes_of_a_clean_stop_are_used_only_if_they_are_the_same() -> None:
    async def run(damage: bool) -> int:
        disk = MemoryDisk()
        state = (await stopped(disk))[2]
        path = f"c-0/{state.segments[-1].base_offset:020}.index"
        if damage:
            disk.files[path].data[3] ^= 1
        log, _ = open_log(disk, config=SMALL, known=state, folder="c-0")
        last = log.segments[-1]
        for offset in range(last.base_offset, last.end_offset):
            assert last.position_of(offset) == (offset - last.base_offset) * last.size_bytes // (30 - last.base_offset)
        return len(last.offsets)

    assert asyncio.run(run(False)) >= 1
    asyncio.run(run(True))


def test_recovery_points_are_written_as_kafka_writes_them() -> None:
    disk = MemoryDisk()
    points = {TopicPartition("b", 10): 7, TopicPartition("a-1", 0): 2**40}
    asyncio.run(write_recovery_points(disk, points))
    assert disk.read(RECOVERY_POINTS) == b"0\n2\nb 10 7\na-1 0 1099511627776\n"
    assert read_recovery_points(disk) == points


@pytest.mark.parametrize(
    "text", [b"", b"0\n", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na x 1\n", b"\xff\n"]
)
def test_recovery_points_that_cant_be_read_are_none(text: bytes) -> None:
    disk = MemoryDisk()
    disk.open(RECOVERY_POINTS, create=True).append([text])
    assert read_recovery_points(disk) == {}
    assert read_recovery_points(MemoryDisk()) == {}
