"""One folder of partitions on one disk: its flusher, and whether it is still in service.

A failed write or fsync takes the whole folder out of service, loudly and for good: nothing in it is acknowledged
or appended any more, its partitions
stop being led from here, and what can still be read is still read.
"""

import logging
from collections.abc import Callable

from log.disk import Disk, DiskFault
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
