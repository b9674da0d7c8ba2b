"""Compares the replicas of a partition: their batches byte for byte, and the folds over them.

A fold is compared only if it follows from the same batches: the log is not compacted, and no records were deleted. A
follower that begins where its leader's log begins knows less of earlier records than a replica that has seen them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from idempotence.producers import ProducerStates
from idempotence.window import HEAD, WINDOW_AT
from isolation.stable import StableOffsets
from log.batch import CorruptBatch, read_records, split
from log.cleaning_rules import AbortedTransactions
from log.control import ControlType, read_marker
from log.disk import DiskFault
from log.ids import NO_EPOCH
from log.segment import IndexesLost
from service.broker.coordinators import Coordinators
from service.broker.node import Broker
from service.broker.partition import Partition
from tests.service.groups.driver import with_soft_epochs_of


def difference(held: list[Partition]) -> str:
    """How replicas of one partition differ where they hold the same offsets; empty if they don't."""
    ends = [replica.log.end_offset for replica in held]
    if len(dict.fromkeys(ends)) > 1:
        return f"the replicas end at {ends}"
    if any(replica.high_watermark < ends[0] for replica in held):
        return f"the replicas end at {ends[0]}, but know {[replica.high_watermark for replica in held]}"
    open_ones = [sorted(replica.stable.open_transactions.items()) for replica in held]
    if any(each != open_ones[0] for each in open_ones):
        return f"open transactions: {open_ones}"
    policy = held[0].log.config.cleanup_policy
    if "compact" in policy:  # each compacts in its own time
        values = [last_values(replica) for replica in held] if "delete" not in policy else []
        unlike = [key for each in values for key in each if any(key not in other for other in values)]
        unlike += [key for each in values for key in each if each[key] != values[0].get(key)]
        return f"the replicas end with other values of {list(dict.fromkeys(unlike))[:5]}" if unlike else ""
    start = max(replica.log.start_offset for replica in held)
    contents = [stored(replica, start) for replica in held]
    if any(content != contents[0] for content in contents):
        return f"the replicas differ between {start} and {ends[0]}"
    if start:
        return ""
    for name, folds in (
        ("aborted transactions", [list(replica.stable.aborted_ranges(0, ends[0])) for replica in held]),
        ("producers", [producers(replica) for replica in held]),
    ):
        if any(fold != folds[0] for fold in folds):
            return f"{name}: {folds}"
    return ""


def agree_up_to(one: Partition, other: Partition, end_offset: int) -> int:
    """Where, below `end_offset`, the histories of two replicas part: what is before was written in the same epochs."""
    end = min(end_offset, one.log.end_offset, other.log.end_offset)
    while end > 0:
        epochs = [each.log.epochs.epoch_at(end - 1) for each in (one, other)]
        if epochs[0] == epochs[1] or NO_EPOCH in epochs:
            break
        begins = [start for each in (one, other) for _, start in each.log.epochs.entries() if start < end]
        end = max(begins)
    return end


def stored(partition: Partition, start: int) -> list[tuple[int, int, int, int]]:
    """Every batch that holds offsets from `start` on: where it stands, its epoch and its checksum."""
    found, offset = [], start
    while offset < partition.log.end_offset:
        try:
            piece = partition.log.read(
                offset, max_bytes=1 << 30, limit_offset=partition.log.end_offset, at_least_one=True
            )
        except IndexesLost as lost:  # nobody has read there since they went
            lost.segment.rebuild_indexes()
            continue
        if piece is None:
            break
        for header, _ in split(bytes(piece.read())):
            found.append((header.base_offset, header.next_offset, header.leader_epoch, header.crc))
        offset = found[-1][1]
    return found


def last_values(partition: Partition) -> dict[bytes | None, bytes]:
    """What a reader of all committed records knows in the end: the last value of each key that was not deleted."""
    ranges = partition.stable.aborted_ranges(0, partition.log.end_offset)
    aborted = AbortedTransactions(
        [fact for each in ranges for fact in (each.producer_id, each.first_offset, each.last_offset)]
    )
    found: dict[bytes | None, bytes | None] = {}
    try:
        for header, batch in partition.log.scan(partition.log.start_offset):
            if not header.is_control and not aborted.is_aborted(header):
                found.update((record.key, record.value) for record in read_records(batch, header))
    except (DiskFault, CorruptBatch):
        return {}  # rotten: that is said elsewhere
    return {key: value for key, value in found.items() if value is not None}


def producers(partition: Partition) -> list[tuple[tuple[int, ...], bytes]]:
    """Epochs, last markers and windows of all producers. When it last saw one each broker knows for itself."""
    return _shown(partition.producers)


def _shown(states: ProducerStates) -> list[tuple[tuple[int, ...], bytes]]:
    _, *shelves = states.snapshot()
    return sorted((HEAD.unpack_from(entry)[:-1], bytes(entry[WINDOW_AT:])) for entry in chain.from_iterable(shelves))


def epochs_unlike_batches(partition: Partition) -> str:
    """Where the leader epochs of a log differ from those in its batches; empty if they don't."""
    unlike = ""
    try:
        for header, _ in partition.log.scan(partition.log.start_offset):
            known = partition.log.epochs.epoch_at(header.last_offset)
            if header.leader_epoch not in (NO_EPOCH, known):
                unlike = f"offset {header.last_offset} was written in epoch {header.leader_epoch}, not in {known}"
    except (DiskFault, CorruptBatch):
        return ""  # rotten: that is said elsewhere. A base offset that has rotted is seen by what comes behind it
    return unlike


def unlike_own_log(partition: Partition) -> str:
    """How the folds of a partition that lives, and its epochs, differ from what its log makes; empty if they don't, or
    if the log has forgotten some of what the folds know.
    """
    if partition.log.start_offset or "compact" in partition.log.config.cleanup_policy:
        return epochs_unlike_batches(partition)
    stable = StableOffsets()
    anew = ProducerStates(stable.open_transactions)
    try:
        for header, batch in partition.log.scan(0):
            anew.apply(header, batch)
            stable.apply(header, batch)
    except (DiskFault, CorruptBatch):
        return ""  # rotten: that is said elsewhere
    if stable.open_transactions != partition.stable.open_transactions:
        return f"open transactions {partition.stable.open_transactions}, and its log makes {stable.open_transactions}"
    strange = [each for each in _shown(partition.producers) if each not in _shown(anew)]
    return f"producers of which its log says something else: {strange}" if strange else epochs_unlike_batches(partition)


def transactions(brokers: list[Broker]) -> dict[str, object]:
    """Every transactional id that a coordinator knows, and what it knows of it."""
    return {
        txn.transactional_id: txn
        for broker in brokers
        for shard in broker.coordination.transactions.shards()
        if shard.loaded and not shard.dropped
        for txn in shard.machine.all()
    }


def same_transactions(machine: Any, anew: Any) -> bool:
    known, made = ({txn.transactional_id: txn for txn in each.all()} for each in (machine, anew))
    return known == made


def same_groups(machine: Any, anew: Any) -> bool:
    """Whether both know the same of groups and offsets. A group of which the log says nothing is there in memory or is
    not.
    """
    known, made = (
        ({group_id: group for group_id, group in groups.items() if group is not None}, offsets)
        for groups, offsets in (machine.durable_facts(), anew.durable_facts())
    )
    return bool(known == with_soft_epochs_of(known, made))


def applied_one_by_one(machine: Any, partition: Partition, end_offset: int | None = None) -> Any:
    """The machine, after each record of the log was applied to it. What no machine can read is passed over."""
    for header, batch in partition.log.scan(partition.log.start_offset, end_offset):
        with contextlib.suppress(CorruptBatch):
            if header.is_control:
                if (kind := read_marker(batch).type) is not None:
                    machine.apply_marker(header.producer_id, header.producer_epoch, kind is ControlType.COMMIT)
                continue
            producer = {} if header.producer_id < 0 else {"producer_id": header.producer_id}
            for record in read_records(batch, header):
                with contextlib.suppress(Exception):
                    machine.apply(record.key, record.value, **producer)
    return machine


def unlike_its_log(coordinators: Coordinators[Any], alike: Callable[[Any, Any], bool]) -> Iterator[str | None]:
    """For each coordinator that lives or stands by, and can read its log: how it differs from what that log makes. One
    that stands by reads the rest first: what compaction has replaced further on it may still know.
    """
    living = [shard for shard in coordinators.shards() if shard.loaded and not shard.dropped]
    known = [("lives", shard.machine, shard.partition, shard.partition.log.end_offset) for shard in living]
    standing_by = [replay for replay in coordinators.standby.replays() if replay.holds]
    for replay in standing_by:
        with contextlib.suppress(DiskFault, CorruptBatch):
            deque(replay.up_to(replay.partition.high_watermark), maxlen=0)
            known.append(("stands by", replay.machine, replay.partition, replay.at_offset))
    for does, machine, partition, end_offset in known:
        try:
            anew = applied_one_by_one(coordinators._new_machine(partition), partition, end_offset)
        except (DiskFault, CorruptBatch):
            continue  # rotten: the next start refuses it
        yield (
            None
            if alike(machine, anew)
            else f"{partition.topic_partition}: the coordinator that {does} is not what its log makes"
        )
