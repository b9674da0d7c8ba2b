"""Real transactional clients whose requests and answers are lost: they try again, and everything is there once.

Whether a commit that broke off took place is unknown to its client, never failed: it asks again, and is told.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Producer

from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from tests.faults.proxy import Fault
from tests.faults.scenario import in_loop, stage
from tests.faults.writer import Writer, group_offset, settled
from tests.rules import rule

TRANSACTIONS = 6
LOSSES = pytest.mark.parametrize(
    "fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.TWICE], ids=["request lost", "answer lost", "twice"]
)
REQUESTS: tuple[type, ...] = (
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)
EXPECTED = [f"{number}" for number in range(TRANSACTIONS) if number % 3 != 2]


def write_with_librdkafka(bootstrap: str, transactional_id: str, topic: str) -> None:
    """Two transactions are committed, the third is aborted, and so on.

    Without offsets: after a lost AddOffsetsToTxn librdkafka 2.x may wait for a connection that it never opens.
    """
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions(20)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        producer.produce(topic, f"{number}".encode(), partition=0)
        assert producer.flush(20) == 0
        if number % 3 == 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)


async def write_with_aiokafka(bootstrap: str, transactional_id: str, topic: str, group: str) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    await producer.start()
    try:
        for number in range(TRANSACTIONS):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, f"{number}".encode(), partition=0)
            await producer.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): number + 1}, group)
            await (producer.abort_transaction() if number % 3 == 2 else producer.commit_transaction())
    finally:
        await producer.stop()


@LOSSES
@rule("C", "librdkafka: requests and answers lost or doubled in each transaction, and nothing is")
@in_loop
async def test_librdkafka_writes_once_whatever_is_lost(port: int, topic: str, name: str, fault: Fault) -> None:
    async with stage(port) as here:
        spread(here.proxy.rule, fault)
        await asyncio.to_thread(write_with_librdkafka, here.proxy.bootstrap, name, topic)
        assert (await settled(await here.connect(), topic)).committed == EXPECTED


@LOSSES
@rule("C", "aiokafka (transaction version 0): requests and answers lost or doubled, and nothing is")
@in_loop
async def test_aiokafka_writes_once_whatever_is_lost(port: int, topic: str, name: str, fault: Fault) -> None:
    async with stage(port) as here:
        spread(here.proxy.rule, fault)
        await write_with_aiokafka(here.proxy.bootstrap, name, topic, name)
        client = await here.connect()
        assert (await settled(client, topic)).committed == EXPECTED
        assert await group_offset(client, name, topic) == 5


def spread(rule: Any, fault: Fault) -> None:
    """Every kind of request meets the fault twice: not all at once, but in several transactions."""
    for place, request in enumerate(REQUESTS):
        if fault is Fault.TWICE and request is InitProducerIdRequest:
            continue  # the second fences who got the answer to the first: that is its purpose
        for round_ in range(2):
            rule(request, fault, where=_nth(place % 3 + 3 * round_))


def _nth(skipped: int) -> Any:
    """Accepts every request but the first few."""
    left = skipped

    def accept(message: Any) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return accept


@rule("C", "a commit whose answer was lost is unknown, not failed: the readers have it, and asking again says so")
@in_loop
async def test_an_ambiguous_commit_is_not_a_failed_one(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        for number in range(4):
            await writer.sent(topic, f"{number}")
            lost = here.proxy.rule(EndTxnRequest, Fault.LOSE_REQUEST if number % 2 else Fault.LOSE_ANSWER)
            with pytest.raises(OSError):
                await writer.end(commit=True)
            await lost.caught()
            writer.client = await here.connect_behind_proxy()
            if number == 3:
                break
            assert await writer.end(commit=True) is ErrorCode.NONE, "asked again, it is committed; once"
        # The last one never arrived: the client gives up on it, and may, because it asks and is not told otherwise.
        await writer.abort()
        assert (await settled(await here.connect(), topic)).committed == ["0", "1", "2"]
