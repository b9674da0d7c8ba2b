"""WriteTxnMarkers, versions 1 and 2 (2: the transaction version): a coordinator, or an operator's tool, ends
transactions in partitions that this broker leads.

A coordinator epoch that no coordinator has reached is refused with UNKNOWN_LEADER_EPOCH, to be tried again: this broker
may not have heard of it yet. Kafka takes any.
"""

import asyncio

from log.ids import NO_EPOCH, TopicPartition
from service.broker.node import Broker
from service.broker.partition import Appended, Partition
from service.broker.session import Session
from service.broker.writing import committed_or_error
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

PATIENCE_S = 30.0
"""Kafka's request.timeout.ms."""


async def handle(
    broker: Broker, session: Session, header: RequestHeader, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """All are written before any is waited for."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    written = [(marker, _write(broker, marker)) for marker in request.markers]
    return WriteTxnMarkersResponse(
        [
            WritableTxnMarkerResult(
                marker.producer_id,
                [
                    WritableTxnMarkerTopicResult(
                        name,
                        [WritableTxnMarkerPartitionResult(index, await _outcome(one, deadline)) for index, one in each],
                    )
                    for name, each in topics
                ],
            )
            for marker, topics in written
        ]
    )


def refused(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """To a session that may not ask."""
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


def _write(broker: Broker, marker: WritableTxnMarker) -> list[tuple[str, list[tuple[int, Written]]]]:
    return [
        (
            topic.name,
            [
                (index, _write_one(broker, marker, TopicPartition(topic.name, index)))
                for index in topic.partition_indexes
            ],
        )
        for topic in marker.topics
    ]


def _write_one(broker: Broker, marker: WritableTxnMarker, topic_partition: TopicPartition) -> Written:
    partition = broker.partitions.get(topic_partition)
    obeyed = partition.producers.coordinator_epoch(marker.producer_id) if partition is not None else NO_EPOCH
    if marker.coordinator_epoch > max(obeyed, broker.internal_topics.latest_coordinator_epoch):
        # The partition would obey no coordinator any more.
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    written = broker.marker_writer.write(
        topic_partition,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        commit=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    return written if isinstance(written, ErrorCode) else (written[0], written[0].leader_epoch, written[1])


async def _outcome(written: Written, deadline: float) -> ErrorCode:
    if isinstance(written, ErrorCode):
        return written
    partition, leader_epoch, appended = written
    return await committed_or_error(partition, leader_epoch, appended.end_offset, deadline)
