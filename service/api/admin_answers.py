"""What the handlers of administrative requests share: they run commands, and several answers have parts in common."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from service.broker.internal_topics import INTERNAL_TOPICS, least_in_sync
from service.cluster.config_commands import AlterConfigs, ConfigChange, ResourceChange
from service.cluster.controller import Command, Refusal
from service.cluster.image import NO_LEADER, Image, PartitionState
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, counted, done_in_turns, slices_in_turns
from service.wire.error_codes import ErrorCode

Reply = TypeVar("Reply")
Row = TypeVar("Row")
Config = TypeVar("Config", covariant=True)


class AskedResource(Protocol[Config]):
    """A topic, group or broker as a request names it, with the settings that are to change."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def configs(self) -> Sequence[Config]: ...


RESOURCES_A_COMMIT = 500
"""The most resources of a request whose settings change in one commit."""
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


def changes(
    resources: Sequence[AskedResource[Config]], change: Callable[[Config], ConfigChange], *, replace_all: bool
) -> Steps[tuple[ResourceChange, ...]]:
    """What a request asks to change, each setting translated by `change`."""
    turn = Turn(NAMED_A_TURN)
    wanted = []
    for resource in resources:
        if turn.is_over():
            yield
        settings = []
        for config in resource.configs:
            if turn.is_over():
                yield
            settings.append(change(config))
        wanted.append(ResourceChange(resource.resource_type, resource.resource_name, tuple(settings), replace_all))
    return tuple(wanted)


async def altered(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    asked: Sequence[AskedResource[Config]],
    change: Callable[[Config], ConfigChange],
    row: Callable[[ErrorCode, str | None, int, str], Row],
    *,
    validate_only: bool,
    replace_all: bool = False,
    expected: Collection[str] | None = None,
) -> list[Row]:
    """Carries out changes of settings. There is a row of the answer for each resource. `expected`: only if the settings
    are of one of these versions.
    """
    seen = metadata.image
    kept = {topic.name: topic.kept(config) for topic in INTERNAL_TOPICS.values()}
    least = least_in_sync(config)
    times_named = await done_in_turns(counted((one.resource_type, one.resource_name) for one in asked))
    rows: list[Row] = []
    async for some in slices_in_turns(asked, RESOURCES_A_COMMIT):
        resources = await done_in_turns(changes(some, change, replace_all=replace_all))
        command = AlterConfigs(
            resources, config, metadata.broker_id, kept, least, times_named, validate_only, expected, seen
        )
        results = await executed(metadata, command)
        if isinstance(results, Refusal):
            rows += [row(results.error, results.message, one.kind, one.name) for one in resources]
        else:
            rows += [row(one.error, one.message, one.kind, one.name) for one in results]
    return rows


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
