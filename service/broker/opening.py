"""Opens the partitions that a broker holds. It finds the folder of each one and opens its log, by the manifest if the
last stop was clean and by recovery if not. Partitions that never existed are created. What could not be removed
when it was to be, because its disk was out of service, is removed. Folders of partitions that other brokers hold now
are moved aside, and those of deleted topics are only named: the metadata store may have been brought back from before
those partitions came here, or those topics were made. Nobody else may have what is in them then.

What always holds: a partition's folder belongs to the topic with its id, whatever the last stop was like. A folder that
a deleted topic of the same name left is removed. A damaged log is opened and reported, but not served.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from itertools import count

from idempotence.producer_room import ProducerRoom
from idempotence.producers import ProducerStates
from isolation.stable import StableOffsets
from log.config import LogConfig
from log.cutting import restart_at
from log.disk import DiskFault
from log.identity import read_topic_id, was_never_flushed
from log.ids import TopicId, TopicPartition, folder_of, partition_of
from log.manifest import Manifest, read_and_remove_manifest, read_high_watermarks, read_recovery_points
from log.partition_log import CleanState, PartitionLog
from log.relocation import FORMER, FUTURE, stem_of
from service.broker.data_folder import StartError, read_facts
from service.broker.housekeeper import Housekeeper
from service.broker.internal_topics import log_config_of
from service.broker.log_folder import LogFolder
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.unremoved import Unremoved
from service.cluster.image import Image, Topic
from service.ports import Env
from service.settings.broker import BrokerConfig

logger = logging.getLogger("oncelog.broker")

STRAY = ".stray"
OPENED_AT_ONCE = 256
"""How many partitions are opened before other tasks run."""


class OpeningProgress:
    """How far a start has come. The loop may read it at any time; the threads that open logs add to it."""

    def __init__(self) -> None:
        self.partitions = self.opened = self.read_bytes = 0

    def read(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes


def _free_stray(stem: str, present: Collection[str]) -> str:
    names = (f"{stem}.{number}{STRAY}" for number in count(1))
    return next(each for each in names if each not in present)


class PartitionMaker:
    """Opens, creates and removes partitions. Once all are open, `was_clean` says whether the last stop was in order, so
    that no log had to be recovered.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        partitions: PartitionTable,
        folders: Sequence[LogFolder],
        housekeeper: Housekeeper,
    ) -> None:
        self._env = env
        self._config = config
        self._partitions = partitions
        self._folders = folders
        self._housekeeper = housekeeper
        self._unremoved = Unremoved(folders)
        self._directories: dict[LogFolder, str] = {}
        """The ids of the folders."""
        self.producer_room = ProducerRoom(
            config.producers_max, lambda: (partition.producers for partition in partitions)
        )
        self.progress = OpeningProgress()
        self.was_clean = False
        self.wanted: dict[TopicPartition, LogFolder] = {}
        """The folders wanted for partitions that this broker does not hold yet."""
        self.unfinished: dict[TopicPartition, LogFolder] = {}
        """The targets of the moves that were not finished when this broker stopped."""

    async def open_all(self, image: Image, node_id: int) -> None:
        manifests: dict[str, Manifest] = {}
        present: dict[str, set[str]] = {}
        self.was_clean = True
        for folder in self._folders:
            folder.disk.sweep()
            present[folder.name] = set(folder.disk.listdir(""))
            manifests[folder.name] = await read_and_remove_manifest(folder.disk)
            self._housekeeper.written_points[folder] = read_recovery_points(folder.disk)
            facts = read_facts(folder.disk, folder.name)
            assert facts is not None, "the folder is claimed before it is opened"
            self._directories[folder] = facts.directory_id
            # Without a manifest a whole partition may have been lost in a power cut, with nothing left that shows it.
            self.was_clean = self.was_clean and manifests[folder.name].is_there
        await self._remove_unremoved(present)
        points = {folder.name: self._housekeeper.written_points[folder] for folder in self._folders}
        await self._settle_moves(image, node_id, present)
        progress, topics = self.progress, list(image.topics.values())
        progress.partitions = sum(node_id in state.replicas for each in topics for state in each.partitions.values())
        for topic in topics:
            config = log_config_of(topic, self._config)
            for index, state in topic.partitions.items():
                if node_id not in state.replicas:
                    continue
                await self._open(topic, index, config, manifests, points, present)
                progress.opened += 1
                if progress.opened % OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        await self._sort_out(image, present)
        for folder in self._folders:
            # Recovery points of topics that were deleted before a crash, or of partitions that moved to another folder
            # before it, must not be applied to new topics of the same names.
            here = {partition.topic_partition for partition in self._partitions if partition.folder is folder}
            if not points[folder.name].keys() <= here:
                await self._housekeeper.write_points(folder)
            for (topic_id, index), high_watermark in read_high_watermarks(folder.disk).items():
                partition = (self._partitions.topic_by_id(topic_id) or {}).get(index)
                if partition is not None and partition.folder is folder:
                    partition.learn_high_watermark(high_watermark)

    async def _remove_unremoved(self, present: Mapping[str, set[str]]) -> None:
        """Remove what was to be removed while its disk was out of service."""
        notes = self._unremoved.read()
        for folder in self._folders:
            left = [name for name in sorted(present[folder.name]) if (self._directories[folder], name) in notes]
            for name in left:
                if (topic_partition := partition_of(name)) is not None:
                    logger.warning(
                        "%s/%s is removed: this broker gave %s up while that disk had failed",
                        *(folder.name, name, topic_partition),
                    )
                    await self._housekeeper.forget_point(folder, topic_partition)
                elif not name.endswith(FUTURE):
                    continue
                folder.disk.discard(name)
                present[folder.name].discard(name)
            if left:
                await folder.disk.sync_dir("")
        await self._unremoved.carried_out(self._directories.values())

    async def _sort_out(self, image: Image, present: Mapping[str, set[str]]) -> None:
        """Look after the folders in which no partition of this broker was found."""
        for folder in self._folders:
            nobodys, moved_aside = [], False
            strays = [name for name in sorted(present[folder.name]) if name.endswith(STRAY)]
            for name in sorted(present[folder.name]):
                topic_partition = partition_of(name)
                if topic_partition is None or self._partitions.get(topic_partition) is not None:
                    continue
                try:
                    topic_id = read_topic_id(folder.disk, name)
                except DiskFault as fault:  # perhaps it is a file: it is none of this broker's partitions in any case
                    logger.warning("%s/%s is passed over: %s", folder.name, name, fault.strerror)
                    continue
                if topic_id is None or topic_id not in image.topic_names:
                    nobodys.append(name)
                elif image.topic_names[topic_id] == topic_partition.topic:
                    stray = _free_stray(stem_of(topic_id, topic_partition.partition), present[folder.name])
                    logger.warning(
                        "%s/%s is called %s from now on: other brokers hold %s",
                        *(folder.name, name, stray, topic_partition),
                    )
                    await self._housekeeper.forget_point(folder, topic_partition)
                    folder.disk.rename(name, stray)
                    strays.append(stray)
                    moved_aside = True
            if moved_aside:  # durably: a partition that comes back into another folder must not be in two
                await folder.disk.sync_dir("")
            if strays:
                logger.warning(
                    "%s has %d folders of partitions that were moved aside, such as %s: remove them when you are sure"
                    " that the brokers which hold those partitions now have all that is in them",
                    *(folder.name, len(strays), strays[0]),
                )
            if nobodys:
                logger.warning(
                    "%s has %d folders of topics that don't exist any more, such as %s: remove them while this broker"
                    " is stopped, unless the metadata store has lost those topics",
                    *(folder.name, len(nobodys), nobodys[0]),
                )

    async def _settle_moves(self, image: Image, node_id: int, present: dict[str, set[str]]) -> None:
        """Finish the moves between folders that had passed the point of decision, and note those that had not."""
        futures = self._named(present, FUTURE)
        formers = self._named(present, FORMER)
        if not futures and not formers:
            return
        ours = {
            stem_of(topic.id, index): TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index, state in topic.partitions.items()
            if node_id in state.replicas
        }
        resumable = {stem: targets[0] for stem, targets in futures.items() if len(targets) == 1}
        for stem, origins in formers.items():
            topic_partition = ours.get(stem)
            if topic_partition is not None:
                name, topic_id = folder_of(topic_partition), image.topics[topic_partition.topic].id
                named = [folder for folder in self._folders if name in present[folder.name]]
                home = next((folder for folder in named if read_topic_id(folder.disk, name) == topic_id), None)
                # The process may have died before the decision was durable. It must be, before anything follows from
                # it. Otherwise a power cut gives the former folder its name again, and two folders have it.
                for origin in origins:
                    await origin.disk.sync_dir("")
                # If a folder has the partition's name already, the copy is that of a later move: it may lack something.
                if home is None and (home := self._decided_on(topic_id, stem, futures.get(stem, []))) is not None:
                    home.disk.rename(stem + FUTURE, name)
                    present[home.name].add(name)
                    futures[stem].remove(home)
                    resumable.pop(stem, None)
                if home is None:
                    # The partition begins anew now. The next start would take this for what a finished move left.
                    for origin in origins:
                        stray = _free_stray(stem, present[origin.name])
                        logger.critical(
                            "%s/%s is called %s from now on: it is what %s was before it moved to a folder that is"
                            " missing",
                            *(origin.name, stem + FORMER, stray, topic_partition),
                        )
                        origin.disk.rename(stem + FORMER, stray)
                        present[origin.name].add(stray)
                        await origin.disk.sync_dir("")
                    continue
                await home.disk.sync_dir("")
            for origin in origins:
                origin.disk.discard(stem + FORMER)
        for stem, targets in futures.items():
            for target in targets:
                target.disk.discard(stem + FUTURE)
            # Of several, all but one belong to moves that were called off, and nothing says which was not.
            if stem in ours and stem in resumable:
                self.unfinished[ours[stem]] = resumable[stem]
        for folder in {target: None for targets in futures.values() for target in targets}:
            await folder.disk.sync_dir("")  # beside the copy of a later move, one that comes back could be taken for it

    @staticmethod
    def _decided_on(topic_id: TopicId, stem: str, targets: Sequence[LogFolder]) -> LogFolder | None:
        """The folder whose copy took the partition over. A copy that was never begun is not that one: it tells no
        topic, and the one that took over had told its own durably.
        """
        begun = [folder for folder in targets if read_topic_id(folder.disk, stem + FUTURE) == topic_id]
        if len(begun) > 1:
            raise StartError(
                f"{stem}{FUTURE} is in {begun[0].name} and in {begun[1].name}: move that one away which has less in it,"
                " most likely the one on the disk that had failed"
            )
        return begun[0] if begun else None

    def _named(self, present: Mapping[str, set[str]], suffix: str) -> dict[str, list[LogFolder]]:
        """The folders that have such a name, by the name without the suffix. After a crash several may have one."""
        found: dict[str, list[LogFolder]] = {}
        for folder in self._folders:
            for name in sorted(present[folder.name]):
                if name.endswith(suffix):
                    found.setdefault(name.removesuffix(suffix), []).append(folder)
        return found

    def add_new(self, topic: Topic, index: int, config: LogConfig) -> Partition:
        """Create a partition that never existed. If a disk has a folder of its name, a deleted topic left it before a
        crash: it is removed.
        """
        name = folder_of(TopicPartition(topic.name, index))
        for folder in self._folders:
            try:
                if folder.failed is None and folder.disk.exists(name):
                    folder.disk.discard(name)
            except DiskFault as fault:
                folder.fail(fault)
        home = self.wanted.pop(TopicPartition(topic.name, index), None)
        if home is None or home.failed is not None:
            home = self.emptiest_folder()
        # What a failed disk still holds under this name is noted (`remove`), and the next start removes it.
        known = None if home.failed is None else CleanState(name, 0, 0, (), (), (), {})
        return self.add(topic, index, home, config, known, 0)

    async def _open(
        self,
        topic: Topic,
        index: int,
        config: LogConfig,
        manifests: Mapping[str, Manifest],
        points: Mapping[str, Mapping[TopicPartition, int]],
        present: Mapping[str, set[str]],
    ) -> None:
        topic_partition = TopicPartition(topic.name, index)
        name = folder_of(topic_partition)
        listed = {folder: manifests[folder.name].get(name) for folder in self._folders}
        homes = found = [folder for folder in self._folders if name in present[folder.name]]
        if len(homes) > 1 or any((known := listed[folder]) is None or known.topic_id != topic.id for folder in homes):
            homes = [
                folder
                for folder in homes
                if await self._is_of(topic, index, folder, listed[folder], points[folder.name])
            ]
        if len(homes) > 1:
            raise StartError(
                f"{name} is in {homes[0].name} and in {homes[1].name}: move that one away which is not to be used, most"
                " likely the one on the disk that this broker was started without"
            )
        for folder in homes:
            if (known := listed[folder]) is not None:
                self.add(topic, index, folder, config, known, 0)
                return
            point = points[folder.name].get(topic_partition, 0)
            await self._env.blocking(self.add, topic, index, folder, config, None, point)
            self._report_recovery(topic_partition)
            return

        def listed_end(folder: LogFolder) -> int:
            known = listed[folder]
            if known is None:
                return points[folder.name].get(topic_partition, 0)
            return known.end_offset if known.topic_id in (None, topic.id) else 0

        folder = max(self._folders, key=listed_end)  # one that it moved out of may list it, too
        ended = 0 if found else listed_end(folder)
        if ended and len(topic.partitions[index].replicas) > 1:
            logger.critical(
                "%s/%s is gone, and with it what was in it: %s is copied anew from another replica",
                *(folder.name, name, topic_partition),
            )
            self.was_clean = False
        elif ended:
            await self._start_over(topic, index, config, folder, ended)
            return
        # The partition begins anew, perhaps in a folder that it, or its predecessor, had moved out of.
        if any(topic_partition in points[folder.name] for folder in self._folders):
            await self._housekeeper.forget_points(topic_partition)
        self.add(topic, index, self.emptiest_folder(), config, None, 0)

    async def _is_of(
        self,
        topic: Topic,
        index: int,
        folder: LogFolder,
        known: CleanState | None,
        points: Mapping[TopicPartition, int],
    ) -> bool:
        """Whether the folder of the partition's name belongs to this topic. If not, the folder is removed."""
        topic_partition = TopicPartition(topic.name, index)
        name = folder_of(topic_partition)
        owner = known.topic_id if known is not None else None
        owner = owner or read_topic_id(folder.disk, name)
        if owner == topic.id:
            return True
        if owner is None:
            if known is not None or points.get(topic_partition) or not was_never_flushed(folder.disk, name):
                return True
            # The folder may be left from a deleted topic of that name. Nothing in it had been flushed, so nothing is
            # lost that a power cut could not have taken.
            logger.warning(
                "%s/%s was made shortly before a power cut, and not flushed: whose it is can't be known, and it is"
                " thrown away",
                *(folder.name, name),
            )
        # The topic of this folder was deleted while the broker was away, or a crash came before the folder was removed.
        # The recovery point is removed first, while the folder still says whose it was.
        await self._housekeeper.forget_point(folder, topic_partition)
        folder.disk.discard(name)
        return False

    async def _start_over(
        self, topic: Topic, index: int, config: LogConfig, folder: LogFolder, end_offset: int
    ) -> None:
        """Create a partition again whose folder was removed. It begins where the old log ended, as far as that is
        known, so that no offset is given twice.
        """
        partition = self.add(topic, index, folder, config, None, 0)
        name = folder_of(partition.topic_partition)
        logger.critical(
            "%s/%s is gone, and with it what was in it: %s is empty and goes on at offset %d",
            *(folder.name, name, partition.topic_partition, end_offset),
        )
        log = partition.log
        assert log.end_offset == log.start_offset, "the folder was gone, so the log is empty"
        restart_at(log, end_offset)
        await log.flush()

    def _report_recovery(self, topic_partition: TopicPartition) -> None:
        partition = self._partitions.get(topic_partition)
        assert partition is not None
        report = partition.log.recovery
        if report is None:
            return
        if report.scanned_bytes or report.cut_bytes:
            self.was_clean = False
        if report.cut_bytes:
            logger.warning("%s: %s", topic_partition, report)
        if partition.log.damage:
            first, *more = partition.log.damage
            logger.critical(
                "%s is damaged and not served: offsets %d to %d, %s%s. `oncelog log verify` shows where. Stop the"
                " broker and bring back a copy of %s/%s, or remove it to go on without what was in it",
                *(topic_partition, first.first_offset, first.end_offset - 1, first.reason),
                f", and {len(more)} more places" if more else "",
                *(partition.folder.name, folder_of(topic_partition)),
            )
            partition.fail()

    def add(
        self,
        topic: Topic,
        index: int,
        folder: LogFolder,
        config: LogConfig,
        known: CleanState | None,
        recovery_point: int,
    ) -> Partition:
        topic_partition = TopicPartition(topic.name, index)
        stable = StableOffsets()
        producers = ProducerStates(
            stable.open_transactions, limit=self._config.producers_per_partition_max, room=self.producer_room
        )
        log = PartitionLog.open(
            folder.disk,
            folder_of(topic_partition),
            config,
            (producers, stable),
            known=known,
            now_ms=self._env.clock.wall_ms(),
            recovery_point=recovery_point,
            topic_id=topic.id,
            on_read=self.progress.read,
        )
        partition = Partition(topic_partition, topic.id, log, folder, producers, stable)
        self._partitions.add(partition)
        return partition

    async def remove(self, partition: Partition) -> bool:
        """Remove the partition's folder and recovery point. Returns whether the name is free: nothing is left that a
        new partition of the same name could be taken for. What is left on a failed disk is noted.
        """
        assert self._partitions.get(partition.topic_partition) is not partition, "what is removed is not held any more"
        # The recovery point goes before the folder. If a crash comes between the two, the folder still says to which
        # topic the point belonged.
        await self._housekeeper.forget_points(partition.topic_partition)
        try:
            await partition.log.discard()
        except DiskFault as fault:
            partition.folder.fail(fault)
            if partition.folder.failed is None:
                return False
        if partition.folder.failed is not None:
            return await self.note_unremoved(partition.folder, folder_of(partition.topic_partition))
        # On a full disk the point could not be removed before. Now the folder has made room.
        return await self._housekeeper.forget_points(partition.topic_partition)

    async def note_unremoved(self, folder: LogFolder, name: str) -> bool:
        """`name` is left in a folder that is out of service. Returns whether that is noted."""
        return await self._unremoved.note(self._directories[folder], name)

    def emptiest_folder(self) -> LogFolder:
        """The folder for one more partition."""
        there = [folder for folder in self._folders if folder.failed is None]
        return min(there or self._folders, key=lambda folder: folder.partitions)
