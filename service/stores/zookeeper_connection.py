"""kazoo's connection to an ensemble, as a session of ours needs it.

What always holds: a number names one request of a session. kazoo itself counts anew with every connection. A request of
a lost connection may still come to the ensemble, through a server that was slow. Where the session is now, its outcome
is taken for that of the request with the same number: an append would be answered with the success of another one.

An answer out of turn ends the connection, and not the session. It comes when the ensemble takes the session to be at
another server, because of an attempt to connect that was given up: the server here leaves a write without an answer,
and ends the connection, but what was asked behind the write it may still answer. kazoo's thread would end of it.
"""

from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import ConnectionHandler

HANDSHAKES: Final = 3
"""How many attempts to connect fit into a session's timeout if servers accept connections and do not answer on them."""


class Connection(ConnectionHandler):  # type: ignore[misc]
    """`granted` is told the session's timeout at every connection: the ensemble may grant less than was asked for."""

    def __init__(self, client: KazooClient, timeout_s: float, granted: Callable[[float], None]) -> None:
        self._number = 0
        super().__init__(client, client._conn_retry.copy(), logger=client.logger)
        self._timeout_s = timeout_s
        self._granted = granted

    @property
    def _xid(self) -> int:
        """The number of the newest request. That kazoo sets it back to 0 has no effect."""
        return self._number

    @_xid.setter
    def _xid(self, number: int | None) -> None:
        self._number = number or self._number

    def _connect(self, *address: Any) -> tuple[float, float]:
        read_timeout_ms, connect_timeout_ms = super()._connect(*address)
        self._timeout_s = read_timeout_ms * 1.5 / 1000  # kazoo's read timeout is two thirds of it
        self._granted(self._timeout_s)
        return read_timeout_ms, connect_timeout_ms

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """A server that has just started may accept a connection and never answer on it. With one server, kazoo would
        wait until the session is over; it is made to try again sooner.
        """
        return super()._invoke(min(timeout, self._timeout_s / HANDSHAKES), request, xid)

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        waiting = self.client._pending
        if not waiting or waiting[0][2] != header.xid:
            raise ConnectionDropped(f"an answer out of turn, to request {header.xid}")
        return super()._read_response(header, buffer, offset)
