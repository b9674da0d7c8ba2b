"""A recovery that looks at many batches at once finds what one that looks at each of them finds.

Method: batches of producers, transactions and markers are drawn, with leader epochs, times, gaps, torn ends and flipped
bits; the same bytes are recovered twice.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import log.recovery
from idempotence.producers import ProducerStates
from isolation.stable import StableOffsets
from log.batch import CHECKED_FROM, CRC_AT, MAX_TIMESTAMP_AT, CorruptBatch, build_batch, crc32c
from log.config import LogConfig
from log.control import ControlType, build_marker
from log.partition_log import PartitionLog
from log.segment import LOG_SUFFIX, segment_name
from log.views import View, whole
from tests.log.building import SeenBatches
from tests.log.memory_disk import MemoryDisk

FOLDER = "t-0"
BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["plain", "numbered", "numbered", "transacted", "transacted", "unnumbered", "commit", "abort"]),
        st.integers(0, 2),  # producer
        st.sampled_from([0, 0, 0, 0, 0, 0, 1]),  # by which the producer's epoch rises
        st.integers(1, 3),  # records
        st.sampled_from([-1, 0, 5, 100, 101, 7]),  # time
        st.sampled_from([None, None, None, 0, -1, 50]),  # what its header says is the newest time
        st.sampled_from([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, -1]),  # by which the leader's epoch rises
        st.sampled_from([0] * 12 + [2]),  # offsets that are missing before it
        st.sampled_from([1, 1, 3, 8]),  # how many times in a row
    ),
    min_size=1,
    max_size=30,
)
Step = tuple[str, int, int, int, int, int | None, int, int, int]


def repeated(steps: list[Step]) -> Iterator[tuple[str, int, int, int, int, int | None, int, int]]:
    for kind, producer, rise, count, time, newest, leader_rise, gap, times in steps:
        yield kind, producer, rise, count, time, newest, leader_rise, gap
        for _ in range(times - 1):
            yield kind, producer, 0, count, time, newest, 0, 0


def stored(steps: list[Step]) -> tuple[bytes, list[int]]:
    """The bytes of the batches, and where each begins."""
    data, starts, offset, leader_epoch = bytearray(), [], 0, 3
    epochs, sequences = [0, 0, 0], [0, 0, 0]
    for kind, producer, rise, count, time, newest, leader_rise, gap in repeated(steps):
        offset += gap
        leader_epoch += leader_rise
        starts.append(len(data))
        if rise:
            epochs[producer] += rise
            sequences[producer] = 0
        if kind in ("commit", "abort"):
            outcome = ControlType.COMMIT if kind == "commit" else ControlType.ABORT
            data += build_marker(
                outcome,
                producer_id=producer,
                producer_epoch=epochs[producer],
                coordinator_epoch=1,
                timestamp_ms=time,
                base_offset=offset,
                leader_epoch=leader_epoch,
            )
            offset += 1
            continue
        numbered = kind in ("numbered", "transacted")
        records = [(None, b"v" * (offset % 50), (), time + index) for index in range(count)]
        batch = bytearray(
            build_batch(
                records,
                base_offset=offset,
                leader_epoch=leader_epoch,
                transactional=kind == "transacted",
                producer_id=-1 if kind == "plain" else producer,
                producer_epoch=-1 if kind == "plain" else epochs[producer],
                base_sequence=sequences[producer] if numbered else -1,
            )
        )
        sequences[producer] += count if numbered else 0
        if newest is not None:
            batch[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = newest.to_bytes(8, "big", signed=True)
            batch[CRC_AT:CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4, "big")
        data += batch
        offset += count
    return bytes(data), starts


def recovered(data: bytes, cuts: list[int], *, many: bool, seen: bool, interval_bytes: int, trusted: int) -> object:
    """All that a recovery of these bytes, in segments that begin at the cuts, has found."""
    disk = MemoryDisk()
    disk.mkdir(FOLDER)
    for begin, end in zip(cuts, [*cuts[1:], len(data)], strict=True):
        base_offset = int.from_bytes(data[begin : begin + 8], "big")
        disk.open(f"{FOLDER}/{segment_name(base_offset, LOG_SUFFIX)}", create=True).append([data[begin:end]])
    stable = StableOffsets()
    views: list[View] = [ProducerStates(stable.open_transactions), stable]
    if seen:
        views.append(SeenBatches())
    config = LogConfig(index_interval_bytes=interval_bytes)
    with (
        patch.object(log.recovery, "MANY_BATCHES", 0 if many else 1 << 40),
        patch.object(log.recovery, "SCAN_BYTES", 2000 if many else 4 << 20),
    ):
        found = PartitionLog.open(disk, FOLDER, config, views, known=None, now_ms=9, recovery_point=trusted)
    assert found.recovery is not None
    for segment in found.segments:
        with suppress(CorruptBatch):  # the indexes are of the batches before the damage then
            segment.load_indexes()
    segments = [
        (
            segment.facts(),
            [segment.offsets.entry(slot) for slot in range(len(segment.offsets))],
            [segment.times.entry(slot) for slot in range(len(segment.times))],
        )
        for segment in found.segments
    ]
    asyncio.run(found.flush())
    files = {path: bytes(node.data) for path, node in disk.files.items()}
    return replace(found.recovery), segments, found.epochs.entries(), [whole(view.snapshot()) for view in views], files


@pytest.mark.parametrize("seen", [False, True])
@settings(max_examples=150, deadline=None)
@given(BATCHES, st.sampled_from([0, 300, 10_000]), st.sampled_from([0, 0, 1, 40]), st.integers(0, 2**32), st.data())
def test_many_at_once_are_recovered_as_one_by_one(
    seen: bool,
    steps: list[Step],
    interval_bytes: int,
    trusted: int,
    seed: int,
    data: st.DataObject,
) -> None:
    bytes_, starts = stored(steps)
    chance = random.Random(seed)
    harmed = bytearray(bytes_)
    harm = data.draw(st.sampled_from(["none", "none", "flip", "torn", "zeros"]))
    if harm == "flip":
        harmed[chance.randrange(len(harmed))] ^= 1 << chance.randrange(8)
    elif harm == "torn":
        del harmed[chance.randrange(len(harmed)) :]
    elif harm == "zeros":
        harmed += bytes(chance.randrange(200))
    cuts = sorted({0, *(start for start in starts if chance.random() < 0.05 and start < len(harmed) - 8)})
    one_by_one, many = (
        recovered(bytes(harmed), cuts, many=many, seen=seen, interval_bytes=interval_bytes, trusted=trusted)
        for many in (False, True)
    )
    assert many == one_by_one
