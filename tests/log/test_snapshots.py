import asyncio
from itertools import pairwise

import pytest

from log.epochs import LeaderEpochs
from log.snapshots import (
    BadSnapshot,
    Snapshot,
    Snapshots,
    decode_snapshot,
    encode_snapshot,
    encoding,
    restoring_newest,
    snapshot_name,
    superfluous,
)
from log.steps import done_at_once
from tests.log.building import SeenBatches
from tests.log.memory_disk import MemoryDisk

SNAPSHOT = Snapshot(1500, 4, {"producers": b"\x00\x01", "stable": b""})


def test_a_snapshot_survives_its_bytes() -> None:
    assert decode_snapshot(bytes(encode_snapshot(SNAPSHOT))) == SNAPSHOT


def test_parts_are_put_together_in_steps_of_bounded_size() -> None:
    some, more = [b"some"] * 5_000, [b"more"] * 7_000
    snapshot = Snapshot(1500, 4, {"producers": [(b"head",), some, more], "stable": b"s"})
    data, sizes = bytearray(), []
    for _ in encoding(snapshot, data):
        sizes.append(len(data))
    head = sizes[0]
    assert sizes == [head, head, head + 15 + 4 + 20_000, head + 15 + 4 + 48_000], "each counted, then each joined"
    assert decode_snapshot(bytes(data)).views["producers"] == b"".join([b"head", *some, *more])


@pytest.mark.parametrize(("parts", "size_bytes"), [(1, 1 << 16), (900, 4)])
def test_many_collections_are_put_together_in_steps_too(parts: int, size_bytes: int) -> None:
    """Of large parts, or each with too few to be worth a step."""
    collections = [[bytes(size_bytes)] * parts] * 1_000
    data, sizes = bytearray(), [0]
    for _ in encoding(Snapshot(1500, 4, {"stable": collections}), data):
        sizes.append(len(data))
    assert max(after - before for before, after in pairwise(sizes)) <= 2 << 20
    assert sizes.count(sizes[1]) >= 1_000 * parts // 3_000, "the parts are counted in steps"
    assert decode_snapshot(bytes(data)).views["stable"] == bytes(1_000 * parts * size_bytes)


def test_any_damage_is_noticed() -> None:
    data = bytes(encode_snapshot(SNAPSHOT))
    for at in range(len(data)):
        with pytest.raises(BadSnapshot):
            decode_snapshot(data[:at])
        damaged = bytearray(data)
        damaged[at] ^= 1
        if at not in (6, 7):  # the number of views is outside the checksum, and more views than there are can't be read
            with pytest.raises(BadSnapshot):
                decode_snapshot(bytes(damaged))


def stored(*snapshots: Snapshot) -> MemoryDisk:
    disk = MemoryDisk()
    disk.mkdir("t-0")
    for snapshot in snapshots:
        asyncio.run(disk.write_atomic(f"t-0/{snapshot_name(snapshot.offset)}", encode_snapshot(snapshot)))
    return disk


def of(offset: int, epoch: int, seen: bytes, name: str = "seen") -> Snapshot:
    return Snapshot(offset, epoch, {name: seen})


def restored(disk: MemoryDisk, offsets: list[int], end_offset: int) -> tuple[int, list[tuple[int, int]]]:
    view = SeenBatches()
    view.seen = [(99, 99)]
    epochs = LeaderEpochs([(1, 0), (2, 20)])
    steps = restoring_newest(disk, "t-0", [view], offsets, epochs=epochs, end_offset=end_offset)
    return done_at_once(steps), view.seen


def test_the_newest_that_fits_is_taken() -> None:
    disk = stored(of(10, 1, b"[[0, 1]]"), of(30, 2, b"[[0, 2]]"), of(50, 2, b"[[0, 3]]"))
    assert restored(disk, [10, 30, 50], 40) == (30, [(0, 2)])


def test_snapshots_of_another_history_are_passed_over() -> None:
    """Offset 29 was written by epoch 2 here; the snapshot was taken when epoch 1 had got that far."""
    disk = stored(of(10, 1, b"[[0, 1]]"), of(30, 1, b"[[0, 2]]"))
    assert restored(disk, [10, 30], 40) == (10, [(0, 1)])


def test_missing_broken_and_incomplete_ones_are_passed_over() -> None:
    disk = stored(of(10, 1, b"[[0, 1]]"), of(20, 1, b"[[0, 2]]", name="other"))
    disk.open(f"t-0/{snapshot_name(30)}", create=True).append([b"noise"])
    assert restored(disk, [10, 20, 30, 35], 40) == (10, [(0, 1)])
    assert restored(disk, [20, 30, 35], 40) == (0, [])


def test_what_a_segment_needs_and_the_newest_two_are_kept() -> None:
    assert superfluous([0, 10, 20, 30, 40], 20) == [0, 10]
    assert superfluous([0, 10, 20], 100) == [0]
    assert superfluous([5], 100) == []


def test_snapshots_are_taken_in_the_order_of_the_log() -> None:
    """The newest pending one is taken for what the views know at its offset."""
    snapshots = Snapshots(stored(), "t-0")
    snapshots.take([SeenBatches()], offset=20, leader_epoch=1)
    with pytest.raises(AssertionError, match="highest offset"):
        snapshots.take([SeenBatches()], offset=10, leader_epoch=1)
    view = SeenBatches()
    assert done_at_once(snapshots.restoring([view], epochs=LeaderEpochs(), end_offset=20)) == 20
    assert done_at_once(snapshots.restoring([view], epochs=LeaderEpochs(), end_offset=10)) == 0
