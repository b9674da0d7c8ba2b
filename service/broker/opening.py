"""Opens the partitions that a broker holds. It finds the folder of each one and opens its log, by the manifest if the
last stop was clean and by recovery if not. Partitions that never existed are created. What could not be removed
when it was to be, because its disk was out of service, is removed. What becomes of every other folder that is found
is told by the table in `found_folders.py`.

What always holds: a partition's folder belongs to the topic with its id, whatever the last stop was like. A damaged log
is opened and reported, but not served.
"""

import logging
from collections.abc import Collection, Container, Mapping, Sequence
from functools import partial

from idempotence.producer_room import ProducerRoom
from idempotence.producers import ProducerStates
from isolation.stable import StableOffsets
from log.checkpoints import GAPS_OFFSET
from log.config import LogConfig
from log.cutting import restart_at
from log.disk import DiskFault
from log.identity import read_topic_id
from log.ids import ZERO_TOPIC_ID, TopicId, TopicPartition, folder_of, partition_of
from log.manifest import Manifest, read_high_watermarks, read_manifest, read_recovery_points, remove_manifest
from log.partition_log import CleanState, PartitionLog
from log.relocation import FORMER, FUTURE, of_stem, stem_of
from log.removal import raise_start_offset
from log.segment import segment_name
from log.twins import Twin, are_parts, fullest, is_part
from service.broker.data_folder import FolderFacts, StartError, agree, any_away, read_facts
from service.broker.found_folders import (
    STRAY,
    Fate,
    fate_of_copy,
    fate_of_named,
    has_nothing,
    is_blank,
    stray_name,
    told_by,
)
from service.broker.housekeeper import Housekeeper
from service.broker.internal_topics import log_config_of
from service.broker.log_folder import LogFolder
from service.broker.losses import Losses
from service.broker.notes import Note
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.unremoved import Unremoved
from service.cluster.image import NO_DIRECTORIES, Image, Topic
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import Turn, breathe, in_turns

logger = logging.getLogger("oncelog.broker")

OPENED_AT_ONCE = 256
"""How many partitions are opened before other tasks run."""
NAMED_AT_MOST = 5
"""How many partitions a line of the log names."""


class OpeningProgress:
    """How far a start has come. The loop may read it at any time; the threads that open logs add to it."""

    def __init__(self) -> None:
        self.partitions = self.opened = self.read_bytes = 0

    def read(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes


class PartitionMaker:
    """Opens, creates and removes partitions. Once all are open, `closed_life` names the life of the broker that was
    ended by a stop in order, so that no log had to be recovered. It is None if the last stop was not in order, or if
    the folders are of several lives: one of them was put back from a copy.
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
        self.losses = Losses(folders)
        self._directories: dict[LogFolder, str] = {}
        """The ids of the folders."""
        self.producer_room = ProducerRoom(
            config.producers_max, lambda: (partition.producers for partition in partitions)
        )
        self.progress = OpeningProgress()
        self.closed_life: int | None = None
        self._was_away = False
        """One of the folders is away, or was: what is left of a move may be newer than what is in use."""
        self.wanted: dict[TopicPartition, LogFolder] = {}
        """The folders wanted for partitions that this broker does not hold yet."""
        self.unfinished: dict[TopicPartition, LogFolder] = {}
        """The targets of the moves that were not finished when this broker stopped."""

    @property
    def was_clean(self) -> bool:
        return self.closed_life is not None

    async def open_all(self, image: Image, node_id: int) -> None:
        manifests: dict[str, Manifest] = {}
        present: dict[str, set[str]] = {}
        found: dict[str, FolderFacts | None] = {}
        for folder in self._folders:
            folder.disk.sweep()
            present[folder.name] = set(folder.disk.listdir(""))
            manifests[folder.name] = read_manifest(folder.disk)
            self._housekeeper.written_points[folder] = read_recovery_points(folder.disk)
            self._housekeeper.written_high_watermarks[folder] = read_high_watermarks(folder.disk)
            facts = found[folder.name] = read_facts(folder.disk, folder.name)
            assert facts is not None, "the folder is claimed before it is opened"
            self._directories[folder] = facts.directory_id
        unremoved = self._unremoved.read()
        await self._forget_unremoved(unremoved)
        # Without a manifest a whole partition may have been lost in a power cut, with nothing left that shows it.
        lives = {manifest.life for manifest in manifests.values()}
        self.closed_life = lives.pop() if len(lives) == 1 else None
        noted = await self.losses.note(await self._gone(image, node_id, manifests, present))
        for folder in self._folders:
            await self._note_ends(folder, manifests[folder.name], present)
            await remove_manifest(folder.disk)
        await self._remove_unremoved(unremoved, present)
        for folder in self._folders:
            folder.unused = dict.fromkeys((each for each in sorted(present[folder.name]) if each.endswith(STRAY)), 0)
        self._was_away = any_away(found)
        await self._settle_moves(image, node_id, present)
        points = {folder.name: self._housekeeper.written_points[folder] for folder in self._folders}
        anew: list[tuple[Topic, int, LogConfig]] = []
        progress, topics = self.progress, list(image.topics.values())
        progress.partitions = sum(node_id in state.replicas for each in topics for state in each.partitions.values())
        for topic in topics:
            config = log_config_of(topic, self._config)
            for index, state in topic.partitions.items():
                if node_id not in state.replicas:
                    continue
                if not await self._open(topic, index, config, manifests, points, present):
                    anew.append((topic, index, config))
                progress.opened += 1
                if progress.opened % OPENED_AT_ONCE == 0:
                    await breathe()
        await self._begin_anew(anew)
        await self._sort_out(image, present)
        for folder in self._folders:
            # Recovery points of topics that were deleted before a crash, or of partitions that moved to another folder
            # before it, must not be applied to new topics of the same names.
            here = {partition.topic_partition for partition in self._partitions if partition.folder is folder}
            await self._housekeeper.forget_in_a_start(folder, points[folder.name].keys() - here)
            for (topic_id, index), high_watermark in self._housekeeper.written_high_watermarks[folder].items():
                partition = (self._partitions.topic_by_id(topic_id) or {}).get(index)
                if partition is not None and partition.folder is folder:
                    partition.learn_high_watermark(high_watermark)
        known = image.directories.get(node_id, NO_DIRECTORIES).ids
        await self._find_lost(noted, is_away=not set(known) <= set(self._directories.values()))
        await agree({folder.name: folder.disk for folder in self._folders})

    async def _note_ends(self, folder: LogFolder, manifest: Manifest, present: Mapping[str, set[str]]) -> None:
        """Keep what the manifest says of partitions that are in several folders: it is known which one lacks something.
        If that refuses this start, it must refuse the next one, too, which has no manifest.
        """
        if not manifest:
            return
        elsewhere = set[str]().union(*(names for name, names in present.items() if name != folder.name))
        places = {name: partition_of(name) for name in manifest.keys() & present[folder.name] & elsewhere}
        ends = {place: manifest[name].end_offset for name, place in places.items() if place is not None}
        await self._housekeeper.note_in_a_start(folder, ends)

    async def _forget_unremoved(self, notes: Collection[Note]) -> None:
        """Forget how far that had come which was to be removed while its disk was out of service, also where its folder
        is gone: a partition that came to this broker later would be taken for one that has lost its records.
        """
        for folder in self._folders:
            names = [name for directory, name in notes if directory == self._directories[folder]]
            gone = {place for name in names if (place := partition_of(name)) is not None}
            await self._housekeeper.forget_in_a_start(folder, gone)

    async def _remove_unremoved(self, notes: Collection[Note], present: Mapping[str, set[str]]) -> None:
        """Remove what was to be removed while its disk was out of service."""
        for folder in self._folders:
            left = [name for name in sorted(present[folder.name]) if (self._directories[folder], name) in notes]
            for name in left:
                if (topic_partition := partition_of(name)) is not None:
                    logger.warning(
                        "%s/%s is removed: this broker gave %s up while that disk had failed",
                        *(folder.name, name, topic_partition),
                    )
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
            has_moved = False
            for name in sorted(present[folder.name]):
                topic_partition = partition_of(name)
                if topic_partition is None or self._partitions.get(topic_partition) is not None:
                    continue
                try:
                    tells = read_topic_id(folder.disk, name)
                except DiskFault as fault:  # perhaps it is a file: it is none of this broker's partitions in any case
                    logger.warning("%s/%s is passed over: %s", folder.name, name, fault.strerror)
                    continue
                is_known = (
                    tells is not None
                    and image.topic_names.get(tells) == topic_partition.topic
                    and image.partition(topic_partition) is not None
                )
                if tells is None or fate_of_named(tells, placed=None, is_known=is_known) is Fate.LEFT:
                    folder.unused[name] = 0
                    continue
                await self._housekeeper.forget_in_a_start(folder, {topic_partition})
                stem = stem_of(tells, topic_partition.partition)
                self._move_aside(folder, name, stem, f"other brokers hold {topic_partition}")
                has_moved = True
            if has_moved:  # durably: a partition that comes back into another folder must not be in two
                await folder.disk.sync_dir("")
            strays = [name for name in folder.unused if name.endswith(STRAY)]
            if strays:
                logger.warning(
                    "%s has %d folders of partitions that were moved aside, such as %s: remove them when you are sure"
                    " that those partitions have all that is in them",
                    *(folder.name, len(strays), strays[0]),
                )
            nobodys = [name for name in folder.unused if not name.endswith(STRAY)]
            if nobodys:
                logger.warning(
                    "%s has %d folders of topics that don't exist any more, such as %s: remove them while this broker"
                    " is stopped, unless the metadata store has lost those topics, or partitions of them",
                    *(folder.name, len(nobodys), nobodys[0]),
                )

    def _fate_of(
        self, folder: LogFolder, topic_partition: TopicPartition, placed: TopicId, known: CleanState | None = None
    ) -> Fate:
        """Of the folder with the partition's name, if the partition of topic `placed` is this broker's."""
        name = folder_of(topic_partition)
        tells = (None if known is None else known.topic_id) or read_topic_id(folder.disk, name)
        was_flushed = known is not None or self._housekeeper.written_points[folder].get(topic_partition, 0) > 0
        blank = tells is None and not was_flushed and is_blank(folder.disk, name)
        return fate_of_named(tells, placed=placed, blank=blank)

    def _free_name(self, folder: LogFolder, topic_partition: TopicPartition) -> None:
        """The folder with the partition's name is not the partition's. It goes."""
        name = folder_of(topic_partition)
        if is_blank(folder.disk, name):
            # It may be left from a deleted topic of that name. Nothing in it had been flushed, so nothing is lost that
            # a power cut could not have taken.
            logger.warning(
                "%s/%s was made shortly before a power cut, and not flushed: whose it is can't be known, and it is"
                " thrown away",
                *(folder.name, name),
            )
            folder.disk.discard(name)
        else:
            stem = stem_of(told_by(folder.disk, name) or ZERO_TOPIC_ID, topic_partition.partition)
            self._move_aside(folder, name, stem, f"it belongs to another {topic_partition}")

    @staticmethod
    def _move_aside(folder: LogFolder, name: str, stem: str, why: str) -> None:
        """Keep the folder under a name that nothing else has. It is durable when the data folder is synced."""
        stray = stray_name(folder.disk, stem)
        logger.warning("%s/%s is called %s from now on: %s", folder.name, name, stray, why)
        folder.disk.rename(name, stray)
        folder.unused.pop(name, None)
        folder.unused[stray] = 0

    async def _settle_moves(self, image: Image, node_id: int, present: dict[str, set[str]]) -> None:
        """Finish the moves between folders that had passed the point of decision, and note those that had not."""
        formers, futures = self._named(present, FORMER), self._named(present, FUTURE)
        if not formers and not futures:
            return
        to_sync: dict[LogFolder, None] = {}
        for topic_id, index in dict.fromkeys((*formers, *futures)):
            origins, targets = formers.get((topic_id, index), []), futures.get((topic_id, index), [])
            # Of several, all but one belong to moves that were called off, and nothing says which was not.
            resumable = targets[0] if len(targets) == 1 else None
            stem, home = stem_of(topic_id, index), None
            topic_partition = TopicPartition(image.topic_names.get(topic_id, ""), index)
            state = image.partition(topic_partition)
            is_placed = state is not None and node_id in state.replicas
            if is_placed:
                home = await self._home_of(topic_partition, topic_id, origins, targets, present)
                if resumable is not None and resumable in targets:
                    self.unfinished[topic_partition] = resumable
            left = [(each, stem + FORMER) for each in origins] + [(each, stem + FUTURE) for each in targets]
            for folder, name in left:
                fate = fate_of_copy(
                    has_nothing=has_nothing(folder.disk, name),
                    is_known=state is not None,
                    is_placed=is_placed,
                    has_home=home is not None,
                    was_away=self._was_away,
                )
                if fate is Fate.LEFT:
                    folder.unused[name] = 0
                elif fate is Fate.REMOVED:
                    folder.disk.discard(name)
                else:
                    why = "it may hold what {} lacks" if is_placed else "other brokers hold {}"
                    self._move_aside(folder, name, stem, why.format(topic_partition))
                if fate is Fate.ASIDE or name.endswith(FUTURE):
                    to_sync[folder] = None
        # What was moved aside must be so before its partition begins anew: the start after that would remove it. And
        # beside the copy of a later move, one that comes back could be taken for it.
        for folder in to_sync:
            await folder.disk.sync_dir("")

    async def _home_of(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        origins: Sequence[LogFolder],
        targets: list[LogFolder],
        present: Mapping[str, set[str]],
    ) -> LogFolder | None:
        """The folder where the partition is, under its name. If a move to one of `targets` was decided on, its copy
        gets the name now, durably, and is none of them any more.
        """
        name, stem = folder_of(topic_partition), stem_of(topic_id, topic_partition.partition)
        named = [folder for folder in self._folders if name in present[folder.name]]
        used = [each for each in named if self._fate_of(each, topic_partition, topic_id) is Fate.USED]
        home = next(iter(used), None)
        if not origins:
            return home
        # The process may have died before the decision was durable. It must be, before anything follows from it.
        # Otherwise a power cut gives the former folder its name again, and two folders have it.
        for origin in origins:
            await origin.disk.sync_dir("")
        # A copy that was never begun tells no topic. The one that took over had told its own durably.
        begun = [folder for folder in targets if read_topic_id(folder.disk, stem + FUTURE) == topic_id]
        # If a folder has the partition's name already, the copy is that of a later move: it may lack something.
        if used and await self._has_moved_on(topic_partition, stem, used, origins, begun):
            home = None
        if home is None and (home := self._decided_on(stem, begun)) is not None:
            # The copy is not measured by how far another log of that name had come.
            await self._housekeeper.forget_in_a_start(home, {topic_partition})
            if home in named:
                self._free_name(home, topic_partition)
            home.disk.rename(stem + FUTURE, name)
            present[home.name].add(name)
            targets.remove(home)
        if home is not None:
            await home.disk.sync_dir("")
        return home

    async def _has_moved_on(
        self,
        topic_partition: TopicPartition,
        stem: str,
        used: Sequence[LogFolder],
        origins: Sequence[LogFolder],
        begun: Sequence[LogFolder],
    ) -> bool:
        """Whether a copy took the partition over though folders have its name: a failed disk has forgotten that the
        partition had moved away from it, and then it moved on. If the copy, or what the moves left, is no part of the
        named folder, the copy is to be served: it must hold all. Otherwise `StartError`.
        """
        # Right before the decision a copy notes, durably, that there may be gaps in it (`log/relocation.py`).
        copies = [each for each in begun if each.disk.exists(f"{stem}{FUTURE}/{GAPS_OFFSET}")]
        if not copies:
            return False

        name, points = folder_of(topic_partition), self._housekeeper.written_points
        found = [(each, name, points[each].get(topic_partition, 0)) for each in used]
        # No point says anything of copies and of what was left: it is lowered before a decision.
        found += [(each, stem + suffix, 0) for suffix, of in ((FORMER, origins), (FUTURE, copies)) for each in of]
        twins = [await self._env.blocking(Twin, each.disk, called, point) for each, called, point in found]
        homes, others = twins[: len(used)], twins[len(used) :]
        all_there = partial(are_parts, was_away=self._was_away)
        if await self._env.blocking(all_there, others, fullest(homes)):
            return False
        if len(copies) == 1 and await self._env.blocking(all_there, twins[:-1], twins[-1]):
            return True
        holds = [f"{each.name}/{called} holds {twin}" for (each, called, _), twin in zip(found, twins, strict=True)]
        raise StartError(
            f"{topic_partition} is in several folders, and it is not sure that one of them holds all that is in the"
            f" others: {'; '.join(holds)}. Move that {name} away which is not to be used, most likely the one on a disk"
            " that had failed"
        )

    @staticmethod
    def _decided_on(stem: str, begun: Sequence[LogFolder]) -> LogFolder | None:
        """The folder whose copy took the partition over."""
        if len(begun) > 1:
            raise StartError(
                f"{stem}{FUTURE} is in {begun[0].name} and in {begun[1].name}: move that one away which has less in it,"
                " most likely the one on the disk that had failed"
            )
        return begun[0] if begun else None

    def _named(self, present: Mapping[str, set[str]], suffix: str) -> dict[tuple[TopicId, int], list[LogFolder]]:
        """The folders that have such a name, by what they are copies of. After a crash several may have one."""
        found: dict[tuple[TopicId, int], list[LogFolder]] = {}
        for folder in self._folders:
            for name in sorted(present[folder.name]):
                if name.endswith(suffix) and (whose := of_stem(name.removesuffix(suffix))) is not None:
                    found.setdefault(whose, []).append(folder)
        return found

    def add_new(self, topic: Topic, index: int, config: LogConfig) -> Partition:
        """Create a partition that never existed. If a disk has a folder of its name, that is of another topic."""
        topic_partition = TopicPartition(topic.name, index)
        name = folder_of(topic_partition)
        for folder in self._folders:
            try:
                if folder.failed is None and folder.disk.exists(name):
                    self._free_name(folder, topic_partition)
            except DiskFault as fault:
                folder.fail(fault)
        home = self.wanted.pop(topic_partition, None)
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
    ) -> bool:
        """Open the partition. Returns False if it is to begin anew instead, because its folder is not here. Nobody had
        written to it, or the folder is gone.
        """
        topic_partition = TopicPartition(topic.name, index)
        name = folder_of(topic_partition)
        listed = {folder: manifests[folder.name].get(name) for folder in self._folders}
        homes = found = [folder for folder in self._folders if name in present[folder.name]]
        if len(homes) > 1 or any((known := listed[folder]) is None or known.topic_id != topic.id for folder in homes):
            homes = [folder for folder in homes if await self._is_of(topic, index, folder, listed[folder])]
        if len(homes) > 1:
            await self._open_fullest(topic, index, config, homes, listed)
            return True
        for folder in homes:
            if (known := listed[folder]) is not None:
                # Without replicas it is served no more, and may be brought back.
                if len(topic.partitions[index].replicas) == 1 or _is_in(folder, known):
                    self.add(topic, index, folder, config, known, 0)
                    return True
                logger.critical("%s/%s is not as it was left: some of it was removed", folder.name, name)
                self.closed_life = None
            point = points[folder.name].get(topic_partition, 0)
            await self._env.blocking(self.add, topic, index, folder, config, None, point)
            await self._report_recovery(topic_partition)
            return True
        if not found and len(topic.partitions[index].replicas) == 1:
            folder, ended = self._listed_end(topic, index, manifests)
            if ended:
                await self._start_over(topic, index, config, folder, ended)
                return True
        return False

    async def _open_fullest(
        self,
        topic: Topic,
        index: int,
        config: LogConfig,
        homes: Sequence[LogFolder],
        listed: Mapping[LogFolder, CleanState | None],
    ) -> None:
        """Several folders are the partition's. The one that holds all that is in the others is opened, and the others
        go aside. A move between folders was decided on, and that disk failed which was to keep the decision, or the
        broker was started without one of the folders.
        """
        self.closed_life = None
        topic_partition = TopicPartition(topic.name, index)
        name = folder_of(topic_partition)
        twins: dict[Twin, LogFolder] = {}
        for folder in homes:
            known, point = listed[folder], self._housekeeper.written_points[folder].get(topic_partition, 0)
            durable = point if known is None else max(point, known.end_offset)
            twins[await self._env.blocking(Twin, folder.disk, name, durable)] = folder
        whole = fullest(list(twins))
        home = twins.pop(whole)
        for twin, folder in twins.items():
            is_sure = read_topic_id(home.disk, name) == read_topic_id(folder.disk, name) == topic.id
            all_there = partial(is_part, twin, whole, was_away=self._was_away)
            if not is_sure or not await self._env.blocking(all_there):
                raise StartError(
                    f"{name} is in {home.name} ({whole}) and in {folder.name} ({twin}), and it is not sure that one of"
                    " them holds all that is in the other: move that one away which is not to be used, most likely the"
                    " one on a disk that had failed, or that this broker was started without"
                )
        partition = await self._env.blocking(self.add, topic, index, home, config, None, whole.trusted_offset)
        log = partition.log
        if log.damage or (log.start_offset, log.end_offset) != (whole.start_offset, whole.end_offset):
            raise StartError(
                f"{home.name}/{name} held {whole}, and was recovered as offsets {log.start_offset} to"
                f" {log.end_offset - 1}: that disk can't be relied on. "
                + "; ".join(f"{folder.name}/{name} holds {twin}" for twin, folder in twins.items())
            )
        await self._report_recovery(topic_partition)
        # What was durable in a folder that goes aside must be so here, and what was deleted there stays deleted.
        await partition.log.flush()
        await raise_start_offset(partition.log, max(twin.kept_start for twin in twins))
        for twin, folder in twins.items():
            why = f"{home.name}/{name} holds {whole}, which is all that this one holds: {twin}"
            await self._housekeeper.forget_in_a_start(folder, {topic_partition})
            self._move_aside(folder, name, stem_of(topic.id, index), why)
            await folder.disk.sync_dir("")

    def _listed_end(self, topic: Topic, index: int, manifests: Mapping[str, Manifest]) -> tuple[LogFolder, int]:
        """How far the partition's log had come, as a manifest or a recovery point says, and whose. A folder that it
        moved out of may list it, too.
        """
        topic_partition = TopicPartition(topic.name, index)

        def listed_end(folder: LogFolder) -> int:
            known = manifests[folder.name].get(folder_of(topic_partition))
            if known is None:
                return self._housekeeper.written_points[folder].get(topic_partition, 0)
            return known.end_offset if known.topic_id in (None, topic.id) else 0

        folder = max(self._folders, key=listed_end)
        return folder, listed_end(folder)

    async def _gone(
        self, image: Image, node_id: int, manifests: Mapping[str, Manifest], present: Mapping[str, set[str]]
    ) -> list[tuple[TopicId, int]]:
        """The partitions without a folder here of which a manifest or a recovery point says that they had one."""
        gone, turn = [], Turn(OPENED_AT_ONCE)
        here = set().union(*present.values())
        for topic in list(image.topics.values()):
            for index, state in topic.partitions.items():
                if turn.is_over():
                    await breathe()
                is_here = folder_of(TopicPartition(topic.name, index)) in here
                if node_id in state.replicas and not is_here and self._listed_end(topic, index, manifests)[1]:
                    gone.append((topic.id, index))
        return gone

    async def _find_lost(self, noted: Container[tuple[TopicId, int]], *, is_away: bool) -> None:
        """Find the partitions that are empty, though that was noted, or a list says that something was committed in
        them. If a data folder is away, also those of which no list says that they had nothing.
        """
        committed: dict[tuple[TopicId, int], int] = {}
        for listed in self._housekeeper.written_high_watermarks.values():
            for key, high_watermark in listed.items():
                committed[key] = max(high_watermark, committed.get(key, 0))
        lost, short = [], []
        async for partition in in_turns(self._partitions, OPENED_AT_ONCE):
            key = partition.topic_id, partition.topic_partition.partition
            end_offset, ended = partition.log.end_offset, committed.get(key, int(is_away))
            if partition.offline or not partition.is_replicated:
                continue
            if not end_offset and (ended or key in noted):
                self.losses.lost[key] = None
                lost.append(str(partition.topic_partition))
            elif end_offset < committed.get(key, 0):
                short.append(f"{partition.topic_partition} (from {end_offset} to {ended})")
        if lost:
            logger.critical(
                "%d partitions are empty here now, and were not, as far as is known, such as %s: this broker does not"
                " count as one that holds them, and copies them from others. Those of which it was the last replica in"
                " sync have no leader until you let another copy lead (oncelog topic elect TOPIC --unclean)",
                *(len(lost), ", ".join(lost[:NAMED_AT_MOST])),
            )
        if short:
            logger.critical(
                "%d partitions have lost committed records here, most likely in a power cut, such as %s: they are"
                " copied from the other replicas, unless this broker was the last one in sync",
                *(len(short), ", ".join(short[:NAMED_AT_MOST])),
            )

    async def told(self) -> None:
        """The cluster knows what is lost here. From now on these partitions may get something again."""
        self.losses.lost.clear()  # a later registration must not tell it again
        for folder in self._folders:
            await self._housekeeper.write_high_watermarks(folder)
        await self.losses.forget()

    async def _begin_anew(self, anew: Sequence[tuple[Topic, int, LogConfig]]) -> None:
        """Make these partitions, whose folders are not here."""
        # A partition begins perhaps in a folder that it, or its predecessor, had moved out of.
        partitions = [TopicPartition(topic.name, index) for topic, index, _ in anew]
        for folder in self._folders:
            await self._housekeeper.forget_in_a_start(folder, partitions)
        for count, (topic, index, config) in enumerate(anew, start=1):
            self.add(topic, index, self.emptiest_folder(), config, None, 0)
            if count % OPENED_AT_ONCE == 0:
                await breathe()

    async def _is_of(self, topic: Topic, index: int, folder: LogFolder, known: CleanState | None) -> bool:
        """Whether the folder of the partition's name is used for it. If not, that name is free then."""
        topic_partition = TopicPartition(topic.name, index)
        if self._fate_of(folder, topic_partition, topic.id, known) is Fate.USED:
            return True
        # The recovery point is removed first, while the folder still says whose it was.
        await self._housekeeper.forget_in_a_start(folder, {topic_partition})
        self._free_name(folder, topic_partition)
        await folder.disk.sync_dir("")
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

    async def _report_recovery(self, topic_partition: TopicPartition) -> None:
        partition = self._partitions.get(topic_partition)
        assert partition is not None
        report = partition.log.recovery
        if report is None:
            return
        if report.scanned_bytes or report.cut_bytes:
            self.closed_life = None
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
            await partition.note_damage()

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
        folder.unused.pop(folder_of(topic_partition), None)
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
        partition.is_replicated = len(topic.partitions[index].replicas) > 1
        self._partitions.add(partition)
        return partition

    async def remove(self, partition: Partition) -> bool:
        """Remove the partition's folder and recovery point. Returns whether the name is free: nothing is left that a
        new partition of the same name could be taken for. What is left on a failed disk is noted.
        """
        assert self._partitions.get(partition.topic_partition) is not partition, "what is removed is not held any more"
        # The recovery point goes before the folder. If a crash comes between the two, the folder still says to which
        # topic the point belonged. A point without a folder says of the next topic of that name that it has lost all.
        if not await self._housekeeper.forget_points(partition.topic_partition):
            return False
        try:
            await partition.log.discard()
        except DiskFault as fault:
            partition.folder.fail(fault)
            if partition.folder.failed is None:
                return False
        # A folder out of service keeps the point of a partition that had moved out of it.
        points = self._housekeeper.written_points
        left = {
            (folder, folder_of(partition.topic_partition)): None
            for folder in self._folders
            if folder.failed is not None and partition.topic_partition in points.get(folder, ())
        }
        if partition.folder.failed is not None:
            # A move may have ended on that disk before its copy got the partition's name.
            left[partition.folder, partition.log.folder] = None
        return all([await self.note_unremoved(folder, name) for folder, name in left])

    async def note_unremoved(self, folder: LogFolder, name: str) -> bool:
        """`name` is left in a folder that is out of service. Returns whether that is noted."""
        return await self._unremoved.note(self._directories[folder], name)

    def emptiest_folder(self) -> LogFolder:
        """The folder for one more partition."""
        there = [folder for folder in self._folders if folder.failed is None]
        return min(there or self._folders, key=lambda folder: folder.partitions)


def _is_in(folder: LogFolder, known: CleanState) -> bool:
    """Whether the newest records of a log that was closed in order are there. Somebody may have emptied its folder."""
    written = [segment.base_offset for segment in known.segments if segment.size_bytes]
    return not written or folder.disk.exists(f"{known.folder}/{segment_name(written[-1])}")
