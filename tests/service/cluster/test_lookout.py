"""How the controller's lookout holds its connections; what it makes of a death is in the simulation."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from log.disk import RealDisk
from service.client.connection import Client
from service.cluster.image import RegisteredBroker
from service.cluster.lookout import Lookout
from service.cluster.metadata import ClusterMetadata
from service.ports import RealEnv

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
