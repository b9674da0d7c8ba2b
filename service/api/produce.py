# Hot path: one call a Produce request; `python -m tests.bench --only throughput` answers for it.
"""Produce, versions 3 to 13 (10: who leads instead, 13: topic ids).

Batches are appended before the first await, because their bytes are views of the connection's buffer. There are two
exceptions: batches that a transaction coordinator must confirm, and batches that take longer than a turn of the loop.
These are copied (unless the request is so long that its bytes are its own anyway), and no later request of the
connection begins before they are appended.

A request with `acks=0` is never answered. An error closes its connection, which is the only way to tell it. A request
with `acks=all` is answered when every in-sync replica holds the batches. After the caller's timeout it is answered with
REQUEST_TIMED_OUT, and the batches may still be committed later.
"""

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from log.steps import done_at_once
from service.api.directions import Directions
from service.api.rules import brokers
from service.broker.acceptance import RefusedBatch, one_batch
from service.broker.partition import Appended
from service.broker.partition_table import PartitionTable, TopicPartitions
from service.broker.session import Session
from service.broker.writing import Write, WriteTerms, Writing, WritingParts
from service.cluster.metadata import ClusterMetadata
from service.net.door import CLOSE, NO_REPLY, OWN_BYTES, Held, Signal
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    BatchIndexAndErrorMessage,
    ConditionalBatch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    TopicProduceData,
    TopicProduceResponse,
)

ZSTD_SINCE, DIRECTIONS_SINCE, ABORTABLE_SINCE, ADDED_BY_LEADER_SINCE, TOPIC_IDS_SINCE = 7, 10, 11, 12, 13
ADMIN_CLIENT = "__admin_client"
"""Kafka's client id for tools that may write to the coordinators' own topics. Any client can use that name. Without
proof of identity, it only keeps clients from writing there by mistake. For a principal that was proven, the name means
nothing.
"""
SAY_NOTHING_OF_THE_LOG = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Errors whose answers in Kafka do not have the start of the log."""
UNKNOWN_ID = RefusedBatch(ErrorCode.UNKNOWN_TOPIC_ID)
UNKNOWN_NAME = RefusedBatch(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(frozen=True, slots=True)
class ProduceParts:
    """The parts of the broker that an answer needs."""

    partitions: PartitionTable
    metadata: ClusterMetadata
    writing: WritingParts


@dataclass(slots=True)
class ProduceCall:
    """A request with its caller, and the parts that its answer needs."""

    parts: ProduceParts
    session: Session
    version: int
    request: ProduceRequest


def handle(
    parts: ProduceParts, session: Session, header: RequestHeader, request: ProduceRequest
) -> ProduceResponse | Signal | Awaitable[ProduceResponse] | Held[ProduceResponse | Signal]:
    asked = ProduceCall(parts, session, header.api_version, request)
    topics = request.topic_data
    if len(topics) > NAMED_A_TURN or sum([len(topic.partition_data) for topic in topics]) > NAMED_A_TURN:
        keep([data for topic in topics for data in topic.partition_data])
        return Held(_named_in_turns(asked, header))
    writing = Writing(parts.writing, _terms(session, header, request), list(_writes(asked)))
    if (wrong := writing.wrong()) is not None:
        writing.refuse(wrong)
        return _answer(asked, writing)
    is_ready = writing.begin()
    if is_ready and not writing.takes_turns:
        writing.append()
        return _appended(asked, writing)
    if writing.size_bytes <= OWN_BYTES:
        writing.keep()
    return Held(_append_later(asked, writing, is_ready=is_ready))


async def _named_in_turns(
    asked: ProduceCall, header: RequestHeader
) -> ProduceResponse | Signal | Awaitable[ProduceResponse | Signal]:
    """The same for very many batches."""
    writes = [write async for write in in_turns(_writes(asked), NAMED_A_TURN)]
    writing = Writing(asked.parts.writing, _terms(asked.session, header, asked.request), writes)
    if (wrong := writing.wrong()) is not None:
        writing.refuse(wrong)
        return _answer(asked, writing)
    return await _append_later(asked, writing, is_ready=False)


def keep(batches: Sequence[PartitionProduceData] | Sequence[ConditionalBatch]) -> None:
    """Copy the batches, because the request's bytes are reused after the call, unless they are very many bytes."""
    if sum([len(data.records or b"") for data in batches]) <= OWN_BYTES:
        for data in batches:
            data.records = memoryview(bytearray(data.records or b""))


def _writes(asked: ProduceCall) -> Iterator[Write]:
    for topic in asked.request.topic_data:
        if topic.partition_data:
            partitions = _partitions(asked, topic)
            for data in topic.partition_data:
                records, data.records = data.records, None  # the request lives until it is answered
                yield Write(partitions, data.index, one_batch(memoryview(records or b"")))


def _terms(session: Session, header: RequestHeader, request: ProduceRequest) -> WriteTerms:
    may_write_internal = header.client_id == ADMIN_CLIENT and brokers(session, request)
    return _same_terms(
        header.api_version, request.acks, request.timeout_ms, request.transactional_id, may_write_internal
    )


@lru_cache(maxsize=1_000)
def _same_terms(
    version: int, acks: int, timeout_ms: int, transactional_id: str | None, may_write_internal: bool
) -> WriteTerms:
    """The terms of a request. A producer asks with the same ones again and again."""
    return WriteTerms(
        acks,
        timeout_ms,
        transactional_id,
        adds_partitions=version >= ADDED_BY_LEADER_SINCE,
        knows_abortable=version >= ABORTABLE_SINCE,
        knows_zstd=version >= ZSTD_SINCE,
        may_write_internal=may_write_internal,
    )


def _partitions(asked: ProduceCall, topic: TopicProduceData) -> TopicPartitions | RefusedBatch:
    if asked.version >= TOPIC_IDS_SINCE:
        return asked.parts.partitions.topic_by_id(topic.topic_id) or UNKNOWN_ID
    return asked.parts.partitions.topic(topic.name) or UNKNOWN_NAME


async def _append_later(
    asked: ProduceCall, writing: Writing, *, is_ready: bool
) -> ProduceResponse | Signal | Awaitable[ProduceResponse | Signal]:
    await writing.append_when_ready(is_ready=is_ready)
    return _appended(asked, writing)


def _appended(asked: ProduceCall, writing: Writing) -> ProduceResponse | Signal | Awaitable[ProduceResponse]:
    if writing.is_settled or asked.request.acks == 0:
        return _answer(asked, writing)
    return _when_settled(asked, writing)


async def _when_settled(asked: ProduceCall, writing: Writing) -> ProduceResponse:
    throttle_time_ms = await writing.settle(asked.session)
    response = _response(asked, writing)
    if isinstance(response, Awaitable):
        response = await response
    response.throttle_time_ms = throttle_time_ms
    return response


def _answer(asked: ProduceCall, writing: Writing) -> ProduceResponse | Signal | Awaitable[ProduceResponse]:
    if asked.request.acks == 0:
        return CLOSE if any(isinstance(write.outcome, RefusedBatch) for write in writing.writes) else NO_REPLY
    return _response(asked, writing)


def _response(asked: ProduceCall, writing: Writing) -> ProduceResponse | Awaitable[ProduceResponse]:
    writes = writing.writes
    topics = asked.request.topic_data
    if len(writes) > NAMED_A_TURN or len(topics) > NAMED_A_TURN:
        return _response_in_turns(asked, writing)
    answers = [_partition_response(write) for write in writes]
    if len(topics) == 1 and answers:  # nearly always
        response = ProduceResponse([TopicProduceResponse(topics[0].name, topics[0].topic_id, answers)])
    else:
        response = ProduceResponse(list(_topics(asked, answers)))
    if not writing.all_appended():
        done_at_once(_direct(asked, response))
    return response


async def _response_in_turns(asked: ProduceCall, writing: Writing) -> ProduceResponse:
    answers = [_partition_response(write) async for write in in_turns(writing.writes, NAMED_A_TURN)]
    topics = [topic async for topic in in_turns(_topics(asked, answers), NAMED_A_TURN)]
    response = ProduceResponse(topics)
    if not writing.all_appended():
        await done_in_turns(_direct(asked, response))
    return response


def _topics(asked: ProduceCall, answers: list[PartitionProduceResponse]) -> Iterator[TopicProduceResponse]:
    """The answers, which are in the order of the batches, by topic."""
    told = 0
    for topic in asked.request.topic_data:
        if count := len(topic.partition_data):
            yield TopicProduceResponse(topic.name, topic.topic_id, answers[told : told + count])
            told += count


def _direct(asked: ProduceCall, response: ProduceResponse) -> Steps[None]:
    """Name the leaders of the partitions that this broker does not lead."""
    directions, turn = Directions(asked.parts.metadata, asked.session), Turn(NAMED_A_TURN)
    for topic in response.responses:
        name = topic.topic_id if asked.version >= TOPIC_IDS_SINCE else topic.name
        for answer in topic.partition_responses:
            if turn.is_over():
                yield
            answer.error_code = directions.error(name, answer.index, ErrorCode(answer.error_code))
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and asked.version >= DIRECTIONS_SINCE:
                leader = directions.leader(name, answer.index)
                if leader is not None:
                    answer.current_leader = ProduceResponseLeaderIdAndEpoch(*leader)
    response.node_endpoints = [
        ProduceResponseNodeEndpoint(node_id, endpoint.host, endpoint.port, rack)
        for node_id, (endpoint, rack) in directions.nodes.items()
    ]


def _partition_response(write: Write) -> PartitionProduceResponse:
    outcome = write.outcome
    if isinstance(outcome, Appended):
        return PartitionProduceResponse(
            write.index, 0, outcome.base_offset, outcome.log_append_time_ms, write.log_start_offset
        )
    answer = PartitionProduceResponse(write.index, outcome.error, -1)
    if outcome.error not in SAY_NOTHING_OF_THE_LOG:
        answer.log_start_offset = write.log_start_offset
    if outcome.culprits:
        answer.record_errors = [BatchIndexAndErrorMessage(index, outcome.message) for index in outcome.culprits]
        answer.error_message = "One or more records have been rejected"
    elif outcome.error is ErrorCode.POLICY_VIOLATION or (
        outcome is write.batch and outcome.error is ErrorCode.CORRUPT_MESSAGE
    ):
        answer.error_message = outcome.message
    return answer
