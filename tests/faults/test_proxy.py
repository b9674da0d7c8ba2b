"""The proxy itself: without rules it changes nothing, clients stay behind it, and each fault is what it says."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from service.client.connection import Client
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeClusterRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
    MetadataRequest,
    ProduceRequest,
)
from service.wire.messages.versions import VERSIONS, ApiKey
from tests.clients.kits import LIBRARIES, Kit, Message
from tests.faults.proxy import Fault
from tests.faults.scenario import in_loop, stage
from tests.faults.writer import Writer, settled


@pytest.mark.parametrize("kit", LIBRARIES, ids=lambda kit: kit.name)
@in_loop
async def test_clients_stay_behind_the_proxy(port: int, topic: str, kit: Kit) -> None:
    async with stage(port) as here:
        writes = here.proxy.rule(ProduceRequest, Fault.WATCH)
        values = [Message(b"%d" % number) for number in range(5)]
        await asyncio.to_thread(kit.produce, here.proxy.bootstrap, topic, values)
        await writes.caught()
        read = await asyncio.to_thread(kit.consume, here.proxy.bootstrap, topic, 5)
        assert [row.message.value for row in read] == [message.value for message in values]


@in_loop
async def test_every_version_of_an_answer_with_addresses_leads_to_the_proxy(port: int, name: str) -> None:
    async with stage(port) as here:
        client = await here.connect_behind_proxy()
        for version in range(VERSIONS[ApiKey.METADATA][1] + 1):
            brokers = (await client.request(MetadataRequest(topics=[]), version)).brokers
            assert [broker.port for broker in brokers] == [here.proxy.port], version
        for version in range(VERSIONS[ApiKey.FIND_COORDINATOR][1] + 1):
            request = FindCoordinatorRequest(key=name, key_type=0, coordinator_keys=[name])
            found = await client.request(request, version)
            for place in found.coordinators if version >= 4 else [found]:
                assert place.port == here.proxy.port or place.error_code, version
        for version in range(VERSIONS[ApiKey.DESCRIBE_CLUSTER][1] + 1):
            told = await client.request(DescribeClusterRequest(), version)
            assert [broker.port for broker in told.brokers] == [here.proxy.port], version


@in_loop
async def test_a_held_request_stops_its_own_connection_and_no_other(port: int) -> None:
    async with stage(port) as here:
        first, second = await here.connect_behind_proxy(), await here.connect_behind_proxy()
        held = here.proxy.rule(ListTransactionsRequest, Fault.HOLD)
        waiting = asyncio.ensure_future(first.request(ListTransactionsRequest()))
        caught = await held.caught()
        behind = asyncio.ensure_future(first.request(MetadataRequest(topics=[])))
        await second.request(ListTransactionsRequest())
        await second.request(MetadataRequest(topics=[]))
        assert not waiting.done()
        assert not behind.done()
        caught.release()
        assert (await waiting).error_code == ErrorCode.NONE
        await behind


@in_loop
async def test_a_lost_request_is_not_carried_out_and_a_lost_answer_is(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        await writer.sent(topic, "kept")
        here.proxy.rule(EndTxnRequest, Fault.LOSE_REQUEST)
        with pytest.raises(OSError):
            await writer.end(commit=True)
        writer.client = await here.connect_behind_proxy()
        assert (await writer.described()).transaction_state == "Ongoing"
        lost = here.proxy.rule(EndTxnRequest, Fault.LOSE_ANSWER)
        with pytest.raises(OSError):
            await writer.end(commit=True)
        assert (await (await lost.caught()).answer()).error_code == ErrorCode.NONE
        assert (await settled(await here.connect(), topic)).committed == ["kept"]


@in_loop
async def test_a_swallowed_answer_leaves_the_connection_as_it_is(port: int) -> None:
    async with stage(port) as here:
        client = await here.connect_behind_proxy()
        here.proxy.rule(ListTransactionsRequest, Fault.SWALLOW_ANSWER)
        waiting = asyncio.ensure_future(client.request(ListTransactionsRequest()))
        await client.request(MetadataRequest(topics=[]))
        assert not waiting.done(), "a later answer came through, this one did not"
        waiting.cancel()


@in_loop
async def test_broken_connections_are_noticed_and_made_anew(port: int, topic: str) -> None:
    async with stage(port) as here:
        client: Client = await here.connect_behind_proxy()
        producer = Producer({"bootstrap.servers": here.proxy.bootstrap, "linger.ms": 0})
        admin = AdminClient({"bootstrap.servers": here.proxy.bootstrap})
        for number in range(3):
            producer.produce(topic, f"{number}".encode())
            assert await asyncio.to_thread(producer.flush, 20) == 0
            here.proxy.break_connections()
        with pytest.raises(OSError):
            await client.request(MetadataRequest(topics=[]))
        known: set[str] = set()
        while topic not in known:
            try:
                known = {*(await asyncio.to_thread(admin.list_topics, timeout=20)).topics}
            except KafkaException as broken:  # it had not noticed yet that the connection is gone
                assert broken.args[0].code() == KafkaError._TRANSPORT
        assert (await settled(await here.connect(), topic)).committed == ["0", "1", "2"]
