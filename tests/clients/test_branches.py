"""One transaction with many writers, each an ordinary client of a library that has never heard of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiokafka
import pytest
from confluent_kafka import KafkaException

from service.client.connection import Client
from service.wire.messages import DescribeBranchesRequest, EndBranchesRequest, EndBranchesResponse, NamedBranch
from service.wire.messages.versions import ApiKey
from tests.clients.kits import PATIENCE_SECONDS
from tests.clients.raw import offered_versions
from tests.clients.test_transactions import committed_values, transactional
from tests.peers.chosen import Address


@pytest.fixture
def branches(broker: Address) -> None:
    if ApiKey.END_BRANCHES not in offered_versions(broker.port):
        pytest.skip("this broker knows no branches")


def decide(broker: Address, root: str, token: int, *branches: str) -> EndBranchesResponse:
    """What a driver does, once its tasks have reported."""

    async def ask() -> EndBranchesResponse:
        client = Client("127.0.0.1", broker.port)
        await client.connect()
        try:
            named = [NamedBranch(branch) for branch in branches]
            return await client.request(EndBranchesRequest(root, token, True, named))
        finally:
            await client.close()

    return asyncio.run(ask())


def open_branches(broker: Address, root: str) -> list[str]:
    async def ask() -> list[str]:
        client = Client("127.0.0.1", broker.port)
        await client.connect()
        try:
            return (await client.request(DescribeBranchesRequest([root]))).roots[0].open_branches
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.mark.usefixtures("branches")
def test_many_ordinary_producers_write_one_transaction(broker: Address, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    root = f"root-of-{topic}"
    for token in (1, 2):
        writers = [transactional(broker, f"{root}::{token}/part-{number}") for number in range(3)]
        for number, writer in enumerate(writers):
            writer.begin_transaction()
            writer.produce(topic, f"{token}.{number}".encode())
        for writer in writers[:2]:
            writer.commit_transaction(PATIENCE_SECONDS)
        assert len(open_branches(broker, root)) == 3
        assert sorted(committed_values(broker, topic)) == [b"1.0", b"1.1"][: 2 * (token - 1)]

        first = decide(broker, root, token, f"{root}::{token}/part-0", f"{root}::{token}/part-1")
        assert (first.error_code, first.decided_now) == (0, True)
        again = decide(broker, root, token)
        assert (again.error_code, again.decided_now, again.last_token) == (0, False, token)
        with pytest.raises(KafkaException):
            writers[2].commit_transaction(PATIENCE_SECONDS)
        with pytest.raises(KafkaException):
            transactional(broker, f"{root}::{token}/late")
    assert sorted(committed_values(broker, topic)) == [b"1.0", b"1.1", b"2.0", b"2.1"]


@pytest.mark.usefixtures("branches")
def test_a_branch_can_be_written_by_another_library(broker: Address, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    root = f"root-of-{topic}"

    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{root}::7/aiokafka")
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"from aiokafka")
        await producer.stop()

    asyncio.run(write())
    assert committed_values(broker, topic) == []
    assert decide(broker, root, 7, f"{root}::7/aiokafka").decided_now
    assert committed_values(broker, topic) == [b"from aiokafka"]
