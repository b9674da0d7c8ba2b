"""Large batches are laid beside the log before they enter it: to write 90 MB into the page cache takes a quarter of a
second, and an append is one step that nothing may come between.

A batch is written to a file of its own in the log's folder, in a thread, while the log is used as before. Its header is
left out: nobody knows yet which offset the batch will have, or whether it may enter at all. When that is decided, the
header is written, and the file becomes the log's next segment by a rename.

What always holds: before that the file is no part of the log. A crash leaves it under a name that the next recovery
removes. What a power cut leaves under the segment's name passes for a batch only if it has the header and all records.
So a batch that is refused, or that its writer gives up, has changed nothing.

The price: each large batch begins a segment, in which batches that are not large follow. So it costs files, and a
snapshot of the log's views, with all producers that the log knows. Below some size that costs more than is gained: a
producer of 2.2 MB batches lost a third of its throughput, and one of 8 MB batches won nearly half.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from log.batch import HEADER_BYTES, Buffer
from log.disk import TEMPORARY, DiskFault

if TYPE_CHECKING:
    from log.partition_log import PartitionLog

LARGE_BYTES = 4 << 20
"""A batch that is longer is laid beside the log first. The copy of so many bytes into fresh pages takes up to 15 ms."""
NO_HEADER = bytes(HEADER_BYTES)


def is_large(size_bytes: int) -> bool:
    return size_bytes > LARGE_BYTES


class LaidBatch:
    """The file of one batch. It is the caller's, who calls `fill`, and at last `discard`, also if the log has taken the
    batch.
    """

    __slots__ = ("_disk", "_file", "_log", "_name")

    def __init__(self, log: "PartitionLog") -> None:
        """`DiskFault`: there is no file."""
        log.make_folder()
        log.batches_laid += 1
        self._log, self._disk = log, log.disk
        self._name = f"{log.batches_laid:010}.laid{TEMPORARY}"
        self._disk.unlink(self.path)  # what an earlier process has left must not come back by a power cut
        self._file = self._disk.open(self.path, create=True, exclusive=True)
        self._file.pin()

    @property
    def path(self) -> str:
        return f"{self._log.folder}/{self._name}"

    def fill(self, batch: Buffer) -> None:
        """Write all but the header. This is for a thread: it takes long, and releases the interpreter."""
        self._file.reserve(len(batch))
        self._file.append((NO_HEADER, memoryview(batch)[HEADER_BYTES:]))

    def fits(self, log: "PartitionLog") -> bool:
        """Whether this log can take the file. It can't if it has moved to another folder since."""
        return log is self._log and log.disk is self._disk and not log.gone and self._disk.exists(self.path)

    def complete(self, batch: Buffer) -> None:
        """Write the header. Before this, no recovery could take the file for a segment."""
        assert len(batch) == self._file.size, "the file holds this batch"
        self._file.patch(0, batch[:HEADER_BYTES])

    def was_taken(self) -> None:
        """The file is a segment's now, which opens it under its new name."""
        self._name = ""

    def discard(self) -> None:
        with suppress(DiskFault):  # the disk remembers its faults, and the next recovery removes the file
            if self._name and not self._log.gone and self._disk.exists(self.path):
                self._disk.discard(self.path)
        self._file.close()
        self._file.unpin()
