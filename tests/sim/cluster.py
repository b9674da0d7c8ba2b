"""`python -m tests.sim.cluster`: three to five brokers in one simulated world, with the exactly-once workload.

Each broker has a disk, clocks and a way to the metadata store of its own. They share the store's server, whose sessions
expire. Beside the faults of a single broker there are those of many: one is cut off from some of the others or from the
store, in one direction or both; a session ends though its broker lives; all machines lose power together; clocks go
apart. Partitions move to other brokers while all that happens.

A run goes: boot, create topics, work under faults, heal, wait until all replicas are in sync, settle, read everything,
restart every broker in turn, read everything again, compare the replicas byte for byte, judge. tests/sim/many.py says
what may be asked for.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import service.broker.standby
from log.disk import DiskFault
from log.ids import TopicPartition
from service.api.routes import OFFERED
from service.broker.node import Broker
from service.broker.partition import Partition
from service.broker.peers import PeerAway, Peers
from service.broker.replication import Fetcher, FollowedPartition
from service.cluster.image import load
from service.cluster.metadata import MetadataLost
from service.process import listen
from service.settings.broker import BrokerConfig
from service.stores.memory import Fate as StoreFate
from service.stores.memory import Faults as StoreFaults
from service.stores.memory import MemoryServer, MemorySession, MemoryStore
from service.stores.port import Event, StoreError
from tests.sim.administration import Porter
from tests.sim.checkers import CHECKERS, Checker, HighWatermarkKeepsItsWord, Violation, judge
from tests.sim.cluster_faults import ALONE, ClusterFate, draw_cluster_plan
from tests.sim.cluster_operator import Operator
from tests.sim.disk import SimDisk
from tests.sim.env import SimEnv
from tests.sim.history import Crash, History
from tests.sim.late_markers import LateMarkers
from tests.sim.many import Kind, main
from tests.sim.plan import Plan
from tests.sim.replicas import (
    agree_up_to,
    difference,
    same_groups,
    same_transactions,
    transactions,
    unlike_its_log,
    unlike_own_log,
)
from tests.sim.routing import Router
from tests.sim.run import (
    LONGEST_RUN,
    WorldClock,
    let_transactions_end,
    read_all,
    replaced,
    transactional_actors,
)
from tests.sim.turns import short_turns
from tests.sim.txn_checkers import TXN_CHECKERS
from tests.sim.workload import PORT, Actor, Clients, Reader, forever, start_clients
from tests.sim.world import Host, Stalled, World, come_true

CAUGHT_UP_WITHIN = 45.0
"""Virtual seconds after everything healed in which every partition is led and each of its replicas has been in sync,
though clients go on with their work. That makes some lag now and then, so not all are at the same time.
"""
LOOKED_AT_EVERY = 2
"""Only in every second leader epoch a new leader's folds are compared with its log, because that takes time."""
ALIKE_WITHIN = 90.0
"""Virtual seconds in which all replicas are in sync when clients have come to rest."""


MOVED_WITHIN = 1_200.0
"""Virtual seconds in which all moves between folders end. They go one after the other, on disks that stall."""


class ClusterHistory(History):
    """A reader may meet another broker each time: nothing is said about one life of a broker."""

    def life(self, since: float, until: float) -> int | None:
        return None


class BrokersWay(StoreFaults):
    """One broker's way to the metadata store."""

    def __init__(self, world: World, plan: Plan, name: str) -> None:
        self._chance = world.stream(f"store/{name}")
        self._plan = plan
        self.silent = False
        self.is_late = False
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
    """What the store tells without being asked comes late, too, and does not come while it is silent."""

    async def watch(self) -> AsyncIterator[Event]:
        way = self._faults
        assert isinstance(way, BrokersWay)
        async for event in super().watch():
            if delay_s := way.delay_s():
                await asyncio.sleep(delay_s)
            await come_true(lambda: not way.silent and not way.is_late)
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


class Door(Protocol):
    async def close(self) -> None: ...


class Heard(logging.Handler):
    """What brokers log about unexpected errors. They go on, but such a run counts as failed."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            host = self._world.current.host.name if self._world.current is not None else "world"
            self._world.failed(host, record.getMessage(), error)


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
    synced_after: float
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
        self.names = tuple(f"broker{number}" for number in range(1, self.plan.brokers + 1))
        self.clients.node_ids = {name: number for number, name in enumerate(self.names, 1)}
        self.clients.new_line = lambda clients, name: Router(clients, name, self.names)
        self.server = MemoryServer(WorldClock(world))
        self.ways = {name: BrokersWay(world, self.plan, name) for name in self.names}
        self.brokers: dict[str, Broker] = {}
        self.leaders: dict[tuple[bytes, int, int], str] = {}
        self._epochs_began: dict[tuple[bytes, int, int], int] = {}
        """Where each began in the log of its leader."""
        self.synced_after = 0.0
        self._looked_at: dict[str, tuple[Any, int]] = {}
        self._told: dict[Partition, tuple[int, int, int]] = {}
        self._committed: dict[tuple[bytes, int], dict[int, int]] = {}
        """The high watermarks that leaders have reached, by their epochs."""
        self._were_in_sync: dict[tuple[str, int], dict[int, None]] = {}

    # -- the run

    def run(self) -> ClusterReport:
        heard = Heard(self.world)
        brokers = logging.getLogger("oncelog")
        brokers.addHandler(heard)
        if not self.logged:
            brokers.propagate = False
            logging.disable(logging.WARNING)
        try:
            with (
                short_turns(self.world.stream("turns")),
                replaced(service.broker.standby, "AT_ONCE_BYTES", self.plan.standby_bytes),
                replaced(service.broker.standby, "REST_S", self.plan.standby_rest_s),
                self._answers_lost(),
                self._start_over_at_times(),
            ):
                self._start()
                self.world.run(until=LONGEST_RUN, stop=self._stop)
        except Stalled as error:
            self.history.stuck.append(f"the run stalled: {error}")
        finally:
            logging.disable(logging.NOTSET)
            brokers.propagate = True
            brokers.removeHandler(heard)
        return self._report()

    def _answers_lost(self) -> AbstractContextManager[None]:
        """Some answers of a broker to another one get lost, so the question comes again: the network repeats it. What
        clients send is repeated by the postman, and by their own tries.
        """
        chance, ask = self.world.stream("answers"), Peers.ask

        async def ask_in_vain(peers: Peers, broker_id: int, request: Any, **how: Any) -> Any:
            answer = await ask(peers, broker_id, request, **how)
            if not self.fate.finished and chance.random() < self.plan.answers_lost:
                self.fate.given["answer between brokers lost"] += 1
                raise PeerAway("its answer was lost", may_come_late=True)
            return answer

        return replaced(Peers, "ask", ask_in_vain)

    def _start_over_at_times(self) -> AbstractContextManager[None]:
        """A follower that is behind may start over whenever it likes: nobody counts on what it has."""
        chance, take = self.world.stream("starts over"), Fetcher._take_one

        async def take_one(fetcher: Fetcher, followed: FollowedPartition, data: Any, turn: Any) -> None:
            log = followed.partition.log
            is_behind = not data.error_code and not followed.role.in_sync and log.end_offset < data.high_watermark
            if is_behind and log.config.compacts and not self.fate.finished and chance.random() < 0.2:
                self.fate.given["made to start over"] += 1
                await asyncio.sleep(chance.random())  # a cleaner may begin
                await fetcher._start_over(followed, data.log_start_offset)
                return
            await take(fetcher, followed, data, turn)

        return replaced(Fetcher, "_take_one", take_one)

    def _start_brokers(self) -> None:
        for name in self.names:
            disk = SimDisk(self.world.stream(f"disk/{name}"))
            disk.faults = self.plan.disk
            self.world.host(name, self._broker_process, disk=disk)

    def _start(self) -> None:
        world = self.world
        self._start_brokers()
        others: list[Actor] = [Operator(self.clients, "operator")] if self.plan.moves else []
        if len(self.plan.folders) > 1:
            others.append(Porter(self.clients, "porter"))
        if self.plan.transactional:
            others += transactional_actors(self.clients)
        actors = start_clients(world, self.clients, others)
        self.fate = ClusterFate(self, list(actors))
        world.host("fate", forever(self.fate.run))
        if self.plan.late_markers:
            world.host("late markers", forever(self._deliver_markers_late))
        world.host("judge", forever(self._conduct))

    async def _deliver_markers_late(self) -> None:
        chance = self.world.stream("late markers")
        while not self.fate.finished:
            await LateMarkers(self, chance).befall()

    def _stop(self) -> bool:
        self._look_inside()
        return self.finished or bool(self.world.failures)

    async def _broker_process(self, host: Host) -> None:
        self.brokers.pop(host.name, None)
        env = SimEnv(host, self.plan.folders[0])
        env.may_be_slow = lambda: not self.fate.finished  # in the end all that is left to clean is cleaned everywhere
        asked_to_stop = asyncio.Event()
        given = {
            "listeners": f"PLAINTEXT://{host.name}:{PORT}",
            "node.id": str(self.clients.node_ids[host.name]),
            "store.url": "postgresql://simulated",
            **self.plan.settings,
        }
        store = FarStore(self.server, env, self.ways[host.name])
        assert host.disk is not None
        first, *others = self.plan.folders
        disks = {first: env.disk, **{folder: host.disk.mount(folder) for folder in others}}
        broker = self.broker_class(env, BrokerConfig(given), store, disks, OFFERED)
        host.on_terminate = asked_to_stop.set
        try:
            await broker.open()
            servers = await self._listen(broker)
        except (DiskFault, MetadataLost, StoreError) as fault:  # a start that its maker makes again
            if isinstance(fault, DiskFault) and not fault.passing:
                raise
            self.world.note("start failed", host.name, str(fault))
            return
        self.brokers[host.name] = broker
        await asked_to_stop.wait()
        await broker.holdings.hand_over()
        for server in servers:
            await server.close()
        await broker.stop()

    async def _listen(self, broker: Broker) -> Sequence[Door]:
        return await listen(broker)

    # -- what must hold at any moment

    def _look_inside(self) -> None:
        for name in self.names:
            broker, loop = self.brokers.get(name), self.world.hosts[name].loop
            if broker is None or loop is None or self._looked_at.get(name) == (loop, loop.steps):
                continue
            self._looked_at[name] = (loop, loop.steps)
            for topic in broker.partitions._by_name.values():  # no copies: looking takes a good part of a run's time
                for partition in topic.values():
                    if (replicas := partition._replicas) is not None:
                        self._look_at(name, partition, replicas.high_watermark)

    def _look_at(self, name: str, partition: Partition, high_watermark: int) -> None:
        told = self._told.get(partition)
        if told is None or told[0] != partition.leader_epoch:
            self._look_at_leadership(name, partition)
        elif high_watermark != told[1]:
            self._look_at_high_watermark(name, partition, *told)
        else:
            stable = partition.stable.last_stable_offset(high_watermark, partition.log.start_offset)
            if stable == told[2]:
                return
            if stable < told[2]:
                self._wrong(name, partition, f"its stable offset fell from {told[2]} to {stable}")
        self._told[partition] = partition.leader_epoch, high_watermark, partition.last_stable_offset

    def _wrong(self, name: str, partition: Partition, what: str) -> None:
        self.history.wrong.append(f"{self.world.now:.6f} {partition.topic_partition} on {name}: {what}")

    def _look_at_leadership(self, name: str, partition: Partition) -> None:
        """No other broker leads in this epoch, and this leader has everything that was committed in earlier ones. When
        it hears that it leads, another may have committed more in a later epoch.
        """
        topic, epoch = (bytes(partition.topic_id), partition.topic_partition.partition), partition.leader_epoch
        if self.leaders.setdefault((*topic, epoch), name) != name:
            self._wrong(name, partition, f"leads in epoch {epoch}, as {self.leaders[*topic, epoch]} did")
        self._epochs_began.setdefault((*topic, epoch), partition.leads_from_offset)
        if late := self._late_epochs(partition):
            self._wrong(name, partition, f"leads although {late}")
        before = self._committed.get(topic, {})
        committed = max((reached for earlier, reached in before.items() if earlier < epoch), default=0)
        if partition.log.end_offset < committed:
            self._wrong(name, partition, f"leads with offsets up to {partition.log.end_offset}, committed {committed}")
        if epoch % LOOKED_AT_EVERY == 0 and (unlike := unlike_own_log(partition)):
            self._wrong(name, partition, f"leads with {unlike}")

    def _late_epochs(self, partition: Partition) -> str:
        """Where a replica takes an epoch for begun later than it did: another replica that asks it keeps what was
        written there in an earlier epoch. Empty if there is no such epoch.
        """
        log = partition.log
        for epoch, start in log.epochs.entries():
            began = self._epochs_began.get((bytes(partition.topic_id), partition.topic_partition.partition, epoch))
            if began is not None and start > max(began, log.start_offset):
                return f"its epoch {epoch} begins at {start}, and began at {began}"
        return ""

    def _look_at_high_watermark(self, name: str, partition: Partition, _: int, before: int, stable: int) -> None:
        """The high watermark has moved up, and not beyond what every live replica that counts has. So the stable offset
        does not fall.
        """
        replicas = partition.replicas
        high_watermark = replicas.high_watermark
        if high_watermark < before or partition.last_stable_offset < stable:
            now = high_watermark, partition.last_stable_offset
            self._wrong(name, partition, f"high watermark and stable offset fell from {before, stable} to {now}")
        topic = bytes(partition.topic_id), partition.topic_partition.partition
        reached = self._committed.setdefault(topic, {})
        reached[partition.leader_epoch] = max(reached.get(partition.leader_epoch, 0), high_watermark)
        known = self.brokers[name].metadata.image.brokers
        for member in dict.fromkeys((*replicas.isr, *replicas.pending_isr)):
            other = self.brokers.get(self.names[member - 1])
            if other is None or member not in known or known[member].epoch != other.metadata.broker_epoch:
                continue  # the leader has not heard of its new life
            held = self._held_by(self.names[member - 1], partition)
            if held is not None and high_watermark > held:
                self._wrong(name, partition, f"high watermark {high_watermark}, but broker {member} holds {held}")

    def _held_by(self, name: str, partition: Partition) -> int | None:
        """What a broker that lives holds of what this leader has of a partition."""
        broker, loop = self.brokers.get(name), self.world.hosts[name].loop
        other = None if broker is None or loop is None else broker.partitions.get(partition.topic_partition)
        if other is None or other.topic_id != partition.topic_id:
            return None
        held = other.log.flushed_offset if self.plan.durability == "fsync" else other.log.end_offset
        # Each compacts in its own time, and the first record of an epoch may be gone here and not there.
        return held if partition.log.config.compacts else agree_up_to(other, partition, held)

    # -- the end of the run

    async def _catches_up(self, *, within: float) -> bool:
        return await come_true(lambda: not self._out_of_sync(once=True), within=within, every=0.2)

    async def _conduct(self) -> None:
        await come_true(lambda: self.fate.finished)
        healed = self.world.now
        if not await self._catches_up(within=CAUGHT_UP_WITHIN):
            self.clients.stopping = True  # on a slow disk a follower may copy no faster than clients write
        if not await self._catches_up(within=2 * CAUGHT_UP_WITHIN):  # and a copy may have begun just now
            lacking = ", ".join(self._out_of_sync(once=True)[:5])
            self.history.stuck.append(
                f"{self.world.now - healed:.0f} s after healing some have never caught up: {lacking}"
            )
        self.synced_after = self.world.now - healed
        self.clients.stopping = True
        await come_true(self._is_at_rest)
        reader = Reader(self.clients, "last reader")
        await let_transactions_end(self.clients, reader)
        if not await come_true(self._nothing_changes_folders, within=MOVED_WITHIN):
            self.history.stuck.append(f"a move between folders does not end within {MOVED_WITHIN} s")
        await (
            self._compare_replicas()
        )  # before anything else: a record whose answer nothing waited for may not be committed yet
        self._compare_with_replays()
        known = transactions(list(self.brokers.values()))
        await read_all(self.clients, reader, self.history.final)
        for name in self.names:
            await self.fate.restart(name)
            self.world.hosts[name].boot()
            await self._all_in_sync(f"after the restart of {name}")
        await read_all(self.clients, reader, self.history.after_restart)
        await self._compare_replicas()
        if not await come_true(self._coordinators_are_up, within=ALIKE_WITHIN):
            self.history.stuck.append(f"coordinators are not up within {ALIKE_WITHIN} s")
        self._compare_with_replays()
        anew = transactions(list(self.brokers.values()))
        for name in known.keys() | anew.keys():
            if known.get(name) != anew.get(name):
                self.history.wrong.append(f"{name} was {known.get(name)}, and is {anew.get(name)} elsewhere")
        self.finished = True

    def _is_at_rest(self) -> bool:
        """Nobody asks for anything any more."""
        return self.clients.settled == self.clients.expected

    async def _all_in_sync(self, when: str) -> bool:
        if await come_true(lambda: not self._out_of_sync(), within=ALIKE_WITHIN, every=0.2):
            return True
        lacking = ", ".join(self._out_of_sync()[:5])
        self.history.stuck.append(f"{when} replicas are not in sync within {ALIKE_WITHIN} s: {lacking}")
        return False

    def _out_of_sync(self, *, once: bool = False) -> list[str]:
        """`once`: those that have never been since this was asked first."""
        if absent := [f"{name} is not there" for name in self.names if self._absent(name)]:
            return absent
        image, lacking = self.brokers[self.names[0]].metadata.image, []
        for topic in image.topics.values():
            for index, state in topic.partitions.items():
                seen = dict.fromkeys(state.isr)
                if once:
                    seen = self._were_in_sync.setdefault((topic.name, index), {})
                    seen.update(dict.fromkeys(state.isr))
                if not all(member in seen for member in state.replicas) or state.leader not in image.brokers:
                    lacking.append(f"{topic.name}-{index} {tuple(seen)} of {state.replicas}, leader {state.leader}")
        return lacking

    def all_are_in_sync(self) -> bool:
        """By the store's word of now."""
        topics = load(self.server.snapshot()).topics.values()
        states = [state for topic in topics for state in topic.partitions.values()]
        return not any(map(self._absent, self.names)) and all(set(each.isr) == set(each.replicas) for each in states)

    def _nothing_changes_folders(self) -> bool:
        return not any(broker.moves.under_way() for broker in self.brokers.values())

    def _absent(self, name: str) -> bool:
        broker = self.brokers.get(name)
        return not self.world.hosts[name].alive or broker is None or not broker.metadata.in_session

    def _coordinators_are_up(self) -> bool:
        return all(
            shard.loaded and not shard.dropped
            for broker in self.brokers.values()
            for coordinators in broker.coordination.by_topic.values()
            for shard in coordinators.shards()
        )

    async def _compare_replicas(self) -> None:
        if not await self._all_in_sync("before they are compared"):
            return
        for topic in list(self.brokers[self.names[0]].metadata.image.topics.values()):
            for index in topic.partitions:
                partition = TopicPartition(topic.name, index)
                unlike = partial(self._difference, partition)
                if not await come_true(lambda unlike=unlike: not unlike(), within=ALIKE_WITHIN, every=0.2):  # type: ignore[misc]
                    self.history.wrong.append(f"{partition}: {unlike()}")

    def _difference(self, partition: TopicPartition) -> str:
        state = self.brokers[self.names[0]].metadata.image.partition(partition)
        members = state.replicas if state is not None else ()
        replicas = [self.brokers[self.names[member - 1]].partitions.get(partition) for member in members]
        held = [replica for replica in replicas if replica is not None]
        if len(held) < len(members):
            return f"{len(held)} of {len(members)} replicas are there"
        return next(filter(None, map(self._late_epochs, held)), "") or difference(held)

    def _compare_with_replays(self) -> None:
        for broker in self.brokers.values():
            unlike = [
                *unlike_its_log(broker.coordination.transactions, same_transactions),
                *unlike_its_log(broker.coordination.groups, same_groups),
            ]
            self.history.wrong.extend(each for each in unlike if each is not None)

    @property
    def _checkers(self) -> tuple[Checker, ...]:
        # Of one leadership `_look_inside` says it. A new leader may know less for a moment than the one before it told.
        checkers = tuple(each for each in CHECKERS if not isinstance(each, HighWatermarkKeepsItsWord))
        return checkers + (TXN_CHECKERS if self.plan.transactional else ())

    def _report(self) -> ClusterReport:
        world, history = self.world, self.history
        for name in self.names:
            # Where one machine at a time loses power, what others hold in memory is promised to survive that.
            deaths, alone = world.hosts[name].deaths, ALONE in self.plan.kinds
            history.crashes.extend(Crash(moment, power and not alone) for moment, power in deaths)
        history.crashes.sort(key=lambda crash: crash.at)
        if not self.finished and not world.failures and not history.stuck:
            history.stuck.append(f"the run did not come to its end within {LONGEST_RUN} virtual seconds")
        violations = [Violation("NothingFailsUnseen", str(failure)) for failure in world.failures[:3]]
        violations += judge(history, self._checkers)
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
            self.synced_after,
            world.trace,
        )
        del history  # what goes by itself now isn't looked through when the rest is collected
        vars(self).clear()
        world.close()
        return report


def run(
    seed: int, *, trace: bool = False, tamper: Callable[[ClusterSimulation], None] = lambda _: None
) -> ClusterReport:
    simulation = ClusterSimulation(seed, trace)
    tamper(simulation)
    return simulation.run()


KIND = Kind(ClusterSimulation, "sim-cluster", ("callbacks", "written", "acknowledged", "read", "elections"))

if __name__ == "__main__":
    sys.exit(main(KIND, prog="python -m tests.sim.cluster", description=(__doc__ or "").splitlines()[0]))
