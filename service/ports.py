"""What the broker needs of the outside world: disk, clocks, random numbers, tasks and blocking work.

Nothing in the broker reads a clock, draws a random number or starts a task except through an `Env`, so that the whole
broker runs unchanged in the simulation. The network is reached through the running event loop (`create_server`,
`create_connection`), which the simulation replaces as a whole.

A real process uses `RealEnv`; the simulation brings its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from log.disk import Disk
from service.helper import Helper
from service.helper import HelperNotStarted as HelperNotStarted

logger = logging.getLogger("oncelog.tasks")

T = TypeVar("T")


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back: for waiting and for leases."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970. The clock may jump, so this is never used for order or leases."""
        ...


class Tasks(Protocol):
    failed: int
    """How many tasks have ended with an error."""

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as a task. An exception that it raises is reported, never lost."""
        ...

    async def cancel_all(self) -> None:
        """End every task still running, newest first."""
        ...


class Env(Protocol):
    disk: Disk
    clock: Clock
    rng: random.Random
    tasks: Tasks

    def unique(self) -> bytes:
        """16 bytes that are never given out again, here or elsewhere."""
        ...

    async def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that would block the loop in a thread, and return its result."""
        ...

    def apart(self) -> AbstractAsyncContextManager[Apart]:
        """A separate process for long computations, until the context ends."""
        ...


class Apart(Protocol):
    async def run(self, function: str, *arguments: Any) -> Any:
        """The result of `module:function`. Arguments and result may travel between processes, so they are plain values,
        or a disk. `HelperNotStarted`: there can be no such process now.
        """
        ...


class RealClock:
    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000


class LoopTasks:
    """Tasks on the running loop, in the order of their start. They are kept here because a task without a reference may
    be collected while it runs.
    """

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._running: dict[int, asyncio.Task[None]] = {}
        self._started = self.failed = 0
        self._on_failure = on_failure

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        number = self._started = self._started + 1
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[number] = task

        def ended(task: asyncio.Task[None]) -> None:
            del self._running[number]
            if not task.cancelled() and (error := task.exception()) is not None:
                self.failed += 1
                self._on_failure(name, error)

        task.add_done_callback(ended)
        return task

    async def cancel_all(self) -> None:
        current = asyncio.current_task()

        def left() -> list[asyncio.Task[None]]:
            return [each for each in reversed(self._running.values()) if each is not current and not each.done()]

        while running := left():  # one that still runs may begin another meanwhile
            for task in running:
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    if current is not None and current.cancelling():
                        raise
                except Exception as error:  # noqa: BLE001 - reported by `ended` too; the other tasks must still end
                    logger.debug("task ended with %r while being cancelled", error)


def report_failure(name: str, error: BaseException) -> None:
    """Log the failure of a task. The broker goes on, because it can still serve what it has acknowledged, and other
    tasks may be unaffected.
    """
    logger.critical("task %s ended with an error; its work is not done any more", name, exc_info=error)


class RealEnv:
    """The process's own disk, clocks and randomness."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.clock: Clock = RealClock()
        self.rng: random.Random = random.SystemRandom()
        self.tasks: Tasks = LoopTasks(report_failure)

    def unique(self) -> bytes:
        return self.rng.randbytes(16)

    async def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)

    def apart(self) -> Helper:
        return Helper()
