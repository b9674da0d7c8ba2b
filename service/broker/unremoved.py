"""What was to be removed from a data folder that is out of service. It is noted in the broker's other data folders, and
removed by the next start that finds the folder. Otherwise a partition that left this broker and came back into another
folder would have two copies, and only one of them would have followed the leader.

What always holds: a note is durable before its partition may come back to this broker. When its folder was used again,
there is no note of it any more: a start that finds both the folder and the note carries the note out, and one that
finds the folder alone makes the note void (`data_folder.claim`).
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from log.disk import DiskFault
from service.broker.log_folder import LogFolder
from service.broker.notes import Note, read_notes, write_notes

UNREMOVED: Final = "unremoved-partitions"
"""A note has the id of a data folder, and the name of a partition's folder in it."""


class Unremoved:
    """The notes of a broker. Each of its folders has all of them."""

    def __init__(self, folders: Sequence[LogFolder]) -> None:
        self._folders = folders
        self._notes: dict[Note, None] = {}
        self._written: dict[LogFolder, tuple[Note, ...]] = {}
        self._writing = asyncio.Lock()

    def read(self) -> Collection[Note]:
        for folder in self._folders:
            self._notes |= dict.fromkeys(sorted(read_notes(folder.disk, UNREMOVED)))
        return self._notes

    async def carried_out(self, directories: Collection[str]) -> None:
        """In these folders nothing is left that a note names, durably. Raises `DiskFault`, because notes that stayed
        would remove what comes there from now on.
        """
        if self._notes:
            self._notes = {note: None for note in self._notes if note[0] not in directories}
            for folder in self._folders:
                await write_notes(folder.disk, UNREMOVED, self._notes)

    async def note(self, directory: str, name: str) -> bool:
        """Returns False if no folder has room for the note now. If all are out of service, nothing can be noted, and
        nothing can come back before the next start.
        """
        note = directory, name
        self._notes[note] = None
        async with self._writing:
            for folder in self._folders:
                if folder.failed is None and note not in self._written.get(folder, ()):
                    notes = tuple(self._notes)  # those that wait for the same go with it
                    try:
                        await write_notes(folder.disk, UNREMOVED, notes)
                    except DiskFault as fault:
                        folder.fail(fault)
                    else:
                        self._written[folder] = notes
        work = [folder for folder in self._folders if folder.failed is None]
        return not work or any(note in self._written.get(folder, ()) for folder in work)
