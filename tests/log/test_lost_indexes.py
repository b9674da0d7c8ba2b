"""Index files that are missing, cut short or rotten are rebuilt in steps of bounded work. Whatever becomes of the
segment meanwhile, nothing of it is lost.

Method: what is done at once is counted in headers.
"""

import asyncio
import copy
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from log.batch import CorruptBatch, read_extent, read_header
from log.config import LogConfig
from log.disk import DiskFault, RealDisk
from log.partition_log import CleanState, PartitionLog
from log.segment import LOG_SUFFIX, OFFSET_SUFFIX, REBUILT_BATCHES, TIME_SUFFIX, WALKED_BATCHES, IndexesLost, Segment
from log.steps import done_at_once
from tests.log.building import append, base_offsets, cut_log, fill, open_log, restart_log, stamped
from tests.log.memory_disk import MemoryDisk

BATCHES = 12_000
CONFIG = LogConfig(segment_bytes=700_000, index_interval_bytes=4096)
AT_ONCE = 2 * WALKED_BATCHES + 200
"""Beside two long walks, some headers that index entries name are looked at."""

Harm = Callable[[MemoryDisk, str], None]


@cache
def written() -> tuple[MemoryDisk, CleanState]:
    """Two large segments, the second of which is active, after a clean stop."""

    async def write() -> tuple[MemoryDisk, CleanState]:
        disk = MemoryDisk()
        made, _ = open_log(disk, config=CONFIG)
        fill(made, BATCHES, size=0)
        assert len(made.segments) == 2
        state = await made.close()
        assert state is not None
        return disk, state

    return asyncio.run(write())


def harmed(harm: Harm, segment: int = 0, suffixes: tuple[str, ...] = (OFFSET_SUFFIX, TIME_SUFFIX)) -> PartitionLog:
    disk, state = copy.deepcopy(written())
    opened, _ = open_log(disk, config=CONFIG, known=state)
    for suffix in suffixes:
        harm(disk, opened.segments[segment].path(suffix))
    return opened


def missing(disk: MemoryDisk, path: str) -> None:
    del disk.files[path]


def change(make: Callable[[bytes], bytes]) -> Harm:
    def harm(disk: MemoryDisk, path: str) -> None:
        disk.files[path].data = bytearray(make(bytes(disk.files[path].data)))

    return harm


HARMS = {
    "missing": missing,
    "empty": change(lambda data: b""),
    "short": change(lambda data: data[: len(data) // 48 * 12]),
    "zeros": change(lambda data: bytes(len(data))),
    "rotten": change(lambda data: bytes(each ^ 0x10 for each in data)),
}


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many headers are looked at."""
    seen = [0]

    def counting(read: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            seen[0] += 1
            return read(*arguments)

        return counted

    with (
        patch("log.segment.read_header", counting(read_header)),
        patch("log.segment.read_extent", counting(read_extent)),
    ):
        yield seen


def asked(ask: Callable[[], Any]) -> Any:
    """What this answers once the indexes are there. What is done at once is bounded."""
    for _ in range(3):
        with counted() as seen:
            try:
                answer = ask()
            except IndexesLost as fault:
                assert fault.passing
                lost = fault.segment
            else:
                assert seen[0] <= AT_ONCE
                return answer
            assert seen[0] <= AT_ONCE
        steps = lost.rebuilding()
        with counted() as seen:
            for _ in steps:
                assert seen[0] <= REBUILT_BATCHES
                seen[0] = 0
    raise AssertionError("the indexes are lost again and again")


QUESTIONS: dict[str, Callable[[PartitionLog], Any]] = {
    "a read": lambda log: [_read(log, offset) for offset in (5_000, 3, 9_000, 11_999)],
    "a small read": lambda log: _read(log, 5_000, max_bytes=1),
    "a copy": lambda log: log.checked(4_000, _stored(log, 4_000)).position,
    "how far a read goes": lambda log: log.reach_of(_stored(log, 4_000)) > 4_000,
    "the latest time": lambda log: log.segments[0].largest_before(4_000),
    "a gap": lambda log: log.behind_gap(4_000),
    "a scan": lambda log: next(log.scan(4_000))[0],
}


def _stored(log: PartitionLog, offset: int, max_bytes: int = 10_000) -> Any:
    return log.read(offset, max_bytes=max_bytes, limit_offset=log.end_offset, at_least_one=True)


def _read(log: PartitionLog, offset: int, max_bytes: int = 10_000) -> bytes:
    read: bytes = _stored(log, offset, max_bytes).read()
    return read


@pytest.mark.parametrize("suffixes", [(OFFSET_SUFFIX,), (TIME_SUFFIX,), (OFFSET_SUFFIX, TIME_SUFFIX)])
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_nobody_who_asks_a_segment_without_its_indexes_holds_the_loop(
    question: str, harm: str, suffixes: tuple[str, ...]
) -> None:
    disk, state = copy.deepcopy(written())
    whole, _ = open_log(disk, config=CONFIG, known=state)
    ask = QUESTIONS[question]
    told = ask(whole)
    opened = harmed(HARMS[harm], suffixes=suffixes)
    assert asked(lambda: ask(opened)) == told


@pytest.mark.parametrize("suffixes", [(OFFSET_SUFFIX,), (TIME_SUFFIX,), (OFFSET_SUFFIX, TIME_SUFFIX)])
@pytest.mark.parametrize("harm", HARMS)
def test_a_search_by_time_without_the_indexes_is_done_in_turns(harm: str, suffixes: tuple[str, ...]) -> None:
    opened = harmed(HARMS[harm], suffixes=suffixes)
    segment = opened.segments[0]
    for wanted in (4_000, 0, 7_000):
        found, at = None, 0
        while found is None:
            found, at = asked(partial(segment.search_timestamp, 1000 + wanted, at, 500))
        assert found[1].base_offset == wanted


@pytest.mark.parametrize("harm", HARMS)
def test_rebuilt_index_files_serve_the_next_start(harm: str) -> None:
    opened = harmed(HARMS[harm])
    asked(lambda: _read(opened, 5_000))
    assert isinstance(opened.disk, MemoryDisk)
    again, _ = open_log(opened.disk, config=CONFIG, known=written()[1])
    for offset in range(0, opened.segments[1].base_offset, 500):
        assert base_of(_read(again, offset)) == offset


def base_of(read: bytes) -> int:
    return int.from_bytes(read[:8], "big")


@pytest.mark.parametrize("cut", range(6))
def test_a_crash_while_the_files_are_written_costs_another_rebuild(cut: int) -> None:
    opened = harmed(missing)
    disk = opened.disk
    assert isinstance(disk, MemoryDisk)
    with pytest.raises(IndexesLost):
        _read(opened, 5_000)
    disk.fail_at = disk.changes + 1 + cut  # the name, the cut and the bytes of each file
    done_at_once(opened.segments[0].rebuilding())
    assert disk.fault is not None
    assert base_of(_read(opened, 5_000)) == 5_000, "reads go on"
    disk.fault = disk.fail_at = None
    again, _ = open_log(disk, config=CONFIG, known=written()[1])
    assert base_of(asked(lambda: _read(again, 5_000))) == 5_000


@pytest.mark.parametrize("lost", [OFFSET_SUFFIX, TIME_SUFFIX])
def test_what_a_power_cut_leaves_of_rebuilt_index_files_is_not_believed(lost: str) -> None:
    """They are not synced. Retention took records of now for old ones (6 of 60 power cuts)."""
    opened = harmed(missing, suffixes=(lost,))
    disk = opened.disk
    assert isinstance(disk, MemoryDisk)
    for node in disk.files.values():
        node.settle(len(node.pending))
    disk.durable_files = dict(disk.files)
    disk.pending_names.clear()
    asked(lambda: _read(opened, 5_000))
    asked(lambda: opened.segments[0].times.entry(0))
    last = opened.segments[1].base_offset - 1
    for seed in range(60):
        after = copy.deepcopy(disk)
        after.cut_power(random.Random(seed))
        again, _ = open_log(after, config=CONFIG, recovery_point=BATCHES)
        assert not again.damage
        assert (again.segments[0].largest_timestamp, again.segments[0].largest_timestamp_offset) == (1000 + last, last)
        for wanted in (last, 3_000, 7):
            found, at = None, 0
            while found is None:
                found, at = asked(partial(again.segments[0].search_timestamp, 1000 + wanted, at, 500))
            assert found[1].base_offset == wanted


def test_a_recovery_rebuilds_and_stores_what_is_missing() -> None:
    opened = harmed(missing)
    assert isinstance(opened.disk, MemoryDisk)
    again, _ = open_log(opened.disk, config=CONFIG, recovery_point=BATCHES)
    assert not again.damage
    assert again.segments[0].largest_timestamp == 1000 + again.segments[1].base_offset - 1
    with counted() as seen:
        assert base_of(_read(again, 5_000)) == 5_000
    assert seen[0] < 200


def test_what_is_written_waits_for_the_indexes_of_the_active_segment() -> None:
    """A write that comes meanwhile is refused whole; the one after is in its place."""
    opened = harmed(missing, segment=1)
    end, size_bytes = opened.end_offset, opened.size_bytes

    def write() -> None:
        try:
            append(opened, stamped([b"late"], base_offset=opened.end_offset))
        finally:
            assert opened.size_bytes == sum(segment.file.size for segment in opened.segments)

    with pytest.raises(IndexesLost):
        write()
    assert (opened.end_offset, opened.size_bytes) == (end, size_bytes)
    asked(write)
    assert opened.end_offset == end + 1
    assert base_offsets(opened) == list(range(end + 1))


@pytest.mark.parametrize("left", [0, 100, 401])
def test_an_index_that_loses_its_end_while_it_is_open_is_rebuilt(left: int) -> None:
    opened = harmed(HARMS["rotten"], suffixes=())
    assert isinstance(opened.disk, MemoryDisk)
    _read(opened, 5_000)
    for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
        del opened.disk.files[opened.segments[0].path(suffix)].data[left:]
    for offset in (9_000, 200, 5_000):
        assert base_of(asked(partial(_read, opened, offset))) <= offset
    found, _ = asked(partial(opened.segments[0].search_timestamp, 1000 + 9_000, 0, 500))
    assert found is None or found[1].base_offset == 9_000


def test_an_index_that_is_removed_while_it_is_open_is_rebuilt(tmp_path: Path) -> None:
    """Its descriptor was closed to make room for others. So a hint that had gone kept a partition from its readers."""

    async def write() -> CleanState | None:
        made, _ = open_log(RealDisk(str(tmp_path)), config=CONFIG)
        fill(made, BATCHES, size=0)
        return await made.close()

    state = asyncio.run(write())
    disk = RealDisk(str(tmp_path), open_files_max=2)
    opened, _ = open_log(disk, config=CONFIG, known=state)
    segment = opened.segments[0]
    assert base_of(_read(opened, 5_000)) <= 5_000
    found, _ = segment.search_timestamp(1000 + 9_000, 0, 500)
    assert found is not None
    for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
        disk.unlink(segment.path(suffix))
    for name in ("one", "another"):
        disk.open(name, create=True)
    for offset in (9_000, 200, 5_000):
        assert base_of(asked(partial(_read, opened, offset))) <= offset
    found, _ = asked(partial(segment.search_timestamp, 1000 + 9_000, 0, 500))
    assert found is not None
    assert found[1].base_offset == 9_000
    disk.close()


def test_an_index_that_becomes_zeros_while_it_is_open_says_no_slice_ends_too_early() -> None:
    """What was read of it before found the slot, and the entry there named the first batch by now. So a reader was not
    told of the aborted transactions above that, and took their records.
    """
    opened = harmed(HARMS["rotten"], suffixes=())
    assert isinstance(opened.disk, MemoryDisk)
    segment = opened.segments[0]
    ends = [(position + header.size_bytes, header.next_offset) for position, header in segment.headers(0)]
    at = next(at for at, (_, next_offset) in enumerate(ends) if next_offset > 5_000)
    before = segment.offset_after(ends[at][0])
    assert before >= ends[at][1]
    data = opened.disk.files[segment.path(OFFSET_SUFFIX)].data
    data[:] = bytes(len(data))
    assert asked(partial(segment.offset_after, ends[at][0])) >= ends[at][1]


@pytest.mark.parametrize("lost", range(12, 12 * 40, 12))
def test_a_time_index_that_has_lost_entries_at_its_end_is_not_believed(lost: int) -> None:
    """Retention took records of now for old ones, and a search by time passed over records."""
    opened = harmed(change(lambda data: data[:-lost]), suffixes=(TIME_SUFFIX,))
    assert isinstance(opened.disk, MemoryDisk)
    again, _ = open_log(opened.disk, config=CONFIG, recovery_point=BATCHES)
    last = again.segments[1].base_offset - 1
    assert (again.segments[0].largest_timestamp, again.segments[0].largest_timestamp_offset) == (1000 + last, last)
    found, _ = asked(partial(opened.segments[0].search_timestamp, 1000 + last, 0, 500))
    assert found[1].base_offset == last


def test_records_without_times_have_a_whole_time_index() -> None:
    disk = MemoryDisk()
    log, _ = open_log(disk, config=LogConfig(segment_bytes=70_000))
    for offset in range(2000):
        append(log, stamped([b"x"], base_offset=offset, timestamp=-1))
    sealed = log.segments[0]
    sealed.close()
    with counted() as seen:
        assert (len(sealed.times), len(sealed.offsets) > 1) == (0, True)
    assert seen == [0], "nothing is rebuilt"


# ---------------------------------------------------------------- what may come between two steps


def half_way(segment: Segment) -> Generator[None, None, None]:
    """The indexes of the segment are being rebuilt."""
    with pytest.raises(IndexesLost):
        _ = segment.offsets
    steps = segment.rebuilding()
    next(steps)
    return steps


def test_the_segment_may_be_removed_meanwhile() -> None:
    opened = harmed(missing)
    segment = opened.segments[0]
    steps = half_way(segment)
    segment.remove()
    assert list(steps) == []
    assert isinstance(opened.disk, MemoryDisk)
    assert segment.path(OFFSET_SUFFIX) not in opened.disk.files
    assert segment._file is None, "nothing is left open"


def test_the_log_may_be_discarded_meanwhile() -> None:
    opened = harmed(missing)
    steps = half_way(opened.segments[0])
    asyncio.run(opened.discard())
    assert list(steps) == []
    assert isinstance(opened.disk, MemoryDisk)
    assert not opened.disk.files


def test_the_segment_may_be_closed_meanwhile() -> None:
    """As when the log moves to another folder, or compacted segments take its place."""
    opened = harmed(missing)
    segment = opened.segments[0]
    steps = half_way(segment)
    segment.close()
    assert list(steps) == []
    assert segment._file is None
    assert base_of(asked(lambda: _read(opened, 5_000))) == 5_000


def test_two_who_rebuild_the_same_do_not_end_each_other() -> None:
    opened = harmed(missing)
    segment = opened.segments[0]
    steps = half_way(segment)
    assert list(segment.rebuilding()) == []
    assert list(steps)
    assert base_of(_read(opened, 5_000)) == 5_000


def test_a_rebuild_that_is_given_up_may_be_begun_again() -> None:
    opened = harmed(missing)
    steps = half_way(opened.segments[0])
    steps.close()
    assert base_of(asked(lambda: _read(opened, 5_000))) == 5_000


@pytest.mark.parametrize("segment", [0, 1])
def test_a_cut_waits_for_the_indexes(segment: int) -> None:
    opened = harmed(missing, segment=segment)
    steps = half_way(opened.segments[segment])
    offset = opened.segments[segment].base_offset + 1_000
    end = opened.end_offset
    with pytest.raises(IndexesLost):
        cut_log(opened, offset)
    assert opened.end_offset == end, "nothing is taken back"
    for _ in steps:
        pass
    cut_log(opened, offset)
    assert opened.end_offset == offset
    fill(opened, 10, size=0)
    assert base_offsets(opened) == list(range(offset + 10))


def test_a_log_may_be_restarted_meanwhile() -> None:
    opened = harmed(missing)
    steps = half_way(opened.segments[0])
    restart_log(opened, 0)
    fill(opened, 10)
    assert list(steps) == []
    assert base_offsets(opened) == list(range(10))


def test_a_batch_that_has_rotted_is_told_to_those_who_come_to_it() -> None:
    """Those before it are served, and the segment is not taken for older than it is."""
    opened = harmed(missing)
    disk, segment = opened.disk, opened.segments[0]
    assert isinstance(disk, MemoryDisk)
    position = [position for position, _ in segment.headers(0)][4_000]
    largest = segment.largest_timestamp
    disk.files[segment.path()].data[position + 16] ^= 0x40
    segment.close()
    steps = half_way(segment)
    with pytest.raises(CorruptBatch):
        list(steps)
    with counted() as seen:
        assert base_of(_read(opened, 3_000)) == 3_000
        for offset in (4_000, 5_000):
            with pytest.raises(CorruptBatch):
                _read(opened, offset)
    assert seen[0] < 500
    assert segment.largest_timestamp == largest


def test_a_disk_that_can_not_be_read_now_leaves_them_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = harmed(missing)
    segment = opened.segments[0]
    steps = half_way(segment)
    with monkeypatch.context() as patched:
        patched.setattr("tests.log.memory_disk.MemoryFile.pread", _unreadable)
        with pytest.raises(DiskFault):
            list(steps)
    with pytest.raises(DiskFault, match="injected"):
        _read(opened, 5_000)
    assert base_of(asked(lambda: _read(opened, 5_000))) == 5_000


def test_a_writer_is_told_for_ever_that_the_disk_has_failed() -> None:
    """It was told to come again, for ever, so that its partition was never taken out of service."""
    opened = harmed(missing, segment=1, suffixes=(LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX))
    with pytest.raises(DiskFault, match="the file is gone"):
        list(half_way(opened.segments[1]))
    for _ in range(3):
        with pytest.raises(DiskFault, match="the file is gone") as told:
            append(opened, stamped([b"x"], base_offset=opened.end_offset))
        assert not told.value.passing


def _unreadable(*arguments: object) -> bytes:
    raise DiskFault(5, "injected")


def test_what_a_stop_has_stored_is_not_taken_for_indexes_without_a_wrong_entry() -> None:
    opened = harmed(HARMS["rotten"], suffixes=())
    segment = opened.segments[1]
    offsets = segment.offsets
    count = len(offsets)
    offsets._values[10] += 1  # type: ignore[attr-defined]
    key, _ = offsets.entry(10)
    _read(opened, segment.base_offset + key + 1)
    assert len(segment.offsets) == count - 1
    while len(segment.offsets) < count:
        fill(opened, 1, size=0)
    state = asyncio.run(opened.close())
    again, _ = open_log(opened.disk, config=CONFIG, known=state)
    assert again.segments[1].offsets.entry(count - 1) == offsets.entry(count - 1)


def test_wrong_entries_that_a_cut_has_left_are_dropped() -> None:
    """They come from the files of a sealed segment, which is written to again."""
    opened = harmed(HARMS["rotten"], suffixes=())
    segment = opened.segments[0]
    _read(opened, 5_000)
    cut_log(opened, segment.base_offset + 5_000)
    offsets = segment.offsets
    count = len(offsets)
    for slot in (10, 11, 12):
        offsets._values[slot] += 1  # type: ignore[attr-defined]
    key, _ = offsets.entry(12)
    with counted() as seen:
        assert base_of(_read(opened, key + 1)) == key + 1
    assert seen[0] < 500
    assert len(segment.offsets) == count - 3
