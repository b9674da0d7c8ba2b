"""`python -m tests.sim.mutants`: plant known bugs, one at a time, and see each of them caught within a bounded number
of seeds.

A simulation that finds nothing proves nothing unless it can fail. Each mutant here is a bug that brokers have had; it
is planted by replacing one function of the product for the time of a run. The table says how many seeds it took and
which promise was broken. Exit status 0 only when all are caught.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import idempotence.producers
import idempotence.sequence
import log.cleaning
import log.cleaning_rules
import log.partition_log
import log.recovery
import log.relocation
import log.removal
import log.retention
import log.snapshots
import service.broker.acceptance
import service.broker.compactor
import service.broker.housekeeper
import service.broker.opening
import service.broker.reading
import service.broker.writing
import txn.branches
import txn.coordinator
import txn.deadlines
import txn.decisions
import txn.markers
import txn.records
from idempotence.producers import ProducerStates
from idempotence.sequence import MAX_SEQUENCE
from idempotence.verdicts import ACCEPTED, CoordinatorFenced, Duplicate, StaleEpoch, Verdict
from idempotence.window import BATCH, KEPT_BEFORE_PUSH
from isolation.aborted import AbortedRange
from isolation.read_view import AnyIsolation, aborted_transactions
from isolation.stable import StableOffsets
from log.batch import BatchHeader, Buffer
from log.checkpoints import START_OFFSET, read_offset
from log.config import LogConfig
from log.disk import Disk, DiskFault, FileSlice
from log.durability import LogDurability
from log.ids import NO_TIMESTAMP, TopicId, TopicPartition, folder_of
from log.laying import LaidBatch
from log.manifest import write_recovery_points
from log.partition_log import PartitionLog
from log.recovery import Recovered
from log.relocation import FORMER, FUTURE, Relocation, stem_of
from log.retention import SegmentAge
from log.segment import IndexesLost, Segment
from log.steps import done_at_once
from log.swap import CLEANED, PLAN, SwapPlan
from log.views import View
from service.broker import opening
from service.broker.coordinators import Coordinators
from service.broker.fetch_sessions import FetchSession, SessionKey, WantedPartition, WatchedPartition
from service.broker.folder_moves import FolderMoves
from service.broker.headroom import Headroom
from service.broker.holdings import Holdings
from service.broker.housekeeper import Housekeeper
from service.broker.log_folder import LogFolder
from service.broker.opening import PartitionMaker
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.replay import Replay
from service.broker.shard import Shard
from service.broker.transaction_gate import TransactionalWriter, TransactionGate
from service.cluster.image import Image, PartitionState, Topic
from service.groups.commands import CommitTransactionalOffsets
from service.groups.consumer_group import ConsumerGroup
from service.groups.coordinator import GroupCoordinator
from service.groups.kinds import OffsetCheck, any_offset
from service.wire.error_codes import ErrorCode
from tests.log.building import cut_log
from tests.sim import caught
from tests.sim.disk import Mount, SimFile
from tests.sim.plan import MOVED, MOVED_ON, SWAPPED, Plan
from tests.sim.run import Simulation, processes, replaced, run
from txn.branch_index import BranchIndex
from txn.commands import EndTransaction
from txn.coordinator import TxnCoordinator
from txn.markers import OwedMarkers, SendMarkers
from txn.states import NO_TOKEN, State, Txn
from txn.verdicts import Ended

MAX_SEEDS = 300  # a bug that hides longer is not caught


Planting = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    story: str
    plant: Planting
    transactional: bool = False  # only seeds with transactions can show it
    moves: bool = False  # only seeds in which all kinds of partitions move between data folders can show it
    carries: bool = False  # only seeds in which a compacted topic moves slowly can show it
    fault: str = ""  # only seeds with this fault can show it
    where: Callable[[Plan], bool] = lambda plan: True  # only these seeds can show it, or hardly any others

    def can_be_shown_by(self, plan: Plan) -> bool:
        if self.fault and self.fault not in plan.kinds:
            return False
        if self.carries and not plan.carries:
            return False
        if self.moves and (len(plan.folders) == 1 or plan.carries):
            return False
        return self.where(plan) and (plan.transactional or not self.transactional)


class OneTooEarly(int):
    """As a mask of sequences, makes them begin anew one number too early."""

    def __rand__(self, number: int) -> int:
        return number % int(self)


class Agreeable(int):
    """A checksum that fits whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


# ---------------------------------------------------------------- durability


def acknowledge_before_fsync() -> contextlib.AbstractContextManager[None]:
    async def at_once(partition: Partition, leader_epoch: int, end_offset: int, deadline: float) -> ErrorCode:
        return ErrorCode.NONE

    return replaced(service.broker.writing, "committed_or_error", at_once)


def high_watermark_ahead_of_the_disk() -> contextlib.AbstractContextManager[None]:
    def held(partition: Partition) -> None:
        if partition.is_leading and partition.replicas.holds(partition.log.end_offset):
            partition._committed(partition.high_watermark)

    return replaced(Partition, "_held", held)


def take_a_failed_fsync_for_done() -> contextlib.AbstractContextManager[None]:
    original = Segment.fsync

    async def fsync(segment: Segment) -> None:
        with contextlib.suppress(DiskFault):
            await original(segment)

    return replaced(Segment, "fsync", fsync)


def roll_without_syncing_the_folder() -> contextlib.AbstractContextManager[None]:
    async def nothing(durability: LogDurability) -> None:
        return

    return replaced(LogDurability, "_sync_names", nothing)


def recovery_point_before_fsync() -> contextlib.AbstractContextManager[None]:
    """The points name what was appended; recovery then trusts what never reached the disk."""

    async def write_points(keeper: Housekeeper, folder: LogFolder) -> None:
        partitions = [partition for partition in keeper._partitions if partition.folder is folder]
        with contextlib.suppress(DiskFault):
            points = {partition.topic_partition: partition.log.end_offset for partition in partitions}
            await write_recovery_points(folder.disk, points)

    return replaced(Housekeeper, "write_points", write_points)


def keep_the_manifest_after_the_start() -> contextlib.AbstractContextManager[None]:
    """A crash is then taken for the clean stop before it (KAFKA-10471)."""

    async def keep(disk: Disk) -> None:
        pass

    return replaced(service.broker.opening, "remove_manifest", keep)


def a_full_disk_fails_the_folder() -> contextlib.AbstractContextManager[None]:
    """A full disk stops all reading and writing until the broker is restarted."""

    def fail(folder: LogFolder, fault: DiskFault) -> None:
        if folder.failed is None:
            folder.failed = fault
            folder._on_failure(folder)

    return replaced(LogFolder, "_pass", fail)


def half_a_write_stays() -> contextlib.AbstractContextManager[None]:
    """What the full disk took of a refused write is not cut off."""
    return replaced(SimFile, "_take_back", lambda file, size: None)


def a_shard_that_gave_up_is_not_replayed() -> contextlib.AbstractContextManager[None]:
    """The partition is still led here, but has no coordinator."""
    return replaced(Coordinators, "_given_up", lambda coordinators, shard: None)


def nobody_looks_for_room_again() -> contextlib.AbstractContextManager[None]:
    """Producers are refused until a restart."""

    async def look(headroom: Headroom) -> None:
        return

    return replaced(Headroom, "look", look)


# ---------------------------------------------------------------- recovery


def skip_the_checksum_in_recovery() -> contextlib.AbstractContextManager[None]:
    return replaced(log.recovery, "crc32c", lambda data: Agreeable())


def cut_a_batch_too_many_in_recovery() -> contextlib.AbstractContextManager[None]:
    """Its offsets are then given to other records."""
    original = PartitionLog._take_over

    def take_over(partition_log: PartitionLog, found: Recovered) -> None:
        original(partition_log, found)
        if partition_log.end_offset > partition_log.start_offset:
            cut_log(partition_log, partition_log.end_offset - 1)

    return replaced(PartitionLog, "_take_over", take_over)


def forget_the_start_offset_in_recovery() -> contextlib.AbstractContextManager[None]:

    def read(disk: Disk, folder: str, name: str) -> int | None:
        return None if name == START_OFFSET else read_offset(disk, folder, name)

    return replaced(log.recovery, "read_offset", read)


def a_snapshot_holds_the_batch_behind_it() -> contextlib.AbstractContextManager[None]:
    """It is taken when that batch has been applied, which recovery then applies once more, or never finds."""
    original = PartitionLog.append

    def append(partition_log: PartitionLog, batch: Buffer, header: BatchHeader, **how: Any) -> None:
        original(partition_log, batch, header, **how)
        taken = partition_log.snapshots.pending.get(header.base_offset)
        if taken is not None:
            partition_log.snapshots.take(
                partition_log.views, offset=header.base_offset, leader_epoch=taken.leader_epoch
            )

    return replaced(PartitionLog, "append", append)


def lose_the_newest_batch_of_a_coordinator_in_its_replay() -> contextlib.AbstractContextManager[None]:
    original = Replay._take

    def take(replay: Replay[Any], header: BatchHeader, batch: memoryview) -> Iterator[None]:
        return original(replay, header, batch) if header.next_offset < replay.partition.log.end_offset else iter(())

    return replaced(Replay, "_take", take)


# ---------------------------------------------------------------- reading


def index_off_by_one() -> contextlib.AbstractContextManager[None]:
    """A search starts at the entry after the one it should start at."""
    original = Segment._indexed_position

    def indexed_position(segment: Segment, offset: int) -> int:
        offsets = segment.offsets
        slot = offsets.floor(offset - segment.base_offset) + 1
        return offsets.entry(slot)[1] if 0 < slot < len(offsets) else original(segment, offset)

    return replaced(Segment, "_indexed_position", indexed_position)


def nobody_rebuilds_lost_indexes() -> contextlib.AbstractContextManager[None]:
    original = LogFolder._pass

    def hear(folder: LogFolder, fault: DiskFault) -> None:
        if not isinstance(fault, IndexesLost):
            original(folder, fault)

    return replaced(LogFolder, "_pass", hear)


def nobody_is_fenced_by_a_leader_epoch() -> contextlib.AbstractContextManager[None]:
    return replaced(service.broker.reading, "_epoch_error", lambda partition, epoch: ErrorCode.NONE)


def read_beyond_the_high_watermark() -> contextlib.AbstractContextManager[None]:
    original = Partition.read

    def read(partition: Partition, offset: int, **limits: Any) -> FileSlice | None:
        return original(partition, offset, **{**limits, "limit_offset": partition.log.end_offset})

    return replaced(Partition, "read", read)


def time_index_off_by_one() -> contextlib.AbstractContextManager[None]:
    original = Segment.search_timestamp

    def search(
        segment: Segment, timestamp: int, from_offset: int, at_once: int
    ) -> tuple[tuple[int, BatchHeader] | None, int]:
        slot = segment.times.floor(timestamp) + 1
        if 0 < slot < len(segment.times):
            from_offset = max(from_offset, segment.base_offset + segment.times.entry(slot)[1] + 1)
        return original(segment, timestamp, from_offset, at_once)

    return replaced(Segment, "search_timestamp", search)


def accept_damaged_batches() -> contextlib.AbstractContextManager[None]:
    return replaced(service.broker.acceptance, "crc32c", lambda data: Agreeable())


# ---------------------------------------------------------------- exactly once


def stable_offset_ignores_open_transactions() -> contextlib.AbstractContextManager[None]:
    def last_stable_offset(view: StableOffsets, high_watermark: int, log_start_offset: int) -> int:
        return high_watermark

    return replaced(StableOffsets, "last_stable_offset", last_stable_offset)


def stable_offset_one_too_far() -> contextlib.AbstractContextManager[None]:
    original = StableOffsets.last_stable_offset

    def last_stable_offset(view: StableOffsets, high_watermark: int, log_start_offset: int) -> int:
        return min(original(view, high_watermark, log_start_offset) + 1, high_watermark)

    return replaced(StableOffsets, "last_stable_offset", last_stable_offset)


def aborted_transactions_not_listed() -> contextlib.AbstractContextManager[None]:
    return replaced(service.broker.reading, "aborted_transactions", lambda *_, **__: iter(()))


@contextlib.contextmanager
def zombies_not_fenced() -> Iterator[None]:
    """A fenced producer goes on writing: neither the coordinator is asked about it nor its epoch looked at."""
    original = ProducerStates.check

    def check(view: ProducerStates, header: BatchHeader, **circumstances: Any) -> Verdict:
        verdict = original(view, header, **{**circumstances, "needs_guard": False})
        return ACCEPTED if isinstance(verdict, StaleEpoch) else verdict

    async def admit(gate: TransactionGate, wanted: Sequence[object], **_: Any) -> list[None]:
        return [None] * len(wanted)

    with replaced(ProducerStates, "check", check), replaced(TransactionGate, "admit", admit):
        yield


def retries_not_recognized() -> contextlib.AbstractContextManager[None]:
    original = ProducerStates.check

    def check(view: ProducerStates, header: BatchHeader, **circumstances: Any) -> Verdict:
        verdict = original(view, header, **circumstances)
        return ACCEPTED if isinstance(verdict, Duplicate) else verdict

    return replaced(ProducerStates, "check", check)


def lost_on_restart(view: Any) -> Planting:
    """What a snapshot or the manifest says of what this view knows is thrown away."""
    original: Callable[[Any, None], Iterator[None]] = view.restoring

    def restoring(itself: Any, data: bytes | None) -> Iterator[None]:
        return original(itself, None)

    return lambda: replaced(view, "restoring", restoring)


def markers_before_the_decision() -> contextlib.AbstractContextManager[None]:
    """The markers of a transaction are sent when its decision is appended, and not when that is committed."""
    original = Shard._write

    def write(shard: Shard[Any], decisions: Any) -> bool:
        if not original(shard, decisions):
            return False
        for decision in decisions:
            shard._post(decision.effects)
        return True

    return replaced(Shard, "_write", write)


def markers_not_resumed_after_a_restart() -> contextlib.AbstractContextManager[None]:
    def owed_markers(coordinator: TxnCoordinator) -> Iterator[SendMarkers]:
        return iter(())

    return replaced(TxnCoordinator, "owed_markers", owed_markers)


def transaction_offsets_visible_before_the_commit() -> contextlib.AbstractContextManager[None]:
    original = GroupCoordinator.apply

    def apply(coordinator: GroupCoordinator, key: bytes, value: bytes | None, **producer: int) -> None:
        original(coordinator, key, value)

    return replaced(GroupCoordinator, "apply", apply)


def coordinator_answers_before_its_records_are_durable() -> contextlib.AbstractContextManager[None]:
    def answer(shard: Shard[Any], decision: Any) -> None:
        shard._deliver(decision)
        shard._set_timer()

    return replaced(Shard, "_answer", answer)


def gathered_decisions_are_never_written() -> contextlib.AbstractContextManager[None]:
    """They are applied and answered."""

    def write_gathered(shard: Shard[Any]) -> None:
        gathered, shard._gathered, shard._gathered_bytes = shard._gathered, [], 0
        shard._undelivered += [(shard._written_end_offset, decision) for decision in gathered]

    return replaced(Shard, "write_gathered", write_gathered)


def a_new_owner_keeps_the_epoch() -> contextlib.AbstractContextManager[None]:
    def bump(owned: Txn, **circumstances: Any) -> Txn:
        return owned

    return replaced(txn.decisions, "bump", bump)


def no_fence_when_time_is_up() -> contextlib.AbstractContextManager[None]:
    """A transaction that took too long is aborted, and its producer goes on in the same epoch."""
    original = txn.decisions.fence

    def fence(late: Txn, **circumstances: Any) -> Txn:
        aborted = original(late, **circumstances)
        return aborted._replace(producer_epoch=late.producer_epoch, client_version=1)

    return replaced(txn.coordinator, "fence", fence)


@contextlib.contextmanager
def transactions_of_one_epoch() -> Iterator[None]:
    """An end moves no epoch, and markers begin the sequences anew: requests of one transaction fit the next."""
    decide_end = txn.decisions.decide_end
    original = ProducerStates._apply_marker

    def decide(ending: Txn | None, ask: EndTransaction, **circumstances: Any) -> Any:
        return decide_end(ending, dataclasses.replace(ask, transaction_version=0), **circumstances)

    def apply_marker(view: ProducerStates, header: BatchHeader, batch: Buffer) -> None:
        if view._producers.get(header.producer_id) is not None:
            view._producers.remove(header.producer_id)
        original(view, header, batch)

    with replaced(txn.coordinator, "decide_end", decide), replaced(ProducerStates, "_apply_marker", apply_marker):
        yield


@contextlib.contextmanager
def writes_not_confirmed() -> Iterator[None]:
    """No guard: a producer of the epoch that a partition knows may open a transaction there."""
    original = ProducerStates.check

    def check(view: ProducerStates, header: BatchHeader, **circumstances: Any) -> Verdict:
        return original(view, header, **{**circumstances, "needs_guard": False})

    async def admit(
        gate: TransactionGate, wanted: Sequence[tuple[Partition, TransactionalWriter]], **limits: Any
    ) -> Any:
        if wanted and wanted[0][1].adds_itself:
            return await confirm(gate, wanted, **limits)
        return [None] * len(wanted)

    confirm = TransactionGate.admit
    with replaced(ProducerStates, "check", check), replaced(TransactionGate, "admit", admit):
        yield


@contextlib.contextmanager
def sequences_wrap_one_too_early() -> Iterator[None]:
    mask = OneTooEarly(MAX_SEQUENCE)
    with replaced(idempotence.producers, "MAX_SEQUENCE", mask), replaced(idempotence.sequence, "MAX_SEQUENCE", mask):
        yield


def window_of_four() -> contextlib.AbstractContextManager[None]:
    return replaced(idempotence.producers, "KEPT_BEFORE_PUSH", KEPT_BEFORE_PUSH - BATCH.size)


def aborts_of_long_ago_listed() -> contextlib.AbstractContextManager[None]:
    """A reader that never gets their markers hides what the same producer committed later."""
    original = aborted_transactions

    def aborted(
        isolation: AnyIsolation, stable: StableOffsets, *, fetch_offset: int, next_offset: int
    ) -> Iterator[AbortedRange] | None:
        return original(isolation, stable, fetch_offset=0, next_offset=next_offset)

    return replaced(service.broker.reading, "aborted_transactions", aborted)


def aborts_that_begin_below_the_start_forgotten() -> contextlib.AbstractContextManager[None]:
    """Readers are shown what is left of a transaction that was aborted."""
    original = StableOffsets.set_start_offset

    def set_start_offset(view: StableOffsets, offset: int) -> None:
        original(view, offset)
        ranges = view.aborted_ranges(0, 2**62)
        done_at_once(view.forget_aborted([each.last_offset for each in ranges if each.first_offset < offset]))

    return replaced(StableOffsets, "set_start_offset", set_start_offset)


def open_transactions_that_begin_below_the_start_forgotten() -> contextlib.AbstractContextManager[None]:
    """Readers are shown what is left of a transaction that nobody has decided."""
    original = StableOffsets.set_start_offset

    def set_start_offset(view: StableOffsets, offset: int) -> None:
        original(view, offset)
        for each in [each for each in view.describe_open() if each.first_offset < offset]:
            del view._open[each.producer_id], view._facts[each.first_offset]
        while view._began and view._began[0][0] < offset:
            view._began.popleft()

    return replaced(StableOffsets, "set_start_offset", set_start_offset)


def former_members_commit_in_transactions() -> contextlib.AbstractContextManager[None]:
    """Who was thought dead commits for a partition that another member has gone on with (KIP-447)."""

    def may_commit(group: ConsumerGroup, ask: CommitTransactionalOffsets) -> OffsetCheck:
        return any_offset

    return replaced(ConsumerGroup, "may_commit_in_transaction", may_commit)


# ---------------------------------------------------------------- topics, settings, fetch sessions, what gets old


def a_new_topic_inherits_the_folder() -> contextlib.AbstractContextManager[None]:
    """A deleted partition leaves its folder, and the next partition of that name finds it."""

    async def remove(maker: PartitionMaker, partition: Partition) -> bool:
        return True

    def add_new(maker: PartitionMaker, topic: Topic, index: int, config: LogConfig) -> Partition:
        return maker.add(topic, index, maker.emptiest_folder(), config, None, 0)

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        with replaced(PartitionMaker, "remove", remove), replaced(PartitionMaker, "add_new", add_new):
            yield

    return plant()


def whose_a_folder_is_nobody_asks() -> contextlib.AbstractContextManager[None]:
    """If a topic is made again before the folder of the former one is gone, it holds deleted records after a crash."""

    async def is_of(maker: PartitionMaker, *_: Any) -> bool:
        return True

    return replaced(PartitionMaker, "_is_of", is_of)


def serve_deleted_topics() -> contextlib.AbstractContextManager[None]:
    def take_out(table: PartitionTable, topic_id: TopicId) -> list[Partition]:
        return []

    return replaced(PartitionTable, "take_out", take_out)


def auto_durability_needs_no_fsync() -> contextlib.AbstractContextManager[None]:
    def must_fsync(holdings: Holdings, config: LogConfig, state: PartitionState) -> bool:
        return holdings._config.log_durability == "fsync"

    return replaced(Holdings, "_must_fsync", must_fsync)


def a_session_forgets_a_partition() -> contextlib.AbstractContextManager[None]:
    """What had no data this time is never looked at again, until the reader names it once more."""

    def answered(session: FetchSession, keys_with_data: Iterable[SessionKey], quiet: Iterable[SessionKey]) -> None:
        with_data = dict.fromkeys(keys_with_data)
        for key in [key for key in session.wanted if key not in with_data]:
            session.wanted.pop(key).let_go()
            session.stirred.pop(key, None)

    return replaced(FetchSession, "answered", answered)


@contextlib.contextmanager
def what_is_quiet_is_not_heard() -> Iterator[None]:
    """A session does not watch what it does not look at, nor does it ever look around."""

    def looked_at(wanted: WantedPartition, source: WatchedPartition, *_: Any) -> None:
        wanted.has_moved = False

    with replaced(WantedPartition, "looked_at", looked_at), replaced(FetchSession, "asked", _asked_at_first):
        yield


def _asked_at_first(
    session: FetchSession, isolation: AnyIsolation, copier: tuple[int, int] | None, *, has_readers: bool, now_ms: int
) -> None:
    session.copier = copier


def a_session_keeps_the_old_position() -> contextlib.AbstractContextManager[None]:
    original = FetchSession.update

    def update(
        session: FetchSession, changed: Iterable[tuple[SessionKey, WantedPartition]], forgotten: Iterable[SessionKey]
    ) -> None:
        original(session, [(key, wanted) for key, wanted in changed if key not in session.wanted], forgotten)

    return replaced(FetchSession, "update", update)


def damage_is_not_noted() -> contextlib.AbstractContextManager[None]:
    async def note_damage(partition: Partition) -> None:
        pass

    return replaced(Partition, "note_damage", note_damage)


def retention_in_half_the_time() -> contextlib.AbstractContextManager[None]:
    original = log.retention.too_old

    def too_old(segments: Sequence[SegmentAge], config: LogConfig, now_ms: int) -> int:
        return original(segments, config, now_ms + config.retention_ms // 2)

    return replaced(log.retention, "too_old", too_old)


def retention_decides_before_the_lock() -> contextlib.AbstractContextManager[None]:
    """And removes as many segments, whatever has come meanwhile."""

    async def remove_oldest(partition_log: PartitionLog, how_many: Callable[[], int]) -> int:
        wanted = how_many()
        async with partition_log.alone():
            if wanted == len(partition_log.segments):
                partition_log.roll(partition_log.segments[-1].appended_ms)
            await partition_log.durability.settle(partition_log.end_offset)
            return await log.removal._remove(partition_log, partition_log.segments[:wanted])

    return replaced(service.broker.housekeeper, "remove_oldest", remove_oldest)


def the_cleaner_goes_above_the_stable_offset() -> contextlib.AbstractContextManager[None]:
    """What is undecided supersedes what is committed."""
    return replaced(StableOffsets, "first_undecided_offset", lambda view: None)


def a_swap_is_not_finished_after_a_crash() -> contextlib.AbstractContextManager[None]:
    """The plan is forgotten, half of the names are changed."""

    def finish(disk: Disk, folder: str) -> SwapPlan | None:
        for name in sorted(disk.listdir(folder)):
            if name.endswith(CLEANED) or name == PLAN:
                disk.unlink(f"{folder}/{name}")
        return None

    return replaced(log.recovery, "finish_swap", finish)


def a_recovery_begins_before_what_was_compacted() -> contextlib.AbstractContextManager[None]:
    """No later snapshot is looked at, and the batches that are left do not tell a producer's window."""
    original = log.recovery._Recovery.restore_views

    def restore_views(recovery: Any, views: Sequence[View], snapshots: list[int], scan_from: int) -> None:
        report = recovery.report
        trusted, report.trusted_offset = report.trusted_offset, min(report.trusted_offset, scan_from)
        original(recovery, views, snapshots, scan_from)
        report.trusted_offset = trusted

    return replaced(log.recovery._Recovery, "restore_views", restore_views)


def a_pass_leaves_no_snapshot_where_it_ends() -> contextlib.AbstractContextManager[None]:
    original = log.snapshots.Snapshots.forget_below

    async def forget_below(snapshots: log.snapshots.Snapshots, offset: int) -> None:
        await original(snapshots, offset + 1)

    return replaced(log.snapshots.Snapshots, "forget_below", forget_below)


def the_cleaner_drops_markers() -> contextlib.AbstractContextManager[None]:
    """Of transactions whose batches are there still, and of those it can't know to be over."""

    def keep_marker(keeper: Any, header: BatchHeader, batch: memoryview) -> None:
        keeper._with_data.discard(header.producer_id)

    return replaced(log.cleaning._Keeper, "_keep_marker", keep_marker)


def the_cleaner_keeps_what_was_aborted() -> contextlib.AbstractContextManager[None]:
    """And takes what was committed before for superseded by it."""
    return replaced(log.cleaning_rules.AbortedTransactions, "is_aborted", lambda transactions, header: False)


# ---------------------------------------------------------------- markers, branches, what is prepared


def markers_of_deposed_coordinators_taken() -> contextlib.AbstractContextManager[None]:
    original = ProducerStates.check_marker

    def check_marker(view: ProducerStates, header: BatchHeader, **circumstances: int) -> Verdict:
        verdict = original(view, header, **circumstances)
        return ACCEPTED if isinstance(verdict, CoordinatorFenced) else verdict

    return replaced(ProducerStates, "check_marker", check_marker)


def a_new_branch_keeps_the_epoch() -> contextlib.AbstractContextManager[None]:
    """Of the one whose producer id it takes over; the writer of that one knows it."""
    original = txn.decisions._succeed

    def succeed(finished: Txn, *arguments: Any, **circumstances: Any) -> Any:
        return original(finished._replace(producer_epoch=finished.producer_epoch - 1), *arguments, **circumstances)

    return replaced(txn.decisions, "_succeed", succeed)


@contextlib.contextmanager
def complete_after_the_first_marker() -> Iterator[None]:
    """The others are not sent any more."""
    original = OwedMarkers.settle

    def settle(owed: OwedMarkers, transactional_id: str, *, pair: tuple[int, int], partitions: Any) -> Txn | None:
        everywhere = owed.partitions(transactional_id) or ()
        return original(owed, transactional_id, pair=pair, partitions=everywhere)

    def first_of(decided: Txn, partitions: tuple[TopicPartition, ...]) -> SendMarkers:
        return txn.markers.markers_of(decided, partitions[:1])

    with replaced(OwedMarkers, "settle", settle), replaced(txn.coordinator, "markers_of", first_of):
        yield


def aborted_entry_lost_on_roll() -> contextlib.AbstractContextManager[None]:
    """Snapshots miss the newest aborted range."""
    original = StableOffsets.snapshot

    def snapshot(view: StableOffsets) -> list[Collection[Buffer]]:
        newest = list(view.aborted_ranges(0, 2**62))[-1:]
        done_at_once(view.forget_aborted([aborted.last_offset for aborted in newest]))
        return original(view)

    return replaced(StableOffsets, "snapshot", snapshot)


def a_decision_forgets_its_token() -> contextlib.AbstractContextManager[None]:
    original = TxnCoordinator._put

    def put(coordinator: TxnCoordinator, transactional_id: str, owned: Txn | None) -> None:
        forgetful = None if owned is None else owned._replace(decided_token=NO_TOKEN, decided_by="")
        original(coordinator, transactional_id, forgetful)

    return replaced(TxnCoordinator, "_put", put)


def a_decision_leaves_other_branches_open() -> contextlib.AbstractContextManager[None]:
    return replaced(txn.coordinator, "is_aborted_by", lambda branch, named, token: False)


def a_decision_commits_all_that_is_sealed() -> contextlib.AbstractContextManager[None]:
    """Branches of another attempt, and branches that were not named, are committed, too."""
    original = txn.branches.is_aborted_by

    def is_aborted_by(branch: Txn, named: Collection[str], token: int) -> bool:
        return original(branch, named, token) and branch.sealed_ms == NO_TIMESTAMP

    return replaced(txn.coordinator, "is_aborted_by", is_aborted_by)


def branches_do_not_follow_their_root() -> contextlib.AbstractContextManager[None]:
    """Those that do not fit into the turn in which the root decides stay as they are."""
    return replaced(BranchIndex, "_look", lambda index, root: None)


def what_is_decided_over_is_not_held() -> contextlib.AbstractContextManager[None]:
    """While a decision takes several turns, other requests and timeouts move the same branches."""
    return replaced(TxnCoordinator, "_is_held", lambda coordinator, transactional_id: False)


def a_branch_is_sealed_twice() -> contextlib.AbstractContextManager[None]:
    """A repeated commit of a branch commits it."""
    original = txn.decisions._seal

    def seal(branch: Txn, ask: EndTransaction, **circumstances: Any) -> Any:
        if branch.handed_on:
            return txn.decisions.Judgement(Ended(*branch.holder), txn.decisions.commit_branch(branch, wall_ms=0))
        return original(branch, ask, **circumstances)

    return replaced(txn.decisions, "_seal", seal)


def what_is_prepared_ends_by_time() -> contextlib.AbstractContextManager[None]:
    original = txn.deadlines.abort_at_ms

    def abort_at_ms(owned: Txn) -> int | None:
        if owned.is_two_phase and owned.state is State.ONGOING:
            return owned.started_ms + 500
        return original(owned)

    return replaced(txn.deadlines, "abort_at_ms", abort_at_ms)


def what_is_prepared_is_not_kept() -> contextlib.AbstractContextManager[None]:
    original = txn.decisions._init_over_ongoing

    def init_over_ongoing(owned: Txn, ask: Any, **circumstances: Any) -> Any:
        return original(owned, dataclasses.replace(ask, keep_prepared=False), **circumstances)

    return replaced(txn.decisions, "_init_over_ongoing", init_over_ongoing)


def what_lives_is_not_what_is_written() -> contextlib.AbstractContextManager[None]:
    original = TxnCoordinator.apply

    def apply(coordinator: TxnCoordinator, key: bytes, value: bytes | None) -> None:
        is_decided_here = bool(coordinator._decided) and coordinator._decided[0].key is key
        original(coordinator, key, value)
        name = txn.records.read_key(key)
        if is_decided_here and name is not None and (known := coordinator._txns.get(name)) is not None:
            coordinator._put(name, known._replace(timeout_ms=known.timeout_ms + 1))

    return replaced(TxnCoordinator, "apply", apply)


def a_copy_takes_over_before_it_is_durable() -> contextlib.AbstractContextManager[None]:
    flush = PartitionLog.flush

    async def instead(self: PartitionLog) -> int:
        if not self.folder.endswith(FUTURE):
            return await flush(self)
        self.durability.flushed_offset = self.end_offset
        return self.end_offset

    return replaced(PartitionLog, "flush", instead)


def a_decided_move_is_forgotten() -> contextlib.AbstractContextManager[None]:
    """The next start goes on with the partition as it was before the move."""
    original = PartitionMaker._settle_moves

    async def settle(maker: PartitionMaker, image: Image, node_id: int, present: dict[str, set[str]]) -> None:
        formers = maker._named(present, FORMER)
        for topic in image.topics.values():
            for index in topic.partitions:
                name, stem = folder_of(TopicPartition(topic.name, index)), stem_of(topic.id, index)
                for origin in formers.get((topic.id, index), ()):
                    for folder in maker._folders:
                        folder.disk.discard(name)
                        present[folder.name] -= {name, stem + FORMER}
                    origin.disk.rename(stem + FORMER, name)
                    present[origin.name].add(name)
        await original(maker, image, node_id, present)

    return replaced(PartitionMaker, "_settle_moves", settle)


def a_decided_move_is_settled_once_or_never() -> contextlib.AbstractContextManager[None]:
    """An error that passes leaves both folders as they are."""

    async def once(step: Callable[[], Awaitable[None]], failed: Callable[[DiskFault], None]) -> None:
        await step()

    return replaced(log.relocation, "_until_done", once)


def a_decision_is_not_made_durable() -> contextlib.AbstractContextManager[None]:
    """The folder's new name on the one disk is durable before it has lost it on the other."""

    async def settle(move: Relocation, name: str, *_: Callable[[DiskFault], None]) -> None:
        move._rename(name)
        await move._target.sync_dir("")
        move._disk.discard(move._stem + FORMER)

    return replaced(Relocation, "_settle", settle)


def a_start_does_not_make_a_decision_durable() -> contextlib.AbstractContextManager[None]:
    """It finishes a move that a power cut may still undo."""
    original = PartitionMaker._settle_moves
    sync = Mount.sync_dir

    async def sync_dir(disk: Mount, path: str) -> None:
        if not any(name.endswith(FORMER) for name in disk.listdir("")):
            await sync(disk, path)

    async def settle(maker: PartitionMaker, image: Image, node_id: int, present: dict[str, set[str]]) -> None:
        with replaced(Mount, "sync_dir", sync_dir):
            await original(maker, image, node_id, present)

    return replaced(PartitionMaker, "_settle_moves", settle)


@contextlib.contextmanager
def the_emptier_of_two_folders_is_served() -> Iterator[None]:
    """What was written after a move is aside, when the disk failed that was to keep the decision."""
    with (
        replaced(opening, "fullest", lambda twins: min(twins, key=lambda twin: twin.end_offset)),
        replaced(opening, "is_part", lambda *_, **__: True),
    ):
        yield


@contextlib.contextmanager
def compacted_while_it_moves() -> Iterator[None]:
    """The copy has a value whose deletion was compacted away before it was copied."""
    with (
        replaced(FolderMoves, "is_moving", lambda moves, partition: False),
        replaced(Relocation, "_is_outdated", property(lambda move: False)),
    ):
        yield


@contextlib.contextmanager
def a_former_folder_keeps_its_point() -> Iterator[None]:
    """A topic that is made again is judged by how far its predecessor had come in a folder that it moved out of."""

    async def forget(keeper: Housekeeper, partition: TopicPartition) -> bool:
        name = folder_of(partition)
        homes = [folder for folder in keeper._folders if folder.failed is None and folder.disk.exists(name)]
        return all([await keeper.forget_point(folder, partition) for folder in homes])

    async def keep(keeper: Housekeeper, folder: LogFolder, gone: Collection[TopicPartition]) -> None:
        return

    @contextlib.asynccontextmanager
    async def trusting(keeper: Housekeeper, partition: Partition, offset: int) -> AsyncIterator[None]:
        yield

    with (
        replaced(Housekeeper, "forget_points", forget),
        replaced(Housekeeper, "distrusting", trusting),
        replaced(Housekeeper, "forget_in_a_start", keep),
    ):
        yield


def a_laid_batch_counts_as_durable() -> contextlib.AbstractContextManager[None]:
    """A thread has written it before. Only what is appended behind it is synced."""
    laid: dict[Segment, int] = {}
    take, fsync = Segment.take_file, Segment.fsync

    def take_file(segment: Segment, path: str, header: BatchHeader, *of: int) -> None:
        take(segment, path, header, *of)
        laid[segment] = header.size_bytes

    async def fsync_more(segment: Segment) -> None:
        if laid.get(segment) != segment.size_bytes:
            await fsync(segment)

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        with replaced(Segment, "take_file", take_file), replaced(Segment, "fsync", fsync_more):
            yield

    return plant()


@contextlib.contextmanager
def a_laid_batch_keeps_the_header_with_which_it_came() -> Iterator[None]:
    """Its offset is another one when it enters the log."""

    def fill(laid: LaidBatch, batch: Buffer) -> None:
        laid._file.append((batch,))

    with replaced(LaidBatch, "fill", fill), replaced(LaidBatch, "complete", lambda laid, batch: None):
        yield


MUTANTS = (
    Mutant("laid batch not synced", "a large batch is only in the page cache", a_laid_batch_counts_as_durable),
    Mutant("laid batch keeps its header", "at an offset of before", a_laid_batch_keeps_the_header_with_which_it_came),
    Mutant(
        "decision not made durable",
        "a power cut right after a move leaves two folders of a name",
        a_decision_is_not_made_durable,
        moves=True,
        fault=MOVED,
    ),
    Mutant(
        "emptier of two folders",
        "a disk forgets that a partition moved away, and is believed",
        the_emptier_of_two_folders_is_served,
        moves=True,
        fault=MOVED,
    ),
    Mutant(
        "decision not made durable at the start",
        "a move that a killed broker began is finished too soon",
        a_start_does_not_make_a_decision_durable,
        moves=True,
        fault=MOVED,
    ),
    Mutant(
        "compacted while it moves",
        "what was deleted is back in the other folder",
        compacted_while_it_moves,
        carries=True,
    ),
    Mutant(
        "point of a former folder",
        "a topic made again is taken for damaged",
        a_former_folder_keeps_its_point,
        moves=True,
        fault=MOVED_ON,
    ),
    Mutant(
        "decided move settled once",
        "without a descriptor the log stays under two names",
        a_decided_move_is_settled_once_or_never,
        moves=True,
        fault=MOVED,
    ),
    Mutant(
        "decided move forgotten",
        "a log is what it was before",
        a_decided_move_is_forgotten,
        moves=True,
        fault=MOVED,
    ),
    Mutant(
        "copy not durable",
        "a log moves before its copy is on the platter",
        a_copy_takes_over_before_it_is_durable,
        moves=True,
    ),
    Mutant("ack before fsync", "acks=all is answered when the batch is in the page cache", acknowledge_before_fsync),
    Mutant("high watermark ahead of the disk", "readers see what is not durable yet", high_watermark_ahead_of_the_disk),
    Mutant(
        "failed fsync ignored", "an fsync that failed counts as done", take_a_failed_fsync_for_done, fault="fsync fails"
    ),
    Mutant("no folder sync on roll", "a new segment's name is never made durable", roll_without_syncing_the_folder),
    Mutant("recovery point before fsync", "recovery trusts what was only appended", recovery_point_before_fsync),
    Mutant("full disk taken for a broken one", "the folder is out of service", a_full_disk_fails_the_folder),
    Mutant(
        "half a write stays",
        "what a full disk took of a batch is not taken back",
        half_a_write_stays,
        fault="disk full",
    ),
    Mutant("shard not replayed", "a passing error ends a coordinator", a_shard_that_gave_up_is_not_replayed),
    Mutant("room not noticed", "a disk that was full stays full for producers", nobody_looks_for_room_again),
    Mutant("manifest kept", "a crash is taken for a clean stop", keep_the_manifest_after_the_start),
    Mutant(
        "no checksum in recovery",
        "torn batches are taken for whole ones",
        skip_the_checksum_in_recovery,
        where=lambda plan: plan.loses_acknowledged,
    ),
    Mutant(
        "recovery cuts too much",
        "the last whole batch goes, its offsets are used again",
        cut_a_batch_too_many_in_recovery,
    ),
    Mutant("start offset forgotten", "deleted records are back after a crash", forget_the_start_offset_in_recovery),
    Mutant(
        "snapshot after the batch", "recovery applies one twice, or none", a_snapshot_holds_the_batch_behind_it, True
    ),
    Mutant(
        "group replay misses the newest batch",
        "the last committed offsets are forgotten",
        lose_the_newest_batch_of_a_coordinator_in_its_replay,
    ),
    Mutant("index off by one", "a search by offset starts one entry too late", index_off_by_one),
    Mutant(
        "lost indexes stay lost",
        "the broker does not hear that a segment misses its indexes",
        nobody_rebuilds_lost_indexes,
        fault="index rots",
    ),
    Mutant(
        "nobody is fenced by a leader epoch",
        "who believes in a former leadership is served",
        nobody_is_fenced_by_a_leader_epoch,
    ),
    Mutant("read beyond the high watermark", "a fetch ends at the log's end", read_beyond_the_high_watermark),
    Mutant("time index off by one", "a search by time starts one entry too late", time_index_off_by_one),
    Mutant("damaged batches accepted", "a produced batch's checksum is not looked at", accept_damaged_batches),
    Mutant(
        "stable offset ignores transactions", "it is the high watermark", stable_offset_ignores_open_transactions, True
    ),
    Mutant("stable offset one too far", "off by one (Redpanda #3036)", stable_offset_one_too_far, True),
    Mutant("aborted list empty", "a fetch names no aborted transactions", aborted_transactions_not_listed, True),
    Mutant("zombies not fenced", "a fenced producer goes on writing", zombies_not_fenced, True),
    Mutant("retries not recognized", "a batch sent again is appended again", retries_not_recognized, True),
    Mutant("window lost on restart", "producers are unknown after a restart", lost_on_restart(ProducerStates), True),
    Mutant(
        "markers before the decision",
        "a transaction is committed and then aborted",
        markers_before_the_decision,
        True,
        fault="power cut while the disk hangs",
    ),
    Mutant("markers not resumed", "a restart forgets whom it owes markers", markers_not_resumed_after_a_restart, True),
    Mutant(
        "offsets outside the transaction",
        "a group sees offsets before their transaction is committed",
        transaction_offsets_visible_before_the_commit,
        True,
    ),
    Mutant(
        "coordinator answers too early",
        "a decision is told before it is durable",
        coordinator_answers_before_its_records_are_durable,
        True,
    ),
    Mutant(
        "gathered decisions not written",
        "what several clients decide in one turn is only in memory",
        gathered_decisions_are_never_written,
        True,
    ),
    Mutant("new owner keeps the epoch", "InitProducerId fences nobody", a_new_owner_keeps_the_epoch, True),
    Mutant(
        "open transactions lost on restart",
        "the stable offset and the aborted index begin anew",
        lost_on_restart(StableOffsets),
        True,
    ),
    Mutant("no fence when time is up", "an abort by time leaves the epoch as it was", no_fence_when_time_is_up, True),
    Mutant(
        "transactions of one epoch",
        "an end that comes late ends the next transaction (KAFKA-17754)",
        transactions_of_one_epoch,
        True,
    ),
    Mutant(
        "writes not confirmed",
        "a write of an older client that comes late opens a transaction (KIP-890)",
        writes_not_confirmed,
        True,
    ),
    Mutant("sequences wrap too early", "modulo 2^31 - 1 (kfake)", sequences_wrap_one_too_early, True),
    Mutant("window of four", "the fifth last batch is not recognized", window_of_four, True),
    Mutant(
        "aborts of long ago listed",
        "readers hide what was committed (Bufstream 0.1.0)",
        aborts_of_long_ago_listed,
        True,
    ),
    Mutant(
        "aborts lost with the start",
        "the start of the log passes where they begin",
        aborts_that_begin_below_the_start_forgotten,
        True,
        where=lambda plan: plan.shortens,
    ),
    Mutant(
        "open ones lost with the start",
        "the start of the log passes where they begin",
        open_transactions_that_begin_below_the_start_forgotten,
        True,
        where=lambda plan: plan.shortens,
    ),
    Mutant(
        "former members commit",
        "the epoch is not looked at in transactions",
        former_members_commit_in_transactions,
        True,
    ),
    Mutant("a topic inherits", "what is made again holds what was deleted", a_new_topic_inherits_the_folder),
    Mutant("folder identity not looked at", "a name made again holds what was deleted", whose_a_folder_is_nobody_asks),
    Mutant("deleted topics served", "by id, after their deletion was answered", serve_deleted_topics),
    Mutant("auto needs no fsync", "a lone broker answers from its memory", auto_durability_needs_no_fsync),
    Mutant("session forgets a partition", "it gets no more data of it", a_session_forgets_a_partition),
    Mutant("what is quiet is not heard", "a session's reader waits in vain", what_is_quiet_is_not_heard),
    Mutant("session keeps the old position", "it gets the same again", a_session_keeps_the_old_position),
    Mutant("retention too early", "records go at half their age", retention_in_half_the_time),
    Mutant(
        "retention decides before the lock",
        "and removes what came since",
        retention_decides_before_the_lock,
        where=lambda plan: plan.busy_logs,
    ),
    Mutant(
        "cleaner goes above the stable offset",
        "what is undecided supersedes",
        the_cleaner_goes_above_the_stable_offset,
        True,
    ),
    Mutant(
        "swap not finished",
        "a crash leaves old segments and new ones",
        a_swap_is_not_finished_after_a_crash,
        fault=SWAPPED,
    ),
    Mutant(
        "recovery begins before what was compacted",
        "a repeat is out of order",
        a_recovery_begins_before_what_was_compacted,
        where=lambda plan: plan.repeats,
    ),
    Mutant(
        "pass leaves no snapshot where it ends",
        "producers are forgotten, and a repeat is written again",
        a_pass_leaves_no_snapshot_where_it_ends,
        where=lambda plan: plan.repeats,
    ),
    Mutant("cleaner drops markers", "of transactions that are open for readers", the_cleaner_drops_markers, True),
    Mutant("cleaner keeps aborted", "aborted records supersede", the_cleaner_keeps_what_was_aborted, True),
    Mutant("coordinator epoch unchecked", "late markers count", markers_of_deposed_coordinators_taken, True),
    Mutant(
        "damage is not noted",
        "the next start leads what a start has found damaged",
        damage_is_not_noted,
        fault="log rots",
    ),
    Mutant(
        "branch keeps its epoch",
        "two writers have one pair",
        a_new_branch_keeps_the_epoch,
        where=lambda plan: plan.haunts,
    ),
    Mutant("complete too early", "one marker counts for all", complete_after_the_first_marker, True),
    Mutant("aborted entry lost on roll", "snapshots lack the newest", aborted_entry_lost_on_roll, True),
    Mutant("token forgotten", "the same token is decided again", a_decision_forgets_its_token, True),
    Mutant("other branches left open", "unnamed ones are not aborted", a_decision_leaves_other_branches_open, True),
    Mutant("sealed is committed", "unnamed branches commit too", a_decision_commits_all_that_is_sealed, True),
    Mutant(
        "branches do not follow",
        "those that are decided over in a later turn never are",
        branches_do_not_follow_their_root,
        True,
    ),
    Mutant(
        "decided over, not held",
        "while a decision is made, others move its branches",
        what_is_decided_over_is_not_held,
        True,
    ),
    Mutant("sealed twice", "the repeat of a seal commits", a_branch_is_sealed_twice, True),
    Mutant("prepared ends by time", "nobody could decide it any more", what_is_prepared_ends_by_time, True),
    Mutant("prepared is not kept", "the client that comes back finds it aborted", what_is_prepared_is_not_kept, True),
    Mutant("live is not the log", "a coordinator differs from its replay", what_lives_is_not_what_is_written, True),
)


@dataclass(frozen=True, slots=True)
class Caught:
    mutant: str
    seeds: int
    seed: int  # which caught it
    broken: str  # the promises that were broken; empty: not caught
    seconds: float
    fingerprint: int = 0  # of the run without the mutant, if that was told


@cache
def without(seed: int) -> tuple[bool, int]:
    """Whether the run without any mutant is right, and its fingerprint. Most mutants are caught by one of the first
    seeds, which need not be run anew for each.
    """
    report = run(seed)
    return report.right, report.fingerprint


def is_right(seed: int) -> bool:
    return without(seed)[0]


def is_blind_to(name: str) -> bool:
    """Of a mutant that was not caught: whether the run of the seed that caught it last has not changed since."""
    return any(without(seed)[1] == fingerprint for seed, fingerprint in caught.runs(name)[:1])


def hunt(name: str, max_seeds: int = MAX_SEEDS, *, anew: bool = False) -> Caught:
    """Seed after seed, until the mutant of that name is caught. `anew`: as if it had never been."""
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    shows = (seed for seed in caught.seeds(name, anew=anew) if mutant.can_be_shown_by(Simulation(seed).plan))
    found = hunt_in(itertools.islice(shows, max_seeds), name, mutant.plant, run, is_right)
    return dataclasses.replace(found, fingerprint=without(found.seed)[1]) if found.broken else found


def hunt_in(
    seeds: Iterable[int],
    name: str,
    plant: Planting,
    run_one: Callable[[int], Any],
    is_right_without: Callable[[int], bool],
) -> Caught:
    """Run these seeds with the mutant planted, until it is caught."""
    begun, tried, seed = time.process_time(), 0, 0
    for tried, seed in enumerate(seeds, start=1):
        with plant():
            report = run_one(seed)
        if not report.right and is_right_without(seed):
            broken = ", ".join(dict.fromkeys(violation.promise for violation in report.violations))
            return Caught(name, tried, seed, broken, time.process_time() - begun)
    return Caught(name, tried, seed, "", time.process_time() - begun)


def hunt_all(mutants: Sequence[Mutant], max_seeds: int = MAX_SEEDS, *, anew: bool = False) -> Iterator[Caught]:
    """Side by side; in the order given."""
    with processes(os.cpu_count() or 1) as pool:
        yield from pool.map(partial(hunt, max_seeds=max_seeds, anew=anew), [mutant.name for mutant in mutants])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="the mutants whose name contains this")
    parser.add_argument(
        "--seeds", type=int, default=MAX_SEEDS, help=f"the most seeds for one mutant (default {MAX_SEEDS})"
    )
    parser.add_argument("--renew", action="store_true", help="try the seeds first that have caught each")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only is None or arguments.only in mutant.name]
    verdicts = []
    print(f"{'planted bug':46} {'seeds':>5} {'seconds':>7}  broken promise")
    for verdict in hunt_all(chosen, arguments.seeds, anew=not arguments.renew):
        verdicts.append(verdict)
        if verdict.broken:
            caught.note_run(verdict.mutant, verdict.seed, verdict.fingerprint)
        print(
            f"{verdict.mutant:46} {verdict.seeds:5} {verdict.seconds:7.0f}  {verdict.broken or 'NOT CAUGHT'}",
            flush=True,
        )
    found = sum(bool(verdict.broken) for verdict in verdicts)
    print(f"{found} of {len(verdicts)} caught")
    return 0 if found == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
