"""Whether a client takes the answers that wait for it, and whether it has one whole."""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple, cast

from aiohttp import web

CAME_S = web.RequestKey("came_s", float)
"""When the request came, for answers that were written before or after (`Given.written_s`)."""
_INFO = struct.Struct("@B 23x I 92x Q 16x I")
"""What is used of Linux's `tcp_info`: `tcpi_state`, `tcpi_unacked`, `tcpi_bytes_acked`, `tcpi_notsent_bytes`."""
_CLOSED = 7
"""The state of a connection that was reset, or that both sides have ended."""
UNREAD_S = 120.0
"""Something of an answer must be taken within this time."""
RESET_S = 0.5
"""A client that ends its side, and goes without having read all, resets the connection within this time."""
LOOKED_S = 0.02
"""How often it is looked whether an answer that somebody waits for was taken: a system may be slow to acknowledge."""


def is_there(request: web.Request) -> bool:
    """Whether the client's connection is open. One that was cut off just now is not, though it is still known."""
    return request.transport is not None and not request.transport.is_closing()


class Tcp(NamedTuple):
    """What the system knows of a connection."""

    state: int
    unacknowledged: int
    """How many segments were sent and not acknowledged yet."""
    acknowledged_bytes: int
    unsent_bytes: int


def tcp_of(transport: asyncio.Transport) -> Tcp | None:
    """None: the system does not tell, or it is no TCP."""
    connection = cast(socket.socket | None, transport.get_extra_info("socket"))
    if sys.platform != "linux" or connection is None:
        return None
    try:
        known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:  # it is no TCP, or at its end
        return None
    return Tcp(*_INFO.unpack(known)) if len(known) >= _INFO.size else None


class Taking:
    """What a client had taken when it was last looked at.

    The transport's buffer alone does not tell: it shrinks only once a third of the kernel's is free, which is more than
    a megabyte. The bytes that the client's system has acknowledged do tell, whatever is written meanwhile.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._taken_bytes, self._left_bytes = self._look()

    def goes_on(self) -> bool:
        """Whether something was taken since the last look."""
        taken_bytes, left_bytes = self._look()
        has_gone_on = taken_bytes > self._taken_bytes or left_bytes < self._left_bytes
        self._taken_bytes, self._left_bytes = taken_bytes, left_bytes
        return has_gone_on

    def _look(self) -> tuple[int, int]:
        """How many bytes were acknowledged, 0 where the system does not tell that; how many wait in the transport."""
        tcp = tcp_of(self._transport)
        return 0 if tcp is None else tcp.acknowledged_bytes, self._transport.get_write_buffer_size()


class Given:
    """An answer that was written as a whole, until it is known whether its client has it.

    The end of its connection tells that: the system of a client that goes without having read all resets it. If a
    request comes while it is open, the client has what its system has acknowledged. A request that came before the
    answer was written, and had to wait, tells nothing of it: it goes on once the client's system has all. (The time on
    the way from another broker is not known, and counts as if it had come that much later.)
    """

    def __init__(self, transport: asyncio.Transport, others: dict["Given", None], written_s: float) -> None:
        """`others`: those of the same connection that are not known yet."""
        self._transport = transport
        self._others = others
        others[self] = None
        self.written_s = written_s
        self._is_asked_for = False
        """A request has come since it was written."""
        self._tell: Callable[[bool], None] = lambda is_taken: None
        self._pass_on: Callable[[], None] = lambda: None
        self._has_passed_on = False
        self._timer: asyncio.TimerHandle | None = None
        self.client_has_ended = False
        self.has_ended = False
        self.known = asyncio.get_running_loop().create_future()

    def then(self, tell: Callable[[bool], None], pass_on: Callable[[], None]) -> None:
        """Tell whether it was taken, once that is known. `pass_on`: let requests go on that wait for it, although that
        is not known.
        """
        self._tell, self._pass_on = tell, pass_on

    def look(self, came_s: float) -> None:
        """A request that came then asks whether it was taken."""
        self._is_asked_for |= came_s > self.written_s
        if self._is_asked_for and not self.known.done() and self._is_acknowledged():
            self._settle(is_taken=True)

    def _is_acknowledged(self) -> bool:
        tcp = tcp_of(self._transport)
        if self._transport.get_write_buffer_size():
            return False
        if tcp is None:
            return True
        is_reset = tcp.state == _CLOSED and not (self.has_ended and self.client_has_ended)
        return not (tcp.unacknowledged or tcp.unsent_bytes or is_reset)

    def look_on(self, came_s: float) -> None:
        """A request that came then waits for it. A client that takes nothing for long is cut off."""
        self.look(came_s)
        if self._timer is None and not self.known.done():
            self._look_on(Taking(self._transport), asyncio.get_running_loop().time())

    def _look_on(self, taking: Taking, moved_s: float) -> None:
        self._timer = None
        if self._is_acknowledged():
            if self._is_asked_for:
                self._settle(is_taken=True)
            elif not self._has_passed_on:
                self._has_passed_on = True
                self._pass_on()
            return
        loop = asyncio.get_running_loop()
        if taking.goes_on():
            moved_s = loop.time()
        elif loop.time() - moved_s > UNREAD_S:
            self._transport.abort()
            return
        self._timer = loop.call_later(LOOKED_S, self._look_on, taking, moved_s)

    def end(self) -> None:
        """End this broker's side, if the client has not ended its own: a connection that is closed is known to be reset
        only if one side is still open.
        """
        if not (self.client_has_ended or self._transport.is_closing()) and self._transport.can_write_eof():
            self.has_ended = True
            self._transport.write_eof()

    def ended(self, error: BaseException | None) -> None:
        """The connection has ended now; its socket is still open."""
        self._settle(is_taken=error is None and self._is_acknowledged())

    def _settle(self, *, is_taken: bool) -> None:
        if self.known.done():
            return
        self.known.set_result(None)
        self._others.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._tell(is_taken)
