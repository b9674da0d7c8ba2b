"""Compaction against a dictionary: a reader of all of the log knows the same before and after.

Method: Hypothesis writes keys, tombstones and transactions, and cleans now and then, with much memory and with next to
none; every time the cleaner's files are those of its plain twin, to the byte. In the second test the disk fails at any
of its changes during a pass, and power is lost.
"""

import asyncio
import contextlib
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from log.control import ControlType
from log.disk import DiskFault
from tests.log.compacting import NOW_MS, RETENTION_MS, Bench, committed_records, table
from tests.log.memory_disk import MemoryDisk

KEYS = st.sampled_from([b"a", b"b", b"c", b"k" * 40, b"k" * 40 + b"x"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=120)), min_size=1, max_size=4)
PRODUCERS = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PAIRS, st.sampled_from([0, 0, 4])),
        st.tuples(st.just("put"), PAIRS, st.sampled_from([0, 1])),
        st.tuples(st.just("numbered"), PAIRS, PRODUCERS),
        st.tuples(st.just("transact"), PAIRS, PRODUCERS),
        st.tuples(st.just("transact"), PAIRS, PRODUCERS),
        st.tuples(st.just("end"), st.sampled_from(ControlType), PRODUCERS),
        st.tuples(st.just("clean"), st.sampled_from([1, 1 << 20]), st.sampled_from([0, RETENTION_MS + 1])),
    ),
    max_size=40,
)


async def play(bench: Bench, steps: list[Any]) -> None:
    """Write what the steps say; a cleaning must not change what a reader ends up knowing."""
    bench.put((b"a", b"first"))
    now_ms = NOW_MS
    open_transactions: set[int] = set()
    for kind, what, who in steps:
        if kind == "put":
            bench.put(*what, codec=who)
        elif kind == "numbered" and who not in open_transactions:
            bench.put(*what, producer=who)
        elif kind == "transact":
            open_transactions.add(who)
            bench.put(*what, producer=who, transactional=True)
        elif kind == "end" and who in open_transactions:
            open_transactions.remove(who)
            bench.end(who, what)
        elif kind == "clean":
            now_ms += who
            await clean_and_compare(bench, now_ms, memory_bytes=what)


async def clean_and_compare(bench: Bench, now_ms: int, memory_bytes: int) -> None:
    before = committed_records(bench.log, bench.stable)
    end_offset, last = bench.log.end_offset, dict(bench.producers.last)
    report = await bench.clean(now_ms=now_ms, memory_bytes=memory_bytes)
    after = committed_records(bench.log, bench.stable)
    assert table(after) == table(before)
    assert set(after) <= set(before), "nothing is invented, and offsets stay with their records"
    assert [offset for offset, _, _ in after] == sorted(offset for offset, _, _ in after)
    assert bench.log.end_offset == end_offset
    kept = {header.last_offset for header, _ in bench.log.scan(0) if not header.is_control}
    assert set(last.values()) <= kept, "the last batch of every producer is there"
    if report is not None:
        assert report.swapped
        assert report.bytes_after <= report.bytes_before + 40 * max(report.records_after, 1)


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_readers_know_the_same_before_and_after_cleaning(steps: list[Any]) -> None:
    async def run() -> None:
        disk = MemoryDisk()
        bench = Bench(disk)
        await play(bench, steps)
        expected = table(committed_records(bench.log, bench.stable))
        for round in range(3):  # until markers and tombstones are gone
            await clean_and_compare(bench, NOW_MS * 2 + round * 2 * RETENTION_MS, memory_bytes=1000)
        await bench.log.flush()
        again = Bench(disk)
        assert not again.log.damage
        assert again.log.end_offset == bench.log.end_offset
        assert again.producers.last == bench.producers.last
        assert dict(again.stable.open_transactions) == dict(bench.stable.open_transactions)
        assert table(committed_records(again.log, again.stable)) == expected

    asyncio.run(run())


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 60), st.integers(0, 2**32), st.booleans())
def test_a_crash_at_any_change_of_a_pass_leaves_the_old_log_or_the_new_one(
    steps: list[Any], fail_after: int, seed: int, power: bool
) -> None:
    async def run() -> None:
        disk = MemoryDisk()
        bench = Bench(disk)
        await play(bench, steps)
        await bench.log.flush()
        before = committed_records(bench.log, bench.stable)
        flushed = bench.log.flushed_offset
        disk.fail_at = disk.changes + 1 + fail_after
        with contextlib.suppress(DiskFault):
            await bench.clean(now_ms=NOW_MS * 2)
        if power:
            disk.cut_power(random.Random(seed))
        disk.fault = disk.fail_at = None
        again = Bench(disk)
        assert not again.log.damage
        assert again.log.end_offset == flushed
        after = committed_records(again.log, again.stable)
        assert table(after) == table(before)
        assert set(after) <= set(before)
        assert again.producers.last == bench.producers.last
        await again.log.flush()
        assert not [name for name in disk.listdir("table-0") if name.endswith((".cleaned", ".tmp", ".json"))]
        await clean_and_compare(again, NOW_MS * 3, memory_bytes=1000)

    asyncio.run(run())
