"""FindCoordinator, versions 0 to 6 (1: of transactions too, 4: several keys at once, 6: share groups, which are
refused).

The coordinator is the broker that leads the key's partition of the internal topic. The first request creates the topic,
and is answered with COORDINATOR_NOT_AVAILABLE until the topic exists.
"""

from service.broker.internal_topics import GROUPS, TRANSACTIONS, InternalTopics, NodeAddress
from service.broker.session import Session
from service.turns import in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

BATCHES_SINCE = 4
TOPIC_OF_KEY_TYPE = {0: GROUPS, 1: TRANSACTIONS}
NOWHERE = NodeAddress(-1, "", -1)


async def handle(
    finder: InternalTopics, session: Session, header: RequestHeader, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if header.api_version >= BATCHES_SINCE:
        return FindCoordinatorResponse(
            coordinators=[
                _answer(key, *_find(finder, request.key_type, key, session.listener))
                async for key in in_turns(request.coordinator_keys, at_once=100)
            ]
        )
    address, error = _find(finder, request.key_type, request.key, session.listener)
    return FindCoordinatorResponse(
        error_code=error,
        error_message=error.name,
        node_id=address.node_id,
        host=address.host,
        port=address.port,
    )


def _answer(key: str, address: NodeAddress, error: ErrorCode) -> Coordinator:
    return Coordinator(key, address.node_id, address.host, address.port, error)


def _find(finder: InternalTopics, key_type: int, key: str, listener: str) -> tuple[NodeAddress, ErrorCode]:
    topic = TOPIC_OF_KEY_TYPE.get(key_type)
    if topic is None:
        return NOWHERE, ErrorCode.INVALID_REQUEST
    found = finder.coordinator_of(topic, key, listener)
    return (NOWHERE, found) if isinstance(found, ErrorCode) else (found, ErrorCode.NONE)
