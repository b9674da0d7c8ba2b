"""LeaveGroup, versions 0 to 5 (3: several members, by instance id too, 5: with a reason).

Before version 3 one member leaves, and what went wrong with it is the answer's own error. The reason is not kept.
"""

from collections.abc import Iterable

from service.api.group_answers import Groups, ask, error_code
from service.broker.session import Session
from service.groups.commands import LeaveGroup, LeaveReply, LeavingMember
from service.turns import slices_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

BATCHES_SINCE = 3
LEAVING_AT_ONCE = 200


async def handle(
    groups: Groups, session: Session, header: RequestHeader, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    leaving: Iterable[LeavingMember] = (
        LeavingMember(each.member_id, each.group_instance_id, each.reason) for each in request.members
    )
    if header.api_version < BATCHES_SINCE:
        leaving = [LeavingMember(request.member_id, None)]
    left: list[MemberResponse] = []
    async for some in slices_in_turns(leaving, LEAVING_AT_ONCE):
        reply = await ask(groups, request.group_id, LeaveGroup(request.group_id, tuple(some)), LeaveReply)
        if isinstance(reply, ErrorCode):
            return LeaveGroupResponse(error_code=reply)
        if header.api_version < BATCHES_SINCE:
            return LeaveGroupResponse(error_code=error_code(reply.fault or reply.members[0].fault))
        if reply.fault is not None:
            return LeaveGroupResponse(error_code=error_code(reply.fault))
        left += [MemberResponse(each.member_id, each.instance_id, error_code(each.fault)) for each in reply.members]
    return LeaveGroupResponse(members=left)
