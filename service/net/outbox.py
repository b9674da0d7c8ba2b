# Hot path: every answer leaves through here; `python -m tests.bench --only throughput` answers for it.
"""Sends the answers of one connection, part by part and in order, to its socket.

What always holds: bytes leave in the order in which they were given. Over plain TCP, what is stored in files is not
read into memory: large slices go to the socket from a mapping of the file that exists only during the call. If the
socket takes no more, the transport gets at most CHUNK_BYTES; the rest waits here as it came. So a peer that does not
read costs no more memory than the answers that it asked for. A slice of a file is pinned from the call that gives it
until it has left or the connection is lost. A short answer is read in that call.

Why not sendfile: it moves 64 KB a step and takes half as long again for a megabyte on loopback. An answer with several
partitions also needs two calls for each, while one `writev` takes headers and slices together. If a file has become
shorter, or the disk can't deliver a page, the call fails with EFAULT; there is no crash, because only the kernel reads
a mapping here.
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
from typing import cast

from log.disk import FileSlice

logger = logging.getLogger("oncelog.net")

# What the transport gets when the socket is full. This only serves to learn from the transport when there is room
# again, so it is small. After that we write to the socket ourselves again.
CHUNK_BYTES = 64 * 1024
# What one connection may send before others have a turn. On loopback that takes a few milliseconds.
TURN_BYTES = 2 * 1024 * 1024
# Longer answers are not copied into one piece, even if all of their parts are in memory.
JOINED_BYTES = 256 * 1024
# Smaller slices are read into memory, which is cheaper than a mapping.
MAPPED_FROM_BYTES = 32 * 1024
# An answer that is no longer is read into memory as a whole, if nothing waits before it. It needs no pins then.
READ_BYTES = 16 * 1024
# The most parts in one call. What was read into memory and not taken by the socket has to be read again.
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
        self._drained = drained  # called when all that had to wait has left
        self._socket = plain_descriptor(transport)
        self._parts: deque[bytes | FileSlice] = deque()
        self._head_sent = 0  # bytes of the first part that have left
        self._paused = False
        self._finishing = False
        self._handing_over = False
        self.progress = 0  # rises whenever something leaves: if it stands still, the peer does not read

    @property
    def busy(self) -> bool:
        """Whether something that was given to `send` has not left yet."""
        return self._paused or bool(self._parts)

    def send(self, parts: list[bytes | FileSlice]) -> None:
        """Sends `parts` together. What the socket does not take now is sent later."""
        if not parts or self._transport.is_closing():
            return
        has_slices, size = FileSlice in map(type, parts), sum(map(len, parts))
        try:
            if not has_slices and size <= JOINED_BYTES:
                self._send_bytes(b"".join(cast("list[bytes]", parts)))
            elif has_slices and size <= READ_BYTES and not self.busy:
                self._send_bytes(
                    b"".join([part if isinstance(part, bytes) else _read(part, 0, len(part)) for part in parts])
                )
            else:
                self._keep(parts)
        except OSError as error:
            logger.exception("stored bytes could not be read")
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
        """How many bytes of the buffers the socket took."""
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
        """Sends what waits, until all has left, the socket is full, or other connections must have their turn."""
        left = TURN_BYTES
        while self._parts and not self._paused:
            if self._transport.is_closing():
                self.drop()
                return
            if left <= 0:
                self._paused = True  # so that no other call pumps in between
                self._loop.call_soon(self.resume)
                return
            try:
                left -= self._send_some(left)
            except OSError as error:  # an error of the file: `_try` handles those of the socket
                logger.exception("stored bytes could not be read")
                self._break(error)
                return

    def _send_some(self, most: int) -> int:
        """Sends the first parts, and returns how many bytes. If the socket is full, the transport takes a chunk."""
        sent = self._try(*self._first_parts(most)) if self._socket >= 0 else 0
        chunk: bytes | memoryview = b""
        if not sent and self._parts:  # unless `drop` was called meanwhile
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
        """Up to `most` bytes of the first parts. Only the kernel may read them. A mapping among them ends with its last
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
        """The socket has room again, or this connection has its turn again."""
        self._paused = False
        self.progress += 1
        if self._handing_over:
            return  # TLS calls this within `write`; `_send_some`'s caller pumps on
        self.pump()
        if not self.busy:
            if self._finishing:
                self._transport.close()
            self._drained()

    def finish(self) -> None:
        """Ends the connection as soon as everything has left."""
        self._finishing = True
        if not self.busy:
            self._transport.close()

    def _break(self, error: OSError) -> None:
        """Ends the connection: the peer is gone, or promised bytes can't be read, so that the rest of the stream would
        have no meaning.
        """
        logger.debug("a connection broke while it was written to: %s", error)
        self.drop()
        self._transport.abort()

    def drop(self) -> None:
        """Forgets what waits, and does not use the descriptor any more: once the connection is lost, it may belong to
        another.
        """
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
    """The descriptor of a plain TCP transport; -1 under TLS, and on a simulated network."""
    if transport.get_extra_info("sslcontext") is not None:
        return -1
    socket = transport.get_extra_info("socket")
    if socket is None or not hasattr(socket, "fileno"):
        return -1
    descriptor: int = socket.fileno()
    return descriptor
