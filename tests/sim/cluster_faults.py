"""What befalls the brokers of a simulated cluster: the plan of a run, and its faults one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from log.ids import TopicPartition, partition_of
from service.broker.partition import Partition
from service.cluster.image import load
from service.wire.base import Struct
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    DeleteRecordsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    ProduceRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.sim.disk import SimDisk
from tests.sim.faults import CLEAN_STOP_WITHIN
from tests.sim.plan import JUDGED_BY_TIME, Plan, draw_plan
from tests.sim.workload import Unanswered
from tests.sim.world import Host, come_true

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterSimulation

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
    "left alone",
    "slow network",
    "session ends",
    "store silent",
    "told late",
    "everything dies",
    "disk fails",
    "clocks go apart",
)
COSTS_MEMORY = ("power cut", "disk fails")
ALONE = "one machine loses power"
"""And no other does, nor does a process die, until all replicas are in sync again: memory is enough for that."""
BACK_FIRST = "one machine loses power and is back first"
"""As `ALONE`. It registers before another broker takes it for dead. Until then it leads what it led."""
REPLACED = "one disk is replaced"
REMOVED = "partitions are removed from one disk"
"""Both while the others are there, or after everybody has stopped. All replicas were in sync before."""
ENDS_NOBODY = (
    "pause",
    "long pause",
    "connections cut",
    "brokers split",
    "broker cut off",
    "slow network",
    "session ends",
    "store silent",
    "told late",
)
AS_IT_ANSWERS = "death as it answers"
WITH_A_MARKER = "death with a marker"
MOVED_UNHEARD = "moved unheard"
GIVEN_TO_DEAD = "given to who is gone"
"""And has lost its disk. So no partition may be on one broker alone before."""
STAYS_AWAY = "one stays away"
AWAY_S = 10.0
"""Longer than compaction keeps deletions."""
CHANGES = (
    ProduceRequest,
    DeleteRecordsRequest,
    OffsetCommitRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    AlterPartitionReassignmentsRequest,
)
"""What these requests answer must hold even if the broker that answered is gone."""
LONGEST_HEALTHY_STALL_S = 0.2
HEARD_WITHIN_S = 2.0
CLOCKS_APART_S = 40.0
RATES_APART = 0.05
"""A lease is trusted for three quarters of its time, so clocks that run this much faster or slower do no harm."""


def draw_cluster_plan(chance: random.Random) -> Plan:
    plan = draw_plan(chance)
    plan.brokers = chance.choice((3, 3, 4, 5))
    plan.replication = 3
    likely = chance.choice((0.15, 0.3, 0.6))
    plan.kinds = tuple(kind for kind in KINDS if chance.random() < likely) or (chance.choice(KINDS),)
    if plan.durability != "fsync":
        plan.kinds = tuple(kind for kind in plan.kinds if kind not in COSTS_MEMORY) or ("kill",)
        if chance.random() < 0.5:
            plan.kinds = (ALONE, ALONE, REPLACED, *(kind for kind in plan.kinds if kind in ENDS_NOBODY))
    plan.down_seconds = chance.choice((0.02, 0.5, 5.0, 10.0))
    plan.store_loss = chance.choice((0.0, 0.0, 0.02, 0.1))
    plan.moves = chance.random() < 0.5
    least = chance.choice(("1", "2", "2")) if ALONE not in plan.kinds else "2"
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
    if "clocks go apart" in plan.kinds:
        plan.settings |= JUDGED_BY_TIME
    for each in plan.topics:
        each.configs.pop("compression.type", None)
    if ALONE not in plan.kinds and chance.random() < 0.4:
        plan.kinds += (AS_IT_ANSWERS,)
    if ALONE not in plan.kinds and chance.random() < 0.2:
        _keep_deletions_briefly(plan)
    if chance.random() < 0.2:
        plan.kinds += (MOVED_UNHEARD,) * 3
        plan.calm_seconds, plan.fault_seconds = 0.3, max(plan.fault_seconds, 12.0)
    plan.late_markers = plan.transactional and chance.random() < 0.3
    if plan.transactional and ALONE not in plan.kinds and chance.random() < 0.4:
        plan.kinds += (WITH_A_MARKER,)
    plan.answers_lost = chance.choice((0.0, 0.02, 0.2))
    if ALONE in plan.kinds and chance.random() < 0.5:
        plan.kinds += (REMOVED,) * 6
    plan.standby_bytes = chance.choice((1, 1_000, plan.standby_bytes))
    plan.standby_rest_s = chance.choice((plan.standby_rest_s, 0.5))
    plan.settings |= _draw_internal_topics(chance)
    if ALONE in plan.kinds and chance.random() < 0.5:
        plan.kinds += (BACK_FIRST,) * 3
    if ALONE not in plan.kinds and least == "2" and chance.random() < 0.2:
        plan.kinds += (GIVEN_TO_DEAD,) * 3
    return plan


def _draw_internal_topics(chance: random.Random) -> dict[str, str]:
    """In half of the runs little stays in the logs of coordinators, and a follower may read them while that goes."""
    if chance.random() < 0.5:
        return {}
    return {
        "log.roll.ms": str(chance.choice((200, 1000))),
        "log.cleaner.backoff.ms": "300",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": str(chance.choice((0, 1000))),
    }


def _keep_deletions_briefly(plan: Plan) -> None:
    """Tombstones come and go while a broker is away."""
    plan.kinds += (STAYS_AWAY,) * 3
    plan.fault_seconds = 3 * AWAY_S
    plan.settings["log.cleaner.backoff.ms"] = "300"
    for each in plan.topics:
        if each.topic.compacted:
            each.configs.update({"segment.ms": "200", "delete.retention.ms": "0"})


class ClusterFate:
    """The faults of one run. `finished` tells that everything is healed and every broker is up."""

    def __init__(self, simulation: ClusterSimulation, clients: list[str]) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._plan = simulation.plan
        self._clients = clients
        self._names = simulation.names
        self._chance = simulation.world.stream("fate")
        self.finished = False
        self.given: Counter[str] = Counter()
        self._line = simulation.clients.new_line(simulation.clients, "fate")
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
            "left alone": self._leave_alone,
            "slow network": self._slow_network,
            "session ends": self._end_session,
            "store silent": self._silence_store,
            "told late": self._tell_late,
            MOVED_UNHEARD: self._move_unheard,
            GIVEN_TO_DEAD: self._give_to_dead,
            "everything dies": self._end_everything,
            "disk fails": self._fail_disk,
            ALONE: self._lose_one_machine,
            BACK_FIRST: self._come_back_first,
            REPLACED: lambda host: self._lose_data(host, SimDisk.replace),
            REMOVED: lambda host: self._lose_data(host, self._remove_some),
            "clocks go apart": self._part_clocks,
            AS_IT_ANSWERS: self._die_as_it_answers,
            WITH_A_MARKER: self._die_with_a_marker,
            STAYS_AWAY: self._stay_away,
        }

    async def run(self) -> None:
        await come_true(lambda: self._simulation.clients.created)
        begun = self._world.now
        while self._world.now - begun < self._plan.fault_seconds:
            await asyncio.sleep(self._chance.expovariate(1 / self._plan.calm_seconds))
            kind = self._chance.choice(self._plan.kinds)
            self.given[kind] += 1
            host = self._world.hosts[self._chance.choice(self._names)]
            self._world.note("fault", kind, host.name)
            await self._deeds[kind](host)
            for name in self._names:
                host = self._world.hosts[name]
                if not host.alive and self._chance.random() < 0.7:
                    await asyncio.sleep(self._plan.down_seconds * self._chance.random())
                    host.boot()
        await self._heal()

    async def _heal(self) -> None:
        for name, way in self._simulation.ways.items():
            host = self._world.hosts[name]
            way.silent, way.is_late, way.healed = False, False, True
            host.resume()
            host.fuse = None
            assert host.disk is not None
            host.disk.trip = None
            host.disk.heal()
            faults = host.disk.faults  # on a disk that stalls for longer than a replica may lag, none stays in sync
            faults.stall_seconds = min(faults.stall_seconds, LONGEST_HEALTHY_STALL_S)
            host.run_clock_at(1.0)
        self._world.network.slowness.clear()
        self._world.network.heal()
        while True:
            for name in self._names:
                if not self._world.hosts[name].alive:
                    self._world.hosts[name].boot()
            if await come_true(lambda: any(not self._world.hosts[name].alive for name in self._names), within=5.0):
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
        controller = broker.metadata.image.controller_id if broker is not None else -1
        self._world.hosts[self._names[controller - 1] if controller > 0 else host.name].kill()

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

    async def _die_as_it_answers(self, host: Host) -> None:
        """A broker that has changed something dies as soon as it has answered; perhaps no other broker has heard of the
        change.
        """
        clients, kind = self._simulation.clients, self._chance.choice(CHANGES)
        died: list[str] = []

        def answered(broker: str, request: Struct) -> None:
            if isinstance(request, kind) and not died and self._world.hosts[broker].alive:
                died.append(broker)
                self._world.hosts[broker].kill()

        unheard, clients.answered = clients.answered, answered
        await come_true(lambda: bool(died), within=3)
        clients.answered = unheard

    async def _die_with_a_marker(self, host: Host) -> None:
        """A leader dies while it has a marker that is not on all in-sync replicas."""

        def has_one() -> bool:
            broker = self._simulation.brokers.get(host.name)
            return host.alive and broker is not None and any(map(_has_uncommitted_marker, broker.partitions))

        if await come_true(has_one, within=3, every=0.0005):
            host.kill()

    async def _stay_away(self, host: Host) -> None:
        host.kill()
        await asyncio.sleep(AWAY_S)
        host.boot()

    async def _pause(self, host: Host, longest_s: float) -> None:
        host.pause()
        await asyncio.sleep(longest_s * self._chance.random())
        host.resume()

    async def _end_everything(self, host: Host) -> None:
        power = self._plan.durability == "fsync" and self._chance.random() < 0.7
        for name in self._names:
            each = self._world.hosts[name]
            if power:
                each.cut_power()
            else:
                each.kill()

    async def _fail_disk(self, host: Host) -> None:
        """The broker goes on without its disk until that is repaired. Then its machine starts anew."""
        assert host.disk is not None
        operation = self._chance.choice(("append", "fsync", "fsync", "sync_dir"))
        host.disk.fail_next(operation, after=self._chance.choice((0, 5, 30)))
        host.may_fail = True
        await asyncio.sleep(self._chance.choice((0.1, 1.0, 6.0)) * self._chance.random())
        host.cut_power()
        host.disk.heal()
        host.may_fail = False

    async def _lose_one_machine(self, host: Host) -> None:
        if not await come_true(self._simulation.all_are_in_sync, within=20, every=0.1):
            return
        if self._chance.random() < 0.5:
            host.cut_power()
            return
        # It is out of sync by then, and back before its leader is taken for dead.
        network, leader = self._world.network, self._chance.choice([name for name in self._names if name != host.name])
        asked_before = self._chance.random() < 0.5
        if asked_before:  # from the leader's end, to which nobody writes any more
            for client in self._clients:
                network.block(client, leader)
            await asyncio.sleep(self._chance.random())
        await self._become_last(leader, outward=not asked_before and self._chance.random() < 0.5)
        host.cut_power()
        host.boot()
        await asyncio.sleep(3 * self._chance.random())
        if asked_before:  # what it asked in its former life arrives now, and the answer doesn't
            network.block(leader, host.name)
            network.heal(host.name, leader)
            await asyncio.sleep(self._chance.random())
        way = self._simulation.ways[leader]
        way.silent = True  # so that it is not back at once, as if it had not been away
        await self._end_session(self._world.hosts[leader])
        await asyncio.sleep(3 * self._chance.random())
        way.silent = False
        network.heal()

    async def _come_back_first(self, host: Host) -> None:
        """Its session is over, and the others hear of neither that nor its return before it has registered."""
        if not await come_true(self._simulation.all_are_in_sync, within=20, every=0.1):
            return
        brokers, former = self._simulation.brokers, self._simulation.brokers[host.name]
        others = [way for name, way in self._simulation.ways.items() if name != host.name]
        for way in others:
            way.silent = True
        await self._end_session(host)
        host.cut_power()
        host.boot()
        await come_true(lambda: brokers.get(host.name, former) is not former, within=3)
        for way in others:
            way.silent = False

    async def _lose_data(self, host: Host, lose: Callable[[SimDisk], None]) -> None:
        """With two to be in sync, another replica has everything that was acknowledged: the last two that stop."""
        if not await come_true(self._simulation.all_are_in_sync, within=20, every=0.1):
            return
        others = self._chance.sample(self._names, len(self._names))
        others.remove(host.name)
        if self._chance.random() < 0.5:
            for name in others:
                await self.restart(name)
        if self._chance.random() < 0.7:  # after any other end it is no member anyway
            await self.restart(host.name)
        else:
            host.kill()
        assert host.disk is not None
        lose(host.disk)
        is_first = self._chance.random() < 0.5
        for name in (*[host.name] * is_first, *self._chance.sample(self._names, len(self._names))):
            if not self._world.hosts[name].alive:
                self._world.hosts[name].boot()
            await asyncio.sleep(self._chance.random())

    def _remove_some(self, disk: SimDisk) -> None:
        """The folders of some partitions. One that is only emptied may count as damaged, which takes an operator."""
        folders = dict.fromkeys(path.rpartition("/")[0] for path, _, _ in disk.files())
        held = [folder for folder in folders if partition_of(folder.rpartition("/")[2]) is not None]
        for folder in self._chance.sample(held, self._chance.randint(min(1, len(held)), len(held))):
            disk.remove(folder)

    async def _part_clocks(self, host: Host) -> None:
        """Its wall clock is set, and the other runs a little faster or slower than those of others."""
        self._simulation.history.clock_jumped = True
        host.clock_offset = self._chance.uniform(-CLOCKS_APART_S, CLOCKS_APART_S)
        host.run_clock_at(self._chance.uniform(1 - RATES_APART, 1 + RATES_APART))

    # -- the network and the store

    async def _cut_connections(self, host: Host) -> None:
        self._world.network.cut_connections(host.name, self._chance.choice((0.3, 1.0)))

    async def _split(self, host: Host) -> None:
        """Some brokers don't hear some others; and one may die before they do again."""
        for source in self._names:
            for target in self._names:
                if source != target and self._chance.random() < 0.4:
                    self._world.network.block(source, target)
        if ALONE not in self._plan.kinds and self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.random())  # not long enough to fall out of sync
            host.kill()
        await asyncio.sleep(8 * self._chance.random())
        self._world.network.heal()

    async def _cut_off(self, host: Host) -> None:
        """No broker hears one broker, or it hears none. Perhaps it can't reach the store either."""
        way = self._simulation.ways[host.name]
        way.silent = self._chance.random() < 0.5
        inward, outward = self._chance.choice(((True, True), (True, False), (False, True)))
        for other in (*self._clients, *self._names):
            if other != host.name and inward:
                self._world.network.block(other, host.name)
            if other != host.name and outward:
                self._world.network.block(host.name, other)
        await asyncio.sleep(8 * self._chance.random())
        way.silent = False
        self._world.network.heal()

    async def _leave_alone(self, host: Host) -> None:
        """What one broker leads it holds alone; and then it ends, or is taken for dead."""
        await self._become_last(host.name, outward=self._chance.random() < 0.5)
        ends = [self._kill, self._end_session, *([self._cut_power] if self._plan.durability == "fsync" else [])]
        await self._chance.choice(ends)(host)
        await asyncio.sleep(3 * self._chance.random())
        self._world.network.heal()

    async def _become_last(self, name: str, *, outward: bool) -> None:
        """The other brokers can't follow this one for so long that they fall out of sync. Clients ask it again
        meanwhile, and it may still tell others what it has decided, unless `outward` is set.
        """
        for other in self._names:
            if other != name:
                self._world.network.block(other, name)
                if outward:
                    self._world.network.block(name, other)
        lag_s = int(self._plan.settings["replica.lag.time.max.ms"]) / 1000
        await asyncio.sleep(lag_s * self._chance.random())
        self._world.network.cut_connections(name, 0.3)
        await asyncio.sleep(lag_s * (0.5 + 2 * self._chance.random()))

    async def _slow_network(self, host: Host) -> None:
        self._world.network.slowness[host.name] = self._chance.choice((0.0, 0.05, 0.5))

    async def _end_session(self, host: Host) -> None:
        """The store takes a broker for dead that lives."""
        broker = self._simulation.brokers.get(host.name)
        own = broker.metadata.image.brokers.get(broker.metadata.broker_id) if broker is not None else None
        if own is not None:
            self._simulation.server.end_session(own.session)

    async def _tell_late(self, host: Host) -> None:
        """One broker hears of no change for a while, though the store answers it; and others take over from it."""
        way = self._simulation.ways[host.name]
        way.is_late = True
        await asyncio.sleep(self._chance.random())
        begun = self._world.now
        await self._end_session(host)
        await asyncio.sleep(3 * self._chance.random())
        way.is_late = False
        self._simulation.history.unheard.append((begun, self._world.now + HEARD_WITHIN_S))

    async def _move_unheard(self, host: Host) -> None:
        """What one broker has is given to the others, and back, and it hears of neither for a while. It goes on to lead
        what another leads by now, and to follow for copies that it is to delete. Then somebody must take over from
        another one.
        """
        simulation, own = self._simulation, self._simulation.clients.node_ids[host.name]
        topics = load(simulation.server.snapshot()).topics.values()
        before = {
            TopicPartition(topic.name, index): list(state.replicas)
            for topic in topics
            for index, state in topic.partitions.items()
            if own in state.replicas and len(state.replicas) > 2 and self._chance.random() < 0.7
        }
        way, begun = simulation.ways[host.name], self._world.now
        way.is_late = True
        await self._give({place: [each for each in replicas if each != own] for place, replicas in before.items()})
        self._world.network.cut_connections(host.name, 0.5)
        await asyncio.sleep(self._chance.random())
        await self._give(before)
        await asyncio.sleep(2 * self._chance.random())
        other = self._chance.choice([name for name in self._names if name != host.name])
        await self._end_session(self._world.hosts[other])
        await asyncio.sleep(self._chance.random())
        way.is_late = False
        simulation.history.unheard.append((begun, self._world.now + HEARD_WITHIN_S))

    async def _give_to_dead(self, host: Host) -> None:
        """A broker is gone, and its disk with it. What it had is given to it alone, and back, before its controller has
        taken it out of the in-sync sets. Some may not have heard that it is gone.
        """
        simulation, own = self._simulation, self._simulation.clients.node_ids[host.name]
        if not await come_true(simulation.all_are_in_sync, within=20, every=0.1):
            return
        image, begun = load(simulation.server.snapshot()), self._world.now
        held = {
            TopicPartition(topic.name, index): list(state.replicas)
            for topic in image.topics.values()
            for index, state in topic.partitions.items()
            if own in state.replicas
        }
        if [own] in held.values():
            return
        for name, way in simulation.ways.items():
            way.is_late = simulation.clients.node_ids[name] == image.controller_id or self._chance.random() < 0.2
        host.kill()
        await self._end_session(host)
        assert host.disk is not None
        host.disk.replace()
        for wanted in [own], None:
            for _ in range(2):  # it may be asked itself
                await self._give({place: wanted or self._chance.choice((None, held[place])) for place in held})
            await asyncio.sleep(0.1 * self._chance.random())
        for way in simulation.ways.values():
            way.is_late = False
        simulation.history.unheard.append((begun, self._world.now + HEARD_WITHIN_S))
        await asyncio.sleep(self._chance.random())
        host.boot()

    async def _give(self, replicas: Mapping[TopicPartition, list[int] | None]) -> None:
        asked = [
            ReassignableTopic(place.topic, [ReassignablePartition(place.partition, wanted)])
            for place, wanted in replicas.items()
        ]
        with contextlib.suppress(Unanswered):
            await self._line.ask(AlterPartitionReassignmentsRequest(topics=asked))

    async def _silence_store(self, host: Host) -> None:
        chosen = [name for name in self._names if name == host.name or self._chance.random() < 0.3]
        for name in chosen:
            self._simulation.ways[name].silent = True
        await asyncio.sleep(8 * self._chance.random())
        for name in chosen:
            self._simulation.ways[name].silent = False


def _has_uncommitted_marker(partition: Partition) -> bool:
    markers = partition.stable.markers
    return partition.is_leading and markers.count(partition.high_watermark, partition.log.end_offset) > 0
