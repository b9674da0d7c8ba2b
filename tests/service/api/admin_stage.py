"""A real broker without a network, for the handlers of administrative requests: every question goes through the codec
in its version, both ways.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from log.disk import RealDisk
from log.ids import TopicPartition
from service.api.routes import OFFERED, ROUTES
from service.broker.node import Broker
from service.broker.partition import Partition
from service.broker.session import Session
from service.net.door import Held
from service.ports import RealEnv
from service.settings.broker import BrokerConfig, Endpoint
from service.stores.memory import MemoryServer, MemoryStore
from service.wire.base import Request, Struct
from service.wire.codec import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from service.wire.messages import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from service.wire.messages.schemas import MESSAGES
from tests.loops import Loop

Answer = TypeVar("Answer", bound=Struct)

HERE = Endpoint("PLAINTEXT", "broker.example", 9092, "PLAINTEXT")


class Stage:
    """One broker, whose questions are asked by `ask`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def ask(self, request: Request[Answer], version: int | None = None) -> Answer:
        _, key, *_ = MESSAGES[type(request).__name__]
        assert key is not None
        version = OFFERED[key][1] if version is None else version
        read = decode_request(key, version, memoryview(encode_request(key, version, request)))
        header = RequestHeader(key, version, 1, "client")
        answer = ROUTES[key].bound(self.broker)(Session("10.0.0.9", 1234), header, read)
        if isinstance(answer, Held):
            answer = await answer.first
        if isinstance(answer, Awaitable):
            answer = await answer
        parts = encode_response(key, version, answer)
        written = b"".join(part for part in parts if isinstance(part, bytes))
        decoded: Answer = decode_response(key, version, written)
        return decoded

    async def create(self, name: str, partitions: int = 1, **config: str) -> bytes:
        """A topic; its id. Dots in keys are written as underscores."""
        configs = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()]
        topic = CreatableTopic(name, partitions, 1, configs=configs)
        answer = await self.ask(CreateTopicsRequest([topic]))
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        return bytes(answer.topics[0].topic_id)

    async def served(self, topic: str, number: int = 0) -> Partition:
        """The partition, as soon as this broker leads it."""
        async with asyncio.timeout(10):
            while True:
                partition = self.broker.partitions.get(TopicPartition(topic, number))
                if partition is not None and partition.is_leading:
                    return partition
                await asyncio.sleep(0.005)


def on_stage(
    folder: Path,
    scene: Callable[[Stage], Awaitable[Any]],
    given: dict[str, str] | None = None,
    *,
    metadata: MemoryServer | None = None,
    more_folders: Sequence[Path] = (),
) -> None:
    """Play `scene` with a new broker of number 1; `metadata` is kept from one scene to the next."""

    async def main() -> None:
        disks = {str(each): RealDisk(str(each)) for each in (folder, *more_folders)}
        env = RealEnv(disks[str(folder)])
        config = BrokerConfig({"node.id": "1", "log.reserve.bytes": "0", **(given or {})})
        store = MemoryStore(metadata or MemoryServer(env.clock), env)
        broker = Broker(env, config, store, disks, OFFERED)
        await broker.open()
        await broker.register([HERE])
        try:
            await scene(Stage(broker))
        finally:
            await broker.stop()
            for disk in disks.values():
                disk.close()

    uvloop.run(main(), loop_factory=Loop)  # on uvloop, as a broker does
