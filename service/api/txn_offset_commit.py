"""TxnOffsetCommit, versions 0 to 5 (3: member and generation are checked, 5: the leader of the group's partition adds
it to the transaction).

The offsets are pending until the transaction's marker is in the group's partition. If there are very many,
OFFSETS_AT_ONCE are written at a time. Before each part it is checked again whether the producer and the member may
write.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from service.api.group_answers import OFFSETS_AT_ONCE, Groups, ask, error_code
from service.broker.acceptance import Refused
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, NotCoordinator
from service.broker.transaction_gate import TransactionGate, Writer
from service.broker.turns import slices_in_turns
from service.cluster.metadata import ClusterMetadata
from service.groups.commands import CommitReply, CommitTransactionalOffsets, OffsetToCommit
from service.ports import Clock
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
class Parts:
    """The parts of the broker that an answer needs."""

    groups: Groups
    metadata: ClusterMetadata
    transaction_gate: TransactionGate
    clock: Clock


async def handle(
    parts: Parts, session: Session, header: RequestHeader, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    if not request.transactional_id:
        return _answer(request, {}, ErrorCode.INVALID_REQUEST)
    codes: dict[tuple[str, int], int] = {}
    async for some in slices_in_turns(_wanted(parts.metadata, request), OFFSETS_AT_ONCE):
        known = {(each.topic, each.partition): each for each in some}
        errors = await _commit(parts, header, request, tuple(known.values())) if known else []
        codes.update(zip(known, errors, strict=True))
    return _answer(request, codes, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _wanted(metadata: ClusterMetadata, request: TxnOffsetCommitRequest) -> Iterator[OffsetToCommit]:
    for topic in request.topics:
        facts = metadata.image.topics.get(topic.name)
        for partition in topic.partitions:
            if facts is not None and partition.partition_index in facts.partitions:
                yield OffsetToCommit(
                    topic.name,
                    facts.id,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                )


async def _commit(
    parts: Parts, header: RequestHeader, request: TxnOffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
) -> list[int]:
    """An error for each offset."""
    refused = await _refused(parts, header, request)
    if refused is not None:
        return [refused] * len(offsets)
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


async def _refused(parts: Parts, header: RequestHeader, request: TxnOffsetCommitRequest) -> ErrorCode | None:
    """Why this producer may not write to the group's partition; None if it may, at this moment."""
    try:
        partition = parts.groups.shard(request.group_id).partition
    except NotCoordinator:
        return ErrorCode.NOT_COORDINATOR
    except CoordinatorLoading:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    writer = Writer(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        NO_SEQUENCE,
        adds_itself=header.api_version >= ADDED_BY_LEADER_SINCE,
        knows_abortable=header.api_version >= ABORTABLE_SINCE,
    )
    [admitted] = await parts.transaction_gate.admit([(partition, writer)], timeout_ms=PATIENCE_MS)
    if isinstance(admitted, Refused):
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
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    TxnOffsetCommitResponsePartition(
                        partition.partition_index, codes.get((topic.name, partition.partition_index), otherwise)
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
