# Hot path: `append_from_client` and `read` run once a batch and once a fetched partition; `python -m tests.bench
# --only produce` answers for them.
"""One partition on this broker: its log, the views folded from the log, and its place among the replicas.

A partition has one role: it leads, it follows (a known leader or none yet), or its disk has failed. Each new role is a
new object. Code that awaits something compares the role afterwards with the one from before, and so notices a change.

What always holds:
 - Offsets are handed out in the order of appends. A batch is in the log and in every view, or in none of them. A
   follower's batches have the offsets and epochs that their leader gave them.
 - Consumers see nothing at or above the high watermark. The high watermark covers only what every in-sync replica holds
   (durably, where durability is `fsync`). A follower knows of it what its leaders told it.
 - A wait for an offset is answered once: when the high watermark has passed the offset, or when this broker can no
   longer promise that it will.
 - After a disk fault the partition is not served any more, neither for writing nor for reading. A full disk is not a
   fault: producers are told to send again, and everything else is served.

Everything here is plain `def`, apart from flushing. So nothing in a partition changes between two awaits elsewhere.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from idempotence.producers import BatchOrigin, Guard, ProducerStates
from idempotence.verdicts import (
    ACCEPTED,
    CoordinatorFenced,
    Duplicate,
    NotInTransaction,
    OutOfOrder,
    StaleEpoch,
    TooManyProducers,
    Verdict,
)
from isolation.markers import Left
from isolation.stable import StableOffsets
from log.batch import (
    CHECKED_FROM,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatch,
    build_empty_batch,
    clear_attributes,
    crc32c,
    read_header,
    restamp,
    restamped,
    set_log_append_time,
    set_max_timestamp,
)
from log.config import LogConfig
from log.control import ControlType, build_marker
from log.cutting import restart_at, truncate_to, views_below
from log.disk import DiskFault, FileSlice
from log.ids import NO_EPOCH, TopicId, TopicPartition
from log.laying import LaidBatch, is_large
from log.partition_log import PartitionLog
from log.replica import ReplicaSet
from log.segment import IndexesLost
from log.snapshots import restoring
from log.views import View
from service.broker.acceptance import (
    BROKERS_BITS,
    Inspected,
    RefusedBatch,
    inspect_at_once,
    inspect_batch,
    must_inspect,
    stored_bytes,
)
from service.broker.large import LAY_FIRST, LargeBatch, Wanted
from service.broker.log_folder import LogFolder
from service.broker.tally import PartitionTally
from service.turns import Steps
from service.wire.error_codes import ErrorCode

logger = logging.getLogger("oncelog.partition")

_numbers = count()
ACKS_ALL = -1
NOT_LEADER = RefusedBatch(ErrorCode.NOT_LEADER_OR_FOLLOWER)
OFFLINE = RefusedBatch(ErrorCode.KAFKA_STORAGE_ERROR)
TOO_FEW_IN_SYNC = RefusedBatch(ErrorCode.NOT_ENOUGH_REPLICAS)
NOBODY = -1
UNCONFIRMED = RefusedBatch(
    ErrorCode.NOT_ENOUGH_REPLICAS, "The transaction is not known to be open here yet; try again."
)
"""The refusal of a transactional batch whose coordinator has confirmed nothing that still holds. It says nothing of the
transaction, so the client must not give it up: while others were asked about, this partition began to be led, or a
marker came. When the batch is sent again, the coordinator is asked. Kafka answers INVALID_TXN_STATE, which is fatal.
"""
NOT_NOW = RefusedBatch(
    ErrorCode.NOT_ENOUGH_REPLICAS,
    "The disk has no room, or the process no descriptor, for it now, or the indexes are being rebuilt.",
)
"""The error for which every client sends the same batch again, to the same leader, and knows that the batch was not
written.
"""
SENT_BEHIND = RefusedBatch(
    ErrorCode.NOT_ENOUGH_REPLICAS, "A batch that comes before it was refused for now; send that one again first."
)
SENT_BEHIND_MS = 10_000
"""For how long after a batch was refused for now, batches may come that the producer has sent behind it before it knew.
Kafka calls them out of order.
"""


@dataclass(slots=True)
class Appended:
    """A batch is in the log, since now or since before (`duplicate`). It is committed once the high watermark reaches
    `end_offset`. Never changed; not frozen, because that takes longer, and one is made for each batch.
    """

    base_offset: int
    end_offset: int
    log_append_time_ms: int = -1
    duplicate: bool = False


MarkerKey = tuple[ControlType, int, int]
"""A marker of a producer: its kind, the producer's epoch, and the coordinator's."""
SLOW_MARKERS_MAX = 10_000
"""Of how many markers that were given up a partition knows where they are. The others are written again."""


class PartitionLost(Exception):
    """This broker can no longer promise what a task waits for: it stopped leading, or the disk failed."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


@dataclass(slots=True, eq=False)
class Leading:
    """This broker leads, with these replicas."""

    replicas: ReplicaSet


@dataclass(slots=True, eq=False)
class Following:
    """Another broker leads in that epoch, or no leader is known."""

    leader: int = NOBODY
    leader_epoch: int = NO_EPOCH
    in_sync: bool = False
    """Whether this broker is in sync, as its image of the metadata says."""


@dataclass(slots=True, eq=False)
class Offline:
    """The disk has failed, or the partition's files are damaged."""


Role = Leading | Following | Offline


class Watcher(Protocol):
    """Something that is told when there may be more to read."""

    def moved(self) -> None: ...


class TailWatcher(Watcher, Protocol):
    """Something that reads to the end of the log, and is told of the high watermark, too."""

    def committed(self) -> None: ...


class Partition:
    __slots__ = (
        "_committed_waiters",
        "_fsync",
        "_known_high_watermark",
        "_late_waiters",
        "_refused_at_ms",
        "_replicas",
        "_short_waiters",
        "_slow_markers",
        "_start_waiters",
        "_tail_watchers",
        "_unanswered",
        "_watchers",
        "committed_taken_back",
        "folder",
        "is_leading",
        "is_replicated",
        "leader_epoch",
        "leads_from_offset",
        "log",
        "must_close_gap",
        "producers",
        "role",
        "stable",
        "tally",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        folder: LogFolder,
        producers: ProducerStates,
        stable: StableOffsets,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.folder = folder
        self.producers = producers
        self.stable = stable
        self.tally = PartitionTally()
        self._become(Following())
        self.is_replicated = False  # other brokers hold it too
        self.leader_epoch = NO_EPOCH
        self.leads_from_offset = 0
        self.must_close_gap = False
        self.committed_taken_back = 0
        """How often a follower has removed what was committed."""
        self._known_high_watermark = log.start_offset
        # The in-sync set that was proposed and not answered when this broker stopped leading, and the partition epoch
        # that the proposal was based on.
        self._unanswered: tuple[int, tuple[int, ...]] = (-1, ())
        self._fsync = False
        self._refused_at_ms = -SENT_BEHIND_MS
        """When a client was last told to send a batch again."""
        self._committed_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._late_waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        """Those who wait for an older offset than another did before them, as a heap."""
        self._short_waiters: list[asyncio.Future[None]] = []
        self._slow_markers: dict[int, tuple[MarkerKey, Appended]] = {}
        self._start_waiters: dict[asyncio.Future[None], int] = {}
        self._watchers: dict[Watcher, None] = {}
        self._tail_watchers: dict[TailWatcher, None] = {}

    # -- roles

    @property
    def offline(self) -> bool:
        return isinstance(self.role, Offline)

    @property
    def replicas(self) -> ReplicaSet:
        """What this leader knows of the replicas. Only a leader may be asked."""
        assert self._replicas is not None, "only a leader knows what the replicas hold"
        return self._replicas

    def _become(self, role: Role) -> None:
        self.role: Role = role
        # These two follow from the role. They are asked once a batch, or once a fetched partition.
        self.is_leading = isinstance(role, Leading)
        self._replicas = role.replicas if isinstance(role, Leading) else None

    @property
    def must_flush(self) -> bool:
        """Whether the log has something that must be flushed before it counts as held. That is so of gaps whatever the
        durability is: a recovery that finds a gap which was not noted takes it for lost batches.
        """
        return bool(self.log.durability.gaps_left) or (self._fsync and self.log.flushed_offset < self.log.end_offset)

    @property
    def not_leading(self) -> RefusedBatch:
        """The refusal for requests that need a leader, while this broker does not lead."""
        return OFFLINE if self.offline else NOT_LEADER

    def lead(
        self,
        leader_epoch: int,
        leader: int,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        *,
        fsync: bool,
        partition_epoch: int = 0,
        eligible: tuple[int, ...] = (),
        now_ms: int = 0,
    ) -> None:
        """Start to lead in `leader_epoch`. All that is in the log counts as held by this replica. What an earlier
        leader said is committed stays committed. An in-sync set that was proposed, and may still be accepted, must
        still hold a batch before the batch is committed.
        """
        assert leader_epoch >= self.leader_epoch, "leadership never goes back"
        if leader_epoch != self.leader_epoch:
            self.log.epochs.assign(leader_epoch, self.log.end_offset)
            self.leader_epoch, self.leads_from_offset = leader_epoch, self.log.end_offset
        self.log.forgotten_below = min(self.log.forgotten_below, self.log.end_offset)  # what is above was not copied
        self._fsync = fsync
        self.is_replicated = len(replicas) > 1
        proposed_at, proposed = self._unanswered
        replica_set = ReplicaSet(
            leader,
            leader_epoch,
            replicas,
            isr,
            high_watermark=min(self.high_watermark, self.log.end_offset),
            epoch_start_offset=self.leads_from_offset,
            partition_epoch=partition_epoch,
            eligible=eligible,
            min_in_sync=self.log.config.min_insync_replicas,
            doubtful=proposed if proposed_at == partition_epoch else (),
            now_ms=now_ms,
        )
        if isinstance(self.role, Leading) and self.role.replicas.leader_epoch == leader_epoch:
            replica_set.goes_on(self.role.replicas)
        self._become(Leading(replica_set))
        assert self.high_watermark <= self.log.end_offset, "what is committed is in the leader's log"
        assert self.log.forgotten_below <= self.log.end_offset, "only deletions that stood in this log have left it"
        if self.must_flush:
            self.folder.flusher.request(self)
        self._held()
        self._settled(moved=False)  # those who waited in an earlier role wait still
        self._wake(self._watchers)  # readers may believe in another leader epoch, and followers are counted anew
        self._wake(self._tail_watchers)

    def follow(self, leader: int, leader_epoch: int, *, fsync: bool) -> Following:
        """Copy the log of `leader` from now on; with `NOBODY`, wait for a leader. A call with the same leader and epoch
        changes nothing.
        """
        assert leader_epoch >= self.leader_epoch, "leadership never goes back"
        role = self.role
        self._fsync, self.is_replicated = fsync, True
        if not isinstance(role, Following) or (role.leader, role.leader_epoch) != (leader, leader_epoch):
            self.resign()
            self.leader_epoch = leader_epoch
            self.log.epochs.truncate_from_end(self.log.end_offset)  # epochs without a batch of this broker
            role = Following(leader, leader_epoch)
            self._become(role)
        return role

    def resign(self, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Stop leading or following. All waits fail with `error`."""
        self._known_high_watermark = self.high_watermark
        self._slow_markers.clear()  # they may be cut
        if self.is_leading:
            self._unanswered = self.replicas.partition_epoch, self.replicas.pending_isr
        if not self.offline:
            self._become(Following())
        # A broker that loses its session does this for all its partitions in one turn, and hardly any is waited for.
        if self._committed_waiters or self._late_waiters:
            self._disappoint(error)
        if self._short_waiters or self._start_waiters:
            others = [*self._short_waiters, *self._start_waiters]
            self._short_waiters = []
            for waiter in others:
                _fail(waiter, PartitionLost(error))
        if self._watchers or self._tail_watchers:
            self._wake(self._watchers)
            self._wake(self._tail_watchers)

    def fail(self) -> None:
        """The disk has failed. Nothing is appended any more, and all waits fail."""
        self.resign(ErrorCode.KAFKA_STORAGE_ERROR)
        self._become(Offline())

    def set_config(self, config: LogConfig, *, fsync: bool) -> None:
        self.log.set_config(config)
        self._fsync = fsync
        if self.must_flush:
            self.folder.flusher.request(self)
        if self.is_leading:
            self._settled(moved=self.replicas.require(config.min_insync_replicas))

    # -- leading

    def close_gap(self, *, now_ms: int) -> None:
        """If this log ends in a gap, append an empty batch. Followers copy batches, and would never come to the end
        otherwise. The cleaner keeps the last batch; but a log that was cut in a gap ends there, and so may a log that a
        former cleaner left. If there is no room now, `must_close_gap` says so, and this is called again.
        """
        self.must_close_gap = False
        try:
            if self.log.ends_in_gap:  # also if the topic is not compacted any more
                empty = build_empty_batch()
                appended = self._append_decided(memoryview(empty), read_header(empty), now_ms)
                self.must_close_gap = appended is NOT_NOW
        except (DiskFault, CorruptBatch) as error:
            self.must_close_gap = isinstance(error, DiskFault) and error.passing
            self.unreadable(error)

    def decided(self, isr: tuple[int, ...], partition_epoch: int, eligible: tuple[int, ...]) -> None:
        """The metadata says who is in sync now, and who else is eligible to lead."""
        left = set(self.replicas.isr) - set(isr)
        self._settled(moved=self.replicas.decided(isr, partition_epoch, eligible))
        if left:
            self._wake(self._tail_watchers)  # their fetches decide whether they are in sync again

    def not_accepted(self, *, doubtful: bool) -> None:
        """The proposed in-sync set was refused; or, with `doubtful`, nobody knows whether it was."""
        self._settled(moved=self.replicas.refused(doubtful=doubtful))

    def fetched(self, member: int, offset: int, *, start_offset: int, broker_epoch: int, now_ms: int) -> None:
        """A follower holds everything from `start_offset` up to `offset` (exclusive), in the history of this log."""
        moved = self.replicas.fetched(
            *(member, offset),
            start_offset=start_offset,
            log_end_offset=self.log.end_offset,
            broker_epoch=broker_epoch,
            now_ms=now_ms,
        )
        if moved:
            self._committed(self.replicas.high_watermark)
        if self._start_waiters:
            self._started()

    def is_being_copied(self, now_ms: int, within_ms: int) -> bool:
        """Whether this broker leads, and a follower that began with an empty log has got on within this time."""
        return self.is_leading and self.replicas.is_being_copied(self.log.times_forgotten, now_ms, within_ms)

    def held_all(self, member: int, *, broker_epoch: int, until_ms: int) -> None:
        """A follower held all that this log had at that time."""
        if self.is_leading:
            self.replicas.held_all(member, broker_epoch=broker_epoch, until_ms=until_ms)

    def _settled(self, *, moved: bool) -> None:
        """Answer waits after a change of the in-sync set, or of the number of replicas that must be in sync. If too few
        are in sync, nothing can be committed, and waits for commits fail.
        """
        self._started()
        if self.replicas.is_short:
            self._disappoint(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            return
        enough, self._short_waiters = self._short_waiters, []
        for waiter in enough:
            if not waiter.done():
                waiter.set_result(None)
        if moved:
            self._committed(self.replicas.high_watermark)

    def enough_in_sync(self) -> asyncio.Future[None] | None:
        """None if enough replicas are in sync to commit something now. Otherwise a future, which is answered when that
        is so, or fails with `PartitionLost`.
        """
        if not self.is_leading:
            raise PartitionLost(self.not_leading.error)
        if not self.replicas.is_short:
            return None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._short_waiters.append(waiter)
        return waiter

    def deleted(self, offset: int) -> asyncio.Future[None] | None:
        """This log no longer has anything below `offset`. None if no replica that may lead next has it either, so that
        it can't come back. Otherwise a future, which is answered when that is so, or fails with `PartitionLost`. That
        may take long: such a replica may be down.
        """
        if not self.is_leading:
            raise PartitionLost(self.not_leading.error)
        if self.replicas.start_at(offset):
            return None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start_waiters[waiter] = offset
        waiter.add_done_callback(self._start_waiters.__delitem__)  # also when the task gives up
        self._wake(self._tail_watchers)
        return waiter

    def _started(self) -> None:
        for waiter, offset in self._start_waiters.items():
            if not waiter.done() and self.replicas.start_at(offset):
                waiter.set_result(None)

    def _disappoint(self, error: ErrorCode) -> None:
        waiters, self._committed_waiters = self._committed_waiters, deque()
        late, self._late_waiters = self._late_waiters, []
        for _, waiter in waiters:
            _fail(waiter, PartitionLost(error))
        for _, _, waiter in late:
            _fail(waiter, PartitionLost(error))

    # -- following

    def append_replicated(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        now_ms: int,
        checksum: int | None = None,
        laid: LaidBatch | None = None,
    ) -> None:
        """Append one batch exactly as the leader has it. Raises `CorruptBatch` if the batch can't come next in this
        log, and `DiskFault` if it can't be written. Nothing has changed then. Of a large batch the `checksum` was
        reckoned before, and it was laid beside the log.
        """
        role, log = self.role, self.log
        assert isinstance(role, Following), "only a follower copies"
        if (crc32c(batch[CHECKED_FROM:]) if checksum is None else checksum) != header.crc:
            raise CorruptBatch(f"the checksum of the leader's batch at offset {header.base_offset} is wrong")
        if header.base_offset < log.end_offset:
            raise CorruptBatch(f"the leader sent offset {header.base_offset} where {log.end_offset} was due")
        if not log.epochs.latest <= header.leader_epoch <= role.leader_epoch:
            epochs = f"{log.epochs.latest} to {role.leader_epoch}"
            raise CorruptBatch(f"the leader sent leader epoch {header.leader_epoch}, not one of {epochs}")
        log.append_after_gap(batch, header, now_ms=now_ms, laid=laid)
        assert log.end_offset == header.next_offset, "the next batch to fetch follows this one"
        if header.is_control:
            self.stable.forget_ended(self.high_watermark)
        if self._fsync or log.end_offset - log.flushed_offset >= log.config.flush_messages:
            self.folder.flusher.request(self)

    def learn_high_watermark(self, high_watermark: int) -> None:
        """Everything below is committed. The leader says so, or a note from before the stop."""
        assert not self.is_leading, "a leader knows better"
        known = min(high_watermark, self.log.end_offset)
        if known > self._known_high_watermark:
            self._known_high_watermark = known
            self._wake(self._watchers)

    def cut(self, end_offset: int) -> Steps[bool]:
        """Remove from `end_offset` on what the leader does not have. Committed data can be among it only after an
        unclean election, or if compaction has removed it from the leader's log. The log is cut in one step, after those
        that make what the views will know; the files leave in the steps afterwards. It is not cut, and False is
        returned, once the role is another one. Who leads while files leave has nothing appended before they are gone.
        """
        role = self.role
        assert isinstance(role, Following), "only a follower cuts"
        making = views_below(self.log, end_offset)
        while True:
            try:
                next(making)
            except StopIteration as made:
                views: list[View] = made.value
                break
            yield
            if self.role is not role:  # who leads waits for the log
                return False
        if self._known_high_watermark > end_offset:
            self.committed_taken_back += 1
            logger.error(
                "%s is cut to offset %d, though offsets up to %d were committed: what the leader does not have is lost",
                *(self.topic_partition, end_offset, self._known_high_watermark),
            )
        try:
            known = truncate_to(self.log, end_offset, views)
        finally:  # a cut into a gap that finds no room there has still been made
            self._known_high_watermark = min(self._known_high_watermark, self.log.end_offset)
            yield from self.log.durability.clearing()
        assert self.log.end_offset <= end_offset, "nothing is left of what the leader does not have"
        yield from restoring(known, {})
        return True

    def start_over(self, offset: int) -> Steps[None]:
        """Remove everything, and begin at `offset`, where the leader's log begins."""
        assert isinstance(self.role, Following), "only a follower starts over"
        self.committed_taken_back += 1
        known = restart_at(self.log, offset)
        self._known_high_watermark = offset
        yield from self.log.durability.clearing()
        yield from restoring(known, {})

    # -- writing

    def append_from_client(
        self,
        records: memoryview,
        *,
        acks: int,
        now_ms: int,
        guard: Guard | None = None,
        needs_guard: bool = True,
        inspected: Inspected | None = None,
        large: LargeBatch | None = None,
    ) -> Appended | RefusedBatch:
        """Append one client's batch; offsets and epoch are written into `records` itself. If the batch is refused,
        nothing has changed.

        A `large` batch, if it is large as it is to be stored, is not appended before it was laid beside the log.
        `LAY_FIRST`: it is to be laid now, as `large.wanted` says, and then this is called again. All is judged again
        then, as if the batch had come then.

        `inspected` is the result of a look at the records under the topic's settings. If it is missing or the settings
        have changed, the look happens here. `guard` was given out by `producers.start_verification` before the
        transaction coordinator confirmed the batch.
        """
        replicas = self._replicas
        if replicas is None:
            return self.send_again(self.not_leading, now_ms)
        log = self.log
        config = log.config
        if acks == ACKS_ALL and replicas.is_short:
            return self.send_again(TOO_FEW_IN_SYNC, now_ms)
        header = inspect_batch(records, config, now_ms, None if large is None else large.checksum)
        if isinstance(header, RefusedBatch):
            return header
        if inspected is None or inspected.config is not config:
            inspected = (
                inspect_at_once(records, header, config, now_ms) if must_inspect(header, config, now_ms) else None
            )
        if inspected is not None and inspected.refused is not None:
            return inspected.refused
        headroom = self.folder.headroom
        if header.producer_id >= 0:
            verdict = self.producers.check(header, now_ms=now_ms, guard=guard, needs_guard=needs_guard)
            if verdict is not ACCEPTED:
                if isinstance(verdict, OutOfOrder) and 0 <= now_ms - self._refused_at_ms < SENT_BEHIND_MS:
                    # Meanwhile others came in sync, there is room again, or this broker leads. The refused batch is
                    # sent again, and this one behind it. Told that it is out of order, librdkafka begins a new epoch in
                    # all its partitions, and writes again what was not answered yet in the others.
                    return SENT_BEHIND
                self.tally.judged(verdict)
                return _not_new(verdict)
        if headroom.is_short:
            return self.send_again(NOT_NOW, now_ms)
        append_time_ms = -1
        laid: LaidBatch | None = None
        if large is not None and is_large(stored_bytes(records, inspected)):
            if not large.is_laid(log):
                large.wanted = Wanted(log, config, header, inspected)
                return LAY_FIRST
            records, header, append_time_ms = large.as_laid(now_ms)
            laid = large.laid
        elif inspected is not None or header.attributes & BROKERS_BITS or config.message_timestamp_type != "CreateTime":
            if inspected is not None and inspected.records is not None:
                records = memoryview(inspected.records)
            elif inspected is not None and inspected.newest_ms is not None:
                set_max_timestamp(records, inspected.newest_ms)
            if header.attributes & BROKERS_BITS:
                clear_attributes(records, BROKERS_BITS)
            if config.message_timestamp_type == "LogAppendTime":
                append_time_ms = now_ms
                set_log_append_time(records, now_ms)
            header = read_header(records)
        size_bytes = header.size_bytes
        headroom.took(size_bytes)
        appended = self._append(records, header, append_time_ms, now_ms, laid)
        if isinstance(appended, Appended):
            tally = self.tally
            tally.appended += 1
            tally.records_in += header.record_count
            tally.bytes_in += size_bytes
            return appended
        return self.send_again(appended, now_ms)

    def send_again(self, refused: RefusedBatch, now_ms: int) -> RefusedBatch:
        """This refusal of a client's batch, and of what the client may have sent behind it."""
        self._refused_at_ms = now_ms
        return refused

    def append_own(self, batch: bytearray, *, now_ms: int) -> Appended | RefusedBatch:
        """Append a batch that this broker made: records of a coordinator."""
        if not self.is_leading:
            return self.not_leading
        if self.replicas.is_short:
            return TOO_FEW_IN_SYNC
        return self._append_decided(memoryview(batch), read_header(batch), now_ms)

    def refuse_offsets(
        self, producer_id: int, producer_epoch: int, guard: Guard | None, *, now_ms: int
    ) -> RefusedBatch | None:
        """Why this producer may not commit offsets in a transaction now; None if it may. The answer holds only until
        the next await.
        """
        if not self.is_leading:
            return self.not_leading
        offsets = BatchHeader(0, 0, 0, 2, 0, TRANSACTIONAL, 0, now_ms, now_ms, producer_id, producer_epoch, -1, 1)
        verdict = self.producers.check(offsets, now_ms=now_ms, origin=BatchOrigin.COORDINATOR, guard=guard)
        if verdict is ACCEPTED:
            return None
        refused = _not_new(verdict)
        assert isinstance(refused, RefusedBatch), "offsets have no sequence and are never duplicates"
        return refused

    def append_marker(
        self,
        kind: ControlType,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> Appended | RefusedBatch:
        """Append a marker that says how a transaction ended. A marker that is written twice changes nothing. One that
        was given up before it was committed is not written again; the outcome is the earlier one.
        """
        if not self.is_leading:
            return self.not_leading
        if self.replicas.is_short:
            return TOO_FEW_IN_SYNC
        marker = bytearray(
            build_marker(
                kind,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp_ms=now_ms,
            )
        )
        header = read_header(marker)
        verdict = self.producers.check_marker(
            header, coordinator_epoch=coordinator_epoch, transaction_version=transaction_version
        )
        if isinstance(verdict, CoordinatorFenced):
            return RefusedBatch(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        if verdict is not ACCEPTED:
            return RefusedBatch(ErrorCode.INVALID_PRODUCER_EPOCH)
        slow = self._slow_markers.pop(producer_id, None)
        if slow is not None and producer_id not in self.stable.open_transactions:
            key, earlier = slow
            if key == (kind, producer_epoch, coordinator_epoch):
                self.producers.end_verification(producer_id)  # as a marker that is written would (R13)
                return earlier
        appended = self._append_decided(memoryview(marker), header, now_ms)
        # With each marker the stable offset has one more ended transaction to remember until it is replicated. Forget
        # the old ones here, because there may be no reader that does.
        self.stable.forget_ended(self.high_watermark)
        if isinstance(appended, Appended):
            assert producer_id not in self.stable.open_transactions, "its marker ends a transaction"
        return appended

    def gave_up_marker(self, producer_id: int, key: MarkerKey, appended: Appended) -> None:
        """Nobody waits any more for the commit of this marker, which this leader has appended. A coordinator that sends
        it again waits for it. If each attempt appended another one, none would be in time while every commit is slow.
        """
        if len(self._slow_markers) >= SLOW_MARKERS_MAX:
            del self._slow_markers[next(iter(self._slow_markers))]
        self._slow_markers[producer_id] = key, appended

    def _append_decided(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended | RefusedBatch:
        """Append a batch that must not wait for room. If the disk is full, the first attempt has given up the folder's
        reserve, so a second attempt may find room.
        """
        appended = self._append(batch, header, -1, now_ms)
        return self._append(batch, header, -1, now_ms) if appended is NOT_NOW else appended

    def _append(
        self,
        records: memoryview,
        header: BatchHeader,
        append_time_ms: int,
        now_ms: int,
        laid: LaidBatch | None = None,
    ) -> Appended | RefusedBatch:
        log = self.log
        base_offset = log.end_offset
        restamp(records, base_offset=base_offset, leader_epoch=self.leader_epoch)
        header = restamped(header, base_offset=base_offset, leader_epoch=self.leader_epoch)
        try:
            log.append(records, header, now_ms=now_ms, laid=laid)
        except (DiskFault, CorruptBatch) as error:
            self.folder.blame(error, self.topic_partition)
            return self.refused_for(error)
        durability = log.durability
        if self._fsync or durability.gaps_left:
            self.folder.flusher.request(self)
        else:
            self._held()
            if log.end_offset - durability.flushed_offset >= log.config.flush_messages:
                self.folder.flusher.request(self)
        if self._tail_watchers:
            self._wake(self._tail_watchers)
        return Appended(base_offset, log.end_offset, append_time_ms)

    def refused_for(self, error: DiskFault | CorruptBatch) -> RefusedBatch:
        """The refusal of a batch that could not be written for this reason."""
        if isinstance(error, DiskFault) and error.passing:
            return NOT_NOW
        if not self.offline:
            if self.folder.failed is None:  # the disk is fine, but the segment that is written to is not
                logger.critical("%s is damaged and no longer served", self.topic_partition)
            self.fail()
        return OFFLINE

    def harmed(self, fault: DiskFault) -> None:
        """A change of this partition's files has failed. If one of them is missing, no other partition is harmed."""
        if fault.is_missing and self.folder.disk.fault is None:
            self.folder.blame(fault, self.topic_partition)
            self.refused_for(fault)
        else:
            self.folder.fail(fault)

    async def note_damage(self) -> None:
        """Otherwise the next start would not look for it: what is durable is read no more. Then this copy would be in
        sync, or lead, until a replay finds the damage.
        """
        try:
            await self.log.note_damage()
        except DiskFault as fault:
            self.harmed(fault)

    # -- committing

    @property
    def high_watermark(self) -> int:
        replicas = self._replicas
        if replicas is not None:
            return replicas.high_watermark
        return max(self._known_high_watermark, self.log.start_offset)

    @property
    def last_stable_offset(self) -> int:
        return self.stable.last_stable_offset(self.high_watermark, self.log.start_offset)

    def left_from(self, offset: int) -> Left:
        """What is left for a reader who has come to this offset."""
        return self.stable.markers.left(
            offset, start=self.log.start_offset, stable=self.last_stable_offset, high=self.high_watermark
        )

    @property
    def is_catching_up(self) -> bool:
        """Whether the high watermark is still below the point where this leadership began. Readers of the earlier
        leader may have seen offsets above it.
        """
        return self.is_leading and self.high_watermark < self.leads_from_offset

    async def flush(self) -> None:
        """Make durable all that was appended before the call, and answer those who wait for that."""
        folder = self.folder
        try:
            await self.log.flush()
        except DiskFault as fault:
            if self.folder is folder and not fault.is_missing:
                raise
            self.harmed(fault)  # if the partition has moved to another folder meanwhile, `folder` has not failed
        else:
            self._held()

    def move_to(self, folder: LogFolder) -> None:
        """The log is in another folder from now on."""
        self.folder.partitions -= 1
        folder.partitions += 1
        self.folder = folder
        if self.must_flush:
            folder.flusher.request(self)

    def _held(self) -> None:
        replicas, log = self._replicas, self.log
        held = log.flushed_offset if self._fsync or log.durability.gaps_left else log.end_offset
        if replicas is not None and replicas.holds(held):
            self._committed(replicas.high_watermark)

    def _committed(self, high_watermark: int) -> None:
        assert high_watermark <= self.log.end_offset, "only what this leader has is committed"
        waiters = self._committed_waiters
        while waiters and waiters[0][0] <= high_watermark:
            _, waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        late = self._late_waiters
        while late and late[0][0] <= high_watermark:
            _, _, waiter = heappop(late)
            if not waiter.done():
                waiter.set_result(None)
        if self._watchers:
            self._wake(self._watchers)
        for watcher in self._tail_watchers:
            watcher.committed()

    def committed(self, end_offset: int) -> asyncio.Future[None] | None:
        """None if everything below `end_offset` is committed already. Otherwise a future, which is answered when it is,
        or fails with `PartitionLost`.
        """
        replicas = self._replicas
        if replicas is None:
            raise PartitionLost(self.not_leading.error)
        if replicas.high_watermark >= end_offset:
            return None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._committed_waiters
        if waiters and waiters[-1][0] > end_offset:  # a duplicate waits for an older offset than the newest append
            heappush(self._late_waiters, (end_offset, next(_numbers), waiter))
        else:
            waiters.append((end_offset, waiter))
        return waiter

    # -- reading

    def read(self, offset: int, *, max_bytes: int, limit_offset: int, at_least_one: bool) -> FileSlice | None:
        """Stored batches from the one that holds `offset`, and below `limit_offset`. The offset must lie within the
        log.
        """
        return self.log.read(offset, max_bytes=max_bytes, limit_offset=limit_offset, at_least_one=at_least_one)

    def watch(self, watcher: TailWatcher, *, tail: bool = False) -> None:
        """Tell `watcher` when there is more to read. With `tail` that includes what is not committed, which followers
        read.
        """
        if tail:
            self._tail_watchers[watcher] = None
        else:
            self._watchers[watcher] = None

    def unwatch(self, watcher: TailWatcher) -> None:
        self._watchers.pop(watcher, None)
        self._tail_watchers.pop(watcher, None)

    def unreadable(self, error: DiskFault | CorruptBatch) -> ErrorCode:
        """The error for a reader, when stored bytes can't be read. Other partitions, and writers to this one, are not
        affected.
        """
        if isinstance(error, IndexesLost):
            self.folder.blame(error, self.topic_partition)
        else:
            logger.error("%s can't be read: %s", self.topic_partition, error)
        return ErrorCode.KAFKA_STORAGE_ERROR if isinstance(error, DiskFault) else ErrorCode.CORRUPT_MESSAGE

    @staticmethod
    def _wake(watchers: Iterable[Watcher]) -> None:
        for watcher in list(watchers):
            watcher.moved()


def _fail(waiter: asyncio.Future[None], error: PartitionLost) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # marks the error as seen: if the waiting task is gone, asyncio would warn


def _not_new(verdict: Verdict) -> Appended | RefusedBatch:
    match verdict:
        case Duplicate(first_offset, last_offset, timestamp_ms):
            return Appended(first_offset, last_offset + 1, timestamp_ms, duplicate=True)
        case OutOfOrder(sequence, expected):
            message = f"Out of order sequence number {sequence}, expected {expected}."
            return RefusedBatch(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)
        case StaleEpoch(epoch, current_epoch):
            message = f"Epoch of the producer is {epoch}, smaller than the last seen epoch {current_epoch}."
            return RefusedBatch(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        case TooManyProducers(limit):
            return RefusedBatch(
                ErrorCode.POLICY_VIOLATION, f"{limit} producers are remembered, and none of them is idle."
            )
        case NotInTransaction():
            return UNCONFIRMED
        case _:
            return RefusedBatch(ErrorCode.INVALID_TXN_STATE)
