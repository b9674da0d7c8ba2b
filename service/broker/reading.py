# Hot path: one `Reading` a Fetch request, one `_read` a fetched partition; `python -m tests.bench --only throughput`
# answers for it.
"""Reading from partitions of this broker for one reader, whichever protocol it speaks.

What always holds: a reader gets only what its isolation lets it see, with the aborted transactions that reach into it;
stored bytes are handed out as slices of segment files, and nothing is read here; the first partition with data gives
at least one batch however small the limits are, so that a reader always gets on.

`read` says whether there is enough to answer with; if not, `wait` reads again whenever something moved.
"""

import asyncio
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from isolation.read_view import AnyIsolation, Isolation, aborted_transactions, readable_end_offset
from log.batch import CorruptBatch
from log.disk import DiskFault, FileSlice
from service.broker.fetch_sessions import SessionKey, Wanted
from service.broker.in_sync import InSyncSets
from service.broker.partition import NOBODY, Following, Partition
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.broker.throttling import Throttle
from service.wire.error_codes import ErrorCode

# Once an answer to a client nearby carries so much, other partitions wait for the next one: that comes at once, and
# what is larger has left the caches before it is read. Who is farther away gets in one answer what ten round trips
# would carry at 1 GB/s, so that the way costs it little.
NEAR_ANSWER_BYTES = 3 * 512 * 1024
ANSWER_BYTES_PER_ROUND_TRIP_US = 10_000
LONGEST_WAIT_MS = 5 * 60 * 1000
"""What librdkafka lets one ask for. Who asks for more is told sooner that there is nothing, and asks again."""


class Terms(NamedTuple):
    """How much a reader wants, and what it may see."""

    isolation: AnyIsolation
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    knows_followers: bool = False
    """The reader knows that who serves it may be a follower, which lags behind its leader."""
    nearer: Container[int] = ()
    """Brokers that stand nearer to the reader than this one."""


class Copier(NamedTuple):
    """A broker that follows: what it asks for tells what it holds."""

    broker_id: int
    broker_epoch: int
    in_sync: InSyncSets
    throttle: Throttle
    has_readers: bool
    """Readers are sent to it, and wait there for what is committed: it hears of that at once."""


@dataclass(slots=True)
class Found:
    """What there is of a partition: an error, or where the log has gone another way, or stored batches."""

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    """Producer ids and first offsets; None for readers who don't ask what is committed."""
    diverging: tuple[int, int] | None = None
    """The latest epoch up to the reader's that the log knows, and where it ended."""
    records: FileSlice | None = None
    counts: int = 0
    """What it counts for when the reader wants a least number of bytes: what a limit cut short counts as the limit,
    though only whole batches are given.
    """
    nearer: int = -1
    """The broker that the reader is sent to."""


def leader_epoch_error(partition: Partition, epoch: int) -> ErrorCode:
    """What is wrong with a caller who believes in leader epoch `epoch` (-1: who doesn't say)."""
    if partition.replicas is None:
        return partition.not_leading.error
    return _epoch_error(partition, epoch)


def reader_error(partition: Partition, epoch: int) -> ErrorCode:
    """The same for a reader who takes a follower's answer too. One out of sync may hold what was deleted long ago."""
    role = partition.role
    if isinstance(role, Following) and role.leader != NOBODY and role.in_sync:
        return _epoch_error(partition, epoch)
    return leader_epoch_error(partition, epoch)


def _epoch_error(partition: Partition, epoch: int) -> ErrorCode:
    if epoch < 0 or epoch == partition.leader_epoch:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH


@dataclass(slots=True, eq=False)
class Reading:
    """One reader's request: read, and read again whenever a watched partition moved."""

    table: PartitionTable
    caller: Session
    terms: Terms
    wanted: Mapping[SessionKey, Wanted]
    keeps_order: bool
    """The order of `wanted` is the order of turns already."""
    copier: Copier | None = None
    found: dict[SessionKey, Found] = field(default_factory=dict)
    _is_counted: bool = False
    _woken: asyncio.Future[None] | None = None

    def read(self) -> bool:
        """Read every wanted partition; True if the answer need not wait."""
        self.found = found = {}
        budget = self.terms.max_bytes
        least, round_trip_us = min(self.terms.min_bytes, budget), self.caller.round_trip_us
        enough = budget
        if round_trip_us is not None:
            enough = max(NEAR_ANSWER_BYTES, round_trip_us * ANSWER_BYTES_PER_ROUND_TRIP_US, least)
        size, counted, urgent = 0, 0, not self.wanted
        for key in self._in_turn():
            partition = self._partition(key)
            if isinstance(partition, ErrorCode):
                data = Found(partition, aborted=[])  # only a partition that is there answers with none at all
            else:
                left = budget - size if size < enough else 0
                data = self._read(partition, self.wanted[key], left, least, at_least_one=size == 0)
            if data.records is not None:
                size += data.records.size
            counted += data.counts
            if (
                data.error
                or data.diverging is not None
                or data.nearer >= 0
                or (self.copier is not None and self._must_hear(self.wanted[key], data, self.copier))
            ):
                urgent = True
            found[key] = data
        self._is_counted = True
        if round_trip_us is not None and not self.keeps_order:
            self._keep_turns(ended_early=size >= enough)
        return urgent or counted >= least

    def _in_turn(self) -> Iterable[SessionKey]:
        """The wanted partitions: first those that had no turn lately, in the client's order."""
        if self.keeps_order or not self.caller.fetched:
            return self.wanted
        turns = {key: turn for turn, key in enumerate(self.caller.fetched)}
        return sorted(self.wanted, key=lambda key: turns.get(key, -1))

    def _keep_turns(self, *, ended_early: bool) -> None:
        """Remember who was given something when we ended an answer. Where it ended by itself, or by the client's own
        limit, who comes first is the client's business.
        """
        turns = self.caller.fetched
        if not ended_early:
            turns.clear()
            return
        for key, data in self.found.items():
            if data.records is not None:
                turns.pop(key, None)
                turns[key] = None

    def _partition(self, key: SessionKey) -> Partition | ErrorCode:
        name, index = key
        if isinstance(name, bytes):
            partitions, unknown = self.table.topic_by_id(name), ErrorCode.UNKNOWN_TOPIC_ID
        else:
            partitions, unknown = self.table.topic(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partitions is None:
            return unknown
        return partitions.get(index) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _read(self, partition: Partition, wanted: Wanted, budget: int, least: int, *, at_least_one: bool) -> Found:
        log, offset, isolation = partition.log, wanted.fetch_offset, self.terms.isolation
        epoch = wanted.current_leader_epoch
        if partition.replicas is None or (epoch >= 0 and epoch != partition.leader_epoch):  # hardly ever
            belief = reader_error if self.terms.knows_followers else leader_epoch_error
            if error := belief(partition, epoch):
                return Found(error)
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        if wanted.last_fetched_epoch >= 0:
            epoch, end_offset = log.epochs.end_offset_for_epoch(wanted.last_fetched_epoch, log.end_offset)
            if epoch < 0:
                return Found(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < wanted.last_fetched_epoch or end_offset < offset:
                diverging = epoch, end_offset
                return Found(ErrorCode.NONE, high_watermark, stable, log.start_offset, diverging=diverging)
        if not log.start_offset <= offset <= log.end_offset:
            partition.tally.failed_reads += 1
            if partition.replicas is None and offset > log.end_offset:
                return Found(ErrorCode.OFFSET_NOT_AVAILABLE)  # here, so far: the leader may have it
            begins = log.start_offset if self.copier is not None else -1
            return Found(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=begins)
        if self.copier is not None and not self._is_counted and (error := self._count(partition, wanted, self.copier)):
            return Found(error)
        aborted: list[tuple[int, int]] | None = [] if isolation is Isolation.READ_COMMITTED else None
        if self.terms.nearer and partition.replicas is not None:
            nearer = partition.replicas.best_of(self.terms.nearer, offset)
            if nearer >= 0:
                return Found(ErrorCode.NONE, high_watermark, stable, log.start_offset, aborted, nearer=nearer)
        limit = readable_end_offset(
            isolation, log_end_offset=log.end_offset, high_watermark=high_watermark, last_stable_offset=stable
        )
        found = Found(ErrorCode.NONE, high_watermark, stable, log.start_offset, aborted)
        if offset >= limit or (budget <= 0 and not at_least_one):
            return found
        copier, place = self.copier, partition.topic_partition
        if copier is not None and copier.throttle.holds_back(place, copier.broker_id):
            return found
        most = max(min(wanted.max_bytes, budget), 0)
        try:
            stored = partition.read(offset, max_bytes=most, limit_offset=limit, at_least_one=at_least_one)
            if stored is None:
                found.counts = most
                return found
            cut_short = stored.size < least and log.reach_of(stored) < limit
            if partition.stable.has_aborted:
                next_offset = min(log.reach_of(stored), limit)
                found.aborted = aborted_transactions(
                    isolation, partition.stable, fetch_offset=offset, next_offset=next_offset
                )
        except (DiskFault, CorruptBatch) as failure:
            partition.tally.failed_reads += 1
            return Found(partition.unreadable(failure))
        tally = partition.tally
        tally.reads += 1
        tally.bytes_out += stored.size
        if copier is not None:
            copier.throttle.moved(place, copier.broker_id, stored.size)
        found.records = stored
        found.counts = max(stored.size, most) if cut_short else stored.size
        return found

    @staticmethod
    def _must_hear(wanted: Wanted, found: Found, copier: Copier) -> bool:
        """The follower has what is deleted here, or what its readers may have now, and has not been told."""
        if copier.has_readers and 0 <= wanted.told_high_watermark < found.high_watermark:
            return True
        start_offset = found.log_start_offset
        return wanted.log_start_offset < start_offset != wanted.told_log_start_offset

    @staticmethod
    def _count(partition: Partition, wanted: Wanted, copier: Copier) -> ErrorCode:
        """A follower holds everything below what it asks for. Once a request: it says nothing new by waiting."""
        replicas = partition.replicas
        if replicas is None or copier.broker_id not in replicas.followers:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if copier.broker_epoch < 0 or replicas.is_former_life(copier.broker_id, copier.broker_epoch):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        copier.in_sync.fetched(
            *(partition, copier.broker_id, wanted.fetch_offset),
            start_offset=wanted.log_start_offset,
            broker_epoch=copier.broker_epoch,
        )
        return ErrorCode.NONE

    async def wait(self) -> None:
        """Until there is enough, or it has taken as long as it may. `found` is what there is then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self.terms.max_wait_ms, LONGEST_WAIT_MS) / 1000
        watched: list[Partition] = []
        has_moved = False
        try:
            for key, wanted in self.wanted.items():
                partition = self._partition(key)
                if not isinstance(partition, ErrorCode):
                    watched.append(partition)
                    partition.watch(self, tail=self.copier is not None)
                    if self.copier is not None and self.copier.has_readers:
                        partition.watch(self)
                    # Nobody was told of what came between the reading and now.
                    has_moved = has_moved or partition.high_watermark != self.found[key].high_watermark
                    if self.copier is not None:
                        has_moved = has_moved or partition.log.end_offset > wanted.fetch_offset
                        has_moved = has_moved or partition.log.start_offset != self.found[key].log_start_offset
            if has_moved and self.read():
                return
            while True:
                self._woken = loop.create_future()
                timer = loop.call_at(deadline, self.moved)
                try:
                    with self.caller.waits():
                        await self._woken
                finally:
                    timer.cancel()
                if self.read() or loop.time() >= deadline:
                    return
        finally:
            for partition in watched:
                partition.unwatch(self)

    def moved(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
