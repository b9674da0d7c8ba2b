"""Compacts the partitions of compacted topics that are due, one after the other. Reading and writing happen in a
separate process, which exists only while there is work.

What always holds: a failure in one partition affects no other partition. It is logged and counted, and the partition is
tried again after a pause that doubles each time. The other partitions are compacted meanwhile.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from idempotence.producers import KnownBy
from log.batch import CorruptBatch
from log.cleaning_job import TooLittleRoom
from log.compaction import compact, find_work
from log.disk import DiskFault
from service.broker.folder_moves import FolderMoves
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.ports import Apart, Env, HelperNotStarted
from service.settings.broker import BrokerConfig
from service.turns import Turn, breathe

logger = logging.getLogger("oncelog.compaction")

BACKOFF_MS_MIN = 10
"""The shortest pause between two searches for work. Searching without a pause would starve everything else on the loop.
"""
PARTITIONS_A_TURN = 64
SEGMENTS_A_TURN = 2_048
"""To look at so many segments takes about three milliseconds. A partition takes as long as 32 of them."""
REST_S_MIN, REST_S_MAX = 60.0, 3_600.0
"""The shortest and the longest pause before a partition that could not be compacted is tried again."""
PASSING_S = 5.0
"""The pause if the disk had no room, or the process no descriptor: what others gave back is used soon."""
SAID_EVERY_S = 60.0
ROOM_FOR_SCRATCH = 2
"""A pass needs room for what it writes, which is less than it has read, and to put keys aside: so many times the log at
most. Most need far less. So half the log's size more than there was is worth a try.
"""
COPIED_WITHIN_LAGS = 10
"""After so many times `replica.lag.time.max.ms` in which it got no further, a follower that copies all of a log is not
waited for any longer: deletions leave the log. A throttled follower has long pauses.
"""
PATIENCE_S = 300.0
LEAST_BYTES_A_SECOND = 1 << 20
"""Work that takes longer than PATIENCE_S plus its bytes at this rate is taken to hang. Even the smallest batches are
compacted thirty times as fast.
"""


class Rest(NamedTuple):
    """How long a partition is left alone, and until when."""

    for_s: float
    ends_s: float
    lacks_bytes: int | None = None
    """It lacked room. With so much of it the rest is over at once."""

    def is_over_by_room(self, partition: Partition) -> bool:
        return self.lacks_bytes is not None and _room_bytes(partition) >= self.lacks_bytes


def _room_bytes(partition: Partition) -> int:
    """How much of the disk is left for a pass, beside what is kept for producers. Nothing if the disk does not tell."""
    folder = partition.folder
    try:
        return folder.disk.space().free_bytes - folder.headroom.kept_for_producers
    except DiskFault:
        return 0


class ProducersAndTransactions:
    """What a cleaner must know of a partition's producers before it drops a batch of theirs."""

    def __init__(self, partition: Partition) -> None:
        self.stable = partition.stable
        self._producers = partition.producers

    def known_by(self, below: int) -> Iterator[KnownBy]:
        return self._producers.known_by(below)


class Hangs(Exception):
    """The separate process has not ended within the longest time that its work can take."""


class Compactor:
    def __init__(self, env: Env, config: BrokerConfig, partitions: PartitionTable, moves: FolderMoves) -> None:
        self._env = env
        self._config = config
        self._partitions = partitions
        self._moves = moves
        self._resting: dict[Partition, Rest] = {}
        self._said_s = -SAID_EVERY_S
        self.failures = 0
        """How often the compaction of one partition failed, which is tried again after a rest."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(max(self._config.log_cleaner_backoff_ms, BACKOFF_MS_MIN) / 1000)
            if self._config.log_cleaner_enable:
                await self._round()

    async def _round(self) -> None:
        seen: dict[Partition, None] = {}
        turn = Turn(SEGMENTS_A_TURN)
        async with self._env.apart() as apart:
            for partition in self._partitions:
                seen[partition] = None
                segments = 0
                if self.may_compact(partition):
                    segments = len(partition.log.segments)
                    if not await self._try(partition, apart):
                        return  # nor can another one be compacted now: the next round comes soon
                if turn.is_over(SEGMENTS_A_TURN // PARTITIONS_A_TURN + segments):
                    await breathe()
        self._resting = {partition: rest for partition, rest in self._resting.items() if partition in seen}

    def may_compact(self, partition: Partition) -> bool:
        """A partition that moves to another folder waits: each pass would make the copy begin anew."""
        is_served = not partition.offline and partition.folder.failed is None
        return partition.log.config.compacts and is_served and not self._moves.is_moving(partition)

    async def _try(self, partition: Partition, apart: Apart) -> bool:
        """Compact the partition, unless it rests. Returns whether there is a process that compacts."""
        now_s = self._env.clock.monotonic()
        rest = self._resting.get(partition)
        if rest is not None and now_s < rest.ends_s and not rest.is_over_by_room(partition):
            return True
        try:
            await self._compact(partition, apart)
        except HelperNotStarted as error:
            self.failures += 1
            if now_s - self._said_s >= SAID_EVERY_S:
                self._said_s = now_s
                logger.error("nothing can be compacted: %s; it is tried again", error)
            return False
        except Exception as error:
            self.failures += 1
            for_s, lacks_bytes = REST_S_MIN if rest is None else min(2 * rest.for_s, REST_S_MAX), None
            if isinstance(error, DiskFault) and error.passing:
                for_s = PASSING_S
            elif isinstance(error, TooLittleRoom):
                size_bytes = partition.log.size_bytes
                lacks_bytes = min(ROOM_FOR_SCRATCH * size_bytes, _room_bytes(partition) + size_bytes // 2)
            self._resting[partition] = Rest(for_s, now_s + for_s, lacks_bytes)
            if isinstance(error, DiskFault | CorruptBatch):
                partition.folder.blame(error, partition.topic_partition)
            elif isinstance(error, TooLittleRoom | Hangs):
                logger.error(
                    "%s can't be compacted: %s; the next try is in %d s", partition.topic_partition, error, for_s
                )
            else:
                logger.exception("%s can't be compacted; the next try is in %d s", partition.topic_partition, for_s)
        else:
            self._resting.pop(partition, None)
        return True

    async def _compact(self, partition: Partition, apart: Apart) -> None:
        undecided = partition.stable.first_undecided_offset()
        limit = partition.high_watermark if undecided is None else min(undecided, partition.high_watermark)
        now_ms = self._env.clock.wall_ms()
        disk = partition.folder.disk
        work = find_work(partition.log, disk, now_ms=now_ms, limit_offset=limit)
        if work is None:
            return
        facts = ProducersAndTransactions(partition)
        patience_s = PATIENCE_S + sum(segment.size_bytes for segment in work.segments) / LEAST_BYTES_A_SECOND

        async def within_reason(function: str, *arguments: Any) -> Any:
            try:
                async with asyncio.timeout(patience_s):
                    return await apart.run(function, *arguments)
            except TimeoutError:
                raise Hangs(f"the process that reads and writes has not ended within {patience_s:.0f} s") from None

        report = await compact(
            *(partition.log, disk, work, facts),
            now_ms=now_ms,
            secret=self._env.unique(),
            apart=within_reason,
            breathe=breathe,
            memory_bytes=self._config.log_cleaner_dedupe_buffer_size,
            scratch_folder=partition.folder.name,
            leave_bytes=partition.folder.headroom.kept_for_producers,
            keeps_deletions=partition.is_being_copied(
                int(self._env.clock.monotonic() * 1000), COPIED_WITHIN_LAGS * self._config.replica_lag_time_max_ms
            ),
        )
        if report.unreadable_batches:
            logger.error(
                "%s: %d damaged batch(es) stay as they are; `oncelog log verify` on the stopped broker's folder"
                " shows where",
                *(partition.topic_partition, report.unreadable_batches),
            )
        if report.oversized_batches:
            logger.warning(
                "%s: %d batch(es) stay as they are, of more records than any client sends together",
                *(partition.topic_partition, report.oversized_batches),
            )
        if report.swapped:
            logger.info("%s: compacted %s", partition.topic_partition, report)
