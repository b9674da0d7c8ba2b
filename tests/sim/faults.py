"""The faults of a run. The seed chooses them, they come between or within the broker's steps, and in the end all is
healed.

Faults that the promises don't cover are noted in the history. A flipped bit in stored batches voids what is said about
that partition. After a failed fsync the kernel may have forgotten data, so the machine loses power before the broker
starts again.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from log.batch import CRC_AT, CorruptBatch, split
from log.ids import TopicPartition, folder_of, partition_of
from log.relocation import FORMER
from log.swap import CLEANED, PLAN
from tests.sim.disk import Folder, Inode, SimDisk
from tests.sim.history import History
from tests.sim.plan import (
    INPUT,
    LEDGER,
    MADE_AGAIN,
    MOVED,
    MOVED_ON,
    OUTPUT,
    PASSING,
    SWAPPED,
    Plan,
)
from tests.sim.world import Host, World, come_true

PLACES = ("", "", ".log", ".index", "snapshot", "checkpoint", "__consumer", "__transaction", "compacted", "reborn")
"""A part of the path that a process touches when it dies."""
DECISIONS = "__transaction_state"
CARRIED_OUT = ("__consumer_offsets", INPUT, OUTPUT, LEDGER, PASSING)
"""Topics in which a decided transaction leaves its traces."""
CALLS_OF_A_SWAP = 40
"""About so many times a swap calls the disk, before or after the call."""
SWAPS_WAITED_FOR = 3
CLEAN_STOP_WITHIN = 60.0  # seconds after SIGTERM; what is under way is finished first, on a disk that may stall


class Fate:
    """The faults of one run. `finished` tells that everything is healed and the broker is up."""

    def __init__(self, world: World, broker: Host, plan: Plan, history: History, clients: list[str]) -> None:
        assert broker.disk is not None
        self.world = world
        self.broker = broker
        self.disk: SimDisk = broker.disk
        self.plan = plan
        self.history = history
        self.clients = clients
        self.chance: random.Random = world.stream("fate")
        self.finished = False
        self.given: dict[str, int] = {}
        self.unused: Collection[str] = ()
        """The folders that the last start has left as they are, because their topics don't exist any more."""
        self._harmed_until_reboot = False
        compacted = [topic.name for topic in history.topics.values() if topic.compacted]
        self._compacted = [folder_of(TopicPartition(name, 0)) for name in compacted]
        self._deeds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "kill": self._kill,
            "power cut": self._cut_power,
            "restart": self.restart,
            "death in a disk call": self._die_in_a_disk_call,
            "power cut in a disk call": self._lose_power_in_a_disk_call,
            "death after some callbacks": self._die_after_some_callbacks,
            "pause": self._pause,
            "connections cut": self._cut_connections,
            "blocked": self._block,
            "slow network": self._slow_network,
            "wall clock jumps": self._jump_clock,
            "append fails": self._fail_append,
            "fsync fails": self._fail_fsync,
            "disk full": self._fill_disk,
            "no descriptors": self._take_descriptors,
            "read fails": self._fail_reads,
            "index rots": self._rot_index,
            "log rots": self._rot_log,
            "kill while the disk hangs": lambda: self._hang(self.broker.kill),
            "power cut while the disk hangs": lambda: self._hang(self.broker.cut_power),
            MADE_AGAIN: self._die_as_a_topic_is_made_again,
            MOVED: self._die_as_a_partition_moves,
            MOVED_ON: self._die_when_what_moved_is_made_again,
            SWAPPED: self._die_in_a_swap,
        }

    async def run(self, ready: Callable[[], bool]) -> None:
        """Cause faults for the planned time, from the moment the topics exist. Then heal."""
        await come_true(ready)
        begun = self.world.now
        while self.world.now - begun < self.plan.fault_seconds:
            await asyncio.sleep(self.chance.expovariate(1 / self.plan.calm_seconds))
            kind = self.chance.choice(self.plan.kinds)
            self.given[kind] = self.given.get(kind, 0) + 1
            self.world.note("fault", kind)
            await self._deeds[kind]()
            if not self.broker.alive:
                await self.start_again()
        await self.heal()

    async def heal(self) -> None:
        self.broker.resume()
        self.disk.trip = None
        self.broker.fuse = None
        self.broker.clock_offset = 0.0
        self.world.network.slowness.clear()
        self.world.network.heal()
        self.disk.heal()
        if self._harmed_until_reboot and self.broker.alive:
            self.broker.cut_power()
        while not self.broker.alive:
            await self.start_again()
        self.broker.may_fail = False
        if "index rots" in self.plan.kinds:
            await self._rot_what_nobody_mends()
        self.finished = True

    async def _rot_what_nobody_mends(self) -> None:
        """Many indexes rot after the last start: no other one looks them through before they are used."""
        chance = self.world.stream("rot")
        await asyncio.sleep(2 * chance.random())
        for _ in range(chance.choice((0, 5, 20))):
            self._rot_an_index(chance)

    async def start_again(self) -> None:
        """Boot what has died. A disk that has failed is repaired first, and its cache is not trusted."""
        await asyncio.sleep(self.plan.down_seconds * self.chance.random())
        if self._harmed_until_reboot:
            self._harmed_until_reboot = False
            self.disk.heal()
            self.broker.cut_power()
        self.broker.may_fail = False
        self.broker.boot()

    # -- the process and its machine

    async def _kill(self) -> None:
        self.broker.kill()

    async def _cut_power(self) -> None:
        self.broker.cut_power()

    async def restart(self) -> None:
        """SIGTERM; if the broker takes too long over it, SIGKILL."""
        self.broker.terminate()
        if not await come_true(lambda: not self.broker.alive, within=CLEAN_STOP_WITHIN):
            self.history.stuck.append(f"the broker did not stop within {CLEAN_STOP_WITHIN} s of SIGTERM")
            self.broker.kill()

    async def _die_in_a_disk_call(self) -> None:
        await self._trip(self.broker.kill)

    async def _lose_power_in_a_disk_call(self) -> None:
        await self._trip(self.broker.cut_power)

    async def _trip(self, death: Callable[[], None]) -> None:
        place = self.chance.choice(PLACES)
        self.disk.trip_after(self.chance.choice((1, 3, 30)), death, path_part=place)
        await come_true(lambda: not self.broker.alive, within=3)
        self.disk.trip = None

    async def _die_after_some_callbacks(self) -> None:
        death = self.chance.choice((self.broker.kill, self.broker.cut_power))
        self.broker.light_fuse(self.chance.choice((1, 30, 300)), death)
        await come_true(lambda: not self.broker.alive, within=3)

    async def _pause(self) -> None:
        self.broker.pause()
        await asyncio.sleep(self.chance.choice((0.1, 2.0, 8.0)) * self.chance.random())
        self.broker.resume()

    async def _jump_clock(self) -> None:
        self.history.clock_jumped = True
        ahead = self.chance.choice((-1500.0, -5.0, 5.0, 60.0, None))
        if ahead is not None:
            self.broker.clock_offset = ahead * self.chance.random()
            return
        # A machine without a clock of its own: its time begins in 1970 until the clock is set.
        self.broker.kill()
        self.broker.clock_offset = -self.world.epoch_seconds
        if self.chance.random() < 0.5:
            await self.start_again()
            await asyncio.sleep(2 * self.chance.random())
            self.broker.clock_offset = 0.0

    # -- the network

    async def _cut_connections(self) -> None:
        self.world.network.cut_connections(self.broker.name, self.chance.choice((0.3, 1.0)))

    async def _block(self) -> None:
        for client in self.clients:
            if self.chance.random() < 0.5:
                self.world.network.block(client, self.broker.name)
            if self.chance.random() < 0.5:
                self.world.network.block(self.broker.name, client)
        await asyncio.sleep(6 * self.chance.random())
        self.world.network.heal()

    async def _slow_network(self) -> None:
        self.world.network.slowness[self.broker.name] = self.chance.choice((0.0, 0.05, 0.5))

    # -- the disk

    async def _fail_append(self) -> None:
        await self._fail("append", self.chance.choice((errno.EIO, errno.ENOSPC)))

    async def _fail_fsync(self) -> None:
        await self._fail(self.chance.choice(("fsync", "fsync", "sync_dir")), errno.EIO)

    async def _fail(self, operation: str, error: int) -> None:
        self.disk.fail_next(operation, error=error, after=self.chance.choice((0, 0, 5, 30)))
        if error == errno.ENOSPC:
            return  # the error passes: nothing is restarted
        self.broker.may_fail = True
        self._harmed_until_reboot = True
        await self._look_at_it_and_restart()

    async def _fill_disk(self) -> None:
        """Fill the disk, and make room after a while. The broker is not restarted."""
        whole = self.disk.capacity_bytes
        self.disk.capacity_bytes = self.disk.used_bytes + self.chance.choice((0, 100, 5000))
        await asyncio.sleep(self.chance.choice((0.1, 2.0, 6.0)) * self.chance.random())
        self.disk.capacity_bytes = whole

    async def _hang(self, death: Callable[[], None]) -> None:
        """Let writes hang on all disks or on one, or for decisions and some of what follows from them. Other work goes
        on. Then the broker dies.
        """
        folders = self.chance.sample(self.plan.folders, self.chance.randint(1, len(self.plan.folders)))
        if self.chance.random() < 0.5:
            self.disk.hang(*folders)
        else:
            self.disk.hang(*self.plan.folders, path_parts=(DECISIONS, self.chance.choice(CARRIED_OUT)))
        await asyncio.sleep(2 * self.chance.random())
        self.disk.hang()
        death()

    async def _die_as_a_topic_is_made_again(self) -> None:
        """The broker dies when the metadata names the new topic and the folder of the old one still waits to be
        removed.
        """
        topics = self.history.reborn
        made = len(topics)
        self.disk.hang(*self.plan.folders, path_parts=("reborn", "checkpoint"))
        await come_true(lambda: len(topics) > made, within=10)
        self.disk.hang()
        deaths = (self.broker.kill, self.broker.cut_power) if self.plan.bears_power_cuts else (self.broker.kill,)
        self.chance.choice(deaths)()

    async def _die_as_a_partition_moves(self) -> None:
        """The broker dies when the partition is already used in its other folder, but the move is not durable yet. Its
        machine may die, too, as soon as the broker is back. Or the machine dies when the broker takes the move for
        durable. Or no descriptor is left to make the move durable. Or the disk fails that was to keep the decision: the
        partition goes on in its other folder, until the machine dies.
        """
        if not await come_true(lambda: bool(self._former_folders()), within=5, every=0.001):
            return
        how = self.chance.random()
        if how < 0.2:
            await self._move_without_descriptors(self._former_folders())
            return
        if how < 0.4 and self.plan.bears_power_cuts:
            if await come_true(lambda: not self._former_folders(), within=2, every=0.001) and self.broker.alive:
                self.broker.cut_power()
            return
        if how < 0.55 and self.plan.bears_power_cuts:
            self.disk.fail_next("sync_dir")
            self.broker.may_fail = self._harmed_until_reboot = True
            await self._look_at_it_and_restart()
            return
        self.disk.hang(*self.plan.folders)
        await asyncio.sleep(self.chance.random())
        self.disk.hang()
        self.broker.kill()
        if self.plan.bears_power_cuts and self.chance.random() < 0.7:
            await self.start_again()
            await come_true(lambda: not self._former_folders(), within=2, every=0.001)
            await asyncio.sleep(self.chance.choice((0.0, 0.05)) * self.chance.random())
            if self.broker.alive:
                self.broker.cut_power()

    async def _die_when_what_moved_is_made_again(self) -> None:
        """Before the folder that the former topic moved out of has noted anew how much of each partition is durable."""
        before = self.history.moved_on
        if await come_true(lambda: self.history.moved_on > before, within=10):
            await asyncio.sleep(0.2 * self.chance.random())
            deaths = (self.broker.kill, self.broker.cut_power) if self.plan.bears_power_cuts else (self.broker.kill,)
            self.chance.choice(deaths)()

    async def _die_in_a_swap(self) -> None:
        """The broker or its machine dies while segments get their names and old ones are removed, or the machine when
        that is done but not durable yet.
        """
        for _ in range(SWAPS_WAITED_FOR):
            if not await come_true(lambda: self._swapping() is not None, within=3, every=0.001):
                return
            place, is_begun = self._swapping() or ("", False)
            deaths = (self.broker.kill, self.broker.cut_power) if self.plan.bears_power_cuts else (self.broker.kill,)
            if not is_begun:
                calls = self.chance.randrange(1, CALLS_OF_A_SWAP)
                self.disk.trip_after(calls, self.chance.choice(deaths), path_part=place)
                await come_true(lambda: not self.broker.alive, within=1)
                self.disk.trip = None
            elif self.plan.bears_power_cuts:
                self.broker.cut_power()
            if not self.broker.alive:
                return
            await come_true(lambda: self._swapping() is None, within=3)

    def _swapping(self) -> tuple[str, bool] | None:
        """The folder of a log with the plan of a swap, and whether the new segments have their names."""
        for each in self.plan.folders:
            entries = self.disk.root.entries[each]
            assert isinstance(entries, Folder)
            for name in self._compacted:
                log = entries.entries.get(name)
                if isinstance(log, Folder) and PLAN in log.entries:
                    return f"{name}/", not any(file.endswith(CLEANED) for file in log.entries)
        return None

    async def _move_without_descriptors(self, left: list[str]) -> None:
        self.disk.faults.no_descriptor = 1.0
        await asyncio.sleep(self.chance.choice((0.05, 0.5)))
        self.disk.faults.no_descriptor = 0.0
        for name in left:
            if not await come_true(partial(self._is_gone_or_dead, name), within=15):
                self.history.wrong.append(f"a decided move is not finished when there are descriptors again: {name}")

    def _is_gone_or_dead(self, name: str) -> bool:
        """A broker that died (its power was cut in a disk call, say) removes the folder when it starts."""
        return not self.broker.alive or name not in self._former_folders()

    def _former_folders(self) -> list[str]:
        """What partitions have left that were decided to move, and that is not removed yet."""
        names = [name for each in self.plan.folders for name in self.disk.names(each)]
        return [name for name in names if name.endswith(FORMER) and name not in self.unused]

    async def _take_descriptors(self) -> None:
        """Take all file descriptors of the process. The broker is not restarted."""
        self.disk.faults.no_descriptor = self.chance.choice((0.01, 0.2, 1.0))
        await asyncio.sleep(self.chance.choice((0.1, 2.0)) * self.chance.random())
        self.disk.faults.no_descriptor = 0.0

    async def _look_at_it_and_restart(self) -> None:
        """After a while the broker is seen to be out of service, and its machine is rebooted."""
        await asyncio.sleep(self.chance.choice((0.1, 1.0, 3.0)) * self.chance.random())
        if self.chance.random() < 0.5 and self.broker.alive:
            await self.restart()
        if self.broker.alive:
            self.broker.cut_power()

    async def _fail_reads(self) -> None:
        self.broker.may_fail = True
        self.disk.faults.read_error = self.chance.choice((0.01, 0.2))
        await asyncio.sleep(self.chance.random())
        self.disk.faults.read_error = 0.0
        if self.broker.alive:  # what could not be read when it was needed may stay out of service until a restart
            await self.restart()

    async def _rot_index(self) -> None:
        self._rot_an_index(self.chance)

    def _rot_an_index(self, chance: random.Random) -> None:
        """Flip a bit of an index, or take some of it or all of it away. An index is a hint: a wrong one must be noticed
        or do no harm.
        """
        found = [
            (path, size) for path, size, _ in self.disk.files() if path.endswith((".index", ".timeindex")) and size
        ]
        if found:
            path, size = chance.choice(found)
            self.world.note("rot", path)
            how = chance.random()
            if how < 0.5:
                self.disk.flip_bit(path, chance.randrange(size), chance.randrange(8))
            elif how < 0.75:
                self.disk.cut_short(path, chance.randrange(size))
            else:
                self.disk.take_away(path)

    async def _rot_log(self) -> None:
        """A bit of stored batches: that partition may be lost, or in part unreadable, but nothing wrong may be told.

        Only where the checksum sees it: base offset, length, leader epoch and magic stand outside, as in Kafka's
        format.
        """
        found = []
        for path, _, durable in self.disk.files():
            partition = partition_of(path.split("/")[-2])
            topic = self.history.topics.get(partition.topic) if partition is not None else None
            if path.endswith(".log") and durable and partition and topic and not topic.transactional:
                found.append((path, partition))
        if found:
            path, partition = self.chance.choice(found)
            checked = self._checked_bytes(path)
            if checked:
                self.rot(path, partition, self.chance.choice(checked))

    def _checked_bytes(self, path: str) -> list[int]:
        """Where the bytes of each batch are that its checksum covers."""
        inode = self.disk.find(path)
        assert isinstance(inode, Inode)
        positions: list[int] = []
        try:
            at = 0
            for header, _ in split(bytes(inode.cache)):
                positions.append(at + self.chance.randrange(CRC_AT, header.size_bytes))
                at += header.size_bytes
        except CorruptBatch:
            self.world.note("rotten already", path)
        return positions

    def rot(self, path: str, partition: TopicPartition, position: int) -> None:
        self.world.note("rot", path, position)
        self.history.rotten.setdefault(partition, self.world.now)
        self.disk.flip_bit(path, position, self.chance.randrange(8))
