"""An actor that commits, then begins to replace what it has committed, waits for long, and aborts."""

from __future__ import annotations

import asyncio
import contextlib

from log.ids import TopicPartition
from tests.sim.branches import Participant
from tests.sim.history import Outcome
from tests.sim.plan import LEDGER
from tests.sim.transactions import Ownership, Refused
from tests.sim.workload import Unanswered

WHERE = TopicPartition(LEDGER, 0)


class Waverer(Participant):
    """Every round has a key that no other actor uses. What was committed under it must stay for ever, however long the
    other transaction was open over it, and whatever the cleaner did meanwhile.
    """

    async def turn(self) -> None:
        await asyncio.sleep(self.chance.random())
        with contextlib.suppress(Refused, Unanswered):
            owner = await self.initialize(self.name, 20_000)
            key = b"%s:%d" % (self.name.encode(), self.clients.world.identity())
            owner = await self._transaction(owner, key, commits=True)
            await self._transaction(owner, key, commits=False)

    async def _transaction(self, owner: Ownership, key: bytes, *, commits: bool) -> Ownership:
        txn = self.begin(self.name, owner)
        await self.write_to(WHERE, key, self.name, owner, txn, -txn.number)
        if commits:
            txn.committed_asked, txn.outcome = True, Outcome.UNKNOWN
        else:
            await asyncio.sleep(self.chance.choice((0.5, 2.0, 4.0)))
        txn.end_invoked = self.clients.now
        owner = await self.end(self.name, owner, committed=commits)
        txn.completed = self.clients.now
        if commits:
            txn.outcome = Outcome.OK
        return owner
