"""LeaveGroup, versions 0 to 5 (3: several members, by instance id too, 5: with a reason).

Before version 3 one member leaves, and what went wrong with it is the answer's own error. The reason is not kept.
"""

from service.api.group_answers import ask, error_code
from service.broker.node import Broker
from service.broker.session import Session
from service.groups.commands import LeaveGroup, LeaveReply, LeavingMember
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

BATCHES_SINCE = 3


async def handle(
    broker: Broker, session: Session, header: RequestHeader, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if header.api_version >= BATCHES_SINCE:
        leaving = tuple(LeavingMember(each.member_id, each.group_instance_id, each.reason) for each in request.members)
    else:
        leaving = (LeavingMember(request.member_id, None),)
    reply = await ask(broker, request.group_id, LeaveGroup(request.group_id, leaving), LeaveReply)
    if isinstance(reply, ErrorCode):
        return LeaveGroupResponse(error_code=reply)
    if header.api_version < BATCHES_SINCE:
        return LeaveGroupResponse(error_code=error_code(reply.fault or reply.members[0].fault))
    return LeaveGroupResponse(
        error_code=error_code(reply.fault),
        members=[MemberResponse(each.member_id, each.instance_id, error_code(each.fault)) for each in reply.members],
    )
