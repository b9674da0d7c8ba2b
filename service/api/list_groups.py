"""ListGroups, versions 0 to 5 (4: filtered by state, 5: filtered by type).

Every coordinator on this broker is asked; while one of them is still reading its log the whole list is refused.
"""

from service.api.turns import in_turns
from service.broker.node import Broker
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator
from service.groups.commands import ListGroups, ListReply
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import ListedGroup, ListGroupsRequest, ListGroupsResponse


async def handle(
    broker: Broker, session: Session, header: RequestHeader, request: ListGroupsRequest
) -> ListGroupsResponse:
    command = ListGroups.filtered(request.states_filter, request.types_filter)
    groups: list[ListedGroup] = []
    async for shard in in_turns(broker.groups.shards(), at_once=1):
        try:
            reply = await shard.handle(command)
        except NotCoordinator:
            continue  # it went while we asked, and its groups with it
        except CoordinatorLoading:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        except DecisionFailed:
            return ListGroupsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        assert isinstance(reply, ListReply)
        groups.extend(ListedGroup(each.group_id, each.protocol_type, each.state, each.type) for each in reply.groups)
    return ListGroupsResponse(groups=groups)
