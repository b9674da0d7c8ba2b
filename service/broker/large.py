"""A client's batch that is laid beside its log before it is appended (`log/laying.py`): to write it takes longer than a
turn of the loop may.

What always holds: nothing is decided here. `Partition.append_from_client` judges the batch, asks for it to be laid, and
judges it again, with all that has changed meanwhile, in the step that appends it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from log.batch import CHECKED_FROM, BatchHeader, crc32c, pack_header
from log.config import LogConfig
from log.disk import DiskFault
from log.laying import LaidBatch
from log.partition_log import PartitionLog
from log.unbroken import unbroken
from service.broker.acceptance import Inspected, RefusedBatch, as_stored
from service.ports import Env
from service.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from service.broker.partition import Partition

LAY_FIRST = RefusedBatch(ErrorCode.NOT_ENOUGH_REPLICAS, "The batch must be laid beside the log first.")
"""This is for the caller, not for the client."""


async def laid_beside(env: Env, partition: "Partition", log: PartitionLog, batch: memoryview) -> LaidBatch | None:
    """The batch in a file beside the log; None if the log is gone, or has left the disk, which has failed. `DiskFault`:
    it can't be written.
    """
    if log.gone:  # a folder that was made again would be that of a topic of the same name
        return None
    folder = partition.folder
    try:
        laid = LaidBatch(log)
        try:
            await unbroken(env.blocking(laid.fill, batch))  # what is being written must not be taken away
        except BaseException:
            laid.discard()
            raise
    except DiskFault as fault:
        if partition.folder is folder:
            raise
        folder.blame(fault, partition.topic_partition)
        return None
    return laid


def checksum_of(batch: memoryview) -> int:
    return crc32c(batch[CHECKED_FROM:])


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be laid: the batch with this header, beside this log, as its settings want it."""

    log: PartitionLog
    config: LogConfig
    header: BatchHeader
    inspected: Inspected | None


class LargeBatch:
    """The caller calls `look`, then `lay` as often as is asked for, in the partition's turn, and at last `discard`."""

    __slots__ = (
        "_batch",
        "_config",
        "_env",
        "_laid_bytes",
        "checksum",
        "laid",
        "wanted",
    )

    def __init__(self, env: Env, batch: memoryview) -> None:
        self._env = env
        self._batch = batch
        self._config: LogConfig | None = None
        self.checksum = 0
        self.laid: LaidBatch | None = None
        self._laid_bytes = batch
        self.wanted: Wanted

    async def look(self) -> None:
        """Reckon the checksum."""
        self.checksum = await self._env.blocking(checksum_of, self._batch)

    def is_laid(self, log: PartitionLog) -> bool:
        """Whether it lies beside this log, in the form that the log's present settings ask for."""
        return self.laid is not None and self._config is log.config and self.laid.fits(log)

    async def lay(self, partition: "Partition") -> RefusedBatch | None:
        """Lay it as is wanted. Returns why that can't be done."""
        self.discard()
        wanted = self.wanted
        batch = self._batch
        if wanted.inspected is not None and wanted.inspected.records is not None:
            batch = memoryview(wanted.inspected.records)
        try:
            self.laid = await laid_beside(self._env, partition, wanted.log, batch)
        except DiskFault as fault:
            partition.folder.blame(fault, partition.topic_partition)
            return partition.send_again(partition.refused_for(fault), self._env.clock.wall_ms())
        self._laid_bytes, self._config = batch, wanted.config
        return None

    def as_laid(self, now_ms: int) -> tuple[memoryview, BatchHeader, int]:
        """The batch in the form in which it is laid, with its header, and the time of the append, if it has that."""
        wanted = self.wanted
        stored, append_time_ms = as_stored(wanted.header, wanted.inspected, wanted.config, now_ms)
        pack_header(self._laid_bytes, stored)
        return self._laid_bytes, stored, append_time_ms

    def discard(self) -> None:
        if self.laid is not None:
            self.laid.discard()
            self.laid = None
