"""Sends batches to the leaders of their partitions.

What always holds: a batch whose outcome has no error is committed on every in-sync replica. A batch with an error was
not written, unless `in_doubt` says that this is unknown. If a leader refuses a batch because it no longer leads, the
batch goes to the next leader. A batch that may have been written is sent again only if it has sequence numbers, by
which a leader recognises it. A batch without any gets some before it goes to another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from log.batch import NewRecord, build_batch, build_long_batch, set_producer
from log.copies import COPIED_AT_ONCE, joined_to_write
from log.ids import TopicPartition
from service.broker.acceptance import Inspected, RefusedBatch
from service.broker.partition import ACKS_ALL, Appended
from service.broker.partition_table import TopicPartitions
from service.broker.session import Session
from service.broker.writing import MAY_BE_WRITTEN, Write, WriteTerms, Writing
from service.client.cluster import MOVED
from service.client.failures import ClientFailure
from service.cluster.image import NO_LEADER
from service.turns import Turn, done_in_turns
from service.web.gateway import CLIENT_ID, PAUSE_S, TIMEOUT_S, Gateway, not_yet
from service.web.problems import Problem, of_error
from service.wire.error_codes import ErrorCode
from service.wire.messages import ConditionalBatch, ConditionalProduceRequest, InitProducerIdRequest

TERMS = WriteTerms(
    ACKS_ALL,
    int(TIMEOUT_S * 1000),
    None,
    adds_partitions=True,
    knows_abortable=True,
    knows_zstd=True,
    may_write_internal=False,
)
"""The batch attributes of a plain batch."""
REPLICAS_WITHIN_S = 3.0
NOWHERE = RefusedBatch(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
TOO_FEW = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Too few replicas are in sync, or a transaction's coordinator could not be asked."""
PASSING = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.CONCURRENT_TRANSACTIONS})
"""A leader that says nothing; the last transaction of the id, whose markers are being written."""


AROUND_BYTES = 40
"""The most bytes that a record without headers has in a batch beside its key and its value."""
LONG_BYTES = 256 << 10
"""A longer record is copied into its batch once, in several turns of the loop."""


@dataclass(slots=True)
class OutgoingBatch:
    """A batch for a partition, and later its outcome."""

    partition: TopicPartition
    batch: bytes | bytearray | memoryview
    """Where it is a view, nobody else has what is seen."""
    records: int
    expected_offset: int | None = None
    """The batch is appended only if the log ends here."""
    numbered: bool = False
    """The batch has sequence numbers: however often it is sent, it is written once."""
    error: int = ErrorCode.NONE
    message: str | None = None
    culprits: tuple[int, ...] = ()
    """The numbers of the records in the batch that are to blame for the error."""
    end_offset: int = -1
    """Where the log ends, if that is not where the batch expects it."""
    base_offset: int = -1
    append_time_ms: int = -1
    in_doubt: bool = False
    copy: memoryview | None = None
    """For the log of this broker, which changes what it is given; None: it is made when it is needed."""

    def refused(self, error: int, message: str | None = None, culprits: tuple[int, ...] = ()) -> None:
        self.error, self.message, self.culprits = error, message, culprits

    def written(self, base_offset: int, append_time_ms: int) -> None:
        self.refused(ErrorCode.NONE)
        self.base_offset, self.append_time_ms, self.in_doubt = base_offset, append_time_ms, False

    def problem(self) -> Problem:
        where = f"{self.partition.topic} partition {self.partition.partition}"
        if self.expected_offset is not None and self.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return Problem(
                "expected-offset-mismatch",
                f"{where}: {self.message}",
                topic=self.partition.topic,
                partition=self.partition.partition,
                expected_offset=self.expected_offset,
                next_offset=self.end_offset,
            )
        detail = f"{where}: {self.message}" if self.message else where
        hides_doubt = self.in_doubt and self.error not in MAY_BE_WRITTEN
        error = ErrorCode.REQUEST_TIMED_OUT if hides_doubt else self.error
        topic, index = self.partition
        return of_error(error, detail, writing=True, topic=topic, partition=index)


class ProducerIds:
    """Producer ids for batches that have no sequence numbers. Each id is lent to one sender at a time, so that its
    batches reach a partition one after the other.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._idle: list[Lent] = []

    async def borrow(self) -> Lent | ErrorCode:
        if self._idle:
            return self._idle.pop()
        request = InitProducerIdRequest(None, int(TIMEOUT_S * 1000))
        answer = await self._gateway.ask(self._gateway.node_id, request)
        if answer.error_code:
            return ErrorCode.LEADER_NOT_AVAILABLE  # for these batches both errors mean: not now
        return Lent(answer.producer_id, answer.producer_epoch)

    def give_back(self, lent: Lent) -> None:
        self._idle.append(lent)


@dataclass(slots=True)
class Lent:
    producer_id: int
    epoch: int
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    def number(self, batch: OutgoingBatch) -> None:
        """Give the batch the next sequence numbers of its partition."""
        sequence = self.sequences.get(batch.partition, 0)
        if not isinstance(batch.batch, memoryview):
            batch.batch = bytearray(batch.batch)
        set_producer(batch.batch, self.producer_id, self.epoch, sequence)
        batch.numbered, batch.copy = True, None

    def used(self, batch: OutgoingBatch) -> None:
        sequence = self.sequences.get(batch.partition, 0)
        self.sequences[batch.partition] = (sequence + batch.records) & 0x7FFFFFFF


def rounds(batches: Sequence[OutgoingBatch]) -> list[list[OutgoingBatch]]:
    """The batches in rounds: in each round there is at most one of each partition, and their order is kept."""
    found: list[list[OutgoingBatch]] = []
    counts: dict[TopicPartition, int] = {}
    for each in batches:
        turn = counts.get(each.partition, 0)
        counts[each.partition] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append(each)
    return found


def bytes_of(record: NewRecord) -> int:
    """At least as many bytes as the record takes in a batch."""
    key, value, headers, _ = record
    size_bytes = AROUND_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size_bytes += len(name) + len(content or b"") + 10
    return size_bytes


async def batch_of(records: Sequence[NewRecord], **producer: Any) -> bytes | memoryview:
    """The records as a batch. `producer`: what `build_batch` is told of the producer, if there is one."""
    if len(records) == 1 and bytes_of(records[0]) > LONG_BYTES:
        return await done_in_turns(build_long_batch(records[0], **producer))
    return build_batch(records, **producer)


async def _copy_many(batches: Sequence[OutgoingBatch]) -> None:
    """Copy them for this broker's log, if one turn of the loop is too short for that."""
    if sum([len(each.batch) for each in batches]) <= COPIED_AT_ONCE:
        return
    turn = Turn(COPIED_AT_ONCE)
    for each in batches:
        each.copy = await done_in_turns(joined_to_write([each.batch]))
        if turn.is_over(len(each.batch)):
            await asyncio.sleep(0)


async def send(gateway: Gateway, batches: Sequence[OutgoingBatch]) -> None:
    """Write independent batches, each to its leader. Afterwards each has its outcome."""
    for together in rounds(batches):
        await send_one_each(gateway, together)


async def send_one_each(
    gateway: Gateway,
    batches: Sequence[OutgoingBatch],
    *,
    transactional_id: str | None = None,
    internal: bool = False,
    refusal: Callable[[], Awaitable[int]] | None = None,
) -> None:
    """Write batches of which no two go to the same partition. Internal partitions are written by this broker or not at
    all: it answers for what it writes there only while it leads. `refusal` is asked before each attempt for the error,
    if there is one, that all batches are refused with now.
    """
    lent: Lent | None = None
    waiting = batches
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    try:
        while True:
            await _copy_many(waiting)
            if refusal is not None and (error := await refusal()):
                for each in waiting:
                    each.refused(error)
            else:
                here, elsewhere = _by_leader(gateway, waiting)
                if elsewhere and internal:
                    raise Problem("not-now", "another broker answers for it now")
                if elsewhere and not waiting[0].numbered and (lent := await _number(gateway, waiting)) is not None:
                    here, elsewhere = _by_leader(gateway, waiting)
                if elsewhere and waiting[0].numbered:
                    remote = [_send_there(gateway, way, each, transactional_id) for way, each in elsewhere.items()]
                    await asyncio.gather(_send_here(gateway, here, transactional_id, internal), *remote)
                else:
                    await _send_here(gateway, here, transactional_id, internal)
            left_s = deadline - asyncio.get_running_loop().time()
            waiting = [each for each in waiting if _may_pass(each, left_s)]
            if not waiting:
                return
            await asyncio.sleep(PAUSE_S)
    finally:
        if lent is not None:
            _settle(gateway, lent, batches)


async def _number(gateway: Gateway, batches: Sequence[OutgoingBatch]) -> Lent | None:
    """Give the batches sequence numbers. None: there are none now, and all batches are refused."""
    lent = await gateway.producer_ids.borrow()
    for each in batches:
        if isinstance(lent, Lent):
            lent.number(each)
        else:
            each.refused(lent, "there is no producer id for it now")
    return lent if isinstance(lent, Lent) else None


def _settle(gateway: Gateway, lent: Lent, batches: Sequence[OutgoingBatch]) -> None:
    """Give back the lent producer id, unless its next sequence number is not known."""
    if any(each.in_doubt or (not each.error and each.base_offset < 0) for each in batches):
        return
    if any(each.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER for each in batches):
        return
    for each in batches:
        if not each.error and each.numbered:
            lent.used(each)
    gateway.producer_ids.give_back(lent)


Way = tuple[int, frozenset[int]]
"""The leader, and the brokers that it waits for. What waits for other brokers must not be held up with it."""


def _by_leader(
    gateway: Gateway, batches: Sequence[OutgoingBatch]
) -> tuple[list[OutgoingBatch], dict[Way, list[OutgoingBatch]]]:
    """The batches that this broker leads, and the others by their way. A batch whose partition has no leader gets that
    as its outcome.
    """
    here: list[OutgoingBatch] = []
    elsewhere: dict[Way, list[OutgoingBatch]] = {}
    own, image = gateway.node_id, gateway.image
    for each in batches:
        state = image.partition(each.partition)
        if state is None:
            each.refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif state.leader == own:
            here.append(each)
        elif state.leader == NO_LEADER:
            each.refused(ErrorCode.LEADER_NOT_AVAILABLE, "it has no leader now")
        else:
            elsewhere.setdefault((state.leader, frozenset(state.isr)), []).append(each)
    return here, elsewhere


def _may_pass(batch: OutgoingBatch, left_s: float) -> bool:
    """Whether a refused batch may be taken soon, and is written once however often it is sent."""
    if not batch.error or left_s <= 0 or (batch.in_doubt and not batch.numbered):
        return False
    if batch.error in TOO_FEW:
        return left_s > TIMEOUT_S - REPLICAS_WITHIN_S
    return batch.error in MOVED or batch.error in PASSING


async def _send_here(
    gateway: Gateway, batches: Sequence[OutgoingBatch], transactional_id: str | None, internal: bool
) -> None:
    if not batches:
        return
    writes = []
    for each in batches:
        topic: TopicPartitions | RefusedBatch = gateway.partitions.topic(each.partition.topic) or NOWHERE
        copy, each.copy = each.copy, None
        write = Write(topic, each.partition.partition, memoryview(bytearray(each.batch)) if copy is None else copy)
        write.expected_offset = each.expected_offset
        if (
            internal
            and (partition := write.partition) is not None
            and partition.log.config.compression_type == "producer"
        ):
            write.inspected = Inspected(partition.log.config)  # this broker has made it, of records that have keys
        writes.append(write)
    terms = replace(TERMS, transactional_id=transactional_id, may_write_internal=internal)
    writing = Writing(gateway.writing, terms, writes)
    await writing.append_when_ready(is_ready=not writing.looks_far and writing.begin())
    if not writing.is_settled:
        await writing.settle(Session(CLIENT_ID, 0))
    for each, write in zip(batches, writes, strict=True):
        outcome = write.outcome
        if isinstance(outcome, Appended):
            each.written(outcome.base_offset, outcome.log_append_time_ms)
        else:
            each.refused(not_yet(outcome.error), outcome.message, outcome.culprits)
            each.end_offset = outcome.end_offset
            # What was appended and then could not be promised may be committed later.
            each.in_doubt |= each.error in MAY_BE_WRITTEN or write.was_appended


async def _send_there(
    gateway: Gateway, way: Way, batches: Sequence[OutgoingBatch], transactional_id: str | None
) -> None:
    request = ConditionalProduceRequest(transactional_id, int(TIMEOUT_S * 1000))
    for each in batches:
        expected = -1 if each.expected_offset is None else each.expected_offset
        request.batches.append(ConditionalBatch(*each.partition, expected, memoryview(each.batch)))
    try:
        node, needs = way
        answer = await gateway.ask(node, request, session=gateway.own_session, needs=needs)
    except ClientFailure as failure:
        for each in batches:
            each.refused(ErrorCode.REQUEST_TIMED_OUT, failure.message)
            each.in_doubt = True
        return
    for each, result in zip(batches, answer.results, strict=True):
        if not result.error_code:
            each.written(result.base_offset, result.log_append_time_ms)
            continue
        each.refused(not_yet(result.error_code), result.error_message, tuple(result.culprits))
        each.end_offset = result.end_offset
        each.in_doubt |= result.may_be_written
