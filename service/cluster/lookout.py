"""Notices at once that a broker's process has died: the connections to it break, and then its port refuses new ones.

The controller holds a connection to every other broker, and every other broker holds one to the controller. A broker
counts as dead only if it accepted a connection in its present life, and now refuses one. A broker that is paused, slow
or cut off does not refuse but lets the connect time out. A broker that could never be reached says nothing about
itself. Of several addresses of a broker one has to refuse, and the others refuse or can't be reached at all: if one
lets the connect time out, or this process itself has failed to ask it, the broker may be behind it.

It is safe to replace such a broker as leader before its session ends, even if it is alive after all. Leadership changes
by compare-and-set and with a new epoch. The followers obey the new epoch, and without them the old leader acknowledges
nothing more.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from service.cluster.image import Delta, RegisteredBroker
from service.cluster.metadata import ClusterMetadata
from service.ports import Env

logger = logging.getLogger("oncelog.controller")

AGAIN_S = 1.0
"""The pause before a broker is tried again that gave no connection, or took it back at once."""
CONNECT_S = 5.0
UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EAFNOSUPPORT}
"""The errors of an address that this machine can't reach at all. Others, such as no free port or descriptor, are this
process's own and pass.
"""


class _Line(asyncio.Protocol):
    def __init__(self) -> None:
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.broken.done():
            self.broken.set_result(None)


async def _line_to(host: str, port: int) -> tuple[asyncio.Transport, _Line]:
    """A connection to the first address of `host` that takes one. Raises `ConnectionRefusedError` if one has refused it
    and the others have, too, or can't be reached; another `OSError` or `TimeoutError` if nothing is known of the
    broker.
    """
    loop, failed = asyncio.get_running_loop(), OSError(f"{host} has no address")
    has_refused = is_unsure = False
    async with asyncio.timeout(CONNECT_S):
        try:
            ip_address(host)
            addresses = [host]  # a look-up would wait for a thread, perhaps behind much that is slow
        except ValueError:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [f"{address}%{more[1]}" if any(more[1:]) else str(address) for *_, (address, _, *more) in found]
        for address in addresses:
            try:
                return await loop.create_connection(_Line, address, port)
            except TimeoutError:  # the kernel's
                raise
            except ConnectionRefusedError:
                has_refused = True
            except OSError as error:
                is_off = ":" in address and error.errno == errno.EADDRNOTAVAIL  # this machine has no IPv6
                is_unsure = is_unsure or not (is_off or error.errno in UNREACHABLE)
                failed = error
    if has_refused and not is_unsure:
        raise ConnectionRefusedError
    raise failed


class Lookout:
    def __init__(
        self,
        env: Env,
        metadata: ClusterMetadata,
        address_of: Callable[[RegisteredBroker], tuple[str, int]],
        on_dead: Callable[[RegisteredBroker], Awaitable[None]],
    ) -> None:
        self._env = env
        self._metadata = metadata
        self._address_of = address_of
        self._on_dead = on_dead
        self._watched: dict[int, int] = {}
        self._lines: dict[RegisteredBroker, asyncio.Transport] = {}

    def heard(self, delta: Delta) -> None:
        """Take note of a change of the image; it must see every change."""
        if delta.brokers or delta.old.controller_id != delta.new.controller_id:
            self.look()

    def look(self) -> None:
        for broker, transport in self._lines.items():
            if not self._is_present(broker):  # a machine that fell silent does not break its connections
                transport.abort()
        if not self._metadata.in_session:
            return
        for broker in self._metadata.image.brokers.values():
            if self._concerns_us(broker) and self._watched.get(broker.id) != broker.epoch:
                self._watched[broker.id] = broker.epoch
                self._env.tasks.spawn(f"lookout for broker {broker.id}", self._watch(broker))

    def _concerns_us(self, broker: RegisteredBroker) -> bool:
        metadata = self._metadata
        return broker.id != metadata.broker_id and (metadata.controlling or broker.id == metadata.image.controller_id)

    def _is_present(self, broker: RegisteredBroker) -> bool:
        """Whether this life of the broker is the one that is registered."""
        now = self._metadata.image.brokers.get(broker.id)
        return now is not None and now.epoch == broker.epoch

    async def _watch(self, broker: RegisteredBroker) -> None:
        loop, seen = asyncio.get_running_loop(), False
        try:
            while self._is_present(broker) and self._concerns_us(broker):
                host, port = self._address_of(broker)
                try:
                    transport, line = await _line_to(host, port)
                except ConnectionRefusedError:
                    if seen:
                        await self._on_dead(broker)
                    await asyncio.sleep(AGAIN_S)
                except (OSError, TimeoutError, UnicodeError):  # the last of a host that can't be a name
                    await asyncio.sleep(AGAIN_S)
                else:
                    seen, since_s = True, loop.time()
                    self._lines[broker] = transport
                    try:
                        if self._is_present(broker):
                            await line.broken
                    finally:
                        del self._lines[broker]
                        transport.abort()
                    if loop.time() - since_s < AGAIN_S:  # it may have no place for one more connection
                        await asyncio.sleep(AGAIN_S)
        finally:
            if self._watched.get(broker.id) == broker.epoch:
                del self._watched[broker.id]
