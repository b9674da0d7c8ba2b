"""The topics as groups see them: a read-only view of the cluster's metadata, and its fingerprint.

`TopicView` is the port: the broker gives an implementation over its cluster image, tests a dict. It must be a pure
view: the same answers until `version` is raised, and a raised `version` whenever any answer may have changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TopicFacts:
    topic_id: bytes
    name: str
    partitions: int


class TopicView(Protocol):
    @property
    def version(self) -> int: ...

    def by_name(self, name: str) -> TopicFacts | None: ...

    def by_id(self, topic_id: bytes) -> TopicFacts | None: ...

    def names(self) -> Iterable[str]: ...


def fingerprint(topics: TopicView, names: Iterable[str]) -> int:
    """A number that changes when a topic among `names` appears, goes, is made anew or grows; 0 when none exists.

    Stored beside the group's epoch where Kafka stores its own hash of the same facts. The two differ, so that a log
    taken over from Kafka costs each group one needless rebalance, and nothing else.
    """
    known = [facts for name in sorted(names) if (facts := topics.by_name(name)) is not None]
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for facts in known:
        digest.update(facts.topic_id + facts.partitions.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
