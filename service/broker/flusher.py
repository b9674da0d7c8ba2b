"""Makes what was appended durable: one fsync for all that wait, folder by folder.

A partition asks with `request`; while one round of fsyncs runs, further requests gather for the next. A failed
fsync is final: the pages may be marked
clean although they never reached the disk, so asking again would lie. The folder is reported lost and nothing in
it is acknowledged any more.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from log.disk import DiskFault


class Flushable(Protocol):
    async def flush(self) -> None:
        """Make durable what was appended before the call, and tell whoever waits for it."""
        ...


class Flusher:
    def __init__(self, on_fault: Callable[[DiskFault], None]) -> None:
        self._wanted: dict[Flushable, None] = {}
        self._wake = asyncio.Event()
        self._on_fault = on_fault

    def request(self, partition: Flushable) -> None:
        if not self._wanted:
            self._wake.set()
        self._wanted[partition] = None

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            wanted, self._wanted = self._wanted, {}
            for partition in wanted:
                try:
                    await partition.flush()
                except DiskFault as fault:
                    self._on_fault(fault)
                    return
