# Hot path: one call a Produce request; `python -m tests.bench --only throughput` answers for it.
"""Produce, versions 3 to 13 (13: topic ids).

Every batch is appended before the first await, since the bytes are views of the connection's buffer; but for what must
be confirmed by a transaction coordinator, or looked into for longer than a turn of the loop may take: that is copied,
and nothing starts behind it on its connection before it is appended. `acks=0` is never
answered, and closes the connection on an
error, which is the only way to tell. `acks=all` is answered when every in-sync replica holds the batches, or with
REQUEST_TIMED_OUT after the caller's
timeout, when the batches may still become committed later.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping

from idempotence.producers import Guard
from log.batch import CODEC_BITS, HEADER_BYTES, TRANSACTIONAL, CorruptBatch, read_header
from log.config import LogConfig
from service.broker.acceptance import CODECS, Opened, Refused, one_batch
from service.broker.internal_topics import INTERNAL_TOPICS
from service.broker.node import Broker
from service.broker.partition import ACKS_ALL, Appended, Partition, PartitionLost
from service.broker.partition_table import TopicPartitions
from service.broker.session import Session
from service.broker.transaction_gate import Writer
from service.net.door import CLOSE, NO_REPLY, Held, Signal
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

ZSTD_SINCE, ABORTABLE_SINCE, ADDED_BY_LEADER_SINCE, TOPIC_IDS_SINCE = 7, 11, 12, 13
ADMIN_CLIENT = "__admin_client"
"""Kafka's client id for tools that may write to the coordinators' own topics. Anybody can call himself that: where
nobody is denied anything, the name keeps others from doing it unawares, and no more. Once requests have principals, it
is for theirs to decide.
"""
SAY_NOTHING_OF_THE_LOG = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""With these Kafka's answer does not name the start of the log."""
ATTRIBUTES_AT = 22
"""The byte of a batch's attributes that says whether it is transactional."""
PAIR = slice(43, 53)
"""Producer id and epoch of a batch."""
Uncommitted = tuple[Partition, int | None, PartitionProduceResponse]
"""Up to which offset the partition must be committed before the answer goes; None: it is only held back."""


def handle(
    broker: Broker, session: Session, header: RequestHeader, request: ProduceRequest
) -> ProduceResponse | Signal | Awaitable[ProduceResponse] | Held[ProduceResponse | Signal]:
    if (wrong := _wrong_transaction(request)) is not None:
        return _refuse_all(request, wrong)
    if any(_unconfirmed(broker, header, request)):
        return _when_admitted(broker, session, header, request)
    opened = _open_now(broker, header, request)
    if opened is None:
        return _when_admitted(broker, session, header, request)
    return _append_all(broker, session, header, request, {}, opened)


def _needs_guard(broker: Broker, header: RequestHeader) -> bool:
    """Whether transactional batches are confirmed by their coordinator: an operator may trust clients that add the
    partitions themselves.
    """
    return header.api_version >= ADDED_BY_LEADER_SINCE or broker.config.transaction_partition_verification_enable


def _wrong_transaction(request: ProduceRequest) -> ErrorCode | None:
    """Why nothing of the request may be written: transactional batches of nobody's, or of several producers."""
    transactional_id, pair = request.transactional_id, b""
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None or len(records) < HEADER_BYTES or not records[ATTRIBUTES_AT] & TRANSACTIONAL:
                continue
            if transactional_id is None:
                return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if pair and pair != records[PAIR]:
                return ErrorCode.INVALID_PRODUCER_ID_MAPPING
            pair = bytes(records[PAIR])
    return None


def _refuse_all(request: ProduceRequest, error: ErrorCode) -> ProduceResponse | Signal:
    if request.acks == 0:
        return CLOSE
    return ProduceResponse(
        [
            TopicProduceResponse(
                topic.name, topic.topic_id, [refused(data.index, error) for data in topic.partition_data]
            )
            for topic in request.topic_data
        ]
    )


def _append_all(
    broker: Broker,
    session: Session,
    header: RequestHeader,
    request: ProduceRequest,
    admitted: Mapping[int, Guard | Refused | None],
    opened: Mapping[int, Opened],
) -> ProduceResponse | Signal | Awaitable[ProduceResponse]:
    """Append what may be appended now. `admitted`: what the gate said, by the identity of the partition's data;
    `opened`: what a look into the batch has come to.
    """
    acks = request.acks
    now_ms = broker.env.clock.wall_ms()
    needs_guard = _needs_guard(broker, header)
    uncommitted: list[Uncommitted] = []
    failed = False
    topics = []
    for topic in request.topic_data:
        partitions = _partitions(broker, header.api_version, topic)
        answers = []
        for data in topic.partition_data:
            if acks not in (ACKS_ALL, 0, 1):
                answer = refused(data.index, ErrorCode.INVALID_REQUIRED_ACKS)
            elif isinstance(partitions, ErrorCode):
                answer = refused(data.index, partitions)
            elif (partition := partitions.get(data.index)) is None:
                answer = refused(data.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                answer = _append(
                    *(partition, data, acks, now_ms, uncommitted, admitted.get(id(data)), opened.get(id(data)), header),
                    needs_guard=needs_guard,
                )
            failed = failed or answer.error_code != 0
            answers.append(answer)
        if answers:
            topics.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    if acks == 0:
        return CLOSE if failed else NO_REPLY
    response = ProduceResponse(topics)
    return _when_committed(session, response, uncommitted, request.timeout_ms) if uncommitted else response


def _partitions(broker: Broker, version: int, topic: TopicProduceData) -> TopicPartitions | ErrorCode:
    if version >= TOPIC_IDS_SINCE:
        return broker.partitions.topic_by_id(topic.topic_id) or ErrorCode.UNKNOWN_TOPIC_ID
    return broker.partitions.topic(topic.name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _unconfirmed(
    broker: Broker, header: RequestHeader, request: ProduceRequest
) -> Iterator[tuple[Partition, PartitionProduceData, Writer]]:
    """The transactional batches whose transaction the partition does not know to be open yet."""
    if request.transactional_id is None or not _needs_guard(broker, header):
        return
    version = header.api_version
    for topic in request.topic_data:
        partitions = _partitions(broker, version, topic)
        for data in topic.partition_data:
            partition = None if isinstance(partitions, ErrorCode) else partitions.get(data.index)
            if partition is None or partition.replicas is None or not data.records:
                continue
            try:
                batch = read_header(data.records)
            except CorruptBatch:
                continue  # the append says so
            pair = batch.producer_id, batch.producer_epoch
            if batch.is_transactional and not partition.producers.has_open_transaction(*pair):
                yield (
                    partition,
                    data,
                    Writer(
                        request.transactional_id,
                        batch.producer_id,
                        batch.producer_epoch,
                        batch.base_sequence,
                        adds_itself=version >= ADDED_BY_LEADER_SINCE,
                        knows_abortable=version >= ABORTABLE_SINCE,
                    ),
                )


def _to_open(
    broker: Broker, header: RequestHeader, request: ProduceRequest
) -> Iterator[tuple[int, memoryview, LogConfig]]:
    """The batches that their topics want looked into."""
    for topic in request.topic_data:
        partitions = _partitions(broker, header.api_version, topic)
        if isinstance(partitions, ErrorCode):
            continue
        for data in topic.partition_data:
            partition = partitions.get(data.index)
            if partition is None:
                continue
            config = partition.log.config
            if not config.opens_batches:
                break  # nor do the topic's other partitions
            batch = one_batch(memoryview(data.records or b""))
            if partition.replicas is not None and not isinstance(batch, Refused):
                yield id(data), batch, config


def _open_now(broker: Broker, header: RequestHeader, request: ProduceRequest) -> dict[int, Opened] | None:
    """What is inside, or None when it takes longer than one turn of the loop may."""
    opened: dict[int, Opened] = {}
    for key, batch, config in _to_open(broker, header, request):
        found = broker.opener.open_now(batch, config, broker.env.clock.wall_ms())
        if found is None:
            return None
        opened[key] = found
    return opened


async def _open(broker: Broker, header: RequestHeader, request: ProduceRequest, opened: dict[int, Opened]) -> None:
    """Look into what has not been looked into under the settings that hold when this returns."""
    opener, clock = broker.opener, broker.env.clock
    while unknown := [each for each in _to_open(broker, header, request) if _is_unknown(opened.get(each[0]), each[2])]:
        for key, batch, config in unknown:
            now_ms = clock.wall_ms()
            opened[key] = opener.open_now(batch, config, now_ms) or await opener.open(batch, config, now_ms)


def _is_unknown(opened: Opened | None, config: LogConfig) -> bool:
    return opened is None or opened.config is not config


def _when_admitted(
    broker: Broker, session: Session, header: RequestHeader, request: ProduceRequest
) -> Held[ProduceResponse | Signal]:
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = memoryview(bytearray(data.records))  # the connection's buffer is not ours afterwards
    return Held(_admit_and_append(broker, session, header, request))


async def _admit_and_append(
    broker: Broker, session: Session, header: RequestHeader, request: ProduceRequest
) -> ProduceResponse | Signal | Awaitable[ProduceResponse | Signal]:
    opened: dict[int, Opened] = {}
    await _open(broker, header, request, opened)
    admitted = {
        id(data): await broker.transaction_gate.admit(partition, writer, timeout_ms=request.timeout_ms)
        for partition, data, writer in list(_unconfirmed(broker, header, request))
    }
    await _open(broker, header, request, opened)  # of topics that were given other settings meanwhile
    return _append_all(broker, session, header, request, admitted, opened)


def _append(
    partition: Partition,
    data: PartitionProduceData,
    acks: int,
    now_ms: int,
    uncommitted: list[Uncommitted],
    admitted: Guard | Refused | None,
    opened: Opened | None,
    header: RequestHeader,
    *,
    needs_guard: bool,
) -> PartitionProduceResponse:
    batch = one_batch(memoryview(data.records or b""))
    if isinstance(batch, Refused):
        answer = refused(data.index, batch.error)
        if batch.error is ErrorCode.CORRUPT_MESSAGE:
            answer.error_message = batch.message
        return answer
    if isinstance(admitted, Refused):
        return refused(data.index, admitted.error)
    if partition.topic_partition.topic in INTERNAL_TOPICS and header.client_id != ADMIN_CLIENT:
        return refused(data.index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if header.api_version < ZSTD_SINCE and batch[ATTRIBUTES_AT] & CODEC_BITS == CODECS["zstd"]:
        return refused(data.index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    outcome = partition.append_from_client(
        batch, acks=acks, now_ms=now_ms, guard=admitted, needs_guard=needs_guard, opened=opened
    )
    if not isinstance(outcome, Appended):
        answer = refused(data.index, outcome.error)
        if outcome.error not in SAY_NOTHING_OF_THE_LOG:
            answer.log_start_offset = partition.log.start_offset
        if outcome.culprits:
            answer.record_errors = [BatchIndexAndErrorMessage(index, outcome.message) for index in outcome.culprits]
            answer.error_message = "One or more records have been rejected"
        return answer
    answer = PartitionProduceResponse(
        data.index, 0, outcome.base_offset, outcome.log_append_time_ms, partition.log.start_offset
    )
    if acks == ACKS_ALL and partition.high_watermark < outcome.end_offset:
        uncommitted.append((partition, outcome.end_offset, answer))
    elif partition.folder.headroom.delay_s:
        uncommitted.append((partition, None, answer))
    return answer


def refused(index: int, error: ErrorCode) -> PartitionProduceResponse:
    return PartitionProduceResponse(index, error, -1)


async def _when_committed(
    session: Session, response: ProduceResponse, uncommitted: list[Uncommitted], timeout_ms: int
) -> ProduceResponse:
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    for partition, end_offset, answer in uncommitted:
        if end_offset is None:
            continue
        with session.waits():
            error = await committed_or_error(partition, end_offset, deadline)
        if error:
            answer.error_code, answer.base_offset = error, -1
            answer.log_append_time_ms = answer.log_start_offset = -1
    # Where the disk is nearly full producers are slowed, so that what makes room has a chance to come first.
    delay_s = max(partition.folder.headroom.delay_s for partition, _, _ in uncommitted)
    if delay_s:
        await asyncio.sleep(delay_s)
        response.throttle_time_ms = int(delay_s * 1000)
    return response


async def committed_or_error(partition: Partition, end_offset: int, deadline: float) -> ErrorCode:
    """NONE once everything below `end_offset` is committed; else why it can't be promised by `deadline` (loop time)."""
    try:
        waiter = partition.committed(end_offset)
        if waiter is not None:
            async with asyncio.timeout_at(deadline):
                await waiter
    except PartitionLost as lost:
        return lost.error
    except TimeoutError:
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NONE
