"""A copy of a compacted log has gaps. What was flushed of it survives: each flush notes below which offset there are
gaps, also after a cut and while more is copied. Where a leader epoch began in a gap is not known, so it counts as begun
before.
"""

import asyncio
import copy
import errno
import random
from typing import Any

import pytest

from log import durability, recovery
from log.batch import build_batch, read_header, restamp
from log.config import LogConfig
from log.cutting import distrust, durable_after_cut
from log.disk import DiskFault
from log.epochs import CHECKPOINT
from log.partition_log import PartitionLog
from log.segment import Segment
from tests.log.building import cut_log, restart_log
from tests.log.memory_disk import MemoryDisk


def opened(disk: MemoryDisk, recovery_point: int = 0) -> PartitionLog:
    return PartitionLog.open(disk, "t-0", LogConfig(), (), known=None, now_ms=0, recovery_point=recovery_point)


def put(log: PartitionLog, *offsets: int, epoch: int = 0) -> None:
    for offset in offsets:
        batch = memoryview(bytearray(build_batch([(b"k", b"v", (), 1)])))
        restamp(batch, base_offset=offset, leader_epoch=epoch)
        log.append_after_gap(batch, read_header(batch), now_ms=1)


def test_what_is_flushed_after_a_cut_survives() -> None:
    disk = MemoryDisk()
    log = opened(disk)

    async def scene() -> int:
        put(log, 0, 5, 6, 7)
        await log.flush()
        trusted = durable_after_cut(log, 7)
        await distrust(log, trusted, 7)
        cut_log(log, 7)
        put(log, 7, 8, epoch=1)
        await log.flush()
        return trusted

    trusted = asyncio.run(scene())
    assert log.flushed_offset == 9
    disk.cut_power(random.Random(1))
    assert opened(disk, trusted).end_offset == 9


def test_a_gap_that_comes_during_a_flush_is_noted_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    copy = opened(disk)
    put(copy, 0, 5)
    write_offset = durability.write_offset  # type: ignore[attr-defined]
    more = [6, 20]

    async def slow(*where: Any) -> None:
        put(copy, *more)
        more.clear()
        await write_offset(*where)

    monkeypatch.setattr(durability, "write_offset", slow)
    asyncio.run(copy.flush())
    asyncio.run(copy.flush())
    assert copy.flushed_offset == copy.end_offset == 21
    disk.cut_power(random.Random(1))
    assert opened(disk).end_offset == 21


async def copied_and_cut(disk: MemoryDisk, *, at: int, rolls: bool) -> PartitionLog:
    """Between 3 and 20 there is nothing. It is cut there: another leader begins at that offset."""
    log = opened(disk)
    put(log, 0, 1, 2, epoch=5)
    if rolls:
        log.roll(1)
    put(log, 20, 21, epoch=5)
    await log.flush()
    trusted = durable_after_cut(log, at)
    await distrust(log, trusted, at)
    assert not opened(copy.deepcopy(disk), trusted).damage
    cut_log(log, at)
    return log


@pytest.mark.parametrize("at", [3, 4, 12, 20, 21])
@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "two segments"])
@pytest.mark.parametrize("more", [(), (0, 1, 2), (7,)], ids=["", "more", "another gap"])
def test_a_log_that_ends_with_a_gap_after_a_cut_is_whole_after_a_crash(
    at: int, rolls: bool, more: tuple[int, ...]
) -> None:
    """The offsets of the gap are not given again, and neither the gap nor what follows is taken for damage."""
    disk = MemoryDisk()

    async def scene() -> PartitionLog:
        log = await copied_and_cut(disk, at=at, rolls=rolls)
        assert log.end_offset == at
        await log.flush()
        put(log, *(at + step for step in more), epoch=6)
        await log.flush()
        return log

    log = asyncio.run(scene())
    assert log.flushed_offset == log.end_offset == (at + more[-1] + 1 if more else at)
    for point in (0, log.flushed_offset):
        for ends in (lambda disk: None, lambda disk: disk.cut_power(random.Random(1))):
            after = copy.deepcopy(disk)
            ends(after)
            again = opened(after, point)
            assert (again.end_offset, list(again.damage)) == (log.end_offset, [])
            assert offsets(again) == offsets(log)


@pytest.mark.parametrize("at", [12, 20])
@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "two segments"])
@pytest.mark.parametrize("seed", range(10))
def test_a_crash_before_a_cut_is_durable_is_no_damage_where_there_is_a_gap(at: int, rolls: bool, seed: int) -> None:
    disk = MemoryDisk()
    log = asyncio.run(copied_and_cut(disk, at=at, rolls=rolls))
    point = log.flushed_offset
    disk.cut_power(random.Random(seed))
    again = opened(disk, point)
    assert not again.damage
    assert offsets(again)[:3] == [0, 1, 2]


def test_a_cut_whose_new_segment_finds_no_room_ends_the_log_before_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()

    def full(*where: Any) -> None:
        raise DiskFault(errno.ENOSPC, "no room")

    async def scene() -> None:
        log = opened(disk)
        put(log, 0, 1, 2, 20)
        await log.flush()
        await distrust(log, durable_after_cut(log, 20), 20)
        with monkeypatch.context() as planted:
            planted.setattr(Segment, "create", full)
            with pytest.raises(DiskFault):
                cut_log(log, 20)
        assert log.end_offset == 3
        put(log, 3, 20, epoch=1)
        await log.flush()

    asyncio.run(scene())
    again = opened(disk)
    assert (offsets(again), list(again.damage)) == ([0, 1, 2, 3, 20], [])


def offsets(log: PartitionLog) -> list[int]:
    return [header.base_offset for header, _ in log.scan(log.start_offset)]


@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "three segments"])
@pytest.mark.parametrize("starts_at", [0, 2])
def test_an_epoch_whose_first_batch_stands_behind_a_gap_counts_as_begun_before_it(rolls: bool, starts_at: int) -> None:
    """Another replica may have a batch of an older epoch in the gap that was never committed. It must be cut."""
    disk = MemoryDisk()

    async def scene() -> PartitionLog:
        log = opened(disk)
        restart_log(log, starts_at)
        put(log, 4, epoch=1)
        for offset, epoch in ((7, 3), (8, 4), (20, 4), (30, 6)):
            if rolls:
                log.roll(1)
            put(log, offset, epoch=epoch)
            await log.flush()
        return log

    log = asyncio.run(scene())
    assert log.epochs.entries() == [(1, starts_at), (3, 5), (4, 8), (6, 21)]
    assert log.epochs.end_offset_for_epoch(1, log.end_offset) == (1, 5)
    assert [log.behind_gap(offset) for offset in (5, 7, 8, 21, 31)] == [7, 7, 8, 30, 31]


@pytest.mark.parametrize("many", [False, True], ids=["few batches", "very many"])
@pytest.mark.parametrize("point", [0, 31])
@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "three segments"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["no checkpoint", "a checkpoint"])
def test_a_recovery_does_not_take_the_end_of_a_gap_for_the_beginning_of_an_epoch(
    many: bool, point: int, rolls: bool, checkpoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()

    async def scene() -> None:
        log = opened(disk)
        restart_log(log, 2)
        put(log, 4, epoch=1)
        for offset, epoch in ((7, 3), (8, 4), (20, 4), (30, 6)):
            if rolls:
                log.roll(1)
            put(log, offset, epoch=epoch)
        await log.flush()

    asyncio.run(scene())
    if many:
        monkeypatch.setattr(recovery, "MANY_BATCHES", 1)
    if not checkpoint:
        disk.unlink(f"t-0/{CHECKPOINT}")
    again = opened(disk, point)
    assert again.epochs.entries() == [(1, 2), (3, 5), (4, 8), (6, 21)]


@pytest.mark.parametrize("far", [3_000_000_000, 5_000_000_000])
@pytest.mark.parametrize("seed", range(5))
def test_a_gap_that_is_too_wide_for_a_segment_is_none_for_the_log(far: int, seed: int) -> None:
    """A few keys that never change before many that always do: positions in a segment have 32 bits."""
    disk = MemoryDisk()
    log = opened(disk)

    async def scene() -> None:
        put(log, 0, 1, 2)
        await log.flush()
        put(log, *range(far, far + 500))
        for crash in (lambda disk: None, lambda disk: disk.cut_power(random.Random(seed))):
            after = copy.deepcopy(disk)
            crash(after)
            again = opened(after, 3)
            assert not again.damage
            assert offsets(again)[:3] == [0, 1, 2]
        await log.flush()

    asyncio.run(scene())
    assert log.flushed_offset == far + 500
    for point in (0, far, far + 500):
        after = copy.deepcopy(disk)
        after.cut_power(random.Random(seed))
        again = opened(after, point)
        assert not again.damage
        assert offsets(again) == offsets(log) == [0, 1, 2, *range(far, far + 500)]
    cut_log(log, far - 7)
    assert (log.end_offset, offsets(log)) == (far - 7, [0, 1, 2])


@pytest.mark.parametrize("far", [3_000_000_000, 5_000_000_000])
@pytest.mark.parametrize("kind", ["started over", "rolled", "cut"])
def test_a_gap_that_is_too_wide_for_a_segment_is_none_where_the_segment_is_empty(far: int, kind: str) -> None:
    """A new copy of a log begins like this."""
    disk = MemoryDisk()
    log = opened(disk)

    async def scene() -> None:
        if kind == "started over":
            restart_log(log, 0)
        else:
            put(log, 0, 1, 2, *((20,) if kind == "cut" else ()))
            await log.flush()
        if kind == "rolled":
            log.roll(1)
        elif kind == "cut":
            await distrust(log, durable_after_cut(log, 12), 12)
            cut_log(log, 12)
        assert log.segments[-1].size_bytes == 0
        put(log, far, far + 1)
        log.roll(1)
        put(log, far + 2)
        await log.flush()

    asyncio.run(scene())
    expected = [*([] if kind == "started over" else [0, 1, 2]), *range(far, far + 3)]
    assert (log.flushed_offset, offsets(log)) == (far + 3, expected)
    found = log.read(far - 1, max_bytes=1, limit_offset=far + 3, at_least_one=True)
    assert found is not None
    assert read_header(found.read()).base_offset == far
    for point in (0, far, far + 3):
        after = copy.deepcopy(disk)
        after.cut_power(random.Random(1))
        again = opened(after, point)
        assert (offsets(again), list(again.damage)) == (expected, [])
    known = asyncio.run(log.close())
    again = PartitionLog.open(disk, "t-0", LogConfig(), (), known=known, now_ms=0)
    assert offsets(again) == expected
    put(again, far + 10)
    cut_log(again, far)
    assert offsets(again) == expected[:-3]
    assert again.end_offset == far


def test_where_no_room_is_behind_a_wide_gap_the_log_goes_on_when_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    log, far = opened(MemoryDisk()), 3_000_000_000
    put(log, 0, 1, 2)

    def full(*where: Any, **of: Any) -> None:
        raise DiskFault(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch, pytest.raises(DiskFault):
        patch.setattr(Segment, "create", full)
        put(log, far)
    assert log.end_offset == 3
    with monkeypatch.context() as patch, pytest.raises(DiskFault):
        patch.setattr(Segment, "append", full)
        put(log, far)
    assert log.end_offset == far, "the new segment is there, and nothing in it"
    put(log, far, far + 1)
    assert offsets(log) == [0, 1, 2, far, far + 1]
