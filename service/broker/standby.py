"""The machines of the partitions that this broker follows. Each is made from what is committed, as it comes. So when
this broker leads one, hardly anything is left to read: the log of a busy coordinator would take seconds.

What always holds: a machine here knows nothing but what is committed, so no cut takes back what it knows. There is one
exception, which a partition counts (`committed_taken_back`): the machine is thrown away then. So is one that is behind
deletions which have left the log (R15), and one whose replay has failed (`Replay.holds`).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Generic

from log.batch import CorruptBatch
from log.disk import DiskFault
from service.broker.machine import MachineT
from service.broker.partition import Partition
from service.broker.replay import LeaveToOthers, Replay
from service.ports import Env
from service.turns import breathe

logger = logging.getLogger("oncelog.coordinator")

EVERY_S = 0.5
AT_ONCE_BYTES = 256 << 10
"""How much is read without a rest: some ten milliseconds, in turns. Meanwhile the log can't be cut or flushed."""
REST_S = 0.05
"""A broker that has started reads all its logs, beside everything else that it does then."""


class Standby(Generic[MachineT]):
    def __init__(
        self, topic: str, new_replay: Callable[[Partition], Replay[MachineT]], env: Env, leave_to_others: LeaveToOthers
    ) -> None:
        self._topic = topic
        self._new_replay = new_replay
        self._env = env
        self._leave_to_others = leave_to_others
        self._replays: dict[int, Replay[MachineT]] = {}
        self._given_up: dict[int, Partition] = {}
        """Partitions that can't be kept up with, for an error of our own. Their logs are read if this broker leads."""
        self._running = False

    def replays(self) -> list[Replay[MachineT]]:
        return list(self._replays.values())

    def keep(self, partition: Partition) -> None:
        """This broker follows the partition."""
        index = partition.topic_partition.partition
        if self._given_up.get(index) is partition:
            return
        replay = self._replays.get(index)
        if replay is None or replay.partition is not partition:
            self._replays[index] = self._new_replay(partition)
        if not self._running:
            self._running = True
            self._env.tasks.spawn(f"keep up with {self._topic}", self._keep_up())

    def take(self, partition: Partition) -> Replay[MachineT] | None:
        """What is known of this partition, which is led from now on. While more is being read, its log is locked."""
        replay = self._replays.pop(partition.topic_partition.partition, None)
        is_good = replay is not None and replay.partition is partition and not replay.is_stale
        return replay if is_good else None

    def drop(self, index: int) -> None:
        self._replays.pop(index, None)
        self._given_up.pop(index, None)

    async def _keep_up(self) -> None:
        try:
            while self._replays:
                is_behind = False
                for index in list(self._replays):
                    is_behind = await self._go_on(index) or is_behind
                if not is_behind:
                    await asyncio.sleep(EVERY_S)
        finally:
            self._running = False

    async def _go_on(self, index: int) -> bool:
        """Read some more of one log. Returns whether that was not all of it."""
        if (replay := self._replays.get(index)) is None:
            return False
        partition = replay.partition
        if not replay.holds:
            self._replays[index] = replay = self._new_replay(partition)
        if replay.at_offset >= partition.high_watermark:
            return False
        try:
            async with partition.log.alone():
                # Only now, when nothing can be cut. A cut that failed may have left the log below what was committed.
                committed = min(partition.high_watermark, partition.log.end_offset)
                if replay.at_offset < committed and replay.holds and self._replays.get(index) is replay:
                    for _ in replay.up_to(committed, AT_ONCE_BYTES):
                        await breathe()
        except (DiskFault, CorruptBatch) as error:
            partition.folder.blame(error, partition.topic_partition)
            if self._replays.get(index) is replay:
                if isinstance(error, DiskFault) and error.passing:
                    self._replays[index] = self._new_replay(partition)
                else:
                    del self._replays[index]
                    self._leave_to_others(partition, error)
            return False
        except Exception:
            logger.exception("%s can't be kept up with", partition.topic_partition)
            if self._replays.get(index) is replay:
                del self._replays[index]
                self._given_up[index] = partition
            return False
        is_behind = replay.at_offset < committed
        await asyncio.sleep(REST_S if is_behind else 0)
        return is_behind
