"""One partition on three replicas, as their logs see it: a walk of steps, drawn from a seed, against a model.

    python -m tests.properties.replicas --seed 7           one walk; says each step
    python -m tests.properties.replicas --from 7 --runs 9  several; the seeds of those that fail

The leader writes batches of numbered and transactional producers. Followers copy them, and are cut by epochs as
followers are. All move between two disks, are compacted, lose what retention takes and what clients delete, stop, are
killed, lose power, and meet disks that fail.

What must hold, whatever happens:
* What is committed is in each in-sync replica: the batches as they were written, or what compaction leaves of them.
* A replica knows of producers and open transactions what follows from all batches that its log was given, also from
  those that have left it; and of aborted transactions all of which something is left in the log.
* The last batch of each producer that was committed is known as a repeat wherever it may be sent again.
* The leader epochs of a log are those in its batches.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from idempotence.producers import KnownBy, ProducerStates
from idempotence.verdicts import ACCEPTED, Duplicate, StaleEpoch
from idempotence.window import HEAD, WINDOW_AT, WINDOW_BATCHES
from isolation.stable import StableOffsets
from log.batch import BatchHeader, build_batch, read_header, read_records, split
from log.compaction import compact, find_work
from log.config import LogConfig
from log.control import ControlType, build_marker
from log.cutting import distrust, durable_after_cut, restart_at, truncate_to, views_below
from log.disk import DiskFault
from log.ids import NO_EPOCH, TopicId
from log.manifest import read_manifest, remove_manifest, write_manifest
from log.partition_log import CleanState, PartitionLog
from log.relocation import Relocation
from log.removal import keep_start, raise_start_offset, remove_oldest
from log.replica import cut_by_epoch
from log.steps import done_at_once
from tests.log.memory_disk import MemoryDisk
from tests.log.plain_cleaning import once

FOLDER: Final = "events-0"
TOPIC_ID: Final = TopicId(bytes(range(16)))
NOW_MS: Final = 1_900_000_000_000
STEPS: Final = 120
REPLICAS: Final = 3
NUMBERED, TRANSACTIONAL = (1, 2), (11, 12, 13)
KEYS: Final = 6
NO_HABITS: Final[Mapping[str, float]] = {}


class Batch(NamedTuple):
    header: BatchHeader
    content: bytes


class Wrong(AssertionError):
    """Something does not hold that must."""


def _place(batch: Batch) -> tuple[int, int, int]:
    return batch.header.base_offset, batch.header.next_offset, batch.header.leader_epoch


def check(holds: object, what: str) -> None:
    if not holds:
        raise Wrong(what)


def states(producers: ProducerStates) -> list[tuple[tuple[int, ...], bytes]]:
    """Epochs, last markers and windows. When a producer was last seen is told by each broker's clock."""
    _, *shelves = producers.snapshot()
    return sorted((HEAD.unpack_from(entry)[:-1], bytes(entry[WINDOW_AT:])) for entry in chain.from_iterable(shelves))


class Folded:
    """What follows from batches."""

    def __init__(self, batches: list[Batch]) -> None:
        self.stable = StableOffsets()
        self.producers = ProducerStates(self.stable.open_transactions)
        for header, content in batches:
            self.producers.apply(header, content)
            self.stable.apply(header, content)


class Replica:
    def __init__(self, number: int, config: LogConfig) -> None:
        self.number = number
        self.config = config
        self.disks = [MemoryDisk(), MemoryDisk()]
        self.at = 0
        self.recovery_point = 0
        self.given: list[Batch] = []
        """All batches that the log was given since it began, also those that have left it."""
        self.former: list[list[Batch]] = []
        """What was cut off since the last flush: a loss of power may bring it back."""
        self.has_started_over = False
        """Since the last flush: what comes back then is not all that was known of what had left the log."""
        self.synced_epoch = -1
        """In which leader epoch it has last compared its log with the leader's."""
        self.acknowledged = 0
        self.high = 0
        """The high watermark as it was told by a leader whose history it has."""
        self.moving: Relocation | None = None
        self.open()

    @property
    def disk(self) -> MemoryDisk:
        return self.disks[self.at]

    def open(self, known: CleanState | None = None) -> None:
        self.stable = StableOffsets()
        self.producers = ProducerStates(self.stable.open_transactions)
        self.log = PartitionLog.open(
            self.disk,
            FOLDER,
            self.config,
            [self.producers, self.stable],
            known=known,
            now_ms=NOW_MS,
            recovery_point=self.recovery_point,
            topic_id=TOPIC_ID,
        )
        self.synced_epoch, self.moving = -1, None

    def known_by(self, below: int) -> Iterator[KnownBy]:
        return self.producers.known_by(below)

    async def flush(self) -> None:
        await self.log.flush()
        self.former.clear()
        self.has_started_over = False

    async def cut(self, offset: int) -> None:
        """As a follower cuts its log."""
        log = self.log
        self.moving = self.moving if offset >= log.end_offset else None
        async with log.alone():
            durable = durable_after_cut(log, offset)
            self.recovery_point = min(self.recovery_point, durable)
            await distrust(log, durable, offset)
            self.former.append(self.given)
            truncate_to(log, offset, done_at_once(views_below(log, offset)))
            self.given = [each for each in self.given if each.header.next_offset <= log.end_offset]
            if log.start_offset == log.end_offset:
                self.given, self.has_started_over = [], True
            await log.durability.clear()
            await keep_start(log)

    async def start_over(self, offset: int) -> None:
        log = self.log
        async with log.alone():
            self.recovery_point = 0
            await distrust(log, 0, offset)
            self.former.append(self.given)
            self.given, self.moving, self.has_started_over = [], None, True
            restart_at(log, offset)
            await log.durability.clear()
            await keep_start(log)

    def batches(self) -> list[Batch]:
        return [Batch(header, bytes(content)) for header, content in self.log.scan(self.log.start_offset)]

    def _left_of(self, given: list[Batch]) -> list[Batch]:
        return [each for each in given if each.header.next_offset <= self.log.end_offset]

    # -- its ends

    async def stop(self) -> None:
        state = await self.log.close()
        check(state is not None, "a log that is whole is closed in order")
        assert state is not None
        await write_manifest(self.disk, [state], life=1)
        known = read_manifest(self.disk)[FOLDER]
        await remove_manifest(self.disk)
        self.former.clear()
        self.has_started_over = False
        self.open(known)

    def die(self, chance: random.Random, *, power: bool) -> None:
        flushed = self.log.flushed_offset
        for disk in self.disks:
            if power:
                disk.cut_power(chance)
            disk.fault = disk.fail_at = None
        self.open()
        check(not self.log.damage, f"replica {self.number} is whole after its death, and not {self.log.damage}")
        found = [_place(each) for each in self.batches()]
        candidates = [(given, self._left_of(given)) for given in [self.given, *reversed(self.former)]]
        fitting = [(given, left) for given, left in candidates if set(found) <= set(map(_place, left))]
        check(fitting, f"replica {self.number} holds after its death what it never held")
        known = states(self.producers)
        given, left = next((each for each in fitting if states(Folded(each[1]).producers) == known), fitting[0])
        if given is self.given:
            check(self.log.end_offset >= flushed, f"replica {self.number} has what was flushed, up to {flushed}")
        if self.has_started_over and states(self.producers) != states(Folded(left).producers):
            left = [each for each in left if _place(each) in found]
        self.given = left
        self.former = [given] if power else [self.given, *self.former]


class Walk:
    def __init__(self, seed: int, *, told: bool = False, habits: Mapping[str, float] = NO_HABITS) -> None:
        """`habits`: how many times as often as in other walks a step is taken."""
        self.chance = chance = random.Random(seed)
        self.told = told
        self.habits = habits
        self.with_power = chance.random() < 0.6
        """Power may go, so what counts is what is durable. Otherwise what is written counts."""
        self.compacts = chance.random() < 0.6
        self.config = LogConfig(
            cleanup_policy=("compact",) if self.compacts else ("delete",),
            segment_bytes=chance.choice((400, 1200, 1 << 20)),
            index_interval_bytes=chance.choice((0, 200, 4096)),
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=chance.choice((0, 5_000)),
        )
        self.now_ms = NOW_MS
        self.replicas = [Replica(number, self.config) for number in range(REPLICAS)]
        self.leader = self.replicas[0]
        self.leader.synced_epoch = 0
        self.epoch = 0
        self.epoch_start = 0
        self.in_sync = list(self.replicas)
        self.high = 0
        self.committed: list[Batch] = []
        self.deleted_below = 0
        self.cleaned_below = 0

    async def run(self, steps: int) -> None:
        weighed: list[tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = [
            (30, self.write),
            (30, self.copy),
            (10, self.flush),
            (4, self.roll),
            (3, self.elect),
            (3, self.leave_or_join),
            (3, self.note_recovery_point),
            (3, self.delete_records),
            (3, self.move),
            (2, self.stop),
            (3, self.die),
            (2, self.fail),
            (4, self.compact if self.compacts else self.retain),
        ]
        own = [self.chance.choice((0.3, 1, 4)) for _ in weighed]
        weights = [
            weight * often * self.habits.get(step.__name__, 1)
            for (weight, step), often in zip(weighed, own, strict=True)
        ]
        for _ in range(steps):
            [step] = self.chance.choices([step for _, step in weighed], weights)
            self.now_ms += self.chance.choice((0, 10, 3_000))
            await step()
            self.advance()
            self.look()
        for _ in range(2):
            for replica in self.replicas:
                await self.catch_up(replica)
            self.advance()
            self.look()

    def say(self, *what: object) -> None:
        if self.told:
            ends = " ".join(f"{each.log.start_offset}-{each.log.end_offset}" for each in self.replicas)
            print(f"{self.high:4} {ends:24}", *what)

    def any_replica(self) -> Replica:
        return self.chance.choice(self.replicas)

    def held(self, replica: Replica) -> int:
        return replica.log.flushed_offset if self.with_power else replica.log.end_offset

    # -- what happens

    async def write(self) -> None:
        """The leader is sent a batch that its producer may send, or one again."""
        for _ in range(self.chance.randint(1, 4)):
            if self.chance.random() < 0.5:
                self._write(self.chance.choice(NUMBERED), transactional=False)
            else:
                producer = self.chance.choice(TRANSACTIONAL)
                if producer in self.leader.stable.open_transactions and self.chance.random() < 0.4:
                    self._end(producer)
                else:
                    self._write(producer, transactional=True)

    def _write(self, producer: int, *, transactional: bool) -> None:
        leader, log = self.leader, self.leader.log
        known = next((each for each in leader.producers.describe() if each.producer_id == producer), None)
        epoch = max(known.producer_epoch, 0) if known is not None else 0
        sequence = (known.last_sequence + 1) if known is not None and known.last_sequence >= 0 else 0
        if not transactional and known is not None and self.chance.random() < 0.05:
            epoch, sequence = epoch + 1, 0
        records = []
        for _ in range(self.chance.randint(1, 3)):
            value = None if self.chance.random() < 0.2 else bytes(self.chance.randrange(120))
            records.append((b"%d" % self.chance.randrange(KEYS), value, (), self.now_ms))
        batch = build_batch(
            records,
            base_offset=log.end_offset,
            leader_epoch=self.epoch,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        header = read_header(batch)
        verdict = leader.producers.check(header, now_ms=self.now_ms, needs_guard=False)
        check(verdict is ACCEPTED, f"the next batch of producer {producer} is taken, and not {verdict}")
        self._append(batch)

    def _end(self, producer: int) -> None:
        known = next(each for each in self.leader.producers.describe() if each.producer_id == producer)
        marker = build_marker(
            self.chance.choice((ControlType.COMMIT, ControlType.ABORT)),
            producer_id=producer,
            producer_epoch=known.producer_epoch + self.chance.choice((0, 1)),
            coordinator_epoch=self.chance.randrange(3),
            timestamp_ms=self.now_ms,
            base_offset=self.leader.log.end_offset,
            leader_epoch=self.epoch,
        )
        self._append(marker)

    def _append(self, content: bytes) -> None:
        header = read_header(content)
        self.leader.log.append(content, header, now_ms=self.now_ms)
        self.leader.given.append(Batch(header, content))

    async def copy(self) -> None:
        follower = self.any_replica()
        if follower is not self.leader:
            await self._copy(follower, at_most=self.chance.choice((100, 1000, 1 << 20)))

    async def catch_up(self, replica: Replica) -> None:
        while replica is not self.leader and (
            replica.log.end_offset < self.leader.log.end_offset or replica.synced_epoch != self.epoch
        ):
            await self._copy(replica, at_most=1 << 20)
        await replica.flush()
        replica.acknowledged = self.held(replica)

    async def _copy(self, follower: Replica, *, at_most: int) -> None:
        log, leader = follower.log, self.leader.log
        if follower.synced_epoch != self.epoch:
            await self._agree(follower)
        is_empty = log.start_offset == log.end_offset
        is_away = not leader.start_offset <= log.end_offset <= leader.end_offset
        lacks = log.end_offset < leader.forgotten_below and log.forgotten_below < leader.forgotten_below
        if is_away or (lacks and not is_empty):
            check(follower not in self.in_sync or is_empty, f"replica {follower.number} is in sync and can go on")
            self.say("start over", follower.number, "at", leader.start_offset)
            await follower.start_over(leader.start_offset)
            is_empty = True
        if is_empty and leader.forgotten_below > log.forgotten_below:
            async with log.alone():
                await log.forget_below(leader.forgotten_below)
        follower.acknowledged = self.held(follower)
        follower.high = min(self.high, log.end_offset)
        found = leader.read(log.end_offset, max_bytes=at_most, limit_offset=leader.end_offset, at_least_one=True)
        if found is not None:
            for header, content in split(found.read()):
                if header.base_offset < log.end_offset and is_empty:  # the leader's log starts inside this batch
                    await follower.start_over(header.base_offset)
                is_empty = False
                batch = Batch(header, bytes(content))
                log.append_after_gap(batch.content, header, now_ms=self.now_ms)
                follower.given.append(batch)
        if log.start_offset < leader.start_offset <= log.end_offset:
            await raise_start_offset(log, leader.start_offset)
        self.say("copy", follower.number, "to", log.end_offset)

    async def _agree(self, follower: Replica) -> None:
        """Cut what the leader does not have."""
        log, leader = follower.log, self.leader.log
        log.epochs.truncate_from_end(log.end_offset)  # epochs without a batch of this broker
        while log.start_offset < log.end_offset:
            epoch, end_offset = leader.epochs.end_offset_for_epoch(log.epochs.latest, leader.end_offset)
            if epoch == NO_EPOCH:
                break
            offset = cut_by_epoch(log.epochs, log.end_offset, leader_epoch=epoch, leader_end_offset=end_offset)
            if offset >= log.end_offset:
                break
            check(follower not in self.in_sync or offset >= self.high, "nothing committed is cut off")
            self.say("cut", follower.number, "at", offset)
            await follower.cut(offset)
        follower.synced_epoch = self.epoch

    async def flush(self) -> None:
        await self.any_replica().flush()

    async def roll(self) -> None:
        self.any_replica().log.roll(self.now_ms)

    async def note_recovery_point(self) -> None:
        replica = self.any_replica()
        replica.recovery_point = max(replica.recovery_point, replica.log.flushed_offset)

    async def leave_or_join(self) -> None:
        replica = self.any_replica()
        if replica is self.leader:
            return
        if replica in self.in_sync:
            self.in_sync.remove(replica)
        elif replica.synced_epoch == self.epoch and replica.acknowledged >= max(self.high, self.epoch_start):
            self.in_sync.append(replica)

    async def elect(self) -> None:
        self._lead(self.chance.choice(self.in_sync))

    def _lead(self, replica: Replica) -> None:
        self.leader, self.epoch = replica, self.epoch + 1
        self.epoch_start = replica.log.end_offset
        replica.log.epochs.assign(self.epoch, self.epoch_start)
        replica.log.forgotten_below = min(replica.log.forgotten_below, self.epoch_start)
        replica.synced_epoch = self.epoch
        for each in self.replicas:
            each.acknowledged = 0
        self.say("leader is", replica.number, "in epoch", self.epoch)

    async def delete_records(self) -> None:
        offset = self.chance.randint(self.leader.log.start_offset, max(self.high, self.leader.log.start_offset))
        await raise_start_offset(self.leader.log, offset)
        self.say("deleted below", offset)

    async def retain(self) -> None:
        replica = self.any_replica()
        log = replica.log
        limit = min(self.high, log.end_offset) if replica is self.leader else log.start_offset
        ends = [segment.end_offset for segment in log.segments]
        count = sum(end <= limit and begin < end for begin, end in zip([-1, *ends], ends, strict=False))
        if count:
            await remove_oldest(log, lambda: self.chance.randint(1, count) if count > 1 else 1)
            self.say("retention at", replica.number)

    async def compact(self) -> None:
        replica = self.any_replica()
        log = replica.log
        log.roll(self.now_ms)
        await replica.flush()
        high = self.high if replica is self.leader else min(replica.high, log.end_offset)
        limit = replica.stable.last_stable_offset(high, log.start_offset)
        work = find_work(log, replica.disk, now_ms=self.now_ms, limit_offset=limit)
        if work is not None:
            secret = b"sixteen bytes :)"
            await compact(
                *(log, replica.disk, work, replica), now_ms=self.now_ms, secret=secret, apart=once, breathe=self.breathe
            )
            self.cleaned_below = max(self.cleaned_below, limit)
            self.say("compacted", replica.number, "below", limit)

    async def breathe(self) -> None:
        await asyncio.sleep(0)

    async def move(self) -> None:
        """Begin a move, or finish one: others have their steps in between."""
        replica = self.any_replica()
        log, target = replica.log, replica.disks[1 - replica.at]
        if replica.moving is None:
            replica.moving = Relocation(log, replica.disk, target, TOPIC_ID, 0, blocking=self.blocking)
            self.say("begins to move", replica.number)
        while await replica.moving.step(log.end_offset, now_ms=self.now_ms):
            pass
        if self.chance.random() < 0.5:
            return

        def decided() -> None:
            replica.at = 1 - replica.at

        moved = await replica.moving.take_over(
            FOLDER,
            now_ms=self.now_ms,
            breathe=self.breathe,
            may=lambda: True,
            decided=decided,
            origin_failed=_unexpected,
            target_failed=_unexpected,
        )
        if moved:
            replica.moving = None
            replica.recovery_point = min(replica.recovery_point, log.flushed_offset)
            self.say("moved", replica.number)

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def stop(self) -> None:
        replica = self.any_replica()
        await replica.stop()
        self._returned(replica, "stopped")

    async def die(self) -> None:
        replica = self.any_replica()
        power = self.with_power and self.chance.random() < 0.7
        replica.die(self.chance, power=power)
        self._returned(replica, "lost power" if power else "killed")

    async def fail(self) -> None:
        """A disk fails in the middle of something, and the process ends."""
        replica = self.any_replica()
        disk = self.chance.choice(replica.disks)
        disk.fail_at = disk.changes + self.chance.randint(1, 30)
        steps = [self.flush, self.copy, self.compact if self.compacts else self.retain, self.delete_records]
        is_met = False
        for _ in range(4):
            try:
                await self.chance.choice(steps)()
            except DiskFault:
                is_met = True
                break
        disk.fail_at = None
        if is_met or disk.fault is not None:
            power = self.with_power and self.chance.random() < 0.5
            replica.die(self.chance, power=power)
            self._returned(replica, f"met a fault and {'lost power' if power else 'was killed'}")

    def _returned(self, replica: Replica, how: str) -> None:
        self.say(replica.number, how)
        replica.acknowledged = 0
        if replica is self.leader:
            self._lead(self.chance.choice(self.in_sync))

    # -- what must hold

    def advance(self) -> None:
        """The high watermark, and what is committed by it."""
        self.leader.acknowledged = self.held(self.leader)
        lowest = min(each.acknowledged for each in self.in_sync)
        if lowest > self.high:
            self.committed += [each for each in self.leader.given if self.high <= each.header.base_offset < lowest]
            self.high = lowest

    def look(self) -> None:
        for replica in self.replicas:
            self._look_at(replica)

    def _look_at(self, replica: Replica) -> None:
        log, name = replica.log, f"replica {replica.number}"
        batches = replica.batches()
        folded = Folded(replica.given)
        check(
            states(replica.producers) == states(folded.producers),
            f"{name} knows its producers: {states(replica.producers)}, and not {states(folded.producers)}",
        )
        check(
            dict(replica.stable.open_transactions) == dict(folded.stable.open_transactions),
            f"{name} knows what is open: {replica.stable.open_transactions}, {folded.stable.open_transactions}",
        )
        aborted = list(replica.stable.aborted_ranges(log.start_offset, log.end_offset))
        for each in folded.stable.aborted_ranges(log.start_offset, log.end_offset):
            has_data = any(
                header.producer_id == each.producer_id
                and not header.is_control
                and header.is_transactional
                and header.record_count > 0
                and each.first_offset <= header.base_offset <= each.last_offset
                and header.last_offset >= log.start_offset
                for header, _ in batches
            )
            check(each in aborted or not has_data, f"{name} knows that {each} is aborted")
        for header, _ in batches:
            check(
                log.epochs.epoch_at(header.last_offset) == header.leader_epoch,
                f"{name}: offset {header.last_offset} is of epoch {header.leader_epoch}",
            )
        if replica in self.in_sync:
            self._look_for_committed(replica, batches)

    def _look_for_committed(self, replica: Replica, batches: list[Batch]) -> None:
        log, name = replica.log, f"replica {replica.number}"
        check(log.end_offset >= self.high, f"{name} has what is committed, up to {self.high}")
        found = {each.header.base_offset: each for each in batches}
        for committed in self.committed:
            header = committed.header
            if header.last_offset < log.start_offset:
                continue
            there = found.get(header.base_offset)
            if header.base_offset >= self.cleaned_below:
                check(there == committed, f"{name} has the batch at {header.base_offset} as it was written")
            elif there is not None:
                check(_place(there) == _place(committed), f"{name} has another batch at {header.base_offset}")
                if not header.is_control:
                    had = {record.offset: record for record in read_records(committed.content)}
                    left = list(read_records(there.content)) if there.header.record_count else []
                    check(all(had.get(record.offset) == record for record in left), f"{name}: other records")
        self._look_for_last_values(name, log.start_offset, batches)
        last = {each.header.producer_id: each.header for each in self.committed if each.header.base_sequence >= 0}
        were_given = {each.header.base_offset for each in replica.given}
        for header in last.values():
            later = [
                each.header
                for each in replica.given
                if each.header.producer_id == header.producer_id
                and each.header.base_sequence >= 0
                and each.header.base_offset > header.base_offset
            ]
            expected = header.producer_epoch, header.base_sequence + header.record_count
            is_forgotten = (
                bool(later)
                and later[0].producer_epoch <= header.producer_epoch
                and (later[0].producer_epoch, later[0].base_sequence) != expected
            )
            if len(later) >= WINDOW_BATCHES or header.base_offset not in were_given or is_forgotten:
                # No client has as many under way. Or the log, or that of a leader since, began behind this batch, where
                # another leader's log began.
                continue
            verdict = replica.producers.check(header, now_ms=self.now_ms, needs_guard=False)
            check(isinstance(verdict, Duplicate | StaleEpoch), f"{name} takes a repeat of {header} for {verdict}")

    def _look_for_last_values(self, name: str, start_offset: int, batches: list[Batch]) -> None:
        """The last committed value of each key is never taken by compaction."""
        stable = Folded(self.committed).stable
        limit = stable.last_stable_offset(self.high, 0)
        last: dict[bytes | None, tuple[int, bytes | None]] = {}
        aborted = list(stable.aborted_ranges(0, limit))
        for header, content in self.committed:
            if header.is_control or header.last_offset >= limit:
                continue
            if header.is_transactional and any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
                for each in aborted
            ):
                continue
            for record in read_records(content):
                last[record.key] = record.offset, record.value
        there = {
            record.offset: record.value
            for header, content in batches
            if not header.is_control and header.record_count
            for record in read_records(content)
        }
        for key, (offset, value) in last.items():
            if value is not None and offset >= start_offset:
                check(there.get(offset) == value, f"{name} has the last value of {key!r}, at {offset}")


def _unexpected(fault: DiskFault) -> None:
    raise AssertionError("no disk fails while a log moves") from fault


def walk(seed: int, *, told: bool = False, habits: Mapping[str, float] = NO_HABITS) -> str:
    """What did not hold; empty if all did."""
    try:
        asyncio.run(Walk(seed, told=told, habits=habits).run(STEPS))
    except Exception as error:  # noqa: BLE001 - an assertion of the log's own is a finding, too
        if told:
            traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.properties.replicas", description="Walks of three replicas.")
    parser.add_argument("--seed", type=int, help="this walk alone; says each step")
    parser.add_argument("--from", type=int, dest="first", default=1)
    parser.add_argument("--runs", type=int, default=100)
    chosen = parser.parse_args()
    if chosen.seed is not None:
        wrong = walk(chosen.seed, told=True)
        print(wrong or "all holds")
        return bool(wrong)
    found = {seed: wrong for seed in range(chosen.first, chosen.first + chosen.runs) if (wrong := walk(seed))}
    for seed, wrong in found.items():
        print(f"seed {seed}: {wrong[:300]}")
    print(f"{chosen.runs} walks, {len(found)} wrong")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
