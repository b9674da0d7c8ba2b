"""Every partition that this broker holds, by topic name and by topic id.

A name or id is looked up once for each topic of a request, a partition index once for each partition. Both are plain
dictionaries.
"""

from collections.abc import Iterator

from log.ids import TopicId, TopicPartition
from service.broker.partition import Partition

TopicPartitions = dict[int, Partition]


class PartitionTable:
    def __init__(self) -> None:
        self._by_name: dict[str, TopicPartitions] = {}
        self._by_id: dict[bytes, TopicPartitions] = {}
        self._names: dict[bytes, str] = {}
        self._count = 0

    def __iter__(self) -> Iterator[Partition]:
        for topic in list(self._by_name.values()):
            yield from list(topic.values())

    def __len__(self) -> int:
        return self._count

    def add(self, partition: Partition) -> None:
        name, index = partition.topic_partition
        topic = self._by_name.setdefault(name, {})
        assert index not in topic
        topic[index] = partition
        self._count += 1
        partition.folder.partitions += 1
        self._by_id[partition.topic_id] = topic
        self._names[partition.topic_id] = name

    def remove(self, partition: Partition) -> None:
        name, index = partition.topic_partition
        topic = self._by_name[name]
        del topic[index]
        self._count -= 1
        partition.folder.partitions -= 1
        if not topic:
            del self._by_name[name], self._by_id[partition.topic_id], self._names[partition.topic_id]

    def take_out(self, topic_id: TopicId) -> list[Partition]:
        """Remove all partitions of a topic, and return them."""
        name = self._names.pop(topic_id, None)
        if name is None:
            return []
        topic = self._by_name.pop(name)
        del self._by_id[topic_id]
        partitions = list(topic.values())
        topic.clear()  # requests that are under way have it
        self._count -= len(partitions)
        for partition in partitions:
            partition.folder.partitions -= 1
        return partitions

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        topic = self._by_name.get(topic_partition.topic)
        return None if topic is None else topic.get(topic_partition.partition)

    def topic(self, name: str) -> TopicPartitions | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicPartitions | None:
        return self._by_id.get(topic_id)

    def name_of(self, topic_id: TopicId | bytes) -> str | None:
        return self._names.get(topic_id)
