"""The simulation itself: it replays, and its crashes, networks and clocks behave as real ones do."""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.sim import world as world_module
from tests.sim.world import Host, Stalled, World

ROOT = Path(__file__).resolve().parents[2]
PORT = 9092


class Echo(asyncio.BufferedProtocol):
    """Sends back what comes, through a buffer of its own."""

    def __init__(self, heard: list[bytes] | None = None) -> None:
        self.buffer = bytearray(100)
        self.heard = heard if heard is not None else []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, size: int) -> None:
        self.heard.append(bytes(self.buffer[:size]))
        self.transport.write(self.buffer[:size])


class Caller(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.changed = asyncio.Event()
        self.lost: list[BaseException | None] = []
        self.paused = 0

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)
        self.changed.set()

    def pause_writing(self) -> None:
        self.paused += 1

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.changed.clear()
            await self.changed.wait()


async def call(host: str = "server") -> tuple[asyncio.Transport, Caller]:
    return await asyncio.get_running_loop().create_connection(Caller, host, PORT)


async def echo_server(host: Host) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, None, PORT)
    await server.serve_forever()


def in_world(
    client: Callable[[World], Coroutine[Any, Any, None]],
    *,
    server: Callable[[Host], Coroutine[Any, Any, None]] = echo_server,
    seed: int = 1,
) -> World:
    """Run `client` on a host beside a host called "server" until it returns."""
    world = World(seed)
    world.host("server", server)
    done: list[bool] = []

    async def main(host: Host) -> None:
        await client(world)
        done.append(True)

    world.host("client", main)
    world.run(until=300, stop=lambda: bool(done or world.failures))
    assert not world.failures, [str(failure) for failure in world.failures]
    assert done, "the client did not come to its end"
    world.close()
    return world


def test_bytes_arrive_whole_and_in_order() -> None:
    sent = bytes(range(256)) * 40

    async def client(world: World) -> None:
        transport, caller = await call()
        for start in range(0, len(sent), 333):
            transport.write(sent[start : start + 333])
            await asyncio.sleep(0.001)
        await caller.until(lambda: len(caller.received) == len(sent))
        assert caller.received == sent

    for seed in range(5):
        in_world(client, seed=seed)


def test_ordinary_asyncio_code_runs_unchanged() -> None:
    """Streams, queues, timeouts, gather, task groups and executors."""

    async def server(host: Host) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readline()).upper())
            await writer.drain()
            writer.close()

        await (await asyncio.start_server(answer, "0.0.0.0", PORT)).serve_forever()

    async def client(world: World) -> None:
        async def ask(word: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("server", PORT)
            writer.write(word + b"\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

        assert await asyncio.gather(*(ask(word) for word in (b"a", b"b", b"c"))) == [b"A\n", b"B\n", b"C\n"]
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.put(1))
            group.create_task(queue.put(2))
            assert [await queue.get(), await queue.get()] == [1, 2]
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        assert await asyncio.to_thread(lambda: 7) == 7

    in_world(client, server=server)


def test_timers_fire_in_order_and_never_early() -> None:
    async def client(world: World) -> None:
        loop = asyncio.get_running_loop()
        fired: list[float] = []

        def fire(deadline: float) -> None:
            assert loop.time() >= deadline
            fired.append(deadline)

        deadlines = [loop.time() + world.stream("t").random() for _ in range(200)]
        for deadline in deadlines:
            loop.call_at(deadline, fire, deadline)
        await asyncio.sleep(3)
        assert fired == sorted(deadlines)

    in_world(client)


def test_a_killed_process_runs_no_finally() -> None:
    """Neither when it is killed nor for as long as the world goes on."""
    ran: list[str] = []

    async def server(host: Host) -> None:
        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ran.append("finally")

        task = asyncio.get_running_loop().create_task(work())
        try:
            await task
        except BaseException:
            ran.append("except")
            raise

    async def client(world: World) -> None:
        await asyncio.sleep(1)
        world.hosts["server"].kill()
        await asyncio.sleep(1)
        world.hosts["server"].boot()
        await asyncio.sleep(10)
        assert world.hosts["server"].life == 2
        assert ran == []

    in_world(client, server=server)


def test_a_killed_process_is_reported_by_its_kernel_and_refuses_until_it_is_back() -> None:
    async def client(world: World) -> None:
        _, caller = await call()
        world.hosts["server"].kill()
        await caller.until(lambda: bool(caller.lost))
        with pytest.raises(ConnectionRefusedError):
            await call()
        world.hosts["server"].boot()
        await asyncio.sleep(0.1)
        await call()

    for seed in range(5):
        in_world(client, seed=seed)


def test_after_a_power_cut_nobody_is_told_until_the_machine_is_back() -> None:
    async def client(world: World) -> None:
        transport, caller = await call()
        world.hosts["server"].cut_power()
        transport.write(b"into the void")
        with pytest.raises(TimeoutError):
            await call()
        assert not caller.lost
        world.hosts["server"].boot()
        await asyncio.sleep(0.5)
        transport.write(b"anybody there?")
        await caller.until(lambda: bool(caller.lost))
        assert isinstance(caller.lost[0], ConnectionResetError)

    in_world(client)


def test_a_paused_process_answers_when_it_is_resumed() -> None:
    async def client(world: World) -> None:
        transport, caller = await call()
        world.hosts["server"].pause()
        transport.write(b"x")
        await asyncio.sleep(30)
        assert not caller.received
        world.hosts["server"].resume()
        await caller.until(lambda: caller.received == b"x")

    in_world(client)


def test_a_blocked_pair_delivers_after_healing_in_order() -> None:
    async def client(world: World) -> None:
        transport, caller = await call()
        await asyncio.sleep(0.5)
        world.network.block("client", "server")
        for number in range(10):
            transport.write(b"%d" % number)
            await asyncio.sleep(0.1)
        assert not caller.received
        world.network.heal()
        await caller.until(lambda: caller.received == b"0123456789")

    for seed in range(5):
        in_world(client, seed=seed)


def test_a_slow_reader_holds_its_writer_back() -> None:
    async def server(host: Host) -> None:
        class Deaf(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.pause_reading()
                asyncio.get_running_loop().call_later(5, transport.resume_reading)

        await (await asyncio.get_running_loop().create_server(Deaf, None, PORT)).serve_forever()

    async def client(world: World) -> None:
        transport, caller = await call()
        transport.write(bytes(1_000_000))
        assert caller.paused == 1
        assert transport.get_write_buffer_size() > 0
        await asyncio.sleep(20)
        assert transport.get_write_buffer_size() == 0

    in_world(client, server=server)


def test_a_process_dies_at_any_callback() -> None:
    """The fuse ends it between two callbacks, however busy it is."""

    async def server(host: Host) -> None:
        for _ in range(10**9):
            await asyncio.sleep(0)

    async def client(world: World) -> None:
        busy = world.hosts["server"]
        before = world.callbacks
        busy.light_fuse(1000, busy.kill)
        await asyncio.sleep(1)
        assert not busy.alive
        assert world.callbacks - before < 1100

    in_world(client, server=server)


def test_asking_the_standard_library_for_the_time_is_noticed_in_our_packages_only() -> None:
    async def client(world: World) -> None:
        assert abs(time.time() - world.epoch_seconds - world.now) < 1
        assert not world.failures
        scope = {"__name__": "service.something", "time": time}
        exec("time.time()", scope)
        assert "time.time" in str(world.failures.pop())

    in_world(client)


def test_a_world_where_nothing_is_left_to_happen_says_so() -> None:
    async def main(host: Host) -> None:
        await asyncio.get_running_loop().create_future()

    world = World(1)
    world.host("lonely", main)
    with pytest.raises(Stalled):
        world.run(until=10)
    world.close()


def test_what_a_process_leaves_suspended_at_its_exit_runs_no_further() -> None:
    ran: list[str] = []

    async def main(host: Host) -> None:
        async def suspended() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ran.append("finally")

        left = asyncio.ensure_future(suspended())
        await asyncio.sleep(0.1)
        assert not left.done()

    world = World(1)
    world.host("leaving", main)
    world.run(until=10, stop=lambda: not world.hosts["leaving"].alive)
    gc.collect()
    assert ran == []
    world.close()


def test_what_is_still_suspended_when_a_world_ends_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    async def main(host: Host) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ran.append("finally")
            logging.error("nobody's business")

    world = World(1)
    world.host("busy", main)
    world.run(until=1)
    world.close()
    assert (ran, caplog.records) == (["finally"], [])


def test_a_process_that_goes_round_with_hardly_any_time_passing_stalls_the_run() -> None:
    async def main(host: Host) -> None:
        for _ in range(10**9):
            await asyncio.sleep(0)

    world = World(1)
    world.host("busy", main)
    with pytest.raises(Stalled, match="by busy"):
        world.run(until=10)
    world.close()


def test_a_callback_that_does_not_end_is_a_failure_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "CALLBACK_SECONDS_MAX", 0.05)

    async def main(host: Host) -> None:
        while True:
            pass

    world = World(1)
    world.host("stuck", main)
    world.run(until=10, stop=lambda: bool(world.failures))
    assert "stuck: a callback does not end" in str(world.failures[0])
    world.close()


BUSY_RUN = """
import asyncio, sys
from tests.sim.test_world import busy_run
print(busy_run(int(sys.argv[1])))
"""


def busy_run(seed: int) -> int:
    """Clients that come and go, sets of tasks, crashes; returns the fingerprint."""
    world = World(seed)
    server = world.host("server", echo_server)

    async def main(host: Host) -> None:
        async def talk(word: str) -> None:
            try:
                async with asyncio.timeout(1):
                    transport, caller = await call()
                    transport.write(word.encode())
                    await caller.until(lambda: len(caller.received) == len(word) or bool(caller.lost))
                    transport.close()
            except (OSError, TimeoutError):
                await asyncio.sleep(0.1)

        for number in range(30):
            tasks = {asyncio.get_running_loop().create_task(talk(word)) for word in ("one", "two", "three", "four")}
            await asyncio.wait(tasks, timeout=0.001 * number)
            for task in tasks:
                task.cancel()
            async with asyncio.TaskGroup() as group:
                for word in ("five", "six"):
                    group.create_task(talk(word))

    async def fate(host: Host) -> None:
        chance = world.stream("fate")
        while True:
            await asyncio.sleep(chance.random())
            chance.choice((server.kill, server.cut_power, server.pause))()
            await asyncio.sleep(chance.random())
            server.resume()
            if not server.alive:
                server.boot()

    client = world.host("client", main)
    world.host("fate", fate)
    world.run(until=100, stop=lambda: not client.alive)
    world.close()
    return world.fingerprint


def test_the_same_seed_replays_in_processes_with_other_hash_seeds() -> None:
    fingerprints = []
    for hash_seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [sys.executable, "-c", BUSY_RUN, "3"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        fingerprints.append(int(result.stdout))
    assert fingerprints == [busy_run(3)] * 3
    assert busy_run(4) != fingerprints[0]
