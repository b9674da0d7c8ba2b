"""An actor that moves a compacted topic between the folders of a broker, slowly, and deletes what is copied already."""

from __future__ import annotations

import asyncio

from log.ids import TopicPartition
from tests.sim.administration import FAST, Porter, folders_of
from tests.sim.history import Write
from tests.sim.plan import CARRIED
from tests.sim.workload import Clients, Writer

WHERE = TopicPartition(CARRIED, 0)
SLOW = 100
"""Bytes a second."""
SETS_OFF_S = 0.5


class Carrier(Writer):
    """The only actor that writes to `carried`, and the only one of its run that moves anything, so that no other move
    is in the way. A key is written, copied and deleted, and its deletion is compacted away, before more is copied.
    """

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._porter = Porter(clients, f"{name}'s porter")
        self._carried = 0

    async def turn(self) -> None:
        keys = [self._new_key() for _ in range(self.chance.choice((1, 5)))]
        for key in keys:
            await self._put(key, b"%s again" % key * self.chance.choice((1, 20)))
        await self._porter.move_at(SLOW)
        at = await folders_of(self.line, WHERE)
        await self._porter.ask(WHERE, next(folder for folder in self.plan.folders if folder not in at))
        await asyncio.sleep(SETS_OFF_S * self.chance.random())
        for key in keys:
            await self._put(key, None)
        for _ in range(self.chance.randrange(4, 12)):  # each second one closes a segment
            await asyncio.sleep(0.2)
            await self._put(self._new_key(), b"")
        await self._porter.move_at(FAST)
        await asyncio.sleep(1.5 * self.chance.random())

    def _new_key(self) -> bytes:
        self._carried += 1
        return b"carried %d" % self._carried

    async def _put(self, key: bytes, value: bytes | None) -> None:
        await self._send_plainly(Write(self.name, -1, WHERE, ((key, value),), -1, self.plan.held(-1), self.clients.now))

    async def settle(self) -> None:
        await self._porter.settle()
        await super().settle()
