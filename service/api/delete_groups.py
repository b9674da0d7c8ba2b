"""DeleteGroups, versions 0 to 2: deletes empty groups with their offsets, including those of open transactions."""

from service.api.group_answers import Groups, ask, error_code
from service.broker.session import Session
from service.groups.commands import DeleteGroup, FaultReply
from service.turns import in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(
    groups: Groups, session: Session, header: RequestHeader, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    results = []
    async for group_id in in_turns(dict.fromkeys(request.groups_names), at_once=10):
        reply = await ask(groups, group_id, DeleteGroup(group_id), FaultReply)
        error = reply if isinstance(reply, ErrorCode) else error_code(reply.fault)
        results.append(DeletableGroupResult(group_id, error))
    return DeleteGroupsResponse(results=results)
