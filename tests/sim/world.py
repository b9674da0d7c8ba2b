"""The simulated world: one virtual time, one seed, a network, and hosts whose processes live and die.

What always holds:
 - The same seed gives the same run, callback by callback: `World.fingerprint` covers the schedule, every byte sent,
   every disk operation and every note.
 - Time moves only when no process has anything left to do, or by the small cost of a callback.
 - Inside one process callbacks run first in, first out, as asyncio promises. Which process runs next, and everything
   else nobody promised, the seed decides.
 - A killed process stops where it is: nothing of it runs again, no `finally`, no `except`.

Three ways to stop a host: `kill` ends the process while the kernel lives on (page cache kept, peers are told),
`cut_power` takes the machine (peers hear nothing, un-synced sectors are a lottery), `pause` is SIGSTOP. A process can
die inside a system call too: `ProcessDied` then unwinds through frames whose loop and disk are dead already, so that
whatever they still do reaches nothing.

Loops, network and disks are beside this file.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import random
import signal
import sys
import traceback
import warnings
import zlib
from asyncio import AbstractEventLoop, Task, all_tasks, get_running_loop, sleep
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import FrameType
from typing import Any

from tests.sim.clock import ambience
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop
from tests.sim.network import Network

CALLBACK_SECONDS = 3e-6  # what running one callback costs in virtual time: a busy loop can't freeze the clock
FINGERPRINT_EVERY = 64  # callbacks between two samples of the schedule
MAX_CALLBACKS = 30_000_000  # a run that needs more goes round in circles
MAX_CALLBACKS_A_SECOND = 100_000  # of virtual time; ten times as many as in the busiest runs
CALLBACK_SECONDS_MAX = 20.0  # of the processor's time, in which a callback must end


class ProcessDied(BaseException):
    """The process that made this call has died. It is no `Exception`, so that no handler takes it for a failure."""


class Stalled(Exception):
    """The run can't go on: nothing is left to do, or it repeats itself for ever."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that no simulated process may do, such as leaving an exception unhandled."""

    at: float
    host: str
    what: str
    error: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.at:.6f} {self.host}: {self.what}" + (f" ({self.error!r})" if self.error is not None else "")


@dataclass(slots=True)
class Timing:
    """How late things are. A run may draw these values from its seed."""

    latency_least: float = 0.0002
    latency_spread: float = 0.001
    latency_spike: float = 0.2
    spike_chance: float = 0.005
    timer_late: float = 0.001
    timer_very_late: float = 0.2
    very_late_chance: float = 0.01
    split_chance: float = 0.2
    join_chance: float = 0.5
    connect_timeout: float = 3.0
    blocking_mean: float = 0.0005


Action = Callable[..., object]
Main = Callable[["Host"], Coroutine[Any, Any, None]]


class World:
    def __init__(self, seed: int, *, timing: Timing | None = None, trace: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.epoch_seconds = 1_700_000_000.0
        self.timing = timing or Timing()
        self.callbacks = 0
        self.fingerprint = 0
        self.trace: list[tuple[Any, ...]] | None = [] if trace else None
        self.failures: list[Failure] = []
        self.hosts: dict[str, Host] = {}
        self.runnable: list[SimLoop] = []
        self.current: SimLoop | None = None
        self._events: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._sequence = 0
        self._identities = 0
        self._graveyard: list[object] = []
        self._schedule = self.stream("schedule")
        self._second = (0, 0.0)  # callbacks and virtual time when the current second began
        self.network = Network(self)

    # -- chance and identity

    def stream(self, name: str) -> random.Random:
        """An independent source of random numbers: drawing from it does not change the others."""
        return random.Random(f"{self.seed}/{name}")

    def identity(self) -> int:
        """A number that occurs once in this run."""
        self._identities += 1
        return self._identities

    # -- what happens when

    def at(self, when: float, action: Action, *arguments: Any) -> None:
        """Let the world itself (a kernel, a wire, fate) do `action` at `when`; never in the past."""
        sequence = self._sequence = self._sequence + 1
        now = self.now
        heappush(self._events, (when if when > now else now, sequence, action, arguments))

    def after(self, seconds: float, action: Action, *arguments: Any) -> None:
        self.at(self.now + seconds, action, *arguments)

    def mix(self, data: bytes) -> None:
        """Add `data` to the fingerprint."""
        self.fingerprint = zlib.crc32(data, self.fingerprint)

    def note(self, *what: Any) -> None:
        """Write one line of the run's story."""
        self.mix(repr((round(self.now, 9), self.callbacks, what)).encode())
        if self.trace is not None:
            self.trace.append((round(self.now, 6), *what))

    def failed(self, host: str, what: str, error: BaseException | None = None) -> None:
        self.note("failure", host, what, repr(error))
        self.failures.append(Failure(self.now, host, what, error))

    # -- running

    def run(self, *, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Go on until `stop()` says so or virtual time passes `until`. `stop` is asked between callbacks, every now and
        then.
        """
        with ambience(self), _endless_callbacks_die(self):
            try:
                self._run(until, stop)
            finally:
                self._enter(None)

    def _run(self, until: float, stop: Callable[[], bool]) -> None:
        events, runnable, chance = self._events, self.runnable, self._schedule.random
        while True:
            now = self.now
            if events and events[0][0] <= now:
                self._enter(None)
                while events and events[0][0] <= now:
                    _, _, action, arguments = heappop(events)
                    action(*arguments)
            if not runnable:
                if stop():
                    return
                if not events:
                    raise Stalled(
                        f"nothing is left to happen; failures so far: {[str(each) for each in self.failures[:3]]}"
                    )
                if events[0][0] > until:
                    self.now = until
                    return
                self.now = max(now, events[0][0])
                continue
            self._step(runnable[int(chance() * len(runnable))] if len(runnable) > 1 else runnable[0])
            if self.callbacks % FINGERPRINT_EVERY == 0:
                self.mix(b"%d %.9f %d" % (self.callbacks, self.now, self._identities))
                if stop() or self.now > until:
                    return
                self._must_get_on()

    def _must_get_on(self) -> None:
        callbacks, began = self._second
        if self.now - began >= 1.0:
            self._second = self.callbacks, self.now
        elif self.callbacks - callbacks > MAX_CALLBACKS_A_SECOND:
            busy = self.current.host.name if self.current is not None else "nobody"
            raise Stalled(
                f"{self.callbacks - callbacks} callbacks within a virtual second at {self.now:.3f}, by {busy}"
            )
        if self.callbacks > MAX_CALLBACKS:
            raise Stalled(f"{self.callbacks} callbacks in {self.now:.3f} virtual seconds")

    def _step(self, loop: SimLoop) -> None:
        """One callback of one process."""
        ready = loop.ready
        handle = ready.popleft()
        if not ready:
            self.runnable.remove(loop)
        if handle.was_cancelled:
            return
        self.callbacks += 1
        loop.steps += 1
        self.now += CALLBACK_SECONDS
        if self.current is not loop:
            self._enter(loop)
        try:
            handle.context.run(handle.callback, *handle.arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio's handles do
            loop.call_exception_handler({"message": f"Exception in callback {handle.callback}", "exception": error})
        host = loop.host
        if host.fuse is not None and not loop.dead:
            host.fuse -= 1
            if host.fuse <= 0:
                host.fuse = None
                self._enter(None)
                host.on_fuse()

    def _enter(self, loop: SimLoop | None) -> None:
        """Say which process runs from now on; None: the world itself."""
        self.current = loop
        _set_running_loop(loop)

    # -- hosts

    def host(self, name: str, main: Main, *, disk: SimDisk | None = None, boot: bool = True) -> Host:
        """A machine that runs `main` whenever it is booted."""
        assert name not in self.hosts, f"two hosts called {name}"
        host = self.hosts[name] = Host(self, name, main, disk)
        if disk is not None:
            disk.owner = host
        if boot:
            host.boot()
        return host

    def bury(self, *what: object) -> None:
        """Keep suspended coroutines of dead processes. If one were collected, its `finally` blocks would run, which a
        killed process never does.
        """
        self._graveyard.extend(what)

    def close(self) -> None:
        """End the run. `finally` blocks of suspended coroutines run now, and reach nothing."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        disabled = logging.root.manager.disable
        logging.disable()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for host in self.hosts.values():
                    host.close()
                self.hosts.clear()
                self._events.clear()
                self.runnable.clear()
                self.network.close()
                self._graveyard.clear()
                gc.collect()
        finally:
            sys.unraisablehook = hook
            logging.disable(disabled)


@contextlib.contextmanager
def _endless_callbacks_die(world: World) -> Iterator[None]:
    """A callback that never ends is a failure of its process, and the task that ran it dies where it is."""
    seen = -1

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal seen
        stuck, seen = world.callbacks == seen and world.current is not None, world.callbacks
        if stuck and world.current is not None:
            where = " < ".join(each.name for each in reversed(traceback.extract_stack(frame)[-8:]))
            died = ProcessDied(where)
            world.failed(world.current.host.name, f"a callback does not end within {CALLBACK_SECONDS_MAX:g} s", died)
            raise died

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, CALLBACK_SECONDS_MAX, CALLBACK_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


async def come_true(condition: Callable[[], bool], *, within: float = math.inf, every: float = 0.05) -> bool:
    """Wait in virtual time until `condition` holds; False if it doesn't within so many seconds."""
    loop = get_running_loop()
    deadline = loop.time() + within
    while not condition():
        if loop.time() >= deadline:
            return False
        await sleep(every)
    return True


@dataclass(eq=False)
class Host:
    """One machine and the process on it. `life` counts the boots."""

    world: World
    name: str
    main: Main
    disk: SimDisk | None
    life: int = 0
    loop: SimLoop | None = None
    task: Task[None] | None = None
    powered: bool = True
    clock_offset: float = 0.0  # wall clock: seconds ahead of the world's
    started_at: float = 0.0  # monotonic clock: when the machine was switched on
    _rate: float = 1.0
    _rate_since: tuple[float, float] = (0.0, 0.0)  # the world's time, and what the monotonic clock said
    fuse: int | None = None  # callbacks left until `on_fuse`
    on_fuse: Callable[[], None] = lambda: None
    on_terminate: Callable[[], None] | None = None  # what the process does on SIGTERM
    exited: list[BaseException | None] = field(default_factory=list)  # how each life ended that ended by itself
    deaths: list[tuple[float, bool]] = field(default_factory=list)  # when each life ended, and whether by a power cut
    may_fail: bool = False  # main may end with an error: its disk is being harmed

    @property
    def alive(self) -> bool:
        return self.loop is not None

    @property
    def steady_seconds(self) -> float:
        """The host's monotonic clock."""
        since, said = self._rate_since
        return said + (self.world.now - since) * self._rate

    def run_clock_at(self, rate: float) -> None:
        """From now on the host's monotonic clock runs faster than the world's by this factor. Timers follow the world's
        clock.
        """
        self._rate_since, self._rate = (self.world.now, self.steady_seconds), rate

    def boot(self) -> None:
        """Start the process, on a machine that is switched on for it."""
        assert self.loop is None, f"{self.name} is running"
        if not self.powered or not self.life:
            self.started_at = self.world.now - 1000 * self.world.stream(f"uptime/{self.name}/{self.life}").random()
            self._rate_since = self.started_at, 0.0
        self.powered = True
        self.life += 1
        self.on_terminate = None
        if self.disk is not None:
            self.disk.life = self.life
        loop = self.loop = SimLoop(self.world, self)  # type: ignore[abstract]
        self.world.note("boot", self.name, self.life)
        self.world.network.came_up(self)
        outer: AbstractEventLoop | None = _get_running_loop()
        _set_running_loop(loop)
        try:
            self.task = loop.create_task(self.main(self), name=f"{self.name}/{self.life}")
        finally:
            _set_running_loop(outer)
        self.task.add_done_callback(self._returned)

    def kill(self) -> None:
        """SIGKILL."""
        self._die("kill", power=False)

    def cut_power(self) -> None:
        self._die("power", power=True)

    def terminate(self) -> None:
        """SIGTERM: the process ends itself, if it has said how."""
        if self.loop is not None and self.on_terminate is not None:
            self.world.note("terminate", self.name)
            self.loop.call_soon(self.on_terminate)

    def pause(self) -> None:
        """SIGSTOP: nothing of the process runs until `resume`; the kernel goes on receiving for it."""
        if self.loop is not None and not self.loop.paused:
            self.world.note("pause", self.name)
            self.loop.pause()

    def resume(self) -> None:
        if self.loop is not None and self.loop.paused:
            self.world.note("resume", self.name)
            self.loop.resume()

    def light_fuse(self, callbacks: int, then: Callable[[], None]) -> None:
        """Call `then` after this many further callbacks of the host. So a crash can come at any await, and not only
        where something else happens.
        """
        self.fuse, self.on_fuse = callbacks, then

    def close(self) -> None:
        if self.loop is not None:
            self.loop.die()
            self.loop = None
        self.task = None
        if self.disk is not None:
            self.disk.life = -1

    def _lose_power_while_down(self) -> None:
        """The process had ended before. Now its machine loses power, and with it the page cache."""
        self.world.note("power", self.name, self.life)
        self.powered = False
        self.deaths.append((self.world.now, True))
        if self.disk is not None:
            self.disk.process_gone(power=True)

    def _returned(self, task: Task[None]) -> None:
        """`main` came to its end: the process exits, its sockets are closed by the kernel."""
        error = None if task.cancelled() else task.exception()
        if self.loop is None or task is not self.task:
            return
        self.exited.append(error)
        if error is not None and not self.may_fail:
            self.world.failed(self.name, "main ended with an error", error)
        self._die("exit", power=False)

    def _die(self, how: str, *, power: bool) -> None:
        loop = self.loop
        if loop is None:
            if power and self.powered:
                self._lose_power_while_down()
            return
        world = self.world
        world.note(how, self.name, self.life)
        self.deaths.append((world.now, power))
        world.bury(loop, list(loop.ready), self.task, all_tasks(loop))
        loop.die()
        self.loop, self.task, self.fuse = None, None, None
        self.powered = not power
        world.network.went_down(self, loop, power=power)
        if self.disk is not None:
            self.disk.process_gone(power=power)
