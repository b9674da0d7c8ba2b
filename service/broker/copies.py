"""Finds out what the living replicas have of a partition, when none is alive that is known to hold everything. They are
asked before one of them is let lead, uncleanly.

What always holds: this ends within `WITHIN_S`, also where no broker answers.
"""

import asyncio
from collections.abc import Mapping, Sequence

from log.ids import TopicPartition
from service.broker.peers import PeerAway, Peers
from service.cluster.election import best_first
from service.ports import Tasks
from service.turns import Turn, breathe, in_turns
from service.wire.error_codes import ErrorCode
from service.wire.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

WITHIN_S = 2.0
DEBUGGING = -2
"""The replica id with which any replica is asked for its own log, in Kafka too."""
LATEST = -1
NAMED_A_TURN = 1_000

Told = dict[int, tuple[int, int]]
"""The last leader epoch and the end offset of the copies of those brokers that have answered."""


class Copies:
    def __init__(self, peers: Peers, tasks: Tasks) -> None:
        self._peers = peers
        self._tasks = tasks

    async def best_first(
        self, candidates: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas of each partition in the order in which they should lead. Of those that are equal, or do not
        answer, the one that came first in `candidates` comes first.
        """
        told = await self._told({each: replicas for each, replicas in candidates.items() if len(replicas) > 1})
        named = in_turns(candidates.items(), NAMED_A_TURN)
        return {each: best_first(replicas, told.get(each, {})) async for each, replicas in named}

    async def without_any(
        self, candidates: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, Sequence[int]]:
        """Those of which all replicas answer that they have nothing."""
        told = await self._told(candidates)
        return {
            partition: replicas
            async for partition, replicas in in_turns(candidates.items(), NAMED_A_TURN)
            if (ends := told.get(partition, {})).keys() >= set(replicas) and not any(end for _, end in ends.values())
        }

    async def _told(self, candidates: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, Told]:
        turn = Turn(NAMED_A_TURN)
        asked: dict[int, dict[str, list[int]]] = {}
        for (topic, index), replicas in candidates.items():
            if turn.is_over():
                await breathe()
            for broker in replicas:
                asked.setdefault(broker, {}).setdefault(topic, []).append(index)
        told: dict[TopicPartition, Told] = {}
        asking = [
            self._tasks.spawn(f"ask broker {broker} for its copies", self._ask(broker, partitions, told))
            for broker, partitions in asked.items()
        ]
        if asking:
            _, late = await asyncio.wait(asking, timeout=WITHIN_S)
            for task in late:
                task.cancel()
        return told

    async def _ask(self, broker: int, partitions: Mapping[str, list[int]], told: dict[TopicPartition, Told]) -> None:
        topics = [
            ListOffsetsTopic(name, [ListOffsetsPartition(index, timestamp=LATEST) for index in indexes])
            for name, indexes in partitions.items()
        ]
        try:
            answer = await self._peers.ask(broker, ListOffsetsRequest(replica_id=DEBUGGING, topics=topics))
        except PeerAway:
            return
        turn = Turn(NAMED_A_TURN)
        for topic in answer.topics:
            for each in topic.partitions:
                if turn.is_over():
                    await breathe()
                if each.error_code == ErrorCode.NONE:
                    partition = TopicPartition(topic.name, each.partition_index)
                    told.setdefault(partition, {})[broker] = each.leader_epoch, each.offset
