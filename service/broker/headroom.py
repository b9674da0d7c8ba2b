"""Whether a data folder has room for what producers send, and the reserve that is kept back for everything else.

A full disk is not a broken disk. Everything that was written can be read. Much must go on that needs a little room:
decisions of coordinators, markers, committed offsets, the metadata, and the snapshots without which no segment may be
removed. So a part of the disk is kept back as a file that nobody reads.

What always holds:
 - Producers are refused while the free space, without the reserve, is smaller than the reserve. They are slowed down
   before that. The error makes them send again later, so they need no help from an operator.
 - The reserve is given up at the first write that finds no room, or when a look at the disk finds almost none. It is
   set aside again before producers are served again.
 - One line of the log says when service to producers ends, and one line when it goes on.

The file system is asked once a second. In between, the bytes that producers append are subtracted.
"""

import asyncio
import logging
import sys
from typing import Final

from log.disk import Disk, DiskFault
from service.turns import breathe

logger = logging.getLogger("oncelog.disk")

RESERVE: Final = ".reserve"
LOOK_S: Final = 1.0
PART_OF_DISK: Final = 16
"""The reserve is at most this fraction of the disk. The same amount must be free besides, so producers lose an eighth
of the disk.
"""
PROBE_BYTES: Final = 1 << 20
"""Without a reserve, a full disk counts as having room again when this many bytes can be written."""
CHUNK_BYTES: Final = 1 << 20
LONGEST_DELAY_S: Final = 0.5
"""The longest time by which an answer to a producer is delayed, reached just before producers are refused."""


class Headroom:
    def __init__(self, name: str, disk: Disk, wanted_bytes: int) -> None:
        self.is_short = False
        """Whether producers are refused, because the folder has too little room."""
        self.delay_s = 0.0
        """How long the answers to producers are delayed now."""
        self._name = name
        self._disk = disk
        self._wanted_bytes = wanted_bytes
        self._reserve_bytes = 0
        self._is_kept = False
        self._left_bytes = sys.maxsize

    @property
    def kept_for_producers(self) -> int:
        """How many bytes compaction and the like must leave free, so that producers go on being served. It is 0 while
        producers are refused: work that makes room may then use all there is.
        """
        return 0 if self.is_short else self._enough

    @property
    def _enough(self) -> int:
        """More than the minimum, so that service does not end again with the next batch."""
        return self._reserve_bytes + self._reserve_bytes // 4

    async def begin(self) -> None:
        """Set the reserve aside if there is room for it. Must be done before the first append."""
        try:
            self._reserve_bytes = min(self._wanted_bytes, self._disk.space().total_bytes // PART_OF_DISK)
            if self._disk.exists(RESERVE):
                file = self._disk.open(RESERVE)
                self._is_kept = file.size == self._reserve_bytes > 0
                file.close()
                if not self._is_kept:
                    self._disk.unlink(RESERVE)  # it has another size than is wanted now
        except DiskFault as fault:
            logger.error("the reserve in %s can't be looked at: %s", self._name, fault)
        self.is_short = self._reserve_bytes > 0 and not await self._has_room_again()
        if self.is_short:
            self._say_short()

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        try:
            free_bytes = self._disk.space().free_bytes
        except DiskFault:
            return  # the free space is unknown; if there is none, the next write will fail and tell
        if self.is_short:
            if free_bytes < self._reserve_bytes // 4:
                self._give_up()
            elif await self._has_room_again():
                self.is_short = False
                logger.warning("log folder %s has room again: producers are served", self._name)
            return
        self._reckon(free_bytes)
        if self._left_bytes < 0:
            self._refuse()

    def took(self, size_bytes: int) -> None:
        """A producer's batch was appended."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            self._refuse()

    def run_out(self) -> None:
        """A write found no room. The reserve is given up, so that another attempt finds room."""
        self._refuse()
        self._give_up()

    def _reckon(self, free_bytes: int) -> None:
        reserve = self._reserve_bytes
        self._left_bytes = free_bytes - reserve
        nearness = 1 - self._left_bytes / reserve if reserve else 0.0
        self.delay_s = LONGEST_DELAY_S * min(max(nearness, 0.0), 1.0)

    def _refuse(self) -> None:
        if not self.is_short:
            self.is_short, self.delay_s, self._left_bytes = True, 0.0, sys.maxsize
            self._say_short()

    def _say_short(self) -> None:
        logger.error(
            "log folder %s is full: producers are refused until there is room; what was written can be read, and what"
            " makes room goes on",
            self._name,
        )

    def _give_up(self) -> None:
        if self._is_kept:
            self._is_kept = False
            try:
                self._disk.unlink(RESERVE)
            except DiskFault as fault:
                logger.error("the reserve in %s can't be given up: %s", self._name, fault)

    async def _has_room_again(self) -> bool:
        reserve = self._reserve_bytes
        try:
            if not self._is_kept:
                wanted = reserve or PROBE_BYTES
                if self._disk.space().free_bytes < wanted + 2 * reserve or not await self._set_aside(wanted):
                    return False
                if not reserve:
                    self._give_up()
            free_bytes = self._disk.space().free_bytes
        except DiskFault:
            return False
        if free_bytes < self._enough:
            return False
        self._reckon(free_bytes)
        return True

    async def _set_aside(self, size_bytes: int) -> bool:
        """Write the reserve's file, and let other tasks run in between. Meanwhile the room may be needed, and the
        reserve be given up.
        """
        self._is_kept = True
        try:
            file = self._disk.open(RESERVE, create=True)
            try:
                while file.size < size_bytes and self._is_kept:
                    file.append((bytes(min(CHUNK_BYTES, size_bytes - file.size)),))
                    await breathe()
            finally:
                file.close()
        except DiskFault:
            self._give_up()
        return self._is_kept


def make_room_to_start(disk: Disk) -> None:
    """Give up the reserve if the disk is nearly full. The metadata store is opened first, and needs a little room."""
    if disk.exists(RESERVE) and disk.space().free_bytes < PROBE_BYTES:
        disk.unlink(RESERVE)
