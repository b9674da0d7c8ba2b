"""An asyncio event loop without a thread, a selector or a clock: the World turns it, callback by callback.

What always holds:
 - Ready callbacks run first in, first out. Timers fire in the order of their deadlines, late or on time, never early.
 - A dead loop takes nothing in and runs nothing.
 - Work for an executor runs inline at a later virtual time.
 - Whatever would touch the real world (sockets, pipes, subprocesses, signals) is not there: `AbstractEventLoop` raises
   NotImplementedError.

Each simulated process has a loop object of its own, so a future that leaks from one process to another is caught by
asyncio itself.
"""

# mypy: disable-error-code="override"
from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from tests.sim.network import SimServer, SimTransport

if TYPE_CHECKING:
    from tests.sim.world import Host, World


class SimHandle:
    """As asyncio's handles, without what only the debug mode needs: a run makes one for each of its callbacks."""

    __slots__ = ("_when", "arguments", "callback", "context", "was_cancelled")

    def __init__(
        self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context | None, when: float = 0.0
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = copy_context() if context is None else context
        self.was_cancelled = False
        self._when = when

    def cancel(self) -> None:
        """A cancelled timer is dropped when its turn comes."""
        self.was_cancelled = True
        self.callback, self.arguments = _nothing, ()

    def cancelled(self) -> bool:
        return self.was_cancelled

    def when(self) -> float:
        return self._when


def _nothing() -> None:
    return


class SimTask(asyncio.Task[Any]):
    """A task whose hash is a number of the run, so that sets of tasks are walked alike in every replay."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], *, loop: SimLoop, name: str | None, context: Context | None
    ) -> None:
        identity = self._identity = loop.world.identity()
        super().__init__(coroutine, loop=loop, name=name or f"{loop.host.name}#{identity}", context=context)

    def __hash__(self) -> int:
        return self._identity


class SimFuture(asyncio.Future[Any]):
    identity: int

    def __hash__(self) -> int:
        return self.identity


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, world: World, host: Host) -> None:
        self.world = world
        self.host = host
        self.ready: deque[SimHandle] = deque()
        self.dead = False
        self.paused = False
        self.steps = 0  # callbacks run so far
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timer_sequence = 0
        self._alarm = float("inf")  # the earliest moment the world will wake this loop for its timers
        self._lateness = world.stream(f"timers/{host.name}/{host.life}").random
        self._executor_chance = world.stream(f"executor/{host.name}/{host.life}")

    # -- callbacks

    def time(self) -> float:
        return self.world.now - self.host.started_at

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> SimHandle:
        handle = SimHandle(callback, arguments, context)
        if not self.dead:
            self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def _enqueue(self, handle: SimHandle) -> None:
        ready = self.ready
        if not ready and not self.paused:
            self.world.runnable.append(self)
        ready.append(handle)

    def call_later(
        self, delay: float, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> SimHandle:
        return self.call_at(self.time() + delay, callback, *arguments, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, arguments, context, when)
        if not self.dead:
            sequence = self._timer_sequence = self._timer_sequence + 1
            heappush(self._timers, (when, sequence, handle))
            self._set_alarm(when)
        return handle

    def _set_alarm(self, when: float) -> None:
        world, lateness = self.world, self._lateness
        timing, now = world.timing, world.now
        luck = lateness()
        late = timing.timer_very_late if luck < timing.very_late_chance else timing.timer_late
        moment = when + self.host.started_at
        if moment < now:
            moment = now
        moment += lateness() * late
        if moment < self._alarm:
            self._alarm = moment
            world.at(moment, self._ring)

    def _ring(self) -> None:
        """Queue every timer that is due, earliest deadline first."""
        if self.dead or self.world.now < self._alarm:
            return  # an earlier alarm has done this one's work
        self._alarm = float("inf")
        timers, now = self._timers, self.time()
        while timers and timers[0][0] <= now:
            _, _, handle = heappop(timers)
            if not handle.was_cancelled:
                self._enqueue(handle)
        while timers and timers[0][2].was_cancelled:
            heappop(timers)
        if timers:
            self._set_alarm(timers[0][0])

    # -- tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        future, world = SimFuture(loop=self), self.world
        future.identity = world._identities = world._identities + 1  # as world.identity() does, but at each wait
        return future

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return SimTask(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        outcome = self.create_future()

        def work() -> None:
            if outcome.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the one who awaits
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self.call_later(self._executor_chance.expovariate(1 / self.world.timing.blocking_mean), work)
        return outcome

    # -- life and death

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def get_debug(self) -> bool:
        return False

    def pause(self) -> None:
        self.paused = True
        if self.ready:
            self.world.runnable.remove(self)

    def resume(self) -> None:
        self.paused = False
        if self.ready:
            self.world.runnable.append(self)

    def die(self) -> None:
        """Nothing of this process runs again. The caller keeps what was suspended from being collected."""
        if self.ready and not self.paused:
            self.world.runnable.remove(self)
        self.dead = True
        self.world.bury(self._timers, list(self.ready))
        self.ready.clear()
        self._timers = []

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self.world.failed(self.host.name, context.get("message", "?"), context.get("exception"))

    async def shutdown_asyncgens(self) -> None:
        """The generators of this run are closed by the hook of `ambience`."""

    # -- the network

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        address = self.world.network.address_of(host, self.host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: Any = None,
        port: int = 0,
        *,
        start_serving: bool = True,
        **options: Any,
    ) -> SimServer:
        assert not options.get("ssl") and options.get("sock") is None, (
            "the simulation has plain connections only, and no sockets"
        )
        server = SimServer(self, protocol_factory, port or self.world.network.free_port())
        if start_serving:
            await server.start_serving()
        return server

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: int = 0, **options: Any
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        assert not options.get("ssl") and options.get("sock") is None, (
            "the simulation has plain connections only, and no sockets"
        )
        attempt = self.world.network.connect(self, host, port)
        try:
            transport = await attempt.outcome
        except BaseException:
            attempt.abandon()
            raise
        protocol = protocol_factory()
        made = self.create_future()
        transport.attach(protocol, made)
        await made
        return transport, protocol
