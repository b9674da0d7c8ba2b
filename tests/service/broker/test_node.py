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
from tests.service.api.admin_stage import Stage
from tests.service.broker.cluster_stage import until


async def nothing(broker: Broker) -> None:
    return


async def lived(
    folder: Path,
    server: MemoryServer,
    node_id: int = 1,
    scene: Callable[[Broker], Awaitable[None]] = nothing,
    before: Callable[[Broker], Awaitable[None]] = nothing,
) -> None:
    """A broker starts there, does something, and stops. `before` is done before it registers."""
    os.makedirs(folder, exist_ok=True)
    disk = RealDisk(str(folder))
    env = RealEnv(disk)
    config = BrokerConfig({"node.id": str(node_id), "log.reserve.bytes": "0"})
    broker = Broker(env, config, MemoryStore(server, env), {str(folder): disk}, OFFERED)
    try:
        await broker.open()
        await before(broker)
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


@pytest.mark.parametrize("is_back_in_time", [False, True])
def test_a_broker_whose_session_ends_while_it_notes_what_is_lost_leads_when_there_is_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_back_in_time: bool
) -> None:
    """It led what the metadata gave it, though others might lead that by then."""

    async def first(broker: Broker) -> None:
        stage = Stage(broker)
        await stage.create("orders")
        await stage.served("orders")

    async def main() -> None:
        server, silence = MemoryServer(RealClock()), pytest.MonkeyPatch()
        await lived(tmp_path, server, scene=first)

        def leads(broker: Broker) -> list[bool]:
            return [partition.is_leading for partition in broker.partitions]

        async def before(broker: Broker) -> None:
            told, metadata = broker.maker.told, broker.metadata

            async def meanwhile() -> None:
                silence.setattr(metadata._session, "lease_left", lambda: -1.0)
                await until(lambda: bool(metadata.trouble))
                if is_back_in_time:
                    silence.undo()
                    await until(lambda: not metadata.trouble)
                assert leads(broker) == [False], "it is not noted yet what is lost"
                await told()

            monkeypatch.setattr(broker.maker, "told", meanwhile)

        async def second(broker: Broker) -> None:
            assert leads(broker) == [is_back_in_time]
            silence.undo()
            await until(lambda: leads(broker) == [True])

        await lived(tmp_path, server, scene=second, before=before)

    asyncio.run(main())
