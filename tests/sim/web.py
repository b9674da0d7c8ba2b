"""`python -m tests.sim.web`: the exactly-once workload by HTTP, at three to five brokers in one simulated world.

The brokers are those of tests/sim/cluster.py, with the HTTP API as it is: aiohttp serves on the simulated network, and
so do requests that one broker forwards to another. The clients of tests/sim/web_clients.py know nothing but HTTP.
Faults, course and promises are those of a cluster's run. tests/sim/many.py says what may be asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp.connector
from aiohttp import BaseConnector, ClientConnectorError, ClientRequest, ClientTimeout
from aiohttp.client_proto import ResponseHandler

import service.web.gateway
from service.broker.node import Broker
from service.net.server import Server
from service.process import listen
from service.settings.setting import MAX_INT
from service.web.app import WebServer
from tests.sim.checkers import Checker, NothingIsInvented
from tests.sim.cluster import ClusterReport, ClusterSimulation
from tests.sim.cluster_faults import ClusterFate
from tests.sim.many import Kind, main
from tests.sim.plan import add_transactions
from tests.sim.run import replaced
from tests.sim.transactions import CommittedReader
from tests.sim.web_branches import BranchDriver
from tests.sim.web_clients import (
    WEB_PORT,
    Contender,
    KeyedWriter,
    Member,
    Mover,
    PageReader,
    PlainWriter,
    SimpleWriter,
    Told,
    WebActor,
)
from tests.sim.web_others import EventWriter, InstanceReader
from tests.sim.web_streams import Follower, LineWriter
from tests.sim.workload import Actor, Clients, Creator, forever

INSTANCES_EXPIRE_MS = 5000
KINDS: dict[str, type[WebActor]] = {
    "keyed writer1": KeyedWriter,
    "keyed writer2": KeyedWriter,
    "simple writer": SimpleWriter,
    "plain writer": PlainWriter,
    "mover1": Mover,
    "mover2": Mover,
    "contender1": Contender,
    "contender2": Contender,
    "page reader": PageReader,
    "member1": Member,
    "member2": Member,
    "line writer": LineWriter,
    "event writer": EventWriter,
    "follower": Follower,
    "instance reader1": InstanceReader,
    "instance reader2": InstanceReader,
    "branch driver1": BranchDriver,
    "branch driver2": BranchDriver,
}


def web_actors(clients: Clients, brokers: Sequence[str]) -> list[Actor]:
    told = Told()
    return [kind(clients, name, brokers, told) for name, kind in KINDS.items()]


class InOrder(dict[ResponseHandler, None]):
    """A set that is walked in the order in which things were added."""

    def add(self, each: ResponseHandler) -> None:
        self[each] = None

    def remove(self, each: ResponseHandler) -> None:
        del self[each]

    def discard(self, each: ResponseHandler) -> None:
        self.pop(each, None)


class SimConnector(BaseConnector):
    """Connections of aiohttp's client over the simulated network."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # At its end it closes those in use: by their addresses, which differ from run to run, if they are in a set.
        self._acquired = InOrder()  # type: ignore[assignment]

    async def _create_connection(
        self, req: ClientRequest, traces: list[Any], timeout: ClientTimeout
    ) -> ResponseHandler:
        assert req.url.host is not None
        assert req.url.port is not None
        try:
            _, protocol = await self._loop.create_connection(self._factory, req.url.host, req.url.port)
        except OSError as error:
            raise ClientConnectorError(req.connection_key, error) from error
        return protocol


class WebDoor:
    """The HTTP API among a broker's listeners: closed before the others."""

    def __init__(self, web: WebServer) -> None:
        self.close = web.stop


@dataclass
class WebSimulation(ClusterSimulation):
    def __post_init__(self) -> None:
        super().__post_init__()
        plan = self.plan
        if not plan.transactional:
            add_transactions(plan, self.world.stream("plan of transactions"))
            self.history.topics.update({wanted.topic.name: wanted.topic for wanted in plan.topics})
        plan.settings["http.listeners"] = f"http://0.0.0.0:{WEB_PORT}"
        plan.settings["http.consumer.instance.timeout.ms"] = str(INSTANCES_EXPIRE_MS)

    def run(self) -> ClusterReport:
        world = self.world
        with (
            replaced(service.web.gateway, "TCPConnector", SimConnector),
            replaced(aiohttp.connector, "monotonic", lambda: world.now),  # it has taken the clock by its name
        ):
            return super().run()

    @property
    def _checkers(self) -> tuple[Checker, ...]:
        """All but `NothingIsInvented`. A record that a client has sent again may stand in a log twice, if one of the
        two was aborted. Readers must not see it twice.
        """
        return tuple(each for each in super()._checkers if not isinstance(each, NothingIsInvented))

    def _start(self) -> None:
        self._start_brokers()
        clients = self.clients
        creator = Creator(clients, "creator")
        actors = [*web_actors(clients, self.names), CommittedReader(clients, "committed reader")]
        for actor in (creator, *actors):
            self.world.host(actor.name, forever(actor.run))
        clients.expected = len(actors)
        self.fate = ClusterFate(self, [actor.name for actor in (creator, *actors)])
        self.world.host("fate", forever(self.fate.run))
        self.world.host("judge", forever(self._conduct))

    def _is_at_rest(self) -> bool:
        """A request goes on at its broker though its client asks no more, and may still write."""
        return super()._is_at_rest() and not any(each.requests.http.under_way for each in self.brokers.values())

    async def _listen(self, broker: Broker) -> list[Server[Any] | WebDoor]:
        web = WebServer(broker, MAX_INT)
        await web.start(broker.config.web_endpoints)
        servers = await listen(broker, web=web.endpoints)
        web.begin()
        return [WebDoor(web), *servers]


def run(seed: int, *, trace: bool = False, tamper: Callable[[WebSimulation], None] = lambda _: None) -> ClusterReport:
    simulation = WebSimulation(seed, trace)
    tamper(simulation)
    return simulation.run()


KIND = Kind(WebSimulation, "sim-web", ("callbacks", "written", "acknowledged", "read", "elections"))

if __name__ == "__main__":
    sys.exit(main(KIND, prog="python -m tests.sim.web", description=(__doc__ or "").splitlines()[0]))
