"""Which topic a partition's folder belongs to, in Kafka's `partition.metadata`.

A topic may be deleted and another one be made with its name. After a crash in between, the folder of the first topic
must not be taken for that of the second. The file is written when the folder is made. It becomes durable at the first
flush of the folder, before anything else there, and never changes. A folder whose file tells no topic belongs to the
topic in its name, unless a power cut took the file's bytes. In that case nothing in the folder was ever flushed
(`was_never_flushed`), and the folder may belong to any topic of that name.
"""

from typing import Final

from log.disk import PARTITION_METADATA, TEMPORARY, Disk
from log.ids import TopicId, format_topic_id, parse_topic_id
from log.segment import LOG_SUFFIX, SUFFIXES
from log.snapshots import SUFFIX as SNAPSHOT_SUFFIX

UNFLUSHED: Final = (*SUFFIXES, SNAPSHOT_SUFFIX, TEMPORARY)
"""The endings of the names of files that may exist before the first flush."""


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
    """Whether a power cut came before the folder's first flush. The name of an unflushed file may survive while its
    bytes are lost, or read as zeros.
    """
    names = disk.listdir(folder)
    if any(name != PARTITION_METADATA and not name.endswith(UNFLUSHED) for name in names):
        return False  # there is a checkpoint, and before the first one the topic id was synced
    try:
        return not disk.read(f"{folder}/{PARTITION_METADATA}").strip(b"\0")
    except FileNotFoundError:
        # The file with the topic id is created before the first segment. Where only segments exist, it was never there.
        return not any(name.endswith(LOG_SUFFIX) for name in names)
