"""The `Env` of a simulated process: its mount of the disk, its clocks, its chance, its tasks."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from log.disk import Disk
from service.ports import Clock, LoopTasks, Tasks
from tests.sim.clock import SimClock
from tests.sim.world import Host

T = TypeVar("T")

APART_S = 0.02
"""Time for the log to change under a helper that reads it apart."""
SLOW_APART_S = 3.0
"""On every second broker such a helper takes up to this long before it begins, and again before it tells."""


class SimEnv:
    """Made anew for each life of a host: nothing of it outlives the process. `folder` is where its disk begins."""

    def __init__(self, host: Host, folder: str = "") -> None:
        assert host.disk is not None, f"{host.name} has no disk"
        world = host.world
        self.disk: Disk = host.disk.mount(folder)
        self.clock: Clock = SimClock(host)
        self.rng = world.stream(f"env/{host.name}/{host.life}")
        self._slow_s = world.stream(f"apart/{host.name}").choice((0.0, SLOW_APART_S))
        self._pace = world.stream(f"apart/{host.name}/{host.life}")
        self.may_be_slow: Callable[[], bool] = lambda: False
        self.tasks: Tasks = LoopTasks(lambda name, error: world.failed(host.name, f"task {name} failed", error))

    def unique(self) -> bytes:
        return self.rng.randbytes(16)

    async def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)

    def apart(self) -> AbstractAsyncContextManager[Inline]:
        return nullcontext(Inline(lambda: self._slow_s * self._pace.random() if self.may_be_slow() else 0.0))


class Inline:
    """What would run in a process of its own runs in one turn of the loop, later than it was asked for, and tells what
    it found later still.
    """

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self._delay_s = delay_s

    async def run(self, function: str, *arguments: Any) -> Any:
        await asyncio.sleep(APART_S + self._delay_s())
        module, name = function.split(":")
        found = getattr(importlib.import_module(module), name)(*arguments)
        await asyncio.sleep(self._delay_s())
        return found
