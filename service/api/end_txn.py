"""EndTxn, versions 0 to 5 (2: PRODUCER_FENCED; 5: transaction version 2, in which the answer has the producer id and
epoch to go on with).

The commit of a branch (txn/README.md) seals it. The answer then has the producer id and epoch that the decision over
the root names.
"""

from service.api.wire_codes import PATIENCE_MS, Transactions, ask_coordinator, error_of, fencing_code
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import EndTxnRequest, EndTxnResponse
from txn.commands import EndTransaction
from txn.verdicts import Ended, Sealed

FENCED_SINCE, VERSION_2_SINCE = 2, 5


async def handle(
    transactions: Transactions, session: Session, header: RequestHeader, request: EndTxnRequest
) -> EndTxnResponse:
    if not request.transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    newest = header.api_version >= VERSION_2_SINCE
    command = EndTransaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        transaction_version=2 if newest else 0,
        patience_ms=PATIENCE_MS,
    )
    verdict = await ask_coordinator(transactions, request.transactional_id, command)
    if isinstance(verdict, ErrorCode):
        return EndTxnResponse(error_code=verdict)
    if isinstance(verdict, Ended | Sealed):
        return EndTxnResponse(producer_id=verdict.producer_id, producer_epoch=verdict.producer_epoch)
    return EndTxnResponse(
        error_code=error_of(verdict, fenced=fencing_code(knows_fenced=header.api_version >= FENCED_SINCE))
    )
