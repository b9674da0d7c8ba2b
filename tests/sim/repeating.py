"""An actor that sends again, long after they were acknowledged, the batches that a broker must remember: the last five
of its producer in a partition. Compaction and retention have removed some of them meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib

from idempotence.window import WINDOW_BATCHES
from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from service.wire.messages import EndTxnRequest
from tests.sim.plan import OLD_MS, REPEATED
from tests.sim.transactions import AGAIN, TRIES, ExactlyOnce, Ownership, Refused, Sending
from tests.sim.workload import Clients, Unanswered

KEPT, SWEPT = WHERE = [TopicPartition(topic, 0) for topic in REPEATED]
NEWEST = 12
"""A version of Produce from which on the broker itself adds the partition to the transaction."""
TRANSACTIONAL_ID = "repeats"
SETTLED_AFTER = 30


class Repeater(ExactlyOnce):
    """The only actor that writes to the topics of `REPEATED`. One batch goes after the other: the broker has taken it
    when the next one leaves. So the last five that were acknowledged are those that it remembers, and a repeat of them
    is answered as the first time: as long as a producer is known, it is never written again, nor out of order. Records
    without a producer take the place of theirs, and the markers of transactions age and leave. One of the two logs
    begins with such batches alone, and retention removes them soon.
    """

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._owner: Ownership | None = None
        self._newest: dict[TopicPartition, list[Sending]] = {}

    async def turn(self) -> None:
        try:
            await self._repeat()
            if self._owner is None:
                self._owner = await self.initialize(None, 60_000)
                self._newest.clear()
                for partition in WHERE:
                    await self._write_window(self._owner, partition)
            elif self.chance.random() < 0.3:
                await self._write_window(self._owner, KEPT)
            for partition in WHERE:
                await self._transact(partition)
        except Refused as refused:
            self.clients.world.note("repeating producer refused", self.name, str(refused))
            self._owner = None
        except Unanswered:
            self._owner = None  # what it wrote last may come late
        for _ in range(self.chance.randrange(2, 5)):  # each of them closes a segment
            await asyncio.sleep(0.2 + 0.1 * self.chance.random())
            for partition in WHERE:
                await self._put(partition)
        await self._repeat()

    async def _write_window(self, owner: Ownership, partition: TopicPartition) -> None:
        for _ in range(WINDOW_BATCHES):
            await self._write(owner, partition)

    async def _write(self, owner: Ownership, partition: TopicPartition) -> None:
        sending = self._prepared(owner, partition, age_ms=OLD_MS if partition == SWEPT else 0)

        async def ask() -> int:
            return await self.send(sending)

        newest = self._newest.setdefault(partition, [])
        del newest[: -(WINDOW_BATCHES - 1)]  # answered or not, this one may take the place of the oldest
        try:
            await self.insist(f"a batch to {partition}", "", ask)
        except Refused as refused:
            if refused.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._accuse(partition, "is out of order, although all it sent before was acknowledged")
            raise
        newest.append(sending)

    async def _transact(self, partition: TopicPartition) -> None:
        """A short transaction, which may be aborted. Nothing is said of its outcome."""
        owner = await self.initialize(TRANSACTIONAL_ID, 3_000)
        sending = self._prepared(owner, partition, TRANSACTIONAL_ID)

        async def put() -> int:
            response = await self.line.ask(sending.request, sending.version)
            return int(response.responses[0].partition_responses[0].error_code)

        commits = self.chance.random() < 0.5

        async def end() -> int:
            request = EndTxnRequest(TRANSACTIONAL_ID, owner.producer_id, owner.epoch, commits)
            return int((await self.line.ask(request, 5)).error_code)

        try:
            await self.insist(f"a transaction in {partition}", TRANSACTIONAL_ID, put)
            await self.insist(f"the end of {TRANSACTIONAL_ID}", TRANSACTIONAL_ID, end)
        except (Refused, Unanswered) as error:  # the next one begins with an abort of this one
            self.clients.world.note("repeater's transaction", self.name, str(error))

    async def _put(self, partition: TopicPartition) -> None:
        sending = self._prepared(Ownership(-1, -1, first_sequence=-1), partition)
        with contextlib.suppress(Unanswered):
            await self.send(sending)

    def _prepared(
        self, owner: Ownership, partition: TopicPartition, transactional_id: str | None = None, age_ms: int = 0
    ) -> Sending:
        values = self.values(self.chance.randrange(1, 3), self.name)
        order = -self.clients.world.identity()
        return self.prepare(
            *(owner, partition, values),
            transactional_id=transactional_id,
            version=NEWEST,
            order=order,
            age_ms=age_ms,
        )

    async def _repeat(self) -> None:
        for partition, sendings in self._newest.items():
            for sending in self.chance.sample(sendings, len(sendings)):
                if not await self._again(partition, sending):
                    break

    async def _again(self, partition: TopicPartition, sending: Sending) -> bool:
        """Whether the repeat was answered at all."""
        try:
            response = await self.line.ask(sending.request, sending.version)
        except Unanswered:
            return False
        [answer] = response.responses[0].partition_responses
        if answer.error_code in AGAIN:
            return False
        if (answer.error_code, answer.base_offset) != (ErrorCode.NONE, sending.write.base_offset):
            known = f"was acknowledged at {sending.write.base_offset}"
            self._accuse(
                partition, f"{known}, and asked again at {answer.base_offset} ({ErrorCode(answer.error_code).name})"
            )
        return True

    def _accuse(self, partition: TopicPartition, of: str) -> None:
        if partition not in self.history.rotten and not self.history.clock_jumped:
            self.history.wrong.append(f"{self.clients.now:.6f} {self.name} in {partition} {of}")

    async def settle(self) -> None:
        for _ in range(SETTLED_AFTER):
            answered = [
                await self._again(partition, sending)
                for partition, sendings in self._newest.items()
                for sending in sendings
            ]
            if all(answered):
                break
            await asyncio.sleep(0.5)
        for _ in range(TRIES):
            try:
                await self.initialize(TRANSACTIONAL_ID, 3_000)
                return
            except (Refused, Unanswered):
                await asyncio.sleep(0.5)
