"""`python -m tests.sim.cluster`: three brokers in one simulated world, with the exactly-once workload.

Each broker has a disk, clocks and a way to the metadata store of its own. They share the store's server, whose sessions
expire. Beside the faults of a single broker there are those of many: one is cut off from some of the others or from the
store, in one direction or both; a session ends though its broker lives; all machines lose power together.

A run goes: boot, create topics, work under faults, heal, settle, read everything, restart every broker in turn, read
everything again, compare the replicas byte for byte, judge. tests/sim/many.py says what may be asked for.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from log.batch import split
from log.disk import DiskFault
from service.api.routes import OFFERED
from service.broker.node import Broker
from service.broker.partition import Partition
from service.cluster.metadata import MetadataLost
from service.process import listen
from service.settings.broker import BrokerConfig
from service.stores.memory import Fate as StoreFate
from service.stores.memory import Faults as StoreFaults
from service.stores.memory import MemoryServer, MemorySession, MemoryStore
from service.stores.port import Event, StoreError
from tests.sim.checkers import CHECKERS, HighWatermarkKeepsItsWord, Violation, judge
from tests.sim.disk import SimDisk
from tests.sim.env import SimEnv
from tests.sim.faults import CLEAN_STOP_WITHIN
from tests.sim.history import Crash, History
from tests.sim.many import Kind, main
from tests.sim.plan import Plan, draw_plan
from tests.sim.routing import Router
from tests.sim.run import (
    LONGEST_RUN,
    WorldClock,
    let_transactions_end,
    read_all,
    transactional_actors,
)
from tests.sim.txn_checkers import TXN_CHECKERS
from tests.sim.workload import PORT, Clients, Reader, forever, start_clients
from tests.sim.world import Host, Stalled, World, come_true

BROKERS = ("broker1", "broker2", "broker3")
ALIKE_WITHIN = 90.0
"""Virtual seconds after everything healed in which all replicas are in sync."""
KINDS = (
    "kill",
    "kill the controller",
    "power cut",
    "restart",
    "death after some callbacks",
    "death in a disk call",
    "pause",
    "long pause",
    "connections cut",
    "brokers split",
    "broker cut off",
    "slow network",
    "session ends",
    "store silent",
    "everything dies",
)
COSTS_MEMORY = ("power cut",)


class ClusterHistory(History):
    """A reader may meet another broker each time: nothing is said about one life of a broker."""

    def life(self, since: float, until: float) -> int | None:
        return None


def draw_cluster_plan(chance: random.Random) -> Plan:
    plan = draw_plan(chance)
    plan.brokers = plan.replication = len(BROKERS)
    likely = chance.choice((0.15, 0.3, 0.6))
    plan.kinds = tuple(kind for kind in KINDS if chance.random() < likely) or (chance.choice(KINDS),)
    if plan.durability != "fsync":
        plan.kinds = tuple(kind for kind in plan.kinds if kind not in COSTS_MEMORY) or ("kill",)
    plan.folders = ("data",)
    plan.down_seconds = chance.choice((0.02, 0.5, 5.0, 10.0))
    least = chance.choice(("1", "2", "2"))
    plan.settings |= {
        "log.durability": plan.durability,
        "broker.session.timeout.ms": chance.choice(("1500", "3000")),
        "replica.lag.time.max.ms": chance.choice(("1000", "3000")),
        "min.insync.replicas": least,
        "transaction.state.log.min.isr": least,
        "offsets.topic.replication.factor": "3",
        "leader.imbalance.check.interval.seconds": chance.choice(("3", "300")),
        "log.reserve.bytes": "0",
    }
    for each in plan.topics:
        each.configs.pop("compression.type", None)
    return plan


class BrokersWay(StoreFaults):
    """One broker's way to the metadata store."""

    def __init__(self, world: World, plan: Plan, name: str) -> None:
        self._chance = world.stream(f"store/{name}")
        self._plan = plan
        self.silent = False
        self.healed = False

    def delay_s(self) -> float:
        return 2 * self._plan.store_delay_seconds * self._chance.random()

    def fate(self) -> StoreFate:
        if self.silent:
            return StoreFate.REQUEST_LOST
        if self.healed or self._chance.random() >= self._plan.store_loss:
            return StoreFate.ANSWERED
        return self._chance.choice((StoreFate.REQUEST_LOST, StoreFate.ANSWER_LOST))


class FarSession(MemorySession):
    """What the store says on its own comes late too, and not at all while it is silent."""

    async def watch(self) -> AsyncIterator[Event]:
        way = self._faults
        assert isinstance(way, BrokersWay)
        async for event in super().watch():
            if delay_s := way.delay_s():
                await asyncio.sleep(delay_s)
            await come_true(lambda: not way.silent)
            yield event


class FarStore(MemoryStore):
    async def session(self, timeout_s: float) -> MemorySession:
        assert isinstance(self._faults, BrokersWay)
        if self._faults.silent:
            await asyncio.sleep(timeout_s)
            raise StoreError("the metadata store does not answer")
        session = FarSession(self._server, self._env, self._faults, timeout_s)
        self._sessions.append(session)
        return session


@dataclass
class ClusterReport:
    seed: int
    violations: list[Violation]
    fingerprint: int
    callbacks: int
    virtual_seconds: float
    faults: Counter[str]
    written: int
    acknowledged: int
    read: int
    elections: int
    trace: list[tuple[Any, ...]] | None = None

    @property
    def right(self) -> bool:
        return not self.violations


@dataclass
class ClusterSimulation:
    seed: int
    trace: bool = False
    logged: bool = False
    broker_class: type[Broker] = Broker
    world: World = field(init=False)
    plan: Plan = field(init=False)
    history: History = field(init=False)
    finished: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        world = self.world = World(self.seed, trace=self.trace)
        self.plan = draw_cluster_plan(world.stream("plan"))
        self.history = ClusterHistory(
            {wanted.topic.name: wanted.topic for wanted in self.plan.topics}, replicas_compact=True
        )
        self.clients = Clients(world, self.plan, self.history)
        self.clients.node_ids = {name: number for number, name in enumerate(BROKERS, 1)}
        self.clients.new_line = lambda clients, name: Router(clients, name, BROKERS)
        self.server = MemoryServer(WorldClock(world))
        self.ways = {name: BrokersWay(world, self.plan, name) for name in BROKERS}
        self.brokers: dict[str, Broker] = {}
        self.leaders: dict[tuple[bytes, int, int], str] = {}
        self._looked_at: dict[str, tuple[Any, int]] = {}
        self._high_watermarks: dict[tuple[str, tuple[bytes, int, int]], int] = {}

    # -- the run

    def run(self) -> ClusterReport:
        if not self.logged:
            logging.disable(logging.CRITICAL)
        try:
            self._start()
            self.world.run(until=LONGEST_RUN, stop=self._stop)
        except Stalled as error:
            self.history.stuck.append(f"the run stalled: {error}")
        finally:
            logging.disable(logging.NOTSET)
        return self._report()

    def _start(self) -> None:
        world = self.world
        for name in BROKERS:
            disk = SimDisk(world.stream(f"disk/{name}"))
            disk.faults = self.plan.disk
            world.host(name, self._broker_process, disk=disk)
        others = transactional_actors(self.clients) if self.plan.transactional else ()
        actors = start_clients(world, self.clients, others)
        self.fate = ClusterFate(self, list(actors))
        world.host("fate", forever(self.fate.run))
        world.host("judge", forever(self._conduct))

    def _stop(self) -> bool:
        self._look_inside()
        return self.finished or bool(self.world.failures)

    async def _broker_process(self, host: Host) -> None:
        env = SimEnv(host, self.plan.folders[0])
        asked_to_stop = asyncio.Event()
        given = {
            "listeners": f"PLAINTEXT://{host.name}:{PORT}",
            "node.id": str(self.clients.node_ids[host.name]),
            "store.url": "postgresql://simulated",
            **self.plan.settings,
        }
        store = FarStore(self.server, env, self.ways[host.name])
        broker = self.broker_class(env, BrokerConfig(given), store, {self.plan.folders[0]: env.disk}, OFFERED)
        host.on_terminate = asked_to_stop.set
        try:
            await broker.open()
            servers = await listen(broker)
        except (DiskFault, MetadataLost, StoreError) as fault:  # a start that is made again by whoever made it
            if isinstance(fault, DiskFault) and not fault.passing:
                raise
            self.world.note("start failed", host.name, str(fault))
            return
        self.brokers[host.name] = broker
        await asked_to_stop.wait()
        await broker.hand_over()
        for server in servers:
            await server.close()
        await broker.stop()

    # -- what must hold at any moment

    def _look_inside(self) -> None:
        for name in BROKERS:
            broker, loop = self.brokers.get(name), self.world.hosts[name].loop
            if broker is None or loop is None or self._looked_at.get(name) == (loop, loop.steps):
                continue
            self._looked_at[name] = (loop, loop.steps)
            for partition in broker.partitions:
                if partition.replicas is not None:
                    self._look_at_leader(name, partition)

    def _look_at_leader(self, name: str, partition: Partition) -> None:
        replicas = partition.replicas
        assert replicas is not None
        wrong, when = self.history.wrong, f"{self.world.now:.6f} {partition.topic_partition} on {name}"
        key = (bytes(partition.topic_id), partition.topic_partition.partition, partition.leader_epoch)
        if self.leaders.setdefault(key, name) != name:
            wrong.append(f"{when}: leads in epoch {partition.leader_epoch}, as {self.leaders[key]} did")
        high_watermark = partition.high_watermark
        before = self._high_watermarks.get((name, key), partition.high_watermark)
        self._high_watermarks[name, key] = high_watermark
        if high_watermark == before:
            return
        known = self.brokers[name].image.brokers
        for member in dict.fromkeys((*replicas.isr, *replicas.pending_isr)):
            other = self.brokers.get(BROKERS[member - 1])
            if other is None or member not in known or known[member].epoch != other.metadata.broker_epoch:
                continue  # the leader has not heard of its new life
            held = self._held_by(BROKERS[member - 1], partition)
            if held is not None and high_watermark > held:
                wrong.append(f"{when}: high watermark {high_watermark}, but broker {member} holds {held}")

    def _held_by(self, name: str, partition: Partition) -> int | None:
        """What a broker that lives holds of a partition."""
        broker, loop = self.brokers.get(name), self.world.hosts[name].loop
        other = None if broker is None or loop is None else broker.partitions.get(partition.topic_partition)
        if other is None or other.topic_id != partition.topic_id:
            return None
        return other.log.flushed_offset if self.plan.durability == "fsync" else other.log.end_offset

    # -- the end of the run

    async def _conduct(self) -> None:
        await come_true(lambda: self.fate.finished)
        self.clients.stopping = True
        await come_true(lambda: self.clients.settled == self.clients.expected)
        reader = Reader(self.clients, "last reader")
        await let_transactions_end(self.clients, reader)
        await self._compare_replicas()  # first of all: what nobody waited for may not be committed yet
        await read_all(self.clients, reader, self.history.final)
        for name in BROKERS:
            await self.fate.restart(name)
            self.world.hosts[name].boot()
            await self._all_in_sync(f"after the restart of {name}")
        await read_all(self.clients, reader, self.history.after_restart)
        await self._compare_replicas()
        self.finished = True

    async def _all_in_sync(self, when: str) -> bool:
        if await come_true(lambda: not self._out_of_sync(), within=ALIKE_WITHIN, every=0.2):
            return True
        lacking = ", ".join(self._out_of_sync()[:5])
        self.history.stuck.append(f"{when} replicas are not in sync within {ALIKE_WITHIN} s: {lacking}")
        return False

    def _out_of_sync(self) -> list[str]:
        broker = self.brokers[BROKERS[0]]
        lacking = [
            f"{topic.name}-{index} {state.isr} of {state.replicas}, leader {state.leader}"
            for topic in broker.image.topics.values()
            for index, state in topic.partitions.items()
            if set(state.isr) != set(state.replicas) or state.leader not in broker.image.brokers
        ]
        return lacking or [f"{name} is not there" for name in BROKERS if self._absent(name)]

    def _absent(self, name: str) -> bool:
        broker = self.brokers.get(name)
        return not self.world.hosts[name].alive or broker is None or not broker.metadata.in_session

    async def _compare_replicas(self) -> None:
        if not await self._all_in_sync("after healing"):
            return
        for partition in list(self.brokers[BROKERS[0]].partitions):
            if not await come_true(lambda partition=partition: not self._difference(partition), within=30, every=0.2):  # type: ignore[misc]
                self.history.wrong.append(f"{partition.topic_partition}: {self._difference(partition)}")

    def _difference(self, partition: Partition) -> str:
        """How the replicas of a partition differ where they hold the same offsets."""
        state = self.brokers[BROKERS[0]].image.partition(partition.topic_partition)
        members = state.replicas if state is not None else ()
        replicas = [self.brokers[BROKERS[member - 1]].partitions.get(partition.topic_partition) for member in members]
        held = [replica for replica in replicas if replica is not None]
        ends = [replica.log.end_offset for replica in held]
        if len(held) < len(members) or len(dict.fromkeys(ends)) > 1:
            return f"the replicas end at {ends}"
        if any(replica.high_watermark < ends[0] for replica in held):
            return f"the replicas end at {ends[0]}, but know {[replica.high_watermark for replica in held]}"
        start = max(replica.log.start_offset for replica in held)
        if "compact" not in held[0].log.config.cleanup_policy:
            contents = [stored(replica, start) for replica in held]
            if any(content != contents[0] for content in contents):
                return f"the replicas differ between {start} and {ends[0]}"
        open_ones = [sorted(replica.stable.open_transactions.items()) for replica in held]
        return "" if all(each == open_ones[0] for each in open_ones) else f"open transactions: {open_ones}"

    def _report(self) -> ClusterReport:
        world, history = self.world, self.history
        for name in BROKERS:
            history.crashes.extend(Crash(moment, power) for moment, power in world.hosts[name].deaths)
        history.crashes.sort(key=lambda crash: crash.at)
        if not self.finished and not world.failures and not history.stuck:
            history.stuck.append(f"the run did not come to its end within {LONGEST_RUN} virtual seconds")
        violations = [Violation("NothingFailsUnseen", str(failure)) for failure in world.failures[:3]]
        checkers = tuple(each for each in CHECKERS if not isinstance(each, HighWatermarkKeepsItsWord))
        violations += judge(history, checkers + (TXN_CHECKERS if self.plan.transactional else ()))
        report = ClusterReport(
            self.seed,
            violations,
            world.fingerprint,
            world.callbacks,
            world.now,
            self.fate.given,
            len(history.writes),
            sum(write.base_offset >= 0 for write in history.writes),
            sum(len(read.records) for read in history.reads),
            len(self.leaders),
            world.trace,
        )
        vars(self).clear()
        world.close()
        return report


def stored(partition: Partition, start: int) -> list[tuple[int, int, int, int]]:
    """Every batch that holds offsets from `start` on: where it stands, its epoch and its checksum."""
    found, offset = [], start
    while offset < partition.log.end_offset:
        piece = partition.log.read(offset, max_bytes=1 << 30, limit_offset=partition.log.end_offset, at_least_one=True)
        if piece is None:
            break
        for header, _ in split(bytes(piece.read())):
            found.append((header.base_offset, header.next_offset, header.leader_epoch, header.crc))
        offset = found[-1][1]
    return found


class ClusterFate:
    """The faults of one run. `finished` tells that everything is healed and every broker is up."""

    def __init__(self, simulation: ClusterSimulation, clients: list[str]) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._plan = simulation.plan
        self._clients = clients
        self._chance = simulation.world.stream("fate")
        self.finished = False
        self.given: Counter[str] = Counter()
        self._deeds: dict[str, Callable[[Host], Coroutine[Any, Any, None]]] = {
            "kill": self._kill,
            "kill the controller": self._kill_controller,
            "power cut": self._cut_power,
            "restart": lambda host: self.restart(host.name),
            "death after some callbacks": self._die_after_some_callbacks,
            "death in a disk call": self._die_in_a_disk_call,
            "pause": lambda host: self._pause(host, 1.0),
            "long pause": lambda host: self._pause(host, 10.0),
            "connections cut": self._cut_connections,
            "brokers split": self._split,
            "broker cut off": self._cut_off,
            "slow network": self._slow_network,
            "session ends": self._end_session,
            "store silent": self._silence_store,
            "everything dies": self._end_everything,
        }

    async def run(self) -> None:
        await come_true(lambda: self._simulation.clients.created)
        begun = self._world.now
        while self._world.now - begun < self._plan.fault_seconds:
            await asyncio.sleep(self._chance.expovariate(1 / self._plan.calm_seconds))
            kind = self._chance.choice(self._plan.kinds)
            self.given[kind] += 1
            host = self._world.hosts[self._chance.choice(BROKERS)]
            self._world.note("fault", kind, host.name)
            await self._deeds[kind](host)
            for name in BROKERS:
                host = self._world.hosts[name]
                if not host.alive and self._chance.random() < 0.7:
                    await asyncio.sleep(self._plan.down_seconds * self._chance.random())
                    host.boot()
        await self._heal()

    async def _heal(self) -> None:
        for name, way in self._simulation.ways.items():
            host = self._world.hosts[name]
            way.silent, way.healed = False, True
            host.resume()
            host.fuse = None
            assert host.disk is not None
            host.disk.trip = None
            host.disk.heal()
        self._world.network.slowness.clear()
        self._world.network.heal()
        while True:
            for name in BROKERS:
                if not self._world.hosts[name].alive:
                    self._world.hosts[name].boot()
            if await come_true(lambda: any(not self._world.hosts[name].alive for name in BROKERS), within=5.0):
                continue
            break
        self.finished = True

    # -- processes and machines

    async def restart(self, name: str) -> None:
        host = self._world.hosts[name]
        host.terminate()
        if not await come_true(lambda: not host.alive, within=CLEAN_STOP_WITHIN):
            self._simulation.history.stuck.append(f"{name} did not stop within {CLEAN_STOP_WITHIN} s of SIGTERM")
            host.kill()

    async def _kill(self, host: Host) -> None:
        host.kill()

    async def _kill_controller(self, host: Host) -> None:
        broker = self._simulation.brokers.get(host.name)
        controller = broker.image.controller_id if broker is not None else -1
        self._world.hosts[BROKERS[controller - 1] if controller > 0 else host.name].kill()

    async def _cut_power(self, host: Host) -> None:
        host.cut_power()

    async def _die_after_some_callbacks(self, host: Host) -> None:
        memory = self._plan.durability == "fsync" and self._chance.random() < 0.5
        host.light_fuse(self._chance.choice((1, 30, 300, 3000)), host.cut_power if memory else host.kill)
        await come_true(lambda: not host.alive, within=3)

    async def _die_in_a_disk_call(self, host: Host) -> None:
        assert host.disk is not None
        place = self._chance.choice(("", ".log", "snapshot", "checkpoint", "__consumer", "__transaction"))
        host.disk.trip_after(self._chance.choice((1, 3, 30)), host.kill, path_part=place)
        await come_true(lambda: not host.alive, within=3)
        host.disk.trip = None

    async def _pause(self, host: Host, longest_s: float) -> None:
        host.pause()
        await asyncio.sleep(longest_s * self._chance.random())
        host.resume()

    async def _end_everything(self, host: Host) -> None:
        power = self._plan.durability == "fsync" and self._chance.random() < 0.7
        for name in BROKERS:
            each = self._world.hosts[name]
            if power:
                each.cut_power()
            else:
                each.kill()

    # -- the network and the store

    async def _cut_connections(self, host: Host) -> None:
        self._world.network.cut_connections(host.name, self._chance.choice((0.3, 1.0)))

    async def _split(self, host: Host) -> None:
        """Some brokers don't hear some others."""
        for source in BROKERS:
            for target in BROKERS:
                if source != target and self._chance.random() < 0.4:
                    self._world.network.block(source, target)
        await asyncio.sleep(8 * self._chance.random())
        self._world.network.heal()

    async def _cut_off(self, host: Host) -> None:
        """Nobody hears one broker, or it hears nobody; maybe the store neither."""
        way = self._simulation.ways[host.name]
        way.silent = self._chance.random() < 0.5
        inward, outward = self._chance.choice(((True, True), (True, False), (False, True)))
        for other in (*self._clients, *BROKERS):
            if other != host.name and inward:
                self._world.network.block(other, host.name)
            if other != host.name and outward:
                self._world.network.block(host.name, other)
        await asyncio.sleep(8 * self._chance.random())
        way.silent = False
        self._world.network.heal()

    async def _slow_network(self, host: Host) -> None:
        self._world.network.slowness[host.name] = self._chance.choice((0.0, 0.05, 0.5))

    async def _end_session(self, host: Host) -> None:
        """The store takes a broker for dead that lives."""
        broker = self._simulation.brokers.get(host.name)
        own = broker.image.brokers.get(broker.node_id) if broker is not None else None
        if own is not None:
            self._simulation.server.end_session(own.session)

    async def _silence_store(self, host: Host) -> None:
        chosen = [name for name in BROKERS if name == host.name or self._chance.random() < 0.3]
        for name in chosen:
            self._simulation.ways[name].silent = True
        await asyncio.sleep(8 * self._chance.random())
        for name in chosen:
            self._simulation.ways[name].silent = False


def run(
    seed: int, *, trace: bool = False, tamper: Callable[[ClusterSimulation], None] = lambda _: None
) -> ClusterReport:
    simulation = ClusterSimulation(seed, trace)
    tamper(simulation)
    return simulation.run()


KIND = Kind(ClusterSimulation, "sim-cluster", ("callbacks", "written", "acknowledged", "read", "elections"))

if __name__ == "__main__":
    sys.exit(main(KIND, prog="python -m tests.sim.cluster", description=(__doc__ or "").splitlines()[0]))
