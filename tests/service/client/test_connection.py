"""The client, against a server of ours whose door speaks for a broker, and against brokers that say strange things."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from typing import cast

import pytest

from service.client.connection import Client, ClientError
from service.net.server import CLOSE, NO_REPLY, PeerInfo, Reply, serve
from service.wire.codec import RequestHeader, decode_request, encode_response
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ApiVersion,
    ApiVersionsResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    HeartbeatRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from service.wire.messages.versions import VERSIONS, ApiKey
from tests.service.net.kit import LOOPS, run, serving, until
from tests.sim.world import Host, World

every_loop = pytest.mark.parametrize("loop", LOOPS)

OFFERED = {key.value: versions for key, versions in VERSIONS.items() if key != ApiKey.HEARTBEAT}


class SmallBroker:
    """Knows its versions, names topics, takes records and hands out a few."""

    def __init__(self, api_versions: int = 4) -> None:
        self.api_versions = api_versions
        self.seen: list[tuple[int, int]] = []
        self.produced: list[bytes] = []
        self.hold: asyncio.Event | None = None

    def connected(self, peer: PeerInfo) -> PeerInfo:
        return peer

    def disconnected(self, session: PeerInfo) -> None:
        pass

    def hurry(self, session: PeerInfo) -> None:
        pass

    def request(self, session: PeerInfo, header: RequestHeader, body: memoryview) -> Reply | Awaitable[Reply]:
        key, version = header.api_key, header.api_version
        self.seen.append((key, version))
        if key == ApiKey.API_VERSIONS:
            offered = OFFERED | {18: (0, self.api_versions)}
            keys = [
                ApiVersion(api_key=each, min_version=low, max_version=high) for each, (low, high) in offered.items()
            ]
            if version > self.api_versions:
                return encode_response(18, 0, ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, keys))
            return encode_response(18, version, ApiVersionsResponse(0, keys))
        message = decode_request(key, version, body)
        if key == ApiKey.METADATA:
            topics = [MetadataResponseTopic(name=each.name) for each in message.topics or []]
            return self._metadata(version, MetadataResponse(topics=topics))
        if key == ApiKey.PRODUCE:
            self.produced.append(bytes(message.topic_data[0].partition_data[0].records))
            return NO_REPLY if message.acks == 0 else encode_response(key, version, ProduceResponse(throttle_time_ms=5))
        if key == ApiKey.INIT_PRODUCER_ID:
            return encode_response(key, version, InitProducerIdResponse(producer_id=version))
        records = [FetchResponsePartitionData(records=bytes(200_000)), FetchResponsePartitionData(records=b"few")]
        return encode_response(key, version, FetchResponse(responses=[FetchableTopicResponse("t", partitions=records)]))

    async def _metadata(self, version: int, answer: MetadataResponse) -> Reply:
        if self.hold is not None:
            await self.hold.wait()
        return encode_response(ApiKey.METADATA, version, answer)


def topic(name: str) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name)])


@every_loop
def test_requests_get_their_answers_in_the_newest_version_both_know(loop: str) -> None:
    async def main() -> None:
        broker = SmallBroker()
        async with serving(broker) as server, Client("127.0.0.1", server.port) as client:
            answer = await client.request(topic("orders"))
            assert [each.name for each in answer.topics] == ["orders"]
            assert broker.seen == [(18, 4), (3, 13)]
            assert (await client.request(topic("old"), version=3)).topics[0].name == "old"
            # Its newest version is not stable in Kafka yet.
            assert (await client.request(InitProducerIdRequest())).producer_id == 5

    run(loop, main)


@pytest.mark.parametrize("known", [0, 1, 2, 3])
def test_an_older_broker_is_asked_again_in_a_version_it_knows(known: int) -> None:
    """It answers in version 0 what it was asked in one it does not know, with the versions it does."""

    async def main() -> None:
        broker = SmallBroker(api_versions=known)
        async with serving(broker) as server, Client("127.0.0.1", server.port) as client:
            assert broker.seen == [(18, 4), (18, known)]
            assert client.versions[3] == VERSIONS[ApiKey.METADATA]

    run("uvloop", main)


@every_loop
def test_many_requests_travel_at_a_time(loop: str) -> None:
    async def main() -> None:
        async with serving(SmallBroker()) as server, Client("127.0.0.1", server.port) as client:
            answers = await asyncio.gather(*(client.request(topic(f"t{at}")) for at in range(200)))
            assert [answer.topics[0].name for answer in answers] == [f"t{at}" for at in range(200)]

    run(loop, main)


@every_loop
def test_long_requests_and_answers_come_whole(loop: str) -> None:
    async def main() -> None:
        broker = SmallBroker()
        async with serving(broker) as server, Client("127.0.0.1", server.port) as client:
            for acks in (1, 0, -1):
                partition = PartitionProduceData(records=b"r" * 2_000_000)
                produce = ProduceRequest(acks=acks, topic_data=[TopicProduceData("t", partition_data=[partition])])
                assert (await client.request(produce)).throttle_time_ms == (0 if acks == 0 else 5)
            answer = await client.request(FetchRequest())
            assert [bytes(cast(memoryview, each.records)) for each in answer.responses[0].partitions] == [
                bytes(200_000),
                b"few",
            ]
            assert broker.produced == [b"r" * 2_000_000] * 3

    run(loop, main)


def test_what_the_broker_does_not_offer_is_said_before_anything_is_sent() -> None:
    async def main() -> None:
        broker = SmallBroker()
        async with serving(broker) as server, Client("127.0.0.1", server.port) as client:
            assert client.offers(MetadataRequest)
            assert not client.offers(HeartbeatRequest)
            with pytest.raises(ClientError, match="HeartbeatRequest"):
                await client.request(HeartbeatRequest())
            assert broker.seen == [(18, 4)]

    run("uvloop", main)


@every_loop
def test_a_broken_connection_ends_every_request_that_waits(loop: str) -> None:
    async def main() -> None:
        broker = SmallBroker()
        async with serving(broker) as server, Client("127.0.0.1", server.port) as client:
            broker.hold = asyncio.Event()
            waiting = [asyncio.ensure_future(client.request(topic(f"{at}"))) for at in range(3)]
            await until(lambda: len(broker.seen) == 2)
            for connection in list(server._connections):
                connection.abort()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(outcome, ConnectionError) for outcome in outcomes)
            with pytest.raises(ConnectionError):
                await client.request(topic("more"))
            broker.hold.set()

    run(loop, main)


def test_a_request_that_was_given_up_does_not_disturb_those_behind_it() -> None:
    async def main() -> None:
        broker = SmallBroker()
        async with serving(broker) as server, Client("127.0.0.1", server.port) as client:
            broker.hold = asyncio.Event()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await client.request(topic("given up"))
            broker.hold.set()
            assert (await client.request(topic("kept"))).topics[0].name == "kept"

    run("uvloop", main)


def test_nobody_there_is_an_error_of_the_system() -> None:
    async def main() -> None:
        client = Client("127.0.0.1", 1)
        with pytest.raises(OSError):
            await client.connect()
        with pytest.raises(OSError):
            await client.request(topic("t"))
        await client.close()

    run("uvloop", main)


@pytest.mark.parametrize(
    "strange",
    [
        struct.pack(">i", -5),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">ii", 4, 77),  # an answer to no request
        struct.pack(">iihi", 10, 1, 0, 2**30),  # a count that the bytes cannot hold
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_the_client(strange: bytes) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(strange)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = Client("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(ClientError):
            await client.connect()
        server.close()

    run("uvloop", main)


def test_a_broker_that_closes_instead_of_answering_is_an_error_of_the_system() -> None:
    class Closing(SmallBroker):
        def request(self, session: PeerInfo, header: RequestHeader, body: memoryview) -> Reply:
            return CLOSE

    async def main() -> None:
        async with serving(Closing()) as server:
            with pytest.raises(ConnectionError):
                await Client("127.0.0.1", server.port).connect()

    run("uvloop", main)


def test_server_and_client_run_in_the_simulation() -> None:
    """No sockets, no descriptors, virtual time; segments are split and joined as the seed wants."""
    for seed in range(5):
        world = World(seed)
        answered: list[str] = []

        async def broker(host: Host) -> None:
            await serve(asyncio.get_running_loop(), None, 9092, SmallBroker())
            await asyncio.get_running_loop().create_future()

        async def asks(host: Host, answered: list[str] = answered) -> None:
            async with Client("broker", 9092) as client:
                for at in range(30):
                    partition = PartitionProduceData(records=bytes(30_000 * at))
                    await client.request(
                        ProduceRequest(acks=1, topic_data=[TopicProduceData("t", partition_data=[partition])])
                    )
                    answer = await client.request(topic(f"t{at}"))
                    answered.append(answer.topics[0].name or "")
                await client.request(FetchRequest())

        world.host("broker", broker)
        world.host("client", asks)
        world.run(until=60.0, stop=lambda answered=answered: len(answered) == 30)  # type: ignore[misc]
        assert answered == [f"t{at}" for at in range(30)]
        world.close()
