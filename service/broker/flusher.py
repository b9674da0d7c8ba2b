"""Makes appended data durable, folder by folder: one fsync serves all that wait for the partition.

A partition asks with `request`. While its fsync runs, further requests gather for the next fsync. A failed fsync is
final: the kernel may have marked the pages clean although they never reached the disk, so a second fsync could succeed
falsely. The folder is then reported as failed, and nothing in it is acknowledged any more. The same happens when
flushing ends with an unexpected error. A flush that could not begin, because there was no file descriptor or no room
for the files beside the batches, is tried again a little later.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import Protocol

from log.disk import DiskFault
from log.tally import Histogram

WORKERS = 32
"""How many partitions are flushed at the same time: more than the disk has threads for it, so that a thread that has
done one fsync finds the next.
"""
AGAIN_S = 0.1


class Flushable(Protocol):
    async def flush(self) -> None:
        """Make durable what was appended before the call, and tell those who wait for it."""
        ...


class Flusher:
    def __init__(self, on_fault: Callable[[DiskFault], None]) -> None:
        self._wanted: set[Flushable] = set()
        self._flushing: set[Flushable] = set()
        self._queue: asyncio.Queue[Flushable] = asyncio.Queue()
        """Those that are wanted and not being flushed. It wakes one worker for each."""
        self._on_fault = on_fault
        self.seconds = Histogram()
        """The duration of each successful flush."""

    def request(self, partition: Flushable) -> None:
        if partition not in self._wanted:
            self._wanted.add(partition)
            if partition not in self._flushing:
                self._queue.put_nowait(partition)

    async def run(self) -> None:
        """One worker. Several run side by side, but only one at a time flushes a given partition."""
        while True:
            partition = await self._queue.get()
            self._wanted.discard(partition)
            self._flushing.add(partition)
            began_s = asyncio.get_running_loop().time()
            try:
                await partition.flush()
                self.seconds.add(asyncio.get_running_loop().time() - began_s)
            except DiskFault as fault:
                self._on_fault(fault)
                if not fault.passing:
                    return
                asyncio.get_running_loop().call_later(AGAIN_S, self.request, partition)
            except Exception as bug:
                # Without this, those who wait for the partition would wait for ever; and data that is not flushed must
                # not be acknowledged.
                self._on_fault(DiskFault(errno.EIO, f"flushing ended with {bug!r}"))
                raise
            self._flushing.discard(partition)
            if partition in self._wanted:
                self._queue.put_nowait(partition)
