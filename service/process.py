"""One broker as a process: the real world's ports, the store, the listeners and the broker, put together and taken
apart again.

`run_broker` returns after a clean stop. What keeps the broker from starting is a `StartError` of one clear line.
"""

import asyncio
import os
from collections.abc import Callable

from log.disk import RealDisk
from service.api.door import BrokerDoor
from service.api.routes import OFFERED
from service.broker.data_folder import StartError, read_all
from service.broker.node import Broker, Opening
from service.broker.ports import RealEnv
from service.broker.session import Session
from service.cluster.metadata import MetadataLost
from service.cluster.sql_store import SqlStore
from service.cluster.store import StoreError
from service.config import BrokerConfig
from service.net.server import Limits, Room, Server, serve


async def run_broker(
    config: BrokerConfig,
    *,
    on_opening: Callable[[Opening], None],
    on_ready: Callable[[Broker], None],
    stop: asyncio.Event,
) -> None:
    for folder in config.data_folders:
        os.makedirs(folder, exist_ok=True)
    disks: dict[str, RealDisk] = {folder: RealDisk(folder) for folder in config.data_folders}
    read_all(disks)  # refuses folders that are not ours before anything in them is touched
    env = RealEnv(disks[config.data_folders[0]])
    try:
        store = await SqlStore.open(store_url(config), env)
    except StoreError as error:
        raise StartError(str(error)) from None
    broker = Broker(env, config, store, disks, OFFERED)
    on_opening(broker.opening)
    try:
        await broker.open()
        servers = await listen(broker)
    except (MetadataLost, StoreError) as error:
        raise StartError(str(error)) from None
    on_ready(broker)
    await stop.wait()
    for server in servers:
        await server.close()
    await broker.stop()
    await store.close()
    for disk in disks.values():
        disk.close()


def store_url(config: BrokerConfig) -> str:
    """Where the metadata is: beside the data, unless configured."""
    return config.store_url or f"sqlite:///{config.data_folders[0]}/meta.db"


async def listen(broker: Broker) -> list[Server[Session]]:
    """Open every listener, then join the cluster under the addresses that clients shall use."""
    loop, door, config = asyncio.get_running_loop(), BrokerDoor(broker), broker.config
    limits = Limits(
        request_bytes=config.socket_request_max_bytes,
        idle_timeout_s=config.connections_max_idle_ms / 1000,
    )
    room = Room(lambda: config.max_connections, lambda: config.max_connections_per_ip)
    servers = []
    ports: dict[str, int] = {}
    for endpoint in broker.config.endpoints:
        try:
            server = await serve(loop, endpoint.host or None, endpoint.port, door, limits, room)
        except OSError as error:
            raise StartError(f"can't listen on {endpoint.host or '*'}:{endpoint.port}: {error.strerror}") from None
        ports[endpoint.listener] = server.port
        servers.append(server)
    advertised = broker.config.advertised_endpoints()
    await broker.register(
        [endpoint._replace(port=endpoint.port or ports[endpoint.listener]) for endpoint in advertised]
    )
    return servers
