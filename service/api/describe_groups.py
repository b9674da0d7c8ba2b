"""DescribeGroups, versions 0 to 6 (3: authorized operations, 4: instance ids, 6: a group that does not exist is an
error).

It describes classic groups. For this API a consumer group does not exist. The empty group id is allowed.
"""

from service.api.group_answers import Groups, ask, error_code, operations
from service.broker.session import Session
from service.groups.commands import ClassicGroupFacts, DescribeClassicGroup
from service.turns import counted, done_in_turns, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
)

TELLS_MISSING_SINCE = 6


async def handle(
    groups: Groups, session: Session, header: RequestHeader, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    described = []
    # Each once: otherwise a short request could ask for an answer of any length.
    async for group_id in in_turns(await done_in_turns(counted(request.groups)), at_once=1):
        reply = await ask(groups, group_id, DescribeClassicGroup(group_id), ClassicGroupFacts)
        if isinstance(reply, ErrorCode):
            described.append(DescribeGroupsResponseDescribedGroup(error_code=reply, group_id=group_id))
        else:
            described.append(_described(group_id, reply, header.api_version, request.include_authorized_operations))
    return DescribeGroupsResponse(groups=described)


def _described(
    group_id: str, facts: ClassicGroupFacts, version: int, with_operations: bool
) -> DescribeGroupsResponseDescribedGroup:
    tells_fault = facts.fault is not None and version >= TELLS_MISSING_SINCE
    return DescribeGroupsResponseDescribedGroup(
        error_code=error_code(facts.fault) if tells_fault else ErrorCode.NONE,
        error_message=facts.message if tells_fault else None,
        group_id=group_id,
        group_state=facts.state,
        protocol_type=facts.protocol_type,
        protocol_data=facts.protocol_name,
        members=[
            DescribedGroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata,
                member.assignment,
            )
            for member in facts.members
        ],
        authorized_operations=operations(with_operations and not tells_fault),
    )
