"""Committed offsets, and those that wait for their producer's transaction.

This is a fold over the log: `put`, `put_pending`, `remove` and `end_transaction` take up its records in their order.
An offset that waits has its place in that order (`order`), and so has one that is committed meanwhile. So if a
transaction commits late, its offsets don't replace a commit that was written after them.

One transaction may have a hundred thousand offsets, and its marker is taken up in one turn of the loop. So the offsets
of a topic are taken up as a whole, unless something else came to one of them meanwhile (`_contested`).
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

_new = tuple.__new__  # takes half the time of a class's own constructor


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None
    topic_id: bytes
    order: int = -1  # the last: `facts` leaves it out


OffsetsByTopic = Mapping[str, Mapping[int, CommittedOffset]]  # then by partition
Producers = tuple[int, ...]
NOTHING: Mapping[str, Mapping[int, Producers]] = MappingProxyType({})
NOBODY: Mapping[int, Producers] = MappingProxyType({})


class Offsets:
    def __init__(self) -> None:
        self._committed: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        # By producer, group, topic and partition.
        self._pending: dict[int, dict[str, dict[str, dict[int, CommittedOffset]]]] = {}
        self._open: dict[str, dict[str, dict[int, Producers]]] = {}  # by group, topic and partition
        # By group, topic and partition: the id that the topic had when an offset was committed whose record has no room
        # for it. It is known as long as this coordinator lives.
        self.left_out_ids: dict[tuple[str, str, int], bytes] = {}
        # The group's topics of which a partition has pending offsets of two producers, or had, or was committed
        # meanwhile. As long as there are pending ones.
        self._contested: dict[tuple[str, str], None] = {}
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
        return partition in self._open.get(group_id, NOTHING).get(topic, NOBODY)

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._open

    def pending_count(self, group_id: str) -> int:
        return sum(map(len, self._open.get(group_id, NOTHING).values()))

    def group_ids(self) -> list[str]:
        """The groups that have offsets, committed or pending."""
        return [*self._committed, *(group_id for group_id in self._open if group_id not in self._committed)]

    def with_topic(self, topic: str, group_ids: Iterable[str]) -> list[str]:
        """Of these groups, those that have offsets of the topic."""
        return [
            group_id
            for group_id in group_ids
            if topic in self._committed.get(group_id, ()) or topic in self._open.get(group_id, ())
        ]

    def topics_of(self, group_id: str) -> list[str]:
        return list(dict.fromkeys((*self._committed.get(group_id, ()), *self._open.get(group_id, ()))))

    def partitions(self, group_id: str, topic: str) -> list[int]:
        """The partitions that have an offset, committed or pending."""
        committed = self._committed.get(group_id, {}).get(topic, {})
        pending = self._open.get(group_id, NOTHING).get(topic, NOBODY)
        if not pending:
            return list(committed)  # it takes a tenth of the time, and there may be a hundred thousand
        return [*committed, *(partition for partition in pending if partition not in committed)]

    def all_of(self, group_id: str, topic: str, partition: int) -> list[CommittedOffset]:
        """The committed offset and those that wait for their transactions."""
        committed = self.get(group_id, topic, partition)
        producers = self._open.get(group_id, NOTHING).get(topic, NOBODY).get(partition, ())
        pending = [self._pending[producer][group_id][topic][partition] for producer in producers]
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
                group_id: {
                    (topic, partition): offset[:-1]
                    for topic, partitions in topics.items()
                    for partition, offset in partitions.items()
                }
                for group_id, topics in groups.items()
            }
            for producer_id, groups in self._pending.items()
        }
        producers = {
            group_id: {
                (topic, partition): set(each)
                for topic, partitions in topics.items()
                for partition, each in partitions.items()
            }
            for group_id, topics in self._open.items()
        }
        return committed, pending, producers

    # Writing: `apply` only --------------------------------------------------------------------------------------------

    def put(self, group_id: str, offsets: OffsetsByTopic) -> None:
        topics = self._committed.get(group_id)
        if topics is None:
            topics = self._committed[group_id] = {}
        waiting = self._open.get(group_id)
        for topic, partitions in offsets.items():
            if waiting is not None and (pending := waiting.get(topic)) and not pending.keys().isdisjoint(partitions):
                self._contested[group_id, topic] = None
                self._order += 1
                partitions = {
                    partition: _placed(committed, self._order) if partition in pending else committed
                    for partition, committed in partitions.items()
                }
            topics.setdefault(topic, {}).update(partitions)

    def put_pending(self, group_id: str, offsets: OffsetsByTopic, *, producer_id: int) -> None:
        mine = self._pending.setdefault(producer_id, {}).setdefault(group_id, {})
        waiting = self._open.setdefault(group_id, {})
        alone = (producer_id,)
        self._order += 1
        for topic, partitions in offsets.items():
            pending, producers = mine.setdefault(topic, {}), waiting.setdefault(topic, {})
            for partition, committed in partitions.items():
                pending[partition] = _placed(committed, self._order)
                others = producers.get(partition)
                if others is None:
                    producers[partition] = alone
                elif producer_id not in others:
                    producers[partition] = (*others, producer_id)
                    self._contested[group_id, topic] = None

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """Remove the committed offset, and those that wait for a transaction."""
        self.left_out_ids.pop((group_id, topic, partition), None)
        topics = self._committed.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is not None and not partitions:
            del topics[topic]
            if not topics:
                del self._committed[group_id]
        producers = self._open.get(group_id, NOTHING).get(topic, NOBODY).get(partition)
        if producers is not None:
            for producer_id in producers:
                del self._pending[producer_id][group_id][topic][partition]
            self._close(group_id, topic, (partition,))

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        for group_id, topics in self._pending.pop(producer_id, {}).items():
            for topic, pending in topics.items():
                if (group_id, topic) in self._contested:
                    pending = self._last_written(group_id, topic, pending, producer_id)
                elif pending:
                    self._close(group_id, topic, pending)
                if committed and pending:
                    self._committed.setdefault(group_id, {}).setdefault(topic, {}).update(pending)

    def _last_written(
        self, group_id: str, topic: str, pending: Mapping[int, CommittedOffset], producer_id: int
    ) -> dict[int, CommittedOffset]:
        """Those of the producer's offsets after which no other was committed. They wait no longer."""
        producers = self._open[group_id][topic]
        for partition in pending:
            producers[partition] = tuple(each for each in producers[partition] if each != producer_id)
        self._close(group_id, topic, [partition for partition in pending if not producers[partition]])
        known = self._committed.get(group_id, {}).get(topic, {})
        return {
            partition: each
            for partition, each in pending.items()
            if partition not in known or each.order > known[partition].order
        }

    def _close(self, group_id: str, topic: str, partitions: Collection[int]) -> None:
        """Nothing is pending any more of these partitions of the topic, of which something was."""
        topics = self._open[group_id]
        producers = topics[topic]
        if len(partitions) < len(producers):
            for partition in partitions:
                del producers[partition]
            return
        del topics[topic]
        self._contested.pop((group_id, topic), None)
        if not topics:
            del self._open[group_id]


def _placed(committed: CommittedOffset, order: int) -> CommittedOffset:
    return _new(CommittedOffset, (*committed[:-1], order))
