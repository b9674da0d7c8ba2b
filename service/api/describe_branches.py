"""DescribeBranches, version 0, an API of our own (key 20001): the last decision for a root, and the branches that wait
for one. The root's transaction coordinator answers it.
"""

from service.api.wire_codes import Transactions
from service.broker.partition import PartitionLost
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, NotCoordinator
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribeBranchesRequest, DescribeBranchesResponse, DescribedRoot


async def handle(
    transactions: Transactions, session: Session, header: RequestHeader, request: DescribeBranchesRequest
) -> DescribeBranchesResponse:
    return DescribeBranchesResponse(roots=[await _describe(transactions, root) for root in request.roots])


async def _describe(transactions: Transactions, root: str) -> DescribedRoot:
    try:
        shard = transactions.shard(root)
        last, partition = shard.machine.last_decision(root), shard.partition
        # A client that is told of a decision does not decide again, so the decision must be one that lasts.
        if (uncommitted := partition.committed(partition.log.end_offset)) is not None:
            await uncommitted
    except (NotCoordinator, PartitionLost):
        return DescribedRoot(ErrorCode.NOT_COORDINATOR, root)
    except CoordinatorLoading:
        return DescribedRoot(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, root)
    return DescribedRoot(
        ErrorCode.NONE, root, last.token, last.producer_id, last.producer_epoch, list(last.open_branches), last.by
    )
