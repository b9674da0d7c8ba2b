"""Whether a client takes something of the answers that wait for it."""

import asyncio
import socket
import struct
import sys
from typing import cast

from aiohttp import web

_ACKNOWLEDGED_AT = 120
"""Where Linux has `tcpi_bytes_acked` in its `tcp_info`."""
_SIZE = _ACKNOWLEDGED_AT + 8


def is_there(request: web.Request) -> bool:
    """Whether the client's connection is open. One that was cut off just now is not, though it is still known."""
    return request.transport is not None and not request.transport.is_closing()


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
        left_bytes = self._transport.get_write_buffer_size()
        connection = cast(socket.socket | None, self._transport.get_extra_info("socket"))
        if sys.platform != "linux" or connection is None:
            return 0, left_bytes
        try:
            known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
        except OSError:  # it is no TCP, or at its end
            return 0, left_bytes
        return struct.unpack_from("@Q", known, _ACKNOWLEDGED_AT)[0] if len(known) >= _SIZE else 0, left_bytes
