"""The process that keeps several brokers up. What is started here instead of brokers only sleeps."""

import asyncio
import errno
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.settings.sources import load_config
from service.supervisor import Supervisor

IS_UP = [sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(600)"]
IS_SLOW = [sys.executable, "-c", "import time; time.sleep(600)"]
PATIENCE_S = 60.0

spawn = asyncio.create_subprocess_exec


class Scene:
    """A supervisor of two, and the processes that it has started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str] = IS_UP) -> None:
        self.started: list[asyncio.subprocess.Process] = []
        self.fault: OSError | None = None
        self.asked = 0
        self.may_start = asyncio.Event()
        self.may_start.set()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", self._spawned)
        supervisor = Supervisor(load_config(None, {}, [f"log.dirs={folder}"]), 2, (), defaults={})
        monkeypatch.setattr(supervisor, "_command", lambda number, own: command)
        self.up, self.stop = asyncio.Event(), asyncio.Event()
        self._running = asyncio.ensure_future(supervisor._run({}, lambda members: self.up.set(), self.stop))

    async def _spawned(self, *command: str, **more: Any) -> asyncio.subprocess.Process:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        await self.may_start.wait()
        self.started.append(await spawn(*command, **more))
        return self.started[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.01)

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._running
        assert all(process.returncode is not None for process in self.started)


def test_a_broker_is_started_again_when_the_machine_can_have_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor, or memory, for a moment it stayed away for good, and nothing was said."""

    async def main() -> None:
        scene = Scene(tmp_path, monkeypatch)
        await scene.until(scene.up.is_set)
        scene.fault = OSError(errno.EMFILE, "Too many open files")
        scene.started[0].kill()
        await scene.until(lambda: scene.asked >= 4)
        scene.fault = None
        await scene.until(lambda: len(scene.started) == 3)
        scene.stop.set()
        await scene.ended()

    asyncio.run(main())


def test_what_is_being_started_ends_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came up and stayed, and the command that was to stop all of them hung."""

    async def main() -> None:
        scene = Scene(tmp_path, monkeypatch)
        await scene.until(scene.up.is_set)
        scene.may_start.clear()
        scene.started[0].kill()
        await scene.until(lambda: scene.asked == 3)
        scene.stop.set()
        await scene.until(lambda: scene.started[1].returncode is not None)
        scene.may_start.set()
        await scene.ended()
        assert len(scene.started) == 3

    asyncio.run(main())


def test_a_stop_waits_for_no_broker_that_is_slow_to_come_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first Ctrl-C did nothing while one hung in its start, and what the second said was that it did not start."""

    async def main() -> None:
        scene = Scene(tmp_path, monkeypatch, IS_SLOW)
        await scene.until(lambda: len(scene.started) == 2)
        scene.started[0].send_signal(signal.SIGSTOP)
        scene.stop.set()
        await scene.ended()
        assert not scene.up.is_set()

    asyncio.run(main())
