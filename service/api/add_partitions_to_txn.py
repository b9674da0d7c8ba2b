"""AddPartitionsToTxn, versions 0 to 5 (2: PRODUCER_FENCED; 4: for brokers, with several transactions, and with the
choice only to ask).

If a partition does not exist, none is added: the answer names those that do not exist, and has OPERATION_NOT_ATTEMPTED
for the others. Brokers of this cluster name the topic's id, too: then a topic with another id is not the one they mean.

A client may wait for the markers of its last transaction. A broker is told at once that they are owed: it asks for many
producers on one connection, and none of them may wait for another's markers.
"""

from log.ids import TopicPartition
from service.api.wire_codes import PATIENCE_MS, Transactions, ask_coordinator, error_of, fencing_code
from service.broker.session import Session
from service.cluster.image import Image
from service.cluster.metadata import ClusterMetadata
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ZERO_UUID,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from txn.commands import AddPartitions, VerifyPartitions
from txn.verdicts import Verified

FENCED_SINCE, BATCHES_SINCE = 2, 4
TRANSACTIONS_A_TURN = 10
NamedTopics = list[AddPartitionsToTxnTopic]


async def handle(
    transactions: Transactions,
    metadata: ClusterMetadata,
    session: Session,
    header: RequestHeader,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse:
    fenced = fencing_code(knows_fenced=header.api_version >= FENCED_SINCE)
    if header.api_version >= BATCHES_SINCE:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transaction.transactional_id,
                    await _add(transactions, metadata.image, transaction, fenced, transaction_version=2, patience_ms=0),
                )
                async for transaction in in_turns(request.transactions, TRANSACTIONS_A_TURN)
            ]
        )
    transaction = AddPartitionsToTxnTransaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    results = await _add(
        transactions, metadata.image, transaction, fenced, transaction_version=0, patience_ms=PATIENCE_MS
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def refused(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """The answer to a session that may not name any transaction."""
    return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


async def _add(
    transactions: Transactions,
    image: Image,
    transaction: AddPartitionsToTxnTransaction,
    fenced: ErrorCode,
    *,
    transaction_version: int,
    patience_ms: int,
) -> list[AddPartitionsToTxnTopicResult]:
    topics = transaction.topics
    partitions, unknown = await done_in_turns(_named(topics, image))
    if not transaction.transactional_id:
        return await done_in_turns(_results(topics, {}, ErrorCode.INVALID_REQUEST))
    if unknown:
        return await done_in_turns(_results(topics, unknown, ErrorCode.OPERATION_NOT_ATTEMPTED))
    pair = transaction.producer_id, transaction.producer_epoch
    command: AddPartitions | VerifyPartitions
    if transaction.verify_only:
        command = VerifyPartitions(transaction.transactional_id, *pair, partitions)
    else:
        command = AddPartitions(
            transaction.transactional_id, *pair, partitions, transaction_version, patience_ms=patience_ms
        )
    verdict = await ask_coordinator(transactions, transaction.transactional_id, command)
    error = verdict if isinstance(verdict, ErrorCode) else error_of(verdict, fenced=fenced)
    missing = verdict.missing if isinstance(verdict, Verified) else ()
    return await done_in_turns(_results(topics, dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE), error))


Errors = dict[TopicPartition, ErrorCode]


def _named(topics: NamedTopics, image: Image) -> Steps[tuple[tuple[TopicPartition, ...], Errors]]:
    """The partitions, each once, and the error of those that do not exist."""
    turn = Turn(NAMED_A_TURN)
    named: dict[TopicPartition, None] = {}
    unknown: Errors = {}
    for topic in topics:
        if turn.is_over():
            yield
        known = image.topics.get(topic.name)
        is_meant = known is not None and topic.topic_id in (ZERO_UUID, known.id)
        for index in topic.partitions:
            if turn.is_over():
                yield
            partition = TopicPartition(topic.name, index)
            if not is_meant or image.partition(partition) is None:
                unknown[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                named[partition] = None
    return tuple(named), unknown


def _results(
    topics: NamedTopics, errors: Errors, error_of_others: ErrorCode
) -> Steps[list[AddPartitionsToTxnTopicResult]]:
    turn = Turn(NAMED_A_TURN)
    results = []
    for topic in topics:
        if turn.is_over():
            yield
        partitions = []
        for index in topic.partitions:
            if turn.is_over():
                yield
            error = errors.get(TopicPartition(topic.name, index), error_of_others)
            partitions.append(AddPartitionsToTxnPartitionResult(index, error))
        results.append(AddPartitionsToTxnTopicResult(topic.name, partitions))
    return results
