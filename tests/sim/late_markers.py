"""A fault of a simulated cluster: a marker that one broker sends to another lies in the network, and arrives when its
producer is in another transaction. Meanwhile the coordinator that has sent it may be loaded again in its leader epoch.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from log.ids import TopicPartition
from service.broker.marker_courier import EPOCH_NAMES_TRANSACTION
from service.broker.node import Broker
from service.broker.partition import Partition
from service.broker.peers import PeerAway
from service.wire.base import Struct
from service.wire.messages import WritableTxnMarker, WriteTxnMarkersRequest
from tests.sim.world import come_true

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterSimulation

SENT_WITHIN, NEXT_WITHIN, LOOKED_AT_EVERY = 3.0, 3.0, 0.002
LOST_AFTER = 0.1
"""Virtual seconds. The connection is lost so soon, because the courier sends nothing else on it until it has given up
the answer, and so the next transaction does not begin.
"""
LOADED_AGAIN = 0.8


class LateMarkers:
    """The markers of one request."""

    def __init__(self, simulation: ClusterSimulation, chance: random.Random) -> None:
        self._simulation = simulation
        self._chance = chance
        self._sender = ""
        self._request: WriteTxnMarkersRequest | None = None
        self._ended: dict[tuple[TopicPartition, int], int] = {}
        """The transactions that the markers are to end, by their first offsets."""

    async def befall(self) -> None:
        everybody = [
            (name, broker.coordination.marker_courier._peers) for name, broker in self._simulation.brokers.items()
        ]
        for name, peers in everybody:
            peers.ask = self._kept(name, peers.ask)  # type: ignore[method-assign]
        await come_true(lambda: self._request is not None, within=SENT_WITHIN)
        for _, peers in everybody:
            del peers.ask
        if self._request is None or self._sender not in self._simulation.brokers:
            return
        if self._chance.random() < LOADED_AGAIN:
            befalls = self._chance.choice((_lose_the_lease_for_a_moment, _give_up_all_decisions))
            self._do(self._sender, partial(befalls, self._simulation.brokers[self._sender]))
        await come_true(self._others_are_open, within=NEXT_WITHIN, every=LOOKED_AT_EVERY)
        self._arrive()

    def _kept(self, name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        """Those of newer clients end no other transaction, and are not worth a wait."""

        async def ask_in_vain(broker_id: int, request: Struct, **how: Any) -> Any:
            if self._request is not None or not isinstance(request, WriteTxnMarkersRequest):  # it asks of epochs, too
                return await ask(broker_id, request, **how)
            if all(marker.transaction_version >= EPOCH_NAMES_TRANSACTION for marker in request.markers):
                return await ask(broker_id, request, **how)
            self._sender, self._request = name, request
            self._ended = self._open_now()
            await asyncio.sleep(LOST_AFTER)
            raise PeerAway("no answer", may_come_late=True)

        return ask_in_vain

    def _places(self) -> Iterator[tuple[str, Partition, WritableTxnMarker]]:
        """The markers, and the partitions that are to have them, where these are led now."""
        assert self._request is not None
        for marker in self._request.markers:
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    for name, broker in self._simulation.brokers.items():
                        partition = broker.partitions.get(TopicPartition(topic.name, index))
                        if partition is not None and partition.is_leading:
                            yield name, partition, marker

    def _open_now(self) -> dict[tuple[TopicPartition, int], int]:
        return {
            (partition.topic_partition, marker.producer_id): partition.stable.open_transactions[marker.producer_id]
            for _, partition, marker in self._places()
            if marker.producer_id in partition.stable.open_transactions
        }

    def _others_are_open(self) -> bool:
        return any(first_offset != self._ended.get(place) for place, first_offset in self._open_now().items())

    def _arrive(self) -> None:
        for name, partition, marker in self._places():
            write = partial(
                self._simulation.brokers[name].coordination.marker_writer.write,
                partition.topic_partition,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                commit=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
            self._do(name, write)

    def _do(self, name: str, what: Callable[[], object]) -> None:
        host = self._simulation.world.hosts[name]
        if host.alive and host.loop is not None:
            host.loop.call_soon(what)


def _lose_the_lease_for_a_moment(broker: Broker) -> None:
    if broker.metadata.in_session:
        broker.metadata.on_session_lost()
        broker.metadata.on_session_regained()


def _give_up_all_decisions(broker: Broker) -> None:
    """As if none could be written."""
    for shard in broker.coordination.transactions.shards():
        shard._give_up()
