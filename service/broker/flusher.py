"""Makes what was appended durable: one fsync for all that wait, folder by folder.

A partition asks with `request`; while its fsync runs, further requests gather for the next. A failed
fsync is final: the pages may be marked
clean although they never reached the disk, so asking again would lie. The folder is reported lost and nothing in
it is acknowledged any more.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from log.disk import DiskFault

PARTITIONS_AT_ONCE = 4


class Flushable(Protocol):
    async def flush(self) -> None:
        """Make durable what was appended before the call, and tell whoever waits for it."""
        ...


class Flusher:
    def __init__(self, on_fault: Callable[[DiskFault], None]) -> None:
        self._wanted: dict[Flushable, None] = {}
        self._flushing: set[Flushable] = set()
        self._wake = asyncio.Event()
        self._on_fault = on_fault

    def request(self, partition: Flushable) -> None:
        self._wanted[partition] = None
        self._wake.set()

    async def run(self) -> None:
        """Side by side for several partitions, and one after the other for each."""
        async with asyncio.TaskGroup() as flushes:
            while True:
                await self._wake.wait()
                self._wake.clear()
                startable = (partition for partition in self._wanted if partition not in self._flushing)
                for partition in list(islice(startable, PARTITIONS_AT_ONCE - len(self._flushing))):
                    del self._wanted[partition]
                    self._flushing.add(partition)
                    flushes.create_task(self._flush(partition))

    async def _flush(self, partition: Flushable) -> None:
        try:
            await partition.flush()
        except DiskFault as fault:
            self._on_fault(fault)
            return  # and it counts as being flushed for ever: never again
        self._flushing.discard(partition)
        if self._wanted:
            self._wake.set()
