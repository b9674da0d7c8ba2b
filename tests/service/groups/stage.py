"""A broker in miniature for the handlers of the group APIs: the real machine, a few topics, ids that count up.

Requests go through the codec both ways, so that a test speaks in messages and versions as a client does.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from log.ids import TopicId
from service.api.routes import ROUTES
from service.broker.node import Broker
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, DecisionFailed, FewAnswersATurn, NotCoordinator
from service.cluster.image import PartitionState, Topic
from service.groups.verdicts import MoreThanABatch
from service.wire.base import Struct
from service.wire.codec import RequestHeader, decode_request, decode_response, encode_request, encode_response
from service.wire.messages.schemas import MESSAGES
from tests.service.groups.driver import PENDING, Driver


@dataclass
class StageImage:
    driver: Driver

    @property
    def topics(self) -> dict[str, Topic]:
        state = PartitionState((1,), (1,), 1, 0)
        found: dict[str, Topic] = {}
        for name in self.driver.topics.names():
            facts = self.driver.topics.by_name(name)
            assert facts is not None
            partitions = dict.fromkeys(range(facts.partitions), state)
            found[name] = Topic(name, TopicId(facts.topic_id), 0, {}, partitions)
        return found

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        facts = self.driver.topics.by_id(topic_id)
        return None if facts is None else self.topics[facts.name]


@dataclass
class StageMetadata:
    image: StageImage
    broker_id = 1
    in_session: bool = True


@dataclass
class StageCoordinators:
    """One shard for all groups. `trouble` is raised instead of asking the machine."""

    driver: Driver
    trouble: Exception | None = None
    is_damaged: bool = False
    answers: FewAnswersATurn = field(default_factory=FewAnswersATurn)

    def handle(self, group_id: str, command: Any) -> asyncio.Future[Any]:
        if self.trouble is not None:
            raise self.trouble
        try:
            reply = self.driver.ask(command)
        except MoreThanABatch as refused:  # the shard says so of all that raises
            raise DecisionFailed from refused
        if reply == PENDING:
            return asyncio.ensure_future(self._answer_to(self.driver.tokens))
        replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        replied.set_result(reply)
        return replied

    async def _answer_to(self, token: int) -> Any:
        while (reply := self.driver.answers.get(token, PENDING)) == PENDING:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        return reply

    @property
    def is_replicated(self) -> bool:
        return False

    def shards(self) -> list["StageShard"]:
        return [StageShard(self, SimpleNamespace(offline=self.is_damaged))]

    def not_ready(self, broker_id: int) -> list[int]:
        return []

    def may_be_at(self, broker_id: int, group_id: str) -> bool:
        return False


@dataclass
class StageShard:
    coordinators: StageCoordinators
    partition: SimpleNamespace

    async def handle(self, command: Any) -> Any:
        return await self.coordinators.handle("", command)


@dataclass
class StageEnv:
    given: int = 0

    def unique(self) -> bytes:
        self.given += 1
        return self.given.to_bytes(16, "big")


@dataclass
class StageCoordination:
    """What the table of the APIs takes from a broker for them."""

    groups: StageCoordinators
    internal_topics: Any


@dataclass
class Stage:
    driver: Driver = field(default_factory=Driver)
    internal_topics: Any = None

    def __post_init__(self) -> None:
        self.env = StageEnv()
        self.metadata = StageMetadata(StageImage(self.driver))
        self.groups = StageCoordinators(self.driver)
        self.coordination = StageCoordination(self.groups, self.internal_topics)
        self.replication = SimpleNamespace(in_sync=None)

    async def answer(self, request: Struct, version: int) -> Any:
        name = type(request).__name__
        _, key, *_ = MESSAGES[name]
        assert key is not None
        read = decode_request(key, version, memoryview(encode_request(key, version, request)))
        header = RequestHeader(key, version, 1, "client")
        response = ROUTES[key].bound(cast(Broker, self))(Session("127.0.0.1", 1234), header, read)
        if isinstance(response, Awaitable):
            response = await response
        parts = encode_response(key, version, response)
        return decode_response(key, version, b"".join(cast(list[bytes], parts)))

    def ask(self, request: Struct, version: int) -> Any:
        return asyncio.run(self.answer(request, version))

    @contextmanager
    def trouble(self, error: NotCoordinator | CoordinatorLoading) -> Iterator[None]:
        self.groups.trouble = error
        yield
        self.groups.trouble = None
