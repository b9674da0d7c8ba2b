"""Which topic a partition's folder belongs to, in Kafka's `partition.metadata`.

A topic may be deleted and another be made with its name; after a crash in between the folder of the first must not be
taken for that of the second. Written when the folder is made, durable with its first flush, and never changed. A folder
without the file is believed to be what its name says.
"""

from typing import Final

from log.disk import Disk
from log.ids import TopicId, format_topic_id, parse_topic_id

PARTITION_METADATA: Final = "partition.metadata"


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
