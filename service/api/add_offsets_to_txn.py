"""AddOffsetsToTxn, versions 0 to 4 (2: PRODUCER_FENCED): the transaction will commit offsets of a group.

To the coordinator this means that the group's partition of `__consumer_offsets` joins the transaction.
"""

from log.ids import TopicPartition
from service.api.group_answers import Groups
from service.api.wire_codes import PATIENCE_MS, Transactions, ask_coordinator, error_of, fencing_code
from service.broker.internal_topics import GROUPS, InternalTopics
from service.broker.session import Session
from service.broker.shard import NotCoordinator
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from txn.commands import AddPartitions

FENCED_SINCE = 2


async def handle(
    transactions: Transactions,
    groups: Groups,
    internal_topics: InternalTopics,
    session: Session,
    header: RequestHeader,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse:
    if not request.transactional_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        index = groups.partition_index(request.group_id)
    except NotCoordinator:
        # aiokafka asks for the group's coordinator only after this. If that request made the topic, aiokafka would wait
        # for ever.
        internal_topics.bring_about(GROUPS)
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    command = AddPartitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        (TopicPartition(GROUPS.name, index),),
        transaction_version=0,
        patience_ms=PATIENCE_MS,
    )
    verdict = await ask_coordinator(transactions, request.transactional_id, command)
    if isinstance(verdict, ErrorCode):
        return AddOffsetsToTxnResponse(error_code=verdict)
    fenced = fencing_code(knows_fenced=header.api_version >= FENCED_SINCE)
    return AddOffsetsToTxnResponse(error_code=error_of(verdict, fenced=fenced))
