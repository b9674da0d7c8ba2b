"""DeleteGroups, versions 0 to 2: deletes empty groups with their offsets, including those of open transactions."""

from service.api.group_answers import Groups, ask, error_code
from service.broker.session import Session
from service.groups.commands import DeleteGroup, FaultReply
from service.turns import Turn, breathe, counted, done_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

REFUSED_A_TURN = 10
"""How many groups are looked up in one turn that can't be deleted."""


async def handle(
    groups: Groups, session: Session, header: RequestHeader, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    results = []
    turn = Turn(REFUSED_A_TURN)
    for group_id in await done_in_turns(counted(request.groups_names)):
        reply = await ask(groups, group_id, DeleteGroup(group_id), FaultReply)
        error = reply if isinstance(reply, ErrorCode) else error_code(reply.fault)
        results.append(DeletableGroupResult(group_id, error))
        if turn.is_over(REFUSED_A_TURN if error == ErrorCode.NONE else 1):  # one may have had hundreds of offsets
            await breathe()
    return DeleteGroupsResponse(results=results)
