"""Stored batches, opened into what a reader is shown: short batches of plain records at once, all others one by one."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from log.batch import NewRecord, build_batch
from log.compress import Codec
from log.disk import File, FileSlice
from log.ids import TopicPartition
from service.broker.reading import PartitionRead, Reading
from service.web import fetching
from service.web.fetching import PLAIN_RECORDS_MAX, Held, Lens, Piece, _pieces, opened
from service.web.holding import Holder, Holding
from service.web.problems import Problem
from tests.service.web.kit import turns_of

PARTITION = TopicPartition("orders", 0)
FIRST = 100
CONTENTS = some.one_of(
    some.none(),
    some.binary(max_size=8),
    some.text(max_size=8).map(str.encode),
    some.sampled_from(
        [b'{"a":1}', b'{\n"a": [1,\r2]}', b"null", b" 7 ", b'"\xff"', b"1e999", b"[" * 5000, b"", b"{}x"]
    ),
)
HEADERS = some.lists(some.tuples(some.text("ab", max_size=2), some.none() | some.binary(max_size=2)), max_size=1)
RECORDS = some.lists(
    some.tuples(CONTENTS, CONTENTS, some.one_of(some.just(()), HEADERS.map(tuple)), some.integers(0, 1 << 40)),
    min_size=1,
    max_size=5,
)


async def shown(data: bytes, offset: int, most: int) -> tuple[list[bytes], int, str]:
    """What is shown, where to go on, and what is wrong."""
    found, place, wrong = list[bytes](), offset, ""
    held = Held(Holder(Holding(1 << 30)))
    env: Any = SimpleNamespace(env=SimpleNamespace(blocking=asyncio.to_thread))
    try:
        async for records, next_offset in opened(env, Piece(PARTITION, 0, data=data), offset, Lens(), most, held):
            found += map(msgspec.json.encode, records)
            place = next_offset
    except Problem as problem:
        wrong = str(problem.detail)
    return found, place, wrong


@given(
    RECORDS,
    RECORDS,
    some.integers(-1, 2),
    some.integers(1, 8),
    some.sampled_from(Codec),
    some.integers(0, 120) | some.none(),
)
@example([(b"k", b"1", (), 5)] * 2, [(b"k", b"1", (), 5)], 0, 8, Codec.NONE, 80)
def test_batches_that_are_opened_at_once_show_the_same_as_record_by_record(
    first: list[NewRecord], second: list[NewRecord], before: int, most: int, codec: Codec, hit: int | None
) -> None:
    data = bytearray(build_batch(first, base_offset=FIRST, codec=codec))
    data += build_batch(second, base_offset=FIRST + len(first))
    if hit is not None and 61 <= hit < len(data):
        data[hit] ^= 0x55
    at_once = asyncio.run(shown(bytes(data), FIRST + before, most))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fetching, "PLAIN_RECORDS_MAX", -1)
        one_by_one = asyncio.run(shown(bytes(data), FIRST + before, most))
    assert at_once == one_by_one


def test_what_is_long_is_read_beside_the_loop_from_a_file_that_stays_open() -> None:
    """16 MiB were read in one turn of the loop."""
    pins, sizes = 0, [1 << 20, 16 << 20, 1 << 20]
    read: list[tuple[int, bool, int]] = []

    class Noting:
        def pread(self, size: int, position: int) -> bytes:
            read.append((size, threading.current_thread() is threading.main_thread(), pins))
            return bytes(size)

        def pin(self) -> None:
            nonlocal pins
            pins += 1

        def unpin(self) -> None:
            nonlocal pins
            pins -= 1

    found = {
        ("t", index): PartitionRead(records=FileSlice(cast(File, Noting()), 0, size))
        for index, size in enumerate(sizes)
    }
    gateway: Any = SimpleNamespace(env=SimpleNamespace(blocking=asyncio.to_thread))
    pieces = asyncio.run(_pieces(gateway, cast(Reading, SimpleNamespace(found=found)), {"t": "t"}))
    assert [len(each.data) for each in pieces] == sizes
    assert [(size, is_in_loop) for size, is_in_loop, _ in read] == [(size, size == 1 << 20) for size in sizes]
    assert all(those >= len(sizes) for _, _, those in read)
    assert pins == 0


def test_short_batches_are_opened_in_turns() -> None:
    """Ten thousand plain records in batches that are each opened at once."""
    batch = [(b"k", b"{}", (), 1000)] * PLAIN_RECORDS_MAX
    data = b"".join(bytes(build_batch(batch, base_offset=number * len(batch))) for number in range(20))
    found = list[bytes]()

    async def work() -> None:
        found.extend((await shown(data, 0, 1 << 62))[0])

    assert turns_of(work()) >= 5
    assert len(found) == 20 * PLAIN_RECORDS_MAX
