# Hot path: every answer leaves through here; `python -m tests.bench --only throughput` answers for it.
"""The way out of one connection: parts of answers, in order, to its socket.

What always holds: bytes leave in the order they were given; what is stored in files is not read into memory where the
transport is plain TCP: large slices go to the socket from a mapping of the file that lives as long as the call. Of what
the socket does not take, at most CHUNK_BYTES are in the transport's hands, the rest waits here as it came. So a peer
that does not read costs the answers it asked for and nothing more. A slice of a file is pinned from the call that gives
it until it has left or the connection is lost.

Why not sendfile: it moves 64 KB a step and takes half as long again for a megabyte on loopback, and an answer over
several partitions needs two calls for each; one `writev` takes headers and slices together. A file that turns out
shorter than it was, or a page that the disk does not give, makes the call fail (EFAULT): only the kernel touches a
mapping here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
import os
from collections import deque
from collections.abc import Callable
from itertools import islice

from log.disk import FileSlice

logger = logging.getLogger("oncelog.net")

# What is handed to the transport when the socket is full. Its only use is that the transport tells when there is room
# again, after which we write ourselves; so it is small.
CHUNK_BYTES = 64 * 1024
# What one connection may send before others have a turn (tens of milliseconds at most, on loopback).
TURN_BYTES = 8 * 1024 * 1024
# Slices below this are read, which is cheaper than to map them.
MAPPED_FROM_BYTES = 32 * 1024
# So few go to the socket in one call: what was read and is not taken has to be read again.
PARTS_AT_ONCE = 16
TOO_SHORT = "a file is shorter than what was promised of it"


class Outbox:
    """`send` takes parts; the connection forwards `pause_writing` and `resume_writing` of its transport."""

    __slots__ = (
        "_drained",
        "_finishing",
        "_handing_over",
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
        self._handing_over = False
        self.progress = 0  # rises whenever something leaves; who does not read is told by its standing still

    @property
    def busy(self) -> bool:
        """Whether something given has not left yet."""
        return self._paused or bool(self._parts)

    def send(self, parts: list[bytes | FileSlice]) -> None:
        """Sends `parts` together, now as far as the socket takes them."""
        if self._transport.is_closing() or not parts:
            return
        in_memory = [part for part in parts if isinstance(part, bytes)]
        if len(in_memory) == len(parts):
            self._send_bytes(b"".join(in_memory))
        else:
            try:
                self._keep(parts)
            except OSError as error:
                logger.exception("stored bytes could not be opened")
                self._break(error)
                return
        if self._parts and not self._paused:
            self.pump()

    def _keep(self, parts: list[bytes | FileSlice]) -> None:
        for part in parts:
            if isinstance(part, FileSlice):
                part.pin()
            self._parts.append(part)

    def _send_bytes(self, data: bytes) -> None:
        if not self._parts and not self._paused and self._socket >= 0:
            sent = self._try(data)
            if sent == len(data):
                return
            self._head_sent = sent
        self._parts.append(data)

    def _try(self, *buffers: bytes | memoryview) -> int:
        """How much of them the socket took."""
        try:
            return os.writev(self._socket, buffers)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise
            self._break(error)
            return 0

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
            try:
                left -= self._send_some(left)
            except OSError as error:  # the file's: the socket's are caught where it is written to
                logger.exception("stored bytes could not be read")
                self._break(error)
                return

    def _send_some(self, most: int) -> int:
        """Sends what comes first; how much. Where the socket is full, the transport takes a chunk."""
        sent = self._try(*self._first_parts(most)) if self._socket >= 0 else 0
        chunk: bytes | memoryview = b""
        if not sent and self._parts:  # not dropped meanwhile
            part, start = self._parts[0], self._head_sent
            sent = min(len(part) - start, CHUNK_BYTES)
            chunk = memoryview(part)[start : start + sent] if isinstance(part, bytes) else _read(part, start, sent)
        self.progress += 1
        left = self._head_sent + sent
        while self._parts and left >= len(self._parts[0]):
            part = self._parts.popleft()
            left -= len(part)
            if not isinstance(part, bytes):
                part.unpin()
        self._head_sent = left
        if chunk:
            self._handing_over = True
            self._transport.write(chunk)
            self._handing_over = False
        return sent

    def _first_parts(self, most: int) -> list[bytes | memoryview]:
        """Up to `most` bytes of what comes first, for the kernel alone to look at. A mapping in it ends with its last
        reference.
        """
        found: list[bytes | memoryview] = []
        start = self._head_sent
        for part in islice(self._parts, PARTS_AT_ONCE):
            size = min(len(part) - start, most)
            if isinstance(part, bytes):
                found.append(memoryview(part)[start : start + size])
            elif size >= MAPPED_FROM_BYTES and (descriptor := part.fileno()) is not None:
                found.append(_mapped(descriptor, part.position + start, size))
            else:
                found.append(_read(part, start, size))
            most -= size
            start = 0
            if not most:
                break
        return found

    def pause(self) -> None:
        self._paused = True
        self.progress += 1

    def resume(self) -> None:
        """There is room again, or it is our turn again."""
        self._paused = False
        self.progress += 1
        if self._handing_over:
            return  # TLS says so within the call that it is handed something; the pump goes on after it
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


def _mapped(descriptor: int, position: int, size: int) -> memoryview:
    before = position % mmap.ALLOCATIONGRANULARITY
    try:
        mapping = mmap.mmap(descriptor, before + size, prot=mmap.PROT_READ, offset=position - before)
    except ValueError as error:
        raise OSError(TOO_SHORT) from error
    return memoryview(mapping)[before:]


def _read(part: FileSlice, start: int, size: int) -> bytes:
    data = part.file.pread(size, part.position + start)
    if len(data) != size:
        raise OSError(TOO_SHORT)
    return data


def plain_descriptor(transport: asyncio.Transport) -> int:
    """The descriptor behind a plain TCP transport, or -1: under TLS, or where a network is simulated."""
    if transport.get_extra_info("sslcontext") is not None:
        return -1
    socket = transport.get_extra_info("socket")
    if socket is None or not hasattr(socket, "fileno"):
        return -1
    descriptor: int = socket.fileno()
    return descriptor
