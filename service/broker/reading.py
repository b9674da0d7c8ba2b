# Hot path: one `Reading` a Fetch request, one `_read` a fetched partition; `python -m tests.bench --only throughput`
# answers for it.
"""Reading from partitions of this broker for one reader, independent of the protocol.

What always holds: a reader gets only what its isolation level lets it see, and the aborted transactions that overlap
it. Stored bytes are handed out as slices of segment files; of a follower's only the headers are read here, of others'
nothing. The first partition that has data gives at least one batch, however small the limits are, so that every reader
makes progress.

After the `steps` of a reading `is_enough` says whether there is enough for an answer. If there is not, `wait` reads
again whenever something has changed. In a fetch session only what is not quiet is read. A reading does not hold the
loop, however many partitions are wanted: one with much to do `takes_turns`. What it finds is pinned in the session
then, until the answer has been given to the connection.
"""

import asyncio
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from isolation.aborted import AbortedRange
from isolation.read_view import AnyIsolation, Isolation, aborted_transactions, readable_end_offset
from log.batch import CorruptBatch
from log.disk import DiskFault, FileSlice
from log.ids import NO_EPOCH
from service.broker.fetch_sessions import FetchSession, SessionKey, WantedPartition
from service.broker.in_sync import InSyncSets
from service.broker.partition import NOBODY, Following, Partition
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.broker.throttling import Throttle
from service.turns import Steps, breathe
from service.wire.error_codes import ErrorCode
from service.wire.messages import AbortedTransaction

# When an answer to a client nearby holds this much, the remaining partitions wait for the next request, which comes at
# once. A larger answer would have left the processor's caches before it is read. A client farther away gets in one
# answer as much as ten round trips would carry at 1 GB/s, so that the distance costs it little.
NEAR_ANSWER_BYTES = 3 * 512 * 1024
ANSWER_BYTES_PER_ROUND_TRIP_US = 10_000
READ_AT_ONCE = 500
"""The most partitions without news that are read in one turn of the loop. That takes 2 ms."""
A_FOLLOWERS_READ = 2
"""How much longer a read takes that also notes what the follower holds."""
A_READ_WITH_RECORDS = 16
"""How much longer it takes to find records in a file than to see that there are none. (Where a reader goes on where it
was, it takes less.)
"""
WALKED_IN_A_READ = 1_024
"""Over the headers of so many bytes of small batches, between two entries of an index, a read walks in the same time.
"""
LISTED_AT_ONCE = 1_000
"""The most aborted transactions of a partition that are listed in one turn. That takes a millisecond."""
LONGEST_WAIT_MS = 5 * 60 * 1000
"""The longest wait that librdkafka can be configured for. A reader that asks for more gets an empty answer after this
time, and asks again.
"""


class ReadTerms(NamedTuple):
    """How much a reader wants, and what it may see."""

    isolation: AnyIsolation
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    knows_followers: bool = False
    """The reader knows that the broker it asks may be a follower, which lags behind the leader."""
    nearer: Container[int] = ()
    """Brokers that are nearer to the reader than this one."""


class Copier(NamedTuple):
    """A follower as a reader. The offset that it asks for tells what it already holds."""

    broker_id: int
    broker_epoch: int
    is_known: bool
    """The broker is registered, with this epoch or a later one. If not, it came a moment ago, or is none."""
    in_sync: InSyncSets
    throttle: Throttle
    has_readers: bool
    """Clients may be sent to this follower to read. They wait there for committed data, so the follower is told of a
    new high watermark at once.
    """


@dataclass(slots=True)
class PartitionRead:
    """What one partition has for the reader: an error, or the offset where the reader's history differs, or stored
    batches.
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[AbortedTransaction] | None = None
    """None for readers that read uncommitted data."""
    unlisted: Iterator[AbortedRange] | None = None
    """What `aborted` still lacks."""
    diverging: tuple[int, int] | None = None
    """The latest epoch in this log that is not above the reader's, and the offset where that epoch ended."""
    records: FileSlice | None = None
    counts: int = 0
    """How many bytes this adds towards the reader's minimum. If a size limit left more data unread, it is the limit
    itself, although only whole batches are given.
    """
    nearer: int = -1
    """The nearer broker that the reader should ask instead; -1 if there is none."""
    forgotten_below: int = 0
    """For a follower that ends below the last deletion which has left this log: the offset after it. Else 0."""
    is_quiet: bool = False
    """There is nothing more, until the partition says that it has moved."""

    def list_some_aborted(self) -> bool:
        """Whether there may be more that `aborted` lacks."""
        assert self.aborted is not None
        assert self.unlisted is not None
        some = [
            AbortedTransaction(each.producer_id, each.first_offset) for each in islice(self.unlisted, LISTED_AT_ONCE)
        ]
        self.aborted += some
        return len(some) == LISTED_AT_ONCE


def leader_epoch_error(partition: Partition, epoch: int) -> ErrorCode:
    """The error for a client that believes in leader epoch `epoch`; with -1 the client does not say."""
    if not partition.is_leading:
        return partition.not_leading.error
    return _epoch_error(partition, epoch)


def reader_error(partition: Partition, epoch: int) -> ErrorCode:
    """The error for a reader that also accepts answers of a follower. A follower out of sync may hold data that was
    deleted long ago.
    """
    role = partition.role
    if isinstance(role, Following) and role.leader != NOBODY and role.in_sync:
        return _epoch_error(partition, epoch)
    return leader_epoch_error(partition, epoch)


def _epoch_error(partition: Partition, epoch: int) -> ErrorCode:
    if epoch in (NO_EPOCH, partition.leader_epoch):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH


@dataclass(slots=True, eq=False)
class Reading:
    """One reader's request: it is read, and read again whenever a watched partition has changed."""

    table: PartitionTable
    caller: Session
    terms: ReadTerms
    wanted: Mapping[SessionKey, WantedPartition]
    """In a fetch session, what is not quiet."""
    session: FetchSession | None = None
    copier: Copier | None = None
    takes_turns: bool = False
    is_enough: bool = False
    """The answer need not wait."""
    found: dict[SessionKey, PartitionRead] = field(default_factory=dict)
    _is_counted: bool = False
    _is_held_back: bool = False
    """The copier's throttle holds something back."""
    _woken: asyncio.Future[None] | None = None

    async def read(self) -> bool:
        """Read every wanted partition. Returns whether the answer need not wait."""
        for _ in self.steps():
            await breathe()
        return self.is_enough

    def steps(self) -> Steps[None]:
        """Read every wanted partition, and yield when a turn is over. (It returns nothing, because a generator that
        returns something raises an exception.)
        """
        if self.takes_turns:
            self.takes_turns = False
            self.caller.unpin()
        self.found = found = {}
        budget = self.terms.max_bytes
        least, round_trip_us = min(self.terms.min_bytes, budget), self.caller.round_trip_us
        enough = budget
        if round_trip_us is not None:
            enough = max(NEAR_ANSWER_BYTES, round_trip_us * ANSWER_BYTES_PER_ROUND_TRIP_US, least)
        session = self.session
        size, counted, urgent = 0, 0, not self.wanted if session is None else session.is_closed
        in_turn = self._in_turn()
        done, a_read = 0, 1 if self.copier is None else A_FOLLOWERS_READ
        for key, wanted in list(in_turn):  # a session's may change meanwhile
            done += a_read
            if done >= READ_AT_ONCE:
                done = 0
                self._rest()
                yield
            partition = self._partition(key)
            if isinstance(partition, ErrorCode):
                data = PartitionRead(partition, aborted=[])  # None is for partitions that exist
            else:
                left = budget - size if size < enough else 0
                data = self._read(partition, key, wanted, left, least, at_least_one=size == 0)
                if data.records is not None:
                    size += data.records.size
                    walked_bytes = partition.log.config.index_interval_bytes
                    if self.copier is not None:
                        walked_bytes += data.records.size
                    done += A_READ_WITH_RECORDS + walked_bytes // WALKED_IN_A_READ
            counted += data.counts
            if (
                data.error
                or data.diverging is not None
                or data.nearer >= 0
                or (self.copier is not None and self._must_hear(wanted, data, self.copier))
            ):
                urgent = True
            found[key] = data
            if data.unlisted is not None:
                while data.list_some_aborted():
                    self._rest()
                    yield
        self._is_counted = True
        if round_trip_us is not None and self.session is None:
            self._keep_turns(ended_early=size >= enough)
        self.is_enough = urgent or counted >= least

    def _rest(self) -> None:
        """Others are to have a turn, and may remove what was found."""
        if not self.takes_turns:
            self.takes_turns = True
            self.caller.unpin()
            for data in self.found.values():
                if data.records is not None:
                    self.caller.pin(data.records)

    def _in_turn(self) -> Iterable[tuple[SessionKey, WantedPartition]]:
        """The wanted partitions: first those that were not served lately, otherwise in the client's order. A session
        keeps that order itself.
        """
        if self.session is not None or not self.caller.fetched:
            return self.wanted.items()
        turns = {key: turn for turn, key in enumerate(self.caller.fetched)}
        return sorted(self.wanted.items(), key=lambda item: turns.get(item[0], -1))

    def _keep_turns(self, *, ended_early: bool) -> None:
        """If this broker cut the answer short, remember which partitions were served, so that the others come first
        next time. If the client's own limit ended the answer, the client decides which partitions come first.
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

    def _read(
        self,
        partition: Partition,
        key: SessionKey,
        wanted: WantedPartition,
        budget: int,
        least: int,
        *,
        at_least_one: bool,
    ) -> PartitionRead:
        log, offset, isolation = partition.log, wanted.fetch_offset, self.terms.isolation
        epoch = wanted.current_leader_epoch
        if not partition.is_leading or (epoch >= 0 and epoch != partition.leader_epoch):  # rare
            belief = reader_error if self.terms.knows_followers else leader_epoch_error
            if error := belief(partition, epoch):
                return PartitionRead(error)
        if wanted.last_fetched_epoch >= 0:
            epoch, end_offset = log.epochs.end_offset_for_epoch(wanted.last_fetched_epoch, log.end_offset)
            if epoch < 0:
                return PartitionRead(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < wanted.last_fetched_epoch or end_offset < offset:
                watermarks = partition.high_watermark, partition.last_stable_offset
                diverging = epoch, end_offset
                return PartitionRead(ErrorCode.NONE, *watermarks, log.start_offset, diverging=diverging)
        if not log.start_offset <= offset <= log.end_offset or self._lacks_the_start(partition, wanted):
            partition.tally.failed_reads += 1
            if not partition.is_leading and offset > log.end_offset:
                return PartitionRead(ErrorCode.OFFSET_NOT_AVAILABLE)  # this log ends before it, the leader's may not
            begins = log.start_offset if self.copier is not None else -1
            return PartitionRead(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=begins)
        copier, topic_partition = self.copier, partition.topic_partition
        forgotten = 0
        if copier is not None:
            if not self._is_counted and (error := self._count(partition, wanted, copier)):
                return PartitionRead(error)
            if offset < log.forgotten_below:
                forgotten = log.forgotten_below
                if error := self._lacks_deletions(partition, copier):
                    return PartitionRead(error, log_start_offset=log.start_offset, forgotten_below=forgotten)
        if self.session is not None:
            wanted.looked_at(partition, self.session, key)
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        aborted: list[AbortedTransaction] | None = [] if isolation is Isolation.READ_COMMITTED else None
        if self.terms.nearer and partition.is_leading:
            nearer = partition.replicas.best_of(self.terms.nearer, offset)
            if nearer >= 0:
                return PartitionRead(ErrorCode.NONE, high_watermark, stable, log.start_offset, aborted, nearer=nearer)
        limit = readable_end_offset(
            isolation, log_end_offset=log.end_offset, high_watermark=high_watermark, last_stable_offset=stable
        )
        found = PartitionRead(ErrorCode.NONE, high_watermark, stable, log.start_offset, aborted)
        found.forgotten_below = forgotten
        if offset >= limit:
            found.is_quiet = self._is_quiet(partition)
            return found
        if budget <= 0 and not at_least_one:
            return found
        if copier is not None and copier.throttle.holds_back(topic_partition, copier.broker_id):
            self._is_held_back = True
            return found
        most = max(min(wanted.max_bytes, budget), 0)
        try:
            stored = partition.read(offset, max_bytes=most, limit_offset=limit, at_least_one=at_least_one)
            if stored is None:
                # The next batch is too large to go with the others. For the first one there is no such limit: then
                # compaction has left nothing below what may be read, and the reader waits.
                found.counts = 0 if at_least_one else most
                return found
            if copier is not None:
                stored = log.checked(offset, stored)
            if self.takes_turns:
                self.caller.pin(stored)
            cut_short = stored.size < least and log.reach_of(stored) < limit
            if partition.stable.has_aborted:
                next_offset = min(log.reach_of(stored), limit)
                found.unlisted = aborted_transactions(
                    isolation, partition.stable, fetch_offset=offset, next_offset=next_offset
                )
        except (DiskFault, CorruptBatch) as failure:
            partition.tally.failed_reads += 1
            return PartitionRead(partition.unreadable(failure))
        tally = partition.tally
        tally.reads += 1
        tally.bytes_out += stored.size
        if copier is not None:
            copier.throttle.moved(topic_partition, copier.broker_id, stored.size)
        found.records = stored
        found.counts = max(stored.size, most) if cut_short else stored.size
        return found

    def _lacks_the_start(self, partition: Partition, wanted: WantedPartition) -> bool:
        """Whether a follower's log is empty and begins above this one: it would lack what is below, and must begin
        where this log does. A log that may lead next had all of it, and retention has emptied it a little earlier than
        this one.
        """
        if self.copier is None or not wanted.fetch_offset == wanted.log_start_offset > partition.log.start_offset:
            return False
        if not partition.is_leading:
            return False
        return self.copier.broker_id not in (*partition.replicas.isr, *partition.replicas.eligible)

    @staticmethod
    def _lacks_deletions(partition: Partition, copier: Copier) -> ErrorCode:
        """The error for a follower that ends below the last deletion which has left this log, and may lack it. With the
        rest of the log it would keep for good what that deleted, and a transaction without its marker would never end.
        So it must start over (R15).

        A follower that began with an empty log after they had left lacks none. One that may lead next lacks none
        either: it holds all that is committed, and only committed deletions leave. That is known of the registered life
        of its broker, so a later life waits until its registration is seen here.
        """
        if not partition.is_leading or copier.broker_id not in partition.replicas.followers:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        life = copier.broker_id, copier.broker_epoch
        if partition.replicas.has_begun(*life, partition.log.times_forgotten):
            return ErrorCode.NONE
        may_lead = copier.in_sync.may_lead(partition, *life)
        if may_lead is None:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        return ErrorCode.NONE if may_lead else ErrorCode.OFFSET_OUT_OF_RANGE

    def _is_quiet(self, partition: Partition) -> bool:
        """Whether a partition that was read to its end will say when something about the answer changes. A follower
        that is not in sync is looked at each time, so that it gets into the in-sync set as soon as it can.
        """
        if not partition.is_leading or self.terms.nearer:
            return False
        return self.copier is None or self.copier.broker_id in partition.replicas.isr

    @staticmethod
    def _must_hear(wanted: WantedPartition, found: PartitionRead, copier: Copier) -> bool:
        """Whether the follower must be told at once: it still holds what was deleted here, or its readers may read
        further now.
        """
        if copier.has_readers and 0 <= wanted.told_high_watermark < found.high_watermark:
            return True
        start_offset = found.log_start_offset
        return wanted.log_start_offset < start_offset != wanted.told_log_start_offset

    @staticmethod
    def _count(partition: Partition, wanted: WantedPartition, copier: Copier) -> ErrorCode:
        """Note what a follower holds: everything below the offset that it asks for. Done once a request, because
        waiting changes nothing about that.
        """
        if not partition.is_leading:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        replicas = partition.replicas
        if copier.broker_id not in replicas.followers:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not copier.is_known:
            return ErrorCode.OFFSET_NOT_AVAILABLE  # if it were believed, no life with an earlier epoch would be counted
        if copier.broker_epoch < 0 or replicas.is_former_life(copier.broker_id, copier.broker_epoch):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        copier.in_sync.fetched(
            *(partition, copier.broker_id, wanted.fetch_offset),
            start_offset=wanted.log_start_offset,
            broker_epoch=copier.broker_epoch,
        )
        if wanted.fetch_offset == wanted.log_start_offset:  # its log is empty
            replicas.begins(copier.broker_id, copier.broker_epoch, partition.log.times_forgotten)
        return ErrorCode.NONE

    async def wait(self) -> None:
        """Wait until there is enough for an answer, or the longest wait is over. `found` then has the answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self.terms.max_wait_ms, LONGEST_WAIT_MS) / 1000
        watched: list[Partition] = []
        self._woken = loop.create_future()
        session = self.session
        if self._is_hurried():
            return
        if self.copier is not None:
            self.caller.parked = self
        try:
            # This reader was not told of changes between the reading and now.
            if session is not None:
                session.readers[self] = None
                if session.is_closed or any(wanted.has_moved for wanted in session.stirred.values()):
                    self.moved()
            else:
                for count, (key, data) in enumerate(self.found.items(), 1):
                    if count % READ_AT_ONCE == 0:
                        await breathe()
                    partition = self._partition(key)
                    if not isinstance(partition, ErrorCode):
                        watched.append(partition)
                        partition.watch(self, tail=self.copier is not None)
                        if self._has_moved(partition, key, data):
                            self.moved()
            while True:
                timer = loop.call_at(min(deadline, loop.time() + self._rests_s()), self.moved)
                try:
                    with self.caller.waits():
                        await self._woken
                finally:
                    timer.cancel()
                self._woken = loop.create_future()  # what changes while this reads counts for the next time
                self._is_held_back = False
                if await self.read() or self._is_hurried() or loop.time() >= deadline:
                    return
        finally:
            self.caller.parked = None
            if session is not None:
                del session.readers[self]
            for partition in watched:
                partition.unwatch(self)

    def _rests_s(self) -> float:
        """How long this waits, if nothing says that there is more to read."""
        if self.copier is None or not self._is_held_back:
            return float("inf")
        return self.copier.throttle.rest_s

    def _has_moved(self, partition: Partition, key: SessionKey, data: PartitionRead) -> bool:
        if partition.high_watermark != data.high_watermark:
            return True
        wanted = self.wanted.get(key)
        if self.copier is None or wanted is None:
            return False
        return partition.log.end_offset > wanted.fetch_offset or partition.log.start_offset != data.log_start_offset

    def _is_hurried(self) -> bool:
        """A follower sends a request behind its Fetch when it has more partitions to ask for. Other clients that do so
        expect that the Fetch waits as long as it says.
        """
        return self.copier is not None and self.caller.is_hurried

    def moved(self) -> None:
        """There may be more to read."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def committed(self) -> None:
        """The high watermark has moved, where this watches the end of the log."""
        if self.copier is not None and self.copier.has_readers:
            self.moved()
