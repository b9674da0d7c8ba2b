"""The topics as groups see them: a read-only view of the cluster's metadata, and its fingerprint.

`TopicView` is the interface. A view must be pure: it gives the same answers until `version` is raised, and `version` is
raised whenever an answer may have changed.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol

from service.groups.small_steps import SmallSteps


class TopicFacts(NamedTuple):
    topic_id: bytes
    name: str
    partitions: int


class TopicView(Protocol):
    @property
    def version(self) -> int: ...

    def by_name(self, name: str) -> TopicFacts | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def names(self) -> Iterable[str]: ...


def fingerprint(topics: TopicView, names: Iterable[str]) -> int:
    """A number that changes when a topic among `names` is made, is deleted, is made again or gets more partitions; 0 if
    none exists.

    It is stored with the group's epoch, in the field where Kafka stores its own hash of the same facts. The two hashes
    differ. So with a log taken over from Kafka each group has one needless rebalance, and no other harm.
    """
    return _as_stored(sum(_mark(topics, name) for name in names))


def fingerprint_in_small_steps(
    topics: TopicView, names: Iterable[str], is_one: Callable[[str], bool], changed: dict[str, None]
) -> SmallSteps[int]:
    """The fingerprint of all that `is_one` when this ends. `names`: all that are at the begin; a name may come twice.
    Each that becomes one or is one no more is put into `changed` meanwhile.
    """
    counted: dict[str, int] = {}
    for name in names:
        if name not in counted and is_one(name):
            counted[name] = _mark(topics, name)
        yield
    total = sum(counted.values())
    while changed:
        name, _ = changed.popitem()
        total -= counted.pop(name, 0)
        if is_one(name):
            mark = counted[name] = _mark(topics, name)
            total += mark
        yield
    return _as_stored(total)


def _mark(topics: TopicView, name: str) -> int:
    """The part of a topic in a fingerprint, which is the sum of its parts."""
    facts = topics.by_name(name)
    if facts is None:
        return 0
    return int.from_bytes(blake2b(facts.topic_id + facts.partitions.to_bytes(4, "big"), digest_size=8).digest(), "big")


def _as_stored(total: int) -> int:
    return int.from_bytes((total % (1 << 64)).to_bytes(8, "big"), "big", signed=True)
