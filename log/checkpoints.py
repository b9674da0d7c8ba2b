"""Small text files that hold one offset each, in the folder of a partition.

What always holds: they are written atomically, and a file that is missing or unreadable says nothing (None). The text
is that of Kafka's checkpoints, without the topic: a version (0), a line break, the offset, a line break.
"""

from typing import Final

from log.disk import Disk

START_OFFSET: Final = "start-offset-checkpoint"
"""Where the log starts, if that is above the base offset of the first segment: after records were deleted."""
CLEANED_OFFSET: Final = "cleaned-offset-checkpoint"
"""Everything below this offset was durable, has been compacted once since, and may have gaps."""
GAPS_OFFSET: Final = "gaps-offset-checkpoint"
"""Everything below this offset was durable when the file was written. It may have gaps: it was copied from a
compacted log.
"""
FORGOTTEN_OFFSET: Final = "forgotten-offset-checkpoint"
"""Tombstones and markers below this offset may have left the log, here or where it was copied from."""

DAMAGED_OFFSET: Final = "damaged-offset-checkpoint"
"""Everything below this offset was durable, and a read or a start has found some of it damaged."""


def read_offset(disk: Disk, folder: str, name: str) -> int | None:
    try:
        version, offset, *rest = disk.read(f"{folder}/{name}").split(b"\n")
    except (FileNotFoundError, ValueError):
        return None
    if version != b"0" or rest != [b""] or not offset.isdigit():
        return None
    return int(offset)


async def write_offset(disk: Disk, folder: str, name: str, offset: int) -> None:
    await disk.write_atomic(f"{folder}/{name}", b"0\n%d\n" % offset)
