"""InitProducerId, versions 0 to 6 (3: epochs are bumped after errors, 4: PRODUCER_FENCED, 5: TRANSACTION_ABORTABLE).

Without a transactional id, any client gets a fresh producer id and epoch 0. With one, the coordinator fences the
producer that held the id, aborts what was open, and gives the next epoch. Version 6 (external two-phase commit) is
unstable in Kafka, and is offered only if the operator allows it.
"""

from service.api.wire_codes import PATIENCE_MS, Transactions, ask_coordinator, error_of, fencing_code
from service.broker.producer_id_source import ProducerIdSource
from service.broker.session import Session
from service.cluster.metadata import MetadataLost
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from txn.commands import InitProducer
from txn.verdicts import Initialized, NoProducerIds

FENCED_SINCE = 4


async def handle(
    transactions: Transactions,
    producer_ids: ProducerIdSource,
    session: Session,
    header: RequestHeader,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse:
    return await take_over(transactions, producer_ids, header, request)


async def take_over(
    transactions: Transactions,
    producer_ids: ProducerIdSource,
    header: RequestHeader,
    request: InitProducerIdRequest,
    *,
    spares_ongoing: bool = False,
) -> InitProducerIdResponse:
    """`spares_ongoing`: refuse (48 INVALID_TXN_STATE) to abort a transaction that is ongoing. HTTP asks for that."""
    if request.transactional_id is None:
        try:
            return InitProducerIdResponse(producer_id=await producer_ids.next(), producer_epoch=0)
        except MetadataLost:
            return refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not request.transactional_id or (request.producer_id < 0) != (request.producer_epoch < 0):
        return refused(ErrorCode.INVALID_REQUEST)
    command = InitProducer(
        request.transactional_id,
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
        two_phase_commit=request.enable2_pc,
        keep_prepared=request.keep_prepared_txn,
        patience_ms=PATIENCE_MS,
        spares_ongoing=spares_ongoing,
    )
    verdict = await ask_coordinator(transactions, request.transactional_id, command)
    if isinstance(verdict, NoProducerIds):
        # At the broker's first transactional client there are no producer ids yet. One write to the metadata store
        # brings a block of them.
        try:
            await producer_ids.refill()
        except MetadataLost:
            return refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        verdict = await ask_coordinator(transactions, request.transactional_id, command)
    if isinstance(verdict, ErrorCode):
        return refused(verdict)
    if isinstance(verdict, Initialized):
        return InitProducerIdResponse(
            producer_id=verdict.producer_id,
            producer_epoch=verdict.producer_epoch,
            ongoing_txn_producer_id=verdict.ongoing_producer_id,
            ongoing_txn_producer_epoch=verdict.ongoing_producer_epoch,
        )
    return refused(error_of(verdict, fenced=fencing_code(knows_fenced=header.api_version >= FENCED_SINCE)))


def refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
