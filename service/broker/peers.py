"""Asks other brokers of the cluster, at the addresses that they have registered.

What always holds: a question ends in its answer or in `PeerAway`. `PeerAway` does not say whether the question was
carried out. A broker answers the questions on one connection in their order, so questions that may take long use a lane
(a connection) of their own.
"""

from typing import TypeVar

from service.broker.replication import address_of
from service.client.failures import ClientFailure
from service.client.pool import Address, Pool
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import BrokerConfig
from service.wire.base import Request, Struct

R = TypeVar("R", bound=Struct)


class PeerAway(Exception):
    """No answer came. With `may_come_late` the question may have been sent, and may be carried out at any time."""

    def __init__(self, message: str = "", *, may_come_late: bool = False) -> None:
        super().__init__(message)
        self.may_come_late = may_come_late


class Peers:
    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata, *, lanes: int, timeout_s: float) -> None:
        self._config = config
        self._metadata = metadata
        self._pools = [Pool(client_id="oncelog-broker", timeout_s=timeout_s) for _ in range(lanes)]

    def is_there(self, broker_id: int) -> bool:
        return broker_id in self._metadata.image.brokers

    async def ask(self, broker_id: int, request: Request[R], *, lane: int = 0, wait_s: float = 0.0) -> R:
        broker = self._metadata.image.brokers.get(broker_id)
        if broker is None:
            raise PeerAway(f"broker {broker_id} is not registered")
        address = Address(*address_of(broker, self._config.inter_broker_listener_name))
        pool = self._pools[lane % len(self._pools)]
        sent = False
        try:
            await pool.client(address)
            sent = True
            return await pool.ask(address, request, wait_s=wait_s)
        except ClientFailure as failure:
            raise PeerAway(failure.message, may_come_late=sent) from None

    async def close(self) -> None:
        for pool in self._pools:
            await pool.close()
