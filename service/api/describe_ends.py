"""DescribeEnds, version 0, an API of our own (key 20004): how far partitions can be read, and which of their last
offsets belong to transaction markers. From this a client computes how many records are left for a group
(isolation/markers.py). Only leaders answer.
"""

from collections.abc import Awaitable, Mapping

from isolation.markers import NEVER
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.reading import leader_epoch_error
from service.broker.session import Session
from service.turns import NAMED_A_TURN, Steps, Turn, now_or_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribedEnds, DescribedEndsTopic, DescribeEndsRequest, DescribeEndsResponse

ANY_EPOCH = -1
MARKERS_BYTES = 1 << 20
"""So many bytes of markers are in an answer. Of further partitions none is told: what is left is known "at most"."""


def handle(
    partitions: PartitionTable, session: Session, header: RequestHeader, request: DescribeEndsRequest
) -> DescribeEndsResponse | Awaitable[DescribeEndsResponse]:
    return now_or_in_turns(_described(partitions, request))


def _described(partitions: PartitionTable, request: DescribeEndsRequest) -> Steps[DescribeEndsResponse]:
    turn = Turn(NAMED_A_TURN)
    # Each once: otherwise a short request could ask for an answer of any length.
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        of_topic = wanted.setdefault(topic.name, {})
        for each in topic.partitions:
            if turn.is_over():
                yield
            of_topic[each.partition_index] = each.since_offset
    topics, room_bytes = [], MARKERS_BYTES
    for name, since in wanted.items():
        held: Mapping[int, Partition] = partitions.topic(name) or {}
        described = []
        for index, offset in since.items():
            if turn.is_over():
                yield
            described.append(_ends(index, held.get(index), offset if room_bytes > 0 else NEVER))
            room_bytes -= len(described[-1].markers)
        topics.append(DescribedEndsTopic(name, described))
    return DescribeEndsResponse(topics=topics)


def _ends(index: int, partition: Partition | None, since_offset: int) -> DescribedEnds:
    if partition is None:
        return DescribedEnds(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if error := leader_epoch_error(partition, ANY_EPOCH):
        return DescribedEnds(index, error)
    if partition.is_catching_up:
        return DescribedEnds(index, ErrorCode.OFFSET_NOT_AVAILABLE)
    return DescribedEnds(
        index,
        log_start_offset=partition.log.start_offset,
        last_stable_offset=partition.last_stable_offset,
        high_watermark=partition.high_watermark,
        markers=partition.stable.markers.since(since_offset).to_bytes(),
    )
