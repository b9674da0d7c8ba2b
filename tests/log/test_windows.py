"""What a partition knows of its producers survives retention and compaction, whatever crash follows: the views are
restored from a snapshot, because the batches that are left in the log do not tell it any more.

A restart replayed the log from before what a pass had removed batches from, because every older snapshot had left, or
because a newer one was not looked at. So the repeat of a batch that had been acknowledged was written again, or was
refused as out of order, and a fenced producer could write.
"""

import asyncio
import contextlib
import copy
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from idempotence.producers import KnownBy, ProducerStates
from idempotence.verdicts import Duplicate, StaleEpoch
from isolation.stable import StableOffsets
from log.batch import BatchHeader, build_batch, read_header
from log.checkpoints import CLEANED_OFFSET, read_offset
from log.cleaning_job import Cleaned, CleaningJob
from log.compaction import Apart, compact, find_work
from log.config import LogConfig
from log.control import ControlType, build_marker
from log.cutting import distrust
from log.disk import Disk, DiskFault
from log.partition_log import PartitionLog
from log.removal import remove_oldest
from log.snapshots import snapshot_name
from log.views import View
from tests.log.building import append, contents, cut_log, fill, open_log
from tests.log.compacting import breathe
from tests.log.memory_disk import MemoryDisk
from tests.log.plain_cleaning import once
from tests.rules import rule

NOW_MS = 1_900_000_000_000
LATER_MS = 2_000
FOLDER = "table-0"
CONFIG = LogConfig(
    cleanup_policy=("compact", "delete"), min_cleanable_dirty_ratio=0.0, delete_retention_ms=1_000, retention_ms=-1
)


class Partition:
    """A log with the two views of a broker."""

    def __init__(self, disk: Disk, recovery_point: int = 0) -> None:
        self.disk = disk
        self.now_ms = NOW_MS
        self.stable = StableOffsets()
        self.producers = ProducerStates(self.stable.open_transactions)
        views: list[View] = [self.producers, self.stable]
        self.log = PartitionLog.open(
            disk, FOLDER, CONFIG, views, known=None, now_ms=NOW_MS, recovery_point=recovery_point
        )

    def known_by(self, below: int) -> Iterator[KnownBy]:
        return self.producers.known_by(below)

    def put(
        self, key: bytes, producer: int = -1, sequence: int = -1, *, epoch: int = 0, transactional: bool = False
    ) -> BatchHeader:
        batch = build_batch(
            [(key, b"v", (), self.now_ms)],
            base_offset=self.log.end_offset,
            leader_epoch=0,
            producer_id=producer,
            producer_epoch=epoch if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
        append(self.log, batch, self.now_ms)
        return read_header(batch)

    def end(self, producer: int, epoch: int, outcome: ControlType) -> None:
        marker = build_marker(
            outcome,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp_ms=self.now_ms,
            base_offset=self.log.end_offset,
            leader_epoch=0,
        )
        append(self.log, marker, self.now_ms)

    async def roll(self) -> None:
        self.log.roll(self.now_ms)
        await self.log.flush()

    async def clean(self, apart: Apart = once) -> None:
        """One pass over all that is sealed; time has gone on."""
        self.now_ms += LATER_MS
        work = find_work(self.log, self.disk, now_ms=self.now_ms, limit_offset=self.log.end_offset)
        assert work is not None
        await compact(
            *(self.log, self.disk, work, self), now_ms=self.now_ms, secret=bytes(16), apart=apart, breathe=breathe
        )

    def markers(self) -> int:
        return sum(header.is_control for header, _ in self.log.scan(self.log.start_offset))

    def told_aborted(self) -> list[tuple[int, int, int]]:
        return [tuple(each) for each in self.stable.aborted_ranges(0, self.log.end_offset)]  # type: ignore[misc]


class Written(NamedTuple):
    """What was written, and must be known for ever."""

    removed: BatchHeader
    """By a producer of which retention has removed everything."""
    fenced: BatchHeader
    """By a producer with a later epoch since. Retention has removed everything of it, too."""
    window: Sequence[BatchHeader]
    """The five last batches of a producer. Newer records have their keys."""

    def assert_known_to(self, partition: Partition) -> None:
        def verdict(header: BatchHeader) -> object:
            return partition.producers.check(header, now_ms=NOW_MS, needs_guard=False)

        for header in (self.removed, *self.window):
            known = verdict(header)
            assert isinstance(known, Duplicate) and known.first_offset == header.base_offset, (header, known)
        assert isinstance(verdict(self.fenced), StaleEpoch)
        assert not partition.stable.open_transactions
        for _, _, marker_offset in partition.told_aborted():
            assert any(header.base_offset == marker_offset for header, _ in partition.log.scan(0)), marker_offset


async def lived(partition: Partition) -> Written:
    """Up to right before the pass that drops markers, of a transaction that was aborted and of committed ones."""
    removed, fenced = partition.put(b"a", 7, 0, epoch=3), partition.put(b"b", 8, 0)
    partition.end(8, 1, ControlType.ABORT)
    await partition.roll()
    for epoch, outcome in enumerate((ControlType.COMMIT, ControlType.ABORT, ControlType.COMMIT)):
        partition.put(b"k", 20, 0, epoch=epoch, transactional=True)
        await partition.roll()  # a snapshot is taken inside of each transaction
        partition.end(20, epoch + 1, outcome)
    window = [partition.put(b"k", 30, sequence) for sequence in range(7)][2:]
    await partition.roll()
    partition.put(b"k")
    await partition.roll()
    await remove_oldest(partition.log, lambda: 1)
    assert partition.log.start_offset == 3
    for _ in range(2):  # the first pass removes the transactions, and the second notes the end of the markers' time
        await partition.clean()
        partition.put(b"k")
        await partition.roll()
    partition.put(b"other")
    await partition.log.flush()
    return Written(removed, fenced, window)


def test_of_a_log_whose_markers_were_dropped_all_producers_are_known_after_a_crash_and_a_cut() -> None:
    async def life() -> None:
        partition = Partition(disk := MemoryDisk())
        written = await lived(partition)
        limit, before = partition.log.segments[-1].base_offset, partition.markers()
        await partition.clean()
        assert partition.markers() < before, "the pass drops markers"
        assert read_offset(disk, FOLDER, CLEANED_OFFSET) == limit
        partition.put(b"last")
        await partition.log.flush()
        written.assert_known_to(partition)
        for recovery_point in range(partition.log.end_offset + 1):
            written.assert_known_to(Partition(copy.deepcopy(disk), recovery_point))
        for end_offset in range(limit, partition.log.end_offset):  # no cut goes below what was committed
            cut = Partition(copy.deepcopy(disk), partition.log.end_offset)
            cut_log(cut.log, end_offset)
            assert cut.log.end_offset == end_offset
            written.assert_known_to(cut)

    asyncio.run(life())


def test_a_pass_keeps_by_which_batch_a_producer_is_known_to_who_copies_no_more_than_is_compacted() -> None:
    """The newest batch may be cut off, or not be committed yet when a copy comes to lead."""

    async def life() -> None:
        partition = Partition(MemoryDisk())
        first = partition.put(b"k", 40, 0)
        partition.put(b"k")
        await partition.roll()
        partition.put(b"k", 40, 1)
        await partition.log.flush()
        await partition.clean()
        copied = Partition(MemoryDisk())
        for header, batch in partition.log.scan(0):
            if header.base_offset < 2:
                copied.log.append_after_gap(bytearray(batch), header, now_ms=NOW_MS)
        verdict = copied.producers.check(first, now_ms=NOW_MS, needs_guard=False)
        assert isinstance(verdict, Duplicate) and verdict.first_offset == 0

    asyncio.run(life())


def test_a_kill_as_what_was_compacted_is_distrusted_leaves_no_gap_that_counts_as_damage() -> None:
    """A note of gaps that the note of what was compacted had covered counted alone, and lay inside of a later gap."""

    async def life(change: int) -> None:
        partition = Partition(disk := MemoryDisk())
        log = partition.log
        for key, offset in ((b"a", 0), (b"k", 5), (b"k", 6)):  # copied from a log with gaps
            batch = build_batch([(key, b"v", (), NOW_MS)], base_offset=offset, leader_epoch=0)
            log.append_after_gap(batch, read_header(batch), now_ms=NOW_MS)
        await log.flush()
        for key in (b"k", b"k", b"k", b"k", b"z"):
            partition.put(key)
        await partition.roll()
        partition.put(b"y")
        await log.flush()
        await partition.clean()
        disk.fail_at = disk.changes + change
        with contextlib.suppress(DiskFault):
            async with log.alone():
                await distrust(log, 0, 20)
        disk.fail_at = disk.fault = None  # the process was killed, and the system has kept all
        again = Partition(disk)
        assert not list(again.log.damage), change

    for change in range(1, 13):
        asyncio.run(life(change))


class PhotographedDisk(MemoryDisk):
    """Before each change there is a picture of it, if somebody looks, with what is durable."""

    log: PartitionLog | None = None

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[tuple[MemoryDisk, int]] = []

    def change(self, kind: str, path: str) -> None:
        log, self.log = self.log, None
        if log is not None:
            pictures, self.pictures = self.pictures, []
            self.pictures = [*pictures, (copy.deepcopy(self), log.flushed_offset)]
        self.log = log
        super().change(kind, path)


@rule("B.1", "the whole window of five survives a crash after retention and compaction, and so do fences")
@pytest.mark.parametrize("seed", range(3))
def test_all_producers_are_known_wherever_a_crash_cuts_a_pass_in_half_and_another_one_the_recovery(seed: int) -> None:
    chance = random.Random(seed)

    async def life() -> None:
        async def beside_a_writer(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
            partition.log.roll(NOW_MS)  # there is a snapshot that is not stored yet
            partition.put(b"beside")
            return await once(function, disk, job)

        partition = Partition(disk := PhotographedDisk())
        written = await lived(partition)
        disk.log = partition.log
        await partition.clean(beside_a_writer)
        disk.log = None
        assert len(disk.pictures) > 20
        for picture, flushed in (*disk.pictures, (disk, partition.log.flushed_offset)):
            for recovery_point in (0, 4, flushed):
                crashed: Disk = copy.deepcopy(picture)
                for _ in range(3):  # in each recovery again, before its first flush or after it
                    if chance.random() < 0.7:
                        crashed.cut_power(chance)  # type: ignore[attr-defined]
                    again = Partition(crashed, recovery_point)
                    assert not again.log.damage
                    if (plan := again.log.durability.plan_left) is not None:
                        assert again.log.snapshots.stored[0] == plan.cleaned_offset
                    written.assert_known_to(again)
                    if chance.random() < 0.5:
                        await again.log.flush()
                written.assert_known_to(again)

    asyncio.run(life())


def test_after_a_pass_there_is_a_snapshot_where_it_ends_and_none_older() -> None:
    async def life() -> None:
        partition = Partition(disk := MemoryDisk())
        await lived(partition)
        await partition.clean()
        limit = partition.log.segments[-1].base_offset
        assert partition.log.snapshots.stored == [limit]
        found = Partition(disk)
        assert found.log.snapshots.stored == [limit]

    asyncio.run(life())


def test_a_pass_ends_where_there_is_a_snapshot() -> None:
    async def life() -> None:
        partition = Partition(disk := MemoryDisk())
        bases = []
        for _ in range(4):
            partition.put(b"k")
            await partition.roll()
            bases.append(partition.log.end_offset)
        partition.put(b"k")
        await partition.log.flush()
        partition.log.snapshots.stored.remove(bases[-1])
        disk.unlink(f"{FOLDER}/{snapshot_name(bases[-1])}")
        await partition.clean()
        assert read_offset(disk, FOLDER, CLEANED_OFFSET) == bases[-2]
        partition.log.snapshots.stored.clear()
        partition.put(b"k")
        assert find_work(partition.log, disk, now_ms=NOW_MS, limit_offset=partition.log.end_offset) is None

    asyncio.run(life())


def test_a_pass_changes_nothing_if_its_snapshot_can_not_be_read() -> None:
    async def life() -> None:
        partition = Partition(disk := MemoryDisk())
        written = await lived(partition)
        limit, before = partition.log.segments[-1].base_offset, partition.markers()
        disk.files[f"{FOLDER}/{snapshot_name(limit)}"].data[20] ^= 1
        await partition.clean()
        assert partition.markers() == before
        assert limit not in partition.log.snapshots.stored
        written.assert_known_to(Partition(disk))

    asyncio.run(life())


@pytest.mark.parametrize("seed", range(30))
def test_a_snapshot_of_what_was_cut_off_is_never_used(seed: int) -> None:
    """A power cut may bring it back below the end of what was written since, and after the next flush it would be below
    the trusted offset.
    """
    chance = random.Random(seed)

    async def life() -> None:
        disk = MemoryDisk()
        log, _ = open_log(disk)
        fill(log, 8)
        log.roll(0)
        await log.flush()
        cut_log(log, 4)
        fill(log, 9, leader_epoch=1, size=101)
        disk.cut_power(chance)
        for _ in range(2):
            log, view = open_log(disk, recovery_point=log.flushed_offset if log.recovery else 0)
            assert view.seen == contents(log)
            await log.flush()

    asyncio.run(life())
