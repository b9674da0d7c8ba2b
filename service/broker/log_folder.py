"""One folder of partitions on one disk: its flusher, and whether it is still in service.

A failed write or fsync takes the whole folder out of service, loudly and for good: nothing in it is acknowledged
or appended any more, and its partitions stop being led from here. A file that is missing or can't be read is the
misfortune of its partition alone.
"""

import logging
from collections.abc import Callable

from log.batch import CorruptBatch
from log.disk import Disk, DiskFault
from log.ids import TopicPartition
from service.broker.flusher import Flusher

logger = logging.getLogger("oncelog.disk")


class LogFolder:
    def __init__(self, name: str, disk: Disk, on_failure: Callable[["LogFolder"], None]) -> None:
        self.name = name
        self.disk = disk
        self.flusher = Flusher(self.fail)
        self.failed: DiskFault | None = None
        self._on_failure = on_failure

    def fail(self, fault: DiskFault) -> None:
        if self.failed is None:
            self.failed = fault
            logger.critical(
                "log folder %s is out of service: %s; nothing is appended to it until a restart", self.name, fault
            )
            self._on_failure(self)

    def blame(self, error: DiskFault | CorruptBatch, topic_partition: TopicPartition) -> None:
        """Work on a partition ended so: find out, and say, whether the disk has failed or its files are not right."""
        if self.disk.fault is not None:
            self.fail(self.disk.fault)
        else:
            logger.error("%s in %s: %s", topic_partition, self.name, error)
