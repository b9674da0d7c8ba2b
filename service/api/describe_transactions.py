"""DescribeTransactions, version 0: the state of transactional ids, told by their coordinator."""

from service.api.wire_codes import Transactions, looked_up
from service.broker.session import Session
from service.turns import NAMED_A_TURN, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopicData,
)
from service.wire.messages import DescribeTransactionsResponseTransactionState as TransactionState
from txn.coordinator import TxnCoordinator


async def handle(
    transactions: Transactions, session: Session, header: RequestHeader, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    # Each once: otherwise a short request could ask for an answer of any length.
    found = await looked_up(transactions, request.transactional_ids, _describe)
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(row, each) if isinstance(row, ErrorCode) else row
            async for each, row in in_turns(found.items(), NAMED_A_TURN)
        ]
    )


def _describe(machine: TxnCoordinator, transactional_id: str) -> TransactionState:
    if not transactional_id:
        return TransactionState(ErrorCode.INVALID_REQUEST, transactional_id)
    described = machine.describe(transactional_id)
    if described is None:
        return TransactionState(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    txn, partitions, _ = described
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return TransactionState(
        ErrorCode.NONE,
        transactional_id,
        txn.state.label,
        txn.timeout_ms,
        txn.started_ms,
        txn.producer_id,
        txn.producer_epoch,
        [DescribeTransactionsResponseTopicData(topic, indexes) for topic, indexes in by_topic.items()],
    )
