"""How the controller's lookout holds its connections; what it makes of a death is in the simulation."""

import asyncio
import errno
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from log.disk import RealDisk
from service.client.connection import Client
from service.cluster import lookout as lookout_module
from service.cluster.image import RegisteredBroker
from service.cluster.lookout import UNREACHABLE, Lookout, _line_to
from service.cluster.metadata import ClusterMetadata
from service.ports import RealEnv
from tests.service.broker.cluster_stage import until

BROKER = RegisteredBroker(id=2, epoch=7, session=1, endpoints=())


async def watch(folder: Path, host: str, port: int, enough: asyncio.Event | None) -> None:
    """Let the lookout of broker 1 watch this place, until there is enough to see or a moment is over."""
    env = RealEnv(RealDisk(str(folder)))
    image = SimpleNamespace(brokers={BROKER.id: BROKER}, controller_id=1)
    metadata = SimpleNamespace(in_session=True, controlling=True, broker_id=1, image=image)

    async def dead(broker: RegisteredBroker) -> None:
        raise AssertionError("it never refused")

    Lookout(env, cast(ClusterMetadata, metadata), lambda broker: (host, port), dead).look()
    try:
        async with asyncio.timeout(0.3):
            await (enough or asyncio.Event()).wait()
    except TimeoutError:
        pass
    assert env.tasks.failed == 0
    await env.tasks.cancel_all()


def test_a_broker_that_takes_each_connection_back_is_asked_with_pauses(tmp_path: Path) -> None:
    """One without a place for it was asked 3,000 times a second."""
    many = asyncio.Event()
    connections = 0

    async def main() -> None:
        async def take_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            writer.close()
            if connections > 5:
                many.set()

        async with await asyncio.start_server(take_back, "127.0.0.1", 0) as server:
            await watch(tmp_path, "127.0.0.1", server.sockets[0].getsockname()[1], many)

    asyncio.run(main())
    assert 0 < connections <= 5


@pytest.mark.parametrize("host", ["broker-1..svc", "a" * 64])
def test_a_host_that_can_t_be_a_name_is_one_that_can_t_be_reached(tmp_path: Path, host: str) -> None:
    """The search for it is no `OSError`: it ended the lookout for that broker and each look at health."""
    asyncio.run(watch(tmp_path, host, 9092, None))

    async def main() -> None:
        with pytest.raises(OSError, match="can't be a host's name"):
            await Client(host, 9092, "test").connect()

    asyncio.run(main())


class Watched:
    """A broker that takes connections until it dies, and what the lookout of broker 1 makes of it."""

    def __init__(self, folder: Path) -> None:
        self.env = RealEnv(RealDisk(str(folder)))
        self.dead = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        self.image = SimpleNamespace(brokers={BROKER.id: BROKER}, controller_id=1)

    async def begin(self) -> Lookout:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        metadata = SimpleNamespace(in_session=True, controlling=True, broker_id=1, image=self.image)

        async def take_for_dead(broker: RegisteredBroker) -> None:
            self.image.brokers = {}
            self.dead.set()

        lookout = Lookout(self.env, cast(ClusterMetadata, metadata), lambda broker: ("two", port), take_for_dead)
        lookout.look()
        await until(lambda: len(self.writers) == 1)
        return lookout

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await reader.read()
        writer.close()

    def die(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def end(self) -> None:
        await self.env.tasks.cancel_all()
        self.die()
        await asyncio.sleep(0.01)  # the server's tasks end


@pytest.mark.parametrize(
    ("other", "is_dead"), [("255.255.255.255", True), ("127.0.0.2", True), ("192.0.2.1", False), ("", True)]
)
def test_a_broker_with_several_addresses_is_dead_if_one_refuses_and_none_may_be_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, is_dead: bool
) -> None:
    """To one there was no route: all errors together are no refusal, so its session had to end first."""
    monkeypatch.setattr(lookout_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(lookout_module, "CONNECT_S", 0.2)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def found(host: str, port: int, **_: Any) -> list[Any]:
            here = [address for address in ("127.0.0.1", other) if address] if host == "two" else [host]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in here]

        async def connected(factory: Any, host: str, port: int) -> Any:
            if host == "192.0.2.1":  # nobody answers there
                await asyncio.Event().wait()
            return await connect(factory, host, port)

        monkeypatch.setattr(loop, "getaddrinfo", found)
        monkeypatch.setattr(loop, "create_connection", connected)
        watched = Watched(tmp_path)
        await watched.begin()
        watched.die()
        try:
            async with asyncio.timeout(5 if is_dead else 1):
                await watched.dead.wait()
        except TimeoutError:
            pass
        assert watched.dead.is_set() is is_dead
        assert watched.env.tasks.failed == 0
        await watched.end()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "first", "is_dead"),
    [
        *[(each, "127.0.0.1", False) for each in (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENOBUFS, errno.EPERM)],
        *[(each, "127.0.0.1", True) for each in UNREACHABLE],
        (errno.EADDRNOTAVAIL, "::1", True),  # IPv6 is off
        (errno.EMFILE, "::1", False),
    ],
)
def test_a_broker_is_not_dead_because_this_process_could_not_ask_it(
    monkeypatch: pytest.MonkeyPatch, code: int, first: str, is_dead: bool
) -> None:
    """A broker whose name has another address that always refuses counted as dead while no descriptor was free here."""

    async def main() -> None:
        async def found(host: str, port: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in (first, "127.0.0.2")]

        async def connected(factory: Any, host: str, port: int) -> Any:
            raise OSError(code, "") if host == first else ConnectionRefusedError

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connected)
        with pytest.raises(OSError) as failed:
            await _line_to("two", 9092)
        assert isinstance(failed.value, ConnectionRefusedError) is is_dead

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "asked"), [("10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1%eth0"), ("named", "fe80::2%4")]
)
def test_a_host_that_is_an_address_is_not_looked_up_and_one_of_a_link_keeps_its_link(
    monkeypatch: pytest.MonkeyPatch, host: str, asked: str
) -> None:
    """A look-up waited for a thread behind forty slow calls of the disk, so the death of a broker was seen late."""

    async def main() -> None:
        async def found(host: str, port: int, **_: Any) -> list[Any]:
            assert host == "named"
            return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::2", port, 0, 4))]

        async def connected(factory: Any, host: str, port: int) -> Any:
            return host

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connected)
        assert cast(Any, await _line_to(host, 9092)) == asked

    asyncio.run(main())


def test_the_connection_to_a_life_that_is_over_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that falls silent does not break it: a socket and a task stayed after each such loss."""

    async def main() -> None:
        async def found(host: str, port: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        watched = Watched(tmp_path)
        lookout = await watched.begin()
        for epoch in (8, 9, 10):
            watched.image.brokers = {}  # its session has ended
            lookout.look()
            await asyncio.sleep(0.01)
            watched.image.brokers = {BROKER.id: replace(BROKER, epoch=epoch)}
            lookout.look()
            await until(lambda epoch=epoch: len(watched.writers) == epoch - 6)  # type: ignore[misc]
        await until(lambda: sum(not writer.transport.is_closing() for writer in watched.writers) == 1)
        assert [broker.epoch for broker in lookout._lines] == [10]
        await watched.end()

    asyncio.run(main())
