"""DescribeProducers, version 0: the producers of a partition, and the transactions that they have open there. Every
replica answers by its own log, as in Kafka: `kafka-transactions find-hanging --broker-id` asks a broker about all that
it holds.
"""

from collections.abc import Awaitable

from log.ids import TopicPartition
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.turns import NAMED_A_TURN, Steps, Turn, now_or_in_turns
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
) -> DescribeProducersResponse | Awaitable[DescribeProducersResponse]:
    return now_or_in_turns(_described(partitions, request))


def _described(partitions: PartitionTable, request: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
    turn = Turn(NAMED_A_TURN)
    # Each once: otherwise a short request could ask for an answer of any length.
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        if turn.is_over():
            yield
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in wanted.items():
        if turn.is_over():
            yield
        described = []
        for index in indexes:
            if turn.is_over():
                yield
            described.append((yield from _describe(partitions, name, index, turn)))
        topics.append(TopicResponse(name, described))
    return DescribeProducersResponse(topics=topics)


def _describe(partitions: PartitionTable, topic: str, index: int, turn: Turn) -> Steps[PartitionResponse]:
    partition = partitions.get(TopicPartition(topic, index))
    if partition is None:
        return PartitionResponse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HERE)
    if partition.offline:
        return PartitionResponse(index, ErrorCode.KAFKA_STORAGE_ERROR)
    answer = PartitionResponse(index)
    for producer in partition.producers.describe():
        if turn.is_over():
            yield
        answer.active_producers.append(ProducerState(*producer))
    return answer
