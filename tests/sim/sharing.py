"""Consume, transform, produce in a group whose members have a transactional id each (KIP-447)."""

from __future__ import annotations

import asyncio

from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from service.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatRequestTopicPartitions
from tests.sim.history import Transaction
from tests.sim.plan import INPUT
from tests.sim.postman import Postman
from tests.sim.transactions import AGAIN, Ownership, Transactor
from tests.sim.workload import Clients

LEAVES = -1
REBALANCES_WITHIN_MS = 5000


class Sharer(Transactor):
    """Takes the input that its group gives it. Nobody else wants its transactional id, so nothing but the member's
    epoch, which goes with the offsets, keeps it from committing for a partition that is another member's by now: it
    hears of that only between its transactions, which may take long, and now and then it dies and comes back.
    """

    def __init__(self, clients: Clients, name: str, postman: Postman) -> None:
        super().__init__(clients, name, f"of-{name}", postman, transforms=True, patience=0.5)
        self.group = "sharers"
        self._assigned: list[TopicPartition] = []

    async def turn(self) -> None:
        if self._owner is None and self.chance.random() < 0.3:
            if self._member_id and self.chance.random() < 0.5:
                await self._ask_group(LEAVES)
            self._forget_the_group()
        await super().turn()

    def _forget_the_group(self) -> None:
        self._member_id, self._member_epoch = "", -1
        self._assigned = []
        self._positions = {}

    def _inputs(self) -> list[TopicPartition]:
        """Where it knows how far the group has come."""
        return [partition for partition in self._assigned if partition in self._positions]

    async def _one_transaction(self, owner: Ownership, *, commit: bool = False) -> bool:
        if not commit:
            await self._hear_of_the_group()
        return await super()._one_transaction(owner, commit=commit)

    async def _transform(self, owner: Ownership, txn: Transaction, added: dict[TopicPartition, None]) -> None:
        if self._inputs():
            await super()._transform(owner, txn, added)

    async def _send_offsets(self, owner: Ownership, partition: TopicPartition, offset: int) -> None:
        if self.chance.random() < 0.25:
            await asyncio.sleep(2.0 + 5 * self.chance.random())  # and is not in the group any more, perhaps
        await super()._send_offsets(owner, partition, offset)

    async def _hear_of_the_group(self) -> None:
        """No transaction of its own is open: it lets go of what it is to give up, and takes what it is given."""
        if not self._member_id:
            self._member_id, self._member_epoch = f"{self.name}-{self.clients.world.identity()}", 0
        code = await self._ask_group(self._member_epoch)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self._forget_the_group()
        elif code in AGAIN:
            await self.find_coordinator(self.group, 0, code)
        for partition in self._assigned:
            if partition not in self._positions:
                await self._resume(partition)

    async def _ask_group(self, epoch: int) -> int:
        """A heartbeat that tells everything; the error code."""
        topic_id = self.clients.topic_ids[INPUT]
        held = [partition.partition for partition in self._assigned] if epoch > 0 else []
        response = await self.line.ask(
            ConsumerGroupHeartbeatRequest(
                self.group,
                self._member_id,
                epoch,
                rebalance_timeout_ms=REBALANCES_WITHIN_MS,
                subscribed_topic_names=[INPUT],
                topic_partitions=[ConsumerGroupHeartbeatRequestTopicPartitions(topic_id, held)] if held else [],
            ),
            self.chance.choice((0, 1)),
        )
        self.clients.judge_error(response.error_code, f"a heartbeat in {self.group}")
        if response.error_code == ErrorCode.NONE and epoch != LEAVES:
            self._member_epoch = response.member_epoch
            if response.assignment is not None:
                indexes = [index for topic in response.assignment.topic_partitions for index in topic.partitions]
                self._assigned = [TopicPartition(INPUT, index) for index in indexes]
                self._positions = {each: at for each, at in self._positions.items() if each in self._assigned}
        return response.error_code
