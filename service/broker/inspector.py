"""Looks at the records of batches before the batches are appended, where a topic asks for that, without blocking the
loop.

What always holds: one turn of the loop looks at no more than RECORDS_AT_ONCE records and BYTES_AT_ONCE uncompressed
bytes, over all connections together. Small batches are looked at immediately, in the turn in which they came. The
others wait in a queue. They are unpacked and packed in a thread, one at a time, so that the memory for unpacked bytes
is bounded too; and they are judged step by step.
"""

import asyncio

from log.batch import CorruptBatch, read_header
from log.compress import BadCompression
from log.config import LogConfig
from service.broker.acceptance import (
    BYTES_AT_ONCE,
    RECORDS_AT_ONCE,
    BatchInspection,
    Inspected,
    must_inspect,
)
from service.ports import Env


class Inspector:
    def __init__(self, env: Env) -> None:
        self._env = env
        self._row = asyncio.Lock()
        self._records_left = RECORDS_AT_ONCE
        self._bytes_left = BYTES_AT_ONCE
        self._is_new_turn_due = False

    def inspect_now(self, batch: memoryview, config: LogConfig, now_ms: int) -> Inspected | None:
        """The result of the look; None if the batch is too large for the rest of this turn."""
        inspection = _inspection_of(batch, config, now_ms)
        if isinstance(inspection, Inspected):
            return inspection
        count = inspection.header.record_count
        if count > self._records_left or len(batch) > self._bytes_left:
            return None
        if not self._is_new_turn_due:
            self._is_new_turn_due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._records_left -= count
        try:
            inspection.unpack(batch, self._bytes_left)
        except BadCompression:
            self._bytes_left = 0
            return None  # too large for the rest of this turn, or damaged: `inspect` finds out
        self._bytes_left -= inspection.plain_bytes
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
        async with self._row:
            try:
                await self._env.blocking(inspection.unpack, batch)
            except BadCompression as error:
                inspection.refuse_unpacking(error)
                return inspection.result
            for _ in range(0, inspection.header.record_count, RECORDS_AT_ONCE):
                if inspection.judge(RECORDS_AT_ONCE):
                    break
                await asyncio.sleep(0)
            if inspection.is_to_be_packed:
                await self._env.blocking(inspection.pack)
        return inspection.result


def _inspection_of(batch: memoryview, config: LogConfig, now_ms: int) -> BatchInspection | Inspected:
    """A `BatchInspection` if the records must be looked at. They need not be if the header is enough, or if it is
    damaged: the append refuses such a batch.
    """
    try:
        header = read_header(batch)
    except CorruptBatch:
        return Inspected(config)
    return BatchInspection(header, config, now_ms) if must_inspect(header, config, now_ms) else Inspected(config)
