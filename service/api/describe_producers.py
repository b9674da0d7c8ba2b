"""DescribeProducers, version 0: the producers of a partition, and the transactions that they have open there."""

from log.ids import TopicPartition
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NOT_HERE = "This server does not host this topic-partition."


def handle(
    partitions: PartitionTable, session: Session, header: RequestHeader, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    # Each once: otherwise a short request could ask for an answer of any length.
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=[
            TopicResponse(name, [_describe(partitions, name, index) for index in indexes])
            for name, indexes in wanted.items()
        ]
    )


def _describe(partitions: PartitionTable, topic: str, index: int) -> PartitionResponse:
    partition = partitions.get(TopicPartition(topic, index))
    if partition is None:
        return PartitionResponse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HERE)
    if partition.replicas is None:
        return PartitionResponse(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return PartitionResponse(
        index, active_producers=[ProducerState(*producer) for producer in partition.producers.describe()]
    )
