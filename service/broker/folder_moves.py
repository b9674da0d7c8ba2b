"""Moves partitions from one data folder of this broker to another, one after the other (`log/relocation.py` has the
steps). A partition is served as usual while it is copied. A move into a full folder lets others go first: one of them
may make room.

What always holds: a partition is in one folder, and changes to the other at one moment. A partition that can't be moved
stays where it is, and the reason is logged. A move that is interrupted by a stop or a crash begins anew at the next
start.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from log.batch import CorruptBatch
from log.disk import DiskFault
from log.ids import TopicPartition, folder_of
from log.relocation import FUTURE, Relocation, stem_of
from log.segment import IndexesLost
from service.broker.housekeeper import Housekeeper
from service.broker.log_folder import LogFolder
from service.broker.opening import PartitionMaker
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.cluster.image import ALL_BROKERS
from service.cluster.metadata import ClusterMetadata
from service.ports import Env
from service.turns import breathe
from service.wire.error_codes import ErrorCode

logger = logging.getLogger("oncelog.broker")

RATE: str = "replica.alter.log.dirs.io.max.bytes.per.second"
REST_S = 1.0
"""The pause before a move is tried again that could not go on for now: the target has no room, or new data comes faster
than it is copied.
"""


@dataclass(eq=False, slots=True)
class FolderMove:
    partition: Partition
    target: LogFolder
    relocation: Relocation | None = None
    """None until the move has begun."""
    called_off: bool = False

    @property
    def copied_bytes(self) -> int:
        return 0 if self.relocation is None else self.relocation.copy.size_bytes

    @property
    def behind(self) -> int:
        log = self.partition.log
        return log.end_offset - log.start_offset if self.relocation is None else self.relocation.behind

    @property
    def name(self) -> str:
        """The name of the folder that holds the copy. That this folder exists tells the next start where the partition
        was to go.
        """
        return stem_of(self.partition.topic_id, self.partition.topic_partition.partition) + FUTURE


class FolderMoves:
    def __init__(
        self,
        env: Env,
        metadata: ClusterMetadata,
        partitions: PartitionTable,
        folders: Sequence[LogFolder],
        maker: PartitionMaker,
        housekeeper: Housekeeper,
    ) -> None:
        self._env = env
        self._metadata = metadata
        self._partitions = partitions
        self._folders = folders
        self._maker = maker
        self._housekeeper = housekeeper
        self._moves: dict[Partition, FolderMove] = {}
        self._queue: OrderedDict[FolderMove, None] = OrderedDict()
        """Moves to carry out. A move that was called off stays in here until the files it left are removed."""
        self._called_off: dict[tuple[Partition, LogFolder], FolderMove] = {}
        """What was called off before it was carried out: if it is wanted again, it is in the queue already."""
        self._carried_out: FolderMove | None = None
        self._news = asyncio.Event()

    # -- what is wanted

    def ask(self, topic_partition: TopicPartition, folder_name: str) -> ErrorCode:
        """Move the partition to that folder. If the partition is in that folder already, a move that is under way is
        called off.
        """
        target = next((folder for folder in self._folders if folder.name == folder_name), None)
        if target is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if target.failed is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = self._partitions.get(topic_partition)
        if partition is None:
            if self._metadata.image.partition(topic_partition) is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._maker.wanted[topic_partition] = target  # used if this broker is given the partition later
            return ErrorCode.REPLICA_NOT_AVAILABLE
        if partition.offline or partition.folder.failed is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        move = self._moves.get(partition)
        if move is not None:
            if move.target is target:
                return ErrorCode.NONE
            move.called_off = True
            if move in self._queue and move.relocation is None:
                self._called_off[partition, move.target] = move
            logger.info("%s: its move to %s is called off", topic_partition, move.target.name)
            del self._moves[partition]
        return self._begin(partition, target) if target is not partition.folder else ErrorCode.NONE

    def _begin(self, partition: Partition, target: LogFolder) -> ErrorCode:
        called_off = self._called_off.pop((partition, target), None)
        if called_off is not None:
            called_off.called_off = False
            self._moves[partition] = called_off
            self._queue.move_to_end(called_off)  # behind those that remove what others left
            return ErrorCode.NONE
        move, earlier = FolderMove(partition, target), self._carried_out
        is_decided = earlier is not None and earlier.partition is partition and partition.folder is earlier.target
        if not is_decided:  # else a start after a crash could take this empty folder for the copy that was decided on
            try:
                target.disk.mkdir(move.name)
            except DiskFault as fault:
                target.blame(fault, partition.topic_partition)
                return ErrorCode.KAFKA_STORAGE_ERROR
        self._moves[partition] = move
        self._queue[move] = None
        self._news.set()
        return ErrorCode.NONE

    def resume(self) -> None:
        """Begin the moves again that were not finished before the restart."""
        for topic_partition, target in self._maker.unfinished.items():
            partition = self._partitions.get(topic_partition)
            if partition is not None and partition.folder is not target and not partition.offline:
                self._begin(partition, target)

    def is_moving(self, partition: Partition) -> bool:
        return partition in self._moves

    def under_way(self) -> Sequence[FolderMove]:
        return list(self._moves.values())

    # -- one after the other

    async def run(self) -> None:
        while True:
            self._news.clear()
            while self._queue:
                self._carried_out = self._next_with_room() or next(iter(self._queue))
                del self._queue[self._carried_out]
                self._called_off.pop((self._carried_out.partition, self._carried_out.target), None)
                await self._carry_out(self._carried_out)
                self._carried_out = None
            await self._news.wait()

    def _next_with_room(self) -> FolderMove | None:
        return next(
            (move for move in self._queue if not (self._may_go_on(move) and move.target.headroom.is_short)), None
        )

    async def _carry_out(self, move: FolderMove) -> None:
        partition = move.partition
        try:
            while self._may_go_on(move):
                try:
                    if await self._copy(move):
                        break
                except DiskFault as fault:
                    if not fault.passing:
                        raise
                    folder = partition.folder if isinstance(fault, IndexesLost) else move.target
                    folder.blame(fault, partition.topic_partition)
                if self._may_go_on(move) and move.target.headroom.is_short and self._next_with_room() is not None:
                    self._queue[move] = None
                    return
                if self._may_go_on(move):
                    await asyncio.sleep(REST_S)
        except (DiskFault, CorruptBatch) as error:
            for folder in (move.target, partition.folder):
                if folder.disk.fault is not None:
                    folder.fail(folder.disk.fault)
            logger.error("%s stays in %s: %s", partition.topic_partition, partition.folder.name, error)
        except Exception:  # an error in one partition must not stop the moves of the others
            logger.exception("%s stays in %s", partition.topic_partition, partition.folder.name)
        if self._moves.get(partition) is move:
            del self._moves[partition]
        if partition.folder is not move.target:
            await self._throw_away(move)

    def _may_go_on(self, move: FolderMove) -> bool:
        partition = move.partition
        return (
            not move.called_off
            and self._partitions.get(partition.topic_partition) is partition
            and not partition.offline
            and partition.folder.failed is None
            and move.target.failed is None
        )

    async def _copy(self, move: FolderMove) -> bool:
        """True if the partition has moved; False if the move must be tried again, or is not wanted any more."""
        partition, relocation = move.partition, move.relocation
        if relocation is None:
            logger.info("%s moves from %s to %s", partition.topic_partition, partition.folder.name, move.target.name)
            relocation = move.relocation = Relocation(
                partition.log,
                *(partition.folder.disk, move.target.disk),
                *(partition.topic_id, partition.topic_partition.partition),
                blocking=self._env.blocking,
            )
        while self._may_go_on(move):
            if move.target.headroom.is_short:
                return False
            # Only committed data is copied ahead: it is hardly ever truncated again.
            high_watermark = partition.high_watermark
            copied = await relocation.step(high_watermark, now_ms=self._env.clock.wall_ms())
            move.target.headroom.took(copied)
            await relocation.flush_some()
            await self._pace(move, copied)
            if not copied or relocation.copy.end_offset >= high_watermark:
                # If the topic is deleted and the process dies, the next start finds the former folder, which does not
                # have the partition's name. So no recovery point may be left that a new topic of that name is judged
                # by.
                async with self._housekeeper.distrusting(partition, 0):
                    if not high_watermark:  # or the old folder's list says of what comes then that it never was
                        await self._housekeeper.write_high_watermarks(partition.folder)
                    return await relocation.take_over(
                        folder_of(partition.topic_partition),
                        now_ms=self._env.clock.wall_ms(),
                        breathe=breathe,
                        may=lambda: self._may_go_on(move),
                        decided=lambda: self._decided(move),
                        origin_failed=partition.folder.fail,
                        target_failed=move.target.fail,
                    )
        return False

    async def _pace(self, move: FolderMove, copied_bytes: float) -> None:
        """Let other tasks run. If a rate is configured, pause until the bytes that were copied fit that rate."""
        await breathe()
        while copied_bytes >= 1 and (rate := self._rate()) is not None and self._may_go_on(move):
            pause_s = min(copied_bytes / rate, REST_S)
            await asyncio.sleep(pause_s)
            copied_bytes -= rate * pause_s

    def _rate(self) -> int | None:
        own, everywhere = (
            self._metadata.image.broker_config(whose).values for whose in (str(self._metadata.broker_id), ALL_BROKERS)
        )
        rate = own.get(RATE, everywhere.get(RATE))
        return None if rate is None else max(int(rate), 1)

    def _decided(self, move: FolderMove) -> None:
        partition, origin = move.partition, move.partition.folder
        assert self._may_go_on(move), "nothing came between the last look and the decision"
        assert partition.log.disk is move.target.disk, "the log uses the copy"
        partition.move_to(move.target)
        logger.info("%s has moved from %s to %s", partition.topic_partition, origin.name, move.target.name)

    async def _throw_away(self, move: FolderMove) -> None:
        """Remove what the move has copied, durably, before the next move begins: an old copy that came back beside a
        newer one could be taken for it.
        """
        assert move.partition.log.disk is not move.target.disk, "what the log uses is kept"
        while True:
            try:
                if move.relocation is not None:
                    await move.relocation.give_up()
                else:
                    move.target.disk.discard(move.name)
                    await move.target.disk.sync_dir("")
                return
            except DiskFault as fault:
                move.target.fail(fault)
            if move.target.failed is not None and await self._maker.note_unremoved(move.target, move.name):
                return
            await asyncio.sleep(REST_S)
