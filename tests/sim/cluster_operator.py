"""The operator of a simulated cluster: gives partitions to other brokers, and lets preferred replicas lead."""

from __future__ import annotations

import asyncio

from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.sim.cluster_faults import ALONE
from tests.sim.workload import Actor, Clients, until_true

INTERNAL = (TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0))
PREFERRED = 0
PAUSES_S = (0.3, 1.0, 2.0)


class Operator(Actor):
    """Moves partitions, those of coordinators too, while everybody works. A reassignment that was begun comes to its
    end once everything has healed.
    """

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._pause_s = self.chance.choice(PAUSES_S)
        partitions = [*clients.partitions(), *INTERNAL]
        self._chosen = self.chance.sample(partitions, self.chance.choice((1, 3, len(partitions))))
        # Where memory and disks are lost, one replica is not enough for what was promised.
        self._counts = (2, 3, 3) if ALONE in self.plan.kinds else (1, 2, 3, 3)
        self._moved: dict[TopicPartition, list[int]] = {}

    async def turn(self) -> None:
        await asyncio.sleep(2 * self._pause_s * self.chance.random())
        partition = self.chance.choice(self._chosen)
        what = self.chance.random()
        if what < 0.5:
            self._moved[partition] = self._some_replicas(self._moved.get(partition, []))
            await self._move(partition, self._moved[partition])
        elif what < 0.7:
            await self._move(partition, None)
        else:
            await self._elect(partition)

    def _some_replicas(self, former: list[int]) -> list[int]:
        """Any; or first those that it was not moved to the last time, or those that are gone."""
        brokers, hosts = self.clients.node_ids, self.clients.world.hosts
        count = self.chance.choice(self._counts)
        drawn = self.chance.sample(list(brokers), len(brokers))
        first = self.chance.random()
        if first < 0.5:
            drawn.sort(key=lambda name: brokers[name] in former)
        elif first < 0.8:
            drawn.sort(key=lambda name: hosts[name].alive)
        return [brokers[name] for name in drawn[:count]]

    async def _move(self, partition: TopicPartition, replicas: list[int] | None) -> None:
        """Move the partition; with None, cancel its move."""
        wanted = ReassignableTopic(partition.topic, [ReassignablePartition(partition.partition, replicas)])
        answer = await self.line.ask(AlterPartitionReassignmentsRequest(topics=[wanted]))
        for code in (answer.error_code, *(each.error_code for topic in answer.responses for each in topic.partitions)):
            self.clients.judge_error(code, f"the reassignment of {partition}")

    async def _elect(self, partition: TopicPartition) -> None:
        wanted = ElectLeadersRequestTopicPartitions(partition.topic, [partition.partition])
        answer = await self.line.ask(ElectLeadersRequest(PREFERRED, [wanted]))
        self.clients.judge_error(answer.error_code, f"the election for {partition}")

    async def settle(self) -> None:
        if not await until_true(self.clients, self._nothing_moves):
            self.history.stuck.append(f"{self.name} waits for a reassignment that does not end")

    async def _nothing_moves(self) -> bool:
        answer = await self.line.ask(ListPartitionReassignmentsRequest())
        return answer.error_code == ErrorCode.NONE and not answer.topics
