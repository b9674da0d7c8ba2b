"""Regular work: remove expired segments, make rolled segments durable, write down recovery points and high watermarks,
forget idle producers, check that the data folders still exist, and look how much is in folders that nobody uses.

Partitions are handled one after the other, with a pause after each one that had work, so that this never delays
clients. A disk fault takes the folder out of service; the work goes on in the other folders.
"""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from log.batch import CorruptBatch
from log.clock import ClockWatch
from log.config import UNLIMITED
from log.disk import NO_ROOM, DiskFault
from log.ids import TopicId, TopicPartition
from log.manifest import RECOVERY_POINTS, write_high_watermarks, write_recovery_points
from log.removal import expired_segments, remove_oldest
from service.broker.data_folder import META_FILE
from service.broker.found_folders import size_of
from service.broker.log_folder import LogFolder
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import breathe, in_turns

logger = logging.getLogger("oncelog.housekeeping")

FLUSH_CHECK_MS = 1_000
"""How long a rolled segment may wait for its fsync. Also the precision of `flush.ms`."""
SHORT_OF_ROOM_CHECK_MS = 10_000
"""Where producers are slowed down or refused because the disk is nearly full, retention is looked at this often."""
PARTITIONS_A_TURN = 256
FLUSH, RETENTION, PRODUCERS = "flush", "retention", "producers"


class Housekeeper:
    def __init__(
        self, env: Env, config: BrokerConfig, partitions: PartitionTable, folders: Sequence[LogFolder]
    ) -> None:
        self._env = env
        self._config = config
        self._partitions = partitions
        self._folders = folders
        self._unflushed_since_ms: dict[Partition, int] = {}
        self.written_points: dict[LogFolder, dict[TopicPartition, int]] = {}
        self.written_high_watermarks: dict[LogFolder, dict[tuple[TopicId, int], int]] = {}
        self._forgetting: dict[LogFolder, dict[TopicPartition, None]] = {}
        self._distrusted: list[tuple[TopicPartition, int]] = []
        self._cut_meanwhile: list[tuple[TopicPartition, int]] = []
        """Cuts that have ended since recovery points began to be gathered: these may be older than the cut."""
        self._writing_points = asyncio.Lock()
        self._writing_high_watermarks = {folder: asyncio.Lock() for folder in folders}
        self._clock_watch = ClockWatch()
        self.failures = dict.fromkeys((FLUSH, RETENTION, PRODUCERS), 0)
        """How often each of these failed in one partition, which is tried again with the next round."""

    async def run(self) -> None:
        clock = self._env.clock
        retention_s = points_s = watermarks_s = producers_s = clock.monotonic()
        await self.look_at_unused()
        while True:
            await asyncio.sleep(FLUSH_CHECK_MS / 1000)
            now_s = clock.monotonic()
            self._clock_watch.look(int(now_s * 1000), clock.wall_ms())
            self._look_for_folders()
            await self._each(FLUSH, self._flush_rolled)
            if now_s - retention_s >= self._retention_check_ms / 1000:
                retention_s = now_s
                await self._each(RETENTION, self._remove_expired)
                await self.look_at_unused()
            if now_s - points_s >= self._config.log_flush_offset_checkpoint_interval_ms / 1000:
                points_s = now_s
                for folder in self._folders:
                    await self.write_points(folder)
            if now_s - watermarks_s >= self._config.replica_high_watermark_checkpoint_interval_ms / 1000:
                watermarks_s = now_s
                for folder in self._folders:
                    await self.write_high_watermarks(folder)
            if now_s - producers_s >= self._config.producer_id_expiration_check_interval_ms / 1000:
                producers_s = now_s
                await self._each(PRODUCERS, self._forget_idle_producers)

    @property
    def _retention_check_ms(self) -> int:
        usual_ms = self._config.log_retention_check_interval_ms
        is_short = any(folder.headroom.is_short or folder.headroom.delay_s for folder in self._folders)
        return min(usual_ms, SHORT_OF_ROOM_CHECK_MS) if is_short else usual_ms

    def _look_for_folders(self) -> None:
        """Take a folder out of service that somebody has removed. Its open files can still be written and synced, but
        all of that is gone after a stop.
        """
        for folder in self._folders:
            if folder.failed is None and not folder.disk.exists(META_FILE):
                folder.fail(DiskFault(errno.ENOENT, "the data folder was removed or emptied", META_FILE))

    async def look_at_unused(self) -> None:
        """Find out how much is in each folder that no partition uses. An operator may have removed it."""
        for folder in self._folders:
            for name in list(folder.unused):
                size_bytes = await self._env.blocking(size_of, folder.disk, name)
                if size_bytes is None:
                    folder.unused.pop(name, None)
                elif name in folder.unused:
                    folder.unused[name] = size_bytes

    async def _each(self, what: str, work: Callable[[Partition], Awaitable[None]]) -> None:
        for count, partition in enumerate(self._partitions):
            if partition.folder.failed is None and not partition.offline:
                try:
                    await work(partition)
                except Exception as error:  # an error in one partition must not stop the work on the others
                    self.failures[what] += 1
                    if isinstance(error, DiskFault | CorruptBatch):
                        partition.folder.blame(error, partition.topic_partition)
                    else:
                        logger.exception("%s: %s failed; it is tried again later", partition.topic_partition, what)
            if count % PARTITIONS_A_TURN == 0:
                await breathe()

    async def _flush_rolled(self, partition: Partition) -> None:
        log = partition.log
        unflushed = log.flushed_offset < log.end_offset
        if log.durability.flush_due or (unflushed and log.config.flush_ms <= self._unflushed_ms(partition)):
            await partition.flush()
        elif not unflushed:
            self._unflushed_since_ms.pop(partition, None)

    def _unflushed_ms(self, partition: Partition) -> int:
        """For how long this partition has held data that is not durable."""
        if partition.log.config.flush_ms == UNLIMITED:
            return -1
        now_ms = int(self._env.clock.monotonic() * 1000)
        return now_ms - self._unflushed_since_ms.setdefault(partition, now_ms)

    async def _remove_expired(self, partition: Partition) -> None:
        log = partition.log
        freed_bytes, segments = 0, len(log.segments)
        while self._expired_segments(partition):
            freed_bytes += await remove_oldest(log, lambda: self._expired_segments(partition))
            if len(log.segments) >= segments:
                break  # they may not go yet
            segments = len(log.segments)
        if freed_bytes:
            logger.info(
                "%s: removed what has expired, %d bytes; it starts at offset %d",
                *(partition.topic_partition, freed_bytes, log.start_offset),
            )

    def _expired_segments(self, partition: Partition) -> int:
        return expired_segments(partition.log, self._env.clock.wall_ms(), partition.high_watermark)

    async def _forget_idle_producers(self, partition: Partition) -> None:
        for _ in partition.producers.expire(
            self._env.clock.wall_ms(),
            self._config.producer_id_expiration_ms,
            clock_set_ms=self._clock_watch.set_ms,
        ):
            await breathe()

    async def forget_points(self, topic_partition: TopicPartition) -> bool:
        """Remove the recovery points of a partition that is gone; a folder that it moved out of may still have one.
        Returns False if one could not be removed this time.
        """
        return all([await self.forget_point(folder, topic_partition) for folder in self._folders])

    async def forget_point(self, folder: LogFolder, topic_partition: TopicPartition) -> bool:
        """Remove the recovery point of a partition that is gone. Otherwise a new partition of the same name would be
        judged by the old one's point. Returns False if the point could not be removed this time.
        """
        forgetting = self._forgetting.setdefault(folder, {})
        forgetting[topic_partition] = None
        try:
            async with self._writing_points:
                written = self.written_points.get(folder, {})
                if topic_partition in written:  # those that wait for the same go with it: each writes all points
                    others = {key: point for key, point in written.items() if key not in forgetting}
                    await self._write_points(folder, others)
                return folder.failed is not None or topic_partition not in self.written_points.get(folder, {})
        finally:
            forgetting.pop(topic_partition, None)

    async def forget_in_a_start(self, folder: LogFolder, gone: Collection[TopicPartition]) -> None:
        """Remove recovery points when nobody can wait for room: if the list can't be written without them, there is
        none. Raises `DiskFault` if they are still there then.
        """
        async with self._writing_points:
            written = self.written_points.get(folder, {})
            if not written.keys().isdisjoint(gone):
                others = {key: point for key, point in written.items() if key not in gone}
                fault = await self._write_points(folder, others)
                if fault is not None and (fault := await self._drop_points(folder)) is not None:
                    raise fault

    async def note_in_a_start(self, folder: LogFolder, durable: Mapping[TopicPartition, int]) -> None:
        """Raise recovery points to what is known to be durable. Raises `DiskFault` if that can't be noted."""
        async with self._writing_points:
            points = dict(self.written_points[folder])
            for topic_partition, offset in durable.items():
                points[topic_partition] = max(offset, points.get(topic_partition, 0))
            if (fault := await self._write_points(folder, points)) is not None:
                raise fault

    @asynccontextmanager
    async def distrusting(self, partition: Partition, offset: int) -> AsyncIterator[None]:
        """For as long as the context lasts, no recovery point says that data from `offset` on is durable. Used around a
        truncation at `offset`. Raises `DiskFault` if a point can't be lowered now: after a crash, the truncation would
        be taken for damage. That the disk is full is no reason: this is needed to move partitions off it.
        """
        cut = partition.topic_partition, offset
        self._distrusted.append(cut)
        try:
            async with self._writing_points:
                for folder, written in list(self.written_points.items()):
                    if written.get(partition.topic_partition, 0) > offset:
                        fault = await self._write_points(folder, dict(written))
                        if fault is not None and fault.errno in NO_ROOM:
                            fault = await self._drop_points(folder)
                        if fault is not None and folder.failed is None:
                            raise fault
            yield
        finally:
            self._distrusted.remove(cut)
            if self._writing_points.locked():
                self._cut_meanwhile.append(cut)

    async def write_points(self, folder: LogFolder) -> None:
        async with self._writing_points:
            self._cut_meanwhile, points = [], {}
            async for partition in in_turns(self._partitions, PARTITIONS_A_TURN):
                if partition.folder is folder and partition.log.flushed_offset:
                    points[partition.topic_partition] = partition.log.flushed_offset
            await self._write_points(folder, points)

    async def _write_points(self, folder: LogFolder, points: dict[TopicPartition, int]) -> DiskFault | None:
        for topic_partition, offset in (*self._distrusted, *self._cut_meanwhile):
            if topic_partition in points:
                points[topic_partition] = min(points[topic_partition], offset)
        if folder.failed is not None or points == self.written_points.get(folder, {}):
            return None
        try:
            await write_recovery_points(folder.disk, points)
        except DiskFault as fault:
            folder.fail(fault)
            return fault
        self.written_points[folder] = points
        return None

    async def _drop_points(self, folder: LogFolder) -> DiskFault | None:
        """Remove the list of recovery points, which needs no room. Without it a start after a crash reads more, and
        takes nothing for durable that was cut. It is written again with the next points that find room.
        """
        try:
            folder.disk.unlink(RECOVERY_POINTS)
            self.written_points[folder] = {}
            await folder.disk.sync_dir("")
        except DiskFault as fault:
            folder.fail(fault)
            return fault
        return None

    async def write_high_watermarks(self, folder: LogFolder) -> None:
        """Write down the high watermarks of partitions with several replicas. The next leader begins with the high
        watermark that it knew. Of an empty partition that is about to move elsewhere nothing is said: if that folder is
        lost, a 0 here would say that nothing was in it (R17).
        """
        async with self._writing_high_watermarks[folder]:
            known = {}
            async for partition in in_turns(self._partitions, PARTITIONS_A_TURN):
                if partition.folder is folder and partition.is_replicated and not partition.offline:
                    high_watermark = partition.high_watermark
                    if high_watermark or (partition.topic_partition, 0) not in self._distrusted:
                        known[partition.topic_id, partition.topic_partition.partition] = high_watermark
            if folder.failed is not None or known == self.written_high_watermarks.get(folder, {}):
                return
            try:
                await write_high_watermarks(folder.disk, known)
            except DiskFault as fault:
                folder.fail(fault)
                return
            self.written_high_watermarks[folder] = known
