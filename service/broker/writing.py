# Hot path: one `Writing` a Produce request; `python -m tests.bench --only throughput` answers for it.
"""Writing batches of one client to partitions of this broker, independent of the protocol.

What always holds:
 - A transactional batch enters the log only if its coordinator says that the transaction is open.
 - If a topic wants records looked at, they are looked at under the settings that hold at the append.
 - Batches are appended in the order in which they are named. They are appended in one turn of the loop, unless there
   are very many.
 - With acks=all the outcome `Appended` means that every in-sync replica holds the batch. A batch with another outcome
   may still become committed later.

The order of calls: `begin`, then `append`. If `begin` returned False, or `takes_turns` is True, `keep` and
`append_when_ready` take the place of `append`. At last `settle`, unless `is_settled`.
"""

import asyncio
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from idempotence.producers import Guard
from idempotence.verdicts import Duplicate
from log.batch import CODEC_BITS, TRANSACTIONAL, BatchHeader, CorruptBatch, read_header
from log.config import LogConfig
from log.disk import DiskFault
from log.laying import is_large
from service.broker.acceptance import CODECS, Inspected, RefusedBatch, stored_bytes
from service.broker.in_sync import InSyncSets
from service.broker.inspector import Inspector
from service.broker.internal_topics import INTERNAL_TOPICS
from service.broker.large import LAY_FIRST, LargeBatch
from service.broker.partition import ACKS_ALL, NOT_NOW, Appended, Partition, PartitionLost
from service.broker.partition_table import TopicPartitions
from service.broker.session import Session
from service.broker.transaction_gate import TransactionalWriter, TransactionGate
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import breathe, in_turns
from service.wire.error_codes import ErrorCode

ATTRIBUTES_AT: Final = 22
"""The position of the byte, among a batch's attributes, that says whether the batch is transactional."""
TIMES_AT: Final = 27
"""The position of a batch's base timestamp, which its largest timestamp follows."""
_read_times = struct.Struct(">qq").unpack_from
PAIR: Final = slice(43, 53)
"""The position of the producer id and epoch of a batch."""
MARKERS_LOOKED_AT: Final = 32
"""That takes 0.1 ms, and one turn of the loop may look so for each of WRITES_AT_ONCE batches."""
LOOKS_MAX: Final = 30_000
"""The most turns of looking at MARKERS_LOOKED_AT markers. A client that expects an older offset is told that somebody
has written since.
"""
HEADERS_READ_AT_ONCE: Final = 500
WRITES_AT_ONCE: Final = 64
BYTES_AT_ONCE: Final = 2 << 20
"""The most batches, and the most bytes, that are appended in one turn of the loop. That takes some milliseconds."""
LAID_TIMES: Final = 5
"""How often a large batch is laid beside its log, if each time the log moves or gets other settings meanwhile."""
SETTLED_AT_ONCE: Final = 500
NO_BYTES: Final = memoryview(b"")
WITH_FILES: Final = 12
"""How much longer a batch takes that begins a segment, or a log: files are made, and those of the segment before are
written.
"""

GIVEN_UP_AFTER: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""After these errors a client gives up its producer, or its transaction. So they are only sent after the metadata store
has confirmed that this broker still leads.
"""

MAY_BE_WRITTEN: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""After these errors the client can't know whether the batch is in the log."""


@dataclass(frozen=True, slots=True)
class WritingParts:
    """The parts of the broker that every writing uses."""

    config: BrokerConfig
    env: Env
    inspector: Inspector
    transaction_gate: TransactionGate
    in_sync: InSyncSets


@dataclass(frozen=True, slots=True)
class WriteTerms:
    """What a client asks for, for all batches that it sends together, and what its version of the protocol can do."""

    acks: int
    timeout_ms: int
    transactional_id: str | None
    adds_partitions: bool
    """The client leaves it to the leader to add partitions to its transaction (transaction version 2)."""
    knows_abortable: bool
    """The client knows the error TRANSACTION_ABORTABLE."""
    knows_zstd: bool
    may_write_internal: bool


class Write:
    """A batch for one partition, and its outcome."""

    __slots__ = (
        "admitted",
        "batch",
        "expected_offset",
        "index",
        "inspected",
        "log_start_offset",
        "looked_through",
        "outcome",
        "partitions",
        "was_appended",
    )

    def __init__(
        self, partitions: TopicPartitions | RefusedBatch, index: int, batch: memoryview | RefusedBatch
    ) -> None:
        self.partitions = partitions
        self.index = index
        self.batch = batch
        """Empty once the log has judged it."""
        self.admitted: Guard | RefusedBatch | None = None
        self.inspected: Inspected | None = None
        self.outcome: Appended | RefusedBatch
        self.log_start_offset = -1
        """-1 until the partition itself has judged the batch."""
        self.expected_offset: int | None = None
        """If set, append only if the log ends at this offset, so that nobody has written in between."""
        self.looked_through: tuple[int, int] | None = None
        """The leader epoch in which the log was looked through, and how far only markers follow the expected offset. In
        another epoch that part of the log may have been replaced.
        """
        self.was_appended = False
        """The batch is in the log. Its outcome may still be an error that says that it is not known to be committed."""

    @property
    def partition(self) -> Partition | None:
        partitions = self.partitions
        return None if isinstance(partitions, RefusedBatch) else partitions.get(self.index)


class Writing:
    """The batches of one client that are written together. The module's docstring has the order of the calls."""

    __slots__ = (
        "_delay_s",
        "_final",
        "_needs_guard",
        "_parts",
        "_terms",
        "_uncommitted",
        "is_settled",
        "takes_turns",
        "writes",
    )

    def __init__(self, parts: WritingParts, terms: WriteTerms, writes: Sequence[Write]) -> None:
        self.writes = writes
        self._parts = parts
        self._terms = terms
        # An operator may choose to trust clients that add the partitions themselves.
        self._needs_guard = terms.adds_partitions or parts.config.transaction_partition_verification_enable
        self._uncommitted: list[tuple[Partition, int, Write, Appended]] = []
        self._final: list[tuple[Partition, int, Write]] = []
        self._delay_s = 0.0
        self.takes_turns = self._is_much()
        """There is more to append than one turn of the loop may."""
        self.is_settled = True
        """The outcomes are final, so that the client can be answered now."""

    def _is_much(self) -> bool:
        writes = self.writes
        if len(writes) == 1:
            return _is_large(writes[0])
        if len(writes) > WRITES_AT_ONCE or sum(map(_stored_bytes, writes)) > BYTES_AT_ONCE:
            return True
        if len(writes) * WITH_FILES <= WRITES_AT_ONCE:
            return False
        if len({id(write.partition) for write in writes}) < len(writes):
            return True  # whether a batch begins a segment is only known when those before it are in the log
        now_ms = self._parts.env.clock.wall_ms()
        return sum([_work(write, now_ms) for write in writes]) > WRITES_AT_ONCE

    def begin(self) -> bool:
        """Whether the batches may be appended at once. If not, call `keep` and `append_when_ready`."""
        if self._needs_guard and self._terms.transactional_id is not None:
            for write in self.writes:
                if _unconfirmed(write) is not None:
                    return False
        return self._inspect_now()

    @property
    def looks_far(self) -> bool:
        """Whether the batches must be prepared in any case, because an expected offset is so far back that the look at
        the log takes several turns.
        """
        return any(map(_has_far_to_look, self.writes))

    def wrong(self) -> ErrorCode | None:
        """Why nothing may be written: there are transactional batches without a transactional id or of several
        producers, or the client asks for acks that there are not.
        """
        pair = b""
        for write in self.writes:
            batch = write.batch
            if isinstance(batch, RefusedBatch) or not batch[ATTRIBUTES_AT] & TRANSACTIONAL:
                continue
            if self._terms.transactional_id is None:
                return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if pair and pair != batch[PAIR]:
                return ErrorCode.INVALID_PRODUCER_ID_MAPPING
            pair = bytes(batch[PAIR])
        return None if self._terms.acks in (ACKS_ALL, 0, 1) else ErrorCode.INVALID_REQUIRED_ACKS

    def keep(self) -> None:
        """Copy the batches, because the request's bytes are reused after the call."""
        for write in self.writes:
            if not isinstance(write.batch, RefusedBatch):
                write.batch = memoryview(bytearray(write.batch))

    async def _prepare(self) -> None:
        if not self.takes_turns and not self._inspect_now():
            await self._open(self.writes)
        terms = self._terms
        if terms.transactional_id is not None and self._needs_guard:
            writes = self.writes
            if len(writes) <= HEADERS_READ_AT_ONCE:
                unconfirmed = [each for each in map(_unconfirmed, writes) if each is not None]
            else:
                looked_at = in_turns(map(_unconfirmed, writes), HEADERS_READ_AT_ONCE)
                unconfirmed = [each async for each in looked_at if each is not None]
            wanted = [
                (
                    partition,
                    TransactionalWriter(
                        terms.transactional_id,
                        batch.producer_id,
                        batch.producer_epoch,
                        batch.base_sequence,
                        adds_itself=terms.adds_partitions,
                        knows_abortable=terms.knows_abortable,
                    ),
                )
                for partition, _, batch in unconfirmed
            ]
            admitted = await self._parts.transaction_gate.admit(wanted, timeout_ms=terms.timeout_ms)
            for (_, write, _), answer in zip(unconfirmed, admitted, strict=True):
                write.admitted = answer
            if not self.takes_turns and not self._inspect_now():  # topics whose settings changed meanwhile
                await self._open(self.writes)
        async for write in in_turns(self.writes, WRITES_AT_ONCE):
            if write.expected_offset is not None:
                await _look_far(write)

    # -- before

    def _to_open(self, write: Write) -> tuple[memoryview, LogConfig] | None:
        """The batch, if its records must be looked at and were not looked at under the topic's present settings."""
        partitions, batch = write.partitions, write.batch
        if isinstance(partitions, RefusedBatch) or isinstance(batch, RefusedBatch):
            return None
        partition = partitions.get(write.index)
        if partition is None or not partition.is_leading:
            return None
        config = partition.log.config
        if not config.opens_batches:
            base_ms, newest_ms = _read_times(batch, TIMES_AT)
            if not config.may_hide_newest(base_ms, newest_ms, self._parts.env.clock.wall_ms()):
                return None
        return None if write.inspected is not None and write.inspected.config is config else (batch, config)

    def _inspect_now(self) -> bool:
        """Look at the records. Returns False if that would take longer than one turn of the loop may."""
        for write in self.writes:
            wanted = self._to_open(write)
            if wanted is not None:
                write.inspected = self._parts.inspector.inspect_now(*wanted, self._parts.env.clock.wall_ms())
                if write.inspected is None:
                    return False
        return True

    async def _open(self, writes: Sequence[Write]) -> None:
        """Look at the records of all batches that need it, until each has been looked at under the settings that hold
        when this returns.
        """
        inspector, clock = self._parts.inspector, self._parts.env.clock
        while unknown := [(write, wanted) for write in writes if (wanted := self._to_open(write)) is not None]:
            for write, wanted in unknown:
                now_ms = clock.wall_ms()
                write.inspected = inspector.inspect_now(*wanted, now_ms) or await inspector.inspect(*wanted, now_ms)

    # -- the append

    def append(self) -> None:
        """Append the batches that may be appended. Afterwards every write has its outcome."""
        now_ms = self._parts.env.clock.wall_ms()
        for write in self.writes:
            write.outcome = self._append(write, now_ms)

    @property
    def size_bytes(self) -> int:
        return sum(len(write.batch) for write in self.writes if not isinstance(write.batch, RefusedBatch))

    async def append_when_ready(self, *, is_ready: bool) -> None:
        """Append, after the preparations that are needed. `is_ready` is what `begin` returned."""
        if not is_ready:
            await self._prepare()
        if self.takes_turns or (not is_ready and self._is_much()):  # they may have become longer
            await self._append_in_turns()
        else:
            self.append()

    async def _append_in_turns(self) -> None:
        """Append in several turns of the loop. Batches of other clients may come in between, but these keep their
        order.
        """
        left = list(reversed(self.writes))
        while left:
            some = _for_one_turn(reversed(left), self._parts.env.clock.wall_ms())
            await self._open(some)  # unless that was done, and no topic's settings changed meanwhile
            some = _for_one_turn(some, self._parts.env.clock.wall_ms())  # they may have become longer
            if _is_large(some[0]):
                left.pop()
                await self._append_large(some[0])
            else:
                del left[-self._append_some(some) :]
            if left:
                await breathe()

    def _append_some(self, writes: Sequence[Write]) -> int:
        """Append these, or the first of them: if they begin more segments than was to be seen, the rest waits for the
        next turn. Returns how many.
        """
        now_ms = self._parts.env.clock.wall_ms()
        left = WRITES_AT_ONCE
        for count, write in enumerate(writes, start=1):
            partition = write.partition
            segments = 0 if partition is None else len(partition.log.segments)
            write.outcome = self._append(write, now_ms)
            if partition is not None and len(partition.log.segments) > segments:
                left -= WITH_FILES
                if left <= 0:
                    return count
        return len(writes)

    async def _append_large(self, write: Write) -> None:
        """Append a batch that is laid beside the log first. The log is used meanwhile, so all is judged afterwards."""
        assert not isinstance(write.batch, RefusedBatch), "a batch that is refused is not large"
        large = LargeBatch(self._parts.env, write.batch)
        try:
            await large.look()
            for times in range(LAID_TIMES + 1):
                if (partition := await self._judged(write, large)) is None:
                    return
                async with partition.folder.laying:  # behind others, of which one may be the same batch
                    if (partition := await self._judged(write, large)) is None:
                        return
                    if times < LAID_TIMES:
                        refused = await large.lay(partition)
                    else:
                        refused = partition.send_again(NOT_NOW, self._parts.env.clock.wall_ms())
                if refused is not None:
                    write.outcome = refused
                    return
        finally:
            large.discard()

    async def _judged(self, write: Write, large: LargeBatch) -> Partition | None:
        """The partition beside which the batch is to be laid; None if there is an outcome."""
        await self._open((write,))
        write.outcome = self._append(write, self._parts.env.clock.wall_ms(), large)
        return write.partition if write.outcome is LAY_FIRST else None

    def refuse(self, error: ErrorCode) -> None:
        for write in self.writes:
            write.outcome = RefusedBatch(error)

    def _append(self, write: Write, now_ms: int, large: LargeBatch | None = None) -> Appended | RefusedBatch:
        terms, batch, partitions = self._terms, write.batch, write.partitions
        if isinstance(partitions, RefusedBatch):
            return partitions
        partition = partitions.get(write.index)
        if partition is None:
            return RefusedBatch(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if isinstance(batch, RefusedBatch):
            return batch
        if isinstance(write.admitted, RefusedBatch):
            return write.admitted
        if not terms.may_write_internal and partition.topic_partition.topic in INTERNAL_TOPICS:
            return RefusedBatch(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not terms.knows_zstd and batch[ATTRIBUTES_AT] & CODEC_BITS == CODECS["zstd"]:
            return RefusedBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        try:
            came_between = write.expected_offset is not None and self._came_between(partition, write, now_ms)
        except DiskFault as fault:  # it is not known
            return RefusedBatch(partition.unreadable(fault), "What follows the expected offset can't be read now.")
        if came_between:
            end_offset = partition.log.end_offset
            message = f"The log ends at {end_offset}: somebody else has written to it."
            return RefusedBatch(ErrorCode.OFFSET_OUT_OF_RANGE, message, end_offset=end_offset)
        outcome = partition.append_from_client(
            batch,
            acks=terms.acks,
            now_ms=now_ms,
            guard=write.admitted,
            needs_guard=self._needs_guard,
            inspected=write.inspected,
            large=large,
        )
        if outcome is LAY_FIRST:
            return outcome
        write.batch, write.inspected = NO_BYTES, None  # it may wait long for its replicas, and its bytes count no more
        write.log_start_offset = partition.log.start_offset
        if isinstance(outcome, Appended):
            write.was_appended = True
            if terms.acks == ACKS_ALL and partition.high_watermark < outcome.end_offset:
                self._uncommitted.append((partition, partition.leader_epoch, write, outcome))
                self.is_settled = False
            if delay_s := partition.folder.headroom.delay_s:
                self._delay_s = max(self._delay_s, delay_s)
                self.is_settled = False
        else:
            partition.tally.refused += 1
            if partition.is_replicated and outcome.error in GIVEN_UP_AFTER:
                self._final.append((partition, partition.leader_epoch, write))
                self.is_settled = False
        return outcome

    def _came_between(self, partition: Partition, write: Write, now_ms: int) -> bool:
        """Whether somebody else has written since the expected offset. Markers do not count, and neither does this very
        batch, which the client may be sending again. `DiskFault`: that can't be read.
        """
        if not partition.is_leading:
            return False  # the append refuses it
        _goes_on(write)
        if _looked_to(write, partition) == partition.log.end_offset:
            return False
        try:
            batch = read_header(write.batch)  # type: ignore[arg-type]
        except CorruptBatch:
            return True
        return batch.producer_id < 0 or not isinstance(partition.producers.check(batch, now_ms=now_ms), Duplicate)

    # -- afterwards

    def all_appended(self) -> bool:
        for write in self.writes:  # noqa: SIM110 - the shorter form makes a generator for each Produce
            if type(write.outcome) is not Appended:
                return False
        return True

    async def settle(self, session: Session) -> int:
        """Wait until the batches are committed, or the client's timeout is over. Returns for how many milliseconds the
        answer was delayed: if the disk is nearly full, producers are slowed down, so that work that makes room can come
        first.
        """
        deadline = asyncio.get_running_loop().time() + self._terms.timeout_ms / 1000
        for count, (partition, leader_epoch, write, appended) in enumerate(self._uncommitted, start=1):
            if count % SETTLED_AT_ONCE == 0:  # nothing is waited for at those that are committed meanwhile
                await breathe()
            with session.waits():
                error = await committed_or_error(partition, leader_epoch, appended.end_offset, deadline)
            if error:
                write.outcome, write.log_start_offset = RefusedBatch(error), -1
            self._delay_s = max(self._delay_s, partition.folder.headroom.delay_s)
        if self._final:
            judged = [(partition, leader_epoch) for partition, leader_epoch, _ in self._final]
            with session.waits():
                led = await self._parts.in_sync.led_until_now(judged)
            for (_, _, write), is_final in zip(self._final, led, strict=True):
                if not is_final:
                    write.outcome, write.log_start_offset = RefusedBatch(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        return int(self._delay_s * 1000)


def _stored_bytes(write: Write) -> int:
    return 0 if isinstance(write.batch, RefusedBatch) else stored_bytes(write.batch, write.inspected)


def _is_large(write: Write) -> bool:
    """Whether the batch is large as it came, so that its checksum is reckoned beside the loop, or as it is stored."""
    return not isinstance(write.batch, RefusedBatch) and is_large(max(len(write.batch), _stored_bytes(write)))


def _for_one_turn(writes: Iterable[Write], now_ms: int) -> list[Write]:
    """The first of these, as many as may be appended in one turn of the loop, or one that is large."""
    some: list[Write] = []
    work = size_bytes = 0
    for write in writes:
        is_alone = _is_large(write)
        size_bytes += _stored_bytes(write)
        if some and (is_alone or work >= WRITES_AT_ONCE or size_bytes > BYTES_AT_ONCE):
            break
        some.append(write)
        if is_alone:
            break
        work += _work(write, now_ms)
    return some


def _unconfirmed(write: Write) -> tuple[Partition, Write, BatchHeader] | None:
    """A transactional batch whose transaction is not yet known to be open by the partition; None for any other."""
    partition, batch = write.partition, write.batch
    if partition is None or not partition.is_leading or isinstance(batch, RefusedBatch):
        return None
    if not batch[ATTRIBUTES_AT] & TRANSACTIONAL:
        return None
    try:
        header = read_header(batch)
    except CorruptBatch:
        return None  # the append refuses it
    is_open = partition.producers.has_open_transaction(header.producer_id, header.producer_epoch)
    return None if is_open else (partition, write, header)


def _work(write: Write, now_ms: int) -> int:
    """How much work it is to append this batch; to write a batch behind others is 1."""
    partition, batch = write.partition, write.batch
    if partition is None or isinstance(batch, RefusedBatch):
        return 1
    try:
        header = read_header(batch)
    except CorruptBatch:
        return 1  # the append refuses it
    return WITH_FILES if partition.log.opens_files_for(header, now_ms) else 1


def _has_far_to_look(write: Write) -> bool:
    """Whether more follows the expected offset than is looked through in one turn of the loop."""
    partition = write.partition
    if write.expected_offset is None or partition is None or not partition.is_leading:
        return False
    return partition.log.end_offset - _looked_to(write, partition) > MARKERS_LOOKED_AT


def _looked_to(write: Write, partition: Partition) -> int:
    """How far only markers follow the expected offset, as far as was looked since this broker leads."""
    assert write.expected_offset is not None
    looked = write.looked_through
    return write.expected_offset if looked is None or looked[0] != partition.leader_epoch else looked[1]


async def _look_far(write: Write) -> None:
    """Look through the log from the expected offset on, in several turns of the loop."""
    with suppress(DiskFault):  # the append meets it again, and tells it
        for _ in range(LOOKS_MAX):
            if not _has_far_to_look(write) or not _goes_on(write):
                return
            await breathe()


def _goes_on(write: Write) -> bool:
    """Look past the markers that follow the expected offset, because no reader ever sees markers. Returns False if none
    follows. `DiskFault`: what follows can't be read.
    """
    partition = write.partition
    assert partition is not None
    looked_to = offset = _looked_to(write, partition)
    try:
        for header in partition.log.headers(offset, offset + MARKERS_LOOKED_AT + 1):
            if not header.is_control or header.base_offset != looked_to:
                break
            looked_to = header.next_offset
    except CorruptBatch as failure:
        partition.unreadable(failure)
    write.looked_through = partition.leader_epoch, looked_to
    return looked_to != offset


async def committed_or_error(partition: Partition, leader_epoch: int, end_offset: int, deadline: float) -> ErrorCode:
    """Wait until everything below `end_offset`, which was appended in `leader_epoch`, is committed. Returns NONE, or
    why that is not known by `deadline` (loop time).
    """
    if partition.leader_epoch != leader_epoch:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # this part of the log may have been replaced
    try:
        waiter = partition.committed(end_offset)
        if waiter is not None:
            async with asyncio.timeout_at(deadline):
                await waiter
    except PartitionLost as lost:
        return lost.error
    except TimeoutError:
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NONE
