"""Regular work: remove expired segments, make rolled segments durable, write down recovery points and high watermarks,
forget idle producers, check that the data folders still exist, and look how much is in folders that nobody uses.

One look goes through all partitions, in turns, and finds what is due; it waits for no disk. A few workers of each
folder do it, so a partition whose flush takes long, or whose log somebody else is at work on, holds up no others, and a
slow disk no other disk. A disk fault takes the folder out of service; the work goes on in the other folders.
"""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

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
from service.turns import Turn, breathe, in_turns

logger = logging.getLogger("oncelog.housekeeping")

FLUSH_CHECK_MS = 1_000
"""How long a rolled segment may wait for its fsync. Also the precision of `flush.ms`."""
SHORT_OF_ROOM_CHECK_MS = 10_000
"""Where producers are slowed down or refused because the disk is nearly full, retention is looked at this often."""
PARTITIONS_A_TURN = 256
SEGMENTS_A_TURN = 4_096
"""To look at so many segments takes about two milliseconds. A partition without any takes as long as 16 of them."""
WORKERS = 8
"""How many partitions of a folder are flushed at the same time, and how many others lose what has expired."""
FLUSH, RETENTION, PRODUCERS = "flush", "retention", "producers"


class Due:
    """The partitions of one folder in which a certain work is due, and those in which it is done now."""

    def __init__(self, work: Callable[[Partition], Awaitable[None]]) -> None:
        self._work = work
        self._partitions: set[Partition] = set()
        self._queue: asyncio.Queue[Partition] = asyncio.Queue()

    def add(self, partition: Partition) -> None:
        """What is due already, or under way, is not begun anew."""
        if partition not in self._partitions:
            self._partitions.add(partition)
            self._queue.put_nowait(partition)

    async def run(self) -> None:
        """One worker; several run side by side. The work raises nothing."""
        while True:
            partition = await self._queue.get()
            try:
                await self._work(partition)
            finally:
                self._partitions.discard(partition)
            await breathe()


class Housekeeper:
    def __init__(
        self, env: Env, config: BrokerConfig, partitions: PartitionTable, folders: Sequence[LogFolder]
    ) -> None:
        self._env = env
        self._config = config
        self._partitions = partitions
        self._folders = folders
        self._due = {
            (what, folder): Due(partial(self._do, what, work))
            for folder in folders
            for what, work in ((FLUSH, lambda partition: partition.flush()), (RETENTION, self._remove_expired))
        }
        self._unflushed: dict[Partition, tuple[int, int]] = {}
        """Since when a partition has held data that is not durable, and where its log ended then."""
        self._unflushed_before: dict[Partition, tuple[int, int]] = {}
        """The same as the look before has found it."""
        self.written_points: dict[LogFolder, dict[TopicPartition, int]] = {}
        self.written_high_watermarks: dict[LogFolder, dict[tuple[TopicId, int], int]] = {}
        self._forgetting: dict[LogFolder, dict[TopicPartition, None]] = {}
        self._distrusted: list[tuple[TopicPartition, int]] = []
        self._cut_meanwhile: dict[LogFolder, list[tuple[TopicPartition, int]]] = {}
        """Cuts that have ended since recovery points began to be gathered: these may be older than the cut. A partition
        that is gone is cut at 0.
        """
        self._writing_points = {folder: asyncio.Lock() for folder in folders}
        self._on_their_way: dict[LogFolder, dict[TopicPartition, int]] = {}
        """Recovery points that are being written."""
        self._writing_high_watermarks = {folder: asyncio.Lock() for folder in folders}
        self._clock_watch = ClockWatch()
        self.failures = dict.fromkeys((FLUSH, RETENTION, PRODUCERS), 0)
        """How often each of these failed in one partition, which is tried again with the next round."""

    async def run(self) -> None:
        clock, tasks = self._env.clock, self._env.tasks
        for (what, folder), due in self._due.items():
            for worker in range(WORKERS):
                tasks.spawn(f"{what} {worker} in {folder.name}", due.run())
        for folder in self._folders:
            tasks.spawn(f"checkpoints in {folder.name}", self._write_checkpoints(folder))
        tasks.spawn("idle producers", self._look_for_idle_producers())
        tasks.spawn("unused folders", self._look_at_unused_now_and_then())
        retention_s = clock.monotonic()
        while True:
            await asyncio.sleep(FLUSH_CHECK_MS / 1000)
            now_s = clock.monotonic()
            self._clock_watch.look(int(now_s * 1000), clock.wall_ms())
            self._look_for_folders()
            self._unflushed_before, self._unflushed = self._unflushed, {}
            await self._look(FLUSH, self._is_flush_due)
            if now_s - retention_s >= self._retention_check_ms / 1000:
                retention_s = now_s
                await self._look(RETENTION, self._has_expired)

    async def _write_checkpoints(self, folder: LogFolder) -> None:
        clock, config = self._env.clock, self._config
        points_s = watermarks_s = clock.monotonic()
        while True:
            await asyncio.sleep(FLUSH_CHECK_MS / 1000)
            now_s = clock.monotonic()
            if now_s - points_s >= config.log_flush_offset_checkpoint_interval_ms / 1000:
                points_s = now_s
                await self.write_points(folder)
            if now_s - watermarks_s >= config.replica_high_watermark_checkpoint_interval_ms / 1000:
                watermarks_s = now_s
                await self.write_high_watermarks(folder)

    async def _look_for_idle_producers(self) -> None:
        while True:
            await asyncio.sleep(self._config.producer_id_expiration_check_interval_ms / 1000)
            async for partition in in_turns(self._partitions, PARTITIONS_A_TURN):
                await self._do(PRODUCERS, self._forget_idle_producers, partition)

    async def _look_at_unused_now_and_then(self) -> None:
        while True:
            await self.look_at_unused()
            await asyncio.sleep(self._retention_check_ms / 1000)

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

    async def _look(self, what: str, is_due: Callable[[Partition], bool]) -> None:
        """Find the partitions in which this is due."""
        turn = Turn(SEGMENTS_A_TURN)
        for partition in self._partitions:
            if _is_served(partition):
                try:
                    if is_due(partition):
                        self._due[what, partition.folder].add(partition)
                except Exception as error:  # an error in one partition must not stop the work on the others
                    if not self._is_foreseen(what, partition, error):
                        logger.exception("%s: %s failed; it is tried again later", partition.topic_partition, what)
            segments = len(partition.log.segments) if what == RETENTION else 0
            if turn.is_over(SEGMENTS_A_TURN // PARTITIONS_A_TURN + segments):
                await breathe()

    async def _do(self, what: str, work: Callable[[Partition], Awaitable[None]], partition: Partition) -> None:
        if _is_served(partition):
            try:
                await work(partition)
            except Exception as error:  # as above
                if not self._is_foreseen(what, partition, error):
                    logger.exception("%s: %s failed; it is tried again later", partition.topic_partition, what)

    def _is_foreseen(self, what: str, partition: Partition, error: Exception) -> bool:
        """Count the failure, and tell the folder if it may be the disk's."""
        self.failures[what] += 1
        if not isinstance(error, DiskFault | CorruptBatch):
            return False
        if isinstance(error, DiskFault) and error.is_missing:
            partition.harmed(error)
        else:
            partition.folder.blame(error, partition.topic_partition)
        return True

    def _is_flush_due(self, partition: Partition) -> bool:
        log = partition.log
        is_late = log.config.flush_ms != UNLIMITED and self._waits_too_long(partition)
        return log.durability.flush_due or is_late

    def _waits_too_long(self, partition: Partition) -> bool:
        """Whether data have waited for `flush.ms` to become durable."""
        log, now_ms = partition.log, int(self._env.clock.monotonic() * 1000)
        if log.flushed_offset >= log.end_offset:
            return False
        since_ms, ended = self._unflushed_before.get(partition, (now_ms, 0))
        if ended <= log.flushed_offset:  # what was there then is durable: all of this came later
            since_ms, ended = now_ms, log.end_offset
        self._unflushed[partition] = since_ms, ended
        return now_ms - since_ms >= log.config.flush_ms

    def _has_expired(self, partition: Partition) -> bool:
        return self._expired_segments(partition) > 0

    async def _remove_expired(self, partition: Partition) -> None:
        """Remove what has expired of that which is there now."""
        log = partition.log
        freed_bytes, reached, end_offset = 0, -1, log.end_offset
        while (first := log.segments.first_base) is not None and reached < first < end_offset:
            if not self._expired_segments(partition):
                break
            reached = first
            freed_bytes += await remove_oldest(log, lambda: self._expired_segments(partition))
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
        if all(topic_partition not in points for points in self._lists_of_points(folder)):
            self._keep_in_mind(folder, (topic_partition, 0))
            return True  # the disk of another folder may be slow: it is not waited for
        forgetting = self._forgetting.setdefault(folder, {})
        forgetting[topic_partition] = None
        try:
            async with self._writing_points[folder]:
                written = self.written_points.get(folder, {})
                if topic_partition in written:  # those that wait for the same go with it: each writes all points
                    others = {key: point for key, point in written.items() if key not in forgetting}
                    fault = await self._write_points(folder, others)
                    if fault is not None and fault.errno in NO_ROOM:
                        await self._drop_points(folder)  # what is removed next makes room
                return folder.failed is not None or topic_partition not in self.written_points.get(folder, {})
        finally:
            forgetting.pop(topic_partition, None)

    async def forget_in_a_start(self, folder: LogFolder, gone: Collection[TopicPartition]) -> None:
        """Remove recovery points when nobody can wait for room: if the list can't be written without them, there is
        none. Raises `DiskFault` if they are still there then.
        """
        async with self._writing_points[folder]:
            written = self.written_points.get(folder, {})
            if not written.keys().isdisjoint(gone):
                others = {key: point for key, point in written.items() if key not in gone}
                fault = await self._write_points(folder, others)
                if fault is not None and (fault := await self._drop_points(folder)) is not None:
                    raise fault

    async def note_in_a_start(self, folder: LogFolder, durable: Mapping[TopicPartition, int]) -> None:
        """Raise recovery points to what is known to be durable. Raises `DiskFault` if that can't be noted."""
        async with self._writing_points[folder]:
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
            for folder in self._folders:
                await self._lower_point(folder, partition.topic_partition, offset)
            yield
        finally:
            self._distrusted.remove(cut)
            for folder in self._folders:
                self._keep_in_mind(folder, cut)

    def _keep_in_mind(self, folder: LogFolder, cut: tuple[TopicPartition, int]) -> None:
        """The point may have been gathered already."""
        if self._writing_points[folder].locked():
            self._cut_meanwhile.setdefault(folder, []).append(cut)

    def _lists_of_points(self, folder: LogFolder) -> Sequence[Mapping[TopicPartition, int]]:
        """What is written, or being written. Points that are only gathered yet are lowered before they are written
        (`_distrusted`, `_cut_meanwhile`).
        """
        return self.written_points.get(folder, {}), self._on_their_way.get(folder, {})

    async def _lower_point(self, folder: LogFolder, topic_partition: TopicPartition, offset: int) -> None:
        if all(points.get(topic_partition, 0) <= offset for points in self._lists_of_points(folder)):
            return  # as in `forget_point`
        async with self._writing_points[folder]:
            written = self.written_points.get(folder, {})
            if written.get(topic_partition, 0) > offset:
                fault = await self._write_points(folder, dict(written))
                if fault is not None and fault.errno in NO_ROOM:
                    fault = await self._drop_points(folder)
                if fault is not None and folder.failed is None:
                    raise fault

    async def write_points(self, folder: LogFolder) -> None:
        async with self._writing_points[folder]:
            self._cut_meanwhile[folder], points = [], {}
            async for partition in in_turns(self._partitions, PARTITIONS_A_TURN):
                if partition.folder is folder and partition.log.flushed_offset:
                    points[partition.topic_partition] = partition.log.flushed_offset
            await self._write_points(folder, points)

    async def _write_points(self, folder: LogFolder, points: dict[TopicPartition, int]) -> DiskFault | None:
        for topic_partition, offset in (*self._distrusted, *self._cut_meanwhile.get(folder, ())):
            if topic_partition in points:
                points[topic_partition] = min(points[topic_partition], offset)
        if folder.failed is not None or points == self.written_points.get(folder, {}):
            return None
        self._on_their_way[folder] = points
        try:
            await write_recovery_points(folder.disk, points)
        except DiskFault as fault:
            folder.fail(fault)
            return fault
        finally:
            del self._on_their_way[folder]
        self.written_points[folder] = points
        return None

    async def _drop_points(self, folder: LogFolder) -> DiskFault | None:
        """Remove the list of recovery points, which needs no room. Without it a start after a crash reads more, and
        takes nothing for durable that was cut. It is written again with the next points that find room.
        """
        try:
            folder.disk.unlink(RECOVERY_POINTS)
            await folder.disk.sync_dir("")  # until then a power cut may bring it back
            self.written_points[folder] = {}
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


def _is_served(partition: Partition) -> bool:
    return partition.folder.failed is None and not partition.offline
