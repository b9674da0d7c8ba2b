"""The process beside the broker's own: it answers, fails in words, dies and ends as it should."""

import asyncio
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from log.batch import CorruptBatch
from log.cleaning_job import NumberArray
from log.disk import RealDisk
from service.helper import OUT_OF_MEMORY, SENT_AT_ONCE, Helper, HelperFailed, HelperNotStarted

HERE = "tests.service.test_helper"


def own_number() -> int:
    return os.getpid()


def rank_when_memory_runs_out() -> str:
    return OUT_OF_MEMORY.read_text()


def fail(travels: bool) -> None:
    class HomelessError(Exception):
        """Of a class that only this process knows."""

    raise CorruptBatch("as told") if travels else HomelessError("as told")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def names_in(disk: RealDisk) -> list[str]:
    print("this is no answer")
    return disk.listdir("")


def sleep_long(started: str) -> None:
    Path(started).write_text(str(os.getpid()))
    time.sleep(600)


def backwards(numbers: NumberArray, more: NumberArray) -> NumberArray:
    found = NumberArray()
    found.extend(reversed(numbers))
    found.extend(more)
    return found


def is_alive(number: int) -> bool:
    stat = Path(f"/proc/{number}/stat")
    return stat.exists() and stat.read_text().rpartition(") ")[2][0] != "Z"


def number_in(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def until_it_started(path: Path) -> int:
    async with asyncio.timeout(30):
        while not number_in(path):  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.01)
    return int(number_in(path))


def test_one_process_does_all_that_is_asked_and_ends_with_the_context(tmp_path: Path) -> None:
    async def main() -> int:
        async with Helper() as helper:
            number: int = await helper.run(f"{HERE}:own_number")
            assert number not in (os.getpid(), 0)
            assert await helper.run(f"{HERE}:own_number") == number
            (tmp_path / "a").touch()
            disk = RealDisk(str(tmp_path))
            assert await helper.run(f"{HERE}:names_in", disk) == ["a"]
            disk.close()
        return number

    assert not is_alive(asyncio.run(main()))


def test_what_goes_wrong_there_is_told_here() -> None:
    async def main() -> None:
        async with Helper() as helper:
            with pytest.raises(CorruptBatch, match="as told"):
                await helper.run(f"{HERE}:fail", True)
            with pytest.raises(HelperFailed, match="HomelessError: as told"):
                await helper.run(f"{HERE}:fail", False)

    asyncio.run(main())


def test_a_helper_that_dies_is_replaced_for_the_next_who_asks() -> None:
    async def main() -> None:
        async with Helper() as helper:
            first = await helper.run(f"{HERE}:own_number")
            with pytest.raises(HelperFailed, match=r"ended with -9"):
                await helper.run(f"{HERE}:die")
            assert await helper.run(f"{HERE}:own_number") != first

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_sent_to_the_broker_and_all_it_started_is_left_to_the_broker(number: int) -> None:
    """By a terminal, or by a supervisor."""

    async def main() -> None:
        async with Helper() as helper:
            process = await helper.run(f"{HERE}:own_number")
            os.kill(process, number)
            assert await helper.run(f"{HERE}:own_number") == process

    asyncio.run(main())


@pytest.mark.skipif(not OUT_OF_MEMORY.exists(), reason="this system has no such rank")
def test_when_memory_runs_out_the_helper_goes_before_the_broker() -> None:
    async def main() -> int:
        async with Helper() as helper:
            return int(await helper.run(f"{HERE}:rank_when_memory_runs_out"))

    assert asyncio.run(main()) == 1000 > int(OUT_OF_MEMORY.read_text())


def test_the_folder_a_broker_is_started_from_lends_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold a project of the user's, with a `service` or a `queue` of its own."""
    for name in ("service", "log", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with Helper() as helper:
            assert await helper.run(f"{HERE}:own_number") != os.getpid()

    asyncio.run(main())


def test_a_caller_that_stops_waiting_ends_the_work(tmp_path: Path) -> None:
    async def main() -> int:
        async with Helper() as helper:
            work = asyncio.ensure_future(helper.run(f"{HERE}:sleep_long", str(tmp_path / "started")))
            number = await until_it_started(tmp_path / "started")
            work.cancel()
            await asyncio.wait([work])
            assert not is_alive(number)
        return number

    assert not is_alive(asyncio.run(main()))


def test_a_helper_outlives_no_broker_that_is_killed(tmp_path: Path) -> None:
    """In the middle of its work: it may not write into a folder that the next broker has claimed."""
    program = (
        "import asyncio; from service.helper import Helper\n"
        "async def main():\n  async with Helper() as helper:\n"
        f"    await helper.run('{HERE}:sleep_long', '{tmp_path}/n')\n"
        "asyncio.run(main())"
    )
    broker = subprocess.Popen([sys.executable, "-c", program])
    number = asyncio.run(until_it_started(tmp_path / "n"))
    broker.kill()
    broker.wait()

    async def until_it_is_gone() -> None:
        async with asyncio.timeout(30):
            while is_alive(number):  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.01)

    asyncio.run(until_it_is_gone())


def test_a_broker_needs_no_numpy_in_its_own_process() -> None:
    """It would make its start a quarter of a second longer, and hold the loop for as long if it came later."""
    program = "import sys, service.process, service.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_helper_for_which_there_is_no_descriptor_says_that_it_was_not_started() -> None:
    """uvloop says "error -1" then. With descriptors there is one."""

    async def scene() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        taken: list[int] = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            async with Helper() as helper:
                with pytest.raises(HelperNotStarted):
                    await helper.run(f"{HERE}:own_number")
                while taken:
                    os.close(taken.pop())
                assert await helper.run(f"{HERE}:own_number") != os.getpid()
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    uvloop.run(scene())


def test_long_arrays_travel_beside_the_pickle_and_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long they are is the clients' choice: a million producers took 60 ms of one turn."""
    many = NumberArray()
    many.extend(range(400_000))
    few = NumberArray()
    few.append(-1)
    pickled: list[int] = []
    written: list[int] = []
    unpickled: list[int] = []
    read: list[int] = []
    dumps, loads, write, readexactly = (
        *(pickle.dumps, pickle.loads),
        *(asyncio.StreamWriter.write, asyncio.StreamReader.readexactly),
    )

    def counted(*of: Any, **how: Any) -> bytes:
        data = dumps(*of, **how)
        pickled.append(len(data))
        return data

    def noted(pipe: asyncio.StreamWriter, data: bytes | memoryview) -> None:
        written.append(len(data))
        write(pipe, data)

    def taken(data: bytes, **how: Any) -> Any:
        unpickled.append(len(data))
        return loads(data, **how)

    async def some(pipe: asyncio.StreamReader, size: int) -> bytes:
        read.append(size)
        return await readexactly(pipe, size)

    async def scene() -> None:
        async with Helper() as helper:
            monkeypatch.setattr(pickle, "dumps", counted)
            monkeypatch.setattr(pickle, "loads", taken)
            monkeypatch.setattr(asyncio.StreamWriter, "write", noted)
            monkeypatch.setattr(asyncio.StreamReader, "readexactly", some)
            found = await helper.run(f"{HERE}:backwards", many, few)
            assert isinstance(found, memoryview), "nothing is copied to take it"
            assert list(found) == [*reversed(range(400_000)), -1]
            assert list(await helper.run(f"{HERE}:backwards", NumberArray(), few)) == [-1]

    asyncio.run(scene())
    assert max(pickled) < 1_000
    assert max(written) <= SENT_AT_ONCE
    assert sum(written) > 8 * 400_000
    assert max(unpickled) < 1_000
    assert max(read) <= SENT_AT_ONCE
    assert sum(read) > 8 * 400_000
