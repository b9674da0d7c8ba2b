"""SyncGroup, versions 0 to 5 (3: static members, 5: the protocol must be named).

Followers are answered when the leader has sent all assignments.
"""

from collections.abc import Awaitable

from service.api.group_answers import Groups, answer_with, error_code
from service.broker.session import Session
from service.groups.commands import SyncGroup, SyncReply
from service.turns import NAMED_A_TURN, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import SyncGroupRequest, SyncGroupResponse

PROTOCOL_NAMED_SINCE = 5


def handle(
    groups: Groups, session: Session, header: RequestHeader, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    if header.api_version >= PROTOCOL_NAMED_SINCE and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if len(request.assignments) > NAMED_A_TURN:
        return _in_turns(groups, session, request)
    assignments = tuple((each.member_id, each.assignment) for each in request.assignments)
    return answer_with(_answer, groups, request.group_id, _command(request, assignments), SyncReply, session)


async def _in_turns(groups: Groups, session: Session, request: SyncGroupRequest) -> SyncGroupResponse:
    """The same for very many assignments."""
    named = in_turns(request.assignments, NAMED_A_TURN)
    command = _command(request, tuple([(each.member_id, each.assignment) async for each in named]))
    answer = answer_with(_answer, groups, request.group_id, command, SyncReply, session)
    return await answer if isinstance(answer, Awaitable) else answer


def _command(request: SyncGroupRequest, assignments: tuple[tuple[str, bytes], ...]) -> SyncGroup:
    return SyncGroup(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        request.protocol_type,
        request.protocol_name,
        assignments,
    )


def _answer(reply: SyncReply | ErrorCode) -> SyncGroupResponse:
    if isinstance(reply, ErrorCode):
        return SyncGroupResponse(error_code=reply)
    return SyncGroupResponse(
        error_code=error_code(reply.fault),
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )
