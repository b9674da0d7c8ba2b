"""A client of one broker. It sends requests and returns answers, in versions that both sides know.

What always holds: requests are sent in the order of the calls, and many may wait for their answers at a time. Every
request ends in its answer, in OSError when the connection broke, or in ClientError when the broker does not know the
request or sent an answer to none. Records in an answer are views of its frame, which is not used for anything else.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Self, TypeVar, cast

from service.client.failures import error_name
from service.net.pages import fresh
from service.wire import messages
from service.wire.base import Request
from service.wire.base import Struct as Message
from service.wire.codec import (
    MalformedRequest,
    decode_response,
    encode_request,
    read_response_header,
    write_request_header,
)
from service.wire.error_codes import ErrorCode
from service.wire.messages.schemas import MESSAGES
from service.wire.messages.versions import NEWEST_IS_UNSTABLE, VERSIONS, ApiKey

ResponseT = TypeVar("ResponseT", bound=Message)

READ_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 512 * 1024 * 1024  # ten times what clients let a Fetch return by default
HTTP_ANSWER = int.from_bytes(b"HTTP")  # what an HTTP server's answer looks like as the size of a frame
SOFTWARE_NAME = "oncelog"
SOFTWARE_VERSION = "0.1.0"
unpack_size = Struct(">i").unpack_from
pack_size = Struct(">i").pack


class ClientError(Exception):
    """The broker is there, but it does not know this request, or its answer can't be read."""


class Waiting:
    """A request that waits for its answer."""

    __slots__ = ("answer", "api_key", "version")

    def __init__(self, api_key: int, version: int, answer: asyncio.Future[Message]) -> None:
        self.api_key = api_key
        self.version = version
        self.answer = answer


class Client:
    """`await connect()`, then `await request(...)`, from many tasks at once if need be, then `await close()`."""

    def __init__(self, host: str, port: int, client_id: str | None = SOFTWARE_NAME) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.versions: dict[int, tuple[int, int]] = {}  # by API: the lowest and highest version that the broker knows
        self._newest: dict[int, int] = {}  # by API: the newest version that both sides know
        self._wire: Wire | None = None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connects, and asks which versions the broker knows. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            _, self._wire = await loop.create_connection(lambda: Wire(loop), self.host, self.port)
        except UnicodeError as error:
            raise OSError(f"{self.host!r} can't be a host's name") from error
        try:
            await self._negotiate()
        except BaseException:
            self.abort()
            raise

    async def _negotiate(self) -> None:
        ask = messages.ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        answer = await self.request(ask, version=VERSIONS[ApiKey.API_VERSIONS][1])
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = {each.api_key: each.max_version for each in answer.api_keys}
            answer = await self.request(ask, version=offered.get(ApiKey.API_VERSIONS, 0))
        if answer.error_code:
            raise ClientError(f"the broker does not tell its versions: {error_name(answer.error_code)}")
        self.versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        self._newest = {}
        for key, ours in VERSIONS.items():
            lowest, highest = self.versions.get(key, (0, -1))
            newest = min(ours[1] - (key in NEWEST_IS_UNSTABLE), highest)
            if newest >= max(ours[0], lowest):
                self._newest[key] = newest

    def offers(self, request: type[Message]) -> bool:
        """Whether there is a version of this request that both sides know."""
        return api_key_of(request) in self._newest

    async def request(self, message: Request[ResponseT], version: int | None = None) -> ResponseT:
        """The answer to `message`, sent in `version` or else in the newest version that both sides know.

        A Produce with acks=0 has no answer on the wire: an empty one is returned at once.
        """
        if self._wire is None:
            raise ConnectionError("not connected")
        api_key = api_key_of(type(message))
        if version is None:
            version = self._newest.get(api_key)
            if version is None:
                raise ClientError(f"the broker does not offer {type(message).__name__}")
        answered = not (isinstance(message, messages.ProduceRequest) and message.acks == 0)
        body = encode_request(api_key, version, message)
        return cast(ResponseT, await self._wire.exchange(api_key, version, self.client_id, body, answered))

    async def close(self) -> None:
        """Ends the connection. Requests that wait for an answer end in ConnectionError."""
        if self._wire is not None:
            await self._wire.close()

    def abort(self) -> None:
        """`close`, without waiting for it."""
        if self._wire is not None:
            self._wire.abort()

    @property
    def is_open(self) -> bool:
        return self._wire is not None and not self._wire.is_lost


class Wire(asyncio.BufferedProtocol):
    """The connection of a client: it sends and receives frames, and gives each answer to the request that waits for
    it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._lost = loop.create_future()
        self._error: Exception | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._correlation_id = 0
        self._waiting: dict[int, Waiting] = {}
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._end = 0
        self._frame: memoryview | None = None  # a long answer that is being received
        self._frame_end = 0

    async def exchange(self, api_key: int, version: int, client_id: str | None, body: bytes, answered: bool) -> Message:
        """Sends a request and waits for its answer."""
        await self._writable.wait()
        if self._error is not None or self._lost.done():
            raise self._error or ConnectionResetError("the connection is closed")
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = write_request_header(api_key, version, correlation_id, client_id)
        self._transport.writelines([pack_size(len(header) + len(body)) + header, body])
        if not answered:
            return messages.ProduceResponse()
        waiting = Waiting(api_key, version, self._loop.create_future())
        self._waiting[correlation_id] = waiting
        return await waiting.answer

    async def close(self) -> None:
        self._transport.close()
        await asyncio.shield(self._lost)

    def abort(self) -> None:
        self._transport.abort()

    @property
    def is_lost(self) -> bool:
        return self._lost.done()

    # ------------------------------------------------------------ what the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it

    def connection_lost(self, error: Exception | None) -> None:
        self._error = self._error or error or ConnectionResetError("the broker closed the connection")
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(self._error)
        self._waiting.clear()
        self._writable.set()
        self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, hint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_end :]
        return self._buffer[self._end :]

    def buffer_updated(self, count: int) -> None:
        try:
            self._received(count)
        except (MalformedRequest, ClientError) as wrong:
            self._error = ClientError(f"the broker's answer can't be read: {wrong}")
            self._transport.abort()

    def _received(self, count: int) -> None:
        if self._frame is not None:
            self._frame_end += count
            if self._frame_end == len(self._frame):
                frame, self._frame = self._frame, None
                self._answer(frame)
            return
        self._end += count
        start = 0
        while self._end - start >= 4:
            (size,) = unpack_size(self._buffer, start)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise ClientError("that is an HTTP port" if size == HTTP_ANSWER else f"a frame of {size} bytes")
            have = self._end - start - 4
            if have >= size:
                self._answer(memoryview(bytearray(self._buffer[start + 4 : start + 4 + size])))
                start += 4 + size
                continue
            if size > READ_BYTES - 4:
                self._frame = fresh(size, size)
                self._frame[:have] = self._buffer[start + 4 : self._end]
                self._frame_end = have
                start = self._end
            break
        left = self._end - start
        self._buffer[:left] = self._buffer[start : self._end]
        self._end = left

    def _answer(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big")
        waiting = self._waiting.get(correlation_id)
        if waiting is None:
            raise ClientError("an answer to no request")
        _, body_at = read_response_header(waiting.api_key, waiting.version, frame)
        version = waiting.version
        # A broker that does not know the version of an ApiVersions request answers in version 0.
        if waiting.api_key == ApiKey.API_VERSIONS and frame[4:6] == UNSUPPORTED_VERSION:
            version = 0
        answer = decode_response(waiting.api_key, version, frame[body_at:])
        del self._waiting[correlation_id]  # not earlier: if the answer can't be read, the waiting caller must be told
        if not waiting.answer.done():  # it is done if the caller has given up
            waiting.answer.set_result(answer)


UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


def api_key_of(request: type[Message]) -> int:
    kind, key, *_ = MESSAGES[request.__name__]
    assert kind == "request"
    assert key is not None
    return key
