"""One folder of partitions on one disk: its flusher, and whether it is still in service.

A failed write or fsync takes the whole folder out of service until a restart. Nothing in it is acknowledged or appended
any more, and this broker stops leading its partitions. Errors that pass take nothing out of service: no room on the
disk (`headroom.py`), no file descriptor left, indexes that must be rebuilt. A file that is missing or can't be read
affects its partition alone, unless the whole data folder is gone or emptied.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from log.batch import CorruptBatch
from log.disk import NO_ROOM, Disk, DiskFault
from log.ids import TopicPartition
from log.segment import IndexesLost, Segment
from service.broker.flusher import WORKERS, Flusher
from service.broker.headroom import Headroom
from service.ports import Tasks
from service.turns import done_in_turns

logger = logging.getLogger("oncelog.disk")

SAID_EVERY_S = 10.0
"""The shortest time between two log lines that say that there are no file descriptors."""


class LogFolder:
    def __init__(self, name: str, disk: Disk, on_failure: Callable[["LogFolder"], None], *, reserve_bytes: int) -> None:
        self.name = name
        self.disk = disk
        self.flusher = Flusher(self.fail)
        self.failed: DiskFault | None = None
        self.headroom = Headroom(name, disk, reserve_bytes)
        self.laying = asyncio.Lock()
        """For the one whose large batch is being laid beside its log: one after the other, each is written fast."""
        self.copying = asyncio.Lock()
        """The same for the large batches of leaders, so that copies do not fall behind because clients write much."""
        self.partitions = 0
        """How many partitions of the broker are in this folder."""
        self.unused: dict[str, int] = {}
        """The folders in it that no partition of this broker uses (`found_folders.py`), with their bytes, as the last
        look has found them (`Housekeeper`).
        """
        self._said_s = -math.inf
        self._on_failure = on_failure
        self._unindexed: dict[Segment, None] = {}
        self._misses_indexes = asyncio.Event()

    def begin(self, tasks: Tasks) -> None:
        """Watch the folder's room and flush what is appended to it, until the broker stops."""
        tasks.spawn(f"headroom of {self.name}", self.headroom.run())
        for worker in range(WORKERS):
            tasks.spawn(f"flusher {worker} of {self.name}", self.flusher.run())
        tasks.spawn(f"indexes of {self.name}", self._rebuild_indexes())

    async def _rebuild_indexes(self) -> None:
        """Rebuild the indexes that somebody has missed, of one segment after the other, until the broker stops."""
        while True:
            await self._misses_indexes.wait()
            for segment in list(self._unindexed):
                logger.warning("log folder %s: the indexes of %s are rebuilt", self.name, segment.path())
                try:
                    await done_in_turns(segment.rebuilding())
                except (DiskFault, CorruptBatch) as error:
                    logger.error("log folder %s: the indexes of %s: %s", self.name, segment.path(), error)
                except Exception:  # an error in one segment must not keep others without their indexes
                    logger.exception("log folder %s: the indexes of %s", self.name, segment.path())
                del self._unindexed[segment]
            if not self._unindexed:
                self._misses_indexes.clear()

    def fail(self, fault: DiskFault) -> None:
        """A write or fsync failed with `fault`. An error that passes fails only this attempt, which will be made again.
        Any other error takes the folder out of service.
        """
        if fault.passing and self.disk.fault is None:
            self._pass(fault)
        elif self.failed is None:
            self.failed = fault
            if self.disk.fault is None:  # the folder was removed, say: what is still open could be written all the same
                self.disk.fault = fault
            logger.critical(
                "log folder %s is out of service: %s; nothing is appended to it until a restart", self.name, fault
            )
            self._on_failure(self)

    def blame(self, error: DiskFault | CorruptBatch, topic_partition: TopicPartition) -> None:
        """Work on a partition failed with `error`. Find out whether the disk has failed or only the partition's files
        are damaged, and log it.
        """
        if self.disk.fault is not None:
            self.fail(self.disk.fault)
        elif isinstance(error, DiskFault) and error.passing:
            self._pass(error)
        else:
            logger.error("%s in %s: %s", topic_partition, self.name, error)

    def _pass(self, fault: DiskFault) -> None:
        if isinstance(fault, IndexesLost):
            self._unindexed[fault.segment] = None
            self._misses_indexes.set()
            return
        if fault.errno in NO_ROOM:
            self.headroom.run_out()
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_s >= SAID_EVERY_S:
            self._said_s = now_s
            logger.error("log folder %s: %s; it is tried again", self.name, fault)
