"""Heartbeat, versions 0 to 4 (3: static members).

While the coordinator is still reading its log, every heartbeat is accepted: the sessions begin anew after that.
"""

from collections.abc import Awaitable

from service.api.group_answers import Groups, answer_with, error_code
from service.broker.session import Session
from service.groups.commands import FaultReply, Heartbeat
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import HeartbeatRequest, HeartbeatResponse


def handle(
    groups: Groups, session: Session, header: RequestHeader, request: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    command = Heartbeat(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
    return answer_with(_answer, groups, request.group_id, command, FaultReply)


def _answer(reply: FaultReply | ErrorCode) -> HeartbeatResponse:
    if reply is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return HeartbeatResponse()
    if isinstance(reply, ErrorCode):
        return HeartbeatResponse(error_code=reply)
    return HeartbeatResponse(error_code=error_code(reply.fault))
