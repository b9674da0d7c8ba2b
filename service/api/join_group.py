"""JoinGroup, versions 0 to 9 (1: rebalance timeout, 4: member ids are given in advance, 5: static members, 9: skipping
the assignment).

The answer comes when the group's next generation begins, which may take as long as the rebalance timeout. Before
version 4 a member without an id joins at once. Since then it gets an id with the error MEMBER_ID_REQUIRED, and asks
again. The reason (version 8) is not kept.
"""

from collections.abc import Awaitable
from functools import partial

from service.api.group_answers import Groups, answer_with, error_code, fresh_id, host_of
from service.broker.session import Session
from service.groups.commands import JoinGroup, JoinReply
from service.ports import Env
from service.turns import slices_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

REBALANCE_TIMEOUT_SINCE = 1
MEMBER_ID_REQUIRED_SINCE = 4
NULL_PROTOCOL_SINCE = 7
SKIPS_ASSIGNMENT_SINCE = 9
MEMBERS_AT_ONCE = 500
MOST_PROTOCOLS = 100
"""A client names a few. Kafka has no limit. The votes of members that name many are counted in one turn."""


def handle(
    groups: Groups, env: Env, session: Session, header: RequestHeader, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    version = header.api_version
    if not request.group_id:
        return refused(ErrorCode.INVALID_GROUP_ID, request.member_id, version)
    if len(request.protocols) > MOST_PROTOCOLS:
        return refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id, version)
    says_rebalance_timeout = version >= REBALANCE_TIMEOUT_SINCE
    command = JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if says_rebalance_timeout else request.session_timeout_ms,
        client_id=header.client_id or "",
        client_host=host_of(session),
        fresh_id="" if request.member_id else fresh_id(env),
        requires_member_id=version >= MEMBER_ID_REQUIRED_SINCE,
        can_skip_assignment=version >= SKIPS_ASSIGNMENT_SINCE,
    )
    return answer_with(partial(_answer, version), groups, request.group_id, command, JoinReply, session)


def _answer(version: int, reply: JoinReply | ErrorCode) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    if isinstance(reply, ErrorCode):
        return refused(reply, "", version)
    response = JoinGroupResponse(
        error_code=error_code(reply.fault),
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=_protocol_name(reply.protocol_name, version),
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[JoinGroupResponseMember(*member) for member in reply.members[:MEMBERS_AT_ONCE]],
    )
    return response if len(reply.members) <= MEMBERS_AT_ONCE else _with_the_rest(response, reply)


async def _with_the_rest(response: JoinGroupResponse, reply: JoinReply) -> JoinGroupResponse:
    async for some in slices_in_turns(reply.members[MEMBERS_AT_ONCE:], MEMBERS_AT_ONCE):
        response.members += [JoinGroupResponseMember(*member) for member in some]
    return response


def refused(error: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=_protocol_name(None, version))


def _protocol_name(name: str | None, version: int) -> str | None:
    return "" if name is None and version < NULL_PROTOCOL_SINCE else name
