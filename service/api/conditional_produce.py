"""ConditionalProduce, version 0, an API of our own (key 20002): Produce with acks=all, in which a batch may ask to be
appended only if the log ends where it expects. A broker sends it to another one for a request that came by HTTP.

Unlike Produce, it tells whether a refused batch may have been appended all the same.
"""

from collections.abc import Awaitable

from service.api.produce import keep
from service.broker.acceptance import RefusedBatch, one_batch
from service.broker.partition import ACKS_ALL, Appended
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.broker.writing import MAY_BE_WRITTEN, Write, WriteTerms, Writing, WritingParts
from service.net.door import Held
from service.turns import NAMED_A_TURN, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import ConditionalProduceRequest, ConditionalProduceResponse, ConditionalResult

UNKNOWN_NAME = RefusedBatch(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def handle(
    held: PartitionTable,
    parts: WritingParts,
    session: Session,
    header: RequestHeader,
    request: ConditionalProduceRequest,
) -> Held[ConditionalProduceResponse]:
    keep(request.batches)
    return Held(_append(held, parts, session, request))


def refused(request: ConditionalProduceRequest) -> ConditionalProduceResponse:
    """The answer to a session that may not use this API."""
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ConditionalProduceResponse(results=[ConditionalResult(denied) for _ in request.batches])


async def _append(
    held: PartitionTable, parts: WritingParts, session: Session, request: ConditionalProduceRequest
) -> ConditionalProduceResponse | Awaitable[ConditionalProduceResponse]:
    writes = []
    async for each in in_turns(request.batches, NAMED_A_TURN):
        partitions = held.topic(each.topic) or UNKNOWN_NAME
        write = Write(partitions, each.partition_index, one_batch(memoryview(each.records or b"")))
        if each.expected_offset >= 0:
            write.expected_offset = each.expected_offset
        writes.append(write)
    terms = WriteTerms(
        ACKS_ALL,
        request.timeout_ms,
        request.transactional_id,
        adds_partitions=True,
        knows_abortable=True,
        knows_zstd=True,
        may_write_internal=False,
    )
    writing = Writing(parts, terms, writes)
    wrong = writing.wrong()
    if wrong is not None:
        writing.refuse(wrong)
        return await _answer(writing)
    is_ready = not writing.takes_turns and not writing.looks_far and writing.begin()
    await writing.append_when_ready(is_ready=is_ready)
    return await _answer(writing) if writing.is_settled else _when_settled(session, writing)


async def _when_settled(session: Session, writing: Writing) -> ConditionalProduceResponse:
    throttle_time_ms = await writing.settle(session)
    answer = await _answer(writing)
    answer.throttle_time_ms = throttle_time_ms
    return answer


async def _answer(writing: Writing) -> ConditionalProduceResponse:
    return ConditionalProduceResponse(
        results=[_result(write) async for write in in_turns(writing.writes, NAMED_A_TURN)]
    )


def _result(write: Write) -> ConditionalResult:
    outcome = write.outcome
    if isinstance(outcome, Appended):
        return ConditionalResult(base_offset=outcome.base_offset, log_append_time_ms=outcome.log_append_time_ms)
    may_be_written = write.was_appended or outcome.error in MAY_BE_WRITTEN
    refused = outcome.error, outcome.message, list(outcome.culprits)
    return ConditionalResult(*refused, may_be_written, end_offset=outcome.end_offset)
