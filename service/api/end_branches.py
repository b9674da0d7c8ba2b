"""EndBranches, version 0, an API of our own (key 20000): one durable decision over all branches of a transactional id.

The root's transaction coordinator answers it; FindCoordinator names it for the root and for every branch. txn/README.md
explains the meaning. If the token was decided before, there is no error, and `decided_now` is false. INVALID_TXN_STATE:
a named branch is not ready; the message says which one and why, and nothing has changed. PRODUCER_FENCED: the root has
another owner.
"""

from service.api.wire_codes import Transactions, ask_coordinator, error_of
from service.broker.session import Session
from service.turns import NAMED_A_TURN, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import EndBranchesRequest, EndBranchesResponse
from txn.branches import MAX_BRANCHES
from txn.commands import EndBranches, NamedBranch
from txn.verdicts import BranchNotReady, Decided, InvalidRequest


async def handle(
    transactions: Transactions, session: Session, header: RequestHeader, request: EndBranchesRequest
) -> EndBranchesResponse:
    command = EndBranches(
        request.root,
        request.token,
        request.committed,
        tuple(
            [
                NamedBranch(branch.transactional_id, branch.producer_id, branch.producer_epoch)
                async for branch in in_turns(request.branches[: MAX_BRANCHES + 1], NAMED_A_TURN)
            ]
        ),
        request.producer_id,
        request.producer_epoch,
        request.decided_by,
    )
    verdict = await ask_coordinator(transactions, request.root, command)
    match verdict:
        case ErrorCode():
            return EndBranchesResponse(error_code=verdict)
        case Decided():
            return EndBranchesResponse(
                decided_now=verdict.now,
                last_token=verdict.last_token,
                decided_by=verdict.by,
                decided_before=verdict.before,
            )
        case BranchNotReady():
            message = f"{verdict.transactional_id} {verdict.fault.value}"
            return EndBranchesResponse(error_code=error_of(verdict), error_message=message)
        case InvalidRequest():
            return EndBranchesResponse(error_code=error_of(verdict), error_message=verdict.reason)
    return EndBranchesResponse(error_code=error_of(verdict))
