"""The partitions of this broker that are empty now, though they were not, because their folders are gone or what was in
them (R17). The cluster is told of them when this broker registers.

What always holds: until the cluster was told, every start that finds the partition empty finds that it is lost. The
lists of high watermarks say so, which are not written before. What a manifest or a recovery point alone says is noted
durably before either is removed.
"""

import logging
from collections.abc import Collection, Sequence
from typing import Final

from log.disk import DiskFault
from log.ids import TopicId, format_topic_id, parse_topic_id
from service.broker.log_folder import LogFolder
from service.broker.notes import read_notes, write_notes

logger = logging.getLogger("oncelog.broker")

LOST: Final = "lost-partitions"


class Losses:
    def __init__(self, folders: Sequence[LogFolder]) -> None:
        self._folders = folders
        self.lost: dict[tuple[TopicId, int], None] = {}

    async def note(self, gone: Collection[tuple[TopicId, int]]) -> dict[tuple[TopicId, int], None]:
        """Note these, and return what is noted: by earlier starts, too, that died before they could tell the cluster.
        A note says nothing of a partition that is not empty.
        """
        noted: dict[tuple[TopicId, int], None] = {}
        for folder in self._folders:
            for topic_id, index in sorted(read_notes(folder.disk, LOST)):
                try:
                    noted[parse_topic_id(topic_id), int(index)] = None
                except ValueError:
                    logger.warning("%s/%s has a line that is no note: %s %s", folder.name, LOST, topic_id, index)
        if gone:
            noted |= dict.fromkeys(gone)
            notes = [(format_topic_id(topic_id), str(index)) for topic_id, index in noted]
            for folder in self._folders:
                await write_notes(folder.disk, LOST, notes)
        return noted

    async def forget(self) -> None:
        """The cluster knows, and the lists of high watermarks tell nothing else any more."""
        for folder in self._folders:
            try:
                await write_notes(folder.disk, LOST, ())
            except DiskFault as fault:
                folder.fail(fault)
