"""DescribeBranches, version 0, an API of our own (key 20001): the last decision for a root, and the branches that wait
for one. The root's transaction coordinator answers it.
"""

from service.api.wire_codes import Transactions, looked_up
from service.broker.session import Session
from service.turns import NAMED_A_TURN, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribeBranchesRequest, DescribeBranchesResponse, DescribedRoot
from txn.coordinator import TxnCoordinator


async def handle(
    transactions: Transactions, session: Session, header: RequestHeader, request: DescribeBranchesRequest
) -> DescribeBranchesResponse:
    found = await looked_up(transactions, request.roots, _describe)
    return DescribeBranchesResponse(
        roots=[
            DescribedRoot(row, root) if isinstance(row, ErrorCode) else row
            async for root, row in in_turns(found.items(), NAMED_A_TURN)
        ]
    )


def _describe(machine: TxnCoordinator, root: str) -> DescribedRoot:
    last = machine.last_decision(root)
    return DescribedRoot(
        ErrorCode.NONE, root, last.token, last.producer_id, last.producer_epoch, list(last.open_branches), last.by
    )
