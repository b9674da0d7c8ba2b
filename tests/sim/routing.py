"""How a client of a simulated cluster finds its brokers: it asks for the leader of a partition and the coordinator of a
key, remembers, and asks again when it is told or fears that they are others. Now and then it asks the wrong broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from log.ids import TopicPartition
from service.wire.base import Request, Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DeleteRecordsRequest,
    DescribeBranchesRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndBranchesRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.sim.workload import Clients, Line, Unanswered

ResponseT = TypeVar("ResponseT", bound=Struct)

GROUP, TRANSACTION = 0, 1
ASTRAY = 0.01
"""How often a request goes to a broker that was not named for it."""
LEARNED_AGAIN = 0.05
"""How often the client asks who leads after an answer; perhaps it asks a broker that has not heard of a change yet."""

NOT_HERE = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NETWORK_EXCEPTION,
}

Place = TopicPartition | tuple[int, str] | None
"""A partition, or the kind and the key of what a coordinator keeps; None: any broker will do."""


def place_of(request: Struct) -> Place:
    match request:
        case ProduceRequest():
            [topic] = request.topic_data
            return TopicPartition(topic.name, topic.partition_data[0].index)
        case FetchRequest():
            [asked] = request.topics
            return TopicPartition(asked.topic, asked.partitions[0].partition)
        case ListOffsetsRequest() | DeleteRecordsRequest():
            [named] = request.topics
            return TopicPartition(named.name, named.partitions[0].partition_index)
        case DescribeProducersRequest():
            return TopicPartition(request.topics[0].name, request.topics[0].partition_indexes[0])
        case WriteTxnMarkersRequest():
            [written] = request.markers[0].topics
            return TopicPartition(written.name, written.partition_indexes[0])
        case OffsetCommitRequest() | OffsetFetchRequest() | TxnOffsetCommitRequest():
            return GROUP, request.group_id
        case AddOffsetsToTxnRequest() | EndTxnRequest():
            return TRANSACTION, request.transactional_id
        case AddPartitionsToTxnRequest():
            return TRANSACTION, request.v3_and_below_transactional_id
        case InitProducerIdRequest():
            return None if request.transactional_id is None else (TRANSACTION, request.transactional_id)
        case EndBranchesRequest():
            return TRANSACTION, request.root
        case DescribeTransactionsRequest():
            return TRANSACTION, request.transactional_ids[0]
        case DescribeBranchesRequest():
            return TRANSACTION, request.roots[0]
        case _:
            return None


def codes_in(message: Struct) -> Iterator[int]:
    """Every error code of an answer."""
    for name in type(message).field_names:
        value = getattr(message, name)
        if name == "error_code":
            yield value
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Struct):
                yield from codes_in(each)


class Router:
    """To its actor what a `Line` is, over all brokers."""

    def __init__(self, clients: Clients, name: str, brokers: tuple[str, ...]) -> None:
        self.number = 0
        self._clients = clients
        self._brokers = brokers
        self._chance = clients.world.stream(f"router/{name}")
        self._lines = {broker: Line(clients, name, broker) for broker in brokers}
        self._known: dict[Place, str] = {}
        self._looking: dict[Place, asyncio.Task[None]] = {}

    async def ready(self, request: Struct | None = None) -> None:
        """Wait until the broker for this request is known and connected."""
        if request is not None:
            await self._lines[await self._find(place_of(request))].ready()

    def drop(self) -> None:
        for line in self._lines.values():
            line.drop()

    async def ask(
        self, request: Request[ResponseT], version: int | None = None, *, leaves: Callable[[int], None] = lambda _: None
    ) -> ResponseT:
        place = place_of(request)
        broker = await self._find(place)
        line = self._lines[broker]
        try:
            answer = await line.ask(request, version, leaves=leaves)
        except Unanswered:
            self._known.pop(place, None)
            raise
        self._clients.answered(broker, request)
        self.number = line.number
        if any(code in NOT_HERE for code in codes_in(answer)) or self._chance.random() < LEARNED_AGAIN:
            self._known.pop(place, None)
        return answer

    async def _find(self, place: Place) -> str:
        """The broker for this place. Requests about the same place that were made one after the other get their broker
        in that order, so they leave in it.
        """
        if place is None:
            return self._chance.choice(self._brokers)
        if self._chance.random() < ASTRAY:
            self._known[place] = self._chance.choice(self._brokers)
        if place not in self._known:
            looking = self._looking.get(place)
            if looking is None:
                looking = self._looking[place] = asyncio.get_running_loop().create_task(self._learn(place))
                looking.add_done_callback(lambda _: self._looking.pop(place))
            await asyncio.wait([looking])
            if (error := looking.exception()) is not None:
                raise Unanswered(str(error)) from error
        known = self._known.get(place)
        if known is None:
            raise Unanswered(f"nobody is named for {place}")
        return known

    async def _learn(self, place: Place) -> None:
        asked = self._lines[self._chance.choice(self._brokers)]
        if isinstance(place, TopicPartition):
            await self._learn_leaders(asked, place.topic)
        elif place is not None:
            await self._learn_coordinator(asked, place)

    async def _learn_leaders(self, line: Line, topic: str) -> None:
        names = {address: name for name, address in self._clients.node_ids.items()}
        answer = await line.ask(MetadataRequest([MetadataRequestTopic(name=topic)], False), 12)
        for described in answer.topics:
            for partition in described.partitions:
                if partition.leader_id in names:
                    self._known[TopicPartition(topic, partition.partition_index)] = names[partition.leader_id]

    async def _learn_coordinator(self, line: Line, place: tuple[int, str]) -> None:
        kind, key = place
        answer = await line.ask(FindCoordinatorRequest(key=key, key_type=kind), 3)
        if answer.error_code == ErrorCode.NONE:
            names = {address: name for name, address in self._clients.node_ids.items()}
            self._known[place] = names[answer.node_id]
