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
    Opened,
    Opening,
    must_open,
)
from service.ports import Env


class Opener:
    def __init__(self, env: Env) -> None:
        self._env = env
        self._row = asyncio.Lock()
        self._records_left = RECORDS_AT_ONCE
        self._bytes_left = BYTES_AT_ONCE
        self._is_new_turn_due = False

    def open_now(self, batch: memoryview, config: LogConfig, now_ms: int) -> Opened | None:
        """The result of the look; None if the batch is too large for the rest of this turn."""
        opening = _opening(batch, config, now_ms)
        if isinstance(opening, Opened):
            return opening
        count = opening.header.record_count
        if count > self._records_left or len(batch) > self._bytes_left:
            return None
        if not self._is_new_turn_due:
            self._is_new_turn_due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._records_left -= count
        try:
            opening.unpack(batch, self._bytes_left)
        except BadCompression:
            self._bytes_left = 0
            return None  # too large for the rest of this turn, or damaged: `open` finds out
        self._bytes_left -= opening.plain_bytes
        opening.judge(count)
        if opening.is_to_be_packed:
            opening.pack()
        return opening.opened

    def _begin_turn(self) -> None:
        self._is_new_turn_due = False
        self._records_left, self._bytes_left = RECORDS_AT_ONCE, BYTES_AT_ONCE

    async def open(self, batch: memoryview, config: LogConfig, now_ms: int) -> Opened:
        """The result of the look, for a batch of any size. The batch must not change meanwhile."""
        opening = _opening(batch, config, now_ms)
        if isinstance(opening, Opened):
            return opening
        async with self._row:
            try:
                await self._env.blocking(opening.unpack, batch)
            except BadCompression as error:
                opening.refuse_unpacking(error)
                return opening.opened
            for _ in range(0, opening.header.record_count, RECORDS_AT_ONCE):
                if opening.judge(RECORDS_AT_ONCE):
                    break
                await asyncio.sleep(0)
            if opening.is_to_be_packed:
                await self._env.blocking(opening.pack)
        return opening.opened


def _opening(batch: memoryview, config: LogConfig, now_ms: int) -> Opening | Opened:
    """An `Opening` if the records must be looked at. If the header is enough, there is nothing to look at; nor if the
    header is damaged, because the append refuses such a batch.
    """
    try:
        header = read_header(batch)
    except CorruptBatch:
        return Opened(config)
    return Opening(header, config, now_ms) if must_open(header, config, now_ms) else Opened(config)
