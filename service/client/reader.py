"""Reads partitions continuously from given offsets: the consuming part of a client.

What always holds: the records of a partition come in order, each of them once. `positions` says where reading goes on;
it moves past a batch when its records are handed out. A reader of committed data gets no aborted records and no
markers, unless it asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from isolation.read_filter import AbortedBatches
from log.batch import HEADER_BYTES, BatchHeader, CorruptBatch, Record, checksum_ok, read_header, read_records
from log.control import read_marker
from log.ids import TopicPartition
from service.client.cluster import MOVED, READ_COMMITTED, RETRY_PAUSE_S, Cluster, Patience, by_topic
from service.client.failures import ClientFailure, FailureKind, refused
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)

MAX_WAIT_MS = 500
# How much a fetch may return: enough to use the network's speed, and little enough to hold one answer for each broker.
PARTITION_BYTES = 1 << 20
FETCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Selection:
    """What to hand out."""

    isolation: int = READ_COMMITTED
    control: bool = False
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record, with the facts about it from its batch."""

    partition: TopicPartition
    record: Record
    batch: BatchHeader
    aborted: bool = False
    control: str | None = None


class Reader:
    """Fetches from every leader at once and hands out what comes, partition by partition."""

    def __init__(self, cluster: Cluster, positions: dict[TopicPartition, int], wanted: Selection) -> None:
        self.positions = positions
        self._cluster = cluster
        self._wanted = wanted
        self._fetches: dict[int, asyncio.Task[FetchResponse]] = {}
        self._patience = Patience(cluster.timeout_s)

    async def close(self) -> None:
        """Stop asking. A fetch that is under way is given up."""
        fetches, self._fetches = list(self._fetches.values()), {}
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    async def next(self) -> list[tuple[TopicPartition, list[ReadRecord]]]:
        """The records of the next answer. There is one after `MAX_WAIT_MS` at the latest; it is often empty."""
        try:
            leaders = await self._cluster.by_leader(self.positions)
        except ClientFailure as error:
            await self._wait_for_brokers(error)
            return []
        for node, partitions in leaders.items():
            if node not in self._fetches:
                self._fetches[node] = asyncio.create_task(self._fetch(node, partitions))
        await asyncio.wait(self._fetches.values(), return_when=asyncio.FIRST_COMPLETED)
        found = []
        for node in [node for node, fetch in self._fetches.items() if fetch.done()]:
            response = await self._answer(self._fetches.pop(node))
            if response is not None:
                found += [each async for each in self._open(response)]
        return found

    async def _fetch(self, node: int, partitions: list[TopicPartition]) -> FetchResponse:
        topics = [
            FetchTopic(
                topic=name,
                topic_id=self._cluster.topic_id(name),
                partitions=[
                    FetchPartition(
                        partition=each.partition, fetch_offset=self.positions[each], partition_max_bytes=PARTITION_BYTES
                    )
                    for each in of_topic
                ],
            )
            for name, of_topic in by_topic(partitions).items()
        ]
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=self._wanted.isolation,
            topics=topics,
        )
        return await self._cluster.ask(request, node=node, wait_s=MAX_WAIT_MS / 1000)

    async def _answer(self, fetch: asyncio.Task[FetchResponse]) -> FetchResponse | None:
        """The answer; None if the broker could not be reached this time. If that lasts too long, the failure is
        raised.
        """
        try:
            response = await fetch
        except ClientFailure as error:
            await self._wait_for_brokers(error)
            return None
        self._patience.restore()
        if response.error_code:
            raise refused("fetch", response.error_code)
        return response

    async def _wait_for_brokers(self, error: ClientFailure) -> None:
        self._patience.bear(error)
        for partition in self.positions:
            self._cluster.forget_leader(partition)
        await asyncio.sleep(RETRY_PAUSE_S)

    async def _open(self, response: FetchResponse) -> AsyncIterator[tuple[TopicPartition, list[ReadRecord]]]:
        for topic in response.responses:
            name = topic.topic or self._cluster.topic_names[topic.topic_id]
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                if partition not in self.positions:
                    continue  # the partition was taken from this reader during the fetch
                if data.error_code:
                    await self._complain(partition, data)
                elif data.records:
                    yield partition, list(self._records(partition, data))

    async def _complain(self, partition: TopicPartition, data: FetchResponsePartitionData) -> None:
        offset = self.positions[partition]
        if data.error_code in MOVED:
            self._cluster.forget_leader(partition)
            await asyncio.sleep(RETRY_PAUSE_S)
        elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset < data.log_start_offset:
            self.positions[partition] = data.log_start_offset  # retention has removed the records at the position
        elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise ClientFailure(
                f"{partition.topic} partition {partition.partition} has no offset {offset}", FailureKind.NOT_FOUND
            )
        else:
            raise refused(f"{partition.topic} partition {partition.partition}", data.error_code)

    def _records(self, partition: TopicPartition, data: FetchResponsePartitionData) -> Iterator[ReadRecord]:
        """Open the batches. A broker sends whole batches, so the first one may begin below the position."""
        aborted = AbortedBatches((each.producer_id, each.first_offset) for each in data.aborted_transactions or ())
        for header, batch in _whole_batches(_joined(data.records)):
            if not checksum_ok(batch, header):
                where = f"{partition.topic} partition {partition.partition}"
                raise ClientFailure(f"{where}: the batch at offset {header.base_offset} is damaged")
            is_aborted = aborted.covers(header, batch)
            if self._shown(header, is_aborted):
                control = _control_name(batch) if header.is_control else None
                for record in read_records(batch, header):
                    if record.offset >= self.positions[partition]:
                        yield ReadRecord(partition, record, header, is_aborted, control)
            self.positions[partition] = max(self.positions[partition], header.next_offset)

    def _shown(self, header: BatchHeader, is_aborted: bool) -> bool:
        if header.is_control:
            return self._wanted.control
        return not is_aborted or self._wanted.aborted


def _control_name(batch: memoryview) -> str:
    kind = read_marker(batch).type
    return kind.name.lower() if kind is not None else "unknown"


def _joined(records: object) -> bytes:
    assert isinstance(records, bytes | bytearray | memoryview)
    return bytes(records)


def _whole_batches(data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches that are complete. The last one may be cut off, because brokers limit an answer by bytes."""
    view = memoryview(data)
    at = 0
    while at + HEADER_BYTES <= len(view):
        try:
            header = read_header(view, at)
        except CorruptBatch as error:
            raise ClientFailure(f"the broker sent something that is no record batch: {error}") from None
        if at + header.size_bytes > len(view):
            return
        yield header, view[at : at + header.size_bytes]
        at += header.size_bytes
