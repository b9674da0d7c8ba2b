"""Compaction, rule by rule. That readers know the same before and after: tests/properties/test_log_compaction.py."""

import asyncio
import copy
import random
import tracemalloc
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from isolation.stable import StableOffsets
from log import cleaning
from log.batch import HEADER_BYTES, Buffer, assemble, build_batch, checksum_ok, read_header, read_records
from log.checkpoints import CLEANED_OFFSET, read_offset
from log.cleaning_job import Cleaned, CleaningJob, NumberArray, SealedSegments
from log.clock import CLOCK_SET_MS
from log.compaction import REMOVED_A_TURN, Work, find_work
from log.config import LogConfig
from log.control import ControlType
from log.cutting import distrust, durable_after_cut
from log.disk import Disk, DiskFault
from log.identity import read_topic_id, was_never_flushed
from log.ids import TopicId
from log.partition_log import PartitionLog
from log.removal import expired_segments, remove_oldest
from log.snapshots import snapshot_name
from log.swap import CLEANED, PLAN, SwapPlan, remove_old, take_name
from log.time_search import max_timestamp
from tests.log.building import append, cut_log, open_batch, restart_log, stamped
from tests.log.compacting import NOW_MS, RETENTION_MS, Bench, committed_records, table
from tests.log.memory_disk import MemoryDisk
from tests.log.plain_cleaning import PlainCleaner, once, twice, twice_alike

LATER = NOW_MS + RETENTION_MS + 1


def records(bench: Bench) -> list[tuple[int, bytes | None, bytes | None]]:
    return committed_records(bench.log, bench.stable)


def offsets(bench: Bench) -> list[int]:
    """Of every batch that is there, data or not."""
    return [header.base_offset for header, _ in bench.log.scan(0)]


def cleaned(bench: Bench, now_ms: int = NOW_MS) -> None:
    report = asyncio.run(bench.clean(now_ms=now_ms))
    assert report is not None
    assert report.swapped


def test_the_last_record_of_every_key_stays_with_its_offset() -> None:
    bench = Bench(MemoryDisk())
    for value in (b"1", b"2", b"3"):
        bench.put((b"a", value), (b"b", value), (value, b"own"))
    cleaned(bench)
    assert records(bench) == [
        (2, b"1", b"own"),
        (5, b"2", b"own"),
        (6, b"a", b"3"),
        (7, b"b", b"3"),
        (8, b"3", b"own"),
    ]
    assert bench.log.end_offset == 9


@pytest.mark.parametrize("codec", range(5))
def test_what_stays_of_a_batch_keeps_its_codec_times_and_leader(codec: int) -> None:
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"old"), (b"b", b"stays"), codec=codec)
    bench.put((b"a", b"new"))
    cleaned(bench)
    header, batch = next(bench.log.scan(0))
    assert (header.codec, header.base_offset, header.last_offset, header.record_count) == (codec, 0, 1, 1)
    assert read_header(batch).max_timestamp == 1
    assert records(bench) == [(1, b"b", b"stays"), (2, b"a", b"new")]


def test_the_latest_record_is_not_found_if_it_was_in_a_batch_that_is_empty_now() -> None:
    """Kafka 4.3 answers so, too: it looks for the record in the batch with the largest time, and in no other."""
    bench = Bench(MemoryDisk())
    late = build_batch([(b"a", b"late", (), 9_000)], leader_epoch=0, producer_id=1, producer_epoch=0, base_sequence=0)
    append(bench.log, late)
    bench.put((b"a", b"replaces it"), (b"b", b"stays"))
    assert asyncio.run(max_timestamp(bench.log, 3, open_batch)) == (0, 9_000, 0)
    cleaned(bench)
    assert next(bench.log.scan(0))[0].record_count == 0, "it is kept for what it says of its producer"
    assert asyncio.run(max_timestamp(bench.log, 3, open_batch)) is None


def test_records_without_a_key_have_no_place_in_a_table() -> None:
    bench = Bench(MemoryDisk())
    bench.put((None, b"lost"), (b"a", b"kept"))
    cleaned(bench)
    assert records(bench) == [(1, b"a", b"kept")]


def test_a_tombstone_stays_for_its_time_after_it_was_first_seen() -> None:
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"1"), (b"b", b"1"))
    bench.put((b"a", None))
    cleaned(bench)
    assert records(bench) == [(1, b"b", b"1"), (2, b"a", None)]
    horizons = [header.delete_horizon_ms for header, _ in bench.log.scan(0)]
    assert horizons == [None, NOW_MS + RETENTION_MS]
    for now_ms, left in ((NOW_MS + RETENTION_MS - 1, [1, 2, 3]), (LATER, [1, 4])):
        bench.put((b"c", b"%d" % now_ms))
        cleaned(bench, now_ms)
        assert [offset for offset, _, _ in records(bench)] == left
    assert table(records(bench)) == {b"b": b"1", b"c": b"%d" % LATER}


def test_below_which_offset_deletions_have_left_a_log_outlives_a_crash_and_a_stop() -> None:
    disk = MemoryDisk()
    bench = Bench(disk)
    bench.put((b"a", b"1"), (b"b", b"1"))
    bench.put((b"a", None))
    bench.put((b"b", b"2"))
    bench.end(7, ControlType.COMMIT)
    cleaned(bench)
    assert (bench.log.forgotten_below, bench.log.times_forgotten) == (0, 0), "a value has left, which another replaced"
    bench.put((b"c", b"1"))
    asyncio.run(bench.clean(now_ms=LATER, keeps_deletions=True))
    assert offsets(bench) == [2, 3, 4, 5]
    assert (bench.log.forgotten_below, bench.log.times_forgotten) == (0, 0)
    bench.put((b"c", b"2"))
    cleaned(bench, LATER)
    assert offsets(bench) == [3, 6], "the tombstone and the marker are gone"
    assert (bench.log.forgotten_below, bench.log.times_forgotten) == (5, 1)
    again = Bench(disk, recovery_point=bench.log.flushed_offset)
    assert again.log.forgotten_below == 5
    state = asyncio.run(again.log.close())
    views = (again.stable, again.producers)
    assert PartitionLog.open(disk, "table-0", bench.config, views, known=state, now_ms=0).forgotten_below == 5


@pytest.mark.parametrize("seed", range(20))
def test_a_folder_with_that_offset_has_its_topics_id_whatever_a_power_cut_leaves(seed: int) -> None:
    """Otherwise a topic of the same name, made anew, would take the folder for its own."""
    disk, topic_id = MemoryDisk(), TopicId(bytes(range(16)))
    log = PartitionLog.open(disk, "table-0", LogConfig(), (), known=None, now_ms=0, topic_id=topic_id)
    asyncio.run(log.forget_below(5))
    append(log, build_batch([(b"k", b"v", (), 1)]))
    disk.cut_power(random.Random(seed))
    if disk.exists("table-0"):
        assert read_topic_id(disk, "table-0") == topic_id or was_never_flushed(disk, "table-0")


def test_aborted_records_go_first_and_their_marker_only_when_it_tells_nobody_anything() -> None:
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"before"))
    bench.put((b"a", b"aborted"), producer=7, transactional=True)
    bench.end(7, ControlType.ABORT)
    bench.put((b"b", b"later"), producer=7, transactional=True)
    bench.end(7, ControlType.COMMIT)
    bench.put((b"b", b"last"), producer=7, transactional=True)
    bench.end(7, ControlType.COMMIT)
    expected = {b"a": b"before", b"b": b"last"}
    for now_ms, left in (
        (NOW_MS, [0, 2, 4, 5, 6]),  # the aborted data and what is superseded
        (NOW_MS + 1, [0, 2, 4, 5, 6, 7]),  # the markers of nothing are noticed: their time runs from here
        (NOW_MS + RETENTION_MS, [0, 2, 4, 5, 6, 7, 8]),
        (NOW_MS + 1 + RETENTION_MS, [0, 5, 6, 7, 8, 9]),
    ):
        assert table(records(bench)) == expected
        cleaned(bench, now_ms)
        assert offsets(bench) == left
        assert table(records(bench)) == expected
        key = b"%d" % now_ms
        expected[key] = b"x"
        bench.put((key, b"x"))
    assert not bench.stable.has_aborted, "nobody is told to wait for a marker that is gone"


def test_a_removed_abort_marker_is_forgotten_for_good() -> None:
    """Were the aborted range still in a snapshot, a client would drop what the producer committed later."""

    async def run() -> None:
        disk = MemoryDisk()
        bench = Bench(disk)
        bench.put((b"a", b"aborted"), producer=7, transactional=True)
        bench.end(7, ControlType.ABORT)
        for count in range(30):
            bench.put((b"k%d" % count, bytes(50)))
            await bench.log.flush()
        assert list(bench.stable.aborted_ranges(0, 100))
        bench.put((b"b", b"committed"), producer=7, transactional=True)
        bench.end(7, ControlType.COMMIT)
        for now_ms in (NOW_MS, NOW_MS + 1, LATER + 1):
            bench.put((b"c", b"%d" % now_ms))
            await bench.clean(now_ms=now_ms)
        assert not bench.stable.has_aborted
        for recovery_point in (0, 10, bench.log.flushed_offset):
            again = Bench(disk, recovery_point=recovery_point)
            assert not again.stable.has_aborted
            assert table(records(again))[b"b"] == b"committed"

    asyncio.run(run())


def test_a_cut_does_not_bring_back_an_aborted_transaction_whose_marker_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the disk while the transaction was forgotten, and restored an older snapshot before the newer one
    was taken. Readers who were told of the transaction then waited for its marker, and dropped what was committed.
    """
    bench = Bench(MemoryDisk())
    log = bench.log
    bench.put((b"a", b"1"), producer=7, transactional=True)
    bench.end(7, ControlType.ABORT)
    for count in range(10):
        bench.put((b"k%d" % count, bytes(50)))
    bench.put((b"b", b"1"), producer=7, transactional=True)
    bench.end(7, ControlType.COMMIT)
    for now_ms in (NOW_MS, NOW_MS + 1):
        bench.put((b"c", b"%d" % now_ms))
        cleaned(bench, now_ms)
    log.roll(LATER)
    asyncio.run(log.flush())
    for count in range(12):
        bench.put((b"tail %d" % count, bytes(60)))
    limit_offset, offset = log.segments[-2].base_offset, log.end_offset - 1

    async def cut() -> None:
        async with log.alone():
            await distrust(log, durable_after_cut(log, offset), offset)
            for _ in range(5):
                await asyncio.sleep(0)
            cut_log(log, offset)

    async def main() -> None:
        await log.flush()
        work = find_work(log, bench.disk, now_ms=LATER, limit_offset=limit_offset)
        assert work is not None
        cutting: list[asyncio.Task[None]] = []
        forget = StableOffsets.forget_aborted

        def beside_a_cut(view: StableOffsets, marker_offsets: Sequence[int]) -> Generator[None, None, None]:
            if not cutting:
                cutting.append(asyncio.ensure_future(cut()))
                yield
            yield from forget(view, marker_offsets)

        monkeypatch.setattr(StableOffsets, "forget_aborted", beside_a_cut)
        report = await bench.compact(work, now_ms=LATER, apart=once)
        await cutting[0]
        assert not report.swapped, "a producer may be known by another batch since"

    asyncio.run(main())
    assert not list(bench.stable.aborted_ranges(0, log.end_offset))
    assert table(records(bench))[b"b"] == b"1"


def test_the_last_batch_of_an_active_producer_stays_without_its_records() -> None:
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"1"), producer=7)
    bench.put((b"a", b"2"), producer=7)
    bench.put((b"a", b"3"))
    cleaned(bench)
    headers = [header for header, _ in bench.log.scan(0)]
    assert [(header.base_offset, header.record_count, header.producer_id) for header in headers] == [
        (1, 0, 7),
        (2, 1, -1),
    ]
    again = Bench(bench.disk)
    assert again.producers.last == {7: 1}


def test_the_last_batch_stays_so_that_a_copy_of_the_log_comes_to_its_end() -> None:
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"1"))
    bench.put((None, b"has no place"))
    cleaned(bench)
    assert [(header.next_offset, header.record_count) for header, _ in bench.log.scan(0)] == [(1, 1), (2, 0)]
    assert bench.log.end_offset == 2
    bench.put((b"a", None))
    cleaned(bench)
    assert offsets(bench) == [2], "another batch is the last one now"


def test_the_last_batch_stays_where_the_segment_ends_in_a_gap_already() -> None:
    """Behind a gap, the end of a sealed segment is the beginning of the next one after a crash."""
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"1"))
    bench.put((None, b"has no place"))
    bench.log.end_offset += 5
    bench.log.segments[-1].end_offset += 5
    cleaned(bench)
    assert [(header.next_offset, header.record_count) for header, _ in bench.log.scan(0)] == [(1, 1), (2, 0)]


def test_nothing_undecided_active_or_undurable_is_touched() -> None:
    async def run() -> None:
        disk = MemoryDisk()
        bench = Bench(disk)
        for _ in range(3):
            bench.put((b"a", b"x" * 400))
        work = find_work(bench.log, disk, now_ms=NOW_MS, limit_offset=3)
        assert work is None, "not durable"
        await bench.log.flush()
        assert len(bench.log.segments) == 3
        for limit, count in ((0, 0), (1, 1), (2, 2), (3, 2)):
            work = find_work(bench.log, disk, now_ms=NOW_MS, limit_offset=limit)
            assert (len(work.segments) if work else 0) == count

    asyncio.run(run())


def with_config(**settings: object) -> Bench:
    config = LogConfig(cleanup_policy=("compact",), segment_bytes=600, **settings)  # type: ignore[arg-type]
    return Bench(MemoryDisk(), config)


def test_a_log_is_cleaned_when_enough_of_it_is_dirty() -> None:
    bench = with_config(min_cleanable_dirty_ratio=0.5)
    for round in range(3):
        for key in range(10):
            bench.put((b"%d" % key, b"%d" % round * 50))
    assert asyncio.run(bench.clean()) is not None
    assert asyncio.run(bench.clean()) is None
    bench.put((b"0", b"x" * 50))
    assert asyncio.run(bench.clean()) is None, "a twelfth is dirty"
    for key in range(20):
        bench.put((b"%d" % key, b"x" * 50))
    assert asyncio.run(bench.clean()) is not None


def test_the_lags_of_compaction_hold() -> None:
    """The records' times are 0 and 1."""
    young = with_config(min_compaction_lag_ms=1000, min_cleanable_dirty_ratio=0.0)
    late = with_config(max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
    for bench in (young, late):
        bench.put((b"a", b"1"))
        bench.put((b"a", b"2"))
    assert asyncio.run(young.clean(now_ms=1000)) is None
    assert asyncio.run(young.clean(now_ms=1001)) is not None
    assert asyncio.run(late.clean(now_ms=1000)) is None
    assert asyncio.run(late.clean(now_ms=1001)) is not None


def test_records_without_a_time_are_overdue_by_when_they_came() -> None:
    """Their -1 was taken for a time, so that each pass was followed by another one."""
    bench = with_config(max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
    for offset in range(2):
        append(bench.log, build_batch([(b"a", b"1", (), -1)], base_offset=offset, leader_epoch=0), NOW_MS)
    assert asyncio.run(bench.clean(now_ms=NOW_MS + 1000)) is None
    assert asyncio.run(bench.clean(now_ms=NOW_MS + 1001)) is not None


@pytest.mark.parametrize("memory_bytes", [1, 40_000, 1 << 20])
def test_more_keys_than_fit_into_the_memory_are_cleaned_in_one_pass_all_the_same(memory_bytes: int) -> None:
    """By 40 kB what is remembered lies in a file, and is brought together in several parts."""
    bench = Bench(MemoryDisk(), LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0))
    for value in (b"1", b"2", None):
        for start in range(0, 1_000, 10):
            bench.put(*((b"%d" % key, value) for key in range(start, start + 10)))
    report = asyncio.run(bench.clean(memory_bytes=memory_bytes))
    assert report is not None
    assert (report.keys, report.records_before, report.records_after) == (1_000, 3_000, 1_000)
    assert [offset for offset, _, _ in records(bench)] == list(range(2_000, 3_000))
    assert read_offset(bench.disk, "table-0", CLEANED_OFFSET) == 3_000


def keyed_batches(batches: int, value: bytes) -> Iterator[memoryview]:
    """Of sixty-four records each, whose keys are all different."""
    plain = build_batch([(b"any key!", value, (), 0)] * 64)
    header, payload = read_header(plain), bytes(plain[HEADER_BYTES:])
    key_at, records = payload.index(b"any key!"), np.frombuffer(payload, np.uint8).reshape(64, -1).copy()
    for number in range(batches):
        keys = np.arange(number * 64, number * 64 + 64, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        records[:, key_at : key_at + 8] = keys.view(np.uint8).reshape(64, 8)
        yield memoryview(assemble(header, records.tobytes()))


@pytest.mark.parametrize(("batches", "value_bytes"), [(8_000, 1), (400, 20_000)])
def test_however_many_keys_or_bytes_there_are_the_memory_that_is_given_is_enough(
    batches: int, value_bytes: int
) -> None:
    memory_bytes = 16 << 20
    facts = (memory_bytes, None, 0, b"secret")
    none = NumberArray()
    job = CleaningJob("table-0", SealedSegments(), NOW_MS, 0, 1 << 30, 4096, none, none, none, *facts, False)
    census = cleaning._Census(job, cleaning._Room(MemoryDisk(), 0))
    tracemalloc.start()
    try:
        for batch in keyed_batches(batches, bytes(value_bytes)):
            census.add(read_header(batch), batch)
        census.finish()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        census.close()
    assert census.keys == batches * 64
    assert peak_bytes < memory_bytes
    assert len(census._bounds) < 10  # runs, each with its share of keys, not of bytes


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 9, 63, 64, 65, 1_000])
def test_keys_that_are_alike_but_for_a_byte_or_their_length_are_different_keys(size: int) -> None:
    keys = [bytes(size), bytes(size + 1), b"x" + bytes(size), bytes(size) + b"x", b"x" * size, b"x" * (size + 1)]
    keys += [b"x" * size + b"\0", b"\xff" * size + b"y"]
    expected = {key: b"%d" % number for number, key in enumerate(keys)}
    bench = Bench(MemoryDisk())
    for _ in range(2):
        bench.put(*expected.items())
    cleaned(bench)
    assert table(records(bench)) == expected
    assert len(records(bench)) == len(expected)


def test_records_that_are_no_records_leave_their_batch_as_it_is() -> None:
    """Whatever a batch says inside, with a checksum that fits: the cleaner and its plain twin take it alike."""
    chance = random.Random(5)
    honest = build_batch([(b"k%d" % number, b"v" * number, (), 5) for number in range(40)], leader_epoch=0)
    for _ in range(150):
        bench = Bench(MemoryDisk())
        for _ in range(3):
            payload = bytearray(honest[HEADER_BYTES:])
            for _ in range(chance.randrange(4)):
                payload[chance.randrange(len(payload))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            header = read_header(honest)._replace(base_offset=bench.log.end_offset)
            append(bench.log, bytes(assemble(header, bytes(payload))))
            bench.put((b"k1", b"later"))
        asyncio.run(bench.clean(apart=twice_alike))


def test_small_segments_are_joined() -> None:
    bench = Bench(MemoryDisk())
    for count in range(40):
        bench.put((b"%d" % (count % 3), b"x" * 100))
    assert len(bench.log.segments) > 10
    cleaned(bench)  # each becomes a small one
    bench.put((b"3", b"x"))
    cleaned(bench)
    assert len(bench.log.segments) < 5
    assert all(segment.size_bytes <= 600 for segment in bench.log.segments)
    for offset in range(41):
        found = bench.log.read(offset, max_bytes=10**6, limit_offset=41, at_least_one=True)
        assert found is not None
        assert read_header(found.read()).base_offset == max(offset, 37)


async def work_on(count: int) -> tuple[Bench, Work]:
    """A pass over so many batches with seven keys, each with its offset."""
    bench = Bench(MemoryDisk())
    for offset in range(count):
        bench.put((b"%d" % (offset % 7), b"%d" % offset))
    bench.log.roll(NOW_MS)
    await bench.log.flush()
    work = find_work(bench.log, bench.disk, now_ms=NOW_MS, limit_offset=count)
    assert work is not None
    return bench, work


def test_the_log_is_read_and_written_while_it_is_cleaned() -> None:
    async def run() -> None:
        bench, work = await work_on(1500)

        async def meanwhile(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
            bench.put((b"new", b"1"))
            cleaned = await twice(function, disk, job)
            bench.put((b"new", b"2"))
            assert table(records(bench))[b"new"] == b"2"
            await bench.log.flush()
            return cleaned

        report = await bench.compact(work, apart=meanwhile)
        assert report.swapped
        assert (report.records_before, report.records_after) == (1500, 7)
        known = table(records(bench))
        assert known[b"new"] == b"2"
        assert known[b"%d" % (1499 % 7)] == b"1499"

    asyncio.run(run())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", ["remove", "truncate", "restart"])
def test_a_log_that_changes_under_the_cleaner_stays_as_it_is(what: str, late: bool) -> None:
    """Before it has read, when its files may be gone, and after."""

    async def run() -> None:
        bench, work = await work_on(1000)

        async def overtaken(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
            cleaned = await once(function, disk, job) if late else None
            if what == "remove":
                await remove_oldest(bench.log, lambda: 2)
            elif what == "truncate":
                cut_log(bench.log, 500)
            else:
                restart_log(bench.log, 2000)
            return cleaned or await once(function, disk, job)

        report = await bench.compact(work, apart=overtaken)
        assert not report.swapped
        assert not [name for name in bench.disk.listdir("table-0") if name.endswith(CLEANED) or name == PLAN]
        expected = {"remove": 1000 - bench.log.start_offset, "truncate": 500, "restart": 0}[what]
        assert len(list(bench.log.scan(bench.log.start_offset))) == expected

    asyncio.run(run())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", ["truncate", "restart"])
def test_a_log_that_is_filled_anew_under_the_cleaner_keeps_what_is_new(what: str, late: bool) -> None:
    """A follower that starts over writes to its first segment again: when that was sealed, the pass took it for the one
    that it had read, and put the old records back.
    """

    async def run() -> None:
        bench, work = await work_on(1000)

        async def overtaken(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
            cleaned = await once(function, disk, job) if late else None
            if what == "truncate":
                cut_log(bench.log, 1)
            else:
                restart_log(bench.log, 0)
            while bench.log.end_offset < 1100:
                bench.put((b"%d" % (bench.log.end_offset % 5), b"new"))
            bench.log.roll(NOW_MS)
            await bench.log.flush()
            return cleaned or await once(function, disk, job)

        report = await bench.compact(work, apart=overtaken)
        assert not report.swapped
        found = [record for _, record in sorted(table(records(bench)).items())]
        assert found == [b"new"] * 5
        assert bench.log.end_offset == 1100
        assert len(list(bench.log.scan(0))) == 1100
        assert not [name for name in bench.disk.listdir("table-0") if name.endswith(CLEANED) or name == PLAN]

    asyncio.run(run())


def test_the_batch_that_a_producer_is_known_by_again_after_a_cut_stays() -> None:
    """What came behind it was not committed, and is taken back while the cleaner works, which has left the older one
    out. A replica that copied the log then, or a recovery, took the repeat of an acknowledged batch for a new one.
    """

    async def run() -> None:
        bench = Bench(MemoryDisk())
        bench.put((b"a", b"1"), producer=7)
        while bench.log.end_offset < 40:
            bench.put((b"a", b"x"))
        bench.log.roll(NOW_MS)
        bench.put((b"c", b"3"))
        committed = bench.log.end_offset
        bench.put((b"b", b"2"), producer=7)
        await bench.log.flush()
        work = find_work(bench.log, bench.disk, now_ms=NOW_MS, limit_offset=committed)
        assert work is not None

        async def beside_a_cut(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
            cut_log(bench.log, committed)
            return await once(function, disk, job)

        await bench.compact(work, apart=beside_a_cut)
        assert bench.producers.last == {7: 0}
        assert 7 in [header.producer_id for header, _ in bench.log.scan(0)]
        await bench.clean()
        assert [header.base_offset for header, _ in bench.log.scan(0) if header.producer_id == 7] == [0]

    asyncio.run(run())


def test_an_aborted_transaction_that_was_copied_anew_is_not_forgotten() -> None:
    """The cleaner of a follower waits for others to forget a transaction whose batches had left; before it may, the
    follower starts over and copies them from a leader that has cleaned less. They were read as committed.
    """

    async def run() -> None:
        bench = Bench(MemoryDisk())
        log = bench.log
        bench.put((b"a", b"aborted"), producer=7, transactional=True)
        bench.end(7, ControlType.ABORT)
        bench.put((b"z", b"z"), producer=7)
        for now_ms in range(NOW_MS, NOW_MS + 2):
            for _ in range(30):
                bench.put((b"k", b"k"))
            if now_ms == NOW_MS:
                of_leader = [(header, bytes(batch)) for header, batch in log.scan(0)]
            await bench.clean(now_ms=now_ms, apart=once)
        bench.put((b"k", b"k"))
        log.roll(LATER)
        await log.flush()
        work = find_work(log, bench.disk, now_ms=LATER, limit_offset=log.end_offset)
        assert work is not None
        others: list[asyncio.Task[None]] = []

        async def starts_over() -> None:
            async with log.alone():
                await asyncio.sleep(0.01)
                restart_log(log, 0)
                for header, batch in of_leader:
                    log.append_after_gap(batch, header, now_ms=LATER)

        async def beside_others(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
            cleaned = await once(function, disk, job)
            assert cleaned.dropped_abort_markers
            others.append(asyncio.ensure_future(starts_over()))
            await asyncio.sleep(0)
            return cleaned

        report = await bench.compact(work, now_ms=LATER, apart=beside_others)
        assert others[0].done()
        assert not report.swapped
        assert b"aborted" not in [value for _, _, value in committed_records(log, bench.stable)]

    asyncio.run(run())


def test_retention_that_waits_for_the_cleaner_takes_only_what_has_expired() -> None:
    """The cleaner merges small neighbours, so that as many segments as had expired hold young records afterwards."""

    now_ms = CLOCK_SET_MS + NOW_MS

    async def run() -> None:
        config = LogConfig(
            cleanup_policy=("compact", "delete"),
            segment_bytes=600,
            min_cleanable_dirty_ratio=0.0,
            retention_ms=500,
        )
        bench = Bench(MemoryDisk(), config)
        log = bench.log
        for at in range(40):
            append(log, stamped([b"x" * 100], base_offset=at, timestamp=at, key=b"%d" % (at % 3)), now_ms - 501)
        await bench.clean(now_ms=now_ms - 501)
        for count in range(30):
            append(log, stamped([b"young"], base_offset=log.end_offset, timestamp=now_ms, key=b"y%d" % count))
        log.roll(now_ms)
        await log.flush()
        work = find_work(log, bench.disk, now_ms=now_ms, limit_offset=log.end_offset)
        assert work is not None

        def expired() -> int:
            return expired_segments(log, now_ms, log.end_offset)

        assert expired() > 1
        cleaning = asyncio.ensure_future(bench.compact(work))
        for _ in iter(log.alone().locked, True):
            await asyncio.sleep(0)
        await remove_oldest(log, expired)
        assert (await cleaning).swapped
        assert len([record for record in records(bench) if record[0] >= 40]) == 30

    asyncio.run(run())


def test_a_batch_that_cant_be_opened_is_kept_as_it_is() -> None:
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"), codec=4)
    path = bench.log.segments[0].path()
    bench.put((b"b", b"1"))
    first = bench.log.segments[0].position_of(1)
    bench.disk.open(path)
    assert isinstance(bench.disk, MemoryDisk)
    bench.disk.files[path].data[first + 61 : first + 65] = b"\xff" * 4
    report = asyncio.run(bench.clean())
    assert report is not None
    assert report.unreadable_batches == 1
    assert offsets(bench) == [0, 1, 2]


def test_a_batch_of_more_records_than_are_opened_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened, each would take some hundred bytes: a few megabytes of them would take the machine's memory."""
    monkeypatch.setattr(cleaning, "RECORDS_OPENED", 3)
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"1"))
    bench.put(*[(b"a", b"2")] * 4)
    bench.put((b"a", b"3"), (b"b", b"1"), (b"b", b"2"))
    bench.put((b"c", b"1"))
    report = asyncio.run(bench.clean())
    assert report is not None
    assert (report.oversized_batches, report.unreadable_batches) == (1, 0)
    assert [offset for offset, *_ in records(bench)] == [1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize("unopened", ["too many records", "rotted", "no records"])
def test_a_tombstone_stays_as_long_as_the_value_that_it_deletes_may_be_in_a_batch_that_is_not_opened(
    unopened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "RECORDS_OPENED", 3)
    bench = Bench(MemoryDisk())
    bench.put((b"b", b"1"))
    bench.put((b"b", None))
    if unopened == "no records":
        honest = build_batch([(b"a", b"her data", (), 0), (b"k", b"", (), 0)], base_offset=2, leader_epoch=0)
        payload = bytearray(honest[HEADER_BYTES:])
        payload[payload.index(b"k") - 2] = 10  # an offset behind the end of the batch
        append(bench.log, bytes(assemble(read_header(honest), bytes(payload))))
    else:
        bench.put((b"a", b"her data"), *[(b"k", b"")] * (3 if unopened == "too many records" else 1))
    if unopened == "rotted":
        assert isinstance(bench.disk, MemoryDisk)
        data = bench.disk.files[bench.log.segments[0].path()].data
        data[data.index(b"her data")] ^= 1
    bench.put((b"a", None))
    for now_ms in (NOW_MS, LATER, LATER + RETENTION_MS):
        bench.put((b"c", b"%d" % now_ms))
        cleaned(bench, now_ms)
    stored = [PlainCleaner.opened(header, bytes(batch)) or () for header, batch in bench.log.scan(0)]
    tombstones = [record.key for batch in stored for record in batch if not record.has_value]
    assert tombstones == [b"a"], "that of b has gone, because all is known below it"


def test_a_batch_that_rotted_is_not_given_a_new_checksum() -> None:
    """Of two records one could go; but one bit of the other is wrong, and written anew nobody would see that."""
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"1"), (b"b", b"right"))
    bench.put((b"a", b"2"))
    assert isinstance(bench.disk, MemoryDisk)
    stored = bench.disk.files[bench.log.segments[0].path()].data
    stored[stored.index(b"right")] ^= 1
    report = asyncio.run(bench.clean())
    assert report is not None
    assert report.unreadable_batches == 1
    assert [checksum_ok(batch, header) for header, batch in bench.log.scan(0)] == [False, True]


@pytest.mark.parametrize("value", [None, b"1"])
def test_times_that_run_out_of_their_field_are_kept_as_everybody_reads_them(value: bytes | None) -> None:
    """A batch may have come by another way than the checks of today, and the cleaner must live with it."""
    bench = Bench(MemoryDisk())
    batch = build_batch([(b"a", b"1", (), 5), (b"b", value, (), 6), (b"c", b"1", (), 7)], leader_epoch=0)
    header = read_header(batch)._replace(base_timestamp=2**63 - 2)
    append(bench.log, bytes(assemble(header, batch[HEADER_BYTES:])))
    bench.put((b"a", b"2"))
    times = {record.key: record.timestamp for record in read_records(next(bench.log.scan(0))[1])}
    assert times == {b"a": 2**63 - 2, b"b": 2**63 - 1, b"c": -(2**63)}
    cleaned(bench)
    header, batch = next((header, bytes(batch)) for header, batch in bench.log.scan(0))
    assert {record.key: record.timestamp for record in read_records(batch)} == {b"b": 2**63 - 1, b"c": -(2**63)}
    assert header.delete_horizon_ms == (NOW_MS + RETENTION_MS if value is None else None)


def test_a_pass_that_fails_leaves_no_files_though_the_size_of_segments_was_changed_meanwhile() -> None:
    """They stayed until the next start."""
    bench = Bench(MemoryDisk())
    for number in range(40):
        bench.put((b"%d" % number, bytes(100)))

    async def failing(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
        made = await twice(function, disk, job)
        assert len(list(made.segments)) > 1
        bench.log.set_config(replace(bench.config, segment_bytes=1 << 20))
        raise RuntimeError("and then it died")

    with pytest.raises(RuntimeError):
        asyncio.run(bench.clean(apart=failing))
    assert not [name for name in bench.disk.listdir("table-0") if name.endswith(CLEANED)]


def test_a_transaction_whose_batch_rotted_keeps_its_marker() -> None:
    """Readers that do not look at checksums would take the batch for committed once nobody tells them otherwise."""
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"aborted"), producer=7, transactional=True)
    bench.put((b"b", b"1"), producer=8, transactional=True)
    bench.end(7, ControlType.ABORT)
    bench.end(8, ControlType.ABORT)
    bench.put((b"c", b"1"), producer=7)
    bench.put((b"c", b"2"), producer=8)
    assert isinstance(bench.disk, MemoryDisk)
    stored = bench.disk.files[bench.log.segments[0].path()].data
    stored[stored.index(b"aborted")] ^= 1
    for now_ms in (NOW_MS, LATER, LATER + LATER):
        bench.put((b"d", b"%d" % now_ms))
        asyncio.run(bench.clean(now_ms=now_ms))
    assert offsets(bench)[:3] == [0, 2, 3], "the batch, and both markers behind it"
    assert len(list(bench.stable.aborted_ranges(0, 4))) == 2


def test_a_decided_swap_is_gone_through_with_and_an_undecided_one_forgotten() -> None:
    for decided in (True, False):
        disk = MemoryDisk()
        disk.mkdir("t-0")
        for base in (0, 10, 20):
            disk.open(f"t-0/{base:020}.log", create=True).append([b"old %d" % base])
        disk.open(f"t-0/{0:020}.log{CLEANED}", create=True).append([b"new"])
        plan = SwapPlan([0], [0, 10], 20)
        assert SwapPlan.decode(plan.encode()) == SwapPlan((0,), (0, 10), 20)
        if decided:
            for _ in range(2):
                take_name(disk, "t-0", 0)
                list(remove_old(disk, "t-0", plan))
            assert sorted(disk.listdir("t-0")) == [f"{0:020}.log", f"{20:020}.log"]
            assert disk.read(f"t-0/{0:020}.log") == b"new"


def test_however_many_segments_are_joined_only_some_are_removed_in_one_turn() -> None:
    bench = Bench(MemoryDisk())
    for _ in range(3 * REMOVED_A_TURN):
        bench.put((b"a", b"1"))
        bench.log.roll(NOW_MS)
    left: list[int] = []

    async def main() -> None:
        await bench.log.flush()
        cleaning = asyncio.ensure_future(bench.clean(apart=once))
        while not cleaning.done():
            await asyncio.sleep(0)
            left.append(sum(name.endswith(".log") for name in bench.disk.listdir("table-0")))

    asyncio.run(main())
    assert left[-1] < REMOVED_A_TURN
    assert max(before - after for before, after in pairwise(left)) <= REMOVED_A_TURN


def test_however_many_segments_are_new_only_some_get_their_names_in_one_turn() -> None:
    """In between the log is whole: what a reader knows in the end is the same, and only offsets that leave are gone."""
    bench = Bench(MemoryDisk())
    for number in range(3 * REMOVED_A_TURN):
        bench.put((b"%d" % number, bytes(300)), (b"same", b"%d" % number))
        bench.log.roll(NOW_MS)
    bench.put((b"same", b"last"))
    known = table(records(bench))
    named: list[int] = []

    async def main() -> None:
        await bench.log.flush()
        cleaning = asyncio.ensure_future(bench.clean(apart=once))
        while not cleaning.done():
            await asyncio.sleep(0)
            assert isinstance(bench.disk, MemoryDisk)
            named.append(sum(op.startswith("rename") and f".log{CLEANED}" in op for op in bench.disk.ops))
            assert table(records(bench)) == known
            assert offsets(bench) == sorted(set(offsets(bench)))

    asyncio.run(main())
    assert named[-1] > 2 * REMOVED_A_TURN
    assert max(after - before for before, after in pairwise(named)) <= REMOVED_A_TURN


def test_a_failing_disk_ends_the_pass_and_the_log_reads_on() -> None:
    disk = MemoryDisk()
    bench = Bench(disk)
    for count in range(20):
        bench.put((b"%d" % (count % 3), b"%d" % count))
    bench.log.roll(NOW_MS)
    asyncio.run(bench.log.flush())
    before = records(bench)
    for fail_after in random.Random(3).sample(range(1, 30), 6):
        disk.fault, disk.fail_at = None, disk.changes + fail_after
        work = find_work(bench.log, disk, now_ms=NOW_MS, limit_offset=20)
        if work is None:
            break
        try:
            asyncio.run(bench.compact(work, apart=once))
        except DiskFault:
            assert table(records(bench)) == table(before)


def test_a_pass_that_is_cancelled_stays_cancelled_although_the_disk_refuses_to_clear_up() -> None:
    """Otherwise the broker's cleaner, told to end, would take the disk's fault for an answer and go on for ever."""
    disk = RefusingDisk()
    bench = Bench(disk)
    for value in (b"1", b"2"):
        bench.put(*((b"%d" % key, value) for key in range(200)))

    async def cancelled() -> None:
        bench.log.roll(NOW_MS)
        await bench.log.flush()
        work = find_work(bench.log, disk, now_ms=NOW_MS, limit_offset=bench.log.end_offset)
        assert work is not None
        cleaning = asyncio.current_task()
        assert cleaning is not None

        async def refused(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
            cleaned = await once(function, disk, job)
            assert isinstance(disk, RefusingDisk)
            disk.refuses = True
            cleaning.cancel()
            await asyncio.sleep(0)
            return cleaned

        await bench.compact(work, apart=refused)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


class RefusingDisk(MemoryDisk):
    """Takes no more changes of names once it `refuses`."""

    refuses = False

    def unlink(self, path: str) -> None:
        if self.refuses:
            raise DiskFault(path, OSError("full"))
        super().unlink(path)


@pytest.mark.parametrize("steps", range(60))
def test_a_swap_that_is_cancelled_is_made_or_not_made(steps: int) -> None:
    """A broker that stops cancels its cleaner, and the disk's writer goes on. A plan that is left behind without its
    segments would take the old ones away after the next crash.
    """
    disk = WritingOnDisk()
    bench = Bench(disk)
    for value in (b"1", b"2", b"3"):
        bench.put(*((b"%d" % key, value) for key in range(10)))
        bench.log.roll(NOW_MS)  # several segments become one
    before = table(records(bench))

    async def stopped() -> None:
        cleaning = asyncio.create_task(bench.clean())
        for _ in range(steps):
            await asyncio.sleep(0)
        cleaning.cancel()
        await asyncio.wait([cleaning])
        await bench.log.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # what the disk's writer still has to do
            await asyncio.wait([task])

    asyncio.run(stopped())
    again = Bench(disk)
    assert table(committed_records(again.log, again.stable)) == before


def test_a_swap_that_waits_for_its_turn_can_be_cancelled() -> None:
    """A flush of very many segments on a slow disk held the log for minutes, and so long the broker did not stop."""
    bench = Bench(MemoryDisk())
    for value in (b"1", b"2"):
        bench.put(*((b"%d" % key, value) for key in range(10)))
    before, is_held = records(bench), asyncio.Event()

    async def held(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
        cleaned = await once(function, disk, job)
        await bench.log.alone().acquire()
        is_held.set()
        return cleaned

    async def stopped() -> None:
        cleaning = asyncio.create_task(bench.clean(apart=held))
        await is_held.wait()
        for _ in range(20):  # it begins to wait
            await asyncio.sleep(0)
        cleaning.cancel()
        await asyncio.wait([cleaning], timeout=5)
        assert cleaning.cancelled()
        bench.log.alone().release()

    asyncio.run(stopped())
    assert records(bench) == before
    report = asyncio.run(bench.clean())
    assert report is not None and report.swapped


class WritingOnDisk(MemoryDisk):
    """As the real one: a wait that is cancelled does not stop what its writer has begun."""

    async def write_atomic(self, path: str, data: Buffer) -> None:
        await asyncio.shield(asyncio.ensure_future(super().write_atomic(path, data)))


def test_a_pass_that_comes_back_without_the_last_batch_changes_nothing() -> None:
    bench = Bench(MemoryDisk())
    bench.put((b"a", b"1"), (b"b", b"2"))

    async def empty(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
        return Cleaned()

    with pytest.raises(AssertionError, match="keeps the last batch"):
        asyncio.run(bench.clean(apart=empty))
    assert table(records(bench)) == {b"a": b"1", b"b": b"2"}


def test_no_snapshot_from_inside_a_transaction_outlives_its_marker() -> None:
    """A restart from it would have the transaction open for ever: nothing ends it any more."""

    async def life() -> None:
        bench = Bench(disk)
        bench.put((b"first", b"1"))
        bench.put((b"k", b"1"), producer=7, transactional=True)
        bench.log.roll(NOW_MS)  # a snapshot is taken
        bench.end(7, ControlType.COMMIT)
        bench.put((b"k", b"2"), producer=7)  # its last batch is a later one
        for now_ms in (NOW_MS, LATER, 2 * LATER):
            bench.put((b"other", b"%d" % now_ms))
            await bench.clean(now_ms=now_ms)
        bench.put((b"last", b"1"))
        await bench.log.flush()
        assert not any(header.is_control for header, _ in bench.log.scan(0))
        for offset in bench.log.snapshots.stored:
            held = copy.deepcopy(disk)
            for newer in bench.log.snapshots.stored:
                if newer > offset:
                    del held.files[f"table-0/{snapshot_name(newer)}"]
            again = Bench(held, recovery_point=bench.log.end_offset)
            assert again.stable.last_stable_offset(again.log.end_offset, 0) == again.log.end_offset

    disk = MemoryDisk()
    asyncio.run(life())
