"""Bugs of replication, planted one at a time in the simulated cluster, each to be caught within `MAX_SEEDS` runs.

`python -m tests.sim.cluster_mutants` shows how many runs each took and which promise it broke.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import random
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import service.api.write_txn_markers
import service.broker.reading
import service.cluster.controller
import service.cluster.election
import service.cluster.reassign_commands
import tests.sim.cluster
import tests.sim.cluster_faults
from idempotence.producers import ProducerStates
from isolation.stable import StableOffsets
from log.batch import BatchHeader, Buffer
from log.control import ControlType
from log.epochs import LeaderEpochs
from log.partition_log import PartitionLog
from log.replica import ReplicaSet
from service.broker.acceptance import RefusedBatch
from service.broker.fetch_sessions import WantedPartition
from service.broker.in_sync import InSyncSets
from service.broker.marker_courier import MarkerCourier
from service.broker.partition import Appended, Following, Partition
from service.broker.reading import PartitionRead, Reading
from service.broker.replay import Replay
from service.broker.replication import Fetcher, FollowedPartition
from service.broker.shard import Shard
from service.broker.standby import AT_ONCE_BYTES, REST_S
from service.broker.transaction_gate import TransactionGate
from service.cluster.controller import AlterPartition
from service.cluster.election import held_by
from service.cluster.image import CONTROLLER_EPOCH, NO_DIRECTORIES, NO_LIFE, Image, PartitionState
from service.cluster.metadata import ClusterMetadata
from service.stores.memory import MemoryServer
from service.stores.port import Check, Op, Put, Result
from service.turns import Steps
from service.wire.error_codes import ErrorCode
from service.wire.messages import FetchPartition
from tests.log.building import cut_log
from tests.sim import caught
from tests.sim.cluster import ClusterSimulation, run
from tests.sim.cluster_faults import (
    ALONE,
    BACK_FIRST,
    GIVEN_TO_DEAD,
    MOVED_UNHEARD,
    REMOVED,
    REPLACED,
    STAYS_AWAY,
    WITH_A_MARKER,
)
from tests.sim.mutants import Caught, complete_after_the_first_marker, hunt_in, markers_of_deposed_coordinators_taken
from tests.sim.plan import Plan
from tests.sim.run import processes, replaced
from txn.coordinator import TxnCoordinator
from txn.markers import SendMarkers

MAX_SEEDS = 60

Planting = contextlib.AbstractContextManager[None]
CanShow = Callable[[Plan], bool]


def acknowledged_before_the_in_sync_set_has_it() -> Planting:
    def advance(replicas: ReplicaSet) -> bool:
        moved = replicas._own_end_offset > replicas.high_watermark
        replicas.high_watermark = max(replicas.high_watermark, replicas._own_end_offset)
        return moved

    return replaced(ReplicaSet, "_advance", advance)


@contextlib.contextmanager
def cut_to_the_high_watermark_and_not_by_epochs() -> Iterator[None]:
    original, wanted = Partition.follow, Fetcher._wanted

    def follow(partition: Partition, leader: int, leader_epoch: int, *, fsync: bool) -> Following:
        role = partition.role
        new = original(partition, leader, leader_epoch, fsync=fsync)
        if new is not role:
            cut_log(partition.log, partition.high_watermark)
        return new

    def without_epoch(fetcher: Fetcher, place: FollowedPartition) -> FetchPartition:
        asked = wanted(fetcher, place)
        asked.last_fetched_epoch = -1
        return asked

    with replaced(Partition, "follow", follow), replaced(Fetcher, "_wanted", without_epoch):
        yield


def never_cut() -> Planting:
    """What another leader wrote in its place is taken for what this follower has."""
    original = Fetcher._wanted

    def without_epoch(fetcher: Fetcher, place: FollowedPartition) -> FetchPartition:
        asked = original(fetcher, place)
        asked.last_fetched_epoch = -1
        return asked

    return replaced(Fetcher, "_wanted", without_epoch)


def counted_though_its_history_parted() -> Planting:
    """The offset from which a follower fetches counts before its history was compared."""
    original = Reading._read

    def read(
        reading: Reading, partition: Partition, key: Any, wanted: WantedPartition, *rest: Any, **limits: Any
    ) -> PartitionRead:
        if reading.copier is not None and partition.is_leading:
            reading._count(partition, wanted, reading.copier)
        return original(reading, partition, key, wanted, *rest, **limits)

    return replaced(Reading, "_read", read)


def a_pending_member_does_not_count() -> Planting:
    original = ReplicaSet._advance

    def advance(replicas: ReplicaSet) -> bool:
        pending, replicas.pending_isr = replicas.pending_isr, ()
        try:
            return original(replicas)
        finally:
            replicas.pending_isr = pending

    return replaced(ReplicaSet, "_advance", advance)


def in_sync_without_having_caught_up() -> Planting:
    def has_caught_up(replicas: ReplicaSet, member: int, lives: Mapping[int, int], log_start_offset: int) -> bool:
        return replicas._followers[member].held_end_offset >= 0 and member in lives

    return replaced(ReplicaSet, "_has_caught_up", has_caught_up)


def the_in_sync_set_is_written_whatever_it_is_by_now() -> Planting:
    """No compare-and-set: a proposal overwrites what others have decided meanwhile."""
    return replaced(AlterPartition, "_refusal", lambda command, image, state: None)


def a_controller_ignores_its_epoch() -> Planting:
    """What a controller decides is written whatever the store holds by now. Another one may have decided since."""
    original = MemoryServer.commit

    def commit(server: MemoryServer, session: int, ops: tuple[Op, ...]) -> Result:
        if any(isinstance(op, Check) and op.key == CONTROLLER_EPOCH for op in ops):
            held = server.snapshot().entries
            puts = (op for op in ops if isinstance(op, Put) and op.key in held)
            ops = tuple(dataclasses.replace(op, version=held[op.key].version) for op in puts)
        return original(server, session, ops)

    return replaced(MemoryServer, "commit", commit)


def what_is_not_flushed_is_said_to_be_held() -> Planting:
    return replaced(Partition, "must_flush", False)


def a_new_leader_takes_its_end_for_committed() -> Planting:
    original = Partition.lead

    def lead(partition: Partition, *arguments: Any, **named: Any) -> None:
        partition._known_high_watermark, partition._replicas = partition.log.end_offset, None
        original(partition, *arguments, **named)

    return replaced(Partition, "lead", lead)


def nobody_is_fenced_by_a_leader_epoch() -> Planting:
    """What a follower copies for a replica that is to be deleted counts for the one that takes its place (R8)."""
    return replaced(service.broker.reading, "_epoch_error", lambda partition, epoch: ErrorCode.NONE)


def _last_life(metadata: ClusterMetadata) -> int:
    return metadata.image.lives.get(metadata.broker_id, NO_LIFE).epoch


def who_lost_its_tail_is_taken_for_clean() -> Planting:
    original = ClusterMetadata.register

    async def register(metadata: ClusterMetadata, *arguments: Any, **named: Any) -> int:
        return await original(metadata, *arguments, **{**named, "closed_life": _last_life(metadata)})

    return replaced(ClusterMetadata, "register", register)


@contextlib.contextmanager
def folds_stay_as_they_were_when_the_log_is_cut() -> Iterator[None]:
    nothing = lambda view, other: None  # noqa: E731
    with replaced(ProducerStates, "swap", nothing), replaced(StableOffsets, "swap", nothing):
        yield


def folds_are_not_fed_by_what_is_copied() -> Planting:
    """Producers' last batches and open transactions are forgotten by the next leader."""
    original = Partition.append_replicated

    def append(partition: Partition, *arguments: Any, **named: Any) -> None:
        views, partition.log.views = partition.log.views, ()
        try:
            original(partition, *arguments, **named)
        finally:
            partition.log.views = views

    return replaced(Partition, "append_replicated", append)


def who_was_replaced_tells_producers_to_give_up() -> Planting:
    async def led(sets: InSyncSets, judged: Sequence[tuple[Partition, int]]) -> list[bool]:
        return [True] * len(judged)

    return replaced(InSyncSets, "led_until_now", led)


def deleted_here_is_deleted() -> Planting:
    """The next leader brings it back."""
    return replaced(Partition, "deleted", lambda partition, offset: None)


@contextlib.contextmanager
def a_new_leader_takes_no_new_epoch() -> Iterator[None]:
    """A new leader takes over without a new epoch, so the replaced one goes on in the same epoch."""

    def elect(
        state: PartitionState, alive: Container[int], least: int, *, unclean: Sequence[int] = ()
    ) -> PartitionState:
        elected = original(state, alive, least, unclean=unclean)
        return elected._replace(leader_epoch=max(state.leader_epoch, 0))

    original = service.cluster.election.elect
    with replaced(service.cluster.controller, "elect", elect), replaced(service.cluster.election, "elect", elect):
        yield


@contextlib.contextmanager
def any_that_lives_may_lead() -> Iterator[None]:
    def elect(
        state: PartitionState, alive: Container[int], least: int, *, unclean: Sequence[int] = ()
    ) -> PartitionState:
        living = [replica for replica in reversed(state.replicas) if replica in alive]
        if not living:
            return original(state, alive, least, unclean=unclean)
        isr = tuple(dict.fromkeys((living[0], *(member for member in state.isr if member in alive))))
        return state._replace(leader=living[0], isr=isr, leader_epoch=state.leader_epoch + 1)

    original = service.cluster.election.elect
    with replaced(service.cluster.controller, "elect", elect), replaced(service.cluster.election, "elect", elect):
        yield


def a_former_grant_holds_in_the_next_life() -> Planting:
    """A broker that comes back leads in its old epoch, whatever part of its log it has lost (R4, R5)."""

    def after_return(state: PartitionState, *_: Any, **__: Any) -> PartitionState:
        return state

    return replaced(service.cluster.controller, "_after_return", after_return)


def a_former_life_counts() -> Planting:
    """What a follower had shown in its former life is taken for what it holds (R8)."""

    def has_caught_up(replicas: ReplicaSet, member: int, lives: Mapping[int, int], log_start_offset: int) -> bool:
        shown = replicas._followers[member]
        enough = max(replicas.high_watermark, replicas._epoch_start_offset)
        return member in lives and shown.held_end_offset >= enough and shown.start_offset >= log_start_offset

    return both(
        replaced(ReplicaSet, "began_another_life", lambda replicas, member, broker_epoch, *, now_ms: None),
        replaced(ReplicaSet, "_has_caught_up", has_caught_up),
    )


def a_reassignment_ends_before_anybody_caught_up() -> Planting:
    def settled_at_once(state: PartitionState, target: tuple[int, ...], image: Image, least: int) -> PartitionState:
        return held_by(target, state._replace(isr=tuple(dict.fromkeys((*state.isr, *target)))), image.brokers, least)

    return replaced(service.cluster.reassign_commands, "_reassigned", settled_at_once)


@contextlib.contextmanager
def who_is_gone_is_counted_among_those_in_sync() -> Iterator[None]:
    """A reassignment ends on a replica that is gone, and drops the copies of those that live."""

    def are_enough(replicas: tuple[int, ...], state: PartitionState, alive: Container[int], least: int) -> bool:
        return original(replicas, state, replicas, least)

    original = service.cluster.election.are_enough
    with (
        replaced(service.cluster.reassign_commands, "are_enough", are_enough),
        replaced(service.cluster.election, "are_enough", are_enough),
    ):
        yield


def a_reassignment_ends_though_who_stays_is_gone_by_its_commit() -> Planting:
    return replaced(service.cluster.reassign_commands, "alive_still", lambda image, members: [])


@contextlib.contextmanager
def eligible_after_an_unclean_stop() -> Iterator[None]:
    """A broker that came back without the tail of its log is still trusted to have everything that was
    committed (R14).
    """

    def with_isr(state: PartitionState, isr: tuple[int, ...], least: int, **_: Any) -> PartitionState:
        return original(state, isr, least)

    original = service.cluster.election.with_isr
    with replaced(service.cluster.controller, "with_isr", with_isr):
        yield


def committed_though_too_few_are_in_sync() -> Planting:
    """The high watermark passes those that left the in-sync set and may lead next (R14)."""
    original = ReplicaSet._advance

    def advance(replicas: ReplicaSet) -> bool:
        short, eligible = replicas.is_short, replicas.eligible
        replicas.is_short, replicas.eligible = False, ()
        try:
            return original(replicas)
        finally:
            replicas.is_short, replicas.eligible = short, eligible

    return replaced(ReplicaSet, "_advance", advance)


@contextlib.contextmanager
def eligible_though_enough_are_in_sync() -> Iterator[None]:
    """A replica that left the in-sync set is still trusted while others commit what it has never seen (R14)."""

    def with_isr(state: PartitionState, isr: tuple[int, ...], least: int, **named: Any) -> PartitionState:
        return original(state, isr, len(state.replicas), **named)

    def decided(replicas: ReplicaSet, isr: tuple[int, ...], partition_epoch: int, eligible: tuple[int, ...]) -> bool:
        return taken(replicas, isr, partition_epoch, ())

    original, taken = service.cluster.election.with_isr, ReplicaSet.decided
    with (
        replaced(service.cluster.controller, "with_isr", with_isr),
        replaced(service.cluster.election, "with_isr", with_isr),
        replaced(ReplicaSet, "decided", decided),
    ):
        yield


def nobody_comes_in_again() -> Planting:
    return replaced(ReplicaSet, "_has_caught_up", lambda *_: False)


def followers_are_not_told_what_is_committed() -> Planting:
    return replaced(Partition, "learn_high_watermark", lambda partition, high_watermark: None)


def epochs_stay_as_they_were_when_the_log_is_cut() -> Planting:
    return replaced(LeaderEpochs, "truncate_from_end", lambda epochs, end_offset: None)


def aborted_ranges_are_not_copied() -> Planting:
    """The next leader gives readers what was aborted."""
    original = StableOffsets._end

    def end(stable: StableOffsets, producer_id: int, marker_offset: int, outcome: ControlType | None) -> None:
        caller = sys._getframe(1)
        while caller.f_back is not None and caller.f_code is not Partition.append_replicated.__code__:
            caller = caller.f_back
        copied = caller.f_code is Partition.append_replicated.__code__
        original(stable, producer_id, marker_offset, ControlType.COMMIT if copied and outcome else outcome)

    return replaced(StableOffsets, "_end", end)


def a_repeated_batch_is_acknowledged_before_it_is_committed() -> Planting:
    original = Partition.append_from_client

    def append(partition: Partition, *arguments: Any, **named: Any) -> Appended | RefusedBatch:
        outcome = original(partition, *arguments, **named)
        if isinstance(outcome, Appended) and outcome.duplicate:
            return dataclasses.replace(outcome, end_offset=0)
        return outcome

    return replaced(Partition, "append_from_client", append)


def markers_before_the_decision() -> Planting:
    """They leave before the decision is committed, which the next coordinator may not find."""
    original = Shard._carry_out

    def carry_out(shard: Shard[Any], decision: Any) -> None:
        if markers := [effect for effect in decision.effects if isinstance(effect, SendMarkers)]:
            shard._post(markers)
        original(shard, decision)

    return replaced(Shard, "_carry_out", carry_out)


def a_marker_counts_before_it_is_committed() -> Planting:
    async def at_once(partition: Partition, leader_epoch: int, end_offset: int, deadline: float) -> ErrorCode:
        return ErrorCode.NONE

    return replaced(service.api.write_txn_markers, "committed_or_error", at_once)


def markers_of_who_was_replaced_are_obeyed() -> Planting:
    """A deposed coordinator ends what its successor began."""
    return both(
        markers_of_deposed_coordinators_taken(),
        replaced(MarkerCourier, "_is_current", lambda courier, owed: True),
    )


def what_a_coordinator_owed_is_forgotten_when_it_moves() -> Planting:
    return replaced(TxnCoordinator, "owed_markers", lambda coordinator: iter(()))


def a_coordinator_answers_before_its_decision_is_committed() -> Planting:
    def deliver(shard: Shard[Any]) -> None:
        while shard._undelivered:
            shard._deliver(shard._undelivered.popleft()[1])

    return replaced(Shard, "_await_commit", deliver)


def another_brokers_coordinator_is_not_asked() -> Planting:
    """A transactional write is accepted although no coordinator will ever send its marker."""

    async def nobody_asked(*_: Any) -> dict[Any, Any]:
        return {}

    return replaced(TransactionGate, "_ask_elsewhere", nobody_asked)


def a_coordinator_reads_only_what_it_knows_to_be_committed() -> Planting:
    """A new coordinator has forgotten what the former one decided last."""
    original = PartitionLog.scan

    def scan(log: PartitionLog, from_offset: int, limit_offset: int | None = None) -> Any:
        reader = sys._getframe(1).f_locals.get("self")
        if isinstance(reader, Replay) and reader.partition.is_leading and limit_offset is not None:
            limit_offset = min(limit_offset, reader.partition.leads_from_offset - 1)
        return original(log, from_offset, limit_offset)

    return replaced(PartitionLog, "scan", scan)


def elections_that_may_lose() -> Planting:
    """This is no defect but a setting that an operator may choose. The checkers must then tell what is lost."""
    original = tests.sim.cluster_faults.draw_cluster_plan

    def draw(chance: random.Random) -> Plan:
        plan = original(chance)
        plan.settings |= {
            "unclean.leader.election.enable": "true",
            "min.insync.replicas": "1",
            "transaction.state.log.min.isr": "1",
        }
        plan.kinds = ("kill", "kill the controller", "broker cut off", "restart")
        plan.down_seconds, plan.calm_seconds, plan.fault_seconds = 5.0, 0.3, 12.0
        return plan

    return replaced(tests.sim.cluster, "draw_cluster_plan", draw)


def who_has_an_empty_disk_is_taken_for_who_it_was() -> Planting:
    """As if it had stopped in order, and had its data folders and all partitions still."""
    original = ClusterMetadata.register

    async def register(metadata: ClusterMetadata, *given: Any, directories: Any, **more: Any) -> int:
        known = metadata.image.directories.get(metadata.broker_id, NO_DIRECTORIES).ids
        is_new = bool(known) and known != directories
        more |= {"lost": ()} | ({"closed_life": _last_life(metadata)} if is_new else {})
        return await original(metadata, *given, directories=known or directories, **more)

    return replaced(ClusterMetadata, "register", register)


def who_has_lost_partitions_does_not_tell_it() -> Planting:
    """A partition without its folder, or what was in it, is taken for one that holds what it held (R17)."""
    original = ClusterMetadata.register

    async def register(metadata: ClusterMetadata, *given: Any, **named: Any) -> int:
        return await original(metadata, *given, **{**named, "lost": ()})

    return replaced(ClusterMetadata, "register", register)


def a_slice_of_a_log_is_taken_for_all_of_it() -> Planting:
    """A standby has read some, and goes on from where it would be if that had been all."""
    original = Replay.up_to

    def up_to(replay: Replay[Any], end_offset: int, at_most_bytes: int | None = None) -> Steps[None]:
        yield from original(replay, end_offset, at_most_bytes)
        replay.at_offset = end_offset

    return replaced(Replay, "up_to", up_to)


def a_standby_goes_on_though_deletions_have_left_the_log() -> Planting:
    """Between two slices compaction has removed a record that it knows, and what deletes that (R15)."""

    def is_stale(replay: Replay[Any]) -> bool:
        return replay._taken_back != replay.partition.committed_taken_back

    return replaced(Replay, "is_stale", property(is_stale))


def deletions_that_a_follower_missed_are_not_asked_about() -> Planting:
    """A follower that was away goes on with a log that tombstones have left meanwhile. Deleted keys come back."""
    return replaced(Reading, "_lacks_deletions", staticmethod(lambda *_: ErrorCode.NONE))


def an_epoch_begins_behind_a_gap() -> Planting:
    """Who copies a log from which compaction has removed an epoch's first records takes the epoch for begun at the
    first one that is left. It tells a replica with an uncommitted record in the gap that it may keep that.
    """
    original = PartitionLog.append_after_gap

    def append(log: PartitionLog, batch: Buffer, header: BatchHeader, *, now_ms: int) -> None:
        known = log.epochs.latest
        original(log, batch, header, now_ms=now_ms)
        if header.leader_epoch > known:
            *earlier, (epoch, _) = log.epochs.entries()
            log.epochs = LeaderEpochs([*earlier, (epoch, header.base_offset)])
            log.epochs.changed = True

    return replaced(PartitionLog, "append_after_gap", append)


def what_a_former_coordinator_has_sent_is_forgotten() -> Planting:
    """It is loaded again in its leader epoch, and sends the markers of older clients again in that epoch. The earlier
    ones end the next transaction.
    """

    async def unknown(courier: MarkerCourier, shard: Shard[TxnCoordinator]) -> None:
        return None

    return replaced(MarkerCourier, "_sent_by_a_former_shard", unknown)


@contextlib.contextmanager
def both(first: Planting, second: Planting) -> Iterator[None]:
    with first, second:
        yield


ANYWHERE = (
    acknowledged_before_the_in_sync_set_has_it,
    cut_to_the_high_watermark_and_not_by_epochs,
    never_cut,
    counted_though_its_history_parted,
    a_pending_member_does_not_count,
    in_sync_without_having_caught_up,
    what_is_not_flushed_is_said_to_be_held,
    a_new_leader_takes_its_end_for_committed,
    folds_stay_as_they_were_when_the_log_is_cut,
    folds_are_not_fed_by_what_is_copied,
    deleted_here_is_deleted,
    a_new_leader_takes_no_new_epoch,
    any_that_lives_may_lead,
    nobody_comes_in_again,
    followers_are_not_told_what_is_committed,
    epochs_stay_as_they_were_when_the_log_is_cut,
    committed_though_too_few_are_in_sync,
    eligible_though_enough_are_in_sync,
    elections_that_may_lose,
)
WITH_TRANSACTIONS = (
    aborted_ranges_are_not_copied,
    a_repeated_batch_is_acknowledged_before_it_is_committed,
    complete_after_the_first_marker,
    markers_before_the_decision,
    markers_of_who_was_replaced_are_obeyed,
    what_a_coordinator_owed_is_forgotten_when_it_moves,
    a_coordinator_answers_before_its_decision_is_committed,
    another_brokers_coordinator_is_not_asked,
    a_coordinator_reads_only_what_it_knows_to_be_committed,
)
WITH_MOVES = (
    a_reassignment_ends_before_anybody_caught_up,
    an_epoch_begins_behind_a_gap,
)
WHERE_MEMORY_IS_LOST = (
    a_former_life_counts,
    eligible_after_an_unclean_stop,
)
"""Where what is flushed alone counts, a follower still holds what it has shown."""
WHERE_A_LOSER_IS_BACK_FIRST = (who_lost_its_tail_is_taken_for_clean, a_former_grant_holds_in_the_next_life)
WHERE_DISKS_ARE_REPLACED = (who_has_an_empty_disk_is_taken_for_who_it_was,)
WHERE_PARTITIONS_ARE_REMOVED = (who_has_lost_partitions_does_not_tell_it,)
WHERE_STANDBYS_READ_SLICES = (a_slice_of_a_log_is_taken_for_all_of_it,)
WHERE_STANDBYS_LAG_BEHIND_COMPACTION = (a_standby_goes_on_though_deletions_have_left_the_log,)
WHERE_MOVES_ARE_UNHEARD = (
    the_in_sync_set_is_written_whatever_it_is_by_now,
    a_controller_ignores_its_epoch,
    who_was_replaced_tells_producers_to_give_up,
    nobody_is_fenced_by_a_leader_epoch,
)
WHERE_WHO_IS_GONE_IS_GIVEN_MORE = (
    who_is_gone_is_counted_among_those_in_sync,
    a_reassignment_ends_though_who_stays_is_gone_by_its_commit,
)
WHERE_ONE_STAYS_AWAY = (deletions_that_a_follower_missed_are_not_asked_about,)
WHERE_ONE_DIES_WITH_A_MARKER = (a_marker_counts_before_it_is_committed,)
WHERE_MARKERS_COME_LATE = (what_a_former_coordinator_has_sent_is_forgotten,)


def _lets_standbys_lag(plan: Plan) -> bool:
    keeps_deletions_ms = plan.settings.get("log.cleaner.delete.retention.ms")
    return plan.transactional and plan.standby_rest_s > REST_S and keeps_deletions_ms is not None


CAN_SHOW: tuple[tuple[Sequence[Callable[[], Planting]], CanShow], ...] = (
    (ANYWHERE, lambda plan: True),
    (WITH_TRANSACTIONS, lambda plan: plan.transactional),
    (WITH_MOVES, lambda plan: plan.moves),
    (WHERE_MEMORY_IS_LOST, lambda plan: ALONE in plan.kinds),
    (WHERE_A_LOSER_IS_BACK_FIRST, lambda plan: BACK_FIRST in plan.kinds),
    (WHERE_DISKS_ARE_REPLACED, lambda plan: REPLACED in plan.kinds),
    (WHERE_PARTITIONS_ARE_REMOVED, lambda plan: REMOVED in plan.kinds),
    (WHERE_STANDBYS_READ_SLICES, lambda plan: plan.standby_bytes < AT_ONCE_BYTES),
    (WHERE_STANDBYS_LAG_BEHIND_COMPACTION, _lets_standbys_lag),
    (WHERE_MOVES_ARE_UNHEARD, lambda plan: MOVED_UNHEARD in plan.kinds),
    (WHERE_WHO_IS_GONE_IS_GIVEN_MORE, lambda plan: GIVEN_TO_DEAD in plan.kinds),
    (WHERE_ONE_STAYS_AWAY, lambda plan: STAYS_AWAY in plan.kinds),
    (WHERE_ONE_DIES_WITH_A_MARKER, lambda plan: WITH_A_MARKER in plan.kinds),
    (WHERE_MARKERS_COME_LATE, lambda plan: plan.late_markers),
)
"""The bugs, and the seeds in which their conditions can come about."""
MUTANTS: dict[str, tuple[Callable[[], Planting], CanShow]] = {
    plant.__name__: (plant, can_show) for plants, can_show in CAN_SHOW for plant in plants
}


@cache
def is_right(seed: int) -> bool:
    """Without any mutant. Most are caught by one of the first seeds, which need not be run anew for each."""
    return run(seed).right


def hunt(name: str, max_seeds: int = MAX_SEEDS, *, anew: bool = False) -> Caught:
    """Seed after seed, until the mutant of that name is caught. `anew`: as if it had never been."""
    plant, can_show = MUTANTS[name]
    shows = (seed for seed in caught.seeds(name, anew=anew) if can_show(ClusterSimulation(seed).plan))
    return hunt_in(itertools.islice(shows, max_seeds), name, plant, run, is_right)


def hunt_all(names: Sequence[str], max_seeds: int = MAX_SEEDS, *, anew: bool = False) -> Iterator[Caught]:
    """Side by side; in the order given."""
    with processes(os.cpu_count() or 1) as pool:
        yield from pool.map(partial(hunt, max_seeds=max_seeds, anew=anew), names)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.cluster_mutants", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", help="the mutants whose name contains this")
    parser.add_argument("--seeds", type=int, default=MAX_SEEDS, help="the most seeds for one mutant")
    arguments = parser.parse_args()
    chosen = [name for name in MUTANTS if arguments.only is None or arguments.only in name]
    found = {}
    print(f"{'planted bug':52} {'seeds':>5} {'seconds':>7}  broken promise")
    for verdict in hunt_all(chosen, arguments.seeds, anew=True):
        if verdict.broken:
            found[verdict.mutant] = verdict.seed
        what = verdict.broken or "NOT CAUGHT"
        print(f"{verdict.mutant:52} {verdict.seeds:5} {verdict.seconds:7.0f}  {what}", flush=True)
    caught.note(found)
    print(f"{len(found)} of {len(chosen)} caught")
    return 0 if len(found) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
