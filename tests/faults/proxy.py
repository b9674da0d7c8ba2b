"""A TCP proxy between clients and a broker that knows Kafka's frames: it can hold a request back, lose it or its
answer, deliver it twice, and deliver it again on another connection, long after its client has gone on.

What always holds:
 - Whatever no rule applies to passes unchanged and in order; only addresses in answers are changed, so that a client
   that is led to a broker stays behind the proxy.
 - A connection that holds a request passes nothing that was sent after it, as a network would; other connections go on.
 - When a client closes its connection, requests of it that are held can still be delivered: they are on their way.

Tests start it in the loop they run in. Clients that block belong into `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, Self

from service.client.connection import api_key_of
from service.wire.base import Struct
from service.wire.codec import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_response,
    read_request_header,
    read_response_header,
    write_response_header,
)
from service.wire.messages.versions import ApiKey

PATIENCE_SECONDS = 20.0
NAMES_BROKERS = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER)

Address = tuple[str, int]


class Fault(Enum):
    """What befalls a request that a rule applies to."""

    HOLD = "held until the test says how it goes on"
    LOSE_REQUEST = "the broker never gets it; the connection breaks"
    LOSE_ANSWER = "the broker carries it out; the connection breaks before the answer is through"
    SWALLOW_ANSWER = "the broker carries it out; the answer never comes; the connection stays"
    TWICE = "the broker gets it twice in a row; the client gets the first answer"
    WATCH = "nothing; a copy is kept"


class Caught:
    """One request that a rule applied to."""

    def __init__(
        self, api_key: int, version: int, correlation_id: int, frame: bytes, message: Any, to: Address
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.frame = frame
        self.message = message
        self._to = to
        self._goes_on: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    def release(self) -> None:
        """A held request goes on, on the connection it was sent on."""
        self._goes_on.set_result(True)

    def lose(self) -> None:
        """A held request never arrives, and its connection breaks."""
        self._goes_on.set_result(False)

    async def answer(self) -> Any:
        """What the broker said to it, whether or not the client got it. The next one, if it was delivered twice."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._answers.get()

    async def passes(self) -> bool:
        """For the proxy: how it goes on with a request that is held."""
        return await self._goes_on

    def answered(self, frame: bytes) -> None:
        """For the proxy."""
        self._answers.put_nowait(self._read(frame))

    def _read(self, frame: bytes) -> Any:
        _, body_at = read_response_header(self.api_key, self.version, frame)
        return decode_response(self.api_key, self.version, frame[body_at:])

    async def redeliver(self) -> Any:
        """Send the very same bytes on a connection of their own, now; the answer."""
        reader, writer = await asyncio.open_connection(*self._to)
        try:
            writer.write(len(self.frame).to_bytes(4, "big") + self.frame)
            async with asyncio.timeout(PATIENCE_SECONDS):
                answer = await _read_frame(reader)
            assert answer is not None, "the broker closed the connection instead of answering"
            return self._read(answer)
        finally:
            writer.close()


class Rule:
    """Applies to the next `times` requests of a kind. `await rule.caught()` gives them one by one."""

    def __init__(self, api_key: int, fault: Fault, where: Callable[[Any], bool], times: int) -> None:
        self.api_key = api_key
        self.fault = fault
        self.where = where
        self.left = times
        self._caught: asyncio.Queue[Caught] = asyncio.Queue()

    def note(self, caught: Caught) -> None:
        self.left -= 1
        self._caught.put_nowait(caught)

    async def caught(self) -> Caught:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._caught.get()


class _Asked(NamedTuple):
    """A request whose answer has not come."""

    api_key: int
    version: int
    fault: Fault | None
    caught: Caught | None


class Proxy:
    """`async with Proxy(host, port) as proxy:` and clients use `proxy.bootstrap`."""

    def __init__(self, host: str, port: int) -> None:
        self._first: Address = (host, port)
        self._fronts: dict[Address, asyncio.Server] = {}
        self._opening = asyncio.Lock()
        self._rules: list[Rule] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self.front(self._first)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._fronts.values():
            server.close()
        self.break_connections()
        writers, tasks = list(self._writers), list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(writer.wait_closed() for writer in writers), return_exceptions=True)

    @property
    def port(self) -> int:
        port: int = self._fronts[self._first].sockets[0].getsockname()[1]
        return port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def rule(
        self,
        request: type[Struct],
        fault: Fault,
        *,
        where: Callable[[Any], bool] = lambda message: True,
        times: int = 1,
    ) -> Rule:
        """From now on, the next `times` requests of this kind that `where` accepts are caught."""
        rule = Rule(api_key_of(request), fault, where, times)
        self._rules.append(rule)
        return rule

    def break_connections(self) -> None:
        """Every client loses its connection; what is held stays on its way."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def front(self, broker: Address) -> int:
        """The port that stands for a broker; opened when the broker is first heard of."""
        async with self._opening:
            server = self._fronts.get(broker)
            if server is None:
                server = await asyncio.start_server(
                    lambda reader, writer: self._accept(broker, reader, writer), "127.0.0.1", 0
                )
                self._fronts[broker] = server
        port: int = server.sockets[0].getsockname()[1]
        return port

    # -- one connection

    def _accept(self, broker: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(_Connection(self, broker, reader, writer).run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._writers.discard(writer))

    def applying(self, api_key: int, message: Callable[[], Any]) -> Rule | None:
        for rule in self._rules:
            if rule.left and rule.api_key == api_key and rule.where(message()):
                return rule
        return None

    async def readdressed(self, api_key: int, version: int, answer: bytes) -> bytes:
        """The answer with the proxy's ports where brokers' addresses stand."""
        correlation_id, body_at = read_response_header(api_key, version, answer)
        message = decode_response(api_key, version, answer[body_at:])
        places = [*getattr(message, "brokers", ()), *getattr(message, "coordinators", ())]
        if api_key == ApiKey.FIND_COORDINATOR:
            places.append(message)
        for place in places:
            if place.port > 0:
                host = "127.0.0.1" if place.host == "localhost" else place.host
                place.host, place.port = "127.0.0.1", await self.front((host, place.port))
        body = b"".join(bytes(part) for part in encode_response(api_key, version, message) if isinstance(part, bytes))
        header = RequestHeader(api_key, version, correlation_id, None)
        return write_response_header(len(body), header)[4:] + body


class _Connection:
    """From one client to one broker and back."""

    def __init__(
        self, proxy: Proxy, broker: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._broker = broker
        self._from_client = reader
        self._to_client = writer
        self._asked: dict[int, _Asked] = {}

    async def run(self) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection(*self._broker)
        except OSError:
            self._to_client.transport.abort()
            return
        answers = asyncio.ensure_future(self._pass_answers(from_broker))
        try:
            if await self._pass_requests(to_broker):
                async with asyncio.timeout(PATIENCE_SECONDS):  # the client is gone, its last requests are not
                    while self._asked and not answers.done():  # noqa: ASYNC110 - nothing of it is worth an event
                        await asyncio.sleep(0.005)
        finally:
            answers.cancel()
            to_broker.transport.abort()  # before any await: this task may be cancelled in each
            self._to_client.transport.abort()
            await asyncio.gather(
                answers, to_broker.wait_closed(), self._to_client.wait_closed(), return_exceptions=True
            )

    async def _pass_requests(self, to_broker: asyncio.StreamWriter) -> bool:
        """Until the client is gone (True) or a request, or the broker, is lost."""
        while (frame := await _read_frame(self._from_client)) is not None:
            header = read_request_header(frame)
            key, version = header.api_key, header.api_version
            message = functools.cache(functools.partial(decode_request, key, version, frame[header.body_at :]))
            rule = self._proxy.applying(key, message)
            fault, caught = None, None
            if rule is not None:
                fault = rule.fault
                caught = Caught(key, version, header.correlation_id, frame, message(), self._broker)
                rule.note(caught)
                if fault is Fault.LOSE_REQUEST or (fault is Fault.HOLD and not await caught.passes()):
                    return False
            if key != ApiKey.PRODUCE or message().acks:
                self._asked[header.correlation_id] = _Asked(key, version, fault, caught)
            for _ in range(2 if fault is Fault.TWICE else 1):
                to_broker.write(len(frame).to_bytes(4, "big") + frame)
            try:
                await to_broker.drain()
            except ConnectionError:
                return False
        return True

    async def _pass_answers(self, from_broker: asyncio.StreamReader) -> None:
        while (answer := await _read_frame(from_broker)) is not None:
            number = int.from_bytes(answer[:4], "big", signed=True)
            asked = self._asked.pop(number)
            if asked.caught is not None:
                asked.caught.answered(answer)
            if asked.fault is Fault.LOSE_ANSWER:
                break
            if asked.fault is Fault.TWICE:
                self._asked[number] = asked._replace(fault=Fault.SWALLOW_ANSWER)
            if asked.fault is Fault.SWALLOW_ANSWER or self._to_client.is_closing():
                continue
            if asked.api_key in NAMES_BROKERS:
                answer = await self._proxy.readdressed(asked.api_key, asked.version, answer)
            self._to_client.write(len(answer).to_bytes(4, "big") + answer)
        self._to_client.transport.abort()


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame without its length; None when the connection has ended, however it did."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
