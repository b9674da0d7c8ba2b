"""Several real brokers in one process, with one metadata store: they speak to each other over loopback."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from log.batch import BatchHeader, build_batch
from log.disk import RealDisk
from log.ids import TopicPartition
from service.api.routes import OFFERED
from service.broker.node import Broker
from service.broker.partition import Appended, Partition
from service.broker.session import Session
from service.cluster.image import PartitionState
from service.net.server import Server
from service.ports import RealEnv
from service.process import listen
from service.settings.broker import BrokerConfig
from service.stores.memory import MemoryServer, MemoryStore
from service.wire.messages import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tests.loops import Loop
from tests.service.api.admin_stage import Stage
from tests.service.api.txn_stage import TxnStage

QUICK = {
    "log.reserve.bytes": "0",
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "http.listeners": "",
    "replica.fetch.backoff.ms": "50",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "100",
}
SECOND = "-second"
"""The ending of a broker's second data folder, which it has if somebody has made it."""
TOPIC = "orders"
TOPICS, BROKERS = 2, 4
ALL = ""


async def until(holds: Callable[[], bool], *, within_s: float = 15) -> None:
    """Wait for what happens by itself."""
    async with asyncio.timeout(within_s):
        for _ in iter(holds, True):
            await asyncio.sleep(0.005)


@contextmanager
def told_late(broker: Broker) -> Iterator[asyncio.Event]:
    """This broker hears of no change of the metadata until the event is set."""
    heard, metadata = asyncio.Event(), broker.metadata
    take = metadata._take

    async def later(change: object) -> None:
        await heard.wait()
        await take(change)  # type: ignore[arg-type]

    metadata._take = later  # type: ignore[method-assign]
    try:
        yield heard
    finally:
        heard.set()


class Life:
    """A broker from its start to its stop or death."""

    def __init__(self, broker: Broker, disks: Sequence[RealDisk], servers: list[Server[Session]]) -> None:
        self.broker = broker
        self.disks = disks
        self.servers = servers


class ClusterStage:
    def __init__(self, folder: Path, given: dict[str, str], each: Callable[[int], dict[str, str]]) -> None:
        self._folder = folder
        self._given = given
        self._each = each
        self._server: MemoryServer | None = None
        self.lives: dict[int, Life] = {}

    def beside(self, folder: Path) -> "ClusterStage":
        """Brokers of the same cluster with data folders elsewhere, for copies of those here."""
        stage = ClusterStage(folder, self._given, self._each)
        stage._server = self._server
        return stage

    async def start(self, node_id: int) -> Broker:
        (self._folder / str(node_id)).mkdir(exist_ok=True)
        named = [self._folder / f"{node_id}{ending}" for ending in ("", SECOND)]
        disks = {str(folder): RealDisk(str(folder)) for folder in named if folder.exists()}
        env = RealEnv(next(iter(disks.values())))
        self._server = self._server or MemoryServer(env.clock)
        config = BrokerConfig({"node.id": str(node_id), **QUICK, **self._given, **self._each(node_id)})
        broker = Broker(env, config, MemoryStore(self._server, env), disks, OFFERED)
        await broker.open()
        self.lives[node_id] = Life(broker, list(disks.values()), await listen(broker))
        return broker

    async def stop(self, node_id: int) -> None:
        """In order: the next start finds everything closed."""
        life = self.lives.pop(node_id)
        for server in life.servers:
            await server.close()
        await life.broker.stop()
        for disk in life.disks:
            disk.close()

    async def kill(self, node_id: int) -> None:
        """Its tasks and connections end where they are, and its session with the store goes at once."""
        life = self.lives.pop(node_id)
        for server in life.servers:
            await server.close()
        await life.broker.env.tasks.cancel_all()
        for partition in life.broker.partitions:
            partition.resign()
        await life.broker.metadata.close()
        for disk in life.disks:
            disk.close()

    def end_session(self, node_id: int) -> None:
        """The store takes a broker for dead that lives."""
        own = self.broker(node_id).metadata.image.brokers[node_id]
        assert self._server is not None
        self._server.end_session(own.session)

    def broker(self, node_id: int) -> Broker:
        return self.lives[node_id].broker

    async def create(self, *replicas: int, name: str = TOPIC, **config: str) -> None:
        """A topic of one partition with these replicas, the first of which leads. Dots are written as underscores."""
        topic = CreatableTopic(
            name,
            -1,
            -1,
            assignments=[CreatableReplicaAssignment(0, list(replicas))],
            configs=[CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()],
        )
        stage = Stage(self.broker(replicas[0] if replicas[0] in self.lives else next(iter(self.lives))))
        answer = await stage.ask(CreateTopicsRequest([topic]))
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        for replica in replicas:
            await until(lambda replica=replica: self.holds(replica, name))  # type: ignore[misc]

    async def configure(self, kind: int, name: str, key: str, value: str, *, asked: int = 1) -> None:
        """Without a value the setting is taken away."""
        operation = 0 if value else 1
        change = IncrementalAlterConfigsRequestAlterableConfig(key, operation, value or None)
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, [change])
        answer = await self.wire(asked).ask(IncrementalAlterConfigsRequest([resource]))
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message

    def wire(self, node_id: int) -> TxnStage:
        """To ask a broker what a client asks."""
        return TxnStage(self.broker(node_id))

    def holds(self, node_id: int, name: str = TOPIC) -> bool:
        return self.broker(node_id).partitions.get(TopicPartition(name, 0)) is not None

    def partition(self, node_id: int) -> Partition:
        partition = self.broker(node_id).partitions.get(TopicPartition(TOPIC, 0))
        assert partition is not None
        return partition

    def state(self) -> PartitionState:
        """As the broker sees it that has seen most."""
        images = [life.broker.metadata.image for life in self.lives.values()]
        state = max(images, key=lambda image: image.number).partition(TopicPartition(TOPIC, 0))
        assert state is not None
        return state

    def leader(self) -> Partition | None:
        """The leader of the latest epoch."""
        state = self.state()
        if state.leader not in self.lives:
            return None
        partition = self.partition(state.leader)
        leads = partition.is_leading and partition.leader_epoch == state.leader_epoch
        return partition if leads else None

    async def in_sync(self, *members: int) -> None:
        await until(lambda: set(self.state().isr) == set(members) and self.leader() is not None)

    async def write(self, *values: str, acks: int = -1, **of: Any) -> Appended:
        """By the leader. With acks=all it returns when they are committed."""
        await until(lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None
        batch = bytearray(build_batch([(b"k", value.encode(), (), 1) for value in values], **of))
        outcome = leader.append_from_client(memoryview(batch), acks=acks, now_ms=1, needs_guard=False)
        assert isinstance(outcome, Appended), outcome
        if acks == -1 and (committed := leader.committed(outcome.end_offset)) is not None:
            async with asyncio.timeout(15):
                await committed
        return outcome

    async def alike(self, *node_ids: int) -> None:
        """Until all hold the same."""
        await until(lambda: len({(tuple(stored(self.partition(each)))) for each in node_ids}) == 1)


def stored(partition: Partition) -> list[tuple[int, int, int]]:
    """Offset, leader epoch and checksum of every batch."""
    return [_facts(header) for header, _ in partition.log.scan(partition.log.start_offset)]


def _facts(header: BatchHeader) -> tuple[int, int, int]:
    return header.base_offset, header.leader_epoch, header.crc


def on_cluster_stage(
    folder: Path,
    scene: Callable[[ClusterStage], Awaitable[None]],
    *node_ids: int,
    given: dict[str, str] | None = None,
    each: Callable[[int], dict[str, str]] = lambda node_id: {},
) -> None:
    async def main() -> None:
        stage = ClusterStage(folder, given or {}, each)
        try:
            for node_id in node_ids or (1, 2, 3):
                await stage.start(node_id)
            await scene(stage)
        finally:
            for node_id in list(stage.lives):
                await stage.stop(node_id)

    uvloop.run(main(), loop_factory=Loop)  # on uvloop, as a broker does
