"""Notes of a broker about folders of partitions, which each of its data folders has. A note is two words."""

import logging
from collections.abc import Collection

from log.disk import Disk, DiskFault

logger = logging.getLogger("oncelog.broker")

Note = tuple[str, str]


def read_notes(disk: Disk, file: str) -> set[Note]:
    """Nothing when there is no such file or it can't be read."""
    try:
        lines = disk.read(file).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return set()
    except DiskFault as fault:  # the other folders have the same notes
        logger.warning("%s can't be read: %s", file, fault.strerror)
        return set()
    return {(one, other) for one, _, other in (line.partition(" ") for line in lines) if other}


async def write_notes(disk: Disk, file: str, notes: Collection[Note]) -> None:
    if notes:
        await disk.write_atomic(file, "".join(f"{one} {other}\n" for one, other in notes).encode())
    elif disk.exists(file):
        disk.discard(file)
        await disk.sync_dir("")
