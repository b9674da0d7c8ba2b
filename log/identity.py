"""Which topic a partition's folder belongs to, in Kafka's `partition.metadata`.

A topic may be deleted and another be made with its name; after a crash in between the folder of the first must not be
taken for that of the second. Written when the folder is made, durable with its first flush before anything else is, and
never changed. A folder whose file says nothing is believed to be what its name says, unless a power cut has left it so:
then nothing in it was ever flushed (`was_never_flushed`), and it may be anybody's.
"""

from typing import Final

from log.disk import TEMPORARY, Disk
from log.ids import TopicId, format_topic_id, parse_topic_id
from log.segment import LOG_SUFFIX, SUFFIXES
from log.snapshots import SUFFIX as SNAPSHOT_SUFFIX

PARTITION_METADATA: Final = "partition.metadata"
UNFLUSHED: Final = (*SUFFIXES, SNAPSHOT_SUFFIX, TEMPORARY)
"""How the names of files end that may be there before the first flush."""


def write_topic_id(disk: Disk, folder: str, topic_id: TopicId) -> None:
    file = disk.open(f"{folder}/{PARTITION_METADATA}", create=True)
    file.truncate(0)
    file.append((f"version: 0\ntopic_id: {format_topic_id(topic_id)}\n".encode(),))
    file.close()


async def sync_topic_id(disk: Disk, folder: str) -> None:
    try:
        file = disk.open(f"{folder}/{PARTITION_METADATA}")
    except FileNotFoundError:
        return
    try:
        await file.fsync()
    finally:
        file.close()


def read_topic_id(disk: Disk, folder: str) -> TopicId | None:
    try:
        lines = disk.read(f"{folder}/{PARTITION_METADATA}").decode("utf-8", "replace").splitlines()
        fields = dict(line.split(": ", 1) for line in lines)
        return parse_topic_id(fields["topic_id"]) if fields["version"] == "0" else None
    except (FileNotFoundError, KeyError, ValueError):
        return None


def was_never_flushed(disk: Disk, folder: str) -> bool:
    """Whether a power cut took what the file said, or all that was in the folder: the name of a file that was not
    flushed may survive its bytes.
    """
    names = disk.listdir(folder)
    if any(name != PARTITION_METADATA and not name.endswith(UNFLUSHED) for name in names):
        return False  # a checkpoint: it came after a flush
    try:
        return not disk.read(f"{folder}/{PARTITION_METADATA}").strip(b"\0")
    except FileNotFoundError:
        return not any(name.endswith(LOG_SUFFIX) for name in names)  # its name was there before theirs
