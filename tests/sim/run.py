"""One run of the whole broker: a seed in, a verdict out.

The broker is the real one, from its door to its log; simulated are the event loop, the network, the disk, the clocks
and the metadata store's server. A run goes: boot, create topics, work under faults, heal, settle, read everything, stop
cleanly, start, read everything again, judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from log.batch import CorruptBatch, read_records
from log.disk import DiskFault
from log.ids import ZERO_TOPIC_ID, TopicId, TopicPartition, folder_of
from log.relocation import FORMER, FUTURE, of_stem
from service.api.routes import OFFERED
from service.broker.found_folders import STRAY
from service.broker.node import Broker
from service.ports import Env
from service.process import listen
from service.settings.broker import BrokerConfig
from service.stores.memory import Fate as StoreFate
from service.stores.memory import Faults as StoreFaults
from service.stores.memory import MemoryServer, MemorySession, MemoryStore
from tests.sim.admin_checkers import ADMIN_CHECKERS
from tests.sim.administration import Porter, Recreator, Tinkerer
from tests.sim.branches import Driver, Preparer
from tests.sim.carrying import Carrier
from tests.sim.checkers import CHECKERS, EARLIEST, LATEST, Violation, judge
from tests.sim.disk import SimDisk
from tests.sim.env import SimEnv
from tests.sim.expiring import Expirer
from tests.sim.faults import Fate
from tests.sim.history import Crash, FinalLog, History, Record
from tests.sim.idempotent import IdempotentWriter
from tests.sim.loop import SimLoop
from tests.sim.plan import Plan, add_what_one_broker_has, draw_plan
from tests.sim.postman import Ghost, Postman
from tests.sim.repeating import Repeater
from tests.sim.replicas import epochs_unlike_batches
from tests.sim.sessions import SessionReader
from tests.sim.sharing import Sharer
from tests.sim.shortening import Shortener
from tests.sim.transactions import CommittedReader, Transactor, fetch_committed
from tests.sim.turns import busy_logs, short_turns
from tests.sim.txn_checkers import TXN_CHECKERS
from tests.sim.wavering import Waverer
from tests.sim.workload import BROKER, PORT, Actor, Clients, Reader, forever, start_clients, until_true
from tests.sim.world import Host, Stalled, World, come_true
from txn.records import BadRecord

LONGEST_RUN = 1500.0  # virtual seconds
NEVER_EXPIRES = 1e9


@dataclass(slots=True)
class Report:
    """What became of one run."""

    seed: int
    violations: list[Violation]
    fingerprint: int
    callbacks: int
    virtual_seconds: float
    faults: dict[str, int]
    deaths: int
    written: int
    acknowledged: int
    read: int
    trace: list[tuple[object, ...]] | None = None

    @property
    def right(self) -> bool:
        return not self.violations


@contextlib.contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Let `holder` have another attribute of that name for a while."""
    original = inspect.getattr_static(holder, name)  # a static method stays one
    assert _fits(value, original), f"what replaces {name} takes other arguments: a bug that fails at once is none"
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, original)


def _fits(value: Any, original: Any) -> bool:
    """Whether a function takes the arguments of the one that it replaces, each at its place."""
    functions = [each.__func__ if isinstance(each, staticmethod) else each for each in (value, original)]
    if not all(map(inspect.isfunction, functions)):
        return True
    given, taken = (
        [
            name
            for name, each in inspect.signature(function).parameters.items()
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        for function in functions
    )
    takes_more = any(each.kind is each.VAR_POSITIONAL for each in inspect.signature(functions[0]).parameters.values())
    at_their_places = all(name not in taken[1:] or taken[at] == name for at, name in list(enumerate(given))[1:])
    return at_their_places and (len(given) == len(taken) or (takes_more and len(given) < len(taken)))


def transactional_actors(clients: Clients) -> list[Actor]:
    """Two ids with two contenders each, one of them transforming input; an idempotent producer; a committed reader; two
    drivers of branches; one that prepares transactions which another decides; a former coordinator; and a postman that
    delivers their requests late and again.
    """
    postman = Postman(clients, "postman")

    def contender(name: str, transactional_id: str, *, transforms: bool, patience: float) -> Transactor:
        return Transactor(clients, name, transactional_id, postman, transforms=transforms, patience=patience)

    return [
        contender("mover1", "moves", transforms=True, patience=0.5),
        contender("mover2", "moves", transforms=True, patience=8.0),
        contender("feeder1", "feeds", transforms=False, patience=0.5),
        contender("feeder2", "feeds", transforms=False, patience=8.0),
        IdempotentWriter(clients, "idempotent", rests=False),
        CommittedReader(clients, "committed reader"),
        Driver(clients, "driver1", postman),
        Driver(clients, "driver2", postman),
        Preparer(clients, "preparer", postman),
        Ghost(clients, "ghost"),
        postman,
        *(one_brokers_actors(clients, postman) if clients.plan.brokers == 1 else ()),
    ]


def one_brokers_actors(clients: Clients, postman: Postman) -> tuple[Actor, ...]:
    return (
        Waverer(clients, "waverer", postman),
        IdempotentWriter(clients, "slow idempotent", rests=True),
        *(Sharer(clients, f"sharer{number}", postman) for number in (1, 2)),
    )


class SimStoreFaults(StoreFaults):
    """The metadata store answers late, or not at all."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._chance = world.stream("store")
        self._plan = plan
        self.healed = False

    def delay_s(self) -> float:
        return 2 * self._plan.store_delay_seconds * self._chance.random()

    def fate(self) -> StoreFate:
        if self.healed or self._chance.random() >= self._plan.store_loss:
            return StoreFate.ANSWERED
        return self._chance.choice((StoreFate.REQUEST_LOST, StoreFate.ANSWER_LOST))


class EmbeddedStore(MemoryStore):
    """As SQLite in the data folder: only one process can open it, so former sessions are over and its own never
    expires.
    """

    def __init__(self, server: MemoryServer, env: Env, faults: StoreFaults, former: list[int]) -> None:
        super().__init__(server, env, faults)
        self._embedded = server
        self._former = former

    async def session(self, timeout_s: float) -> MemorySession:
        while self._former:
            self._embedded.end_session(self._former.pop())
        session = await super().session(NEVER_EXPIRES)
        self._former.append(session.id)
        return session


class WorldClock:
    """The metadata store's own clock: it is on no host that fails."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def wall_ms(self) -> int:
        return int((self._world.epoch_seconds + self._world.now) * 1000)


@dataclass
class Simulation:
    """Everything of one run that a test may look at or change before the run begins."""

    seed: int
    trace: bool = False
    logged: bool = False  # what the broker logs goes where the process's logging sends it
    broker_class: type[Broker] = Broker
    world: World = field(init=False)
    plan: Plan = field(init=False)
    history: History = field(init=False)
    broker: Broker | None = field(init=False, default=None)
    finished: bool = field(init=False, default=False)
    replays_compared: int = field(init=False, default=0)
    _looked_at: tuple[SimLoop, int] | None = field(init=False, default=None)
    _damaged: set[tuple[TopicId, TopicPartition]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.world = World(self.seed, trace=self.trace)
        self.plan = draw_plan(self.world.stream("plan"))
        add_what_one_broker_has(self.plan, self.world.stream("plan of one broker"))
        self.history = History({wanted.topic.name: wanted.topic for wanted in self.plan.topics})
        self.clients = Clients(self.world, self.plan, self.history)
        self.store_faults = SimStoreFaults(self.world, self.plan)
        self._server = MemoryServer(WorldClock(self.world))
        self._sessions: list[int] = []

    def run(self) -> Report:
        if not self.logged:
            logging.disable(logging.CRITICAL)
        world = self.world
        try:
            with contextlib.ExitStack() as patches:
                patches.enter_context(short_turns(world.stream("turns")))
                if self.plan.busy_logs:
                    patches.enter_context(busy_logs(world.stream("busy logs"), self.clients.waited_for))
                self._start()
                world.run(until=LONGEST_RUN, stop=self._stop)
        except Stalled as error:
            self.history.stuck.append(f"the run stalled: {error}")
        finally:
            logging.disable(logging.NOTSET)
        return self._report()

    def _start(self) -> None:
        world = self.world
        disk = SimDisk(world.stream("disk"))
        disk.faults = self.plan.disk
        host = world.host(BROKER, self._broker_process, disk=disk)
        others = [
            SessionReader(self.clients, "session reader"),
            Recreator(self.clients, "recreator"),
            Tinkerer(self.clients, "tinkerer"),
            *self._movers(),
            Expirer(self.clients, "expirer"),
            *(transactional_actors(self.clients) if self.plan.transactional else ()),
            *([Shortener(self.clients, "shortener")] if self.plan.shortens else ()),
            *([Repeater(self.clients, "repeater")] if self.plan.repeats else ()),
        ]
        actors = start_clients(world, self.clients, others)
        self.fate = Fate(world, host, self.plan, self.history, list(actors))
        world.host("fate", forever(lambda: self.fate.run(lambda: self.clients.created)))
        world.host("judge", forever(self._conduct))

    def _movers(self) -> tuple[Actor, ...]:
        if self.plan.carries:
            return (Carrier(self.clients, "carrier"),)
        return (Porter(self.clients, "porter"),) if len(self.plan.folders) > 1 else ()

    def _stop(self) -> bool:
        self._look_inside()
        return self.finished or bool(self.world.failures)

    # -- the broker's process

    async def _broker_process(self, host: Host) -> None:
        """What `service.process` does with the real world, done with this one."""
        self.clients.waited_for.clear()  # who waited has died
        env = SimEnv(host, self.plan.folders[0])
        asked_to_stop = asyncio.Event()
        config = BrokerConfig({"listeners": f"PLAINTEXT://{BROKER}:{PORT}", **self.plan.settings})
        store = EmbeddedStore(self._server, env, self.store_faults, self._sessions)
        assert host.disk is not None
        first, *others = self.plan.folders
        disks = {first: env.disk, **{folder: host.disk.mount(folder) for folder in others}}
        broker = self.broker_class(env, config, store, disks, OFFERED)
        host.on_terminate = asked_to_stop.set
        found = Counter(name for each in self.plan.folders for name in host.disk.names(each))
        try:
            await broker.open()
            servers = await listen(broker)
        except DiskFault as fault:
            if not fault.passing:
                raise
            self.world.note("start failed", BROKER, str(fault))  # and it is started again
            return
        self._judge_what_went_aside(broker, found)
        self._judge_damage(broker)
        self.broker = broker
        self.fate.unused = {name for folder in broker.folders for name in folder.unused}
        await asked_to_stop.wait()
        for server in servers:
            await server.close()
        await broker.stop()

    def _judge_what_went_aside(self, broker: Broker, found: Counter[str]) -> None:
        """A partition was in two folders, as `found` says. That can be only if a disk failed before."""
        if self.broker is not None and any(folder.failed is not None for folder in self.broker.folders):
            return
        for name in {name for folder in broker.folders for name in folder.unused if name.endswith(STRAY)}:
            topic_id, index = of_stem(name.removesuffix(STRAY).rpartition(".")[0]) or (ZERO_TOPIC_ID, 0)
            partition = TopicPartition(broker.metadata.image.topic_names.get(topic_id, ""), index)
            if name not in self.fate.unused and found[folder_of(partition)] > 1:
                self.history.wrong.append(
                    f"{self.world.now:.6f} {partition} was in two folders, and no disk had failed"
                )

    def _judge_damage(self, broker: Broker) -> None:
        """What a start has found damaged, no later one serves. A full disk may have no room to note it."""
        for partition in broker.partitions:
            which = partition.topic_id, partition.topic_partition
            if partition.log.damage:
                if partition.folder.failed is None and not partition.folder.headroom.is_short:
                    self._damaged.add(which)
            elif which in self._damaged and not partition.offline:
                self.history.wrong.append(f"{self.world.now:.6f} {which[1]} was damaged, and is served")

    def _look_inside(self) -> None:
        """What must hold within the broker at any moment."""
        broker, loop = self.broker, self.world.hosts[BROKER].loop
        if broker is None or loop is None or (loop, loop.steps) == self._looked_at:
            return
        self._looked_at = (loop, loop.steps)
        needs_fsync = self.plan.durability == "fsync"
        for topic in broker.partitions._by_name.values():  # no copies: looking takes a good part of a run's time
            for partition in topic.values():
                replicas = partition._replicas
                if replicas is None:
                    continue
                log, high_watermark = partition.log, replicas.high_watermark
                end_offset = log.end_offset
                durable = log.durability.flushed_offset if needs_fsync else end_offset
                if not high_watermark <= durable <= end_offset:
                    self.history.wrong.append(
                        f"{self.world.now:.6f} {partition.topic_partition}: high watermark {high_watermark},"
                        f" durable {durable}, end {end_offset}"
                    )

    # -- the end of the run

    async def _conduct(self) -> None:
        await come_true(lambda: self.fate.finished)
        self.store_faults.healed = True
        self.clients.stopping = True
        await come_true(lambda: self.clients.settled == self.clients.expected)
        reader = Reader(self.clients, "last reader")
        await let_transactions_end(self.clients, reader)
        await read_all(self.clients, reader, self.history.final)
        self._compare_with_replays()
        await self._look_into_the_folders()
        await self.fate.restart()
        self.fate.broker.boot()
        await read_all(self.clients, reader, self.history.after_restart)
        self.finished = True

    async def _look_into_the_folders(self) -> None:
        """Nothing moves any more: each log is where its partition is said to be, knows who wrote it, and no move has
        left anything, but where the broker died as it was to remove a deleted topic: its start leaves what is of a
        topic that it doesn't know, and says so.
        """
        assert self.broker is not None
        broker = self.broker

        def is_of_no_topic(copy: str) -> bool:
            whose = of_stem(copy.removesuffix(FORMER).removesuffix(FUTURE))
            return whose is not None and whose[0] not in broker.metadata.image.topic_names

        def strange() -> list[str]:
            found = [
                f"{folder.name}/{name}"
                for folder in broker.folders
                for name in folder.disk.listdir("")
                if name.endswith((FORMER, FUTURE)) and not (name in folder.unused and is_of_no_topic(name))
            ]
            for partition in broker.partitions:
                name, log = folder_of(partition.topic_partition), partition.log
                if not partition.offline and (log.folder != name or log.disk is not partition.folder.disk):
                    found.append(f"{partition.topic_partition} in {log.folder}")
            return found

        if not await come_true(lambda: not strange(), within=5):
            self.history.wrong.append(f"moves between folders have left {strange()}")
        for partition in broker.partitions:
            if not partition.offline and (unlike := epochs_unlike_batches(partition)):
                self.history.wrong.append(f"{partition.topic_partition}: {unlike}")

    def _compare_with_replays(self) -> None:
        """Compare each live transaction coordinator with a replay of its log."""
        assert self.broker is not None
        coordinators = self.broker.coordination.transactions
        for shard in coordinators.shards():
            if not shard.loaded:
                continue
            replayed = coordinators._new_machine(shard.partition)
            try:
                for header, batch in shard.partition.log.scan(0):
                    for record in read_records(batch, header):
                        if record.key is not None:
                            replayed.apply(record.key, record.value)
            except (DiskFault, CorruptBatch, BadRecord):
                continue  # rotten, or another program's file: the next start passes over it or refuses it
            self.replays_compared += 1
            live, anew = ({txn.transactional_id: txn for txn in each.all()} for each in (shard.machine, replayed))
            if live != anew:
                differ = [name for name in live.keys() | anew.keys() if live.get(name) != anew.get(name)]
                self.history.wrong.append(
                    f"{shard.partition.topic_partition}: the coordinator that lives is not what its log makes:"
                    f" {sorted(differ)}"
                )

    def _report(self) -> Report:
        world, history = self.world, self.history
        host = world.hosts[BROKER]
        history.crashes.extend(Crash(moment, power) for moment, power in host.deaths)
        if not self.finished and not world.failures and not history.stuck:
            history.stuck.append(f"the run did not come to its end within {LONGEST_RUN} virtual seconds")
        violations = [Violation("NothingFailsUnseen", str(failure)) for failure in world.failures[:3]]
        violations += judge(history, CHECKERS + ADMIN_CHECKERS + (TXN_CHECKERS if self.plan.transactional else ()))
        report = Report(
            self.seed,
            violations,
            world.fingerprint,
            world.callbacks,
            world.now,
            self.fate.given,
            len(host.deaths),
            len(history.writes),
            sum(write.base_offset >= 0 for write in history.writes),
            sum(len(read.records) for read in history.reads),
            world.trace,
        )
        del history, host  # what goes by itself now isn't looked through when the rest is collected
        vars(self).clear()  # suspended parts of the broker and its clients end in `close`, and nothing hears them
        world.close()
        return report


def run(seed: int, *, trace: bool = False, tamper: Callable[[Simulation], None] = lambda _: None) -> Report:
    simulation = Simulation(seed, trace)
    tamper(simulation)
    return simulation.run()


def fresh_seed() -> int:
    """Where a range of seeds may begin that was most likely never run before."""
    return secrets.randbelow(10**6) * 10**4


def processes(jobs: int) -> ProcessPoolExecutor:
    """For many runs side by side. Each collects its leavings as it closes its world, and only then; what is loaded
    already isn't looked through.
    """
    return ProcessPoolExecutor(jobs, initializer=_leave_collecting_to_worlds)


def _leave_collecting_to_worlds() -> None:
    gc.disable()
    gc.freeze()


async def read_all(clients: Clients, reader: Reader, into: dict[TopicPartition, FinalLog]) -> None:
    history = clients.history
    for partition in clients.partitions():
        log = await reader.read_everything(partition)
        if log is not None and history.topics[partition.topic].transactional:
            await _read_committed(clients, reader, partition, log)
        if log is not None:
            into[partition] = log
        elif partition not in history.rotten:
            history.stuck.append(f"{reader.name} can't read {partition} to its end")


async def let_transactions_end(clients: Clients, reader: Reader) -> None:
    """Transactions that clients left open are aborted by time, and every decision gets its markers."""
    for partition in clients.partitions():
        if clients.history.topics[partition.topic].transactional:
            await until_true(clients, partial(_is_settled, reader, partition))


async def _is_settled(reader: Reader, partition: TopicPartition) -> bool:
    end = await reader.list_offset(partition, LATEST)
    read = None if end is None else await fetch_committed(reader, partition, end)
    return read is not None and read.last_stable_offset == read.high_watermark == end


async def _read_committed(clients: Clients, reader: Reader, partition: TopicPartition, log: FinalLog) -> None:
    """What read_committed shows of a partition that has come to rest, and its stable offset."""
    records: list[Record] = []
    offset = log.start_offset

    async def step() -> bool:
        nonlocal offset
        before = -1
        while before < offset < log.end_offset:  # a long log of small fetches needs no pause between them
            before = offset
            read = await fetch_committed(reader, partition, offset)
            if read is not None:
                records.extend(read.records)
                offset, log.last_stable_offset = read.to_offset, read.last_stable_offset
            elif clients.history.topics[partition.topic].passes:  # the log may begin further on by now
                log.start_offset = await reader.list_offset(partition, EARLIEST) or log.start_offset
                offset = max(offset, log.start_offset)
        return offset >= log.end_offset

    await until_true(clients, step)
    log.committed = tuple(record for record in records if record.offset >= log.start_offset)
