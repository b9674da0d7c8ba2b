"""One broker with a topic `orders` of one partition: it is made, written to and deleted."""

import asyncio
from dataclasses import replace

from log.batch import build_batch
from log.control import ControlType
from log.ids import TopicPartition
from service.broker.partition import Appended, Partition, PartitionLost
from service.ports import RealClock
from service.wire.error_codes import ErrorCode
from service.wire.messages import DeleteTopicsRequest, DeleteTopicState
from tests.service.api.admin_stage import Stage

HERE = TopicPartition("orders", 0)


FSYNC = {"log.durability": "fsync"}


async def write(partition: Partition, *values: bytes, timestamp_ms: int = 0) -> None:
    """With acks=all: returns when they are durable."""
    batch = bytearray(build_batch([(b"k", value, (), timestamp_ms) for value in values]))
    appended = partition.append_from_client(memoryview(batch), acks=-1, now_ms=RealClock.wall_ms())
    assert isinstance(appended, Appended)
    if (committed := partition.committed(appended.end_offset)) is not None:
        await committed


async def delete(stage: Stage) -> None:
    answer = await stage.ask(DeleteTopicsRequest([DeleteTopicState("orders")]))
    assert answer.responses[0].error_code == 0


def values(partition: Partition) -> int:
    return sum(header.record_count for header, _ in partition.log.scan(0))


LIFE = 7


OS = {"log.durability": "os"}


async def led(stage: Stage, *, isr: tuple[int, ...] = (1, 2), min_in_sync: int = 2) -> Partition:
    """A partition that this broker leads, with 2 and 3 as followers that are only talked of."""
    await stage.create("orders")
    partition = await stage.served("orders")
    partition.lead(partition.leader_epoch + 1, 1, (1, 2, 3), isr, fsync=False)
    partition.set_config(replace(partition.log.config, min_insync_replicas=min_in_sync), fsync=False)
    return partition


async def told(waiter: asyncio.Future[None] | None) -> ErrorCode:
    assert waiter is not None
    try:
        async with asyncio.timeout(5):
            await waiter
    except PartitionLost as lost:
        return lost.error
    return ErrorCode.NONE


def abort(partition: Partition, producer_id: int) -> None:
    """Write the marker that a coordinator sends when the producer's transaction is aborted."""
    partition.append_marker(
        ControlType.ABORT,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        transaction_version=1,
        now_ms=1,
    )


def abort_together(partition: Partition, count: int) -> list[tuple[int, int]]:
    """Transactions of so many producers that were open together, and were aborted. Returns what a reader is told."""
    for producer_id in range(count):
        batch = build_batch(
            [(None, b"x", (), 1)], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )
        partition.append_from_client(memoryview(bytearray(batch)), acks=1, now_ms=1, needs_guard=False)
    for producer_id in range(count):
        abort(partition, producer_id)
    return [(producer_id, producer_id) for producer_id in range(count)]
