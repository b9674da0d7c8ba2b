"""DescribeTransactions, version 0: the state of transactional ids, told by their coordinator."""

from service.api.wire_codes import Transactions
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, NotCoordinator
from service.turns import in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopicData,
    DescribeTransactionsResponseTransactionState,
)


async def handle(
    transactions: Transactions, session: Session, header: RequestHeader, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        # Each once: otherwise a short request could ask for an answer of any length.
        transaction_states=[
            _describe(transactions, transactional_id)
            async for transactional_id in in_turns(dict.fromkeys(request.transactional_ids), at_once=10)
        ]
    )


def _describe(transactions: Transactions, transactional_id: str) -> DescribeTransactionsResponseTransactionState:
    if not transactional_id:
        return DescribeTransactionsResponseTransactionState(ErrorCode.INVALID_REQUEST, transactional_id)
    try:
        described = transactions.shard(transactional_id).machine.describe(transactional_id)
    except NotCoordinator:
        return DescribeTransactionsResponseTransactionState(ErrorCode.NOT_COORDINATOR, transactional_id)
    except CoordinatorLoading:
        return DescribeTransactionsResponseTransactionState(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, transactional_id)
    if described is None:
        return DescribeTransactionsResponseTransactionState(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    txn, partitions, _ = described
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return DescribeTransactionsResponseTransactionState(
        ErrorCode.NONE,
        transactional_id,
        txn.state.label,
        txn.timeout_ms,
        txn.started_ms,
        txn.producer_id,
        txn.producer_epoch,
        [DescribeTransactionsResponseTopicData(topic, indexes) for topic, indexes in by_topic.items()],
    )
