"""Notices at once that a broker's process has died: the connections to it break, and then its port refuses new ones.

Every broker holds a connection to every other one, its line. When a line breaks, this broker tells clients for a moment
that the other one leads nothing (`ClusterMetadata.suspect`): they ask again soon, and wait less than if they were sent
to a dead leader. Only the controller, or all others if it was the controller, replace a broker, and only one that
accepted a connection in its present life and now refuses one. A broker that is paused, slow or cut off does not refuse
but lets the connect time out. A broker that could never be reached says nothing about itself.

It is safe to replace such a broker as leader before its session ends, even if it is alive after all. Leadership changes
by compare-and-set and with a new epoch. The followers obey the new epoch, and without them the old leader acknowledges
nothing more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from service.cluster.image import Delta, RegisteredBroker
from service.cluster.metadata import ClusterMetadata
from service.ports import Env

logger = logging.getLogger("oncelog.controller")

AGAIN_S = 1.0
"""The pause before a broker that gave no connection is tried again. A line that stood for less says nothing when it
breaks: a broker that has no room for more connections accepts them and ends them at once.
"""
STANDS_S = 0.1
"""How long a line stands before it says that the broker lives: for some milliseconds, connections to a process that is
dying are still accepted, and end with it.
"""
BRIEF_S = 0.01
"""The pause after a line that stood for less than `AGAIN_S`. It doubles each time, up to `AGAIN_S`."""
CONNECT_S = 5.0


class _Line(asyncio.Protocol):
    def __init__(self) -> None:
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.broken.done():
            self.broken.set_result(None)


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
        self._lines: dict[int, asyncio.Transport] = {}  # by broker epoch

    def heard(self, delta: Delta) -> None:
        """Take note of a change of the image; it must see every change."""
        for broker_id in delta.brokers:
            former = delta.old.brokers.get(broker_id)
            if former is not None and not self._lives(former) and (line := self._lines.get(former.epoch)) is not None:
                line.abort()
        if delta.brokers:
            self.look()

    def look(self) -> None:
        if not self._metadata.in_session:
            return
        for broker in self._metadata.image.brokers.values():
            if broker.id != self._metadata.broker_id and self._watched.get(broker.id) != broker.epoch:
                self._watched[broker.id] = broker.epoch
                self._env.tasks.spawn(f"lookout for broker {broker.id}", self._watch(broker))

    def _is_ours_to_replace(self, broker: RegisteredBroker) -> bool:
        return self._metadata.controlling or broker.id == self._metadata.image.controller_id

    def _lives(self, broker: RegisteredBroker) -> bool:
        now = self._metadata.image.brokers.get(broker.id)
        return now is not None and now.epoch == broker.epoch

    async def _watch(self, broker: RegisteredBroker) -> None:
        loop, clock, metadata = asyncio.get_running_loop(), self._env.clock, self._metadata
        seen, pause_s = False, BRIEF_S
        try:
            while self._lives(broker):
                host, port = self._address_of(broker)
                try:
                    async with asyncio.timeout(CONNECT_S):
                        transport, line = await loop.create_connection(_Line, host, port)
                except ConnectionRefusedError:
                    if seen and self._is_ours_to_replace(broker):
                        await self._on_dead(broker)
                    await asyncio.sleep(AGAIN_S)
                except (OSError, TimeoutError):
                    metadata.trust(broker)
                    await asyncio.sleep(AGAIN_S)
                else:
                    seen, since_s = True, clock.monotonic()
                    self._lines[broker.epoch] = transport
                    stands = loop.call_later(STANDS_S, metadata.trust, broker)
                    try:
                        await line.broken
                    finally:
                        stands.cancel()
                        del self._lines[broker.epoch]
                        transport.abort()
                    if clock.monotonic() - since_s < AGAIN_S:
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, AGAIN_S)
                    else:
                        metadata.suspect(broker)
                        pause_s = BRIEF_S
        finally:
            if self._watched.get(broker.id) == broker.epoch:
                del self._watched[broker.id]
