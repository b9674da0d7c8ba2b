"""The cluster's topics as group coordinators see them: a view of the current image."""

from collections.abc import Iterable

from log.ids import TopicId
from service.cluster.image import Topic
from service.cluster.metadata import ClusterMetadata
from service.groups.topics import TopicFacts


class ImageTopics:
    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    @property
    def version(self) -> int:
        return self._metadata.image.number

    def by_name(self, name: str) -> TopicFacts | None:
        return _facts(self._metadata.image.topics.get(name))

    def by_id(self, topic_id: bytes) -> TopicFacts | None:
        return _facts(self._metadata.image.topic_by_id(TopicId(topic_id)))

    def names(self) -> Iterable[str]:
        return self._metadata.image.topics


def _facts(topic: Topic | None) -> TopicFacts | None:
    return None if topic is None else TopicFacts(topic.id, topic.name, len(topic.partitions))
