"""Where else to go (KIP-951): if a client asks this broker for partitions that it does not lead, the answer itself
names the leader. So the client need not ask for metadata first.
"""

from log.ids import TopicId
from service.api.admin_answers import leader_of
from service.broker.session import Session
from service.cluster.image import NO_LEADER, PartitionState
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import Endpoint
from service.wire.error_codes import ErrorCode

UNKNOWN_HERE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Directions:
    """The directions in one answer. `nodes` has the brokers that it names, with their racks."""

    def __init__(self, metadata: ClusterMetadata, session: Session) -> None:
        self._metadata = metadata
        self._listener = session.listener
        self.nodes: dict[int, tuple[Endpoint, str | None]] = {}

    def error(self, topic: str | bytes, index: int, error: ErrorCode) -> ErrorCode:
        """The error to answer, as in Kafka. If the cluster knows the partition and this broker does not hold it, the
        error is that this broker does not lead.
        """
        if error in UNKNOWN_HERE:
            state = self._state(topic, index)
            if state is not None and self._metadata.broker_id not in state.replicas:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error

    def leader(self, topic: str | bytes, index: int) -> tuple[int, int] | None:
        """The leader and its epoch; None if no other broker leads, as far as this broker knows."""
        state = self._state(topic, index)
        if state is None:
            return None
        image = self._metadata.image
        leader, _ = leader_of(image, state, self._listener)
        if leader in (NO_LEADER, self._metadata.broker_id):
            return None
        node = image.brokers[leader]
        endpoint = node.endpoint(self._listener)
        assert endpoint is not None, "a leader that can't be reached there is none"
        self.nodes[leader] = endpoint, node.rack
        return leader, state.leader_epoch

    def _state(self, topic: str | bytes, index: int) -> PartitionState | None:
        image = self._metadata.image
        known = image.topic_by_id(TopicId(topic)) if isinstance(topic, bytes) else image.topics.get(topic)
        return None if known is None else known.partitions.get(index)
