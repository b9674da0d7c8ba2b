"""A cluster's metadata on a store in memory, for tests: brokers, topics, a clock moved by hand."""

from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import TypeVar

from log.ids import TopicId
from log.steps import done_at_once
from service.cluster.controller import Command, MetadataDecision, RegisterBroker
from service.cluster.image import NO_LIFE, Image
from service.cluster.topic_commands import CreateTopics, NewTopic
from service.settings.broker import Endpoint
from service.stores.memory import MemoryServer
from service.stores.port import Change, Op, Result
from service.stores.watching import ChangeWatcher

ENDPOINTS = (Endpoint("PLAINTEXT", "localhost", 9092, "PLAINTEXT"),)

Reply = TypeVar("Reply")


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


class _Follower(ChangeWatcher):
    """Brings a world's image up to date with every commit."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def publish(self, change: Change) -> None:
        self._world.image = self._world.image.after(change).new


def decided(command: Command[Reply], image: Image, *, retried: bool = False) -> MetadataDecision[Reply]:
    """The decision, also of a command that decides in steps."""
    made = command.decide(image, retried=retried)
    return done_at_once(made) if isinstance(made, Generator) else made


class World:
    """Decisions carried out at once on a store in memory; the image follows by the changes alone."""

    def __init__(self) -> None:
        self.server = MemoryServer(HandClock())
        self.image = replace(Image(), number=0)
        self._sessions: dict[int, int] = {}
        self.server.add_watcher(0, _Follower(self))

    def run(self, command: Command[Reply], *, session: int | None = None) -> Reply:
        decision = decided(command, self.image)
        if decision.ops:
            self.commit(decision.ops, session=session)
        return decision.reply

    def commit(self, ops: Iterable[Op], *, session: int | None = None) -> None:
        used = self.server.open_session(1e9) if session is None else session
        assert self.server.commit(used, tuple(ops)) is Result.OK

    def refuses(self, command: Command[Reply], image: Image) -> bool:
        """Whether the store refuses what is decided by an old image."""
        ops = tuple(decided(command, image).ops)
        assert ops
        return self.server.commit(self.server.open_session(1e9), ops) is Result.CONFLICT

    def add_broker(
        self,
        broker_id: int,
        rack: str | None = None,
        *,
        clean: bool = True,
        closed_life: int | None = None,
        process: int | None = None,
        directories: tuple[str, ...] = (),
        lost: bool = False,
    ) -> int:
        session = self.server.open_session(1e9)
        partitions = [(topic.id, index) for topic in self.image.topics.values() for index in topic.partitions]
        if clean and closed_life is None:
            closed_life = self.image.lives.get(broker_id, NO_LIFE).epoch
        own_process = session if process is None else process
        command = RegisterBroker(
            *(broker_id, session, own_process, ENDPOINTS, rack, closed_life, directories),
            lost=partitions if lost else (),
        )
        epoch = self.run(command, session=session)
        assert isinstance(epoch, int)
        self._sessions[broker_id] = session
        return epoch

    def lose_broker(self, broker_id: int) -> None:
        self.server.end_session(self._sessions.pop(broker_id))

    def add_topic(self, name: str, number: int, partitions: int = 1, replicas: int = 1) -> None:
        (result,) = self.run(CreateTopics((NewTopic(name, topic_id(number), partitions, replicas),), 1, 1))
        assert result.topic is not None, result
