"""Bugs of replication, planted one at a time in the simulated cluster, each to be caught within `MAX_SEEDS` runs.

`python -m tests.sim.cluster_mutants` shows how many runs each took and which promise it broke.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import service.broker.reading
from log.partition_log import PartitionLog
from log.replica import ReplicaSet
from service.broker.in_sync import InSyncSets
from service.broker.partition import Following, Partition
from service.broker.reading import Found, Reading
from service.broker.replication import Fetcher, Place
from service.cluster.controller import AlterPartition
from service.cluster.metadata import ClusterMetadata
from service.wire.error_codes import ErrorCode
from service.wire.messages import FetchPartition
from tests.sim.cluster import run
from tests.sim.mutants import Caught
from tests.sim.run import processes, replaced

MAX_SEEDS = 60

Planting = contextlib.AbstractContextManager[None]


def acknowledged_before_the_in_sync_set_has_it() -> Planting:
    def advance(replicas: ReplicaSet) -> bool:
        moved = replicas._own_end_offset > replicas._high_watermark
        replicas._high_watermark = max(replicas._high_watermark, replicas._own_end_offset)
        return moved

    return replaced(ReplicaSet, "_advance", advance)


@contextlib.contextmanager
def cut_to_the_high_watermark_and_not_by_epochs() -> Iterator[None]:
    original, wanted = Partition.follow, Fetcher._wanted

    def follow(partition: Partition, leader: int, leader_epoch: int, *, fsync: bool) -> Following:
        role = partition.role
        new = original(partition, leader, leader_epoch, fsync=fsync)
        if new is not role:
            partition.log.truncate_to(partition.high_watermark)
        return new

    def without_epoch(fetcher: Fetcher, place: Place) -> FetchPartition:
        asked = wanted(fetcher, place)
        asked.last_fetched_epoch = -1
        return asked

    with replaced(Partition, "follow", follow), replaced(Fetcher, "_wanted", without_epoch):
        yield


def never_cut() -> Planting:
    """What another leader wrote in its place is taken for what this follower has."""
    original = Fetcher._wanted

    def without_epoch(fetcher: Fetcher, place: Place) -> FetchPartition:
        asked = original(fetcher, place)
        asked.last_fetched_epoch = -1
        return asked

    return replaced(Fetcher, "_wanted", without_epoch)


def counted_though_its_history_parted() -> Planting:
    """What a follower asks from counts before anybody has looked whether it has the same history."""
    original = Reading._read

    def read(reading: Reading, partition: Partition, wanted: Any, *rest: Any, **limits: Any) -> Found:
        if reading.copier is not None and partition.replicas is not None:
            reading._count(partition, wanted, reading.copier)
        return original(reading, partition, wanted, *rest, **limits)

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
    """No compare-and-set: who proposes overwrites what others decided meanwhile."""
    return replaced(AlterPartition, "_refusal", lambda command, image, state: None)


def what_is_not_flushed_is_said_to_be_held() -> Planting:
    return replaced(Partition, "must_flush", False)


def a_new_leader_takes_its_end_for_committed() -> Planting:
    original = Partition.lead

    def lead(partition: Partition, *arguments: Any, **named: Any) -> None:
        partition._known_high_watermark, partition.replicas = partition.log.end_offset, None
        original(partition, *arguments, **named)

    return replaced(Partition, "lead", lead)


def nobody_is_fenced_by_a_leader_epoch() -> Planting:
    return replaced(service.broker.reading, "_epoch_error", lambda partition, epoch: ErrorCode.NONE)


def who_lost_its_tail_is_taken_for_clean() -> Planting:
    original = ClusterMetadata.register

    async def register(metadata: ClusterMetadata, *arguments: Any, **named: Any) -> int:
        return await original(metadata, *arguments, **{**named, "clean": True})

    return replaced(ClusterMetadata, "register", register)


def folds_stay_as_they_were_when_the_log_is_cut() -> Planting:
    return replaced(PartitionLog, "_restore_views", lambda partition_log: partition_log.end_offset)


def folds_are_not_fed_by_what_is_copied() -> Planting:
    """Producers' last batches and open transactions are forgotten by the next leader."""
    original = Partition.append_replicated

    def append(partition: Partition, *arguments: Any, **named: Any) -> None:
        views, partition.log._views = partition.log._views, ()
        try:
            original(partition, *arguments, **named)
        finally:
            partition.log._views = views

    return replaced(Partition, "append_replicated", append)


def who_was_replaced_tells_producers_to_give_up() -> Planting:
    async def leads_still(sets: InSyncSets, partition: Partition) -> bool:
        return True

    return replaced(InSyncSets, "leads_still", leads_still)


def deleted_here_is_deleted() -> Planting:
    """The next leader brings it back."""
    return replaced(Partition, "deleted", lambda partition, offset: None)


MUTANTS: dict[str, Callable[[], Planting]] = {
    plant.__name__: plant
    for plant in (
        acknowledged_before_the_in_sync_set_has_it,
        cut_to_the_high_watermark_and_not_by_epochs,
        never_cut,
        counted_though_its_history_parted,
        a_pending_member_does_not_count,
        in_sync_without_having_caught_up,
        the_in_sync_set_is_written_whatever_it_is_by_now,
        what_is_not_flushed_is_said_to_be_held,
        a_new_leader_takes_its_end_for_committed,
        nobody_is_fenced_by_a_leader_epoch,
        who_lost_its_tail_is_taken_for_clean,
        folds_stay_as_they_were_when_the_log_is_cut,
        folds_are_not_fed_by_what_is_copied,
        who_was_replaced_tells_producers_to_give_up,
        deleted_here_is_deleted,
    )
}


def hunt(name: str, max_seeds: int = MAX_SEEDS) -> Caught:
    """Seed after seed, until the mutant of that name is caught."""
    begun = time.process_time()
    for seed in range(1, max_seeds + 1):
        with MUTANTS[name]():
            report = run(seed)
        if not report.right and run(seed).right:  # and not wrong anyway
            broken = ", ".join(dict.fromkeys(violation.promise for violation in report.violations))
            return Caught(name, seed, broken, time.process_time() - begun)
    return Caught(name, max_seeds, "", time.process_time() - begun)


def hunt_all(names: Sequence[str], max_seeds: int) -> Iterator[Caught]:
    """Side by side; in the order given."""
    with processes(os.cpu_count() or 1) as pool:
        yield from pool.map(hunt, names, itertools.repeat(max_seeds))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.cluster_mutants", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", help="the mutants whose name contains this")
    parser.add_argument("--seeds", type=int, default=MAX_SEEDS, help="the most seeds for one mutant")
    arguments = parser.parse_args()
    chosen = [name for name in MUTANTS if arguments.only is None or arguments.only in name]
    missed = 0
    print(f"{'planted bug':52} {'seeds':>5} {'seconds':>7}  broken promise")
    for caught in hunt_all(chosen, arguments.seeds):
        missed += not caught.broken
        print(f"{caught.mutant:52} {caught.seeds:5} {caught.seconds:7.0f}  {caught.broken or 'NOT CAUGHT'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
