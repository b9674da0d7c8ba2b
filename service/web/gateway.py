"""The way from HTTP to the cluster: it finds leaders and coordinators, and asks them.

Every question is one of Kafka's version-free messages, and goes to the broker that can answer it. If that is this
broker, the handler that serves the wire gets the message without socket and codec. Otherwise it goes to the other
broker's listener.

What always holds: no answer is made up here. A broker that no longer leads or coordinates says so by its error code,
which also tells whether anything was done.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from aiohttp import (
    ClientConnectionError,
    ClientConnectorError,
    ClientHandlerType,
    ClientOSError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ServerDisconnectedError,
    TCPConnector,
)

from log.ids import TopicId, TopicPartition
from monitoring.scraping import Scraper
from service.api import incremental_alter_configs, init_producer_id
from service.api.routes import OFFERED, ROUTES
from service.broker.coordination import Coordination
from service.broker.internal_topics import InternalTopic
from service.broker.log_folder import LogFolder
from service.broker.node import Broker
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, NotCoordinator
from service.client.cluster import MOVED, Cluster
from service.client.connection import api_key_of
from service.client.failures import ClientFailure, FailureKind
from service.client.pool import Address, Pool
from service.cluster.image import NO_LEADER, Image, PartitionState, Topic
from service.groups.consumer_group import ConsumerGroup
from service.net.door import Held
from service.web.holding import Holding
from service.web.problems import Problem, of_error
from service.wire.base import Request, Struct
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from service.wire.messages.versions import NEWEST_IS_UNSTABLE

if TYPE_CHECKING:
    from service.web.following import SharedReading
    from service.web.idempotency import Keys
    from service.web.instances import Instances
    from service.web.members import Members
    from service.web.producers import ProducerPool
    from service.web.routing import Route
    from service.web.sending import ProducerIds
    from service.web.sharing import Sharing
    from service.web.transactions import OpenTransactions

R = TypeVar("R", bound=Struct)
T = TypeVar("T")

CLIENT_ID = "oncelog-http"
TIMEOUT_S = 30.0
PAUSE_S = 0.02
"""The pause before asking again about something that is just being created or elected."""
ENDED_WITHIN_S = 1.0
"""How long a server that stops waits for what it ends: transactions are aborted, if their coordinators answer."""
ASKING: ContextVar[Session] = ContextVar("asking")
"""The session of the client whose HTTP request is being served."""
NEWEST = {key: newest - (key in NEWEST_IS_UNSTABLE) for key, (_, newest) in OFFERED.items()}


@dataclass(frozen=True, slots=True)
class Here:
    """What only those use who show how this broker is: pages, health and metrics."""

    folders: Sequence[LogFolder]
    coordination: Coordination
    scraper: Scraper


class Outgoing:
    """The requests that have a connection to another broker for themselves. They must not use up the descriptors that
    logs need.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self._by_node: Counter[int] = Counter()

    def has_room(self, node: int, most: int = sys.maxsize) -> bool:
        """`most`: how many there may be to this broker."""
        return self._by_node.total() < self._most and self._by_node[node] < most

    @contextmanager
    def to(self, node: int, most: int = sys.maxsize) -> Iterator[None]:
        if not self.has_room(node, most):
            raise Problem("not-now", f"too many requests wait for broker {node} or others already")
        self._by_node[node] += 1
        try:
            yield
        finally:
            self._by_node[node] -= 1


class Gateway:
    """The ways to ask this broker and others, and the two parts that are used without asking: the partitions to read
    from, and what writing to them takes.
    """

    def __init__(self, broker: Broker, scraper: Scraper, outgoing_max: int = sys.maxsize) -> None:
        self.env = broker.env
        self.config = broker.config
        self.partitions = broker.partitions
        self.writing = broker.writing
        self.ready = broker.ready
        self.here = Here(broker.folders, broker.coordination, scraper)
        self.pages: object | None = None
        """What the pages keep from one drawing to the next."""
        self.closing = asyncio.Event()
        self.holding = Holding(most if (most := self.config.queued_max_request_bytes) >= 0 else sys.maxsize)
        self.routes: Sequence[Route]
        self.document: bytes | None = None
        """The OpenAPI document, made at the first request for it."""
        self.producer_ids: ProducerIds
        self.producers: ProducerPool
        self.keys: Keys
        self.sharing: Sharing
        self.open_transactions: OpenTransactions
        self.members: Members
        self.instances: Instances
        self.reading: SharedReading
        """Set by the server, because these need the gateway."""
        self._metadata = broker.metadata
        self._internal_topics = broker.coordination.internal_topics
        self._turn = 0
        self._waiting: dict[asyncio.Task[Any], None] = {}  # in order: a simulated stop is the same each time
        self._ends: dict[asyncio.Task[Any], None] = {}
        self._is_over = False
        self._http: ClientSession | None = None
        self.outgoing = Outgoing(outgoing_max)
        self._handlers = {key: route.bound(broker) for key, route in ROUTES.items()}
        self._tally = broker.requests
        self._now_s = broker.env.clock.monotonic
        self._pool = Pool(client_id=CLIENT_ID, timeout_s=TIMEOUT_S)
        self._listener = broker.config.endpoints[0].listener
        self.own_session = Session(CLIENT_ID, 0, listener=self._listener)
        """The session for this broker's own questions."""

    @property
    def image(self) -> Image:
        return self._metadata.image

    @property
    def cluster(self) -> Inside:
        """A new one for each request: it remembers brokers and leaders, and so must not outlive them."""
        return Inside(self)

    @property
    def node_id(self) -> int:
        return self._metadata.broker_id

    @property
    def epoch(self) -> int:
        """Which life of this broker it is; -1 while it is not registered."""
        return self._metadata.broker_epoch

    @property
    def in_session(self) -> bool:
        return self._metadata.in_session

    @property
    def why_out_of_session(self) -> str:
        """Why this broker may not act on what the metadata gives it; empty while it may."""
        return self._metadata.why_out_of_session

    def end_waiting(self) -> None:
        """End streams and long polls. Requests that write go on."""
        self.closing.set()
        for task in list(self._waiting):
            task.cancel()

    def see_through(self, end: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """The end of a transaction: it goes on without the request that asks for it, but not without the server."""
        if self._is_over:
            end.close()
            raise asyncio.CancelledError
        task = asyncio.get_running_loop().create_task(end)
        self._ends[task] = None
        task.add_done_callback(self._ends.pop)
        return asyncio.shield(task)

    async def close(self, requests: Iterable[asyncio.Task[Any]]) -> None:
        """End these requests, which have not ended in time, and all that is written for others. Then close the
        connections to other brokers. Nothing asks them, or this broker, any more.
        """
        asked = [*requests, *self.sharing.end()]
        for task in asked:
            task.cancel()
        if asked or self._ends:
            await asyncio.wait([*asked, *self._ends], timeout=ENDED_WITHIN_S)
        self._is_over = True
        if left := [task for task in (*asked, *self._ends) if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=ENDED_WITHIN_S)
        await self._pool.close()
        if self._http is not None:
            await self._http.close()

    @contextmanager
    def waiting(self, most: int | None = None) -> Iterator[None]:
        """For code that only waits for something to tell: it ends when the server stops. Streams, which wait as long as
        their clients like, say how many may wait at `most`.
        """
        if most is not None and len(self._waiting) >= most:
            raise Problem("too-many-streams", f"{most} streams are open at this broker")
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = None
        is_stream = most is not None
        self._tally.http.streams += is_stream
        try:
            yield
        finally:
            self._tally.http.streams -= is_stream
            self._waiting.pop(task, None)

    def count_replayed(self) -> None:
        """A request got the answer of an earlier one here, at the broker that remembers its key."""
        self._tally.http.replayed += 1

    def http(self) -> ClientSession:
        """For requests that are forwarded to other brokers. Each has a connection, as its client has: were there fewer,
        a hundred members that wait for records would hold up everything else that is forwarded.
        """
        if self._http is None:
            self._http = ClientSession(
                connector=TCPConnector(limit=0),
                timeout=ClientTimeout(total=2 * TIMEOUT_S),
                auto_decompress=False,
                max_field_size=sys.maxsize,  # another broker's word is passed on, however long a token in it is
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                middlewares=(_once,),
            )
        return self._http

    def next_turn(self) -> int:
        """A number that differs each time."""
        self._turn += 1
        return self._turn

    # Who is where

    def topic(self, name: str) -> Topic:
        topic = self.image.topics.get(name)
        if topic is None:
            raise Problem("unknown-topic", f"topic {name!r} does not exist", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def same_topic(self, name: str, topic_id: TopicId) -> Topic:
        """The topic, if it still is the one with this id. One that was made again under its name has other records."""
        topic = self.topic(name)
        if topic.id != topic_id:
            again = f"topic {name!r} was deleted, and made again"
            raise Problem("unknown-topic", again, error=ErrorCode.UNKNOWN_TOPIC_ID)
        return topic

    def state(self, partition: TopicPartition) -> PartitionState:
        state = self.image.partition(partition)
        if state is None:
            self.topic(partition.topic)
            raise Problem(
                "unknown-topic",
                f"topic {partition.topic!r} has no partition {partition.partition}",
                error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        return state

    def leader(self, partition: TopicPartition) -> int:
        """The leader of the partition. Raises a problem if there is none."""
        leader = self.state(partition).leader
        if leader == NO_LEADER:
            where = f"{partition.topic} partition {partition.partition} has no leader now"
            raise Problem("not-now", where, error=ErrorCode.LEADER_NOT_AVAILABLE)
        return leader

    def needed_by(self, partitions: Iterable[TopicPartition]) -> frozenset[int]:
        """The brokers without which nothing is promised that is written to these partitions: their leaders, and all
        that are in sync. Writes with the same may wait for each other, and no others.
        """
        states = filter(None, map(self.image.partition, partitions))
        return frozenset([node for state in states for node in (state.leader, *state.isr)])

    def home(self, topic: InternalTopic, key: str) -> TopicPartition:
        """The partition whose leader coordinates the key."""
        made = self.image.topics.get(topic.name)
        return TopicPartition(topic.name, 0 if made is None else topic.partition_of(key, len(made.partitions)))

    def stamp_of(self, group: str) -> tuple[int, int, int] | None:
        """Another one says that some member of the group may get other partitions. None: this broker does not know."""
        try:
            known = self.here.coordination.groups.shard(group).machine.group(group)
        except (NotCoordinator, CoordinatorLoading):
            return None
        return known.stamp if isinstance(known, ConsumerGroup) else None

    async def coordinator(self, topic: InternalTopic, key: str) -> int:
        """The coordinator of the key. If its internal topic is just being created, that is waited for."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while True:
            found = self._internal_topics.coordinator_of(topic, key, self._listener)
            if not isinstance(found, ErrorCode):
                return found.node_id
            if asyncio.get_running_loop().time() > deadline:
                raise of_error(found, f"nobody coordinates {key!r} now")
            await asyncio.sleep(PAUSE_S)

    # Asking

    @property
    def _waiting_max(self) -> int:
        """How many requests may wait at another broker. It counts the connections of this one's address, those by which
        it is copied, too.
        """
        return max(self.config.max_connections_per_ip // 2, 1)

    def may_wait_at(self, node: int) -> bool:
        """Whether there is room for one more request that waits at another broker on purpose."""
        return self.outgoing.has_room(node, self._waiting_max)

    async def ask(
        self,
        node: int,
        request: Request[R],
        *,
        session: Session | None = None,
        wait_s: float = 0.0,
        needs: frozenset[int] | None = None,
    ) -> R:
        """The answer of a broker. Raises ClientFailure if there is none.

        Without a session, the rules are checked here for the client that is being served, because the other broker sees
        only this broker. `needs`: the brokers that the other one may have to wait for before it answers. Its answers
        come in the order of the requests, so a slow broker must not hold up what does not need it.
        """
        key = api_key_of(type(request))
        session = session or ASKING.get(self.own_session)
        refusal = ROUTES[key].refusal(session, request)
        if refusal is not None:
            return cast(R, refusal)
        if node != self.node_id:
            address = self._address(node)
            if wait_s <= 0:
                return await self._pool.ask(address, request, lane=needs)
            with self.outgoing.to(node, self._waiting_max):
                return await self._pool.ask(address, request, wait_s=wait_s)
        header, began_s = RequestHeader(key, NEWEST[key], 0, CLIENT_ID), self._now_s()
        answer: Any = self._handlers[key](session, header, request)
        if isinstance(answer, Held):
            answer = await answer.first
        if isinstance(answer, Awaitable):
            answer = await answer
        self._tally.answered(ROUTES[key].name, answer, self._now_s() - began_s)
        if session.pinned:  # the caller takes what was read before it lets others have a turn
            asyncio.get_running_loop().call_soon(session.unpin)
        return cast(R, answer)

    async def offers(self, node: int, request: Struct) -> bool:
        """Whether a broker knows this kind of request: it may be of an older version."""
        return node == self.node_id or (await self._pool.client(self._address(node))).offers(type(request))

    def _address(self, node: int) -> Address:
        broker = self.image.brokers.get(node)
        endpoint = None if broker is None else broker.endpoint(self._listener) or broker.endpoints[0]
        if endpoint is None:
            raise ClientFailure(f"broker {node} is away", FailureKind.UNREACHABLE)
        return Address(endpoint.host, endpoint.port)

    async def take_over(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Take over a transactional id that this broker coordinates, if its owner has no transaction ongoing. The wire
        can't say that, and who looks first and takes over then may be too late.
        """
        key, session = api_key_of(InitProducerIdRequest), ASKING.get(self.own_session)
        refusal = ROUTES[key].refusal(session, request)
        if refusal is not None:
            return cast(InitProducerIdResponse, refusal)
        header, here = RequestHeader(key, NEWEST[key], 0, CLIENT_ID), self.here.coordination
        return await init_producer_id.take_over(
            here.transactions, here.producer_ids, header, request, spares_ongoing=True
        )

    async def ask_coordinator(self, topic: InternalTopic, key: str, request: Request[R]) -> R:
        """Ask the coordinator. Ask again while the answer's first error code says that it is moving or loading."""
        return (await self.ask_to_change(topic, key, request))[0]

    async def ask_to_change(self, topic: InternalTopic, key: str, request: Request[R]) -> tuple[R, bool]:
        """The coordinator's answer, and whether another one may have done before what it was asked for: one that stops
        leading may have. So if the answer is a refusal, something may have changed all the same. If no other one
        answers afterwards, the failure says that it may have been carried out.
        """
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        in_doubt = False
        while True:
            try:
                node = await self.coordinator(topic, key)
                answer = await self.ask(node, request, needs=self.needed_by([self.home(topic, key)]))
            except (Problem, ClientFailure) as failure:
                if not in_doubt:
                    raise
                raise ClientFailure(str(failure), FailureKind.UNREACHABLE, may_come_late=True) from None
            code = first_error(answer)
            if code not in MOVED:
                return answer, in_doubt
            in_doubt = in_doubt or code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # said before anything is done
            if asyncio.get_running_loop().time() > deadline:
                if not in_doubt:
                    return answer, in_doubt
                message = f"the coordinator of {key!r} is moving"
                raise ClientFailure(message, FailureKind.UNREACHABLE, may_come_late=True)
            await asyncio.sleep(PAUSE_S)

    async def alter_configs(
        self, request: IncrementalAlterConfigsRequest, expected: Collection[str] | None
    ) -> IncrementalAlterConfigsResponse:
        """Change settings, if they are of one of the `expected` versions. The wire can't say that, so it is decided
        here, as every broker may.
        """
        refusal = ROUTES[api_key_of(type(request))].refusal(ASKING.get(self.own_session), request)
        if refusal is not None:
            return cast(IncrementalAlterConfigsResponse, refusal)
        return await incremental_alter_configs.alter(self._metadata, self.config, request, expected)

    async def ask_controller(self, request: Request[R]) -> R:
        controller = self.image.controller_id
        return await self.ask(controller if controller >= 0 else self.node_id, request)


class Inside(Cluster):
    """The cluster as the client library sees it, asked from inside the broker."""

    def __init__(self, gateway: Gateway, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__([], client_id=CLIENT_ID, timeout_s=timeout_s)
        self._gateway = gateway

    async def ask(
        self, request: Request[R], *, node: int | None = None, wait_s: float = 0.0, version: int | None = None
    ) -> R:
        return await self._gateway.ask(self._gateway.node_id if node is None else node, request, wait_s=wait_s)

    async def offers(self, request: Struct, *, node: int | None = None) -> bool:
        return await self._gateway.offers(self._gateway.node_id if node is None else node, request)


async def _once(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Send the request once. aiohttp sends most methods again when these errors come; but a poll that is sent again
    brings what follows the answer that was lost.
    """
    try:
        return await send(request)
    except ClientConnectorError:
        raise
    except (ClientOSError, ServerDisconnectedError) as error:
        raise ClientConnectionError(str(error)) from None


def not_yet(code: int) -> int:
    """What is meant by a broker that leads a partition and does not know it: it has not heard of it yet, or it has just
    been given away. (If the topic is deleted, this broker hears of that, too.)
    """
    is_unknown = code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    return ErrorCode.LEADER_NOT_AVAILABLE if is_unknown else code


def first_error(answer: Any) -> int:
    """The first error code in an answer, in whichever field it is."""
    code = getattr(answer, "error_code", 0) or getattr(answer, "partition_error_code", 0)
    if code:
        return int(code)
    for name in getattr(answer, "__slots__", ()):
        value = getattr(answer, name)
        if isinstance(value, list):
            for each in value:
                if isinstance(each, Struct) and (code := first_error(each)):
                    return code
    return 0
