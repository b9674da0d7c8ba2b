"""Offsets as Spark keeps them, and the arithmetic of a batch: how far it goes and how it is cut into tasks.

An offset is, as in Spark's own Kafka source, `{"topic": {"partition": next offset}}`, sorted, so that equal positions
are equal text. Keys that begin with `@` can't be topics and are ours:

- `@initial`: the start of a query that has read nothing. It names no offsets on purpose, because Spark doesn't log it.
- `@init`: in the end of a batch, where partitions begin that its start doesn't name: all of them in the first batch,
  later those that are new, or hold no longer what was to be read. Spark logs the end before the batch runs, so a replay
  begins where the first try did.
- `@ids`: in the end of a batch, the id of each topic: a topic that is made again under its name has another one.
  Checkpoints of earlier versions lack it.
- `@offsetsBehindLatest`: in what is reported as latest, the records that are not yet taken into a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import InputPartition

from spark_sink.options import TopicPartition

Offsets = dict[TopicPartition, int]
Ids = dict[str, str]
INITIAL: dict[str, Any] = {"@initial": True}


@dataclass(frozen=True)
class Range(InputPartition):
    """What one task reads: a partition from an offset to before another."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""  # empty: whatever has the name

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def from_json(nested: Mapping[str, Any]) -> Offsets:
    return {
        (topic, int(partition)): offset
        for topic, by_partition in nested.items()
        if not topic.startswith("@")
        for partition, offset in by_partition.items()
    }


def is_initial(offset: Mapping[str, Any]) -> bool:
    return "@initial" in offset


def end_of_batch(end: Offsets, begins: Offsets, ids: Ids) -> dict[str, Any]:
    """The end of a batch as Spark logs it, with the beginnings that its start doesn't name."""
    named = {topic: ids[topic] for topic in sorted({topic for topic, _ in end}) if topic in ids}
    return {
        **({"@ids": named} if named else {}),
        **({"@init": to_json(begins)} if begins else {}),
        **to_json(end),
    }


def ids_of(offset: Mapping[str, Any]) -> Ids:
    return dict(offset.get("@ids", {}))


def remade(parts: Iterable[TopicPartition], before: Ids, now: Ids) -> set[TopicPartition]:
    """Those whose topic is another one than before, as far as both ids are known."""
    return {part for part in parts if before.get(part[0], now.get(part[0])) != now.get(part[0], before.get(part[0]))}


def begins_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Offsets:
    """Where the partitions of a batch begin, as far as its start and its end tell."""
    ends, before = from_json(end), from_json(start)
    others = remade(before, ids_of(start), ids_of(end))
    held = {part: offset for part, offset in before.items() if part not in others and offset <= ends.get(part, offset)}
    return from_json(end.get("@init", {})) | held


def limited(start: Offsets, end: Offsets, most: int) -> Offsets:
    """`end`, cut so that about `most` offsets lie between: each partition gets its share, and at least one."""
    sizes = {part: offset - start[part] for part, offset in end.items() if offset > start.get(part, offset)}
    total = sum(sizes.values())
    if total <= most:
        return end
    return {
        part: offset if part not in sizes else start[part] + min(sizes[part], max(1, sizes[part] * most // total))
        for part, offset in end.items()
    }


def tasks(ranges: Iterable[Range], *, at_least: int | None, most_records: int | None) -> list[Range]:
    """The ranges that hold anything, cut so that no task has more than `most_records`, and there are `at_least` so many
    tasks or a few less: a large range is cut into more than a small one."""
    found = [range_ for range_ in ranges if range_.size > 0]
    if most_records:
        found = [part for range_ in found for part in _cut(range_, math.ceil(range_.size / most_records))]
    if at_least and len(found) < at_least:
        total = sum(range_.size for range_ in found)
        small = [range_ for range_ in found if range_.size * at_least < 1.5 * total]
        rest = total - sum(range_.size for range_ in small)
        pieces = max(at_least - len(small), 1)
        found = [
            part
            for range_ in found
            for part in _cut(range_, 1 if range_ in small else max(1, round(range_.size / rest * pieces)))
        ]
    return found


def _cut(range_: Range, pieces: int) -> list[Range]:
    pieces = min(pieces, range_.size)
    edges = [range_.start + range_.size * piece // pieces for piece in range(pieces + 1)]
    return [replace(range_, start=start, end=end) for start, end in pairwise(edges)]
