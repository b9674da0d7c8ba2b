"""Two folders of one partition: which of them holds all. Method: logs are copied, changed and harmed by hand."""

import asyncio
import copy
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from log.batch import Record, build_batch, read_header
from log.checkpoints import CLEANED_OFFSET, DAMAGED_OFFSET, GAPS_OFFSET, START_OFFSET, write_offset
from log.config import LogConfig
from log.disk import DiskFault
from log.partition_log import PartitionLog
from log.removal import raise_start_offset
from log.swap import PLAN
from log.twins import Twin, fullest
from log.twins import is_part as is_part_if
from tests.log.building import FOLDER, append, cut_log, fill, open_log, restart_log, stamped
from tests.log.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)
BATCHES = 20


def written(count: int = BATCHES, *, leader_epoch: int = 0) -> tuple[MemoryDisk, PartitionLog]:
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, count, leader_epoch=leader_epoch)
    asyncio.run(log.flush())
    return disk, log


def twin(disk: MemoryDisk, recovery_point: int = 0) -> Twin:
    return Twin(disk, FOLDER, recovery_point)


is_part = partial(is_part_if, was_away=True)


def bytes_of(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: bytes(node.data) for path, node in disk.files.items()}


def last_segment(disk: MemoryDisk) -> str:
    return max(path for path in disk.files if path.endswith(".log"))


def shorter(count: int) -> Callable[[PartitionLog], object]:
    return lambda log: cut_log(log, count)


def written_anew(log: PartitionLog) -> None:
    """From some offset on, by another leader."""
    cut_log(log, 12)
    fill(log, 2, leader_epoch=1)


def written_anew_in_the_same_epoch(log: PartitionLog) -> None:
    cut_log(log, 12)
    append(log, stamped([b"something else"], base_offset=12))


def begun_anew_and_alike_at_its_end(log: PartitionLog) -> None:
    """No epoch tells it: the last batch stands in both."""
    restart_log(log, 0)
    append(log, stamped([b"something else"], base_offset=0))
    fill(log, 4)


@pytest.mark.parametrize(
    ("change", "is_in"),
    [
        (shorter(BATCHES), True),
        (shorter(12), True),
        (shorter(1), True),
        (shorter(0), True),
        (written_anew, False),
        (written_anew_in_the_same_epoch, False),
        (begun_anew_and_alike_at_its_end, False),
        (lambda log: fill(log, 1), False),
        (lambda log: restart_log(log, BATCHES), True),
        (lambda log: restart_log(log, BATCHES + 1), False),
    ],
    ids=[
        *("the same", "shorter", "one batch", "no batch", "another leader", "the same epoch", "only the end", "longer"),
        *("empty, and ends where the other one does", "empty, and ends later"),
    ],
)
def test_a_log_is_a_part_of_another_one_or_not(change: Callable[[PartitionLog], object], is_in: bool) -> None:
    disk, _ = written()
    other = copy.deepcopy(disk)
    log, _ = open_log(other, config=SMALL)
    change(log)
    asyncio.run(log.flush())
    assert is_part(twin(other), twin(disk)) is is_in
    assert twin(other).end_offset == log.end_offset
    if log.end_offset > BATCHES and log.start_offset == 0:
        assert is_part(twin(disk), twin(other))


def test_only_the_later_of_two_logs_is_a_part_of_none() -> None:
    disk, _ = written(3)
    ends_later, _ = written(8)
    first, second = twin(disk), twin(ends_later)
    assert fullest([first, second]) is fullest([second, first]) is second


def test_of_equal_logs_that_is_taken_of_which_more_is_known_to_be_durable() -> None:
    disk, _ = written()
    twins = [twin(disk), twin(disk, 7), twin(disk, 7)]
    assert fullest(twins) is twins[1]


def test_a_torn_tail_is_no_batch() -> None:
    disk, _ = written()
    torn = copy.deepcopy(disk)
    del torn.files[last_segment(torn)].data[-5:]
    before = bytes_of(torn)
    assert is_part(twin(torn), twin(disk))
    assert bytes_of(torn) == before
    assert twin(torn).end_offset == BATCHES - 1


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_lacks_what_was_durable_is_not_judged(is_whole: bool) -> None:
    disk, _ = written()
    torn = copy.deepcopy(disk)
    del torn.files[last_segment(torn)].data[-5:]
    point = BATCHES - 1 if is_whole else BATCHES
    found = twin(torn, point)
    assert is_part(found, twin(disk)) is is_whole
    assert str(found) == "offsets 0 to 18" + ("" if is_whole else "; it had offsets up to 19 once")


def test_what_a_read_has_found_damaged_is_not_judged() -> None:
    disk, _ = written()
    damaged = copy.deepcopy(disk)
    asyncio.run(write_offset(damaged, FOLDER, DAMAGED_OFFSET, 5))
    assert not is_part(twin(damaged), twin(disk))
    assert not is_part(twin(disk), twin(damaged))


def test_what_compaction_was_changing_by_a_plan_that_is_not_readable_is_not_judged() -> None:
    disk, _ = written()
    changing = copy.deepcopy(disk)
    asyncio.run(changing.write_atomic(f"{FOLDER}/{PLAN}", b"{}"))
    assert not is_part(twin(changing), twin(disk))


def test_a_log_that_starts_above_all_that_stands_in_it_is_not_judged() -> None:
    """A restart was interrupted, or the file of its start has rotted: a recovery removes all batches."""
    disk, _ = written()
    beyond, _ = written()
    asyncio.run(write_offset(beyond, FOLDER, START_OFFSET, BATCHES + 1))
    assert str(twin(beyond)) == "nothing, and ends at offset 21; it starts above all that stands in it"
    assert not is_part(twin(disk), twin(beyond))
    assert not is_part(twin(beyond), twin(disk))


def test_what_was_deleted_in_a_log_without_a_batch_need_not_be_what_the_other_one_holds() -> None:
    """It would be deleted there, too."""
    disk, _ = written()
    empty, log = written()
    restart_log(log, BATCHES)
    assert is_part(twin(empty), twin(disk))
    asyncio.run(write_offset(empty, FOLDER, START_OFFSET, BATCHES))
    assert not is_part(twin(empty), twin(disk))
    asyncio.run(write_offset(disk, FOLDER, START_OFFSET, BATCHES))
    assert is_part(twin(empty), twin(disk)), "it is deleted there already"


@pytest.mark.parametrize(
    "name", ["5.log", "300.log", "\N{SUPERSCRIPT TWO}.log", "\N{ARABIC-INDIC DIGIT THREE}.log", "x.log"]
)
def test_what_has_a_file_that_is_nearly_called_like_a_segment_is_not_judged(name: str) -> None:
    disk, _ = written()
    strange = copy.deepcopy(disk)
    strange.open(f"{FOLDER}/{name}", create=True).close()
    assert not is_part(twin(strange), twin(disk))
    assert not is_part(twin(disk), twin(strange))


def test_what_cannot_be_read_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _ = written()
    readable, bad = twin(disk), copy.deepcopy(disk)

    def fails(*_: object, **__: object) -> None:
        raise DiskFault(5, "Input/output error", "")

    seen = twin(bad)
    monkeypatch.setattr(bad, "open", fails)
    assert not is_part(seen, readable)
    assert "it can't be read: Input/output error" in str(twin(bad))
    assert not is_part(twin(bad), readable)


def compacted(removed: range, cleaned: int) -> MemoryDisk:
    """`written()` after a pass that removed these batches."""
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    for offset in range(BATCHES):
        if offset not in removed:
            value = b"%d" % offset + bytes(100)
            batch = stamped([value], base_offset=offset, timestamp=1000 + offset)
            header = read_header(batch)
            log.append_after_gap(batch, header, now_ms=0)
    asyncio.run(log.flush())
    asyncio.run(write_offset(disk, FOLDER, CLEANED_OFFSET, cleaned))
    return disk


def test_a_batch_that_compaction_removed_may_be_missing_unless_it_is_the_last_one() -> None:
    whole = twin(compacted(range(3, 9), 10))
    assert whole.doubt == ""
    assert whole.end_offset == BATCHES
    assert [batch.base_offset for batch in whole.batches()] == [0, 1, 2, *range(9, BATCHES)]
    for count in range(1, BATCHES):
        assert is_part(twin(written(count)[0]), whole) is (count - 1 not in range(3, 9)), count
    assert is_part(whole, twin(written()[0]))


def of_pairs(last: Sequence[tuple[int, bytes]], *more: bytes, leader_epoch: int = 0) -> MemoryDisk:
    """Batches of two records each; the last one has only these records any more, each with its number in the batch.
    None at all: it was compacted away. Then come `more`.
    """
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    fill(log, 3, records=2)
    if last:
        records = [Record(6 + delta, 1006 + delta, b"key", value, ()) for delta, value in last]
        append(log, bytearray(build_batch(records, base_offset=6, leader_epoch=leader_epoch)))
    for number, value in enumerate(more):
        batch = stamped([value], base_offset=8 + number, leader_epoch=leader_epoch)
        log.append_after_gap(batch, read_header(batch), now_ms=0)
    asyncio.run(log.flush())
    return disk


@pytest.mark.parametrize(
    ("left", "epoch", "is_in"),
    [
        ([(0, b"a"), (1, b"b")], 0, True),
        ([(1, b"b")], 0, True),
        ([(1, b"c")], 0, False),
        ([(0, b"b"), (1, b"b")], 0, False),
        ([(1, b"b")], 1, False),
        ([], 0, None),
    ],
    ids=["all", "one record", "another record", "another record beside it", "another leader's", "nothing"],
)
@pytest.mark.parametrize("was_away", [True, False])
def test_what_compaction_has_left_of_the_last_batch_tells_that_it_was_there(
    left: Sequence[tuple[int, bytes]], epoch: int, is_in: bool | None, was_away: bool
) -> None:
    """Found by the simulation: the copy was compacted after the move, and the start was refused."""
    former = twin(of_pairs([(0, b"a"), (1, b"b")]))
    disk = of_pairs(left, b"more", leader_epoch=epoch)
    asyncio.run(write_offset(disk, FOLDER, CLEANED_OFFSET, 9))
    asyncio.run(write_offset(disk, FOLDER, GAPS_OFFSET, 8))
    copied = twin(disk)
    assert (former.end_offset, copied.end_offset, copied.doubt) == (8, 9, "")
    assert is_part_if(former, copied, was_away=was_away) is (not was_away if is_in is None else is_in)
    asyncio.run(write_offset(disk, FOLDER, GAPS_OFFSET, 7))
    assert is_part_if(former, twin(disk), was_away=was_away) is bool(is_in), "no copy of all that is in the other one"


def test_a_log_may_end_in_a_gap_that_was_durable() -> None:
    disk, log = written()
    log.end_offset = 30
    log.start_segment(0)
    asyncio.run(log.flush())
    asyncio.run(write_offset(disk, FOLDER, GAPS_OFFSET, 30))
    assert (twin(disk).end_offset, twin(disk).doubt) == (30, "")
    assert not is_part(twin(disk), twin(written()[0]))


def test_what_was_deleted_is_known() -> None:
    disk, log = written()
    asyncio.run(raise_start_offset(log, 7))
    found = twin(disk)
    assert (found.kept_start, found.start_offset, str(found)) == (7, 7, "offsets 7 to 19")
    assert is_part(twin(disk), twin(written()[0]))


@pytest.mark.parametrize("seed", range(150))
def test_a_twin_ends_where_a_recovery_would_let_it_end(seed: int) -> None:
    chance = random.Random(seed)
    disk = MemoryDisk()
    log, _ = open_log(disk, config=SMALL)
    for epoch in range(chance.randint(1, 4)):
        fill(log, chance.randint(1, 9), leader_epoch=epoch, records=chance.randint(1, 3))
    asyncio.run(log.flush())
    logs = [path for path, node in disk.files.items() if path.endswith(".log") and node.data]
    for path in chance.sample(logs, min(len(logs), chance.randint(0, 2))):
        data = disk.files[path].data
        if chance.random() < 0.5:
            del data[chance.randrange(len(data)) :]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    before = bytes_of(disk)
    point = chance.choice((0, 0, log.end_offset // 2))
    found = twin(disk, point)
    assert bytes_of(disk) == before
    recovered, _ = open_log(disk, config=SMALL, recovery_point=point)
    if found.doubt:  # a recovery may not see it: it does not read all that is below the recovery point
        assert found.end_offset < point
        return
    assert not recovered.damage
    assert (found.start_offset, found.end_offset) == (recovered.start_offset, recovered.end_offset)
    batches = [(header.base_offset, header.crc) for header, _ in recovered.scan(0)]
    assert [(each.base_offset, each.crc) for each in found.batches()] == batches
