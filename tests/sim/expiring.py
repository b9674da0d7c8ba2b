"""An actor that lets everything in a topic expire, and writes again at the moment when it is removed."""

from __future__ import annotations

import asyncio

from log.ids import TopicPartition, folder_of
from tests.sim.history import Outcome
from tests.sim.plan import BRIEF, BRIEF_SECONDS
from tests.sim.workload import Clients, Reader, Trimmer, Writer
from tests.sim.world import come_true

WHERE = TopicPartition(BRIEF, 0)


class Expirer(Writer):
    """The only actor that writes to `brief`. While everything in it is old, deletions of records keep its log busy. So
    a removal must wait, and meanwhile a new record is written. Where logs are busy anyhow, it is seen when one waits.
    """

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._reader = Reader(clients, f"{name}'s reader")
        self._trimmer = Trimmer(clients, f"{name}'s trimmer")

    def aside_ms(self) -> int:
        return 0

    async def turn(self) -> None:
        for _ in range(self.chance.choice((1, 10, 20))):
            await self._send_plainly(self._new_write(WHERE, acks=-1))
        await asyncio.sleep(BRIEF_SECONDS * (1 + 0.3 * self.chance.random()))
        if self.plan.busy_logs and await come_true(self._is_waited_for, within=3, every=0.02):
            await self._write_and_look()
            return
        end = self.clients.known_ends.get(WHERE, 0)
        deleting = asyncio.gather(
            *(self._trimmer.delete(WHERE, offset) for offset in range(max(0, end - 20), end)), return_exceptions=True
        )
        await asyncio.sleep(0.5 * self.chance.random())
        fresh = self._new_write(WHERE, acks=-1)
        await self._send_plainly(fresh)
        await deleting
        if fresh.outcome is Outcome.OK:
            await self._reader.read(WHERE, fresh.base_offset + len(fresh.records))

    def _is_waited_for(self) -> bool:
        return folder_of(WHERE) in self.clients.waited_for

    async def _write_and_look(self) -> None:
        """What is written now is there until it is old."""
        fresh = self._new_write(WHERE, acks=-1)
        await self._send_plainly(fresh)
        while fresh.outcome is Outcome.OK and self.clients.now < fresh.stamped + BRIEF_SECONDS:
            await self._reader.read(WHERE, fresh.base_offset + len(fresh.records))
            await asyncio.sleep(0.1)
