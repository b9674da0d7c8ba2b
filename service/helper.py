"""A process beside the broker's own, for work that computes for long: as a thread it would take the interpreter from
the event loop.

What always holds: it does one thing after another, of a low priority, and ends with the broker, however that ends: its
end of the pipe closes then. If it dies, the waiting caller is told, and the next one gets a new helper.

`Helper` is the broker's side, `main` the other.
"""

import asyncio
import importlib
import os
import pickle
import queue
import signal
import struct
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from log.unbroken import unbroken

SIZE: Final = struct.Struct(">Q")
SENT_AT_ONCE: Final = 256 << 10
NICENESS: Final = 10
DYING_S: Final = 5.0
OUT_OF_MEMORY: Final = Path("/proc/self/oom_score_adj")
"""When the machine's memory runs out, the helper goes before the broker: what it does can be done again."""


class HelperFailed(Exception):
    """The helper did not do what it was asked for; the text tells why."""


class HelperNotStarted(HelperFailed):
    """The machine or the process can't have another process now. uvloop does not always tell why: that there is no
    descriptor left comes as error -1.
    """


class Helper:
    """Used as a context: what is left of the process at the end is ended."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "Helper":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def run(self, function: str, *arguments: Any) -> Any:
        """What `module:function` returns there. Arguments and result are pickled."""
        if self._process is None:
            # It finds our modules where we found them, wherever that was, and no others: -P keeps it from looking first
            # into the folder that it was started from, which may be full of somebody else's.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "service.helper"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=environment,
                )
            except OSError as refused:
                raise HelperNotStarted(f"no process for it can be started: {refused}") from refused
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            await _send(process.stdin, function, arguments)
            result, error, told = await _receive(process.stdout)
        except (asyncio.IncompleteReadError, ConnectionError):
            # It dies by itself. Killed meanwhile, it would be waited for in two places, and what it died of be lost.
            with suppress(TimeoutError):
                async with asyncio.timeout(DYING_S):
                    await process.wait()
            await self._end()
            raise HelperFailed(f"the process ended with {process.returncode}") from None
        except BaseException:
            await self._end()  # cancelled: it would go on with what nobody waits for
            raise
        if told:
            raise error or HelperFailed(told)
        return result

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        # A caller that is cancelled meanwhile, by a broker that stops, still leaves nothing open behind.
        await unbroken(process.communicate())


def _parts_of(message: Any) -> list[memoryview]:
    """The pickle, and the buffers beside it: long arrays are such."""
    beside: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(message, protocol=5, buffer_callback=beside.append)
    return [memoryview(pickled), *(each.raw() for each in beside)]


async def _send(pipe: asyncio.StreamWriter, function: str, arguments: tuple[Any, ...]) -> None:
    """Nothing of long arrays is copied but the piece that is written."""
    parts = _parts_of((function, arguments))
    pipe.write(SIZE.pack(len(parts)))
    for part in parts:
        pipe.write(SIZE.pack(len(part)))
        for at in range(0, len(part), SENT_AT_ONCE):
            pipe.write(part[at : at + SENT_AT_ONCE])
            await pipe.drain()


async def _receive(pipe: asyncio.StreamReader) -> Any:
    """The inverse of what `main` writes: long arrays arrive piece by piece."""
    parts: list[bytearray] = []
    for _ in range(*SIZE.unpack(await pipe.readexactly(SIZE.size))):
        (size,) = SIZE.unpack(await pipe.readexactly(SIZE.size))
        parts.append(part := bytearray())
        while left := size - len(part):
            part += await pipe.readexactly(min(left, SENT_AT_ONCE))
            await asyncio.sleep(0)
    pickled, *beside = parts
    return pickle.loads(pickled, buffers=beside)


def main() -> None:
    """Do what is asked for on the standard input, and answer on the standard output, until the input ends."""
    os.nice(NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the broker and all that it has started; it will end us
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # not every system has it
        OUT_OF_MEMORY.write_text("1000")
    asked: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever else is printed is no answer
        while True:
            pickled, *beside = asked.get()
            function, arguments = pickle.loads(pickled, buffers=beside)
            parts = _parts_of(_do(function, arguments))
            answers.write(SIZE.pack(len(parts)))
            for part in parts:
                answers.write(SIZE.pack(len(part)))
                answers.write(part)
            answers.flush()


def _listen(asked: "queue.SimpleQueue[list[bytes]]") -> None:
    pipe = sys.stdin.buffer
    while len(count := pipe.read(SIZE.size)) == SIZE.size:
        sizes = (SIZE.unpack(_exactly(pipe, SIZE.size)) for _ in range(*SIZE.unpack(count)))
        asked.put([_exactly(pipe, *size) for size in sizes])
    os._exit(0)  # the broker is gone, or wants us gone: in the middle of anything


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        os._exit(0)
    return data


def _do(function: str, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None, str]:
    """The result; or the error as such, where it can travel, and as text."""
    module, name = function.split(":")
    try:
        return getattr(importlib.import_module(module), name)(*arguments), None, ""
    except Exception as error:  # noqa: BLE001 - it is told to the caller
        told = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - errors of all kinds of libraries, few of which were made to travel
            return None, None, told
        return None, error, told


if __name__ == "__main__":
    main()
