"""From any folder after any crash: torn tails, bit rot, lost files. Method: damage bytes by hand, open, compare."""

import asyncio
import copy
import random

import pytest

from idempotence.producers import ProducerStates
from isolation.stable import StableOffsets
from log.batch import HEADER_BYTES, PRODUCER_AT, CorruptBatch, build_batch
from log.config import LogConfig
from log.control import ControlType, build_marker
from log.partition_log import PartitionLog
from log.removal import raise_start_offset
from log.segment import OFFSET_SUFFIX, TIME_SUFFIX
from log.swap import CLEANED, PLAN
from log.time_search import max_timestamp, offset_for_timestamp
from tests.log.building import FOLDER, append, base_offsets, contents, cut_log, fill, open_batch, open_log, stamped
from tests.log.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def written(count: int = 20, config: LogConfig = SMALL) -> tuple[MemoryDisk, PartitionLog]:
    disk = MemoryDisk()
    log, _ = open_log(disk, config=config)
    fill(log, count)
    asyncio.run(log.flush())
    return disk, log


def written_by_four_leaders() -> tuple[MemoryDisk, PartitionLog]:
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    for epoch in range(1, 5):
        fill(log, 7, leader_epoch=epoch)
    asyncio.run(log.flush())
    return disk, log


def flip(disk: MemoryDisk, path: str, position: int) -> None:
    disk.files[path].data[position] ^= 0x40


def cut(disk: MemoryDisk, path: str, size: int) -> None:
    del disk.files[path].data[size:]


def test_a_whole_log_is_found_whole() -> None:
    disk, log = written()
    again, view = open_log(disk, config=SMALL)
    assert contents(again) == contents(log) == view.seen
    assert again.recovery is not None
    assert (again.recovery.cut_bytes, again.recovery.damage) == (0, [])
    assert again.flushed_offset == 0, "nobody knows yet what of it is durable"
    assert asyncio.run(again.flush()) == 20


@pytest.mark.parametrize("missing", [1, 10, 100])
def test_a_torn_tail_is_cut_and_reported(missing: int) -> None:
    disk, log = written()
    last = log.segments[-1]
    cut(disk, last.path(), last.size_bytes - missing)
    again, view = open_log(disk, config=SMALL)
    assert base_offsets(again) == list(range(19))
    assert view.seen == contents(again)
    report = again.recovery
    assert report is not None
    assert (report.cut_offset, report.damage) == (19, [])
    assert report.cut_bytes == last.size_bytes - missing - again.segments[-1].size_bytes
    assert "ends inside" in report.cut_reason
    fill(again, 1, leader_epoch=1)
    assert base_offsets(again) == list(range(20))


def test_zeros_at_the_end_are_cut() -> None:
    disk, log = written()
    disk.files[log.segments[-1].path()].data.extend(bytes(5000))
    again, _ = open_log(disk, config=SMALL)
    assert again.end_offset == 20
    assert again.recovery is not None
    assert again.recovery.cut_bytes == 5000


def test_a_bad_batch_in_an_undurable_segment_takes_all_that_follows() -> None:
    disk, log = written()
    second = log.segments[1]
    flip(disk, second.path(), 70)
    again, view = open_log(disk, config=SMALL)
    assert again.end_offset == second.base_offset
    assert view.seen == contents(again)
    assert again.recovery is not None
    assert again.recovery.cut_reason == "wrong checksum"
    assert again.recovery.cut_bytes == sum(segment.size_bytes for segment in log.segments[1:])
    names = disk.listdir(FOLDER)
    assert not [name for name in names if name.startswith(f"{log.segments[2].base_offset:020}.log")]
    fill(again, 5, leader_epoch=1)
    asyncio.run(again.flush())
    assert base_offsets(open_log(disk, config=SMALL)[0]) == base_offsets(again)


def test_a_lost_segment_ends_the_log_before_it() -> None:
    disk, log = written()
    del disk.files[log.segments[1].path()]
    again, _ = open_log(disk, config=SMALL)
    assert again.end_offset == log.segments[1].base_offset
    assert again.recovery is not None
    assert "does not follow" in again.recovery.cut_reason


def test_batches_of_an_older_leader_are_not_taken_for_new_ones() -> None:
    """Bytes of a tail that was cut once can come back behind newer ones; their checksums are right."""
    disk, log = written(4, LogConfig())
    stale = disk.files[log.segments[0].path()].data[:]
    cut_log(log, 2)
    fill(log, 1, leader_epoch=7)
    position = log.segments[0].size_bytes
    disk.files[log.segments[0].path()].data[position:] = stale[position:]
    again, _ = open_log(disk)
    assert again.end_offset == 3
    assert again.recovery is not None
    assert "leader epoch 0 after 7" in again.recovery.cut_reason


def test_a_right_batch_at_a_wrong_offset_ends_the_log() -> None:
    """Offsets above what is durable have no gaps and no repetitions."""
    for stray in (1, 5, 100):
        disk, log = written(4, LogConfig())
        disk.open(log.segments[0].path()).append([stamped([b"x"], base_offset=stray)])
        again, _ = open_log(disk)
        assert again.end_offset == 4
        assert again.recovery is not None
        assert "where 4 was due" in again.recovery.cut_reason


def test_rot_in_durable_bytes_is_reported_and_nothing_is_cut() -> None:
    disk, log = written(5, LogConfig())
    size = log.segments[0].size_bytes
    flip(disk, log.segments[0].path(), 2 * size // 5 + 70)
    again, view = open_log(disk, recovery_point=5)
    assert again.end_offset == 5
    assert disk.files[log.segments[0].path()].data[size - 1 : size]
    (damage,) = again.damage
    assert (damage.segment, damage.first_offset, damage.end_offset, damage.reason) == (0, 2, 3, "wrong checksum")
    assert [base for base, _ in view.seen] == [0, 1, 3, 4]
    assert asyncio.run(again.close()) is None, "the next start must look again"


def test_a_ruined_header_is_stepped_over_to_the_next_right_batch() -> None:
    disk, log = written(6, LogConfig())
    size = log.segments[0].size_bytes // 6
    disk.files[log.segments[0].path()].data[size : size + 61] = bytes(61)
    again, _ = open_log(disk, recovery_point=6)
    (damage,) = again.damage
    assert (damage.position, damage.size_bytes, damage.first_offset, damage.end_offset) == (size, size, 1, 2)
    assert again.end_offset == 6


def test_rot_below_and_a_torn_tail_above_the_recovery_point_are_told_apart() -> None:
    disk, log = written(6, LogConfig())
    size = log.segments[0].size_bytes // 6
    flip(disk, log.segments[0].path(), size + 70)
    flip(disk, log.segments[0].path(), 5 * size + 70)
    again, _ = open_log(disk, recovery_point=4)
    assert again.end_offset == 5
    assert [damage.first_offset for damage in again.damage] == [1]
    assert again.recovery is not None
    assert again.recovery.cut_offset == 5


@pytest.mark.parametrize("left", [0, 100, 500])
def test_missing_durable_batches_are_damage_and_their_offsets_are_not_given_again(left: int) -> None:
    disk, log = written(5, LogConfig())
    cut(disk, log.segments[0].path(), left)
    again, _ = open_log(disk, recovery_point=5)
    assert again.end_offset == 5
    assert again.damage[-1].end_offset == 5


def test_a_batch_whose_offset_its_segment_cant_hold_is_damage() -> None:
    """The checksum does not cover the offset. Its index entry would have no room for the distance from the segment's
    first offset, and the log could not be opened.
    """
    disk, log = written(5, LogConfig())
    segment = log.segments[0]
    position = segment.position_of(2)
    disk.files[segment.path()].data[position : position + 8] = (2 + 2**40).to_bytes(8, "big")
    again, view = open_log(disk, config=LogConfig(index_interval_bytes=0), recovery_point=2**41)
    damage, _ = again.damage
    assert (damage.first_offset, damage.end_offset) == (2, 3)
    assert damage.reason == f"offset {2 + 2**40} where 2 was due"
    assert [base for base, _ in view.seen] == [0, 1, 3, 4]


@pytest.mark.parametrize("rotten", [0, 2**40])
def test_views_are_given_no_batch_out_of_order(rotten: int) -> None:
    """Without snapshots they are given what stands below the recovery point, too. A view may raise at such a batch, and
    then the broker could not start.
    """
    disk, log = written()
    second = log.segments[1]
    position = second.position_of(second.base_offset + 1)
    for name in [name for name in disk.files if name.endswith(".snapshot")]:
        del disk.files[name]
    disk.files[second.path()].data[position : position + 8] = rotten.to_bytes(8, "big")
    again, view = open_log(disk, config=SMALL, recovery_point=20)
    assert [base for base, _ in view.seen] == sorted({base for base, _ in view.seen})
    assert f"offsets {rotten} to {rotten} stand in the segment {second.base_offset}" in again.damage[0].reason


def test_a_missing_last_segment_below_the_recovery_point_is_damage() -> None:
    disk, log = written()
    gone = log.segments[-1]
    for suffix in (".log", OFFSET_SUFFIX, TIME_SUFFIX):
        disk.files.pop(gone.path(suffix), None)
    again, _ = open_log(disk, config=SMALL, recovery_point=20)
    assert again.end_offset == 20
    assert again.damage[-1].first_offset == gone.base_offset


def test_a_segment_without_indexes_whose_headers_have_rotted_is_damage() -> None:
    """The indexes can't be built from it: a broker with such a log could not start."""
    disk, log = written()
    second = log.segments[1]
    for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
        del disk.files[second.path(suffix)]
    disk.files[second.path()].data[16] ^= 0x80
    again, _ = open_log(disk, config=SMALL, recovery_point=20)
    assert again.damage[0][:1] == (second.base_offset,)
    assert "magic" in again.damage[0].reason


@pytest.mark.parametrize("lost", [(), (OFFSET_SUFFIX,), (TIME_SUFFIX,), (OFFSET_SUFFIX, TIME_SUFFIX)])
@pytest.mark.parametrize(("byte", "bit"), [(0, 0x80), (3, 1), (6, 1), (7, 1), (7, 0x40)])
def test_a_base_offset_that_has_rotted_is_damage_or_not_looked_at(byte: int, bit: int, lost: tuple[str, ...]) -> None:
    """No checksum covers it. Where an index had no room for the offset, the log was not opened."""
    disk, log = written(60, LogConfig(segment_bytes=2_000, index_interval_bytes=200))
    segment = log.segments[0]
    found = 0
    for position, _ in list(segment.headers(0)):
        rotten = copy.deepcopy(disk)
        rotten.files[segment.path()].data[position + byte] ^= bit
        for suffix in lost:
            del rotten.files[segment.path(suffix)]
        again, _ = open_log(rotten, config=SMALL, recovery_point=60)
        if again.damage:
            assert {damage.segment for damage in again.damage} == {0}
            found += 1
        with pytest.raises(CorruptBatch):
            for _ in again.scan(0):
                pass
        with pytest.raises(CorruptBatch):
            again.segments[0].rebuild_indexes()
    assert found or not lost, "without an index every header is read"


def test_segments_below_the_recovery_point_are_not_read() -> None:
    disk, log = written()
    again, view = open_log(disk, config=SMALL, recovery_point=20)
    report = again.recovery
    assert report is not None
    assert report.scanned_bytes == log.segments[-1].size_bytes
    assert report.replayed_from_offset == log.segments[-1].base_offset
    assert view.seen == contents(again)
    assert again.flushed_offset == 20


@pytest.mark.parametrize("at", [PRODUCER_AT, *range(HEADER_BYTES, HEADER_BYTES + 14)])
def test_a_marker_that_has_rotted_is_damage_where_the_views_must_see_it(at: int) -> None:
    """Their snapshots are lost. The folds raised, and the broker did not start."""

    def opened(disk: MemoryDisk) -> tuple[PartitionLog, StableOffsets]:
        stable = StableOffsets()
        views = (ProducerStates(stable.open_transactions), stable)
        return PartitionLog.open(disk, FOLDER, SMALL, views, known=None, now_ms=0, recovery_point=21), stable

    disk = MemoryDisk()
    log, stable = opened(disk)
    append(log, bytearray(build_batch([(None, b"v", (), 1)], producer_id=7, producer_epoch=0, transactional=True)))
    marker = build_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1, base_offset=1
    )
    position = log.size_bytes
    append(log, marker)
    fill(log, 19)
    assert not stable.open_transactions
    asyncio.run(log.flush())
    for path in [path for path in disk.files if path.endswith(".snapshot")]:
        del disk.files[path]
    assert not opened(copy.deepcopy(disk))[0].damage
    flip(disk, log.segments[0].path(), position + at)
    again, _ = opened(disk)
    assert [damage.segment for damage in again.damage] == [0]


def test_a_segment_that_reaches_into_the_next_one_is_damage() -> None:
    disk, log = written()
    first, second, *_ = log.segments
    disk.files[first.path()].data += disk.files[second.path()].data
    again, _ = open_log(disk, config=SMALL, recovery_point=20)
    (damage,) = again.damage
    assert (damage.segment, damage.first_offset) == (0, 0)
    assert f"stand in the segment {first.base_offset}" in damage.reason


@pytest.mark.parametrize("plan", [b"", b"{}", b'{"add": 1, "remove": [], "cleaned_offset": 0}'])
def test_a_log_whose_plan_of_a_swap_cant_be_read_is_damaged_and_keeps_its_files(plan: bytes) -> None:
    disk, log = written()
    for path, data in ((f"{FOLDER}/{PLAN}", plan), (log.segments[0].path() + CLEANED, b"maybe the log's")):
        disk.open(path, create=True).append([data])
    before = sorted(disk.listdir(FOLDER))
    again, _ = open_log(disk, config=SMALL, recovery_point=20)
    (damage,) = again.damage
    assert (damage.first_offset, damage.end_offset, damage.reason) == (0, 20, f"{PLAN} can't be read")
    assert sorted(disk.listdir(FOLDER)) == before


@pytest.mark.parametrize("damage", ["gone", "noise", "zeros"])
@pytest.mark.parametrize("suffix", [OFFSET_SUFFIX, TIME_SUFFIX])
def test_indexes_are_hints(suffix: str, damage: str) -> None:
    """Lost, or full of nonsense: every offset and every time is found all the same."""
    disk, log = written(40)
    for segment in log.segments[:-1]:
        path = segment.path(suffix)
        size = len(disk.files[path].data)
        if damage == "gone":
            del disk.files[path]
        else:
            disk.files[path].data[:] = bytes(size) if damage == "zeros" else b"\x00\x00\x00\x01" * (size // 4)
    again, _ = open_log(disk, config=SMALL, recovery_point=40)
    for offset in range(40):
        found = again.read(offset, max_bytes=1, limit_offset=40, at_least_one=True)
        assert found is not None
        assert found.read()[:8] == offset.to_bytes(8, "big")
        by_time = asyncio.run(offset_for_timestamp(again, 1000 + offset, 40, open_batch))
        assert by_time is not None
        assert by_time.offset == offset
    assert asyncio.run(max_timestamp(again, 40, open_batch)) == (39, 1039, 0)


def test_epochs_are_found_again_without_their_checkpoint() -> None:
    disk, log = written_by_four_leaders()
    expected = [(1, 0), (2, 7), (3, 14), (4, 21)]
    assert log.epochs.entries() == expected
    for recovery_point in (0, 10, 28):
        assert open_log(disk, config=SMALL, recovery_point=recovery_point)[0].epochs.entries() == expected
    disk.files[f"{FOLDER}/leader-epoch-checkpoint"].data[:] = b"nonsense"
    assert open_log(disk, config=SMALL, recovery_point=28)[0].epochs.entries() == expected


def test_epochs_are_found_again_when_a_later_start_was_written_for_them_only() -> None:
    """Records are deleted, the epochs are written, and the power goes before the start itself is on the disk."""
    disk, _ = written_by_four_leaders()
    before = bytes(disk.files[f"{FOLDER}/leader-epoch-checkpoint"].data)
    disk.files[f"{FOLDER}/leader-epoch-checkpoint"].data[:] = b"0\n4\n1 3\n2 7\n3 14\n4 21\n"
    again, _ = open_log(disk, config=SMALL, recovery_point=28)
    assert again.epochs.to_text() == before
    asyncio.run(raise_start_offset(again, 3))
    asyncio.run(again.flush())
    assert open_log(disk, config=SMALL, recovery_point=28)[0].epochs.entries() == [(1, 3), (2, 7), (3, 14), (4, 21)]


def test_leftovers_of_interrupted_writes_are_swept_away() -> None:
    disk, _ = written()
    for name in ("leader-epoch-checkpoint.tmp", f"{99:020}.index", f"{99:020}.timeindex", f"{0:020}.log.cleaned"):
        disk.open(f"{FOLDER}/{name}", create=True)
    disk.open(f"{FOLDER}/somebody-elses-notes", create=True)
    open_log(disk, config=SMALL)
    names = disk.listdir(FOLDER)
    assert "somebody-elses-notes" in names
    assert not [name for name in names if name.endswith((".tmp", ".cleaned")) or name.startswith(f"{99:020}")]


def test_a_start_above_everything_that_survived_moves_the_log_there() -> None:
    """Records were deleted up to an offset whose own bytes the power cut took."""
    disk, log = written()
    asyncio.run(raise_start_offset(log, 20))
    for segment in log.segments:
        disk.files[segment.path()].data.clear()
    again, _ = open_log(disk, config=SMALL)
    assert (again.start_offset, again.end_offset) == (20, 20)
    fill(again, 1, leader_epoch=1)
    assert base_offsets(again) == [20]


def test_a_folder_made_right_before_a_kill_is_made_durable_by_the_next_life() -> None:
    """Its files can be synced and read although its own name in the data folder never was."""
    for seed in range(20):
        disk = MemoryDisk()
        log, _ = open_log(disk, config=SMALL)
        fill(log, 3)  # and killed, before any flush
        again, _ = open_log(disk, config=SMALL)
        assert asyncio.run(again.flush()) == 3
        disk.cut_power(random.Random(seed))
        assert open_log(disk, config=SMALL)[0].end_offset == 3


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_the_views_know_a_whole_history_or_none(seed: int) -> None:
    """A log was cut back to its raised start, and power goes before that is durable. Some of the old files are back."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, 20)
    asyncio.run(log.flush())
    asyncio.run(raise_start_offset(log, 20))
    fill(log, 2)
    cut_log(log, 20)
    fill(log, 1, leader_epoch=1)
    for _ in range(2):
        disk.cut_power(random.Random(seed))
        log, view = open_log(disk, config=SMALL)
        seen = [base for base, _ in view.seen]
        assert seen in ([], [20], list(range(22)), list(range(21)), list(range(20)))
        assert log.start_offset == 20
