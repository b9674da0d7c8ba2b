"""TxnOffsetCommit, versions 0 to 5 (3: member and generation are checked, 5: the leader of the group's partition adds
it to the transaction).

The offsets are pending until the transaction's marker is in the group's partition. If there are very many,
OFFSETS_AT_ONCE are written at a time. Before each part it is checked again whether the producer and the member may
write.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from log.ids import TopicId
from service.api.group_answers import Groups, ask, error_code, offsets_in_turns
from service.broker.acceptance import RefusedBatch
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, NotCoordinator
from service.broker.transaction_gate import TransactionalWriter, TransactionGate
from service.cluster.metadata import ClusterMetadata
from service.groups.commands import CommitReply, CommitTransactionalOffsets, OffsetToCommit
from service.ports import Clock
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ABORTABLE_SINCE, ADDED_BY_LEADER_SINCE = 4, 5
NO_SEQUENCE = -1
PATIENCE_MS = 1_000


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitParts:
    """The parts of the broker that an answer needs."""

    groups: Groups
    metadata: ClusterMetadata
    transaction_gate: TransactionGate
    clock: Clock


async def handle(
    parts: TxnOffsetCommitParts, session: Session, header: RequestHeader, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    if not request.transactional_id:
        return await done_in_turns(_answer(request, {}, ErrorCode.INVALID_REQUEST))
    codes: dict[tuple[str, int], int] = {}
    async for some in offsets_in_turns(_wanted(parts.metadata, request), request.group_id):
        known = {(each.topic, each.partition): each for each in some if each is not None}
        errors = await _commit(parts, header, request, tuple(known.values())) if known else []
        codes.update(zip(known, errors, strict=True))
    return await done_in_turns(_answer(request, codes, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))


def _wanted(metadata: ClusterMetadata, request: TxnOffsetCommitRequest) -> Iterator[OffsetToCommit | None]:
    """None for each topic, and for each partition that does not exist."""
    for topic in request.topics:
        yield None
        facts = metadata.image.topics.get(topic.name)
        for partition in topic.partitions:
            if facts is None or partition.partition_index not in facts.partitions:
                yield None
            else:
                yield OffsetToCommit(
                    topic.name,
                    facts.id,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                )


async def _commit(
    parts: TxnOffsetCommitParts,
    header: RequestHeader,
    request: TxnOffsetCommitRequest,
    offsets: tuple[OffsetToCommit, ...],
) -> list[int]:
    """An error for each offset."""
    refused = await _refused(parts, header, request)
    if refused is not None:
        return [refused] * len(offsets)
    codes: dict[OffsetToCommit, int] = dict.fromkeys(offsets, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    # The coordinator of the transaction was asked. Meanwhile a topic may have been deleted, or made again.
    image = parts.metadata.image
    present = tuple(each for each in offsets if image.topic_by_id(TopicId(each.topic_id)) is not None)
    if present:
        codes.update(zip(present, await _decide(parts, request, present), strict=True))
    return list(codes.values())


async def _decide(
    parts: TxnOffsetCommitParts, request: TxnOffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
) -> list[int]:
    command = CommitTransactionalOffsets(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        offsets,
        request.producer_id,
        request.producer_epoch,
    )
    # There is no await between the partition's consent and the decision, so the consent is still valid when the offsets
    # are written.
    reply = await ask(parts.groups, request.group_id, command, CommitReply)
    if isinstance(reply, ErrorCode):
        return [reply] * len(offsets)
    if reply.fault is not None:
        return [error_code(reply.fault)] * len(offsets)
    return [error_code(fault) for fault in reply.faults]


async def _refused(
    parts: TxnOffsetCommitParts, header: RequestHeader, request: TxnOffsetCommitRequest
) -> ErrorCode | None:
    """Why this producer may not write to the group's partition; None if it may, at this moment."""
    try:
        partition = parts.groups.shard(request.group_id).partition
    except NotCoordinator:
        return ErrorCode.NOT_COORDINATOR
    except CoordinatorLoading:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    writer = TransactionalWriter(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        NO_SEQUENCE,
        adds_itself=header.api_version >= ADDED_BY_LEADER_SINCE,
        knows_abortable=header.api_version >= ABORTABLE_SINCE,
    )
    [admitted] = await parts.transaction_gate.admit([(partition, writer)], timeout_ms=PATIENCE_MS)
    if isinstance(admitted, RefusedBatch):
        return _for_offsets(admitted.error)
    now_ms = parts.clock.wall_ms()
    refused = partition.refuse_offsets(request.producer_id, request.producer_epoch, admitted, now_ms=now_ms)
    return None if refused is None else _for_offsets(refused.error)


def _for_offsets(error: ErrorCode) -> ErrorCode:
    """The error of this API for an error of Produce."""
    if error is ErrorCode.NOT_ENOUGH_REPLICAS:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER or error is ErrorCode.KAFKA_STORAGE_ERROR:
        return ErrorCode.NOT_COORDINATOR
    return error


def _answer(
    request: TxnOffsetCommitRequest, codes: dict[tuple[str, int], int], otherwise: ErrorCode
) -> Steps[TxnOffsetCommitResponse]:
    turn = Turn(NAMED_A_TURN)
    topics = []
    for topic in request.topics:
        if turn.is_over():
            yield
        partitions = []
        for partition in topic.partitions:
            if turn.is_over():
                yield
            index = partition.partition_index
            partitions.append(TxnOffsetCommitResponsePartition(index, codes.get((topic.name, index), otherwise)))
        topics.append(TxnOffsetCommitResponseTopic(topic.name, partitions))
    return TxnOffsetCommitResponse(topics=topics)
