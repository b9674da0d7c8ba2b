"""Compacts the compacted topics that are due, one partition after the other, in steps between which everybody else
has their turn.
"""

import asyncio
import logging
from collections.abc import Sequence

from isolation.aborted import AbortedRange
from log.batch import BatchHeader, CorruptBatch
from log.compaction import compact, find_work
from log.disk import DiskFault
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.config import BrokerConfig
from service.ports import Env

logger = logging.getLogger("oncelog.compaction")

BACKOFF_MS_MIN = 10
"""Looking without a pause for what may be compacted would take the loop from everybody."""


class ProducersAndTransactions:
    """What a cleaner must know of a partition's producers before it drops a batch of theirs."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def aborted_ranges(self, from_offset: int, end_offset: int) -> Sequence[AbortedRange]:
        return self._partition.stable.aborted_ranges(from_offset, end_offset)

    def forget_aborted(self, marker_offsets: Sequence[int]) -> None:
        self._partition.stable.forget_aborted(marker_offsets)

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        return self._partition.producers.is_last(header)


class Compactor:
    def __init__(self, env: Env, config: BrokerConfig, partitions: PartitionTable) -> None:
        self._env = env
        self._config = config
        self._partitions = partitions

    async def run(self) -> None:
        while True:
            await asyncio.sleep(max(self._config.log_cleaner_backoff_ms, BACKOFF_MS_MIN) / 1000)
            if not self._config.log_cleaner_enable:
                continue
            for partition in self._partitions:
                if partition.log.config.compacts and not partition.offline and partition.folder.failed is None:
                    await self._compact(partition)

    async def _compact(self, partition: Partition) -> None:
        undecided = partition.stable.first_undecided_offset()
        limit = partition.high_watermark if undecided is None else min(undecided, partition.high_watermark)
        now_ms = self._env.clock.wall_ms()
        disk = partition.folder.disk
        try:
            work = find_work(partition.log, disk, now_ms=now_ms, limit_offset=limit)
            if work is None:
                return
            facts = ProducersAndTransactions(partition)
            report = await compact(partition.log, disk, work, facts, now_ms=now_ms, breathe=breathe)
        except (DiskFault, CorruptBatch) as error:
            partition.folder.blame(error, partition.topic_partition)
            return
        if report.unreadable_batches:
            logger.error(
                "%s: %d damaged batch(es) stay as they are; `oncelog log verify` on the stopped broker's folder"
                " shows where",
                *(partition.topic_partition, report.unreadable_batches),
            )
        if report.swapped:
            logger.info("%s: compacted %s", partition.topic_partition, report)


async def breathe() -> None:
    """Let everybody else have their turn."""
    await asyncio.sleep(0)
