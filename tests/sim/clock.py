"""Time and chance inside the simulation, and the containment of those that are ambient.

`SimClock` is the clock port. `ambience` is in force while the world runs: clocks and randomness of the standard library
answer from the world, so that libraries replay too, threads can't be started, and each use by a package of ours is
noted as a failure, because ours must ask its `Env`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.world import Host, World

OUR_PACKAGES = ("service", "log", "txn", "idempotence", "isolation", "monitoring")


class SimClock:
    """The clock of one process. Monotonic time starts anew with each boot of the machine; wall time is set ahead or
    back by faults.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world

    def monotonic(self) -> float:
        return self._host.steady_seconds

    def wall_ms(self) -> int:
        return int((self._world.epoch_seconds + self._world.now + self._host.clock_offset) * 1000)


class RealThreadStarted(RuntimeError):
    """A thread inside the simulation can't be replayed."""


@contextlib.contextmanager
def ambience(world: World) -> Iterator[None]:
    """Answer ambient clocks and entropy from `world`, and forbid threads, for as long as this lasts."""
    chance = world.stream("ambient")

    def now() -> float:
        return world.now

    def wall() -> float:
        return world.epoch_seconds + world.now

    def nanoseconds(clock: Callable[[], float]) -> Callable[[], int]:
        return lambda: int(clock() * 1e9)

    def noted(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **options: Any) -> Any:
            asker = sys._getframe(1).f_globals.get("__name__", "")
            if asker.split(".", 1)[0] in OUR_PACKAGES:
                world.failed(asker, f"asked {name} itself instead of its Env")
            return answer(*arguments, **options)

        return ask

    def no_thread(*_: Any, **__: Any) -> None:
        raise RealThreadStarted("the simulation has no threads")

    def finish_generator(generator: Any) -> None:
        if world.current is not None:
            world.current.call_soon(world.current.create_task, generator.aclose())

    answers: list[tuple[Any, str, Callable[..., Any]]] = [
        (time, "time", wall),
        (time, "time_ns", nanoseconds(wall)),
        (time, "monotonic", now),
        (time, "monotonic_ns", nanoseconds(now)),
        (time, "perf_counter", now),
        (time, "perf_counter_ns", nanoseconds(now)),
        (os, "urandom", chance.randbytes),
        (random, "_urandom", chance.randbytes),
    ]
    saved = [(holder, name, getattr(holder, name)) for holder, name, _ in answers]
    saved.append((threading.Thread, "start", threading.Thread.start))
    random_state = random.getstate()
    generator_hooks = sys.get_asyncgen_hooks()
    collecting = gc.isenabled()
    for holder, name, answer in answers:
        setattr(holder, name, noted(f"{holder.__name__}.{name}", answer))
    threading.Thread.start = no_thread  # type: ignore[method-assign]
    random.seed(chance.random())
    sys.set_asyncgen_hooks(firstiter=None, finalizer=finish_generator)
    gc.disable()  # collection runs weakref callbacks and finalizers at moments that no seed decides
    try:
        yield
    finally:
        for holder, name, original in saved:
            setattr(holder, name, original)
        random.setstate(random_state)
        sys.set_asyncgen_hooks(*generator_hooks)
        if collecting:
            gc.enable()
