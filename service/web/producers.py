"""The transactions that this broker runs for HTTP requests whose records must be written together or not at all.

What always holds: a transactional id serves one request at a time. Nothing of a request is visible unless its
transaction was committed, and its records become visible together. If a transaction did not end as planned, its id is
taken over again before the next use, which aborts what was left open.

What a former life of this broker left open may still be committed, by a request that is on its way to the coordinator.
No call has to wait for it here. It concerns only a client that repeats a request of that life, and so has an
Idempotency-Key. The key's record is committed on every in-sync replica before the commit is sent (`seal_all`); and the
broker that answers for the key waits until all that was open in the key's partition is decided (`idempotency.Memory`).
So a call waits for those ids that have a record beside its own key's, wherever they are coordinated, and for no others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from log.batch import NewRecord, build_batch, build_plain_batch
from log.ids import TopicPartition
from service.broker.internal_topics import GROUPS, TRANSACTIONS
from service.client.cluster import MOVED
from service.client.failures import ClientFailure
from service.client.transactions import ONGOING
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway, first_error
from service.web.problems import Problem, of_error
from service.web.sending import OutgoingBatch, batch_of, rounds, send_one_each
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
)

logger = logging.getLogger("oncelog.http")

TXN_TIMEOUT_MS = 30_000
PRODUCERS_MAX = 64
"""How many transactions that need the same brokers there are at a time. Those that need others have others."""
SILENT_S = 10.0
OWNED_WITHIN_S = 3.0
OWN_TRIES = 5
VISIBLE_WITHIN_S = 2.0
AGAIN = MOVED | {ErrorCode.CONCURRENT_TRANSACTIONS}
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def owned_by_another(transactional_id: str) -> Problem:
    return Problem("concurrent-transactions", f"{transactional_id!r} has a transaction open")


class Producer:
    """The owner of one transactional id."""

    def __init__(
        self,
        gateway: Gateway,
        transactional_id: str,
        timeout_ms: int = TXN_TIMEOUT_MS,
        *,
        ends_anywhere: bool = False,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.timeout_ms = timeout_ms
        self.sequences: dict[TopicPartition, int] = {}
        self._gateway = gateway
        self._ends_anywhere = ends_anywhere
        """The transaction may be over without this one's knowledge: it was aborted at another broker, or the answer to
        its end, or to its seal, was lost. What comes late must not get into it, and leaders can't tell: so the
        coordinator is asked before each attempt to write.
        """

    async def own(self, *, steals: bool = True) -> None:
        """Take the id over. What its last owner left open is aborted. Unless it `steals`, nothing ongoing is, and this
        broker must coordinate the id.
        """
        gateway, deadline = self._gateway, asyncio.get_running_loop().time() + TIMEOUT_S
        request = InitProducerIdRequest(self.transactional_id, self.timeout_ms)
        while True:
            if steals:
                answer = await gateway.ask_coordinator(TRANSACTIONS, self.transactional_id, request)
            else:
                answer = await gateway.take_over(request)
            if not answer.error_code:
                break
            if answer.error_code == ErrorCode.INVALID_TXN_STATE:
                raise owned_by_another(self.transactional_id)
            if answer.error_code not in AGAIN or asyncio.get_running_loop().time() > deadline:
                raise of_error(answer.error_code, f"transactional id {self.transactional_id!r}")
            await asyncio.sleep(PAUSE_S)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()

    def build(self, partition: TopicPartition, records: Sequence[NewRecord], codec: int = 0) -> OutgoingBatch:
        """A batch with the next sequence numbers of its partition."""
        numbers, first_ms = self._numbers(partition, len(records)), records[0][3]
        batch: bytes | bytearray
        if codec or any(headers or time_ms != first_ms for _, _, headers, time_ms in records):
            batch = build_batch(records, codec=codec, transactional=True, **numbers)
        else:
            batch = build_plain_batch([(key, value) for key, value, _, _ in records], first_ms, **numbers)
        return OutgoingBatch(partition, batch, len(records), numbered=True)

    async def build_any(self, partition: TopicPartition, records: Sequence[NewRecord]) -> OutgoingBatch:
        """The same. One record that is long is copied in several turns of the loop."""
        batch = await batch_of(records, transactional=True, **self._numbers(partition, len(records)))
        return OutgoingBatch(partition, batch, len(records), numbered=True)

    def _numbers(self, partition: TopicPartition, records: int) -> dict[str, Any]:
        """The next so many sequence numbers of the partition, and whose they are."""
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = (sequence + records) & 0x7FFFFFFF
        return {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "base_sequence": sequence,
        }

    async def write(self, batches: Sequence[OutgoingBatch], *, internal: bool = False) -> None:
        """Write batches of the open transaction. Batches of the same partition are written one after the other, because
        they have sequence numbers.
        """
        for together in rounds(batches):
            await send_one_each(
                self._gateway,
                together,
                transactional_id=self.transactional_id,
                internal=internal,
                refusal=self.refusal if self._ends_anywhere else None,
            )
            for each in together:
                if each.error:
                    raise each.problem()

    async def refusal(self) -> int:
        """Why the coordinator lets nothing more be written in the transaction; 0: it does. This broker asks, as leaders
        do, about a partition that is in no transaction, because the question needs one.
        """
        gateway = self._gateway
        home = gateway.home(TRANSACTIONS, self.transactional_id)
        topics = [AddPartitionsToTxnTopic(home.topic, [home.partition])]
        pair = self.producer_id, self.epoch
        question = AddPartitionsToTxnTransaction(self.transactional_id, *pair, verify_only=True, topics=topics)
        request = AddPartitionsToTxnRequest([question])
        try:
            node = await gateway.coordinator(TRANSACTIONS, self.transactional_id)
            answer = await gateway.ask(node, request, session=gateway.own_session, needs=gateway.needed_by([home]))
        except (Problem, ClientFailure):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = first_error(answer)
        return ErrorCode.NONE if code == ErrorCode.TRANSACTION_ABORTABLE else code

    async def commit_offsets(
        self,
        group: str,
        topics: list[TxnOffsetCommitRequestTopic],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
    ) -> None:
        request = TxnOffsetCommitRequest(
            *(self.transactional_id, group, self.producer_id, self.epoch),
            *(generation, member_id, instance_id, topics),
        )
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while True:
            codes = [code] if self._ends_anywhere and (code := await self.refusal()) else []
            if not codes:
                answer = await self._gateway.ask_coordinator(GROUPS, group, request)
                codes = [each.error_code for topic in answer.topics for each in topic.partitions if each.error_code]
            if not codes:
                return
            if codes[0] not in AGAIN or asyncio.get_running_loop().time() > deadline:
                raise of_error(codes[0], f"offsets of group {group!r}")
            await asyncio.sleep(PAUSE_S)

    async def end(self, *, commit: bool) -> None:
        """Commit or abort. Raises a problem whose outcome is `unknown` if no coordinator tells the decision."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)
        in_doubt = False
        while True:
            try:
                node = await self._gateway.coordinator(TRANSACTIONS, self.transactional_id)
                home = self._gateway.home(TRANSACTIONS, self.transactional_id)
                answer = await self._gateway.ask(node, request, needs=self._gateway.needed_by([home]))
            except Problem as nobody:
                if in_doubt:
                    raise Problem("outcome-unknown", nobody.detail, error=nobody.error, outcome="unknown") from None
                raise
            except ClientFailure as failure:
                code, what = int(ErrorCode.REQUEST_TIMED_OUT), failure.message
            else:
                code, what = answer.error_code, f"transactional id {self.transactional_id!r}"
                if not code:
                    self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                    self.sequences.clear()
                    return
            again = code in AGAIN or code == ErrorCode.REQUEST_TIMED_OUT
            in_doubt = in_doubt or again  # a coordinator that stops leading may have written the decision before
            if not again or asyncio.get_running_loop().time() > deadline:
                problem = of_error(code, what, writing=True)
                raise Problem("outcome-unknown", what, error=code, outcome="unknown") if in_doubt else problem
            await asyncio.sleep(PAUSE_S)

    async def until_visible(self) -> None:
        """Wait until readers see what was committed, but not for long: so a client that reads after it has written
        finds its records.
        """
        pause_s = 0.0005
        try:
            async with asyncio.timeout(VISIBLE_WITHIN_S):
                while await self.state() in ("PrepareCommit", "PrepareAbort"):
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, 0.02)
        except (Problem, ClientFailure, TimeoutError) as failure:
            # The transaction is committed all the same, and the answer must say so.
            logger.debug("%s is not seen to be visible yet: %s", self.transactional_id, failure)

    async def state(self) -> str:
        """The state of the id's transaction; empty if the coordinator does not know the id."""
        request = DescribeTransactionsRequest([self.transactional_id])
        answer = await self._gateway.ask_coordinator(TRANSACTIONS, self.transactional_id, request)
        (told,) = answer.transaction_states
        if told.error_code and told.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise of_error(told.error_code, f"transactional id {self.transactional_id!r}")
        return told.transaction_state


class ProducerPool:
    """The transactional ids of one broker. While there are as many transactions as may be of those that need the same
    brokers, a request waits.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._idle: list[Producer] = []
        self._silent: deque[Producer] = deque()
        """Those whose coordinator was asked in vain for long. While it hangs, others are taken."""
        self._made = 0
        self._recovered: set[int] = set()
        """The numbers that `recover` lends, when it has seen to their ids."""
        self._rooms: WeakValueDictionary[frozenset[int], asyncio.Semaphore] = WeakValueDictionary()

    def _id(self, number: int) -> str:
        return f"__http-{self._gateway.node_id}-{number}"

    async def recover(self) -> None:
        """Abort what a former life of this broker left open, so that readers and those who repeat a request need not
        wait until it times out. Each id is asked for by its name: a coordinator that can't answer holds up none of the
        others. That life numbered its ids as this one does, so there are hardly any behind many that nobody knows; and
        what is missed here, its coordinator aborts when its time is over.
        """
        first = 0
        while TRANSACTIONS.name in self._gateway.image.topics:
            numbers = range(max(first, self._made), first + PRODUCERS_MAX)
            self._recovered.update(numbers)
            if numbers and not any(await asyncio.gather(*map(self._recover, numbers))):
                break
            first += PRODUCERS_MAX

    async def _recover(self, number: int) -> bool:
        """Whether a former life is known to have used the id. Nobody has it until it is known what was left open under
        it: a task that took it over once more would fence its transaction.
        """
        producer, pause_s = Producer(self._gateway, self._id(number)), PAUSE_S
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        was_used = False
        while True:
            try:
                state = await producer.state()
                was_used = bool(state)
                if state == ONGOING:
                    await producer.own()
                self._idle.append(producer)
                return was_used
            except (Problem, ClientFailure) as failure:
                if asyncio.get_running_loop().time() > deadline:
                    logger.warning("what a former life left open can't be ended yet: %s", failure)
                    self._silent.append(producer)
                    return was_used
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 5.0)

    @asynccontextmanager
    async def transaction(self, needs: frozenset[int]) -> AsyncIterator[Producer]:
        """A transaction that is committed at the end, and aborted on any problem. `needs` are the brokers without which
        it can't be written.
        """
        loop = asyncio.get_running_loop()
        async with self._share_of(needs):
            producer, began_s = await self._owned(), loop.time()
            try:
                try:
                    yield producer
                except BaseException as failure:
                    is_aborted = await self._gateway.see_through(self._abort(producer))
                    if is_aborted and isinstance(failure, Problem) and failure.outcome == "unknown":
                        raise Problem("not-now", failure.detail, error=failure.error) from None
                    raise
                try:
                    await self._gateway.see_through(producer.end(commit=True))
                except BaseException:
                    producer.producer_id = -1
                    raise
                await producer.until_visible()
            except ClientFailure as failure:  # of anything but the commit: it will never be committed
                raise Problem("not-now", failure.message) from None
            except Problem as problem:
                if problem.error not in FENCED or problem.outcome != "none":
                    raise
                # No other producer has this id: it was idle, or its transaction open, for longer than may be.
                producer.producer_id = -1
                raise Problem("not-now", f"the transaction was ended by its coordinator: {problem.detail}") from None
            finally:
                is_silent = producer.producer_id < 0 and loop.time() - began_s > SILENT_S
                (self._silent if is_silent else self._idle).append(producer)

    @asynccontextmanager
    async def _share_of(self, needs: frozenset[int]) -> AsyncIterator[None]:
        room = self._rooms.setdefault(needs, asyncio.Semaphore(PRODUCERS_MAX))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await room.acquire()
        except TimeoutError:
            raise Problem("not-now", f"{PRODUCERS_MAX} transactions wait for the same brokers") from None
        try:
            yield
        finally:
            room.release()

    async def _abort(self, producer: Producer) -> bool:
        """Whether it is certain that nothing of the transaction will ever be visible."""
        try:
            await producer.end(commit=False)
        except (Problem, ClientFailure):
            # Nothing was written, or this is not known: taking the id over tells it.
            producer.producer_id = -1
            return False
        return True

    async def _owned(self) -> Producer:
        """A producer that owns its id. If the coordinator of one id does not let it, another id is tried, whose
        coordinator may be well.
        """
        why = Problem("not-now", "coordinators of transactions do not answer in time")
        for _ in range(OWN_TRIES):
            producer = self._take()
            try:
                if producer.producer_id < 0:
                    async with asyncio.timeout(OWNED_WITHIN_S):
                        await producer.own()
                return producer
            except Problem as problem:
                why = problem
            except ClientFailure as failure:
                why = Problem("not-now", failure.message)
            except TimeoutError:
                logger.debug("the coordinator of %s does not answer in time", producer.transactional_id)
            finally:
                if producer.producer_id < 0:
                    self._silent.append(producer)
        raise why

    def _take(self) -> Producer:
        if self._idle:
            return self._idle.pop()
        if len(self._silent) >= PRODUCERS_MAX:
            return self._silent.popleft()
        while self._made in self._recovered:
            self._made += 1
        number, self._made = self._made, self._made + 1
        return Producer(self._gateway, self._id(number))
