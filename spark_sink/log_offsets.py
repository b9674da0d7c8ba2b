"""What brokers know about offsets: where partitions begin and end, where a time begins, and where a group stands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.offset_commit.v9 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v9.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from spark_sink.client import GROUP, Client
from spark_sink.errors import OptionError, check
from spark_sink.offsets import Offsets
from spark_sink.options import AtOffsets, Bound, Edge, SourceOptions, Subscription, TopicPartition, check_names_all

CONSUMER = BrokerId(-1)


def assigned(client: Client, subscription: Subscription) -> set[TopicPartition]:
    """The partitions of a subscription that exist now."""
    found = client.topics(subscription.topics or None)
    if subscription.pattern:
        matches = re.compile(subscription.pattern).fullmatch
        found = {name: topic for name, topic in found.items() if matches(name)}
    existing = {(topic.name, partition) for topic in found.values() for partition in topic.leaders}
    return existing & subscription.partitions if subscription.partitions else existing


def check_exist(subscription: Subscription, existing: Iterable[TopicPartition]) -> None:
    """What a subscription names must be there when a query begins."""
    existing = set(existing)
    missing = sorted(subscription.topics - {topic for topic, _ in existing})
    if missing:
        raise OptionError(subscription.option, f"there is no topic {', '.join(map(repr, missing))}")
    if subscription.partitions - existing:
        parts = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(subscription.partitions - existing))
        raise OptionError(subscription.option, f"there is no partition {parts}")


def offsets_at(client: Client, timestamps: Mapping[TopicPartition, int], *, committed: bool) -> Offsets:
    """The first offset of each partition with at least this timestamp, -1 if there is none; for -2 where the partition
    begins, for -1 where it ends: what can be read, of committed records or of all."""
    by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = defaultdict(lambda: defaultdict(list))
    for (topic, partition), timestamp in sorted(timestamps.items()):
        wanted = ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(timestamp))
        by_leader[client.leader(topic, partition)][topic].append(wanted)
    under_way = []
    for leader, topics in by_leader.items():
        asked = tuple(ListOffsetsTopic(name=TopicName(name), partitions=tuple(parts)) for name, parts in topics.items())
        request = ListOffsetsRequest(replica_id=CONSUMER, isolation_level=i8(committed), topics=asked)
        under_way.append(client.send(leader, request, ListOffsetsResponse))
    found: Offsets = {}
    for pending in under_way:
        for answered in pending.result().topics:
            for part in answered.partitions:
                check(part.error_code, f"asking for an offset of {answered.name}-{part.partition_index}")
                found[answered.name, part.partition_index] = part.offset
    return found


def edges(client: Client, partitions: Iterable[TopicPartition], edge: Edge, *, committed: bool) -> Offsets:
    return offsets_at(client, dict.fromkeys(partitions, edge.value), committed=committed)


def starts(client: Client, partitions: set[TopicPartition], options: SourceOptions) -> Offsets:
    """Where the options say that reading begins."""
    found = _bounds(client, partitions, options.starting, committed=options.committed)
    without = sorted(part for part, offset in found.items() if offset < 0)
    if without and not options.latest_where_no_timestamp:
        assert not isinstance(options.starting, Edge)
        topic, partition = without[0]
        raise OptionError(
            options.starting.option,
            f"{topic}-{partition} has no record from that time on; "
            "startingOffsetsByTimestampStrategy=latest would begin at its end",
        )
    return found | edges(client, without, Edge.LATEST, committed=options.committed)


def ends(client: Client, partitions: set[TopicPartition], options: SourceOptions) -> Offsets:
    """Where the options say that reading ends."""
    found = _bounds(client, partitions, options.ending, committed=options.committed)
    open_ended = [part for part, offset in found.items() if offset < 0]
    return found | edges(client, open_ended, Edge.LATEST, committed=options.committed)


def _bounds(client: Client, partitions: set[TopicPartition], bound: Bound, *, committed: bool) -> Offsets:
    """-1 where no record has the timestamp."""
    if isinstance(bound, Edge):
        return edges(client, partitions, bound, committed=committed)
    if isinstance(bound, AtOffsets):
        check_names_all(bound, bound.offsets, partitions)
        relative = {part: offset for part, offset in bound.offsets.items() if offset < 0}
        return dict(bound.offsets) | offsets_at(client, relative, committed=committed)
    if bound.timestamps_ms is None:
        return offsets_at(client, dict.fromkeys(partitions, bound.timestamp_ms), committed=committed)
    check_names_all(bound, bound.timestamps_ms, partitions)
    return offsets_at(client, bound.timestamps_ms, committed=committed)


def publish(client: Client, group: str, offsets: Offsets) -> None:
    """Commit offsets for a group without being a member of it: what tools that show lag look at. Topics that are gone
    are passed over: a stream that goes on without one keeps its position.
    """
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), offset in sorted(offsets.items()):
        committed = OffsetCommitRequestPartition(
            partition_index=i32(partition), committed_offset=i64(offset), committed_metadata=None
        )
        topics[topic].append(committed)
    request = OffsetCommitRequest(
        group_id=GroupId(group),
        member_id="",
        topics=tuple(
            OffsetCommitRequestTopic(name=TopicName(name), partitions=tuple(parts)) for name, parts in topics.items()
        ),
    )
    answer = client.ask(client.coordinator(GROUP, group), request, OffsetCommitResponse)
    for answered in answer.topics:
        for part in answered.partitions:
            if part.error_code != ErrorCode.unknown_topic_or_partition:
                check(part.error_code, f"publishing {answered.name}-{part.partition_index} to group {group!r}")
