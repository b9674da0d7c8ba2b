"""One broker as a process: puts together the real ports, the store, the listeners and the broker, and takes them apart
at the end.

`run_broker` returns after a clean stop. `on_ready` gets the broker and the addresses of its HTTP API. A `StartError` of
one clear line says what keeps the broker from starting.
"""

import asyncio
import math
import os
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import URL

from log.disk import OPEN_FILES_MAX, DiskFault, RealDisk
from service.api.broker_door import BrokerDoor
from service.api.listener import Listener
from service.api.routes import OFFERED
from service.broker.data_folder import FolderFacts, StartError, read_all
from service.broker.headroom import make_room_to_start
from service.broker.node import Broker
from service.broker.opening import OpeningProgress
from service.broker.session import Session
from service.cluster.image import Image
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.garbage import Garbage
from service.net.server import Limits, Room, Server, serve
from service.ports import Env, RealEnv
from service.settings.broker import BrokerConfig, Endpoint
from service.settings.setting import MAX_INT
from service.stores.ledger import LedgerStore
from service.stores.port import MetadataStore, StoreError
from service.stores.shared import SCHEME, SharedStore
from service.stores.sql import SqlStore

if TYPE_CHECKING:
    from service.web.app import WebServer

STORE_FILE: Final = "meta.db"
SWITCH_S: Final = 0.0005
"""So long a thread that has done its work waits for the interpreter at most. The event loop gives it up at the end of
each turn and has it back at once, and with each time the thread's wait begins anew. With Python's 5 ms a thread came
seldom, sometimes not for seconds, while short turns followed each other, and nothing it had flushed was acknowledged.
"""
DESCRIPTORS_ELSEWHERE: Final = 256
"""Descriptors kept for everything else: the metadata store, listeners, files that are being synced or sent, and bursts
of new connections.
"""


async def run_broker(
    config: BrokerConfig,
    *,
    on_opening: Callable[[OpeningProgress], None],
    on_ready: Callable[[Broker, Sequence[Endpoint]], None],
    stop: asyncio.Event,
) -> None:
    if not __debug__:
        raise StartError("the broker's own promises are asserted: it does not run under python -O (PYTHONOPTIMIZE)")
    sys.setswitchinterval(SWITCH_S)
    folders = [str(folder) for folder in map(Path.absolute, map(Path, config.data_folders))]  # as clients are told
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    descriptors = share_descriptors(len(folders))
    disks = {folder: RealDisk(folder, open_files_max=descriptors.files) for folder in folders}
    env = RealEnv(disks[folders[0]])
    try:
        refuse_lost_metadata(config, read_all(disks).values())  # which refuses folders of others
        for disk in disks.values():
            make_room_to_start(disk)
        store = await open_store(config, env)
        broker = Broker(env, config, store, disks, OFFERED)
        broker.metadata.on_displaced = stop.set
        on_opening(broker.maker.progress)
        if isinstance(store, SqlStore):
            await broker.open(refuse_company)
        else:
            await broker.open()
        web_connections = descriptors.connections // 4
        web = await listen_for_http(broker, web_connections)
        servers = await listen(broker, descriptors.connections - web_connections, () if web is None else web.endpoints)
    except (MetadataLost, StoreError) as error:
        raise StartError(str(error)) from None
    except DiskFault as fault:
        where = " or ".join(folders)
        raise StartError(f"{fault.filename} in {where}: {fault.strerror}") from None
    env.tasks.spawn("loop watch", broker.loop_watch.run())
    env.tasks.spawn("garbage", Garbage().run())
    env.tasks.spawn("health of the cluster", broker.health.run())
    if config.otlp_endpoint is not None:
        from service.web.telemetry import export_spans  # imported only where it is used

        env.tasks.spawn(
            "spans",
            export_spans(broker.coordination.txn_tally, config.otlp_endpoint, broker_id=broker.metadata.broker_id),
        )
    if web is not None:
        web.begin()
    on_ready(broker, () if web is None else web.endpoints)
    await stop.wait()
    await broker.holdings.hand_over()
    if web is not None:
        await web.stop()
    for server in servers:
        await server.close()
    await broker.stop()
    await store.close()
    for disk in disks.values():
        disk.close()
    if broker.metadata.is_displaced:
        raise StartError(
            f"id taken: another process has registered as broker {broker.metadata.broker_id} since this one did. What"
            " this one took after the folder was copied is in its data folder alone"
        )


def refuse_company(metadata: ClusterMetadata) -> None:
    """Refuse to start alone on the embedded store if the metadata names other brokers: they could not reach it."""
    refuse_fewer(metadata.image, metadata.broker_id, 1)


def refuse_fewer(image: Image, first: int, count: int) -> None:
    """Refuse to start `count` brokers from id `first` on if others hold partitions: nobody would lead what only those
    have.
    """
    if others := sorted(image.holders() - set(range(first, first + count))):
        wanted = max(others[-1], first) - min(others[0], first) + 1  # their ids follow each other
        raise StartError(
            f"the metadata names brokers {others} too: start all of them (oncelog serve --brokers {wanted}), or move"
            f" what they hold to the others while they run (oncelog cluster drain {' '.join(map(str, others))})"
        )


async def open_store(config: BrokerConfig, env: Env) -> MetadataStore:
    """Open the metadata store that the settings name. A library that only some stores need is imported for those."""
    if config.zookeeper_connect is not None:
        from service.stores.zookeeper import ZooKeeper

        user, _, secret = (config.zookeeper_digest or "").partition(":")
        ensemble = ZooKeeper(config.zookeeper_connect, user, secret)
        return LedgerStore(lambda timeout_s: ensemble.session(timeout_s, env), env)
    url = store_url(config)
    if url.startswith("postgresql"):
        from service.stores.postgres import PostgresSession

        return LedgerStore(lambda timeout_s: PostgresSession.connect(url, timeout_s, env), env)
    if url.startswith(SCHEME):
        return SharedStore(url.removeprefix(SCHEME), env)
    return await SqlStore.open(url, env)


def refuse_lost_metadata(config: BrokerConfig, folders: Iterable[FolderFacts | None]) -> None:
    """Refuse folders of a cluster whose metadata is in none of them. Empty metadata would be made there, and would be
    found first once those folders are named that have what belongs to the cluster.
    """
    belongs_to = next((facts.cluster_id for facts in folders if facts is not None), None)
    stored = any(os.path.exists(f"{folder}/{STORE_FILE}") for folder in config.data_folders)
    if belongs_to is not None and not stored and config.store_url is None and config.zookeeper_connect is None:
        raise StartError(
            f"the data folder belongs to cluster {belongs_to}, but no {STORE_FILE} is there: name all folders that"
            " belong together, or the store of the cluster, or bring back what was there"
        )


def store_url(config: BrokerConfig) -> str:
    """The address of the metadata store. Unless configured, it is a file in a data folder. All folders are searched,
    because they may be named in another order than before.
    """
    if config.store_url is not None:
        return config.store_url
    paths = [f"{folder}/{STORE_FILE}" for folder in config.data_folders]
    # The URL is built from parts, because a folder's name may have characters with a meaning in URLs.
    return URL.create("sqlite", database=next(filter(os.path.exists, paths), paths[0])).render_as_string()


class Descriptors(NamedTuple):
    """How many descriptors the process may use: files for each data folder, and connections."""

    files: int
    connections: int


def share_descriptors(folders: int) -> Descriptors:
    """Raise the limit to what the system grants, and share it out, so that connections never take the descriptors that
    a log needs for writing.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems do not grant their own hard limit
        # The usual soft limit of 1024 is for programs that use select().
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return Descriptors(OPEN_FILES_MAX, MAX_INT)
    files = min(OPEN_FILES_MAX, limit // (4 * folders))
    return Descriptors(files, limit - files * folders - min(DESCRIPTORS_ELSEWHERE, limit // 4))


def limits_of(config: BrokerConfig) -> Limits:
    idle_ms = config.connections_max_idle_ms
    return Limits(
        request_bytes=config.socket_request_max_bytes,
        idle_timeout_s=idle_ms / 1000 if idle_ms >= 0 else math.inf,
    )


async def listen(broker: Broker, connections_max: int = MAX_INT, web: Sequence[Endpoint] = ()) -> list[Server[Session]]:
    """Open every listener, then join the cluster with the addresses for clients. `web` has the addresses of the HTTP
    API.
    """
    loop, config = asyncio.get_running_loop(), broker.config
    limits = limits_of(config)
    room = Room(
        lambda: config.max_connections,
        lambda: config.max_connections_per_ip,
        at_all=connections_max,
        most_request_bytes=lambda: most if (most := config.queued_max_request_bytes) >= 0 else sys.maxsize,
    )
    servers = []
    ports: dict[str, int] = {}
    for endpoint in broker.config.endpoints:
        listener = Listener(endpoint.listener)
        door = BrokerDoor(broker, listener)
        try:
            server = await serve(loop, endpoint.host or None, endpoint.port, door, limits, room, listener.tls)
        except OSError as error:
            raise StartError(f"can't listen on {endpoint.address}: {error.strerror}") from None
        ports[endpoint.listener] = server.port
        servers.append(server)
    advertised = broker.config.advertised_endpoints()
    host = advertised[0].host
    await broker.register(
        [
            *(endpoint._replace(port=endpoint.port or ports[endpoint.listener]) for endpoint in advertised),
            *(each._replace(host=host if each.host in ("", "0.0.0.0", "::") else each.host) for each in web[:1]),
        ]
    )
    return servers


async def listen_for_http(broker: Broker, connections_max: int) -> "WebServer | None":
    """The HTTP API if it is configured. Its libraries are imported only then."""
    endpoints = broker.config.web_endpoints
    if not endpoints:
        return None
    from service.web.app import WebServer

    outgoing_max = connections_max // 3  # to other brokers, for requests that wait there
    web = WebServer(broker, connections_max - outgoing_max, outgoing_max=outgoing_max)
    await web.start(endpoints)
    return web
