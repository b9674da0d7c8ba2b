"""The partitions of this broker whose folders are not here any more, though the cluster counts on what was in them
(R17). The cluster is told of them when this broker registers.

What always holds: a loss is noted durably before its partition begins anew, empty, and until the cluster was told. A
note counts only while the partition is empty: nothing comes there before the cluster was told.
"""

from collections.abc import Collection, Sequence
from typing import Final

from log.ids import TopicId, format_topic_id, parse_topic_id
from service.broker.log_folder import LogFolder
from service.broker.notes import read_notes, write_notes

LOST: Final = "lost-partitions"


class Losses:
    def __init__(self, folders: Sequence[LogFolder]) -> None:
        self._folders = folders
        self.lost: dict[tuple[TopicId, int], None] = {}

    def read(self) -> None:
        """What earlier starts have noted that died before they could tell the cluster."""
        for folder in self._folders:
            for topic_id, index in sorted(read_notes(folder.disk, LOST)):
                self.lost[parse_topic_id(topic_id), int(index)] = None

    async def add(self, lost: Collection[tuple[TopicId, int]]) -> None:
        if lost:
            self.lost |= dict.fromkeys(lost)
            await self._write()

    async def told(self) -> None:
        """The cluster knows. From now on the partitions may get something again."""
        if self.lost:
            self.lost.clear()
            await self._write()

    async def _write(self) -> None:
        notes = [(format_topic_id(topic_id), str(index)) for topic_id, index in self.lost]
        for folder in self._folders:
            await write_notes(folder.disk, LOST, notes)
