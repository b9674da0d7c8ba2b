"""The producers' view, rule by rule. `Partition` below is the least of a partition: an offset, the two folds, and
nothing else.
"""

import tracemalloc

import pytest

from idempotence.producers import IDLE_S, MAX_FORGOTTEN, MAX_VERIFYING, BatchOrigin, Guard, ProducerStates
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
from isolation.stable import StableOffsets
from log.batch import BatchHeader, build_batch, build_from_stored, read_header
from log.cleaning_rules import LastBatches
from log.steps import done_at_once
from log.views import whole
from tests import batches
from tests.rules import rule

LAST_SEQUENCE = 2**31 - 1
DAY_MS = 86_400_000


class Partition:
    def __init__(self, limit: int = 100) -> None:
        self.stable = StableOffsets()
        self.producers = ProducerStates(self.stable.open_transactions, limit=limit)
        self.end_offset = 0
        self.now_ms = 1_700_000_000_000

    def write(
        self,
        producer_id: int = 1,
        *,
        epoch: int = 0,
        sequence: int = 0,
        count: int = 1,
        transactional: bool = False,
        guard: Guard | None = None,
        needs_guard: bool = False,
        timestamp_ms: int = 1_000,
    ) -> Verdict:
        """What a client's batch meets: judged, and appended if accepted."""
        header, batch = batches.data(
            producer_id,
            epoch=epoch,
            sequence=sequence,
            count=count,
            offset=self.end_offset,
            transactional=transactional,
            timestamp_ms=timestamp_ms,
        )
        verdict = self.producers.check(header, now_ms=self.now_ms, guard=guard, needs_guard=needs_guard)
        if verdict is ACCEPTED:
            self.apply((header, batch))
        return verdict

    def write_offsets(self, producer_id: int = 1, *, epoch: int = 0, guard: Guard | None = None) -> Verdict:
        """A group coordinator's transactional batch."""
        header, batch = batches.data(producer_id, epoch=epoch, sequence=-1, offset=self.end_offset, transactional=True)
        verdict = self.producers.check(header, now_ms=self.now_ms, origin=BatchOrigin.COORDINATOR, guard=guard)
        if verdict is ACCEPTED:
            self.apply((header, batch))
        return verdict

    def end(
        self, producer_id: int = 1, *, epoch: int, commit: bool = True, version: int = 2, coordinator_epoch: int = 0
    ) -> Verdict:
        """A coordinator's marker."""
        header, batch = batches.marker(
            producer_id, commit=commit, epoch=epoch, offset=self.end_offset, coordinator_epoch=coordinator_epoch
        )
        verdict = self.producers.check_marker(header, coordinator_epoch=coordinator_epoch, transaction_version=version)
        if verdict is ACCEPTED:
            self.apply((header, batch))
        return verdict

    def verify(self, producer_id: int = 1, *, epoch: int = 0, sequence: int = 0, newest: bool = True) -> Guard | None:
        return self.producers.start_verification(
            producer_id, epoch=epoch, sequence=sequence, newest_protocol=newest, now_ms=self.now_ms
        )

    def apply(self, batch: batches.Batch) -> None:
        self.producers.apply(*batch)
        self.stable.apply(*batch)
        self.end_offset = batch[0].next_offset

    def restart(self) -> None:
        stable, producers = self.stable.snapshot(), self.producers.snapshot()
        done_at_once(self.stable.restoring(None))
        done_at_once(self.stable.restoring(whole(stable)))
        done_at_once(self.producers.restoring(None))
        done_at_once(self.producers.restoring(whole(producers)))


# ---------------------------------------------------------------- duplicates


@rule("B.1", "a repeat of one of the last five batches is answered with its first offset and written no second time")
@pytest.mark.parametrize("ago", range(5))
def test_each_of_the_last_five_batches_is_recognised(ago: int) -> None:
    partition = Partition()
    for index in range(8):
        partition.write(sequence=index * 3, count=3, timestamp_ms=index)
    newest = 7 - ago
    assert partition.write(sequence=newest * 3, count=3) == Duplicate(newest * 3, newest * 3 + 2, newest)
    assert partition.end_offset == 24


@rule("B.1", "a batch older than the last five is out of order")
def test_the_sixth_last_batch_is_out_of_order() -> None:
    partition = Partition()
    for index in range(6):
        partition.write(sequence=index)
    assert partition.write(sequence=0) == OutOfOrder(0, 6)


@rule("B.1", "a part of a batch in the window is no duplicate but out of order")
@pytest.mark.parametrize(("sequence", "count"), [(0, 2), (1, 2), (1, 1), (2, 2)])
def test_a_part_of_a_batch_is_no_duplicate(sequence: int, count: int) -> None:
    partition = Partition()
    partition.write(count=3)
    assert partition.write(sequence=sequence, count=count) == OutOfOrder(sequence, 3)


@rule("B.1", "the whole window of five survives a restart (Kafka keeps one batch)")
@pytest.mark.parametrize("ago", range(5))
def test_the_whole_window_survives_a_restart(ago: int) -> None:
    partition = Partition()
    for index in range(7):
        partition.write(sequence=index)
    partition.restart()
    assert partition.write(sequence=6 - ago) == Duplicate(6 - ago, 6 - ago, 1_000)


@rule("B.1", "a duplicate is recognised across the wrap of sequences")
def test_a_batch_across_the_wrap_is_recognised_again() -> None:
    partition = Partition()
    partition.write(sequence=LAST_SEQUENCE - 1, count=4)
    assert partition.write(sequence=LAST_SEQUENCE - 1, count=4) == Duplicate(0, 3, 1_000)
    assert partition.write(sequence=2) is ACCEPTED


# ---------------------------------------------------------------- epochs and sequences


@rule("B.1", "a batch of an epoch below the stored one is fenced")
def test_an_older_epoch_is_fenced() -> None:
    partition = Partition()
    partition.write(epoch=3)
    assert partition.write(epoch=2) == StaleEpoch(2, 3)


@rule("B.1", "a duplicate is looked for under its own epoch only")
def test_the_same_sequences_of_an_older_epoch_are_fenced_not_repeated() -> None:
    partition = Partition()
    partition.write(epoch=1)
    partition.write(epoch=2)
    assert partition.write(epoch=1) == StaleEpoch(1, 2)


@rule("B.1", "a new epoch begins at sequence 0")
def test_a_new_epoch_begins_at_zero() -> None:
    partition = Partition()
    partition.write(epoch=0)
    assert partition.write(epoch=1, sequence=1) == OutOfOrder(1, 0)
    assert partition.write(epoch=1, sequence=0) is ACCEPTED


@rule("B.1", "a new epoch clears the window")
def test_a_new_epoch_clears_the_window() -> None:
    partition = Partition()
    for sequence in range(3):
        partition.write(epoch=0, sequence=sequence)
    partition.write(epoch=1, sequence=0)
    partition.restart()
    assert partition.write(epoch=1, sequence=0) == Duplicate(3, 3, 1_000)
    assert partition.write(epoch=1, sequence=2) == OutOfOrder(2, 1)
    assert partition.write(epoch=1, sequence=1) is ACCEPTED


@rule("B.1", "an unknown producer may begin with any sequence (its state may have expired)")
def test_an_unknown_producer_may_begin_anywhere() -> None:
    partition = Partition()
    assert partition.write(sequence=77) is ACCEPTED
    assert partition.write(sequence=78) is ACCEPTED


@rule("B.1", "a gap is out of order")
@pytest.mark.parametrize("sequence", [2, 100, LAST_SEQUENCE])
def test_a_gap_is_out_of_order(sequence: int) -> None:
    partition = Partition()
    partition.write()
    assert partition.write(sequence=sequence) == OutOfOrder(sequence, 1)


@rule("B.1", "2147483647 is followed by 0 within the same epoch")
def test_sequences_go_on_over_the_wrap() -> None:
    partition = Partition()
    partition.write(sequence=LAST_SEQUENCE - 2, count=3)
    assert partition.write(sequence=0, count=2) is ACCEPTED
    assert partition.write(sequence=2) is ACCEPTED


@rule("B.1", "after a marker that bumped the epoch the next batch must begin at 0")
def test_after_a_bumping_marker_sequences_begin_anew() -> None:
    partition = Partition()
    partition.write(transactional=True)
    partition.end(epoch=1)
    assert partition.write(epoch=1, sequence=1, transactional=True) == OutOfOrder(1, 0)
    assert partition.write(epoch=1, sequence=0, transactional=True) is ACCEPTED


@rule("B.1", "after a marker of the same epoch (transaction version 0 and 1) sequences go on")
def test_after_a_marker_of_the_same_epoch_sequences_go_on() -> None:
    partition = Partition()
    partition.write(transactional=True)
    partition.end(epoch=0, version=1)
    assert partition.write(sequence=0, transactional=True) == Duplicate(0, 0, 1_000)
    assert partition.write(sequence=1, transactional=True) is ACCEPTED


@rule("B.1", "a producer knows nothing of its sequences in another partition, nor of another producer's here")
def test_producers_do_not_mix() -> None:
    partition = Partition()
    partition.write(1, sequence=0)
    partition.write(2, sequence=50)
    assert partition.write(1, sequence=1) is ACCEPTED
    assert partition.write(2, sequence=51) is ACCEPTED


# ---------------------------------------------------------------- transactions


@rule("B.1", "a batch outside of transactions is refused while the producer's transaction is open here")
def test_a_plain_batch_is_refused_while_a_transaction_is_open() -> None:
    partition = Partition()
    partition.write(sequence=0)
    partition.write(sequence=1, transactional=True)
    assert partition.write(sequence=2) == TransactionOpen(1)
    partition.end(epoch=0, version=0)
    assert partition.write(sequence=2) is ACCEPTED


@rule("B.1", "a plain batch of a new epoch is refused as well while a transaction is open here")
def test_a_plain_batch_of_a_new_epoch_is_refused_while_a_transaction_is_open() -> None:
    partition = Partition()
    partition.write(transactional=True)
    assert partition.write(epoch=1) == TransactionOpen(0)


@rule("B.1", "offsets of a group coordinator have their epoch checked, and no sequence")
def test_a_coordinators_batch_has_only_its_epoch_checked() -> None:
    partition = Partition()
    assert partition.write_offsets(guard=partition.verify(epoch=0)) is ACCEPTED
    assert partition.write_offsets() is ACCEPTED
    assert [facts.last_sequence for facts in partition.producers.describe()] == [-1]
    partition.end(epoch=1)
    assert partition.write_offsets(epoch=0, guard=partition.verify(epoch=0)) == StaleEpoch(0, 1)


@rule("B.6", "a marker below the stored epoch is refused")
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_marker_of_an_older_epoch_is_fenced(version: int) -> None:
    partition = Partition()
    partition.write(epoch=4, transactional=True)
    assert partition.end(epoch=3, version=version) == StaleEpoch(3, 4)


@rule("B.6", "transaction version 0 and 1: a marker of the stored epoch ends the transaction")
def test_an_older_protocols_marker_carries_the_transactions_own_epoch() -> None:
    partition = Partition()
    partition.write(epoch=4, transactional=True)
    assert partition.end(epoch=4, version=1) is ACCEPTED
    assert not partition.stable.open_transactions


@rule("B.6", "transaction version 2: a marker of the stored epoch is refused while a transaction is open")
def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    """KAFKA-17754: the marker of transaction n, delivered again after transaction n + 1 began."""
    partition = Partition()
    partition.write(epoch=4, transactional=True)
    partition.end(epoch=5)
    partition.write(epoch=5, transactional=True)
    assert partition.end(epoch=5) == StaleEpoch(5, 5)
    assert partition.stable.open_transactions == {1: 2}


@rule("B.6", "transaction version 2: a marker repeated with nothing open is accepted (KAFKA-19999)")
def test_a_repeated_marker_is_accepted_when_nothing_is_open() -> None:
    partition = Partition()
    partition.write(epoch=4, transactional=True)
    assert partition.end(epoch=5) is ACCEPTED
    assert partition.end(epoch=5) is ACCEPTED


@rule("B.6", "a marker of an older coordinator epoch is refused")
def test_a_zombie_coordinators_marker_is_refused() -> None:
    partition = Partition()
    partition.write(transactional=True)
    partition.end(epoch=1, coordinator_epoch=9)
    assert partition.end(epoch=2, coordinator_epoch=8) == CoordinatorFenced(8, 9)
    assert partition.end(epoch=2, coordinator_epoch=9) is ACCEPTED


@rule("B.8", "a marker for a producer with nothing open still moves its epoch")
def test_a_marker_that_ends_nothing_moves_the_epoch() -> None:
    partition = Partition()
    assert partition.end(epoch=7) is ACCEPTED
    assert partition.write(epoch=6) == StaleEpoch(6, 7)


@rule("B.8", "a control record of an unknown kind changes nothing")
def test_an_unknown_control_record_changes_nothing() -> None:
    partition = Partition()
    partition.write(transactional=True)
    unknown = build_batch(
        [(b"\x00\x00\x00\x63", b"", (), 1)],
        base_offset=1,
        producer_id=1,
        producer_epoch=9,
        transactional=True,
        control=True,
    )
    partition.apply((read_header(unknown), unknown))
    assert partition.stable.open_transactions == {1: 0}
    assert partition.write(sequence=1, transactional=True) is ACCEPTED


def test_a_marker_whose_record_the_cleaner_took_still_fences() -> None:
    partition = Partition()
    partition.write(transactional=True)
    header, _ = batches.marker(commit=True, epoch=1, offset=1)
    emptied = build_from_stored(header, [])
    partition.apply((read_header(emptied), emptied))
    assert partition.write(epoch=0, sequence=1, transactional=True) == StaleEpoch(0, 1)


# ---------------------------------------------------------------- verification


@rule("B.2", "the first transactional batch of a producer needs a guard made before the coordinator was asked")
def test_the_first_batch_of_a_transaction_needs_its_guard() -> None:
    partition = Partition()
    assert partition.write(transactional=True, needs_guard=True) == NotInTransaction()
    guard = partition.verify()
    assert partition.write(transactional=True, needs_guard=True, guard=guard) is ACCEPTED


@rule("B.2", "while the transaction is open here no guard is needed")
def test_further_batches_need_no_guard() -> None:
    partition = Partition()
    partition.write(transactional=True, needs_guard=True, guard=partition.verify())
    assert partition.verify(sequence=1) is None
    assert partition.write(sequence=1, transactional=True, needs_guard=True) is ACCEPTED


@rule("B.2", "a batch of a later epoch is verified although a transaction of the earlier one is open here still")
def test_the_next_transaction_is_verified_although_the_last_ones_marker_is_missing() -> None:
    """The client goes on as soon as its commit is decided; refusing the batch outright would be fatal to it."""
    partition = Partition()
    partition.write(transactional=True, needs_guard=True, guard=partition.verify())
    assert partition.producers.has_open_transaction(1, 0)
    assert not partition.producers.has_open_transaction(1, 1)
    assert partition.verify(epoch=1) is not None
    assert partition.write(epoch=1, transactional=True, needs_guard=True) == NotInTransaction()


@rule("B.2", "an append or a marker takes the guard away: an answer that comes after it opens nothing")
def test_a_guard_from_before_a_marker_opens_nothing() -> None:
    """The ABA case: verified, aborted meanwhile, and the late answer would begin a transaction nobody ends."""
    partition = Partition()
    guard = partition.verify()
    partition.end(epoch=0, commit=False, version=0)
    assert partition.write(transactional=True, needs_guard=True, guard=guard) == NotInTransaction()
    other = partition.verify()
    assert guard is not None
    assert other is not None
    assert not partition.producers.is_current(guard)
    assert partition.producers.is_current(other)
    assert partition.write(transactional=True, needs_guard=True, guard=guard) == NotInTransaction()
    assert partition.write(transactional=True, needs_guard=True, guard=other) is ACCEPTED


@rule("B.2", "a stale epoch is named before a missing guard (KAFKA-19690)")
def test_a_stale_epoch_is_named_before_the_missing_guard() -> None:
    partition = Partition()
    partition.write(epoch=2)
    assert partition.write(epoch=1, transactional=True, needs_guard=True) == StaleEpoch(1, 2)


@rule("B.2", "another producer's guard opens nothing")
def test_a_guard_is_good_for_its_own_producer_only() -> None:
    partition = Partition()
    partition.verify(1)
    assert partition.write(1, transactional=True, needs_guard=True, guard=partition.verify(2)) == NotInTransaction()


@rule("B.1", "while the lowest sequence is being verified, a higher one is out of order")
def test_a_later_batch_may_not_pass_one_that_is_being_verified() -> None:
    partition = Partition()
    partition.write(transactional=True)
    partition.end(epoch=0, version=0)
    first = partition.verify(sequence=1, newest=False)
    second = partition.verify(sequence=2, newest=False)
    assert first is second
    assert partition.write(sequence=2, transactional=True, guard=second) == OutOfOrder(2, 1)
    assert partition.write(sequence=1, transactional=True, guard=first) is ACCEPTED
    assert partition.write(sequence=2, transactional=True) is ACCEPTED


@rule("B.2", "a copy of an old batch that comes late, and is not confirmed, holds up nothing that goes on")
@pytest.mark.parametrize("old", [0, 1], ids=["older than the window", "in the window"])
def test_a_late_copy_bars_nobody(old: int) -> None:
    partition = Partition()
    for sequence in range(6):
        partition.write(sequence=sequence, transactional=True)
    partition.end(epoch=0, version=0)
    partition.verify(sequence=old, newest=False)
    guard = partition.verify(sequence=6, newest=False)
    assert partition.write(sequence=6, transactional=True, guard=guard, needs_guard=True) is ACCEPTED


@rule("B.1", "a lower sequence that comes later lowers the barrier, a higher epoch sets it anew")
def test_the_barrier_follows_the_lowest_sequence_of_the_highest_epoch() -> None:
    partition = Partition()
    partition.verify(epoch=0, sequence=5, newest=False)
    partition.verify(epoch=0, sequence=3, newest=False)
    assert partition.write(sequence=4) == OutOfOrder(4, 3)
    partition.verify(epoch=1, sequence=8, newest=False)
    assert partition.write(epoch=1, sequence=8) is ACCEPTED


@rule("B.1", "transaction version 2: without state the first sequence must be 0")
def test_the_newest_protocol_begins_at_zero() -> None:
    partition = Partition()
    guard = partition.verify(sequence=4)
    assert partition.write(sequence=4, transactional=True, guard=guard) == OutOfOrder(4, 0)
    guard = partition.verify(sequence=0)
    assert partition.write(sequence=0, transactional=True, guard=guard) is ACCEPTED


def test_verifications_of_producers_that_never_come_back_are_bounded() -> None:
    partition = Partition()
    first = partition.verify(0)
    for producer_id in range(1, MAX_VERIFYING + 1):
        partition.verify(producer_id)
    assert partition.write(0, transactional=True, needs_guard=True, guard=first) == NotInTransaction()


# ---------------------------------------------------------------- forgetting


@rule("B.1", "a producer is forgotten when it was idle for producer.id.expiration.ms")
def test_an_idle_producer_is_forgotten() -> None:
    partition = Partition()
    partition.write(1)
    partition.now_ms += DAY_MS // 2
    partition.write(2)
    assert sum(partition.producers.expire(partition.now_ms + DAY_MS // 2 - 1_000, DAY_MS)) == 0
    assert sum(partition.producers.expire(partition.now_ms + DAY_MS // 2, DAY_MS)) == 1
    assert [facts.producer_id for facts in partition.producers.describe()] == [2]


@rule("B.1", "a producer with an open transaction is never forgotten")
def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    partition = Partition()
    partition.write(transactional=True)
    assert sum(partition.producers.expire(partition.now_ms + 10 * DAY_MS, DAY_MS)) == 0
    partition.end(epoch=1)
    assert sum(partition.producers.expire(partition.now_ms + 20 * DAY_MS, DAY_MS)) == 1


def test_old_timestamps_inside_the_batches_make_no_producer_look_idle() -> None:
    """Kafka expires by the batch's own timestamp: a producer that replays last year's events loses its sequences
    within ten minutes.
    """
    partition = Partition()
    partition.write(timestamp_ms=1)
    assert sum(partition.producers.expire(partition.now_ms + 1_000, DAY_MS)) == 0
    assert partition.write(sequence=0, timestamp_ms=1) == Duplicate(0, 0, 1)


def test_a_producer_that_was_only_replayed_has_its_full_time() -> None:
    partition = Partition()
    partition.apply(batches.data())
    assert sum(partition.producers.expire(partition.now_ms, DAY_MS)) == 0
    assert sum(partition.producers.expire(partition.now_ms + DAY_MS - 1_000, DAY_MS)) == 0
    assert sum(partition.producers.expire(partition.now_ms + DAY_MS, DAY_MS)) == 1


@pytest.mark.parametrize("looked_before", [False, True])
def test_a_producer_that_wrote_before_the_clock_was_set_has_its_full_time(looked_before: bool) -> None:
    partition = Partition()
    partition.now_ms, set_ms = 60_000, partition.now_ms
    partition.write()
    if looked_before:
        assert sum(partition.producers.expire(partition.now_ms, DAY_MS)) == 0
    snapshot = whole(partition.producers.snapshot())
    done_at_once(partition.producers.restoring(snapshot))
    assert partition.producers.evict_idle(set_ms // 1000, 10)[0] == 0
    assert sum(partition.producers.expire(set_ms, DAY_MS)) == 0
    assert sum(partition.producers.expire(set_ms + DAY_MS - 1_000, DAY_MS)) == 0
    assert sum(partition.producers.expire(set_ms + DAY_MS, DAY_MS)) == 1


def test_a_clock_that_is_set_ahead_makes_no_producer_idle() -> None:
    partition = Partition()
    partition.write()
    guard = partition.verify(2)
    set_ms = partition.now_ms + 10 * DAY_MS
    assert sum(partition.producers.expire(set_ms, DAY_MS, clock_set_ms=set_ms)) == 0
    assert sum(partition.producers.expire(set_ms + DAY_MS - 1_000, DAY_MS, clock_set_ms=set_ms)) == 0
    assert guard is not None
    assert partition.producers.is_current(guard)
    assert sum(partition.producers.expire(set_ms + DAY_MS, DAY_MS, clock_set_ms=set_ms)) == 1
    assert not partition.producers.is_current(guard)


@rule("B.1", "verifications that nobody came back for are forgotten alike")
def test_abandoned_verifications_are_forgotten() -> None:
    partition = Partition()
    guard = partition.verify()
    assert sum(partition.producers.expire(partition.now_ms + DAY_MS, DAY_MS)) == 0
    assert partition.write(transactional=True, needs_guard=True, guard=guard) == NotInTransaction()


@rule("B.1", "raising the log's start forgets no producer")
def test_raising_the_start_of_the_log_forgets_no_producer() -> None:
    partition = Partition()
    partition.write()
    partition.producers.set_start_offset(1)
    assert partition.write() == Duplicate(0, 0, 1_000)


def test_one_producer_too_many_is_refused_and_the_known_ones_go_on() -> None:
    partition = Partition(limit=2)
    partition.write(1)
    partition.write(2)
    assert partition.write(3) == TooManyProducers(2)
    assert partition.write(1, sequence=1) is ACCEPTED
    assert sum(partition.producers.expire(partition.now_ms + DAY_MS, DAY_MS)) == 2
    assert partition.write(3) is ACCEPTED


@rule(
    "B.1",
    "where there are too many producers an idle one goes, none that may still repeat a batch or is in a transaction",
)
def test_the_idle_go_before_anybody_is_refused() -> None:
    partition = Partition(limit=3)
    partition.write(1, transactional=True)
    partition.write(2)
    partition.now_ms += IDLE_S * 1_000 - 1_000
    partition.write(3)
    assert partition.write(4) == TooManyProducers(3), "2 may come back"
    partition.now_ms += 1_000
    assert partition.write(4) is ACCEPTED
    assert [facts.producer_id for facts in partition.producers.describe()] == [1, 3, 4]
    assert partition.write(3, sequence=0) == Duplicate(2, 2, 1_000)


@rule("B.6", "markers fill no partition with producers that never wrote: writers go first")
def test_markers_take_no_room_from_producers() -> None:
    partition = Partition(limit=3)
    partition.write(1)
    partition.write(2)
    for stranger in range(100, 200):
        assert partition.end(stranger, epoch=0) is ACCEPTED
    assert len(partition.producers) == 3
    assert partition.write(3) is ACCEPTED
    assert partition.end(500, epoch=0) is ACCEPTED, "a marker is never refused for lack of room"
    assert [facts.producer_id for facts in partition.producers.describe()] == [1, 2, 3]


@rule("B.6", "a late marker of an older client is refused although its producer was forgotten for lack of room")
@pytest.mark.parametrize("remembered", [True, False], ids=["forgotten", "never remembered"])
@pytest.mark.parametrize("restarted", [False, True])
def test_who_is_forgotten_for_lack_of_room_is_not_open_to_late_markers(remembered: bool, restarted: bool) -> None:
    """Nothing was written here in the first transaction, so only its marker tells of the producer."""
    partition = Partition(limit=1)
    if not remembered:
        partition.write(8)
    assert partition.end(7, epoch=0, version=0, coordinator_epoch=6) is ACCEPTED
    assert len(partition.producers) == 1
    if remembered:
        assert partition.write(9) is ACCEPTED
    if restarted:
        partition.restart()
    assert partition.producers.coordinator_epoch(7) == 6, "a coordinator that was replaced confirms nothing"
    partition.now_ms += IDLE_S * 1_000
    assert partition.end(7, epoch=0, version=0, coordinator_epoch=5) is ACCEPTED, "it ends nothing"
    assert partition.write(7, transactional=True) is ACCEPTED
    assert partition.end(7, epoch=0, version=0, coordinator_epoch=5) == CoordinatorFenced(5, 6)
    assert partition.end(7, epoch=0, version=0, coordinator_epoch=6) is ACCEPTED


def test_offsets_of_who_was_forgotten_are_not_open_to_late_markers_either() -> None:
    partition = Partition(limit=1)
    partition.end(7, epoch=0, version=0, coordinator_epoch=6)
    assert partition.write(9) is ACCEPTED
    partition.now_ms += IDLE_S * 1_000
    partition.producers.evict_idle(partition.now_ms // 1_000, 10)
    partition.apply(batches.data(7, sequence=-1, offset=partition.end_offset, transactional=True))
    assert partition.end(7, epoch=0, version=0, coordinator_epoch=5) == CoordinatorFenced(5, 6)


@pytest.mark.parametrize("ended_by_marker", [True, False])
def test_the_coordinator_epoch_of_who_is_forgotten_concerns_no_other_producer(ended_by_marker: bool) -> None:
    """Other producers have other coordinators, which lead in epochs of their own."""
    partition = Partition(limit=1)
    if not ended_by_marker:
        partition.write(8)
    partition.end(7, epoch=0, coordinator_epoch=6)
    partition.now_ms += (0 if ended_by_marker else IDLE_S) * 1_000
    assert partition.write(9, transactional=True) is ACCEPTED
    assert partition.end(9, epoch=0, version=0, coordinator_epoch=5) is ACCEPTED


def test_of_those_who_are_forgotten_only_the_last_ones_are_known() -> None:
    partition = Partition(limit=1)
    for producer_id in range(MAX_FORGOTTEN + 2):
        partition.end(producer_id, epoch=0, coordinator_epoch=6)
    assert len(partition.producers) == 1
    partition.restart()
    known = []
    for producer_id in range(MAX_FORGOTTEN + 2):
        partition.apply(batches.data(producer_id, offset=partition.end_offset))
        known.append(partition.producers.coordinator_epoch(producer_id))
    assert known == [-1] + [6] * (MAX_FORGOTTEN + 1)


def test_who_is_idle_is_forgotten_whole() -> None:
    partition = Partition(limit=2)
    partition.write(8)
    partition.end(7, epoch=0, version=0, coordinator_epoch=6)
    partition.now_ms += IDLE_S * 1_000
    assert partition.write(9) is ACCEPTED
    assert partition.write(7) is ACCEPTED
    assert partition.producers.coordinator_epoch(7) == -1


# ---------------------------------------------------------------- looking in, snapshots


def test_describe_shows_what_describe_producers_answers() -> None:
    partition = Partition()
    partition.write(5, epoch=2, sequence=0, count=4, transactional=True, timestamp_ms=99)
    partition.end(6, epoch=1, coordinator_epoch=3)
    assert list(partition.producers.describe()) == [(5, 2, 3, 99, -1, 0), (6, 1, -1, 1_000, 3, -1)]


def test_describe_shows_the_producers_there_were_and_copies_none_of_them_first() -> None:
    partition = Partition(limit=50_000)
    for producer_id in range(5_000):
        partition.write(producer_id)
    tracemalloc.start()
    try:
        described = partition.producers.describe()
        first = next(described)
        assert tracemalloc.get_traced_memory()[1] < 50_000, "so much as ten bytes a producer"
    finally:
        tracemalloc.stop()
    for producer_id in range(4_000, 6_000):
        partition.write(producer_id, epoch=1)
    told = [first, *described]
    assert sorted(facts.producer_id for facts in told) == list(range(5_000))
    assert {facts.producer_epoch for facts in told} == {0}


def is_last(partition: Partition, header: BatchHeader) -> bool:
    """Whether this batch is what its producer is known by, as the cleaner will see it."""
    known = list(partition.producers.known_by(1 << 40))
    batches = [number for each in known if each.last_offset >= 0 for number in each[:2]]
    markers = [number for each in known if each.last_offset < 0 for number in (each[0], *each[2:])]
    return LastBatches(batches, markers, end_offset=-1).is_last(header)


def test_the_cleaner_keeps_a_producers_last_batch_and_then_the_marker_that_alone_tells_its_epoch() -> None:
    partition = Partition()
    first, _ = batches.data(1, epoch=0, sequence=0, count=3, offset=0, transactional=True)
    marker, _ = batches.marker(commit=True, epoch=1, offset=3)
    partition.write(count=3, transactional=True)
    assert is_last(partition, first)
    partition.end(epoch=1)
    assert not is_last(partition, first)
    assert is_last(partition, marker)
    assert not is_last(partition, marker._replace(producer_id=2))
    partition.write(epoch=1, transactional=True)
    assert not is_last(partition, marker)


@rule("B.9", "offsets of an older client leave one marker in a compacted log, not one for every transaction it made")
def test_the_cleaner_keeps_the_last_of_all_markers_that_are_of_one_epoch() -> None:
    """Committed offsets have no sequences, and the epoch stands still: nothing else tells the markers apart."""
    partition = Partition()
    markers = [batches.marker(commit=True, offset=2 * index + 1, timestamp_ms=index) for index in range(3)]
    for index, marker in enumerate(markers):
        partition.apply(batches.data(sequence=-1, offset=2 * index, transactional=True, timestamp_ms=index))
        partition.apply(marker)
    for _ in range(2):
        assert [is_last(partition, header) for header, _ in markers] == [False, False, True]
        partition.restart()


def test_a_snapshot_of_the_version_before_can_be_read() -> None:
    partition = Partition()
    partition.write(1)
    now = whole(partition.producers.snapshot())
    done_at_once(partition.producers.restoring(b"\x02" + now[1:5] + b"\0\0\0\x06" + now[5:]))
    assert whole(partition.producers.snapshot()) == now


def test_a_snapshot_without_forgotten_producers_is_of_the_first_version() -> None:
    """So the program before can read it."""
    partition = Partition(limit=2)
    partition.write(1)
    assert whole(partition.producers.snapshot())[:1] == b"\x01"
    partition.end(7, epoch=0, coordinator_epoch=6)
    partition.end(8, epoch=0, coordinator_epoch=6)
    snapshot = whole(partition.producers.snapshot())
    assert snapshot[:1] == b"\x03"
    done_at_once(partition.producers.restoring(snapshot))
    assert whole(partition.producers.snapshot()) == snapshot


@pytest.mark.parametrize("harm", ["short", "long", "version", "window"])
def test_a_damaged_snapshot_is_refused_and_changes_nothing(harm: str) -> None:
    partition = Partition()
    partition.write(1)
    partition.write(2)
    intact = whole(partition.producers.snapshot())
    damaged = {
        "short": intact[:-1],
        "long": intact + b"\0",
        "version": b"\x09" + intact[1:],
        "window": intact[:15] + b"\x06" + intact[16:],
    }[harm]
    with pytest.raises(ValueError, match=r"snapshot|window"):
        done_at_once(partition.producers.restoring(damaged))
    assert whole(partition.producers.snapshot()) == intact
