"""Every request passes through here. The door knows the connection, the version and the handler, and turns bytes into
messages and back.

What always holds: a request in a version that we don't offer closes its connection, as in Kafka. Only ApiVersions is
answered then, so that the client can learn what we offer. Bytes that can't be read close their connection. An
unexpected failure of a handler closes its connection and is logged, and no other connection suffers from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from service.api import api_versions
from service.api.listener import Listener
from service.api.routes import ROUTES, ApiRoute
from service.broker.node import Broker
from service.broker.session import Session
from service.net.door import CLOSE, Held, PeerInfo, Reply, Signal
from service.turns import MadeLater, done_in_turns, freed, now_or_in_turns
from service.wire.base import StructType
from service.wire.codec import (
    OF_RECORDS,
    MalformedRequest,
    RequestHeader,
    decode_request,
    decode_request_in_steps,
    encode_response,
    encode_response_in_steps,
)
from service.wire.messages import (
    ConsumerGroupHeartbeatResponse,
    FetchResponse,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    ProduceResponse,
    TxnOffsetCommitResponse,
)
from service.wire.messages.versions import ApiKey

logger = logging.getLogger("oncelog.door")

LONG_BYTES = 32 << 10
"""Requests without records that are longer are read in several turns of the loop, because they may have as many
elements as bytes.
"""
LONG_ANSWER = 500
"""The most topics and partitions that an answer tells of at once."""

FIXED_ANSWERS = frozenset(
    (
        *(ApiKey.HEARTBEAT, ApiKey.SYNC_GROUP, ApiKey.INIT_PRODUCER_ID),
        *(ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN),
    )
)
"""Answers that have no lists."""

EACH_NAMED = frozenset(
    (
        *(ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.FIND_COORDINATOR),
        *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.WRITE_TXN_MARKERS),
        *(ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT),
    )
)
"""Answers that tell of nothing that the request does not name. A short request has a short answer."""

SHORT_BYTES = 4 * LONG_ANSWER
"""So short a request names at most LONG_ANSWER things."""

COUNTED_ANSWERS = frozenset(
    (
        *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA),
        *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.TXN_OFFSET_COMMIT),
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    )
)
"""Answers that are needed all the time. They are encoded at once unless they tell of very many partitions. If they come
from the handler at once, they do not: the handlers make long ones in turns.
"""


class BoundRoute:
    """A route with the parts of this broker, and all else that is known before a request comes."""

    __slots__ = ("authorize", "handle", "highest", "is_counted", "lowest", "name", "refusal", "short_bytes")

    def __init__(self, key: int, route: ApiRoute, broker: Broker) -> None:
        self.name = route.name
        self.lowest, self.highest = route.lowest, route.highest
        self.handle = route.bound(broker)
        self.authorize = None if route.refused is None else route.authorize  # None: every client may use the API
        self.refusal = route.refusal
        self.is_counted = key in COUNTED_ANSWERS
        self.short_bytes = LONG_BYTES if key in FIXED_ANSWERS else SHORT_BYTES if key in EACH_NAMED else -1
        """A request that is no longer is known to have a short answer."""


class BrokerDoor:
    """Serves the requests of one listener."""

    def __init__(self, broker: Broker, listener: Listener) -> None:
        self._ready = broker.ready
        self._offered = broker.offered
        self._routes = {int(key): BoundRoute(key, route, broker) for key, route in ROUTES.items()}
        self._listener = listener
        self._tally = broker.requests
        self._now_s = broker.env.clock.monotonic
        self._tasks = broker.env.tasks

    def connected(self, peer: PeerInfo) -> Session:
        self._tally.connections[self._listener.name] += 1
        principal = self._listener.authenticate(peer)
        return Session(peer.host, peer.port, peer.round_trip_us, self._listener.name, principal)

    def disconnected(self, session: Session) -> None:
        self._tally.connections[self._listener.name] -= 1
        session.gone()

    def hurry(self, session: Session) -> None:
        session.hurry()

    def request(
        self, session: Session, header: RequestHeader, body: memoryview
    ) -> Reply | Awaitable[Reply] | Held[Reply]:
        if not self._ready.is_set():
            return Held(self._when_ready(session, header, bytearray(body)))
        route = self._routes.get(header.api_key)
        if route is None or not route.lowest <= header.api_version <= route.highest:
            if header.api_key == ApiKey.API_VERSIONS:
                return encode_response(header.api_key, 0, api_versions.unsupported(self._offered))
            asked = session.host, session.port, header.api_key, header.api_version
            logger.info("%s:%d asks for API %d in version %d, which is not offered", *asked)
            return CLOSE
        began_s = self._now_s()
        if len(body) > LONG_BYTES and header.api_key not in OF_RECORDS:
            return Held(self._read_in_turns(session, header, route, bytes(body), began_s))
        try:
            request = decode_request(header.api_key, header.api_version, body)
        except MalformedRequest as error:
            return self._malformed(session, route, error)
        return self._handle(session, header, route, request, began_s, len(body))

    async def _read_in_turns(
        self, session: Session, header: RequestHeader, route: BoundRoute, body: bytes, began_s: float
    ) -> Reply | Awaitable[Reply]:
        try:
            request = await done_in_turns(decode_request_in_steps(header.api_key, header.api_version, body))
        except MalformedRequest as error:
            return self._malformed(session, route, error)
        done_with = [request]
        reply = self._handle(session, header, route, request, began_s, len(body))
        del request
        if isinstance(reply, Held):
            reply = await reply.first
        if isinstance(reply, Awaitable):
            return self._then_freed(reply, done_with)
        self._free(done_with)
        return reply

    async def _then_freed(self, reply: Awaitable[Reply], done_with: list[Any]) -> Reply:
        try:
            return await reply
        finally:
            self._free(done_with)

    def _free(self, done_with: list[Any]) -> None:
        self._tasks.spawn("free a long message", done_in_turns(freed(done_with)))

    def _handle(
        self, session: Session, header: RequestHeader, route: BoundRoute, request: Any, began_s: float, size_bytes: int
    ) -> Reply | Awaitable[Reply] | Held[Reply]:
        """`size_bytes`: how long the request is."""
        try:
            if route.authorize is not None and not route.authorize(session, request):
                return self._encoded(header, route, route.refusal(session, request), began_s, size_bytes)
            answer = route.handle(session, header, request)
        except Exception:  # noqa: BLE001 - logged with its trace; whatever it is, only this connection ends
            return self._failed(session, route)
        # Most answers come at once. To look first whether an answer is awaitable would take longer, and so would
        # `isinstance(answer, Struct)`, because of the metaclass.
        if type(type(answer)) is StructType:
            return self._encoded_at_once(header, route, answer, began_s, size_bytes)
        if type(answer) is MadeLater:
            made = partial(self._made, session, header, route, began_s, size_bytes, answer.make)
            return MadeLater(answer.found, made)
        if isinstance(answer, Held):
            return Held(self._held(session, header, route, answer.first, began_s, size_bytes))
        if type(answer) is Signal:
            return self._encoded(header, route, answer, began_s, size_bytes)
        return self._later(session, header, route, answer, began_s, size_bytes)

    def _made(
        self,
        session: Session,
        header: RequestHeader,
        route: BoundRoute,
        began_s: float,
        size_bytes: int,
        make: Callable[[asyncio.Future[Any]], Any],
        found: asyncio.Future[Any],
    ) -> Reply | Awaitable[Reply]:
        try:
            answer = make(found)
            if type(type(answer)) is StructType:
                return self._encoded_at_once(header, route, answer, began_s, size_bytes)
        except Exception:  # noqa: BLE001 - logged with its trace; whatever it is, only this connection ends
            return self._failed(session, route)
        return self._later(session, header, route, answer, began_s, size_bytes)

    async def _when_ready(self, session: Session, header: RequestHeader, body: bytearray) -> Reply | Awaitable[Reply]:
        with session.waits():
            await self._ready.wait()
        reply = self.request(session, header, memoryview(body))
        return await reply.first if isinstance(reply, Held) else reply

    async def _held(
        self,
        session: Session,
        header: RequestHeader,
        route: BoundRoute,
        first: Awaitable[Any],
        began_s: float,
        size_bytes: int,
    ) -> Reply | Awaitable[Reply]:
        try:
            answer = await first
        except Exception:  # noqa: BLE001 - logged with its trace; whatever it is, only this connection ends
            return self._failed(session, route)
        if isinstance(answer, Awaitable):
            return self._later(session, header, route, answer, began_s, size_bytes)
        return self._encoded(header, route, answer, began_s, size_bytes)

    async def _later(
        self,
        session: Session,
        header: RequestHeader,
        route: BoundRoute,
        answer: Awaitable[Any],
        began_s: float,
        size_bytes: int,
    ) -> Reply:
        try:
            reply = self._encoded(header, route, await answer, began_s, size_bytes)
            return reply if isinstance(reply, (list, Signal)) else await reply
        except Exception:  # noqa: BLE001 - logged with its trace; whatever it is, only this connection ends
            return self._failed(session, route)
        finally:
            if session.pinned:
                # When this task has handed its answer over, the connection keeps what it needs.
                asyncio.get_running_loop().call_soon(session.unpin)

    def _encoded_at_once(
        self, header: RequestHeader, route: BoundRoute, answer: Any, began_s: float, size_bytes: int
    ) -> Reply | Awaitable[Reply]:
        """For what a handler has made without a wait."""
        if route.is_counted or size_bytes <= route.short_bytes:
            self._tally.answered(route.name, answer, self._now_s() - began_s)
            return encode_response(header.api_key, header.api_version, answer)
        return self._encoded(header, route, answer, began_s, size_bytes)

    def _encoded(
        self, header: RequestHeader, route: BoundRoute, answer: Any, began_s: float, size_bytes: int
    ) -> Reply | Awaitable[Reply]:
        self._tally.answered(route.name, answer, self._now_s() - began_s)
        if type(answer) is Signal:
            return answer
        if size_bytes <= route.short_bytes or (route.is_counted and not _is_long(answer)):
            return encode_response(header.api_key, header.api_version, answer)
        encoded = now_or_in_turns(encode_response_in_steps(header.api_key, header.api_version, answer))
        # To look for a list first takes less time than `isinstance` with an abstract class.
        return encoded if isinstance(encoded, list) else self._then_freed(encoded, [answer])

    @staticmethod
    def _malformed(session: Session, route: BoundRoute, error: MalformedRequest) -> Reply:
        logger.warning("%s:%d sent a malformed %s: %s", session.host, session.port, route.name, error)
        return CLOSE

    @staticmethod
    def _failed(session: Session, route: BoundRoute) -> Reply:
        logger.exception("%s of %s:%d failed; its connection is closed", route.name, session.host, session.port)
        return CLOSE


def _is_long(answer: Any) -> bool:
    """Whether the answer tells of more topics, partitions and transactions than are looked up in one turn."""
    told = 0
    for partitions in _told_of(answer):
        told += 1 + len(partitions)
        if told > LONG_ANSWER:
            return True
    return False


def _told_of(answer: Any) -> Iterator[Sequence[Any]]:
    """The partitions of each topic, the aborted transactions of each partition, the topics of each group, and the
    groups.
    """
    match answer:
        case ProduceResponse():
            yield from (topic.partition_responses for topic in answer.responses)
        case FetchResponse():
            yield from (topic.partitions for topic in answer.responses)
            for topic in answer.responses:
                yield from (each.aborted_transactions for each in topic.partitions if each.aborted_transactions)
        case MetadataResponse() | OffsetCommitResponse() | TxnOffsetCommitResponse():
            yield from (topic.partitions for topic in answer.topics)
        case ConsumerGroupHeartbeatResponse() if answer.assignment is not None:
            yield from (topic.partitions for topic in answer.assignment.topic_partitions)
        case OffsetFetchResponse():
            yield answer.groups
            yield from (topic.partitions for topic in answer.topics)
            for group in answer.groups:
                yield group.topics
                yield from (topic.partitions for topic in group.topics)
