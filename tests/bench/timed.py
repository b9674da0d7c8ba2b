"""A loop that measures its turns: the processor time that its thread spends between two looks for events. So others on
the machine count little.

    python -m tests.bench.timed FILE serve …      `oncelog serve …` on such a loop

At SIGUSR1 the process writes to FILE how long its longest turn since the last one was, in ms, and the longest pass of
the collector. The turn in which it writes is not counted.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from service.cli import serve
from service.cli.root import main


@dataclass(slots=True)
class Turns:
    """The longest turn since it was last asked, and the longest pass of the collector within any."""

    thread: int = 0
    began_s: float = 0.0
    longest_s: float = 0.0
    pass_began_s: float = 0.0
    longest_pass_s: float = 0.0
    where: Counter[str] = field(default_factory=Counter)
    over_s: float = float("inf")
    _seen: list[str] = field(default_factory=list)

    def began(self) -> None:
        self._seen.clear()
        self.began_s = time.thread_time()

    def ended(self) -> None:
        took_s = time.thread_time() - self.began_s
        self.longest_s = max(self.longest_s, took_s)
        if took_s > self.over_s:
            self.where.update(self._seen)

    def collected(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self.thread:
            return
        now_s = time.thread_time()
        if phase == "start":
            self.pass_began_s = now_s
        else:
            self.longest_pass_s = max(self.longest_pass_s, now_s - self.pass_began_s)

    def take(self) -> tuple[float, float]:
        taken = self.longest_s * 1000, self.longest_pass_s * 1000
        self.longest_s = self.longest_pass_s = 0.0
        return taken

    def sample(self, over: threading.Event) -> None:
        """Note again and again where the loop's thread is."""
        while not over.wait(0.001):
            self._seen.append(_place(sys._current_frames().get(self.thread)))


def _place(frame: FrameType | None) -> str:
    """The innermost functions, the innermost one first."""
    names: list[str] = []
    while frame is not None and len(names) < 4:
        code = frame.f_code
        names.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(names)


class TimedSelector(selectors.DefaultSelector):
    """Tells when a turn begins and ends."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns.ended()
        found = super().select(timeout)
        self._turns.began()
        return list(found)


def run(file: Path, arguments: list[str]) -> None:
    """`oncelog` with these arguments."""
    turns = Turns(thread=threading.get_ident())
    gc.callbacks.append(turns.collected)
    serve._loop_factory = lambda: lambda: asyncio.SelectorEventLoop(TimedSelector(turns))

    def tell(*_: object) -> None:
        turns.ended()
        longest_ms, longest_pass_ms = turns.take()
        whole = file.with_suffix(".new")
        whole.write_text(f"{longest_ms} {longest_pass_ms}")
        whole.rename(file)
        turns.began()

    signal.signal(signal.SIGUSR1, tell)
    main(arguments)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
