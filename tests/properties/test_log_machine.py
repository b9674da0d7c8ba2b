"""The log against a model that is a list of batches, through reads, cuts, crashes and power cuts.

Method: Hypothesis draws what happens; after every step the log, read in several ways, must say what the list says. The
disk is one in memory that loses what was not fsynced. This is the plain twin of the hot paths of `log.partition_log`.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from log.batch import checksum_ok, read_header, split
from log.config import LogConfig
from log.cutting import durable_after_cut
from log.manifest import read_manifest, remove_manifest, write_manifest
from log.partition_log import PartitionLog
from log.removal import raise_start_offset, remove_oldest
from log.time_search import max_timestamp, offset_for_timestamp
from tests.log.building import FOLDER, SeenBatches, append, cut_log, open_batch, open_log, restart_log, stamped
from tests.log.memory_disk import MemoryDisk

T = TypeVar("T")


class Kept(NamedTuple):
    """One batch of the model; the timestamps of its records follow each other."""

    base: int
    end: int
    crc: int
    epoch: int
    timestamp: int


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disk = MemoryDisk()
        self.model: list[Kept] = []  # all batches of this history, those included that retention took
        self.former: list[Kept] = []  # taken back since the last flush: a power cut may bring them back
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.checkpoint = 0
        self.clock = 1000

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.loop.close()

    @initialize(segment_bytes=st.sampled_from([300, 1500, 9000]), interval_bytes=st.sampled_from([0, 200, 4096]))
    def begin(self, segment_bytes: int, interval_bytes: int) -> None:
        self.config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval_bytes)
        self.log: PartitionLog
        self.view: SeenBatches
        self.log, self.view = open_log(self.disk, config=self.config)

    # -- what happens

    @rule(sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4), step=st.integers(-3, 40))
    def append(self, sizes: list[int], step: int) -> None:
        self.clock += step
        values = [bytes([index]) * size for index, size in enumerate(sizes)]
        batch = stamped(values, base_offset=self.end, leader_epoch=self.epoch, timestamp=self.clock)
        append(self.log, batch, now_ms=self.clock)
        header = read_header(batch)
        self.end = header.next_offset
        self.model.append(Kept(header.base_offset, self.end, header.crc, self.epoch, self.clock))

    @rule(count=st.integers(2, 30))
    def append_many(self, count: int) -> None:
        for index in range(count):
            self.append([index * 7 % 200], 1)

    @rule()
    def flush(self) -> None:
        assert self.do(self.log.flush()) == self.end
        assert self.log.flushed_offset == self.end
        assert not self.log.durability.flush_due
        self.former.clear()

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock)

    @rule()
    def note_recovery_point(self) -> None:
        self.checkpoint = max(self.checkpoint, self.log.flushed_offset)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """As a follower does: what comes after is written by a later leader."""
        offset = self.start + int((self.end - self.start) * share)
        self.checkpoint = min(self.checkpoint, durable_after_cut(self.log, offset))
        cut_log(self.log, offset)
        self.forget_from(offset)
        self.checkpoint = min(self.checkpoint, self.end)
        self.epoch += 1

    def forget_from(self, offset: int) -> None:
        if offset >= self.end:
            return
        self.former += self.model
        if offset <= self.start:
            self.restarted(offset)
            return
        while self.model and self.model[-1].end > offset:
            self.end = self.model.pop().base
        if self.end <= self.start:  # the batch that the start goes through was the one
            self.restarted(self.start)

    def restarted(self, offset: int) -> None:
        self.model.clear()
        self.start = self.end = offset

    @rule(ahead=st.integers(0, 50))
    def restart(self, ahead: int) -> None:
        restart_log(self.log, self.end + ahead)
        self.restarted(self.end + ahead)
        self.epoch += 1
        self.checkpoint = 0
        self.flush()

    @rule(share=st.floats(0, 1))
    def raise_start(self, share: float) -> None:
        self.flush()
        offset = self.start + int((self.end - self.start) * share)
        self.do(raise_start_offset(self.log, offset))
        self.start = max(self.start, offset)

    @rule(count=st.integers(1, 3))
    def remove_oldest(self, count: int) -> None:
        count = min(count, len(self.log.segments))
        self.do(remove_oldest(self.log, lambda: count))
        self.start = max(self.start, self.log.segments[0].base_offset if self.log.segments else self.end)

    @rule()
    def stop_and_start(self) -> None:
        state = self.do(self.log.close())
        assert state is not None
        self.do(write_manifest(self.disk, [state], life=1))
        manifest = read_manifest(self.disk)
        self.do(remove_manifest(self.disk))
        changes = self.disk.changes
        self.log, self.view = open_log(self.disk, config=self.config, known=manifest[FOLDER])
        assert self.disk.changes == changes

    @rule()
    def kill(self) -> None:
        """The process dies, the machine lives: nothing is lost."""
        self.log, self.view = open_log(self.disk, config=self.config, recovery_point=self.checkpoint)
        self.epoch += 1

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        flushed = self.log.flushed_offset
        self.disk.cut_power(random.Random(seed))
        self.log, self.view = open_log(self.disk, config=self.config, recovery_point=self.checkpoint)
        assert self.log.end_offset >= flushed
        assert not self.log.damage
        if self.former:
            self.take_either_history()
        while self.model and self.model[-1].end > self.log.end_offset:
            self.end = self.model.pop().base
        assert self.end == self.log.end_offset or not self.model
        self.end = self.log.end_offset
        self.epoch += 1

    def take_either_history(self) -> None:
        """A cut that was not flushed may be undone by the power cut, wholly or down to some batch; nothing else."""
        known = {(kept.base, kept.crc): kept for kept in (*self.former, *self.model)}
        self.model = [known[seen] for seen in self.view.seen]
        assert [kept.end for kept in self.model[:-1]] == [kept.base for kept in self.model[1:]]
        self.start, self.end = self.log.start_offset, self.log.end_offset
        self.former.clear()

    # -- what must hold

    def readable(self) -> list[Kept]:
        return [kept for kept in self.model if kept.end > self.start]

    @invariant()
    def ends_agree(self) -> None:
        assert self.log.start_offset == self.start
        assert self.log.end_offset == self.end
        flushed = self.log.flushed_offset
        assert self.start <= flushed <= self.end or not flushed, "nothing is flushed of a log that was restarted"

    @invariant()
    def the_view_has_seen_the_whole_history_once(self) -> None:
        assert self.view.seen == [(kept.base, kept.crc) for kept in self.model]

    @invariant()
    def epochs_begin_where_the_model_says(self) -> None:
        for kept in self.readable():
            assert self.log.epochs.epoch_at(max(kept.base, self.start)) == kept.epoch

    @rule(
        share=st.floats(0, 1), limit_share=st.floats(0, 1), max_bytes=st.integers(0, 4000), at_least_one=st.booleans()
    )
    def read(self, share: float, limit_share: float, max_bytes: int, at_least_one: bool) -> None:
        offset = self.start + int((self.end - self.start) * share)
        limit = offset + int((self.end - offset) * limit_share)
        found = self.log.read(offset, max_bytes=max_bytes, limit_offset=limit, at_least_one=at_least_one)
        expected = [kept for kept in self.model if kept.end > offset and kept.end <= limit]
        if found is None:
            sizes = [self.size_of(kept) for kept in expected[:1]]
            assert not expected or (not at_least_one and sizes[0] > max_bytes)
            return
        batches = list(split(found.read()))
        assert all(checksum_ok(batch, header) for header, batch in batches)
        got = [(header.base_offset, header.crc) for header, _ in batches]
        assert got == [(kept.base, kept.crc) for kept in expected[: len(got)]]
        assert len(found) <= max_bytes or (at_least_one and len(got) == 1)

    def size_of(self, wanted: Kept) -> int:
        return next(header.size_bytes for header, _ in self.log.scan(wanted.base))

    @rule()
    def read_all_in_small_pieces(self) -> None:
        """A consumer from the start to the end, whatever the segments are."""
        offset, got = self.start, []
        while (found := self.log.read(offset, max_bytes=500, limit_offset=self.end, at_least_one=True)) is not None:
            for header, _ in split(found.read()):
                got.append((header.base_offset, header.crc))
                offset = header.next_offset
        assert got == [(kept.base, kept.crc) for kept in self.readable()]

    @rule(share=st.floats(0, 1.2), limit_share=st.floats(0, 1))
    def find_by_time(self, share: float, limit_share: float) -> None:
        low = min((kept.timestamp for kept in self.model), default=0)
        timestamp = low + int((self.clock - low) * share)
        limit = self.start + int((self.end - self.start) * limit_share)
        if any(kept.base < limit < kept.end for kept in self.model):
            return  # limits are batch boundaries
        records = [
            (kept.base + index, kept.timestamp + index)
            for kept in self.model
            for index in range(kept.end - kept.base)
            if kept.base + index >= self.start
        ]
        later = [record for record in records if record[1] >= timestamp]
        found = self.do(offset_for_timestamp(self.log, timestamp, limit, open_batch))
        assert (found and found[:2]) == (later[0] if later and later[0][0] < limit else None)

    @precondition(lambda self: self.model)
    @rule()
    def find_the_latest_time(self) -> None:
        found = self.do(max_timestamp(self.log, self.end, open_batch))
        last = {kept.base: kept.timestamp + kept.end - kept.base - 1 for kept in self.readable()}
        if last:
            assert found is not None
            assert found.timestamp == max(last.values())


LogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_the_log_is_a_list_of_batches_whatever_happens = LogMachine.TestCase
