"""The broker as a whole: whose folder and whose store it starts with, and how it leaves."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from log.disk import RealDisk
from service.api.routes import OFFERED
from service.broker.data_folder import META_FILE, StartError
from service.broker.node import Broker
from service.ports import RealClock, RealEnv
from service.settings.broker import BrokerConfig, Endpoint
from service.stores.memory import MemoryServer, MemoryStore


async def nothing(broker: Broker) -> None:
    return


async def lived(
    folder: Path, server: MemoryServer, node_id: int = 1, scene: Callable[[Broker], Awaitable[None]] = nothing
) -> None:
    """A broker starts there, does something, and stops."""
    os.makedirs(folder, exist_ok=True)
    disk = RealDisk(str(folder))
    env = RealEnv(disk)
    config = BrokerConfig({"node.id": str(node_id), "log.reserve.bytes": "0"})
    broker = Broker(env, config, MemoryStore(server, env), {str(folder): disk}, OFFERED)
    try:
        await broker.open()
        await broker.register([Endpoint("PLAINTEXT", "broker.example", 9092, "PLAINTEXT")])
        await scene(broker)
    finally:
        await broker.stop()
        disk.close()


def test_a_folder_is_one_brokers_own(tmp_path: Path) -> None:
    async def main() -> None:
        server = MemoryServer(RealClock())
        await lived(tmp_path, server)
        with pytest.raises(StartError, match="belongs to broker 1"):
            await lived(tmp_path, server, node_id=2)

    asyncio.run(main())


def test_a_folder_is_one_clusters_own(tmp_path: Path) -> None:
    async def main() -> None:
        ours, theirs = MemoryServer(RealClock()), MemoryServer(RealClock())
        await lived(tmp_path / "ours", ours)
        await lived(tmp_path / "theirs", theirs)
        with pytest.raises(StartError, match="the metadata store is of cluster"):
            await lived(tmp_path / "ours", theirs)
        with pytest.raises(StartError, match="the metadata store is empty"):
            await lived(tmp_path / "ours", MemoryServer(RealClock()))

    asyncio.run(main())


def test_a_number_that_another_broker_has_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        server = MemoryServer(RealClock())

        async def meanwhile(broker: Broker) -> None:
            with pytest.raises(StartError, match="the cluster refused this broker"):
                await lived(tmp_path / "second", server)
            assert not (tmp_path / "second" / META_FILE).exists(), "it can get another number"

        await lived(tmp_path / "first", server, scene=meanwhile)

    asyncio.run(main())
