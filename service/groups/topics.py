"""The topics as groups see them: a read-only view of the cluster's metadata, and its fingerprint.

`TopicView` is the interface. A view must be pure: it gives the same answers until `version` is raised, and `version` is
raised whenever an answer may have changed.
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
    """A number that changes when a topic among `names` is made, is deleted, is made again or gets more partitions; 0 if
    none exists.

    It is stored with the group's epoch, in the field where Kafka stores its own hash of the same facts. The two hashes
    differ. So with a log taken over from Kafka each group has one needless rebalance, and no other harm.
    """
    known = [facts for name in sorted(names) if (facts := topics.by_name(name)) is not None]
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for facts in known:
        digest.update(facts.topic_id + facts.partitions.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
