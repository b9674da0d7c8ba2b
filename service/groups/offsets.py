"""Committed offsets, and those that wait for their producer's transaction.

This is a fold over the log: `put`, `put_pending`, `remove` and `end_transaction` take up its records in their order.
An offset that waits has its place in that order (`order`), and so has one that is committed meanwhile. So if a
transaction commits late, its offsets don't replace a commit that was written after them.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None
    topic_id: bytes
    order: int = -1  # the last: `facts` leaves it out


PartitionName = tuple[str, int]
OffsetsByTopic = Mapping[str, Mapping[int, CommittedOffset]]  # then by partition


class Offsets:
    def __init__(self) -> None:
        self._committed: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[int, dict[str, dict[PartitionName, CommittedOffset]]] = {}  # by producer, then group
        self._open: dict[
            str, dict[PartitionName, set[int]]
        ] = {}  # group -> partition -> producers with pending offsets
        self._order = 0

    # Reading ----------------------------------------------------------------------------------------------------------

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group_id, {}).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """The group's committed offsets by topic and partition. Not to be changed."""
        return self._committed.get(group_id, {})

    def has_any(self, group_id: str) -> bool:
        return group_id in self._committed

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._open.get(group_id, {})

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._open

    def pending_count(self, group_id: str) -> int:
        return len(self._open.get(group_id, ()))

    def topics(self) -> list[str]:
        """Every topic of which a group has offsets."""
        committed = (topic for topics in self._committed.values() for topic in topics)
        pending = (topic for names in self._open.values() for topic, _ in names)
        return list(dict.fromkeys((*committed, *pending)))

    def group_ids(self) -> list[str]:
        """The groups that have offsets, committed or pending."""
        return [*self._committed, *(group_id for group_id in self._open if group_id not in self._committed)]

    def with_topic(self, topic: str, group_ids: Iterable[str]) -> list[str]:
        """Of these groups, those that have offsets of the topic."""
        return [
            group_id
            for group_id in group_ids
            if topic in self._committed.get(group_id, ())
            or any(topic == named for named, _ in self._open.get(group_id, ()))
        ]

    def topics_of(self, group_id: str) -> list[str]:
        pending = (topic for topic, _ in self._open.get(group_id, ()))
        return list(dict.fromkeys((*self._committed.get(group_id, ()), *pending)))

    def partitions(self, group_id: str, topic: str) -> list[int]:
        """The partitions that have an offset, committed or pending."""
        committed = self._committed.get(group_id, {}).get(topic, {})
        if group_id not in self._open:
            return list(committed)  # it takes a tenth of the time, and there may be a hundred thousand
        pending = (partition for named, partition in self._open[group_id] if named == topic)
        return [*committed, *(partition for partition in pending if partition not in committed)]

    def all_of(self, group_id: str, topic: str, partition: int) -> list[CommittedOffset]:
        """The committed offset and those that wait for their transactions."""
        committed = self.get(group_id, topic, partition)
        name = (topic, partition)
        pending = [self._pending[producer][group_id][name] for producer in self._open.get(group_id, {}).get(name, ())]
        return pending if committed is None else [committed, *pending]

    def facts(self) -> object:
        """All offsets, in a form that can be compared. `order` is left out, because compaction changes it."""
        committed = {
            group_id: {
                (topic, partition): offset[:-1]
                for topic, partitions in topics.items()
                for partition, offset in partitions.items()
            }
            for group_id, topics in self._committed.items()
        }
        pending = {
            producer_id: {
                group_id: {name: offset[:-1] for name, offset in offsets.items()}
                for group_id, offsets in groups.items()
            }
            for producer_id, groups in self._pending.items()
        }
        return committed, pending, self._open

    # Writing: `apply` only --------------------------------------------------------------------------------------------

    def put(self, group_id: str, offsets: OffsetsByTopic) -> None:
        topics = self._committed.get(group_id)
        if topics is None:
            topics = self._committed[group_id] = {}
        has_pending = group_id in self._open
        for topic, partitions in offsets.items():
            if has_pending:
                partitions = {
                    partition: self._numbered(committed) if self.is_pending(group_id, topic, partition) else committed
                    for partition, committed in partitions.items()
                }
            topics.setdefault(topic, {}).update(partitions)

    def put_pending(self, group_id: str, offsets: OffsetsByTopic, *, producer_id: int) -> None:
        pending = self._pending.setdefault(producer_id, {}).setdefault(group_id, {})
        producers = self._open.setdefault(group_id, {})
        for topic, partitions in offsets.items():
            for partition, committed in partitions.items():
                name = (topic, partition)
                pending[name] = self._numbered(committed)
                producers.setdefault(name, set()).add(producer_id)

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """Remove the committed offset, and those that wait for a transaction."""
        topics = self._committed.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is not None and not partitions:
            del topics[topic]
            if not topics:
                del self._committed[group_id]
        name = (topic, partition)
        for producer_id in sorted(self._open.get(group_id, {}).get(name, ())):
            del self._pending[producer_id][group_id][name]
        self._close(group_id, name)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        for group_id, offsets in self._pending.pop(producer_id, {}).items():
            for (topic, partition), pending in offsets.items():
                producers = self._open[group_id][topic, partition]
                producers.discard(producer_id)
                if not producers:
                    self._close(group_id, (topic, partition))
                current = self.get(group_id, topic, partition)
                if committed and (current is None or pending.order > current.order):
                    self._committed.setdefault(group_id, {}).setdefault(topic, {})[partition] = pending

    def _numbered(self, committed: CommittedOffset) -> CommittedOffset:
        self._order += 1
        return CommittedOffset(*committed[:-1], self._order)

    def _close(self, group_id: str, name: PartitionName) -> None:
        partitions = self._open.get(group_id)
        if partitions is not None and partitions.pop(name, None) is not None and not partitions:
            del self._open[group_id]
