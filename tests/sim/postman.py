"""Requests that arrive late, or a second time, on another connection: in the next transaction, say.

This is what tore transactions in Jepsen's reports on Kafka (KAFKA-17754), and what left transactions open for ever
before brokers asked the coordinator about writes (KIP-890).
"""

from __future__ import annotations

import asyncio
from typing import Any

from service.wire.base import Request
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    EndTxnResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.sim.workload import Actor, Clients

COPIES = 0.1  # of the requests that pass by are kept, and delivered again
MOST_KEPT = 20


class Postman(Actor):
    """Keeps requests of other actors, and delivers them later. Nothing hears the answers."""

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._bag: list[tuple[Request[Any], int]] = []

    def see(self, request: Request[Any], version: int) -> None:
        """An actor sends this request."""
        if self.chance.random() < COPIES and len(self._bag) < MOST_KEPT:
            self.keep(request, version)

    def keep(self, request: Request[Any], version: int) -> None:
        """Only the postman delivers this request."""
        self._bag.append((request, version))

    async def turn(self) -> None:
        await asyncio.sleep(0.3 * self.chance.random())
        if not self._bag:
            return
        request, version = self._bag.pop(self.chance.randrange(len(self._bag)))
        self.clients.world.note("delivered late", type(request).__name__)
        answer = await self.line.ask(request, version)
        if isinstance(answer, EndTxnResponse):
            self.clients.judge_error(answer.error_code, "an EndTxn that was delivered late")


class Ghost(Actor):
    """A coordinator that was deposed and does not know it: it writes markers in an epoch that is over."""

    async def turn(self) -> None:
        await asyncio.sleep(self.chance.random())
        partitions = [each for each in self.clients.partitions() if self.history.topics[each.topic].transactional]
        name, index = self.chance.choice(partitions)
        asked = DescribeProducersRequest([DescribeProducersRequestTopicRequest(name, [index])])
        [described] = (await self.line.ask(asked)).topics[0].partitions
        open_ones = [each for each in described.active_producers if each.current_txn_start_offset >= 0]
        haunted = [each for each in open_ones if each.coordinator_epoch > 0]
        if not haunted:
            return
        producer = self.chance.choice(haunted)
        marker = WritableTxnMarker(
            producer.producer_id,
            producer.producer_epoch,
            self.chance.random() < 0.5,
            [WritableTxnMarkerTopic(name, [index])],
            producer.coordinator_epoch - 1,
        )
        [answer] = (await self.line.ask(WriteTxnMarkersRequest([marker]), 1)).markers[0].topics[0].partitions
        if answer.error_code == ErrorCode.NONE:
            self.history.wrong.append(f"{self.clients.now:.6f} {name}-{index} took a marker of a deposed coordinator")
