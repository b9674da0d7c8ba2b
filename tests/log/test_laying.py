"""Large batches, which are laid beside the log and enter it by a rename: cut short by a crash at each change of the
disk, refused, given up, and with all else that happens to a log meanwhile.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from itertools import count

import pytest

from log.batch import read_header, read_records
from log.config import LogConfig
from log.disk import TEMPORARY, DiskFault, RealDisk
from log.laying import LaidBatch
from log.partition_log import PartitionLog
from tests.log.building import FOLDER, SeenBatches, stamped
from tests.log.memory_disk import MemoryDisk

CONFIG = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100)
NOW_MS = 1000
LARGE = bytes(3_000)


def opened(disk: MemoryDisk, *, recovery_point: int = 0) -> PartitionLog:
    return PartitionLog.open(
        disk, FOLDER, CONFIG, [SeenBatches()], known=None, now_ms=NOW_MS, recovery_point=recovery_point
    )


def put(log: PartitionLog, value: bytes) -> None:
    batch = stamped([value], base_offset=log.end_offset, leader_epoch=3)
    log.append(batch, read_header(batch), now_ms=NOW_MS)


def laid(log: PartitionLog, value: bytes = LARGE) -> LaidBatch:
    beside = LaidBatch(log)
    beside.fill(stamped([value], base_offset=0))
    return beside


def take(log: PartitionLog, beside: LaidBatch, value: bytes = LARGE) -> None:
    batch = stamped([value], base_offset=log.end_offset, leader_epoch=3)
    log.append(batch, read_header(batch), now_ms=NOW_MS, laid=beside)
    beside.discard()


def values(log: PartitionLog) -> list[bytes | None]:
    """All records, which stand where the view was told, in the epoch in which they were written."""
    (view,) = log.views
    assert isinstance(view, SeenBatches)
    found = list(log.scan(0))
    assert [(header.base_offset, header.crc) for header, _ in found] == view.seen
    records = [record for header, batch in found for record in read_records(bytes(batch), header)]
    assert [record.offset for record in records] == list(range(log.end_offset))
    assert {header.leader_epoch for header, _ in found} <= {3}
    return [record.value for record in records]


def beside(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.listdir(FOLDER) if name.endswith(TEMPORARY)]


def test_a_batch_that_was_laid_is_the_next_one_when_the_log_takes_it() -> None:
    async def scene() -> None:
        disk = MemoryDisk()
        log = opened(disk)
        first = laid(log, b"first" * 100)
        take(log, first, b"first" * 100)
        put(log, b"a")
        second = laid(log)
        put(log, b"b")  # the log is used meanwhile
        take(log, second)
        put(log, b"c")
        everything = [b"first" * 100, b"a", b"b", LARGE, b"c"]
        assert values(log) == everything
        assert len(log.segments) == 2, "a large batch begins a segment, and others follow in it"
        assert not beside(disk)
        assert await log.flush() == 5
        await log.close()
        assert values(opened(disk, recovery_point=5)) == everything

    asyncio.run(scene())


def test_a_batch_that_is_given_up_leaves_nothing() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    put(log, b"a")
    laid(log).discard()
    assert not beside(disk)
    assert values(log) == [b"a"]
    assert len(log.segments) == 1


def test_a_log_takes_no_file_of_another_folder_and_none_that_is_gone() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    file = laid(log)
    assert file.fits(log)
    assert not file.fits(opened(disk)), "another log of that name, whose topic was made again"
    log.disk = MemoryDisk()
    assert not file.fits(log), "it has moved"
    log.disk = disk
    disk.unlink(file.path)
    assert not file.fits(log)
    file.discard()


def test_a_follower_takes_a_large_batch_behind_a_gap() -> None:
    async def scene() -> None:
        disk = MemoryDisk()
        log = opened(disk)
        put(log, b"a")
        batch = stamped([LARGE], base_offset=7, leader_epoch=3)
        file = LaidBatch(log)
        file.fill(batch)
        log.append_after_gap(batch, read_header(batch), now_ms=NOW_MS, laid=file)
        file.discard()
        assert log.end_offset == 8
        await log.flush()
        again = opened(disk)
        assert [header.base_offset for header, _ in again.scan(0)] == [0, 7]
        assert not again.damage

    asyncio.run(scene())


def test_on_the_real_disk_a_large_batch_without_room_leaves_the_disk_as_it_was(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path))
    log = PartitionLog.open(disk, FOLDER, CONFIG, [], known=None, now_ms=NOW_MS)
    put(log, b"a")

    def full(*_: object) -> int:
        raise OSError(28, "no room")

    file = LaidBatch(log)
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(DiskFault) as caught:
            file.fill(stamped([LARGE], base_offset=0))
    assert caught.value.passing
    file.discard()
    assert disk.fault is None
    take(log, laid(log))
    assert [header.base_offset for header, _ in log.scan(0)] == [0, 1]
    disk.close()


# ---------------------------------------------------------------- crashes

BEFORE = {
    "nothing": [],
    "a durable batch": [b"a"],
    "batches of which one is durable": [b"a", b"b"],
}


async def life(disk: MemoryDisk, before: list[bytes], durable: list[int]) -> None:
    """The first of these is durable, then a large batch is laid while another one comes, and all is made durable."""
    log = opened(disk)
    for value in before:
        put(log, value)
        if not durable:
            durable.append(await log.flush())
    file = laid(log)
    put(log, b"meanwhile")
    take(log, file)
    put(log, b"after")
    durable.append(await log.flush())
    second = laid(log)
    take(log, second)
    durable.append(await log.flush())


def crashes(before: list[bytes], *, power: bool, luck: random.Random) -> Iterator[tuple[MemoryDisk, int]]:
    """The disk after a crash at each of its changes, and how much was durable then."""
    for change in count(1):
        disk, durable = MemoryDisk(), list[int]()
        disk.fail_at = change
        with contextlib.suppress(DiskFault):
            asyncio.run(life(disk, before, durable))
        ended = disk.fault is None
        if power:
            disk.cut_power(luck)
        disk.fault, disk.fail_at = None, None
        yield disk, max(durable, default=0)
        if ended:
            return


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_a_crash_at_any_change_leaves_the_batch_whole_or_not_at_all(before: list[bytes], power: bool) -> None:
    everything = [*before, b"meanwhile", LARGE, b"after", LARGE]
    luck = random.Random(len(before))
    seen = set[int]()
    for _ in range(40 if power else 1):
        for disk, durable in crashes(before, power=power, luck=luck):
            if not disk.exists(FOLDER):
                assert not durable
                continue
            log = opened(disk, recovery_point=durable)
            assert not log.damage
            assert log.end_offset >= durable
            assert values(log) == everything[: log.end_offset]
            assert not beside(disk)
            seen.add(log.end_offset)
            put(log, b"goes on")
            take(log, laid(log))
            assert values(log)[-2:] == [b"goes on", LARGE]
    assert len(before) + 2 in seen, "some crash came right behind the large batch"
    assert len(before) + 1 in seen, "and some right before"


def test_the_client_s_own_header_never_stands_for_the_batch() -> None:
    """A power cut may keep an early state of the first sector: the batch's bytes without its place in the log."""

    async def scene() -> None:
        disk = MemoryDisk()
        log = opened(disk)
        beside = LaidBatch(log)
        beside.fill(stamped([LARGE], base_offset=0, leader_epoch=77))
        batch = stamped([LARGE], base_offset=0, leader_epoch=3)
        log.append(batch, read_header(batch), now_ms=NOW_MS, laid=beside)
        node = disk.files[f"{FOLDER}/{0:020}.log"]
        node.settle(1)  # what `fill` has written, and not what came later
        node.data[:] = node.durable
        again = opened(disk)
        assert again.end_offset == 0
        assert not list(again.epochs.entries())

    asyncio.run(scene())
