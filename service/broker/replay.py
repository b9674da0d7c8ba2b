"""Makes a machine from the log of its partition.

Of records that follow each other, and of which only the last with its key counts (the machine says so), only that one
is applied. Most of a coordinator's log are such records, and to apply one takes three times as long as to read it. They
are held until something else comes, which is applied in its place. So the machine is what it would be if compaction had
run just before.

A record that no machine can read, in a batch whose checksum is right, was written by a program that does not know the
format. It is logged, kept, and skipped: it decides nothing, what its key said before holds, and one such record must
not stop a coordinator for all its clients. One that another record of its key replaces is not looked at. A batch whose
checksum is wrong is different: it may have held a decision, which is lost. Its partition is not served.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, NamedTuple

from log.batch import BatchHeader, CorruptBatch, checksum_ok, read_records
from log.control import ControlType, read_marker
from log.disk import DiskFault
from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from service.broker.machine import MachineT, Mishaps, ReadsInTurns, TakesTransactions
from service.broker.partition import Partition
from service.turns import Steps, Turn

logger = logging.getLogger("oncelog.coordinator")

WORK_A_TURN = 750
"""How much is done before other tasks run. To read a batch or a record counts 1: some four microseconds."""
TO_APPLY = 3
SHORT_BYTES = 1 << 10
"""A longer batch, or a record with a longer value, counts as several."""
LARGE_BYTES = 64 << 10
"""A record with a longer value is read in turns before it is applied, if the machine can do that."""
HELD_BYTES = 4 << 20
"""How many bytes of records are held, those that were replaced included."""
RECORD_BYTES = 300
"""What a record that is held takes beside its key and its value."""
NAMED_AT_MOST = 10
"""The most unreadable records that a replay logs one by one. Of further ones only the number is logged."""


LeaveToOthers = Callable[[Partition, DiskFault | CorruptBatch], None]
"""What is done with a copy that can't be replayed (`Replication.leave_to_others`)."""


class HeldRecord(NamedTuple):
    """A record that may be the last one with its key."""

    offset: int
    value: bytes | None
    before: "HeldRecord | None"
    """The one that it replaces. That one counts if this one can't be read."""


class Replay(Generic[MachineT]):
    def __init__(self, partition: Partition, machine: MachineT, mishaps: Mishaps) -> None:
        self.partition = partition
        self.machine = machine
        self.at_offset = self._from_offset = partition.log.start_offset
        """What is below was replayed."""
        asked: object = machine  # once, because asking takes longer than applying a record
        self.taking_transactions = asked if isinstance(asked, TakesTransactions) else None
        self._reading = asked if isinstance(asked, ReadsInTurns) else None
        self._mishaps = mishaps
        # As they were when `at_offset` was the log's start. It may be none of the log's offsets by the time of reading.
        self._taken_back, self._times_forgotten = partition.committed_taken_back, partition.log.times_forgotten
        self._is_broken = False
        self._unreadable = 0
        self._held: dict[bytes, HeldRecord] = {}
        self._held_bytes = 0
        self._turn = Turn(WORK_A_TURN)

    @property
    def holds(self) -> bool:
        """Whether the machine will be what the log makes, if it goes on from `at_offset`. If not, it must be thrown
        away.
        """
        return not (self._is_broken or self.is_stale)

    @property
    def is_stale(self) -> bool:
        """Whether the log has lost what the machine has taken up. Compaction may have removed that with the record that
        deletes it, which was still to come (R15).
        """
        log = self.partition.log
        has_forgotten = self._times_forgotten != log.times_forgotten
        lacks_deletions = has_forgotten and self._from_offset < self.at_offset < log.forgotten_below
        return lacks_deletions or self._taken_back != self.partition.committed_taken_back

    def up_to(self, end_offset: int, at_most_bytes: int | None = None) -> Steps[None]:
        """Replay the log to this offset, or about so many bytes of it. `CorruptBatch` if a batch is damaged. What is
        replayed must be committed, and must not be cut or compacted meanwhile.
        """
        left_bytes, log = at_most_bytes, self.partition.log
        assert self.holds, "what was taken up is what the log makes"
        assert end_offset <= log.end_offset, "nothing is taken for replayed that the log does not have"
        self._is_broken = True  # unless it comes to an end
        for header, batch in log.scan(self.at_offset, end_offset):
            yield from self._take(header, batch)
            if left_bytes is not None and (left_bytes := left_bytes - header.size_bytes) <= 0:
                end_offset = header.next_offset
                break
        yield from self._apply_held()
        self.at_offset = end_offset  # compaction may have taken the last batches
        self._is_broken = False

    def make_ready(self) -> Steps[None]:
        """The log has been replayed: what the machine would need long for at its first decisions."""
        if self._reading is not None:
            yield from self._reading.make_ready()

    def tell_passed_over(self) -> None:
        """The broker that leads counts them: the others have the same ones."""
        self._mishaps.records += self._unreadable
        if self._unreadable > NAMED_AT_MOST:
            logger.error("%s: %d records were passed over", self.partition.topic_partition, self._unreadable)

    def _take(self, header: BatchHeader, batch: memoryview) -> Steps[None]:
        if not checksum_ok(batch, header):
            raise CorruptBatch(f"the checksum of the batch at offset {header.base_offset} is wrong")
        turn, held, only_last_counts = self._turn, self._held, self.machine.only_last_counts
        if turn.is_over(1 + header.size_bytes // SHORT_BYTES):
            yield
        try:
            if header.is_control:
                yield from self._apply_held()
                self._mark(header, batch)
                return
            is_transactional = header.producer_id >= 0
            for record in read_records(batch, header):
                key, value, value_bytes = record.key, record.value, len(record.value or b"")
                if turn.is_over(1 + value_bytes // SHORT_BYTES):
                    yield
                if is_transactional or key is None or not only_last_counts(key, value):
                    yield from self._apply_held()
                    yield from self._in_its_turn(key, value)
                    self._apply(record.offset, key, value, header.producer_id, header.producer_epoch)
                    continue
                held[key] = HeldRecord(record.offset, value, held.pop(key, None))  # the order is that of the last ones
                self._held_bytes += RECORD_BYTES + len(key) + value_bytes
        except CorruptBatch as error:
            self._pass_over(header.base_offset, error)
        if self._held_bytes >= HELD_BYTES:
            yield from self._apply_held()

    def _mark(self, header: BatchHeader, batch: memoryview) -> None:
        kind = read_marker(batch).type
        if kind is not None and self.taking_transactions is not None:
            committed = kind is ControlType.COMMIT
            self.taking_transactions.apply_marker(header.producer_id, header.producer_epoch, committed)

    def _apply_held(self) -> Steps[None]:
        last_ones = [*reversed(self._held.items())]
        self._held.clear()
        self._held_bytes = 0
        while last_ones:
            key, held = last_ones.pop()
            yield from self._in_its_turn(key, held.value)
            while not self._apply(held.offset, key, held.value) and held.before is not None:
                held = held.before
                yield from self._in_its_turn(key, held.value)

    def _in_its_turn(self, key: bytes | None, value: bytes | None) -> Steps[None]:
        if self._turn.is_over(TO_APPLY * (1 + len(value or b"") // SHORT_BYTES)):
            yield
        if self._reading is not None and key is not None and value is not None and len(value) > LARGE_BYTES:
            with suppress(Exception):  # `apply` raises it again, and is heard
                yield from self._reading.read_ahead(key, value)
                yield

    def _apply(
        self,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> bool:
        """Returns whether the machine can read the record."""
        try:
            assert key is not None, "every record of a coordinator has a key"
            if producer_id < 0:
                self.machine.apply(key, value)
            else:
                assert self.taking_transactions is not None, "nobody's transaction writes here"
                self.taking_transactions.apply(key, value, producer_id=producer_id, producer_epoch=producer_epoch)
        except Exception as error:  # noqa: BLE001 - unknown bytes can make a machine raise anything
            self._pass_over(offset, error)
            return False
        return True

    def _pass_over(self, offset: int, error: Exception) -> None:
        self._unreadable += 1
        if self._unreadable <= NAMED_AT_MOST:
            logger.error(
                "%s: the record at offset %d can't be read, and is passed over: %r",
                *(self.partition.topic_partition, offset, error),
            )
