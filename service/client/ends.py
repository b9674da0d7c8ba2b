"""How far partitions can be read, and how much is left for a group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from isolation.markers import NEVER, Left, Markers
from log.ids import TopicPartition
from service.client.cluster import (
    EARLIEST,
    LATEST,
    MOVED,
    READ_COMMITTED,
    RETRY_PAUSE_S,
    Cluster,
    Deadline,
    by_topic,
)
from service.client.failures import refused
from service.turns import NAMED_A_TURN, Turn, breathe
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribedEnds, DescribeEndsRequest, EndsPartition, EndsTopic

NO_MARKERS: Final = NEVER
"""For a partition whose markers don't matter, instead of an offset."""


class Ends(NamedTuple):
    """How far a partition can be read, and its last markers."""

    start_offset: int
    last_stable_offset: int
    high_watermark: int
    markers: Markers

    def left_from(self, offset: int) -> Left:
        """What is left for a reader who has come to this offset."""
        return self.markers.left(
            offset, start=self.start_offset, stable=self.last_stable_offset, high=self.high_watermark
        )


async def ends_of(cluster: Cluster, since: Mapping[TopicPartition, int]) -> dict[TopicPartition, Ends]:
    """The ends of partitions, with the markers from the given offsets on. If a leader has moved, the new one is asked.
    Partitions whose disk has failed are left out.

    Apache Kafka does not tell markers from records; then none is known, and what is left is told as "at most".
    """
    deadline = Deadline(cluster.timeout_s)
    found: dict[TopicPartition, Ends] = {}
    missing = list(since)
    while missing:
        refusals: dict[TopicPartition, int] = {}
        for node, partitions in (await cluster.by_leader(missing)).items():
            there, refused_there = await ends_at(cluster, node, {each: since[each] for each in partitions})
            found |= there
            refusals |= refused_there
        for where, code in refusals.items():
            cluster.forget_leader(where)
            if (code not in MOVED and code != ErrorCode.OFFSET_NOT_AVAILABLE) or deadline.passed():
                raise refused(f"ends of {where.topic} partition {where.partition}", code)
        missing = list(refusals)
        if missing:
            await asyncio.sleep(RETRY_PAUSE_S)
    return found


async def ends_at(
    cluster: Cluster, node: int, since: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, Ends], dict[TopicPartition, int]]:
    """The ends that one broker tells, and its errors for partitions of which it tells none, such as that it does not
    lead them any more. Partitions whose disk has failed are left out.
    """
    found: dict[TopicPartition, Ends] = {}
    refusals: dict[TopicPartition, int] = {}
    if not await cluster.offers(DescribeEndsRequest(), node=node):
        return await _by_offsets(cluster, since), refusals
    topics = [
        EndsTopic(name, [EndsPartition(each.partition, since[each]) for each in of_topic])
        for name, of_topic in by_topic(since).items()
    ]
    turn = Turn(NAMED_A_TURN)
    for topic in (await cluster.ask(DescribeEndsRequest(topics), node=node)).topics:
        for told in topic.partitions:
            if turn.is_over():
                await breathe()
            partition = TopicPartition(topic.name, told.partition_index)
            if not told.error_code:
                found[partition] = _ends(told)
            elif told.error_code != ErrorCode.KAFKA_STORAGE_ERROR:
                refusals[partition] = told.error_code
    return found, refusals


def _ends(told: DescribedEnds) -> Ends:
    markers, _ = Markers.from_bytes(told.markers)
    return Ends(told.log_start_offset, told.last_stable_offset, told.high_watermark, markers)


async def _by_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ends]:
    latest = dict.fromkeys(partitions, LATEST)
    starts = await cluster.list_offsets(dict.fromkeys(latest, EARLIEST), all_of_them=False)
    # The stable offset before the high watermark, which might be the lower one otherwise.
    stable = await cluster.list_offsets(latest, isolation=READ_COMMITTED, all_of_them=False)
    highs = await cluster.list_offsets(latest, all_of_them=False)
    return {
        each: Ends(
            starts[each].offset, min(stable[each].offset, highs[each].offset), highs[each].offset, Markers(NEVER)
        )
        for each in latest
        if each in starts and each in stable and each in highs
    }
