"""ListGroups, versions 0 to 5 (4: filtered by state, 5: filtered by type).

Every coordinator on this broker is asked. While one of them has not begun yet or is still reading its log, the whole
list is refused; and so it is while this broker has no session with the metadata store, and coordinates nothing that
others don't take over. Only those whose log is damaged are left out.
"""

from service.api.group_answers import Groups
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator
from service.cluster.metadata import ClusterMetadata
from service.groups.commands import ListGroups, ListReply, NameGroups, NamesReply
from service.turns import NAMED_A_TURN, in_turns, slices_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import ListedGroup, ListGroupsRequest, ListGroupsResponse

LISTED_AT_ONCE = 1_000


async def handle(
    coordinators: Groups,
    metadata: ClusterMetadata,
    session: Session,
    header: RequestHeader,
    request: ListGroupsRequest,
) -> ListGroupsResponse:
    if not metadata.in_session:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    for index in coordinators.not_ready(metadata.broker_id):
        if (partition := coordinators.partition(index)) is None or not partition.offline:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    shards = coordinators.shards()
    states = {state.strip().lower() async for state in in_turns(request.states_filter, NAMED_A_TURN)}
    types = {kind.lower() async for kind in in_turns(request.types_filter, NAMED_A_TURN)}
    groups: list[ListedGroup] = []
    async for shard in in_turns(shards, at_once=1):
        try:
            named = await shard.handle(NameGroups())
            assert isinstance(named, NamesReply)
            async for some in slices_in_turns(named.group_ids, LISTED_AT_ONCE):
                reply = await shard.handle(ListGroups(some, states, types))
                assert isinstance(reply, ListReply)
                groups += [
                    ListedGroup(each.group_id, each.protocol_type, each.state, each.type) for each in reply.groups
                ]
        except (NotCoordinator, CoordinatorLoading):
            if shard.partition.offline:
                continue
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        except DecisionFailed:
            return ListGroupsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    return ListGroupsResponse(groups=groups)
