"""An actor that lets a log begin in the middle of a transaction, and looks whether readers see what is left of it."""

from __future__ import annotations

import asyncio

from log.ids import TopicPartition
from tests.sim.history import NEVER, Outcome, Write
from tests.sim.plan import PASSING
from tests.sim.transactions import fetch_committed
from tests.sim.workload import Trimmer

WHERE = TopicPartition(PASSING, 0)
NEWEST = 50
"""Among so many writes and transactions it looks for one that is open: others are older."""


class Shortener(Trimmer):
    """What is left of a transaction stays as undecided as it was: nobody sees it before it is committed."""

    async def turn(self) -> None:
        await asyncio.sleep(0.3 * self.chance.random())
        write = self._undecided()
        if write is None:
            return
        start = write.base_offset + self.chance.randrange(1, len(write.records) + 1)
        await self.delete(WHERE, start)
        for _ in range(self.chance.choice((1, 5))):
            await fetch_committed(self, WHERE, start)
            await asyncio.sleep(0.1 * self.chance.random())

    def _undecided(self) -> Write | None:
        """The newest batch there of a transaction that its owner has not ended."""
        ongoing = {-txn.number for txn in self.history.transactions[-NEWEST:] if txn.end_invoked == NEVER}
        for write in reversed(self.history.writes[-NEWEST:]):
            if write.partition == WHERE and write.outcome is Outcome.OK and write.connection in ongoing:
                return write
        return None
