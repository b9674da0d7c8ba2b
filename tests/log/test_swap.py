"""A swap of the cleaner, cut short by a loss of power at each of its steps, and of those of the recoveries after it."""

import asyncio
import contextlib
import errno
import pickle
from collections.abc import Iterator
from itertools import count

from log.batch import Buffer, CorruptBatch
from log.cleaning_job import Cleaned, CleaningJob, SealedSegments
from log.compaction import find_work
from log.config import LogConfig
from log.disk import Disk, DiskFault
from log.partition_log import PartitionLog
from log.segment import SegmentFacts, segment_name
from log.swap import CLEANED, SwapPlan, remove_old
from log.twins import Seen, Twin
from tests.log.compacting import NOW_MS, Bench, committed_records, table
from tests.log.memory_disk import MemoryDisk, Node
from tests.log.plain_cleaning import once

CONFIG = LogConfig(
    cleanup_policy=("compact",), segment_bytes=400, index_interval_bytes=100, min_cleanable_dirty_ratio=0.0
)
LIVES = 3
END_OFFSET = 6


def opened(disk: MemoryDisk) -> Bench:
    return Bench(disk, CONFIG, recovery_point=END_OFFSET)


def written(disk: MemoryDisk) -> MemoryDisk:
    """A log of several small segments, durable, its newest record in the active one."""

    async def write() -> MemoryDisk:
        bench = Bench(disk, CONFIG)
        bench.put((b"x", b"1"))
        bench.log.roll(NOW_MS)
        bench.put((b"a", b"1"), (b"b", b"1"))
        bench.log.roll(NOW_MS)
        bench.put((b"c", bytes(200)))
        bench.put((b"a", b"2"), producer=7)
        bench.log.roll(NOW_MS)
        bench.put((b"d", b"4"))
        await bench.log.flush()
        assert bench.log.end_offset == END_OFFSET
        return disk

    return asyncio.run(write())


async def live(disk: MemoryDisk) -> None:
    """What a broker does between two crashes: recover, clean, flush, clean again."""
    bench = opened(disk)
    for _ in range(2):
        work = find_work(bench.log, disk, now_ms=NOW_MS, limit_offset=END_OFFSET)
        if work is not None:
            await bench.compact(work, apart=once)
        await bench.log.flush()


def outcomes(disk: MemoryDisk) -> Iterator[MemoryDisk]:
    """What is durable when power is lost at any change of a life that begins with `disk`: of the names that were
    changed and not synced, the first few, and no byte that was not synced.
    """
    for change in count(1):
        cut = durable_part(disk)
        cut.fail_at = change
        with contextlib.suppress(DiskFault):
            asyncio.run(live(cut))
        yield cut
        for op in cut.pending_names:
            cut._settle_name(op)
            yield cut
        if cut.fault is None:
            return


def durable_part(disk: MemoryDisk) -> MemoryDisk:
    """Another disk that holds what is durable on this one."""
    other = MemoryDisk()
    other.folders, other.durable_folders = dict(disk.durable_folders), dict(disk.durable_folders)
    for path, node in disk.durable_files.items():
        other.files[path] = other.durable_files[path] = Node()
        other.files[path].data, other.files[path].durable = bytearray(node.durable), node.durable
    return other


def fingerprint(disk: MemoryDisk) -> frozenset[tuple[str, bytes]]:
    return frozenset((path, node.durable) for path, node in disk.durable_files.items())


def test_power_may_go_at_each_step_of_a_swap_and_of_the_recoveries_after_it() -> None:
    """Method: every state that the disk can be in after one life is the beginning of the next, three lives long. What a
    start makes of the folder beside another one of the same partition is asked in each of them, too.
    """
    first = written(MemoryDisk())
    bench = opened(durable_part(first))
    before = committed_records(bench.log, bench.stable)
    known, beginnings = {fingerprint(first)}, [first]
    for _ in range(LIVES):
        ends = []
        for disk in beginnings:
            for after in outcomes(disk):
                if fingerprint(after) not in known:
                    known.add(fingerprint(after))
                    ends.append(durable_part(after))
                    recovered = opened(durable_part(after))
                    check(recovered, before)
                    twin = Twin(durable_part(after), recovered.log.folder, END_OFFSET)
                    assert not twin.doubt
                    assert list(twin.batches()) == seen(recovered.log), "it is read as it is when the swap is finished"
        beginnings = ends
    assert len(known) > 100


def seen(log: PartitionLog) -> list[Seen]:
    return [
        Seen(header.base_offset, header.next_offset, header.leader_epoch, header.crc, b"")
        for header, _ in log.scan(log.start_offset)
    ]


def check(bench: Bench, before: list[tuple[int, bytes | None, bytes | None]]) -> None:
    assert not bench.log.damage
    assert bench.log.end_offset == END_OFFSET
    after = committed_records(bench.log, bench.stable)
    assert set(after) <= set(before)
    assert [offset for offset, _, _ in after] == sorted({offset for offset, _, _ in after})
    assert table(after) == table(before)
    assert bench.producers.last == {7: 4}


class ShortDisk(MemoryDisk):
    """At one of its waits there is no room, or no descriptor: nothing has changed, and later there is some."""

    waits_left = 0

    def _wait(self) -> None:
        self.waits_left -= 1
        if self.waits_left == 0:
            raise DiskFault(errno.EMFILE, "injected")

    async def sync_dir(self, path: str) -> None:
        self._wait()
        await super().sync_dir(path)

    async def write_atomic(self, path: str, data: Buffer) -> None:
        self._wait()
        waits_left, self.waits_left = self.waits_left, 0  # it is whole or did not happen
        await super().write_atomic(path, data)
        self.waits_left = waits_left


def test_after_a_swap_that_was_short_of_something_no_other_begins_before_it_is_finished() -> None:
    """Otherwise its plan, still there when the broker is killed, would put half a file of the next in its place."""
    steps = 0
    for steps in count(1):
        disk = ShortDisk()
        written(disk)
        bench = opened(disk)
        asyncio.run(bench.log.flush())
        before = committed_records(bench.log, bench.stable)
        disk.waits_left = steps
        killed: list[MemoryDisk] = []

        async def half(function: str, disk: Disk, job: CleaningJob, killed: list[MemoryDisk] = killed) -> Cleaned:
            assert isinstance(disk, MemoryDisk)
            name = segment_name(next(iter(job.segments)).base_offset)
            disk.open(f"{job.folder}/{name}{CLEANED}", create=True).append([b"half"])
            killed.append(as_it_is(disk))
            raise CorruptBatch("killed")

        async def life(bench: Bench = bench, disk: ShortDisk = disk) -> None:
            for apart in (once, half):
                work = find_work(bench.log, disk, now_ms=NOW_MS, limit_offset=END_OFFSET)
                with contextlib.suppress(DiskFault, CorruptBatch):
                    if work is not None:
                        await bench.compact(work, apart=apart)
            await bench.log.flush()

        asyncio.run(life())
        for each in (*killed, disk):
            check(opened(as_it_is(each)), before)
        if disk.waits_left > 0:
            break
    assert steps > 5


def as_it_is(disk: MemoryDisk) -> MemoryDisk:
    """Another disk that holds all that this one does, as after a kill."""
    other = MemoryDisk()
    other.folders, other.durable_folders = dict(disk.folders), dict(disk.folders)
    for path, node in disk.files.items():
        other.files[path] = other.durable_files[path] = Node()
        other.files[path].data, other.files[path].durable = bytearray(node.data), bytes(node.data)
    return other


def test_to_find_what_a_swap_removes_is_no_search_for_each_segment_among_all() -> None:
    """10,000 segments too full to be merged held the loop for a third of a second: nothing was removed, nobody else had
    a turn.
    """
    compared = 0

    class Offset(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int.__eq__(self, other)

    add, remove = (tuple(map(Offset, range(0, 30_000, 10))) for _ in range(2))
    assert list(remove_old(MemoryDisk(), "t-0", SwapPlan(add, remove, 30_000))) == []
    assert compared < 2 * len(remove)


def test_the_facts_of_very_many_segments_travel_as_numbers() -> None:
    """As objects, those of 10,000 were unpickled in one turn of 17 ms."""
    facts = [SegmentFacts(base, base + 9, 400, (1 << 63) - 1, base, -(1 << 63), NOW_MS) for base in range(0, 90_000, 9)]
    segments = SealedSegments()
    for each in facts:
        segments.add(each)
    beside: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(segments, protocol=5, buffer_callback=beside.append)
    assert len(pickled) < 1_000
    assert list(pickle.loads(pickled, buffers=[each.raw() for each in beside])) == facts
