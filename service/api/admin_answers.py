"""What the handlers of administrative requests share: they run commands, and several answers have parts in common."""

from typing import TypeVar

from service.broker.internal_topics import KEPT_SETTINGS
from service.cluster.config_commands import AlterConfigs, ResourceChange
from service.cluster.controller import Command, Refusal
from service.cluster.image import NO_LEADER, Image, PartitionState
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, in_turns
from service.wire.error_codes import ErrorCode

Reply = TypeVar("Reply")

UNASKED = -(2**31)
"""Kafka's mark for operations that the caller did not ask about."""
TOPIC_OPERATIONS = 3576
"""A bit for each operation on a topic. While nothing is authorized, every client may do all of them."""
CLUSTER_OPERATIONS = 8096

MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)


async def executed(metadata: ClusterMetadata, command: Command[Reply]) -> Reply | Refusal:
    """The reply to a command. If the command could not be carried out it is a refusal, so that every part of the answer
    can tell it.
    """
    try:
        return await metadata.execute(command)
    except MetadataLost as lost:
        return Refusal(lost.error, str(lost))


async def altered(
    metadata: ClusterMetadata, config: BrokerConfig, resources: tuple[ResourceChange, ...], *, validate_only: bool
) -> list[tuple[ErrorCode, str | None, int, str]]:
    """The results of changes of settings: error, message, kind and name of each resource."""
    command = AlterConfigs(resources, config, metadata.broker_id, KEPT_SETTINGS, validate_only)
    results = await executed(metadata, command)
    if isinstance(results, Refusal):
        refused = results.error, results.message
        return [(*refused, one.kind, one.name) async for one in in_turns(resources, NAMED_A_TURN)]
    return [(one.error, one.message, one.kind, one.name) async for one in in_turns(results, NAMED_A_TURN)]


def leader_of(image: Image, state: PartitionState, listener: str) -> tuple[int, ErrorCode]:
    """The leader of a partition, if clients of `listener` can reach it."""
    broker = image.brokers.get(state.leader)
    if state.leader == NO_LEADER or broker is None:
        return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    if broker.endpoint(listener) is None:
        return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND
    return state.leader, ErrorCode.NONE


def offline(image: Image, state: PartitionState) -> list[int]:
    return [replica for replica in state.replicas if replica not in image.brokers]
