"""An idempotent producer: no transactions, several batches under way, none twice."""

from __future__ import annotations

import asyncio

from idempotence.window import WINDOW_BATCHES
from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from tests.sim.transactions import AGAIN, TRIES, ExactlyOnce, Ownership, Refused, Sending
from tests.sim.workload import Clients, Unanswered

LAST_SEQUENCE = 2**31 - 1


class IdempotentWriter(ExactlyOnce):
    """Every value is sent until it is acknowledged, and must stand in the log once.

    Up to five batches are under way; after a doubt those without an acknowledgement are sent again in their order, as
    clients do. The first of them goes on where the acknowledged ones end, or stands in the log already: to be told
    that it is out of order would mean that the broker has forgotten something. Not so with the very first batch of a
    producer: a partition that doesn't know it takes whichever number comes, so that one goes alone.
    """

    def __init__(self, clients: Clients, name: str, *, rests: bool) -> None:
        super().__init__(clients, name)
        self._rests = rests  # one batch after the other, so slowly that everything is written down meanwhile
        self._owner: Ownership | None = None
        self._session = 0
        self._known_in: set[TopicPartition] = set()
        self._newest: dict[TopicPartition, list[Sending]] = {}  # acknowledged, as many as a broker remembers
        self._favourite: TopicPartition | None = None
        self._connection = 0

    async def turn(self) -> None:
        if self._owner is None:
            # Nobody knows the new producer yet, so it may begin with any number: soon before the last one, for example.
            first = self.chance.choice((0, LAST_SEQUENCE - 5))
            self._owner = await self.initialize(None, 60_000)
            self._owner.first_sequence = first
            self._session = -self.clients.world.identity()
            self._known_in.clear()
            self._newest.clear()
            self._favourite = min((self._some_partition() for _ in range(3)), key=self._segment_entries)
        elif self.line.number != self._connection and self.clients.plan.brokers == 1:
            self._connection = self.line.number
            await self._repeat()
        assert self._favourite is not None
        if self._rests:
            await asyncio.sleep(self.chance.random())
        partition = self._favourite if self._rests or self.chance.random() < 0.7 else self._some_partition()
        version = self.chance.choice((7, 9, 11, 12, 13))
        left = sent = [
            self.prepare(
                self._owner,
                partition,
                self.values(self.chance.randrange(1, 4), self.name),
                transactional_id=None,
                version=version,
                order=self._session,
            )
            for _ in range(self.chance.choice((1, 1, 3, 5)) if partition in self._known_in and not self._rests else 1)
        ]
        try:
            for _ in range(TRIES):
                left = await self._send_all(left)
                if not left:
                    self._known_in.add(partition)
                    self._newest[partition] = [*self._newest.get(partition, ()), *sent][-WINDOW_BATCHES:]
                    return
                await asyncio.sleep(0.3 * self.chance.random())
        except Refused as refused:
            self.clients.world.note("idempotent producer refused", self.name, str(refused))
        self._owner = None

    def _some_partition(self) -> TopicPartition:
        topics = self.history.topics
        return self.chance.choice([each for each in self.clients.busy_partitions() if not topics[each.topic].compacted])

    def _segment_entries(self, partition: TopicPartition) -> int:
        """How long its segments are, about."""
        [wanted] = [wanted for wanted in self.plan.topics if wanted.topic.name == partition.topic]
        return int(wanted.configs["segment.index.bytes"])

    async def _repeat(self) -> None:
        """What was acknowledged on a former connection is sent once more, as by a client that did not hear it: the
        answers are the same.
        """
        for partition, sendings in self._newest.items():
            for sending in sendings:
                response = await self.line.ask(sending.request, sending.version)
                [answer] = response.responses[0].partition_responses
                if answer.error_code in AGAIN or partition in self.history.rotten:
                    break
                if (answer.error_code, answer.base_offset) != (ErrorCode.NONE, sending.write.base_offset):
                    self.history.wrong.append(
                        f"{self.clients.now:.6f} {self.name} was acknowledged at {sending.write.base_offset} in"
                        f" {partition}, and asked again at {answer.base_offset} ({ErrorCode(answer.error_code).name})"
                    )

    async def _send_all(self, sendings: list[Sending]) -> list[Sending]:
        """One after the other, without waiting for answers; those that are not acknowledged."""
        try:
            await self.line.ready(sendings[0].request)
        except Unanswered:
            return sendings
        loop, asked = asyncio.get_running_loop(), []
        for sending in sendings:
            asked.append(loop.create_task(self._code(sending)))
            await asyncio.sleep(0)  # it leaves before the next one does
        codes = [await task for task in asked]
        left: list[Sending] = []
        for sending, code in zip(sendings, codes, strict=True):
            if code == ErrorCode.NONE:
                continue
            if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not left:
                self._forgotten(sending)
                raise Refused(code)
            if code is not None and code not in AGAIN and code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise Refused(code)
            left.append(sending)
        return left

    async def _code(self, sending: Sending) -> int | None:
        try:
            return await self.send(sending)
        except Unanswered:
            return None

    def _forgotten(self, sending: Sending) -> None:
        partition = sending.write.partition
        if partition not in self.history.rotten:
            self.history.wrong.append(
                f"{self.clients.now:.6f} {self.name} is out of order in {partition}, although all it sent before was"
                " acknowledged"
            )
