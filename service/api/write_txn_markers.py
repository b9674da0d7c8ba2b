"""WriteTxnMarkers, versions 1 and 2 (2: the transaction version). A coordinator, or an operator's tool, ends
transactions in partitions that this broker leads.

A coordinator epoch that no coordinator has reached is refused with UNKNOWN_LEADER_EPOCH, and may be tried again: this
broker may not have heard of it yet. Kafka accepts any epoch. Brokers of this cluster name the topic's id, too: a marker
for another topic of the name is refused with UNKNOWN_TOPIC_OR_PARTITION (R16).
"""

import asyncio
from dataclasses import dataclass

from log.control import ControlType
from log.ids import NO_EPOCH, TopicPartition
from service.broker.internal_topics import InternalTopics
from service.broker.marker_courier import MarkerWriter
from service.broker.partition import Appended, Partition
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.broker.writing import committed_or_error
from service.turns import NAMED_A_TURN, Steps, Turn, breathe, done_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ZERO_UUID,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

PATIENCE_S = 3.0
"""How long all markers of a request may take to be committed. Kafka waits for request.timeout.ms, which is 30 s. One
marker that takes long holds up the answer about all others. And a coordinator that gets no answer (PEERS_TIMEOUT_S)
can't know what became of them.
"""
A_MARKER = 50
"""How much longer it takes to write a marker than to look up a partition. The first batch of a log makes files, too."""


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersParts:
    """The parts of the broker that an answer needs."""

    partitions: PartitionTable
    marker_writer: MarkerWriter
    internal_topics: InternalTopics


async def handle(
    parts: WriteTxnMarkersParts, session: Session, header: RequestHeader, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write all markers, and wait for them only then."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    written: list[tuple[WritableTxnMarker, WritableTxnMarkerPartitionResult, Written]] = []
    results = await done_in_turns(_write(parts, request, written))
    written.reverse()
    turn = Turn(NAMED_A_TURN)
    while written:  # and each is freed at its turn
        if turn.is_over():
            await breathe()
        marker, result, one = written.pop()
        result.error_code = await _outcome(marker, one, deadline)
    return WriteTxnMarkersResponse(results)


def refused(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """The answer to a session that may not use this API."""
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    results = []
    for marker in request.markers:
        topics = [
            WritableTxnMarkerTopicResult(
                topic.name, [WritableTxnMarkerPartitionResult(index, denied) for index in topic.partition_indexes]
            )
            for topic in marker.topics
        ]
        results.append(WritableTxnMarkerResult(marker.producer_id, topics))
    return WriteTxnMarkersResponse(results)


Written = tuple[Partition, int, Appended] | ErrorCode


def _write(
    parts: WriteTxnMarkersParts,
    request: WriteTxnMarkersRequest,
    written: list[tuple[WritableTxnMarker, WritableTxnMarkerPartitionResult, Written]],
) -> Steps[list[WritableTxnMarkerResult]]:
    """The results, whose errors are not filled in yet. What became of each marker is added to `written`."""
    turn = Turn(NAMED_A_TURN)
    results = []
    for marker in request.markers:
        if turn.is_over():
            yield
        topics = []
        for topic in marker.topics:
            if turn.is_over():
                yield
            partitions = []
            for index in topic.partition_indexes:
                if turn.is_over(A_MARKER):
                    yield
                partitions.append(result := WritableTxnMarkerPartitionResult(index))
                written.append((marker, result, _write_one(parts, marker, topic, index)))
            topics.append(WritableTxnMarkerTopicResult(topic.name, partitions))
        results.append(WritableTxnMarkerResult(marker.producer_id, topics))
    return results


def _write_one(
    parts: WriteTxnMarkersParts, marker: WritableTxnMarker, topic: WritableTxnMarkerTopic, index: int
) -> Written:
    if marker.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if marker.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    topic_partition = TopicPartition(topic.name, index)
    partition = parts.partitions.get(topic_partition)
    if partition is not None and topic.topic_id not in (ZERO_UUID, partition.topic_id):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    obeyed = partition.producers.coordinator_epoch(marker.producer_id) if partition is not None else NO_EPOCH
    if obeyed < marker.coordinator_epoch > parts.internal_topics.latest_coordinator_epoch:
        # Otherwise the partition would refuse every coordinator from then on.
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    written = parts.marker_writer.write(
        topic_partition,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        commit=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    return written if isinstance(written, ErrorCode) else (written[0], written[0].leader_epoch, written[1])


async def _outcome(marker: WritableTxnMarker, written: Written, deadline: float) -> ErrorCode:
    if isinstance(written, ErrorCode):
        return written
    partition, leader_epoch, appended = written
    error = await committed_or_error(partition, leader_epoch, appended.end_offset, deadline)
    if error is ErrorCode.REQUEST_TIMED_OUT and partition.is_leading:
        kind = ControlType.COMMIT if marker.transaction_result else ControlType.ABORT
        key = kind, marker.producer_epoch, marker.coordinator_epoch
        partition.gave_up_marker(marker.producer_id, key, appended)
    return error
