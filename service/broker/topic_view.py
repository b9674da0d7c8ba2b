"""The cluster's topics as group coordinators see them: a view of the current image."""

from collections.abc import Iterable, Mapping

from log.ids import TopicId
from service.cluster.image import Topic
from service.cluster.metadata import ClusterMetadata
from service.groups.topics import TopicFacts


class ImageTopics:
    """`version` is the number of the image in which a topic was last made, deleted, or given more partitions. Leaders
    and in-sync sets change far more often, and groups need not look at their topics for that.
    """

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._seen: Mapping[str, Topic] = {}
        self._version = -1

    @property
    def version(self) -> int:
        image = self._metadata.image
        if image.topics is not self._seen:  # images share what has not changed
            if _differ(self._seen, image.topics):
                self._version = image.number
            self._seen = image.topics
        return self._version

    def by_name(self, name: str) -> TopicFacts | None:
        return _facts(self._metadata.image.topics.get(name))

    def name_of(self, topic_id: bytes) -> str | None:
        return self._metadata.image.topic_names.get(TopicId(topic_id))

    def names(self) -> Iterable[str]:
        return self._metadata.image.topics


def _differ(before: Mapping[str, Topic], after: Mapping[str, Topic]) -> bool:
    """Whether groups see a difference."""
    if len(before) != len(after):
        return True
    for name, topic in after.items():
        old = before.get(name)
        if old is not topic and (old is None or (old.id, len(old.partitions)) != (topic.id, len(topic.partitions))):
            return True
    return False


def _facts(topic: Topic | None) -> TopicFacts | None:
    return None if topic is None else TopicFacts(topic.id, topic.name, len(topic.partitions))
