"""Looks at the records of batches before the batches are appended, where a topic asks for that, without blocking the
loop.

What always holds: one turn of the loop looks at no more than RECORDS_AT_ONCE records and BYTES_AT_ONCE uncompressed
bytes of those that came in it, and at no more than as many records of those that wait, over all connections together.
Small batches are looked at immediately, in the turn in which they came. The others wait in one of two rows. They are
unpacked and packed in a thread, one at a time of each row, so that the memory for unpacked bytes is bounded too; and
they are judged step by step.

A few kilobytes can hold millions of records, which take seconds. So what unpacks to much has a row of its own, and in
both rows a batch of few records overtakes one of many: a client that sends such batches makes others wait for no more
than the one that is looked at.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import Final

from log.batch import RECORD_BYTES_MIN, CorruptBatch, read_header
from log.compress import MAX_PLAIN_BYTES, BadCompression, UnpacksTooLarge
from log.config import LogConfig
from service.broker.acceptance import (
    BYTES_AT_ONCE,
    RECORDS_AT_ONCE,
    SLOW_LEVELS,
    BatchInspection,
    Inspected,
    must_inspect,
)
from service.ports import Env
from service.turns import breathe

LITTLE_BYTES: Final = 2 << 20
"""What unpacks to more than this waits apart. A full batch of 1 MB, as clients send it, does so only if it is packed
very well. The largest number of records in so few bytes takes 0.3 s.
"""
STEP: Final = RECORDS_AT_ONCE // 2
"""How many records of each row are looked at in one turn."""


class Inspector:
    def __init__(self, env: Env) -> None:
        self._env = env
        self._little, self._large = Row(), Row()
        self._records_left = RECORDS_AT_ONCE
        self._bytes_left = BYTES_AT_ONCE
        self._is_new_turn_due = False

    def inspect_now(self, batch: memoryview, config: LogConfig, now_ms: int) -> Inspected | None:
        """The result of the look; None if the batch is too large for the rest of this turn."""
        inspection = _inspection_of(batch, config, now_ms)
        if isinstance(inspection, Inspected):
            return inspection
        count = inspection.header.record_count
        weight = SLOW_LEVELS if inspection.may_pack_slowly else 1
        if count > self._records_left or len(batch) * weight > self._bytes_left:
            return None
        if not self._is_new_turn_due:
            self._is_new_turn_due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._records_left -= count
        try:
            inspection.unpack(batch, self._bytes_left // weight)
        except BadCompression:
            self._bytes_left = 0
            return None  # too large for the rest of this turn, or damaged: `inspect` finds out
        self._bytes_left -= inspection.plain_bytes * weight
        inspection.judge(count)
        if inspection.is_to_be_packed:
            inspection.pack()
        return inspection.result

    def _begin_turn(self) -> None:
        self._is_new_turn_due = False
        self._records_left, self._bytes_left = RECORDS_AT_ONCE, BYTES_AT_ONCE

    async def inspect(self, batch: memoryview, config: LogConfig, now_ms: int) -> Inspected:
        """The result of the look, for a batch of any size. The batch must not change meanwhile."""
        inspection = _inspection_of(batch, config, now_ms)
        if isinstance(inspection, Inspected):
            return inspection
        count = inspection.header.record_count
        cost = count + len(batch) if inspection.may_pack_slowly else count
        is_little = max(len(batch), count * RECORD_BYTES_MIN) <= LITTLE_BYTES
        if is_little:
            async with self._little.turn(cost):
                is_little = await self._look(inspection, batch, LITTLE_BYTES)
        if not is_little:
            async with self._large.turn(cost):
                await self._look(inspection, batch, MAX_PLAIN_BYTES)
        return inspection.result

    async def _look(self, inspection: BatchInspection, batch: memoryview, limit_bytes: int) -> bool:
        """Unpack, judge and pack. Returns False if it unpacks to more than the limit, and could be tried with another
        one.
        """
        try:
            await self._env.blocking(inspection.unpack, batch, limit_bytes)
        except BadCompression as error:
            if isinstance(error, UnpacksTooLarge) and limit_bytes < MAX_PLAIN_BYTES:
                return False
            inspection.refuse_unpacking(error)
            return True
        for _ in range(0, inspection.header.record_count, STEP):
            if inspection.judge(STEP):
                break
            await breathe()
        if inspection.is_to_be_packed:
            await self._env.blocking(inspection.pack)
        return True


class Row:
    """Lets in one at a time. Of those that wait, it is the one with the least cost; but nobody waits for ever: with
    what was let in meanwhile, the costs of those that come later grow.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._came = 0
        self._passed_cost = 0
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, cost: int) -> AsyncIterator[None]:
        if self._is_taken:
            await self._wait(cost)
        self._is_taken = True
        try:
            yield
        finally:
            self._passed_cost += cost
            self._let_next_in()

    async def _wait(self, cost: int) -> None:
        let_in = asyncio.get_running_loop().create_future()
        self._came += 1
        heappush(self._waiting, (self._passed_cost + cost, self._came, let_in))
        try:
            await let_in
        except asyncio.CancelledError:
            if let_in.done() and not let_in.cancelled():
                self._let_next_in()
            raise

    def _let_next_in(self) -> None:
        while self._waiting:
            _, _, let_in = heappop(self._waiting)
            if not let_in.done():
                let_in.set_result(None)
                return
        self._is_taken = False


def _inspection_of(batch: memoryview, config: LogConfig, now_ms: int) -> BatchInspection | Inspected:
    """A `BatchInspection` if the records must be looked at. They need not be if the header is enough, or if it is
    damaged: the append refuses such a batch.
    """
    try:
        header = read_header(batch)
    except CorruptBatch:
        return Inspected(config)
    may_hide = config.may_hide_newest(header.base_timestamp, header.max_timestamp, now_ms)
    if may_hide or must_inspect(header, config, now_ms):
        return BatchInspection(header, config, now_ms)
    return Inspected(config)
