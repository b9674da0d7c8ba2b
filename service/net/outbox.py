# Hot path: every answer leaves through here; `python -m tests.bench --only consume` answers for it.
"""The way out of one connection: parts of answers, in order, to its socket.

What always holds: bytes leave in the order they were given; what is stored in files is not read into memory (sendfile)
where the transport is plain TCP; of what the socket does not take, at most CHUNK_BYTES are in the transport's hands,
the rest waits here as it came. So a peer that does not read costs the answers it asked for and nothing more. A slice of
a file is pinned from the call that gives it until it has left or the connection is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from log.disk import FileSlice

logger = logging.getLogger("oncelog.net")

# What is handed to the transport when the socket is full. Its only use is that the transport tells when there is room
# again, after which sendfile goes on; so it is small.
CHUNK_BYTES = 64 * 1024
# What one connection may send before others have a turn (tens of milliseconds at most, on loopback).
TURN_BYTES = 8 * 1024 * 1024


class Outbox:
    """`send` takes parts; the connection forwards `pause_writing` and `resume_writing` of its transport."""

    __slots__ = (
        "_drained",
        "_finishing",
        "_head_sent",
        "_loop",
        "_parts",
        "_paused",
        "_socket",
        "_transport",
        "progress",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, drained: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._drained = drained  # called when what once had to wait has left
        self._socket = plain_descriptor(transport)
        self._parts: deque[bytes | FileSlice] = deque()
        self._head_sent = 0  # bytes of the first part that have left
        self._paused = False
        self._finishing = False
        self.progress = 0  # rises whenever something leaves; who does not read is told by its standing still
        transport.set_write_buffer_limits(high=0, low=0)

    @property
    def busy(self) -> bool:
        """Whether something given has not left yet."""
        return self._paused or bool(self._parts)

    def send(self, parts: list[bytes | FileSlice]) -> None:
        """Sends `parts`, neighbouring bytes together, now as far as the socket takes them."""
        if self._transport.is_closing():
            return
        run: list[bytes] = []
        for part in parts:
            if isinstance(part, bytes):
                run.append(part)
                continue
            if run:
                self._send_bytes(run[0] if len(run) == 1 else b"".join(run))
                run = []
            try:
                part.pin()
            except OSError as error:
                logger.exception("stored bytes could not be opened")
                self._break(error)
                return
            self._parts.append(part)
        if run:
            self._send_bytes(run[0] if len(run) == 1 else b"".join(run))
        if self._parts and not self._paused:
            self.pump()

    def _send_bytes(self, data: bytes) -> None:
        if not self._parts and not self._paused and self._socket >= 0:
            sent = self._try(data)
            if sent == len(data):
                return
            self._head_sent = sent
        self._parts.append(data)

    def _try(self, data: bytes | memoryview) -> int:
        """How much of `data` the socket took."""
        try:
            return os.write(self._socket, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._break(error)
            return len(data)

    def pump(self) -> None:
        """Sends what waits until it has left, the socket is full, or others must have their turn."""
        left = TURN_BYTES
        while self._parts and not self._paused:
            if self._transport.is_closing():
                self.drop()
                return
            if left <= 0:
                self._paused = True  # nobody pumps in between
                self._loop.call_soon(self.resume)
                return
            left -= self._send_some()

    def _send_some(self) -> int:
        """Sends part of the first part; how much. Where the socket is full, the transport takes a chunk."""
        part = self._parts[0]
        size = len(part) - self._head_sent
        try:
            sent = 0
            if self._socket >= 0:
                if isinstance(part, bytes):
                    sent = self._try(memoryview(part)[self._head_sent :])
                else:
                    sent = self._send_file(part, size)
            if sent == 0:
                sent = min(size, CHUNK_BYTES)
                self._transport.write(self._read(part, sent))
        except OSError as error:  # the file's: the socket's are caught where it is written to
            logger.exception("stored bytes could not be read")
            self._break(error)
            return size
        self.progress += 1
        if sent < size:
            self._head_sent += sent
        elif self._parts:  # not dropped meanwhile
            self._head_sent = 0
            self._parts.popleft()
            if not isinstance(part, bytes):
                part.unpin()
        return sent

    def _send_file(self, part: FileSlice, size: int) -> int:
        descriptor = part.fileno()
        if descriptor is None:
            return 0
        try:
            sent = os.sendfile(self._socket, descriptor, part.position + self._head_sent, size)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError) as error:
            self._break(error)
            return size
        if sent == 0:
            raise OSError("a file is shorter than what was promised of it")
        return sent

    def _read(self, part: bytes | FileSlice, size: int) -> bytes | memoryview:
        if isinstance(part, bytes):
            return memoryview(part)[self._head_sent : self._head_sent + size]
        data = part.file.pread(size, part.position + self._head_sent)
        if len(data) != size:
            raise OSError("a file is shorter than what was promised of it")
        return data

    def pause(self) -> None:
        self._paused = True
        self.progress += 1

    def resume(self) -> None:
        """There is room again, or it is our turn again."""
        self._paused = False
        self.progress += 1
        self.pump()
        if not self.busy:
            if self._finishing:
                self._transport.close()
            self._drained()

    def finish(self) -> None:
        """Ends the connection as soon as everything given has left."""
        self._finishing = True
        if not self.busy:
            self._transport.close()

    def _break(self, error: OSError) -> None:
        """The peer is gone, or what it was promised can't be read: the rest of the stream has no meaning."""
        logger.debug("a connection broke while it was written to: %s", error)
        self.drop()
        self._transport.abort()

    def drop(self) -> None:
        """Forgets what waits. Also called when the connection is lost, after which the descriptor may be another's."""
        self._socket = -1
        for part in self._parts:
            if not isinstance(part, bytes):
                part.unpin()
        self._parts.clear()
        self._head_sent = 0


def plain_descriptor(transport: asyncio.Transport) -> int:
    """The descriptor behind a plain TCP transport, or -1: under TLS, or where a network is simulated."""
    if transport.get_extra_info("sslcontext") is not None:
        return -1
    socket = transport.get_extra_info("socket")
    if socket is None or not hasattr(socket, "fileno"):
        return -1
    descriptor: int = socket.fileno()
    return descriptor
