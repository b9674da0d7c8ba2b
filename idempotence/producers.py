# Hot path: `check` and `apply` run once a batch with a producer id; tests/bench answers for them (produce, idempotent).
"""What every producer wrote last in one partition. With it no batch is written twice, out of order, or by a fenced
producer.

This is a view of the partition's log. `check` judges a batch before it is appended and changes nothing that lasts.
`apply` takes up a batch that is in the log: on the leader, on a follower and in recovery alike. It never objects,
because what is in the log is true.

What always holds:
 - The state is a fold over the log: the same batches lead to the same state. One thing is an exception: when a producer
   was last seen is told by the broker's own clock.
 - A producer with an open transaction in this partition is never forgotten.
 - If a producer is forgotten early, its coordinator's epoch is kept for a while: late markers of an earlier one stay
   refused.
 - The whole window of five batches is in the snapshot, so that a repeat is recognised after a restart, too.

Only `isolation.stable.StableOffsets` knows which transactions are open. This view reads them there
(`open_transactions`: producer id to first offset) and keeps no copy. Batches that are *being* verified with the
transaction coordinator are remembered here, in memory only, because they belong to requests under way.

Packed entries (`window.py`) instead of objects: 190 bytes in place of 700 for a producer of one batch, and the check
is as fast. Figures in README.md.
"""

import struct
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

from idempotence.producer_room import LOOKS_AT_ONCE, ProducerRoom
from idempotence.sequence import MAX_SEQUENCE, next_sequence
from idempotence.shelves import Shelves
from idempotence.verdicts import (
    ACCEPTED,
    CoordinatorFenced,
    Duplicate,
    NotInTransaction,
    OutOfOrder,
    StaleEpoch,
    TooManyProducers,
    TransactionOpen,
    Verdict,
)
from idempotence.window import (
    BATCH,
    EPOCH,
    EPOCH_AND_SEQUENCE,
    HEAD,
    HEAD_AND_BATCH,
    KEPT_BEFORE_PUSH,
    WINDOW_AT,
    WINDOW_BATCHES,
    batches,
    find,
)
from log.batch import CONTROL, TRANSACTIONAL, BatchHeader, Buffer
from log.clock import CLOCK_SET_MS
from log.control import read_marker
from log.ids import NO_EPOCH, NO_OFFSET, NO_SEQUENCE

MAX_PRODUCERS: Final = 1_000_000
"""The default limit for one partition: 200 to 400 MB when full. Kafka has no limit and runs out of memory (KIP-936)."""
IDLE_S: Final = 600
"""If there are too many producers, those that were not seen for so long may be forgotten. Clients give up a batch after
two minutes (`delivery.timeout.ms`).
"""
MAX_VERIFYING: Final = 10_000
"""For how many producers the first batch of a transaction may be in verification. Beyond that the oldest verification
is forgotten, and that producer must ask again.
"""
READ_A_STEP: Final = 1_000
MAX_FORGOTTEN: Final = 1_000
"""Of how many producers that were forgotten early the coordinator's epoch is kept: of those that were forgotten last. A
late marker comes within seconds, or never.
"""

_CLOCK_SET_S: Final = CLOCK_SET_MS // 1000
_SNAPSHOT_HEAD: Final = struct.Struct(">BI")
_FORGOTTEN_COUNT: Final = struct.Struct(">I")
_FORGOTTEN: Final = struct.Struct(">qi")
_WITH_NONE_FORGOTTEN, _WITH_ONE_EPOCH, _WITH_FORGOTTEN = 1, 2, 3
"""The versions of a snapshot. The second has one coordinator epoch for all that are forgotten, which is passed over."""
_ONE_EPOCH_BYTES: Final = 4
_PRODUCER_AND_COUNT: Final = struct.Struct(">q2xB")
_SEEN: Final = struct.Struct(">23xI")
_COORDINATOR_EPOCH: Final = struct.Struct(">8xhxi")
assert _SEEN.size == WINDOW_AT


class BatchOrigin(Enum):
    """Where a batch comes from. It decides what is checked."""

    CLIENT = 1
    COORDINATOR = 2
    """Transactional offsets from a group coordinator. They have no sequences."""


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A guard is made before the coordinator is asked about a batch, and shown when the batch is appended. It is valid
    only if nothing else was written for the producer in between.

    Guards are compared by identity, so that a guard of an earlier transaction is never accepted (the ABA problem of
    KIP-890).
    """

    producer_id: int


class _Verifying:
    __slots__ = ("epoch", "guard", "lowest_sequence", "newest_protocol", "since_ms")

    def __init__(self, guard: Guard, epoch: int, sequence: int, newest_protocol: bool, since_ms: int) -> None:
        self.guard = guard
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.newest_protocol = newest_protocol
        self.since_ms = since_ms


class ProducerFacts(NamedTuple):
    """One producer, as DescribeProducers shows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


class KnownBy(NamedTuple):
    """The last offset of a producer's last batch with a sequence; or no offset, and the epoch and time of a marker."""

    producer_id: int
    last_offset: int
    producer_epoch: int
    timestamp_ms: int


class ProducerStates:
    """The view `producers` of one partition."""

    name = "producers"
    must_see_all = False

    __slots__ = (
        "_forgotten",
        "_full_at_s",
        "_limit",
        "_next_oldest",
        "_next_suspect",
        "_now_s",
        "_open_transactions",
        "_producers",
        "_room",
        "_suspects",
        "_unseen_since_s",
        "_verifying",
        "unknown",
    )

    def __init__(
        self, open_transactions: Mapping[int, int], *, limit: int = MAX_PRODUCERS, room: ProducerRoom | None = None
    ) -> None:
        """`open_transactions` maps producer ids to first offsets. It is live and is only read here. `limit` is the
        limit of this partition; `room` has the limit that all partitions of the broker share.
        """
        self._open_transactions = open_transactions
        self._limit = limit
        self._room = ProducerRoom() if room is None else room
        self._next_oldest = 0
        self._suspects: list[int] = []
        self._next_suspect = 0
        self._producers = Shelves()
        self._forgotten: dict[int, int] = {}
        """The coordinator epoch of producers that were forgotten early, the last one last. They begin again with it."""
        self._verifying: dict[int, _Verifying] = {}
        self._now_s = 0
        self._full_at_s = -1
        self._unseen_since_s = 0
        self.unknown = 0
        """How many batches of clients were taken in the middle of a sequence whose beginning is not remembered."""

    def __len__(self) -> int:
        return len(self._producers)

    # -- before the append

    def check(
        self,
        header: BatchHeader,
        *,
        now_ms: int,
        origin: BatchOrigin = BatchOrigin.CLIENT,
        guard: Guard | None = None,
        needs_guard: bool = True,
    ) -> Verdict:
        """Whether this data batch of a producer may be appended now. The conditions are checked in Kafka's order.

        `guard` comes from `start_verification`. `needs_guard=False`: the broker's settings say not to verify.
        """
        self._now_s = now_ms // 1000
        entry = self._producers.get(header.producer_id)
        if entry is None:
            return self._check_unknown(header, origin, guard, needs_guard)
        if len(entry) == WINDOW_AT:
            (current_epoch,) = EPOCH.unpack_from(entry)
            newest = NO_SEQUENCE
        else:
            current_epoch, newest = EPOCH_AND_SEQUENCE.unpack_from(entry)
        epoch = header.producer_epoch
        if (
            epoch == current_epoch
            and header.base_sequence == (newest + 1) & MAX_SEQUENCE
            and not self._verifying
            and (header.producer_id in self._open_transactions) == (header.attributes & TRANSACTIONAL != 0)
        ):
            return ACCEPTED  # the common case: the next batch in order. All other cases are told apart one by one.
        return self._check_known(header, entry, current_epoch, newest, origin, guard, needs_guard)

    def _check_known(
        self,
        header: BatchHeader,
        entry: bytes,
        current_epoch: int,
        newest: int,
        origin: BatchOrigin,
        guard: Guard | None,
        needs_guard: bool,
    ) -> Verdict:
        producer_id, epoch = header.producer_id, header.producer_epoch
        from_client = origin is BatchOrigin.CLIENT
        if from_client and epoch == current_epoch:
            last = (header.base_sequence + header.last_offset_delta) & MAX_SEQUENCE
            repeated = find(entry, last_sequence=last, offset_delta=header.last_offset_delta)
            if repeated is not None:
                return Duplicate(repeated.first_offset, repeated.last_offset, repeated.timestamp_ms)
        # A stale epoch is checked before a missing verification. With error 47 the client can abort and go on, while 48
        # is fatal (KAFKA-19690).
        if epoch < current_epoch:
            return StaleEpoch(epoch, current_epoch)
        first_offset = self._open_transactions.get(producer_id)
        if header.attributes & TRANSACTIONAL:
            goes_on = first_offset is not None and epoch == current_epoch
            if needs_guard and not goes_on and not self._has_guard(producer_id, guard):
                return NotInTransaction()
        expected = 0 if epoch != current_epoch else next_sequence(newest)
        if from_client and header.base_sequence != expected:
            return OutOfOrder(header.base_sequence, expected)
        if first_offset is not None and not header.attributes & TRANSACTIONAL:
            return TransactionOpen(first_offset)
        return ACCEPTED

    def _check_unknown(
        self, header: BatchHeader, origin: BatchOrigin, guard: Guard | None, needs_guard: bool
    ) -> Verdict:
        transactional = header.attributes & TRANSACTIONAL
        if transactional and needs_guard and not self._has_guard(header.producer_id, guard):
            return NotInTransaction()
        if origin is BatchOrigin.CLIENT:
            refused = self._check_beginning(header)
            if refused is not None:
                return refused
        if crowded := self._make_room():
            self._room.refused += 1
            return crowded
        self.unknown += origin is BatchOrigin.CLIENT and header.base_sequence > 0
        return ACCEPTED

    def _make_room(self) -> TooManyProducers | None:
        """Make room for one more producer. Returns the refusal if there is none. When no room was found, the next
        search is made in another second at the earliest.
        """
        now_s = self._now_s
        if len(self._producers) >= self._limit and (
            now_s == self._full_at_s
            or not (self.evict_oldest(now_s, LOOKS_AT_ONCE)[0] or self.evict_idle(now_s, LOOKS_AT_ONCE)[0])
        ):
            self._full_at_s = now_s
            return TooManyProducers(self._limit)
        return None if self._room.take(now_s) else TooManyProducers(self._room.limit)

    def _check_beginning(self, header: BatchHeader) -> OutOfOrder | None:
        """Check the first batch of an unknown producer. Its state may have expired, so it may begin with any sequence,
        unless a verification under way tells more.

        Kafka makes this check for known producers, too. Then a late copy of an old batch, which is never confirmed,
        blocks all batches that follow.
        """
        sequence = header.base_sequence
        verifying = self._verifying.get(header.producer_id)
        if verifying is None:
            return None
        if verifying.newest_protocol and sequence != 0:
            return OutOfOrder(sequence, 0)
        if sequence > verifying.lowest_sequence:
            # An earlier batch is still being verified. If this one were written first, the earlier one would be out of
            # order for ever.
            return OutOfOrder(sequence, verifying.lowest_sequence)
        return None

    def check_marker(self, header: BatchHeader, *, coordinator_epoch: int, transaction_version: int) -> Verdict:
        """Whether a coordinator's marker may be appended.

        In transaction version 2 the marker's epoch is above all epochs of its transaction. A marker with an equal epoch
        is a repeat of the last one, if no transaction is open.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            self._make_room()  # without room the marker is written all the same, but its producer is not remembered
            return ACCEPTED
        current_epoch, current_coordinator_epoch = _COORDINATOR_EPOCH.unpack_from(entry)
        epoch = header.producer_epoch
        if epoch < current_epoch:
            return StaleEpoch(epoch, current_epoch)
        if transaction_version >= 2 and epoch == current_epoch and header.producer_id in self._open_transactions:
            return StaleEpoch(epoch, current_epoch)
        if coordinator_epoch < current_coordinator_epoch:
            return CoordinatorFenced(coordinator_epoch, current_coordinator_epoch)
        return ACCEPTED

    def coordinator_epoch(self, producer_id: int) -> int:
        """The epoch of the coordinator that last ended a transaction of this producer here; -1: none, or unknown."""
        entry = self._producers.get(producer_id)
        if entry is None:
            return self._forgotten.get(producer_id, NO_EPOCH)
        return int(_COORDINATOR_EPOCH.unpack_from(entry)[1])

    # -- verification with the coordinator

    def start_verification(
        self, producer_id: int, *, epoch: int, sequence: int, newest_protocol: bool, now_ms: int
    ) -> Guard | None:
        """Make a guard. This must be called before the coordinator is asked whether the batch belongs to a transaction.
        None: the coordinator need not be asked.

        Until a batch or a marker is written, all batches of the producer share one guard, and the one with the lowest
        sequence must be written first.
        """
        if self.has_open_transaction(producer_id, epoch):
            return None
        verifying = self._verifying.get(producer_id)
        if verifying is None:
            if len(self._verifying) >= MAX_VERIFYING:
                del self._verifying[next(iter(self._verifying))]
            verifying = _Verifying(Guard(producer_id), epoch, sequence, newest_protocol, now_ms)
            self._verifying[producer_id] = verifying
        elif epoch > verifying.epoch or (epoch == verifying.epoch and sequence < verifying.lowest_sequence):
            verifying.epoch = epoch
            verifying.lowest_sequence = sequence
        return verifying.guard

    def end_verification(self, producer_id: int) -> None:
        """The producer's transaction has ended here without a batch that says so. What the coordinator answers from now
        on to questions that were asked before is out of date.
        """
        self._verifying.pop(producer_id, None)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a transactional batch of this epoch continues an open transaction. The coordinator was asked when the
        first batch of that came.

        A batch of a later epoch does not: the marker of the transaction before is still on its way, and the coordinator
        says so.
        """
        return producer_id in self._open_transactions and self._epoch_of(producer_id) == epoch

    def is_current(self, guard: Guard) -> bool:
        """Whether nothing was written for the guard's producer since the guard was made."""
        return self._has_guard(guard.producer_id, guard)

    def _has_guard(self, producer_id: int, guard: Guard | None) -> bool:
        verifying = self._verifying.get(producer_id)
        return guard is not None and verifying is not None and verifying.guard is guard

    def _epoch_of(self, producer_id: int) -> int:
        entry = self._producers.get(producer_id)
        return NO_EPOCH if entry is None else EPOCH.unpack_from(entry)[0]

    # -- the fold

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """Take up a batch that is in the log now."""
        # Unpacking the header once is faster than seven look-ups by name.
        base_offset, _, _, _, _, attributes, delta, _, timestamp_ms, producer_id, epoch, base_sequence, _ = header
        if producer_id < 0:
            return
        if attributes & CONTROL:
            self._apply_marker(header, batch)
            return
        if attributes & TRANSACTIONAL and self._verifying:
            self._verifying.pop(producer_id, None)
        entry = self._producers.get(producer_id)
        if base_sequence < 0:
            self._apply_unnumbered(header, entry)
            return
        coordinator_epoch, count, kept = NO_EPOCH, 1, b""
        if entry is not None:
            current_epoch, coordinator_epoch = _COORDINATOR_EPOCH.unpack_from(entry)
            if current_epoch == epoch:
                kept = entry[WINDOW_AT:KEPT_BEFORE_PUSH]
                count = 1 + len(kept) // BATCH.size
        elif self._forgotten:
            coordinator_epoch = self._forgotten.pop(producer_id, NO_EPOCH)
        self._producers.put(
            producer_id,
            HEAD_AND_BATCH.pack(
                producer_id,
                epoch,
                count,
                coordinator_epoch,
                timestamp_ms,
                self._now_s,
                (base_sequence + delta) & MAX_SEQUENCE,
                base_offset + delta,
                delta,
                timestamp_ms,
            )
            + kept,
        )

    def _apply_unnumbered(self, header: BatchHeader, entry: bytes | None) -> None:
        """Take up offsets that were committed in a transaction. They raise the epoch; they are not in the window."""
        kept = b""
        if entry is None:
            coordinator_epoch = self._forgotten.pop(header.producer_id, NO_EPOCH)
        else:
            current_epoch, coordinator_epoch = _COORDINATOR_EPOCH.unpack_from(entry)
            if current_epoch == header.producer_epoch:
                kept = entry[WINDOW_AT:]
        self._put(header.producer_id, header.producer_epoch, coordinator_epoch, header.max_timestamp, kept)

    def _apply_marker(self, header: BatchHeader, batch: Buffer) -> None:
        marker = read_marker(batch, header)
        if marker.type is None and header.record_count > 0:
            return  # a control record of a kind that we don't know
        producer_id, epoch = header.producer_id, header.producer_epoch
        self._verifying.pop(producer_id, None)
        entry = self._producers.get(producer_id)
        if entry is None:
            known = self._forgotten.pop(producer_id, NO_EPOCH)
            coordinator_epoch = max(known, marker.coordinator_epoch)
            if len(self._producers) >= self._limit or self._room.is_full:
                self._forget_early(producer_id, coordinator_epoch)
                return  # nothing was open here to be ended, and the coordinator knows the producer's epoch as well
        elif marker.type is None:  # the cleaner has removed the marker's record: the last known one stays
            _, coordinator_epoch = _COORDINATOR_EPOCH.unpack_from(entry)
        else:
            coordinator_epoch = marker.coordinator_epoch
        kept = b""
        if entry is not None and EPOCH.unpack_from(entry)[0] == epoch:
            kept = entry[WINDOW_AT:]  # in transaction versions 0 and 1 the sequences go on after the marker
        self._put(producer_id, epoch, coordinator_epoch, header.max_timestamp, kept)

    def _put(self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp_ms: int, window: bytes) -> None:
        count = len(window) // BATCH.size
        head = HEAD.pack(producer_id, epoch, count, coordinator_epoch, timestamp_ms, self._now_s)
        self._producers.put(producer_id, head + window)

    def set_start_offset(self, offset: int) -> None:
        """Does nothing: a producer is remembered although its batches have left the log. It is forgotten by time
        only.
        """

    # -- forgetting

    def expire(self, now_ms: int, expiration_ms: int, *, clock_set_ms: int = 0) -> Iterator[int]:
        """Forget producers that were not seen for the expiration time, and abandoned verifications. It is done step by
        step, and each step yields the number of producers that it forgot. Other work may be done between two steps.

        A producer is seen when it writes, by this broker's clock. The timestamps in its batches don't count: they come
        from the client and may be years old. If the last write of a producer was replayed, or came while the clock was
        not set yet, the producer counts as seen at the first look with a clock that is set. If the clock was set ahead,
        at `clock_set_ms`, no producer becomes idle by that.
        """
        self._now_s = now_ms // 1000
        unseen_since_s = self._note_first_look(self._now_s)
        if clock_set_ms > now_ms - expiration_ms:
            expiration_ms = now_ms  # so long ago that no producer is idle
        idle_since_s = self._now_s - expiration_ms // 1000
        given_up = [
            producer_id
            for producer_id, verifying in self._verifying.items()
            if verifying.since_ms <= now_ms - expiration_ms
        ]
        for producer_id in given_up:
            del self._verifying[producer_id]
        at: int | None = 0
        while at is not None:
            shelf, at = self._producers.shelf_at(at)
            gone = [
                producer_id
                for producer_id, entry in shelf.items()
                if (seen_s if (seen_s := _SEEN.unpack_from(entry)[0]) >= _CLOCK_SET_S else unseen_since_s)
                <= idle_since_s
                and producer_id not in self._open_transactions
            ]
            for producer_id in gone:
                self._producers.remove(producer_id)
            yield len(gone)

    def evict_oldest(self, now_s: int, at_most: int) -> tuple[int, int]:
        """Forget producers whose last batch is so old that no client would send it again, but none with an open
        transaction here. Those that were seen last stand last on each shelf, so that a look ends at the first one that
        was seen lately. Returns how many were forgotten, and how many were looked at: up to `at_most`, from the shelf
        on where the last look ended.
        """
        unseen_since_s = self._note_first_look(now_s)
        idle_since_s = now_s - IDLE_S
        gone = looked = 0
        for _ in range(self._producers.shelves):
            shelf, next_oldest = self._producers.shelf_at(self._next_oldest)
            idle: list[int] = []
            for producer_id, entry in shelf.items():
                looked += 1
                (seen_s,) = _SEEN.unpack_from(entry)
                if seen_s < _CLOCK_SET_S:
                    seen_s = unseen_since_s
                if seen_s <= idle_since_s:
                    if producer_id not in self._open_transactions:
                        idle.append(producer_id)
                elif seen_s <= now_s:  # one that was seen later than now tells nothing: the clock was put back
                    break
                if looked >= at_most:
                    break
            for producer_id in idle:
                self._producers.remove(producer_id)
            gone += len(idle)
            self._next_oldest = next_oldest or 0
            if looked >= at_most:
                break
        return gone, looked

    def evict_idle(self, now_s: int, at_most: int) -> tuple[int, int]:
        """Look at up to `at_most` producers, from where the last look ended, and forget the idle ones early, also those
        that `evict_oldest` does not find. Returns how many were forgotten, and how many were looked at.

        A producer is idle if its last batch is so old that no client would send it again. It is also idle if only its
        epoch is known, because its coordinator knows that as well. A producer with an open transaction here never is.
        Copies of its last marker may still be under way if that was written shortly before.
        """
        unseen_since_s = self._note_first_look(now_s)
        gone = looked = 0
        for _ in range(self._producers.shelves + 1):
            while self._suspects and looked < at_most:
                producer_id = self._suspects.pop()
                looked += 1
                entry = self._producers.get(producer_id)
                if entry is None or producer_id in self._open_transactions:
                    continue
                (seen_s,) = _SEEN.unpack_from(entry)
                if seen_s < _CLOCK_SET_S:
                    seen_s = unseen_since_s
                if (is_old := seen_s <= now_s - IDLE_S) or len(entry) == WINDOW_AT:
                    if not is_old:
                        self._forget_early(producer_id, _COORDINATOR_EPOCH.unpack_from(entry)[1])
                    self._producers.remove(producer_id)
                    gone += 1
            if looked >= at_most:
                break
            shelf, next_suspect = self._producers.shelf_at(self._next_suspect)
            self._suspects = list(shelf)
            self._suspects.reverse()
            self._next_suspect = next_suspect or 0
        return gone, looked

    def _forget_early(self, producer_id: int, coordinator_epoch: int) -> None:
        """Keep the coordinator's epoch of a producer that is forgotten, instead of the one that was forgotten first."""
        if coordinator_epoch == NO_EPOCH:
            return
        if len(self._forgotten) >= MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten[producer_id] = coordinator_epoch

    def _note_first_look(self, now_s: int) -> int:
        """The time of the first look with a clock that was set."""
        if self._unseen_since_s < _CLOCK_SET_S:
            self._unseen_since_s = now_s
        return self._unseen_since_s

    # -- looking in

    def describe(self) -> Iterator[ProducerFacts]:
        """Every producer there is at the first step, for DescribeProducers. Batches may be applied between two of
        them.
        """
        for entry in chain.from_iterable(self._producers.lend()):
            producer_id, epoch, count, coordinator_epoch, timestamp_ms, _ = HEAD.unpack_from(entry)
            last_sequence = EPOCH_AND_SEQUENCE.unpack_from(entry)[1] if count else NO_SEQUENCE
            first_offset = self._open_transactions.get(producer_id, NO_OFFSET)
            yield ProducerFacts(producer_id, epoch, last_sequence, timestamp_ms, coordinator_epoch, first_offset)

    def known_by(self, below: int) -> Iterator[KnownBy]:
        """By which batch every producer is known, as of this call. The cleaner must keep that batch, even without
        records.

        Mostly it is the last batch with a sequence. After a marker of a newer epoch there is no such batch, and only
        the marker tells the epoch: if it were removed, the former epoch could write again after the view is rebuilt.
        The same holds after committed offsets, which have no sequences. In transaction versions 0 and 1 all markers
        among these have the same epoch; only the last one is kept. It is the one with the producer's last timestamp.
        """
        for entry in chain.from_iterable(self._producers.lend()):
            producer_id, epoch, _, _, timestamp_ms, _ = HEAD.unpack_from(entry)
            ends = [each.last_offset for each in batches(entry)] if len(entry) > WINDOW_AT else [NO_OFFSET]
            # What is not below may never be committed: who copies the rest must know the one before.
            last_offset = next((each for each in ends if each < below), ends[0])
            yield KnownBy(producer_id, last_offset, epoch, timestamp_ms)

    # -- snapshots

    def snapshot(self) -> list[Collection[bytes]]:
        """Everything that `apply` built, with the whole windows."""
        version = _WITH_FORGOTTEN if self._forgotten else _WITH_NONE_FORGOTTEN
        head = _SNAPSHOT_HEAD.pack(version, len(self._producers))
        if self._forgotten:
            packed = (_FORGOTTEN.pack(*each) for each in self._forgotten.items())
            head += _FORGOTTEN_COUNT.pack(len(self._forgotten)) + b"".join(packed)
        return [(head,), *self._producers.lend()]

    def restoring(self, data: Buffer | None) -> Generator[None, None, None]:
        """Replace the state by that of a snapshot; None: by an empty one. ValueError if the bytes are no snapshot;
        nothing has changed then. To read a million producers takes a second, and to free them 40 ms.
        """
        producers, forgotten = (Shelves(), {}) if data is None else (yield from _reading(data))
        old, self._producers, self._forgotten = self._producers, producers, forgotten
        self._verifying.clear()
        yield from old.emptied()

    def anew(self) -> "ProducerStates":
        other = ProducerStates(self._open_transactions, limit=self._limit, room=self._room)
        other._now_s = self._now_s
        return other

    def swap(self, other: "ProducerStates") -> None:
        self._producers, other._producers = other._producers, self._producers
        self._forgotten, other._forgotten = other._forgotten, self._forgotten
        self._verifying.clear()


def _reading(data: Buffer) -> Generator[None, None, tuple[Shelves, dict[int, int]]]:
    """The producers of a snapshot, and the coordinator epochs of those that were forgotten; read step by step."""
    forgotten: dict[int, int] = {}
    try:
        version, count = _SNAPSHOT_HEAD.unpack_from(data)
        at = _SNAPSHOT_HEAD.size
        if version == _WITH_FORGOTTEN:
            begin = at + _FORGOTTEN_COUNT.size
            at = begin + _FORGOTTEN_COUNT.unpack_from(data, at)[0] * _FORGOTTEN.size
            forgotten = dict(_FORGOTTEN.iter_unpack(data[begin:at]))
        elif version == _WITH_ONE_EPOCH:
            at += _ONE_EPOCH_BYTES
        elif version != _WITH_NONE_FORGOTTEN:
            raise ValueError(f"producer snapshot of version {version}")
        producers = Shelves()
        read, head_bytes, batch_bytes = _PRODUCER_AND_COUNT.unpack_from, WINDOW_AT, BATCH.size
        for number in range(1, count + 1):
            producer_id, batch_count = read(data, at)
            end = at + head_bytes + batch_count * batch_bytes
            if batch_count > WINDOW_BATCHES:
                raise ValueError(f"{batch_count} batches in a window")
            producers.put(producer_id, bytes(data[at:end]))
            at = end
            if number % READ_A_STEP == 0:
                yield
    except struct.error as error:
        raise ValueError("the producer snapshot is cut short") from error
    if at != len(data) or len(producers) != count:
        raise ValueError("the producer snapshot does not add up")
    return producers, forgotten
