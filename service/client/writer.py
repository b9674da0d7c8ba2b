"""Writes records to a topic: the producing part of a client.

What always holds: `write` returns when every record is acknowledged by all in-sync replicas. With a producer id nothing
is written twice, however often it had to be sent. Without one, a lost answer is reported as an unknown outcome. In a
transaction the records become visible only after its commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from log.batch import NewRecord, build_batch
from log.ids import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from service.client.cluster import MOVED, RETRY_PAUSE_S, Cluster, Deadline
from service.client.failures import ClientFailure, FailureKind, refused
from service.client.partitioner import partition_for_key
from service.client.transaction import LOST, PRODUCE_VERSION, Transaction
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    InitProducerIdRequest,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)

ACKS_ALL = -1
# Below the 1 MiB that brokers accept by default: the batch needs more bytes than its records.
BATCH_BYTES = 800_000
RECORD_OVERHEAD_BYTES = 40
_SEQUENCE_RANGE = 1 << 31

Written = tuple[int, int, list[NewRecord]]
"""A partition, the offset of the first record in it, and the records."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to be written. Partition None: the key decides."""

    record: NewRecord
    partition: int | None = None


class Writer:
    """A producer for one topic."""

    def __init__(self, cluster: Cluster, topic: str, *, codec: int, transaction: Transaction | None = None) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._topic = topic
        self._codec = codec
        self._partition_count = 0
        self._next_partition = 0
        self._producer_id, self._producer_epoch = NO_PRODUCER_ID, NO_EPOCH
        self._sequences: dict[int, int] = {}

    async def open(self) -> None:
        """Find the topic (brokers may be configured to create it), and get a producer id, with which repeats are
        safe.
        """
        topic = await self._cluster.topic(self._topic, create=True)
        self._partition_count = len(topic.partitions)
        if self._transaction is not None:
            await self._transaction.own()
            self._producer_id, self._producer_epoch = self._transaction.producer_id, self._transaction.producer_epoch
            return
        deadline = Deadline(self._cluster.timeout_s)
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        while await self._cluster.offers(request):
            response = await self._cluster.ask(request)
            if not response.error_code:
                self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch
                return
            if response.error_code not in MOVED or deadline.passed():
                raise refused("producer id", response.error_code)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def write(self, records: Iterable[OutgoingRecord]) -> list[Written]:
        """Write all records. Returns where they are, sorted by partition."""
        by_partition: dict[int, list[NewRecord]] = {}
        keyless = self._next_partition
        self._next_partition = (self._next_partition + 1) % self._partition_count
        for outgoing in records:
            key = outgoing.record[0]
            partition = outgoing.partition
            if partition is None:
                # All records without a key go to one partition, for fuller batches. The next call takes the next one.
                partition = keyless if key is None else partition_for_key(key, self._partition_count)
            elif partition >= self._partition_count:
                raise ClientFailure(f"topic {self._topic} has no partition {partition}", FailureKind.NOT_FOUND)
            by_partition.setdefault(partition, []).append(outgoing.record)
        results = await asyncio.gather(
            *(self._write_partition(number, by_partition[number]) for number in sorted(by_partition)),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [written for result in results if isinstance(result, list) for written in result]

    async def _write_partition(self, number: int, records: Sequence[NewRecord]) -> list[Written]:
        written = []
        if self._transaction is not None:
            await self._transaction.take_in(TopicPartition(self._topic, number))
        for batch in _cut(records):
            sequence = self._sequences.get(number, 0)
            data = build_batch(
                batch,
                codec=self._codec,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=NO_SEQUENCE if self._producer_id == NO_PRODUCER_ID else sequence,
                transactional=self._transaction is not None,
            )
            answer = await self._send(TopicPartition(self._topic, number), data)
            self._sequences[number] = (sequence + len(batch)) % _SEQUENCE_RANGE
            written.append((number, answer.base_offset, batch))
        return written

    async def _send(self, partition: TopicPartition, data: bytes) -> PartitionProduceResponse:
        """Send one batch until it is acknowledged or refused."""
        deadline = Deadline(self._cluster.timeout_s)
        in_doubt = False
        while True:
            try:
                answer = await self._try_to_send(partition, data)
            except ClientFailure as error:
                if error.kind is not FailureKind.UNREACHABLE:
                    raise
                in_doubt = True
                failure = error
            else:
                # A duplicate is acknowledged, too: it is in the log, but the broker no longer knows at which offset.
                if not answer.error_code or answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    return answer
                if self._transaction is not None and answer.error_code in LOST:
                    raise self._transaction.lost()
                failure = refused(
                    f"{partition.topic} partition {partition.partition}", answer.error_code, answer.error_message
                )
                in_doubt |= answer.error_code in (
                    ErrorCode.REQUEST_TIMED_OUT,
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                )
                if answer.error_code not in MOVED and failure.kind is not FailureKind.UNREACHABLE:
                    raise _unsure(failure) if in_doubt else failure
            # Only with a producer id is it safe to send again a batch that may be in the log already.
            if deadline.passed() or (in_doubt and self._producer_id == NO_PRODUCER_ID):
                raise _unsure(failure) if in_doubt else failure
            self._cluster.forget_leader(partition)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _try_to_send(self, partition: TopicPartition, data: bytes) -> PartitionProduceResponse:
        (node,) = await self._cluster.by_leader([partition])
        transaction = self._transaction
        request = ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            acks=ACKS_ALL,
            timeout_ms=int(self._cluster.timeout_s * 1000),
            topic_data=[
                TopicProduceData(
                    name=partition.topic,
                    topic_id=self._cluster.topic_id(partition.topic),
                    partition_data=[PartitionProduceData(index=partition.partition, records=data)],
                )
            ],
        )
        version = None if transaction is None else PRODUCE_VERSION
        response = await self._cluster.ask(request, node=node, version=version)
        return response.responses[0].partition_responses[0]


def _cut(records: Sequence[NewRecord]) -> Iterable[list[NewRecord]]:
    """The records in groups that fit into one batch each. A record that is too large alone is sent all the same; the
    broker refuses it.
    """
    batch: list[NewRecord] = []
    size_bytes = 0
    for record in records:
        key, value, headers, _ = record
        own_bytes = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        own_bytes += sum(len(name) + len(content or b"") + 10 for name, content in headers)
        if batch and size_bytes + own_bytes > BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += own_bytes
    if batch:
        yield batch


def _unsure(failure: ClientFailure) -> ClientFailure:
    return ClientFailure(
        f"{failure.message}; whether the last records were written is unknown", FailureKind.OUTCOME_UNKNOWN
    )
