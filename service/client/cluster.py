"""What a client knows of a cluster. It finds leaders and coordinators, and asks again when something has moved.

What always holds: nothing waits longer than the timeout, counted by the loop's clock; a broker that can't be reached
ends in a `ClientFailure` that names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from log.ids import TopicPartition
from service.client.failures import ClientFailure, FailureKind, refused
from service.client.pool import Address, Pool
from service.wire.base import Request, Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    FindCoordinatorRequest,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)

R = TypeVar("R", bound=Struct)

EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1

# Error codes after which the same request may succeed: a leader or coordinator has moved, or is about to.
MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_CONTROLLER,
    }
)
# Long enough not to burden a broker during an election, short enough for a person not to notice.
RETRY_PAUSE_S = 0.1


class Deadline:
    """The time at which a caller gives up, by the loop's clock."""

    def __init__(self, timeout_s: float) -> None:
        self._end = asyncio.get_running_loop().time() + timeout_s

    def remaining_s(self) -> float:
        return max(0.0, self._end - asyncio.get_running_loop().time())

    def passed(self) -> bool:
        return self.remaining_s() == 0.0


class Patience:
    """Tolerates unreachable brokers for a while, because brokers are restarted now and then."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline: Deadline | None = None

    def bear(self, error: ClientFailure) -> None:
        """Return if the caller should try again; otherwise raise the error."""
        self._deadline = self._deadline or Deadline(self._timeout_s)
        if error.kind is not FailureKind.UNREACHABLE or self._deadline.passed():
            raise error

    def restore(self) -> None:
        """The brokers can be reached again: the time begins anew with the next error."""
        self._deadline = None


class Cluster:
    """The brokers behind a list of bootstrap addresses."""

    def __init__(self, bootstrap: Sequence[Address], *, client_id: str, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._bootstrap = list(bootstrap)
        self._pool = Pool(client_id=client_id, timeout_s=timeout_s)
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._topics: dict[str, MetadataResponseTopic] = {}
        self.topic_names: dict[bytes, str] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.silent: dict[int, ClientFailure] = {}
        """Brokers that are known not to answer, and how they failed. Nothing waits for them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.close()

    # Asking

    async def ask(
        self, request: Request[R], *, node: int | None = None, wait_s: float = 0.0, version: int | None = None
    ) -> R:
        """Ask one broker: `node`, or any that can be reached. For the other arguments see `Pool.ask`."""
        address = await self._address(node)
        return await self._pool.ask(address, request, wait_s=wait_s, version=version)

    async def offers(self, request: Struct, *, node: int | None = None) -> bool:
        """Whether `node`, or any broker that can be reached, knows this kind of request at all."""
        client = await self._pool.client(await self._address(node))
        return client.offers(type(request))

    async def _address(self, node: int | None) -> Address:
        if node in self.silent:
            raise self.silent[node]
        if node is None:
            return await self._connected()
        if node not in self._brokers:  # another broker may have named it before
            raise ClientFailure(f"broker {node} is not in the cluster now", FailureKind.UNREACHABLE)
        return self._brokers[node]

    async def _connected(self) -> Address:
        """An address with a connection, or else the first bootstrap address that accepts one."""
        silent = {self._brokers[node] for node in self.silent if node in self._brokers}
        for address in [*self._pool.connected, *self._bootstrap]:
            if address in silent:
                failure = ClientFailure(f"{address} does not answer", FailureKind.UNREACHABLE)
                continue
            try:
                await self._pool.client(address)
            except ClientFailure as error:
                failure = error
            else:
                return address
        raise failure

    # Who is where

    async def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> list[MetadataResponseTopic]:
        """The cluster's metadata of topics (None: of all), including errors. The leaders are remembered."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        response = await self.ask(request)
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        self.controller_id = response.controller_id
        self.cluster_id = response.cluster_id
        for topic in response.topics:
            if topic.error_code or topic.name is None:
                continue
            self._topics[topic.name] = topic
            self.topic_names[topic.topic_id] = topic.name
            for partition in topic.partitions:
                self._leaders[TopicPartition(topic.name, partition.partition_index)] = partition.leader_id
        return response.topics

    async def topic(self, name: str, *, create: bool = False) -> MetadataResponseTopic:
        """The metadata of one existing topic, with a leader for every partition. If the topic is just being created,
        this waits for it.
        """
        deadline = Deadline(self.timeout_s)
        while True:
            (topic,) = await self.metadata([name], create=create)
            code = topic.error_code or next((each.error_code for each in topic.partitions if each.error_code), 0)
            if not code:
                return topic
            being_made = create and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if (code not in MOVED and not being_made) or deadline.passed():
                raise refused(f"topic {name}", code)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def eligible(self, topics: Iterable[str]) -> list[list[int]]:
        """For each partition of these topics: the replicas that may lead next although they are not in sync."""
        named = [DescribeTopicPartitionsRequestTopicRequest(name) for name in sorted(topics)]
        request = DescribeTopicPartitionsRequest(named)
        found: list[list[int]] = []
        while named and await self.offers(request):
            page = await self.ask(request)
            found += [each.eligible_leader_replicas or [] for topic in page.topics for each in topic.partitions]
            if (cursor := page.next_cursor) is None:
                break
            request.cursor = DescribeTopicPartitionsRequestCursor(cursor.topic_name, cursor.partition_index)
        return found

    def topic_id(self, name: str) -> bytes:
        return self._topics[name].topic_id if name in self._topics else bytes(16)

    async def leader(self, partition: TopicPartition) -> int:
        """The node that leads `partition`, as remembered, or else from fresh metadata."""
        if partition not in self._leaders:
            await self.topic(partition.topic)
        if partition not in self._leaders:
            raise ClientFailure(
                f"topic {partition.topic} has no partition {partition.partition}", FailureKind.NOT_FOUND
            )
        return self._leaders[partition]

    def forget_leader(self, partition: TopicPartition) -> None:
        self._leaders.pop(partition, None)

    async def nodes(self) -> list[int]:
        if not self._brokers:
            await self.metadata([])
        return sorted(self._brokers)

    async def controller(self) -> int:
        """The node that is the controller: it decides about topics."""
        if self.controller_id not in self._brokers:
            await self.metadata([])
        if self.controller_id not in self._brokers:
            raise ClientFailure("the cluster has no controller now", FailureKind.UNREACHABLE)
        return self.controller_id

    async def coordinator(self, group: str) -> int:
        """The node that coordinates `group`. If there is none yet, this waits for it."""
        deadline = Deadline(self.timeout_s)
        while True:
            request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
            response = await self.ask(request)
            found = response.coordinators[0] if response.coordinators else response
            if not found.error_code:
                self._brokers[found.node_id] = Address(found.host, found.port)
                return found.node_id
            if found.error_code not in MOVED or deadline.passed():
                raise refused(f"coordinator of group {group}", found.error_code, found.error_message)
            await asyncio.sleep(RETRY_PAUSE_S)

    # Offsets

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: int = READ_UNCOMMITTED, all_of_them: bool = True
    ) -> dict[TopicPartition, ListOffsetsPartitionResponse]:
        """For each partition the offset at a timestamp, or at EARLIEST or LATEST. If a leader has moved, the new one is
        asked.

        Unless `all_of_them` is set, partitions whose disk has failed are left out.
        """
        deadline = Deadline(self.timeout_s)
        found: dict[TopicPartition, ListOffsetsPartitionResponse] = {}
        failed: set[TopicPartition] = set()
        while len(found) + len(failed) < len(wanted):
            missing = [partition for partition in wanted if partition not in found and partition not in failed]
            code = 0
            for node, partitions in (await self.by_leader(missing)).items():
                request = _list_offsets_request(partitions, wanted, isolation)
                response = await self.ask(request, node=node)
                for topic in response.topics:
                    for answer in topic.partitions:
                        partition = TopicPartition(topic.name, answer.partition_index)
                        if not answer.error_code:
                            found[partition] = answer
                            continue
                        if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR and not all_of_them:
                            failed.add(partition)
                            continue
                        code, where = answer.error_code, partition
                        self.forget_leader(partition)
            if code:
                if (code not in MOVED and code != ErrorCode.OFFSET_NOT_AVAILABLE) or deadline.passed():
                    raise refused(f"offsets of {where.topic} partition {where.partition}", code)
                await asyncio.sleep(RETRY_PAUSE_S)
        return found

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Partitions by the node that leads them. If a partition has no leader, this waits for one."""
        leaders: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            deadline = Deadline(self.timeout_s)
            while (leader := await self.leader(partition)) not in self._brokers:
                if deadline.passed():
                    raise ClientFailure(
                        f"{partition.topic} partition {partition.partition} has no leader", FailureKind.UNREACHABLE
                    )
                self.forget_leader(partition)
                await asyncio.sleep(RETRY_PAUSE_S)
            leaders.setdefault(leader, []).append(partition)
        return leaders

    async def partitions_of(self, topic: str) -> list[TopicPartition]:
        found = await self.topic(topic)
        return [TopicPartition(topic, each) for each in sorted(part.partition_index for part in found.partitions)]


def _list_offsets_request(
    partitions: Sequence[TopicPartition], timestamps: Mapping[TopicPartition, int], isolation: int
) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[
                ListOffsetsPartition(partition_index=each.partition, timestamp=timestamps[each]) for each in of_topic
            ],
        )
        for name, of_topic in by_topic(partitions).items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics, timeout_ms=30_000)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """The partitions by topic, as requests on the wire list them."""
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics
