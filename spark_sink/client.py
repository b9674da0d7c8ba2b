"""A small blocking Kafka client over kio: what Spark's plain, synchronous Python workers need, and no more.

A `Client` belongs to one thread of one process. What always holds:

- A connection is answered in the order it was asked, so any number of requests may be under way on it: `send` now,
  `Pending.result()` later, in any order. (Many large requests and many large answers at once on one connection would
  block each other; producing and fetching each have only one of the two.)
- A connection that failed in any way, silence included, is closed and fails everything that waits on it with
  `ConnectionLost`; the next request opens a new one.
- Only `retrying` tries again, and only until its deadline. It forgets leaders and coordinators before each new try.

Each request is sent in the version of its kio class. A broker that doesn't offer that version is told apart clearly.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import numpy as np
from kio.schema.api_versions.v3 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i16, i32, i32Timedelta
from kio.static.protocol import RequestPayload, ResponsePayload

from spark_sink.errors import BrokerError, ConnectionLost, OncelogError, UnsupportedByBroker, check

logger = logging.getLogger(__name__)

GROUP = 0
TRANSACTION = 1
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
TELL_SECONDS = 2.0  # a longer wait is told: the user wants to know what for
LATE_ANSWER_SECONDS = 5.0
MOST_CLIENTS = 8  # kept for the next task
NO_ID = UUID(int=0)
LARGE_REQUEST_BYTES = 1 << 20  # what may be too much for a broker
LARGEST_ANSWER_BYTES = 1 << 30  # a length beyond this is not an answer but another protocol

R = TypeVar("R", bound=ResponsePayload)
T = TypeVar("T")
Address = tuple[str, int]


@dataclass(frozen=True)
class ClientSettings:
    """How to reach the brokers; picklable, so that a driver can hand it to its workers."""

    bootstrap: tuple[Address, ...]
    client_id: str = "oncelog-spark"
    connect_timeout_seconds: float = 4.0
    request_timeout_seconds: float = 30.0
    # How long retriable failures are retried: a broker that restarts is usually back within seconds.
    patience_seconds: float = 120.0


@dataclass(frozen=True)
class Topic:
    """What the brokers tell about a topic: the leader of each partition, -1 where there is none now; and its id, which
    tells it from another one that was made under its name."""

    name: str
    id: UUID
    leaders: dict[int, int] = field(default_factory=dict)


def milliseconds(count: int) -> i32Timedelta:
    """A duration as kio's messages want it."""
    return i32Timedelta(timedelta(milliseconds=count))  # type: ignore[arg-type]


def open_socket(address: Address, settings: ClientSettings) -> socket.socket:
    """Connect. The one place where TLS and SASL will stand."""
    connection = socket.create_connection(address, timeout=settings.connect_timeout_seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Pending(Generic[R]):
    """A request that was sent and whose answer is not yet collected."""

    def __init__(
        self, connection: Connection, answer: type[R], correlation_id: int, size_bytes: int, timeout_seconds: float
    ) -> None:
        self.connection = connection
        self.answer = answer
        self.correlation_id = correlation_id
        self.size_bytes = size_bytes
        self.deadline = time.monotonic() + timeout_seconds
        # A caller that comes late finds the answer on its way: it had to wait for the caller.
        self.grace_seconds = min(timeout_seconds, LATE_ANSWER_SECONDS)
        self.settled: R | ConnectionLost | None = None

    def result(self) -> R:
        """The answer. Waits until the request's deadline; then the connection is given up."""
        while self.settled is None:
            self.connection.receive(max(self.deadline, time.monotonic() + self.grace_seconds))
        if isinstance(self.settled, ConnectionLost):
            raise ConnectionLost(str(self.settled)) from self.settled
        return self.settled


class Connection:
    """One connection to one broker and the requests under way on it. Made and used by `Client` alone."""

    def __init__(self, address: Address, settings: ClientSettings) -> None:
        self.address = address
        self._client_id = settings.client_id
        self._waiting: deque[Pending[Any]] = deque()
        self._correlation_id = 0
        self._versions = {int(ApiVersionsRequest.__api_key__): (0, 4)}
        self.closed = False
        try:
            self._socket = open_socket(address, settings)
        except OSError as error:
            self.closed = True
            raise ConnectionLost(f"cannot connect to {self}: {error}") from error
        hello = ApiVersionsRequest(client_software_name="oncelog-spark", client_software_version="1")
        try:
            offered = self.send(hello, ApiVersionsResponse, settings.connect_timeout_seconds).result()
            check(offered.error_code, f"asking {self} for its versions")
        except BaseException:  # nobody else knows of this connection
            self.close()
            raise
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in offered.api_keys}

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def send(self, request: RequestPayload, answer: type[R], timeout_seconds: float) -> Pending[R]:
        key, version = int(request.__api_key__), int(request.__version__)
        lowest, highest = self._versions.get(key, (0, -1))
        if not lowest <= version <= highest:
            name = type(request).__name__.removesuffix("Request")
            raise UnsupportedByBroker(f"the broker at {self} does not offer {name} version {version}, which is needed")
        self._correlation_id += 1
        frame = io.BytesIO()
        frame.write(bytes(4))
        header = request.__header_schema__(
            request_api_key=i16(key),
            request_api_version=i16(version),
            correlation_id=i32(self._correlation_id),
            client_id=self._client_id,
        )
        entity_writer(request.__header_schema__)(frame, header)
        entity_writer(type(request))(frame, request)
        with frame.getbuffer() as view:
            pending = Pending(self, answer, self._correlation_id, len(view), timeout_seconds)
            self._waiting.append(pending)
            struct.pack_into(">i", view, 0, len(view) - 4)
            try:
                self._socket.settimeout(timeout_seconds)
                self._socket.sendall(view)
            except OSError as error:
                raise self._lose(error) from error
        return pending

    def receive(self, deadline: float) -> None:
        """Read one answer and hand it to the oldest request that waits."""
        try:
            (size,) = struct.unpack(">i", self._exactly(4, deadline))
            if not 4 <= size <= LARGEST_ANSWER_BYTES:
                raise OSError(f"it speaks another protocol (an answer of {size} bytes)")
            frame = self._exactly(size, deadline)
        except OSError as error:
            raise self._lose(error) from error
        pending = self._waiting.popleft()
        header, at = entity_reader(pending.answer.__header_schema__)(frame, 0)
        assert header.correlation_id == pending.correlation_id, "brokers answer in the order they were asked"
        pending.settled, _ = entity_reader(pending.answer)(frame, at)

    def _exactly(self, size: int, deadline: float) -> memoryview:
        received = np.empty(size, np.uint8).data  # not cleared first, as a bytearray would be
        at = 0
        while at < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
            count = self._socket.recv_into(received[at:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            at += count
        return received.toreadonly()  # kio reads nothing that could change under it

    def _lose(self, error: OSError) -> ConnectionLost:
        largest = max((pending.size_bytes for pending in self._waiting), default=0)
        hint = f" (a request of {largest} bytes was under way: is the broker's socket.request.max.bytes less?)"
        lost = ConnectionLost(f"lost the connection to {self}: {error}{hint if largest > LARGE_REQUEST_BYTES else ''}")
        self.close()
        for pending in self._waiting:
            pending.settled = lost
        self._waiting.clear()
        return lost

    def close(self) -> None:
        self.closed = True
        self._socket.close()


_clients: dict[tuple[int, ClientSettings], Client] = {}


def client_of(settings: ClientSettings) -> Client:
    """The client of this process: Spark runs many short tasks in one worker, and connecting takes longer than asking.
    The process is part of the key because workers are forked."""
    key = os.getpid(), settings
    if key not in _clients:
        if len(_clients) == MOST_CLIENTS:
            _clients.pop(next(iter(_clients))).close()
        _clients[key] = Client(settings)
    return _clients[key]


class Client:
    """The brokers of one cluster: who leads what, and a connection to each that is asked."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._connections: dict[Address, Connection] = {}
        self._addresses: dict[int, Address] = {}
        self._topics: dict[str, Topic] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._told: dict[Address, None] = {}  # those of whom it was logged that they don't answer

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def send(
        self, node: int | None, request: RequestPayload, answer: type[R], *, timeout_seconds: float | None = None
    ) -> Pending[R]:
        """Send to a broker by its id, or to any (None). The answer is collected with `result()`."""
        timeout = timeout_seconds or self.settings.request_timeout_seconds
        connection = self._any() if node is None else self._connection(self._address(node))
        return connection.send(request, answer, timeout)

    def ask(
        self, node: int | None, request: RequestPayload, answer: type[R], *, timeout_seconds: float | None = None
    ) -> R:
        return self.send(node, request, answer, timeout_seconds=timeout_seconds).result()

    def topics(self, names: Collection[str] | None) -> dict[str, Topic]:
        """The topics of these names that exist, or all (None), as the brokers tell now. Internal ones are left out."""
        wanted = None
        if names is not None:
            wanted = tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in sorted(names))
        request = MetadataRequest(
            topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        answer = self.ask(None, request, MetadataResponse)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        found = {}
        for topic in answer.topics:
            if topic.error_code == ErrorCode.unknown_topic_or_partition:
                continue
            check(topic.error_code, f"asking for topic {topic.name!r}")
            if names is None and topic.is_internal:
                continue
            name = cast(str, topic.name)
            leaders: dict[int, int] = {part.partition_index: part.leader_id for part in topic.partitions}
            found[name] = Topic(name, topic.topic_id or NO_ID, leaders)
        self._topics.update(found)
        return found

    def brokers(self) -> list[int]:
        """The ids of all brokers, as they tell now."""
        self.topics([])
        return sorted(self._addresses)

    def topic(self, name: str) -> Topic:
        """A topic, as far as is known; asks when nothing is known."""
        known = self._topics.get(name) or self.topics([name]).get(name)
        if known is None:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"looking for topic {name!r}")
        return known

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, as far as is known; asks when nothing is known."""
        known = self.topic(topic)
        doing = f"looking for the leader of {topic}-{partition}"
        if partition not in known.leaders:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, doing)
        if known.leaders[partition] < 0:
            raise BrokerError(ErrorCode.leader_not_available, doing)
        return known.leaders[partition]

    def coordinator(self, kind: int, key: str) -> int:
        """The broker that coordinates a group (`GROUP`) or a transactional id (`TRANSACTION`)."""
        node = self._coordinators.get((kind, key))
        if node is None:
            request = FindCoordinatorRequest(key_type=i8(kind), coordinator_keys=(key,))
            (found,) = self.ask(None, request, FindCoordinatorResponse).coordinators
            check(found.error_code, f"looking for the coordinator of {key!r}", found.error_message)
            node = self._coordinators[kind, key] = found.node_id
            self._addresses[node] = (found.host, found.port)
        return node

    def forget(self) -> None:
        """Ask again, next time, who leads and who coordinates."""
        self._topics.clear()
        self._coordinators.clear()

    def retrying(self, attempt: Callable[[], T], *, patience_seconds: float | None = None) -> T:
        """Call until it works, fails for good, or has failed for `patience_seconds`."""
        patience = self.settings.patience_seconds if patience_seconds is None else patience_seconds
        deadline = time.monotonic() + patience
        tell_at = time.monotonic() + TELL_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return attempt()
            except OncelogError as error:
                if not error.retriable:
                    raise
                left = deadline - time.monotonic()
                if left <= 0:
                    error.add_note(f"tried again and again for {patience:g} s")
                    raise
                if time.monotonic() >= tell_at:
                    logger.warning("%s; trying again for up to %.0f s", error, left)
                    tell_at = deadline
            self.forget()
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _address(self, node: int) -> Address:
        if node not in self._addresses:
            self.topics([])
        if node not in self._addresses:
            raise BrokerError(ErrorCode.leader_not_available, f"looking for broker {node}", "it is not in the cluster")
        return self._addresses[node]

    def _connection(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = self._connections[address] = Connection(address, self.settings)
        return connection

    def _any(self) -> Connection:
        for connection in self._connections.values():
            if not connection.closed:
                return connection
        failures = []
        tell_at = time.monotonic() + TELL_SECONDS
        for address in dict.fromkeys((*self._addresses.values(), *self.settings.bootstrap)):
            try:
                return self._connection(address)
            except ConnectionLost as error:
                failures.append(str(error))
                if time.monotonic() >= tell_at and address not in self._told:
                    self._told[address] = None  # not again in each round
                    logger.warning("%s", error)
        raise ConnectionLost("no broker answers: " + "; ".join(failures))
