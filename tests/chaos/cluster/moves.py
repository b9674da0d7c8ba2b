"""Partitions get other replicas, or the same in another order, while they are written to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from service.client.cluster import Cluster as Client
from service.client.failures import ClientFailure
from service.client.pool import Address
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    MetadataResponseTopic,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.chaos.cluster.machines import BROKER_PORT, Cluster

PARTITIONS_AT_ONCE = 6
NOT_UNDER_WAY = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS

Choice = Callable[[list[int]], list[int] | None]
"""From a partition's replicas to those it shall have; None takes back what is under way."""


def move_something(cluster: Cluster, chance: random.Random) -> None:
    brokers = list(cluster.brokers)

    def another(replicas: list[int]) -> list[int] | None:
        if chance.random() < 0.2:
            return None
        size = 2 if len(replicas) == len(brokers) and chance.random() < 0.6 else len(brokers)
        return chance.sample(brokers, size)

    _ask(cluster, lambda topics: chance.sample(topics, min(PARTITIONS_AT_ONCE, len(topics))), another)


def make_whole(cluster: Cluster) -> None:
    """Every partition is to be held by every broker. To ask for that again changes nothing. To cancel what goes on
    where all are named would take back what an earlier call has asked for, if that is slow.
    """
    brokers = list(cluster.brokers)
    _ask(cluster, lambda topics: topics, lambda replicas: brokers)


Found = tuple[str, int, list[int]]
"""Topic, partition, replicas."""


def _ask(cluster: Cluster, choose: Callable[[list[Found]], list[Found]], target: Choice) -> None:
    try:
        asyncio.run(_carry_out([broker.place.host for broker in cluster.brokers.values()], choose, target))
    except ClientFailure as failure:
        raise OSError(failure.message) from None


async def _carry_out(hosts: Sequence[str], choose: Callable[[list[Found]], list[Found]], target: Choice) -> None:
    bootstrap = [Address(host, BROKER_PORT) for host in hosts]
    async with Client(bootstrap, client_id="chaos", timeout_s=5.0) as client:
        told: list[MetadataResponseTopic] = await client.metadata(None)
        found = [
            (topic.name or "", each.partition_index, each.replica_nodes) for topic in told for each in topic.partitions
        ]
        request = AlterPartitionReassignmentsRequest(timeout_ms=5_000)
        for name, index, replicas in choose(sorted(found)):
            wanted = target(list(replicas))
            request.topics.append(ReassignableTopic(name, [ReassignablePartition(index, wanted)]))
        answer = await client.ask(request)
        for topic in answer.responses:
            for each in topic.partitions:
                if each.error_code not in (ErrorCode.NONE, NOT_UNDER_WAY):
                    raise OSError(f"{topic.name}-{each.partition_index}: {each.error_message}")
