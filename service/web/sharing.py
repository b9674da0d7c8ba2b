"""Requests with an Idempotency-Key that share a transaction.

A transaction costs some records and markers, however little is written in it. So requests that come together, and those
that come while others are being written, are written in one transaction, each with the record of its key.

What always holds: a shared transaction is all of its requests or nothing. If one of them is refused, nothing of the
others is there either, and each is written alone. While it is not known what became of the transaction, nothing of it
is written again. A request that was handed over is seen through, also if its client is gone. Only requests that need
the same brokers share, and there are so many such transactions at most: a broker that is slow or away holds up those
alone that need it. A shared transaction is written in this broker's name, a request that is alone in its client's. Once
not every client may write everything, that is to be asked before a request may share (`Sharing.takes`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from log.batch import NewRecord
from log.ids import TopicPartition
from service.broker.session import Session
from service.client.failures import ClientFailure
from service.cluster.image import NO_LEADER
from service.web.gateway import ASKING, TIMEOUT_S, Gateway
from service.web.problems import Problem
from service.web.producing import (
    BatchOut,
    PlacedRecords,
    Seal,
    TransactionOut,
    answer_of,
    batch_bytes,
    cut,
    offsets_of,
    seal_all,
    write_alone,
)
from service.web.sending import bytes_of

RECORDS_MAX, BYTES_MAX = 20, 8 << 10
"""Larger requests are written alone: they would hold up others more than they spare them."""
MOST, GROUP_BYTES = 60, 64 << 10
"""How many requests share a transaction at most, and of how many bytes (`bytes_of` counts records and headers, too):
with their answers, 7 ms of a turn of the loop.
"""
GROUPS_MAX = 8
"""How many transactions of the same brokers are under way at most. If these brokers hang, the rest waits here."""
GATHERED_S = 0.01
"""How long requests wait at most for the transaction before theirs."""
JOINED_S = 0.001
"""How long those that have waited wait on for those that were just answered, or until as many have come: a client that
is answered sends its next request. Else two halves of the clients take turns, and each transaction is shared by half
as many.
"""


@dataclass(slots=True, eq=False)
class Wish:
    """A request that shares a transaction, and its answer."""

    placed: PlacedRecords
    seal: Seal
    answer: asyncio.Future[BatchOut]
    size_bytes: int
    came_s: float
    asker: Session

    def is_old(self, now_s: float) -> bool:
        return self.came_s < now_s - TIMEOUT_S

    def refuse(self, why: BaseException) -> None:
        self.seal.over(why)
        if not self.answer.done():
            self.answer.set_exception(why if isinstance(why, Exception) else _gone())
            self.answer.exception()  # if its client is gone, nobody else asks

    def grant(self, answer: BatchOut) -> None:
        self.seal.over(None)
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass(slots=True)
class Queue:
    """The requests that need the same brokers."""

    wishes: deque[Wish] = field(default_factory=deque)
    start: asyncio.Handle | None = None
    """When those that wait are begun with at the latest."""
    coming: int = MOST
    """Once so many wait, they are begun with."""
    under_way: int = 0

    def set_no_start(self) -> None:
        if self.start is not None:
            self.start.cancel()
            self.start = None

    def take(self, now_s: float) -> list[Wish]:
        """The next ones that share a transaction. A request that has waited for too long is told so."""
        taken: list[Wish] = []
        size_bytes = 0
        while self.wishes and len(taken) < MOST:
            wish = self.wishes[0]
            if wish.is_old(now_s):
                self.wishes.popleft().refuse(_too_late())
                continue
            size_bytes += wish.size_bytes
            if taken and size_bytes > GROUP_BYTES:
                break
            taken.append(self.wishes.popleft())
        return taken


class Sharing:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._queues: dict[frozenset[int], Queue] = {}
        self._writing: dict[asyncio.Task[None], None] = {}
        self._is_over = False

    def takes(self, placed: PlacedRecords, seal: Seal) -> bool:
        """Whether the request may share. It would hold up others if it is large, or has to wait for a leader or for
        replicas. If it is refused alone, because its records don't fit into a batch, it is refused in company, too.
        """
        if len(placed.order) > RECORDS_MAX or not all(map(self._is_well, (*placed.by_partition, seal.where))):
            return False
        sizes = {partition: sum(map(bytes_of, records)) for partition, records in placed.by_partition.items()}
        return sum(sizes.values()) <= BYTES_MAX and all(
            size <= batch_bytes(self._gateway, partition.topic) for partition, size in sizes.items()
        )

    def _is_well(self, partition: TopicPartition) -> bool:
        gateway = self._gateway
        topic = gateway.image.topics.get(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or state is None or state.leader == NO_LEADER:
            return False
        wanted = int(topic.config.get("min.insync.replicas", gateway.config.min_insync_replicas))
        return len(state.isr) >= min(wanted, len(state.replicas))

    async def write(self, placed: PlacedRecords, seal: Seal) -> BatchOut:
        """Write all of it, or raise a problem and write nothing. From here on the seal is told what becomes of it."""
        return await self.add(placed, seal, ASKING.get(self._gateway.own_session))

    def add(self, placed: PlacedRecords, seal: Seal, asker: Session) -> asyncio.Future[BatchOut]:
        """What `write` returns or raises. If nobody waits for it any more, the request is seen through all the same."""
        gateway, loop = self._gateway, asyncio.get_running_loop()
        needs = gateway.needed_by([*placed.by_partition, seal.where])
        size_bytes = sum(bytes_of(record) for records in placed.by_partition.values() for record in records)
        wish = Wish(placed, seal, loop.create_future(), size_bytes, loop.time(), asker)
        queue = self._queues.setdefault(needs, Queue())
        queue.wishes.append(wish)
        seal.is_shared = True
        if queue.start is None:
            if queue.under_way:
                queue.start = loop.call_later(GATHERED_S, self._begin, needs)
            else:
                queue.start = loop.call_soon(self._begin, needs)
        elif len(queue.wishes) == queue.coming:
            queue.start.cancel()
            queue.start = loop.call_soon(self._begin, needs)
        return wish.answer

    def _begin(self, needs: frozenset[int]) -> None:
        loop, queue = asyncio.get_running_loop(), self._queues[needs]
        queue.set_no_start()
        queue.coming = MOST
        if queue.under_way >= GROUPS_MAX:
            return  # the next one that ends begins with those that wait
        if self._is_over:
            while queue.wishes:
                queue.wishes.popleft().refuse(Problem("not-now", "the broker stops"))
        if wishes := queue.take(loop.time()):
            queue.under_way += 1
            self._spawn("share a transaction", self._see_through(needs, wishes))
        if queue.wishes:  # more than one turn of the loop takes
            queue.start = loop.call_soon(self._begin, needs)
        elif not queue.under_way:
            del self._queues[needs]

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._gateway.env.tasks.spawn(name, work)
        self._writing[task] = None
        task.add_done_callback(self._writing.pop)

    def end(self) -> list[asyncio.Task[None]]:
        """The server stops: begin nothing any more. Returns what is being written; who cancels it waits for its end."""
        self._is_over = True
        return list(self._writing)

    async def _see_through(self, needs: frozenset[int], wishes: Sequence[Wish]) -> None:
        queue = self._queues[needs]
        ASKING.set(self._gateway.own_session)
        try:
            if len(wishes) == 1:
                await self._write_alone(wishes[0])
            elif not await self._write_together(needs, wishes):
                now_s = asyncio.get_running_loop().time()
                for wish in wishes:
                    if wish.is_old(now_s):
                        wish.refuse(_too_late())
                    else:
                        self._spawn("write a request alone", self._write_alone(wish))
        finally:
            queue.under_way -= 1
            queue.set_no_start()
            coming = len(queue.wishes) + len(wishes)
            if coming > 1 and len(queue.wishes) < MOST and not self._is_over:
                queue.coming = min(coming, MOST)
                queue.start = asyncio.get_running_loop().call_later(JOINED_S, self._begin, needs)
            else:
                self._begin(needs)

    async def _write_alone(self, wish: Wish) -> None:
        ASKING.set(wish.asker)
        try:
            answer = await write_alone(self._gateway, wish.placed, seal=wish.seal)
        except BaseException as failure:
            wish.refuse(failure)
            if not isinstance(failure, Problem | ClientFailure):
                raise
        else:
            wish.grant(answer)

    async def _write_together(self, needs: frozenset[int], wishes: Sequence[Wish]) -> bool:
        """Whether all have their answers. If not, it is certain that nothing was written."""
        try:
            answers = await self._transact(needs, wishes)
        except BaseException as failure:
            if isinstance(failure, ClientFailure) or (isinstance(failure, Problem) and failure.outcome == "none"):
                return False
            for wish in wishes:
                wish.refuse(failure)
            if not isinstance(failure, Problem):
                raise
        else:
            for wish, answer in zip(wishes, answers, strict=True):
                wish.grant(answer)
        return True

    async def _transact(self, needs: frozenset[int], wishes: Sequence[Wish]) -> list[BatchOut]:
        records: dict[TopicPartition, list[NewRecord]] = {}
        for wish in wishes:
            for partition, some in wish.placed.by_partition.items():
                records.setdefault(partition, []).extend(some)
        async with self._gateway.producers.transaction(needs) as producer:
            batches = [
                producer.build(partition, run)
                for partition, some in records.items()
                for run in cut(some, batch_bytes(self._gateway, partition.topic))
            ]
            await producer.write(batches)
            transaction = TransactionOut(producer.producer_id, producer.epoch)
            offsets = offsets_of(batches)
            answers = [await answer_of(wish.placed, offsets, transaction) for wish in wishes]
            await seal_all(
                self._gateway, producer, [(wish.seal, answer) for wish, answer in zip(wishes, answers, strict=True)]
            )
        return answers


def _too_late() -> Problem:
    return Problem("not-now", "the brokers that it needs do not answer")


def _gone() -> Problem:
    return Problem("not-now", "the broker stops", outcome="unknown")
